/* varlen: what stock attention kernels want to know of a batch, derived from its fragments.
 *
 * Everything follows from who has which run of which document; nothing here talks to the daemon. A
 * form that cannot say what the plan does is refused: dropping the rows that do not divide is how
 * such code goes wrong silently. */
#include "client/ballast.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/* Numbers of ballast.proto's Layout. */
#define LAYOUT_PER_DOCUMENT 2u
#define LAYOUT_ULYSSES      5u
#define LAYOUT_CONTIGUOUS   6u

int ballast_cu_seqlens(const struct ballast_batch *batch, int32_t *q, int32_t *k, size_t capacity) {
    uint64_t q_sum = 0, k_sum = 0;
    if (capacity < (size_t)batch->fragment_count + 1) {
        return -ENOBUFS;
    }
    for (uint32_t i = 0; i <= batch->fragment_count; i++) {
        if (q_sum > INT32_MAX || k_sum > INT32_MAX) {
            return -ERANGE;
        }
        if (q != NULL) {
            q[i] = (int32_t)q_sum;
        }
        if (k != NULL) {
            k[i] = (int32_t)k_sum;
        }
        if (i < batch->fragment_count) {
            const struct ballast_fragment *fragment = &batch->fragments[i];
            q_sum += fragment->length;
            k_sum += (uint64_t)fragment->start + fragment->length;
        }
    }
    return (int)batch->fragment_count + 1;
}

int ballast_max_seqlens(const struct ballast_batch *batch, int32_t *q, int32_t *k) {
    uint64_t q_most = 0, k_most = 0;
    for (uint32_t i = 0; i < batch->fragment_count; i++) {
        const struct ballast_fragment *fragment = &batch->fragments[i];
        uint64_t end = (uint64_t)fragment->start + fragment->length;
        q_most = fragment->length > q_most ? fragment->length : q_most;
        k_most = end > k_most ? end : k_most;
    }
    if (q_most > INT32_MAX || k_most > INT32_MAX) {
        return -ERANGE;
    }
    if (q != NULL) {
        *q = (int32_t)q_most;
    }
    if (k != NULL) {
        *k = (int32_t)k_most;
    }
    return 0;
}

static uint64_t varlen_rows(const struct ballast_batch *batch) {
    return batch->rows * batch->group_ranks;
}

/* A shard's runs; documents ascend, `begin` is where the document at hand begins. Then its pads, in
 * the order of ranks behind all documents. */
static void varlen_order_shard(const struct ballast_batch *batch, uint32_t rank, uint64_t *pads,
                               int32_t *order) {
    const struct ballast_shard *shard = &batch->shards[rank];
    uint64_t first = rank * shard->rows;
    uint64_t begin = 0;
    uint32_t document = 0;
    for (uint32_t i = 0; i < shard->fragment_count; i++) {
        const struct ballast_fragment *fragment = &shard->fragments[i];
        for (; document < fragment->document; document++) {
            begin += batch->documents[document].length;
        }
        for (uint32_t k = 0; k < fragment->length; k++) {
            order[begin + fragment->start + k] = (int32_t)(first + fragment->row + k);
        }
    }
    for (uint64_t k = shard->rows - shard->pad_rows; k < shard->rows; k++) {
        order[(*pads)++] = (int32_t)(first + k);
    }
}

static uint64_t varlen_tokens(const struct ballast_batch *batch) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < batch->document_count; i++) {
        tokens += batch->documents[i].length;
    }
    return tokens;
}

/* Rows with a document, of all ranks. */
static uint64_t varlen_owned(const struct ballast_batch *batch) {
    uint64_t owned = 0;
    for (uint32_t rank = 0; rank < batch->group_ranks; rank++) {
        owned += batch->shards[rank].rows - batch->shards[rank].pad_rows;
    }
    return owned;
}

int64_t ballast_order(const struct ballast_batch *batch, int32_t *order, size_t capacity) {
    uint64_t rows = varlen_rows(batch);
    uint64_t pads = varlen_tokens(batch);
    if (varlen_owned(batch) != pads) {
        return -EBADMSG;
    }
    if (rows > INT32_MAX) {
        return -ERANGE;
    }
    if (rows > capacity) {
        return -ENOBUFS;
    }
    for (uint32_t rank = 0; rank < batch->group_ranks; rank++) {
        varlen_order_shard(batch, rank, &pads, order);
    }
    return (int64_t)rows;
}

int64_t ballast_key_index(const struct ballast_batch *batch, const int32_t *order, int32_t *index,
                          size_t capacity) {
    uint64_t keys = 0;
    uint64_t begin = 0;
    uint32_t document = 0;
    for (uint32_t i = 0; i < batch->fragment_count; i++) {
        const struct ballast_fragment *fragment = &batch->fragments[i];
        uint64_t end = (uint64_t)fragment->start + fragment->length;
        for (; document < fragment->document; document++) {
            begin += batch->documents[document].length;
        }
        if (keys + end > INT32_MAX) {
            return -ERANGE;
        }
        if (keys + end > capacity) {
            return -ENOBUFS;
        }
        for (uint64_t k = 0; k < end; k++) {
            index[keys++] = order[begin + k];
        }
    }
    return (int64_t)keys;
}

/* Where the shard's rows of the document at fragments[*at] end; moves *at behind them. */
static uint64_t varlen_end(const struct ballast_shard *shard, uint32_t *at) {
    uint32_t document = shard->fragments[*at].document;
    uint64_t end = 0;
    for (; *at < shard->fragment_count && shard->fragments[*at].document == document; (*at)++) {
        uint64_t own = (uint64_t)shard->fragments[*at].start + shard->fragments[*at].length;
        end = own > end ? own : end;
    }
    return end;
}

/* Of the owner's fragment what lies before `end`; length 0: nothing does. */
static struct ballast_key_run varlen_before(const struct ballast_fragment *fragment, uint64_t end) {
    uint64_t length = end > fragment->start ? end - fragment->start : 0;
    return (struct ballast_key_run){
        .document = fragment->document,
        .start = fragment->start,
        .length = length < fragment->length ? (uint32_t)length : fragment->length,
        .row = fragment->row,
    };
}

/* Documents ascend in both shards, so one walk over both finds all runs and their rows. */
static int varlen_runs(const struct ballast_shard *reader, const struct ballast_shard *owner,
                       struct ballast_key_run *runs, size_t capacity, uint64_t *rows) {
    uint32_t count = 0;
    uint32_t at = 0;
    *rows = 0;
    for (uint32_t own = 0; own < reader->fragment_count;) {
        uint32_t document = reader->fragments[own].document;
        uint64_t end = varlen_end(reader, &own);
        for (; at < owner->fragment_count && owner->fragments[at].document <= document; at++) {
            struct ballast_key_run run = varlen_before(&owner->fragments[at], end);
            if (run.document != document || run.length == 0) {
                continue;
            }
            if (count == capacity) {
                return -ENOBUFS;
            }
            if (runs != NULL) {
                runs[count] = run;
            }
            *rows += run.length;
            count++;
        }
    }
    return (int)count;
}

int ballast_key_runs(const struct ballast_batch *batch, uint32_t reader, uint32_t owner,
                     struct ballast_key_run *runs, size_t capacity) {
    uint64_t rows;
    if (reader >= batch->group_ranks || owner >= batch->group_ranks || reader == owner) {
        return -EINVAL;
    }
    return varlen_runs(&batch->shards[reader], &batch->shards[owner], runs, capacity, &rows);
}

void ballast_key_counts(const struct ballast_batch *batch, uint64_t *in, uint64_t *out) {
    const struct ballast_shard *own = &batch->shards[batch->group_rank];
    for (uint32_t peer = 0; peer < batch->group_ranks; peer++) {
        in[peer] = 0;
        out[peer] = 0;
        if (peer != batch->group_rank) {
            (void)varlen_runs(own, &batch->shards[peer], NULL, SIZE_MAX, &in[peer]);
            (void)varlen_runs(&batch->shards[peer], own, NULL, SIZE_MAX, &out[peer]);
        }
    }
}

__attribute__((format(printf, 3, 4))) static int varlen_refuse(char *why, size_t why_bytes,
                                                               const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(why, why_bytes, format, arguments);
    va_end(arguments);
    return -EOPNOTSUPP;
}

static int varlen_check_divided(const struct ballast_batch *batch, const char *form, char *why,
                                size_t why_bytes) {
    uint64_t chunks = 2 * (uint64_t)batch->group_ranks;
    uint64_t pads = varlen_rows(batch) - varlen_tokens(batch);
    if (batch->layout != LAYOUT_PER_DOCUMENT && batch->group_ranks > 1) {
        return varlen_refuse(why, why_bytes,
                             "%s cuts every document for every rank, and this batch has layout "
                             "%u; set sharding.layouts = per-document",
                             form, batch->layout);
    }
    for (uint32_t i = 0; batch->group_ranks > 1 && i < batch->document_count; i++) {
        if (batch->documents[i].length % chunks != 0) {
            return varlen_refuse(why, why_bytes,
                                 "%s needs documents of a multiple of %llu tokens, and document "
                                 "%u of this batch has %u; take ballast_cu_seqlens",
                                 form, (unsigned long long)chunks, i, batch->documents[i].length);
        }
    }
    if (pads > 0) {
        return varlen_refuse(why, why_bytes,
                             "%s has no rows without a document, and this batch has %llu pad "
                             "rows; take ballast_cu_seqlens",
                             form, (unsigned long long)pads);
    }
    return 0;
}

/* Prefix sums of the documents' lengths, all divided. */
static int varlen_documents(const struct ballast_batch *batch, uint32_t divisor,
                            int32_t *cu_seqlens, size_t capacity, int32_t *max_seqlen) {
    uint64_t sum = 0;
    uint32_t most = 0;
    if (capacity < (size_t)batch->document_count + 1) {
        return -ENOBUFS;
    }
    if (varlen_tokens(batch) > INT32_MAX) {
        return -ERANGE;
    }
    cu_seqlens[0] = 0;
    for (uint32_t i = 0; i < batch->document_count; i++) {
        uint32_t length = batch->documents[i].length / divisor;
        sum += length;
        most = length > most ? length : most;
        cu_seqlens[i + 1] = (int32_t)sum;
    }
    *max_seqlen = (int32_t)most;
    return (int)batch->document_count + 1;
}

int ballast_thd(const struct ballast_batch *batch, int32_t *cu_seqlens, size_t capacity,
                int32_t *max_seqlen, char *why, size_t why_bytes) {
    int code = varlen_check_divided(batch, "the THD form", why, why_bytes);
    return code < 0 ? code : varlen_documents(batch, 1, cu_seqlens, capacity, max_seqlen);
}

int ballast_zigzag(const struct ballast_batch *batch, int32_t *cu_seqlens, size_t capacity,
                   int32_t *max_seqlen, char *why, size_t why_bytes) {
    int code = varlen_check_divided(batch, "the zigzag form", why, why_bytes);
    return code < 0 ? code
                    : varlen_documents(batch, batch->group_ranks, cu_seqlens, capacity, max_seqlen);
}

/* The part of [begin, end) that lies in this rank's slice, if any, as one more entry. */
static int varlen_llama3_add(const struct ballast_batch *batch, uint64_t begin, uint64_t end,
                             struct ballast_llama3 *out, int entries) {
    uint64_t first = batch->group_rank * batch->rows;
    uint64_t last = first + batch->rows;
    uint64_t from = begin > first ? begin : first;
    uint64_t to = end < last ? end : last;
    if (from >= to) {
        return entries;
    }
    if ((size_t)entries + 1 > out->capacity) {
        return -ENOBUFS;
    }
    if (entries == 1) {
        out->key_begin = (int64_t)begin;
        out->cu_seqlens_q[0] = 0;
        out->cu_seqlens_k[0] = 0;
    }
    int32_t q = (int32_t)(to - from);
    int32_t k = (int32_t)(to - begin);
    out->cu_seqlens_q[entries] = out->cu_seqlens_q[entries - 1] + q;
    out->cu_seqlens_k[entries] = out->cu_seqlens_k[entries - 1] + k;
    out->max_seqlen_q = q > out->max_seqlen_q ? q : out->max_seqlen_q;
    out->max_seqlen_k = k > out->max_seqlen_k ? k : out->max_seqlen_k;
    return entries + 1;
}

int ballast_llama3(const struct ballast_batch *batch, struct ballast_llama3 *out, char *why,
                   size_t why_bytes) {
    bool contiguous = batch->layout == LAYOUT_ULYSSES || batch->layout == LAYOUT_CONTIGUOUS;
    uint64_t rows = varlen_rows(batch);
    uint64_t begin = 0;
    int entries = 1;
    if (!contiguous && batch->group_ranks > 1) {
        return varlen_refuse(why, why_bytes,
                             "the llama3 form takes contiguous slices, and this batch has layout "
                             "%u; set sharding.layouts = ulysses",
                             batch->layout);
    }
    if (rows > INT32_MAX) {
        return -ERANGE;
    }
    out->max_seqlen_q = 0;
    out->max_seqlen_k = 0;
    out->key_end = (int64_t)((batch->group_rank + 1) * batch->rows);
    for (uint32_t i = 0; entries > 0 && i < batch->document_count; i++) {
        uint64_t end = begin + batch->documents[i].length;
        entries = varlen_llama3_add(batch, begin, end, out, entries);
        begin = end;
    }
    return entries > 0 ? varlen_llama3_add(batch, begin, rows, out, entries) : entries;
}
