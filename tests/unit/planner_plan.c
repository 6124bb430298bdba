/* The plan's memory and its digest: what the digest is made of, and what it does not see. */
#include "planner/plan.h"

#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <cmocka.h>

/* Two micro-batches on two context-parallel ranks: documents of 5 and 3 tokens, and none. */
static struct step_plan *make_plan(void) {
    struct step_plan *plan = step_plan_create(2, 2, 2, 3);
    plan->step = 7;
    plan->dp = 2;
    plan->pp = plan->tp = 1;
    plan->loss_denominator = 64;
    plan->documents[0] = (struct document){
        .dataset = 1, .document = 20, .offset = 4, .length = 5, .nominal_step = 6, .epoch = 3};
    plan->documents[1] = (struct document){.document = 9, .length = 3, .nominal_step = 8};
    plan->fragments[0] = (struct fragment){.document = 0, .start = 0, .length = 4};
    plan->fragments[1] = (struct fragment){.document = 0, .start = 4, .length = 1};
    plan->fragments[2] = (struct fragment){.document = 1, .start = 0, .length = 3};
    plan->shards[0] = (struct rank_shard){.fragment_begin = 0, .fragment_count = 1, .rows = 4};
    plan->shards[1] = (struct rank_shard){.fragment_begin = 1, .fragment_count = 2, .rows = 4};
    plan->micro_batches[0] = (struct micro_batch){
        .document_count = 2, .tokens = 8, .choice.layout = LAYOUT_PER_DOCUMENT};
    plan->micro_batches[1] = (struct micro_batch){.dp = 1,
                                                  .document_begin = 2,
                                                  .shard_begin = 2,
                                                  .pad_tokens = 4,
                                                  .choice.layout = LAYOUT_PER_SEQUENCE};
    return plan;
}

static void the_digest_is_the_hash_of_these_numbers_in_this_order(void **state) {
    (void)state;
    uint64_t words[] = {
        7, /* step */
        2, /* micro-batches */
        2,
        1,
        20,
        4,
        5,
        6,
        3, /* documents: dataset, document, offset, length, */
        0,
        9,
        0,
        3,
        8,
        0, /* nominal_step, epoch */
        0,
        LAYOUT_PER_DOCUMENT, /* pad_tokens, layout */
        2,
        1,
        0,
        0,
        4, /* ranks; fragments: document, start, length */
        2,
        0,
        4,
        1,
        1,
        0,
        3, /* */
        0,
        4,
        LAYOUT_PER_SEQUENCE,
        2,
        0,
        0,  /* the empty micro-batch */
        0,  /* pools */
        64, /* loss_denominator */
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        words[i] = htole64(words[i]);
    }
    XXH128_canonical_t expected;
    XXH128_canonicalFromHash(&expected, XXH3_128bits(words, sizeof words));
    struct step_plan *plan = make_plan();
    uint8_t digest[PLAN_DIGEST_BYTES];
    step_plan_digest(plan, digest);
    assert_memory_equal(digest, expected.digest, sizeof digest);
    step_plan_destroy(plan);
}

static bool digest_sees(void (*change)(struct step_plan *plan)) {
    uint8_t before[PLAN_DIGEST_BYTES];
    uint8_t after[PLAN_DIGEST_BYTES];
    struct step_plan *plan = make_plan();
    step_plan_digest(plan, before);
    change(plan);
    step_plan_digest(plan, after);
    step_plan_destroy(plan);
    return memcmp(before, after, sizeof before) != 0;
}

#define CHANGE(name, field, value)                                                                 \
    static void change_##name(struct step_plan *plan) {                                            \
        plan->field = value;                                                                       \
    }
CHANGE(step, step, 8)
CHANGE(dataset, documents[1].dataset, 2)
CHANGE(document, documents[1].document, 10)
CHANGE(offset, documents[1].offset, 1)
CHANGE(length, documents[1].length, 4)
CHANGE(nominal, documents[1].nominal_step, 9)
CHANGE(epoch, documents[1].epoch, 1)
CHANGE(pad, micro_batches[1].pad_tokens, 8)
CHANGE(layout, micro_batches[1].choice.layout, LAYOUT_PER_DOCUMENT)
CHANGE(fragment, fragments[2].start, 1)
CHANGE(border, shards[0].fragment_count, 0)
CHANGE(loss, loss_denominator, 65)
CHANGE(work, micro_batches[0].work_ns, 1)
CHANGE(predicted, shards[0].predicted_ns, 1)
CHANGE(balance, balance.total_ppm, 1)
CHANGE(release, release.outliers, 1)
CHANGE(time, plan_ns, 1)
CHANGE(document_length, documents[1].document_length, 99)
CHANGE(replica, micro_batches[1].dp, 0)

static void what_a_rank_computes_changes_the_digest(void **state) {
    (void)state;
    void (*const changes[])(struct step_plan *
                            plan) = {change_step,   change_dataset,  change_document, change_offset,
                                     change_length, change_nominal,  change_epoch,    change_pad,
                                     change_layout, change_fragment, change_border,   change_loss};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        assert_true(digest_sees(changes[i]));
    }
}

static void forecasts_and_reports_do_not(void **state) {
    (void)state;
    void (*const changes[])(struct step_plan * plan) = {
        change_work, change_predicted,       change_balance, change_release,
        change_time, change_document_length, change_replica};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        assert_false(digest_sees(changes[i]));
    }
}

static void long_plans_are_hashed_in_pieces_alike(void **state) {
    (void)state;
    enum { DOCUMENTS = 1000 };
    struct step_plan *plan = step_plan_create(1, 1, DOCUMENTS, DOCUMENTS);
    uint64_t *words = calloc(DOCUMENTS * 9 + 16, sizeof *words);
    size_t count = 0;
    words[count++] = 0;
    words[count++] = 1;
    words[count++] = DOCUMENTS;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        plan->documents[i] = (struct document){.document = i, .length = i + 1};
        plan->fragments[i] = (struct fragment){.document = i, .length = i + 1};
        words[count + 1] = htole64(i);
        words[count + 3] = htole64(i + 1);
        count += 6;
    }
    plan->micro_batches[0].document_count = DOCUMENTS;
    plan->shards[0].fragment_count = DOCUMENTS;
    count += 2;
    words[count++] = htole64(1);
    words[count++] = htole64(DOCUMENTS);
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        words[count] = htole64(i);
        words[count + 2] = htole64(i + 1);
        count += 3;
    }
    count += 2;
    XXH128_canonical_t expected;
    XXH128_canonicalFromHash(&expected, XXH3_128bits(words, count * sizeof *words));
    uint8_t digest[PLAN_DIGEST_BYTES];
    step_plan_digest(plan, digest);
    assert_memory_equal(digest, expected.digest, sizeof digest);
    free(words);
    step_plan_destroy(plan);
}

static void micro_batches_are_found_by_replica_and_index(void **state) {
    (void)state;
    struct step_plan *plan = step_plan_create(6, 1, 0, 0);
    plan->dp = 3;
    assert_ptr_equal(step_plan_micro_batch(plan, 2, 1), &plan->micro_batches[5]);
    assert_ptr_equal(step_plan_micro_batch(plan, 0, 0), &plan->micro_batches[0]);
    assert_null(step_plan_micro_batch(plan, 3, 0));
    assert_null(step_plan_micro_batch(plan, 0, 2));
    step_plan_destroy(plan);
    step_plan_destroy(NULL);
}

static void a_plan_is_as_large_as_it_says(void **state) {
    (void)state;
    struct step_plan *plan = step_plan_create(2, 3, 5, 7);
    size_t bytes = step_plan_bytes(plan);
    uint8_t *end = (uint8_t *)(plan->fragments + 7);
    assert_int_equal(end - (uint8_t *)plan, bytes);
    memset(plan->micro_batches, 0xff, 2 * sizeof *plan->micro_batches);
    memset(plan->documents, 0xff, 5 * sizeof *plan->documents);
    memset(plan->shards, 0xff, 6 * sizeof *plan->shards);
    memset(plan->fragments, 0xff, 7 * sizeof *plan->fragments);
    assert_int_equal(plan->document_count, 5);
    step_plan_destroy(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_digest_is_the_hash_of_these_numbers_in_this_order),
        cmocka_unit_test(what_a_rank_computes_changes_the_digest),
        cmocka_unit_test(forecasts_and_reports_do_not),
        cmocka_unit_test(long_plans_are_hashed_in_pieces_alike),
        cmocka_unit_test(micro_batches_are_found_by_replica_and_index),
        cmocka_unit_test(a_plan_is_as_large_as_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
