/* Datasets and catalogs on disk: what opens, what is refused and in which words, fingerprints. */
#include "corpus/catalog.h"
#include "corpus/dataset.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static const uint32_t lengths[] = {5, 0, 7, 1, 300, 0, 2};
static const struct image_options sound = {
    .dtype = MEGATRON_U16, .documents = 7, .lengths = lengths};

static const char *path_of(const char *name) {
    static char paths[4][128];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void assert_refused(const char *prefix, int code, const char *what, const char *remedy) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    int rc = dataset_open("books", prefix, &dataset, &error);
    if (rc != code || error.code != code || strstr(error.text, "open corpus 'books': ") == NULL ||
        strstr(error.text, what) == NULL || strstr(error.text, remedy) == NULL) {
        fail_msg("rc %d, wanted %d with '%s', '%s': %s", rc, code, what, remedy, error.text);
    }
    assert_null(dataset);
}

static struct dataset *open_sound(const char *prefix) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    if (dataset_open("books", prefix, &dataset, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return dataset;
}

static void dataset_says_what_its_files_say(void **state) {
    (void)state;
    const char *prefix = path_of("sound");
    dataset_write(prefix, &sound);
    struct dataset *dataset = open_sound(prefix);
    uint64_t offset = 0;
    assert_string_equal(dataset_name(dataset), "books");
    assert_string_equal(dataset_prefix(dataset), prefix);
    assert_string_equal(dataset_bin_path(dataset), path_of("sound.bin"));
    assert_int_equal(dataset_documents(dataset), 7);
    assert_int_equal(dataset_tokens(dataset), 315);
    assert_int_equal(dataset_bin_bytes(dataset), 630);
    assert_int_equal(dataset_width(dataset), 2);
    assert_int_equal(dataset_dtype(dataset), MEGATRON_U16);
    for (uint32_t i = 0; i < 7; i++) {
        uint16_t tokens[300];
        size_t have;
        assert_int_equal(dataset_length(dataset, i), lengths[i]);
        assert_int_equal(dataset_offset(dataset, i), offset);
        assert_int_equal(dataset_read(dataset, offset, tokens, 2 * lengths[i], &have), 0);
        for (uint32_t j = 0; j < lengths[i]; j++) {
            assert_int_equal(tokens[j], dataset_token(i, j));
        }
        offset += 2 * lengths[i];
    }
    dataset_close(dataset);
    dataset_close(NULL);
}

static void reading_past_the_end_is_an_error(void **state) {
    (void)state;
    uint8_t bytes[8];
    size_t have = 9;
    dataset_write(path_of("end"), &sound);
    struct dataset *dataset = open_sound(path_of("end"));
    assert_int_equal(dataset_read(dataset, 624, bytes, 8, &have), -EIO);
    assert_int_equal(have, 6);
    dataset_close(dataset);
}

static void missing_and_odd_files_are_refused(void **state) {
    (void)state;
    assert_refused(path_of("none"), -ENOENT, "none.idx: No such file", "check the prefix");
    dataset_write(path_of("half"), &sound);
    assert_int_equal(unlink(path_of("half.bin")), 0);
    assert_refused(path_of("half"), -ENOENT, "half.bin: No such file", "check the prefix");
    assert_int_equal(mkdir(path_of("half.bin"), 0700), 0);
    assert_refused(path_of("half"), -EINVAL, "half.bin: not a regular file", "prefix of two files");
    assert_int_equal(mkfifo(path_of("pipe.idx"), 0600), 0);
    assert_refused(path_of("pipe"), -EINVAL, "pipe.idx: not a regular file", "prefix of two files");
}

static void truncated_bin_is_refused_with_its_first_damaged_document(void **state) {
    (void)state;
    dataset_write(path_of("cut"), &sound);
    assert_int_equal(truncate(path_of("cut.bin"), 100), 0);
    assert_refused(path_of("cut"), -EBADMSG, "cut.bin: 530 bytes short",
                   "first damaged document 4; copy the file again");
}

static void foreign_corpora_are_named_with_their_converter(void **state) {
    (void)state;
    static const struct {
        const char *prefix;
        const char *file;
        const char *bytes;
        const char *what;
        const char *remedy;
    } rows[] = {
        {"raw", "raw.bin", "abcdefgh", "without an index", "copy the .idx too"},
        {"lev", "lev/shard_ledger.json", "{}", "Levanter", "TreeCache"},
        {"hf", "hf/dataset_info.json", "{}", "Hugging Face", "datasets package"},
        {"web", "web.tar", "", "WebDataset", "preprocess_data.py"},
        {"pq.parquet", "pq.parquet", "", "Parquet", "datasets package"},
        {"text", "text.jsonl", "", "JSON lines", "preprocess_data.py"},
        {"out", "out_text_document.idx", "", "output prefix", "PREFIX_text_document"},
        {"my.idx", "my.idx", "", "one file of a Megatron dataset", "without .idx"},
        {"my.bin", "my.bin", "", "one file of a Megatron dataset", "without .idx"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *file = path_of(rows[i].file);
        if (strchr(rows[i].file, '/') != NULL) {
            assert_int_equal(mkdir(path_of(rows[i].prefix), 0700), 0);
        }
        file_write(file, rows[i].bytes, strlen(rows[i].bytes));
        assert_refused(path_of(rows[i].prefix), -ENOENT, rows[i].what, rows[i].remedy);
    }
}

static void fingerprint_of(const char *prefix, uint8_t out[16]) {
    struct dataset *dataset = open_sound(prefix);
    uint8_t again[16];
    assert_int_equal(dataset_fingerprint(dataset, out, NULL), 0);
    assert_int_equal(dataset_fingerprint(dataset, again, NULL), 0);
    assert_memory_equal(out, again, 16);
    dataset_close(dataset);
}

static void fingerprint_depends_on_content_alone(void **state) {
    (void)state;
    static const uint32_t other_lengths[] = {5, 0, 7, 1, 299, 1, 2};
    struct image_options other = sound;
    uint8_t one[16];
    uint8_t two[16];
    dataset_write(path_of("one"), &sound);
    dataset_write(path_of("two"), &sound);
    fingerprint_of(path_of("one"), one);
    fingerprint_of(path_of("two"), two);
    assert_memory_equal(one, two, 16);

    other.lengths = other_lengths;
    dataset_write(path_of("two"), &other);
    fingerprint_of(path_of("two"), two);
    assert_memory_not_equal(one, two, 16);

    other = sound;
    other.dtype = MEGATRON_I16;
    dataset_write(path_of("two"), &other);
    fingerprint_of(path_of("two"), two);
    assert_memory_not_equal(one, two, 16);
}

static void fingerprint_sees_every_byte_of_a_small_bin(void **state) {
    (void)state;
    size_t count;
    uint8_t one[16];
    dataset_write(path_of("small"), &sound);
    fingerprint_of(path_of("small"), one);
    uint8_t *bytes = file_read_whole(path_of("small.bin"), &count);
    for (size_t i = 0; i < count; i++) {
        uint8_t two[16];
        bytes[i] ^= 1;
        file_write(path_of("small.bin"), bytes, count);
        fingerprint_of(path_of("small"), two);
        assert_memory_not_equal(one, two, 16);
        bytes[i] ^= 1;
    }
    free(bytes);
}

static void fingerprint_samples_every_64th_of_a_large_bin(void **state) {
    (void)state;
    static const uint32_t large[] = {1u << 20};
    struct image_options options = {.dtype = MEGATRON_U16, .documents = 1, .lengths = large};
    size_t count;
    uint8_t one[16];
    dataset_write(path_of("large"), &options);
    fingerprint_of(path_of("large"), one);
    uint8_t *bytes = file_read_whole(path_of("large.bin"), &count);
    for (size_t i = 0; i < 64; i++) {
        uint8_t two[16];
        memset(bytes + i * (count / 64), 0xee, count / 64);
        file_write(path_of("large.bin"), bytes, count);
        fingerprint_of(path_of("large"), two);
        assert_memory_not_equal(one, two, 16);
        memcpy(one, two, sizeof one);
    }
    free(bytes);
}

static void fingerprint_of_a_file_that_shrank_is_an_error(void **state) {
    (void)state;
    uint8_t bytes[16];
    struct error error = {0};
    dataset_write(path_of("shrank"), &sound);
    struct dataset *dataset = open_sound(path_of("shrank"));
    assert_int_equal(truncate(path_of("shrank.bin"), 100), 0);
    assert_int_equal(dataset_fingerprint(dataset, bytes, &error), -EIO);
    assert_non_null(strstr(error.text, "corpus 'books': "));
    assert_non_null(strstr(error.text, "shrank.bin"));
    dataset_close(dataset);
}

static void catalog_opens_all_or_none(void **state) {
    (void)state;
    struct catalog *catalog = NULL;
    struct error error = {0};
    struct catalog_entry entries[] = {{"a", path_of("sound"), 2}, {"b", path_of("absent"), 1}};
    assert_int_equal(catalog_open(entries, 2, &catalog, &error), -ENOENT);
    assert_non_null(strstr(error.text, "'b'"));
    assert_null(catalog);
    assert_int_equal(catalog_open(entries, 1, &catalog, &error), 0);
    assert_int_equal(catalog_count(catalog), 1);
    assert_int_equal(catalog_weight(catalog, 0), 2);
    assert_string_equal(dataset_name(catalog_dataset(catalog, 0)), "a");
    catalog_close(catalog);
    catalog_close(NULL);
}

static void catalog_refuses_counts_and_weights_out_of_range(void **state) {
    (void)state;
    struct catalog *catalog = NULL;
    struct error error = {0};
    struct catalog_entry entry = {"a", path_of("sound"), 0};
    assert_int_equal(catalog_open(&entry, 0, &catalog, &error), -EINVAL);
    assert_int_equal(catalog_open(&entry, CATALOG_DATASETS_MAX + 1, &catalog, &error), -EINVAL);
    assert_int_equal(catalog_open(&entry, 1, &catalog, &error), -EINVAL);
    assert_non_null(strstr(error.text, "weight 0"));
    entry.weight = (uint64_t)CATALOG_WEIGHT_MAX + 1;
    assert_int_equal(catalog_open(&entry, 1, &catalog, &error), -EINVAL);
}

static void one_prefix_may_stand_in_several_datasets(void **state) {
    (void)state;
    struct catalog *catalog = NULL;
    struct catalog_entry entries[] = {{"a", path_of("sound"), 2}, {"b", path_of("sound"), 1}};
    assert_int_equal(catalog_open(entries, 2, &catalog, NULL), 0);
    assert_int_equal(catalog_count(catalog), 2);
    catalog_close(catalog);
}

static void catalog_fingerprint_knows_the_order_and_not_the_weights(void **state) {
    (void)state;
    static const uint32_t other[] = {9, 9};
    const struct image_options options = {.dtype = MEGATRON_I32, .documents = 2, .lengths = other};
    uint8_t bytes[3][16];
    dataset_write(path_of("first"), &sound);
    dataset_write(path_of("second"), &options);
    for (uint32_t i = 0; i < 3; i++) {
        struct catalog *catalog = NULL;
        struct catalog_entry entries[] = {{"a", path_of(i == 1 ? "second" : "first"), 1 + i},
                                          {"b", path_of(i == 1 ? "first" : "second"), 1}};
        assert_int_equal(catalog_open(entries, 2, &catalog, NULL), 0);
        assert_int_equal(catalog_token_bytes(catalog), 4);
        assert_int_equal(catalog_fingerprint(catalog, 2, bytes[i], NULL), 0);
        catalog_close(catalog);
    }
    assert_memory_not_equal(bytes[0], bytes[1], 16);
    assert_memory_equal(bytes[0], bytes[2], 16);
}

static void tokens_take_two_bytes_when_all_ids_fit(void **state) {
    (void)state;
    static const struct {
        uint8_t dtype;
        uint32_t bytes;
    } rows[] = {{1, 2}, {8, 2}, {3, 4}, {4, 4}, {5, 4}, {9, 4}, {10, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct catalog *catalog = NULL;
        struct image_options options = sound;
        options.dtype = rows[i].dtype;
        dataset_write(path_of("typed"), &options);
        struct catalog_entry entries[] = {{"a", path_of("sound"), 1}, {"b", path_of("typed"), 1}};
        assert_int_equal(catalog_open(entries, 2, &catalog, NULL), 0);
        assert_int_equal(catalog_token_bytes(catalog), rows[i].bytes);
        catalog_close(catalog);
    }
}

static int make_folder(void **state) {
    (void)state;
    test_folder_make(folder);
    dataset_write(path_of("sound"), &sound);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dataset_says_what_its_files_say),
        cmocka_unit_test(reading_past_the_end_is_an_error),
        cmocka_unit_test(missing_and_odd_files_are_refused),
        cmocka_unit_test(truncated_bin_is_refused_with_its_first_damaged_document),
        cmocka_unit_test(foreign_corpora_are_named_with_their_converter),
        cmocka_unit_test(fingerprint_depends_on_content_alone),
        cmocka_unit_test(fingerprint_sees_every_byte_of_a_small_bin),
        cmocka_unit_test(fingerprint_samples_every_64th_of_a_large_bin),
        cmocka_unit_test(fingerprint_of_a_file_that_shrank_is_an_error),
        cmocka_unit_test(catalog_opens_all_or_none),
        cmocka_unit_test(catalog_refuses_counts_and_weights_out_of_range),
        cmocka_unit_test(one_prefix_may_stand_in_several_datasets),
        cmocka_unit_test(catalog_fingerprint_knows_the_order_and_not_the_weights),
        cmocka_unit_test(tokens_take_two_bytes_when_all_ids_fit),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
