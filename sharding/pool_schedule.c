/* pool_schedule: see pool_schedule.h. */
#include "sharding/pool_schedule.h"

#include <assert.h>

uint32_t pool_kv_pieces(const struct pool_shape *shape, uint32_t chunks) {
    uint32_t heads = pool_range_heads(shape);
    return heads < chunks ? heads : chunks;
}

/* Part i of n of a time. */
static uint64_t pool_part(uint64_t time, uint32_t i, uint32_t n) {
    uint64_t each = time / n;
    uint64_t rest = time % n;
    return each + ((i + 1) * rest / n - i * rest / n);
}

static uint64_t pool_dispatch(const struct pool_times *times, uint32_t chunk, uint32_t chunks,
                              uint32_t kv_pieces) {
    uint64_t time = pool_part(times->q, chunk, chunks);
    for (uint32_t piece = 0; piece < kv_pieces; piece++) {
        uint32_t first_chunk = (uint32_t)((uint64_t)piece * chunks / kv_pieces);
        time += first_chunk == chunk ? pool_part(times->kv, piece, kv_pieces) : 0;
    }
    return time;
}

struct pool_schedule pool_schedule_of(const struct pool_shape *shape, uint32_t chunks, bool duplex,
                                      const struct pool_times *times) {
    assert(chunks > 0 && pool_shard_heads(shape) % chunks == 0);
    struct pool_schedule schedule = {
        .chunks = chunks,
        .kv_pieces = pool_kv_pieces(shape, chunks),
    };
    uint64_t total = times->hops + pool_dispatch(times, 0, chunks, schedule.kv_pieces);
    for (uint32_t i = 0; i < chunks; i++) {
        uint64_t ahead = i + 1 < chunks ? pool_dispatch(times, i + 1, chunks, schedule.kv_pieces)
                                        : 0;
        uint64_t back = i > 0 ? pool_part(times->o, i - 1, chunks) : 0;
        uint64_t link = ahead > back ? ahead : back;
        uint64_t busy = duplex ? link : ahead + back;
        uint64_t compute = pool_part(times->compute, i, chunks);
        total += busy > compute ? busy : compute;
    }
    schedule.total = total + pool_part(times->o, chunks - 1, chunks);
    schedule.exposed = schedule.total - times->compute;
    return schedule;
}
