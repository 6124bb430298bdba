/* Attention of real plans over 1 to 8 ranks, by the kernels as they are shipped: the planner's
 * batches, the exchange over a board, and on every rank the emulated kernels through the public
 * calls. Forward and backward equal the unsharded reference.
 *
 * A sample, one of each kind of exchange; with BALLAST_TEST_FULL every layout, every size of pool,
 * with and without a chain, all-gather and needed-only, whole and in chunks. */
#include "exchange_plans.h"
#include "exchange_world.h"
#include "tests/kernels/fake_cuda.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD_DIM 64u
#define SECOND   (BALLAST_ATTN_ZERO_TAILS | BALLAST_ATTN_DETERMINISTIC)

static struct ballast_attn *attn;

/* The emulator runs one launch at a time. */
static pthread_mutex_t device = PTHREAD_MUTEX_INITIALIZER;

static void *allocate(size_t bytes) {
    void *memory = calloc(bytes / 64 + 1, 64);
    assert_non_null(memory);
    return memory;
}

static struct ballast_attn_tensor tensor_of(const struct exchange_chunk *chunk,
                                            const struct ballast_exchange_tensor *tensor,
                                            size_t element_bytes) {
    return (struct ballast_attn_tensor){.data = tensor->data,
                                        .row_stride = (int64_t)(tensor->row_bytes / element_bytes),
                                        .head_stride = chunk->shape.head_dim};
}

/* dK and dV where several chunks write them: aside, then added. */
struct aside {
    size_t floats;
    float *dk;
    float *dv;
};

static struct aside aside_open(const struct exchange_chunk *chunk, struct ballast_attn_call *call) {
    struct aside aside = {0};
    if (chunk->keys_shared) {
        aside.floats = (size_t)chunk->shape.kv_rows * chunk->shape.kv_heads * chunk->shape.head_dim;
        aside.dk = allocate(aside.floats * sizeof(float));
        aside.dv = allocate(aside.floats * sizeof(float));
        call->dk.data = aside.dk;
        call->dv.data = aside.dv;
    }
    return aside;
}

static void aside_close(const struct aside *aside, const struct ballast_exchange_call *to) {
    for (size_t i = 0; i < aside->floats; i++) {
        ((float *)to->dk.data)[i] += aside->dk[i];
        ((float *)to->dv.data)[i] += aside->dv[i];
    }
    free(aside->dk);
    free(aside->dv);
}

static int backward(const struct exchange_chunk *chunk, struct ballast_attn_call *call,
                    struct ballast_attn_error *error) {
    call->workspace_bytes = ballast_attn_workspace_bytes(call->plan, call->flags);
    call->workspace = allocate(call->workspace_bytes);
    memset(call->workspace, 0xff, call->workspace_bytes);
    struct aside aside = aside_open(chunk, call);
    int result = ballast_attn_backward(attn, call, error);
    aside_close(&aside, chunk->call);
    free(call->workspace);
    return result;
}

static int plan_attend(const struct exchange_chunk *chunk, const struct ballast_attn_plan *plan,
                       const void *lists, struct ballast_attn_error *error) {
    const struct ballast_exchange_call *from = chunk->call;
    struct ballast_attn_call call = {
        .plan = plan,
        .lists = lists,
        .q = tensor_of(chunk, &from->q, 2),
        .k = tensor_of(chunk, &from->k, 2),
        .v = tensor_of(chunk, &from->v, 2),
        .o = tensor_of(chunk, &from->o, 2),
        .d_o = tensor_of(chunk, &from->d_o, 2),
        .dq = tensor_of(chunk, &from->dq, 2),
        .dk = tensor_of(chunk, &from->dk, sizeof(float)),
        .dv = tensor_of(chunk, &from->dv, sizeof(float)),
        .lse = from->lse.data,
        .scale = (float)EXCHANGE_SCALE,
        .flags = chunk->arithmetic->flags | BALLAST_ATTN_FLOAT_DKDV,
    };
    (void)pthread_mutex_lock(&device);
    int result = chunk->backward ? backward(chunk, &call, error)
                                 : ballast_attn_forward(attn, &call, error);
    (void)pthread_mutex_unlock(&device);
    return result;
}

static int kernels_attend(const struct exchange_chunk *chunk, struct ballast_attn_error *error) {
    struct ballast_attn_plan plan;
    size_t bytes = ballast_attn_plan_bytes(&chunk->shape, chunk->fragments, chunk->count);
    void *memory = allocate(bytes);
    int result = ballast_attn_plan_init(&plan, &chunk->shape, chunk->fragments, chunk->count,
                                        memory, bytes, error);
    if (result == 0) {
        void *lists = allocate(plan.lists_bytes);
        memcpy(lists, plan.lists, plan.lists_bytes);
        result = plan_attend(chunk, &plan, lists, error);
        free(lists);
    }
    free(memory);
    return result;
}

/* What did not arrive is finite, as the contract asks; or NaN, which ZERO_TAILS is to keep out. */
static const struct exchange_arithmetic by_kernels[] = {
    {HEAD_DIM, 2, 0, 0x3f, 4e-3, kernels_attend},
    {HEAD_DIM, 2, SECOND, 0xff, 4e-3, kernels_attend},
};

struct trial {
    struct exchange_options_of_test options;
    const char *name;
    uint32_t groups; /* tried */
};

/* Kinds of call and schedules take turns. */
static void try_plan(void *context, const struct step_plan *plan) {
    struct trial *trial = context;
    struct exchange_group group;
    fake_cuda.schedule = (enum emulator_schedule)(trial->groups / 2 % EMULATOR_SCHEDULES);
    fake_cuda.resident = 1 + (int)(trial->groups % 3);
    exchange_group_init(&group, plan, &plan->micro_batches[0], &by_kernels[trial->groups++ % 2]);
    const char *fault = exchange_group_fault_on_board(&group, &trial->options);
    if (fault != NULL) {
        fail_msg("%s, %u ranks, keys %u, %u chunks, flags %u, schedule %d: %s", trial->name,
                 group.ranks, (unsigned)trial->options.keys, trial->options.chunks,
                 group.arithmetic->flags, (int)fake_cuda.schedule, fault);
    }
    exchange_group_deinit(&group);
}

static void try_layout(struct trial *trial, enum layout layout, uint32_t cp,
                       enum ballast_exchange_keys keys, uint32_t chunks) {
    struct plan_options options = exchange_layout_options(layout, cp);
    trial->name = layout_name(layout);
    trial->options = (struct exchange_options_of_test){keys, chunks, trial->groups % 2 == 0};
    (void)exchange_plans_of(&options, 1, try_plan, trial);
}

static void try_pool(struct trial *trial, uint32_t replicas, uint32_t cp, uint32_t shards,
                     bool chain) {
    struct plan_options options = exchange_pool_options(replicas, cp, shards, chain);
    trial->name = chain ? "pool with a chain" : "pool";
    trial->options = (struct exchange_options_of_test){
        BALLAST_EXCHANGE_NEEDED_ONLY, EXCHANGE_Q_HEADS / shards, trial->groups % 2 == 0};
    (void)exchange_plans_of(&options, 1, try_plan, trial);
}

static void a_sample_of_plans_ends_as_unsharded(void **state) {
    struct trial trial = {.groups = 1};
    (void)state;
    try_layout(&trial, LAYOUT_PER_SEQUENCE, 2, BALLAST_EXCHANGE_ALL_GATHER, 1);
    try_layout(&trial, LAYOUT_PER_DOCUMENT, 2, BALLAST_EXCHANGE_NEEDED_ONLY, 1);
    try_layout(&trial, LAYOUT_ULYSSES, 2, BALLAST_EXCHANGE_NEEDED_ONLY, 1);
    try_pool(&trial, 2, 1, 4, false);
    assert_int_equal(trial.groups, 1 + 4);
}

static void every_layout_ends_as_unsharded(void **state) {
    struct trial trial = {0};
    (void)state;
    if (getenv("BALLAST_TEST_FULL") == NULL) {
        skip();
    }
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout < LAYOUT_CONTIGUOUS; layout++) {
        uint32_t before = trial.groups;
        for (uint32_t cp = 1; cp <= 8; cp++) {
            try_layout(&trial, layout, cp, BALLAST_EXCHANGE_NEEDED_ONLY, 1);
            try_layout(&trial, layout, cp, BALLAST_EXCHANGE_ALL_GATHER, 1);
        }
        assert_true(trial.groups > before);
    }
}

static void every_pool_ends_as_unsharded(void **state) {
    struct trial trial = {0};
    (void)state;
    if (getenv("BALLAST_TEST_FULL") == NULL) {
        skip();
    }
    for (uint32_t replicas = 1; replicas <= 4; replicas *= 2) {
        for (uint32_t cp = 1; cp * replicas <= 8; cp++) {
            for (uint32_t shards = 1; shards <= 8; shards *= 2) {
                uint32_t before = trial.groups;
                try_pool(&trial, replicas, cp, shards, (cp + shards) % 2 == 0);
                assert_true(trial.groups > before || shards > EXCHANGE_KV_HEADS);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sample_of_plans_ends_as_unsharded),
        cmocka_unit_test(every_layout_ends_as_unsharded),
        cmocka_unit_test(every_pool_ends_as_unsharded),
    };
    struct ballast_attn_error error;
    fake_cuda_reset();
    if (ballast_attn_open(&attn, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    ballast_attn_close(attn);
    return result;
}
