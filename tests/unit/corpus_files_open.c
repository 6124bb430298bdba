/* Files that are opened when they are read: how many are open, and what is refused. */
#include "corpus/files.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 20u

struct world {
    char folder[64];
    struct files *files;
    struct file *file[FILES];
};

static void path_of(const struct world *world, uint32_t i, char path[96]) {
    snprintf(path, 96, "%s/%u", world->folder, i);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    strcpy(world->folder, "/tmp/ballast-files-XXXXXX");
    assert_non_null(mkdtemp(world->folder));
    assert_int_equal(files_create(4, &world->files, NULL), 0);
    for (uint32_t i = 0; i < FILES; i++) {
        char path[96], text[16];
        path_of(world, i, path);
        snprintf(text, sizeof text, "%u", i);
        write_file(path, text);
        assert_int_equal(file_create(world->files, path, false, &world->file[i], NULL), 0);
    }
    *state = world;
    return 0;
}

static int teardown(void **state) {
    struct world *world = *state;
    for (uint32_t i = 0; i < FILES; i++) {
        char path[96];
        path_of(world, i, path);
        unlink(path);
        file_destroy(world->file[i]);
    }
    files_destroy(world->files);
    rmdir(world->folder);
    free(world);
    return 0;
}

static bool reads(struct file *file, uint32_t i) {
    char expected[16], text[16] = "";
    int fd = file_acquire(file);
    assert_true(fd >= 0);
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    file_release(file);
    snprintf(expected, sizeof expected, "%u", i);
    return got > 0 && strcmp(text, expected) == 0;
}

static void more_files_than_descriptors_are_read_through_few(void **state) {
    struct world *world = *state;
    for (uint32_t turn = 0; turn < 200; turn++) {
        uint32_t i = turn * 7 % FILES;
        assert_true(reads(world->file[i], i));
        assert_true(files_open(world->files) <= 4);
    }
}

static void what_is_being_read_is_not_closed(void **state) {
    struct world *world = *state;
    int held[FILES];
    for (uint32_t i = 0; i < FILES; i++) {
        held[i] = file_acquire(world->file[i]);
        assert_true(held[i] >= 0);
        assert_int_equal(file_acquire(world->file[i]), held[i]);
        file_release(world->file[i]);
    }
    assert_int_equal(files_open(world->files), FILES);
    for (uint32_t i = 0; i < FILES; i++) {
        assert_true(fcntl(held[i], F_GETFD) >= 0);
        file_release(world->file[i]);
    }
    assert_true(reads(world->file[0], 0));
}

static void what_was_used_longest_ago_is_closed_first(void **state) {
    struct world *world = *state;
    int fd = file_acquire(world->file[0]);
    file_release(world->file[0]);
    for (uint32_t i = 1; i < FILES; i++) {
        assert_true(reads(world->file[i], i));
        assert_int_equal(file_acquire(world->file[0]), fd);
        file_release(world->file[0]);
    }
}

static void a_changed_file_is_told_from_the_one_that_was_opened(void **state) {
    struct world *world = *state;
    static const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    char path[4][96];
    for (uint32_t i = 0; i < 4; i++) {
        path_of(world, i, path[i]);
        assert_int_equal(file_check(world->file[i]), 0);
    }
    assert_int_equal(truncate(path[0], 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, path[1], old, 0), 0);
    assert_int_equal(unlink(path[2]), 0);
    assert_int_equal(rename(path[3], path[2]), 0);
    assert_int_equal(file_check(world->file[0]), -ESTALE);
    assert_int_equal(file_check(world->file[1]), -ESTALE);
    assert_int_equal(file_check(world->file[2]), -ESTALE);
    assert_int_equal(file_check(world->file[3]), -ENOENT);
}

/* Closed meanwhile, so that it has to be opened anew. */
static void another_file_at_the_same_path_is_not_opened(void **state) {
    struct world *world = *state;
    char path[96];
    path_of(world, 0, path);
    for (uint32_t i = 1; i < FILES; i++) {
        assert_true(reads(world->file[i], i));
    }
    unlink(path);
    assert_int_equal(file_acquire(world->file[0]), -ENOENT);
    write_file(path, "0");
    assert_int_equal(file_acquire(world->file[0]), -ESTALE);
}

static void a_forgotten_file_is_opened_anew(void **state) {
    struct world *world = *state;
    char path[96];
    path_of(world, 0, path);
    assert_true(reads(world->file[0], 0));
    file_forget(world->file[0]);
    assert_true(reads(world->file[0], 0));
    file_forget(world->file[0]);
    unlink(path);
    assert_int_equal(file_acquire(world->file[0]), -ENOENT);
}

static void what_is_no_regular_file_is_refused(void **state) {
    struct world *world = *state;
    struct file *file = NULL;
    struct error error = {0};
    assert_int_equal(file_create(world->files, world->folder, false, &file, &error), -EINVAL);
    assert_non_null(strstr(error.text, "not a regular file"));
    assert_int_equal(file_create(world->files, "/nowhere/at/all", false, &file, &error), -ENOENT);
    assert_null(file);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(more_files_than_descriptors_are_read_through_few),
        TEST(what_is_being_read_is_not_closed),
        TEST(what_was_used_longest_ago_is_closed_first),
        TEST(a_changed_file_is_told_from_the_one_that_was_opened),
        TEST(another_file_at_the_same_path_is_not_opened),
        TEST(a_forgotten_file_is_opened_anew),
        TEST(what_is_no_regular_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
