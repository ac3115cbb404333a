/* cuSPARSE: descriptors, errors, estimates, and what products and solves record. */
#include "cuda_types.h"
#include "library_test.h"

typedef void *object;
int cusparseCreate(object *);
int cusparseDestroy(object);
int cusparseSetPointerMode(object, int);
int cusparseCreateCsr(object *, int64_t, int64_t, int64_t, void *, void *, void *, int, int, int,
                      int);
int cusparseDestroySpMat(object);
int cusparseSpMatGetSize(object, int64_t *, int64_t *, int64_t *);
int cusparseSpMatSetAttribute(object, int, void *, size_t);
int cusparseCreateDnMat(object *, int64_t, int64_t, int64_t, void *, int, int);
int cusparseDestroyDnMat(object);
int cusparseSpMM_bufferSize(object, int, int, const void *, object, object, const void *, object,
                            int, int, size_t *);
int cusparseSpMM(object, int, int, const void *, object, object, const void *, object, int, int,
                 void *);
int cusparseSpGEMM_createDescr(object *);
int cusparseSpGEMM_destroyDescr(object);
int cusparseSpGEMM_compute(object, int, int, const void *, object, object, const void *, object,
                           int, int, object, size_t *, void *);
int cusparseCreateIdentityPermutation(object, int, int *);
int cusparseXcsrgeam2Nnz(object, int, int, object, int, const int *, const int *, object, int,
                         const int *, const int *, object, int *, int *, void *);
int cusparseCreateBsrsv2Info(object *);
int cusparseDestroyBsrsv2Info(object);
int cusparseXbsrsv2_zeroPivot(object, object, int *);
int cusparseSbsrmm(object, int, int, int, int, int, int, int, const float *, object,
                   const float *, const int *, const int *, int, const float *, int,
                   const float *, float *, int);
const char *cusparseGetErrorString(int);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);

enum { INDEX_32I = 2, COLUMN = 1, ROW = 2, F32 = CUDA_R_32F };

static void *memory(size_t bytes) {
    void *pointer;
    CHECK(cudaMalloc(&pointer, bytes) == 0);
    return pointer;
}

static object csr(int64_t rows, int64_t columns, int64_t nonzero) {
    object made;
    CHECK(cusparseCreateCsr(&made, rows, columns, nonzero, NULL, NULL, NULL, INDEX_32I, INDEX_32I,
                            0, F32) == 0);
    return made;
}

static void test_product(object handle) {
    float one = 1, back = 0;
    size_t bytes = 0;
    void *b_memory = memory(4096), *c_memory = memory(4096);
    object a = csr(10, 20, 30), b, c, narrow;
    CHECK(cusparseCreateDnMat(&b, 20, 4, 19, b_memory, F32, COLUMN) == 3); /* ld too small */
    CHECK(cusparseCreateDnMat(&b, 20, 4, 20, b_memory, F32, COLUMN) == 0);
    CHECK(cusparseCreateDnMat(&c, 10, 4, 4, c_memory, F32, ROW) == 0);
    CHECK(cusparseCreateDnMat(&narrow, 9, 4, 4, c_memory, F32, ROW) == 0);
    CHECK(cusparseSpMM_bufferSize(handle, 0, 0, &one, a, b, &one, c, F32, 0, &bytes) == 0);
    CHECK(bytes == 256);
    CHECK(cusparseSpMM(handle, 0, 0, &one, a, b, &one, narrow, F32, 0, NULL) == 3);
    CHECK(cusparseSpMM(NULL, 0, 0, &one, a, b, &one, c, F32, 0, NULL) == 1);
    CHECK(count_of(US_API_LIBRARY) == 0);
    CHECK(cudaMemcpy(c_memory, &one, sizeof one, 1) == 0);
    CHECK(cusparseSpMM(handle, 0, 0, &one, a, b, &one, c, F32, 0, NULL) == 0);
    CHECK(cudaMemcpy(&back, c_memory, sizeof back, 2) == 0 && back == 0);
    CHECK(library_value("m") == 10 && library_value("n") == 4 && library_value("k") == 20);
    CHECK(library_value("nnz") == 30 && library_value("orderC") == ROW);
    CHECK(library_value("index_bytes") == 4);
    CHECK(cusparseDestroySpMat(a) == 0 && cusparseDestroyDnMat(b) == 0);
    CHECK(cusparseDestroyDnMat(c) == 0 && cusparseDestroyDnMat(narrow) == 0);
    CHECK(cudaFree(b_memory) == 0 && cudaFree(c_memory) == 0);
}

/* 1000 terms on 100 x 100 places: 10000 (1 - exp(-1000 / 10000)) of them are occupied. */
static void test_sparse_product(object handle) {
    float one = 1;
    size_t bytes = 0;
    int64_t rows, columns, nonzero;
    object info, a = csr(100, 10, 100), b = csr(10, 100, 100), c = csr(100, 100, 0);
    CHECK(cusparseSpGEMM_createDescr(&info) == 0);
    CHECK(cusparseSpGEMM_compute(handle, 0, 0, &one, b, b, &one, c, F32, 0, info, &bytes, NULL) ==
          3);
    CHECK(cusparseSpGEMM_compute(handle, 0, 0, &one, a, b, &one, c, F32, 0, info, &bytes, NULL) ==
          0);
    CHECK(bytes >= 1000 * 8 && cusparseSpMatGetSize(c, &rows, &columns, &nonzero) == 0);
    CHECK(nonzero == 0);
    CHECK(cusparseSpGEMM_compute(handle, 0, 0, &one, a, b, &one, c, F32, 0, info, &bytes, &one) ==
          0);
    CHECK(cusparseSpMatGetSize(c, &rows, &columns, &nonzero) == 0 && nonzero == 952);
    CHECK(library_value("nnz_c") == 952 && library_value("nnz_b") == 100);
    CHECK(cusparseSpGEMM_destroyDescr(info) == 0);
    CHECK(cusparseDestroySpMat(a) == 0 && cusparseDestroySpMat(b) == 0);
    CHECK(cusparseDestroySpMat(c) == 0);
}

static void test_structure(object handle) {
    int total = 0, read[8], *offsets = memory(256);
    CHECK(cusparseCreateIdentityPermutation(handle, 8, offsets) == 0);
    CHECK(cudaMemcpy(read, offsets, sizeof read, 2) == 0 && read[0] == 0 && read[7] == 7);
    CHECK(cusparseXcsrgeam2Nnz(handle, 4, 4, NULL, 5, NULL, NULL, NULL, 6, NULL, NULL, NULL,
                               offsets, &total, NULL) == 0);
    CHECK(total == 11);
    CHECK(cusparseXcsrgeam2Nnz(handle, 2, 4, NULL, 5, NULL, NULL, NULL, 6, NULL, NULL, NULL,
                               offsets, &total, NULL) == 0);
    CHECK(total == 8); /* as many as there are places */
    object info;
    int position = 5;
    CHECK(cusparseCreateBsrsv2Info(&info) == 0);
    CHECK(cusparseXbsrsv2_zeroPivot(handle, info, &position) == 0 && position == -1);
    CHECK(cusparseDestroyBsrsv2Info(info) == 0);
    CHECK(cudaFree(offsets) == 0);
}

static void test_blocks(object handle) {
    float one = 1, *c = memory(4096);
    CHECK(cusparseSbsrmm(handle, 0, 0, 0, 3, 5, 4, 6, &one, NULL, NULL, NULL, NULL, 0, NULL, 8,
                         &one, c, 6) == 3);
    CHECK(cusparseSbsrmm(handle, 0, 0, 0, 3, 5, 4, 6, &one, NULL, NULL, NULL, NULL, 2, NULL, 8,
                         &one, c, 6) == 0);
    CHECK(library_value("m") == 6 && library_value("n") == 5 && library_value("k") == 8);
    CHECK(library_value("nnz") == 24 && library_value("blockDim") == 2);
    CHECK(cudaFree(c) == 0);
}

int main(void) {
    object handle, bad;
    open_trace();
    CHECK(cusparseCreate(NULL) == 3 && cusparseCreate(&handle) == 0);
    CHECK(cusparseCreateCsr(&bad, -1, 1, 1, NULL, NULL, NULL, INDEX_32I, INDEX_32I, 0, F32) == 3);
    CHECK(strcmp(cusparseGetErrorString(10), "operation not supported") == 0);
    test_product(handle);
    test_sparse_product(handle);
    test_structure(handle);
    test_blocks(handle);
    CHECK(cusparseDestroy(handle) == 0);
    close_trace();
    puts("cusparse ok");
    return 0;
}
