/* layouts: what each layout of a context-parallel group would give, without a daemon.
 *
 * Windows are filled by best-fit, as pool:P fills them, and each is dealt in every layout alone, at
 * its best level, and in the one that the config's would choose. Figures are means over windows. */
#ifndef BALLAST_CTL_LAYOUTS_H
#define BALLAST_CTL_LAYOUTS_H

#include "client/ctl/scenario.h"
#include "sharding/layout.h"

#define LAYOUTS_ROWS_MAX 6u

struct layouts_row {
    enum layout layout;       /* LAYOUT_NONE: the chosen one */
    uint64_t windows;         /* that can be dealt so, or where the config chooses */
    uint64_t pairs_ppm;       /* exact pairs, largest rank over mean */
    uint64_t pairs_worst_ppm; /* of the worst window */
    uint64_t bound_ppm;       /* predicted slowest rank over the bound (sharding/select.h) */
    uint64_t bound_worst_ppm;
    uint64_t keys_ppm;        /* K/V rows that a rank needs of others, of the window's tokens */
    uint64_t fragments_milli; /* of a rank */
    uint64_t chosen;          /* windows where the config's choice is this */
};

/* Deals the windows of `steps` global batches of the trial; fills up to LAYOUTS_ROWS_MAX rows. */
int layouts_measure(const struct trial *trial, uint64_t steps, struct layouts_row *rows,
                    size_t *count, struct error *error);

void layouts_print(const struct scenario *scenario, const struct plan_options *plan,
                   const struct layouts_row *rows, size_t count);
void layouts_print_json(const struct layouts_row *rows, size_t count);

#endif
