/* Attention of real plans over ranks that are threads or processes, forward and backward, equals
 * the unsharded one; and everything that a strict board refuses. */
#include "exchange_plans.h"
#include "exchange_world.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DEADLINE_MS 120000u

static void *board_create(uint32_t ranks, size_t window_bytes) {
    void *board = malloc(ballast_board_bytes(ranks, window_bytes));
    assert_non_null(board);
    assert_int_equal(ballast_board_init(board, ranks, window_bytes, NULL), 0);
    return board;
}

/* What a visit of a plan tries. */
struct trial {
    struct exchange_options_of_test options;
    uint32_t micro_batches; /* tried */
    enum layout layout;     /* 0: drawn by the seed */
    uint64_t seed;
};

static void check_group(const struct exchange_group *group, const struct trial *trial) {
    const char *fault = exchange_group_fault_on_board(group, &trial->options);
    if (fault != NULL) {
        const char *layout = trial->layout != LAYOUT_NONE ? layout_name(trial->layout) : "drawn";
        fail_msg("layout %s, seed %lu, %u ranks, keys %u, %u chunks: %s", layout, trial->seed,
                 group->ranks, (unsigned)trial->options.keys, trial->options.chunks, fault);
    }
}

static void try_plan(void *context, const struct step_plan *plan) {
    struct trial *trial = context;
    struct exchange_group group;
    exchange_group_init(&group, plan, &plan->micro_batches[0], &exchange_by_reference);
    trial->layout = plan->micro_batches[0].choice.layout;
    check_group(&group, trial);
    trial->micro_batches++;
    exchange_group_deinit(&group);
}

static void every_layout_ends_as_unsharded(void **state) {
    static const uint32_t degrees[] = {1, 2, 3, 4, 8};
    uint32_t layouts = 0;
    (void)state;
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout < LAYOUT_CONTIGUOUS; layout++) {
        struct trial trial = {.options = {.chunks = 1}};
        for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
            struct plan_options options = exchange_layout_options(layout, degrees[i]);
            trial.options.keys = BALLAST_EXCHANGE_NEEDED_ONLY;
            trial.options.kept = i % 2 == 0;
            (void)exchange_plans_of(&options, 3, try_plan, &trial);
            trial.options.keys = BALLAST_EXCHANGE_ALL_GATHER;
            (void)exchange_plans_of(&options, 1, try_plan, &trial);
        }
        layouts += trial.micro_batches > 0;
    }
    assert_int_equal(layouts, LAYOUT_CONTIGUOUS - LAYOUT_PER_SEQUENCE);
}

static void any_lists_end_as_unsharded(void **state) {
    uint64_t seeds = getenv("BALLAST_TEST_FULL") != NULL ? 2000 : 100;
    (void)state;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        struct exchange_group group;
        struct trial trial = {.options = {.keys = seed % 3 == 0 ? BALLAST_EXCHANGE_ALL_GATHER
                                                                : BALLAST_EXCHANGE_NEEDED_ONLY,
                                          .chunks = 1 + seed % 4,
                                          .kept = seed % 2 == 0},
                              .seed = seed};
        exchange_group_draw(&group, trial.options.chunks, seed);
        check_group(&group, &trial);
        exchange_group_deinit(&group);
    }
}

static void pools_end_as_unsharded(void **state) {
    (void)state;
    for (uint32_t replicas = 1; replicas <= 4; replicas *= 2) {
        for (uint32_t cp = 1; cp * replicas <= 8; cp++) {
            for (uint32_t shards = 1; shards <= 8; shards *= 2) {
                uint32_t parts = EXCHANGE_Q_HEADS / shards;
                struct trial trial = {.options = {.keys = BALLAST_EXCHANGE_NEEDED_ONLY,
                                                  .chunks = cp % 2 == 0 ? parts : (parts + 1) / 2,
                                                  .kept = cp % 3 == 0}};
                struct plan_options options = exchange_pool_options(replicas, cp, shards,
                                                                    shards % 4 == 0);
                (void)exchange_plans_of(&options, 1, try_plan, &trial);
                assert_true(trial.micro_batches > 0 || shards > EXCHANGE_KV_HEADS);
            }
        }
    }
}

static size_t head_bytes(const struct exchange_group *group) {
    return (size_t)group->arithmetic->head_dim * group->arithmetic->element_bytes;
}

/* The plan's transfers and the exchange's, each to each: rows x heads of Q, and K and V. */
static void check_counts(void *context, const struct step_plan *plan) {
    struct exchange_group group;
    const struct plan_pool *pool = &plan->pools[0];
    const struct pool_transfer *transfers = plan->transfers + pool->transfer_begin;
    uint64_t queries[64 * 64];
    uint64_t keys[64 * 64];
    exchange_group_init(&group, plan, &plan->micro_batches[0], &exchange_by_reference);
    pool_counts(transfers, pool->transfer_count, POOL_Q, group.ranks, queries);
    pool_counts(transfers, pool->transfer_count, POOL_KV, group.ranks, keys);
    for (uint32_t rank = 0; rank < group.ranks; rank++) {
        uint64_t in[BALLAST_BOARD_RANKS_MAX];
        uint64_t out[BALLAST_BOARD_RANKS_MAX];
        struct ballast_exchange *exchange;
        struct ballast_exchange_options options = exchange_group_options(
            &group, rank, 1, BALLAST_EXCHANGE_NEEDED_ONLY);
        assert_int_equal(ballast_exchange_create(&exchange, &options, NULL), 0);
        ballast_exchange_counts(exchange, in, out);
        for (uint32_t peer = 0; peer < group.ranks; peer++) {
            uint32_t to = rank * group.ranks + peer;
            uint32_t from = peer * group.ranks + rank;
            assert_int_equal(out[peer], (queries[to] + 2 * keys[to]) * head_bytes(&group));
            assert_int_equal(in[peer], (queries[from] + 2 * keys[from]) * head_bytes(&group));
            *(uint64_t *)context += in[peer];
        }
        ballast_exchange_destroy(exchange);
    }
    exchange_group_deinit(&group);
}

static void a_pool_moves_what_its_plan_says(void **state) {
    uint64_t bytes = 0;
    (void)state;
    for (uint32_t cp = 1; cp <= 4; cp++) {
        struct plan_options options = exchange_pool_options(2, cp, 2, false);
        assert_true(exchange_plans_of(&options, 4, check_counts, &bytes));
    }
    assert_true(bytes > 0);
}

/* K and V rows from other ranks are those that the plan counts for each. */
static void check_rows_in(void *context, const struct step_plan *plan) {
    const struct micro_batch *micro_batch = &plan->micro_batches[0];
    struct exchange_group group;
    exchange_group_init(&group, plan, micro_batch, &exchange_by_reference);
    assert_int_equal(micro_batch->exchange, EXCHANGE_NEEDED_ONLY);
    for (uint32_t rank = 0; rank < group.ranks; rank++) {
        struct ballast_exchange *exchange;
        struct ballast_exchange_options options = exchange_group_options(
            &group, rank, 1, BALLAST_EXCHANGE_NEEDED_ONLY);
        assert_int_equal(ballast_exchange_create(&exchange, &options, NULL), 0);
        uint64_t rows = plan->shards[micro_batch->shard_begin + rank].kv_rows_in;
        assert_int_equal(ballast_exchange_sizes(exchange).bytes_in,
                         rows * 2 * EXCHANGE_KV_HEADS * head_bytes(&group));
        *(uint64_t *)context += rows;
        ballast_exchange_destroy(exchange);
    }
    exchange_group_deinit(&group);
}

static void a_rank_receives_the_keys_that_its_plan_counts(void **state) {
    uint64_t rows = 0;
    (void)state;
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout < LAYOUT_ULYSSES; layout++) {
        for (uint32_t cp = 1; cp <= 8; cp++) {
            struct plan_options options = exchange_layout_options(layout, cp);
            assert_true(exchange_plans_of(&options, 4, check_rows_in, &rows));
        }
    }
    assert_true(rows > 0);
}

/* Ranks are processes, and see each other through shared memory alone. */
static void try_processes(void *context, const struct step_plan *plan) {
    struct exchange_group group;
    const struct exchange_options_of_test options = {BALLAST_EXCHANGE_NEEDED_ONLY, 2, false};
    exchange_group_init(&group, plan, &plan->micro_batches[0], &exchange_by_reference);
    size_t window = exchange_group_window(&group);
    size_t bytes = ballast_board_bytes(group.ranks, window);
    void *board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    assert_int_equal(ballast_board_init(board, group.ranks, window, NULL), 0);
    const struct exchange_machine machine = {.open = exchange_board_open, .context = board};
    pid_t children[8];
    for (uint32_t rank = 0; rank < group.ranks; rank++) {
        children[rank] = fork();
        assert_true(children[rank] >= 0);
        if (children[rank] == 0) {
            _exit(exchange_rank_ends_well(&group, &options, &machine, rank) ? 0 : 1);
        }
    }
    for (uint32_t rank = 0; rank < group.ranks; rank++) {
        int status = 0;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        assert_int_equal(status, 0);
    }
    (void)munmap(board, bytes);
    exchange_group_deinit(&group);
    ++*(uint32_t *)context;
}

static void processes_end_as_unsharded(void **state) {
    uint32_t plans = 0;
    struct plan_options options = exchange_pool_options(2, 2, 2, false);
    (void)state;
    assert_true(exchange_plans_of(&options, 1, try_processes, &plans));
    options = exchange_layout_options(LAYOUT_PER_DOCUMENT, 3);
    assert_true(exchange_plans_of(&options, 1, try_processes, &plans));
    assert_int_equal(plans, 2);
}

/* Without a word, unlike one that closes. */
static void a_process_that_dies_fails_the_other(void **state) {
    (void)state;
    size_t bytes = ballast_board_bytes(2, 64);
    void *board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    assert_int_equal(ballast_board_init(board, 2, 64, NULL), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct ballast_exchange_transport *transport;
        _exit(ballast_transport_board(&transport, board, 1, DEADLINE_MS, NULL));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    struct ballast_exchange_transport *transport;
    struct ballast_attn_error error;
    char mine = 1;
    char all[2];
    assert_int_equal(ballast_transport_board(&transport, board, 0, 50, &error), 0);
    assert_int_equal(transport->operations->gather(transport, &mine, all, 1, &error), -ETIMEDOUT);
    assert_string_equal(error.text,
                        "rank 1 did not come to 'agreement' within 50 ms; it has made 0 calls");
    ballast_transport_close(transport);
    (void)munmap(board, bytes);
}

/* Ranks that do what a script says, to see what the board says. */
#define SCRIPT_RANKS    4u
#define DOES_NOT_MATTER 1

struct script {
    void *board;
    uint32_t deadline_ms;
    uint32_t rank;
    struct ballast_attn_error error;
    int result;
    void (*play)(struct script *script, struct ballast_exchange_transport *transport);
};

static void *script_run(void *argument) {
    struct script *script = argument;
    struct ballast_exchange_transport *transport;
    script->result = ballast_transport_board(&transport, script->board, script->rank,
                                             script->deadline_ms, &script->error);
    if (script->result == 0) {
        script->play(script, transport);
        ballast_transport_close(transport);
    }
    return NULL;
}

/* All ranks end with this code and sentence. */
static void expect_all(void (*play)(struct script *, struct ballast_exchange_transport *),
                       uint32_t deadline_ms, int code, const char *sentence) {
    struct script scripts[SCRIPT_RANKS];
    pthread_t threads[SCRIPT_RANKS];
    void *board = board_create(SCRIPT_RANKS, 4096);
    for (uint32_t i = 0; i < SCRIPT_RANKS; i++) {
        scripts[i] = (struct script){
            .board = board, .deadline_ms = deadline_ms, .rank = i, .play = play};
        assert_int_equal(pthread_create(&threads[i], NULL, script_run, &scripts[i]), 0);
    }
    for (uint32_t i = 0; i < SCRIPT_RANKS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    free(board);
    for (uint32_t i = 0; i < SCRIPT_RANKS; i++) {
        if (scripts[i].result == DOES_NOT_MATTER) {
            continue;
        }
        assert_int_equal(scripts[i].result, code);
        assert_string_equal(scripts[i].error.text, sentence);
    }
}

/* 8 bytes from everyone to everyone. */
static int transfer(struct script *script, struct ballast_exchange_transport *transport,
                    const char *name, uint64_t send_bytes, bool change) {
    char send[SCRIPT_RANKS * 8] = "";
    char receive[SCRIPT_RANKS * 8];
    uint64_t out[SCRIPT_RANKS] = {send_bytes, send_bytes, send_bytes, send_bytes};
    uint64_t in[SCRIPT_RANKS] = {8, 8, 8, 8};
    out[transport->rank] = 0;
    in[transport->rank] = 0;
    struct ballast_exchange_transfer all = {
        .send = send, .receive = receive, .send_bytes = out, .receive_bytes = in};
    (void)snprintf(all.name, sizeof all.name, "%s", name);
    int result = transport->operations->start(transport, &all, NULL, &script->error);
    send[0] = change;
    return result != 0 ? result : transport->operations->wait(transport, NULL, &script->error);
}

static void play_another_call(struct script *script, struct ballast_exchange_transport *transport) {
    script->result = transfer(script, transport, "dispatch 0", 8, false);
    if (script->result == 0) {
        script->result = transfer(script, transport, script->rank == 2 ? "return 0" : "dispatch 1",
                                  8, false);
    }
}

/* Others may have ended the transfer before this rank's fault shows. */
static void play_change(struct script *script, struct ballast_exchange_transport *transport) {
    script->result = transfer(script, transport, "dispatch 0", 8, script->rank == 1);
    script->result = script->result == 0 && script->rank != 1 ? DOES_NOT_MATTER : script->result;
}

/* Rank 1 is there, but makes no call until the others have given up. */
static pthread_barrier_t given_up;

static void play_stay_away(struct script *script, struct ballast_exchange_transport *transport) {
    if (script->rank != 1) {
        script->result = transfer(script, transport, "dispatch 0", 8, false);
    }
    (void)pthread_barrier_wait(&given_up);
    if (script->rank == 1) {
        script->result = transfer(script, transport, "dispatch 0", 8, false);
    }
}

static void play_leave(struct script *script, struct ballast_exchange_transport *transport) {
    script->result = script->rank == 1 ? DOES_NOT_MATTER
                                       : transfer(script, transport, "dispatch 0", 8, false);
}

static void play_too_much(struct script *script, struct ballast_exchange_transport *transport) {
    char send[4104] = "";
    uint64_t none[SCRIPT_RANKS] = {0};
    uint64_t out[SCRIPT_RANKS] = {[1] = sizeof send};
    const struct ballast_exchange_transfer all = {
        .name = "dispatch 0", .send = send, .send_bytes = out, .receive_bytes = none};
    script->result = script->rank > 0
                         ? DOES_NOT_MATTER
                         : transport->operations->start(transport, &all, NULL, &script->error);
}

static void another_call_is_refused_on_all_ranks(void **state) {
    (void)state;
    expect_all(play_another_call, DEADLINE_MS, -EPROTO,
               "rank 2 calls 'return 0' where 3 of 4 ranks call 'dispatch 1'");
}

static void a_rank_that_stays_away_fails_all_in_time(void **state) {
    (void)state;
    assert_int_equal(pthread_barrier_init(&given_up, NULL, SCRIPT_RANKS), 0);
    expect_all(play_stay_away, 1000, -ETIMEDOUT,
               "rank 1 did not come to 'dispatch 0' within 1000 ms; it has made 0 calls");
    (void)pthread_barrier_destroy(&given_up);
}

/* Whichever rank notices first writes the sentence: here only rank 0 can. */
static void play_one_count(struct script *script, struct ballast_exchange_transport *transport) {
    char bytes[16] = "";
    uint64_t none[SCRIPT_RANKS] = {0};
    uint64_t out[SCRIPT_RANKS] = {script->rank == 3 ? 7 : 0};
    struct ballast_exchange_transfer all = {.name = "return 1",
                                            .send = bytes,
                                            .receive = bytes + 8,
                                            .send_bytes = out,
                                            .receive_bytes = none};
    script->result = transport->operations->start(transport, &all, NULL, &script->error);
    if (script->result == 0) {
        script->result = transport->operations->wait(transport, NULL, &script->error);
    }
    /* Ranks that the transfer does not concern may have ended it before the other looked. */
    script->result = script->result == 0 ? DOES_NOT_MATTER : script->result;
}

static void counts_that_differ_are_refused(void **state) {
    (void)state;
    expect_all(play_one_count, DEADLINE_MS, -EPROTO,
               "'return 1': rank 3 sends 7 bytes to rank 0, which expects 0");
}

static void changing_what_is_in_flight_is_noticed(void **state) {
    (void)state;
    expect_all(play_change, DEADLINE_MS, -EPROTO,
               "rank 1 changed what it sends in 'dispatch 0' while it was in flight");
}

static void a_rank_that_leaves_is_not_waited_for(void **state) {
    (void)state;
    expect_all(play_leave, DEADLINE_MS, -EPROTO, "rank 1 left after 0 calls, before 'dispatch 0'");
}

static void more_than_the_window_is_refused(void **state) {
    (void)state;
    expect_all(play_too_much, DEADLINE_MS, -ENOSPC,
               "rank 0 sends 4104 bytes in 'dispatch 0', the board's window is 4096");
}

static void lists_that_break_a_rule_are_refused(void **state) {
    struct ballast_exchange_home homes[] = {{7, 0, 4, 0}, {7, 4, 4, 1}};
    struct ballast_exchange_work works[] = {{7, 0, 8, 0, 0, 2}, {7, 0, 8, 1, 2, 2}};
    struct ballast_exchange_options good = {
        .ranks = 2,
        .q_heads = 4,
        .kv_heads = 2,
        .head_dim = 4,
        .element_bytes = 2,
        .chunks = 2,
        .own_rows = 4,
        .keys = BALLAST_EXCHANGE_NEEDED_ONLY,
        .homes = homes,
        .home_count = 2,
        .works = works,
        .work_count = 2,
    };
    struct ballast_exchange *exchange = NULL;
    struct ballast_attn_error error;
    (void)state;
    assert_int_equal(ballast_exchange_create(&exchange, &good, &error), 0);
    ballast_exchange_destroy(exchange);
    exchange = NULL;
    struct ballast_exchange_options bad = good;
    bad.chunks = 4;
    assert_int_equal(ballast_exchange_create(&exchange, &bad, &error), -EINVAL);
    assert_string_equal(error.text, "work 0: rows 0+8, heads 0+2 of 4 in 4 chunks at rank 0");
    bad = good;
    bad.own_rows = 3;
    assert_int_equal(ballast_exchange_create(&exchange, &bad, &error), -EINVAL);
    assert_string_equal(error.text, "3 own rows where rank 0 is home of 4");
    works[1].head_begin = 1;
    assert_int_equal(ballast_exchange_create(&exchange, &good, &error), -EINVAL);
    assert_string_equal(error.text, "row 0, head 1 of document 7 is computed twice");
    works[1].head_begin = 2;
    works[1].rows = 9;
    assert_int_equal(ballast_exchange_create(&exchange, &good, &error), -EINVAL);
    assert_string_equal(error.text, "row 8 of document 7 is computed and has no home");
    works[1].rows = 8;
    homes[1].start = 5;
    assert_int_equal(ballast_exchange_create(&exchange, &good, &error), -EINVAL);
    assert_string_equal(error.text, "document 7: a home begins at row 5, not 4");
    assert_null(exchange);
}

/* A rank whose plan, or whose chunks, are others'. */
static void play_agree(struct script *script, struct ballast_exchange_transport *transport,
                       bool lists) {
    const struct ballast_exchange_home home = {0, 0, 4, 0};
    const struct ballast_exchange_work work = {0, 0, 4, 0, 0, 4};
    struct ballast_exchange_options options = {
        .rank = script->rank,
        .ranks = SCRIPT_RANKS,
        .q_heads = 4,
        .kv_heads = 2,
        .head_dim = 4,
        .element_bytes = 2,
        .chunks = lists && script->rank == 2 ? 2 : 1,
        .own_rows = 4,
        .keys = BALLAST_EXCHANGE_NEEDED_ONLY,
        .homes = &home,
        .home_count = 1,
        .works = &work,
        .work_count = 1,
        .digest = {0xba, 0x11, !lists && script->rank == 2},
    };
    struct ballast_exchange *exchange;
    script->result = ballast_exchange_create(&exchange, &options, &script->error);
    if (script->result == 0) {
        script->result = ballast_exchange_agree(exchange, transport, &script->error);
        ballast_exchange_destroy(exchange);
    }
}

static void play_agree_plan(struct script *script, struct ballast_exchange_transport *transport) {
    play_agree(script, transport, false);
}

static void play_agree_lists(struct script *script, struct ballast_exchange_transport *transport) {
    play_agree(script, transport, true);
    if (script->result == -EPROTO) {
        static const char expected[] = "rank 2 holds the same plan but lists ";
        script->result = strncmp(script->error.text, expected, sizeof expected - 1) == 0
                             ? DOES_NOT_MATTER
                             : script->result;
    }
}

static void a_rank_with_another_plan_is_named(void **state) {
    (void)state;
    expect_all(play_agree_lists, DEADLINE_MS, -EPROTO, "");
    expect_all(play_agree_plan, DEADLINE_MS, -EPROTO,
               "rank 2 holds plan ba11010000000000, the other 3 ba11000000000000");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_ends_as_unsharded),
        cmocka_unit_test(any_lists_end_as_unsharded),
        cmocka_unit_test(pools_end_as_unsharded),
        cmocka_unit_test(a_pool_moves_what_its_plan_says),
        cmocka_unit_test(a_rank_receives_the_keys_that_its_plan_counts),
        cmocka_unit_test(processes_end_as_unsharded),
        cmocka_unit_test(a_process_that_dies_fails_the_other),
        cmocka_unit_test(another_call_is_refused_on_all_ranks),
        cmocka_unit_test(counts_that_differ_are_refused),
        cmocka_unit_test(changing_what_is_in_flight_is_noticed),
        cmocka_unit_test(a_rank_that_leaves_is_not_waited_for),
        cmocka_unit_test(a_rank_that_stays_away_fails_all_in_time),
        cmocka_unit_test(more_than_the_window_is_refused),
        cmocka_unit_test(lists_that_break_a_rule_are_refused),
        cmocka_unit_test(a_rank_with_another_plan_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
