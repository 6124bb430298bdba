/* plot: see plot.h. */
#include "client/ctl/plot.h"

#include <math.h>
#include <stdbool.h>

#define MARGIN_LEFT   64.0
#define MARGIN_RIGHT  12.0
#define MARGIN_TOP    12.0
#define MARGIN_BOTTOM 40.0
#define TICKS         5.0

void plot_text(FILE *out, const char *text) {
    for (const char *p = text; *p != '\0'; p++) {
        switch (*p) {
        case '<':
            (void)fputs("&lt;", out);
            break;
        case '>':
            (void)fputs("&gt;", out);
            break;
        case '&':
            (void)fputs("&amp;", out);
            break;
        case '"':
            (void)fputs("&quot;", out);
            break;
        default:
            (void)fputc(*p, out);
        }
    }
}

const char *plot_colour(size_t i) {
    static const char *const colours[PLOT_COLOURS] = {"#777777", "#d55e00", "#0072b2", "#009e73",
                                                      "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
    return colours[i % PLOT_COLOURS];
}

static double plot_x(const struct plot *plot, double x) {
    double share = (x - plot->x.low) / (plot->x.high - plot->x.low);
    return MARGIN_LEFT + share * (plot->width - MARGIN_LEFT - MARGIN_RIGHT);
}

static double plot_y(const struct plot *plot, double y) {
    double share = (y - plot->y.low) / (plot->y.high - plot->y.low);
    if (plot->y.logarithmic) {
        double held = y > plot->y.low ? y : plot->y.low;
        share = log(held / plot->y.low) / log(plot->y.high / plot->y.low);
    }
    return plot->height - MARGIN_BOTTOM - share * (plot->height - MARGIN_TOP - MARGIN_BOTTOM);
}

/* 1, 2 or 5 times a power of ten. */
static double plot_tick(const struct plot_axis *axis) {
    double rough = (axis->high - axis->low) / TICKS;
    double power = pow(10.0, floor(log10(rough)));
    double digit = rough / power;
    return power * (digit < 1.5 ? 1.0 : digit < 3.5 ? 2.0 : digit < 7.5 ? 5.0 : 10.0);
}

static void plot_ticks_x(const struct plot *plot) {
    double tick = plot_tick(&plot->x);
    for (double x = ceil(plot->x.low / tick) * tick; x <= plot->x.high + tick / 1e6; x += tick) {
        (void)fprintf(plot->out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.6g</text>\n",
                      plot_x(plot, x), plot->height - MARGIN_BOTTOM + 15.0,
                      fabs(x) < tick / 2 ? 0.0 : x);
    }
}

static void plot_tick_y(const struct plot *plot, double y) {
    (void)fprintf(plot->out,
                  "<path d='M%.1f %.1fH%.1f' class='grid'/><text x='%.1f' y='%.1f' "
                  "text-anchor='end'>%.6g</text>\n",
                  MARGIN_LEFT, plot_y(plot, y), plot->width - MARGIN_RIGHT, MARGIN_LEFT - 6.0,
                  plot_y(plot, y) + 4.0, y);
}

/* 1, 2 and 5 times every power of ten. */
static void plot_ticks_log_y(const struct plot *plot) {
    static const double digits[] = {1.0, 2.0, 5.0};
    double power = pow(10.0, floor(log10(plot->y.low)));
    for (; power <= plot->y.high; power *= 10.0) {
        for (size_t i = 0; i < sizeof digits / sizeof digits[0]; i++) {
            double y = digits[i] * power;
            if (y >= plot->y.low && y <= plot->y.high) {
                plot_tick_y(plot, y);
            }
        }
    }
}

static void plot_ticks_y(const struct plot *plot) {
    double tick = plot_tick(&plot->y);
    if (plot->y.logarithmic) {
        plot_ticks_log_y(plot);
        return;
    }
    for (double y = ceil(plot->y.low / tick) * tick; y <= plot->y.high + tick / 1e6; y += tick) {
        plot_tick_y(plot, fabs(y) < tick / 2 ? 0.0 : y);
    }
}

void plot_begin(struct plot *plot, FILE *out, struct plot_axis x, struct plot_axis y) {
    *plot = (struct plot){.out = out, .x = x, .y = y, .width = 860.0, .height = 260.0};
    (void)fprintf(out, "<svg viewBox='0 0 %.0f %.0f' role='img'>\n", plot->width, plot->height);
    plot_ticks_x(plot);
    plot_ticks_y(plot);
    (void)fprintf(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>",
                  (MARGIN_LEFT + plot->width - MARGIN_RIGHT) / 2, plot->height - 6.0);
    plot_text(out, x.title);
    (void)fprintf(out,
                  "</text><text transform='translate(14 %.1f) rotate(-90)' "
                  "text-anchor='middle'>",
                  (MARGIN_TOP + plot->height - MARGIN_BOTTOM) / 2);
    plot_text(out, y.title);
    (void)fprintf(out, "</text>\n");
}

void plot_end(struct plot *plot) {
    (void)fputs("</svg>\n", plot->out);
}

void plot_line(struct plot *plot, size_t colour, double first, const double *values, size_t count) {
    (void)fprintf(plot->out, "<polyline fill='none' stroke='%s' points='", plot_colour(colour));
    for (size_t i = 0; i < count; i++) {
        (void)fprintf(plot->out, "%.1f,%.1f ", plot_x(plot, first + (double)i),
                      plot_y(plot, values[i]));
    }
    (void)fputs("'/>\n", plot->out);
}

void plot_point(struct plot *plot, size_t colour, double x, double y, const char *label) {
    (void)fprintf(plot->out, "<circle cx='%.1f' cy='%.1f' r='4' fill='%s'><title>", plot_x(plot, x),
                  plot_y(plot, y), plot_colour(colour));
    plot_text(plot->out, label);
    (void)fputs("</title></circle>\n", plot->out);
}

/* To the right of it, or to the left where there is no room. */
void plot_name(struct plot *plot, double x, double y, bool below, const char *name) {
    bool left = plot_x(plot, x) > plot->width * 0.85;
    (void)fprintf(plot->out, "<text x='%.1f' y='%.1f' text-anchor='%s'>",
                  plot_x(plot, x) + (left ? -8.0 : 8.0), plot_y(plot, y) + (below ? 13.0 : -5.0),
                  left ? "end" : "start");
    plot_text(plot->out, name);
    (void)fputs("</text>\n", plot->out);
}

void plot_link(struct plot *plot, size_t colour, const double from[2], const double to[2]) {
    (void)fprintf(plot->out, "<path d='M%.1f %.1fL%.1f %.1f' stroke='%s'/>\n",
                  plot_x(plot, from[0]), plot_y(plot, from[1]), plot_x(plot, to[0]),
                  plot_y(plot, to[1]), plot_colour(colour));
}

void plot_bar(struct plot *plot, size_t colour, double x_begin, double x_end, double y) {
    (void)fprintf(plot->out, "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>\n",
                  plot_x(plot, x_begin), plot_y(plot, y),
                  plot_x(plot, x_end) - plot_x(plot, x_begin),
                  plot_y(plot, plot->y.low) - plot_y(plot, y), plot_colour(colour));
}

void plot_legend(FILE *out, const char *const *names, size_t count) {
    (void)fputs("<p class='legend'>", out);
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL) {
            continue;
        }
        (void)fprintf(out, "<span><i style='background:%s'></i>", plot_colour(i));
        plot_text(out, names[i]);
        (void)fputs("</span> ", out);
    }
    (void)fputs("</p>\n", out);
}
