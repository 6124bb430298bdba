/* state_codec: the canonical bytes of a state; see plan_state_encode in state.h.
 *
 * One description serves both directions: every codec_* function below walks the fields in wire
 * order, and codec_number either writes the value it is given or returns the one it reads. What
 * holds for every state of a stream is required at the place where it can be seen, so an offence
 * has an offset: while encoding it is a programmer's error, while decoding the blob's.
 *
 *     "BLPS" version | counters | cursor | delays | waiting parts | runs | switches of blend |
 *     XXH3-64, big endian
 *
 * A waiting part: dataset * 16 + flags, document, [epochs ago], length, [offset], [tokens behind],
 * and stream index, nominal step and bin as differences from the part before. A run: the parts
 * between the one before (or the front) and it, and its own. A switch: the parts between the one
 * before (or the front) and it. */
#include "planner/state.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#define STATE_VERSION    3u
#define STATE_OLDEST     2u /* without blends, and with every dataset of the config */
#define STATE_HASH_BYTES 8u
#define STATE_REMEDY     "restore an older copy, or start the job anew"

static const uint8_t state_magic[4] = {'B', 'L', 'P', 'S'};

struct codec {
    const uint8_t *in; /* NULL: encoding */
    uint8_t *out;
    size_t count; /* bytes that may be read, or written */
    size_t at;    /* while encoding it may run past count: then nothing more is written */
    uint64_t version;
    uint32_t datasets; /* in the blob: those behind them were never touched */
    int code;          /* decoding: the first refusal */
    size_t refused_at;
    const char *refused;
    const char *because; /* "" when `refused` says it all */
};

static void codec_require(struct codec *codec, bool holds, int code, const char *what) {
    if (codec->in == NULL) {
        assert(holds);
    } else if (!holds && codec->code == 0) {
        codec->code = code;
        codec->refused_at = codec->at;
        codec->refused = what;
        codec->because = "";
    }
}

static void codec_check(struct codec *codec, bool holds, const char *what) {
    codec_require(codec, holds, -EBADMSG, what);
}

/* `name` is a field whose value cannot be. */
static void codec_check_value(struct codec *codec, bool holds, const char *name) {
    bool refused_before = codec->code != 0;
    codec_check(codec, holds, name);
    if (codec->code != 0 && !refused_before) {
        codec->because = " is out of range";
    }
}

static void codec_put(struct codec *codec, uint64_t value) {
    do {
        uint8_t byte = (uint8_t)(value & 0x7f);
        value >>= 7;
        if (codec->at < codec->count) {
            codec->out[codec->at] = value != 0 ? byte | 0x80 : byte;
        }
        codec->at++;
    } while (value != 0);
}

static uint64_t codec_get(struct codec *codec, const char *name) {
    uint64_t value = 0;
    for (unsigned shift = 0; codec->code == 0; shift += 7) {
        codec_check(codec, codec->at < codec->count, "the blob ends in the middle");
        if (codec->code != 0) {
            break;
        }
        uint8_t byte = codec->in[codec->at];
        codec_check_value(codec, shift < 63 || byte <= 1, name);
        codec_check(codec, shift == 0 || byte != 0, "an integer that is not minimal");
        if (codec->code != 0) {
            break;
        }
        codec->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return value;
        }
    }
    return 0;
}

/* Writes `value`, or reads and returns one; `name` is what is refused above `max`. */
static uint64_t codec_number(struct codec *codec, uint64_t value, uint64_t max, const char *name) {
    if (codec->in == NULL) {
        assert(value <= max);
        codec_put(codec, value);
        return value;
    }
    value = codec_get(codec, name);
    codec_check_value(codec, value <= max, name);
    return codec->code == 0 ? value : 0;
}

static uint64_t codec_count(struct codec *codec, uint64_t value, const char *name) {
    return codec_number(codec, value, PLAN_STATE_NUMBER_MAX, name);
}

/* A value as its signed difference from `base`, folded so that small ones are short. */
static uint64_t codec_difference(struct codec *codec, uint64_t value, uint64_t base,
                                 const char *name) {
    uint64_t difference = value - base;
    uint64_t folded = difference << 1 ^ (difference >> 63 != 0 ? UINT64_MAX : 0);
    folded = codec_number(codec, folded, UINT64_MAX, name);
    difference = folded >> 1 ^ ((folded & 1) != 0 ? UINT64_MAX : 0);
    value = base + difference;
    codec_check_value(codec, value <= PLAN_STATE_NUMBER_MAX, name);
    return value;
}

static void codec_counters(struct codec *codec, struct plan_state *state) {
    state->step = codec_count(codec, state->step, "step");
    state->target_tokens = codec_count(codec, state->target_tokens, "target_tokens");
    state->slip_tokens = codec_count(codec, state->slip_tokens, "slip_tokens");
    state->stream_tokens = codec_count(codec, state->stream_tokens, "stream_tokens");
    state->stream_parts = codec_count(codec, state->stream_parts, "stream_parts");
    state->delivered_tokens = codec_count(codec, state->delivered_tokens, "delivered_tokens");
    for (uint32_t band = 0; band < BANDS_MAX; band++) {
        state->queue_released[band] = codec_count(codec, state->queue_released[band],
                                                  "queue_released");
    }
    state->leftover_released = codec_count(codec, state->leftover_released, "leftover_released");
    state->draining = codec_number(codec, state->draining, 1, "draining") != 0;
    if (state->draining) {
        state->drain_start = codec_number(codec, state->drain_start, state->step, "drain_start");
        state->drain_steps = (uint32_t)codec_number(codec, state->drain_steps, UINT32_MAX,
                                                    "drain_steps");
        codec_check(codec, state->step - state->drain_start < state->drain_steps,
                    "the drain ended before this step");
    }
    codec_check(codec, state->draining || (state->drain_start == 0 && state->drain_steps == 0),
                "a drain that is none");
}

static void codec_dataset(struct codec *codec, struct dataset_cursor *cursor) {
    cursor->position = codec_count(codec, cursor->position, "position");
    cursor->epoch = codec_count(codec, cursor->epoch, "epoch");
    cursor->stream_tokens = codec_count(codec, cursor->stream_tokens, "dataset stream_tokens");
    cursor->arrived_documents = codec_count(codec, cursor->arrived_documents, "arrived_documents");
    cursor->arrived_tokens = codec_count(codec, cursor->arrived_tokens, "arrived_tokens");
    cursor->dropped_documents = codec_number(codec, cursor->dropped_documents,
                                             cursor->arrived_documents, "dropped_documents");
    cursor->dropped_tokens = codec_number(codec, cursor->dropped_tokens, cursor->arrived_tokens,
                                          "dropped_tokens");
    cursor->truncated_tokens = codec_number(codec, cursor->truncated_tokens, cursor->dropped_tokens,
                                            "truncated_tokens");
    cursor->overlong_documents = codec_number(codec, cursor->overlong_documents,
                                              cursor->arrived_documents, "overlong_documents");
    cursor->empty_documents = codec_number(codec, cursor->empty_documents,
                                           cursor->dropped_documents, "empty_documents");
}

static void codec_open_document(struct codec *codec, struct source_cursor *cursor) {
    cursor->open = codec_number(codec, cursor->open, 1, "open") != 0;
    if (cursor->open) {
        cursor->open_dataset = (uint32_t)codec_number(codec, cursor->open_dataset,
                                                      cursor->dataset_count - 1, "open_dataset");
        cursor->open_document = codec_count(codec, cursor->open_document, "open_document");
        cursor->open_epoch = codec_count(codec, cursor->open_epoch, "open_epoch");
        cursor->open_offset = (uint32_t)codec_number(codec, cursor->open_offset, UINT32_MAX,
                                                     "open_offset");
        cursor->open_length = (uint32_t)codec_number(codec, cursor->open_length, UINT32_MAX,
                                                     "open_length");
        codec_check(codec, 0 < cursor->open_offset && cursor->open_offset < cursor->open_length,
                    "an open document with nothing left");
    }
    codec_check(codec,
                cursor->open || (cursor->open_dataset == 0 && cursor->open_document == 0 &&
                                 cursor->open_epoch == 0 && cursor->open_offset == 0 &&
                                 cursor->open_length == 0),
                "an open document that is none");
}

static void codec_cursor(struct codec *codec, struct source_cursor *cursor) {
    codec->datasets = (uint32_t)codec_number(codec, codec->datasets, UINT32_MAX, "datasets");
    codec_require(codec, codec->datasets <= cursor->dataset_count, -EINVAL,
                  "more datasets than the config has");
    for (uint32_t i = 0; codec->code == 0 && i < codec->datasets; i++) {
        struct dataset_cursor dataset = cursor->datasets[i];
        codec_dataset(codec, &dataset);
        if (codec->in != NULL) {
            cursor->datasets[i] = dataset;
        }
    }
    codec_open_document(codec, cursor);
    if (codec->version > STATE_OLDEST) {
        cursor->blend = (uint32_t)codec_number(codec, cursor->blend, UINT32_MAX, "blend");
    }
}

static void codec_delay(struct codec *codec, struct delay_counts *delays) {
    uint64_t buckets = DELAY_BUCKETS;
    while (buckets > 0 && delays->tokens_by_delay[buckets - 1] == 0) {
        buckets--;
    }
    delays->delivered_documents = codec_count(codec, delays->delivered_documents,
                                              "delivered_documents");
    delays->delay_token_steps = codec_count(codec, delays->delay_token_steps, "delay_token_steps");
    delays->delay_max = codec_count(codec, delays->delay_max, "delay_max");
    delays->early_tokens = codec_count(codec, delays->early_tokens, "early_tokens");
    delays->early_documents = codec_number(codec, delays->early_documents,
                                           delays->delivered_documents, "early_documents");
    buckets = codec_number(codec, buckets, DELAY_BUCKETS, "delay histogram");
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < buckets; i++) {
        delays->tokens_by_delay[i] = codec_number(
            codec, delays->tokens_by_delay[i], PLAN_STATE_NUMBER_MAX - tokens, "tokens_by_delay");
        tokens += delays->tokens_by_delay[i];
    }
    codec_check(codec, buckets == 0 || delays->tokens_by_delay[buckets - 1] != 0,
                "a delay histogram that ends in zeros");
    codec_check(codec, codec->in != NULL || delays->delivered_tokens == tokens,
                "a delay histogram of other tokens");
    delays->delivered_tokens = tokens;
    codec_check_value(codec, delays->early_tokens <= tokens, "early_tokens");
}

static void codec_delays(struct codec *codec, struct plan_state *state) {
    for (uint32_t i = 0; codec->code == 0 && i < codec->datasets; i++) {
        struct delay_counts delays = state->delays[i];
        codec_delay(codec, &delays);
        if (codec->in != NULL) {
            state->delays[i] = delays;
        }
    }
    codec_check(codec,
                codec->version == STATE_OLDEST || codec->datasets == plan_state_datasets(state),
                "a last dataset that was never touched");
}

enum { FLAG_LEFT_OVER = 1, FLAG_EPOCH = 2, FLAG_OFFSET = 4, FLAG_TAIL = 8, FLAGS = 16 };

/* A number that is there only if `flag` is set, and then not 0. */
static uint64_t codec_optional(struct codec *codec, uint64_t flags, uint64_t flag, uint64_t value,
                               uint64_t max, const char *name) {
    if ((flags & flag) == 0) {
        return 0;
    }
    value = codec_number(codec, value, max, name);
    codec_check_value(codec, value != 0, name);
    return value;
}

static void codec_document(struct codec *codec, const struct plan_state *state, uint64_t flags,
                           struct document *document) {
    uint64_t epoch_now = state->cursor.datasets[document->dataset].epoch;
    uint64_t tail = (uint64_t)document->document_length - document->offset - document->length;
    document->document = codec_count(codec, document->document, "document");
    document->epoch = epoch_now - codec_optional(codec, flags, FLAG_EPOCH,
                                                 epoch_now - document->epoch, epoch_now, "epoch");
    document->length = (uint32_t)codec_number(codec, document->length, UINT32_MAX, "length");
    document->offset = (uint32_t)codec_optional(codec, flags, FLAG_OFFSET, document->offset,
                                                UINT32_MAX, "offset");
    tail = codec_optional(codec, flags, FLAG_TAIL, tail, UINT32_MAX, "tail");
    uint64_t length = (uint64_t)document->offset + document->length + tail;
    codec_check_value(codec, document->length > 0 && length <= UINT32_MAX, "length");
    document->document_length = (uint32_t)length;
}

static uint64_t waiting_flags(const struct plan_state *state, const struct waiting *waiting) {
    const struct document *document = &waiting->document;
    uint64_t flags = waiting->kind == WAITING_LEFT_OVER ? FLAG_LEFT_OVER : 0;
    flags |= document->epoch != state->cursor.datasets[document->dataset].epoch ? FLAG_EPOCH : 0;
    flags |= document->offset != 0 ? FLAG_OFFSET : 0;
    flags |= document_is_last_part(document) ? 0 : FLAG_TAIL;
    return flags;
}

/* Whether `part` may follow `before` (NULL: stands first) in the list. */
static bool waiting_follows(const struct plan_state *state, const struct waiting *before,
                            const struct waiting *part) {
    if (!state->draining) {
        return part->bin == 0 &&
               (before == NULL || part->document.stream_index > before->document.stream_index);
    }
    if (before == NULL || part->bin != before->bin) {
        return before == NULL || part->bin == before->bin + 1;
    }
    if (part->document.length != before->document.length) {
        return part->document.length < before->document.length;
    }
    return part->document.stream_index > before->document.stream_index;
}

static void codec_waiting(struct codec *codec, const struct plan_state *state,
                          const struct waiting *before, struct waiting *part) {
    struct document *document = &part->document;
    uint64_t head = codec->in == NULL
                        ? (uint64_t)document->dataset * FLAGS + waiting_flags(state, part)
                        : 0;
    codec_check(codec, codec->datasets > 0, "a part of no dataset");
    head = codec_number(codec, head, (uint64_t)codec->datasets * FLAGS - 1, "dataset");
    document->dataset = (uint32_t)(head / FLAGS);
    part->kind = (head & FLAG_LEFT_OVER) != 0 ? WAITING_LEFT_OVER : WAITING_IN_QUEUE;
    codec_document(codec, state, head % FLAGS, document);
    document->stream_index = codec_difference(
        codec, document->stream_index,
        before != NULL ? before->document.stream_index : state->stream_parts, "stream_index");
    document->nominal_step = codec_difference(
        codec, document->nominal_step, before != NULL ? before->document.nominal_step : state->step,
        "nominal_step");
    if (state->draining) {
        uint64_t bin = codec_difference(codec, part->bin, before != NULL ? before->bin : 0, "bin");
        codec_check_value(codec, bin <= UINT32_MAX, "bin");
        part->bin = (uint32_t)bin;
    }
    codec_check_value(codec, document->stream_index < state->stream_parts, "stream_index");
    codec_check(codec, waiting_follows(state, before, part), "a waiting part out of order");
}

static void codec_waiting_parts(struct codec *codec, struct plan_state *state) {
    uint64_t count = codec_number(codec, state->waiting_count, UINT32_MAX, "waiting parts");
    codec_require(codec, count <= state->waiting_max, -ENOBUFS, "more waiting parts than allowed");
    codec_check(codec, count > 0 || !state->draining, "a drain of nothing");
    for (uint32_t i = 0; codec->code == 0 && i < count; i++) {
        struct waiting part = codec->in == NULL ? state->waiting[i] : (struct waiting){0};
        codec_waiting(codec, state, i > 0 ? &state->waiting[i - 1] : NULL, &part);
        if (codec->in != NULL) {
            state->waiting[i] = part;
        }
    }
    state->waiting_count = codec->code == 0 ? (uint32_t)count : 0;
}

static uint64_t state_early_tokens(const struct plan_state *state) {
    unsigned __int128 tokens = 0;
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        tokens += state->delays[i].early_tokens;
    }
    return tokens < UINT64_MAX ? (uint64_t)tokens : UINT64_MAX;
}

static void codec_runs(struct codec *codec, struct plan_state *state) {
    uint64_t count = codec_number(codec, state->run_count, UINT32_MAX, "runs");
    uint64_t end = state->stream_parts;
    codec_require(codec, count <= state->waiting_max, -ENOBUFS, "more runs than allowed");
    codec_check(codec, count == 0 || !state->draining, "a drain with parts ahead of it");
    for (uint32_t i = 0; codec->code == 0 && i < count; i++) {
        struct delivered_run run = codec->in == NULL ? state->runs[i] : (struct delivered_run){0};
        uint64_t between = codec_count(codec, run.index - end, "run");
        run.index = end + between;
        run.count = codec_count(codec, run.count, "run");
        end = run.index + run.count;
        codec_check_value(codec, between > 0 && run.count > 0 && end <= PLAN_STATE_NUMBER_MAX,
                          "run");
        if (codec->in != NULL) {
            state->runs[i] = run;
        }
    }
    state->run_count = codec->code == 0 ? (uint32_t)count : 0;
    codec_check(codec, (count > 0) == (state_early_tokens(state) > 0),
                "early tokens without a run, or a run without tokens");
}

static void codec_blend_switches(struct codec *codec, struct plan_state *state) {
    uint64_t count = codec_number(codec, state->blend_switch_count, BLEND_SWITCHES_MAX,
                                  "blend switches");
    uint64_t before = state->stream_parts;
    for (uint32_t i = 0; codec->code == 0 && i < count; i++) {
        uint64_t index = codec->in == NULL ? state->blend_switches[i] : before;
        index = before + codec_count(codec, index - before, "switch");
        codec_check_value(
            codec, index > state->stream_parts && index <= plan_state_known_end(state), "switch");
        if (codec->in != NULL) {
            state->blend_switches[i] = index;
        }
        before = index;
    }
    state->blend_switch_count = codec->code == 0 ? (uint32_t)count : 0;
}

static void codec_state(struct codec *codec, struct plan_state *state) {
    codec_counters(codec, state);
    codec_cursor(codec, &state->cursor);
    codec_delays(codec, state);
    codec_waiting_parts(codec, state);
    codec_runs(codec, state);
    if (codec->version > STATE_OLDEST) {
        codec_blend_switches(codec, state);
    }
    codec_check(codec, codec->code != 0 || plan_state_conserves(state),
                "tokens that were lost or made");
}

static size_t state_encode(const struct plan_state *state, uint8_t *out, size_t capacity) {
    struct codec codec = {.out = out,
                          .count = capacity,
                          .at = sizeof state_magic,
                          .version = STATE_VERSION,
                          .datasets = plan_state_datasets(state)};
    struct plan_state record = *state;
    if (capacity >= sizeof state_magic) {
        memcpy(out, state_magic, sizeof state_magic);
    }
    codec_put(&codec, STATE_VERSION);
    codec_state(&codec, &record);
    return codec.at;
}

size_t plan_state_encode(const struct plan_state *state, uint8_t *out, size_t capacity) {
    size_t hashed = state_encode(state, out, capacity);
    size_t bytes = hashed + STATE_HASH_BYTES;
    if (bytes <= capacity) {
        XXH64_canonical_t hash;
        XXH64_canonicalFromHash(&hash, XXH3_64bits(out, hashed));
        memcpy(out + hashed, hash.digest, STATE_HASH_BYTES);
    }
    return bytes;
}

/* Magic, version and hash. The version comes before the hash, whose place another one may change.
 */
static void codec_envelope(struct codec *codec, const uint8_t *bytes, size_t count) {
    bool whole = count > sizeof state_magic + STATE_HASH_BYTES &&
                 memcmp(bytes, state_magic, sizeof state_magic) == 0;
    codec_check(codec, whole, "not a state of ballast, or the start of one");
    if (!whole) {
        return;
    }
    codec->count = count - STATE_HASH_BYTES;
    codec->at = sizeof state_magic;
    codec->version = codec_get(codec, "version");
    codec_require(codec, STATE_OLDEST <= codec->version && codec->version <= STATE_VERSION, -ENOSYS,
                  codec->version > STATE_VERSION ? "written by a newer ballast"
                                                 : "written by an older ballast");
    XXH64_canonical_t hash;
    XXH64_canonicalFromHash(&hash, XXH3_64bits(bytes, codec->count));
    codec_check(codec, memcmp(hash.digest, bytes + codec->count, STATE_HASH_BYTES) == 0,
                "the hash at its end does not fit");
}

int plan_state_decode(struct plan_state *state, const uint8_t *bytes, size_t count,
                      struct error *error) {
    static const uint8_t nothing[1];
    struct codec codec = {.in = bytes != NULL ? bytes : nothing};
    plan_state_reset(state);
    codec_envelope(&codec, codec.in, count);
    if (codec.code == 0) {
        codec_state(&codec, state);
        codec_check(&codec, codec.at == codec.count, "bytes after its end");
    }
    if (codec.code == 0) {
        return 0;
    }
    plan_state_reset(state);
    return error_set(error, codec.code, "state blob of %zu bytes: byte %zu: %s%s; %s", count,
                     codec.refused_at, codec.refused, codec.because,
                     codec.code == -ENOSYS    ? "run that version"
                     : codec.code == -ENOBUFS ? "raise queues.waiting_max"
                     : codec.code == -EINVAL  ? "list the datasets that it was written with"
                                              : STATE_REMEDY);
}
