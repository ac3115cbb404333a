/* Matrix products through cuBLAS and cuBLASLt: exact shapes in the trace, status codes, values. */
#include "library_test.h"
#include "types_cublas.h"

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode);
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode);
cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version);
cublasStatus_t cublasSgemm_v2(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const float *, const void *, int, const void *, int, const float *,
                              void *, int);
cublasStatus_t cublasSgemv_v2(cublasHandle_t, cublasOperation_t, int, int, const float *,
                              const void *, int, const void *, int, const float *, void *, int);
cublasStatus_t cublasSdot_v2(cublasHandle_t, int, const void *, int, const void *, int, void *);
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                            const void *, const void *, cudaDataType_t, int, const void *,
                            cudaDataType_t, int, const void *, void *, cudaDataType_t, int,
                            cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t,
                                          int, int, int, const void *, const void *,
                                          cudaDataType_t, int, long long, const void *,
                                          cudaDataType_t, int, long long, const void *, void *,
                                          cudaDataType_t, int, long long, int,
                                          cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasSgemmBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const float *, const void *const *, int, const void *const *,
                                  int, const float *, void *const *, int, int);
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t,
                                          uint64_t, int64_t);
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t, size_t, cudaDataType_t,
                                                 uint64_t, uint64_t, int64_t);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, int, const void *, size_t);
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t, int, void *, size_t,
                                                size_t *);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *, cublasComputeType_t,
                                        cudaDataType_t);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, int, const void *, size_t);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, int, const void *,
                                                    size_t);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *, int *);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                              cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                              const void *, const void *, cublasLtMatrixLayout_t, void *,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                              cudaStream_t);
cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMemcpy(void *destination, const void *source, size_t bytes, int kind);

static const float one = 1.0f, zero = 0.0f;

static struct us_gemm last_gemm(void) {
    struct us_record record = last_of(US_API_GEMM);
    size_t bytes;
    void *payload = definition_of(US_DEFINITION_GEMM, record.definition, &bytes);
    struct us_gemm gemm;
    CHECK(bytes == sizeof gemm);
    memcpy(&gemm, payload, sizeof gemm);
    free(payload);
    return gemm;
}

static void single_products(cublasHandle_t handle, float *a, float *b, float *c) {
    CHECK(cublasSgemm_v2(handle, CUBLAS_OP_T, CUBLAS_OP_N, 30, 20, 10, &one, a, 10, b, 10, &zero,
                         c, 30) == CUBLAS_STATUS_SUCCESS);
    struct us_gemm gemm = last_gemm();
    CHECK(gemm.m == 30 && gemm.n == 20 && gemm.k == 10 && gemm.batch == 1);
    CHECK(gemm.transpose_a == 1 && gemm.transpose_b == 0 && gemm.lda == 10 && gemm.ldc == 30);
    CHECK(gemm.type_a == CUDA_R_32F && gemm.type_d == CUDA_R_32F && gemm.compute_type == -1);
    CHECK(gemm.epilogue == 1 && strcmp(gemm.api, "cublasSgemm") == 0);
    struct us_record record = last_of(US_API_GEMM);
    CHECK(record.a == (uintptr_t)a && record.b == (uintptr_t)b && record.d == (uintptr_t)c);

    /* The handle's TF32 mode shows in the record, as no argument says it. */
    cublasMath_t mode = -1;
    CHECK(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH | 16) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasGetMathMode(handle, &mode) == CUBLAS_STATUS_SUCCESS && mode == 19);
    CHECK(cublasSgemm_v2(handle, 0, 0, 8, 8, 8, &one, a, 8, b, 8, &zero, c, 8) == 0);
    CHECK(last_gemm().compute_type == CUBLAS_COMPUTE_32F_FAST_TF32);
    CHECK(cublasGemmEx(handle, 0, 0, 8, 8, 8, &one, a, CUDA_R_16BF, 8, b, CUDA_R_16BF, 8, &zero,
                       c, CUDA_R_16BF, 8, CUBLAS_COMPUTE_32F, -1) == 0);
    CHECK(last_gemm().compute_type == CUBLAS_COMPUTE_32F);
    CHECK(cublasSetMathMode(handle, 0) == CUBLAS_STATUS_SUCCESS);

    CHECK(cublasSgemv_v2(handle, CUBLAS_OP_T, 7, 5, &one, a, 7, b, 1, &zero, c, 1) == 0);
    gemm = last_gemm();
    CHECK(gemm.m == 5 && gemm.n == 1 && gemm.k == 7 && gemm.transpose_a == 1);
    CHECK(strcmp(gemm.api, "cublasSgemv") == 0);

    float result = 7;
    CHECK(cublasSdot_v2(handle, 9, a, 1, b, 1, &result) == 0 && result == 0);
    CHECK(last_gemm().k == 9 && last_gemm().m == 1);
}

static void batched_products(cublasHandle_t handle, float *a, float *b, float *c) {
    CHECK(cublasGemmStridedBatchedEx(handle, 0, CUBLAS_OP_T, 4, 6, 8, &one, a, CUDA_R_16F, 4, 32,
                                     b, CUDA_R_16F, 6, 48, &zero, c, CUDA_R_16F, 4, 24, 3,
                                     CUBLAS_COMPUTE_32F, -1) == 0);
    struct us_gemm gemm = last_gemm();
    CHECK(gemm.batch == 3 && gemm.stride_a == 32 && gemm.stride_b == 48 && gemm.stride_d == 24);
    CHECK(gemm.transpose_b == 1 && gemm.ldb == 6 && gemm.type_c == CUDA_R_16F);

    void **pointers;
    CHECK(cudaMalloc((void **)&pointers, 2 * sizeof *pointers) == 0);
    CHECK(cublasSgemmBatched(handle, 0, 0, 2, 2, 2, &one, (const void *const *)pointers, 2,
                             (const void *const *)pointers, 2, &zero, pointers, 2, 2) == 0);
    CHECK(last_gemm().batch == 2 && last_gemm().stride_a == 0);
    CHECK(cudaFree(pointers) == 0);
}

static void refusals(cublasHandle_t handle, float *a, float *b, float *c) {
    size_t before = count_of(US_API_GEMM);
    CHECK(cublasCreate_v2(NULL) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(NULL, 0, 0, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1) ==
          CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(cublasSgemm_v2(handle, 3, 0, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 0, 0, -1, 1, 1, &one, a, 1, b, 1, &zero, c, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 0, 0, 4, 1, 1, &one, a, 3, b, 1, &zero, c, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 0, 0, 4, 1, 1, NULL, a, 4, b, 1, &zero, c, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    /* B of k rows, C of m rows, and op(A) of m rows: the leading dimensions of each in turn. */
    CHECK(cublasSgemm_v2(handle, 0, 0, 4, 3, 5, &one, a, 4, b, 4, &zero, c, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 0, 1, 4, 3, 5, &one, a, 4, b, 2, &zero, c, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 1, 0, 4, 3, 5, &one, a, 4, b, 5, &zero, c, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 0, 0, 4, 3, 5, &one, a, 4, b, 5, &zero, c, 3) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm_v2(handle, 0, 0, 4, 3, 5, &one, a, 4, b, 5, &zero, NULL, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemv_v2(handle, 0, 7, 5, &one, a, 6, b, 1, &zero, c, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemv_v2(handle, 0, 7, 5, &one, a, 7, b, 0, &zero, c, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    cublasPointerMode_t mode = -1;
    CHECK(cublasSetPointerMode_v2(handle, 2) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasGetPointerMode_v2(handle, &mode) == 0 && mode == CUBLAS_POINTER_MODE_HOST);
    CHECK(cublasSetWorkspace_v2(handle, (char *)a + 128, 1024) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSetWorkspace_v2(handle, NULL, 0) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasGetVersion_v2(handle, NULL) == CUBLAS_STATUS_INVALID_VALUE);
    /* Empty products are successful and launch nothing. */
    CHECK(cublasSgemm_v2(handle, 0, 0, 0, 1, 1, &one, a, 1, b, 1, &zero, c, 1) == 0);
    CHECK(count_of(US_API_GEMM) == before);
}

/* What was copied to the output before is no longer readable after a product. */
static void output_is_forgotten(cublasHandle_t handle, float *a, float *b, float *c) {
    float values[4] = {1, 2, 3, 4}, back[4] = {0};
    CHECK(cudaMemcpy(c, values, sizeof values, 1) == 0);
    CHECK(cudaMemcpy(back, c, sizeof back, 2) == 0 && back[3] == 4);
    CHECK(cublasSgemm_v2(handle, 0, 0, 2, 2, 2, &one, a, 2, b, 2, &zero, c, 2) == 0);
    CHECK(cudaMemcpy(back, c, sizeof back, 2) == 0 && back[0] == 0 && back[3] == 0);
}

static void lt_products(float *a, float *b, float *d) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t layout_a, layout_b, layout_d;
    cublasLtMatmulPreference_t preference;
    int transpose = CUBLAS_OP_T, epilogue = 4, batch = 2, returned = 0;
    int64_t stride = 128;
    uint64_t workspace = 1 << 20;
    CHECK(cublasLtCreate(&handle) == 0);
    CHECK(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 3, &transpose, sizeof transpose) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 7, &epilogue, sizeof epilogue) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 8, &b, sizeof b) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 8, &b, 4) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 9, &b, 8) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 999, &b, 8) == CUBLAS_STATUS_INVALID_VALUE);
    int scale_mode = 3;
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 31, &scale_mode, sizeof scale_mode) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&layout_a, CUDA_R_16BF, 8, 16, 8) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&layout_b, CUDA_R_16BF, 8, 4, 8) == 0);
    /* A descriptor in the caller's memory, as the header's inline Init functions make it. */
    uint64_t storage[US_LT_LAYOUT_BYTES / 8];
    layout_d = (cublasLtMatrixLayout_t)storage;
    CHECK(cublasLtMatrixLayoutInit_internal(layout_d, sizeof storage, CUDA_R_16BF, 16, 4, 16) == 0);
    cublasLtMatrixLayout_t layouts[] = {layout_a, layout_b, layout_d};
    for (size_t i = 0; i < 3; i++) {
        CHECK(cublasLtMatrixLayoutSetAttribute(layouts[i], 5, &batch, sizeof batch) == 0);
        CHECK(cublasLtMatrixLayoutSetAttribute(layouts[i], 6, &stride, sizeof stride) == 0);
    }
    uint64_t rows = 0;
    size_t written = 0;
    CHECK(cublasLtMatrixLayoutGetAttribute(layout_a, 2, NULL, 0, &written) == 0 && written == 8);
    CHECK(cublasLtMatrixLayoutGetAttribute(layout_a, 2, &rows, sizeof rows, NULL) == 0);
    CHECK(rows == 8);

    CHECK(cublasLtMatmulPreferenceCreate(&preference) == 0);
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &workspace, sizeof workspace) == 0);
    cublasLtMatmulHeuristicResult_t results[2];
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, matmul, layout_a, layout_b, layout_d, layout_d,
                                         preference, 2, results, &returned) == 0);
    CHECK(returned == 1 && results[0].state == 0 && results[0].workspaceSize == 0);
    /* B and A swapped do not fit together. */
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, matmul, layout_b, layout_a, layout_d, layout_d,
                                         preference, 1, results, &returned) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(returned == 0);

    CHECK(cublasLtMatmul(handle, matmul, &one, a, layout_a, b, layout_b, &zero, d, layout_d, d,
                         layout_d, &results[0].algo, NULL, 0, NULL) == 0);
    struct us_gemm gemm = last_gemm();
    CHECK(gemm.m == 16 && gemm.n == 4 && gemm.k == 8 && gemm.batch == 2);
    CHECK(gemm.transpose_a == 1 && gemm.transpose_b == 0 && gemm.epilogue == 4);
    CHECK(gemm.stride_a == 128 && gemm.ldd == 16 && gemm.type_d == CUDA_R_16BF);
    CHECK(strcmp(gemm.api, "cublasLtMatmul") == 0);

    CHECK(cublasLtMatmulPreferenceDestroy(preference) == 0);
    CHECK(cublasLtMatrixLayoutDestroy(layout_a) == 0 && cublasLtMatrixLayoutDestroy(layout_b) == 0);
    CHECK(cublasLtMatmulDescDestroy(matmul) == 0 && cublasLtDestroy(handle) == 0);
}

int main(void) {
    open_trace();
    cublasHandle_t handle;
    float *a, *b, *c;
    CHECK(cublasCreate_v2(&handle) == CUBLAS_STATUS_SUCCESS);
    CHECK(cudaMalloc((void **)&a, 4096) == 0 && cudaMalloc((void **)&b, 4096) == 0);
    CHECK(cudaMalloc((void **)&c, 4096) == 0);
    single_products(handle, a, b, c);
    batched_products(handle, a, b, c);
    refusals(handle, a, b, c);
    output_is_forgotten(handle, a, b, c);
    lt_products(a, b, c);
    CHECK(cudaFree(a) == 0 && cudaFree(b) == 0 && cudaFree(c) == 0);
    CHECK(cublasDestroy_v2(handle) == CUBLAS_STATUS_SUCCESS);
    close_trace();
    return 0;
}
