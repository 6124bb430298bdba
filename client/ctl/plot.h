/* plot: figures for a page, as SVG written straight out: axes with round numbers, lines, points and
 * bars in a colour each. */
#ifndef BALLAST_CTL_PLOT_H
#define BALLAST_CTL_PLOT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PLOT_COLOURS 8u

struct plot_axis {
    const char *title;
    double low, high; /* low < high */
    bool logarithmic; /* then 0 < low; of y only */
};

struct plot {
    FILE *out; /* borrowed */
    struct plot_axis x, y;
    double width, height; /* of the whole figure, pixels */
};

/* Escapes what HTML asks for. */
void plot_text(FILE *out, const char *text);

/* CSS colour number i, taken modulo PLOT_COLOURS. */
const char *plot_colour(size_t i);

void plot_begin(struct plot *plot, FILE *out, struct plot_axis x, struct plot_axis y);
void plot_end(struct plot *plot);

/* Values at x = first, first + 1, ... */
void plot_line(struct plot *plot, size_t colour, double first, const double *values, size_t count);
/* `label` is shown where the pointer rests. */
void plot_point(struct plot *plot, size_t colour, double x, double y, const char *label);
/* Written beside a point, above or below. */
void plot_name(struct plot *plot, double x, double y, bool below, const char *name);
/* A line from one point to another. */
void plot_link(struct plot *plot, size_t colour, const double from[2], const double to[2]);
/* From the x axis up to y, between two values of x. */
void plot_bar(struct plot *plot, size_t colour, double x_begin, double x_end, double y);

/* A row of coloured names. `names[i]` has colour i; NULL is left out. */
void plot_legend(FILE *out, const char *const *names, size_t count);

#endif
