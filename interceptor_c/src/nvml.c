/* NVML: enough for torch, which asks for processes and links when it reports an OutOfMemoryError. */
#include <stdio.h>
#include <string.h>

#include "core.h"

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
};

/* A device handle is the address of its element. */
static char handles[US_MAX_DEVICES];

static int device_of(const void *handle) {
    ptrdiff_t device = (const char *)handle - handles;
    return device >= 0 && device < us_physical_device_count() ? (int)device : -1;
}

US_EXPORT int nvmlInit_v2(void) {
    return NVML_SUCCESS;
}

US_EXPORT int nvmlInit(void) {
    return NVML_SUCCESS;
}

US_EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlShutdown(void) {
    return NVML_SUCCESS;
}

US_EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    default:
        return "Unknown Error";
    }
}

static int copy_text(char *out, unsigned bytes, const char *text) {
    if (!out || strlen(text) >= bytes)
        return NVML_ERROR_INVALID_ARGUMENT;
    strcpy(out, text);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned bytes) {
    return copy_text(version, bytes, "580.65.06");
}

US_EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned bytes) {
    return copy_text(version, bytes, "13.580.65.06");
}

US_EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = US_CUDA_VERSION;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = US_CUDA_VERSION;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)us_physical_device_count();
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetCount(unsigned *count) {
    *count = (unsigned)us_physical_device_count();
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= (unsigned)us_physical_device_count() || !handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    *handle = &handles[index];
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

US_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    unsigned domain, bus;
    if (!id || sscanf(id, "%x:%x:", &domain, &bus) != 2 || !bus || bus > (unsigned)us_physical_device_count())
        return NVML_ERROR_NOT_FOUND;
    *handle = &handles[bus - 1];
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    const char *last = uuid ? strrchr(uuid, '-') : NULL;
    unsigned long long number = 0;
    if (!last || sscanf(last + 1, "%llx", &number) != 1 ||
        number >= (unsigned long long)us_physical_device_count())
        return NVML_ERROR_NOT_FOUND;
    *handle = &handles[number];
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = (unsigned)device_of(handle);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetName(const void *handle, char *name, unsigned bytes) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return copy_text(name, bytes, us_device()->name);
}

US_EXPORT int nvmlDeviceGetUUID(const void *handle, char *text, unsigned bytes) {
    unsigned char u[16];
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    us_device_uuid(device_of(handle), u);
    char uuid[64];
    snprintf(uuid, sizeof uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    return copy_text(text, bytes, uuid);
}

US_EXPORT int nvmlDeviceGetMemoryInfo(const void *handle, unsigned long long memory[3]) {
    int device = device_of(handle);
    if (device < 0 || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    size_t free_bytes = us_device()->memory_bytes, total_bytes = free_bytes;
    if (device < us_device_count())
        us_memory_info(device, &free_bytes, &total_bytes);
    memory[0] = total_bytes;
    memory[1] = free_bytes;
    memory[2] = total_bytes - free_bytes;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetUtilizationRates(const void *handle, unsigned rates[2]) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    rates[0] = rates[1] = 0;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = us_device()->compute_capability_major;
    *minor = us_device()->compute_capability_minor;
    return NVML_SUCCESS;
}

/* No other process uses an emulated device. */
US_EXPORT int nvmlDeviceGetComputeRunningProcesses(const void *handle, unsigned *count,
                                                   void *list) {
    (void)list;
    if (device_of(handle) < 0 || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count,
                                                      void *list) {
    return nvmlDeviceGetComputeRunningProcesses(handle, count, list);
}

US_EXPORT int nvmlDeviceGetP2PStatus(const void *first, const void *second, int index,
                                     int *status) {
    (void)index;
    if (device_of(first) < 0 || device_of(second) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *status = 0;
    return NVML_SUCCESS;
}
