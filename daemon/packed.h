/* packed: the wire bytes of micro-batches that were sent lately.
 *
 * All ranks of a replica are sent the same plan of a micro-batch, so it is packed once, before the
 * first of them asks, and copied for each. The least recently used one goes when PACKED_ENTRIES or
 * PACKED_BYTES are reached; a rank far behind then has it packed again. Loop thread only. */
#ifndef BALLAST_DAEMON_PACKED_H
#define BALLAST_DAEMON_PACKED_H

#include "planner/plan.h"
#include "proto/arena.h"

#define PACKED_ENTRIES 64u
#define PACKED_BYTES   (8u << 20)

struct packed_entry {
    uint8_t digest[PLAN_DIGEST_BYTES];
    uint64_t step;
    uint32_t micro_batch;
    uint64_t used; /* packed.clock when it was asked for last; 0: the entry is empty */
    uint8_t *bytes;
    size_t count;
};

struct packed {
    struct packed_entry entries[PACKED_ENTRIES];
    uint64_t clock;
    size_t bytes; /* of all entries */
};

void packed_deinit(struct packed *packed); /* fine for a zeroed one */

/* message_wire_micro_batch of the plan's micro-batch, borrowed until the next call; the arena is
 * room to work in. NULL when out of memory. */
const uint8_t *packed_find(struct packed *packed, const struct step_plan *plan,
                           uint32_t micro_batch, struct arena *arena, size_t *count);

#endif
