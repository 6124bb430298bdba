/* Bugs that others' attention kernels had, kept dead in ours; each names a report. Those of plans
 * are unit/attn_plan's: malformed ones (sgl-project/sgl-flash-attn#47), counts near 2^31 (#1841,
 * #1311). NaN next to fragments (Dao-AILab/flash-attention#1745, #2407, NVIDIA/cudnn-frontend#624,
 * mirage-project/mirage#768) is attn_emulated's; additions that have not landed (#2244) attn_bugs',
 * as bwd_ends_before_sums_land; the first K/V chunk used again (huggingface/diffusers#14265)
 * attn_exchange's; one chip's profile on another (#1438) unit/profile_file's. Uninitialised shared
 * memory (#1395), workspaces (NVIDIA/TransformerEngine#2186, #3249) and LSE of foreign rows
 * (tile-ai/tilelang#2461) are NaN in every emulated launch. There is no max_seqlen to get wrong
 * (#1773), no chain of semaphores (#2207), and no partial output is ever merged
 * (zhuzilin/ring-flash-attention#42, SandAI-org/MagiAttention#22). */
#include "tests/kernels/attn_problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void check(const struct attn_problem *problem) {
    struct attn_world world;
    struct attn_errors errors = {0};
    fake_cuda_reset();
    fake_cuda.schedule = EMULATOR_STARVE;
    attn_world_open(&world, problem);
    const char *wrong = attn_world_forward(&world, &errors);
    if (wrong == NULL) {
        wrong = attn_world_backward(&world, &errors);
    }
    attn_world_close(&world);
    if (wrong != NULL) {
        fail_msg("%s", wrong);
    }
}

/* Dao-AILab/flash-attention#1254: backward hangs; #2562, #2568: illegal access, outputs unwritten.
 */
static void attn_of_empty_fragments_ends_and_writes_zeros(void **state) {
    (void)state;
    struct attn_problem problem = {.name = "empty", .shape = {128, 4, 2, 0, 0}};
    attn_problem_add(&problem, 0, 0, 0, 60, 0);
    attn_problem_add(&problem, 0, 20, 60, 0, 0);
    attn_problem_add(&problem, 20, 0, 60, 0, 0);
    attn_problem_add(&problem, 20, 30, 60, 30, 0);
    attn_problem_add(&problem, 50, 0, 90, 70, 69);
    check(&problem);
    problem.flags = BALLAST_ATTN_DETERMINISTIC;
    check(&problem);
}

/* #1537, #1619: more documents than rows of a tile, of one token each. */
static void attn_of_one_token_documents_is_their_value(void **state) {
    (void)state;
    struct attn_problem problem = {.name = "one token", .shape = {64, 2, 1, 0, 0}};
    for (int32_t i = 0; i < (int32_t)WORLD_FRAGMENTS_MAX; i++) {
        attn_problem_add(&problem, i, 1, i, 1, 0);
    }
    check(&problem);
}

/* #443, #752: NaN gradients of rows that see no key, and of few keys. */
static void attn_of_blind_rows_has_zero_gradients(void **state) {
    (void)state;
    struct attn_problem problem = {.name = "blind", .shape = {64, 3, 1, 0, 0}};
    attn_problem_add(&problem, 0, 100, 0, 1, -99);
    attn_problem_add(&problem, 100, 40, 1, 5, -41);
    check(&problem);
}

/* #1500, #2611, PaddlePaddle/flash-attention#65: 32-bit offsets into strided operands. The rows
 * here lie 2^28 elements apart, so that the last offsets need 35 bits. */
static void attn_addresses_rows_beyond_32_bits(void **state) {
    (void)state;
    struct attn_problem problem = {.name = "far rows", .shape = {64, 2, 1, 0, 0}};
    problem.row_extra = 1 << 25;
    attn_problem_add(&problem, 0, 20, 0, 24, 4);
    check(&problem);
    problem.flags = BALLAST_ATTN_DETERMINISTIC | BALLAST_ATTN_FLOAT_DKDV;
    check(&problem);
}

struct outputs {
    void *bytes[4];
    size_t count[4];
};

static void outputs_take(struct outputs *outputs, const struct attn_world *world) {
    const struct attn_operand *operands[4] = {&world->o, &world->dq, &world->dk, &world->dv};
    for (int i = 0; i < 4; i++) {
        outputs->count[i] = operands[i]->elements * sizeof(uint16_t);
        outputs->bytes[i] = malloc(outputs->count[i]);
        memcpy(outputs->bytes[i], operands[i]->bf16, outputs->count[i]);
    }
}

/* #1596, #746, #2244, SandAI-org/MagiAttention#65: deterministic modes that are not. Schedules,
 * seeds and processors differ. */
static void attn_deterministic_gives_the_same_bits(void **state) {
    (void)state;
    struct attn_problem problem;
    struct attn_world world;
    struct attn_errors errors;
    struct outputs outputs[3];
    attn_problem_draw(&problem, 3, 128);
    problem.flags = BALLAST_ATTN_DETERMINISTIC;
    fake_cuda_reset();
    attn_world_open(&world, &problem);
    for (int run = 0; run < 3; run++) {
        fake_cuda.schedule = run == 0 ? EMULATOR_LAZY : EMULATOR_RANDOM;
        fake_cuda.seed = (uint64_t)run;
        fake_cuda.sms = 1 + 2 * run;
        assert_null(attn_world_forward(&world, &errors));
        assert_null(attn_world_backward(&world, &errors));
        outputs_take(&outputs[run], &world);
    }
    attn_world_close(&world);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(outputs[0].bytes[i], outputs[1].bytes[i], outputs[0].count[i]);
        assert_memory_equal(outputs[0].bytes[i], outputs[2].bytes[i], outputs[0].count[i]);
        free(outputs[0].bytes[i]);
        free(outputs[1].bytes[i]);
        free(outputs[2].bytes[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_of_empty_fragments_ends_and_writes_zeros),
        cmocka_unit_test(attn_of_one_token_documents_is_their_value),
        cmocka_unit_test(attn_of_blind_rows_has_zero_gradients),
        cmocka_unit_test(attn_addresses_rows_beyond_32_bits),
        cmocka_unit_test(attn_deterministic_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
