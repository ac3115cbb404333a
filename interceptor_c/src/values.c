/*
 * The value store: which bytes of device memory are known. Small copies to the device, fills and
 * copies on it define bytes; kernels with unknown results and new tensors make them unknown again,
 * and unknown bytes read as 0.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

struct range {
    uint64_t start, bytes;
    unsigned char *data;
};

uint16_t us_values_filter[US_FILTER_SLOTS];
static us_lock lock;
static struct range *ranges; /* by start, not overlapping */
static size_t count, capacity;

/* Counts the range in every slot of the filter that one of its addresses falls into. */
static void filter(const struct range *range, int change) {
    uint64_t last = us_filter_granule(range->start + range->bytes - 1);
    for (uint64_t granule = us_filter_granule(range->start); granule <= last; granule++) {
        uint16_t *slot = &us_values_filter[granule % US_FILTER_SLOTS];
        __atomic_store_n(slot, (uint16_t)(*slot + change), __ATOMIC_RELAXED);
    }
}

bool us_values_any(void) {
    return __atomic_load_n(&count, __ATOMIC_RELAXED) != 0;
}

/* Index of the first range that ends after the address. */
static size_t index_of(uint64_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start + ranges[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool reserve_one(void) {
    if (count < capacity)
        return true;
    size_t grown = capacity ? capacity * 2 : 256;
    struct range *moved = realloc(ranges, grown * sizeof *moved);
    if (!moved)
        return false;
    ranges = moved;
    capacity = grown;
    return true;
}

/* Takes the data over; frees it when there is no memory (the bytes then read as 0). */
static void insert(size_t index, uint64_t start, uint64_t bytes, unsigned char *data) {
    if (!data || !reserve_one()) {
        free(data);
        return;
    }
    memmove(ranges + index + 1, ranges + index, (count - index) * sizeof *ranges);
    ranges[index] = (struct range){start, bytes, data};
    filter(&ranges[index], 1);
    __atomic_store_n(&count, count + 1, __ATOMIC_RELAXED);
}

static unsigned char *copy_of(const void *bytes, size_t size) {
    unsigned char *copy = malloc(size ? size : 1);
    if (copy)
        memcpy(copy, bytes, size);
    return copy;
}

static void forget(uint64_t start, uint64_t bytes) {
    uint64_t end = start + bytes;
    size_t first = index_of(start);
    if (first == count || ranges[first].start >= end)
        return;
    struct range *left = &ranges[first];
    uint64_t left_end = left->start + left->bytes;
    if (left->start < start) {
        uint64_t kept = start - left->start;
        filter(left, -1);
        if (left_end > end) { /* a hole in the middle: the tail becomes a range of its own */
            unsigned char *tail = copy_of(left->data + (end - left->start), left_end - end);
            left->bytes = kept;
            filter(left, 1);
            insert(first + 1, end, left_end - end, tail);
            return;
        }
        left->bytes = kept;
        filter(left, 1);
        first++;
    }
    size_t last = first;
    while (last < count && ranges[last].start < end) {
        struct range *range = &ranges[last];
        uint64_t range_end = range->start + range->bytes;
        filter(range, -1);
        if (range_end > end) {
            memmove(range->data, range->data + (end - range->start), range_end - end);
            range->bytes = range_end - end;
            range->start = end;
            filter(range, 1);
            break;
        }
        free(range->data);
        last++;
    }
    memmove(ranges + first, ranges + last, (count - last) * sizeof *ranges);
    __atomic_store_n(&count, count - (last - first), __ATOMIC_RELAXED);
}

/* Takes the data over. */
static void define(uint64_t start, uint64_t bytes, unsigned char *data) {
    forget(start, bytes);
    insert(index_of(start), start, bytes, data);
}

void us_values_write(const void *device_pointer, const void *bytes, size_t size) {
    if (!size || us_pointer_device(device_pointer) < 0)
        return;
    unsigned char *data = size <= US_VALUE_MAX_BYTES ? copy_of(bytes, size) : NULL;
    us_lock_take(&lock);
    if (data)
        define((uintptr_t)device_pointer, size, data);
    else
        forget((uintptr_t)device_pointer, size);
    us_lock_give(&lock);
}

void us_values_fill(const void *device_pointer, const void *pattern, size_t pattern_bytes,
                    size_t size) {
    if (!size || us_pointer_device(device_pointer) < 0)
        return;
    bool zero = true;
    for (size_t i = 0; i < pattern_bytes && zero; i++)
        zero = ((const unsigned char *)pattern)[i] == 0;
    unsigned char *data = !zero && size <= US_VALUE_MAX_BYTES ? malloc(size) : NULL;
    size_t filled = pattern_bytes < size ? pattern_bytes : size;
    if (data)
        memcpy(data, pattern, filled);
    for (size_t part; data && filled < size; filled += part) {
        part = filled < size - filled ? filled : size - filled; /* whole patterns, or the rest */
        memcpy(data + filled, data, part);
    }
    us_lock_take(&lock);
    if (data)
        define((uintptr_t)device_pointer, size, data);
    else
        forget((uintptr_t)device_pointer, size); /* 0 is what unknown bytes read as */
    us_lock_give(&lock);
}

void us_values_read(const void *device_pointer, void *bytes, size_t size) {
    us_host_zero(bytes, size);
    if (!size || us_pointer_device(device_pointer) < 0)
        return;
    uint64_t start = (uintptr_t)device_pointer, end = start + size;
    us_lock_take(&lock);
    for (size_t i = index_of(start); i < count && ranges[i].start < end; i++) {
        uint64_t from = ranges[i].start > start ? ranges[i].start : start;
        uint64_t range_end = ranges[i].start + ranges[i].bytes;
        uint64_t to = range_end < end ? range_end : end;
        memcpy((char *)bytes + (from - start), ranges[i].data + (from - ranges[i].start),
               to - from);
    }
    us_lock_give(&lock);
}

void us_values_copy(const void *destination, const void *source, size_t size) {
    if (!size || destination == source || us_pointer_device(destination) < 0)
        return;
    uint64_t from = (uintptr_t)source, end = from + size, to = (uintptr_t)destination;
    us_lock_take(&lock);
    /* Collected first: the two may overlap, and inserting moves the list. */
    size_t first = index_of(from), found = 0;
    while (first + found < count && ranges[first + found].start < end)
        found++;
    struct range *parts = found ? calloc(found, sizeof *parts) : NULL;
    for (size_t i = 0; parts && i < found; i++) {
        const struct range *range = &ranges[first + i];
        uint64_t begin = range->start > from ? range->start : from;
        uint64_t stop = range->start + range->bytes < end ? range->start + range->bytes : end;
        parts[i].start = to + (begin - from);
        parts[i].bytes = stop - begin;
        parts[i].data = copy_of(range->data + (begin - range->start), stop - begin);
    }
    forget(to, size);
    for (size_t i = 0; parts && i < found; i++)
        define(parts[i].start, parts[i].bytes, parts[i].data);
    free(parts);
    us_lock_give(&lock);
}

void us_values_forget(const void *device_pointer, size_t size) {
    if (!size || !us_values_any())
        return;
    us_lock_take(&lock);
    forget((uintptr_t)device_pointer, size);
    us_lock_give(&lock);
}

void us_values_forget_at(const void *device_pointer) {
    if (!us_values_may_hold(device_pointer))
        return;
    uint64_t address = (uintptr_t)device_pointer;
    us_lock_take(&lock);
    size_t index = index_of(address);
    if (index < count && ranges[index].start <= address)
        forget(address, ranges[index].start + ranges[index].bytes - address);
    us_lock_give(&lock);
}

void us_values_each(const void *pointer, size_t size, void *context,
                    void (*each)(void *context, uint64_t start, const void *data, size_t bytes)) {
    uint64_t start = (uintptr_t)pointer, end = start + size;
    us_lock_take(&lock);
    for (size_t i = index_of(start); i < count && ranges[i].start < end; i++)
        if (ranges[i].start >= start && ranges[i].start + ranges[i].bytes <= end)
            each(context, ranges[i].start, ranges[i].data, ranges[i].bytes);
    us_lock_give(&lock);
}

void us_copy_values(void *destination, const void *source, size_t bytes, int kind) {
    switch (kind) {
    case US_COPY_H2D:
        us_values_write(destination, source, bytes);
        break;
    case US_COPY_D2H:
        us_values_read(source, destination, bytes);
        break;
    case US_COPY_D2D:
        us_values_copy(destination, source, bytes);
        break;
    default:
        memmove(destination, source, bytes);
    }
}
