/* figure: what benches print, one figure a line, beside its peer and its limit.
 *
 * A figure is judged by its ratio to its peer, something plain that is measured in turn with it so
 * that other work on the machine weighs on both, or by its own value if it has none. Every bench
 * understands --json (an object with its figures) and --smoke (whether it runs: small, and nothing
 * is judged). */
#ifndef BALLAST_TESTS_BENCH_FIGURE_H
#define BALLAST_TESTS_BENCH_FIGURE_H

#include <stdbool.h>
#include <stdint.h>

enum figure_rule { FIGURE_REPORTED = 0, FIGURE_AT_MOST, FIGURE_AT_LEAST };

struct figure {
    const char *subject; /* what was measured */
    const char *name;    /* what of it */
    const char *unit;
    double value;
    const char *peer; /* NULL: none */
    double peer_value;
    double ratio; /* to the peer */
    enum figure_rule rule;
    double limit; /* of the ratio; of the value where there is no peer */
};

/* What one run of a bench has printed. */
struct figures {
    bool json;
    bool smoke;
    uint32_t count;
    bool held; /* all limits so far */
};

/* Takes --json and --smoke out of the arguments and prints what precedes the figures. */
void figures_begin(struct figures *figures, const char *bench, int *argc, char **argv);

void figures_add(struct figures *figures, const struct figure *figure);

/* The same with medians: of the values, of the peer's, and of the ratios turn by turn. Sorts both.
 */
void figures_add_turns(struct figures *figures, const struct figure *figure, double *values,
                       double *peer_values, uint32_t turns);

/* Prints what follows the figures; returns the program's exit status. */
int figures_end(const struct figures *figures);

double figure_median(double *values, uint32_t count);

/* For figures that no turns pair: other work on the machine only ever adds. */
double figure_least(const double *values, uint32_t count);

/* CPU time of this thread. */
double figure_cpu_us(void);

#endif
