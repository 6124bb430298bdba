/* Checkpoint blobs: there and back, damage at every byte, newer and older writers, and what is
 * said when a blob is of another job. blob_format_1.bin was made from the description in blob.h
 * without this code, and stays as it is. */
#include "daemon/blob.h"
#include "planner/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#define GOLDEN     BALLAST_SOURCE "/tests/unit/blob_format_1.bin"
#define HEAD_BYTES 12u
#define HASH_BYTES 8u

static const struct blob_dataset datasets[] = {{"books", {1, 2, 3}}, {"a web of pages", {4, 5, 6}}};

static struct blob sample(void) {
    return (struct blob){.writer = "ballastd 0.1.0",
                         .algorithm = 3,
                         .job_digest = {9, 8, 7},
                         .datasets = datasets,
                         .dataset_count = 2,
                         .plan_text = "algorithm = 3\njob.seed = 7\nplan.window = 4096\n",
                         .step = 120,
                         .generation = 2,
                         .digest_known = true,
                         .digest = {1, 1, 2, 3},
                         .state = (const uint8_t *)"\0state\0",
                         .state_bytes = 7};
}

static uint8_t *encoded(const struct blob *blob, size_t *bytes) {
    struct error error = {0};
    uint8_t *out = blob_encode(blob, bytes, &error);
    assert_non_null(out);
    return out;
}

static void expect_refusal(const uint8_t *bytes, size_t count, int code, const char *word) {
    struct error error = {0};
    struct blob *blob = NULL;
    /* In memory of its own, so that a sanitizer sees a read beyond it. */
    uint8_t *copy = malloc(count + 1);
    assert_non_null(copy);
    memcpy(copy, bytes, count);
    assert_int_equal(blob_decode(copy, count, &blob, &error), code);
    assert_null(blob);
    if (strstr(error.text, word) == NULL) {
        fail_msg("'%s' is not in: %s", word, error.text);
    }
    free(copy);
}

static void fix_hash(uint8_t *bytes, size_t count) {
    XXH64_canonical_t hash;
    XXH64_canonicalFromHash(&hash, XXH3_64bits(bytes, count - HASH_BYTES));
    memcpy(bytes + count - HASH_BYTES, hash.digest, HASH_BYTES);
}

/* The blob with one more field before its hash; the caller frees. */
static uint8_t *with_field(uint16_t tag, uint16_t flags, size_t *count) {
    struct blob blob = sample();
    size_t bytes;
    uint8_t *plain = encoded(&blob, &bytes);
    *count = bytes + 8 + 3;
    uint8_t *out = realloc(plain, *count);
    assert_non_null(out);
    uint8_t *at = out + bytes - HASH_BYTES;
    const uint8_t field[] = {
        (uint8_t)tag, (uint8_t)(tag >> 8), (uint8_t)flags, 0, 3, 0, 0, 0, 'n', 'e', 'w'};
    memcpy(at, field, sizeof field);
    out[8] = (uint8_t)*count;
    out[9] = (uint8_t)(*count >> 8);
    fix_hash(out, *count);
    return out;
}

static void expect_equal(const struct blob *a, const struct blob *b) {
    assert_string_equal(a->writer, b->writer);
    assert_string_equal(a->plan_text, b->plan_text);
    assert_int_equal(a->algorithm, b->algorithm);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->generation, b->generation);
    assert_int_equal(a->digest_known, b->digest_known);
    assert_memory_equal(a->digest, b->digest, sizeof a->digest);
    assert_memory_equal(a->job_digest, b->job_digest, sizeof a->job_digest);
    assert_int_equal(a->dataset_count, b->dataset_count);
    for (uint32_t i = 0; i < a->dataset_count; i++) {
        assert_string_equal(a->datasets[i].name, b->datasets[i].name);
        assert_memory_equal(a->datasets[i].fingerprint, b->datasets[i].fingerprint,
                            BLOB_FINGERPRINT_BYTES);
    }
    assert_int_equal(a->state_bytes, b->state_bytes);
    assert_memory_equal(a->state, b->state, a->state_bytes);
}

static void what_was_written_is_read(void **state) {
    struct error error = {0};
    (void)state;
    for (int bare = 0; bare < 2; bare++) {
        struct blob blob = sample(), *read = NULL;
        size_t bytes;
        if (bare) {
            blob.writer = "";
            blob.digest_known = false;
            memset(blob.digest, 0, sizeof blob.digest);
        }
        uint8_t *packed = encoded(&blob, &bytes);
        assert_int_equal(blob_decode(packed, bytes, &read, &error), 0);
        memset(packed, 0, bytes);
        free(packed);
        expect_equal(&blob, read);
        free(read);
    }
}

static void a_blob_of_format_1_is_read_for_ever_and_written_the_same(void **state) {
    static uint8_t golden[65536];
    struct error error = {0};
    struct blob *blob = NULL;
    (void)state;
    FILE *file = fopen(GOLDEN, "rb");
    assert_non_null(file);
    size_t count = fread(golden, 1, sizeof golden, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(blob_decode(golden, count, &blob, &error), 0);
    assert_string_equal(blob->writer, "ballastd 0.1.0");
    assert_int_equal(blob->algorithm, 3);
    assert_int_equal(blob->job_digest[15], 115);
    assert_string_equal(blob->datasets[0].name, "books");
    assert_int_equal(blob->datasets[0].fingerprint[15], 15);
    assert_string_equal(blob->plan_text, "algorithm = 3\njob.seed = 7\nplan.window = 131072\n");
    assert_int_equal(blob->step, 4711);
    assert_int_equal(blob->generation, 5);
    assert_true(blob->digest_known);
    assert_int_equal(blob->digest[0], 200);
    struct plan_state *inner = plan_state_create(blob->dataset_count, 64);
    assert_non_null(inner);
    if (plan_state_decode(inner, blob->state, blob->state_bytes, &error) < 0) {
        fail_msg("%s", error.text);
    }
    assert_true(inner->waiting_count > 0);
    plan_state_destroy(inner);
    size_t again_bytes;
    uint8_t *again = encoded(blob, &again_bytes);
    assert_int_equal(again_bytes, count);
    assert_memory_equal(again, golden, count);
    free(again);
    free(blob);
}

static void every_cut_and_every_flipped_bit_is_refused(void **state) {
    struct blob blob = sample();
    size_t bytes;
    (void)state;
    uint8_t *packed = encoded(&blob, &bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        expect_refusal(packed, cut, -EBADMSG, "checkpoint");
    }
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        struct error error = {0};
        struct blob *read = NULL;
        packed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int code = blob_decode(packed, bytes, &read, &error);
        assert_true(code == -EBADMSG || (code == -ENOSYS && bit / 8 >= 4 && bit / 8 < 8));
        packed[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(packed);
}

static void a_newer_format_is_refused_by_its_number(void **state) {
    struct blob blob = sample();
    size_t bytes;
    (void)state;
    uint8_t *packed = encoded(&blob, &bytes);
    packed[4] = 2;
    expect_refusal(packed, bytes, -ENOSYS, "format 2: this version reads up to 1");
    packed[4] = 0;
    expect_refusal(packed, bytes, -EBADMSG, "checkpoint");
    free(packed);
}

static void a_newer_field_is_passed_over_unless_it_must_be_understood(void **state) {
    struct error error = {0};
    struct blob blob = sample(), *read = NULL;
    size_t count;
    (void)state;
    uint8_t *newer = with_field(300, 0, &count);
    assert_int_equal(blob_decode(newer, count, &read, &error), 0);
    expect_equal(&blob, read);
    free(read);
    free(newer);
    newer = with_field(300, 1, &count);
    expect_refusal(newer, count, -ENOSYS, "field 300");
    free(newer);
    newer = with_field(9, 0, &count);
    expect_refusal(newer, count, -EBADMSG, "out of order");
    free(newer);
}

static void a_field_that_is_missing_is_named(void **state) {
    static const uint8_t nothing[HEAD_BYTES + HASH_BYTES] = {'B', 'L', 'C', 'K', 1, 0, 0, 0, 20};
    uint8_t bytes[sizeof nothing];
    (void)state;
    memcpy(bytes, nothing, sizeof bytes);
    fix_hash(bytes, sizeof bytes);
    expect_refusal(bytes, sizeof bytes, -EBADMSG, "has no algorithm");
}

static void expect_other_job(const struct blob *here, const char *word) {
    bool same_step;
    struct error error = {0};
    struct blob blob = sample();
    assert_int_equal(blob_check_job(&blob, here, &same_step, &error), -EINVAL);
    if (strstr(error.text, word) == NULL) {
        fail_msg("'%s' is not in: %s", word, error.text);
    }
}

static void another_job_is_refused_by_what_differs(void **state) {
    struct blob_dataset changed[] = {datasets[0], datasets[1], datasets[1]};
    struct error error = {0};
    struct blob here = sample(), blob = sample();
    bool same_step = false;
    (void)state;
    assert_int_equal(blob_check_job(&blob, &here, &same_step, &error), 0);
    here.algorithm = 4;
    expect_other_job(&here, "algorithm 3 and this version is 4; run ballastd 0.1.0");
    here = sample();
    here.datasets = changed;
    changed[1].name = "renamed";
    assert_int_equal(blob_check_job(&blob, &here, &same_step, &error), 0);
    changed[1].fingerprint[0] = 99;
    expect_other_job(&here, "dataset 'renamed'");
    here.dataset_count = 3;
    expect_other_job(&here, "2 datasets and this config has 3");
    here = sample();
    here.plan_text = "algorithm = 3\njob.seed = 7\nplan.window = 8192\n";
    expect_other_job(&here, "'plan.window = 4096', and this config 'plan.window = 8192'");
    here.plan_text = "algorithm = 3\njob.seed = 7\n";
    expect_other_job(&here, "'plan.window = 4096', and this config 'nothing'");
    here.plan_text = "algorithm = 3\njob.seed = 7\nplan.window = 4096\nplan.policy = plain\n";
    expect_other_job(&here, "'nothing', and this config 'plan.policy = plain'");
    here = sample();
    here.job_digest[3] = 1;
    expect_other_job(&here, "job digest");
}

static void sections_from_the_step_on_are_this_configs_own(void **state) {
    struct error error = {0};
    struct blob here = sample(), blob = sample();
    bool same_step = false;
    (void)state;
    here.plan_text = "algorithm = 3\njob.seed = 7\nplan.window = 4096\n"
                     "[from 121]\nparallel.dp = 4\n";
    assert_int_equal(blob_check_job(&blob, &here, &same_step, &error), 0);
    assert_true(same_step);
    here.plan_text = "algorithm = 3\njob.seed = 7\nplan.window = 4096\n"
                     "[from 120]\nparallel.dp = 4\n";
    assert_int_equal(blob_check_job(&blob, &here, &same_step, &error), 0);
    assert_false(same_step);
    here.plan_text = "algorithm = 3\njob.seed = 7\nplan.window = 4096\n"
                     "[from 119]\nparallel.dp = 4\n";
    expect_other_job(&here, "up to step 120");
}

/* They come to be read by people, terminals and clients that insist on UTF-8. */
static void texts_that_are_not_printable_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"\x1b[2J", "\x80", "\r", "\x7f", "\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct blob_dataset named = {.name = bad[i]};
        struct blob blobs[] = {sample(), sample(), sample()};
        blobs[0].writer = bad[i];
        blobs[1].datasets = &named;
        blobs[1].dataset_count = 1;
        blobs[2].plan_text = bad[i];
        for (size_t j = 0; j < 3; j++) {
            size_t bytes;
            uint8_t *out = encoded(&blobs[j], &bytes);
            if (j < 2 || bad[i][0] != '\n') {
                expect_refusal(out, bytes, -EBADMSG, "its texts or datasets make no sense");
            }
            free(out);
        }
    }
}

static void what_does_not_fit_a_frame_is_not_written(void **state) {
    static uint8_t large[BLOB_BYTES_MAX];
    struct error error = {0};
    struct blob blob = sample();
    size_t bytes;
    (void)state;
    blob.state = large;
    blob.state_bytes = sizeof large;
    assert_null(blob_encode(&blob, &bytes, &error));
    assert_int_equal(error.code, -EMSGSIZE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_blob_of_format_1_is_read_for_ever_and_written_the_same),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_refused),
        cmocka_unit_test(a_newer_format_is_refused_by_its_number),
        cmocka_unit_test(a_newer_field_is_passed_over_unless_it_must_be_understood),
        cmocka_unit_test(a_field_that_is_missing_is_named),
        cmocka_unit_test(another_job_is_refused_by_what_differs),
        cmocka_unit_test(sections_from_the_step_on_are_this_configs_own),
        cmocka_unit_test(texts_that_are_not_printable_are_refused),
        cmocka_unit_test(what_does_not_fit_a_frame_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
