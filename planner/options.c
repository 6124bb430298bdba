/* options: which settings make a stream, and which contradict one another; see planner.h. */
#include "planner/step.h"

#include "sharding/pool_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_PERCENT 95u /* of what a step's micro-batches hold */
#define FULL_PERCENT    98u /* above this the packer leaves too much over */

#define POOL_BLOCKS     64u /* of a window, by default */
#define POOL_BLOCK_MIN  128u
#define POOL_BLOCK_MAX  8192u
#define POOL_MEMORY_MAX (UINT64_C(4) << 30)
#define POOL_TILES_MAX  (POOL_MEMORY_MAX / 4) /* of a step; which worker has each is 4 bytes */

static const struct {
    enum policy policy;
    const char *name;
} policies[] = {
    {POLICY_PLAIN, "plain"},         {POLICY_WLB_NONE, "wlb:none"}, {POLICY_WLB_BANDS, "wlb:bands"},
    {POLICY_WLB_LEVEL, "wlb:level"}, {POLICY_POOL, "pool"},
};

#define POLICIES (sizeof policies / sizeof policies[0])

static const char *const fixed_names[FIXED_BATCHES_MAX] = {
    "fixed:1",  "fixed:2",  "fixed:3",  "fixed:4",  "fixed:5",  "fixed:6",  "fixed:7",  "fixed:8",
    "fixed:9",  "fixed:10", "fixed:11", "fixed:12", "fixed:13", "fixed:14", "fixed:15", "fixed:16",
    "fixed:17", "fixed:18", "fixed:19", "fixed:20", "fixed:21", "fixed:22", "fixed:23", "fixed:24",
    "fixed:25", "fixed:26", "fixed:27", "fixed:28", "fixed:29", "fixed:30", "fixed:31", "fixed:32",
    "fixed:33", "fixed:34", "fixed:35", "fixed:36", "fixed:37", "fixed:38", "fixed:39", "fixed:40",
    "fixed:41", "fixed:42", "fixed:43", "fixed:44", "fixed:45", "fixed:46", "fixed:47", "fixed:48",
    "fixed:49", "fixed:50", "fixed:51", "fixed:52", "fixed:53", "fixed:54", "fixed:55", "fixed:56",
    "fixed:57", "fixed:58", "fixed:59", "fixed:60", "fixed:61", "fixed:62", "fixed:63", "fixed:64",
};

uint32_t policy_batches(enum policy policy) {
    uint32_t number = (uint32_t)policy;
    bool fixed = number > POLICY_FIXED && number <= POLICY_FIXED + FIXED_BATCHES_MAX;
    return fixed ? number - POLICY_FIXED : 0;
}

bool policy_cuts(enum policy policy) {
    return policy == POLICY_PLAIN || policy == POLICY_POOL || policy_batches(policy) > 0;
}

uint32_t plan_batches(const struct plan_options *options) {
    return options->policy == POLICY_POOL ? options->pools.look_ahead
                                          : policy_batches(options->policy);
}

const char *policy_name(enum policy policy) {
    if (policy_batches(policy) > 0) {
        return fixed_names[policy_batches(policy) - 1];
    }
    for (size_t i = 0; i < POLICIES; i++) {
        if (policies[i].policy == policy) {
            return policies[i].name;
        }
    }
    return NULL;
}

int policy_parse(const char *name, enum policy *out) {
    for (size_t i = 0; i < POLICIES; i++) {
        if (policies[i].policy != POLICY_POOL && strcmp(policies[i].name, name) == 0) {
            *out = policies[i].policy;
            return 0;
        }
    }
    for (uint32_t batches = 1; batches <= FIXED_BATCHES_MAX; batches++) {
        if (strcmp(fixed_names[batches - 1], name) == 0) {
            *out = (enum policy)(POLICY_FIXED + batches);
            return 0;
        }
    }
    return -EINVAL;
}

void policy_pool_name(enum policy policy, uint32_t pool_size, char out[POLICY_NAME_BYTES]) {
    const char *name = policy_name(policy);
    assert(name != NULL);
    if (pool_size == 0) {
        (void)snprintf(out, POLICY_NAME_BYTES, "%s", name);
    } else {
        (void)snprintf(out, POLICY_NAME_BYTES, "%s%s:%" PRIu32, name,
                       policy == POLICY_POOL ? "" : "+pool", pool_size);
    }
}

/* The size behind "pool:", without sign, zeros in front, or anything behind it. */
static int policy_size_parse(const char *text, uint32_t *out) {
    uint32_t size = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || (at == text && *at == '0') || size > RANKS_LIMIT) {
            return -EINVAL;
        }
        size = 10 * size + (uint32_t)(*at - '0');
    }
    if (size < 1 || size > RANKS_LIMIT) {
        return -EINVAL;
    }
    *out = size;
    return 0;
}

int policy_pool_parse(const char *name, enum policy *policy, uint32_t *pool_size) {
    static const enum policy joined[] = {POLICY_WLB_NONE, POLICY_WLB_BANDS, POLICY_WLB_LEVEL};
    const char *plus = strstr(name, "+pool:");
    if (plus == NULL && strncmp(name, "pool:", 5) != 0) {
        int code = policy_parse(name, policy);
        *pool_size = code == 0 ? 0 : *pool_size;
        return code;
    }
    if (plus == NULL) {
        int code = policy_size_parse(name + 5, pool_size);
        *policy = code == 0 ? POLICY_POOL : *policy;
        return code;
    }
    for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++) {
        const char *base = policy_name(joined[i]);
        if (strlen(base) == (size_t)(plus - name) && strncmp(base, name, strlen(base)) == 0) {
            int code = policy_size_parse(plus + 6, pool_size);
            *policy = code == 0 ? joined[i] : *policy;
            return code;
        }
    }
    return -EINVAL;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

uint64_t plan_row_unit(const struct plan_options *options) {
    uint64_t chunks = 2 * (uint64_t)options->cp;
    uint64_t ranks = (uint64_t)options->cp * options->tp;
    return chunks / greatest_common_divisor(chunks, ranks) * ranks;
}

uint64_t plan_bin_tokens(const struct plan_options *options) {
    return options->tokens_max - options->tokens_max % plan_row_unit(options);
}

uint32_t plan_part_limit(const struct plan_options *options) {
    if (options->bounds.part_limit > 0) {
        return options->bounds.part_limit;
    }
    uint64_t bin_tokens = plan_bin_tokens(options);
    return bin_tokens < options->window ? (uint32_t)bin_tokens : options->window;
}

uint32_t plan_parts_max(const struct plan_options *options) {
    return options->waiting_max > options->bounds.parts_max ? options->waiting_max
                                                            : options->bounds.parts_max;
}

uint64_t plan_tokens_held_max(const struct plan_options *options) {
    uint64_t tokens = plan_held_steps(options) * options->micro_batches * options->tokens_max;
    return tokens > options->bounds.tokens_held_max ? tokens : options->bounds.tokens_held_max;
}

static int options_check_ranges(const struct plan_options *options, struct error *error) {
    const struct {
        const char *key;
        uint64_t value;
        uint64_t max;
    } ranges[] = {
        {"plan.window", options->window, TOKENS_MAX_LIMIT},
        {"plan.tokens_max", options->tokens_max, TOKENS_MAX_LIMIT},
        {"plan.micro_batches", options->micro_batches, MICRO_BATCHES_LIMIT},
        {"plan.documents_max", options->documents_max, PARTS_LIMIT},
        {"parallel.dp", options->dp, RANKS_LIMIT},
        {"parallel.pp", options->pp, RANKS_LIMIT},
        {"parallel.cp", options->cp, RANKS_LIMIT},
        {"parallel.tp", options->tp, RANKS_LIMIT},
        {"queues.waiting_max", options->waiting_max, PARTS_LIMIT},
        {"queues.max_backlog + 1", options->backlog_max + 1, BACKLOG_LIMIT},
        {"sharding.fragments_max", options->layouts.fragments_max, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value < 1 || ranges[i].value > ranges[i].max) {
            return error_set(error, -EINVAL, "%s = %" PRIu64 " is out of range; give 1 to %" PRIu64,
                             ranges[i].key, ranges[i].value, ranges[i].max);
        }
    }
    return 0;
}

static int options_check_mesh(const struct plan_options *options, struct error *error) {
    if (policy_name(options->policy) == NULL) {
        return error_set(
            error, -EINVAL,
            "plan.policy = %d is none; take plain, fixed:1 to fixed:64, wlb:none, wlb:bands, "
            "wlb:level or pool:P",
            (int)options->policy);
    }
    if (options->micro_batches % options->dp != 0) {
        return error_set(error, -EINVAL,
                         "plan.micro_batches = %" PRIu32
                         ": not a multiple of parallel.dp = %" PRIu32
                         "; every replica runs the same number, take %" PRIu32,
                         options->micro_batches, options->dp,
                         (options->micro_batches / options->dp + 1) * options->dp);
    }
    return 0;
}

static int options_check_lengths(const struct plan_options *options, struct error *error) {
    uint64_t unit = plan_row_unit(options);
    uint64_t largest = options->window > options->tokens_max ? options->window
                                                             : options->tokens_max;
    if (options->window < unit || options->tokens_max < unit) {
        return error_set(error, -EINVAL,
                         "plan.window = %" PRIu32 ", plan.tokens_max = %" PRIu64
                         ": below the %" PRIu64 " rows that cp = %" PRIu32 " and tp = %" PRIu32
                         " round a micro-batch up to; raise them to it",
                         options->window, options->tokens_max, unit, options->cp, options->tp);
    }
    if (largest * options->micro_batches > STEP_TOKENS_LIMIT) {
        return error_set(error, -EINVAL,
                         "plan.micro_batches = %" PRIu32 " of %" PRIu64
                         " tokens: more than %" PRIu64 " tokens a step; lower one of them",
                         options->micro_batches, largest, STEP_TOKENS_LIMIT);
    }
    return 0;
}

static int options_check_windows(const struct plan_options *options, struct error *error) {
    uint64_t step_tokens = (uint64_t)options->micro_batches * options->window;
    uint64_t unit = plan_row_unit(options);
    const char *policy = policy_name(options->policy);
    if (options->window % unit != 0) {
        return error_set(error, -EINVAL,
                         "plan.window = %" PRIu32 ": %s fills it exactly, and cp = %" PRIu32
                         " with tp = %" PRIu32 " needs a multiple of %" PRIu64 "; take %" PRIu64,
                         options->window, policy, options->cp, options->tp, unit,
                         options->window - options->window % unit);
    }
    if (options->tokens_max < options->window) {
        return error_set(error, -EINVAL,
                         "plan.tokens_max = %" PRIu64 ": %s fills windows of %" PRIu32
                         "; raise it to that",
                         options->tokens_max, policy, options->window);
    }
    if (options->step_tokens != 0 && options->step_tokens != step_tokens) {
        return error_set(error, -EINVAL,
                         "plan.step_tokens = %" PRIu64 ": %s always has micro_batches * window = "
                         "%" PRIu64 "; leave it out",
                         options->step_tokens, policy, step_tokens);
    }
    uint64_t bins = (uint64_t)plan_batches(options) * options->micro_batches;
    if (options->documents_max < 2 * bins) {
        return error_set(error, -EINVAL,
                         "plan.documents_max = %" PRIu32 ": %s packs %" PRIu64
                         " windows at once, which may cut as many documents; take at least "
                         "%" PRIu64,
                         options->documents_max, policy, bins, 2 * bins);
    }
    return 0;
}

static int options_check_variable(const struct plan_options *options, struct error *error) {
    uint64_t held = options->micro_batches * plan_bin_tokens(options);
    uint64_t most = held * FULL_PERCENT / 100;
    if (options->step_tokens > most) {
        return error_set(error, -EINVAL,
                         "plan.step_tokens = %" PRIu64 ": above %u %% of the %" PRIu64
                         " tokens that %" PRIu32 " micro-batches hold, so that more and more would "
                         "be left over; take at most %" PRIu64 " or raise plan.tokens_max",
                         options->step_tokens, FULL_PERCENT, held, options->micro_batches, most);
    }
    return 0;
}

static int options_check_queues(const struct plan_options *options, struct error *error) {
    if (options->documents_max < options->micro_batches) {
        return error_set(error, -EINVAL,
                         "plan.documents_max = %" PRIu32
                         ": fewer than plan.micro_batches = %" PRIu32
                         "; every micro-batch needs one, raise it",
                         options->documents_max, options->micro_batches);
    }
    if (options->waiting_max < options->documents_max) {
        return error_set(error, -EINVAL,
                         "queues.waiting_max = %" PRIu32 ": below plan.documents_max = %" PRIu32
                         ", all of which might be left over; raise it or lower that",
                         options->waiting_max, options->documents_max);
    }
    return 0;
}

static int options_check_bands(const struct bands_options *bands, struct error *error) {
    if (bands->bands > BANDS_MAX) {
        return error_set(error, -EINVAL, "bands.thresholds: %" PRIu32 " of them; give at most %u",
                         bands->bands, BANDS_MAX);
    }
    for (uint32_t i = 0; i < bands->bands; i++) {
        uint32_t above = i > 0 ? bands->length_min[i - 1] : 0;
        if (bands->length_min[i] <= above) {
            return error_set(error, -EINVAL,
                             "bands.thresholds: %" PRIu32 " after %" PRIu32
                             "; list them ascending, above 0",
                             bands->length_min[i], above);
        }
    }
    if (bands->age_max == 0) {
        return error_set(error, -EINVAL, "queues.max_age = 0; give at least 1 step");
    }
    return 0;
}

static int options_check_level(const struct level_options *level, struct error *error) {
    struct level_fault fault;
    if (level_options_check(level, &fault) < 0) {
        return error_set(error, -EINVAL,
                         "level.%s = %" PRIu64 " is out of range, %" PRIu64 " to %" PRIu64
                         " beside the others; %s",
                         fault.key, fault.value, fault.least, fault.most, fault.remedy);
    }
    return 0;
}

/* Heads of one tensor-parallel rank, as the model prices them. */
static uint32_t options_heads(const struct plan_options *options, uint32_t heads) {
    return heads < options->tp ? 1 : heads / options->tp;
}

/* Rows of a pool are exchanged otherwise. */
static void options_resolve_layouts(struct plan_options *options) {
    struct model_link link = model_link_of(&options->model, options->cp);
    options->layouts.link = (struct wait_link){
        .bytes_per_us = options->pools.size > 0 ? 0 : link.bytes_per_us,
        .alpha_ps = link.alpha_ps,
        .head_dim = options->model.head_dim,
        .needed_only = options->keys_needed_only,
    };
}

static int options_check_layouts(const struct plan_options *options, struct error *error) {
    struct tile_model heads = {.q_heads = options_heads(options, options->model.q_heads),
                               .kv_heads = options_heads(options, options->model.kv_heads)};
    uint32_t allowed = options->layouts.allowed;
    if (allowed == 0 || (allowed & ~LAYOUTS_ALLOWED) != 0) {
        return error_set(error, -EINVAL,
                         "sharding.layouts: set %#" PRIx32
                         " is empty or has more than this build's %#" PRIx32
                         "; name at least one that it knows",
                         allowed, LAYOUTS_ALLOWED);
    }
    if (allowed == 1u << LAYOUT_ULYSSES && heads.kv_heads > 0 &&
        !layout_heads_divide(&heads, options->cp)) {
        return error_set(error, -EINVAL,
                         "sharding.layouts = ulysses: %" PRIu32 " heads and %" PRIu32
                         " K/V heads of a tensor-parallel rank cannot be dealt to parallel.cp = "
                         "%" PRIu32 " ranks evenly; take a divisor of both, or allow another "
                         "layout",
                         heads.q_heads, heads.kv_heads, options->cp);
    }
    return 0;
}

static void options_resolve_pools(struct plan_options *options) {
    struct pools_options *pools = &options->pools;
    uint32_t kv_heads = options_heads(options, options->model.kv_heads);
    if (pools->size == 0) {
        return;
    }
    if (pools->head_shards == 0) {
        pools->head_shards = kv_heads % 4 == 0 ? 4 : kv_heads % 2 == 0 ? 2 : 1;
    }
    if (pools->block_tokens == 0) {
        uint32_t block = options->window / POOL_BLOCKS;
        pools->block_tokens = block < POOL_BLOCK_MIN   ? POOL_BLOCK_MIN
                              : block > POOL_BLOCK_MAX ? POOL_BLOCK_MAX
                                                       : block;
    }
}

static int options_check_heads(const struct plan_options *options, struct error *error) {
    uint32_t shards = options->pools.head_shards;
    uint32_t q_heads = options_heads(options, options->model.q_heads);
    uint32_t kv_heads = options_heads(options, options->model.kv_heads);
    if (q_heads % shards != 0 || (kv_heads % shards != 0 && shards % kv_heads != 0)) {
        return error_set(error, -EINVAL,
                         "pools.head_shards = %" PRIu32 ": does not cut %" PRIu32
                         " heads and %" PRIu32 " K/V heads of a tensor-parallel rank evenly; take "
                         "a divisor of both",
                         shards, q_heads, kv_heads);
    }
    return 0;
}

/* Which worker has how much of a group is a table. */
static int options_check_pools(const struct plan_options *options, struct error *error) {
    const struct pools_options *pools = &options->pools;
    if (pools->size == 0) {
        return 0;
    }
    if (options->dp % pools->size != 0) {
        return error_set(error, -EINVAL,
                         "plan.policy: pools of %" PRIu32 " replicas: parallel.dp = %" PRIu32
                         " is not a multiple; take a divisor "
                         "of it",
                         pools->size, options->dp);
    }
    if (pools->look_ahead > FIXED_BATCHES_MAX) {
        return error_set(error, -EINVAL,
                         "pools.look_ahead = %" PRIu32 ": too far; give at most %u steps",
                         pools->look_ahead, FIXED_BATCHES_MAX);
    }
    int code = options_check_heads(options, error);
    struct pool_tiles tiles = {.piece_count = plan_pool_pieces(options)};
    tiles.span_count = tiles.piece_count;
    struct pool_shape shape = plan_pool_shape(options);
    uint64_t shards = (uint64_t)pools->head_shards * (options->micro_batches / pools->size);
    bool many = shards > 0 && tiles.piece_count > POOL_TILES_MAX / shards;
    if (code == 0 && (many || pool_plan_bytes(&shape, &tiles) > POOL_MEMORY_MAX)) {
        return error_set(error, -EINVAL,
                         "plan.policy, pools.block_tokens = %" PRIu32 ": pools of %" PRIu32
                         " workers with up to %" PRIu32 " blocks need over %u GiB to plan; raise "
                         "pools.block_tokens or take smaller pools",
                         pools->block_tokens, pool_workers(&shape), tiles.piece_count,
                         (unsigned)(POOL_MEMORY_MAX >> 30));
    }
    return code;
}

/* Fixed holds what it packs at once. Level holds what its clock lags, T at most, and looks horizon
 * + 1 steps ahead, a part on either side; or so many parts that every micro-batch has one. */
uint64_t plan_held_steps(const struct plan_options *options) {
    uint64_t steps = options->backlog_max + 2;
    if (options->policy == POLICY_WLB_LEVEL && options->level.horizon + UINT64_C(4) > steps) {
        steps = options->level.horizon + UINT64_C(4);
    }
    if (plan_batches(options) > steps) {
        steps = plan_batches(options);
    }
    return steps;
}

/* Work of all parts that may be held at once, at most: what is long costs at most as much a token
 * as the longest part, what is short at most as much as a whole 4096 tokens. */
static int options_check_work(const struct plan_options *options, struct error *error) {
    const uint32_t short_tokens = 4096;
    uint32_t limit = plan_part_limit(options);
    struct work_model model;
    int code = work_model_init(&model, &options->model, options->cp, options->pp, options->tp,
                               limit, error);
    if (code < 0) {
        return code;
    }
    uint64_t token_work = work_of(&model, limit) / limit + 1;
    uint64_t short_work = work_of(&model, limit < short_tokens ? limit : short_tokens);
    unsigned __int128 work = (unsigned __int128)plan_tokens_held_max(options) * token_work +
                             (unsigned __int128)plan_parts_max(options) * short_work;
    if (work > INT64_MAX / 2) {
        return error_set(error, -EINVAL,
                         "plan.micro_batches, plan.tokens_max, queues.max_backlog, level.horizon "
                         "and [model]: the predicted work of all held documents does not fit 62 "
                         "bits; lower queues.max_backlog or check the model's units");
    }
    return 0;
}

/* Bands of a window too short for two are fewer. */
static void options_resolve_bands(struct plan_options *options) {
    struct bands_options *bands = &options->bands;
    bands->group = options->micro_batches;
    if (options->policy != POLICY_WLB_BANDS) {
        bands->bands = 0;
    }
    if (bands->bands != BANDS_AUTO) {
        return;
    }
    bands->bands = 0;
    for (uint32_t eighths = 3; eighths <= 5; eighths += 2) {
        uint32_t length = (uint32_t)((uint64_t)options->window * eighths / 8);
        if (length > (bands->bands > 0 ? bands->length_min[bands->bands - 1] : 0)) {
            bands->length_min[bands->bands++] = length;
        }
    }
}

/* A row unit is at least 2 tokens, so that even 95 % of one is one. */
static void options_resolve_step_tokens(struct plan_options *options) {
    uint64_t windows = (uint64_t)options->micro_batches * options->window;
    uint64_t roomy = options->micro_batches * plan_bin_tokens(options) * DEFAULT_PERCENT / 100;
    if (policy_cuts(options->policy)) {
        options->step_tokens = windows;
    } else if (options->step_tokens == 0) {
        options->step_tokens = windows < roomy ? windows : roomy;
    }
}

/* Parameters that were not set are the preset's. */
static void options_resolve_preset(struct plan_options *options) {
    struct level_options preset;
    struct level_options *level = &options->level;
    level_options_preset(options->level_preset, options->window, &preset);
    const struct {
        uint32_t *value;
        uint32_t preset;
    } parameters[] = {
        {&level->token_tolerance, preset.token_tolerance},
        {&level->headroom_share, preset.headroom_share},
        {&level->allowance, preset.allowance},
        {&level->allowance_urgent, preset.allowance_urgent},
        {&level->allowance_ramp, preset.allowance_ramp},
        {&level->urgency_power, preset.urgency_power},
        {&level->imbalance_price, preset.imbalance_price},
        {&level->max_age, preset.max_age},
        {&level->max_backlog, preset.max_backlog},
        {&level->look_ahead, preset.look_ahead},
        {&level->horizon, preset.horizon},
        {&level->candidate_length, preset.candidate_length},
        {&level->companion, preset.companion},
        {&level->max_evaluations, preset.max_evaluations},
        {&level->fit_window, preset.fit_window},
    };
    for (size_t i = 0; i < sizeof parameters / sizeof parameters[0]; i++) {
        if (*parameters[i].value == LEVEL_AUTO) {
            *parameters[i].value = parameters[i].preset;
        }
    }
}

/* A short document's token, when none is in sight: of a document of 1,024. */
static int options_resolve_level(struct plan_options *options, struct error *error) {
    const uint32_t short_tokens = 1024;
    uint32_t limit = plan_part_limit(options);
    struct work_model model;
    int code = work_model_init(&model, &options->model, options->cp, options->pp, options->tp,
                               limit, error);
    if (code < 0) {
        return code;
    }
    uint32_t length = limit < short_tokens ? limit : short_tokens;
    uint64_t work = model.cost_linear > 0 ? model.cost_linear : work_of(&model, length) / length;
    options->level.bins = options->micro_batches;
    options->level.bin_tokens = plan_bin_tokens(options);
    options->level.step_tokens = options->step_tokens;
    options->level.token_work = work > 0 ? work : 1;
    return options_check_level(&options->level, error);
}

int plan_options_resolve(struct plan_options *options, struct error *error) {
    static int (*const checks[])(const struct plan_options *options, struct error *error) = {
        options_check_ranges,  options_check_mesh, options_check_lengths, options_check_queues,
        options_check_layouts, options_check_work, options_check_pools,
    };
    struct plan_options resolved = *options;
    int code = 0;
    options_resolve_preset(&resolved);
    if (resolved.tp > 0) {
        options_resolve_pools(&resolved);
    }
    for (size_t i = 0; code == 0 && i < sizeof checks / sizeof checks[0]; i++) {
        code = checks[i](&resolved, error);
    }
    if (code == 0) {
        code = policy_cuts(resolved.policy) ? options_check_windows(&resolved, error)
                                            : options_check_variable(&resolved, error);
    }
    if (code == 0) {
        options_resolve_layouts(&resolved);
        options_resolve_step_tokens(&resolved);
        options_resolve_bands(&resolved);
        code = options_check_bands(&resolved.bands, error);
    }
    if (code == 0) {
        code = options_resolve_level(&resolved, error);
    }
    if (code == 0) {
        *options = resolved;
    }
    return code;
}

static int follow_check(const struct plan_options *options, const struct plan_options *before,
                        struct error *error) {
    if (options->policy != before->policy || options->pools.size != before->pools.size) {
        char names[2][POLICY_NAME_BYTES];
        policy_pool_name(options->policy, options->pools.size, names[0]);
        policy_pool_name(before->policy, before->pools.size, names[1]);
        return error_set(error, -EINVAL,
                         "plan.policy = %s: it stays %s as long as the job lasts; take it out of "
                         "the section, or start a new job",
                         names[0], names[1]);
    }
    if (options->pools.look_ahead != before->pools.look_ahead) {
        return error_set(error, -EINVAL,
                         "pools.look_ahead = %" PRIu32 ": it stays %" PRIu32
                         " as long as the job lasts; take it out of the section, or start a new "
                         "job",
                         options->pools.look_ahead, before->pools.look_ahead);
    }
    if (options->window != before->window) {
        return error_set(error, -EINVAL,
                         "plan.window = %" PRIu32 ": it stays %" PRIu32
                         " as long as the job lasts; take it out of the section, or start a new "
                         "job",
                         options->window, before->window);
    }
    if (plan_batches(options) > 1 && options->micro_batches != before->micro_batches) {
        return error_set(error, -EINVAL,
                         "plan.micro_batches = %" PRIu32 ": %s has packed the windows of %" PRIu32
                         " steps of %" PRIu32 " ahead; leave it, or start the job with %s",
                         options->micro_batches, policy_name(options->policy),
                         plan_batches(options), before->micro_batches,
                         options->policy == POLICY_POOL ? "pools.look_ahead = 1" : "fixed:1");
    }
    return 0;
}

/* After resolving, when what a micro-batch holds makes sense. */
static int follow_check_parts(const struct plan_options *options, struct error *error) {
    if (plan_bin_tokens(options) < plan_part_limit(options)) {
        return error_set(error, -EINVAL,
                         "plan.tokens_max = %" PRIu64 ": a micro-batch holds %" PRIu64
                         " of them, and documents were cut into parts of up to %" PRIu32
                         " tokens from step 0 on; raise it to that, rounded up to %" PRIu64,
                         options->tokens_max, plan_bin_tokens(options), plan_part_limit(options),
                         plan_row_unit(options));
    }
    return 0;
}

int plan_options_follow(struct plan_options *options, const struct plan_options *before,
                        struct error *error) {
    struct plan_options following = *options;
    int code = follow_check(options, before, error);
    following.bounds = (struct plan_bounds){
        .part_limit = plan_part_limit(before),
        .parts_max = plan_parts_max(before),
        .tokens_held_max = plan_tokens_held_max(before),
    };
    if (code == 0) {
        code = plan_options_resolve(&following, error);
    }
    if (code == 0) {
        code = follow_check_parts(&following, error);
    }
    if (code == 0) {
        *options = following;
    }
    return code;
}
