/* select: price every candidate on every rank, keep the best.
 *
 * Candidates are visited by layout number and level, so a later one replaces the choice only when
 * it is strictly better: that is the last tie-break. */
#include "sharding/select.h"

#include "sharding/floor.h"

#include <assert.h>
#include <string.h>

static uint32_t layout_spread_max(const struct layout_options *options) {
    uint32_t spreads = 1u << LAYOUT_VARIABLE_DEGREE | 1u << LAYOUT_HYBRID;
    return (options->allowed & spreads) != 0 ? options->fragments_max : 0;
}

static size_t layout_scratch_bytes(uint32_t documents_max) {
    return (layout_rank_fragments_max(documents_max) * sizeof(struct fragment) + 7) / 8 * 8;
}

size_t layout_dealer_bytes(const struct layout_options *options, uint32_t documents_max,
                           uint32_t cp) {
    return layout_scratch_bytes(documents_max) +
           spread_bytes(documents_max, cp, layout_spread_max(options));
}

void layout_dealer_init(struct layout_dealer *dealer, void *memory,
                        const struct layout_options *options, uint32_t documents_max, uint32_t cp) {
    *dealer = (struct layout_dealer){.cp = cp, .link = options->link, .scratch = memory};
    spread_init(&dealer->spread, (uint8_t *)memory + layout_scratch_bytes(documents_max),
                documents_max, cp, layout_spread_max(options));
}

void layout_begin(struct layout_dealer *dealer, const struct packed_sequence *sequence,
                  const struct tile_model *model) {
    dealer->sequence = sequence;
    dealer->model = model;
    if (dealer->spread.pieces_max > 0) {
        spread_begin(&dealer->spread, sequence, model);
    }
}

/* Gives up when it is certain that some rank takes longer than `limit_ps`. */
static bool layout_deal_within(struct layout_dealer *dealer, enum layout layout, uint32_t level,
                               uint64_t limit_ps) {
    dealer->layout = layout;
    if (spread_levels(layout) == 0) {
        return true;
    }
    return dealer->spread.pieces_max > 0 &&
           spread_deal(&dealer->spread, (struct spread_rule){layout, level}, limit_ps);
}

bool layout_deal(struct layout_dealer *dealer, enum layout layout, uint32_t level) {
    return layout_deal_within(dealer, layout, level, UINT64_MAX);
}

const struct fragment *layout_dealt(struct layout_dealer *dealer, uint32_t rank, uint32_t *count) {
    if (spread_levels(dealer->layout) > 0) {
        return spread_fragments(&dealer->spread, rank, count);
    }
    uint32_t capacity = layout_rank_fragments_max(dealer->sequence->documents);
    *count = layout_fragments(dealer->layout, dealer->sequence, dealer->cp, rank, dealer->scratch,
                              capacity);
    assert(*count <= capacity);
    return dealer->scratch;
}

bool layout_heads_divide(const struct tile_model *model, uint32_t cp) {
    return model->q_heads % cp == 0 && (model->kv_heads % cp == 0 || cp % model->kv_heads == 0);
}

struct tile_model layout_heads_of(const struct tile_model *model, uint32_t cp) {
    struct tile_model heads = *model;
    heads.q_heads /= cp;
    heads.kv_heads = heads.kv_heads > cp ? heads.kv_heads / cp : 1;
    return heads;
}

static struct tile_loads layout_documents(const struct packed_sequence *sequence,
                                          const struct tile_model *model) {
    struct tile_loads loads = {0};
    for (uint32_t i = 0; i < sequence->documents; i++) {
        struct fragment whole = {.document = i, .length = sequence->lengths[i]};
        tile_loads_add(model, &loads, &whole, 1);
    }
    return loads;
}

/* What a rank computes of the last deal; `model` becomes that of its heads. */
static struct tile_loads layout_loads(struct layout_dealer *dealer, uint32_t rank,
                                      struct tile_model *model) {
    struct tile_loads loads = {0};
    *model = *dealer->model;
    if (dealer->layout != LAYOUT_ULYSSES) {
        uint32_t count;
        const struct fragment *fragments = layout_dealt(dealer, rank, &count);
        tile_loads_add(model, &loads, fragments, count);
        return loads;
    }
    *model = layout_heads_of(model, dealer->cp);
    return layout_documents(dealer->sequence, model);
}

uint64_t layout_rank_ps(struct layout_dealer *dealer, uint32_t rank) {
    struct tile_model model;
    struct tile_loads loads = layout_loads(dealer, rank, &model);
    return tile_loads_ps(&model, &loads);
}

uint64_t layout_forward_ps(struct layout_dealer *dealer, uint32_t rank) {
    struct tile_model model;
    struct tile_loads loads = layout_loads(dealer, rank, &model);
    return tile_loads_forward_ps(&model, &loads);
}

static uint64_t layout_sum_ps(uint64_t a, uint64_t b) {
    return a < UINT64_MAX - b ? a + b : UINT64_MAX;
}

/* What a rank of the last deal takes, waiting included. */
static uint64_t layout_price_rank(struct layout_dealer *dealer, uint32_t rank,
                                  const struct fragment *fragments, uint32_t count) {
    const struct packed_sequence *sequence = dealer->sequence;
    if (dealer->layout == LAYOUT_ULYSSES) {
        uint64_t rows = (sequence->tokens + sequence->pad_tokens) / dealer->cp;
        return layout_sum_ps(layout_rank_ps(dealer, rank),
                             wait_heads_ps(&dealer->link, dealer->model, dealer->cp, rows));
    }
    return layout_sum_ps(tile_cost_ps(dealer->model, fragments, count),
                         wait_keys_ps(&dealer->link, dealer->model, fragments, count));
}

/* False when it cannot be dealt, or some rank takes longer than `limit_ps`. */
static bool layout_price(struct layout_dealer *dealer, enum layout layout, uint32_t level,
                         uint64_t limit_ps, uint64_t *rank_ps, struct layout_candidate *out) {
    *out = (struct layout_candidate){.layout = layout, .level = level};
    if (!layout_deal_within(dealer, layout, level, limit_ps)) {
        return false;
    }
    for (uint32_t rank = 0; rank < dealer->cp; rank++) {
        uint32_t count;
        const struct fragment *fragments = layout_dealt(dealer, rank, &count);
        bool alike = layout == LAYOUT_ULYSSES && rank > 0;
        out->fragments += count;
        rank_ps[rank] = alike ? rank_ps[0] : layout_price_rank(dealer, rank, fragments, count);
        out->slowest_ps = rank_ps[rank] > out->slowest_ps ? rank_ps[rank] : out->slowest_ps;
        if (out->slowest_ps > limit_ps) {
            return false;
        }
    }
    return true;
}

static bool layout_better(const struct layout_candidate *a, const struct layout_candidate *b) {
    if (a->slowest_ps != b->slowest_ps) {
        return a->slowest_ps < b->slowest_ps;
    }
    return a->fragments < b->fragments;
}

/* Adds a layout at its best level; its ranks' prices lie behind those of the best so far, which
 * they replace if it is better. */
static void layout_offer(struct layout_dealer *dealer, enum layout layout, uint32_t fragments_max,
                         uint64_t *rank_ps, struct layout_choice *choice,
                         struct layout_candidate *chosen) {
    struct layout_candidate *best = NULL;
    uint32_t levels = spread_levels(layout) > 0 ? spread_levels(layout) : 1;
    for (uint32_t level = 0; level < levels; level++) {
        struct layout_candidate candidate;
        if (level > 0 && dealer->spread.pieces_max > 0 &&
            spread_repeats(&dealer->spread, (struct spread_rule){layout, level})) {
            continue;
        }
        uint64_t limit_ps = best != NULL ? best->slowest_ps : UINT64_MAX;
        if (!layout_price(dealer, layout, level, limit_ps, rank_ps + dealer->cp, &candidate) ||
            candidate.fragments > fragments_max) {
            continue;
        }
        if (choice->layout == LAYOUT_NONE || layout_better(&candidate, chosen)) {
            choice->layout = layout;
            *chosen = candidate;
            memcpy(rank_ps, rank_ps + dealer->cp, dealer->cp * sizeof *rank_ps);
        }
        if (best == NULL) {
            best = &choice->candidates[choice->candidate_count++];
            *best = candidate;
        } else if (layout_better(&candidate, best)) {
            *best = candidate;
        }
    }
}

void layout_select(const struct layout_options *options, const struct packed_sequence *sequence,
                   const struct tile_model *model, struct layout_dealer *dealer, uint64_t *rank_ps,
                   struct layout_choice *out) {
    struct layout_candidate chosen;
    *out = (struct layout_choice){0};
    layout_begin(dealer, sequence, model);
    for (enum layout layout = LAYOUT_PER_SEQUENCE; dealer->cp > 1 && layout <= LAYOUT_ULYSSES;
         layout++) {
        bool possible = layout != LAYOUT_ULYSSES || layout_heads_divide(model, dealer->cp);
        if ((options->allowed & 1u << layout) != 0 && possible) {
            layout_offer(dealer, layout, options->fragments_max, rank_ps, out, &chosen);
        }
    }
    if (out->candidate_count == 0) {
        layout_offer(dealer, LAYOUT_PER_SEQUENCE, UINT32_MAX, rank_ps, out, &chosen);
    }
}

void layout_settle(enum layout layout, const struct packed_sequence *sequence,
                   const struct tile_model *model, struct layout_dealer *dealer, uint64_t *rank_ps,
                   struct layout_choice *out) {
    assert(spread_levels(layout) == 0);
    layout_begin(dealer, sequence, model);
    *out = (struct layout_choice){.layout = layout, .candidate_count = 1};
    (void)layout_price(dealer, layout, 0, UINT64_MAX, rank_ps, &out->candidates[0]);
}

uint64_t layout_bound_ps(const struct packed_sequence *sequence, const struct tile_model *model,
                         uint32_t cp) {
    struct tile_model floor;
    (void)tile_model_floor(model, sequence->lengths, sequence->documents, &floor);
    struct tile_loads loads = layout_documents(sequence, &floor);
    return sequence->documents == 0
               ? 0
               : tile_launch_ps(model) + tile_loads_work_ps(&floor, &loads) / cp;
}
