/* Every check of corpus/megatron.h, one by one, on indexes in memory. */
#include "corpus/foreign.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define IMAGE_BYTES 4096

static const uint32_t lengths[] = {5, 0, 7, 1, 300, 0, 2};

#define DOCUMENTS 7u
#define TOKENS    315u

static struct image_options sound(void) {
    return (struct image_options){
        .dtype = MEGATRON_U16, .documents = DOCUMENTS, .lengths = lengths};
}

struct opened {
    uint8_t bytes[IMAGE_BYTES];
    size_t count;
    struct document_index index;
    struct error error;
    int rc;
};

static void open_bytes(struct opened *opened, uint64_t bin_bytes) {
    struct image image;
    image_open(&image, opened->bytes, opened->count);
    opened->error = (struct error){0};
    opened->rc = megatron_index_init(&opened->index, &image.file, "test.bin", bin_bytes,
                                     &opened->error);
}

static void open_image(struct opened *opened, const struct image_options *options,
                       uint64_t bin_bytes) {
    opened->count = image_build(options, opened->bytes, sizeof opened->bytes);
    assert_true(opened->count <= sizeof opened->bytes);
    open_bytes(opened, bin_bytes);
}

static void assert_opens(const struct image_options *options) {
    struct opened opened;
    uint64_t bin_bytes = image_bin_bytes(options);
    open_image(&opened, options, bin_bytes);
    if (opened.rc != 0) {
        fail_msg("refused: %s", opened.error.text);
    }
    assert_int_equal(opened.index.documents, options->documents);
    for (uint32_t i = 0; i < options->documents; i++) {
        assert_int_equal(document_index_length(&opened.index, i), options->lengths[i]);
    }
    assert_true(index_is_consistent(&opened.index, bin_bytes));
    document_index_deinit(&opened.index);
}

/* Refused with `code`, and the text has every one of the words. */
static void assert_refused(const struct opened *opened, int code, const char *file,
                           const char *what, const char *remedy) {
    if (opened->rc != code || strstr(opened->error.text, file) == NULL ||
        strstr(opened->error.text, what) == NULL || strstr(opened->error.text, remedy) == NULL) {
        fail_msg("rc %d, wanted %d with '%s', '%s', '%s': %s", opened->rc, code, file, what, remedy,
                 opened->error.text);
    }
    assert_int_equal(opened->error.code, code);
    assert_null(opened->index.windows);
}

static void index_of_every_token_type_is_read(void **state) {
    (void)state;
    static const struct {
        uint8_t dtype;
        uint32_t width;
    } rows[] = {{1, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}, {9, 4}, {10, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image_options options = sound();
        options.dtype = rows[i].dtype;
        assert_int_equal(megatron_width(rows[i].dtype), rows[i].width);
        assert_opens(&options);
    }
}

static void token_types_that_hold_no_ids_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        uint8_t dtype;
        const char *what;
    } rows[] = {{2, "dtype 2 (i8)"}, {6, "dtype 6 (float64)"}, {7, "dtype 7 (float32)"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image_options options = sound();
        struct opened opened;
        opened.count = image_build(&options, opened.bytes, sizeof opened.bytes);
        opened.bytes[17] = rows[i].dtype;
        open_bytes(&opened, 2 * TOKENS);
        assert_refused(&opened, -ENOSYS, "test.idx", rows[i].what, "tokenize the text again");
    }
}

static void unknown_token_types_are_refused(void **state) {
    (void)state;
    static const uint8_t dtypes[] = {0, 11, 255};
    for (size_t i = 0; i < sizeof dtypes; i++) {
        struct image_options options = sound();
        struct opened opened;
        opened.count = image_build(&options, opened.bytes, sizeof opened.bytes);
        opened.bytes[17] = dtypes[i];
        open_bytes(&opened, 2 * TOKENS);
        assert_refused(&opened, -EBADMSG, "test.idx", "at offset 17", "copy the file again");
        assert_int_equal(megatron_width(dtypes[i]), 0);
    }
}

static void other_versions_are_refused(void **state) {
    (void)state;
    struct image_options options = sound();
    struct opened opened;
    opened.count = image_build(&options, opened.bytes, sizeof opened.bytes);
    opened.bytes[9] = 2;
    open_bytes(&opened, 2 * TOKENS);
    assert_refused(&opened, -ENOSYS, "test.idx", "version 2 at offset 9", "only version 1");
}

static void set_without_documents_is_legal(void **state) {
    (void)state;
    struct image_options options = {.dtype = MEGATRON_U16};
    assert_opens(&options);
    options.fairseq = true;
    assert_opens(&options);
}

static void set_of_empty_documents_is_legal(void **state) {
    (void)state;
    static const uint32_t nothing[100];
    struct image_options options = {.dtype = MEGATRON_I32, .documents = 100, .lengths = nothing};
    assert_opens(&options);
}

static void modes_of_multimodal_sets_are_tolerated(void **state) {
    (void)state;
    struct image_options options = sound();
    options.modes = true;
    assert_opens(&options);
}

static void fairseq_layout_is_told_by_its_size(void **state) {
    (void)state;
    struct image_options options = sound();
    options.fairseq = true;
    options.dtype = MEGATRON_U32;
    assert_opens(&options);
}

static void documents_of_several_sequences_are_legal(void **state) {
    (void)state;
    static const uint64_t entries[] = {0, 3, 3, DOCUMENTS};
    struct image_options options = sound();
    options.entries = entries;
    options.entry_count = 4;
    assert_opens(&options);
}

static void offsets_beyond_one_stride_follow_from_the_lengths(void **state) {
    (void)state;
    uint32_t many[200];
    for (uint32_t i = 0; i < 200; i++) {
        many[i] = i * 37 % 101;
    }
    struct image_options options = {.dtype = MEGATRON_U16, .documents = 200, .lengths = many};
    struct opened opened;
    open_image(&opened, &options, image_bin_bytes(&options));
    assert_int_equal(opened.rc, 0);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(document_index_offset(&opened.index, i), offset);
        offset += 2 * many[i];
    }
    document_index_deinit(&opened.index);
}

static void documents_in_another_order_than_their_tokens_are_legal(void **state) {
    (void)state;
    /* Tokens of 4, 6, 0, 2, 3 in .bin; 1 and 5 are empty and may point anywhere inside. */
    static const uint64_t offsets[] = {604, 630, 614, 628, 4, 0, 0};
    struct image_options options = sound();
    options.offsets = offsets;
    struct opened opened;
    open_image(&opened, &options, 2 * TOKENS);
    assert_int_equal(opened.rc, 0);
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        assert_int_equal(document_index_offset(&opened.index, i), offsets[i]);
    }
    assert_true(index_is_consistent(&opened.index, 2 * TOKENS));
    document_index_deinit(&opened.index);
}

/* The first document moved onto the second, of as many tokens as lie before that one: sums of weak
 * hashes do not tell starts 10 and 10 from 0 and 20. */
static void documents_over_one_another_are_refused_whatever_their_lengths(void **state) {
    (void)state;
    for (uint32_t length = 1; length <= 4096; length++) {
        const uint32_t two[] = {length, 2 * length};
        const uint64_t offsets[] = {2 * length, 2 * length};
        struct image_options options = {
            .dtype = MEGATRON_U16, .documents = 2, .lengths = two, .offsets = offsets};
        struct opened opened;
        open_image(&opened, &options, 6 * length);
        assert_refused(&opened, -EBADMSG, "test.idx", "overlap", "copy the file again");
    }
}

static void counts_that_cannot_fit_are_refused_before_arithmetic(void **state) {
    (void)state;
    static const uint64_t counts[] = {8,
                                      UINT32_MAX,
                                      UINT64_C(1) << 62,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX / 12 + 1,
                                      UINT64_MAX / 8 + 1,
                                      UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct image_options options = sound();
        struct opened opened;
        opened.count = image_build(&options, opened.bytes, sizeof opened.bytes);
        megatron_header_encode(opened.bytes, MEGATRON_U16, counts[i], DOCUMENTS + 1);
        open_bytes(&opened, 2 * TOKENS);
        assert_refused(&opened, -EBADMSG, "test.idx", counts[i] == 8 ? "short" : "offset 18",
                       "copy the file again");
        megatron_header_encode(opened.bytes, MEGATRON_U16, DOCUMENTS, counts[i]);
        open_bytes(&opened, 2 * TOKENS);
        if (counts[i] != DOCUMENTS + 1) {
            assert_refused(&opened, -EBADMSG, "test.idx", "offset 26", "copy the file again");
        } else {
            document_index_deinit(&opened.index);
        }
    }
}

/* Claims the size of a huge index of zero bytes behind a header. */
static int read_huge(const struct megatron_file *file, uint64_t offset, void *to, size_t count) {
    memset(to, 0, count);
    if (offset == 0) {
        memcpy(to, file->context, MEGATRON_HEADER_BYTES);
    }
    return 0;
}

static void more_documents_than_32_bit_ids_number_are_refused(void **state) {
    (void)state;
    const uint64_t documents = UINT64_C(1) << 31;
    uint8_t header[MEGATRON_HEADER_BYTES];
    struct megatron_file file = {.path = "test.idx",
                                 .bytes = MEGATRON_HEADER_BYTES + 12 * documents + 8,
                                 .read = read_huge,
                                 .context = header};
    struct opened opened;
    megatron_header_encode(header, MEGATRON_U16, documents, 1);
    opened.rc = megatron_index_init(&opened.index, &file, "test.bin", 0, &opened.error);
    assert_refused(&opened, -ENOSYS, "test.idx", "2147483648 sequences at offset 18",
                   "split the dataset");
}

static void index_of_another_size_is_refused(void **state) {
    (void)state;
    struct image_options options = sound();
    struct opened opened;
    size_t whole = image_build(&options, opened.bytes, sizeof opened.bytes);
    memset(opened.bytes + whole, 0, sizeof opened.bytes - whole);
    opened.count = whole - 1;
    open_bytes(&opened, 2 * TOKENS);
    assert_refused(&opened, -EBADMSG, "test.idx", "1 bytes short", "copy the file again");
    opened.count = whole + 1;
    open_bytes(&opened, 2 * TOKENS);
    assert_refused(&opened, -EBADMSG, "test.idx", "1 bytes too long", "copy the file again");
}

static void broken_document_arrays_are_refused(void **state) {
    (void)state;
    static const struct {
        uint64_t entries[4];
        uint32_t count;
        const char *what;
    } rows[] = {
        {{1, 3, 5, 7}, 4, "entry 0 of the document array, at offset 118, is 1"},
        {{0, 5, 3, 7}, 4, "entry 2 of the document array, at offset 134, is 3"},
        {{0, 3, 5, 6}, 4, "entry 3 of the document array, at offset 142, is 6"},
        {{0, 3, 8, 7}, 4, "entry 2 of the document array, at offset 134, is 8"},
        {{0, UINT64_MAX, 5, 7}, 4, "entry 1 of the document array, at offset 126, is -1"},
        {{0}, 0, "without entries (offset 26)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image_options options = sound();
        struct opened opened;
        options.entries = rows[i].entries;
        options.entry_count = rows[i].count;
        open_image(&opened, &options, 2 * TOKENS);
        assert_refused(&opened, -EBADMSG, "test.idx", rows[i].what, "copy the file again");
    }
}

static void negative_lengths_are_refused(void **state) {
    (void)state;
    static const uint32_t damaged[] = {5, 0, 0xfffffff9, 1, 300, 0, 2};
    struct image_options options = sound();
    struct opened opened;
    options.lengths = damaged;
    open_image(&opened, &options, 2 * TOKENS);
    assert_refused(&opened, -EBADMSG, "test.idx", "length of document 2, at offset 42, is -7",
                   "copy the file again");
}

static void documents_of_the_greatest_length_are_read(void **state) {
    (void)state;
    static const uint32_t longest[] = {INT32_MAX, INT32_MAX};
    struct image_options options = {.dtype = MEGATRON_I64, .documents = 2, .lengths = longest};
    assert_opens(&options);
}

static void offsets_outside_or_astray_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t document;
        uint64_t offset;
        const char *what;
    } rows[] = {
        {0, 2, "offset of document 0, at offset 62, is 2 where the lengths before it say 0"},
        {2, 12, "offset of document 2, at offset 78, is 12 where the lengths before it say 10"},
        {4, 24, "offset of document 4, at offset 94, is 24 where the lengths before it say 26"},
        {2, 11, "offset of document 2, at offset 78, is 11: no place"},
        {6, 628, "offset of document 6, at offset 110, is 628: no place"},
        {4, UINT64_MAX - 1, "offset of document 4, at offset 94, is -2: no place"},
        {1, UINT64_C(1) << 63, "offset of document 1, at offset 70, is -9223372036854775808"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t offsets[DOCUMENTS] = {0, 10, 10, 24, 26, 626, 626};
        struct image_options options = sound();
        struct opened opened;
        offsets[rows[i].document] = rows[i].offset;
        options.offsets = offsets;
        open_image(&opened, &options, 2 * TOKENS);
        assert_refused(&opened, -EBADMSG, "test.idx", rows[i].what, "copy the file again");
    }
}

static void short_bin_names_the_first_damaged_document(void **state) {
    (void)state;
    struct image_options options = sound();
    struct opened opened;
    open_image(&opened, &options, 2 * TOKENS - 3);
    assert_refused(&opened, -EBADMSG, "test.bin", "3 bytes short (627 instead of 630)",
                   "first damaged document 6");
    open_image(&opened, &options, 26);
    assert_refused(&opened, -EBADMSG, "test.bin", "604 bytes short", "first damaged document 4");
    open_image(&opened, &options, 0);
    assert_refused(&opened, -EBADMSG, "test.bin", "630 bytes short", "first damaged document 0");
}

static void long_bin_is_refused(void **state) {
    (void)state;
    struct image_options options = sound();
    struct opened opened;
    open_image(&opened, &options, 2 * TOKENS + 1);
    assert_refused(&opened, -EBADMSG, "test.bin", "1 bytes too long", "copy both files again");
}

static void big_endian_arrays_are_recognised(void **state) {
    (void)state;
    struct image_options options = sound();
    struct opened opened;
    options.big_endian = true;
    open_image(&opened, &options, 2 * TOKENS);
    assert_refused(&opened, -ENOSYS, "test.idx", "big-endian arrays from offset 34",
                   "on a little-endian machine");
    open_image(&opened, &options, 2 * TOKENS - 2);
    assert_refused(&opened, -ENOSYS, "test.idx", "big-endian arrays from offset 34",
                   "on a little-endian machine");
    options.fairseq = true;
    open_image(&opened, &options, 2 * TOKENS);
    assert_refused(&opened, -ENOSYS, "test.idx", "big-endian arrays from offset 26",
                   "on a little-endian machine");
    options.documents = 1;
    open_image(&opened, &options, 10);
    assert_refused(&opened, -ENOSYS, "test.idx", "big-endian arrays from offset 26",
                   "on a little-endian machine");
}

static void damaged_little_endian_index_is_not_called_big_endian(void **state) {
    (void)state;
    struct image_options options = {.dtype = MEGATRON_U16, .documents = 1, .lengths = lengths};
    struct opened opened;
    options.fairseq = true;
    open_image(&opened, &options, 8);
    assert_refused(&opened, -EBADMSG, "test.bin", "2 bytes short", "in fairseq's layout");
}

static void foreign_indexes_are_named(void **state) {
    (void)state;
    static const struct {
        const char bytes[32];
        size_t count;
        const char *what;
        const char *remedy;
    } rows[] = {
        {"TNTIDX\0\0\1\0\0\0\0\0\0\0", 16, "TNTIDX", "--dataset-impl mmap"},
        {"HUFFIDX\0\0\1\0\0\0\0\0\0\0", 17, "Huffman", "--dataset-impl mmap"},
        {"\0\0\0\0\0\0\0\0\0\x28\0\0\0\0\0\0\0\x40\0\0\0\0\0\0", 24, "Energon",
         "tools/preprocess_data.py"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\0", 10, "gzip", "gunzip"},
        {"\x28\xb5\x2f\xfd\0\0\0\0\0\0", 10, "zstd", "unzstd"},
        {"\x93NUMPY\1\0\x76\0", 10, "numpy", "IndexedDatasetBuilder"},
        {"PAR1\0\0\0\0\0\0", 10, "Parquet", "IndexedDatasetBuilder"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct opened opened = {.count = rows[i].count};
        memcpy(opened.bytes, rows[i].bytes, rows[i].count);
        open_bytes(&opened, 0);
        assert_refused(&opened, -ENOSYS, "test.idx", rows[i].what, rows[i].remedy);
    }
}

static void anything_else_is_no_index(void **state) {
    (void)state;
    struct opened opened = {.count = 40};
    memset(opened.bytes, 'x', opened.count);
    open_bytes(&opened, 0);
    assert_refused(&opened, -EBADMSG, "test.idx", "no MMIDIDX magic at offset 0",
                   "give the prefix");
    opened.count = 0;
    open_bytes(&opened, 0);
    assert_refused(&opened, -EBADMSG, "test.idx", "0 bytes, too short", "copy the file again");
    megatron_header_encode(opened.bytes, MEGATRON_U16, 0, 1);
    for (opened.count = 9; opened.count < 34; opened.count++) {
        open_bytes(&opened, 0);
        if (opened.count == 26) {
            assert_int_equal(opened.rc, 0);
            document_index_deinit(&opened.index);
        } else {
            assert_refused(&opened, -EBADMSG, "test.idx", "the header alone has 34",
                           "copy the file again");
        }
    }
}

struct failing {
    struct image image;
    uint64_t calls_left;
};

static int read_failing(const struct megatron_file *file, uint64_t offset, void *to, size_t count) {
    struct failing *failing = (struct failing *)(uintptr_t)file->context;
    if (failing->calls_left-- == 0) {
        return -EIO;
    }
    return failing->image.file.read(&failing->image.file, offset, to, count);
}

static void every_failing_read_is_reported(void **state) {
    (void)state;
    static const uint64_t offsets[] = {604, 630, 614, 628, 4, 0, 0};
    struct image_options options = sound();
    struct opened opened;
    uint64_t calls = 0;
    options.offsets = offsets;
    opened.count = image_build(&options, opened.bytes, sizeof opened.bytes);
    for (;; calls++) {
        struct failing failing = {.calls_left = calls};
        image_open(&failing.image, opened.bytes, opened.count);
        struct megatron_file file = failing.image.file;
        file.read = read_failing;
        file.context = &failing;
        opened.rc = megatron_index_init(&opened.index, &file, "test.bin", 2 * TOKENS,
                                        &opened.error);
        if (opened.rc == 0) {
            break;
        }
        assert_refused(&opened, -EIO, "test.idx", "cannot read", "check the disk");
    }
    assert_int_equal(calls, 6); /* header, document array, lengths and offsets twice */
    document_index_deinit(&opened.index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(index_of_every_token_type_is_read),
        cmocka_unit_test(token_types_that_hold_no_ids_are_refused_by_name),
        cmocka_unit_test(unknown_token_types_are_refused),
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(set_without_documents_is_legal),
        cmocka_unit_test(set_of_empty_documents_is_legal),
        cmocka_unit_test(modes_of_multimodal_sets_are_tolerated),
        cmocka_unit_test(fairseq_layout_is_told_by_its_size),
        cmocka_unit_test(documents_of_several_sequences_are_legal),
        cmocka_unit_test(offsets_beyond_one_stride_follow_from_the_lengths),
        cmocka_unit_test(documents_in_another_order_than_their_tokens_are_legal),
        cmocka_unit_test(documents_over_one_another_are_refused_whatever_their_lengths),
        cmocka_unit_test(counts_that_cannot_fit_are_refused_before_arithmetic),
        cmocka_unit_test(more_documents_than_32_bit_ids_number_are_refused),
        cmocka_unit_test(index_of_another_size_is_refused),
        cmocka_unit_test(broken_document_arrays_are_refused),
        cmocka_unit_test(negative_lengths_are_refused),
        cmocka_unit_test(documents_of_the_greatest_length_are_read),
        cmocka_unit_test(offsets_outside_or_astray_are_refused),
        cmocka_unit_test(short_bin_names_the_first_damaged_document),
        cmocka_unit_test(long_bin_is_refused),
        cmocka_unit_test(big_endian_arrays_are_recognised),
        cmocka_unit_test(damaged_little_endian_index_is_not_called_big_endian),
        cmocka_unit_test(foreign_indexes_are_named),
        cmocka_unit_test(anything_else_is_no_index),
        cmocka_unit_test(every_failing_read_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
