/*
 * Device memory is a range of addresses per device, reserved without access: a program that touches
 * it from the host faults, as on a machine with a GPU. Capacity is counted, nothing is backed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core.h"

#define GRANULE (2ull << 20)  /* of physical memory */
#define SMALL_BYTES (1ull << 20) /* smaller requests share a granule */
#define SMALL_ALIGNMENT 512ull

enum block_kind { BLOCK_MALLOC, BLOCK_RESERVED };

struct block {
    uint64_t start;
    uint64_t bytes;        /* of address space */
    uint64_t charged_bytes; /* of capacity */
    uint64_t asked_bytes;
    enum block_kind kind;
};

struct arena {
    struct block *blocks; /* by start */
    size_t count, capacity;
    uint64_t used_bytes; /* of the device's memory, context included */
    bool mapped;
};

struct host_range {
    uint64_t start, bytes;
    uint64_t mapped_bytes; /* 0 for registered memory */
    bool managed;
};

static us_lock lock;
static struct arena arenas[US_MAX_DEVICES];
static struct host_range *host_ranges; /* by start */
static size_t host_count, host_capacity;

int us_pointer_device(const void *pointer) {
    uint64_t offset = (uint64_t)(uintptr_t)pointer - US_DEVICE_BASE;
    uint64_t device = offset / US_DEVICE_SPAN;
    return device < (uint64_t)us_device_count() ? (int)device : -1;
}

static struct arena *arena_of(int device) {
    struct arena *arena = &arenas[device];
    if (!arena->mapped) {
        void *wanted = (void *)(uintptr_t)(US_DEVICE_BASE + (uint64_t)device * US_DEVICE_SPAN);
        void *got = mmap(wanted, US_DEVICE_SPAN, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != wanted) {
            if (got != MAP_FAILED)
                munmap(got, US_DEVICE_SPAN);
            fprintf(stderr, "understudy: address range %p of device %d is taken\n", wanted, device);
            return NULL;
        }
        arena->mapped = true;
        us_trace_open_for_child();
        arena->used_bytes = us_device()->context_bytes;
    }
    return arena;
}

/* Index of the first block that ends after the address. */
static size_t block_index(const struct arena *arena, uint64_t address) {
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena->blocks[middle].start + arena->blocks[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct block *block_at(struct arena *arena, uint64_t address) {
    size_t index = block_index(arena, address);
    bool inside = index < arena->count && arena->blocks[index].start <= address;
    return inside ? &arena->blocks[index] : NULL;
}

static bool charge(struct arena *arena, uint64_t bytes) {
    if (bytes > us_device()->memory_bytes ||
        arena->used_bytes > us_device()->memory_bytes - bytes)
        return false;
    arena->used_bytes += bytes;
    return true;
}

/* First fit; the first granule is never handed out, so that no block is at the very base. */
static bool place(struct arena *arena, int device, struct block block, uint64_t alignment,
                  uint64_t *start) {
    uint64_t base = US_DEVICE_BASE + (uint64_t)device * US_DEVICE_SPAN;
    uint64_t at = base + GRANULE;
    size_t index = 0;
    for (; index < arena->count; index++) {
        at = (at + alignment - 1) / alignment * alignment;
        if (at + block.bytes <= arena->blocks[index].start)
            break;
        at = arena->blocks[index].start + arena->blocks[index].bytes;
    }
    at = (at + alignment - 1) / alignment * alignment;
    if (at + block.bytes > base + US_DEVICE_SPAN)
        return false;
    if (arena->count == arena->capacity) {
        size_t capacity = arena->capacity ? arena->capacity * 2 : 256;
        struct block *blocks = realloc(arena->blocks, capacity * sizeof *blocks);
        if (!blocks)
            return false;
        arena->blocks = blocks;
        arena->capacity = capacity;
    }
    memmove(arena->blocks + index + 1, arena->blocks + index,
            (arena->count - index) * sizeof *arena->blocks);
    block.start = at;
    arena->blocks[index] = block;
    arena->count++;
    *start = at;
    return true;
}

static void remove_block(struct arena *arena, struct block *block) {
    size_t index = (size_t)(block - arena->blocks);
    memmove(block, block + 1, (arena->count - index - 1) * sizeof *block);
    arena->count--;
}

uint64_t us_device_used_bytes(int device) {
    us_lock_take(&lock);
    struct arena *arena = arena_of(device);
    uint64_t used = arena ? arena->used_bytes : 0;
    us_lock_give(&lock);
    return used;
}

cudaError_t us_malloc(int device, size_t bytes, void **pointer) {
    if (!bytes) {
        *pointer = NULL;
        return cudaSuccess;
    }
    if (us_initialize())
        return cudaErrorInitializationError;
    uint64_t unit = bytes >= SMALL_BYTES ? GRANULE : SMALL_ALIGNMENT;
    if (bytes > us_device()->memory_bytes)
        return cudaErrorMemoryAllocation;
    uint64_t rounded = (bytes + unit - 1) / unit * unit, start = 0;
    struct block block = {.bytes = rounded, .charged_bytes = rounded, .asked_bytes = bytes,
                          .kind = BLOCK_MALLOC};
    us_lock_take(&lock);
    struct arena *arena = arena_of(device);
    cudaError_t error = cudaErrorInitializationError;
    if (arena) {
        error = cudaErrorMemoryAllocation;
        if (charge(arena, rounded)) {
            if (place(arena, device, block, unit, &start))
                error = cudaSuccess;
            else
                arena->used_bytes -= rounded;
        }
    }
    us_lock_give(&lock);
    if (!error) {
        *pointer = (void *)(uintptr_t)start;
        us_values_forget(*pointer, rounded);
    }
    return error;
}

cudaError_t us_free(void *pointer) {
    int device = us_pointer_device(pointer);
    if (device < 0)
        return cudaErrorInvalidValue;
    uint64_t bytes = 0;
    us_lock_take(&lock);
    struct block *block = block_at(&arenas[device], (uint64_t)(uintptr_t)pointer);
    if (block && block->kind == BLOCK_MALLOC && block->start == (uint64_t)(uintptr_t)pointer) {
        bytes = block->bytes;
        arenas[device].used_bytes -= block->charged_bytes;
        remove_block(&arenas[device], block);
    }
    us_lock_give(&lock);
    if (!bytes)
        return cudaErrorInvalidValue;
    us_values_forget(pointer, bytes);
    return cudaSuccess;
}

void *us_reserve(int device, size_t bytes, size_t alignment) {
    uint64_t start = 0;
    bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    struct block block = {.bytes = bytes, .asked_bytes = bytes, .kind = BLOCK_RESERVED};
    us_lock_take(&lock);
    struct arena *arena = arena_of(device);
    if (!arena || !place(arena, device, block, alignment > GRANULE ? alignment : GRANULE, &start))
        start = 0;
    us_lock_give(&lock);
    return (void *)(uintptr_t)start;
}

bool us_release(void *pointer) {
    int device = us_pointer_device(pointer);
    if (device < 0)
        return false;
    us_lock_take(&lock);
    struct block *block = block_at(&arenas[device], (uint64_t)(uintptr_t)pointer);
    bool found = block && block->kind == BLOCK_RESERVED;
    if (found)
        remove_block(&arenas[device], block);
    us_lock_give(&lock);
    return found;
}

bool us_allocation_of(const void *pointer, void **base, size_t *bytes) {
    int device = us_pointer_device(pointer);
    if (device < 0)
        return false;
    us_lock_take(&lock);
    struct block *block = block_at(&arenas[device], (uint64_t)(uintptr_t)pointer);
    if (block) {
        *base = (void *)(uintptr_t)block->start;
        *bytes = block->asked_bytes;
    }
    us_lock_give(&lock);
    return block != NULL;
}

bool us_device_charge(int device, int64_t bytes) {
    if (device < 0 || device >= us_device_count())
        return false;
    us_lock_take(&lock);
    struct arena *arena = arena_of(device);
    bool fits = arena != NULL;
    if (arena && bytes < 0)
        arena->used_bytes -= (uint64_t)-bytes;
    else if (arena)
        fits = charge(arena, (uint64_t)bytes);
    us_lock_give(&lock);
    return fits;
}

void us_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = us_device()->memory_bytes;
    *free_bytes = *total_bytes - us_device_used_bytes(device);
}

/* Host memory that the driver knows. ---------------------------------------------------------- */

static size_t host_index(uint64_t address) {
    size_t low = 0, high = host_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (host_ranges[middle].start + host_ranges[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The caller holds the lock. */
static const struct host_range *host_range_at(const void *pointer) {
    uint64_t address = (uint64_t)(uintptr_t)pointer;
    size_t index = host_index(address);
    bool inside = index < host_count && host_ranges[index].start <= address;
    return inside ? &host_ranges[index] : NULL;
}

static cudaError_t add_host_range(struct host_range range) {
    cudaError_t error = cudaSuccess;
    us_lock_take(&lock);
    size_t index = host_index(range.start);
    if (index < host_count && host_ranges[index].start < range.start + range.bytes) {
        error = cudaErrorHostMemoryAlreadyRegistered;
    } else {
        if (host_count == host_capacity) {
            size_t capacity = host_capacity ? host_capacity * 2 : 64;
            struct host_range *grown = realloc(host_ranges, capacity * sizeof *grown);
            if (grown) {
                host_ranges = grown;
                host_capacity = capacity;
            }
        }
        if (host_count == host_capacity) {
            error = cudaErrorMemoryAllocation;
        } else {
            memmove(host_ranges + index + 1, host_ranges + index,
                    (host_count - index) * sizeof *host_ranges);
            host_ranges[index] = range;
            host_count++;
        }
    }
    us_lock_give(&lock);
    return error;
}

static cudaError_t remove_host_range(void *pointer, bool mapped, struct host_range *removed) {
    cudaError_t error = mapped ? cudaErrorInvalidValue : cudaErrorHostMemoryNotRegistered;
    us_lock_take(&lock);
    const struct host_range *range = host_range_at(pointer);
    if (range && range->start == (uint64_t)(uintptr_t)pointer && !!range->mapped_bytes == mapped) {
        *removed = *range;
        size_t index = (size_t)(range - host_ranges);
        memmove(host_ranges + index, host_ranges + index + 1,
                (host_count - index - 1) * sizeof *host_ranges);
        host_count--;
        error = cudaSuccess;
    }
    us_lock_give(&lock);
    return error;
}

static cudaError_t map_host(size_t bytes, bool managed, void **pointer) {
    if (!bytes) {
        *pointer = NULL;
        return cudaSuccess;
    }
    size_t mapped = (bytes + 4095) / 4096 * 4096;
    void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    struct host_range range = {(uint64_t)(uintptr_t)base, bytes, mapped, managed};
    cudaError_t error = add_host_range(range);
    if (error)
        munmap(base, mapped);
    else
        *pointer = base;
    return error;
}

cudaError_t us_host_alloc(size_t bytes, void **pointer) {
    return map_host(bytes, false, pointer);
}

cudaError_t us_managed_alloc(size_t bytes, void **pointer) {
    return map_host(bytes, true, pointer);
}

cudaError_t us_host_free(void *pointer) {
    struct host_range range;
    cudaError_t error = remove_host_range(pointer, true, &range);
    if (!error)
        munmap(pointer, range.mapped_bytes);
    return error;
}

cudaError_t us_managed_free(void *pointer) {
    us_lock_take(&lock);
    const struct host_range *range = host_range_at(pointer);
    bool managed = range && range->managed;
    us_lock_give(&lock);
    return managed ? us_host_free(pointer) : cudaErrorInvalidValue;
}

void us_host_zero(void *pointer, size_t bytes) {
    enum { PAGE = 4096 };
    uint64_t start = (uintptr_t)pointer, end = start + bytes;
    uint64_t first = (start + PAGE - 1) / PAGE * PAGE, last = end / PAGE * PAGE;
    bool whole = false;
    if (bytes > US_VALUE_MAX_BYTES) {
        us_lock_take(&lock);
        const struct host_range *range = host_range_at(pointer);
        whole = range && end <= range->start + range->mapped_bytes;
        us_lock_give(&lock);
    }
    /* Anonymous private pages read as zeros again after this (madvise(2)). */
    if (whole && madvise((void *)(uintptr_t)first, last - first, MADV_DONTNEED) == 0) {
        memset(pointer, 0, first - start);
        memset((void *)(uintptr_t)last, 0, end - last);
    } else {
        memset(pointer, 0, bytes);
    }
}

cudaError_t us_host_register(void *pointer, size_t bytes) {
    if (!pointer || !bytes)
        return cudaErrorInvalidValue;
    struct host_range range = {(uint64_t)(uintptr_t)pointer, bytes, 0, false};
    return add_host_range(range);
}

cudaError_t us_host_unregister(void *pointer) {
    struct host_range range;
    return remove_host_range(pointer, false, &range);
}

bool us_pointer_is_pinned(const void *pointer) {
    us_lock_take(&lock);
    const struct host_range *range = host_range_at(pointer);
    bool pinned = range && !range->managed;
    us_lock_give(&lock);
    return pinned;
}

cudaError_t us_pointer_attributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    memset(attributes, 0, sizeof *attributes);
    int device = us_pointer_device(pointer);
    void *base;
    size_t bytes;
    if (device >= 0 && us_allocation_of(pointer, &base, &bytes)) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = device;
        attributes->devicePointer = (void *)(uintptr_t)pointer;
        return cudaSuccess;
    }
    us_lock_take(&lock);
    const struct host_range *range = host_range_at(pointer);
    if (range) {
        attributes->type = range->managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
        attributes->devicePointer = (void *)(uintptr_t)pointer;
    }
    us_lock_give(&lock);
    attributes->device = range ? us_current_device() : -2; /* cudaInvalidDeviceId */
    attributes->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
}

int us_copy_kind_of(const void *destination, const void *source, int cuda_kind) {
    if (cuda_kind >= cudaMemcpyHostToHost && cuda_kind < cudaMemcpyDefault)
        return cuda_kind;
    return (us_pointer_device(destination) >= 0 ? US_COPY_H2D : US_COPY_H2H) +
           (us_pointer_device(source) >= 0 ? US_COPY_D2H : US_COPY_H2H);
}
