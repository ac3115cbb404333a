/*
 * cuBLAS's triangular solvers and batched factorizations, as torch.linalg calls them. As in
 * cusolver.c a call is recorded with its shape, status words read as 0 and pivots are those of a
 * matrix that needs no exchange. The matrices of a batch are reached through pointers that lie in
 * device memory: what they hold is not known here, so nothing of it is forgotten; PyTorch's results
 * are new tensors, whose values are unknown anyway.
 */
#include <stdlib.h>

#include "library_call.h"
#include "types_cublas.h"

enum { TYPE_S = 0, TYPE_D = 1, TYPE_C = 4, TYPE_Z = 5 }; /* cudaDataType_t */

static void emit(struct us_record *record, const char *api, int type, cublasHandle_t handle,
                 const void *input, const void *output, const struct us_library_value *values,
                 size_t count) {
    record->a = us_address(input);
    record->d = us_address(output);
    us_library_emit(record, api, type, us_cublas_stream(handle), values, count);
}

#define EMIT(api, type, input, output, ...)                                                        \
    emit(&record, api, type, handle, input, output, US_LIBRARY_VALUES(__VA_ARGS__))

#define CHECK(condition)                                                                           \
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;                                      \
    if (!(condition)) return CUBLAS_STATUS_INVALID_VALUE;

/* 1 to n for each matrix of the batch. */
static void identity_pivots(int *pivots, int n, int batch) {
    size_t count = (size_t)n * (size_t)batch, bytes = count * sizeof *pivots;
    if (pivots == NULL || count == 0) return;
    int *order = bytes <= US_VALUE_MAX_BYTES ? malloc(bytes) : NULL;
    if (order == NULL) {
        us_values_forget(pivots, bytes);
        return;
    }
    for (size_t i = 0; i < count; i++) order[i] = (int)(i % (size_t)n) + 1;
    us_values_write(pivots, order, bytes);
    free(order);
}

#define SOLVERS(L, code)                                                                           \
    US_EXPORT cublasStatus_t cublas##L##trsm_v2(                                                   \
        cublasHandle_t handle, int side, int uplo, int trans, int diag, int m, int n,              \
        const void *alpha, const void *a, int lda, void *b, int ldb) {                             \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)alpha;                                                                               \
        CHECK(m >= 0 && n >= 0)                                                                    \
        us_values_forget_at(b);                                                                    \
        EMIT("cublas" #L "trsm", code, a, b, {"side", side}, {"uplo", uplo}, {"trans", trans},     \
             {"diag", diag}, {"m", m}, {"n", n}, {"lda", lda}, {"ldb", ldb});                      \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##trsmBatched(                                               \
        cublasHandle_t handle, int side, int uplo, int trans, int diag, int m, int n,              \
        const void *alpha, const void *const *a, int lda, void *const *b, int ldb, int batch) {    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)alpha;                                                                               \
        CHECK(m >= 0 && n >= 0 && batch >= 0)                                                      \
        EMIT("cublas" #L "trsmBatched", code, a, b, {"side", side}, {"uplo", uplo},                \
             {"trans", trans}, {"diag", diag}, {"m", m}, {"n", n}, {"lda", lda}, {"ldb", ldb},     \
             {"batch", batch});                                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##getrfBatched(cublasHandle_t handle, int n,                 \
                                                     void *const *a, int lda, int *pivots,         \
                                                     int *info, int batch) {                       \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(n >= 0 && batch >= 0)                                                                \
        identity_pivots(pivots, n, batch);                                                         \
        us_values_forget(info, (size_t)batch * sizeof *info);                                      \
        EMIT("cublas" #L "getrfBatched", code, a, a, {"n", n}, {"lda", lda}, {"batch", batch},     \
             {"pivoted", pivots != NULL});                                                         \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##getrsBatched(                                              \
        cublasHandle_t handle, int trans, int n, int nrhs, const void *const *a, int lda,          \
        const int *pivots, void *const *b, int ldb, int *info, int batch) {                        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)pivots;                                                                              \
        CHECK(n >= 0 && nrhs >= 0 && batch >= 0)                                                   \
        if (info) *info = 0; /* memory of the host */                                              \
        EMIT("cublas" #L "getrsBatched", code, a, b, {"trans", trans}, {"n", n}, {"nrhs", nrhs},   \
             {"lda", lda}, {"ldb", ldb}, {"batch", batch});                                        \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##geqrfBatched(cublasHandle_t handle, int m, int n,          \
                                                     void *const *a, int lda, void *const *tau,    \
                                                     int *info, int batch) {                       \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(m >= 0 && n >= 0 && batch >= 0)                                                      \
        if (info) *info = 0; /* memory of the host */                                              \
        EMIT("cublas" #L "geqrfBatched", code, a, tau, {"m", m}, {"n", n}, {"lda", lda},           \
             {"batch", batch});                                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##gelsBatched(                                               \
        cublasHandle_t handle, int trans, int m, int n, int nrhs, void *const *a, int lda,         \
        void *const *c, int ldc, int *info, int *device_info, int batch) {                         \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(m >= 0 && n >= 0 && nrhs >= 0 && batch >= 0)                                         \
        if (info) *info = 0; /* memory of the host */                                              \
        us_values_forget(device_info, (size_t)batch * sizeof *device_info);                        \
        EMIT("cublas" #L "gelsBatched", code, a, c, {"trans", trans}, {"m", m}, {"n", n},          \
             {"nrhs", nrhs}, {"lda", lda}, {"ldc", ldc}, {"batch", batch});                        \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }

SOLVERS(S, TYPE_S)
SOLVERS(D, TYPE_D)
SOLVERS(C, TYPE_C)
SOLVERS(Z, TYPE_Z)
