/* The level release against its rules read literally, small worlds exhausted; and what must hold on
 * every stream, whatever is decided. */
#include "queues/level.h"

#include "level_literal.h"
#include "level_world.h"
#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHORTS_MAX   64u
#define STREAMS      120u
#define STREAMS_FULL 1000u /* with BALLAST_TEST_FULL */

/* A decision's input, and room for what view points to. */
struct case_world {
    uint64_t seed;
    struct level_options options;
    struct level_state state;
    struct level_view view;
    uint32_t lengths[LITERAL_CANDIDATES_MAX];
    uint64_t works[LITERAL_CANDIDATES_MAX];
    uint64_t nominal_steps[LITERAL_CANDIDATES_MAX];
    uint64_t indices[LITERAL_CANDIDATES_MAX];
    uint32_t short_lengths[SHORTS_MAX];
    uint64_t short_works[SHORTS_MAX];
};

static void case_point(struct case_world *world) {
    world->view.lengths = world->lengths;
    world->view.works = world->works;
    world->view.nominal_steps = world->nominal_steps;
    world->view.stream_indices = world->indices;
    world->view.short_lengths = world->short_lengths;
    world->view.short_works = world->short_works;
}

static void case_print(const struct case_world *world) {
    print_error("seed %" PRIu64 ": %u bins of %" PRIu64 ", T %" PRIu64 ", step %" PRIu64
                ", target %" PRIu64 ", delivered %" PRIu64 "; (length work nominal index):",
                world->seed, world->options.bins, world->options.bin_tokens,
                world->options.step_tokens, world->state.step, world->state.target_tokens,
                world->state.delivered_tokens);
    for (uint32_t i = 0; i < world->view.candidates; i++) {
        print_error(" (%u %" PRIu64 " %" PRIu64 " %" PRIu64 ")", world->lengths[i], world->works[i],
                    world->nominal_steps[i], world->indices[i]);
    }
    print_error("; %u shorts\n", world->view.shorts);
}

/* Scratch is exactly as large as the contract asks for, and full of rubbish. */
static void case_decide(const struct case_world *world, uint8_t *verdicts,
                        struct level_decision *decision) {
    size_t bytes = level_bytes(&world->options, world->view.candidates);
    void *scratch = malloc(bytes);
    assert_non_null(scratch);
    memset(scratch, 0xa5, bytes);
    level_decide(&world->options, &world->state, &world->view, scratch, verdicts, decision);
    free(scratch);
}

static void case_check(const struct case_world *world) {
    uint8_t verdicts[LITERAL_CANDIDATES_MAX] = {0};
    uint8_t literal_verdicts[LITERAL_CANDIDATES_MAX] = {0};
    struct level_decision decision;
    struct level_decision literal;
    case_decide(world, verdicts, &decision);
    literal_decide(&world->options, &world->state, &world->view, literal_verdicts, &literal);
    literal.evaluations = decision.evaluations;
    bool same = decision.tokens == literal.tokens && decision.tokens_base == literal.tokens_base &&
                decision.tokens_most == literal.tokens_most &&
                decision.released_tokens == literal.released_tokens &&
                decision.present_tokens == literal.present_tokens &&
                decision.released == literal.released && decision.early == literal.early &&
                decision.due == literal.due && decision.due_missed == literal.due_missed &&
                decision.accepted == literal.accepted &&
                decision.allowance_ppm == literal.allowance_ppm &&
                decision.urgency_ppm == literal.urgency_ppm &&
                decision.predicted_ppm == literal.predicted_ppm &&
                memcmp(verdicts, literal_verdicts, sizeof verdicts) == 0;
    if (!same) {
        case_print(world);
        fail_msg("released %u in %" PRIu64 " tokens, %" PRIu64 " ppm; literally %u in %" PRIu64
                 ", %" PRIu64 " ppm",
                 decision.released, decision.tokens, decision.predicted_ppm, literal.released,
                 literal.tokens, literal.predicted_ppm);
    }
}

/* Candidates by kind, each kind a (length, nominal step); stream order is nominal order. */
static const struct {
    uint32_t length;
    uint64_t nominal_step;
} kinds[] = {
    {4, 1}, {4, 8}, {4, 9}, {6, 1}, {6, 8}, {6, 10}, {9, 1}, {9, 7}, {9, 9}, {9, 13},
};

#define KINDS 10u

static void case_pool(struct case_world *world, const uint32_t *counts) {
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        for (uint32_t i = 0; i < counts[kind]; i++) {
            uint32_t length = kinds[kind].length;
            world->lengths[count] = length;
            world->works[count] = (uint64_t)length * (length + 2);
            world->nominal_steps[count] = kinds[kind].nominal_step;
            world->indices[count] = kinds[kind].nominal_step * 100 + count;
            count++;
        }
    }
    world->view.candidates = count;
}

static void case_shorts(struct case_world *world, uint32_t shorts, uint32_t length) {
    world->view.shorts = shorts;
    for (uint32_t i = 0; i < shorts; i++) {
        world->short_lengths[i] = length;
        world->short_works[i] = (uint64_t)length * (length + 2);
    }
}

static struct level_options small_options(void) {
    struct level_options options;
    level_options_preset(LEVEL_BALANCED, 32, &options);
    options.max_age = 7;
    options.max_evaluations = 3;
    options.token_work = 2;
    options.headroom_share = LEVEL_PPM;
    return options;
}

static void case_sizes(struct case_world *world) {
    for (uint32_t bins = 1; bins <= 3; bins++) {
        for (uint64_t bin_tokens = 9; bin_tokens <= 15; bin_tokens += 6) {
            world->options.bins = bins;
            world->options.bin_tokens = bin_tokens;
            world->options.step_tokens = bins * bin_tokens * 3 / 4;
            world->state.target_tokens = 8 * world->options.step_tokens;
            world->state.delivered_tokens = world->state.target_tokens + bins - 2;
            case_shorts(world, bins * 20, 1);
            case_check(world);
            case_shorts(world, bins * 9, 1);
            case_check(world);
            case_shorts(world, bins, 3);
            case_check(world);
        }
    }
}

static void level_equals_its_rules_on_all_small_pools(void **state) {
    (void)state;
    static struct case_world world;
    case_point(&world);
    world.options = small_options();
    world.state.step = 8;
    uint32_t counts[KINDS] = {0};
    uint32_t documents = 0;
    uint32_t kind = 0;
    while (kind < KINDS) {
        case_pool(&world, counts);
        case_sizes(&world);
        for (kind = 0; kind < KINDS; kind++) {
            counts[kind]++;
            documents++;
            if (documents <= 5) {
                break;
            }
            documents -= counts[kind];
            counts[kind] = 0;
        }
    }
}

static struct level_options drawn_options(uint64_t *random) {
    struct level_options options;
    level_options_preset((enum level_preset)splitmix_between(random, 0, 3), 1024, &options);
    options.bins = splitmix_between(random, 1, LITERAL_BINS_MAX);
    options.bin_tokens = splitmix_between(random, 1024, 2048);
    options.step_tokens = options.bins * options.bin_tokens * splitmix_between(random, 50, 98) /
                          100;
    options.token_work = splitmix_between(random, 1, 1000);
    options.token_tolerance = splitmix_between(random, 0, 10) * LEVEL_PPM / 10;
    options.max_age = splitmix_between(random, 0, 12);
    options.max_backlog = splitmix_between(random, 0, 4) * LEVEL_PPM;
    options.look_ahead = splitmix_between(random, 0, 4);
    options.companion = splitmix_between(random, 0, 10) * LEVEL_PPM / 10;
    options.imbalance_price = splitmix_between(random, 0, 30);
    options.max_evaluations = splitmix_between(random, 1, 40);
    options.horizon = 6;
    return options;
}

static int case_compare(const void *a, const void *b) {
    const uint64_t *x = a;
    const uint64_t *y = b;
    return x[0] != y[0] ? (x[0] < y[0] ? -1 : 1) : (x[1] < y[1] ? -1 : 1);
}

static void case_draw(struct case_world *world, uint64_t seed) {
    uint64_t random = seed;
    world->seed = seed;
    world->options = drawn_options(&random);
    uint64_t step = splitmix_between(&random, 0, 20);
    uint64_t documents[LITERAL_CANDIDATES_MAX][3]; /* length, index, nominal step */
    uint64_t nominal = step > 14 ? step - 14 : 0;
    world->view.candidates = splitmix_between(&random, 0, LITERAL_CANDIDATES_MAX);
    uint32_t spread = splitmix_between(&random, 1, 896);
    for (uint32_t i = 0; i < world->view.candidates; i++) {
        documents[i][0] = 128 + splitmix_between(&random, 0, spread);
        documents[i][1] = i;
        documents[i][2] = nominal;
        nominal += nominal < step + 6 && splitmix_between(&random, 0, 2) == 0;
    }
    qsort(documents, world->view.candidates, sizeof documents[0], case_compare);
    uint32_t linear = splitmix_between(&random, 0, 4000);
    for (uint32_t i = 0; i < world->view.candidates; i++) {
        world->lengths[i] = (uint32_t)documents[i][0];
        world->indices[i] = documents[i][1];
        world->nominal_steps[i] = documents[i][2];
        world->works[i] = documents[i][0] * (documents[i][0] + linear);
    }
    world->view.shorts = splitmix_between(&random, 0, SHORTS_MAX);
    for (uint32_t i = 0; i < world->view.shorts; i++) {
        world->short_lengths[i] = splitmix_between(&random, 1, 127);
        world->short_works[i] = (uint64_t)world->short_lengths[i] *
                                (world->short_lengths[i] + linear);
    }
    uint32_t target = (uint32_t)world->options.step_tokens;
    world->state = (struct level_state){
        .step = step, .target_tokens = step * target, .delivered_tokens = step * target};
    world->state.delivered_tokens -= step > 0 ? splitmix_between(&random, 0, target) : 0;
    world->state.target_tokens -= step > 0 ? splitmix_between(&random, 0, target) : 0;
}

static void level_equals_its_rules_on_random_pools(void **state) {
    (void)state;
    static struct case_world world;
    case_point(&world);
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        case_draw(&world, seed);
        case_check(&world);
    }
}

/* Streams. */

struct stream {
    uint64_t seed;
    struct level_world world;
    uint32_t *lengths;
    uint32_t documents;
    uint64_t due_tokens_max; /* of what was due before a step, so far */
};

static void stream_fail(const struct stream *stream, const char *what, int line)
    __attribute__((noreturn));

static void stream_fail(const struct stream *stream, const char *what, int line) {
    print_error("seed %" PRIu64 ", step %" PRIu64 ": %s\n", stream->seed,
                stream->world.state.step - 1, what);
    _fail(__FILE__, line);
    abort();
}

#define STREAM_CHECK(stream, holds)                                                                \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            stream_fail(stream, #holds, __LINE__);                                                 \
        }                                                                                          \
    } while (0)

/* `steps` of a distribution. */
static void stream_open(struct stream *stream, const struct level_options *options,
                        const struct distribution *distribution, uint32_t steps) {
    stream->lengths = level_world_draw(distribution, stream->seed, steps * options->step_tokens,
                                       &stream->documents);
    level_world_open(&stream->world, options, 24576, stream->lengths, stream->documents);
}

static void stream_close(struct stream *stream) {
    level_world_close(&stream->world);
    free(stream->lengths);
}

static void stream_check_sizes(const struct stream *stream) {
    const struct level_world *world = &stream->world;
    const struct level_options *options = &world->options;
    uint64_t target = options->step_tokens;
    uint64_t tolerance = target * options->token_tolerance / LEVEL_PPM + 1;
    uint64_t low = target - (tolerance < target / 2 ? tolerance : target / 2);
    uint64_t delivered = world->state.delivered_tokens;
    uint64_t clock = world->state.target_tokens;
    for (uint32_t bin = 0; bin < options->bins; bin++) {
        STREAM_CHECK(stream, world->bin_tokens[bin] <= options->bin_tokens);
    }
    STREAM_CHECK(stream, world->packed_tokens + world->left_over_tokens + world->fit_gap ==
                             world->decision.tokens);
    STREAM_CHECK(stream, world->decision.tokens >= low);
    STREAM_CHECK(stream, world->decision.tokens <= target + tolerance ||
                             world->decision.tokens == world->decision.tokens_base);
    STREAM_CHECK(stream, clock <= delivered + target && delivered <= clock + target);
}

/* Tokens of the pool that have arrived, and of those the ones that are due. */
static void stream_count_waiting(const struct stream *stream, uint64_t *arrived, uint64_t *due) {
    const struct level_world *world = &stream->world;
    *arrived = *due = 0;
    for (uint32_t i = 0; i < world->pool_count; i++) {
        uint64_t nominal = world->nominal_steps[world->pool[i]];
        uint32_t length = world->lengths[world->pool[i]];
        *arrived += nominal <= world->state.step ? length : 0;
        *due += nominal + world->options.max_age <= world->state.step ? length : 0;
    }
}

static void stream_check_ages(const struct stream *stream) {
    const struct level_world *world = &stream->world;
    const struct level_options *options = &world->options;
    uint64_t step = world->state.step - 1;
    uint64_t late_max = (stream->due_tokens_max + options->step_tokens - 1) / options->step_tokens;
    for (uint32_t i = 0; i < world->packed; i++) {
        uint32_t document = world->packed_documents[i];
        uint64_t nominal = world->nominal_steps[document];
        bool candidate = world->lengths[document] >= options->candidate_length;
        uint64_t late = step > nominal ? step - nominal : 0;
        STREAM_CHECK(stream,
                     nominal <= step + (candidate ? options->look_ahead : options->horizon));
        STREAM_CHECK(stream, !candidate || late <= options->max_age + late_max);
    }
}

/* Real imbalance is at most the predicted one, the step's longest short in the heaviest bin and a
 * hundredth, when there were shorts enough. */
static void stream_check_prediction(const struct stream *stream) {
    const struct level_world *world = &stream->world;
    uint64_t longest = 0;
    uint64_t works = 0;
    for (uint32_t i = 0; i < world->packed; i++) {
        uint32_t length = world->lengths[world->packed_documents[i]];
        works += level_world_work(world, length);
        if (length < world->options.candidate_length && length > longest) {
            longest = length;
        }
    }
    uint64_t grain = (uint64_t)((unsigned __int128)level_world_work(world, (uint32_t)longest) *
                                world->options.bins * LEVEL_PPM / works);
    uint64_t predicted = world->decision.predicted_ppm;
    if (predicted != UINT64_MAX && world->fit_gap < world->options.candidate_length) {
        STREAM_CHECK(stream, level_world_imbalance(world) <= predicted + grain + LEVEL_PPM / 100);
    }
}

/* Every delivered document once, and shorts at most horizon + 1 steps out of order. */
static void stream_check_end(const struct stream *stream) {
    const struct level_world *world = &stream->world;
    uint64_t tokens = 0;
    uint64_t earliest = UINT64_MAX;
    for (uint32_t i = world->documents; i > 0; i--) {
        uint64_t step = world->delivered_in[i - 1];
        if (step == UINT64_MAX) {
            continue;
        }
        tokens += world->lengths[i - 1];
        if (world->lengths[i - 1] < world->options.candidate_length) {
            earliest = step < earliest ? step : earliest;
            STREAM_CHECK(stream, step - earliest <= world->options.horizon + 1);
        }
    }
    STREAM_CHECK(stream, tokens == world->state.delivered_tokens);
}

static void stream_run(struct stream *stream) {
    struct level_world *world = &stream->world;
    uint64_t arrived;
    uint64_t due = 0;
    stream->due_tokens_max = 0;
    while (level_world_step(world)) {
        stream->due_tokens_max = due > stream->due_tokens_max ? due : stream->due_tokens_max;
        stream_check_sizes(stream);
        stream_check_ages(stream);
        stream_check_prediction(stream);
        stream_count_waiting(stream, &arrived, &due);
        STREAM_CHECK(stream,
                     arrived <= due + (world->options.horizon + 1) * world->options.step_tokens);
    }
    stream_check_end(stream);
}

static void level_keeps_its_bounds_on_every_stream(void **state) {
    (void)state;
    static const uint32_t bins[] = {1, 2, 4, 7, 16};
    static const uint32_t rooms[] = {100, 112, 125, 200};
    static const uint32_t ages[] = {16, 64, 8};
    uint64_t streams = getenv("BALLAST_TEST_FULL") != NULL ? STREAMS_FULL : STREAMS;
    for (uint64_t seed = 1; seed <= streams; seed++) {
        struct stream stream = {.seed = seed};
        const struct distribution *distribution = distribution_at(seed % DISTRIBUTIONS);
        struct level_options options = level_world_options((enum level_preset)(seed / 4 % 4),
                                                           distribution_window(distribution),
                                                           bins[seed / 3 % 5], rooms[seed / 5 % 4]);
        options.max_age = ages[seed % 3];
        stream_open(&stream, &options, distribution, 40);
        stream_run(&stream);
        stream_close(&stream);
    }
}

static void level_without_look_ahead_releases_nothing_early(void **state) {
    (void)state;
    struct stream stream = {.seed = 5};
    struct level_options options = level_world_options(LEVEL_BALANCED, 131072, 4, 125);
    options.look_ahead = 0;
    stream_open(&stream, &options, distribution_find("wlb128k"), 100);
    while (level_world_step(&stream.world)) {
        STREAM_CHECK(&stream, stream.world.decision.early == 0);
    }
    stream_close(&stream);
}

/* Nothing present is left in the pool but for want of room in the step. */
static void stream_check_holds_nothing(struct stream *stream) {
    struct level_world *world = &stream->world;
    while (level_world_step(world)) {
        uint64_t waiting = 0;
        uint32_t least = UINT32_MAX;
        for (uint32_t i = 0; i < world->pool_count; i++) {
            uint32_t document = world->pool[i];
            if (world->nominal_steps[document] < world->state.step) {
                uint32_t length = world->lengths[document];
                least = length < least ? length : least;
                waiting += length;
            }
        }
        STREAM_CHECK(stream,
                     waiting == 0 || world->left_over_tokens > 0 ||
                         world->decision.released_tokens + least > world->decision.tokens_most);
    }
}

static void level_with_an_endless_allowance_holds_nothing(void **state) {
    (void)state;
    struct stream stream = {.seed = 6};
    struct level_options options = level_world_options(LEVEL_BALANCED, 131072, 4, 200);
    options.allowance = 1000 * LEVEL_PPM;
    options.allowance_urgent = 1000 * LEVEL_PPM;
    options.imbalance_price = 0;
    stream_open(&stream, &options, distribution_find("wlb128k"), 100);
    stream_check_holds_nothing(&stream);
    stream_close(&stream);
}

static void level_with_max_age_zero_holds_nothing(void **state) {
    (void)state;
    struct stream stream = {.seed = 7};
    struct level_options options = level_world_options(LEVEL_STEADY, 131072, 4, 200);
    options.max_age = 0;
    stream_open(&stream, &options, distribution_find("wlb128k"), 100);
    stream_check_holds_nothing(&stream);
    stream_close(&stream);
}

static void level_holds_nothing_when_all_lengths_are_equal(void **state) {
    (void)state;
    static uint32_t lengths[4000];
    for (uint32_t length = 2000; length <= 131072; length = length * 2 + 71) {
        for (uint32_t i = 0; i < 4000; i++) {
            lengths[i] = length < 131072 ? length : 131072;
        }
        struct stream stream = {.seed = length};
        struct level_options options = level_world_options(LEVEL_BALANCED, 131072, 8, 200);
        level_world_open(&stream.world, &options, 24576, lengths, 4000);
        stream_check_holds_nothing(&stream);
        level_world_close(&stream.world);
    }
}

/* Documents as long as a bin fill only whole bins: 95 % of them cannot be reached, steps alternate
 * and the clock slips rather than that the debt grows without end. */
static void level_lets_the_clock_slip_when_no_count_of_documents_fits(void **state) {
    (void)state;
    static uint32_t lengths[4000];
    for (uint32_t i = 0; i < 4000; i++) {
        lengths[i] = 131072;
    }
    struct stream stream = {.seed = 0};
    struct level_options options = level_world_options(LEVEL_STEADY, 131072, 4, 100);
    level_world_open(&stream.world, &options, 24576, lengths, 4000);
    while (level_world_step(&stream.world)) {
        const struct level_state *clock = &stream.world.state;
        STREAM_CHECK(&stream,
                     clock->target_tokens <= clock->delivered_tokens + options.step_tokens);
        STREAM_CHECK(&stream, stream.world.packed >= 3);
    }
    level_world_close(&stream.world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_equals_its_rules_on_all_small_pools),
        cmocka_unit_test(level_equals_its_rules_on_random_pools),
        cmocka_unit_test(level_keeps_its_bounds_on_every_stream),
        cmocka_unit_test(level_without_look_ahead_releases_nothing_early),
        cmocka_unit_test(level_with_an_endless_allowance_holds_nothing),
        cmocka_unit_test(level_with_max_age_zero_holds_nothing),
        cmocka_unit_test(level_holds_nothing_when_all_lengths_are_equal),
        cmocka_unit_test(level_lets_the_clock_slip_when_no_count_of_documents_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
