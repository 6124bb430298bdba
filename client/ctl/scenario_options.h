/* scenario_options: the options that say which documents and which job a simulation has, and how
 * its steps are timed; the same for every command that simulates. */
#ifndef BALLAST_CTL_SCENARIO_OPTIONS_H
#define BALLAST_CTL_SCENARIO_OPTIONS_H

#include "client/ctl/ctl.h"
#include "client/ctl/scenario.h"
#include "planner/step_time.h"

#define LAYERS_LIST_MAX 1024u

/* What the options fill; all borrowed, and times->layers may point to the last. */
struct scenario_arguments {
    struct ctl *ctl;
    struct scenario *scenario;
    struct step_time_options *times;
    uint32_t layers[LAYERS_LIST_MAX];
};

/* A command's argp has these instead of ctl_argp_children, and its parser passes a struct
 * scenario_arguments to child 0 at ARGP_KEY_INIT. Documents are in help's group 1, settings in 3,
 * step times in 4. */
extern const struct argp_child scenario_argp_children[];

#endif
