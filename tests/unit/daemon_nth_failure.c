/* Everything that can fail in a daemon's life, one call at a time: memory (ours, libuv's,
 * SQLite's), reads, writes and syncs (ours and SQLite's), what the system gives. The Nth call
 * fails, once or with all after it, in a daemon that starts, serves a rank for some steps and
 * stops.
 *
 * Whatever N is: no crash, no leak (the sanitizer build says), no hang; the process ends with 0 or
 * as after an I/O error; the rank sees the bytes that it sees without faults; and a daemon started
 * again goes on from there to the end. A failure ends its loop by itself: when N calls are not
 * reached any more. Each loop takes random N within its time; all N with BALLAST_TEST_FULL=1, that
 * one with BALLAST_NTH=N. */
#include "client/ballast.h"
#include "corpus_files.h"
#include "daemon/daemon.h"
#include "faulty_vfs.h"
#include "tests/property/splitmix.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#define DOCUMENTS     400u
#define STEPS         20u
#define MICRO_BATCHES 2u
#define ROWS_MAX      4096u
#define LOOP_MS       700u
#define PATIENCE_S    60
#define REFUSED_S     10

#define KINDS(X)                                                                                   \
    X(NONE, "none")                                                                                \
    X(MEMORY, "memory")                                                                            \
    X(READ, "reads")                                                                               \
    X(WRITE, "writes")                                                                             \
    X(SYNC, "syncs")                                                                               \
    X(SYSTEM, "what the system gives")                                                             \
    X(STORE_READ, "reads of the store")                                                            \
    X(STORE_WRITE, "writes of the store")                                                          \
    X(STORE_SYNC, "syncs of the store")

#define KIND_ENUM(kind, text) KIND_##kind,
#define KIND_TEXT(kind, text) text,
enum kind { KINDS(KIND_ENUM) };
static const char *const kind_texts[] = {KINDS(KIND_TEXT)};

/* Between the daemon, the rank and the test. */
static struct shared {
    _Atomic uint64_t calls; /* of the kind */
    _Atomic bool failed;    /* the Nth was reached */
    uint64_t hashes[STEPS][MICRO_BATCHES];
    uint64_t begin, end; /* steps that the rank was given, in this run */
    uint64_t committed;  /* steps whose commit was answered */
    bool wrong;          /* other bytes than `reference` */
    char what[256];
} * shared;

static struct {
    char folder[64], config[96], state[96], socket[96], log[96];
    uint64_t reference[STEPS][MICRO_BATCHES];
    uint64_t random;
    uint32_t runs;
} world;

/* Of the daemon's process only. */
static enum kind fault_kind;
static uint64_t fault_nth;
static bool fault_sticky;

static bool fault(enum kind kind) {
    if (kind != fault_kind) {
        return false;
    }
    uint64_t call = atomic_fetch_add(&shared->calls, 1) + 1;
    bool fails = fault_nth != 0 && (fault_sticky ? call >= fault_nth : call == fault_nth);
    if (fails) {
        atomic_store(&shared->failed, true);
    }
    return fails;
}

/* Calls */

#define FAILS(kind, code)                                                                          \
    if (fault(kind)) {                                                                             \
        errno = code;                                                                              \
        return -1;                                                                                 \
    }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_reallocarray(void *old, size_t count, size_t bytes);
char *__real_strdup(const char *text);
ssize_t __real_read(int fd, void *out, size_t count);
ssize_t __real_pread(int fd, void *out, size_t count, off_t offset);
ssize_t __real_preadv(int fd, const struct iovec *iovecs, int count, off_t offset);
ssize_t __real_write(int fd, const void *bytes, size_t count);
int __real_ftruncate(int fd, off_t bytes);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_renameat(int from, const char *old, int to, const char *name);
int __real_memfd_create(const char *name, unsigned flags);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_eventfd(unsigned value, int flags);
int __real_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __real_socket(int domain, int type, int protocol);
int __real_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int __real_listen(int fd, int backlog);
int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);

void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    return fault(KIND_MEMORY) ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    return fault(KIND_MEMORY) ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes) {
    return fault(KIND_MEMORY) ? NULL : __real_realloc(old, bytes);
}

void *__wrap_reallocarray(void *old, size_t count, size_t bytes);
void *__wrap_reallocarray(void *old, size_t count, size_t bytes) {
    return fault(KIND_MEMORY) ? NULL : __real_reallocarray(old, count, bytes);
}

char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) {
    return fault(KIND_MEMORY) ? NULL : __real_strdup(text);
}

/* An eventfd cannot fail like that. */
static bool on_disk(int fd) {
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

ssize_t __wrap_read(int fd, void *out, size_t count);
ssize_t __wrap_read(int fd, void *out, size_t count) {
    if (on_disk(fd)) {
        FAILS(KIND_READ, EIO)
    }
    return __real_read(fd, out, count);
}

ssize_t __wrap_pread(int fd, void *out, size_t count, off_t offset);
ssize_t __wrap_pread(int fd, void *out, size_t count, off_t offset) {
    FAILS(KIND_READ, EIO)
    return __real_pread(fd, out, count, offset);
}

ssize_t __wrap_preadv(int fd, const struct iovec *iovecs, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iovecs, int count, off_t offset) {
    FAILS(KIND_READ, EIO)
    return __real_preadv(fd, iovecs, count, offset);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_write(int fd, const void *bytes, size_t count) {
    if (on_disk(fd)) {
        FAILS(KIND_WRITE, EIO)
    }
    return __real_write(fd, bytes, count);
}

int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes) {
    FAILS(KIND_WRITE, ENOSPC)
    return __real_ftruncate(fd, bytes);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    if (!fault_sticky) { /* without the slab for ever, likewise */
        FAILS(KIND_WRITE, ENOBUFS)
    }
    return __real_sendmsg(fd, message, flags);
}

int __wrap_renameat(int from, const char *old, int to, const char *name);
int __wrap_renameat(int from, const char *old, int to, const char *name) {
    FAILS(KIND_WRITE, EIO)
    return __real_renameat(from, old, to, name);
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    FAILS(KIND_SYNC, EIO)
    return __real_fsync(fd);
}

int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd) {
    FAILS(KIND_SYNC, EIO)
    return __real_fdatasync(fd);
}

int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags) {
    FAILS(KIND_SYSTEM, EMFILE)
    return __real_memfd_create(name, flags);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fault(KIND_SYSTEM)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags) {
    FAILS(KIND_SYSTEM, EMFILE)
    return __real_eventfd(value, flags);
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
    return fault(KIND_SYSTEM) ? EAGAIN : __real_pthread_create(out, attributes, run, argument);
}

int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol) {
    FAILS(KIND_SYSTEM, EMFILE)
    return __real_socket(domain, type, protocol);
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t bytes) {
    FAILS(KIND_SYSTEM, EACCES)
    return __real_bind(fd, address, bytes);
}

int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog) {
    FAILS(KIND_SYSTEM, EOPNOTSUPP)
    return __real_listen(fd, backlog);
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) {
    if (!fault_sticky) { /* without descriptors for ever, ranks wait for ever, as they should */
        FAILS(KIND_SYSTEM, EMFILE)
    }
    return __real_accept4(fd, address, bytes, flags);
}

/* Reads of tokens, whoever did them: what the ring's completion would say. */

static const struct reader_ops *reader_behind_ops;
static struct reader_ops reader_ops_faulty;
struct read_job *reader_reap_faulty(struct reader *reader);
int __real_reader_open(enum reader_backend backend, const struct reader_options *options,
                       struct reader **out, struct error *why, struct error *error);
int __wrap_reader_open(enum reader_backend backend, const struct reader_options *options,
                       struct reader **out, struct error *why, struct error *error);

struct read_job *reader_reap_faulty(struct reader *reader) {
    struct read_job *job = reader_behind_ops->reap(reader);
    if (job != NULL && fault(KIND_READ)) {
        job->extents[0].result = -EIO;
        job->complete(job);
    }
    return job;
}

int __wrap_reader_open(enum reader_backend backend, const struct reader_options *options,
                       struct reader **out, struct error *why, struct error *error) {
    int code = __real_reader_open(backend, options, out, why, error);
    if (code == 0) {
        reader_behind_ops = (*out)->ops;
        reader_ops_faulty = *reader_behind_ops;
        reader_ops_faulty.reap = reader_reap_faulty;
        (*out)->ops = &reader_ops_faulty;
    }
    return code;
}

/* SQLite's memory */

static sqlite3_mem_methods sqlite_memory;

static void *sqlite_malloc(int bytes) {
    return fault(KIND_MEMORY) ? NULL : sqlite_memory.xMalloc(bytes);
}

static void *sqlite_realloc(void *old, int bytes) {
    return fault(KIND_MEMORY) ? NULL : sqlite_memory.xRealloc(old, bytes);
}

/* The daemon's process */

static void arm_store(void) {
    static const struct {
        enum kind kind;
        unsigned operations;
        int code;
    } stores[] = {{KIND_STORE_READ, FAULTY_READ, SQLITE_IOERR_READ},
                  {KIND_STORE_WRITE, FAULTY_WRITE | FAULTY_TRUNCATE, SQLITE_FULL},
                  {KIND_STORE_SYNC, FAULTY_SYNC, SQLITE_IOERR_FSYNC}};
    faulty = (struct faulty){0};
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        if (stores[i].kind == fault_kind) {
            faulty.operations = stores[i].operations;
            faulty.code = stores[i].code;
            faulty.fail_at = fault_nth;
            faulty.sticky = fault_sticky;
        }
    }
}

static void arm_memory(void) {
    sqlite3_mem_methods methods;
    (void)sqlite3_config(SQLITE_CONFIG_GETMALLOC, &sqlite_memory);
    methods = sqlite_memory;
    methods.xMalloc = sqlite_malloc;
    methods.xRealloc = sqlite_realloc;
    (void)sqlite3_config(SQLITE_CONFIG_MALLOC, &methods);
    /* Where its table of descriptors cannot grow, libuv aborts by design. */
    (void)uv_replace_allocator(__wrap_malloc, __real_realloc, __wrap_calloc, free);
}

static void serve(enum kind kind, uint64_t nth, bool sticky) {
    const struct daemon_options options = {.config_path = world.config};
    int log = open(world.log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)dup2(log, STDERR_FILENO);
    arm_memory();
    faulty_vfs_install();
    fault_nth = nth;
    fault_sticky = sticky;
    fault_kind = kind;
    arm_store();
    int code = daemon_run(&options);
    fault_kind = KIND_NONE;
    if (faulty.operations != 0) {
        shared->calls = faulty.count;
        shared->failed = faulty.failed;
    }
    exit(code);
}

/* The rank's process */

static int rank_take(struct ballast *client, const struct ballast_batch *batch) {
    static int32_t tokens[ROWS_MAX];
    int64_t rows = ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT32, tokens, ROWS_MAX);
    if (rows < 0) {
        return (int)rows;
    }
    uint64_t hash = XXH3_64bits_withSeed(tokens, (size_t)rows * sizeof tokens[0],
                                         XXH3_64bits(batch->plan_digest, 16));
    if (batch->step < STEPS && batch->index < MICRO_BATCHES) {
        uint64_t expected = world.reference[batch->step][batch->index];
        shared->hashes[batch->step][batch->index] = hash;
        shared->wrong |= expected != 0 && expected != hash;
    }
    return ballast_release(client, batch);
}

static int rank_run(struct ballast *client) {
    const struct ballast_batch *batch;
    bool first = true;
    while (shared->end < STEPS) {
        int event = ballast_next(client, -1, &batch);
        if (event < 0) {
            return event;
        }
        if (event == BALLAST_END_OF_DATA) {
            return -ERANGE;
        }
        shared->begin = first ? ballast_step(client) : shared->begin;
        first = false;
        int code = 0;
        if (event == BALLAST_BATCH) {
            code = rank_take(client, batch);
        } else {
            shared->end = ballast_step(client) + 1;
            code = ballast_commit(client, ballast_step(client));
            shared->committed = code == 0 ? shared->end : shared->committed;
            code = code == -ENOBUFS ? 0 : code;
        }
        if (code < 0) {
            return code;
        }
    }
    return 0;
}

static void train(void) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client = NULL;
    options.socket = world.socket;
    options.connect_timeout_ms = PATIENCE_S * 1000;
    int code = ballast_open(&options, &client);
    if (code == 0) {
        code = rank_run(client);
    }
    if (code < 0) {
        (void)snprintf(shared->what, sizeof shared->what, "%s", ballast_error(client));
    }
    _exit(code < 0 ? 1 : 0);
}

/* One run */

static sigset_t before;

static pid_t spawn(enum kind kind, uint64_t nth, bool sticky, bool daemon) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        if (daemon) {
            serve(kind, nth, sticky);
        }
        train();
    }
    return pid;
}

static void show_log(void) {
    size_t bytes;
    char *text = (char *)file_read_whole(world.log, &bytes);
    (void)fwrite(text, 1, bytes, stderr);
    free(text);
}

static void fail_run(enum kind kind, uint64_t nth, bool sticky, const char *what, int status) {
    show_log();
    fail_msg("%s, call %llu%s: %s (status %#x, rank: %s)", kind_texts[kind],
             (unsigned long long)nth, sticky ? " and all after it" : "", what, (unsigned)status,
             shared->what);
}

/* A daemon and a rank, until both have ended; the daemon's wait status. */
static int run(enum kind kind, uint64_t nth, bool sticky) {
    static const struct timespec patience = {.tv_sec = PATIENCE_S};
    static const struct timespec refused = {.tv_sec = REFUSED_S};
    sigset_t child;
    int daemon_status = 0, status;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    shared->calls = 0;
    shared->failed = false;
    shared->begin = shared->end = shared->committed = 0;
    shared->what[0] = '\0';
    world.runs++;
    pid_t daemon = spawn(kind, nth, sticky, true);
    pid_t rank = spawn(kind, nth, sticky, false);
    while (daemon > 0 || rank > 0) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == 0) {
            if (sigtimedwait(&child, NULL, rank > 0 && sticky ? &refused : &patience) >= 0 ||
                errno != EAGAIN) {
                continue;
            }
            if (rank > 0 && sticky) { /* without memory for ever, it may be refused for ever */
                (void)kill(rank, SIGKILL);
            } else {
                (void)kill(daemon > 0 ? daemon : rank, SIGKILL);
                fail_run(kind, nth, sticky, "it hangs", 0);
            }
        } else if (pid == daemon) {
            daemon_status = status;
            daemon = 0;
            (void)(rank > 0 && kill(rank, SIGKILL));
        } else if (pid == rank) {
            rank = 0;
            (void)(daemon > 0 && kill(daemon, SIGTERM));
        }
    }
    return daemon_status;
}

static void check_run(enum kind kind, uint64_t nth, bool sticky) {
    int status = run(kind, nth, sticky);
    bool failed = shared->failed;
    uint64_t committed = shared->committed, ended = shared->end;
    bool ends = WIFEXITED(status) &&
                (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DAEMON_EXIT_IO);
    if (!ends) {
        fail_run(kind, nth, sticky, "the daemon ends like this", status);
    }
    if (!failed && (WEXITSTATUS(status) != 0 || shared->end < STEPS)) {
        fail_run(kind, nth, sticky, "nothing failed and it does not succeed", status);
    }
    if (shared->wrong) {
        fail_run(kind, nth, sticky, "the rank has other bytes", status);
    }
    if (committed < STEPS) {
        status = run(KIND_NONE, 0, false);
        if (status != 0 || shared->end < STEPS || shared->wrong) {
            fail_run(kind, nth, sticky, "the next daemon does not go on", status);
        }
        if (shared->begin < committed || shared->begin > ended) {
            fail_run(kind, nth, sticky, "the next daemon begins elsewhere", status);
        }
    }
    shared->failed = failed;
}

static uint64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void forget_state(void) {
    char command[160];
    (void)snprintf(command, sizeof command, "rm -rf %s", world.state);
    int code = system(command);
    assert_int_equal(code, 0);
}

static void every_call(enum kind kind, bool sticky) {
    bool full = getenv("BALLAST_TEST_FULL") != NULL;
    const char *one = getenv("BALLAST_NTH");
    forget_state();
    check_run(kind, 0, false);
    uint64_t calls = shared->calls;
    if (one != NULL) {
        forget_state();
        check_run(kind, strtoull(one, NULL, 10), sticky);
        return;
    }
    uint64_t begin_ms = now_ms(), tried = 0;
    for (uint64_t i = 1; full || (i <= calls && now_ms() - begin_ms < LOOP_MS); i++) {
        uint64_t nth = full ? i : splitmix_between(&world.random, 1, (uint32_t)calls);
        forget_state();
        check_run(kind, nth, sticky);
        tried++;
        if (full && !shared->failed) {
            break;
        }
    }
    print_message("%s: %llu calls, %llu tried%s\n", kind_texts[kind], (unsigned long long)calls,
                  (unsigned long long)tried, sticky ? " with all after them" : "");
}

#define EVERY(name, kind)                                                                          \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        every_call(kind, false);                                                                   \
        every_call(kind, true);                                                                    \
    }

EVERY(memory_that_runs_out_at_any_call_costs_nothing, KIND_MEMORY)
EVERY(a_read_that_fails_at_any_call_costs_nothing, KIND_READ)
EVERY(a_write_that_fails_at_any_call_costs_nothing, KIND_WRITE)
EVERY(a_sync_that_fails_at_any_call_costs_nothing, KIND_SYNC)
EVERY(what_the_system_denies_at_any_call_costs_nothing, KIND_SYSTEM)
EVERY(a_read_of_the_store_that_fails_costs_nothing, KIND_STORE_READ)
EVERY(a_write_of_the_store_that_fails_costs_nothing, KIND_STORE_WRITE)
EVERY(a_sync_of_the_store_that_fails_costs_nothing, KIND_STORE_SYNC)

static void make_world(void) {
    static uint32_t lengths[DOCUMENTS];
    struct image_options image = {.dtype = 8, .documents = DOCUMENTS, .lengths = lengths};
    char text[1024], prefix[96];
    test_folder_make(world.folder);
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = 1 + i * 37 % 300;
    }
    (void)snprintf(prefix, sizeof prefix, "%s/d", world.folder);
    dataset_write(prefix, &image);
    uint8_t domains[DOCUMENTS];
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        domains[i] = i % 2;
    }
    (void)snprintf(prefix, sizeof prefix, "%s/d.u1", world.folder);
    file_write(prefix, domains, sizeof domains);
    (void)snprintf(world.config, sizeof world.config, "%s/conf", world.folder);
    (void)snprintf(world.state, sizeof world.state, "%s/state", world.folder);
    (void)snprintf(world.socket, sizeof world.socket, "%s/b", world.folder);
    (void)snprintf(world.log, sizeof world.log, "%s/log", world.folder);
    int bytes = snprintf(text, sizeof text,
                         "[dataset d]\npath = d\ndomain_file = d.u1\ndomain_names = "
                         "a,b\n[plan]\nwindow = 256\nmicro_batches = %u\n"
                         "documents_max = 256\n[queues]\nwaiting_max = 1024\n[daemon]\n"
                         "socket = %s\nstate_dir = %s\n",
                         MICRO_BATCHES, world.socket, world.state);
    file_write(world.config, text, (size_t)bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_runs_out_at_any_call_costs_nothing),
        cmocka_unit_test(a_read_that_fails_at_any_call_costs_nothing),
        cmocka_unit_test(a_write_that_fails_at_any_call_costs_nothing),
        cmocka_unit_test(a_sync_that_fails_at_any_call_costs_nothing),
        cmocka_unit_test(what_the_system_denies_at_any_call_costs_nothing),
        cmocka_unit_test(a_read_of_the_store_that_fails_costs_nothing),
        cmocka_unit_test(a_write_of_the_store_that_fails_costs_nothing),
        cmocka_unit_test(a_sync_of_the_store_that_fails_costs_nothing),
    };
    sigset_t child;
    const char *seed = getenv("BALLAST_SEED");
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &child, &before);
    world.random = seed != NULL ? strtoull(seed, NULL, 10) : now_ms();
    print_message("seed %llu (BALLAST_SEED)\n", (unsigned long long)world.random);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    make_world();
    int failed = run(KIND_NONE, 0, false) != 0 || shared->end < STEPS;
    memcpy(world.reference, shared->hashes, sizeof world.reference);
    if (failed) {
        show_log();
        print_error("without faults: %s\n", shared->what);
    } else {
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    }
    print_message("%u runs\n", world.runs);
    test_folder_remove(world.folder);
    return failed != 0;
}
