/* gather_bench: what a gathered row costs, beside a memcpy of as many bytes as are written, which
 * is the least that any copy can cost. Best of twenty, in nanoseconds a row. */
#include "client/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_ROWS  (1u << 20)
#define BENCH_TURNS 20

struct bench {
    struct gather_rows rows;
    enum ballast_type type;
    void *out;
    const void *source; /* BENCH_ROWS int64_t for the memcpy */
};

static double bench_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void bench_tokens(const struct bench *bench) {
    gather_tokens(&bench->rows, bench->type, bench->out);
}

static void bench_labels(const struct bench *bench) {
    gather_labels(&bench->rows, bench->type, bench->out);
}

static void bench_positions(const struct bench *bench) {
    gather_positions(&bench->rows, bench->type, bench->out);
}

static void bench_memcpy(const struct bench *bench) {
    memcpy(bench->out, bench->source, (size_t)bench->type * BENCH_ROWS);
}

static double bench_run(const struct bench *bench, void (*work)(const struct bench *bench)) {
    double best_ns = 1e18;
    for (int turn = 0; turn < BENCH_TURNS; turn++) {
        double begin_ns = bench_now_ns();
        work(bench);
        double took_ns = bench_now_ns() - begin_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    return best_ns / BENCH_ROWS;
}

/* Fills the arrays with documents of `length` tokens, one fragment each. */
static void bench_split(uint32_t length, struct ballast_document *documents,
                        struct ballast_fragment *fragments, uint64_t *first_rows,
                        uint64_t *successors) {
    for (uint32_t i = 0; i < BENCH_ROWS / length; i++) {
        documents[i] = (struct ballast_document){.length = length, .document_length = length};
        fragments[i] = (struct ballast_fragment){i, 0, length, i * length};
        first_rows[i] = (uint64_t)i * length;
        successors[i] = GATHER_NO_SUCCESSOR;
    }
}

static void bench_length(struct bench *bench, uint32_t length) {
    bench->rows.fragment_count = BENCH_ROWS / length;
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        for (int type = BALLAST_INT32; type <= BALLAST_INT64; type += 4) {
            bench->rows.token_bytes = token_bytes;
            bench->type = (enum ballast_type)type;
            printf("%8u %4u %4d %8.2f %8.2f %9.2f %8.2f\n", length, token_bytes, type,
                   bench_run(bench, bench_tokens), bench_run(bench, bench_labels),
                   bench_run(bench, bench_positions), bench_run(bench, bench_memcpy));
        }
    }
}

int main(void) {
    static const uint32_t lengths[] = {64, 512, BENCH_ROWS};
    struct ballast_document *documents = calloc(BENCH_ROWS, sizeof *documents);
    struct ballast_fragment *fragments = calloc(BENCH_ROWS, sizeof *fragments);
    uint64_t *first_rows = calloc(BENCH_ROWS, sizeof *first_rows);
    uint64_t *successors = calloc(BENCH_ROWS, sizeof *successors);
    uint8_t *tokens = calloc(BENCH_ROWS + 1, 4);
    void *source = calloc(BENCH_ROWS, sizeof(int64_t));
    void *out = calloc(BENCH_ROWS, sizeof(int64_t));
    int code = EXIT_FAILURE;
    if (documents != NULL && fragments != NULL && first_rows != NULL && successors != NULL &&
        tokens != NULL && source != NULL && out != NULL) {
        struct bench bench = {.rows = {.documents = documents,
                                       .fragments = fragments,
                                       .first_rows = first_rows,
                                       .successors = successors,
                                       .tokens = tokens},
                              .out = out,
                              .source = source};
        memset(tokens, 1, 4 * (BENCH_ROWS + 1));
        memset(source, 1, BENCH_ROWS * sizeof(int64_t));
        memset(out, 1, BENCH_ROWS * sizeof(int64_t));
        printf("%8s %4s %4s %8s %8s %9s %8s\n", "fragment", "from", "to", "tokens", "labels",
               "positions", "memcpy");
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            bench_split(lengths[i], documents, fragments, first_rows, successors);
            bench_length(&bench, lengths[i]);
        }
        code = EXIT_SUCCESS;
    }
    free(out);
    free(source);
    free(tokens);
    free(successors);
    free(first_rows);
    free(fragments);
    free(documents);
    return code;
}
