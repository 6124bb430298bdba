#include "gpu_attn/error.h"

#include <stdarg.h>
#include <stdio.h>

int attn_error(struct ballast_attn_error *error, int code, const char *format, ...) {
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        error->code = code;
        (void)vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return code;
}
