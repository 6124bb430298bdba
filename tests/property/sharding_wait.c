/* What is exposed of an exchange, against the formula of wait.h written out over single keys, and
 * what must hold of any such price. */
#include "sharding/select.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 12u
#define LENGTH_MAX    3000u
#define DIM           64u

struct rank_rows {
    struct tile_model model;
    struct wait_link link;
    uint32_t cp;
    uint32_t lengths[DOCUMENTS_MAX];
    struct packed_sequence sequence;
    struct fragment fragments[2 * DOCUMENTS_MAX + 2];
    uint32_t count;
};

static void rows_draw(struct rank_rows *rows, uint64_t seed) {
    uint64_t random = seed;
    uint32_t kv_heads = 1u << splitmix_between(&random, 0, 2);
    memset(rows, 0, sizeof *rows);
    assert_int_equal(tile_model_analytic(DIM, kv_heads << splitmix_between(&random, 0, 3), kv_heads,
                                         0, &rows->model),
                     0);
    rows->link = (struct wait_link){.bytes_per_us = splitmix_between(&random, 1, 500000),
                                    .alpha_ps = splitmix_between(&random, 0, 20000000),
                                    .head_dim = DIM,
                                    .needed_only = true};
    rows->cp = splitmix_between(&random, 2, 8);
    rows->sequence.lengths = rows->lengths;
    rows->sequence.documents = splitmix_between(&random, 0, DOCUMENTS_MAX);
    for (uint32_t i = 0; i < rows->sequence.documents; i++) {
        rows->lengths[i] = splitmix_between(&random, 1, LENGTH_MAX);
        rows->sequence.tokens += rows->lengths[i];
    }
    uint64_t unit = 2 * (uint64_t)rows->cp;
    rows->sequence.pad_tokens = unit - rows->sequence.tokens % unit;
    rows->count = layout_fragments(
        seed % 2 == 0 ? LAYOUT_PER_SEQUENCE : LAYOUT_PER_DOCUMENT, &rows->sequence, rows->cp,
        splitmix_between(&random, 0, rows->cp - 1), rows->fragments, 2 * DOCUMENTS_MAX + 2);
}

/* Keys of others that some row sees, one by one; `own` becomes the rows had of each document. */
static uint64_t keys_of_others(const struct rank_rows *rows, struct fragment *own) {
    static uint8_t held[DOCUMENTS_MAX][LENGTH_MAX];
    static uint8_t seen[DOCUMENTS_MAX][LENGTH_MAX];
    uint64_t others = 0;
    memset(held, 0, sizeof held);
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < rows->count; i++) {
        struct fragment fragment = rows->fragments[i];
        memset(held[fragment.document] + fragment.start, 1, fragment.length);
        memset(seen[fragment.document], 1, fragment.start + fragment.length);
    }
    for (uint32_t i = 0; i < DOCUMENTS_MAX; i++) {
        own[i] = (struct fragment){.document = i};
        for (uint32_t k = 0; k < LENGTH_MAX; k++) {
            own[i].length += held[i][k];
            others += seen[i][k] && !held[i][k];
        }
    }
    return others;
}

static uint64_t beyond(uint64_t ps, uint64_t hidden_ps) {
    return ps > hidden_ps ? ps - hidden_ps : 0;
}

static uint64_t collectives_ps(const struct wait_link *link, uint64_t count, uint64_t bytes) {
    return count * link->alpha_ps + (bytes * 1000000 + link->bytes_per_us - 1) / link->bytes_per_us;
}

static uint64_t literal_ps(const struct rank_rows *rows) {
    struct fragment own[DOCUMENTS_MAX];
    uint64_t keys = keys_of_others(rows, own);
    struct fragment present[DOCUMENTS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < DOCUMENTS_MAX; i++) {
        if (own[i].length > 0) {
            present[count++] = own[i];
        }
    }
    if (keys == 0) {
        return 0;
    }
    uint64_t forward_ps = tile_forward_ps(&rows->model, present, count);
    uint64_t backward_ps = tile_cost_ps(&rows->model, present, count) - forward_ps;
    uint64_t bytes = keys * rows->model.kv_heads * DIM * 2 * 2; /* K and V, bf16 */
    return beyond(collectives_ps(&rows->link, 1, bytes),
                  forward_ps - rows->model.forward.launch_ps) +
           beyond(collectives_ps(&rows->link, 2, bytes + 2 * bytes),
                  backward_ps - rows->model.backward.launch_ps);
}

static uint64_t waited_ps(const struct rank_rows *rows) {
    return wait_keys_ps(&rows->link, &rows->model, rows->fragments, rows->count);
}

static void what_own_keys_do_not_hide_is_exposed(void **state) {
    (void)state;
    uint32_t hidden = 0;
    uint32_t exposed = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct rank_rows rows;
        rows_draw(&rows, seed);
        uint64_t ps = waited_ps(&rows);
        if (ps != literal_ps(&rows)) {
            fail_msg("seed %" PRIu64 ": waits %" PRIu64 " ps, not %" PRIu64, seed, ps,
                     literal_ps(&rows));
        }
        hidden += ps == 0;
        exposed += ps > 0;
    }
    assert_true(hidden > 100 && exposed > 100);
}

static void slower_links_never_wait_less(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct rank_rows rows;
        rows_draw(&rows, seed);
        uint64_t ps = waited_ps(&rows);
        rows.link.bytes_per_us = rows.link.bytes_per_us / 2 + 1;
        assert_true(rows.link.bytes_per_us == 1 || waited_ps(&rows) >= ps);
        ps = waited_ps(&rows);
        rows.link.alpha_ps += 1000000;
        assert_true(waited_ps(&rows) >= ps);
        rows.link.needed_only = false;
        assert_int_equal(waited_ps(&rows), 0);
        rows.link = (struct wait_link){.alpha_ps = 1, .head_dim = DIM, .needed_only = true};
        assert_int_equal(waited_ps(&rows), 0);
    }
}

static void whole_documents_wait_for_nothing(void **state) {
    (void)state;
    struct rank_rows rows;
    rows_draw(&rows, 1);
    rows.link.alpha_ps = 1000000000;
    rows.count = 2;
    rows.fragments[0] = (struct fragment){0, 0, 1000};
    rows.fragments[1] = (struct fragment){3, 0, 1};
    assert_int_equal(waited_ps(&rows), 0);
    rows.fragments[1].start = 1;
    assert_true(waited_ps(&rows) >= 2000000000);
    rows.count = 0;
    assert_int_equal(waited_ps(&rows), 0);
}

/* Every byte that gpu_attn's exchange moves, for one row and head after the other. */
static uint64_t literal_heads_ps(const struct rank_rows *rows, uint64_t own) {
    uint32_t heads = rows->model.q_heads / rows->cp;
    uint32_t kv_heads = rows->model.kv_heads > rows->cp ? rows->model.kv_heads / rows->cp : 1;
    uint64_t queries = 0;
    uint64_t keys = 0;
    for (uint64_t row = 0; row < own * (rows->cp - 1); row++) {
        for (uint32_t head = 0; head < heads; head++) {
            queries += 2 * DIM + 2 * DIM + 4;               /* Q; O and its log-sum-exp */
            queries += 3 * 2 * DIM + 4 + (uint64_t)2 * DIM; /* Q, O, dO, log-sum-exp; dQ */
        }
        for (uint32_t head = 0; head < kv_heads; head++) {
            keys += 2 * (2 * DIM) + 2 * (2 * DIM) + 2 * (4 * (uint64_t)DIM);
        }
    }
    return collectives_ps(&rows->link, 4, queries + keys);
}

static void ulysses_waits_for_all_it_moves(void **state) {
    (void)state;
    static const uint32_t cps[] = {1, 2, 4, 8};
    for (uint32_t i = 0; i < 4; i++) {
        struct rank_rows rows;
        rows_draw(&rows, 3);
        assert_int_equal(tile_model_analytic(DIM, 16, 4, 0, &rows.model), 0);
        rows.cp = cps[i];
        uint64_t ps = wait_heads_ps(&rows.link, &rows.model, rows.cp, 700);
        assert_int_equal(ps, literal_heads_ps(&rows, 700));
        rows.link.needed_only = false;
        uint64_t gathered = 700 * (uint64_t)(rows.cp - 1) * 4 * DIM * (2 * 2 + 2 * 2 + 2 * 4);
        assert_int_equal(wait_heads_ps(&rows.link, &rows.model, rows.cp, 700),
                         beyond(ps, collectives_ps(&rows.link, 3, gathered)));
        rows.link.bytes_per_us = 0;
        assert_int_equal(wait_heads_ps(&rows.link, &rows.model, rows.cp, 700), 0);
    }
}

/* With a fast link Ulysses wins, as its heads are even; with a slow one keys are fewer bytes. */
static void a_slow_link_keeps_ulysses_from_being_chosen(void **state) {
    (void)state;
    const uint32_t lengths[] = {60000, 20000, 51072};
    struct packed_sequence sequence = {lengths, 3, 131072, 0};
    const uint64_t rates[] = {0, 100000000, 5000};
    for (uint32_t i = 0; i < 3; i++) {
        struct layout_options options = {
            LAYOUTS_ALLOWED, UINT32_MAX, {rates[i], 15000000, 128, true}};
        struct tile_model model;
        struct layout_dealer dealer;
        struct layout_choice choice;
        uint64_t rank_ps[16];
        void *memory = malloc(layout_dealer_bytes(&options, 3, 8));
        assert_non_null(memory);
        layout_dealer_init(&dealer, memory, &options, 3, 8);
        assert_int_equal(tile_model_analytic(128, 32, 8, 0, &model), 0);
        layout_select(&options, &sequence, &model, &dealer, rank_ps, &choice);
        assert_int_equal(choice.layout == LAYOUT_ULYSSES, i < 2);
        free(memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_own_keys_do_not_hide_is_exposed),
        cmocka_unit_test(slower_links_never_wait_less),
        cmocka_unit_test(whole_documents_wait_for_nothing),
        cmocka_unit_test(ulysses_waits_for_all_it_moves),
        cmocka_unit_test(a_slow_link_keeps_ulysses_from_being_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
