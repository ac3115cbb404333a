/* Kernels that a PTX text declares: what NVRTC hands out here, and what programs load as PTX. */
#ifndef UNDERSTUDY_PTX_H
#define UNDERSTUDY_PTX_H

#include "core.h"

struct us_ptx;

/* NULL when the image is no PTX text; `bytes` may be SIZE_MAX, the text ends at a NUL then. */
struct us_ptx *us_ptx_parse(const void *image, size_t bytes);
/* False when the text has no such kernel. The parameters live as long as the us_ptx. */
bool us_ptx_kernel(const struct us_ptx *ptx, const char *name, struct us_kernel_info *info);
void us_ptx_free(struct us_ptx *ptx);

#endif
