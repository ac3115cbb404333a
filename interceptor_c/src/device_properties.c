/* What CUDA says of a device beyond single attributes: properties, PCI location, peers. All is
   answered from the attributes, so that every way of asking gives the same answer. */
#include <stdio.h>
#include <string.h>

#include "core.h"

static bool is_device(int device) {
    return device >= 0 && device < us_device_count();
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

/* The attribute behind each element of `textures`. */
static const int texture_attributes[39] = {
    21, 77, 22, 23, 73, 74, 70, 71, 72, 45, 46, 24, 25, 26, 47, 48, 49, 52, 42, 43,
    27, 28, 29, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68,
};

static int attribute(int number, int device) {
    int value = 0;
    us_device_attribute(number, device, &value);
    return value;
}

static size_t bytes_attribute(int number, int device) {
    return (size_t)attribute(number, device);
}

US_EXPORT cudaError_t cudaGetDeviceProperties(struct device_properties *p, int device) {
    if (!is_device(device))
        return us_error(cudaErrorInvalidDevice);
    if (!p)
        return us_error(cudaErrorInvalidValue);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", us_device()->name);
    us_device_uuid(us_physical_device(device), p->uuid);
    p->total_memory = us_device()->memory_bytes;
    p->shared_per_block = bytes_attribute(8, device);
    p->registers_per_block = attribute(12, device);
    p->warp_size = attribute(10, device);
    p->pitch = bytes_attribute(11, device);
    p->max_threads_per_block = attribute(1, device);
    for (int i = 0; i < 3; i++) {
        p->max_threads[i] = attribute(2 + i, device);
        p->max_grid[i] = attribute(5 + i, device);
    }
    p->constant_memory = bytes_attribute(9, device);
    p->major = attribute(75, device);
    p->minor = attribute(76, device);
    p->texture_alignment = bytes_attribute(14, device);
    p->texture_pitch_alignment = bytes_attribute(51, device);
    p->multiprocessors = attribute(16, device);
    p->integrated = attribute(18, device);
    p->can_map_host = attribute(19, device);
    for (int i = 0; i < 39; i++)
        p->textures[i] = attribute(texture_attributes[i], device);
    p->surface_alignment = bytes_attribute(30, device);
    p->concurrent_kernels = attribute(31, device);
    p->ecc = attribute(32, device);
    p->pci_bus = attribute(33, device);
    p->pci_device = attribute(34, device);
    p->pci_domain = attribute(50, device);
    p->tcc = attribute(35, device);
    p->copy_engines = attribute(40, device);
    p->unified_addressing = attribute(41, device);
    p->memory_bus_bits = attribute(37, device);
    p->l2_bytes = attribute(38, device);
    p->persisting_l2_bytes = attribute(108, device);
    p->max_threads_per_multiprocessor = attribute(39, device);
    p->stream_priorities = attribute(78, device);
    p->global_l1 = attribute(79, device);
    p->local_l1 = attribute(80, device);
    p->shared_per_multiprocessor = bytes_attribute(81, device);
    p->registers_per_multiprocessor = attribute(82, device);
    p->managed_memory = attribute(83, device);
    p->multi_gpu_board = attribute(84, device);
    p->multi_gpu_board_group = attribute(85, device);
    p->host_native_atomics = attribute(86, device);
    p->pageable_access = attribute(88, device);
    p->concurrent_managed = attribute(89, device);
    p->preemption = attribute(90, device);
    p->can_use_host_pointer = attribute(91, device);
    p->cooperative_launch = attribute(95, device);
    p->shared_per_block_optin = bytes_attribute(97, device);
    p->pageable_host_tables = attribute(100, device);
    p->direct_managed = attribute(101, device);
    p->max_blocks_per_multiprocessor = attribute(106, device);
    p->access_window = attribute(109, device);
    p->reserved_shared_per_block = bytes_attribute(111, device);
    p->host_register = attribute(99, device);
    p->sparse_arrays = attribute(112, device);
    p->host_register_read_only = attribute(113, device);
    p->timeline_semaphores = attribute(114, device);
    p->memory_pools = attribute(115, device);
    p->gpu_direct_rdma = attribute(116, device);
    p->rdma_flush_options = (unsigned)attribute(117, device);
    p->rdma_ordering = attribute(118, device);
    p->pool_handle_types = (unsigned)attribute(119, device);
    p->deferred_arrays = attribute(121, device);
    p->ipc_events = attribute(125, device);
    p->cluster_launch = attribute(120, device);
    p->unified_functions = attribute(129, device);
    p->numa_config = attribute(130, device);
    p->numa_id = attribute(131, device);
    p->mps = attribute(133, device);
    p->host_numa_id = attribute(134, device);
    p->pci_device_id = (unsigned)attribute(139, device);
    p->pci_subsystem_id = (unsigned)attribute(140, device);
    p->host_numa_ipc = attribute(143, device);
    return cudaSuccess;
}

void us_pci_bus_id(int physical, char *id, size_t bytes) {
    struct us_pci_location pci = us_pci_location(physical);
    snprintf(id, bytes, "%04X:%02X:00.0", (unsigned)pci.domain & 0xffff, (unsigned)pci.bus & 0xff);
}

US_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device) {
    if (!is_device(device))
        return us_error(cudaErrorInvalidDevice);
    if (!id || bytes < 13)
        return us_error(cudaErrorInvalidValue);
    us_pci_bus_id(us_physical_device(device), id, (size_t)bytes);
    return cudaSuccess;
}

/* The CUDA device at domain:bus:device.function or bus:device; -1 for none. */
static int device_by_bus_id(const char *id) {
    struct us_pci_location pci = {0};
    unsigned domain, bus, device;
    if (!id)
        return -1;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &device) == 3)
        pci = (struct us_pci_location){.domain = (int)domain, .bus = (int)bus};
    else if (sscanf(id, "%x:%x", &bus, &device) == 2)
        pci.bus = (int)bus;
    else
        return -1;
    for (int i = 0; i < us_device_count(); i++)
        if (us_physical_device(i) == us_device_at(pci))
            return i;
    return -1;
}

US_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
    int found = device_by_bus_id(id);
    if (!device || found < 0)
        return us_error(cudaErrorInvalidValue);
    *device = found;
    return cudaSuccess;
}

US_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    int found = device_by_bus_id(id);
    if (!device || found < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *device = found;
    return CUDA_SUCCESS;
}

US_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (!is_device(device) || !is_device(peer))
        return us_error(cudaErrorInvalidDevice);
    if (!can)
        return us_error(cudaErrorInvalidValue);
    *can = us_peer_access(device, peer);
    return cudaSuccess;
}

/* cudaDeviceP2PAttr: performance rank, access, native atomics (over NVLink), access to arrays. */
static int peer_attribute(int number, int source, int destination) {
    bool access = us_peer_access(source, destination);
    switch (number) {
    case 2:
    case 4:
        return access;
    case 3:
        return access && us_device()->nvlink_links > 0;
    default:
        return 0;
    }
}

US_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, int number, int source,
                                                int destination) {
    if (!is_device(source) || !is_device(destination))
        return us_error(cudaErrorInvalidDevice);
    if (!value || number < 1 || number > 4 || source == destination)
        return us_error(cudaErrorInvalidValue);
    *value = peer_attribute(number, source, destination);
    return cudaSuccess;
}

US_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int number, CUdevice source,
                                           CUdevice destination) {
    if (!is_device(source) || !is_device(destination))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || number < 1 || number > 4 || source == destination)
        return CUDA_ERROR_INVALID_VALUE;
    *value = peer_attribute(number, source, destination);
    return CUDA_SUCCESS;
}
