/* level: the decision of a step and the clock; see level.h. */
#include "queues/level_step.h"

#include "packer/bins.h"

#include <assert.h>
#include <string.h>

/* An array of `count` at the running offset `at`; NULL while only measuring. */
static void *level_array(uint8_t *memory, size_t *at, size_t count, size_t item_bytes) {
    const size_t alignment = _Alignof(max_align_t);
    size_t begin = (*at + alignment - 1) / alignment * alignment;
    *at = begin + count * item_bytes;
    return memory != NULL ? memory + begin : NULL;
}

static size_t level_lay_out(struct level_step *s, uint32_t bins, size_t candidates,
                            uint8_t *memory) {
    size_t at = 0;
    s->kinds = level_array(memory, &at, candidates, sizeof *s->kinds);
    s->oldest = level_array(memory, &at, candidates, sizeof *s->oldest);
    s->present = level_array(memory, &at, candidates + 1, sizeof *s->present);
    s->ahead = level_array(memory, &at, candidates + 1, sizeof *s->ahead);
    s->runs = level_array(memory, &at, 2 * candidates + 1, sizeof *s->runs);
    s->kept = level_array(memory, &at, 2 * candidates + 1, sizeof *s->kept);
    s->bin_works = level_array(memory, &at, bins, sizeof *s->bin_works);
    s->bin_tokens = level_array(memory, &at, bins, sizeof *s->bin_tokens);
    s->bins_scratch = level_array(memory, &at, bins_bytes(bins), 1);
    return at;
}

size_t level_bytes(const struct level_options *options, uint32_t candidates) {
    struct level_step measured = {0};
    return level_lay_out(&measured, options->bins, candidates, NULL);
}

static uint64_t level_share(uint64_t tokens, uint32_t ppm) {
    return (uint64_t)((unsigned __int128)tokens * level_fraction(ppm) / LEVEL_ONE);
}

static int64_t level_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t level_greatest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Error diffusion: the running total stays on the clock. A step that the tolerance would keep more
 * than half a step behind is freed of it. */
static void level_aim(const struct level_step *step, const struct level_state *state) {
    const struct level_options *options = step->options;
    int64_t target = (int64_t)options->step_tokens;
    int64_t tolerance = (int64_t)level_share(options->step_tokens, options->token_tolerance);
    int64_t held = (int64_t)(options->bins * options->bin_tokens);
    int64_t owed = (int64_t)(state->target_tokens - state->delivered_tokens) + target;
    int64_t roomy = target +
                    (int64_t)level_share((uint64_t)(held - target), options->headroom_share);
    int64_t base = level_greatest(owed, target - level_least(tolerance, target / 2));
    base = level_least(base, level_least(target + tolerance, roomy));
    int64_t most = level_least(level_least(target + tolerance, roomy), owed + target);
    if (owed - target > target / 2) {
        base = level_least(owed, held);
    }
    step->decision->tokens_base = (uint64_t)base;
    step->decision->tokens_most = (uint64_t)level_greatest(most, base);
}

/* What the shorts of the step will weigh, and whether there are enough of them. */
static void level_look_at_shorts(struct level_step *step) {
    const struct level_view *view = step->view;
    uint64_t base = step->decision->tokens_base;
    uint64_t tokens = 0;
    unsigned __int128 works = 0;
    uint32_t i = 0;
    for (; i < view->shorts && tokens < base; i++) {
        tokens += view->short_lengths[i];
        works += view->short_works[i];
    }
    step->short_rate = step->options->token_work * LEVEL_ONE;
    if (tokens > 0) {
        step->short_rate = (uint64_t)(works * LEVEL_ONE / tokens);
        step->short_rate += step->short_rate == 0;
    }
    for (; i < view->shorts && tokens <= base; i++) {
        tokens += view->short_lengths[i];
    }
    step->short_tokens = tokens;
    assert(((unsigned __int128)step->short_rate * step->options->bin_tokens >> 16) < UINT64_C(1)
                                                                                         << 62);
}

/* In 1/65536, at most 1: how old the release is, or how much waits. */
static uint64_t level_urgency(const struct level_step *step, uint64_t age) {
    const struct level_options *options = step->options;
    uint64_t backlog = (uint64_t)((unsigned __int128)options->step_tokens * options->max_backlog /
                                  LEVEL_PPM);
    if (age >= options->max_age || step->decision->present_tokens >= backlog) {
        return LEVEL_ONE;
    }
    uint64_t by_age = age * LEVEL_ONE / options->max_age;
    uint64_t by_backlog = (uint64_t)((unsigned __int128)step->decision->present_tokens * LEVEL_ONE /
                                     backlog);
    return by_age > by_backlog ? by_age : by_backlog;
}

static uint64_t level_allowance(const struct level_options *options, uint64_t urgency) {
    const uint64_t ramp_start = LEVEL_ONE / 4 * 3;
    uint64_t relaxed = level_fraction(options->allowance);
    uint64_t urgent = level_fraction(options->allowance_urgent);
    uint64_t power = LEVEL_ONE;
    for (uint32_t i = 0; i < options->urgency_power; i++) {
        power = power * urgency / LEVEL_ONE;
    }
    uint64_t ramp = urgency > ramp_start ? (urgency - ramp_start) * 4 : 0;
    return relaxed + (urgent - relaxed) * power / LEVEL_ONE +
           level_fraction(options->allowance_ramp) * ramp / LEVEL_ONE;
}

/* Work of a step of `tokens` with this run, in 1/65536. */
static unsigned __int128 level_work(const struct level_step *step, const struct level_run *run,
                                    uint64_t tokens) {
    return (unsigned __int128)run->sums.works * LEVEL_ONE +
           (unsigned __int128)step->short_rate * (tokens - run->sums.tokens);
}

/* Whether the longest document could be hidden in the largest step. */
static bool level_may_hide(const struct level_step *step, const struct level_run *run) {
    uint64_t longest = level_run_longest(step, run);
    uint64_t urgency = step->decision->due > 0 ? LEVEL_ONE : level_urgency(step, run->age);
    unsigned __int128 most = level_work(step, run, step->decision->tokens_most);
    return (unsigned __int128)step->options->bins * longest * LEVEL_ONE * LEVEL_ONE <=
           (LEVEL_ONE + level_allowance(step->options, urgency)) * most;
}

static void level_keep(struct level_step *step, uint32_t index) {
    const struct level_run *run = &step->runs[index];
    bool scarce = step->short_tokens < step->decision->tokens_base;
    bool covers_due = step->decision->due > 0 && run->end >= step->due_end;
    if (run->end == 0 || covers_due || scarce || level_may_hide(step, run)) {
        step->kept[step->kept_count++] = index;
    }
}

/* From the longest down, without companions, then with them. */
static void level_keep_runs(struct level_step *step) {
    uint32_t candidates = step->view->candidates;
    for (uint32_t i = candidates; i > 0; i--) {
        if (step->kinds[i - 1] == KIND_PRESENT || step->kinds[i - 1] == KIND_DUE) {
            level_keep(step, i - 1);
        }
    }
    level_keep(step, 2 * candidates);
    for (uint32_t i = candidates; i > 0; i--) {
        const struct level_run *run = &step->runs[candidates + i - 1];
        if (step->kinds[i - 1] != KIND_BEYOND && run->sums.documents > 0 && run->sums.score > 0) {
            level_keep(step, candidates + i - 1);
        }
    }
}

/* The step's tokens, so many that the longest document is half of `allowance` above the mean. */
static uint64_t level_tokens(const struct level_step *step, const struct level_run *run,
                             uint64_t allowance) {
    uint64_t base = step->decision->tokens_base;
    uint64_t most = step->decision->tokens_most;
    uint64_t least = base > run->sums.tokens ? base : run->sums.tokens;
    unsigned __int128 mean = (unsigned __int128)step->options->bins * level_run_longest(step, run) *
                             (2 * LEVEL_ONE) / (2 * LEVEL_ONE + allowance);
    if (mean <= run->sums.works) {
        return least;
    }
    unsigned __int128 tokens = run->sums.tokens +
                               (mean - run->sums.works) * LEVEL_ONE / step->short_rate;
    if (tokens >= most) {
        return most;
    }
    return tokens > least ? (uint64_t)tokens : least;
}

struct level_choice {
    const struct level_run *run; /* NULL: none yet */
    bool accepted;
    uint64_t tokens;
    uint64_t predicted; /* imbalance */
    __int128 value;     /* token-steps in 1/131072: a step early counts half a step late */
    uint64_t urgency;
    uint64_t allowance;
};

/* Documents that are not there balance nothing: ten times their share of a step is added. */
static uint64_t level_lack(const struct level_step *step, const struct level_run *run,
                           uint64_t tokens) {
    uint64_t shorts = tokens - run->sums.tokens;
    if (shorts <= step->short_tokens) {
        return 0;
    }
    return (uint64_t)((unsigned __int128)(shorts - step->short_tokens) * 10 * LEVEL_ONE /
                      step->options->step_tokens);
}

/* What a release is worth at most: what it saves in delay. */
static __int128 level_worth(const struct level_run *run) {
    return run->sums.score * LEVEL_ONE;
}

/* Keeps the size of the step if it predicts less than those before. */
static void level_pour(const struct level_step *step, struct level_choice *choice,
                       uint64_t tokens) {
    uint64_t predicted = level_forecast_pour(step, choice->run, tokens);
    if (predicted < choice->predicted) {
        choice->predicted = predicted;
        choice->tokens = tokens;
    }
}

/* Three sizes of the step: the longest document half the allowance above the mean, or at it, and if
 * neither will do the largest. */
static void level_size(struct level_step *step, struct level_choice *choice) {
    const struct level_run *run = choice->run;
    uint64_t even = level_tokens(step, run, 0);
    choice->tokens = level_tokens(step, run, choice->allowance);
    choice->predicted = LEVEL_MISFIT;
    if (!level_forecast_place(step, run)) {
        return;
    }
    level_pour(step, choice, choice->tokens);
    if (even != choice->tokens) {
        level_pour(step, choice, even);
    }
    if (choice->predicted > LEVEL_ONE + choice->allowance) {
        level_pour(step, choice, step->decision->tokens_most);
    }
}

static struct level_choice level_predict(struct level_step *step, const struct level_run *run) {
    const struct level_options *options = step->options;
    struct level_choice choice = {.run = run, .urgency = level_urgency(step, run->age)};
    choice.allowance = level_allowance(options, choice.urgency);
    level_size(step, &choice);
    uint64_t imbalance = choice.predicted;
    if (imbalance != LEVEL_MISFIT) {
        imbalance += level_lack(step, run, choice.tokens);
    }
    __int128 price = (__int128)options->step_tokens * options->imbalance_price * 2;
    choice.value = level_worth(run) - price * ((__int128)imbalance - LEVEL_ONE);
    choice.accepted = imbalance <= LEVEL_ONE + choice.allowance;
    return choice;
}

/* An accepted one before any other, then the more valuable, of equal ones the first. */
static bool level_better(const struct level_choice *choice, const struct level_choice *best) {
    if (best->run == NULL || choice->accepted != best->accepted) {
        return best->run == NULL || choice->accepted;
    }
    return choice->value > best->value;
}

/* Looks at evenly spaced runs, always at the last and at the one of the due alone. */
static struct level_choice level_choose(struct level_step *step) {
    struct level_choice best = {.run = NULL};
    uint32_t most = step->options->max_evaluations;
    uint32_t stride = step->kept_count / most + (step->kept_count % most != 0);
    for (uint32_t i = 0; i < step->kept_count; i++) {
        const struct level_run *run = &step->runs[step->kept[i]];
        bool skipped = i % stride != 0 && i + 1 != step->kept_count && run->end != 0;
        if (skipped || (best.accepted && level_worth(run) <= best.value)) {
            continue;
        }
        struct level_choice choice = level_predict(step, run);
        step->decision->evaluations++;
        if (level_better(&choice, &best)) {
            best = choice;
        }
    }
    return best;
}

static uint64_t level_ppm(uint64_t fraction) {
    return (uint64_t)((unsigned __int128)fraction * LEVEL_PPM / LEVEL_ONE);
}

static void level_report(const struct level_step *step, const struct level_choice *choice,
                         uint8_t *verdicts) {
    static const uint8_t leaving[] = {
        [KIND_BEYOND] = LEVEL_WAITS,
        [KIND_AHEAD] = LEVEL_EARLY,
        [KIND_PRESENT] = LEVEL_RELEASED,
        [KIND_DUE] = LEVEL_DUE,
    };
    struct level_decision *decision = step->decision;
    for (uint32_t i = 0; i < step->view->candidates; i++) {
        bool leaves = level_run_has(step, choice->run, i);
        verdicts[i] = leaves ? leaving[step->kinds[i]] : LEVEL_WAITS;
        decision->released += leaves;
        decision->early += verdicts[i] == LEVEL_EARLY;
    }
    decision->tokens = choice->tokens;
    decision->released_tokens = choice->run->sums.tokens;
    decision->accepted = choice->accepted;
    decision->allowance_ppm = level_ppm(choice->allowance);
    decision->urgency_ppm = level_ppm(choice->urgency);
    decision->predicted_ppm = choice->predicted == LEVEL_MISFIT ? UINT64_MAX
                                                                : level_ppm(choice->predicted);
}

void level_decide(const struct level_options *options, const struct level_state *state,
                  const struct level_view *view, void *scratch, uint8_t *verdicts,
                  struct level_decision *decision) {
    struct level_step step = {
        .options = options,
        .view = view,
        .decision = decision,
        .step = state->step,
    };
    assert(0 < options->step_tokens && options->step_tokens <= options->bins * options->bin_tokens);
    *decision = (struct level_decision){0};
    (void)level_lay_out(&step, options->bins, view->candidates, scratch);
    level_aim(&step, state);
    level_look_at_shorts(&step);
    level_runs_build(&step);
    level_keep_runs(&step);
    struct level_choice choice = level_choose(&step);
    level_report(&step, &choice, verdicts);
}

uint64_t level_take_shorts(const struct level_options *options, const uint32_t *lengths,
                           uint32_t shorts, uint64_t released_tokens, uint64_t tokens,
                           uint8_t *taken) {
    assert(released_tokens <= tokens);
    uint64_t room = tokens - released_tokens;
    uint32_t looked = 0; /* at, from the first that does not fit on */
    uint32_t i = 0;
    for (; i < shorts && looked < options->fit_window; i++) {
        taken[i] = lengths[i] <= room;
        looked += looked > 0 || !taken[i];
        room -= taken[i] ? lengths[i] : 0;
    }
    memset(taken + i, 0, shorts - i);
    return tokens - released_tokens - room;
}

void level_advance(const struct level_options *options, struct level_state *state,
                   uint64_t tokens) {
    state->step++;
    state->target_tokens += options->step_tokens;
    state->delivered_tokens += tokens;
    uint64_t delivered = state->delivered_tokens + options->step_tokens;
    if (state->target_tokens > delivered) {
        state->slip_tokens += state->target_tokens - delivered;
        state->target_tokens = delivered;
    }
}
