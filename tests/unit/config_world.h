/* config_world: config files for tests, in a folder of their own. */
#ifndef BALLAST_TESTS_CONFIG_WORLD_H
#define BALLAST_TESTS_CONFIG_WORLD_H

#include "daemon/config.h"

#define WORLD_DATASET "[dataset books]\npath = books\n"

/* The folder, made on first use and removed at exit; no slash at the end. */
const char *world_folder(void);

/* Writes FOLDER/test.conf and returns its path (static). */
const char *world_write(const char *text, size_t bytes);

/* Loads `text` as FOLDER/test.conf. */
int world_load(const char *text, const struct config_override *overrides, size_t count,
               struct config **out, struct error *error);

/* Loads what must load. */
struct config *world_config(const char *text);

/* The value or origin of a setting by name, and whether it came of "auto"; fails the test when
 * there is none. Static memory. */
const char *world_value(const struct config *config, const char *name);
const char *world_origin(const struct config *config, const char *name);
bool world_automatic(const struct config *config, const char *name);

/* All settings as a file: the caller frees. */
char *world_print(const struct config *config);

#endif
