/* packed: see packed.h. */
#include "daemon/packed.h"

#include "proto/message.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void packed_drop(struct packed *packed, struct packed_entry *entry) {
    packed->bytes -= entry->count;
    free(entry->bytes);
    *entry = (struct packed_entry){0};
}

void packed_deinit(struct packed *packed) {
    for (uint32_t i = 0; i < PACKED_ENTRIES; i++) {
        packed_drop(packed, &packed->entries[i]);
    }
}

/* The entry that was used longest ago, or one that is empty where `empty_too`; NULL: none. */
static struct packed_entry *packed_oldest(struct packed *packed, bool empty_too) {
    struct packed_entry *oldest = NULL;
    for (uint32_t i = 0; i < PACKED_ENTRIES; i++) {
        struct packed_entry *entry = &packed->entries[i];
        if ((entry->used != 0 || empty_too) && (oldest == NULL || entry->used < oldest->used)) {
            oldest = entry;
        }
    }
    return oldest;
}

/* An empty entry, for `count` more bytes. What is larger than all room stands alone. */
static struct packed_entry *packed_room(struct packed *packed, size_t count) {
    while (packed->bytes > 0 && packed->bytes + count > PACKED_BYTES) {
        packed_drop(packed, packed_oldest(packed, false));
    }
    struct packed_entry *entry = packed_oldest(packed, true);
    packed_drop(packed, entry);
    return entry;
}

static struct packed_entry *packed_known(struct packed *packed, const struct step_plan *plan,
                                         uint32_t micro_batch) {
    for (uint32_t i = 0; i < PACKED_ENTRIES; i++) {
        struct packed_entry *entry = &packed->entries[i];
        if (entry->used != 0 && entry->step == plan->step && entry->micro_batch == micro_batch &&
            memcmp(entry->digest, plan->digest, PLAN_DIGEST_BYTES) == 0) {
            return entry;
        }
    }
    return NULL;
}

static struct packed_entry *packed_add(struct packed *packed, const struct step_plan *plan,
                                       uint32_t micro_batch, struct arena *arena) {
    size_t capacity = message_wire_bytes_max(plan, micro_batch);
    uint8_t *room = arena_alloc(arena, capacity);
    size_t count = room == NULL ? 0 : message_wire_micro_batch(plan, micro_batch, room, capacity);
    uint8_t *bytes = room == NULL ? NULL : malloc(count);
    if (bytes == NULL) {
        return NULL;
    }
    memcpy(bytes, room + capacity - count, count);
    struct packed_entry *entry = packed_room(packed, count);
    *entry = (struct packed_entry){
        .step = plan->step, .micro_batch = micro_batch, .bytes = bytes, .count = count};
    memcpy(entry->digest, plan->digest, PLAN_DIGEST_BYTES);
    packed->bytes += count;
    return entry;
}

const uint8_t *packed_find(struct packed *packed, const struct step_plan *plan,
                           uint32_t micro_batch, struct arena *arena, size_t *count) {
    struct packed_entry *entry = packed_known(packed, plan, micro_batch);
    if (entry == NULL) {
        entry = packed_add(packed, plan, micro_batch, arena);
    }
    if (entry == NULL) {
        return NULL;
    }
    entry->used = ++packed->clock;
    *count = entry->count;
    return entry->bytes;
}
