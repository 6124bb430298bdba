/* session: the protocol of one connection as a pure step.
 *
 * Frames and time come in, messages go out through `session_ops`; sockets, clock, slab and planner
 * are the owner's, so tests drive every row of the table below with a fake world. Serves
 * ballast.v1.Loader itself and hands ballast.v1.Admin to the owner.
 *
 *     NEW --Hello--> BOUND --Stream--> OPENING --first message--> STREAMING --EndOfData--> ENDED
 *                      ^                  |                           |                      |
 *                      +------------------+---------------------------+----------------------+
 *                                       refused, closed by the peer, or failed
 *
 *   hello_bind           NEW -> BOUND: the identity is this session's until it ends
 *   stream_serve        BOUND -> OPENING: a rank has one Stream at a time
 *   stream_open          OPENING -> STREAMING: `from` is legal
 *   stream_end_of_data   STREAMING -> ENDED: releases are still heard
 *   session_end_stream   OPENING, STREAMING, ENDED -> BOUND: a final Response with a status
 *   session_deinit       any -> CLOSED
 *
 * A batch that was sent with a slot is held until it is released, its step is committed by this
 * rank, its generation is over, or the session ends. Fetch sends its bytes meanwhile (fetch.c).
 *
 * A Commit is answered when its step can be planned again after a restart and the store knows that
 * this rank made it: the roster numbers its changes, and the owner says which are durable.
 *
 * A session is of the generation that its Hello told or that its Seek joined. A generation is open
 * to be joined by a Seek to its first step until committed_step has passed that step
 * (generation.h). When another one begins, session_abort ends its Stream and its unanswered Commits
 * with ABORTED, and refuses further ones likewise until the rank has sought too, or said Hello
 * anew. Loop thread only. */
#ifndef BALLAST_DAEMON_SESSION_H
#define BALLAST_DAEMON_SESSION_H

#include "daemon/generation.h"
#include "daemon/measured.h"
#include "daemon/packed.h"
#include "daemon/roster.h"
#include "planner/error.h"
#include "planner/plan.h"
#include "proto/arena.h"
#include "proto/frame.h"

#define SESSION_COMMITS_MAX         16u             /* unanswered, of one connection */
#define SESSION_ADMIN_CALLS_MAX     4u              /* likewise */
#define SESSION_FETCHES_MAX         8u              /* likewise */
#define SESSION_CALL_TIMEOUT_NS_MAX 600000000000ull /* longer ones are cut to this */
#define SESSION_HANDSHAKE_NS        30000000000ull  /* from connect to the first valid call */
#define SESSION_TOKEN_BYTES         16u
#define SESSION_PROTOCOL            1u
#define SESSION_LOADER              "ballast.v1.Loader"
#define SESSION_ADMIN               "ballast.v1.Admin"

enum session_state {
    SESSION_NEW = 0,
    SESSION_BOUND = 1,
    SESSION_OPENING = 2,
    SESSION_STREAMING = 3,
    SESSION_ENDED = 4,
    SESSION_CLOSED = 5,
};

/* Whether the table allows `to` after `from`. */
bool session_may_move(enum session_state from, enum session_state to);

/* What HelloResponse says of the job. Immutable after start. */
struct session_job {
    const char *version; /* "ballastd 0.1.0" */
    const char *data_path;
    uint8_t job_digest[16];
    uint64_t tokens_max;
    uint32_t token_bytes;
    uint64_t slab_bytes;
    uint32_t credits_max;
    uint32_t replica_slots; /* slots that one replica has: a session holds no more */
    uint64_t begin_step;    /* first step of the mesh */
    uint64_t end_step;      /* first step of another mesh, at which streams end; UINT64_MAX: none */
    const char *next_mesh;  /* the sentence with which they end */
};

/* How far the stream is known and safe. The owner's, updated before sessions are pumped. */
struct session_progress {
    uint64_t oldest_step;    /* first step that can still be replayed; <= committed_step */
    uint64_t plannable_step; /* last step that a rank may ask to start from */
    uint64_t claimable_step; /* first step that nobody can have been given before the start */
    uint64_t durable_step;   /* first step whose row is not durable */
    uint64_t durable_committed_step; /* committed_step as the store has it */
    uint64_t durable_changes;        /* of roster.changes, those that the store has */
    bool full;                       /* the state's disk is: nothing becomes durable */
    bool stopping;                   /* nothing new is begun */
    bool warming;                    /* the corpus is being opened: nothing is known yet */
    bool moving; /* a generation is being stored: nothing of the old one goes on */
};

struct session;

enum session_answer {
    SESSION_READY = 0,
    SESSION_WAITS = 1,   /* planned or read soon */
    SESSION_HELD_UP = 2, /* waits because slower ranks hold what it needs */
    SESSION_NO_STEP = 3, /* the stream ends before this step */
    SESSION_LOST = 4,    /* cannot be had: `error` says why */
};

/* A micro-batch ready to be sent. slot < 0: none (plan only, or no documents). */
struct session_batch {
    int slot;
    uint64_t slab_offset;
    uint64_t payload_bytes;
    uint64_t slot_generation;
    uint64_t payload_hash;
};

/* Where the world begins. None of these calls back into the session. */
struct session_ops {
    /* Queues one frame. What cannot be queued is the owner's to deal with, by closing. */
    void (*send)(struct session *session, uint32_t stream, enum frame_type type,
                 const ProtobufCMessage *message);
    /* Whether more output waits than allowed: no new batches until it has left. */
    bool (*congested)(const struct session *session);
    /* Whether an answer of this size is too much beside all that peers have not read yet. */
    bool (*crowded)(const struct session *session, size_t bytes);
    /* The plan of a step, borrowed until the session returns. */
    enum session_answer (*plan)(struct session *session, uint64_t step,
                                const struct step_plan **plan, struct error *error);
    /* The slot of plan->micro_batches[micro_batch], held for this session when SESSION_READY.
     * `last`: no rank of the replica stands further back, or may come back there. */
    enum session_answer (*take)(struct session *session, const struct step_plan *plan,
                                uint32_t micro_batch, bool last, struct session_batch *batch,
                                struct error *error);
    void (*release)(struct session *session, uint32_t slot);
    /* The payload of a slot that this session holds, NULL when the slot has another generation. */
    const uint8_t *(*payload)(struct session *session, uint32_t slot, uint64_t generation,
                              uint64_t *bytes);
    /* Sends one Data frame with a FetchResponse of these bytes, at most 1 MiB, which are the
     * caller's again when this returns: whether the socket took all of it. If not the session is
     * pumped when it has. */
    bool (*send_payload)(struct session *session, uint32_t stream, const uint8_t *payload,
                         uint32_t bytes);
    /* There is more to send: to be pumped in the loop's next turn, after others had theirs. */
    void (*again)(struct session *session);
    /* A stream opened: what failed to be read for this replica may be tried again. */
    void (*opened)(struct session *session, uint32_t replica);
    /* The rank waited so long for a batch: as it says itself, or until the batch was sent. */
    void (*waited)(struct session *session, uint64_t wait_ns);
    /* Seek and Import: a generation is to be opened, or one that is being opened joined. Export.
     * Each answered now or later. `state` is borrowed for the call. */
    void (*seek)(struct session *session, uint32_t stream, uint64_t step, uint64_t least,
                 uint64_t deadline_ns);
    void (*import)(struct session *session, uint32_t stream, const uint8_t *state, size_t bytes,
                   uint64_t least, uint64_t deadline_ns);
    void (*export)(struct session *session, uint32_t stream, uint64_t step);
    /* An Admin call; answered now or later by session_answer or session_refuse. */
    void (*admin)(struct session *session, uint32_t stream, const char *method,
                  const uint8_t *payload, size_t bytes);
    /* The session is over: its calls that wait are to be forgotten. */
    void (*closed)(struct session *session);
    int (*random)(void *out, size_t bytes);
    /* level as syslog. */
    void (*log)(struct session *session, int level, const char *text);
};

struct session_world {
    const struct session_ops *ops;
    const struct session_job *job;
    const struct session_progress *progress;
    struct roster *roster;
    struct generation *generation;
    struct measured *measured;
    struct packed *packed;
    struct arena *arena; /* for one message at a time, coming or going */
};

struct session_peer {
    uint32_t pid, uid;
    bool may_serve, may_admin;
    bool remote;    /* over TCP: pid is 0, uid UINT32_MAX, and memory cannot be shared */
    char name[192]; /* of a remote one, for sentences */
    /* Set: every call is refused with this sentence, then the connection is closed. */
    enum status refusal;
    const char *refusal_text;
};

struct session_held {
    uint64_t step;
    uint32_t index;
    uint32_t slot;
    uint64_t generation; /* of the slot */
};

/* A Fetch under way; the first of a session is served. */
struct session_fetch {
    uint32_t stream;
    struct session_held held;
    uint64_t sent;        /* bytes */
    uint64_t deadline_ns; /* UINT64_MAX: none */
};

/* A Commit that waits until it is durable. */
struct session_commit {
    uint32_t stream;
    uint64_t step;
    uint64_t change;      /* of the roster, with which it must be stored */
    uint64_t deadline_ns; /* UINT64_MAX: none */
    bool late;            /* came while another generation was being stored: counts for nothing */
};

struct session {
    const struct session_world *world;
    void *owner;
    struct session_peer peer;
    enum session_state state;
    struct member *member; /* NULL in NEW */
    uint32_t last_stream;  /* highest stream id seen */
    uint32_t stream;       /* of Stream; 0: none */
    bool greeted;          /* a valid call was made */
    bool subscribed;       /* wants tokens or labels, so slots */
    bool cut;              /* its lease is over: no claims live on */
    bool token_valid;
    uint8_t token[SESSION_TOKEN_BYTES];
    uint64_t start_ns;
    uint64_t progress_ns;      /* last frame from the peer, or output that left */
    uint64_t generation;       /* of Hello, or of the Seek that joined: what it may take part in */
    uint32_t admin_calls;      /* not yet answered; the owner counts */
    struct session_held *held; /* job->replica_slots entries, from Hello on */
    uint32_t held_count;
    struct session_commit commits[SESSION_COMMITS_MAX];
    uint32_t commit_count;
    struct session_fetch fetches[SESSION_FETCHES_MAX]; /* oldest first */
    uint32_t fetch_count;
};

void session_init(struct session *session, const struct session_world *world, void *owner,
                  const struct session_peer *peer, uint64_t now_ns);

/* Gives back everything: holds, identity. Idempotent. */
void session_deinit(struct session *session, uint64_t now_ns);

/* One frame with a good header. 0, or -EPROTO: answered as far as possible, to be closed. Does not
 * pump. */
int session_frame(struct session *session, const struct frame_header *header, const uint8_t *data,
                  uint64_t now_ns);

/* A frame header that frame_reader_next refused with `code`: answers on its stream. To be closed.
 */
void session_bad_frame(struct session *session, const struct frame_header *header, int code,
                       const char *reason);

/* Sends whatever may be sent: due CommitResponses, batches, ends. */
void session_pump(struct session *session, uint64_t now_ns);

/* Output left: the peer reads. */
void session_drained(struct session *session, uint64_t now_ns);

/* The daemon stood still for `ns` before now and heard nobody: that was no silence of the peer's.
 */
void session_forgive(struct session *session, uint64_t ns, uint64_t now_ns);

/* Deadlines and leases. 0, or -ETIMEDOUT: told the peer as far as possible, to be closed. */
int session_tick(struct session *session, uint64_t now_ns);

/* Ends the Stream, if any, with a status. */
void session_end_stream(struct session *session, enum status status, const char *text);

/* Another generation has begun (the world's is it already): ends Stream, Commits and holds. */
void session_abort(struct session *session, uint64_t now_ns);

/* The session's rank, if it has one, takes part in the world's generation. */
void session_join(struct session *session);

/* The same by a Seek: its Stream, if it has one, ends with ABORTED and what that sent is released.
 */
void session_rejoin(struct session *session);

/* "rank dp 0, pp 0, cp 1, tp 0 (pid 7)", or of an administrator its pid and uid. */
void session_name(const struct session *session, char out[GENERATION_BY_BYTES]);

/* Final Responses to unary calls. A response that does not fit a frame is refused instead. */
void session_answer(struct session *session, uint32_t stream, const ProtobufCMessage *message);
void session_refuse(struct session *session, uint32_t stream, enum status status,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The final Response of a stream that ended well. */
void session_finish(struct session *session, uint32_t stream);

/* Whether `token` is this session's and unused; if so it is used up. */
bool session_use_token(struct session *session, const uint8_t token[SESSION_TOKEN_BYTES]);

#endif
