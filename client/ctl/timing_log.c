/* timing_log: see timing_log.h. */
#include "client/ctl/timing_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct timing_log {
    const char *path;
    const struct plan_options *plan;
    const struct tile_model *tiles;
    uint64_t line; /* being read, from 1 */
    uint32_t *lengths;
    size_t lengths_max;
    void *dealing; /* the dealer's, for lengths_max */
    struct layout_dealer dealer;
    uint64_t *rank_ps;
    struct calibrate_sample *samples;
    uint32_t count;
    uint32_t capacity;
};

static int log_refuse(const struct timing_log *log, const char *what, struct error *error) {
    return error_set(error, -EINVAL, "%s:%" PRIu64 ": %s", log->path, log->line, what);
}

/* The next number of the line; false at its end, or with *rc set where there is none. */
static bool log_number(const struct timing_log *log, char **at, uint64_t max, uint64_t *out,
                       int *rc, struct error *error) {
    char *end;
    *at += strspn(*at, " \t\r\n");
    if (**at == '\0') {
        return false;
    }
    errno = 0;
    *out = strtoull(*at, &end, 10);
    if (errno != 0 || **at < '0' || **at > '9' || *out == 0 || *out > max ||
        strchr(" \t\r\n", *end) == NULL) {
        *rc = log_refuse(log, "not a time in ns and lengths, all whole numbers above 0", error);
        return false;
    }
    *at = end;
    return true;
}

static int log_grow(struct timing_log *log, struct error *error) {
    size_t most = log->lengths_max > 0 ? 2 * log->lengths_max : 256;
    uint32_t *lengths = realloc(log->lengths, most * sizeof *lengths);
    if (lengths != NULL) {
        log->lengths = lengths;
    }
    void *dealing = malloc(layout_dealer_bytes(&log->plan->layouts, (uint32_t)most, log->plan->cp));
    if (dealing != NULL) {
        free(log->dealing);
        log->dealing = dealing;
        layout_dealer_init(&log->dealer, dealing, &log->plan->layouts, (uint32_t)most,
                           log->plan->cp);
    }
    if (lengths == NULL || dealing == NULL) {
        return error_set(error, -ENOMEM, "%s: no memory for a line of %zu documents", log->path,
                         most);
    }
    log->lengths_max = most;
    return 0;
}

/* The lengths of a line, as one sequence of the job. */
static int log_sequence(struct timing_log *log, char *at, struct packed_sequence *out,
                        struct error *error) {
    uint64_t unit = plan_row_unit(log->plan);
    uint64_t most = plan_bin_tokens(log->plan);
    uint64_t length;
    int rc = 0;
    *out = (struct packed_sequence){0};
    while (rc == 0 && log_number(log, &at, most, &length, &rc, error)) {
        rc = out->documents == log->lengths_max ? log_grow(log, error) : 0;
        if (rc == 0 && out->tokens + length > most) {
            rc = log_refuse(log, "more tokens than a micro-batch holds by plan.tokens_max", error);
        }
        if (rc == 0) {
            log->lengths[out->documents++] = (uint32_t)length;
            out->tokens += length;
        }
    }
    if (rc == 0 && out->documents == 0) {
        rc = log_refuse(log, "a time without the lengths of its documents", error);
    }
    out->lengths = log->lengths;
    out->pad_tokens = (unit - out->tokens % unit) % unit;
    return rc;
}

static int log_reserve(struct timing_log *log, struct error *error) {
    if (log->count < log->capacity) {
        return 0;
    }
    if (log->count == CALIBRATE_SAMPLES_MAX) {
        return error_set(error, -ENOBUFS, "%s: more than %u micro-batches; take a sample",
                         log->path, CALIBRATE_SAMPLES_MAX);
    }
    log->capacity = log->capacity > 0 ? 2 * log->capacity : 256;
    struct calibrate_sample *grown = realloc(log->samples, log->capacity * sizeof *grown);
    if (grown == NULL) {
        return error_set(error, -ENOMEM, "%s: no memory for %" PRIu32 " micro-batches", log->path,
                         log->capacity);
    }
    log->samples = grown;
    return 0;
}

static int log_line(struct timing_log *log, char *line, struct error *error) {
    struct packed_sequence sequence;
    struct layout_choice choice;
    uint64_t forward_ns;
    int rc = 0;
    log->line++;
    if (line[0] == '#' || !log_number(log, &line, TIMING_NS_MAX, &forward_ns, &rc, error)) {
        return rc;
    }
    rc = log_sequence(log, line, &sequence, error);
    if (rc == 0) {
        rc = log_reserve(log, error);
    }
    if (rc == 0) {
        layout_select(&log->plan->layouts, &sequence, log->tiles, &log->dealer, log->rank_ps,
                      &choice);
        (void)layout_deal(&log->dealer, choice.layout, layout_chosen(&choice)->level);
        struct calibrate_sample *sample = &log->samples[log->count++];
        sample->forward_ns = forward_ns;
        step_load_of_deal(&log->dealer, &sample->load);
    }
    return rc;
}

static int log_lines(struct timing_log *log, FILE *file, struct error *error) {
    char *line = NULL;
    size_t bytes = 0;
    int rc = 0;
    while (rc == 0 && getline(&line, &bytes, file) >= 0) {
        rc = log_line(log, line, error);
    }
    free(line);
    if (rc == 0 && ferror(file) != 0) {
        rc = error_set(error, -EIO, "%s: cannot be read after line %" PRIu64, log->path, log->line);
    }
    return rc;
}

int timing_log_read(const char *path, const struct plan_options *plan,
                    const struct tile_model *tiles, struct calibrate_sample **out, uint32_t *count,
                    struct error *error) {
    struct timing_log log = {.path = path, .plan = plan, .tiles = tiles};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        int code = -errno;
        return error_set(error, code, "%s: cannot be opened: %s", path, strerror(-code));
    }
    log.rank_ps = calloc(2 * (size_t)plan->cp, sizeof *log.rank_ps);
    int rc = log.rank_ps != NULL ? log_lines(&log, file, error)
                                 : error_set(error, -ENOMEM, "%s: out of memory", path);
    if (rc == 0) {
        *out = log.samples;
        *count = log.count;
    } else {
        free(log.samples);
    }
    free(log.rank_ps);
    free(log.dealing);
    free(log.lengths);
    (void)fclose(file);
    return rc;
}
