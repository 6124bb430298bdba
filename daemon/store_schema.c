/* store_schema: see store_schema.h. */
#include "daemon/store_schema.h"

#include "daemon/schema_text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Where the versions after `from` begin in schema.sql. */
static const char *schema_after(int from) {
    char marker[32];
    (void)snprintf(marker, sizeof marker, "\n-- version %d\n", from + 1);
    const char *found = strstr(schema_text, marker);
    assert(found != NULL);
    return found;
}

int schema_apply(sqlite3 *db, int from) {
    char version[48];
    int result = sqlite3_exec(db, schema_after(from), NULL, NULL, NULL);
    if (result == SQLITE_OK) {
        (void)snprintf(version, sizeof version, "PRAGMA user_version = %d", SCHEMA_VERSION);
        result = sqlite3_exec(db, version, NULL, NULL, NULL);
    }
    return result;
}

int schema_copy(sqlite3 *db, const char *path) {
    sqlite3_stmt *statement = NULL;
    int result = sqlite3_prepare_v2(db, "VACUUM INTO ?", -1, &statement, NULL);
    if (result == SQLITE_OK) {
        (void)sqlite3_bind_text(statement, 1, path, -1, SQLITE_STATIC);
        result = sqlite3_step(statement);
    }
    (void)sqlite3_finalize(statement);
    return result == SQLITE_DONE ? SQLITE_OK : result;
}
