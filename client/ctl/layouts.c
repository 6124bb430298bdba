/* layouts: see layouts.h. */
#include "client/ctl/layouts.h"

#include "client/ctl/pools_windows.h"
#include "sharding/keys.h"
#include "sharding/select.h"

#include <inttypes.h>
#include <stdlib.h>

#define PPM 1000000u

typedef unsigned __int128 u128;

struct layouts_run {
    const struct plan_options *plan;
    struct tile_model model;
    struct pools_windows windows;
    struct layout_options every; /* one layout, whatever its fragments */
    struct layout_dealer dealer;
    void *memory;
    uint64_t *rank_ps; /* 2 * cp */
};

/* Of one window in the layout that was dealt last. */
struct dealt_figures {
    uint64_t pairs_max;
    u128 pairs_sum;
    uint64_t keys;
    uint64_t fragments;
};

static void figures_add(struct dealt_figures *figures, struct layout_dealer *dealer,
                        uint32_t rank) {
    uint32_t count;
    const struct fragment *fragments = layout_dealt(dealer, rank, &count);
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < count; i++) {
        pairs += fragment_pairs(fragments[i]);
    }
    figures->fragments += count;
    figures->pairs_sum += pairs;
    figures->pairs_max = pairs > figures->pairs_max ? pairs : figures->pairs_max;
    figures->keys += dealer->layout == LAYOUT_ULYSSES ? 0 : keys_needed(fragments, count);
}

/* Ulysses computes as many pairs on every rank, whoever owns the rows. */
static uint64_t figures_pairs_ppm(const struct dealt_figures *figures, enum layout layout,
                                  uint32_t cp) {
    return layout == LAYOUT_ULYSSES || figures->pairs_sum == 0
               ? PPM
               : (uint64_t)((u128)figures->pairs_max * cp * PPM / figures->pairs_sum);
}

/* Sums; layouts_finish makes them means. */
static void row_add(struct layouts_run *run, struct layouts_row *row,
                    const struct packed_sequence *sequence, const struct layout_choice *choice) {
    const struct layout_candidate *chosen = layout_chosen(choice);
    uint32_t cp = run->plan->cp;
    struct dealt_figures figures = {0};
    uint64_t bound_ps = layout_bound_ps(sequence, &run->model, cp);
    (void)layout_deal(&run->dealer, chosen->layout, chosen->level);
    for (uint32_t rank = 0; rank < cp; rank++) {
        figures_add(&figures, &run->dealer, rank);
    }
    uint64_t pairs_ppm = figures_pairs_ppm(&figures, chosen->layout, cp);
    uint64_t bound_ppm = (uint64_t)((u128)chosen->slowest_ps * PPM / bound_ps);
    row->windows++;
    row->pairs_ppm += pairs_ppm;
    row->pairs_worst_ppm = pairs_ppm > row->pairs_worst_ppm ? pairs_ppm : row->pairs_worst_ppm;
    row->bound_ppm += bound_ppm;
    row->bound_worst_ppm = bound_ppm > row->bound_worst_ppm ? bound_ppm : row->bound_worst_ppm;
    row->keys_ppm += (uint64_t)((u128)figures.keys * PPM / cp / sequence->tokens);
    row->fragments_milli += figures.fragments * 1000 / cp;
}

static void layouts_finish(struct layouts_row *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t windows = rows[i].windows > 0 ? rows[i].windows : 1;
        rows[i].pairs_ppm /= windows;
        rows[i].bound_ppm /= windows;
        rows[i].keys_ppm /= windows;
        rows[i].fragments_milli /= windows;
    }
}

static void window_add(struct layouts_run *run, const struct packed_sequence *sequence,
                       struct layouts_row *rows, size_t count) {
    struct layout_choice choice;
    layout_select(&run->plan->layouts, sequence, &run->model, &run->dealer, run->rank_ps, &choice);
    row_add(run, &rows[count - 1], sequence, &choice);
    for (size_t i = 0; i + 1 < count; i++) {
        struct layout_options alone = {.allowed = 1u << rows[i].layout,
                                       .fragments_max = UINT32_MAX};
        rows[i].chosen += choice.layout == rows[i].layout;
        struct layout_choice single;
        layout_select(&alone, sequence, &run->model, &run->dealer, run->rank_ps, &single);
        if (single.layout == rows[i].layout) {
            row_add(run, &rows[i], sequence, &single);
        }
    }
}

static void run_windows(struct layouts_run *run, struct layouts_row *rows, size_t count) {
    for (uint32_t i = 0; i < run->windows.count; i++) {
        struct packed_sequence sequence = {
            .lengths = run->windows.lengths + run->windows.begins[i],
            .documents = run->windows.begins[i + 1] - run->windows.begins[i],
        };
        for (uint32_t k = 0; k < sequence.documents; k++) {
            sequence.tokens += sequence.lengths[k];
        }
        sequence.pad_tokens = run->plan->window - sequence.tokens;
        if (sequence.tokens > 0) {
            window_add(run, &sequence, rows, count);
        }
    }
}

static uint32_t documents_max(const struct pools_windows *windows) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < windows->count; i++) {
        uint32_t documents = windows->begins[i + 1] - windows->begins[i];
        most = documents > most ? documents : most;
    }
    return most;
}

static int run_init(struct layouts_run *run, const struct trial *trial, uint64_t steps,
                    struct error *error) {
    const struct plan_options *plan = run->plan;
    struct work_model work;
    int rc = work_model_init(&work, &plan->model, plan->cp, plan->pp, plan->tp, plan->window,
                             error);
    if (rc == 0) {
        rc = pools_windows_init(&run->windows, trial, steps, error);
    }
    if (rc < 0) {
        return rc;
    }
    uint32_t most = documents_max(&run->windows);
    run->model = work.tiles;
    run->every = (struct layout_options){LAYOUTS_ALLOWED, 2 * most * plan->cp + plan->cp,
                                         plan->layouts.link};
    run->memory = malloc(layout_dealer_bytes(&run->every, most, plan->cp));
    run->rank_ps = calloc(2 * (size_t)plan->cp, sizeof *run->rank_ps);
    if (run->memory == NULL || run->rank_ps == NULL) {
        return error_set(error, -ENOMEM, "no memory to deal %" PRIu32 " documents", most);
    }
    layout_dealer_init(&run->dealer, run->memory, &run->every, most, plan->cp);
    return 0;
}

int layouts_measure(const struct trial *trial, uint64_t steps, struct layouts_row *rows,
                    size_t *count, struct error *error) {
    struct layouts_run run = {.plan = &trial->config->plan};
    int rc = run_init(&run, trial, steps, error);
    if (rc == 0) {
        size_t made = 0;
        for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_ULYSSES; layout++) {
            if (layout != LAYOUT_ULYSSES || layout_heads_divide(&run.model, run.plan->cp)) {
                rows[made++] = (struct layouts_row){.layout = layout};
            }
        }
        rows[made++] = (struct layouts_row){.layout = LAYOUT_NONE};
        run_windows(&run, rows, made);
        layouts_finish(rows, made);
        *count = made;
    }
    pools_windows_deinit(&run.windows);
    free(run.rank_ps);
    free(run.memory);
    return rc;
}
