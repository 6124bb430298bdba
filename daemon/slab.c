/* slab: see slab.h. */
#include "daemon/slab.h"

#include "daemon/failpoint.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof(struct slot_header) == SLOT_HEADER_BYTES, "the payload starts at 64");

static const uint8_t slot_successors[] = {
    [SLOT_FREE] = 1 << SLOT_READING,
    [SLOT_READING] = 1 << SLOT_READY | 1 << SLOT_FAILED,
    [SLOT_READY] = 1 << SLOT_READING,
    [SLOT_FAILED] = 1 << SLOT_READING | 1 << SLOT_FREE,
};

static void slot_move(struct slab *slab, uint32_t slot, enum slot_state to) {
    struct slot *at = &slab->slots[slot];
    assert((slot_successors[at->state] & 1 << to) != 0);
    slab->used += at->state == SLOT_FREE;
    slab->used -= to == SLOT_FREE;
    if (slab->used > slab->used_high_water) {
        slab->used_high_water = slab->used;
    }
    at->state = to;
}

int slab_open(struct slab *slab, const struct slab_options *options, struct error *error) {
    uint32_t replicas = options->replicas, replica_slots = options->replica_slots;
    assert(replicas > 0 && replica_slots > 0 && options->slot_bytes > SLOT_HEADER_BYTES);
    *slab = (struct slab){.memory.fd = -1,
                          .replicas = replicas,
                          .replica_slots = replica_slots,
                          .slot_bytes = options->slot_bytes};
    slab->slots = calloc((size_t)replicas * replica_slots, sizeof *slab->slots);
    slab->buckets = calloc((size_t)replicas * replica_slots, sizeof *slab->buckets);
    slab->held = calloc(replicas, sizeof *slab->held);
    for (uint32_t i = 0; slab->buckets != NULL && i < replicas * replica_slots; i++) {
        slab->buckets[i] = SLOT_NONE;
    }
    int code = slab->slots == NULL || slab->buckets == NULL || slab->held == NULL
                   ? error_set(error, -ENOMEM, "slab: out of memory")
                   : slab_memory_open(&slab->memory, slab_bytes(slab), options->huge, options->node,
                                      error);
    if (code < 0) {
        slab_close(slab);
    }
    return code;
}

void slab_close(struct slab *slab) {
    slab_memory_close(&slab->memory);
    free(slab->slots);
    free(slab->buckets);
    free(slab->held);
    *slab = (struct slab){.memory.fd = -1};
}

static struct slot_header *slab_header(const struct slab *slab, uint32_t slot) {
    return (struct slot_header *)(void *)(slab->memory.base + slab_slot_offset(slab, slot));
}

void *slab_payload(const struct slab *slab, uint32_t slot) {
    return slab->memory.base + slab_slot_offset(slab, slot) + SLOT_HEADER_BYTES;
}

uint64_t slab_bytes_used(const struct slab *slab) {
    return slab->used * slab->slot_bytes;
}

static uint32_t slab_first(const struct slab *slab, uint32_t replica) {
    assert(replica < slab->replicas);
    return replica * slab->replica_slots;
}

static uint32_t *slab_bucket(const struct slab *slab, uint32_t replica, uint64_t position) {
    return &slab->buckets[slab_first(slab, replica) + position % slab->replica_slots];
}

static void slab_link(struct slab *slab, uint32_t slot) {
    uint32_t *bucket = slab_bucket(slab, slot / slab->replica_slots, slab->slots[slot].position);
    slab->slots[slot].next = *bucket;
    *bucket = slot;
}

static void slab_unlink(struct slab *slab, uint32_t slot) {
    uint32_t *at = slab_bucket(slab, slot / slab->replica_slots, slab->slots[slot].position);
    while (*at != slot) {
        at = &slab->slots[*at].next;
    }
    *at = slab->slots[slot].next;
}

int slab_find(const struct slab *slab, uint32_t replica, uint64_t position) {
    uint32_t slot = *slab_bucket(slab, replica, position);
    while (slot != SLOT_NONE && slab->slots[slot].position != position) {
        slot = slab->slots[slot].next;
    }
    return slot == SLOT_NONE ? -ENOENT : (int)slot;
}

static bool slot_idle(const struct slot *slot) {
    return (slot->state == SLOT_READY || slot->state == SLOT_FAILED) && slot->holders == 0;
}

/* Whether `slot` is a better victim than `best` (NULL: none yet). Passed ones, oldest first, come
 * before those ahead, furthest first. */
static bool slot_yields(const struct slot *slot, const struct slot *best, uint64_t position,
                        uint64_t passed) {
    if (!slot_idle(slot) || (slot->position >= passed && slot->position <= position)) {
        return false;
    }
    if (best == NULL) {
        return true;
    }
    bool slot_passed = slot->position < passed;
    if (slot_passed != (best->position < passed)) {
        return slot_passed;
    }
    return slot_passed ? slot->position < best->position : slot->position > best->position;
}

static struct slot *slab_victim(const struct slab *slab, uint32_t replica, uint64_t position,
                                uint64_t passed) {
    struct slot *first = &slab->slots[slab_first(slab, replica)];
    struct slot *best = NULL;
    for (struct slot *slot = first; slot < first + slab->replica_slots; slot++) {
        if (slot->state == SLOT_FREE) {
            return slot;
        }
        if (slot_yields(slot, best, position, passed)) {
            best = slot;
        }
    }
    return best;
}

bool slab_may_take(const struct slab *slab, uint32_t replica, uint64_t position, uint64_t passed) {
    return slab_victim(slab, replica, position, passed) != NULL;
}

int slab_take(struct slab *slab, uint32_t replica, uint64_t position, uint64_t passed,
              uint64_t payload_bytes) {
    assert(payload_bytes <= slab_payload_bytes_max(slab));
    struct slot *slot = slab_victim(slab, replica, position, passed);
    if (slot == NULL) {
        return -EAGAIN;
    }
    uint32_t index = (uint32_t)(slot - slab->slots);
    (void)FAILPOINT(slot_reuse);
    if (slot->state != SLOT_FREE) {
        slab_unlink(slab, index);
    }
    slot_move(slab, index, SLOT_READING);
    slot->position = position;
    slab_link(slab, index);
    slot->payload_bytes = payload_bytes;
    slot->payload_hash = 0;
    slot->generation++;
    /* Sequentially consistent, so that no byte of the new payload becomes visible before it. */
    atomic_store(&slab_header(slab, index)->generation, slot->generation);
    atomic_thread_fence(memory_order_seq_cst);
    return (int)index;
}

void slab_ready(struct slab *slab, uint32_t slot, uint64_t payload_hash) {
    slot_move(slab, slot, SLOT_READY);
    slab->slots[slot].payload_hash = payload_hash;
}

void slab_fail(struct slab *slab, uint32_t slot) {
    slot_move(slab, slot, SLOT_FAILED);
}

void slab_retry(struct slab *slab, uint32_t replica) {
    uint32_t first = slab_first(slab, replica);
    for (uint32_t i = first; i < first + slab->replica_slots; i++) {
        if (slab->slots[i].state == SLOT_FAILED) {
            slab_unlink(slab, i);
            slot_move(slab, i, SLOT_FREE);
        }
    }
}

bool slab_may_hold(const struct slab *slab, uint32_t slot, bool last) {
    return last || slab->replica_slots == 1 || slab->slots[slot].holders > 0 ||
           slab->held[slot / slab->replica_slots] + 1 < slab->replica_slots;
}

void slab_hold(struct slab *slab, uint32_t slot) {
    assert(slab->slots[slot].state == SLOT_READY);
    if (slab->slots[slot].holders++ == 0) {
        slab->held[slot / slab->replica_slots]++;
    }
}

void slab_release(struct slab *slab, uint32_t slot) {
    assert(slab->slots[slot].holders > 0);
    if (--slab->slots[slot].holders == 0) {
        slab->held[slot / slab->replica_slots]--;
    }
}
