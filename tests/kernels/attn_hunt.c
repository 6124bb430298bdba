/* attn_hunt: looks for anything wrong with the kernels it finds, cheapest first, and stops at it.
 * bugs.py runs it against kernels with a seeded bug. Exit 1 with the complaint, 0 for nothing. */
#include "tests/kernels/attn_problems.h"

#include <stdio.h>
#include <string.h>

#define ROUNDS 6u

static const char *look(struct attn_world *world) {
    struct attn_errors errors = {0};
    const char *wrong = attn_world_forward(world, &errors);
    return wrong != NULL ? wrong : attn_world_backward(world, &errors);
}

/* A round is a schedule and a seed: lazy, eager, then random and starving. */
static void round_set(uint32_t round) {
    static const enum emulator_schedule schedules[ROUNDS] = {EMULATOR_LAZY,   EMULATOR_EAGER,
                                                             EMULATOR_STARVE, EMULATOR_RANDOM,
                                                             EMULATOR_STARVE, EMULATOR_STARVE};
    fake_cuda_reset();
    fake_cuda.schedule = schedules[round];
    fake_cuda.seed = round;
    fake_cuda.resident = 1 + (int)(round % 2);
    fake_cuda.sms = 2;
}

static int hunt(uint32_t index, uint32_t flags, uint32_t first_round, uint32_t end_round) {
    struct attn_problem problem;
    struct attn_world world;
    int found = 0;
    attn_problem_draw(&problem, index, 128);
    problem.flags = flags;
    fake_cuda_reset();
    attn_world_open(&world, &problem);
    for (uint32_t round = first_round; round < end_round && !found; round++) {
        round_set(round);
        const char *wrong = look(&world);
        if (wrong != NULL) {
            printf("%s\n", wrong);
            found = 1;
        }
    }
    attn_world_close(&world);
    return found;
}

/* Small ones, and those that fill several blocks and stages. */
static const char *const hunted[] = {"blind rows",  "head shards", "split group",
                                     "long prefix", "seven heads", "documents"};

#define HUNTED (sizeof hunted / sizeof *hunted)

static int hunt_all(const char *name, uint32_t first_round, uint32_t end_round) {
    const uint32_t second = BALLAST_ATTN_DETERMINISTIC | BALLAST_ATTN_ZERO_TAILS;
    for (uint32_t i = 0; i < attn_problem_count(); i++) {
        struct attn_problem problem;
        attn_problem_draw(&problem, i, 128);
        if (strcmp(problem.name, name) == 0) {
            return hunt(i, 0, first_round, end_round) || hunt(i, second, first_round, end_round);
        }
    }
    printf("no problem is called %s\n", name);
    return 1;
}

int main(void) {
    int found = 0;
    for (size_t i = 0; i < 2 * HUNTED && !found; i++) {
        found = hunt_all(hunted[i % HUNTED], i < HUNTED ? 0 : 1, i < HUNTED ? 1 : ROUNDS);
    }
    return found;
}
