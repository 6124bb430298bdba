/* Delivery as a whole: sessions, roster, slots and reads over a fake reader, in random worlds.
 *
 * First chaos: ranks take, hold, release, commit, vanish and come back in any order, reads finish
 * in any order, and now and then the job goes to another step. Then peace: every rank lets go of a
 * batch only when all ranks of its replica have it, as training in step does. What must hold: each
 * rank gets every batch in order; the bytes of a held slot are its batch's; and in peace everybody
 * reaches the end, however few slots there are.
 */
#include "ballast.pb-c.h"
#include "corpus/reader_jobs.h"
#include "daemon/feed.h"
#include "tests/property/splitmix.h"
#include "tests/unit/corpus_files.h"
#include "ttrpc.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SPANS      4u
#define RANKS_MAX  8u
#define HELD_MAX   16u
#define STEPS      12u
#define DOCUMENTS  64u
#define SLOT_BYTES 4096u
#define LEASE_NS   1000u

struct held_batch {
    Ballast__V1__Batch *batch;
    Ballast__V1__StreamResponse *event;
};

struct rank {
    struct session session; /* first: ops get it */
    struct rank_place place;
    bool connected;
    bool over; /* EndOfData came */
    uint32_t next_stream;
    uint32_t credits; /* wanted in flight */
    uint64_t step;    /* of the next batch it expects */
    uint32_t index;
    struct held_batch held[HELD_MAX];
    uint32_t held_count;
};

static struct {
    uint64_t seed;
    uint64_t random;
    uint32_t rank_count;
    struct roster_span spans[SPANS];
    uint64_t now_ns;
    uint64_t planned;
    struct rank ranks[RANKS_MAX];
    struct session_job job;
    struct session_progress progress;
    struct session_world world;
    struct roster roster;
    struct generation generation;
    struct measured measured;
    struct packed packed;
    struct arena arena;
    struct slab slab;
    struct plans plans;
    struct feed feed;
    struct metrics metrics;
    struct catalog *catalog;
    struct read_job *reads[64];
    uint32_t read_count;
    struct reader reader;
} sim;

/* A reader that reads when it is asked for results, whatever it likes first. */

static int fake_submit(struct reader *reader, struct read_job *job) {
    (void)reader;
    assert_true(sim.read_count < 64);
    sim.reads[sim.read_count++] = job;
    return 0;
}

static struct read_job *fake_reap(struct reader *reader) {
    (void)reader;
    if (sim.read_count == 0 || splitmix_between(&sim.random, 0, 2) == 0) {
        return NULL;
    }
    uint32_t which = splitmix_between(&sim.random, 0, sim.read_count - 1);
    struct read_job *job = sim.reads[which];
    sim.reads[which] = sim.reads[--sim.read_count];
    assert_true(read_job_prepare(job));
    for (uint32_t i = 0; i < job->extent_count; i++) {
        landing_read(&(struct landing){0}, &job->extents[i]);
    }
    read_job_conclude(job);
    assert_int_equal(job->result, 0);
    return job;
}

static const struct reader_ops fake_reader_ops = {.submit = fake_submit, .reap = fake_reap};

/* Plans: a few documents for every micro-batch, by a hash of where it stands; some have none. */

static struct step_plan *make_plan(uint64_t step) {
    uint32_t micro_batches = roster_micro_batches(&sim.roster, step);
    uint32_t count = sim.roster.mesh.dp * micro_batches;
    struct step_plan *plan = step_plan_create(count, 1, 3 * count, 0);
    assert_non_null(plan);
    plan->step = step;
    plan->dp = sim.roster.mesh.dp;
    plan->pp = plan->cp = plan->tp = 1;
    plan->document_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t hash = step * 1000 + i;
        uint32_t documents = (uint32_t)(splitmix_next(&hash) % 4);
        struct micro_batch *micro_batch = &plan->micro_batches[i];
        *micro_batch = (struct micro_batch){.dp = i / micro_batches,
                                            .index = i % micro_batches,
                                            .document_begin = plan->document_count,
                                            .document_count = documents,
                                            .shard_begin = i};
        for (uint32_t d = 0; d < documents; d++) {
            uint64_t document = splitmix_next(&hash) % DOCUMENTS;
            uint32_t length = dataset_length(catalog_dataset(sim.catalog, 0), document);
            plan->documents[plan->document_count++] = (struct document){
                .document = document, .length = length, .document_length = length};
        }
    }
    return plan;
}

/* What sessions ask. */

static struct rank *rank_of(struct session *session) {
    return (struct rank *)(void *)session;
}

/* Whether the slot still holds the batch: its generation and every token. */
static void check_batch(const Ballast__V1__Batch *batch) {
    const uint8_t *slot = sim.slab.memory.base + batch->slab_offset;
    uint64_t generation;
    uint64_t at = 0;
    if (batch->slab_bytes == 0) {
        assert_int_equal(batch->plan->n_documents, 0);
        return;
    }
    memcpy(&generation, slot, sizeof generation);
    assert_int_equal(generation, batch->slot_generation);
    for (size_t i = 0; i < batch->plan->n_documents; i++) {
        const Ballast__V1__Document *document = batch->plan->documents[i];
        for (uint32_t j = 0; j < document->length; j++, at += 2) {
            uint16_t token;
            memcpy(&token, slot + SLOT_HEADER_BYTES + at, sizeof token);
            assert_int_equal(token, dataset_token(document->document, j));
        }
    }
    assert_int_equal(at, batch->slab_bytes);
}

static void take_event(struct rank *rank, Ballast__V1__StreamResponse *event) {
    switch (event->event_case) {
    case BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH:
        assert_int_equal(event->batch->id->step, rank->step);
        assert_int_equal(event->batch->id->index, rank->index);
        assert_int_equal(event->batch->id->dp, rank->place.dp);
        assert_true(rank->held_count < HELD_MAX);
        rank->held[rank->held_count++] = (struct held_batch){event->batch, event};
        check_batch(event->batch);
        rank->index++;
        return;
    case BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP:
        assert_int_equal(event->end_of_step->step, rank->step);
        assert_int_equal(rank->index, event->end_of_step->micro_batches);
        assert_int_equal(rank->index, roster_micro_batches(&sim.roster, rank->step));
        rank->step++;
        rank->index = 0;
        break;
    case BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA:
        assert_int_equal(event->end_of_data->step, STEPS);
        assert_int_equal(rank->step, STEPS);
        rank->over = true;
        break;
    default:
        fail_msg("a StreamResponse without an event");
    }
    ballast__v1__stream_response__free_unpacked(event, NULL);
}

static void sim_send(struct session *session, uint32_t stream, enum frame_type type,
                     const ProtobufCMessage *message) {
    uint8_t packed[16384];
    (void)stream;
    size_t bytes = protobuf_c_message_get_packed_size(message);
    assert_true(bytes <= sizeof packed);
    protobuf_c_message_pack(message, packed);
    if (type == FRAME_DATA) {
        take_event(rank_of(session), ballast__v1__stream_response__unpack(NULL, bytes, packed));
        return;
    }
    Ttrpc__Response *response = ttrpc__response__unpack(NULL, bytes, packed);
    if (response->status != NULL && response->status->code != STATUS_ABORTED) {
        fail_msg("refused: %s", response->status->message);
    }
    ttrpc__response__free_unpacked(response, NULL);
}

static bool sim_congested(const struct session *session) {
    (void)session;
    return false;
}

static bool sim_crowded(const struct session *session, size_t bytes) {
    (void)session;
    (void)bytes;
    return false;
}

static enum session_answer sim_plan(struct session *session, uint64_t step,
                                    const struct step_plan **plan, struct error *error) {
    (void)session;
    (void)error;
    const struct planned *planned = plans_find(&sim.plans, step);
    if (step >= STEPS) {
        return SESSION_NO_STEP;
    }
    if (planned == NULL) {
        return SESSION_WAITS;
    }
    *plan = planned->plan;
    return SESSION_READY;
}

static enum session_answer sim_take(struct session *session, const struct step_plan *plan,
                                    uint32_t micro_batch, bool last, struct session_batch *batch,
                                    struct error *error) {
    return feed_take(&sim.feed, session->member->replica, plan, micro_batch, session->subscribed,
                     last, batch, error);
}

static void sim_release(struct session *session, uint32_t slot) {
    (void)session;
    slab_release(&sim.slab, slot);
}

static void sim_opened(struct session *session, uint32_t replica) {
    (void)session;
    (void)replica;
}

static void sim_waited(struct session *session, uint64_t wait_ns) {
    (void)session;
    (void)wait_ns;
}

static void sim_closed(struct session *session) {
    (void)session;
}

static int sim_random(void *out, size_t bytes) {
    memset(out, 1, bytes);
    return 0;
}

static void sim_log(struct session *session, int level, const char *text) {
    (void)session;
    (void)level;
    (void)text;
}

static const struct session_ops sim_ops = {
    .send = sim_send,
    .congested = sim_congested,
    .crowded = sim_crowded,
    .plan = sim_plan,
    .take = sim_take,
    .release = sim_release,
    .opened = sim_opened,
    .waited = sim_waited,
    .closed = sim_closed,
    .random = sim_random,
    .log = sim_log,
};

static void sim_read_failed(void *context, const struct error *error) {
    (void)context;
    fail_msg("a read failed: %s", error->text);
}

/* What ranks say. */

static void rank_frame(struct rank *rank, uint32_t stream, enum frame_type type, uint8_t flags,
                       const ProtobufCMessage *message) {
    uint8_t packed[1024];
    size_t bytes = protobuf_c_message_pack(message, packed);
    const struct frame_header header = {
        .length = (uint32_t)bytes, .stream = stream, .type = (uint8_t)type, .flags = flags};
    assert_int_equal(session_frame(&rank->session, &header, packed, sim.now_ns), 0);
}

static void rank_call(struct rank *rank, const char *method, uint8_t flags,
                      const ProtobufCMessage *message) {
    uint8_t payload[512];
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    request.service = (char *)SESSION_LOADER;
    request.method = (char *)method;
    request.payload.data = payload;
    request.payload.len = message == NULL ? 0 : protobuf_c_message_pack(message, payload);
    rank_frame(rank, rank->next_stream, FRAME_REQUEST, flags, &request.base);
    rank->next_stream += 2;
}

static void rank_stream(struct rank *rank) {
    Ballast__V1__StreamRequest first = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId from = BALLAST__V1__BATCH_ID__INIT;
    from.step = rank->step;
    from.dp = rank->place.dp;
    from.index = rank->index;
    first.from = &from;
    first.credits = rank->credits;
    rank_call(rank, "Stream", FRAME_REMOTE_OPEN, &first.base);
}

static void rank_connect(struct rank *rank) {
    const struct session_peer peer = {.pid = 1, .may_serve = true};
    Ballast__V1__HelloRequest hello = BALLAST__V1__HELLO_REQUEST__INIT;
    Ballast__V1__Rank place = BALLAST__V1__RANK__INIT;
    Ballast__V1__Part part = BALLAST__V1__PART__PART_TOKENS;
    session_init(&rank->session, &sim.world, rank, &peer, sim.now_ns);
    rank->next_stream = 1;
    rank->connected = true;
    place.dp = rank->place.dp;
    place.cp = rank->place.cp;
    hello.protocol_min = hello.protocol_max = 1;
    hello.rank = &place;
    hello.n_parts = 1;
    hello.parts = &part;
    rank_call(rank, "Hello", 0, &hello.base);
    rank_stream(rank);
}

static void rank_forget(struct rank *rank, uint32_t i) {
    ballast__v1__stream_response__free_unpacked(rank->held[i].event, NULL);
    rank->held[i] = rank->held[--rank->held_count];
}

static void rank_vanish(struct rank *rank) {
    session_deinit(&rank->session, sim.now_ns);
    rank->connected = false;
    while (rank->held_count > 0) {
        rank_forget(rank, 0);
    }
}

static void rank_release(struct rank *rank, uint32_t i) {
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId *released[] = {rank->held[i].batch->id};
    check_batch(rank->held[i].batch);
    request.credits = rank->over ? 0 : 1;
    request.n_released = 1;
    request.released = released;
    rank_frame(rank, rank->session.stream, FRAME_DATA, 0, &request.base);
    rank_forget(rank, i);
}

/* Commits the last whole step and drops what it held of it. */
static void rank_commit(struct rank *rank) {
    Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
    if (rank->step == 0) {
        return;
    }
    for (uint32_t i = rank->held_count; i-- > 0;) {
        if (rank->held[i].batch->id->step < rank->step) {
            rank_release(rank, i);
        }
    }
    request.step = rank->step - 1;
    rank_call(rank, "Commit", 0, &request.base);
}

/* The daemon's turn. */
static void sim_turn(void) {
    (void)roster_advance(&sim.roster, sim.now_ns);
    (void)feed_reap(&sim.feed);
    feed_schedule(&sim.feed);
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        if (sim.ranks[i].connected) {
            session_pump(&sim.ranks[i].session, sim.now_ns);
        }
    }
    plans_trim(&sim.plans, sim.roster.committed_step, &sim.roster);
}

static void sim_plan_more(void) {
    if (sim.planned < STEPS) {
        assert_int_equal(plans_add(&sim.plans, make_plan(sim.planned++)), 0);
    }
}

/* The job goes to another step: all of it, by whoever is connected; plans are made anew from there.
 */
static void sim_rewind(uint64_t step) {
    sim.generation.number++;
    sim.generation.step = step;
    (void)snprintf(sim.generation.by, sizeof sim.generation.by, "chaos");
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        struct rank *rank = &sim.ranks[i];
        if (rank->connected) {
            session_abort(&rank->session, sim.now_ns);
            assert_int_equal(rank->session.held_count, 0);
        }
        while (rank->held_count > 0) {
            rank_forget(rank, 0);
        }
        rank->step = step;
        rank->index = 0;
        rank->over = false;
    }
    roster_rewind(&sim.roster, step);
    plans_cut(&sim.plans, step, step + 2);
    sim.planned = step;
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        if (sim.ranks[i].connected) {
            session_rejoin(&sim.ranks[i].session);
            rank_stream(&sim.ranks[i]);
        }
    }
}

static void chaos(void) {
    struct rank *rank = &sim.ranks[splitmix_between(&sim.random, 0, sim.rank_count - 1)];
    uint32_t action = splitmix_between(&sim.random, 0, 99);
    if (!rank->connected) {
        if (action < 8) {
            rank_connect(rank);
        }
    } else if (action < 3) {
        rank_vanish(rank);
    } else if (action < 50 && rank->held_count > 0) {
        rank_release(rank, splitmix_between(&sim.random, 0, rank->held_count - 1));
    } else if (action < 60) {
        rank_commit(rank);
    } else if (action < 70) {
        sim_plan_more();
    } else if (action < 72) {
        sim_rewind(splitmix_between(&sim.random, 0, STEPS));
    }
    sim_turn();
}

/* Whether every rank of the replica was given this batch. */
static bool everybody_has(uint32_t dp, const Ballast__V1__BatchId *id) {
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        const struct rank *rank = &sim.ranks[i];
        if (rank->place.dp == dp && roster_place(&sim.roster, rank->step, rank->index) <=
                                        roster_place(&sim.roster, id->step, id->index)) {
            return false;
        }
    }
    return true;
}

static bool peace(void) {
    bool done = true;
    sim_plan_more();
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        struct rank *rank = &sim.ranks[i];
        if (!rank->connected) {
            rank_connect(rank);
        }
        for (uint32_t h = rank->held_count; h-- > 0;) {
            if (everybody_has(rank->place.dp, rank->held[h].batch->id)) {
                rank_release(rank, h);
            }
        }
        done &= rank->over;
    }
    sim_turn();
    return done;
}

/* Every few steps there are other micro-batches. */
static void sim_span(void) {
    for (uint32_t i = 0; i < SPANS; i++) {
        struct roster_span *span = &sim.spans[i];
        *span = (struct roster_span){.micro_batches = splitmix_between(&sim.random, 1, 4)};
        if (i > 0) {
            uint64_t steps = splitmix_between(&sim.random, 1, 6);
            span->step = span[-1].step + steps;
            span->position = span[-1].position + steps * span[-1].micro_batches;
        }
    }
    roster_set_spans(&sim.roster, sim.spans, splitmix_between(&sim.random, 1, SPANS));
}

static void sim_open(uint64_t seed) {
    static const uint8_t local[2] = {1, 1};
    memset(sim.ranks, 0, sizeof sim.ranks);
    sim.random = seed;
    struct rank_place mesh = {.dp = splitmix_between(&sim.random, 1, 2), .pp = 1, .tp = 1};
    mesh.cp = splitmix_between(&sim.random, 1, 4);
    uint32_t slots = splitmix_between(&sim.random, 2, 8);
    sim.rank_count = mesh.dp * mesh.cp;
    sim.now_ns = 1;
    sim.planned = 0;
    sim.generation = (struct generation){0};
    sim.read_count = 0;
    sim.job = (struct session_job){.version = "sim",
                                   .data_path = "",
                                   .token_bytes = 2,
                                   .credits_max = slots,
                                   .replica_slots = slots,
                                   .end_step = UINT64_MAX};
    sim.progress = (struct session_progress){
        .plannable_step = STEPS, .durable_step = STEPS, .durable_changes = UINT64_MAX};
    sim.reader = (struct reader){.ops = &fake_reader_ops};
    arena_init(&sim.arena, 1 << 20);
    assert_int_equal(roster_init(&sim.roster, &mesh, local, 1, LEASE_NS, 0, sim.now_ns), 0);
    sim_span();
    const struct slab_options slab_options = {.replicas = mesh.dp,
                                              .replica_slots = slots,
                                              .slot_bytes = SLOT_BYTES,
                                              .node = SLAB_NODE_ANY};
    assert_int_equal(slab_open(&sim.slab, &slab_options, NULL), 0);
    sim.world = (struct session_world){.ops = &sim_ops,
                                       .job = &sim.job,
                                       .progress = &sim.progress,
                                       .roster = &sim.roster,
                                       .generation = &sim.generation,
                                       .measured = &sim.measured,
                                       .packed = &sim.packed,
                                       .arena = &sim.arena};
    sim.feed = (struct feed){.slab = &sim.slab,
                             .metrics = &sim.metrics,
                             .reader = &sim.reader,
                             .catalog = sim.catalog,
                             .plans = &sim.plans,
                             .roster = &sim.roster,
                             .token_bytes = 2,
                             .failed = sim_read_failed};
    assert_int_equal(feed_open(&sim.feed, NULL), 0);
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        sim.ranks[i].place = (struct rank_place){.dp = i / mesh.cp, .cp = i % mesh.cp};
        sim.ranks[i].credits = splitmix_between(&sim.random, 1, slots);
    }
}

static void sim_close(void) {
    for (uint32_t i = 0; i < sim.rank_count; i++) {
        if (sim.ranks[i].connected) {
            rank_vanish(&sim.ranks[i]);
        }
    }
    for (uint32_t replica = 0; replica < sim.slab.replicas; replica++) {
        assert_int_equal(sim.slab.held[replica], 0);
    }
    feed_close(&sim.feed);
    plans_deinit(&sim.plans);
    slab_close(&sim.slab);
    roster_deinit(&sim.roster);
    packed_deinit(&sim.packed);
    arena_deinit(&sim.arena);
}

static void in_every_world_each_rank_gets_every_batch_in_order_and_nobody_starves(void **state) {
    uint32_t worlds = getenv("BALLAST_TEST_FULL") != NULL ? 20000 : 400;
    (void)state;
    for (uint64_t seed = 1; seed <= worlds; seed++) {
        uint32_t rounds = 0;
        sim.seed = seed;
        sim_open(seed);
        for (uint32_t i = splitmix_between(&sim.random, 0, 300); i > 0; i--) {
            chaos();
        }
        while (!peace()) {
            if (++rounds > 2000) {
                fail_msg("a rank starves");
            }
        }
        sim_close();
    }
}

int main(void) {
    static char folder[64], prefix[80];
    static uint32_t lengths[DOCUMENTS];
    struct image_options image = {.dtype = 8, .documents = DOCUMENTS, .lengths = lengths};
    struct catalog_entry entry = {.name = "sim", .prefix = prefix, .weight = 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_every_world_each_rank_gets_every_batch_in_order_and_nobody_starves),
    };
    uint64_t random = 9;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = splitmix_between(&random, 1, 300);
    }
    test_folder_make(folder);
    (void)snprintf(prefix, sizeof prefix, "%s/sim", folder);
    dataset_write(prefix, &image);
    int failed = catalog_open(&entry, 1, &sim.catalog, NULL);
    if (failed == 0) {
        failed = cmocka_run_group_tests(tests, NULL, NULL);
        if (failed != 0) {
            print_error("world of seed %llu\n", (unsigned long long)sim.seed);
        }
        catalog_close(sim.catalog);
    }
    test_folder_remove(folder);
    return failed != 0;
}
