/* progress: how far long work is, on stderr. On a terminal one line that is rewritten; otherwise a
 * line every few seconds, so that logs stay readable and short work stays silent. */
#ifndef BALLAST_CTL_PROGRESS_H
#define BALLAST_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "import", "verify" */
    bool terminal;
    bool shown;       /* a line stands on the terminal */
    uint64_t next_ns; /* not before */
};

void progress_start(struct progress *progress, const char *what);

/* Says it if it is time; cheap enough to call often. */
void progress_say(struct progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same of `done` of `total` (> 0) units, with a bar on a terminal. */
void progress_count(struct progress *progress, const char *unit, uint64_t done, uint64_t total);

/* Clears the line on a terminal. */
void progress_end(struct progress *progress);

uint64_t progress_clock_ns(void); /* monotonic */

#endif
