/* cuFFT: plans, their sizes and errors, and what an execution records. */
#include "library_test.h"
#include "cuda_types.h"

typedef int cufftHandle;
int cufftCreate(cufftHandle *);
int cufftDestroy(cufftHandle);
int cufftSetAutoAllocation(cufftHandle, int);
int cufftSetWorkArea(cufftHandle, void *);
int cufftSetStream(cufftHandle, cudaStream_t);
int cufftGetSize(cufftHandle, size_t *);
int cufftXtMakePlanMany(cufftHandle, int, long long *, long long *, long long, long long, int,
                        long long *, long long, long long, int, long long, size_t *, int);
int cufftXtExec(cufftHandle, void *, void *, int);
int cufftPlan1d(cufftHandle *, int, int, int);
int cufftPlan2d(cufftHandle *, int, int, int);
int cufftEstimate1d(int, int, int, size_t *);
int cufftExecR2C(cufftHandle, void *, void *);
int cufftExecC2C(cufftHandle, void *, void *, int);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);
cudaError_t cudaMemGetInfo(size_t *, size_t *);

enum { R2C = 0x2a, C2C = 0x29, FORWARD = -1, INVERSE = 1 };

static int64_t value_of(uint32_t id, const char *name) {
    size_t bytes;
    char *payload = definition_of(US_DEFINITION_LIBRARY, id, &bytes);
    struct us_library head;
    memcpy(&head, payload, sizeof head);
    CHECK(bytes == sizeof head + head.value_count * sizeof(struct us_library_value));
    for (uint32_t i = 0; i < head.value_count; i++) {
        struct us_library_value value;
        memcpy(&value, payload + sizeof head + i * sizeof value, sizeof value);
        if (strcmp(value.name, name) == 0) {
            free(payload);
            return value.value;
        }
    }
    CHECK(!"the value is recorded");
    return 0;
}

static void test_plans(void) {
    cufftHandle plan;
    size_t bytes = 99;
    CHECK(cufftXtExec(7, NULL, NULL, FORWARD) == 1);
    CHECK(cufftCreate(NULL) == 4);
    CHECK(cufftCreate(&plan) == 0 && plan > 0);
    CHECK(cufftGetSize(plan, &bytes) == 1 && bytes == 99);
    long long n[3] = {8, 10, 12}, odd[1] = {12};
    CHECK(cufftXtMakePlanMany(plan, 4, n, NULL, 1, 1, CUDA_C_32F, NULL, 1, 1, CUDA_C_32F, 1, &bytes,
                              CUDA_C_32F) == 4);
    CHECK(cufftXtMakePlanMany(plan, 1, n, NULL, 1, 1, CUDA_R_32F, NULL, 1, 1, CUDA_R_32F, 1, &bytes,
                              CUDA_C_32F) == 3);
    CHECK(cufftXtMakePlanMany(plan, 1, odd, NULL, 1, 1, CUDA_C_16F, NULL, 1, 1, CUDA_C_16F, 1,
                              &bytes, CUDA_C_16F) == 8);
    CHECK(bytes == 99);
    CHECK(cufftSetAutoAllocation(plan, 0) == 0);
    CHECK(cufftXtMakePlanMany(plan, 3, n, NULL, 1, 1, CUDA_C_32F, NULL, 1, 1, CUDA_C_32F, 5, &bytes,
                              CUDA_C_32F) == 0);
    CHECK(bytes == 8 * 10 * 12 * 5 * 8);
    CHECK(cufftGetSize(plan, &bytes) == 0 && bytes == 8 * 10 * 12 * 5 * 8);
    void *in, *out;
    CHECK(cudaMalloc(&in, 1 << 20) == 0 && cudaMalloc(&out, 1 << 20) == 0);
    CHECK(cufftXtExec(plan, in, out, FORWARD) == 13); /* no work area */
    CHECK(cufftSetWorkArea(plan, in) == 0);
    CHECK(cufftXtExec(plan, in, out, 0) == 4);
    CHECK(cufftXtExec(plan, in, out, FORWARD) == 0);
    CHECK(cufftDestroy(plan) == 0 && cufftDestroy(plan) == 1);
    CHECK(cudaFree(in) == 0 && cudaFree(out) == 0);
}

/* Primes above 127 need Bluestein's algorithm: two arrays of the next power of two. */
static void test_work_sizes(void) {
    size_t bytes;
    CHECK(cufftEstimate1d(1024, C2C, 3, &bytes) == 0 && bytes == 1024 * 3 * 8);
    CHECK(cufftEstimate1d(1009, C2C, 1, &bytes) == 0 && bytes == 2 * 2048 * 8);
    CHECK(cufftEstimate1d(0, C2C, 1, &bytes) == 8);
    CHECK(cufftEstimate1d(8, 5, 1, &bytes) == 3);
    size_t before, with, after, total;
    CHECK(cudaMemGetInfo(&before, &total) == 0);
    cufftHandle plan;
    CHECK(cufftPlan2d(&plan, 1024, 1024, C2C) == 0);
    CHECK(cudaMemGetInfo(&with, &total) == 0 && before - with == 1024 * 1024 * 8);
    CHECK(cufftDestroy(plan) == 0);
    CHECK(cudaMemGetInfo(&after, &total) == 0 && after == before);
}

static void test_records(void) {
    open_trace();
    cufftHandle plan;
    void *in, *out;
    float one = 1, back = 0;
    CHECK(cudaMalloc(&in, 4096) == 0 && cudaMalloc(&out, 4096) == 0);
    CHECK(cudaMemcpy(out, &one, sizeof one, 1) == 0);
    CHECK(cufftPlan1d(&plan, 100, R2C, 2) == 0);
    CHECK(cufftExecC2C(plan, in, out, FORWARD) == 3); /* not what the plan is for */
    CHECK(cufftExecR2C(plan, in, out) == 0);
    CHECK(cudaMemcpy(&back, out, sizeof back, 2) == 0 && back == 0); /* overwritten */
    struct us_record record = last_of(US_API_LIBRARY);
    CHECK(count_of(US_API_LIBRARY) == 1);
    CHECK(record.a == (uint64_t)(uintptr_t)in && record.d == (uint64_t)(uintptr_t)out);
    CHECK(value_of(record.definition, "n0") == 100 && value_of(record.definition, "batch") == 2);
    CHECK(value_of(record.definition, "rank") == 1);
    CHECK(value_of(record.definition, "idist") == 100);
    CHECK(value_of(record.definition, "odist") == 51);
    CHECK(value_of(record.definition, "inputtype") == CUDA_R_32F);
    CHECK(value_of(record.definition, "outputtype") == CUDA_C_32F);
    CHECK(value_of(record.definition, "direction") == FORWARD);
    CHECK(cufftDestroy(plan) == 0);
    CHECK(cudaFree(in) == 0 && cudaFree(out) == 0);
    close_trace();
}

int main(void) {
    test_plans();
    test_work_sizes();
    test_records();
    puts("cufft ok");
    return 0;
}
