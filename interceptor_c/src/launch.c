/*
 * Kernels: registration by nvcc's generated code, look-up by host function or handle, launches,
 * occupancy and attributes. A cudaKernel_t, a cudaFunction_t and a CUfunction are all the address
 * of a struct us_function.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define FUNCTION_MAGIC 0x5546554eu
#define MAX_ARGUMENT_BYTES 32768u
#define MAX_THREADS_PER_BLOCK 1024u
#define DEFAULT_SHARED_BYTES 49152
#define TENSOR_LIST_BYTES 2048u /* larger parameters are lists of tensors */

/* What a kernel does with memory behind its parameters; bit i speaks of parameter i. A parameter
   with neither bit may hold pointers to outputs anywhere. */
struct parameter_access {
    uint64_t read_only;     /* pointers to const */
    uint64_t first_written; /* TensorIterator's std::array<char*, N>: the output, then inputs */
};

struct us_function {
    uint32_t magic;
    uint32_t generation; /* of the trace that kernel_definition belongs to */
    uint32_t kernel_definition;
    int max_dynamic_shared_bytes;
    const char *name;
    size_t name_bytes;
    struct us_kernel_info info;
    uint32_t argument_bytes;
    bool is_fill;      /* at::native::FillFunctor in a decodable kernel */
    bool keeps_values; /* writes nothing that the host should lose */
    bool has_access;   /* the signature was looked at */
    bool no_image;     /* its fat binary has no code for the device */
    struct parameter_access access;
};

struct host_slot {
    const void *host;
    const char *name;
    const struct us_fatbin *fatbin;
    struct us_function *function; /* made at its first use */
};

struct host_table {
    size_t mask;
    struct host_table *smaller; /* what this one replaced; another thread may be reading it */
    struct host_slot slots[];
};

static struct us_slab functions = {.object_bytes = (sizeof(struct us_function) + 15) & ~15ul};
static us_lock table_lock;
static struct host_table *table;
static size_t table_used;

static size_t slot_of(const struct host_table *hosts, const void *host) {
    size_t i = ((uintptr_t)host * 0x9e3779b97f4a7c15ull >> 20) & hosts->mask;
    for (;; i = (i + 1) & hosts->mask) {
        const void *found = __atomic_load_n(&hosts->slots[i].host, __ATOMIC_ACQUIRE);
        if (!found || found == host)
            return i;
    }
}

/* Locked by the caller. */
static bool grow(void) {
    if (table && table_used * 2 < table->mask)
        return true;
    size_t slots = table ? (table->mask + 1) * 2 : 1 << 12;
    struct host_table *grown = calloc(1, sizeof *grown + slots * sizeof grown->slots[0]);
    if (!grown)
        return false;
    grown->mask = slots - 1;
    for (size_t i = 0; table && i <= table->mask; i++)
        if (table->slots[i].host)
            grown->slots[slot_of(grown, table->slots[i].host)] = table->slots[i];
    grown->smaller = table;
    __atomic_store_n(&table, grown, __ATOMIC_RELEASE);
    return true;
}

static void register_function(const void *host, const char *name,
                              const struct us_fatbin *fatbin) {
    us_lock_take(&table_lock);
    if (grow()) {
        struct host_slot *slot = &table->slots[slot_of(table, host)];
        table_used += !slot->host;
        slot->name = name;
        slot->fatbin = fatbin;
        slot->function = NULL;
        __atomic_store_n(&slot->host, host, __ATOMIC_RELEASE);
    }
    us_lock_give(&table_lock);
}

/* `info`: NULL when the kernel stands in a table, or in the library that holds `fatbin`. */
static struct us_function *function_new(const char *name, const struct us_kernel_info *info,
                                        const struct us_fatbin *fatbin) {
    struct us_function *function = us_slab_take(&functions);
    if (!function)
        return NULL;
    function->name = name;
    function->name_bytes = strlen(name);
    if (info)
        function->info = *info;
    else if (!us_kernel_lookup(name, function->name_bytes, &function->info) &&
             us_kernels_of_library(us_fatbin_data(fatbin)))
        us_kernel_lookup(name, function->name_bytes, &function->info);
    if (!function->info.max_threads)
        function->info.max_threads = MAX_THREADS_PER_BLOCK;
    for (uint32_t i = 0; i < function->info.parameter_count; i++) {
        const struct us_parameter *parameter = &function->info.parameters[i];
        uint64_t end = (uint64_t)parameter->offset_bytes + parameter->size_bytes;
        if (end > MAX_ARGUMENT_BYTES) { /* keep what fits */
            function->info.parameter_count = i;
            break;
        }
        if (end > function->argument_bytes)
            function->argument_bytes = (uint32_t)end;
    }
    function->max_dynamic_shared_bytes =
        DEFAULT_SHARED_BYTES - (int)function->info.static_shared_bytes;
    function->keeps_values = strstr(name, "amp_update_scale") != NULL;
    function->is_fill = strstr(name, "FillFunctorI") &&
                        (strstr(name, "vectorized_elementwise_kernel") ||
                         strstr(name, "unrolled_elementwise_kernel")) &&
                        function->info.parameter_count >= 3 &&
                        function->info.parameters[0].size_bytes == 4 &&
                        function->info.parameters[2].size_bytes == 8;
    function->magic = FUNCTION_MAGIC;
    return function;
}

struct us_function *us_function_new(const char *mangled_name, const struct us_kernel_info *info) {
    return function_new(mangled_name, info, NULL);
}

struct us_function *us_function_of(const void *pointer) {
    if (!pointer)
        return NULL;
    if (us_slab_holds(&functions, pointer)) {
        struct us_function *function = (struct us_function *)(uintptr_t)pointer;
        return function->magic == FUNCTION_MAGIC ? function : NULL;
    }
    struct host_table *hosts = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
    if (!hosts)
        return NULL;
    struct host_slot *slot = &hosts->slots[slot_of(hosts, pointer)];
    if (!slot->host)
        return NULL;
    struct us_function *function = __atomic_load_n(&slot->function, __ATOMIC_ACQUIRE);
    if (function)
        return function;
    us_lock_take(&table_lock);
    slot = &table->slots[slot_of(table, pointer)];
    function = slot->function;
    if (!function) {
        function = function_new(slot->name, NULL, slot->fatbin);
        if (function)
            function->no_image = !us_fatbin_has_device(slot->fatbin);
        __atomic_store_n(&slot->function, function, __ATOMIC_RELEASE);
    }
    us_lock_give(&table_lock);
    return function;
}

const char *us_function_name(const struct us_function *function) {
    return function->name;
}

/* Which parameters a kernel may write through, from its demangled signature. ------------------- */

typedef char *demangle_function(const char *, char *, size_t *, int *);

static char *demangle(const char *name) {
    /* C++ programs have the demangler loaded; a program without it has no C++ kernels. */
    demangle_function *demangler = (demangle_function *)dlsym(RTLD_DEFAULT, "__cxa_demangle");
    if (!demangler) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
        demangler = library ? (demangle_function *)dlsym(library, "__cxa_demangle") : NULL;
    }
    return demangler ? demangler(name, NULL, NULL, NULL) : NULL;
}

static void note_access(struct parameter_access *access, uint32_t index, const char *type,
                        size_t length) {
    static const char array[] = "std::array<char*, ", constant[] = " const*";
    while (length && type[0] == ' ') {
        type++;
        length--;
    }
    size_t head = sizeof array - 1, tail = sizeof constant - 1;
    if (length >= head && !memcmp(type, array, head))
        access->first_written |= 1ull << index;
    else if (length > tail && !memcmp(type + length - tail, constant, tail))
        access->read_only |= 1ull << index;
}

/* The parameter list is the last top-level pair of parentheses. */
static void read_signature(const char *signature, struct parameter_access *access) {
    size_t end = strlen(signature);
    while (end && signature[end - 1] != ')')
        end--;
    if (!end)
        return;
    size_t open = --end;
    for (int depth = 1; open && depth;) {
        char c = signature[--open];
        depth += c == ')' ? 1 : c == '(' ? -1 : 0;
    }
    uint32_t index = 0;
    size_t start = open + 1;
    int depth = 0;
    for (size_t i = start; i <= end && index < 64; i++) {
        char c = signature[i];
        if (depth == 0 && (i == end || c == ',')) {
            note_access(access, index++, signature + start, i - start);
            start = i + 1;
        }
        depth += c == '<' || c == '(' || c == '{' || c == '[';
        depth -= c == '>' || c == ')' || c == '}' || c == ']';
    }
}

/* Threads may do this at the same time; they write the same. */
static const struct parameter_access *access_of(struct us_function *function) {
    if (__builtin_expect(!__atomic_load_n(&function->has_access, __ATOMIC_ACQUIRE), 0)) {
        struct parameter_access access = {0, 0};
        char *signature = demangle(function->name);
        if (signature)
            read_signature(signature, &access);
        free(signature);
        function->access = access;
        __atomic_store_n(&function->has_access, true, __ATOMIC_RELEASE);
    }
    return &function->access;
}

static void forget_words(const unsigned char *bytes, size_t count) {
    for (size_t at = 0; at + 8 <= count; at += 8) {
        void *pointer;
        memcpy(&pointer, bytes + at, 8);
        if (__builtin_expect(us_values_may_hold(pointer), 0))
            us_values_forget_at(pointer);
    }
}

/* TensorListMetadata of multi_tensor_apply starts with the addresses of its first tensor list. Its
   unused entries are whatever lay on the stack, pointers of other calls among them. */
static void forget_tensor_list(const unsigned char *bytes, size_t count) {
    size_t used = 0;
    for (void *pointer; used + 8 <= count; used += 8) {
        memcpy(&pointer, bytes + used, 8);
        if (us_pointer_device(pointer) < 0)
            break;
    }
    forget_words(bytes, used);
}

static void apply_to_values(struct us_function *function, const unsigned char *arguments) {
    if (function->is_fill) {
        const struct us_parameter *parameters = function->info.parameters;
        int32_t elements;
        void *pointer;
        memcpy(&elements, arguments + parameters[0].offset_bytes, 4);
        memcpy(&pointer, arguments + parameters[2].offset_bytes, 8);
        size_t element_bytes = parameters[1].size_bytes;
        if (elements > 0)
            us_values_fill(pointer, arguments + parameters[1].offset_bytes, element_bytes,
                           (size_t)elements * element_bytes);
        return;
    }
    if (!us_values_any() || function->keeps_values)
        return;
    const struct parameter_access *access = access_of(function);
    for (uint32_t i = 0; i < function->info.parameter_count; i++) {
        const struct us_parameter *parameter = &function->info.parameters[i];
        const unsigned char *bytes = arguments + parameter->offset_bytes;
        uint64_t bit = i < 64 ? 1ull << i : 0;
        if (access->first_written & bit)
            forget_words(bytes, 8);
        else if (parameter->size_bytes >= TENSOR_LIST_BYTES)
            forget_tensor_list(bytes, parameter->size_bytes);
        else if (!(access->read_only & bit))
            forget_words(bytes, parameter->size_bytes);
    }
}

/* Launching ------------------------------------------------------------------------------------ */

struct launch_payload {
    struct us_launch launch;
    unsigned char arguments[MAX_ARGUMENT_BYTES];
};

static uint32_t kernel_definition(struct us_function *function) {
    size_t parameter_bytes = function->info.parameter_count * sizeof(struct us_parameter);
    size_t bytes = sizeof(struct us_kernel) + parameter_bytes + function->name_bytes;
    char *payload = malloc(bytes);
    if (!payload)
        return 0;
    struct us_kernel kernel = {
        .registers = function->info.registers,
        .static_shared_bytes = function->info.static_shared_bytes,
        .parameter_count = function->info.parameter_count,
        .name_bytes = (uint32_t)function->name_bytes,
    };
    memcpy(payload, &kernel, sizeof kernel);
    if (parameter_bytes)
        memcpy(payload + sizeof kernel, function->info.parameters, parameter_bytes);
    memcpy(payload + sizeof kernel + parameter_bytes, function->name, function->name_bytes);
    uint32_t id = us_define(US_DEFINITION_KERNEL, payload, bytes);
    free(payload);
    return id;
}

static void gather_arguments(const struct us_function *function, void **arguments, void **extra,
                             unsigned char *bytes) {
    uint32_t filled = 0;
    const unsigned char *buffer = NULL;
    size_t buffer_bytes = 0;
    for (void **entry = extra; entry && entry[0]; entry += 2) {
        if (entry[0] == (void *)1) /* CU_LAUNCH_PARAM_BUFFER_POINTER */
            buffer = entry[1];
        else if (entry[0] == (void *)2) /* CU_LAUNCH_PARAM_BUFFER_SIZE */
            buffer_bytes = *(const size_t *)entry[1];
    }
    for (uint32_t i = 0; i < function->info.parameter_count; i++) {
        const struct us_parameter *parameter = &function->info.parameters[i];
        uint32_t offset = parameter->offset_bytes, size = parameter->size_bytes;
        if (offset > filled) /* the gap is not the caller's */
            memset(bytes + filled, 0, offset - filled);
        if (arguments && arguments[i]) {
            if (size == 8)
                memcpy(bytes + offset, arguments[i], 8);
            else if (size == 4)
                memcpy(bytes + offset, arguments[i], 4);
            else
                memcpy(bytes + offset, arguments[i], size);
        } else if (buffer && offset + size <= buffer_bytes) {
            memcpy(bytes + offset, buffer + offset, size);
        } else {
            memset(bytes + offset, 0, size);
        }
        filled = offset + size;
    }
}

static cudaError_t check_launch(const struct us_function *function, us_dim3 grid, us_dim3 block,
                                size_t dynamic_shared_bytes) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (function->no_image)
        return cudaErrorNoKernelImageForDevice;
    if (!threads || !grid.x || !grid.y || !grid.z || threads > MAX_THREADS_PER_BLOCK ||
        block.z > 64 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (threads > function->info.max_threads)
        return cudaErrorLaunchOutOfResources;
    uint64_t shared = dynamic_shared_bytes + function->info.static_shared_bytes;
    if (shared > (uint64_t)us_device()->shared_memory_per_block_optin_bytes)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t us_launch(struct us_function *function, us_dim3 grid, us_dim3 block, void **arguments,
                      void **extra, size_t dynamic_shared_bytes, cudaStream_t stream,
                      const us_dim3 *cluster) {
    struct us_record record = us_record_begin(US_API_LAUNCH_KERNEL);
    if (__builtin_expect(us_forked, 0))
        return cudaErrorInitializationError;
    if (!function)
        return cudaErrorInvalidDeviceFunction;
    if (!us_stream_is_valid(stream))
        return cudaErrorInvalidResourceHandle;
    cudaError_t error = check_launch(function, grid, block, dynamic_shared_bytes);
    if (error)
        return error;
    bool captured = us_stream_is_capturing(stream);
    uint32_t stream_number = us_stream_number(stream);
    bool tracing = us_tracing();
    if (!tracing && !function->is_fill && !us_values_any())
        return cudaSuccess;
    struct launch_payload payload;
    gather_arguments(function, arguments, extra, payload.arguments);
    if (tracing) {
        uint32_t generation = us_trace_generation();
        if (__builtin_expect(function->generation != generation, 0)) {
            function->kernel_definition = kernel_definition(function);
            function->generation = generation;
        }
        payload.launch = (struct us_launch){
            .kernel = function->kernel_definition,
            .grid = {grid.x, grid.y, grid.z},
            .block = {block.x, block.y, block.z},
            .dynamic_shared_bytes = (uint32_t)dynamic_shared_bytes,
            .argument_bytes = function->argument_bytes,
            .cluster = {cluster ? cluster->x : 1, cluster ? cluster->y : 1,
                        cluster ? cluster->z : 1},
        };
        record.stream = stream_number;
        record.definition = us_define(US_DEFINITION_LAUNCH, &payload,
                                      sizeof payload.launch + function->argument_bytes);
    }
    if (!captured)
        apply_to_values(function, payload.arguments);
    us_emit(&record);
    return cudaSuccess;
}

/* Occupancy and attributes --------------------------------------------------------------------- */

/* Blocks of the kernel that fit on one multiprocessor (CUDA's occupancy calculator). */
int us_occupancy(const struct us_function *function, int block_threads, size_t dynamic_bytes) {
    const struct us_device *device = us_device();
    if (block_threads <= 0 || (uint32_t)block_threads > function->info.max_threads)
        return 0;
    int warps = (block_threads + 31) / 32;
    int limit = us_device()->max_blocks_per_multiprocessor;
    int by_threads = device->max_threads_per_multiprocessor / 32 / warps;
    limit = by_threads < limit ? by_threads : limit;
    if (function->info.registers) {
        /* Registers are handed out per warp in units of 256, warps in groups of four. */
        int per_warp = ((int)function->info.registers * 32 + 255) / 256 * 256;
        int warps_by_registers = device->registers_per_multiprocessor / per_warp / 4 * 4;
        int by_registers = warps_by_registers / warps;
        limit = by_registers < limit ? by_registers : limit;
    }
    uint64_t shared = function->info.static_shared_bytes + dynamic_bytes;
    if (shared > (uint64_t)device->shared_memory_per_block_optin_bytes)
        return 0;
    shared += (uint64_t)us_device()->reserved_shared_memory_per_block_bytes;
    shared = (shared + 127) / 128 * 128;
    if (shared) {
        int by_shared = (int)((uint64_t)device->shared_memory_per_multiprocessor_bytes / shared);
        limit = by_shared < limit ? by_shared : limit;
    }
    return limit;
}

/* A block size with the highest occupancy, and the smallest grid that fills the device. */
void us_occupancy_best(const struct us_function *function, size_t dynamic_bytes, int limit,
                       int *grid, int *block) {
    int best = 0, best_block = 32;
    int most = limit > 0 && limit < (int)function->info.max_threads
                   ? limit
                   : (int)function->info.max_threads;
    for (int threads = most / 32 * 32; threads >= 32; threads -= 32) {
        int active = us_occupancy(function, threads, dynamic_bytes) * threads;
        if (active > best) {
            best = active;
            best_block = threads;
        }
    }
    *block = best_block;
    *grid = us_occupancy(function, best_block, dynamic_bytes) * us_device()->multiprocessors;
}

bool us_function_attribute(const struct us_function *function, int attribute, int *value) {
    const struct us_kernel_info *info = &function->info;
    switch (attribute) { /* CUfunction_attribute */
    case 0: *value = (int)info->max_threads; return true;
    case 1: *value = (int)info->static_shared_bytes; return true;
    case 2: *value = 0; return true; /* constant memory */
    case 3: *value = (int)info->local_bytes; return true;
    case 4: *value = (int)info->registers; return true;
    case 5: /* PTX version */
    case 6: *value = us_compute_capability(); return true;
    case 7: *value = 0; return true;
    case 8: *value = function->max_dynamic_shared_bytes; return true;
    case 9: *value = -1; return true; /* carve-out: default */
    default:
        *value = 0; /* clusters */
        return attribute > 9 && attribute < 16;
    }
}

cudaError_t us_function_set_attribute(struct us_function *function, int attribute, int value) {
    if (attribute != 8) /* others are hints */
        return attribute < 16 ? cudaSuccess : cudaErrorInvalidValue;
    int64_t most = (int64_t)us_device()->shared_memory_per_block_optin_bytes -
                   (int64_t)function->info.static_shared_bytes;
    if (value < 0 || value > most)
        return cudaErrorInvalidValue;
    function->max_dynamic_shared_bytes = value;
    return cudaSuccess;
}

void us_function_attributes(const struct us_function *function,
                            struct cudaFuncAttributes *attributes) {
    *attributes = (struct cudaFuncAttributes){
        .sharedSizeBytes = function->info.static_shared_bytes,
        .localSizeBytes = function->info.local_bytes,
        .maxThreadsPerBlock = (int)function->info.max_threads,
        .numRegs = (int)function->info.registers,
        .ptxVersion = us_compute_capability(),
        .binaryVersion = us_compute_capability(),
        .maxDynamicSharedSizeBytes = function->max_dynamic_shared_bytes,
        .preferredShmemCarveout = -1,
    };
}

cudaError_t us_function_parameter(const struct us_function *function, size_t index, size_t *offset,
                                  size_t *bytes) {
    if (index >= function->info.parameter_count)
        return cudaErrorInvalidValue;
    if (offset)
        *offset = function->info.parameters[index].offset_bytes;
    if (bytes)
        *bytes = function->info.parameters[index].size_bytes;
    return cudaSuccess;
}

/* What nvcc's generated code calls ------------------------------------------------------------- */

US_EXPORT void **__cudaRegisterFatBinary(void *fatbin) {
    return (void **)us_fatbin_register(fatbin);
}

US_EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

US_EXPORT void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

US_EXPORT char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

US_EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device,
                                      const char *device_name, int thread_limit, void *tid,
                                      void *bid, void *block, void *grid, int *warp_size) {
    (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp_size;
    register_function(host, device_name, (const struct us_fatbin *)handle);
}

struct call_configuration {
    us_dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

enum { MAX_CALL_DEPTH = 8 };
static __thread struct call_configuration call_stack[MAX_CALL_DEPTH];
static __thread int call_depth;

US_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                               cudaStream_t stream) {
    if (call_depth == MAX_CALL_DEPTH)
        return 1;
    call_stack[call_depth++] = (struct call_configuration){grid, block, shared_bytes, stream};
    return 0;
}

US_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                                 void *stream) {
    if (!call_depth)
        return us_error(cudaErrorMissingConfiguration);
    const struct call_configuration *call = &call_stack[--call_depth];
    *grid = call->grid;
    *block = call->block;
    *shared_bytes = call->shared_bytes;
    memcpy(stream, &call->stream, sizeof call->stream);
    return cudaSuccess;
}

US_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    struct us_function *function = us_function_of(host);
    if (!function)
        return us_error(cudaErrorInvalidDeviceFunction);
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

US_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                         void **arguments, size_t shared_bytes,
                                         cudaStream_t stream) {
    return us_error(us_launch(us_function_of(kernel), grid, block, arguments, NULL, shared_bytes,
                              stream, NULL));
}

US_EXPORT cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                       size_t shared_bytes, cudaStream_t stream) {
    return us_error(us_launch(us_function_of(host), grid, block, arguments, NULL, shared_bytes,
                              stream, NULL));
}

US_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block,
                                                  void **arguments, size_t shared_bytes,
                                                  cudaStream_t stream) {
    return us_error(us_launch(us_function_of(host), grid, block, arguments, NULL, shared_bytes,
                              stream, NULL));
}

static us_dim3 cluster_of(const struct us_launch_attribute *attributes, unsigned count) {
    us_dim3 cluster = {1, 1, 1};
    for (unsigned i = 0; i < count; i++)
        if (attributes[i].id == US_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            cluster = (us_dim3){attributes[i].value.cluster.x, attributes[i].value.cluster.y,
                                attributes[i].value.cluster.z};
    return cluster;
}

US_EXPORT cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig_t *config, const void *host,
                                          void **arguments) {
    if (!config)
        return us_error(cudaErrorInvalidValue);
    us_dim3 cluster = cluster_of(config->attrs, config->numAttrs);
    return us_error(us_launch(us_function_of(host), config->gridDim, config->blockDim, arguments,
                              NULL, config->dynamicSmemBytes, config->stream, &cluster));
}

US_EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes,
                                            const void *host) {
    const struct us_function *function = us_function_of(host);
    if (!function)
        return us_error(cudaErrorInvalidDeviceFunction);
    if (function->no_image)
        return us_error(cudaErrorNoKernelImageForDevice);
    us_function_attributes(function, attributes);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaFuncSetAttribute(const void *host, int attribute, int value) {
    struct us_function *function = us_function_of(host);
    if (!function)
        return us_error(cudaErrorInvalidDeviceFunction);
    return us_error(us_function_set_attribute(function, attribute, value));
}

US_EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, int attribute, int value,
                                                      int device) {
    (void)device;
    struct us_function *function = us_function_of(kernel);
    if (!function)
        return us_error(cudaErrorInvalidResourceHandle);
    return us_error(us_function_set_attribute(function, attribute, value));
}

US_EXPORT cudaError_t cudaFuncSetCacheConfig(const void *host, int config) {
    (void)config;
    return us_error(us_function_of(host) ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

US_EXPORT cudaError_t cudaFuncGetName(const char **name, const void *host) {
    const struct us_function *function = us_function_of(host);
    if (!function || !name)
        return us_error(function ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    *name = function->name;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaFuncGetParamInfo(const void *host, size_t index, size_t *offset,
                                           size_t *bytes) {
    const struct us_function *function = us_function_of(host);
    if (!function)
        return us_error(cudaErrorInvalidDeviceFunction);
    return us_error(us_function_parameter(function, index, offset, bytes));
}

US_EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *host) {
    struct us_function *function = us_function_of(host);
    if (!function)
        return us_error(cudaErrorInvalidDeviceFunction);
    *out = (cudaFunction_t)function;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaGetKernel(cudaKernel_t *out, const void *host) {
    struct us_function *function = us_function_of(host);
    if (!function)
        return us_error(cudaErrorInvalidDeviceFunction);
    *out = (cudaKernel_t)function;
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *host, int block_threads, size_t dynamic_bytes, unsigned flags) {
    (void)flags;
    const struct us_function *function = us_function_of(host);
    if (!function || !blocks)
        return us_error(function ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    *blocks = us_occupancy(function, block_threads, dynamic_bytes);
    return cudaSuccess;
}

US_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host,
                                                                    int block_threads,
                                                                    size_t dynamic_bytes) {
    const struct us_function *function = us_function_of(host);
    if (!function || !blocks)
        return us_error(function ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    *blocks = us_occupancy(function, block_threads, dynamic_bytes);
    return cudaSuccess;
}

/* Driver API ----------------------------------------------------------------------------------- */

US_EXPORT CUresult cuLaunchKernel(cudaFunction_t handle, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned shared_bytes, CUstream stream,
                                  void **arguments, void **extra) {
    struct us_function *function = us_function_of(handle);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    us_dim3 grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    return us_launch(function, grid, block, arguments, extra, shared_bytes, stream, NULL);
}

US_EXPORT CUresult cuLaunchKernelEx(const struct CUlaunchConfig *config, cudaFunction_t handle,
                                    void **arguments, void **extra) {
    struct us_function *function = us_function_of(handle);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    us_dim3 grid = {config->gridDimX, config->gridDimY, config->gridDimZ};
    us_dim3 block = {config->blockDimX, config->blockDimY, config->blockDimZ};
    us_dim3 cluster = cluster_of(config->attrs, config->numAttrs);
    return us_launch(function, grid, block, arguments, extra, config->sharedMemBytes,
                     config->hStream, &cluster);
}

US_EXPORT CUresult cuLaunchCooperativeKernel(cudaFunction_t handle, unsigned grid_x,
                                             unsigned grid_y, unsigned grid_z, unsigned block_x,
                                             unsigned block_y, unsigned block_z,
                                             unsigned shared_bytes, CUstream stream,
                                             void **arguments) {
    struct us_function *function = us_function_of(handle);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    us_dim3 grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    return us_launch(function, grid, block, arguments, NULL, shared_bytes, stream, NULL);
}

US_EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, cudaFunction_t handle) {
    const struct us_function *function = us_function_of(handle);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || !us_function_attribute(function, attribute, value))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuFuncSetAttribute(cudaFunction_t handle, int attribute, int value) {
    struct us_function *function = us_function_of(handle);
    return function ? us_function_set_attribute(function, attribute, value)
                    : CUDA_ERROR_INVALID_HANDLE;
}

US_EXPORT CUresult cuFuncSetCacheConfig(cudaFunction_t handle, int config) {
    (void)config;
    return us_function_of(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

US_EXPORT CUresult cuFuncGetName(const char **name, cudaFunction_t handle) {
    const struct us_function *function = us_function_of(handle);
    if (!function || !name)
        return function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuFuncGetParamInfo(cudaFunction_t handle, size_t index, size_t *offset,
                                      size_t *bytes) {
    const struct us_function *function = us_function_of(handle);
    return function ? us_function_parameter(function, index, offset, bytes)
                    : CUDA_ERROR_INVALID_HANDLE;
}

US_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cudaFunction_t handle,
                                                               int block_threads,
                                                               size_t dynamic_bytes) {
    const struct us_function *function = us_function_of(handle);
    if (!function || !blocks)
        return function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *blocks = us_occupancy(function, block_threads, dynamic_bytes);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                        cudaFunction_t handle,
                                                                        int block_threads,
                                                                        size_t dynamic_bytes,
                                                                        unsigned flags) {
    (void)flags;
    const struct us_function *function = us_function_of(handle);
    if (!function || !blocks)
        return function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *blocks = us_occupancy(function, block_threads, dynamic_bytes);
    return CUDA_SUCCESS;
}

US_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, cudaFunction_t handle,
                                                    size_t (*shared_of_block)(int),
                                                    size_t dynamic_bytes, int limit) {
    const struct us_function *function = us_function_of(handle);
    if (!function || !grid || !block)
        return function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (shared_of_block)
        dynamic_bytes = shared_of_block((int)function->info.max_threads);
    us_occupancy_best(function, dynamic_bytes, limit, grid, block);
    return CUDA_SUCCESS;
}
