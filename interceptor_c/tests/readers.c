/*
 * Reads files as the interceptor does and prints what it found; tests/interceptor/test_readers.py
 * gives it damaged ones. Linked from the objects, since the readers are not exported.
 *
 *     readers fatbin|cubin|ptx|source FILE...
 *     readers tables NAME,NAME... TABLE...
 *
 * A line per file (`tables`: per name). Each file lies in memory of exactly its size, so that the
 * address sanitizer sees the first byte that is read behind it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "cuda_source.h"
#include "ptx.h"

struct content {
    char *data;
    size_t bytes;
};

/* With `terminated`, a NUL follows that is not counted. */
static struct content read_file(const char *path, bool terminated) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(path);
        exit(2);
    }
    struct content content = {.bytes = (size_t)ftell(file)};
    rewind(file);
    content.data = calloc(1, content.bytes + (terminated ? 1 : 0) + (content.bytes ? 0 : 1));
    if (!content.data || fread(content.data, 1, content.bytes, file) != content.bytes) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return content;
}

static void print_kernel(const char *name, const struct us_kernel_info *info) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < info->parameter_count; i++)
        bytes += info->parameters[i].size_bytes;
    printf(" %s:%u:%u:%llu", name, info->registers, info->parameter_count,
           (unsigned long long)bytes);
}

static void read_fatbin(struct content content) {
    struct {
        uint32_t magic, version;
        const void *data;
        void *file_name;
    } wrapper = {0x466243b1u, 1, content.data, NULL};
    printf(" %d", us_fatbin_has_device(us_fatbin_register(&wrapper)));
}

static void read_cubin(struct content content) {
    struct us_cubin *cubin = us_cubin_parse(content.data, content.bytes);
    for (size_t i = 0; cubin && i < us_cubin_count(cubin); i++) {
        struct us_kernel_info info;
        const char *name = us_cubin_kernel(cubin, i, &info);
        print_kernel(name, &info);
    }
    if (cubin)
        us_cubin_free(cubin);
}

static void read_ptx(struct content content) {
    static const char *const names[] = {"scale", "fill"};
    struct us_ptx *ptx = us_ptx_parse(content.data, content.bytes);
    struct us_kernel_info info;
    for (size_t i = 0; ptx && i < sizeof names / sizeof *names; i++)
        if (us_ptx_kernel(ptx, names[i], &info))
            print_kernel(names[i], &info);
    us_ptx_free(ptx);
}

static void read_source(struct content content) {
    char *clean = us_source_clean(content.data);
    const char *at = clean;
    struct us_source_kernel kernel;
    while (at && us_source_kernel(clean, &at, "float, 4", &kernel))
        printf(" %s:%u", kernel.name, kernel.has_parameters ? kernel.parameter_count : 0);
    free(clean);
}

static void read_tables(char *names, char **paths) {
    char list[65536] = "";
    for (size_t used = 0; *paths; paths++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s:", *paths);
    setenv("UNDERSTUDY_KERNEL_TABLES", list, 1);
    for (char *name; (name = strsep(&names, ","));) {
        struct us_kernel_info info;
        if (us_kernel_lookup(name, strlen(name), &info))
            print_kernel(name, &info);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "tables")) {
        read_tables(argv[2], argv + 3);
        return 0;
    }
    static const struct {
        const char *name;
        void (*read)(struct content content);
    } readers[] = {{"fatbin", read_fatbin}, {"cubin", read_cubin}, {"ptx", read_ptx},
                   {"source", read_source}};
    for (size_t r = 0; r < sizeof readers / sizeof *readers; r++)
        for (int i = 2; i < argc && !strcmp(argv[1], readers[r].name); i++) {
            struct content content = read_file(argv[i], readers[r].read == read_source);
            printf("%s", readers[r].name);
            readers[r].read(content);
            printf("\n");
            free(content.data);
        }
    return 0;
}
