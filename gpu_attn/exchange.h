/* exchange: what a rank keeps of the lists: the runs of rows that it sends or receives.
 *
 * Private to gpu_attn/. The runs of a pair of ranks stand in the same order at both. */
#ifndef BALLAST_GPU_ATTN_EXCHANGE_H
#define BALLAST_GPU_ATTN_EXCHANGE_H

#include "gpu_attn/ballast_exchange.h"

#include <stdbool.h>

struct exchange_run {
    uint32_t peer;
    uint32_t row; /* of own rows where this rank is home, of a work buffer where it computes */
    uint32_t rows;
    uint16_t head_begin;
    uint16_t head_count;
    uint32_t first_chunk; /* that sees it; for Q all do, each its part of the heads */
    uint32_t last_chunk;
};

/* By peer. */
struct exchange_runs {
    struct exchange_run *runs;
    uint32_t count;
    uint32_t capacity;
};

struct ballast_exchange {
    uint32_t rank;
    uint32_t ranks;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t element_bytes;
    uint32_t chunks;
    uint8_t digest[BALLAST_EXCHANGE_DIGEST_BYTES];
    uint8_t lists_digest[BALLAST_EXCHANGE_DIGEST_BYTES];
    struct exchange_runs q_home;             /* own rows that others compute */
    struct exchange_runs q_away;             /* rows of others that this rank computes */
    struct exchange_runs kv_home;            /* own rows that ranks read, this one included */
    struct exchange_runs kv_away;            /* rows that this rank reads, its own included */
    struct ballast_attn_fragment *fragments; /* all heads */
    struct ballast_exchange_sizes sizes;
    size_t region_bytes[4]; /* staging: dispatch out, in; return out, in */
    uint64_t *counts;       /* scratch, 2 * ranks */
};

/* Sets region_bytes and what sizes says of bytes. */
void exchange_measure(struct ballast_exchange *exchange);

#endif
