/* ctl_world: runs the built ballastctl as a user does, and keeps what it said. */
#ifndef BALLAST_TESTS_CTL_WORLD_H
#define BALLAST_TESTS_CTL_WORLD_H

#include <jansson.h>
#include <stddef.h>

struct ran {
    int code; /* exit code */
    char *out;
    char *err;
};

/* Runs ballastctl with these arguments (NULL ends them) and standard output and error taken down;
 * frees what an earlier run left in `ran`, which starts zeroed. */
void ran_ctl(struct ran *ran, ...) __attribute__((sentinel));
void ran_free(struct ran *ran);

/* Removes the variables that ballastctl listens to. */
void ran_environment_clear(void);

/* Fails the test, showing what was said, unless this was the exit code. */
void ran_expect(const struct ran *ran, int code);

/* Standard output as one JSON value; the caller drops it with json_decref. */
json_t *ran_json(const struct ran *ran);

/* Characters of the longest line. */
size_t text_width(const char *text);

/* A folder under /tmp with files in it. */
struct world {
    char dir[64];
};

void world_open(struct world *world);
void world_close(struct world *world);

/* DIR/NAME; the result is valid until the fourth call after this one. */
const char *world_path(const struct world *world, const char *name);

/* Writes a file, its folder made if need be; `bytes` letters when text is NULL. */
void world_write(const struct world *world, const char *name, const char *text, size_t bytes);

#endif
