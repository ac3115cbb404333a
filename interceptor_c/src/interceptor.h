/*
 * Internal interface between the files of the interceptor.
 *
 * How a file of an API family is written:
 *   - Functions that applications call are defined with US_EXPORT and plain C names. The generator
 *     of stubs emits *weak* definitions for every name of symbols/<library>.tsv, so a definition in
 *     src/ replaces the stub without a change anywhere else (symbols/check_symbols.py then wants the
 *     table to say `implemented`; `make symbols` rewrites it).
 *   - Exported functions never call each other (the inner call would be recorded too); shared work
 *     goes into us_ functions, which do not record.
 *   - A recording function looks like this, and is cheap when no trace is open:
 *
 *         struct us_record record = us_record_begin(US_API_GEMM);
 *         record.stream = us_stream_number(handle->stream);
 *         record.definition = us_define(US_DEFINITION_GEMM, &gemm, sizeof gemm);
 *         us_values_forget(c_pointer, c_bytes);
 *         us_emit(&record);
 *
 *     us_record_begin takes the time, the thread and the device; us_emit sets inside_ns and writes.
 *     Records stand in the file in the order of us_emit, one order over all threads.
 */
#ifndef UNDERSTUDY_INTERCEPTOR_H
#define UNDERSTUDY_INTERCEPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_types.h"
#include "trace_format.h"

#define US_EXPORT __attribute__((visibility("default")))
#define US_MAX_DEVICES 16
/* Larger copies and fills are not kept: their bytes read as 0. */
#define US_VALUE_MAX_BYTES 65536u

/* trace.c ------------------------------------------------------------------------------------ */

extern bool us_trace_is_open; /* read with us_tracing() */

static inline bool us_tracing(void) {
    return __atomic_load_n(&us_trace_is_open, __ATOMIC_ACQUIRE);
}

/* A record with api, begin_ns, thread and device set; the rest 0. Does nothing much untraced. */
struct us_record us_record_begin(enum us_api api);
/* Sets inside_ns and appends the record. Does nothing untraced. Safe from any thread. */
void us_emit(struct us_record *record);

/* The id of the definition with exactly this payload; written at its first use. 0 untraced. */
uint32_t us_define(enum us_definition_kind kind, const void *payload, size_t bytes);
/* A definition of its own even when an equal one exists (communicators). 0 untraced. */
uint32_t us_define_new(enum us_definition_kind kind, const void *payload, size_t bytes);

/* Records what the block at `start` is for. */
void us_memory_role(const void *start, enum us_memory_role role);

/* Records US_API_UNSUPPORTED once per name, prints one line to stderr when UNDERSTUDY_VERBOSE is
   set, and returns `code`, which should be the library's own NOT_SUPPORTED. */
int us_unsupported(const char *name, int code);

uint64_t us_hash(const void *bytes, size_t count); /* FNV-1a, 64 bits */

/* device.c ----------------------------------------------------------------------------------- */

struct us_device {
    char id[64];
    char name[256];
    int compute_capability_major, compute_capability_minor;
    int multiprocessors;
    uint64_t memory_bytes; /* what cudaMemGetInfo calls total */
    uint64_t driver_memory_bytes; /* kept by the driver: NVML's total is larger by it */
    uint64_t context_bytes;
    uint64_t memory_bandwidth_bytes_per_s;
    uint64_t memory_clock_hz, clock_hz;
    uint64_t l2_bytes;
    int memory_bus_bits;
    /* By the compute capability; see understudy/catalog/compute_capabilities.yaml. */
    int max_threads_per_multiprocessor;
    int max_blocks_per_multiprocessor;
    int registers_per_multiprocessor;
    int shared_memory_per_multiprocessor_bytes;
    int shared_memory_per_block_optin_bytes;
    int reserved_shared_memory_per_block_bytes;
    int float32_to_float64_ratio;
    uint64_t persisting_l2_bytes, access_policy_window_bytes;
    int memory_sync_domains;
    int cluster_launch, tensor_maps; /* 0 or 1, as are the next three */
    int ecc, gpu_direct, host_coherent;
    int copy_engines;
    uint32_t pci_device_id, pci_subsystem_id; /* device << 16 | vendor, as NVML has them */
    int nccl_channels;
    int nvlink_links, nvlink_generation, nvlink_switched;
};

const struct us_device *us_device(void); /* from UNDERSTUDY_DEVICE_FILE, read once; H100 without */
/* UNDERSTUDY_DEVICE_COUNT, default 1, as far as CUDA_VISIBLE_DEVICES shows them. */
int us_device_count(void);
int us_current_device(void);             /* of the calling thread */
void us_set_current_device(int device);
/* The value of a CUdevice_attribute (= cudaDeviceAttr) number; false for an unknown one. */
bool us_device_attribute(int attribute, int device, int *value);

/* runtime.c ---------------------------------------------------------------------------------- */

/* Stores a non-zero code as the thread's last error (cudaGetLastError) and returns it. */
cudaError_t us_error(cudaError_t code);

/* stream.c ----------------------------------------------------------------------------------- */

/* The number that records carry: 0 for NULL and cudaStreamLegacy, 1 for cudaStreamPerThread. */
uint32_t us_stream_number(cudaStream_t stream);
bool us_stream_is_valid(cudaStream_t stream);
/* True between cudaStreamBeginCapture and EndCapture of it. */
bool us_stream_is_capturing(cudaStream_t stream);
/* The host has waited for the device in some way. */
void us_host_synchronized(void);

/* memory.c ----------------------------------------------------------------------------------- */

/* The device whose address range holds the pointer, or -1. */
int us_pointer_device(const void *pointer);
/* Device memory that a library would take behind the program's back (NCCL buffers, ...): counts
   against the capacity. Negative gives it back. False when it does not fit. */
bool us_device_charge(int device, int64_t bytes);
/* True when the host pointer lies in page-locked memory (cudaHostAlloc, cudaHostRegister). */
bool us_pointer_is_pinned(const void *pointer);

/* The value store: what the program could read back of device memory. Only small ranges are kept;
   every other byte reads as 0. Pointers outside device memory are ignored. */
void us_values_write(const void *device_pointer, const void *bytes, size_t count);
void us_values_fill(const void *device_pointer, const void *pattern, size_t pattern_bytes,
                    size_t count); /* count = bytes in all */
void us_values_read(const void *device_pointer, void *bytes, size_t count);
/* Device to device: the destination's bytes become the source's (defined or not). */
void us_values_copy(const void *destination, const void *source, size_t count);
/* What a library or kernel with unknown results has overwritten. */
void us_values_forget(const void *device_pointer, size_t count);
/* Forgets the defined range that holds this address, if any (size of the output not known). */
void us_values_forget_at(const void *device_pointer);

/* types ---------------------------------------------------------------------------------------*/

/* Bits of one element of a cudaDataType_t; 0 for an unknown one. */
int us_cuda_type_bits(cudaDataType_t type);

#endif
