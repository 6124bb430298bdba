/* error: fills the public error once, where most is known. */
#ifndef BALLAST_GPU_ATTN_ERROR_H
#define BALLAST_GPU_ATTN_ERROR_H

#include "gpu_attn/ballast_attn.h"

/* Fills `error` (may be NULL); returns `code`. Text that does not fit is cut. */
int attn_error(struct ballast_attn_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
