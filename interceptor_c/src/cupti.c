/*
 * CUPTI: torch's profiler subscribes, asks for activities and gets none. It works, without events
 * of the GPU.
 */
#include <string.h>

#include "interceptor.h"
#include "versions.h"

enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_INVALID_PARAMETER = 1, CUPTI_ERROR_MAX_LIMIT_REACHED = 12 };

US_EXPORT int cuptiGetVersion(uint32_t *version) {
    if (!version)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *version = us_library_versions()->cupti;
    return CUPTI_SUCCESS;
}

US_EXPORT int cuptiGetResultString(int code, const char **text) {
    if (!text)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *text = code == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "CUPTI error under Understudy";
    return CUPTI_SUCCESS;
}

US_EXPORT int cuptiGetCallbackName(int domain, uint32_t callback, const char **name) {
    (void)domain, (void)callback;
    if (!name)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *name = "unknown";
    return CUPTI_SUCCESS;
}

US_EXPORT int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    static char token;
    (void)callback, (void)data;
    if (!subscriber)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *subscriber = &token;
    return CUPTI_SUCCESS;
}

US_EXPORT int cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream,
                                                size_t *dropped) {
    (void)context, (void)stream;
    if (dropped)
        *dropped = 0;
    return CUPTI_SUCCESS;
}

US_EXPORT int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
    (void)kind;
    if (last)
        *last = 0;
    return CUPTI_SUCCESS;
}

/* There are no buffers, hence no records in them. */
US_EXPORT int cuptiActivityGetNextRecord(void *buffer, size_t bytes, void **record) {
    (void)buffer, (void)bytes;
    if (record)
        *record = NULL;
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
}
