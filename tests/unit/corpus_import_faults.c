/* Import when the world fails: the 1st, 2nd, 3rd... call that reaches the disk or the heap fails,
 * or the process dies there, until the import gets through. Whatever happens, the prefix is whole
 * (old or new) or has no index; and what failed leaves no temporary file. The calls are wrapped by
 * the linker. */
#include "corpus/dataset.h"
#include "corpus/import.h"
#include "tests/unit/corpus_files.h"

#include <dirent.h>
#include <fts.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static char root[128];
static char prefix[128];

static long calls_left = -1; /* until the fault; negative: none is due */
static bool fault_kills;

static bool fault_is_due(int code) {
    if (calls_left < 0 || calls_left-- > 0) {
        return false;
    }
    if (fault_kills) {
        _exit(9);
    }
    errno = code;
    return true;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_fflush(FILE *file);
int __wrap_fflush(FILE *file);
size_t __real_fwrite(const void *bytes, size_t size, size_t count, FILE *file);
size_t __wrap_fwrite(const void *bytes, size_t size, size_t count, FILE *file);
ssize_t __real_read(int fd, void *to, size_t count);
ssize_t __wrap_read(int fd, void *to, size_t count);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_reallocarray(void *old, size_t count, size_t size);
void *__wrap_reallocarray(void *old, size_t count, size_t size);

int __wrap_rename(const char *from, const char *to) {
    return fault_is_due(EIO) ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path) {
    if (strstr(path, ".tmp.") != NULL) {
        return __real_unlink(path);
    }
    return fault_is_due(EIO) ? -1 : __real_unlink(path);
}

int __wrap_fsync(int fd) {
    return fault_is_due(EIO) ? -1 : __real_fsync(fd);
}

int __wrap_fflush(FILE *file) {
    return fault_is_due(ENOSPC) ? EOF : __real_fflush(file);
}

size_t __wrap_fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
    return fault_is_due(ENOSPC) ? 0 : __real_fwrite(bytes, size, count, file);
}

ssize_t __wrap_read(int fd, void *to, size_t count) {
    return fault_is_due(EIO) ? -1 : __real_read(fd, to, count);
}

char *__wrap_strdup(const char *text) {
    return fault_is_due(ENOMEM) ? NULL : __real_strdup(text);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fault_is_due(ENOMEM) ? NULL : __real_calloc(count, size);
}

void *__wrap_reallocarray(void *old, size_t count, size_t size) {
    return fault_is_due(ENOMEM) ? NULL : __real_reallocarray(old, count, size);
}

static void text_write(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    file_write(path, text, strlen(text));
}

static int import(struct error *error) {
    struct import_options options = {.root = root, .prefix = prefix, .force = true};
    struct import_progress result;
    return import_text(&options, NULL, NULL, &result, error);
}

/* Tokens of the dataset; 0 without an index. An index that does not open fails. */
static uint64_t tokens_at_prefix(void) {
    char path[160];
    struct dataset *dataset = NULL;
    struct error error = {0};
    snprintf(path, sizeof path, "%s.idx", prefix);
    if (access(path, F_OK) < 0) {
        return 0;
    }
    if (dataset_open("imported", prefix, &dataset, &error) < 0) {
        fail_msg("%s", error.text);
    }
    uint64_t tokens = dataset_tokens(dataset);
    dataset_close(dataset);
    return tokens;
}

static uint32_t temporary_files(bool remove_them) {
    DIR *directory = opendir(folder);
    uint32_t count = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (strstr(entry->d_name, ".tmp.") != NULL) {
            count++;
            if (remove_them) {
                char path[400];
                snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
                __real_unlink(path);
            }
        }
    }
    closedir(directory);
    return count;
}

enum { OLD_TOKENS = 4, NEW_TOKENS = 4 + 6 };

static void old_import(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/b", root);
    __real_unlink(path);
    text_write("a", "old");
    assert_int_equal(import(NULL), 0);
    assert_int_equal(tokens_at_prefix(), OLD_TOKENS);
    text_write("a", "new");
    text_write("b", "newer");
}

static void every_failing_call_leaves_whole_or_nothing(void **state) {
    (void)state;
    long call = 0;
    for (;; call++) {
        struct error error = {0};
        old_import();
        calls_left = call;
        int rc = import(&error);
        bool reached = calls_left < 0;
        calls_left = -1;
        uint64_t tokens = tokens_at_prefix();
        assert_int_equal(temporary_files(false), 0);
        if (!reached) {
            assert_int_equal(rc, 0);
            assert_int_equal(tokens, NEW_TOKENS);
            break;
        }
        assert_true(rc < 0 && error.code == rc && strchr(error.text, ';') != NULL);
        assert_true(tokens == OLD_TOKENS || tokens == NEW_TOKENS || tokens == 0);
    }
    assert_true(call > 20);
}

static void death_at_every_call_leaves_whole_or_nothing(void **state) {
    (void)state;
    bool alive = false;
    for (long call = 0; !alive; call++) {
        old_import();
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            fault_kills = true;
            calls_left = call;
            _exit(import(NULL) == 0 ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        alive = WEXITSTATUS(status) == 0;
        uint64_t tokens = tokens_at_prefix();
        assert_true(tokens == NEW_TOKENS || (!alive && (tokens == OLD_TOKENS || tokens == 0)));
        temporary_files(true);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_failing_call_leaves_whole_or_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(death_at_every_call_leaves_whole_or_nothing, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
