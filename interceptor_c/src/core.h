/* Shared by the core files (trace, memory, streams, launches); library families use interceptor.h. */
#ifndef UNDERSTUDY_CORE_H
#define UNDERSTUDY_CORE_H

#include <sched.h>

#include "interceptor.h"

/* A short spinlock; critical sections are some tens of nanoseconds. */
typedef struct {
    char locked;
} us_lock;

static inline void us_lock_take(us_lock *lock) {
    for (int spins = 0; __atomic_test_and_set(&lock->locked, __ATOMIC_ACQUIRE); spins++)
        if (spins > 100)
            sched_yield();
}

static inline void us_lock_give(us_lock *lock) {
    __atomic_clear(&lock->locked, __ATOMIC_RELEASE);
}

/* clock.c */
#define US_CLOCK_SHIFT 32
struct us_clock {
    uint64_t start_ticks, start_ns;
    uint64_t scale; /* nanoseconds per tick << US_CLOCK_SHIFT; 0: clock_gettime */
};
extern struct us_clock us_clock;

void us_clock_start(void); /* before the first reading of a trace */
uint64_t us_clock_read_ns(void);

#ifdef __x86_64__
static inline uint64_t us_ticks(void) {
    return __builtin_ia32_rdtsc();
}
#endif

/* Nanoseconds of CLOCK_MONOTONIC, as far as clock.c says. */
static inline uint64_t us_now_ns(void) {
#ifdef __x86_64__
    if (__builtin_expect(us_clock.scale != 0, 1)) {
        unsigned __int128 ticks = us_ticks() - us_clock.start_ticks;
        return us_clock.start_ns + (uint64_t)(ticks * us_clock.scale >> US_CLOCK_SHIFT);
    }
#endif
    return us_clock_read_ns();
}

/* slab.c: fixed-size objects that are never unmapped, so that any handle can be checked. */
struct us_slab {
    us_lock lock;
    size_t object_bytes; /* a multiple of 16; objects start with a void* link while free */
    char *base;
    size_t used, limit;
    void *free_list;
};

void *us_slab_take(struct us_slab *slab); /* zeroed; NULL when the slab is full */
void us_slab_give(struct us_slab *slab, void *object);
bool us_slab_holds(const struct us_slab *slab, const void *object);

/* process.c */
extern bool us_forked; /* from a process that had initialised CUDA */
/* Before what initialises CUDA: cudaErrorInitializationError in a forked process. */
cudaError_t us_initialize(void);
/* In a process that a rank has started, at its first use of device memory. */
void us_trace_open_for_child(void);

/* trace.c */
int us_trace_open(const char *stem, bool ends_with_parent);
void us_define_stream(uint32_t number, const struct us_stream *stream);
int us_compute_capability(void); /* 90 for 9.0 */
uint32_t us_trace_generation(void); /* changes with every opened trace */
void us_annotate(const char *text, size_t bytes, enum us_annotation kind);

/* stream.c */
cudaError_t us_event_create(cudaEvent_t *out, unsigned flags);
bool us_event_flags(cudaEvent_t event, unsigned *flags); /* false for no event */
void us_streams_define_all(void);

/* device.c. Physical devices are those of the machine, which NVML knows; CUDA numbers the visible
   ones (CUDA_VISIBLE_DEVICES) anew. */
struct us_pci_location {
    int domain, bus;
};
#define US_UUID_TEXT_BYTES 41 /* "GPU-", 32 digits, 4 dashes */
int us_physical_device_count(void);
int us_physical_device(int ordinal);
void us_device_uuid(int physical, unsigned char uuid[16]);
void us_device_uuid_text(int physical, char text[US_UUID_TEXT_BYTES]);
struct us_pci_location us_pci_location(int physical);
int us_device_at(struct us_pci_location location); /* physical, or -1 */
bool us_peer_access(int first, int second);

/* device_properties.c */
void us_pci_bus_id(int physical, char *id, size_t bytes); /* "0000:01:00.0" */

/* memory.c: the addresses of all devices; below the mmap area, above ASan's low shadow. */
#define US_DEVICE_BASE 0x200000000000ull
#define US_DEVICE_SPAN (1ull << 40)

cudaError_t us_malloc(int device, size_t bytes, void **pointer);
cudaError_t us_free(void *pointer);
uint64_t us_device_used_bytes(int device);
/* Address space without memory behind it (cuMemAddressReserve); NULL when there is none. */
void *us_reserve(int device, size_t bytes, size_t alignment);
bool us_release(void *pointer);
void us_memory_info(int device, size_t *free_bytes, size_t *total_bytes);
cudaError_t us_host_alloc(size_t bytes, void **pointer);
cudaError_t us_host_free(void *pointer);
/* Zeros memory of the host. Large parts of page-locked memory lose their pages instead, so that
   offloading a model does not cost the machine the model's size. */
void us_host_zero(void *pointer, size_t bytes);
cudaError_t us_host_register(void *pointer, size_t bytes);
cudaError_t us_host_unregister(void *pointer);
cudaError_t us_managed_alloc(size_t bytes, void **pointer);
cudaError_t us_managed_free(void *pointer);
cudaError_t us_pointer_attributes(struct cudaPointerAttributes *attributes, const void *pointer);
/* The allocation or reservation that holds the pointer; false for none. */
bool us_allocation_of(const void *pointer, void **base, size_t *bytes);
bool us_values_any(void);
/* Calls `each` with every known range that lies in [pointer, pointer + bytes), under the lock. */
void us_values_each(const void *pointer, size_t bytes, void *context,
                    void (*each)(void *context, uint64_t start, const void *data, size_t bytes));

/* A quick "no": how many defined ranges touch each 64 KiB of addresses, folded. */
#define US_FILTER_SLOTS 65536u
extern uint16_t us_values_filter[US_FILTER_SLOTS];

static inline uint64_t us_filter_granule(uint64_t address) {
    return address >> 16;
}

static inline bool us_values_may_hold(const void *pointer) {
    uint64_t offset = (uint64_t)(uintptr_t)pointer - US_DEVICE_BASE;
    return offset < US_MAX_DEVICES * US_DEVICE_SPAN &&
           us_values_filter[us_filter_granule((uint64_t)(uintptr_t)pointer) % US_FILTER_SLOTS];
}
/* Moves the bytes of one copy between host memory and the value store; kind is us_copy_kind. */
void us_copy_values(void *destination, const void *source, size_t bytes, int kind);
int us_copy_kind_of(const void *destination, const void *source, int cuda_kind);

/* runtime_memory.c: shared by runtime and driver; these record. */
cudaError_t us_record_malloc(size_t bytes, void **pointer);
cudaError_t us_record_free(void *pointer);
cudaError_t us_record_host_alloc(size_t bytes, void **pointer);
cudaError_t us_record_host_free(void *pointer);
cudaError_t us_record_copy(void *destination, const void *source, size_t bytes, int cuda_kind,
                           cudaStream_t stream, bool asynchronous);
cudaError_t us_record_fill(void *pointer, uint32_t value, size_t element_bytes, size_t bytes,
                           cudaStream_t stream, bool asynchronous);
cudaMemPool_t us_default_pool(int device);

/* ipc.c: memory that processes share; also a cudaIpcMemHandle_t and a cudaIpcEventHandle_t, 64 bytes
   without a meaning to programs. */
struct us_shared_memory {
    uint32_t magic;
    int32_t pid;
    int32_t file; /* descriptor of the values in that process */
    int32_t device; /* physical */
    uint64_t start, bytes;
    char reserved[32];
};
_Static_assert(sizeof(struct us_shared_memory) == 64, "CUDA_IPC_HANDLE_SIZE");

/* The descriptor of a file that stands for mapped memory in any process; -1 for none. */
int us_shared_export(void *start, uint64_t bytes);
bool us_shared_import(int file, struct us_shared_memory *memory, int *device);
/* Brings in the values of imported memory, now and whenever its process records an event. */
bool us_shared_map(const struct us_shared_memory *memory, void *local);
void us_shared_unmap(void *local);

/* launch.c */
struct us_function;
struct us_function *us_function_of(const void *host_function_or_handle); /* NULL when unknown */
cudaError_t us_launch(struct us_function *function, us_dim3 grid, us_dim3 block, void **arguments,
                      void **extra, size_t dynamic_shared_bytes, cudaStream_t stream,
                      const us_dim3 *cluster);
int us_occupancy(const struct us_function *function, int block_threads, size_t dynamic_bytes);
void us_occupancy_best(const struct us_function *function, size_t dynamic_bytes, int limit,
                       int *grid, int *block);
void us_function_attributes(const struct us_function *f, struct cudaFuncAttributes *attributes);
cudaError_t us_function_set_attribute(struct us_function *function, int attribute, int value);
bool us_function_attribute(const struct us_function *function, int attribute, int *value);
cudaError_t us_function_parameter(const struct us_function *function, size_t index, size_t *offset,
                                  size_t *bytes);
const char *us_function_name(const struct us_function *function);

/* fatbin.c */
struct us_fatbin;
struct us_fatbin *us_fatbin_register(const void *wrapper);
const void *us_fatbin_data(const struct us_fatbin *fatbin); /* NULL for none */
/* Whether it has code that the device runs. */
bool us_fatbin_has_device(const struct us_fatbin *fatbin);

/* kernels.c: what is known of a kernel before it is launched. */
struct us_kernel_info {
    uint32_t registers, static_shared_bytes, max_threads, local_bytes, parameter_bytes;
    uint32_t parameter_count;
    const struct us_parameter *parameters;
};
/* A function that is not registered by host address (driver modules); the name must stay. */
struct us_function *us_function_new(const char *mangled_name, const struct us_kernel_info *info);
/* False when no table of UNDERSTUDY_KERNEL_TABLES has the kernel. */
bool us_kernel_lookup(const char *mangled_name, size_t name_bytes, struct us_kernel_info *info);
/* Has the table of the library made that holds this address; false when none came of it, and after
   the first call for a library. */
bool us_kernels_of_library(const void *inside);

/* cubin.c: uncompressed cubins (Triton's). */
struct us_cubin;
/* NULL when the image is none; `bytes` may be SIZE_MAX when not known. */
struct us_cubin *us_cubin_parse(const void *image, size_t bytes);
size_t us_cubin_count(const struct us_cubin *cubin);
const char *us_cubin_kernel(const struct us_cubin *cubin, size_t index, struct us_kernel_info *info);
void us_cubin_free(struct us_cubin *cubin);

/* driver.c */
void *us_driver_entry(const char *name); /* NULL when no such function is exported */

#endif
