/* exact: fixed-length packing as WLB-LLM states it (section 3.3, equation 1), solved as an integer
 * program: every piece in one window, no window over its tokens, the heaviest window lightest.
 *
 * A yardstick for simulations and no policy: it may need hours where greedy packing needs
 * microseconds. Its answer stands beside greedy's and beside what no packing of these pieces into
 * these windows can beat. Pieces are those that greedy packing of the same documents makes, so that
 * a packing that fits is known. Needs GLPK, found when Ballast is configured. */
#ifndef BALLAST_CTL_EXACT_H
#define BALLAST_CTL_EXACT_H

#include "client/ctl/json.h"
#include "client/ctl/scenario.h"

#define EXACT_SECONDS_MAX 3600u
#define EXACT_GROUPS_MAX  1000u
#define EXACT_CELLS_MAX   1000000u /* classes times windows */

struct exact_piece {
    uint32_t length; /* tokens, > 0 */
    uint32_t window; /* where greedy packing has it */
};

/* Pieces of one length are alike and counted. */
struct exact_class {
    uint64_t work;
    uint32_t length;
    uint32_t count;
    uint32_t end; /* pieces in this class and those before it */
};

struct exact_instance {
    uint32_t windows;
    uint32_t window_tokens;
    uint32_t class_count;
    struct exact_class *classes; /* by descending length */
    uint32_t *held;              /* [window * class_count + class]: pieces, a packing that fits */
};

struct exact_answer {
    uint64_t greedy_work; /* of the heaviest window, like the next two */
    uint64_t work;
    uint64_t bound_work; /* proven: at most `work`, equal to it when the answer is optimal */
    uint64_t solve_ns;
    bool optimal; /* to the solver's tolerance, 1e-9 of the work */
};

/* Sorts `pieces` in place. exact_instance_deinit takes a zeroed or half-built one. -ENOBUFS beyond
 * EXACT_CELLS_MAX. */
int exact_instance_init(struct exact_instance *instance, struct exact_piece *pieces, uint32_t count,
                        uint32_t windows, uint32_t window_tokens,
                        uint64_t (*work)(const void *model, uint32_t length), const void *model,
                        struct error *error);
void exact_instance_deinit(struct exact_instance *instance);

uint64_t exact_window_work(const struct exact_instance *instance, uint32_t window);

/* Solves for at most `limit_ms`; instance->held becomes the best packing found. */
int exact_solve(struct exact_instance *instance, uint32_t limit_ms, struct exact_answer *answer,
                struct error *error);

/* exact_glpk.c, or exact_none.c which refuses. exact_search lets `held` be the best packing that
 * the solver came to, unchecked, raises *bound_work to what it proved, and returns 1 when it went
 * through all there is, 0 when time ended first. */
int exact_check(struct error *error);
int exact_search(struct exact_instance *instance, uint32_t limit_ms, uint64_t *bound_work,
                 struct error *error);

/* Groups of one run: what simulate prints. */
struct exact_group {
    uint64_t seed;
    uint64_t step; /* the first of the group */
    uint32_t windows;
    uint32_t pieces;
    uint64_t greedy_ppm; /* heaviest window over the mean of the group's, like the next two */
    uint64_t solver_ppm;
    uint64_t bound_ppm;        /* rounded down */
    uint64_t gap_ppm;          /* solver's work over the bound, less one */
    uint64_t greedy_steps_ppm; /* mean of the steps' own imbalance, as the row fixed:K has it */
    uint64_t solver_steps_ppm;
    uint64_t solve_ns;
    bool optimal;
};

struct exact_options {
    uint32_t batches; /* K; 0: not asked for */
    uint32_t limit_ms;
    uint32_t groups; /* of each seed, at most */
};

struct exact_report {
    struct exact_options options;
    struct exact_group *groups; /* owned */
    size_t count;
};

/* exact_groups.c: adds the groups that begin in the `steps` steps from `warm_up` on. */
int exact_measure(struct exact_report *report, struct scenario *scenario, const char *seed,
                  uint64_t warm_up, uint64_t steps, struct error *error);
void exact_report_deinit(struct exact_report *report);

/* A table, and {"batches", "groups": [...], "limit_ms"}; null when it was not asked for. */
void exact_print(const struct exact_report *report);
void exact_print_json(const struct exact_report *report, struct json *json);

#endif
