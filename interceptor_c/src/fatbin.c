/*
 * Fat binaries: which architectures a program's device code is for. As on a real device, a kernel
 * whose fat binary has no code for the device's compute capability cannot be launched
 * (cudaErrorNoKernelImageForDevice); its other parameters stand in the kernel table.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
enum { KIND_PTX = 1, KIND_CUBIN = 2, FLAG_ARCH_SPECIFIC = 0x100000 };

struct wrapper {
    uint32_t magic, version;
    const void *data;
    void *file_name;
};

struct header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t payload_bytes;
};

struct entry { /* the part of a payload's header that is read */
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint32_t compressed_bytes, unknown;
    uint16_t minor, major;
    uint32_t architecture; /* 90 for 9.0 */
    uint32_t name_offset, name_bytes;
    uint64_t flags;
};
_Static_assert(offsetof(struct entry, architecture) == 28, "fatbin entry");
_Static_assert(offsetof(struct entry, flags) == 40, "fatbin entry");

struct us_fatbin {
    const void *data; /* NULL: of a kind that is not known, taken as usable */
};

struct us_fatbin *us_fatbin_register(const void *wrapper) {
    struct us_fatbin *fatbin = calloc(1, sizeof *fatbin); /* never freed: kernels refer to it */
    struct wrapper head;
    if (!fatbin || !wrapper)
        return fatbin;
    memcpy(&head, wrapper, sizeof head);
    if (head.magic == WRAPPER_MAGIC)
        fatbin->data = head.data;
    return fatbin;
}

const void *us_fatbin_data(const struct us_fatbin *fatbin) {
    return fatbin ? fatbin->data : NULL;
}

/* Code runs on later minor versions of its major one, architecture-specific code on its own only;
   PTX is compiled for any later device. */
static bool runs(const struct entry *entry, uint32_t capability) {
    if (entry->kind == KIND_PTX)
        return entry->architecture <= capability;
    if (entry->kind != KIND_CUBIN)
        return false;
    if (entry->flags & FLAG_ARCH_SPECIFIC)
        return entry->architecture == capability;
    return entry->architecture / 10 == capability / 10 && entry->architecture <= capability;
}

bool us_fatbin_has_device(const struct us_fatbin *fatbin) {
    if (!fatbin || !fatbin->data)
        return true;
    struct header head;
    memcpy(&head, fatbin->data, sizeof head);
    if (head.magic != FATBIN_MAGIC)
        return true;
    const char *at = (const char *)fatbin->data + head.header_bytes;
    const char *end = at + head.payload_bytes;
    uint32_t capability = (uint32_t)us_compute_capability();
    while ((size_t)(end - at) >= sizeof(struct entry)) {
        struct entry entry;
        memcpy(&entry, at, sizeof entry);
        uint64_t bytes = (uint64_t)entry.header_bytes + entry.payload_bytes;
        if (runs(&entry, capability))
            return true;
        if (!bytes || bytes > (uint64_t)(end - at))
            return false;
        at += bytes;
    }
    return false;
}
