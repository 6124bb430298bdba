/* step: the working memory of plan_step and the stages that it runs, one file each.
 *
 * Private to planner/. The parts in hand, those that wait and those that are looked at ahead are
 * one array, `after->waiting`, in stream order (but for those far ahead): reading appends, a
 * decision per part says whether it leaves, packing takes out what found a place. A step leaves the
 * stages as `rows`: its documents by (micro-batch, row order). All memory is reserved when the
 * planner is created, for the limits of its options; pages are touched only as far as steps need
 * them. */
#ifndef BALLAST_PLANNER_STEP_H
#define BALLAST_PLANNER_STEP_H

#include "packer/fixed.h"
#include "planner/planner.h"

/* Swaps between the pools of a step, at most. */
#define POOL_SWAPS_MAX 256u

/* Parts behind the front that are looked at, at most; so many are read again to check a state. */
#define LOOK_AHEAD_LIMIT (1u << 24)

enum departure {
    DEPARTURE_NONE = 0, /* waits */
    DEPARTURE_JOINS,    /* nothing holds it: short, or left over earlier */
    DEPARTURE_RELEASED, /* its band was full */
    DEPARTURE_DUE,      /* by age */
    DEPARTURE_FILLS,    /* else there were fewer documents than micro-batches */
};

/* A part that level looked at and no step comes near. */
struct far_part {
    struct document document;
    uint64_t offset; /* in the stream, tokens: its nominal step is the clock's to say */
};

struct planner {
    struct plan_options options;
    const struct plan_section *sections; /* borrowed; the last is these options'. NULL: it is the
                                            only one */
    uint32_t section_count;
    uint32_t parts_max; /* capacity of states */
    struct work_model model;
    const struct document_source *source; /* borrowed */
    uint64_t row_unit;
    uint64_t bin_tokens;
    uint32_t part_limit;

    /* The step being planned. */
    struct plan_state *after; /* a copy of the state, becomes `next` when the step is whole */
    uint64_t held_tokens;     /* of after->waiting */
    uint32_t held_before;     /* parts in after->waiting that were there before this step */
    uint32_t leaving;         /* parts with a departure */
    uint32_t in_hand;         /* parts that were in after->waiting or in rows at once, at most */
    bool ended;               /* the source has no more */
    struct release release;
    uint64_t predicted_ppm; /* by the release; 0: it predicts nothing */
    uint64_t slip_tokens;   /* by which the clock is set back with this step */

    /* Level looks ahead. As long as planning goes on from the last state that was made, the parts
     * need not be read again. Those that a step may take lie in after->waiting behind
     * waiting_count, those behind them in a queue until their step is near: a section of large
     * steps leaves many to one of small steps. */
    struct plan_state *scan; /* its front is the end of what was looked at; nothing waits in it */
    bool scan_ended;         /* the stream ends there */
    uint32_t ahead;          /* parts looked at and not delivered, in after->waiting */
    uint32_t far_begin;      /* the queue's first; far_count parts from there on */
    uint32_t far_count;
    uint64_t far_tokens;
    bool ahead_kept;    /* they are those of the state in hand */
    bool ahead_slipped; /* the clock was set back since their nominal steps were found */

    /* By held part, or by row: parts_max long. */
    struct waiting *rows; /* the step's documents by (micro-batch, row order) */
    uint8_t *departures;
    uint8_t *verdicts;
    uint32_t *indexes;
    uint32_t *lengths;
    uint32_t *bins;
    uint32_t *order;
    uint64_t *works;
    uint64_t *keys;
    uint32_t *pool; /* level: the candidates' place in after->waiting; likewise the shorts' */
    uint32_t *pool_lengths;
    uint64_t *pool_indices;
    uint32_t *shorts;
    uint64_t *short_works;
    uint64_t *offsets;    /* in the stream, of the parts in after->waiting that lie ahead */
    struct far_part *far; /* 2 * parts_max long */
    void *level_scratch;
    struct fixed_piece *pieces; /* fixed: documents_max of them */
    void *fixed_scratch;
    struct layout_dealer dealer;

    /* By bin: step_bins_max long. The first bins are the step's micro-batches. */
    uint32_t *row_begins; /* bin b is rows[row_begins[b]] to before rows[row_begins[b + 1]] */
    uint64_t *bin_works;
    uint64_t *bin_tokens_held;
    uint32_t *bin_order;
    uint32_t *bin_numbers;
    void *pack_scratch;
    void *refine_scratch;

    /* By micro-batch. */
    uint32_t *slots; /* its position in the plan */
    uint64_t *loads;
    uint32_t *replica_heap;
    uint32_t *replica_taken;
    uint64_t *replica_loads;
    struct layout_choice *choices;
    struct pools_memory *pools;   /* NULL without, as the next */
    struct waiting *ordered_rows; /* parts_max */
    uint64_t *rank_ps;            /* their ranks' prices, cp each, and room for cp more */
};

/* Bins of a drain, at most: with one for every held part, all of them have a place. */
static inline uint32_t step_bins_max(const struct plan_options *options) {
    return plan_parts_max(options) + options->micro_batches;
}

/* Steps' worth of tokens (micro_batches * tokens_max) that are in hand at most. */
uint64_t plan_held_steps(const struct plan_options *options);

/* Nominal step of a part at this token offset: the first k with target(k+1) > offset. */
uint64_t step_nominal(const struct planner *planner, uint64_t offset);

/* Takes the next part at a front, `after` or `scan`, at most `limit` tokens, numbers it and finds
 * its nominal step. False at the end of the stream. */
bool step_read(const struct planner *planner, struct plan_state *front, uint32_t limit,
               struct document *out);

/* pools.c: everything about pools. What a planner needs for them; its memory, laid out as
 * planner.c does. */
struct pools_memory;

/* The shape of the options' pools, resolved; the most pieces that one has. */
struct pool_shape plan_pool_shape(const struct plan_options *options);
uint32_t plan_pool_pieces(const struct plan_options *options);

/* Bytes behind `pools`, for steps of up to `parts_max` parts; making it of them. */
size_t pools_memory_bytes(const struct plan_options *options, uint32_t parts_max);
void pools_memory_init(struct pools_memory *pools, const struct plan_options *options,
                       uint32_t parts_max);

/* Micro-batch `m` of the step as a packed sequence, its lengths known (compose.c). */
struct packed_sequence compose_sequence(const struct planner *planner, uint32_t m);

/* Puts the rows of each micro-batch into reading order. */
void pools_order_rows(struct planner *planner);

/* Groups the step's micro-batches: fills slots. */
void pools_deal(struct planner *planner);

/* Places the attention of every pool, lengths and layouts known: counts pieces, tiles and transfers
 * and replaces rank_ps by what the tiles of each rank take (sharding/pool_cost.h). */
void pools_place(struct planner *planner, struct plan_counts *counts);

/* Writes the pools into a plan of these counts. */
void pools_fill(struct planner *planner, struct step_plan *plan);

/* Whether the step is the first of a section that follows on another; moving `after` there. */
bool section_begins(const struct planner *planner);
void section_begin(struct planner *planner);

/* Packs the held parts indexes[0..count) into bins: fills bins[], order[] (both about positions in
 * indexes), bin_works and bin_tokens_held. Returns how many found no place. */
uint32_t step_pack(struct planner *planner, uint32_t count, uint32_t bins);

/* Makes rows and row_begins of what step_pack placed: by bins[], then placement order. */
void step_group(struct planner *planner, uint32_t count, uint32_t bins);

/* A document leaves its queue with this step. */
void step_count_release(struct planner *planner, const struct document *document);

/* The policies: move `after` past the step but for its clock and delays, leaving the step in rows,
 * row_begins and release. False when no document is left. */
bool wlb_step(struct planner *planner);
bool level_step(struct planner *planner);
bool plain_step(struct planner *planner);
bool fixed_step(struct planner *planner);

/* Bytes of scratch of fixed_step. */
size_t fixed_bytes(uint32_t items, uint32_t bins);

/* Whether it is time to pack all that is held into whole steps; doing so, with the first of them
 * as this step; the next of them. */
bool drain_due(const struct planner *planner);
void drain_begin(struct planner *planner);
void drain_continue(struct planner *planner);

/* Takes `rows` rows of whole steps, heaviest first: the first step is this one, the others wait. */
void drain_serve(struct planner *planner, uint32_t rows);

/* The plan of rows and row_begins; `after` is told what was delivered. NULL: out of memory. */
struct step_plan *compose_plan(struct planner *planner);

#endif
