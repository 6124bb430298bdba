/* live: see live.h. */
#include "tests/bench/live.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIVE_PATH_BYTES 160
#define LIVE_SIGMA      1.3
#define LIVE_START_MS   20000
#define LIVE_HEADER     "MMIDIDX\0\0\1\0\0\0\0\0\0\0\10" /* version 1, two-byte tokens */

static void live_fail(const char *what) {
    perror(what);
    exit(EXIT_FAILURE);
}

static void live_sleep_ms(long ms) {
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

void live_open(struct live *live) {
    *live = (struct live){.folder = "/tmp/ballast-bench-XXXXXX"};
    if (mkdtemp(live->folder) == NULL) {
        live_fail(live->folder);
    }
    (void)snprintf(live->socket, sizeof live->socket, "%s/b.sock", live->folder);
}

static void live_remove(const char *folder) {
    char *const argv[] = {"rm", "-rf", (char *)folder, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)waitpid(pid, NULL, 0);
}

void live_close(struct live *live) {
    live_stop(live);
    live_remove(live->folder);
}

static double live_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int32_t live_length(uint64_t *state, uint32_t median, uint32_t longest) {
    double normal = sqrt(-2.0 * log(1.0 - live_random(state))) *
                    cos(6.283185307 * live_random(state));
    double length = median * exp(LIVE_SIGMA * normal);
    return length < 10 ? 10 : length > longest ? (int32_t)longest : (int32_t)length;
}

static FILE *live_create(const struct live *live, const char *name) {
    char path[LIVE_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", live->folder, name);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        live_fail(path);
    }
    return file;
}

static void live_write_index(const struct live *live, const int32_t *lengths, uint64_t count) {
    FILE *file = live_create(live, "d.idx");
    uint64_t entries = count + 1, offset = 0;
    (void)fwrite(LIVE_HEADER, 1, 18, file);
    (void)fwrite(&count, sizeof count, 1, file);
    (void)fwrite(&entries, sizeof entries, 1, file);
    (void)fwrite(lengths, sizeof *lengths, count, file);
    for (uint64_t i = 0; i < count; i++) {
        (void)fwrite(&offset, sizeof offset, 1, file);
        offset += 2 * (uint64_t)lengths[i];
    }
    for (uint64_t i = 0; i < entries; i++) {
        (void)fwrite(&i, sizeof i, 1, file);
    }
    if (fclose(file) != 0) {
        live_fail("d.idx");
    }
}

void live_write_corpus(const struct live *live, uint64_t tokens, uint32_t median,
                       uint32_t longest) {
    static uint16_t block[1 << 20];
    int32_t *lengths = malloc(sizeof *lengths * (size_t)(tokens / 10 + 1));
    uint64_t state = 1, count = 0, total = 0;
    assert(lengths != NULL);
    while (total < tokens) {
        lengths[count] = live_length(&state, median, longest);
        total += (uint64_t)lengths[count++];
    }
    live_write_index(live, lengths, count);
    free(lengths);
    FILE *file = live_create(live, "d.bin");
    const size_t block_tokens = sizeof block / sizeof *block;
    for (size_t i = 0; i < block_tokens; i++) {
        block[i] = (uint16_t)(i * 40503u);
    }
    for (uint64_t left = total; left > 0;) {
        size_t part = left < block_tokens ? (size_t)left : block_tokens;
        (void)fwrite(block, sizeof *block, part, file);
        left -= part;
    }
    if (fclose(file) != 0) {
        live_fail("d.bin");
    }
}

static bool live_accepts(const struct live *live) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, live->socket, strlen(live->socket) + 1);
    bool accepts = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    (void)close(fd);
    return accepts;
}

static void live_exec(const struct live *live) {
    char program[LIVE_PATH_BYTES + 64], config[LIVE_PATH_BYTES], log[LIVE_PATH_BYTES];
    ssize_t bytes = readlink("/proc/self/exe", program, LIVE_PATH_BYTES);
    assert(bytes > 0);
    program[bytes] = '\0';
    char *name = strrchr(program, '/');
    (void)snprintf(name, sizeof program - (size_t)(name - program), "/ballastd");
    (void)snprintf(config, sizeof config, "%s/ballast.conf", live->folder);
    (void)snprintf(log, sizeof log, "%s/log", live->folder);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)dup2(fd, STDERR_FILENO);
    (void)dup2(fd, STDOUT_FILENO);
    (void)execl(program, program, "--config", config, (char *)NULL);
    _exit(127);
}

void live_start(struct live *live, const char *config) {
    FILE *file = live_create(live, "ballast.conf");
    (void)fprintf(file, "[dataset d]\npath = d\n%s\n[daemon]\nsocket = %s\nstate_dir = state\n",
                  config, live->socket);
    if (fclose(file) != 0) {
        live_fail("ballast.conf");
    }
    live->pid = fork();
    if (live->pid == 0) {
        live_exec(live);
    }
    for (int waited_ms = 0; !live_accepts(live); waited_ms += 10) {
        if (waited_ms >= LIVE_START_MS || waitpid(live->pid, NULL, WNOHANG) != 0) {
            (void)fprintf(stderr, "ballastd does not start; see %s/log\n", live->folder);
            exit(EXIT_FAILURE);
        }
        live_sleep_ms(10);
    }
}

void live_stop(struct live *live) {
    char state[LIVE_PATH_BYTES];
    if (live->pid > 0) {
        (void)kill(live->pid, SIGTERM);
        (void)waitpid(live->pid, NULL, 0);
        live->pid = 0;
    }
    (void)snprintf(state, sizeof state, "%s/state", live->folder);
    live_remove(state);
}

/* The first number of schedstat is the time on a CPU. */
static uint64_t live_thread_cpu_ns(pid_t pid, const char *thread) {
    char path[LIVE_PATH_BYTES];
    uint64_t ns = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%.32s/schedstat", (int)pid, thread);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &ns) != 1) {
            ns = 0;
        }
        (void)fclose(file);
    }
    return ns;
}

uint64_t live_loop_cpu_ns(const struct live *live) {
    char thread[32];
    (void)snprintf(thread, sizeof thread, "%d", (int)live->pid);
    return live_thread_cpu_ns(live->pid, thread);
}

uint64_t live_cpu_ns(const struct live *live) {
    char path[LIVE_PATH_BYTES];
    uint64_t ns = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)live->pid);
    DIR *tasks = opendir(path);
    for (struct dirent *entry = tasks == NULL ? NULL : readdir(tasks); entry != NULL;
         entry = readdir(tasks)) {
        ns += entry->d_name[0] == '.' ? 0 : live_thread_cpu_ns(live->pid, entry->d_name);
    }
    if (tasks != NULL) {
        (void)closedir(tasks);
    }
    return ns;
}
