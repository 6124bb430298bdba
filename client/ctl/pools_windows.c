/* pools_windows: see pools_windows.h. */
#include "client/ctl/pools_windows.h"

#include "packer/best_fit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LENGTHS_MAX (1u << 28)

/* Documents as they are read, and the windows made of them. */
struct reading {
    const struct trial *trial;
    struct plan_state *state; /* its cursor */
    struct pools_windows *out;
    uint32_t *items;
    uint32_t item_capacity;
    uint32_t length_count;
    uint32_t length_capacity;
};

static bool grow(uint32_t **values, uint32_t *capacity, uint64_t needed) {
    uint64_t wanted = needed < *capacity ? *capacity : 2 * needed + 1024;
    if (wanted > LENGTHS_MAX) {
        return false;
    }
    if (wanted > *capacity) {
        uint32_t *grown = realloc(*values, wanted * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        *values = grown;
        *capacity = (uint32_t)wanted;
    }
    return true;
}

/* Reads documents that fill `tokens`, the last one cut; returns how many, or -ENOMEM. */
static int64_t read_items(struct reading *r, uint64_t tokens, uint64_t *read) {
    const struct document_source *source = r->trial->source;
    uint32_t window = r->trial->config->plan.window;
    uint32_t count = 0;
    for (*read = 0; *read < tokens; count++) {
        struct document document;
        uint64_t left = tokens - *read;
        if (source->next(source->context, &r->state->cursor,
                         left < window ? (uint32_t)left : window, &document) == 0) {
            break;
        }
        if (!grow(&r->items, &r->item_capacity, count + 1)) {
            return -ENOMEM;
        }
        r->items[count] = document.length;
        *read += document.length;
    }
    return count;
}

static void window_add(struct reading *r, uint32_t window, uint32_t length) {
    r->out->lengths[r->length_count++] = length;
    r->out->begins[window + 1] = r->length_count;
    r->out->works[window] += (uint64_t)length * length;
}

/* Concatenates and cuts. */
static void windows_cut(struct reading *r, uint32_t items, uint32_t bins) {
    uint32_t size = r->trial->config->plan.window;
    uint64_t filled = 0;
    for (uint32_t i = 0; i < items; i++) {
        uint32_t left = r->items[i];
        while (left > 0) {
            uint32_t room = size - (uint32_t)(filled % size);
            uint32_t length = left < room ? left : room;
            window_add(r, r->out->count + (uint32_t)(filled / size), length);
            filled += length;
            left -= length;
        }
    }
    r->out->count += bins;
}

static int piece_compare(const void *a, const void *b) {
    const struct fixed_piece *x = a;
    const struct fixed_piece *y = b;
    if (x->bin != y->bin) {
        return x->bin < y->bin ? -1 : 1;
    }
    return x->item < y->item ? -1 : x->item > y->item;
}

static bool windows_fit(struct reading *r, uint32_t items, uint32_t bins) {
    struct best_fit_input input = {r->items, items, bins, r->trial->config->plan.window};
    size_t most = pack_fixed_pieces_max(items, bins);
    struct fixed_piece *pieces = malloc(most * sizeof *pieces);
    uint64_t *tokens = malloc(bins * sizeof *tokens);
    void *scratch = malloc(pack_best_fit_bytes(items, bins));
    bool made = pieces != NULL && tokens != NULL && scratch != NULL;
    if (made) {
        uint32_t count = pack_best_fit(&input, scratch, pieces, tokens);
        qsort(pieces, count, sizeof *pieces, piece_compare);
        for (uint32_t i = 0; i < count; i++) {
            window_add(r, r->out->count + pieces[i].bin, pieces[i].length);
        }
        r->out->count += bins;
    }
    free(scratch);
    free(tokens);
    free(pieces);
    return made;
}

/* The next steps' windows: 1, 0 at the end of the data, or -ENOMEM. */
static int windows_read(struct reading *r, uint64_t steps) {
    const struct plan_options *plan = &r->trial->config->plan;
    uint64_t bins = steps * plan->micro_batches;
    uint64_t read;
    int64_t items = read_items(r, bins * plan->window, &read);
    if (items < 0) {
        return (int)items;
    }
    bins = read / plan->window / plan->micro_batches * plan->micro_batches;
    if (bins * plan->window != read) {
        return 0;
    }
    if (!grow(&r->out->lengths, &r->length_capacity, r->length_count + (uint64_t)items + bins)) {
        return -ENOMEM;
    }
    if (plan->pools.look_ahead == 0) {
        windows_cut(r, (uint32_t)items, (uint32_t)bins);
        return 1;
    }
    return windows_fit(r, (uint32_t)items, (uint32_t)bins) ? 1 : -ENOMEM;
}

static int windows_read_all(struct reading *r, uint64_t steps) {
    uint64_t batches = r->trial->config->plan.pools.look_ahead;
    batches = batches > 0 ? batches : 1;
    int rc = 1;
    for (uint64_t done = 0; rc == 1 && done < steps; done += batches) {
        rc = windows_read(r, steps - done < batches ? steps - done : batches);
    }
    return rc < 0 ? rc : 0;
}

int pools_windows_init(struct pools_windows *windows, const struct trial *trial, uint64_t steps,
                       struct error *error) {
    struct reading reading = {.trial = trial, .out = windows};
    size_t most = (size_t)steps * trial->config->plan.micro_batches;
    memset(windows, 0, sizeof *windows);
    reading.state = plan_state_create(trial->source->dataset_count, 0);
    windows->begins = calloc(most + 1, sizeof *windows->begins);
    windows->works = calloc(most, sizeof *windows->works);
    bool made = reading.state != NULL && windows->begins != NULL && windows->works != NULL;
    int rc = made ? windows_read_all(&reading, steps) : -ENOMEM;
    if (rc == 0 && windows->count == 0) {
        rc = error_set(error, -ENOENT,
                       "the documents do not fill one global batch of %" PRIu32 " windows; lower "
                       "--global-batch or --window",
                       trial->config->plan.micro_batches);
    } else if (rc < 0) {
        (void)error_set(error, rc, "no memory for %" PRIu64 " global batches; lower --steps",
                        steps);
    }
    free(reading.items);
    plan_state_destroy(reading.state);
    return rc;
}

void pools_windows_deinit(struct pools_windows *windows) {
    free(windows->works);
    free(windows->lengths);
    free(windows->begins);
    memset(windows, 0, sizeof *windows);
}
