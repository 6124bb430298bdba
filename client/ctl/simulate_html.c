/* simulate_html: the same findings as one page with figures, nothing fetched, no script. Figures
 * that are drawn for one seed take the first. */
#include "client/ctl/simulate.h"

#include "client/ctl/page.h"
#include "client/ctl/plot.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define EXCESS_MIN              0.01 /* percent; less is drawn as this */
#define TIMELINE_OPERATIONS_MAX 20000u
#define LANE                    18.0 /* pixels a stage */
#define DELAY_SHARE_MIN         0.0005

struct page {
    const struct simulation *simulation;
    const struct row *rows;
    size_t count;
    size_t policies; /* rows of the first seed */
    FILE *out;
    double *values; /* room for a line */
};

static void page_heading(const struct page *page) {
    const struct scenario *scenario = &page->simulation->scenario;
    (void)fputs("<p>", page->out);
    plot_text(page->out, scenario_source(scenario));
    (void)fprintf(page->out,
                  ", documents %s, %" PRIu64 " steps counted; priced by %s, %s: attention x %s, "
                  "linear x %s; pipeline %s, chunks a stage: %" PRIu32 ".</p>\n",
                  scenario->cut ? "cut where plain packing cuts" : "whole",
                  page->rows[0].measured.outcome.steps,
                  model_prices(&page->rows[0].measured.model.options.shape),
                  page->simulation->calibrated ? "calibrated" : "not calibrated",
                  units_milli(page->simulation->options.times.attention_permille).text,
                  units_milli(page->simulation->options.times.linear_permille).text,
                  pipeline_schedule_name(page->simulation->options.times.schedule),
                  page->simulation->options.times.chunks);
}

static void page_table(const struct page *page) {
    (void)fputs("<table><tr><th>policy</th><th>seed</th><th>imbalance</th><th>p99</th><th>worst"
                "</th><th>bound</th><th>delay</th><th>max</th><th>tokens CV</th><th>long</th>"
                "<th>step</th>"
                "<th>gain</th><th>bubble</th></tr>\n",
                page->out);
    for (size_t i = 0; i < page->count; i++) {
        const struct outcome *outcome = &page->rows[i].measured.outcome;
        (void)fputs("<tr><td>", page->out);
        plot_text(page->out, page->rows[i].policy);
        (void)fprintf(page->out,
                      "</td><td>%" PRIu64 "</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td>"
                      "<td>%s</td><td>%" PRIu64 "</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td>"
                      "<td>%s</td></tr>\n",
                      page->rows[i].seed, units_ratio(outcome->total_ppm).text,
                      units_ratio(outcome->p99_ppm).text, units_ratio(outcome->worst_ppm).text,
                      units_ratio(outcome->bound_ppm).text,
                      units_milli(outcome->delay_mean_milli).text, outcome->delay_max,
                      units_share(outcome->tokens_cv_ppm).text,
                      units_gain(outcome->long_weight_ppm).text, units_time(outcome->step_ns).text,
                      page->rows[i].compared ? units_gain(page->rows[i].speedup_ppm).text : "-",
                      units_share(outcome->bubble_ppm).text);
    }
    (void)fputs("</table>\n<p>Imbalance: the heaviest micro-batch over the mean. Bound: what no "
                "packing of the step's documents beats. Delay in steps. Long: what a token of a "
                "document over a quarter of the window weighs beside a mean one where the loss is "
                "averaged over a step's own tokens. Gain: tokens a second over plain packing's."
                "</p>\n",
                page->out);
}

static void page_title(const struct page *page, const char *title) {
    const char *names[POLICIES_MAX];
    (void)fprintf(page->out, "<h2>%s</h2>\n", title);
    for (size_t i = 0; i < page->policies; i++) {
        names[i] = page->rows[i].policy;
    }
    plot_legend(page->out, names, page->policies);
}

static double row_excess(const struct row *row) {
    double percent = ((double)row->measured.outcome.total_ppm - 1e6) / 1e4;
    return percent > EXCESS_MIN ? percent : EXCESS_MIN;
}

/* Balance on a logarithmic scale: what is left of it is what matters. */
static void page_trade(const struct page *page) {
    struct plot plot;
    double delay_high = 0.1;
    double excess_low = 1.0;
    double excess_high = 2.0;
    for (size_t i = 0; i < page->count; i++) {
        const struct outcome *outcome = &page->rows[i].measured.outcome;
        delay_high = (double)outcome->delay_mean_milli > 1e3 * delay_high
                         ? (double)outcome->delay_mean_milli / 1e3
                         : delay_high;
        double excess = row_excess(&page->rows[i]);
        excess_low = excess < excess_low ? excess : excess_low;
        excess_high = excess > excess_high ? excess : excess_high;
    }
    page_title(page, "Balance against delay");
    plot_begin(
        &plot, page->out,
        (struct plot_axis){"mean delay of a token, steps", 0.0, 1.05 * delay_high, false},
        (struct plot_axis){"excess imbalance, mean, %", excess_low, 1.05 * excess_high, true});
    for (size_t i = 0; i < page->count; i++) {
        const struct row *row = &page->rows[i];
        double delay = (double)row->measured.outcome.delay_mean_milli / 1e3;
        plot_point(&plot, i % page->policies, delay, row_excess(row), row->policy);
        if (i < page->policies) {
            plot_name(&plot, delay, row_excess(row), false, row->policy);
        }
    }
    plot_end(&plot);
}

/* One field of every step, divided by `unit`, a line a policy. */
static void page_steps(struct page *page, const char *title, struct plot_axis y, size_t offset,
                       double unit) {
    struct plot plot;
    y.high = y.low + 1e-3;
    for (size_t i = 0; i < page->policies; i++) {
        const struct measurement *measured = &page->rows[i].measured;
        for (size_t s = 0; s < measured->outcome.steps; s++) {
            uint64_t value;
            memcpy(&value, (const char *)&measured->steps[s] + offset, sizeof value);
            y.high = (double)value / unit > y.high ? (double)value / unit : y.high;
        }
    }
    page_title(page, title);
    plot_begin(&plot, page->out,
               (struct plot_axis){"step", 0.0, (double)page->simulation->options.steps, false}, y);
    for (size_t i = 0; i < page->policies; i++) {
        const struct measurement *measured = &page->rows[i].measured;
        for (size_t s = 0; s < measured->outcome.steps; s++) {
            uint64_t value;
            memcpy(&value, (const char *)&measured->steps[s] + offset, sizeof value);
            page->values[s] = (double)value / unit;
        }
        plot_line(&plot, i, 0.0, page->values, measured->outcome.steps);
    }
    plot_end(&plot);
}

/* Share of tokens delayed by more than d steps; returns how many d are worth showing. */
static size_t page_delay_tail(const struct measurement *measured, double *tail) {
    double left = (double)measured->outcome.tokens;
    size_t count = 0;
    for (size_t d = 0; d < MEASURE_DELAYS; d++) {
        left -= (double)measured->delays[d];
        tail[d] = left > 0.0 ? left / (double)measured->outcome.tokens : 0.0;
        count = tail[d] >= DELAY_SHARE_MIN ? d + 2 : count;
    }
    return count < MEASURE_DELAYS ? count : MEASURE_DELAYS;
}

static void page_delays(struct page *page) {
    struct plot plot;
    size_t longest = 2;
    double highest = 0.01;
    for (size_t i = 0; i < page->policies; i++) {
        size_t count = page_delay_tail(&page->rows[i].measured, page->values);
        longest = count > longest ? count : longest;
        highest = page->values[0] > highest ? page->values[0] : highest;
    }
    page_title(page, "Delay");
    plot_begin(&plot, page->out, (struct plot_axis){"delay, steps", 0.0, (double)longest, false},
               (struct plot_axis){"share of tokens delayed by more", 0.0, highest, false});
    for (size_t i = 0; i < page->policies; i++) {
        (void)page_delay_tail(&page->rows[i].measured, page->values);
        plot_line(&plot, i, 0.0, page->values, longest);
    }
    plot_end(&plot);
}

/* Forward of every micro-batch of the first counted step, in plan order. */
static void page_works(const struct page *page) {
    struct plot plot;
    uint32_t micro_batches = page->rows[0].measured.model.options.micro_batches;
    double highest = 1e-9;
    for (size_t i = 0; i < page->policies; i++) {
        const struct measurement *measured = &page->rows[i].measured;
        for (uint32_t m = 0; m < micro_batches; m++) {
            double ms = (double)step_time_forward_ns(&measured->model, &measured->loads[m]) / 1e6;
            highest = ms > highest ? ms : highest;
        }
    }
    page_title(page, "Micro-batches of the first step counted");
    (void)fputs("<p>Plain packing is what there was before; the others pack, and those that hold "
                "documents back train others in this step.</p>\n",
                page->out);
    plot_begin(
        &plot, page->out,
        (struct plot_axis){"micro-batch, by replica and order", 0.0, (double)micro_batches, false},
        (struct plot_axis){"forward, ms", 0.0, highest, false});
    for (uint32_t m = 0; m < micro_batches; m++) {
        for (size_t i = 0; i < page->policies; i++) {
            const struct measurement *measured = &page->rows[i].measured;
            double begin = m + 0.1 + 0.8 * (double)i / (double)page->policies;
            plot_bar(&plot, i, begin, begin + 0.8 / (double)page->policies,
                     (double)step_time_forward_ns(&measured->model, &measured->loads[m]) / 1e6);
        }
    }
    plot_end(&plot);
}

/* One replica's pipeline; all timelines have the scale of the longest. */
static void page_timeline(const struct page *page, const struct pipeline *pipeline,
                          uint64_t longest_ns) {
    const struct pipeline_shape *shape = pipeline->shape;
    double scale = 860.0 / (double)longest_ns;
    (void)fprintf(page->out, "<svg viewBox='0 0 860 %.0f' role='img'>\n", LANE * shape->stages);
    for (uint32_t stage = 0; stage < shape->stages; stage++) {
        for (uint32_t i = 0; i < 2 * shape->micro_batches * shape->chunks; i++) {
            struct pipeline_operation op = pipeline_operation_at(shape, stage, i);
            double begin = scale * (double)pipeline_start_ns(pipeline, op);
            double end = scale * (double)pipeline_end_ns(pipeline, op);
            (void)fprintf(page->out,
                          "<rect class='%s' x='%.1f' y='%.1f' width='%.1f' height='%.1f'><title>"
                          "micro-batch %" PRIu32 "</title></rect>\n",
                          op.backward ? "b" : "f", begin, LANE * stage, end - begin, LANE - 2.0,
                          op.micro_batch);
        }
    }
    (void)fputs("</svg>\n", page->out);
}

static void page_pipelines(const struct page *page) {
    uint64_t longest_ns = 1;
    for (size_t i = 0; i < page->policies; i++) {
        const struct step_time *time = &page->rows[i].measured.first;
        longest_ns = time->pipeline_ns > longest_ns ? time->pipeline_ns : longest_ns;
    }
    (void)fputs("<h2>The pipeline of that step, slowest replica</h2>\n<p>A lane a stage; dark: "
                "forward, light: backward, white: idle.</p>\n",
                page->out);
    for (size_t i = 0; i < page->policies; i++) {
        const struct measurement *measured = &page->rows[i].measured;
        const struct pipeline_shape *shape = &measured->model.shape;
        struct pipeline pipeline;
        void *scratch = malloc(step_time_bytes(&measured->model));
        uint64_t operations = 2 * (uint64_t)shape->stages * shape->chunks * shape->micro_batches;
        (void)fputs("<h3>", page->out);
        plot_text(page->out, page->rows[i].policy);
        (void)fprintf(page->out, ", %s</h3>\n", units_time(measured->first.pipeline_ns).text);
        if (scratch != NULL && operations <= TIMELINE_OPERATIONS_MAX &&
            step_time_pipeline(&measured->model, measured->loads, measured->first.group, scratch,
                               &pipeline, NULL) == 0) {
            page_timeline(page, &pipeline, longest_ns);
        } else {
            (void)fputs("<p>Too large to draw.</p>\n", page->out);
        }
        free(scratch);
    }
}

static void page_write(struct page *page) {
    page_heading(page);
    page_table(page);
    page_trade(page);
    page_steps(page, "Imbalance", (struct plot_axis){"heaviest over mean", 1.0, 0.0, false},
               offsetof(struct step_sample, total_ppm), 1e6);
    page_steps(page, "Tokens of a step", (struct plot_axis){"million tokens", 0.0, 0.0, false},
               offsetof(struct step_sample, tokens), 1e6);
    page_delays(page);
    page_works(page);
    page_pipelines(page);
}

int simulate_write_html(const struct simulation *simulation, const struct row *rows, size_t count,
                        struct error *error) {
    uint64_t longest = simulation->options.steps > MEASURE_DELAYS ? simulation->options.steps
                                                                  : MEASURE_DELAYS;
    struct page page = {
        .simulation = simulation,
        .rows = rows,
        .count = count,
        .policies = simulation->policy_count,
        .values = calloc(longest, sizeof *page.values),
    };
    int rc;
    if (page.values == NULL) {
        return error_set(error, -ENOMEM, "%s: no memory for its figures", simulation->html);
    }
    page.out = page_open(simulation->html, "Packing policies over the same documents", error);
    if (page.out == NULL) {
        rc = error->code;
    } else {
        page_write(&page);
        rc = page_close(page.out, simulation->html, error);
    }
    free(page.values);
    return rc;
}
