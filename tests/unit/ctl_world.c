/* ctl_world: see ctl_world.h. */
#include "ctl_world.h"

#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ARGUMENTS_MAX 48
#define PATHS         4

extern char **environ;

static int file_temporary(void) {
    FILE *file = tmpfile();
    assert_non_null(file);
    int fd = dup(fileno(file));
    assert_true(fd >= 0);
    assert_int_equal(fclose(file), 0);
    return fd;
}

static char *file_take(int fd) {
    struct stat stat;
    assert_int_equal(fstat(fd, &stat), 0);
    char *text = calloc(1, (size_t)stat.st_size + 1);
    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)stat.st_size, 0), stat.st_size);
    close(fd);
    return text;
}

void ran_ctl(struct ran *ran, ...) {
    char *argv[ARGUMENTS_MAX + 1] = {BALLASTCTL};
    size_t count = 1;
    va_list arguments;
    va_start(arguments, ran);
    do {
        assert_true(count < ARGUMENTS_MAX);
        argv[count] = va_arg(arguments, char *);
    } while (argv[count++] != NULL);
    va_end(arguments);

    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;
    int out = file_temporary();
    int err = file_temporary();
    ran_free(ran);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO), 0);
    assert_int_equal(posix_spawn(&pid, BALLASTCTL, &actions, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    (void)posix_spawn_file_actions_destroy(&actions);
    ran->code = WEXITSTATUS(status);
    ran->out = file_take(out);
    ran->err = file_take(err);
}

void ran_environment_clear(void) {
    unsetenv("BALLAST_SOCKET");
    unsetenv("BALLAST_STATE");
    unsetenv("BALLAST_CONFIG");
    unsetenv("BALLAST_JSON");
    unsetenv("BALLAST_TIMEOUT");
}

void ran_free(struct ran *ran) {
    free(ran->out);
    free(ran->err);
    memset(ran, 0, sizeof *ran);
}

void ran_expect(const struct ran *ran, int code) {
    if (ran->code != code) {
        fail_msg("exit code %d, not %d\n%s\n%s", ran->code, code, ran->err, ran->out);
    }
}

json_t *ran_json(const struct ran *ran) {
    json_error_t error;
    json_t *json = json_loads(ran->out, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        fail_msg("%s\n%s", error.text, ran->out);
    }
    return json;
}

size_t text_width(const char *text) {
    size_t widest = 0;
    while (*text != '\0') {
        size_t width = strcspn(text, "\n");
        widest = width > widest ? width : widest;
        text += width + (text[width] == '\n');
    }
    return widest;
}

void world_open(struct world *world) {
    (void)snprintf(world->dir, sizeof world->dir, "/tmp/ballast-ctl-XXXXXX");
    assert_non_null(mkdtemp(world->dir));
}

void world_close(struct world *world) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", world->dir);
    assert_int_equal(system(command), 0);
}

const char *world_path(const struct world *world, const char *name) {
    static char paths[PATHS][256];
    static size_t next;
    char *path = paths[next++ % PATHS];
    (void)snprintf(path, sizeof paths[0], "%s/%s", world->dir, name);
    return path;
}

static void folder_of(const char *path) {
    char folder[256];
    (void)snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    (void)mkdir(folder, 0777);
}

void world_write(const struct world *world, const char *name, const char *text, size_t bytes) {
    const char *path = world_path(world, name);
    folder_of(path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    if (text != NULL) {
        assert_true(fputs(text, file) >= 0);
    }
    for (size_t i = 0; text == NULL && i < bytes; i++) {
        assert_true(fputc('a' + (int)(i % 26), file) != EOF);
    }
    assert_int_equal(fclose(file), 0);
}
