/* level_literal: see level_literal.h. */
#include "level_literal.h"

#include <assert.h>
#include <string.h>

#define ONE 65536

typedef __int128 wide;

struct literal {
    const struct level_options *options;
    const struct level_view *view;
    struct level_decision *decision;
    uint64_t step;
    wide rate; /* of shorts, in 1/65536 */
    wide short_tokens;
    bool due[LITERAL_CANDIDATES_MAX];
};

struct set {
    bool has[LITERAL_CANDIDATES_MAX];
    wide tokens;
    wide works;
    wide score;
    wide age;
    uint32_t early;
    int top; /* -1: what is due alone */
};

struct candidate_choice {
    bool met;
    bool accepted;
    struct set set;
    wide tokens;
    wide predicted;
    wide value;
    wide urgency;
    wide allowance;
};

static wide least(wide a, wide b) {
    return a < b ? a : b;
}

static wide greatest(wide a, wide b) {
    return a > b ? a : b;
}

static wide share(wide of, uint32_t ppm) {
    return of * ((wide)ppm * ONE / LEVEL_PPM) / ONE;
}

static wide age_of(const struct literal *l, uint32_t i) {
    return (wide)l->step - (wide)l->view->nominal_steps[i];
}

static void literal_sizes(const struct literal *l, const struct level_state *state) {
    wide t = l->options->step_tokens;
    wide tolerance = share(t, l->options->token_tolerance);
    wide held = (wide)l->options->bins * l->options->bin_tokens;
    wide roomy = t + share(held - t, l->options->headroom_share);
    wide owed = (wide)state->target_tokens + t - (wide)state->delivered_tokens;
    wide low = t - least(tolerance, t / 2);
    wide base = least(least(greatest(owed, low), t + tolerance), roomy);
    wide most = greatest(least(least(t + tolerance, roomy), owed + t), base);
    if (owed - t > t / 2) {
        base = least(owed, held);
        most = greatest(most, base);
    }
    l->decision->tokens_base = (uint64_t)base;
    l->decision->tokens_most = (uint64_t)most;
}

static void literal_shorts(struct literal *l) {
    const struct level_view *view = l->view;
    wide base = l->decision->tokens_base;
    wide tokens = 0;
    wide works = 0;
    for (uint32_t i = 0; i < view->shorts && tokens < base; i++) {
        tokens += view->short_lengths[i];
        works += view->short_works[i];
    }
    l->rate = tokens > 0 ? works * ONE / tokens : (wide)l->options->token_work * ONE;
    l->short_tokens = 0;
    for (uint32_t i = 0; i < view->shorts && l->short_tokens <= base; i++) {
        l->short_tokens += view->short_lengths[i];
    }
}

static int literal_oldest(const struct literal *l, const bool *seen) {
    int oldest = -1;
    for (uint32_t i = 0; i < l->view->candidates; i++) {
        if (!seen[i] && age_of(l, i) >= 0 &&
            (oldest < 0 || l->view->stream_indices[i] < l->view->stream_indices[oldest])) {
            oldest = (int)i;
        }
    }
    return oldest;
}

static void literal_due(struct literal *l) {
    bool seen[LITERAL_CANDIDATES_MAX] = {false};
    wide waiting = 0;
    wide due = 0;
    for (uint32_t i = 0; i < l->view->candidates; i++) {
        waiting += age_of(l, i) >= 0 ? l->view->lengths[i] : 0;
    }
    l->decision->present_tokens = (uint64_t)waiting;
    for (int i = literal_oldest(l, seen); i >= 0; i = literal_oldest(l, seen)) {
        wide limit = (wide)(l->options->horizon - 1) * l->options->step_tokens;
        if (age_of(l, (uint32_t)i) < l->options->max_age && waiting <= limit) {
            return;
        }
        seen[i] = true;
        waiting -= l->view->lengths[i];
        if (due + l->view->lengths[i] > l->decision->tokens_most) {
            l->decision->due_missed++;
            continue;
        }
        due += l->view->lengths[i];
        l->due[i] = true;
        l->decision->due++;
    }
}

static void set_add(const struct literal *l, struct set *set, uint32_t i) {
    set->has[i] = true;
    set->tokens += l->view->lengths[i];
    set->works += l->view->works[i];
}

static struct set literal_set(const struct literal *l, int top, bool companions) {
    const uint32_t *lengths = l->view->lengths;
    struct set set = {.top = top};
    for (uint32_t i = 0; i < l->view->candidates; i++) {
        if (l->due[i]) {
            set_add(l, &set, i);
        }
    }
    for (int at = top; at >= 0; at--) {
        uint32_t i = (uint32_t)at;
        wide age = age_of(l, i);
        bool alike = (wide)lengths[i] * LEVEL_PPM >= (wide)lengths[top] * l->options->companion;
        bool visible = age >= -(wide)l->options->look_ahead;
        if (l->due[i] || !visible || (age < 0 && !(companions && alike))) {
            continue;
        }
        if (set.tokens + lengths[i] > l->decision->tokens_most) {
            break;
        }
        set_add(l, &set, i);
        set.score += age < 0 ? age * lengths[i] : 2 * (age + 1) * lengths[i];
        set.early += age < 0;
        set.age = greatest(set.age, age);
    }
    return set;
}

static wide longest_work(const struct literal *l, const struct set *set) {
    wide work = set->top >= 0 ? l->view->works[set->top] : 0;
    for (uint32_t i = 0; i < l->view->candidates; i++) {
        if (l->due[i] && (int)i > set->top) {
            work = l->view->works[i];
        }
    }
    return work;
}

static wide literal_urgency(const struct literal *l, wide age) {
    wide backlog = (wide)l->options->step_tokens * l->options->max_backlog / LEVEL_PPM;
    wide by_age = l->options->max_age > 0 ? age * ONE / l->options->max_age : ONE;
    wide by_backlog = backlog > 0 ? (wide)l->decision->present_tokens * ONE / backlog : ONE;
    return least(greatest(by_age, by_backlog), ONE);
}

static wide literal_allowance(const struct literal *l, wide urgency) {
    wide relaxed = share(ONE, l->options->allowance);
    wide urgent = share(ONE, l->options->allowance_urgent);
    wide power = ONE;
    for (uint32_t i = 0; i < l->options->urgency_power; i++) {
        power = power * urgency / ONE;
    }
    wide ramp = greatest(urgency - ONE / 4 * 3, 0) * 4;
    return relaxed + (urgent - relaxed) * power / ONE +
           share(ONE, l->options->allowance_ramp) * ramp / ONE;
}

static bool literal_keeps(const struct literal *l, const struct set *set) {
    wide urgency = l->decision->due > 0 ? ONE : literal_urgency(l, set->age);
    wide sum = set->works * ONE + l->rate * ((wide)l->decision->tokens_most - set->tokens);
    bool longest_due = true;
    for (uint32_t i = 0; i < l->view->candidates; i++) {
        longest_due = longest_due && !(l->due[i] && (int)i > set->top);
    }
    return (wide)l->options->bins * longest_work(l, set) * ONE * ONE <=
               (ONE + literal_allowance(l, urgency)) * sum ||
           set->top < 0 || (l->decision->due > 0 && longest_due) ||
           l->short_tokens < (wide)l->decision->tokens_base;
}

/* Places the set, longest first. False when it does not fit. */
static bool literal_place(const struct literal *l, const struct set *set, wide *works,
                          wide *tokens) {
    for (uint32_t i = l->view->candidates; i > 0; i--) {
        if (!set->has[i - 1]) {
            continue;
        }
        int best = -1;
        for (uint32_t bin = 0; bin < l->options->bins; bin++) {
            bool room = tokens[bin] + l->view->lengths[i - 1] <= (wide)l->options->bin_tokens;
            best = room && (best < 0 || works[bin] < works[best]) ? (int)bin : best;
        }
        if (best < 0) {
            return false;
        }
        works[best] += l->view->works[i - 1];
        tokens[best] += l->view->lengths[i - 1];
    }
    return true;
}

static wide literal_takes(const struct literal *l, wide work, wide tokens, wide level) {
    return least((wide)l->options->bin_tokens - tokens, greatest(level - work, 0) * ONE / l->rate);
}

/* -1: does not fit. */
static wide literal_level(const struct literal *l, const struct set *set, wide step_tokens) {
    wide works[LITERAL_BINS_MAX] = {0};
    wide tokens[LITERAL_BINS_MAX] = {0};
    uint32_t bins = l->options->bins;
    if (!literal_place(l, set, works, tokens)) {
        return -1;
    }
    wide shorts = least(step_tokens, (wide)bins * l->options->bin_tokens) - set->tokens;
    wide low = 0;
    wide high = set->works + l->rate * (wide)l->options->bin_tokens / ONE + 1;
    while (low < high) {
        wide middle = (low + high) / 2;
        wide taken = 0;
        for (uint32_t bin = 0; bin < bins; bin++) {
            taken += literal_takes(l, works[bin], tokens[bin], middle);
        }
        low = taken >= shorts ? low : middle + 1;
        high = taken >= shorts ? middle : high;
    }
    wide top = 0;
    for (uint32_t bin = 0; bin < bins; bin++) {
        wide taken = literal_takes(l, works[bin], tokens[bin], low);
        top = greatest(top, works[bin] * ONE + l->rate * taken);
    }
    wide sum = set->works * ONE + l->rate * shorts;
    return sum > 0 ? top * bins * ONE / sum : ONE;
}

static wide literal_size(const struct literal *l, const struct set *set, wide allowance) {
    wide floor = greatest(l->decision->tokens_base, set->tokens);
    wide mean = (wide)l->options->bins * longest_work(l, set) * (2 * ONE) / (2 * ONE + allowance);
    wide tokens = mean > set->works ? set->tokens + (mean - set->works) * ONE / l->rate : floor;
    return least(greatest(tokens, floor), l->decision->tokens_most);
}

static struct candidate_choice literal_try(const struct literal *l, const struct set *set) {
    struct candidate_choice choice = {.met = true, .set = *set};
    choice.urgency = literal_urgency(l, set->age);
    choice.allowance = literal_allowance(l, choice.urgency);
    const wide sizes[] = {literal_size(l, set, choice.allowance), literal_size(l, set, 0),
                          l->decision->tokens_most};
    wide imbalance = UINT64_MAX;
    choice.tokens = sizes[0];
    choice.predicted = literal_level(l, set, sizes[0]);
    if (choice.predicted >= 0) {
        for (uint32_t i = 1; i < 3; i++) {
            wide predicted = literal_level(l, set, sizes[i]);
            bool wanted = i < 2 || choice.predicted > ONE + choice.allowance;
            if (wanted && predicted < choice.predicted) {
                choice.predicted = predicted;
                choice.tokens = sizes[i];
            }
        }
        wide lack = greatest(choice.tokens - set->tokens - l->short_tokens, 0);
        imbalance = choice.predicted + lack * 10 * ONE / l->options->step_tokens;
    }
    wide price = (wide)l->options->step_tokens * l->options->imbalance_price * 2;
    choice.accepted = imbalance <= ONE + choice.allowance;
    choice.value = set->score * ONE - price * (imbalance - ONE);
    return choice;
}

/* The sets that are looked at, in order. */
static uint32_t literal_list(const struct literal *l, struct set *list) {
    int candidates = (int)l->view->candidates;
    uint32_t count = 0;
    for (int top = candidates - 1; top >= -1; top--) {
        if (top < 0 || age_of(l, (uint32_t)top) >= 0) {
            list[count] = literal_set(l, top, false);
            count += literal_keeps(l, &list[count]);
        }
    }
    for (int top = candidates - 1; top >= 0; top--) {
        if (age_of(l, (uint32_t)top) >= -(wide)l->options->look_ahead) {
            list[count] = literal_set(l, top, true);
            bool wanted = list[count].early > 0 && list[count].score > 0;
            count += wanted && literal_keeps(l, &list[count]);
        }
    }
    return count;
}

static struct candidate_choice literal_choose(const struct literal *l) {
    static struct set list[2 * LITERAL_CANDIDATES_MAX + 2];
    struct candidate_choice best = {.met = false};
    uint32_t count = literal_list(l, list);
    uint32_t stride = (count + l->options->max_evaluations - 1) / l->options->max_evaluations;
    for (uint32_t i = 0; i < count; i++) {
        if (i % stride != 0 && i + 1 != count && list[i].top >= 0) {
            continue;
        }
        struct candidate_choice choice = literal_try(l, &list[i]);
        bool better = choice.accepted == best.accepted ? choice.value > best.value
                                                       : choice.accepted;
        if (!best.met || better) {
            best = choice;
        }
    }
    return best;
}

static uint64_t to_ppm(wide fraction) {
    return (uint64_t)(fraction * LEVEL_PPM / ONE);
}

void literal_decide(const struct level_options *options, const struct level_state *state,
                    const struct level_view *view, uint8_t *verdicts,
                    struct level_decision *decision) {
    assert(view->candidates <= LITERAL_CANDIDATES_MAX && options->bins <= LITERAL_BINS_MAX);
    struct literal literal = {
        .options = options, .view = view, .decision = decision, .step = state->step};
    memset(decision, 0, sizeof *decision);
    literal_sizes(&literal, state);
    literal_shorts(&literal);
    literal_due(&literal);
    struct candidate_choice choice = literal_choose(&literal);
    for (uint32_t i = 0; i < view->candidates; i++) {
        bool early = choice.set.has[i] && age_of(&literal, i) < 0;
        verdicts[i] = LEVEL_WAITS;
        if (choice.set.has[i]) {
            verdicts[i] = literal.due[i] ? LEVEL_DUE : early ? LEVEL_EARLY : LEVEL_RELEASED;
        }
        decision->released += choice.set.has[i];
        decision->early += early;
    }
    decision->tokens = (uint64_t)choice.tokens;
    decision->released_tokens = (uint64_t)choice.set.tokens;
    decision->accepted = choice.accepted;
    decision->allowance_ppm = to_ppm(choice.allowance);
    decision->urgency_ppm = to_ppm(choice.urgency);
    decision->predicted_ppm = choice.predicted < 0 ? UINT64_MAX : to_ppm(choice.predicted);
}
