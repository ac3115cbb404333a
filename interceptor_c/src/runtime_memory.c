/* The CUDA runtime API of memory: allocation, copies, fills, pools, device variables. */
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "versions.h"

/* Shared with the driver API (driver_memory.c); these record. */

static cudaError_t record_malloc(size_t bytes, void **pointer, uint32_t flags) {
    if (!pointer)
        return cudaErrorInvalidValue;
    int device = us_current_device();
    struct us_record record = us_record_begin(US_API_MALLOC);
    cudaError_t error = us_malloc(device, bytes, pointer);
    if (error == cudaErrorMemoryAllocation)
        record.api = US_API_OUT_OF_MEMORY;
    else if (error || !bytes)
        return error;
    record.a = error ? 0 : (uintptr_t)*pointer;
    record.b = bytes;
    record.c = us_device_used_bytes(device);
    record.flags = flags;
    us_emit(&record);
    return error;
}

cudaError_t us_record_malloc(size_t bytes, void **pointer) {
    return record_malloc(bytes, pointer, 0);
}

static cudaError_t record_free(void *pointer, uint32_t flags) {
    if (!pointer)
        return cudaSuccess;
    if (us_pointer_device(pointer) < 0)
        return us_managed_free(pointer);
    struct us_record record = us_record_begin(US_API_FREE);
    void *base;
    size_t bytes = 0;
    us_allocation_of(pointer, &base, &bytes);
    int device = us_pointer_device(pointer);
    cudaError_t error = us_free(pointer);
    if (error)
        return error;
    record.a = (uintptr_t)pointer;
    record.b = bytes;
    record.c = us_device_used_bytes(device);
    record.flags = flags;
    us_emit(&record);
    return cudaSuccess;
}

cudaError_t us_record_free(void *pointer) {
    return record_free(pointer, 0);
}

cudaError_t us_record_host_alloc(size_t bytes, void **pointer) {
    if (!pointer)
        return cudaErrorInvalidValue;
    struct us_record record = us_record_begin(US_API_HOST_ALLOC);
    cudaError_t error = us_host_alloc(bytes, pointer);
    if (error)
        return error;
    record.a = (uintptr_t)*pointer;
    record.b = bytes;
    us_emit(&record);
    return cudaSuccess;
}

cudaError_t us_record_host_free(void *pointer) {
    if (!pointer)
        return cudaSuccess;
    struct us_record record = us_record_begin(US_API_HOST_FREE);
    cudaError_t error = us_host_free(pointer);
    if (error)
        return error;
    record.a = (uintptr_t)pointer;
    us_emit(&record);
    return cudaSuccess;
}

/* Whether the host waits (US_FLAG_BLOCKING): CUDA Runtime API, "API synchronization behavior". A
   synchronous copy waits except between device addresses. An asynchronous one waits where the host
   side is pageable, but for copies to the device: those return once the data are staged. */
static bool host_waits(int kind, bool asynchronous, bool pinned) {
    if (kind == US_COPY_D2D)
        return false;
    return !asynchronous || (!pinned && kind != US_COPY_H2D);
}

/* Completes and emits the record of a copy that has been made. */
static void emit_copy(struct us_record *record, void *destination, const void *source, size_t bytes,
                      int kind, cudaStream_t stream, bool asynchronous) {
    const void *host_side = kind == US_COPY_H2D ? source : destination;
    bool pinned = (kind == US_COPY_H2D || kind == US_COPY_D2H) && us_pointer_is_pinned(host_side);
    bool blocking = host_waits(kind, asynchronous, pinned);
    record->stream = us_stream_number(stream);
    record->a = (uintptr_t)destination;
    record->b = (uintptr_t)source;
    record->c = bytes;
    record->d = (uint64_t)kind;
    record->flags = (blocking ? US_FLAG_BLOCKING : 0u) | (pinned ? US_FLAG_PINNED : 0u);
    if (blocking)
        us_host_synchronized();
    us_emit(record);
}

cudaError_t us_record_copy(void *destination, const void *source, size_t bytes, int cuda_kind,
                           cudaStream_t stream, bool asynchronous) {
    if (cuda_kind < 0 || cuda_kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (us_forked)
        return cudaErrorInitializationError;
    if (!us_stream_is_valid(stream))
        return cudaErrorInvalidResourceHandle;
    if (!bytes)
        return cudaSuccess;
    if (!destination || !source)
        return cudaErrorInvalidValue;
    struct us_record record = us_record_begin(US_API_MEMCPY);
    int kind = us_copy_kind_of(destination, source, cuda_kind);
    /* A wrong direction would be a segmentation fault below; CUDA calls it an invalid value. */
    if ((us_pointer_device(destination) >= 0) != (kind == US_COPY_H2D || kind == US_COPY_D2D) ||
        (us_pointer_device(source) >= 0) != (kind == US_COPY_D2H || kind == US_COPY_D2D))
        kind = us_copy_kind_of(destination, source, cudaMemcpyDefault);
    if (!us_stream_is_capturing(stream))
        us_copy_values(destination, source, bytes, kind);
    emit_copy(&record, destination, source, bytes, kind, stream, asynchronous);
    return cudaSuccess;
}

cudaError_t us_record_fill(void *pointer, uint32_t value, size_t element_bytes, size_t bytes,
                           cudaStream_t stream, bool asynchronous) {
    if (us_forked)
        return cudaErrorInitializationError;
    if (!us_stream_is_valid(stream))
        return cudaErrorInvalidResourceHandle;
    if (!bytes)
        return cudaSuccess;
    struct cudaPointerAttributes attributes;
    us_pointer_attributes(&attributes, pointer);
    if (attributes.type == cudaMemoryTypeUnregistered)
        return cudaErrorInvalidValue;
    struct us_record record = us_record_begin(US_API_MEMSET);
    bool runs_now = !us_stream_is_capturing(stream);
    if (runs_now && attributes.type == cudaMemoryTypeDevice)
        us_values_fill(pointer, &value, element_bytes, bytes);
    else if (runs_now) /* memory of the host that the device can reach */
        for (size_t at = 0; at < bytes; at += element_bytes)
            memcpy((char *)pointer + at, &value, element_bytes);
    record.stream = us_stream_number(stream);
    record.a = (uintptr_t)pointer;
    record.b = value;
    record.c = bytes;
    /* Same page: memset is asynchronous except on page-locked and managed memory. */
    bool blocking = !asynchronous && attributes.type != cudaMemoryTypeDevice;
    record.flags = blocking ? US_FLAG_BLOCKING : 0u;
    if (blocking)
        us_host_synchronized();
    us_emit(&record);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    return us_error(us_record_malloc(bytes, pointer));
}

US_EXPORT cudaError_t cudaFree(void *pointer) {
    return us_error(us_record_free(pointer));
}

US_EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return us_error(pointer ? us_managed_alloc(bytes, pointer) : cudaErrorInvalidValue);
}

US_EXPORT cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return us_error(us_record_host_alloc(bytes, pointer));
}

US_EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return us_error(us_record_host_alloc(bytes, pointer));
}

US_EXPORT cudaError_t cudaFreeHost(void *pointer) {
    return us_error(us_record_host_free(pointer));
}

US_EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return us_error(us_host_register(pointer, bytes));
}

US_EXPORT cudaError_t cudaHostUnregister(void *pointer) {
    return us_error(us_host_unregister(pointer));
}

US_EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer,
                                               unsigned flags) {
    (void)flags;
    if (!device_pointer || !us_pointer_is_pinned(pointer))
        return us_error(cudaErrorInvalidValue);
    *device_pointer = pointer;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                               const void *pointer) {
    if (!attributes)
        return us_error(cudaErrorInvalidValue);
    if (us_library_versions()->cuda_major >= 13)
        memset(attributes + 1, 0, 8 * sizeof(long)); /* `reserved` */
    return us_error(us_pointer_attributes(attributes, pointer));
}

US_EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (!free_bytes || !total_bytes)
        return us_error(cudaErrorInvalidValue);
    us_memory_info(us_current_device(), free_bytes, total_bytes);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaMemcpy(void *destination, const void *source, size_t bytes, int kind) {
    return us_error(us_record_copy(destination, source, bytes, kind, NULL, false));
}

US_EXPORT cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int kind,
                                      cudaStream_t stream) {
    return us_error(us_record_copy(destination, source, bytes, kind, stream, true));
}

US_EXPORT cudaError_t cudaMemcpyPeerAsync(void *destination, int destination_device,
                                          const void *source, int source_device, size_t bytes,
                                          cudaStream_t stream) {
    (void)destination_device, (void)source_device;
    return us_error(us_record_copy(destination, source, bytes, cudaMemcpyDeviceToDevice, stream,
                                   true));
}

US_EXPORT cudaError_t cudaMemcpyPeer(void *destination, int destination_device, const void *source,
                                     int source_device, size_t bytes) {
    (void)destination_device, (void)source_device;
    return us_error(us_record_copy(destination, source, bytes, cudaMemcpyDeviceToDevice, NULL,
                                   false));
}

/* A box of `depth` slices of `height` rows of `width` bytes; slices lie `*_height` rows apart. One
   record for the whole box; its values row by row. */
struct box {
    char *destination;
    const char *source;
    size_t destination_pitch, source_pitch, destination_height, source_height;
    size_t width, height, depth;
};

static cudaError_t copy_box(const struct box *box, int cuda_kind, cudaStream_t stream,
                            bool asynchronous) {
    if (us_forked)
        return cudaErrorInitializationError;
    if (!us_stream_is_valid(stream))
        return cudaErrorInvalidResourceHandle;
    if (!box->width || !box->height || !box->depth)
        return cudaSuccess;
    if (!box->destination || !box->source)
        return cudaErrorInvalidValue;
    if (box->width > box->destination_pitch || box->width > box->source_pitch)
        return cudaErrorInvalidPitchValue;
    struct us_record record = us_record_begin(US_API_MEMCPY);
    int kind = us_copy_kind_of(box->destination, box->source, cuda_kind);
    for (size_t slice = 0; slice < box->depth && !us_stream_is_capturing(stream); slice++) {
        char *to = box->destination + slice * box->destination_height * box->destination_pitch;
        const char *from = box->source + slice * box->source_height * box->source_pitch;
        for (size_t row = 0; row < box->height; row++)
            us_copy_values(to + row * box->destination_pitch, from + row * box->source_pitch,
                           box->width, kind);
    }
    emit_copy(&record, box->destination, box->source, box->width * box->height * box->depth, kind,
              stream, asynchronous);
    return cudaSuccess;
}

static cudaError_t copy_2d(char *destination, size_t destination_pitch, const char *source,
                           size_t source_pitch, size_t width, size_t height, int cuda_kind,
                           cudaStream_t stream, bool asynchronous) {
    struct box box = {.destination = destination,
                      .source = source,
                      .destination_pitch = destination_pitch,
                      .source_pitch = source_pitch,
                      .width = width,
                      .height = height,
                      .depth = 1};
    return copy_box(&box, cuda_kind, stream, asynchronous);
}

/* Arrays (textures) do not exist here, and all devices share one address space. */
static cudaError_t copy_3d(const struct cudaMemcpy3DParms *p, cudaStream_t stream,
                           bool asynchronous) {
    if (!p)
        return cudaErrorInvalidValue;
    if (p->srcArray || p->dstArray)
        return us_unsupported("cudaMemcpy3D of arrays", cudaErrorNotSupported);
    const struct cudaPitchedPtr *from = &p->srcPtr, *to = &p->dstPtr;
    struct box box = {
        .destination = (char *)to->ptr + p->dstPos.x +
                       (p->dstPos.z * to->ysize + p->dstPos.y) * to->pitch,
        .source = (const char *)from->ptr + p->srcPos.x +
                  (p->srcPos.z * from->ysize + p->srcPos.y) * from->pitch,
        .destination_pitch = to->pitch,
        .source_pitch = from->pitch,
        .destination_height = to->ysize,
        .source_height = from->ysize,
        .width = p->extent.width,
        .height = p->extent.height,
        .depth = p->extent.depth,
    };
    return copy_box(&box, p->kind, stream, asynchronous);
}

static cudaError_t copy_3d_peer(const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream,
                                bool asynchronous) {
    if (!p)
        return cudaErrorInvalidValue;
    struct cudaMemcpy3DParms parameters = {
        .srcArray = p->srcArray,
        .srcPos = p->srcPos,
        .srcPtr = p->srcPtr,
        .dstArray = p->dstArray,
        .dstPos = p->dstPos,
        .dstPtr = p->dstPtr,
        .extent = p->extent,
        .kind = cudaMemcpyDeviceToDevice,
    };
    return copy_3d(&parameters, stream, asynchronous);
}

US_EXPORT cudaError_t cudaMemcpy2D(void *destination, size_t destination_pitch, const void *source,
                                   size_t source_pitch, size_t width, size_t height, int kind) {
    return us_error(copy_2d(destination, destination_pitch, source, source_pitch, width, height,
                            kind, NULL, false));
}

US_EXPORT cudaError_t cudaMemcpy2DAsync(void *destination, size_t destination_pitch,
                                        const void *source, size_t source_pitch, size_t width,
                                        size_t height, int kind, cudaStream_t stream) {
    return us_error(copy_2d(destination, destination_pitch, source, source_pitch, width, height,
                            kind, stream, true));
}

US_EXPORT cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *parameters) {
    return us_error(copy_3d(parameters, NULL, false));
}

US_EXPORT cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *parameters,
                                        cudaStream_t stream) {
    return us_error(copy_3d(parameters, stream, true));
}

US_EXPORT cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *parameters) {
    return us_error(copy_3d_peer(parameters, NULL, false));
}

US_EXPORT cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *parameters,
                                            cudaStream_t stream) {
    return us_error(copy_3d_peer(parameters, stream, true));
}

US_EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
    return us_error(us_record_fill(pointer, (uint32_t)value & 0xff, 1, bytes, NULL, false));
}

US_EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    return us_error(us_record_fill(pointer, (uint32_t)value & 0xff, 1, bytes, stream, true));
}

/* Pools: stream-ordered allocation. Every pool serves from the device's memory at once. --------- */

enum {
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED_CURRENT = 5,
    POOL_RESERVED_HIGH = 6,
    POOL_USED_CURRENT = 7,
    POOL_USED_HIGH = 8,
};

struct CUmemPoolHandle_st {
    int device;
    int reuse[4]; /* attributes 1 to 3 */
    uint64_t release_threshold, used_bytes, used_high_bytes;
};

static us_lock pool_lock;
static struct CUmemPoolHandle_st pools[US_MAX_DEVICES]; /* the default pools are the only ones */

static struct CUmemPoolHandle_st *pool_of(cudaMemPool_t handle) {
    size_t offset = (size_t)((char *)handle - (char *)pools);
    return offset < sizeof pools && offset % sizeof *pools == 0 ? handle : NULL;
}

cudaMemPool_t us_default_pool(int device) {
    pools[device].device = device;
    return &pools[device];
}

static cudaError_t pool_malloc(void **pointer, size_t bytes, int device, cudaStream_t stream) {
    if (!us_stream_is_valid(stream))
        return cudaErrorInvalidResourceHandle;
    cudaError_t error = record_malloc(bytes, pointer, US_FLAG_POOL);
    if (error)
        return error;
    struct CUmemPoolHandle_st *pool = us_default_pool(device);
    us_lock_take(&pool_lock);
    pool->used_bytes += bytes;
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    us_lock_give(&pool_lock);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    if (device < 0 || device >= us_device_count() || !pool)
        return us_error(pool ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
    *pool = us_default_pool(device);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    if (device < 0 || device >= us_device_count() || !pool)
        return us_error(pool ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
    *pool = us_default_pool(device);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    return us_error(pool_malloc(pointer, bytes, us_current_device(), stream));
}

US_EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool,
                                              cudaStream_t stream) {
    if (!pool_of(pool))
        return us_error(cudaErrorInvalidValue);
    return us_error(pool_malloc(pointer, bytes, pool->device, stream));
}

static cudaError_t pool_free(void *pointer, cudaStream_t stream) {
    if (!us_stream_is_valid(stream))
        return cudaErrorInvalidResourceHandle;
    void *base;
    size_t bytes = 0;
    int device = us_pointer_device(pointer);
    us_allocation_of(pointer, &base, &bytes);
    cudaError_t error = record_free(pointer, US_FLAG_POOL);
    if (!error && device >= 0) {
        us_lock_take(&pool_lock);
        uint64_t *used = &us_default_pool(device)->used_bytes;
        *used -= bytes < *used ? bytes : *used;
        us_lock_give(&pool_lock);
    }
    return error;
}

US_EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    return us_error(pool_free(pointer, stream));
}

US_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    void *allocated = NULL;
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = pool_malloc(&allocated, bytes, us_current_device(), stream);
    *pointer = (uintptr_t)allocated;
    return result;
}

US_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return pool_free((void *)(uintptr_t)pointer, stream);
}

US_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, int attribute, void *value) {
    const struct CUmemPoolHandle_st *pool = pool_of(handle);
    if (!pool || !value)
        return us_error(cudaErrorInvalidValue);
    uint64_t number;
    switch (attribute) {
    case 1:
    case 2:
    case 3:
        memcpy(value, &pool->reuse[attribute], sizeof(int));
        return cudaSuccess;
    case POOL_RELEASE_THRESHOLD:
        number = pool->release_threshold;
        break;
    case POOL_RESERVED_CURRENT:
    case POOL_USED_CURRENT:
        number = pool->used_bytes;
        break;
    case POOL_RESERVED_HIGH:
    case POOL_USED_HIGH:
        number = pool->used_high_bytes;
        break;
    default:
        return us_error(cudaErrorInvalidValue);
    }
    memcpy(value, &number, sizeof number);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, int attribute, void *value) {
    struct CUmemPoolHandle_st *pool = pool_of(handle);
    if (!pool || !value)
        return us_error(cudaErrorInvalidValue);
    if (attribute >= 1 && attribute <= 3)
        memcpy(&pool->reuse[attribute], value, sizeof(int));
    else if (attribute == POOL_RELEASE_THRESHOLD)
        memcpy(&pool->release_threshold, value, sizeof pool->release_threshold);
    else if (attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH)
        pool->used_high_bytes = pool->used_bytes;
    else
        return us_error(cudaErrorInvalidValue);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t bytes) {
    (void)bytes;
    return us_error(pool_of(handle) ? cudaSuccess : cudaErrorInvalidValue);
}

US_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const void *list, size_t count) {
    (void)list, (void)count;
    return us_error(pool_of(handle) ? cudaSuccess : cudaErrorInvalidValue);
}

/* Device variables (__device__, __constant__) --------------------------------------------------- */

struct variable {
    const void *host;
    size_t bytes;
    void *addresses[US_MAX_DEVICES];
    struct variable *next;
};

static us_lock variable_lock;
static struct variable *variables;

US_EXPORT void __cudaRegisterVar(void **handle, const char *host, const char *device_address,
                                 const char *device_name, int external, size_t bytes, int constant,
                                 int global) {
    (void)handle, (void)device_address, (void)device_name, (void)external, (void)constant;
    (void)global;
    struct variable *variable = calloc(1, sizeof *variable);
    if (!variable)
        return;
    variable->host = host;
    variable->bytes = bytes;
    us_lock_take(&variable_lock);
    variable->next = variables;
    variables = variable;
    us_lock_give(&variable_lock);
}

static void *variable_address(const void *host, size_t *bytes) {
    void *address = NULL;
    us_lock_take(&variable_lock);
    struct variable *variable = variables;
    while (variable && variable->host != host)
        variable = variable->next;
    if (variable) {
        void **slot = &variable->addresses[us_current_device()];
        if (!*slot && us_malloc(us_current_device(), variable->bytes, slot))
            *slot = NULL;
        address = *slot;
        *bytes = variable->bytes;
    }
    us_lock_give(&variable_lock);
    return address;
}

US_EXPORT cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    size_t bytes;
    void *address = variable_address(symbol, &bytes);
    if (!address || !pointer)
        return us_error(address ? cudaErrorInvalidValue : cudaErrorInvalidSymbol);
    *pointer = address;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
    if (!bytes || !variable_address(symbol, bytes))
        return us_error(bytes ? cudaErrorInvalidSymbol : cudaErrorInvalidValue);
    return cudaSuccess;
}

/* `offset` bytes into a variable of the device. */
static cudaError_t copy_symbol(const void *symbol, void *host, size_t bytes, size_t offset, int kind,
                               bool to_symbol, cudaStream_t stream, bool asynchronous) {
    size_t size;
    char *address = variable_address(symbol, &size);
    if (!address)
        return cudaErrorInvalidSymbol;
    if (offset + bytes > size)
        return cudaErrorInvalidValue;
    return us_record_copy(to_symbol ? address + offset : host, to_symbol ? host : address + offset,
                          bytes, kind, stream, asynchronous);
}

US_EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes,
                                         size_t offset, int kind) {
    return us_error(copy_symbol(symbol, (void *)source, bytes, offset, kind, true, NULL, false));
}

US_EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *source, size_t bytes,
                                              size_t offset, int kind, cudaStream_t stream) {
    return us_error(copy_symbol(symbol, (void *)source, bytes, offset, kind, true, stream, true));
}

US_EXPORT cudaError_t cudaMemcpyFromSymbol(void *destination, const void *symbol, size_t bytes,
                                           size_t offset, int kind) {
    return us_error(copy_symbol(symbol, destination, bytes, offset, kind, false, NULL, false));
}

US_EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void *destination, const void *symbol, size_t bytes,
                                                size_t offset, int kind, cudaStream_t stream) {
    return us_error(copy_symbol(symbol, destination, bytes, offset, kind, false, stream, true));
}
