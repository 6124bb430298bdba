/* collectives: all-gather and reduce-scatter by NCCL, which the exchange does not make but training
 * does. One thread a rank, whose context is set; NCCL is found at run time. */
#ifndef BALLAST_GPU_ATTN_MEASURE_COLLECTIVES_H
#define BALLAST_GPU_ATTN_MEASURE_COLLECTIVES_H

#include "gpu_attn/ballast_exchange.h"

struct collectives;

/* Waits for all ranks, each of which calls it with the same id. -ENODEV without NCCL, -EIO. */
int collectives_open(struct collectives **out, const uint8_t id[BALLAST_NCCL_ID_BYTES],
                     uint32_t rank, uint32_t ranks, struct ballast_attn_error *error);

/* NULL is fine. */
void collectives_close(struct collectives *collectives);

/* On the default stream, in place: of `each` bytes (whole bf16) a rank in `memory`, the rank's own
 * go to all, or become the sum of all ranks'. -EIO with NCCL's text. */
int collectives_all_gather(struct collectives *collectives, void *memory, uint64_t each,
                           struct ballast_attn_error *error);
int collectives_reduce_scatter(struct collectives *collectives, void *memory, uint64_t each,
                               struct ballast_attn_error *error);

#endif
