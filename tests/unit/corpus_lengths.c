/* corpus_lengths: a list of lengths streams like the corpus that has them, a cut stream has a cut
 * at every window and nothing else changed, files are refused by line. */
#include "corpus/lengths.h"
#include "tests/property/splitmix.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS 300u
#define LIMIT     64u

static char folder[64];

static const struct corpus_source_options reading = {
    .order = {.seed = 9, .block_documents = 8, .window_blocks = 4},
    .epochs = 2,
    .part_limit = LIMIT};

struct stream {
    struct dataset_cursor dataset;
    struct source_cursor cursor;
    const struct document_source *source;
};

static void stream_begin(struct stream *stream, const struct document_source *source) {
    memset(stream, 0, sizeof *stream);
    stream->source = source;
    stream->cursor.datasets = &stream->dataset;
    stream->cursor.dataset_count = 1;
}

static bool stream_next(struct stream *stream, struct document *out) {
    return stream->source->next(stream->source->context, &stream->cursor, UINT32_MAX, out) == 1;
}

static void lengths_of(uint64_t seed, uint32_t *lengths) {
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = splitmix_between(&seed, 0, splitmix_between(&seed, 0, 3) == 0 ? 200 : 20);
    }
}

static void a_list_streams_like_the_corpus_that_has_its_lengths(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint32_t lengths[DOCUMENTS];
        char prefix[96];
        struct catalog *catalog;
        struct corpus_source corpus;
        struct lengths_source list;
        struct stream a;
        struct stream b;
        struct document of_corpus = {0};
        struct document of_list = {0};
        struct corpus_source_options options = reading;
        options.order.shuffle = (enum order_shuffle)(seed % 3);
        options.overlong = (enum overlong)(seed / 3 % 3);
        lengths_of(seed, lengths);
        (void)snprintf(prefix, sizeof prefix, "%s/list", folder);
        dataset_write(prefix, &(struct image_options){.dtype = MEGATRON_U16,
                                                      .documents = DOCUMENTS,
                                                      .lengths = lengths});
        assert_int_equal(
            catalog_open(&(struct catalog_entry){.name = "list", .prefix = prefix, .weight = 1}, 1,
                         &catalog, NULL),
            0);
        assert_int_equal(corpus_source_init(&corpus, catalog, &options, NULL), 0);
        assert_int_equal(lengths_source_init(&list, lengths, DOCUMENTS, &options, NULL), 0);
        stream_begin(&a, &corpus.source);
        stream_begin(&b, &list.source);
        bool more = true;
        while (more) {
            more = stream_next(&a, &of_corpus);
            assert_int_equal(stream_next(&b, &of_list), more);
            assert_memory_equal(&of_list, &of_corpus, sizeof of_list);
            assert_memory_equal(&b.dataset, &a.dataset, sizeof a.dataset);
        }
        for (uint64_t i = 0; i <= DOCUMENTS; i++) {
            assert_int_equal(list.source.length(&list, 0, i), corpus.source.length(&corpus, 0, i));
        }
        catalog_close(catalog);
    }
}

static void a_distribution_does_not_end_and_follows_its_seed(void **state) {
    (void)state;
    const struct distribution *wlb128k = distribution_find("wlb128k");
    struct corpus_source_options options = {.order = {.seed = 5}, .part_limit = 131072};
    struct lengths_source source;
    struct stream stream;
    struct document document;
    assert_int_equal(lengths_source_init_drawn(&source, wlb128k, &options, NULL), 0);
    stream_begin(&stream, &source.source);
    for (uint64_t i = 0; i < 10000; i++) {
        assert_true(stream_next(&stream, &document));
        assert_int_equal(document.document, i);
        assert_int_equal(document.length, distribution_length(wlb128k, 5, i));
        assert_int_equal(source.source.length(&source, 0, i), document.length);
    }
}

static void a_distribution_follows_the_overlong_rule(void **state) {
    (void)state;
    const struct distribution *wlb128k = distribution_find("wlb128k");
    const uint32_t longest = distribution_length_max(wlb128k);
    struct corpus_source_options options = {.order = {.seed = 5}, .part_limit = longest};
    struct lengths_source source;
    struct error error = {0};
    options.overlong = OVERLONG_REFUSE;
    assert_int_equal(lengths_source_init_drawn(&source, wlb128k, &options, &error), 0);
    options.part_limit = longest - 1;
    assert_int_equal(lengths_source_init_drawn(&source, wlb128k, &options, &error), -EINVAL);
    assert_non_null(strstr(error.text, "wlb128k"));
    assert_non_null(strstr(error.text, "set overlong"));
    options.part_limit = 4096;
    for (enum overlong rule = OVERLONG_SPLIT; rule < OVERLONG_REFUSE; rule++) {
        options.overlong = rule;
        assert_int_equal(lengths_source_init_drawn(&source, wlb128k, &options, NULL), 0);
        for (uint64_t i = 0; i < 1000; i++) {
            uint32_t length = distribution_length(wlb128k, 5, i);
            uint32_t given = length <= 4096 || rule == OVERLONG_SPLIT ? length
                             : rule == OVERLONG_TRUNCATE              ? 4096
                                                                      : 0;
            assert_int_equal(source.source.length(&source, 0, i), given);
        }
    }
}

static void a_cut_stream_has_the_same_tokens_and_a_cut_at_every_window(void **state) {
    (void)state;
    struct corpus_source_options options = reading;
    options.part_limit = 4096;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint32_t lengths[DOCUMENTS];
        struct lengths_source list;
        struct cut_source cut;
        struct stream whole;
        struct stream pieces;
        struct document document = {0};
        struct document piece = {0};
        uint64_t tokens = 0;
        lengths_of(seed, lengths);
        assert_int_equal(lengths_source_init(&list, lengths, DOCUMENTS, &options, NULL), 0);
        cut_source_init(&cut, &list.source, 48);
        stream_begin(&whole, &list.source);
        stream_begin(&pieces, &cut.source);
        while (stream_next(&whole, &document)) {
            for (uint32_t at = 0; at < document.length; at += piece.length) {
                assert_true(stream_next(&pieces, &piece));
                assert_int_equal(piece.document, document.document);
                assert_int_equal(piece.offset, document.offset + at);
                assert_true(tokens / 48 == (tokens + piece.length - 1) / 48);
                tokens += piece.length;
                assert_true(tokens % 48 == 0 || at + piece.length == document.length);
            }
        }
        assert_false(stream_next(&pieces, &piece));
    }
}

static int read_text(const char *text, uint32_t **lengths, uint64_t *count, struct error *error) {
    char path[96];
    (void)snprintf(path, sizeof path, "%s/lengths.txt", folder);
    file_write(path, text, strlen(text));
    return lengths_read(path, lengths, count, error);
}

static void a_file_holds_one_length_a_line(void **state) {
    (void)state;
    uint32_t *lengths;
    uint64_t count;
    assert_int_equal(read_text("12\n\n 7\t\r\n0\n2147483647", &lengths, &count, NULL), 0);
    assert_int_equal(count, 4);
    assert_int_equal(lengths[0], 12);
    assert_int_equal(lengths[1], 7);
    assert_int_equal(lengths[2], 0);
    assert_int_equal(lengths[3], 2147483647);
    free(lengths);
}

static void a_bad_file_is_refused_by_line(void **state) {
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"5\n-3\n", ":2: '-3'"},    {"5\n3 4\n", ":2: '3 4'"}, {"4.5\n", ":1:"},
        {"5\n2147483648\n", ":2:"}, {"tokens\n5\n", ":1:"},    {"", "no document"},
        {"0\n0\n", "no document"},  {"0x10\n", ":1:"},         {"99999999999999999999\n", ":1:"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error error = {0};
        uint32_t *lengths = NULL;
        uint64_t count = 0;
        assert_int_equal(read_text(bad[i].text, &lengths, &count, &error), -EINVAL);
        assert_non_null(strstr(error.text, bad[i].says));
        assert_null(lengths);
    }
    struct error error = {0};
    assert_int_equal(lengths_read("/nowhere/lengths.txt", NULL, NULL, &error), -ENOENT);
    assert_non_null(strstr(error.text, "/nowhere/lengths.txt"));
}

static void a_list_that_gives_nothing_is_refused(void **state) {
    static const uint32_t lengths[] = {70, 80};
    struct corpus_source_options options = reading;
    struct lengths_source source;
    struct error error = {0};
    (void)state;
    options.overlong = OVERLONG_DROP;
    assert_int_equal(lengths_source_init(&source, lengths, 2, &options, &error), -EINVAL);
    assert_non_null(strstr(error.text, "overlong"));
    options.overlong = OVERLONG_REFUSE;
    assert_int_equal(lengths_source_init(&source, lengths, 2, &options, &error), -EINVAL);
    assert_non_null(strstr(error.text, "length 1 of the list"));
}

static int folder_make(void **state) {
    (void)state;
    test_folder_make(folder);
    return 0;
}

static int folder_remove(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_streams_like_the_corpus_that_has_its_lengths),
        cmocka_unit_test(a_distribution_does_not_end_and_follows_its_seed),
        cmocka_unit_test(a_distribution_follows_the_overlong_rule),
        cmocka_unit_test(a_cut_stream_has_the_same_tokens_and_a_cut_at_every_window),
        cmocka_unit_test(a_file_holds_one_length_a_line),
        cmocka_unit_test(a_bad_file_is_refused_by_line),
        cmocka_unit_test(a_list_that_gives_nothing_is_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
