/*
 * cuSOLVER's dense part, as torch.linalg calls it: factorizations, solvers, eigenvalues, singular
 * values. A call is recorded with its shape and computes nothing. Status words (devInfo) read as 0,
 * success; pivots are those of a matrix that needs no exchange, since torch turns them into a
 * permutation.
 *
 * Workspaces are a guess: what LAPACK's blocked algorithms of the same name need, with blocks of 64
 * columns. The legacy functions count them in elements, the 64-bit ones in bytes.
 *
 * Arguments are checked before anything is recorded; a call that is refused changes nothing.
 */
#include <limits.h>
#include <stdlib.h>

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

/* Checks --------------------------------------------------------------------------------------- */

/* The rules of the cuSOLVER guide ("cuSolverDN: dense LAPACK Function Reference"): sizes are not
   negative, a leading dimension is at least max(1, rows), an enumeration has one of its values.
   What the guide leaves open follows LAPACK's routine of the same name. A pointer is required where
   there is something behind it: empty matrices may have none. */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static bool is_matrix(int64_t rows, int64_t columns, int64_t leading) {
    return rows >= 0 && columns >= 0 && leading >= larger(1, rows);
}

/* Of two values: fill mode lower or upper, side left or right, vectors no or yes. */
static bool is_choice(int value) { return value == 0 || value == 1; }

static bool is_operation(int value) { return value >= 0 && value <= 2; /* N, T, C */ }

static bool is_type(int type) {
    return type == TYPE_S || type == TYPE_D || type == TYPE_C || type == TYPE_Z;
}

static bool all_given(const void *const *pointers, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (pointers[i] == NULL) return false;
    return true;
}

#define GIVEN(...)                                                                                 \
    all_given((const void *const[]){__VA_ARGS__},                                                  \
              sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))

/* Sizes ---------------------------------------------------------------------------------------- */

/* Sums and products of sizes that are not negative; INT64_MAX when they do not fit. */
static int64_t plus(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* LAPACK's syevd and heevd with vectors. */
static int64_t eigenvalue_elements(int64_t n) {
    return plus(plus(1, times(6, n)), times(2, times(n, n)));
}

/* The workspace of an interface that counts its elements in an int. One that does not fit has no
   answer there: the 64-bit interface is for such matrices. */
static cusolverStatus_t elements_of_workspace(int64_t elements, int *lwork) {
    if (elements > INT_MAX) return CUSOLVER_STATUS_INVALID_VALUE;
    *lwork = (int)elements;
    return CUSOLVER_STATUS_SUCCESS;
}

/* Recording ------------------------------------------------------------------------------------ */

/* Operands of a call; what it writes is unknown afterwards. */
struct output {
    void *start;
    int64_t bytes; /* of the whole batch; 0 for an array of pointers */
};

struct operands {
    const void *matrix;
    struct output outputs[4]; /* the first is the record's result */
    int *info;
    int64_t info_count;
};

static void emit(struct us_record *record, const char *api, int type, cusolverDnHandle_t handle,
                 const struct operands *operands, const struct us_library_value *values,
                 size_t count) {
    for (size_t i = 0; i < sizeof operands->outputs / sizeof *operands->outputs; i++) {
        const struct output *output = &operands->outputs[i];
        if (output->start) us_values_forget(output->start, (size_t)output->bytes);
    }
    us_values_forget(operands->info, (size_t)operands->info_count * sizeof(int));
    record->a = us_address(operands->matrix);
    record->d = us_address(operands->outputs[0].start);
    us_library_emit(record, api, type, handle->stream, values, count);
}

#define EMIT(api, type, handle, given, ...)                                                        \
    emit(&record, api, type, handle, &(struct operands)given, US_LIBRARY_VALUES(__VA_ARGS__))

#define GROUP(...) {__VA_ARGS__}

#define OUT(pointer, elements) {pointer, times(elements, sizeof *(pointer))}

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

/* Cholesky, LU, LDL and QR, of one type each --------------------------------------------------- */

#define DENSE(L, T, code)                                                                          \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrf_bufferSize(                                    \
        cusolverDnHandle_t handle, int uplo, int n, T *a, int lda, int *lwork) {                   \
        (void)a;                                                                                   \
        CHECK(handle, lwork && is_choice(uplo) && is_matrix(n, n, lda))                            \
        return elements_of_workspace(times(n, BLOCK), lwork);                                      \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrf(cusolverDnHandle_t handle, int uplo, int n,    \
                                                    T *a, int lda, T *work, int lwork,             \
                                                    int *info) {                                   \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, info && is_choice(uplo) && is_matrix(n, n, lda))                             \
        CHECK(handle, n == 0 || GIVEN(a, work))                                                    \
        EMIT("cusolverDn" #L "potrf", code, handle,                                                \
             GROUP(a, {OUT(a, times(lda, n))}, info, 1), {"uplo", uplo}, {"n", n}, {"lda", lda});  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrfBatched(                                        \
        cusolverDnHandle_t handle, int uplo, int n, T **a, int lda, int *info, int batch) {        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(handle, is_choice(uplo) && is_matrix(n, n, lda) && batch >= 0)                       \
        CHECK(handle, batch == 0 || (info && (n == 0 || a)))                                       \
        us_forget_pointer_array(a, batch, (size_t)times(times(lda, n), sizeof **a));               \
        EMIT("cusolverDn" #L "potrfBatched", code, handle, GROUP(a, {{a, 0}}, info, batch),        \
             {"uplo", uplo}, {"n", n}, {"lda", lda}, {"batch", batch});                            \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrs(cusolverDnHandle_t handle, int uplo, int n,    \
                                                    int nrhs, const T *a, int lda, T *b, int ldb,  \
                                                    int *info) {                                   \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(handle, info && is_choice(uplo))                                                     \
        CHECK(handle, is_matrix(n, n, lda) && is_matrix(n, nrhs, ldb))                             \
        CHECK(handle, n == 0 || nrhs == 0 || GIVEN(a, b))                                          \
        EMIT("cusolverDn" #L "potrs", code, handle,                                                \
             GROUP(a, {OUT(b, times(ldb, nrhs))}, info, 1), {"uplo", uplo}, {"n", n},              \
             {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});                                          \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    /* One right-hand side only, as the guide says of potrsBatched. */                             \
    US_EXPORT cusolverStatus_t cusolverDn##L##potrsBatched(                                        \
        cusolverDnHandle_t handle, int uplo, int n, int nrhs, T **a, int lda, T **b, int ldb,      \
        int *info, int batch) {                                                                    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(handle, is_choice(uplo) && is_matrix(n, n, lda) && is_matrix(n, nrhs, ldb))          \
        CHECK(handle, nrhs == 1 && batch >= 0)                                                     \
        CHECK(handle, batch == 0 || (info && (n == 0 || GIVEN(a, b))))                             \
        us_forget_pointer_array(b, batch, (size_t)times(ldb, sizeof **b));                         \
        EMIT("cusolverDn" #L "potrsBatched", code, handle, GROUP(a, {{b, 0}}, info, 1),            \
             {"uplo", uplo}, {"n", n}, {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb},                 \
             {"batch", batch});                                                                    \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##getrf_bufferSize(                                    \
        cusolverDnHandle_t handle, int m, int n, T *a, int lda, int *lwork) {                      \
        (void)a;                                                                                   \
        CHECK(handle, lwork && is_matrix(m, n, lda))                                               \
        return elements_of_workspace(times(m, BLOCK), lwork);                                      \
    }                                                                                              \
    /* Without an array of pivots there is no pivoting. */                                         \
    US_EXPORT cusolverStatus_t cusolverDn##L##getrf(cusolverDnHandle_t handle, int m, int n, T *a, \
                                                    int lda, T *work, int *pivots, int *info) {    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        CHECK(handle, info && is_matrix(m, n, lda))                                                \
        CHECK(handle, m == 0 || n == 0 || GIVEN(a, work))                                          \
        identity_pivots(pivots, smaller(m, n));                                                    \
        EMIT("cusolverDn" #L "getrf", code, handle,                                                \
             GROUP(a, {OUT(a, times(lda, n))}, info, 1), {"m", m}, {"n", n}, {"lda", lda},         \
             {"pivoted", pivots != NULL});                                                         \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##getrs(                                               \
        cusolverDnHandle_t handle, int trans, int n, int nrhs, const T *a, int lda,                \
        const int *pivots, T *b, int ldb, int *info) {                                             \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)pivots;                                                                              \
        CHECK(handle, info && is_operation(trans))                                                 \
        CHECK(handle, is_matrix(n, n, lda) && is_matrix(n, nrhs, ldb))                             \
        CHECK(handle, n == 0 || nrhs == 0 || GIVEN(a, b))                                          \
        EMIT("cusolverDn" #L "getrs", code, handle,                                                \
             GROUP(a, {OUT(b, times(ldb, nrhs))}, info, 1), {"trans", trans}, {"n", n},            \
             {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});                                          \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##sytrf_bufferSize(cusolverDnHandle_t handle, int n,   \
                                                               T *a, int lda, int *lwork) {        \
        (void)a;                                                                                   \
        CHECK(handle, lwork && is_matrix(n, n, lda))                                               \
        return elements_of_workspace(times(n, BLOCK), lwork);                                      \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##sytrf(cusolverDnHandle_t handle, int uplo, int n,    \
                                                    T *a, int lda, int *pivots, T *work,           \
                                                    int lwork, int *info) {                        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, info && is_choice(uplo) && is_matrix(n, n, lda))                             \
        CHECK(handle, n == 0 || GIVEN(a, work))                                                    \
        identity_pivots(pivots, n);                                                                \
        EMIT("cusolverDn" #L "sytrf", code, handle,                                                \
             GROUP(a, {OUT(a, times(lda, n))}, info, 1), {"uplo", uplo}, {"n", n}, {"lda", lda});  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##geqrf_bufferSize(                                    \
        cusolverDnHandle_t handle, int m, int n, T *a, int lda, int *lwork) {                      \
        (void)a;                                                                                   \
        CHECK(handle, lwork && is_matrix(m, n, lda))                                               \
        return elements_of_workspace(times(n, BLOCK), lwork);                                      \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##geqrf(cusolverDnHandle_t handle, int m, int n, T *a, \
                                                    int lda, T *tau, T *work, int lwork,           \
                                                    int *info) {                                   \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, info && is_matrix(m, n, lda))                                                \
        CHECK(handle, m == 0 || n == 0 || GIVEN(a, tau, work))                                     \
        EMIT("cusolverDn" #L "geqrf", code, handle,                                                \
             GROUP(a, {OUT(tau, smaller(m, n)), OUT(a, times(lda, n))}, info, 1), {"m", m},        \
             {"n", n}, {"lda", lda});                                                              \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

DENSE(S, float, TYPE_S)
DENSE(D, double, TYPE_D)
DENSE(C, complex_float, TYPE_C)
DENSE(Z, complex_double, TYPE_Z)

/* Q of a QR factorization: made (org, ung) and applied (orm, unm). Q has at most as many columns as
   rows and is a product of k reflections, no more than it has columns. */
static bool is_generated(int m, int n, int k, int lda) {
    return is_matrix(m, n, lda) && k >= 0 && k <= n && n <= m;
}

static bool is_applied(int side, int trans, int m, int n, int k, int lda, int ldc) {
    int order = side ? n : m;
    return is_choice(side) && is_operation(trans) && is_matrix(m, n, ldc) &&
           is_matrix(order, k, lda) && k <= order;
}

#define ORTHOGONAL(generate, apply, T, code)                                                       \
    US_EXPORT cusolverStatus_t cusolverDn##generate##_bufferSize(                                  \
        cusolverDnHandle_t handle, int m, int n, int k, const T *a, int lda, const T *tau,         \
        int *lwork) {                                                                              \
        (void)a, (void)tau;                                                                        \
        CHECK(handle, lwork && is_generated(m, n, k, lda))                                         \
        return elements_of_workspace(times(n, BLOCK), lwork);                                      \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##generate(cusolverDnHandle_t handle, int m, int n,       \
                                                    int k, T *a, int lda, const T *tau, T *work,   \
                                                    int lwork, int *info) {                        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, info && is_generated(m, n, k, lda))                                          \
        CHECK(handle, n == 0 || (GIVEN(a, work) && (k == 0 || tau)))                               \
        EMIT("cusolverDn" #generate, code, handle, GROUP(a, {OUT(a, times(lda, n))}, info, 1),     \
             {"m", m}, {"n", n}, {"k", k}, {"lda", lda});                                          \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##apply##_bufferSize(                                     \
        cusolverDnHandle_t handle, int side, int trans, int m, int n, int k, const T *a, int lda,  \
        const T *tau, const T *c, int ldc, int *lwork) {                                           \
        (void)a, (void)tau, (void)c;                                                               \
        CHECK(handle, lwork && is_applied(side, trans, m, n, k, lda, ldc))                         \
        return elements_of_workspace(times(side ? m : n, BLOCK), lwork);                           \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##apply(                                                  \
        cusolverDnHandle_t handle, int side, int trans, int m, int n, int k, const T *a, int lda,  \
        const T *tau, T *c, int ldc, T *work, int lwork, int *info) {                              \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, info && is_applied(side, trans, m, n, k, lda, ldc))                          \
        CHECK(handle, m == 0 || n == 0 || k == 0 || GIVEN(a, tau, c, work))                        \
        EMIT("cusolverDn" #apply, code, handle, GROUP(a, {OUT(c, times(ldc, n))}, info, 1),        \
             {"side", side}, {"trans", trans}, {"m", m}, {"n", n}, {"k", k}, {"lda", lda},         \
             {"ldc", ldc});                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

ORTHOGONAL(Sorgqr, Sormqr, float, TYPE_S)
ORTHOGONAL(Dorgqr, Dormqr, double, TYPE_D)
ORTHOGONAL(Cungqr, Cunmqr, complex_float, TYPE_C)
ORTHOGONAL(Zungqr, Zunmqr, complex_double, TYPE_Z)

/* Eigenvalues of symmetric and Hermitian matrices; R is the type of the (real) eigenvalues. ----- */

static bool is_symmetric(int jobz, int uplo, int64_t n, int64_t lda) {
    return is_choice(jobz) && is_choice(uplo) && is_matrix(n, n, lda);
}

#define EIGENVALUES(d, j, T, R, code)                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##d##_bufferSize(                                         \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, const T *a, int lda, const R *w,     \
        int *lwork) {                                                                              \
        (void)a, (void)w;                                                                          \
        CHECK(handle, lwork && is_symmetric(jobz, uplo, n, lda))                                   \
        return elements_of_workspace(eigenvalue_elements(n), lwork);                               \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##d(cusolverDnHandle_t handle, int jobz, int uplo, int n, \
                                             T *a, int lda, R *w, T *work, int lwork, int *info) { \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, info && is_symmetric(jobz, uplo, n, lda))                                    \
        CHECK(handle, n == 0 || GIVEN(a, w, work))                                                 \
        EMIT("cusolverDn" #d, code, handle,                                                        \
             GROUP(a, {OUT(w, n), OUT(a, times(lda, n))}, info, 1), {"jobz", jobz},                \
             {"uplo", uplo}, {"n", n}, {"lda", lda});                                              \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j##_bufferSize(                                         \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, const T *a, int lda, const R *w,     \
        int *lwork, settings_t settings) {                                                         \
        (void)a, (void)w;                                                                          \
        CHECK(handle, GIVEN(lwork, settings) && is_symmetric(jobz, uplo, n, lda))                  \
        return elements_of_workspace(eigenvalue_elements(n), lwork);                               \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j(cusolverDnHandle_t handle, int jobz, int uplo, int n, \
                                             T *a, int lda, R *w, T *work, int lwork, int *info,   \
                                             settings_t settings) {                                \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, GIVEN(info, settings) && is_symmetric(jobz, uplo, n, lda))                   \
        CHECK(handle, n == 0 || GIVEN(a, w, work))                                                 \
        EMIT("cusolverDn" #j, code, handle,                                                        \
             GROUP(a, {OUT(w, n), OUT(a, times(lda, n))}, info, 1), {"jobz", jobz},                \
             {"uplo", uplo}, {"n", n}, {"lda", lda});                                              \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j##Batched_bufferSize(                                  \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, const T *a, int lda, const R *w,     \
        int *lwork, settings_t settings, int batch) {                                              \
        (void)a, (void)w;                                                                          \
        CHECK(handle, GIVEN(lwork, settings) && is_symmetric(jobz, uplo, n, lda) && batch >= 0)    \
        return elements_of_workspace(times(eigenvalue_elements(n), batch), lwork);                 \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##j##Batched(                                             \
        cusolverDnHandle_t handle, int jobz, int uplo, int n, T *a, int lda, R *w, T *work,        \
        int lwork, int *info, settings_t settings, int batch) {                                    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, settings && is_symmetric(jobz, uplo, n, lda) && batch >= 0)                  \
        CHECK(handle, batch == 0 || (info && (n == 0 || GIVEN(a, w, work))))                       \
        EMIT("cusolverDn" #j "Batched", code, handle,                                              \
             GROUP(a,                                                                              \
                   {OUT(w, times(n, batch)), OUT(a, times(times(lda, n), batch))},                 \
                   info, batch),                                                                   \
             {"jobz", jobz}, {"uplo", uplo}, {"n", n}, {"lda", lda}, {"batch", batch});            \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }

EIGENVALUES(Ssyevd, Ssyevj, float, float, TYPE_S)
EIGENVALUES(Dsyevd, Dsyevj, double, double, TYPE_D)
EIGENVALUES(Cheevd, Cheevj, complex_float, float, TYPE_C)
EIGENVALUES(Zheevd, Zheevj, complex_double, double, TYPE_Z)

/* Singular values: by QR (gesvd), by Jacobi (gesvdj), approximate and batched (gesvda). --------- */

/* Of LAPACK's gesvd: all vectors, the first min(m, n), overwrite A with them, none. */
static bool is_vector_job(signed char job) {
    return job == 'A' || job == 'S' || job == 'O' || job == 'N';
}

/* A with its two matrices of vectors: U of m rows, V (or its transpose) of up to n. */
static bool is_decomposed(int m, int n, int lda, int ldu, int ldv) {
    return is_matrix(m, n, lda) && ldu >= larger(1, m) && ldv >= larger(1, n);
}

/* The guide: gesvdjBatched takes matrices of up to 32 x 32. */
static bool is_small_decomposed(int jobz, int m, int n, int lda, int ldu, int ldv) {
    return is_choice(jobz) && is_decomposed(m, n, lda, ldu, ldv) && m <= 32 && n <= 32;
}

/* The guide: gesvda is for tall matrices, its strides leave room for a matrix of `rank` vectors. */
static bool is_approximated(int jobz, int rank, int m, int n, int lda, long long stride_a,
                            long long stride_s, int ldu, long long stride_u, int ldv,
                            long long stride_v, int batch) {
    bool strides = stride_a >= times(lda, n) && stride_s >= rank &&
                   (jobz == 0 || (stride_u >= times(ldu, rank) && stride_v >= times(ldv, rank)));
    return is_choice(jobz) && is_decomposed(m, n, lda, ldu, ldv) && m >= n && rank >= 0 &&
           rank <= n && batch >= 0 && (batch <= 1 || strides);
}

#define SINGULAR_VALUES(L, T, R, code)                                                             \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvd_bufferSize(cusolverDnHandle_t handle, int m,   \
                                                               int n, int *lwork) {                \
        CHECK(handle, lwork && n >= 0 && m >= n)                                                   \
        return elements_of_workspace(times(larger(plus(times(3, n), m), times(5, n)), BLOCK),      \
                                     lwork);                                                       \
    }                                                                                              \
    /* The guide: only m >= n; the two jobs cannot both overwrite A. */                            \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvd(                                               \
        cusolverDnHandle_t handle, signed char jobu, signed char jobvt, int m, int n, T *a,        \
        int lda, R *s, T *u, int ldu, T *vt, int ldvt, T *work, int lwork, R *rwork, int *info) {  \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork, (void)rwork;                                                                  \
        CHECK(handle, is_vector_job(jobu) && is_vector_job(jobvt))                                 \
        CHECK(handle, jobu != 'O' || jobvt != 'O')                                                 \
        CHECK(handle, info && is_decomposed(m, n, lda, ldu, ldvt) && m >= n)                       \
        CHECK(handle, n == 0 || GIVEN(a, s, work))                                                 \
        CHECK(handle, n == 0 || ((u || (jobu != 'A' && jobu != 'S')) &&                            \
                                 (vt || (jobvt != 'A' && jobvt != 'S'))))                          \
        EMIT("cusolverDn" #L "gesvd", code, handle,                                                \
             GROUP(a,                                                                              \
                   {OUT(s, n), OUT(u, times(ldu, jobu == 'A' ? m : n)), OUT(vt, times(ldvt, n)),   \
                    OUT(a, times(lda, n))},                                                        \
                   info, 1),                                                                       \
             {"jobu", jobu}, {"jobvt", jobvt}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu},     \
             {"ldvt", ldvt});                                                                      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdj_bufferSize(                                   \
        cusolverDnHandle_t handle, int jobz, int econ, int m, int n, const T *a, int lda,          \
        const R *s, const T *u, int ldu, const T *v, int ldv, int *lwork, settings_t settings) {   \
        (void)a, (void)s, (void)u, (void)v;                                                        \
        CHECK(handle, GIVEN(lwork, settings) && is_choice(jobz) && is_choice(econ))                \
        CHECK(handle, is_decomposed(m, n, lda, ldu, ldv))                                          \
        int64_t block = times(BLOCK, larger(m, n));                                                \
        return elements_of_workspace(plus(times(2, times(m, n)), block), lwork);                   \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdj(                                              \
        cusolverDnHandle_t handle, int jobz, int econ, int m, int n, T *a, int lda, R *s, T *u,    \
        int ldu, T *v, int ldv, T *work, int lwork, int *info, settings_t settings) {              \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, GIVEN(info, settings) && is_choice(jobz) && is_choice(econ))                 \
        CHECK(handle, is_decomposed(m, n, lda, ldu, ldv))                                          \
        CHECK(handle, m == 0 || n == 0 || (GIVEN(a, s, work) && (jobz == 0 || GIVEN(u, v))))       \
        int64_t vectors = econ ? smaller(m, n) : larger(m, n);                                     \
        EMIT("cusolverDn" #L "gesvdj", code, handle,                                               \
             GROUP(a,                                                                              \
                   {OUT(s, smaller(m, n)), OUT(u, times(ldu, smaller(m, vectors))),                \
                    OUT(v, times(ldv, smaller(n, vectors))), OUT(a, times(lda, n))},               \
                   info, 1),                                                                       \
             {"jobz", jobz}, {"econ", econ}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu},       \
             {"ldv", ldv});                                                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdjBatched_bufferSize(                            \
        cusolverDnHandle_t handle, int jobz, int m, int n, const T *a, int lda, const R *s,        \
        const T *u, int ldu, const T *v, int ldv, int *lwork, settings_t settings, int batch) {    \
        (void)a, (void)s, (void)u, (void)v;                                                        \
        CHECK(handle, GIVEN(lwork, settings) && batch >= 0)                                        \
        CHECK(handle, is_small_decomposed(jobz, m, n, lda, ldu, ldv))                              \
        return elements_of_workspace(times(2 * m * n, batch), lwork);                              \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdjBatched(                                       \
        cusolverDnHandle_t handle, int jobz, int m, int n, T *a, int lda, R *s, T *u, int ldu,     \
        T *v, int ldv, T *work, int lwork, int *info, settings_t settings, int batch) {            \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, settings && batch >= 0 && is_small_decomposed(jobz, m, n, lda, ldu, ldv))    \
        CHECK(handle, batch == 0 || info)                                                          \
        CHECK(handle, batch == 0 || m == 0 || n == 0 ||                                            \
                          (GIVEN(a, s, work) && (jobz == 0 || GIVEN(u, v))))                       \
        EMIT("cusolverDn" #L "gesvdjBatched", code, handle,                                        \
             GROUP(a,                                                                              \
                   {OUT(s, times(smaller(m, n), batch)), OUT(u, times(times(ldu, m), batch)),      \
                    OUT(v, times(times(ldv, n), batch)), OUT(a, times(times(lda, n), batch))},     \
                   info, batch),                                                                   \
             {"jobz", jobz}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu}, {"ldv", ldv},         \
             {"batch", batch});                                                                    \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdaStridedBatched_bufferSize(                     \
        cusolverDnHandle_t handle, int jobz, int rank, int m, int n, const T *a, int lda,          \
        long long stride_a, const R *s, long long stride_s, const T *u, int ldu,                   \
        long long stride_u, const T *v, int ldv, long long stride_v, int *lwork, int batch) {      \
        (void)a, (void)s, (void)u, (void)v;                                                        \
        CHECK(handle, lwork && is_approximated(jobz, rank, m, n, lda, stride_a, stride_s, ldu,     \
                                               stride_u, ldv, stride_v, batch))                    \
        return elements_of_workspace(times(times(2, times(m, n)), batch), lwork);                  \
    }                                                                                              \
    US_EXPORT cusolverStatus_t cusolverDn##L##gesvdaStridedBatched(                                \
        cusolverDnHandle_t handle, int jobz, int rank, int m, int n, const T *a, int lda,          \
        long long stride_a, R *s, long long stride_s, T *u, int ldu, long long stride_u, T *v,     \
        int ldv, long long stride_v, T *work, int lwork, int *info, double *residuals,             \
        int batch) {                                                                               \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)lwork;                                                                               \
        CHECK(handle, is_approximated(jobz, rank, m, n, lda, stride_a, stride_s, ldu, stride_u,    \
                                      ldv, stride_v, batch))                                       \
        CHECK(handle, batch == 0 || info)                                                          \
        CHECK(handle, batch == 0 || n == 0 ||                                                      \
                          (GIVEN(a, s, work) && (jobz == 0 || GIVEN(u, v))))                       \
        for (int i = 0; residuals && i < batch; i++) residuals[i] = 0; /* memory of the host */    \
        int64_t gaps = batch > 1 ? batch - 1 : 0;                                                  \
        EMIT("cusolverDn" #L "gesvdaStridedBatched", code, handle,                                 \
             GROUP(a,                                                                              \
                   {OUT(s, plus(times(stride_s, gaps), rank)),                                     \
                    OUT(u, jobz ? plus(times(stride_u, gaps), times(ldu, rank)) : 0),              \
                    OUT(v, jobz ? plus(times(stride_v, gaps), times(ldv, rank)) : 0)},             \
                   info, batch),                                                                   \
             {"jobz", jobz}, {"rank", rank}, {"m", m}, {"n", n}, {"lda", lda}, {"ldu", ldu},       \
             {"ldv", ldv}, {"batch", batch});                                                      \
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

/* The 64-bit interface, of any type -------------------------------------------------------------- */

static cusolverStatus_t bytes_of_workspace(int type, int64_t elements, size_t *device_bytes,
                                           size_t *host_bytes) {
    int64_t bytes = times(elements, us_cuda_type_bits(type) / 8);
    if (bytes == INT64_MAX) return CUSOLVER_STATUS_INVALID_VALUE;
    *device_bytes = (size_t)bytes;
    *host_bytes = 0;
    return CUSOLVER_STATUS_SUCCESS;
}

/* Elements of a type that only the call's arguments name. */
#define OUT_X(pointer, elements, type) {pointer, times(elements, us_cuda_type_bits(type) / 8)}

US_EXPORT cusolverStatus_t cusolverDnXpotrf_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int uplo, int64_t n, int type_a, const void *a,
    int64_t lda, int compute_type, size_t *device_bytes, size_t *host_bytes) {
    (void)settings, (void)a, (void)compute_type;
    CHECK(handle, GIVEN(device_bytes, host_bytes) && is_type(type_a))
    CHECK(handle, is_choice(uplo) && is_matrix(n, n, lda))
    return bytes_of_workspace(type_a, times(n, BLOCK), device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, settings_t settings,
                                            int uplo, int64_t n, int type_a, void *a, int64_t lda,
                                            int compute_type, void *device_buffer,
                                            size_t device_bytes, void *host_buffer,
                                            size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)compute_type, (void)device_bytes, (void)host_buffer, (void)host_bytes;
    CHECK(handle, info && is_type(type_a) && is_choice(uplo) && is_matrix(n, n, lda))
    CHECK(handle, n == 0 || GIVEN(a, device_buffer))
    EMIT("cusolverDnXpotrf", type_a, handle,
         GROUP(a, {OUT_X(a, times(lda, n), type_a)}, info, 1), {"uplo", uplo}, {"n", n},
         {"lda", lda});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXpotrs(cusolverDnHandle_t handle, settings_t settings,
                                            int uplo, int64_t n, int64_t nrhs, int type_a,
                                            const void *a, int64_t lda, int type_b, void *b,
                                            int64_t ldb, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings;
    CHECK(handle, info && is_type(type_a) && type_b == type_a && is_choice(uplo))
    CHECK(handle, is_matrix(n, n, lda) && is_matrix(n, nrhs, ldb))
    CHECK(handle, n == 0 || nrhs == 0 || GIVEN(a, b))
    EMIT("cusolverDnXpotrs", type_a, handle,
         GROUP(a, {OUT_X(b, times(ldb, nrhs), type_b)}, info, 1), {"uplo", uplo}, {"n", n},
         {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXsytrs_bufferSize(
    cusolverDnHandle_t handle, int uplo, int64_t n, int64_t nrhs, int type_a, const void *a,
    int64_t lda, const int64_t *pivots, int type_b, void *b, int64_t ldb, size_t *device_bytes,
    size_t *host_bytes) {
    (void)a, (void)pivots, (void)b;
    CHECK(handle, GIVEN(device_bytes, host_bytes) && is_type(type_a) && type_b == type_a)
    CHECK(handle, is_choice(uplo) && is_matrix(n, n, lda) && is_matrix(n, nrhs, ldb))
    return bytes_of_workspace(type_a, times(n, nrhs), device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXsytrs(cusolverDnHandle_t handle, int uplo, int64_t n,
                                            int64_t nrhs, int type_a, const void *a, int64_t lda,
                                            const int64_t *pivots, int type_b, void *b,
                                            int64_t ldb, void *device_buffer, size_t device_bytes,
                                            void *host_buffer, size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)pivots, (void)device_bytes, (void)host_buffer, (void)host_bytes;
    CHECK(handle, info && is_type(type_a) && type_b == type_a && is_choice(uplo))
    CHECK(handle, is_matrix(n, n, lda) && is_matrix(n, nrhs, ldb))
    CHECK(handle, n == 0 || nrhs == 0 || GIVEN(a, b, device_buffer))
    EMIT("cusolverDnXsytrs", type_a, handle,
         GROUP(a, {OUT_X(b, times(ldb, nrhs), type_b)}, info, 1), {"uplo", uplo}, {"n", n},
         {"nrhs", nrhs}, {"lda", lda}, {"ldb", ldb});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXgeqrf_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int64_t m, int64_t n, int type_a,
    const void *a, int64_t lda, int type_tau, const void *tau, int compute_type,
    size_t *device_bytes, size_t *host_bytes) {
    (void)settings, (void)a, (void)tau, (void)compute_type;
    CHECK(handle, GIVEN(device_bytes, host_bytes) && is_type(type_a) && type_tau == type_a)
    CHECK(handle, is_matrix(m, n, lda))
    return bytes_of_workspace(type_a, times(n, BLOCK), device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, settings_t settings,
                                            int64_t m, int64_t n, int type_a, void *a, int64_t lda,
                                            int type_tau, void *tau, int compute_type,
                                            void *device_buffer, size_t device_bytes,
                                            void *host_buffer, size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)compute_type, (void)device_bytes, (void)host_buffer, (void)host_bytes;
    CHECK(handle, info && is_type(type_a) && type_tau == type_a && is_matrix(m, n, lda))
    CHECK(handle, m == 0 || n == 0 || GIVEN(a, tau, device_buffer))
    EMIT("cusolverDnXgeqrf", type_a, handle,
         GROUP(a, {OUT_X(tau, smaller(m, n), type_tau), OUT_X(a, times(lda, n), type_a)}, info, 1),
         {"m", m}, {"n", n}, {"lda", lda});
    return CUSOLVER_STATUS_SUCCESS;
}

/* Eigenvalues of symmetric matrices are real. */
static bool are_eigenvalue_types(int type_a, int type_w) {
    bool single = type_a == TYPE_S || type_a == TYPE_C;
    return is_type(type_a) && type_w == (single ? TYPE_S : TYPE_D);
}

US_EXPORT cusolverStatus_t cusolverDnXsyevd_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int jobz, int uplo, int64_t n, int type_a,
    const void *a, int64_t lda, int type_w, const void *w, int compute_type, size_t *device_bytes,
    size_t *host_bytes) {
    (void)settings, (void)a, (void)w, (void)compute_type;
    CHECK(handle, GIVEN(device_bytes, host_bytes) && are_eigenvalue_types(type_a, type_w))
    CHECK(handle, is_symmetric(jobz, uplo, n, lda))
    return bytes_of_workspace(type_a, eigenvalue_elements(n), device_bytes, host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, settings_t settings,
                                            int jobz, int uplo, int64_t n, int type_a, void *a,
                                            int64_t lda, int type_w, void *w, int compute_type,
                                            void *device_buffer, size_t device_bytes,
                                            void *host_buffer, size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)compute_type, (void)device_bytes, (void)host_buffer, (void)host_bytes;
    CHECK(handle, info && are_eigenvalue_types(type_a, type_w))
    CHECK(handle, is_symmetric(jobz, uplo, n, lda))
    CHECK(handle, n == 0 || GIVEN(a, w, device_buffer))
    EMIT("cusolverDnXsyevd", type_a, handle,
         GROUP(a, {OUT_X(w, n, type_w), OUT_X(a, times(lda, n), type_a)}, info, 1),
         {"jobz", jobz}, {"uplo", uplo}, {"n", n}, {"lda", lda});
    return CUSOLVER_STATUS_SUCCESS;
}

US_EXPORT cusolverStatus_t cusolverDnXsyevBatched_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int jobz, int uplo, int64_t n, int type_a,
    const void *a, int64_t lda, int type_w, const void *w, int compute_type, size_t *device_bytes,
    size_t *host_bytes, int64_t batch) {
    (void)settings, (void)a, (void)w, (void)compute_type;
    CHECK(handle, GIVEN(device_bytes, host_bytes) && are_eigenvalue_types(type_a, type_w))
    CHECK(handle, is_symmetric(jobz, uplo, n, lda) && batch >= 0)
    return bytes_of_workspace(type_a, times(eigenvalue_elements(n), batch), device_bytes,
                              host_bytes);
}

US_EXPORT cusolverStatus_t cusolverDnXsyevBatched(
    cusolverDnHandle_t handle, settings_t settings, int jobz, int uplo, int64_t n, int type_a,
    void *a, int64_t lda, int type_w, void *w, int compute_type, void *device_buffer,
    size_t device_bytes, void *host_buffer, size_t host_bytes, int *info, int64_t batch) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)compute_type, (void)device_bytes, (void)host_buffer, (void)host_bytes;
    CHECK(handle, are_eigenvalue_types(type_a, type_w))
    CHECK(handle, is_symmetric(jobz, uplo, n, lda) && batch >= 0)
    CHECK(handle, batch == 0 || (info && (n == 0 || GIVEN(a, w, device_buffer))))
    EMIT("cusolverDnXsyevBatched", type_a, handle,
         GROUP(a,
               {OUT_X(w, times(n, batch), type_w),
                OUT_X(a, times(times(lda, n), batch), type_a)},
               info, batch),
         {"jobz", jobz}, {"uplo", uplo}, {"n", n}, {"lda", lda}, {"batch", batch});
    return CUSOLVER_STATUS_SUCCESS;
}

/* As in LAPACK, vectors that are not wanted need no more than a leading dimension of 1. */
static bool is_general(int jobvl, int jobvr, int64_t n, int64_t lda, int64_t ldvl, int64_t ldvr) {
    return is_choice(jobvl) && is_choice(jobvr) && is_matrix(n, n, lda) &&
           is_matrix(jobvl ? n : 0, 0, ldvl) && is_matrix(jobvr ? n : 0, 0, ldvr);
}

US_EXPORT cusolverStatus_t cusolverDnXgeev_bufferSize(
    cusolverDnHandle_t handle, settings_t settings, int jobvl, int jobvr, int64_t n, int type_a,
    const void *a, int64_t lda, int type_w, const void *w, int type_vl, const void *vl,
    int64_t ldvl, int type_vr, const void *vr, int64_t ldvr, int compute_type,
    size_t *device_bytes, size_t *host_bytes) {
    (void)settings, (void)a, (void)w, (void)vl, (void)vr, (void)compute_type;
    CHECK(handle, GIVEN(device_bytes, host_bytes) && is_general(jobvl, jobvr, n, lda, ldvl, ldvr))
    CHECK(handle, is_type(type_a) && is_type(type_w) && is_type(type_vl) && is_type(type_vr))
    cusolverStatus_t status =
        bytes_of_workspace(type_a, times(n, 4 + BLOCK), device_bytes, host_bytes);
    /* Part of the algorithm runs on the host. */
    if (status == CUSOLVER_STATUS_SUCCESS) *host_bytes = *device_bytes;
    return status;
}

US_EXPORT cusolverStatus_t cusolverDnXgeev(cusolverDnHandle_t handle, settings_t settings,
                                           int jobvl, int jobvr, int64_t n, int type_a, void *a,
                                           int64_t lda, int type_w, void *w, int type_vl, void *vl,
                                           int64_t ldvl, int type_vr, void *vr, int64_t ldvr,
                                           int compute_type, void *device_buffer,
                                           size_t device_bytes, void *host_buffer,
                                           size_t host_bytes, int *info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)settings, (void)compute_type, (void)device_bytes, (void)host_bytes;
    CHECK(handle, info && is_general(jobvl, jobvr, n, lda, ldvl, ldvr))
    CHECK(handle, is_type(type_a) && is_type(type_w) && is_type(type_vl) && is_type(type_vr))
    CHECK(handle, n == 0 || (GIVEN(a, w, device_buffer, host_buffer) && (jobvl == 0 || vl) &&
                             (jobvr == 0 || vr)))
    /* Real eigenvalues of a real matrix: n real parts, then n imaginary ones. */
    int64_t parts = type_w == TYPE_S || type_w == TYPE_D ? 2 : 1;
    EMIT("cusolverDnXgeev", type_a, handle,
         GROUP(a,
               {OUT_X(w, times(n, parts), type_w),
                OUT_X(vl, jobvl ? times(ldvl, n) : 0, type_vl),
                OUT_X(vr, jobvr ? times(ldvr, n) : 0, type_vr),
                OUT_X(a, times(lda, n), type_a)},
               info, 1),
         {"jobvl", jobvl}, {"jobvr", jobvr}, {"n", n}, {"lda", lda}, {"ldvl", ldvl},
         {"ldvr", ldvr});
    return CUSOLVER_STATUS_SUCCESS;
}
