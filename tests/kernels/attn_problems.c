#include "tests/kernels/attn_problems.h"

#include "sharding/layout.h"

#include <assert.h>

struct ballast_attn_fragment *attn_problem_add(struct attn_problem *problem, int32_t q_row,
                                               int32_t q_length, int32_t kv_row, int32_t kv_length,
                                               int32_t q_position) {
    assert(problem->count < WORLD_FRAGMENTS_MAX);
    struct ballast_attn_fragment *fragment = &problem->fragments[problem->count++];
    *fragment = (struct ballast_attn_fragment){
        .q_row = q_row,
        .q_length = q_length,
        .kv_row = kv_row,
        .kv_length = kv_length,
        .q_position = q_position,
        .head_count = (uint16_t)problem->shape.q_heads,
    };
    uint32_t q_end = (uint32_t)(q_row + q_length);
    uint32_t kv_end = (uint32_t)(kv_row + kv_length);
    problem->shape.q_rows = q_end > problem->shape.q_rows ? q_end : problem->shape.q_rows;
    problem->shape.kv_rows = kv_end > problem->shape.kv_rows ? kv_end : problem->shape.kv_rows;
    return fragment;
}

static void heads(struct attn_problem *problem, uint32_t q_heads, uint32_t kv_heads) {
    problem->shape.q_heads = q_heads;
    problem->shape.kv_heads = kv_heads;
}

/* Rows that see nothing, a slice of no keys, rows of nobody, a full fragment. */
static void blind(struct attn_problem *problem) {
    heads(problem, 4, 2);
    attn_problem_add(problem, 2, 70, 0, 90, -50);
    attn_problem_add(problem, 75, 3, 90, 0, -1);
    attn_problem_add(problem, 80, 0, 95, 40, 0);
    attn_problem_add(problem, 80, 30, 135, 33, 0)->flags = BALLAST_ATTN_FULL;
    attn_problem_add(problem, 110, 5, 170, 3, -4);
    problem->shape.q_rows += 3;
    problem->shape.kv_rows += 2;
}

/* 128 query heads on one K/V head: a token is a tile, and two steps. */
static void widest_group(struct attn_problem *problem) {
    heads(problem, 128, 1);
    attn_problem_add(problem, 0, 3, 0, 140, 130);
    attn_problem_add(problem, 3, 1, 140, 1, 0);
}

/* A group that no power of two divides and that is too large for one step. */
static void split_group(struct attn_problem *problem) {
    heads(problem, 67, 1);
    attn_problem_add(problem, 0, 4, 0, 150, 128);
    attn_problem_add(problem, 5, 2, 150, 9, 4);
}

/* Block x document pieces with head ranges, some in the middle of a group, as head sharding gives
 * them: the pieces of a document share its slice. */
static void head_shards(struct attn_problem *problem) {
    heads(problem, 6, 2);
    static const struct {
        int32_t q_row, q_length, kv_row, kv_length, q_position;
        uint16_t head_begin, head_count;
    } pieces[] = {
        {0, 40, 0, 160, 120, 0, 3},   {0, 40, 0, 160, 120, 3, 3},   {40, 70, 0, 160, 40, 1, 4},
        {110, 9, 160, 9, 0, 0, 1},    {110, 9, 160, 9, 0, 2, 1},    {119, 60, 169, 75, 15, 4, 2},
        {119, 60, 169, 75, 15, 0, 0}, {119, 60, 169, 75, 15, 0, 2},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct ballast_attn_fragment *fragment = attn_problem_add(
            problem, pieces[i].q_row, pieces[i].q_length, pieces[i].kv_row, pieces[i].kv_length,
            pieces[i].q_position);
        fragment->head_begin = pieces[i].head_begin;
        fragment->head_count = pieces[i].head_count;
    }
}

/* Enough blocks of keys to go around the rings of shared memory twice. */
static void long_prefix(struct attn_problem *problem) {
    heads(problem, 4, 1);
    attn_problem_add(problem, 0, 40, 0, 600, 560);
}

/* Packed documents, lengths 0 and 1 among them. */
static void documents(struct attn_problem *problem) {
    static const int32_t lengths[] = {1, 7, 130, 0, 65, 280};
    heads(problem, 8, 2);
    int32_t row = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        attn_problem_add(problem, row, lengths[i], row, lengths[i], 0);
        row += lengths[i];
    }
}

/* Two ranges of queries of a document against its prefix, and more of them. */
static void context_parallel(struct attn_problem *problem) {
    heads(problem, 8, 1);
    attn_problem_add(problem, 0, 50, 0, 333, 283);
    attn_problem_add(problem, 50, 50, 0, 150, 100);
    attn_problem_add(problem, 120, 131, 333, 367, 236);
    attn_problem_add(problem, 251, 1, 333, 1, 0);
    attn_problem_add(problem, 260, 20, 333, 0, -1);
}

static void short_queries(struct attn_problem *problem) {
    heads(problem, 8, 1);
    attn_problem_add(problem, 0, 16, 0, 1016, 1000);
    attn_problem_add(problem, 16, 8, 0, 800, 750);
    attn_problem_add(problem, 24, 24, 1016, 500, 400);
}

static void seven_heads(struct attn_problem *problem) {
    heads(problem, 7, 1);
    attn_problem_add(problem, 0, 90, 0, 300, 210);
    attn_problem_add(problem, 100, 33, 0, 150, 5);
}

static void single_heads(struct attn_problem *problem) {
    heads(problem, 2, 2);
    attn_problem_add(problem, 0, 200, 0, 200, 0);
    attn_problem_add(problem, 200, 67, 200, 260, 193);
}

/* Operands that are slices of larger ones. */
static void strided(struct attn_problem *problem) {
    heads(problem, 4, 2);
    problem->row_extra = 5;
    problem->head_extra = 3;
    problem->scale = 0.05f;
    attn_problem_add(problem, 1, 100, 3, 170, 70);
    attn_problem_add(problem, 101, 60, 173, 60, 0);
}

/* One rank's fragments of a packed sequence under a layout: queries in its row order, keys of all
 * documents gathered. */
static void rank_of_layout(struct attn_problem *problem, enum layout layout, uint32_t rank) {
    static const uint32_t lengths[] = {210, 3, 90, 29};
    const struct packed_sequence sequence = {
        .lengths = lengths, .documents = 4, .tokens = 332, .pad_tokens = 4};
    struct fragment fragments[16];
    heads(problem, 4, 1);
    uint32_t count = layout_fragments(layout, &sequence, 3, rank, fragments, 16);
    int32_t q_row = 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t kv_row = 0;
        for (uint32_t document = 0; document < fragments[i].document; document++) {
            kv_row += (int32_t)lengths[document];
        }
        attn_problem_add(problem, q_row, (int32_t)fragments[i].length, kv_row,
                         (int32_t)(fragments[i].start + fragments[i].length),
                         (int32_t)fragments[i].start);
        q_row += (int32_t)fragments[i].length;
    }
    problem->shape.q_rows = 112;
    problem->shape.kv_rows = 336;
}

static void per_sequence_rank(struct attn_problem *problem) {
    rank_of_layout(problem, LAYOUT_PER_SEQUENCE, 0);
}

static void per_document_rank(struct attn_problem *problem) {
    rank_of_layout(problem, LAYOUT_PER_DOCUMENT, 2);
}

static void nothing(struct attn_problem *problem) {
    heads(problem, 2, 1);
    problem->shape.q_rows = 3;
    problem->shape.kv_rows = 3;
}

static const struct {
    const char *name;
    void (*draw)(struct attn_problem *problem);
} problems[] = {
    {"blind rows", blind},
    {"widest group", widest_group},
    {"split group", split_group},
    {"head shards", head_shards},
    {"long prefix", long_prefix},
    {"documents", documents},
    {"context parallel", context_parallel},
    {"short queries", short_queries},
    {"seven heads", seven_heads},
    {"single heads", single_heads},
    {"strided", strided},
    {"per-sequence rank", per_sequence_rank},
    {"per-document rank", per_document_rank},
    {"nothing", nothing},
};

uint32_t attn_problem_count(void) {
    return sizeof problems / sizeof *problems;
}

void attn_problem_draw(struct attn_problem *problem, uint32_t index, uint32_t head_dim) {
    *problem = (struct attn_problem){.name = problems[index].name, .shape.head_dim = head_dim};
    problems[index].draw(problem);
}
