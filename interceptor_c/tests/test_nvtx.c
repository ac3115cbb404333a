/* NVTX: an imitation of its header's export table; ranges, marks and the marker's callback. */
#include <wchar.h>

#include "support.h"

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id));
void understudy_on_marker(const char *name, void (*callback)(void));

typedef void (*function)(void);

static function functions[6][16];
static function *tables[6][17];

static int module_functions(int module, function ***table, unsigned *size) {
    if (module != 1 && module != 5)
        return 0;
    for (int i = 0; i < 16; i++)
        tables[module][i] = &functions[module][i];
    *table = tables[module];
    *size = 16;
    return 1;
}

static struct {
    size_t bytes;
    int (*module_functions)(int, function ***, unsigned *);
} callbacks = {sizeof callbacks, module_functions};

static const void *export_table(uint32_t id) {
    return id == 1 ? &callbacks : NULL;
}

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type, reserved_message;
    const void *message;
};

static int calls;

static void called(void) {
    calls++;
}

#define CORE(number, type) ((type)(uintptr_t)functions[1][number])
#define DOMAIN(number, type) ((type)(uintptr_t)functions[5][number])

static int push(const char *text) {
    return CORE(9, int (*)(const char *))(text);
}

static int pop(void) {
    return CORE(11, int (*)(void))();
}

static void mark(const char *text) {
    CORE(2, void (*)(const char *))(text);
}

int main(void) {
    CHECK(InitializeInjectionNvtx2(NULL) == 0);
    CHECK(InitializeInjectionNvtx2(export_table) == 1);
    char folder[] = "/tmp/understudy-nvtx-XXXXXX", stem[64], path[80];
    CHECK(mkdtemp(folder));
    snprintf(stem, sizeof stem, "%s/t", folder);
    CHECK(understudy_trace_open(stem) == 0);

    CHECK(pop() == -2);
    understudy_on_marker("step", called);
    CHECK(push("outer") == 0 && push("step 12") == 1);
    CHECK(calls == 0);
    CHECK(pop() == 1 && calls == 1);
    CHECK(pop() == 0 && calls == 1);
    mark("step");
    mark("step#3");
    mark("step_4");
    CHECK(calls == 4);
    mark("stepping");
    mark("step 4 of 5");
    mark("ste");
    mark(NULL);
    CHECK(calls == 4);
    understudy_on_marker("layer1", called);
    mark("layer12");
    CHECK(calls == 4);
    mark("layer1");
    CHECK(calls == 5);
    understudy_on_marker("step", called);

    for (int i = 0; i < 100; i++) /* deeper than what is kept of names */
        CHECK(push("deep") == i);
    for (int i = 99; i >= 0; i--)
        CHECK(pop() == i);

    void *domain = DOMAIN(12, void *(*)(const char *))("mine");
    char *registered = DOMAIN(10, char *(*)(void *, const char *))(domain, "step");
    CHECK(domain && registered);
    struct attributes attributes = {.version = 3, .size = sizeof attributes, .message_type = 3,
                                    .message = registered};
    uint64_t first = DOMAIN(2, uint64_t (*)(void *, void *))(domain, &attributes);
    attributes.message_type = 2;
    attributes.message = L"wide";
    uint64_t second = DOMAIN(2, uint64_t (*)(void *, void *))(domain, &attributes);
    CHECK(first && second && first != second && calls == 5);
    DOMAIN(3, void (*)(void *, uint64_t))(domain, first);
    CHECK(calls == 6);
    DOMAIN(3, void (*)(void *, uint64_t))(domain, first); /* once only */
    DOMAIN(3, void (*)(void *, uint64_t))(domain, second);
    attributes.size = 8; /* of another version: no message */
    CHECK(DOMAIN(4, int (*)(void *, void *))(domain, &attributes) == 0);
    CHECK(DOMAIN(5, int (*)(void *))(domain) == 0);
    CHECK(calls == 6);
    free(registered);
    understudy_trace_close();

    snprintf(path, sizeof path, "%s.records", stem);
    FILE *file = fopen(path, "rb");
    struct us_file_header header;
    CHECK(file && fread(&header, sizeof header, 1, file) == 1);
    CHECK(header.entries == 4 + 9 + 200 + 4 + 2 && header.lost_entries == 0);
    struct us_record record;
    CHECK(fseek(file, US_HEADER_BYTES, SEEK_SET) == 0);
    CHECK(fread(&record, sizeof record, 1, file) == 1);
    CHECK(record.api == US_API_ANNOTATION && record.a == US_ANNOTATION_BEGIN && record.definition);
    fclose(file);
    unlink(path);
    snprintf(path, sizeof path, "%s.definitions", stem);
    unlink(path);
    rmdir(folder);
    return 0;
}
