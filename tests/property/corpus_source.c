/* The source against what it promises, over random small catalogs on disk: every token of every
 * document once per pass and in order, counters that add up at every part, and a stream that only
 * depends on the cursor. */
#include "corpus/source.h"
#include "tests/property/splitmix.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DATASETS = 4, DOCUMENTS = 24, EPOCHS = 3, WORLDS = 300, PARTS = 1 << 16 };

static char folder[64];

static uint32_t random_below(uint64_t *seed, uint32_t n) {
    return splitmix_between(seed, 0, n - 1);
}

struct world {
    uint64_t seed;
    uint32_t count;
    uint32_t documents[DATASETS];
    uint32_t lengths[DATASETS][DOCUMENTS];
    uint64_t weights[DATASETS];
    struct corpus_source_options options;
    struct catalog *catalog;
    struct corpus_source source;
};

/* Tokens that the stream owes of a document. */
static uint32_t owed(const struct world *world, uint32_t dataset, uint32_t document) {
    uint32_t length = world->lengths[dataset][document];
    uint32_t limit = world->options.part_limit;
    if (length > limit && world->options.overlong == OVERLONG_TRUNCATE) {
        return limit;
    }
    return length > limit && world->options.overlong == OVERLONG_DROP ? 0 : length;
}

static void world_write(struct world *world) {
    struct catalog_entry entries[DATASETS];
    char prefixes[DATASETS][128];
    struct error error = {0};
    for (uint32_t i = 0; i < world->count; i++) {
        struct image_options image = {.dtype = i % 2 ? MEGATRON_I32 : MEGATRON_U16,
                                      .documents = world->documents[i],
                                      .lengths = world->lengths[i]};
        snprintf(prefixes[i], sizeof prefixes[i], "%s/%u", folder, i);
        dataset_write(prefixes[i], &image);
        entries[i] = (struct catalog_entry){.name = prefixes[i], .prefix = prefixes[i], .weight = world->weights[i]};
    }
    if (catalog_open(entries, world->count, &world->catalog, &error) < 0) {
        fail_msg("seed %lu: %s", world->seed, error.text);
    }
}

/* A catalog in which every dataset has something to give, or no documents at all. */
static void world_make(struct world *world, uint64_t seed) {
    memset(world, 0, sizeof *world);
    world->seed = seed;
    world->count = 1 + random_below(&seed, DATASETS);
    world->options = (struct corpus_source_options){
        .order = {.seed = seed,
                  .shuffle = (enum order_shuffle)random_below(&seed, 3),
                  .block_documents = 1 + random_below(&seed, 5),
                  .window_blocks = 1 + random_below(&seed, 4)},
        .epochs = 1 + random_below(&seed, EPOCHS),
        .overlong = (enum overlong)random_below(&seed, 3),
        .part_limit = 1 + random_below(&seed, 30)};
    uint32_t longest = 1 + random_below(&seed, 60);
    for (uint32_t i = 0; i < world->count; i++) {
        world->weights[i] = 1 + random_below(&seed, 5);
        world->documents[i] = i > 0 && random_below(&seed, 6) == 0 ? 0 : 1;
        if (world->documents[i] > 0) {
            world->documents[i] += random_below(&seed, DOCUMENTS);
        }
        for (uint32_t j = 0; j < world->documents[i]; j++) {
            world->lengths[i][j] = random_below(&seed, longest);
        }
        if (world->documents[i] > 0) {
            world->lengths[i][random_below(&seed, world->documents[i])] = 1;
        }
    }
    world_write(world);
    struct error error = {0};
    if (corpus_source_init(&world->source, world->catalog, &world->options, &error) < 0) {
        fail_msg("seed %lu: %s", world->seed, error.text);
    }
}

static void world_close(struct world *world) {
    catalog_close(world->catalog);
}

static int next(const struct world *world, struct source_cursor *cursor, uint32_t limit,
                struct document *out) {
    const struct document_source *source = &world->source.source;
    return source->next(source->context, cursor, limit, out);
}

/* Small at one part in four, as when a fixed window fills up; a function of the part's number. */
static uint32_t limit_of(const struct world *world, uint64_t part) {
    uint64_t seed = world->seed ^ part;
    return random_below(&seed, 4) > 0 ? UINT32_MAX : 1 + random_below(&seed, 12);
}

/* What has been given of every document in every pass. */
struct ledger {
    uint32_t given[DATASETS][EPOCHS][DOCUMENTS];
    uint64_t tokens[DATASETS];
    uint64_t documents[DATASETS];
};

static void ledger_take(struct ledger *ledger, const struct world *world,
                        const struct document *part, uint32_t limit, bool goes_on,
                        const struct document *before) {
    assert_true(part->dataset < world->count && part->epoch < world->options.epochs);
    assert_true(part->document < world->documents[part->dataset]);
    uint32_t *given = &ledger->given[part->dataset][part->epoch][part->document];
    uint32_t length = owed(world, part->dataset, (uint32_t)part->document);
    uint32_t bound = limit < world->options.part_limit ? limit : world->options.part_limit;
    uint32_t left = length - *given;
    if (part->offset != *given || part->document_length != length || length <= *given ||
        part->length != (left < bound ? left : bound) || part->stream_index != 0 ||
        part->nominal_step != 0) {
        fail_msg("seed %lu: dataset %u, epoch %lu, document %lu: %u at %u of %u", world->seed,
                 part->dataset, part->epoch, part->document, part->length, part->offset, length);
    }
    assert_true(!goes_on || (before->dataset == part->dataset && before->epoch == part->epoch &&
                             before->document == part->document));
    ledger->documents[part->dataset] += *given == 0;
    ledger->tokens[part->dataset] += part->length;
    *given += part->length;
}

static void assert_conserves(const struct world *world, const struct source_cursor *cursor,
                             const struct ledger *ledger) {
    for (uint32_t i = 0; i < world->count; i++) {
        const struct dataset_cursor *at = &cursor->datasets[i];
        if (at->arrived_tokens != ledger->tokens[i] + at->dropped_tokens ||
            at->arrived_documents != ledger->documents[i] + at->dropped_documents ||
            at->stream_tokens != ledger->tokens[i]) {
            fail_msg("seed %lu: dataset %u does not conserve", world->seed, i);
        }
    }
}

static void assert_complete(const struct world *world, const struct source_cursor *cursor,
                            const struct ledger *ledger) {
    for (uint32_t i = 0; i < world->count; i++) {
        struct dataset_cursor all = {0};
        for (uint64_t epoch = 0; epoch < world->options.epochs; epoch++) {
            for (uint32_t j = 0; j < world->documents[i]; j++) {
                uint32_t length = world->lengths[i][j];
                uint32_t given = owed(world, i, j);
                assert_int_equal(ledger->given[i][epoch][j], given);
                all.arrived_documents++;
                all.arrived_tokens += length;
                all.dropped_documents += given == 0;
                all.dropped_tokens += length - given;
                all.truncated_tokens += given > 0 ? length - given : 0;
                all.overlong_documents += length > world->options.part_limit;
                all.empty_documents += length == 0;
                all.stream_tokens += given;
            }
        }
        all.epoch = world->documents[i] > 0 ? world->options.epochs : 0;
        assert_memory_equal(&cursor->datasets[i], &all, sizeof all);
    }
}

static void every_token_is_given_once_per_pass_and_in_order(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        static struct ledger ledger;
        struct world world;
        struct dataset_cursor datasets[DATASETS] = {0};
        struct document part = {0};
        world_make(&world, seed);
        struct source_cursor cursor = {.datasets = datasets, .dataset_count = world.count};
        memset(&ledger, 0, sizeof ledger);
        for (uint64_t i = 0;; i++) {
            struct document before = part;
            struct error error = {0};
            bool goes_on = cursor.open;
            uint32_t limit = limit_of(&world, i);
            if (!next(&world, &cursor, limit, &part)) {
                break;
            }
            ledger_take(&ledger, &world, &part, limit, goes_on, &before);
            assert_conserves(&world, &cursor, &ledger);
            if (corpus_source_check(&world.source, &cursor, &error) < 0) {
                fail_msg("seed %lu, part %lu: %s", seed, i, error.text);
            }
        }
        assert_complete(&world, &cursor, &ledger);
        struct dataset_cursor end[DATASETS];
        memcpy(end, datasets, sizeof end);
        assert_int_equal(next(&world, &cursor, 1, &part), 0);
        assert_memory_equal(end, datasets, sizeof end);
        world_close(&world);
    }
}

static void copied_cursor_gives_the_same_rest(void **state) {
    (void)state;
    static struct document parts[PARTS];
    for (uint64_t seed = 1; seed <= WORLDS / 4; seed++) {
        struct world world;
        struct dataset_cursor datasets[DATASETS] = {0};
        world_make(&world, seed);
        struct source_cursor cursor = {.datasets = datasets, .dataset_count = world.count};
        uint64_t count = 0;
        while (next(&world, &cursor, limit_of(&world, count), &parts[count])) {
            assert_true(++count < PARTS);
        }
        struct dataset_cursor restart[DATASETS] = {0};
        struct source_cursor front = {.datasets = restart, .dataset_count = world.count};
        for (uint64_t i = 0; i < count; i++) {
            struct dataset_cursor copy[DATASETS];
            struct source_cursor ahead = front;
            struct document part;
            memcpy(copy, restart, sizeof copy);
            ahead.datasets = copy;
            for (uint64_t j = i; j < count && j < i + 20; j++) {
                assert_int_equal(next(&world, &ahead, limit_of(&world, j), &part), 1);
                assert_memory_equal(&part, &parts[j], sizeof part);
            }
            assert_int_equal(next(&world, &front, limit_of(&world, i), &part), 1);
            assert_memory_equal(&part, &parts[i], sizeof part);
        }
        world_close(&world);
    }
}

static void shares_stay_within_one_document_of_the_weights(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS / 4; seed++) {
        struct world world;
        struct dataset_cursor datasets[DATASETS] = {0};
        struct document part;
        world_make(&world, seed);
        world.source.options.epochs = 0;
        struct source_cursor cursor = {.datasets = datasets, .dataset_count = world.count};
        __int128 longest = 0;
        for (uint32_t i = 0; i < world.count; i++) {
            for (uint32_t j = 0; j < world.documents[i]; j++) {
                longest = owed(&world, i, j) > longest ? owed(&world, i, j) : longest;
            }
        }
        for (uint32_t n = 0; n < 2000; n++) {
            __int128 tokens = 0;
            __int128 weights = 0;
            assert_int_equal(next(&world, &cursor, UINT32_MAX, &part), 1);
            for (uint32_t i = 0; i < world.count; i++) {
                tokens += datasets[i].stream_tokens;
                weights += world.documents[i] > 0 ? world.weights[i] : 0;
            }
            for (uint32_t i = 0; i < world.count && !cursor.open; i++) {
                __int128 lag = world.weights[i] * tokens - datasets[i].stream_tokens * weights;
                lag = lag < 0 ? -lag : lag;
                if (world.documents[i] > 0 && lag > longest * weights) {
                    fail_msg("seed %lu, part %u: dataset %u is %ld tokens off its share", seed, n,
                             i, (long)(lag / weights));
                }
            }
        }
        world_close(&world);
    }
}

static void length_is_what_the_stream_gives(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS / 4; seed++) {
        struct world world;
        world_make(&world, seed);
        const struct document_source *source = &world.source.source;
        for (uint32_t i = 0; i < world.count; i++) {
            for (uint32_t j = 0; j < world.documents[i]; j++) {
                assert_int_equal(source->length(source->context, i, j), owed(&world, i, j));
            }
            assert_int_equal(source->length(source->context, i, world.documents[i]), 0);
        }
        assert_int_equal(source->length(source->context, world.count, 0), 0);
        world_close(&world);
    }
}

static int make_folder(void **state) {
    (void)state;
    test_folder_make(folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_is_given_once_per_pass_and_in_order),
        cmocka_unit_test(copied_cursor_gives_the_same_rest),
        cmocka_unit_test(shares_stay_within_one_document_of_the_weights),
        cmocka_unit_test(length_is_what_the_stream_gives),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
