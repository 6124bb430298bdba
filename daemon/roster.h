/* roster: every rank that this node serves, where it stands, and until when its claims live.
 *
 * A member is a place in the mesh whose replica is local. It is live while connected and for one
 * lease after its connection ended. At the start every member has a lease too: after a restart
 * ranks come back one by one, and the first to commit must not leave the others behind.
 *
 *     committed_step = the smallest committed step of the live members (falls only by a rewind)
 *
 * Pure: the clock is an argument. Loop thread only. */
#ifndef BALLAST_DAEMON_ROSTER_H
#define BALLAST_DAEMON_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROSTER_RANKS_MAX (1u << 20) /* of the whole mesh */

struct rank_place {
    uint32_t dp, pp, cp, tp;
};

struct member {
    struct rank_place place;
    uint32_t replica;        /* number of its dp among the local replicas */
    bool seen;               /* was connected since the start */
    bool connected;          /* a session has this identity */
    bool streaming;          /* ... and a stream that is not over */
    bool subscribed;         /* ... that wants slots: tokens or labels */
    bool held_back;          /* has credit, but its next batch must wait for a slower rank */
    uint32_t pid, uid;       /* of the last peer, for people */
    uint32_t credits;        /* left, while streaming */
    uint64_t waiting_ns;     /* since when it waits for its next batch; 0: it does not */
    uint64_t leading_ns;     /* likewise because the last must go on first; 0: it does not */
    uint64_t led_ns;         /* all such waiting that is over, since the start */
    bool reports_waits;      /* the rank says itself how long it waited, while streaming */
    uint64_t waits;          /* batches whose waiting is known, since the start */
    uint64_t waited_ns;      /* for all of them */
    uint64_t waited_ns_max;  /* for one of them */
    uint64_t lease_end_ns;   /* meaningful while not connected */
    uint64_t committed_step; /* first step that it did not commit */
    uint64_t delivered_step; /* first step that it was not given whole */
    bool delivery_known;     /* it streamed since the start, so delivered_step is all there is */
    uint64_t generation;     /* that it joined last, by Seek or Stream since the start; 0: none */
    uint64_t sought;         /* likewise, by Seek */
    uint64_t from_step;      /* with which its stream began, while streaming */
    uint64_t step;           /* of its next batch, while streaming */
    uint32_t index;          /* of its next batch; micro_batches: only the end of the step is due */
};

/* Steps that have one number of micro-batches, up to the next span's. */
struct roster_span {
    uint64_t step;          /* the first */
    uint64_t position;      /* of its first batch in a replica's stream */
    uint32_t micro_batches; /* per replica and step */
};

struct roster {
    struct member *members; /* by (replica, pp, cp, tp) */
    uint32_t count;
    uint32_t replicas;
    uint32_t replica_members;        /* members of each replica */
    struct roster_span uniform;      /* without spans: of all steps */
    const struct roster_span *spans; /* borrowed; of the steps from the first on */
    uint32_t span_count;
    struct rank_place mesh;  /* sizes */
    uint32_t *replica_of_dp; /* mesh.dp entries; UINT32_MAX: not local */
    uint64_t lease_ns;
    uint64_t lead_steps; /* no batch is handed out so far beyond the last; at first all are */
    uint64_t committed_step;
    uint64_t changes; /* of committed steps so far: what is stored of them is known by its number */
};

/* Every step has `micro_batches`, until roster_set_spans. `local` has mesh.dp flags, at least one
 * set. -ENOMEM; -ERANGE for a mesh of more than ROSTER_RANKS_MAX ranks. */
int roster_init(struct roster *roster, const struct rank_place *mesh, const uint8_t *local,
                uint32_t micro_batches, uint64_t lease_ns, uint64_t committed_step,
                uint64_t now_ns);
void roster_deinit(struct roster *roster); /* fine for a zeroed roster */

/* Borrowed, ascending, at least one. */
void roster_set_spans(struct roster *roster, const struct roster_span *spans, uint32_t count);

/* Micro-batches of a step, per replica. */
uint32_t roster_micro_batches(const struct roster *roster, uint64_t step);

/* Number of a batch in its replica's stream; index may be micro_batches, which is the next step's
 * first. And the step that a number is in. */
uint64_t roster_place(const struct roster *roster, uint64_t step, uint32_t index);
uint64_t roster_step_of(const struct roster *roster, uint64_t position);

/* The member at a place inside the mesh; NULL when its replica is not local. */
struct member *roster_member(const struct roster *roster, const struct rank_place *place);

/* Takes the identity for a session; -EEXIST while another one has it. What a member whose lease was
 * over had left to the others it need not commit any more, but may. */
int roster_join(struct roster *roster, struct member *member, uint64_t now_ns);

/* The member has committed the steps before `step`; committed_step may rise. */
void roster_commit(struct roster *roster, struct member *member, uint64_t step, uint64_t now_ns);

/* The same of the time before the start, as it was stored: no change. */
void roster_restore(struct member *member, uint64_t step);

/* The session is gone; its claims live for one lease. */
void roster_leave(struct roster *roster, struct member *member, uint64_t now_ns);

/* From since_ns on the daemon stood still for `ns`: leases that lived then are so much longer. */
void roster_forgive(struct roster *roster, uint64_t since_ns, uint64_t ns);

/* The job goes back or on to `step`: nothing of it is delivered or committed any more, as the
 * record of its generation says, so that is no change; likewise of one member, which may be one. */
void roster_rewind(struct roster *roster, uint64_t step);
void roster_rewind_member(struct roster *roster, struct member *member, uint64_t step);

/* Recomputes committed_step; true when it rose. When no member is live any more, those count that
 * were last. */
bool roster_advance(struct roster *roster, uint64_t now_ns);

bool roster_live(const struct member *member, uint64_t now_ns);

/* Number of the member's next batch in its replica's stream. */
static inline uint64_t roster_position(const struct roster *roster, const struct member *member) {
    return roster_place(roster, member->step, member->index);
}

/* The smallest position among the replica's ranks that want slots; false without any. */
bool roster_slowest(const struct roster *roster, uint32_t replica, uint64_t *position);

/* The largest of them. */
bool roster_fastest(const struct roster *roster, uint32_t replica, uint64_t *position);

/* Whether a rank of the replica that is not connected may come back: its lease lives. */
bool roster_awaits(const struct roster *roster, uint32_t replica, uint64_t now_ns);

/* The largest and smallest step among streaming ranks; false without any. */
bool roster_fastest_step(const struct roster *roster, uint64_t *step);
bool roster_slowest_step(const struct roster *roster, uint64_t *step);

/* Whether some streaming rank stands at this step. */
bool roster_stands_at(const struct roster *roster, uint64_t step);

/* The first step that the member is not through with: neither committed, nor before those that its
 * stream asked for. A rank that goes on from a later step does not commit the earlier ones. */
uint64_t roster_done(const struct member *member);

/* The live member that is least far through: the last. NULL: none is live. */
const struct member *roster_last(const struct roster *roster, uint64_t now_ns);

/* Whether the member's next step is too far beyond the last's to be handed out. */
bool roster_leads(const struct roster *roster, const struct member *member, uint64_t now_ns);

/* It does so no more. */
void roster_lead_end(struct member *member, uint64_t now_ns);

/* How long it has waited for that since the start. */
uint64_t roster_led_ns(const struct member *member, uint64_t now_ns);

/* Who has waited for that longest; NULL: nobody. */
const struct member *roster_leader(const struct roster *roster);

/* Whom the member waits for: itself, if its own commits are what is missing. NULL: nobody. */
const struct member *roster_awaited(const struct roster *roster, const struct member *member,
                                    uint64_t now_ns);

/* How many steps `awaited` is behind the member, in what it was given or in what it is through
 * with, whichever keeps the member waiting. */
uint64_t roster_behind(const struct member *awaited, const struct member *member);

/* Whether the member is what another rank waits for: it holds slots of its replica, stands behind
 * one that is held back, or is the last while one leads that is further. A member that waits itself
 * is to blame only if it is held back with nobody behind it, or leads itself. */
bool roster_blames(const struct roster *roster, const struct member *member, bool holds_slots);

#endif
