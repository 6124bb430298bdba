/* shared_bytes: the shared memory of each kernel, which the launcher asks for and the kernels'
 * own layouts are checked against. */
#ifndef BALLAST_GPU_ATTN_SHARED_BYTES_H
#define BALLAST_GPU_ATTN_SHARED_BYTES_H

#define MATRIX_BYTES(rows, dim) ((rows) * (dim)*2u) /* bf16 */

/* Q, two blocks of K and of V. */
#define FORWARD_SHARED_AT(dim) (5 * MATRIX_BYTES(128u, dim) + 80)

/* K, V, two steps of Q and of dO; dS, dQ as floats, two steps of statistics. */
#define BACKWARD_SHARED_AT(dim)                                                                    \
    (2 * MATRIX_BYTES(128u, dim) + 4 * MATRIX_BYTES(64u, dim) + 16384 + 32768 + 1024 + 48)

/* Q, dO, two blocks of QUERY_KEYS keys of K and of V. */
#define QUERY_KEYS           64
#define QUERY_SHARED_AT(dim) (2 * MATRIX_BYTES(128u, dim) + 4 * MATRIX_BYTES(64u, dim) + 48)

#endif
