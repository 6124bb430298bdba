/* rank_verify_rows: see rank_verify.h. A byte for every row of the packed sequence. */
#include "client/rank_verify.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* Number of ballast.proto's Exchange. */
#define EXCHANGE_NEEDED_ONLY 2u

/* What is known of a row. */
enum { ROW_OWNED = 1, ROW_MINE = 2, ROW_SEEN = 4, ROW_COMES = 8 };

struct verify_rows {
    const struct ballast_batch *batch;
    uint64_t *begins; /* of documents, and the end */
    uint8_t *rows;
    struct ballast_key_run *runs; /* room for any rank's fragments */
    uint64_t *in;                 /* by rank, as the next */
    uint64_t *out;
    int64_t held;
};

static int verify_rows_bad(const char **why, const char *what) {
    *why = what;
    return -EBADMSG;
}

/* A rank's fragments are rows of documents, in order, and nobody else's. */
static int verify_rows_own(struct verify_rows *v, uint32_t rank, const char **why) {
    const struct ballast_shard *shard = &v->batch->shards[rank];
    uint64_t next = 0;
    uint64_t row = 0;
    for (uint32_t i = 0; i < shard->fragment_count; i++) {
        const struct ballast_fragment *fragment = &shard->fragments[i];
        if (fragment->document >= v->batch->document_count || fragment->length == 0 ||
            (uint64_t)fragment->start + fragment->length >
                v->batch->documents[fragment->document].length) {
            return verify_rows_bad(why, "a fragment that is not of its document");
        }
        uint64_t first = v->begins[fragment->document] + fragment->start;
        if (first < next || fragment->row != row) {
            return verify_rows_bad(why, "fragments are not in the order of rows");
        }
        next = first + fragment->length;
        row += fragment->length;
        for (uint64_t at = first; at < next; at++) {
            if (v->rows[at] != 0) {
                return verify_rows_bad(why, "a row of two ranks");
            }
            v->rows[at] = rank == v->batch->group_rank ? ROW_OWNED | ROW_MINE : ROW_OWNED;
        }
    }
    v->held += shard->fragment_count;
    return shard->rows != v->batch->rows || row + shard->pad_rows != shard->rows
               ? verify_rows_bad(why, "a rank's rows are not its fragments and pads")
               : 0;
}

static int verify_rows_owned(struct verify_rows *v, const char **why) {
    int code = 0;
    for (uint32_t rank = 0; code == 0 && rank < v->batch->group_ranks; rank++) {
        code = verify_rows_own(v, rank, why);
    }
    for (uint64_t at = 0; code == 0 && at < v->begins[v->batch->document_count]; at++) {
        code = v->rows[at] == 0 ? verify_rows_bad(why, "a row of no rank") : 0;
    }
    return code;
}

/* Keys of [first, first + length), at `row` of the owner's rows, come to this rank. */
static int verify_rows_run(struct verify_rows *v, const struct ballast_shard *owner,
                           const struct ballast_key_run *run, const char **why) {
    uint64_t first = v->begins[run->document] + run->start;
    bool had = false;
    for (uint32_t i = 0; i < owner->fragment_count && !had; i++) {
        const struct ballast_fragment *fragment = &owner->fragments[i];
        had = fragment->document == run->document && run->start >= fragment->start &&
              run->start - fragment->start + run->length <= fragment->length &&
              run->row == fragment->row + (run->start - fragment->start);
    }
    if (!had) {
        return verify_rows_bad(why, "a key of a rank that has it not");
    }
    for (uint64_t at = first; at < first + run->length; at++) {
        if ((v->rows[at] & ROW_COMES) != 0) {
            return verify_rows_bad(why, "a key comes twice");
        }
        if ((v->rows[at] & (ROW_SEEN | ROW_MINE)) != ROW_SEEN) {
            return verify_rows_bad(why, "a key comes that no query here needs");
        }
        v->rows[at] |= ROW_COMES;
    }
    return 0;
}

/* The runs that `owner` sends `reader`; those that come here are marked. */
static int verify_rows_pair(struct verify_rows *v, uint32_t reader, uint32_t owner,
                            uint64_t counted, const char **why) {
    const struct ballast_shard *shard = &v->batch->shards[owner];
    int count = ballast_key_runs(v->batch, reader, owner, v->runs, shard->fragment_count);
    uint64_t keys = 0;
    int code = count < 0 ? verify_rows_bad(why, "more runs of keys than fragments") : 0;
    for (int i = 0; code == 0 && i < count; i++) {
        keys += v->runs[i].length;
        code = reader == v->batch->group_rank ? verify_rows_run(v, shard, &v->runs[i], why) : 0;
    }
    v->held += count > 0 ? count : 0;
    return code == 0 && keys != counted
               ? verify_rows_bad(why, "a count of keys that is not the runs'")
               : code;
}

static int verify_rows_keys(struct verify_rows *v, const char **why) {
    const struct ballast_batch *batch = v->batch;
    int code = 0;
    for (uint32_t i = 0; i < batch->fragment_count; i++) {
        const struct ballast_fragment *fragment = &batch->fragments[i];
        uint64_t begin = v->begins[fragment->document];
        for (uint64_t at = 0; at < (uint64_t)fragment->start + fragment->length; at++) {
            v->rows[begin + at] |= ROW_SEEN;
        }
    }
    ballast_key_counts(batch, v->in, v->out);
    for (uint32_t peer = 0; code == 0 && peer < batch->group_ranks; peer++) {
        if (peer != batch->group_rank) {
            code = verify_rows_pair(v, batch->group_rank, peer, v->in[peer], why);
            code = code == 0 ? verify_rows_pair(v, peer, batch->group_rank, v->out[peer], why)
                             : code;
        }
    }
    for (uint64_t at = 0; code == 0 && at < v->begins[batch->document_count]; at++) {
        code = (v->rows[at] & (ROW_SEEN | ROW_MINE | ROW_COMES)) == ROW_SEEN
                   ? verify_rows_bad(why, "a key that a query needs does not come")
                   : 0;
    }
    return code;
}

static int verify_rows_init(struct verify_rows *v, const struct ballast_batch *batch) {
    uint32_t fragments = 0;
    *v = (struct verify_rows){.batch = batch};
    v->begins = calloc((size_t)batch->document_count + 1, sizeof *v->begins);
    v->in = calloc(batch->group_ranks, sizeof *v->in);
    v->out = calloc(batch->group_ranks, sizeof *v->out);
    for (uint32_t i = 0; v->begins != NULL && i < batch->document_count; i++) {
        v->begins[i + 1] = v->begins[i] + batch->documents[i].length;
    }
    for (uint32_t rank = 0; rank < batch->group_ranks; rank++) {
        uint32_t count = batch->shards[rank].fragment_count;
        fragments = count > fragments ? count : fragments;
    }
    v->rows = v->begins != NULL ? calloc(v->begins[batch->document_count] + 1, 1) : NULL;
    v->runs = calloc((size_t)fragments + 1, sizeof *v->runs);
    return v->rows != NULL && v->runs != NULL && v->in != NULL && v->out != NULL ? 0 : -ENOMEM;
}

int64_t rank_verify_rows(const struct ballast_batch *batch, const char **why) {
    struct verify_rows v;
    int code = verify_rows_init(&v, batch);
    *why = code < 0 ? "out of memory" : *why;
    code = code < 0 ? code : verify_rows_owned(&v, why);
    if (code == 0 && batch->exchange == EXCHANGE_NEEDED_ONLY) {
        code = verify_rows_keys(&v, why);
    }
    free(v.runs);
    free(v.rows);
    free(v.out);
    free(v.in);
    free(v.begins);
    return code < 0 ? code : v.held;
}
