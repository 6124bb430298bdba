/* symbols: functions of a library that is found at run time, never linked. */
#ifndef BALLAST_GPU_ATTN_SYMBOLS_H
#define BALLAST_GPU_ATTN_SYMBOLS_H

#include "gpu_attn/ballast_attn.h"

struct attn_symbol {
    const char *name;
    size_t offset; /* of a function pointer in the table */
};

/* Fills a table of function pointers from an open library; -ENODEV names what `file` lacks. */
int attn_symbols_find(void *library, const char *file, const struct attn_symbol *symbols,
                      size_t count, void *table, struct ballast_attn_error *error);

#endif
