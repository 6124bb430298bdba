/* gather_bench: what a gathered row costs, beside a memcpy of as many bytes as are written, which
 * is the least that any copy can cost. */
#include "client/gather.h"
#include "tests/bench/figure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_ROWS  (1u << 20)
#define BENCH_TURNS 21
#define RATIO_LIMIT 1.25 /* of tokens from u16 in fragments of 512 and more */

struct bench {
    struct gather_rows rows;
    enum ballast_type type;
    void *out;
    const void *source; /* BENCH_ROWS int64_t for the memcpy */
};

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

static double bench_time(const struct bench *bench, void (*work)(const struct bench *bench)) {
    double begin_us = figure_cpu_us();
    work(bench);
    return (figure_cpu_us() - begin_us) * 1e3 / BENCH_ROWS;
}

static void bench_run(struct figures *figures, const struct bench *bench, uint32_t length) {
    static const struct {
        const char *name;
        void (*work)(const struct bench *bench);
    } ways[] = {{"tokens", bench_tokens}, {"labels", bench_labels}, {"positions", bench_positions}};
    uint32_t turns = figures->smoke ? 1 : BENCH_TURNS;
    char subject[64];
    (void)snprintf(subject, sizeof subject, "fragments of %u, %u to %d", length,
                   bench->rows.token_bytes, (int)bench->type);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        double gathered_ns[BENCH_TURNS];
        double copied_ns[BENCH_TURNS];
        for (uint32_t turn = 0; turn < turns; turn++) {
            gathered_ns[turn] = bench_time(bench, ways[i].work);
            copied_ns[turn] = bench_time(bench, bench_memcpy);
        }
        bool judged = i == 0 && length >= 512 && bench->rows.token_bytes == 2;
        struct figure figure = {
            .subject = subject,
            .name = ways[i].name,
            .unit = "ns/row",
            .peer = "memcpy",
            .rule = judged ? FIGURE_AT_MOST : FIGURE_REPORTED,
            .limit = RATIO_LIMIT,
        };
        figures_add_turns(figures, &figure, gathered_ns, copied_ns, turns);
    }
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

static void bench_length(struct figures *figures, struct bench *bench, uint32_t length) {
    bench->rows.fragment_count = BENCH_ROWS / length;
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        for (int type = BALLAST_INT32; type <= BALLAST_INT64; type += 4) {
            bench->rows.token_bytes = token_bytes;
            bench->type = (enum ballast_type)type;
            bench_run(figures, bench, length);
        }
    }
}

int main(int argc, char **argv) {
    static const uint32_t lengths[] = {64, 512, BENCH_ROWS};
    struct ballast_document *documents = calloc(BENCH_ROWS, sizeof *documents);
    struct ballast_fragment *fragments = calloc(BENCH_ROWS, sizeof *fragments);
    uint64_t *first_rows = calloc(BENCH_ROWS, sizeof *first_rows);
    uint64_t *successors = calloc(BENCH_ROWS, sizeof *successors);
    uint8_t *tokens = calloc(BENCH_ROWS + 1, 4);
    void *source = calloc(BENCH_ROWS, sizeof(int64_t));
    void *out = calloc(BENCH_ROWS, sizeof(int64_t));
    int code = EXIT_FAILURE;
    struct figures figures;
    figures_begin(&figures, "gather", &argc, argv);
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
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            bench_split(lengths[i], documents, fragments, first_rows, successors);
            bench_length(&figures, &bench, lengths[i]);
        }
        code = figures_end(&figures);
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
