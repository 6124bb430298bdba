/* level_forecast: the imbalance that a release would give, without packing a single short.
 *
 * The released documents are placed as the packer will place them. Shorts are small against a bin,
 * so they are taken for water: poured in until the bins that have room stand at one level. */
#include "queues/level_step.h"

#include "packer/bins.h"

#include <assert.h>

bool level_forecast_place(struct level_step *step, const struct level_run *run) {
    const struct level_view *view = step->view;
    uint32_t end = run->end > step->due_end ? run->end : step->due_end;
    uint32_t least = step->due_end > 0 ? 0 : run->low;
    struct bins bins;
    bins_init(&bins, step->bins_scratch, step->options->bins, step->options->bin_tokens,
              step->bin_works, step->bin_tokens);
    for (uint32_t i = end; i > least; i--) {
        if (!level_run_has(step, run, i - 1)) {
            continue;
        }
        uint32_t bin = bins_least_work_with_room(&bins, view->lengths[i - 1]);
        if (bin == BIN_NONE) {
            return false;
        }
        bins_add(&bins, bin, view->works[i - 1], view->lengths[i - 1]);
    }
    return true;
}

/* Tokens of shorts that a bin takes until its work is `level` or it is full. */
static uint64_t pour_bin(const struct level_step *step, uint32_t bin, uint64_t level) {
    if (level <= step->bin_works[bin]) {
        return 0;
    }
    uint64_t room = step->options->bin_tokens - step->bin_tokens[bin];
    unsigned __int128 work = (unsigned __int128)(level - step->bin_works[bin]) << 16;
    if (work >= (unsigned __int128)room * step->short_rate) {
        return room;
    }
    return work >> 64 == 0 ? (uint64_t)work / step->short_rate
                           : (uint64_t)(work / step->short_rate);
}

struct poured {
    uint64_t tokens;
    uint32_t rising; /* bins that would take more if the level rose */
};

static struct poured pour_all(const struct level_step *step, uint64_t level) {
    struct poured poured = {0};
    for (uint32_t bin = 0; bin < step->options->bins; bin++) {
        uint64_t tokens = pour_bin(step, bin, level);
        poured.tokens += tokens;
        poured.rising += level > step->bin_works[bin] &&
                         tokens < step->options->bin_tokens - step->bin_tokens[bin];
    }
    return poured;
}

/* Where the level would be if all rising bins went on rising. */
static uint64_t pour_aim(const struct level_step *step, struct poured poured, uint64_t tokens,
                         uint64_t level) {
    bool below = poured.tokens < tokens;
    uint64_t missing = below ? tokens - poured.tokens : poured.tokens - tokens;
    unsigned __int128 work = (unsigned __int128)missing * step->short_rate >> 16;
    uint64_t change = poured.rising > 0 ? (uint64_t)(work / poured.rising) + 1 : 0;
    return below ? level + change : level - (change < level ? change : level);
}

/* The lowest level at which the bins take `tokens`, which they have room for, or one at which they
 * take exactly those: either pours the same. Every second guess halves the bracket. */
static uint64_t pour_level(const struct level_step *step, uint64_t tokens, uint64_t least,
                           uint64_t guess, uint64_t most) {
    for (bool halve = false; least < most; halve = !halve) {
        struct poured poured = pour_all(step, guess);
        if (poured.tokens == tokens) {
            return guess;
        }
        uint64_t aim = pour_aim(step, poured, tokens, guess);
        if (poured.tokens < tokens) {
            least = guess + 1;
        } else {
            most = guess;
        }
        bool outside = aim < least || aim >= most;
        guess = halve || outside ? least + (most - least) / 2 : aim;
    }
    return most;
}

uint64_t level_forecast_pour(const struct level_step *step, const struct level_run *run,
                             uint64_t tokens) {
    uint32_t bins = step->options->bins;
    uint64_t heaviest = 0;
    uint64_t lightest = UINT64_MAX;
    for (uint32_t bin = 0; bin < bins; bin++) {
        uint64_t work = step->bin_works[bin];
        heaviest = work > heaviest ? work : heaviest;
        lightest = work < lightest ? work : lightest;
    }
    assert(run->sums.tokens <= tokens);
    uint64_t shorts = tokens - run->sums.tokens;
    uint64_t room = bins * step->options->bin_tokens - run->sums.tokens;
    shorts = shorts < room ? shorts : room;
    unsigned __int128 sum = ((unsigned __int128)run->sums.works << 16) +
                            (unsigned __int128)step->short_rate * shorts;
    uint64_t full = (uint64_t)((unsigned __int128)step->short_rate * step->options->bin_tokens >>
                               16);
    uint64_t level = pour_level(step, shorts, lightest, (uint64_t)((sum >> 16) / bins),
                                heaviest + full + 1);
    unsigned __int128 top = (unsigned __int128)heaviest << 16;
    for (uint32_t bin = 0; bin < bins; bin++) {
        unsigned __int128 work = (unsigned __int128)step->bin_works[bin] << 16;
        work += (unsigned __int128)step->short_rate * pour_bin(step, bin, level);
        top = work > top ? work : top;
    }
    return sum > 0 ? (uint64_t)(top * bins * LEVEL_ONE / sum) : LEVEL_ONE;
}
