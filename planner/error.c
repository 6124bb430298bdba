/* error: see error.h. */
#include "planner/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct status_row {
    enum status status;
    int error;
    int exit_code;
    const char *name;
    const char *sentence;
} status_rows[] = {
#define X(name, wire, err, exit_code, sentence) {STATUS_##name, -(err), exit_code, #name, sentence},
    STATUS_TABLE(X)
#undef X
};

static const size_t status_row_count = sizeof status_rows / sizeof status_rows[0];

int error_set(struct error *error, int code, const char *format, ...) {
    if (error != NULL) {
        va_list arguments;
        error->code = code;
        va_start(arguments, format);
        (void)vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return code;
}

int error_prefix(struct error *error, const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    if (error == NULL) {
        return 0;
    }
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char inner[ERROR_TEXT_BYTES];
    memcpy(inner, error->text, sizeof inner);
    int prefix_chars = (int)strnlen(text, ERROR_TEXT_BYTES / 2);
    (void)snprintf(error->text, sizeof error->text, "%.*s: %.*s", prefix_chars, text,
                   (int)sizeof inner - 3 - prefix_chars, inner);
    return error->code;
}

static const struct status_row *status_row(enum status status) {
    for (size_t i = 0; i < status_row_count; i++) {
        if (status_rows[i].status == status) {
            return &status_rows[i];
        }
    }
    return &status_rows[STATUS_UNKNOWN];
}

enum status status_from_error(int code) {
    if (code >= 0) {
        return STATUS_OK;
    }
    switch (code) {
    case -ENOMEM:
    case -ENOSPC:
        return STATUS_RESOURCE_EXHAUSTED;
    case -EILSEQ:
    case -EBADMSG:
        return STATUS_DATA_LOSS;
    default:
        break;
    }
    for (size_t i = 0; i < status_row_count; i++) {
        if (status_rows[i].error == code) {
            return status_rows[i].status;
        }
    }
    return STATUS_UNKNOWN;
}

int status_to_error(unsigned wire_code) {
    for (size_t i = 0; i < status_row_count; i++) {
        if ((unsigned)status_rows[i].status == wire_code) {
            return status_rows[i].error;
        }
    }
    return -EPROTO;
}

const char *status_name(enum status status) {
    return status_row(status)->name;
}

const char *status_sentence(enum status status) {
    return status_row(status)->sentence;
}

int status_exit_code(enum status status) {
    return status_row(status)->exit_code;
}
