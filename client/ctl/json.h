/* json: the one writer of JSON.
 *
 * Wire messages are written from their protobuf-c descriptors, so that `--json` is the wire schema
 * and there is no second one: proto field names, 64-bit integers as exact numbers, bytes as
 * lowercase hex, enums by name, every field printed, an absent message as null. What is not a
 * message (import, verify, simulate, version) is written with the same few calls.
 * Names keep clear of jansson's, which profile/ brings in. One value is one line. Nothing here
 * fails: stdio remembers write errors (ferror). */
#ifndef BALLAST_CTL_JSON_H
#define BALLAST_CTL_JSON_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;  /* borrowed */
    bool comma; /* a value stands before: the next one needs a comma */
};

void json_init(struct json *json, FILE *out);

void json_object_begin(struct json *json);
void json_object_end(struct json *json);
void json_array_begin(struct json *json);
void json_array_end(struct json *json);
void json_key(struct json *json, const char *name); /* the next value belongs to it */

void json_absent(struct json *json);
void json_bool(struct json *json, bool value);
void json_u64(struct json *json, uint64_t value);
void json_i64(struct json *json, int64_t value);
void json_hex(struct json *json, const uint8_t *bytes, size_t count);

/* Escapes what JSON asks for; bytes that are not UTF-8 become U+FFFD. NULL is "". */
void json_text(struct json *json, const char *text);

/* json_key, then the value. */
void json_member_u64(struct json *json, const char *name, uint64_t value);
void json_member_string(struct json *json, const char *name, const char *text);

/* What is JSON already, its newlines and the indentation behind them left out. */
void json_raw(struct json *json, const char *text);

/* A whole message; NULL is null. Members of a oneof that are not set are null. */
void json_message(struct json *json, const ProtobufCMessage *message);

/* Ends the line: one value is done. */
void json_line(struct json *json);

#endif
