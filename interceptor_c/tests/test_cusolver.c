/* cuSOLVER: workspaces, refused arguments, and what a call records and makes unknown. */
#include <limits.h>

#include "cuda_types.h"
#include "library_test.h"

typedef void *object;
int cusolverDnCreate(object *);
int cusolverDnDestroy(object);
int cusolverDnSetStream(object, cudaStream_t);
int cusolverDnCreateGesvdjInfo(object *);
int cusolverDnDestroyGesvdjInfo(object);
int cusolverDnCreateSyevjInfo(object *);
int cusolverDnDestroySyevjInfo(object);
int cusolverDnSpotrf_bufferSize(object, int, int, void *, int, int *);
int cusolverDnSpotrf(object, int, int, void *, int, void *, int, int *);
int cusolverDnSpotrfBatched(object, int, int, void *, int, int *, int);
int cusolverDnDpotrfBatched(object, int, int, void *, int, int *, int);
int cusolverDnSpotrs(object, int, int, int, const void *, int, void *, int, int *);
int cusolverDnSpotrsBatched(object, int, int, int, void *, int, void *, int, int *, int);
int cusolverDnSgetrf_bufferSize(object, int, int, void *, int, int *);
int cusolverDnSgetrf(object, int, int, void *, int, void *, int *, int *);
int cusolverDnSgetrs(object, int, int, int, const void *, int, const int *, void *, int, int *);
int cusolverDnSsytrf_bufferSize(object, int, void *, int, int *);
int cusolverDnSsytrf(object, int, int, void *, int, int *, void *, int, int *);
int cusolverDnSgeqrf_bufferSize(object, int, int, void *, int, int *);
int cusolverDnSgeqrf(object, int, int, void *, int, void *, void *, int, int *);
int cusolverDnSorgqr_bufferSize(object, int, int, int, const void *, int, const void *, int *);
int cusolverDnSorgqr(object, int, int, int, void *, int, const void *, void *, int, int *);
int cusolverDnSormqr_bufferSize(object, int, int, int, int, int, const void *, int, const void *,
                                const void *, int, int *);
int cusolverDnSormqr(object, int, int, int, int, int, const void *, int, const void *, void *, int,
                     void *, int, int *);
int cusolverDnCheevd_bufferSize(object, int, int, int, const void *, int, const void *, int *);
int cusolverDnCheevd(object, int, int, int, void *, int, void *, void *, int, int *);
int cusolverDnSsyevj_bufferSize(object, int, int, int, const void *, int, const void *, int *,
                                object);
int cusolverDnSsyevj(object, int, int, int, void *, int, void *, void *, int, int *, object);
int cusolverDnSsyevjBatched_bufferSize(object, int, int, int, const void *, int, const void *,
                                       int *, object, int);
int cusolverDnSsyevjBatched(object, int, int, int, void *, int, void *, void *, int, int *, object,
                            int);
int cusolverDnSgesvd_bufferSize(object, int, int, int *);
int cusolverDnSgesvd(object, signed char, signed char, int, int, void *, int, void *, void *, int,
                     void *, int, void *, int, void *, int *);
int cusolverDnSgesvdj_bufferSize(object, int, int, int, int, const void *, int, const void *,
                                 const void *, int, const void *, int, int *, object);
int cusolverDnSgesvdj(object, int, int, int, int, void *, int, void *, void *, int, void *, int,
                      void *, int, int *, object);
int cusolverDnSgesvdjBatched_bufferSize(object, int, int, int, const void *, int, const void *,
                                        const void *, int, const void *, int, int *, object, int);
int cusolverDnSgesvdjBatched(object, int, int, int, void *, int, void *, void *, int, void *, int,
                             void *, int, int *, object, int);
int cusolverDnSgesvdaStridedBatched_bufferSize(object, int, int, int, int, const void *, int,
                                               long long, const void *, long long, const void *,
                                               int, long long, const void *, int, long long, int *,
                                               int);
int cusolverDnSgesvdaStridedBatched(object, int, int, int, int, const void *, int, long long,
                                    void *, long long, void *, int, long long, void *, int,
                                    long long, void *, int, int *, double *, int);
int cusolverDnXpotrf_bufferSize(object, object, int, int64_t, int, const void *, int64_t, int,
                                size_t *, size_t *);
int cusolverDnXpotrf(object, object, int, int64_t, int, void *, int64_t, int, void *, size_t,
                     void *, size_t, int *);
int cusolverDnXpotrs(object, object, int, int64_t, int64_t, int, const void *, int64_t, int,
                     void *, int64_t, int *);
int cusolverDnXsyevd_bufferSize(object, object, int, int, int64_t, int, const void *, int64_t, int,
                                const void *, int, size_t *, size_t *);
int cusolverDnXsyevBatched_bufferSize(object, object, int, int, int64_t, int, const void *,
                                      int64_t, int, const void *, int, size_t *, size_t *,
                                      int64_t);
int cusolverDnXsyevBatched(object, object, int, int, int64_t, int, void *, int64_t, int, void *,
                           int, void *, size_t, void *, size_t, int *, int64_t);
int cusolverDnXgeev_bufferSize(object, object, int, int, int64_t, int, const void *, int64_t, int,
                               const void *, int, const void *, int64_t, int, const void *,
                               int64_t, int, size_t *, size_t *);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);

enum { OK = 0, NOT_INITIALIZED = 1, INVALID = 3 }; /* cusolverStatus_t */
enum { LOWER = 0, UPPER = 1, FULL = 2, LEFT = 0, RIGHT = 1 };
enum { F32 = CUDA_R_32F, F64 = CUDA_R_64F, C32 = CUDA_C_32F };
enum { TO_DEVICE = 1, TO_HOST = 2, FLOATS = 1024 };

static object handle, settings, eigen_settings;
static float *a, *b, *c, *d; /* FLOATS of device memory each */
static int *info;

/* Values in front of a call, and whether any of the first `count` is still known behind it. */
static void define(void *device) {
    float values[FLOATS];
    for (int i = 0; i < FLOATS; i++) values[i] = 1;
    CHECK(cudaMemcpy(device, values, sizeof values, TO_DEVICE) == 0);
}

static int known(const void *device) {
    float values[FLOATS];
    int count = 0;
    CHECK(cudaMemcpy(values, device, sizeof values, TO_HOST) == 0);
    for (int i = 0; i < FLOATS; i++) count += values[i] != 0;
    return count;
}

/* The pointers of a batch, in device memory. */
static void *array_of(void *first, void *second) {
    void *pointers[2] = {first, second}, *array;
    CHECK(cudaMalloc(&array, sizeof pointers) == 0);
    CHECK(cudaMemcpy(array, pointers, sizeof pointers, TO_DEVICE) == 0);
    return array;
}

/* Workspaces ----------------------------------------------------------------------------------- */

/* -1 for a refusal, which leaves the caller's number alone. */
static int elements(int status, const int *lwork) {
    CHECK(status == OK || (status == INVALID && *lwork == -7));
    return status == OK ? *lwork : -1;
}

/* The largest sizes that an int holds, and the next ones. */
static void test_workspaces(void) {
    enum { BLOCK_MAX = INT_MAX / 64, BATCH_MAX = INT_MAX / 2048 };
    static const struct {
        int n, lwork;
    } blocks[] = {{0, 0}, {5, 320}, {BLOCK_MAX, BLOCK_MAX * 64}, {BLOCK_MAX + 1, -1},
                {INT_MAX, -1}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        int n = blocks[i].n, leading = n ? n : 1, expected = blocks[i].lwork, size[6];
        for (int k = 0; k < 6; k++) size[k] = -7;
        int status[6] = {
            cusolverDnSpotrf_bufferSize(handle, LOWER, n, NULL, leading, &size[0]),
            cusolverDnSgetrf_bufferSize(handle, n, n, NULL, leading, &size[1]),
            cusolverDnSsytrf_bufferSize(handle, n, NULL, leading, &size[2]),
            cusolverDnSgeqrf_bufferSize(handle, n, n, NULL, leading, &size[3]),
            cusolverDnSorgqr_bufferSize(handle, n, n, n, NULL, leading, NULL, &size[4]),
            cusolverDnSormqr_bufferSize(handle, LEFT, 0, 0, n, 0, NULL, 1, NULL, NULL, 1, &size[5]),
        };
        for (int k = 0; k < 6; k++) CHECK(elements(status[k], &size[k]) == expected);
    }

    static const struct {
        int n, batch, lwork;
    } eigenvalues[] = {{6, 1, 109},           {32766, 1, 2147418109},  {32767, 1, -1},
                       {INT_MAX, 1, -1},      {100, 1000, 20601000},   {1000, 2000, -1},
                       {INT_MAX, INT_MAX, -1}};
    for (size_t i = 0; i < sizeof eigenvalues / sizeof *eigenvalues; i++) {
        int n = eigenvalues[i].n, batch = eigenvalues[i].batch, expected = eigenvalues[i].lwork;
        int one = -7, jacobi = -7, many = -7;
        int status = cusolverDnSsyevjBatched_bufferSize(handle, 1, UPPER, n, a, n, b, &many,
                                                        eigen_settings, batch);
        CHECK(elements(status, &many) == expected);
        if (batch > 1) continue;
        status = cusolverDnCheevd_bufferSize(handle, 1, LOWER, n, a, n, b, &one);
        CHECK(elements(status, &one) == expected);
        status = cusolverDnSsyevj_bufferSize(handle, 1, LOWER, n, a, n, b, &jacobi, eigen_settings);
        CHECK(elements(status, &jacobi) == expected);
    }

    int lwork = -7;
    CHECK(elements(cusolverDnSgesvd_bufferSize(handle, INT_MAX, INT_MAX, &lwork), &lwork) == -1);
    CHECK(elements(cusolverDnSgesvd_bufferSize(handle, 8, 5, &lwork), &lwork) == 25 * 64);
    lwork = -7;
    CHECK(elements(cusolverDnSgesvdj_bufferSize(handle, 1, 0, 32768, 32768, a, 32768, b, c, 32768,
                                                d, 32768, &lwork, settings), &lwork) == -1);
    CHECK(elements(cusolverDnSgesvdj_bufferSize(handle, 1, 0, 5, 8, a, 5, b, c, 5, d, 8, &lwork,
                                                settings), &lwork) == 2 * 5 * 8 + 64 * 8);
    lwork = -7;
    CHECK(elements(cusolverDnSgesvdjBatched_bufferSize(handle, 1, 32, 32, a, 32, b, c, 32, d, 32,
                                                       &lwork, settings, BATCH_MAX + 1), &lwork) ==
          -1);
    CHECK(elements(cusolverDnSgesvdjBatched_bufferSize(handle, 1, 32, 32, a, 32, b, c, 32, d, 32,
                                                       &lwork, settings, BATCH_MAX), &lwork) ==
          BATCH_MAX * 2048);
    lwork = -7;
    CHECK(elements(cusolverDnSgesvdaStridedBatched_bufferSize(
                       handle, 1, 100, 100, 100, a, 100, 10000, b, 100, c, 100, 10000, d, 100,
                       10000, &lwork, 200000), &lwork) == -1);
}

/* Bytes, of any size that memory can have. */
static void test_workspaces_of_64_bits(void) {
    size_t device = 7, host = 7;
    int64_t huge = (int64_t)1 << 40;
    CHECK(cusolverDnXpotrf_bufferSize(handle, NULL, LOWER, huge, F32, a, huge, F32, &device,
                                      &host) == OK);
    CHECK(device == (size_t)huge * 64 * 4 && host == 0);
    CHECK(cusolverDnXsyevd_bufferSize(handle, NULL, 1, LOWER, 100000, F64, a, 100000, F64, b, F64,
                                      &device, &host) == OK);
    CHECK(device == (size_t)20000600001 * 8);
    CHECK(cusolverDnXsyevBatched_bufferSize(handle, NULL, 1, LOWER, 6, C32, a, 6, F32, b, C32,
                                            &device, &host, 10) == OK);
    CHECK(device == 109 * 10 * 8);
    CHECK(cusolverDnXgeev_bufferSize(handle, NULL, 0, 1, 6, F32, a, 6, F32, b, F32, NULL, 1, F32,
                                     c, 6, F32, &device, &host) == OK);
    CHECK(device == 6 * 68 * 4 && host == device);

    CHECK(cusolverDnXsyevd_bufferSize(handle, NULL, 1, LOWER, huge, F64, a, huge, F64, b, F64,
                                      &device, &host) == INVALID);
    CHECK(cusolverDnXpotrf_bufferSize(handle, NULL, LOWER, -1, F32, a, 1, F32, &device, &host) ==
          INVALID);
    CHECK(cusolverDnXpotrf_bufferSize(handle, NULL, LOWER, 6, F32, a, 5, F32, &device, &host) ==
          INVALID);
    CHECK(cusolverDnXpotrf_bufferSize(handle, NULL, LOWER, 6, CUDA_R_16F, a, 6, F32, &device,
                                      &host) == INVALID);
    CHECK(cusolverDnXpotrf_bufferSize(handle, NULL, LOWER, 6, F32, a, 6, F32, &device, NULL) ==
          INVALID);
    CHECK(cusolverDnXsyevd_bufferSize(handle, NULL, 1, LOWER, 6, C32, a, 6, C32, b, C32, &device,
                                      &host) == INVALID); /* eigenvalues are real */
    CHECK(cusolverDnXsyevBatched_bufferSize(handle, NULL, 1, LOWER, 6, F32, a, 6, F32, b, F32,
                                            &device, &host, -1) == INVALID);
    CHECK(cusolverDnXgeev_bufferSize(handle, NULL, 0, 1, 6, F32, a, 6, F32, b, F32, NULL, 1, F32,
                                     c, 5, F32, &device, &host) == INVALID);
    CHECK(device == 6 * 68 * 4 && host == device); /* untouched by refusals */
}

/* Refused arguments ---------------------------------------------------------------------------- */

/* Every call in the list is refused with CUSOLVER_STATUS_INVALID_VALUE. */
#define ALL_INVALID(...)                                                                           \
    do {                                                                                           \
        const int statuses[] = {__VA_ARGS__};                                                      \
        for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)                            \
            if (statuses[i] != INVALID) {                                                          \
                fprintf(stderr, "%s:%d: call %zu: %d\n", __FILE__, __LINE__, i, statuses[i]);      \
                exit(1);                                                                           \
            }                                                                                      \
    } while (0)

static void test_refused_factorizations(void) {
    ALL_INVALID(cusolverDnSpotrf(handle, FULL, 6, a, 6, b, 384, info),
                cusolverDnSpotrf(handle, LOWER, -1, a, 6, b, 384, info),
                cusolverDnSpotrf(handle, LOWER, 6, a, 5, b, 384, info),
                cusolverDnSpotrf(handle, LOWER, 0, a, 0, b, 384, info),
                cusolverDnSpotrf(handle, LOWER, 6, NULL, 6, b, 384, info),
                cusolverDnSpotrf(handle, LOWER, 6, a, 6, NULL, 384, info),
                cusolverDnSpotrf(handle, LOWER, 6, a, 6, b, 384, NULL),
                cusolverDnSpotrf_bufferSize(handle, LOWER, 6, a, 6, NULL));
    ALL_INVALID(cusolverDnSpotrfBatched(handle, FULL, 6, a, 6, info, 2),
                cusolverDnSpotrfBatched(handle, LOWER, 6, a, 5, info, 2),
                cusolverDnSpotrfBatched(handle, LOWER, 6, a, 6, info, -1),
                cusolverDnSpotrfBatched(handle, LOWER, 6, NULL, 6, info, 2),
                cusolverDnSpotrfBatched(handle, LOWER, 6, a, 6, NULL, 2));
    ALL_INVALID(cusolverDnSpotrs(handle, -1, 6, 2, a, 6, b, 6, info),
                cusolverDnSpotrs(handle, LOWER, 6, -1, a, 6, b, 6, info),
                cusolverDnSpotrs(handle, LOWER, 6, 2, a, 5, b, 6, info),
                cusolverDnSpotrs(handle, LOWER, 6, 2, a, 6, b, 5, info),
                cusolverDnSpotrs(handle, LOWER, 6, 2, a, 6, NULL, 6, info));
    ALL_INVALID(cusolverDnSpotrsBatched(handle, LOWER, 6, 2, a, 6, b, 6, info, 2),
                cusolverDnSpotrsBatched(handle, LOWER, 6, 0, a, 6, b, 6, info, 2),
                cusolverDnSpotrsBatched(handle, LOWER, 6, 1, a, 6, b, 5, info, 2),
                cusolverDnSpotrsBatched(handle, LOWER, 6, 1, a, 6, b, 6, info, -2));
    ALL_INVALID(cusolverDnSgetrf(handle, 6, 5, a, 5, b, info, info),
                cusolverDnSgetrf(handle, -6, 5, a, 6, b, info, info),
                cusolverDnSgetrf(handle, 6, -5, a, 6, b, info, info),
                cusolverDnSgetrf(handle, 6, 5, a, 6, b, info, NULL),
                cusolverDnSgetrs(handle, 3, 6, 2, a, 6, info, b, 6, info),
                cusolverDnSgetrs(handle, 0, 6, 2, a, 5, info, b, 6, info),
                cusolverDnSgetrs(handle, 0, 6, 2, a, 6, info, b, 5, info));
    ALL_INVALID(cusolverDnSsytrf(handle, FULL, 6, a, 6, info, b, 384, info),
                cusolverDnSsytrf(handle, LOWER, 6, a, 5, info, b, 384, info),
                cusolverDnSgeqrf(handle, 6, 5, a, 5, b, c, 320, info),
                cusolverDnSgeqrf(handle, 6, 5, a, 6, NULL, c, 320, info));
    /* Q has no more columns than rows, and no fewer columns than reflections. */
    ALL_INVALID(cusolverDnSorgqr(handle, 5, 6, 5, a, 5, b, c, 384, info),
                cusolverDnSorgqr(handle, 6, 5, 6, a, 6, b, c, 320, info),
                cusolverDnSorgqr(handle, 6, 5, -1, a, 6, b, c, 320, info),
                cusolverDnSorgqr(handle, 6, 5, 5, a, 5, b, c, 320, info));
    ALL_INVALID(cusolverDnSormqr(handle, 2, 0, 6, 3, 5, a, 6, b, c, 6, d, 192, info),
                cusolverDnSormqr(handle, LEFT, 3, 6, 3, 5, a, 6, b, c, 6, d, 192, info),
                cusolverDnSormqr(handle, LEFT, 0, 6, 3, 7, a, 6, b, c, 6, d, 192, info),
                cusolverDnSormqr(handle, LEFT, 0, 6, 3, 5, a, 5, b, c, 6, d, 192, info),
                cusolverDnSormqr(handle, LEFT, 0, 6, 3, 5, a, 6, b, c, 5, d, 192, info),
                cusolverDnSormqr(handle, RIGHT, 0, 6, 3, 5, a, 6, b, c, 6, d, 384, info));
    ALL_INVALID(cusolverDnXpotrf(handle, NULL, FULL, 6, F32, a, 6, F32, b, 64, NULL, 0, info),
                cusolverDnXpotrf(handle, NULL, LOWER, 6, F32, a, 6, F32, NULL, 64, NULL, 0, info),
                cusolverDnXpotrs(handle, NULL, LOWER, 6, 2, F32, a, 6, F64, b, 6, info),
                cusolverDnXpotrs(handle, NULL, LOWER, 6, 2, F32, a, 6, F32, b, 5, info));
}

static int gesvd(int jobu, int jobvt, int m, int n, int lda, int ldu, int ldvt, float *u) {
    return cusolverDnSgesvd(handle, (signed char)jobu, (signed char)jobvt, m, n, a, lda, b, u, ldu,
                            c, ldvt, d, 1600, NULL, info);
}

static int gesvdj_batched(int jobz, int m, int n, int lda, int ldu, int ldv, int batch) {
    return cusolverDnSgesvdjBatched(handle, jobz, m, n, a, lda, b, c, ldu, d, ldv, a, 80, info,
                                    settings, batch);
}

static int gesvda(int jobz, int rank, int m, int n, int lda, long long stride_a,
                  long long stride_s, int ldu, long long stride_u, int batch) {
    return cusolverDnSgesvdaStridedBatched(handle, jobz, rank, m, n, a, lda, stride_a, b, stride_s,
                                           c, ldu, stride_u, d, n, (long long)n * n, a, 80, info,
                                           NULL, batch);
}

static void test_refused_decompositions(void) {
    ALL_INVALID(cusolverDnCheevd(handle, 2, LOWER, 6, a, 6, b, c, 109, info),
                cusolverDnCheevd(handle, 1, FULL, 6, a, 6, b, c, 109, info),
                cusolverDnCheevd(handle, 1, LOWER, 6, a, 5, b, c, 109, info),
                cusolverDnCheevd(handle, 1, LOWER, 6, a, 6, NULL, c, 109, info),
                cusolverDnSsyevj(handle, 1, LOWER, 6, a, 6, b, c, 109, info, NULL),
                cusolverDnSsyevj(handle, -1, LOWER, 6, a, 6, b, c, 109, info, eigen_settings),
                cusolverDnSsyevjBatched(handle, 1, LOWER, 6, a, 6, b, c, 218, info, eigen_settings,
                                        -2),
                cusolverDnXsyevBatched(handle, NULL, 1, LOWER, 6, F32, a, 6, F64, b, F32, c, 872,
                                       NULL, 0, info, 2));
    ALL_INVALID(gesvd('S', 'S', 5, 8, 5, 5, 8, d), /* m < n */
                gesvd('S', 'S', 8, 5, 7, 8, 5, d), gesvd('S', 'S', 8, 5, 8, 7, 5, d),
                gesvd('S', 'S', 8, 5, 8, 8, 4, d), gesvd('V', 'S', 8, 5, 8, 8, 5, d),
                gesvd('S', 0, 8, 5, 8, 8, 5, d), gesvd('O', 'O', 8, 5, 8, 8, 5, d),
                gesvd('S', 'S', 8, 5, 8, 8, 5, NULL), gesvd('S', 'S', 8, -1, 8, 8, 5, d));
    int lwork;
    ALL_INVALID(cusolverDnSgesvd_bufferSize(handle, 5, 8, &lwork),
                cusolverDnSgesvd_bufferSize(handle, 8, 5, NULL),
                cusolverDnSgesvdj(handle, 2, 0, 8, 5, a, 8, b, c, 8, d, 5, a, 592, info, settings),
                cusolverDnSgesvdj(handle, 1, 2, 8, 5, a, 8, b, c, 8, d, 5, a, 592, info, settings),
                cusolverDnSgesvdj(handle, 1, 0, 8, 5, a, 8, b, c, 7, d, 5, a, 592, info, settings),
                cusolverDnSgesvdj(handle, 1, 0, 8, 5, a, 8, b, c, 8, d, 5, a, 592, info, NULL));
    ALL_INVALID(gesvdj_batched(1, 33, 5, 33, 33, 5, 2), gesvdj_batched(1, 5, 33, 5, 5, 33, 2),
                gesvdj_batched(3, 8, 5, 8, 8, 5, 2), gesvdj_batched(1, 8, 5, 7, 8, 5, 2),
                gesvdj_batched(1, 8, 5, 8, 8, 4, 2), gesvdj_batched(1, 8, 5, 8, 8, 5, -1));
    ALL_INVALID(gesvda(1, 5, 5, 8, 5, 40, 5, 5, 40, 2), gesvda(1, 6, 8, 5, 8, 40, 6, 8, 48, 2),
                gesvda(1, 5, 8, 5, 8, 39, 5, 8, 40, 2), gesvda(1, 5, 8, 5, 8, 40, 4, 8, 40, 2),
                gesvda(1, 5, 8, 5, 8, 40, 5, 8, 39, 2), gesvda(1, 5, 8, 5, 8, 40, 5, 7, 40, 2),
                gesvda(2, 5, 8, 5, 8, 40, 5, 8, 40, 2), gesvda(1, 5, 8, 5, 8, 40, 5, 8, 40, -2));
}

static void test_missing_handles(void) {
    int lwork;
    object made;
    CHECK(cusolverDnCreate(NULL) == INVALID && cusolverDnDestroy(NULL) == NOT_INITIALIZED);
    CHECK(cusolverDnSetStream(NULL, NULL) == NOT_INITIALIZED);
    CHECK(cusolverDnCreateGesvdjInfo(NULL) == INVALID);
    CHECK(cusolverDnCreateGesvdjInfo(&made) == OK && cusolverDnDestroyGesvdjInfo(made) == OK);
    CHECK(cusolverDnSpotrf_bufferSize(NULL, LOWER, 6, a, 6, &lwork) == NOT_INITIALIZED);
    CHECK(cusolverDnSpotrf(NULL, LOWER, 6, a, 6, b, 384, info) == NOT_INITIALIZED);
    CHECK(cusolverDnSpotrsBatched(NULL, LOWER, 6, 1, a, 6, b, 6, info, 2) == NOT_INITIALIZED);
    CHECK(cusolverDnXpotrf(NULL, NULL, LOWER, 6, F32, a, 6, F32, b, 64, NULL, 0, info) ==
          NOT_INITIALIZED);
}

/* What a call leaves behind -------------------------------------------------------------------- */

static void define_all(void) {
    define(a), define(b), define(c), define(d), define(info);
}

static void test_factorizations(void) {
    define_all();
    CHECK(cusolverDnSpotrf(handle, UPPER, 6, a, 8, b, 384, info) == OK);
    CHECK(library_call_is("cusolverDnSpotrf", F32) && library_value("uplo") == UPPER);
    CHECK(library_value("n") == 6 && library_value("lda") == 8);
    CHECK(last_of(US_API_LIBRARY).d == (uintptr_t)a);
    CHECK(known(a) == FLOATS - 8 * 6 && known(info) == FLOATS - 1 && known(b) == FLOATS);

    define_all();
    CHECK(cusolverDnSpotrs(handle, LOWER, 6, 2, a, 6, b, 7, info) == OK);
    CHECK(library_value("nrhs") == 2 && library_value("ldb") == 7);
    CHECK(known(a) == FLOATS && known(b) == FLOATS - 7 * 2);

    int pivots[5], expected[5] = {1, 2, 3, 4, 5}, *device_pivots = (int *)c;
    define_all();
    CHECK(cusolverDnSgetrf(handle, 6, 5, a, 6, b, device_pivots, info) == OK);
    CHECK(library_value("m") == 6 && library_value("n") == 5 && library_value("pivoted") == 1);
    CHECK(cudaMemcpy(pivots, device_pivots, sizeof pivots, TO_HOST) == 0);
    CHECK(memcmp(pivots, expected, sizeof pivots) == 0 && known(a) == FLOATS - 6 * 5);
    CHECK(cusolverDnSgetrf(handle, 6, 5, a, 6, b, NULL, info) == OK);
    CHECK(library_value("pivoted") == 0);
    CHECK(cusolverDnSgetrs(handle, 1, 6, 3, a, 6, device_pivots, b, 6, info) == OK);
    CHECK(library_value("trans") == 1 && known(b) == FLOATS - 6 * 3);
    CHECK(cusolverDnSsytrf(handle, LOWER, 5, a, 6, device_pivots, b, 320, info) == OK);
    CHECK(library_call_is("cusolverDnSsytrf", F32) && library_value("n") == 5);

    define_all();
    CHECK(cusolverDnSgeqrf(handle, 6, 5, a, 6, b, c, 320, info) == OK);
    CHECK(known(a) == FLOATS - 6 * 5 && known(b) == FLOATS - 5);
    CHECK(cusolverDnSorgqr(handle, 6, 5, 4, a, 6, b, c, 320, info) == OK);
    CHECK(library_value("k") == 4 && library_value("m") == 6);
    CHECK(cusolverDnSormqr(handle, RIGHT, 1, 3, 6, 5, a, 6, b, c, 3, d, 192, info) == OK);
    CHECK(library_value("side") == RIGHT && library_value("k") == 5 && library_value("ldc") == 3);
    CHECK(known(c) == FLOATS - 3 * 6 && known(d) == FLOATS);

    define_all();
    CHECK(cusolverDnXpotrf(handle, NULL, LOWER, 6, F64, a, 6, F64, b, 64, NULL, 0, info) == OK);
    CHECK(library_call_is("cusolverDnXpotrf", F64) && library_value("n") == 6);
    CHECK(known(a) == FLOATS - 2 * 6 * 6);
    /* Empty matrices need no memory. */
    CHECK(cusolverDnSpotrf(handle, LOWER, 0, NULL, 1, NULL, 0, info) == OK);
    CHECK(cusolverDnSgetrf(handle, 0, 5, NULL, 1, NULL, NULL, info) == OK);
}

/* The matrices of a batch lie where an array in device memory says. */
static void test_batches_of_pointers(void) {
    void *matrices = array_of(a, b), *sides = array_of(c, NULL);
    define_all();
    CHECK(cusolverDnSpotrfBatched(handle, LOWER, 6, matrices, 6, info, 2) == OK);
    CHECK(library_call_is("cusolverDnSpotrfBatched", F32) && library_value("batch") == 2);
    CHECK(known(a) == FLOATS - 36 && known(b) == FLOATS - 36 && known(info) == FLOATS - 2);
    CHECK(cusolverDnDpotrfBatched(handle, LOWER, 6, matrices, 6, info, 2) == OK);
    CHECK(known(a) == FLOATS - 72 && known(b) == FLOATS - 72);
    CHECK(cusolverDnSpotrsBatched(handle, LOWER, 6, 1, matrices, 6, sides, 8, info, 2) == OK);
    CHECK(library_value("nrhs") == 1 && library_value("ldb") == 8);
    CHECK(known(c) == FLOATS - 8 && known(d) == FLOATS);
    CHECK(cusolverDnSpotrfBatched(handle, LOWER, 6, NULL, 6, NULL, 0) == OK);
    CHECK(cudaFree(matrices) == 0 && cudaFree(sides) == 0);
}

static void test_decompositions(void) {
    define_all();
    CHECK(cusolverDnCheevd(handle, 1, LOWER, 6, a, 6, b, c, 109, info) == OK);
    CHECK(library_call_is("cusolverDnCheevd", C32) && library_value("jobz") == 1);
    CHECK(known(a) == FLOATS - 2 * 36 && known(b) == FLOATS - 6);
    CHECK(cusolverDnSsyevj(handle, 0, UPPER, 6, a, 6, b, c, 109, info, eigen_settings) == OK);
    CHECK(library_value("jobz") == 0 && library_value("uplo") == UPPER);

    define_all();
    CHECK(cusolverDnSsyevjBatched(handle, 1, LOWER, 6, a, 6, b, c, 327, info, eigen_settings, 3) ==
          OK);
    CHECK(library_value("batch") == 3 && known(a) == FLOATS - 3 * 36 && known(b) == FLOATS - 3 * 6);
    CHECK(known(info) == FLOATS - 3);
    define_all();
    CHECK(cusolverDnXsyevBatched(handle, NULL, 1, LOWER, 6, F32, a, 6, F32, b, F32, c, 872, NULL,
                                 0, info, 2) == OK);
    CHECK(known(a) == FLOATS - 2 * 36 && known(b) == FLOATS - 2 * 6);

    define_all();
    CHECK(gesvd('A', 'S', 8, 5, 8, 8, 5, d) == OK);
    CHECK(library_call_is("cusolverDnSgesvd", F32) && library_value("jobu") == 'A');
    CHECK(library_value("m") == 8 && library_value("n") == 5 && library_value("ldvt") == 5);
    CHECK(known(a) == FLOATS - 8 * 5 && known(b) == FLOATS - 5 && known(c) == FLOATS - 5 * 5);
    CHECK(known(d) == FLOATS - 8 * 8);
    CHECK(gesvd('N', 'N', 8, 5, 8, 8, 5, NULL) == OK);

    define_all();
    CHECK(cusolverDnSgesvdj(handle, 1, 1, 5, 8, a, 5, b, c, 5, d, 8, info, 552, info, settings) ==
          OK);
    CHECK(library_value("econ") == 1 && library_value("m") == 5 && library_value("ldv") == 8);
    CHECK(known(b) == FLOATS - 5 && known(c) == FLOATS - 25 && known(d) == FLOATS - 40);

    /* Jacobi takes wide matrices too, and 32 x 32 is the largest of a batch. */
    define_all();
    CHECK(gesvdj_batched(1, 5, 8, 5, 5, 8, 3) == OK);
    CHECK(gesvdj_batched(0, 32, 32, 32, 32, 32, 1) == OK);
    CHECK(library_value("n") == 32 && known(c) == 0);

    define_all();
    CHECK(gesvda(1, 5, 8, 5, 8, 40, 6, 8, 50, 3) == OK);
    CHECK(library_value("rank") == 5 && library_value("batch") == 3);
    CHECK(known(a) == FLOATS && known(b) == FLOATS - (2 * 6 + 5));
    CHECK(known(c) == FLOATS - (2 * 50 + 40) && known(d) == FLOATS - 3 * 25);
}

int main(void) {
    open_trace();
    float **buffers[] = {&a, &b, &c, &d, (float **)&info};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        CHECK(cudaMalloc((void **)buffers[i], FLOATS * sizeof(float)) == 0);
    CHECK(cusolverDnCreate(&handle) == OK && cusolverDnCreateGesvdjInfo(&settings) == OK);
    CHECK(cusolverDnCreateSyevjInfo(&eigen_settings) == OK);
    test_missing_handles();
    test_workspaces();
    test_workspaces_of_64_bits();
    define_all();
    test_refused_factorizations();
    test_refused_decompositions();
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        CHECK(known(*buffers[i]) == FLOATS); /* a refused call changes nothing */
    CHECK(count_of(US_API_LIBRARY) == 0);
    test_factorizations();
    test_batches_of_pointers();
    test_decompositions();
    CHECK(cusolverDnDestroyGesvdjInfo(settings) == OK);
    CHECK(cusolverDnDestroySyevjInfo(eigen_settings) == OK && cusolverDnDestroy(handle) == OK);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        CHECK(cudaFree(*buffers[i]) == 0);
    close_trace();
    puts("cusolver ok");
    return 0;
}
