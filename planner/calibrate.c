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
#define POINT_BITS    20u
#define LOG_APART_MIN 100000 /* 1 of it is the least 1 - correlation^2 of a log's two parts */
#define FIT_PPM_MIN   800000u

/* Attention of a full window of equal documents. */
static uint64_t calibrate_attention_ps(const struct step_time_model *model,
                                       const struct tile_model *tiles, uint32_t window,
                                       uint32_t documents) {
    uint32_t lengths[CALIBRATE_DOCUMENTS];
    struct fragment fragments[2 * CALIBRATE_DOCUMENTS + 2];
    struct packed_sequence sequence = {
        .lengths = lengths, .documents = documents, .tokens = window};
    struct step_load load;
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = window / documents;
    }
    step_load_of_sequence(&sequence, LAYOUT_PER_SEQUENCE, model->options.cp, tiles, fragments,
                          &load);
    return load.attention_ps;
}

/* One layer of a load without its attention, with this scale. */
static uint64_t calibrate_layer_ps(const struct step_time_model *model, struct step_load load,
                                   uint32_t linear_permille) {
    struct step_time_model scaled = *model;
    load.attention_ps = 0;
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
    struct step_load full = {.rows = window / model->options.cp};
    __int128 layers = model->stage_layers;
    __int128 exposed_ps = layers * calibrate_layer_ps(model, full, 0);
    __int128 linear_ps = layers * calibrate_layer_ps(model, full, PERMILLE) - exposed_ps;
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

/* A sample without what no scale changes, on one stage. */
struct point {
    int64_t linear;
    int64_t attention;
    int64_t time;
};

/* Sums of products over points of less than 2^20: they stay below 2^57, their products below 2^114.
 */
struct moments {
    __int128 linear2, attention2, both, linear_time, attention_time;
};

/* Times beyond 50 days are that long: such a log fits nothing. */
static int64_t point_clamp(__int128 ps) {
    const __int128 most = (__int128)1 << 62;
    return (int64_t)(ps > most ? most : ps < -most ? -most : ps);
}

static struct point sample_point(const struct step_time_model *model,
                                 const struct calibrate_sample *sample) {
    __int128 layers = model->stage_layers;
    __int128 exposed_ps = layers * calibrate_layer_ps(model, sample->load, 0);
    return (struct point){
        .linear = point_clamp(layers * calibrate_layer_ps(model, sample->load, PERMILLE) -
                              exposed_ps),
        .attention = point_clamp(layers * sample->load.attention_ps),
        .time = point_clamp((__int128)sample->forward_ns * PS_PER_NS - exposed_ps),
    };
}

static unsigned point_bits(struct point point) {
    int64_t time = point.time > 0 ? point.time : -point.time;
    int64_t most = point.linear > point.attention ? point.linear : point.attention;
    most = time > most ? time : most;
    return 64 - (unsigned)__builtin_clzll((uint64_t)most | 1);
}

/* Points in the unit in which the largest has POINT_BITS. */
static struct point point_scaled(struct point point, unsigned shift) {
    int64_t unit = INT64_C(1) << shift;
    return (struct point){point.linear / unit, point.attention / unit, point.time / unit};
}

static unsigned log_shift(const struct step_time_model *model,
                          const struct calibrate_sample *samples, uint32_t count) {
    unsigned most = 0;
    for (uint32_t i = 0; i < count; i++) {
        unsigned bits = point_bits(sample_point(model, &samples[i]));
        most = bits > most ? bits : most;
    }
    return most > POINT_BITS ? most - POINT_BITS : 0;
}

static void moments_add(struct moments *sums, struct point point) {
    sums->linear2 += (__int128)point.linear * point.linear;
    sums->attention2 += (__int128)point.attention * point.attention;
    sums->both += (__int128)point.linear * point.attention;
    sums->linear_time += (__int128)point.linear * point.time;
    sums->attention_time += (__int128)point.attention * point.time;
}

/* R2 of the scales, ppm. */
static uint32_t log_fit(const struct step_time_model *model, const struct calibrate_sample *samples,
                        uint32_t count, unsigned shift, __int128 attention, __int128 linear) {
    __int128 mean = 0;
    __int128 spread = 0;
    __int128 missed = 0;
    for (uint32_t i = 0; i < count; i++) {
        mean += point_scaled(sample_point(model, &samples[i]), shift).time;
    }
    mean /= count;
    for (uint32_t i = 0; i < count; i++) {
        struct point point = point_scaled(sample_point(model, &samples[i]), shift);
        __int128 miss = point.time -
                        (linear * point.linear + attention * point.attention) / PERMILLE;
        spread += (point.time - mean) * (point.time - mean);
        missed += miss * miss;
    }
    return missed < spread ? (uint32_t)(PPM - missed * PPM / spread) : 0;
}

static int log_check(uint32_t count, const struct moments *sums, struct error *error) {
    if (count < CALIBRATE_SAMPLES_MIN || count > CALIBRATE_SAMPLES_MAX) {
        return error_set(error, -EINVAL, "%" PRIu32 " micro-batches in the log; give %u to %u",
                         count, CALIBRATE_SAMPLES_MIN, CALIBRATE_SAMPLES_MAX);
    }
    __int128 apart = sums->linear2 * sums->attention2 - sums->both * sums->both;
    if (apart <= sums->linear2 * sums->attention2 / LOG_APART_MIN) {
        return error_set(error, -EINVAL,
                         "attention and the rest rise together in this log: take in micro-batches "
                         "with long documents and with short ones");
    }
    return 0;
}

int calibrate_log(const struct step_time_model *model, const struct calibrate_sample *samples,
                  uint32_t count, struct calibration *out, uint32_t *fit_ppm, struct error *error) {
    struct moments sums = {0};
    bool fits = count <= CALIBRATE_SAMPLES_MAX;
    unsigned shift = fits ? log_shift(model, samples, count) : 0;
    for (uint32_t i = 0; fits && i < count; i++) {
        moments_add(&sums, point_scaled(sample_point(model, &samples[i]), shift));
    }
    int code = log_check(count, &sums, error);
    if (code < 0) {
        return code;
    }
    __int128 apart = sums.linear2 * sums.attention2 - sums.both * sums.both;
    __int128 attention = (sums.linear2 * sums.attention_time - sums.both * sums.linear_time) *
                         PERMILLE / apart;
    __int128 linear = (sums.attention2 * sums.linear_time - sums.both * sums.attention_time) *
                      PERMILLE / apart;
    uint32_t fit = log_fit(model, samples, count, shift, attention, linear);
    if (fit < FIT_PPM_MIN) {
        return error_set(error, -ERANGE,
                         "the scales fit the log with an R2 of 0.%02" PRIu32 ", under 0.8: these "
                         "are not forward times of a middle stage, or shape or mesh differ",
                         fit / 10000);
    }
    code = calibrate_range("attention", attention, error);
    if (code == 0) {
        code = calibrate_range("linear", linear, error);
    }
    if (code == 0) {
        *out = (struct calibration){(uint32_t)attention, (uint32_t)linear};
        *fit_ppm = fit;
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
