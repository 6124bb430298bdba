/* Whole streams in random worlds, from the first step to the end of the data: what every plan is
 * made of, that every token is delivered exactly once, and that a step follows from its state
 * alone. */
#include "planner/balance.h"
#include "planner_world.h"
#include "sharding/keys.h"
#include "pool_world.h"
#include "splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLDS       800u
#define WORLDS_FULL  50000u /* with BALLAST_TEST_FULL */
#define EPOCHS_MAX   3u
#define STEPS_MAX    20000u
#define STATE_BYTES  65536u
#define TOKENS_LIMIT 2048u /* of one document here */

/* What the stream held when the planner asks for whole parts, and what was delivered. */
struct ledger {
    const struct world *world;
    struct document *parts; /* by stream index; of no use where packing cuts */
    uint64_t *offsets;      /* token offset of each in the stream */
    uint64_t part_count;
    uint8_t *seen;        /* [dataset][epoch][document][token] */
    uint64_t slip_tokens; /* so far: what arrived before it slipped is earlier by less */
};

static uint8_t *ledger_tokens(const struct ledger *ledger, const struct document *document) {
    WORLD_CHECK(ledger->world, document->dataset < WORLD_DATASETS_MAX);
    WORLD_CHECK(ledger->world, document->epoch < EPOCHS_MAX);
    WORLD_CHECK(ledger->world, document->document < WORLD_DOCUMENTS_MAX);
    size_t place = (document->dataset * EPOCHS_MAX + document->epoch) * WORLD_DOCUMENTS_MAX +
                   document->document;
    return ledger->seen + place * TOKENS_LIMIT;
}

static void ledger_read_stream(struct ledger *ledger) {
    const struct document_source *source = &ledger->world->source.source;
    uint32_t limit = plan_part_limit(&ledger->world->options);
    struct plan_state *state = plan_state_create(source->dataset_count, 0);
    uint64_t capacity = 0;
    uint64_t offset = 0;
    struct document part;
    while (source->next(source->context, &state->cursor, limit, &part) == 1) {
        if (ledger->part_count == capacity) {
            capacity = 2 * capacity + 64;
            ledger->parts = realloc(ledger->parts, capacity * sizeof *ledger->parts);
            ledger->offsets = realloc(ledger->offsets, capacity * sizeof *ledger->offsets);
        }
        ledger->parts[ledger->part_count] = part;
        ledger->offsets[ledger->part_count++] = offset;
        offset += part.length;
    }
    plan_state_destroy(state);
}

static void ledger_init(struct ledger *ledger, const struct world *world) {
    *ledger = (struct ledger){.world = world};
    ledger->seen = calloc(WORLD_DATASETS_MAX * EPOCHS_MAX * WORLD_DOCUMENTS_MAX, TOKENS_LIMIT);
    ledger_read_stream(ledger);
}

static void ledger_deinit(struct ledger *ledger) {
    free(ledger->parts);
    free(ledger->offsets);
    free(ledger->seen);
}

/* The n-th part of the stream, not one that looks like it, at the step where it belongs. */
static void ledger_check_identity(struct ledger *ledger, const struct document *document) {
    const struct world *world = ledger->world;
    if (policy_cuts(world->options.policy)) {
        return;
    }
    WORLD_CHECK(world, document->stream_index < ledger->part_count);
    const struct document *part = &ledger->parts[document->stream_index];
    WORLD_CHECK(world, document->dataset == part->dataset && document->epoch == part->epoch);
    WORLD_CHECK(world, document->document == part->document && document->offset == part->offset);
    WORLD_CHECK(world, document->length == part->length);
    WORLD_CHECK(world, document->document_length == part->document_length);
    uint64_t offset = ledger->offsets[document->stream_index];
    uint64_t least = offset / world->options.step_tokens;
    uint64_t most = (offset + ledger->slip_tokens) / world->options.step_tokens;
    WORLD_CHECK(world, least <= document->nominal_step && document->nominal_step <= most);
}

static void ledger_deliver(struct ledger *ledger, const struct document *document) {
    uint8_t *tokens = ledger_tokens(ledger, document);
    uint64_t end = (uint64_t)document->offset + document->length;
    WORLD_CHECK(ledger->world, document->length > 0 && end <= document->document_length);
    WORLD_CHECK(ledger->world, end <= TOKENS_LIMIT);
    for (uint64_t i = document->offset; i < end; i++) {
        WORLD_CHECK(ledger->world, tokens[i] == 0);
        tokens[i] = 1;
    }
    ledger_check_identity(ledger, document);
}

/* Nothing of the stream is missing at its end. */
static void ledger_check_complete(const struct ledger *ledger) {
    for (uint64_t i = 0; i < ledger->part_count; i++) {
        const struct document *part = &ledger->parts[i];
        const uint8_t *tokens = ledger_tokens(ledger, part);
        for (uint32_t j = 0; j < part->length; j++) {
            WORLD_CHECK(ledger->world, tokens[part->offset + j] == 1);
        }
    }
}

static bool stream_has_more(const struct world *world, const struct plan_state *state) {
    const struct document_source *source = &world->source.source;
    struct plan_state *ahead = plan_state_create(source->dataset_count, state->waiting_max);
    struct document part;
    plan_state_copy(ahead, state);
    bool more = source->next(source->context, &ahead->cursor, 1, &part) == 1;
    plan_state_destroy(ahead);
    return more;
}

static void check_row_order(const struct world *world, const struct step_plan *plan,
                            const struct micro_batch *micro_batch) {
    const struct document *documents = &plan->documents[micro_batch->document_begin];
    for (uint32_t i = 1; i < micro_batch->document_count; i++) {
        bool later = documents[i].stream_index > documents[i - 1].stream_index;
        if (world->options.policy == POLICY_PLAIN || world->options.pools.size > 0 ||
            documents[i].length == documents[i - 1].length) {
            WORLD_CHECK(world, later);
        } else {
            WORLD_CHECK(world, documents[i].length < documents[i - 1].length);
        }
    }
}

/* Every row of every document is in one fragment of one rank. */
static void check_shards(const struct world *world, const struct step_plan *plan,
                         const struct micro_batch *micro_batch) {
    static uint8_t rows[256][TOKENS_LIMIT];
    const struct document *documents = &plan->documents[micro_batch->document_begin];
    uint64_t pairs = 0;
    uint64_t pad_rows = 0;
    uint64_t slowest_ns = 0;
    WORLD_CHECK(world, micro_batch->document_count <= 256);
    memset(rows, 0, micro_batch->document_count * sizeof rows[0]);
    for (uint32_t rank = 0; rank < plan->cp; rank++) {
        const struct rank_shard *shard = &plan->shards[micro_batch->shard_begin + rank];
        WORLD_CHECK(world, shard->rows * plan->cp == micro_batch->tokens + micro_batch->pad_tokens);
        uint64_t kv_rows_in = plan->pool_count > 0 ? 0
                              : micro_batch->exchange == EXCHANGE_NEEDED_ONLY
                                  ? keys_needed(plan->fragments + shard->fragment_begin,
                                                shard->fragment_count)
                                  : (plan->cp - 1) * shard->rows;
        WORLD_CHECK(world, shard->kv_rows_in == kv_rows_in);
        uint64_t own = shard->pad_rows;
        for (uint32_t i = 0; i < shard->fragment_count; i++) {
            struct fragment fragment = plan->fragments[shard->fragment_begin + i];
            WORLD_CHECK(world, fragment.document < micro_batch->document_count);
            WORLD_CHECK(world, (uint64_t)fragment.start + fragment.length <=
                                   documents[fragment.document].length);
            for (uint32_t j = 0; j < fragment.length; j++) {
                WORLD_CHECK(world, rows[fragment.document][fragment.start + j]++ == 0);
            }
            own += fragment.length;
            pairs += fragment_pairs(fragment);
        }
        WORLD_CHECK(world, own == shard->rows);
        pad_rows += shard->pad_rows;
        slowest_ns = shard->predicted_ns > slowest_ns ? shard->predicted_ns : slowest_ns;
    }
    for (uint32_t i = 0; i < micro_batch->document_count; i++) {
        pairs -= document_pairs(documents[i].length);
    }
    uint32_t layers = world->options.model.layers;
    uint32_t stage_layers = (layers + plan->pp - 1) / plan->pp;
    WORLD_CHECK(world, pairs == 0 && pad_rows == micro_batch->pad_tokens);
    WORLD_CHECK(world, micro_batch->attention_ns == slowest_ns * stage_layers);
    if (plan->pool_count > 0) {
        WORLD_CHECK(world, micro_batch->choice.layout == LAYOUT_CONTIGUOUS);
        WORLD_CHECK(world, micro_batch->exchange == EXCHANGE_NONE);
    } else {
        WORLD_CHECK(world, plan->cp == 1 || (world->options.layouts.allowed &
                                             1u << micro_batch->choice.layout) != 0);
    }
}

/* Homes are where the fragments are. */
static uint32_t pool_homes(const struct step_plan *plan, const struct micro_batch *micro_batch,
                           uint32_t first_worker, struct pool_run *runs) {
    uint32_t count = 0;
    uint32_t row = 0;
    for (uint32_t rank = 0; rank < plan->cp; rank++) {
        const struct rank_shard *shard = &plan->shards[micro_batch->shard_begin + rank];
        uint32_t rows = (uint32_t)(shard->rows - shard->pad_rows);
        if (rows > 0) {
            runs[count++] = (struct pool_run){row, rows, first_worker + rank};
        }
        row += rows;
    }
    return count;
}

/* The sequences of a pool as the plan's micro-batches have them. */
static void pool_sequences(const struct world *world, const struct step_plan *plan,
                           const struct plan_pool *pool, struct pool_world *made,
                           struct pool_sequence *sequences) {
    static uint32_t lengths[4096];
    static struct pool_run runs[64];
    uint32_t document = 0;
    for (uint32_t i = 0; i < plan->pool_shape.sequences; i++) {
        const struct micro_batch *micro_batch = step_plan_micro_batch(plan, pool->dp_begin + i,
                                                                      pool->ga_index);
        WORLD_CHECK(world, micro_batch != NULL);
        WORLD_CHECK(world, step_plan_pool(plan, pool->dp_begin + i, pool->ga_index) == pool);
        sequences[i] = (struct pool_sequence){
            .lengths = lengths + document,
            .documents = micro_batch->document_count,
            .runs = runs + i * plan->cp,
            .run_count = pool_homes(plan, micro_batch, i * plan->cp, runs + i * plan->cp),
        };
        made->rows[i] = (uint32_t)micro_batch->tokens;
        for (uint32_t j = 0; j < micro_batch->document_count; j++) {
            lengths[document++] = plan->documents[micro_batch->document_begin + j].length;
        }
    }
}

/* Executing what the plan says of a pool computes every pair once. */
static void check_pool(const struct world *world, const struct step_plan *plan,
                       const struct plan_pool *pool) {
    static struct pool_sequence sequences[16];
    static uint32_t rows[16];
    static uint64_t loads[64];
    static struct pool_link links[64];
    const struct pool_shape *shape = &plan->pool_shape;
    struct pool_world made = {
        .pool = {*shape, sequences},
        .tiles = {.pieces = plan->pieces + pool->piece_begin, .piece_count = pool->piece_count},
        .rows = rows,
        .workers = plan->tile_workers + (size_t)pool->piece_begin * shape->head_shards,
        .loads = loads,
        .links = links,
        .transfers = plan->transfers + pool->transfer_begin,
        .transfer_count = pool->transfer_count,
    };
    uint64_t load_max = 0;
    uint64_t load_sum = 0;
    pool_sequences(world, plan, pool, &made, sequences);
    pool_world_sum(&made);
    for (uint32_t w = 0; w < pool_workers(shape); w++) {
        load_max = loads[w] > load_max ? loads[w] : load_max;
        load_sum += loads[w];
    }
    const char *fault = pool_world_fault(&made, true);
    if (fault != NULL) {
        world_fail(world, fault, __FILE__, __LINE__);
    }
    WORLD_CHECK(world, pool->load_max == load_max);
    WORLD_CHECK(world, pool->load_mean == load_sum / pool_workers(shape));
}

static void check_pool_count(const struct world *world, const struct step_plan *plan) {
    uint32_t size = world->options.pools.size;
    WORLD_CHECK(world, plan->pool_count == (size > 0 ? plan->micro_batch_count / size : 0));
    for (uint32_t i = 1; i < plan->pool_count; i++) {
        const struct plan_pool *a = &plan->pools[i - 1];
        const struct plan_pool *b = &plan->pools[i];
        WORLD_CHECK(world, a->ga_index < b->ga_index ||
                               (a->ga_index == b->ga_index && a->dp_begin < b->dp_begin));
    }
}

static void check_micro_batch(const struct world *world, const struct step_plan *plan,
                              const struct micro_batch *micro_batch) {
    const struct plan_options *options = &world->options;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < micro_batch->document_count; i++) {
        tokens += plan->documents[micro_batch->document_begin + i].length;
    }
    uint64_t padded = micro_batch->tokens + micro_batch->pad_tokens;
    WORLD_CHECK(world, micro_batch->tokens == tokens);
    WORLD_CHECK(world, padded <= options->tokens_max);
    WORLD_CHECK(world,
                padded % (2 * options->cp) == 0 && padded % (options->cp * options->tp) == 0);
    if (micro_batch->document_count == 0) {
        WORLD_CHECK(world, micro_batch->pad_tokens == plan_row_unit(options));
    } else if (policy_cuts(options->policy)) {
        WORLD_CHECK(world, padded == options->window);
    } else {
        WORLD_CHECK(world, micro_batch->pad_tokens < plan_row_unit(options));
    }
    check_row_order(world, plan, micro_batch);
    check_shards(world, plan, micro_batch);
}

static int by_stream_index(const void *a, const void *b) {
    const struct document *x = a;
    const struct document *y = b;
    if (x->stream_index != y->stream_index) {
        return x->stream_index < y->stream_index ? -1 : 1;
    }
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static uint64_t original_ppm(const struct step_plan *plan) {
    static struct document documents[4096];
    static uint32_t lengths[4096];
    memcpy(documents, plan->documents, plan->document_count * sizeof *documents);
    qsort(documents, plan->document_count, sizeof *documents, by_stream_index);
    for (uint32_t i = 0; i < plan->document_count; i++) {
        lengths[i] = documents[i].length;
    }
    return balance_of_spans(lengths, plan->document_count, plan->micro_batch_count);
}

/* Ratios as plan.h defines them, and the bound below what was reached. */
static void check_balance(const struct world *world, const struct step_plan *plan,
                          const struct plan_state *after) {
    const struct balance *balance = &plan->balance;
    uint32_t micro_batches = plan->micro_batch_count;
    uint64_t work_max = 0;
    uint64_t work_sum = 0;
    for (uint32_t m = 0; m < micro_batches; m++) {
        uint64_t work = plan->micro_batches[m].work_ns;
        work_max = work > work_max ? work : work_max;
        work_sum += work;
    }
    uint64_t token_steps = 0;
    for (uint32_t i = 0; i < after->cursor.dataset_count; i++) {
        token_steps += after->delays[i].delay_token_steps;
    }
    WORLD_CHECK(world, balance->total_ppm == work_max * micro_batches * 1000000 / work_sum);
    if (world->options.policy != POLICY_WLB_LEVEL) {
        WORLD_CHECK(world, balance->predicted_ppm == balance->total_ppm);
    }
    WORLD_CHECK(world, 1000000 <= balance->bound_ppm && balance->bound_ppm <= balance->total_ppm);
    WORLD_CHECK(world, balance->attention_ppm >= 1000000 && balance->context_ppm >= 1000000);
    WORLD_CHECK(world, balance->original_ppm == original_ppm(plan));
    WORLD_CHECK(world, balance->delay_mean_milli == token_steps * 1000 / after->delivered_tokens);
    if (world->options.policy == POLICY_PLAIN && world->options.documents_max >= WORLD_NO_LIMIT) {
        WORLD_CHECK(world, balance->delay_max == 0);
    }
}

/* The histogram is that of the delays that were summed. */
static void check_delays(const struct world *world, const struct plan_state *after) {
    for (uint32_t i = 0; i < after->cursor.dataset_count; i++) {
        const struct delay_counts *delays = &after->delays[i];
        uint64_t tokens = 0;
        uint64_t token_steps = 0;
        uint64_t largest = 0;
        for (uint64_t delay = 0; delay < DELAY_BUCKETS; delay++) {
            tokens += delays->tokens_by_delay[delay];
            token_steps += delays->tokens_by_delay[delay] * delay;
            largest = delays->tokens_by_delay[delay] > 0 ? delay : largest;
        }
        WORLD_CHECK(world, tokens == delays->delivered_tokens);
        if (delays->delay_max < DELAY_BUCKETS - 1) {
            WORLD_CHECK(world, largest == delays->delay_max);
            WORLD_CHECK(world, token_steps == delays->delay_token_steps);
        } else {
            WORLD_CHECK(world, largest == DELAY_BUCKETS - 1);
            WORLD_CHECK(world, token_steps <= delays->delay_token_steps);
        }
    }
}

/* An empty micro-batch means that fewer documents than micro-batches were left. */
static void check_full(const struct world *world, const struct step_plan *plan,
                       const struct plan_state *after) {
    bool empty = false;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        empty = empty || plan->micro_batches[m].document_count == 0;
    }
    if (empty) {
        bool cut = policy_cuts(world->options.policy) && plan_batches(&world->options) == 0;
        bool few = cut || plan->document_count < plan->micro_batch_count;
        WORLD_CHECK(world, few && after->waiting_count == 0 && !stream_has_more(world, after));
    }
}

static void check_labels(const struct world *world, const struct step_plan *plan) {
    uint64_t labels = 0;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        tokens += document->length;
        labels += document->length;
        labels -= document->offset + document->length == document->document_length;
    }
    WORLD_CHECK(world, plan->tokens == tokens && plan->label_tokens == labels);
    WORLD_CHECK(world, plan->loss_denominator == (world->options.loss_denominator == LOSS_CONSTANT
                                                      ? world->options.step_tokens
                                                      : labels));
}

/* The front is what the clock says; ahead of it is what was delivered early, and only that. */
static void check_front(const struct world *world, const struct plan_state *before,
                        const struct plan_state *after) {
    uint64_t end = after->stream_parts;
    uint64_t early = 0;
    for (uint32_t i = 0; i < after->run_count; i++) {
        WORLD_CHECK(world, after->runs[i].index > end && after->runs[i].count > 0);
        end = after->runs[i].index + after->runs[i].count;
    }
    for (uint32_t i = 0; i < after->cursor.dataset_count; i++) {
        early += after->delays[i].early_tokens;
    }
    WORLD_CHECK(world, (early > 0) == (after->run_count > 0));
    WORLD_CHECK(world, after->stream_tokens >= before->stream_tokens);
    if (world->options.policy != POLICY_WLB_LEVEL) {
        WORLD_CHECK(world, after->run_count == 0 && after->slip_tokens == 0);
    } else if (world->options.waiting_max >= WORLD_NO_LIMIT && stream_has_more(world, after)) {
        WORLD_CHECK(world, after->stream_tokens >= after->target_tokens);
        WORLD_CHECK(world,
                    after->target_tokens <= after->delivered_tokens + world->options.step_tokens);
    }
    for (uint32_t i = 0; i < after->waiting_count; i++) {
        const struct document *part = &after->waiting[i].document;
        if (world->options.policy == POLICY_WLB_LEVEL && !after->draining && early > 0) {
            WORLD_CHECK(world, part->nominal_step <= before->step);
        }
    }
}

static void check_state(const struct world *world, const struct plan_state *before,
                        const struct plan_state *after, const struct step_plan *plan) {
    const struct plan_options *options = &world->options;
    uint64_t leftovers = 0;
    for (uint32_t i = 0; i < after->waiting_count; i++) {
        const struct waiting *part = &after->waiting[i];
        leftovers += part->kind == WAITING_LEFT_OVER;
        if (options->policy != POLICY_WLB_LEVEL && part->kind == WAITING_IN_QUEUE &&
            !after->draining) {
            WORLD_CHECK(world, before->step < part->document.nominal_step + options->bands.age_max);
            WORLD_CHECK(world, options->policy == POLICY_WLB_BANDS);
        }
    }
    WORLD_CHECK(world, plan_state_conserves(after));
    WORLD_CHECK(world, after->waiting_count <= options->waiting_max);
    WORLD_CHECK(world, after->step == before->step + 1);
    WORLD_CHECK(world, after->target_tokens == before->target_tokens + options->step_tokens -
                                                   (after->slip_tokens - before->slip_tokens));
    WORLD_CHECK(world,
                plan->release.waiting_tokens == plan_state_waiting_tokens(after, UINT32_MAX));
    WORLD_CHECK(world, plan->release.leftovers == leftovers);
    WORLD_CHECK(world, plan->release.early + plan->release.forced <= plan->release.outliers);
    WORLD_CHECK(world, plan->tokens == after->delivered_tokens - before->delivered_tokens);
}

static void check_step(const struct world *world, const struct plan_state *before,
                       const struct plan_state *after, const struct step_plan *plan) {
    const struct plan_options *options = &world->options;
    uint32_t share = options->micro_batches / options->dp;
    WORLD_CHECK(world, plan->step == before->step);
    char name[POLICY_NAME_BYTES];
    policy_pool_name(options->policy, options->pools.size, name);
    WORLD_CHECK(world, strcmp(plan->policy, name) == 0);
    WORLD_CHECK(world, plan->micro_batch_count == options->micro_batches);
    WORLD_CHECK(world, 0 < plan->document_count);
    WORLD_CHECK(world, plan->document_count <= options->documents_max);
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[m];
        WORLD_CHECK(world, micro_batch->dp == m / share && micro_batch->index == m % share);
        check_micro_batch(world, plan, micro_batch);
    }
    uint8_t digest[PLAN_DIGEST_BYTES];
    step_plan_digest(plan, digest);
    WORLD_CHECK(world, memcmp(digest, plan->digest, sizeof digest) == 0);
    for (uint32_t i = 0; i < plan->pool_count; i++) {
        check_pool(world, plan, &plan->pools[i]);
    }
    check_pool_count(world, plan);
    check_full(world, plan, after);
    check_labels(world, plan);
    check_balance(world, plan, after);
    check_delays(world, after);
    check_state(world, before, after, plan);
    check_front(world, before, after);
}

static bool plans_equal(const struct step_plan *a, const struct step_plan *b) {
    return step_plan_bytes(a) == step_plan_bytes(b) &&
           memcmp(a->digest, b->digest, sizeof a->digest) == 0 &&
           memcmp(&a->balance, &b->balance, sizeof a->balance) == 0 &&
           memcmp(&a->release, &b->release, sizeof a->release) == 0 &&
           memcmp(a->documents, b->documents, a->document_count * sizeof *a->documents) == 0 &&
           memcmp(a->shards, b->shards, a->micro_batch_count * a->cp * sizeof *a->shards) == 0 &&
           memcmp(a->fragments, b->fragments, a->fragment_count * sizeof *a->fragments) == 0;
}

/* A state that went through its bytes, in a planner that never saw the steps before. */
static struct plan_state *resumed(const struct world *world, struct planner *planner,
                                  const struct plan_state *state) {
    static uint8_t bytes[STATE_BYTES];
    static uint8_t again[STATE_BYTES];
    size_t count = plan_state_encode(state, bytes, sizeof bytes);
    struct plan_state *decoded = planner_state_create(planner);
    struct error error = {0};
    WORLD_CHECK(world, count <= sizeof bytes);
    WORLD_CHECK(world, plan_state_decode(decoded, bytes, count, &error) == 0);
    WORLD_CHECK(world, plan_state_encode(decoded, again, sizeof again) == count);
    WORLD_CHECK(world, memcmp(bytes, again, count) == 0);
    if (planner_check_state(planner, decoded, &error) != 0) {
        world_fail(world, error.text, __FILE__, __LINE__);
    }
    return decoded;
}

static void check_again(const struct world *world, const struct plan_state *before,
                        const struct plan_state *after, const struct step_plan *plan) {
    struct planner *planner = planner_create(&world->options, &world->source.source, NULL);
    struct plan_state *decoded = resumed(world, planner, before);
    struct plan_state *next = planner_state_create(planner);
    struct step_plan *again;
    WORLD_CHECK(world, plan_step(planner, decoded, next, &again, NULL) == 1);
    WORLD_CHECK(world, plans_equal(plan, again));
    static uint8_t bytes[STATE_BYTES];
    static uint8_t other[STATE_BYTES];
    size_t count = plan_state_encode(after, bytes, sizeof bytes);
    WORLD_CHECK(world, plan_state_encode(next, other, sizeof other) == count);
    WORLD_CHECK(world, memcmp(bytes, other, count) == 0);
    step_plan_destroy(again);
    plan_state_destroy(next);
    plan_state_destroy(decoded);
    planner_destroy(planner);
}

/* The same planner plans a step of another time in between, as for a rank that stands further back:
 * what it remembers of that is not what comes next. */
static void disturb(struct planner *planner, const struct plan_state *first, uint64_t *dice) {
    struct plan_state *states[] = {planner_state_create(planner), planner_state_create(planner)};
    struct step_plan *plan;
    plan_state_copy(states[0], first);
    uint32_t steps = splitmix_between(dice, 1, 3);
    for (uint32_t i = 0; i < steps; i++) {
        if (plan_step(planner, states[i % 2], states[1 - i % 2], &plan, NULL) != 1) {
            break;
        }
        step_plan_destroy(plan);
    }
    plan_state_destroy(states[0]);
    plan_state_destroy(states[1]);
}

static void check_end(const struct world *world, struct planner *planner, struct plan_state *state,
                      struct plan_state *next) {
    struct step_plan *plan = NULL;
    WORLD_CHECK(world, plan_step(planner, state, next, &plan, NULL) == 0 && plan == NULL);
    WORLD_CHECK(world, state->waiting_count == 0 && !state->draining);
    WORLD_CHECK(world, !stream_has_more(world, state));
    uint64_t delivered = 0;
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        const struct dataset_cursor *cursor = &state->cursor.datasets[i];
        WORLD_CHECK(world, state->delays[i].delivered_tokens ==
                               cursor->arrived_tokens - cursor->dropped_tokens);
        delivered += state->delays[i].delivered_tokens;
    }
    WORLD_CHECK(world, state->delivered_tokens == delivered);
}

static void run_world(uint64_t seed, void (*make)(struct world *world, uint64_t seed)) {
    static struct world world;
    make(&world, seed);
    struct ledger ledger;
    ledger_init(&ledger, &world);
    struct planner *planner = planner_create(&world.options, &world.source.source, NULL);
    struct plan_state *now = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    struct plan_state *first = planner_state_create(planner);
    struct step_plan *plan;
    uint64_t dice = seed;
    uint32_t steps = 0;
    while (plan_step(planner, now, next, &plan, NULL) == 1) {
        check_step(&world, now, next, plan);
        ledger.slip_tokens = next->slip_tokens;
        for (uint32_t i = 0; i < plan->document_count; i++) {
            ledger_deliver(&ledger, &plan->documents[i]);
        }
        if (splitmix_between(&dice, 0, 3) == 0) {
            check_again(&world, now, next, plan);
        }
        if (splitmix_between(&dice, 0, 3) == 0) {
            disturb(planner, first, &dice);
        }
        step_plan_destroy(plan);
        struct plan_state *swapped = now;
        now = next;
        next = swapped;
        WORLD_CHECK(&world, ++steps < STEPS_MAX);
    }
    check_end(&world, planner, now, next);
    ledger_check_complete(&ledger);
    plan_state_destroy(first);
    plan_state_destroy(now);
    plan_state_destroy(next);
    planner_destroy(planner);
    ledger_deinit(&ledger);
}

static void every_token_is_delivered_exactly_once_in_plans_that_hold_together(void **state) {
    (void)state;
    uint64_t worlds = getenv("BALLAST_TEST_FULL") != NULL ? WORLDS_FULL : WORLDS;
    for (uint64_t seed = 1; seed <= worlds; seed++) {
        run_world(seed, world_make);
        run_world(seed, world_make_level);
        run_world(seed, world_make_fixed);
        run_world(seed, world_make_pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_is_delivered_exactly_once_in_plans_that_hold_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
