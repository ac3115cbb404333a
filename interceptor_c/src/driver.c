/* The CUDA driver API: initialisation, devices, contexts, modules, look-up by name. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"
#include "ptx.h"

/* Look-up by name ------------------------------------------------------------------------------ */

extern char __start_us_stubs[] __attribute__((visibility("hidden")));
extern char __stop_us_stubs[] __attribute__((visibility("hidden")));

/* The library itself: in mode B its names are not in the global scope. */
static void *own_library(void) {
    static void *handle;
    void *found = __atomic_load_n(&handle, __ATOMIC_RELAXED);
    Dl_info info;
    if (!found && dladdr((void *)(uintptr_t)&own_library, &info)) {
        found = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        __atomic_store_n(&handle, found, __ATOMIC_RELAXED);
    }
    return found;
}

/* A base name means its newest version ("cuMemAlloc" is cuMemAlloc_v2); implementations win over
   stubs, and a stub over nothing, since it says NOT_SUPPORTED when called. */
void *us_driver_entry(const char *name) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    void *library = own_library(), *stub = NULL;
    char versioned[256];
    for (size_t i = 0; library && i < sizeof suffixes / sizeof *suffixes; i++) {
        snprintf(versioned, sizeof versioned, "%s%s", name, suffixes[i]);
        char *function = dlsym(library, versioned);
        if (function && (function < __start_us_stubs || function >= __stop_us_stubs))
            return function;
        if (function && !stub)
            stub = function;
    }
    return stub;
}

static CUresult proc_address(const char *name, void **function, int *status) {
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *function = us_driver_entry(name);
    if (status)
        *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

US_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                       uint64_t flags, int *status) {
    (void)version, (void)flags;
    return proc_address(name, function, status);
}

US_EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version,
                                    uint64_t flags) {
    (void)version, (void)flags;
    return proc_address(name, function, NULL);
}

/* Devices and contexts ------------------------------------------------------------------------- */

/* One primary context per device; a context is the address of its element. */
static char contexts[US_MAX_DEVICES];

static CUcontext context_of(int device) {
    return (CUcontext)&contexts[device];
}

static int device_of(CUcontext context) {
    ptrdiff_t device = (char *)context - contexts;
    return device >= 0 && device < us_device_count() ? (int)device : -1;
}

static bool is_device(CUdevice device) {
    return device >= 0 && device < us_device_count();
}

US_EXPORT CUresult cuInit(unsigned flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (us_initialize())
        return CUDA_ERROR_NOT_INITIALIZED;
    return us_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

US_EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = US_CUDA_VERSION;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = us_device_count();
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (!is_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!name || bytes <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)bytes, "%s", us_device()->name);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    us_device_uuid(us_physical_device(device), uuid);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = us_device()->memory_bytes;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    return value && us_device_attribute(attribute, device, value) ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_VALUE;
}

US_EXPORT CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!id || bytes < 13)
        return CUDA_ERROR_INVALID_VALUE;
    us_pci_bus_id(us_physical_device(device), id, (size_t)bytes);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (!is_device(device) || !is_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = us_peer_access(device, peer);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *context = context_of(device);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags)
        *flags = 0;
    if (active)
        *active = 1;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = us_device_count() ? context_of(us_current_device()) : NULL;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (!context)
        return CUDA_SUCCESS;
    if (device_of(context) < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    us_set_current_device(device_of(context));
    return CUDA_SUCCESS;
}

enum { MAX_CONTEXT_DEPTH = 16 };
static __thread int context_stack[MAX_CONTEXT_DEPTH];
static __thread int context_depth;

US_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (device_of(context) < 0 || context_depth == MAX_CONTEXT_DEPTH)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_stack[context_depth++] = us_current_device();
    us_set_current_device(device_of(context));
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!context_depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = context_of(us_current_device());
    us_set_current_device(context_stack[--context_depth]);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    *device = us_current_device();
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxSynchronize(void) {
    struct us_record record = us_record_begin(US_API_DEVICE_SYNCHRONIZE);
    us_host_synchronized();
    us_emit(&record);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    (void)context;
    *version = 3020; /* the version of every context since CUDA 3.2 */
    return CUDA_SUCCESS;
}

/* Modules -------------------------------------------------------------------------------------- */

#define MODULE_MAGIC 0x554d4f44u

struct CUmod_st {
    uint32_t magic;
    struct us_cubin *cubin; /* NULL when the image is of another kind */
    struct us_ptx *ptx;     /* same; both are NULL for a fatbin */
    struct us_function **functions;
    size_t count;
};

static struct us_slab modules = {.object_bytes = (sizeof(struct CUmod_st) + 15) & ~15ul};

static struct CUmod_st *module_of(CUmodule module) {
    return us_slab_holds(&modules, module) && module->magic == MODULE_MAGIC ? module : NULL;
}

static CUresult module_load(CUmodule *out, const void *image, size_t bytes) {
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUmod_st *module = us_slab_take(&modules);
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->cubin = us_cubin_parse(image, bytes);
    module->ptx = module->cubin ? NULL : us_ptx_parse(image, bytes);
    module->magic = MODULE_MAGIC;
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult module_function(cudaFunction_t *out, CUmodule handle, const char *name) {
    struct CUmod_st *module = module_of(handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < module->count; i++)
        if (!strcmp(us_function_name(module->functions[i]), name)) {
            *out = (cudaFunction_t)module->functions[i];
            return CUDA_SUCCESS;
        }
    struct us_kernel_info info = {0};
    bool found = module->ptx ? us_ptx_kernel(module->ptx, name, &info) : !module->cubin;
    for (size_t i = 0; module->cubin && i < us_cubin_count(module->cubin) && !found; i++)
        found = !strcmp(us_cubin_kernel(module->cubin, i, &info), name);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    char *copy = strdup(name);
    struct us_function *function = copy ? us_function_new(copy, &info) : NULL;
    struct us_function **grown =
        realloc(module->functions, (module->count + 1) * sizeof *module->functions);
    if (grown)
        module->functions = grown;
    if (!function || !grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->functions[module->count++] = function;
    *out = (cudaFunction_t)function;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return module_load(module, image, SIZE_MAX);
}

US_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned options,
                                      int *names, void **values) {
    (void)options, (void)names, (void)values;
    return module_load(module, image, SIZE_MAX);
}

US_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return module_load(module, image, SIZE_MAX);
}

US_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || !status.st_size) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    size_t bytes = (size_t)status.st_size;
    void *image = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (image == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = module_load(module, image, bytes);
    munmap(image, bytes);
    return result;
}

US_EXPORT CUresult cuModuleUnload(CUmodule handle) {
    struct CUmod_st *module = module_of(handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    /* Functions stay, and the parameters of the image with them: launches may still be coming. */
    if (!module->count && module->cubin)
        us_cubin_free(module->cubin);
    if (!module->count)
        us_ptx_free(module->ptx);
    free(module->functions);
    us_slab_give(&modules, module);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuModuleGetFunction(cudaFunction_t *function, CUmodule module,
                                       const char *name) {
    return module_function(function, module, name);
}

US_EXPORT CUresult cuModuleGetLoadingMode(int *mode) {
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

/* Libraries are modules whose kernels need no context. */
US_EXPORT CUresult cuLibraryLoadData(cudaLibrary_t *library, const void *code, int *options,
                                     void **option_values, unsigned option_count,
                                     int *library_options, void **library_values,
                                     unsigned library_count) {
    (void)options, (void)option_values, (void)option_count, (void)library_options;
    (void)library_values, (void)library_count;
    return module_load((CUmodule *)library, code, SIZE_MAX);
}

US_EXPORT CUresult cuLibraryUnload(cudaLibrary_t library) {
    return cuModuleUnload((CUmodule)library);
}

US_EXPORT CUresult cuLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library,
                                      const char *name) {
    return module_function((cudaFunction_t *)kernel, (CUmodule)library, name);
}

US_EXPORT CUresult cuKernelGetFunction(cudaFunction_t *function, cudaKernel_t kernel) {
    if (!us_function_of(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (cudaFunction_t)kernel;
    return CUDA_SUCCESS;
}

US_EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, int *options,
                                          void **option_values, unsigned option_count,
                                          int *library_options, void **library_values,
                                          unsigned library_count) {
    (void)options, (void)option_values, (void)option_count, (void)library_options;
    (void)library_values, (void)library_count;
    return us_error(module_load((CUmodule *)library, code, SIZE_MAX));
}

US_EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    return us_error(cuModuleUnload((CUmodule)library));
}

US_EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library,
                                           const char *name) {
    return us_error(module_function((cudaFunction_t *)kernel, (CUmodule)library, name));
}

/* A tensor map is opaque to everybody but the GPU. */
US_EXPORT CUresult cuTensorMapEncodeTiled(void *map) {
    if (!map)
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, 128);
    return CUDA_SUCCESS;
}
