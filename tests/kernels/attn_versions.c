/* attn_versions: what the emulator has to say of the kernels it finds, which versions.py has made
 * those of a version. PASS is forward, or backward, which needs what forward gives.
 *
 *   attn_versions check PASS DIM [ALL]   results: of the small problems, or of all, under all
 *                                        schedules and with both sets of flags; exit 1 with the
 *                                        complaint
 *   attn_versions count PASS DIM         what the pass does: a line of counts for each problem
 *
 * wgmma: of a warpgroup. loaded: bytes that TMA brings to shared memory. barriers: warps at named
 * ones. none, some: waits of warps for products, by what they leave in flight. busiest: wgmma of
 * the block that has the most of them, of three. */
#include "tests/kernels/attn_problems.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *run(struct attn_world *world, bool backward) {
    struct attn_errors errors = {0};
    const char *wrong = attn_world_forward(world, &errors);
    return wrong != NULL || !backward ? wrong : attn_world_backward(world, &errors);
}

static const char *check_problem(const struct attn_problem *problem, bool backward, bool all) {
    static const enum emulator_schedule schedules[EMULATOR_SCHEDULES] = {
        EMULATOR_LAZY, EMULATOR_EAGER, EMULATOR_RANDOM, EMULATOR_STARVE};
    struct attn_world world;
    const char *wrong = NULL;
    fake_cuda_reset();
    attn_world_open(&world, problem);
    for (int i = 0; i < (all ? EMULATOR_SCHEDULES : 1) && wrong == NULL; i++) {
        fake_cuda.schedule = schedules[i];
        wrong = run(&world, backward);
    }
    attn_world_close(&world);
    return wrong;
}

static int check(uint32_t head_dim, bool backward, bool all) {
    const uint32_t second = BALLAST_ATTN_DETERMINISTIC | BALLAST_ATTN_ZERO_TAILS;
    for (uint32_t i = 0; i < 2 * (all ? attn_problem_count() : PROBLEMS_SMALL); i += all ? 1 : 2) {
        struct attn_problem problem;
        attn_problem_draw(&problem, i / 2, head_dim);
        problem.flags = i % 2 == 0 ? 0 : second;
        const char *wrong = check_problem(&problem, backward, all);
        if (wrong != NULL) {
            printf("%s\n", wrong);
            return 1;
        }
    }
    return 0;
}

static struct attn_problem counted(const char *name, uint32_t q_heads) {
    return (struct attn_problem){.name = name, .shape = {.q_heads = q_heads, .kv_heads = 1}};
}

static void count_print(const char *name, struct emulator_counts was) {
    struct emulator_counts is = emulator_counts();
    const struct {
        const char *what;
        uint64_t count;
    } counts[] = {{"wgmma", (is.products - was.products) / 4},
                  {"loaded", is.load_bytes - was.load_bytes},
                  {"barriers", (is.barriers - was.barriers) / 32},
                  {"none", (is.drains - was.drains) / 32},
                  {"some", (is.overlaps - was.overlaps) / 32},
                  {"additions", is.additions - was.additions},
                  {"busiest", (is.busiest - was.busiest) / 4}};
    printf("%s", name);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        printf(" %s %llu", counts[i].what, (unsigned long long)counts[i].count);
    }
    printf("\n");
}

static int count(struct attn_problem *problem, uint32_t head_dim, bool backward) {
    struct attn_world world;
    struct attn_errors errors = {0};
    problem->shape.head_dim = head_dim;
    fake_cuda_reset();
    attn_world_open(&world, problem);
    struct emulator_counts start = emulator_counts();
    const char *wrong = attn_world_forward(&world, &errors);
    if (wrong == NULL && backward) {
        start = emulator_counts();
        wrong = attn_world_backward(&world, &errors);
    }
    attn_world_close(&world);
    count_print(problem->name, start);
    if (wrong != NULL) {
        printf("%s\n", wrong);
    }
    return wrong != NULL;
}

/* A document; a rank's few rows against a long prefix; pieces that see more and more, which only
 * the forward pass takes in time. */
static int count_all(uint32_t head_dim, bool backward) {
    struct attn_problem document = counted("document", 4);
    struct attn_problem piece = counted("piece", 8);
    struct attn_problem ragged = counted("ragged", 2);
    attn_problem_add(&document, 0, 384, 0, 384, 0);
    attn_problem_add(&piece, 0, 16, 0, 512, 496);
    for (int32_t i = 0; i < 12; i++) {
        int32_t keys = (i / 2 + 1) * 128;
        attn_problem_add(&ragged, 64 * i, 64, 0, keys, keys - 64);
    }
    return count(&document, head_dim, backward) || count(&piece, head_dim, backward) ||
           (!backward && count(&ragged, head_dim, backward));
}

int main(int argument_count, char **arguments) {
    if (argument_count < 4) {
        printf("usage: attn_versions check | count forward | backward DIM [ALL]\n");
        return 2;
    }
    bool backward = strcmp(arguments[2], "backward") == 0;
    uint32_t head_dim = (uint32_t)strtoul(arguments[3], NULL, 10);
    return strcmp(arguments[1], "check") == 0 ? check(head_dim, backward, argument_count > 4)
                                              : count_all(head_dim, backward);
}
