/* wlb:level in the planner against a second implementation that knows the whole stream and keeps a
 * flag for each document: what is looked at, filled, delivered, has arrived, and the clock that
 * slips. Exhaustively on all small streams, then on random worlds, up to the drain. The choice
 * itself is level_decide's in both. */
#include "planner_world.h"
#include "splitmix.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 48u
#define BINS_MAX      16u
#define SMALL_LENGTH  4u
#define SMALL_STREAM  5u
#define FULL_STREAM   7u /* with BALLAST_TEST_FULL */
#define RANDOM_WORLDS 3000u

struct reference {
    const struct level_options *options;
    const uint32_t *lengths;
    uint32_t documents;
    uint64_t cost;
    uint64_t offsets[DOCUMENTS_MAX + 1];
    uint64_t nominal[DOCUMENTS_MAX];
    bool delivered[DOCUMENTS_MAX];
    bool arrived[DOCUMENTS_MAX];
    struct level_state clock;

    /* The step. */
    uint32_t hand[DOCUMENTS_MAX]; /* looked at and not delivered, in stream order */
    uint32_t hand_count;
    uint32_t looked_at; /* documents before this one were */
    bool ended;
    bool leaves[DOCUMENTS_MAX]; /* by document */
    uint64_t works[BINS_MAX];
    uint64_t left_over_tokens;
};

static uint64_t work(const struct reference *r, uint32_t document) {
    uint64_t length = r->lengths[document];
    return length * (length + r->cost);
}

static uint64_t nominal_at(const struct reference *r, uint64_t offset) {
    return (offset + r->clock.slip_tokens) / r->options->step_tokens;
}

static uint32_t known_end(const struct reference *r) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < r->documents; i++) {
        end = r->delivered[i] ? i + 1 : end;
    }
    return end;
}

static void look(struct reference *r) {
    uint32_t known = known_end(r);
    r->hand_count = 0;
    r->ended = false;
    for (uint32_t i = 0;; i++) {
        bool arrived = i < r->documents && r->arrived[i];
        bool near = nominal_at(r, r->offsets[i]) <= r->clock.step + r->options->horizon ||
                    r->hand_count < r->options->bins;
        r->looked_at = i;
        if (!arrived && i >= known && !near) {
            return;
        }
        if (i == r->documents) {
            r->ended = true;
            return;
        }
        if (!arrived) {
            r->nominal[i] = r->delivered[i] ? r->nominal[i] : nominal_at(r, r->offsets[i]);
        }
        if (!r->delivered[i]) {
            r->hand[r->hand_count++] = i;
        }
    }
}

static uint64_t hand_tokens(const struct reference *r) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < r->hand_count; i++) {
        tokens += r->lengths[r->hand[i]];
    }
    return tokens;
}

static bool is_candidate(const struct reference *r, uint32_t document) {
    return r->lengths[document] >= r->options->candidate_length;
}

/* Candidates by (length, number). */
static uint32_t sort_pool(const struct reference *r, uint32_t *pool) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->hand_count; i++) {
        if (!is_candidate(r, r->hand[i])) {
            continue;
        }
        uint32_t at = count++;
        for (; at > 0 && r->lengths[pool[at - 1]] > r->lengths[r->hand[i]]; at--) {
            pool[at] = pool[at - 1];
        }
        pool[at] = r->hand[i];
    }
    return count;
}

static void choose(struct reference *r, struct level_decision *decision) {
    uint32_t pool[DOCUMENTS_MAX];
    uint32_t shorts[DOCUMENTS_MAX];
    uint32_t lengths[2][DOCUMENTS_MAX];
    uint64_t works[2][DOCUMENTS_MAX];
    uint64_t nominal[DOCUMENTS_MAX];
    uint64_t indices[DOCUMENTS_MAX];
    uint8_t verdicts[DOCUMENTS_MAX];
    struct level_view view = {.candidates = sort_pool(r, pool),
                              .lengths = lengths[0],
                              .works = works[0],
                              .nominal_steps = nominal,
                              .stream_indices = indices,
                              .short_lengths = lengths[1],
                              .short_works = works[1]};
    for (uint32_t i = 0; i < view.candidates; i++) {
        lengths[0][i] = r->lengths[pool[i]];
        works[0][i] = work(r, pool[i]);
        nominal[i] = r->nominal[pool[i]];
        indices[i] = pool[i];
    }
    for (uint32_t i = 0; i < r->hand_count; i++) {
        if (!is_candidate(r, r->hand[i])) {
            lengths[1][view.shorts] = r->lengths[r->hand[i]];
            works[1][view.shorts] = work(r, r->hand[i]);
            shorts[view.shorts++] = r->hand[i];
        }
    }
    void *scratch = malloc(level_bytes(r->options, view.candidates));
    level_decide(r->options, &r->clock, &view, scratch, verdicts, decision);
    free(scratch);
    for (uint32_t i = 0; i < view.candidates; i++) {
        r->leaves[pool[i]] = verdicts[i] != LEVEL_WAITS;
    }
    (void)level_take_shorts(r->options, lengths[1], view.shorts, decision->released_tokens,
                            decision->tokens, verdicts);
    for (uint32_t i = 0; i < view.shorts; i++) {
        r->leaves[shorts[i]] = verdicts[i] != 0;
    }
}

static void fill(struct reference *r) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->documents; i++) {
        count += r->leaves[i];
    }
    for (uint32_t i = 0; i < 2 * r->hand_count && count < r->options->bins; i++) {
        uint32_t document = r->hand[i % r->hand_count];
        bool candidate = r->lengths[document] >= r->options->candidate_length;
        if (candidate == (i >= r->hand_count)) {
            count += !r->leaves[document];
            r->leaves[document] = true;
        }
    }
}

static uint32_t longest_leaving(const struct reference *r, const bool *placed) {
    uint32_t longest = r->documents;
    for (uint32_t i = 0; i < r->documents; i++) {
        if (r->leaves[i] && !placed[i] &&
            (longest == r->documents || r->lengths[i] > r->lengths[longest])) {
            longest = i;
        }
    }
    return longest;
}

/* Returns the tokens delivered. */
static uint64_t pack(struct reference *r) {
    bool placed[DOCUMENTS_MAX] = {false};
    uint64_t tokens[BINS_MAX] = {0};
    uint64_t sum = 0;
    uint32_t document;
    memset(r->works, 0, sizeof r->works);
    r->left_over_tokens = 0;
    while ((document = longest_leaving(r, placed)) < r->documents) {
        uint32_t best = BINS_MAX;
        for (uint32_t bin = 0; bin < r->options->bins; bin++) {
            if (tokens[bin] + r->lengths[document] <= r->options->bin_tokens &&
                (best == BINS_MAX || r->works[bin] < r->works[best])) {
                best = bin;
            }
        }
        placed[document] = true;
        if (best == BINS_MAX) {
            r->leaves[document] = false;
            r->left_over_tokens += r->lengths[document];
            continue;
        }
        tokens[best] += r->lengths[document];
        r->works[best] += work(r, document);
        r->delivered[document] = true;
        sum += r->lengths[document];
    }
    return sum;
}

static void arrive(struct reference *r) {
    uint32_t front = 0;
    while (
        front < r->looked_at &&
        (r->delivered[front] || r->offsets[front] < r->clock.target_tokens || r->arrived[front])) {
        r->arrived[front++] = true;
    }
}

/* False at the drain, or when nothing is left. */
static bool reference_step(struct reference *r, struct level_decision *decision) {
    memset(r->leaves, 0, sizeof r->leaves);
    look(r);
    if (r->hand_count == 0 || (r->ended && (hand_tokens(r) <= 4 * r->options->step_tokens ||
                                            r->hand_count < r->options->bins))) {
        return false;
    }
    choose(r, decision);
    fill(r);
    level_advance(r->options, &r->clock, pack(r));
    arrive(r);
    return true;
}

static uint64_t waiting_tokens(const struct reference *r) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < r->documents; i++) {
        tokens += r->arrived[i] && !r->delivered[i] ? r->lengths[i] : 0;
    }
    return tokens;
}

static uint64_t arrived_documents(const struct reference *r) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < r->documents; i++) {
        count += r->arrived[i] || r->delivered[i];
    }
    return count;
}

static bool same_step(const struct reference *r, const struct level_decision *decision,
                      const struct step_plan *plan, const struct plan_state *after) {
    uint64_t works[2] = {0, 0};
    uint32_t leaving = 0;
    for (uint32_t i = 0; i < r->documents; i++) {
        leaving += r->leaves[i];
    }
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        if (!r->leaves[document->stream_index] ||
            document->nominal_step != r->nominal[document->stream_index]) {
            return false;
        }
    }
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        uint64_t planned = plan->micro_batches[m].work_ns;
        works[0] = planned > works[0] ? planned : works[0];
        works[1] = r->works[m] > works[1] ? r->works[m] : works[1];
    }
    return plan->document_count == leaving && works[0] == works[1] &&
           plan->release.waiting_tokens == waiting_tokens(r) &&
           plan->release.allowance_ppm == decision->allowance_ppm &&
           plan_state_arrived_documents(after, 0) == arrived_documents(r) &&
           after->target_tokens == r->clock.target_tokens &&
           after->slip_tokens == r->clock.slip_tokens;
}

static void print_world(const struct world *world) {
    const struct plan_options *options = &world->options;
    print_error("N %u window %u tokens_max %lu T %lu candidate %u ahead %u horizon %u age %u "
                "preset %d; lengths",
                options->micro_batches, options->window, options->tokens_max, options->step_tokens,
                options->level.candidate_length, options->level.look_ahead, options->level.horizon,
                options->level.max_age, (int)options->level_preset);
    for (uint64_t i = 0; i < world->datasets[0].documents; i++) {
        print_error(" %u", world->lengths[0][i]);
    }
    print_error("\n");
}

struct pair {
    struct planner *planner;
    struct plan_state *now;
    struct plan_state *next;
};

static void reference_init(struct reference *r, const struct world *world) {
    *r = (struct reference){.options = &world->options.level,
                            .lengths = world->lengths[0],
                            .documents = (uint32_t)world->datasets[0].documents,
                            .cost = world->options.model.cost_linear};
    for (uint32_t i = 0; i < r->documents; i++) {
        r->offsets[i + 1] = r->offsets[i] + r->lengths[i];
    }
}

static void compare_streams(const struct world *world, struct pair *pair) {
    static struct reference reference;
    struct level_decision decision;
    reference_init(&reference, world);
    plan_state_reset(pair->now);
    while (reference_step(&reference, &decision)) {
        struct step_plan *plan = NULL;
        if (plan_step(pair->planner, pair->now, pair->next, &plan, NULL) != 1 ||
            !same_step(&reference, &decision, plan, pair->next)) {
            print_world(world);
            print_error("step %lu differs\n", pair->now->step);
            world_fail(world, "same steps", __FILE__, __LINE__);
        }
        step_plan_destroy(plan);
        struct plan_state *swapped = pair->now;
        pair->now = pair->next;
        pair->next = swapped;
    }
    struct step_plan *plan = NULL;
    int planned = plan_step(pair->planner, pair->now, pair->next, &plan, NULL);
    WORLD_CHECK(world, planned == (reference.hand_count > 0 ? 1 : 0));
    WORLD_CHECK(world, planned == 0 || pair->next->draining || pair->next->waiting_count == 0);
    step_plan_destroy(plan);
}

static struct pair pair_create(const struct world *world) {
    struct pair pair = {.planner = planner_create(&world->options, &world->source.source, NULL)};
    pair.now = planner_state_create(pair.planner);
    pair.next = planner_state_create(pair.planner);
    return pair;
}

static void pair_destroy(struct pair *pair) {
    plan_state_destroy(pair->now);
    plan_state_destroy(pair->next);
    planner_destroy(pair->planner);
}

static void one_dataset(struct world *world) {
    world->datasets[0] = (struct fake_dataset){.lengths = world->lengths[0], .weight = 1};
    fake_source_init(&world->source, world->datasets, 1, 1);
}

static void resolve(struct world *world) {
    struct error error;
    if (plan_options_resolve(&world->options, &error) != 0) {
        print_error("%s\n", error.text);
        world_fail(world, "the options hold together", __FILE__, __LINE__);
    }
}

/* Every stream of at most documents_max documents of 1..SMALL_LENGTH tokens. */
static void compare_small_streams(struct world *world, uint32_t documents_max) {
    struct pair pair = pair_create(world);
    uint32_t streams = 1;
    for (uint32_t documents = 0; documents <= documents_max; documents++) {
        world->datasets[0].documents = documents;
        for (uint32_t number = 0; number < streams; number++) {
            uint32_t digits = number;
            for (uint32_t i = 0; i < documents; i++) {
                world->lengths[0][i] = 1 + digits % SMALL_LENGTH;
                digits /= SMALL_LENGTH;
            }
            compare_streams(world, &pair);
        }
        streams *= SMALL_LENGTH;
    }
    pair_destroy(&pair);
}

/* T of 1 keeps the drain, four steps' worth, short. */
static struct plan_options small_options(uint32_t number) {
    static const uint32_t ages[] = {0, 1, 64};
    struct plan_options options = world_options();
    options.policy = POLICY_WLB_LEVEL;
    options.window = SMALL_LENGTH;
    options.tokens_max = SMALL_LENGTH + number % 2 * 2;
    options.micro_batches = 1 + number / 2 % 2;
    options.step_tokens = 1;
    options.level_preset = number / 4 % 2 == 0 ? LEVEL_BALANCED : LEVEL_FINE;
    options.level.max_age = ages[number / 8 % 3];
    options.level.candidate_length = 1 + number / 24 % 3;
    options.level.look_ahead = number / 72 % 2 * 2;
    options.level.fit_window = 2;
    options.documents_max = 16;
    options.waiting_max = 16;
    return options;
}

static void small_worlds_match_the_reference_exhaustively(void **state) {
    (void)state;
    static struct world world;
    uint32_t documents_max = getenv("BALLAST_TEST_FULL") != NULL ? FULL_STREAM : SMALL_STREAM;
    for (uint32_t number = 0; number < 144; number++) {
        one_dataset(&world);
        world.seed = number;
        world.options = small_options(number);
        resolve(&world);
        compare_small_streams(&world, documents_max);
    }
}

static void compare_world(uint64_t seed) {
    static struct world world;
    uint64_t dice = seed;
    world_make_level(&world, splitmix_next(&dice));
    world.seed = seed;
    struct plan_options *options = &world.options;
    options->model.cost_linear = splitmix_between(&dice, 1, 64);
    options->refine_gap_ppm = REFINE_NOT;
    options->search = PACK_SEARCH_EXACT;
    options->documents_max = WORLD_NO_LIMIT;
    options->waiting_max = WORLD_NO_LIMIT;
    options->step_tokens /= splitmix_between(&dice, 1, 4);
    options->step_tokens += options->step_tokens == 0;
    resolve(&world);
    one_dataset(&world);
    uint32_t limit = plan_part_limit(options);
    uint32_t tail = splitmix_between(&dice, 1, 4);
    world.datasets[0].documents = splitmix_between(&dice, 0, DOCUMENTS_MAX);
    for (uint64_t i = 0; i < world.datasets[0].documents; i++) {
        bool outlier = splitmix_between(&dice, 0, tail) == 0;
        world.lengths[0][i] = splitmix_between(&dice, 1, outlier ? limit : limit / 4 + 1);
    }
    struct pair pair = pair_create(&world);
    compare_streams(&world, &pair);
    pair_destroy(&pair);
}

static void random_worlds_match_the_reference(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= RANDOM_WORLDS; seed++) {
        compare_world(seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_worlds_match_the_reference_exhaustively),
        cmocka_unit_test(random_worlds_match_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
