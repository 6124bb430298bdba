/* model: see model.h. */
#include "planner/model.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define KNOT_STEP         128u  /* a query tile */
#define KNOT_DENSE_MAX    4096u /* up to here every KNOT_STEP */
#define KNOT_RATIO        16u   /* then at most 1/16 apart */
#define PASSES            3u    /* one forward, two backward */
#define ELEMENTWISE_READS 22u
#define ELEMENT_BYTES     2u /* bf16 */
#define PS_PER_NS         1000u
#define PS_PER_US         1000000u

static int model_check_shape(const struct model_options *options, uint32_t cp, uint32_t pp,
                             uint32_t tp, struct error *error) {
    const struct {
        const char *key;
        uint64_t value;
    } positive[] = {
        {"model.layers", options->layers},
        {"model.hidden", options->hidden},
        {"model.ffn", options->ffn},
        {"model.q_heads", options->q_heads},
        {"model.kv_heads", options->kv_heads},
        {"model.head_dim", options->head_dim},
        {"model.gemm_tflops", options->gemm_flops_per_ns},
        {"model.memory_gbps", options->memory_bytes_per_us},
        {"parallel.cp", cp},
        {"parallel.pp", pp},
        {"parallel.tp", tp},
    };
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++) {
        if (positive[i].value == 0) {
            return error_set(error, -EINVAL, "%s is 0; give the real one", positive[i].key);
        }
    }
    if (pp > options->layers) {
        return error_set(error, -EINVAL,
                         "parallel.pp = %" PRIu32 ": model.layers = %" PRIu32
                         " leave stages empty; take at most one stage a layer",
                         pp, options->layers);
    }
    return 0;
}

uint32_t model_group(const struct model_options *options, uint32_t tp) {
    uint32_t kv_heads = options->kv_heads < tp ? 1 : options->kv_heads / tp;
    return kv_heads > 0 && (options->q_heads / tp) % kv_heads == 0
               ? options->q_heads / tp / kv_heads
               : 0;
}

/* The profile's own key was checked where it was read. */
static int model_profile_tiles(const struct model_options *options, uint32_t tp, uint32_t kv_heads,
                               struct tile_model *out, struct error *error) {
    const struct model_profile *profile = &options->profile;
    uint32_t group = model_group(options, tp);
    if (options->head_dim != profile->head_dim || group != profile->group ||
        options->sm_margin >= profile->sms) {
        return error_set(error, -EINVAL,
                         "model.profile: %s is of head_dim %" PRIu32 ", %" PRIu32
                         " query heads a K/V head and %" PRIu32 " SMs; a rank of parallel.tp = "
                         "%" PRIu32 " has %" PRIu32 ", %" PRIu32 " and model.sm_margin = %" PRIu32
                         "; measure a profile for it, or take model.profile out",
                         profile->name, profile->head_dim, profile->group, profile->sms, tp,
                         options->head_dim, group, options->sm_margin);
    }
    *out = (struct tile_model){
        .forward = profile->forward,
        .backward = profile->backward,
        .sms = profile->sms,
        .sm_margin = options->sm_margin,
        .q_heads = options->q_heads / tp,
        .kv_heads = kv_heads,
    };
    return 0;
}

uint64_t model_profile_row_ps(const struct model_options *options, uint32_t tp) {
    const struct model_profile *profile = &options->profile;
    bool same = profile->hidden == options->hidden && profile->ffn == options->ffn &&
                profile->q_heads == options->q_heads && profile->kv_heads == options->kv_heads;
    for (uint32_t i = 0; same && i < profile->degree_count; i++) {
        if (profile->degrees[i].tp == tp) {
            return profile->degrees[i].row_ps;
        }
    }
    return 0;
}

static const struct model_link *model_profile_link(const struct model_options *options,
                                                   uint32_t cp) {
    const struct model_profile *profile = &options->profile;
    for (uint32_t i = 0; i < profile->link_count; i++) {
        if (profile->links[i].ranks == cp) {
            return &profile->links[i];
        }
    }
    return NULL;
}

bool model_profile_has_link(const struct model_options *options, uint32_t cp) {
    return model_profile_link(options, cp) != NULL;
}

struct model_link model_link_of(const struct model_options *options, uint32_t cp) {
    const struct model_link *link = model_profile_link(options, cp);
    return link != NULL && options->link_bytes_per_us > 0
               ? *link
               : (struct model_link){
                     .ranks = cp,
                     .alpha_ps = options->link_latency_ns * PS_PER_NS,
                     .bytes_per_us = options->link_bytes_per_us,
                 };
}

static int model_tiles(const struct model_options *options, uint32_t tp, struct tile_model *out,
                       struct error *error) {
    if (options->q_heads % tp != 0) {
        return error_set(error, -EINVAL,
                         "model.q_heads = %" PRIu32 ": not a multiple of parallel.tp = %" PRIu32
                         "; choose a tp that divides it",
                         options->q_heads, tp);
    }
    if (options->kv_heads % tp != 0 && tp % options->kv_heads != 0) {
        return error_set(error, -EINVAL,
                         "model.kv_heads = %" PRIu32 ": neither multiple nor divisor of "
                         "parallel.tp = %" PRIu32 "; choose a tp that divides it",
                         options->kv_heads, tp);
    }
    uint32_t kv_heads = options->kv_heads < tp ? 1 : options->kv_heads / tp;
    if (options->profile.used) {
        return model_profile_tiles(options, tp, kv_heads, out, error);
    }
    int code = tile_model_analytic(options->head_dim, options->q_heads / tp, kv_heads,
                                   options->sm_margin, out);
    if (code < 0) {
        return error_set(error, code,
                         "model.head_dim = %" PRIu32 ", q_heads = %" PRIu32 ", kv_heads = %" PRIu32
                         ", sm_margin = %" PRIu32 " have no figures; head_dim is 64 or 128, "
                         "q_heads a multiple of kv_heads, sm_margin below the machine's SMs",
                         options->head_dim, options->q_heads, options->kv_heads,
                         options->sm_margin);
    }
    return 0;
}

/* W_l of one row and one layer, times layers of a stage. */
static unsigned __int128 model_row_ps(const struct model_options *options, uint32_t tp,
                                      uint32_t stage_layers) {
    unsigned __int128 hidden = options->hidden;
    unsigned __int128 attention = 2 * (unsigned __int128)options->head_dim *
                                  (options->q_heads + (unsigned __int128)options->kv_heads);
    unsigned __int128 flops = 2 * hidden * (attention + 3 * (unsigned __int128)options->ffn) *
                              PASSES;
    unsigned __int128 bytes = hidden * ELEMENT_BYTES * ELEMENTWISE_READS * PASSES;
    uint64_t measured_ps = model_profile_row_ps(options, tp);
    unsigned __int128 layer_ps =
        flops * PS_PER_NS / (options->gemm_flops_per_ns * (unsigned __int128)tp) +
        bytes * PS_PER_US / (options->memory_bytes_per_us * (unsigned __int128)tp);
    return (measured_ps > 0 ? measured_ps : layer_ps) * stage_layers;
}

static uint32_t model_next_knot(uint32_t length, uint32_t length_max) {
    uint32_t step = length < KNOT_DENSE_MAX ? KNOT_STEP : length / KNOT_RATIO;
    return length_max - length <= step ? length_max : length + step;
}

static unsigned __int128 model_attention_ps(const struct work_model *model, uint32_t length) {
    return (unsigned __int128)tile_document_ps(&model->tiles, length) * model->stage_layers /
           model->cp;
}

/* Sum of both terms at the largest length; below it they are smaller. */
static unsigned __int128 model_largest(const struct work_model *model, uint32_t length_max) {
    if (model->cost_linear > 0) {
        return (unsigned __int128)length_max * ((unsigned __int128)length_max + model->cost_linear);
    }
    return model_attention_ps(model, length_max) + (unsigned __int128)model->row_ps * length_max;
}

static void model_knots(struct work_model *model, uint32_t length_max) {
    model->knots = 1;
    model->lengths[0] = 0;
    model->attention_ps[0] = 0;
    for (uint32_t length = 0; length < length_max;) {
        length = model_next_knot(length, length_max);
        assert(model->knots < WORK_KNOTS_MAX);
        model->lengths[model->knots] = length;
        model->attention_ps[model->knots] = (uint64_t)model_attention_ps(model, length);
        model->knots++;
    }
}

int work_model_init(struct work_model *model, const struct model_options *options, uint32_t cp,
                    uint32_t pp, uint32_t tp, uint32_t length_max, struct error *error) {
    struct work_model made = {.cost_linear = options->cost_linear, .cp = cp};
    int code = model_check_shape(options, cp, pp, tp, error);
    if (code == 0) {
        code = model_tiles(options, tp, &made.tiles, error);
    }
    if (code < 0) {
        return code;
    }
    made.stage_layers = options->layers / pp + (options->layers % pp != 0);
    unsigned __int128 row_ps = model_row_ps(options, tp, made.stage_layers);
    made.row_ps = row_ps <= INT64_MAX ? (uint64_t)row_ps : INT64_MAX;
    if (row_ps > INT64_MAX || model_largest(&made, length_max) > INT64_MAX) {
        return error_set(error, -EINVAL,
                         "[model] and plan.window = %" PRIu32
                         ": a document's predicted work does not fit 63 bits; check the units",
                         length_max);
    }
    if (made.cost_linear > 0) {
        (void)snprintf(made.name, sizeof made.name, "cost:L2/%" PRIu64, made.cost_linear);
    } else {
        model_knots(&made, length_max);
        (void)snprintf(made.name, sizeof made.name, "%s",
                       options->profile.used ? options->profile.name : "analytic");
    }
    *model = made;
    return 0;
}

/* W_a between the two knots around `length`. */
static uint64_t model_interpolate_ps(const struct work_model *model, uint32_t length) {
    uint32_t low = 0;
    uint32_t high = model->knots - 1;
    assert(length <= model->lengths[high]);
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (model->lengths[middle] <= length) {
            low = middle;
        } else {
            high = middle;
        }
    }
    uint64_t rise_ps = model->attention_ps[high] - model->attention_ps[low];
    uint32_t run = model->lengths[high] - model->lengths[low];
    return model->attention_ps[low] +
           (uint64_t)((unsigned __int128)rise_ps * (length - model->lengths[low]) / run);
}

uint64_t work_of(const struct work_model *model, uint32_t length) {
    if (length == 0) {
        return 0;
    }
    if (model->cost_linear > 0) {
        return (uint64_t)length * (length + model->cost_linear);
    }
    uint64_t linear_ps = (uint64_t)((unsigned __int128)model->row_ps * length / model->cp);
    uint64_t ns = (model_interpolate_ps(model, length) + linear_ps) / PS_PER_NS;
    return ns > 0 ? ns : 1;
}

uint64_t work_other_ns(const struct work_model *model, uint64_t rows) {
    return (uint64_t)((unsigned __int128)model->row_ps * rows / PS_PER_NS);
}
