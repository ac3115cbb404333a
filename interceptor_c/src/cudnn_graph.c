/*
 * The cuDNN graph API: a store of descriptors with typed attributes.
 *
 * A descriptor is a list of attributes as the program set them. Descriptors that are set as
 * attributes of others are counted references: an execution plan keeps its engine configuration,
 * engine, operation graph, operations and tensors alive after the program has destroyed them.
 * Finalized descriptors do not change any more, so they need no lock; only the reference counts and
 * a plan's cached definition id are shared between threads.
 *
 * Heuristics offer engine 0 for every graph, so every plan is supported; where it wants workspace
 * (cudnn_workspace.c) there is engine 1, which needs none, for programs that are short of memory.
 * Executing a plan records the whole operation graph (US_API_DNN); nothing is computed.
 *
 * How a reader recognises attention in a recorded graph: see the end of this file.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "types_cudnn.h"

enum {
    MAX_ELEMENTS = 65536,  /* of one attribute; the largest real ones are strings */
    MAX_OPERATIONS = 1024, /* of one graph; attention has about 40 */
    MAX_TENSORS = 8192,
    MAX_NESTING = 4, /* operation graphs inside operations (unified attention) */
};

struct attribute {
    int name, type;
    int64_t count;
    void *elements;
};

/* What a finalized execution plan needs at every call. */
struct compiled_plan {
    struct us_dnn_graph graph;
    uint64_t definition; /* trace generation << 32 | id; 0 before the first execution */
};

struct us_cudnn_descriptor {
    int type;
    int references;
    bool is_finalized;
    struct attribute *attributes;
    size_t attribute_count;
    struct compiled_plan *plan; /* of a finalized execution plan */
};

/* Attributes --------------------------------------------------------------------------------- */

/* Bytes of one element; enumerations are ints. */
static size_t element_bytes(int type) {
    switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
    }
}

static void release(struct us_cudnn_descriptor *descriptor);

static void clear_attribute(struct attribute *attribute) {
    if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        struct us_cudnn_descriptor **held = attribute->elements;
        for (int64_t i = 0; i < attribute->count; i++) release(held[i]);
    }
    free(attribute->elements);
    attribute->elements = NULL;
    attribute->count = 0;
}

static void clear_attributes(struct us_cudnn_descriptor *descriptor) {
    for (size_t i = 0; i < descriptor->attribute_count; i++) {
        clear_attribute(&descriptor->attributes[i]);
    }
    free(descriptor->attributes);
    descriptor->attributes = NULL;
    descriptor->attribute_count = 0;
}

static void release(struct us_cudnn_descriptor *descriptor) {
    if (descriptor == NULL) return;
    if (__atomic_sub_fetch(&descriptor->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    clear_attributes(descriptor);
    if (descriptor->plan != NULL) {
        us_dnn_free(&descriptor->plan->graph);
        free(descriptor->plan);
    }
    free(descriptor);
}

static struct us_cudnn_descriptor *retain(struct us_cudnn_descriptor *descriptor) {
    if (descriptor != NULL) __atomic_add_fetch(&descriptor->references, 1, __ATOMIC_RELAXED);
    return descriptor;
}

static struct attribute *find(const struct us_cudnn_descriptor *descriptor, int name) {
    for (size_t i = 0; i < descriptor->attribute_count; i++) {
        if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
    }
    return NULL;
}

static cudnnStatus_t store(struct us_cudnn_descriptor *descriptor, int name, int type,
                           int64_t count, const void *elements) {
    size_t bytes = (size_t)count * element_bytes(type);
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    if (bytes > 0) memcpy(copy, elements, bytes);

    struct attribute *attribute = find(descriptor, name);
    if (attribute == NULL) {
        size_t room = (descriptor->attribute_count + 1) * sizeof *attribute;
        struct attribute *grown = realloc(descriptor->attributes, room);
        if (grown == NULL) {
            free(copy);
            return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
        }
        descriptor->attributes = grown;
        attribute = &grown[descriptor->attribute_count++];
        *attribute = (struct attribute){.name = name, .type = type};
    }
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        struct us_cudnn_descriptor **held = copy;
        for (int64_t i = 0; i < count; i++) retain(held[i]);
    }
    clear_attribute(attribute); /* after retain: the same descriptor may be set again */
    attribute->type = type;
    attribute->count = count;
    attribute->elements = copy;
    return CUDNN_STATUS_SUCCESS;
}

/* The first element of an integer attribute (enumeration, boolean, int32 or int64). */
static int64_t number(const struct us_cudnn_descriptor *descriptor, int name, int64_t otherwise) {
    const struct attribute *attribute = find(descriptor, name);
    if (attribute == NULL || attribute->count < 1) return otherwise;
    int64_t wide = 0;
    int narrow = 0;
    switch (element_bytes(attribute->type)) {
    case 8: memcpy(&wide, attribute->elements, 8); return wide;
    case 1: return *(const unsigned char *)attribute->elements;
    default: memcpy(&narrow, attribute->elements, 4); return narrow;
    }
}

/* Up to `limit` elements of an int64 array attribute; returns how many. */
static int64_t numbers(const struct us_cudnn_descriptor *descriptor, int name, int64_t *out,
                       int64_t limit) {
    const struct attribute *attribute = find(descriptor, name);
    if (attribute == NULL || attribute->type != CUDNN_TYPE_INT64) return 0;
    int64_t count = attribute->count < limit ? attribute->count : limit;
    memcpy(out, attribute->elements, (size_t)count * sizeof *out);
    return count;
}

/* The first descriptor of an attribute. */
static struct us_cudnn_descriptor *descriptor_at(const struct us_cudnn_descriptor *descriptor,
                                                 int name) {
    const struct attribute *attribute = find(descriptor, name);
    if (attribute == NULL || attribute->type != CUDNN_TYPE_BACKEND_DESCRIPTOR ||
        attribute->count < 1) {
        return NULL;
    }
    return ((struct us_cudnn_descriptor **)attribute->elements)[0];
}

/* The payload of a definition ---------------------------------------------------------------- */

static void *grow(void *array, size_t count, size_t *capacity, size_t limit, size_t bytes) {
    if (count < *capacity) return array;
    if (count >= limit) return NULL;
    size_t larger = *capacity == 0 ? 16 : *capacity * 2;
    void *grown = realloc(array, larger * bytes);
    if (grown != NULL) *capacity = larger;
    return grown;
}

struct us_dnn_operation *us_dnn_add_operation(struct us_dnn_graph *graph, int type) {
    void *grown = graph->failed ? NULL
                                : grow(graph->operations, graph->operation_count,
                                       &graph->operation_capacity, MAX_OPERATIONS,
                                       sizeof *graph->operations);
    if (grown == NULL) {
        graph->failed = true;
        return NULL;
    }
    graph->operations = grown;
    struct us_dnn_operation *operation = &graph->operations[graph->operation_count++];
    *operation = (struct us_dnn_operation){.type = (uint32_t)type,
                                           .first_tensor = (uint32_t)graph->tensor_count};
    return operation;
}

struct us_dnn_tensor *us_dnn_add_tensor(struct us_dnn_graph *graph, int attribute) {
    void *grown = graph->failed || graph->operation_count == 0
                      ? NULL
                      : grow(graph->tensors, graph->tensor_count, &graph->tensor_capacity,
                             MAX_TENSORS, sizeof *graph->tensors);
    if (grown == NULL) {
        graph->failed = true;
        return NULL;
    }
    graph->tensors = grown;
    graph->operations[graph->operation_count - 1].tensor_count++;
    struct us_dnn_tensor *tensor = &graph->tensors[graph->tensor_count++];
    *tensor = (struct us_dnn_tensor){.attribute = (uint32_t)attribute};
    return tensor;
}

uint32_t us_dnn_define(const struct us_dnn_graph *graph) {
    size_t operation_bytes = graph->operation_count * sizeof *graph->operations;
    size_t tensor_bytes = graph->tensor_count * sizeof *graph->tensors;
    struct us_dnn head = {(uint32_t)graph->operation_count, (uint32_t)graph->tensor_count};
    size_t bytes = sizeof head + operation_bytes + tensor_bytes;
    char *payload = malloc(bytes);
    if (payload == NULL) return 0;
    memcpy(payload, &head, sizeof head);
    if (operation_bytes > 0) memcpy(payload + sizeof head, graph->operations, operation_bytes);
    if (tensor_bytes > 0) {
        memcpy(payload + sizeof head + operation_bytes, graph->tensors, tensor_bytes);
    }
    uint32_t id = us_define(US_DEFINITION_DNN, payload, bytes);
    free(payload);
    return id;
}

void us_dnn_free(struct us_dnn_graph *graph) {
    free(graph->operations);
    free(graph->tensors);
    *graph = (struct us_dnn_graph){0};
}

size_t us_dnn_tensor_bytes(const struct us_dnn_tensor *tensor) {
    int64_t last = 0;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        int64_t reach;
        if (tensor->dims[i] <= 0 || tensor->strides[i] < 0 ||
            __builtin_mul_overflow(tensor->dims[i] - 1, tensor->strides[i], &reach) ||
            __builtin_add_overflow(last, reach, &last)) {
            return 0;
        }
    }
    return ((size_t)last + 1) * (size_t)us_cudnn_type_bits((cudnnDataType_t)tensor->type) / 8;
}

/* From descriptors to the payload ------------------------------------------------------------ */

static void add_tensor(struct us_dnn_graph *graph, int attribute,
                       const struct us_cudnn_descriptor *descriptor) {
    struct us_dnn_tensor *tensor = us_dnn_add_tensor(graph, attribute);
    if (tensor == NULL) return;
    tensor->type = (uint32_t)number(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, 0);
    tensor->is_virtual = number(descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
    tensor->unique_id = number(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    int64_t dims = numbers(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, tensor->dims,
                           US_CUDNN_MAX_DIMS);
    numbers(descriptor, CUDNN_ATTR_TENSOR_STRIDES, tensor->strides, US_CUDNN_MAX_DIMS);
    tensor->dim_count = (uint32_t)dims;
}

static void copy_narrow(int32_t out[3], const struct us_cudnn_descriptor *convolution, int name) {
    int64_t wide[3] = {0};
    int64_t count = numbers(convolution, name, wide, 3);
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)wide[i];
}

static void add_convolution(struct us_dnn_operation *operation,
                            const struct us_cudnn_descriptor *convolution) {
    operation->mode = (uint32_t)number(convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, 0);
    operation->spatial_dims =
        (int32_t)number(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0);
    copy_narrow(operation->stride, convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    copy_narrow(operation->dilation, convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS);
    copy_narrow(operation->padding, convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
}

/* The mode of operations that hold it themselves. */
static uint32_t own_mode(const struct us_cudnn_descriptor *operation) {
    static const int names[] = {
        CUDNN_ATTR_OPERATION_GENSTATS_MODE,
        CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE,
        CUDNN_ATTR_OPERATION_SIGNAL_MODE,
        CUDNN_ATTR_OPERATION_NORM_FWD_MODE,
        CUDNN_ATTR_OPERATION_NORM_BWD_MODE,
        CUDNN_ATTR_OPERATION_RESHAPE_MODE,
        CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE,
        CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE,
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (find(operation, names[i]) != NULL) return (uint32_t)number(operation, names[i], 0);
    }
    return 0;
}

static void add_operations(struct us_dnn_graph *graph,
                           const struct us_cudnn_descriptor *operation_graph, int nesting);

static void add_operation(struct us_dnn_graph *graph, const struct us_cudnn_descriptor *source,
                          int nesting);

/* Unified attention holds a softmax operation and an operation graph for masks and biases. They
   follow behind the tensors of the outer operation: each operation's tensors are contiguous. */
static void add_nested(struct us_dnn_graph *graph, const struct us_cudnn_descriptor *source,
                       int nesting) {
    for (size_t i = 0; i < source->attribute_count; i++) {
        const struct attribute *attribute = &source->attributes[i];
        if (attribute->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
        struct us_cudnn_descriptor **held = attribute->elements;
        for (int64_t j = 0; j < attribute->count && !graph->failed; j++) {
            if (held[j]->type == CUDNN_BACKEND_OPERATIONGRAPH) {
                add_operations(graph, held[j], nesting + 1);
            } else if (held[j]->type == CUDNN_BACKEND_OPERATION_SOFTMAX) {
                add_operation(graph, held[j], nesting + 1);
            }
        }
    }
}

static void add_operation(struct us_dnn_graph *graph, const struct us_cudnn_descriptor *source,
                          int nesting) {
    if (us_dnn_add_operation(graph, source->type) == NULL) return;
    size_t index = graph->operation_count - 1;
    graph->operations[index].mode = own_mode(source);
    for (size_t i = 0; i < source->attribute_count; i++) {
        const struct attribute *attribute = &source->attributes[i];
        if (attribute->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
        struct us_cudnn_descriptor **held = attribute->elements;
        for (int64_t j = 0; j < attribute->count && !graph->failed; j++) {
            struct us_dnn_operation *operation = &graph->operations[index];
            switch (held[j]->type) {
            case CUDNN_BACKEND_TENSOR: add_tensor(graph, attribute->name, held[j]); break;
            case CUDNN_BACKEND_CONVOLUTION: add_convolution(operation, held[j]); break;
            case CUDNN_BACKEND_POINTWISE:
                operation->mode = (uint32_t)number(held[j], CUDNN_ATTR_POINTWISE_MODE, 0);
                break;
            case CUDNN_BACKEND_REDUCTION:
                operation->mode = (uint32_t)number(held[j], CUDNN_ATTR_REDUCTION_OPERATOR, 0);
                break;
            case CUDNN_BACKEND_RESAMPLE:
                operation->mode = (uint32_t)number(held[j], CUDNN_ATTR_RESAMPLE_MODE, 0);
                break;
            case CUDNN_BACKEND_RNG:
                operation->mode = (uint32_t)number(held[j], CUDNN_ATTR_RNG_DISTRIBUTION, 0);
                break;
            default: break;
            }
        }
    }
    add_nested(graph, source, nesting);
}

static void add_operations(struct us_dnn_graph *graph,
                           const struct us_cudnn_descriptor *operation_graph, int nesting) {
    const struct attribute *operations = find(operation_graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (operations == NULL || operations->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return;
    if (nesting > MAX_NESTING) {
        graph->failed = true;
        return;
    }
    struct us_cudnn_descriptor **held = operations->elements;
    for (int64_t i = 0; i < operations->count && !graph->failed; i++) {
        add_operation(graph, held[i], nesting);
    }
}

/* What engine 0 wants. */
static int64_t workspace_bytes(const struct us_cudnn_descriptor *operation_graph) {
    struct us_dnn_graph graph = {0};
    add_operations(&graph, operation_graph, 0);
    int64_t bytes = graph.failed ? 0 : us_dnn_workspace(&graph);
    us_dnn_free(&graph);
    return bytes;
}

static int64_t engine_count(const struct us_cudnn_descriptor *operation_graph) {
    return workspace_bytes(operation_graph) > 0 ? 2 : 1;
}

/* plan -> engine configuration -> engine. NULL when a link is missing. */
static const struct us_cudnn_descriptor *engine_of(const struct us_cudnn_descriptor *descriptor) {
    static const struct {
        int type, next;
    } links[] = {
        {CUDNN_BACKEND_EXECUTION_PLAN, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG},
        {CUDNN_BACKEND_ENGINECFG, CUDNN_ATTR_ENGINECFG_ENGINE},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links && descriptor != NULL; i++) {
        if (descriptor->type != links[i].type) continue;
        descriptor = descriptor_at(descriptor, links[i].next);
    }
    return descriptor != NULL && descriptor->type == CUDNN_BACKEND_ENGINE ? descriptor : NULL;
}

static const struct us_cudnn_descriptor *graph_of(const struct us_cudnn_descriptor *descriptor) {
    const struct us_cudnn_descriptor *engine = engine_of(descriptor);
    const struct us_cudnn_descriptor *graph =
        engine != NULL ? descriptor_at(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH) : NULL;
    return graph != NULL && graph->type == CUDNN_BACKEND_OPERATIONGRAPH ? graph : NULL;
}

/* Of a plan or an engine configuration; -1 when it has no operation graph. */
static int64_t wanted_bytes(const struct us_cudnn_descriptor *descriptor) {
    const struct us_cudnn_descriptor *graph = graph_of(descriptor);
    if (graph == NULL) return -1;
    bool first = number(engine_of(descriptor), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) == 0;
    return first ? workspace_bytes(graph) : 0;
}

static cudnnStatus_t compile(struct us_cudnn_descriptor *plan) {
    const struct us_cudnn_descriptor *operation_graph = graph_of(plan);
    if (operation_graph == NULL) return CUDNN_STATUS_BAD_PARAM;
    struct compiled_plan *compiled = calloc(1, sizeof *compiled);
    if (compiled == NULL) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    add_operations(&compiled->graph, operation_graph, 0);
    if (compiled->graph.failed) {
        us_dnn_free(&compiled->graph);
        free(compiled);
        return us_unsupported("cudnnBackendFinalize: operation graph too large",
                              CUDNN_STATUS_NOT_SUPPORTED);
    }
    plan->plan = compiled;
    return CUDNN_STATUS_SUCCESS;
}

/* Answers of the library --------------------------------------------------------------------- */

/* Fills a descriptor that the caller made with the attributes of ours. */
static cudnnStatus_t fill(struct us_cudnn_descriptor *target,
                          const struct us_cudnn_descriptor *source) {
    if (target == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (target->type != source->type) return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
    if (target == source) return CUDNN_STATUS_SUCCESS;
    clear_attributes(target);
    for (size_t i = 0; i < source->attribute_count; i++) {
        const struct attribute *attribute = &source->attributes[i];
        cudnnStatus_t status = store(target, attribute->name, attribute->type, attribute->count,
                                     attribute->elements);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    target->is_finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

static struct us_cudnn_descriptor *make(int type) {
    struct us_cudnn_descriptor *descriptor = calloc(1, sizeof *descriptor);
    if (descriptor == NULL) return NULL;
    descriptor->type = type;
    descriptor->references = 1;
    return descriptor;
}

static cudnnStatus_t fill_engine_configuration(struct us_cudnn_descriptor *configuration,
                                               struct us_cudnn_descriptor *operation_graph,
                                               int64_t index) {
    if (configuration == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (configuration->type != CUDNN_BACKEND_ENGINECFG) {
        return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
    }
    struct us_cudnn_descriptor *engine = make(CUDNN_BACKEND_ENGINE);
    if (engine == NULL) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    cudnnStatus_t status = store(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation_graph);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = store(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    }
    engine->is_finalized = true;
    if (status == CUDNN_STATUS_SUCCESS) {
        clear_attributes(configuration);
        status = store(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       1, &engine);
        configuration->is_finalized = status == CUDNN_STATUS_SUCCESS;
    }
    release(engine);
    return status;
}

static cudnnStatus_t heuristic_results(const struct us_cudnn_descriptor *heuristics,
                                       int64_t requested, int64_t *count, void *elements) {
    struct us_cudnn_descriptor *graph =
        descriptor_at(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (graph == NULL) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    /* Nothing requested: how many there are. Else: how many come back. */
    int64_t engines = engine_count(graph);
    if (requested > 0 && requested < engines) engines = requested;
    if (count != NULL) *count = engines;
    if (requested < 1 || elements == NULL) return CUDNN_STATUS_SUCCESS;
    struct us_cudnn_descriptor **configurations = elements;
    for (int64_t i = 0; i < engines; i++) {
        cudnnStatus_t status = fill_engine_configuration(configurations[i], graph, i);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Attributes that the library computes. `found` is false for all others. */
static cudnnStatus_t computed(const struct us_cudnn_descriptor *descriptor, int name,
                              int64_t requested, int64_t *count, void *elements, bool *found) {
    int64_t wide = 0;
    int32_t narrow = 0;
    bool flag = false;
    const void *value;
    size_t bytes;
    *found = true;
    switch (name) {
    case CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    case CUDNN_ATTR_ENGINE_LAYOUT_INFO:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
    case CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS:
    case CUDNN_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS:
        if (count != NULL) *count = 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        wide = wanted_bytes(descriptor);
        if (wide < 0) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
        value = &wide, bytes = sizeof wide;
        break;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: /* an int32, and the frontend insists on one */
        value = &narrow, bytes = sizeof narrow;
        break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: value = &wide, bytes = sizeof wide; break;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        wide = engine_count(descriptor);
        value = &wide, bytes = sizeof wide;
        break;
    case CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED:
        value = &flag, bytes = sizeof flag;
        break;
    default: *found = false; return CUDNN_STATUS_SUCCESS;
    }
    if (count != NULL) *count = 1;
    if (requested >= 1 && elements != NULL) memcpy(elements, value, bytes);
    return CUDNN_STATUS_SUCCESS;
}

/* The six functions -------------------------------------------------------------------------- */

US_EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(int type,
                                                     cudnnBackendDescriptor_t *descriptor) {
    if (descriptor == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *descriptor = NULL;
    if (type < 0 || type >= US_CUDNN_DESCRIPTOR_TYPES) return CUDNN_STATUS_NOT_SUPPORTED;
    *descriptor = make(type);
    return *descriptor == NULL ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
                               : CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    release(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, int name,
                                                 int type, int64_t count, const void *elements) {
    if (descriptor == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (descriptor->is_finalized) return CUDNN_STATUS_NOT_INITIALIZED; /* as documented */
    if (type < 0 || type >= US_CUDNN_ATTRIBUTE_TYPES) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (count < 0 || count > MAX_ELEMENTS) return CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND;
    if (count > 0 && elements == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        struct us_cudnn_descriptor *const *held = elements;
        for (int64_t i = 0; i < count; i++) {
            if (held[i] == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
            /* Only finalized ones may be used, which also keeps references free of cycles. */
            if (!held[i]->is_finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
        }
    }
    return store(descriptor, name, type, count, elements);
}

US_EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                                 int name, int type, int64_t requested,
                                                 int64_t *count, void *elements) {
    if (descriptor == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (requested < 0) return CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        return heuristic_results(descriptor, requested, count, elements);
    }
    const struct attribute *attribute = find(descriptor, name);
    if (attribute == NULL) {
        bool found;
        cudnnStatus_t status = computed(descriptor, name, requested, count, elements, &found);
        return found ? status : CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (attribute->type != type) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (count != NULL) *count = attribute->count;
    if (requested == 0 || elements == NULL) return CUDNN_STATUS_SUCCESS;
    int64_t copied = requested < attribute->count ? requested : attribute->count;
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        memcpy(elements, attribute->elements, (size_t)copied * element_bytes(type));
        return CUDNN_STATUS_SUCCESS;
    }
    struct us_cudnn_descriptor **targets = elements, **held = attribute->elements;
    for (int64_t i = 0; i < copied; i++) {
        cudnnStatus_t status = fill(targets[i], held[i]);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool tensor_is_complete(const struct us_cudnn_descriptor *tensor) {
    const struct attribute *dims = find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *strides = find(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    return dims != NULL && strides != NULL && dims->count == strides->count && dims->count >= 1 &&
           dims->count <= US_CUDNN_MAX_DIMS && dims->type == CUDNN_TYPE_INT64 &&
           strides->type == CUDNN_TYPE_INT64 && find(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE) != NULL;
}

US_EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    if (descriptor == NULL) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (descriptor->is_finalized) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    bool complete = true;
    switch (descriptor->type) {
    case CUDNN_BACKEND_TENSOR: complete = tensor_is_complete(descriptor); break;
    case CUDNN_BACKEND_OPERATIONGRAPH:
        complete = descriptor_at(descriptor, CUDNN_ATTR_OPERATIONGRAPH_OPS) != NULL;
        break;
    case CUDNN_BACKEND_ENGINEHEUR:
        complete = descriptor_at(descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) != NULL;
        break;
    case CUDNN_BACKEND_ENGINE: {
        const struct us_cudnn_descriptor *graph =
            descriptor_at(descriptor, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
        int64_t index = number(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0);
        complete = graph != NULL;
        /* Programs that count up must see the end. */
        if (complete && (index < 0 || index >= engine_count(graph))) {
            return CUDNN_STATUS_NOT_SUPPORTED;
        }
        break;
    }
    case CUDNN_BACKEND_ENGINECFG:
        complete = descriptor_at(descriptor, CUDNN_ATTR_ENGINECFG_ENGINE) != NULL;
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN: status = compile(descriptor); break;
    default: break;
    }
    if (!complete) return CUDNN_STATUS_BAD_PARAM;
    descriptor->is_finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* Is the tensor under this attribute of an operation its result? */
static bool is_output(uint32_t attribute) {
    static const uint16_t ranges[][2] = {
        {705, 705},   {710, 710},   {715, 715},   {753, 753},   {756, 756},   {773, 774},
        {788, 793},   {1522, 1522}, {1611, 1611}, {1626, 1630}, {1711, 1712}, {1720, 1720},
        {1803, 1803}, {1904, 1904}, {1951, 1951}, {2003, 2004}, {2011, 2013}, {2107, 2109},
        {2201, 2201}, {2251, 2251}, {2271, 2271}, {2310, 2310}, {2501, 2502}, {2602, 2602},
        {2803, 2804}, {2817, 2817}, {2859, 2861}, {2864, 2864}, {2905, 2905}, {2953, 2953},
        {3006, 3006}, {3101, 3104}, {3201, 3201}, {3301, 3301}, {3401, 3401}, {3411, 3411},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (attribute >= ranges[i][0] && attribute <= ranges[i][1]) return true;
    }
    return false;
}

static void forget_outputs(const struct us_dnn_graph *graph,
                           const struct us_cudnn_descriptor *variant_pack) {
    const struct attribute *ids = find(variant_pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *pointers = find(variant_pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (ids == NULL || pointers == NULL || ids->type != CUDNN_TYPE_INT64 ||
        pointers->type != CUDNN_TYPE_VOID_PTR) {
        return;
    }
    int64_t count = ids->count < pointers->count ? ids->count : pointers->count;
    for (size_t i = 0; i < graph->tensor_count; i++) {
        const struct us_dnn_tensor *tensor = &graph->tensors[i];
        if (tensor->is_virtual || !is_output(tensor->attribute)) continue;
        for (int64_t j = 0; j < count; j++) {
            if (((const int64_t *)ids->elements)[j] != tensor->unique_id) continue;
            us_values_forget(((void **)pointers->elements)[j], us_dnn_tensor_bytes(tensor));
        }
    }
}

static uint32_t definition_of(struct compiled_plan *plan) {
    if (!us_tracing()) return 0;
    uint64_t cached = __atomic_load_n(&plan->definition, __ATOMIC_RELAXED);
    if (cached >> 32 == us_trace_generation()) return (uint32_t)cached;
    uint32_t id = us_dnn_define(&plan->graph);
    __atomic_store_n(&plan->definition, (uint64_t)us_trace_generation() << 32 | id,
                     __ATOMIC_RELAXED);
    return id;
}

US_EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                            cudnnBackendDescriptor_t variant_pack) {
    struct us_record record = us_record_begin(US_API_DNN);
    if (handle == NULL || plan == NULL || variant_pack == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    if (plan->type != CUDNN_BACKEND_EXECUTION_PLAN ||
        variant_pack->type != CUDNN_BACKEND_VARIANT_PACK) {
        return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
    }
    if (plan->plan == NULL || !variant_pack->is_finalized) {
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    }
    if (find(variant_pack, CUDNN_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS) != NULL) {
        return us_unsupported("cudnnBackendExecute: shapes overridden at execution",
                              CUDNN_STATUS_NOT_SUPPORTED);
    }
    forget_outputs(&plan->plan->graph, variant_pack);
    record.stream = us_stream_number(handle->stream);
    record.definition = definition_of(plan->plan);
    const struct attribute *workspace = find(variant_pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (workspace != NULL && workspace->type == CUDNN_TYPE_VOID_PTR && workspace->count > 0) {
        memcpy(&record.a, workspace->elements, sizeof record.a);
    }
    us_emit(&record);
    return CUDNN_STATUS_SUCCESS;
}

US_EXPORT cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t handle,
                                                           cudnnBackendDescriptor_t plan,
                                                           cudnnBackendDescriptor_t variant_pack,
                                                           size_t *bytes) {
    if (handle == NULL || plan == NULL || variant_pack == NULL || bytes == NULL) {
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    }
    int64_t wanted = wanted_bytes(plan);
    if (wanted < 0) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    *bytes = (size_t)wanted;
    return CUDNN_STATUS_SUCCESS;
}

/*
 * Attention in recorded graphs, as PyTorch 2.14.1 builds them through cuDNN's C++ frontend on
 * compute capability 9.0. Descriptor types: 13 pointwise, 19 matrix product, 22 reduction, 31
 * reshape, 33 random numbers, 41 attention forward, 43 attention backward, 44 diagonal mask, 45
 * softmax. Tensors are [batch, heads, sequence, head dim]; K and V have the number of KV heads.
 *
 *   forward               41 (Q 2800, K 2801, V 2802, O 2803, scale 2805), then its parts:
 *                         45 with statistics 3102 when a backward will follow,
 *                         44 with a causal mask, 13 mode ADD with a bias (attn_mask)
 *   forward with dropout  19 (A 1520 = Q, B 1521 = K transposed: [.., head dim, KV sequence]), 13,
 *                         33, 13, 13, 19 (C 1522 = O), 44 when causal, 45: two matrix products
 *   backward              five matrix products: Q K^T first (A = Q, B = K transposed), then dV,
 *                         dP, dK, dQ, between pointwise operations and reshapes; 44 when causal,
 *                         33 with dropout
 *
 * So: type 41 or exactly two of type 19 is a forward, type 43 or at least five of type 19 a
 * backward; 44 (mode 303, CMP_GE) or two pointwise operations of mode 501 (GEN_INDEX) mean causal;
 * 33 means dropout. Dropout probabilities that are no multiple of 1/16 (0.1!) never get here:
 * PyTorch launches its own pytorch_flash kernels for them.
 */
