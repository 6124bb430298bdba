/* figure: see figure.h. */
#include "tests/bench/figure.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TURNS_MAX 1024u

static bool figures_take(int *argc, char **argv, const char *option) {
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], option) != 0) {
            argv[kept++] = argv[i];
        }
    }
    bool taken = kept < *argc;
    *argc = kept;
    return taken;
}

void figures_begin(struct figures *figures, const char *bench, int *argc, char **argv) {
    *figures = (struct figures){.held = true};
    figures->json = figures_take(argc, argv, "--json");
    figures->smoke = figures_take(argc, argv, "--smoke");
    if (figures->json) {
        printf("{\"bench\": \"%s\", \"figures\": [", bench);
    } else {
        printf("%-28s %-20s %12s %-9s  %-12s %12s  %9s\n", "OF", "FIGURE", "VALUE", "", "PEER", "",
               "RATIO");
    }
}

static double figure_judged(const struct figure *figure) {
    return figure->peer != NULL ? figure->ratio : figure->value;
}

static bool figure_held(const struct figure *figure) {
    switch (figure->rule) {
    case FIGURE_AT_MOST:
        return figure_judged(figure) <= figure->limit;
    case FIGURE_AT_LEAST:
        return figure_judged(figure) >= figure->limit;
    case FIGURE_REPORTED:
        break;
    }
    return true;
}

static void figure_print_json(const struct figure *figure, bool judged) {
    static const char *const rules[] = {"null", "\"at most\"", "\"at least\""};
    printf("\n  {\"of\": \"%s\", \"figure\": \"%s\", \"unit\": \"%s\", \"value\": %.6g, ",
           figure->subject, figure->name, figure->unit, figure->value);
    if (figure->peer != NULL) {
        printf("\"peer\": \"%s\", \"peer_value\": %.6g, \"ratio\": %.6g, ", figure->peer,
               figure->peer_value, figure->ratio);
    } else {
        printf("\"peer\": null, \"peer_value\": null, \"ratio\": null, ");
    }
    printf("\"rule\": %s, ", rules[figure->rule]);
    if (figure->rule == FIGURE_REPORTED) {
        printf("\"limit\": null, \"held\": null}");
    } else {
        printf("\"limit\": %.6g, \"held\": %s}", figure->limit,
               !judged               ? "null"
               : figure_held(figure) ? "true"
                                     : "false");
    }
}

static void figure_print_line(const struct figure *figure, bool judged) {
    static const char *const signs[] = {"", "<=", ">="};
    printf("%-28s %-20s %12.3f %-9s  ", figure->subject, figure->name, figure->value, figure->unit);
    if (figure->peer != NULL) {
        printf("%-12s %12.3f  %8.3fx", figure->peer, figure->peer_value, figure->ratio);
    } else {
        printf("%-12s %12s  %9s", "", "", "");
    }
    if (figure->rule != FIGURE_REPORTED) {
        printf("  %s %g%s", signs[figure->rule], figure->limit,
               judged && !figure_held(figure) ? "  NOT HELD" : "");
    }
    printf("\n");
}

void figures_add(struct figures *figures, const struct figure *figure) {
    bool judged = !figures->smoke;
    if (figures->json) {
        printf("%s", figures->count > 0 ? "," : "");
        figure_print_json(figure, judged);
    } else {
        figure_print_line(figure, judged);
    }
    fflush(stdout);
    figures->count++;
    figures->held = figures->held && (!judged || figure_held(figure));
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double figure_median(double *values, uint32_t count) {
    assert(count > 0);
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

double figure_least(const double *values, uint32_t count) {
    assert(count > 0);
    double least = values[0];
    for (uint32_t i = 1; i < count; i++) {
        least = values[i] < least ? values[i] : least;
    }
    return least;
}

void figures_add_turns(struct figures *figures, const struct figure *figure, double *values,
                       double *peer_values, uint32_t turns) {
    double ratios[TURNS_MAX];
    assert(turns <= TURNS_MAX);
    for (uint32_t turn = 0; turn < turns; turn++) {
        ratios[turn] = values[turn] / peer_values[turn];
    }
    struct figure whole = *figure;
    whole.ratio = figure_median(ratios, turns);
    whole.value = figure_median(values, turns);
    whole.peer_value = figure_median(peer_values, turns);
    figures_add(figures, &whole);
}

int figures_end(const struct figures *figures) {
    if (figures->json) {
        printf("\n], \"held\": %s}\n", figures->smoke ? "null" : figures->held ? "true" : "false");
    }
    return figures->held ? EXIT_SUCCESS : EXIT_FAILURE;
}

double figure_cpu_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}
