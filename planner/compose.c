/* compose: from documents by micro-batch to the finished plan.
 *
 * Two passes: the first deals micro-batches to replicas and chooses layouts, after which every
 * array of the plan has a known size; the second fills them. */
#include "planner/step.h"

#include "packer/order.h"
#include "planner/balance.h"
#include "planner/replicas.h"
#include "sharding/keys.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PS_PER_NS 1000u

static uint32_t compose_documents(const struct planner *p, uint32_t micro_batch) {
    return p->row_begins[micro_batch + 1] - p->row_begins[micro_batch];
}

static uint64_t compose_pad(const struct planner *p, uint64_t tokens) {
    uint64_t unit = p->row_unit;
    if (tokens == 0) {
        return unit;
    }
    uint64_t padded = policy_cuts(p->options.policy) ? p->options.window
                                                     : (tokens + unit - 1) / unit * unit;
    assert(tokens <= padded && padded <= p->options.tokens_max && padded % unit == 0);
    return padded - tokens;
}

struct packed_sequence compose_sequence(const struct planner *p, uint32_t micro_batch) {
    struct packed_sequence sequence = {
        .lengths = p->lengths + p->row_begins[micro_batch],
        .documents = compose_documents(p, micro_batch),
    };
    for (uint32_t i = 0; i < sequence.documents; i++) {
        sequence.tokens += sequence.lengths[i];
    }
    sequence.pad_tokens = compose_pad(p, sequence.tokens);
    return sequence;
}

static void compose_price(struct planner *p) {
    for (uint32_t m = 0; m < p->options.micro_batches; m++) {
        p->bin_works[m] = 0;
        for (uint32_t row = p->row_begins[m]; row < p->row_begins[m + 1]; row++) {
            p->lengths[row] = p->rows[row].document.length;
            p->works[row] = work_of(&p->model, p->lengths[row]);
            p->bin_works[m] += p->works[row];
        }
    }
}

static void compose_deal(struct planner *p) {
    uint32_t micro_batches = p->options.micro_batches;
    if (p->options.pools.size > 0) {
        pools_deal(p);
    } else if (p->options.policy == POLICY_PLAIN) {
        replicas_deal_in_order(micro_batches, p->options.dp, p->slots);
    } else {
        replicas_deal(p->bin_works, micro_batches, p->options.dp, p->bin_order, p->replica_heap,
                      p->replica_taken, p->replica_loads, p->slots);
    }
}

/* Chooses every micro-batch's layout; returns the fragments of all. */
static uint64_t compose_layouts(struct planner *p) {
    uint64_t fragments = 0;
    for (uint32_t m = 0; m < p->options.micro_batches; m++) {
        struct packed_sequence sequence = compose_sequence(p, m);
        struct layout_choice *choice = &p->choices[m];
        uint64_t *rank_ps = p->rank_ps + (size_t)m * p->options.cp;
        if (p->options.pools.size > 0) {
            layout_settle(LAYOUT_CONTIGUOUS, &sequence, &p->model.tiles, &p->dealer, rank_ps,
                          choice);
        } else {
            layout_select(&p->options.layouts, &sequence, &p->model.tiles, &p->dealer, rank_ps,
                          choice);
        }
        fragments += layout_chosen(choice)->fragments;
    }
    return fragments;
}

static struct step_plan *compose_create(struct planner *p, uint64_t fragments) {
    const struct plan_options *options = &p->options;
    struct plan_counts counts = {
        .micro_batches = options->micro_batches,
        .cp = options->cp,
        .documents = p->row_begins[options->micro_batches],
        .fragments = (uint32_t)fragments,
    };
    struct step_plan *plan = NULL;
    if (options->pools.size > 0) {
        pools_place(p, &counts);
    }
    if (fragments <= UINT32_MAX) {
        plan = step_plan_create_pooled(&counts);
    }
    if (plan != NULL) {
        plan->step = p->after->step;
        plan->dp = options->dp;
        plan->pp = options->pp;
        plan->tp = options->tp;
        plan->profiled = options->model.profile.used;
        memcpy(plan->profile_hash, options->model.profile.hash, sizeof plan->profile_hash);
        policy_pool_name(options->policy, options->pools.size, plan->policy);
    }
    return plan;
}

static enum exchange compose_exchange(const struct planner *p, enum layout layout) {
    return p->options.pools.size > 0     ? EXCHANGE_NONE
           : layout == LAYOUT_ULYSSES    ? EXCHANGE_ALL_TO_ALL
           : p->options.keys_needed_only ? EXCHANGE_NEEDED_ONLY
                                         : EXCHANGE_ALL_GATHER;
}

/* Rank `rank`'s fragments of what was dealt, at plan->fragments[begin]. */
static struct rank_shard compose_shard(struct planner *p, struct step_plan *plan,
                                       const struct micro_batch *micro_batch, uint32_t rank,
                                       uint32_t begin) {
    uint32_t cp = p->options.cp;
    struct rank_shard shard = {
        .fragment_begin = begin,
        .rows = (micro_batch->tokens + micro_batch->pad_tokens) / cp,
    };
    const struct fragment *fragments = layout_dealt(&p->dealer, rank, &shard.fragment_count);
    uint64_t rows = 0;
    assert(shard.fragment_count <= plan->fragment_count - begin);
    for (uint32_t i = 0; i < shard.fragment_count; i++) {
        plan->fragments[begin + i] = fragments[i];
        rows += fragments[i].length;
        shard.pairs += fragment_pairs(fragments[i]);
    }
    assert(rows <= shard.rows);
    shard.pad_rows = shard.rows - rows;
    if (micro_batch->exchange == EXCHANGE_ALL_GATHER) {
        shard.kv_rows_in = (cp - 1) * shard.rows;
    } else if (micro_batch->exchange == EXCHANGE_NEEDED_ONLY) {
        shard.kv_rows_in = keys_needed(fragments, shard.fragment_count);
    }
    return shard;
}

static void compose_micro_batch(struct planner *p, struct step_plan *plan, uint32_t m,
                                uint32_t document_begin, uint32_t *fragment_begin) {
    uint32_t cp = p->options.cp;
    uint32_t slot = p->slots[m];
    uint32_t replica_share = plan->micro_batch_count / plan->dp;
    struct packed_sequence sequence = compose_sequence(p, m);
    struct micro_batch *out = &plan->micro_batches[slot];
    *out = (struct micro_batch){
        .dp = slot / replica_share,
        .index = slot % replica_share,
        .document_begin = document_begin,
        .document_count = sequence.documents,
        .shard_begin = slot * cp,
        .exchange = compose_exchange(p, p->choices[m].layout),
        .tokens = sequence.tokens,
        .pad_tokens = sequence.pad_tokens,
        .work_ns = p->bin_works[m],
        .attention_ns = layout_chosen(&p->choices[m])->slowest_ps / PS_PER_NS *
                        p->model.stage_layers,
        .other_ns = work_other_ns(&p->model, (sequence.tokens + sequence.pad_tokens) / cp),
        .choice = p->choices[m],
    };
    for (uint32_t i = 0; i < sequence.documents; i++) {
        plan->documents[document_begin + i] = p->rows[p->row_begins[m] + i].document;
    }
    layout_begin(&p->dealer, &sequence, &p->model.tiles);
    bool dealt = layout_deal(&p->dealer, out->choice.layout, layout_chosen(&out->choice)->level);
    assert(dealt);
    for (uint32_t rank = 0; rank < cp; rank++) {
        struct rank_shard *shard = &plan->shards[out->shard_begin + rank];
        *shard = compose_shard(p, plan, out, rank, *fragment_begin);
        shard->predicted_ns = p->rank_ps[(size_t)m * cp + rank] / PS_PER_NS;
        *fragment_begin += shard->fragment_count;
    }
}

/* Micro-batches in plan order, so that documents and fragments lie in it too. */
static void compose_fill(struct planner *p, struct step_plan *plan) {
    uint32_t document_begin = 0;
    uint32_t fragment_begin = 0;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        p->bin_order[p->slots[m]] = m;
    }
    for (uint32_t slot = 0; slot < plan->micro_batch_count; slot++) {
        uint32_t m = p->bin_order[slot];
        compose_micro_batch(p, plan, m, document_begin, &fragment_begin);
        document_begin += compose_documents(p, m);
    }
    assert(document_begin == plan->document_count && fragment_begin == plan->fragment_count);
}

/* Totals of the plan, and `after` as the next step will find it. */
static void compose_account(struct planner *p, struct step_plan *plan) {
    struct plan_state *after = p->after;
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        plan->tokens += document->length;
        plan->label_tokens += document->length - (document_is_last_part(document) ? 1 : 0);
        delay_counts_add(&after->delays[document->dataset], document, after->step);
        after->delivered_tokens += document->length;
    }
    plan->loss_denominator = p->options.loss_denominator == LOSS_CONSTANT ? p->options.step_tokens
                                                                          : plan->label_tokens;
    after->step++;
    after->target_tokens += p->options.step_tokens - p->slip_tokens;
    after->slip_tokens += p->slip_tokens;
    for (uint32_t i = 0; i < after->waiting_count; i++) {
        p->release.waiting_tokens += after->waiting[i].document.length;
        p->release.leftovers += after->waiting[i].kind == WAITING_LEFT_OVER;
    }
    plan->release = p->release;
}

static uint64_t compose_attention_ppm(struct planner *p) {
    for (uint32_t m = 0; m < p->options.micro_batches; m++) {
        p->loads[m] = 0;
        for (uint32_t row = p->row_begins[m]; row < p->row_begins[m + 1]; row++) {
            p->loads[m] += document_pairs(p->lengths[row]);
        }
    }
    return balance_of(p->loads, p->options.micro_batches);
}

/* Rows in reading order into order[]; pieces of one part lie in theirs already. */
static void compose_order(struct planner *p, uint32_t documents) {
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    for (uint32_t i = 0; i < documents; i++) {
        uint64_t index = p->rows[i].document.stream_index;
        first = index < first ? index : first;
        last = index > last ? index : last;
    }
    for (uint32_t i = 0; i < documents; i++) {
        uint64_t before = last - p->rows[i].document.stream_index;
        p->keys[i] = before;
        p->indexes[i] = (uint32_t)before;
        p->order[i] = i;
    }
    if (last - first <= UINT32_MAX) {
        order_by_length(p->indexes, documents, p->pack_scratch, p->order);
    } else {
        order_by_work(p->keys, p->order, documents);
    }
}

static uint64_t compose_original_ppm(struct planner *p, uint32_t documents) {
    compose_order(p, documents);
    for (uint32_t i = 0; i < documents; i++) {
        p->indexes[i] = p->lengths[p->order[i]];
    }
    return balance_of_spans(p->indexes, documents, p->options.micro_batches);
}

static uint64_t compose_context_ppm(const struct step_plan *plan) {
    unsigned __int128 weighted = 0;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[m];
        const struct rank_shard *shards = &plan->shards[micro_batch->shard_begin];
        uint64_t max = 0;
        uint64_t sum = 0;
        for (uint32_t rank = 0; rank < plan->cp; rank++) {
            max = shards[rank].predicted_ns > max ? shards[rank].predicted_ns : max;
            sum += shards[rank].predicted_ns;
        }
        weighted += (unsigned __int128)balance_ppm(max, sum, plan->cp) * micro_batch->tokens;
    }
    return plan->tokens > 0 ? (uint64_t)(weighted / plan->tokens) : PPM;
}

static void compose_balance(struct planner *p, struct step_plan *plan) {
    struct balance *balance = &plan->balance;
    balance->attention_ppm = compose_attention_ppm(p);
    balance->total_ppm = balance_of(p->bin_works, p->options.micro_batches);
    balance->predicted_ppm = p->predicted_ppm > 0 ? p->predicted_ppm : balance->total_ppm;
    balance->bound_ppm = balance_bound(p->works, plan->document_count, p->options.micro_batches,
                                       p->pack_scratch);
    balance->original_ppm = compose_original_ppm(p, plan->document_count);
    balance->context_ppm = compose_context_ppm(plan);
    unsigned __int128 token_steps = 0;
    for (uint32_t i = 0; i < p->after->cursor.dataset_count; i++) {
        const struct delay_counts *delays = &p->after->delays[i];
        token_steps += delays->delay_token_steps;
        if (delays->delay_max > balance->delay_max) {
            balance->delay_max = delays->delay_max;
        }
    }
    balance->delay_mean_milli = (uint64_t)(token_steps * 1000 / p->after->delivered_tokens);
}

struct step_plan *compose_plan(struct planner *planner) {
    if (planner->options.pools.size > 0) {
        pools_order_rows(planner);
    }
    compose_price(planner);
    compose_deal(planner);
    struct step_plan *plan = compose_create(planner, compose_layouts(planner));
    if (plan == NULL) {
        return NULL;
    }
    compose_fill(planner, plan);
    if (planner->options.pools.size > 0) {
        pools_fill(planner, plan);
    }
    compose_account(planner, plan);
    compose_balance(planner, plan);
    step_plan_digest(plan, plan->digest);
    return plan;
}
