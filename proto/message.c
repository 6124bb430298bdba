/* message: plans, see message.h. */
#include "proto/message.h"

void *message_create(struct arena *arena, const ProtobufCMessageDescriptor *type) {
    ProtobufCMessage *message = arena_alloc(arena, type->sizeof_message);
    if (message != NULL) {
        protobuf_c_message_init(type, message);
    }
    return message;
}

static ProtobufCBinaryData message_bytes(const uint8_t *bytes, size_t count) {
    return (ProtobufCBinaryData){.len = count, .data = (uint8_t *)bytes};
}

Ballast__V1__Document *message_document(struct arena *arena, const struct document *document) {
    Ballast__V1__Document *out = message_create(arena, &ballast__v1__document__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->dataset = document->dataset;
    out->document = document->document;
    out->offset = document->offset;
    out->length = document->length;
    out->nominal_step = document->nominal_step;
    out->epoch = document->epoch;
    out->document_length = document->document_length;
    return out;
}

static Ballast__V1__Fragment *message_fragment(struct arena *arena,
                                               const struct fragment *fragment) {
    Ballast__V1__Fragment *out = message_create(arena, &ballast__v1__fragment__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->document = fragment->document;
    out->start = fragment->start;
    out->length = fragment->length;
    return out;
}

static bool message_fragments(struct arena *arena, const struct fragment *fragments, uint32_t count,
                              Ballast__V1__RankShard *out) {
    out->fragments = arena_array(arena, count, sizeof *out->fragments);
    if (out->fragments == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        out->fragments[i] = message_fragment(arena, &fragments[i]);
        if (out->fragments[i] == NULL) {
            return false;
        }
    }
    out->n_fragments = count;
    return true;
}

static Ballast__V1__RankShard *message_rank_shard(struct arena *arena, const struct step_plan *plan,
                                                  const struct rank_shard *shard, bool fragments) {
    Ballast__V1__RankShard *out = message_create(arena, &ballast__v1__rank_shard__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->rows = shard->rows;
    out->pad_rows = shard->pad_rows;
    out->predicted_ns = shard->predicted_ns;
    out->pairs = shard->pairs;
    out->kv_rows_in = shard->kv_rows_in;
    if (fragments && !message_fragments(arena, &plan->fragments[shard->fragment_begin],
                                        shard->fragment_count, out)) {
        return NULL;
    }
    return out;
}

static bool message_ranks(struct arena *arena, const struct step_plan *plan,
                          const struct micro_batch *micro_batch, bool fragments,
                          Ballast__V1__Sharding *out) {
    out->ranks = arena_array(arena, plan->cp, sizeof *out->ranks);
    if (out->ranks == NULL) {
        return false;
    }
    for (uint32_t cp = 0; cp < plan->cp; cp++) {
        const struct rank_shard *shard = &plan->shards[micro_batch->shard_begin + cp];
        out->ranks[cp] = message_rank_shard(arena, plan, shard, fragments);
        if (out->ranks[cp] == NULL) {
            return false;
        }
    }
    out->n_ranks = plan->cp;
    return true;
}

static bool message_candidates(struct arena *arena, const struct layout_choice *choice,
                               Ballast__V1__Sharding *out) {
    out->candidates = arena_array(arena, choice->candidate_count, sizeof *out->candidates);
    if (out->candidates == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < choice->candidate_count; i++) {
        Ballast__V1__Candidate *candidate = message_create(arena,
                                                           &ballast__v1__candidate__descriptor);
        if (candidate == NULL) {
            return false;
        }
        candidate->layout = (Ballast__V1__Layout)choice->candidates[i].layout;
        candidate->slowest_ns = choice->candidates[i].slowest_ps / 1000;
        candidate->fragments = choice->candidates[i].fragments;
        out->candidates[i] = candidate;
    }
    out->n_candidates = choice->candidate_count;
    return true;
}

static Ballast__V1__Sharding *message_sharding(struct arena *arena, const struct step_plan *plan,
                                               const struct micro_batch *micro_batch,
                                               bool fragments) {
    Ballast__V1__Sharding *out = message_create(arena, &ballast__v1__sharding__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->layout = (Ballast__V1__Layout)micro_batch->choice.layout;
    out->exchange = (Ballast__V1__Exchange)micro_batch->exchange;
    if (!message_ranks(arena, plan, micro_batch, fragments, out) ||
        !message_candidates(arena, &micro_batch->choice, out)) {
        return NULL;
    }
    return out;
}

static bool message_documents(struct arena *arena, const struct document *documents, uint32_t count,
                              Ballast__V1__MicroBatch *out) {
    out->documents = arena_array(arena, count, sizeof *out->documents);
    if (out->documents == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        out->documents[i] = message_document(arena, &documents[i]);
        if (out->documents[i] == NULL) {
            return false;
        }
    }
    out->n_documents = count;
    return true;
}

Ballast__V1__MicroBatch *message_micro_batch(struct arena *arena, const struct step_plan *plan,
                                             uint32_t micro_batch, bool fragments) {
    const struct micro_batch *from = &plan->micro_batches[micro_batch];
    Ballast__V1__MicroBatch *out = message_create(arena, &ballast__v1__micro_batch__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->dp = from->dp;
    out->index = from->index;
    out->tokens = from->tokens;
    out->pad_tokens = from->pad_tokens;
    out->work_ns = from->work_ns;
    out->attention_ns = from->attention_ns;
    out->other_ns = from->other_ns;
    out->sharding = message_sharding(arena, plan, from, fragments);
    if (out->sharding == NULL || !message_documents(arena, &plan->documents[from->document_begin],
                                                    from->document_count, out)) {
        return NULL;
    }
    return out;
}

Ballast__V1__Balance *message_balance(struct arena *arena, const struct balance *balance) {
    Ballast__V1__Balance *out = message_create(arena, &ballast__v1__balance__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->attention_ppm = balance->attention_ppm;
    out->total_ppm = balance->total_ppm;
    out->predicted_ppm = balance->predicted_ppm;
    out->bound_ppm = balance->bound_ppm;
    out->context_ppm = balance->context_ppm;
    out->original_ppm = balance->original_ppm;
    out->delay_mean_milli = balance->delay_mean_milli;
    out->delay_max = balance->delay_max;
    return out;
}

Ballast__V1__Release *message_release(struct arena *arena, const struct release *release) {
    Ballast__V1__Release *out = message_create(arena, &ballast__v1__release__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->allowance_ppm = release->allowance_ppm;
    out->urgency_ppm = release->urgency_ppm;
    out->outliers = release->outliers;
    out->early = release->early;
    out->forced = release->forced;
    out->waiting_tokens = release->waiting_tokens;
    out->leftovers = release->leftovers;
    return out;
}

static bool message_micro_batches(struct arena *arena, const struct step_plan *plan, uint32_t first,
                                  uint32_t count, bool fragments, Ballast__V1__StepPlan *out) {
    uint32_t rest = first < plan->micro_batch_count ? plan->micro_batch_count - first : 0;
    count = count < rest ? count : rest;
    out->micro_batches = arena_array(arena, count, sizeof *out->micro_batches);
    if (out->micro_batches == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        out->micro_batches[i] = message_micro_batch(arena, plan, first + i, fragments);
        if (out->micro_batches[i] == NULL) {
            return false;
        }
    }
    out->n_micro_batches = count;
    return true;
}

Ballast__V1__StepPlan *message_step_plan(struct arena *arena, const struct step_plan *plan,
                                         uint32_t first, uint32_t count, bool fragments) {
    Ballast__V1__StepPlan *out = message_create(arena, &ballast__v1__step_plan__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->step = plan->step;
    out->policy = (char *)plan->policy;
    out->digest = message_bytes(plan->digest, sizeof plan->digest);
    out->loss_denominator = plan->loss_denominator;
    out->label_tokens = plan->label_tokens;
    out->plan_ns = plan->plan_ns;
    if (plan->profiled) {
        out->profile_hash = message_bytes(plan->profile_hash, sizeof plan->profile_hash);
    }
    out->balance = message_balance(arena, &plan->balance);
    out->release = message_release(arena, &plan->release);
    if (out->balance == NULL || out->release == NULL ||
        !message_micro_batches(arena, plan, first, count, fragments, out)) {
        return NULL;
    }
    return out;
}
