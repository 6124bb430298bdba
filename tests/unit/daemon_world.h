/* daemon_world: a world for one or more sessions, made of arrays: no sockets, no clock, no planner.
 * Plans are wanted facts (known up to `planned`), slots are counters, output is a list of messages.
 */
#ifndef BALLAST_TESTS_DAEMON_WORLD_H
#define BALLAST_TESTS_DAEMON_WORLD_H

#include "ballast.pb-c.h"
#include "daemon/session.h"
#include "ttrpc.pb-c.h"

#define WORLD_SESSIONS     4u
#define WORLD_SENT         256u
#define WORLD_DP           2u
#define WORLD_CP           2u
#define WORLD_PER_STEP     2u /* micro-batches per replica and step */
#define WORLD_PER_STEP_MAX 4u /* with roster_set_spans */
#define WORLD_SLOTS        4u /* per replica */
#define WORLD_SECOND_NS    1000000000ull

struct world_sent {
    uint32_t stream;
    enum frame_type type;
    uint8_t *bytes;
    size_t count;
};

struct world_session {
    struct session session; /* first: ops get it */
    struct world *world;
    struct world_sent sent[WORLD_SENT]; /* only the first ones are kept */
    uint32_t sent_count;
    uint32_t read; /* of sent, by the test */
    uint32_t next_stream;
    bool congested;
    bool crowded;
    uint32_t admin_stream; /* of the last Admin call, 0: none */
    char admin_method[32];
    uint32_t seek_stream; /* of the last Seek or Import that was passed on, 0: none */
    uint64_t seek_step;   /* its step; for Import the bytes of its state */
    uint64_t seek_least;
    uint32_t export_stream; /* likewise */
    uint64_t waited_ns;
    bool again;  /* asked for another turn */
    bool narrow; /* its socket never takes a whole payload at once */
};

struct world {
    struct session_ops ops;
    struct session_job job;
    struct session_progress progress;
    struct session_world world;
    struct roster roster;
    struct generation generation;
    struct measured measured;
    struct packed packed;
    struct arena arena;
    uint64_t now_ns;
    uint64_t planned;          /* steps below have a plan */
    uint64_t end;              /* first step that does not exist */
    uint64_t lost_step;        /* its tokens cannot be read */
    enum session_answer slots; /* what take answers */
    uint32_t holds;            /* over all sessions */
    uint32_t opened;           /* streams */
    bool empty;                /* micro-batches have no documents */
    bool pooled;               /* both replicas share: a tile of worker 0 is at worker 3 */
    const uint8_t *payload;    /* of every slot, with its generation, for Fetch; NULL: none */
    uint64_t payload_bytes;
    uint64_t slot_generation;
    struct step_plan *plan; /* the last one asked for */
    struct world_session sessions[WORLD_SESSIONS];
};

/* A mesh of dp 2, cp 2; replica 0 local, and 1 too if `all`. Lease 60 s, 8 credits. */
void world_init(struct world *world, bool all);
void world_deinit(struct world *world);

/* Connects session i as uid 7, pid 100 + i. */
struct world_session *world_connect(struct world *world, uint32_t i);

/* Sends a frame to the session; returns what session_frame said. */
int world_frame(struct world_session *at, uint32_t stream, enum frame_type type, uint8_t flags,
                const uint8_t *data, size_t bytes);

/* A call with a message (NULL: empty payload), on the next stream id, which is returned. */
uint32_t world_call(struct world_session *at, const char *service, const char *method,
                    uint8_t flags, const ProtobufCMessage *message);

/* A StreamRequest on the open Stream. from NULL: none. */
void world_send_stream(struct world_session *at, const Ballast__V1__StreamRequest *request);
void world_stream(struct world_session *at, uint32_t credits, const Ballast__V1__BatchId *from);
void world_release(struct world_session *at, uint64_t step, uint32_t index);

/* A generation begins at `step`, opened by the last Seek of `by` (which is answered). */
void world_begin(struct world *world, struct world_session *by, uint64_t step);

/* Pumps all sessions, in order, until nothing more is sent. */
void world_pump(struct world *world);

/* The next unread message, NULL when there is none. */
const struct world_sent *world_read(struct world_session *at);

#endif
