/* measure: a latency profile's figures, taken on a GPU (docs/profile.md says what each means).
 *
 * Each part fills its piece of a profile whose key is filled, and says on `progress` (may be NULL)
 * what it does. -ENOSYS: this part cannot be measured here, with the reason; the profile goes
 * without it, and planning prices it by [model]. */
#ifndef BALLAST_GPU_ATTN_MEASURE_MEASURE_H
#define BALLAST_GPU_ATTN_MEASURE_MEASURE_H

#include "gpu_attn/measure/device.h"
#include "profile/profile.h"

#include <stdbool.h>
#include <stdio.h>

struct measure_options {
    bool quick; /* fewer lengths and runs */
    uint32_t runs;
    uint32_t hidden; /* 0: no linear part */
    uint32_t ffn;
    uint32_t degree_count;
    uint32_t degrees[PROFILE_DEGREES_MAX]; /* of tensor parallelism, ascending */
    FILE *progress;
    uint32_t spread_permille; /* out: the widest (90th - 10th percentile) / median of a cell */
};

__attribute__((format(printf, 2, 3))) void measure_say(const struct measure_options *options,
                                                       const char *format, ...);

/* Of this library's kernels: launch_ps and every cell, in launches of equal fragments, full and
 * causal ones, that fill every processor left by the key's sm_margin some times over. */
int measure_attention(struct measure_device *device, struct measure_options *options,
                      struct profile *profile, struct ballast_attn_error *error);

/* The products of a Llama-like block by cuBLAS (found at run time), and its elementwise passes as
 * copies of as many bytes, on one rank of each degree. */
int measure_linear(struct measure_device *device, struct measure_options *options,
                   struct profile *profile, struct ballast_attn_error *error);

/* Between 2, 4, 8, ... devices of this machine, a thread each: the all-to-all by the exchange's own
 * transport, all-gather and reduce-scatter by NCCL's. */
int measure_links(struct measure_device *device, struct measure_options *options,
                  struct profile *profile, struct ballast_attn_error *error);

#endif
