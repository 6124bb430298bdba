/* remote: answers of a running daemon: the Admin service, one function per call. */
#include "client/ctl/answers.h"

#include "daemon/config.h"

/* The socket: named, else the config's, else the usual one. */
static int remote_connect(struct ctl *ctl) {
    struct config *config = NULL;
    struct dial_credentials credentials;
    const char *path = ctl->socket;
    int rc = dial_resolve(&ctl->credentials, &credentials, &ctl->error);
    if (rc == 0 && path == NULL && ctl->config != NULL) {
        rc = config_load(ctl->config, NULL, 0, &config, &ctl->error);
        path = rc == 0 ? config->socket_path : NULL;
    }
    if (rc == 0) {
        rc = call_open_as(path != NULL ? path : CTL_DEFAULT_SOCKET, &credentials, 0, &ctl->channel,
                          &ctl->error);
    }
    config_destroy(config);
    return rc;
}

static int remote_call_of(struct ctl *ctl, const char *service, const char *method,
                          const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                          ProtobufCMessage **response) {
    int rc = ctl->channel == NULL ? remote_connect(ctl) : 0;
    if (rc < 0) {
        return rc;
    }
    rc = call_unary(ctl->channel, service, method, request, type, &ctl->arena, response,
                    ctl->timeout_ms, &ctl->error);
    bool gone = rc == -EPIPE || rc == -ECONNRESET;
    return gone ? -ECONNREFUSED : rc;
}

static int remote_call(struct ctl *ctl, const char *method, const ProtobufCMessage *request,
                       const ProtobufCMessageDescriptor *type, ProtobufCMessage **response) {
    return remote_call_of(ctl, "ballast.v1.Admin", method, request, type, response);
}

static int remote_call_loader(struct ctl *ctl, const char *method, const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *type, ProtobufCMessage **response) {
    return remote_call_of(ctl, "ballast.v1.Loader", method, request, type, response);
}

static int remote_status(struct ctl *ctl, Ballast__V1__StatusResponse **out) {
    Ballast__V1__StatusRequest request = BALLAST__V1__STATUS_REQUEST__INIT;
    return remote_call(ctl, "Status", &request.base, &ballast__v1__status_response__descriptor,
                       (ProtobufCMessage **)out);
}

static int remote_queues(struct ctl *ctl, bool documents, Ballast__V1__QueuesResponse **out) {
    Ballast__V1__QueuesRequest request = BALLAST__V1__QUEUES_REQUEST__INIT;
    request.documents = documents;
    return remote_call(ctl, "Queues", &request.base, &ballast__v1__queues_response__descriptor,
                       (ProtobufCMessage **)out);
}

static int remote_delays(struct ctl *ctl, Ballast__V1__DelaysResponse **out) {
    Ballast__V1__DelaysRequest request = BALLAST__V1__DELAYS_REQUEST__INIT;
    return remote_call(ctl, "Delays", &request.base, &ballast__v1__delays_response__descriptor,
                       (ProtobufCMessage **)out);
}

static int remote_corpus(struct ctl *ctl, Ballast__V1__CorpusResponse **out) {
    Ballast__V1__CorpusRequest request = BALLAST__V1__CORPUS_REQUEST__INIT;
    return remote_call(ctl, "Corpus", &request.base, &ballast__v1__corpus_response__descriptor,
                       (ProtobufCMessage **)out);
}

static int remote_config(struct ctl *ctl, Ballast__V1__ConfigResponse **out) {
    Ballast__V1__ConfigRequest request = BALLAST__V1__CONFIG_REQUEST__INIT;
    return remote_call(ctl, "Config", &request.base, &ballast__v1__config_response__descriptor,
                       (ProtobufCMessage **)out);
}

int remote_drain(struct ctl *ctl, Ballast__V1__DrainResponse **out) {
    Ballast__V1__DrainRequest request = BALLAST__V1__DRAIN_REQUEST__INIT;
    return remote_call(ctl, "Drain", &request.base, &ballast__v1__drain_response__descriptor,
                       (ProtobufCMessage **)out);
}

int remote_seek(struct ctl *ctl, uint64_t step, uint64_t generation,
                Ballast__V1__SeekResponse **out) {
    Ballast__V1__SeekRequest request = BALLAST__V1__SEEK_REQUEST__INIT;
    request.step = step;
    request.generation = generation;
    return remote_call_loader(ctl, "Seek", &request.base, &ballast__v1__seek_response__descriptor,
                              (ProtobufCMessage **)out);
}

static int remote_export(struct ctl *ctl, uint64_t *step, Ballast__V1__ExportResponse **out) {
    Ballast__V1__ExportRequest request = BALLAST__V1__EXPORT_REQUEST__INIT;
    if (*step == UINT64_MAX) {
        Ballast__V1__StatusResponse *status;
        int rc = remote_status(ctl, &status);
        if (rc < 0) {
            return rc;
        }
        *step = status->committed_step;
    }
    request.step = *step;
    return remote_call_loader(ctl, "Export", &request.base,
                              &ballast__v1__export_response__descriptor, (ProtobufCMessage **)out);
}

int remote_import(struct ctl *ctl, const uint8_t *state, size_t bytes, uint64_t generation,
                  Ballast__V1__ImportResponse **out) {
    Ballast__V1__ImportRequest request = BALLAST__V1__IMPORT_REQUEST__INIT;
    request.state = (ProtobufCBinaryData){bytes, (uint8_t *)state};
    request.generation = generation;
    return remote_call_loader(ctl, "Import", &request.base,
                              &ballast__v1__import_response__descriptor, (ProtobufCMessage **)out);
}

static int plan_page(struct ctl *ctl, uint64_t step, bool fragments, bool pools, uint32_t first,
                     Ballast__V1__PlanResponse **out) {
    Ballast__V1__PlanRequest request = BALLAST__V1__PLAN_REQUEST__INIT;
    request.step = step;
    request.fragments = fragments;
    request.pools = pools;
    request.first = first;
    int rc = remote_call(ctl, "Plan", &request.base, &ballast__v1__plan_response__descriptor,
                         (ProtobufCMessage **)out);
    if (rc == 0 && (*out)->plan == NULL) {
        return error_set(&ctl->error, -EPROTO, "the daemon answered Plan without a plan");
    }
    return rc;
}

/* Appends a page's micro-batches to the plan; the arrays and the old ones are the arena's. */
static int plan_append(struct ctl *ctl, Ballast__V1__StepPlan *plan,
                       const Ballast__V1__StepPlan *page) {
    size_t count = plan->n_micro_batches + page->n_micro_batches;
    Ballast__V1__MicroBatch **all = arena_array(&ctl->arena, count, sizeof(void *));
    if (all == NULL) {
        return error_set(&ctl->error, -ENOMEM, "step %llu: the plan is too large to hold",
                         (unsigned long long)plan->step);
    }
    for (size_t i = 0; i < count; i++) {
        all[i] = i < plan->n_micro_batches ? plan->micro_batches[i]
                                           : page->micro_batches[i - plan->n_micro_batches];
    }
    plan->micro_batches = all;
    plan->n_micro_batches = count;
    return 0;
}

static int remote_plan(struct ctl *ctl, uint64_t step, bool fragments, bool pools,
                       Ballast__V1__PlanResponse **out) {
    Ballast__V1__PlanResponse *whole;
    int rc = plan_page(ctl, step, fragments, pools, 0, &whole);
    if (rc < 0) {
        return rc;
    }
    while (whole->next != 0) {
        Ballast__V1__PlanResponse *page;
        rc = plan_page(ctl, step, fragments, pools, whole->next, &page);
        if (rc == 0 && page->next != 0 && page->next <= whole->next) {
            rc = error_set(&ctl->error, -EPROTO, "the daemon's pages of step %llu go backwards",
                           (unsigned long long)step);
        }
        if (rc == 0) {
            rc = plan_append(ctl, whole->plan, page->plan);
        }
        if (rc < 0) {
            return rc;
        }
        whole->next = page->next;
    }
    *out = whole;
    return 0;
}

void remote_close(struct ctl *ctl) {
    call_close(ctl->channel);
    ctl->channel = NULL;
}

const struct answers remote_answers = {
    .status = remote_status,
    .queues = remote_queues,
    .plan = remote_plan,
    .delays = remote_delays,
    .corpus = remote_corpus,
    .config = remote_config,
    .export = remote_export,
};
