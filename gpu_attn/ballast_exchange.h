/* ballast_exchange: brings Q, K and V of a plan to the ranks that compute with them, and outputs
 * and gradients home.
 *
 * Two lists say everything (ballast_lists.h; ballast_homes and ballast_works of libballast make
 * them of a batch): where rows live, and who computes which rows for which query heads. A
 * context-parallel layout computes rows where they live; Ulysses and pools move them. From the
 * lists every rank derives the same transfers, so the byte counts of both ends agree without being
 * sent:
 *
 *     Q       rows that are computed away from home, for the heads that are
 *     K/V     of every document that a rank computes with, the keys [0, end) that it sees (with
 *             all-gather all keys of all documents), for the K/V heads that its query heads share
 *     O, dQ   as Q, backwards; LSE with O
 *     dK, dV  as K/V, backwards, in float, added at the owner by (chunk, rank)
 *
 * The heads of all work are cut into M chunks. While chunk i is computed, chunk i + 1 is dispatched
 * and chunk i - 1 returned:
 *
 *     D(0); for i: wait D(i); start D(i + 1); start R(i - 1); compute i;  then R(M - 1)
 *
 * K/V heads travel with the first chunk that sees them, their gradients with the last. Keys always
 * come from their home; a plan whose pools pass them on along a chain runs all the same.
 *
 *     ballast_exchange_create(&exchange, &options, &error);      // once per plan
 *     ballast_exchange_agree(exchange, transport, &error);       // once per plan
 *     ballast_exchange_forward(exchange, &call, &error);         // per layer
 *     ballast_exchange_backward(exchange, &call, &error);
 *
 * All ranks of the group make the same calls in the same order, those with nothing to send or to
 * compute as well: every call is M dispatches and M returns, each one collective. A pair of ranks
 * with no bytes for each other is left out by both.
 *
 * Everything returns 0 or a negative errno and fills `error` (may be NULL) with a sentence:
 *   -EINVAL     lists or arguments that break a rule
 *   -EPROTO     ranks disagree: digests, calls, counts; the sentence names the rank
 *   -ETIMEDOUT  a rank did not come within the transport's deadline
 *   -ENOMEM, -ENOSPC, -ENODEV, -EIO  as the sentence says
 * After a failure of a collective the transport fails on all ranks; close it. */
#ifndef BALLAST_EXCHANGE_H
#define BALLAST_EXCHANGE_H

#include "ballast_attn.h"
#include "ballast_lists.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BALLAST_EXCHANGE_DIGEST_BYTES 16u

enum ballast_exchange_keys {
    BALLAST_EXCHANGE_ALL_GATHER = 1,
    BALLAST_EXCHANGE_NEEDED_ONLY = 2,
};

/* Rules: homes of a document are disjoint and start at row 0 without gap; every row of a work has a
 * home; no (row, head) is computed twice. The lists are the same on all ranks. */
struct ballast_exchange_options {
    uint32_t rank;
    uint32_t ranks;
    uint32_t q_heads; /* a multiple of kv_heads; per tensor-parallel rank, as all heads here */
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t element_bytes; /* of q, k, v, o, d_o, dq: 2 for bf16 */
    uint32_t chunks;        /* M, > 0 */
    uint32_t own_rows;      /* of this rank, with pad */
    enum ballast_exchange_keys keys;
    const struct ballast_exchange_home *homes;
    uint32_t home_count;
    const struct ballast_exchange_work *works;
    uint32_t work_count;
    uint8_t digest[BALLAST_EXCHANGE_DIGEST_BYTES]; /* of the plan that the lists were made of */
};

/* What a rank needs memory for. Work buffers of queries (q, o, lse, d_o, dq) have q_rows rows: its
 * own, then those of others. Work buffers of keys (k, v, dk, dv) have kv_rows. */
struct ballast_exchange_sizes {
    uint32_t q_rows;
    uint32_t kv_rows;
    uint32_t fragments;   /* of every chunk */
    uint32_t keys_shared; /* not 0: several chunks see one K/V head here */
    size_t staging_bytes;
    uint64_t bytes_in;  /* of a forward dispatch, all chunks, from other ranks */
    uint64_t bytes_out; /* likewise, to others */
};

/* One call at a time: it holds the counts of the call in hand. */
struct ballast_exchange;

/* O((homes + works) log (homes + works) + transfers). Borrows nothing. `out` is untouched on
 * failure. */
int ballast_exchange_create(struct ballast_exchange **out,
                            const struct ballast_exchange_options *options,
                            struct ballast_attn_error *error);
void ballast_exchange_destroy(struct ballast_exchange *exchange);

struct ballast_exchange_sizes ballast_exchange_sizes(const struct ballast_exchange *exchange);

/* The fragments of a chunk, over the work buffers, for ballast_attn_plan_init: `out` has room for
 * sizes.fragments. */
void ballast_exchange_fragments(const struct ballast_exchange *exchange, uint32_t chunk,
                                struct ballast_attn_fragment *out);

/* Bytes of a forward dispatch, all chunks, from and to each rank: arrays of `ranks`, either may be
 * NULL. 0 for the rank itself. */
void ballast_exchange_counts(const struct ballast_exchange *exchange, uint64_t *in, uint64_t *out);

/* ---- Transport: what moves bytes between ranks, and inside this one where its memory is. */

/* One all-to-all. Bytes for (from) rank r lie behind those for (from) the ranks before it;
 * send_bytes and receive_bytes are `ranks` long, 0 for the rank itself. */
struct ballast_exchange_transfer {
    char name[32]; /* the same on all ranks */
    const void *send;
    void *receive;
    const uint64_t *send_bytes;
    const uint64_t *receive_bytes;
};

#define BALLAST_COPIES_MAX 64u

/* `rows` rows of `row_bytes`. */
struct ballast_copy {
    void *to;
    size_t to_stride;
    const void *from;
    size_t from_stride;
    size_t row_bytes;
    size_t rows;
};

struct ballast_exchange_transport;

/* Streams are the transport's kind: NULL on a CPU. The first three are collectives. */
struct ballast_transport_operations {
    /* `bytes` (at most 64) from host memory of every rank, in rank order, to `all` of each. */
    int (*gather)(struct ballast_exchange_transport *transport, const void *mine, void *all,
                  size_t bytes, struct ballast_attn_error *error);
    /* Begins once what `stream` has now is done. At most 4 in flight; counts are borrowed for the
     * call, buffers until its wait. */
    int (*start)(struct ballast_exchange_transport *transport,
                 const struct ballast_exchange_transfer *transfer, void *stream,
                 struct ballast_attn_error *error);
    /* What `stream` gets from now on finds the oldest transfer in flight done, both ways. */
    int (*wait)(struct ballast_exchange_transport *transport, void *stream,
                struct ballast_attn_error *error);
    /* On the stream, `count` of them, at most BALLAST_COPIES_MAX, that do not overlap; rows are
     * multiples of 4 bytes. add: to += from, floats. */
    int (*copy)(struct ballast_exchange_transport *transport, const struct ballast_copy *copies,
                uint32_t count, void *stream, struct ballast_attn_error *error);
    int (*add)(struct ballast_exchange_transport *transport, const struct ballast_copy *copies,
               uint32_t count, void *stream, struct ballast_attn_error *error);
    void (*close)(struct ballast_exchange_transport *transport);
};

struct ballast_exchange_transport {
    const struct ballast_transport_operations *operations;
    uint32_t rank;
    uint32_t ranks;
};

/* NULL is fine. */
void ballast_transport_close(struct ballast_exchange_transport *transport);

/* On CPUs, over a board: one block of memory that all ranks see. Ranks are threads where it is
 * ordinary memory, processes where it is mapped shared. Strict: calls, counts and names of all
 * ranks are compared; what is received is not there before wait, and what is sent must not change
 * before it; a rank that stays away or does something else fails all, with one sentence. */
#define BALLAST_BOARD_RANKS_MAX 64u

/* `window_bytes`: most bytes that a rank sends in one transfer. */
size_t ballast_board_bytes(uint32_t ranks, size_t window_bytes);
int ballast_board_init(void *board, uint32_t ranks, size_t window_bytes,
                       struct ballast_attn_error *error);

/* Once per rank and board. */
int ballast_transport_board(struct ballast_exchange_transport **out, void *board, uint32_t rank,
                            uint32_t deadline_ms, struct ballast_attn_error *error);

/* Between GPUs, over NCCL (libnccl.so.2 of the machine, 2.7 or newer): variable counts are sends
 * and receives in one group. Memory and streams are those of the calling thread's CUDA context,
 * which is to be current in every call. Transfers go on a stream of the transport's own. Counts are
 * not compared here, and ranks that disagree would hang: hence ballast_exchange_agree, whose gather
 * gives up after the deadline. */
#define BALLAST_NCCL_ID_BYTES 128u

/* On one rank; all get it by other means. */
int ballast_nccl_id(uint8_t id[BALLAST_NCCL_ID_BYTES], struct ballast_attn_error *error);

/* A collective. */
int ballast_transport_nccl(struct ballast_exchange_transport **out,
                           const uint8_t id[BALLAST_NCCL_ID_BYTES], uint32_t rank, uint32_t ranks,
                           uint32_t deadline_ms, struct ballast_attn_error *error);

/* ---- The exchange of a layer. */

/* Heads of a row lie side by side. */
struct ballast_exchange_tensor {
    void *data;
    size_t row_bytes; /* from row to row */
};

/* Computes attention of the chunk's fragments over the work buffers of the call, on `stream`.
 * Backward adds to dk and dv; where sizes.keys_shared is 0 it may write them instead, as
 * ballast_attn_backward does with BALLAST_ATTN_FLOAT_DKDV. */
typedef int ballast_exchange_compute(void *context, uint32_t chunk, void *stream,
                                     struct ballast_attn_error *error);

/* Work buffers that attention reads are zeroed once before first use: what stands beside rows that
 * arrived must be finite. */
struct ballast_exchange_call {
    struct ballast_exchange_transport *transport;
    struct ballast_exchange_tensor own_k, own_v;   /* [own_rows, kv_heads, head_dim] */
    struct ballast_exchange_tensor own_dk, own_dv; /* float; backward adds: zeroed before */
    struct ballast_exchange_tensor k, v;           /* work buffers from here on */
    struct ballast_exchange_tensor dk, dv;         /* float; zeroed before */
    struct ballast_exchange_tensor q, o, d_o, dq;
    struct ballast_exchange_tensor lse; /* float [q_rows, q_heads] */
    ballast_exchange_compute *compute;
    void *context;
    void *staging; /* sizes.staging_bytes, 16-byte aligned, of the transport's memory */
    void *stream;
    uint32_t flags;
};

/* Backward: k, v and the rows of others in q, o and lse are as forward left them, and do not
 * travel again. */
#define BALLAST_EXCHANGE_KEPT 1u

/* Compares what all ranks hold: the plan's digest, the lists, chunks and keys. -EPROTO naming those
 * that differ from most. */
int ballast_exchange_agree(const struct ballast_exchange *exchange,
                           struct ballast_exchange_transport *transport,
                           struct ballast_attn_error *error);

/* Reads own_k, own_v and the own rows of q; fills o and lse of all own rows, wherever computed. */
int ballast_exchange_forward(const struct ballast_exchange *exchange,
                             const struct ballast_exchange_call *call,
                             struct ballast_attn_error *error);

/* Reads the same and the own rows of o, lse and d_o; fills dq of all own rows; adds to own_dk and
 * own_dv. */
int ballast_exchange_backward(const struct ballast_exchange *exchange,
                              const struct ballast_exchange_call *call,
                              struct ballast_attn_error *error);

#ifdef __cplusplus
}
#endif

#endif
