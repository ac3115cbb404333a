/*
 * NCCL: communicators, collectives, point-to-point messages and groups. Nothing blocks and no peer
 * has to be alive: a call is recorded and returns.
 *
 * What the program may read back of a result is defined by one assumption: *every peer holds the
 * same bytes as this rank*. So an all-gather replicates the local shard, an all-reduce with ncclSum
 * multiplies it by the number of members, a message of a peer is what this rank would send itself.
 * That is right for shapes, flags and counts that all ranks share (PyTorch's DDP compares parameter
 * shapes this way) and says nothing about data that differ by rank. Only messages of at most
 * US_VALUE_MAX_BYTES carry bytes; larger results read as unknown.
 *
 * Communicators are recognised across ranks by us_communicator.unique_id: the hash of the
 * ncclUniqueId, or for children of a split the hash of (parent, number of the split, color). The
 * size of a split child is not known without its peers: it is recorded as -1 and its rank as the
 * key (PyTorch passes the rank in the new group as key); whoever joins the ranks resolves both.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core.h"
#include "types_nccl.h"
#include "versions.h"

enum { MAX_NAME = 256 };

struct ncclComm {
    int rank, size; /* size: of the parent as long as a split child's own is not known */
    int device;
    struct us_communicator description; /* what the trace says of it, but for `parent` */
    struct ncclComm *parent;            /* kept alive by its children */
    int references;
    char name[MAX_NAME];
    uint64_t definition; /* trace generation << 32 | id; 0 before the first use in a trace */
    uint32_t splits;          /* children made so far */
    uint64_t custom_operators; /* bit i: operator ncclNumOps + i is in use */
    int64_t buffer_bytes; /* of device memory, taken at the first operation */
};

struct ncclWindow_vidmem {
    void *pointer;
};

/* A point-to-point call inside a group; bytes arrive when the group ends. */
struct message {
    ncclComm_t communicator;
    const void *pointer;
    size_t bytes;
    int own_rank, peer;
    bool is_send;
};

enum { MAX_GROUP_MESSAGES = 4096, MAX_CUSTOM_OPERATORS = 64, SUM_MAX_BYTES = 1024 };

static _Thread_local int group_depth;
static _Thread_local struct message *group_messages;
static _Thread_local size_t group_message_count, group_message_capacity;

/* What one connection of a channel to a peer takes: a receive buffer for each of the protocols LL (8
   steps of 512 threads x 8 lines of 16 bytes), LL128 (8 steps of 640 threads x 120 elements of 8
   bytes) and Simple (NCCL_BUFFSIZE, 4 MiB by default); NCCL source, src/include/device.h. */
enum { LL_BYTES = 8 * 512 * 8 * 16, LL128_BYTES = 8 * 640 * 120 * 8, SIMPLE_BYTES = 4 << 20 };

static const uint8_t type_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* Library ------------------------------------------------------------------------------------ */

US_EXPORT ncclResult_t ncclGetVersion(int *version) {
    if (version == NULL) return ncclInvalidArgument;
    *version = us_library_versions()->nccl;
    return ncclSuccess;
}

US_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    case ncclTimeout: return "NCCL operation timed out";
    default: return "unknown result code";
    }
}

US_EXPORT const char *ncclGetLastError(ncclComm_t communicator) {
    (void)communicator;
    return "";
}

US_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    if (id == NULL) return ncclInvalidArgument;
    /* At most 256 bytes come in one piece, see getrandom(2). */
    return getrandom(id, sizeof *id, 0) == sizeof *id ? ncclSuccess : ncclSystemError;
}

/* Memory of NCCL is ordinary device memory here: cudaMalloc records the one call that is made. */
extern cudaError_t cudaMalloc(void **pointer, size_t bytes);
extern cudaError_t cudaFree(void *pointer);

US_EXPORT ncclResult_t ncclMemAlloc(void **pointer, size_t bytes) {
    if (pointer == NULL) return ncclInvalidArgument;
    return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

US_EXPORT ncclResult_t ncclMemFree(void *pointer) {
    return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/* Communicators ------------------------------------------------------------------------------ */

static void hash_128(uint64_t hash[2], const void *bytes, size_t count) {
    hash[0] = us_hash(bytes, count);
    /* A second, independent hash: the same bytes behind the first hash. */
    uint64_t second = hash[0] ^ 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < count; i++) {
        second = (second ^ ((const unsigned char *)bytes)[i]) * 0xff51afd7ed558ccdu;
        second ^= second >> 29;
    }
    hash[1] = second;
}

static const char *config_name(const ncclConfig_t *config) {
    if (config == NULL || config->size < offsetof(ncclConfig_t, commName) + sizeof(char *)) {
        return "";
    }
    return config->commName != NULL ? config->commName : "";
}

/* The communicator's definition in the open trace, written at its first use there. */
static uint32_t definition_of(ncclComm_t communicator) {
    uint64_t cached = __atomic_load_n(&communicator->definition, __ATOMIC_ACQUIRE);
    if (!us_tracing()) return 0;
    if (cached >> 32 == us_trace_generation()) return (uint32_t)cached;
    struct {
        struct us_communicator head;
        char name[MAX_NAME];
    } payload = {.head = communicator->description};
    if (communicator->parent != NULL) payload.head.parent = definition_of(communicator->parent);
    size_t name_bytes = strnlen(communicator->name, MAX_NAME);
    memcpy(payload.name, communicator->name, name_bytes);
    uint32_t id = us_define_new(US_DEFINITION_COMMUNICATOR, &payload,
                                sizeof payload.head + name_bytes);
    __atomic_store_n(&communicator->definition, (uint64_t)us_trace_generation() << 32 | id,
                     __ATOMIC_RELEASE);
    return id;
}

static ncclComm_t make(int rank, int size, int device, const void *identity, size_t bytes,
                       const ncclConfig_t *config) {
    ncclComm_t made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->rank = rank;
    made->size = size;
    made->device = device;
    made->references = 1;
    hash_128(made->description.unique_id, identity, bytes);
    made->description.rank = rank;
    made->description.size = size;
    made->description.device = (uint32_t)device;
    strncpy(made->name, config_name(config), MAX_NAME - 1);
    return made;
}

static bool take_memory(int device, int64_t bytes) {
    struct us_record record = us_record_begin(US_API_LIBRARY_MEMORY);
    bool fits = us_device_charge(device, bytes);
    if (!fits) record.api = US_API_OUT_OF_MEMORY;
    record.b = (uint64_t)bytes;
    record.c = us_device_used_bytes(device);
    us_emit(&record);
    return fits;
}

/* Since 2.22 NCCL takes a communicator's buffers at its first operation. On each channel a rank is
   connected with its neighbours in a ring and, with more than two ranks, in a tree. A split child
   whose size is not known here counts as its parent. A guess, not a measurement: transports over
   the network, NVLink SHARP and messages between pairs add to it. */
static bool has_buffers(ncclComm_t communicator) {
    if (communicator->buffer_bytes != 0 || communicator->size < 2) return true;
    const char *setting = getenv("NCCL_BUFFSIZE");
    int64_t simple = setting != NULL ? atoll(setting) : SIMPLE_BYTES;
    int64_t connection = LL_BYTES + LL128_BYTES + (simple > 0 ? simple : SIMPLE_BYTES);
    int64_t connections = communicator->size > 2 ? 2 : 1;
    int64_t bytes = us_device()->nccl_channels * connections * connection;
    if (!take_memory(communicator->device, bytes)) return false;
    communicator->buffer_bytes = bytes;
    return true;
}

static void release(ncclComm_t communicator) {
    while (communicator != NULL &&
           __atomic_sub_fetch(&communicator->references, 1, __ATOMIC_ACQ_REL) == 0) {
        ncclComm_t parent = communicator->parent;
        if (communicator->buffer_bytes != 0) {
            take_memory(communicator->device, -communicator->buffer_bytes);
        }
        free(communicator);
        communicator = parent;
    }
}

static ncclResult_t init_rank(ncclComm_t *communicator, int size, const ncclUniqueId *ids,
                              int id_count, int rank, const ncclConfig_t *config) {
    struct us_record record = us_record_begin(US_API_COMMUNICATOR_INIT);
    if (communicator == NULL || ids == NULL || id_count < 1 || size < 1 || rank < 0 ||
        rank >= size) {
        return ncclInvalidArgument;
    }
    *communicator = NULL;
    ncclComm_t made = make(rank, size, us_current_device(), ids, (size_t)id_count * sizeof *ids,
                           config);
    if (made == NULL) return ncclSystemError;
    record.definition = definition_of(made);
    us_emit(&record);
    *communicator = made;
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int size, ncclUniqueId id,
                                        int rank) {
    return init_rank(communicator, size, &id, 1, rank, NULL);
}

/* A non-blocking communicator is ready at once, which NCCL allows. */
US_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int size, ncclUniqueId id,
                                              int rank, ncclConfig_t *config) {
    return init_rank(communicator, size, &id, 1, rank, config);
}

US_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *communicator, int size, int rank,
                                                int id_count, ncclUniqueId *ids,
                                                ncclConfig_t *config) {
    return init_rank(communicator, size, ids, id_count, rank, config);
}

US_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *communicators, int count, const int *devices) {
    ncclUniqueId id;
    if (communicators == NULL || count < 1 || count > us_device_count()) return ncclInvalidArgument;
    if (getrandom(&id, sizeof id, 0) != sizeof id) return ncclSystemError;
    int before = us_current_device();
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        us_set_current_device(devices == NULL ? i : devices[i]);
        result = init_rank(&communicators[i], count, &id, 1, i, NULL);
    }
    us_set_current_device(before);
    return result;
}

/* The child's identity follows from what all its members know. */
static ncclResult_t make_child(ncclComm_t parent, struct us_record *record, const void *identity,
                               size_t identity_bytes, int rank, int size, bool size_is_known,
                               int color, int key, const ncclConfig_t *config, ncclComm_t *child) {
    ncclComm_t made = make(rank, size, parent->device, identity, identity_bytes, config);
    if (made == NULL) return ncclSystemError;
    __atomic_add_fetch(&parent->references, 1, __ATOMIC_RELAXED);
    made->parent = parent;
    if (!size_is_known) made->description.size = -1;
    made->description.color = color;
    made->description.key = key;
    record->b = (uint64_t)(int64_t)color;
    record->c = (uint64_t)(int64_t)key;
    record->definition = definition_of(made);
    us_emit(record);
    *child = made;
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *child,
                                     ncclConfig_t *config) {
    struct us_record record = us_record_begin(US_API_COMMUNICATOR_SPLIT);
    if (parent == NULL || child == NULL || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
    *child = NULL;
    /* Counted on every member, also on those that stay out: the number must agree. */
    uint32_t number = __atomic_add_fetch(&parent->splits, 1, __ATOMIC_RELAXED);
    record.a = definition_of(parent);
    if (color == NCCL_SPLIT_NOCOLOR) {
        record.b = (uint64_t)(int64_t)color;
        us_emit(&record);
        return ncclSuccess;
    }
    struct {
        uint64_t parent[2], number, color;
    } identity = {{parent->description.unique_id[0], parent->description.unique_id[1]},
                  number,
                  (uint64_t)color};
    int rank = key >= 0 && key < parent->size ? key : parent->rank;
    return make_child(parent, &record, &identity, sizeof identity, rank, parent->size, false,
                      color, key, config, child);
}

US_EXPORT ncclResult_t ncclCommShrink(ncclComm_t parent, int *excluded, int excluded_count,
                                      ncclComm_t *child, ncclConfig_t *config, int flags) {
    struct us_record record = us_record_begin(US_API_COMMUNICATOR_SPLIT);
    (void)flags;
    if (parent == NULL || child == NULL || excluded == NULL || excluded_count < 0 ||
        excluded_count >= parent->size) {
        return ncclInvalidArgument;
    }
    *child = NULL;
    uint32_t number = __atomic_add_fetch(&parent->splits, 1, __ATOMIC_RELAXED);
    record.a = definition_of(parent);
    int below = 0;
    uint64_t sum = 0;
    for (int i = 0; i < excluded_count; i++) {
        if (excluded[i] < 0 || excluded[i] >= parent->size || excluded[i] == parent->rank) {
            return ncclInvalidArgument;
        }
        below += excluded[i] < parent->rank;
        sum += us_hash(&excluded[i], sizeof excluded[i]); /* the order of the list is free */
    }
    struct {
        uint64_t parent[2], number, excluded;
    } identity = {{parent->description.unique_id[0], parent->description.unique_id[1]},
                  number,
                  sum};
    return make_child(parent, &record, &identity, sizeof identity, parent->rank - below,
                      parent->size - excluded_count, true, 0, parent->rank, config, child);
}

static void emit_end(enum us_api api, ncclComm_t communicator) {
    struct us_record record = us_record_begin(api);
    record.definition = definition_of(communicator);
    us_emit(&record);
}

US_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
    if (communicator == NULL) return ncclInvalidArgument;
    emit_end(US_API_COMMUNICATOR_FINALIZE, communicator);
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    if (communicator == NULL) return ncclSuccess;
    emit_end(US_API_COMMUNICATOR_DESTROY, communicator);
    release(communicator);
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    if (communicator == NULL) return ncclSuccess;
    emit_end(US_API_COMMUNICATOR_ABORT, communicator);
    release(communicator);
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t communicator, int flags) {
    return communicator == NULL || flags != 0 ? ncclInvalidArgument : ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommSuspend(ncclComm_t communicator, int flags) {
    (void)flags;
    return communicator == NULL ? ncclInvalidArgument : ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommResume(ncclComm_t communicator) {
    return communicator == NULL ? ncclInvalidArgument : ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommMemStats(ncclComm_t communicator, int statistic, uint64_t *value) {
    if (communicator == NULL || value == NULL || statistic < 0 || statistic > 3) {
        return ncclInvalidArgument;
    }
    *value = 0;
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
    if (communicator == NULL || error == NULL) return ncclInvalidArgument;
    *error = ncclSuccess;
    return ncclSuccess;
}

#define US_COMMUNICATOR_GET(name, member)                                                          \
    US_EXPORT ncclResult_t name(const ncclComm_t communicator, int *value) {                       \
        if (communicator == NULL || value == NULL) return ncclInvalidArgument;                     \
        *value = communicator->member;                                                             \
        return ncclSuccess;                                                                        \
    }

US_COMMUNICATOR_GET(ncclCommCount, size)
US_COMMUNICATOR_GET(ncclCommUserRank, rank)
US_COMMUNICATOR_GET(ncclCommCuDevice, device)

US_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t communicator, void *buffer, size_t bytes,
                                        void **handle) {
    (void)bytes;
    if (communicator == NULL || buffer == NULL || handle == NULL) return ncclInvalidArgument;
    *handle = buffer;
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void *handle) {
    (void)handle;
    return communicator == NULL ? ncclInvalidArgument : ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void *buffer, size_t bytes,
                                              ncclWindow_t *window, int flags) {
    (void)bytes, (void)flags;
    if (communicator == NULL || window == NULL) return ncclInvalidArgument;
    *window = malloc(sizeof **window);
    if (*window == NULL) return ncclSystemError;
    (*window)->pointer = buffer;
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t window) {
    if (communicator == NULL) return ncclInvalidArgument;
    free(window);
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclWinGetUserPtr(ncclComm_t communicator, ncclWindow_t window,
                                         void **pointer) {
    if (communicator == NULL || window == NULL || pointer == NULL) return ncclInvalidArgument;
    *pointer = window->pointer;
    return ncclSuccess;
}

/* Reduction operators ------------------------------------------------------------------------ */

US_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *reduction, void *scalar,
                                                ncclDataType_t type, int residence,
                                                ncclComm_t communicator) {
    (void)residence;
    if (reduction == NULL || scalar == NULL || communicator == NULL || type < 0 ||
        type >= ncclNumTypes) {
        return ncclInvalidArgument;
    }
    uint64_t used = __atomic_load_n(&communicator->custom_operators, __ATOMIC_RELAXED);
    for (;;) {
        if (used == UINT64_MAX) return ncclInternalError;
        int slot = __builtin_ctzll(~used);
        if (__atomic_compare_exchange_n(&communicator->custom_operators, &used,
                                        used | (uint64_t)1 << slot, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            *reduction = ncclNumOps + slot;
            return ncclSuccess;
        }
    }
}

static bool is_custom_operator(ncclComm_t communicator, ncclRedOp_t reduction) {
    int slot = reduction - ncclNumOps;
    return slot >= 0 && slot < MAX_CUSTOM_OPERATORS &&
           (__atomic_load_n(&communicator->custom_operators, __ATOMIC_RELAXED) >> slot & 1);
}

US_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t reduction, ncclComm_t communicator) {
    if (communicator == NULL || !is_custom_operator(communicator, reduction)) {
        return ncclInvalidArgument;
    }
    uint64_t bit = (uint64_t)1 << (reduction - ncclNumOps);
    __atomic_fetch_and(&communicator->custom_operators, ~bit, __ATOMIC_RELAXED);
    return ncclSuccess;
}

/* Values of results: see the assumption at the top ------------------------------------------- */

static const void *at(const void *pointer, size_t offset) {
    return (const char *)pointer + offset;
}

static void replicate(const void *target, const void *source, size_t bytes, int copies) {
    if (bytes > US_VALUE_MAX_BYTES || bytes * (size_t)copies > 16 * US_VALUE_MAX_BYTES) {
        us_values_forget(target, bytes * (size_t)copies);
        return;
    }
    for (int i = 0; i < copies; i++) {
        const void *slot = at(target, (size_t)i * bytes);
        if (slot != source) us_values_copy(slot, source, bytes);
    }
}

#define US_SCALE(c_type)                                                                           \
    for (size_t i = 0; i < bytes / sizeof(c_type); i++) {                                          \
        c_type value;                                                                              \
        memcpy(&value, (char *)values + i * sizeof value, sizeof value);                           \
        value = (c_type)(value * (c_type)factor);                                                  \
        memcpy((char *)values + i * sizeof value, &value, sizeof value);                           \
    }

/* False for types that have no C arithmetic here. */
static bool scale(void *values, size_t bytes, ncclDataType_t type, int factor) {
    switch (type) {
    case ncclInt8:
    case ncclUint8: US_SCALE(uint8_t) return true;
    case ncclInt32:
    case ncclUint32: US_SCALE(uint32_t) return true;
    case ncclInt64:
    case ncclUint64: US_SCALE(uint64_t) return true;
    case ncclFloat32: US_SCALE(float) return true;
    case ncclFloat64: US_SCALE(double) return true;
    default: return false;
    }
}

static void reduce_values(ncclComm_t communicator, const void *send, const void *receive,
                          size_t bytes, ncclDataType_t type, ncclRedOp_t reduction) {
    if (bytes > US_VALUE_MAX_BYTES) {
        us_values_forget(receive, bytes);
        return;
    }
    if (receive != send) us_values_copy(receive, send, bytes);
    if (reduction != ncclSum || communicator->size == 1) return;
    unsigned char values[SUM_MAX_BYTES];
    if (bytes > sizeof values) return;
    us_values_read(receive, values, bytes);
    bool any = false;
    for (size_t i = 0; i < bytes; i++) any |= values[i] != 0;
    if (any && scale(values, bytes, type, communicator->size)) {
        us_values_write(receive, values, bytes);
    }
}

/* Collectives -------------------------------------------------------------------------------- */

static bool is_root(ncclComm_t communicator, int root) { return communicator->rank == root; }

static ncclResult_t collective(enum us_collective_kind kind, const void *send, const void *receive,
                               size_t count, ncclDataType_t type, ncclRedOp_t reduction, int root,
                               ncclComm_t communicator, cudaStream_t stream) {
    struct us_record record = us_record_begin(US_API_COLLECTIVE);
    if (communicator == NULL || type < 0 || type >= ncclNumTypes || root < 0 ||
        root >= communicator->size) {
        return ncclInvalidArgument;
    }
    if (reduction < 0 ||
        (reduction >= ncclNumOps && !is_custom_operator(communicator, reduction))) {
        return ncclInvalidArgument;
    }
    if (count == 0) return ncclSuccess; /* NCCL drops empty collectives, too */
    if (!has_buffers(communicator)) return ncclUnhandledCudaError;
    size_t bytes = count * type_bytes[type];
    bool at_root = is_root(communicator, root);
    bool reads = at_root || (kind != US_BROADCAST && kind != US_SCATTER);
    bool writes = at_root || (kind != US_REDUCE && kind != US_GATHER);
    if ((reads && send == NULL) || (writes && receive == NULL)) return ncclInvalidArgument;

    int size = communicator->size;
    size_t own = (size_t)communicator->rank * bytes;
    switch (kind) {
    case US_ALL_REDUCE:
        reduce_values(communicator, send, receive, bytes, type, reduction);
        break;
    case US_REDUCE:
        if (at_root) reduce_values(communicator, send, receive, bytes, type, reduction);
        break;
    case US_REDUCE_SCATTER:
        reduce_values(communicator, at(send, own), receive, bytes, type, reduction);
        break;
    case US_BROADCAST:
        if (at_root && send != receive) us_values_copy(receive, send, bytes);
        break;
    case US_ALL_GATHER: replicate(receive, send, bytes, size); break;
    case US_ALL_TO_ALL: replicate(receive, at(send, own), bytes, size); break;
    case US_GATHER:
        if (at_root) replicate(receive, send, bytes, size);
        break;
    case US_SCATTER:
        if (!at_root) us_values_forget(receive, bytes);
        else if (at(send, own) != receive) us_values_copy(receive, at(send, own), bytes);
        break;
    }

    record.stream = us_stream_number(stream);
    record.definition = definition_of(communicator);
    /* Numbers of custom operators depend on the order of creation: all are recorded as one. */
    uint64_t recorded_operator = (uint64_t)(reduction > ncclNumOps ? ncclNumOps : reduction);
    record.a = (uint64_t)kind | (uint64_t)(uint32_t)root << 8 | recorded_operator << 40;
    record.b = bytes;
    record.c = (uintptr_t)send;
    record.d = (uintptr_t)receive;
    record.flags = (uint32_t)type;
    us_emit(&record);
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
                                     ncclDataType_t type, ncclRedOp_t reduction,
                                     ncclComm_t communicator, cudaStream_t stream) {
    return collective(US_ALL_REDUCE, send, receive, count, type, reduction, 0, communicator,
                      stream);
}

US_EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count,
                                  ncclDataType_t type, ncclRedOp_t reduction, int root,
                                  ncclComm_t communicator, cudaStream_t stream) {
    return collective(US_REDUCE, send, receive, count, type, reduction, root, communicator, stream);
}

US_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count,
                                         ncclDataType_t type, ncclRedOp_t reduction,
                                         ncclComm_t communicator, cudaStream_t stream) {
    return collective(US_REDUCE_SCATTER, send, receive, count, type, reduction, 0, communicator,
                      stream);
}

US_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count,
                                     ncclDataType_t type, int root, ncclComm_t communicator,
                                     cudaStream_t stream) {
    return collective(US_BROADCAST, send, receive, count, type, ncclSum, root, communicator,
                      stream);
}

US_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t communicator, cudaStream_t stream) {
    return collective(US_BROADCAST, buffer, buffer, count, type, ncclSum, root, communicator,
                      stream);
}

US_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count,
                                     ncclDataType_t type, ncclComm_t communicator,
                                     cudaStream_t stream) {
    return collective(US_ALL_GATHER, send, receive, count, type, ncclSum, 0, communicator, stream);
}

US_EXPORT ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count,
                                    ncclDataType_t type, ncclComm_t communicator,
                                    cudaStream_t stream) {
    return collective(US_ALL_TO_ALL, send, receive, count, type, ncclSum, 0, communicator, stream);
}

US_EXPORT ncclResult_t ncclGather(const void *send, void *receive, size_t count,
                                  ncclDataType_t type, int root, ncclComm_t communicator,
                                  cudaStream_t stream) {
    return collective(US_GATHER, send, receive, count, type, ncclSum, root, communicator, stream);
}

US_EXPORT ncclResult_t ncclScatter(const void *send, void *receive, size_t count,
                                   ncclDataType_t type, int root, ncclComm_t communicator,
                                   cudaStream_t stream) {
    return collective(US_SCATTER, send, receive, count, type, ncclSum, root, communicator, stream);
}

/* Point to point ----------------------------------------------------------------------------- */

/* The bytes of a received message: this rank's message to itself when the group has one (an
   all-to-all), else one of the same size that it sends (a neighbour exchange), else unknown. */
static void deliver(const struct message *receive) {
    const struct message *found = NULL;
    for (size_t i = 0; i < group_message_count; i++) {
        const struct message *candidate = &group_messages[i];
        if (!candidate->is_send || candidate->communicator != receive->communicator ||
            candidate->bytes != receive->bytes) {
            continue;
        }
        if (found == NULL) found = candidate;
        if (candidate->peer == receive->own_rank) {
            found = candidate;
            break;
        }
    }
    if (found != NULL && receive->bytes <= US_VALUE_MAX_BYTES) {
        us_values_copy(receive->pointer, found->pointer, receive->bytes);
    } else {
        us_values_forget(receive->pointer, receive->bytes);
    }
}

static void remember(const struct message *message) {
    if (group_message_count == group_message_capacity && group_message_count < MAX_GROUP_MESSAGES) {
        size_t capacity = group_message_capacity == 0 ? 64 : group_message_capacity * 2;
        struct message *grown = realloc(group_messages, capacity * sizeof *grown);
        if (grown != NULL) {
            group_messages = grown;
            group_message_capacity = capacity;
        }
    }
    if (group_message_count < group_message_capacity) {
        group_messages[group_message_count++] = *message;
    } else if (!message->is_send) {
        us_values_forget(message->pointer, message->bytes);
    }
}

static void close_group(void) {
    for (size_t i = 0; i < group_message_count; i++) {
        if (!group_messages[i].is_send) deliver(&group_messages[i]);
    }
    free(group_messages);
    group_messages = NULL;
    group_message_count = group_message_capacity = 0;
}

static ncclResult_t point_to_point(bool is_send, const void *pointer, size_t count,
                                   ncclDataType_t type, int peer, ncclComm_t communicator,
                                   cudaStream_t stream) {
    struct us_record record = us_record_begin(is_send ? US_API_SEND : US_API_RECV);
    if (communicator == NULL || type < 0 || type >= ncclNumTypes || peer < 0 ||
        peer >= communicator->size || (pointer == NULL && count > 0)) {
        return ncclInvalidArgument;
    }
    if (!has_buffers(communicator)) return ncclUnhandledCudaError;
    size_t bytes = count * type_bytes[type];
    struct message message = {communicator, pointer, bytes, communicator->rank, peer, is_send};
    if (group_depth > 0) remember(&message);
    else if (!is_send) us_values_forget(pointer, bytes);
    record.stream = us_stream_number(stream);
    record.definition = definition_of(communicator);
    record.a = (uint64_t)peer;
    record.b = bytes;
    if (is_send) record.c = (uintptr_t)pointer;
    else record.d = (uintptr_t)pointer;
    record.flags = (uint32_t)type;
    us_emit(&record);
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclSend(const void *pointer, size_t count, ncclDataType_t type, int peer,
                                ncclComm_t communicator, cudaStream_t stream) {
    return point_to_point(true, pointer, count, type, peer, communicator, stream);
}

US_EXPORT ncclResult_t ncclRecv(void *pointer, size_t count, ncclDataType_t type, int peer,
                                ncclComm_t communicator, cudaStream_t stream) {
    return point_to_point(false, pointer, count, type, peer, communicator, stream);
}

/* Groups ------------------------------------------------------------------------------------- */

US_EXPORT ncclResult_t ncclGroupStart(void) {
    if (group_depth++ == 0) {
        struct us_record record = us_record_begin(US_API_GROUP_START);
        us_emit(&record);
    }
    return ncclSuccess;
}

static ncclResult_t end_group(void) {
    if (group_depth == 0) return ncclInvalidUsage;
    if (--group_depth == 0) {
        struct us_record record = us_record_begin(US_API_GROUP_END);
        close_group();
        us_emit(&record);
    }
    return ncclSuccess;
}

US_EXPORT ncclResult_t ncclGroupEnd(void) { return end_group(); }

US_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *information) {
    if (information != NULL) information->estimatedTime = 0.0f;
    return end_group();
}
