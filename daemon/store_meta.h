/* store_meta: the store's single values by name, each with a hash.
 *
 * Private to the store; errors as in store_connection.h. Reading a row that is missing, of another
 * type or unsound is -EBADMSG. */
#ifndef BALLAST_DAEMON_STORE_META_H
#define BALLAST_DAEMON_STORE_META_H

#include "daemon/store_connection.h"

int meta_put_number(struct store *store, const char *key, uint64_t number, struct error *error);
int meta_put_bytes(struct store *store, const char *key, const void *bytes, size_t count,
                   struct error *error);
int meta_put_text(struct store *store, const char *key, const char *text, struct error *error);

/* Whether there is a row of this key: 1 or 0. */
int meta_has(struct store *store, const char *key, struct error *error);
int meta_number(struct store *store, const char *key, uint64_t *out, struct error *error);
int meta_digest(struct store *store, const char *key, uint8_t out[16], struct error *error);
int meta_text(struct store *store, const char *key, char **out,
              struct error *error); /* caller frees */

#endif
