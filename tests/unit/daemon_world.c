/* daemon_world: see daemon_world.h. */
#include "daemon_world.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct world_session *world_of(struct session *session) {
    return (struct world_session *)(void *)session;
}

static void fake_send(struct session *session, uint32_t stream, enum frame_type type,
                      const ProtobufCMessage *message) {
    struct world_session *at = world_of(session);
    if (at->sent_count == WORLD_SENT) {
        return;
    }
    struct world_sent *sent = &at->sent[at->sent_count++];
    sent->stream = stream;
    sent->type = type;
    sent->count = protobuf_c_message_get_packed_size(message);
    sent->bytes = malloc(sent->count + 1);
    assert(sent->bytes != NULL && sent->count <= FRAME_DATA_BYTES_MAX);
    protobuf_c_message_pack(message, sent->bytes);
}

static bool fake_congested(const struct session *session) {
    return ((const struct world_session *)(const void *)session)->congested;
}

static bool fake_crowded(const struct session *session, size_t bytes) {
    (void)bytes;
    return ((const struct world_session *)(const void *)session)->crowded;
}

static void world_add_pools(struct step_plan *plan) {
    static struct plan_pool pools[WORLD_PER_STEP];
    static struct pool_piece pieces[WORLD_PER_STEP];
    static uint32_t workers[WORLD_PER_STEP];
    static struct pool_transfer transfers[WORLD_PER_STEP];
    for (uint32_t i = 0; i < WORLD_PER_STEP; i++) {
        pools[i] = (struct plan_pool){.ga_index = i,
                                      .piece_begin = i,
                                      .piece_count = 1,
                                      .transfer_begin = i,
                                      .transfer_count = 1};
        pieces[i] = (struct pool_piece){.rows = 8, .pairs = 36};
        workers[i] = 3;
        transfers[i] = (struct pool_transfer){.payload = POOL_Q, .worker = 3, .rows = 8};
    }
    plan->pool_shape = (struct pool_shape){
        .sequences = WORLD_DP, .ranks = WORLD_CP, .head_shards = 1};
    plan->pool_count = WORLD_PER_STEP;
    plan->pools = pools;
    plan->pieces = pieces;
    plan->tile_workers = workers;
    plan->transfers = transfers;
}

/* Every micro-batch is one document of 8 tokens, or none; one context-parallel rank per half. */
static void world_make_plan(struct world *world, uint64_t step) {
    static struct micro_batch micro_batches[WORLD_DP * WORLD_PER_STEP_MAX];
    static struct document documents[1];
    static struct rank_shard shards[WORLD_CP];
    static struct fragment fragments[1];
    static struct step_plan plan;
    uint32_t per_step = roster_micro_batches(&world->roster, step);
    documents[0] = (struct document){.document = step, .length = 8, .document_length = 8};
    plan = (struct step_plan){.step = step,
                              .dp = WORLD_DP,
                              .pp = 1,
                              .cp = WORLD_CP,
                              .tp = 1,
                              .micro_batch_count = WORLD_DP * per_step,
                              .micro_batches = micro_batches,
                              .documents = documents,
                              .shards = shards,
                              .fragments = fragments};
    for (uint32_t i = 0; i < plan.micro_batch_count; i++) {
        micro_batches[i] = (struct micro_batch){
            .dp = i / per_step, .index = i % per_step, .document_count = world->empty ? 0 : 1};
    }
    if (world->pooled) {
        world_add_pools(&plan);
    }
    memset(plan.digest, (int)(step + 1), sizeof plan.digest);
    world->plan = &plan;
}

static enum session_answer fake_plan(struct session *session, uint64_t step,
                                     const struct step_plan **plan, struct error *error) {
    struct world *world = world_of(session)->world;
    (void)error;
    if (step >= world->end) {
        return SESSION_NO_STEP;
    }
    if (step >= world->planned) {
        return SESSION_WAITS;
    }
    world_make_plan(world, step);
    *plan = world->plan;
    return SESSION_READY;
}

static enum session_answer fake_take(struct session *session, const struct step_plan *plan,
                                     uint32_t micro_batch, bool last, struct session_batch *batch,
                                     struct error *error) {
    struct world *world = world_of(session)->world;
    (void)last;
    if (plan->step == world->lost_step) {
        error_set(error, -EIO, "books.bin: read at offset 4096: Input/output error");
        return SESSION_LOST;
    }
    if (world->slots != SESSION_READY || world->empty) {
        return world->slots;
    }
    if (session->held_count == WORLD_SLOTS) {
        return SESSION_HELD_UP;
    }
    world->holds++;
    *batch = (struct session_batch){
        .slot = (int)((plan->step * WORLD_PER_STEP + micro_batch) % WORLD_SLOTS),
        .slab_offset = 4096,
        .payload_bytes = 16,
        .slot_generation = plan->step + 1};
    return SESSION_READY;
}

static void fake_release(struct session *session, uint32_t slot) {
    (void)slot;
    assert(world_of(session)->world->holds > 0);
    world_of(session)->world->holds--;
}

static const uint8_t *fake_payload(struct session *session, uint32_t slot, uint64_t generation,
                                   uint64_t *bytes) {
    const struct world *world = world_of(session)->world;
    (void)slot;
    *bytes = world->payload_bytes;
    return generation == world->slot_generation ? world->payload : NULL;
}

static bool fake_send_payload(struct session *session, uint32_t stream, const uint8_t *payload,
                              uint32_t bytes) {
    Ballast__V1__FetchResponse response = BALLAST__V1__FETCH_RESPONSE__INIT;
    response.payload = (ProtobufCBinaryData){bytes, (uint8_t *)payload};
    fake_send(session, stream, FRAME_DATA, &response.base);
    return !world_of(session)->narrow;
}

static void fake_again(struct session *session) {
    world_of(session)->again = true;
}

static void fake_opened(struct session *session, uint32_t replica) {
    (void)replica;
    world_of(session)->world->opened++;
}

static void fake_waited(struct session *session, uint64_t wait_ns) {
    world_of(session)->waited_ns = wait_ns;
}

static void fake_admin(struct session *session, uint32_t stream, const char *method,
                       const uint8_t *payload, size_t bytes) {
    struct world_session *at = world_of(session);
    (void)payload;
    (void)bytes;
    at->admin_stream = stream;
    strncpy(at->admin_method, method, sizeof at->admin_method - 1);
}

static void fake_seek(struct session *session, uint32_t stream, uint64_t step, uint64_t least,
                      uint64_t deadline_ns) {
    struct world_session *at = world_of(session);
    (void)deadline_ns;
    at->seek_stream = stream;
    at->seek_step = step;
    at->seek_least = least;
}

static void fake_import(struct session *session, uint32_t stream, const uint8_t *state,
                        size_t bytes, uint64_t least, uint64_t deadline_ns) {
    (void)state;
    fake_seek(session, stream, bytes, least, deadline_ns);
}

static void fake_export(struct session *session, uint32_t stream, uint64_t step) {
    struct world_session *at = world_of(session);
    at->export_stream = stream;
    at->seek_step = step;
}

static void fake_closed(struct session *session) {
    (void)session;
}

static int fake_random(void *out, size_t bytes) {
    memset(out, 0x5a, bytes);
    return 0;
}

static void fake_log(struct session *session, int level, const char *text) {
    (void)session;
    (void)level;
    (void)text;
}

static const struct session_ops fake_ops = {
    .send = fake_send,
    .congested = fake_congested,
    .crowded = fake_crowded,
    .plan = fake_plan,
    .take = fake_take,
    .release = fake_release,
    .payload = fake_payload,
    .send_payload = fake_send_payload,
    .again = fake_again,
    .opened = fake_opened,
    .waited = fake_waited,
    .seek = fake_seek,
    .import = fake_import,
    .export = fake_export,
    .admin = fake_admin,
    .closed = fake_closed,
    .random = fake_random,
    .log = fake_log,
};

void world_init(struct world *world, bool all) {
    const struct rank_place mesh = {.dp = WORLD_DP, .pp = 1, .cp = WORLD_CP, .tp = 1};
    const uint8_t local[WORLD_DP] = {1, all};
    *world = (struct world){.ops = fake_ops, .planned = 1000, .end = UINT64_MAX};
    world->lost_step = UINT64_MAX;
    world->now_ns = 5 * WORLD_SECOND_NS;
    world->job = (struct session_job){.version = "ballastd test",
                                      .data_path = "/run/b.sock.data",
                                      .job_digest = {1, 2, 3},
                                      .tokens_max = 64,
                                      .token_bytes = 2,
                                      .slab_bytes = 32768,
                                      .credits_max = 8,
                                      .replica_slots = WORLD_SLOTS,
                                      .end_step = UINT64_MAX};
    world->progress = (struct session_progress){.plannable_step = 1000};
    world->generation = (struct generation){.number = 9, .step = 77, .by = "rank dp 1"};
    arena_init(&world->arena, 1 << 20);
    int code = roster_init(&world->roster, &mesh, local, WORLD_PER_STEP, 60 * WORLD_SECOND_NS, 0,
                           world->now_ns);
    assert(code == 0);
    code = measured_init(&world->measured, world->roster.replicas, WORLD_PER_STEP_MAX,
                         world->roster.count);
    assert(code == 0);
    world->world = (struct session_world){.ops = &world->ops,
                                          .job = &world->job,
                                          .progress = &world->progress,
                                          .roster = &world->roster,
                                          .generation = &world->generation,
                                          .measured = &world->measured,
                                          .packed = &world->packed,
                                          .arena = &world->arena};
}

static void world_forget(struct world_session *at) {
    for (uint32_t i = 0; i < at->sent_count; i++) {
        free(at->sent[i].bytes);
    }
    at->sent_count = 0;
    at->read = 0;
}

void world_deinit(struct world *world) {
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
        if (world->sessions[i].world != NULL) {
            session_deinit(&world->sessions[i].session, world->now_ns);
            world_forget(&world->sessions[i]);
        }
    }
    assert(world->holds == 0);
    roster_deinit(&world->roster);
    measured_deinit(&world->measured);
    packed_deinit(&world->packed);
    arena_deinit(&world->arena);
}

struct world_session *world_connect(struct world *world, uint32_t i) {
    const struct session_peer peer = {
        .pid = 100 + i, .uid = 7, .may_serve = true, .may_admin = true};
    struct world_session *at = &world->sessions[i];
    if (at->world != NULL) {
        session_deinit(&at->session, world->now_ns);
        world_forget(at);
    }
    *at = (struct world_session){.world = world, .next_stream = 1};
    session_init(&at->session, &world->world, at, &peer, world->now_ns);
    return at;
}

int world_frame(struct world_session *at, uint32_t stream, enum frame_type type, uint8_t flags,
                const uint8_t *data, size_t bytes) {
    const struct frame_header header = {
        .length = (uint32_t)bytes, .stream = stream, .type = (uint8_t)type, .flags = flags};
    return session_frame(&at->session, &header, data, at->world->now_ns);
}

uint32_t world_call(struct world_session *at, const char *service, const char *method,
                    uint8_t flags, const ProtobufCMessage *message) {
    uint8_t payload[512], frame[1024];
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    uint32_t stream = at->next_stream;
    request.service = (char *)service;
    request.method = (char *)method;
    if (message != NULL) {
        assert(protobuf_c_message_get_packed_size(message) <= sizeof payload);
        request.payload.data = payload;
        request.payload.len = protobuf_c_message_pack(message, payload);
    }
    at->next_stream += 2;
    size_t bytes = protobuf_c_message_pack(&request.base, frame);
    int code = world_frame(at, stream, FRAME_REQUEST, flags, frame, bytes);
    assert(code == 0);
    return stream;
}

void world_send_stream(struct world_session *at, const Ballast__V1__StreamRequest *request) {
    uint8_t data[256];
    assert(at->session.stream != 0);
    size_t bytes = protobuf_c_message_pack(&request->base, data);
    int code = world_frame(at, at->session.stream, FRAME_DATA, 0, data, bytes);
    assert(code == 0);
}

void world_stream(struct world_session *at, uint32_t credits, const Ballast__V1__BatchId *from) {
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    request.credits = credits;
    request.from = (Ballast__V1__BatchId *)from;
    world_send_stream(at, &request);
}

void world_release(struct world_session *at, uint64_t step, uint32_t index) {
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    Ballast__V1__BatchId *ids[] = {&id};
    id.step = step;
    id.index = index;
    request.n_released = 1;
    request.released = ids;
    world_send_stream(at, &request);
}

void world_begin(struct world *world, struct world_session *by, uint64_t step) {
    world->generation.number++;
    world->generation.step = step;
    session_name(&by->session, world->generation.by);
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
        if (world->sessions[i].world != NULL) {
            session_abort(&world->sessions[i].session, world->now_ns);
        }
    }
    roster_rewind(&world->roster, step);
    session_rejoin(&by->session);
}

void world_pump(struct world *world) {
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
            struct world_session *at = &world->sessions[i];
            if (at->world != NULL) {
                uint32_t before = at->sent_count;
                session_pump(&at->session, world->now_ns);
                more |= at->sent_count > before;
            }
        }
    }
}

const struct world_sent *world_read(struct world_session *at) {
    return at->read < at->sent_count ? &at->sent[at->read++] : NULL;
}
