/* The CUDA runtime API apart from streams (stream.c), kernels (launch.c), memory and pools. */
#include <stdio.h>
#include <string.h>

#include "core.h"
#include "versions.h"

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
    *count = 0;
    if (us_initialize())
        return us_error(cudaErrorInitializationError);
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
    if (us_initialize())
        return us_error(cudaErrorInitializationError);
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
    if (us_forked)
        return us_error(cudaErrorInitializationError);
    struct us_record record = us_record_begin(US_API_DEVICE_SYNCHRONIZE);
    us_host_synchronized();
    us_emit(&record);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDriverGetVersion(int *version) {
    *version = US_CUDA_VERSION;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = us_library_versions()->cuda_runtime;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (!is_device(device))
        return us_error(cudaErrorInvalidDevice);
    if (!value || !us_device_attribute(attribute, device, value))
        return us_error(cudaErrorInvalidValue);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static char enabled[US_MAX_DEVICES][US_MAX_DEVICES];
    (void)flags;
    if (!is_device(peer) || peer == us_current_device())
        return us_error(cudaErrorInvalidDevice);
    if (!us_peer_access(us_current_device(), peer))
        return us_error(cudaErrorPeerAccessUnsupported);
    if (__atomic_exchange_n(&enabled[us_current_device()][peer], 1, __ATOMIC_RELAXED))
        return us_error(cudaErrorPeerAccessAlreadyEnabled);
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
