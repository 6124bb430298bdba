/* store_meta: see store_meta.h. */
#include "daemon/store_meta.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static uint64_t meta_hash(const char *key, const void *bytes, size_t count) {
    return XXH3_64bits_withSeed(bytes, count, XXH3_64bits(key, strlen(key)));
}

static uint64_t meta_number_hash(const char *key, uint64_t number) {
    uint64_t bytes = htole64(number);
    return meta_hash(key, &bytes, sizeof bytes);
}

int meta_put_number(struct store *store, const char *key, uint64_t number, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 2, (int64_t)number);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)meta_number_hash(key, number));
    return store_run(store, STATEMENT_PUT_META, key, error);
}

int meta_put_bytes(struct store *store, const char *key, const void *bytes, size_t count,
                   struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_blob64(statement, 2, bytes, count, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)meta_hash(key, bytes, count));
    return store_run(store, STATEMENT_PUT_META, key, error);
}

int meta_put_text(struct store *store, const char *key, const char *text, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, text, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)meta_hash(key, text, strlen(text)));
    return store_run(store, STATEMENT_PUT_META, key, error);
}

/* Finds a meta row of this type; the statement then stands on it and must be reset. */
static int meta_find(struct store *store, const char *key, int type, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    char what[64];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    int result = sqlite3_step(statement);
    if (result != SQLITE_ROW && result != SQLITE_DONE) {
        return store_failed(store, result, "read", error);
    }
    (void)snprintf(what, sizeof what, "meta has no sound %s", key);
    if (result == SQLITE_DONE || sqlite3_column_type(statement, 0) != type ||
        sqlite3_column_type(statement, 1) != SQLITE_INTEGER) {
        return store_damaged(store, what, error);
    }
    uint64_t hash = type == SQLITE_INTEGER
                        ? meta_number_hash(key, (uint64_t)sqlite3_column_int64(statement, 0))
                        : meta_hash(key, sqlite3_column_blob(statement, 0),
                                    (size_t)sqlite3_column_bytes(statement, 0));
    return hash == (uint64_t)sqlite3_column_int64(statement, 1) ? 0
                                                                : store_damaged(store, what, error);
}

int meta_has(struct store *store, const char *key, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    int result = sqlite3_step(statement);
    (void)sqlite3_reset(statement);
    if (result != SQLITE_ROW && result != SQLITE_DONE) {
        return store_failed(store, result, "read", error);
    }
    return result == SQLITE_ROW;
}

int meta_number(struct store *store, const char *key, uint64_t *out, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    int code = meta_find(store, key, SQLITE_INTEGER, error);
    if (code == 0) {
        *out = (uint64_t)sqlite3_column_int64(statement, 0);
    }
    (void)sqlite3_reset(statement);
    return code;
}

int meta_digest(struct store *store, const char *key, uint8_t out[16], struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    int code = meta_find(store, key, SQLITE_BLOB, error);
    if (code == 0 && sqlite3_column_bytes(statement, 0) != 16) {
        code = store_damaged(store, key, error);
    }
    if (code == 0) {
        memcpy(out, sqlite3_column_blob(statement, 0), 16);
    }
    (void)sqlite3_reset(statement);
    return code;
}

int meta_text(struct store *store, const char *key, char **out, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    int code = meta_find(store, key, SQLITE_TEXT, error);
    if (code == 0) {
        char *text = strdup((const char *)sqlite3_column_text(statement, 0));
        code = text == NULL ? error_set(error, -ENOMEM, "read %s: out of memory", key) : 0;
        *out = text;
    }
    (void)sqlite3_reset(statement);
    return code;
}
