/*
 * Streams and events. Device work has no duration here: it is complete as soon as it is issued.
 */
#include <string.h>

#include "stream.h"

#define STREAM_MAGIC 0x55535452u
#define EVENT_MAGIC 0x55455654u

static struct us_slab streams = {.object_bytes = 64};
static struct us_slab events = {.object_bytes = 64};
_Static_assert(sizeof(struct CUstream_st) <= 64 && sizeof(struct CUevent_st) <= 64, "slab objects");

static uint32_t next_stream = 2;
static uint64_t next_event, record_order;
/* What is known to have ended because the host has waited: see us_host_synchronized. */
static uint64_t synchronizations = 1, synchronized_records;
static _Thread_local bool polling;
/* The default streams: legacy and per-thread. They cannot be captured together with others. */
static struct CUstream_st default_streams[2] = {{.magic = STREAM_MAGIC, .number = US_STREAM_LEGACY},
                                                {.magic = STREAM_MAGIC,
                                                 .number = US_STREAM_PER_THREAD}};

struct CUstream_st *us_stream_of(cudaStream_t handle) {
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

/* Called for every operation on a stream. */
uint32_t us_stream_number(cudaStream_t handle) {
    struct CUstream_st *stream = us_stream_of(handle);
    if (!stream)
        return 0;
    uint64_t now = __atomic_load_n(&synchronizations, __ATOMIC_RELAXED);
    __atomic_store_n(&stream->used, now, __ATOMIC_RELAXED);
    if (__builtin_expect(stream->capture != NULL, 0))
        us_capture_count_node(stream->capture);
    return stream->number;
}

bool us_stream_is_valid(cudaStream_t handle) {
    return us_stream_of(handle) != NULL;
}

bool us_stream_is_capturing(cudaStream_t handle) {
    const struct CUstream_st *stream = us_stream_of(handle);
    return stream && stream->capture;
}

bool us_stream_is_legacy(const struct CUstream_st *stream) {
    return stream == &default_streams[0];
}

void us_streams_leave_capture(const struct CUgraph_st *graph) {
    for (size_t i = 0; i < streams.used; i++) {
        struct CUstream_st *stream = (void *)(streams.base + i * streams.object_bytes);
        if (stream->magic == STREAM_MAGIC && stream->capture == graph)
            stream->capture = NULL;
    }
    for (size_t i = 0; i < events.used; i++) {
        struct CUevent_st *event = (void *)(events.base + i * events.object_bytes);
        if (event->magic == EVENT_MAGIC && event->capture == graph)
            event->capture = NULL;
    }
}

/* Polling -------------------------------------------------------------------------------------- */

void us_host_synchronized(void) {
    uint64_t records = __atomic_load_n(&record_order, __ATOMIC_RELAXED);
    __atomic_store_n(&synchronized_records, records, __ATOMIC_RELAXED);
    __atomic_add_fetch(&synchronizations, 1, __ATOMIC_RELAXED);
}

/* Queries of the calling thread are the program's own, not PyTorch's. All work is done as soon as
   it is issued, but a program that polls would then ask once and look like one that only wants to
   know. So its first question about work that the host has not waited for is answered with "not
   ready": who asks again at once is polling. */
US_EXPORT void understudy_polling(int begins) {
    polling = begins != 0;
}

static bool is_first_question_of_event(struct CUevent_st *event) {
    if (!polling || event->recorded <= __atomic_load_n(&synchronized_records, __ATOMIC_RELAXED) ||
        event->asked == event->recorded)
        return false;
    event->asked = event->recorded;
    return true;
}

static bool is_first_question_of_stream(struct CUstream_st *stream) {
    if (!polling || __atomic_load_n(&stream->used, __ATOMIC_RELAXED) !=
                        __atomic_load_n(&synchronizations, __ATOMIC_RELAXED))
        return false;
    __atomic_store_n(&stream->used, 0, __ATOMIC_RELAXED);
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
    struct CUstream_st *stream = us_stream_of(handle);
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
    struct CUstream_st *stream = us_stream_of(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    record.stream = stream->number;
    bool not_ready = api == US_API_STREAM_QUERY && is_first_question_of_stream(stream);
    record.flags = not_ready ? US_FLAG_NOT_READY : 0;
    if (api == US_API_STREAM_SYNCHRONIZE)
        us_host_synchronized();
    us_emit(&record);
    return not_ready ? cudaErrorNotReady : cudaSuccess;
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
    bool not_ready = api == US_API_EVENT_QUERY && is_first_question_of_event(event);
    record.flags = not_ready ? US_FLAG_NOT_READY : 0;
    if (api == US_API_EVENT_SYNCHRONIZE)
        us_host_synchronized();
    if (api == US_API_EVENT_DESTROY)
        us_slab_give(&events, event);
    us_emit(&record);
    return not_ready ? cudaErrorNotReady : cudaSuccess;
}

/* In a capture, an external record or wait is a node of the graph, which meets streams outside of it
   at every launch; any other one orders the capture's own streams. */
static cudaError_t event_record(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
    struct us_record record = us_record_begin(US_API_EVENT_RECORD);
    struct CUevent_st *event = event_of(handle);
    struct CUstream_st *stream = us_stream_of(stream_handle);
    if (!event || !stream)
        return cudaErrorInvalidResourceHandle;
    event->recorded = __atomic_add_fetch(&record_order, 1, __ATOMIC_RELAXED);
    bool external = flags & cudaEventRecordExternal;
    event->capture = external ? NULL : stream->capture;
    record.stream = stream->number;
    record.a = event->number;
    record.flags = external && stream->capture ? US_FLAG_EXTERNAL : 0;
    us_emit(&record);
    return cudaSuccess;
}

static cudaError_t stream_wait_event(cudaStream_t stream_handle, cudaEvent_t handle,
                                     unsigned flags) {
    struct us_record record = us_record_begin(US_API_STREAM_WAIT_EVENT);
    struct CUevent_st *event = event_of(handle);
    struct CUstream_st *stream = us_stream_of(stream_handle);
    if (!event || !stream)
        return cudaErrorInvalidResourceHandle;
    bool external = flags & cudaEventWaitExternal;
    if (event->capture && !stream->capture && !external) /* the stream joins the capture */
        stream->capture = event->capture;
    record.stream = stream->number;
    record.a = event->number;
    record.flags = external && stream->capture ? US_FLAG_EXTERNAL : 0;
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
    struct CUstream_st *stream = us_stream_of(handle);
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
    return us_error(stream_wait_event(stream, event, flags));
}

static cudaError_t stream_property(cudaStream_t handle, const void *out,
                                   const struct CUstream_st **stream) {
    *stream = us_stream_of(handle);
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
    return us_error(event_record(event, stream, 0));
}

US_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                               unsigned flags) {
    return us_error(event_record(event, stream, flags));
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
    return stream_wait_event(stream, event, flags);
}

US_EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    const struct CUstream_st *found;
    cudaError_t error = stream_property(stream, priority, &found);
    if (!error)
        *priority = found->properties.priority;
    return error;
}

US_EXPORT CUresult cuLaunchHostFunc(CUstream stream, cudaHostFn_t function, void *data) {
    return host_function(stream, function, data);
}

US_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    return event_create(event, flags);
}

US_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    return event_record(event, stream, 0);
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
