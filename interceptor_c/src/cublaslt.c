/*
 * cuBLASLt: descriptors kept as plain data inside the caller's (or our) 64 and 256 bytes, one
 * heuristic result for every problem, and the matrix product with its epilogue.
 */
#include <stdlib.h>
#include <string.h>

#include "types_cublas.h"
#include "versions.h"

/* Descriptors -------------------------------------------------------------------------------- */

struct us_lt_layout {
    uint64_t rows, columns;
    int64_t leading_dimension, batch_stride, plane_offset;
    cudaDataType_t type;
    int32_t order, batch_count, batch_mode;
};

struct us_lt_matmul {
    int32_t compute_type, scale_type, pointer_mode, transpose_a, transpose_b, transpose_c;
    int32_t fill_mode, epilogue;
    void *bias, *auxiliary;
    int64_t bias_batch_stride, auxiliary_leading_dimension, auxiliary_batch_stride;
    int64_t alpha_batch_stride;
    void *scale_a, *scale_b, *scale_c, *scale_d, *amax_d, *auxiliary_scale, *auxiliary_amax;
    void *scale_d_out, *emulation;
    int32_t multiprocessor_target, auxiliary_type, bias_type;
    int32_t scale_mode_a, scale_mode_b, scale_mode_c, scale_mode_d, scale_mode_auxiliary;
    int32_t scale_mode_d_out;
    int8_t fast_accumulation;
};

struct us_lt_preference {
    uint64_t workspace_bytes, implementation_mask;
    uint32_t search_mode, reduction_schemes, alignment_a, alignment_b, alignment_c, alignment_d;
    float waves;
};

_Static_assert(sizeof(struct us_lt_layout) <= US_LT_LAYOUT_BYTES, "layout outgrows its ABI");
_Static_assert(sizeof(struct us_lt_matmul) <= US_LT_MATMUL_DESC_BYTES, "matmul outgrows its ABI");
_Static_assert(sizeof(struct us_lt_preference) <= US_LT_PREFERENCE_BYTES, "preference too big");

/* Where an attribute lies in its descriptor. Attribute numbers index the tables below. */
struct attribute {
    uint16_t offset, bytes; /* bytes = 0: no such attribute */
};

#define US_AT(type, member) {offsetof(type, member), sizeof(((type *)0)->member)}
#define US_COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct attribute layout_attributes[] = {
    [0] = US_AT(struct us_lt_layout, type),
    [1] = US_AT(struct us_lt_layout, order),
    [2] = US_AT(struct us_lt_layout, rows),
    [3] = US_AT(struct us_lt_layout, columns),
    [4] = US_AT(struct us_lt_layout, leading_dimension),
    [5] = US_AT(struct us_lt_layout, batch_count),
    [6] = US_AT(struct us_lt_layout, batch_stride),
    [7] = US_AT(struct us_lt_layout, plane_offset),
    [8] = US_AT(struct us_lt_layout, batch_mode),
};

static const struct attribute matmul_attributes[] = {
    [0] = US_AT(struct us_lt_matmul, compute_type),
    [1] = US_AT(struct us_lt_matmul, scale_type),
    [2] = US_AT(struct us_lt_matmul, pointer_mode),
    [3] = US_AT(struct us_lt_matmul, transpose_a),
    [4] = US_AT(struct us_lt_matmul, transpose_b),
    [5] = US_AT(struct us_lt_matmul, transpose_c),
    [6] = US_AT(struct us_lt_matmul, fill_mode),
    [7] = US_AT(struct us_lt_matmul, epilogue),
    [8] = US_AT(struct us_lt_matmul, bias),
    [10] = US_AT(struct us_lt_matmul, bias_batch_stride),
    [11] = US_AT(struct us_lt_matmul, auxiliary),
    [12] = US_AT(struct us_lt_matmul, auxiliary_leading_dimension),
    [13] = US_AT(struct us_lt_matmul, auxiliary_batch_stride),
    [14] = US_AT(struct us_lt_matmul, alpha_batch_stride),
    [15] = US_AT(struct us_lt_matmul, multiprocessor_target),
    [17] = US_AT(struct us_lt_matmul, scale_a),
    [18] = US_AT(struct us_lt_matmul, scale_b),
    [19] = US_AT(struct us_lt_matmul, scale_c),
    [20] = US_AT(struct us_lt_matmul, scale_d),
    [21] = US_AT(struct us_lt_matmul, amax_d),
    [22] = US_AT(struct us_lt_matmul, auxiliary_type),
    [23] = US_AT(struct us_lt_matmul, auxiliary_scale),
    [24] = US_AT(struct us_lt_matmul, auxiliary_amax),
    [25] = US_AT(struct us_lt_matmul, fast_accumulation),
    [26] = US_AT(struct us_lt_matmul, bias_type),
    [31] = US_AT(struct us_lt_matmul, scale_mode_a),
    [32] = US_AT(struct us_lt_matmul, scale_mode_b),
    [33] = US_AT(struct us_lt_matmul, scale_mode_c),
    [34] = US_AT(struct us_lt_matmul, scale_mode_d),
    [35] = US_AT(struct us_lt_matmul, scale_mode_auxiliary),
    [36] = US_AT(struct us_lt_matmul, scale_d_out),
    [37] = US_AT(struct us_lt_matmul, scale_mode_d_out),
    [38] = US_AT(struct us_lt_matmul, emulation),
};

static const struct attribute preference_attributes[] = {
    [0] = US_AT(struct us_lt_preference, search_mode),
    [1] = US_AT(struct us_lt_preference, workspace_bytes),
    [3] = US_AT(struct us_lt_preference, reduction_schemes),
    [5] = US_AT(struct us_lt_preference, alignment_a),
    [6] = US_AT(struct us_lt_preference, alignment_b),
    [7] = US_AT(struct us_lt_preference, alignment_c),
    [8] = US_AT(struct us_lt_preference, alignment_d),
    [9] = US_AT(struct us_lt_preference, waves),
    [12] = US_AT(struct us_lt_preference, implementation_mask),
};

/* Algorithms: the configuration attributes 0..8 are kept as one 32-bit word each. */
enum { ALGO_ATTRIBUTES = 9 };
static const uint8_t algo_attribute_bytes[ALGO_ATTRIBUTES] = {4, 4, 4, 4, 4, 4, 4, 2, 2};
_Static_assert(ALGO_ATTRIBUTES * 4 <= sizeof(cublasLtMatmulAlgo_t), "algorithm outgrows its ABI");

static const struct attribute *find_attribute(const struct attribute *table, size_t count,
                                              int attribute) {
    if (attribute < 0 || (size_t)attribute >= count || table[attribute].bytes == 0) return NULL;
    return &table[attribute];
}

static cublasStatus_t set_attribute(void *descriptor, const struct attribute *attribute,
                                    const void *value, size_t bytes) {
    if (descriptor == NULL || attribute == NULL || value == NULL || bytes < attribute->bytes) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy((char *)descriptor + attribute->offset, value, attribute->bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* With bytes = 0 only the size that is needed is written, as documented. */
static cublasStatus_t get_attribute(const void *descriptor, const struct attribute *attribute,
                                    void *value, size_t bytes, size_t *written) {
    if (descriptor == NULL || attribute == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes == 0) {
        if (written == NULL) return CUBLAS_STATUS_INVALID_VALUE;
        *written = attribute->bytes;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (value == NULL || bytes < attribute->bytes) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, (const char *)descriptor + attribute->offset, attribute->bytes);
    if (written != NULL) *written = attribute->bytes;
    return CUBLAS_STATUS_SUCCESS;
}

#define US_LT_ATTRIBUTES(set, get, descriptor_type, table)                                         \
    US_EXPORT cublasStatus_t set(descriptor_type descriptor, int attribute, const void *value,     \
                                 size_t bytes) {                                                   \
        return set_attribute(descriptor, find_attribute(table, US_COUNT(table), attribute), value, \
                             bytes);                                                               \
    }                                                                                              \
    US_EXPORT cublasStatus_t get(descriptor_type descriptor, int attribute, void *value,           \
                                 size_t bytes, size_t *written) {                                  \
        return get_attribute(descriptor, find_attribute(table, US_COUNT(table), attribute), value, \
                             bytes, written);                                                      \
    }

#define US_LT_DESTROY(name, descriptor_type)                                                       \
    US_EXPORT cublasStatus_t name(descriptor_type descriptor) {                                    \
        free(descriptor);                                                                          \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }

US_LT_ATTRIBUTES(cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayoutGetAttribute,
                 cublasLtMatrixLayout_t, layout_attributes)
US_LT_ATTRIBUTES(cublasLtMatmulDescSetAttribute, cublasLtMatmulDescGetAttribute,
                 cublasLtMatmulDesc_t, matmul_attributes)
US_LT_ATTRIBUTES(cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreferenceGetAttribute,
                 cublasLtMatmulPreference_t, preference_attributes)
US_LT_DESTROY(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
US_LT_DESTROY(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
US_LT_DESTROY(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)

static void init_layout(struct us_lt_layout *layout, cudaDataType_t type, uint64_t rows,
                        uint64_t columns, int64_t leading_dimension) {
    *layout = (struct us_lt_layout){.rows = rows,
                                    .columns = columns,
                                    .leading_dimension = leading_dimension,
                                    .type = type,
                                    .batch_count = 1};
}

static void init_matmul(struct us_lt_matmul *matmul, cublasComputeType_t compute_type,
                        cudaDataType_t scale_type) {
    *matmul = (struct us_lt_matmul){.compute_type = compute_type,
                                    .scale_type = scale_type,
                                    .fill_mode = 2, /* CUBLAS_FILL_MODE_FULL */
                                    .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                    .auxiliary_type = -1,
                                    .bias_type = -1};
}

static void init_preference(struct us_lt_preference *preference) {
    *preference = (struct us_lt_preference){.reduction_schemes = 7, /* all of them */
                                            .implementation_mask = UINT64_MAX,
                                            .alignment_a = 256,
                                            .alignment_b = 256,
                                            .alignment_c = 256,
                                            .alignment_d = 256};
}

US_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                                    cudaDataType_t type, uint64_t rows,
                                                    uint64_t columns, int64_t leading_dimension) {
    if (layout == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = calloc(1, US_LT_LAYOUT_BYTES);
    if (*layout == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
    init_layout(*layout, type, rows, columns, leading_dimension);
    return CUBLAS_STATUS_SUCCESS;
}

/* The Init functions of the header are inline and pass the size of the caller's descriptor. */
US_EXPORT cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                           size_t bytes, cudaDataType_t type,
                                                           uint64_t rows, uint64_t columns,
                                                           int64_t leading_dimension) {
    if (layout == NULL || bytes < sizeof *layout) return CUBLAS_STATUS_INVALID_VALUE;
    init_layout(layout, type, rows, columns, leading_dimension);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmul,
                                                  cublasComputeType_t compute_type,
                                                  cudaDataType_t scale_type) {
    if (matmul == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *matmul = calloc(1, US_LT_MATMUL_DESC_BYTES);
    if (*matmul == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
    init_matmul(*matmul, compute_type, scale_type);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t matmul, size_t bytes,
                                                         cublasComputeType_t compute_type,
                                                         cudaDataType_t scale_type) {
    if (matmul == NULL || bytes < sizeof *matmul) return CUBLAS_STATUS_INVALID_VALUE;
    init_matmul(matmul, compute_type, scale_type);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    if (preference == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *preference = calloc(1, US_LT_PREFERENCE_BYTES);
    if (*preference == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
    init_preference(*preference);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulPreferenceInit_internal(
    cublasLtMatmulPreference_t preference, size_t bytes) {
    if (preference == NULL || bytes < sizeof *preference) return CUBLAS_STATUS_INVALID_VALUE;
    init_preference(preference);
    return CUBLAS_STATUS_SUCCESS;
}

/* Library ------------------------------------------------------------------------------------ */

US_EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    if (handle == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *handle = calloc(1, 16); /* nothing to keep, but handles must differ */
    return *handle == NULL ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT size_t cublasLtGetVersion(void) {
    return (size_t)us_library_versions()->cublas;
}

US_EXPORT size_t cublasLtGetCudartVersion(void) {
    return (size_t)us_library_versions()->cuda_runtime;
}

US_EXPORT const char *cublasLtGetStatusName(cublasStatus_t status) {
    return us_cublas_status_name(status);
}

US_EXPORT const char *cublasLtGetStatusString(cublasStatus_t status) {
    return us_cublas_status_string(status);
}

US_EXPORT cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value) {
    return us_cublas_property(type, value);
}

/* Matrix product ----------------------------------------------------------------------------- */

static cublasStatus_t describe(const struct us_lt_matmul *matmul, const struct us_lt_layout *a,
                               const struct us_lt_layout *b, const struct us_lt_layout *c,
                               const struct us_lt_layout *d, struct us_gemm *gemm) {
    if (matmul == NULL || a == NULL || b == NULL || c == NULL || d == NULL) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    bool turned_a = matmul->transpose_a != CUBLAS_OP_N;
    bool turned_b = matmul->transpose_b != CUBLAS_OP_N;
    uint64_t m = turned_a ? a->columns : a->rows, k = turned_a ? a->rows : a->columns;
    uint64_t n = turned_b ? b->rows : b->columns, k_of_b = turned_b ? b->columns : b->rows;
    if (k != k_of_b || d->rows != m || d->columns != n || us_cuda_type_bits(a->type) == 0 ||
        us_cuda_type_bits(b->type) == 0 || us_cuda_type_bits(d->type) == 0 ||
        d->batch_count < 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    /* A row-major operand is its transpose in the column-major terms of the record. */
    int32_t transpose_a = matmul->transpose_a, transpose_b = matmul->transpose_b;
    if (a->order == CUBLASLT_ORDER_ROW) transpose_a = turned_a ? CUBLAS_OP_N : CUBLAS_OP_T;
    if (b->order == CUBLASLT_ORDER_ROW) transpose_b = turned_b ? CUBLAS_OP_N : CUBLAS_OP_T;
    bool batched = d->batch_count > 1;
    *gemm = (struct us_gemm){
        .m = (int64_t)m,
        .n = (int64_t)n,
        .k = (int64_t)k,
        .batch = d->batch_count,
        .lda = a->leading_dimension,
        .ldb = b->leading_dimension,
        .ldc = c->leading_dimension,
        .ldd = d->leading_dimension,
        .stride_a = batched ? a->batch_stride : 0,
        .stride_b = batched ? b->batch_stride : 0,
        .stride_c = batched ? c->batch_stride : 0,
        .stride_d = batched ? d->batch_stride : 0,
        .transpose_a = transpose_a,
        .transpose_b = transpose_b,
        .type_a = a->type,
        .type_b = b->type,
        .type_c = c->type,
        .type_d = d->type,
        .compute_type = matmul->compute_type,
        .epilogue = matmul->epilogue,
    };
    return CUBLAS_STATUS_SUCCESS;
}

/* No workspace is asked for: cuBLASLt picks split-k kernels that need one, but which is not known
   without the library, and PyTorch passes its own fixed workspace in any case. */
static void fill_result(cublasLtMatmulHeuristicResult_t *result) {
    *result = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS, .wavesCount = 1.0f};
}

US_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[],
    int *returned) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (preference == NULL || requested < 1 || results == NULL || returned == NULL) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *returned = 0;
    struct us_gemm gemm;
    cublasStatus_t status = describe(matmul, a, b, c, d, &gemm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    fill_result(&results[0]);
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (algo == NULL || result == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    struct us_gemm gemm;
    cublasStatus_t status = describe(matmul, a, b, c, d, &gemm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    cublasLtMatmulAlgo_t checked = *algo; /* it may lie inside *result */
    fill_result(result);
    result->algo = checked;
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulAlgoGetIds(
    cublasLtHandle_t handle, cublasComputeType_t compute_type, cudaDataType_t scale_type,
    cudaDataType_t type_a, cudaDataType_t type_b, cudaDataType_t type_c, cudaDataType_t type_d,
    int requested, int ids[], int *returned) {
    (void)compute_type, (void)scale_type, (void)type_a, (void)type_b, (void)type_c, (void)type_d;
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (requested < 1 || ids == NULL || returned == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    ids[0] = 0;
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulAlgoInit(
    cublasLtHandle_t handle, cublasComputeType_t compute_type, cudaDataType_t scale_type,
    cudaDataType_t type_a, cudaDataType_t type_b, cudaDataType_t type_c, cudaDataType_t type_d,
    int id, cublasLtMatmulAlgo_t *algo) {
    (void)compute_type, (void)scale_type, (void)type_a, (void)type_b, (void)type_c, (void)type_d;
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (id < 0 || algo == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    memset(algo, 0, sizeof *algo);
    memcpy(algo->data, &id, sizeof id);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                              int attribute, const void *value,
                                                              size_t bytes) {
    if (algo == NULL || value == NULL || attribute < 0 || attribute >= ALGO_ATTRIBUTES ||
        bytes < algo_attribute_bytes[attribute]) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy((uint32_t *)algo->data + attribute, value, algo_attribute_bytes[attribute]);
    return CUBLAS_STATUS_SUCCESS;
}

US_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                              int attribute, void *value,
                                                              size_t bytes, size_t *written) {
    if (attribute < 0 || attribute >= ALGO_ATTRIBUTES) return CUBLAS_STATUS_INVALID_VALUE;
    struct attribute place = {(uint16_t)(attribute * 4), algo_attribute_bytes[attribute]};
    return get_attribute(algo, &place, value, bytes, written);
}

/* What a matmul writes besides D. Sizes follow from shapes that do not matter here. */
static void forget_side_outputs(const struct us_lt_matmul *matmul) {
    void *written[] = {
        matmul->epilogue & US_LT_EPILOGUE_BIAS_GRADIENT ? matmul->bias : NULL,
        (matmul->epilogue & US_LT_EPILOGUE_AUX) && !(matmul->epilogue & US_LT_EPILOGUE_BACKWARD)
            ? matmul->auxiliary
            : NULL,
        matmul->amax_d,
        matmul->auxiliary_amax,
        matmul->scale_d_out,
    };
    for (size_t i = 0; i < US_COUNT(written); i++) {
        if (written[i] != NULL) us_values_forget_at(written[i]);
    }
}

US_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                        const void *alpha, const void *a,
                                        cublasLtMatrixLayout_t a_layout, const void *b,
                                        cublasLtMatrixLayout_t b_layout, const void *beta,
                                        const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                        cublasLtMatrixLayout_t d_layout,
                                        const cublasLtMatmulAlgo_t *algo, void *workspace,
                                        size_t workspace_bytes, cudaStream_t stream) {
    /* PyTorch gives the same one to all calls of a thread. */
    static _Thread_local const void *recorded_workspace;
    if (workspace_bytes > 0 && workspace != recorded_workspace) {
        us_memory_role(workspace, US_MEMORY_CUBLAS_WORKSPACE);
        recorded_workspace = workspace;
    }
    struct us_record record = us_record_begin(US_API_GEMM);
    (void)algo;
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (alpha == NULL || beta == NULL || d == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    struct us_gemm gemm;
    cublasStatus_t status = describe(matmul, a_layout, b_layout, c_layout, d_layout, &gemm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return CUBLAS_STATUS_SUCCESS;
    forget_side_outputs(matmul);
    us_gemm_emit(&record, &gemm, "cublasLtMatmul", stream, a, b, c, d);
    return CUBLAS_STATUS_SUCCESS;
}
