/* io_uring denied, as container runtimes and hardened kernels do it: a seccomp filter in a child
 * process refuses one of the three calls. AUTO must read the same bytes with preadv and say why. */
#include "tests/unit/reader_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void deny(unsigned call, unsigned error) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
        perror("seccomp");
        _exit(77);
    }
}

enum { CHILD_RIGHT = 0, CHILD_NOT_OPENED, CHILD_NOT_PREAD, CHILD_NO_REASON, CHILD_WRONG_BYTES };

static int child(struct reader_world *world, unsigned call, unsigned denied_with,
                 const char *reason) {
    deny(call, denied_with);
    struct reader *reader = NULL;
    struct error why = {0}, error = {0};
    struct reader_options options = {.queue_depth = 8, .threads = 2, .jobs_max = 4};
    if (reader_open(READER_URING, &options, &reader, NULL, &error) == 0 ||
        reader_open(READER_AUTO, &options, &reader, &why, &error) < 0) {
        return CHILD_NOT_OPENED;
    }
    if (strcmp(reader->backend, "pread") != 0) {
        return CHILD_NOT_PREAD;
    }
    if (why.code >= 0 || strstr(why.text, reason) == NULL ||
        strstr(why.text, "; using preadv threads") == NULL) {
        return CHILD_NO_REASON;
    }
    struct world_job *job = world_job_create(world, 100, WORLD_MIXED);
    world_run(reader, job);
    reader_close(reader);
    int result = world_job_is_right(job) ? CHILD_RIGHT : CHILD_WRONG_BYTES;
    world_job_destroy(job);
    return result;
}

static void falls_back(unsigned call, unsigned denied_with, const char *reason) {
    struct reader_world world;
    int status = 0;
    world_open(&world, 5, 2u << 20);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int result = child(&world, call, denied_with, reason);
        world_close(&world);
        _exit(result);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    world_close(&world);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), CHILD_RIGHT);
}

static void a_filter_on_setup_leads_to_preadv_with_its_reason(void **state) {
    (void)state;
    falls_back(SYS_io_uring_setup, EPERM,
               "io_uring_setup: Operation not permitted (seccomp or kernel.io_uring_disabled)");
}

static void a_kernel_without_io_uring_leads_to_preadv(void **state) {
    (void)state;
    falls_back(SYS_io_uring_setup, ENOSYS, "io_uring_setup: Function not implemented");
}

static void a_limit_on_locked_memory_leads_to_preadv(void **state) {
    (void)state;
    falls_back(SYS_io_uring_setup, ENOMEM,
               "io_uring_setup: Cannot allocate memory (RLIMIT_MEMLOCK)");
}

static void a_filter_on_register_leads_to_preadv(void **state) {
    (void)state;
    falls_back(SYS_io_uring_register, EPERM, "io_uring_register");
}

static void a_filter_on_enter_leads_to_preadv(void **state) {
    (void)state;
    falls_back(SYS_io_uring_enter, EPERM, "io_uring_enter: Operation not permitted");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_filter_on_setup_leads_to_preadv_with_its_reason),
        cmocka_unit_test(a_kernel_without_io_uring_leads_to_preadv),
        cmocka_unit_test(a_limit_on_locked_memory_leads_to_preadv),
        cmocka_unit_test(a_filter_on_register_leads_to_preadv),
        cmocka_unit_test(a_filter_on_enter_leads_to_preadv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
