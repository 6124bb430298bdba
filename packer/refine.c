/* refine: rounds of trades over lists of the bins' documents by descending work.
 *
 * The lists lie one behind the other with room for a few more documents in each; when one has
 * outgrown its place, all are spread anew. */
#include "packer/refine.h"

#include "packer/bound.h"
#include "packer/exchange.h"
#include "packer/order.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#define PARTNERS 8u /* a round takes the best among so many; beyond them, the first that helps */
#define SLACK    8u /* free places behind a list that has just been spread */

/* A pair is good enough if it takes this part of the gap between the heaviest and the lightest bin:
 * many fair trades soon found level more than few excellent ones. */
#define GAIN 256u

#define PPM 1000000u

struct refine {
    const struct pack_input *input;
    uint32_t *bin_of;
    uint64_t *bin_work;
    uint64_t *bin_tokens;
    struct exchange_entry *entries;
    size_t *begins;   /* of the lists, bins + 1 of them */
    uint32_t *counts; /* of the lists */
    uint32_t *ranks;  /* bins by (work descending, bin) */
    uint64_t probes;
};

/* A trade of the heaviest bin, and the rank of its partner. */
struct trade {
    struct exchange exchange;
    uint32_t rank;
};

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

size_t pack_refine_bytes(uint32_t items, uint32_t bins) {
    size_t places = (size_t)items + (size_t)SLACK * bins;
    return places * sizeof(struct exchange_entry) + ((size_t)bins + 1) * sizeof(size_t) +
           2 * sizeof(uint32_t) * (size_t)bins + sizeof(uint32_t) * (size_t)items;
}

/* Groups the items by bin, in the order given: members of bin b end at begins[b]. */
static void refine_group(struct refine *refine, const uint32_t *order, uint32_t *members) {
    const struct pack_input *input = refine->input;
    memset(refine->counts, 0, input->bins * sizeof *refine->counts);
    for (uint32_t i = 0; i < input->items; i++) {
        if (refine->bin_of[i] != PACK_LEFT_OVER) {
            refine->counts[refine->bin_of[i]]++;
        }
    }
    size_t begin = 0;
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        refine->begins[bin] = begin;
        begin += refine->counts[bin];
    }
    for (uint32_t i = 0; i < input->items; i++) {
        uint32_t bin = refine->bin_of[order[i]];
        if (bin != PACK_LEFT_OVER) {
            members[refine->begins[bin]++] = order[i];
        }
    }
}

/* Fills the lists, SLACK free places behind each. */
static void refine_list(struct refine *refine, uint32_t *members) {
    const struct pack_input *input = refine->input;
    size_t begin = 0;
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        uint32_t count = refine->counts[bin];
        uint32_t *items = members + refine->begins[bin] - count;
        order_by_work(input->works, items, count);
        for (uint32_t i = 0; i < count; i++) {
            refine->entries[begin + i] = (struct exchange_entry){
                input->works[items[i]], input->lengths[items[i]], items[i]};
        }
        refine->begins[bin] = begin;
        begin += count + SLACK;
    }
    refine->begins[input->bins] = begin;
}

/* Packs all lists to the left, then moves them to their new places from the right. */
static void refine_spread(struct refine *refine) {
    struct exchange_entry *entries = refine->entries;
    uint32_t bins = refine->input->bins;
    size_t end = 0;
    for (uint32_t bin = 0; bin < bins; bin++) {
        memmove(entries + end, entries + refine->begins[bin],
                refine->counts[bin] * sizeof *entries);
        end += refine->counts[bin];
    }
    for (uint32_t bin = bins; bin-- > 0;) {
        size_t begin = end - refine->counts[bin];
        refine->begins[bin] = begin + (size_t)SLACK * bin;
        memmove(entries + refine->begins[bin], entries + begin,
                refine->counts[bin] * sizeof *entries);
        end = begin;
    }
}

static struct exchange_bin refine_bin(const struct refine *refine, uint32_t bin) {
    uint64_t room = refine->input->tokens_max - refine->bin_tokens[bin];
    return (struct exchange_bin){
        .entries = refine->entries + refine->begins[bin],
        .count = refine->counts[bin],
        .work = refine->bin_work[bin],
        .room = room < EXCHANGE_ROOM_MAX ? room : EXCHANGE_ROOM_MAX,
    };
}

/* Improves *best by trades with the bin at `rank`, down to `enough`. */
static void refine_try(struct refine *refine, uint32_t rank, exchange_search *search,
                       uint64_t enough, struct trade *best) {
    struct exchange_bin heavy = refine_bin(refine, refine->ranks[0]);
    struct exchange_bin light = refine_bin(refine, refine->ranks[rank]);
    struct exchange_limits limits = {refine->probes, enough};
    if (search(&heavy, &light, &limits, &best->exchange)) {
        best->rank = rank;
    }
    refine->probes = limits.probes;
}

/* The trade of a round: rank 0 stands for none. */
static struct trade refine_choose(struct refine *refine, uint64_t enough) {
    uint32_t bins = refine->input->bins;
    uint64_t heavy = refine->bin_work[refine->ranks[0]];
    uint64_t light = refine->bin_work[refine->ranks[bins - 1]];
    uint64_t good = larger(enough, heavy - 1 - (heavy - light) / GAIN);
    uint32_t near = bins > PARTNERS ? bins - PARTNERS : 1;
    struct trade best = {.exchange.max = heavy, .rank = 0};
    for (uint32_t rank = bins - 1; rank >= near; rank--) {
        refine_try(refine, rank, exchange_single, enough, &best);
    }
    for (uint32_t rank = bins - 1; rank >= near; rank--) {
        refine_try(refine, rank, exchange_pair, good, &best);
    }
    for (uint32_t rank = near - 1; rank > 0 && best.rank == 0; rank--) {
        refine_try(refine, rank, exchange_single, good, &best);
        refine_try(refine, rank, exchange_pair, good, &best);
    }
    return best;
}

static struct exchange_entry refine_remove(struct refine *refine, uint32_t bin, uint32_t position) {
    struct exchange_entry *list = refine->entries + refine->begins[bin];
    struct exchange_entry entry = list[position];
    refine->counts[bin]--;
    memmove(list + position, list + position + 1, (refine->counts[bin] - position) * sizeof *list);
    refine->bin_work[bin] -= entry.work;
    refine->bin_tokens[bin] -= entry.length;
    return entry;
}

static void refine_insert(struct refine *refine, uint32_t bin, struct exchange_entry entry) {
    struct exchange_entry *list = refine->entries + refine->begins[bin];
    uint32_t at = refine->counts[bin]++;
    for (; at > 0 && list[at - 1].work < entry.work; at--) {
        list[at] = list[at - 1];
    }
    list[at] = entry;
    refine->bin_of[entry.item] = bin;
    refine->bin_work[bin] += entry.work;
    refine->bin_tokens[bin] += entry.length;
}

static bool refine_before(const struct refine *refine, uint32_t a, uint32_t b) {
    const uint64_t *work = refine->bin_work;
    return work[a] > work[b] || (work[a] == work[b] && a < b);
}

/* After a trade with the bin at `rank`: all others stand right. */
static void refine_rank(struct refine *refine, uint32_t rank) {
    uint32_t *ranks = refine->ranks;
    uint32_t heavy = ranks[0];
    uint32_t light = ranks[rank];
    for (; rank > 1 && refine_before(refine, light, ranks[rank - 1]); rank--) {
        ranks[rank] = ranks[rank - 1];
    }
    ranks[rank] = light;
    rank = 0;
    for (; rank + 1 < refine->input->bins && refine_before(refine, ranks[rank + 1], heavy);
         rank++) {
        ranks[rank] = ranks[rank + 1];
    }
    ranks[rank] = heavy;
}

static void refine_apply(struct refine *refine, const struct trade *trade) {
    const struct exchange *exchange = &trade->exchange;
    uint32_t heavy = refine->ranks[0];
    uint32_t light = refine->ranks[trade->rank];
    struct exchange_entry out[2];
    struct exchange_entry in[2];
    for (uint32_t i = exchange->out_count; i-- > 0;) {
        out[i] = refine_remove(refine, heavy, exchange->out[i]);
    }
    for (uint32_t i = exchange->in_count; i-- > 0;) {
        in[i] = refine_remove(refine, light, exchange->in[i]);
    }
    if (refine->begins[heavy] + refine->counts[heavy] + exchange->in_count >
            refine->begins[heavy + 1] ||
        refine->begins[light] + refine->counts[light] + exchange->out_count >
            refine->begins[light + 1]) {
        refine_spread(refine);
    }
    for (uint32_t i = 0; i < exchange->out_count; i++) {
        refine_insert(refine, light, out[i]);
    }
    for (uint32_t i = 0; i < exchange->in_count; i++) {
        refine_insert(refine, heavy, in[i]);
    }
    assert(refine->bin_tokens[heavy] <= refine->input->tokens_max);
    assert(refine->bin_tokens[light] <= refine->input->tokens_max);
    refine_rank(refine, trade->rank);
}

static void refine_start(struct refine *refine, void *scratch, const uint32_t *order) {
    const struct pack_input *input = refine->input;
    size_t places = (size_t)input->items + (size_t)SLACK * input->bins;
    refine->entries = scratch;
    refine->begins = (size_t *)(refine->entries + places);
    refine->counts = (uint32_t *)(refine->begins + input->bins + 1);
    refine->ranks = refine->counts + input->bins;
    uint32_t *members = refine->ranks + input->bins;
    refine_group(refine, order, members);
    refine_list(refine, members);
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        refine->ranks[bin] = bin;
    }
    order_by_work(refine->bin_work, refine->ranks, input->bins);
}

static uint64_t heaviest(const uint64_t *work, uint32_t bins) {
    uint64_t most = 0;
    for (uint32_t bin = 0; bin < bins; bin++) {
        most = larger(most, work[bin]);
    }
    return most;
}

struct refine_report pack_refine(const struct pack_input *input,
                                 const struct refine_options *options, void *scratch,
                                 uint32_t *bin_of, const uint32_t *order, uint64_t *bin_work,
                                 uint64_t *bin_tokens) {
    struct refine refine = {
        .input = input,
        .bin_of = bin_of,
        .bin_work = bin_work,
        .bin_tokens = bin_tokens,
        .probes = options->probes_max,
    };
    struct refine_report report = {
        .max = heaviest(bin_work, input->bins),
        .bound = pack_bound(input->works, bin_of, input->items, input->bins, scratch),
    };
    uint64_t enough = (uint64_t)((unsigned __int128)report.bound *
                                 (PPM + (uint64_t)options->gap_ppm) / PPM);
    if (report.max <= enough || input->bins == 1) {
        return report;
    }
    refine_start(&refine, scratch, order);
    while (report.max > enough) {
        struct trade trade = refine_choose(&refine, enough);
        if (trade.rank == 0) {
            break;
        }
        refine_apply(&refine, &trade);
        report.max = bin_work[refine.ranks[0]];
        report.rounds++;
    }
    return report;
}
