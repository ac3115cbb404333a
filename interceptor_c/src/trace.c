/*
 * The trace writer: two files mapped once over a large range of addresses and extended before use,
 * so that appending is a store and a full disk is an error code.
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"

#define MAP_BYTES (64ull << 30) /* of address space per file */
#define GROW_BYTES (1ull << 20)
#define KINDS 10

struct trace_file {
    int fd;
    char *base;
    uint64_t allocated_bytes;
};

/* Open addressing; readers need no lock because slots only go from empty to set. */
struct intern_slot {
    uint64_t hash;   /* 0 = empty */
    uint64_t offset; /* of the definition in its file */
};

struct intern_table {
    uint64_t mask;
    struct intern_table *smaller; /* what this one replaced; another thread may be reading it */
    struct intern_slot slots[];
};

bool us_trace_is_open;
static struct trace_file records_file = {.fd = -1}, definitions_file = {.fd = -1};
static us_lock records_lock, definitions_lock;
static struct intern_table *intern;
static uint64_t intern_count;
static uint32_t next_id[KINDS];
static uint32_t generation; /* of the trace; thread ids belong to one */
static uint64_t iteration;
static __thread uint32_t thread_generation;
static __thread uint16_t thread_id;

static struct us_file_header *header_of(const struct trace_file *file) {
    return (struct us_file_header *)file->base;
}

uint64_t us_hash(const void *bytes, size_t count) {
    const unsigned char *byte = bytes;
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ byte[i]) * 1099511628211ull;
    return hash;
}

static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t word_at(const char *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* For interning, in the manner of wyhash: 16 bytes per multiplication in two independent lanes,
   since arguments reach 30 KB. */
static uint64_t content_hash(uint32_t kind, const void *payload, size_t bytes) {
    static const uint64_t k0 = 0xa0761d6478bd642full, k1 = 0xe7037ed1a0b428dbull,
                          k2 = 0x8ebc6af09c88c6e3ull;
    const char *at = payload;
    uint64_t first = kind ^ k0, second = bytes ^ k1;
    size_t left = bytes;
    for (; left >= 32; left -= 32, at += 32) {
        first = fold(word_at(at) ^ k0, word_at(at + 8) ^ first);
        second = fold(word_at(at + 16) ^ k1, word_at(at + 24) ^ second);
    }
    char tail[32] = {0};
    if (left) {
        memcpy(tail, at, left);
        first = fold(word_at(tail) ^ k0, word_at(tail + 8) ^ first);
        second = fold(word_at(tail + 16) ^ k1, word_at(tail + 24) ^ second);
    }
    uint64_t hash = fold(first ^ k2, second ^ k0);
    return hash ? hash : 1;
}

/* Writing zeros reserves the blocks as posix_fallocate does, at a third of its price on ext4, where
   the first store into each page of fallocated space is slow. */
static bool extend(const struct trace_file *file, uint64_t size) {
    static const char zeros[1 << 16];
    for (uint64_t at = file->allocated_bytes; at < size;) {
        uint64_t part = size - at < sizeof zeros ? size - at : sizeof zeros;
        ssize_t written = pwrite(file->fd, zeros, part, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += (uint64_t)written;
    }
    return true;
}

/* Makes room for `bytes` more; false when the disk is full. Locked by the caller. */
static bool ensure(struct trace_file *file, uint64_t bytes) {
    uint64_t needed = header_of(file)->used_bytes + bytes;
    if (__builtin_expect(needed <= file->allocated_bytes, 1))
        return true;
    uint64_t size = (needed + GROW_BYTES - 1) / GROW_BYTES * GROW_BYTES;
    if (size > MAP_BYTES || !extend(file, size)) {
        size = (needed + 4095) / 4096 * 4096; /* the last pages of a nearly full disk */
        if (size > MAP_BYTES || !extend(file, size))
            return false;
    }
#ifdef MADV_POPULATE_WRITE
    madvise(file->base + file->allocated_bytes, size - file->allocated_bytes, MADV_POPULATE_WRITE);
#endif
    file->allocated_bytes = size;
    return true;
}

static struct us_definition *definition_at(uint64_t offset) {
    return (struct us_definition *)(definitions_file.base + offset);
}

static uint32_t find(const struct intern_table *table, uint64_t hash, uint32_t kind,
                     const void *payload, size_t bytes) {
    for (uint64_t i = hash & table->mask;; i = (i + 1) & table->mask) {
        uint64_t found = __atomic_load_n(&table->slots[i].hash, __ATOMIC_ACQUIRE);
        if (!found)
            return 0;
        if (found != hash)
            continue;
        const struct us_definition *definition = definition_at(table->slots[i].offset);
        if (definition->kind == kind && definition->payload_bytes == bytes &&
            !memcmp(definition + 1, payload, bytes))
            return definition->id;
    }
}

static void insert(struct intern_table *table, uint64_t hash, uint64_t offset) {
    uint64_t i = hash & table->mask;
    while (table->slots[i].hash)
        i = (i + 1) & table->mask;
    table->slots[i].offset = offset;
    __atomic_store_n(&table->slots[i].hash, hash, __ATOMIC_RELEASE);
}

static struct intern_table *new_table(uint64_t slots) {
    struct intern_table *table = calloc(1, sizeof *table + slots * sizeof table->slots[0]);
    if (table)
        table->mask = slots - 1;
    return table;
}

static void grow_table(void) {
    if (intern_count * 2 < intern->mask)
        return;
    struct intern_table *table = new_table((intern->mask + 1) * 2);
    if (!table)
        return;
    for (uint64_t i = 0; i <= intern->mask; i++)
        if (intern->slots[i].hash)
            insert(table, intern->slots[i].hash, intern->slots[i].offset);
    table->smaller = intern;
    __atomic_store_n(&intern, table, __ATOMIC_RELEASE);
}

/* Appends; locked by the caller. Returns the offset, 0 when the disk is full. */
static uint64_t append_definition(uint32_t kind, uint32_t id, const void *payload, size_t bytes) {
    size_t size = (sizeof(struct us_definition) + bytes + 7) & ~(size_t)7;
    if (!us_tracing())
        return 0;
    struct us_file_header *header = header_of(&definitions_file);
    if (!ensure(&definitions_file, size)) {
        header->lost_entries++;
        return 0;
    }
    uint64_t offset = header->used_bytes;
    struct us_definition *definition = definition_at(offset);
    *definition = (struct us_definition){(uint32_t)size, kind, id, (uint32_t)bytes};
    memcpy(definition + 1, payload, bytes);
    header->entries++;
    __atomic_store_n(&header->used_bytes, offset + size, __ATOMIC_RELEASE);
    return offset;
}

uint32_t us_define(enum us_definition_kind kind, const void *payload, size_t bytes) {
    if (!us_tracing())
        return 0;
    uint64_t hash = content_hash(kind, payload, bytes);
    uint32_t id = find(__atomic_load_n(&intern, __ATOMIC_ACQUIRE), hash, kind, payload, bytes);
    if (id)
        return id;
    us_lock_take(&definitions_lock);
    id = find(intern, hash, kind, payload, bytes);
    if (!id) {
        uint64_t offset = append_definition(kind, next_id[kind] + 1, payload, bytes);
        if (offset) {
            id = ++next_id[kind];
            insert(intern, hash, offset);
            intern_count++;
            grow_table();
        }
    }
    us_lock_give(&definitions_lock);
    return id;
}

uint32_t us_define_new(enum us_definition_kind kind, const void *payload, size_t bytes) {
    if (!us_tracing())
        return 0;
    us_lock_take(&definitions_lock);
    uint32_t id = append_definition(kind, next_id[kind] + 1, payload, bytes) ? ++next_id[kind] : 0;
    us_lock_give(&definitions_lock);
    return id;
}

void us_define_stream(uint32_t number, const struct us_stream *stream) {
    if (!us_tracing())
        return;
    us_lock_take(&definitions_lock);
    append_definition(US_DEFINITION_STREAM, number, stream, sizeof *stream);
    us_lock_give(&definitions_lock);
}

static uint16_t define_thread(void) {
    struct us_thread thread = {.os_thread = (uint32_t)syscall(SYS_gettid)};
    thread.is_main = thread.os_thread == (uint32_t)getpid();
    pthread_getname_np(pthread_self(), thread.name, sizeof thread.name);
    thread_id = (uint16_t)us_define_new(US_DEFINITION_THREAD, &thread, sizeof thread);
    thread_generation = generation;
    return thread_id;
}

struct us_record us_record_begin(enum us_api api) {
    struct us_record record = {.api = (uint16_t)api};
    if (us_tracing()) {
        record.begin_ns = us_now_ns();
        record.device = (uint32_t)us_current_device();
        record.thread =
            __builtin_expect(thread_generation == generation, 1) ? thread_id : define_thread();
    }
    return record;
}

void us_emit(struct us_record *record) {
    /* begin_ns is 0 when the trace was opened after the call had begun. */
    if (!us_tracing() || !record->begin_ns)
        return;
    us_lock_take(&records_lock);
    struct us_file_header *header = header_of(&records_file);
    if (us_tracing()) {
        if (ensure(&records_file, sizeof *record)) {
            uint64_t inside = us_now_ns() - record->begin_ns;
            record->inside_ns = inside > UINT32_MAX ? UINT32_MAX : (uint32_t)inside;
            memcpy(records_file.base + header->used_bytes, record, sizeof *record);
            header->entries++;
            __atomic_store_n(&header->used_bytes, header->used_bytes + sizeof *record,
                             __ATOMIC_RELEASE);
        } else {
            header->lost_entries++;
        }
    }
    us_lock_give(&records_lock);
}

int us_unsupported(const char *name, int code) {
    static us_lock lock;
    static const char *seen[4096];
    static size_t count;
    bool first = true;
    us_lock_take(&lock);
    for (size_t i = 0; i < count && first; i++)
        first = strcmp(seen[i], name) != 0;
    if (first && count < sizeof seen / sizeof *seen)
        seen[count++] = name;
    us_lock_give(&lock);
    if (first) {
        if (getenv("UNDERSTUDY_VERBOSE"))
            fprintf(stderr, "understudy: %s is not supported, returned %d\n", name, code);
        struct us_record record = us_record_begin(US_API_UNSUPPORTED);
        record.definition = us_define(US_DEFINITION_TEXT, name, strlen(name));
        us_emit(&record);
    }
    return code;
}

uint32_t us_trace_generation(void) {
    return generation;
}

int us_compute_capability(void) {
    return us_device()->compute_capability_major * 10 + us_device()->compute_capability_minor;
}

/* The build id of this library, from its program headers. */
static int find_build_id(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    bool own = false;
    uintptr_t here = (uintptr_t)&find_build_id;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        own |= segment->p_type == PT_LOAD && here >= start && here < start + segment->p_memsz;
    }
    for (int i = 0; own && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE)
            continue;
        const char *at = (const char *)(info->dlpi_addr + segment->p_vaddr);
        const char *end = at + segment->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const unsigned char *bytes =
                (const unsigned char *)(note + 1) + ((note->n_namesz + 3) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz <= 31)
                for (unsigned b = 0; b < note->n_descsz; b++)
                    sprintf((char *)out + 2 * b, "%02x", bytes[b]);
            at = (const char *)bytes + ((note->n_descsz + 3) & ~3u);
        }
    }
    return own;
}

static int environment_number(const char *name) {
    const char *value = getenv(name);
    return value && *value ? atoi(value) : -1;
}

static int open_file(struct trace_file *file, const char *stem, const char *suffix, uint64_t magic,
                     uint32_t entry_bytes) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s%s", stem, suffix) >= sizeof path)
        return ENAMETOOLONG;
    file->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file->fd < 0)
        return errno;
    if (!extend(file, US_HEADER_BYTES))
        return errno;
    void *base = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      file->fd, 0);
    if (base == MAP_FAILED)
        return errno;
    madvise(base, MAP_BYTES, MADV_DONTFORK);
    file->base = base;
    file->allocated_bytes = US_HEADER_BYTES;
    struct us_file_header *header = base;
    *header = (struct us_file_header){
        .magic = magic,
        .version = US_FORMAT_VERSION,
        .header_bytes = US_HEADER_BYTES,
        .used_bytes = US_HEADER_BYTES,
        .entry_bytes = entry_bytes,
        .pid = (uint32_t)getpid(),
        .rank = environment_number("RANK"),
        .world_size = environment_number("WORLD_SIZE"),
        .compute_capability = (uint32_t)us_compute_capability(),
        .memory_bytes = us_device()->memory_bytes,
    };
    memcpy(header->device, us_device()->id, sizeof header->device);
    dl_iterate_phdr(find_build_id, header->build_id);
    return 0;
}

/* The mapping stays: another thread may be looking a definition up. */
static void close_file(struct trace_file *file) {
    if (file->base) {
        uint64_t used = header_of(file)->used_bytes;
        header_of(file)->closed = 1;
        /* Give back the preallocated tail; without it a reader sees zeros, so an error is harmless. */
        if (ftruncate(file->fd, (off_t)used) != 0)
            errno = 0;
    }
    if (file->fd >= 0)
        close(file->fd);
    *file = (struct trace_file){.fd = -1};
}

/* What one record costs its caller outside [begin, begin + inside]: best of some batches. */
static void calibrate(void) {
    enum { BATCHES = 16, RECORDS = 64 };
    struct us_file_header *header = header_of(&records_file);
    uint64_t start_bytes = header->used_bytes, best = UINT64_MAX;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t inside = 0, begin = us_now_ns();
        for (int i = 0; i < RECORDS; i++) {
            struct us_record record = us_record_begin(US_API_NONE);
            us_emit(&record);
            inside += record.inside_ns;
        }
        uint64_t total = us_now_ns() - begin;
        uint64_t each = total > inside ? (total - inside) / RECORDS : 0;
        best = each < best ? each : best;
    }
    us_lock_take(&records_lock);
    memset(records_file.base + start_bytes, 0, header->used_bytes - start_bytes);
    header->used_bytes = start_bytes;
    header->entries = 0;
    header->lost_entries = 0;
    header->overhead_ns = best;
    header_of(&definitions_file)->overhead_ns = best;
    us_lock_give(&records_lock);
}

/* A forked child has no mapping any more and may have inherited a taken lock. */
static void in_child(void) {
    __atomic_store_n(&us_trace_is_open, false, __ATOMIC_RELAXED);
    us_lock_give(&records_lock);
    us_lock_give(&definitions_lock);
    records_file = definitions_file = (struct trace_file){.fd = -1};
}

/* A rank ends with its parent: torchrun starts ranks in sessions of their own, so that a killed
   launcher would leave them. What a rank starts may outlive the thread that started it. */
int us_trace_open(const char *stem, bool ends_with_parent) {
    static bool atfork_done;
    if (us_tracing())
        return EBUSY;
    if (!stem || !*stem)
        return EINVAL;
    us_clock_start();
    int error = open_file(&definitions_file, stem, ".definitions", US_DEFINITIONS_MAGIC, 0);
    if (!error)
        error = open_file(&records_file, stem, ".records", US_RECORDS_MAGIC,
                          sizeof(struct us_record));
    if (!error && !intern && !(intern = new_table(1 << 14)))
        error = ENOMEM;
    if (error) {
        close_file(&definitions_file);
        close_file(&records_file);
        return error;
    }
    if (!atfork_done)
        pthread_atfork(NULL, NULL, in_child);
    atfork_done = true;
    if (ends_with_parent)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(next_id, 0, sizeof next_id);
    memset(intern->slots, 0, (intern->mask + 1) * sizeof intern->slots[0]);
    intern_count = 0;
    iteration = 0;
    generation++;
    __atomic_store_n(&us_trace_is_open, true, __ATOMIC_RELEASE);
    calibrate();
    us_streams_define_all();
    return 0;
}

/* Starts the trace <stem>.records and <stem>.definitions; 0 or an errno value. */
US_EXPORT int understudy_trace_open(const char *stem) {
    return us_trace_open(stem, true);
}

US_EXPORT void understudy_trace_close(void) {
    if (!us_tracing())
        return;
    us_lock_take(&definitions_lock);
    us_lock_take(&records_lock);
    __atomic_store_n(&us_trace_is_open, false, __ATOMIC_RELEASE);
    close_file(&records_file);
    close_file(&definitions_file);
    us_lock_give(&records_lock);
    us_lock_give(&definitions_lock);
}

US_EXPORT void understudy_mark(unsigned source, unsigned number) {
    struct us_record record = us_record_begin(US_API_ITERATION);
    record.a = __atomic_fetch_add(&iteration, 1, __ATOMIC_RELAXED);
    record.b = number;
    record.flags = source;
    us_emit(&record);
}

US_EXPORT void understudy_mark_iteration(void) {
    understudy_mark(US_MARK_STEP, 0);
}

void us_annotate(const char *text, size_t bytes, enum us_annotation kind) {
    struct us_record record = us_record_begin(US_API_ANNOTATION);
    record.definition = us_define(US_DEFINITION_TEXT, text, bytes);
    record.a = kind;
    us_emit(&record);
}

US_EXPORT void understudy_annotate(const char *text) {
    us_annotate(text, strlen(text), US_ANNOTATION_TEXT);
}

US_EXPORT void understudy_annotate_range(const char *text, int begins) {
    us_annotate(text, strlen(text), begins ? US_ANNOTATION_BEGIN : US_ANNOTATION_END);
}

void us_memory_role(const void *start, enum us_memory_role role) {
    struct us_record record = us_record_begin(US_API_MEMORY_ROLE);
    record.a = (uintptr_t)start;
    record.b = role;
    us_emit(&record);
}

/* `begin_ns` (CLOCK_MONOTONIC): when the caller began to look for the blocks. It does so for the
   trace's sake alone, so the first record counts that time as spent inside. */
US_EXPORT void understudy_memory_roles(const uint64_t *starts, size_t count, unsigned role,
                                       uint64_t begin_ns) {
    for (size_t i = 0; i < count; i++) {
        struct us_record record = us_record_begin(US_API_MEMORY_ROLE);
        if (i == 0 && begin_ns < record.begin_ns)
            record.begin_ns = begin_ns;
        record.a = starts[i];
        record.b = role;
        us_emit(&record);
    }
}

US_EXPORT void understudy_memory_peaks(int device, uint64_t allocated_bytes,
                                       uint64_t reserved_bytes) {
    struct us_record record = us_record_begin(US_API_MEMORY_PEAKS);
    record.a = allocated_bytes;
    record.b = reserved_bytes;
    record.device = (uint32_t)device;
    us_emit(&record);
}

/* Plain programs start their trace by environment; children must not overwrite it. */
__attribute__((constructor)) static void open_from_environment(void) {
    const char *stem = getenv("UNDERSTUDY_TRACE");
    if (!stem || !*stem)
        return;
    int error = understudy_trace_open(stem);
    if (error)
        fprintf(stderr, "understudy: cannot write trace %s: %s\n", stem, strerror(error));
    unsetenv("UNDERSTUDY_TRACE");
}

__attribute__((destructor)) static void close_at_exit(void) {
    understudy_trace_close();
}
