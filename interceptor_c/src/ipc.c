/*
 * Memory and events that processes share (CUDA Runtime API, "IPC" in Device Management). A handle
 * names the process that made it; opening it reserves addresses, and the memory stays counted where
 * it was allocated. What is known of shared memory's values stands in a memory file of the process
 * that allocated it: written whenever a handle is made, read whenever one is opened, which is when
 * PyTorch passes a tensor on. What the receiver writes stays its own.
 *
 * Memory of cuMemCreate is shared by file descriptors instead: the file holds the handle.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

#define MEMORY_MAGIC 0x55495043u
#define EVENT_MAGIC_IPC 0x55495645u
/* Values of shared memory beyond this are left out and read as 0. */
#define MAX_VALUE_BYTES (4ull << 20)

struct span {
    uint64_t start, bytes;
};

/* An entry of the values file, followed by its bytes. */
struct value {
    uint64_t start, bytes;
};

struct opened {
    struct us_shared_memory handle;
    uint64_t local;
    int references;
};

static us_lock lock;
static struct span *shared; /* allocations of this process that handles were made of */
static size_t shared_count, shared_capacity;
static struct opened *opened;
static size_t opened_count, opened_capacity;
static int values_file = -1;
static pid_t values_pid; /* a forked process must not write its parent's */

/* Room for one more element; false without memory. */
static bool grow(void **elements, size_t count, size_t *capacity, size_t element_bytes) {
    if (count < *capacity)
        return true;
    size_t grown = *capacity ? *capacity * 2 : 16;
    void *moved = realloc(*elements, grown * element_bytes);
    if (!moved)
        return false;
    *elements = moved;
    *capacity = grown;
    return true;
}

/* Values ---------------------------------------------------------------------------------------- */

struct snapshot {
    char *bytes;
    size_t used, capacity;
};

static void add_value(void *context, uint64_t start, const void *data, size_t bytes) {
    struct snapshot *snapshot = context;
    struct value value = {start, bytes};
    size_t needed = snapshot->used + sizeof value + bytes;
    if (needed > MAX_VALUE_BYTES)
        return;
    if (needed > snapshot->capacity) {
        size_t capacity = needed * 2;
        char *moved = realloc(snapshot->bytes, capacity);
        if (!moved)
            return;
        snapshot->bytes = moved;
        snapshot->capacity = capacity;
    }
    memcpy(snapshot->bytes + snapshot->used, &value, sizeof value);
    memcpy(snapshot->bytes + snapshot->used + sizeof value, data, bytes);
    snapshot->used = needed;
}

/* A file that holds the snapshot; -1 without one. */
static int file_of(const struct snapshot *snapshot) {
    int file = memfd_create("understudy-values", MFD_CLOEXEC);
    if (file >= 0 &&
        pwrite(file, snapshot->bytes, snapshot->used, 0) != (ssize_t)snapshot->used) {
        close(file);
        return -1;
    }
    return file;
}

/* The caller holds the lock. Returns the descriptor; -1: values stay unknown. */
static int write_values(void) {
    struct snapshot snapshot = {0};
    for (size_t i = 0; i < shared_count; i++)
        us_values_each((void *)(uintptr_t)shared[i].start, shared[i].bytes, &snapshot, add_value);
    int file = file_of(&snapshot);
    free(snapshot.bytes);
    if (file < 0)
        return -1;
    if (values_pid != getpid() || values_file < 0) {
        values_pid = getpid();
        values_file = file;
        return file;
    }
    /* A whole new file under the old number: readers open either the old values or the new ones. */
    dup3(file, values_file, O_CLOEXEC);
    close(file);
    return values_file;
}

/* Brings in what the other process knew of the part of its memory that is opened here. */
static void read_values(const struct opened *part) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", part->handle.pid, part->handle.file);
    int file = part->handle.file < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0)
        return;
    char *bytes = NULL;
    ssize_t size = -1;
    if (!fstat(file, &status) && (bytes = malloc((size_t)status.st_size + 1)))
        size = pread(file, bytes, (size_t)status.st_size, 0);
    close(file);
    us_values_forget((void *)(uintptr_t)part->local, part->handle.bytes);
    struct value value;
    for (ssize_t at = 0; at + (ssize_t)sizeof value <= size; at += (ssize_t)value.bytes) {
        memcpy(&value, bytes + at, sizeof value);
        at += (ssize_t)sizeof value;
        if (value.bytes > (uint64_t)(size - at))
            break;
        uint64_t offset = value.start - part->handle.start;
        if (offset < part->handle.bytes && value.bytes <= part->handle.bytes - offset)
            us_values_write((void *)(uintptr_t)(part->local + offset), bytes + at, value.bytes);
    }
    free(bytes);
}

/* Memory ---------------------------------------------------------------------------------------- */

/* From now on the values of this memory are among those that others can read. */
static struct us_shared_memory share(uint64_t start, uint64_t bytes, int device) {
    us_lock_take(&lock);
    size_t at = 0;
    while (at < shared_count && shared[at].start != start)
        at++;
    if (at == shared_count && grow((void **)&shared, at, &shared_capacity, sizeof *shared))
        shared_count++;
    if (at < shared_count)
        shared[at] = (struct span){start, bytes};
    struct us_shared_memory memory = {.magic = MEMORY_MAGIC,
                                      .pid = getpid(),
                                      .file = write_values(),
                                      .device = us_physical_device(device),
                                      .start = start,
                                      .bytes = bytes};
    us_lock_give(&lock);
    return memory;
}

static cudaError_t get_memory_handle(struct us_shared_memory *out, void *pointer) {
    void *base;
    size_t bytes;
    if (!out || !us_allocation_of(pointer, &base, &bytes))
        return cudaErrorInvalidValue;
    *out = share((uintptr_t)base, bytes, us_pointer_device(base));
    return cudaSuccess;
}

static int visible_device(int physical) {
    for (int device = 0; device < us_device_count(); device++)
        if (us_physical_device(device) == physical)
            return device;
    return -1;
}

static bool same_memory(const struct us_shared_memory *a, const struct us_shared_memory *b) {
    return a->pid == b->pid && a->start == b->start && a->bytes == b->bytes;
}

static cudaError_t open_memory(void **out, struct us_shared_memory handle) {
    if (!out)
        return cudaErrorInvalidValue;
    int device = visible_device(handle.device);
    if (handle.magic != MEMORY_MAGIC || (kill(handle.pid, 0) && handle.pid != getpid()))
        return cudaErrorInvalidResourceHandle;
    if (handle.pid == getpid())
        return cudaErrorDeviceUninitialized; /* "invalid device context", as the driver says */
    if (device < 0)
        return cudaErrorInvalidDevice;
    cudaError_t error = us_initialize();
    if (error)
        return error;
    us_lock_take(&lock);
    size_t at = 0;
    while (at < opened_count && !same_memory(&opened[at].handle, &handle))
        at++;
    if (at == opened_count) {
        void *local = us_reserve(device, handle.bytes, 0);
        if (!local || !grow((void **)&opened, at, &opened_capacity, sizeof *opened)) {
            us_lock_give(&lock);
            return cudaErrorMemoryAllocation;
        }
        opened[opened_count++] = (struct opened){handle, (uintptr_t)local, 0};
    }
    opened[at].handle.file = handle.file;
    opened[at].references++;
    read_values(&opened[at]);
    *out = (void *)(uintptr_t)opened[at].local;
    us_lock_give(&lock);
    return cudaSuccess;
}

static cudaError_t close_memory(void *pointer) {
    cudaError_t error = cudaErrorInvalidValue;
    us_lock_take(&lock);
    for (size_t i = 0; i < opened_count; i++) {
        if (opened[i].local != (uintptr_t)pointer)
            continue;
        error = cudaSuccess;
        if (--opened[i].references == 0) {
            us_values_forget(pointer, opened[i].handle.bytes);
            us_release(pointer);
            opened[i] = opened[--opened_count];
        }
        break;
    }
    us_lock_give(&lock);
    return error;
}

/* Memory of cuMemCreate ------------------------------------------------------------------------ */

int us_shared_export(void *start, uint64_t bytes) {
    struct us_shared_memory memory = share((uintptr_t)start, bytes, us_pointer_device(start));
    int file = memfd_create("understudy-memory", MFD_CLOEXEC);
    if (file >= 0 && pwrite(file, &memory, sizeof memory, 0) != (ssize_t)sizeof memory) {
        close(file);
        return -1;
    }
    return file;
}

bool us_shared_import(int file, struct us_shared_memory *memory, int *device) {
    if (pread(file, memory, sizeof *memory, 0) != (ssize_t)sizeof *memory ||
        memory->magic != MEMORY_MAGIC)
        return false;
    *device = visible_device(memory->device);
    return *device >= 0;
}

bool us_shared_map(const struct us_shared_memory *memory, void *local) {
    us_lock_take(&lock);
    bool fits = grow((void **)&opened, opened_count, &opened_capacity, sizeof *opened);
    if (fits) {
        opened[opened_count++] = (struct opened){*memory, (uintptr_t)local, 1};
        read_values(&opened[opened_count - 1]);
    }
    us_lock_give(&lock);
    return fits;
}

void us_shared_unmap(void *local) {
    us_lock_take(&lock);
    size_t at = 0;
    while (at < opened_count && opened[at].local != (uintptr_t)local)
        at++;
    if (at < opened_count)
        opened[at] = opened[--opened_count];
    us_lock_give(&lock);
}

/* Events: their work has ended, so only the values that it left have to travel. ------------------ */

static cudaError_t get_event_handle(struct us_shared_memory *out, cudaEvent_t event) {
    unsigned flags;
    if (!out)
        return cudaErrorInvalidValue;
    if (!us_event_flags(event, &flags))
        return cudaErrorInvalidResourceHandle;
    if (!(flags & cudaEventInterprocess))
        return cudaErrorInvalidResourceHandle;
    us_lock_take(&lock);
    *out = (struct us_shared_memory){.magic = EVENT_MAGIC_IPC, .pid = getpid(), .file = write_values()};
    us_lock_give(&lock);
    return cudaSuccess;
}

static cudaError_t open_event(cudaEvent_t *out, struct us_shared_memory handle) {
    if (!out)
        return cudaErrorInvalidValue;
    if (handle.magic != EVENT_MAGIC_IPC || kill(handle.pid, 0))
        return cudaErrorInvalidResourceHandle;
    cudaError_t error = us_initialize();
    if (error)
        return error;
    us_lock_take(&lock);
    for (size_t i = 0; i < opened_count; i++)
        if (opened[i].handle.pid == handle.pid)
            read_values(&opened[i]);
    us_lock_give(&lock);
    return us_event_create(out, cudaEventInterprocess | cudaEventDisableTiming);
}

/* Runtime and driver API ------------------------------------------------------------------------ */

US_EXPORT cudaError_t cudaIpcGetMemHandle(struct us_shared_memory *handle, void *pointer) {
    return us_error(get_memory_handle(handle, pointer));
}

US_EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, struct us_shared_memory handle, unsigned flags) {
    (void)flags;
    return us_error(open_memory(pointer, handle));
}

US_EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    return us_error(close_memory(pointer));
}

US_EXPORT cudaError_t cudaIpcGetEventHandle(struct us_shared_memory *handle, cudaEvent_t event) {
    return us_error(get_event_handle(handle, event));
}

US_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, struct us_shared_memory handle) {
    return us_error(open_event(event, handle));
}

US_EXPORT CUresult cuIpcGetMemHandle(struct us_shared_memory *handle, CUdeviceptr pointer) {
    return get_memory_handle(handle, (void *)(uintptr_t)pointer);
}

US_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, struct us_shared_memory handle,
                                         unsigned flags) {
    void *opened_at = NULL;
    (void)flags;
    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = open_memory(&opened_at, handle);
    *pointer = (uintptr_t)opened_at;
    return result;
}

US_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    return close_memory((void *)(uintptr_t)pointer);
}

US_EXPORT CUresult cuIpcGetEventHandle(struct us_shared_memory *handle, CUevent event) {
    return get_event_handle(handle, event);
}

US_EXPORT CUresult cuIpcOpenEventHandle(CUevent *event, struct us_shared_memory handle) {
    return open_event(event, handle);
}
