/* The CUDA driver API of memory: allocation, virtual memory management, copies and fills. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define ALLOCATION_MAGIC 0x55414c4cu
#define GRANULARITY (2ull << 20)

US_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    void *allocated = NULL;
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = us_record_malloc(bytes, &allocated);
    *pointer = (uintptr_t)allocated;
    return result;
}

US_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    return us_record_free((void *)(uintptr_t)pointer);
}

US_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    us_memory_info(us_current_device(), free_bytes, total_bytes);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return us_record_host_alloc(bytes, pointer);
}

US_EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return us_record_host_alloc(bytes, pointer);
}

US_EXPORT CUresult cuMemFreeHost(void *pointer) {
    return us_record_host_free(pointer);
}

US_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return us_host_register(pointer, bytes);
}

US_EXPORT CUresult cuMemHostUnregister(void *pointer) {
    return us_host_unregister(pointer);
}

US_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags) {
    (void)flags;
    if (!us_pointer_is_pinned(pointer))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    void *start;
    size_t size;
    if (!us_allocation_of((void *)(uintptr_t)pointer, &start, &size))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = (uintptr_t)start;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer) {
    struct cudaPointerAttributes attributes;
    us_pointer_attributes(&attributes, (void *)(uintptr_t)pointer);
    if (attributes.type == cudaMemoryTypeUnregistered || !value)
        return CUDA_ERROR_INVALID_VALUE;
    bool on_device = attributes.type == cudaMemoryTypeDevice;
    void *base = NULL;
    size_t bytes = 0;
    us_allocation_of((void *)(uintptr_t)pointer, &base, &bytes);
    unsigned number = 0;
    switch (attribute) { /* CUpointer_attribute */
    case 1: { /* context */
        CUcontext context = NULL;
        extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
        cuDevicePrimaryCtxRetain(&context, on_device ? attributes.device : us_current_device());
        memcpy(value, &context, sizeof context);
        return CUDA_SUCCESS;
    }
    case 2: /* memory type: host 1, device 2 */
        number = on_device ? 2 : 1;
        break;
    case 3: /* device pointer */
        memcpy(value, &pointer, sizeof pointer);
        return CUDA_SUCCESS;
    case 4: /* host pointer */
        if (on_device)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(value, &pointer, sizeof pointer);
        return CUDA_SUCCESS;
    case 7: { /* buffer id */
        unsigned long long id = (uintptr_t)base;
        memcpy(value, &id, sizeof id);
        return CUDA_SUCCESS;
    }
    case 8: /* managed */
        number = attributes.type == cudaMemoryTypeManaged;
        break;
    case 9: /* ordinal */
        number = (unsigned)attributes.device;
        break;
    case 11: /* range start */
        memcpy(value, &base, sizeof base);
        return CUDA_SUCCESS;
    case 12: /* range size */
        memcpy(value, &bytes, sizeof bytes);
        return CUDA_SUCCESS;
    case 13: /* mapped */
        number = 1;
        break;
    default: /* sharing between processes: none */
        break;
    }
    memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
}

/* Virtual memory management: address space and memory apart ------------------------------------- */

struct allocation {
    uint32_t magic;
    int device;
    uint64_t bytes;
    int references; /* the handle itself and its mappings */
    struct us_shared_memory *imported; /* NULL: allocated here, where it counts */
};

struct mapping {
    uint64_t start, bytes;
    struct allocation *allocation;
    struct mapping *next;
};

/* CUmemAllocationProp; only the location is read. */
struct allocation_properties {
    int type, handle_types;
    struct {
        int type, id;
    } location;
    void *windows_handle;
    unsigned char flags[8];
};

static struct us_slab allocations = {.object_bytes = 32};
static us_lock mapping_lock;
static struct mapping *mappings;

static struct allocation *allocation_of(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = (struct allocation *)(uintptr_t)handle;
    bool valid = us_slab_holds(&allocations, allocation) && allocation->magic == ALLOCATION_MAGIC;
    return valid ? allocation : NULL;
}

static void drop(struct allocation *allocation) {
    if (__atomic_sub_fetch(&allocation->references, 1, __ATOMIC_ACQ_REL))
        return;
    if (allocation->imported) {
        free(allocation->imported);
        us_slab_give(&allocations, allocation);
        return;
    }
    struct us_record record = us_record_begin(US_API_FREE);
    us_device_charge(allocation->device, -(int64_t)allocation->bytes);
    record.b = allocation->bytes;
    record.c = us_device_used_bytes(allocation->device);
    us_slab_give(&allocations, allocation);
    us_emit(&record);
}

US_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const void *properties,
                                                 int option) {
    (void)properties, (void)option;
    if (!granularity)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                                       CUdeviceptr hint, unsigned long long flags) {
    (void)hint, (void)flags;
    if (!pointer || !bytes || bytes % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (uintptr_t)us_reserve(us_current_device(), bytes, alignment);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

US_EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    (void)bytes;
    return us_release((void *)(uintptr_t)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

US_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const struct allocation_properties *properties,
                               unsigned long long flags) {
    (void)flags;
    if (!handle || !properties || !bytes || bytes % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    int device = properties->location.id;
    if (properties->location.type != 1 || device < 0 || device >= us_device_count())
        return CUDA_ERROR_INVALID_VALUE; /* 1 = device memory */
    struct us_record record = us_record_begin(US_API_MALLOC);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *allocation = NULL;
    if (us_device_charge(device, (int64_t)bytes)) {
        allocation = us_slab_take(&allocations);
        if (allocation) {
            *allocation = (struct allocation){ALLOCATION_MAGIC, device, bytes, 1, NULL};
            *handle = (uintptr_t)allocation;
            result = CUDA_SUCCESS;
        } else {
            us_device_charge(device, -(int64_t)bytes);
        }
    }
    if (result)
        record.api = US_API_OUT_OF_MEMORY;
    record.b = bytes;
    record.c = us_device_used_bytes(device);
    us_emit(&record);
    return result;
}

US_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = allocation_of(handle);
    if (!allocation)
        return CUDA_ERROR_INVALID_VALUE;
    drop(allocation);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)flags;
    struct allocation *allocation = allocation_of(handle);
    if (!allocation || offset + bytes > allocation->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping = malloc(sizeof *mapping);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (allocation->imported &&
        !us_shared_map(allocation->imported, (void *)(uintptr_t)pointer)) {
        free(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    __atomic_add_fetch(&allocation->references, 1, __ATOMIC_ACQ_REL);
    us_lock_take(&mapping_lock);
    *mapping = (struct mapping){pointer, bytes, allocation, mappings};
    mappings = mapping;
    us_lock_give(&mapping_lock);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    bool found = false;
    struct mapping *removed = NULL;
    us_lock_take(&mapping_lock);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        if (mapping->start >= pointer && mapping->start + mapping->bytes <= pointer + bytes) {
            *link = mapping->next;
            mapping->next = removed;
            removed = mapping;
            found = true;
        } else {
            link = &mapping->next;
        }
    }
    us_lock_give(&mapping_lock);
    while (removed) {
        struct mapping *next = removed->next;
        us_values_forget((void *)(uintptr_t)removed->start, removed->bytes);
        if (removed->allocation->imported)
            us_shared_unmap((void *)(uintptr_t)removed->start);
        drop(removed->allocation);
        free(removed);
        removed = next;
    }
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

US_EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const void *list,
                                  size_t count) {
    (void)bytes, (void)list, (void)count;
    return us_pointer_device((void *)(uintptr_t)pointer) >= 0 ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}

US_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                               void *pointer) {
    uint64_t address = (uintptr_t)pointer;
    struct allocation *allocation = NULL;
    us_lock_take(&mapping_lock);
    for (struct mapping *mapping = mappings; mapping && !allocation; mapping = mapping->next)
        if (address - mapping->start < mapping->bytes)
            allocation = mapping->allocation;
    if (allocation)
        __atomic_add_fetch(&allocation->references, 1, __ATOMIC_ACQ_REL);
    us_lock_give(&mapping_lock);
    if (!allocation)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (uintptr_t)allocation;
    return CUDA_SUCCESS;
}

/* Only file descriptors, as PyTorch's expandable segments ask for first. */
#define HANDLE_TYPE_POSIX_FILE_DESCRIPTOR 1

US_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                                int type, unsigned long long flags) {
    (void)flags;
    struct allocation *allocation = allocation_of(handle);
    if (!out || !allocation)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct mapping found = {0};
    us_lock_take(&mapping_lock);
    for (struct mapping *mapping = mappings; mapping && !found.bytes; mapping = mapping->next)
        if (mapping->allocation == allocation)
            found = *mapping;
    us_lock_give(&mapping_lock);
    if (!found.bytes)
        return CUDA_ERROR_NOT_SUPPORTED; /* memory that is not mapped has no address here */
    int file = us_shared_export((void *)(uintptr_t)found.start, allocation->bytes);
    if (file < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(out, &file, sizeof file);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                  void *os_handle, int type) {
    struct us_shared_memory memory;
    int device;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!us_shared_import((int)(intptr_t)os_handle, &memory, &device))
        return CUDA_ERROR_INVALID_VALUE;
    struct us_shared_memory *imported = malloc(sizeof *imported);
    struct allocation *allocation = imported ? us_slab_take(&allocations) : NULL;
    if (!allocation) {
        free(imported);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *imported = memory;
    *allocation = (struct allocation){ALLOCATION_MAGIC, device, memory.bytes, 1, imported};
    *handle = (uintptr_t)allocation;
    return CUDA_SUCCESS;
}

/* Copies and fills ------------------------------------------------------------------------------ */

static CUresult copy(uint64_t destination, uint64_t source, size_t bytes, int kind, CUstream stream,
                     bool asynchronous) {
    return us_record_copy((void *)(uintptr_t)destination, (const void *)(uintptr_t)source, bytes,
                          kind, stream, asynchronous);
}

US_EXPORT CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    return copy(destination, source, bytes, cudaMemcpyDefault, NULL, false);
}

US_EXPORT CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                 CUstream stream) {
    return copy(destination, source, bytes, cudaMemcpyDefault, stream, true);
}

US_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void *source, size_t bytes) {
    return copy(destination, (uintptr_t)source, bytes, cudaMemcpyHostToDevice, NULL, false);
}

US_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void *source, size_t bytes,
                                        CUstream stream) {
    return copy(destination, (uintptr_t)source, bytes, cudaMemcpyHostToDevice, stream, true);
}

US_EXPORT CUresult cuMemcpyDtoH_v2(void *destination, CUdeviceptr source, size_t bytes) {
    return copy((uintptr_t)destination, source, bytes, cudaMemcpyDeviceToHost, NULL, false);
}

US_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *destination, CUdeviceptr source, size_t bytes,
                                        CUstream stream) {
    return copy((uintptr_t)destination, source, bytes, cudaMemcpyDeviceToHost, stream, true);
}

US_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    return copy(destination, source, bytes, cudaMemcpyDeviceToDevice, NULL, false);
}

US_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                        CUstream stream) {
    return copy(destination, source, bytes, cudaMemcpyDeviceToDevice, stream, true);
}

static CUresult fill(CUdeviceptr pointer, uint32_t value, size_t element_bytes, size_t count,
                     CUstream stream, bool asynchronous) {
    return us_record_fill((void *)(uintptr_t)pointer, value, element_bytes, count * element_bytes,
                          stream, asynchronous);
}

US_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t count) {
    return fill(pointer, value, 1, count, NULL, false);
}

US_EXPORT CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count,
                                   CUstream stream) {
    return fill(pointer, value, 1, count, stream, true);
}

US_EXPORT CUresult cuMemsetD16Async(CUdeviceptr pointer, unsigned short value, size_t count,
                                    CUstream stream) {
    return fill(pointer, value, 2, count, stream, true);
}

US_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr pointer, unsigned value, size_t count) {
    return fill(pointer, value, 4, count, NULL, false);
}

US_EXPORT CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count,
                                    CUstream stream) {
    return fill(pointer, value, 4, count, stream, true);
}
