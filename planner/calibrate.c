/* calibrate: see calibrate.h. */
#include "planner/calibrate.h"

#include "planner/balance.h"

#include <assert.h>
#include <inttypes.h>

#define PERMILLE      1000u
#define PS_PER_NS     1000u
#define SCALE_MIN     300u
#define SCALE_MAX     4000u
#define IMBALANCE_MAX 100000u

/* Attention of a full window of equal documents. */
static uint64_t calibrate_attention_ps(const struct step_time_model *model,
                                       const struct tile_model *tiles, uint32_t window,
                                       uint32_t documents) {
    uint32_t lengths[CALIBRATE_DOCUMENTS];
    struct fragment fragments[2 * CALIBRATE_DOCUMENTS + 2];
    struct packed_sequence sequence = {
        .lengths = lengths, .documents = documents, .tokens = window};
    uint64_t slowest_ps = 0;
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = window / documents;
    }
    for (uint32_t rank = 0; rank < model->options.cp; rank++) {
        uint32_t count = layout_fragments(LAYOUT_PER_SEQUENCE, &sequence, model->options.cp, rank,
                                          fragments, sizeof fragments / sizeof fragments[0]);
        uint64_t ps = tile_forward_ps(tiles, fragments, count);
        slowest_ps = ps > slowest_ps ? ps : slowest_ps;
    }
    return slowest_ps;
}

/* One layer with these scales, no attention in the load. */
static uint64_t calibrate_layer_ps(const struct step_time_model *model, uint64_t rows,
                                   uint32_t linear_permille) {
    struct step_time_model scaled = *model;
    struct step_load load = {.rows = rows};
    scaled.options.linear_permille = linear_permille;
    return step_time_layer_ps(&scaled, &load);
}

static int calibrate_check(const struct step_time_model *model, uint32_t window, uint64_t short_ns,
                           uint64_t long_ns, struct error *error) {
    uint64_t unit = 2 * (uint64_t)model->options.cp * CALIBRATE_DOCUMENTS;
    if (window == 0 || window % unit != 0) {
        return error_set(error, -EINVAL,
                         "window = %" PRIu32 " is not a multiple of %" PRIu64
                         ", as %u equal documents need",
                         window, unit, CALIBRATE_DOCUMENTS);
    }
    if (long_ns <= short_ns) {
        return error_set(error, -EINVAL,
                         "a window of one document took %" PRIu64 " ns, one of short ones %" PRIu64
                         " ns: attention makes the first slower; measure again after warm-up",
                         long_ns, short_ns);
    }
    return 0;
}

static int calibrate_range(const char *what, __int128 scale, struct error *error) {
    if (scale < SCALE_MIN || scale > SCALE_MAX) {
        return error_set(error, -ERANGE,
                         "the %s scale comes out at %" PRId64
                         " permille, outside %u to %u: shape or mesh are not those measured",
                         what, (int64_t)scale, SCALE_MIN, SCALE_MAX);
    }
    return 0;
}

int calibrate_times(const struct step_time_model *model, const struct tile_model *tiles,
                    uint32_t window, uint64_t short_ns, uint64_t long_ns, struct calibration *out,
                    struct error *error) {
    int code = calibrate_check(model, window, short_ns, long_ns, error);
    if (code < 0) {
        return code;
    }
    uint64_t rows = window / model->options.cp;
    __int128 layers = model->stage_layers;
    __int128 exposed_ps = layers * calibrate_layer_ps(model, rows, 0);
    __int128 linear_ps = layers * calibrate_layer_ps(model, rows, PERMILLE) - exposed_ps;
    __int128 short_ps = layers * calibrate_attention_ps(model, tiles, window, CALIBRATE_DOCUMENTS);
    __int128 long_ps = layers * calibrate_attention_ps(model, tiles, window, 1);
    __int128 measured_ps = (__int128)short_ns * PS_PER_NS - exposed_ps;
    __int128 attention = (__int128)(long_ns - short_ns) * PS_PER_NS * PERMILLE /
                         (long_ps - short_ps);
    __int128 linear = (measured_ps * PERMILLE - short_ps * attention) / linear_ps;
    code = calibrate_range("attention", attention, error);
    if (code == 0) {
        code = calibrate_range("linear", linear, error);
    }
    if (code == 0) {
        *out = (struct calibration){(uint32_t)attention, (uint32_t)linear};
    }
    return code;
}

/* Mean of micro_batch_ppm with attention scaled so. */
static uint64_t calibrate_mean_ppm(const struct step_time_model *model,
                                   const struct step_load *loads, uint32_t steps,
                                   uint32_t attention_permille) {
    struct step_time_model scaled = *model;
    uint32_t count = model->options.micro_batches;
    unsigned __int128 ppm = 0;
    scaled.options.attention_permille = attention_permille;
    for (uint32_t step = 0; step < steps; step++) {
        uint64_t max = 0;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t ns = step_time_forward_ns(&scaled, &loads[(size_t)step * count + i]);
            max = ns > max ? ns : max;
            sum += ns;
        }
        ppm += balance_ppm(max, sum, count);
    }
    return (uint64_t)(ppm / steps);
}

int calibrate_imbalance(const struct step_time_model *model, const struct step_load *loads,
                        uint32_t steps, uint64_t target_ppm, struct calibration *out,
                        struct error *error) {
    uint32_t low = 0;
    uint32_t high = IMBALANCE_MAX;
    assert(steps > 0);
    uint64_t reached_ppm = calibrate_mean_ppm(model, loads, steps, high);
    if (reached_ppm < target_ppm) {
        return error_set(error, -ERANGE,
                         "micro-batches differ by %" PRIu64 " ppm at most, not by %" PRIu64
                         "; check lengths and mesh",
                         reached_ppm, target_ppm);
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (calibrate_mean_ppm(model, loads, steps, middle) < target_ppm) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *out = (struct calibration){low, model->options.linear_permille};
    return 0;
}
