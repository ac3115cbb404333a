/* The CUDA runtime API apart from streams (stream.c), kernels (launch.c), memory and pools. */
#include <stdio.h>
#include <string.h>

#include "core.h"

static __thread cudaError_t last_error;

/* Errors of device execution would stick to the context; none arises here, so all are cleared. */
cudaError_t us_error(cudaError_t code) {
    if (__builtin_expect(code != cudaSuccess, 0))
        last_error = code;
    return code;
}

US_EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

US_EXPORT cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

struct error_text {
    int code;
    const char *name, *driver_name, *text;
};

static const struct error_text error_texts[] = {
    {0, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "CUDA_ERROR_UNKNOWN", "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", "CUDA_ERROR_UNKNOWN", "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", "CUDA_ERROR_UNKNOWN", "invalid device symbol"},
    {21, "cudaErrorInvalidMemcpyDirection", "CUDA_ERROR_UNKNOWN", "invalid copy direction for memcpy"},
    {52, "cudaErrorMissingConfiguration", "CUDA_ERROR_UNKNOWN", "__global__ function call is not configured"},
    {98, "cudaErrorInvalidDeviceFunction", "CUDA_ERROR_UNKNOWN", "invalid device function"},
    {100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {217, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {301, "cudaErrorFileNotFound", "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_text *text_of(int code) {
    for (size_t i = 0; i < sizeof error_texts / sizeof *error_texts; i++)
        if (error_texts[i].code == code)
            return &error_texts[i];
    return NULL;
}

US_EXPORT const char *cudaGetErrorName(cudaError_t code) {
    const struct error_text *text = text_of(code);
    return text ? text->name : "unrecognized error code";
}

US_EXPORT const char *cudaGetErrorString(cudaError_t code) {
    const struct error_text *text = text_of(code);
    return text ? text->text : "unrecognized error code";
}

US_EXPORT CUresult cuGetErrorName(CUresult code, const char **name) {
    const struct error_text *text = text_of(code);
    *name = text ? text->driver_name : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

US_EXPORT CUresult cuGetErrorString(CUresult code, const char **string) {
    const struct error_text *text = text_of(code);
    *string = text ? text->text : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Devices -------------------------------------------------------------------------------------- */

static bool is_device(int device) {
    return device >= 0 && device < us_device_count();
}

US_EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    if (!count)
        return us_error(cudaErrorInvalidValue);
    *count = us_device_count();
    return us_error(*count ? cudaSuccess : cudaErrorNoDevice);
}

US_EXPORT cudaError_t cudaGetDevice(int *device) {
    if (!device)
        return us_error(cudaErrorInvalidValue);
    *device = us_current_device();
    return us_error(us_device_count() ? cudaSuccess : cudaErrorNoDevice);
}

US_EXPORT cudaError_t cudaSetDevice(int device) {
    if (!is_device(device))
        return us_error(us_device_count() ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    us_set_current_device(device);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    return us_error(is_device(device) ? cudaSuccess : cudaErrorInvalidDevice);
}

US_EXPORT cudaError_t cudaDeviceSynchronize(void) {
    struct us_record record = us_record_begin(US_API_DEVICE_SYNCHRONIZE);
    us_emit(&record);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDriverGetVersion(int *version) {
    *version = US_CUDA_VERSION;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = US_CUDA_VERSION;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (!is_device(device))
        return us_error(cudaErrorInvalidDevice);
    if (!value || !us_device_attribute(attribute, device, value))
        return us_error(cudaErrorInvalidValue);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device) {
    if (!is_device(device))
        return us_error(cudaErrorInvalidDevice);
    if (!id || bytes < 13)
        return us_error(cudaErrorInvalidValue);
    snprintf(id, (size_t)bytes, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
    unsigned domain, bus;
    if (!device || !id || sscanf(id, "%x:%x:", &domain, &bus) != 2 || !is_device((int)bus - 1))
        return us_error(cudaErrorInvalidValue);
    *device = (int)bus - 1;
    return cudaSuccess;
}

/* struct cudaDeviceProp of CUDA 13. */
struct device_properties {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_node_mask;
    size_t total_memory, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int max_threads_per_block, max_threads[3], max_grid[3];
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int multiprocessors, integrated, can_map_host;
    int textures[39]; /* maxTexture1D ... maxSurfaceCubemapLayered */
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines;
    int unified_addressing, memory_bus_bits, l2_bytes, persisting_l2_bytes;
    int max_threads_per_multiprocessor, stream_priorities, global_l1, local_l1;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor, managed_memory, multi_gpu_board, multi_gpu_board_group;
    int host_native_atomics, pageable_access, concurrent_managed, preemption;
    int can_use_host_pointer, cooperative_launch;
    size_t shared_per_block_optin;
    int pageable_host_tables, direct_managed, max_blocks_per_multiprocessor, access_window;
    size_t reserved_shared_per_block;
    int host_register, sparse_arrays, host_register_read_only, timeline_semaphores;
    int memory_pools, gpu_direct_rdma;
    unsigned rdma_flush_options;
    int rdma_ordering;
    unsigned pool_handle_types;
    int deferred_arrays, ipc_events, cluster_launch, unified_functions;
    int numa_config, numa_id, mps, host_numa_id;
    unsigned pci_device_id, pci_subsystem_id;
    int host_numa_ipc;
    int reserved[56];
};
_Static_assert(offsetof(struct device_properties, surface_alignment) == 552, "cudaDeviceProp");
_Static_assert(offsetof(struct device_properties, cluster_launch) == 748, "cudaDeviceProp");
_Static_assert(sizeof(struct device_properties) == 1008, "cudaDeviceProp");

static int attribute(int number, int device) {
    int value = 0;
    us_device_attribute(number, device, &value);
    return value;
}

void us_device_uuid(int device, unsigned char uuid[16]) {
    uint64_t hash = us_hash(us_device()->id, strlen(us_device()->id));
    memcpy(uuid, &hash, 8);
    memset(uuid + 8, 0, 8);
    uuid[15] = (unsigned char)device;
}

US_EXPORT cudaError_t cudaGetDeviceProperties(struct device_properties *p, int device) {
    const struct us_device *d = us_device();
    if (!is_device(device))
        return us_error(cudaErrorInvalidDevice);
    if (!p)
        return us_error(cudaErrorInvalidValue);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", d->name);
    us_device_uuid(device, p->uuid);
    p->total_memory = d->memory_bytes;
    p->shared_per_block = 49152;
    p->registers_per_block = 65536;
    p->warp_size = 32;
    p->pitch = 2147483647;
    p->max_threads_per_block = 1024;
    p->max_threads[0] = p->max_threads[1] = 1024;
    p->max_threads[2] = 64;
    p->max_grid[0] = 2147483647;
    p->max_grid[1] = p->max_grid[2] = 65535;
    p->constant_memory = 65536;
    p->major = d->compute_capability_major;
    p->minor = d->compute_capability_minor;
    p->texture_alignment = 512;
    p->texture_pitch_alignment = 32;
    p->multiprocessors = d->multiprocessors;
    p->can_map_host = 1;
    p->surface_alignment = 512;
    p->concurrent_kernels = 1;
    p->ecc = 1;
    p->pci_bus = device + 1;
    p->copy_engines = 3;
    p->unified_addressing = 1;
    p->memory_bus_bits = d->memory_bus_bits;
    p->l2_bytes = (int)d->l2_bytes;
    p->max_threads_per_multiprocessor = d->max_threads_per_multiprocessor;
    p->stream_priorities = 1;
    p->global_l1 = p->local_l1 = 1;
    p->shared_per_multiprocessor = (size_t)d->shared_memory_per_multiprocessor_bytes;
    p->registers_per_multiprocessor = d->registers_per_multiprocessor;
    p->managed_memory = 1;
    p->concurrent_managed = 1;
    p->preemption = 1;
    p->can_use_host_pointer = 1;
    p->cooperative_launch = 1;
    p->shared_per_block_optin = (size_t)d->shared_memory_per_block_optin_bytes;
    p->max_blocks_per_multiprocessor = us_max_blocks_per_multiprocessor();
    p->reserved_shared_per_block = (size_t)us_reserved_shared_memory_per_block();
    p->host_register = 1;
    p->memory_pools = attribute(115, device);
    p->cluster_launch = attribute(120, device);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (!is_device(device) || !is_device(peer))
        return us_error(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static char enabled[US_MAX_DEVICES][US_MAX_DEVICES];
    (void)flags;
    if (!is_device(peer) || peer == us_current_device())
        return us_error(cudaErrorInvalidDevice);
    if (__atomic_exchange_n(&enabled[us_current_device()][peer], 1, __ATOMIC_RELAXED))
        return us_error(cudaErrorPeerAccessAlreadyEnabled);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, int attribute_number, int source,
                                                int destination) {
    if (!is_device(source) || !is_device(destination))
        return us_error(cudaErrorInvalidDevice);
    *value = attribute_number != 1; /* 1 = performance rank */
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetLimit(size_t *value, int limit) {
    static const size_t defaults[] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0};
    if (!value || limit < 0 || limit > 6)
        return us_error(cudaErrorInvalidValue);
    *value = defaults[limit];
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaProfilerStart(void) {
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaProfilerStop(void) {
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, int attribute_number,
                                                     uint64_t *value) {
    (void)attribute_number;
    if (!is_device(device) || !value)
        return us_error(cudaErrorInvalidValue);
    *value = 0;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer,
                                           cudaHostFn_t destroy, unsigned references,
                                           unsigned flags) {
    /* The object would live as long as its graph; here it lives as long as the process. */
    static char token;
    (void)pointer, (void)destroy, (void)references, (void)flags;
    if (!object)
        return us_error(cudaErrorInvalidValue);
    *object = (cudaUserObject_t)&token;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                unsigned count, unsigned flags) {
    (void)graph, (void)object, (void)count, (void)flags;
    return cudaSuccess;
}

/* Driver functions by name --------------------------------------------------------------------- */

static cudaError_t entry_point(const char *name, void **function, int *status) {
    if (!name || !function)
        return us_error(cudaErrorInvalidValue);
    *function = us_driver_entry(name);
    if (status)
        *status = *function ? 0 : 1; /* success, symbol not found */
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function,
                                              unsigned long long flags, int *status) {
    (void)flags;
    return entry_point(name, function, status);
}

US_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                       unsigned version, unsigned long long flags,
                                                       int *status) {
    (void)version, (void)flags;
    return entry_point(name, function, status);
}
