/* level_options: presets and which settings level refuses; see level.h. */
#include "queues/level.h"

#include <errno.h>
#include <string.h>

#define PERCENT           (LEVEL_PPM / 100)
#define LARGEST_ALLOWANCE (1000 * LEVEL_PPM)

static const char *const preset_names[] = {
    [LEVEL_BALANCED] = "balanced",
    [LEVEL_STEADY] = "steady",
    [LEVEL_PROMPT] = "prompt",
    [LEVEL_FINE] = "fine",
};

#define PRESETS (sizeof preset_names / sizeof preset_names[0])

const char *level_preset_name(enum level_preset preset) {
    return (size_t)preset < PRESETS ? preset_names[preset] : NULL;
}

int level_preset_parse(const char *name, enum level_preset *out) {
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(preset_names[i], name) == 0) {
            *out = (enum level_preset)i;
            return 0;
        }
    }
    return -EINVAL;
}

static void preset_balanced(struct level_options *options, uint32_t window) {
    options->token_tolerance = 25 * PERCENT;
    options->headroom_share = 25 * PERCENT;
    options->allowance = 4 * PERCENT;
    options->allowance_urgent = 30 * PERCENT;
    options->allowance_ramp = 30 * PERCENT;
    options->urgency_power = 2;
    options->imbalance_price = 12;
    options->max_age = 64;
    options->max_backlog = 200 * PERCENT;
    options->look_ahead = 4;
    options->horizon = 6;
    options->candidate_length = window >= 8 ? window / 8 : 1;
    options->companion = 70 * PERCENT;
    options->max_evaluations = 48;
    options->fit_window = 256;
}

void level_options_preset(enum level_preset preset, uint32_t window,
                          struct level_options *options) {
    preset_balanced(options, window);
    switch (preset) {
    case LEVEL_BALANCED:
        break;
    case LEVEL_STEADY:
        /* The last short that fits leaves a gap; a step with it is still within 1 %. */
        options->token_tolerance = PERCENT * 8 / 10;
        options->urgency_power = 1;
        options->imbalance_price = 6;
        break;
    case LEVEL_PROMPT:
        options->token_tolerance = 40 * PERCENT;
        options->headroom_share = 50 * PERCENT;
        options->allowance = 6 * PERCENT;
        options->allowance_urgent = 40 * PERCENT;
        options->urgency_power = 1;
        break;
    case LEVEL_FINE:
        options->token_tolerance = 40 * PERCENT;
        options->headroom_share = 100 * PERCENT;
        options->allowance = 1 * PERCENT;
        options->allowance_urgent = 10 * PERCENT;
        options->imbalance_price = 40;
        options->max_backlog = 300 * PERCENT;
        break;
    }
}

/* Waiting tokens up to the backlog, and a step to spare on either side. */
static uint64_t horizon_least(const struct level_options *options) {
    uint64_t backlog = (options->max_backlog + (uint64_t)LEVEL_PPM - 1) / LEVEL_PPM + 2;
    return backlog > options->look_ahead ? backlog : options->look_ahead;
}

int level_options_check(const struct level_options *options, struct level_fault *fault) {
    const struct level_fault ranges[] = {
        {"token_tolerance", options->token_tolerance, 0, LEVEL_PPM, "give at most 100 %"},
        {"headroom_share", options->headroom_share, 0, LEVEL_PPM, "give at most 100 %"},
        {"allowance", options->allowance, 0, LARGEST_ALLOWANCE, "give at most 100000 %"},
        {"allowance_urgent", options->allowance_urgent, options->allowance, LARGEST_ALLOWANCE,
         "give at least allowance, which it grows from"},
        {"allowance_ramp", options->allowance_ramp, 0, LARGEST_ALLOWANCE, "give at most 100000 %"},
        {"urgency_power", options->urgency_power, 1, 16, "take 1 for less delay, 2 for balance"},
        {"imbalance_price", options->imbalance_price, 0, 1000, "take 12, or more for balance"},
        {"max_age", options->max_age, 0, 1u << 20,
         "take several times micro_batches over the "
         "outliers in a step"},
        {"max_backlog", options->max_backlog, 0, 1000 * LEVEL_PPM, "give at most 1000 steps"},
        {"look_ahead", options->look_ahead, 0, 1u << 12, "0 for a stream without lengths ahead"},
        {"horizon", options->horizon, horizon_least(options), 1u << 13,
         "give at least look_ahead, and max_backlog in steps and 2"},
        {"candidate_length", options->candidate_length, 1, UINT32_MAX, "take an eighth of window"},
        {"companion", options->companion, 0, LEVEL_PPM, "give at most 100 %"},
        {"max_evaluations", options->max_evaluations, 1, 1u << 16, "take 48"},
        {"fit_window", options->fit_window, 1, 1u << 16, "take 256"},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value < ranges[i].least || ranges[i].value > ranges[i].most) {
            *fault = ranges[i];
            return -EINVAL;
        }
    }
    return 0;
}
