/* Kernels of a CUDA C++ source text, with their parameters, as far as text tells. */
#ifndef UNDERSTUDY_CUDA_SOURCE_H
#define UNDERSTUDY_CUDA_SOURCE_H

#include "interceptor.h"

enum { US_SOURCE_MAX_PARAMETERS = 64 };

struct us_source_parameter {
    uint32_t size_bytes, alignment_bytes;
};

struct us_source_kernel {
    char name[256];
    bool is_template;
    /* False when a parameter's type is not understood; none of the parameters counts then. */
    bool has_parameters;
    uint32_t parameter_count;
    struct us_source_parameter parameters[US_SOURCE_MAX_PARAMETERS];
    uint32_t max_threads; /* __launch_bounds__, 0 without */
};

/* A copy without comments, literals and preprocessor lines, to be freed; NULL without memory. */
char *us_source_clean(const char *source);
/* The kernel whose `__global__` is the first at or after `*at`, which is moved behind it. False
   when there is none. `arguments` are those of a template ("float, 4"), NULL without. */
bool us_source_kernel(const char *clean, const char **at, const char *arguments,
                      struct us_source_kernel *kernel);

#endif
