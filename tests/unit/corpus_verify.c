/* Verify: every token counts, the first offence is named, percentiles are exact. */
#include "corpus/verify.h"
#include "tests/property/splitmix.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static char prefix[128];
static char bin[140];

static const uint32_t lengths[] = {5, 0, 7, 1, 300, 0, 2};
enum { TOKENS = 315 };

static struct dataset *dataset_make(const struct image_options *options) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    dataset_write(prefix, options);
    if (dataset_open("books", prefix, &dataset, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return dataset;
}

/* Overwrites token `i` of .bin. */
static void token_write(uint64_t i, uint32_t width, uint64_t token) {
    FILE *file = fopen(bin, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(i * width), SEEK_SET), 0);
    assert_int_equal(fwrite(&token, 1, width, file), width);
    assert_int_equal(fclose(file), 0);
}

static void sound_dataset_is_measured(void **state) {
    (void)state;
    struct image_options options = {.dtype = MEGATRON_U16, .documents = 7, .lengths = lengths};
    struct dataset *dataset = dataset_make(&options);
    struct verify_result result;
    uint8_t fingerprint[16];
    assert_int_equal(verify_dataset(dataset, 200, NULL, NULL, NULL, &result, NULL), 0);
    assert_int_equal(result.documents, 7);
    assert_int_equal(result.tokens, TOKENS);
    assert_int_equal(result.bytes, 2 * TOKENS);
    assert_int_equal(result.empty_documents, 2);
    assert_int_equal(result.token_max, 199);
    assert_int_equal(result.length_p50, 2); /* 0 0 1 2 5 7 300 */
    assert_int_equal(result.length_p90, 300);
    assert_int_equal(result.length_p99, 300);
    assert_int_equal(result.length_max, 300);
    assert_int_equal(dataset_fingerprint(dataset, fingerprint, NULL), 0);
    assert_memory_equal(result.fingerprint, fingerprint, 16);
    dataset_close(dataset);
}

static void set_without_documents_is_sound(void **state) {
    (void)state;
    struct image_options options = {.dtype = MEGATRON_U16};
    struct dataset *dataset = dataset_make(&options);
    struct verify_result result;
    assert_int_equal(verify_dataset(dataset, 200, NULL, NULL, NULL, &result, NULL), 0);
    assert_int_equal(result.documents, 0);
    assert_int_equal(result.length_max, 0);
    dataset_close(dataset);
}

static void the_first_bad_id_is_named(void **state) {
    (void)state;
    static const struct {
        uint8_t dtype;
        uint64_t vocab;
        uint64_t token;
        const char *what; /* NULL: legal */
    } rows[] = {
        {MEGATRON_U8, 0, 255, NULL},
        {MEGATRON_U8, 255, 255, "token id 255 at offset 300, legal are 0 to 254"},
        {MEGATRON_U16, 0, 65535, NULL},
        {MEGATRON_U16, 50257, 50257, "token id 50257 at offset 600, legal are 0 to 50256"},
        {MEGATRON_U16, 50258, 50257, NULL},
        {MEGATRON_U16, 1000000, 65535, NULL},
        {MEGATRON_I16, 0, 32767, NULL},
        {MEGATRON_I16, 0, 0x8000, "token id -32768 at offset 600, legal are 0 to 32767"},
        {MEGATRON_I32, 0, 0x7fffffff, NULL},
        {MEGATRON_I32, 0, 0xffffff9c, "token id -100 at offset 1200, legal are 0 to 2147483647"},
        {MEGATRON_U32, 0, 0x7fffffff, NULL},
        {MEGATRON_U32, 0, 0x80000000,
         "token id 2147483648 at offset 1200, legal are 0 to 2147483647"},
        {MEGATRON_U32, 128256, 128256, "token id 128256 at offset 1200, legal are 0 to 128255"},
        {MEGATRON_I64, 0, 0x7fffffff, NULL},
        {MEGATRON_I64, 0, UINT64_C(1) << 31, "token id 2147483648 at offset 2400"},
        {MEGATRON_I64, 0, UINT64_MAX, "token id -1 at offset 2400"},
        {MEGATRON_I64, 0, UINT64_C(1) << 63, "token id -9223372036854775808 at offset 2400"},
        {MEGATRON_U64, 0, UINT64_MAX, "token id 18446744073709551615 at offset 2400"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image_options options = {.dtype = rows[i].dtype, .documents = 7, .lengths = lengths};
        struct dataset *dataset = dataset_make(&options);
        struct verify_result result = {.documents = 99};
        struct error error = {0};
        uint32_t width = dataset_width(dataset);
        token_write(300, width, rows[i].token);
        token_write(301, width, rows[i].token);
        int rc = verify_dataset(dataset, rows[i].vocab, NULL, NULL, NULL, &result, &error);
        if (rows[i].what == NULL) {
            assert_int_equal(rc, 0);
            assert_int_equal(result.token_max, rows[i].token);
        } else if (rc != -EBADMSG || strstr(error.text, rows[i].what) == NULL ||
                   strstr(error.text, "document 4:") == NULL || strstr(error.text, bin) == NULL) {
            fail_msg("row %zu: %d %s", i, rc, error.text);
        } else {
            assert_int_equal(result.documents, 99);
        }
        dataset_close(dataset);
    }
}

static void every_place_is_looked_at(void **state) {
    (void)state;
    /* Documents 2, 4, 0, 3, 6 in .bin; the offence is named by document, not by place. */
    static const uint64_t offsets[] = {614, 0, 0, 624, 14, 0, 626};
    static const uint32_t owners[][3] = {
        {0, 7, 2}, {7, 307, 4}, {307, 312, 0}, {312, 313, 3}, {313, 315, 6}};
    struct image_options options = {
        .dtype = MEGATRON_U16, .documents = 7, .lengths = lengths, .offsets = offsets};
    struct dataset *dataset = dataset_make(&options);
    for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
        for (uint32_t at = owners[i][0]; at < owners[i][1]; at++) {
            struct verify_result result;
            struct error error = {0};
            char what[64];
            token_write(at, 2, 1000);
            assert_int_equal(verify_dataset(dataset, 200, NULL, NULL, NULL, &result, &error),
                             -EBADMSG);
            snprintf(what, sizeof what, "document %u: token id 1000 at offset %u,", owners[i][2],
                     2 * at);
            assert_non_null(strstr(error.text, what));
            token_write(at, 2, 0);
        }
    }
    dataset_close(dataset);
}

struct calls {
    uint64_t count;
    uint64_t done;
};

static void count_calls(uint64_t done, uint64_t total, void *context) {
    struct calls *calls = context;
    assert_true(done > calls->done && done <= total);
    calls->done = done;
    calls->count++;
}

static void large_bins_are_read_in_megabytes(void **state) {
    (void)state;
    static const uint32_t large[] = {700000, 700000, 700000};
    struct image_options options = {.dtype = MEGATRON_U16, .documents = 3, .lengths = large};
    struct dataset *dataset = dataset_make(&options);
    struct verify_result result;
    struct error error = {0};
    struct calls calls = {0};
    assert_int_equal(verify_dataset(dataset, 0, NULL, count_calls, &calls, &result, NULL), 0);
    assert_int_equal(calls.done, 4200000);
    assert_int_equal(calls.count, 5);
    token_write(2099999, 2, 65535);
    assert_int_equal(verify_dataset(dataset, 65535, NULL, NULL, NULL, &result, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "document 2: token id 65535 at offset 4199998"));
    dataset_close(dataset);
}

static void bin_that_shrank_after_open_is_an_error_with_its_place(void **state) {
    (void)state;
    struct image_options options = {.dtype = MEGATRON_U16, .documents = 7, .lengths = lengths};
    struct dataset *dataset = dataset_make(&options);
    struct verify_result result;
    struct error error = {0};
    assert_int_equal(truncate(bin, 25), 0);
    assert_int_equal(verify_dataset(dataset, 0, NULL, NULL, NULL, &result, &error), -EIO);
    assert_non_null(strstr(error.text, "document 3 cannot be read at offset 25"));
    dataset_close(dataset);
}

static int compare_lengths(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left;
    uint32_t b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static void percentiles_are_those_of_the_sorted_lengths(void **state) {
    (void)state;
    for (uint64_t world = 1; world <= 60; world++) {
        uint32_t random[200];
        uint64_t seed = world;
        uint32_t count = splitmix_between(&seed, 1, 200);
        uint32_t longest = world % 3 == 0 ? 100000 : 20;
        for (uint32_t i = 0; i < count; i++) {
            random[i] = splitmix_between(&seed, 0, longest);
        }
        struct image_options options = {
            .dtype = MEGATRON_U8, .documents = count, .lengths = random};
        struct dataset *dataset = dataset_make(&options);
        struct verify_result result;
        assert_int_equal(verify_dataset(dataset, 0, NULL, NULL, NULL, &result, NULL), 0);
        qsort(random, count, sizeof random[0], compare_lengths);
        if (result.length_p50 != random[count * 50 / 100] ||
            result.length_p90 != random[count * 90 / 100] ||
            result.length_p99 != random[count * 99 / 100] ||
            result.length_max != random[count - 1]) {
            fail_msg("seed %lu", world);
        }
        dataset_close(dataset);
    }
}

static int make_folder(void **state) {
    (void)state;
    test_folder_make(folder);
    snprintf(prefix, sizeof prefix, "%s/books", folder);
    snprintf(bin, sizeof bin, "%s.bin", prefix);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_dataset_is_measured),
        cmocka_unit_test(set_without_documents_is_sound),
        cmocka_unit_test(the_first_bad_id_is_named),
        cmocka_unit_test(every_place_is_looked_at),
        cmocka_unit_test(large_bins_are_read_in_megabytes),
        cmocka_unit_test(bin_that_shrank_after_open_is_an_error_with_its_place),
        cmocka_unit_test(percentiles_are_those_of_the_sorted_lengths),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
