/* sim_rank: trainer ranks as the client library makes them, and what they check; see sim.h.
 *
 * A rank takes what comes into a queue, works on it in order, lets batches go, commits and waits
 * for the answer. When a connection is lost it goes on from where it stood; what it had not worked
 * on yet it still has in its mapping, unless the generation says that the slot was reused. Some
 * have no mapping: they fetch each batch before they work on it, and go back to what they had not
 * fetched when the connection was lost. Killed, it begins after its last acknowledged commit, or
 * leaves it to the daemon where. Some are gone as soon as the last commit of their mesh, or of the
 * data, is acknowledged to them. */
#include "sim.h"

#include "ballast.pb-c.h"
#include "ttrpc.pb-c.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_MAX     96u
#define INPUT_BYTES   (1u << 18)
#define MESSAGE_BYTES (1u << 18) /* with a checkpoint in it */
#define COPY_BYTES    (1u << 14) /* of one batch */

enum item_kind { ITEM_BATCH, ITEM_END_OF_STEP, ITEM_END_OF_MESH, ITEM_END_OF_DATA };

struct item {
    enum item_kind kind;
    uint64_t step;
    uint32_t index;
    const struct step_plan *plan;
    const struct micro_batch *micro_batch;
    uint64_t offset, bytes, generation; /* of the slot */
    uint64_t life;                      /* of the daemon that gave it */
    uint32_t connection;                /* it is held while that lives */
    bool fetched;                       /* the rank has a copy of its own */
};

struct rank {
    uint32_t number;
    struct rank_place place;
    bool subscribed;
    bool fetches; /* the bytes come over the connection */
    uint32_t credits_max;
    uint32_t commit_every;
    uint32_t think_ms_max;
    /* Connection */
    struct sim_wire *wire;
    uint32_t connection; /* number of it */
    uint64_t life;       /* of the daemon at its other end */
    uint32_t next_stream, hello_stream, stream, commit_stream;
    uint32_t fetch_stream;     /* of queue[0]; 0: none */
    uint64_t copied;           /* bytes of it */
    struct frame_reader input; /* by the rank */
    struct frame_reader watch; /* by the checker, as the daemon writes */
    uint64_t gone_since_ns;
    /* Where it stands: the next event it must get. */
    uint64_t step;
    uint32_t index;
    struct item queue[QUEUE_MAX]; /* oldest first */
    uint32_t queue_count;
    struct item kept[QUEUE_MAX]; /* worked on, not let go */
    uint32_t kept_count;
    uint64_t acknowledged; /* first step without an acknowledged commit */
    uint64_t claim;        /* the same, as far as this process knows; 0: nothing */
    uint64_t claim_generation;
    uint64_t written; /* likewise, as the daemon wrote it: no process need have heard it */
    uint64_t written_generation;
    uint64_t told; /* first step without a commit that was sent */
    bool committing;
    uint64_t commit_step;
    bool seeking;   /* the job goes back, or on, to seek_step */
    bool importing; /* ... and this rank brings the state along */
    uint64_t least; /* generation that is opened there at least, as ranks agree where one imports */
    uint64_t seek_step;
    uint32_t seek_stream;
    uint32_t heard_from; /* frames of streams before this one are of what was given up */
    bool generation_known;
    uint64_t generation;
    bool ended;    /* EndOfData came */
    bool bordered; /* the mesh ends at its step */
    bool anywhere; /* the next stream begins where the daemon says */
    bool leaves;   /* for good, when nothing is left to be acknowledged */
    bool gone;     /* it has */
    uint64_t busy_ns, stuck_ns, reconnect_ns;
};

static struct rank ranks[SIM_RANKS_MAX];
static struct rank_place ranks_mesh; /* sizes */
static uint32_t rank_count;
static uint8_t inputs[2][SIM_RANKS_MAX][INPUT_BYTES];
static uint8_t copies[SIM_RANKS_MAX][COPY_BYTES];

#define SAY(rank, ...)                                                                             \
    do {                                                                                           \
        if (sim.verbose) {                                                                         \
            char said[200];                                                                        \
            (void)snprintf(said, sizeof said, __VA_ARGS__);                                        \
            sim_say("rank %u: %s", (rank)->number, said);                                          \
        }                                                                                          \
    } while (0)

static uint32_t per_step(uint64_t step) {
    return sim_case->plans[step]->micro_batch_count / sim_case->plans[step]->dp;
}

static struct rank_place mesh_of(uint64_t step) {
    const struct step_plan *plan = sim_case->plans[step];
    return (struct rank_place){.dp = plan->dp, .pp = plan->pp, .cp = plan->cp, .tp = plan->tp};
}

bool sim_ranks_are_of(const struct rank_place *mesh) {
    return memcmp(mesh, &ranks_mesh, sizeof ranks_mesh) == 0;
}

/* Whether the mesh ends with the step before. */
static bool is_border(uint64_t step) {
    struct rank_place before = mesh_of(step - 1), after = mesh_of(step);
    return memcmp(&before, &after, sizeof before) != 0;
}

static void ranks_make(const struct rank_place *mesh) {
    uint32_t within = mesh->pp * mesh->cp * mesh->tp;
    ranks_mesh = *mesh;
    rank_count = mesh->dp * within;
    assert(rank_count <= SIM_RANKS_MAX);
    for (uint32_t i = 0; i < rank_count; i++) {
        uint32_t rest = i % within;
        struct rank *rank = &ranks[i];
        *rank = (struct rank){.number = i,
                              .place = {.dp = i / within,
                                        .pp = rest / (mesh->cp * mesh->tp),
                                        .cp = rest / mesh->tp % mesh->cp,
                                        .tp = rest % mesh->tp},
                              .commit_every = sim_between(0, 2) == 0 ? sim_between(2, 4) : 1,
                              .credits_max = sim_between(1, sim.credits),
                              .think_ms_max = sim_between(0, 1) * sim_between(0, 20),
                              .reconnect_ns = sim.now_ns + sim_between(0, 20) * SIM_MS,
                              .gone_since_ns = sim.now_ns,
                              .leaves = sim_between(0, 1) == 0};
        rank->subscribed = rank->place.pp == 0 || sim_between(0, 1) == 0;
        rank->fetches = rank->subscribed && sim_between(0, 2) == 0;
    }
}

void sim_ranks_open(void) {
    const struct rank_place mesh = mesh_of(0);
    ranks_make(&mesh);
}

void sim_ranks_close(void) {
    for (uint32_t i = 0; i < rank_count; i++) {
        if (ranks[i].wire != NULL) {
            sim_wire_close(ranks[i].wire);
            ranks[i].wire = NULL;
        }
    }
}

void sim_ranks_change(const struct rank_place *mesh, uint64_t committed_step, uint64_t since_ns) {
    sim_say("ranks of another mesh begin");
    sim_ranks_close();
    ranks_make(mesh);
    for (uint32_t i = 0; i < rank_count; i++) {
        ranks[i].anywhere = true;
        ranks[i].gone_since_ns = since_ns;
        ranks[i].acknowledged = ranks[i].told = committed_step;
    }
}

uint32_t sim_rank_count(void) {
    return rank_count;
}

uint64_t sim_rank_told_step(uint32_t i) {
    return ranks[i].told;
}

uint64_t sim_rank_acknowledged(uint32_t i, uint64_t generation) {
    return ranks[i].written_generation == generation ? ranks[i].written : 0;
}

uint64_t sim_rank_gone_since_ns(uint32_t i) {
    const struct rank *rank = &ranks[i];
    bool cut = rank->wire != NULL && rank->wire->daemon_gone;
    return cut && rank->gone_since_ns == SIM_NEVER ? 0 : rank->gone_since_ns;
}

bool sim_rank_over(uint32_t i) {
    const struct rank *rank = &ranks[i];
    return rank->ended && !rank->seeking && rank->queue_count == 0 && rank->kept_count == 0 &&
           !rank->committing;
}

/* Saying */

static void rank_frame(struct rank *rank, uint32_t stream, enum frame_type type, uint8_t flags,
                       const ProtobufCMessage *message) {
    static uint8_t frame[FRAME_HEADER_BYTES + MESSAGE_BYTES + 1024];
    size_t bytes = message == NULL ? 0 : protobuf_c_message_get_packed_size(message);
    assert(bytes <= MESSAGE_BYTES + 1024);
    if (message != NULL) {
        (void)protobuf_c_message_pack(message, frame + FRAME_HEADER_BYTES);
    }
    const struct frame_header header = {
        .length = (uint32_t)bytes, .stream = stream, .type = (uint8_t)type, .flags = flags};
    frame_header_encode(&header, frame);
    sim_wire_send(rank->wire, frame, FRAME_HEADER_BYTES + bytes);
}

static uint32_t rank_call(struct rank *rank, const char *method, uint8_t flags,
                          const ProtobufCMessage *message) {
    static uint8_t payload[MESSAGE_BYTES];
    assert(protobuf_c_message_get_packed_size(message) <= sizeof payload);
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    uint32_t stream = rank->next_stream;
    request.service = (char *)SESSION_LOADER;
    request.method = (char *)method;
    request.payload.data = payload;
    request.payload.len = protobuf_c_message_pack(message, payload);
    rank->next_stream += 2;
    rank_frame(rank, stream, FRAME_REQUEST, flags, &request.base);
    return stream;
}

static void rank_connect(struct rank *rank) {
    Ballast__V1__HelloRequest hello = BALLAST__V1__HELLO_REQUEST__INIT;
    Ballast__V1__Rank place = BALLAST__V1__RANK__INIT;
    Ballast__V1__Part part = rank->subscribed ? BALLAST__V1__PART__PART_TOKENS
                                              : BALLAST__V1__PART__PART_PLAN;
    rank->wire = sim_wire_connect(rank->number);
    if (rank->wire == NULL) {
        rank->reconnect_ns = sim.now_ns + sim_between(5, 100) * SIM_MS;
        return;
    }
    rank->connection++;
    rank->life = sim.lives;
    rank->next_stream = 1;
    rank->stream = 0;
    rank->commit_stream = 0;
    rank->fetch_stream = 0;
    frame_reader_init(&rank->input, inputs[0][rank->number], INPUT_BYTES);
    frame_reader_init(&rank->watch, inputs[1][rank->number], INPUT_BYTES);
    place.dp = rank->place.dp;
    place.pp = rank->place.pp;
    place.cp = rank->place.cp;
    place.tp = rank->place.tp;
    hello.protocol_min = hello.protocol_max = SESSION_PROTOCOL;
    hello.rank = &place;
    hello.n_parts = 1;
    hello.parts = &part;
    hello.committed_step = sim.claims ? rank->claim : 0;
    hello.generation = rank->claim_generation;
    rank->hello_stream = rank_call(rank, "Hello", 0, &hello.base);
}

static void rank_commit(struct rank *rank, uint64_t step) {
    Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
    request.step = step;
    rank->committing = true;
    rank->commit_step = step;
    if (rank->wire != NULL && rank->hello_stream == 0) {
        SAY(rank, "commits %llu", (unsigned long long)step);
        rank->told = step + 1 > rank->told ? step + 1 : rank->told;
        rank->commit_stream = rank_call(rank, "Commit", 0, &request.base);
    }
}

static void rank_open_stream(struct rank *rank) {
    Ballast__V1__StreamRequest first = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId from = BALLAST__V1__BATCH_ID__INIT;
    from.step = rank->step;
    from.dp = rank->place.dp;
    from.index = rank->index;
    first.from = &from;
    uint32_t waiting = rank->kept_count;
    for (uint32_t i = 0; i < rank->queue_count; i++) {
        waiting += rank->queue[i].kind == ITEM_BATCH;
    }
    first.credits = rank->credits_max > waiting ? rank->credits_max - waiting : 0;
    SAY(rank, "streams from %llu.%u", (unsigned long long)rank->step, rank->index);
    rank->stream = rank_call(rank, "Stream", FRAME_REMOTE_OPEN, &first.base);
}

static void rank_import(struct rank *rank) {
    Ballast__V1__ImportRequest request = BALLAST__V1__IMPORT_REQUEST__INIT;
    request.state.data = sim_world_blob(rank->seek_step, rank->least - 1, &request.state.len);
    request.generation = rank->least;
    SAY(rank, "imports %llu", (unsigned long long)rank->seek_step);
    rank->seek_stream = rank_call(rank, "Import", 0, &request.base);
    free(request.state.data);
}

static void rank_seek(struct rank *rank) {
    Ballast__V1__SeekRequest request = BALLAST__V1__SEEK_REQUEST__INIT;
    request.step = rank->seek_step;
    request.generation = rank->least;
    rank->stream = rank->commit_stream = rank->fetch_stream = 0;
    rank->heard_from = rank->next_stream;
    if (rank->importing) {
        rank_import(rank);
        return;
    }
    SAY(rank, "seeks %llu", (unsigned long long)rank->seek_step);
    rank->seek_stream = rank_call(rank, "Seek", 0, &request.base);
}

/* Losing */

static void rank_lost(struct rank *rank, bool cut) {
    if (rank->wire == NULL) {
        return;
    }
    if (!rank->wire->daemon_gone) {
        rank->gone_since_ns = rank->gone_since_ns == SIM_NEVER ? sim.now_ns : rank->gone_since_ns;
    } else if (rank->life == sim.lives && sim.daemon != NULL) {
        rank->gone_since_ns = 0;
    }
    if (cut) {
        sim_wire_cut(rank->wire);
    } else {
        sim_wire_close(rank->wire);
    }
    SAY(rank, "is without a connection");
    rank->wire = NULL;
    rank->hello_stream = rank->stream = rank->commit_stream = rank->seek_stream = 0;
    rank->fetch_stream = 0;
    rank->heard_from = 0;
    rank->reconnect_ns = sim.now_ns + sim_between(0, 60) * SIM_MS;
    /* Batches that were kept only to be let go are let go. */
    rank->kept_count = 0;
}

void sim_rank_cut(uint32_t i) {
    ranks[i].gone_since_ns = 0;
}

void sim_rank_lose(uint32_t i) {
    rank_lost(&ranks[i], true);
}

void sim_rank_stick(uint32_t i, uint64_t until_ns) {
    ranks[i].stuck_ns = until_ns;
}

/* Whether the last commit of its mesh, or of the data, was acknowledged. */
static bool rank_is_done(const struct rank *rank) {
    uint64_t step = rank->acknowledged;
    return step == sim_case->count || (step > 0 && rank->step == step && is_border(step));
}

static void rank_leave(struct rank *rank) {
    SAY(rank, "is gone");
    rank->ended = rank->acknowledged == sim_case->count;
    rank->gone = true;
    rank->queue_count = 0;
    rank_lost(rank, false);
}

void sim_rank_kill(uint32_t i) {
    struct rank *rank = &ranks[i];
    if (rank->gone) {
        return;
    }
    SAY(rank, "is killed");
    rank_lost(rank, sim_between(0, 1) == 0);
    rank->queue_count = 0;
    rank->committing = false;
    rank->ended = false;
    rank->bordered = false;
    rank->generation_known = false;
    rank->claim = 0;
    rank->step = rank->acknowledged;
    rank->index = 0;
    rank->anywhere = sim_between(0, 2) == 0;
    rank->reconnect_ns = sim.now_ns + sim_between(0, 500) * SIM_MS;
}

/* It gives up all it had, to go through it again. */
static void rank_give_up(struct rank *rank, uint64_t step) {
    rank->queue_count = 0;
    rank->fetch_stream = 0;
    rank->kept_count = 0;
    rank->committing = false;
    rank->ended = false;
    rank->bordered = false;
    rank->anywhere = false;
    rank->seeking = true;
    rank->seek_step = rank->step = step;
    rank->index = 0;
    rank->acknowledged = step;
    rank->claim = 0;
    rank->written = 0;
    rank->gone = false;
    rank->importing = false;
    rank->least = 0;
    sim_excuse(rank->number);
}

bool sim_ranks_rewind(bool import) {
    uint64_t most = 0;
    uint32_t importer = import ? sim_between(0, rank_count - 1) : rank_count;
    for (uint32_t i = 0; i < rank_count; i++) {
        if (ranks[i].seeking) {
            return false;
        }
        most = ranks[i].told > most ? ranks[i].told : most;
    }
    most = most < sim_case->count ? most : sim_case->count - 1;
    uint64_t step = sim_between(0, (uint32_t)most);
    for (uint32_t i = 0; i < rank_count; i++) {
        struct rank *rank = &ranks[i];
        rank_give_up(rank, step);
        rank->importing = i == importer;
        rank->least = import ? sim_disk.generation + 1 : 0;
        if (rank->wire == NULL) {
            rank->reconnect_ns = sim.now_ns + sim_between(0, 60) * SIM_MS;
        } else if (sim_between(0, 1) == 0) {
            rank_lost(rank, false);
        } else if (rank->hello_stream == 0) {
            rank_seek(rank);
        }
    }
    return true;
}

void sim_ranks_daemon_died(void) {
    for (uint32_t i = 0; i < rank_count; i++) {
        ranks[i].gone_since_ns = sim.now_ns;
    }
}

/* Ends its stream and opens another; what it had not worked on comes again. */
static void rank_open_anew(struct rank *rank) {
    SAY(rank, "opens its stream anew");
    rank_frame(rank, rank->stream, FRAME_DATA, FRAME_REMOTE_CLOSED | FRAME_NO_DATA, NULL);
    rank->heard_from = rank->next_stream;
    rank->fetch_stream = 0;
    if (rank->queue_count > 0) {
        rank->step = rank->queue[0].step;
        rank->index = rank->queue[0].index;
        rank->queue_count = 0;
    }
    rank_open_stream(rank);
}

/* Goes back to a batch that was lost; everything after it comes again. */
static void rank_rewind(struct rank *rank, const struct item *item) {
    struct item lost = *item;
    SAY(rank, "goes back to %llu.%u, which it no longer has", (unsigned long long)lost.step,
        lost.index);
    rank_lost(rank, false);
    rank->queue_count = 0;
    rank->ended = false;
    rank->bordered = false;
    rank->step = lost.step;
    rank->index = lost.index;
}

/* Looking at batches */

static const uint8_t *item_slot(const struct item *item) {
    return sim.daemon->slab.memory.base + item->offset;
}

/* Whether the slot is still the item's; wrong bytes under the right generation are never right. */
static bool item_intact(const struct rank *rank, const struct item *item) {
    if (item->bytes == 0 || item->life != sim.lives || sim.daemon == NULL ||
        sim.daemon->slab.memory.base == NULL) {
        return true; /* the mapping of a daemon that is gone stays as it is */
    }
    uint64_t generation = atomic_load(
        &((const struct slot_header *)(const void *)item_slot(item))->generation);
    bool held = item->connection == rank->connection && rank->wire != NULL &&
                !rank->wire->daemon_gone && rank->generation == sim.daemon->generation.number;
    if (generation != item->generation) {
        sim_check(!held, "rank %u holds step %llu.%u and its slot is reused", rank->number,
                  (unsigned long long)item->step, item->index);
        return false;
    }
    sim_check(sim_world_payload(item->plan, item->micro_batch, item_slot(item) + SLOT_HEADER_BYTES,
                                item->bytes),
              "rank %u, step %llu.%u: other bytes under its generation", rank->number,
              (unsigned long long)item->step, item->index);
    return true;
}

static void check_documents(const struct rank *rank, const Ballast__V1__Batch *batch,
                            const struct item *item) {
    const struct document *documents = &item->plan->documents[item->micro_batch->document_begin];
    sim_check(batch->plan->n_documents == item->micro_batch->document_count,
              "rank %u, step %llu.%u: %zu documents instead of %u", rank->number,
              (unsigned long long)item->step, item->index, batch->plan->n_documents,
              item->micro_batch->document_count);
    for (size_t i = 0; i < batch->plan->n_documents; i++) {
        const Ballast__V1__Document *got = batch->plan->documents[i];
        sim_check(got->dataset == documents[i].dataset && got->document == documents[i].document &&
                      got->offset == documents[i].offset && got->length == documents[i].length,
                  "rank %u, step %llu.%u: another document", rank->number,
                  (unsigned long long)item->step, item->index);
    }
}

static void check_digest(const struct rank *rank, uint64_t step, const ProtobufCBinaryData *got) {
    sim_check(step < sim_case->count, "rank %u got step %llu of %llu", rank->number,
              (unsigned long long)step, (unsigned long long)sim_case->count);
    sim_check(got->len == PLAN_DIGEST_BYTES &&
                  memcmp(got->data, sim_case->plans[step]->digest, PLAN_DIGEST_BYTES) == 0,
              "rank %u, step %llu: another digest", rank->number, (unsigned long long)step);
}

/* Hearing */

static struct item *rank_queue(struct rank *rank, enum item_kind kind) {
    assert(rank->queue_count < QUEUE_MAX);
    struct item *item = &rank->queue[rank->queue_count++];
    *item = (struct item){.kind = kind,
                          .step = rank->step,
                          .index = rank->index,
                          .life = rank->life,
                          .connection = rank->connection};
    return item;
}

static void rank_take_batch(struct rank *rank, const Ballast__V1__Batch *batch) {
    sim_check(batch->id->step == rank->step && batch->id->index == rank->index &&
                  batch->id->dp == rank->place.dp,
              "rank %u got step %llu.%u instead of %llu.%u", rank->number,
              (unsigned long long)batch->id->step, batch->id->index, (unsigned long long)rank->step,
              rank->index);
    check_digest(rank, rank->step, &batch->plan_digest);
    struct item *item = rank_queue(rank, ITEM_BATCH);
    item->plan = sim_case->plans[rank->step];
    item->micro_batch = step_plan_micro_batch(item->plan, rank->place.dp, rank->index);
    item->offset = batch->slab_offset;
    item->bytes = batch->slab_bytes;
    item->generation = batch->slot_generation;
    check_documents(rank, batch, item);
    sim_check((item->bytes > 0) == (rank->subscribed && item->micro_batch->document_count > 0),
              "rank %u, step %llu.%u: %llu bytes", rank->number, (unsigned long long)item->step,
              item->index, (unsigned long long)item->bytes);
    rank->index++;
}

static void rank_take_event(struct rank *rank, const Ballast__V1__StreamResponse *event) {
    switch (event->event_case) {
    case BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH:
        rank_take_batch(rank, event->batch);
        break;
    case BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP:
        sim_check(event->end_of_step->step == rank->step && rank->step < sim_case->count &&
                      rank->index == per_step(rank->step),
                  "rank %u got the end of step %llu at %llu.%u", rank->number,
                  (unsigned long long)event->end_of_step->step, (unsigned long long)rank->step,
                  rank->index);
        check_digest(rank, rank->step, &event->end_of_step->plan_digest);
        (void)rank_queue(rank, ITEM_END_OF_STEP);
        rank->step++;
        rank->index = 0;
        break;
    case BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA:
        sim_check(event->end_of_data->step == sim_case->count && rank->step == sim_case->count,
                  "rank %u got the end of data at step %llu of %llu", rank->number,
                  (unsigned long long)event->end_of_data->step,
                  (unsigned long long)sim_case->count);
        (void)rank_queue(rank, ITEM_END_OF_DATA);
        break;
    default:
        sim_fail("a StreamResponse without an event");
    }
}

static void rank_greeted(struct rank *rank, const Ttrpc__Response *response) {
    if (response->status != NULL) {
        sim_check(response->status->code == STATUS_ALREADY_EXISTS ||
                      response->status->code == STATUS_UNAVAILABLE,
                  "rank %u: Hello: %s", rank->number, response->status->message);
        rank_lost(rank, false);
        rank->reconnect_ns = sim.now_ns + sim_between(50, 400) * SIM_MS;
        return;
    }
    Ballast__V1__HelloResponse *hello = ballast__v1__hello_response__unpack(
        NULL, response->payload.len, response->payload.data);
    rank->hello_stream = 0;
    if (!rank->wire->daemon_gone) { /* else the greeting is of a daemon that is no more */
        rank->gone_since_ns = SIM_NEVER;
    }
    if (rank->generation_known && rank->generation != hello->generation && !rank->seeking) {
        rank_give_up(rank, hello->generation_step);
    }
    if (!rank->seeking) {
        rank->generation_known = true;
        rank->generation = hello->generation;
    }
    if (rank->anywhere) {
        rank->step = hello->next_step;
        rank->index = 0;
        rank->anywhere = false;
    }
    ballast__v1__hello_response__free_unpacked(hello, NULL);
    if (rank->seeking) {
        rank_seek(rank);
        return;
    }
    if (rank->committing) {
        rank_commit(rank, rank->commit_step);
    }
    if (!rank->ended) {
        rank_open_stream(rank);
    }
}

static void rank_sought(struct rank *rank, const Ttrpc__Response *response) {
    rank->seek_stream = 0;
    if (response->status != NULL) {
        int32_t code = response->status->code;
        SAY(rank, "may not: %s", response->status->message);
        sim_check(code == STATUS_UNAVAILABLE || code == STATUS_ABORTED ||
                      code == STATUS_FAILED_PRECONDITION || code == STATUS_RESOURCE_EXHAUSTED,
                  "rank %u: seek of %llu: %s", rank->number, (unsigned long long)rank->seek_step,
                  response->status->message);
        sim_check(code != STATUS_FAILED_PRECONDITION ||
                      strstr(response->status->message, "ranks must seek the same step") != NULL,
                  "rank %u: seek of %llu: %s", rank->number, (unsigned long long)rank->seek_step,
                  response->status->message);
        rank->seeking = code == STATUS_UNAVAILABLE || code == STATUS_RESOURCE_EXHAUSTED;
        rank->generation_known = rank->seeking && rank->generation_known;
        rank->anywhere |= code == STATUS_FAILED_PRECONDITION; /* the others are elsewhere */
        if (code == STATUS_ABORTED) { /* to the one that it will be told of */
            rank->generation_known = true;
            rank->generation = UINT64_MAX;
        }
        rank_lost(rank, false);
        return;
    }
    /* The fields of ImportResponse are these too. */
    Ballast__V1__SeekResponse *sought = ballast__v1__seek_response__unpack(
        NULL, response->payload.len, response->payload.data);
    sim_check(sought->next_step == rank->seek_step, "rank %u sought %llu and is at %llu",
              rank->number, (unsigned long long)rank->seek_step,
              (unsigned long long)sought->next_step);
    struct rank_place mesh = mesh_of(sought->next_step);
    if (sought->plan_digest.len > 0 || sim_ranks_are_of(&mesh)) { /* of another mesh: not yet */
        check_digest(rank, sought->next_step, &sought->plan_digest);
    }
    rank->seeking = false;
    if (rank->seek_step < rank->told) { /* it hears this late: it may have been cut meanwhile */
        sim_excuse(rank->number);
    }
    rank->told = rank->step = rank->seek_step; /* killed, it may have been elsewhere meanwhile */
    rank->index = 0;
    rank->generation_known = true;
    rank->generation = sought->generation;
    ballast__v1__seek_response__free_unpacked(sought, NULL);
    rank_open_stream(rank);
}

static bool sim_rewinds(void) {
    return sim.faults.rewind > 0 || sim.faults.import > 0 || sim.faults.lose_node > 0;
}

/* Whether there is the next mesh by now, or a seek. */
static void rank_ask_again(struct rank *rank) {
    rank_lost(rank, false);
    rank->reconnect_ns = sim.now_ns + sim_between(50, 400) * SIM_MS;
}

static void rank_acknowledged(struct rank *rank, const Ttrpc__Response *response) {
    rank->commit_stream = 0;
    if (response->status != NULL && response->status->code == STATUS_ABORTED) {
        sim_check(sim_rewinds(), "rank %u: %s", rank->number, response->status->message);
        rank_lost(rank, false);
        return;
    }
    if (response->status != NULL) {
        sim_check(response->status->code == STATUS_RESOURCE_EXHAUSTED && sim.faults.disk_full > 0,
                  "rank %u: commit of %llu: %s", rank->number,
                  (unsigned long long)rank->commit_step, response->status->message);
        rank_commit(rank, rank->commit_step);
        rank->stuck_ns = sim.now_ns + sim_between(1, 200) * SIM_MS;
        return;
    }
    rank->committing = false;
    if (rank->commit_step + 1 > rank->acknowledged) {
        rank->acknowledged = rank->commit_step + 1;
    }
    if (rank->claim_generation != rank->generation || rank->claim <= rank->commit_step) {
        rank->claim = rank->commit_step + 1;
        rank->claim_generation = rank->generation;
    }
    if (rank->leaves && rank_is_done(rank)) {
        rank_leave(rank);
    } else if (rank->bordered && rank->stream == 0) {
        rank_ask_again(rank);
    }
}

static bool status_expected(int32_t code) {
    return code == STATUS_UNAVAILABLE || code == STATUS_DEADLINE_EXCEEDED ||
           (code == STATUS_ABORTED && sim_rewinds()) ||
           (code == STATUS_DATA_LOSS && sim.faults.read_error > 0);
}

/* One more piece of queue[0]. */
static void rank_copy(struct rank *rank, const uint8_t *data, size_t bytes) {
    Ballast__V1__FetchResponse *piece = ballast__v1__fetch_response__unpack(NULL, bytes, data);
    sim_check(piece != NULL && piece->payload.len <= COPY_BYTES - rank->copied,
              "rank %u: too much is fetched", rank->number);
    memcpy(copies[rank->number] + rank->copied, piece->payload.data, piece->payload.len);
    rank->copied += piece->payload.len;
    ballast__v1__fetch_response__free_unpacked(piece, NULL);
}

/* All of it, or why not: what a rank holds can be fetched until its generation is over. */
static void rank_fetched(struct rank *rank, const Ttrpc__Response *response) {
    struct item *item = &rank->queue[0];
    rank->fetch_stream = 0;
    if (response->status != NULL) {
        int32_t code = response->status->code;
        sim_check(sim_rewinds() && (code == STATUS_CANCELLED || code == STATUS_NOT_FOUND),
                  "rank %u: fetching step %llu.%u: %s", rank->number,
                  (unsigned long long)item->step, item->index, response->status->message);
        rank_rewind(rank, item);
        return;
    }
    sim_check(rank->copied == item->bytes && sim_world_payload(item->plan, item->micro_batch,
                                                               copies[rank->number], item->bytes),
              "rank %u, step %llu.%u: other bytes were fetched", rank->number,
              (unsigned long long)item->step, item->index);
    item->fetched = true;
    sim_count_fetch();
}

static void rank_hear_response(struct rank *rank, const struct frame_header *header,
                               const uint8_t *data) {
    Ttrpc__Response *response = ttrpc__response__unpack(NULL, header->length, data);
    sim_check(response != NULL, "rank %u: a Response that cannot be read", rank->number);
    if (header->stream < rank->heard_from) {
        SAY(rank, "no longer hears stream %u", header->stream);
    } else if (header->stream == rank->seek_stream) {
        rank_sought(rank, response);
    } else if (header->stream == rank->hello_stream) {
        rank_greeted(rank, response);
    } else if (header->stream == rank->commit_stream) {
        rank_acknowledged(rank, response);
    } else if (header->stream == rank->fetch_stream) {
        rank_fetched(rank, response);
    } else if (header->stream == rank->stream && response->status != NULL &&
               response->status->code == STATUS_FAILED_PRECONDITION) {
        sim_check(rank->index == 0 && rank->step > 0 && rank->step < sim_case->count &&
                      is_border(rank->step),
                  "rank %u, step %llu: %s", rank->number, (unsigned long long)rank->step,
                  response->status->message);
        bool first = !rank->bordered;
        if (first) {
            (void)rank_queue(rank, ITEM_END_OF_MESH);
        }
        rank->bordered = true;
        rank->stream = 0;
        if (!first || !rank->fetches) { /* else it has to fetch yet, on this connection */
            rank_ask_again(rank);
        }
    } else if (header->stream == rank->stream) {
        sim_check(response->status != NULL && status_expected(response->status->code),
                  "rank %u: the stream ends: %s", rank->number,
                  response->status == NULL ? "without a status" : response->status->message);
        rank_lost(rank, false);
    } else {
        sim_fail("rank %u: a Response that nobody waits for", rank->number);
    }
    ttrpc__response__free_unpacked(response, NULL);
}

static void rank_hear(struct rank *rank) {
    struct frame_header header;
    const uint8_t *data;
    size_t room;
    uint8_t *space = frame_reader_space(&rank->input, &room);
    frame_reader_fill(&rank->input,
                      sim_wire_receive(rank->wire, space, sim_between(1, (uint32_t)room)));
    while (rank->wire != NULL && frame_reader_next(&rank->input, &header, &data, NULL) == 1) {
        if (header.type == FRAME_RESPONSE) {
            rank_hear_response(rank, &header, data);
            continue;
        }
        if (header.stream < rank->heard_from) {
            continue;
        }
        if (header.stream == rank->fetch_stream) {
            rank_copy(rank, data, header.length);
            continue;
        }
        sim_check(header.type == FRAME_DATA && header.stream == rank->stream,
                  "rank %u: a frame of type %u", rank->number, header.type);
        Ballast__V1__StreamResponse *event = ballast__v1__stream_response__unpack(
            NULL, header.length, data);
        rank_take_event(rank, event);
        ballast__v1__stream_response__free_unpacked(event, NULL);
    }
}

/* What a rank commits it no longer holds. */
static void check_released(const struct rank *rank) {
    const struct server *server = &sim.daemon->server;
    for (uint32_t c = 0; c < server->conn_count; c++) {
        const struct session *session = &server->conns[c]->session;
        bool own = session->member == &sim.daemon->roster.members[rank->number];
        for (uint32_t h = 0; own && h < session->held_count; h++) {
            sim_check(session->held[h].step > rank->commit_step,
                      "rank %u has committed %llu, its slot of step %llu is held", rank->number,
                      (unsigned long long)rank->commit_step,
                      (unsigned long long)session->held[h].step);
        }
    }
}

static void check_acknowledged(struct rank *rank, const struct frame_header *header,
                               const uint8_t *data) {
    Ttrpc__Response *response = ttrpc__response__unpack(NULL, header->length, data);
    sim_check(response->status != NULL || sim_disk_durable_step() > rank->commit_step,
              "the commit of step %llu is acknowledged, rows are durable to %llu",
              (unsigned long long)rank->commit_step, (unsigned long long)sim_disk.rows_end);
    if (response->status == NULL && sim.daemon != NULL) {
        check_released(rank);
    }
    if (response->status == NULL &&
        (rank->written_generation != rank->generation || rank->written <= rank->commit_step)) {
        rank->written = rank->commit_step + 1;
        rank->written_generation = rank->generation;
    }
    ttrpc__response__free_unpacked(response, NULL);
}

/* What the daemon writes, as it writes it: an acknowledged commit is on the disk by now. */
void sim_rank_sent(const struct sim_wire *wire, const uint8_t *bytes, size_t count) {
    struct rank *rank = &ranks[wire->rank];
    struct frame_header header;
    const uint8_t *data;
    if (rank->wire != wire) {
        return;
    }
    while (count > 0) {
        size_t room;
        uint8_t *space = frame_reader_space(&rank->watch, &room);
        size_t part = count < room ? count : room;
        memcpy(space, bytes, part);
        frame_reader_fill(&rank->watch, part);
        bytes += part;
        count -= part;
        while (frame_reader_next(&rank->watch, &header, &data, NULL) == 1) {
            if (header.type == FRAME_RESPONSE && rank->commit_stream != 0 &&
                header.stream == rank->commit_stream) {
                check_acknowledged(rank, &header, data);
            }
        }
    }
}

/* Working */

/* A batch was let go: its credit comes back, and with `id` its slot. */
static void rank_release(struct rank *rank, const struct item *item) {
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    Ballast__V1__BatchId *released[] = {&id};
    if (rank->wire == NULL || rank->stream == 0) {
        return;
    }
    request.credits = 1;
    if (item->connection == rank->connection) {
        id.step = item->step;
        id.dp = rank->place.dp;
        id.index = item->index;
        request.n_released = 1;
        request.released = released;
    }
    rank_frame(rank, rank->stream, FRAME_DATA, 0, &request.base);
}

static bool everybody_has(const struct rank *one, const struct item *item) {
    for (uint32_t i = 0; i < rank_count; i++) {
        const struct rank *rank = &ranks[i];
        if (rank->place.dp == one->place.dp && rank->subscribed && !rank->ended &&
            (rank->step < item->step || (rank->step == item->step && rank->index <= item->index))) {
            return false;
        }
    }
    return true;
}

/* The kept batch that may be let go now; kept_count: none. */
static uint32_t rank_releasable(const struct rank *rank) {
    if (!sim.peace || !sim.polite) {
        return 0;
    }
    for (uint32_t i = 0; i < rank->kept_count; i++) {
        if (everybody_has(rank, &rank->kept[i])) {
            return i;
        }
    }
    return rank->kept_count;
}

static void rank_let_go(struct rank *rank, uint32_t i) {
    struct item item = rank->kept[i];
    rank->kept[i] = rank->kept[--rank->kept_count];
    (void)item_intact(rank, &item);
    rank_release(rank, &item);
}

/* Asks for queue[0], or for its batch anew where it is no longer held. */
static void rank_fetch(struct rank *rank) {
    const struct item *item = &rank->queue[0];
    Ballast__V1__FetchRequest request = BALLAST__V1__FETCH_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    if (rank->wire == NULL || item->connection != rank->connection) {
        rank_rewind(rank, item);
        return;
    }
    id.step = item->step;
    id.dp = rank->place.dp;
    id.index = item->index;
    request.id = &id;
    rank->copied = 0;
    rank->fetch_stream = rank_call(rank, "Fetch", 0, &request.base);
}

static void rank_work_on(struct rank *rank) {
    struct item item = rank->queue[0];
    if (item.kind == ITEM_BATCH && rank->fetches && item.bytes > 0 && !item.fetched) {
        rank_fetch(rank);
        return;
    }
    if (item.kind == ITEM_BATCH && !item.fetched && !item_intact(rank, &item)) {
        rank_rewind(rank, &item);
        return;
    }
    assert(item.kind == ITEM_BATCH || rank->kept_count == 0);
    rank->queue_count--;
    memmove(&rank->queue[0], &rank->queue[1], rank->queue_count * sizeof rank->queue[0]);
    switch (item.kind) {
    case ITEM_BATCH:
        rank->kept[rank->kept_count++] = item;
        rank->busy_ns = sim.now_ns + sim_between(0, rank->think_ms_max) * SIM_MS;
        break;
    case ITEM_END_OF_STEP:
        if ((item.step + 1) % rank->commit_every == 0) {
            rank_commit(rank, item.step);
        }
        break;
    case ITEM_END_OF_MESH: /* once more, if need be: nobody commits a later step of this mesh */
        rank_commit(rank, item.step - 1);
        break;
    case ITEM_END_OF_DATA:
        rank->ended = true;
        if (rank->acknowledged < item.step) {
            rank_commit(rank, item.step - 1);
        }
        break;
    }
}

/* Whether it has something to work on or to let go. */
static bool rank_can_work(const struct rank *rank) {
    if (sim.now_ns < rank->busy_ns || rank->committing || rank->fetch_stream != 0) {
        return false;
    }
    if (rank->queue_count > 0 && (rank->queue[0].kind == ITEM_BATCH || rank->kept_count == 0)) {
        return true;
    }
    return rank->kept_count > 0 && rank_releasable(rank) < rank->kept_count;
}

bool sim_rank_ready(uint32_t i) {
    const struct rank *rank = &ranks[i];
    if (sim.now_ns < rank->stuck_ns || rank->gone) {
        return false;
    }
    if (rank->wire == NULL && sim.now_ns >= rank->reconnect_ns &&
        (!rank->ended || rank->committing || rank->seeking)) {
        return true;
    }
    if (rank->wire != NULL && (rank->wire->to_rank.used > 0 || rank->wire->daemon_gone)) {
        return true;
    }
    return rank_can_work(rank);
}

uint64_t sim_rank_due_ns(uint32_t i) {
    const struct rank *rank = &ranks[i];
    uint64_t due_ns = SIM_NEVER;
    if (sim.now_ns < rank->stuck_ns || rank->gone) {
        return rank->gone ? SIM_NEVER : rank->stuck_ns;
    }
    if (rank->wire == NULL && (!rank->ended || rank->committing || rank->seeking)) {
        due_ns = rank->reconnect_ns;
    }
    if (sim.now_ns < rank->busy_ns && rank->busy_ns < due_ns) {
        due_ns = rank->busy_ns;
    }
    return due_ns;
}

static bool rank_may_open_anew(const struct rank *rank) {
    return rank->wire != NULL && !rank->wire->daemon_gone && rank->stream != 0 &&
           rank->hello_stream == 0 && !rank->committing && !rank->seeking && !rank->ended &&
           !rank->bordered;
}

void sim_rank_act(uint32_t i) {
    struct rank *rank = &ranks[i];
    if (rank_may_open_anew(rank) && !sim.peace && sim_chance(sim.faults.open_anew)) {
        rank_open_anew(rank);
        return;
    }
    bool works = rank_can_work(rank);
    if (works && (rank->wire == NULL || rank->wire->to_rank.used == 0 || sim_between(0, 1) == 0)) {
        bool lets_go = rank->kept_count > 0 &&
                       (rank->queue_count == 0 || rank->queue[0].kind != ITEM_BATCH ||
                        sim_between(0, 1) == 0);
        uint32_t which = rank_releasable(rank);
        if (lets_go && which < rank->kept_count) {
            rank_let_go(rank,
                        sim.peace && sim.polite ? which : sim_between(0, rank->kept_count - 1));
        } else if (rank->queue_count > 0) {
            rank_work_on(rank);
        }
    } else if (rank->wire == NULL) {
        rank_connect(rank);
    } else if (rank->wire->to_rank.used > 0) {
        rank_hear(rank);
    } else {
        rank_lost(rank, false);
    }
}
