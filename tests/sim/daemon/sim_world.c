/* sim_world: corpora, configs and what must be delivered; see sim.h.
 *
 * Files are real and the same for all seeds. The reference of a case is made by plan_step alone,
 * with the case's sections, without a daemon, once. */
#include "sim.h"
#include "daemon/job.h"
#include "tests/property/splitmix.h"
#include "tests/unit/corpus_files.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATASETS   3u
#define DOCUMENTS  260u
#define PLANS_MAX  400u
#define CASE_COUNT (sizeof case_texts / sizeof case_texts[0])

static const char *const case_texts[] = {
    "policy = wlb:level\nmicro_batches = 4\n[parallel]\ndp = 2\ncp = 2\n",
    "policy = wlb:bands\nmicro_batches = 4\n[parallel]\ndp = 2\ntp = 2\n",
    "policy = wlb:level\nmicro_batches = 2\n[parallel]\ncp = 2\npp = 2\n",
    "policy = plain\nmicro_batches = 6\n[parallel]\ndp = 2\ncp = 4\n",
    "policy = wlb:none\nmicro_batches = 3\n[parallel]\ntp = 4\n",
    "policy = fixed:2\nmicro_batches = 4\n[parallel]\ndp = 4\npp = 2\n",
    "policy = wlb:bands\nmicro_batches = 1\n[parallel]\ncp = 1\n",
    "policy = wlb:level\nmicro_batches = 8\n[parallel]\ndp = 2\npp = 2\ncp = 2\n",
    "policy = wlb:level\nmicro_batches = 4\n[parallel]\ndp = 2\ncp = 2\n"
    "[from 3]\nplan.micro_batches = 8\n[from 7]\nplan.micro_batches = 2\n"
    "dataset.d2.path = d2\ndataset.d0.weight = 1\n[from 11]\nplan.tokens_max = 2w\n",
    "policy = wlb:bands\nmicro_batches = 2\n[parallel]\ndp = 2\ntp = 2\n"
    "[from 2]\nplan.micro_batches = 6\ndataset.d2.path = d2\ndataset.d2.weight = 3\n"
    "[from 9]\nplan.micro_batches = 4\ndataset.d1.weight = 5\n",
    "policy = wlb:level\nmicro_batches = 4\n[parallel]\ndp = 2\ncp = 2\n"
    "[from 4]\nparallel.dp = 4\nparallel.cp = 1\n[from 9]\nparallel.dp = 1\nparallel.tp = 2\n",
    "policy = wlb:bands\nmicro_batches = 2\n[parallel]\ncp = 2\n"
    "[from 3]\nparallel.dp = 2\nparallel.pp = 2\nparallel.cp = 1\n"
    "[from 8]\nplan.micro_batches = 4\n[from 11]\nparallel.pp = 1\n",
};

static char folder[64];
static struct sim_case cases[CASE_COUNT];
static struct config *configs[CASE_COUNT];
const struct sim_case *sim_case;

/* Mostly short, a few of several windows, so that there are outliers and parts. */
static void corpus_write(uint32_t i) {
    static uint32_t lengths[DOCUMENTS];
    struct image_options image = {.dtype = 8, .documents = DOCUMENTS, .lengths = lengths};
    char prefix[96];
    uint64_t random = 77 + i;
    for (uint32_t j = 0; j < DOCUMENTS; j++) {
        uint32_t kind = splitmix_between(&random, 0, 19);
        lengths[j] = kind == 0   ? 0
                     : kind == 1 ? splitmix_between(&random, 256, 700)
                     : kind < 5  ? splitmix_between(&random, 128, 256)
                                 : splitmix_between(&random, 1, 90);
    }
    (void)snprintf(prefix, sizeof prefix, "d%u", i);
    dataset_write(prefix, &image);
}

static void config_write(uint32_t i) {
    char text[2048];
    int bytes = snprintf(text, sizeof text,
                         "[dataset d0]\npath = d0\nweight = 2\n[dataset d1]\npath = d1\n"
                         "[job]\nseed = %u\n[corpus]\nepochs = 1\nblock_documents = 4\n"
                         "shuffle_window_blocks = 4\n[daemon]\nsocket = /sim/b\n"
                         "state_dir = /sim/state\n[queues]\nwaiting_max = 1024\n"
                         "[plan]\nwindow = 256\ndocuments_max = 256\n%s",
                         5 + i, case_texts[i]);
    (void)snprintf(cases[i].config_path, sizeof cases[i].config_path, "%u.conf", i);
    file_write(cases[i].config_path, text, (size_t)bytes);
}

void sim_world_open(void) {
    test_folder_make(folder);
    int code = chdir(folder); /* so that no path differs from run to run */
    assert(code == 0);
    for (uint32_t i = 0; i < DATASETS; i++) {
        corpus_write(i);
    }
    for (uint32_t i = 0; i < CASE_COUNT; i++) {
        config_write(i);
    }
}

void sim_world_close(void) {
    for (uint32_t i = 0; i < CASE_COUNT; i++) {
        for (uint64_t step = 0; step < cases[i].count; step++) {
            step_plan_destroy(cases[i].plans[step]);
            free(cases[i].states[step].bytes);
        }
        free(cases[i].plans);
        free(cases[i].states);
        job_identity_deinit(&cases[i].identity);
        catalog_close(cases[i].catalog);
        config_destroy(configs[i]);
    }
    test_folder_remove(folder);
}

uint32_t sim_world_cases(void) {
    return CASE_COUNT;
}

static struct sim_state state_encode(const struct plan_state *state) {
    struct sim_state out = {.count = plan_state_encode(state, NULL, 0)};
    out.bytes = malloc(out.count);
    assert(out.bytes != NULL);
    (void)plan_state_encode(state, out.bytes, out.count);
    return out;
}

/* Plans on from the step; what was encoded for the step after the last is not kept. */
static bool case_step(struct sim_case *out, struct schedule *schedule,
                      const struct plan_state *state, struct plan_state *next,
                      struct error *error) {
    out->states[out->count] = state_encode(state);
    if (schedule_step(schedule, state, next, &out->plans[out->count], error) == 1) {
        out->count++;
        assert(out->count < PLANS_MAX);
        return true;
    }
    free(out->states[out->count].bytes);
    return false;
}

static void case_plan(struct sim_case *out, const struct config *config) {
    struct error error = {0};
    struct corpus_source source;
    int code = catalog_open(config->datasets, config->dataset_count, &out->catalog, &error);
    assert(code == 0);
    code = job_identity_init(&out->identity, "sim", config, out->catalog, &error);
    assert(code == 0);
    code = corpus_source_init(&source, out->catalog, &config->source, &error);
    assert(code == 0);
    struct schedule *schedule = schedule_create(config->sections, config->section_count,
                                                &source.source, &error);
    sim_check(schedule != NULL, "the reference: %s", error.text);
    struct plan_state *state = schedule_state_create(schedule);
    struct plan_state *next = schedule_state_create(schedule);
    out->plans = calloc(PLANS_MAX, sizeof(struct step_plan *));
    out->states = calloc(PLANS_MAX, sizeof *out->states);
    assert(state != NULL && next != NULL && out->plans != NULL && out->states != NULL);
    while (case_step(out, schedule, state, next, &error)) {
        struct plan_state *swapped = state;
        state = next;
        next = swapped;
    }
    sim_check(error.code == 0 && out->count > 10, "the reference: %s", error.text);
    plan_state_destroy(state);
    plan_state_destroy(next);
    schedule_destroy(schedule);
}

uint8_t *sim_world_blob(uint64_t step, uint64_t generation, size_t *bytes) {
    struct blob blob = sim_case->identity;
    struct error error;
    blob.step = step;
    blob.generation = generation;
    blob.state = sim_case->states[step].bytes;
    blob.state_bytes = sim_case->states[step].count;
    blob.digest_known = true;
    memcpy(blob.digest, sim_case->plans[step]->digest, sizeof blob.digest);
    uint8_t *out = blob_encode(&blob, bytes, &error);
    sim_check(out != NULL, "a checkpoint of step %llu: %s", (unsigned long long)step, error.text);
    return out;
}

const struct sim_case *sim_world_case(uint32_t i) {
    struct error error;
    if (cases[i].plans == NULL) {
        if (config_load(cases[i].config_path, NULL, 0, &configs[i], &error) < 0) {
            sim_fail("%s", error.text);
        }
        cases[i].options = configs[i]->plan;
        case_plan(&cases[i], configs[i]);
    }
    return &cases[i];
}

static bool token_is(const uint8_t *payload, uint64_t at, const struct document *document,
                     uint64_t in_document) {
    uint16_t token;
    memcpy(&token, payload + 2 * at, sizeof token);
    return token == dataset_token(document->document, in_document);
}

bool sim_world_payload(const struct step_plan *plan, const struct micro_batch *micro_batch,
                       const uint8_t *payload, uint64_t bytes) {
    const struct document *documents = &plan->documents[micro_batch->document_begin];
    uint64_t at = 0;
    for (uint32_t i = 0; i < micro_batch->document_count; i++) {
        for (uint32_t j = 0; j < documents[i].length; j++, at++) {
            if (2 * at + 2 > bytes ||
                !token_is(payload, at, &documents[i], documents[i].offset + (uint64_t)j)) {
                return false;
            }
        }
    }
    for (uint32_t i = 0; i < micro_batch->document_count; i++) {
        if (!document_is_last_part(&documents[i])) {
            uint64_t successor = (uint64_t)documents[i].offset + documents[i].length;
            if (2 * at + 2 > bytes || !token_is(payload, at, &documents[i], successor)) {
                return false;
            }
            at++;
        }
    }
    return 2 * at == bytes;
}
