/* sim_service: what else the daemon asks of its surroundings: a reader of files whose reads end
 * when the schedule says so, in any order, some with an error; logs; the service manager; random
 * numbers. See sim.h. */
#include "sim.h"

#include "corpus/reader_jobs.h"
#include "daemon/log.h"
#include "daemon/notify.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#define READS_MAX 128u
#define FD_READER 5003

static struct {
    struct reader reader;
    struct {
        struct read_job *job;
        uint64_t due_ns;
    } reads[READS_MAX];
    uint32_t count;
    struct read_job *done[READS_MAX];
    uint32_t done_count;
    bool readable;
} files;

/* Reader */

static uint64_t read_delay_ns(void) {
    if (!sim.peace && sim_between(0, 99) == 0) {
        return sim_between(100, 3000) * SIM_MS;
    }
    return sim_between(0, 3) * SIM_MS;
}

static int file_submit(struct reader *reader, struct read_job *job) {
    (void)reader;
    if (files.count == READS_MAX) {
        return -ENOBUFS;
    }
    files.reads[files.count].job = job;
    files.reads[files.count++].due_ns = sim.now_ns + read_delay_ns();
    return 0;
}

static void file_read(struct read_job *job) {
    bool prepared = read_job_prepare(job);
    assert(prepared);
    for (uint32_t i = 0; i < job->extent_count; i++) {
        landing_read(&(struct landing){0}, &job->extents[i]);
        assert(job->extents[i].result == 0);
    }
    if (!sim.peace && sim_chance(sim.faults.read_error)) {
        job->extents[sim_between(0, job->extent_count - 1)].result = -EIO;
    }
    read_job_conclude(job);
}

static struct read_job *file_reap(struct reader *reader) {
    (void)reader;
    return files.done_count == 0 ? NULL : files.done[--files.done_count];
}

static void file_close(struct reader *reader) {
    (void)reader;
    files.count = 0;
    files.done_count = 0;
    files.readable = false;
}

static const struct reader_ops file_ops = {
    .submit = file_submit, .reap = file_reap, .close = file_close};

int reader_open(enum reader_backend backend, const struct reader_options *options,
                struct reader **out, struct error *why, struct error *error) {
    (void)backend;
    (void)options;
    (void)error;
    why->code = 0;
    files.reader = (struct reader){.ops = &file_ops, .backend = "sim", .event_fd = FD_READER};
    *out = &files.reader;
    return 0;
}

void reader_close(struct reader *reader) {
    if (reader != NULL) {
        reader->ops->close(reader);
    }
}

uint32_t reader_threads(bool cold) {
    return cold ? 2 : 1;
}

bool sim_reader_ready(void) {
    return files.readable;
}

void sim_reader_drain(void) {
    files.readable = false;
}

uint32_t sim_reads_in_flight(void) {
    return files.count + files.done_count;
}

uint64_t sim_reads_due_ns(void) {
    uint64_t due_ns = SIM_NEVER;
    for (uint32_t i = 0; i < files.count; i++) {
        due_ns = files.reads[i].due_ns < due_ns ? files.reads[i].due_ns : due_ns;
    }
    return due_ns;
}

bool sim_reads_due(void) {
    return sim_reads_due_ns() <= sim.now_ns;
}

void sim_reads_complete(void) {
    for (uint32_t i = 0; i < files.count; i++) {
        if (files.reads[i].due_ns <= sim.now_ns) {
            struct read_job *job = files.reads[i].job;
            files.reads[i] = files.reads[--files.count];
            file_read(job);
            files.done[files.done_count++] = job;
            files.readable = true;
            return;
        }
    }
}

/* Logs */

void log_open(int level) {
    (void)level;
}

void log_level(int level) {
    (void)level;
}

void log_write(struct log_site *site, int level, const char *component, const char *format, ...) {
    char text[512];
    va_list arguments;
    (void)site;
    (void)level;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sim_note(text, strlen(text));
    sim_say("%s: %s", component, text);
}

void notify_send(const char *format, ...) {
    (void)format;
}

uint64_t notify_watchdog_ms(void) {
    return 1000;
}

void notify_reloading(void) {
}

/* Limits: descriptors here have any number. */

int __wrap_getrlimit(int resource, struct rlimit *out);

int __wrap_getrlimit(int resource, struct rlimit *out) {
    (void)resource;
    *out = (struct rlimit){.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    return 0;
}

/* Random numbers */

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags);

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags) {
    (void)flags;
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)out)[i] = (uint8_t)sim_between(0, 255);
    }
    return (ssize_t)bytes;
}
