/* The reference against arithmetic done by hand and against differences of its own forward pass. */
#include "gpu_attn/reference.h"

#include "../property/splitmix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define HEAD_DIM 2u
#define Q_ROWS   4u
#define KV_ROWS  5u
#define Q_HEADS  4u
#define KV_HEADS 2u
#define Q_SIZE   (Q_ROWS * Q_HEADS * HEAD_DIM)
#define KV_SIZE  (KV_ROWS * KV_HEADS * HEAD_DIM)

static const struct ballast_attn_shape tiny = {HEAD_DIM, Q_HEADS, KV_HEADS, Q_ROWS, KV_ROWS};

/* A causal fragment whose first row sees nothing, and a full one of two heads. */
static const struct ballast_attn_fragment fragments[2] = {
    {.q_length = 2, .kv_length = 3, .q_position = -1, .head_count = 4},
    {.q_row = 2,
     .q_length = 2,
     .kv_row = 3,
     .kv_length = 2,
     .head_begin = 1,
     .head_count = 2,
     .flags = BALLAST_ATTN_FULL},
};

struct arrays {
    double q[Q_SIZE], k[KV_SIZE], v[KV_SIZE], o[Q_SIZE], d_o[Q_SIZE];
    double dq[Q_SIZE], dk[KV_SIZE], dv[KV_SIZE], lse[Q_ROWS * Q_HEADS];
};

static struct attn_reference reference_of(struct arrays *arrays) {
    return (struct attn_reference){
        .shape = &tiny,
        .fragments = fragments,
        .count = 2,
        .scale = 0.7,
        .q = arrays->q,
        .k = arrays->k,
        .v = arrays->v,
        .o = arrays->o,
        .lse = arrays->lse,
        .d_o = arrays->d_o,
        .dq = arrays->dq,
        .dk = arrays->dk,
        .dv = arrays->dv,
    };
}

static void fill(double *x, size_t count, uint64_t *random) {
    for (size_t i = 0; i < count; i++) {
        x[i] = (double)splitmix_between(random, 0, 4000) / 1000 - 2;
    }
}

static void arrays_draw(struct arrays *arrays) {
    uint64_t random = 5;
    *arrays = (struct arrays){0};
    fill(arrays->q, Q_SIZE, &random);
    fill(arrays->k, KV_SIZE, &random);
    fill(arrays->v, KV_SIZE, &random);
    fill(arrays->d_o, Q_SIZE, &random);
}

/* sum(o * do): its gradient is what backward returns. */
static double loss(struct arrays *arrays) {
    double scores[KV_ROWS];
    double sum = 0;
    struct attn_reference reference = reference_of(arrays);
    attn_reference_forward(&reference, scores);
    for (size_t i = 0; i < Q_SIZE; i++) {
        sum += arrays->o[i] * arrays->d_o[i];
    }
    return sum;
}

static void check_gradient(struct arrays *arrays, double *x, const double *gradient, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double kept = x[i];
        x[i] = kept + 1e-5;
        double above = loss(arrays);
        x[i] = kept - 1e-5;
        double below = loss(arrays);
        x[i] = kept;
        if (fabs((above - below) / 2e-5 - gradient[i]) > 1e-8) {
            fail_msg("element %zu: %.10f, differences give %.10f", i, gradient[i],
                     (above - below) / 2e-5);
        }
    }
}

static void reference_backward_is_the_gradient_of_forward(void **state) {
    (void)state;
    struct arrays arrays;
    double scores[KV_ROWS];
    arrays_draw(&arrays);
    struct attn_reference reference = reference_of(&arrays);
    attn_reference_forward(&reference, scores);
    attn_reference_backward(&reference, scores);
    check_gradient(&arrays, arrays.q, arrays.dq, Q_SIZE);
    check_gradient(&arrays, arrays.k, arrays.dk, KV_SIZE);
    check_gradient(&arrays, arrays.v, arrays.dv, KV_SIZE);
}

static void reference_row_that_sees_nothing_is_zero(void **state) {
    (void)state;
    struct arrays arrays;
    arrays_draw(&arrays);
    arrays.o[0] = NAN;
    (void)loss(&arrays);
    assert_true(arrays.o[0] == 0 && arrays.o[1] == 0);
    assert_true(isinf(arrays.lse[0]) && arrays.lse[0] < 0);
}

/* Row 1 of the first fragment sees key 0 alone: o = v and lse = the score. */
static void reference_row_that_sees_one_key_returns_its_value(void **state) {
    (void)state;
    struct arrays arrays;
    arrays_draw(&arrays);
    (void)loss(&arrays);
    for (uint32_t head = 0; head < Q_HEADS; head++) {
        size_t q = (Q_HEADS + head) * HEAD_DIM;
        size_t k = head / 2 * HEAD_DIM;
        double score = 0.7 * (arrays.q[q] * arrays.k[k] + arrays.q[q + 1] * arrays.k[k + 1]);
        assert_true(arrays.o[q] == arrays.v[k] && arrays.o[q + 1] == arrays.v[k + 1]);
        assert_true(fabs(arrays.lse[Q_HEADS + head] - score) < 1e-12);
    }
}

static void reference_leaves_uncovered_rows_alone(void **state) {
    (void)state;
    struct arrays arrays;
    arrays_draw(&arrays);
    arrays.lse[2 * Q_HEADS] = 42;
    arrays.o[2 * Q_HEADS * HEAD_DIM] = 43;
    (void)loss(&arrays);
    assert_true(arrays.lse[2 * Q_HEADS] == 42 && arrays.o[2 * Q_HEADS * HEAD_DIM] == 43);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_backward_is_the_gradient_of_forward),
        cmocka_unit_test(reference_row_that_sees_nothing_is_zero),
        cmocka_unit_test(reference_row_that_sees_one_key_returns_its_value),
        cmocka_unit_test(reference_leaves_uncovered_rows_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
