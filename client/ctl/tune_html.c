/* tune_html: the settings that were swept, balance against delay, and the front as a table. */
#include "client/ctl/page.h"
#include "client/ctl/plot.h"
#include "client/ctl/tune.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <string.h>

#define EXCESS_MIN 0.01 /* percent; less is drawn as this */

enum series { SERIES_OTHER = 0, SERIES_FRONT = 1, SERIES_LEVEL = 4, SERIES_BANDS = 3 };

/* Nanoseconds by token, or how much more than the mean the heaviest micro-batch is, in percent. */
static double contender_value(const struct tuning *tuning, const struct contender *contender) {
    double value = (double)contender->standing.value;
    return tuning->objective == OBJECTIVE_TIME ? value / 1e3 : (value - 1e6) / 1e4;
}

static double contender_delay(const struct contender *contender) {
    return (double)contender->standing.delay_milli / 1e3;
}

/* Those given up on the way have no place. */
static bool contender_stands(const struct contender *contender) {
    return !contender->refused && !contender->abandoned;
}

static enum series contender_series(const struct contender *contender) {
    const char *policy = contender->candidate.settings[0].value;
    return strcmp(policy, "wlb:level") == 0   ? SERIES_LEVEL
           : strcmp(policy, "wlb:bands") == 0 ? SERIES_BANDS
                                              : SERIES_OTHER;
}

/* Balance on a logarithmic scale: what is left of it is what matters. */
static void page_axes(const struct tuning *tuning, struct plot_axis *x, struct plot_axis *y) {
    bool balance = tuning->objective == OBJECTIVE_BALANCE;
    *x = (struct plot_axis){"mean delay of a token, steps", 0.0, 0.1, false};
    *y = (struct plot_axis){balance ? "excess imbalance, %" : "step time by token, ns",
                            balance ? 1.0 : 1e300, balance ? 2.0 : 0.0, balance};
    for (size_t i = 0; i < tuning->count; i++) {
        const struct contender *contender = &tuning->contenders[i];
        if (contender_stands(contender)) {
            double delay = contender_delay(contender);
            double value = contender_value(tuning, contender);
            x->high = delay > x->high ? delay : x->high;
            y->high = value > y->high ? value : y->high;
            y->low = value < y->low ? value : y->low;
        }
    }
    y->low = balance && y->low < EXCESS_MIN ? EXCESS_MIN : y->low;
    y->high += 0.05 * (y->high - y->low) + 1e-9;
    x->high *= 1.05;
}

static void page_front_line(const struct tuning *tuning, struct plot *plot) {
    double from[2] = {0.0, 0.0};
    bool begun = false;
    for (size_t i = tune_front_next(tuning, tuning->count); i < tuning->count;
         i = tune_front_next(tuning, i)) {
        const struct contender *contender = &tuning->contenders[i];
        double to[2] = {contender_delay(contender), contender_value(tuning, contender)};
        if (begun) {
            plot_link(plot, SERIES_FRONT, from, to);
        }
        memcpy(from, to, sizeof from);
        begun = true;
    }
}

static void page_sweep(const struct tuning *tuning, FILE *page) {
    static const char *const names[] = {"others", "the front", NULL, "bands", "level"};
    struct plot_axis x;
    struct plot_axis y;
    struct plot plot;
    page_axes(tuning, &x, &y);
    (void)fprintf(page, "<h2>%s against delay</h2>\n",
                  tuning->objective == OBJECTIVE_TIME ? "Step time" : "Balance");
    plot_legend(page, names, sizeof names / sizeof names[0]);
    plot_begin(&plot, page, x, y);
    page_front_line(tuning, &plot);
    for (size_t i = 0; i < tuning->count; i++) {
        const struct contender *contender = &tuning->contenders[i];
        if (contender_stands(contender)) {
            double delay = contender_delay(contender);
            double value = contender_value(tuning, contender);
            plot_point(&plot, contender_series(contender), delay, value, contender->candidate.name);
            if (i == 0 || i == tuning->best) {
                plot_name(&plot, delay, value, i == tuning->best, contender->candidate.name);
            }
        }
    }
    plot_end(&plot);
}

static void page_front(const struct tuning *tuning, FILE *page) {
    (void)fputs("<h2>The front</h2>\n<table><tr><th>settings</th><th>tuned</th><th>at delay</th>"
                "<th>imbalance</th><th>p99</th><th>worst</th><th>delay</th><th>max</th>"
                "<th>tokens CV</th><th>step</th></tr>\n",
                page);
    for (size_t i = tune_front_next(tuning, tuning->count); i < tuning->count;
         i = tune_front_next(tuning, i)) {
        const struct contender *contender = &tuning->contenders[i];
        const struct outcome *tuned = &contender->tuned.measured.outcome;
        const struct outcome *checked = &contender->checked.measured.outcome;
        (void)fputs(i == tuning->best ? "<tr><td><b>" : "<tr><td>", page);
        plot_text(page, contender->candidate.name);
        (void)fprintf(page,
                      "%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td>"
                      "<td>%" PRIu64 "</td><td>%s</td><td>%s</td></tr>\n",
                      i == tuning->best ? "</b>" : "", units_ratio(tuned->total_ppm).text,
                      units_milli(tuned->delay_mean_milli).text,
                      units_ratio(checked->total_ppm).text, units_ratio(checked->p99_ppm).text,
                      units_ratio(checked->worst_ppm).text,
                      units_milli(checked->delay_mean_milli).text, checked->delay_max,
                      units_share(checked->tokens_cv_ppm).text, units_time(checked->step_ns).text);
    }
    (void)fputs("</table>\n<p>Tuned on one span of steps, the rest measured on later steps of "
                "another seed. Bold: the best within the limits.</p>\n",
                page);
}

int tune_write_html(const struct tuning *tuning, struct error *error) {
    FILE *page = page_open(tuning->html, "Settings tried", error);
    if (page == NULL) {
        return error->code;
    }
    (void)fputs("<p>Documents of ", page);
    plot_text(page, scenario_source(&tuning->scenario));
    (void)fprintf(page,
                  "; %" PRIu64 " steps tuned on and as many checked on; a mean delay of at most %s "
                  "steps wanted. Settings that could not reach the front were given up on the way "
                  "and are not shown.</p>\n",
                  tuning->options.steps, units_milli(tuning->delay_max_milli).text);
    page_sweep(tuning, page);
    page_front(tuning, page);
    return page_close(page, tuning->html, error);
}
