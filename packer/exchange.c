/* exchange: all but one document of a trade are given, the last one is sought.
 *
 * On a list by descending work the document that levels best stands next to the point where the
 * wanted work would be, or next to the documents that the room leaves, if that point is not among
 * them. From one search to the next these places move one way: a cursor remembers them. */
#include "packer/exchange.h"

enum side { SIDE_OUT, SIDE_IN };

struct search {
    const struct exchange_bin *bins[2]; /* by side: the heavy one, the light one */
    struct exchange_limits *limits;
    struct exchange *best;
    bool found;
};

/* Positions in a list: where the wanted work would be, and which lengths the room leaves. */
struct cursor {
    uint32_t level;
    uint32_t begin;
    uint32_t end;
};

/* What a trade carries from the heavy bin to the light one, and by which entries. */
struct trade {
    int64_t work;
    int64_t tokens;
    uint32_t counts[2]; /* by side */
    uint32_t positions[2][2];
};

static bool search_is_over(const struct search *search) {
    return search->limits->probes == 0 || search->best->max <= search->limits->enough;
}

static int64_t side_sign(enum side side) {
    return side == SIDE_OUT ? 1 : -1;
}

static void trade_add(struct trade *trade, enum side side, const struct exchange_entry *entries,
                      uint32_t position) {
    trade->work += side_sign(side) * (int64_t)entries[position].work;
    trade->tokens += side_sign(side) * (int64_t)entries[position].length;
    trade->positions[side][trade->counts[side]++] = position;
}

/* The larger of the two works after a trade; UINT64_MAX for one that levels nothing. */
static uint64_t search_max(const struct search *search, int64_t traded) {
    uint64_t heavy = search->bins[SIDE_OUT]->work;
    uint64_t light = search->bins[SIDE_IN]->work;
    if (traded <= 0 || (uint64_t)traded >= heavy - light) {
        return UINT64_MAX;
    }
    heavy -= (uint64_t)traded;
    light += (uint64_t)traded;
    return heavy > light ? heavy : light;
}

/* Takes the trade with one more entry if it is better than the best and has its room. */
static void search_weigh(struct search *search, const struct trade *given, enum side side,
                         uint32_t position) {
    struct trade trade = *given;
    trade_add(&trade, side, search->bins[side]->entries, position);
    uint64_t max = search_max(search, trade.work);
    if (max >= search->best->max || trade.tokens > (int64_t)search->bins[SIDE_IN]->room ||
        -trade.tokens > (int64_t)search->bins[SIDE_OUT]->room) {
        return;
    }
    *search->best = (struct exchange){
        .max = max,
        .out_count = trade.counts[SIDE_OUT],
        .in_count = trade.counts[SIDE_IN],
        .out = {trade.positions[SIDE_OUT][0], trade.positions[SIDE_OUT][1]},
        .in = {trade.positions[SIDE_IN][0], trade.positions[SIDE_IN][1]},
    };
    search->found = true;
}

/* The first position from `first` on whose work is at most `work`; looked for from `at` on. */
static uint32_t slide_work(const struct exchange_bin *bin, uint32_t first, uint32_t at,
                           int64_t work) {
    at = at > first ? at : first;
    while (at > first && (int64_t)bin->entries[at - 1].work <= work) {
        at--;
    }
    while (at < bin->count && (int64_t)bin->entries[at].work > work) {
        at++;
    }
    return at;
}

/* The same for a length. */
static uint32_t slide_length(const struct exchange_bin *bin, uint32_t first, uint32_t at,
                             int64_t length) {
    at = at > first ? at : first;
    while (at > first && (int64_t)bin->entries[at - 1].length <= length) {
        at--;
    }
    while (at < bin->count && (int64_t)bin->entries[at].length > length) {
        at++;
    }
    return at;
}

/* Seeks the last entry of a trade among the positions from `first` on. */
static void search_last(struct search *search, const struct trade *given, enum side side,
                        uint32_t first, struct cursor *cursor) {
    const struct exchange_bin *bin = search->bins[side];
    int64_t sign = side_sign(side);
    int64_t gap = (int64_t)(search->bins[SIDE_OUT]->work - search->bins[SIDE_IN]->work);
    int64_t longest = (int64_t)search->bins[!side]->room - sign * given->tokens;
    int64_t shortest = -(int64_t)bin->room - sign * given->tokens;
    search->limits->probes--;
    cursor->level = slide_work(bin, first, cursor->level, sign * (gap / 2 - given->work));
    cursor->begin = slide_length(bin, first, cursor->begin, longest);
    cursor->end = slide_length(bin, first, cursor->end, shortest - 1);
    uint32_t below = cursor->level > cursor->begin ? cursor->level : cursor->begin;
    uint32_t above = cursor->level < cursor->end ? cursor->level : cursor->end;
    if (below < cursor->end) {
        search_weigh(search, given, side, below);
    }
    if (above > cursor->begin) {
        search_weigh(search, given, side, above - 1);
    }
}

/* Seeks the last entry after each that may come before it, on side `next`. */
static void search_last_two(struct search *search, const struct trade *given, enum side next,
                            enum side last) {
    const struct exchange_bin *bin = search->bins[next];
    uint32_t start = next == last ? bin->count : 0;
    struct cursor cursor = {start, start, start};
    for (uint32_t i = 0; i < bin->count && !search_is_over(search); i++) {
        struct trade trade = *given;
        trade_add(&trade, next, bin->entries, i);
        search_last(search, &trade, last, next == last ? i + 1 : 0, &cursor);
    }
}

bool exchange_single(const struct exchange_bin *heavy, const struct exchange_bin *light,
                     struct exchange_limits *limits, struct exchange *best) {
    struct search search = {{heavy, light}, limits, best, false};
    struct trade nothing = {0};
    struct cursor cursor = {0};
    if (!search_is_over(&search)) {
        search_last(&search, &nothing, SIDE_OUT, 0, &cursor);
    }
    search_last_two(&search, &nothing, SIDE_OUT, SIDE_IN);
    return search.found;
}

bool exchange_pair(const struct exchange_bin *heavy, const struct exchange_bin *light,
                   struct exchange_limits *limits, struct exchange *best) {
    struct search search = {{heavy, light}, limits, best, false};
    struct trade nothing = {0};
    for (uint32_t i = 0; i < heavy->count && !search_is_over(&search); i++) {
        struct trade one_out = {0};
        trade_add(&one_out, SIDE_OUT, heavy->entries, i);
        search_last_two(&search, &one_out, SIDE_IN, SIDE_IN);
    }
    for (uint32_t i = 0; i < light->count && !search_is_over(&search); i++) {
        struct trade one_in = {0};
        trade_add(&one_in, SIDE_IN, light->entries, i);
        search_last_two(&search, &one_in, SIDE_OUT, SIDE_OUT);
    }
    search_last_two(&search, &nothing, SIDE_OUT, SIDE_OUT);
    return search.found;
}
