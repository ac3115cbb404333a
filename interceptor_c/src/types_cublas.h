/*
 * Own declarations for cuBLAS and cuBLASLt 13 (numbers are part of their ABI), and the one function
 * that both use to record a matrix product.
 */
#ifndef UNDERSTUDY_TYPES_CUBLAS_H
#define UNDERSTUDY_TYPES_CUBLAS_H

#include "interceptor.h"

/* What CUDA 13.0.3 (torch 2.14.1's toolkit) ships: 13.1.1. */

typedef int cublasStatus_t;
enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16,
};

typedef int cublasOperation_t;
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };

typedef int cublasPointerMode_t;
enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 };

typedef int cublasMath_t; /* a mode in the low four bits, flags above */
enum { US_CUBLAS_MATH_MODE_MASK = 15, CUBLAS_TF32_TENSOR_OP_MATH = 3 };

typedef int cublasComputeType_t;
enum {
    US_CUBLAS_COMPUTE_LEGACY = -1, /* calls that carry no compute type */
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
};

typedef int cublasGemmAlgo_t;
typedef int cublasAtomicsMode_t;
typedef int libraryPropertyType;
enum { US_PROPERTY_MAJOR = 0, US_PROPERTY_MINOR = 1, US_PROPERTY_PATCH = 2 };

typedef struct cublasContext *cublasHandle_t;

/* Pointers to single and double complex numbers are passed through untouched. */
typedef struct {
    float x, y;
} cuComplex;
typedef struct {
    double x, y;
} cuDoubleComplex;

/* cuBLASLt: descriptors are "semi-opaque", the caller may own the memory, so the sizes are ABI. */
#define US_LT_LAYOUT_BYTES 64
#define US_LT_MATMUL_DESC_BYTES 256
#define US_LT_PREFERENCE_BYTES 64

typedef struct us_lt_layout *cublasLtMatrixLayout_t;
typedef struct us_lt_matmul *cublasLtMatmulDesc_t;
typedef struct us_lt_preference *cublasLtMatmulPreference_t;
typedef void *cublasLtHandle_t; /* PyTorch passes its cublasHandle_t here; both are accepted */

typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

enum { CUBLASLT_ORDER_COL = 0, CUBLASLT_ORDER_ROW = 1 };
enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    US_LT_EPILOGUE_BIAS_GRADIENT = 16 | 256 | 512, /* BGRAD, BGRADA, BGRADB write the bias */
    US_LT_EPILOGUE_BACKWARD = 8 | 64,              /* DRELU, DGELU read the auxiliary pointer */
    US_LT_EPILOGUE_AUX = 128,
};

const char *us_cublas_status_name(cublasStatus_t status);
cudaStream_t us_cublas_stream(cublasHandle_t handle);
const char *us_cublas_status_string(cublasStatus_t status);
cublasStatus_t us_cublas_property(libraryPropertyType type, int *value);

/* Completes a record that us_record_begin(US_API_GEMM) started: fills its definition and pointers,
   marks D as overwritten (ldd * n elements of type_d in each batch element) and emits it. `api` is
   the name of the called function. */
void us_gemm_emit(struct us_record *record, struct us_gemm *gemm, const char *api,
                  cudaStream_t stream, const void *a, const void *b, const void *c, const void *d);

#endif
