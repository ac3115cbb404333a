/* cuBLAS's triangular solvers and batched factorizations: refused arguments, the host's info, and
   what a call records and makes unknown. */
#include "library_test.h"
#include "types_cublas.h"

cublasStatus_t cublasCreate_v2(cublasHandle_t *);
cublasStatus_t cublasDestroy_v2(cublasHandle_t);
cublasStatus_t cublasStrsm_v2(cublasHandle_t, int, int, int, int, int, int, const void *,
                              const void *, int, void *, int);
cublasStatus_t cublasStrsmBatched(cublasHandle_t, int, int, int, int, int, int, const void *,
                                  const void *, int, void *, int, int);
cublasStatus_t cublasSgetrfBatched(cublasHandle_t, int, void *, int, int *, int *, int);
cublasStatus_t cublasZgetrfBatched(cublasHandle_t, int, void *, int, int *, int *, int);
cublasStatus_t cublasSgetrsBatched(cublasHandle_t, int, int, int, const void *, int, const int *,
                                   void *, int, int *, int);
cublasStatus_t cublasSgeqrfBatched(cublasHandle_t, int, int, void *, int, void *, int *, int);
cublasStatus_t cublasSgelsBatched(cublasHandle_t, int, int, int, int, void *, int, void *, int,
                                  int *, int *, int);
cublasStatus_t cublasSgemmBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const float *, const void *const *, int, const void *const *,
                                  int, const float *, void *const *, int, int);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);

enum { OK = CUBLAS_STATUS_SUCCESS, INVALID = CUBLAS_STATUS_INVALID_VALUE };
enum { NOT_SUPPORTED = CUBLAS_STATUS_NOT_SUPPORTED };
enum { LEFT = 0, RIGHT = 1, LOWER = 0, UPPER = 1, FULL = 2, N = 0, T = 1 };
enum { TO_DEVICE = 1, TO_HOST = 2, FLOATS = 1024 };

static const float one = 1;
static cublasHandle_t handle;
static float *a, *b, *c, *d;    /* FLOATS of device memory each */
static void **matrices, **sides; /* {a, b} and {c, d}, in device memory */
static int *device_info;

static void define_all(void) {
    float values[FLOATS], *buffers[] = {a, b, c, d, (float *)device_info};
    for (int i = 0; i < FLOATS; i++) values[i] = 1;
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        CHECK(cudaMemcpy(buffers[i], values, sizeof values, TO_DEVICE) == 0);
}

/* How many values of a buffer are still known after a call. */
static int known(const void *device) {
    float values[FLOATS];
    int count = 0;
    CHECK(cudaMemcpy(values, device, sizeof values, TO_HOST) == 0);
    for (int i = 0; i < FLOATS; i++) count += values[i] != 0;
    return count;
}

static void *array_of(void *first, void *second) {
    void *pointers[2] = {first, second}, *array;
    CHECK(cudaMalloc(&array, sizeof pointers) == 0);
    CHECK(cudaMemcpy(array, pointers, sizeof pointers, TO_DEVICE) == 0);
    return array;
}

/* Triangular solves: A of 6 x 6 from the left, of 3 x 3 from the right; B of 6 x 3. */
static void test_triangular(void) {
    static const struct {
        int side, uplo, trans, diag, m, n, lda, ldb, batch, status;
    } cases[] = {
        {LEFT, LOWER, N, 0, 6, 3, 6, 6, 2, OK},       {RIGHT, UPPER, T, 1, 6, 3, 3, 6, 2, OK},
        {LEFT, LOWER, N, 0, 0, 3, 1, 1, 2, OK},       {2, LOWER, N, 0, 6, 3, 6, 6, 2, INVALID},
        {LEFT, FULL, N, 0, 6, 3, 6, 6, 2, INVALID},   {LEFT, LOWER, 3, 0, 6, 3, 6, 6, 2, INVALID},
        {LEFT, LOWER, N, 2, 6, 3, 6, 6, 2, INVALID},  {LEFT, LOWER, N, 0, -1, 3, 6, 6, 2, INVALID},
        {LEFT, LOWER, N, 0, 6, -1, 6, 6, 2, INVALID}, {LEFT, LOWER, N, 0, 6, 3, 5, 6, 2, INVALID},
        {RIGHT, LOWER, N, 0, 6, 3, 2, 6, 2, INVALID}, {LEFT, LOWER, N, 0, 6, 3, 6, 5, 2, INVALID},
        {LEFT, LOWER, N, 0, 0, 3, 0, 1, 2, INVALID},  {LEFT, LOWER, N, 0, 6, 3, 6, 6, -1, INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int side = cases[i].side, uplo = cases[i].uplo, trans = cases[i].trans, m = cases[i].m;
        int n = cases[i].n, lda = cases[i].lda, ldb = cases[i].ldb, diag = cases[i].diag;
        int status = cases[i].status, calls = status == OK && m > 0, written = calls ? ldb * n : 0;
        size_t before = count_of(US_API_LIBRARY);
        if (cases[i].batch > 0) {
            define_all();
            CHECK(cublasStrsm_v2(handle, side, uplo, trans, diag, m, n, &one, a, lda, c, ldb) ==
                  status);
            CHECK(known(c) == FLOATS - written);
            CHECK(count_of(US_API_LIBRARY) == before + (size_t)calls);
            before += (size_t)calls;
        }
        define_all();
        CHECK(cublasStrsmBatched(handle, side, uplo, trans, diag, m, n, &one, matrices, lda, sides,
                                 ldb, cases[i].batch) == status);
        CHECK(known(c) == FLOATS - written && known(d) == FLOATS - written);
        CHECK(known(a) == FLOATS && count_of(US_API_LIBRARY) == before + (size_t)calls);
    }
    CHECK(cublasStrsm_v2(handle, LEFT, LOWER, N, 0, 6, 3, NULL, a, 6, c, 6) == INVALID);
    CHECK(cublasStrsm_v2(handle, LEFT, LOWER, N, 0, 6, 3, &one, NULL, 6, c, 6) == INVALID);
    CHECK(cublasStrsm_v2(handle, LEFT, LOWER, N, 0, 6, 3, &one, a, 6, NULL, 6) == INVALID);
    CHECK(cublasStrsmBatched(handle, LEFT, LOWER, N, 0, 6, 3, &one, matrices, 6, NULL, 6, 2) ==
          INVALID);
    CHECK(cublasStrsm_v2(NULL, LEFT, LOWER, N, 0, 6, 3, &one, a, 6, c, 6) ==
          CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(cublasStrsm_v2(handle, RIGHT, UPPER, T, 1, 6, 3, &one, a, 4, c, 7) == OK);
    CHECK(library_call_is("cublasStrsm", CUDA_R_32F) && library_value("side") == RIGHT);
    CHECK(library_value("uplo") == UPPER && library_value("trans") == T);
    CHECK(library_value("m") == 6 && library_value("n") == 3);
    CHECK(library_value("lda") == 4 && library_value("ldb") == 7 && library_value("diag") == 1);
}

static void test_factorization(void) {
    int pivots[12], *device_pivots = (int *)c;
    define_all();
    CHECK(cublasSgetrfBatched(handle, -1, matrices, 6, device_pivots, device_info, 2) == INVALID);
    CHECK(cublasSgetrfBatched(handle, 6, matrices, 5, device_pivots, device_info, 2) == INVALID);
    CHECK(cublasSgetrfBatched(handle, 6, matrices, 6, device_pivots, device_info, -1) == INVALID);
    CHECK(cublasSgetrfBatched(handle, 6, NULL, 6, device_pivots, device_info, 2) == INVALID);
    CHECK(cublasSgetrfBatched(handle, 6, matrices, 6, device_pivots, NULL, 2) == INVALID);
    CHECK(known(a) == FLOATS && known(c) == FLOATS && known(device_info) == FLOATS);
    CHECK(cublasSgetrfBatched(handle, 6, matrices, 7, device_pivots, device_info, 2) == OK);
    CHECK(library_call_is("cublasSgetrfBatched", CUDA_R_32F) && library_value("lda") == 7);
    CHECK(library_value("n") == 6 && library_value("batch") == 2 && library_value("pivoted") == 1);
    CHECK(known(a) == FLOATS - 42 && known(b) == FLOATS - 42);
    CHECK(known(device_info) == FLOATS - 2);
    CHECK(cudaMemcpy(pivots, device_pivots, sizeof pivots, TO_HOST) == 0);
    for (int i = 0; i < 12; i++) CHECK(pivots[i] == i % 6 + 1);
    CHECK(cublasZgetrfBatched(handle, 6, matrices, 6, NULL, device_info, 2) == OK);
    CHECK(library_value("pivoted") == 0 && known(b) == FLOATS - 4 * 36);
}

/* getrs, geqrf and gels say in the host's info which parameter was refused. */
static void test_host_info(void) {
    static const struct {
        int trans, n, nrhs, lda, ldb, batch, info;
    } solves[] = {{T, 6, 3, 6, 7, 2, 0},   {N, 0, 3, 1, 1, 2, 0},   {3, 6, 3, 6, 6, 2, -1},
                  {N, -6, 3, 6, 6, 2, -2}, {N, 6, -3, 6, 6, 2, -3}, {N, 6, 3, 5, 6, 2, -5},
                  {N, 6, 3, 6, 5, 2, -8},  {N, 6, 3, 6, 6, -2, -10}};
    for (size_t i = 0; i < sizeof solves / sizeof *solves; i++) {
        int info = 99, trans = solves[i].trans, n = solves[i].n, nrhs = solves[i].nrhs;
        int written = solves[i].info || n == 0 ? 0 : solves[i].ldb * nrhs;
        define_all();
        CHECK(cublasSgetrsBatched(handle, trans, n, nrhs, matrices, solves[i].lda, NULL, sides,
                                  solves[i].ldb, &info, solves[i].batch) ==
              (solves[i].info ? INVALID : OK));
        CHECK(info == solves[i].info);
        CHECK(known(c) == FLOATS - written && known(d) == FLOATS - written);
    }

    static const struct {
        int m, n, lda, batch, info;
    } factors[] = {{8, 5, 9, 2, 0},   {0, 5, 1, 2, 0},   {-8, 5, 8, 2, -1},
                   {8, -5, 8, 2, -2}, {8, 5, 7, 2, -4}, {8, 5, 8, -2, -7}};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        int info = 99, m = factors[i].m, n = factors[i].n, fails = factors[i].info != 0;
        define_all();
        CHECK(cublasSgeqrfBatched(handle, m, n, matrices, factors[i].lda, sides, &info,
                                  factors[i].batch) == (fails ? INVALID : OK));
        CHECK(info == factors[i].info);
        CHECK(known(b) == FLOATS - (fails || m == 0 ? 0 : factors[i].lda * n));
        CHECK(known(d) == FLOATS - (fails || m == 0 ? 0 : 5));
    }

    static const struct {
        int trans, m, n, nrhs, lda, ldc, batch, info, status;
    } squares[] = {
        {N, 8, 5, 3, 8, 9, 2, 0, OK},         {3, 8, 5, 3, 8, 8, 2, -1, INVALID},
        {N, -8, 5, 3, 8, 8, 2, -2, INVALID},  {N, 8, -5, 3, 8, 8, 2, -3, INVALID},
        {N, 8, 5, -3, 8, 8, 2, -4, INVALID},  {N, 8, 5, 3, 7, 8, 2, -6, INVALID},
        {N, 8, 5, 3, 8, 7, 2, -8, INVALID},   {N, 8, 5, 3, 8, 8, -2, -11, INVALID},
        {T, 8, 5, 3, 8, 8, 2, -1, NOT_SUPPORTED}, {N, 5, 8, 3, 5, 8, 2, -2, NOT_SUPPORTED},
    };
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++) {
        int info = 99, fails = squares[i].status != OK;
        define_all();
        CHECK(cublasSgelsBatched(handle, squares[i].trans, squares[i].m, squares[i].n,
                                 squares[i].nrhs, matrices, squares[i].lda, sides, squares[i].ldc,
                                 &info, device_info, squares[i].batch) == squares[i].status);
        CHECK(info == squares[i].info);
        CHECK(known(a) == FLOATS - (fails ? 0 : 40) && known(c) == FLOATS - (fails ? 0 : 27));
        CHECK(known(device_info) == FLOATS - (fails ? 0 : 2));
    }
    CHECK(library_call_is("cublasSgelsBatched", CUDA_R_32F) && library_value("ldc") == 9);
    CHECK(library_value("m") == 8 && library_value("n") == 5 && library_value("nrhs") == 3);

    int info = 99;
    CHECK(cublasSgetrsBatched(handle, N, 6, 3, NULL, 6, NULL, sides, 6, &info, 2) == INVALID);
    CHECK(info == -4);
    CHECK(cublasSgetrsBatched(handle, N, 6, 3, matrices, 6, NULL, NULL, 6, &info, 2) == INVALID);
    CHECK(info == -7);
    CHECK(cublasSgeqrfBatched(handle, 8, 5, matrices, 8, NULL, &info, 2) == INVALID && info == -5);
    CHECK(cublasSgetrsBatched(handle, N, 6, 3, matrices, 6, NULL, sides, 6, NULL, 2) == INVALID);
    CHECK(cublasSgeqrfBatched(NULL, 8, 5, matrices, 8, sides, &info, 2) ==
          CUBLAS_STATUS_NOT_INITIALIZED);
}

/* A batched product makes its outputs unknown and not the array that names them: the second one
   finds them again. */
static void test_product(void) {
    const void *const *inputs = (const void *const *)matrices;
    for (int i = 0; i < 2; i++) {
        define_all();
        CHECK(cublasSgemmBatched(handle, 0, 0, 4, 3, 5, &one, inputs, 4, inputs, 5, &one, sides, 6,
                                 2) == OK);
        CHECK(known(c) == FLOATS - 18 && known(d) == FLOATS - 18 && known(a) == FLOATS);
    }
}

int main(void) {
    open_trace();
    void **buffers[] = {(void **)&a, (void **)&b, (void **)&c, (void **)&d, (void **)&device_info};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        CHECK(cudaMalloc(buffers[i], FLOATS * sizeof(float)) == 0);
    matrices = array_of(a, b);
    sides = array_of(c, d);
    CHECK(cublasCreate_v2(&handle) == OK);
    test_triangular();
    test_factorization();
    test_host_info();
    test_product();
    CHECK(cublasDestroy_v2(handle) == OK && cudaFree(matrices) == 0 && cudaFree(sides) == 0);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) CHECK(cudaFree(*buffers[i]) == 0);
    close_trace();
    puts("cublas solvers ok");
    return 0;
}
