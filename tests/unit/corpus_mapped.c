/* What a mapping gives is what a read gives, or nothing: of files that become shorter before, while
 * and after they are mapped. */
#include "corpus/mapped.h"
#include "corpus/thread.h"
#include "tests/unit/corpus_files.h"
#include "tests/unit/mapped_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_BYTES 1000000u
#define PIECES     200u

/* As a job of one extent; of a file that is cut off, as the second of two. */
static bool take_cut_off(int fd, uint64_t offset, const struct iovec *iovecs, uint32_t count,
                         uint64_t end) {
    struct mapping mapping;
    if (!mapping_open(fd, &mapping)) {
        return false;
    }
    bool ready = end >= FILE_BYTES || (mapping_scatter(&mapping, fd, offset, iovecs, count) &&
                                       ftruncate(fd, (off_t)end) == 0);
    bool taken = !ready || mapping_scatter(&mapping, fd, offset, iovecs, count);
    mapping_close(&mapping);
    return taken;
}

static bool take(int fd, uint64_t offset, const struct iovec *iovecs, uint32_t count) {
    return take_cut_off(fd, offset, iovecs, count, FILE_BYTES);
}

struct world {
    char folder[64];
    char path[80];
    int fd;
    uint8_t *content;  /* FILE_BYTES */
    uint8_t *memory;   /* FILE_BYTES, where pieces go */
    uint8_t *expected; /* likewise */
    struct iovec iovecs[PIECES];
};

static uint64_t random_state = 1;

static uint32_t below(uint32_t bound) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) % bound);
}

static void world_restore(struct world *world) {
    file_write(world->path, world->content, FILE_BYTES);
}

static int world_setup(void **state) {
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    test_folder_make(world->folder);
    snprintf(world->path, sizeof world->path, "%s/f.bin", world->folder);
    world->content = malloc(FILE_BYTES);
    world->memory = malloc(FILE_BYTES);
    world->expected = malloc(FILE_BYTES);
    assert_true(world->content != NULL && world->memory != NULL && world->expected != NULL);
    for (uint32_t i = 0; i < FILE_BYTES; i++) {
        world->content[i] = (uint8_t)(1 + below(255));
    }
    world_restore(world);
    world->fd = open(world->path, O_RDWR);
    assert_true(world->fd >= 0);
    *state = world;
    return 0;
}

static int world_teardown(void **state) {
    struct world *world = *state;
    close(world->fd);
    test_folder_remove(world->folder);
    free(world->content);
    free(world->memory);
    free(world->expected);
    free(world);
    return 0;
}

/* Pieces of up to `longest` bytes from `offset` on, some of them gaps, in memory one after the
 * other; what is to be there is in `expected`. Returns how many. */
static uint32_t deal(struct world *world, uint64_t offset, uint32_t longest) {
    uint64_t at = 0, from = offset;
    uint32_t count = 0;
    memset(world->memory, 0, FILE_BYTES);
    memset(world->expected, 0, FILE_BYTES);
    while (count < PIECES && from < FILE_BYTES) {
        uint64_t bytes = 1 + below(longest);
        bytes = bytes < FILE_BYTES - from ? bytes : FILE_BYTES - from;
        bool gap = below(4) == 0;
        world->iovecs[count++] = (struct iovec){gap ? NULL : world->memory + at, bytes};
        if (!gap) {
            memcpy(world->expected + at, world->content + from, bytes);
            at += bytes;
        }
        from += bytes;
    }
    return count;
}

static void all_pieces_come_and_gaps_are_passed_over(void **state) {
    struct world *world = *state;
    mapped_world_guard();
    for (uint32_t turn = 0; turn < 600; turn++) {
        uint32_t longest = 1 + below(turn % 2 == 0 ? 20000 : 600);
        uint64_t offset = below(FILE_BYTES);
        uint32_t count = deal(world, offset, longest);
        assert_true(take(world->fd, offset, world->iovecs, count));
        assert_memory_equal(world->memory, world->expected, FILE_BYTES);
    }
}

static void what_a_file_no_longer_has_is_not_taken(void **state) {
    struct world *world = *state;
    static const uint32_t ends[] = {0, 1, 8191, 8192, 8193, 409600, 700000, FILE_BYTES - 1};
    struct iovec iovec = {world->memory, 0};
    mapped_world_guard();
    for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        world_restore(world);
        assert_int_equal(ftruncate(world->fd, ends[i]), 0);
        iovec.iov_len = FILE_BYTES;
        assert_false(take(world->fd, 0, &iovec, 1));
        iovec.iov_len = (size_t)ends[i] + 1;
        assert_false(take(world->fd, 0, &iovec, 1));
        iovec.iov_len = 1;
        assert_false(take(world->fd, ends[i], &iovec, 1));
        iovec.iov_len = ends[i];
        assert_true(ends[i] == 0 || take(world->fd, 0, &iovec, 1));
    }
}

/* Also where the last page is there, with zeros behind the file's end and no signal. */
static void a_file_cut_off_under_the_copy_is_no_signal(void **state) {
    struct world *world = *state;
    struct iovec iovec = {world->memory, FILE_BYTES};
    mapped_world_guard();
    for (uint64_t end = 0; end < FILE_BYTES; end += 49999) {
        world_restore(world);
        assert_false(take_cut_off(world->fd, 0, &iovec, 1, end));
    }
    world_restore(world);
    assert_false(take_cut_off(world->fd, 0, &iovec, 1, FILE_BYTES - 1));
    world_restore(world);
    assert_true(take(world->fd, 0, &iovec, 1));
    assert_memory_equal(world->memory, world->content, FILE_BYTES);
}

/* Half of the threads lose their file in every turn, the others never. */
static void *copy_often(void *context) {
    struct world *world = context;
    bool loses = world->folder[0] == 0;
    uintptr_t wrong = 0;
    for (uint32_t turn = 0; turn < 200; turn++) {
        struct iovec iovec = {world->memory, FILE_BYTES};
        wrong += loses && ftruncate(world->fd, FILE_BYTES) != 0;
        uint64_t end = loses ? turn * 4096ull : FILE_BYTES;
        wrong += take_cut_off(world->fd, 0, &iovec, 1, end) == loses;
        wrong += !loses && memcmp(world->memory, world->content, FILE_BYTES) != 0;
    }
    return (void *)wrong;
}

static void threads_are_guarded_one_by_one(void **state) {
    struct world *world = *state, worlds[4];
    pthread_t threads[4];
    mapped_world_guard();
    for (uint32_t i = 0; i < 4; i++) {
        worlds[i] = *world;
        worlds[i].memory = malloc(FILE_BYTES);
        assert_non_null(worlds[i].memory);
        if (i % 2 == 0) {
            char path[96];
            snprintf(path, sizeof path, "%s/%u", world->folder, i);
            file_write(path, world->content, FILE_BYTES);
            worlds[i].fd = open(path, O_RDWR);
            assert_true(worlds[i].fd >= 0);
            worlds[i].folder[0] = 0;
        }
        assert_int_equal(thread_start(&threads[i], copy_often, &worlds[i], "it", NULL), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
        free(worlds[i].memory);
        if (i % 2 == 0) {
            close(worlds[i].fd);
        }
    }
}

static void what_cannot_be_mapped_is_not_taken(void **state) {
    struct world *world = *state;
    struct iovec iovec = {world->memory, 10};
    int ends[2], folder = open(world->folder, O_RDONLY | O_DIRECTORY);
    assert_int_equal(pipe(ends), 0);
    assert_false(take(ends[0], 0, &iovec, 1));
    assert_false(take(folder, 0, &iovec, 1));
    assert_false(take(-1, 0, &iovec, 1));
    assert_false(mapped_suits(-1));
    assert_false(mapped_suits(ends[0]));
    close(ends[0]);
    close(ends[1]);
    close(folder);
}

static void exit_told(int number) {
    (void)number;
    _exit(7);
}

/* Touches what a file of its own does not have, or is sent the signal: the wait status. */
static int touch_nothing(struct world *world, bool handled, bool sent) {
    pid_t child = fork();
    if (child == 0) {
        struct iovec iovec = {world->memory, 10};
        (void)signal(SIGBUS, handled ? exit_told : SIG_DFL);
        bool mapped = take(world->fd, 0, &iovec, 1);
        if (sent) {
            (void)kill(getpid(), SIGBUS);
            _exit(2);
        }
        (void)ftruncate(world->fd, 0);
        volatile uint8_t *gone = mmap(NULL, 4096, PROT_READ, MAP_SHARED, world->fd, 0);
        uint8_t byte = *gone;
        _exit(mapped ? byte : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Before any other test, for the handler is installed once. */
static void a_signal_of_others_stays_theirs(void **state) {
    struct world *world = *state;
    for (int sent = 0; sent < 2; sent++) {
        world_restore(world);
        int status = touch_nothing(world, true, sent == 1);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        world_restore(world);
        status = touch_nothing(world, false, sent == 1);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_signal_of_others_stays_theirs),
        TEST(all_pieces_come_and_gaps_are_passed_over),
        TEST(what_a_file_no_longer_has_is_not_taken),
        TEST(a_file_cut_off_under_the_copy_is_no_signal),
        TEST(threads_are_guarded_one_by_one),
        TEST(what_cannot_be_mapped_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
