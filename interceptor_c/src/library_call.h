/*
 * Records of libraries whose calls are described by named numbers (US_API_LIBRARY): cuFFT, cuSOLVER,
 * cuSPARSE, cuSPARSELt, cuRAND, and what such calls have in common.
 */
#ifndef UNDERSTUDY_LIBRARY_CALL_H
#define UNDERSTUDY_LIBRARY_CALL_H

#include "interceptor.h"

enum { US_LIBRARY_MAX_VALUES = 32 };

/* Completes and writes the record: definition, stream. `type` is the cudaDataType_t of the
   elements or -1. Values beyond US_LIBRARY_MAX_VALUES are a mistake of the caller and dropped. */
void us_library_emit(struct us_record *record, const char *api, int type, cudaStream_t stream,
                     const struct us_library_value *values, size_t count);

/* The last two arguments of us_library_emit: US_LIBRARY_VALUES({"m", m}, {"n", n}). */
#define US_LIBRARY_VALUES(...)                                                                     \
    (const struct us_library_value[]){__VA_ARGS__},                                                \
        sizeof((const struct us_library_value[]){__VA_ARGS__}) / sizeof(struct us_library_value)

/* The outputs of a batched call: `array` is device memory with `count` pointers to outputs of `bytes`
   each, which are unknown afterwards. A pointer that is itself unknown (NULL here) is left out. */
void us_forget_pointer_array(const void *array, int64_t count, size_t bytes);

static inline uint64_t us_address(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

#endif
