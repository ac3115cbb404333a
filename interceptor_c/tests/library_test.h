/*
 * For the tests of cuBLAS, cuDNN and NCCL: checks that name their line, and the trace that a test
 * has written so far, read back from its two files.
 */
#ifndef UNDERSTUDY_LIBRARY_TEST_H
#define UNDERSTUDY_LIBRARY_TEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace_format.h"

int understudy_trace_open(const char *stem);
void understudy_trace_close(void);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static char us_test_stem[64];

static inline void open_trace(void) {
    strcpy(us_test_stem, "/tmp/understudy-test-XXXXXX");
    CHECK(mkdtemp(us_test_stem) != NULL);
    strcat(us_test_stem, "/t");
    CHECK(understudy_trace_open(us_test_stem) == 0);
}

struct test_file {
    char *bytes;
    const struct us_file_header *header;
};

static inline struct test_file read_file(const char *suffix) {
    char path[96];
    snprintf(path, sizeof path, "%s%s", us_test_stem, suffix);
    FILE *stream = fopen(path, "rb");
    CHECK(stream != NULL);
    CHECK(fseek(stream, 0, SEEK_END) == 0);
    long size = ftell(stream);
    rewind(stream);
    struct test_file file = {malloc((size_t)size), NULL};
    CHECK(file.bytes != NULL && fread(file.bytes, 1, (size_t)size, stream) == (size_t)size);
    fclose(stream);
    file.header = (const struct us_file_header *)file.bytes;
    return file;
}

/* All records of one kind; the caller frees them. */
static inline struct us_record *records_of(enum us_api api, size_t *count) {
    struct test_file file = read_file(".records");
    struct us_record *found = calloc(file.header->entries + 1, sizeof *found);
    CHECK(found != NULL);
    *count = 0;
    for (uint64_t i = 0; i < file.header->entries; i++) {
        struct us_record record;
        memcpy(&record, file.bytes + US_HEADER_BYTES + i * sizeof record, sizeof record);
        if (record.api == api) found[(*count)++] = record;
    }
    free(file.bytes);
    return found;
}

static inline size_t count_of(enum us_api api) {
    size_t count;
    free(records_of(api, &count));
    return count;
}

/* The last record of this kind. */
static inline struct us_record last_of(enum us_api api) {
    size_t count;
    struct us_record *records = records_of(api, &count);
    CHECK(count > 0);
    struct us_record last = records[count - 1];
    free(records);
    return last;
}

/* The payload of a definition, which the caller frees. */
static inline void *definition_of(enum us_definition_kind kind, uint32_t id, size_t *bytes) {
    struct test_file file = read_file(".definitions");
    for (uint64_t at = US_HEADER_BYTES; at < file.header->used_bytes;) {
        struct us_definition head;
        memcpy(&head, file.bytes + at, sizeof head);
        CHECK(head.size_bytes >= sizeof head);
        if (head.kind == kind && head.id == id) {
            void *payload = malloc(head.payload_bytes + 1);
            CHECK(payload != NULL);
            memcpy(payload, file.bytes + at + sizeof head, head.payload_bytes);
            if (bytes != NULL) *bytes = head.payload_bytes;
            free(file.bytes);
            return payload;
        }
        at += head.size_bytes;
    }
    free(file.bytes);
    CHECK(!"definition is in the trace");
    return NULL;
}

/* A named number of the last record of US_API_LIBRARY. */
static inline int64_t library_value(const char *name) {
    size_t bytes;
    struct us_record record = last_of(US_API_LIBRARY);
    char *payload = definition_of(US_DEFINITION_LIBRARY, record.definition, &bytes);
    struct us_library head;
    memcpy(&head, payload, sizeof head);
    CHECK(bytes == sizeof head + head.value_count * sizeof(struct us_library_value));
    for (uint32_t i = 0; i < head.value_count; i++) {
        struct us_library_value value;
        memcpy(&value, payload + sizeof head + i * sizeof value, sizeof value);
        if (strcmp(value.name, name) == 0) {
            free(payload);
            return value.value;
        }
    }
    CHECK(!"the value is recorded");
    return 0;
}

/* Whether the last record of US_API_LIBRARY is a call of this function on elements of this type. */
static inline bool library_call_is(const char *api, int type) {
    struct us_record record = last_of(US_API_LIBRARY);
    struct us_library *head = definition_of(US_DEFINITION_LIBRARY, record.definition, NULL);
    bool same = strcmp(head->api, api) == 0 && head->type == type;
    free(head);
    return same;
}

static inline void close_trace(void) {
    static const char *const suffixes[] = {".records", ".definitions"};
    char path[96];
    understudy_trace_close();
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s", us_test_stem, suffixes[i]);
        unlink(path);
    }
    *strrchr(us_test_stem, '/') = '\0';
    rmdir(us_test_stem);
}

#endif
