/* The kernels against the reference, under every schedule, through the public calls: contract and
 * NaN-poisoned surroundings, both backward modes, bf16 and float gradients, blocks interleaved.
 * HEAD_DIM is the program's. */
#include "tests/kernels/attn_problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEEDS 20u /* with --full; else a quarter: same schedules */

static void check(struct attn_world *world) {
    struct attn_errors errors = {0};
    const char *wrong = attn_world_forward(world, &errors);
    if (wrong == NULL) {
        wrong = attn_world_backward(world, &errors);
    }
    if (wrong != NULL) {
        fail_msg("%s", wrong);
    }
}

static void check_schedules(const struct attn_problem *problem) {
    struct attn_world world;
    fake_cuda_reset();
    attn_world_open(&world, problem);
    for (uint32_t schedule = 0; schedule < EMULATOR_SCHEDULES; schedule++) {
        fake_cuda.schedule = (enum emulator_schedule)schedule;
        fake_cuda.resident = 1 + (int)(schedule % 2);
        check(&world);
    }
    attn_world_close(&world);
}

static void check_all(uint32_t flags) {
    for (uint32_t i = 0; i < attn_problem_count(); i++) {
        struct attn_problem problem;
        attn_problem_draw(&problem, i, HEAD_DIM);
        problem.flags = flags;
        check_schedules(&problem);
    }
}

static void attn_equals_the_reference_under_every_schedule(void **state) {
    (void)state;
    check_all(0);
}

static void attn_is_not_touched_by_nan_next_to_fragments(void **state) {
    (void)state;
    check_all(BALLAST_ATTN_ZERO_TAILS | BALLAST_ATTN_DETERMINISTIC | BALLAST_ATTN_FLOAT_DKDV);
}

/* The other pairs of flags, on the small problems. */
static void attn_takes_every_combination_of_flags(void **state) {
    (void)state;
    for (uint32_t flags = 1; flags < 7; flags++) {
        for (uint32_t i = 0; i < PROBLEMS_SMALL; i++) {
            struct attn_problem problem;
            attn_problem_draw(&problem, i, HEAD_DIM);
            problem.flags = flags;
            struct attn_world world;
            fake_cuda_reset();
            attn_world_open(&world, &problem);
            check(&world);
            attn_world_close(&world);
        }
    }
}

static void attn_does_not_depend_on_the_seed(void **state) {
    (void)state;
    bool full = getenv("BALLAST_TEST_FULL") != NULL;
    uint32_t count = full ? attn_problem_count() : PROBLEMS_SMALL;
    uint32_t seeds = full ? SEEDS : SEEDS / 4;
    for (uint32_t i = 0; i < count; i++) {
        struct attn_problem problem;
        attn_problem_draw(&problem, i, HEAD_DIM);
        struct attn_world world;
        fake_cuda_reset();
        attn_world_open(&world, &problem);
        for (uint32_t seed = 1; seed <= seeds; seed++) {
            fake_cuda.seed = seed;
            fake_cuda.schedule = seed % 2 == 0 ? EMULATOR_RANDOM : EMULATOR_STARVE;
            fake_cuda.resident = 1 + (int)(seed % 3);
            check(&world);
        }
        attn_world_close(&world);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_equals_the_reference_under_every_schedule),
        cmocka_unit_test(attn_is_not_touched_by_nan_next_to_fragments),
        cmocka_unit_test(attn_takes_every_combination_of_flags),
        cmocka_unit_test(attn_does_not_depend_on_the_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
