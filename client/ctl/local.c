/* local: the answers of a daemon that is not running.
 *
 * Opens the config and its corpus and, with a state directory, the store that a daemon left: the
 * state nearest before the step in question is taken from it and the rest replayed, which gives the
 * daemon's own answers, since the stream is a pure function. Without a store everything starts at
 * step 0. "Now" is behind the newest stored step, as for a daemon. */
#include "client/ctl/answers.h"
#include "client/ctl/stream.h"
#include "corpus/domains.h"
#include "daemon/history.h"
#include "daemon/job.h"
#include "daemon/store.h"
#include "proto/message.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct local {
    struct config *config;
    struct catalog *catalog;
    struct store *store; /* NULL with ORIGIN_CONFIG */
    struct store_summary summary;
    struct stream stream;
    struct step_plan *plan; /* what the last answer borrows from */
};

static int no_memory(struct ctl *ctl) {
    return error_set(&ctl->error, -ENOMEM, "the answer is too large to hold in memory");
}

static int refuse_corpus(struct local *local, struct error *error) {
    uint32_t count = local->config->dataset_job_count;
    struct store_dataset *datasets = calloc(count, sizeof *datasets);
    int rc = datasets == NULL ? error_set(error, -ENOMEM, "out of memory")
                              : job_datasets(local->catalog, count, datasets, error);
    rc = rc < 0 ? rc : store_refuse_corpus(local->store, datasets, count, error);
    free(datasets);
    return rc;
}

static int job_matches(struct local *local, struct error *error) {
    uint8_t fingerprint[16];
    uint8_t job[16];
    int rc = catalog_fingerprint(local->catalog, local->config->dataset_job_count, fingerprint,
                                 error);
    if (rc < 0) {
        return rc;
    }
    config_job_digest(local->config, fingerprint, job);
    if (memcmp(job, local->summary.job_digest, sizeof job) != 0) {
        return refuse_corpus(local, error);
    }
    return 0;
}

/* Sections may have been added since, from steps on that are not committed: then the store knows
 * nothing of those. */
static int history_matches(struct local *local, const char *stored, const char *wanted,
                           struct error *error) {
    struct history_difference difference;
    if (!history_differs(stored, wanted, &difference)) {
        return 0;
    }
    if (difference.step == 0 || difference.step < local->summary.committed_step) {
        return error_set(error, -EINVAL,
                         "the state was made with '%s' and the config says '%s'; use the config "
                         "that the job was started with",
                         difference.a, difference.b);
    }
    if (local->summary.steps_end > difference.step) {
        local->summary.steps_end = difference.step;
    }
    return 0;
}

static int settings_match(struct ctl *ctl, struct local *local) {
    char *stored = NULL;
    int rc = store_plan_text(local->store, &stored, &ctl->error);
    if (rc < 0) {
        return rc;
    }
    char *wanted = config_plan_text(local->config, local->catalog, &ctl->error);
    rc = wanted == NULL ? ctl->error.code : history_matches(local, stored, wanted, &ctl->error);
    free(wanted);
    free(stored);
    return rc;
}

static int local_open_store(struct ctl *ctl, struct local *local) {
    int rc = store_open(ctl->state, NULL, &local->store, &ctl->error);
    if (rc == -EBUSY) {
        return error_set(&ctl->error, rc,
                         "%s: a daemon is running on it; ask that one: ballastctl %s --socket PATH",
                         ctl->state, ctl->command->name);
    }
    if (rc == 0) {
        rc = store_summary(local->store, &local->summary, &ctl->error);
    }
    if (rc == 0) {
        rc = settings_match(ctl, local);
    }
    return rc < 0 ? rc : job_matches(local, &ctl->error);
}

static int local_open_config(struct ctl *ctl, struct config **out) {
    if (ctl->config == NULL) {
        ctl->misused = true;
        return error_set(&ctl->error, -EINVAL,
                         "a state directory is read together with its job's config; name that too: "
                         "--config FILE");
    }
    return config_load(ctl->config, NULL, 0, out, &ctl->error);
}

static int local_open(struct ctl *ctl, struct local *local) {
    int rc = local_open_config(ctl, &local->config);
    if (rc == 0) {
        rc = config_open_catalog(local->config, false, NULL, &local->catalog, &ctl->error);
    }
    if (rc == 0) {
        rc = stream_open(&local->stream, local->config, local->catalog, &ctl->error);
    }
    if (rc == 0 && ctl->origin == ORIGIN_STORE) {
        rc = local_open_store(ctl, local);
    }
    return rc;
}

void local_close(struct ctl *ctl) {
    struct local *local = ctl->local;
    if (local == NULL) {
        return;
    }
    step_plan_destroy(local->plan);
    stream_close(&local->stream);
    store_close(local->store);
    catalog_close(local->catalog);
    config_destroy(local->config);
    free(local);
    ctl->local = NULL;
}

/* The stored state nearest before `step`, when it is ahead of the stream. */
static int local_restore(struct local *local, uint64_t step, struct error *error) {
    struct stream *stream = &local->stream;
    struct store_step row;
    uint64_t end = local->summary.steps_end;
    int rc = end == 0 ? 0 : store_get_step(local->store, step < end ? step : end - 1, &row, error);
    if (rc <= 0 || row.step <= stream->state->step) {
        return rc < 0 ? rc : 0;
    }
    rc = plan_state_decode(stream->state, row.state, row.state_bytes, error);
    if (rc == 0) {
        rc = schedule_check_state(stream->schedule, stream->state, error);
    }
    return rc < 0 ? error_prefix(error, "stored state of step %" PRIu64, row.step) : 0;
}

/* Brings the stream to `step`, from the nearest state there is. */
static int local_seek(struct ctl *ctl, uint64_t step) {
    struct local *local = ctl->local;
    int rc = 0;
    if (local->store != NULL) {
        rc = local_restore(local, step, &ctl->error);
    }
    return rc < 0 ? rc : stream_seek(&local->stream, step, &ctl->error);
}

/* Opens whatever this run reads, once. */
static int local_get(struct ctl *ctl) {
    if (ctl->local != NULL) {
        return 0;
    }
    ctl->local = calloc(1, sizeof *ctl->local);
    int rc = ctl->local == NULL ? no_memory(ctl) : local_open(ctl, ctl->local);
    if (rc < 0) {
        local_close(ctl);
    }
    return rc;
}

/* Brings the stream behind the newest planned step, where the daemon's own answers come from. */
static int local_now(struct ctl *ctl) {
    int rc = local_get(ctl);
    return rc < 0 ? rc : local_seek(ctl, ctl->local->summary.steps_end);
}

static int local_plan(struct ctl *ctl, uint64_t step, bool fragments, bool pools,
                      Ballast__V1__PlanResponse **out) {
    int rc = local_get(ctl);
    if (rc == 0) {
        rc = local_seek(ctl, step);
    }
    if (rc < 0) {
        return rc;
    }
    struct local *local = ctl->local;
    step_plan_destroy(local->plan);
    local->plan = NULL;
    rc = stream_step(&local->stream, &local->plan, &ctl->error);
    if (rc < 0) {
        return rc;
    }
    Ballast__V1__PlanResponse *response = message_create(&ctl->arena,
                                                         &ballast__v1__plan_response__descriptor);
    if (response == NULL) {
        return no_memory(ctl);
    }
    response->plan = message_step_plan(&ctl->arena, local->plan, 0, local->plan->micro_batch_count,
                                       fragments);
    if (response->plan == NULL || !message_pools(&ctl->arena, local->plan, pools, response->plan)) {
        return no_memory(ctl);
    }
    *out = response;
    return 0;
}

static int local_queues(struct ctl *ctl, bool documents, Ballast__V1__QueuesResponse **out) {
    int rc = local_now(ctl);
    if (rc < 0) {
        return rc;
    }
    struct stream *stream = &ctl->local->stream;
    *out = message_queues(&ctl->arena, stream->state, stream_options(stream), documents);
    return *out == NULL ? no_memory(ctl) : 0;
}

/* Fills one pointer for each dataset; NULL when out of memory. */
static Ballast__V1__DatasetStatus **local_datasets(struct ctl *ctl) {
    const struct catalog *catalog = ctl->local->catalog;
    uint32_t count = catalog_count(catalog);
    Ballast__V1__DatasetStatus **all = arena_array(&ctl->arena, count, sizeof(void *));
    for (uint32_t i = 0; all != NULL && i < count; i++) {
        const struct dataset *dataset = catalog_dataset(catalog, i);
        all[i] = message_dataset(&ctl->arena, ctl->local->stream.state, i, dataset_name(dataset),
                                 dataset_documents(dataset), dataset_tokens(dataset));
        if (all[i] == NULL) {
            return NULL;
        }
    }
    return all;
}

static int local_corpus(struct ctl *ctl, Ballast__V1__CorpusResponse **out) {
    int rc = local_now(ctl);
    if (rc < 0) {
        return rc;
    }
    Ballast__V1__CorpusResponse *response = message_create(
        &ctl->arena, &ballast__v1__corpus_response__descriptor);
    uint8_t *fingerprint = arena_alloc(&ctl->arena, 16);
    Ballast__V1__DatasetStatus **datasets = local_datasets(ctl);
    if (response == NULL || fingerprint == NULL || datasets == NULL) {
        return no_memory(ctl);
    }
    rc = catalog_fingerprint(ctl->local->catalog, ctl->local->config->dataset_job_count,
                             fingerprint, &ctl->error);
    if (rc < 0) {
        return rc;
    }
    response->n_datasets = catalog_count(ctl->local->catalog);
    response->datasets = datasets;
    response->fingerprint.len = 16;
    response->fingerprint.data = fingerprint;
    *out = response;
    return 0;
}

/* As far as they follow from the state. */
static int local_domains(struct ctl *ctl, Ballast__V1__DelaysResponse *out) {
    const struct domains *domains = catalog_domains(ctl->local->catalog);
    if (domains == NULL || domains_filed(domains)) {
        return 0;
    }
    struct domain_tally *tally = domain_tally_create(domains);
    if (tally == NULL) {
        return -ENOMEM;
    }
    domain_tally_begin(tally, domains, ctl->local->stream.state);
    out->n_domains = tally->count;
    out->domains = message_delays(&ctl->arena, tally->counts, tally->count, domains_name, domains);
    free(tally);
    return out->domains == NULL ? -ENOMEM : 0;
}

static int local_delays(struct ctl *ctl, Ballast__V1__DelaysResponse **out) {
    int rc = local_now(ctl);
    if (rc < 0) {
        return rc;
    }
    const struct catalog *catalog = ctl->local->catalog;
    Ballast__V1__DelaysResponse *response = message_create(
        &ctl->arena, &ballast__v1__delays_response__descriptor);
    if (response == NULL) {
        return no_memory(ctl);
    }
    response->n_datasets = catalog_count(catalog);
    response->datasets = message_delays(&ctl->arena, ctl->local->stream.state->delays,
                                        catalog_count(catalog), catalog_name, catalog);
    if (response->datasets == NULL || local_domains(ctl, response) < 0) {
        return no_memory(ctl);
    }
    *out = response;
    return 0;
}

/* Balance and release of the newest planned step. */
static int local_newest(struct ctl *ctl, Ballast__V1__StatusResponse *status) {
    struct local *local = ctl->local;
    uint64_t end = local->summary.steps_end;
    struct store_step row = {.balance = balance_of_nothing};
    int found = end > 0 ? store_get_step(local->store, end - 1, &row, &ctl->error) : 0;
    if (found < 0) {
        return found;
    }
    status->balance = message_balance(&ctl->arena, &row.balance);
    status->release = message_release(&ctl->arena, &row.release);
    return status->balance == NULL || status->release == NULL ? no_memory(ctl) : 0;
}

static void status_fill(struct ctl *ctl, Ballast__V1__StatusResponse *status) {
    struct local *local = ctl->local;
    const struct config *config = config_at(local->config, local->summary.committed_step);
    const struct plan_options *plan = &config->plan;
    status->version = BALLAST_VERSION;
    status->job_digest.len = sizeof local->summary.job_digest;
    status->job_digest.data = local->summary.job_digest;
    status->next_step = local->summary.steps_end;
    status->committed_step = local->summary.committed_step;
    status->durable_step = local->summary.steps_end;
    status->generation = local->summary.generation;
    status->generation_step = local->summary.generation_step;
    status->generation_by = local->summary.generation_by;
    status->profile = (char *)schedule_prices(local->stream.schedule,
                                              local->summary.committed_step);
    status->state = "stopped";
    status->ranks_expected = config->replicas_local_count * plan->pp * plan->cp * plan->tp;
    status->n_datasets = catalog_count(local->catalog);
}

static int local_status(struct ctl *ctl, Ballast__V1__StatusResponse **out) {
    int rc = local_now(ctl);
    if (rc < 0) {
        return rc;
    }
    Ballast__V1__StatusResponse *response = message_create(
        &ctl->arena, &ballast__v1__status_response__descriptor);
    Ballast__V1__DatasetStatus **datasets = local_datasets(ctl);
    if (response == NULL || datasets == NULL) {
        return no_memory(ctl);
    }
    response->datasets = datasets;
    status_fill(ctl, response);
    rc = local_newest(ctl, response);
    if (rc == 0) {
        *out = response;
    }
    return rc;
}

static Ballast__V1__Setting *setting_message(struct arena *arena, const struct config *config,
                                             size_t i) {
    struct config_setting setting;
    Ballast__V1__Setting *message = message_create(arena, &ballast__v1__setting__descriptor);
    if (message == NULL) {
        return NULL;
    }
    config_setting(config, i, &setting);
    message->name = arena_strdup(arena, setting.name);
    message->value = arena_strdup(arena, setting.value);
    message->source = arena_strdup(arena, setting.origin);
    message->from = setting.from;
    message->automatic = setting.automatic;
    bool whole = message->name != NULL && message->value != NULL && message->source != NULL;
    return whole ? message : NULL;
}

static int config_answer(struct ctl *ctl, const struct config *config,
                         Ballast__V1__ConfigResponse **out) {
    size_t count = config_setting_count(config);
    Ballast__V1__ConfigResponse *response = message_create(
        &ctl->arena, &ballast__v1__config_response__descriptor);
    Ballast__V1__Setting **all = arena_array(&ctl->arena, count, sizeof(void *));
    if (response == NULL || all == NULL) {
        return no_memory(ctl);
    }
    for (size_t i = 0; i < count; i++) {
        all[i] = setting_message(&ctl->arena, config, i);
        if (all[i] == NULL) {
            return no_memory(ctl);
        }
    }
    response->n_settings = count;
    response->settings = all;
    *out = response;
    return 0;
}

/* What the file says needs no corpus and no store. */
static int local_config(struct ctl *ctl, Ballast__V1__ConfigResponse **out) {
    struct config *config = NULL;
    int rc = local_open_config(ctl, &config);
    if (rc == 0) {
        rc = config_answer(ctl, config, out);
    }
    config_destroy(config);
    return rc;
}

/* The state before the step that the stream stands at. */
static int local_put_state(struct local *local, struct blob *blob, struct error *error) {
    size_t bytes = plan_state_encode(local->stream.state, NULL, 0);
    uint8_t *state = malloc(bytes);
    if (state == NULL) {
        return error_set(error, -ENOMEM, "out of memory");
    }
    blob->state = state;
    blob->state_bytes = plan_state_encode(local->stream.state, state, bytes);
    return 0;
}

/* Plans the step for its digest; at the end of the data there is none. */
static int local_put_digest(struct local *local, struct blob *blob, struct error *error) {
    struct step_plan *plan = NULL;
    int rc = stream_step(&local->stream, &plan, error);
    if (rc == 0) {
        memcpy(blob->digest, plan->digest, sizeof blob->digest);
        blob->digest_known = true;
    }
    step_plan_destroy(plan);
    return rc == -ENOENT ? 0 : rc;
}

/* Packs the blob into the answer. */
static int local_export_answer(struct ctl *ctl, const struct blob *blob,
                               Ballast__V1__ExportResponse **out) {
    Ballast__V1__ExportResponse *response = message_create(
        &ctl->arena, &ballast__v1__export_response__descriptor);
    size_t bytes = 0;
    uint8_t *encoded = blob_encode(blob, &bytes, &ctl->error);
    if (encoded == NULL) {
        return ctl->error.code;
    }
    uint8_t *copy = response == NULL ? NULL : arena_alloc(&ctl->arena, bytes);
    if (copy != NULL) {
        memcpy(copy, encoded, bytes);
        response->state = (ProtobufCBinaryData){bytes, copy};
        *out = response;
    }
    free(encoded);
    return copy == NULL ? no_memory(ctl) : 0;
}

static int local_export(struct ctl *ctl, uint64_t *step, Ballast__V1__ExportResponse **out) {
    struct blob blob = {0};
    int rc = local_get(ctl);
    if (rc < 0) {
        return rc;
    }
    struct local *local = ctl->local;
    *step = *step == UINT64_MAX ? local->summary.committed_step : *step;
    rc = local_seek(ctl, *step);
    if (rc == 0) {
        rc = job_identity_init(&blob, "ballastctl " BALLAST_VERSION, local->config, local->catalog,
                               &ctl->error);
    }
    blob.step = *step;
    blob.generation = local->summary.generation;
    if (rc == 0) {
        rc = local_put_state(local, &blob, &ctl->error);
    }
    if (rc == 0) {
        rc = local_put_digest(local, &blob, &ctl->error);
    }
    if (rc == 0) {
        rc = local_export_answer(ctl, &blob, out);
    }
    free((uint8_t *)blob.state);
    job_identity_deinit(&blob);
    return rc;
}

const struct answers local_answers = {
    .status = local_status,
    .queues = local_queues,
    .plan = local_plan,
    .delays = local_delays,
    .corpus = local_corpus,
    .config = local_config,
    .export = local_export,
};
