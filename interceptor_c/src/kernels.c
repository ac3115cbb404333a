/* Looks kernels up in the tables of UNDERSTUDY_KERNEL_TABLES (include/kernel_table.h). */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"
#include "kernel_table.h"

#define MAX_TABLES 32

struct table {
    const struct us_ktab_header *header;
    const struct us_ktab_entry *entries;
    const struct us_parameter *parameters; /* same layout as us_ktab_parameter */
    const char *strings;
};
_Static_assert(sizeof(struct us_parameter) == sizeof(struct us_ktab_parameter), "same layout");

static struct table tables[MAX_TABLES];
static size_t table_count;
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
    uint64_t expected = sizeof *header +
                        (uint64_t)header->entry_count * sizeof(struct us_ktab_entry) +
                        (uint64_t)header->parameter_count * sizeof(struct us_ktab_parameter) +
                        header->string_bytes;
    if (memcmp(header->magic, US_KTAB_MAGIC, 8) || header->version != US_KTAB_VERSION ||
        expected != bytes) {
        munmap(base, bytes);
        return false;
    }
    struct table *table = &tables[table_count++];
    table->header = header;
    table->entries = (const void *)(header + 1);
    table->parameters = (const void *)(table->entries + header->entry_count);
    table->strings = (const char *)(table->parameters + header->parameter_count);
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
    for (size_t i = 0; i < table_count; i++) {
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
