/*
 * cuDNN's recurrent networks: descriptors, the layout of their weights, and the functions that run
 * them. A whole network is one record (US_DNN_RNN_*): into how many kernels it falls is for cuDNN
 * to decide.
 */
#include <stdlib.h>
#include <string.h>

#include "types_cudnn.h"

enum { CELL_RELU = 0, CELL_TANH = 1, CELL_LSTM = 2, CELL_GRU = 3 };
enum { NO_BIAS = 0, SINGLE_INPUT_BIAS = 1, DOUBLE_BIAS = 2, SINGLE_RECURRENT_BIAS = 3 };
enum { SKIP_INPUT = 1, FORWARD_TRAINING = 1, LSTM_PROJECTION = 8 };
enum { ATTRIBUTE_X = 1, ATTRIBUTE_Y = 2, ATTRIBUTE_WEIGHTS = 3, ATTRIBUTE_LENGTHS = 4 };

struct us_cudnn_rnn {
    int cell, bias, directions, input_mode, layers;
    cudnnDataType_t type;
    int64_t input, hidden, projected; /* projected = hidden without a projection */
};

struct us_cudnn_rnn_data {
    cudnnDataType_t type;
    int steps, batch, features;
    int64_t elements; /* the sum of the lengths of all sequences: steps * batch when all are full */
};

typedef struct us_cudnn_rnn *cudnnRNNDescriptor_t;
typedef struct us_cudnn_rnn_data *cudnnRNNDataDescriptor_t;

US_EXPORT cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *rnn) {
    if (rnn == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *rnn = calloc(1, sizeof **rnn);
    return *rnn == NULL ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED : CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn) {
    free(rnn);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetRNNDescriptor_v8(
    cudnnRNNDescriptor_t rnn, int algorithm, int cell, int bias, int direction, int input_mode,
    cudnnDataType_t type, cudnnDataType_t math_type, int math, int32_t input, int32_t hidden,
    int32_t projected, int32_t layers, const void *dropout, uint32_t flags) {
    (void)algorithm, (void)math_type, (void)math, (void)dropout, (void)flags;
    if (rnn == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (cell < CELL_RELU || cell > CELL_GRU || bias < NO_BIAS || bias > SINGLE_RECURRENT_BIAS ||
        direction < 0 || direction > 1 || input < 1 || hidden < 1 || layers < 1 || projected < 0 ||
        projected > hidden || us_cudnn_type_bits(type) == 0) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    *rnn = (struct us_cudnn_rnn){.cell = cell,
                                 .bias = bias,
                                 .directions = direction + 1,
                                 .input_mode = input_mode,
                                 .layers = layers,
                                 .type = type,
                                 .input = input,
                                 .hidden = hidden,
                                 .projected = projected == 0 ? hidden : projected};
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *data) {
    if (data == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *data = calloc(1, sizeof **data);
    return *data == NULL ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
                         : CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data) {
    free(data);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data,
                                                  cudnnDataType_t type, int layout, int steps,
                                                  int batch, int features, const int lengths[],
                                                  void *padding) {
    (void)layout, (void)padding;
    if (data == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (steps < 1 || batch < 1 || features < 1 || us_cudnn_type_bits(type) == 0) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    int64_t elements = 0;
    for (int i = 0; i < batch && lengths != NULL; i++) {
        if (lengths[i] < 0 || lengths[i] > steps) return CUDNN_STATUS_BAD_PARAM;
        elements += lengths[i];
    }
    if (lengths == NULL) elements = (int64_t)steps * batch;
    *data = (struct us_cudnn_rnn_data){type, steps, batch, features, elements};
    return CUDNN_STATUS_SUCCESS;
}

/* Weights ------------------------------------------------------------------------------------ */

static int gates(const struct us_cudnn_rnn *rnn) {
    return rnn->cell == CELL_LSTM ? 4 : rnn->cell == CELL_GRU ? 3 : 1;
}

static bool has_projection(const struct us_cudnn_rnn *rnn) {
    return rnn->cell == CELL_LSTM && rnn->projected < rnn->hidden;
}

/* Rows and columns of a matrix; 0 when the network does not have it. Ids 0..gates-1 take the input
   of the layer, gates..2*gates-1 its previous output, 8 is the projection of an LSTM. */
static void matrix_shape(const struct us_cudnn_rnn *rnn, int pseudo_layer, int id, int64_t *rows,
                         int64_t *columns) {
    int layer = pseudo_layer / rnn->directions;
    *rows = *columns = 0;
    if (id >= 0 && id < gates(rnn)) {
        if (layer == 0 && rnn->input_mode == SKIP_INPUT) return;
        *rows = rnn->hidden;
        *columns = layer == 0 ? rnn->input : rnn->projected * rnn->directions;
    } else if (id >= gates(rnn) && id < 2 * gates(rnn)) {
        *rows = rnn->hidden;
        *columns = rnn->projected;
    } else if (id == LSTM_PROJECTION && has_projection(rnn)) {
        *rows = rnn->projected;
        *columns = rnn->hidden;
    }
}

static int64_t bias_rows(const struct us_cudnn_rnn *rnn, int id) {
    bool of_input = id >= 0 && id < gates(rnn);
    bool recurrent = id >= gates(rnn) && id < 2 * gates(rnn);
    bool used = (of_input && (rnn->bias == SINGLE_INPUT_BIAS || rnn->bias == DOUBLE_BIAS)) ||
                (recurrent && (rnn->bias == SINGLE_RECURRENT_BIAS || rnn->bias == DOUBLE_BIAS));
    return used ? rnn->hidden : 0;
}

/* The elements before a matrix or bias in the weight space: all matrices of all layers, then all
   biases. With an id behind the last one of the last layer: the size of all. */
static int64_t elements_before(const struct us_cudnn_rnn *rnn, int pseudo_layer, int id,
                               bool is_bias) {
    int64_t elements = 0, rows, columns;
    int pseudo_layers = rnn->layers * rnn->directions;
    for (int kind = 0; kind <= 1; kind++) {
        for (int i = 0; i < pseudo_layers; i++) {
            for (int j = 0; j <= LSTM_PROJECTION; j++) {
                if (kind == (int)is_bias && i == pseudo_layer && j == id) return elements;
                matrix_shape(rnn, i, j, &rows, &columns);
                elements += kind == 0 ? rows * columns : bias_rows(rnn, j);
            }
        }
    }
    return elements;
}

static int64_t all_elements(const struct us_cudnn_rnn *rnn) {
    return elements_before(rnn, -1, -1, true);
}

static size_t element_bytes(const struct us_cudnn_rnn *rnn) {
    return (size_t)us_cudnn_type_bits(rnn->type) / 8;
}

US_EXPORT cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                   size_t *bytes) {
    if (handle == NULL || rnn == NULL || bytes == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (rnn->layers == 0) return CUDNN_STATUS_BAD_PARAM;
    *bytes = (size_t)all_elements(rnn) * element_bytes(rnn);
    return CUDNN_STATUS_SUCCESS;
}

static void describe_part(struct us_cudnn_tensor *tensor, cudnnDataType_t type, int64_t rows,
                          int64_t columns) {
    *tensor = (struct us_cudnn_tensor){.type = type, .dim_count = rows > 0 ? 3 : 0};
    if (rows == 0) return;
    tensor->dims[0] = 1;
    tensor->dims[1] = (int)rows;
    tensor->dims[2] = (int)columns;
    tensor->strides[0] = (int)(rows * columns);
    tensor->strides[1] = (int)columns;
    tensor->strides[2] = 1;
}

US_EXPORT cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                int32_t pseudo_layer, size_t bytes,
                                                const void *weights, int32_t id,
                                                cudnnTensorDescriptor_t matrix,
                                                void **matrix_pointer,
                                                cudnnTensorDescriptor_t bias,
                                                void **bias_pointer) {
    if (handle == NULL || rnn == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (pseudo_layer < 0 || pseudo_layer >= rnn->layers * rnn->directions || id < 0 ||
        id > LSTM_PROJECTION || bytes < (size_t)all_elements(rnn) * element_bytes(rnn)) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    int64_t rows, columns, long_bias = bias_rows(rnn, id);
    matrix_shape(rnn, pseudo_layer, id, &rows, &columns);
    char *base = (char *)(uintptr_t)weights; /* NULL is allowed: then offsets come back */
    size_t at_matrix = (size_t)elements_before(rnn, pseudo_layer, id, false) * element_bytes(rnn);
    size_t at_bias = (size_t)elements_before(rnn, pseudo_layer, id, true) * element_bytes(rnn);
    if (matrix != NULL) describe_part(matrix, rnn->type, rows, columns);
    if (bias != NULL) describe_part(bias, rnn->type, long_bias, 1);
    uintptr_t start = (uintptr_t)base;
    if (matrix_pointer != NULL) *matrix_pointer = rows > 0 ? (void *)(start + at_matrix) : NULL;
    if (bias_pointer != NULL) *bias_pointer = long_bias > 0 ? (void *)(start + at_bias) : NULL;
    return CUDNN_STATUS_SUCCESS;
}

/* NVIDIA publishes no sizes. A guess, which fits those that could be found, of cuDNN 7 and float32
   networks of 4 layers, 123 inputs and 320 units on 25,000 steps of all sequences together: reserve
   736,000,000 (LSTM) and 864,000,000 bytes (GRU), and workspace 17,730,560 and 13,169,920 bytes if
   these are 100 sequences.

   Reserve: for each step what the backward needs of a layer (gates and cell of an LSTM, gates and as
   much again of a GRU) and the outputs between layers. Workspace: the matrices, rearranged, and for
   each layer and sequence 3 values a gate less one. Without a backward the gates of one layer and
   the outputs between layers are in the workspace, nothing is in reserve. */
US_EXPORT cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                  int mode, cudnnRNNDataDescriptor_t x,
                                                  size_t *workspace_bytes, size_t *reserve_bytes) {
    if (handle == NULL || rnn == NULL || x == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    bool training = mode == FORWARD_TRAINING;
    int64_t units = rnn->hidden * rnn->directions;
    int64_t outputs = units * x->steps * x->batch; /* of one layer */
    int64_t kept = rnn->cell == CELL_LSTM ? 5 : rnn->cell == CELL_GRU ? 6 : 1;
    int64_t reserve = outputs * (kept * rnn->layers + rnn->layers - 1);
    int64_t matrices = elements_before(rnn, 0, 0, true);
    int64_t workspace = matrices + units * x->batch * rnn->layers * (3 * gates(rnn) - 1);
    if (!training) workspace += outputs * (gates(rnn) + (rnn->layers > 1));
    if (workspace_bytes != NULL) *workspace_bytes = (size_t)workspace * element_bytes(rnn);
    if (reserve_bytes != NULL) *reserve_bytes = training ? (size_t)reserve * element_bytes(rnn) : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* Execution ---------------------------------------------------------------------------------- */

static struct us_cudnn_tensor sequence(const struct us_cudnn_rnn_data *data) {
    return (struct us_cudnn_tensor){.type = data->type,
                                    .dim_count = 3,
                                    .dims = {data->steps, data->batch, data->features},
                                    .strides = {data->batch * data->features, data->features, 1}};
}

static cudnnStatus_t execute(struct us_record *record, cudnnHandle_t handle, int type,
                             cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t x,
                             cudnnRNNDataDescriptor_t y, const void *x_result,
                             const void *y_result, const void *weight_result,
                             void *const *small_results, size_t small_count) {
    if (rnn == NULL || x == NULL || y == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (rnn->layers == 0 || x->steps == 0 || y->steps == 0) return CUDNN_STATUS_BAD_PARAM;
    struct us_cudnn_tensor x_tensor = sequence(x), y_tensor = sequence(y);
    struct us_cudnn_tensor weights = {.type = rnn->type,
                                      .dim_count = 1,
                                      .dims = {(int)all_elements(rnn)},
                                      .strides = {1}};
    for (size_t i = 0; i < small_count; i++) {
        if (small_results[i] != NULL) us_values_forget_at(small_results[i]);
    }
    struct us_cudnn_tensor lengths = {
        .type = US_CUDNN_INT64, .dim_count = 1, .dims = {(int)x->elements}, .strides = {1}};
    struct us_dnn_operand operands[] = {
        {ATTRIBUTE_X, &x_tensor, x_result},
        {ATTRIBUTE_Y, &y_tensor, y_result},
        {ATTRIBUTE_WEIGHTS, &weights, weight_result},
        {ATTRIBUTE_LENGTHS, &lengths, NULL},
    };
    bool packed = x->elements != (int64_t)x->steps * x->batch;
    return us_dnn_record(record, handle, type, rnn->cell, NULL, operands, packed ? 4 : 3);
}

US_EXPORT cudnnStatus_t cudnnRNNForward(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int mode, const int32_t lengths[],
    cudnnRNNDataDescriptor_t x_data, const void *x, cudnnRNNDataDescriptor_t y_data, void *y,
    cudnnTensorDescriptor_t h_tensor, const void *hx, void *hy, cudnnTensorDescriptor_t c_tensor,
    const void *cx, void *cy, size_t weight_bytes, const void *weights, size_t workspace_bytes,
    void *workspace, size_t reserve_bytes, void *reserve) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)mode, (void)lengths, (void)x, (void)h_tensor, (void)hx, (void)c_tensor, (void)cx;
    (void)weight_bytes, (void)weights, (void)workspace_bytes;
    (void)reserve_bytes, (void)reserve;
    record.a = (uintptr_t)workspace;
    return execute(&record, handle, US_DNN_RNN_FORWARD, rnn, x_data, y_data, NULL, y, NULL,
                   (void *const[]){hy, cy}, 2);
}

US_EXPORT cudnnStatus_t cudnnRNNBackwardData_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
    cudnnRNNDataDescriptor_t y_data, const void *y, const void *dy,
    cudnnRNNDataDescriptor_t x_data, void *dx, cudnnTensorDescriptor_t h_tensor, const void *hx,
    const void *dhy, void *dhx, cudnnTensorDescriptor_t c_tensor, const void *cx, const void *dcy,
    void *dcx, size_t weight_bytes, const void *weights, size_t workspace_bytes, void *workspace,
    size_t reserve_bytes, void *reserve) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)lengths, (void)y, (void)dy, (void)h_tensor, (void)hx, (void)dhy, (void)c_tensor;
    (void)cx, (void)dcy, (void)weight_bytes, (void)weights, (void)workspace_bytes;
    (void)reserve_bytes, (void)reserve;
    record.a = (uintptr_t)workspace;
    return execute(&record, handle, US_DNN_RNN_BACKWARD_DATA, rnn, x_data, y_data, dx, NULL, NULL,
                   (void *const[]){dhx, dcx}, 2);
}

US_EXPORT cudnnStatus_t cudnnRNNBackwardWeights_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int accumulate, const int32_t lengths[],
    cudnnRNNDataDescriptor_t x_data, const void *x, cudnnTensorDescriptor_t h_tensor,
    const void *hx, cudnnRNNDataDescriptor_t y_data, const void *y, size_t weight_bytes,
    void *dweights, size_t workspace_bytes, void *workspace, size_t reserve_bytes, void *reserve) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)accumulate, (void)lengths, (void)x, (void)h_tensor, (void)hx, (void)y;
    (void)weight_bytes, (void)workspace_bytes, (void)reserve_bytes;
    (void)reserve;
    record.a = (uintptr_t)workspace;
    return execute(&record, handle, US_DNN_RNN_BACKWARD_WEIGHTS, rnn, x_data, y_data, NULL, NULL,
                   dweights, NULL, 0);
}
