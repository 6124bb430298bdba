/* live: a daemon for benches, with a corpus of its own in a temporary folder.
 *
 * The daemon is the ballastd beside the bench. Failures end the bench: there is nothing to measure.
 */
#ifndef BALLAST_TESTS_BENCH_LIVE_H
#define BALLAST_TESTS_BENCH_LIVE_H

#include <stdint.h>
#include <sys/types.h>

struct live {
    char folder[64];
    char socket[96];
    pid_t pid;
};

/* Makes the folder. */
void live_open(struct live *live);

/* Ends the daemon, if one runs, and removes the folder. */
void live_close(struct live *live);

/* Writes a dataset of about `tokens` two-byte tokens; lengths are lognormal with this median and
 * sigma 1.3, at most `longest`. */
void live_write_corpus(const struct live *live, uint64_t tokens, uint32_t median, uint32_t longest);

/* Starts the daemon on that dataset with these further lines of config, `socket` and `state_dir`
 * given; returns when it accepts connections. */
void live_start(struct live *live, const char *config);
void live_stop(struct live *live); /* and forgets its state */

/* CPU time of the daemon so far: of its loop, and of all its threads. */
uint64_t live_loop_cpu_ns(const struct live *live);
uint64_t live_cpu_ns(const struct live *live);

#endif
