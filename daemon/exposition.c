/* exposition: see exposition.h. */
#include "daemon/exposition.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define EXPOSITION_NS_DECIMALS 9u

void exposition_init(struct exposition *exposition, char *text, size_t bytes) {
    assert(bytes > 0);
    *exposition = (struct exposition){.text = text, .capacity = bytes};
    text[0] = '\0';
}

static void exposition_line(struct exposition *exposition, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void exposition_line(struct exposition *exposition, const char *format, ...) {
    va_list arguments;
    size_t room = exposition->capacity - exposition->used;
    char *at = exposition->text + exposition->used;
    if (exposition->full) {
        return;
    }
    va_start(arguments, format);
    int bytes = vsnprintf(at, room, format, arguments);
    va_end(arguments);
    if (bytes < 0 || (size_t)bytes >= room) {
        exposition->full = true;
        *at = '\0';
        return;
    }
    exposition->used += (size_t)bytes;
}

void exposition_family(struct exposition *exposition, const char *name, const char *type,
                       const char *help) {
    exposition->family = name;
    exposition_line(exposition, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* value / 10^decimals without trailing zeros. */
static void exposition_number(char out[48], uint64_t value, uint32_t decimals) {
    uint64_t one = 1;
    for (uint32_t i = 0; i < decimals; i++) {
        one *= 10;
    }
    int bytes = snprintf(out, 48, "%" PRIu64, value / one);
    uint64_t rest = value % one;
    if (rest == 0) {
        return;
    }
    (void)snprintf(out + bytes, 48 - (size_t)bytes, ".%0*" PRIu64, (int)decimals, rest);
    for (size_t end = strlen(out); out[end - 1] == '0'; end--) {
        out[end - 1] = '\0';
    }
}

void exposition_sample(struct exposition *exposition, const char *labels, uint64_t value,
                       uint32_t decimals) {
    char number[48];
    exposition_number(number, value, decimals);
    exposition_line(exposition, "%s%s%s%s %s\n", exposition->family, *labels == '\0' ? "" : "{",
                    labels, *labels == '\0' ? "" : "}", number);
}

void exposition_single(struct exposition *exposition, const char *name, const char *type,
                       const char *help, uint64_t value, uint32_t decimals) {
    exposition_family(exposition, name, type, help);
    exposition_sample(exposition, "", value, decimals);
}

void exposition_histogram(struct exposition *exposition, const char *labels,
                          struct histogram *histogram) {
    const char *comma = *labels == '\0' ? "" : ",";
    const char *family = exposition->family;
    const char *open = *labels == '\0' ? "" : "{";
    const char *shut = *labels == '\0' ? "" : "}";
    char number[48];
    uint64_t count = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        count += atomic_load_explicit(&histogram->counts[i], memory_order_relaxed);
        exposition_number(number, histogram_bounds_ns[i], EXPOSITION_NS_DECIMALS);
        exposition_line(exposition, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", family, labels, comma,
                        number, count);
    }
    count += atomic_load_explicit(&histogram->counts[HISTOGRAM_BOUNDS], memory_order_relaxed);
    exposition_number(number, atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed),
                      EXPOSITION_NS_DECIMALS);
    exposition_line(exposition, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", family, labels, comma,
                    count);
    exposition_line(exposition, "%s_sum%s%s%s %s\n", family, open, labels, shut, number);
    exposition_line(exposition, "%s_count%s%s%s %" PRIu64 "\n", family, open, labels, shut, count);
}

/* At most three bytes are written, the last a '"', behind each character that is taken. */
void exposition_label(char *labels, const char *name, const char *value) {
    size_t used = strlen(labels);
    int bytes = snprintf(labels + used, EXPOSITION_LABELS_BYTES - used, "%s%s=\"",
                         used == 0 ? "" : ",", name);
    assert(bytes > 0 && used + (size_t)bytes + 2 < EXPOSITION_LABELS_BYTES);
    used += (size_t)bytes;
    for (; *value != '\0' && used + 4 < EXPOSITION_LABELS_BYTES; value++) {
        if (*value == '"' || *value == '\\' || *value == '\n') {
            labels[used++] = '\\';
        }
        labels[used++] = *value == '\n' ? 'n' : *value;
    }
    labels[used++] = '"';
    labels[used] = '\0';
}
