/* level_runs: the releases to choose from; see level_step.h.
 *
 * Without companions runs are a window that slides up with its top. With companions they are not,
 * since going to a shorter top lets shorter companions in: these find their low end, which is not
 * below that of the run without, by binary search over the prefix sums. The oldest member is found
 * on a stack of the candidates that are older than all behind them. */
#include "queues/level_step.h"

#include <assert.h>

static uint64_t runs_age(const struct level_step *step, uint32_t i) {
    assert(step->view->nominal_steps[i] <= step->step);
    return step->step - step->view->nominal_steps[i];
}

static void runs_check_order(const struct level_view *view, uint32_t i) {
    assert(view->lengths[i] > 0);
    assert(i == 0 || view->lengths[i - 1] < view->lengths[i] ||
           (view->lengths[i - 1] == view->lengths[i] &&
            view->stream_indices[i - 1] < view->stream_indices[i]));
}

static void runs_sort_out(struct level_step *step) {
    const struct level_view *view = step->view;
    for (uint32_t i = 0; i < view->candidates; i++) {
        runs_check_order(view, i);
        uint64_t nominal = view->nominal_steps[i];
        if (nominal <= step->step) {
            step->kinds[i] = KIND_PRESENT;
            step->decision->present_tokens += view->lengths[i];
        } else {
            bool seen = nominal - step->step <= step->options->look_ahead;
            step->kinds[i] = seen ? KIND_AHEAD : KIND_BEYOND;
        }
    }
}

static void due_sift(const struct level_step *step, uint32_t count, uint32_t at) {
    const uint64_t *indices = step->view->stream_indices;
    uint32_t *heap = step->oldest;
    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && indices[heap[child + 1]] < indices[heap[child]]) {
            child++;
        }
        if (indices[heap[at]] < indices[heap[child]]) {
            break;
        }
        uint32_t swapped = heap[at];
        heap[at] = heap[child];
        heap[child] = swapped;
        at = child;
    }
}

static uint32_t due_heap(struct level_step *step) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < step->view->candidates; i++) {
        if (step->kinds[i] == KIND_PRESENT) {
            step->oldest[count++] = i;
        }
    }
    for (uint32_t at = count / 2; at > 0; at--) {
        due_sift(step, count, at - 1);
    }
    return count;
}

static void due_mark(struct level_step *step, uint32_t i) {
    uint32_t length = step->view->lengths[i];
    if (step->due.tokens + length > step->decision->tokens_most) {
        step->decision->due_missed++;
        return;
    }
    step->kinds[i] = KIND_DUE;
    step->due.tokens += length;
    step->due.works += step->view->works[i];
    step->decision->due++;
    step->due_end = i + 1 > step->due_end ? i + 1 : step->due_end;
}

/* Oldest first: what reached the age limit, and what waits beyond the horizon's worth of tokens. */
static void runs_find_due(struct level_step *step) {
    const struct level_options *options = step->options;
    uint64_t waiting = step->decision->present_tokens;
    uint64_t waiting_most = (options->horizon - 1) * options->step_tokens;
    uint32_t count = due_heap(step);
    while (count > 0) {
        uint32_t i = step->oldest[0];
        if (runs_age(step, i) < options->max_age && waiting <= waiting_most) {
            return;
        }
        waiting -= step->view->lengths[i];
        due_mark(step, i);
        step->oldest[0] = step->oldest[--count];
        due_sift(step, count, 0);
    }
}

static void runs_add(struct level_sums *sums, const struct level_step *step, uint32_t i,
                     __int128 weight) {
    sums->score += weight * step->view->lengths[i];
    sums->tokens += step->view->lengths[i];
    sums->works += step->view->works[i];
    sums->documents++;
}

static void runs_sum(struct level_step *step) {
    step->present[0] = (struct level_sums){0};
    step->ahead[0] = (struct level_sums){0};
    for (uint32_t i = 0; i < step->view->candidates; i++) {
        step->present[i + 1] = step->present[i];
        step->ahead[i + 1] = step->ahead[i];
        if (step->kinds[i] == KIND_PRESENT) {
            runs_add(&step->present[i + 1], step, i, 2 * ((__int128)runs_age(step, i) + 1));
        } else if (step->kinds[i] == KIND_AHEAD) {
            uint64_t early = step->view->nominal_steps[i] - step->step;
            runs_add(&step->ahead[i + 1], step, i, -(__int128)early);
        }
    }
}

static struct level_sums runs_range(const struct level_sums *sums, uint32_t low, uint32_t end) {
    if (low >= end) {
        return (struct level_sums){0};
    }
    return (struct level_sums){
        .score = sums[end].score - sums[low].score,
        .tokens = sums[end].tokens - sums[low].tokens,
        .works = sums[end].works - sums[low].works,
        .documents = sums[end].documents - sums[low].documents,
    };
}

static uint32_t runs_later(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* First candidate from `low` on that is long enough to leave early beside `top`. */
static uint32_t runs_low_ahead(const struct level_step *step, uint32_t low, uint32_t top) {
    const uint32_t *lengths = step->view->lengths;
    uint64_t wanted = (uint64_t)lengths[top] * step->options->companion;
    while (low < top && (uint64_t)lengths[low] * LEVEL_PPM < wanted) {
        low++;
    }
    return low;
}

/* low <= end. */
static uint64_t runs_tokens(const struct level_step *step, uint32_t low, uint32_t low_ahead,
                            uint32_t end) {
    uint32_t later = runs_later(low, low_ahead);
    uint64_t ahead = later < end ? step->ahead[end].tokens - step->ahead[later].tokens : 0;
    return step->due.tokens + step->present[end].tokens - step->present[low].tokens + ahead;
}

/* Low end of a run without companions, from that of the next shorter top on. */
static uint32_t runs_slide(const struct level_step *step, uint32_t low, uint32_t end) {
    while (low < end && runs_tokens(step, low, end, end) > step->decision->tokens_most) {
        low++;
    }
    return low;
}

/* Low end of a run with companions, from that of the run without on. */
static uint32_t runs_low(const struct level_step *step, uint32_t low, uint32_t low_ahead,
                         uint32_t end) {
    uint32_t high = end;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (runs_tokens(step, middle, low_ahead, end) <= step->decision->tokens_most) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Age of the oldest present candidate from `low` on; the stack holds them up to the run's top. */
static uint64_t runs_oldest(const struct level_step *step, uint32_t count, uint32_t low) {
    uint32_t first = 0;
    uint32_t end = count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (step->oldest[middle] < low) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first < count ? runs_age(step, step->oldest[first]) : 0;
}

static struct level_run runs_of(const struct level_step *step, uint32_t low, uint32_t low_ahead,
                                uint32_t end, uint32_t stack) {
    struct level_sums present = runs_range(step->present, low, end);
    struct level_sums ahead = runs_range(step->ahead, runs_later(low, low_ahead), end);
    return (struct level_run){
        .sums = {.score = present.score + ahead.score,
                 .tokens = step->due.tokens + present.tokens + ahead.tokens,
                 .works = step->due.works + present.works + ahead.works,
                 .documents = ahead.documents},
        .age = runs_oldest(step, stack, low),
        .low = low,
        .low_ahead = low_ahead,
        .end = end,
    };
}

void level_runs_build(struct level_step *step) {
    uint32_t candidates = step->view->candidates;
    runs_sort_out(step);
    runs_find_due(step);
    runs_sum(step);
    uint32_t stack = 0;
    uint32_t low = 0;
    uint32_t low_ahead = 0;
    for (uint32_t top = 0; top < candidates; top++) {
        if (step->kinds[top] == KIND_PRESENT) {
            uint64_t age = runs_age(step, top);
            while (stack > 0 && runs_age(step, step->oldest[stack - 1]) <= age) {
                stack--;
            }
            step->oldest[stack++] = top;
        }
        uint32_t end = top + 1;
        low = runs_slide(step, low, end);
        low_ahead = runs_low_ahead(step, low_ahead, top);
        step->runs[top] = runs_of(step, low, end, end, stack);
        step->runs[candidates + top] = runs_of(step, runs_low(step, low, low_ahead, end), low_ahead,
                                               end, stack);
    }
    step->runs[2 * candidates] = (struct level_run){.sums = step->due};
}

bool level_run_has(const struct level_step *step, const struct level_run *run, uint32_t i) {
    bool within = run->low <= i && i < run->end;
    switch ((enum level_kind)step->kinds[i]) {
    case KIND_DUE:
        return true;
    case KIND_PRESENT:
        return within;
    case KIND_AHEAD:
        return within && i >= run->low_ahead;
    case KIND_BEYOND:
        return false;
    }
    return false;
}
