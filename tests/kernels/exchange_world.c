/* exchange_world: see the header. What did not arrive is not a number, so a result that is right
 * was made of nothing but what the exchange brought. */
#include "exchange_world.h"

#include "client/batch.h"
#include "gpu_attn/reference.h"
#include "proto/message.h"
#include "tests/property/splitmix.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES (EXCHANGE_DIM * sizeof(double))

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "exchange_world: no memory\n");
        exit(1);
    }
    return memory;
}

static double *drawn(size_t count, uint64_t seed) {
    double *values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = (double)(seed >> 40) / (1 << 23) - 1;
    }
    return values;
}

static void group_reference(struct exchange_group *g) {
    size_t q = (size_t)g->rows * g->q_heads;
    size_t kv = (size_t)g->rows * g->kv_heads;
    g->q = drawn(q * EXCHANGE_DIM, 1);
    g->k = drawn(kv * EXCHANGE_DIM, 2);
    g->v = drawn(kv * EXCHANGE_DIM, 3);
    g->d_o = drawn(q * EXCHANGE_DIM, 4);
    g->o = allocate(q * EXCHANGE_DIM, sizeof(double));
    g->lse = allocate(q, sizeof(double));
    g->dq = allocate(q * EXCHANGE_DIM, sizeof(double));
    g->dk = allocate(kv * EXCHANGE_DIM, sizeof(double));
    g->dv = allocate(kv * EXCHANGE_DIM, sizeof(double));
    struct ballast_attn_fragment *fragments = allocate(g->documents, sizeof *fragments);
    for (uint32_t d = 0; d < g->documents; d++) {
        int32_t rows = (int32_t)(g->begins[d + 1] - g->begins[d]);
        fragments[d] = (struct ballast_attn_fragment){.q_row = (int32_t)g->begins[d],
                                                      .q_length = rows,
                                                      .kv_row = (int32_t)g->begins[d],
                                                      .kv_length = rows,
                                                      .head_count = (uint16_t)g->q_heads};
    }
    const struct ballast_attn_shape shape = {EXCHANGE_DIM, g->q_heads, g->kv_heads, g->rows,
                                             g->rows};
    const struct attn_reference reference = {&shape, fragments, g->documents, 0.5,    g->q,
                                             g->k,   g->v,      g->o,         g->lse, g->d_o,
                                             g->dq,  g->dk,     g->dv};
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
                         const struct micro_batch *micro_batch, uint32_t q_heads,
                         uint32_t kv_heads) {
    const struct plan_pool *pool = plan->pool_count > 0
                                       ? step_plan_pool(plan, micro_batch->dp, micro_batch->index)
                                       : NULL;
    uint32_t sequences = pool != NULL ? plan->pool_shape.sequences : 1;
    *group = (struct exchange_group){
        .ranks = sequences * plan->cp, .q_heads = q_heads, .kv_heads = kv_heads};
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
        .head_dim = EXCHANGE_DIM,
        .element_bytes = sizeof(double),
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
    size_t row = (4 * (size_t)group->q_heads + 2 * (size_t)group->kv_heads) * HEAD_BYTES;
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

static void poison(const struct ballast_exchange_tensor *tensor, uint32_t from, uint32_t to) {
    memset((char *)tensor->data + from * tensor->row_bytes, 0xff, (to - from) * tensor->row_bytes);
}

/* Between own rows and those of all: `own` += or = `all`. */
static void own_rows_fill(const struct rank *rank, const struct ballast_exchange_tensor *own,
                          const double *all, uint32_t heads) {
    const struct exchange_group *g = rank->group;
    char *to = own->data;
    for (uint32_t h = 0; h < g->home_count; h++) {
        const struct ballast_exchange_home *home = &g->homes[h];
        if (home->rank == rank->number) {
            size_t row = g->begins[place_of(g, home->document)] + home->start;
            memcpy(to, all + row * heads * EXCHANGE_DIM, home->rows * own->row_bytes);
            to += home->rows * own->row_bytes;
        }
    }
}

static void rank_tensors(struct rank *rank) {
    const struct exchange_group *g = rank->group;
    struct ballast_exchange_call *call = &rank->call;
    uint32_t own = g->own_rows[rank->number];
    struct ballast_exchange_tensor *queries[] = {&call->q, &call->o, &call->d_o, &call->dq};
    for (size_t i = 0; i < 4; i++) {
        *queries[i] = tensor(rank->sizes.q_rows, g->q_heads, HEAD_BYTES);
    }
    call->lse = tensor(rank->sizes.q_rows, g->q_heads, sizeof(float));
    call->own_k = tensor(own, g->kv_heads, HEAD_BYTES);
    call->own_v = tensor(own, g->kv_heads, HEAD_BYTES);
    call->own_dk = tensor(own, g->kv_heads, EXCHANGE_DIM * sizeof(float));
    call->own_dv = tensor(own, g->kv_heads, EXCHANGE_DIM * sizeof(float));
    call->k = tensor(rank->sizes.kv_rows, g->kv_heads, HEAD_BYTES);
    call->v = tensor(rank->sizes.kv_rows, g->kv_heads, HEAD_BYTES);
    call->dk = tensor(rank->sizes.kv_rows, g->kv_heads, EXCHANGE_DIM * sizeof(float));
    call->dv = tensor(rank->sizes.kv_rows, g->kv_heads, EXCHANGE_DIM * sizeof(float));
    call->staging = allocate(rank->sizes.staging_bytes, 1);
    own_rows_fill(rank, &call->q, g->q, g->q_heads);
    own_rows_fill(rank, &call->d_o, g->d_o, g->q_heads);
    own_rows_fill(rank, &call->own_k, g->k, g->kv_heads);
    own_rows_fill(rank, &call->own_v, g->v, g->kv_heads);
    poison(&call->d_o, own, rank->sizes.q_rows);
}

static void rank_forget(struct rank *rank) {
    struct ballast_exchange_call *call = &rank->call;
    uint32_t own = rank->group->own_rows[rank->number];
    poison(&call->q, own, rank->sizes.q_rows);
    poison(&call->o, own, rank->sizes.q_rows);
    poison(&call->lse, own, rank->sizes.q_rows);
    poison(&call->k, 0, rank->sizes.kv_rows);
    poison(&call->v, 0, rank->sizes.kv_rows);
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
static int fragments_check(const struct rank *rank, const struct ballast_attn_fragment *fragments,
                           struct ballast_attn_error *error) {
    const struct ballast_attn_shape shape = {64, rank->group->q_heads, rank->group->kv_heads,
                                             rank->sizes.q_rows, rank->sizes.kv_rows};
    size_t bytes = ballast_attn_plan_bytes(&shape, fragments, rank->sizes.fragments);
    void *memory = allocate(bytes, 1);
    struct ballast_attn_plan plan;
    int result = ballast_attn_plan_init(&plan, &shape, fragments, rank->sizes.fragments, memory,
                                        bytes, error);
    free(memory);
    return result;
}

/* Statistics between float and double, where the fragments are. */
static void lse_convert(const struct rank *rank, const struct ballast_attn_fragment *fragments,
                        double *wide, bool to_float) {
    float *lse = rank->call.lse.data;
    uint32_t heads = rank->group->q_heads;
    for (uint32_t f = 0; f < rank->sizes.fragments; f++) {
        const struct ballast_attn_fragment *at = &fragments[f];
        for (int32_t row = at->q_row; row < at->q_row + at->q_length; row++) {
            for (uint32_t h = at->head_begin; h < (uint32_t)at->head_begin + at->head_count; h++) {
                size_t i = (size_t)row * heads + h;
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
static void write_floats(const struct rank *rank, const struct ballast_attn_fragment *fragments,
                         const struct ballast_exchange_tensor *to, const double *from) {
    const struct exchange_group *g = rank->group;
    uint32_t group = g->q_heads / g->kv_heads;
    float *written = to->data;
    for (uint32_t f = 0; f < rank->sizes.fragments; f++) {
        const struct ballast_attn_fragment *at = &fragments[f];
        for (int32_t row = at->kv_row; row < at->kv_row + at->kv_length; row++) {
            for (uint32_t q = at->head_begin; q < (uint32_t)at->head_begin + at->head_count; q++) {
                size_t i = ((size_t)row * g->kv_heads + q / group) * EXCHANGE_DIM;
                for (size_t end = i + EXCHANGE_DIM; i < end; i++) {
                    written[i] = (float)from[i];
                }
            }
        }
    }
}

static int rank_compute(void *context, uint32_t chunk, void *stream,
                        struct ballast_attn_error *error) {
    struct rank *rank = context;
    const struct exchange_group *g = rank->group;
    const struct ballast_exchange_call *call = &rank->call;
    size_t keys = (size_t)rank->sizes.kv_rows * g->kv_heads * EXCHANGE_DIM;
    struct ballast_attn_fragment *fragments = allocate(rank->sizes.fragments, sizeof *fragments);
    double *lse = allocate((size_t)rank->sizes.q_rows * g->q_heads, sizeof *lse);
    double *dk = allocate(keys, sizeof *dk);
    double *dv = allocate(keys, sizeof *dv);
    double *scores = allocate(rank->sizes.kv_rows, sizeof *scores);
    const struct ballast_attn_shape shape = {EXCHANGE_DIM, g->q_heads, g->kv_heads,
                                             rank->sizes.q_rows, rank->sizes.kv_rows};
    const struct attn_reference reference = {&shape,
                                             fragments,
                                             rank->sizes.fragments,
                                             0.5,
                                             call->q.data,
                                             call->k.data,
                                             call->v.data,
                                             call->o.data,
                                             lse,
                                             call->d_o.data,
                                             call->dq.data,
                                             dk,
                                             dv};
    if (rank->machine->settle != NULL) {
        (void)rank->machine->settle(stream);
    }
    ballast_exchange_fragments(rank->exchange, chunk, fragments);
    int result = fragments_check(rank, fragments, error);
    if (result == 0 && rank->backward) {
        lse_convert(rank, fragments, lse, false);
        attn_reference_backward(&reference, scores);
        if (rank->sizes.keys_shared != 0) {
            add_floats(&call->dk, dk, keys);
            add_floats(&call->dv, dv, keys);
        } else {
            write_floats(rank, fragments, &call->dk, dk);
            write_floats(rank, fragments, &call->dv, dv);
        }
    } else if (result == 0) {
        attn_reference_forward(&reference, scores);
        lse_convert(rank, fragments, lse, true);
    }
    free(scores);
    free(dv);
    free(dk);
    free(lse);
    free(fragments);
    return result;
}

static double value(const struct ballast_exchange_tensor *tensor, size_t index, bool is_float) {
    return is_float ? (double)((float *)tensor->data)[index] : ((double *)tensor->data)[index];
}

/* Own rows against the unsharded ones; `width` values each. */
static void rank_compare(struct rank *rank, const char *name,
                         const struct ballast_exchange_tensor *own, bool is_float,
                         const double *all, size_t width) {
    const struct exchange_group *g = rank->group;
    size_t own_row = 0;
    for (uint32_t h = 0; h < g->home_count; h++) {
        const struct ballast_exchange_home *home = &g->homes[h];
        if (home->rank != rank->number) {
            continue;
        }
        size_t row = g->begins[place_of(g, home->document)] + home->start;
        for (size_t i = 0; i < home->rows * width && rank->fault[0] == 0; i++) {
            double got = value(own, own_row * width + i, is_float);
            double want = all[row * width + i];
            if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want)))) {
                (void)snprintf(rank->fault, sizeof rank->fault,
                               "%s of rank %u, document %u row %zu: %g instead of %g", name,
                               rank->number, home->document, home->start + i / width, got, want);
            }
        }
        own_row += home->rows;
    }
}

static void rank_compare_all(struct rank *rank) {
    const struct exchange_group *g = rank->group;
    const struct ballast_exchange_call *call = &rank->call;
    size_t q = g->q_heads * EXCHANGE_DIM;
    size_t kv = g->kv_heads * EXCHANGE_DIM;
    rank_compare(rank, "o", &call->o, false, g->o, q);
    rank_compare(rank, "lse", &call->lse, true, g->lse, g->q_heads);
    rank_compare(rank, "dq", &call->dq, false, g->dq, q);
    rank_compare(rank, "dk", &call->own_dk, true, g->dk, kv);
    rank_compare(rank, "dv", &call->own_dv, true, g->dv, kv);
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
        if (fault[0] == 0) {
            memcpy(fault, ranks[i].fault, sizeof fault);
        }
    }
    return fault[0] != 0 ? fault : NULL;
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
