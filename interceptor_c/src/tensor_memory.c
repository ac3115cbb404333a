/*
 * PyTorch's caching allocator tells its profiler of every block that it gives out and takes back,
 * through a function of libc10.so. Standing in front of that function gives the tensors' blocks
 * without PyTorch's headers: c10::reportMemoryUsageToProfiler(void* pointer, int64_t alloc_size,
 * size_t total_allocated, size_t total_reserved, c10::Device).
 */
#include <dlfcn.h>
#include <string.h>

#include "core.h"

struct c10_device {
    int8_t type;
    int8_t index;
};

enum { C10_DEVICE_CUDA = 1 };

/* In registers a two-byte struct is the low half of an integer. */
typedef void report_function(void *, int64_t, size_t, size_t, uint16_t);

US_EXPORT void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    void *pointer, int64_t alloc_bytes, size_t allocated_bytes, size_t reserved_bytes,
    uint16_t device_bits) {
    static report_function *real;
    struct c10_device device;
    memcpy(&device, &device_bits, sizeof device);
    if (device.type == C10_DEVICE_CUDA && alloc_bytes) {
        struct us_record record =
            us_record_begin(alloc_bytes > 0 ? US_API_TENSOR_ALLOC : US_API_TENSOR_FREE);
        uint64_t bytes = (uint64_t)(alloc_bytes > 0 ? alloc_bytes : -alloc_bytes);
        record.a = (uintptr_t)pointer;
        record.b = bytes;
        record.c = allocated_bytes;
        record.d = reserved_bytes;
        if (device.index >= 0)
            record.device = (uint32_t)device.index;
        if (alloc_bytes > 0)
            us_values_forget(pointer, bytes); /* a new tensor's values are not known */
        us_emit(&record);
    }
    report_function *next = __atomic_load_n(&real, __ATOMIC_RELAXED);
    if (!next) {
        next = (report_function *)dlsym(RTLD_NEXT,
                                        "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
        if (!next) {
            /* In a library that was opened later and is not in the global scope. */
            void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
            if (c10)
                next = (report_function *)dlsym(
                    c10, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
        }
        __atomic_store_n(&real, next, __ATOMIC_RELAXED);
    }
    if (next)
        next(pointer, alloc_bytes, allocated_bytes, reserved_bytes, device_bits);
}
