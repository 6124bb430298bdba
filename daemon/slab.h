/* slab: the shared memory that ranks read micro-batches from.
 *
 * One sealed memfd (slab_memory.h), cut into slots of equal size; every local replica owns the same
 * number of them, so one replica's ranks cannot starve another's. A slot starts with a 64-byte
 * header whose first u64 is its generation, then the payload (corpus/tokens.h).
 *
 *     FREE --slab_take--> READING --slab_ready--> READY --slab_take--> READING
 *                            |                      |
 *                            +--slab_fail--> FAILED +   (READY, FAILED --slab_take--> READING,
 *                                               |        FAILED --slab_retry--> FREE)
 *
 * A slot is held by every session that was sent it and did not release it; only an unheld slot is
 * taken for something else. A rank whose hold ended (its lease was over) and that reads on finds
 * another generation: slab_take stores the new one before any byte of the new payload, and readers
 * load it before and after they copy.
 * Position numbers the micro-batches of one replica: step * (micro-batches per replica) + index.
 * Loop thread only; payloads are written by the reader's threads while READING. */
#ifndef BALLAST_DAEMON_SLAB_H
#define BALLAST_DAEMON_SLAB_H

#include "daemon/slab_memory.h"

#include <stdbool.h>
#include <stdint.h>

#define SLOT_HEADER_BYTES 64u
#define SLOT_NONE         UINT32_MAX

enum slot_state { SLOT_FREE = 0, SLOT_READING = 1, SLOT_READY = 2, SLOT_FAILED = 3 };

/* What readers see at the start of a slot. */
struct slot_header {
    /* Pairs with the client's acquire loads before and after copying. */
    _Atomic uint64_t generation;
    uint8_t reserved[SLOT_HEADER_BYTES - sizeof(uint64_t)]; /* 0 */
};

struct slot {
    enum slot_state state;
    uint32_t holders;
    uint64_t position;
    uint64_t generation;
    uint64_t payload_bytes;
    uint64_t payload_hash; /* XXH3-64, 0 when not computed */
    uint32_t next;         /* slot of the same bucket, or SLOT_NONE */
};

struct slab {
    struct slab_memory memory;
    uint32_t replicas;
    uint32_t replica_slots; /* slots of each replica */
    uint64_t slot_bytes;
    struct slot *slots;       /* replica r owns [r * replica_slots, (r + 1) * replica_slots) */
    uint32_t *buckets;        /* replica_slots for each replica: by position, what is not FREE */
    uint32_t *held;           /* slots with holders, per replica */
    uint32_t used;            /* slots not FREE */
    uint32_t used_high_water; /* since open */
};

struct slab_options {
    uint32_t replicas;
    uint32_t replica_slots;
    uint64_t slot_bytes; /* a multiple of the page size */
    enum slab_huge huge;
    uint32_t node; /* NUMA node, or SLAB_NODE_ANY */
};

/* What slab_memory_open may say; a failed slab is closed. */
int slab_open(struct slab *slab, const struct slab_options *options, struct error *error);
void slab_close(struct slab *slab); /* idempotent; fine for a zeroed slab */

static inline uint64_t slab_bytes(const struct slab *slab) {
    return (uint64_t)slab->replicas * slab->replica_slots * slab->slot_bytes;
}

static inline uint64_t slab_slot_offset(const struct slab *slab, uint32_t slot) {
    return slot * slab->slot_bytes;
}

static inline uint64_t slab_payload_bytes_max(const struct slab *slab) {
    return slab->slot_bytes - SLOT_HEADER_BYTES;
}

void *slab_payload(const struct slab *slab, uint32_t slot);

/* Bytes of slots that hold a micro-batch. */
uint64_t slab_bytes_used(const struct slab *slab);

/* The slot that has `position` of the replica in any state but FREE; -ENOENT. */
int slab_find(const struct slab *slab, uint32_t replica, uint64_t position);

/* Whether slab_take would find one. */
bool slab_may_take(const struct slab *slab, uint32_t replica, uint64_t position, uint64_t passed);

/* Takes a slot for `position` (not in the slab yet) and bumps its generation: READING, the payload
 * `payload_bytes` long. In this order: a free one; the oldest unheld one before `passed`, where no
 * connected rank will ask again; the unheld one furthest ahead of `position`, which is read again
 * when its turn comes. -EAGAIN when every slot is held, being read, or needed no later. */
int slab_take(struct slab *slab, uint32_t replica, uint64_t position, uint64_t passed,
              uint64_t payload_bytes);

void slab_ready(struct slab *slab, uint32_t slot, uint64_t payload_hash);
void slab_fail(struct slab *slab, uint32_t slot);

/* Frees the replica's FAILED slots, so that reading them is tried again. */
void slab_retry(struct slab *slab, uint32_t replica);

/* Whether one more session may hold the slot without leaving none for the replica's last rank: the
 * last may always, others while another slot stays unheld. With a single slot everybody may. */
bool slab_may_hold(const struct slab *slab, uint32_t slot, bool last);

void slab_hold(struct slab *slab, uint32_t slot); /* READY only */
void slab_release(struct slab *slab, uint32_t slot);

#endif
