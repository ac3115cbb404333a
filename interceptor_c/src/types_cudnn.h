/*
 * Own declarations for cuDNN 9 (numbers are part of its ABI), and what cudnn.c (handles and the
 * older layer functions) and cudnn_graph.c (the graph API) share.
 */
#ifndef UNDERSTUDY_TYPES_CUDNN_H
#define UNDERSTUDY_TYPES_CUDNN_H

#include "interceptor.h"

/* What torch 2.14.1 was built against: 9.24.0. */
#define US_CUDNN_MAX_DIMS 8

typedef int cudnnStatus_t;
enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_NOT_INITIALIZED = 1001,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_BAD_PARAM_NULL_POINTER = 2002,
    CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED = 2004,
    CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND = 2005,
    CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE = 2010,
    CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE = 2012,
    CUDNN_STATUS_NOT_SUPPORTED = 3000,
    CUDNN_STATUS_INTERNAL_ERROR = 4000,
    CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003,
    CUDNN_STATUS_EXECUTION_FAILED = 5000,
};

typedef int cudnnDataType_t; /* 0 float, 1 double, 2 half, 9 bfloat16, ...; us_cudnn_type_bits */
enum { US_CUDNN_FLOAT = 0, US_CUDNN_HALF = 2, US_CUDNN_BFLOAT16 = 9, US_CUDNN_INT64 = 10 };

/* cudnnBackendDescriptorType_t, as far as the interceptor looks into descriptors. */
enum {
    CUDNN_BACKEND_POINTWISE = 0,
    CUDNN_BACKEND_CONVOLUTION = 1,
    CUDNN_BACKEND_ENGINE = 2,
    CUDNN_BACKEND_ENGINECFG = 3,
    CUDNN_BACKEND_ENGINEHEUR = 4,
    CUDNN_BACKEND_EXECUTION_PLAN = 5,
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD = 10,
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER = 11,
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA = 12,
    CUDNN_BACKEND_OPERATIONGRAPH = 15,
    CUDNN_BACKEND_VARIANT_PACK = 16,
    CUDNN_BACKEND_TENSOR = 17,
    CUDNN_BACKEND_REDUCTION = 21,
    CUDNN_BACKEND_RESAMPLE = 24,
    CUDNN_BACKEND_OPERATION_NORM_FORWARD = 29,
    CUDNN_BACKEND_OPERATION_NORM_BACKWARD = 30,
    CUDNN_BACKEND_RNG = 32,
    CUDNN_BACKEND_OPERATION_SOFTMAX = 45,
    US_CUDNN_DESCRIPTOR_TYPES = 51,
};

/* cudnnBackendAttributeName_t, as far as the interceptor looks into descriptors. */
enum {
    CUDNN_ATTR_POINTWISE_MODE = 0,
    CUDNN_ATTR_CONVOLUTION_CONV_MODE = 101,
    CUDNN_ATTR_CONVOLUTION_DILATIONS = 102,
    CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES = 103,
    CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS = 105,
    CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS = 106,
    CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH = 201,
    CUDNN_ATTR_ENGINEHEUR_RESULTS = 202,
    CUDNN_ATTR_ENGINECFG_ENGINE = 300,
    CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO = 301,
    CUDNN_ATTR_ENGINECFG_KNOB_CHOICES = 302,
    CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE = 303,
    CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED = 304,
    CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401,
    CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
    CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS = 403,
    CUDNN_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS = 404,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W = 703,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X = 704,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y = 705,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W = 709,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX = 710,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY = 711,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW = 715,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X = 716,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY = 717,
    CUDNN_ATTR_OPERATION_GENSTATS_MODE = 770,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE = 780,
    CUDNN_ATTR_OPERATIONGRAPH_OPS = 801,
    CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802,
    CUDNN_ATTR_TENSOR_DATA_TYPE = 901,
    CUDNN_ATTR_TENSOR_DIMENSIONS = 902,
    CUDNN_ATTR_TENSOR_STRIDES = 903,
    CUDNN_ATTR_TENSOR_UNIQUE_ID = 906,
    CUDNN_ATTR_TENSOR_IS_VIRTUAL = 907,
    CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS = 1000,
    CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS = 1001,
    CUDNN_ATTR_VARIANT_PACK_WORKSPACE = 1003,
    CUDNN_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS = 1010,
    CUDNN_ATTR_ENGINE_OPERATION_GRAPH = 1300,
    CUDNN_ATTR_ENGINE_GLOBAL_INDEX = 1301,
    CUDNN_ATTR_ENGINE_KNOB_INFO = 1302,
    CUDNN_ATTR_ENGINE_NUMERICAL_NOTE = 1303,
    CUDNN_ATTR_ENGINE_LAYOUT_INFO = 1304,
    CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE = 1305,
    CUDNN_ATTR_REDUCTION_OPERATOR = 1600,
    CUDNN_ATTR_RESAMPLE_MODE = 1700,
    CUDNN_ATTR_OPERATION_SIGNAL_MODE = 1900,
    CUDNN_ATTR_OPERATION_NORM_FWD_MODE = 2000,
    CUDNN_ATTR_OPERATION_NORM_FWD_XDESC = 2002,
    CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC = 2003,
    CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC = 2004,
    CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC = 2005,
    CUDNN_ATTR_OPERATION_NORM_FWD_YDESC = 2013,
    CUDNN_ATTR_OPERATION_NORM_BWD_MODE = 2100,
    CUDNN_ATTR_OPERATION_NORM_BWD_XDESC = 2101,
    CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC = 2104,
    CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC = 2105,
    CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC = 2109,
    CUDNN_ATTR_OPERATION_RESHAPE_MODE = 2202,
    CUDNN_ATTR_RNG_DISTRIBUTION = 2300,
    CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED = 2401,
    CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE = 2900,
    CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE = 3007,
};

/* cudnnBackendAttributeType_t. */
enum {
    CUDNN_TYPE_HANDLE = 0,
    CUDNN_TYPE_DATA_TYPE = 1,
    CUDNN_TYPE_BOOLEAN = 2,
    CUDNN_TYPE_INT64 = 3,
    CUDNN_TYPE_FLOAT = 4,
    CUDNN_TYPE_DOUBLE = 5,
    CUDNN_TYPE_VOID_PTR = 6,
    CUDNN_TYPE_BACKEND_DESCRIPTOR = 15,
    CUDNN_TYPE_INT32 = 23,
    CUDNN_TYPE_CHAR = 24,
    CUDNN_TYPE_FRACTION = 26,
    US_CUDNN_ATTRIBUTE_TYPES = 33,
};

enum { CUDNN_BATCH_NORM = 2 }; /* cudnnBackendNormMode_t */

typedef struct cudnnContext *cudnnHandle_t;
typedef struct us_cudnn_descriptor *cudnnBackendDescriptor_t;

struct cudnnContext {
    cudaStream_t stream;
    int device;
};

int us_cudnn_type_bits(cudnnDataType_t type); /* 0 for an unknown one */

/* The older functions' description of a tensor or filter. */
struct us_cudnn_tensor {
    cudnnDataType_t type;
    int format; /* filters: 0 NCHW, 1 NHWC */
    int dim_count;
    int dims[US_CUDNN_MAX_DIMS], strides[US_CUDNN_MAX_DIMS];
};
typedef struct us_cudnn_tensor *cudnnTensorDescriptor_t;

struct us_cudnn_convolution {
    int spatial_dims, mode, math_type, groups, compute_type;
    int padding[US_CUDNN_MAX_DIMS], stride[US_CUDNN_MAX_DIMS], dilation[US_CUDNN_MAX_DIMS];
};

/* The payload of a US_DEFINITION_DNN under construction. Zero-initialise it. */
struct us_dnn_graph {
    struct us_dnn_operation *operations;
    struct us_dnn_tensor *tensors;
    size_t operation_count, operation_capacity, tensor_count, tensor_capacity;
    bool failed; /* out of memory or larger than any real graph: nothing more is added */
};

/* Both return a place to fill in that is valid until the next call, or NULL after a failure. A
   tensor belongs to the operation added last. */
struct us_dnn_operation *us_dnn_add_operation(struct us_dnn_graph *graph, int type);
struct us_dnn_tensor *us_dnn_add_tensor(struct us_dnn_graph *graph, int attribute);
uint32_t us_dnn_define(const struct us_dnn_graph *graph);
void us_dnn_free(struct us_dnn_graph *graph);
/* Bytes between the first and behind the last element of a tensor; 0 when it has none. */
size_t us_dnn_tensor_bytes(const struct us_dnn_tensor *tensor);

/* cudnn_workspace.c: bytes that cuDNN would ask for, a guess; of a convolution (a descriptor type of
   one: x, w and y stand for the gradients of them as well) and of a whole graph. */
int64_t us_dnn_convolution_workspace(int operation, const struct us_dnn_tensor *x,
                                     const struct us_dnn_tensor *w,
                                     const struct us_dnn_tensor *y);
int64_t us_dnn_workspace(const struct us_dnn_graph *graph);

/* One tensor of an operation that an older function executes; `result` is its memory when the
   operation writes it. */
struct us_dnn_operand {
    int attribute;
    const struct us_cudnn_tensor *tensor;
    const void *result;
};

/* Records one operation of an older function; `convolution` may be NULL. */
cudnnStatus_t us_dnn_record(struct us_record *record, cudnnHandle_t handle, int type, int mode,
                            const struct us_cudnn_convolution *convolution,
                            const struct us_dnn_operand *operands, size_t count);

#define US_OPERANDS(...)                                                                           \
    (const struct us_dnn_operand[]){__VA_ARGS__},                                                  \
        sizeof((const struct us_dnn_operand[]){__VA_ARGS__}) / sizeof(struct us_dnn_operand)

#endif
