/* phase: the steps that are served with one mesh.
 *
 * Sections of the config may change the mesh, or the replicas of this node; ranks, their slots and
 * their connections are of one mesh. So the daemon serves a phase at a time: from a section that
 * changes the mesh up to the next that does. Where it ends streams end, and once all ranks have
 * committed it, or have sought a step of another phase, the daemon opens anew on that. Within a
 * phase steps may differ in everything else: memory is made for the largest. */
#ifndef BALLAST_DAEMON_PHASE_H
#define BALLAST_DAEMON_PHASE_H

#include "daemon/config.h"
#include "daemon/roster.h"

struct phase {
    uint64_t begin;              /* first step */
    uint64_t end;                /* first step of the next phase; UINT64_MAX: the last */
    const struct config *config; /* as it stands at the begin: mesh, local replicas */
    struct roster_span *spans;   /* by section */
    uint32_t span_count;
    uint32_t micro_batches_max; /* per replica and step */
    uint64_t tokens_max;
    uint64_t slot_bytes;
    uint32_t replica_slots;
    char next[192]; /* what ranks are told at the end */
};

/* The phase that a step is in. The config is borrowed. -ENOMEM. */
int phase_init(struct phase *phase, const struct config *config, uint64_t step,
               uint32_t token_bytes, struct error *error);
/* Whether a step is of the phase. */
static inline bool phase_holds(const struct phase *phase, uint64_t step) {
    return phase->begin <= step && step < phase->end;
}

void phase_deinit(struct phase *phase); /* fine for a zeroed phase */

#endif
