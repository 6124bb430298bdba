/* Outlier bands against Algorithm 1 as printed: real FIFO queues, one per band, that documents
 * enter and are popped from. The queues remember; the code under test is given the one list of
 * waiting documents at every step. Both must let the same documents go for the same reason. */
#include "queues/bands.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 8192u /* in one world */
#define STEPS         120u
#define ARRIVALS_MAX  30u

struct fifo {
    uint32_t ids[DOCUMENTS_MAX];
    uint32_t head;
    uint32_t tail;
};

/* Documents by id; verdicts are those of the queues at the step the document left, WAITS before. */
struct world {
    struct bands_options options;
    uint32_t documents;
    uint32_t lengths[DOCUMENTS_MAX];
    uint64_t nominal_steps[DOCUMENTS_MAX];
    uint8_t verdicts[DOCUMENTS_MAX];
    struct fifo queues[BANDS_MAX];
};

/* The list under test. */
struct waiting {
    uint32_t count;
    uint32_t ids[DOCUMENTS_MAX];
    uint32_t lengths[DOCUMENTS_MAX];
    uint64_t nominal_steps[DOCUMENTS_MAX];
    uint8_t verdicts[DOCUMENTS_MAX];
};

static void world_pop_group(struct world *world, struct fifo *queue) {
    for (uint32_t i = 0; i < world->options.group; i++) {
        world->verdicts[queue->ids[queue->head++]] = BAND_RELEASED;
    }
}

static void world_evict(struct world *world, struct fifo *queue, uint64_t step) {
    uint32_t kept = queue->head;
    for (uint32_t i = queue->head; i < queue->tail; i++) {
        uint32_t id = queue->ids[i];
        if (world->nominal_steps[id] + world->options.age_max <= step) {
            world->verdicts[id] = BAND_DUE;
        } else {
            queue->ids[kept++] = id;
        }
    }
    queue->tail = kept;
}

/* Lines 3 to 9 of Algorithm 1 after the step's arrivals, then the age bound. */
static void world_step(struct world *world, uint64_t step) {
    for (uint32_t band = 0; band < world->options.bands; band++) {
        struct fifo *queue = &world->queues[band];
        if (world->options.release == BANDS_RELEASE_ALL) {
            while (queue->tail - queue->head >= world->options.group) {
                world_pop_group(world, queue);
            }
        } else if (queue->tail - queue->head >= world->options.group) {
            world_pop_group(world, queue);
        }
        world_evict(world, queue, step);
    }
}

/* Enters a document into the queue i with L_i <= length < L_(i+1), and into the list. */
static void world_arrive(struct world *world, struct waiting *waiting, uint32_t length,
                         uint64_t nominal_step) {
    const struct bands_options *options = &world->options;
    for (uint32_t band = 0; band < options->bands; band++) {
        uint64_t next = band + 1 < options->bands ? options->length_min[band + 1] : UINT64_MAX;
        if (options->length_min[band] <= length && length < next) {
            struct fifo *queue = &world->queues[band];
            uint32_t id = world->documents++;
            world->lengths[id] = length;
            world->nominal_steps[id] = nominal_step;
            queue->ids[queue->tail++] = id;
            waiting->ids[waiting->count] = id;
            waiting->lengths[waiting->count] = length;
            waiting->nominal_steps[waiting->count++] = nominal_step;
            assert_int_equal(bands_of(options, length), band);
            return;
        }
    }
    assert_int_equal(bands_of(options, length), BAND_NONE);
}

static void waiting_remove_leaving(struct waiting *waiting) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < waiting->count; i++) {
        if (waiting->verdicts[i] == BAND_WAITS) {
            waiting->ids[kept] = waiting->ids[i];
            waiting->lengths[kept] = waiting->lengths[i];
            waiting->nominal_steps[kept++] = waiting->nominal_steps[i];
        }
    }
    waiting->count = kept;
}

static const char *step_fault(const struct world *world, struct waiting *waiting, uint64_t step) {
    uint32_t leaving = bands_decide(&world->options, waiting->lengths, waiting->nominal_steps,
                                    waiting->count, step, waiting->verdicts);
    uint32_t left = 0;
    for (uint32_t i = 0; i < waiting->count; i++) {
        left += waiting->verdicts[i] != BAND_WAITS;
        if (waiting->verdicts[i] != world->verdicts[waiting->ids[i]]) {
            return "verdict differs from the queues'";
        }
    }
    if (left != leaving) {
        return "the number that leave is wrong";
    }
    waiting_remove_leaving(waiting);
    uint32_t held[BANDS_MAX] = {0};
    for (uint32_t i = 0; i < waiting->count; i++) {
        held[bands_of(&world->options, waiting->lengths[i])]++;
        if (step >= waiting->nominal_steps[i] + world->options.age_max) {
            return "older than the age bound";
        }
    }
    for (uint32_t band = 0; band < world->options.bands; band++) {
        if (world->options.release == BANDS_RELEASE_ALL && held[band] >= world->options.group) {
            return "a whole group still waits";
        }
    }
    return NULL;
}

static void world_draw(struct world *world, uint64_t *random) {
    memset(world, 0, sizeof *world);
    struct bands_options *options = &world->options;
    options->bands = splitmix_between(random, 0, BANDS_MAX);
    options->group = splitmix_between(random, 1, 9);
    options->age_max = splitmix_between(random, 1, 40);
    options->release = splitmix_between(random, 0, 1) == 1 ? BANDS_RELEASE_ALL : BANDS_RELEASE_ONCE;
    uint32_t threshold = 0;
    for (uint32_t band = 0; band < options->bands; band++) {
        threshold += splitmix_between(random, 1, 20);
        options->length_min[band] = threshold;
    }
}

static void bands_let_go_what_the_printed_queues_let_go(void **state) {
    (void)state;
    static struct world world;
    static struct waiting waiting;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t random = seed;
        world_draw(&world, &random);
        waiting.count = 0;
        uint32_t arrivals_max = splitmix_between(&random, 0, ARRIVALS_MAX);
        for (uint64_t step = 0; step < STEPS; step++) {
            uint32_t arrivals = splitmix_between(&random, 0, arrivals_max);
            for (uint32_t i = 0; i < arrivals; i++) {
                uint32_t length = splitmix_between(&random, 1, 120);
                world_arrive(&world, &waiting, length, step + splitmix_between(&random, 0, 2));
            }
            world_step(&world, step);
            const char *fault = step_fault(&world, &waiting, step);
            if (fault != NULL) {
                fail_msg("seed %" PRIu64 ", step %" PRIu64 ": %s", seed, step, fault);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bands_let_go_what_the_printed_queues_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
