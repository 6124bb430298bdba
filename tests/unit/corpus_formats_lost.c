/* Token files of every format that are lost, cut, replaced or written to while they are open: the
 * slots that need them end with an error that names dataset, file, document and remedy, and other
 * datasets are read as before. */
#include "corpus/derived.h"
#include "tests/unit/corpus_files.h"
#include "tests/unit/format_files.h"
#include "corpus/files.h"
#include "tests/unit/tokens_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

static struct tokens_world world;
static const uint32_t lengths[] = {30, 1, 200, 7, 41};
#define DOCUMENTS (sizeof lengths / sizeof lengths[0])

enum fate { LOST, CUT, REPLACED, WRITTEN, FATES };

static int set_up(void **state) {
    (void)state;
    tokens_world_open(&world);
    return setenv("TMPDIR", world.folder, 1);
}

static int tear_down(void **state) {
    (void)state;
    tokens_world_close(&world);
    return 0;
}

static void write_at(enum format_kind kind, const char *folder) {
    struct format_files files;
    test_folder_remove(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    format_files_build(kind, lengths, DOCUMENTS, &files);
    format_files_write(&files, folder);
    format_files_free(&files);
}

/* Two datasets of the kind, "victim" and "other". */
static void open_pair(enum format_kind kind) {
    static const char *const names[] = {"victim", "other"};
    char folders[2][96], paths[2][256];
    struct catalog_entry entries[2];
    struct format_options options = format_kind_options(kind);
    struct error error = {0};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(folders[i], sizeof folders[i], "%s/%s", world.folder, names[i]);
        (void)snprintf(paths[i], sizeof paths[i], "%s/%s", folders[i], format_kind_path(kind));
        write_at(kind, folders[i]);
        entries[i] = (struct catalog_entry){names[i], paths[i], 1};
    }
    if (catalog_open_as(entries, 2, &options, NULL, &world.catalog, &error) < 0) {
        fail_msg("kind %d: %s", kind, error.text);
    }
}

static void befall(enum fate fate, const char *path) {
    char other[256];
    size_t count;
    uint8_t *bytes = file_read_whole(path, &count);
    struct timespec later[2] = {{.tv_sec = time(NULL) + 60}, {.tv_sec = time(NULL) + 60}};
    switch (fate) {
    case LOST:
        assert_int_equal(unlink(path), 0);
        break;
    case CUT: /* in the middle of the last document */
        assert_int_equal(truncate(path, (off_t)count - 20), 0);
        break;
    case REPLACED:
        (void)snprintf(other, sizeof other, "%s.new", path);
        file_write(other, bytes, count);
        assert_int_equal(rename(other, path), 0);
        break;
    case WRITTEN:
        file_write(path, bytes, count);
        assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
        break;
    case FATES:
        break;
    }
    free(bytes);
}

static void read_last(uint32_t dataset, struct reader *reader, struct tokens_target *target) {
    struct tokens_job job = {0};
    static uint16_t payload[64];
    const uint32_t last = DOCUMENTS - 1;
    struct document part = {.dataset = dataset,
                            .document = last,
                            .length = lengths[last],
                            .document_length = lengths[last]};
    assert_int_equal(tokens_prepare_one(&job, &world, &part, 1, 2, false, payload, target), 0);
    tokens_run_read(reader, &job);
    tokens_job_deinit(&job);
}

static void expect_lost(enum format_kind kind, enum fate fate, const struct error *error,
                        const char *path) {
    static const int codes[FATES] = {-ENOENT, -ENODATA, -ESTALE, -ESTALE};
    if (error->code != codes[fate] || strstr(error->text, "dataset 'victim': ") == NULL ||
        strstr(error->text, path) == NULL || strstr(error->text, "document 4") == NULL ||
        strstr(error->text, "; ") == NULL) {
        fail_msg("kind %d, fate %d: %d: %s", kind, fate, error->code, error->text);
    }
}

static void what_is_lost_is_named_and_other_datasets_go_on(void **state) {
    (void)state;
    for (enum format_kind kind = 0; kind < KIND_COUNT; kind++) {
        for (enum fate fate = 0; fate < FATES; fate++) {
            open_pair(kind);
            const char *path = dataset_bin_path(catalog_dataset(world.catalog, 0));
            befall(fate, path);
            for (uint32_t i = 0; i < 2; i++) {
                struct tokens_target target;
                read_last(0, world.readers[i], &target);
                expect_lost(kind, fate, &target.error, path);
                read_last(1, world.readers[i], &target);
                assert_int_equal(target.error.code, 0);
            }
            catalog_close(world.catalog);
            world.catalog = NULL;
        }
    }
}

/* A name of a derived file, as derived.c has them. */
static void derived_write(const char *folder, char source, char version, const char *tail,
                          int days_ago) {
    char path[256];
    struct timespec times[2] = {{.tv_sec = time(NULL) - days_ago * 86400}, {.tv_nsec = UTIME_OMIT}};
    char name[96];
    memset(name, source, 32);
    name[32] = '-';
    memset(name + 33, version, 16);
    (void)snprintf(name + 49, sizeof name - 49, "%s", tail);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file_write(path, "12345678", 8);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static struct derived_usage pruned(const char *folder, uint32_t days, bool remove) {
    struct derived_usage usage;
    struct error error = {0};
    if (derived_prune(folder, days, remove, &usage, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return usage;
}

static void derived_files_that_nobody_needs_are_removed_while_nobody_uses_them(void **state) {
    char folder[96], stranger[128];
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/derived", world.folder);
    assert_int_equal(pruned(folder, 30, true).files, 0); /* it is not there */
    assert_int_equal(mkdir(folder, 0700), 0);
    derived_write(folder, 'a', '1', "", 5);
    derived_write(folder, 'b', '1', "", 40); /* too old */
    derived_write(folder, 'c', '1', "", 3);  /* superseded */
    derived_write(folder, 'c', '2', "", 1);
    derived_write(folder, 'd', '1', ".123", 0); /* of a writer that died */
    char older[160];
    (void)snprintf(older, sizeof older, "%s/0123456789abcdef0123456789abcdef", folder);
    file_write(older, "12345678", 8);
    (void)snprintf(stranger, sizeof stranger, "%s/notes.txt", folder);
    file_write(stranger, "x", 1);
    struct derived_usage usage = pruned(folder, 30, false);
    assert_int_equal(usage.files, 6);
    assert_int_equal(usage.bytes, 48);
    assert_int_equal(usage.stale_files, 4);
    assert_true(usage.oldest_s >= 40 * 86400 && usage.oldest_s < 41 * 86400);
    assert_false(usage.in_use || usage.removed);
    assert_int_equal(pruned(folder, 0, false).stale_files, 3); /* never too old */

    struct files *files = NULL;
    char lock[128];
    (void)snprintf(lock, sizeof lock, "%s/lock", folder);
    assert_int_equal(files_create(8, &files, NULL), 0);
    assert_int_equal(files_hold(files, lock), 0);
    assert_int_equal(files_hold(files, lock), 0);
    usage = pruned(folder, 30, true);
    assert_true(usage.in_use && !usage.removed);
    assert_int_equal(pruned(folder, 30, false).files, 6);
    files_destroy(files);

    usage = pruned(folder, 30, true);
    assert_true(usage.removed && !usage.in_use);
    assert_int_equal(usage.stale_files, 4);
    usage = pruned(folder, 30, true);
    assert_int_equal(usage.files, 2);
    assert_int_equal(usage.stale_files, 0);
    assert_int_equal(access(stranger, F_OK), 0);
    test_folder_remove(folder);
}

/* What the daemon's own opening keeps is not stale, a version that a newer one superseded is. */
static void a_dataset_asks_for_its_derived_files_and_holds_the_folder(void **state) {
    char folder[96], derived[96], path[256];
    struct format_options options = format_kind_options(KIND_NANO);
    struct dataset *dataset = NULL;
    struct error error = {0};
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/kept", world.folder);
    (void)snprintf(derived, sizeof derived, "%s/derived", world.folder);
    (void)snprintf(path, sizeof path, "%s/%s", folder, format_kind_path(KIND_NANO));
    write_at(KIND_NANO, folder);
    options.derived_dir = derived;
    for (int version = 0; version < 2; version++) {
        if (dataset_open_as("kept", path, &options, NULL, NULL, &dataset, &error) < 0) {
            fail_msg("%s", error.text);
        }
        struct derived_usage usage = pruned(derived, 1, true);
        assert_true(usage.in_use);
        assert_int_equal(usage.files, version + 1);
        assert_int_equal(usage.stale_files, version);
        befall(WRITTEN, dataset_bin_path(dataset)); /* to another time of change */
        dataset_close(dataset);
        assert_false(pruned(derived, 1, false).in_use);
    }
    assert_int_equal(pruned(derived, 1, true).stale_files, 1);
    assert_int_equal(pruned(derived, 1, true).files, 1);
    test_folder_remove(derived);
    test_folder_remove(folder);
}

/* Writes, while another that has the same pid makes the same file. */
struct racing {
    struct derived *other; /* NULL: nobody */
    const struct derivation *derivation;
    ino_t first; /* what the other made */
};

static int make_racing(void *context, int fd, struct error *error) {
    struct racing *racing = context;
    struct derived *other = racing->other;
    char *path = NULL;
    racing->other = NULL;
    assert_int_equal(write(fd, "1234", 4), 4);
    if (other != NULL) {
        struct stat info;
        assert_int_equal(derived_get(other, racing->derivation, &path, error), 0);
        assert_int_equal(stat(path, &info), 0);
        racing->first = info.st_ino;
        free(path);
    }
    assert_int_equal(write(fd, "5678", 4), 4);
    return 0;
}

static void two_with_the_same_pid_make_a_derived_file_and_the_first_one_stays(void **state) {
    char folder[96], source[96];
    struct derived *both[2];
    struct files *files = NULL;
    struct error error = {0};
    char *path = NULL;
    struct stat info;
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/derived", world.folder);
    (void)snprintf(source, sizeof source, "%s/source", world.folder);
    file_write(source, "x", 1);
    assert_int_equal(files_create(8, &files, &error), 0);
    struct racing racing = {0};
    const struct derivation derivation = {
        .source = source, .what = "test", .bytes = 8, .make = make_racing, .context = &racing};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(derived_create(folder, 0, files, &both[i], &error), 0);
    }
    racing = (struct racing){both[1], &derivation, 0};
    if (derived_get(both[0], &derivation, &path, &error) < 0) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 8);
    assert_int_equal(info.st_ino, racing.first); /* which the other may read by now */
    free(path);
    derived_destroy(both[0]);
    derived_destroy(both[1]);
    files_destroy(files);
    assert_int_equal(pruned(folder, 0, false).files, 1);
    test_folder_remove(folder);
}

static void what_is_derived_is_held_where_the_folder_may_only_be_read(void **state) {
    char folder[96], lock[128];
    struct files *files = NULL;
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/derived", world.folder);
    (void)snprintf(lock, sizeof lock, "%s/lock", folder);
    assert_int_equal(mkdir(folder, 0755), 0);
    file_write(lock, "", 0);
    assert_int_equal(chmod(lock, 0444) | chmod(world.folder, 0755), 0);
    bool root = geteuid() == 0;
    assert_int_equal(files_create(8, &files, NULL), 0);
    assert_int_equal(root ? seteuid(65534) : 0, 0);
    int code = files_hold(files, lock);
    assert_int_equal(root ? seteuid(0) : 0, 0);
    assert_int_equal(code, 0);
    assert_true(pruned(folder, 30, true).in_use);
    files_destroy(files);
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_lost_is_named_and_other_datasets_go_on),
        cmocka_unit_test(derived_files_that_nobody_needs_are_removed_while_nobody_uses_them),
        cmocka_unit_test(a_dataset_asks_for_its_derived_files_and_holds_the_folder),
        cmocka_unit_test(two_with_the_same_pid_make_a_derived_file_and_the_first_one_stays),
        cmocka_unit_test(what_is_derived_is_held_where_the_folder_may_only_be_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
