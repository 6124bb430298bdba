/* message_read: a micro-batch out of its wire bytes, see message.h. As protobuf_c_message_unpack
 * would, but all messages of a kind in one array: ranks read thousands of documents and fragments
 * with each batch. And the envelope around it, read where it stands. Whatever the bytes are,
 * nothing is read beyond them. */
#include "proto/message.h"

#include <assert.h>
#include <endian.h>
#include <stddef.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { READ_VARINT = 0, READ_EIGHT = 1, READ_BYTES = 2, READ_FOUR = 5 };

#define READ_ENVELOPE_FIELDS 11u
#define READ_DIGEST_BYTES    16u

struct span {
    const uint8_t *at, *end;
    const uint8_t *limit; /* of what may be looked at, for eight bytes at a time */
};

struct field {
    uint32_t number;
    uint32_t kind;
    uint64_t value;   /* of READ_VARINT */
    struct span span; /* of READ_BYTES */
};

static bool read_long_varint(struct span *in, uint64_t *value) {
    uint64_t result = 0;
    for (uint32_t shift = 0; shift < 70 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        result |= shift < 64 ? (uint64_t)(byte & 127) << shift : 0;
        if (byte < 128) {
            *value = result;
            return true;
        }
    }
    return false;
}

static bool read_skip(struct span *in, uint64_t bytes, struct span *out) {
    if ((uint64_t)(in->end - in->at) < bytes) {
        return false;
    }
    *out = (struct span){in->at, in->at + bytes, in->limit};
    in->at += bytes;
    return true;
}

static struct span read_all(const uint8_t *bytes, size_t count) {
    const uint8_t *end = count > 0 ? bytes + count : bytes; /* no offset to NULL */
    return (struct span){bytes, end, end};
}

/* Seven bits of each of eight bytes, one after the other. */
static ALWAYS_INLINE uint64_t read_sevens(uint64_t word) {
    word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
    word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
    return (word & 0x000000000fffffff) | (word & 0x0fffffff00000000) >> 4;
}

/* Numbers are of any length, which no branch predictor knows: up to eight bytes at once. */
static ALWAYS_INLINE bool read_varint(struct span *in, uint64_t *value) {
    uint64_t word, ends;
    if (in->limit - in->at >= (ptrdiff_t)sizeof word) {
        memcpy(&word, in->at, sizeof word);
        word = le64toh(word);
        ends = ~word & 0x8080808080808080;
        ptrdiff_t bytes = __builtin_ctzll(ends | 1ull << 63) / 8 + 1;
        if (__builtin_expect(ends != 0, 1) && bytes <= in->end - in->at) {
            in->at += bytes;
            *value = read_sevens(word & (ends ^ (ends - 1)));
            return true;
        }
    }
    return read_long_varint(in, value);
}

/* Of tags and lengths, which are short. */
static inline bool read_small_varint(struct span *in, uint64_t *value) {
    if (in->at < in->end && *in->at < 128) {
        *value = *in->at++;
        return true;
    }
    return read_long_varint(in, value);
}

/* The next field of a message: 1, 0 at its end, -1 for bytes that are none. */
static inline int read_field(struct span *in, struct field *field) {
    uint64_t tag, bytes = 0;
    if (in->at == in->end) {
        return 0;
    }
    if (!read_small_varint(in, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3) {
        return -1;
    }
    field->number = (uint32_t)(tag >> 3);
    field->kind = tag & 7;
    switch (field->kind) {
    case READ_VARINT:
        return read_varint(in, &field->value) ? 1 : -1;
    case READ_EIGHT:
        return read_skip(in, 8, &field->span) ? 1 : -1;
    case READ_FOUR:
        return read_skip(in, 4, &field->span) ? 1 : -1;
    case READ_BYTES:
        return read_small_varint(in, &bytes) && read_skip(in, bytes, &field->span) ? 1 : -1;
    default:
        return -1;
    }
}

/* What read_numbers did not find in its order. */
static bool read_rest(struct span in, uint64_t *values, uint32_t most) {
    struct field field;
    int more;
    while ((more = read_field(&in, &field)) > 0) {
        if (field.number > most) {
            continue;
        }
        if (field.kind != READ_VARINT) {
            return false;
        }
        values[field.number] = field.value;
    }
    return more == 0;
}

/* A message of numbers: values[n] is field n, those above `most` are passed over. Fields mostly
 * stand in their order. */
static ALWAYS_INLINE bool read_numbers(struct span in, uint64_t *values, uint32_t most) {
    values[0] = 0;
    for (uint32_t number = 1; number <= most; number++) {
        values[number] = 0;
        if (in.at < in.end && *in.at == (number << 3 | READ_VARINT)) {
            in.at++;
            if (!read_varint(&in, &values[number])) {
                return false;
            }
        }
    }
    return in.at == in.end || read_rest(in, values, most);
}

static bool read_document(struct span in, Ballast__V1__Document *out) {
    uint64_t values[8];
    if (!read_numbers(in, values, 7)) {
        return false;
    }
    *out = (Ballast__V1__Document)BALLAST__V1__DOCUMENT__INIT;
    out->dataset = (uint32_t)values[1];
    out->document = values[2];
    out->offset = (uint32_t)values[3];
    out->length = (uint32_t)values[4];
    out->nominal_step = values[5];
    out->epoch = values[6];
    out->document_length = (uint32_t)values[7];
    return true;
}

static bool read_fragment(struct span in, Ballast__V1__Fragment *out) {
    uint64_t values[4];
    if (!read_numbers(in, values, 3)) {
        return false;
    }
    *out = (Ballast__V1__Fragment)BALLAST__V1__FRAGMENT__INIT;
    out->document = (uint32_t)values[1];
    out->start = (uint32_t)values[2];
    out->length = (uint32_t)values[3];
    return true;
}

static bool read_candidate(struct span in, Ballast__V1__Candidate *out) {
    uint64_t values[4];
    if (!read_numbers(in, values, 3)) {
        return false;
    }
    ballast__v1__candidate__init(out);
    out->layout = (Ballast__V1__Layout)(int32_t)values[1];
    out->slowest_ns = values[2];
    out->fragments = (uint32_t)values[3];
    return true;
}

/* How often a message has field `number`, of bytes; 0 too when it is none, which reading it then
 * says. */
static size_t read_count(struct span in, uint32_t number) {
    const uint8_t tag = (uint8_t)(number << 3 | READ_BYTES);
    struct field field;
    size_t count = 0;
    for (;;) {
        while (in.end - in.at >= 2 && in.at[0] == tag && in.at[1] < 128 &&
               in.at[1] <= in.end - in.at - 2) {
            in.at += 2 + in.at[1];
            count++;
        }
        if (read_field(&in, &field) <= 0) {
            return count;
        }
        count += field.number == number;
    }
}

static bool read_rank(struct arena *arena, struct span in, Ballast__V1__RankShard *out) {
    uint64_t values[7] = {0};
    size_t count = read_count(in, 1);
    ballast__v1__rank_shard__init(out);
    Ballast__V1__Fragment *fragments = arena_room(arena, count, sizeof *fragments);
    out->fragments = arena_room(arena, count, sizeof *out->fragments);
    struct field field;
    int more = fragments == NULL || out->fragments == NULL ? -1 : 1;
    while (more > 0 && (more = read_field(&in, &field)) > 0) {
        bool fits = field.kind == (field.number == 1 ? READ_BYTES : READ_VARINT);
        if (field.number > 6) {
            continue;
        }
        if (fits && field.number == 1) {
            out->fragments[out->n_fragments] = &fragments[out->n_fragments];
            fits = read_fragment(field.span, &fragments[out->n_fragments++]);
        }
        values[field.number] = field.value;
        more = fits ? 1 : -1;
    }
    out->rows = values[2];
    out->pad_rows = values[3];
    out->predicted_ns = values[4];
    out->pairs = values[5];
    out->kv_rows_in = values[6];
    return more == 0;
}

static bool read_sharding(struct arena *arena, struct span in, Ballast__V1__Sharding *out) {
    size_t rank_count = read_count(in, 3), candidate_count = read_count(in, 4);
    ballast__v1__sharding__init(out);
    Ballast__V1__RankShard *ranks = arena_array(arena, rank_count, sizeof *ranks);
    Ballast__V1__Candidate *candidates = arena_array(arena, candidate_count, sizeof *candidates);
    out->ranks = arena_array(arena, rank_count, sizeof *out->ranks);
    out->candidates = arena_array(arena, candidate_count, sizeof *out->candidates);
    struct field field;
    bool fits = ranks != NULL && candidates != NULL && out->ranks != NULL &&
                out->candidates != NULL;
    int more = 0;
    while (fits && (more = read_field(&in, &field)) > 0) {
        switch (field.number) {
        case 1:
            fits = field.kind == READ_VARINT;
            out->layout = (Ballast__V1__Layout)(int32_t)field.value;
            break;
        case 2:
            fits = field.kind == READ_VARINT;
            out->exchange = (Ballast__V1__Exchange)(int32_t)field.value;
            break;
        case 3:
            out->ranks[out->n_ranks] = &ranks[out->n_ranks];
            fits = field.kind == READ_BYTES && read_rank(arena, field.span, &ranks[out->n_ranks++]);
            break;
        case 4:
            out->candidates[out->n_candidates] = &candidates[out->n_candidates];
            fits = field.kind == READ_BYTES &&
                   read_candidate(field.span, &candidates[out->n_candidates++]);
            break;
        default:
            break;
        }
    }
    return fits && more == 0;
}

static bool read_micro_batch(struct arena *arena, struct span in, Ballast__V1__MicroBatch *out,
                             Ballast__V1__Document *documents) {
    uint64_t values[9] = {0};
    struct field field;
    bool fits = true;
    int more = 0;
    while (fits && (more = read_field(&in, &field)) > 0) {
        bool whole = field.number == 3 || field.number == 9;
        if (field.number > 9) {
            continue;
        }
        fits = field.kind == (whole ? READ_BYTES : READ_VARINT);
        if (fits && field.number == 3) {
            out->documents[out->n_documents] = &documents[out->n_documents];
            fits = read_document(field.span, &documents[out->n_documents++]);
        } else if (fits && field.number == 9) {
            bool first = out->sharding == NULL;
            out->sharding = arena_alloc(arena, sizeof *out->sharding);
            fits = first && out->sharding != NULL &&
                   read_sharding(arena, field.span, out->sharding);
        } else if (fits) {
            values[field.number] = field.value;
        }
    }
    out->dp = (uint32_t)values[1];
    out->index = (uint32_t)values[2];
    out->tokens = values[4];
    out->pad_tokens = values[5];
    out->work_ns = values[6];
    out->attention_ns = values[7];
    out->other_ns = values[8];
    return fits && more == 0;
}

Ballast__V1__MicroBatch *message_read_micro_batch(struct arena *arena, const uint8_t *bytes,
                                                  size_t count) {
    struct span in = read_all(bytes, count);
    size_t document_count = read_count(in, 3);
    Ballast__V1__MicroBatch *out = message_create(arena, &ballast__v1__micro_batch__descriptor);
    Ballast__V1__Document *documents = arena_room(arena, document_count, sizeof *documents);
    if (out == NULL || documents == NULL) {
        return NULL;
    }
    out->documents = arena_room(arena, document_count, sizeof *out->documents);
    if (out->documents == NULL || !read_micro_batch(arena, in, out, documents)) {
        return NULL;
    }
    return out;
}

/* Field 1 and nothing else. */
static bool read_only(struct span *in) {
    struct field field;
    if (read_field(in, &field) <= 0 || field.number != 1 || field.kind != READ_BYTES ||
        in->at != in->end) {
        return false;
    }
    *in = field.span;
    return true;
}

/* fields[n] is field n; `found` has bit n where it was there. */
static bool read_envelope(struct span in, struct field *fields, uint32_t *found) {
    static const uint32_t whole = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 8;
    struct field field;
    int more;
    while ((more = read_field(&in, &field)) > 0) {
        if (field.number > READ_ENVELOPE_FIELDS) {
            continue;
        }
        uint32_t bit = 1u << field.number;
        if ((*found & bit) != 0 || field.kind != ((whole & bit) != 0 ? READ_BYTES : READ_VARINT)) {
            return false;
        }
        *found |= bit;
        fields[field.number] = field;
    }
    return more == 0;
}

bool message_read_batch(const uint8_t *bytes, size_t count, struct message_batch *out) {
    struct span in = read_all(bytes, count);
    struct field fields[READ_ENVELOPE_FIELDS + 1] = {0};
    uint32_t found = 0, needed = 1u << 1 | 1u << 2 | 1u << 8;
    uint64_t id[4];
    if (!read_only(&in) || !read_envelope(in, fields, &found) || (found & needed) != needed ||
        !read_numbers(fields[1].span, id, 3) ||
        fields[8].span.end - fields[8].span.at != READ_DIGEST_BYTES) {
        return false;
    }
    *out = (struct message_batch){
        .step = id[1],
        .dp = (uint32_t)id[2],
        .index = (uint32_t)id[3],
        .micro_batches = (uint32_t)fields[11].value,
        .slab_offset = fields[4].value,
        .slab_bytes = fields[5].value,
        .slot_generation = fields[6].value,
        .payload_hash = fields[7].value,
        .loss_denominator = fields[9].value,
        .label_tokens = fields[10].value,
        .digest = fields[8].span.at,
        .plan = fields[2].span.at,
        .plan_bytes = (size_t)(fields[2].span.end - fields[2].span.at),
        .pool = fields[3].span.at,
        .pool_bytes = (size_t)(fields[3].span.end - fields[3].span.at),
    };
    return true;
}
