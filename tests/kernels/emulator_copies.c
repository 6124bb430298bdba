/* emulator_copies: TMA, bulk copies and bulk additions, and the ordinary accesses that they must
 * not meet. An addition reads its source at one moment and lands at a later one. */
#include "tests/kernels/emulator_block.h"

#include <assert.h>

#define COPIES_MAX 4096u
#define BOX_BYTES  32768u

/* A map as emulator_encode writes it. */
struct map {
    const unsigned char *base;
    uint64_t size[3];
    uint64_t stride_bytes[3];
    uint32_t box[3];
    uint32_t element_bytes;
};
_Static_assert(sizeof(struct map) <= sizeof(struct tensor_map), "fits a tensor map");

enum copy_kind { COPY_BOX, COPY_BULK, COPY_ADD_READ, COPY_ADD_LAND };

struct copy {
    enum copy_kind kind;
    struct block *block;
    struct map map; /* a copy: kernel parameters may live on the issuing fiber's stack */
    uint32_t shared;
    uint32_t bytes;
    uint32_t barrier;
    int at[3];
    const unsigned char *from;
    int thread;                    /* additions: whose */
    uint64_t group;                /* additions: which of its groups */
    unsigned char data[BOX_BYTES]; /* additions: what was read */
};

static struct copy copies[COPIES_MAX];
static uint32_t copy_count;

void copies_reset(void) {
    copy_count = 0;
}

uint32_t copies_pending(void) {
    return copy_count;
}

uint32_t copies_of(const struct block *block) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < copy_count; i++) {
        count += copies[i].block == block;
    }
    return count;
}

static uint32_t swizzle(uint32_t address) {
    return address ^ (address >> 7 & 7) << 4;
}

int emulator_encode(struct tensor_map *out, const void *base, uint32_t element_bytes,
                    const uint64_t *size, const uint64_t *stride_bytes, const uint32_t *box) {
    struct map map = {.base = base, .element_bytes = element_bytes};
    if ((uintptr_t)base % 16 != 0 || box[0] * element_bytes > 128 ||
        box[0] * element_bytes % 16 != 0) {
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        map.size[i] = size[i];
        map.box[i] = box[i];
        map.stride_bytes[i] = i == 0 ? element_bytes : stride_bytes[i - 1];
        if (size[i] == 0 || size[i] > UINT64_C(1) << 32 || box[i] == 0 || box[i] > 256 ||
            (i > 0 && (stride_bytes[i - 1] % 16 != 0 || stride_bytes[i - 1] >> 40 != 0))) {
            return -1;
        }
    }
    memset(out, 0, sizeof *out);
    memcpy(out, &map, sizeof map);
    return 0;
}

static uint32_t map_bytes(const struct map *map) {
    return map->box[0] * map->element_bytes * map->box[1] * map->box[2];
}

/* Marks or unmarks the chunks of a copy in flight. */
static void chunks_mark(struct block *block, uint32_t address, uint32_t bytes, int reads,
                        int writes) {
    uint32_t first = (address - SHARED_BASE) / CHUNK_BYTES;
    for (uint32_t i = 0; i < bytes / CHUNK_BYTES; i++) {
        struct chunk *chunk = &block->chunks[first + i];
        chunk->reads = (uint8_t)(chunk->reads + reads);
        chunk->writes = (uint8_t)(chunk->writes + writes);
    }
}

void chunk_check_read(struct block *block, uint32_t address, const char *what) {
    const struct chunk *chunk = &block->chunks[(address - SHARED_BASE) / CHUNK_BYTES];
    if (chunk->stored_by != 0) {
        emulator_fail("%s reads shared %u, stored by thread %d without a proxy fence", what,
                      address - SHARED_BASE, chunk->stored_by - 1);
    }
    if (chunk->writes != 0) {
        emulator_fail("%s reads shared %u while a copy is in flight to it", what,
                      address - SHARED_BASE);
    }
}

static bool box_inside(const struct map *map, const int64_t *at) {
    for (int i = 0; i < 3; i++) {
        if (at[i] < 0 || (uint64_t)at[i] >= map->size[i]) {
            return false;
        }
    }
    return true;
}

/* Global address of one 16-byte chunk of a box; NULL outside the tensor. */
static unsigned char *box_chunk(const struct map *map, const int *at, uint32_t index) {
    uint32_t row_chunks = map->box[0] * map->element_bytes / CHUNK_BYTES;
    uint32_t row = index / row_chunks;
    int64_t place[3] = {
        at[0] + (int64_t)(index % row_chunks * CHUNK_BYTES / map->element_bytes),
        at[1] + (int64_t)(row % map->box[1]),
        at[2] + (int64_t)(row / map->box[1]),
    };
    if (!box_inside(map, place)) {
        return NULL;
    }
    return (unsigned char *)(uintptr_t)map->base + (uint64_t)place[0] * map->stride_bytes[0] +
           (uint64_t)place[1] * map->stride_bytes[1] + (uint64_t)place[2] * map->stride_bytes[2];
}

static void run_box(struct copy *copy) {
    for (uint32_t i = 0; i < copy->bytes / CHUNK_BYTES; i++) {
        uint32_t address = swizzle(copy->shared + i * CHUNK_BYTES);
        unsigned char *to = copy->block->shared + (address - SHARED_BASE);
        const unsigned char *from = box_chunk(&copy->map, copy->at, i);
        if (from != NULL) {
            memcpy(to, from, CHUNK_BYTES);
        } else {
            memset(to, 0, CHUNK_BYTES);
        }
    }
}

static void run_add_read(struct copy *copy) {
    for (uint32_t i = 0; i < copy->bytes / CHUNK_BYTES; i++) {
        uint32_t address = swizzle(copy->shared + i * CHUNK_BYTES);
        chunk_check_read(copy->block, address, "bulk addition");
        memcpy(copy->data + i * CHUNK_BYTES, copy->block->shared + (address - SHARED_BASE),
               CHUNK_BYTES);
    }
}

static void run_add_land(const struct copy *copy) {
    for (uint32_t i = 0; i < copy->bytes / CHUNK_BYTES; i++) {
        float *to = (float *)(void *)box_chunk(&copy->map, copy->at, i);
        for (uint32_t e = 0; to != NULL && e < CHUNK_BYTES / sizeof(float); e++) {
            float value;
            memcpy(&value, copy->data + i * CHUNK_BYTES + e * sizeof value, sizeof value);
            to[e] += value;
        }
    }
}

/* Runs a copy, or the first half of an addition; true when it is over. */
static bool copy_run(struct copy *copy) {
    emulator.progress++;
    switch (copy->kind) {
    case COPY_BOX:
        run_box(copy);
        break;
    case COPY_BULK:
        memcpy(copy->block->shared + (copy->shared - SHARED_BASE), copy->from, copy->bytes);
        break;
    case COPY_ADD_READ:
        run_add_read(copy);
        chunks_mark(copy->block, copy->shared, copy->bytes, -1, 0);
        copy->kind = COPY_ADD_LAND;
        return false;
    case COPY_ADD_LAND:
        run_add_land(copy);
        return true;
    }
    chunks_mark(copy->block, copy->shared, copy->bytes, 0, -1);
    mbarrier_bytes_done(copy->block, copy->barrier, copy->bytes);
    return true;
}

void copies_run_one(void) {
    bool random = emulator.launch->schedule >= EMULATOR_RANDOM;
    uint32_t i = random ? (uint32_t)(emulator_random() % copy_count) : 0;
    if (copy_run(&copies[i])) {
        copy_count--;
        for (uint32_t j = i; random ? j == i : j < copy_count; j++) {
            copies[j] = copies[random ? copy_count : j + 1];
        }
    }
}

static struct copy *copy_issue(enum copy_kind kind, uint32_t shared, uint32_t bytes,
                               const char *what) {
    struct block *block = block_current();
    assert(copy_count < COPIES_MAX);
    (void)shared_at(block, shared, bytes, what);
    struct copy *copy = &copies[copy_count++];
    copy->kind = kind;
    copy->block = block;
    copy->shared = shared;
    copy->bytes = bytes;
    bool adds = kind == COPY_ADD_READ;
    if (!adds) {
        memset(block->shared + (shared - SHARED_BASE), 0xff, bytes);
    }
    chunks_mark(block, shared, bytes, adds, !adds);
    emulator.progress++;
    return copy;
}

static void copy_issued(struct copy *copy) {
    while (emulator.launch->schedule == EMULATOR_EAGER && !copy_run(copy)) {
    }
    copy_count -= emulator.launch->schedule == EMULATOR_EAGER;
}

void tma_load(uint32_t to, const struct tensor_map *map, uint32_t barrier, int x, int y, int z) {
    struct map decoded;
    memcpy(&decoded, map, sizeof decoded);
    if (to % 1024 != 0) {
        emulator_fail("TMA to %u: 128-byte swizzle needs 1024-byte alignment", to - SHARED_BASE);
    }
    struct copy *copy = copy_issue(COPY_BOX, to, map_bytes(&decoded), "TMA");
    copy->map = decoded;
    copy->barrier = barrier;
    copy->at[0] = x, copy->at[1] = y, copy->at[2] = z;
    emulator.counts.loads++;
    emulator.counts.load_bytes += copy->bytes;
    copy_issued(copy);
}

void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    if (to % 16 != 0 || bytes % 16 != 0 || (uintptr_t)from % 16 != 0) {
        emulator_fail("bulk copy of %u bytes to %u: 16-byte alignment", bytes, to - SHARED_BASE);
    }
    struct copy *copy = copy_issue(COPY_BULK, to, bytes, "bulk copy");
    copy->from = from;
    copy->barrier = barrier;
    emulator.counts.loads++;
    emulator.counts.load_bytes += copy->bytes;
    copy_issued(copy);
}

void tma_reduce_add(const struct tensor_map *map, uint32_t from, int x, int y, int z) {
    struct fiber *fiber = fiber_current();
    struct map decoded;
    memcpy(&decoded, map, sizeof decoded);
    if (from % 1024 != 0 || decoded.element_bytes != 4 || map_bytes(&decoded) > BOX_BYTES) {
        emulator_fail("bulk addition from %u: floats, 1024-byte alignment", from - SHARED_BASE);
    }
    struct copy *copy = copy_issue(COPY_ADD_READ, from, map_bytes(&decoded), "bulk addition");
    copy->map = decoded;
    copy->thread = fiber->thread;
    copy->group = fiber->bulk_groups + 1;
    copy->at[0] = x, copy->at[1] = y, copy->at[2] = z;
    fiber->uncommitted++;
    emulator.counts.additions++;
    copy_issued(copy);
}

void bulk_commit(void) {
    struct fiber *fiber = fiber_current();
    fiber->bulk_groups++;
    fiber->uncommitted = 0;
}

/* Additions of the thread's groups up to `group` that have not been read, or have not landed. */
static bool additions_left(const struct fiber *fiber, uint64_t group, bool landed) {
    for (uint32_t i = 0; i < copy_count; i++) {
        bool due = copies[i].kind == COPY_ADD_READ || (landed && copies[i].kind == COPY_ADD_LAND);
        if (due && copies[i].block == fiber->block && copies[i].thread == fiber->thread &&
            copies[i].group <= group) {
            return true;
        }
    }
    return false;
}

void emulator_bulk_wait(uint32_t groups, int landed) {
    struct fiber *fiber = fiber_current();
    uint64_t last = fiber->bulk_groups > groups ? fiber->bulk_groups - groups : 0;
    while (additions_left(fiber, last, landed != 0)) {
        fiber->waits_for = "bulk additions";
        fiber_yield();
    }
    fiber->waits_for = NULL;
}

/* Marks the chunk as stored by this thread, until it fences. */
static unsigned char *store_at(uint32_t to, uint32_t bytes) {
    struct fiber *fiber = fiber_current();
    unsigned char *at = shared_at(fiber->block, to, bytes, "store");
    uint32_t index = (to - SHARED_BASE) / CHUNK_BYTES;
    struct chunk *chunk = &fiber->block->chunks[index];
    if (to % bytes != 0) {
        emulator_fail("store to shared %u is not aligned to %u", to - SHARED_BASE, bytes);
    }
    if (chunk->writes != 0 || chunk->reads != 0) {
        emulator_fail("store to shared %u while a copy is in flight", to - SHARED_BASE);
    }
    if (chunk->stored_by != fiber->thread + 1) {
        if (fiber->store_count == STORES_MAX) {
            emulator_fail("more than %u stores without a fence", STORES_MAX);
        }
        fiber->stores[fiber->store_count++] = index;
        chunk->stored_by = (uint16_t)(fiber->thread + 1);
    }
    return at;
}

void shared_store(uint32_t to, uint32_t value) {
    memcpy(store_at(to, 4), &value, 4);
}

void shared_store_pair(uint32_t to, float a, float b) {
    unsigned char *at = store_at(to, 8);
    memcpy(at, &a, 4);
    memcpy(at + 4, &b, 4);
}

void shared_clear(uint32_t to) {
    memset(store_at(to, 16), 0, 16);
}

void shared_load_pair(uint32_t from, float *a, float *b) {
    struct block *block = block_current();
    const unsigned char *at = shared_at(block, from, 8, "load");
    if (from % 8 != 0 || block->chunks[(from - SHARED_BASE) / CHUNK_BYTES].writes != 0) {
        emulator_fail("load of shared %u: misaligned, or a copy is in flight", from - SHARED_BASE);
    }
    memcpy(a, at, 4);
    memcpy(b, at + 4, 4);
}

void fence_async(void) {
    struct fiber *fiber = fiber_current();
    for (uint32_t i = 0; i < fiber->store_count; i++) {
        struct chunk *chunk = &fiber->block->chunks[fiber->stores[i]];
        if (chunk->stored_by == fiber->thread + 1) {
            chunk->stored_by = 0;
        }
    }
    fiber->store_count = 0;
}
