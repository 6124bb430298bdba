/* simulate: one run of `ballastctl simulate`, between its options, its trials and its reports. */
#ifndef BALLAST_CTL_SIMULATE_H
#define BALLAST_CTL_SIMULATE_H

#include "client/ctl/ctl.h"
#include "client/ctl/exact.h"
#include "client/ctl/measure.h"
#include "client/ctl/layouts.h"
#include "client/ctl/pools.h"
#include "client/ctl/scenario_options.h"

#define POLICIES_MAX 16u
#define SEEDS_MAX    64u

#define WARM_UP_AUTO UINT64_MAX /* a tenth of the steps, at least queues.max_age; 0 if data end */

struct simulation {
    struct ctl *ctl;
    struct scenario scenario;
    struct scenario_arguments arguments; /* fill the scenario and options.times */
    const char *policies[POLICIES_MAX];
    size_t policy_count;
    const char *seeds[SEEDS_MAX]; /* NULL: the config's */
    size_t seed_count;
    struct measure_options options;
    uint64_t short_ns; /* measured, to calibrate; 0: not given, like the next two */
    uint64_t long_ns;
    uint64_t imbalance_ppm;    /* of plain packing, to calibrate */
    const char *log;           /* of forward times, to calibrate; NULL: none */
    uint32_t fit_ppm;          /* R2 of that calibration */
    uint64_t measured_step_ns; /* of the first policy; 0: not given */
    const char *html;          /* NULL: no page */
    struct exact_report exact;
    struct pools_request pools;
    bool layouts; /* instead of policies: those of one context-parallel group */
    bool calibrated;
};

/* One policy and seed. */
struct row {
    const char *policy;
    uint64_t seed;
    bool compared; /* there is a plain row of this seed: then speedups are known */
    uint64_t speedup_ppm;
    uint64_t variants_ppm[MEASURE_VARIANTS];
    struct measurement measured;
};

/* simulate_options.c: fills `simulation` from the command line; usage errors do not return. */
void simulate_parse(struct simulation *simulation, int argc, char **argv);

/* simulate_calibrate.c: sets the scales of options.times as the command line wants, if it does. */
int simulate_calibrate(struct simulation *simulation, struct error *error);

/* simulate_print.c: tables for people, and {"config": {...}, "exact": ..., "rows": [...]}, both on
 * stdout. `config` is the scenario's, whatever its policy. */
void simulate_print(const struct simulation *simulation, const struct row *rows, size_t count);
void simulate_print_json(const struct simulation *simulation, const struct config *config,
                         const struct row *rows, size_t count);

/* simulate_html.c: the same as a page at simulation->html. */
int simulate_write_html(const struct simulation *simulation, const struct row *rows, size_t count,
                        struct error *error);

#endif
