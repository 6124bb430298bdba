/* store_schema: daemon/schema.sql as what is done to a database: made, brought up to date.
 *
 * Private to the store; returns SQLite's codes, which store_connection.c translates. */
#ifndef BALLAST_DAEMON_STORE_SCHEMA_H
#define BALLAST_DAEMON_STORE_SCHEMA_H

#include <sqlite3.h>

#define SCHEMA_VERSION 3

/* Executes the versions after `from` (0: all) and sets user_version, in the caller's transaction.
 */
int schema_apply(sqlite3 *db, int from);

/* Copies the database, its WAL included, to a new file; not synced. */
int schema_copy(sqlite3 *db, const char *path);

#endif
