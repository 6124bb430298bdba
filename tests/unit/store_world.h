/* store_world: a job, its steps as a function of their number, and groups of them.
 *
 * Group g puts steps [store_world_end(g), store_world_end(g + 1)), commits up to its first one, has
 * g % 3 ranks ahead of that, from the fourth group on, and every eighth prunes; so a store holds
 * exactly the groups before some g, or is wrong. */
#ifndef BALLAST_TESTS_STORE_WORLD_H
#define BALLAST_TESTS_STORE_WORLD_H

#include "daemon/store.h"

#define STORE_WORLD_STATE_BYTES 6000u

extern const struct store_job store_world_job;

/* Makes an empty folder below `parent`, for the state directory itself not to exist yet in it;
 * returns the path of that state directory, which the caller frees after store_world_remove. */
char *store_world_make(const char *parent);

/* Where folders are fast: memory when there is such a place. */
const char *store_world_memory(void);

/* Empties the state directory (files only), or removes it with its parent. */
void store_world_empty(const char *state_dir);
void store_world_remove(char *state_dir);

/* How often to try what is tried at random: `full` under BALLAST_TEST_FULL, else `normal`, of which
 * a sanitizer, which makes every fork and every byte dear, does a fifth. */
unsigned store_world_rounds(unsigned full, unsigned normal);

/* Splitmix64. */
uint64_t store_world_random(uint64_t *state);

/* The row of a step; `state` holds STORE_WORLD_STATE_BYTES. */
void store_world_step(uint64_t step, uint8_t *state, struct store_step *out);

/* First step of group g. */
uint64_t store_world_end(uint64_t group);

/* Stores one group: 0 when it is durable. */
int store_world_put_group(struct store *store, uint64_t group, struct error *error);

/* Checks that the store holds exactly the groups before some g, every row as it was put, and
 * returns g; fails the test otherwise. */
uint64_t store_world_check(struct store *store);

/* Opens, checks that `acknowledged` groups are there and at most `more` (one for each life of a
 * process since), closes; the same with SQLite's integrity check. Returns the groups. */
uint64_t store_world_recover(const char *state_dir, uint64_t acknowledged, uint64_t more);

#endif
