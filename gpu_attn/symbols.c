#include "gpu_attn/symbols.h"

#include "gpu_attn/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

int attn_symbols_find(void *library, const char *file, const struct attn_symbol *symbols,
                      size_t count, void *table, struct ballast_attn_error *error) {
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (found == NULL) {
            return attn_error(error, -ENODEV, "%s has no %s: it is too old", file, symbols[i].name);
        }
        memcpy((char *)table + symbols[i].offset, &found, sizeof found);
    }
    return 0;
}
