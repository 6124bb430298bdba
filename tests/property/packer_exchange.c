/* The search for a trade against all trades, on all pairs of small bins. */
#include "packer/exchange.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT_MAX 12u

struct world {
    struct exchange_entry heavy[COUNT_MAX];
    struct exchange_entry light[COUNT_MAX];
    struct exchange_bin bins[2];
};

static int entry_compare(const void *a, const void *b) {
    const struct exchange_entry *x = a;
    const struct exchange_entry *y = b;
    return x->work < y->work ? 1 : x->work > y->work ? -1 : 0;
}

static struct exchange_bin bin_of(struct exchange_entry *entries, uint32_t count, uint64_t room) {
    struct exchange_bin bin = {entries, count, 0, room};
    qsort(entries, count, sizeof *entries, entry_compare);
    for (uint32_t i = 0; i < count; i++) {
        entries[i].item = i;
        bin.work += entries[i].work;
    }
    return bin;
}

/* The bins of a world, the heavier first. */
static void world_finish(struct world *world, const uint32_t counts[2], const uint64_t rooms[2]) {
    struct exchange_bin a = bin_of(world->heavy, counts[0], rooms[0]);
    struct exchange_bin b = bin_of(world->light, counts[1], rooms[1]);
    world->bins[0] = a.work >= b.work ? a : b;
    world->bins[1] = a.work >= b.work ? b : a;
}

static uint32_t chosen(uint32_t set) {
    return (uint32_t)__builtin_popcount(set);
}

/* The maximum after trading the entries of two sets, as bit masks; UINT64_MAX without the room. */
static uint64_t traded_max(const struct world *world, uint32_t out, uint32_t in) {
    const struct exchange_bin *heavy = &world->bins[0];
    const struct exchange_bin *light = &world->bins[1];
    uint64_t heavy_work = heavy->work;
    uint64_t light_work = light->work;
    int64_t tokens = 0;
    for (uint32_t i = 0; i < COUNT_MAX; i++) {
        if (out >> i & 1) {
            heavy_work -= heavy->entries[i].work;
            light_work += heavy->entries[i].work;
            tokens += heavy->entries[i].length;
        }
        if (in >> i & 1) {
            heavy_work += light->entries[i].work;
            light_work -= light->entries[i].work;
            tokens -= light->entries[i].length;
        }
    }
    if (tokens > (int64_t)light->room || -tokens > (int64_t)heavy->room) {
        return UINT64_MAX;
    }
    return heavy_work > light_work ? heavy_work : light_work;
}

static bool is_single(uint32_t out, uint32_t in) {
    return chosen(out) == 1 && chosen(in) <= 1;
}

static bool is_pair(uint32_t out, uint32_t in) {
    return (chosen(out) == 2 && chosen(in) <= 1) || (chosen(out) == 1 && chosen(in) == 2);
}

static uint64_t literal_best(const struct world *world, bool (*allowed)(uint32_t, uint32_t)) {
    uint64_t best = world->bins[0].work;
    for (uint32_t out = 1; out < 1u << world->bins[0].count; out++) {
        for (uint32_t in = 0; chosen(out) <= 2 && in < 1u << world->bins[1].count; in++) {
            uint64_t max = allowed(out, in) ? traded_max(world, out, in) : UINT64_MAX;
            best = max < best ? max : best;
        }
    }
    return best;
}

static uint32_t set_of(const uint32_t *positions, uint32_t count) {
    uint32_t set = 0;
    for (uint32_t i = 0; i < count; i++) {
        set |= 1u << positions[i];
    }
    return set;
}

/* The trade that a search found is of its kind and does what it says. */
static const char *trade_fault(const struct world *world, const struct exchange *best,
                               bool (*allowed)(uint32_t, uint32_t)) {
    uint32_t out = set_of(best->out, best->out_count);
    uint32_t in = set_of(best->in, best->in_count);
    if (chosen(out) != best->out_count || chosen(in) != best->in_count || !allowed(out, in)) {
        return "no trade of this kind";
    }
    if ((best->out_count == 2 && best->out[0] >= best->out[1]) ||
        (best->in_count == 2 && best->in[0] >= best->in[1])) {
        return "positions do not ascend";
    }
    if (out >> world->bins[0].count != 0 || in >> world->bins[1].count != 0) {
        return "no such entry";
    }
    if (traded_max(world, out, in) != best->max) {
        return "the maximum is another, or the room is not there";
    }
    return NULL;
}

static const char *search_fault(const struct world *world, exchange_search *search,
                                bool (*allowed)(uint32_t, uint32_t), bool exact) {
    uint64_t before = world->bins[0].work;
    struct exchange best = {.max = before};
    struct exchange_limits limits = {UINT64_MAX, 0};
    bool found = search(&world->bins[0], &world->bins[1], &limits, &best);
    uint64_t literal = literal_best(world, allowed);
    if (found != (best.max < before)) {
        return "found and improved are not the same";
    }
    if (exact ? best.max != literal : best.max < literal) {
        return "not the best";
    }
    return found ? trade_fault(world, &best, allowed) : NULL;
}

static void check_world(const struct world *world, bool exact, const char *name, uint64_t number) {
    const char *single = search_fault(world, exchange_single, is_single, exact);
    const char *pair = search_fault(world, exchange_pair, is_pair, exact);
    if (single != NULL || pair != NULL) {
        fail_msg("%s %" PRIu64 ": single: %s; pair: %s", name, number,
                 single != NULL ? single : "right", pair != NULL ? pair : "right");
    }
}

static struct exchange_entry entry_of(uint32_t length) {
    return (struct exchange_entry){.work = (uint64_t)length * (length + 4), .length = length};
}

static void exchange_finds_the_best_trade_in_all_small_worlds(void **state) {
    (void)state;
    const uint32_t alphabet[] = {1, 2, 3, 5, 8};
    for (uint32_t number = 0; number < 5 * 5 * 5 * 5 * 5 * 5; number++) {
        uint32_t lengths[6];
        uint32_t rest = number;
        for (uint32_t i = 0; i < 6; i++) {
            lengths[i] = alphabet[rest % 5];
            rest /= 5;
        }
        for (uint32_t heavy = 0; heavy <= 3; heavy++) {
            const uint64_t rooms[2] = {number % 3, (heavy + number) % 5};
            const uint32_t counts[2] = {heavy, 6 - heavy > 3 ? 3 : 6 - heavy};
            struct world world;
            for (uint32_t i = 0; i < 3; i++) {
                world.heavy[i] = entry_of(lengths[i]);
                world.light[i] = entry_of(lengths[3 + i]);
            }
            world_finish(&world, counts, rooms);
            check_world(&world, true, "small world", number);
        }
    }
}

static void draw_world(struct world *world, uint64_t seed, bool monotone) {
    uint64_t random = seed;
    uint32_t counts[2];
    uint64_t rooms[2];
    uint32_t length_max = seed % 2 ? 12 : 100000;
    for (int bin = 0; bin < 2; bin++) {
        counts[bin] = splitmix_between(&random, 0, COUNT_MAX - 4);
        rooms[bin] = seed % 3 ? splitmix_between(&random, 0, length_max / 4) : 1u << 30;
        for (uint32_t i = 0; i < counts[bin]; i++) {
            struct exchange_entry entry = entry_of(splitmix_between(&random, 1, length_max));
            if (!monotone) {
                entry.work = splitmix_next(&random) % (seed % 5 ? 50 : UINT64_C(1) << 58);
            }
            (bin == 0 ? world->heavy : world->light)[i] = entry;
        }
    }
    world_finish(world, counts, rooms);
}

static void exchange_finds_the_best_trade_in_random_worlds(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        struct world world;
        draw_world(&world, seed, true);
        check_world(&world, true, "seed", seed);
    }
}

static void exchange_makes_no_wrong_trade_when_work_contradicts_length(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        struct world world;
        draw_world(&world, seed, false);
        check_world(&world, false, "seed", seed);
    }
}

static void exchange_spends_no_more_probes_than_it_has(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct world world;
        draw_world(&world, seed, true);
        for (uint64_t probes = 0; probes < 20; probes++) {
            struct exchange best = {.max = world.bins[0].work};
            struct exchange_limits limits = {probes, 0};
            (void)exchange_single(&world.bins[0], &world.bins[1], &limits, &best);
            assert_true(limits.probes <= probes);
            assert_true(probes - limits.probes <= world.bins[0].count + 1);
            limits.probes = probes;
            (void)exchange_pair(&world.bins[0], &world.bins[1], &limits, &best);
            assert_true(limits.probes <= probes);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_finds_the_best_trade_in_all_small_worlds),
        cmocka_unit_test(exchange_finds_the_best_trade_in_random_worlds),
        cmocka_unit_test(exchange_makes_no_wrong_trade_when_work_contradicts_length),
        cmocka_unit_test(exchange_spends_no_more_probes_than_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
