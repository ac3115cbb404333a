/* What the replaced libraries call themselves: that depends on the CUDA a program was built for. */
#ifndef UNDERSTUDY_VERSIONS_H
#define UNDERSTUDY_VERSIONS_H

#include <stdint.h>

struct us_library_versions {
    int cuda_major;
    int cuda_runtime; /* cudaRuntimeGetVersion */
    int cublas, cudnn, nccl, cufft;
    int nvrtc_major, nvrtc_minor;
    uint32_t cupti; /* CUPTI_API_VERSION */
};

/* Those of the CUDA 12 or 13 that the program's libraries need (DT_NEEDED of libcudart.so.12, ...).
   The driver is that of US_CUDA_VERSION in any case: it serves older runtimes too. */
const struct us_library_versions *us_library_versions(void);

#endif
