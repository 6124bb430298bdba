/* plan_step against a plan made the slow way: queues as lists of numbers, every search a scan, the
 * drain and the mountain written out. Small worlds exhaustively, larger ones at random. One dataset
 * of whole documents, L*(L+C) work; limits on parts are not in sight here. */
#include "planner_world.h"
#include "splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 64u
#define BINS_MAX      512u
#define STEPS_MAX     256u
#define SMALL_LENGTH  4u
#define RANDOM_WORLDS 500u
#define SMALL_STREAM  4u
#define FULL_STREAM   6u /* with BALLAST_TEST_FULL */

enum place { UNREAD = 0, IN_BAND, IN_HAND, DELIVERED };

struct list {
    uint32_t items[DOCUMENTS_MAX];
    uint32_t count;
};

/* A document is its number in the stream. */
struct reference {
    const struct plan_options *options;
    const uint32_t *lengths;
    uint32_t documents;
    enum place place[DOCUMENTS_MAX];
    bool left_over[DOCUMENTS_MAX];
    uint64_t nominal[DOCUMENTS_MAX];
    uint32_t read; /* documents read */
    uint64_t offset;
    uint64_t step;
    bool ended;
    /* while draining: bins by work, the next step's first */
    struct list drain[BINS_MAX];
    uint32_t drain_bins;
    uint32_t drain_next;
    /* the step */
    struct list slots[BINS_MAX];
    uint64_t outliers, early, forced;
};

static uint64_t work(const struct reference *r, uint32_t document) {
    uint64_t length = r->lengths[document];
    return length * (length + r->options->model.cost_linear);
}

static uint64_t list_work(const struct reference *r, const struct list *list) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        sum += work(r, list->items[i]);
    }
    return sum;
}

static uint64_t list_tokens(const struct reference *r, const struct list *list) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        sum += r->lengths[list->items[i]];
    }
    return sum;
}

static struct list in_place(const struct reference *r, enum place place) {
    struct list list = {.count = 0};
    for (uint32_t i = 0; i < r->documents; i++) {
        if (r->place[i] == place) {
            list.items[list.count++] = i;
        }
    }
    return list;
}

static uint64_t tokens_in(const struct reference *r, enum place place) {
    struct list list = in_place(r, place);
    return list_tokens(r, &list);
}

static int band(const struct reference *r, uint32_t document) {
    int found = -1;
    for (uint32_t i = 0; i < r->options->bands.bands; i++) {
        if (r->lengths[document] >= r->options->bands.length_min[i]) {
            found = (int)i;
        }
    }
    return found;
}

static bool read_one(struct reference *r) {
    if (r->read == r->documents) {
        r->ended = true;
        return false;
    }
    uint32_t document = r->read++;
    r->nominal[document] = r->offset / r->options->step_tokens;
    r->offset += r->lengths[document];
    r->place[document] = band(r, document) >= 0 ? IN_BAND : IN_HAND;
    return true;
}

static void read_step(struct reference *r) {
    uint64_t step_tokens = r->options->step_tokens;
    for (;;) {
        uint64_t held = tokens_in(r, IN_BAND) + tokens_in(r, IN_HAND);
        if (r->offset >= (r->step + 1) * step_tokens ||
            held > (r->options->backlog_max + 1) * step_tokens || !read_one(r)) {
            return;
        }
    }
}

static void release(struct reference *r, uint32_t document) {
    r->place[document] = IN_HAND;
    r->outliers++;
    r->early += r->nominal[document] > r->step;
}

static void release_bands(struct reference *r) {
    uint32_t group = r->options->micro_batches;
    for (int b = 0; b < (int)r->options->bands.bands; b++) {
        struct list queue = {.count = 0};
        for (uint32_t i = 0; i < r->documents; i++) {
            if (r->place[i] == IN_BAND && band(r, i) == b) {
                queue.items[queue.count++] = i;
            }
        }
        uint32_t next = 0;
        while (queue.count - next >= group) {
            for (uint32_t i = 0; i < group; i++) {
                release(r, queue.items[next++]);
            }
            if (r->options->bands.release == BANDS_RELEASE_ONCE) {
                break;
            }
        }
        for (; next < queue.count; next++) {
            if (r->step >= r->nominal[queue.items[next]] + r->options->bands.age_max) {
                release(r, queue.items[next]);
                r->forced++;
            }
        }
    }
}

static bool drain_is_due(const struct reference *r) {
    uint64_t in_hand = tokens_in(r, IN_HAND);
    uint64_t held = tokens_in(r, IN_BAND) + in_hand;
    return r->ended && (held <= 4 * r->options->step_tokens || in_hand < r->options->step_tokens);
}

static void fill_step(struct reference *r) {
    uint32_t needed = r->options->micro_batches;
    while (in_place(r, IN_HAND).count < needed && in_place(r, IN_BAND).count > 0) {
        release(r, in_place(r, IN_BAND).items[0]);
    }
    while (in_place(r, IN_HAND).count < needed && read_one(r)) {
        uint32_t document = r->read - 1;
        if (r->place[document] == IN_BAND) {
            release(r, document);
        }
    }
}

static bool has_room(const struct reference *r, const struct list *bin, uint32_t document) {
    return list_tokens(r, bin) + r->lengths[document] <= plan_bin_tokens(r->options);
}

static uint32_t choose_bin(const struct reference *r, const struct list *bins, uint32_t count,
                           uint32_t document) {
    bool paper = r->options->search == PACK_SEARCH_PAPER;
    uint32_t best = count;
    uint32_t emptiest = 0;
    for (uint32_t b = 0; b < count; b++) {
        if ((paper || has_room(r, &bins[b], document)) &&
            (best == count || list_work(r, &bins[b]) < list_work(r, &bins[best]))) {
            best = b;
        }
        if (list_tokens(r, &bins[b]) < list_tokens(r, &bins[emptiest])) {
            emptiest = b;
        }
    }
    if (!paper || has_room(r, &bins[best], document)) {
        return best;
    }
    return has_room(r, &bins[emptiest], document) ? emptiest : count;
}

/* Longest first, then in stream order; returns how many found no place, in `left`. */
static struct list pack(const struct reference *r, struct list items, struct list *bins,
                        uint32_t count) {
    struct list left = {.count = 0};
    memset(bins, 0, count * sizeof *bins);
    while (items.count > 0) {
        uint32_t longest = 0;
        for (uint32_t i = 1; i < items.count; i++) {
            if (r->lengths[items.items[i]] > r->lengths[items.items[longest]]) {
                longest = i;
            }
        }
        uint32_t document = items.items[longest];
        items.count--;
        memmove(&items.items[longest], &items.items[longest + 1],
                (items.count - longest) * sizeof items.items[0]);
        uint32_t bin = choose_bin(r, bins, count, document);
        struct list *to = bin < count ? &bins[bin] : &left;
        to->items[to->count++] = document;
    }
    return left;
}

/* Moves the heaviest lists to the front, equals in their order. */
static void sort_by_work(const struct reference *r, struct list *lists, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        struct list moved = lists[i];
        uint32_t j = i;
        for (; j > 0 && list_work(r, &lists[j - 1]) < list_work(r, &moved); j--) {
            lists[j] = lists[j - 1];
        }
        lists[j] = moved;
    }
}

/* Equal-count LPT, then light, rising, heaviest, falling. */
static void deal(struct reference *r, const struct list *micro_batches) {
    uint32_t count = r->options->micro_batches;
    uint32_t share = count / r->options->dp;
    struct list sorted[BINS_MAX];
    struct list dealt[BINS_MAX]; /* replica * share + i, by descending work */
    uint32_t taken[BINS_MAX] = {0};
    uint64_t loads[BINS_MAX] = {0};
    memcpy(sorted, micro_batches, count * sizeof sorted[0]);
    sort_by_work(r, sorted, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t to = UINT32_MAX;
        for (uint32_t dp = 0; dp < r->options->dp; dp++) {
            if (taken[dp] < share && (to == UINT32_MAX || loads[dp] < loads[to])) {
                to = dp;
            }
        }
        loads[to] += list_work(r, &sorted[i]);
        dealt[to * share + taken[to]++] = sorted[i];
    }
    for (uint32_t dp = 0; dp < r->options->dp; dp++) {
        uint32_t position = dp * share;
        for (uint32_t i = share; i > 0; i--) {
            if ((i - 1) % 2 == 0) {
                r->slots[position++] = dealt[dp * share + i - 1];
            }
        }
        for (uint32_t i = 1; i < share; i += 2) {
            r->slots[position++] = dealt[dp * share + i];
        }
    }
}

static void start_drain(struct reference *r) {
    uint32_t micro_batches = r->options->micro_batches;
    struct list all = {.count = 0};
    for (uint32_t i = 0; i < r->documents; i++) {
        if (r->place[i] == IN_BAND || r->place[i] == IN_HAND) {
            all.items[all.count++] = i;
        }
    }
    uint64_t tokens = list_tokens(r, &all);
    uint64_t steps = (tokens + r->options->step_tokens - 1) / r->options->step_tokens;
    while (steps > 1 && (steps - 1) * micro_batches >= all.count) {
        steps--; /* a bin for every document is enough */
    }
    while (pack(r, all, r->drain, (uint32_t)steps * micro_batches).count > 0) {
        steps++;
    }
    r->drain_bins = (uint32_t)steps * micro_batches;
    r->drain_next = 0;
    sort_by_work(r, r->drain, r->drain_bins);
}

static bool take_drain_step(struct reference *r) {
    const struct list *bins = &r->drain[r->drain_next];
    uint32_t documents = 0;
    for (uint32_t b = 0; r->drain_next < r->drain_bins && b < r->options->micro_batches; b++) {
        for (uint32_t i = 0; i < bins[b].count; i++) {
            uint32_t document = bins[b].items[i];
            bool outlier = band(r, document) >= 0 && !r->left_over[document];
            r->outliers += outlier;
            r->early += outlier && r->nominal[document] > r->step;
            documents++;
        }
    }
    if (documents == 0) {
        return false;
    }
    deal(r, bins);
    r->drain_next += r->options->micro_batches;
    return true;
}

/* False when no document is left; the step stands in slots. */
static bool reference_step(struct reference *r) {
    r->outliers = r->early = r->forced = 0;
    if (r->drain_bins > 0) {
        return take_drain_step(r);
    }
    read_step(r);
    release_bands(r);
    if (!drain_is_due(r)) {
        fill_step(r);
    }
    if (tokens_in(r, IN_HAND) + tokens_in(r, IN_BAND) == 0) {
        return false;
    }
    if (drain_is_due(r)) {
        r->outliers = r->early = r->forced = 0;
        start_drain(r);
        return take_drain_step(r);
    }
    struct list bins[BINS_MAX];
    struct list left = pack(r, in_place(r, IN_HAND), bins, r->options->micro_batches);
    for (uint32_t i = 0; i < r->documents; i++) {
        r->place[i] = r->place[i] == IN_HAND ? DELIVERED : r->place[i];
    }
    for (uint32_t i = 0; i < left.count; i++) {
        r->place[left.items[i]] = IN_HAND; /* again at once */
        r->left_over[left.items[i]] = true;
    }
    deal(r, bins);
    return true;
}

static bool same_step(const struct reference *r, const struct step_plan *plan) {
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[m];
        if (micro_batch->document_count != r->slots[m].count ||
            micro_batch->work_ns != list_work(r, &r->slots[m])) {
            return false;
        }
        for (uint32_t i = 0; i < r->slots[m].count; i++) {
            const struct document *document = &plan->documents[micro_batch->document_begin + i];
            if (document->stream_index != r->slots[m].items[i] ||
                document->nominal_step != r->nominal[document->stream_index]) {
                return false;
            }
        }
    }
    return plan->release.outliers == r->outliers && plan->release.early == r->early &&
           plan->release.forced == r->forced;
}

static void print_world(const struct world *world) {
    const struct plan_options *options = &world->options;
    print_error(
        "policy %s N %u dp %u window %u tokens_max %lu T %lu backlog %lu bands %u [%u %u %u] "
        "age %u release %d search %d; lengths",
        policy_name(options->policy), options->micro_batches, options->dp, options->window,
        options->tokens_max, options->step_tokens, options->backlog_max, options->bands.bands,
        options->bands.length_min[0], options->bands.length_min[1], options->bands.length_min[2],
        options->bands.age_max, options->bands.release, options->search);
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

static void compare_streams(const struct world *world, struct pair *pair) {
    static struct reference reference;
    reference = (struct reference){.options = &world->options,
                                   .lengths = world->lengths[0],
                                   .documents = (uint32_t)world->datasets[0].documents};
    plan_state_reset(pair->now);
    for (;;) {
        struct step_plan *plan = NULL;
        bool expected = reference_step(&reference);
        bool same = plan_step(pair->planner, pair->now, pair->next, &plan, NULL) == expected;
        if (!same || (expected && !same_step(&reference, plan))) {
            print_world(world);
            print_error("step %lu differs\n", reference.step);
            world_fail(world, "same steps", __FILE__, __LINE__);
        }
        step_plan_destroy(plan);
        if (!expected) {
            return;
        }
        reference.step++;
        WORLD_CHECK(world, reference.step < STEPS_MAX);
        struct plan_state *swapped = pair->now;
        pair->now = pair->next;
        pair->next = swapped;
    }
}

static struct pair pair_create(const struct world *world) {
    struct pair pair = {
        .planner = planner_create(&world->options, &world->source.source, NULL),
    };
    pair.now = planner_state_create(pair.planner);
    pair.next = planner_state_create(pair.planner);
    return pair;
}

static void pair_destroy(struct pair *pair) {
    plan_state_destroy(pair->now);
    plan_state_destroy(pair->next);
    planner_destroy(pair->planner);
}

static void resolve(struct world *world) {
    struct error error;
    if (plan_options_resolve(&world->options, &error) != 0) {
        print_error("%s\n", error.text);
        world_fail(world, "the options hold together", __FILE__, __LINE__);
    }
}

static void one_dataset(struct world *world) {
    world->datasets[0] = (struct fake_dataset){.lengths = world->lengths[0], .weight = 1};
    fake_source_init(&world->source, world->datasets, 1, 1);
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

static struct plan_options small_options(uint32_t number) {
    static const uint32_t ages[] = {1, 2, 64};
    static const uint64_t tokens[] = {0, 2};
    struct plan_options options = world_options();
    options.policy = POLICY_WLB_BANDS;
    options.window = SMALL_LENGTH;
    options.tokens_max = SMALL_LENGTH + number % 2 * 2;
    options.micro_batches = 2;
    options.dp = 1 + number / 2 % 2;
    options.step_tokens = tokens[number / 4 % 2];
    options.search = number / 8 % 2 == 0 ? PACK_SEARCH_EXACT : PACK_SEARCH_PAPER;
    options.bands.release = number / 16 % 2 == 0 ? BANDS_RELEASE_ONCE : BANDS_RELEASE_ALL;
    options.bands.bands = 1 + number / 32 % 2;
    options.bands.length_min[0] = options.bands.bands == 1 ? 3 : 2;
    options.bands.length_min[1] = 4;
    options.bands.age_max = ages[number / 64 % 3];
    options.backlog_max = number / 192 % 2 == 0 ? 100 : 0;
    options.documents_max = 16;
    options.waiting_max = 16;
    return options;
}

static void small_worlds_match_the_reference_exhaustively(void **state) {
    (void)state;
    static struct world world;
    uint32_t documents_max = getenv("BALLAST_TEST_FULL") != NULL ? FULL_STREAM : SMALL_STREAM;
    for (uint32_t number = 0; number < 384; number++) {
        one_dataset(&world);
        world.seed = number;
        world.options = small_options(number);
        resolve(&world);
        compare_small_streams(&world, documents_max);
    }
}

static void make_lengths(struct world *world, uint64_t *dice) {
    uint32_t limit = plan_part_limit(&world->options);
    uint32_t tail = splitmix_between(dice, 1, 4);
    for (uint64_t i = 0; i < world->datasets[0].documents; i++) {
        bool outlier = splitmix_between(dice, 0, tail) == 0;
        world->lengths[0][i] = splitmix_between(dice, 1, outlier ? limit : limit / 4 + 1);
    }
}

static void compare_world(uint64_t seed) {
    static struct world world;
    uint64_t dice = seed;
    do {
        world_make(&world, splitmix_next(&dice));
    } while (world.options.policy == POLICY_PLAIN);
    world.seed = seed;
    world.options.model.cost_linear = splitmix_between(&dice, 1, 64);
    world.options.refine_gap_ppm = REFINE_NOT;
    world.options.documents_max = WORLD_NO_LIMIT;
    world.options.waiting_max = WORLD_NO_LIMIT;
    resolve(&world);
    one_dataset(&world);
    world.datasets[0].documents = splitmix_between(&dice, 0, WORLD_DOCUMENTS_MAX);
    make_lengths(&world, &dice);
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

/* Worlds that tell apart rules which nearly all others do not: exactly DRAIN_STEPS steps' worth is
 * left when the stream ends. */
static void rare_worlds_match_the_reference(void **state) {
    (void)state;
    const uint64_t seeds[] = {6961};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        compare_world(seeds[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_worlds_match_the_reference_exhaustively),
        cmocka_unit_test(random_worlds_match_the_reference),
        cmocka_unit_test(rare_worlds_match_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
