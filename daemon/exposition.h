/* exposition: Prometheus text format 0.0.4, written into the caller's buffer.
 *
 * A family is announced, then its samples follow; a line that does not fit is left out whole, with
 * all that come after it, and `full` says so. Figures are integers, scaled by powers of ten where
 * the unit asks for it. Pure. */
#ifndef BALLAST_DAEMON_EXPOSITION_H
#define BALLAST_DAEMON_EXPOSITION_H

#include "daemon/histogram.h"

#include <stdbool.h>
#include <stddef.h>

#define EXPOSITION_LABELS_BYTES 512u

struct exposition {
    char *text; /* always terminated */
    size_t capacity;
    size_t used;
    bool full;
    const char *family;
};

/* `bytes` > 0. */
void exposition_init(struct exposition *exposition, char *text, size_t bytes);

/* `type` is counter, gauge or histogram. `name` is borrowed until the next family. */
void exposition_family(struct exposition *exposition, const char *name, const char *type,
                       const char *help);

/* One sample of the family: value / 10^decimals. `labels` as exposition_label writes them, "" for
 * none. */
void exposition_sample(struct exposition *exposition, const char *labels, uint64_t value,
                       uint32_t decimals);
void exposition_histogram(struct exposition *exposition, const char *labels,
                          struct histogram *histogram);

/* A family of one sample without labels. */
void exposition_single(struct exposition *exposition, const char *name, const char *type,
                       const char *help, uint64_t value, uint32_t decimals);

/* Adds name="value" to `labels` (EXPOSITION_LABELS_BYTES, "" at first), the value escaped and cut
 * where it does not fit. */
void exposition_label(char *labels, const char *name, const char *value);

#endif
