/* Opening an index of very many documents, fingerprint included, against reading its file once from
 * front to back; and what memory it takes. The .bin beside it is a hole. */
#include "corpus/dataset.h"
#include "corpus/megatron.h"
#include "tests/bench/figure.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DOCUMENTS     100000000u
#define SMOKE         5000000u /* more than are kept in memory */
#define TURNS         7u
#define BUFFER_BYTES  (1u << 20)
#define OPEN_LIMIT    2.0
#define MEMORY_LIMIT  64.0
#define LENGTH_MODULO 1301u

struct bench {
    char prefix[512];
    char index_path[520];
    uint64_t documents;
    double open_ms[TURNS], read_ms[TURNS];
    double memory_mb; /* most that opening ever added */
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double resident_mb(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*u %lu", &pages) != 1) {
        fail("/proc/self/statm");
    }
    (void)fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static uint32_t length_of(uint64_t i) {
    return (uint32_t)(i * 2654435761u >> 5) % LENGTH_MODULO;
}

static void put(FILE *file, const void *bytes, size_t count) {
    if (fwrite(bytes, 1, count, file) != count) {
        fail("writing the index");
    }
}

/* Lengths, offsets and document array, one after the other. */
static uint64_t write_arrays(FILE *file, uint64_t documents) {
    uint64_t offset = 0;
    for (uint64_t i = 0; i < documents; i++) {
        const uint32_t length = length_of(i);
        put(file, &length, sizeof length);
    }
    for (uint64_t i = 0; i < documents; i++) {
        put(file, &offset, sizeof offset);
        offset += 2 * (uint64_t)length_of(i);
    }
    for (uint64_t i = 0; i <= documents; i++) {
        put(file, &i, sizeof i);
    }
    return offset;
}

static void write_corpus(struct bench *bench, const char *folder) {
    uint8_t header[MEGATRON_HEADER_BYTES];
    char bin_path[sizeof bench->prefix + 8];
    (void)snprintf(bench->prefix, sizeof bench->prefix, "%s/index_bench", folder);
    (void)snprintf(bench->index_path, sizeof bench->index_path, "%s.idx", bench->prefix);
    (void)snprintf(bin_path, sizeof bin_path, "%s.bin", bench->prefix);
    FILE *index = fopen(bench->index_path, "we");
    FILE *bin = fopen(bin_path, "we");
    if (index == NULL || bin == NULL) {
        fail(folder);
    }
    megatron_header_encode(header, MEGATRON_U16, bench->documents, bench->documents + 1);
    put(index, header, sizeof header);
    uint64_t bytes = write_arrays(index, bench->documents);
    if (fclose(index) != 0 || ftruncate(fileno(bin), (off_t)bytes) < 0 || fclose(bin) != 0) {
        fail("closing the corpus");
    }
}

static double read_whole(const struct bench *bench) {
    static uint8_t buffer[BUFFER_BYTES];
    double start = now_ms();
    int fd = open(bench->index_path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    if (fd < 0) {
        fail(bench->index_path);
    }
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
    }
    (void)close(fd);
    return got < 0 ? -1 : now_ms() - start;
}

static double open_whole(struct bench *bench, double memory_mb) {
    struct dataset *dataset;
    struct error error;
    uint8_t fingerprint[16];
    double start = now_ms();
    if (dataset_open("bench", bench->prefix, &dataset, &error) < 0 ||
        dataset_fingerprint(dataset, fingerprint, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    double took = now_ms() - start;
    double grown_mb = resident_mb() - memory_mb;
    bench->memory_mb = grown_mb > bench->memory_mb ? grown_mb : bench->memory_mb;
    dataset_close(dataset);
    return took;
}

static void report(struct figures *figures, struct bench *bench, uint32_t turns) {
    char subject[64];
    (void)snprintf(subject, sizeof subject, "index of %" PRIu64 " M documents",
                   bench->documents / 1000000);
    struct figure figure = {.subject = subject,
                            .name = "open",
                            .unit = "ms",
                            .peer = "sequential read",
                            .rule = FIGURE_AT_MOST,
                            .limit = OPEN_LIMIT};
    figures_add_turns(figures, &figure, bench->open_ms, bench->read_ms, turns);
    figure = (struct figure){.subject = subject,
                             .name = "memory",
                             .unit = "MB",
                             .value = bench->memory_mb,
                             .rule = FIGURE_AT_MOST,
                             .limit = MEMORY_LIMIT};
    figures_add(figures, &figure);
}

int main(int argc, char **argv) {
    static struct bench bench;
    struct figures figures;
    figures_begin(&figures, "index", &argc, argv);
    uint32_t turns = figures.smoke ? 1 : TURNS;
    bench.documents = argc > 2 ? strtoull(argv[2], NULL, 10) : figures.smoke ? SMOKE : DOCUMENTS;
    if (argc > 3 || bench.documents == 0) {
        fprintf(stderr, "usage: index_bench [--json] [--smoke] [FOLDER [DOCUMENTS]]\n");
        return 2;
    }
    write_corpus(&bench, argc > 1 ? argv[1] : ".");
    double memory_mb = resident_mb();
    for (uint32_t turn = 0; turn < turns; turn++) {
        bench.read_ms[turn] = read_whole(&bench);
        bench.open_ms[turn] = open_whole(&bench, memory_mb);
    }
    report(&figures, &bench, turns);
    return figures_end(&figures);
}
