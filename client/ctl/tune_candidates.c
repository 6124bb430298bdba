/* tune_candidates: what `ballastctl tune` tries.
 *
 * Thresholds of bands are those of WLB-LLM's own tuning, fractions of the window. Level's grid goes
 * around the presets: how far steps may differ in tokens, how soon waiting counts, and how much
 * imbalance is accepted at what price. Tolerance and headroom are paired: more of one without the
 * other changes only smaller steps. */
#include "client/ctl/tune.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PERCENT        10000u /* in ppm */
#define LEVEL_DEFAULT  "preset"
#define THRESHOLDS     6u
#define THRESHOLDS_MAX 3u

static const uint32_t threshold_eighths[THRESHOLDS] = {2, 3, 4, 5, 6, 7};
static const char *const threshold_names[THRESHOLDS] = {"1/4", "3/8", "1/2", "5/8", "3/4", "7/8"};

struct room {
    uint32_t token_tolerance;
    uint32_t headroom_share;
};

/* How much imbalance is accepted, and what more of it costs. */
struct allowance {
    uint32_t relaxed;
    uint32_t urgent;
    uint32_t price;
};

static const struct room rooms[] = {
    {8 * PERCENT / 10, 25 * PERCENT}, {4 * PERCENT, 25 * PERCENT},  {25 * PERCENT, 25 * PERCENT},
    {25 * PERCENT, 50 * PERCENT},     {40 * PERCENT, 50 * PERCENT}, {40 * PERCENT, 100 * PERCENT},
};
static const struct allowance allowances[] = {
    {1 * PERCENT, 10 * PERCENT, 40},
    {2 * PERCENT, 20 * PERCENT, 20},
    {4 * PERCENT, 30 * PERCENT, 12},
    {6 * PERCENT, 40 * PERCENT, 6},
};
static const uint32_t powers[] = {1, 2};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* "25", "0.5". */
static void percent_text(uint32_t ppm, char *out, size_t bytes) {
    size_t used = (size_t)snprintf(out, bytes, "%" PRIu32 ".%04" PRIu32, ppm / PERCENT,
                                   ppm % PERCENT);
    while (out[used - 1] == '0') {
        used--;
    }
    used -= out[used - 1] == '.';
    out[used] = '\0';
}

static struct candidate_setting *candidate_set(struct candidate *candidate, const char *key,
                                               const char *value) {
    struct candidate_setting *setting = &candidate->settings[candidate->setting_count];
    assert(candidate->setting_count < CANDIDATE_SETTINGS);
    candidate->setting_count++;
    setting->key = key;
    (void)snprintf(setting->value, sizeof setting->value, "%s", value);
    return setting;
}

static void candidate_set_percent(struct candidate *candidate, const char *key, uint32_t ppm) {
    struct candidate_setting *setting = candidate_set(candidate, key, "");
    percent_text(ppm, setting->value, sizeof setting->value - 1);
    strcat(setting->value, "%");
}

static void candidate_set_number(struct candidate *candidate, const char *key, uint32_t number) {
    struct candidate_setting *setting = candidate_set(candidate, key, "");
    (void)snprintf(setting->value, sizeof setting->value, "%" PRIu32, number);
}

static struct candidate *candidate_add(struct candidate *out, size_t *count, const char *policy) {
    struct candidate *candidate = &out[*count];
    assert(*count < CANDIDATES_MAX);
    (*count)++;
    *candidate = (struct candidate){0};
    candidate_set(candidate, "plan.policy", policy);
    return candidate;
}

/* Sets every key of the grid, so that none of the config's shows through. */
static void level_preset_add(struct candidate *out, size_t *count, enum level_preset preset) {
    struct candidate *candidate = candidate_add(out, count, "wlb:level");
    (void)snprintf(candidate->name, sizeof candidate->name, "level %s", level_preset_name(preset));
    candidate_set(candidate, "level.preset", level_preset_name(preset));
    candidate_set(candidate, "level.token_tolerance", LEVEL_DEFAULT);
    candidate_set(candidate, "level.headroom_share", LEVEL_DEFAULT);
    candidate_set(candidate, "level.allowance", LEVEL_DEFAULT);
    candidate_set(candidate, "level.allowance_urgent", LEVEL_DEFAULT);
    candidate_set(candidate, "level.urgency_power", LEVEL_DEFAULT);
    candidate_set(candidate, "level.imbalance_price", LEVEL_DEFAULT);
}

static bool level_is_preset(const struct plan_options *plan, const struct room *room,
                            const struct allowance *allowance, uint32_t power) {
    for (enum level_preset preset = LEVEL_BALANCED; preset <= LEVEL_FINE; preset++) {
        struct level_options options = {0};
        level_options_preset(preset, plan->window, &options);
        if (options.token_tolerance == room->token_tolerance &&
            options.headroom_share == room->headroom_share &&
            options.allowance == allowance->relaxed &&
            options.allowance_urgent == allowance->urgent &&
            options.imbalance_price == allowance->price && options.urgency_power == power) {
            return true;
        }
    }
    return false;
}

static void level_point_add(struct candidate *out, size_t *count, const struct room *room,
                            const struct allowance *allowance, uint32_t power) {
    struct candidate *candidate = candidate_add(out, count, "wlb:level");
    char tolerance[16];
    char headroom[16];
    percent_text(room->token_tolerance, tolerance, sizeof tolerance);
    percent_text(room->headroom_share, headroom, sizeof headroom);
    (void)snprintf(candidate->name, sizeof candidate->name, "level %s/%s p%" PRIu32 " a%" PRIu32,
                   tolerance, headroom, power, allowance->relaxed / PERCENT);
    candidate_set(candidate, "level.preset", level_preset_name(LEVEL_BALANCED));
    candidate_set_percent(candidate, "level.token_tolerance", room->token_tolerance);
    candidate_set_percent(candidate, "level.headroom_share", room->headroom_share);
    candidate_set_percent(candidate, "level.allowance", allowance->relaxed);
    candidate_set_percent(candidate, "level.allowance_urgent", allowance->urgent);
    candidate_set_number(candidate, "level.urgency_power", power);
    candidate_set_number(candidate, "level.imbalance_price", allowance->price);
}

static void level_room_add(const struct plan_options *plan, const struct room *room,
                           struct candidate *out, size_t *count) {
    for (size_t a = 0; a < COUNT(allowances); a++) {
        for (size_t p = 0; p < COUNT(powers); p++) {
            if (!level_is_preset(plan, room, &allowances[a], powers[p])) {
                level_point_add(out, count, room, &allowances[a], powers[p]);
            }
        }
    }
}

/* The grid as far as a limit on tokens allows. A step's last document leaves a gap, so that a fifth
 * of the limit is kept for it; a limit between the grid's points is a point too. */
static void level_grid_add(const struct plan_options *plan, uint32_t tolerance_ppm,
                           struct candidate *out, size_t *count) {
    uint32_t most = tolerance_ppm == TUNE_TOLERANCE_ANY ? LEVEL_PPM : tolerance_ppm / 5 * 4;
    bool met = tolerance_ppm == TUNE_TOLERANCE_ANY;
    for (size_t r = 0; r < COUNT(rooms); r++) {
        if (rooms[r].token_tolerance <= most) {
            level_room_add(plan, &rooms[r], out, count);
        }
        met = met || rooms[r].token_tolerance == most;
    }
    if (!met) {
        struct room room = {most, 25 * PERCENT};
        level_room_add(plan, &room, out, count);
        room.headroom_share = 100 * PERCENT;
        level_room_add(plan, &room, out, count);
    }
}

/* `chosen` is a set of thresholds, bit by bit; none if the window is too small to tell them apart,
 * or no document is as long as the last. */
static void bands_add(const struct plan_options *plan, uint32_t chosen, struct candidate *out,
                      size_t *count) {
    char list[CANDIDATE_VALUE_BYTES] = "";
    char name[CANDIDATE_NAME_BYTES] = "bands";
    uint32_t before = 0;
    for (uint32_t i = 0; i < THRESHOLDS; i++) {
        uint32_t tokens = (uint32_t)((uint64_t)plan->window * threshold_eighths[i] / 8);
        size_t used = strlen(list);
        size_t name_used = strlen(name);
        if ((chosen >> i & 1) == 0) {
            continue;
        }
        if (tokens <= before || tokens > plan_part_limit(plan)) {
            return;
        }
        before = tokens;
        (void)snprintf(list + used, sizeof list - used, "%s%" PRIu32, used > 0 ? "," : "", tokens);
        (void)snprintf(name + name_used, sizeof name - name_used, " %s", threshold_names[i]);
    }
    struct candidate *candidate = candidate_add(out, count, "wlb:bands");
    candidate_set(candidate, "bands.thresholds", list);
    memcpy(candidate->name, name, sizeof name);
}

size_t candidates_make(const struct plan_options *plan, uint32_t tolerance_ppm,
                       struct candidate out[CANDIDATES_MAX]) {
    size_t count = 0;
    struct candidate *first = candidate_add(out, &count, policy_name(plan->policy));
    (void)snprintf(first->name, sizeof first->name, "as configured");
    first = candidate_add(out, &count, "wlb:none");
    (void)snprintf(first->name, sizeof first->name, "none");
    for (enum level_preset preset = LEVEL_BALANCED; preset <= LEVEL_FINE; preset++) {
        level_preset_add(out, &count, preset);
    }
    level_grid_add(plan, tolerance_ppm, out, &count);
    for (uint32_t bands = 1; bands <= THRESHOLDS_MAX; bands++) {
        for (uint32_t chosen = 1; chosen < 1u << THRESHOLDS; chosen++) {
            if ((uint32_t)__builtin_popcount(chosen) == bands) {
                bands_add(plan, chosen, out, &count);
            }
        }
    }
    return count;
}
