/* attn_problems: the shapes of attention that plans ask for, small. */
#ifndef BALLAST_TESTS_ATTN_PROBLEMS_H
#define BALLAST_TESTS_ATTN_PROBLEMS_H

#include "tests/kernels/attn_world.h"

/* How many there are, and the one of an index; head_dim 64 or 128. The first PROBLEMS_SMALL take
 * a tenth of a second each. */
#define PROBLEMS_SMALL 5u
uint32_t attn_problem_count(void);
void attn_problem_draw(struct attn_problem *problem, uint32_t index, uint32_t head_dim);

/* Adds a fragment of all heads and extends the shape's rows to hold it. */
struct ballast_attn_fragment *attn_problem_add(struct attn_problem *problem, int32_t q_row,
                                               int32_t q_length, int32_t kv_row, int32_t kv_length,
                                               int32_t q_position);

#endif
