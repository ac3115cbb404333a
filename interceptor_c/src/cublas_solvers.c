/*
 * cuBLAS's triangular solvers and batched factorizations, as torch.linalg calls them. As in
 * cusolver.c a call is recorded with its shape, status words read as 0 and pivots are those of a
 * matrix that needs no exchange. The matrices of a batch are reached through pointers that lie in
 * device memory; where those are known, what they point to is unknown after the call. A call
 * without work or status words to write launches nothing, so it is not recorded.
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

static bool is_choice(int value) { return value == 0 || value == 1; }

static bool is_operation(int value) { return value >= CUBLAS_OP_N && value <= CUBLAS_OP_C; }

/* The guide of cuBLAS: sizes are not negative, a leading dimension is at least max(1, rows). */
static bool is_leading(int leading, int rows) { return leading >= (rows > 1 ? rows : 1); }

/* B has m rows; A is of the order of B's rows or, from the right, of its columns. */
static bool is_triangular(int side, int uplo, int trans, int diag, int m, int n, const void *alpha,
                          int lda, int ldb) {
    return is_choice(side) && is_choice(uplo) && is_operation(trans) && is_choice(diag) &&
           m >= 0 && n >= 0 && alpha != NULL && is_leading(lda, side ? n : m) && is_leading(ldb, m);
}

static size_t matrix_bytes(int type, int leading, int columns) {
    return (size_t)leading * (size_t)columns * (size_t)us_cuda_type_bits(type) / 8;
}

/* The functions below with an `info` in the host's memory say there which parameter is refused: -i
   for the i-th one, counted without the handle as LAPACK does. The parameters are tested in their
   order; a condition that holds, `bad`, refuses the i-th. */
#define REFUSE(i, bad)                                                                             \
    if (bad) {                                                                                     \
        *info = -(i);                                                                              \
        return CUBLAS_STATUS_INVALID_VALUE;                                                        \
    }

static cublasStatus_t check_getrs(int trans, int n, int nrhs, const void *a, int lda,
                                  const void *b, int ldb, int *info, int batch) {
    if (info == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    bool empty = n == 0 || nrhs == 0 || batch == 0;
    REFUSE(1, !is_operation(trans))
    REFUSE(2, n < 0)
    REFUSE(3, nrhs < 0)
    REFUSE(4, a == NULL && !empty)
    REFUSE(5, !is_leading(lda, n))
    REFUSE(7, b == NULL && !empty)
    REFUSE(8, !is_leading(ldb, n))
    REFUSE(10, batch < 0)
    *info = 0;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_geqrf(int m, int n, const void *a, int lda, const void *tau, int *info,
                                  int batch) {
    if (info == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    bool empty = m == 0 || n == 0 || batch == 0;
    REFUSE(1, m < 0)
    REFUSE(2, n < 0)
    REFUSE(3, a == NULL && !empty)
    REFUSE(4, !is_leading(lda, m))
    REFUSE(5, tau == NULL && !empty)
    REFUSE(7, batch < 0)
    *info = 0;
    return CUBLAS_STATUS_SUCCESS;
}

/* The guide: overdetermined systems (m >= n) that are not transposed, CUBLAS_STATUS_NOT_SUPPORTED
   for the others. */
static cublasStatus_t check_gels(int trans, int m, int n, int nrhs, const void *a, int lda,
                                 const void *c, int ldc, int *info, int batch) {
    if (info == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    bool empty = m == 0 || n == 0 || nrhs == 0 || batch == 0;
    REFUSE(1, !is_operation(trans))
    REFUSE(2, m < 0)
    REFUSE(3, n < 0)
    REFUSE(4, nrhs < 0)
    REFUSE(5, a == NULL && !empty)
    REFUSE(6, !is_leading(lda, m))
    REFUSE(7, c == NULL && !empty)
    REFUSE(8, !is_leading(ldc, m))
    REFUSE(11, batch < 0)
    *info = trans != CUBLAS_OP_N ? -1 : m < n ? -2 : 0;
    return *info ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

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
        CHECK(is_triangular(side, uplo, trans, diag, m, n, alpha, lda, ldb))                       \
        if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;                                        \
        CHECK(a && b)                                                                              \
        us_values_forget(b, matrix_bytes(code, ldb, n));                                           \
        EMIT("cublas" #L "trsm", code, a, b, {"side", side}, {"uplo", uplo}, {"trans", trans},     \
             {"diag", diag}, {"m", m}, {"n", n}, {"lda", lda}, {"ldb", ldb});                      \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##trsmBatched(                                               \
        cublasHandle_t handle, int side, int uplo, int trans, int diag, int m, int n,              \
        const void *alpha, const void *const *a, int lda, void *const *b, int ldb, int batch) {    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(is_triangular(side, uplo, trans, diag, m, n, alpha, lda, ldb) && batch >= 0)         \
        if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;                          \
        CHECK(a && b)                                                                              \
        us_forget_pointer_array(b, batch, matrix_bytes(code, ldb, n));                             \
        EMIT("cublas" #L "trsmBatched", code, a, b, {"side", side}, {"uplo", uplo},                \
             {"trans", trans}, {"diag", diag}, {"m", m}, {"n", n}, {"lda", lda}, {"ldb", ldb},     \
             {"batch", batch});                                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##getrfBatched(cublasHandle_t handle, int n,                 \
                                                     void *const *a, int lda, int *pivots,         \
                                                     int *info, int batch) {                       \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(n >= 0 && is_leading(lda, n) && batch >= 0)                                          \
        CHECK(batch == 0 || (info && (n == 0 || a)))                                               \
        us_forget_pointer_array(a, batch, matrix_bytes(code, lda, n));                             \
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
        if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;                                  \
        cublasStatus_t status = check_getrs(trans, n, nrhs, a, lda, b, ldb, info, batch);          \
        if (status != CUBLAS_STATUS_SUCCESS || n == 0 || nrhs == 0 || batch == 0) return status;   \
        us_forget_pointer_array(b, batch, matrix_bytes(code, ldb, nrhs));                          \
        EMIT("cublas" #L "getrsBatched", code, a, b, {"trans", trans}, {"n", n}, {"nrhs", nrhs},   \
             {"lda", lda}, {"ldb", ldb}, {"batch", batch});                                        \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##geqrfBatched(cublasHandle_t handle, int m, int n,          \
                                                     void *const *a, int lda, void *const *tau,    \
                                                     int *info, int batch) {                       \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;                                  \
        cublasStatus_t status = check_geqrf(m, n, a, lda, tau, info, batch);                       \
        if (status != CUBLAS_STATUS_SUCCESS || m == 0 || n == 0 || batch == 0) return status;      \
        us_forget_pointer_array(a, batch, matrix_bytes(code, lda, n));                             \
        us_forget_pointer_array(tau, batch, matrix_bytes(code, 1, m < n ? m : n));                 \
        EMIT("cublas" #L "geqrfBatched", code, a, tau, {"m", m}, {"n", n}, {"lda", lda},           \
             {"batch", batch});                                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    US_EXPORT cublasStatus_t cublas##L##gelsBatched(                                               \
        cublasHandle_t handle, int trans, int m, int n, int nrhs, void *const *a, int lda,         \
        void *const *c, int ldc, int *info, int *device_info, int batch) {                         \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;                                  \
        cublasStatus_t status = check_gels(trans, m, n, nrhs, a, lda, c, ldc, info, batch);        \
        if (status != CUBLAS_STATUS_SUCCESS) return status;                                        \
        us_forget_pointer_array(a, batch, matrix_bytes(code, lda, n));                             \
        us_forget_pointer_array(c, batch, matrix_bytes(code, ldc, nrhs));                          \
        us_values_forget(device_info, (size_t)batch * sizeof *device_info);                        \
        EMIT("cublas" #L "gelsBatched", code, a, c, {"trans", trans}, {"m", m}, {"n", n},          \
             {"nrhs", nrhs}, {"lda", lda}, {"ldc", ldc}, {"batch", batch});                        \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }

SOLVERS(S, TYPE_S)
SOLVERS(D, TYPE_D)
SOLVERS(C, TYPE_C)
SOLVERS(Z, TYPE_Z)
