/* Writes records of US_API_LIBRARY; outputs of batched calls. */
#include <stdio.h>
#include <string.h>

#include "library_call.h"

void us_library_emit(struct us_record *record, const char *api, int type, cudaStream_t stream,
                     const struct us_library_value *values, size_t count) {
    if (us_tracing()) {
        struct {
            struct us_library head;
            struct us_library_value values[US_LIBRARY_MAX_VALUES];
        } payload;
        memset(&payload, 0, sizeof payload);
        if (count > US_LIBRARY_MAX_VALUES) count = US_LIBRARY_MAX_VALUES;
        snprintf(payload.head.api, sizeof payload.head.api, "%s", api);
        payload.head.type = type;
        payload.head.value_count = (uint32_t)count;
        memcpy(payload.values, values, count * sizeof *values);
        record->stream = us_stream_number(stream);
        record->definition = us_define(US_DEFINITION_LIBRARY, &payload,
                                       sizeof payload.head + count * sizeof *values);
    }
    us_emit(record);
}

void us_forget_pointer_array(const void *array, int64_t count, size_t bytes) {
    enum { CHUNK = 64 };
    void *pointers[CHUNK];
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t part = count - first < CHUNK ? count - first : CHUNK;
        us_values_read((const void *const *)array + first, pointers,
                       (size_t)part * sizeof *pointers);
        for (int64_t i = 0; i < part; i++)
            if (pointers[i] != NULL) us_values_forget(pointers[i], bytes);
    }
}
