/* digest: the bytes by which ranks and nodes know that they hold the same plan; see plan.h.
 *
 * Only what a rank's tensors follow from is hashed, so that a better forecast or a new report
 * never looks like another plan. */
#include "planner/plan.h"

#include <endian.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* the hash state on the stack */
#include <xxhash.h>

#define DIGEST_WORDS 256u

struct digest {
    XXH3_state_t hash;
    uint64_t words[DIGEST_WORDS];
    uint32_t count;
};

static void digest_flush(struct digest *digest) {
    (void)XXH3_128bits_update(&digest->hash, digest->words,
                              digest->count * sizeof digest->words[0]);
    digest->count = 0;
}

static void digest_put(struct digest *digest, uint64_t value) {
    if (digest->count == DIGEST_WORDS) {
        digest_flush(digest);
    }
    digest->words[digest->count++] = htole64(value);
}

static void digest_documents(struct digest *digest, const struct step_plan *plan,
                             const struct micro_batch *micro_batch) {
    digest_put(digest, micro_batch->document_count);
    for (uint32_t i = 0; i < micro_batch->document_count; i++) {
        const struct document *document = &plan->documents[micro_batch->document_begin + i];
        digest_put(digest, document->dataset);
        digest_put(digest, document->document);
        digest_put(digest, document->offset);
        digest_put(digest, document->length);
        digest_put(digest, document->nominal_step);
        digest_put(digest, document->epoch);
    }
}

static void digest_shards(struct digest *digest, const struct step_plan *plan,
                          const struct micro_batch *micro_batch) {
    digest_put(digest, plan->cp);
    for (uint32_t rank = 0; rank < plan->cp; rank++) {
        const struct rank_shard *shard = &plan->shards[micro_batch->shard_begin + rank];
        digest_put(digest, shard->fragment_count);
        for (uint32_t i = 0; i < shard->fragment_count; i++) {
            struct fragment fragment = plan->fragments[shard->fragment_begin + i];
            digest_put(digest, fragment.document);
            digest_put(digest, fragment.start);
            digest_put(digest, fragment.length);
        }
    }
}

static void digest_tiles(struct digest *digest, const struct step_plan *plan,
                         const struct plan_pool *pool) {
    uint32_t shards = plan->pool_shape.head_shards;
    digest_put(digest, (uint64_t)pool->piece_count * shards);
    for (uint32_t i = 0; i < pool->piece_count * shards; i++) {
        const struct pool_piece *piece = &plan->pieces[pool->piece_begin + i / shards];
        digest_put(digest, pool->dp_begin + piece->sequence);
        digest_put(digest, piece->block);
        digest_put(digest, i % shards);
        digest_put(digest, piece->home);
        digest_put(digest, plan->tile_workers[(size_t)pool->piece_begin * shards + i]);
        digest_put(digest, piece->pairs);
        digest_put(digest, piece->row);
        digest_put(digest, piece->rows);
    }
}

static void digest_transfers(struct digest *digest, const struct step_plan *plan,
                             const struct plan_pool *pool) {
    digest_put(digest, pool->transfer_count);
    for (uint32_t i = 0; i < pool->transfer_count; i++) {
        const struct pool_transfer *transfer = &plan->transfers[pool->transfer_begin + i];
        digest_put(digest, transfer->payload);
        digest_put(digest, transfer->source);
        digest_put(digest, transfer->worker);
        digest_put(digest, pool->dp_begin + transfer->sequence);
        digest_put(digest, transfer->row);
        digest_put(digest, transfer->rows);
        digest_put(digest, transfer->head_begin);
        digest_put(digest, transfer->head_count);
        digest_put(digest, transfer->bytes);
    }
}

static void digest_pool(struct digest *digest, const struct step_plan *plan,
                        const struct plan_pool *pool) {
    const struct pool_shape *shape = &plan->pool_shape;
    digest_put(digest, pool->ga_index);
    digest_put(digest, shape->sequences);
    for (uint32_t i = 0; i < shape->sequences; i++) {
        digest_put(digest, pool->dp_begin + i);
    }
    digest_put(digest, shape->block_rows);
    digest_put(digest, shape->head_shards);
    digest_put(digest, shape->q_heads);
    digest_put(digest, shape->kv_heads);
    digest_put(digest, shape->head_dim);
    digest_put(digest, shape->element_bytes);
    digest_tiles(digest, plan, pool);
    digest_transfers(digest, plan, pool);
    digest_put(digest, pool->load_max);
    digest_put(digest, pool->load_mean);
}

void step_plan_digest(const struct step_plan *plan, uint8_t out[PLAN_DIGEST_BYTES]) {
    struct digest digest;
    digest.count = 0;
    (void)XXH3_128bits_reset(&digest.hash);
    digest_put(&digest, plan->step);
    digest_put(&digest, plan->micro_batch_count);
    for (uint32_t i = 0; i < plan->micro_batch_count; i++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[i];
        digest_documents(&digest, plan, micro_batch);
        digest_put(&digest, micro_batch->pad_tokens);
        digest_put(&digest, micro_batch->choice.layout);
        digest_shards(&digest, plan, micro_batch);
    }
    digest_put(&digest, plan->pool_count);
    for (uint32_t i = 0; i < plan->pool_count; i++) {
        digest_pool(&digest, plan, &plan->pools[i]);
    }
    digest_put(&digest, plan->loss_denominator);
    digest_flush(&digest);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&digest.hash));
    memcpy(out, canonical.digest, PLAN_DIGEST_BYTES);
}
