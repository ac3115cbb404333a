/*
 * The workspace that cuDNN asks for in a convolution. NVIDIA publishes no sizes and each kernel has
 * its own, so all of it is a guess, made of what the documentation says that kernels do:
 *
 *   - An implicit GEMM needs none.
 *   - Kernels for tensor cores want channels innermost, in multiples of 16 bytes. Of tensors that
 *     are laid out otherwise cuDNN makes copies (NVIDIA, "Convolutional Layers User's Guide",
 *     "Tensor Layouts In Memory" and "Channels In And Out"): of both operands, and with 16-bit
 *     types of the result. Float32 runs on tensor cores as TF32 from compute capability 8.0 on.
 *     Such copies explain the two sizes that could be found, of cuDNN 7 on V100, to 7 KB in 22 and
 *     30 MB, if the copy of the result is float32 there; today's kernels convert 16-bit results.
 *   - The gradient of the filter is a small matrix that sums over all positions of the output, so
 *     its sum is split to fill the device; each part has float32 sums of its own.
 *   - Depthwise convolutions have kernels of their own that work in place.
 */
#include "interceptor.h"
#include "types_cudnn.h"

enum {
    TILE = 128,               /* rows and columns of the result that one thread block computes */
    LEAST_SUMMANDS = 4096,    /* of one part of a split sum */
    CHANNEL_GROUP_BYTES = 16,
};

static int64_t positions(const struct us_dnn_tensor *tensor) {
    int64_t count = 1;
    for (uint32_t i = 2; i < tensor->dim_count; i++) count *= tensor->dims[i];
    return count;
}

static int64_t rounded(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/* Bytes of a copy with channels innermost; 0 when the tensor is laid out like that. */
static int64_t copy_bytes(const struct us_dnn_tensor *tensor) {
    int64_t spatial = positions(tensor), channels = tensor->dims[1];
    if (channels == 1 || spatial == 1 || tensor->strides[1] == 1) return 0;
    int64_t element = us_cudnn_type_bits((cudnnDataType_t)tensor->type) / 8;
    return tensor->dims[0] * spatial * rounded(channels * element, CHANNEL_GROUP_BYTES);
}

/* Float32 sums of the parts of a filter's gradient. */
static int64_t split_bytes(const struct us_dnn_tensor *dw, const struct us_dnn_tensor *dy) {
    int64_t rows = dw->dims[0], columns = dw->dims[1] * positions(dw);
    int64_t tiles = rounded(rows, TILE) / TILE * (rounded(columns, TILE) / TILE);
    int64_t parts = us_device()->multiprocessors / tiles;
    int64_t most = dy->dims[0] * positions(dy) / LEAST_SUMMANDS;
    if (parts > most) parts = most;
    return parts > 1 ? parts * rows * columns * (int64_t)sizeof(float) : 0;
}

int64_t us_dnn_convolution_workspace(int operation, const struct us_dnn_tensor *x,
                                     const struct us_dnn_tensor *w,
                                     const struct us_dnn_tensor *y) {
    const struct us_dnn_tensor *tensors[] = {x, w, y};
    for (int i = 0; i < 3; i++) {
        if (tensors[i]->dim_count < 3) return 0;
        for (uint32_t j = 0; j < tensors[i]->dim_count; j++) {
            if (tensors[i]->dims[j] <= 0) return 0;
        }
    }
    bool depthwise = w->dims[1] == 1 && x->dims[1] > 1;
    bool narrow = x->type == US_CUDNN_HALF || x->type == US_CUDNN_BFLOAT16;
    bool wide = x->type == US_CUDNN_FLOAT && us_device()->compute_capability_major >= 8;
    if (depthwise || (!narrow && x->type != US_CUDNN_FLOAT)) return 0;
    bool of_filter = operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER;
    const struct us_dnn_tensor *result =
        operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD ? y : of_filter ? w : x;
    int64_t bytes = of_filter ? split_bytes(w, y) : 0;
    for (int i = 0; i < 3; i++) {
        if (narrow || (wide && tensors[i] != result)) bytes += copy_bytes(tensors[i]);
    }
    return bytes;
}

/* The tensor of an operation under one of three attributes. */
static const struct us_dnn_tensor *tensor_of(const struct us_dnn_graph *graph,
                                             const struct us_dnn_operation *operation,
                                             const uint32_t attributes[3]) {
    for (uint32_t i = 0; i < operation->tensor_count; i++) {
        const struct us_dnn_tensor *tensor = &graph->tensors[operation->first_tensor + i];
        for (int j = 0; j < 3; j++) {
            if (tensor->attribute == attributes[j]) return tensor;
        }
    }
    return NULL;
}

int64_t us_dnn_workspace(const struct us_dnn_graph *graph) {
    static const uint32_t of_x[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X},
                          of_w[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
                          of_y[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
    int64_t bytes = 0;
    for (size_t i = 0; i < graph->operation_count; i++) {
        const struct us_dnn_operation *operation = &graph->operations[i];
        if (operation->type < CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD ||
            operation->type > CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA) {
            continue;
        }
        const struct us_dnn_tensor *x = tensor_of(graph, operation, of_x),
                                   *w = tensor_of(graph, operation, of_w),
                                   *y = tensor_of(graph, operation, of_y);
        if (x != NULL && w != NULL && y != NULL) {
            bytes += us_dnn_convolution_workspace((int)operation->type, x, w, y);
        }
    }
    return bytes;
}
