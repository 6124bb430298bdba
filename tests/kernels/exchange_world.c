/* exchange_world: see the header. What did not arrive is not a number, so a result that is right
 * was made of nothing but what the exchange brought. */
#include "exchange_world.h"

#include "client/batch.h"
#include "exchange_plans.h"
#include "gpu_attn/reference.h"
#include "proto/message.h"
#include "tests/property/splitmix.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS   300000u /* ranks wait for each other's kernels */
#define LSE_ERROR_MAX 1e-5
#define SQUARE_FLOOR  1e-6 /* of an element, where answers are 0 */

/* Of a tensor's elements. */
enum format { FORMAT_DOUBLE, FORMAT_FLOAT, FORMAT_BF16 };

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "exchange_world: no memory\n");
        exit(1);
    }
    return memory;
}

/* 256 values from -1, which bf16 holds exactly. */
static double *drawn(size_t count, uint64_t seed) {
    double *values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = (double)(seed >> 56) / 128 - 1;
    }
    return values;
}

static void group_reference(struct exchange_group *g) {
    uint32_t dim = g->arithmetic->head_dim;
    size_t q = (size_t)g->rows * g->q_heads;
    size_t kv = (size_t)g->rows * g->kv_heads;
    g->q = drawn(q * dim, 1);
    g->k = drawn(kv * dim, 2);
    g->v = drawn(kv * dim, 3);
    g->d_o = drawn(q * dim, 4);
    g->o = allocate(q * dim, sizeof(double));
    g->lse = allocate(q, sizeof(double));
    g->dq = allocate(q * dim, sizeof(double));
    g->dk = allocate(kv * dim, sizeof(double));
    g->dv = allocate(kv * dim, sizeof(double));
    struct ballast_attn_fragment *fragments = allocate(g->documents, sizeof *fragments);
    for (uint32_t d = 0; d < g->documents; d++) {
        int32_t rows = (int32_t)(g->begins[d + 1] - g->begins[d]);
        fragments[d] = (struct ballast_attn_fragment){.q_row = (int32_t)g->begins[d],
                                                      .q_length = rows,
                                                      .kv_row = (int32_t)g->begins[d],
                                                      .kv_length = rows,
                                                      .head_count = (uint16_t)g->q_heads};
    }
    const struct ballast_attn_shape shape = {dim, g->q_heads, g->kv_heads, g->rows, g->rows};
    const struct attn_reference reference = {
        &shape, fragments, g->documents, EXCHANGE_SCALE, g->q,  g->k, g->v,
        g->o,   g->lse,    g->d_o,       g->dq,          g->dk, g->dv};
    double *scores = allocate(g->rows, sizeof *scores);
    attn_reference_forward(&reference, scores);
    attn_reference_backward(&reference, scores);
    free(scores);
    free(fragments);
}

static void work_append(struct exchange_group *g, struct ballast_exchange_work work) {
    g->works = realloc(g->works, (g->work_count + 1) * sizeof *g->works);
    g->works[g->work_count++] = work;
}

/* Documents of a micro-batch, number `i` of the group. */
static void group_add(struct exchange_group *g, const struct step_plan *plan,
                      const struct micro_batch *m, uint32_t i) {
    g->firsts[i] = g->documents;
    for (uint32_t d = 0; d < m->document_count; d++) {
        g->begins[g->documents++] = g->rows;
        g->rows += plan->documents[m->document_begin + d].length;
    }
    g->begins[g->documents] = g->rows;
    for (uint32_t r = 0; r < plan->cp; r++) {
        g->own_rows[i * plan->cp + r] = (uint32_t)plan->shards[m->shard_begin + r].rows;
    }
}

/* The place of a document in the group; in its sequence it has a number of 26 bits. */
static uint32_t place_of(const struct exchange_group *g, uint32_t document) {
    return g->firsts[document >> 26] + (document & ((1u << 26) - 1));
}

/* What a rank of the group would be told of its micro-batch: the daemon's message, as libballast
 * reads it. */
static void group_batch_read(struct batch *batch, struct arena *arena, const struct step_plan *plan,
                             const struct plan_pool *pool, const struct micro_batch *m,
                             uint32_t cp) {
    const struct ballast_job job = {.dp = plan->dp,
                                    .pp = 1,
                                    .cp = plan->cp,
                                    .tp = 1,
                                    .micro_batches = plan->micro_batch_count / plan->dp,
                                    .tokens_max = UINT32_MAX};
    const struct batch_context context = {.job = &job, .arena = arena, .cp = cp};
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    Ballast__V1__BatchEnvelope message = BALLAST__V1__BATCH_ENVELOPE__INIT;
    uint32_t number = (uint32_t)(m - plan->micro_batches);
    size_t capacity = message_wire_bytes_max(plan, number);
    uint8_t *packed = allocate(capacity, 1);
    struct error error;
    id.step = plan->step;
    id.dp = m->dp;
    id.index = m->index;
    message.id = &id;
    message.plan.len = message_wire_micro_batch(plan, number, packed, capacity);
    message.plan.data = packed + capacity - message.plan.len;
    message.plan_digest = (ProtobufCBinaryData){PLAN_DIGEST_BYTES, (uint8_t *)plan->digest};
    message.pool = pool != NULL ? message_pool_part(arena, plan, pool, m->dp, cp) : NULL;
    if (batch_read(batch, &message, &context, &error) != 0) {
        fprintf(stderr, "exchange_world: %s\n", error.text);
        exit(1);
    }
    free(packed);
}

/* Homes and works of one rank, behind those of the ranks before it. */
static void group_lists(struct exchange_group *g, const struct ballast_batch *batch,
                        uint32_t rank) {
    int homes = ballast_homes(batch, rank, NULL, 0);
    int works = ballast_works(batch, rank, g->q_heads, NULL, 0);
    if (homes < 0 || works < 0) {
        fprintf(stderr, "exchange_world: lists of rank %u: %d, %d\n", rank, homes, works);
        exit(1);
    }
    g->homes = realloc(g->homes, (g->home_count + (size_t)homes + 1) * sizeof *g->homes);
    g->works = realloc(g->works, (g->work_count + (size_t)works + 1) * sizeof *g->works);
    (void)ballast_homes(batch, rank, g->homes + g->home_count, (size_t)homes);
    (void)ballast_works(batch, rank, g->q_heads, g->works + g->work_count, (size_t)works);
    g->home_count += (uint32_t)homes;
    g->work_count += (uint32_t)works;
}

static void group_rank_add(struct exchange_group *g, const struct step_plan *plan,
                           const struct plan_pool *pool, const struct micro_batch *m, uint32_t cp,
                           uint32_t rank) {
    struct arena arena;
    struct batch batch;
    arena_init(&arena, 16u << 20);
    batch_init(&batch);
    group_batch_read(&batch, &arena, plan, pool, m, cp);
    group_lists(g, &batch.view, rank);
    batch_deinit(&batch);
    arena_deinit(&arena);
}

void exchange_group_init(struct exchange_group *group, const struct step_plan *plan,
                         const struct micro_batch *micro_batch,
                         const struct exchange_arithmetic *arithmetic) {
    const struct plan_pool *pool = plan->pool_count > 0
                                       ? step_plan_pool(plan, micro_batch->dp, micro_batch->index)
                                       : NULL;
    uint32_t sequences = pool != NULL ? plan->pool_shape.sequences : 1;
    *group = (struct exchange_group){.arithmetic = arithmetic,
                                     .ranks = sequences * plan->cp,
                                     .q_heads = EXCHANGE_Q_HEADS,
                                     .kv_heads = EXCHANGE_KV_HEADS};
    group->begins = allocate(plan->document_count + 1, sizeof *group->begins);
    memcpy(group->digest, plan->digest, sizeof group->digest);
    for (uint32_t i = 0; i < sequences; i++) {
        const struct micro_batch *m = pool != NULL ? step_plan_micro_batch(plan, pool->dp_begin + i,
                                                                           micro_batch->index)
                                                   : micro_batch;
        group_add(group, plan, m, i);
        for (uint32_t cp = 0; cp < plan->cp; cp++) {
            group_rank_add(group, plan, pool, m, cp, i * plan->cp + cp);
        }
    }
    group_reference(group);
}

static void homes_draw(struct exchange_group *g, uint64_t *dice) {
    for (uint32_t d = 0; d < g->documents; d++) {
        uint32_t length = g->begins[d + 1] - g->begins[d];
        for (uint32_t row = 0, rows; row < length; row += rows) {
            uint32_t rank = splitmix_between(dice, 0, g->ranks - 1);
            rows = splitmix_between(dice, 1, length - row);
            g->homes[g->home_count++] = (struct ballast_exchange_home){d, row, rows, rank};
            g->own_rows[rank] += rows;
        }
    }
    for (uint32_t rank = 0; rank < g->ranks; rank++) {
        g->own_rows[rank] += splitmix_between(dice, 0, 2); /* pad */
    }
}

static void works_draw(struct exchange_group *g, uint32_t chunks, uint64_t *dice) {
    for (uint32_t d = 0; d < g->documents; d++) {
        uint32_t length = g->begins[d + 1] - g->begins[d];
        for (uint32_t row = 0, rows; row < length; row += rows) {
            rows = splitmix_between(dice, 1, length - row);
            for (uint32_t head = 0, heads; head < g->q_heads; head += heads) {
                heads = chunks * splitmix_between(dice, 1, (g->q_heads - head) / chunks);
                work_append(g, (struct ballast_exchange_work){
                                   d, row, rows, splitmix_between(dice, 0, g->ranks - 1),
                                   (uint16_t)head, (uint16_t)heads});
            }
        }
    }
}

void exchange_group_draw(struct exchange_group *group, uint32_t chunks, uint64_t seed) {
    uint64_t dice = seed;
    uint32_t documents = splitmix_between(&dice, 1, 5);
    *group = (struct exchange_group){
        .arithmetic = &exchange_by_reference,
        .ranks = splitmix_between(&dice, 1, 8),
        .kv_heads = splitmix_between(&dice, 1, 3),
    };
    group->q_heads = group->kv_heads * chunks * splitmix_between(&dice, 1, 3);
    group->begins = allocate(documents + 1, sizeof *group->begins);
    while (group->documents < documents) {
        group->begins[group->documents++] = group->rows;
        group->rows += splitmix_between(&dice, 1, 24);
    }
    group->begins[documents] = group->rows;
    group->homes = allocate(group->rows, sizeof *group->homes);
    homes_draw(group, &dice);
    works_draw(group, chunks, &dice);
    group_reference(group);
}

void exchange_group_alternate(struct exchange_group *group, uint32_t runs) {
    *group = (struct exchange_group){.arithmetic = &exchange_by_reference,
                                     .ranks = 2,
                                     .q_heads = 2,
                                     .kv_heads = 1,
                                     .rows = 2 * runs,
                                     .documents = 1,
                                     .own_rows = {runs, runs},
                                     .home_count = 2 * runs};
    group->begins = allocate(2, sizeof *group->begins);
    group->begins[1] = group->rows;
    group->homes = allocate(group->home_count, sizeof *group->homes);
    for (uint32_t row = 0; row < group->rows; row++) {
        group->homes[row] = (struct ballast_exchange_home){0, row, 1, row % 2};
    }
    work_append(group, (struct ballast_exchange_work){0, 0, group->rows, 1, 0, 2});
    group_reference(group);
}

void exchange_group_deinit(struct exchange_group *g) {
    void *all[] = {g->begins, g->homes, g->works, g->q,  g->k,  g->v,
                   g->o,      g->lse,   g->d_o,   g->dq, g->dk, g->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

struct ballast_exchange_options exchange_group_options(const struct exchange_group *group,
                                                       uint32_t rank, uint32_t chunks,
                                                       enum ballast_exchange_keys keys) {
    struct ballast_exchange_options options = {
        .rank = rank,
        .ranks = group->ranks,
        .q_heads = group->q_heads,
        .kv_heads = group->kv_heads,
        .head_dim = group->arithmetic->head_dim,
        .element_bytes = group->arithmetic->element_bytes,
        .chunks = chunks,
        .own_rows = group->own_rows[rank],
        .keys = keys,
        .homes = group->homes,
        .home_count = group->home_count,
        .works = group->works,
        .work_count = group->work_count,
    };
    memcpy(options.digest, group->digest, sizeof options.digest);
    return options;
}

size_t exchange_group_window(const struct exchange_group *group) {
    size_t bytes = group->arithmetic->element_bytes; /* gradients of keys are floats */
    size_t head_bytes = group->arithmetic->head_dim * (bytes > 4 ? bytes : 4);
    size_t row = (4 * (size_t)group->q_heads + 2 * (size_t)group->kv_heads) * head_bytes;
    return group->rows * row * group->ranks + 4096;
}

/* A rank and its buffers. */
struct rank {
    const struct exchange_group *group;
    const struct exchange_options_of_test *options;
    const struct exchange_machine *machine;
    uint32_t number;
    struct ballast_exchange *exchange;
    struct ballast_exchange_sizes sizes;
    struct ballast_exchange_call call;
    bool backward;
    char fault[320];
};

static struct ballast_exchange_tensor tensor(uint32_t rows, uint32_t heads, size_t head_bytes) {
    size_t row_bytes = heads * head_bytes;
    return (struct ballast_exchange_tensor){allocate(rows, row_bytes), row_bytes};
}

static void poison(const struct rank *rank, const struct ballast_exchange_tensor *tensor,
                   uint32_t from, uint32_t to) {
    memset((char *)tensor->data + from * tensor->row_bytes, rank->group->arithmetic->poison,
           (to - from) * tensor->row_bytes);
}

static enum format format_of(const struct exchange_group *g) {
    return g->arithmetic->element_bytes == 2 ? FORMAT_BF16 : FORMAT_DOUBLE;
}

static void value_set(void *data, size_t index, enum format format, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (format == FORMAT_DOUBLE) {
        ((double *)data)[index] = value;
    } else {
        ((uint16_t *)data)[index] = (uint16_t)(bits >> 16); /* exact, as inputs are drawn */
    }
}

static double value_at(const void *data, size_t index, enum format format) {
    uint32_t bits = format == FORMAT_BF16 ? (uint32_t)((const uint16_t *)data)[index] << 16 : 0;
    float value;
    memcpy(&value, &bits, sizeof value);
    return format == FORMAT_DOUBLE  ? ((const double *)data)[index]
           : format == FORMAT_FLOAT ? (double)((const float *)data)[index]
                                    : (double)value;
}

/* `own` = its rows of `all`. */
static void own_rows_fill(const struct rank *rank, const struct ballast_exchange_tensor *own,
                          const double *all, uint32_t heads) {
    const struct exchange_group *g = rank->group;
    size_t width = (size_t)heads * g->arithmetic->head_dim;
    size_t to = 0;
    for (uint32_t h = 0; h < g->home_count; h++) {
        const struct ballast_exchange_home *home = &g->homes[h];
        size_t from = (g->begins[place_of(g, home->document)] + home->start) * width;
        for (size_t i = 0; home->rank == rank->number && i < home->rows * width; i++) {
            value_set(own->data, to++, format_of(g), all[from + i]);
        }
    }
}

static void rank_tensors(struct rank *rank) {
    const struct exchange_group *g = rank->group;
    struct ballast_exchange_call *call = &rank->call;
    uint32_t own = g->own_rows[rank->number];
    size_t dim = g->arithmetic->head_dim;
    size_t head_bytes = dim * g->arithmetic->element_bytes;
    struct ballast_exchange_tensor *queries[] = {&call->q, &call->o, &call->d_o, &call->dq};
    for (size_t i = 0; i < 4; i++) {
        *queries[i] = tensor(rank->sizes.q_rows, g->q_heads, head_bytes);
    }
    call->lse = tensor(rank->sizes.q_rows, g->q_heads, sizeof(float));
    call->own_k = tensor(own, g->kv_heads, head_bytes);
    call->own_v = tensor(own, g->kv_heads, head_bytes);
    call->own_dk = tensor(own, g->kv_heads, dim * sizeof(float));
    call->own_dv = tensor(own, g->kv_heads, dim * sizeof(float));
    call->k = tensor(rank->sizes.kv_rows, g->kv_heads, head_bytes);
    call->v = tensor(rank->sizes.kv_rows, g->kv_heads, head_bytes);
    call->dk = tensor(rank->sizes.kv_rows, g->kv_heads, dim * sizeof(float));
    call->dv = tensor(rank->sizes.kv_rows, g->kv_heads, dim * sizeof(float));
    call->staging = allocate(rank->sizes.staging_bytes, 1);
    own_rows_fill(rank, &call->q, g->q, g->q_heads);
    own_rows_fill(rank, &call->d_o, g->d_o, g->q_heads);
    own_rows_fill(rank, &call->own_k, g->k, g->kv_heads);
    own_rows_fill(rank, &call->own_v, g->v, g->kv_heads);
    poison(rank, &call->d_o, own, rank->sizes.q_rows);
}

static void rank_forget(struct rank *rank) {
    struct ballast_exchange_call *call = &rank->call;
    uint32_t own = rank->group->own_rows[rank->number];
    poison(rank, &call->q, own, rank->sizes.q_rows);
    poison(rank, &call->o, own, rank->sizes.q_rows);
    poison(rank, &call->lse, own, rank->sizes.q_rows);
    poison(rank, &call->k, 0, rank->sizes.kv_rows);
    poison(rank, &call->v, 0, rank->sizes.kv_rows);
}

static void rank_free(struct rank *rank) {
    struct ballast_exchange_call *c = &rank->call;
    void *all[] = {c->q.data,     c->o.data,     c->d_o.data,    c->dq.data,     c->lse.data,
                   c->own_k.data, c->own_v.data, c->own_dk.data, c->own_dv.data, c->k.data,
                   c->v.data,     c->dk.data,    c->dv.data,     c->staging};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    ballast_exchange_destroy(rank->exchange);
}

/* The fragments of a chunk hold to the rules of the kernels. */
static int fragments_check(const struct exchange_chunk *chunk, struct ballast_attn_error *error) {
    struct ballast_attn_shape shape = chunk->shape;
    shape.head_dim = 64;
    size_t bytes = ballast_attn_plan_bytes(&shape, chunk->fragments, chunk->count);
    void *memory = allocate(bytes, 1);
    struct ballast_attn_plan plan;
    int result = ballast_attn_plan_init(&plan, &shape, chunk->fragments, chunk->count, memory,
                                        bytes, error);
    free(memory);
    return result;
}

/* Statistics between float and double, where the fragments are. */
static void lse_convert(const struct exchange_chunk *chunk, double *wide, bool to_float) {
    float *lse = chunk->call->lse.data;
    for (uint32_t f = 0; f < chunk->count; f++) {
        const struct ballast_attn_fragment *at = &chunk->fragments[f];
        for (int32_t row = at->q_row; row < at->q_row + at->q_length; row++) {
            for (uint32_t h = at->head_begin; h < (uint32_t)at->head_begin + at->head_count; h++) {
                size_t i = (size_t)row * chunk->shape.q_heads + h;
                lse[i] = to_float ? (float)wide[i] : lse[i];
                wide[i] = to_float ? wide[i] : (double)lse[i];
            }
        }
    }
}

static void add_floats(const struct ballast_exchange_tensor *to, const double *from, size_t count) {
    float *sum = to->data;
    for (size_t i = 0; i < count; i++) {
        sum[i] += (float)from[i];
    }
}

/* As the kernels do: keys of heads that the fragments cover are written. */
static void write_floats(const struct exchange_chunk *chunk,
                         const struct ballast_exchange_tensor *to, const double *from) {
    const struct ballast_attn_shape *shape = &chunk->shape;
    uint32_t group = shape->q_heads / shape->kv_heads;
    float *written = to->data;
    for (uint32_t f = 0; f < chunk->count; f++) {
        const struct ballast_attn_fragment *at = &chunk->fragments[f];
        for (int32_t row = at->kv_row; row < at->kv_row + at->kv_length; row++) {
            for (uint32_t q = at->head_begin; q < (uint32_t)at->head_begin + at->head_count; q++) {
                size_t i = ((size_t)row * shape->kv_heads + q / group) * shape->head_dim;
                for (size_t end = i + shape->head_dim; i < end; i++) {
                    written[i] = (float)from[i];
                }
            }
        }
    }
}

static int reference_attend(const struct exchange_chunk *chunk, struct ballast_attn_error *error) {
    const struct ballast_attn_shape *shape = &chunk->shape;
    const struct ballast_exchange_call *call = chunk->call;
    size_t keys = (size_t)shape->kv_rows * shape->kv_heads * shape->head_dim;
    double *lse = allocate((size_t)shape->q_rows * shape->q_heads, sizeof *lse);
    double *dk = allocate(keys, sizeof *dk);
    double *dv = allocate(keys, sizeof *dv);
    double *scores = allocate(shape->kv_rows, sizeof *scores);
    const struct attn_reference reference = {shape,
                                             chunk->fragments,
                                             chunk->count,
                                             EXCHANGE_SCALE,
                                             call->q.data,
                                             call->k.data,
                                             call->v.data,
                                             call->o.data,
                                             lse,
                                             call->d_o.data,
                                             call->dq.data,
                                             dk,
                                             dv};
    int result = fragments_check(chunk, error);
    if (result == 0 && chunk->backward) {
        lse_convert(chunk, lse, false);
        attn_reference_backward(&reference, scores);
        if (chunk->keys_shared) {
            add_floats(&call->dk, dk, keys);
            add_floats(&call->dv, dv, keys);
        } else {
            write_floats(chunk, &call->dk, dk);
            write_floats(chunk, &call->dv, dv);
        }
    } else if (result == 0) {
        attn_reference_forward(&reference, scores);
        lse_convert(chunk, lse, true);
    }
    free(scores);
    free(dv);
    free(dk);
    free(lse);
    return result;
}

const struct exchange_arithmetic exchange_by_reference = {
    .head_dim = 4,
    .element_bytes = sizeof(double),
    .poison = 0xff,
    .error_max = 1e-6,
    .attend = reference_attend,
};

static int rank_compute(void *context, uint32_t number, void *stream,
                        struct ballast_attn_error *error) {
    struct rank *rank = context;
    const struct exchange_group *g = rank->group;
    struct ballast_attn_fragment *fragments = allocate(rank->sizes.fragments, sizeof *fragments);
    const struct exchange_chunk chunk = {
        .arithmetic = g->arithmetic,
        .shape = {g->arithmetic->head_dim, g->q_heads, g->kv_heads, rank->sizes.q_rows,
                  rank->sizes.kv_rows},
        .fragments = fragments,
        .count = rank->sizes.fragments,
        .call = &rank->call,
        .keys_shared = rank->sizes.keys_shared != 0,
        .backward = rank->backward,
    };
    if (rank->machine->settle != NULL) {
        (void)rank->machine->settle(stream);
    }
    ballast_exchange_fragments(rank->exchange, number, fragments);
    int result = g->arithmetic->attend(&chunk, error);
    free(fragments);
    return result;
}

/* How far a rank's own rows of a tensor are from the unsharded ones. */
struct distance {
    double squares;
    double norm;
    double worst;
    char where[160];
};

static void distance_add(struct distance *distance, double got, double want,
                         const struct ballast_exchange_home *home, size_t row) {
    double off = fabs(got - want);
    distance->squares += off * off;
    distance->norm += want * want + SQUARE_FLOOR;
    if (!(off <= distance->worst)) {
        distance->worst = off;
        (void)snprintf(distance->where, sizeof distance->where, "document %u row %zu: %g, not %g",
                       home->document, home->start + row, got, want);
    }
}

/* Own rows against the unsharded ones; `width` values each. */
static void rank_compare(struct rank *rank, const char *name,
                         const struct ballast_exchange_tensor *own, enum format format,
                         const double *all, size_t width, double error_max) {
    const struct exchange_group *g = rank->group;
    struct distance distance = {.worst = 0};
    size_t own_value = 0;
    for (uint32_t h = 0; h < g->home_count; h++) {
        const struct ballast_exchange_home *home = &g->homes[h];
        size_t from = (g->begins[place_of(g, home->document)] + home->start) * width;
        for (size_t i = 0; home->rank == rank->number && i < home->rows * width; i++) {
            distance_add(&distance, value_at(own->data, own_value++, format), all[from + i], home,
                         i / width);
        }
    }
    double error = own_value > 0 ? sqrt(distance.squares / distance.norm) : 0;
    if (!(error <= error_max) && rank->fault[0] == 0) {
        (void)snprintf(rank->fault, sizeof rank->fault,
                       "%s of rank %u: relative error %.1e; furthest off is %s", name, rank->number,
                       error, distance.where);
    }
}

static void rank_compare_all(struct rank *rank) {
    const struct exchange_group *g = rank->group;
    const struct ballast_exchange_call *call = &rank->call;
    size_t q = (size_t)g->q_heads * g->arithmetic->head_dim;
    size_t kv = (size_t)g->kv_heads * g->arithmetic->head_dim;
    double error_max = g->arithmetic->error_max;
    rank_compare(rank, "o", &call->o, format_of(g), g->o, q, error_max);
    rank_compare(rank, "lse", &call->lse, FORMAT_FLOAT, g->lse, g->q_heads, LSE_ERROR_MAX);
    rank_compare(rank, "dq", &call->dq, format_of(g), g->dq, q, error_max);
    rank_compare(rank, "dk", &call->own_dk, FORMAT_FLOAT, g->dk, kv, error_max);
    rank_compare(rank, "dv", &call->own_dv, FORMAT_FLOAT, g->dv, kv, error_max);
}

static int rank_execute(struct rank *rank, struct ballast_attn_error *error) {
    int result = ballast_exchange_agree(rank->exchange, rank->call.transport, error);
    rank_forget(rank);
    result = result != 0 ? result : ballast_exchange_forward(rank->exchange, &rank->call, error);
    if (rank->machine->settle != NULL) {
        (void)rank->machine->settle(rank->call.stream);
    }
    if (rank->options->kept) {
        rank->call.flags = BALLAST_EXCHANGE_KEPT;
    } else {
        rank_forget(rank);
    }
    rank->backward = true;
    result = result != 0 ? result : ballast_exchange_backward(rank->exchange, &rank->call, error);
    if (rank->machine->settle != NULL) {
        (void)rank->machine->settle(rank->call.stream);
    }
    return result;
}

static void *rank_run(void *argument) {
    struct rank *rank = argument;
    const struct exchange_group *g = rank->group;
    struct ballast_attn_error error = {0, ""};
    struct ballast_exchange_options options = exchange_group_options(
        g, rank->number, rank->options->chunks, rank->options->keys);
    struct ballast_exchange_transport *transport = rank->machine->open(rank->machine->context,
                                                                       rank->number, g->ranks);
    if (ballast_exchange_create(&rank->exchange, &options, &error) == 0) {
        rank->sizes = ballast_exchange_sizes(rank->exchange);
        rank_tensors(rank);
        rank->call.transport = transport;
        rank->call.compute = rank_compute;
        rank->call.context = rank;
        rank->call.stream = rank->machine->stream != NULL ? rank->machine->stream() : NULL;
        if (rank_execute(rank, &error) == 0) {
            rank_compare_all(rank);
        }
        rank_free(rank);
    }
    if (error.code != 0) {
        (void)snprintf(rank->fault, sizeof rank->fault, "%s", error.text);
    }
    ballast_transport_close(transport);
    return NULL;
}

const char *exchange_group_fault(const struct exchange_group *group,
                                 const struct exchange_options_of_test *options,
                                 const struct exchange_machine *machine) {
    static char fault[sizeof((struct rank *)NULL)->fault];
    struct rank ranks[BALLAST_BOARD_RANKS_MAX];
    pthread_t threads[BALLAST_BOARD_RANKS_MAX];
    for (uint32_t i = 0; i < group->ranks; i++) {
        ranks[i] = (struct rank){
            .group = group, .options = options, .machine = machine, .number = i};
        if (pthread_create(&threads[i], NULL, rank_run, &ranks[i]) != 0) {
            fprintf(stderr, "exchange_world: no thread\n");
            exit(1);
        }
    }
    fault[0] = 0;
    for (uint32_t i = 0; i < group->ranks; i++) {
        (void)pthread_join(threads[i], NULL);
        /* The rank that failed says why; the others, only that it left. */
        if (fault[0] == 0 || (strstr(fault, " left after ") != NULL && ranks[i].fault[0] != 0)) {
            memcpy(fault, ranks[i].fault, sizeof fault);
        }
    }
    return fault[0] != 0 ? fault : NULL;
}

struct ballast_exchange_transport *exchange_board_open(void *board, uint32_t rank, uint32_t ranks) {
    struct ballast_exchange_transport *transport = NULL;
    struct ballast_attn_error error;
    (void)ranks;
    if (ballast_transport_board(&transport, board, rank, DEADLINE_MS, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    return transport;
}

const char *exchange_group_fault_on_board(const struct exchange_group *group,
                                          const struct exchange_options_of_test *options) {
    size_t window = exchange_group_window(group);
    void *board = allocate(ballast_board_bytes(group->ranks, window), 1);
    const struct exchange_machine machine = {.open = exchange_board_open, .context = board};
    struct ballast_attn_error error;
    if (ballast_board_init(board, group->ranks, window, &error) != 0) {
        fprintf(stderr, "exchange_world: %s\n", error.text);
        exit(1);
    }
    const char *fault = exchange_group_fault(group, options, &machine);
    free(board);
    return fault;
}

bool exchange_rank_ends_well(const struct exchange_group *group,
                             const struct exchange_options_of_test *options,
                             const struct exchange_machine *machine, uint32_t number) {
    struct rank rank = {.group = group, .options = options, .machine = machine, .number = number};
    (void)rank_run(&rank);
    if (rank.fault[0] != 0) {
        fprintf(stderr, "rank %u: %s\n", number, rank.fault);
    }
    return rank.fault[0] == 0;
}
