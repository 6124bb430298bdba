/* Real tokenized text: what its description says, and a blend of 2:1:1 over three passes. */
#include "corpus/source.h"
#include "corpus/verify.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { DATASETS = 3, EPOCHS = 3, WINDOW = 131072 };

static const struct {
    const char *name;
    uint64_t weight;
    struct verify_result verified;
} corpora[DATASETS] = {
    {"pydoc",
     2,
     {.documents = 497,
      .tokens = 3554227,
      .bytes = 7108454,
      .token_max = 50256,
      .length_p50 = 3144,
      .length_p90 = 20126,
      .length_p99 = 42252,
      .length_max = 72059}},
    {"perl",
     1,
     {.documents = 206,
      .tokens = 3093167,
      .bytes = 6186334,
      .token_max = 50256,
      .length_p50 = 5797,
      .length_p90 = 31630,
      .length_p99 = 287102,
      .length_max = 295990}},
    {"man",
     1,
     {.documents = 1113,
      .tokens = 2599311,
      .bytes = 5198622,
      .token_max = 50256,
      .length_p50 = 1268,
      .length_p90 = 4676,
      .length_p99 = 17273,
      .length_max = 71582}},
};

static struct catalog *catalog;

static void real_datasets_are_as_described(void **state) {
    (void)state;
    for (uint32_t i = 0; i < DATASETS; i++) {
        struct verify_result result;
        struct error error = {0};
        if (verify_dataset(catalog_dataset(catalog, i), 50257, NULL, NULL, NULL, &result, &error) <
            0) {
            fail_msg("%s", error.text);
        }
        memset(result.fingerprint, 0, sizeof result.fingerprint);
        assert_memory_equal(&result, &corpora[i].verified, sizeof result);
        assert_int_equal(
            verify_dataset(catalog_dataset(catalog, i), 50256, NULL, NULL, NULL, &result, &error),
            -EBADMSG);
    }
}

static void assert_shares(const struct dataset_cursor *datasets) {
    int64_t total = 0;
    int64_t longest = 295990;
    for (uint32_t i = 0; i < DATASETS; i++) {
        total += (int64_t)datasets[i].stream_tokens;
    }
    for (uint32_t i = 0; i < DATASETS; i++) {
        int64_t lag = (int64_t)corpora[i].weight * total - 4 * (int64_t)datasets[i].stream_tokens;
        assert_true(lag <= 4 * longest && -lag <= 4 * longest);
    }
}

static void real_blend_gives_every_token_once_per_pass(void **state) {
    (void)state;
    static uint32_t given[DATASETS][EPOCHS][1113];
    struct corpus_source source;
    struct corpus_source_options options = {
        .order = {.seed = 1, .shuffle = ORDER_BLOCK, .block_documents = 256, .window_blocks = 64},
        .epochs = EPOCHS,
        .part_limit = WINDOW};
    struct dataset_cursor datasets[DATASETS] = {0};
    struct source_cursor cursor = {.datasets = datasets, .dataset_count = DATASETS};
    struct document part;
    bool all_running = true;
    assert_int_equal(corpus_source_init(&source, catalog, &options, NULL), 0);
    while (source.source.next(source.source.context, &cursor, UINT32_MAX, &part)) {
        uint32_t *so_far = &given[part.dataset][part.epoch][part.document];
        assert_int_equal(part.offset, *so_far);
        *so_far += part.length;
        for (uint32_t i = 0; i < DATASETS; i++) {
            all_running = all_running && datasets[i].epoch < EPOCHS;
        }
        if (all_running && !cursor.open) {
            assert_shares(datasets);
        }
    }
    for (uint32_t i = 0; i < DATASETS; i++) {
        const struct dataset *dataset = catalog_dataset(catalog, i);
        assert_int_equal(datasets[i].arrived_tokens, EPOCHS * dataset_tokens(dataset));
        assert_int_equal(datasets[i].stream_tokens, EPOCHS * dataset_tokens(dataset));
        for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
            for (uint64_t j = 0; j < dataset_documents(dataset); j++) {
                assert_int_equal(given[i][epoch][j], dataset_length(dataset, j));
            }
        }
    }
}

int main(void) {
    struct catalog_entry entries[DATASETS];
    struct error error = {0};
    for (uint32_t i = 0; i < DATASETS; i++) {
        static char prefixes[DATASETS][512];
        snprintf(prefixes[i], sizeof prefixes[i], "%s/data/corpus/%s", BALLAST_SHARED,
                 corpora[i].name);
        entries[i] = (struct catalog_entry){
            .name = corpora[i].name, .prefix = prefixes[i], .weight = corpora[i].weight};
    }
    if (access(BALLAST_SHARED "/data/corpus", R_OK) < 0) {
        fprintf(stderr, "skipped: no corpus in %s/data/corpus\n", BALLAST_SHARED);
        return 77;
    }
    if (catalog_open(entries, DATASETS, &catalog, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_datasets_are_as_described),
        cmocka_unit_test(real_blend_gives_every_token_once_per_pass),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    catalog_close(catalog);
    return failed;
}
