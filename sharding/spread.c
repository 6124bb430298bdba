/* spread: see spread.h. */
#include "sharding/spread.h"

#include "sharding/deal.h"
#include "sharding/floor.h"
#include "sharding/tile_list.h"

#include <assert.h>
#include <string.h>

#define BORDER_ROWS 128u
#define WORK_BITS   48u /* of a sequence's total, at most; what is cut weighs more */
#define FEW_KEYS    32u /* are sorted faster by insertion */
#define NONE        UINT32_MAX

typedef unsigned __int128 u128;

/* A level's fraction of the mean, as mean * numerator / denominator. */
static const struct {
    uint32_t numerator;
    uint32_t denominator;
} degrees[] = {{2, 1}, {1, 1}, {1, 2}, {1, 4}, {1, 8}, {1, 16}, {1, 32}};

/* A level's threshold, as a share of a rank's rows. */
static const struct {
    uint32_t numerator;
    uint32_t denominator;
} thresholds[] = {{4, 1}, {2, 1}, {1, 1}, {1, 2}, {1, 4}, {1, 8}};

/* What is left of a document that is being cut. */
struct spread_cut {
    uint32_t document;
    uint32_t start;
    uint32_t end;
    uint32_t align;
    uint64_t room_after; /* of the ranks whose turn is still to come */
};

uint32_t spread_levels(enum layout layout) {
    return layout == LAYOUT_VARIABLE_DEGREE ? sizeof degrees / sizeof degrees[0]
           : layout == LAYOUT_HYBRID        ? sizeof thresholds / sizeof thresholds[0]
                                            : 0;
}

static uint32_t spread_pieces_max(uint32_t documents, uint32_t cp, uint32_t fragments_max) {
    uint64_t all = (2 * (uint64_t)documents + 1) * cp;
    return all < fragments_max ? (uint32_t)all : fragments_max;
}

static void *spread_array(uint8_t *memory, size_t *at, size_t count, size_t size) {
    void *array = memory != NULL ? memory + *at : NULL;
    *at += (count * size + 7) / 8 * 8;
    return array;
}

static size_t spread_lay_out(struct spread *s, uint8_t *memory, uint32_t documents_max) {
    size_t at = 0;
    s->order = spread_array(memory, &at, documents_max, sizeof *s->order);
    s->works = spread_array(memory, &at, documents_max, sizeof *s->works);
    s->heads = spread_array(memory, &at, documents_max, sizeof *s->heads);
    s->ranks = spread_array(memory, &at, s->cp, sizeof *s->ranks);
    s->turns = spread_array(memory, &at, s->cp, sizeof *s->turns);
    s->begins = spread_array(memory, &at, s->cp, sizeof *s->begins);
    s->ends = spread_array(memory, &at, s->cp, sizeof *s->ends);
    s->pieces = spread_array(memory, &at, s->pieces_max, sizeof *s->pieces);
    s->fragments = spread_array(memory, &at, s->pieces_max, sizeof *s->fragments);
    return at;
}

size_t spread_bytes(uint32_t documents_max, uint32_t cp, uint32_t fragments_max) {
    struct spread s = {.cp = cp, .pieces_max = spread_pieces_max(documents_max, cp, fragments_max)};
    return spread_lay_out(&s, NULL, documents_max);
}

void spread_init(struct spread *s, void *memory, uint32_t documents_max, uint32_t cp,
                 uint32_t fragments_max) {
    *s = (struct spread){.cp = cp,
                         .pieces_max = spread_pieces_max(documents_max, cp, fragments_max)};
    (void)spread_lay_out(s, memory, documents_max);
}

static bool spread_before(const struct spread_key *a, const struct spread_key *b) {
    return a->key != b->key ? a->key < b->key : a->index < b->index;
}

/* Sinks keys[at] in a heap whose root comes last. */
static void spread_sink(struct spread_key *keys, uint32_t count, uint32_t at) {
    struct spread_key sinking = keys[at];
    for (uint64_t child = 2 * (uint64_t)at + 1; child < count; child = 2 * (uint64_t)at + 1) {
        if (child + 1 < count && spread_before(&keys[child], &keys[child + 1])) {
            child++;
        }
        if (!spread_before(&sinking, &keys[child])) {
            break;
        }
        keys[at] = keys[child];
        at = (uint32_t)child;
    }
    keys[at] = sinking;
}

static void spread_insert(struct spread_key *keys, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        struct spread_key next = keys[i];
        uint32_t at = i;
        for (; at > 0 && spread_before(&next, &keys[at - 1]); at--) {
            keys[at] = keys[at - 1];
        }
        keys[at] = next;
    }
}

static void spread_sort(struct spread_key *keys, uint32_t count) {
    if (count <= FEW_KEYS) {
        spread_insert(keys, count);
        return;
    }
    for (uint32_t i = count / 2; i > 0; i--) {
        spread_sink(keys, count, i - 1);
    }
    for (uint32_t last = count; last > 1; last--) {
        struct spread_key first = keys[0];
        keys[0] = keys[last - 1];
        keys[last - 1] = first;
        spread_sink(keys, last - 1, 0);
    }
}

static uint64_t spread_rows(const struct spread *s) {
    return (s->sequence->tokens + s->sequence->pad_tokens) / s->cp;
}

/* What a document comes to at the least, however it is cut. */
static uint64_t spread_floor(const struct spread *s, uint32_t document) {
    return s->bends ? tile_document_ps(&s->floor, s->sequence->lengths[document]) >> s->work_shift
                    : s->works[document];
}

/* Shifts works so that their total is of WORK_BITS. */
static void spread_shift(struct spread *s, u128 total) {
    s->work_shift = 0;
    for (; total >> WORK_BITS != 0; total >>= 1) {
        s->work_shift++;
    }
    for (uint32_t i = 0; s->work_shift > 0 && i < s->sequence->documents; i++) {
        s->works[i] >>= s->work_shift;
    }
    s->mean = (uint64_t)total / s->cp;
}

void spread_begin(struct spread *s, const struct packed_sequence *sequence,
                  const struct tile_model *model) {
    u128 total = 0;
    s->sequence = sequence;
    s->model = model;
    for (uint32_t i = 0; i < sequence->documents; i++) {
        s->works[i] = tile_document_ps(model, sequence->lengths[i]);
        s->order[i] = (struct spread_key){UINT32_MAX - sequence->lengths[i], i};
        total += s->works[i];
    }
    spread_shift(s, total);
    s->bends = tile_model_floor(model, sequence->lengths, sequence->documents, &s->floor);
    s->even = tile_size_of(tile_tokens(TILE_ROWS, model->q_heads / model->kv_heads)).shifts;
    s->total = 0;
    for (uint32_t i = 0; i < sequence->documents; i++) {
        s->total += spread_floor(s, i);
    }
    spread_sort(s->order, sequence->documents);
}

/* Works are rounded up to ps, as a rank's time is once, and down with work_shift: what is added up
 * of them is more than the time by less than this. */
static uint64_t spread_rounded(const struct spread *s) {
    return (uint64_t)s->piece_count + s->sequence->documents + 1;
}

static void spread_load(struct spread *s, uint32_t rank, uint64_t work) {
    s->ranks[rank].load += work;
    s->hopeless = s->hopeless || s->ranks[rank].load > s->limit + spread_rounded(s);
}

/* Gives a rank rows [start, end) of a document. */
static void spread_put(struct spread *s, uint32_t rank, uint32_t document, uint32_t start,
                       uint32_t end) {
    if (start == end) {
        return;
    }
    s->ranks[rank].room -= end - start;
    if (s->piece_count < s->pieces_max) {
        s->pieces[s->piece_count] = (struct spread_piece){
            .rank = rank, .next = s->heads[document], .start = start, .length = end - start};
        s->heads[document] = s->piece_count;
    }
    s->piece_count++;
}

/* Gives it the first `low` and the last `high` rows of what is left. */
static void spread_put_ends(struct spread *s, struct spread_cut *cut, uint32_t rank, uint32_t low,
                            uint32_t high) {
    if (low + high == cut->end - cut->start) {
        low += high;
        high = 0;
    }
    uint32_t end = cut->end - high;
    struct fragment runs[2];
    uint32_t count = 0;
    if (low > 0) {
        runs[count++] = (struct fragment){cut->document, cut->start, low};
    }
    if (high > 0) {
        runs[count++] = (struct fragment){cut->document, end, high};
    }
    uint64_t work = tile_work_ps(s->model, runs, count) >> s->work_shift;
    s->work += work;
    spread_load(s, rank, work);
    spread_put(s, rank, cut->document, cut->start, cut->start + low);
    spread_put(s, rank, cut->document, end, cut->end);
    cut->start += low;
    cut->end = end;
}

/* The nearest border to row `at` in [first, last]; a border is a multiple of `align`. */
static uint32_t spread_border(uint32_t at, uint32_t align, uint32_t first, uint32_t last) {
    uint64_t border = ((uint64_t)at + align / 2) / align * align;
    return border < first ? first : border > last ? last : (uint32_t)border;
}

/* Of `rows` rows from both ends, how many are from the high end to hold `pairs`. */
static uint32_t spread_high(const struct spread_cut *cut, uint32_t rows, uint64_t pairs) {
    struct fragment low = {cut->document, cut->start, rows};
    uint64_t trade = (uint64_t)cut->end - cut->start - rows;
    uint64_t least = fragment_pairs(low);
    if (pairs <= least || trade == 0) {
        return 0;
    }
    uint64_t high = (pairs - least + trade / 2) / trade;
    return high < rows ? (uint32_t)high : rows;
}

/* A rank's share: about `rows` rows of about `work`. The rows that remain must fit the ranks whose
 * turn is to come, and those taken this one. */
static void spread_share(struct spread *s, struct spread_cut *cut, uint32_t rank, uint64_t rows,
                         uint64_t work) {
    uint64_t rest = cut->end - cut->start;
    uint64_t least = rest > cut->room_after ? rest - cut->room_after : 0;
    uint64_t most = s->ranks[rank].room < rest ? s->ranks[rank].room : rest;
    rows = rows < least ? least : rows > most ? most : rows;
    if (rows == rest) {
        spread_put_ends(s, cut, rank, (uint32_t)rest, 0);
        return;
    }
    uint32_t length = s->sequence->lengths[cut->document];
    uint64_t whole = s->works[cut->document] > 0 ? s->works[cut->document] : 1;
    uint64_t pairs = (uint64_t)((u128)work * document_pairs(length) / whole);
    uint32_t high = spread_high(cut, (uint32_t)rows, pairs);
    uint32_t end = spread_border(cut->end - high, cut->align, cut->start, cut->end);
    uint32_t given = cut->end - end;
    uint32_t low = rows > given ? (uint32_t)rows - given : 0;
    uint32_t start = spread_border(cut->start + low, cut->align, cut->start, end);
    uint64_t aligned = (uint64_t)(start - cut->start) + given;
    if (aligned < least || aligned > most) {
        start = cut->start + (uint32_t)rows - high;
        end = cut->end - high;
    }
    spread_put_ends(s, cut, rank, start - cut->start, cut->end - end);
}

/* Ranks with room into turns[]: the least loaded first, or those with the most room. */
static uint32_t spread_take_turns(struct spread *s, bool by_room) {
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < s->cp; rank++) {
        const struct spread_rank *r = &s->ranks[rank];
        if (r->room > 0) {
            s->turns[count++] = (struct spread_key){by_room ? UINT64_MAX - r->room : r->load, rank};
        }
    }
    spread_sort(s->turns, count);
    return count;
}

/* What the first `count` turns have. */
struct spread_group {
    uint32_t count;
    uint64_t room;
    uint64_t load;
};

/* The first `degree` turns, more if they have not the room, fewer if some are above the level that
 * the others reach. */
static struct spread_group spread_group_of(const struct spread *s, uint32_t turns, uint32_t degree,
                                           uint64_t rows, uint64_t work) {
    struct spread_group group = {0};
    while (group.count < turns && (group.count < degree || group.room < rows)) {
        const struct spread_rank *next = &s->ranks[s->turns[group.count].index];
        group.count++;
        group.room += next->room;
        group.load += next->load;
    }
    while (group.count > 1) {
        const struct spread_rank *last = &s->ranks[s->turns[group.count - 1].index];
        if ((u128)last->load * group.count < (u128)group.load + work ||
            group.room - last->room < rows) {
            break;
        }
        group.count--;
        group.room -= last->room;
        group.load -= last->load;
    }
    return group;
}

/* A document is cut: its pieces stand for it. */
static void spread_cut_done(struct spread *s, uint32_t document) {
    u128 most = (u128)(s->limit + spread_rounded(s)) * s->cp;
    s->work -= spread_floor(s, document);
    s->hopeless = s->hopeless || (s->even && s->work > most);
}

/* Cuts a document for the first turns, so that all get to one level. */
static void spread_cut_document(struct spread *s, uint32_t document, uint32_t degree,
                                bool by_room) {
    uint32_t length = s->sequence->lengths[document];
    uint64_t work = s->works[document] > 0 ? s->works[document] : 1;
    uint32_t turns = spread_take_turns(s, by_room);
    struct spread_group group = spread_group_of(s, turns, degree, length, work);
    uint64_t level = (group.load + work) / group.count;
    struct spread_cut cut = {.document = document, .end = length, .room_after = group.room};
    cut.align = length >= 2 * (uint64_t)BORDER_ROWS * group.count ? BORDER_ROWS : 1;
    for (uint32_t turn = 0; turn < group.count; turn++) {
        struct spread_rank *rank = &s->ranks[s->turns[turn].index];
        uint64_t raise = level > rank->load ? level - rank->load : 0;
        cut.room_after -= rank->room;
        spread_share(s, &cut, s->turns[turn].index, (uint64_t)((u128)raise * length / work), raise);
    }
    assert(cut.start == cut.end);
    spread_cut_done(s, document);
}

/* The least loaded rank that a whole document fits into, or NONE. */
static uint32_t spread_find(const struct spread *s, uint64_t rows) {
    uint32_t found = NONE;
    for (uint32_t rank = 0; rank < s->cp; rank++) {
        if (s->ranks[rank].room >= rows &&
            (found == NONE || s->ranks[rank].load < s->ranks[found].load)) {
            found = rank;
        }
    }
    return found;
}

static void spread_place(struct spread *s, uint32_t document) {
    uint32_t length = s->sequence->lengths[document];
    uint32_t rank = spread_find(s, length);
    if (rank == NONE) {
        spread_cut_document(s, document, 1, true);
        return;
    }
    spread_load(s, rank, s->works[document]);
    spread_put(s, rank, document, 0, length);
}

/* The fewest ranks on which the share of `work` is at most the level's fraction of the mean. */
static uint32_t spread_degree(const struct spread *s, uint64_t work, uint32_t level) {
    u128 share = (u128)s->mean * degrees[level].numerator;
    u128 parts = share > 0 ? ((u128)work * degrees[level].denominator + share - 1) / share : 1;
    return parts < s->cp ? (uint32_t)parts : s->cp;
}

static void spread_deal_degrees(struct spread *s, uint32_t level) {
    for (uint32_t i = 0; i < s->sequence->documents && !s->hopeless; i++) {
        uint32_t document = s->order[i].index;
        uint32_t degree = spread_degree(s, s->works[document], level);
        if (degree > 1) {
            spread_cut_document(s, document, degree, false);
        } else {
            spread_place(s, document);
        }
    }
}

/* The documents over the threshold in sequence order, each cut as per-document would cut them. */
static void spread_cut_exactly(struct spread *s, uint64_t threshold) {
    struct dealt before = {0};
    uint64_t columns = 2 * (uint64_t)s->cp;
    uint64_t rows = 0;
    for (uint32_t document = 0; document < s->sequence->documents && !s->hopeless; document++) {
        uint32_t length = s->sequence->lengths[document];
        if (length < threshold) {
            continue;
        }
        rows += length;
        struct dealt after = {rows / columns, rows % columns};
        struct spread_cut cut = {.document = document, .end = length};
        for (uint32_t rank = 0; rank < s->cp; rank++) {
            uint64_t low_end = dealt_begin(&before, &after, (uint64_t)rank + 1);
            uint64_t high = dealt_begin(&before, &after, columns - 1 - rank);
            spread_put_ends(s, &cut, rank, (uint32_t)low_end - cut.start, cut.end - (uint32_t)high);
        }
        spread_cut_done(s, document);
        before = after;
    }
}

static uint64_t spread_threshold(const struct spread *s, uint32_t level) {
    uint64_t rows = spread_rows(s) * thresholds[level].numerator;
    return (rows + thresholds[level].denominator - 1) / thresholds[level].denominator;
}

static void spread_deal_threshold(struct spread *s, uint32_t level) {
    uint64_t threshold = spread_threshold(s, level);
    spread_cut_exactly(s, threshold);
    for (uint32_t i = 0; i < s->sequence->documents && !s->hopeless; i++) {
        uint32_t document = s->order[i].index;
        if (s->sequence->lengths[document] < threshold) {
            spread_place(s, document);
        }
    }
}

/* Appends to a rank's fragments, whose documents ascend, in order of start. */
static void spread_append(struct fragment *fragments, uint32_t begin, uint32_t *end,
                          struct fragment next) {
    uint32_t at = (*end)++;
    for (; at > begin && fragments[at - 1].document == next.document &&
           fragments[at - 1].start > next.start;
         at--) {
        fragments[at] = fragments[at - 1];
    }
    fragments[at] = next;
}

/* Makes touching runs of a rank one. */
static void spread_merge(struct fragment *fragments, uint32_t begin, uint32_t *end) {
    uint32_t kept = begin;
    for (uint32_t i = begin; i < *end; i++) {
        struct fragment *last = &fragments[kept > begin ? kept - 1 : begin];
        if (kept > begin && last->document == fragments[i].document &&
            last->start + last->length == fragments[i].start) {
            last->length += fragments[i].length;
        } else {
            fragments[kept++] = fragments[i];
        }
    }
    *end = kept;
}

static void spread_collect(struct spread *s) {
    uint32_t begin = 0;
    memset(s->ends, 0, s->cp * sizeof *s->ends);
    for (uint32_t i = 0; i < s->piece_count; i++) {
        s->ends[s->pieces[i].rank]++;
    }
    for (uint32_t rank = 0; rank < s->cp; rank++) {
        s->begins[rank] = begin;
        begin += s->ends[rank];
        s->ends[rank] = s->begins[rank];
    }
    for (uint32_t document = 0; document < s->sequence->documents; document++) {
        for (uint32_t i = s->heads[document]; i != NONE; i = s->pieces[i].next) {
            const struct spread_piece *piece = &s->pieces[i];
            spread_append(s->fragments, s->begins[piece->rank], &s->ends[piece->rank],
                          (struct fragment){document, piece->start, piece->length});
        }
    }
    for (uint32_t rank = 0; rank < s->cp; rank++) {
        spread_merge(s->fragments, s->begins[rank], &s->ends[rank]);
    }
}

/* Ranks that a document is cut for; 1: whole. */
static uint32_t spread_parts(const struct spread *s, struct spread_rule rule, uint32_t document) {
    if (rule.layout == LAYOUT_HYBRID) {
        return s->sequence->lengths[document] >= spread_threshold(s, rule.level) ? s->cp : 1;
    }
    return spread_degree(s, s->works[document], rule.level);
}

bool spread_repeats(const struct spread *s, struct spread_rule rule) {
    struct spread_rule before = {rule.layout, rule.level - 1};
    uint32_t parts = UINT32_MAX;
    for (uint32_t i = 0; i < s->sequence->documents && rule.level > 0 && parts > 1; i++) {
        parts = spread_parts(s, rule, s->order[i].index);
        if (parts != spread_parts(s, before, s->order[i].index)) {
            return false;
        }
    }
    return rule.level > 0;
}

/* A rank that computes anything pays the launches; the rest of the limit is for work. */
static void spread_set_limit(struct spread *s, uint64_t limit_ps) {
    uint64_t launch_ps = tile_launch_ps(s->model);
    uint64_t work_ps = limit_ps > launch_ps ? limit_ps - launch_ps : 0;
    s->limit = (work_ps < INT64_MAX ? work_ps : INT64_MAX) >> s->work_shift;
    s->work = s->total;
    s->hopeless = false;
}

bool spread_deal(struct spread *s, struct spread_rule rule, uint64_t limit_ps) {
    assert(rule.level < spread_levels(rule.layout));
    spread_set_limit(s, limit_ps);
    for (uint32_t document = 0; document < s->sequence->documents; document++) {
        s->heads[document] = NONE;
    }
    for (uint32_t rank = 0; rank < s->cp; rank++) {
        s->ranks[rank] = (struct spread_rank){.room = spread_rows(s)};
    }
    s->piece_count = 0;
    if (rule.layout == LAYOUT_HYBRID) {
        spread_deal_threshold(s, rule.level);
    } else {
        spread_deal_degrees(s, rule.level);
    }
    if (s->hopeless || s->piece_count > s->pieces_max) {
        return false;
    }
    spread_collect(s);
    return true;
}
