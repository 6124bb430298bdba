/* json: see json.h. */
#include "client/ctl/json.h"

#include <inttypes.h>
#include <string.h>

void json_init(struct json *json, FILE *out) {
    json->out = out;
    json->comma = false;
}

static void json_separate(struct json *json) {
    if (json->comma) {
        fputc(',', json->out);
    }
    json->comma = true;
}

static void json_begin(struct json *json, char bracket) {
    json_separate(json);
    fputc(bracket, json->out);
    json->comma = false;
}

static void json_end(struct json *json, char bracket) {
    fputc(bracket, json->out);
    json->comma = true;
}

void json_object_begin(struct json *json) {
    json_begin(json, '{');
}

void json_object_end(struct json *json) {
    json_end(json, '}');
}

void json_array_begin(struct json *json) {
    json_begin(json, '[');
}

void json_array_end(struct json *json) {
    json_end(json, ']');
}

void json_key(struct json *json, const char *name) {
    json_text(json, name);
    fputc(':', json->out);
    json->comma = false;
}

void json_absent(struct json *json) {
    json_separate(json);
    fputs("null", json->out);
}

void json_raw(struct json *json, const char *text) {
    json_separate(json);
    while (*text != '\0') {
        size_t line = strcspn(text, "\n");
        (void)fwrite(text, 1, line, json->out);
        text += line;
        text += strspn(text, "\n ");
    }
}

void json_bool(struct json *json, bool value) {
    json_separate(json);
    fputs(value ? "true" : "false", json->out);
}

void json_u64(struct json *json, uint64_t value) {
    json_separate(json);
    fprintf(json->out, "%" PRIu64, value);
}

void json_i64(struct json *json, int64_t value) {
    json_separate(json);
    fprintf(json->out, "%" PRId64, value);
}

static void json_double(struct json *json, double value) {
    json_separate(json);
    if (value - value != 0) {
        fputs("null", json->out); /* JSON has no infinities */
    } else {
        fprintf(json->out, "%.17g", value);
    }
}

void json_hex(struct json *json, const uint8_t *bytes, size_t count) {
    json_separate(json);
    fputc('"', json->out);
    for (size_t i = 0; i < count; i++) {
        fprintf(json->out, "%02x", bytes[i]);
    }
    fputc('"', json->out);
}

static bool utf8_continues(uint8_t byte) {
    return (byte & 0xc0) == 0x80;
}

/* Bytes of the well-formed UTF-8 character (RFC 3629) at the start of a C string; 0 if it is not
 * one. Never looks past the terminator: it is no continuation byte. */
static size_t utf8_bytes(const uint8_t *text) {
    if (text[0] < 0x80) {
        return 1;
    }
    size_t bytes = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if (!utf8_continues(text[i])) {
            return 0;
        }
    }
    bool overlong = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90);
    bool surrogate = text[0] == 0xed && text[1] >= 0xa0;
    bool too_large = text[0] == 0xf4 && text[1] >= 0x90;
    return overlong || surrogate || too_large ? 0 : bytes;
}

/* Writes one character and returns the bytes it took. */
static size_t json_character(FILE *out, const uint8_t *text) {
    size_t bytes = utf8_bytes(text);
    if (bytes == 0) {
        fputs("\\ufffd", out);
        return 1;
    }
    if (text[0] == '"' || text[0] == '\\') {
        fprintf(out, "\\%c", text[0]);
    } else if (text[0] < 0x20 || text[0] == 0x7f) {
        fprintf(out, "\\u%04x", text[0]);
    } else {
        fwrite(text, 1, bytes, out);
    }
    return bytes;
}

void json_text(struct json *json, const char *text) {
    const uint8_t *at = (const uint8_t *)(text != NULL ? text : "");
    json_separate(json);
    fputc('"', json->out);
    while (*at != 0) {
        at += json_character(json->out, at);
    }
    fputc('"', json->out);
}

void json_member_u64(struct json *json, const char *name, uint64_t value) {
    json_key(json, name);
    json_u64(json, value);
}

void json_member_string(struct json *json, const char *name, const char *text) {
    json_key(json, name);
    json_text(json, text);
}

static void json_enum(struct json *json, const ProtobufCEnumDescriptor *type, int value) {
    const ProtobufCEnumValue *named = protobuf_c_enum_descriptor_get_value(type, value);
    if (named != NULL) {
        json_text(json, named->name);
    } else {
        json_i64(json, value);
    }
}

static size_t value_bytes(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    }
    return 0;
}

static void json_value(struct json *json, const ProtobufCFieldDescriptor *field,
                       const void *value) {
    const ProtobufCBinaryData *bytes;
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        json_i64(json, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        json_u64(json, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        json_i64(json, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        json_u64(json, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        json_double(json, (double)*(const float *)value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        json_double(json, *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        json_bool(json, *(const protobuf_c_boolean *)value != 0);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        json_enum(json, field->descriptor, *(const int *)value);
        break;
    case PROTOBUF_C_TYPE_STRING:
        json_text(json, *(const char *const *)value);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        bytes = value;
        json_hex(json, bytes->data, bytes->len);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        json_message(json, *(const ProtobufCMessage *const *)value);
        break;
    }
}

static void json_repeated(struct json *json, const ProtobufCFieldDescriptor *field,
                          const char *values, size_t count) {
    json_array_begin(json);
    for (size_t i = 0; i < count; i++) {
        json_value(json, field, values + i * value_bytes(field->type));
    }
    json_array_end(json);
}

/* Whether a singular field has a value to print. Proto3 fields without presence always have. */
static bool field_is_set(const ProtobufCFieldDescriptor *field, const char *member,
                         const char *quantifier) {
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
        return *(const uint32_t *)(const void *)quantifier == field->id;
    }
    if (field->type == PROTOBUF_C_TYPE_MESSAGE || field->type == PROTOBUF_C_TYPE_STRING) {
        return field->label != PROTOBUF_C_LABEL_OPTIONAL ||
               *(const void *const *)(const void *)member != NULL;
    }
    return field->label != PROTOBUF_C_LABEL_OPTIONAL ||
           *(const protobuf_c_boolean *)(const void *)quantifier != 0;
}

static void json_field(struct json *json, const ProtobufCFieldDescriptor *field,
                       const ProtobufCMessage *message) {
    const char *member = (const char *)message + field->offset;
    const char *quantifier = (const char *)message + field->quantifier_offset;
    json_key(json, field->name);
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        json_repeated(json, field, *(const char *const *)(const void *)member,
                      *(const size_t *)(const void *)quantifier);
    } else if (field_is_set(field, member, quantifier)) {
        json_value(json, field, member);
    } else {
        json_absent(json);
    }
}

void json_message(struct json *json, const ProtobufCMessage *message) {
    if (message == NULL) {
        json_absent(json);
        return;
    }
    json_object_begin(json);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        json_field(json, &message->descriptor->fields[i], message);
    }
    json_object_end(json);
}

void json_line(struct json *json) {
    fputc('\n', json->out);
    json->comma = false;
}
