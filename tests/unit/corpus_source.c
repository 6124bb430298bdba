/* The source by example: the cases that a reader of source.h would ask about. */
#include "corpus/source.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char folder[64];

struct stream {
    struct catalog *catalog;
    struct corpus_source source;
    struct dataset_cursor datasets[3];
    struct source_cursor cursor;
    struct error error;
};

static const struct corpus_source_options in_file_order = {
    .order = {.shuffle = ORDER_NONE}, .epochs = 1, .part_limit = 10};

/* A dataset called by its number from these lengths, `count` of them. */
static struct catalog_entry entry_write(uint32_t number, uint64_t weight, const uint32_t *lengths,
                                        uint32_t count) {
    static char prefixes[3][128];
    struct image_options options = {.dtype = MEGATRON_U16, .documents = count, .lengths = lengths};
    snprintf(prefixes[number], sizeof prefixes[number], "%s/%u", folder, number);
    dataset_write(prefixes[number], &options);
    return (struct catalog_entry){.name = "corpus", .prefix = prefixes[number], .weight = weight};
}

static int stream_open(struct stream *stream, const struct catalog_entry *entries, uint32_t count,
                       const struct corpus_source_options *options) {
    memset(stream, 0, sizeof *stream);
    if (catalog_open(entries, count, &stream->catalog, &stream->error) < 0) {
        fail_msg("%s", stream->error.text);
    }
    stream->cursor.datasets = stream->datasets;
    stream->cursor.dataset_count = count;
    return corpus_source_init(&stream->source, stream->catalog, options, &stream->error);
}

static void stream_open_one(struct stream *stream, const uint32_t *lengths, uint32_t count,
                            const struct corpus_source_options *options) {
    struct catalog_entry entry = entry_write(0, 1, lengths, count);
    if (stream_open(stream, &entry, 1, options) < 0) {
        fail_msg("%s", stream->error.text);
    }
}

static void assert_gives(struct stream *stream, uint32_t limit, uint64_t document, uint32_t offset,
                         uint32_t length) {
    struct document part;
    const struct document_source *source = &stream->source.source;
    assert_int_equal(source->next(source->context, &stream->cursor, limit, &part), 1);
    assert_int_equal(part.document, document);
    assert_int_equal(part.offset, offset);
    assert_int_equal(part.length, length);
}

static void assert_ends(struct stream *stream) {
    struct document part;
    const struct document_source *source = &stream->source.source;
    assert_int_equal(source->next(source->context, &stream->cursor, 1, &part), 0);
    assert_int_equal(source->next(source->context, &stream->cursor, 1, &part), 0);
    catalog_close(stream->catalog);
}

static void overlong_document_is_split_into_parts_of_the_limit(void **state) {
    (void)state;
    static const uint32_t lengths[] = {3, 25, 10};
    struct stream stream;
    stream_open_one(&stream, lengths, 3, &in_file_order);
    assert_gives(&stream, UINT32_MAX, 0, 0, 3);
    assert_gives(&stream, UINT32_MAX, 1, 0, 10);
    assert_true(stream.cursor.open);
    assert_int_equal(stream.cursor.open_offset, 10);
    assert_gives(&stream, UINT32_MAX, 1, 10, 10);
    assert_gives(&stream, UINT32_MAX, 1, 20, 5);
    assert_false(stream.cursor.open);
    assert_int_equal(stream.cursor.open_length, 0);
    assert_gives(&stream, UINT32_MAX, 2, 0, 10);
    assert_int_equal(stream.datasets[0].overlong_documents, 1);
    assert_int_equal(stream.datasets[0].arrived_documents, 3);
    assert_int_equal(stream.datasets[0].arrived_tokens, 38);
    assert_ends(&stream);
}

static void smaller_limit_cuts_further(void **state) {
    (void)state;
    static const uint32_t lengths[] = {25};
    struct stream stream;
    stream_open_one(&stream, lengths, 1, &in_file_order);
    assert_gives(&stream, 4, 0, 0, 4);
    assert_gives(&stream, 11, 0, 4, 10);
    assert_gives(&stream, 1, 0, 14, 1);
    assert_gives(&stream, 10, 0, 15, 10);
    assert_ends(&stream);
}

static void truncated_document_ends_at_the_limit(void **state) {
    (void)state;
    static const uint32_t lengths[] = {25, 10};
    struct corpus_source_options options = in_file_order;
    struct stream stream;
    options.overlong = OVERLONG_TRUNCATE;
    stream_open_one(&stream, lengths, 2, &options);
    assert_gives(&stream, 4, 0, 0, 4);
    assert_int_equal(stream.cursor.open_length, 10);
    assert_gives(&stream, UINT32_MAX, 0, 4, 6);
    assert_gives(&stream, UINT32_MAX, 1, 0, 10);
    assert_int_equal(stream.datasets[0].overlong_documents, 1);
    assert_int_equal(stream.datasets[0].truncated_tokens, 15);
    assert_int_equal(stream.datasets[0].dropped_tokens, 15);
    assert_int_equal(stream.datasets[0].dropped_documents, 0);
    assert_int_equal(stream.datasets[0].arrived_documents, 2);
    assert_int_equal(stream.datasets[0].arrived_tokens, 35);
    assert_int_equal(stream.datasets[0].stream_tokens, 20);
    assert_ends(&stream);
}

static void dropped_and_empty_documents_are_counted(void **state) {
    (void)state;
    static const uint32_t lengths[] = {0, 11, 10, 0};
    struct corpus_source_options options = in_file_order;
    struct stream stream;
    options.overlong = OVERLONG_DROP;
    stream_open_one(&stream, lengths, 4, &options);
    assert_gives(&stream, UINT32_MAX, 2, 0, 10);
    assert_ends(&stream);
    assert_int_equal(stream.datasets[0].overlong_documents, 1);
    assert_int_equal(stream.datasets[0].empty_documents, 2);
    assert_int_equal(stream.datasets[0].dropped_documents, 3);
    assert_int_equal(stream.datasets[0].dropped_tokens, 11);
    assert_int_equal(stream.datasets[0].arrived_documents, 4);
    assert_int_equal(stream.datasets[0].arrived_tokens, 21);
    assert_int_equal(stream.datasets[0].epoch, 1);
}

static void overlong_document_is_refused_by_name(void **state) {
    (void)state;
    static const uint32_t lengths[] = {3, 0, 11, 12};
    struct corpus_source_options options = in_file_order;
    struct catalog_entry entry = entry_write(0, 1, lengths, 4);
    struct stream stream;
    options.overlong = OVERLONG_REFUSE;
    assert_int_equal(stream_open(&stream, &entry, 1, &options), -EINVAL);
    assert_non_null(strstr(stream.error.text, "document 2, at offset 6, has 11 tokens"));
    catalog_close(stream.catalog);
    options.part_limit = 12;
    stream_open_one(&stream, lengths, 4, &options);
    catalog_close(stream.catalog);
}

static void dataset_that_gives_nothing_is_refused_by_name(void **state) {
    (void)state;
    static const uint32_t nothing[] = {0, 11, 0};
    static const uint32_t something[] = {1};
    struct corpus_source_options options = in_file_order;
    struct catalog_entry entries[] = {entry_write(0, 1, something, 1),
                                      entry_write(1, 1, nothing, 3)};
    struct stream stream;
    options.overlong = OVERLONG_DROP;
    assert_int_equal(stream_open(&stream, entries, 2, &options), -EINVAL);
    assert_non_null(strstr(stream.error.text, "all 3 documents are empty or over the limit of 10"));
    catalog_close(stream.catalog);
}

static void dataset_without_documents_is_left_out(void **state) {
    (void)state;
    static const uint32_t something[] = {1, 2};
    struct corpus_source_options options = in_file_order;
    struct catalog_entry entries[] = {entry_write(0, 100, NULL, 0),
                                      entry_write(1, 1, something, 2)};
    struct stream stream;
    options.epochs = 0;
    assert_int_equal(stream_open(&stream, entries, 2, &options), 0);
    for (int i = 0; i < 10; i++) {
        assert_gives(&stream, UINT32_MAX, (uint64_t)(i % 2), 0, 1 + (uint32_t)(i % 2));
    }
    catalog_close(stream.catalog);
    assert_int_equal(stream_open(&stream, entries, 1, &options), -EINVAL);
    assert_non_null(strstr(stream.error.text, "no documents"));
    catalog_close(stream.catalog);
}

static void finished_dataset_leaves_the_rest_in_proportion(void **state) {
    (void)state;
    static const uint32_t few[] = {5, 5};
    static uint32_t many[400];
    struct stream stream;
    for (size_t i = 0; i < 400; i++) {
        many[i] = 1;
    }
    struct catalog_entry entries[] = {entry_write(0, 50, few, 2), entry_write(1, 3, many, 400),
                                      entry_write(2, 1, many, 400)};
    assert_int_equal(stream_open(&stream, entries, 3, &in_file_order), 0);
    while (stream.datasets[0].epoch + stream.datasets[1].epoch + stream.datasets[2].epoch < 2) {
        struct document part;
        const struct document_source *source = &stream.source.source;
        assert_int_equal(source->next(source->context, &stream.cursor, 9, &part), 1);
        int64_t lag = (int64_t)stream.datasets[1].stream_tokens -
                      3 * (int64_t)stream.datasets[2].stream_tokens;
        assert_in_range(lag + 4, 0, 8);
    }
    assert_int_equal(stream.datasets[0].stream_tokens, 10);
    catalog_close(stream.catalog);
}

static void ties_go_to_the_lower_dataset(void **state) {
    (void)state;
    static const uint32_t same[] = {4, 4, 4};
    struct catalog_entry entries[] = {entry_write(0, 1, same, 3), entry_write(1, 1, same, 3)};
    struct stream stream;
    assert_int_equal(stream_open(&stream, entries, 2, &in_file_order), 0);
    for (uint32_t i = 0; i < 6; i++) {
        struct document part;
        const struct document_source *source = &stream.source.source;
        assert_int_equal(source->next(source->context, &stream.cursor, 9, &part), 1);
        assert_int_equal(part.dataset, i % 2);
    }
    assert_ends(&stream);
}

/* Tokens that the next `parts` parts have of each dataset. */
static void count_parts(struct stream *stream, uint32_t parts, uint32_t tokens[3]) {
    memset(tokens, 0, 3 * sizeof tokens[0]);
    for (uint32_t i = 0; i < parts; i++) {
        struct document part;
        const struct document_source *source = &stream->source.source;
        assert_int_equal(source->next(source->context, &stream->cursor, 9, &part), 1);
        tokens[part.dataset] += part.length;
    }
}

/* What the planner does where a section with new weights begins. */
static void next_blend(struct stream *stream) {
    stream->cursor.blend++;
    for (uint32_t i = 0; i < 3; i++) {
        stream->datasets[i].stream_tokens = 0;
    }
}

static void an_appended_dataset_takes_its_share_and_does_not_catch_up(void **state) {
    (void)state;
    static const uint64_t weights[] = {3, 1, 0, 1, 1, 2, 5, 2, 1};
    static uint32_t lengths[2000];
    struct corpus_source_options options = in_file_order;
    struct stream stream;
    uint32_t tokens[3];
    for (size_t i = 0; i < 2000; i++) {
        lengths[i] = 1;
    }
    options.weights = weights;
    options.blends = 3;
    struct catalog_entry entries[] = {entry_write(0, 3, lengths, 2000),
                                      entry_write(1, 1, lengths, 2000),
                                      entry_write(2, 9, lengths, 2000)};
    assert_int_equal(stream_open(&stream, entries, 3, &options), 0);
    count_parts(&stream, 400, tokens);
    assert_memory_equal(tokens, ((uint32_t[3]){300, 100, 0}), sizeof tokens);
    next_blend(&stream);
    count_parts(&stream, 40, tokens); /* at once, and not only the new one */
    assert_memory_equal(tokens, ((uint32_t[3]){10, 10, 20}), sizeof tokens);
    next_blend(&stream);
    count_parts(&stream, 80, tokens);
    assert_memory_equal(tokens, ((uint32_t[3]){50, 20, 10}), sizeof tokens);
    assert_int_equal(corpus_source_check(&stream.source, &stream.cursor, NULL), 0);
    next_blend(&stream);
    assert_int_equal(corpus_source_check(&stream.source, &stream.cursor, &stream.error), -EBADMSG);
    assert_non_null(strstr(stream.error.text, "weights number 3, the config has 3"));
    catalog_close(stream.catalog);
}

/* The stream has an end before the section that goes on, and there must be something to begin. */
static void a_blend_ends_with_its_own_datasets(void **state) {
    (void)state;
    static const uint64_t weights[] = {1, 0, 1, 1};
    static const uint32_t lengths[] = {4, 4, 4};
    struct corpus_source_options options = in_file_order;
    struct stream stream;
    options.weights = weights;
    options.blends = 2;
    struct catalog_entry entries[] = {entry_write(0, 1, lengths, 3), entry_write(1, 1, lengths, 2)};
    assert_int_equal(stream_open(&stream, entries, 2, &options), 0);
    for (uint64_t i = 0; i < 3; i++) {
        assert_gives(&stream, 9, i, 0, 4);
    }
    struct document part;
    const struct document_source *source = &stream.source.source;
    assert_int_equal(source->next(source->context, &stream.cursor, 9, &part), 0);
    next_blend(&stream);
    assert_gives(&stream, 9, 0, 0, 4);
    assert_gives(&stream, 9, 1, 0, 4);
    assert_ends(&stream);
    struct catalog_entry nothing[] = {entry_write(0, 1, lengths, 0), entry_write(1, 1, lengths, 2)};
    assert_int_equal(stream_open(&stream, nothing, 2, &options), -EINVAL);
    catalog_close(stream.catalog);
}

static void passes_read_in_different_orders(void **state) {
    (void)state;
    static uint32_t lengths[64];
    struct corpus_source_options options = {
        .order = {.seed = 5, .shuffle = ORDER_FULL}, .epochs = 2, .part_limit = 10};
    struct stream stream;
    uint64_t pass[2][64];
    uint32_t same = 0;
    for (size_t i = 0; i < 64; i++) {
        lengths[i] = 1;
    }
    stream_open_one(&stream, lengths, 64, &options);
    for (uint32_t i = 0; i < 128; i++) {
        struct document part;
        const struct document_source *source = &stream.source.source;
        assert_int_equal(source->next(source->context, &stream.cursor, 9, &part), 1);
        assert_int_equal(part.epoch, i / 64);
        pass[i / 64][i % 64] = part.document;
    }
    for (uint32_t i = 0; i < 64; i++) {
        same += pass[0][i] == pass[1][i];
    }
    assert_in_range(same, 0, 8);
    assert_ends(&stream);
}

static void impossible_cursors_are_refused(void **state) {
    (void)state;
    static const uint32_t lengths[] = {3, 25, 10};
    struct corpus_source_options options = in_file_order;
    struct stream stream;
    options.epochs = 2;
    stream_open_one(&stream, lengths, 3, &options);
    assert_gives(&stream, UINT32_MAX, 0, 0, 3);
    assert_gives(&stream, UINT32_MAX, 1, 0, 10);
    assert_int_equal(corpus_source_check(&stream.source, &stream.cursor, NULL), 0);
    struct source_cursor cursors[9];
    struct dataset_cursor datasets[9];
    for (size_t i = 0; i < 9; i++) {
        cursors[i] = stream.cursor;
        datasets[i] = stream.datasets[0];
        cursors[i].datasets = &datasets[i];
    }
    datasets[0].position = 3;
    datasets[1].epoch = 2;
    datasets[2].position = 1;
    cursors[3].dataset_count = 2;
    cursors[4].open_document = 2;
    cursors[5].open_offset = 25;
    cursors[6].open_length = 24;
    cursors[7].open_dataset = 1;
    cursors[8].open = false;
    for (size_t i = 0; i < 9; i++) {
        struct error error = {0};
        assert_int_equal(corpus_source_check(&stream.source, &cursors[i], &error), -EBADMSG);
        assert_non_null(strstr(error.text, "; restore with"));
    }
    catalog_close(stream.catalog);
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
        cmocka_unit_test(overlong_document_is_split_into_parts_of_the_limit),
        cmocka_unit_test(smaller_limit_cuts_further),
        cmocka_unit_test(truncated_document_ends_at_the_limit),
        cmocka_unit_test(dropped_and_empty_documents_are_counted),
        cmocka_unit_test(overlong_document_is_refused_by_name),
        cmocka_unit_test(dataset_that_gives_nothing_is_refused_by_name),
        cmocka_unit_test(dataset_without_documents_is_left_out),
        cmocka_unit_test(finished_dataset_leaves_the_rest_in_proportion),
        cmocka_unit_test(ties_go_to_the_lower_dataset),
        cmocka_unit_test(an_appended_dataset_takes_its_share_and_does_not_catch_up),
        cmocka_unit_test(a_blend_ends_with_its_own_datasets),
        cmocka_unit_test(passes_read_in_different_orders),
        cmocka_unit_test(impossible_cursors_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
