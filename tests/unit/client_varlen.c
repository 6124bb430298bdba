/* What stock attention kernels are told of a batch, against plain loops over all rows: random
 * documents in the layouts that follow from lengths alone. */
#include "client/ballast.h"
#include "client/rank_verify.h"
#include "sharding/keys.h"
#include "sharding/layout.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 12u
#define CP_MAX        6u
#define ROWS_MAX      4096u
#define FRAGMENTS_MAX (2 * DOCUMENTS_MAX + 2)
#define KEYS_MAX      (1u << 16)

/* A batch and, by row of the packed sequence, what it is. */
struct sample {
    struct ballast_batch batch;
    struct ballast_document documents[DOCUMENTS_MAX];
    struct ballast_fragment fragments[CP_MAX][FRAGMENTS_MAX];
    struct ballast_shard shards[CP_MAX];
    uint32_t lengths[DOCUMENTS_MAX];
    struct packed_sequence sequence;
    uint32_t document_of[ROWS_MAX]; /* DOCUMENTS_MAX: a pad row */
    uint32_t begin_of[ROWS_MAX];
};

static uint64_t random_state;

static uint32_t random_below(uint32_t limit) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % limit);
}

static void sample_rows(struct sample *sample) {
    uint32_t row = 0;
    for (uint32_t i = 0; i < sample->sequence.documents; i++) {
        uint32_t begin = row;
        for (uint32_t k = 0; k < sample->lengths[i]; k++) {
            sample->document_of[row] = i;
            sample->begin_of[row++] = begin;
        }
    }
    for (uint32_t begin = row, k = 0; k < sample->sequence.pad_tokens; k++) {
        sample->document_of[row] = DOCUMENTS_MAX;
        sample->begin_of[row++] = begin;
    }
}

static void sample_shard(struct sample *sample, enum layout layout, uint32_t cp, uint32_t rank) {
    struct fragment dealt[FRAGMENTS_MAX];
    struct ballast_shard *shard = &sample->shards[rank];
    uint32_t row = 0;
    uint32_t count = layout_fragments(layout, &sample->sequence, cp, rank, dealt, FRAGMENTS_MAX);
    assert_true(count <= FRAGMENTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        sample->fragments[rank][i] = (struct ballast_fragment){dealt[i].document, dealt[i].start,
                                                               dealt[i].length, row};
        row += dealt[i].length;
    }
    shard->rows = (sample->sequence.tokens + sample->sequence.pad_tokens) / cp;
    shard->pad_rows = shard->rows - row;
    shard->fragment_count = count;
    shard->fragments = sample->fragments[rank];
}

/* `unit` divides every length; `pad_units` of 2 * cp rows more than needed. */
static void sample_make(struct sample *sample, enum layout layout, uint32_t cp, uint32_t unit,
                        uint32_t pad_units) {
    memset(sample, 0, sizeof *sample);
    sample->sequence.lengths = sample->lengths;
    sample->sequence.documents = 1 + random_below(DOCUMENTS_MAX);
    for (uint32_t i = 0; i < sample->sequence.documents; i++) {
        sample->lengths[i] = unit * (1 + random_below(200 / unit));
        sample->documents[i].length = sample->lengths[i];
        sample->sequence.tokens += sample->lengths[i];
    }
    uint64_t chunks = 2 * (uint64_t)cp;
    sample->sequence.pad_tokens = (chunks - sample->sequence.tokens % chunks) % chunks +
                                  pad_units * chunks;
    sample_rows(sample);
    for (uint32_t rank = 0; rank < cp; rank++) {
        sample_shard(sample, layout, cp, rank);
    }
    sample->batch.layout = layout;
    sample->batch.documents = sample->documents;
    sample->batch.document_count = sample->sequence.documents;
    sample->batch.group_ranks = cp;
    sample->batch.shards = sample->shards;
}

static void sample_rank(struct sample *sample, uint32_t rank) {
    sample->batch.group_rank = rank;
    sample->batch.rows = sample->shards[rank].rows;
    sample->batch.pad_rows = sample->shards[rank].pad_rows;
    sample->batch.fragments = sample->shards[rank].fragments;
    sample->batch.fragment_count = sample->shards[rank].fragment_count;
}

static uint32_t begin_of_document(const struct sample *sample, uint32_t document) {
    uint32_t begin = 0;
    for (uint32_t i = 0; i < document; i++) {
        begin += sample->lengths[i];
    }
    return begin;
}

/* Every row's place once, and those with a document at what the shards say. */
static void expect_order(struct sample *sample, const int32_t *order, uint32_t rows) {
    static bool seen[ROWS_MAX];
    memset(seen, 0, sizeof seen);
    for (uint32_t row = 0; row < rows; row++) {
        assert_in_range(order[row], 0, rows - 1);
        assert_false(seen[order[row]]);
        seen[order[row]] = true;
    }
    for (uint32_t rank = 0; rank < sample->batch.group_ranks; rank++) {
        for (uint32_t i = 0; i < sample->shards[rank].fragment_count; i++) {
            struct ballast_fragment fragment = sample->fragments[rank][i];
            for (uint32_t k = 0; k < fragment.length; k++) {
                uint32_t row = begin_of_document(sample, fragment.document) + fragment.start + k;
                assert_int_equal(order[row], rank * sample->shards[rank].rows + fragment.row + k);
            }
        }
    }
}

static void expect_keys(struct sample *sample, const int32_t *order) {
    static int32_t index[KEYS_MAX];
    int32_t cu_q[FRAGMENTS_MAX + 1], cu_k[FRAGMENTS_MAX + 1], max_q, max_k, q_most = 0, k_most = 0;
    uint32_t count = sample->batch.fragment_count;
    int64_t keys = ballast_key_index(&sample->batch, order, index, KEYS_MAX);
    assert_int_equal(ballast_cu_seqlens(&sample->batch, cu_q, cu_k, count + 1), count + 1);
    assert_int_equal(ballast_max_seqlens(&sample->batch, &max_q, &max_k), 0);
    assert_int_equal(keys, cu_k[count]);
    for (uint32_t i = 0; i < count; i++) {
        struct ballast_fragment fragment = sample->batch.fragments[i];
        uint32_t begin = begin_of_document(sample, fragment.document);
        for (int32_t k = cu_k[i]; k < cu_k[i + 1]; k++) {
            assert_int_equal(index[k], order[begin + (uint32_t)(k - cu_k[i])]);
        }
        q_most = cu_q[i + 1] - cu_q[i] > q_most ? cu_q[i + 1] - cu_q[i] : q_most;
        k_most = cu_k[i + 1] - cu_k[i] > k_most ? cu_k[i + 1] - cu_k[i] : k_most;
    }
    assert_int_equal(max_q, q_most);
    assert_int_equal(max_k, k_most);
    if (keys > 0) {
        assert_int_equal(ballast_key_index(&sample->batch, order, index, (size_t)keys - 1),
                         -ENOBUFS);
    }
}

/* Every key that a rank sees and does not own comes from its owner, once, and nothing else. */
static void expect_runs(struct sample *sample, const int32_t *order) {
    static uint8_t wanted[ROWS_MAX];
    struct ballast_key_run runs[FRAGMENTS_MAX];
    struct fragment own[FRAGMENTS_MAX];
    uint32_t reader = sample->batch.group_rank;
    uint64_t sent = 0;
    memset(wanted, 0, sizeof wanted);
    for (uint32_t i = 0; i < sample->batch.fragment_count; i++) {
        struct ballast_fragment fragment = sample->batch.fragments[i];
        own[i] = (struct fragment){fragment.document, fragment.start, fragment.length};
        memset(wanted + begin_of_document(sample, fragment.document), 1,
               fragment.start + fragment.length);
    }
    for (uint32_t owner = 0; owner < sample->batch.group_ranks; owner++) {
        int count = owner == reader
                        ? 0
                        : ballast_key_runs(&sample->batch, reader, owner, runs, FRAGMENTS_MAX);
        assert_true(count >= 0 && count <= (int)sample->shards[owner].fragment_count);
        for (int i = 0; i < count; i++) {
            assert_true(runs[i].length > 0);
            for (uint32_t k = 0; k < runs[i].length; k++, sent++) {
                uint32_t row = begin_of_document(sample, runs[i].document) + runs[i].start + k;
                assert_int_equal(wanted[row]++, 1);
                assert_int_equal(order[row], owner * sample->shards[owner].rows + runs[i].row + k);
            }
        }
        if (count > 0) {
            assert_int_equal(
                ballast_key_runs(&sample->batch, reader, owner, runs, (size_t)count - 1), -ENOBUFS);
        }
    }
    assert_int_equal(sent, keys_needed(own, sample->batch.fragment_count));
    for (uint32_t row = 0; row < sample->sequence.tokens; row++) {
        bool mine = (uint32_t)order[row] / sample->batch.rows == reader;
        assert_int_equal(wanted[row] == 1, wanted[row] > 0 && mine);
    }
    assert_int_equal(ballast_key_runs(&sample->batch, reader, reader, runs, FRAGMENTS_MAX),
                     -EINVAL);
}

static void order_and_keys_are_those_of_every_row(void **state) {
    (void)state;
    static struct sample sample;
    static int32_t order[ROWS_MAX];
    static const enum layout layouts[] = {LAYOUT_PER_SEQUENCE, LAYOUT_PER_DOCUMENT, LAYOUT_ULYSSES};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        random_state = seed;
        uint32_t cp = 1 + random_below(CP_MAX);
        sample_make(&sample, layouts[random_below(3)], cp, 1, random_below(3));
        for (uint32_t rank = 0; rank < cp; rank++) {
            sample_rank(&sample, rank);
            uint32_t rows = (uint32_t)(sample.sequence.tokens + sample.sequence.pad_tokens);
            assert_int_equal(ballast_order(&sample.batch, order, ROWS_MAX), rows);
            assert_int_equal(ballast_order(&sample.batch, order, rows - 1), -ENOBUFS);
            expect_order(&sample, order, rows);
            expect_keys(&sample, order);
            expect_runs(&sample, order);
        }
    }
    sample.shards[0].pad_rows++;
    assert_int_equal(ballast_order(&sample.batch, order, ROWS_MAX), -EBADMSG);
}

/* TransformerEngine's rule: of a document cut in 2 * cp chunks, the first half of a rank's rows is
 * chunk r, the second chunk 2 * cp - 1 - r. */
static void expect_thd_rows(const struct sample *sample, const int32_t *cu, uint32_t cp) {
    uint32_t rank = sample->batch.group_rank;
    uint32_t fragment = 0, used = 0;
    for (uint32_t i = 0; i < sample->batch.document_count; i++) {
        uint32_t chunk = (uint32_t)(cu[i + 1] - cu[i]) / (2 * cp);
        for (uint32_t k = 0; k < 2 * chunk; k++) {
            uint32_t position = k < chunk ? rank * chunk + k
                                          : (2 * cp - 1 - rank) * chunk + k - chunk;
            struct ballast_fragment run = sample->batch.fragments[fragment];
            assert_int_equal(run.document, i);
            assert_int_equal(run.start + used, position);
            used = used + 1 == run.length ? 0 : used + 1;
            fragment += used == 0;
        }
    }
    assert_int_equal(fragment, sample->batch.fragment_count);
}

static void thd_and_zigzag_are_whole_documents(void **state) {
    (void)state;
    static struct sample sample;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        random_state = seed;
        uint32_t cp = 1 + random_below(CP_MAX);
        int32_t cu[DOCUMENTS_MAX + 1], local[DOCUMENTS_MAX + 1], longest, local_longest, most = 0;
        sample_make(&sample, LAYOUT_PER_DOCUMENT, cp, 2 * cp, 0);
        int entries = (int)sample.sequence.documents + 1;
        for (uint32_t rank = 0; rank < cp; rank++) {
            sample_rank(&sample, rank);
            assert_int_equal(ballast_thd(&sample.batch, cu, DOCUMENTS_MAX + 1, &longest, NULL, 0),
                             entries);
            assert_int_equal(
                ballast_zigzag(&sample.batch, local, DOCUMENTS_MAX + 1, &local_longest, NULL, 0),
                entries);
            expect_thd_rows(&sample, cu, cp);
            for (int i = 0; i + 1 < entries; i++) {
                int32_t length = (int32_t)sample.lengths[i];
                assert_int_equal(cu[i + 1] - cu[i], length);
                assert_int_equal(local[i + 1] - local[i], length / (int32_t)cp);
                most = length > most ? length : most;
            }
            assert_int_equal(local[entries - 1], sample.batch.rows);
            assert_int_equal(longest, most);
            assert_int_equal(local_longest, most / (int32_t)cp);
            assert_int_equal(ballast_thd(&sample.batch, cu, (size_t)entries - 1, &longest, NULL, 0),
                             -ENOBUFS);
        }
    }
}

static void expect_refused(int code, const char *why, const char *says) {
    assert_int_equal(code, -EOPNOTSUPP);
    if (strstr(why, says) == NULL) {
        fail_msg("'%s' is not in: %s", says, why);
    }
}

static void forms_that_do_not_fit_say_why(void **state) {
    (void)state;
    static struct sample sample;
    int32_t cu[DOCUMENTS_MAX + 1], longest;
    struct ballast_llama3 llama3 = {cu, cu, DOCUMENTS_MAX + 1, 0, 0, 0, 0};
    char why[256];
    random_state = 1;
    sample_make(&sample, LAYOUT_PER_SEQUENCE, 2, 4, 0);
    sample_rank(&sample, 0);
    expect_refused(ballast_thd(&sample.batch, cu, DOCUMENTS_MAX + 1, &longest, why, sizeof why),
                   why, "sharding.layouts = per-document");
    expect_refused(ballast_llama3(&sample.batch, &llama3, why, sizeof why), why,
                   "sharding.layouts = ulysses");
    sample_make(&sample, LAYOUT_PER_DOCUMENT, 2, 4, 1);
    sample_rank(&sample, 1);
    expect_refused(ballast_zigzag(&sample.batch, cu, DOCUMENTS_MAX + 1, &longest, why, sizeof why),
                   why, "4 pad rows");
    sample.documents[0].length = 7;
    expect_refused(ballast_thd(&sample.batch, cu, DOCUMENTS_MAX + 1, &longest, why, sizeof why),
                   why, "a multiple of 4 tokens, and document 0 of this batch has 7");
}

/* Row by row: keys from its document's begin, or the pads', to itself. */
static void expect_llama3(const struct sample *sample, const struct ballast_llama3 *form,
                          int entries) {
    uint32_t first = (uint32_t)(sample->batch.group_rank * sample->batch.rows);
    int32_t q_most = 0, k_most = 0;
    assert_int_equal(form->cu_seqlens_q[0], 0);
    assert_int_equal(form->cu_seqlens_q[entries - 1], sample->batch.rows);
    assert_int_equal(form->key_end, first + sample->batch.rows);
    assert_int_equal(form->cu_seqlens_k[entries - 1], form->key_end - form->key_begin);
    for (int i = 0; i + 1 < entries; i++) {
        int32_t q = form->cu_seqlens_q[i + 1] - form->cu_seqlens_q[i];
        int32_t k = form->cu_seqlens_k[i + 1] - form->cu_seqlens_k[i];
        assert_true(q > 0 && k >= q);
        q_most = q > q_most ? q : q_most;
        k_most = k > k_most ? k : k_most;
        for (int32_t row = 0; row < q; row++) {
            uint32_t at = first + (uint32_t)(form->cu_seqlens_q[i] + row);
            assert_int_equal(form->key_begin + form->cu_seqlens_k[i], sample->begin_of[at]);
            assert_int_equal(form->key_begin + form->cu_seqlens_k[i] + k - q + row, at);
        }
    }
    assert_int_equal(form->max_seqlen_q, q_most);
    assert_int_equal(form->max_seqlen_k, k_most);
}

static void llama3_slices_see_their_documents_keys(void **state) {
    (void)state;
    static struct sample sample;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        int32_t q[DOCUMENTS_MAX + 2], k[DOCUMENTS_MAX + 2];
        struct ballast_llama3 form = {q, k, DOCUMENTS_MAX + 2, 0, 0, 0, 0};
        random_state = seed;
        uint32_t cp = 1 + random_below(CP_MAX);
        sample_make(&sample, LAYOUT_ULYSSES, cp, 1, random_below(3));
        for (uint32_t rank = 0; rank < cp; rank++) {
            sample_rank(&sample, rank);
            int entries = ballast_llama3(&sample.batch, &form, NULL, 0);
            assert_true(entries > 1);
            expect_llama3(&sample, &form, entries);
            form.capacity = (size_t)entries - 1;
            assert_int_equal(ballast_llama3(&sample.batch, &form, NULL, 0), -ENOBUFS);
            form.capacity = DOCUMENTS_MAX + 2;
        }
    }
}

/* Each change to rank 1's shard is seen by every rank. */
static void shards_that_do_not_hold_are_not_verified(void **state) {
    (void)state;
    static const struct {
        uint32_t field; /* of the last fragment: length, start, row, document; then pads */
        int32_t more;
        const char *why;
    } cases[] = {
        {0, -1, "not its fragments and pads"},
        {1, -1, "two ranks"},
        {2, 1, "not in the order"},
        {3, 1, "not of its document"},
        {4, 1, "not its fragments and pads"},
    };
    static struct sample sample;
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        const char *why = "nothing";
        random_state = 5;
        sample_make(&sample, LAYOUT_PER_DOCUMENT, 3, 1, 0);
        sample_rank(&sample, 2);
        sample.batch.exchange = 2; /* ballast.proto's needed-only */
        if (i == sizeof cases / sizeof cases[0]) {
            assert_true(rank_verify_rows(&sample.batch, &why) > sample.batch.fragment_count);
            break;
        }
        struct ballast_shard *shard = &sample.shards[1];
        struct ballast_fragment *last = &sample.fragments[1][shard->fragment_count - 1];
        uint32_t *const fields[] = {&last->length, &last->start, &last->row, &last->document};
        if (cases[i].field < 4) {
            *fields[cases[i].field] += (uint32_t)cases[i].more;
        } else {
            shard->pad_rows++;
        }
        assert_int_equal(rank_verify_rows(&sample.batch, &why), -EBADMSG);
        if (strstr(why, cases[i].why) == NULL) {
            fail_msg("case %zu: '%s' is not '%s'", i, why, cases[i].why);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_and_keys_are_those_of_every_row),
        cmocka_unit_test(thd_and_zigzag_are_whole_documents),
        cmocka_unit_test(forms_that_do_not_fit_say_why),
        cmocka_unit_test(llama3_slices_see_their_documents_keys),
        cmocka_unit_test(shards_that_do_not_hold_are_not_verified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
