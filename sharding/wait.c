/* wait: see wait.h. */
#include "sharding/wait.h"

#include "sharding/keys.h"

#define PS_PER_US        1000000u
#define ELEMENT_BYTES    2u /* bf16 */
#define GRADIENT_BYTES   4u /* float, of K and V */
#define STATISTICS_BYTES 4u /* log-sum-exp or rowsum(dO * O) */

typedef unsigned __int128 u128;

/* Of one row and head. */
static uint64_t wait_keys_bytes(const struct wait_link *link) {
    return 2 * (uint64_t)link->head_dim * ELEMENT_BYTES;
}

static uint64_t wait_gradients_bytes(const struct wait_link *link) {
    return 2 * (uint64_t)link->head_dim * GRADIENT_BYTES;
}

static uint64_t wait_least(u128 ps) {
    return ps < UINT64_MAX ? (uint64_t)ps : UINT64_MAX;
}

static uint64_t wait_beyond(u128 ps, u128 hidden_ps) {
    return ps > hidden_ps ? wait_least(ps - hidden_ps) : 0;
}

/* So many collectives of so many bytes together. */
static u128 wait_collectives_ps(const struct wait_link *link, uint32_t count, u128 bytes) {
    return (u128)count * link->alpha_ps +
           (bytes * PS_PER_US + link->bytes_per_us - 1) / link->bytes_per_us;
}

/* What the rank computes with its own keys. Own rows see own keys up to themselves, wherever
 * the keys of others lie between: a document of as many rows. */
static struct tile_loads wait_present(const struct tile_model *model,
                                      const struct fragment *fragments, uint32_t count) {
    struct tile_loads loads = {0};
    for (uint32_t at = 0; at < count;) {
        struct fragment own = {.document = fragments[at].document};
        for (; at < count && fragments[at].document == own.document; at++) {
            own.length += fragments[at].length;
        }
        tile_loads_add(model, &loads, &own, 1);
    }
    return loads;
}

uint64_t wait_keys_ps(const struct wait_link *link, const struct tile_model *model,
                      const struct fragment *fragments, uint32_t count) {
    uint64_t rows = link->bytes_per_us > 0 && link->needed_only ? keys_needed(fragments, count) : 0;
    if (rows == 0) {
        return 0;
    }
    struct tile_loads present = wait_present(model, fragments, count);
    uint64_t both_ps = tile_loads_ps(model, &present);
    uint64_t forward_ps = tile_loads_forward_ps(model, &present);
    u128 heads = (u128)rows * model->kv_heads;
    u128 keys = heads * wait_keys_bytes(link);
    u128 backward = keys + heads * wait_gradients_bytes(link);
    uint64_t forward_work_ps = wait_beyond(forward_ps, model->forward.launch_ps);
    uint64_t backward_work_ps = wait_beyond(both_ps, (u128)forward_ps + model->backward.launch_ps);
    uint64_t exposed_ps = wait_beyond(wait_collectives_ps(link, 1, keys), forward_work_ps);
    return wait_least((u128)exposed_ps +
                      wait_beyond(wait_collectives_ps(link, 2, backward), backward_work_ps));
}

/* Bytes of a row that a rank computes away from home: three times in and once out backward, in and
 * out forward, with the statistics. */
static u128 wait_queries_bytes(const struct wait_link *link) {
    return 6 * (u128)link->head_dim * ELEMENT_BYTES + 2 * STATISTICS_BYTES;
}

uint64_t wait_heads_ps(const struct wait_link *link, const struct tile_model *model, uint32_t cp,
                       uint64_t rows) {
    if (link->bytes_per_us == 0) {
        return 0;
    }
    uint32_t kv_heads = model->kv_heads > cp ? model->kv_heads / cp : 1;
    u128 away = (u128)rows * (cp - 1);
    u128 row_bytes = 2 * wait_keys_bytes(link) + wait_gradients_bytes(link);
    u128 keys = away * kv_heads * row_bytes;
    u128 queries = away * (model->q_heads / cp) * wait_queries_bytes(link);
    u128 gathered_ps = wait_collectives_ps(link, 3, away * model->kv_heads * row_bytes);
    return wait_beyond(wait_collectives_ps(link, 4, keys + queries),
                       link->needed_only ? 0 : gathered_ps);
}
