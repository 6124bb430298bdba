/* The state codec: every state comes back from its bytes, the bytes are the only ones, and damage
 * is refused. */
#include "planner/state.h"
#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <cmocka.h>

#define STATES      400u
#define WAITING_MAX 300u
#define BYTES       (64u * 1024u)

#define CHECK(seed, holds)                                                                         \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            print_error("seed %" PRIu64 ": %s\n", (uint64_t)(seed), #holds);                       \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

/* A number with any count of bits up to `bits`, so that every encoded length occurs. */
static uint64_t number(uint64_t *dice, uint32_t bits) {
    uint32_t used = splitmix_between(dice, 0, bits);
    return used == 0 ? 0 : splitmix_next(dice) >> (64 - used);
}

static void make_part(uint64_t *dice, struct plan_state *state, struct document *part) {
    part->dataset = splitmix_between(dice, 0, state->cursor.dataset_count - 1);
    part->document = number(dice, 35);
    uint64_t epoch = state->cursor.datasets[part->dataset].epoch;
    part->epoch = splitmix_between(dice, 0, 3) > 0 ? epoch : epoch - number(dice, 6) % (epoch + 1);
    part->length = 1 + (uint32_t)number(dice, 20);
    part->offset = splitmix_between(dice, 0, 1) == 0 ? 0 : (uint32_t)number(dice, 27);
    uint32_t tail = splitmix_between(dice, 0, 1) == 0 ? 0 : (uint32_t)number(dice, 27);
    part->document_length = part->offset + part->length + tail;
}

static void make_waiting(uint64_t *dice, struct plan_state *state) {
    uint64_t index = 0;
    uint64_t nominal = state->step > 63 ? state->step - 63 : 0;
    state->waiting_count = splitmix_between(dice, 0, WAITING_MAX);
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        struct waiting *waiting = &state->waiting[i];
        *waiting = (struct waiting){0};
        make_part(dice, state, &waiting->document);
        index += 1 + number(dice, 12);
        nominal += splitmix_between(dice, 0, 9) == 0;
        waiting->document.stream_index = index;
        waiting->document.nominal_step = nominal;
        waiting->kind = splitmix_between(dice, 0, 1) == 0 ? WAITING_IN_QUEUE : WAITING_LEFT_OVER;
    }
    state->stream_parts = index + 1 + number(dice, 12);
}

static void make_runs(uint64_t *dice, struct plan_state *state) {
    uint64_t end = state->stream_parts;
    state->run_count = state->draining ? 0 : (uint32_t)number(dice, 7);
    for (uint32_t i = 0; i < state->run_count; i++) {
        state->runs[i].index = end + 1 + number(dice, 10);
        state->runs[i].count = 1 + number(dice, 10);
        end = state->runs[i].index + state->runs[i].count;
    }
}

/* New weights from some of the parts on that lie before the last run's end. */
static void make_switches(uint64_t *dice, struct plan_state *state) {
    uint64_t ahead = plan_state_known_end(state) - state->stream_parts;
    uint64_t index = 0;
    state->cursor.blend = (uint32_t)number(dice, 8);
    while (ahead > 0 && state->blend_switch_count < 9 && splitmix_between(dice, 0, 2) > 0) {
        index += number(dice, 11) % (ahead - index + 1);
        index += index == 0;
        state->blend_switches[state->blend_switch_count++] = state->stream_parts + index;
    }
}

static int drain_order(const void *a, const void *b) {
    const struct waiting *x = a;
    const struct waiting *y = b;
    if (x->bin != y->bin) {
        return x->bin < y->bin ? -1 : 1;
    }
    if (x->document.length != y->document.length) {
        return x->document.length > y->document.length ? -1 : 1;
    }
    return x->document.stream_index < y->document.stream_index ? -1 : 1;
}

static void make_drain(uint64_t *dice, struct plan_state *state) {
    if (state->waiting_count == 0 || splitmix_between(dice, 0, 2) > 0) {
        return;
    }
    uint32_t first = (uint32_t)number(dice, 10);
    uint32_t bins = splitmix_between(dice, 1, state->waiting_count);
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        state->waiting[i].bin = first + (i < bins ? i : splitmix_between(dice, 0, bins - 1));
    }
    qsort(state->waiting, state->waiting_count, sizeof *state->waiting, drain_order);
    state->draining = true;
    state->drain_start = state->step - number(dice, 4) % (state->step + 1);
    state->drain_steps = (uint32_t)(state->step - state->drain_start) + 1 +
                         (uint32_t)number(dice, 9);
}

static void make_cursor(uint64_t *dice, struct plan_state *state) {
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        struct dataset_cursor *cursor = &state->cursor.datasets[i];
        cursor->position = number(dice, 36);
        cursor->epoch = number(dice, 20);
        cursor->stream_tokens = number(dice, 50);
    }
    struct source_cursor *cursor = &state->cursor;
    if (splitmix_between(dice, 0, 1) == 0) {
        cursor->open = true;
        cursor->open_dataset = splitmix_between(dice, 0, cursor->dataset_count - 1);
        cursor->open_document = number(dice, 36);
        cursor->open_epoch = number(dice, 20);
        cursor->open_offset = 1 + (uint32_t)number(dice, 27);
        cursor->open_length = cursor->open_offset + 1 + (uint32_t)number(dice, 27);
    }
}

/* Delivered and dropped at will; what arrived follows, so that the books balance. */
static void make_books(uint64_t *dice, struct plan_state *state) {
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        struct dataset_cursor *cursor = &state->cursor.datasets[i];
        struct delay_counts *delays = &state->delays[i];
        uint32_t buckets = splitmix_between(dice, 0, DELAY_BUCKETS);
        for (uint32_t j = 0; j < buckets; j++) {
            delays->tokens_by_delay[j] = number(dice, 40);
            delays->delivered_tokens += delays->tokens_by_delay[j];
            delays->delay_max = j;
        }
        delays->delivered_documents = number(dice, 30);
        if (state->run_count > 0) {
            delays->tokens_by_delay[0] += 1;
            delays->delivered_tokens += 1;
            delays->early_tokens = 1 + number(dice, 40) % delays->delivered_tokens;
            delays->early_documents = number(dice, 30) % (delays->delivered_documents + 1);
        }
        delays->delay_token_steps = number(dice, 50);
        cursor->dropped_tokens = number(dice, 40);
        cursor->truncated_tokens = cursor->dropped_tokens / 3;
        cursor->dropped_documents = number(dice, 30);
        cursor->empty_documents = cursor->dropped_documents / 2;
        cursor->overlong_documents = cursor->dropped_documents / 2;
        cursor->arrived_tokens = delays->delivered_tokens - delays->early_tokens +
                                 cursor->dropped_tokens + plan_state_waiting_tokens(state, i);
        cursor->arrived_documents = delays->delivered_documents - delays->early_documents +
                                    cursor->dropped_documents;
        state->stream_tokens += cursor->arrived_tokens - cursor->dropped_tokens;
        state->delivered_tokens += delays->delivered_tokens;
    }
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        const struct document *part = &state->waiting[i].document;
        state->cursor.datasets[part->dataset].arrived_documents += part->offset == 0;
    }
}

static struct plan_state *make_state(uint64_t seed) {
    uint64_t dice = seed;
    uint32_t datasets = splitmix_between(&dice, 0, 9) == 0 ? splitmix_between(&dice, 60, 200)
                                                           : splitmix_between(&dice, 1, 4);
    struct plan_state *state = plan_state_create(datasets, WAITING_MAX);
    state->step = number(&dice, 40);
    state->target_tokens = number(&dice, 61);
    state->slip_tokens = number(&dice, 50);
    state->leftover_released = number(&dice, 40);
    for (uint32_t band = 0; band < BANDS_MAX; band++) {
        state->queue_released[band] = number(&dice, 40);
    }
    make_cursor(&dice, state);
    make_waiting(&dice, state);
    make_drain(&dice, state);
    make_runs(&dice, state);
    make_switches(&dice, state);
    make_books(&dice, state);
    return state;
}

static bool states_equal(const struct plan_state *a, const struct plan_state *b) {
    uint32_t datasets = a->cursor.dataset_count;
    bool counters = a->step == b->step && a->target_tokens == b->target_tokens &&
                    a->slip_tokens == b->slip_tokens && a->run_count == b->run_count &&
                    a->stream_tokens == b->stream_tokens && a->stream_parts == b->stream_parts &&
                    a->delivered_tokens == b->delivered_tokens &&
                    a->leftover_released == b->leftover_released && a->draining == b->draining &&
                    a->drain_start == b->drain_start && a->drain_steps == b->drain_steps &&
                    a->waiting_count == b->waiting_count && a->cursor.open == b->cursor.open &&
                    a->cursor.open_dataset == b->cursor.open_dataset &&
                    a->cursor.open_document == b->cursor.open_document &&
                    a->cursor.open_epoch == b->cursor.open_epoch &&
                    a->cursor.open_offset == b->cursor.open_offset &&
                    a->cursor.open_length == b->cursor.open_length &&
                    a->cursor.blend == b->cursor.blend &&
                    a->blend_switch_count == b->blend_switch_count &&
                    memcmp(a->queue_released, b->queue_released, sizeof a->queue_released) == 0;
    return counters &&
           memcmp(a->cursor.datasets, b->cursor.datasets, datasets * sizeof *a->cursor.datasets) ==
               0 &&
           memcmp(a->delays, b->delays, datasets * sizeof *a->delays) == 0 &&
           memcmp(a->runs, b->runs, a->run_count * sizeof *a->runs) == 0 &&
           memcmp(a->blend_switches, b->blend_switches,
                  a->blend_switch_count * sizeof *a->blend_switches) == 0 &&
           memcmp(a->waiting, b->waiting, a->waiting_count * sizeof *a->waiting) == 0;
}

static void every_state_comes_back_from_its_bytes(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    static uint8_t again[BYTES];
    for (uint64_t seed = 1; seed <= STATES; seed++) {
        struct plan_state *made = make_state(seed);
        struct plan_state *decoded = plan_state_create(made->cursor.dataset_count, WAITING_MAX);
        size_t count = plan_state_encode(made, bytes, sizeof bytes);
        struct error error = {0};
        CHECK(seed, count <= sizeof bytes && plan_state_conserves(made));
        if (plan_state_decode(decoded, bytes, count, &error) != 0) {
            print_error("%s\n", error.text);
        }
        CHECK(seed, error.code == 0 && states_equal(made, decoded));
        CHECK(seed, plan_state_encode(decoded, again, sizeof again) == count);
        CHECK(seed, memcmp(bytes, again, count) == 0);
        plan_state_destroy(made);
        plan_state_destroy(decoded);
    }
}

static void nothing_is_written_behind_a_buffer(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    struct plan_state *made = make_state(3);
    size_t count = plan_state_encode(made, NULL, 0);
    for (size_t room = 0; room < count; room++) {
        memset(bytes, 0xa5, sizeof bytes);
        assert_int_equal(plan_state_encode(made, bytes, room), count);
        for (size_t i = room; i < sizeof bytes; i++) {
            assert_true(bytes[i] == 0xa5);
        }
    }
    assert_int_equal(plan_state_encode(made, bytes, count), count);
    assert_int_equal(bytes[count], 0xa5);
    plan_state_destroy(made);
}

/* What the state is without its waiting parts is not theirs to pay for. */
static void a_waiting_part_takes_at_most_24_bytes(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= STATES; seed++) {
        struct plan_state *made = make_state(seed);
        if (made->draining) { /* a third key: see its bin */
            plan_state_destroy(made);
            continue;
        }
        size_t with = plan_state_encode(made, NULL, 0);
        for (uint32_t i = 0; i < made->waiting_count; i++) {
            struct document *part = &made->waiting[i].document;
            struct dataset_cursor *cursor = &made->cursor.datasets[part->dataset];
            cursor->arrived_tokens -= part->length;
            cursor->arrived_documents -= part->offset == 0;
            made->stream_tokens -= part->length;
        }
        uint32_t parts = made->waiting_count;
        made->waiting_count = 0;
        size_t without = plan_state_encode(made, NULL, 0);
        CHECK(seed, with <= without + 24 * (size_t)parts + 8);
        plan_state_destroy(made);
    }
}

/* What planning may rely on in whatever was accepted. */
static bool makes_sense(const struct plan_state *state) {
    bool sense = plan_state_conserves(state) && state->waiting_count <= state->waiting_max;
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        const struct document *part = &state->waiting[i].document;
        sense = sense && part->dataset < state->cursor.dataset_count && part->length > 0 &&
                (uint64_t)part->offset + part->length <= part->document_length &&
                part->stream_index < state->stream_parts;
        if (i > 0 && !state->draining) {
            sense = sense && part->stream_index > state->waiting[i - 1].document.stream_index;
        }
    }
    return sense;
}

static int decode(uint32_t datasets, const uint8_t *bytes, size_t count, bool *canonical) {
    static uint8_t again[2 * BYTES];
    struct plan_state *decoded = plan_state_create(datasets, WAITING_MAX);
    int code = plan_state_decode(decoded, bytes, count, NULL);
    *canonical = code < 0 || (makes_sense(decoded) &&
                              plan_state_encode(decoded, again, sizeof again) == count &&
                              memcmp(bytes, again, count) == 0);
    if (code < 0) { /* as after creation */
        *canonical = decoded->waiting_count == 0 && decoded->step == 0 &&
                     plan_state_conserves(decoded);
    }
    plan_state_destroy(decoded);
    return code;
}

/* Gives damaged bytes a hash that fits, so that the fields themselves are put to the test. */
static void rehash(uint8_t *bytes, size_t count) {
    XXH64_canonical_t hash;
    XXH64_canonicalFromHash(&hash, XXH3_64bits(bytes, count - sizeof hash.digest));
    memcpy(bytes + count - sizeof hash.digest, hash.digest, sizeof hash.digest);
}

/* A small state keeps this quadratic search short. */
static size_t make_small(uint64_t seed, uint8_t *bytes, uint32_t *datasets) {
    uint64_t dice = seed;
    struct plan_state *made = plan_state_create(2, WAITING_MAX);
    made->step = number(&dice, 12);
    make_cursor(&dice, made);
    make_waiting(&dice, made);
    made->waiting_count = made->waiting_count < 6 ? made->waiting_count : 6;
    make_drain(&dice, made);
    make_runs(&dice, made);
    made->run_count = made->run_count < 4 ? made->run_count : 4;
    make_switches(&dice, made);
    make_books(&dice, made);
    *datasets = made->cursor.dataset_count;
    size_t count = plan_state_encode(made, bytes, BYTES);
    plan_state_destroy(made);
    return count;
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    static uint8_t cut[BYTES];
    for (uint64_t seed = 1; seed <= 8; seed++) {
        uint32_t datasets;
        bool canonical;
        size_t count = make_small(seed, bytes, &datasets);
        for (size_t left = 0; left < count; left++) {
            CHECK(seed, decode(datasets, bytes, left, &canonical) == -EBADMSG && canonical);
            memcpy(cut, bytes, left);
            if (left >= 16) {
                rehash(cut, left);
                CHECK(seed, decode(datasets, cut, left, &canonical) == -EBADMSG && canonical);
            }
        }
    }
}

static void every_flipped_bit_is_refused_or_means_itself(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    uint32_t accepted = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        uint32_t datasets;
        bool canonical;
        size_t count = make_small(seed, bytes, &datasets);
        for (size_t bit = 0; bit < 8 * count; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK(seed, decode(datasets, bytes, count, &canonical) < 0 && canonical);
            if (bit / 8 < count - 8) {
                uint8_t hash[8];
                memcpy(hash, bytes + count - 8, sizeof hash);
                rehash(bytes, count);
                accepted += decode(datasets, bytes, count, &canonical) == 0;
                CHECK(seed, canonical);
                memcpy(bytes + count - 8, hash, sizeof hash);
            }
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    assert_true(accepted > 0); /* some fields may be anything: the test reaches them */
}

/* The step of this state is 0, at byte 5: as ten bytes whose last has a bit too many, it would be 0
 * again if that bit were lost. */
static void an_integer_of_65_bits_is_refused(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    static const uint8_t wide[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02};
    bool canonical;
    struct plan_state *fresh = plan_state_create(1, WAITING_MAX);
    size_t count = plan_state_encode(fresh, bytes, sizeof bytes);
    assert_int_equal(bytes[5], 0);
    memmove(bytes + 5 + sizeof wide, bytes + 6, count - 6);
    memcpy(bytes + 5, wide, sizeof wide);
    count += sizeof wide - 1;
    rehash(bytes, count);
    assert_int_equal(decode(1, bytes, count, &canonical), -EBADMSG);
    plan_state_destroy(fresh);
}

/* One that is yet to be appended makes no difference to the bytes. */
static void datasets_that_were_never_touched_are_not_written(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    static uint8_t again[BYTES];
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct plan_state *made = make_state(seed);
        uint32_t datasets = made->cursor.dataset_count;
        struct plan_state *wider = plan_state_create(datasets + 3, WAITING_MAX);
        size_t count = plan_state_encode(made, bytes, sizeof bytes);
        CHECK(seed, plan_state_decode(wider, bytes, count, NULL) == 0);
        CHECK(seed, plan_state_datasets(wider) == plan_state_datasets(made));
        CHECK(seed, plan_state_encode(wider, again, sizeof again) == count);
        CHECK(seed, memcmp(bytes, again, count) == 0);
        plan_state_destroy(made);
        plan_state_destroy(wider);
    }
}

/* Of a stream of two datasets with parts delivered early. */
static void the_version_before_is_read(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    bool canonical;
    uint8_t old[] = {0x42, 0x4c, 0x50, 0x53, 0x02, 0x02, 0x98, 0x01, 0x00, 0x9a, 0x01, 0x07, 0x98,
                     0x01, 0x03, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x04,
                     0x00, 0x0f, 0x04, 0x0f, 0x01, 0x00, 0x00, 0x00, 0x01, 0x03, 0x00, 0x8b, 0x01,
                     0x03, 0x8b, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x01, 0x02, 0x00, 0x7e,
                     0x94, 0x01, 0x02, 0x06, 0x01, 0x00, 0x00, 0x02, 0x05, 0x06, 0x05, 0x06, 0x01,
                     0x02, 0x02, 0x02, 0x87, 0x01, 0x06, 0x01, 0x00, 0x03, 0x04, 0x05, 0x03, 0x02,
                     0x05, 0x01, 0x06, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
    struct plan_state *decoded = plan_state_create(3, WAITING_MAX);
    rehash(old, sizeof old);
    assert_int_equal(plan_state_decode(decoded, old, sizeof old, NULL), 0);
    assert_int_equal(decoded->cursor.blend, 0);
    assert_int_equal(decoded->run_count, 2);
    assert_int_equal(plan_state_datasets(decoded), 2);
    size_t count = plan_state_encode(decoded, bytes, sizeof bytes);
    assert_int_equal(bytes[4], 3);
    assert_int_equal(decode(2, bytes, count, &canonical), 0);
    assert_true(canonical);
    plan_state_destroy(decoded);
}

static void refusals_say_which(void **state) {
    (void)state;
    static uint8_t bytes[BYTES];
    struct plan_state *made = make_state(6);
    uint32_t datasets = made->cursor.dataset_count;
    struct plan_state *other = plan_state_create(datasets - 1, WAITING_MAX);
    struct plan_state *small = plan_state_create(datasets, made->waiting_count - 1);
    struct error error;
    size_t count = plan_state_encode(made, bytes, sizeof bytes);
    assert_int_equal(plan_state_decode(other, bytes, count, &error), -EINVAL);
    assert_non_null(strstr(error.text, "datasets"));
    assert_int_equal(plan_state_decode(small, bytes, count, &error), -ENOBUFS);
    assert_non_null(strstr(error.text, "queues.waiting_max"));
    assert_int_equal(plan_state_decode(made, bytes, 0, &error), -EBADMSG);
    assert_int_equal(plan_state_decode(made, NULL, 0, &error), -EBADMSG);
    bytes[4] = 4; /* the version */
    assert_int_equal(plan_state_decode(made, bytes, count, &error), -ENOSYS);
    assert_non_null(strstr(error.text, "byte 5"));
    bytes[4] = 1;
    assert_int_equal(plan_state_decode(made, bytes, count, &error), -ENOSYS);
    assert_non_null(strstr(error.text, "older"));
    plan_state_destroy(made);
    plan_state_destroy(other);
    plan_state_destroy(small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_comes_back_from_its_bytes),
        cmocka_unit_test(nothing_is_written_behind_a_buffer),
        cmocka_unit_test(a_waiting_part_takes_at_most_24_bytes),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_flipped_bit_is_refused_or_means_itself),
        cmocka_unit_test(an_integer_of_65_bits_is_refused),
        cmocka_unit_test(datasets_that_were_never_touched_are_not_written),
        cmocka_unit_test(the_version_before_is_read),
        cmocka_unit_test(refusals_say_which),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
