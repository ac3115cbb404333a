/* The cuDNN descriptor store: lifetimes, answers of the library, and the recorded graph. */
#include "library_test.h"
#include "types_cudnn.h"

cudnnStatus_t cudnnCreate(cudnnHandle_t *);
cudnnStatus_t cudnnDestroy(cudnnHandle_t);
size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t);
cudnnStatus_t cudnnBackendCreateDescriptor(int, cudnnBackendDescriptor_t *);
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t, int, int, int64_t, const void *);
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, int, int, int64_t, int64_t *,
                                       void *);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t,
                                  cudnnBackendDescriptor_t);
typedef struct us_cudnn_tensor *cudnnTensorDescriptor_t;
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t, int, int, const int *,
                                         const int *);
cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t, int, int *, int *, int *, int *);
cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t, int, const void *, const void *, cudnnTensorDescriptor_t, const void *,
    cudnnTensorDescriptor_t, void *, cudnnTensorDescriptor_t, const void *, const void *,
    const void *, const void *, double);
typedef struct us_cudnn_rnn *cudnnRNNDescriptor_t;
typedef struct us_cudnn_rnn_data *cudnnRNNDataDescriptor_t;
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *);
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t);
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t, int, int, int, int, int, int, int, int,
                                       int32_t, int32_t, int32_t, int32_t, const void *, uint32_t);
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *);
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t);
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t, int, int, int, int, int,
                                        const int *, void *);
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t, size_t *);
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t, int32_t, size_t,
                                      const void *, int32_t, cudnnTensorDescriptor_t, void **,
                                      cudnnTensorDescriptor_t, void **);
cudnnStatus_t cudnnRNNForward(cudnnHandle_t, cudnnRNNDescriptor_t, int, const int32_t *,
                              cudnnRNNDataDescriptor_t, const void *, cudnnRNNDataDescriptor_t,
                              void *, cudnnTensorDescriptor_t, const void *, void *,
                              cudnnTensorDescriptor_t, const void *, void *, size_t, const void *,
                              size_t, void *, size_t, void *);
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t, int,
                                        cudnnRNNDataDescriptor_t, size_t *, size_t *);
typedef struct us_cudnn_convolution *cudnnConvolutionDescriptor_t;
typedef cudnnStatus_t workspace_function(cudnnHandle_t, cudnnTensorDescriptor_t,
                                         cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
                                         cudnnTensorDescriptor_t, int, size_t *);
workspace_function cudnnGetConvolutionForwardWorkspaceSize,
    cudnnGetConvolutionBackwardDataWorkspaceSize, cudnnGetConvolutionBackwardFilterWorkspaceSize;
typedef void *layer_t;
cudnnStatus_t cudnnCreateCTCLossDescriptor(layer_t *);
cudnnStatus_t cudnnDestroyCTCLossDescriptor(layer_t);
cudnnStatus_t cudnnSetCTCLossDescriptor_v9(layer_t, int, int, int, int);
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t, int, layer_t, cudnnTensorDescriptor_t,
                                              cudnnTensorDescriptor_t, size_t *);
cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t, int, layer_t, cudnnTensorDescriptor_t, const void *,
                              const int *, const int *, const int *, void *,
                              cudnnTensorDescriptor_t, void *, size_t, void *);
cudnnStatus_t cudnnCreateSpatialTransformerDescriptor(layer_t *);
cudnnStatus_t cudnnDestroySpatialTransformerDescriptor(layer_t);
cudnnStatus_t cudnnSetSpatialTransformerNdDescriptor(layer_t, int, int, int, const int *);
cudnnStatus_t cudnnSpatialTfGridGeneratorForward(cudnnHandle_t, layer_t, const void *, void *);
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t *);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);

static cudnnBackendDescriptor_t make(int type) {
    cudnnBackendDescriptor_t descriptor;
    CHECK(cudnnBackendCreateDescriptor(type, &descriptor) == 0);
    return descriptor;
}

static void set(cudnnBackendDescriptor_t descriptor, int name, int type, int64_t count,
                const void *elements) {
    CHECK(cudnnBackendSetAttribute(descriptor, name, type, count, elements) == 0);
}

static cudnnBackendDescriptor_t finalized(cudnnBackendDescriptor_t descriptor) {
    CHECK(cudnnBackendFinalize(descriptor) == 0);
    return descriptor;
}

static cudnnBackendDescriptor_t tensor(int64_t id, const int64_t dims[4]) {
    cudnnBackendDescriptor_t made = make(CUDNN_BACKEND_TENSOR);
    int64_t strides[4] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
    int type = 9;
    bool is_virtual = false;
    set(made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    return finalized(made);
}

/* A convolution forward, all of whose parts are destroyed but the operation graph. */
static cudnnBackendDescriptor_t convolution_graph(cudnnHandle_t handle) {
    int64_t spatial = 2, stride[] = {2, 2}, padding[] = {3, 3}, dilation[] = {1, 1};
    cudnnBackendDescriptor_t convolution = make(CUDNN_BACKEND_CONVOLUTION);
    int mode = 1;
    set(convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, 7, 1, &mode);
    set(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    set(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    set(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    set(convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    finalized(convolution);
    cudnnBackendDescriptor_t x = tensor(1, (int64_t[]){8, 3, 224, 224});
    cudnnBackendDescriptor_t w = tensor(2, (int64_t[]){64, 3, 7, 7});
    cudnnBackendDescriptor_t y = tensor(3, (int64_t[]){8, 64, 112, 112});
    cudnnBackendDescriptor_t operation = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD);
    set(operation, 702, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &convolution);
    set(operation, 703, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    set(operation, 704, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    set(operation, 705, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    finalized(operation);
    cudnnBackendDescriptor_t graph = make(CUDNN_BACKEND_OPERATIONGRAPH);
    set(graph, 800, CUDNN_TYPE_HANDLE, 1, &handle);
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation);
    finalized(graph);
    cudnnBackendDescriptor_t parts[] = {convolution, x, w, y, operation};
    for (size_t i = 0; i < 5; i++) CHECK(cudnnBackendDestroyDescriptor(parts[i]) == 0);
    return graph;
}

/* The engine configuration that heuristics offer, in a descriptor of ours. */
static cudnnBackendDescriptor_t best_configuration(cudnnBackendDescriptor_t graph,
                                                   cudnnBackendDescriptor_t *second) {
    cudnnBackendDescriptor_t heuristics = make(CUDNN_BACKEND_ENGINEHEUR);
    CHECK(cudnnBackendFinalize(heuristics) == CUDNN_STATUS_BAD_PARAM);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &graph);
    finalized(heuristics);
    int64_t count = -1;
    CHECK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL) == 0);
    CHECK(count == 2); /* with and without workspace */
    cudnnBackendDescriptor_t configurations[2] = {make(CUDNN_BACKEND_ENGINECFG),
                                                  make(CUDNN_BACKEND_ENGINECFG)};
    CHECK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, &count, configurations) == 0);
    CHECK(count == 2);
    *second = configurations[1];
    CHECK(cudnnBackendDestroyDescriptor(heuristics) == 0);

    /* What the frontend asks of it. */
    cudnnBackendDescriptor_t engine = make(CUDNN_BACKEND_ENGINE);
    CHECK(cudnnBackendGetAttribute(configurations[0], CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) == 0);
    int64_t index = -1;
    CHECK(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                   &count, &index) == 0);
    CHECK(index == 0);
    CHECK(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_KNOB_INFO,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL) == 0);
    CHECK(count == 0);
    CHECK(cudnnBackendDestroyDescriptor(engine) == 0);
    int32_t shared[2] = {-1, -1};
    CHECK(cudnnBackendGetAttribute(configurations[0], CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED,
                                   CUDNN_TYPE_INT32, 1, &count, shared) == 0);
    CHECK(count == 1 && shared[0] == 0 && shared[1] == -1);
    return configurations[0];
}

static cudnnBackendDescriptor_t plan_of(cudnnBackendDescriptor_t configuration) {
    cudnnBackendDescriptor_t plan = make(CUDNN_BACKEND_EXECUTION_PLAN);
    CHECK(cudnnBackendFinalize(plan) == CUDNN_STATUS_BAD_PARAM);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &configuration);
    return finalized(plan);
}

static int64_t workspace_of(cudnnBackendDescriptor_t plan) {
    int64_t workspace = -1, count;
    CHECK(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                   CUDNN_TYPE_INT64, 1, &count, &workspace) == 0);
    return workspace;
}

static cudnnBackendDescriptor_t variant_pack(void *output) {
    cudnnBackendDescriptor_t pack = make(CUDNN_BACKEND_VARIANT_PACK);
    int64_t ids[] = {1, 2, 3};
    void *pointers[] = {output, output, output};
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, pointers);
    return finalized(pack);
}

static void graph_api(cudnnHandle_t handle, float *output) {
    cudnnBackendDescriptor_t graph = convolution_graph(handle);
    cudnnBackendDescriptor_t second, configuration = best_configuration(graph, &second);
    cudnnBackendDescriptor_t plan = plan_of(configuration), frugal = plan_of(second);
    CHECK(cudnnBackendDestroyDescriptor(graph) == 0);
    CHECK(cudnnBackendDestroyDescriptor(configuration) == 0);
    CHECK(cudnnBackendDestroyDescriptor(second) == 0);
    /* Copies of all three with channels innermost, of 3 channels padded to 8. */
    CHECK(workspace_of(plan) == 2 * (8 * 224 * 224 * 8 + 64 * 7 * 7 * 8 + 8 * 112 * 112 * 64));
    CHECK(workspace_of(frugal) == 0);
    CHECK(cudnnBackendDestroyDescriptor(frugal) == 0);

    float value = 3, back = 0;
    CHECK(cudaMemcpy(output, &value, sizeof value, 1) == 0);
    cudnnBackendDescriptor_t pack = variant_pack(output);
    CHECK(cudnnBackendExecute(handle, plan, pack) == 0);
    CHECK(cudaMemcpy(&back, output, sizeof back, 2) == 0 && back == 0);
    CHECK(cudnnBackendExecute(handle, plan, pack) == 0);
    CHECK(count_of(US_API_DNN) == 2);
    struct us_record record = last_of(US_API_DNN);
    CHECK(record.definition == 1 && record.a == (uintptr_t)output);

    size_t bytes;
    char *payload = definition_of(US_DEFINITION_DNN, record.definition, &bytes);
    struct us_dnn head;
    struct us_dnn_operation operation;
    struct us_dnn_tensor tensors[3];
    CHECK(bytes == sizeof head + sizeof operation + sizeof tensors);
    memcpy(&head, payload, sizeof head);
    memcpy(&operation, payload + sizeof head, sizeof operation);
    memcpy(tensors, payload + sizeof head + sizeof operation, sizeof tensors);
    free(payload);
    CHECK(head.operation_count == 1 && head.tensor_count == 3);
    CHECK(operation.type == 10 && operation.mode == 1 && operation.spatial_dims == 2);
    CHECK(operation.stride[0] == 2 && operation.padding[1] == 3 && operation.dilation[0] == 1);
    CHECK(operation.first_tensor == 0 && operation.tensor_count == 3);
    CHECK(tensors[0].attribute == 703 && tensors[0].dims[0] == 64 && tensors[0].dim_count == 4);
    CHECK(tensors[2].attribute == 705 && tensors[2].strides[1] == 112 * 112);
    CHECK(tensors[2].type == 9 && tensors[2].unique_id == 3 && tensors[2].is_virtual == 0);

    CHECK(cudnnBackendExecute(handle, pack, plan) == CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
    CHECK(cudnnBackendExecute(NULL, plan, pack) == CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    CHECK(cudnnBackendDestroyDescriptor(plan) == 0 && cudnnBackendDestroyDescriptor(pack) == 0);
}

static void descriptor_errors(void) {
    cudnnBackendDescriptor_t descriptor = make(CUDNN_BACKEND_TENSOR), other;
    int64_t dims[] = {1, 2, 3, 4}, count = 0;
    int type = 0;
    CHECK(cudnnBackendCreateDescriptor(4711, &other) == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(cudnnBackendCreateDescriptor(17, NULL) == CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    CHECK(cudnnBackendFinalize(descriptor) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnBackendSetAttribute(descriptor, 902, 99, 4, dims) ==
          CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    CHECK(cudnnBackendSetAttribute(descriptor, 902, CUDNN_TYPE_INT64, -1, dims) ==
          CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
    CHECK(cudnnBackendSetAttribute(descriptor, 902, CUDNN_TYPE_INT64, 4, NULL) ==
          CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    CHECK(cudnnBackendSetAttribute(NULL, 902, CUDNN_TYPE_INT64, 4, dims) ==
          CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    other = make(CUDNN_BACKEND_OPERATIONGRAPH);
    CHECK(cudnnBackendSetAttribute(other, 801, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor) ==
          CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    CHECK(cudnnBackendDestroyDescriptor(other) == 0);
    set(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 2, dims);
    set(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims); /* replaces */
    set(descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, dims);
    set(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalized(descriptor);
    CHECK(cudnnBackendSetAttribute(descriptor, 902, CUDNN_TYPE_INT64, 4, dims) ==
          CUDNN_STATUS_NOT_INITIALIZED);
    int64_t back[2] = {0, 0};
    CHECK(cudnnBackendGetAttribute(descriptor, 902, CUDNN_TYPE_INT64, 2, &count, back) == 0);
    CHECK(count == 4 && back[1] == 2);
    CHECK(cudnnBackendGetAttribute(descriptor, 902, CUDNN_TYPE_FLOAT, 2, &count, back) ==
          CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    CHECK(cudnnBackendGetAttribute(descriptor, 913, CUDNN_TYPE_INT64, 2, NULL, back) ==
          CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(cudnnBackendDestroyDescriptor(descriptor) == 0);
}

static void older_functions(cudnnHandle_t handle, float *output) {
    cudnnTensorDescriptor_t x, scale;
    int dims[] = {2, 8, 4, 4}, strides[] = {128, 16, 4, 1}, ones[] = {1, 8, 1, 1};
    int type = -1, count = 0, back[8] = {0};
    CHECK(cudnnCreateTensorDescriptor(&x) == 0 && cudnnCreateTensorDescriptor(&scale) == 0);
    CHECK(cudnnSetTensorNdDescriptor(x, 2, 4, dims, strides) == 0);
    CHECK(cudnnSetTensorNdDescriptor(scale, 0, 4, ones, ones) == 0);
    CHECK(cudnnSetTensorNdDescriptor(x, 2, 9, dims, strides) == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(cudnnGetTensorNdDescriptor(x, 8, &type, &count, back, NULL) == 0);
    CHECK(type == 2 && count == 4 && back[1] == 8 && back[4] == 0);
    CHECK(cudnnBatchNormalizationForwardInference(handle, 1, NULL, NULL, x, output, x, output,
                                                  scale, output, output, output, output,
                                                  1e-5) == 0);
    struct us_record record = last_of(US_API_DNN);
    char *payload = definition_of(US_DEFINITION_DNN, record.definition, NULL);
    struct us_dnn_operation operation;
    memcpy(&operation, payload + sizeof(struct us_dnn), sizeof operation);
    free(payload);
    CHECK(operation.type == 29 && operation.mode == CUDNN_BATCH_NORM);
    CHECK(operation.tensor_count == 3);
    CHECK(cudnnDestroyTensorDescriptor(x) == 0 && cudnnDestroyTensorDescriptor(scale) == 0);
}

static size_t wanted(workspace_function *function, cudnnHandle_t handle,
                     cudnnTensorDescriptor_t first, cudnnTensorDescriptor_t second,
                     cudnnTensorDescriptor_t third) {
    size_t bytes = 1;
    CHECK(function(handle, first, second, NULL, third, 1, &bytes) == 0);
    return bytes;
}

static void describe(cudnnTensorDescriptor_t tensor, int type, const int dims[4], bool nhwc) {
    int nchw_strides[] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
    int nhwc_strides[] = {dims[1] * dims[2] * dims[3], 1, dims[3] * dims[1], dims[1]};
    CHECK(cudnnSetTensorNdDescriptor(tensor, type, 4, dims,
                                     nhwc ? nhwc_strides : nchw_strides) == 0);
}

/* The default device is an H100 of 132 multiprocessors. */
static void convolution_workspaces(cudnnHandle_t handle) {
    enum { FLOAT = 0, HALF = 2, N = 32, C = 64, K = 64, SIDE = 56 };
    const size_t image = (size_t)N * C * SIDE * SIDE, filter = K * C * 3 * 3;
    const int dims[] = {N, C, SIDE, SIDE}, filter_dims[] = {K, C, 3, 3};
    workspace_function *forward = cudnnGetConvolutionForwardWorkspaceSize,
                       *of_data = cudnnGetConvolutionBackwardDataWorkspaceSize,
                       *of_filter = cudnnGetConvolutionBackwardFilterWorkspaceSize;
    cudnnTensorDescriptor_t x, w, y;
    CHECK(cudnnCreateTensorDescriptor(&x) == 0 && cudnnCreateTensorDescriptor(&w) == 0 &&
          cudnnCreateTensorDescriptor(&y) == 0);
    describe(x, HALF, dims, false);
    describe(w, HALF, filter_dims, false);
    describe(y, HALF, dims, false);
    /* The filter's gradient is 1 x 5 tiles; 100,352 summands are 24 times 4096. */
    const size_t copies = 2 * (2 * image + filter), parts = 24 * filter * 4;
    CHECK(wanted(forward, handle, x, w, y) == copies);
    CHECK(wanted(of_data, handle, w, y, x) == copies);
    CHECK(wanted(of_filter, handle, x, y, w) == copies + parts);
    describe(x, HALF, dims, true);
    describe(w, HALF, filter_dims, true);
    describe(y, HALF, dims, true);
    CHECK(wanted(forward, handle, x, w, y) == 0 && wanted(of_data, handle, w, y, x) == 0);
    CHECK(wanted(of_filter, handle, x, y, w) == parts);
    describe(x, FLOAT, dims, false);
    describe(w, FLOAT, filter_dims, false);
    describe(y, FLOAT, dims, false);
    CHECK(wanted(forward, handle, x, w, y) == 4 * (image + filter)); /* TF32: operands only */
    CHECK(wanted(of_data, handle, w, y, x) == 4 * (image + filter));
    describe(w, HALF, (const int[]){C, 1, 3, 3}, false); /* depthwise */
    describe(x, HALF, dims, false);
    CHECK(wanted(forward, handle, x, w, y) == 0);
    CHECK(forward(handle, x, w, NULL, y, 1, NULL) == CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    CHECK(cudnnDestroyTensorDescriptor(x) == 0 && cudnnDestroyTensorDescriptor(w) == 0 &&
          cudnnDestroyTensorDescriptor(y) == 0);
}

/* Sizes that cuDNN 7 was seen to ask for (cudnn_rnn.c). */
static void recurrent_sizes(cudnnHandle_t handle) {
    static const struct {
        int cell;
        size_t workspace_bytes, reserve_bytes;
    } seen[] = {{2, 17730560, 736000000}, {3, 13169920, 864000000}};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        cudnnRNNDescriptor_t rnn;
        cudnnRNNDataDescriptor_t x;
        size_t workspace = 0, reserve = 0;
        CHECK(cudnnCreateRNNDescriptor(&rnn) == 0 && cudnnCreateRNNDataDescriptor(&x) == 0);
        CHECK(cudnnSetRNNDescriptor_v8(rnn, 0, seen[i].cell, 2, 0, 0, 0, 0, 0, 123, 320, 320, 4,
                                       NULL, 0) == 0);
        CHECK(cudnnSetRNNDataDescriptor(x, 0, 0, 250, 100, 123, NULL, NULL) == 0);
        CHECK(cudnnGetRNNTempSpaceSizes(handle, rnn, 1, x, &workspace, &reserve) == 0);
        CHECK(workspace == seen[i].workspace_bytes && reserve == seen[i].reserve_bytes);
        CHECK(cudnnGetRNNTempSpaceSizes(handle, rnn, 0, x, &workspace, &reserve) == 0);
        CHECK(workspace > seen[i].workspace_bytes && reserve == 0);
        CHECK(cudnnDestroyRNNDescriptor(rnn) == 0 && cudnnDestroyRNNDataDescriptor(x) == 0);
    }
}

/* An LSTM of two layers and two directions: its parts tile the weight space without a gap. */
static void recurrent(cudnnHandle_t handle, float *output) {
    enum { INPUT = 8, HIDDEN = 16, LAYERS = 2, MATRICES = 8 };
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t matrix, bias;
    size_t bytes = 0, seen = 0;
    CHECK(cudnnCreateRNNDescriptor(&rnn) == 0);
    CHECK(cudnnGetRNNWeightSpaceSize(handle, rnn, &bytes) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetRNNDescriptor_v8(rnn, 0, 9, 2, 1, 0, 0, 0, 0, INPUT, HIDDEN, HIDDEN, LAYERS,
                                   NULL, 0) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 1, 0, 0, 0, 0, INPUT, HIDDEN, HIDDEN, LAYERS,
                                   NULL, 0) == 0);
    CHECK(cudnnGetRNNWeightSpaceSize(handle, rnn, &bytes) == 0);
    CHECK(cudnnCreateTensorDescriptor(&matrix) == 0 && cudnnCreateTensorDescriptor(&bias) == 0);
    char *weights = (char *)output, *next_matrix = weights;
    for (int layer = 0; layer < 2 * LAYERS; layer++) {
        for (int id = 0; id < MATRICES; id++) {
            void *at_matrix, *at_bias;
            int dims[8], count;
            CHECK(cudnnGetRNNWeightParams(handle, rnn, layer, bytes, weights, id, matrix,
                                          &at_matrix, bias, &at_bias) == 0);
            CHECK(at_matrix == next_matrix && (char *)at_bias < weights + bytes);
            CHECK(cudnnGetTensorNdDescriptor(matrix, 8, NULL, &count, dims, NULL) == 0);
            int columns = id >= 4 ? HIDDEN : layer < 2 ? INPUT : 2 * HIDDEN;
            CHECK(count == 3 && dims[0] == 1 && dims[1] == HIDDEN && dims[2] == columns);
            next_matrix += 4 * HIDDEN * columns;
            seen += (size_t)(4 * HIDDEN * (columns + 1));
        }
    }
    CHECK(seen == bytes);
    CHECK(cudnnGetRNNWeightParams(handle, rnn, 4, bytes, weights, 0, matrix, NULL, bias, NULL) ==
          CUDNN_STATUS_BAD_PARAM);

    CHECK(cudnnCreateRNNDataDescriptor(&x) == 0 && cudnnCreateRNNDataDescriptor(&y) == 0);
    CHECK(cudnnSetRNNDataDescriptor(x, 0, 0, 0, 2, INPUT, NULL, NULL) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetRNNDataDescriptor(x, 0, 0, 5, 2, INPUT, NULL, NULL) == 0);
    CHECK(cudnnSetRNNDataDescriptor(y, 0, 0, 5, 2, 2 * HIDDEN, NULL, NULL) == 0);
    CHECK(cudnnRNNForward(handle, rnn, 1, NULL, x, output, y, output, NULL, NULL, NULL, NULL, NULL,
                          NULL, bytes, weights, 0, NULL, 0, NULL) == 0);
    struct us_record record = last_of(US_API_DNN);
    char *payload = definition_of(US_DEFINITION_DNN, record.definition, NULL);
    struct us_dnn_operation operation;
    struct us_dnn_tensor tensors[3];
    memcpy(&operation, payload + sizeof(struct us_dnn), sizeof operation);
    memcpy(tensors, payload + sizeof(struct us_dnn) + sizeof operation, sizeof tensors);
    free(payload);
    CHECK(operation.type == US_DNN_RNN_FORWARD && operation.mode == 2);
    CHECK(tensors[0].dims[0] == 5 && tensors[1].dims[2] == 2 * HIDDEN);
    CHECK((size_t)tensors[2].dims[0] * 4 == bytes);
    CHECK(cudnnDestroyRNNDataDescriptor(x) == 0 && cudnnDestroyRNNDataDescriptor(y) == 0);
    CHECK(cudnnDestroyTensorDescriptor(matrix) == 0 && cudnnDestroyTensorDescriptor(bias) == 0);
    CHECK(cudnnDestroyRNNDescriptor(rnn) == 0);
}

static struct us_dnn_operation last_operation(void) {
    char *payload = definition_of(US_DEFINITION_DNN, last_of(US_API_DNN).definition, NULL);
    struct us_dnn_operation operation;
    memcpy(&operation, payload + sizeof(struct us_dnn), sizeof operation);
    free(payload);
    return operation;
}

/* CTC loss, the grid of a spatial transformer, dropout states. */
static void layers(cudnnHandle_t handle, float *output) {
    cudnnTensorDescriptor_t sequences, flat;
    layer_t ctc, transformer;
    size_t bytes = 0;
    float one = 1, back = 0;
    const int dims[] = {50, 4, 20}, strides[] = {80, 20, 1}, image[] = {2, 3, 8, 16};
    CHECK(cudnnCreateTensorDescriptor(&sequences) == 0 && cudnnCreateTensorDescriptor(&flat) == 0);
    CHECK(cudnnSetTensorNdDescriptor(sequences, 0, 3, dims, strides) == 0);
    CHECK(cudnnSetTensorNdDescriptor(flat, 0, 2, dims, strides) == 0);
    CHECK(cudnnCreateCTCLossDescriptor(&ctc) == 0);
    CHECK(cudnnSetCTCLossDescriptor_v9(ctc, 0, 1, 0, -1) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetCTCLossDescriptor_v9(ctc, 0, 1, 0, 10) == 0);
    CHECK(cudnnGetCTCLossWorkspaceSize_v8(handle, 0, ctc, sequences, NULL, &bytes) == 0);
    CHECK(bytes == 2 * 4 * 50 * 4 * 21);
    CHECK(cudaMemcpy(output, &one, sizeof one, 1) == 0);
    CHECK(cudnnCTCLoss_v8(handle, 0, ctc, flat, NULL, NULL, NULL, NULL, output, NULL, NULL, 0,
                          NULL) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnCTCLoss_v8(handle, 0, ctc, sequences, NULL, NULL, NULL, NULL, output, sequences,
                          output + 4, 0, NULL) == 0);
    CHECK(cudaMemcpy(&back, output, sizeof back, 2) == 0 && back == 0);
    struct us_dnn_operation operation = last_operation();
    CHECK(operation.type == US_DNN_CTC_LOSS && operation.mode == 10);
    CHECK(operation.tensor_count == 2);
    CHECK(cudnnDestroyCTCLossDescriptor(ctc) == 0);
    CHECK(cudnnCreateSpatialTransformerDescriptor(&transformer) == 0);
    CHECK(cudnnSetSpatialTransformerNdDescriptor(transformer, 0, 0, 5, image) ==
          CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(cudnnSetSpatialTransformerNdDescriptor(transformer, 0, 0, 4, image) == 0);
    CHECK(cudnnSpatialTfGridGeneratorForward(handle, transformer, output, output) == 0);
    operation = last_operation();
    CHECK(operation.type == US_DNN_GRID_GENERATOR_FORWARD && operation.tensor_count == 1);
    CHECK(cudnnDestroySpatialTransformerDescriptor(transformer) == 0);
    CHECK(cudnnDropoutGetStatesSize(handle, &bytes) == 0 && bytes == 132 * 2048 * 48);
    CHECK(cudnnDestroyTensorDescriptor(sequences) == 0 && cudnnDestroyTensorDescriptor(flat) == 0);
}

int main(void) {
    open_trace();
    cudnnHandle_t handle;
    float *output;
    CHECK(cudnnCreate(NULL) == CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    CHECK(cudnnCreate(&handle) == 0 && cudaMalloc((void **)&output, 1 << 16) == 0);
    CHECK(cudnnGetVersion() == 92400);
    CHECK(strcmp(cudnnGetErrorString(3000), "CUDNN_STATUS_NOT_SUPPORTED") == 0);
    descriptor_errors();
    graph_api(handle, output);
    older_functions(handle, output);
    convolution_workspaces(handle);
    recurrent_sizes(handle);
    recurrent(handle, output);
    layers(handle, output);
    CHECK(cudaFree(output) == 0 && cudnnDestroy(handle) == 0);
    close_trace();
    return 0;
}
