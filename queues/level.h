/* level: which outliers leave with a step, and how many tokens the step is to take.
 *
 * Bands wait until N documents of like length are there. Level looks at the step instead: outlier
 * candidates wait in one pool, and before every step the imbalance that each possible release would
 * give is predicted, by placing the released documents into bins and pouring the short documents
 * over them like water up to one level, under the token bound. Of the releases whose prediction is
 * within an allowance the most valuable leaves: tokens times age, less the price of its imbalance.
 * Short documents fill up what is left of the step's tokens. The allowance grows with the age of
 * the oldest document of the release and with what waits in all, so that nothing waits for ever.
 *
 * A step, for the caller:
 *   scan      read the stream ahead while the nominal step of the next part is at most
 *             step + horizon; parts of at least candidate_length join the pool, the others are
 *             shorts;
 *   decide    level_decide: verdicts on the pool, and the step's tokens;
 *   take      level_take_shorts: shorts in reading order until the step's tokens are reached;
 *   pack      packer/greedy. What does not fit goes back, to the pool or among the shorts;
 *   advance   level_advance, with the tokens that were packed.
 *
 * All that is remembered is struct level_state, the pool and the shorts. Integers only, no
 * allocation; the result depends on nothing but the arguments. Decisions take O(P log P) for a pool
 * of P documents and O(S log S + N log N) for each of at most max_evaluations predictions, S being
 * the documents of a release. */
#ifndef BALLAST_QUEUES_LEVEL_H
#define BALLAST_QUEUES_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEVEL_PPM 1000000u

/* Fractions are in parts per million and rounded down to 1/65536 before use. */
struct level_options {
    uint32_t bins;             /* N, micro-batches of a step; > 0 */
    uint64_t bin_tokens;       /* what one of them holds; > 0, N of them below 2^40 */
    uint64_t step_tokens;      /* T, the target of a step; > 0, at most what the bins hold */
    uint64_t token_work;       /* work of one token of a short document, for when none is in sight;
                                  > 0 */
    uint32_t token_tolerance;  /* a step takes T * (1 +- this) */
    uint32_t headroom_share;   /* and at most T + this * (N * bin_tokens - T) */
    uint32_t allowance;        /* predicted imbalance above 1 that is accepted, nothing urgent */
    uint32_t allowance_urgent; /* the same with urgency 1; >= allowance */
    uint32_t allowance_ramp;   /* added over the last quarter of urgency */
    uint32_t urgency_power;    /* of urgency, between the two */
    uint32_t imbalance_price;  /* an imbalance of 1 outweighs T tokens that leave so many steps
                                  sooner */
    uint32_t max_age;          /* steps; what is as old leaves whatever it does to the balance */
    uint32_t max_backlog;      /* waiting tokens at which urgency is 1, of T */
    uint32_t look_ahead;       /* steps that a candidate may leave early */
    uint32_t horizon;          /* steps that the stream is scanned ahead; >= look_ahead */
    uint32_t candidate_length; /* tokens; shorter documents never wait on purpose; > 0 */
    uint32_t companion;        /* documents leave early beside one at most 1/this times as long */
    uint32_t max_evaluations;  /* predictions in a step, about; > 0 */
    uint32_t fit_window; /* shorts looked at for the last gap, from the first that does not fit on;
                            > 0 */
};

enum level_preset {
    LEVEL_BALANCED = 0, /* even work, tokens within 25 % of T */
    LEVEL_STEADY = 1,   /* tokens within 1 % of T */
    LEVEL_PROMPT = 2,   /* less delay, tokens within 40 % */
    LEVEL_FINE = 3,     /* work as even as bands make it; for bins of 1.5 windows and more */
};

/* Preset <-> name ("balanced", "steady", "prompt", "fine"). NULL for a number, -EINVAL for a name
 * that is none. */
const char *level_preset_name(enum level_preset preset);
int level_preset_parse(const char *name, enum level_preset *out);

/* Sets every parameter for this window; leaves bins, bin_tokens, step_tokens and token_work. */
void level_options_preset(enum level_preset preset, uint32_t window, struct level_options *options);

/* What is wrong with an option: the config key in [level], its value, the values it may have beside
 * the others (least > most: none), and what to do. Static texts. */
struct level_fault {
    const char *key;
    uint64_t value;
    uint64_t least;
    uint64_t most;
    const char *remedy;
};

/* 0, or -EINVAL with the first fault, by the order of the fields. */
int level_options_check(const struct level_options *options, struct level_fault *fault);

/* What level remembers beside the documents. Totals below 2^62. */
struct level_state {
    uint64_t step;             /* to be planned next */
    uint64_t target_tokens;    /* T summed over the steps before it, less slip_tokens; the nominal
                                  step of a part is the first k with target(k+1) > the token offset
                                  of its start in the stream */
    uint64_t delivered_tokens; /* packed in the steps before it */
    uint64_t slip_tokens;      /* by which the clock was set back, when steps could not keep up */
};

/* The documents before level. */
struct level_view {
    /* The pool: candidates scanned and not delivered, by (length, stream index) ascending. */
    uint32_t candidates;
    const uint32_t *lengths;
    const uint64_t *works;
    const uint64_t *nominal_steps; /* ascending in the stream index */
    const uint64_t *stream_indices;
    /* Shorts in the order they leave in: all of them, or the first that together have more than
     * bins * bin_tokens tokens. */
    uint32_t shorts;
    const uint32_t *short_lengths;
    const uint64_t *short_works; /* of the first of them that together have bins * bin_tokens */
};

enum level_verdict {
    LEVEL_WAITS = 0,
    LEVEL_RELEASED = 1,
    LEVEL_EARLY = 2, /* released, its nominal step lies ahead */
    LEVEL_DUE = 3,   /* released because of its age, or because too much waits */
};

/* The decision in figures. */
struct level_decision {
    uint64_t tokens;      /* the step is to take, the released ones included */
    uint64_t tokens_base; /* what the clock asks for */
    uint64_t tokens_most; /* what a release may use up */
    uint64_t released_tokens;
    uint64_t present_tokens; /* in the pool, nominal step not ahead */
    uint32_t released;       /* documents; of these: */
    uint32_t early;
    uint32_t due;
    uint32_t due_missed; /* documents that were due and found no room in tokens_most */
    uint32_t evaluations;
    bool accepted;          /* the prediction is within the allowance */
    uint64_t allowance_ppm; /* of the release, above 1 */
    uint64_t urgency_ppm;   /* that it follows from */
    uint64_t predicted_ppm; /* largest work over mean work of the bins, 1000000 is even;
                               UINT64_MAX: the due documents do not fit beside one another */
};

/* Bytes of scratch for a pool of at most `candidates`; alignment of max_align_t. */
size_t level_bytes(const struct level_options *options, uint32_t candidates);

/* Decides for state->step: verdicts[i] (one of enum level_verdict) on each candidate. The options
 * have passed level_options_check. All works together are less than 2^62, and so is the work of
 * bin_tokens tokens of shorts. */
void level_decide(const struct level_options *options, const struct level_state *state,
                  const struct level_view *view, void *scratch, uint8_t *verdicts,
                  struct level_decision *decision);

/* Which shorts join released documents of `released_tokens` in a step of `tokens`: taken[i] is 1
 * for those that do, else 0. In order while they fit; of fit_window documents from the first on
 * that does not, each that still fits. Returns the tokens of those taken. */
uint64_t level_take_shorts(const struct level_options *options, const uint32_t *lengths,
                           uint32_t shorts, uint64_t released_tokens, uint64_t tokens,
                           uint8_t *taken);

/* Moves the state past a step of `tokens` packed tokens. What it stays behind by more than T slips:
 * those tokens are taken off the clock. */
void level_advance(const struct level_options *options, struct level_state *state, uint64_t tokens);

#endif
