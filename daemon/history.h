/* history: whether two configs are of one job, and up to which step they agree.
 *
 * A config's plan text (config_plan_text) is the job's history: what holds from step 0 on, then the
 * sections "[from STEP]" that changed it. Of two histories that agree up to a step, either explains
 * every plan before it, so a section may be added to a job at any step that is not committed. A
 * version that knows more keys than the one that wrote a text takes their defaults for what it
 * lacks. */
#ifndef BALLAST_DAEMON_HISTORY_H
#define BALLAST_DAEMON_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define HISTORY_LINE_BYTES 100u

struct history_difference {
    uint64_t step; /* first step that may come out differently; 0: another job */
    /* The first line that differs in each, after its section: "[from 500] plan.tokens_max = 98304";
     * "nothing" where a text has no more. */
    char a[HISTORY_LINE_BYTES];
    char b[HISTORY_LINE_BYTES];
};

/* False when the texts agree. `a` may be of an older version: lines of step 0 that only `b` has
 * mean nothing when they say a key's default. */
bool history_differs(const char *a, const char *b, struct history_difference *out);

#endif
