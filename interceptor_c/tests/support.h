/* For the C tests and the benchmark: CUDA prototypes, a kernel table of one kernel, checks. */
#ifndef UNDERSTUDY_TESTS_SUPPORT_H
#define UNDERSTUDY_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_types.h"
#include "kernel_table.h"
#include "trace_format.h"

/* Stops the test with the place and the text of what does not hold. */
#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

int understudy_trace_open(const char *stem);
void understudy_trace_close(void);
void understudy_mark_iteration(void);
void understudy_annotate(const char *text);
void understudy_polling(int begins);

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device);
cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMallocHost(void **pointer, size_t bytes);
cudaError_t cudaFreeHost(void *pointer);
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, int attribute, void *value);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);
cudaError_t cudaMemcpy(void *destination, const void *source, size_t bytes, int kind);
cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *parameters);
cudaError_t cudaMemset(void *pointer, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid,
                            int *warp_size);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream);
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host);
cudaError_t cudaFuncSetAttribute(const void *host, int attribute, int value);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host,
                                                          int threads, size_t dynamic_bytes);

struct test_kernel {
    const char *name;
    uint16_t registers, max_threads;
    uint32_t static_shared_bytes;
    uint32_t parameter_count;
    struct us_ktab_parameter parameters[8];
};

static inline uint64_t fnv1a(const char *text) {
    uint64_t hash = 14695981039346656037ull;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211ull;
    return hash;
}

static inline int by_hash(const void *a, const void *b) {
    uint64_t first = fnv1a((*(const struct test_kernel *const *)a)->name);
    uint64_t second = fnv1a((*(const struct test_kernel *const *)b)->name);
    return first < second ? -1 : first > second;
}

/* Writes a .ktab of the kernels and names it in UNDERSTUDY_KERNEL_TABLES. */
static inline void use_kernel_table(const char *path, const struct test_kernel *kernels,
                                    uint32_t count) {
    const struct test_kernel *sorted[16];
    struct us_ktab_header header = {.version = US_KTAB_VERSION, .compute_capability = 90,
                                    .entry_count = count};
    memcpy(header.magic, US_KTAB_MAGIC, 8);
    for (uint32_t i = 0; i < count; i++) {
        sorted[i] = &kernels[i];
        header.parameter_count += kernels[i].parameter_count;
        header.string_bytes += strlen(kernels[i].name);
    }
    qsort(sorted, count, sizeof *sorted, by_hash);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(&header, sizeof header, 1, file) == 1);
    uint32_t names = 0, parameters = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct test_kernel *kernel = sorted[i];
        struct us_ktab_entry entry = {
            .name_hash = fnv1a(kernel->name),
            .name_offset = names,
            .name_bytes = (uint32_t)strlen(kernel->name),
            .static_shared_bytes = kernel->static_shared_bytes,
            .first_parameter = parameters,
            .parameter_count = (uint16_t)kernel->parameter_count,
            .registers = kernel->registers,
            .max_threads = kernel->max_threads,
        };
        CHECK(fwrite(&entry, sizeof entry, 1, file) == 1);
        names += entry.name_bytes;
        parameters += kernel->parameter_count;
    }
    for (uint32_t i = 0; i < count; i++)
        CHECK(fwrite(sorted[i]->parameters, sizeof *sorted[i]->parameters,
                     sorted[i]->parameter_count, file) == sorted[i]->parameter_count);
    for (uint32_t i = 0; i < count; i++)
        CHECK(fputs(sorted[i]->name, file) >= 0);
    CHECK(fclose(file) == 0 && setenv("UNDERSTUDY_KERNEL_TABLES", path, 1) == 0);
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

#endif
