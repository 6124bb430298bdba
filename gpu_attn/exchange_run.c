/* exchange_run: the exchange of a layer, chunk by chunk.
 *
 * A collective is a bundle of lanes: tensors whose runs travel together. Staging holds, peer by
 * peer, the runs of every lane in turn; sender and receiver walk them in the same order. Runs from
 * a rank to itself do not travel. */
#include "gpu_attn/error.h"
#include "gpu_attn/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LANES_MAX       6u
#define STAGING_ALIGNED 256u

enum pass { PASS_FORWARD, PASS_BACKWARD };
enum way { WAY_DISPATCH, WAY_RETURN };

/* Which heads of a run travel with a chunk. */
enum heads {
    HEADS_OF_CHUNK,       /* the chunk's part */
    HEADS_BY_FIRST_CHUNK, /* all, or none */
    HEADS_BY_LAST_CHUNK,
};

struct lane {
    const struct exchange_runs *send;
    const struct exchange_runs *receive;
    struct ballast_exchange_tensor from;
    struct ballast_exchange_tensor to;
    size_t head_bytes;
    enum heads heads;
    bool add; /* floats */
};

struct bundle {
    const struct ballast_exchange *exchange;
    struct lane lanes[LANES_MAX];
    uint32_t lane_count;
    uint32_t chunk;
};

struct head_range {
    uint32_t begin;
    uint32_t count;
};

static struct lane *bundle_add(struct bundle *bundle, struct lane lane) {
    assert(bundle->lane_count < LANES_MAX);
    bundle->lanes[bundle->lane_count] = lane;
    return &bundle->lanes[bundle->lane_count++];
}

/* Rows of queries, from home to where they are computed or back. */
static void bundle_add_queries(struct bundle *bundle, enum way way, size_t head_bytes,
                               struct ballast_exchange_tensor tensor) {
    const struct ballast_exchange *x = bundle->exchange;
    bool out = way == WAY_DISPATCH;
    (void)bundle_add(bundle, (struct lane){
                                 .send = out ? &x->q_home : &x->q_away,
                                 .receive = out ? &x->q_away : &x->q_home,
                                 .from = tensor,
                                 .to = tensor,
                                 .head_bytes = head_bytes,
                                 .heads = HEADS_OF_CHUNK,
                             });
}

static void bundle_add_keys(struct bundle *bundle, struct ballast_exchange_tensor own,
                            struct ballast_exchange_tensor work) {
    const struct ballast_exchange *x = bundle->exchange;
    (void)bundle_add(bundle, (struct lane){
                                 .send = &x->kv_home,
                                 .receive = &x->kv_away,
                                 .from = own,
                                 .to = work,
                                 .head_bytes = (size_t)x->head_dim * x->element_bytes,
                                 .heads = HEADS_BY_FIRST_CHUNK,
                             });
}

static void bundle_add_gradients(struct bundle *bundle, struct ballast_exchange_tensor work,
                                 struct ballast_exchange_tensor own) {
    const struct ballast_exchange *x = bundle->exchange;
    (void)bundle_add(bundle, (struct lane){
                                 .send = &x->kv_away,
                                 .receive = &x->kv_home,
                                 .from = work,
                                 .to = own,
                                 .head_bytes = x->head_dim * sizeof(float),
                                 .heads = HEADS_BY_LAST_CHUNK,
                                 .add = true,
                             });
}

static void bundle_dispatch(struct bundle *bundle, const struct ballast_exchange_call *call,
                            enum pass pass) {
    size_t head_bytes = (size_t)bundle->exchange->head_dim * bundle->exchange->element_bytes;
    if (pass == PASS_FORWARD || (call->flags & BALLAST_EXCHANGE_KEPT) == 0) {
        bundle_add_keys(bundle, call->own_k, call->k);
        bundle_add_keys(bundle, call->own_v, call->v);
        bundle_add_queries(bundle, WAY_DISPATCH, head_bytes, call->q);
        if (pass == PASS_BACKWARD) {
            bundle_add_queries(bundle, WAY_DISPATCH, head_bytes, call->o);
            bundle_add_queries(bundle, WAY_DISPATCH, sizeof(float), call->lse);
        }
    }
    if (pass == PASS_BACKWARD) {
        bundle_add_queries(bundle, WAY_DISPATCH, head_bytes, call->d_o);
    }
}

static void bundle_return(struct bundle *bundle, const struct ballast_exchange_call *call,
                          enum pass pass) {
    size_t head_bytes = (size_t)bundle->exchange->head_dim * bundle->exchange->element_bytes;
    if (pass == PASS_FORWARD) {
        bundle_add_queries(bundle, WAY_RETURN, head_bytes, call->o);
        bundle_add_queries(bundle, WAY_RETURN, sizeof(float), call->lse);
    } else {
        bundle_add_queries(bundle, WAY_RETURN, head_bytes, call->dq);
        bundle_add_gradients(bundle, call->dk, call->own_dk);
        bundle_add_gradients(bundle, call->dv, call->own_dv);
    }
}

static struct bundle bundle_of(const struct ballast_exchange *exchange,
                               const struct ballast_exchange_call *call, enum pass pass,
                               enum way way, uint32_t chunk) {
    struct bundle bundle = {.exchange = exchange, .chunk = chunk};
    if (way == WAY_DISPATCH) {
        bundle_dispatch(&bundle, call, pass);
    } else {
        bundle_return(&bundle, call, pass);
    }
    return bundle;
}

static struct head_range heads_of(const struct bundle *bundle, const struct lane *lane,
                                  const struct exchange_run *run) {
    uint32_t part = run->head_count / bundle->exchange->chunks;
    uint32_t chunk = lane->heads == HEADS_BY_FIRST_CHUNK ? run->first_chunk : run->last_chunk;
    if (lane->heads == HEADS_OF_CHUNK) {
        return (struct head_range){run->head_begin + bundle->chunk * part, part};
    }
    return (struct head_range){run->head_begin, chunk == bundle->chunk ? run->head_count : 0};
}

/* Adds to bytes[peer] what a side of the bundle comes to. */
static void bundle_count(const struct bundle *bundle, bool send, uint64_t *bytes) {
    for (uint32_t i = 0; i < bundle->lane_count; i++) {
        const struct lane *lane = &bundle->lanes[i];
        const struct exchange_runs *list = send ? lane->send : lane->receive;
        for (uint32_t r = 0; r < list->count; r++) {
            const struct exchange_run *run = &list->runs[r];
            if (run->peer != bundle->exchange->rank) {
                bytes[run->peer] += heads_of(bundle, lane, run).count * lane->head_bytes *
                                    (uint64_t)run->rows;
            }
        }
    }
}

static uint64_t sum(const uint64_t *bytes, uint32_t count) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        total += bytes[i];
    }
    return total;
}

void ballast_exchange_counts(const struct ballast_exchange *exchange, uint64_t *in, uint64_t *out) {
    const struct ballast_exchange_call nothing = {0};
    uint64_t *sides[] = {in, out};
    for (uint32_t side = 0; side < 2; side++) {
        if (sides[side] == NULL) {
            continue;
        }
        memset(sides[side], 0, exchange->ranks * sizeof *in);
        for (uint32_t chunk = 0; chunk < exchange->chunks; chunk++) {
            struct bundle bundle = bundle_of(exchange, &nothing, PASS_FORWARD, WAY_DISPATCH, chunk);
            bundle_count(&bundle, side == 1, sides[side]);
        }
    }
}

static size_t aligned(size_t bytes) {
    return (bytes + STAGING_ALIGNED - 1) / STAGING_ALIGNED * STAGING_ALIGNED;
}

static void measure_bundle(struct ballast_exchange *x, enum pass pass, enum way way,
                           uint32_t chunk) {
    const struct ballast_exchange_call nothing = {0};
    struct bundle bundle = bundle_of(x, &nothing, pass, way, chunk);
    for (uint32_t side = 0; side < 2; side++) {
        memset(x->counts, 0, x->ranks * sizeof *x->counts);
        bundle_count(&bundle, side == 0, x->counts);
        size_t bytes = aligned(sum(x->counts, x->ranks));
        size_t *region = &x->region_bytes[2 * (uint32_t)way + side];
        *region = bytes > *region ? bytes : *region;
    }
}

void exchange_measure(struct ballast_exchange *x) {
    for (uint32_t chunk = 0; chunk < x->chunks; chunk++) {
        measure_bundle(x, PASS_FORWARD, WAY_DISPATCH, chunk);
        measure_bundle(x, PASS_FORWARD, WAY_RETURN, chunk);
        measure_bundle(x, PASS_BACKWARD, WAY_DISPATCH, chunk);
        measure_bundle(x, PASS_BACKWARD, WAY_RETURN, chunk);
    }
    for (uint32_t i = 0; i < 4; i++) {
        x->sizes.staging_bytes += x->region_bytes[i];
    }
    ballast_exchange_counts(x, x->counts, NULL);
    x->sizes.bytes_in = sum(x->counts, x->ranks);
    ballast_exchange_counts(x, NULL, x->counts);
    x->sizes.bytes_out = sum(x->counts, x->ranks);
}

static char *region_of(const struct ballast_exchange *x, const struct ballast_exchange_call *call,
                       enum way way, uint32_t side) {
    char *region = call->staging;
    for (uint32_t i = 0; i < 2 * (uint32_t)way + side; i++) {
        region += x->region_bytes[i];
    }
    return region;
}

static void *place_of(const struct ballast_exchange_tensor *tensor, size_t head_bytes,
                      const struct exchange_run *run, struct head_range heads) {
    return (char *)tensor->data + run->row * tensor->row_bytes + heads.begin * head_bytes;
}

/* Runs of a peer begin here. */
static uint32_t runs_of(const struct exchange_runs *list, uint32_t peer) {
    uint32_t low = 0;
    uint32_t high = list->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        bool before = list->runs[middle].peer < peer;
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    return low;
}

/* Copies that go together, as many as the transport takes. */
struct batch {
    const struct ballast_exchange_call *call;
    bool add;
    uint32_t count;
    struct ballast_copy copies[BALLAST_COPIES_MAX];
};

static int batch_flush(struct batch *batch, struct ballast_attn_error *error) {
    const struct ballast_exchange_call *call = batch->call;
    const struct ballast_transport_operations *operations = call->transport->operations;
    uint32_t count = batch->count;
    batch->count = 0;
    if (count == 0) {
        return 0;
    }
    return batch->add
               ? operations->add(call->transport, batch->copies, count, call->stream, error)
               : operations->copy(call->transport, batch->copies, count, call->stream, error);
}

static int batch_append(struct batch *batch, struct ballast_copy copy,
                        struct ballast_attn_error *error) {
    batch->copies[batch->count++] = copy;
    return batch->count < BALLAST_COPIES_MAX ? 0 : batch_flush(batch, error);
}

/* Between the runs of a lane with one peer and staging, which moves on. */
static int lane_stage(const struct bundle *bundle, const struct ballast_exchange_call *call,
                      const struct lane *lane, uint32_t peer, bool arrives, char **staging,
                      struct ballast_attn_error *error) {
    const struct exchange_runs *list = arrives ? lane->receive : lane->send;
    const struct ballast_exchange_tensor *tensor = arrives ? &lane->to : &lane->from;
    struct batch batch = {.call = call, .add = arrives && lane->add};
    int result = 0;
    for (uint32_t r = runs_of(list, peer);
         result == 0 && r < list->count && list->runs[r].peer == peer; r++) {
        const struct exchange_run *run = &list->runs[r];
        struct head_range heads = heads_of(bundle, lane, run);
        size_t bytes = heads.count * lane->head_bytes;
        if (bytes == 0) {
            continue;
        }
        void *place = place_of(tensor, lane->head_bytes, run, heads);
        struct ballast_copy copy = {
            .to = arrives ? place : *staging,
            .to_stride = arrives ? tensor->row_bytes : bytes,
            .from = arrives ? *staging : place,
            .from_stride = arrives ? bytes : tensor->row_bytes,
            .row_bytes = bytes,
            .rows = run->rows,
        };
        result = batch_append(&batch, copy, error);
        *staging += bytes * run->rows;
    }
    return result != 0 ? result : batch_flush(&batch, error);
}

/* The runs of a lane from this rank to itself. */
static int lane_keep(const struct bundle *bundle, const struct ballast_exchange_call *call,
                     const struct lane *lane, struct ballast_attn_error *error) {
    uint32_t rank = bundle->exchange->rank;
    uint32_t from = runs_of(lane->send, rank);
    struct batch batch = {.call = call, .add = lane->add};
    int result = 0;
    for (uint32_t r = runs_of(lane->receive, rank);
         result == 0 && r < lane->receive->count && lane->receive->runs[r].peer == rank; r++) {
        const struct exchange_run *run = &lane->receive->runs[r];
        const struct exchange_run *source = &lane->send->runs[from++];
        struct head_range heads = heads_of(bundle, lane, run);
        struct ballast_copy copy = {
            .to = place_of(&lane->to, lane->head_bytes, run, heads),
            .to_stride = lane->to.row_bytes,
            .from = place_of(&lane->from, lane->head_bytes, source, heads),
            .from_stride = lane->from.row_bytes,
            .row_bytes = heads.count * lane->head_bytes,
            .rows = run->rows,
        };
        if (copy.row_bytes > 0) {
            result = batch_append(&batch, copy, error);
        }
    }
    return result != 0 ? result : batch_flush(&batch, error);
}

/* Between all runs of one side and staging. */
static int bundle_stage(const struct bundle *bundle, const struct ballast_exchange_call *call,
                        bool arrives, char *staging, struct ballast_attn_error *error) {
    int result = 0;
    for (uint32_t peer = 0; peer < bundle->exchange->ranks; peer++) {
        for (uint32_t i = 0; result == 0 && i < bundle->lane_count; i++) {
            if (peer != bundle->exchange->rank) {
                result = lane_stage(bundle, call, &bundle->lanes[i], peer, arrives, &staging,
                                    error);
            } else if (arrives) {
                result = lane_keep(bundle, call, &bundle->lanes[i], error);
            }
        }
    }
    return result;
}

static int part_start(const struct ballast_exchange *x, const struct ballast_exchange_call *call,
                      enum pass pass, enum way way, uint32_t chunk,
                      struct ballast_attn_error *error) {
    struct bundle bundle = bundle_of(x, call, pass, way, chunk);
    char *send = region_of(x, call, way, 0);
    int result = bundle_stage(&bundle, call, false, send, error);
    if (result != 0) {
        return result;
    }
    memset(x->counts, 0, 2 * (size_t)x->ranks * sizeof *x->counts);
    bundle_count(&bundle, true, x->counts);
    bundle_count(&bundle, false, x->counts + x->ranks);
    struct ballast_exchange_transfer transfer = {
        .send = send,
        .receive = region_of(x, call, way, 1),
        .send_bytes = x->counts,
        .receive_bytes = x->counts + x->ranks,
    };
    (void)snprintf(transfer.name, sizeof transfer.name, "%s %u of %s",
                   way == WAY_DISPATCH ? "dispatch" : "return", chunk,
                   pass == PASS_FORWARD ? "forward" : "backward");
    return call->transport->operations->start(call->transport, &transfer, call->stream, error);
}

static int part_finish(const struct ballast_exchange *x, const struct ballast_exchange_call *call,
                       enum pass pass, enum way way, uint32_t chunk,
                       struct ballast_attn_error *error) {
    struct bundle bundle = bundle_of(x, call, pass, way, chunk);
    int result = call->transport->operations->wait(call->transport, call->stream, error);
    return result != 0 ? result
                       : bundle_stage(&bundle, call, true, region_of(x, call, way, 1), error);
}

/* Chunk i's turn: it has been dispatched, i - 2 is being returned. */
static int turn(const struct ballast_exchange *x, const struct ballast_exchange_call *call,
                enum pass pass, uint32_t i, struct ballast_attn_error *error) {
    int result = part_finish(x, call, pass, WAY_DISPATCH, i, error);
    if (result == 0 && i >= 2) {
        result = part_finish(x, call, pass, WAY_RETURN, i - 2, error);
    }
    if (result == 0 && i + 1 < x->chunks) {
        result = part_start(x, call, pass, WAY_DISPATCH, i + 1, error);
    }
    if (result == 0 && i >= 1) {
        result = part_start(x, call, pass, WAY_RETURN, i - 1, error);
    }
    return result != 0 ? result : call->compute(call->context, i, call->stream, error);
}

static int execute(const struct ballast_exchange *x, const struct ballast_exchange_call *call,
                   enum pass pass, struct ballast_attn_error *error) {
    uint32_t last = x->chunks - 1;
    if (call->transport->rank != x->rank || call->transport->ranks != x->ranks) {
        return attn_error(error, -EINVAL,
                          "rank %u of %u of the exchange, %u of %u of the transport", x->rank,
                          x->ranks, call->transport->rank, call->transport->ranks);
    }
    int result = part_start(x, call, pass, WAY_DISPATCH, 0, error);
    for (uint32_t i = 0; result == 0 && i < x->chunks; i++) {
        result = turn(x, call, pass, i, error);
    }
    if (result == 0 && last >= 1) {
        result = part_finish(x, call, pass, WAY_RETURN, last - 1, error);
    }
    if (result == 0) {
        result = part_start(x, call, pass, WAY_RETURN, last, error);
    }
    return result != 0 ? result : part_finish(x, call, pass, WAY_RETURN, last, error);
}

int ballast_exchange_forward(const struct ballast_exchange *exchange,
                             const struct ballast_exchange_call *call,
                             struct ballast_attn_error *error) {
    return execute(exchange, call, PASS_FORWARD, error);
}

int ballast_exchange_backward(const struct ballast_exchange *exchange,
                              const struct ballast_exchange_call *call,
                              struct ballast_attn_error *error) {
    return execute(exchange, call, PASS_BACKWARD, error);
}
