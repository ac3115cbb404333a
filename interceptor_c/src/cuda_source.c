/*
 * Reads `__global__` signatures out of CUDA C++ source. This is no compiler: it knows the built-in
 * types, pointers, aliases (`using`, `typedef`), template arguments and the few structures that
 * PyTorch passes to the kernels it compiles at run time (aten/src/ATen/native/cuda/jit_utils.cpp
 * and reduction_template.cuh of PyTorch 2.14). A kernel with any other parameter has none.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_source.h"

enum { MAX_DEPTH = 16, MAX_ARGUMENTS = 16, MAX_NUMBER = 1 << 20 };
/* jit_utils.cpp: MAX_DIMS of an offset calculator; an IntDivider is three unsigned ints. */
enum { TENSOR_DIMS = 25, DIVIDER_BYTES = 12 };

struct slice {
    const char *at;
    size_t length;
};

struct context {
    const char *source;
    struct slice names[MAX_ARGUMENTS], values[MAX_ARGUMENTS]; /* of the template */
    size_t count;
};

struct layout {
    uint32_t bytes, alignment;
};

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static struct slice trim(struct slice s) {
    while (s.length > 0 && isspace((unsigned char)s.at[0])) s.at++, s.length--;
    while (s.length > 0 && isspace((unsigned char)s.at[s.length - 1])) s.length--;
    return s;
}

static bool equals(struct slice s, const char *word) {
    return s.length == strlen(word) && memcmp(s.at, word, s.length) == 0;
}

/* Source text -------------------------------------------------------------------------------- */

char *us_source_clean(const char *source) {
    char *clean = strdup(source);
    if (clean == NULL) return NULL;
    bool line_start = true;
    for (char *c = clean; *c != '\0';) {
        char *end = c;
        if (c[0] == '/' && c[1] == '/') {
            while (*end != '\0' && *end != '\n') end++;
        } else if (c[0] == '/' && c[1] == '*') {
            end = strstr(c + 2, "*/");
            end = end != NULL ? end + 2 : c + strlen(c);
        } else if (c[0] == '#' && line_start) {
            while (*end != '\0' && (*end != '\n' || end[-1] == '\\')) end++;
        } else if (c[0] == '"' || (c[0] == '\'' && (c == clean || !is_word(c[-1])))) {
            /* A quote between digits separates them. */
            for (end = c + 1; *end != '\0' && *end != c[0] && *end != '\n'; end++) {
                if (*end == '\\' && end[1] != '\0') end++;
            }
            if (*end == c[0]) end++;
        }
        if (end == c) {
            if (*c == '\n') line_start = true;
            else if (!isspace((unsigned char)*c)) line_start = false;
            c++;
        }
        for (; c < end; c++) {
            if (*c != '\n') *c = ' ';
        }
    }
    return clean;
}

/* Behind the bracket that closes the one at `at`; NULL when it is not closed. */
static const char *behind_bracket(const char *at) {
    int depth = 0;
    for (; *at != '\0'; at++) {
        if (strchr("(<[{", *at) != NULL) depth++;
        if (strchr(")>]}", *at) != NULL && --depth == 0) return at + 1;
    }
    return NULL;
}

/* Cuts `list` at its commas outside of brackets. Returns how many parts; -1 for too many. */
static int split(struct slice list, struct slice *parts, int limit) {
    int count = 0, depth = 0;
    size_t start = 0;
    if (trim(list).length == 0) return 0;
    for (size_t i = 0; i <= list.length; i++) {
        char c = i < list.length ? list.at[i] : ',';
        if (i < list.length && strchr("(<[{", c) != NULL) depth++;
        if (i < list.length && strchr(")>]}", c) != NULL) depth--;
        if (c == ',' && (depth == 0 || i == list.length)) {
            if (count == limit) return -1;
            parts[count++] = trim((struct slice){list.at + start, i - start});
            start = i + 1;
        }
    }
    return count;
}

/* The first occurrence of a whole word. */
static const char *find_word(const char *text, const char *word) {
    size_t length = strlen(word);
    for (const char *found = text; (found = strstr(found, word)) != NULL; found += length) {
        if ((found == text || !is_word(found[-1])) && !is_word(found[length])) return found;
    }
    return NULL;
}

/* The meaning of a name: a template argument, `using NAME = X;` or `typedef X NAME;`. */
static bool resolve(const struct context *context, struct slice name, struct slice *meaning) {
    for (size_t i = 0; i < context->count; i++) {
        if (context->names[i].length == name.length &&
            memcmp(context->names[i].at, name.at, name.length) == 0) {
            *meaning = context->values[i];
            return true;
        }
    }
    for (const char *at = context->source; (at = find_word(at, "using")) != NULL; at += 5) {
        const char *equal = strchr(at, '='), *end = strchr(at, ';');
        if (equal == NULL || end == NULL || equal > end) continue;
        struct slice alias = trim((struct slice){at + 5, (size_t)(equal - at) - 5});
        if (alias.length != name.length || memcmp(alias.at, name.at, name.length) != 0) continue;
        *meaning = trim((struct slice){equal + 1, (size_t)(end - equal) - 1});
        return true;
    }
    for (const char *at = context->source; (at = find_word(at, "typedef")) != NULL; at += 7) {
        const char *end = strchr(at, ';');
        if (end == NULL) break;
        struct slice rest = trim((struct slice){at + 7, (size_t)(end - at) - 7});
        if (rest.length <= name.length || is_word(rest.at[rest.length - name.length - 1]) ||
            memcmp(rest.at + rest.length - name.length, name.at, name.length) != 0) {
            continue;
        }
        *meaning = trim((struct slice){rest.at, rest.length - name.length});
        return true;
    }
    return false;
}

/* Numbers: sums and products of literals and template arguments. -1 for anything else. */
static long evaluate(const struct context *context, struct slice text, int depth) {
    text = trim(text);
    if (text.length == 0 || depth > MAX_DEPTH) return -1;
    static const char operators[] = "+-*";
    for (const char *operator = operators; *operator != '\0'; operator++) {
        for (size_t i = text.length - 1; i > 0; i--) {
            if (text.at[i] != *operator) continue;
            long left = evaluate(context, (struct slice){text.at, i}, depth + 1);
            long right = evaluate(
                context, (struct slice){text.at + i + 1, text.length - i - 1}, depth + 1);
            if (left < 0 || right < 0) return -1;
            long value = *operator == '+' ? left + right
                         : *operator == '-' ? left - right
                                           : left * right;
            return value >= 0 && value <= MAX_NUMBER ? value : -1;
        }
    }
    if (isdigit((unsigned char)text.at[0])) {
        long value = strtol(text.at, NULL, 0);
        return value <= MAX_NUMBER ? value : -1;
    }
    struct slice meaning;
    return resolve(context, text, &meaning) ? evaluate(context, meaning, depth + 1) : -1;
}

/* Types -------------------------------------------------------------------------------------- */

static struct layout grown(struct layout outer, struct layout member, long count) {
    uint32_t start = (outer.bytes + member.alignment - 1) / member.alignment * member.alignment;
    outer.bytes = start + member.bytes * (uint32_t)count;
    if (member.alignment > outer.alignment) outer.alignment = member.alignment;
    return outer;
}

static struct layout padded(struct layout layout) {
    layout.bytes = (layout.bytes + layout.alignment - 1) / layout.alignment * layout.alignment;
    return layout;
}

static const struct layout byte_ = {1, 1}, word_ = {4, 4}, pointer_ = {8, 8};

static bool is_qualifier(struct slice word) {
    static const char *const qualifiers[] = {
        "const", "volatile",     "struct",       "class",           "enum",    "typename",
        "std",   "__restrict__", "__restrict",   "__grid_constant__", "at",     "c10",
        "cuda",  "native",       "__const__",
    };
    for (size_t i = 0; i < sizeof qualifiers / sizeof *qualifiers; i++) {
        if (equals(word, qualifiers[i])) return true;
    }
    return false;
}

/* Built-in types whose name is one word. */
static bool simple_type(struct slice word, struct layout *layout) {
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = {
        {"bool", 1},       {"char", 1},        {"int8_t", 1},        {"uint8_t", 1},
        {"ScalarType", 1}, {"short", 2},       {"int16_t", 2},       {"uint16_t", 2},
        {"Half", 2},       {"BFloat16", 2},    {"half", 2},          {"__half", 2},
        {"int", 4},        {"__nv_bfloat16", 2}, {"int32_t", 4},     {"uint32_t", 4},
        {"uint", 4},       {"float", 4},       {"unsigned", 4},      {"signed", 4},
        {"double", 8},     {"long", 8},        {"int64_t", 8},       {"uint64_t", 8},
        {"size_t", 8},     {"ptrdiff_t", 8},   {"cudaTextureObject_t", 8},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (equals(word, types[i].name)) {
            *layout = (struct layout){types[i].bytes, types[i].bytes};
            return true;
        }
    }
    return false;
}

/* float4, uint3, ...: aligned as a whole, except those of three ("Built-in Vector Types"). */
static bool vector_type(struct slice word, struct layout *layout) {
    static const struct {
        const char *name;
        uint32_t bytes;
    } elements[] = {{"char", 1},  {"uchar", 1}, {"short", 2},    {"ushort", 2},    {"int", 4},
                    {"uint", 4},  {"long", 8},  {"ulong", 8},    {"longlong", 8},  {"ulonglong", 8},
                    {"float", 4}, {"double", 8}};
    if (equals(word, "dim3")) {
        *layout = (struct layout){12, 4};
        return true;
    }
    if (equals(word, "CUtensorMap")) {
        *layout = (struct layout){128, 64};
        return true;
    }
    uint32_t width = word.length > 1 ? (uint32_t)(word.at[word.length - 1] - '0') : 0;
    if (width < 1 || width > 4) return false;
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        if (!equals((struct slice){word.at, word.length - 1}, elements[i].name)) continue;
        uint32_t bytes = elements[i].bytes * width;
        uint32_t alignment = width == 3 ? elements[i].bytes : bytes > 16 ? 16 : bytes;
        *layout = (struct layout){bytes, alignment};
        return true;
    }
    return false;
}

static bool type_layout(const struct context *context, struct slice type, int depth,
                        struct layout *layout);

static bool named_layout(const struct context *context, const char *name, int depth,
                         struct layout *layout) {
    return type_layout(context, (struct slice){name, strlen(name)}, depth + 1, layout);
}

static struct layout offset_calculator(long tensors) {
    struct layout layout = grown((struct layout){0, 1}, word_, 1);
    layout = grown(layout, (struct layout){DIVIDER_BYTES, 4}, TENSOR_DIMS);
    return grown(layout, word_, TENSOR_DIMS * (tensors > 0 ? tensors : 1));
}

/* struct ReduceJitOp: start value, configuration of 64 bytes, two offset calculators, pointers. */
static bool reduction(const struct context *context, int depth, struct layout *layout) {
    struct layout identity;
    if (!named_layout(context, "arg_t", depth, &identity)) return false;
    *layout = grown((struct layout){0, 1}, identity, 1);
    *layout = grown(*layout, (struct layout){64, 4}, 1);
    *layout = grown(*layout, offset_calculator(1), 1);
    *layout = grown(*layout, offset_calculator(2), 1);
    *layout = grown(*layout, pointer_, 7); /* src, dst[2], acc_buf, cta_buf, semaphores, base_idx */
    *layout = grown(*layout, byte_, 2);    /* accumulate, final_output */
    *layout = padded(grown(*layout, word_, 1)); /* noutputs */
    return true;
}

/* Templates and structures of PyTorch's run-time compiled kernels, and complex numbers. */
static bool known_structure(const struct context *context, struct slice name,
                            struct slice arguments, int depth, struct layout *layout) {
    struct slice parts[2];
    int count = split(arguments, parts, 2);
    long number = count >= 1 ? evaluate(context, parts[count - 1], depth + 1) : 1;
    if (equals(name, "LoadWithoutCast") || equals(name, "StoreWithoutCast") ||
        equals(name, "TrivialOffsetCalculator")) {
        *layout = byte_;
        return true;
    }
    if (equals(name, "ReduceJitOp")) return reduction(context, depth, layout);
    if (equals(name, "complex") && count == 1) {
        if (!type_layout(context, parts[0], depth + 1, layout)) return false;
        layout->bytes *= 2;
        layout->alignment = layout->bytes;
        return true;
    }
    if (number < 0) return false;
    if (equals(name, "Array") && count == 2) {
        if (!type_layout(context, parts[0], depth + 1, layout)) return false;
        layout->bytes *= (uint32_t)number;
        return layout->bytes <= MAX_NUMBER;
    }
    if (equals(name, "OffsetCalculator") && count == 1) {
        *layout = offset_calculator(number);
        return true;
    }
    if (equals(name, "LoadWithCast") || equals(name, "StoreWithCast")) {
        long tensors = number > 0 ? number : 1;
        *layout = grown((struct layout){0, 1}, byte_, tensors);
        *layout = grown(*layout, word_, tensors);
        return true;
    }
    if (equals(name, "TensorInfo") && count == 2) { /* of the TorchScript fuser */
        struct layout index;
        if (!named_layout(context, "IndexType", depth, &index)) index = word_;
        *layout = padded(grown(pointer_, index, 2 * number));
        return true;
    }
    return false;
}

static bool type_layout(const struct context *context, struct slice type, int depth,
                        struct layout *layout) {
    if (depth > MAX_DEPTH) return false;
    struct slice words[8];
    size_t count = 0;
    struct slice arguments = {type.at, 0};
    bool pointer = false;
    for (size_t i = 0; i < type.length;) {
        char c = type.at[i];
        size_t start = i;
        if (c == '*') {
            pointer = true;
            i++;
        } else if (c == '<') {
            int level = 0;
            do {
                level += type.at[i] == '<';
                level -= type.at[i] == '>';
                i++;
            } while (i < type.length && level > 0);
            if (level != 0) return false;
            arguments = (struct slice){type.at + start + 1, i - start - 2};
        } else if (is_word(c)) {
            while (i < type.length && is_word(type.at[i])) i++;
            struct slice word = {type.at + start, i - start};
            if (is_qualifier(word)) continue;
            if (count == sizeof words / sizeof *words) return false;
            words[count++] = word;
        } else if (isspace((unsigned char)c) || c == ':') {
            i++;
        } else {
            return false; /* a reference, a function, ... */
        }
    }
    if (pointer) {
        *layout = pointer_;
        return true;
    }
    if (count == 0) return false;
    if (count > 1) { /* "unsigned long long int": the most telling word decides */
        static const char *const order[] = {"long", "short", "char", "double"};
        for (size_t i = 0; i < count; i++) {
            struct layout ignored;
            if (!simple_type(words[i], &ignored)) return false;
        }
        for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
            for (size_t j = 0; j < count; j++) {
                if (equals(words[j], order[i])) return simple_type(words[j], layout);
            }
        }
        *layout = word_;
        return true;
    }
    if (simple_type(words[0], layout) || vector_type(words[0], layout) ||
        known_structure(context, words[0], arguments, depth, layout)) {
        return true;
    }
    struct slice meaning;
    return resolve(context, words[0], &meaning) &&
           type_layout(context, meaning, depth + 1, layout);
}

/* Kernels ------------------------------------------------------------------------------------ */

/* The type of "const float *__restrict__ x = nullptr". */
static bool parameter_layout(const struct context *context, struct slice parameter,
                             struct layout *layout) {
    int depth = 0;
    for (size_t i = 0; i < parameter.length; i++) {
        depth += strchr("(<[{", parameter.at[i]) != NULL;
        depth -= strchr(")>]}", parameter.at[i]) != NULL;
        if (depth == 0 && parameter.at[i] == '=') parameter.length = i;
    }
    parameter = trim(parameter);
    if (parameter.length > 0 && parameter.at[parameter.length - 1] == ']') {
        *layout = pointer_;
        return true;
    }
    size_t end = parameter.length;
    while (end > 0 && is_word(parameter.at[end - 1])) end--;
    struct slice name = {parameter.at + end, parameter.length - end};
    struct slice type = trim((struct slice){parameter.at, end});
    struct layout ignored;
    if (type.length == 0 || name.length == 0 || is_qualifier(name) ||
        simple_type(name, &ignored) || type.at[type.length - 1] == ':') {
        type = parameter; /* it has no name */
    }
    return type_layout(context, type, 0, layout);
}

/* `template <typename T, int N = 4>` before a kernel: names get the arguments, or defaults. */
static void read_template(struct context *context, struct slice list, const char *arguments) {
    struct slice names[MAX_ARGUMENTS], values[MAX_ARGUMENTS];
    int count = split(list, names, MAX_ARGUMENTS);
    int given = arguments != NULL
                    ? split((struct slice){arguments, strlen(arguments)}, values, MAX_ARGUMENTS)
                    : 0;
    for (int i = 0; i < count; i++) {
        struct slice declared = names[i], value = {names[i].at, 0};
        const char *equal = memchr(declared.at, '=', declared.length);
        if (equal != NULL) {
            size_t head = (size_t)(equal - declared.at);
            value = trim((struct slice){equal + 1, declared.length - head - 1});
            declared = trim((struct slice){declared.at, head});
        }
        if (i < given) value = values[i];
        size_t end = declared.length;
        while (end > 0 && is_word(declared.at[end - 1])) end--;
        if (value.length == 0) continue;
        context->names[context->count] =
            (struct slice){declared.at + end, declared.length - end};
        context->values[context->count++] = value;
    }
}

/* The template head that ends right before `at`, apart from `extern "C"` (cleaned away). */
static bool template_before(const char *source, const char *at, struct slice *list) {
    while (at > source && isspace((unsigned char)at[-1])) at--;
    if (at == source || at[-1] != '>') return false;
    const char *close = at - 1;
    int depth = 0;
    for (at = close; at > source; at--) {
        depth += *at == '>';
        depth -= *at == '<';
        if (depth == 0) break;
    }
    const char *open = at;
    while (at > source && isspace((unsigned char)at[-1])) at--;
    if (at - source < 8 || memcmp(at - 8, "template", 8) != 0) return false;
    *list = (struct slice){open + 1, (size_t)(close - open) - 1};
    return true;
}

bool us_source_kernel(const char *clean, const char **at, const char *arguments,
                      struct us_source_kernel *kernel) {
    for (const char *found; (found = find_word(*at, "__global__")) != NULL;) {
        *at = found + strlen("__global__");
        memset(kernel, 0, sizeof *kernel);
        struct context context = {.source = clean};
        struct slice list;
        kernel->is_template = template_before(clean, found, &list);
        if (kernel->is_template) read_template(&context, list, arguments);
        const char *c = *at, *open = NULL;
        struct slice name = {c, 0};
        while (*c != '\0' && *c != ';' && *c != '{' && open == NULL) {
            if (is_word(*c)) {
                const char *start = c;
                while (is_word(*c)) c++;
                name = (struct slice){start, (size_t)(c - start)};
            } else if (*c != '(') {
                c++;
            } else if (name.length > 2 && memcmp(name.at, "__", 2) == 0) {
                /* __launch_bounds__(256), __cluster_dims__(2, 1, 1) */
                if (equals(name, "__launch_bounds__")) {
                    kernel->max_threads = (uint32_t)strtoul(c + 1, NULL, 10);
                    if (kernel->max_threads > 1024) kernel->max_threads = 0;
                }
                c = behind_bracket(c);
                if (c == NULL) return false;
            } else {
                open = c;
            }
        }
        const char *behind = open != NULL ? behind_bracket(open) : NULL;
        if (behind == NULL || name.length == 0 || name.length >= sizeof kernel->name) continue;
        memcpy(kernel->name, name.at, name.length);
        struct slice parts[US_SOURCE_MAX_PARAMETERS];
        int count = split((struct slice){open + 1, (size_t)(behind - open) - 2}, parts,
                          US_SOURCE_MAX_PARAMETERS);
        kernel->has_parameters = count >= 0;
        for (int i = 0; i < count && kernel->has_parameters; i++) {
            struct layout layout;
            if (count == 1 && equals(parts[i], "void")) break;
            kernel->has_parameters = parameter_layout(&context, parts[i], &layout);
            if (!kernel->has_parameters) break;
            kernel->parameters[kernel->parameter_count++] =
                (struct us_source_parameter){layout.bytes, layout.alignment};
        }
        if (!kernel->has_parameters) kernel->parameter_count = 0;
        *at = behind;
        return true;
    }
    return false;
}
