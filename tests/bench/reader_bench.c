/* reader_bench: what reading micro-batches costs, against the plainest reads in the same run.
 *
 *     reader_bench [--json] [--smoke] [MEGABYTES [ROUNDS [cold]]]
 *
 * Makes a dataset of 2-byte tokens with a long tail of document lengths, warm in the page cache
 * or, with `cold`, dropped from it before each way, and fills slots from it: neighbouring documents
 * (a windowed plan) and random ones. The ways take turns, ROUNDS times. CPU counts all threads,
 * those of the kernel's io-wq too. Cold reads are not judged: what the disk itself can do is not
 * measured here. */
#include "corpus/megatron.h"
#include "corpus/tokens.h"
#include "tests/bench/figure.h"

#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SLOT_TOKENS  131072u
#define SLOTS        256u /* the destinations rotate through the whole buffer */
#define JOBS         4u
#define PARTS_MAX    16384u
#define EXTENT_BYTES (1u << 20)
#define DOCUMENT_MAX 262144u
#define BUFFER_BYTES (64u << 20)
#define ROUNDS_MAX   64u

static uint64_t random_state = 1;

static uint64_t random_next(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double random_unit(void) {
    return (double)(random_next() >> 11) / 9007199254740992.0;
}

/* Lognormal: median 650 tokens, sigma 1.3, 10 to 256K. */
static uint32_t random_length(void) {
    double normal = sqrt(-2.0 * log(1.0 - random_unit())) * cos(6.283185307 * random_unit());
    double length = 650.0 * exp(1.3 * normal);
    return length < 10 ? 10 : length > DOCUMENT_MAX ? DOCUMENT_MAX : (uint32_t)length;
}

static void write_whole(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert(file != NULL);
    size_t written = fwrite(bytes, 1, count, file);
    int rc = fclose(file);
    assert(written == count && rc == 0);
}

static void write_index(const char *path, const uint32_t *lengths, uint32_t documents) {
    uint64_t bytes = MEGATRON_HEADER_BYTES + 20 * (uint64_t)documents + 8, offset = 0;
    uint8_t *index = malloc(bytes), *at = index + MEGATRON_HEADER_BYTES;
    assert(index != NULL);
    megatron_header_encode(index, MEGATRON_U16, documents, documents + 1);
    memcpy(at, lengths, 4 * (size_t)documents);
    at += 4 * (size_t)documents;
    for (uint32_t i = 0; i < documents; i++, at += 8) {
        memcpy(at, &offset, 8);
        offset += 2 * (uint64_t)lengths[i];
    }
    for (uint64_t i = 0; i <= documents; i++, at += 8) {
        memcpy(at, &i, 8);
    }
    write_whole(path, index, bytes);
    free(index);
}

/* Writing leaves the page cache warm. */
static struct catalog *make_catalog(const char *folder, uint64_t bytes) {
    char prefix[128], path[160];
    uint32_t documents = 0, capacity = (uint32_t)(bytes / 20);
    uint32_t *lengths = calloc(capacity, sizeof *lengths);
    uint64_t tokens = 0;
    struct catalog *catalog = NULL;
    struct error error = {0};
    assert(lengths != NULL);
    while (2 * (tokens + DOCUMENT_MAX) < bytes) {
        lengths[documents] = random_length();
        tokens += lengths[documents++];
    }
    uint64_t *words = malloc(2 * tokens + 8);
    assert(words != NULL);
    for (uint64_t i = 0; i <= tokens / 4; i++) {
        words[i] = random_next();
    }
    snprintf(prefix, sizeof prefix, "%s/bench", folder);
    snprintf(path, sizeof path, "%s.idx", prefix);
    write_index(path, lengths, documents);
    snprintf(path, sizeof path, "%s.bin", prefix);
    write_whole(path, words, 2 * tokens);
    free(words);
    free(lengths);
    int rc = catalog_open(&(struct catalog_entry){.name = "bench", .prefix = prefix, .weight = 1}, 1, &catalog, &error);
    if (rc < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    return catalog;
}

struct bench {
    struct catalog *catalog;
    const struct dataset *dataset;
    int fd;          /* of its .bin */
    uint8_t *buffer; /* BUFFER_BYTES */
    uint8_t *source; /* for memcpy, as large as the file, so that it is cold */
    bool cold;
    struct tokens_job jobs[JOBS];
    struct tokens_target targets[JOBS];
    struct document *parts[JOBS]; /* PARTS_MAX each */
    uint64_t position;            /* next neighbouring document */
    uint32_t slot;
    uint32_t in_flight; /* jobs */
};

struct cost {
    uint64_t bytes, documents;
    double seconds, cpu_seconds;
};

static double wall_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void read_extents(struct bench *bench, uint64_t bytes, struct cost *cost) {
    int fd = bench->fd;
    uint64_t whole = dataset_bin_bytes(bench->dataset) / EXTENT_BYTES * EXTENT_BYTES;
    for (uint64_t done = 0; done < bytes; done += EXTENT_BYTES) {
        ssize_t have = pread(fd, bench->buffer + done % BUFFER_BYTES, EXTENT_BYTES,
                             (off_t)(done % whole));
        assert(have == EXTENT_BYTES);
    }
    cost->bytes = bytes;
}

static void copy_extents(struct bench *bench, uint64_t bytes, struct cost *cost) {
    for (uint64_t done = 0; done + EXTENT_BYTES <= bytes; done += EXTENT_BYTES) {
        memcpy(bench->buffer + done % BUFFER_BYTES, bench->source + done, EXTENT_BYTES);
        cost->bytes += EXTENT_BYTES;
    }
}

static void read_documents(struct bench *bench, uint64_t bytes, struct cost *cost) {
    int fd = bench->fd;
    uint64_t documents = dataset_documents(bench->dataset), at = 0;
    while (cost->bytes < bytes) {
        uint64_t i = random_next() % documents;
        size_t count = 2 * (size_t)dataset_length(bench->dataset, i);
        at = at + count > BUFFER_BYTES ? 0 : at;
        ssize_t have = pread(fd, bench->buffer + at, count,
                             (off_t)dataset_offset(bench->dataset, i));
        assert(have == (ssize_t)count);
        at += count;
        cost->bytes += count;
        cost->documents++;
    }
}

/* Documents up to a slot's worth: the next ones, or random ones. */
static uint32_t choose_parts(struct bench *bench, bool neighbours, struct document *parts) {
    uint64_t documents = dataset_documents(bench->dataset), tokens = 0;
    uint32_t count = 0;
    while (count < PARTS_MAX) {
        uint64_t i = neighbours ? bench->position++ % documents : random_next() % documents;
        uint32_t length = dataset_length(bench->dataset, i);
        if (tokens + length > SLOT_TOKENS && count > 0) {
            break;
        }
        length = length > SLOT_TOKENS ? SLOT_TOKENS : length;
        parts[count++] = (struct document){
            .document = i, .length = length, .document_length = length};
        tokens += length;
    }
    return count;
}

static void submit_slot(struct bench *bench, struct reader *reader, uint32_t job, bool neighbours,
                        struct cost *cost) {
    struct tokens_job *tokens = &bench->jobs[job];
    uint32_t count = choose_parts(bench, neighbours, bench->parts[job]);
    uint8_t *payload = bench->buffer + 2ull * SLOT_TOKENS * (bench->slot++ % SLOTS);
    bench->targets[job] = (struct tokens_target){
        .documents = bench->parts[job], .count = count, .payload = payload};
    int rc = tokens_job_prepare(tokens, bench->catalog, 2, false, &bench->targets[job]);
    assert(rc == 0);
    rc = reader_submit(reader, &tokens->read);
    assert(rc == 0);
    bench->in_flight++;
    cost->bytes += tokens_payload_bytes(bench->parts[job], count, 2);
    cost->documents += count;
}

static void finish_slots(struct bench *bench, struct reader *reader, bool neighbours,
                         uint64_t bytes, struct cost *cost) {
    struct pollfd poll_fd = {.fd = reader->event_fd, .events = POLLIN};
    uint64_t events;
    struct read_job *read_job;
    poll(&poll_fd, 1, -1);
    (void)!read(reader->event_fd, &events, sizeof events);
    while ((read_job = reader_reap(reader)) != NULL) {
        struct tokens_job *job = (struct tokens_job *)read_job;
        assert(job->targets->error.code == 0);
        bench->in_flight--;
        if (cost->bytes < bytes) {
            submit_slot(bench, reader, (uint32_t)(job - bench->jobs), neighbours, cost);
        }
    }
}

static void fill_slots(struct bench *bench, struct reader *reader, bool neighbours, uint64_t bytes,
                       struct cost *cost) {
    for (uint32_t job = 0; job < JOBS; job++) {
        submit_slot(bench, reader, job, neighbours, cost);
    }
    while (bench->in_flight > 0) {
        finish_slots(bench, reader, neighbours, bytes, cost);
    }
}

enum way {
    WAY_MEMCPY,
    WAY_EXTENTS,
    WAY_DOCUMENTS,
    WAY_URING_NEIGHBOURS,
    WAY_PREAD_NEIGHBOURS,
    WAY_URING_RANDOM,
    WAY_PREAD_RANDOM,
    WAYS,
};

static const char *const way_names[WAYS] = {
    "memcpy",          "pread 1 MB",   "pread random", "uring neighbours",
    "pool neighbours", "uring random", "pool random",
};

static void run_way(struct bench *bench, struct reader *readers[2], enum way way, uint64_t bytes,
                    struct cost *cost) {
    switch (way) {
    case WAY_MEMCPY:
        copy_extents(bench, bytes, cost);
        break;
    case WAY_EXTENTS:
        read_extents(bench, bytes, cost);
        break;
    case WAY_DOCUMENTS:
        read_documents(bench, bytes, cost);
        break;
    case WAY_URING_NEIGHBOURS:
    case WAY_PREAD_NEIGHBOURS:
        fill_slots(bench, readers[way - WAY_URING_NEIGHBOURS], true, bytes, cost);
        break;
    case WAY_URING_RANDOM:
    case WAY_PREAD_RANDOM:
        fill_slots(bench, readers[way - WAY_URING_RANDOM], false, bytes, cost);
        break;
    case WAYS:
        break;
    }
}

/* Of every way in every round. */
struct rounds {
    double gb_per_s[WAYS][ROUNDS_MAX];
    double cpu_s_per_gb[WAYS][ROUNDS_MAX];
    double documents_per_s[WAYS][ROUNDS_MAX];
    unsigned count;
};

static void run_round(struct bench *bench, struct reader *readers[2], uint64_t bytes,
                      struct rounds *rounds) {
    for (int way = 0; way < WAYS; way++) {
        struct cost cost = {0};
        if (bench->cold) {
            posix_fadvise(bench->fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        double wall = wall_now(), cpu = cpu_now();
        run_way(bench, readers, (enum way)way, bytes, &cost);
        cost.seconds = wall_now() - wall;
        cost.cpu_seconds = cpu_now() - cpu;
        rounds->gb_per_s[way][rounds->count] = (double)cost.bytes / cost.seconds / 1e9;
        rounds->cpu_s_per_gb[way][rounds->count] = cost.cpu_seconds * 1e9 / (double)cost.bytes;
        rounds->documents_per_s[way][rounds->count] = (double)cost.documents / cost.seconds;
    }
    rounds->count++;
}

/* What is compared with what; limits hold for warm reads. */
static void report(struct figures *figures, const struct rounds *rounds, bool cold) {
    const struct {
        enum way way, peer;
        const char *name, *unit;
        const double (*of)[ROUNDS_MAX];
        enum figure_rule rule;
        double limit;
    } rows[] = {
        {WAY_URING_NEIGHBOURS, WAY_EXTENTS, "wanted bytes", "GB/s", rounds->gb_per_s,
         FIGURE_AT_LEAST, 0.85},
        {WAY_URING_NEIGHBOURS, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_AT_MOST,
         1.5},
        {WAY_PREAD_NEIGHBOURS, WAY_URING_NEIGHBOURS, "wanted bytes", "GB/s", rounds->gb_per_s,
         FIGURE_AT_LEAST, 0.9},
        {WAY_PREAD_NEIGHBOURS, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_URING_RANDOM, WAY_DOCUMENTS, "documents", "/s", rounds->documents_per_s,
         FIGURE_AT_LEAST, 1.0},
        {WAY_URING_RANDOM, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_PREAD_RANDOM, WAY_URING_RANDOM, "documents", "/s", rounds->documents_per_s,
         FIGURE_AT_LEAST, 0.9},
        {WAY_PREAD_RANDOM, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double values[ROUNDS_MAX];
        double peers[ROUNDS_MAX];
        memcpy(values, rows[i].of[rows[i].way], sizeof values);
        memcpy(peers, rows[i].of[rows[i].peer], sizeof peers);
        struct figure figure = {
            .subject = way_names[rows[i].way],
            .name = rows[i].name,
            .unit = rows[i].unit,
            .peer = way_names[rows[i].peer],
            .rule = cold ? FIGURE_REPORTED : rows[i].rule,
            .limit = rows[i].limit,
        };
        figures_add_turns(figures, &figure, values, peers, rounds->count);
    }
}

static void open_readers(struct reader *readers[2], uint32_t threads) {
    struct reader_options options = {
        .queue_depth = 64, .threads = threads, .jobs_max = JOBS, .rings = 2};
    struct error error = {0};
    if (reader_open(READER_URING, &options, &readers[0], NULL, &error) < 0 ||
        reader_open(READER_PREAD, &options, &readers[1], NULL, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
}

static void bench_open(struct bench *bench, const char *folder, uint64_t bytes, bool cold) {
    bench->catalog = make_catalog(folder, bytes);
    bench->dataset = catalog_dataset(bench->catalog, 0);
    bench->fd = open(dataset_bin_path(bench->dataset), O_RDONLY | O_CLOEXEC);
    assert(bench->fd >= 0);
    bench->cold = cold;
    bench->buffer = malloc(BUFFER_BYTES);
    bench->source = malloc(bytes);
    assert(bench->buffer != NULL && bench->source != NULL);
    memset(bench->buffer, 1, BUFFER_BYTES);
    memset(bench->source, 2, bytes);
    for (uint32_t job = 0; job < JOBS; job++) {
        bench->parts[job] = calloc(PARTS_MAX, sizeof *bench->parts[job]);
        assert(bench->parts[job] != NULL);
    }
    int rc = fsync(bench->fd); /* dirty pages are not dropped */
    assert(rc == 0);
}

static void bench_close(struct bench *bench, const char *folder) {
    static const char *const endings[] = {"idx", "bin"};
    for (uint32_t job = 0; job < JOBS; job++) {
        tokens_job_deinit(&bench->jobs[job]);
        free(bench->parts[job]);
    }
    free(bench->source);
    free(bench->buffer);
    close(bench->fd);
    catalog_close(bench->catalog);
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/bench.%s", folder, endings[i]);
        unlink(path);
    }
    rmdir(folder);
}

int main(int argc, char **argv) {
    static struct rounds rounds;
    struct figures figures;
    figures_begin(&figures, "reader", &argc, argv);
    const char *megabytes = figures.smoke ? "16" : "256";
    uint64_t bytes = strtoull(argc > 1 ? argv[1] : megabytes, NULL, 10) << 20;
    unsigned turns = (unsigned)strtoul(argc > 2 ? argv[2] : figures.smoke ? "1" : "7", NULL, 10);
    bool cold = argc > 3 && strcmp(argv[3], "cold") == 0;
    char folder[] = "/tmp/ballast-bench-XXXXXX";
    struct reader *readers[2];
    struct bench bench = {0};
    if (bytes < 4 * DOCUMENT_MAX || turns == 0 || turns > ROUNDS_MAX || mkdtemp(folder) == NULL) {
        fprintf(stderr, "usage: reader_bench [--json] [--smoke] [MEGABYTES [ROUNDS [cold]]]\n");
        return 2;
    }
    bench_open(&bench, folder, bytes, cold);
    open_readers(readers, cold ? 16 : 4);
    while (rounds.count < turns) {
        run_round(&bench, readers, bytes, &rounds);
    }
    report(&figures, &rounds, cold);
    reader_close(readers[0]);
    reader_close(readers[1]);
    bench_close(&bench, folder);
    return figures_end(&figures);
}
