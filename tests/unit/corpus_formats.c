/* Formats beside Megatron's: what they say is what is read, and nothing damaged gets through with a
 * document outside its files. */
#include "tests/unit/format_files.h"
#include "corpus/catalog.h"
#include "corpus/files.h"
#include "corpus/megatron.h"
#include "corpus/verify.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static const uint32_t lengths[] = {3, 1, 200, 7, 1, 41};
#define DOCUMENTS (sizeof lengths / sizeof lengths[0])

static int make_folder(void **state) {
    (void)state;
    test_folder_make(folder);
    return setenv("TMPDIR", folder, 1);
}

static int remove_folder(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

static int open_kind(enum format_kind kind, struct dataset **out, struct error *error) {
    char path[128];
    struct format_options options = format_kind_options(kind);
    (void)snprintf(path, sizeof path, "%s/%s", folder, format_kind_path(kind));
    return dataset_open_as("books", path, &options, NULL, NULL, out, error);
}

static void write_kind(enum format_kind kind, const uint32_t *of, uint32_t count) {
    struct format_files files;
    test_folder_remove(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    format_files_build(kind, of, count, &files);
    format_files_write(&files, folder);
    format_files_free(&files);
}

static struct dataset *open_sound(enum format_kind kind) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    if (open_kind(kind, &dataset, &error) < 0) {
        fail_msg("kind %d: %s", kind, error.text);
    }
    return dataset;
}

static void assert_refused(enum format_kind kind, int code, const char *what, const char *remedy) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    int rc = open_kind(kind, &dataset, &error);
    if (rc != code || error.code != code || strstr(error.text, "open corpus 'books': ") == NULL ||
        strstr(error.text, what) == NULL || strstr(error.text, remedy) == NULL) {
        fail_msg("kind %d: rc %d, wanted %d with '%s', '%s': %s", kind, rc, code, what, remedy,
                 error.text);
    }
}

static void expect_document(const struct dataset *dataset, enum format_kind kind, uint32_t i) {
    uint32_t length = dataset_length(dataset, i);
    uint16_t *tokens = calloc(length + 1, sizeof *tokens);
    size_t have;
    assert_non_null(tokens);
    assert_int_equal(dataset_read(dataset, dataset_offset(dataset, i), tokens, 2 * length, &have),
                     0);
    for (uint32_t j = 0; j < length; j++) {
        bool id = format_kind_is_cut(kind) && j == (format_kind_leads(kind) ? 0 : length - 1);
        assert_int_equal(tokens[j], id ? KIND_EOD : dataset_token(i, j));
    }
    free(tokens);
}

static void every_document_is_read_as_it_was_written(void **state) {
    (void)state;
    for (enum format_kind kind = 0; kind < KIND_COUNT; kind++) {
        write_kind(kind, lengths, DOCUMENTS);
        struct dataset *dataset = open_sound(kind);
        assert_int_equal(dataset_documents(dataset), DOCUMENTS);
        assert_int_equal(dataset_tokens(dataset), 253);
        assert_int_equal(dataset_longest(dataset), 200);
        assert_int_equal(dataset_dtype(dataset), MEGATRON_U16);
        for (uint32_t i = 0; i < DOCUMENTS; i++) {
            assert_int_equal(dataset_length(dataset, i), lengths[i]);
            expect_document(dataset, kind, i);
        }
        dataset_close(dataset);
    }
}

static void one_empty_and_no_documents_are_legal(void **state) {
    (void)state;
    static const uint32_t few[] = {5, 0, 2};
    for (enum format_kind kind = 0; kind < KIND_COUNT; kind++) {
        for (uint32_t count = 0; count <= 3; count++) {
            if (format_kind_is_cut(kind) && count > 1) {
                continue; /* they cannot have empty ones */
            }
            write_kind(kind, few, count);
            struct dataset *dataset = open_sound(kind);
            assert_int_equal(dataset_documents(dataset), count);
            assert_int_equal(dataset_tokens(dataset), count == 0 ? 0 : count == 3 ? 7 : 5);
            if (count == 3) {
                assert_int_equal(dataset_length(dataset, 1), 0);
                expect_document(dataset, kind, 2);
            }
            dataset_close(dataset);
        }
    }
}

static void fingerprint_of(const struct dataset *dataset, uint8_t out[16]) {
    struct error error = {0};
    if (dataset_fingerprint(dataset, out, &error) < 0) {
        fail_msg("%s", error.text);
    }
}

static void the_same_tokens_have_the_same_fingerprint_in_any_dense_format(void **state) {
    (void)state;
    static const enum format_kind dense[] = {KIND_DS, KIND_NPY, KIND_LITDATA};
    const struct image_options image = {
        .dtype = MEGATRON_U16, .documents = DOCUMENTS, .lengths = lengths};
    uint8_t expected[16], found[16];
    struct dataset *dataset = NULL;
    char prefix[128];
    (void)snprintf(prefix, sizeof prefix, "%s/megatron", folder);
    dataset_write(prefix, &image);
    assert_int_equal(dataset_open("books", prefix, &dataset, NULL), 0);
    fingerprint_of(dataset, expected);
    dataset_close(dataset);
    for (size_t i = 0; i < sizeof dense / sizeof dense[0]; i++) {
        write_kind(dense[i], lengths, DOCUMENTS);
        dataset = open_sound(dense[i]);
        fingerprint_of(dataset, found);
        assert_memory_equal(found, expected, 16);
        dataset_close(dataset);
    }
}

/* Verify reads what open does not: all is readable, and damage to any token is found by a manifest
 * although something else stands between documents. */
static void verify_reads_every_format(void **state) {
    (void)state;
    for (enum format_kind kind = 0; kind < KIND_COUNT; kind++) {
        struct verify_result result;
        struct error error = {0};
        write_kind(kind, lengths, DOCUMENTS);
        struct dataset *dataset = open_sound(kind);
        if (verify_dataset(dataset, 0, NULL, NULL, NULL, &result, &error) < 0) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(result.tokens, 253);
        assert_int_equal(result.token_max, format_kind_is_cut(kind) ? KIND_EOD : 199);
        assert_int_equal(verify_dataset(dataset, 199, NULL, NULL, NULL, &result, &error), -EBADMSG);
        assert_non_null(strstr(error.text, "legal are 0 to 198"));
        dataset_close(dataset);
    }
}

/* Whatever is accepted has every document inside its files, none over another. */
static void use_accepted(const struct dataset *dataset) {
    uint64_t before = 0;
    for (uint64_t i = 0; i < dataset_documents(dataset); i++) {
        uint64_t from = dataset_offset(dataset, i);
        uint64_t bytes = (uint64_t)dataset_length(dataset, i) * dataset_width(dataset);
        assert_true(from >= before && from + bytes <= dataset_bin_bytes(dataset));
        before = from + bytes;
    }
}

static void try_damaged(enum format_kind kind, uint32_t *accepted) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    int rc = open_kind(kind, &dataset, &error);
    if (rc == 0) {
        use_accepted(dataset);
        dataset_close(dataset);
        (*accepted)++;
        return;
    }
    assert_int_equal(error.code, rc);
    assert_true(strlen(error.text) > 30);
}

static void no_truncated_file_is_read_beyond_its_end(void **state) {
    (void)state;
    for (enum format_kind kind = 0; kind < KIND_COUNT; kind++) {
        struct format_files files;
        uint32_t accepted = 0;
        write_kind(kind, lengths, DOCUMENTS);
        format_files_build(kind, lengths, DOCUMENTS, &files);
        for (size_t i = 0; i < files.count; i++) {
            struct format_file *file = &files.files[i];
            size_t whole = file->count;
            for (file->count = 0; file->count < whole; file->count += 1 + whole / 97) {
                format_files_write(&files, folder);
                try_damaged(kind, &accepted);
            }
            file->count = whole;
        }
        /* A file cut at its ids has no length to miss; metadata is for the eye but for two lines.
         */
        if (!format_kind_is_cut(kind) && kind != KIND_DS) {
            assert_int_equal(accepted, 0);
        }
        format_files_free(&files);
    }
}

static void no_flipped_bit_puts_a_document_outside(void **state) {
    (void)state;
    for (enum format_kind kind = 0; kind < KIND_COUNT; kind++) {
        struct format_files files;
        uint32_t accepted = 0;
        write_kind(kind, lengths, DOCUMENTS);
        format_files_build(kind, lengths, DOCUMENTS, &files);
        for (size_t i = 0; i < files.count; i++) {
            struct format_file *file = &files.files[i];
            size_t step = 1 + file->count / 61;
            for (size_t at = 0; at < file->count; at += step) {
                file->bytes[at] ^= (uint8_t)(1u << at % 8);
                format_files_write(&files, folder);
                try_damaged(kind, &accepted);
                file->bytes[at] ^= (uint8_t)(1u << at % 8);
            }
        }
        format_files_free(&files);
    }
}

static void edit(const char *name, size_t at, uint64_t value, size_t width) {
    char path[256];
    size_t count;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    uint8_t *bytes = file_read_whole(path, &count);
    assert_true(at + width <= count);
    memcpy(bytes + at, &value, width);
    file_write(path, bytes, count);
    free(bytes);
}

static void lies_are_named_with_file_offset_and_remedy(void **state) {
    (void)state;
    static const struct {
        enum format_kind kind;
        const char *file;
        size_t at;
        uint64_t value;
        size_t width;
        const char *what, *remedy;
    } rows[] = {
        {KIND_DS, "c.ds.index", 8, 2, 8, "c.ds.index: document 1, at offset 8, ends at token 2",
         "tokenize again"},
        {KIND_DS, "c.ds.index", 40, 254, 8, "506 bytes, but", "copy the files of one run"},
        {KIND_DS, "c.ds.index", 40, UINT64_MAX, 8, "506 bytes, but", "copy the files of one run"},
        {KIND_DS, "c.ds.metadata", 20, '3', 1, "should end in |2 or |4", "one run"},
        {KIND_LLM_C, "c.bin", 4, 3, 4, "version 3 at offset 4", "current llm.c"},
        {KIND_LLM_C, "c.bin", 8, 254, 4, "254 tokens (offset 8)", "copy the file again"},
        {KIND_LLM_C, "c.bin", 8, UINT32_MAX, 4, "4294967295 tokens", "copy the file again"},
        {KIND_LLM_C, "c.bin", 0, 20240522, 4, "evaluation set", "_train_"},
        {KIND_MDS, "m/shard.00000.mds", 0, 5, 4, "5 samples at offset 0", "index.json says 6"},
        {KIND_MDS, "m/shard.00000.mds", 4, 3, 4, "the first at 3", "copy the file again"},
        {KIND_MDS, "m/shard.00000.mds", 12, 1, 4, "sample 2 is at 1 (offset 12)", "size limit"},
        {KIND_MDS, "m/shard.00000.mds", 28, UINT32_MAX, 4, "its last sample ends at 4294967295",
         "size limit"},
        {KIND_MDS, "m/shard.00000.mds", 34, UINT32_MAX, 4, "sample 0 at offset 34",
         "not as long as it is"},
        {KIND_MDS, "m/shard.00000.mds", 47, 18, 1, "no whole numbers", "sample 0"},
        {KIND_MDS, "m/shard.00000.mds", 48, 2 << 2, 1, "no array of one dimension", "sample 0"},
        {KIND_MDS, "m/shard.00000.mds", 49, 4, 2, "its shape is not that of its bytes", "sample 0"},
        {KIND_LITDATA, "l/chunk-0-0.bin", 8, 37, 4, "item 0 has 5 bytes", "no whole tokens"},
        {KIND_LITDATA, "l/chunk-0-0.bin", 0, UINT32_MAX, 4, "4294967295 samples",
         "index.json says 6"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_kind(rows[i].kind, lengths, DOCUMENTS);
        edit(rows[i].file, rows[i].at, rows[i].value, rows[i].width);
        int code = strstr(rows[i].what, "version") != NULL || strstr(rows[i].what, "eval") != NULL
                       ? -ENOSYS
                       : -EBADMSG;
        assert_refused(rows[i].kind, code, rows[i].what, rows[i].remedy);
    }
}

/* Writes a corpus and replaces `from` by `to` in its index.json. */
static void write_with(enum format_kind kind, const char *from, const char *to) {
    struct format_files files;
    char text[2048];
    write_kind(kind, lengths, DOCUMENTS);
    format_files_build(kind, lengths, DOCUMENTS, &files);
    struct format_file *index = &files.files[0];
    index->bytes[index->count] = '\0';
    const char *at = strstr((const char *)index->bytes, from);
    assert_non_null(at);
    int chars = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - (const char *)index->bytes),
                         (const char *)index->bytes, to, at + strlen(from));
    free(index->bytes);
    index->bytes = malloc((size_t)chars);
    assert_non_null(index->bytes);
    memcpy(index->bytes, text, (size_t)chars);
    index->count = (size_t)chars;
    format_files_write(&files, folder);
    format_files_free(&files);
}

static void what_is_not_read_is_refused_with_its_converter(void **state) {
    (void)state;
    static const struct {
        enum format_kind kind;
        const char *from, *to;
        int code;
        const char *what, *remedy;
    } rows[] = {
        {KIND_MDS, "\"ndarray\"", "\"pkl\"", -ENOSYS, "'pkl'", "IndexedDatasetBuilder"},
        {KIND_MDS, "\"ndarray\"", "\"ndarray:float32\"", -ENOSYS, "float32", "streaming package"},
        {KIND_MDS, "\"ndarray\"", "\"ndarray:uint16:2,3\"", -ENOSYS, "2,3", "streaming package"},
        {KIND_MDS, "\"ndarray\"", "\"bytes\"", -EINVAL, "not written", "corpus.token_type"},
        {KIND_MDS, "\"tokens\"", "\"text\"", -ENOSYS, "none of them tokens", "streaming package"},
        {KIND_MDS, "\"compression\": null", "\"compression\": \"br:11\"", -ENOSYS, "'br:11'",
         "only zstd is known"},
        {KIND_MDS, "\"version\": 2}", "\"version\": 3}", -ENOSYS, "version 3", "current"},
        {KIND_MDS, "shard.00000.mds", "../../passwd", -EBADMSG, "no file in this folder", "again"},
        {KIND_MDS, "\"samples\": 6", "\"samples\": -6", -EBADMSG, "samples is not a number",
         "copy the folder again"},
        {KIND_MDS, "{\"shards\"", "{{\"shards\"", -EBADMSG, "index.json:1:", "write it again"},
        {KIND_LITDATA, "\"no_header_numpy:5\"", "\"jpeg\"", -ENOSYS, "data_format is jpeg",
         "litdata package"},
        {KIND_LITDATA, "\"no_header_numpy:5\"", "\"no_header_tensor:1\"", -ENOSYS,
         "no_header_tensor:1", "litdata package"},
        {KIND_LITDATA, "\"no_header_numpy:5\"", "\"int\", \"str\"", -ENOSYS, "several leaves",
         "litdata package"},
        {KIND_LITDATA, "\"encryption\": null", "\"encryption\": {}", -ENOSYS, "encrypted",
         "litdata package"},
        {KIND_LITDATA, "\"compression\": null", "\"compression\": \"lz4\"", -ENOSYS, "lz4",
         "only zstd is known"},
        {KIND_LITDATA, "\"compression\": null",
         "\"compression\": \"zstd:4\", \"compression_level\": \"batch\"", -ENOSYS,
         "by batch and not by whole chunks", "litdata package"},
        {KIND_LITDATA, "\"dim\": 253", "\"dim\": 252", -EBADMSG, "index.json says 252", "again"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_with(rows[i].kind, rows[i].from, rows[i].to);
        assert_refused(rows[i].kind, rows[i].code, rows[i].what, rows[i].remedy);
    }
}

static void tokens_without_ids_between_them_are_refused(void **state) {
    (void)state;
    static const uint16_t none[] = {1, 2, 3, 4}, zeros[] = {1, KIND_EOD, 2, 0, 0, 0};
    char path[128];
    write_kind(KIND_NANO, lengths, DOCUMENTS);
    (void)snprintf(path, sizeof path, "%s/c.bin", folder);
    file_write(path, none, sizeof none);
    assert_refused(KIND_NANO, -EBADMSG, "no token 50256 in it", "or to none for one document");
    file_write(path, zeros, sizeof zeros);
    assert_refused(KIND_NANO, -EBADMSG, "from token 2 on, ends in zeros", "write the file again");
    file_write(path, zeros, 3);
    assert_refused(KIND_NANO, -EBADMSG, "3 bytes, which are no whole tokens", "token_type");
    file_write(path, zeros, 6);
    struct dataset *dataset = open_sound(KIND_NANO);
    assert_int_equal(dataset_documents(dataset), 2); /* the last one without its id */
    assert_int_equal(dataset_length(dataset, 1), 1);
    dataset_close(dataset);
}

/* llm.c's shards are one dataset, and a document may go on in the next one. */
static void a_document_goes_on_in_the_next_shard(void **state) {
    (void)state;
    static const uint16_t first[] = {KIND_EOD, 1, 2, KIND_EOD, 3}, second[] = {4, 5, KIND_EOD, 6};
    static const uint16_t third[] = {KIND_EOD, 7};
    static const struct {
        const uint16_t *tokens;
        uint32_t count;
    } shards[] = {{first, 5}, {second, 4}, {third, 2}};
    static const uint16_t expected[] = {KIND_EOD, 1,        2, KIND_EOD, 3, 4,
                                        5,        KIND_EOD, 6, KIND_EOD, 7};
    static const uint32_t expected_lengths[] = {3, 4, 2, 2};
    char path[128];
    write_kind(KIND_LLM_C, lengths, 1);
    for (uint32_t s = 0; s < 3; s++) {
        uint8_t bytes[1024 + 16] = {0};
        const uint32_t header[] = {20240520, 1, shards[s].count};
        memcpy(bytes, header, sizeof header);
        memcpy(bytes + 1024, shards[s].tokens, shards[s].count * 2);
        (void)snprintf(path, sizeof path, "%s/fw_train_%06u.bin", folder, s + 9);
        file_write(path, bytes, 1024 + shards[s].count * 2);
    }
    struct dataset *dataset = NULL;
    struct error error = {0};
    (void)snprintf(path, sizeof path, "%s/fw_train", folder);
    if (dataset_open("books", path, &dataset, &error) < 0) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(dataset_format(dataset), FORMAT_BIN);
    assert_int_equal(dataset_documents(dataset), 4);
    uint16_t tokens[11];
    size_t have;
    assert_int_equal(dataset_read(dataset, 0, tokens, sizeof tokens, &have), 0);
    assert_memory_equal(tokens, expected, sizeof tokens);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(dataset_length(dataset, i), expected_lengths[i]);
    }
    dataset_close(dataset);
}

static void derived_files_are_made_once_and_bounded(void **state) {
    (void)state;
    char path[128], derived[128];
    struct format_options options = format_kind_options(KIND_NANO);
    struct dataset *dataset = NULL;
    struct error error = {0};
    write_kind(KIND_NANO, lengths, DOCUMENTS);
    (void)snprintf(path, sizeof path, "%s/c", folder);
    (void)snprintf(derived, sizeof derived, "%s/state/derived", folder);
    options.derived_dir = derived;
    options.derived_bytes_max = 47;
    assert_int_equal(dataset_open_as("books", path, &options, NULL, NULL, &dataset, &error),
                     -EFBIG);
    assert_non_null(strstr(error.text, "raise limits.derived_gb"));
    options.derived_bytes_max = 48;
    for (int i = 0; i < 2; i++) {
        error = (struct error){0};
        if (dataset_open_as("books", path, &options, NULL, NULL, &dataset, &error) < 0) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(dataset_documents(dataset), DOCUMENTS);
        dataset_close(dataset);
    }
}

static uint64_t seen_bytes;

static void see(void *context, const void *bytes, size_t count) {
    (void)context;
    (void)bytes;
    seen_bytes += count;
}

/* Over 4 million they are in a file, and answer as those in memory do. */
static void many_documents_are_kept_in_a_file(void **state) {
    (void)state;
    struct documents documents;
    struct document_index index;
    const uint64_t count = (uint64_t)WINDOW_DOCUMENTS * WINDOWS_MAX + 3000;
    uint64_t address = 0;
    documents_init(&documents, 2);
    for (uint64_t i = 0; i < count; i++) {
        address += i % 7; /* gaps */
        assert_int_equal(documents_add(&documents, address, i % 100, "x", NULL), 0);
        address += i % 100 * 2;
    }
    assert_true(documents.lengths_fd >= 0);
    assert_int_equal(documents_index(&documents, MEGATRON_U16, see, NULL, &index, NULL), 0);
    assert_int_equal(index.documents, count);
    assert_int_equal(seen_bytes, count * 12);
    assert_false(windows_resident(index.windows));
    address = 0;
    for (uint64_t i = 0; i < count; i++) {
        address += i % 7;
        if (i % 4099 == 0 || i + 5 > count) {
            assert_int_equal(document_index_length(&index, i), i % 100);
            assert_int_equal(document_index_offset(&index, i), address);
        }
        address += i % 100 * 2;
    }
    document_index_deinit(&index);
    documents_deinit(&documents);
}

static void a_document_of_2_to_the_31_tokens_is_refused(void **state) {
    (void)state;
    struct documents documents;
    struct error error = {0};
    documents_init(&documents, 2);
    assert_int_equal(documents_add(&documents, 0, INT32_MAX, "x", &error), 0);
    assert_int_equal(documents_add(&documents, documents.next, UINT64_C(1) << 31, "x.bin", &error),
                     -EBADMSG);
    assert_non_null(strstr(error.text, "x.bin: document 1 has 2147483648 tokens"));
    documents_deinit(&documents);
}

static void megatron_by_name_says_what_else_lies_there(void **state) {
    (void)state;
    char path[128];
    struct format_options options = {.format = FORMAT_MEGATRON, .eod = FORMAT_EOD_AUTO};
    struct dataset *dataset = NULL;
    struct error error = {0};
    write_kind(KIND_MDS, lengths, DOCUMENTS);
    (void)snprintf(path, sizeof path, "%s/m", folder);
    assert_int_equal(dataset_open_as("b", path, &options, NULL, NULL, &dataset, &error), -ENOENT);
    assert_non_null(strstr(error.text, "an MDS folder"));
    assert_non_null(strstr(error.text, "corpus.format to auto"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_document_is_read_as_it_was_written),
        cmocka_unit_test(one_empty_and_no_documents_are_legal),
        cmocka_unit_test(the_same_tokens_have_the_same_fingerprint_in_any_dense_format),
        cmocka_unit_test(verify_reads_every_format),
        cmocka_unit_test(no_truncated_file_is_read_beyond_its_end),
        cmocka_unit_test(no_flipped_bit_puts_a_document_outside),
        cmocka_unit_test(lies_are_named_with_file_offset_and_remedy),
        cmocka_unit_test(what_is_not_read_is_refused_with_its_converter),
        cmocka_unit_test(tokens_without_ids_between_them_are_refused),
        cmocka_unit_test(a_document_goes_on_in_the_next_shard),
        cmocka_unit_test(derived_files_are_made_once_and_bounded),
        cmocka_unit_test(many_documents_are_kept_in_a_file),
        cmocka_unit_test(a_document_of_2_to_the_31_tokens_is_refused),
        cmocka_unit_test(megatron_by_name_says_what_else_lies_there),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
