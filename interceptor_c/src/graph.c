/*
 * Captures and graphs. What a capture holds is in the trace: the operations on its streams between
 * US_API_CAPTURE_BEGIN and US_API_CAPTURE_END, which run at each US_API_GRAPH_LAUNCH of its number.
 */
#include "stream.h"

#define GRAPH_MAGIC 0x55475048u
#define EXEC_MAGIC 0x55475845u

struct CUgraph_st {
    uint32_t magic;
    uint32_t number; /* the capture's sequence number; 0 for a graph that was built by hand */
    uint64_t nodes;
};

struct CUgraphExec_st {
    uint32_t magic;
    uint32_t number;
    uint32_t capture;
    uint32_t reserved;
};

static struct us_slab graphs = {.object_bytes = 32};
static struct us_slab execs = {.object_bytes = 32};
static uint32_t next_capture, next_exec;

static struct CUgraph_st *graph_of(cudaGraph_t handle) {
    return us_slab_holds(&graphs, handle) && handle->magic == GRAPH_MAGIC ? handle : NULL;
}

static struct CUgraphExec_st *exec_of(cudaGraphExec_t handle) {
    return us_slab_holds(&execs, handle) && handle->magic == EXEC_MAGIC ? handle : NULL;
}

void us_capture_count_node(struct CUgraph_st *graph) {
    __atomic_fetch_add(&graph->nodes, 1, __ATOMIC_RELAXED);
}

static struct CUgraph_st *graph_new(void) {
    struct CUgraph_st *graph = us_slab_take(&graphs);
    if (graph)
        graph->magic = GRAPH_MAGIC;
    return graph;
}

static cudaError_t capture_begin(cudaStream_t handle, struct CUgraph_st *graph) {
    struct us_record record = us_record_begin(US_API_CAPTURE_BEGIN);
    struct CUstream_st *stream = us_stream_of(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture || us_stream_is_legacy(stream))
        return cudaErrorStreamCaptureUnsupported;
    if (!graph && !(graph = graph_new()))
        return cudaErrorMemoryAllocation;
    if (!graph->number) /* a graph may be captured in parts */
        graph->number = __atomic_add_fetch(&next_capture, 1, __ATOMIC_RELAXED);
    stream->capture = graph;
    stream->is_origin = true;
    record.stream = stream->number;
    record.a = graph->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t capture_end(cudaStream_t handle, cudaGraph_t *out) {
    struct us_record record = us_record_begin(US_API_CAPTURE_END);
    struct CUstream_st *origin = us_stream_of(handle);
    if (!origin)
        return cudaErrorInvalidResourceHandle;
    if (!origin->capture || !origin->is_origin)
        return cudaErrorStreamCaptureInvalidated;
    struct CUgraph_st *graph = origin->capture;
    us_streams_leave_capture(graph);
    origin->capture = NULL;
    origin->is_origin = false;
    record.stream = origin->number;
    record.a = graph->number;
    if (out)
        *out = graph;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t capture_info(cudaStream_t handle, int *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                size_t *dependency_count) {
    struct CUstream_st *stream = us_stream_of(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (!status)
        return cudaErrorInvalidValue;
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id)
        *id = stream->capture ? stream->capture->number : 0;
    if (graph)
        *graph = stream->capture;
    if (dependencies)
        *dependencies = NULL;
    if (dependency_count)
        *dependency_count = 0;
    return cudaSuccess;
}

static cudaError_t graph_instantiate(cudaGraphExec_t *out, cudaGraph_t handle) {
    struct CUgraph_st *graph = graph_of(handle);
    if (!graph || !out)
        return cudaErrorInvalidValue;
    struct CUgraphExec_st *exec = us_slab_take(&execs);
    if (!exec)
        return cudaErrorMemoryAllocation;
    exec->number = __atomic_add_fetch(&next_exec, 1, __ATOMIC_RELAXED);
    exec->capture = graph->number;
    exec->magic = EXEC_MAGIC;
    *out = exec;
    return cudaSuccess;
}

static cudaError_t graph_clone(cudaGraph_t *out, cudaGraph_t handle) {
    const struct CUgraph_st *graph = graph_of(handle);
    if (!graph || !out)
        return cudaErrorInvalidValue;
    struct CUgraph_st *clone = graph_new();
    if (!clone)
        return cudaErrorMemoryAllocation;
    *clone = *graph;
    *out = clone;
    return cudaSuccess;
}

/* Later launches run what the other graph holds. */
static cudaError_t exec_update(cudaGraphExec_t exec, cudaGraph_t handle,
                               struct cudaGraphExecUpdateResultInfo *result) {
    const struct CUgraph_st *graph = graph_of(handle);
    if (!graph || !exec_of(exec))
        return cudaErrorInvalidValue;
    exec->capture = graph->number;
    if (result)
        *result = (struct cudaGraphExecUpdateResultInfo){0};
    return cudaSuccess;
}

static cudaError_t graph_launch(cudaGraphExec_t exec, cudaStream_t handle) {
    struct us_record record = us_record_begin(US_API_GRAPH_LAUNCH);
    struct CUstream_st *stream = us_stream_of(handle);
    if (!stream || !exec_of(exec))
        return cudaErrorInvalidResourceHandle;
    record.stream = stream->number;
    record.a = exec->capture;
    record.b = exec->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t graph_destroy(cudaGraph_t graph) {
    if (!graph_of(graph))
        return cudaErrorInvalidValue;
    us_slab_give(&graphs, graph);
    return cudaSuccess;
}

static cudaError_t exec_destroy(cudaGraphExec_t exec) {
    if (!exec_of(exec))
        return cudaErrorInvalidValue;
    us_slab_give(&execs, exec);
    return cudaSuccess;
}

/* Runtime API ---------------------------------------------------------------------------------- */

US_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status) {
    return us_error(capture_info(stream, status, NULL, NULL, NULL, NULL));
}

US_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *status,
                                               unsigned long long *id, cudaGraph_t *graph,
                                               const cudaGraphNode_t **dependencies,
                                               const void **edges, size_t *dependency_count) {
    if (edges)
        *edges = NULL;
    return us_error(capture_info(stream, status, id, graph, dependencies, dependency_count));
}

/* CUDA 12 has it with and without edges, and its headers map the plain name to _v2. */
US_EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, int *status,
                                                  unsigned long long *id, cudaGraph_t *graph,
                                                  const cudaGraphNode_t **dependencies,
                                                  size_t *dependency_count) {
    return us_error(capture_info(stream, status, id, graph, dependencies, dependency_count));
}

US_EXPORT cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, int *status,
                                                  unsigned long long *id, cudaGraph_t *graph,
                                                  const cudaGraphNode_t **dependencies,
                                                  const void **edges, size_t *dependency_count) {
    if (edges)
        *edges = NULL;
    return us_error(capture_info(stream, status, id, graph, dependencies, dependency_count));
}

US_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                          cudaGraphNode_t *dependencies,
                                                          const void *edges, size_t count,
                                                          unsigned flags) {
    (void)dependencies, (void)edges, (void)count, (void)flags;
    return us_error(us_stream_is_valid(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

US_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current; /* cudaStreamCaptureModeGlobal */
    if (!mode)
        return us_error(cudaErrorInvalidValue);
    int previous = current;
    current = *mode;
    *mode = previous;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode) {
    (void)mode;
    return us_error(capture_begin(stream, NULL));
}

US_EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                    const cudaGraphNode_t *dependencies,
                                                    const void *edges, size_t count, int mode) {
    (void)dependencies, (void)edges, (void)count, (void)mode;
    if (!graph_of(graph))
        return us_error(cudaErrorInvalidValue);
    return us_error(capture_begin(stream, graph));
}

US_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return us_error(capture_end(stream, graph));
}

US_EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
    (void)flags;
    if (!graph)
        return us_error(cudaErrorInvalidValue);
    *graph = graph_new();
    return us_error(*graph ? cudaSuccess : cudaErrorMemoryAllocation);
}

US_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count) {
    const struct CUgraph_st *graph = graph_of(handle);
    if (!graph || !count)
        return us_error(cudaErrorInvalidValue);
    if (nodes) /* nodes are counted, not kept */
        *count = 0;
    else
        *count = graph->nodes;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                           unsigned long long flags) {
    (void)flags;
    return us_error(graph_instantiate(exec, graph));
}

US_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                    unsigned long long flags) {
    (void)flags;
    return us_error(graph_instantiate(exec, graph));
}

US_EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                     struct cudaGraphInstantiateParams *parameters) {
    if (!parameters)
        return us_error(cudaErrorInvalidValue);
    parameters->errNode_out = NULL;
    parameters->result_out = 0;
    return us_error(graph_instantiate(exec, graph));
}

US_EXPORT cudaError_t cudaGraphClone(cudaGraph_t *clone, cudaGraph_t graph) {
    return us_error(graph_clone(clone, graph));
}

US_EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                          struct cudaGraphExecUpdateResultInfo *result) {
    return us_error(exec_update(exec, graph, result));
}

US_EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)exec;
    return us_error(us_stream_is_valid(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

US_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return us_error(graph_launch(exec, stream));
}

US_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return us_error(graph_destroy(graph));
}

US_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return us_error(exec_destroy(exec));
}

/* Driver API ----------------------------------------------------------------------------------- */

US_EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    return capture_info(stream, status, NULL, NULL, NULL, NULL);
}

US_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    (void)mode;
    return capture_begin(stream, NULL);
}

US_EXPORT CUresult cuStreamEndCapture(CUstream stream, cudaGraph_t *graph) {
    return capture_end(stream, graph);
}

US_EXPORT CUresult cuGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               unsigned long long flags) {
    (void)flags;
    return graph_instantiate(exec, graph);
}

US_EXPORT CUresult cuGraphClone(cudaGraph_t *clone, cudaGraph_t graph) {
    return graph_clone(clone, graph);
}

US_EXPORT CUresult cuGraphExecUpdate_v2(cudaGraphExec_t exec, cudaGraph_t graph,
                                        struct cudaGraphExecUpdateResultInfo *result) {
    return exec_update(exec, graph, result);
}

US_EXPORT CUresult cuGraphLaunch(cudaGraphExec_t exec, CUstream stream) {
    return graph_launch(exec, stream);
}

US_EXPORT CUresult cuGraphDestroy(cudaGraph_t graph) {
    return graph_destroy(graph);
}

US_EXPORT CUresult cuGraphExecDestroy(cudaGraphExec_t exec) {
    return exec_destroy(exec);
}
