/*
 * Streams, events, captures and graphs. Device work has no duration here: events are complete as
 * soon as they are recorded. Handles are pointers into slabs, so any value can be checked.
 */
#include <string.h>

#include "core.h"

#define STREAM_MAGIC 0x55535452u
#define EVENT_MAGIC 0x55455654u
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

struct CUstream_st {
    uint32_t magic;
    uint32_t number;
    struct us_stream properties;
    struct CUgraph_st *capture; /* the graph being captured */
    bool is_origin;
};

struct CUevent_st {
    uint32_t magic;
    uint32_t flags;
    uint64_t number;
    uint64_t recorded; /* order of its last record, 0 = never */
    uint32_t device;
    struct CUgraph_st *capture;
};

static struct us_slab streams = {.object_bytes = 64};
static struct us_slab events = {.object_bytes = 64};
static struct us_slab graphs = {.object_bytes = 32};
static struct us_slab execs = {.object_bytes = 32};
_Static_assert(sizeof(struct CUstream_st) <= 64 && sizeof(struct CUevent_st) <= 64, "slab objects");

static uint32_t next_stream = 2, next_capture, next_exec;
static uint64_t next_event, record_order;
static int active_captures;
/* The default streams: legacy and per-thread. They cannot be captured together with others. */
static struct CUstream_st default_streams[2] = {{.magic = STREAM_MAGIC, .number = US_STREAM_LEGACY},
                                                {.magic = STREAM_MAGIC,
                                                 .number = US_STREAM_PER_THREAD}};

static struct CUstream_st *stream_of(cudaStream_t handle) {
    if (!handle || handle == cudaStreamLegacy)
        return &default_streams[0];
    if (handle == cudaStreamPerThread)
        return &default_streams[1];
    bool valid = us_slab_holds(&streams, handle) && handle->magic == STREAM_MAGIC;
    return valid ? handle : NULL;
}

static struct CUevent_st *event_of(cudaEvent_t handle) {
    return us_slab_holds(&events, handle) && handle->magic == EVENT_MAGIC ? handle : NULL;
}

static struct CUgraph_st *graph_of(cudaGraph_t handle) {
    return us_slab_holds(&graphs, handle) && handle->magic == GRAPH_MAGIC ? handle : NULL;
}

uint32_t us_stream_number(cudaStream_t handle) {
    const struct CUstream_st *stream = stream_of(handle);
    return stream ? stream->number : 0;
}

bool us_stream_is_valid(cudaStream_t handle) {
    return stream_of(handle) != NULL;
}

bool us_stream_is_capturing(cudaStream_t handle) {
    if (!__atomic_load_n(&active_captures, __ATOMIC_RELAXED))
        return false;
    struct CUstream_st *stream = stream_of(handle);
    if (!stream || !stream->capture)
        return false;
    stream->capture->nodes++;
    return true;
}

void us_streams_define_all(void) {
    for (size_t i = 0; i < streams.used; i++) {
        const struct CUstream_st *stream = (void *)(streams.base + i * streams.object_bytes);
        if (stream->magic == STREAM_MAGIC)
            us_define_stream(stream->number, &stream->properties);
    }
}

/* Shared by runtime and driver; these record. -------------------------------------------------- */

static cudaError_t stream_create(cudaStream_t *out, unsigned flags, int priority) {
    if (!out)
        return cudaErrorInvalidValue;
    struct us_record record = us_record_begin(US_API_STREAM_CREATE);
    struct CUstream_st *stream = us_slab_take(&streams);
    if (!stream)
        return cudaErrorMemoryAllocation;
    stream->number = __atomic_fetch_add(&next_stream, 1, __ATOMIC_RELAXED);
    stream->properties = (struct us_stream){.device = (uint32_t)us_current_device(),
                                            .flags = flags,
                                            .priority = priority > 0    ? 0
                                                        : priority < -5 ? -5
                                                                        : priority};
    stream->magic = STREAM_MAGIC;
    us_define_stream(stream->number, &stream->properties);
    record.stream = stream->number;
    record.definition = stream->number;
    *out = stream;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t stream_destroy(cudaStream_t handle) {
    struct us_record record = us_record_begin(US_API_STREAM_DESTROY);
    struct CUstream_st *stream = stream_of(handle);
    if (!stream || stream == &default_streams[0] || stream == &default_streams[1])
        return cudaErrorInvalidResourceHandle;
    record.stream = stream->number;
    us_slab_give(&streams, stream);
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t stream_operation(enum us_api api, cudaStream_t handle) {
    if (us_forked)
        return cudaErrorInitializationError;
    struct us_record record = us_record_begin(api);
    struct CUstream_st *stream = stream_of(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    record.stream = stream->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t event_create(cudaEvent_t *out, unsigned flags) {
    if (!out)
        return cudaErrorInvalidValue;
    struct us_record record = us_record_begin(US_API_EVENT_CREATE);
    struct CUevent_st *event = us_slab_take(&events);
    if (!event)
        return cudaErrorMemoryAllocation;
    event->number = __atomic_add_fetch(&next_event, 1, __ATOMIC_RELAXED);
    event->flags = flags;
    event->device = (uint32_t)us_current_device();
    event->magic = EVENT_MAGIC;
    record.a = event->number;
    record.b = flags;
    *out = event;
    us_emit(&record);
    return cudaSuccess;
}

cudaError_t us_event_create(cudaEvent_t *out, unsigned flags) {
    return event_create(out, flags);
}

bool us_event_flags(cudaEvent_t handle, unsigned *flags) {
    const struct CUevent_st *event = event_of(handle);
    if (event)
        *flags = event->flags;
    return event != NULL;
}

static cudaError_t event_operation(enum us_api api, cudaEvent_t handle) {
    struct us_record record = us_record_begin(api);
    struct CUevent_st *event = event_of(handle);
    if (!event)
        return cudaErrorInvalidResourceHandle;
    record.a = event->number;
    if (api == US_API_EVENT_DESTROY)
        us_slab_give(&events, event);
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t event_record(cudaEvent_t handle, cudaStream_t stream_handle) {
    struct us_record record = us_record_begin(US_API_EVENT_RECORD);
    struct CUevent_st *event = event_of(handle);
    struct CUstream_st *stream = stream_of(stream_handle);
    if (!event || !stream)
        return cudaErrorInvalidResourceHandle;
    event->recorded = __atomic_add_fetch(&record_order, 1, __ATOMIC_RELAXED);
    event->capture = stream->capture;
    record.stream = stream->number;
    record.a = event->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t stream_wait_event(cudaStream_t stream_handle, cudaEvent_t handle) {
    struct us_record record = us_record_begin(US_API_STREAM_WAIT_EVENT);
    struct CUevent_st *event = event_of(handle);
    struct CUstream_st *stream = stream_of(stream_handle);
    if (!event || !stream)
        return cudaErrorInvalidResourceHandle;
    if (event->capture && !stream->capture) /* the stream joins the capture */
        stream->capture = event->capture;
    record.stream = stream->number;
    record.a = event->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t event_elapsed(float *milliseconds, cudaEvent_t start_handle,
                                 cudaEvent_t end_handle) {
    struct us_record record = us_record_begin(US_API_EVENT_ELAPSED_TIME);
    struct CUevent_st *start = event_of(start_handle), *end = event_of(end_handle);
    if (!start || !end || !start->recorded || !end->recorded ||
        ((start->flags | end->flags) & cudaEventDisableTiming))
        return cudaErrorInvalidResourceHandle;
    if (!milliseconds)
        return cudaErrorInvalidValue;
    /* No clock runs on the device: a small time that grows with the events between the two. */
    uint64_t steps = end->recorded > start->recorded ? end->recorded - start->recorded : 1;
    *milliseconds = 0.01f * (float)steps;
    record.a = start->number;
    record.b = end->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t host_function(cudaStream_t handle, cudaHostFn_t function, void *data) {
    struct us_record record = us_record_begin(US_API_HOST_FUNCTION);
    struct CUstream_st *stream = stream_of(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (!function)
        return cudaErrorInvalidValue;
    record.stream = stream->number;
    us_emit(&record);
    if (!stream->capture)
        function(data);
    return cudaSuccess;
}

/* Captures and graphs -------------------------------------------------------------------------- */

static struct CUgraph_st *graph_new(void) {
    struct CUgraph_st *graph = us_slab_take(&graphs);
    if (graph)
        graph->magic = GRAPH_MAGIC;
    return graph;
}

static cudaError_t capture_begin(cudaStream_t handle, struct CUgraph_st *graph) {
    struct us_record record = us_record_begin(US_API_CAPTURE_BEGIN);
    struct CUstream_st *stream = stream_of(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture || stream == &default_streams[0])
        return cudaErrorStreamCaptureUnsupported;
    if (!graph && !(graph = graph_new()))
        return cudaErrorMemoryAllocation;
    graph->number = __atomic_add_fetch(&next_capture, 1, __ATOMIC_RELAXED);
    stream->capture = graph;
    stream->is_origin = true;
    __atomic_fetch_add(&active_captures, 1, __ATOMIC_RELAXED);
    record.stream = stream->number;
    record.a = graph->number;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t capture_end(cudaStream_t handle, cudaGraph_t *out) {
    struct us_record record = us_record_begin(US_API_CAPTURE_END);
    struct CUstream_st *origin = stream_of(handle);
    if (!origin)
        return cudaErrorInvalidResourceHandle;
    if (!origin->capture || !origin->is_origin)
        return cudaErrorStreamCaptureInvalidated;
    struct CUgraph_st *graph = origin->capture;
    for (size_t i = 0; i < streams.used; i++) {
        struct CUstream_st *stream = (void *)(streams.base + i * streams.object_bytes);
        if (stream->magic == STREAM_MAGIC && stream->capture == graph)
            stream->capture = NULL;
    }
    origin->capture = NULL;
    origin->is_origin = false;
    for (size_t i = 0; i < events.used; i++) {
        struct CUevent_st *event = (void *)(events.base + i * events.object_bytes);
        if (event->magic == EVENT_MAGIC && event->capture == graph)
            event->capture = NULL;
    }
    __atomic_fetch_sub(&active_captures, 1, __ATOMIC_RELAXED);
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
    struct CUstream_st *stream = stream_of(handle);
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

static cudaError_t graph_launch(cudaGraphExec_t exec, cudaStream_t handle) {
    struct us_record record = us_record_begin(US_API_GRAPH_LAUNCH);
    struct CUstream_st *stream = stream_of(handle);
    if (!stream || !us_slab_holds(&execs, exec) || exec->magic != EXEC_MAGIC)
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
    if (!us_slab_holds(&execs, exec) || exec->magic != EXEC_MAGIC)
        return cudaErrorInvalidValue;
    us_slab_give(&execs, exec);
    return cudaSuccess;
}

/* Runtime API ---------------------------------------------------------------------------------- */

US_EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return us_error(stream_create(stream, 0, 0));
}

US_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return us_error(stream_create(stream, flags, 0));
}

US_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                                   int priority) {
    return us_error(stream_create(stream, flags, priority));
}

US_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return us_error(stream_destroy(stream));
}

US_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return us_error(stream_operation(US_API_STREAM_SYNCHRONIZE, stream));
}

US_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return us_error(stream_operation(US_API_STREAM_QUERY, stream));
}

US_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    return us_error(stream_wait_event(stream, event));
}

static cudaError_t stream_property(cudaStream_t handle, const void *out,
                                   const struct CUstream_st **stream) {
    *stream = stream_of(handle);
    return !*stream ? cudaErrorInvalidResourceHandle : !out ? cudaErrorInvalidValue : cudaSuccess;
}

US_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    const struct CUstream_st *stream;
    cudaError_t error = stream_property(handle, priority, &stream);
    if (!error)
        *priority = stream->properties.priority;
    return us_error(error);
}

US_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
    const struct CUstream_st *stream;
    cudaError_t error = stream_property(handle, flags, &stream);
    if (!error)
        *flags = stream->properties.flags;
    return us_error(error);
}

US_EXPORT cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id) {
    const struct CUstream_st *stream;
    cudaError_t error = stream_property(handle, id, &stream);
    if (!error)
        *id = stream->number;
    return us_error(error);
}

US_EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device) {
    const struct CUstream_st *stream;
    cudaError_t error = stream_property(handle, device, &stream);
    if (!error)
        *device = stream->number < 2 ? us_current_device() : (int)stream->properties.device;
    return us_error(error);
}

US_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

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

US_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    return us_error(host_function(stream, function, data));
}

US_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                            void *data, unsigned flags) {
    (void)flags;
    struct us_record record = us_record_begin(US_API_HOST_FUNCTION);
    if (!us_stream_is_valid(stream))
        return us_error(cudaErrorInvalidResourceHandle);
    record.stream = us_stream_number(stream);
    us_emit(&record);
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return us_error(event_create(event, 0));
}

US_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    return us_error(event_create(event, flags));
}

US_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return us_error(event_record(event, stream));
}

US_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                               unsigned flags) {
    (void)flags;
    return us_error(event_record(event, stream));
}

US_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    return us_error(event_operation(US_API_EVENT_QUERY, event));
}

US_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return us_error(event_operation(US_API_EVENT_SYNCHRONIZE, event));
}

US_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return us_error(event_operation(US_API_EVENT_DESTROY, event));
}

US_EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start,
                                           cudaEvent_t end) {
    return us_error(event_elapsed(milliseconds, start, end));
}

US_EXPORT cudaError_t cudaEventElapsedTime_v2(float *milliseconds, cudaEvent_t start,
                                              cudaEvent_t end) {
    return us_error(event_elapsed(milliseconds, start, end));
}

/* Driver API ----------------------------------------------------------------------------------- */

US_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return stream_create(stream, flags, 0);
}

US_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return stream_create(stream, flags, priority);
}

US_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    return stream_destroy(stream);
}

US_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    return stream_operation(US_API_STREAM_SYNCHRONIZE, stream);
}

US_EXPORT CUresult cuStreamQuery(CUstream stream) {
    return stream_operation(US_API_STREAM_QUERY, stream);
}

US_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    return stream_wait_event(stream, event);
}

US_EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    const struct CUstream_st *found;
    cudaError_t error = stream_property(stream, priority, &found);
    if (!error)
        *priority = found->properties.priority;
    return error;
}

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

US_EXPORT CUresult cuGraphLaunch(cudaGraphExec_t exec, CUstream stream) {
    return graph_launch(exec, stream);
}

US_EXPORT CUresult cuGraphDestroy(cudaGraph_t graph) {
    return graph_destroy(graph);
}

US_EXPORT CUresult cuGraphExecDestroy(cudaGraphExec_t exec) {
    return exec_destroy(exec);
}

US_EXPORT CUresult cuLaunchHostFunc(CUstream stream, cudaHostFn_t function, void *data) {
    return host_function(stream, function, data);
}

US_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    return event_create(event, flags);
}

US_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    return event_record(event, stream);
}

US_EXPORT CUresult cuEventQuery(CUevent event) {
    return event_operation(US_API_EVENT_QUERY, event);
}

US_EXPORT CUresult cuEventSynchronize(CUevent event) {
    return event_operation(US_API_EVENT_SYNCHRONIZE, event);
}

US_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    return event_operation(US_API_EVENT_DESTROY, event);
}

US_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return event_elapsed(milliseconds, start, end);
}
