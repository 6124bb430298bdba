/* exact: the integer program's instance and its answer, checked in integers; see exact.h.
 *
 * Nothing that the solver says is believed unseen: its packing is counted again, and one that does
 * not fit or is no better than greedy's is dropped, with the claim of being optimal. */
#include "client/ctl/exact.h"

#include "client/ctl/progress.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int piece_compare(const void *a, const void *b) {
    uint32_t x = ((const struct exact_piece *)a)->length;
    uint32_t y = ((const struct exact_piece *)b)->length;
    return (x < y) - (x > y);
}

static uint32_t classes_of(const struct exact_piece *pieces, uint32_t count) {
    uint32_t classes = 0;
    for (uint32_t i = 0; i < count; i++) {
        classes += i == 0 || pieces[i].length != pieces[i - 1].length;
    }
    return classes;
}

/* Windows are alike: they are numbered by their longest piece, empty ones last. */
static void windows_number(const struct exact_piece *pieces, uint32_t count, uint32_t windows,
                           uint32_t *numbers) {
    uint32_t next = 0;
    for (uint32_t w = 0; w < windows; w++) {
        numbers[w] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < count; i++) {
        assert(pieces[i].window < windows);
        if (numbers[pieces[i].window] == UINT32_MAX) {
            numbers[pieces[i].window] = next++;
        }
    }
}

static void instance_fill(struct exact_instance *instance, const struct exact_piece *pieces,
                          uint32_t count, const uint32_t *numbers,
                          uint64_t (*work)(const void *model, uint32_t length), const void *model) {
    uint32_t filled = 0;
    for (uint32_t i = 0; i < count; i++) {
        filled += i == 0 || pieces[i].length != pieces[i - 1].length;
        struct exact_class *last = &instance->classes[filled - 1];
        last->length = pieces[i].length;
        last->work = work(model, last->length);
        last->count++;
        last->end = i + 1;
        size_t window = numbers[pieces[i].window];
        instance->held[window * instance->class_count + filled - 1]++;
    }
}

int exact_instance_init(struct exact_instance *instance, struct exact_piece *pieces, uint32_t count,
                        uint32_t windows, uint32_t window_tokens,
                        uint64_t (*work)(const void *model, uint32_t length), const void *model,
                        struct error *error) {
    assert(count > 0 && windows > 0);
    qsort(pieces, count, sizeof *pieces, piece_compare);
    *instance = (struct exact_instance){
        .windows = windows,
        .window_tokens = window_tokens,
        .class_count = classes_of(pieces, count),
    };
    uint64_t cells = (uint64_t)windows * instance->class_count;
    if (cells > EXACT_CELLS_MAX) {
        return error_set(error, -ENOBUFS,
                         "%" PRIu32 " lengths in %" PRIu32
                         " windows are more than an exact solver can take; ask for fewer batches",
                         instance->class_count, windows);
    }
    uint32_t *numbers = calloc(windows, sizeof *numbers);
    instance->classes = calloc(instance->class_count, sizeof *instance->classes);
    instance->held = calloc(cells, sizeof *instance->held);
    if (numbers == NULL || instance->classes == NULL || instance->held == NULL) {
        free(numbers);
        exact_instance_deinit(instance);
        return error_set(error, -ENOMEM, "no memory for %" PRIu32 " pieces", count);
    }
    windows_number(pieces, count, windows, numbers);
    instance_fill(instance, pieces, count, numbers, work, model);
    free(numbers);
    return 0;
}

void exact_instance_deinit(struct exact_instance *instance) {
    free(instance->held);
    free(instance->classes);
    instance->held = NULL;
    instance->classes = NULL;
}

uint64_t exact_window_work(const struct exact_instance *instance, uint32_t window) {
    const uint32_t *held = &instance->held[(size_t)window * instance->class_count];
    uint64_t work = 0;
    for (uint32_t c = 0; c < instance->class_count; c++) {
        work += held[c] * instance->classes[c].work;
    }
    return work;
}

static uint64_t heaviest_work(const struct exact_instance *instance) {
    uint64_t heaviest = 0;
    for (uint32_t w = 0; w < instance->windows; w++) {
        uint64_t work = exact_window_work(instance, w);
        heaviest = work > heaviest ? work : heaviest;
    }
    return heaviest;
}

static bool instance_fits(const struct exact_instance *instance) {
    for (uint32_t w = 0; w < instance->windows; w++) {
        uint64_t tokens = 0;
        for (uint32_t c = 0; c < instance->class_count; c++) {
            tokens += (uint64_t)instance->held[(size_t)w * instance->class_count + c] *
                      instance->classes[c].length;
        }
        if (tokens > instance->window_tokens) {
            return false;
        }
    }
    for (uint32_t c = 0; c < instance->class_count; c++) {
        uint64_t count = 0;
        for (uint32_t w = 0; w < instance->windows; w++) {
            count += instance->held[(size_t)w * instance->class_count + c];
        }
        if (count != instance->classes[c].count) {
            return false;
        }
    }
    return true;
}

/* The mean, or the longest piece alone. */
static uint64_t bound_simple(const struct exact_instance *instance) {
    uint64_t sum = 0;
    for (uint32_t c = 0; c < instance->class_count; c++) {
        sum += instance->classes[c].count * instance->classes[c].work;
    }
    uint64_t mean = sum / instance->windows + (sum % instance->windows > 0);
    return mean > instance->classes[0].work ? mean : instance->classes[0].work;
}

/* Keeps the solver's packing if it is one and better. */
static bool answer_take(struct exact_instance *instance, const uint32_t *greedy, size_t bytes,
                        bool complete, struct exact_answer *answer) {
    bool fits = instance_fits(instance);
    uint64_t work = heaviest_work(instance);
    if (fits && work <= answer->work) {
        answer->work = work;
    } else {
        memcpy(instance->held, greedy, bytes);
        complete = false;
    }
    return complete;
}

int exact_solve(struct exact_instance *instance, uint32_t limit_ms, struct exact_answer *answer,
                struct error *error) {
    size_t bytes = (size_t)instance->windows * instance->class_count * sizeof *instance->held;
    uint64_t start_ns = progress_clock_ns();
    bool complete = false;
    assert(instance_fits(instance));
    *answer = (struct exact_answer){.greedy_work = heaviest_work(instance)};
    answer->work = answer->greedy_work;
    answer->bound_work = bound_simple(instance);
    if (answer->bound_work < answer->work) {
        uint32_t *greedy = malloc(bytes);
        if (greedy == NULL) {
            return error_set(error, -ENOMEM, "no memory for a packing of %zu bytes", bytes);
        }
        memcpy(greedy, instance->held, bytes);
        int rc = exact_search(instance, limit_ms, &answer->bound_work, error);
        complete = rc >= 0 && answer_take(instance, greedy, bytes, rc == 1, answer);
        free(greedy);
        if (rc < 0) {
            return rc;
        }
    }
    answer->optimal = complete || answer->bound_work >= answer->work;
    if (answer->optimal) {
        answer->bound_work = answer->work;
    }
    answer->solve_ns = progress_clock_ns() - start_ns;
    return 0;
}
