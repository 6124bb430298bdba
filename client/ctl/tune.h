/* tune: one run of `ballastctl tune`, between its options, its candidates and its report.
 *
 * Every candidate is a trial of the scenario with a few settings of its own (measure.h): planned by
 * the daemon's planner on one span of steps, the best again on another span with another seed. */
#ifndef BALLAST_CTL_TUNE_H
#define BALLAST_CTL_TUNE_H

#include "client/ctl/ctl.h"
#include "client/ctl/measure.h"
#include "client/ctl/scenario_options.h"

#define CANDIDATES_MAX        128u
#define CANDIDATE_SETTINGS    8u
#define CANDIDATE_NAME_BYTES  80u
#define CANDIDATE_VALUE_BYTES 40u

#define TUNE_AUTO          UINT64_MAX /* of steps and warm_up */
#define TUNE_TOLERANCE_ANY UINT32_MAX

enum objective { OBJECTIVE_BALANCE = 0, OBJECTIVE_TIME = 1 };

struct candidate_setting {
    const char *key; /* static */
    char value[CANDIDATE_VALUE_BYTES];
};

/* Settings that go before the scenario's; the first is plan.policy. */
struct candidate {
    char name[CANDIDATE_NAME_BYTES];
    struct candidate_setting settings[CANDIDATE_SETTINGS];
    size_t setting_count;
};

/* What a candidate gives on one span. */
struct figures {
    struct measurement measured;
    uint64_t token_ps;       /* step time by token */
    uint64_t tokens_off_ppm; /* by which 99 of 100 steps' tokens miss step_tokens, at most */
};

/* What is minimised, and the delay beside it: mean imbalance in ppm, or picoseconds by token. */
struct standing {
    uint64_t value;
    uint64_t delay_milli;
};

struct contender {
    struct candidate candidate;
    struct standing standing; /* on the span tuned on, while not given up */
    struct figures tuned;
    struct figures checked; /* of those on the front */
    bool refused;           /* its settings do not go with the others */
    bool abandoned;         /* given up on the way */
    bool front;
};

struct tuning {
    struct ctl *ctl;
    struct scenario scenario;
    struct scenario_arguments arguments; /* fill the scenario and options.times */
    enum objective objective;
    uint64_t delay_max_milli;
    uint32_t tolerance_ppm; /* or TUNE_TOLERANCE_ANY */
    const char *seed;       /* NULL: the config's */
    const char *check_seed; /* NULL: the one after it */
    const char *html;       /* NULL: no page */
    struct measure_options options;
    struct config *config; /* without any candidate's settings */
    char check_seed_text[24];
    struct contender *contenders;
    size_t count;
    size_t best; /* `count`: none meets the limits */
};

/* tune_candidates.c: first the settings as configured, then wlb:none; the presets of wlb:level and
 * a grid of its tolerance, urgency and allowance, no tolerance above `tolerance_ppm`; for wlb:bands
 * one to three thresholds out of six. Returns how many. */
size_t candidates_make(const struct plan_options *plan, uint32_t tolerance_ppm,
                       struct candidate out[CANDIDATES_MAX]);

/* tune_options.c: fills `tuning` from the command line; usage errors do not return. */
void tune_parse(struct tuning *tuning, int argc, char **argv);

/* tune_html.c: a page at tuning->html. */
int tune_write_html(const struct tuning *tuning, struct error *error);

/* The next on the front after `at` by delay, which tells its members apart; the first after
 * `count`, and `count` after the last. */
size_t tune_front_next(const struct tuning *tuning, size_t at);

/* tune_print.c, on stdout. */
void tune_print(const struct tuning *tuning);
void tune_print_json(const struct tuning *tuning);

#endif
