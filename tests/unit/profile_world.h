/* profile_world: profiles for tests: the analytic model as if it had been measured, which is the
 * sample in deploy/profiles/, and texts of it in which something is replaced. */
#ifndef BALLAST_TESTS_PROFILE_WORLD_H
#define BALLAST_TESTS_PROFILE_WORLD_H

#include "profile/profile.h"

#define SAMPLE_FOLDER BALLAST_SOURCE "/deploy/profiles"

/* The analytic figures of an H100 for the config's default model: every cell a tile's time, the
 * linear part for tp 1 to 8, links of 330 GB/s in a node. The caller frees. */
struct profile *world_profile(void);

/* Adds what a profile may lack: runs, clocks, percentiles 1 % below and above the medians, and
 * causal cells, each the mean over its tiles one by one. */
void world_profile_detail(struct profile *profile);

/* Its canonical text; the caller frees. */
char *world_profile_text(const struct profile *profile);

/* A copy with the first `from` replaced by `to`; fails the test when there is none. Frees text. */
char *world_replace(char *text, const char *from, const char *to);

/* Writes FOLDER/NAME.json, by the name of its key; returns the path (static until the next). */
const char *world_profile_write(const char *folder, const struct profile *profile);

#endif
