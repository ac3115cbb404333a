/*
 * cuDNN's older layer functions that the graph API has no counterpart for: the CTC loss, the
 * spatial transformer (torch's grid_sample and affine_grid) and pooling (quantized max_pool2d).
 * Each is one record with one operation (US_DNN_* of trace_format.h).
 */
#include <stdlib.h>
#include <string.h>

#include "types_cudnn.h"

struct us_cudnn_ctc {
    cudnnDataType_t compute_type;
    int normalization, gradient_mode;
    int longest_label; /* 0 until cudnnSetCTCLossDescriptor_v9 or _v8 says it */
};

struct us_cudnn_spatial_transformer {
    int sampler;
    cudnnDataType_t type;
    int dim_count; /* 4: batch, channels, height, width of the output */
    int dims[US_CUDNN_MAX_DIMS];
};

struct us_cudnn_pooling {
    int mode, propagate_nan;
    int window[2], padding[2], stride[2];
};

typedef struct us_cudnn_ctc *cudnnCTCLossDescriptor_t;
typedef struct us_cudnn_spatial_transformer *cudnnSpatialTransformerDescriptor_t;
typedef struct us_cudnn_pooling *cudnnPoolingDescriptor_t;

#define US_DESCRIPTOR(create, destroy, type)                                                       \
    US_EXPORT cudnnStatus_t create(type *descriptor) {                                             \
        if (descriptor == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;                        \
        *descriptor = calloc(1, sizeof **descriptor);                                              \
        return *descriptor == NULL ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED            \
                                   : CUDNN_STATUS_SUCCESS;                                         \
    }                                                                                              \
    US_EXPORT cudnnStatus_t destroy(type descriptor) {                                             \
        free(descriptor);                                                                          \
        return CUDNN_STATUS_SUCCESS;                                                               \
    }

US_DESCRIPTOR(cudnnCreateCTCLossDescriptor, cudnnDestroyCTCLossDescriptor,
              cudnnCTCLossDescriptor_t)
US_DESCRIPTOR(cudnnCreateSpatialTransformerDescriptor, cudnnDestroySpatialTransformerDescriptor,
              cudnnSpatialTransformerDescriptor_t)
US_DESCRIPTOR(cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor,
              cudnnPoolingDescriptor_t)

/* CTC loss ----------------------------------------------------------------------------------- */

US_EXPORT cudnnStatus_t cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t ctc,
                                                    cudnnDataType_t compute_type,
                                                    int normalization, int gradient_mode) {
    if (ctc == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *ctc = (struct us_cudnn_ctc){compute_type, normalization, gradient_mode, 0};
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t ctc,
                                                     cudnnDataType_t compute_type,
                                                     int normalization, int gradient_mode,
                                                     int longest_label) {
    if (ctc == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (longest_label < 0) return CUDNN_STATUS_BAD_PARAM;
    *ctc = (struct us_cudnn_ctc){compute_type, normalization, gradient_mode, longest_label};
    return CUDNN_STATUS_SUCCESS;
}

/* Steps, batch and labels of the alphabet. */
static bool is_sequence(const struct us_cudnn_tensor *tensor) {
    return tensor->dim_count == 3 && tensor->dims[0] > 0 && tensor->dims[1] > 0 &&
           tensor->dims[2] > 0;
}

static int longest(const int *lengths, int count) {
    int found = 0;
    for (int i = 0; lengths != NULL && i < count; i++) {
        if (lengths[i] > found) found = lengths[i];
    }
    return found;
}

/* The documentation gives no formula. A guess: the forward and backward variables of the algorithm
   (Graves et al. 2006, section 4.1), float32 for every step, sequence and position in a label with
   blanks between. */
static cudnnStatus_t ctc_workspace(cudnnHandle_t handle, const struct us_cudnn_ctc *ctc,
                                   const struct us_cudnn_tensor *probabilities, int longest_label,
                                   size_t *bytes) {
    if (handle == NULL || ctc == NULL || probabilities == NULL || bytes == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    if (!is_sequence(probabilities)) return CUDNN_STATUS_BAD_PARAM;
    *bytes = 2 * sizeof(float) * (size_t)probabilities->dims[0] * (size_t)probabilities->dims[1] *
             (2 * (size_t)longest_label + 1);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnGetCTCLossWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities,
    const cudnnTensorDescriptor_t gradients, const int *labels, const int *label_lengths,
    const int *input_lengths, int algorithm, cudnnCTCLossDescriptor_t ctc, size_t *bytes) {
    (void)gradients, (void)labels, (void)input_lengths, (void)algorithm;
    if (probabilities == NULL || label_lengths == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return ctc_workspace(handle, ctc, probabilities, longest(label_lengths, probabilities->dims[1]),
                         bytes);
}

US_EXPORT cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(
    cudnnHandle_t handle, int algorithm, cudnnCTCLossDescriptor_t ctc,
    const cudnnTensorDescriptor_t probabilities, const cudnnTensorDescriptor_t gradients,
    size_t *bytes) {
    (void)gradients, (void)algorithm;
    return ctc_workspace(handle, ctc, probabilities, ctc != NULL ? ctc->longest_label : 0, bytes);
}

static cudnnStatus_t ctc_loss(struct us_record *record, cudnnHandle_t handle,
                              const struct us_cudnn_ctc *ctc,
                              const struct us_cudnn_tensor *probabilities, int longest_label,
                              void *costs, const struct us_cudnn_tensor *gradients,
                              void *gradient_memory) {
    if (ctc == NULL || probabilities == NULL || costs == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    if (!is_sequence(probabilities)) return CUDNN_STATUS_BAD_PARAM;
    us_values_forget(costs, (size_t)probabilities->dims[1] * sizeof(float));
    struct us_dnn_operand operands[] = {{1, probabilities, NULL}, {2, gradients, gradient_memory}};
    size_t count = gradients != NULL && gradient_memory != NULL ? 2 : 1;
    return us_dnn_record(record, handle, US_DNN_CTC_LOSS, longest_label, NULL, operands, count);
}

US_EXPORT cudnnStatus_t cudnnCTCLoss(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities, const void *probs,
    const int labels[], const int label_lengths[], const int input_lengths[], void *costs,
    const cudnnTensorDescriptor_t gradients, void *gradient_memory, int algorithm,
    cudnnCTCLossDescriptor_t ctc, void *workspace, size_t workspace_bytes) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)probs, (void)labels, (void)input_lengths, (void)algorithm;
    (void)workspace_bytes;
    record.a = (uintptr_t)workspace;
    if (label_lengths == NULL || probabilities == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return ctc_loss(&record, handle, ctc, probabilities,
                    longest(label_lengths, probabilities->dims[1]), costs, gradients,
                    gradient_memory);
}

US_EXPORT cudnnStatus_t cudnnCTCLoss_v8(
    cudnnHandle_t handle, int algorithm, cudnnCTCLossDescriptor_t ctc,
    const cudnnTensorDescriptor_t probabilities, const void *probs, const int labels[],
    const int label_lengths[], const int input_lengths[], void *costs,
    const cudnnTensorDescriptor_t gradients, void *gradient_memory, size_t workspace_bytes,
    void *workspace) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)probs, (void)labels, (void)label_lengths, (void)input_lengths, (void)algorithm;
    (void)workspace_bytes; /* lengths are in device memory here */
    record.a = (uintptr_t)workspace;
    return ctc_loss(&record, handle, ctc, probabilities, ctc != NULL ? ctc->longest_label : 0,
                    costs, gradients, gradient_memory);
}

/* Spatial transformer ------------------------------------------------------------------------ */

US_EXPORT cudnnStatus_t cudnnSetSpatialTransformerNdDescriptor(
    cudnnSpatialTransformerDescriptor_t transformer, int sampler, cudnnDataType_t type,
    const int dim_count, const int dims[]) {
    if (transformer == NULL || dims == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (dim_count != 4) return CUDNN_STATUS_NOT_SUPPORTED; /* as the documentation says */
    *transformer = (struct us_cudnn_spatial_transformer){
        .sampler = sampler, .type = type, .dim_count = dim_count};
    memcpy(transformer->dims, dims, (size_t)dim_count * sizeof *dims);
    return CUDNN_STATUS_SUCCESS;
}

/* Two coordinates for every pixel of the output. */
static struct us_cudnn_tensor grid_of(const struct us_cudnn_spatial_transformer *transformer) {
    const int *dims = transformer->dims;
    return (struct us_cudnn_tensor){.type = transformer->type,
                                    .dim_count = 4,
                                    .dims = {dims[0], dims[2], dims[3], 2},
                                    .strides = {dims[2] * dims[3] * 2, dims[3] * 2, 2, 1}};
}

US_EXPORT cudnnStatus_t cudnnSpatialTfGridGeneratorForward(
    cudnnHandle_t handle, const cudnnSpatialTransformerDescriptor_t transformer,
    const void *theta, void *grid) {
    struct us_record record = us_record_begin(US_API_DNN);
    if (transformer == NULL || theta == NULL || grid == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    struct us_cudnn_tensor tensor = grid_of(transformer);
    return us_dnn_record(&record, handle, US_DNN_GRID_GENERATOR_FORWARD, 0, NULL,
                         US_OPERANDS({1, &tensor, grid}));
}

US_EXPORT cudnnStatus_t cudnnSpatialTfGridGeneratorBackward(
    cudnnHandle_t handle, const cudnnSpatialTransformerDescriptor_t transformer,
    const void *dgrid, void *dtheta) {
    struct us_record record = us_record_begin(US_API_DNN);
    if (transformer == NULL || dgrid == NULL || dtheta == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    struct us_cudnn_tensor tensor = grid_of(transformer);
    us_values_forget_at(dtheta);
    return us_dnn_record(&record, handle, US_DNN_GRID_GENERATOR_BACKWARD, 0, NULL,
                         US_OPERANDS({1, &tensor, NULL}));
}

US_EXPORT cudnnStatus_t cudnnSpatialTfSamplerForward(
    cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer, const void *alpha,
    const cudnnTensorDescriptor_t x_tensor, const void *x, const void *grid, const void *beta,
    cudnnTensorDescriptor_t y_tensor, void *y) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha, (void)beta, (void)x, (void)grid;
    if (transformer == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return us_dnn_record(&record, handle, US_DNN_SAMPLER_FORWARD, transformer->sampler, NULL,
                         US_OPERANDS({1, x_tensor, NULL}, {2, y_tensor, y}));
}

US_EXPORT cudnnStatus_t cudnnSpatialTfSamplerBackward(
    cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer, const void *alpha,
    const cudnnTensorDescriptor_t x_tensor, const void *x, const void *beta,
    const cudnnTensorDescriptor_t dx_tensor, void *dx, const void *alpha_grid,
    const cudnnTensorDescriptor_t dy_tensor, const void *dy, const void *grid,
    const void *beta_grid, void *dgrid) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha, (void)beta, (void)alpha_grid, (void)beta_grid, (void)x, (void)dy, (void)grid;
    if (transformer == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (dgrid != NULL) us_values_forget_at(dgrid);
    return us_dnn_record(
        &record, handle, US_DNN_SAMPLER_BACKWARD, transformer->sampler, NULL,
        US_OPERANDS({1, x_tensor, NULL}, {2, dx_tensor, dx}, {3, dy_tensor, NULL}));
}

/* Pooling ------------------------------------------------------------------------------------ */

US_EXPORT cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, int mode,
                                                    int propagate_nan, int window_height,
                                                    int window_width, int vertical_padding,
                                                    int horizontal_padding, int vertical_stride,
                                                    int horizontal_stride) {
    if (pooling == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *pooling = (struct us_cudnn_pooling){mode,
                                         propagate_nan,
                                         {window_height, window_width},
                                         {vertical_padding, horizontal_padding},
                                         {vertical_stride, horizontal_stride}};
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle,
                                            const cudnnPoolingDescriptor_t pooling,
                                            const void *alpha,
                                            const cudnnTensorDescriptor_t x_tensor, const void *x,
                                            const void *beta,
                                            const cudnnTensorDescriptor_t y_tensor, void *y) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha, (void)beta, (void)x;
    if (pooling == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return us_dnn_record(&record, handle, US_DNN_POOLING_FORWARD, pooling->mode, NULL,
                         US_OPERANDS({1, x_tensor, NULL}, {2, y_tensor, y}));
}
