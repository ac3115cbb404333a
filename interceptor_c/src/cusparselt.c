/*
 * cuSPARSELt: products with a matrix of which two of four neighbouring elements are zero. Its
 * descriptors are the caller's memory (512 bytes each), so they hold copies of what they refer to.
 *
 * The compressed size is exact: half of the elements, and two bits for the place of each, which is
 * 9/16 of the dense size for 16-bit elements and 10/16 for 8-bit ones (PyTorch computes k from it:
 * aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp). 32-bit elements count as 16-bit ones: one of
 * two is kept, with four bits. Work spaces are not documented and taken as 0: kernels that do not
 * split k need none.
 */
#include <string.h>

#include "core.h"
#include "library_call.h"

typedef int cusparseStatus_t;
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 3, NOT_SUPPORTED = 10 };
enum { ORDER_COLUMN = 1, ORDER_ROW = 2 };
enum { OBJECT_BYTES = 512, MAGIC_HANDLE = 0x55534c48, MAGIC_OBJECT = 0x55534c4f };
enum { MAT_NUM_BATCHES = 0, MAT_BATCH_STRIDE = 1 };
enum {
    MATMUL_ACTIVATION_RELU = 0,
    MATMUL_ACTIVATION_GELU = 3,
    MATMUL_BIAS_POINTER = 8,
    MATMUL_ATTRIBUTES = 20,
};
enum {
    ALG_CONFIG_ID = 0,
    ALG_CONFIG_MAX_ID = 1,
    ALG_SPLIT_K = 3,
    ALG_ATTRIBUTES = 6,
};

struct us_slt_handle {
    uint32_t magic;
    int device;
};

struct us_slt_matrix {
    uint32_t magic;
    int type, order, structured;
    int64_t rows, columns, leading;
    int64_t batch_stride;
    int batch;
};

struct us_slt_matmul {
    uint32_t magic;
    int operation_a, operation_b, compute_type;
    int relu, gelu, bias;
    struct us_slt_matrix a, b, c, d;
};

struct us_slt_selection {
    uint32_t magic;
    int values[ALG_ATTRIBUTES];
};

struct us_slt_plan {
    struct us_slt_matmul matmul;
    struct us_slt_selection selection;
};

_Static_assert(sizeof(struct us_slt_matmul) <= OBJECT_BYTES, "the caller's memory");
_Static_assert(sizeof(struct us_slt_plan) <= OBJECT_BYTES, "the caller's memory");

static bool is_handle(const struct us_slt_handle *handle) {
    return handle != NULL && handle->magic == MAGIC_HANDLE;
}

US_EXPORT cusparseStatus_t cusparseLtInit(struct us_slt_handle *handle) {
    if (handle == NULL) return INVALID_VALUE;
    if (us_device()->compute_capability_major < 8) {
        return us_unsupported("cusparseLtInit: needs compute capability 8.0", NOT_SUPPORTED);
    }
    memset(handle, 0, OBJECT_BYTES);
    *handle = (struct us_slt_handle){MAGIC_HANDLE, us_current_device()};
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtDestroy(const struct us_slt_handle *handle) {
    return is_handle(handle) ? SUCCESS : NOT_INITIALIZED;
}

/* Matrices ----------------------------------------------------------------------------------- */

static cusparseStatus_t describe(const struct us_slt_handle *handle, struct us_slt_matrix *matrix,
                                 int64_t rows, int64_t columns, int64_t leading,
                                 cudaDataType_t type, int order, bool structured) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (matrix == NULL || rows < 1 || columns < 1 || us_cuda_type_bits(type) == 0 ||
        (order != ORDER_COLUMN && order != ORDER_ROW) ||
        leading < (order == ORDER_ROW ? columns : rows)) {
        return INVALID_VALUE;
    }
    memset(matrix, 0, OBJECT_BYTES);
    *matrix = (struct us_slt_matrix){.magic = MAGIC_OBJECT,
                                     .type = type,
                                     .order = order,
                                     .structured = structured,
                                     .rows = rows,
                                     .columns = columns,
                                     .leading = leading,
                                     .batch = 1};
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtDenseDescriptorInit(const struct us_slt_handle *handle,
                                                         struct us_slt_matrix *matrix,
                                                         int64_t rows, int64_t columns,
                                                         int64_t leading, uint32_t alignment,
                                                         cudaDataType_t type, int order) {
    (void)alignment;
    return describe(handle, matrix, rows, columns, leading, type, order, false);
}

US_EXPORT cusparseStatus_t cusparseLtStructuredDescriptorInit(
    const struct us_slt_handle *handle, struct us_slt_matrix *matrix, int64_t rows,
    int64_t columns, int64_t leading, uint32_t alignment, cudaDataType_t type, int order,
    int sparsity) {
    (void)alignment;
    if (sparsity != 0) return INVALID_VALUE; /* CUSPARSELT_SPARSITY_50_PERCENT is all there is */
    return describe(handle, matrix, rows, columns, leading, type, order, true);
}

US_EXPORT cusparseStatus_t cusparseLtMatDescriptorDestroy(const struct us_slt_matrix *matrix) {
    return matrix != NULL ? SUCCESS : INVALID_VALUE;
}

US_EXPORT cusparseStatus_t cusparseLtMatDescSetAttribute(const struct us_slt_handle *handle,
                                                         struct us_slt_matrix *matrix,
                                                         int attribute, const void *data,
                                                         size_t bytes) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (matrix == NULL || matrix->magic != MAGIC_OBJECT || data == NULL) return INVALID_VALUE;
    if (attribute == MAT_NUM_BATCHES && bytes == sizeof matrix->batch) {
        memcpy(&matrix->batch, data, bytes);
    } else if (attribute == MAT_BATCH_STRIDE && bytes == sizeof matrix->batch_stride) {
        memcpy(&matrix->batch_stride, data, bytes);
    } else {
        return INVALID_VALUE;
    }
    return SUCCESS;
}

/* Compression -------------------------------------------------------------------------------- */

static size_t dense_bytes(const struct us_slt_matrix *matrix) {
    return (size_t)matrix->rows * (size_t)matrix->columns * (size_t)matrix->batch *
           (size_t)us_cuda_type_bits(matrix->type) / 8;
}

static size_t compressed_bytes(const struct us_slt_matrix *matrix) {
    return dense_bytes(matrix) / 16 * (us_cuda_type_bits(matrix->type) <= 8 ? 10 : 9);
}

US_EXPORT cusparseStatus_t cusparseLtSpMMACompressedSize2(const struct us_slt_handle *handle,
                                                          const struct us_slt_matrix *matrix,
                                                          size_t *bytes, size_t *buffer_bytes) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (matrix == NULL || matrix->magic != MAGIC_OBJECT || !matrix->structured || bytes == NULL ||
        buffer_bytes == NULL) {
        return INVALID_VALUE;
    }
    *bytes = compressed_bytes(matrix);
    *buffer_bytes = 0;
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtSpMMACompress2(const struct us_slt_handle *handle,
                                                    const struct us_slt_matrix *matrix,
                                                    int is_sparse_a, int operation,
                                                    const void *dense, void *compressed,
                                                    void *buffer, cudaStream_t stream) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)buffer;
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (matrix == NULL || matrix->magic != MAGIC_OBJECT || !matrix->structured || dense == NULL ||
        compressed == NULL) {
        return INVALID_VALUE;
    }
    us_values_forget(compressed, compressed_bytes(matrix));
    record.a = us_address(dense);
    record.d = us_address(compressed);
    us_library_emit(&record, "cusparseLtSpMMACompress2", matrix->type, stream,
                    US_LIBRARY_VALUES({"m", matrix->rows}, {"k", matrix->columns},
                                      {"batch", matrix->batch}, {"isSparseA", is_sparse_a},
                                      {"op", operation}, {"order", matrix->order},
                                      {"ld", matrix->leading}));
    return SUCCESS;
}

/* Products ----------------------------------------------------------------------------------- */

static int64_t rows_of(const struct us_slt_matrix *matrix, int operation) {
    return operation == 0 ? matrix->rows : matrix->columns;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulDescriptorInit(
    const struct us_slt_handle *handle, struct us_slt_matmul *matmul, int operation_a,
    int operation_b, const struct us_slt_matrix *a, const struct us_slt_matrix *b,
    const struct us_slt_matrix *c, const struct us_slt_matrix *d, int compute_type) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (matmul == NULL || a == NULL || b == NULL || c == NULL || d == NULL) return INVALID_VALUE;
    if (a->magic != MAGIC_OBJECT || b->magic != MAGIC_OBJECT || c->magic != MAGIC_OBJECT ||
        d->magic != MAGIC_OBJECT || a->structured == b->structured ||
        rows_of(a, !operation_a) != rows_of(b, operation_b) ||
        rows_of(a, operation_a) != d->rows || rows_of(b, !operation_b) != d->columns) {
        return INVALID_VALUE;
    }
    memset(matmul, 0, OBJECT_BYTES);
    *matmul = (struct us_slt_matmul){.magic = MAGIC_OBJECT,
                                     .operation_a = operation_a,
                                     .operation_b = operation_b,
                                     .compute_type = compute_type,
                                     .a = *a,
                                     .b = *b,
                                     .c = *c,
                                     .d = *d};
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulDescSetAttribute(const struct us_slt_handle *handle,
                                                            struct us_slt_matmul *matmul,
                                                            int attribute, const void *data,
                                                            size_t bytes) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (matmul == NULL || matmul->magic != MAGIC_OBJECT || data == NULL || attribute < 0 ||
        attribute >= MATMUL_ATTRIBUTES) {
        return INVALID_VALUE;
    }
    int value = 0;
    memcpy(&value, data, bytes < sizeof value ? bytes : sizeof value);
    if (attribute == MATMUL_ACTIVATION_RELU) matmul->relu = value != 0;
    if (attribute == MATMUL_ACTIVATION_GELU) matmul->gelu = value != 0;
    if (attribute == MATMUL_BIAS_POINTER) matmul->bias = 1;
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulAlgSelectionInit(const struct us_slt_handle *handle,
                                                            struct us_slt_selection *selection,
                                                            const struct us_slt_matmul *matmul,
                                                            int algorithm) {
    (void)algorithm;
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (selection == NULL || matmul == NULL || matmul->magic != MAGIC_OBJECT) return INVALID_VALUE;
    memset(selection, 0, OBJECT_BYTES);
    selection->magic = MAGIC_OBJECT;
    selection->values[ALG_CONFIG_MAX_ID] = 1; /* one algorithm: searches end at once */
    selection->values[ALG_SPLIT_K] = 1;
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulAlgSelectionDestroy(
    const struct us_slt_selection *selection) {
    return selection != NULL ? SUCCESS : INVALID_VALUE;
}

static bool is_attribute(const struct us_slt_selection *selection, int attribute,
                         const void *data, size_t bytes) {
    return selection != NULL && selection->magic == MAGIC_OBJECT && data != NULL &&
           attribute >= 0 && attribute < ALG_ATTRIBUTES && bytes == sizeof(int);
}

US_EXPORT cusparseStatus_t cusparseLtMatmulAlgSetAttribute(const struct us_slt_handle *handle,
                                                           struct us_slt_selection *selection,
                                                           int attribute, const void *data,
                                                           size_t bytes) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (!is_attribute(selection, attribute, data, bytes) || attribute == ALG_CONFIG_MAX_ID) {
        return INVALID_VALUE;
    }
    memcpy(&selection->values[attribute], data, bytes);
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulAlgGetAttribute(
    const struct us_slt_handle *handle, const struct us_slt_selection *selection, int attribute,
    void *data, size_t bytes) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (!is_attribute(selection, attribute, data, bytes)) return INVALID_VALUE;
    memcpy(data, &selection->values[attribute], bytes);
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulPlanInit(const struct us_slt_handle *handle,
                                                    struct us_slt_plan *plan,
                                                    const struct us_slt_matmul *matmul,
                                                    const struct us_slt_selection *selection) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (plan == NULL || matmul == NULL || selection == NULL || matmul->magic != MAGIC_OBJECT ||
        selection->magic != MAGIC_OBJECT) {
        return INVALID_VALUE;
    }
    struct us_slt_plan made = {*matmul, *selection};
    memset(plan, 0, OBJECT_BYTES);
    *plan = made;
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulPlanDestroy(const struct us_slt_plan *plan) {
    return plan != NULL ? SUCCESS : INVALID_VALUE;
}

US_EXPORT cusparseStatus_t cusparseLtMatmulGetWorkspace(const struct us_slt_handle *handle,
                                                        const struct us_slt_plan *plan,
                                                        size_t *bytes) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (plan == NULL || plan->matmul.magic != MAGIC_OBJECT || bytes == NULL) return INVALID_VALUE;
    *bytes = 0;
    return SUCCESS;
}

static cusparseStatus_t multiply(struct us_record *record, const char *api,
                                 const struct us_slt_handle *handle,
                                 const struct us_slt_plan *plan, const void *a, const void *b,
                                 const void *c, void *d, const cudaStream_t *streams,
                                 int32_t stream_count) {
    if (!is_handle(handle)) return NOT_INITIALIZED;
    if (plan == NULL || plan->matmul.magic != MAGIC_OBJECT || a == NULL || b == NULL ||
        d == NULL) {
        return INVALID_VALUE;
    }
    const struct us_slt_matmul *matmul = &plan->matmul;
    us_values_forget(d, dense_bytes(&matmul->d));
    record->a = us_address(a);
    record->b = us_address(b);
    record->c = us_address(c);
    record->d = us_address(d);
    us_library_emit(record, api, matmul->a.type,
                    stream_count > 0 && streams != NULL ? streams[0] : NULL,
                    US_LIBRARY_VALUES({"m", matmul->d.rows}, {"n", matmul->d.columns},
                                      {"k", rows_of(&matmul->a, !matmul->operation_a)},
                                      {"batch", matmul->d.batch},
                                      {"sparsity", 50},
                                      {"isSparseA", matmul->a.structured},
                                      {"opA", matmul->operation_a}, {"opB", matmul->operation_b},
                                      {"orderA", matmul->a.order}, {"orderB", matmul->b.order},
                                      {"orderD", matmul->d.order}, {"typeD", matmul->d.type},
                                      {"computeType", matmul->compute_type},
                                      {"relu", matmul->relu}, {"gelu", matmul->gelu},
                                      {"bias", matmul->bias},
                                      {"alg", plan->selection.values[ALG_CONFIG_ID]},
                                      {"splitK", plan->selection.values[ALG_SPLIT_K]}));
    return SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseLtMatmul(const struct us_slt_handle *handle,
                                            const struct us_slt_plan *plan, const void *alpha,
                                            const void *a, const void *b, const void *beta,
                                            const void *c, void *d, void *workspace,
                                            cudaStream_t *streams, int32_t stream_count) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)beta, (void)workspace;
    return multiply(&record, "cusparseLtMatmul", handle, plan, a, b, c, d, streams, stream_count);
}

/* The search runs the product with each algorithm and keeps the fastest: here the only one. */
US_EXPORT cusparseStatus_t cusparseLtMatmulSearch(const struct us_slt_handle *handle,
                                                  struct us_slt_plan *plan, const void *alpha,
                                                  const void *a, const void *b, const void *beta,
                                                  const void *c, void *d, void *workspace,
                                                  cudaStream_t *streams, int32_t stream_count) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)beta, (void)workspace;
    return multiply(&record, "cusparseLtMatmulSearch", handle, plan, a, b, c, d, streams,
                    stream_count);
}
