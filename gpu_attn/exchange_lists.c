/* exchange_lists: from the two lists to the runs of one rank.
 *
 * Work is cut where the home of its rows changes: pieces. All ranks walk the same homes and pieces
 * in the same order, document by document, and keep the runs that they are an end of. */
#include "gpu_attn/error.h"
#include "gpu_attn/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct home {
    struct ballast_exchange_home at;
    uint32_t own_row; /* at its rank */
};

struct piece {
    struct ballast_exchange_work work;
    uint32_t home;
    uint32_t home_row; /* own row of its first, at home */
    uint32_t q_row;    /* in this rank's work buffers, if it computes the piece */
    uint32_t kv_row;   /* likewise, of key 0 */
};

/* What a rank reads of a document for one K/V head. */
struct need {
    uint32_t end; /* keys [0, end) */
    uint32_t first_chunk;
    uint32_t last_chunk;
};

struct building {
    const struct ballast_exchange_options *options;
    struct ballast_exchange *exchange;
    struct home *homes;   /* by (document, start) */
    struct piece *pieces; /* by (document, rank, start, head) */
    uint32_t piece_count;
    uint32_t *covered;  /* by query head: rows before this one are taken */
    struct need *needs; /* by K/V head */
    uint64_t q_rows;
    uint64_t kv_rows;
};

static int ordered(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int home_compare(const void *a, const void *b) {
    const struct ballast_exchange_home *x = &((const struct home *)a)->at;
    const struct ballast_exchange_home *y = &((const struct home *)b)->at;
    int order = ordered(x->document, y->document);
    return order != 0 ? order : ordered(x->start, y->start);
}

static int work_compare(const struct ballast_exchange_work *x,
                        const struct ballast_exchange_work *y, bool by_rank) {
    const uint32_t keys[][2] = {
        {x->document, y->document}, {by_rank ? x->rank : 0, by_rank ? y->rank : 0},
        {x->start, y->start},       {x->head_begin, y->head_begin},
        {x->rank, y->rank},
    };
    int order = 0;
    for (size_t i = 0; order == 0 && i < sizeof keys / sizeof keys[0]; i++) {
        order = ordered(keys[i][0], keys[i][1]);
    }
    return order;
}

static int piece_compare(const void *a, const void *b) {
    return work_compare(&((const struct piece *)a)->work, &((const struct piece *)b)->work, true);
}

static int piece_compare_rows(const void *a, const void *b) {
    return work_compare(&((const struct piece *)a)->work, &((const struct piece *)b)->work, false);
}

static int run_compare(const void *a, const void *b) {
    const struct exchange_run *x = a;
    const struct exchange_run *y = b;
    return ordered(x->peer, y->peer);
}

/* By peer, stable: merges from the bottom up. */
static int runs_sort(struct exchange_runs *list) {
    struct exchange_run *sorted = malloc((list->count + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return -ENOMEM;
    }
    for (uint32_t width = 1; width < list->count; width *= 2) {
        for (uint32_t begin = 0; begin < list->count; begin += 2 * width) {
            uint32_t middle = begin + width < list->count ? begin + width : list->count;
            uint32_t end = middle + width < list->count ? middle + width : list->count;
            for (uint32_t i = begin, j = middle, at = begin; at < end; at++) {
                bool left = i < middle &&
                            (j == end || run_compare(&list->runs[i], &list->runs[j]) <= 0);
                sorted[at] = list->runs[left ? i++ : j++];
            }
        }
        memcpy(list->runs, sorted, list->count * sizeof *sorted);
    }
    free(sorted);
    return 0;
}

static int runs_append(struct exchange_runs *list, struct exchange_run run) {
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        struct exchange_run *runs = realloc(list->runs, capacity * sizeof *runs);
        if (runs == NULL) {
            return -ENOMEM;
        }
        list->runs = runs;
        list->capacity = capacity;
    }
    list->runs[list->count++] = run;
    return 0;
}

static int options_check(const struct ballast_exchange_options *o,
                         struct ballast_attn_error *error) {
    if (o->ranks == 0 || o->rank >= o->ranks || o->chunks == 0) {
        return attn_error(error, -EINVAL, "rank %u of %u with %u chunks", o->rank, o->ranks,
                          o->chunks);
    }
    if (o->kv_heads == 0 || o->q_heads == 0 || o->q_heads % o->kv_heads != 0 ||
        o->q_heads > UINT16_MAX || o->head_dim == 0 || o->element_bytes == 0) {
        return attn_error(error, -EINVAL, "%u query heads, %u K/V heads of %u x %u bytes",
                          o->q_heads, o->kv_heads, o->head_dim, o->element_bytes);
    }
    if (o->keys != BALLAST_EXCHANGE_ALL_GATHER && o->keys != BALLAST_EXCHANGE_NEEDED_ONLY) {
        return attn_error(error, -EINVAL, "exchange of keys %u is unknown", (unsigned)o->keys);
    }
    return 0;
}

static int homes_build(struct building *b, struct ballast_attn_error *error) {
    const struct ballast_exchange_options *o = b->options;
    uint64_t *own = calloc(o->ranks, sizeof *own);
    int result = own != NULL ? 0 : attn_error(error, -ENOMEM, "no memory for %u ranks", o->ranks);
    for (uint32_t i = 0; result == 0 && i < o->home_count; i++) {
        struct ballast_exchange_home at = o->homes[i];
        if (at.rank >= o->ranks || at.rows == 0 || (uint64_t)at.start + at.rows > INT32_MAX ||
            own[at.rank] + at.rows > INT32_MAX) {
            result = attn_error(error, -EINVAL, "home %u: rows %u+%u of document %u at rank %u", i,
                                at.start, at.rows, at.document, at.rank);
            break;
        }
        b->homes[i] = (struct home){.at = at, .own_row = (uint32_t)own[at.rank]};
        own[at.rank] += at.rows;
    }
    if (result == 0 && (own[o->rank] > o->own_rows || o->own_rows > INT32_MAX)) {
        result = attn_error(error, -EINVAL, "%u own rows where rank %u is home of %llu",
                            o->own_rows, o->rank, (unsigned long long)own[o->rank]);
    }
    free(own);
    if (result != 0) {
        return result;
    }
    qsort(b->homes, o->home_count, sizeof *b->homes, home_compare);
    for (uint32_t i = 0; i < o->home_count; i++) {
        const struct ballast_exchange_home *at = &b->homes[i].at;
        const struct ballast_exchange_home *before = i > 0 ? &b->homes[i - 1].at : NULL;
        uint32_t expected = before != NULL && before->document == at->document
                                ? before->start + before->rows
                                : 0;
        if (at->start != expected) {
            return attn_error(error, -EINVAL, "document %u: a home begins at row %u, not %u",
                              at->document, at->start, expected);
        }
    }
    return 0;
}

/* First home of the document that ends behind `row`; home_count if none. */
static uint32_t home_of(const struct building *b, uint32_t document, uint32_t row) {
    uint32_t low = 0;
    uint32_t high = b->options->home_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct ballast_exchange_home *at = &b->homes[middle].at;
        bool before = at->document < document ||
                      (at->document == document && at->start + at->rows <= row);
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    return low;
}

static int piece_append(struct building *b, uint32_t *capacity, struct piece piece) {
    if (b->piece_count == *capacity) {
        uint32_t larger = *capacity > 0 ? 2 * *capacity : 64;
        struct piece *pieces = realloc(b->pieces, larger * sizeof *pieces);
        if (pieces == NULL) {
            return -ENOMEM;
        }
        b->pieces = pieces;
        *capacity = larger;
    }
    b->pieces[b->piece_count++] = piece;
    return 0;
}

/* Cuts one work where homes change. */
static int work_cut(struct building *b, uint32_t *capacity,
                    const struct ballast_exchange_work *work, struct ballast_attn_error *error) {
    uint32_t end = work->start + work->rows;
    uint32_t h = home_of(b, work->document, work->start);
    for (uint32_t row = work->start; row < end; h++) {
        if (h == b->options->home_count || b->homes[h].at.document != work->document) {
            return attn_error(error, -EINVAL, "row %u of document %u is computed and has no home",
                              row, work->document);
        }
        const struct home *home = &b->homes[h];
        uint32_t home_end = home->at.start + home->at.rows;
        struct piece piece = {.work = *work, .home = home->at.rank};
        piece.work.start = row;
        piece.work.rows = (home_end < end ? home_end : end) - row;
        piece.home_row = home->own_row + row - home->at.start;
        row += piece.work.rows;
        if (piece_append(b, capacity, piece) != 0) {
            return attn_error(error, -ENOMEM, "no memory for %u pieces", b->piece_count);
        }
    }
    return 0;
}

static int pieces_build(struct building *b, struct ballast_attn_error *error) {
    const struct ballast_exchange_options *o = b->options;
    uint32_t capacity = 0;
    for (uint32_t i = 0; i < o->work_count; i++) {
        const struct ballast_exchange_work *work = &o->works[i];
        if (work->rank >= o->ranks || work->rows == 0 ||
            (uint64_t)work->start + work->rows > INT32_MAX || work->head_count == 0 ||
            work->head_begin + work->head_count > (int)o->q_heads ||
            work->head_count % o->chunks != 0) {
            return attn_error(error, -EINVAL,
                              "work %u: rows %u+%u, heads %u+%u of %u in %u chunks at rank %u", i,
                              work->start, work->rows, work->head_begin, work->head_count,
                              o->q_heads, o->chunks, work->rank);
        }
        int result = work_cut(b, &capacity, work, error);
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

/* Whether no (row, head) is computed twice. */
static int pieces_check(struct building *b, struct ballast_attn_error *error) {
    qsort(b->pieces, b->piece_count, sizeof *b->pieces, piece_compare_rows);
    for (uint32_t i = 0; i < b->piece_count; i++) {
        const struct ballast_exchange_work *work = &b->pieces[i].work;
        if (i == 0 || b->pieces[i - 1].work.document != work->document) {
            memset(b->covered, 0, b->options->q_heads * sizeof *b->covered);
        }
        for (uint32_t head = work->head_begin; head < (uint32_t)work->head_begin + work->head_count;
             head++) {
            if (b->covered[head] > work->start) {
                return attn_error(error, -EINVAL,
                                  "row %u, head %u of document %u is computed twice", work->start,
                                  head, work->document);
            }
            b->covered[head] = work->start + work->rows;
        }
    }
    qsort(b->pieces, b->piece_count, sizeof *b->pieces, piece_compare);
    return 0;
}

static bool same_rows(const struct ballast_exchange_work *a,
                      const struct ballast_exchange_work *b) {
    return a->document == b->document && a->rank == b->rank && a->start == b->start &&
           a->rows == b->rows;
}

/* Rows of others come behind the own ones; head ranges of the same rows share them. */
static int queries_build(struct building *b) {
    struct ballast_exchange *x = b->exchange;
    const struct piece *before = NULL;
    int result = 0;
    for (uint32_t i = 0; result == 0 && i < b->piece_count; i++) {
        struct piece *piece = &b->pieces[i];
        const struct ballast_exchange_work *work = &piece->work;
        struct exchange_run run = {
            .peer = work->rank,
            .row = piece->home_row,
            .rows = work->rows,
            .head_begin = work->head_begin,
            .head_count = work->head_count,
            .last_chunk = x->chunks - 1,
        };
        piece->q_row = piece->home_row;
        if (work->rank == piece->home) {
            continue;
        }
        if (piece->home == x->rank) {
            result = runs_append(&x->q_home, run);
        }
        if (work->rank == x->rank) {
            bool shared = before != NULL && same_rows(&before->work, work);
            piece->q_row = shared ? before->q_row : (uint32_t)b->q_rows;
            b->q_rows += shared ? 0 : work->rows;
            before = piece;
            run.peer = piece->home;
            run.row = piece->q_row;
            result = runs_append(&x->q_away, run);
        }
    }
    return result;
}

static void need_all(const struct building *b, uint32_t end) {
    for (uint32_t head = 0; head < b->options->kv_heads; head++) {
        b->needs[head] = (struct need){.end = end, .last_chunk = b->options->chunks - 1};
    }
}

static void need_piece(const struct building *b, const struct ballast_exchange_work *work) {
    uint32_t group = b->options->q_heads / b->options->kv_heads;
    uint32_t part = work->head_count / b->options->chunks;
    uint32_t end = (uint32_t)work->head_begin + work->head_count;
    for (uint32_t head = work->head_begin; head < end; head++) {
        struct need *need = &b->needs[head / group];
        uint32_t chunk = (head - work->head_begin) / part;
        uint32_t seen = work->start + work->rows;
        need->first_chunk = need->end == 0 || chunk < need->first_chunk ? chunk : need->first_chunk;
        need->last_chunk = chunk > need->last_chunk ? chunk : need->last_chunk;
        need->end = seen > need->end ? seen : need->end;
    }
}

/* Keys [0, end) of a document, whose homes begin at `h`, to one rank for a range of heads. */
static int keys_append(struct building *b, uint32_t h, uint32_t worker, uint32_t head_begin,
                       uint32_t head_count, const struct need *need) {
    struct ballast_exchange *x = b->exchange;
    uint32_t document = b->homes[h].at.document;
    int result = 0;
    for (; result == 0 && h < b->options->home_count; h++) {
        const struct home *home = &b->homes[h];
        if (home->at.document != document || home->at.start >= need->end) {
            break;
        }
        uint32_t left = need->end - home->at.start;
        struct exchange_run run = {
            .peer = worker,
            .row = home->own_row,
            .rows = left < home->at.rows ? left : home->at.rows,
            .head_begin = (uint16_t)head_begin,
            .head_count = (uint16_t)head_count,
            .first_chunk = need->first_chunk,
            .last_chunk = need->last_chunk,
        };
        if (home->at.rank == x->rank) {
            result = runs_append(&x->kv_home, run);
        }
        if (result == 0 && worker == x->rank) {
            run.peer = home->at.rank;
            run.row = (uint32_t)b->kv_rows + home->at.start;
            result = runs_append(&x->kv_away, run);
        }
    }
    return result;
}

static bool same_need(const struct need *a, const struct need *b) {
    return a->end == b->end && a->first_chunk == b->first_chunk && a->last_chunk == b->last_chunk;
}

/* What one rank reads of a document; `pieces` are those that it computes there. */
static int reader_build(struct building *b, uint32_t h, uint32_t worker, struct piece *pieces,
                        uint32_t count) {
    uint32_t kv_heads = b->options->kv_heads;
    uint32_t rows = 0;
    for (uint32_t begin = 0, end; begin < kv_heads; begin = end) {
        for (end = begin + 1; end < kv_heads && same_need(&b->needs[begin], &b->needs[end]);) {
            end++;
        }
        rows = b->needs[begin].end > rows ? b->needs[begin].end : rows;
        if (b->needs[begin].end > 0 &&
            keys_append(b, h, worker, begin, end - begin, &b->needs[begin]) != 0) {
            return -ENOMEM;
        }
    }
    if (worker == b->options->rank) {
        for (uint32_t i = 0; i < count; i++) {
            pieces[i].kv_row = (uint32_t)b->kv_rows;
        }
        b->kv_rows += rows;
    }
    return 0;
}

/* A document: its homes begin at `h` and end before `end`, its pieces begin at `p`. */
static int document_build(struct building *b, uint32_t h, uint32_t end, uint32_t *p) {
    bool all = b->options->keys == BALLAST_EXCHANGE_ALL_GATHER;
    uint32_t document = b->homes[h].at.document;
    uint32_t length = b->homes[end - 1].at.start + b->homes[end - 1].at.rows;
    int result = 0;
    for (uint32_t worker = 0; result == 0 && worker < b->options->ranks; worker++) {
        uint32_t first = *p;
        memset(b->needs, 0, b->options->kv_heads * sizeof *b->needs);
        for (; *p < b->piece_count && b->pieces[*p].work.document == document &&
               b->pieces[*p].work.rank == worker;
             ++*p) {
            need_piece(b, &b->pieces[*p].work);
        }
        if (all) {
            need_all(b, length);
        }
        if (all || *p > first) {
            result = reader_build(b, h, worker, &b->pieces[first], *p - first);
        }
    }
    return result;
}

static int keys_build(struct building *b) {
    uint32_t p = 0;
    int result = 0;
    for (uint32_t h = 0, end; result == 0 && h < b->options->home_count; h = end) {
        for (end = h + 1; end < b->options->home_count &&
                          b->homes[end].at.document == b->homes[h].at.document;) {
            end++;
        }
        result = document_build(b, h, end, &p);
    }
    return result;
}

static int fragments_build(struct building *b) {
    struct ballast_exchange *x = b->exchange;
    x->fragments = malloc((b->piece_count + 1) * sizeof *x->fragments);
    if (x->fragments == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < b->piece_count; i++) {
        const struct piece *piece = &b->pieces[i];
        if (piece->work.rank == x->rank) {
            x->fragments[x->sizes.fragments++] = (struct ballast_attn_fragment){
                .q_row = (int32_t)piece->q_row,
                .q_length = (int32_t)piece->work.rows,
                .kv_row = (int32_t)piece->kv_row,
                .kv_length = (int32_t)(piece->work.start + piece->work.rows),
                .q_position = (int32_t)piece->work.start,
                .head_begin = piece->work.head_begin,
                .head_count = piece->work.head_count,
                .document = piece->work.document,
            };
        }
    }
    return 0;
}

static int runs_build(struct building *b, struct ballast_attn_error *error) {
    struct ballast_exchange *x = b->exchange;
    struct exchange_runs *lists[] = {&x->q_home, &x->q_away, &x->kv_home, &x->kv_away};
    b->q_rows = b->options->own_rows;
    int result = queries_build(b);
    result = result != 0 ? result : keys_build(b);
    for (size_t i = 0; result == 0 && i < sizeof lists / sizeof lists[0]; i++) {
        result = runs_sort(lists[i]);
    }
    result = result != 0 ? result : fragments_build(b);
    if (result != 0) {
        return attn_error(error, result, "no memory for the runs of %u pieces", b->piece_count);
    }
    if (b->q_rows > INT32_MAX || b->kv_rows > INT32_MAX) {
        return attn_error(error, -EINVAL, "rank %u would hold %llu query rows and %llu key rows",
                          x->rank, (unsigned long long)b->q_rows, (unsigned long long)b->kv_rows);
    }
    for (uint32_t i = 0; i < x->kv_away.count; i++) {
        x->sizes.keys_shared |= x->kv_away.runs[i].first_chunk != x->kv_away.runs[i].last_chunk;
    }
    x->sizes.q_rows = (uint32_t)b->q_rows;
    x->sizes.kv_rows = (uint32_t)b->kv_rows;
    return 0;
}

/* Of all that must be the same on all ranks but the plan's own digest. */
static void lists_digest(struct ballast_exchange *x, const struct ballast_exchange_options *o) {
    const uint32_t head[] = {o->ranks,  o->q_heads,        o->kv_heads,   o->head_dim,
                             o->chunks, (uint32_t)o->keys, o->home_count, o->element_bytes};
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, sizeof head);
    XXH3_128bits_update(&state, o->homes, o->home_count * sizeof *o->homes);
    XXH3_128bits_update(&state, o->works, o->work_count * sizeof *o->works);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(x->lists_digest, canonical.digest, sizeof x->lists_digest);
}

static int exchange_build(struct building *b, struct ballast_attn_error *error) {
    const struct ballast_exchange_options *o = b->options;
    b->homes = malloc((o->home_count + 1) * sizeof *b->homes);
    b->covered = calloc(o->q_heads, sizeof *b->covered);
    b->needs = calloc(o->kv_heads, sizeof *b->needs);
    b->exchange->counts = calloc(2 * (size_t)o->ranks, sizeof *b->exchange->counts);
    if (b->homes == NULL || b->covered == NULL || b->needs == NULL || b->exchange->counts == NULL) {
        return attn_error(error, -ENOMEM, "no memory for %u homes", o->home_count);
    }
    int result = homes_build(b, error);
    result = result != 0 ? result : pieces_build(b, error);
    result = result != 0 ? result : pieces_check(b, error);
    return result != 0 ? result : runs_build(b, error);
}

int ballast_exchange_create(struct ballast_exchange **out,
                            const struct ballast_exchange_options *options,
                            struct ballast_attn_error *error) {
    int result = options_check(options, error);
    if (result != 0) {
        return result;
    }
    struct ballast_exchange *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return attn_error(error, -ENOMEM, "no memory for an exchange");
    }
    *x = (struct ballast_exchange){
        .rank = options->rank,
        .ranks = options->ranks,
        .q_heads = options->q_heads,
        .kv_heads = options->kv_heads,
        .head_dim = options->head_dim,
        .element_bytes = options->element_bytes,
        .chunks = options->chunks,
    };
    memcpy(x->digest, options->digest, sizeof x->digest);
    lists_digest(x, options);
    struct building building = {.options = options, .exchange = x};
    result = exchange_build(&building, error);
    free(building.needs);
    free(building.covered);
    free(building.pieces);
    free(building.homes);
    if (result != 0) {
        ballast_exchange_destroy(x);
        return result;
    }
    exchange_measure(x);
    *out = x;
    return 0;
}

void ballast_exchange_destroy(struct ballast_exchange *exchange) {
    if (exchange != NULL) {
        free(exchange->counts);
        free(exchange->fragments);
        free(exchange->q_home.runs);
        free(exchange->q_away.runs);
        free(exchange->kv_home.runs);
        free(exchange->kv_away.runs);
        free(exchange);
    }
}

struct ballast_exchange_sizes ballast_exchange_sizes(const struct ballast_exchange *exchange) {
    return exchange->sizes;
}

void ballast_exchange_fragments(const struct ballast_exchange *exchange, uint32_t chunk,
                                struct ballast_attn_fragment *out) {
    for (uint32_t i = 0; i < exchange->sizes.fragments; i++) {
        uint32_t part = exchange->fragments[i].head_count / exchange->chunks;
        out[i] = exchange->fragments[i];
        out[i].head_begin = (uint16_t)(out[i].head_begin + chunk * part);
        out[i].head_count = (uint16_t)part;
    }
}
