/* Import: what is taken, in which order, what comes out, and what is refused. */
#include "corpus/dataset.h"
#include "corpus/import.h"
#include "corpus/verify.h"
#include "tests/unit/corpus_files.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static char folder[64];
static char root[128];
static char prefix[144];

static const char *in_root(const char *name) {
    static char paths[4][256];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void text_write(const char *name, const char *text) {
    file_write(in_root(name), text, strlen(text));
}

static void gz_write(const char *name, const char *text) {
    gzFile file = gzopen(in_root(name), "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
}

static int import(const struct import_options *options, struct import_progress *result,
                  struct error *error) {
    struct import_options all = *options;
    all.root = all.root == NULL ? root : all.root;
    all.prefix = prefix;
    return import_text(&all, NULL, NULL, result, error);
}

static struct import_progress import_sound(const struct import_options *options) {
    struct import_progress result = {0};
    struct error error = {0};
    if (import(options, &result, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return result;
}

static void assert_refused(const struct import_options *options, int code, const char *path,
                           const char *what) {
    struct import_progress result = {.files = 77};
    struct error error = {0};
    char names[2][200];
    int rc = import(options, &result, &error);
    if (rc != code || error.code != code || strstr(error.text, path) == NULL ||
        strstr(error.text, what) == NULL || strchr(error.text, ';') == NULL) {
        fail_msg("rc %d, wanted %d with '%s', '%s': %s", rc, code, path, what, error.text);
    }
    assert_int_equal(result.files, 77);
    snprintf(names[0], sizeof names[0], "%s.bin.tmp.%ld", prefix, (long)getpid());
    snprintf(names[1], sizeof names[1], "%s.idx.tmp.%ld", prefix, (long)getpid());
    assert_int_equal(access(names[0], F_OK), -1);
    assert_int_equal(access(names[1], F_OK), -1);
}

/* The dataset holds exactly these documents, in order. */
static void assert_documents(const char *const *texts, uint64_t count) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    if (dataset_open("imported", prefix, &dataset, &error) < 0) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(dataset_dtype(dataset), 8);
    assert_int_equal(dataset_documents(dataset), count);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t tokens[256];
        size_t chars = strlen(texts[i]);
        size_t have;
        assert_int_equal(dataset_length(dataset, i), chars + 1);
        assert_int_equal(
            dataset_read(dataset, dataset_offset(dataset, i), tokens, 2 * (chars + 1), &have), 0);
        for (size_t j = 0; j < chars; j++) {
            assert_int_equal(tokens[j], (uint8_t)texts[i][j]);
        }
        assert_int_equal(tokens[chars], IMPORT_EOD);
    }
    dataset_close(dataset);
}

static void files_become_documents_in_byte_order_of_their_paths(void **state) {
    (void)state;
    static const char *const texts[] = {"upper", "dot",   "in folder",
                                        "digit", "plain", "\xff\x80\x01"};
    mkdir(in_root("a"), 0700);
    text_write("a.txt", "dot");
    text_write("a/b.txt", "in folder");
    text_write("a0.txt", "digit");
    text_write("b.txt", "plain");
    text_write("B.txt", "upper");
    text_write("\xc3\xa9.txt", "\xff\x80\x01");
    struct import_progress result = import_sound(&(struct import_options){0});
    assert_documents(texts, 6);
    assert_int_equal(result.files, 6);
    assert_int_equal(result.files_total, 6);
    assert_int_equal(result.documents, 6);
    assert_int_equal(result.bytes, 5 + 3 + 9 + 5 + 5 + 3);
    assert_int_equal(result.tokens, result.bytes + 6);
    assert_int_equal(result.skipped, 0);
}

static void empty_files_and_links_are_skipped_and_counted(void **state) {
    (void)state;
    static const char *const texts[] = {"one"};
    text_write("one.txt", "one");
    text_write("empty.txt", "");
    assert_int_equal(symlink(in_root("one.txt"), in_root("link.txt")), 0);
    assert_int_equal(symlink(root, in_root("loop.txt")), 0);
    assert_int_equal(symlink("nowhere", in_root("dangling.txt")), 0);
    assert_int_equal(symlink("nowhere", in_root("other.md")), 0);
    struct import_progress result = import_sound(&(struct import_options){.suffixes = "txt"});
    assert_documents(texts, 1);
    assert_int_equal(result.skipped, 4);
    assert_int_equal(result.files, 2);
    assert_int_equal(result.documents, 1);
}

static void only_matching_suffixes_are_taken(void **state) {
    (void)state;
    static const char *const texts[] = {"hidden", "html", "pod", "txt"};
    text_write("a.html", "html");
    text_write("b.pod", "pod");
    text_write("c.txt", "txt");
    text_write("d.txt.bak", "no");
    text_write("etxt", "no");
    text_write("f", "no");
    text_write(".txt", "hidden");
    import_sound(&(struct import_options){.suffixes = "txt,.pod,html"});
    assert_documents(texts, 4);
}

static void compressed_files_are_read_through_gunzip(void **state) {
    (void)state;
    static const char *const texts[] = {"first", "second", "third"};
    gz_write("a.1.gz", "first");
    text_write("b.1", "second");
    gz_write("c.1.gz", "third");
    gz_write("d.gz", "no");
    import_sound(&(struct import_options){.suffixes = "1", .decompress_gz = true});
    assert_documents(texts, 3);
}

static void compressed_files_are_bytes_without_gunzip(void **state) {
    (void)state;
    static const char *const texts[] = {"second"};
    gz_write("a.1.gz", "first");
    text_write("b.1", "second");
    import_sound(&(struct import_options){.suffixes = "1"});
    assert_documents(texts, 1);
}

static void damaged_compressed_files_are_refused(void **state) {
    (void)state;
    const struct import_options options = {.decompress_gz = true};
    char text[4096];
    size_t count;
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (char)('a' + i * i % 26);
    }
    text[sizeof text - 1] = '\0';
    gz_write("a.gz", text);
    uint8_t *bytes = file_read_whole(in_root("a.gz"), &count);
    for (size_t keep = 1; keep < count; keep++) {
        file_write(in_root("a.gz"), bytes, keep);
        assert_refused(&options, -EBADMSG, "a.gz", "");
    }
    free(bytes);
    text_write("a.gz", "plain text");
    assert_refused(&options, -EBADMSG, "a.gz", "no gzip data");
}

static void one_file_is_a_corpus_whatever_its_name(void **state) {
    (void)state;
    static const char *const texts[] = {"alone"};
    text_write("README", "alone");
    import_sound(&(struct import_options){.root = in_root("README"), .suffixes = "txt"});
    assert_documents(texts, 1);
}

static void long_files_pass_through_every_buffer(void **state) {
    (void)state;
    static uint8_t text[300001];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)(i * i >> 3);
    }
    file_write(in_root("long"), text, sizeof text);
    import_sound(&(struct import_options){0});
    char path[200];
    size_t count;
    snprintf(path, sizeof path, "%s.bin", prefix);
    uint8_t *bin = file_read_whole(path, &count);
    assert_int_equal(count, 2 * sizeof text + 2);
    for (size_t i = 0; i < sizeof text; i++) {
        assert_int_equal(bin[2 * i] | bin[2 * i + 1] << 8, text[i]);
    }
    free(bin);
}

static void existing_prefix_needs_force(void **state) {
    (void)state;
    static const char *const old[] = {"old"};
    static const char *const new[] = {"new"};
    text_write("a", "old");
    import_sound(&(struct import_options){0});
    text_write("a", "new");
    assert_refused(&(struct import_options){0}, -EEXIST, prefix, "force");
    assert_documents(old, 1);
    import_sound(&(struct import_options){.force = true});
    assert_documents(new, 1);
}

static void a_lone_bin_is_not_overwritten_without_force(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s.bin", prefix);
    file_write(path, "tokens", 6);
    text_write("a", "text");
    assert_refused(&(struct import_options){0}, -EEXIST, path, "force");
}

static void own_output_inside_the_tree_is_not_imported(void **state) {
    (void)state;
    static const char *const texts[] = {"text"};
    snprintf(prefix, sizeof prefix, "%s/out", root);
    text_write("a", "text");
    for (int i = 0; i < 2; i++) {
        import_sound(&(struct import_options){.force = true});
        assert_documents(texts, 1);
    }
}

static void nothing_to_import_is_refused(void **state) {
    (void)state;
    assert_refused(&(struct import_options){0}, -ENOENT, root, "0 files to import");
    assert_refused(&(struct import_options){.root = "/nonexistent/x"}, -ENOENT, "/nonexistent/x",
                   "check the path");
    text_write("empty", "");
    assert_refused(&(struct import_options){0}, -ENOENT, root, "all files are empty");
    text_write("a", "text");
    snprintf(prefix, sizeof prefix, "%s/no/such/folder", folder);
    assert_refused(&(struct import_options){0}, -ENOENT, "no/such", "make the folder");
}

/* As nobody when the tests run as root, who reads everything. */
static void unreadable_files_and_folders_are_named(void **state) {
    (void)state;
    uid_t user = geteuid();
    text_write("a", "text");
    chmod(in_root("a"), 0);
    chmod(folder, 0777);
    chmod(root, 0777);
    assert_int_equal(seteuid(user == 0 ? 65534 : user), 0);
    assert_refused(&(struct import_options){0}, -EACCES, "/a", "permissions");
    assert_int_equal(mkdir(in_root("locked"), 0), 0);
    assert_refused(&(struct import_options){0}, -EACCES, "/locked", "permissions");
    chmod(in_root("locked"), 0700);
    assert_int_equal(seteuid(user), 0);
}

struct calls {
    uint64_t count;
    struct import_progress last;
};

static void count_calls(const struct import_progress *progress, void *context) {
    struct calls *calls = context;
    assert_true(progress->files >= calls->last.files && progress->bytes >= calls->last.bytes);
    calls->last = *progress;
    calls->count++;
}

static void progress_ends_with_the_result(void **state) {
    (void)state;
    struct calls calls = {0};
    struct import_options options = {.root = root, .prefix = prefix};
    struct import_progress result;
    text_write("a", "text");
    text_write("b", "text");
    assert_int_equal(import_text(&options, count_calls, &calls, &result, NULL), 0);
    assert_true(calls.count >= 1);
    assert_memory_equal(&calls.last, &result, sizeof result);
}

static int setup(void **state) {
    (void)state;
    test_folder_make(folder);
    snprintf(root, sizeof root, "%s/text", folder);
    snprintf(prefix, sizeof prefix, "%s/corpus", folder);
    return mkdir(root, 0700);
}

static int teardown(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

#define IMPORT_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IMPORT_TEST(files_become_documents_in_byte_order_of_their_paths),
        IMPORT_TEST(empty_files_and_links_are_skipped_and_counted),
        IMPORT_TEST(only_matching_suffixes_are_taken),
        IMPORT_TEST(compressed_files_are_read_through_gunzip),
        IMPORT_TEST(compressed_files_are_bytes_without_gunzip),
        IMPORT_TEST(damaged_compressed_files_are_refused),
        IMPORT_TEST(one_file_is_a_corpus_whatever_its_name),
        IMPORT_TEST(long_files_pass_through_every_buffer),
        IMPORT_TEST(existing_prefix_needs_force),
        IMPORT_TEST(a_lone_bin_is_not_overwritten_without_force),
        IMPORT_TEST(own_output_inside_the_tree_is_not_imported),
        IMPORT_TEST(nothing_to_import_is_refused),
        IMPORT_TEST(unreadable_files_and_folders_are_named),
        IMPORT_TEST(progress_ends_with_the_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
