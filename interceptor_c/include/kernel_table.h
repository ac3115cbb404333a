/*
 * A kernel table (.ktab): what the interceptor has to know of each kernel of one shared library.
 *
 * libtorch_cuda.so keeps its kernels as zstd-compressed cubins. Python (which has a decompressor)
 * reads them once per library build id and compute capability and writes this file; the
 * interceptor maps the files of UNDERSTUDY_KERNEL_TABLES (colon-separated) and looks kernels up by
 * mangled name. Little endian; the four parts follow each other in this order:
 *
 *   us_ktab_header
 *   us_ktab_entry[entry_count]          sorted by (name_hash, name)
 *   us_ktab_parameter[parameter_count]
 *   string blob of string_bytes bytes   mangled names, not NUL terminated
 */
#ifndef UNDERSTUDY_KERNEL_TABLE_H
#define UNDERSTUDY_KERNEL_TABLE_H

#include <stdint.h>

#define US_KTAB_MAGIC "USKTAB01" /* 8 bytes, no NUL */
#define US_KTAB_VERSION 2u

struct us_ktab_header { /* 96 bytes */
    char magic[8];
    uint32_t version;
    uint32_t compute_capability; /* 90 for 9.0 */
    uint32_t entry_count;
    uint32_t parameter_count;
    uint64_t string_bytes;
    char build_id[60]; /* hex GNU build id of the library it was read from, NUL padded */
    uint32_t checksum; /* CRC-32 of all that follows; checked by Python when it reuses the file */
};

struct us_ktab_entry { /* 40 bytes */
    uint64_t name_hash;   /* FNV-1a, 64 bits, of the mangled name (offset basis 14695981039346656037,
                             prime 1099511628211) */
    uint32_t name_offset; /* in the string blob */
    uint32_t name_bytes;
    uint32_t static_shared_bytes;
    uint32_t local_bytes; /* per thread; 0 when not known */
    uint32_t first_parameter; /* index into the parameters */
    uint16_t parameter_count;
    uint16_t parameter_bytes; /* of all arguments together */
    uint16_t registers;       /* per thread */
    uint16_t max_threads;     /* per block; 1024 when the kernel states none */
    uint32_t reserved;
};

struct us_ktab_parameter { /* 8 bytes; ordered by ordinal */
    uint32_t offset_bytes;
    uint32_t size_bytes;
};

#endif
