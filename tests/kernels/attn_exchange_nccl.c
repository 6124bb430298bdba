/* The exchange over NCCL's transport, as it is shipped, against a libnccl and a driver that are
 * ours: the same attention, the calls in their order, and every failure a sentence. */
#include "exchange_plans.h"
#include "exchange_world.h"
#include "fake_nccl.h"
#include "fake_runtime.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEADLINE_MS 120000u

static struct ballast_exchange_transport *nccl_open(void *context, uint32_t rank, uint32_t ranks) {
    struct ballast_exchange_transport *transport = NULL;
    struct ballast_attn_error error;
    if (ballast_transport_nccl(&transport, context, rank, ranks, DEADLINE_MS, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    return transport;
}

/* The caller's stream of a rank; given back when the test is over. */
static void *streams[64];
static unsigned stream_count;
static pthread_mutex_t stream_lock = PTHREAD_MUTEX_INITIALIZER;

static void *stream_open(void) {
    void *stream = fake_stream_create();
    (void)pthread_mutex_lock(&stream_lock);
    streams[stream_count++] = stream;
    (void)pthread_mutex_unlock(&stream_lock);
    return stream;
}

static void streams_close(void) {
    while (stream_count > 0) {
        fake_stream_destroy(streams[--stream_count]);
    }
}

/* Groups in the order of peers, each pair once a side: "(s0r0s2r2)". `groups` counts them. */
static void check_trace(const char *trace, unsigned *groups) {
    assert_memory_equal(trace, "ig", 2);
    const char *at = trace + 2;
    for (*groups = 0; *at == '('; ++*groups) {
        char peer = 0;
        char side = 0;
        for (at++; *at != ')'; at += 2) {
            assert_true(at[0] == 's' || at[0] == 'r');
            assert_true(at[1] > peer || (at[1] == peer && side == 's' && at[0] == 'r'));
            side = at[0];
            peer = at[1];
        }
        at++;
    }
    assert_string_equal(at, "d");
}

struct trial {
    struct exchange_options_of_test options;
    unsigned groups; /* of all ranks and plans */
};

static void try_group(struct trial *trial, const struct exchange_group *group, bool eager) {
    uint8_t id[BALLAST_NCCL_ID_BYTES];
    const struct exchange_machine machine = {
        .open = nccl_open, .settle = fake_stream_settle, .stream = stream_open, .context = id};
    assert_int_equal(ballast_nccl_id(id, NULL), 0);
    fake_runtime_eager(eager);
    const char *fault = exchange_group_fault(group, &trial->options, &machine);
    const char *broken = fake_nccl_fault();
    streams_close();
    if (fault != NULL || broken != NULL) {
        fail_msg("%u ranks, %u rows, %s: %s; %s", group->ranks, group->rows,
                 eager ? "eager" : "lazy", fault != NULL ? fault : "ended well",
                 broken != NULL ? broken : "no call was wrong");
    }
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        unsigned groups;
        check_trace(fake_nccl_trace(rank), &groups);
        assert_true(groups <= 4 * trial->options.chunks);
        trial->groups += groups;
    }
    assert_int_equal(fake_runtime_objects(), 0);
}

static void try_plan(void *context, const struct step_plan *plan) {
    struct exchange_group group;
    exchange_group_init(&group, plan, &plan->micro_batches[0], &exchange_by_reference);
    try_group(context, &group, false);
    try_group(context, &group, true);
    exchange_group_deinit(&group);
}

static void layouts_end_as_unsharded(void **state) {
    struct trial trial = {.options = {.chunks = 1}};
    (void)state;
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout < LAYOUT_CONTIGUOUS; layout++) {
        for (uint32_t cp = 1; cp <= 8; cp *= 2) {
            struct plan_options options = exchange_layout_options(layout, cp);
            trial.options.keys = cp == 4 ? BALLAST_EXCHANGE_ALL_GATHER
                                         : BALLAST_EXCHANGE_NEEDED_ONLY;
            trial.options.kept = cp == 2;
            assert_true(exchange_plans_of(&options, 2, try_plan, &trial));
        }
    }
    assert_true(trial.groups > 0);
}

static void pools_end_as_unsharded(void **state) {
    struct trial trial = {.options = {.keys = BALLAST_EXCHANGE_NEEDED_ONLY}};
    (void)state;
    for (uint32_t cp = 1; cp <= 4; cp++) {
        for (uint32_t shards = 1; shards <= 4; shards *= 2) {
            struct plan_options options = exchange_pool_options(2, cp, shards, false);
            trial.options.chunks = EXCHANGE_Q_HEADS / shards;
            trial.options.kept = cp % 2 == 0;
            assert_true(exchange_plans_of(&options, 1, try_plan, &trial));
        }
    }
    assert_true(trial.groups > 0);
}

/* One launch takes 64 runs. */
static void any_number_of_runs_arrives(void **state) {
    static const uint32_t counts[] = {1, 63, 64, 65, 128, 129};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct exchange_group group;
        struct trial trial = {.options = {.keys = BALLAST_EXCHANGE_NEEDED_ONLY, .chunks = 1}};
        exchange_group_alternate(&group, counts[i]);
        (void)fake_runtime_copies_max();
        try_group(&trial, &group, false);
        try_group(&trial, &group, true);
        assert_int_equal(fake_runtime_copies_max(), counts[i] < 64 ? counts[i] : 64);
        exchange_group_deinit(&group);
    }
}

static int nothing_to_compute(void *context, uint32_t chunk, void *stream,
                              struct ballast_attn_error *error) {
    (void)context;
    (void)chunk;
    (void)stream;
    (void)error;
    return 0;
}

/* One rank, all of it: opens, agrees, forward and backward. */
static int alone(struct ballast_attn_error *error) {
    const struct ballast_exchange_home home = {0, 0, 2, 0};
    const struct ballast_exchange_work work = {0, 0, 2, 0, 0, 1};
    const struct ballast_exchange_options options = {
        .ranks = 1,
        .q_heads = 1,
        .kv_heads = 1,
        .head_dim = 1,
        .element_bytes = 4,
        .chunks = 1,
        .own_rows = 2,
        .keys = BALLAST_EXCHANGE_NEEDED_ONLY,
        .homes = &home,
        .home_count = 1,
        .works = &work,
        .work_count = 1,
    };
    float rows[2] = {1, 2};
    float others[2] = {0, 0};
    char staging[16];
    struct ballast_exchange_tensor own = {rows, sizeof(float)};
    struct ballast_exchange_tensor arrived = {others, sizeof(float)};
    struct ballast_exchange_call call = {.own_k = own,
                                         .own_v = own,
                                         .own_dk = own,
                                         .own_dv = own,
                                         .k = arrived,
                                         .v = arrived,
                                         .dk = arrived,
                                         .dv = arrived,
                                         .compute = nothing_to_compute,
                                         .staging = staging};
    struct ballast_exchange *exchange = NULL;
    uint8_t id[BALLAST_NCCL_ID_BYTES];
    void *stream = fake_stream_create();
    assert_int_equal(ballast_exchange_create(&exchange, &options, NULL), 0);
    assert_int_equal(ballast_nccl_id(id, NULL), 0);
    call.stream = stream;
    int result = ballast_transport_nccl(&call.transport, id, 0, 1, DEADLINE_MS, error);
    if (result == 0) {
        result = ballast_exchange_agree(exchange, call.transport, error);
        result = result != 0 ? result : ballast_exchange_forward(exchange, &call, error);
        result = result != 0 ? result : ballast_exchange_backward(exchange, &call, error);
        if (result != 0) {
            struct ballast_attn_error again;
            assert_int_equal(ballast_exchange_forward(exchange, &call, &again), -EIO);
        } else {
            assert_int_equal(fake_stream_settle(stream), 0);
            assert_true(rows[0] == 3 && rows[1] == 6); /* dK, and dV after it, added the keys */
        }
    }
    ballast_transport_close(call.transport);
    ballast_exchange_destroy(exchange);
    fake_stream_destroy(stream);
    return result;
}

static void every_call_that_fails_is_a_sentence(void **state) {
    unsigned calls = 0;
    int result;
    (void)state;
    do {
        struct ballast_attn_error error = {0, ""};
        /* The first object is the caller's own stream. */
        fake_runtime_fail_at(2 + calls++);
        result = alone(&error);
        fake_runtime_fail_at(0);
        assert_int_equal(fake_runtime_objects(), 0);
        if (result != 0) {
            assert_int_equal(result, -EIO);
            assert_memory_equal(error.text, "rank 0, ", 8);
            assert_non_null(strstr(error.text, ": CUDA_ERROR_INVALID_VALUE"));
        }
    } while (result != 0 && calls < 200);
    assert_true(calls > 20 && calls < 200);
    assert_null(fake_nccl_fault());
}

static void a_rank_that_never_agrees_is_given_up(void **state) {
    uint8_t id[BALLAST_NCCL_ID_BYTES];
    char mine[8] = "";
    char all[8];
    struct ballast_exchange_transport *transport = NULL;
    struct ballast_attn_error error;
    (void)state;
    assert_int_equal(ballast_nccl_id(id, NULL), 0);
    assert_int_equal(ballast_transport_nccl(&transport, id, 0, 1, 20, &error), 0);
    fake_runtime_busy(true);
    assert_int_equal(transport->operations->gather(transport, mine, all, sizeof mine, &error),
                     -ETIMEDOUT);
    assert_string_equal(error.text, "rank 0, agreement: not all ranks came within 20 ms");
    fake_runtime_busy(false);
    ballast_transport_close(transport);
    assert_string_equal(fake_nccl_trace(0), "iga");
    assert_int_equal(fake_runtime_objects(), 0);
}

/* The kernel that the transport carries as text, by the assembler that a driver has inside. */
static void the_kernel_assembles(void **state) {
    (void)state;
#ifdef BALLAST_PTXAS
    struct ballast_attn_error error;
    assert_int_equal(alone(&error), 0);
    FILE *ptxas = popen(BALLAST_PTXAS " -arch sm_90a -o /dev/null /dev/stdin", "w");
    assert_non_null(ptxas);
    assert_true(fputs(fake_runtime_image(), ptxas) >= 0);
    assert_int_equal(pclose(ptxas), 0);
#else
    print_message("no ptxas found\n");
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_end_as_unsharded),
        cmocka_unit_test(pools_end_as_unsharded),
        cmocka_unit_test(any_number_of_runs_arrives),
        cmocka_unit_test(every_call_that_fails_is_a_sentence),
        cmocka_unit_test(a_rank_that_never_agrees_is_given_up),
        cmocka_unit_test(the_kernel_assembles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
