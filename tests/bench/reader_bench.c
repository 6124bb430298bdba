/* reader_bench: what reading micro-batches costs, against the plainest reads in the same run.
 *
 *     reader_bench [--json] [--smoke] [MEGABYTES [ROUNDS [cold]]]
 *
 * Makes a dataset of 2-byte tokens with a long tail of document lengths and fills slots from it,
 * half a window of them in one job as the daemon does: documents in block order, all of them or one
 * micro-batch in eight as on one of eight nodes, and in full order; also with payload hashes, and
 * checked against a manifest, when its pieces are read first and when they were read before. The
 * dataset is warm in the page cache or, with `cold`, dropped from it before each way; the reader
 * chooses by itself to read past it. The disk's own best is then asked of fio, if that is
 * installed. It is 2 GB, so that documents in full order are far apart; of it 1 GB is read. The
 * ways take turns, ROUNDS times. CPU counts all threads, those of the kernel's io-wq too.
 *
 * What a micro-batch costs at least is told by four ways without the reader: a memcpy of whole
 * megabytes; one that deals the documents of the block order out to their slots; reads of whole
 * megabytes, by pread and into registered memory by io_uring; and preadv of the very extents that
 * the reader reads where it does not map them. */
#include "corpus/manifest.h"
#include "corpus/megatron.h"
#include "corpus/order.h"
#include "corpus/tokens.h"
#include "corpus/verify.h"
#include "tests/bench/figure.h"

#include <assert.h>
#include <fcntl.h>
#include <liburing.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SLOT_TOKENS             131072u
#define JOB_SLOTS               256u /* half a window */
#define JOBS                    2u
#define SHARE                   8u /* nodes, where only one of them reads */
#define EXTENT_BYTES            (1u << 20)
#define DOCUMENT_MAX            262144u
#define BUFFER_BYTES            (JOBS * JOB_SLOTS * 2u * SLOT_TOKENS)
#define ROUNDS_MAX              64u
#define STREAM_BYTES            (UINT64_C(1) << 30)
#define WRITTEN_WORDS           (UINT64_C(1) << 20) /* at once */
#define COLD_FULL_DOCUMENTS_MAX 50000u              /* in full order a disk takes its time */

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

static void write_random(const char *path, uint64_t bytes) {
    uint64_t *words = malloc(WRITTEN_WORDS * 8);
    FILE *file = fopen(path, "wb");
    assert(words != NULL && file != NULL);
    while (bytes > 0) {
        uint64_t count = bytes < WRITTEN_WORDS * 8 ? bytes : WRITTEN_WORDS * 8;
        for (uint64_t i = 0; i < WRITTEN_WORDS; i++) {
            words[i] = random_next();
        }
        size_t written = fwrite(words, 1, count, file);
        assert(written == count);
        bytes -= count;
    }
    int rc = fclose(file);
    assert(rc == 0);
    free(words);
}

/* Writing leaves the page cache warm. */
static void make_dataset(const char *prefix, uint64_t bytes) {
    char path[160];
    uint32_t documents = 0, capacity = (uint32_t)(bytes / 20);
    uint32_t *lengths = calloc(capacity, sizeof *lengths);
    uint64_t tokens = 0;
    assert(lengths != NULL);
    while (2 * (tokens + DOCUMENT_MAX) < bytes) {
        lengths[documents] = random_length();
        tokens += lengths[documents++];
    }
    snprintf(path, sizeof path, "%s.idx", prefix);
    write_index(path, lengths, documents);
    snprintf(path, sizeof path, "%s.bin", prefix);
    write_random(path, 2 * tokens);
    free(lengths);
}

static void give_up(const char *text) {
    fprintf(stderr, "reader_bench: %s\n", text);
    exit(1);
}

static struct catalog *open_catalog(const char *prefix) {
    struct catalog *catalog = NULL;
    struct error error = {0};
    const struct catalog_entry entry = {.name = "bench", .prefix = prefix, .weight = 1};
    if (catalog_open(&entry, 1, &catalog, &error) < 0) {
        give_up(error.text);
    }
    return catalog;
}

/* As the daemon has it. */
static struct catalog *open_mapped(const char *prefix) {
    struct catalog *catalog = open_catalog(prefix);
    (void)catalog_read_mapped(catalog);
    return catalog;
}

static void make_manifest(const char *prefix) {
    struct catalog *catalog = open_catalog(prefix);
    const struct dataset *dataset = catalog_dataset(catalog, 0);
    struct manifest *fresh = NULL;
    struct verify_result result;
    struct error error = {0};
    uint8_t fingerprint[16];
    char path[160];
    snprintf(path, sizeof path, "%s.manifest", prefix);
    if (dataset_fingerprint(dataset, fingerprint, &error) < 0 ||
        manifest_create(dataset_bin_bytes(dataset), fingerprint, &fresh, &error) < 0 ||
        verify_dataset(dataset, 0, fresh, NULL, NULL, &result, &error) < 0 ||
        manifest_save(fresh, path, &error) < 0) {
        give_up(error.text);
    }
    manifest_destroy(fresh);
    catalog_close(catalog);
}

/* The micro-batches of a way, chosen before it is measured. */
struct stream {
    struct document *parts;
    uint32_t part_count;
    uint32_t *begin; /* the first part of each; one more than there are */
    uint32_t count;
};

enum stream_name { STREAM_BLOCK, STREAM_SHARE, STREAM_FULL, STREAMS };

struct bench {
    struct catalog *catalog;
    struct catalog *unmapped;
    struct catalog *checked; /* with its manifest */
    const char *prefix;
    const struct dataset *dataset;
    int fd;          /* of its .bin */
    uint8_t *buffer; /* BUFFER_BYTES */
    uint8_t *source; /* for memcpy, STREAM_BYTES or less, so that it is cold */
    uint64_t source_bytes;
    struct io_uring ring; /* `buffer` is registered */
    bool ring_fixed;
    bool cold;
    bool fio;
    char path[160]; /* of .bin */
    struct reader *readers[2];
    struct stream streams[STREAMS];
    struct tokens_job jobs[JOBS];
    struct tokens_target targets[JOBS][JOB_SLOTS];
};

/* What one way reads, and what came of it. */
struct run {
    const struct stream *stream;
    const struct catalog *catalog;
    struct reader *reader;
    bool hashed;
    uint32_t next;      /* micro-batch */
    uint32_t in_flight; /* jobs */
};

struct cost {
    uint64_t bytes, documents;
    uint64_t read_bytes; /* with gaps */
    uint64_t reads;
    double seconds, cpu_seconds;
    double fio_bytes_per_s, fio_per_s;
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

/* One pass over the dataset, or its first documents, dealt out in `order`; of every `share`
 * micro-batches one is kept. */
static void make_stream(const struct dataset *dataset, enum order_shuffle shuffle, uint32_t share,
                        uint64_t documents_max, struct stream *stream) {
    const struct order order = {
        .seed = 7, .shuffle = shuffle, .block_documents = 256, .window_blocks = 64};
    uint64_t documents = dataset_documents(dataset);
    uint64_t tokens = 0, batch = 0;
    stream->parts = calloc(documents, sizeof *stream->parts);
    stream->begin = calloc(documents + 2, sizeof *stream->begin);
    assert(stream->parts != NULL && stream->begin != NULL);
    for (uint64_t i = 0; i < documents && i < documents_max; i++) {
        uint64_t document = order_document(&order, 0, 0, documents, i);
        uint32_t length = dataset_length(dataset, document);
        length = length > SLOT_TOKENS ? SLOT_TOKENS : length;
        if (tokens + length > SLOT_TOKENS) {
            batch++;
            tokens = 0;
            stream->begin[batch % share == 0 ? ++stream->count : stream->count] =
                stream->part_count;
        }
        tokens += length;
        if (batch % share == 0 && length > 0) {
            stream->parts[stream->part_count++] = (struct document){
                .document = document, .length = length, .document_length = length};
        }
    }
    stream->begin[++stream->count] = stream->part_count;
}

static void read_extents(struct bench *bench, uint64_t bytes, struct cost *cost) {
    uint64_t whole = dataset_bin_bytes(bench->dataset) / EXTENT_BYTES * EXTENT_BYTES;
    for (uint64_t done = 0; done < bytes; done += EXTENT_BYTES) {
        ssize_t have = pread(bench->fd, bench->buffer + done % BUFFER_BYTES, EXTENT_BYTES,
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

static void read_fixed(struct bench *bench, uint64_t bytes, struct cost *cost) {
    uint64_t whole = dataset_bin_bytes(bench->dataset) / EXTENT_BYTES * EXTENT_BYTES;
    for (uint64_t done = 0; done < bytes && bench->ring_fixed; done += EXTENT_BYTES) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&bench->ring);
        struct io_uring_cqe *cqe;
        io_uring_prep_read_fixed(sqe, bench->fd, bench->buffer + done % BUFFER_BYTES, EXTENT_BYTES,
                                 done % whole, 0);
        int rc = io_uring_submit_and_wait(&bench->ring, 1);
        assert(rc == 1 && io_uring_peek_cqe(&bench->ring, &cqe) == 0 && cqe->res == EXTENT_BYTES);
        io_uring_cqe_seen(&bench->ring, cqe);
    }
    cost->bytes = bytes;
}

/* To where the extent's bytes belong, from as many elsewhere. */
static void copy_extent(const struct bench *bench, const struct read_extent *extent) {
    const uint8_t *from = bench->source + extent->offset % (bench->source_bytes - EXTENT_BYTES);
    for (uint32_t i = 0; i < extent->iovec_count; i++) {
        memcpy(extent->iovecs[i].iov_base, from, extent->iovecs[i].iov_len);
        from += extent->iovecs[i].iov_len;
    }
}

static void read_documents(struct bench *bench, struct cost *cost) {
    const struct stream *stream = &bench->streams[STREAM_FULL];
    uint64_t at = 0;
    for (uint32_t i = 0; i < stream->part_count; i++) {
        const struct document *part = &stream->parts[i];
        size_t count = 2 * (size_t)part->length;
        at = at + count > BUFFER_BYTES ? 0 : at;
        ssize_t have = pread(bench->fd, bench->buffer + at, count,
                             (off_t)dataset_offset(bench->dataset, part->document));
        assert(have == (ssize_t)count);
        at += count;
        cost->bytes += count;
    }
    cost->documents = stream->part_count;
}

/* The next half of a window, as one job; NULL when there is no more. */
static struct tokens_target *next_targets(struct bench *bench, struct run *run, uint32_t job,
                                          struct cost *cost) {
    struct tokens_target *first = NULL, **end = &first;
    for (uint32_t i = 0; i < JOB_SLOTS && run->next < run->stream->count; i++, run->next++) {
        uint32_t begin = run->stream->begin[run->next];
        uint32_t count = run->stream->begin[run->next + 1] - begin;
        uint8_t *payload = bench->buffer + 2ull * SLOT_TOKENS * (job * JOB_SLOTS + i);
        struct tokens_target *target = &bench->targets[job][i];
        *target = (struct tokens_target){.documents = run->stream->parts + begin,
                                         .count = count,
                                         .wants_hash = run->hashed,
                                         .payload = payload};
        if (count > 0) {
            *end = target;
            end = &target->next;
            cost->documents += count;
        }
    }
    return first;
}

/* Deals out the extents of block order by preadv, or by memcpy from memory; only that is timed. */
static void deal_out(struct bench *bench, bool copied, struct cost *cost) {
    struct run run = {.stream = &bench->streams[STREAM_BLOCK], .catalog = bench->unmapped};
    struct tokens_target *targets;
    double wall = wall_now(), cpu = cpu_now();
    for (uint32_t job = 0; (targets = next_targets(bench, &run, job, cost)) != NULL;
         job = (job + 1) % JOBS) {
        struct tokens_job *tokens = &bench->jobs[job];
        double wall_before = wall_now(), cpu_before = cpu_now();
        int rc = tokens_job_prepare(tokens, run.catalog, 2, false, targets);
        assert(rc == 0);
        wall += wall_now() - wall_before;
        cpu += cpu_now() - cpu_before;
        for (uint32_t e = 0; e < tokens->read.extent_count; e++) {
            const struct read_extent *extent = &tokens->read.extents[e];
            if (copied) {
                copy_extent(bench, extent);
            } else {
                ssize_t have = preadv(bench->fd, extent->iovecs, (int)extent->iovec_count,
                                      (off_t)extent->offset);
                assert(have > 0);
            }
        }
        cost->bytes += tokens->wanted_bytes;
    }
    cost->seconds = wall_now() - wall;
    cost->cpu_seconds = cpu_now() - cpu;
}

static void submit_job(struct bench *bench, struct run *run, uint32_t job, struct cost *cost) {
    struct tokens_target *first = next_targets(bench, run, job, cost);
    if (first == NULL) {
        return;
    }
    struct tokens_job *tokens = &bench->jobs[job];
    tokens_job_begin(tokens, run->catalog, 2, false, first);
    int rc = reader_submit(run->reader, &tokens->read);
    assert(rc == 0);
    run->in_flight++;
}

static void reap_jobs(struct bench *bench, struct run *run, struct cost *cost) {
    struct pollfd poll_fd = {.fd = run->reader->event_fd, .events = POLLIN};
    uint64_t events;
    struct read_job *read_job;
    poll(&poll_fd, 1, -1);
    (void)!read(run->reader->event_fd, &events, sizeof events);
    while ((read_job = reader_reap(run->reader)) != NULL) {
        struct tokens_job *job = (struct tokens_job *)read_job;
        if (read_job->result < 0) {
            give_up(job->targets->error.text);
        }
        run->in_flight--;
        cost->bytes += job->wanted_bytes;
        cost->read_bytes += job->read_bytes;
        cost->reads += read_job->extent_count;
        submit_job(bench, run, (uint32_t)(job - bench->jobs), cost);
    }
}

static void fill_slots(struct bench *bench, struct run *run, struct cost *cost) {
    for (uint32_t job = 0; job < JOBS; job++) {
        submit_job(bench, run, job, cost);
    }
    while (run->in_flight > 0) {
        reap_jobs(bench, run, cost);
    }
}

/* The best that fio gets out of the disk in a second. */
static void ask_fio(const struct bench *bench, const char *options, struct cost *cost) {
    char command[512], line[256];
    double bytes = 0, per_s = 0;
    snprintf(command, sizeof command,
             "fio --name=x --filename=%s --readonly --direct=1 --time_based --runtime=1 "
             "--ioengine=io_uring --output-format=json %s 2>/dev/null",
             bench->path, options);
    FILE *fio = bench->fio ? popen(command, "r") : NULL;
    while (fio != NULL && fgets(line, sizeof line, fio) != NULL) {
        double value;
        if (bytes == 0 && sscanf(line, " \"bw_bytes\" : %lf", &value) == 1) {
            bytes = value;
        } else if (per_s == 0 && sscanf(line, " \"iops\" : %lf", &value) == 1) {
            per_s = value;
        }
    }
    if (fio != NULL) {
        pclose(fio);
    }
    cost->fio_bytes_per_s = bytes;
    cost->fio_per_s = per_s;
}

enum way {
    WAY_MEMCPY,
    WAY_MEMCPY_PIECES,
    WAY_EXTENTS,
    WAY_FIXED,
    WAY_PIECES,
    WAY_DOCUMENTS,
    WAY_FIO_SEQUENTIAL,
    WAY_FIO_RANDOM,
    WAY_URING_BLOCK,
    WAY_URING_UNMAPPED,
    WAY_POOL_BLOCK,
    WAY_URING_SHARE,
    WAY_URING_FULL,
    WAY_POOL_FULL,
    WAY_URING_HASHED,
    WAY_URING_CHECKED_FIRST,
    WAY_URING_CHECKED,
    WAYS,
};

static const char *const way_names[WAYS] = {
    "memcpy",        "memcpy pieces",  "pread 1 MB",     "fixed 1 MB",  "preadv pieces",
    "pread loop",    "fio 1 MB QD 8",  "fio 4 KB QD 64", "uring block", "uring unmapped",
    "pool block",    "uring 1 of 8",   "uring full",     "pool full",   "uring hashed",
    "checked first", "checked before",
};

static void run_reader(struct bench *bench, enum way way, struct cost *cost) {
    bool pool = way == WAY_POOL_BLOCK || way == WAY_POOL_FULL;
    struct run run = {
        .stream = &bench->streams[STREAM_BLOCK],
        .catalog = way == WAY_URING_CHECKED_FIRST || way == WAY_URING_CHECKED ? bench->checked
                   : way == WAY_URING_UNMAPPED                                ? bench->unmapped
                                                                              : bench->catalog,
        .reader = bench->readers[pool],
        .hashed = way == WAY_URING_HASHED,
    };
    if (way == WAY_URING_SHARE) {
        run.stream = &bench->streams[STREAM_SHARE];
    } else if (way == WAY_URING_FULL || way == WAY_POOL_FULL) {
        run.stream = &bench->streams[STREAM_FULL];
    }
    fill_slots(bench, &run, cost);
}

static void run_way(struct bench *bench, enum way way, struct cost *cost) {
    uint64_t bytes = dataset_bin_bytes(bench->dataset) / EXTENT_BYTES * EXTENT_BYTES;
    bytes = bytes < STREAM_BYTES ? bytes : STREAM_BYTES;
    switch (way) {
    case WAY_MEMCPY:
        copy_extents(bench, bench->source_bytes, cost);
        break;
    case WAY_MEMCPY_PIECES:
        deal_out(bench, true, cost);
        break;
    case WAY_EXTENTS:
        read_extents(bench, bytes, cost);
        break;
    case WAY_FIXED:
        read_fixed(bench, bytes, cost);
        break;
    case WAY_PIECES:
        deal_out(bench, false, cost);
        break;
    case WAY_DOCUMENTS:
        read_documents(bench, cost);
        break;
    case WAY_FIO_SEQUENTIAL:
        ask_fio(bench, "--rw=read --bs=1M --iodepth=8", cost);
        break;
    case WAY_FIO_RANDOM:
        ask_fio(bench, "--rw=randread --bs=4k --iodepth=64 --fixedbufs --registerfiles", cost);
        break;
    default:
        run_reader(bench, way, cost);
    }
}

/* Of every way in every round. */
struct rounds {
    double gb_per_s[WAYS][ROUNDS_MAX];
    double cpu_s_per_gb[WAYS][ROUNDS_MAX];
    double documents_per_s[WAYS][ROUNDS_MAX];
    double amplification[WAYS][ROUNDS_MAX];
    double documents_per_read[WAYS][ROUNDS_MAX];
    unsigned count;
};

static void note_cost(struct rounds *rounds, enum way way, const struct cost *cost) {
    double bytes = cost->bytes > 0 ? (double)cost->bytes : 1;
    unsigned i = rounds->count;
    rounds->gb_per_s[way][i] = (double)cost->bytes / cost->seconds / 1e9;
    rounds->cpu_s_per_gb[way][i] = cost->cpu_seconds * 1e9 / bytes;
    rounds->documents_per_s[way][i] = (double)cost->documents / cost->seconds;
    rounds->amplification[way][i] = (double)cost->read_bytes / bytes;
    rounds->documents_per_read[way][i] = (double)cost->documents /
                                         (double)(cost->reads > 0 ? cost->reads : 1);
    if (way == WAY_FIO_SEQUENTIAL || way == WAY_FIO_RANDOM) {
        rounds->gb_per_s[way][i] = cost->fio_bytes_per_s / 1e9;
        rounds->documents_per_s[way][i] = cost->fio_per_s;
    }
}

static void read_past_cache(struct catalog *catalog) {
    struct error error = {0};
    if (catalog_read_direct(catalog, CATALOG_DIRECT_AUTO, false, &error) == 0) {
        fprintf(stderr, "reader_bench: through the page cache: %s\n", error.text);
    }
}

/* Nothing is checked yet. */
static void open_checked(struct bench *bench) {
    struct error error = {0};
    catalog_close(bench->checked);
    bench->checked = open_mapped(bench->prefix);
    if (catalog_use_manifests(bench->checked, MANIFESTS_REQUIRED, &error) < 0) {
        give_up(error.text);
    }
    if (bench->cold) {
        read_past_cache(bench->checked);
    }
}

/* What is no row's: fio of memory, and what is slow on a disk and told by fio. */
static bool way_is_idle(const struct bench *bench, enum way way) {
    bool fio = way == WAY_FIO_SEQUENTIAL || way == WAY_FIO_RANDOM;
    bool slow = way == WAY_MEMCPY || way == WAY_MEMCPY_PIECES || way == WAY_FIXED ||
                way == WAY_PIECES || way == WAY_URING_UNMAPPED ||
                (bench->fio && way == WAY_DOCUMENTS);
    return bench->cold ? slow : fio;
}

static void run_round(struct bench *bench, struct rounds *rounds) {
    for (int way = 0; way < WAYS; way++) {
        struct cost cost = {0};
        if (way_is_idle(bench, (enum way)way)) {
            continue;
        }
        if (way == WAY_URING_CHECKED_FIRST) {
            open_checked(bench);
        }
        if (bench->cold) {
            posix_fadvise(bench->fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        double wall = wall_now(), cpu = cpu_now();
        run_way(bench, (enum way)way, &cost);
        cost.seconds = cost.seconds > 0 ? cost.seconds : wall_now() - wall;
        cost.cpu_seconds = cost.cpu_seconds > 0 ? cost.cpu_seconds : cpu_now() - cpu;
        note_cost(rounds, (enum way)way, &cost);
    }
    rounds->count++;
}

/* What is compared with what. */
struct row {
    enum way way, peer;
    const char *name, *unit;
    double (*of)[ROUNDS_MAX];
    enum figure_rule rule;
    double limit;
};

static void report_row(struct figures *figures, const struct rounds *rounds,
                       const struct row *row) {
    double values[ROUNDS_MAX];
    double peers[ROUNDS_MAX];
    memcpy(values, row->of[row->way], sizeof values);
    memcpy(peers, row->of[row->peer], sizeof peers);
    const struct figure figure = {
        .subject = way_names[row->way],
        .name = row->name,
        .unit = row->unit,
        .peer = way_names[row->peer],
        .rule = row->rule,
        .limit = row->limit,
    };
    figures_add_turns(figures, &figure, values, peers, rounds->count);
}

static void report_documents_per_read(struct figures *figures, struct rounds *rounds,
                                      enum way way) {
    const struct figure figure = {
        .subject = way_names[way],
        .name = "documents per read",
        .unit = "",
        .value = figure_median(rounds->documents_per_read[way], rounds->count),
    };
    figures_add(figures, &figure);
}

static void report_amplification(struct figures *figures, struct rounds *rounds, enum way way) {
    const struct figure figure = {
        .subject = way_names[way],
        .name = "bytes read per byte wanted",
        .unit = "",
        .value = figure_median(rounds->amplification[way], rounds->count),
    };
    figures_add(figures, &figure);
}

static void report_warm(struct figures *figures, struct rounds *rounds) {
    const struct row rows[] = {
        {WAY_URING_BLOCK, WAY_EXTENTS, "wanted bytes", "GB/s", rounds->gb_per_s, FIGURE_AT_LEAST,
         0.85},
        {WAY_URING_BLOCK, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_AT_MOST, 1.5},
        {WAY_MEMCPY_PIECES, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_EXTENTS, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_FIXED, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_PIECES, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_URING_UNMAPPED, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_URING_BLOCK, WAY_PIECES, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_URING_SHARE, WAY_MEMCPY, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_URING_SHARE, WAY_EXTENTS, "wanted bytes", "GB/s", rounds->gb_per_s, FIGURE_REPORTED,
         0},
        {WAY_URING_FULL, WAY_DOCUMENTS, "documents", "/s", rounds->documents_per_s, FIGURE_AT_LEAST,
         1.0},
        {WAY_URING_FULL, WAY_DOCUMENTS, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_POOL_BLOCK, WAY_URING_BLOCK, "wanted bytes", "GB/s", rounds->gb_per_s, FIGURE_AT_LEAST,
         0.9},
        {WAY_POOL_FULL, WAY_URING_FULL, "documents", "/s", rounds->documents_per_s, FIGURE_AT_LEAST,
         0.9},
        {WAY_URING_HASHED, WAY_URING_BLOCK, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED,
         0},
        {WAY_URING_CHECKED_FIRST, WAY_URING_BLOCK, "CPU", "s/GB", rounds->cpu_s_per_gb,
         FIGURE_REPORTED, 0},
        {WAY_URING_CHECKED, WAY_URING_BLOCK, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_AT_MOST,
         1.1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        report_row(figures, rounds, &rows[i]);
    }
    report_amplification(figures, rounds, WAY_URING_BLOCK);
    report_amplification(figures, rounds, WAY_URING_SHARE);
    report_amplification(figures, rounds, WAY_URING_CHECKED_FIRST);
    report_documents_per_read(figures, rounds, WAY_URING_BLOCK);
    report_documents_per_read(figures, rounds, WAY_URING_FULL);
}

static void report_cold(struct figures *figures, struct rounds *rounds, bool fio) {
    enum figure_rule judged = fio ? FIGURE_AT_LEAST : FIGURE_REPORTED;
    const struct row rows[] = {
        {WAY_URING_BLOCK, fio ? WAY_FIO_SEQUENTIAL : WAY_EXTENTS, "wanted bytes", "GB/s",
         rounds->gb_per_s, judged, 0.85},
        {WAY_URING_FULL, fio ? WAY_FIO_RANDOM : WAY_DOCUMENTS, "documents", "/s",
         rounds->documents_per_s, judged, 0.8},
        {WAY_POOL_BLOCK, WAY_URING_BLOCK, "wanted bytes", "GB/s", rounds->gb_per_s, FIGURE_AT_LEAST,
         0.5},
        {WAY_POOL_FULL, WAY_URING_FULL, "documents", "/s", rounds->documents_per_s, FIGURE_AT_LEAST,
         0.5},
        {WAY_URING_BLOCK, WAY_EXTENTS, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_REPORTED, 0},
        {WAY_URING_CHECKED_FIRST, WAY_URING_BLOCK, "CPU", "s/GB", rounds->cpu_s_per_gb,
         FIGURE_REPORTED, 0},
        {WAY_URING_CHECKED, WAY_URING_BLOCK, "CPU", "s/GB", rounds->cpu_s_per_gb, FIGURE_AT_MOST,
         1.1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        report_row(figures, rounds, &rows[i]);
    }
    report_amplification(figures, rounds, WAY_URING_SHARE);
    report_documents_per_read(figures, rounds, WAY_URING_FULL);
}

static void open_readers(struct bench *bench) {
    struct reader_options options = {
        .queue_depth = 64,
        .threads = reader_threads(bench->cold),
        .jobs_max = JOBS,
        .rings = 2,
        .memory = bench->buffer,
        .memory_bytes = BUFFER_BYTES,
    };
    struct error error = {0};
    if (reader_open(READER_URING, &options, &bench->readers[0], NULL, &error) < 0 ||
        reader_open(READER_PREAD, &options, &bench->readers[1], NULL, &error) < 0) {
        give_up(error.text);
    }
}

static void open_catalogs(struct bench *bench, const char *prefix) {
    bench->prefix = prefix;
    bench->catalog = open_mapped(prefix);
    bench->unmapped = open_catalog(prefix);
    if (bench->cold) {
        read_past_cache(bench->catalog);
    }
    open_checked(bench);
    bench->dataset = catalog_dataset(bench->catalog, 0);
}

/* Of block order all, but not more than STREAM_BYTES; of one node's share as much from a longer
 * one.
 */
static void make_streams(struct bench *bench, uint64_t bytes) {
    uint64_t all = dataset_documents(bench->dataset);
    uint64_t most = bytes > STREAM_BYTES ? all / (bytes / STREAM_BYTES) : all;
    uint64_t full = bench->cold && most > COLD_FULL_DOCUMENTS_MAX ? COLD_FULL_DOCUMENTS_MAX : most;
    make_stream(bench->dataset, ORDER_BLOCK, 1, most, &bench->streams[STREAM_BLOCK]);
    make_stream(bench->dataset, ORDER_BLOCK, SHARE, all, &bench->streams[STREAM_SHARE]);
    make_stream(bench->dataset, ORDER_FULL, 1, full, &bench->streams[STREAM_FULL]);
}

static void bench_open(struct bench *bench, const char *prefix, uint64_t bytes, bool cold) {
    make_dataset(prefix, bytes);
    make_manifest(prefix);
    bench->cold = cold;
    bench->fio = cold && system("fio --version >/dev/null 2>&1") == 0;
    open_catalogs(bench, prefix);
    snprintf(bench->path, sizeof bench->path, "%s.bin", prefix);
    bench->fd = open(bench->path, O_RDONLY | O_CLOEXEC);
    int rc = fsync(bench->fd); /* dirty pages are not dropped */
    assert(rc == 0);
    bench->buffer = aligned_alloc(2u << 20, BUFFER_BYTES);
    bench->source_bytes = cold ? EXTENT_BYTES : bytes < STREAM_BYTES ? bytes : STREAM_BYTES;
    bench->source = malloc(bench->source_bytes);
    assert(bench->fd >= 0 && bench->buffer != NULL && bench->source != NULL);
    (void)madvise(bench->buffer, BUFFER_BYTES, MADV_HUGEPAGE); /* as [slab] has it */
    memset(bench->buffer, 1, BUFFER_BYTES);
    memset(bench->source, 2, bench->source_bytes);
    make_streams(bench, bytes);
    open_readers(bench);
    struct iovec buffer = {bench->buffer, BUFFER_BYTES};
    rc = io_uring_queue_init(1, &bench->ring, 0);
    bench->ring_fixed = rc == 0 && io_uring_register_buffers(&bench->ring, &buffer, 1) == 0;
}

static void bench_close(struct bench *bench, const char *folder, const char *prefix) {
    static const char *const endings[] = {"idx", "bin", "manifest"};
    io_uring_queue_exit(&bench->ring);
    reader_close(bench->readers[0]);
    reader_close(bench->readers[1]);
    for (uint32_t job = 0; job < JOBS; job++) {
        tokens_job_deinit(&bench->jobs[job]);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        free(bench->streams[i].parts);
        free(bench->streams[i].begin);
    }
    free(bench->source);
    free(bench->buffer);
    close(bench->fd);
    catalog_close(bench->checked);
    catalog_close(bench->unmapped);
    catalog_close(bench->catalog);
    for (int i = 0; i < 3; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s.%s", prefix, endings[i]);
        unlink(path);
    }
    rmdir(folder);
}

int main(int argc, char **argv) {
    static struct rounds rounds;
    static struct bench bench;
    struct figures figures;
    figures_begin(&figures, "reader", &argc, argv);
    bool cold = argc > 3 && strcmp(argv[3], "cold") == 0;
    const char *megabytes = figures.smoke ? "16" : "2048";
    uint64_t bytes = strtoull(argc > 1 ? argv[1] : megabytes, NULL, 10) << 20;
    unsigned turns = (unsigned)strtoul(argc > 2 ? argv[2] : figures.smoke ? "1" : "7", NULL, 10);
    char folder[] = "/tmp/ballast-bench-XXXXXX";
    char prefix[128];
    if (bytes < 4 * DOCUMENT_MAX || turns == 0 || turns > ROUNDS_MAX || mkdtemp(folder) == NULL) {
        fprintf(stderr, "usage: reader_bench [--json] [--smoke] [MEGABYTES [ROUNDS [cold]]]\n");
        return 2;
    }
    snprintf(prefix, sizeof prefix, "%s/bench", folder);
    bench_open(&bench, prefix, bytes, cold);
    while (rounds.count < turns) {
        run_round(&bench, &rounds);
    }
    if (cold) {
        report_cold(&figures, &rounds, bench.fio);
    } else {
        report_warm(&figures, &rounds);
    }
    bench_close(&bench, folder, prefix);
    return figures_end(&figures);
}
