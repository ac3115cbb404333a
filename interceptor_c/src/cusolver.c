/*
 * cuSOLVER's dense part, as torch.linalg calls it: factorizations, solvers, eigenvalues, singular
 * values. A call is recorded with its shape and computes nothing. Status words (devInfo) read as 0,
 * success; pivots are those of a matrix that needs no exchange, since torch turns them into a
 * permutation.
 *
 * Workspaces are a guess: what LAPACK's blocked algorithms of the same name need, with blocks of 64
 * columns. The legacy functions count them in elements, the 64-bit ones in bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "library_call.h"

typedef int cusolverStatus_t;

enum {
    CUSOLVER_STATUS_SUCCESS = 0,
    CUSOLVER_STATUS_NOT_INITIALIZED = 1,
    CUSOLVER_STATUS_ALLOC_FAILED = 2,
    CUSOLVER_STATUS_INVALID_VALUE = 3,
};

enum { TYPE_S = 0, TYPE_D = 1, TYPE_C = 4, TYPE_Z = 5 }; /* cudaDataType_t */
enum { BLOCK = 64 };

typedef struct cusolverDnContext {
    cudaStream_t stream;
} *cusolverDnHandle_t;

/* Parameters and settings of the Jacobi methods: the calls do not depend on them. */
typedef struct settings {
    int unused;
} *settings_t;

/* A float or double, or a complex number of them; cuComplex has the size of two floats. */
typedef struct { float re, im; } complex_float;
typedef struct { double re, im; } complex_double;

#define CHECK(handle, condition)                                                                   \
    if ((handle) == NULL) return CUSOLVER_STATUS_NOT_INITIALIZED;                                  \
    if (!(condition)) return CUSOLVER_STATUS_INVALID_VALUE;

/* Handles -------------------------------------------------------------------------------------- */

US_EXPORT cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle) {
    if (handle == NULL) return CUSOLVER_STATUS_INVALID_VALUE;
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_ALLOC_FAILED;
}

US_EXPORT cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
    CHECK(handle, true)
    free(handle);
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
    CHECK(handle, true)
    handle->stream = stream;
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnGetStream(cusolverDnHandle_t handle, cudaStream_t *stream) {
    CHECK(handle, stream)
    *stream = handle->stream;
    return CUSOLVER_STATUS_SUCCESS;
}

#define SETTINGS(create, destroy)                                                                  \
    US_EXPORT cusolverStatus_t create(settings_t *made) {                                          \
        if (made == NULL) return CUSOLVER_STATUS_INVALID_VALUE;                                    \
        *made = calloc(1, sizeof **made);                                                          \
        return *made ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_ALLOC_FAILED;                     \
    }                                                                                              \
    US_EXPORT cusolverStatus_t destroy(settings_t settings) {                                      \
        free(settings);                                                                            \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

SETTINGS(cusolverDnCreateParams, cusolverDnDestroyParams)
SETTINGS(cusolverDnCreateGesvdjInfo, cusolverDnDestroyGesvdjInfo)
SETTINGS(cusolverDnCreateSyevjInfo, cusolverDnDestroySyevjInfo)

/* Recording ------------------------------------------------------------------------------------ */

/* Operands of a call; what it writes is unknown afterwards. */
struct operands {
    void *matrix;
    int64_t matrix_elements; /* of all matrices of a batch */
    void *more[3];           /* further outputs; the range that starts there is forgotten */
    int *info;
    int64_t batch;
    bool keeps_matrix; /* reads it only */
};

static void emit(struct us_record *record, const char *api, int type, cusolverDnHandle_t handle,
                 const struct operands *operands, const struct us_library_value *values,
                 size_t count) {
    size_t element = (size_t)us_cuda_type_bits(type) / 8;
    if (!operands->keeps_matrix)
        us_values_forget(operands->matrix, (size_t)operands->matrix_elements * element);
    for (size_t i = 0; i < sizeof operands->more / sizeof *operands->more; i++)
        if (operands->more[i]) us_values_forget_at(operands->more[i]);
    us_values_forget(operands->info, (size_t)operands->batch * sizeof(int));
    record->a = us_address(operands->matrix);
    record->d = us_address(operands->more[0] ? operands->more[0] : operands->matrix);
    us_library_emit(record, api, type, handle->stream, values, count);
}

#define EMIT(api, type, handle, given, ...)                                                        \
    emit(&record, api, type, handle, &(struct operands)given, US_LIBRARY_VALUES(__VA_ARGS__))

#define GROUP(...) {__VA_ARGS__}

/* LAPACK's pivots of a matrix whose rows are in order: 1, 2, 3, ... */
static void identity_pivots(int *pivots, int64_t count) {
    if (pivots == NULL || count <= 0) return;
    size_t bytes = (size_t)count * sizeof *pivots;
    int *order = bytes <= US_VALUE_MAX_BYTES ? malloc(bytes) : NULL;
    if (order == NULL) {
        us_values_forget(pivots, bytes);
        return;
    }
    for (int64_t i = 0; i < count; i++) order[i] = (int)i + 1;
    us_values_write(pivots, order, bytes);
    free(order);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Cholesky, LU, LDL and QR, of one type each ---------------------------------------------------- */

#define DENSE(L, T, code)                                                                          \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrf_bufferSize(                                    \
        cusolverDnHandle_t handle, int uplo, int n, T *a, int lda, int *lwork) {                   \
        (void)uplo, (void)a, (void)lda;                                                            \
        CHECK(handle, lwork && n >= 0)                                                             \
        *lwork = n * BLOCK;                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrf(cusolverDnHandle_t handle, int uplo, int n,    \
                                                    T *a, int lda, T *work, int lwork,             \
                                                    int *info) {                                   \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork;                                                                   \
        CHECK(handle, n >= 0)                                                                      \
        EMIT("cusolverDn" #L "potrf", code, handle,                                                \
             GROUP(a, (int64_t)lda *n, {NULL}, info, 1, false), {"uplo", uplo}, {"n", n},          \
             {"lda", lda});                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrfBatched(                                        \
        cusolverDnHandle_t handle, int uplo, int n, T **a, int lda, int *info, int batch) {        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(handle, n >= 0 && batch >= 0)                                                        \
        EMIT("cusolverDn" #L "potrfBatched", code, handle,                                         \
             GROUP(a, 0, {NULL}, info, batch, true), {"uplo", uplo}, {"n", n}, {"lda", lda},       \
             {"batch", batch});                                                                    \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrs(cusolverDnHandle_t handle, int uplo, int n,    \
                                                    int nrhs, const T *a, int lda, T *b, int ldb,  \
                                                    int *info) {                                   \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(handle, n >= 0 && nrhs >= 0)                                                         \
        EMIT("cusolverDn" #L "potrs", code, handle,                                                \
             GROUP((void *)(uintptr_t)a, 0, {b}, info, 1, true), {"uplo", uplo}, {"n", n},         \
             {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});                                          \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrsBatched(                                        \
        cusolverDnHandle_t handle, int uplo, int n, int nrhs, T **a, int lda, T **b, int ldb,      \
        int *info, int batch) {                                                                    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)b;                                                                                   \
        CHECK(handle, n >= 0 && nrhs >= 0 && batch >= 0)                                           \
        EMIT("cusolverDn" #L "potrsBatched", code, handle,                                         \
             GROUP(a, 0, {NULL}, info, 1, true), {"uplo", uplo}, {"n", n}, {"nrhs", nrhs},         \
             {"lda", lda}, {"ldb", ldb}, {"batch", batch});                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##getrf_bufferSize(                                    \
        cusolverDnHandle_t handle, int m, int n, T *a, int lda, int *lwork) {                      \
        (void)a, (void)lda;                                                                        \
        CHECK(handle, lwork && m >= 0 && n >= 0)                                                   \
        *lwork = m * BLOCK;                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##getrf(cusolverDnHandle_t handle, int m, int n, T *a, \
                                                    int lda, T *work, int *pivots, int *info) {    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work;                                                                                \
        CHECK(handle, m >= 0 && n >= 0)                                                            \
        identity_pivots(pivots, smaller(m, n));                                                    \
        EMIT("cusolverDn" #L "getrf", code, handle,                                                \
             GROUP(a, (int64_t)lda *n, {NULL}, info, 1, false), {"m", m}, {"n", n}, {"lda", lda},  \
             {"pivoted", pivots != NULL});                                                         \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##getrs(                                               \
        cusolverDnHandle_t handle, int trans, int n, int nrhs, const T *a, int lda,                \
        const int *pivots, T *b, int ldb, int *info) {                                             \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)pivots;                                                                              \
        CHECK(handle, n >= 0 && nrhs >= 0)                                                         \
        EMIT("cusolverDn" #L "getrs", code, handle,                                                \
             GROUP((void *)(uintptr_t)a, 0, {b}, info, 1, true), {"trans", trans}, {"n", n},       \
             {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});                                          \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##sytrf_bufferSize(cusolverDnHandle_t handle, int n,   \
                                                               T *a, int lda, int *lwork) {        \
        (void)a, (void)lda;                                                                        \
        CHECK(handle, lwork && n >= 0)                                                             \
        *lwork = n * BLOCK;                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##sytrf(cusolverDnHandle_t handle, int uplo, int n,    \
                                                    T *a, int lda, int *pivots, T *work,           \
                                                    int lwork, int *info) {                        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork;                                                                   \
        CHECK(handle, n >= 0)                                                                      \
        identity_pivots(pivots, n);                                                                \
        EMIT("cusolverDn" #L "sytrf", code, handle,                                                \
             GROUP(a, (int64_t)lda *n, {NULL}, info, 1, false), {"uplo", uplo}, {"n", n},          \
             {"lda", lda});                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##geqrf_bufferSize(                                    \
        cusolverDnHandle_t handle, int m, int n, T *a, int lda, int *lwork) {                      \
        (void)a, (void)lda;                                                                        \
        CHECK(handle, lwork && m >= 0 && n >= 0)                                                   \
        *lwork = n * BLOCK;                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##geqrf(cusolverDnHandle_t handle, int m, int n, T *a, \
                                                    int lda, T *tau, T *work, int lwork,           \
                                                    int *info) {                                   \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork;                                                                   \
        CHECK(handle, m >= 0 && n >= 0)                                                            \
        EMIT("cusolverDn" #L "geqrf", code, handle,                                                \
             GROUP(a, (int64_t)lda *n, {tau}, info, 1, false), {"m", m}, {"n", n}, {"lda", lda});  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

DENSE(S, float, TYPE_S)
DENSE(D, double, TYPE_D)
DENSE(C, complex_float, TYPE_C)
DENSE(Z, complex_double, TYPE_Z)

/* Q of a QR factorization: made (org, ung) and applied (orm, unm). */
#define ORTHOGONAL(generate, apply, T, code)                                                       \
    US_EXPORT cusolverStatus_t cusolverDn##generate##_bufferSize(                                  \
        cusolverDnHandle_t handle, int m, int n, int k, const T *a, int lda, const T *tau,         \
        int *lwork) {                                                                              \
        (void)a, (void)lda, (void)tau;                                                             \
        CHECK(handle, lwork && m >= 0 && n >= 0 && k >= 0)                                         \
        *lwork = n * BLOCK;                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##generate(cusolverDnHandle_t handle, int m, int n,       \
                                                    int k, T *a, int lda, const T *tau, T *work,   \
                                                    int lwork, int *info) {                        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)tau, (void)work, (void)lwork;                                                        \
        CHECK(handle, m >= 0 && n >= 0 && k >= 0)                                                  \
        EMIT("cusolverDn" #generate, code, handle,                                                 \
             GROUP(a, (int64_t)lda *n, {NULL}, info, 1, false), {"m", m}, {"n", n}, {"k", k},      \
             {"lda", lda});                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##apply##_bufferSize(                                     \
        cusolverDnHandle_t handle, int side, int trans, int m, int n, int k, const T *a, int lda,  \
        const T *tau, const T *c, int ldc, int *lwork) {                                           \
        (void)trans, (void)k, (void)a, (void)lda, (void)tau, (void)c, (void)ldc;                   \
        CHECK(handle, lwork && m >= 0 && n >= 0)                                                   \
        *lwork = (side ? m : n) * BLOCK;                                                           \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##apply(                                                  \
        cusolverDnHandle_t handle, int side, int trans, int m, int n, int k, const T *a, int lda,  \
        const T *tau, T *c, int ldc, T *work, int lwork, int *info) {                              \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)tau, (void)work, (void)lwork;                                                        \
        CHECK(handle, m >= 0 && n >= 0 && k >= 0)                                                  \
        EMIT("cusolverDn" #apply, code, handle,                                                    \
             GROUP((void *)(uintptr_t)a, 0, {c}, info, 1, true), {"side", side},                   \
             {"trans", trans}, {"m", m}, {"n", n}, {"k", k}, {"lda", lda}, {"ldc", ldc});          \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

ORTHOGONAL(Sorgqr, Sormqr, float, TYPE_S)
ORTHOGONAL(Dorgqr, Dormqr, double, TYPE_D)
ORTHOGONAL(Cungqr, Cunmqr, complex_float, TYPE_C)
ORTHOGONAL(Zungqr, Zunmqr, complex_double, TYPE_Z)

/* Eigenvalues of symmetric and Hermitian matrices; R is the type of the (real) eigenvalues. ------ */

#define EIGENVALUES(d, j, T, R, code)                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##d##_bufferSize(                                         \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, const T *a, int lda, const R *w,     \
        int *lwork) {                                                                              \
        (void)jobz, (void)uplo, (void)a, (void)lda, (void)w;                                       \
        CHECK(handle, lwork && n >= 0)                                                             \
        *lwork = 1 + 6 * n + 2 * n * n;                                                            \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##d(cusolverDnHandle_t handle, int jobz, int uplo, int n, \
                                             T *a, int lda, R *w, T *work, int lwork, int *info) { \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork;                                                                   \
        CHECK(handle, n >= 0)                                                                      \
        EMIT("cusolverDn" #d, code, handle, GROUP(a, (int64_t)lda *n, {w}, info, 1, false),        \
             {"jobz", jobz}, {"uplo", uplo}, {"n", n}, {"lda", lda});                              \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j##_bufferSize(                                         \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, const T *a, int lda, const R *w,     \
        int *lwork, settings_t settings) {                                                         \
        (void)jobz, (void)uplo, (void)a, (void)lda, (void)w, (void)settings;                       \
        CHECK(handle, lwork && n >= 0)                                                             \
        *lwork = 1 + 6 * n + 2 * n * n;                                                            \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j(cusolverDnHandle_t handle, int jobz, int uplo, int n, \
                                             T *a, int lda, R *w, T *work, int lwork, int *info,   \
                                             settings_t settings) {                                \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork, (void)settings;                                                   \
        CHECK(handle, n >= 0)                                                                      \
        EMIT("cusolverDn" #j, code, handle, GROUP(a, (int64_t)lda *n, {w}, info, 1, false),        \
             {"jobz", jobz}, {"uplo", uplo}, {"n", n}, {"lda", lda});                              \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j##Batched_bufferSize(                                  \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, const T *a, int lda, const R *w,     \
        int *lwork, settings_t settings, int batch) {                                              \
        (void)jobz, (void)uplo, (void)a, (void)lda, (void)w, (void)settings;                       \
        CHECK(handle, lwork && n >= 0 && batch >= 0)                                               \
        *lwork = (1 + 6 * n + 2 * n * n) * batch;                                                  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j##Batched(                                             \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, T *a, int lda, R *w, T *work,        \
        int lwork, int *info, settings_t settings, int batch) {                                    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork, (void)settings;                                                   \
        CHECK(handle, n >= 0 && batch >= 0)                                                        \
        EMIT("cusolverDn" #j "Batched", code, handle,                                              \
             GROUP(a, (int64_t)lda *n *batch, {w}, info, batch, false), {"jobz", jobz},            \
             {"uplo", uplo}, {"n", n}, {"lda", lda}, {"batch", batch});                            \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

EIGENVALUES(Ssyevd, Ssyevj, float, float, TYPE_S)
EIGENVALUES(Dsyevd, Dsyevj, double, double, TYPE_D)
EIGENVALUES(Cheevd, Cheevj, complex_float, float, TYPE_C)
EIGENVALUES(Zheevd, Zheevj, complex_double, double, TYPE_Z)

/* Singular values: by QR (gesvd), by Jacobi (gesvdj), approximate and batched (gesvda). ---------- */

#define SINGULAR_VALUES(L, T, R, code)                                                             \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvd_bufferSize(cusolverDnHandle_t handle, int m,   \
                                                               int n, int *lwork) {                \
        CHECK(handle, lwork && m >= 0 && n >= 0)                                                   \
        *lwork = (int)larger(3 * smaller(m, n) + larger(m, n), 5 * smaller(m, n)) * BLOCK;         \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvd(                                               \
        cusolverDnHandle_t handle, signed char jobu, signed char jobvt, int m, int n, T *a,        \
        int lda, R *s, T *u, int ldu, T *vt, int ldvt, T *work, int lwork, R *rwork, int *info) {  \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork, (void)rwork;                                                      \
        CHECK(handle, m >= 0 && n >= 0)                                                            \
        EMIT("cusolverDn" #L "gesvd", code, handle,                                                \
             GROUP(a, (int64_t)lda *n, {s, u, vt}, info, 1, false), {"jobu", jobu},                \
             {"jobvt", jobvt}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu}, {"ldvt", ldvt});    \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdj_bufferSize(                                   \
        cusolverDnHandle_t handle, int jobz, int econ, int m, int n, const T *a, int lda,          \
        const R *s, const T *u, int ldu, const T *v, int ldv, int *lwork, settings_t settings) {   \
        (void)jobz, (void)econ, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v;          \
        (void)ldv, (void)settings;                                                                 \
        CHECK(handle, lwork && m >= 0 && n >= 0)                                                   \
        *lwork = (int)(2 * larger(m, n) * smaller(m, n) + BLOCK * larger(m, n));                   \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdj(                                              \
        cusolverDnHandle_t handle, int jobz, int econ, int m, int n, T *a, int lda, R *s, T *u,    \
        int ldu, T *v, int ldv, T *work, int lwork, int *info, settings_t settings) {              \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork, (void)settings;                                                   \
        CHECK(handle, m >= 0 && n >= 0)                                                            \
        EMIT("cusolverDn" #L "gesvdj", code, handle,                                               \
             GROUP(a, (int64_t)lda *n, {s, u, v}, info, 1, false), {"jobz", jobz},                 \
             {"econ", econ}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu}, {"ldv", ldv});        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdjBatched_bufferSize(                            \
        cusolverDnHandle_t handle, int jobz, int m, int n, const T *a, int lda, const R *s,        \
        const T *u, int ldu, const T *v, int ldv, int *lwork, settings_t settings, int batch) {    \
        (void)jobz, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v, (void)ldv;           \
        (void)settings;                                                                            \
        CHECK(handle, lwork && m >= 0 && n >= 0 && batch >= 0)                                     \
        *lwork = (int)(2 * larger(m, n) * smaller(m, n)) * batch;                                  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdjBatched(                                       \
        cusolverDnHandle_t handle, int jobz, int m, int n, T *a, int lda, R *s, T *u, int ldu,     \
        T *v, int ldv, T *work, int lwork, int *info, settings_t settings, int batch) {            \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)work, (void)lwork, (void)settings;                                                   \
        CHECK(handle, m >= 0 && n >= 0 && batch >= 0)                                              \
        EMIT("cusolverDn" #L "gesvdjBatched", code, handle,                                        \
             GROUP(a, (int64_t)lda *n *batch, {s, u, v}, info, batch, false), {"jobz", jobz},      \
             {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu}, {"ldv", ldv}, {"batch", batch});      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdaStridedBatched_bufferSize(                     \
        cusolverDnHandle_t handle, int jobz, int rank, int m, int n, const T *a, int lda,          \
        long long stride_a, const R *s, long long stride_s, const T *u, int ldu,                   \
        long long stride_u, const T *v, int ldv, long long stride_v, int *lwork, int batch) {      \
        (void)jobz, (void)rank, (void)a, (void)lda, (void)stride_a, (void)s, (void)stride_s;       \
        (void)u, (void)ldu, (void)stride_u, (void)v, (void)ldv, (void)stride_v;                    \
        CHECK(handle, lwork && m >= 0 && n >= 0 && batch >= 0)                                     \
        *lwork = (int)(2 * larger(m, n) * smaller(m, n)) * batch;                                  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdaStridedBatched(                                \
        cusolverDnHandle_t handle, int jobz, int rank, int m, int n, const T *a, int lda,          \
        long long stride_a, R *s, long long stride_s, T *u, int ldu, long long stride_u, T *v,     \
        int ldv, long long stride_v, T *work, int lwork, int *info, double *residuals,             \
        int batch) {                                                                               \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)stride_a, (void)stride_s, (void)stride_u, (void)stride_v, (void)work, (void)lwork;   \
        CHECK(handle, m >= 0 && n >= 0 && batch >= 0)                                              \
        for (int i = 0; residuals && i < batch; i++) residuals[i] = 0; /* memory of the host */    \
        EMIT("cusolverDn" #L "gesvdaStridedBatched", code, handle,                                 \
             GROUP((void *)(uintptr_t)a, 0, {s, u, v}, info, batch, true), {"jobz", jobz},         \
             {"rank", rank}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu}, {"ldv", ldv},         \
             {"batch", batch});                                                                    \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

SINGULAR_VALUES(S, float, float, TYPE_S)
SINGULAR_VALUES(D, double, double, TYPE_D)
SINGULAR_VALUES(C, complex_float, float, TYPE_C)
SINGULAR_VALUES(Z, complex_double, double, TYPE_Z)

#define HARMLESS_SETTING(name, type)                                                               \
    US_EXPORT cusolverStatus_t name(settings_t settings, type value) {                             \
        (void)value;                                                                               \
        return settings ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;                 \
    }

HARMLESS_SETTING(cusolverDnXgesvdjSetTolerance, double)
HARMLESS_SETTING(cusolverDnXgesvdjSetMaxSweeps, int)
HARMLESS_SETTING(cusolverDnXgesvdjSetSortEig, int)
HARMLESS_SETTING(cusolverDnXsyevjSetTolerance, double)
HARMLESS_SETTING(cusolverDnXsyevjSetSortEig, int)

/* The 64-bit interface, of any type --------------------------------------------------------------- */

static cusolverStatus_t workspace(int type, int64_t elements, size_t *device_bytes,
                                  size_t *host_bytes) {
    *device_bytes = (size_t)elements * (size_t)us_cuda_type_bits(type) / 8;
    *host_bytes = 0;
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXpotrf_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int uplo, int64_t n, int type_a, const void *a,
    int64_t lda, int compute_type, size_t *device_bytes, size_t *host_bytes) {
    (void)settings, (void)uplo, (void)a, (void)lda, (void)compute_type;
    CHECK(handle, device_bytes && host_bytes && n >= 0)
    return workspace(type_a, n * BLOCK, device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, settings_t settings,
                                            int uplo, int64_t n, int type_a, void *a, int64_t lda,
                                            int compute_type, void *device_buffer,
                                            size_t device_bytes, void *host_buffer,
                                            size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)compute_type, (void)device_buffer, (void)device_bytes;
    (void)host_buffer, (void)host_bytes;
    CHECK(handle, n >= 0)
    EMIT("cusolverDnXpotrf", type_a, handle, GROUP(a, lda *n, {NULL}, info, 1, false),
         {"uplo", uplo}, {"n", n}, {"lda", lda});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXpotrs(cusolverDnHandle_t handle, settings_t settings,
                                            int uplo, int64_t n, int64_t nrhs, int type_a,
                                            const void *a, int64_t lda, int type_b, void *b,
                                            int64_t ldb, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)type_b;
    CHECK(handle, n >= 0 && nrhs >= 0)
    EMIT("cusolverDnXpotrs", type_a, handle,
         GROUP((void *)(uintptr_t)a, 0, {b}, info, 1, true), {"uplo", uplo}, {"n", n},
         {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXsytrs_bufferSize(
    cusolverDnHandle_t handle, int uplo, int64_t n, int64_t nrhs, int type_a, const void *a,
    int64_t lda, const int64_t *pivots, int type_b, void *b, int64_t ldb, size_t *device_bytes,
    size_t *host_bytes) {
    (void)uplo, (void)a, (void)lda, (void)pivots, (void)type_b, (void)b, (void)ldb;
    CHECK(handle, device_bytes && host_bytes && n >= 0 && nrhs >= 0)
    return workspace(type_a, n * nrhs, device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXsytrs(cusolverDnHandle_t handle, int uplo, int64_t n,
                                            int64_t nrhs, int type_a, const void *a, int64_t lda,
                                            const int64_t *pivots, int type_b, void *b,
                                            int64_t ldb, void *device_buffer, size_t device_bytes,
                                            void *host_buffer, size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)pivots, (void)type_b, (void)device_buffer, (void)device_bytes;
    (void)host_buffer, (void)host_bytes;
    CHECK(handle, n >= 0 && nrhs >= 0)
    EMIT("cusolverDnXsytrs", type_a, handle,
         GROUP((void *)(uintptr_t)a, 0, {b}, info, 1, true), {"uplo", uplo}, {"n", n},
         {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXgeqrf_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int64_t m, int64_t n, int type_a,
    const void *a, int64_t lda, int type_tau, const void *tau, int compute_type,
    size_t *device_bytes, size_t *host_bytes) {
    (void)settings, (void)a, (void)lda, (void)type_tau, (void)tau, (void)compute_type;
    CHECK(handle, device_bytes && host_bytes && m >= 0 && n >= 0)
    return workspace(type_a, n * BLOCK, device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, settings_t settings,
                                            int64_t m, int64_t n, int type_a, void *a, int64_t lda,
                                            int type_tau, void *tau, int compute_type,
                                            void *device_buffer, size_t device_bytes,
                                            void *host_buffer, size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)type_tau, (void)compute_type, (void)device_buffer, (void)device_bytes;
    (void)host_buffer, (void)host_bytes;
    CHECK(handle, m >= 0 && n >= 0)
    EMIT("cusolverDnXgeqrf", type_a, handle, GROUP(a, lda *n, {tau}, info, 1, false), {"m", m},
         {"n", n}, {"lda", lda});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXsyevd_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int jobz, int uplo, int64_t n, int type_a,
    const void *a, int64_t lda, int type_w, const void *w, int compute_type, size_t *device_bytes,
    size_t *host_bytes) {
    (void)settings, (void)jobz, (void)uplo, (void)a, (void)lda, (void)type_w, (void)w;
    (void)compute_type;
    CHECK(handle, device_bytes && host_bytes && n >= 0)
    return workspace(type_a, 1 + 6 * n + 2 * n * n, device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, settings_t settings,
                                            int jobz, int uplo, int64_t n, int type_a, void *a,
                                            int64_t lda, int type_w, void *w, int compute_type,
                                            void *device_buffer, size_t device_bytes,
                                            void *host_buffer, size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)type_w, (void)compute_type, (void)device_buffer, (void)device_bytes;
    (void)host_buffer, (void)host_bytes;
    CHECK(handle, n >= 0)
    EMIT("cusolverDnXsyevd", type_a, handle, GROUP(a, lda *n, {w}, info, 1, false),
         {"jobz", jobz}, {"uplo", uplo}, {"n", n}, {"lda", lda});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXsyevBatched_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int jobz, int uplo, int64_t n, int type_a,
    const void *a, int64_t lda, int type_w, const void *w, int compute_type, size_t *device_bytes,
    size_t *host_bytes, int64_t batch) {
    (void)settings, (void)jobz, (void)uplo, (void)a, (void)lda, (void)type_w, (void)w;
    (void)compute_type;
    CHECK(handle, device_bytes && host_bytes && n >= 0 && batch >= 0)
    return workspace(type_a, (1 + 6 * n + 2 * n * n) * batch, device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXsyevBatched(
    cusolverDnHandle_t handle, settings_t settings, int jobz, int uplo, int64_t n, int type_a,
    void *a, int64_t lda, int type_w, void *w, int compute_type, void *device_buffer,
    size_t device_bytes, void *host_buffer, size_t host_bytes, int *info, int64_t batch) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)type_w, (void)compute_type, (void)device_buffer, (void)device_bytes;
    (void)host_buffer, (void)host_bytes;
    CHECK(handle, n >= 0 && batch >= 0)
    EMIT("cusolverDnXsyevBatched", type_a, handle,
         GROUP(a, lda *n *batch, {w}, info, batch, false), {"jobz", jobz}, {"uplo", uplo},
         {"n", n}, {"lda", lda}, {"batch", batch});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXgeev_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int jobvl, int jobvr, int64_t n, int type_a,
    const void *a, int64_t lda, int type_w, const void *w, int type_vl, const void *vl,
    int64_t ldvl, int type_vr, const void *vr, int64_t ldvr, int compute_type,
    size_t *device_bytes, size_t *host_bytes) {
    (void)settings, (void)jobvl, (void)jobvr, (void)a, (void)lda, (void)type_w, (void)w;
    (void)type_vl, (void)vl, (void)ldvl, (void)type_vr, (void)vr, (void)ldvr, (void)compute_type;
    CHECK(handle, device_bytes && host_bytes && n >= 0)
    workspace(type_a, 4 * n + n * BLOCK, device_bytes, host_bytes);
    *host_bytes = *device_bytes; /* part of the algorithm runs on the host */
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXgeev(cusolverDnHandle_t handle, settings_t settings,
                                           int jobvl, int jobvr, int64_t n, int type_a, void *a,
                                           int64_t lda, int type_w, void *w, int type_vl, void *vl,
                                           int64_t ldvl, int type_vr, void *vr, int64_t ldvr,
                                           int compute_type, void *device_buffer,
                                           size_t device_bytes, void *host_buffer,
                                           size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)type_w, (void)type_vl, (void)type_vr, (void)compute_type;
    (void)device_buffer, (void)device_bytes, (void)host_buffer, (void)host_bytes;
    CHECK(handle, n >= 0)
    EMIT("cusolverDnXgeev", type_a, handle, GROUP(a, lda *n, {w, vl, vr}, info, 1, false),
         {"jobvl", jobvl}, {"jobvr", jobvr}, {"n", n}, {"lda", lda}, {"ldvl", ldvl},
         {"ldvr", ldvr});
    return CUSOLVER_STATUS_SUCCESS;
}
