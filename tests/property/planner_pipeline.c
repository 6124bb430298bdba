/* planner_pipeline: what holds of every pipeline, in random worlds from a seed each: closed forms
 * for equal work, max-plus algebra, lower bounds, and an order that no dependency crosses. */
#include "planner/pipeline.h"
#include "tests/property/splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLDS 3000u

struct world {
    uint64_t seed;
    uint64_t dice;
    struct pipeline_shape shape;
    uint32_t virtual_stages;
    size_t durations; /* micro-batches * virtual stages */
    uint64_t *forward;
    uint64_t *backward;
};

#define WORLD_CHECK(world, holds)                                                                  \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            print_error("seed %" PRIu64 ": p %u m %u v %u schedule %s depth %u: %s\n",             \
                        (world)->seed, (world)->shape.stages, (world)->shape.micro_batches,        \
                        (world)->shape.chunks, pipeline_schedule_name((world)->shape.schedule),    \
                        (world)->shape.send_depth, #holds);                                        \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

static void world_make(struct world *world, uint64_t seed) {
    struct pipeline_shape *shape = &world->shape;
    *world = (struct world){.seed = seed, .dice = seed};
    shape->schedule = (enum pipeline_schedule)splitmix_between(&world->dice, 0, 2);
    shape->stages = splitmix_between(&world->dice, 1, 6);
    shape->chunks = shape->schedule == PIPELINE_1F1B ? 1 : splitmix_between(&world->dice, 1, 4);
    shape->micro_batches = splitmix_between(&world->dice, 1, 12);
    if (shape->chunks > 1) {
        shape->micro_batches = shape->stages * splitmix_between(&world->dice, 1, 3);
    }
    world->virtual_stages = shape->stages * shape->chunks;
    world->durations = (size_t)shape->micro_batches * world->virtual_stages;
    world->forward = calloc(world->durations, sizeof *world->forward);
    world->backward = calloc(world->durations, sizeof *world->backward);
    for (size_t i = 0; i < world->durations; i++) {
        world->forward[i] = splitmix_between(&world->dice, 0, 100);
        world->backward[i] = splitmix_between(&world->dice, 0, 200);
    }
}

static void world_end(struct world *world) {
    free(world->forward);
    free(world->backward);
}

/* UINT64_MAX when the order blocks itself. */
static uint64_t time_of(const struct pipeline_shape *shape, const uint64_t *forward,
                        const uint64_t *backward, const uint64_t *send) {
    struct pipeline_times times = {forward, backward, send};
    struct pipeline pipeline;
    void *memory = malloc(pipeline_bytes(shape));
    assert_int_equal(pipeline_check(shape, NULL), 0);
    pipeline_init(&pipeline, shape, memory);
    int rc = pipeline_run(&pipeline, &times, NULL);
    assert_true(rc == 0 || rc == -EDEADLK);
    free(memory);
    return rc == 0 ? pipeline.time_ns : UINT64_MAX;
}

static uint64_t world_time(const struct world *world) {
    return time_of(&world->shape, world->forward, world->backward, NULL);
}

static void fill(uint64_t *durations, size_t count, uint64_t value) {
    for (size_t i = 0; i < count; i++) {
        durations[i] = value;
    }
}

static uint64_t largest(const uint64_t *durations, size_t count) {
    uint64_t max = 0;
    for (size_t i = 0; i < count; i++) {
        max = durations[i] > max ? durations[i] : max;
    }
    return max;
}

/* Of m and p alone when all micro-batches are equal: m work units, and p - 1 of one chunk's. */
static uint64_t equal_time(const struct pipeline_shape *shape, uint64_t forward,
                           uint64_t backward) {
    uint64_t turns = (uint64_t)shape->micro_batches * shape->chunks + shape->stages - 1;
    return turns * (forward + backward);
}

static void equal_micro_batches_take_the_closed_form(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world world;
        world_make(&world, seed);
        uint64_t forward = splitmix_between(&world.dice, 1, 1000);
        uint64_t backward = splitmix_between(&world.dice, 1, 1000);
        fill(world.forward, world.durations, forward);
        fill(world.backward, world.durations, backward);
        WORLD_CHECK(&world, world_time(&world) == equal_time(&world.shape, forward, backward));
        world_end(&world);
    }
}

static void one_stage_or_one_micro_batch_takes_the_sum(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world world;
        world_make(&world, seed);
        if (world.shape.stages == 1 ||
            (world.shape.micro_batches == 1 && world.shape.chunks == 1)) {
            uint64_t sum = 0;
            for (size_t i = 0; i < world.durations; i++) {
                sum += world.forward[i] + world.backward[i];
            }
            WORLD_CHECK(&world, world_time(&world) == sum);
        }
        world_end(&world);
    }
}

static void interleaving_one_chunk_is_1f1b(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world world;
        world_make(&world, seed);
        if (world.shape.schedule == PIPELINE_1F1B) {
            uint64_t time = world_time(&world);
            world.shape.schedule = PIPELINE_INTERLEAVED;
            WORLD_CHECK(&world, world_time(&world) == time);
        }
        world_end(&world);
    }
}

/* T(k x) = k T(x), T(x) <= T(x + y) <= T(x) + T(y), T <= the equal case at the largest. */
static void times_are_max_plus(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world x;
        struct world y;
        world_make(&x, seed);
        world_make(&y, seed);
        uint64_t factor = splitmix_between(&x.dice, 2, 9);
        uint64_t time_x = world_time(&x);
        uint64_t equal = equal_time(&x.shape, largest(x.forward, x.durations),
                                    largest(x.backward, x.durations));
        for (size_t i = 0; i < x.durations; i++) {
            y.forward[i] = splitmix_between(&x.dice, 0, 50);
            y.backward[i] = splitmix_between(&x.dice, 0, 3) == 0 ? splitmix_between(&x.dice, 0, 500)
                                                                 : 0;
        }
        uint64_t time_y = world_time(&y);
        for (size_t i = 0; i < x.durations; i++) {
            y.forward[i] += x.forward[i];
            y.backward[i] += x.backward[i];
            x.forward[i] *= factor;
            x.backward[i] *= factor;
        }
        WORLD_CHECK(&x, world_time(&x) == factor * time_x);
        WORLD_CHECK(&x, time_x <= world_time(&y));
        WORLD_CHECK(&x, world_time(&y) <= time_x + time_y);
        WORLD_CHECK(&x, time_x <= equal);
        world_end(&x);
        world_end(&y);
    }
}

static uint64_t busiest_stage(const struct world *world) {
    uint64_t busiest = 0;
    for (uint32_t stage = 0; stage < world->shape.stages; stage++) {
        uint64_t sum = 0;
        for (size_t i = stage; i < world->durations; i += world->shape.stages) {
            sum += world->forward[i] + world->backward[i];
        }
        busiest = sum > busiest ? sum : busiest;
    }
    return busiest;
}

static uint64_t longest_chain(const struct world *world) {
    uint64_t longest = 0;
    for (uint32_t i = 0; i < world->shape.micro_batches; i++) {
        uint64_t sum = 0;
        for (uint32_t q = 0; q < world->virtual_stages; q++) {
            sum += world->forward[i * world->virtual_stages + q] +
                   world->backward[i * world->virtual_stages + q];
        }
        longest = sum > longest ? sum : longest;
    }
    return longest;
}

/* 1f1b where every stage takes the same: the last one works from the first forward's arrival on,
 * and the last backward has yet to come home. */
static uint64_t last_stage_view(struct world *world) {
    uint64_t sum = 0;
    uint32_t stages = world->shape.stages;
    for (uint32_t i = 0; i < world->shape.micro_batches; i++) {
        fill(&world->forward[i * stages], stages, world->forward[i * stages]);
        fill(&world->backward[i * stages], stages, world->backward[i * stages]);
        sum += world->forward[i * stages] + world->backward[i * stages];
    }
    uint32_t last = (world->shape.micro_batches - 1) * stages;
    return sum + (stages - 1) * (world->forward[0] + world->backward[last]);
}

static void no_time_is_below_its_bounds(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world world;
        world_make(&world, seed);
        WORLD_CHECK(&world, busiest_stage(&world) <= world_time(&world));
        WORLD_CHECK(&world, longest_chain(&world) <= world_time(&world));
        if (world.shape.schedule == PIPELINE_1F1B) {
            WORLD_CHECK(&world, last_stage_view(&world) <= world_time(&world));
        }
        world_end(&world);
    }
}

static void every_operation_runs_once_and_after_what_it_needs(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world world;
        world_make(&world, seed);
        struct pipeline_times times = {world.forward, world.backward, NULL};
        struct pipeline pipeline;
        void *memory = malloc(pipeline_bytes(&world.shape));
        uint8_t *seen = calloc(2 * world.durations, 1);
        pipeline_init(&pipeline, &world.shape, memory);
        assert_int_equal(pipeline_run(&pipeline, &times, NULL), 0);
        for (uint32_t stage = 0; stage < world.shape.stages; stage++) {
            uint64_t free_ns = 0;
            for (uint32_t i = 0; i < 2 * world.shape.micro_batches * world.shape.chunks; i++) {
                struct pipeline_operation op = pipeline_operation_at(&world.shape, stage, i);
                size_t number = (op.backward ? world.durations : 0) +
                                (size_t)op.micro_batch * world.virtual_stages + op.virtual_stage;
                WORLD_CHECK(&world, op.virtual_stage % world.shape.stages == stage);
                WORLD_CHECK(&world, !seen[number]);
                seen[number] = 1;
                WORLD_CHECK(&world, pipeline_start_ns(&pipeline, op) >= free_ns);
                free_ns = pipeline_end_ns(&pipeline, op);
                struct pipeline_operation need = op;
                need.virtual_stage += op.backward ? 1 : UINT32_MAX;
                if (need.virtual_stage == world.virtual_stages) {
                    need = (struct pipeline_operation){op.micro_batch, op.virtual_stage, false};
                }
                if (need.virtual_stage != UINT32_MAX) {
                    WORLD_CHECK(&world, pipeline_start_ns(&pipeline, op) >=
                                            pipeline_end_ns(&pipeline, need));
                }
            }
        }
        WORLD_CHECK(&world, memchr(seen, 0, 2 * world.durations) == NULL);
        free(seen);
        free(memory);
        world_end(&world);
    }
}

/* Removing a dependency never takes longer, whether sends cost time or not. */
static void more_room_on_the_links_never_takes_longer(void **state) {
    uint64_t blocked = 0;
    uint64_t slower = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        struct world world;
        uint64_t send[32] = {0};
        world_make(&world, seed);
        for (uint32_t i = 0; i < world.shape.micro_batches; i++) {
            send[i] = splitmix_between(&world.dice, 0, 20);
        }
        uint64_t eager = time_of(&world.shape, world.forward, world.backward, send);
        uint64_t roomier = eager;
        WORLD_CHECK(&world, world_time(&world) <= eager);
        for (uint32_t depth = 6; depth > 0; depth--) {
            world.shape.send_depth = depth;
            uint64_t time = time_of(&world.shape, world.forward, world.backward, send);
            WORLD_CHECK(&world, roomier <= time);
            blocked += time == UINT64_MAX;
            slower += time > eager;
            roomier = time;
        }
        world_end(&world);
    }
    assert_true(blocked > 0 && slower > blocked);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_micro_batches_take_the_closed_form),
        cmocka_unit_test(one_stage_or_one_micro_batch_takes_the_sum),
        cmocka_unit_test(interleaving_one_chunk_is_1f1b),
        cmocka_unit_test(times_are_max_plus),
        cmocka_unit_test(no_time_is_below_its_bounds),
        cmocka_unit_test(every_operation_runs_once_and_after_what_it_needs),
        cmocka_unit_test(more_room_on_the_links_never_takes_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
