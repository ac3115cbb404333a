/*
 * Which CUDA the program was built for. Shadows of both majors may be loaded (they are preloaded
 * where NVIDIA's wheels are installed), so it is not the shadows that tell but what the other
 * libraries need.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "versions.h"

/* The versions that torch's wheels are built against and depend on: torch 2.9.1 (CUDA 12.8) and
   2.14.1 (CUDA 13.0). */
static const struct us_library_versions cuda_12 = {
    .cuda_major = 12,
    .cuda_runtime = 12080,
    .cublas = 120804,
    .cudnn = 91002,
    .nccl = 22705,
    .cufft = 11303,
    .nvrtc_major = 12,
    .nvrtc_minor = 8,
    .cupti = 26,
};

static const struct us_library_versions cuda_13 = {
    .cuda_major = 13,
    .cuda_runtime = 13000,
    .cublas = 130101,
    .cudnn = 92400,
    .nccl = 23007,
    .cufft = 12000,
    .nvrtc_major = 13,
    .nvrtc_minor = 0,
    .cupti = 130000,
};

/* Libraries whose SONAME carries the major version of CUDA. */
static int major_of_soname(const char *name) {
    static const char *const prefixes[] = {"libcudart.so.", "libcublas.so.", "libcublasLt.so.",
                                           "libnvrtc.so.", "libcupti.so."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t bytes = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], bytes))
            return atoi(name + bytes);
    }
    return 0;
}

static int visit(struct dl_phdr_info *object, size_t bytes, void *found) {
    (void)bytes;
    const ElfW(Dyn) *dynamic = NULL;
    for (unsigned i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    const char *strings = NULL;
    for (const ElfW(Dyn) *d = dynamic; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB) /* glibc adds the base; not to the kernel's vDSO */
            strings = (const char *)(d->d_un.d_ptr < object->dlpi_addr
                                         ? d->d_un.d_ptr + object->dlpi_addr
                                         : d->d_un.d_ptr);
    for (const ElfW(Dyn) *d = dynamic; strings && d->d_tag != DT_NULL; d++) {
        int major = d->d_tag == DT_NEEDED ? major_of_soname(strings + d->d_un.d_val) : 0;
        if (major) {
            *(int *)found = major;
            return 1;
        }
    }
    return 0;
}

static bool is_loaded(const char *soname) {
    void *library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

const struct us_library_versions *us_library_versions(void) {
    static const struct us_library_versions *known;
    const struct us_library_versions *versions = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (versions)
        return versions;
    int major = 0;
    dl_iterate_phdr(visit, &major);
    if (major) {
        versions = major == 12 ? &cuda_12 : &cuda_13;
        __atomic_store_n(&known, versions, __ATOMIC_RELAXED);
        return versions;
    }
    /* A library may still come (import torch after pynvml), so this answer is not kept. */
    bool only_12 = is_loaded("libcudart.so.12") && !is_loaded("libcudart.so.13");
    return only_12 ? &cuda_12 : &cuda_13;
}
