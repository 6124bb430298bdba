/* ballast: the client of a trainer rank. The one public header of libballast.
 *
 *     #include <ballast.h>
 *     #include <stdio.h>
 *
 *     enum { ROWS = 1 << 18 };
 *     static int tokens[ROWS], labels[ROWS], positions[ROWS];
 *
 *     int main(void) {
 *         struct ballast_options options = BALLAST_OPTIONS_INIT;
 *         struct ballast *client;
 *         const struct ballast_batch *batch;
 *         int event;
 *         options.dp = 0;
 *         options.cp = 1; // this rank's place in the mesh
 *         event = ballast_open(&options, &client);
 *         while (event >= 0 && (event = ballast_next(client, -1, &batch)) > 0) {
 *             if (event == BALLAST_BATCH) {
 *                 ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT32, tokens, ROWS);
 *                 ballast_gather(client, batch, BALLAST_LABELS, BALLAST_INT32, labels, ROWS);
 *                 ballast_gather(client, batch, BALLAST_POSITIONS, BALLAST_INT32, positions, ROWS);
 *                 // ... forward and backward over batch->rows rows ...
 *                 ballast_release(client, batch);
 *             } else if (event == BALLAST_END_OF_STEP) {
 *                 // ... optimizer step ...
 *                 event = ballast_commit(client, ballast_step(client));
 *             } else {
 *                 break; // BALLAST_END_OF_DATA
 *             }
 *         }
 *         if (event < 0) {
 *             fprintf(stderr, "%s\n", ballast_error(client));
 *         }
 *         ballast_close(client);
 *         return event < 0;
 *     }
 *
 * A job that goes back to its checkpoint of step k, on every rank after ballast_open:
 *
 *     event = ballast_seek(client, k, 0);           // or, on a node whose state is lost,
 *     event = ballast_import(client, state, n, 0);  // with what ballast_export gave at k
 *     event = ballast_agree(client, ranks, all_gather, communicator);
 *
 * and that writes one after step k - 1 was committed, on one rank:
 *
 *     event = ballast_export(client, k, &state, &n); // put the n bytes beside the weights
 *
 * Every function returns 0 or more, or a negative errno; ballast_error() then gives the sentence.
 * What is borrowed is never freed by the caller; the one thing to free is the client, by
 * ballast_close. A client belongs to one thread at a time and is not for use after fork: the child
 * gets -EINVAL and opens its own. */
#ifndef BALLAST_H
#define BALLAST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ballast; /* opaque; from ballast_open to ballast_close */

/* What this rank needs of a batch: the first pipeline stage tokens, the last labels. */
enum ballast_part { BALLAST_PART_PLAN = 1, BALLAST_PART_TOKENS = 2, BALLAST_PART_LABELS = 4 };

/* How tokens come. Over the daemon's Unix socket they lie in memory that it shares; where that is
 * not possible (no descriptors can be passed, the data socket is not in the container) they are
 * fetched over the connection into memory of the client, with the same bytes and twice the copying.
 */
enum ballast_transport {
    BALLAST_TRANSPORT_AUTO = 0,   /* shared where possible, else fetched */
    BALLAST_TRANSPORT_SHARED = 1, /* refused where it is not possible */
    BALLAST_TRANSPORT_FETCH = 2,
};

struct ballast_options {
    size_t size;               /* sizeof(struct ballast_options), set by BALLAST_OPTIONS_INIT */
    const char *socket;        /* the daemon's address: unix:/path or the path alone,
                                  tcp:127.0.0.1:PORT, tls:HOST:PORT; NULL: $BALLAST_SOCKET, else
                                  /run/ballast/ballast.sock */
    uint32_t dp, pp, cp, tp;   /* this rank's place in the mesh, each from 0 */
    uint32_t parts;            /* bits of enum ballast_part; default tokens and labels */
    uint32_t credits;          /* batches in flight, held ones included; default 4, at most 1024 */
    int connect_timeout_ms;    /* how long the daemon may stay away or silent, at the start and at
                                  every reconnect, connects and TLS handshakes that nobody answers
                                  included; default 30000, -1: for ever */
    const uint8_t *job_digest; /* 16 bytes that the daemon's job must have, or NULL */
    const char *name;          /* for the daemon's log; NULL: program name */
    uint64_t from_step;  /* first batch wanted; UINT64_MAX (default): the daemon's next step */
    uint32_t from_index; /* in that step; the number of micro-batches: only its end */
    uint32_t transport;  /* enum ballast_transport; default auto */
    /* Told what is waited for, with the remedy, when the daemon has been away or silent for
       waiting_after_ms (default 2000), and every 30 s then: for the trainer's log. The sentence is
       valid during the call, which must not call this client. NULL (default): nobody is told. */
    void (*waiting)(void *context, const char *sentence);
    void *waiting_context;
    int waiting_after_ms;
    /* Files for tcp: and tls:, read at every connect; each NULL: $BALLAST_TOKEN_FILE,
     * $BALLAST_TLS_CERTIFICATE and so on. */
    const char *token_file;                /* tcp: its first line is the daemon's token */
    const char *tls_certificate, *tls_key; /* PEM, of this side */
    const char *tls_ca;                    /* PEM, of who signs the daemon's */
    const char *tls_name; /* whom the daemon's must be for; NULL or "": the host of the address */
    /* Where tokens are shared: told of the daemon's memory, once for each mapping and so at every
     * connect, before a batch of it is given out; and before it is unmapped, once no batch is held
     * that lies in it. A CUDA trainer registers it there (cudaHostRegister with
     * cudaHostRegisterReadOnly), and copies from it without staging. `map` returns 0; anything else
     * fails ballast_open or ballast_next with -ECANCELED, naming the number. They must not call
     * this client. NULL (default): nobody is told. */
    int (*map)(void *context, const void *address, size_t bytes);
    void (*unmap)(void *context, const void *address, size_t bytes);
    void *map_context;
    uint32_t prefault; /* 1: the page tables of that memory are filled when it is mapped, before
                          `map` is told, so that no gather takes a page fault; some 50 ms a GB,
                          and nothing on kernels before 5.14. Default 0 */
};
#define BALLAST_OPTIONS_INIT                                                                       \
    {                                                                                              \
        sizeof(struct ballast_options), NULL, 0, 0, 0, 0,                                          \
            BALLAST_PART_TOKENS | BALLAST_PART_LABELS, 4, 30000, NULL, NULL, UINT64_MAX, 0,        \
            BALLAST_TRANSPORT_AUTO, NULL, NULL, 2000, NULL, NULL, NULL, NULL, NULL, NULL, NULL,    \
            NULL, 0                                                                                \
    }

/* What the daemon says of the job. */
struct ballast_job {
    uint8_t job_digest[16];
    uint32_t dp, pp, cp, tp; /* sizes of the mesh */
    uint64_t next_step;      /* first step not committed, at connect time */
    uint32_t micro_batches;  /* per data-parallel replica in next_step; later steps may have others:
                                a batch says how many its step has */
    uint64_t tokens_max;     /* rows of a micro-batch over all context-parallel ranks, at most */
    uint32_t token_bytes;    /* 2 or 4 in the slot */
    uint64_t generation;     /* counts ballast_seek and ballast_import of the job */
    uint64_t generation_step; /* where it began */
};

/* A run of query rows of one document on this rank, in row order. */
struct ballast_fragment {
    uint32_t document; /* index in batch->documents */
    uint32_t start;    /* first row, from the start of the document part */
    uint32_t length;
    uint32_t row; /* first row in this rank's arrays */
};

struct ballast_document {
    uint32_t dataset;
    uint64_t document;
    uint32_t offset, length, document_length;
    uint64_t nominal_step, epoch;
};

/* What a rank of the context-parallel group owns of the micro-batch. */
struct ballast_shard {
    uint64_t rows; /* equal on all ranks, padding included */
    uint64_t pad_rows;
    uint32_t fragment_count;
    const struct ballast_fragment *fragments;
};

/* Pooled attention: replicas share the attention of their micro-batches of one index. Worker w is
 * context-parallel rank w % group_ranks of replica w / group_ranks (position in pool->replicas).
 * Rows stay where the batch's fragments have them; here they count in the packed sequence of their
 * replica's micro-batch: documents one after the other, without pad rows. Heads are those of one
 * tensor-parallel rank.
 *
 * A tile: attention of rows [row, row + rows) for query heads [head_shard, head_shard + 1) * heads
 * / head_shards. */
struct ballast_tile {
    uint32_t dp;         /* replica whose rows these are, one of the pool's */
    uint32_t block;      /* number of the rows' piece in its micro-batch */
    uint32_t head_shard; /* below head_shards */
    uint32_t home;       /* worker that has the rows */
    uint32_t worker;     /* that computes them; this rank is one of the two, or both */
    uint64_t pairs;      /* causal query-key pairs, of one head */
    uint64_t row;
    uint64_t rows; /* never 0, at most block_tokens */
};

enum ballast_payload { BALLAST_PAYLOAD_Q = 1, BALLAST_PAYLOAD_KV = 2, BALLAST_PAYLOAD_O = 3 };

/* What `source` sends and `worker` receives before (Q, K and V) or after (O) the tiles of a layer's
 * forward pass; the backward pass is the mirror. This rank is exactly one of the two. */
struct ballast_transfer {
    uint32_t payload; /* an enum ballast_payload */
    uint32_t source, worker;
    uint32_t dp;
    uint64_t row, rows;              /* rows never 0 */
    uint32_t head_begin, head_count; /* query heads; K/V heads for K and V */
    uint64_t bytes; /* rows * head_count * head_dim * element_bytes, twice that for K and V */
};

struct ballast_pool_replica {
    uint32_t dp;
    uint32_t length_count;
    const uint32_t *lengths; /* of its documents in row order, if this rank computes tiles of it;
                                else none */
    uint64_t tokens;         /* its rows, without padding; at most 2^26 */
};

/* This rank's part of a pool's plan. What is here can be indexed with: workers, replicas, rows and
 * heads are within their bounds. */
struct ballast_pool {
    uint32_t ga_index; /* of the micro-batches in their replicas' pipelines: batch->index */
    uint32_t worker;   /* this rank's number */
    uint32_t workers;  /* replica_count * group_ranks */
    uint32_t replica_count;
    const struct ballast_pool_replica *replicas; /* dp ascending, the batch's among them */
    uint32_t block_tokens;                       /* most rows of a tile */
    uint32_t head_shards;                        /* divides heads */
    uint32_t heads, kv_heads, head_dim;          /* kv_heads divides heads */
    uint32_t element_bytes;                      /* of Q, K, V and O */
    uint32_t tile_count, transfer_count;
    const struct ballast_tile *tiles;         /* at or from this rank, by (dp, row, head_shard) */
    const struct ballast_transfer *transfers; /* Q in the order of tiles, then KV, then O as Q */
};

/* One micro-batch as this rank sees it. Borrowed: valid until ballast_release. */
struct ballast_batch {
    uint64_t step;
    uint32_t dp, index;
    uint8_t plan_digest[16];
    uint32_t layout; /* number of ballast.proto's Layout */
    uint64_t rows;   /* of this rank, padding included */
    uint64_t pad_rows;
    uint64_t loss_denominator, label_tokens; /* of the whole step */
    uint64_t waited_us; /* that ballast_next waited for this batch; 0: it was there already */
    uint32_t document_count, fragment_count;
    const struct ballast_document *documents;
    const struct ballast_fragment *fragments;
    uint32_t micro_batches; /* of its step, per data-parallel replica */
    uint32_t group_rank;    /* this rank's place in its context-parallel group */
    uint32_t group_ranks;
    const struct ballast_shard *shards; /* of the group's ranks, in order */
    uint32_t exchange;                  /* number of ballast.proto's Exchange */
    const struct ballast_pool *pool;    /* borrowed with the batch, as all its arrays; NULL without
                                           pooled attention, or from a daemon too old to say */
};

/* How long a micro-batch took on this rank, forward and backward; 0 is not measured. */
struct ballast_measured {
    uint32_t index; /* of the batch */
    uint64_t attention_ns;
    uint64_t total_ns;             /* everything included */
    const uint64_t *expert_tokens; /* tokens that each expert of this rank received, in all layers;
                                      NULL without experts */
    size_t experts;
};

enum ballast_event { BALLAST_BATCH = 1, BALLAST_END_OF_STEP = 2, BALLAST_END_OF_DATA = 3 };
enum ballast_column { BALLAST_TOKENS = 1, BALLAST_LABELS = 2, BALLAST_POSITIONS = 3 };
enum ballast_type { BALLAST_INT32 = 4, BALLAST_INT64 = 8 };

/* Connects, says who this rank is, maps the slab, opens the stream; waits for a daemon that is not
 * there yet. The options are copied. On failure *client is still set (NULL only when memory ran
 * out) so that ballast_error can be asked; close it in any case. -EINVAL an option or the place in
 * the mesh, -ECONNREFUSED no daemon, -EEXIST another process is this rank, -EACCES not allowed. */
int ballast_open(const struct ballast_options *options, struct ballast **client);

/* Frees the client and everything it gave out. NULL is fine. Nothing is committed or waited for. */
void ballast_close(struct ballast *client);

/* The reason of the last failure, valid until the next call. Never NULL, also for a NULL client. */
const char *ballast_error(const struct ballast *client);

/* Copies what the daemon said when it was connected to last; -ENOTCONN before the first time. */
int ballast_job(const struct ballast *client, struct ballast_job *out);

/* Waits for what comes next, at most timeout_ms (-1: for ever, 0: not at all). Returns an enum
 * ballast_event, 0 after the timeout. Batches come in pipeline order, each once; with BALLAST_BATCH
 * *batch is borrowed until ballast_release, else it is left alone. BALLAST_END_OF_DATA stays.
 *
 * When the daemon goes away the client reconnects by itself, within connect_timeout_ms, and goes on
 * at exactly the next batch of the same job; batches held meanwhile stay readable for as long as
 * their slots are not reused. -EBUSY when as many batches are held as there are credits; -EPROTO
 * when the daemon sent anything but what must come next; -EBADMSG when the bytes do not hash as
 * they did when they were read ([reader] payload_hashes). After any failure the next call tries
 * again, from the same place. */
int ballast_next(struct ballast *client, int timeout_ms, const struct ballast_batch **batch);

/* The step of the last event. */
uint64_t ballast_step(const struct ballast *client);

/* Digest of the step that ended last (BALLAST_END_OF_STEP), 16 bytes of the client's: compare it
 * over ranks before the first collective of the step, or at its end. It equals the plan_digest of
 * each batch of the step. */
const uint8_t *ballast_digest(const struct ballast *client);

/* Copies one column of this rank's rows into `out` (`capacity` elements of `type`): tokens; labels
 * (next token of the same document, across a split too, -100 at its end and on pad rows); positions
 * (from the start of the part, 0 on pad rows). Returns the rows written, -ENOBUFS if they do not
 * fit, -EINVAL without that part. -ESTALE if the slot was reused under a client that was silent for
 * longer than its lease: `out` is then garbage, and ballast_next gives this batch again and all
 * that came after it, the same byte for byte; release the ones held. */
int64_t ballast_gather(struct ballast *client, const struct ballast_batch *batch,
                       enum ballast_column column, enum ballast_type type, void *out,
                       size_t capacity);

/* cu_seqlens of this rank's fragments: query side (prefix sums of lengths) and key side (prefix
 * sums of start + length), fragment_count + 1 entries each, pad rows not included; either may be
 * NULL. Returns the entries; -ENOBUFS, or -ERANGE for a sum beyond 32 bits. */
int ballast_cu_seqlens(const struct ballast_batch *batch, int32_t *q, int32_t *k, size_t capacity);

/* The longest query and key side of this rank's fragments; either may be NULL. 0, or -ERANGE. */
int ballast_max_seqlens(const struct ballast_batch *batch, int32_t *q, int32_t *k);

/* Where the rows of the packed sequence lie: order[g] is the place of row g (documents one after
 * the other, then pad rows) among the ranks' rows one rank after the other, as an all-gather leaves
 * them. Its inverse is the order in which ranks own rows. Returns the rows of the whole sequence;
 * -ENOBUFS if they do not fit, -ERANGE beyond 32 bits, -EBADMSG if ranks do not own every row. */
int64_t ballast_order(const struct ballast_batch *batch, int32_t *order, size_t capacity);

/* The K/V rows that ballast_cu_seqlens' key side counts, for kernels that want them packed: one
 * index into the all-gathered rows for every key of every fragment, taken from ballast_order's
 * `order`. Returns how many, the last of the key side's sums; -ENOBUFS, -ERANGE. */
int64_t ballast_key_index(const struct ballast_batch *batch, const int32_t *order, int32_t *index,
                          size_t capacity);

/* A run of rows of one document, both K and V, that one rank of the group sends another. */
struct ballast_key_run {
    uint32_t document;
    uint32_t start;  /* first key, from the start of the document part */
    uint32_t length; /* never 0 */
    uint32_t row;    /* first row in the sender's arrays */
};

/* What rank `reader` of the group needs of rank `owner`'s keys, in the order of the owner's rows,
 * where only needed keys are exchanged (batch->exchange). Both compute the same list, so that what
 * one sends is what the other receives; gradients of K and V go back by it, from the reader to the
 * owner, who adds them. Returns the runs, at most the owner's fragments; -ENOBUFS, -EINVAL for
 * ranks that are none or the same. */
int ballast_key_runs(const struct ballast_batch *batch, uint32_t reader, uint32_t owner,
                     struct ballast_key_run *runs, size_t capacity);

/* Counts of that v-collective: rows of K and of V that this rank receives from every rank of the
 * group, and sends to it; for the gradients the other way round. Arrays of group_ranks, 0 for the
 * rank itself. A rank that has nothing to send or receive still takes part. */
void ballast_key_counts(const struct ballast_batch *batch, uint64_t *in, uint64_t *out);

/* What libballast_attn's exchange of attention is made from (ballast_exchange.h; the structs are in
 * ballast_lists.h, installed beside): where rows live and who computes which, of one rank of the
 * group. Fills `out`, at most `capacity`, and returns how many; with NULL only counts. -ENOBUFS;
 * -ERANGE beyond what the lists can number.
 *
 * The lists of the exchange are those of all its ranks, one after the other. Without a pool a rank
 * has them all: ranks are those of the context-parallel group. With a pool the ranks are its
 * workers, a rank has only its own works, and those of the others come by an all-gather: -EINVAL
 * for another rank. Documents are numbered as in the batch, with a pool from 2^26 * the replica's
 * place on. `q_heads` of one tensor-parallel rank: -EINVAL where a pool has others, or with layout
 * ulysses if the ranks do not divide them. */
struct ballast_exchange_home;
struct ballast_exchange_work;
int ballast_homes(const struct ballast_batch *batch, uint32_t rank,
                  struct ballast_exchange_home *out, size_t capacity);
int ballast_works(const struct ballast_batch *batch, uint32_t rank, uint32_t q_heads,
                  struct ballast_exchange_work *out, size_t capacity);

/* The forms of stock attention implementations. Each refuses with -EOPNOTSUPP a batch that it
 * cannot express, with the reason in `why` (`why_bytes` long; NULL with 0: not wanted). -ENOBUFS,
 * -ERANGE as above. Positions are ballast_gather's in all of them, never to be guessed from ranks.
 *
 * ballast_thd: what Megatron and TransformerEngine take for THD input with context parallelism, the
 * prefix sums over whole documents, the same on every rank, and the longest document. Layout
 * per-document (or one rank), every document a multiple of 2 * group_ranks, no pad rows. Returns
 * document_count + 1.
 * ballast_zigzag: ring-flash-attention's zigzag varlen, likewise, but of this rank's rows: all
 * divided by group_ranks. The front half of each document's rows here is the rank's early chunk. */
int ballast_thd(const struct ballast_batch *batch, int32_t *cu_seqlens, size_t capacity,
                int32_t *max_seqlen, char *why, size_t why_bytes);
int ballast_zigzag(const struct ballast_batch *batch, int32_t *cu_seqlens, size_t capacity,
                   int32_t *max_seqlen, char *why, size_t why_bytes);

/* ring-flash-attention's llama3 varlen: a rank computes a contiguous slice of rows against keys
 * [key_begin, key_end) of the all-gathered sequence. Layouts of contiguous shards (ulysses) or one
 * rank; pad rows are one more document at the end. Fills the arrays of `out` (`capacity` entries
 * each, document_count + 2 are enough) and returns the entries used. */
struct ballast_llama3 {
    int32_t *cu_seqlens_q;
    int32_t *cu_seqlens_k;
    size_t capacity;
    int32_t max_seqlen_q, max_seqlen_k;
    int64_t key_begin, key_end;
};
int ballast_llama3(const struct ballast_batch *batch, struct ballast_llama3 *out, char *why,
                   size_t why_bytes);

/* The batch is no longer needed: its slot may be reused, its pointers are invalid, and its credit
 * brings another. -EINVAL for a batch that is not held. */
int ballast_release(struct ballast *client, const struct ballast_batch *batch);

/* The optimizer step is done; durable when this returns 0. Repeated over reconnects until answered;
 * committing a step twice is fine. -ENOBUFS: the daemon's disk is full; the step is noted, and
 * durable once a commit of it or of a later step returns 0, so training may go on. -ESTALE as for
 * ballast_next: nothing of it counts any more. No rank gets a batch that is [limits] lead_steps
 * (1,000) beyond what the slowest one committed, so commit every step, or at least more often. */
int ballast_commit(struct ballast *client, uint64_t step);

/* The same, with what was measured: one entry for each micro-batch of the step that this rank has a
 * time of, read during the call only. The daemon's measured balance and expert skew come from
 * them; `ballastctl status` shows both. */
int ballast_commit_measured(struct ballast *client, uint64_t step,
                            const struct ballast_measured *measured, size_t count);

/* Goes to a step with the whole job: the first rank to call this opens a new generation, durably,
 * and the others join it by the same step; their ballast_next and ballast_commit fail with -ESTALE
 * until they do. The next batch is then (step, 0). Batches still held stay to be released. Steps of
 * which the daemon keeps the state ([limits] steps_retained, exports_retained) are there at once,
 * others when everything up to them has been planned, however long that takes.
 * `generation`: at least this one is opened; 0: the next. Where a daemon may have been replaced,
 * pass the largest ballast_job.generation over all ranks + 1, so that all nodes open the same.
 * -EBUSY another rank sought another step, and both are named; -ERANGE beyond the end of the
 * data. Repeated over reconnects until answered. */
int ballast_seek(struct ballast *client, uint64_t step, uint64_t generation);

/* The state from which `step` is planned, for the job's checkpoint: *state is borrowed until the
 * next call, *bytes mostly below 64 KB. Call it on one rank, before the step after `step` - 1 is
 * 1,000 steps old; the daemon keeps the state of the step too. -ENOENT it is no longer kept,
 * -ERANGE it is not planned yet. */
int ballast_export(struct ballast *client, uint64_t step, const void **state, size_t *bytes);

/* ballast_seek to the step of such a state, whatever this daemon knew before: on a new node with
 * the same corpus, wherever that lies. `state` is read during the call only. One rank of a node
 * must, the others may seek the step instead. The generation is also later than the state's.
 * -EBUSY the state is of another job, corpus or version, and the dataset or setting is named;
 * -EIO it is damaged, -ENOSYS of a newer format. */
int ballast_import(struct ballast *client, const void *state, size_t bytes, uint64_t generation);

/* Whether all `ranks` ranks of the job, of all nodes, have the same generation, step and plan
 * digest: of the step that is under way after a batch or a seek, else of the step that ended last.
 * Call it at the same point everywhere, best before the first collective of a step. `all_gather`
 * fills `all` with the `bytes` of every rank, in rank order, and returns 0, else what is returned
 * here. 0; -EBADMSG naming the ranks that are not like most others, by their number in that order.
 */
int ballast_agree(struct ballast *client, uint32_t ranks,
                  int (*all_gather)(void *context, const void *mine, size_t bytes, void *all),
                  void *context);

/* For foreign event loops: poll ballast_fd for reading, then call ballast_next(client, 0, ...)
 * until it returns 0. The fd changes with a reconnect, so ask again after each call; -1 while the
 * daemon is away: call again after a few milliseconds. */
int ballast_fd(const struct ballast *client);

#ifdef __cplusplus
}
#endif

#endif
