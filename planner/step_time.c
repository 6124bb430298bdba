/* step_time: see step_time.h. */
#include "planner/step_time.h"

#include "planner/balance.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define ELEMENTWISE_PASSES 22u
#define ELEMENT_BYTES      2u /* bf16 */
#define TP_COLLECTIVES     4u
#define HEAD_BACKWARD      2u
#define PS_PER_NS          1000u
#define PS_PER_US          1000000u
#define PERMILLE           1000u
#define PART_PS_MAX        (UINT64_C(1) << 54)

typedef unsigned __int128 u128;

const struct step_time_options step_time_defaults = {
    .chunks = 1,
    .schedule = PIPELINE_1F1B,
    .node_gpus = 8,
    .node = {.alpha_ns = 15000, .bytes_per_us = 330000},
    .network = {.alpha_ns = 30000, .bytes_per_us = 42000},
    .attention_permille = PERMILLE,
    .linear_permille = PERMILLE,
    .backward_attention_permille = 2500,
    .backward_linear_permille = 2000,
};

/* What one operation, or one layer, is made of. */
struct step_parts {
    uint64_t attention_ps;
    uint64_t linear_ps;
    uint64_t communication_ps;
    uint64_t head_ps;
};

/* Durations of a chain, ns, by (micro-batch, virtual stage), and sends by micro-batch. */
struct step_durations {
    uint64_t *forward;
    uint64_t *backward;
    uint64_t *send;
};

/* Scratch of step_time_of; the record leads its arrays. */
struct step_scratch {
    /* By load. */
    struct step_parts *layers; /* forward of one layer; head: of the last chunk */
    struct step_durations all;
    uint64_t *forward_ns; /* through all stages */
    uint64_t *backward_ns;

    /* By micro-batch of the replica, or group of them, that runs. */
    uint32_t *picks; /* which loads these are */
    struct step_durations run;
    uint64_t *shares; /* of the critical path */
    struct pipeline_times times;
    void *pipeline;
};

/* A ratio in the making. */
struct step_spread {
    uint64_t max;
    uint64_t sum;
    uint32_t count;
};

/* What a pool's workers take, both directions, by the tiles that they were given. */
struct step_workers {
    u128 sum_ns;
    uint64_t slowest_ns;
    u128 home_ps; /* of their own rows, as the next */
    u128 home_forward_ps;
};

static void step_workers_add(struct step_workers *workers, const struct step_plan *plan, uint32_t m,
                             const struct tile_model *tiles, const struct step_load *load) {
    const struct rank_shard *shards = &plan->shards[plan->micro_batches[m].shard_begin];
    for (uint32_t rank = 0; rank < plan->cp; rank++) {
        const struct fragment *fragments = &plan->fragments[shards[rank].fragment_begin];
        uint64_t ns = shards[rank].predicted_ns;
        workers->sum_ns += ns;
        workers->slowest_ns = ns > workers->slowest_ns ? ns : workers->slowest_ns;
        workers->home_ps += tile_cost_ps(tiles, fragments, shards[rank].fragment_count);
    }
    workers->home_forward_ps += load->attention_sum_ps;
}

/* Its forward part, which has the share that it has of rows at home. */
static uint64_t step_workers_forward_ps(const struct step_workers *workers, u128 ns) {
    u128 share = workers->home_ps > 0 ? workers->home_forward_ps * PPM / workers->home_ps : 0;
    u128 ps = ns * PS_PER_NS * share / PPM;
    return ps < UINT64_MAX ? (uint64_t)ps : UINT64_MAX;
}

static void step_load_share(const struct step_plan *plan, const struct plan_pool *pool,
                            const struct tile_model *tiles, struct step_load *loads) {
    uint32_t share = plan->micro_batch_count / plan->dp;
    uint32_t sequences = plan->pool_shape.sequences;
    struct step_workers workers = {0};
    for (uint32_t i = 0; i < sequences; i++) {
        uint32_t m = (pool->dp_begin + i) * share + pool->ga_index;
        step_workers_add(&workers, plan, m, tiles, &loads[m]);
    }
    for (uint32_t i = 0; i < sequences; i++) {
        struct step_load *load = &loads[(pool->dp_begin + i) * share + pool->ga_index];
        load->attention_sum_ps = step_workers_forward_ps(&workers, workers.sum_ns / sequences);
        load->attention_ps = step_workers_forward_ps(&workers, workers.slowest_ns);
    }
}

/* Layouts in which the keys of a rank's fragments are no single run of rows. */
static bool step_copies(enum layout layout, uint32_t cp) {
    return cp > 1 && (layout == LAYOUT_PER_DOCUMENT || layout == LAYOUT_VARIABLE_DEGREE ||
                      layout == LAYOUT_HYBRID);
}

static void step_load_add(struct step_load *load, uint64_t rank_ps) {
    load->attention_sum_ps += rank_ps;
    load->attention_ps = rank_ps > load->attention_ps ? rank_ps : load->attention_ps;
}

/* Every rank computes all documents, for its heads. */
static uint64_t step_heads_ps(const struct step_plan *plan, const struct micro_batch *micro_batch,
                              const struct tile_model *tiles) {
    struct tile_model model = layout_heads_of(tiles, plan->cp);
    struct tile_loads loads = {0};
    for (uint32_t i = 0; i < micro_batch->document_count; i++) {
        struct fragment whole = {.document = i,
                                 .length = plan->documents[micro_batch->document_begin + i].length};
        tile_loads_add(&model, &loads, &whole, 1);
    }
    return tile_loads_forward_ps(&model, &loads);
}

void step_load_of(const struct step_plan *plan, const struct tile_model *tiles,
                  struct step_load *loads) {
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[m];
        const struct rank_shard *shards = &plan->shards[micro_batch->shard_begin];
        bool heads = micro_batch->choice.layout == LAYOUT_ULYSSES;
        uint64_t heads_ps = heads ? step_heads_ps(plan, micro_batch, tiles) : 0;
        loads[m] = (struct step_load){
            .rows = shards[0].rows,
            .tokens = micro_batch->tokens,
            .copies = step_copies(micro_batch->choice.layout, plan->cp),
        };
        for (uint32_t rank = 0; rank < plan->cp; rank++) {
            const struct fragment *fragments = &plan->fragments[shards[rank].fragment_begin];
            step_load_add(&loads[m],
                          heads ? heads_ps
                                : tile_forward_ps(tiles, fragments, shards[rank].fragment_count));
        }
    }
    for (uint32_t i = 0; i < plan->pool_count; i++) {
        step_load_share(plan, &plan->pools[i], tiles, loads);
    }
}

void step_load_of_deal(struct layout_dealer *dealer, struct step_load *out) {
    const struct packed_sequence *sequence = dealer->sequence;
    *out = (struct step_load){
        .rows = (sequence->tokens + sequence->pad_tokens) / dealer->cp,
        .tokens = sequence->tokens,
        .copies = step_copies(dealer->layout, dealer->cp),
    };
    for (uint32_t rank = 0; rank < dealer->cp; rank++) {
        step_load_add(out, layout_forward_ps(dealer, rank));
    }
}

void step_load_of_sequence(const struct packed_sequence *sequence, enum layout layout, uint32_t cp,
                           const struct tile_model *tiles, struct fragment *scratch,
                           struct step_load *out) {
    struct layout_dealer dealer = {.cp = cp, .scratch = scratch};
    layout_begin(&dealer, sequence, tiles);
    (void)layout_deal(&dealer, layout, 0);
    step_load_of_deal(&dealer, out);
}

/* Times beyond a part's limit (5 hours) become it, so that sums stay within 63 bits. */
static uint64_t step_scale(u128 value, uint32_t permille) {
    u128 product = value * permille;
    if (product >= (u128)PART_PS_MAX * PERMILLE) {
        return PART_PS_MAX;
    }
    return (uint64_t)product / PERMILLE;
}

static uint64_t step_link_ps(const struct link_rate *rate, u128 bytes) {
    return step_scale((u128)rate->alpha_ns * PS_PER_NS + bytes * PS_PER_US / rate->bytes_per_us,
                      PERMILLE);
}

/* The rate of a group of `gpus` neighbours. */
static const struct link_rate *step_link(const struct step_time_options *options, uint64_t gpus) {
    return gpus > options->node_gpus ? &options->network : &options->node;
}

static u128 step_tp_bytes(const struct step_time_model *model, uint64_t rows) {
    uint32_t tp = model->options.tp;
    return (u128)TP_COLLECTIVES * rows * model->options.shape.hidden * ELEMENT_BYTES * (tp - 1) /
           tp;
}

static u128 step_cp_bytes(const struct step_time_model *model, uint64_t rows) {
    return (u128)rows * model->kv_bytes * (model->options.cp - 1);
}

static u128 step_send_bytes(const struct step_time_model *model, uint64_t rows) {
    return (u128)rows * model->options.shape.hidden * ELEMENT_BYTES / model->options.tp;
}

/* One layer, forward. */
static uint64_t step_communication_ps(const struct step_time_model *model, uint64_t rows) {
    const struct step_time_options *options = &model->options;
    uint64_t ps = 0;
    if (options->tp > 1) {
        u128 tp_ps = step_link_ps(&options->node, step_tp_bytes(model, rows)) +
                     (u128)(TP_COLLECTIVES - 1) * options->node.alpha_ns * PS_PER_NS;
        ps += step_scale(tp_ps, options->exposed_tp_permille);
    }
    if (options->cp > 1) {
        const struct link_rate *link = step_link(options, (uint64_t)options->tp * options->cp);
        ps += step_scale(step_link_ps(link, step_cp_bytes(model, rows)),
                         options->exposed_cp_permille);
    }
    return ps;
}

/* Unscaled: GEMMs and passes of one layer, forward. */
static u128 step_rows_ps(const struct step_time_model *model, uint64_t rows) {
    const struct step_time_options *options = &model->options;
    u128 gemm_ps = (u128)rows * model->row_flops * PS_PER_NS /
                   ((u128)options->shape.gemm_flops_per_ns * options->tp);
    u128 passes_ps = (u128)rows * model->row_bytes * PS_PER_US /
                     ((u128)options->shape.memory_bytes_per_us * options->tp);
    return gemm_ps + passes_ps;
}

/* K and V of 1 + 1/(2 CP) of the sequence, read and written once. */
static uint64_t step_copy_ps(const struct step_time_model *model, const struct step_load *load) {
    const struct step_time_options *options = &model->options;
    if (!load->copies || options->copy_bytes_per_us == 0) {
        return 0;
    }
    u128 bytes = (u128)load->rows * model->kv_bytes * (2 * (uint64_t)options->cp + 1);
    return step_scale(bytes * PS_PER_US / options->copy_bytes_per_us, PERMILLE);
}

static struct step_parts step_layer(const struct step_time_model *model,
                                    const struct step_load *load) {
    const struct step_time_options *options = &model->options;
    u128 head_ps = (u128)load->rows * model->head_flops * PS_PER_NS /
                   ((u128)options->shape.gemm_flops_per_ns * options->tp);
    return (struct step_parts){
        .attention_ps = step_scale(load->attention_ps, options->attention_permille),
        .linear_ps = step_scale(step_rows_ps(model, load->rows), options->linear_permille) +
                     step_copy_ps(model, load),
        .communication_ps = step_communication_ps(model, load->rows),
        .head_ps = step_scale(head_ps, PERMILLE),
    };
}

uint64_t step_time_layer_ps(const struct step_time_model *model, const struct step_load *load) {
    struct step_parts layer = step_layer(model, load);
    return layer.attention_ps + layer.linear_ps + layer.communication_ps;
}

static uint32_t step_layers(const struct step_time_model *model, uint32_t virtual_stage) {
    const struct step_time_options *options = &model->options;
    if (options->layers != NULL) {
        return options->layers[virtual_stage];
    }
    if (model->even_layers > 0) {
        return model->even_layers;
    }
    uint64_t layers = options->shape.layers;
    return (uint32_t)(layers * (virtual_stage + 1) / model->virtual_stages -
                      layers * virtual_stage / model->virtual_stages);
}

/* The parts of a whole operation, of the layer's forward. */
static struct step_parts step_operation(const struct step_time_model *model,
                                        const struct step_parts *layer, uint32_t virtual_stage,
                                        bool backward) {
    const struct step_time_options *options = &model->options;
    uint32_t layers = step_layers(model, virtual_stage);
    bool last = virtual_stage == model->virtual_stages - 1;
    uint32_t attention_permille = PERMILLE;
    uint32_t linear_permille = PERMILLE;
    if (backward) {
        attention_permille = options->backward_attention_permille +
                             (options->recompute != RECOMPUTE_NONE ? PERMILLE : 0);
        linear_permille = options->backward_linear_permille +
                          (options->recompute == RECOMPUTE_FULL ? PERMILLE : 0);
    }
    return (struct step_parts){
        .attention_ps = step_scale((u128)layer->attention_ps * layers, attention_permille),
        .linear_ps = step_scale((u128)layer->linear_ps * layers, linear_permille),
        .communication_ps = step_scale((u128)layer->communication_ps * layers, linear_permille),
        .head_ps = last ? layer->head_ps * (backward ? HEAD_BACKWARD : 1) : 0,
    };
}

static uint64_t step_parts_ns(const struct step_parts *parts) {
    return (parts->attention_ps + parts->linear_ps + parts->communication_ps + parts->head_ps) /
           PS_PER_NS;
}

/* One direction of a micro-batch through all stages: the durations, if `out` is not NULL, and their
 * sum. Chunks of as many layers take as long. */
static uint64_t step_chain_ns(const struct step_time_model *model, const struct step_parts *layer,
                              bool backward, uint64_t *out) {
    uint64_t sum_ns = 0;
    uint64_t chunk_ns = 0;
    uint32_t layers = 0;
    for (uint32_t q = 0; q < model->virtual_stages; q++) {
        if (step_layers(model, q) != layers || q == model->virtual_stages - 1) {
            struct step_parts parts = step_operation(model, layer, q, backward);
            chunk_ns = step_parts_ns(&parts);
            layers = step_layers(model, q);
        }
        if (out != NULL) {
            out[q] = chunk_ns;
        }
        sum_ns += chunk_ns;
    }
    return sum_ns;
}

uint64_t step_time_forward_ns(const struct step_time_model *model, const struct step_load *load) {
    struct step_parts layer = step_layer(model, load);
    return step_chain_ns(model, &layer, false, NULL);
}

static void *step_array(uint8_t *memory, size_t *at, size_t bytes) {
    size_t begin = *at;
    *at = begin + (bytes + 7) / 8 * 8;
    return memory != NULL ? memory + begin : NULL;
}

static void step_lay_out_durations(const struct step_time_model *model, size_t micro_batches,
                                   uint8_t *memory, size_t *at, struct step_durations *out) {
    size_t chains = micro_batches * model->virtual_stages * sizeof(uint64_t);
    out->forward = step_array(memory, at, chains);
    out->backward = step_array(memory, at, chains);
    out->send = step_array(memory, at, micro_batches * sizeof(uint64_t));
}

static size_t step_lay_out(const struct step_time_model *model, uint8_t *memory,
                           struct step_scratch *out) {
    size_t loads = model->options.micro_batches;
    size_t m = model->shape.micro_batches;
    size_t at = 0;
    (void)step_array(memory, &at, sizeof *out);
    out->layers = step_array(memory, &at, loads * sizeof *out->layers);
    step_lay_out_durations(model, loads, memory, &at, &out->all);
    out->forward_ns = step_array(memory, &at, loads * sizeof *out->forward_ns);
    out->backward_ns = step_array(memory, &at, loads * sizeof *out->backward_ns);
    out->picks = step_array(memory, &at, m * sizeof *out->picks);
    step_lay_out_durations(model, m, memory, &at, &out->run);
    out->shares = step_array(memory, &at, m * sizeof *out->shares);
    out->pipeline = step_array(memory, &at, pipeline_bytes(&model->shape));
    return at;
}

static struct step_scratch *step_scratch_in(const struct step_time_model *model, void *memory) {
    struct step_scratch *scratch = memory;
    assert((uintptr_t)memory % 8 == 0);
    (void)step_lay_out(model, memory, scratch);
    return scratch;
}

size_t step_time_bytes(const struct step_time_model *model) {
    struct step_scratch measured;
    return step_lay_out(model, NULL, &measured);
}

static uint32_t step_groups(const struct step_time_model *model) {
    uint32_t group = model->options.sync_replicas;
    return group > 0 ? model->options.dp / group : model->options.dp;
}

/* Times of every load. */
static void step_price(const struct step_time_model *model, const struct step_load *loads,
                       struct step_scratch *scratch) {
    const struct step_time_options *options = &model->options;
    const struct link_rate *link = step_link(options,
                                             (uint64_t)options->tp * options->cp * options->pp);
    for (uint32_t i = 0; i < options->micro_batches; i++) {
        struct step_parts *layer = &scratch->layers[i];
        size_t at = (size_t)i * model->virtual_stages;
        *layer = step_layer(model, &loads[i]);
        scratch->all.send[i] = step_scale(step_link_ps(link, step_send_bytes(model, loads[i].rows)),
                                          options->exposed_pp_permille) /
                               PS_PER_NS;
        scratch->forward_ns[i] = step_chain_ns(model, layer, false, &scratch->all.forward[at]);
        scratch->backward_ns[i] = step_chain_ns(model, layer, true, &scratch->all.backward[at]);
    }
}

/* The loads that set the time of replica or group `replica`: all of a replica's, or at every index
 * the slowest of the replicas that meet there. */
static void step_pick(const struct step_time_model *model, uint32_t replica,
                      struct step_scratch *scratch) {
    uint32_t m = model->shape.micro_batches;
    uint32_t group = model->options.sync_replicas > 0 ? model->options.sync_replicas : 1;
    for (uint32_t i = 0; i < m; i++) {
        uint32_t pick = replica * group * m + i;
        for (uint32_t other = 1; other < group; other++) {
            uint32_t load = (replica * group + other) * m + i;
            if (scratch->forward_ns[load] + scratch->backward_ns[load] >
                scratch->forward_ns[pick] + scratch->backward_ns[pick]) {
                pick = load;
            }
        }
        scratch->picks[i] = pick;
    }
}

static void step_gather(const struct step_time_model *model, struct step_scratch *scratch) {
    size_t stages = model->virtual_stages;
    for (uint32_t i = 0; i < model->shape.micro_batches; i++) {
        size_t pick = scratch->picks[i];
        memcpy(&scratch->run.forward[i * stages], &scratch->all.forward[pick * stages],
               stages * sizeof(uint64_t));
        memcpy(&scratch->run.backward[i * stages], &scratch->all.backward[pick * stages],
               stages * sizeof(uint64_t));
        scratch->run.send[i] = scratch->all.send[pick];
    }
}

static int step_run(const struct step_time_model *model, uint32_t replica,
                    struct step_scratch *scratch, struct pipeline *pipeline, struct error *error) {
    step_pick(model, replica, scratch);
    step_gather(model, scratch);
    scratch->times = (struct pipeline_times){
        .forward = scratch->run.forward,
        .backward = scratch->run.backward,
        .send = model->options.exposed_pp_permille > 0 ? scratch->run.send : NULL,
    };
    return pipeline_run(pipeline, &scratch->times, error);
}

static void step_spread_add(struct step_spread *spread, uint64_t value) {
    spread->max = value > spread->max ? value : spread->max;
    spread->sum += value;
    spread->count++;
}

static uint64_t step_spread_ppm(const struct step_spread *spread) {
    return balance_ppm(spread->max, spread->sum, spread->count);
}

/* Ratios and bounds that the loads alone give. */
static void step_ratios(const struct step_time_model *model, const struct step_load *loads,
                        const struct step_scratch *scratch, struct step_time *out) {
    const struct step_time_options *options = &model->options;
    struct step_spread forward = {0};
    struct step_spread attention = {0};
    struct step_spread replicas = {0};
    u128 context = 0;
    u128 tokens = 0;
    u128 attention_ps = 0;
    uint64_t work_ns = 0;
    uint64_t replica_ns = 0;
    for (uint32_t i = 0; i < options->micro_batches; i++) {
        uint64_t chain_ns = scratch->forward_ns[i] + scratch->backward_ns[i];
        step_spread_add(&forward, scratch->forward_ns[i]);
        step_spread_add(&attention, loads[i].attention_sum_ps);
        context += (u128)balance_ppm(loads[i].attention_ps, loads[i].attention_sum_ps,
                                     options->cp) *
                   loads[i].tokens;
        tokens += loads[i].tokens;
        attention_ps += (u128)scratch->layers[i].attention_ps * options->shape.layers;
        work_ns += chain_ns;
        replica_ns += chain_ns;
        out->heaviest_ns = chain_ns > out->heaviest_ns ? chain_ns : out->heaviest_ns;
        if ((i + 1) % model->shape.micro_batches == 0) {
            step_spread_add(&replicas, replica_ns);
            replica_ns = 0;
        }
    }
    uint64_t turns = (uint64_t)model->shape.micro_batches * options->chunks + options->pp - 1;
    out->work_ns = work_ns;
    out->micro_batch_ppm = step_spread_ppm(&forward);
    out->attention_ppm = step_spread_ppm(&attention);
    out->replica_ppm = step_spread_ppm(&replicas);
    out->context_ppm = tokens > 0 ? (uint64_t)(context / tokens) : PPM;
    out->attention_share_ppm = forward.sum > 0
                                   ? (uint64_t)(attention_ps * (PPM / PS_PER_NS) / forward.sum)
                                   : 0;
    out->even_ns = (uint64_t)((u128)work_ns * turns /
                              ((u128)options->micro_batches * model->virtual_stages));
}

static void step_traffic(const struct step_time_model *model, const struct step_load *loads,
                         struct step_time *out) {
    const struct step_time_options *options = &model->options;
    u128 rows = 0;
    for (uint32_t i = 0; i < options->micro_batches; i++) {
        rows += loads[i].rows;
    }
    uint64_t replica_rows = (uint64_t)(rows / options->dp);
    u128 passes = (u128)(PERMILLE + options->backward_linear_permille);
    u128 layer_passes = passes * options->shape.layers;
    out->tp_bytes = (uint64_t)(step_tp_bytes(model, replica_rows) * layer_passes / options->pp /
                               PERMILLE);
    out->cp_bytes = (uint64_t)(step_cp_bytes(model, replica_rows) * layer_passes / options->pp /
                               PERMILLE);
    uint64_t links = 2 * ((uint64_t)model->virtual_stages - 1);
    out->send_bytes = options->pp > 1
                          ? (uint64_t)(step_send_bytes(model, replica_rows) * links / options->pp)
                          : 0;
    out->fsdp_bytes = model->fsdp_bytes;
}

/* Adds an operation of the critical path to its causes; linear takes the rounding. */
static void step_blame(const struct step_time_model *model, const struct step_parts *layer,
                       struct pipeline_operation op, uint64_t duration_ns, struct step_time *out) {
    struct step_parts parts = step_operation(model, layer, op.virtual_stage, op.backward);
    uint64_t attention_ns = parts.attention_ps / PS_PER_NS;
    uint64_t communication_ns = parts.communication_ps / PS_PER_NS;
    uint64_t head_ns = parts.head_ps / PS_PER_NS;
    out->causes_ns[STEP_ATTENTION] += attention_ns;
    out->causes_ns[STEP_COMMUNICATION] += communication_ns;
    out->causes_ns[STEP_HEAD] += head_ns;
    out->causes_ns[STEP_LINEAR] += duration_ns - attention_ns - communication_ns - head_ns;
}

static void step_walk(const struct step_time_model *model, const struct pipeline *pipeline,
                      struct step_scratch *scratch, struct step_time *out) {
    struct pipeline_operation op = pipeline_last(pipeline);
    uint64_t until_ns = pipeline->time_ns;
    bool more = true;
    memset(scratch->shares, 0, model->shape.micro_batches * sizeof *scratch->shares);
    while (more) {
        uint64_t start_ns = pipeline_start_ns(pipeline, op);
        uint64_t end_ns = pipeline_end_ns(pipeline, op);
        out->causes_ns[STEP_COMMUNICATION] += until_ns - end_ns;
        step_blame(model, &scratch->layers[scratch->picks[op.micro_batch]], op, end_ns - start_ns,
                   out);
        scratch->shares[op.micro_batch] += end_ns - start_ns;
        until_ns = start_ns;
        more = pipeline_before(pipeline, op, &op);
    }
    out->causes_ns[STEP_COMMUNICATION] += until_ns;
}

static void step_owner(const struct step_time_model *model, const struct step_scratch *scratch,
                       struct step_time *out) {
    uint32_t m = model->shape.micro_batches;
    for (uint32_t i = 0; i < m; i++) {
        if (i == 0 || scratch->shares[i] > out->owner_ns) {
            out->owner_ns = scratch->shares[i];
            out->owner_dp = scratch->picks[i] / m;
            out->owner_index = scratch->picks[i] % m;
        }
    }
}

static void step_stages(const struct step_time_model *model, const struct step_scratch *scratch,
                        struct step_time *out) {
    struct step_spread stages = {0};
    size_t durations = (size_t)model->shape.micro_batches * model->virtual_stages;
    for (uint32_t stage = 0; stage < model->shape.stages; stage++) {
        uint64_t busy_ns = 0;
        for (size_t i = stage; i < durations; i += model->shape.stages) {
            busy_ns += scratch->run.forward[i] + scratch->run.backward[i];
        }
        step_spread_add(&stages, busy_ns);
    }
    out->stage_ppm = step_spread_ppm(&stages);
}

/* What comes on top of the pipeline. */
static void step_total(const struct step_time_model *model, struct step_time *out) {
    const struct step_time_options *options = &model->options;
    uint64_t spread_ns = step_scale(out->pipeline_ns, options->gpu_spread_permille);
    out->causes_ns[STEP_COMMUNICATION] += model->fsdp_ps / PS_PER_NS;
    out->causes_ns[STEP_OTHER] += options->optimizer_ns + spread_ns;
    out->step_ns = out->pipeline_ns + spread_ns + model->fsdp_ps / PS_PER_NS +
                   options->optimizer_ns;
}

int step_time_of(const struct step_time_model *model, const struct step_load *loads, void *memory,
                 struct step_time *out, struct error *error) {
    struct step_scratch *scratch = step_scratch_in(model, memory);
    struct step_time time = {0};
    struct pipeline pipeline;
    step_price(model, loads, scratch);
    pipeline_init(&pipeline, &model->shape, scratch->pipeline);
    for (uint32_t group = 0; group < step_groups(model); group++) {
        int code = step_run(model, group, scratch, &pipeline, error);
        if (code < 0) {
            return code;
        }
        if (pipeline.time_ns > time.pipeline_ns) {
            time.pipeline_ns = pipeline.time_ns;
            time.group = group;
        }
    }
    if (time.group + 1 < step_groups(model)) {
        (void)step_run(model, time.group, scratch, &pipeline, NULL);
    }
    step_ratios(model, loads, scratch, &time);
    step_traffic(model, loads, &time);
    step_stages(model, scratch, &time);
    step_walk(model, &pipeline, scratch, &time);
    step_owner(model, scratch, &time);
    step_total(model, &time);
    u128 all_ns = (u128)time.pipeline_ns * model->options.dp * model->options.pp;
    time.bubble_ppm = all_ns > 0 ? (uint64_t)((all_ns - time.work_ns) * PPM / all_ns) : 0;
    *out = time;
    return 0;
}

int step_time_pipeline(const struct step_time_model *model, const struct step_load *loads,
                       uint32_t group, void *memory, struct pipeline *out, struct error *error) {
    struct step_scratch *scratch = step_scratch_in(model, memory);
    step_price(model, loads, scratch);
    pipeline_init(out, &model->shape, scratch->pipeline);
    return step_run(model, group, scratch, out, error);
}

static int step_check_numbers(const struct step_time_options *options, struct error *error) {
    const struct {
        const char *name;
        uint64_t value;
        uint64_t min;
        uint64_t max;
    } ranges[] = {
        {"dp", options->dp, 1, 1u << 16},
        {"cp", options->cp, 1, 1u << 16},
        {"tp", options->tp, 1, 1u << 16},
        {"node_gpus", options->node_gpus, 1, UINT32_MAX},
        {"vocab", options->vocab, 0, 1u << 28},
        {"node link", options->node.bytes_per_us, 1, UINT32_MAX},
        {"network link", options->network.bytes_per_us, 1, UINT32_MAX},
        {"attention_permille", options->attention_permille, 0, 1000000},
        {"linear_permille", options->linear_permille, 0, 1000000},
        {"backward_attention_permille", options->backward_attention_permille, 0, 100000},
        {"backward_linear_permille", options->backward_linear_permille, 0, 100000},
        {"exposed_tp_permille", options->exposed_tp_permille, 0, PERMILLE},
        {"exposed_cp_permille", options->exposed_cp_permille, 0, PERMILLE},
        {"exposed_pp_permille", options->exposed_pp_permille, 0, PERMILLE},
        {"exposed_fsdp_permille", options->exposed_fsdp_permille, 0, PERMILLE},
        {"gpu_spread_permille", options->gpu_spread_permille, 0, 100000},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max) {
            return error_set(error, -EINVAL,
                             "%s = %" PRIu64 " is out of range; give %" PRIu64 " to %" PRIu64,
                             ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max);
        }
    }
    if (options->micro_batches == 0 || options->micro_batches % options->dp != 0) {
        return error_set(error, -EINVAL,
                         "micro_batches = %" PRIu32 ": not a multiple of dp = %" PRIu32,
                         options->micro_batches, options->dp);
    }
    return 0;
}

static int step_check_sync(const struct step_time_options *options, struct error *error) {
    if (options->sync_replicas == 0) {
        return 0;
    }
    if (options->pp > 1) {
        return error_set(error, -EINVAL,
                         "replicas that meet at every micro-batch need pp = 1, not %" PRIu32
                         "; let them meet once a step",
                         options->pp);
    }
    if (options->dp % options->sync_replicas != 0) {
        return error_set(error, -EINVAL,
                         "groups of %" PRIu32 " replicas: dp = %" PRIu32
                         " is not a multiple of it; choose a divisor",
                         options->sync_replicas, options->dp);
    }
    return 0;
}

static int step_check_layers(const struct step_time_model *model, struct error *error) {
    uint64_t dealt = 0;
    if (model->options.layers != NULL && model->options.layer_count != model->virtual_stages) {
        return error_set(error, -EINVAL,
                         "layers are given for %" PRIu32 " chunks; pp * chunks is %" PRIu32,
                         model->options.layer_count, model->virtual_stages);
    }
    for (uint32_t q = 0; q < model->virtual_stages; q++) {
        if (step_layers(model, q) == 0) {
            return error_set(error, -EINVAL,
                             "%" PRIu32 " layers leave chunk %" PRIu32
                             " empty; take fewer stages or chunks",
                             model->options.shape.layers, q);
        }
        dealt += step_layers(model, q);
    }
    if (dealt != model->options.shape.layers) {
        return error_set(error, -EINVAL,
                         "%" PRIu64 " layers are dealt to chunks, the model has %" PRIu32
                         "; cover all of them once",
                         dealt, model->options.shape.layers);
    }
    return 0;
}

/* Parameters of the fullest stage, gathered and reduced over the data-parallel and context-parallel
 * ranks once a step. */
static void step_derive_fsdp(struct step_time_model *model) {
    const struct step_time_options *options = &model->options;
    for (uint32_t stage = 0; stage < options->pp; stage++) {
        uint32_t layers = 0;
        for (uint32_t q = stage; q < model->virtual_stages; q += options->pp) {
            layers += step_layers(model, q);
        }
        model->stage_layers = layers > model->stage_layers ? layers : model->stage_layers;
    }
    uint64_t ranks = (uint64_t)options->dp * options->cp;
    u128 parameters = ((u128)model->row_flops * model->stage_layers + model->head_flops) / 2;
    u128 bytes = 2 * parameters * ELEMENT_BYTES * (ranks - 1) / ranks / options->tp;
    model->fsdp_bytes = (uint64_t)bytes;
    if (ranks > 1) {
        const struct link_rate *link = step_link(options, ranks * options->tp);
        model->fsdp_ps = step_scale(step_link_ps(link, bytes), options->exposed_fsdp_permille);
    }
}

static void step_derive(struct step_time_model *model) {
    const struct model_options *shape = &model->options.shape;
    uint32_t tp = model->options.tp;
    uint64_t attention = 2 * (uint64_t)shape->head_dim * (shape->q_heads + shape->kv_heads);
    uint32_t kv_heads = shape->kv_heads < tp ? 1 : shape->kv_heads / tp;
    model->row_flops = 2 * (uint64_t)shape->hidden * (attention + 3 * (uint64_t)shape->ffn);
    model->row_bytes = (uint64_t)shape->hidden * ELEMENT_BYTES * ELEMENTWISE_PASSES;
    model->head_flops = 2 * (uint64_t)shape->hidden * model->options.vocab;
    model->kv_bytes = 2 * (uint64_t)kv_heads * shape->head_dim * ELEMENT_BYTES;
    step_derive_fsdp(model);
}

int step_time_init(struct step_time_model *model, const struct step_time_options *options,
                   struct error *error) {
    struct step_time_model made = {.options = *options};
    struct work_model checked;
    int code = step_check_numbers(options, error);
    if (code == 0) {
        code = work_model_init(&checked, &options->shape, options->cp, options->pp, options->tp, 1,
                               error);
    }
    if (code == 0) {
        made.shape = (struct pipeline_shape){
            .schedule = options->schedule,
            .stages = options->pp,
            .micro_batches = options->micro_batches / options->dp,
            .chunks = options->chunks,
            .send_depth = options->send_depth,
        };
        code = pipeline_check(&made.shape, error);
    }
    if (code == 0) {
        made.virtual_stages = options->pp * options->chunks;
        if (options->shape.layers % made.virtual_stages == 0) {
            made.even_layers = options->shape.layers / made.virtual_stages;
        }
        code = step_check_sync(options, error);
    }
    if (code == 0) {
        code = step_check_layers(&made, error);
    }
    if (code == 0) {
        step_derive(&made);
        *model = made;
    }
    return code;
}
