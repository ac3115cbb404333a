/*
 * cuSPARSE: descriptors, the generic functions (products, sampled products, triangular solves) and
 * the older ones for block and triangular matrices that PyTorch still calls.
 *
 * What depends on the values of a matrix cannot be known. Estimates, from nonzero elements that
 * are spread evenly and at random:
 *   - a product A B of sparse matrices has nnz(A) nnz(B) / k terms, which fall on m n places, so
 *     m n (1 - exp(-terms / (m n))) of them are occupied;
 *   - a sum of sparse matrices has nnz(A) + nnz(B) elements, at most m n: none coincide.
 * Zero pivots are never found.
 *
 * Buffers. The documentation gives no formula but for what algorithms are documented to keep, so
 * these are guesses: one int per row to divide the work (SpMV, SpMM, SDDMM), two per row for the
 * levels of a triangular solve, one (index, value) pair per term of a sparse product, keys and
 * permutation twice for a radix sort. All are multiples of 256 bytes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "library_call.h"

typedef int cusparseStatus_t;
enum {
    CUSPARSE_STATUS_SUCCESS = 0,
    CUSPARSE_STATUS_NOT_INITIALIZED = 1,
    CUSPARSE_STATUS_ALLOC_FAILED = 2,
    CUSPARSE_STATUS_INVALID_VALUE = 3,
};
enum { FORMAT_CSR = 1, FORMAT_CSC = 2, FORMAT_COO = 3, FORMAT_BSR = 6 };
enum { INDEX_16U = 1, INDEX_32I = 2, INDEX_64I = 3 };
enum { ORDER_COLUMN = 1, ORDER_ROW = 2 };
enum { ATTRIBUTE_FILL_MODE = 0, ATTRIBUTE_DIAG_TYPE = 1 };
enum { POINTER_MODE_DEVICE = 1 };

typedef struct us_sparse_handle {
    cudaStream_t stream;
    int device, pointer_mode;
} *cusparseHandle_t;

typedef struct us_sparse_matrix {
    int format;
    int64_t rows, columns, nonzero; /* of elements, also for BSR */
    int64_t block;                  /* rows and columns of a block; 1 without blocks */
    void *offsets, *indices, *values;
    int offset_type, index_type, base, fill_mode, diag_type;
    cudaDataType_t type;
    int batch;
} *cusparseSpMatDescr_t;

typedef struct us_dense_matrix {
    int64_t rows, columns, leading;
    void *values;
    cudaDataType_t type;
    int order, batch;
    int64_t batch_stride;
} *cusparseDnMatDescr_t;

typedef struct us_dense_vector {
    int64_t size;
    void *values;
    cudaDataType_t type;
} *cusparseDnVecDescr_t;

typedef struct us_matrix_description {
    int type, fill_mode, diag_type, base;
} *cusparseMatDescr_t;

/* State between the calls of one operation: nothing that matters here. */
typedef struct us_sparse_info {
    int unused;
} *cusparseInfo_t;

US_EXPORT const char *cusparseGetErrorString(cusparseStatus_t status) {
    static const char *const texts[] = {
        "success",          "initialization error", "insufficient resources", "invalid value",
        "architecture mismatch", "mapping error",   "execution failed",       "internal error",
        "matrix type not supported", "zero pivot",  "operation not supported",
        "insufficient resources",
    };
    return status >= 0 && (size_t)status < sizeof texts / sizeof *texts ? texts[status]
                                                                        : "unknown error";
}

US_EXPORT const char *cusparseGetErrorName(cusparseStatus_t status) {
    static const char *const names[] = {
        "CUSPARSE_STATUS_SUCCESS",          "CUSPARSE_STATUS_NOT_INITIALIZED",
        "CUSPARSE_STATUS_ALLOC_FAILED",     "CUSPARSE_STATUS_INVALID_VALUE",
        "CUSPARSE_STATUS_ARCH_MISMATCH",    "CUSPARSE_STATUS_MAPPING_ERROR",
        "CUSPARSE_STATUS_EXECUTION_FAILED", "CUSPARSE_STATUS_INTERNAL_ERROR",
        "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED", "CUSPARSE_STATUS_ZERO_PIVOT",
        "CUSPARSE_STATUS_NOT_SUPPORTED",    "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
    };
    return status >= 0 && (size_t)status < sizeof names / sizeof *names ? names[status]
                                                                        : "unknown";
}

/* Handles and descriptors -------------------------------------------------------------------- */

static cusparseStatus_t make(void *out, size_t bytes) {
    if (out == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    void *made = calloc(1, bytes);
    if (made == NULL) return CUSPARSE_STATUS_ALLOC_FAILED;
    memcpy(out, &made, sizeof made);
    return CUSPARSE_STATUS_SUCCESS;
}

#define US_DESTROY(name, type)                                                                     \
    US_EXPORT cusparseStatus_t name(type object) {                                                 \
        free(object);                                                                              \
        return CUSPARSE_STATUS_SUCCESS;                                                            \
    }
#define US_CREATE(name, type)                                                                      \
    US_EXPORT cusparseStatus_t name(type *object) {                                                \
        return make(object, sizeof **object);                                                      \
    }

US_DESTROY(cusparseDestroy, cusparseHandle_t)
US_DESTROY(cusparseDestroySpMat, cusparseSpMatDescr_t)
US_DESTROY(cusparseDestroyDnMat, cusparseDnMatDescr_t)
US_DESTROY(cusparseDestroyDnVec, cusparseDnVecDescr_t)
US_DESTROY(cusparseDestroyMatDescr, cusparseMatDescr_t)
US_CREATE(cusparseCreateMatDescr, cusparseMatDescr_t)
US_CREATE(cusparseCreateBsrsm2Info, cusparseInfo_t)
US_DESTROY(cusparseDestroyBsrsm2Info, cusparseInfo_t)
US_CREATE(cusparseCreateBsrsv2Info, cusparseInfo_t)
US_DESTROY(cusparseDestroyBsrsv2Info, cusparseInfo_t)
US_CREATE(cusparseSpGEMM_createDescr, cusparseInfo_t)
US_DESTROY(cusparseSpGEMM_destroyDescr, cusparseInfo_t)
US_CREATE(cusparseSpSM_createDescr, cusparseInfo_t)
US_DESTROY(cusparseSpSM_destroyDescr, cusparseInfo_t)
US_CREATE(cusparseSpSV_createDescr, cusparseInfo_t)
US_DESTROY(cusparseSpSV_destroyDescr, cusparseInfo_t)

US_EXPORT cusparseStatus_t cusparseCreate(cusparseHandle_t *handle) {
    cusparseStatus_t status = make(handle, sizeof **handle);
    if (status == CUSPARSE_STATUS_SUCCESS) (*handle)->device = us_current_device();
    return status;
}

US_EXPORT cusparseStatus_t cusparseSetStream(cusparseHandle_t handle, cudaStream_t stream) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseGetStream(cusparseHandle_t handle, cudaStream_t *stream) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (stream == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    *stream = handle->stream;
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSetPointerMode(cusparseHandle_t handle, int mode) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    handle->pointer_mode = mode;
    return CUSPARSE_STATUS_SUCCESS;
}

#define US_SET_DESCRIPTION(name, field)                                                            \
    US_EXPORT cusparseStatus_t name(cusparseMatDescr_t description, int value) {                   \
        if (description == NULL) return CUSPARSE_STATUS_INVALID_VALUE;                             \
        description->field = value;                                                                \
        return CUSPARSE_STATUS_SUCCESS;                                                            \
    }

US_SET_DESCRIPTION(cusparseSetMatType, type)
US_SET_DESCRIPTION(cusparseSetMatFillMode, fill_mode)
US_SET_DESCRIPTION(cusparseSetMatDiagType, diag_type)
US_SET_DESCRIPTION(cusparseSetMatIndexBase, base)

static cusparseStatus_t make_sparse(cusparseSpMatDescr_t *out, struct us_sparse_matrix matrix) {
    bool fits = matrix.rows >= 0 && matrix.columns >= 0 && matrix.nonzero >= 0 &&
                us_cuda_type_bits(matrix.type) > 0;
    if (!fits) return CUSPARSE_STATUS_INVALID_VALUE;
    cusparseStatus_t status = make(out, sizeof **out);
    if (status == CUSPARSE_STATUS_SUCCESS) {
        matrix.batch = 1;
        **out = matrix;
    }
    return status;
}

US_EXPORT cusparseStatus_t cusparseCreateCsr(cusparseSpMatDescr_t *out, int64_t rows,
                                             int64_t columns, int64_t nonzero, void *offsets,
                                             void *indices, void *values, int offset_type,
                                             int index_type, int base, cudaDataType_t type) {
    return make_sparse(out, (struct us_sparse_matrix){.format = FORMAT_CSR,
                                                      .rows = rows,
                                                      .columns = columns,
                                                      .nonzero = nonzero,
                                                      .block = 1,
                                                      .offsets = offsets,
                                                      .indices = indices,
                                                      .values = values,
                                                      .offset_type = offset_type,
                                                      .index_type = index_type,
                                                      .base = base,
                                                      .type = type});
}

US_EXPORT cusparseStatus_t cusparseCreateCsc(cusparseSpMatDescr_t *out, int64_t rows,
                                             int64_t columns, int64_t nonzero, void *offsets,
                                             void *indices, void *values, int offset_type,
                                             int index_type, int base, cudaDataType_t type) {
    return make_sparse(out, (struct us_sparse_matrix){.format = FORMAT_CSC,
                                                      .rows = rows,
                                                      .columns = columns,
                                                      .nonzero = nonzero,
                                                      .block = 1,
                                                      .offsets = offsets,
                                                      .indices = indices,
                                                      .values = values,
                                                      .offset_type = offset_type,
                                                      .index_type = index_type,
                                                      .base = base,
                                                      .type = type});
}

US_EXPORT cusparseStatus_t cusparseCreateCoo(cusparseSpMatDescr_t *out, int64_t rows,
                                             int64_t columns, int64_t nonzero, void *row_indices,
                                             void *indices, void *values, int index_type, int base,
                                             cudaDataType_t type) {
    return make_sparse(out, (struct us_sparse_matrix){.format = FORMAT_COO,
                                                      .rows = rows,
                                                      .columns = columns,
                                                      .nonzero = nonzero,
                                                      .block = 1,
                                                      .offsets = row_indices,
                                                      .indices = indices,
                                                      .values = values,
                                                      .offset_type = index_type,
                                                      .index_type = index_type,
                                                      .base = base,
                                                      .type = type});
}

US_EXPORT cusparseStatus_t cusparseCreateBsr(cusparseSpMatDescr_t *out, int64_t block_rows,
                                             int64_t block_columns, int64_t blocks,
                                             int64_t row_block, int64_t column_block,
                                             void *offsets, void *indices, void *values,
                                             int offset_type, int index_type, int base,
                                             cudaDataType_t type, int order) {
    (void)order;
    if (row_block < 1 || column_block != row_block) return CUSPARSE_STATUS_INVALID_VALUE;
    return make_sparse(out, (struct us_sparse_matrix){.format = FORMAT_BSR,
                                                      .rows = block_rows * row_block,
                                                      .columns = block_columns * row_block,
                                                      .nonzero = blocks * row_block * row_block,
                                                      .block = row_block,
                                                      .offsets = offsets,
                                                      .indices = indices,
                                                      .values = values,
                                                      .offset_type = offset_type,
                                                      .index_type = index_type,
                                                      .base = base,
                                                      .type = type});
}

US_EXPORT cusparseStatus_t cusparseCsrSetPointers(cusparseSpMatDescr_t matrix, void *offsets,
                                                  void *indices, void *values) {
    if (matrix == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    matrix->offsets = offsets;
    matrix->indices = indices;
    matrix->values = values;
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseCsrSetStridedBatch(cusparseSpMatDescr_t matrix, int batch,
                                                      int64_t offset_stride,
                                                      int64_t value_stride) {
    (void)offset_stride, (void)value_stride;
    if (matrix == NULL || batch < 1) return CUSPARSE_STATUS_INVALID_VALUE;
    matrix->batch = batch;
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSpMatGetSize(cusparseSpMatDescr_t matrix, int64_t *rows,
                                                int64_t *columns, int64_t *nonzero) {
    if (matrix == NULL || rows == NULL || columns == NULL || nonzero == NULL) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    *rows = matrix->rows;
    *columns = matrix->columns;
    *nonzero = matrix->nonzero;
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSpMatSetAttribute(cusparseSpMatDescr_t matrix, int attribute,
                                                     void *data, size_t bytes) {
    if (matrix == NULL || data == NULL || bytes != sizeof(int)) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    int value;
    memcpy(&value, data, sizeof value);
    if (attribute == ATTRIBUTE_FILL_MODE) {
        matrix->fill_mode = value;
    } else if (attribute == ATTRIBUTE_DIAG_TYPE) {
        matrix->diag_type = value;
    } else {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseCreateDnMat(cusparseDnMatDescr_t *out, int64_t rows,
                                               int64_t columns, int64_t leading, void *values,
                                               cudaDataType_t type, int order) {
    if (rows < 0 || columns < 0 || leading < (order == ORDER_ROW ? columns : rows) ||
        us_cuda_type_bits(type) == 0) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    cusparseStatus_t status = make(out, sizeof **out);
    if (status == CUSPARSE_STATUS_SUCCESS) {
        **out = (struct us_dense_matrix){rows, columns, leading, values, type, order, 1, 0};
    }
    return status;
}

US_EXPORT cusparseStatus_t cusparseDnMatSetStridedBatch(cusparseDnMatDescr_t matrix, int batch,
                                                        int64_t stride) {
    if (matrix == NULL || batch < 1) return CUSPARSE_STATUS_INVALID_VALUE;
    matrix->batch = batch;
    matrix->batch_stride = stride;
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseCreateDnVec(cusparseDnVecDescr_t *out, int64_t size,
                                               void *values, cudaDataType_t type) {
    if (size < 0 || us_cuda_type_bits(type) == 0) return CUSPARSE_STATUS_INVALID_VALUE;
    cusparseStatus_t status = make(out, sizeof **out);
    if (status == CUSPARSE_STATUS_SUCCESS) **out = (struct us_dense_vector){size, values, type};
    return status;
}

/* What records need -------------------------------------------------------------------------- */

static int64_t index_bytes(const struct us_sparse_matrix *matrix) {
    int64_t bytes = matrix->index_type == INDEX_64I ? 8 : matrix->index_type == INDEX_16U ? 2 : 4;
    return matrix->format == FORMAT_COO ? 2 * bytes : bytes; /* COO keeps both coordinates */
}

static int64_t rows_of(const struct us_sparse_matrix *matrix, int operation) {
    return operation == 0 ? matrix->rows : matrix->columns;
}

static int64_t columns_of(const struct us_sparse_matrix *matrix, int operation) {
    return operation == 0 ? matrix->columns : matrix->rows;
}

static int64_t dense_columns(const struct us_dense_matrix *matrix, int operation) {
    return operation == 0 ? matrix->columns : matrix->rows;
}

static void forget_dense(const struct us_dense_matrix *matrix) {
    size_t lines = (size_t)(matrix->order == ORDER_ROW ? matrix->rows : matrix->columns);
    size_t size = (size_t)us_cuda_type_bits(matrix->type) / 8;
    size_t others = (size_t)(matrix->batch - 1) * (size_t)matrix->batch_stride;
    us_values_forget(matrix->values, (lines * (size_t)matrix->leading + others) * size);
}

static void forget_sparse_values(const struct us_sparse_matrix *matrix) {
    size_t size = (size_t)us_cuda_type_bits(matrix->type) / 8;
    us_values_forget(matrix->values, (size_t)matrix->nonzero * size);
}

static size_t rounded(int64_t bytes) {
    return ((size_t)(bytes > 0 ? bytes : 1) + 255) / 256 * 256;
}

static cusparseStatus_t answer_size(cusparseHandle_t handle, const void *matrix, size_t *out,
                                    int64_t bytes) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (matrix == NULL || out == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    *out = rounded(bytes);
    return CUSPARSE_STATUS_SUCCESS;
}

/* Products with dense matrices and vectors --------------------------------------------------- */

US_EXPORT cusparseStatus_t cusparseSpMM_bufferSize(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseSpMatDescr_t a,
    cusparseDnMatDescr_t b, const void *beta, cusparseDnMatDescr_t c, cudaDataType_t compute,
    int algorithm, size_t *bytes) {
    (void)op_a, (void)op_b, (void)alpha, (void)b, (void)beta, (void)c, (void)compute;
    (void)algorithm;
    return answer_size(handle, a, bytes, a != NULL ? (a->rows + 1) * 4 * a->batch : 0);
}

US_EXPORT cusparseStatus_t cusparseSpMM(cusparseHandle_t handle, int op_a, int op_b,
                                        const void *alpha, cusparseSpMatDescr_t a,
                                        cusparseDnMatDescr_t b, const void *beta,
                                        cusparseDnMatDescr_t c, cudaDataType_t compute,
                                        int algorithm, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)buffer;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (alpha == NULL || beta == NULL || a == NULL || b == NULL || c == NULL) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    int64_t m = rows_of(a, op_a), k = columns_of(a, op_a), n = dense_columns(b, op_b);
    int64_t b_rows = op_b == 0 ? b->rows : b->columns;
    if (c->rows != m || c->columns != n || b_rows != k) return CUSPARSE_STATUS_INVALID_VALUE;
    forget_dense(c);
    record.a = us_address(a->values);
    record.b = us_address(b->values);
    record.d = us_address(c->values);
    us_library_emit(&record, "cusparseSpMM", a->type, handle->stream,
                    US_LIBRARY_VALUES({"opA", op_a}, {"opB", op_b}, {"m", m}, {"n", n}, {"k", k},
                                      {"nnz", a->nonzero}, {"format", a->format},
                                      {"block", a->block}, {"index_bytes", index_bytes(a)},
                                      {"ldb", b->leading}, {"orderB", b->order},
                                      {"ldc", c->leading}, {"orderC", c->order},
                                      {"batch", c->batch}, {"computeType", compute},
                                      {"alg", algorithm}));
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSpMV_bufferSize(
    cusparseHandle_t handle, int op_a, const void *alpha, cusparseSpMatDescr_t a,
    cusparseDnVecDescr_t x, const void *beta, cusparseDnVecDescr_t y, cudaDataType_t compute,
    int algorithm, size_t *bytes) {
    (void)op_a, (void)alpha, (void)x, (void)beta, (void)y, (void)compute, (void)algorithm;
    return answer_size(handle, a, bytes, a != NULL ? (a->rows + 1) * 4 : 0);
}

US_EXPORT cusparseStatus_t cusparseSpMV(cusparseHandle_t handle, int op_a, const void *alpha,
                                        cusparseSpMatDescr_t a, cusparseDnVecDescr_t x,
                                        const void *beta, cusparseDnVecDescr_t y,
                                        cudaDataType_t compute, int algorithm, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)buffer;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (alpha == NULL || beta == NULL || a == NULL || x == NULL || y == NULL ||
        x->size != columns_of(a, op_a) || y->size != rows_of(a, op_a)) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    us_values_forget(y->values, (size_t)y->size * (size_t)us_cuda_type_bits(y->type) / 8);
    record.a = us_address(a->values);
    record.b = us_address(x->values);
    record.d = us_address(y->values);
    us_library_emit(&record, "cusparseSpMV", a->type, handle->stream,
                    US_LIBRARY_VALUES({"opA", op_a}, {"m", y->size}, {"n", 1}, {"k", x->size},
                                      {"nnz", a->nonzero}, {"format", a->format},
                                      {"block", a->block}, {"index_bytes", index_bytes(a)},
                                      {"computeType", compute}, {"alg", algorithm}));
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSDDMM_bufferSize(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseDnMatDescr_t a,
    cusparseDnMatDescr_t b, const void *beta, cusparseSpMatDescr_t c, cudaDataType_t compute,
    int algorithm, size_t *bytes) {
    (void)op_a, (void)op_b, (void)alpha, (void)a, (void)b, (void)beta, (void)compute;
    (void)algorithm;
    return answer_size(handle, c, bytes, c != NULL ? (c->rows + 1) * 4 : 0);
}

static cusparseStatus_t sampled_product(struct us_record *record, const char *api,
                                        cusparseHandle_t handle, int op_a, int op_b,
                                        cusparseDnMatDescr_t a, cusparseDnMatDescr_t b,
                                        cusparseSpMatDescr_t c, cudaDataType_t compute,
                                        int algorithm) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    int64_t k = dense_columns(a, op_a);
    if ((op_a == 0 ? a->rows : a->columns) != c->rows || dense_columns(b, op_b) != c->columns) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    forget_sparse_values(c);
    record->a = us_address(a->values);
    record->b = us_address(b->values);
    record->d = us_address(c->values);
    us_library_emit(record, api, a->type, handle->stream,
                    US_LIBRARY_VALUES({"opA", op_a}, {"opB", op_b}, {"m", c->rows},
                                      {"n", c->columns}, {"k", k}, {"nnz", c->nonzero},
                                      {"format", c->format}, {"index_bytes", index_bytes(c)},
                                      {"lda", a->leading}, {"orderA", a->order},
                                      {"ldb", b->leading}, {"orderB", b->order},
                                      {"batch", a->batch}, {"computeType", compute},
                                      {"alg", algorithm}));
    return CUSPARSE_STATUS_SUCCESS;
}

/* The preprocessing looks at the structure only and is no part of what is estimated. */
US_EXPORT cusparseStatus_t cusparseSDDMM_preprocess(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseDnMatDescr_t a,
    cusparseDnMatDescr_t b, const void *beta, cusparseSpMatDescr_t c, cudaDataType_t compute,
    int algorithm, void *buffer) {
    (void)op_a, (void)op_b, (void)alpha, (void)beta, (void)compute, (void)algorithm;
    (void)buffer;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    return a == NULL || b == NULL || c == NULL ? CUSPARSE_STATUS_INVALID_VALUE
                                               : CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSDDMM(cusparseHandle_t handle, int op_a, int op_b,
                                         const void *alpha, cusparseDnMatDescr_t a,
                                         cusparseDnMatDescr_t b, const void *beta,
                                         cusparseSpMatDescr_t c, cudaDataType_t compute,
                                         int algorithm, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)beta, (void)buffer;
    return sampled_product(&record, "cusparseSDDMM", handle, op_a, op_b, a, b, c, compute,
                           algorithm);
}

/* Products of sparse matrices ---------------------------------------------------------------- */

static double product_terms(const struct us_sparse_matrix *a, const struct us_sparse_matrix *b) {
    return a->columns > 0 ? (double)a->nonzero * (double)b->nonzero / (double)a->columns : 0;
}

static int64_t product_nonzero(const struct us_sparse_matrix *a, const struct us_sparse_matrix *b) {
    double places = (double)a->rows * (double)b->columns, terms = product_terms(a, b);
    if (places <= 0 || terms <= 0) return 0;
    double occupied = -places * expm1(-terms / places);
    return occupied < 1 ? 1 : (int64_t)(occupied + 0.5);
}

static bool are_matrices(const struct us_sparse_matrix *a, const struct us_sparse_matrix *b,
                         const struct us_sparse_matrix *c) {
    return a != NULL && b != NULL && c != NULL && a->columns == b->rows && c->rows == a->rows &&
           c->columns == b->columns;
}

static int64_t product_bytes(const struct us_sparse_matrix *a, const struct us_sparse_matrix *b) {
    double bytes = product_terms(a, b) * (double)(4 + us_cuda_type_bits(a->type) / 8);
    return bytes < 1e15 ? (int64_t)bytes : (int64_t)1e15;
}

US_EXPORT cusparseStatus_t cusparseSpGEMM_workEstimation(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseSpMatDescr_t a,
    cusparseSpMatDescr_t b, const void *beta, cusparseSpMatDescr_t c, cudaDataType_t compute,
    int algorithm, cusparseInfo_t info, size_t *bytes, void *buffer) {
    (void)op_a, (void)op_b, (void)alpha, (void)beta, (void)compute, (void)algorithm;
    (void)info, (void)buffer;
    if (!are_matrices(a, b, c)) return CUSPARSE_STATUS_INVALID_VALUE;
    return answer_size(handle, a, bytes, (a->rows + 1) * 8);
}

US_EXPORT cusparseStatus_t cusparseSpGEMM_compute(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseSpMatDescr_t a,
    cusparseSpMatDescr_t b, const void *beta, cusparseSpMatDescr_t c, cudaDataType_t compute,
    int algorithm, cusparseInfo_t info, size_t *bytes, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)beta, (void)info;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (!are_matrices(a, b, c) || bytes == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    if (buffer == NULL) { /* the first of two calls asks for the size */
        *bytes = rounded(product_bytes(a, b));
        return CUSPARSE_STATUS_SUCCESS;
    }
    c->nonzero = product_nonzero(a, b);
    record.a = us_address(a->values);
    record.b = us_address(b->values);
    us_library_emit(&record, "cusparseSpGEMM_compute", a->type, handle->stream,
                    US_LIBRARY_VALUES({"opA", op_a}, {"opB", op_b}, {"m", a->rows},
                                      {"n", b->columns}, {"k", a->columns}, {"nnz", a->nonzero},
                                      {"nnz_b", b->nonzero}, {"nnz_c", c->nonzero},
                                      {"index_bytes", index_bytes(a)}, {"computeType", compute},
                                      {"alg", algorithm}));
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSpGEMM_copy(cusparseHandle_t handle, int op_a, int op_b,
                                               const void *alpha, cusparseSpMatDescr_t a,
                                               cusparseSpMatDescr_t b, const void *beta,
                                               cusparseSpMatDescr_t c, cudaDataType_t compute,
                                               int algorithm, cusparseInfo_t info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)op_a, (void)op_b, (void)alpha, (void)beta, (void)compute, (void)algorithm, (void)info;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (!are_matrices(a, b, c)) return CUSPARSE_STATUS_INVALID_VALUE;
    forget_sparse_values(c);
    us_values_forget(c->indices, (size_t)(c->nonzero * index_bytes(c)));
    us_values_forget(c->offsets, (size_t)(c->rows + 1) * (c->offset_type == INDEX_64I ? 8 : 4));
    record.d = us_address(c->values);
    us_library_emit(&record, "cusparseSpGEMM_copy", c->type, handle->stream,
                    US_LIBRARY_VALUES({"m", c->rows}, {"n", c->columns}, {"nnz", c->nonzero},
                                      {"index_bytes", index_bytes(c)}));
    return CUSPARSE_STATUS_SUCCESS;
}

/* Triangular solves -------------------------------------------------------------------------- */

US_EXPORT cusparseStatus_t cusparseSpSM_bufferSize(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseSpMatDescr_t a,
    cusparseDnMatDescr_t b, cusparseDnMatDescr_t c, cudaDataType_t compute, int algorithm,
    cusparseInfo_t info, size_t *bytes) {
    (void)op_a, (void)op_b, (void)alpha, (void)b, (void)c, (void)compute, (void)algorithm;
    (void)info;
    return answer_size(handle, a, bytes, a != NULL ? (a->rows + 1) * 8 : 0);
}

static cusparseStatus_t solve_many(struct us_record *record, const char *api,
                                   cusparseHandle_t handle, int op_a, int op_b,
                                   cusparseSpMatDescr_t a, cusparseDnMatDescr_t b,
                                   cusparseDnMatDescr_t c, int algorithm, bool writes) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL || a->rows != a->columns) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    if (writes) forget_dense(c);
    record->a = us_address(a->values);
    record->b = us_address(b->values);
    record->d = writes ? us_address(c->values) : 0;
    us_library_emit(record, api, a->type, handle->stream,
                    US_LIBRARY_VALUES({"opA", op_a}, {"opB", op_b}, {"m", a->rows},
                                      {"n", c->columns}, {"nnz", a->nonzero},
                                      {"format", a->format}, {"index_bytes", index_bytes(a)},
                                      {"fillmode", a->fill_mode}, {"diagtype", a->diag_type},
                                      {"batch", a->batch}, {"alg", algorithm}));
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSpSM_analysis(
    cusparseHandle_t handle, int op_a, int op_b, const void *alpha, cusparseSpMatDescr_t a,
    cusparseDnMatDescr_t b, cusparseDnMatDescr_t c, cudaDataType_t compute, int algorithm,
    cusparseInfo_t info, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)compute, (void)info, (void)buffer;
    return solve_many(&record, "cusparseSpSM_analysis", handle, op_a, op_b, a, b, c, algorithm,
                      false);
}

US_EXPORT cusparseStatus_t cusparseSpSM_solve(cusparseHandle_t handle, int op_a, int op_b,
                                              const void *alpha, cusparseSpMatDescr_t a,
                                              cusparseDnMatDescr_t b, cusparseDnMatDescr_t c,
                                              cudaDataType_t compute, int algorithm,
                                              cusparseInfo_t info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)compute, (void)info;
    return solve_many(&record, "cusparseSpSM_solve", handle, op_a, op_b, a, b, c, algorithm, true);
}

US_EXPORT cusparseStatus_t cusparseSpSV_bufferSize(
    cusparseHandle_t handle, int op_a, const void *alpha, cusparseSpMatDescr_t a,
    cusparseDnVecDescr_t x, cusparseDnVecDescr_t y, cudaDataType_t compute, int algorithm,
    cusparseInfo_t info, size_t *bytes) {
    (void)op_a, (void)alpha, (void)x, (void)y, (void)compute, (void)algorithm, (void)info;
    return answer_size(handle, a, bytes, a != NULL ? (a->rows + 1) * 8 : 0);
}

static cusparseStatus_t solve_one(struct us_record *record, const char *api,
                                  cusparseHandle_t handle, int op_a, cusparseSpMatDescr_t a,
                                  cusparseDnVecDescr_t x, cusparseDnVecDescr_t y, int algorithm,
                                  bool writes) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (a == NULL || x == NULL || y == NULL || a->rows != a->columns || y->size != a->rows) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    if (writes) {
        us_values_forget(y->values, (size_t)y->size * (size_t)us_cuda_type_bits(y->type) / 8);
    }
    record->a = us_address(a->values);
    record->b = us_address(x->values);
    record->d = writes ? us_address(y->values) : 0;
    us_library_emit(record, api, a->type, handle->stream,
                    US_LIBRARY_VALUES({"opA", op_a}, {"m", a->rows}, {"n", 1},
                                      {"nnz", a->nonzero}, {"format", a->format},
                                      {"index_bytes", index_bytes(a)},
                                      {"fillmode", a->fill_mode}, {"diagtype", a->diag_type},
                                      {"alg", algorithm}));
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseSpSV_analysis(
    cusparseHandle_t handle, int op_a, const void *alpha, cusparseSpMatDescr_t a,
    cusparseDnVecDescr_t x, cusparseDnVecDescr_t y, cudaDataType_t compute, int algorithm,
    cusparseInfo_t info, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)compute, (void)info, (void)buffer;
    return solve_one(&record, "cusparseSpSV_analysis", handle, op_a, a, x, y, algorithm, false);
}

US_EXPORT cusparseStatus_t cusparseSpSV_solve(cusparseHandle_t handle, int op_a,
                                              const void *alpha, cusparseSpMatDescr_t a,
                                              cusparseDnVecDescr_t x, cusparseDnVecDescr_t y,
                                              cudaDataType_t compute, int algorithm,
                                              cusparseInfo_t info) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)alpha, (void)compute, (void)info;
    return solve_one(&record, "cusparseSpSV_solve", handle, op_a, a, x, y, algorithm, true);
}

/* Structure ---------------------------------------------------------------------------------- */

static cusparseStatus_t structure_call(struct us_record *record, const char *api,
                                       cusparseHandle_t handle, int m, int n, int nonzero) {
    us_library_emit(record, api, -1, handle->stream,
                    US_LIBRARY_VALUES({"m", m}, {"n", n}, {"nnz", nonzero}, {"index_bytes", 4}));
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseXcoo2csr(cusparseHandle_t handle, const int *rows, int nonzero,
                                            int m, int *offsets, int base) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)base;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (m < 0 || nonzero < 0 || offsets == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    us_values_forget(offsets, ((size_t)m + 1) * sizeof *offsets);
    record.a = us_address(rows);
    record.d = us_address(offsets);
    return structure_call(&record, "cusparseXcoo2csr", handle, m, 1, nonzero);
}

US_EXPORT cusparseStatus_t cusparseCreateIdentityPermutation(cusparseHandle_t handle, int n,
                                                             int *permutation) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (n < 0 || permutation == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    size_t bytes = (size_t)n * sizeof *permutation;
    int *known = bytes > 0 && bytes <= US_VALUE_MAX_BYTES ? malloc(bytes) : NULL;
    us_values_forget(permutation, bytes);
    if (known != NULL) {
        for (int i = 0; i < n; i++) known[i] = i;
        us_values_write(permutation, known, bytes);
        free(known);
    }
    record.d = us_address(permutation);
    return structure_call(&record, "cusparseCreateIdentityPermutation", handle, n, 1, n);
}

static int64_t sort_bytes(int64_t nonzero) {
    return 2 * nonzero * (8 + 4); /* a 64-bit key of row and column, and the permutation */
}

US_EXPORT cusparseStatus_t cusparseXcoosort_bufferSizeExt(cusparseHandle_t handle, int m, int n,
                                                          int nonzero, const int *rows,
                                                          const int *columns, size_t *bytes) {
    (void)m, (void)n, (void)rows, (void)columns;
    return answer_size(handle, handle, bytes, sort_bytes(nonzero));
}

US_EXPORT cusparseStatus_t cusparseXcsrsort_bufferSizeExt(cusparseHandle_t handle, int m, int n,
                                                          int nonzero, const int *offsets,
                                                          const int *columns, size_t *bytes) {
    (void)m, (void)n, (void)offsets, (void)columns;
    return answer_size(handle, handle, bytes, sort_bytes(nonzero));
}

static cusparseStatus_t sort(struct us_record *record, const char *api, cusparseHandle_t handle,
                             int m, int n, int nonzero, int *rows, int *columns,
                             int *permutation) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || nonzero < 0) return CUSPARSE_STATUS_INVALID_VALUE;
    int *const written[] = {rows, columns, permutation};
    for (size_t i = 0; i < 3; i++) {
        if (written[i] != NULL) us_values_forget(written[i], (size_t)nonzero * sizeof(int));
    }
    record->d = us_address(columns);
    return structure_call(record, api, handle, m, n, nonzero);
}

US_EXPORT cusparseStatus_t cusparseXcoosortByRow(cusparseHandle_t handle, int m, int n,
                                                 int nonzero, int *rows, int *columns,
                                                 int *permutation, void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)buffer;
    return sort(&record, "cusparseXcoosortByRow", handle, m, n, nonzero, rows, columns,
                permutation);
}

US_EXPORT cusparseStatus_t cusparseXcsrsort(cusparseHandle_t handle, int m, int n, int nonzero,
                                            const cusparseMatDescr_t description,
                                            const int *offsets, int *columns, int *permutation,
                                            void *buffer) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)description, (void)offsets, (void)buffer;
    return sort(&record, "cusparseXcsrsort", handle, m, n, nonzero, NULL, columns, permutation);
}

/* Sums of sparse matrices -------------------------------------------------------------------- */

static int sum_nonzero(int m, int n, int nonzero_a, int nonzero_b) {
    int64_t sum = (int64_t)nonzero_a + nonzero_b, places = (int64_t)m * n;
    int64_t least = sum < places ? sum : places;
    return least < INT32_MAX ? (int)least : INT32_MAX;
}

US_EXPORT cusparseStatus_t cusparseXcsrgeam2Nnz(
    cusparseHandle_t handle, int m, int n, const cusparseMatDescr_t description_a, int nonzero_a,
    const int *offsets_a, const int *columns_a, const cusparseMatDescr_t description_b,
    int nonzero_b, const int *offsets_b, const int *columns_b,
    const cusparseMatDescr_t description_c, int *offsets_c, int *total, void *workspace) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    (void)description_a, (void)offsets_a, (void)columns_a, (void)description_b, (void)offsets_b;
    (void)columns_b, (void)description_c, (void)workspace;
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || nonzero_a < 0 || nonzero_b < 0 || offsets_c == NULL || total == NULL) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    int sum = sum_nonzero(m, n, nonzero_a, nonzero_b);
    us_values_forget(offsets_c, ((size_t)m + 1) * sizeof *offsets_c);
    us_values_write(offsets_c + m, &sum, sizeof sum);
    if (handle->pointer_mode == POINTER_MODE_DEVICE) us_values_write(total, &sum, sizeof sum);
    else *total = sum;
    record.d = us_address(offsets_c);
    return structure_call(&record, "cusparseXcsrgeam2Nnz", handle, m, n, nonzero_a + nonzero_b);
}

static cusparseStatus_t sum_buffer(cusparseHandle_t handle, int m, size_t *bytes) {
    return answer_size(handle, handle, bytes, ((int64_t)m + 1) * 4);
}

static cusparseStatus_t sum(struct us_record *record, const char *api, cudaDataType_t type,
                            cusparseHandle_t handle, int m, int n, int nonzero_a, int nonzero_b,
                            const void *a, const void *b, void *c, int *columns_c) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || nonzero_a < 0 || nonzero_b < 0) return CUSPARSE_STATUS_INVALID_VALUE;
    int64_t nonzero = sum_nonzero(m, n, nonzero_a, nonzero_b);
    us_values_forget(c, (size_t)nonzero * (size_t)us_cuda_type_bits(type) / 8);
    us_values_forget(columns_c, (size_t)nonzero * sizeof *columns_c);
    record->a = us_address(a);
    record->b = us_address(b);
    record->d = us_address(c);
    us_library_emit(record, api, type, handle->stream,
                    US_LIBRARY_VALUES({"m", m}, {"n", n}, {"nnz", nonzero_a},
                                      {"nnz_b", nonzero_b}, {"nnz_c", nonzero},
                                      {"index_bytes", 4}));
    return CUSPARSE_STATUS_SUCCESS;
}

#define US_SUM(letter, type, scalar)                                                               \
    US_EXPORT cusparseStatus_t cusparse##letter##csrgeam2_bufferSizeExt(                           \
        cusparseHandle_t handle, int m, int n, const scalar *alpha,                                \
        const cusparseMatDescr_t description_a, int nonzero_a, const scalar *a,                    \
        const int *offsets_a, const int *columns_a, const scalar *beta,                            \
        const cusparseMatDescr_t description_b, int nonzero_b, const scalar *b,                    \
        const int *offsets_b, const int *columns_b, const cusparseMatDescr_t description_c,        \
        const scalar *c, const int *offsets_c, const int *columns_c, size_t *bytes) {              \
        (void)n, (void)alpha, (void)description_a, (void)nonzero_a, (void)a, (void)offsets_a;      \
        (void)columns_a, (void)beta, (void)description_b, (void)nonzero_b, (void)b;                \
        (void)offsets_b, (void)columns_b, (void)description_c, (void)c, (void)offsets_c;           \
        (void)columns_c;                                                                           \
        return sum_buffer(handle, m, bytes);                                                       \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##csrgeam2(                                         \
        cusparseHandle_t handle, int m, int n, const scalar *alpha,                                \
        const cusparseMatDescr_t description_a, int nonzero_a, const scalar *a,                    \
        const int *offsets_a, const int *columns_a, const scalar *beta,                            \
        const cusparseMatDescr_t description_b, int nonzero_b, const scalar *b,                    \
        const int *offsets_b, const int *columns_b, const cusparseMatDescr_t description_c,        \
        scalar *c, int *offsets_c, int *columns_c, void *buffer) {                                 \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)alpha, (void)description_a, (void)offsets_a, (void)columns_a, (void)beta;            \
        (void)description_b, (void)offsets_b, (void)columns_b, (void)description_c;                \
        (void)offsets_c, (void)buffer;                                                             \
        return sum(&record, "cusparse" #letter "csrgeam2", type, handle, m, n, nonzero_a,          \
                   nonzero_b, a, b, c, columns_c);                                                 \
    }

US_SUM(S, CUDA_R_32F, void)
US_SUM(D, CUDA_R_64F, void)
US_SUM(C, CUDA_C_32F, void)
US_SUM(Z, CUDA_C_64F, void)

/* Block matrices ----------------------------------------------------------------------------- */

/* Shapes of a call on a block matrix of `block_rows` x `block_columns` blocks. */
static cusparseStatus_t block_call(struct us_record *record, const char *api, cudaDataType_t type,
                                   cusparseHandle_t handle, int operation, int block_rows,
                                   int block_columns, int blocks, int block, int n,
                                   const void *a, const void *b, void *c, size_t c_elements) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (block_rows < 0 || block_columns < 0 || blocks < 0 || block < 1 || n < 0) {
        return CUSPARSE_STATUS_INVALID_VALUE;
    }
    if (c != NULL) us_values_forget(c, c_elements * (size_t)us_cuda_type_bits(type) / 8);
    record->a = us_address(a);
    record->b = us_address(b);
    record->d = us_address(c);
    int64_t rows = (int64_t)block_rows * block, columns = (int64_t)block_columns * block;
    us_library_emit(record, api, type, handle->stream,
                    US_LIBRARY_VALUES({"trans", operation},
                                      {"m", operation == 0 ? rows : columns}, {"n", n},
                                      {"k", operation == 0 ? columns : rows},
                                      {"nnz", (int64_t)blocks * block * block},
                                      {"nnzb", blocks}, {"blockDim", block},
                                      {"format", FORMAT_BSR}, {"index_bytes", 0}));
    return CUSPARSE_STATUS_SUCCESS;
}

static cusparseStatus_t block_buffer(cusparseHandle_t handle, int block_rows, int *bytes) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (bytes == NULL || block_rows < 0) return CUSPARSE_STATUS_INVALID_VALUE;
    *bytes = (int)rounded(((int64_t)block_rows + 1) * 8);
    return CUSPARSE_STATUS_SUCCESS;
}

/* Elements of a column-major matrix with `leading` rows in memory. */
static size_t elements(int leading, int columns) {
    return (size_t)(leading > 0 ? leading : 0) * (size_t)(columns > 0 ? columns : 0);
}

#define US_BLOCK(letter, type)                                                                     \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrmv(                                            \
        cusparseHandle_t handle, int direction, int operation, int block_rows, int block_columns,  \
        int blocks, const void *alpha, const cusparseMatDescr_t description, const void *a,        \
        const int *offsets, const int *columns, int block, const void *x, const void *beta,        \
        void *y) {                                                                                 \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)direction, (void)alpha, (void)description, (void)offsets, (void)columns, (void)beta; \
        return block_call(&record, "cusparse" #letter "bsrmv", type, handle, operation,            \
                          block_rows, block_columns, blocks, block, 1, a, x, y,                    \
                          elements(block, operation == 0 ? block_rows : block_columns));           \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrmm(                                            \
        cusparseHandle_t handle, int direction, int operation, int operation_b, int block_rows,    \
        int n, int block_columns, int blocks, const void *alpha,                                   \
        const cusparseMatDescr_t description, const void *a, const int *offsets,                   \
        const int *columns, int block, const void *b, int ldb, const void *beta, void *c,          \
        int ldc) {                                                                                 \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)direction, (void)operation_b, (void)alpha, (void)description, (void)offsets;         \
        (void)columns, (void)ldb, (void)beta;                                                      \
        return block_call(&record, "cusparse" #letter "bsrmm", type, handle, operation,            \
                          block_rows, block_columns, blocks, block, n, a, b, c,                    \
                          elements(ldc, n));                                                       \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrsv2_bufferSize(                                \
        cusparseHandle_t handle, int direction, int operation, int block_rows, int blocks,         \
        const cusparseMatDescr_t description, void *a, const int *offsets, const int *columns,     \
        int block, cusparseInfo_t info, int *bytes) {                                              \
        (void)direction, (void)operation, (void)blocks, (void)description, (void)a;                \
        (void)offsets, (void)columns, (void)block, (void)info;                                     \
        return block_buffer(handle, block_rows, bytes);                                            \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrsv2_analysis(                                  \
        cusparseHandle_t handle, int direction, int operation, int block_rows, int blocks,         \
        const cusparseMatDescr_t description, const void *a, const int *offsets,                   \
        const int *columns, int block, cusparseInfo_t info, int policy, void *buffer) {            \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)direction, (void)description, (void)offsets, (void)columns, (void)info;              \
        (void)policy, (void)buffer;                                                                \
        return block_call(&record, "cusparse" #letter "bsrsv2_analysis", type, handle, operation,  \
                          block_rows, block_rows, blocks, block, 1, a, NULL, NULL, 0);             \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrsv2_solve(                                     \
        cusparseHandle_t handle, int direction, int operation, int block_rows, int blocks,         \
        const void *alpha, const cusparseMatDescr_t description, const void *a,                    \
        const int *offsets, const int *columns, int block, cusparseInfo_t info, const void *f,     \
        void *x, int policy, void *buffer) {                                                       \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)direction, (void)alpha, (void)description, (void)offsets, (void)columns, (void)info; \
        (void)policy, (void)buffer;                                                                \
        return block_call(&record, "cusparse" #letter "bsrsv2_solve", type, handle, operation,     \
                          block_rows, block_rows, blocks, block, 1, a, f, x,                       \
                          elements(block, block_rows));                                            \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrsm2_bufferSize(                                \
        cusparseHandle_t handle, int direction, int operation, int operation_x, int block_rows,    \
        int n, int blocks, const cusparseMatDescr_t description, void *a, const int *offsets,      \
        const int *columns, int block, cusparseInfo_t info, int *bytes) {                          \
        (void)direction, (void)operation, (void)operation_x, (void)n, (void)blocks;                \
        (void)description, (void)a, (void)offsets, (void)columns, (void)block, (void)info;         \
        return block_buffer(handle, block_rows, bytes);                                            \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrsm2_analysis(                                  \
        cusparseHandle_t handle, int direction, int operation, int operation_x, int block_rows,    \
        int n, int blocks, const cusparseMatDescr_t description, const void *a,                    \
        const int *offsets, const int *columns, int block, cusparseInfo_t info, int policy,        \
        void *buffer) {                                                                            \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)direction, (void)operation_x, (void)description, (void)offsets, (void)columns;       \
        (void)info, (void)policy, (void)buffer;                                                    \
        return block_call(&record, "cusparse" #letter "bsrsm2_analysis", type, handle, operation,  \
                          block_rows, block_rows, blocks, block, n, a, NULL, NULL, 0);             \
    }                                                                                              \
    US_EXPORT cusparseStatus_t cusparse##letter##bsrsm2_solve(                                     \
        cusparseHandle_t handle, int direction, int operation, int operation_x, int block_rows,    \
        int n, int blocks, const void *alpha, const cusparseMatDescr_t description,                \
        const void *a, const int *offsets, const int *columns, int block, cusparseInfo_t info,     \
        const void *b, int ldb, void *x, int ldx, int policy, void *buffer) {                      \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        (void)direction, (void)operation_x, (void)alpha, (void)description, (void)offsets;         \
        (void)columns, (void)info, (void)ldb, (void)policy, (void)buffer;                          \
        return block_call(&record, "cusparse" #letter "bsrsm2_solve", type, handle, operation,     \
                          block_rows, block_rows, blocks, block, n, a, b, x,                       \
                          elements(ldx, operation_x == 0 ? n : block_rows * block));               \
    }

US_BLOCK(S, CUDA_R_32F)
US_BLOCK(D, CUDA_R_64F)
US_BLOCK(C, CUDA_C_32F)
US_BLOCK(Z, CUDA_C_64F)

static cusparseStatus_t no_zero_pivot(cusparseHandle_t handle, const void *info, int *position) {
    if (handle == NULL) return CUSPARSE_STATUS_NOT_INITIALIZED;
    if (info == NULL || position == NULL) return CUSPARSE_STATUS_INVALID_VALUE;
    int none = -1;
    if (handle->pointer_mode == POINTER_MODE_DEVICE) {
        us_values_write(position, &none, sizeof none);
    } else {
        *position = none;
    }
    return CUSPARSE_STATUS_SUCCESS;
}

US_EXPORT cusparseStatus_t cusparseXbsrsv2_zeroPivot(cusparseHandle_t handle, cusparseInfo_t info,
                                                     int *position) {
    return no_zero_pivot(handle, info, position);
}

US_EXPORT cusparseStatus_t cusparseXbsrsm2_zeroPivot(cusparseHandle_t handle, cusparseInfo_t info,
                                                     int *position) {
    return no_zero_pivot(handle, info, position);
}
