/*
 * cuBLAS: handles with their settings, and every matrix product that PyTorch calls. A product is
 * recorded with its exact shape and computes nothing; its output reads as unknown afterwards.
 * Matrix-vector products and dot products are recorded as products with n = 1 (and m = 1).
 */
#include <stdlib.h>
#include <string.h>

#include "library_call.h"
#include "types_cublas.h"
#include "versions.h"

struct cublasContext {
    cudaStream_t stream;
    int device;
    cublasPointerMode_t pointer_mode;
    cublasAtomicsMode_t atomics_mode;
    cublasMath_t math_mode;
    int multiprocessor_target;
    void *workspace, *recorded_workspace;
    size_t workspace_bytes;
};

/* Status texts and versions ------------------------------------------------------------------ */

const char *us_cublas_status_name(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "unknown cuBLAS status";
    }
}

const char *us_cublas_status_string(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "an allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an argument has an unsupported value";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the operation is not supported";
    default: return us_cublas_status_name(status);
    }
}

cublasStatus_t us_cublas_property(libraryPropertyType type, int *value) {
    if (value == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    int version = us_library_versions()->cublas;
    switch (type) {
    case US_PROPERTY_MAJOR: *value = version / 10000; return CUBLAS_STATUS_SUCCESS;
    case US_PROPERTY_MINOR: *value = version / 100 % 100; return CUBLAS_STATUS_SUCCESS;
    case US_PROPERTY_PATCH: *value = version % 100; return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

US_EXPORT const char *cublasGetStatusName(cublasStatus_t status) {
    return us_cublas_status_name(status);
}

US_EXPORT const char *cublasGetStatusString(cublasStatus_t status) {
    return us_cublas_status_string(status);
}

US_EXPORT cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
    return us_cublas_property(type, value);
}

US_EXPORT size_t cublasGetCudartVersion(void) {
    return (size_t)us_library_versions()->cuda_runtime;
}

US_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (version == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *version = us_library_versions()->cublas;
    return CUBLAS_STATUS_SUCCESS;
}

/* Handles ------------------------------------------------------------------------------------ */

US_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    if (handle == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *handle = calloc(1, sizeof **handle);
    if (*handle == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->device = us_current_device();
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    /* As documented: a change of stream goes back to the default workspace. */
    handle->stream = stream;
    handle->workspace = NULL;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cudaStream_t us_cublas_stream(cublasHandle_t handle) { return handle->stream; }

US_EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                               size_t bytes) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    /* As documented: aligned to 256 bytes at least. */
    if ((uintptr_t)workspace % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    /* PyTorch sets it anew with every use of the handle. */
    if (bytes > 0 && workspace != handle->recorded_workspace) {
        us_memory_role(workspace, US_MEMORY_CUBLAS_WORKSPACE);
        handle->recorded_workspace = workspace;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* The get and set functions of one setting of a handle. */
#define US_SETTING(get, set, type, member)                                                         \
    US_EXPORT cublasStatus_t set(cublasHandle_t handle, type value) {                              \
        if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;                                  \
        handle->member = value;                                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_GETTER(get, type, member)

#define US_GETTER(get, type, member)                                                               \
    US_EXPORT cublasStatus_t get(cublasHandle_t handle, type *value) {                             \
        if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;                                  \
        if (value == NULL) return CUBLAS_STATUS_INVALID_VALUE;                                     \
        *value = handle->member;                                                                   \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }

US_GETTER(cublasGetStream_v2, cudaStream_t, stream)
US_GETTER(cublasGetPointerMode_v2, cublasPointerMode_t, pointer_mode)
US_SETTING(cublasGetAtomicsMode, cublasSetAtomicsMode, cublasAtomicsMode_t, atomics_mode)
US_SETTING(cublasGetMathMode, cublasSetMathMode, cublasMath_t, math_mode)
US_SETTING(cublasGetSmCountTarget, cublasSetSmCountTarget, int, multiprocessor_target)

US_EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (mode != CUBLAS_POINTER_MODE_HOST && mode != CUBLAS_POINTER_MODE_DEVICE)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

/* Recording ---------------------------------------------------------------------------------- */

static void forget_output(const struct us_gemm *gemm, const void *output) {
    size_t bits = (size_t)us_cuda_type_bits(gemm->type_d);
    size_t bytes = (size_t)gemm->ldd * (size_t)gemm->n * bits / 8;
    if (gemm->batch == 1 || gemm->stride_d == 0) {
        us_values_forget(output, bytes);
        return;
    }
    /* One range over the whole batch: what lies between two matrices is not worth keeping apart. */
    size_t stride = (size_t)gemm->stride_d * bits / 8;
    us_values_forget(output, (size_t)(gemm->batch - 1) * stride + bytes);
}

static void write_gemm(struct us_record *record, struct us_gemm *gemm, const char *api,
                       cudaStream_t stream, const void *a, const void *b, const void *c,
                       const void *d) {
    memset(gemm->api, 0, sizeof gemm->api);
    strncpy(gemm->api, api, sizeof gemm->api - 1);
    record->stream = us_stream_number(stream);
    record->definition = us_define(US_DEFINITION_GEMM, gemm, sizeof *gemm);
    record->a = (uintptr_t)a;
    record->b = (uintptr_t)b;
    record->c = (uintptr_t)c;
    record->d = (uintptr_t)d;
    us_emit(record);
}

void us_gemm_emit(struct us_record *record, struct us_gemm *gemm, const char *api,
                  cudaStream_t stream, const void *a, const void *b, const void *c, const void *d) {
    forget_output(gemm, d);
    write_gemm(record, gemm, api, stream, a, b, c, d);
}

/* A call of one of the functions below, before it is checked. */
struct product {
    const char *api;
    cublasOperation_t transpose_a, transpose_b;
    int64_t m, n, k, batch;
    const void *alpha, *a, *b, *beta;
    void *c;
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    cudaDataType_t type_a, type_b, type_c;
    cublasComputeType_t compute_type;
    bool pointer_arrays; /* a, b, c are device arrays of `batch` pointers */
};

static bool is_operation(cublasOperation_t operation) {
    return operation >= CUBLAS_OP_N && operation <= CUBLAS_OP_C;
}

static int64_t at_least_one(int64_t value) { return value > 1 ? value : 1; }

/* TF32 is a setting of the handle for calls that do not name it; the record names it always. */
static cublasComputeType_t effective_compute_type(cublasHandle_t handle,
                                                  const struct product *call) {
    bool single = call->type_a == CUDA_R_32F || call->type_a == CUDA_C_32F;
    bool open = call->compute_type == US_CUBLAS_COMPUTE_LEGACY ||
                call->compute_type == CUBLAS_COMPUTE_32F;
    bool tf32 = (handle->math_mode & US_CUBLAS_MATH_MODE_MASK) == CUBLAS_TF32_TENSOR_OP_MATH;
    return single && open && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : call->compute_type;
}

static cublasStatus_t record_product(cublasHandle_t handle, struct us_record *record,
                                     const struct product *call) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    int64_t rows_a = call->transpose_a == CUBLAS_OP_N ? call->m : call->k;
    int64_t rows_b = call->transpose_b == CUBLAS_OP_N ? call->k : call->n;
    if (!is_operation(call->transpose_a) || !is_operation(call->transpose_b) || call->m < 0 ||
        call->n < 0 || call->k < 0 || call->batch < 0 || call->alpha == NULL ||
        call->beta == NULL || call->lda < at_least_one(rows_a) ||
        call->ldb < at_least_one(rows_b) || call->ldc < at_least_one(call->m) ||
        us_cuda_type_bits(call->type_a) == 0 || us_cuda_type_bits(call->type_b) == 0 ||
        us_cuda_type_bits(call->type_c) == 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (call->m == 0 || call->n == 0 || call->batch == 0) return CUBLAS_STATUS_SUCCESS;
    if (call->c == NULL) return CUBLAS_STATUS_INVALID_VALUE;

    struct us_gemm gemm = {
        .m = call->m,
        .n = call->n,
        .k = call->k,
        .batch = call->batch,
        .lda = call->lda,
        .ldb = call->ldb,
        .ldc = call->ldc,
        .ldd = call->ldc,
        .stride_a = call->stride_a,
        .stride_b = call->stride_b,
        .stride_c = call->stride_c,
        .stride_d = call->stride_c,
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .type_a = call->type_a,
        .type_b = call->type_b,
        .type_c = call->type_c,
        .type_d = call->type_c,
        .compute_type = effective_compute_type(handle, call),
        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
    };
    if (call->pointer_arrays) { /* the array itself is only read */
        size_t bits = (size_t)us_cuda_type_bits(call->type_c);
        size_t bytes = (size_t)call->ldc * (size_t)call->n * bits / 8;
        us_forget_pointer_array(call->c, call->batch, bytes);
    } else {
        forget_output(&gemm, call->c);
    }
    write_gemm(record, &gemm, call->api, handle->stream, call->a, call->b, call->c, call->c);
    return CUBLAS_STATUS_SUCCESS;
}

/* Matrix products ---------------------------------------------------------------------------- */

#define US_GEMM(name, label, scalar, cuda_type)                                                    \
    US_EXPORT cublasStatus_t name(                                                                 \
        cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b,       \
        int m, int n, int k, const scalar *alpha, const void *a, int lda, const void *b, int ldb,  \
        const scalar *beta, void *c, int ldc) {                                                    \
        struct us_record record = us_record_begin(US_API_GEMM);                                    \
        return record_product(handle, &record, &(struct product){                                  \
            .api = label, .transpose_a = transpose_a, .transpose_b = transpose_b,                  \
            .m = m, .n = n, .k = k, .batch = 1, .alpha = alpha, .a = a, .b = b, .beta = beta,      \
            .c = c, .lda = lda, .ldb = ldb, .ldc = ldc, .type_a = cuda_type, .type_b = cuda_type,  \
            .type_c = cuda_type, .compute_type = US_CUBLAS_COMPUTE_LEGACY});                       \
    }

#define US_GEMM_STRIDED(name, scalar, cuda_type)                                                   \
    US_EXPORT cublasStatus_t name(                                                                 \
        cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b,       \
        int m, int n, int k, const scalar *alpha, const void *a, int lda, long long stride_a,      \
        const void *b, int ldb, long long stride_b, const scalar *beta, void *c, int ldc,          \
        long long stride_c, int batch) {                                                           \
        struct us_record record = us_record_begin(US_API_GEMM);                                    \
        return record_product(handle, &record, &(struct product){                                  \
            .api = #name, .transpose_a = transpose_a, .transpose_b = transpose_b,                  \
            .m = m, .n = n, .k = k, .batch = batch, .alpha = alpha, .a = a, .b = b, .beta = beta,  \
            .c = c, .lda = lda, .ldb = ldb, .ldc = ldc, .stride_a = stride_a,                      \
            .stride_b = stride_b, .stride_c = stride_c, .type_a = cuda_type, .type_b = cuda_type,  \
            .type_c = cuda_type, .compute_type = US_CUBLAS_COMPUTE_LEGACY});                       \
    }

#define US_GEMM_BATCHED(name, scalar, cuda_type)                                                   \
    US_EXPORT cublasStatus_t name(                                                                 \
        cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b,       \
        int m, int n, int k, const scalar *alpha, const void *const a[], int lda,                  \
        const void *const b[], int ldb, const scalar *beta, void *const c[], int ldc,              \
        int batch) {                                                                               \
        struct us_record record = us_record_begin(US_API_GEMM);                                    \
        return record_product(handle, &record, &(struct product){                                  \
            .api = #name, .transpose_a = transpose_a, .transpose_b = transpose_b,                  \
            .m = m, .n = n, .k = k, .batch = batch, .alpha = alpha, .a = a, .b = b, .beta = beta,  \
            .c = (void *)(uintptr_t)c, .lda = lda, .ldb = ldb, .ldc = ldc, .type_a = cuda_type,    \
            .type_b = cuda_type, .type_c = cuda_type, .compute_type = US_CUBLAS_COMPUTE_LEGACY,    \
            .pointer_arrays = true});                                                              \
    }

US_GEMM(cublasSgemm_v2, "cublasSgemm", float, CUDA_R_32F)
US_GEMM(cublasDgemm_v2, "cublasDgemm", double, CUDA_R_64F)
US_GEMM(cublasCgemm_v2, "cublasCgemm", cuComplex, CUDA_C_32F)
US_GEMM(cublasZgemm_v2, "cublasZgemm", cuDoubleComplex, CUDA_C_64F)
US_GEMM(cublasHgemm, "cublasHgemm", void, CUDA_R_16F)

US_GEMM_STRIDED(cublasSgemmStridedBatched, float, CUDA_R_32F)
US_GEMM_STRIDED(cublasDgemmStridedBatched, double, CUDA_R_64F)
US_GEMM_STRIDED(cublasCgemmStridedBatched, cuComplex, CUDA_C_32F)
US_GEMM_STRIDED(cublasZgemmStridedBatched, cuDoubleComplex, CUDA_C_64F)
US_GEMM_STRIDED(cublasHgemmStridedBatched, void, CUDA_R_16F)

US_GEMM_BATCHED(cublasSgemmBatched, float, CUDA_R_32F)
US_GEMM_BATCHED(cublasDgemmBatched, double, CUDA_R_64F)
US_GEMM_BATCHED(cublasCgemmBatched, cuComplex, CUDA_C_32F)
US_GEMM_BATCHED(cublasZgemmBatched, cuDoubleComplex, CUDA_C_64F)
US_GEMM_BATCHED(cublasHgemmBatched, void, CUDA_R_16F)

US_EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                                      cublasOperation_t transpose_b, int m, int n, int k,
                                      const void *alpha, const void *a, cudaDataType_t type_a,
                                      int lda, const void *b, cudaDataType_t type_b, int ldb,
                                      const void *beta, void *c, cudaDataType_t type_c, int ldc,
                                      cublasComputeType_t compute_type, cublasGemmAlgo_t algo) {
    struct us_record record = us_record_begin(US_API_GEMM);
    (void)algo;
    return record_product(handle, &record, &(struct product){
        .api = "cublasGemmEx", .transpose_a = transpose_a, .transpose_b = transpose_b,
        .m = m, .n = n, .k = k, .batch = 1, .alpha = alpha, .a = a, .b = b, .beta = beta, .c = c,
        .lda = lda, .ldb = ldb, .ldc = ldc, .type_a = type_a, .type_b = type_b, .type_c = type_c,
        .compute_type = compute_type});
}

/* Computes in single precision whatever the types of A, B and C are. */
US_EXPORT cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                                       cublasOperation_t transpose_b, int m, int n, int k,
                                       const float *alpha, const void *a, cudaDataType_t type_a,
                                       int lda, const void *b, cudaDataType_t type_b, int ldb,
                                       const float *beta, void *c, cudaDataType_t type_c, int ldc) {
    struct us_record record = us_record_begin(US_API_GEMM);
    return record_product(handle, &record, &(struct product){
        .api = "cublasSgemmEx", .transpose_a = transpose_a, .transpose_b = transpose_b,
        .m = m, .n = n, .k = k, .batch = 1, .alpha = alpha, .a = a, .b = b, .beta = beta, .c = c,
        .lda = lda, .ldb = ldb, .ldc = ldc, .type_a = type_a, .type_b = type_b, .type_c = type_c,
        .compute_type = CUBLAS_COMPUTE_32F});
}

US_EXPORT cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b, int m,
    int n, int k, const void *alpha, const void *a, cudaDataType_t type_a, int lda,
    long long stride_a, const void *b, cudaDataType_t type_b, int ldb, long long stride_b,
    const void *beta, void *c, cudaDataType_t type_c, int ldc, long long stride_c, int batch,
    cublasComputeType_t compute_type, cublasGemmAlgo_t algo) {
    struct us_record record = us_record_begin(US_API_GEMM);
    (void)algo;
    return record_product(handle, &record, &(struct product){
        .api = "cublasGemmStridedBatchedEx", .transpose_a = transpose_a,
        .transpose_b = transpose_b, .m = m, .n = n, .k = k, .batch = batch, .alpha = alpha,
        .a = a, .b = b, .beta = beta, .c = c, .lda = lda, .ldb = ldb, .ldc = ldc,
        .stride_a = stride_a, .stride_b = stride_b, .stride_c = stride_c, .type_a = type_a,
        .type_b = type_b, .type_c = type_c, .compute_type = compute_type});
}

US_EXPORT cublasStatus_t cublasGemmBatchedEx(
    cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b, int m,
    int n, int k, const void *alpha, const void *const a[], cudaDataType_t type_a, int lda,
    const void *const b[], cudaDataType_t type_b, int ldb, const void *beta, void *const c[],
    cudaDataType_t type_c, int ldc, int batch, cublasComputeType_t compute_type,
    cublasGemmAlgo_t algo) {
    struct us_record record = us_record_begin(US_API_GEMM);
    (void)algo;
    return record_product(handle, &record, &(struct product){
        .api = "cublasGemmBatchedEx", .transpose_a = transpose_a, .transpose_b = transpose_b,
        .m = m, .n = n, .k = k, .batch = batch, .alpha = alpha, .a = a, .b = b, .beta = beta,
        .c = (void *)(uintptr_t)c, .lda = lda, .ldb = ldb, .ldc = ldc, .type_a = type_a,
        .type_b = type_b, .type_c = type_c, .compute_type = compute_type, .pointer_arrays = true});
}

/* Matrix-vector products and dot products ---------------------------------------------------- */

/* y = op(A) x: a product whose B is the vector. Increments do not change the work. */
#define US_GEMV(name, label, scalar, cuda_type)                                                    \
    US_EXPORT cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transpose, int m,       \
                                  int n, const scalar *alpha, const void *a, int lda,              \
                                  const void *x, int increment_x, const scalar *beta, void *y,     \
                                  int increment_y) {                                               \
        struct us_record record = us_record_begin(US_API_GEMM);                                    \
        if (increment_x == 0 || increment_y == 0) return CUBLAS_STATUS_INVALID_VALUE;              \
        int rows = transpose == CUBLAS_OP_N ? m : n;                                               \
        int depth = transpose == CUBLAS_OP_N ? n : m;                                              \
        return record_product(handle, &record, &(struct product){                                  \
            .api = label, .transpose_a = transpose, .m = rows, .n = 1, .k = depth, .batch = 1,     \
            .alpha = alpha, .a = a, .b = x, .beta = beta, .c = y, .lda = lda,                      \
            .ldb = at_least_one(depth), .ldc = at_least_one(rows), .type_a = cuda_type,            \
            .type_b = cuda_type, .type_c = cuda_type, .compute_type = US_CUBLAS_COMPUTE_LEGACY});  \
    }

US_GEMV(cublasSgemv_v2, "cublasSgemv", float, CUDA_R_32F)
US_GEMV(cublasDgemv_v2, "cublasDgemv", double, CUDA_R_64F)
US_GEMV(cublasCgemv_v2, "cublasCgemv", cuComplex, CUDA_C_32F)
US_GEMV(cublasZgemv_v2, "cublasZgemv", cuDoubleComplex, CUDA_C_64F)

static cublasStatus_t record_dot(cublasHandle_t handle, const char *api, int64_t n, const void *x,
                                 cudaDataType_t type_x, const void *y, cudaDataType_t type_y,
                                 void *result, cudaDataType_t type_result) {
    struct us_record record = us_record_begin(US_API_GEMM);
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    int bits = us_cuda_type_bits(type_result);
    if (result == NULL || bits == 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (handle->pointer_mode == CUBLAS_POINTER_MODE_HOST) memset(result, 0, (size_t)bits / 8);
    return record_product(handle, &record, &(struct product){
        .api = api, .transpose_a = CUBLAS_OP_T, .m = 1, .n = 1, .k = n > 0 ? n : 0, .batch = 1,
        .alpha = result, .a = x, .b = y, .beta = result, .c = result, .lda = at_least_one(n),
        .ldb = at_least_one(n), .ldc = 1, .type_a = type_x, .type_b = type_y,
        .type_c = type_result, .compute_type = US_CUBLAS_COMPUTE_LEGACY});
}

#define US_DOT(name, label, cuda_type)                                                             \
    US_EXPORT cublasStatus_t name(cublasHandle_t handle, int n, const void *x, int increment_x,    \
                                  const void *y, int increment_y, void *result) {                  \
        (void)increment_x, (void)increment_y;                                                      \
        return record_dot(handle, label, n, x, cuda_type, y, cuda_type, result, cuda_type);        \
    }

US_DOT(cublasSdot_v2, "cublasSdot", CUDA_R_32F)
US_DOT(cublasDdot_v2, "cublasDdot", CUDA_R_64F)
US_DOT(cublasCdotu_v2, "cublasCdotu", CUDA_C_32F)
US_DOT(cublasCdotc_v2, "cublasCdotc", CUDA_C_32F)
US_DOT(cublasZdotu_v2, "cublasZdotu", CUDA_C_64F)
US_DOT(cublasZdotc_v2, "cublasZdotc", CUDA_C_64F)

US_EXPORT cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void *x,
                                     cudaDataType_t type_x, int increment_x, const void *y,
                                     cudaDataType_t type_y, int increment_y, void *result,
                                     cudaDataType_t type_result, cudaDataType_t type_execution) {
    (void)increment_x, (void)increment_y, (void)type_execution;
    return record_dot(handle, "cublasDotEx", n, x, type_x, y, type_y, result, type_result);
}
