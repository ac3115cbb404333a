/*
 * Looks kernels up in kernel tables (include/kernel_table.h): those of UNDERSTUDY_KERNEL_TABLES,
 * which are PyTorch's, and those of other libraries, extensions compiled by the script among them.
 * The latter are made when the first kernel of a library is used, by the Python that
 * UNDERSTUDY_TABLE_MAKER names, in the folder UNDERSTUDY_TABLE_CACHE.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"
#include "kernel_table.h"

#define MAX_TABLES 256

struct table {
    const struct us_ktab_header *header;
    const struct us_ktab_entry *entries;
    const struct us_parameter *parameters; /* same layout as us_ktab_parameter */
    const char *strings;
};
_Static_assert(sizeof(struct us_parameter) == sizeof(struct us_ktab_parameter), "same layout");

static struct table tables[MAX_TABLES];
static size_t table_count; /* grows while others read */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool map_table(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    size_t bytes = (size_t)status.st_size;
    void *base = bytes >= sizeof(struct us_ktab_header)
                     ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
    close(fd);
    if (base == MAP_FAILED)
        return false;
    const struct us_ktab_header *header = base;
    uint64_t fixed_bytes = sizeof *header +
                           (uint64_t)header->entry_count * sizeof(struct us_ktab_entry) +
                           (uint64_t)header->parameter_count * sizeof(struct us_ktab_parameter);
    if (memcmp(header->magic, US_KTAB_MAGIC, 8) || header->version != US_KTAB_VERSION ||
        fixed_bytes > bytes || header->string_bytes != bytes - fixed_bytes) {
        munmap(base, bytes);
        return false;
    }
    struct table *table = &tables[table_count];
    table->header = header;
    table->entries = (const void *)(header + 1);
    table->parameters = (const void *)(table->entries + header->entry_count);
    table->strings = (const char *)(table->parameters + header->parameter_count);
    __atomic_store_n(&table_count, table_count + 1, __ATOMIC_RELEASE);
    return true;
}

static void map_tables(void) {
    const char *list = getenv("UNDERSTUDY_KERNEL_TABLES");
    char *copy = list ? strdup(list) : NULL, *rest = copy;
    for (char *path; (path = strsep(&rest, ":")) && table_count < MAX_TABLES;)
        if (*path && !map_table(path))
            fprintf(stderr, "understudy: %s is not a kernel table of version %u\n", path,
                    US_KTAB_VERSION);
    free(copy);
}

static const struct us_ktab_entry *find(const struct table *table, uint64_t hash, const char *name,
                                        size_t name_bytes) {
    size_t low = 0, high = table->header->entry_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->entries[middle].name_hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < table->header->entry_count && table->entries[low].name_hash == hash; low++) {
        const struct us_ktab_entry *entry = &table->entries[low];
        if (entry->name_bytes == name_bytes &&
            (uint64_t)entry->name_offset + name_bytes <= table->header->string_bytes &&
            !memcmp(table->strings + entry->name_offset, name, name_bytes))
            return entry;
    }
    return NULL;
}

bool us_kernel_lookup(const char *name, size_t name_bytes, struct us_kernel_info *info) {
    pthread_once(&once, map_tables);
    uint64_t hash = us_hash(name, name_bytes);
    size_t count = __atomic_load_n(&table_count, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < count; i++) {
        const struct us_ktab_entry *entry = find(&tables[i], hash, name, name_bytes);
        if (!entry || (uint64_t)entry->first_parameter + entry->parameter_count >
                          tables[i].header->parameter_count)
            continue;
        *info = (struct us_kernel_info){
            .registers = entry->registers,
            .static_shared_bytes = entry->static_shared_bytes,
            .max_threads = entry->max_threads,
            .local_bytes = entry->local_bytes,
            .parameter_bytes = entry->parameter_bytes,
            .parameter_count = entry->parameter_count,
            .parameters = tables[i].parameters + entry->first_parameter,
        };
        return true;
    }
    return false;
}

/* Tables of other libraries --------------------------------------------------------------------- */

extern char **environ;

/* The environment without what would make the table maker a traced process; free() it. */
static char **maker_environment(void) {
    static const char *const dropped[] = {"LD_PRELOAD=", "LD_LIBRARY_PATH=", "RANK=", "PYTHON"};
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **variables = calloc(count + 1, sizeof *variables);
    for (size_t i = 0; variables && i < count; i++) {
        bool drop = false;
        for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++)
            drop |= !strncmp(environ[i], dropped[d], strlen(dropped[d]));
        if (!drop)
            variables[kept++] = environ[i];
    }
    return variables;
}

/* Runs the table maker; what it prints is the path of the table. Empty when there is none. */
static void make_table(const char *library, char *path, size_t bytes) {
    path[0] = 0;
    const char *python = getenv("UNDERSTUDY_TABLE_MAKER");
    const char *cache = getenv("UNDERSTUDY_TABLE_CACHE");
    int pipe_ends[2];
    if (!python || !cache || pipe2(pipe_ends, O_CLOEXEC))
        return;
    char capability[16];
    snprintf(capability, sizeof capability, "%d", us_compute_capability());
    const char *const arguments[] = {python,  "-I",       "-m",  "understudy.traces.kernel_table",
                                     library, capability, cache, NULL};
    char **variables = maker_environment();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
    pid_t pid = -1;
    int error = variables ? posix_spawn(&pid, python, &actions, NULL,
                                        (char *const *)(uintptr_t)arguments, variables)
                          : ENOMEM;
    posix_spawn_file_actions_destroy(&actions);
    free(variables);
    close(pipe_ends[1]);
    size_t used = 0;
    for (ssize_t part = 1; !error && part && used + 1 < bytes;) {
        part = read(pipe_ends[0], path + used, bytes - 1 - used);
        if (part > 0)
            used += (size_t)part;
        else if (part < 0 && errno != EINTR)
            part = 0;
    }
    close(pipe_ends[0]);
    path[used] = 0;
    path[strcspn(path, "\n")] = 0;
    if (!error)
        waitpid(pid, NULL, 0);
    else
        fprintf(stderr, "understudy: cannot run %s: %s\n", python, strerror(error));
}

/* Whether there is a new table after this: at the first call for the library that holds `inside`. */
bool us_kernels_of_library(const void *inside) {
    static us_lock lock;
    static const char *seen[MAX_TABLES];
    static size_t count;
    Dl_info library;
    if (!inside || !dladdr(inside, &library) || !library.dli_fname)
        return false;
    us_lock_take(&lock);
    bool known = count == MAX_TABLES || table_count == MAX_TABLES;
    for (size_t i = 0; i < count && !known; i++)
        known = !strcmp(seen[i], library.dli_fname);
    bool made = false;
    if (!known) {
        seen[count++] = strdup(library.dli_fname);
        char path[4096];
        make_table(library.dli_fname, path, sizeof path);
        made = path[0] && map_table(path);
    }
    us_lock_give(&lock);
    return made;
}
