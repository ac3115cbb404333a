/*
 * NVTX: ranges and marks become annotations of the trace. NVTX 3 is a header; at its first call it
 * opens the library that NVTX_INJECTION64_PATH names and calls InitializeInjectionNvtx2 there, which
 * fills in the functions it wants to stand behind (NVTX, nvtxDetail/nvtxInit.h and nvtxTypes.h).
 */
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "core.h"

#define MAX_DEPTH 64
#define MAX_TEXT 256

enum module { MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum { TABLE_CALLBACKS = 1 };
enum message_type { MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };

struct attributes { /* nvtxEventAttributes_t */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type, reserved_message;
    const void *message;
};

typedef void (*function)(void);

struct callbacks { /* NvtxExportTableCallbacks */
    size_t bytes;
    int (*module_functions)(int module, function ***table, unsigned *size);
};

struct text {
    char bytes[MAX_TEXT];
};

struct range { /* between nvtxRangeStart and nvtxRangeEnd */
    uint64_t id;
    struct text text;
    struct range *next;
};

static us_lock lock;
static struct range *ranges;
static uint64_t next_range = 1;
static __thread struct text *stack; /* of nvtxRangePush */
static __thread int depth;

static char marker[MAX_TEXT];
static void (*on_marker)(void);

/* `callback` is called whenever a range or mark of that name has ended; NULL: no more. */
US_EXPORT void understudy_on_marker(const char *name, void (*callback)(void)) {
    strncpy(marker, name, sizeof marker - 1);
    __atomic_store_n(&on_marker, callback, __ATOMIC_RELEASE);
}

/* A number at the end does not count: "step 12" and "ProfilerStep#12" are "step", "ProfilerStep". */
static bool is_marker(const char *text) {
    static const char digits[] = "0123456789";
    size_t bytes = strlen(marker);
    if (!bytes || strncmp(text, marker, bytes) != 0)
        return false;
    const char *rest = text + bytes;
    if (strchr(digits, rest[-1]) && *rest && strchr(digits, *rest))
        return false; /* "layer12" is not "layer1" */
    rest += strspn(rest, " #_:.-");
    rest += strspn(rest, digits);
    return !*rest;
}

static void annotate(const struct text *text, enum us_annotation kind) {
    us_annotate(text->bytes, strlen(text->bytes), kind);
    void (*callback)(void) = __atomic_load_n(&on_marker, __ATOMIC_ACQUIRE);
    if (kind != US_ANNOTATION_BEGIN && callback && is_marker(text->bytes))
        callback();
}

static struct text text_of(const char *ascii) {
    struct text text = {{0}};
    if (ascii)
        strncpy(text.bytes, ascii, sizeof text.bytes - 1);
    return text;
}

static struct text wide_text_of(const wchar_t *wide) {
    struct text text = {{0}};
    for (size_t i = 0; wide && wide[i] && i + 1 < sizeof text.bytes; i++)
        text.bytes[i] = wide[i] > 0 && wide[i] < 128 ? (char)wide[i] : '?';
    return text;
}

static struct text attribute_text(const struct attributes *attributes) {
    if (!attributes || attributes->size < sizeof *attributes)
        return text_of(NULL);
    switch (attributes->message_type) {
    case MESSAGE_UNICODE:
        return wide_text_of(attributes->message);
    case MESSAGE_ASCII:
    case MESSAGE_REGISTERED: /* a registered string is its own copy, see register_ascii */
        return text_of(attributes->message);
    default:
        return text_of(NULL);
    }
}

static int push(struct text text) {
    if (!stack)
        stack = calloc(MAX_DEPTH, sizeof *stack);
    if (stack && depth < MAX_DEPTH)
        stack[depth] = text;
    annotate(&text, US_ANNOTATION_BEGIN);
    return depth++;
}

static int pop(void) {
    if (depth == 0)
        return -2; /* NVTX_NO_PUSH_POP_TRACKING */
    depth--;
    struct text text = stack && depth < MAX_DEPTH ? stack[depth] : text_of(NULL);
    annotate(&text, US_ANNOTATION_END);
    return depth;
}

static uint64_t start(struct text text) {
    struct range *range = malloc(sizeof *range);
    if (!range)
        return 0;
    us_lock_take(&lock);
    uint64_t id = next_range++;
    *range = (struct range){id, text, ranges};
    ranges = range;
    us_lock_give(&lock);
    annotate(&text, US_ANNOTATION_BEGIN);
    return id;
}

static void end(uint64_t id) {
    us_lock_take(&lock);
    struct range **link = &ranges, *range;
    while ((range = *link) && range->id != id)
        link = &range->next;
    if (range)
        *link = range->next;
    us_lock_give(&lock);
    if (range)
        annotate(&range->text, US_ANNOTATION_END);
    free(range);
}

static void mark(struct text text) {
    annotate(&text, US_ANNOTATION_TEXT);
}

static void mark_ex(const struct attributes *attributes) {
    mark(attribute_text(attributes));
}

static void mark_ascii(const char *text) {
    mark(text_of(text));
}

static void mark_wide(const wchar_t *text) {
    mark(wide_text_of(text));
}

static uint64_t start_ex(const struct attributes *attributes) {
    return start(attribute_text(attributes));
}

static uint64_t start_ascii(const char *text) {
    return start(text_of(text));
}

static uint64_t start_wide(const wchar_t *text) {
    return start(wide_text_of(text));
}

static int push_ex(const struct attributes *attributes) {
    return push(attribute_text(attributes));
}

static int push_ascii(const char *text) {
    return push(text_of(text));
}

static int push_wide(const wchar_t *text) {
    return push(wide_text_of(text));
}

/* Domains (the nvtx package of Python, NCCL): all are one. */

static void domain_mark(void *domain, const struct attributes *attributes) {
    (void)domain;
    mark_ex(attributes);
}

static uint64_t domain_start(void *domain, const struct attributes *attributes) {
    (void)domain;
    return start_ex(attributes);
}

static void domain_end(void *domain, uint64_t id) {
    (void)domain;
    end(id);
}

static int domain_push(void *domain, const struct attributes *attributes) {
    (void)domain;
    return push_ex(attributes);
}

static int domain_pop(void *domain) {
    (void)domain;
    return pop();
}

/* Handles live as long as the process, as NVTX says they may. */
static void *register_ascii(void *domain, const char *string) {
    (void)domain;
    return string ? strdup(string) : NULL;
}

static void *register_wide(void *domain, const wchar_t *string) {
    (void)domain;
    struct text text = wide_text_of(string);
    return strdup(text.bytes);
}

static void *domain_create(const void *name) {
    static char domain;
    (void)name;
    return &domain;
}

struct entry {
    unsigned number;
    function function;
};

#define ENTRY(number, name) {number, (function)(uintptr_t)(name)}

static const struct entry core[] = {
    ENTRY(1, mark_ex),       ENTRY(2, mark_ascii), ENTRY(3, mark_wide),   ENTRY(4, start_ex),
    ENTRY(5, start_ascii),   ENTRY(6, start_wide), ENTRY(7, end),         ENTRY(8, push_ex),
    ENTRY(9, push_ascii),    ENTRY(10, push_wide), ENTRY(11, pop),
};

static const struct entry core2[] = {
    ENTRY(1, domain_mark),     ENTRY(2, domain_start),   ENTRY(3, domain_end),
    ENTRY(4, domain_push),     ENTRY(5, domain_pop),     ENTRY(10, register_ascii),
    ENTRY(11, register_wide),  ENTRY(12, domain_create), ENTRY(13, domain_create),
};

static bool attach(const struct callbacks *callbacks, enum module module,
                   const struct entry *entries, size_t count) {
    function **table;
    unsigned size;
    if (!callbacks->module_functions(module, &table, &size))
        return false;
    for (size_t i = 0; i < count; i++)
        if (entries[i].number < size && table[entries[i].number])
            *table[entries[i].number] = entries[i].function;
    return true;
}

/* NVTX calls this once per library that uses it; 1 = attached. */
US_EXPORT int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id)) {
    const struct callbacks *callbacks = export_table ? export_table(TABLE_CALLBACKS) : NULL;
    if (!callbacks || callbacks->bytes < sizeof *callbacks)
        return 0;
    return attach(callbacks, MODULE_CORE, core, sizeof core / sizeof *core) &&
           attach(callbacks, MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
}
