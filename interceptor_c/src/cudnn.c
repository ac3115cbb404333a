/*
 * cuDNN: handles, versions, and the older layer functions that PyTorch still calls beside the graph
 * API (cudnn_graph.c): batch normalization, and convolutions when the graph API is switched off.
 * These are recorded in the graph API's terms, as one operation with the tensors that matter.
 */
#include <stdlib.h>
#include <string.h>

#include "types_cudnn.h"
#include "versions.h"

typedef int libraryPropertyType;

struct us_cudnn_dropout {
    float probability;
    void *states;
    size_t state_bytes;
    unsigned long long seed;
};

struct us_cudnn_activation {
    int mode, propagate_nan;
    double coefficient;
};

typedef struct us_cudnn_tensor *cudnnFilterDescriptor_t;
typedef struct us_cudnn_convolution *cudnnConvolutionDescriptor_t;
typedef struct us_cudnn_dropout *cudnnDropoutDescriptor_t;
typedef struct us_cudnn_activation *cudnnActivationDescriptor_t;

enum { CURAND_STATE_BYTES = 48 }; /* sizeof(curandStateXORWOW_t) */

/* One candidate of cudnnGetConvolution*Algorithm_v7 and cudnnFindConvolution*AlgorithmEx. */
struct convolution_candidate {
    int algorithm, status;
    float time_ms;
    size_t memory_bytes;
    int determinism, math_type, reserved[3];
};

/* Library ------------------------------------------------------------------------------------ */

int us_cudnn_type_bits(cudnnDataType_t type) {
    static const uint16_t bits[] = {32, 64, 16, 8,  32, 32, 8, 32, 256, 16, 64,
                                    8,  8,  8,  32, 8,  4,  4, 4,  32,  64, 128};
    return type >= 0 && (size_t)type < sizeof bits / sizeof *bits ? bits[type] : 0;
}

US_EXPORT size_t cudnnGetVersion(void) {
    return (size_t)us_library_versions()->cudnn;
}

US_EXPORT size_t cudnnGetCudartVersion(void) {
    return (size_t)us_library_versions()->cuda_runtime;
}

US_EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1210; }

US_EXPORT cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
    int version = us_library_versions()->cudnn;
    const int versions[] = {version / 10000, version / 100 % 100, version % 100};
    if (value == NULL || type < 0 || type > 2) return CUDNN_STATUS_BAD_PARAM;
    *value = versions[type];
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND: return "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND";
    case CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE: return "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
        return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_UNKNOWN_STATUS";
    }
}

US_EXPORT void cudnnGetLastErrorString(char *message, size_t bytes) {
    if (message != NULL && bytes > 0) message[0] = '\0';
}

US_EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    if (handle == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *handle = calloc(1, sizeof **handle);
    if (*handle == NULL) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    (*handle)->device = us_current_device();
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    if (handle == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    if (handle == NULL || stream == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* Descriptors -------------------------------------------------------------------------------- */

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

US_DESCRIPTOR(cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor, cudnnTensorDescriptor_t)
US_DESCRIPTOR(cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor, cudnnFilterDescriptor_t)
US_DESCRIPTOR(cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor,
              cudnnConvolutionDescriptor_t)
US_DESCRIPTOR(cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor,
              cudnnDropoutDescriptor_t)
US_DESCRIPTOR(cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor,
              cudnnActivationDescriptor_t)

US_EXPORT cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor,
                                                   cudnnDataType_t type, int dim_count,
                                                   const int dims[], const int strides[]) {
    if (tensor == NULL || dims == NULL || strides == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    if (dim_count < 1 || dim_count > US_CUDNN_MAX_DIMS) return CUDNN_STATUS_NOT_SUPPORTED;
    *tensor = (struct us_cudnn_tensor){.type = type, .dim_count = dim_count};
    memcpy(tensor->dims, dims, (size_t)dim_count * sizeof *dims);
    memcpy(tensor->strides, strides, (size_t)dim_count * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

static void copy_ints(int *out, const int *in, int requested, int available) {
    int count = requested < available ? requested : available;
    if (out != NULL && count > 0) memcpy(out, in, (size_t)count * sizeof *out);
}

US_EXPORT cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor,
                                                   int requested, cudnnDataType_t *type,
                                                   int *dim_count, int dims[], int strides[]) {
    if (tensor == NULL || requested < 0) return CUDNN_STATUS_BAD_PARAM;
    if (type != NULL) *type = tensor->type;
    if (dim_count != NULL) *dim_count = tensor->dim_count;
    copy_ints(dims, tensor->dims, requested, tensor->dim_count);
    copy_ints(strides, tensor->strides, requested, tensor->dim_count);
    return CUDNN_STATUS_SUCCESS;
}

/* Filters are dense: K C (D H) W, with C innermost in the NHWC format. */
static void set_dense_strides(struct us_cudnn_tensor *filter) {
    int stride = 1;
    if (filter->format == 1 && filter->dim_count > 2) {
        filter->strides[1] = 1;
        stride = filter->dims[1];
        for (int i = filter->dim_count - 1; i >= 2; i--) {
            filter->strides[i] = stride;
            stride *= filter->dims[i];
        }
        filter->strides[0] = stride;
        return;
    }
    for (int i = filter->dim_count - 1; i >= 0; i--) {
        filter->strides[i] = stride;
        stride *= filter->dims[i];
    }
}

US_EXPORT cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter,
                                                   cudnnDataType_t type, int format, int dim_count,
                                                   const int dims[]) {
    if (filter == NULL || dims == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (dim_count < 1 || dim_count > US_CUDNN_MAX_DIMS) return CUDNN_STATUS_NOT_SUPPORTED;
    *filter = (struct us_cudnn_tensor){.type = type, .format = format, .dim_count = dim_count};
    memcpy(filter->dims, dims, (size_t)dim_count * sizeof *dims);
    set_dense_strides(filter);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t filter,
                                                   int requested, cudnnDataType_t *type,
                                                   int *format, int *dim_count, int dims[]) {
    if (filter == NULL || requested < 0) return CUDNN_STATUS_BAD_PARAM;
    if (type != NULL) *type = filter->type;
    if (format != NULL) *format = filter->format;
    if (dim_count != NULL) *dim_count = filter->dim_count;
    copy_ints(dims, filter->dims, requested, filter->dim_count);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution,
                                                        int spatial_dims, const int padding[],
                                                        const int stride[], const int dilation[],
                                                        int mode, cudnnDataType_t compute_type) {
    if (convolution == NULL || padding == NULL || stride == NULL || dilation == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    if (spatial_dims < 1 || spatial_dims > US_CUDNN_MAX_DIMS) return CUDNN_STATUS_NOT_SUPPORTED;
    *convolution = (struct us_cudnn_convolution){.spatial_dims = spatial_dims,
                                                 .mode = mode,
                                                 .groups = 1,
                                                 .compute_type = compute_type};
    size_t bytes = (size_t)spatial_dims * sizeof *padding;
    memcpy(convolution->padding, padding, bytes);
    memcpy(convolution->stride, stride, bytes);
    memcpy(convolution->dilation, dilation, bytes);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution,
                                                      int groups) {
    if (convolution == NULL || groups < 1) return CUDNN_STATUS_BAD_PARAM;
    convolution->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution,
                                                    int math_type) {
    if (convolution == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    convolution->math_type = math_type;
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation,
                                                     int mode, int propagate_nan,
                                                     double coefficient) {
    if (activation == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *activation = (struct us_cudnn_activation){mode, propagate_nan, coefficient};
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
    if (handle == NULL || bytes == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    /* The documentation gives no size. cuDNN keeps one generator for every thread that the device
       can hold (a guess that fits what programs print: 1,474,560 bytes on a K40, 15 x 2048). */
    const struct us_device *device = us_device();
    *bytes = (size_t)device->multiprocessors * (size_t)device->max_threads_per_multiprocessor *
             CURAND_STATE_BYTES;
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout,
                                                  cudnnHandle_t handle, float probability,
                                                  void *states, size_t bytes,
                                                  unsigned long long seed) {
    if (dropout == NULL || handle == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *dropout = (struct us_cudnn_dropout){probability, states, bytes, seed};
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t dropout,
                                                      cudnnHandle_t handle, float probability,
                                                      void *states, size_t bytes,
                                                      unsigned long long seed) {
    if (dropout == NULL || handle == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *dropout = (struct us_cudnn_dropout){probability, states, bytes, seed};
    return CUDNN_STATUS_SUCCESS;
}

/* Recording ---------------------------------------------------------------------------------- */

static void describe(struct us_dnn_tensor *tensor, const struct us_cudnn_tensor *source) {
    tensor->type = (uint32_t)source->type;
    tensor->dim_count = (uint32_t)source->dim_count;
    for (int i = 0; i < source->dim_count; i++) {
        tensor->dims[i] = source->dims[i];
        tensor->strides[i] = source->strides[i];
    }
}

cudnnStatus_t us_dnn_record(struct us_record *record, cudnnHandle_t handle, int type, int mode,
                            const struct us_cudnn_convolution *convolution,
                            const struct us_dnn_operand *operands, size_t count) {
    if (handle == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    struct us_dnn_graph graph = {0};
    struct us_dnn_operation *operation = us_dnn_add_operation(&graph, type);
    if (operation != NULL) {
        operation->mode = (uint32_t)mode;
        for (int i = 0; convolution != NULL && i < 3 && i < convolution->spatial_dims; i++) {
            operation->stride[i] = convolution->stride[i];
            operation->dilation[i] = convolution->dilation[i];
            operation->padding[i] = convolution->padding[i];
        }
        if (convolution != NULL) operation->spatial_dims = convolution->spatial_dims;
    }
    for (size_t i = 0; i < count; i++) {
        const struct us_cudnn_tensor *source = operands[i].tensor;
        if (source == NULL) {
            us_dnn_free(&graph);
            return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        }
        struct us_dnn_tensor *tensor = us_dnn_add_tensor(&graph, operands[i].attribute);
        if (tensor == NULL) break;
        describe(tensor, source);
        tensor->unique_id = (int64_t)i + 1;
        if (operands[i].result != NULL) {
            us_values_forget(operands[i].result, us_dnn_tensor_bytes(tensor));
        }
    }
    bool failed = graph.failed;
    if (!failed) {
        record->stream = us_stream_number(handle->stream);
        record->definition = us_dnn_define(&graph);
        us_emit(record);
    }
    us_dnn_free(&graph);
    return failed ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED : CUDNN_STATUS_SUCCESS;
}

/* Convolutions ------------------------------------------------------------------------------- */

US_EXPORT cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x_tensor, const void *x,
    const cudnnFilterDescriptor_t w_filter, const void *w,
    const cudnnConvolutionDescriptor_t convolution, int algorithm, void *workspace,
    size_t workspace_bytes, const void *beta, const cudnnTensorDescriptor_t y_tensor, void *y) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha, (void)beta, (void)x, (void)w, (void)algorithm;
    (void)workspace_bytes;
    if (convolution == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    record.a = (uintptr_t)workspace;
    return us_dnn_record(
        &record, handle, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD, convolution->mode,
        convolution,
        US_OPERANDS({CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w_filter, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y_tensor, y}));
}

US_EXPORT cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t x_tensor,
    const void *x, const cudnnFilterDescriptor_t w_filter, const void *w,
    const cudnnConvolutionDescriptor_t convolution, int algorithm, void *workspace,
    size_t workspace_bytes, const void *alpha2, const cudnnTensorDescriptor_t z_tensor,
    const void *z, const cudnnTensorDescriptor_t bias_tensor, const void *bias,
    const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t y_tensor,
    void *y) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha1, (void)alpha2, (void)x, (void)w, (void)z, (void)bias, (void)bias_tensor;
    (void)algorithm, (void)workspace_bytes, (void)activation, (void)z_tensor;
    if (convolution == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    record.a = (uintptr_t)workspace;
    return us_dnn_record(
        &record, handle, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD, convolution->mode,
        convolution,
        US_OPERANDS({CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w_filter, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y_tensor, y}));
}

US_EXPORT cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t w_filter, const void *w,
    const cudnnTensorDescriptor_t dy_tensor, const void *dy,
    const cudnnConvolutionDescriptor_t convolution, int algorithm, void *workspace,
    size_t workspace_bytes, const void *beta, const cudnnTensorDescriptor_t dx_tensor, void *dx) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha, (void)beta, (void)w, (void)dy, (void)algorithm;
    (void)workspace_bytes;
    if (convolution == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    record.a = (uintptr_t)workspace;
    return us_dnn_record(
        &record, handle, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA, convolution->mode,
        convolution,
        US_OPERANDS({CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, w_filter, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, dy_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, dx_tensor, dx}));
}

US_EXPORT cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x_tensor, const void *x,
    const cudnnTensorDescriptor_t dy_tensor, const void *dy,
    const cudnnConvolutionDescriptor_t convolution, int algorithm, void *workspace,
    size_t workspace_bytes, const void *beta, const cudnnFilterDescriptor_t dw_filter, void *dw) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)alpha, (void)beta, (void)x, (void)dy, (void)algorithm;
    (void)workspace_bytes;
    if (convolution == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    record.a = (uintptr_t)workspace;
    return us_dnn_record(
        &record, handle, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER, convolution->mode,
        convolution,
        US_OPERANDS({CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, x_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, dy_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, dw_filter, dw}));
}

/* One candidate algorithm for every problem. Algorithm 1 is an implicit GEMM in all three
   directions. Callers pass the descriptors in the order of the direction's own function. */
static size_t workspace_of(int operation, const struct us_cudnn_tensor *first,
                           const struct us_cudnn_tensor *second,
                           const struct us_cudnn_tensor *third) {
    if (first == NULL || second == NULL || third == NULL) return 0;
    struct us_dnn_tensor of_first = {0}, of_second = {0}, of_third = {0};
    describe(&of_first, first);
    describe(&of_second, second);
    describe(&of_third, third);
    const struct us_dnn_tensor *x = &of_first, *w = &of_second, *y = &of_third;
    if (operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA) {
        w = &of_first, y = &of_second, x = &of_third;
    } else if (operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER) {
        y = &of_second, w = &of_third;
    }
    return (size_t)us_dnn_convolution_workspace(operation, x, w, y);
}

static cudnnStatus_t one_candidate(cudnnHandle_t handle, size_t workspace_bytes, int requested,
                                   int *returned, struct convolution_candidate *candidates) {
    if (handle == NULL || returned == NULL || candidates == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    if (requested < 1) return CUDNN_STATUS_BAD_PARAM;
    candidates[0] = (struct convolution_candidate){.algorithm = 1,
                                                   .memory_bytes = workspace_bytes,
                                                   .determinism = 1,
                                                   .math_type = 1};
    *returned = 1;
    return CUDNN_STATUS_SUCCESS;
}

/* The three directions differ in the order of their descriptors only. */
#define US_CONVOLUTION_QUERIES(operation, get_algorithm, find_algorithm, get_workspace)            \
    US_EXPORT cudnnStatus_t get_algorithm(                                                         \
        cudnnHandle_t handle, const struct us_cudnn_tensor *first,                                 \
        const struct us_cudnn_tensor *second, const cudnnConvolutionDescriptor_t convolution,      \
        const struct us_cudnn_tensor *third, int requested, int *returned,                         \
        struct convolution_candidate *candidates) {                                                \
        (void)convolution;                                                                         \
        return one_candidate(handle, workspace_of(operation, first, second, third), requested,     \
                             returned, candidates);                                                \
    }                                                                                              \
    US_EXPORT cudnnStatus_t find_algorithm(                                                        \
        cudnnHandle_t handle, const struct us_cudnn_tensor *first, const void *first_data,         \
        const struct us_cudnn_tensor *second, const void *second_data,                             \
        const cudnnConvolutionDescriptor_t convolution, const struct us_cudnn_tensor *third,       \
        void *third_data, int requested, int *returned, struct convolution_candidate *candidates,  \
        void *workspace, size_t workspace_bytes) {                                                 \
        (void)first_data, (void)second_data, (void)convolution, (void)third_data;                  \
        (void)workspace, (void)workspace_bytes;                                                    \
        return one_candidate(handle, workspace_of(operation, first, second, third), requested,     \
                             returned, candidates);                                                \
    }                                                                                              \
    US_EXPORT cudnnStatus_t get_workspace(                                                         \
        cudnnHandle_t handle, const struct us_cudnn_tensor *first,                                 \
        const struct us_cudnn_tensor *second, const cudnnConvolutionDescriptor_t convolution,      \
        const struct us_cudnn_tensor *third, int algorithm, size_t *bytes) {                       \
        (void)convolution, (void)algorithm;                                                        \
        if (handle == NULL || bytes == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;           \
        *bytes = workspace_of(operation, first, second, third);                                    \
        return CUDNN_STATUS_SUCCESS;                                                               \
    }

US_CONVOLUTION_QUERIES(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD,
                       cudnnGetConvolutionForwardAlgorithm_v7,
                       cudnnFindConvolutionForwardAlgorithmEx,
                       cudnnGetConvolutionForwardWorkspaceSize)
US_CONVOLUTION_QUERIES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA,
                       cudnnGetConvolutionBackwardDataAlgorithm_v7,
                       cudnnFindConvolutionBackwardDataAlgorithmEx,
                       cudnnGetConvolutionBackwardDataWorkspaceSize)
US_CONVOLUTION_QUERIES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER,
                       cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                       cudnnFindConvolutionBackwardFilterAlgorithmEx,
                       cudnnGetConvolutionBackwardFilterWorkspaceSize)

/* Batch normalization ------------------------------------------------------------------------ */

US_EXPORT cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, int mode, int operations, const void *alpha, const void *beta,
    const cudnnTensorDescriptor_t x_tensor, const void *x, const cudnnTensorDescriptor_t z_tensor,
    const void *z, const cudnnTensorDescriptor_t y_tensor, void *y,
    const cudnnTensorDescriptor_t scale_tensor, const void *scale, const void *bias,
    double average_factor, void *running_mean, void *running_variance, double epsilon,
    void *saved_mean, void *saved_inverse_variance, cudnnActivationDescriptor_t activation,
    void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)mode, (void)operations, (void)alpha, (void)beta, (void)x, (void)z_tensor, (void)z;
    (void)scale, (void)bias, (void)average_factor, (void)epsilon, (void)activation;
    (void)workspace, (void)workspace_bytes, (void)reserve, (void)reserve_bytes;
    if (running_mean != NULL) us_values_forget_at(running_mean);
    if (running_variance != NULL) us_values_forget_at(running_variance);
    /* The saved statistics tell a reader that this is training. */
    return us_dnn_record(
        &record, handle, CUDNN_BACKEND_OPERATION_NORM_FORWARD, CUDNN_BATCH_NORM, NULL,
        US_OPERANDS({CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, scale_tensor, NULL},
                    {CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, scale_tensor, saved_mean},
                    {CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, scale_tensor,
                     saved_inverse_variance},
                    {CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y_tensor, y}));
}

US_EXPORT cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, int mode, const void *alpha, const void *beta,
    const cudnnTensorDescriptor_t x_tensor, const void *x, const cudnnTensorDescriptor_t y_tensor,
    void *y, const cudnnTensorDescriptor_t scale_tensor, const void *scale, const void *bias,
    const void *mean, const void *variance, double epsilon) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)mode, (void)alpha, (void)beta, (void)x, (void)scale, (void)bias, (void)mean;
    (void)variance, (void)epsilon;
    return us_dnn_record(&record, handle, CUDNN_BACKEND_OPERATION_NORM_FORWARD,
                            CUDNN_BATCH_NORM, NULL,
                            US_OPERANDS({CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x_tensor, NULL},
                                        {CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, scale_tensor,
                                         NULL},
                                        {CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y_tensor, y}));
}

US_EXPORT cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, int mode, int operations, const void *alpha_data, const void *beta_data,
    const void *alpha_parameters, const void *beta_parameters,
    const cudnnTensorDescriptor_t x_tensor, const void *x, const cudnnTensorDescriptor_t y_tensor,
    const void *y, const cudnnTensorDescriptor_t dy_tensor, const void *dy,
    const cudnnTensorDescriptor_t dz_tensor, void *dz, const cudnnTensorDescriptor_t dx_tensor,
    void *dx, const cudnnTensorDescriptor_t scale_tensor, const void *scale, const void *bias,
    void *dscale, void *dbias, double epsilon, const void *saved_mean,
    const void *saved_inverse_variance, cudnnActivationDescriptor_t activation, void *workspace,
    size_t workspace_bytes, void *reserve, size_t reserve_bytes) {
    struct us_record record = us_record_begin(US_API_DNN);
    (void)mode, (void)operations, (void)alpha_data, (void)beta_data, (void)alpha_parameters;
    (void)beta_parameters, (void)x, (void)y_tensor, (void)y, (void)dy, (void)dz_tensor, (void)dz;
    (void)scale, (void)bias, (void)epsilon, (void)saved_mean, (void)saved_inverse_variance;
    (void)activation, (void)workspace, (void)workspace_bytes, (void)reserve, (void)reserve_bytes;
    if (dscale != NULL) us_values_forget_at(dscale);
    if (dbias != NULL) us_values_forget_at(dbias);
    return us_dnn_record(&record, handle, CUDNN_BACKEND_OPERATION_NORM_BACKWARD,
                            CUDNN_BATCH_NORM, NULL,
                            US_OPERANDS({CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x_tensor, NULL},
                                        {CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dy_tensor, NULL},
                                        {CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, scale_tensor,
                                         NULL},
                                        {CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx_tensor, dx}));
}

/* Sizes of buffers that only cuDNN reads; small ones, some figures for each channel. */
static cudnnStatus_t no_bytes(cudnnHandle_t handle, size_t *bytes) {
    if (handle == NULL || bytes == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, int mode, int operations, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t z, const cudnnTensorDescriptor_t y,
    const cudnnTensorDescriptor_t scale, const cudnnActivationDescriptor_t activation,
    size_t *bytes) {
    (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    return no_bytes(handle, bytes);
}

US_EXPORT cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, int mode, int operations, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t dy,
    const cudnnTensorDescriptor_t dz, const cudnnTensorDescriptor_t dx,
    const cudnnTensorDescriptor_t scale, const cudnnActivationDescriptor_t activation,
    size_t *bytes) {
    (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
    (void)activation;
    return no_bytes(handle, bytes);
}

US_EXPORT cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, int mode, int operations, const cudnnActivationDescriptor_t activation,
    const cudnnTensorDescriptor_t x, size_t *bytes) {
    (void)mode, (void)operations, (void)activation, (void)x;
    return no_bytes(handle, bytes);
}
