/* mapped_world: the guard of mapped.h among tests, for each of which cmocka has a SIGBUS handler of
 * its own. */
#ifndef BALLAST_TESTS_MAPPED_WORLD_H
#define BALLAST_TESTS_MAPPED_WORLD_H

/* Puts it in place of whatever handler there is, for the rest of the test. It is set with the first
 * mapping of a process, so the first call is before that: in main() where any test has one. */
void mapped_world_guard(void);

#endif
