/*
 * Reads the entries of a PTX text with their parameters ("PTX ISA", section "Kernel and Function
 * Directives: .entry"):
 *
 *   .visible .entry name(.param .u64 .ptr .align 4 p_0, .param .align 8 .b8 p_1[24]) .maxntid 256
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

enum { MAX_ENTRIES = 4096, MAX_PARAMETERS = 256, MAX_SIZE = 1 << 20 };

struct entry {
    char *name;
    struct us_kernel_info info;
    struct us_parameter *parameters;
};

struct us_ptx {
    struct entry *entries;
    size_t count;
};

struct text {
    const char *at, *end;
};

static void skip_space(struct text *text) {
    while (text->at < text->end) {
        if (isspace((unsigned char)*text->at)) {
            text->at++;
        } else if (text->end - text->at >= 2 && text->at[0] == '/' && text->at[1] == '/') {
            while (text->at < text->end && *text->at != '\n') text->at++;
        } else if (text->end - text->at >= 2 && text->at[0] == '/' && text->at[1] == '*') {
            text->at += 2;
            while (text->end - text->at >= 2 && (text->at[0] != '*' || text->at[1] != '/')) {
                text->at++;
            }
            text->at = text->end - text->at >= 2 ? text->at + 2 : text->end;
        } else {
            return;
        }
    }
}

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

/* A directive, name or number; or one character of punctuation. Empty at the end. */
static struct text next_token(struct text *text) {
    skip_space(text);
    struct text token = {text->at, text->at};
    if (text->at == text->end) return token;
    if (!is_word(*text->at)) {
        token.end = ++text->at;
        return token;
    }
    while (text->at < text->end && is_word(*text->at)) {
        text->at++;
        if (text->at < text->end && *text->at == '.') break; /* ".param.u64" */
    }
    token.end = text->at;
    return token;
}

static bool is(struct text token, const char *word) {
    size_t length = strlen(word);
    return (size_t)(token.end - token.at) == length && memcmp(token.at, word, length) == 0;
}

static uint32_t number(struct text token) {
    uint32_t value = 0;
    for (const char *c = token.at; c < token.end && isdigit((unsigned char)*c); c++) {
        value = value * 10 + (uint32_t)(*c - '0');
        if (value > MAX_SIZE) return MAX_SIZE;
    }
    return value;
}

/* Bytes of a type like ".u64"; 0 when it is none. */
static uint32_t type_bytes(struct text token) {
    size_t length = (size_t)(token.end - token.at);
    if (is(token, ".pred")) return 1;
    if (length < 3 || token.at[0] != '.' || strchr("busf", token.at[1]) == NULL) return 0;
    struct text digits = {token.at + 2, token.end};
    uint32_t bits = number(digits);
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 0;
}

/* The list after a kernel's name. False when it is damaged. */
static bool read_parameters(struct text *text, struct us_parameter *parameters, uint32_t *count) {
    uint32_t offset = 0, size = 0, elements = 1, alignment = 0;
    bool pointer = false;
    *count = 0;
    for (;;) {
        struct text token = next_token(text);
        if (token.at == token.end) return false;
        if (is(token, ",") || is(token, ")")) {
            if (size > 0) {
                if (*count == MAX_PARAMETERS) return false;
                if (alignment == 0) alignment = size;
                uint32_t bytes = size * elements;
                if (bytes > MAX_SIZE || alignment > 128) return false;
                offset = (offset + alignment - 1) / alignment * alignment;
                if (offset > MAX_SIZE) return false;
                parameters[(*count)++] = (struct us_parameter){offset, bytes};
                offset += bytes;
            }
            if (is(token, ")")) return true;
            size = alignment = 0;
            elements = 1;
            pointer = false;
        } else if (is(token, ".ptr")) {
            pointer = true; /* an .align that follows is the pointee's */
        } else if (is(token, ".align")) {
            uint32_t value = number(next_token(text));
            if (!pointer) alignment = value;
        } else if (is(token, "[")) {
            elements = number(next_token(text));
        } else if (size == 0) {
            size = type_bytes(token);
        }
    }
}

static bool add_entry(struct us_ptx *ptx, struct text *text) {
    struct text name = next_token(text), token = next_token(text);
    struct us_parameter parameters[MAX_PARAMETERS];
    uint32_t count = 0;
    if (name.at == name.end || ptx->count == MAX_ENTRIES) return false;
    if (is(token, "(") && !read_parameters(text, parameters, &count)) return false;
    struct entry *grown = realloc(ptx->entries, (ptx->count + 1) * sizeof *grown);
    if (grown == NULL) return false;
    ptx->entries = grown;
    struct entry *entry = &grown[ptx->count];
    *entry = (struct entry){.name = strndup(name.at, (size_t)(name.end - name.at)),
                            .parameters = calloc(count + 1, sizeof *parameters)};
    ptx->count++;
    if (entry->name == NULL || entry->parameters == NULL) return false;
    memcpy(entry->parameters, parameters, count * sizeof *parameters);
    entry->info.parameters = entry->parameters;
    entry->info.parameter_count = count;
    if (count > 0) {
        entry->info.parameter_bytes =
            parameters[count - 1].offset_bytes + parameters[count - 1].size_bytes;
    }
    return true;
}

void us_ptx_free(struct us_ptx *ptx) {
    if (ptx == NULL) return;
    for (size_t i = 0; i < ptx->count; i++) {
        free(ptx->entries[i].name);
        free(ptx->entries[i].parameters);
    }
    free(ptx->entries);
    free(ptx);
}

struct us_ptx *us_ptx_parse(const void *image, size_t bytes) {
    static const char version[] = ".version";
    const char *start = image;
    /* Other images start otherwise, so nothing is read behind what they are sure to have. */
    if (bytes == 0 || (*start != '.' && *start != '/' && !isspace((unsigned char)*start))) {
        return NULL;
    }
    struct text text = {start, start + strnlen(start, bytes)};
    skip_space(&text);
    if ((size_t)(text.end - text.at) < sizeof version - 1 ||
        memcmp(text.at, version, sizeof version - 1) != 0) {
        return NULL;
    }
    struct us_ptx *ptx = calloc(1, sizeof *ptx);
    if (ptx == NULL) return NULL;
    struct entry *last = NULL;
    for (;;) {
        struct text token = next_token(&text);
        if (token.at == token.end) return ptx;
        if (is(token, ".entry")) {
            if (!add_entry(ptx, &text)) { /* what came before it is still good */
                return ptx;
            }
            last = &ptx->entries[ptx->count - 1];
        } else if (is(token, ".maxntid") && last != NULL) {
            uint32_t threads = number(next_token(&text));
            while (is(next_token(&text), ",")) threads *= number(next_token(&text));
            last->info.max_threads = threads <= 1024 ? threads : 0;
        }
    }
}

/* `_Z3addPf` names the kernel `add`: a text that NVRTC made here has no mangled names. */
static bool is_mangled(const char *name, const char *plain) {
    if (strncmp(name, "_Z", 2) != 0) return false;
    char *rest;
    unsigned long length = strtoul(name + 2, &rest, 10);
    return length == strlen(plain) && strncmp(rest, plain, length) == 0;
}

bool us_ptx_kernel(const struct us_ptx *ptx, const char *name, struct us_kernel_info *info) {
    for (size_t i = 0; i < ptx->count; i++) {
        const struct entry *entry = &ptx->entries[i];
        if (entry->name == NULL || entry->parameters == NULL) continue;
        if (strcmp(entry->name, name) == 0 || is_mangled(name, entry->name)) {
            *info = entry->info;
            return true;
        }
    }
    return false;
}
