/* rank_verify: see rank_verify.h. */
#include "client/rank_verify.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* Rows [row, row + rows) of the packed sequence that this rank has. */
struct verify_run {
    uint64_t row;
    uint64_t rows;
};

struct verify {
    const struct ballast_batch *batch;
    const struct ballast_pool *pool;
    struct verify_run *runs; /* ascending; touching ones are one */
    uint32_t run_count;
    uint64_t *sees;    /* by tile: the first key that it sees; one elsewhere: UINT64_MAX */
    uint32_t tile;     /* where a key was seen last */
    uint32_t run;      /* where the last key was found, as the next */
    uint32_t transfer; /* keys come in about the order of tiles */
};

static int verify_runs(struct verify *v, const char **why) {
    const struct ballast_batch *batch = v->batch;
    uint32_t document = 0;
    uint64_t first = 0;
    for (uint32_t i = 0; i < batch->fragment_count; i++) {
        const struct ballast_fragment *fragment = &batch->fragments[i];
        while (document < fragment->document) {
            first += batch->documents[document++].length;
        }
        struct verify_run *last = v->run_count > 0 ? &v->runs[v->run_count - 1] : NULL;
        uint64_t row = first + fragment->start;
        if (last != NULL && row < last->row + last->rows) {
            *why = "fragments are not in the order of rows";
            return -EBADMSG;
        }
        if (last != NULL && row == last->row + last->rows) {
            last->rows += fragment->length;
        } else {
            v->runs[v->run_count++] = (struct verify_run){row, fragment->length};
        }
    }
    return 0;
}

/* Tiles are in order, each once, of blocks and homes that the rows allow. */
static int verify_tiles(const struct verify *v, const char **why) {
    const struct ballast_pool *pool = v->pool;
    for (uint32_t i = 0; i < pool->tile_count; i++) {
        const struct ballast_tile *tile = &pool->tiles[i], *last = i > 0 ? tile - 1 : tile;
        bool follows = i == 0 || tile->dp > last->dp ||
                       (tile->dp == last->dp &&
                        (tile->row >= last->row + last->rows ||
                         (tile->row == last->row && tile->rows == last->rows &&
                          tile->home == last->home && tile->head_shard > last->head_shard)));
        if (!follows) {
            *why = "tiles overlap, or are out of order";
            return -EBADMSG;
        }
        if (tile->row / pool->block_tokens != (tile->row + tile->rows - 1) / pool->block_tokens) {
            *why = "a tile is of two blocks";
            return -EBADMSG;
        }
        if (pool->replicas[tile->home / v->batch->group_ranks].dp != tile->dp) {
            *why = "a tile's home is another replica";
            return -EBADMSG;
        }
    }
    return 0;
}

/* The tiles of this rank's rows, wherever they are computed, follow its runs without a gap, and
 * each piece has all its head shards. */
static int verify_home(const struct verify *v, const char **why) {
    const struct ballast_pool *pool = v->pool;
    uint32_t run = 0, shard = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < pool->tile_count; i++) {
        const struct ballast_tile *tile = &pool->tiles[i];
        if (tile->home != pool->worker) {
            continue;
        }
        if (run == v->run_count || tile->row != v->runs[run].row + used ||
            tile->rows > v->runs[run].rows - used || tile->head_shard != shard) {
            *why = "tiles at home are not this rank's rows for all heads";
            return -EBADMSG;
        }
        shard = (shard + 1) % pool->head_shards;
        used += shard == 0 ? tile->rows : 0;
        if (used == v->runs[run].rows) {
            run++;
            used = 0;
        }
    }
    if (run != v->run_count || used != 0 || shard != 0) {
        *why = "tiles at home leave out rows of this rank";
        return -EBADMSG;
    }
    return 0;
}

/* Whether the transfer moves the tile's Q from home, or its O to it. */
static bool verify_moves(const struct ballast_pool *pool, const struct ballast_tile *tile,
                         const struct ballast_transfer *transfer, uint32_t payload) {
    bool out = payload == BALLAST_PAYLOAD_Q;
    uint32_t heads = pool->heads / pool->head_shards;
    return transfer->payload == payload && transfer->source == (out ? tile->home : tile->worker) &&
           transfer->worker == (out ? tile->worker : tile->home) && transfer->dp == tile->dp &&
           transfer->row == tile->row && transfer->rows == tile->rows &&
           transfer->head_begin == tile->head_shard * heads && transfer->head_count == heads &&
           transfer->bytes == tile->rows * heads * pool->head_dim * pool->element_bytes;
}

/* Q and O are those of the tiles away from home, in their order; only K and V in between. */
static int verify_moved(const struct verify *v, const char **why) {
    const struct ballast_pool *pool = v->pool;
    uint32_t moved = 0, back = pool->transfer_count;
    for (uint32_t i = 0; i < pool->tile_count; i++) {
        moved += pool->tiles[i].home != pool->tiles[i].worker;
    }
    if (back < moved || back - moved < moved) {
        *why = "tiles away from home without Q or O";
        return -EBADMSG;
    }
    back -= moved;
    for (uint32_t i = 0, at = 0; i < pool->tile_count; i++) {
        const struct ballast_tile *tile = &pool->tiles[i];
        if (tile->home == tile->worker) {
            continue;
        }
        if (!verify_moves(pool, tile, &pool->transfers[at], BALLAST_PAYLOAD_Q) ||
            !verify_moves(pool, tile, &pool->transfers[back + at], BALLAST_PAYLOAD_O)) {
            *why = "Q or O is not that of a tile away from home";
            return -EBADMSG;
        }
        at++;
    }
    for (uint32_t i = moved; i < back; i++) {
        if (pool->transfers[i].payload != BALLAST_PAYLOAD_KV) {
            *why = "Q or O of no tile";
            return -EBADMSG;
        }
    }
    return 0;
}

static bool verify_within(uint64_t at, uint64_t row, uint64_t rows) {
    return at >= row && at - row < rows;
}

/* The end of the keys from `at` on that this rank has itself; `at` when it has not that one. */
static uint64_t verify_own_keys(struct verify *v, uint32_t dp, uint64_t at) {
    for (uint32_t i = 0; dp == v->batch->dp && i < v->run_count; i++) {
        const struct verify_run *run = &v->runs[v->run];
        if (verify_within(at, run->row, run->rows)) {
            return run->row + run->rows;
        }
        v->run = (v->run + 1) % v->run_count;
    }
    return at;
}

/* The same of keys that come, for K/V heads [head_begin, head_end). */
static uint64_t verify_coming_keys(struct verify *v, uint32_t dp, uint32_t head_begin,
                                   uint32_t head_end, uint64_t at) {
    const struct ballast_pool *pool = v->pool;
    for (uint32_t i = 0; i < pool->transfer_count; i++) {
        const struct ballast_transfer *transfer = &pool->transfers[v->transfer];
        if (transfer->payload == BALLAST_PAYLOAD_KV && transfer->worker == pool->worker &&
            transfer->dp == dp && verify_within(at, transfer->row, transfer->rows) &&
            transfer->head_begin <= head_begin &&
            transfer->head_begin + transfer->head_count >= head_end) {
            return transfer->row + transfer->rows;
        }
        v->transfer = (v->transfer + 1) % pool->transfer_count;
    }
    return at;
}

/* K/V heads that tiles of one head shard see. */
static uint32_t verify_range_heads(const struct ballast_pool *pool) {
    uint32_t ranges = pool->head_shards < pool->kv_heads ? pool->head_shards : pool->kv_heads;
    return pool->kv_heads / ranges;
}

/* The first K/V head of the range that a head shard sees. */
static uint32_t verify_range_begin(const struct ballast_pool *pool, uint32_t head_shard) {
    uint32_t heads = verify_range_heads(pool);
    return head_shard / (pool->head_shards / (pool->kv_heads / heads)) * heads;
}

/* Whether keys [row, end) of a range of K/V heads are here or come. */
static bool verify_keys(struct verify *v, uint32_t dp, uint32_t head_begin, uint64_t row,
                        uint64_t end) {
    uint32_t head_end = head_begin + verify_range_heads(v->pool);
    for (uint64_t at = row; at < end;) {
        uint64_t next = verify_own_keys(v, dp, at);
        if (next == at) {
            next = verify_coming_keys(v, dp, head_begin, head_end, at);
        }
        if (next == at) {
            return false;
        }
        at = next;
    }
    return true;
}

/* One tile computed here; the document *document of `replica`, which begins at row *first, is not
 * behind the tile's first row. */
static int verify_tile_keys(struct verify *v, const struct ballast_tile *tile,
                            const struct ballast_pool_replica *replica, uint32_t *document,
                            uint64_t *first, const char **why) {
    uint64_t end = tile->row + tile->rows, pairs = 0;
    while (*document < replica->length_count && *first + replica->lengths[*document] <= tile->row) {
        *first += replica->lengths[(*document)++];
    }
    uint64_t row = *first;
    uint32_t head_begin = verify_range_begin(v->pool, tile->head_shard);
    v->sees[tile - v->pool->tiles] = row;
    for (uint32_t i = *document; i < replica->length_count && row < end; i++) {
        uint64_t after = row + replica->lengths[i];
        uint64_t begin = (tile->row > row ? tile->row : row) - row;
        uint64_t stop = (end < after ? end : after) - row;
        pairs += (begin + stop + 1) * (stop - begin) / 2;
        if (!verify_keys(v, tile->dp, head_begin, row, row + stop)) {
            *why = "a key that a tile sees is not here and does not come";
            return -EBADMSG;
        }
        row = after;
    }
    if (row < end || pairs != tile->pairs) {
        *why = "a tile's pairs are not those of its documents";
        return -EBADMSG;
    }
    return 0;
}

static int verify_here(struct verify *v, const char **why) {
    const struct ballast_pool *pool = v->pool;
    const struct ballast_pool_replica *replica = pool->replicas;
    uint32_t document = 0;
    uint64_t first = 0;
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < pool->tile_count; i++) {
        const struct ballast_tile *tile = &pool->tiles[i];
        for (; replica->dp != tile->dp; replica++) {
            document = 0;
            first = 0;
        }
        v->sees[i] = UINT64_MAX;
        if (tile->worker == pool->worker) {
            code = verify_tile_keys(v, tile, replica, &document, &first, why);
        }
    }
    return code;
}

static int verify_compare(const void *a, const void *b) {
    const struct ballast_transfer *x = *(const struct ballast_transfer *const *)a;
    const struct ballast_transfer *y = *(const struct ballast_transfer *const *)b;
    if (x->dp != y->dp) {
        return x->dp < y->dp ? -1 : 1;
    }
    if (x->head_begin != y->head_begin) {
        return x->head_begin < y->head_begin ? -1 : 1;
    }
    return (x->row > y->row) - (x->row < y->row);
}

/* Keys come once, by ranges of K/V heads. `coming` has room for every transfer. */
static int verify_once(const struct verify *v, const struct ballast_transfer **coming,
                       const char **why) {
    const struct ballast_pool *pool = v->pool;
    uint32_t heads = verify_range_heads(pool);
    size_t count = 0;
    for (uint32_t i = 0; i < pool->transfer_count; i++) {
        const struct ballast_transfer *transfer = &pool->transfers[i];
        if (transfer->payload != BALLAST_PAYLOAD_KV) {
            continue;
        }
        if (transfer->head_count != heads || transfer->head_begin % heads != 0) {
            *why = "keys are not of a range of heads";
            return -EBADMSG;
        }
        if (transfer->worker == pool->worker) {
            coming[count++] = transfer;
        }
    }
    qsort(coming, count, sizeof(*coming), verify_compare);
    for (size_t i = 1; i < count; i++) {
        const struct ballast_transfer *last = coming[i - 1];
        if (coming[i]->dp == last->dp && coming[i]->head_begin == last->head_begin &&
            coming[i]->row < last->row + last->rows) {
            *why = "a key comes twice";
            return -EBADMSG;
        }
    }
    return 0;
}

/* The end of the keys from `at` on that some tile here sees; `at` when none sees that one. A tile
 * sees all from the begin of its first document to its own end. */
static uint64_t verify_seen_keys(struct verify *v, const struct ballast_transfer *transfer,
                                 uint64_t at) {
    const struct ballast_pool *pool = v->pool;
    for (uint32_t i = 0; i < pool->tile_count; i++) {
        const struct ballast_tile *tile = &pool->tiles[v->tile];
        if (tile->dp == transfer->dp && v->sees[v->tile] <= at && at < tile->row + tile->rows &&
            verify_range_begin(pool, tile->head_shard) == transfer->head_begin) {
            return tile->row + tile->rows;
        }
        v->tile = (v->tile + 1) % pool->tile_count;
    }
    return at;
}

/* Whether this rank has some of the rows itself. */
static bool verify_own_rows(const struct verify *v, const struct ballast_transfer *transfer) {
    bool own = false;
    for (uint32_t i = 0; transfer->dp == v->batch->dp && i < v->run_count; i++) {
        const struct verify_run *run = &v->runs[i];
        own = own ||
              (run->row < transfer->row + transfer->rows && transfer->row < run->row + run->rows);
    }
    return own;
}

/* Keys that come are seen and not had here; keys that go are here, or come. */
static int verify_needed(struct verify *v, const char **why) {
    const struct ballast_pool *pool = v->pool;
    for (uint32_t i = 0; i < pool->transfer_count; i++) {
        const struct ballast_transfer *transfer = &pool->transfers[i];
        uint64_t end = transfer->row + transfer->rows;
        if (transfer->payload != BALLAST_PAYLOAD_KV) {
            continue;
        }
        if (transfer->worker != pool->worker) {
            if (!verify_keys(v, transfer->dp, transfer->head_begin, transfer->row, end)) {
                *why = "a key goes that is not here and does not come";
                return -EBADMSG;
            }
            continue;
        }
        if (verify_own_rows(v, transfer)) {
            *why = "a key comes that is here";
            return -EBADMSG;
        }
        for (uint64_t at = transfer->row, next; at < end; at = next) {
            next = verify_seen_keys(v, transfer, at);
            if (next == at) {
                *why = "a key comes that no tile here sees";
                return -EBADMSG;
            }
        }
    }
    return 0;
}

int64_t rank_verify(const struct ballast_batch *batch, const char **why) {
    const struct ballast_pool *pool = batch->pool;
    if (pool == NULL) {
        return rank_verify_rows(batch, why);
    }
    struct verify v = {.batch = batch, .pool = pool};
    const struct ballast_transfer **coming = calloc((size_t)pool->transfer_count + 1,
                                                    sizeof(*coming));
    v.runs = calloc((size_t)batch->fragment_count + 1, sizeof *v.runs);
    v.sees = calloc((size_t)pool->tile_count + 1, sizeof *v.sees);
    int code = coming != NULL && v.runs != NULL && v.sees != NULL ? 0 : -ENOMEM;
    *why = code < 0 ? "out of memory" : *why;
    code = code < 0 ? code : verify_runs(&v, why);
    code = code < 0 ? code : verify_tiles(&v, why);
    code = code < 0 ? code : verify_home(&v, why);
    code = code < 0 ? code : verify_moved(&v, why);
    code = code < 0 ? code : verify_here(&v, why);
    code = code < 0 ? code : verify_once(&v, coming, why);
    code = code < 0 ? code : verify_needed(&v, why);
    free(v.sees);
    free(v.runs);
    free((void *)coming);
    return code < 0 ? code : (int64_t)pool->tile_count + pool->transfer_count;
}
