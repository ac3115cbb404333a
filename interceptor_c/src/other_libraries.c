/* Of libraries that are not supported otherwise: functions whose results are no status codes, so
   that a generated stub's NOT_SUPPORTED would be taken for a pointer. */
#include "interceptor.h"

US_EXPORT void *nvshmem_malloc(size_t bytes) {
    (void)bytes;
    us_unsupported("nvshmem_malloc", 0);
    return NULL;
}

US_EXPORT void *nvshmem_ptr(const void *pointer, int processor) {
    (void)pointer, (void)processor;
    us_unsupported("nvshmem_ptr", 0);
    return NULL;
}

US_EXPORT void *nvshmemx_mc_ptr(int team, const void *pointer) {
    (void)team, (void)pointer;
    us_unsupported("nvshmemx_mc_ptr", 0);
    return NULL;
}
