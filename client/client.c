/* client: libballast, see ballast.h.
 *
 * The position (step, index) is the next batch to give out. It belongs to the client and not to the
 * connection, and every event from the daemon must be exactly the one that comes next, so however
 * often the daemon goes away, a rank sees each batch once and in order. Batches given out live in a
 * fixed array, one record per credit: a free record is a credit, so the daemon can never send more
 * than fits. A batch keeps its slab mapped until it is released, also over a reconnect; what its
 * slot holds by then, the generation says. */
#include "client/ballast.h"

#include "client/client.h"
#include "client/deadline.h"
#include "client/fetch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLIENT_SOCKET          "/run/ballast/ballast.sock"
#define CLIENT_SOCKET_VARIABLE "BALLAST_SOCKET"
#define CLIENT_CREDITS_MAX     1024u
#define CLIENT_EVENT_BYTES_MAX ((size_t)256 << 20) /* one frame, unpacked */
#define CLIENT_PARTS_ALL       (BALLAST_PART_PLAN | BALLAST_PART_TOKENS | BALLAST_PART_LABELS)

static int client_check_options(const struct ballast_options *options, struct error *error) {
    if (options->size != sizeof *options) {
        return error_set(error, -EINVAL,
                         "options.size is %zu, not %zu: start from BALLAST_OPTIONS_INIT and the "
                         "header that belongs to this library",
                         options->size, sizeof *options);
    }
    if (options->parts == 0 || (options->parts & ~(uint32_t)CLIENT_PARTS_ALL) != 0) {
        return error_set(error, -EINVAL, "options.parts is %u, not bits of enum ballast_part",
                         options->parts);
    }
    if (options->transport > BALLAST_TRANSPORT_FETCH) {
        return error_set(error, -EINVAL, "options.transport is %u, not of enum ballast_transport",
                         options->transport);
    }
    if (options->credits == 0 || options->credits > CLIENT_CREDITS_MAX) {
        return error_set(error, -EINVAL, "options.credits is %u, not within 1 to %u",
                         options->credits, CLIENT_CREDITS_MAX);
    }
    return 0;
}

static const char *client_socket(const struct ballast_options *options) {
    const char *path = options->socket;
    if (path == NULL) {
        path = getenv(CLIENT_SOCKET_VARIABLE);
    }
    return path == NULL || path[0] == '\0' ? CLIENT_SOCKET : path;
}

static int client_link_options(const struct ballast_options *options, struct link_options *out,
                               struct error *error) {
    const char *address = client_socket(options);
    const struct dial_given given = {.token_file = options->token_file,
                                     .certificate = options->tls_certificate,
                                     .key = options->tls_key,
                                     .ca = options->tls_ca,
                                     .name = options->tls_name};
    const char *name = options->name == NULL ? program_invocation_short_name : options->name;
    *out = (struct link_options){
        .dp = options->dp,
        .pp = options->pp,
        .cp = options->cp,
        .tp = options->tp,
        .parts = options->parts,
        .transport = options->transport,
        .connect_timeout_ms = options->connect_timeout_ms,
        .waiting = options->waiting,
        .waiting_context = options->waiting_context,
        .waiting_after_ms = options->waiting_after_ms,
        .mapping = {.map = options->map,
                    .unmap = options->unmap,
                    .context = options->map_context,
                    .prefault = options->prefault != 0},
    };
    if (strlen(address) >= sizeof out->address) {
        return error_set(error, -ENAMETOOLONG, "socket %s has %zu bytes, at most %zu fit", address,
                         strlen(address), sizeof out->address - 1);
    }
    memcpy(out->address, address, strlen(address) + 1);
    (void)snprintf(out->name, sizeof out->name, "%.96s libballast/%s", name, BALLAST_VERSION);
    if (options->job_digest != NULL) {
        memcpy(out->job_digest, options->job_digest, sizeof out->job_digest);
        out->job_known = true;
    }
    return dial_resolve(&given, &out->credentials, error);
}

static int client_create_batches(struct ballast *client, uint32_t credits) {
    client->batches = calloc(credits, sizeof *client->batches);
    client->waits = calloc(credits, sizeof *client->waits);
    if (client->batches == NULL || client->waits == NULL) {
        return error_set(&client->error, -ENOMEM, "out of memory");
    }
    client->credits = credits;
    for (uint32_t i = 0; i < credits; i++) {
        batch_init(&client->batches[i]);
    }
    return 0;
}

static uint32_t client_held(const struct ballast *client) {
    uint32_t held = 0;
    for (uint32_t i = 0; i < client->credits; i++) {
        held += client->batches[i].held;
    }
    return held;
}

static struct batch *client_free_batch(struct ballast *client) {
    for (uint32_t i = 0; i < client->credits; i++) {
        if (!client->batches[i].held) {
            return &client->batches[i];
        }
    }
    return NULL;
}

/* The record behind a batch that the caller holds, NULL for any other pointer. */
static struct batch *client_find_batch(struct ballast *client, const struct ballast_batch *view) {
    for (uint32_t i = 0; i < client->credits; i++) {
        if (&client->batches[i].view == view && client->batches[i].held) {
            return &client->batches[i];
        }
    }
    return NULL;
}

/* Every public call but ballast_close and ballast_error begins here. */
int client_enter(struct ballast *client) {
    if (client->pid != getpid()) {
        return error_set(&client->error, -EINVAL,
                         "this client belongs to process %d; after fork, open one of its own",
                         (int)client->pid);
    }
    return 0;
}

static bool client_streaming(const struct ballast *client) {
    return client->link.state == LINK_READY &&
           client->stream_connection == client->link.connections;
}

/* Of the step at the position, as far as is known. */
static uint32_t client_micro_batches(const struct ballast *client) {
    return client->micro_batches > 0 ? client->micro_batches : client->link.job.micro_batches;
}

/* Whether the daemon is in this rank's generation still; known anew with each greeting. */
static int client_check_generation(const struct ballast *client, struct error *error) {
    const struct ballast_job *job = &client->link.job;
    if (!client->greeted || client->generation == job->generation) {
        return 0;
    }
    return error_set(error, -ESTALE,
                     "%s sought step %llu, where generation %llu begins; this rank is of "
                     "generation %llu: ballast_seek that step",
                     client->link.generation_by, (unsigned long long)job->generation_step,
                     (unsigned long long)job->generation, (unsigned long long)client->generation);
}

/* What came of it is of no use without the rest, on another stream. */
static void client_drop_coming(struct ballast *client) {
    client->ahead.code = 0;
    if (client->coming != NULL) {
        call_fetch_drop(client->link.channel);
        batch_release(client->coming);
        client->coming = NULL;
    }
}

/* Tells the daemon what this rank waited, with what it is told anyway. */
static int client_stream_send(struct ballast *client, Ballast__V1__StreamRequest *request,
                              struct error *error) {
    request->waited_ns = client->waits;
    request->n_waited_ns = client->wait_count;
    int code = call_stream_send(client->link.channel, &request->base, error);
    client->wait_count = 0;
    return code;
}

/* Opens the stream of a new connection at the position, with a credit for each free record. */
static int client_open_stream(struct ballast *client, struct error *error) {
    const struct ballast_job *job = &client->link.job;
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId from = BALLAST__V1__BATCH_ID__INIT;
    int behind = client_check_generation(client, error);
    if (behind < 0) {
        return behind;
    }
    client_drop_coming(client);
    client->greeted = true;
    client->generation = job->generation;
    if (!client->placed) {
        client->step = job->next_step;
        client->index = 0;
        client->placed = true;
    }
    from.step = client->step;
    from.dp = client->link.options.dp;
    from.index = client->index;
    request.credits = client->credits - client_held(client);
    request.from = &from;
    request.reports_waits = true;
    int code = call_stream_open(client->link.channel, CLIENT_SERVICE, "Stream", error);
    if (code == 0) {
        code = client_stream_send(client, &request, error);
    }
    if (code == 0) {
        client->stream_connection = client->link.connections;
    }
    return code;
}

/* The daemon has moved on without this rank: a new greeting says where to, for ballast_job. */
static int client_moved(struct ballast *client, const struct error *why) {
    struct error sentence = *why;
    link_close(&client->link);
    (void)link_advance(&client->link, deadline_in_ms(client->link.options.connect_timeout_ms),
                       &client->error);
    return error_set(&client->error, -ESTALE, "%s", sentence.text);
}

/* What a failed call means for the connection: 0 lost, to be tried again; else the failure, after
 * which the connection is closed, since what the daemon sent is not what it should have. */
static int client_failed(struct ballast *client, int code, const struct error *why) {
    if (link_lost(&client->link, code)) {
        link_lose(&client->link, why);
        return 0;
    }
    if (code == -ESTALE) {
        return client_moved(client, why);
    }
    link_close(&client->link);
    return error_set(&client->error, code, "%s", why->text);
}

/* Gets a stream that is open at the position: 1, 0 when the deadline passed, or negative. */
static int client_connect(struct ballast *client, int64_t deadline_ns) {
    for (;;) {
        struct error failure = {0};
        int code = link_advance(&client->link, deadline_ns, &client->error);
        if (code <= 0 || client_streaming(client)) {
            return code;
        }
        code = client_open_stream(client, &failure);
        if (code == -ESTALE) { /* a seek goes over this connection */
            return error_set(&client->error, code, "%s", failure.text);
        }
        if (code < 0) {
            code = client_failed(client, code, &failure);
        }
        if (code < 0) {
            return code;
        }
    }
}

int ballast_open(const struct ballast_options *options, struct ballast **out) {
    struct link_options link_options;
    struct ballast *client = calloc(1, sizeof *client);
    *out = client;
    if (client == NULL) {
        return -ENOMEM;
    }
    client->pid = getpid();
    client->link.data_fd = -1;
    arena_init(&client->event, CLIENT_EVENT_BYTES_MAX);
    arena_init(&client->ahead.arena, CLIENT_EVENT_BYTES_MAX);
    int code = client_check_options(options, &client->error);
    if (code == 0) {
        code = client_link_options(options, &link_options, &client->error);
    }
    if (code == 0) {
        code = client_create_batches(client, options->credits);
    }
    if (code < 0) {
        return code;
    }
    link_init(&client->link, &link_options);
    if (options->from_step != UINT64_MAX) {
        client->step = options->from_step;
        client->index = options->from_index;
        client->placed = true;
    }
    code = client_connect(client, DEADLINE_NEVER);
    return code < 0 ? code : 0;
}

void ballast_close(struct ballast *client) {
    if (client == NULL) {
        return;
    }
    for (uint32_t i = 0; i < client->credits; i++) {
        batch_deinit(&client->batches[i]);
    }
    free(client->batches);
    free(client->waits);
    link_deinit(&client->link);
    arena_deinit(&client->event);
    arena_deinit(&client->ahead.arena);
    free(client);
}

const char *ballast_error(const struct ballast *client) {
    return client == NULL ? "out of memory" : client->error.text;
}

int ballast_job(const struct ballast *client, struct ballast_job *out) {
    if (client->link.connections == 0) {
        return -ENOTCONN;
    }
    *out = client->link.job;
    return 0;
}

uint64_t ballast_step(const struct ballast *client) {
    return client->event_step;
}

const uint8_t *ballast_digest(const struct ballast *client) {
    return client->event_digest;
}

int ballast_fd(const struct ballast *client) {
    return link_fd(&client->link);
}

static int client_unexpected(const struct ballast *client, const char *what, uint64_t step,
                             uint32_t index, struct error *error) {
    return error_set(
        error, -EPROTO, "the daemon sent %s %llu.%u where step %llu, index %u comes next", what,
        (unsigned long long)step, index, (unsigned long long)client->step, client->index);
}

/* One plan per step: every digest of the step must be the same, on whatever connection it came. */
static int client_check_digest(struct ballast *client, const uint8_t *digest, struct error *error) {
    if (client->digest_known && memcmp(client->digest, digest, CLIENT_DIGEST_BYTES) != 0) {
        return error_set(error, -EPROTO, "the daemon changed its plan of step %llu midway",
                         (unsigned long long)client->step);
    }
    memcpy(client->digest, digest, CLIENT_DIGEST_BYTES);
    client->digest_known = true;
    return 0;
}

/* Gives a batch out, whose bytes are there. */
static int client_give_batch(struct ballast *client, struct batch *batch,
                             const struct ballast_batch **out, struct error *error) {
    int code = batch_verify(batch, error);
    if (code < 0) {
        batch_release(batch);
        return code;
    }
    batch->held = true;
    batch->connection = client->link.connections;
    batch->generation = client->generation;
    client->event_step = client->step;
    client->micro_batches = batch->view.micro_batches;
    client->index++;
    *out = &batch->view;
    return BALLAST_BATCH;
}

/* Makes it the one that comes: 0. */
static int client_read_batch(struct ballast *client, const Ballast__V1__BatchEnvelope *message,
                             struct error *error) {
    const Ballast__V1__BatchId *id = message->id;
    const struct link *link = &client->link;
    if (id == NULL || id->step != client->step || id->dp != link->options.dp ||
        id->index != client->index || id->index >= batch_micro_batches(message, &link->job)) {
        return client_unexpected(client, "batch", id == NULL ? 0 : id->step,
                                 id == NULL ? 0 : id->index, error);
    }
    struct batch *batch = client_free_batch(client);
    if (batch == NULL) {
        return error_set(error, -EPROTO, "the daemon sent more batches than it had credits for");
    }
    struct batch_context context = {
        .job = &link->job,
        .arena = &client->event,
        .mapping = link->mapping,
        .cp = link->options.cp,
        .slot_wanted = (link->options.parts & ~(uint32_t)BALLAST_PART_PLAN) != 0,
        .fetches = link->fetches,
    };
    int code = batch_read(batch, message, &context, error);
    if (code == 0) {
        code = client_check_digest(client, batch->view.plan_digest, error);
    }
    if (code < 0) {
        batch_release(batch);
        return code;
    }
    client->coming = batch;
    return batch_wants_fetch(batch) ? fetch_start(batch, link->channel, error) : 0;
}

/* Gives out the batch that comes, once its bytes are there: 0 when the deadline passed. */
static int client_take_batch(struct ballast *client, int64_t deadline_ns,
                             const struct ballast_batch **out, struct error *error) {
    struct batch *batch = client->coming;
    int code = 1;
    if (batch_wants_fetch(batch)) {
        code = call_fetch_finish(client->link.channel, deadline_left_ms(deadline_ns), error);
    }
    if (code != 1) {
        return code;
    }
    client->coming = NULL;
    return client_give_batch(client, batch, out, error);
}

static int client_take_end_of_step(struct ballast *client, const Ballast__V1__EndOfStep *message,
                                   struct error *error) {
    uint32_t micro_batches = message->micro_batches > 0 ? message->micro_batches
                                                        : client_micro_batches(client);
    if (message->step != client->step || client->index != micro_batches) {
        return client_unexpected(client, "the end of step", message->step, 0, error);
    }
    if (message->plan_digest.len != CLIENT_DIGEST_BYTES) {
        return error_set(error, -EPROTO, "the daemon sent a digest of %zu bytes",
                         message->plan_digest.len);
    }
    int code = client_check_digest(client, message->plan_digest.data, error);
    if (code < 0) {
        return code;
    }
    memcpy(client->event_digest, message->plan_digest.data, CLIENT_DIGEST_BYTES);
    client->event_step = client->step;
    client->step++;
    client->index = 0;
    client->micro_batches = 0;
    client->digest_known = false;
    return BALLAST_END_OF_STEP;
}

static int client_take_end_of_data(struct ballast *client, const Ballast__V1__EndOfData *message,
                                   struct error *error) {
    if (message->step != client->step || client->index != 0) {
        return client_unexpected(client, "the end of data at step", message->step, 0, error);
    }
    client->event_step = client->step;
    client->ended = true;
    return BALLAST_END_OF_DATA;
}

/* 0 when it is a batch, which then comes. */
static int client_take(struct ballast *client, const Ballast__V1__StreamEnvelope *message,
                       struct error *error) {
    switch (message->event_case) {
    case BALLAST__V1__STREAM_ENVELOPE__EVENT_BATCH:
        return client_read_batch(client, message->batch, error);
    case BALLAST__V1__STREAM_ENVELOPE__EVENT_END_OF_STEP:
        return client_take_end_of_step(client, message->end_of_step, error);
    case BALLAST__V1__STREAM_ENVELOPE__EVENT_END_OF_DATA:
        return client_take_end_of_data(client, message->end_of_data, error);
    default:
        return error_set(error, -EPROTO, "the daemon sent an event that this client does not know");
    }
}

/* The stream's next message: 1; 0 when the deadline passed. */
static int client_read(struct ballast *client, int64_t deadline_ns, ProtobufCMessage **message,
                       struct error *error) {
    struct client_ahead *ahead = &client->ahead;
    int code = ahead->code;
    ahead->code = 0;
    if (code == 0) {
        arena_reset(&client->event);
        return call_stream_next(client->link.channel, &ballast__v1__stream_envelope__descriptor,
                                &client->event, message, deadline_left_ms(deadline_ns), error);
    }
    *message = ahead->message;
    *error = ahead->error;
    return code;
}

/* The next event of the open stream, or 0 when the deadline passed. */
static int client_receive(struct ballast *client, int64_t deadline_ns,
                          const struct ballast_batch **batch, struct error *error) {
    ProtobufCMessage *message = NULL;
    int code = 0;
    if (client->coming == NULL || client->ahead.code < 0) {
        code = client_read(client, deadline_ns, &message, error);
        if (code == 1) {
            code = client_take(client, (const Ballast__V1__StreamEnvelope *)message, error);
        }
    }
    return code == 0 && client->coming != NULL
               ? client_take_batch(client, deadline_ns, batch, error)
               : code;
}

/* While the caller works on what it was just given, the daemon sends the batch behind it, as far as
 * the socket takes it: where batches are fetched, the next one that was announced is asked for now.
 * What fails is told by the call that it belongs to. */
static void client_look_ahead(struct ballast *client) {
    struct client_ahead *ahead = &client->ahead;
    if (!client->link.fetches || !client_streaming(client) || client->coming != NULL ||
        ahead->code != 0 || client->ended || client_free_batch(client) == NULL) {
        return;
    }
    arena_reset(&ahead->arena);
    int code = call_stream_next(client->link.channel, &ballast__v1__stream_envelope__descriptor,
                                &ahead->arena, &ahead->message, 0, &ahead->error);
    const Ballast__V1__StreamEnvelope *message =
        (const Ballast__V1__StreamEnvelope *)ahead->message;
    if (code == 1 && message->event_case == BALLAST__V1__STREAM_ENVELOPE__EVENT_BATCH) {
        arena_reset(&client->event);
        code = client_read_batch(client, message->batch, &ahead->error);
    }
    ahead->code = code;
}

/* The next event, or 0 when the deadline passed. */
static int client_wait(struct ballast *client, int64_t deadline_ns,
                       const struct ballast_batch **batch) {
    for (;;) {
        struct error failure = {0};
        int code = client_connect(client, deadline_ns);
        if (code <= 0) {
            return code;
        }
        code = client_receive(client, deadline_ns, batch, &failure);
        if (code == 0) {
            return 0;
        }
        if (code > 0) {
            link_progress(&client->link);
            return code;
        }
        code = client_failed(client, code, &failure);
        if (code < 0) {
            return code;
        }
    }
}

/* The first look for what comes next is no waiting: what is there already costs none. */
static void client_note_wait(struct ballast *client, struct batch *batch) {
    batch->view.waited_us = (uint64_t)client->waited_ns / 1000;
    if (client->wait_count < client->credits) {
        client->waits[client->wait_count++] = (uint64_t)client->waited_ns;
    }
}

int ballast_next(struct ballast *client, int timeout_ms, const struct ballast_batch **batch) {
    const struct ballast_batch *taken = NULL;
    int64_t begin_ns = deadline_now_ns();
    int code = client_enter(client);
    if (code < 0) {
        return code;
    }
    if (client->ended) {
        return BALLAST_END_OF_DATA;
    }
    bool stuck = client_held(client) == client->credits &&
                 (client->index == 0 || client->index < client_micro_batches(client));
    code = client_wait(client, begin_ns, &taken);
    if (code == 0 && !stuck && timeout_ms != 0) {
        code = client_wait(client, deadline_in_ms(timeout_ms), &taken);
        client->waited_ns += deadline_now_ns() - begin_ns;
    }
    if (code == 0 && stuck) {
        return error_set(&client->error, -EBUSY,
                         "all %u batches are held; release one, or open with more credits",
                         client->credits);
    }
    if (code == BALLAST_BATCH) {
        client_note_wait(client, client_find_batch(client, taken));
        *batch = taken;
    }
    if (code > 0) {
        client->waited_ns = 0;
        client_look_ahead(client);
    }
    return code;
}

/* Moves the position back to a batch whose slot was lost; the stream is opened anew from there. One
 * of an older generation is nobody's any more. */
static void client_rewind(struct ballast *client, const struct batch *record) {
    const struct ballast_batch *batch = &record->view;
    if (record->generation != client->generation || batch->step > client->step ||
        (batch->step == client->step && batch->index >= client->index)) {
        return;
    }
    client->step = batch->step;
    client->index = batch->index;
    client->micro_batches = batch->micro_batches;
    client->ended = false;
    client->digest_known = true;
    memcpy(client->digest, batch->plan_digest, CLIENT_DIGEST_BYTES);
    link_close(&client->link);
}

static int client_check_gather(struct ballast *client, const struct batch *record,
                               enum ballast_column column, enum ballast_type type) {
    uint32_t parts = client->link.options.parts;
    if (record == NULL) {
        return error_set(&client->error, -EINVAL, "this batch is not held: released already?");
    }
    if (type != BALLAST_INT32 && type != BALLAST_INT64) {
        return error_set(&client->error, -EINVAL, "type %d is neither int32 nor int64", (int)type);
    }
    if ((column == BALLAST_TOKENS && (parts & BALLAST_PART_TOKENS) == 0) ||
        (column == BALLAST_LABELS && (parts & BALLAST_PART_LABELS) == 0)) {
        return error_set(&client->error, -EINVAL, "%s were not among options.parts",
                         column == BALLAST_TOKENS ? "tokens" : "labels");
    }
    return 0;
}

int64_t ballast_gather(struct ballast *client, const struct ballast_batch *batch,
                       enum ballast_column column, enum ballast_type type, void *out,
                       size_t capacity) {
    int code = client_enter(client);
    if (code < 0) {
        return code;
    }
    const struct batch *record = client_find_batch(client, batch);
    code = client_check_gather(client, record, column, type);
    if (code < 0) {
        return code;
    }
    int64_t rows = batch_gather(record, column, type, out, capacity);
    switch (rows) {
    case -ENOBUFS:
        return error_set(&client->error, -ENOBUFS, "%llu rows do not fit a buffer of %zu",
                         (unsigned long long)batch->rows, capacity);
    case -ESTALE:
        client_rewind(client, record);
        return error_set(&client->error, -ESTALE,
                         "the slot of step %llu, index %u was reused, as this rank was too slow; "
                         "release it, it comes again",
                         (unsigned long long)batch->step, batch->index);
    default:
        return rows;
    }
}

int ballast_release(struct ballast *client, const struct ballast_batch *batch) {
    int code = client_enter(client);
    if (code < 0) {
        return code;
    }
    struct batch *record = client_find_batch(client, batch);
    if (record == NULL) {
        return error_set(&client->error, -EINVAL, "this batch is not held: released already?");
    }
    batch_release(record);
    if (!client_streaming(client)) {
        return 0; /* the next stream is opened with this credit, and knows nothing of the batch */
    }
    struct error failure = {0};
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    Ballast__V1__BatchId *released[] = {&id};
    request.credits = 1;
    if (record->connection == client->link.connections) {
        id.step = batch->step;
        id.dp = batch->dp;
        id.index = batch->index;
        request.released = released;
        request.n_released = 1;
    }
    code = client_stream_send(client, &request, &failure);
    return code < 0 ? client_failed(client, code, &failure) : 0;
}

/* Puts the times into the request; its memory is the arena's. */
static int client_put_measured(struct ballast *client, const struct ballast_measured *measured,
                               size_t count, Ballast__V1__CommitRequest *request) {
    arena_reset(&client->event);
    Ballast__V1__Measured *times = arena_array(&client->event, count, sizeof *times);
    request->measured = arena_array(&client->event, count, sizeof(Ballast__V1__Measured *));
    if (times == NULL || request->measured == NULL) {
        return error_set(&client->error, -ENOMEM, "%zu measured times: out of memory", count);
    }
    for (size_t i = 0; i < count; i++) {
        ballast__v1__measured__init(&times[i]);
        times[i].index = measured[i].index;
        times[i].attention_ns = measured[i].attention_ns;
        times[i].total_ns = measured[i].total_ns;
        times[i].expert_tokens = (uint64_t *)(uintptr_t)measured[i].expert_tokens;
        times[i].n_expert_tokens = measured[i].expert_tokens != NULL ? measured[i].experts : 0;
        request->measured[i] = &times[i];
    }
    request->n_measured = count;
    return 0;
}

/* What was acknowledged is said in every greeting from now on: a daemon that was killed may know
 * less of this rank. */
static void client_claim(struct ballast *client, uint64_t committed_step) {
    struct link_claim *claim = &client->link.claim;
    uint64_t generation = client->link.job.generation;
    if (claim->generation != generation || claim->committed_step < committed_step) {
        *claim = (struct link_claim){.committed_step = committed_step, .generation = generation};
    }
}

/* Asks until it is answered, over reconnects. */
static int client_commit(struct ballast *client, const Ballast__V1__CommitRequest *request) {
    for (;;) {
        struct error failure = {0};
        ProtobufCMessage *response = NULL;
        int code = link_advance(&client->link, DEADLINE_NEVER, &client->error);
        if (code >= 0) {
            code = client_check_generation(client, &client->error);
        }
        if (code < 0) {
            return code;
        }
        code = call_unary(client->link.channel, CLIENT_SERVICE, "Commit", &request->base,
                          &ballast__v1__commit_response__descriptor, &client->event, &response,
                          client->link.options.connect_timeout_ms, &failure);
        if (code == 0) {
            client_claim(client, request->step + 1);
            link_progress(&client->link);
            return 0;
        }
        if (code == -ESTALE) {
            return client_moved(client, &failure);
        }
        if (!link_lost(&client->link, code)) {
            return error_set(&client->error, code, "%s", failure.text);
        }
        link_lose(&client->link, &failure);
    }
}

int ballast_commit_measured(struct ballast *client, uint64_t step,
                            const struct ballast_measured *measured, size_t count) {
    Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
    int code = client_enter(client);
    if (code == 0) {
        code = client_put_measured(client, measured, count, &request);
    }
    request.step = step;
    return code == 0 ? client_commit(client, &request) : code;
}

int ballast_commit(struct ballast *client, uint64_t step) {
    return ballast_commit_measured(client, step, NULL, 0);
}
