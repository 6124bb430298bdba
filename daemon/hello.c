/* hello: Loader.Hello, which makes a connection one rank; see loader.h. */
#include "daemon/loader.h"

#include "ballast.pb-c.h"
#include "daemon/failpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

static bool hello_in_mesh(struct session *session, uint32_t stream,
                          const struct rank_place *place) {
    const struct rank_place *mesh = &session->world->roster->mesh;
    const struct {
        const char *name;
        uint32_t at, size;
    } axes[] = {{"dp", place->dp, mesh->dp},
                {"pp", place->pp, mesh->pp},
                {"cp", place->cp, mesh->cp},
                {"tp", place->tp, mesh->tp}};
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (axes[i].at >= axes[i].size) {
            session_refuse(session, stream, STATUS_INVALID_ARGUMENT,
                           "%s %u is outside the mesh of dp %u, pp %u, cp %u, tp %u", axes[i].name,
                           axes[i].at, mesh->dp, mesh->pp, mesh->cp, mesh->tp);
            return false;
        }
    }
    return true;
}

/* "0, 2, 3" of the local replicas, cut when long. */
static void hello_local_replicas(const struct roster *roster, char *out, size_t bytes) {
    size_t used = 0;
    for (uint32_t dp = 0; dp < roster->mesh.dp && used + 16 < bytes; dp++) {
        if (roster->replica_of_dp[dp] != UINT32_MAX) {
            used += (size_t)snprintf(out + used, bytes - used, "%s%u", used == 0 ? "" : ", ", dp);
        }
    }
    if (used + 16 >= bytes) {
        (void)snprintf(out + used, bytes - used, ", ...");
    }
}

static void hello_hex(const uint8_t *bytes, size_t count, char *out) {
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    }
}

static bool hello_same_job(struct session *session, uint32_t stream,
                           const ProtobufCBinaryData *digest) {
    const uint8_t *ours = session->world->job->job_digest;
    char have[33], want[33];
    if (digest->len == 0) {
        return true;
    }
    if (digest->len != 16) {
        session_refuse(session, stream, STATUS_INVALID_ARGUMENT,
                       "job_digest has %zu bytes; 16 or none are expected", digest->len);
        return false;
    }
    if (memcmp(digest->data, ours, 16) != 0) {
        hello_hex(ours, 16, have);
        hello_hex(digest->data, 16, want);
        session_refuse(session, stream, STATUS_FAILED_PRECONDITION,
                       "another job is served here: %s, not %s; corpus, seed, order, window or "
                       "version differ",
                       have, want);
        return false;
    }
    return true;
}

/* Whether tokens or labels are wanted, and with them slots; -EINVAL for an unknown part. */
static int hello_parts(const Ballast__V1__HelloRequest *request) {
    int subscribed = 0;
    for (size_t i = 0; i < request->n_parts; i++) {
        switch (request->parts[i]) {
        case BALLAST__V1__PART__PART_PLAN:
            break;
        case BALLAST__V1__PART__PART_TOKENS:
        case BALLAST__V1__PART__PART_LABELS:
            subscribed = 1;
            break;
        default:
            return -EINVAL;
        }
    }
    return subscribed;
}

static bool hello_valid(struct session *session, uint32_t stream,
                        const Ballast__V1__HelloRequest *request, struct rank_place *place) {
    if (session->state != SESSION_NEW) {
        session_refuse(session, stream, STATUS_FAILED_PRECONDITION,
                       "Hello was said already: a connection is one rank");
        return false;
    }
    if (request->protocol_min > SESSION_PROTOCOL || request->protocol_max < SESSION_PROTOCOL) {
        session_refuse(session, stream, STATUS_FAILED_PRECONDITION,
                       "protocol %u is spoken here, not %u to %u; update the older side",
                       SESSION_PROTOCOL, request->protocol_min, request->protocol_max);
        return false;
    }
    if (session->world->roster->committed_step >= session->world->job->end_step) {
        session_refuse(session, stream, STATUS_UNAVAILABLE,
                       "the daemon goes on with another mesh; connect again");
        return false;
    }
    if (request->rank == NULL || hello_parts(request) < 0) {
        session_refuse(session, stream, STATUS_INVALID_ARGUMENT,
                       request->rank == NULL ? "Hello names no rank"
                                             : "Hello asks for an unknown part");
        return false;
    }
    *place = (struct rank_place){.dp = request->rank->dp,
                                 .pp = request->rank->pp,
                                 .cp = request->rank->cp,
                                 .tp = request->rank->tp};
    return hello_in_mesh(session, stream, place) &&
           hello_same_job(session, stream, &request->job_digest);
}

/* Memory, token, identity: the last step takes the identity and cannot fail after it. */
static bool hello_bind(struct session *session, uint32_t stream, struct member *member,
                       uint64_t now_ns) {
    const struct session_world *world = session->world;
    struct session_held *held = calloc(world->job->replica_slots, sizeof *held);
    if (held == NULL || world->ops->random(session->token, sizeof session->token) < 0) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED,
                       "out of memory or random numbers");
        free(held);
        return false;
    }
    if (roster_join(world->roster, member, now_ns) < 0) {
        session_refuse(session, stream, STATUS_ALREADY_EXISTS,
                       "rank dp %u, pp %u, cp %u, tp %u is connected already, by pid %u",
                       member->place.dp, member->place.pp, member->place.cp, member->place.tp,
                       member->pid);
        free(held);
        return false;
    }
    session->held = held;
    session->member = member;
    session->token_valid = !session->peer.remote;
    session->generation = world->generation->number;
    member->pid = session->peer.pid;
    member->uid = session->peer.uid;
    session_move(session, SESSION_BOUND);
    return true;
}

/* What was acknowledged to the rank before this daemon began. The store has it (store_ranks.c),
 * unless it is an older copy or was written by a version that kept single ranks' commits in memory.
 * So a claim that comes while a generation is being stored may be passed over. More than the rank
 * can have been given, or of another generation, counts for nothing. */
static void hello_claim(struct session *session, const Ballast__V1__HelloRequest *request,
                        uint64_t now_ns) {
    const struct session_world *world = session->world;
    uint64_t step = request->committed_step;
    if (request->generation != world->generation->number || world->progress->moving ||
        step <= session->member->committed_step || step > world->job->end_step ||
        step > loader_delivered_step(session)) {
        return;
    }
    roster_commit(world->roster, session->member, step, now_ns);
}

static void hello_answer(struct session *session, uint32_t stream) {
    const struct session_job *job = session->world->job;
    const struct roster *roster = session->world->roster;
    const struct generation *generation = session->world->generation;
    Ballast__V1__Mesh mesh = BALLAST__V1__MESH__INIT;
    Ballast__V1__HelloResponse response = BALLAST__V1__HELLO_RESPONSE__INIT;
    mesh.dp = roster->mesh.dp;
    mesh.pp = roster->mesh.pp;
    mesh.cp = roster->mesh.cp;
    mesh.tp = roster->mesh.tp;
    response.protocol = SESSION_PROTOCOL;
    response.daemon = (char *)job->version;
    response.job_digest = (ProtobufCBinaryData){16, (uint8_t *)job->job_digest};
    response.mesh = &mesh;
    response.next_step = roster->committed_step;
    response.micro_batches = roster_micro_batches(roster, roster->committed_step);
    response.tokens_max = job->tokens_max;
    response.token_bytes = job->token_bytes;
    response.data_token = (ProtobufCBinaryData){session->token_valid ? sizeof session->token : 0,
                                                session->token};
    response.slab_bytes = job->slab_bytes;
    response.generation = generation->number;
    response.generation_step = generation->step;
    response.generation_by = (char *)generation->by;
    response.data_path = session->peer.remote ? (char *)"" : (char *)job->data_path;
    session_answer(session, stream, &response.base);
}

void loader_hello(struct session *session, const struct session_call *call, const void *message,
                  uint64_t now_ns) {
    const Ballast__V1__HelloRequest *request = message;
    struct rank_place place;
    char client[SESSION_NAME_BYTES + 2], local[128];
    if (!hello_valid(session, call->stream, request, &place)) {
        return;
    }
    struct member *member = roster_member(session->world->roster, &place);
    if (member == NULL) {
        hello_local_replicas(session->world->roster, local, sizeof local);
        session_refuse(session, call->stream, STATUS_FAILED_PRECONDITION,
                       "replica %u is not served here; the replicas of this node are %s", place.dp,
                       local);
        return;
    }
    if (!hello_bind(session, call->stream, member, now_ns)) {
        return;
    }
    session->subscribed = hello_parts(request) > 0;
    hello_claim(session, request, now_ns);
    (void)FAILPOINT(hello);
    hello_answer(session, call->stream);
    session_value(request->client, client);
    session_log(session, LOG_INFO,
                "rank connected dp=%u pp=%u cp=%u tp=%u pid=%u uid=%u client=%s%s%s", place.dp,
                place.pp, place.cp, place.tp, session->peer.pid, session->peer.uid, client,
                session->peer.remote ? " peer=" : "", session->peer.name);
}
