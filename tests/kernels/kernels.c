/* The product's kernels, for the emulator. */
#include "gpu_attn/backward.h"
#include "gpu_attn/backward_queries.h"
#include "gpu_attn/forward.h"
#include "gpu_attn/rows.h"
