/* admin: see admin.h. */
#include "daemon/admin.h"

#include "daemon/config_keys.h"
#include "daemon/daemon.h"
#include "daemon/loader.h"
#include "daemon/turn.h"
#include "proto/message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of micro-batches in one PlanResponse. */
#define ADMIN_PAGE_BYTES (FRAME_DATA_BYTES_MAX - 65536u)
#define ADMIN_LEAD_NS    1000000000u /* waiting for a slower rank that is worth a warning */

void admin_init(struct admin *admin, struct daemon *daemon) {
    *admin = (struct admin){.daemon = daemon, .state_step = UINT64_MAX};
}

void admin_deinit(struct admin *admin) {
    plan_state_destroy(admin->state);
    *admin = (struct admin){0};
}

/* The state after the newest planned step; NULL, and the call refused, when it cannot be had. */
static const struct plan_state *admin_state(struct admin *admin, struct session *session,
                                            uint32_t stream) {
    struct daemon *daemon = admin->daemon;
    struct error error;
    if (admin->state == NULL) {
        admin->state = schedule_state_create(daemon->schedule);
    }
    if (admin->state == NULL) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    if (admin->state_step != daemon->planned_end) {
        admin->state_step = UINT64_MAX;
        if (plan_state_decode(admin->state, daemon->state, daemon->state_bytes, &error) < 0) {
            session_refuse(session, stream, STATUS_INTERNAL, "%s", error.text);
            return NULL;
        }
        admin->state_step = daemon->planned_end;
    }
    return admin->state;
}

/* Status */

static Ballast__V1__Rank *admin_place(struct arena *arena, const struct member *member) {
    Ballast__V1__Rank *rank = message_create(arena, &ballast__v1__rank__descriptor);
    if (rank != NULL) {
        rank->dp = member->place.dp;
        rank->pp = member->place.pp;
        rank->cp = member->place.cp;
        rank->tp = member->place.tp;
    }
    return rank;
}

static Ballast__V1__RankStatus *admin_rank(const struct roster *roster, struct arena *arena,
                                           const struct member *member, uint64_t now_ns) {
    Ballast__V1__RankStatus *out = message_create(arena, &ballast__v1__rank_status__descriptor);
    const struct member *awaited = roster_awaited(roster, member, now_ns);
    if (out == NULL || (out->rank = admin_place(arena, member)) == NULL) {
        return NULL;
    }
    if (awaited != NULL) {
        out->steps_behind = roster_behind(awaited, member);
        out->waits_for = admin_place(arena, awaited);
        if (out->waits_for == NULL) {
            return NULL;
        }
    }
    out->pid = member->connected ? member->pid : 0;
    out->uid = member->uid;
    out->step = member->step;
    out->credits = member->credits;
    out->lease_ms = member->connected || now_ns >= member->lease_end_ns
                        ? 0
                        : (member->lease_end_ns - now_ns) / 1000000;
    out->waiting_ms = member->waiting_ns == 0 ? 0 : (now_ns - member->waiting_ns) / 1000000;
    out->waits = member->waits;
    out->waited_ns = member->waited_ns;
    out->waited_ns_max = member->waited_ns_max;
    out->led_ns = roster_led_ns(member, now_ns);
    return out;
}

static bool admin_ranks(const struct daemon *daemon, struct arena *arena,
                        Ballast__V1__StatusResponse *out) {
    const struct roster *roster = &daemon->roster;
    uint64_t now_ns = uv_hrtime();
    out->ranks = arena_array(arena, roster->count, sizeof *out->ranks);
    for (uint32_t i = 0; out->ranks != NULL && i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (!member->seen || !roster_live(member, now_ns)) {
            continue;
        }
        Ballast__V1__RankStatus *rank = admin_rank(roster, arena, member, now_ns);
        if (rank == NULL) {
            return false;
        }
        rank->batches = metrics_rank(daemon->metrics, i)->batches;
        out->ranks[out->n_ranks++] = rank;
    }
    return out->ranks != NULL;
}

static Ballast__V1__DatasetStatus **admin_datasets(const struct daemon *daemon, struct arena *arena,
                                                   const struct plan_state *state) {
    uint32_t count = catalog_count(daemon->catalog);
    Ballast__V1__DatasetStatus **out = arena_array(arena, count,
                                                   sizeof(Ballast__V1__DatasetStatus *));
    for (uint32_t i = 0; out != NULL && i < count; i++) {
        const struct dataset *dataset = catalog_dataset(daemon->catalog, i);
        out[i] = message_dataset(arena, state, i, dataset_name(dataset), dataset_documents(dataset),
                                 dataset_tokens(dataset));
        if (out[i] == NULL) {
            return NULL;
        }
    }
    return out;
}

/* `step` is one that was found; its balance only if wanted. */
static Ballast__V1__MeasuredStep *admin_measured(const struct daemon *daemon, struct arena *arena,
                                                 const struct measured_step *step, bool balance) {
    Ballast__V1__MeasuredStep *out = message_create(arena, &ballast__v1__measured_step__descriptor);
    struct measured_ratios ratios = measured_ratios(&daemon->measured, step->step);
    if (out == NULL) {
        return NULL;
    }
    out->step = step->step;
    out->total_ppm = ratios.total_ppm;
    out->attention_ppm = ratios.attention_ppm;
    out->expert_ppm = ratios.expert_ppm;
    out->input_ppm = step->plan.input_ppm;
    if (balance && step->plan.known) {
        out->balance = message_balance(arena, &step->plan.balance);
        return out->balance != NULL ? out : NULL;
    }
    return out;
}

/* False: out of memory. */
static bool admin_status_steps(const struct daemon *daemon, struct arena *arena,
                               Ballast__V1__StatusResponse *out) {
    const struct measured_step *measured = measured_newest(&daemon->measured,
                                                           daemon->roster.committed_step);
    out->balance = message_balance(arena, &daemon->balance);
    out->release = message_release(arena, &daemon->release);
    if (measured != NULL) {
        out->measured = admin_measured(daemon, arena, measured, true);
    }
    return out->balance != NULL && out->release != NULL &&
           (measured == NULL || out->measured != NULL);
}

static void admin_status_figures(struct daemon *daemon, Ballast__V1__StatusResponse *out) {
    out->version = (char *)daemon->job.version;
    out->job_digest = (ProtobufCBinaryData){16, daemon->job.job_digest};
    out->next_step = daemon->planned_end;
    out->committed_step = daemon->roster.committed_step;
    out->durable_step = daemon->progress.durable_step;
    out->generation = daemon->generation.number;
    out->generation_step = daemon->generation.step;
    out->generation_by = (char *)daemon->generation.by;
    out->io_backend = (char *)daemon->reader->backend;
    out->io_lacks = daemon->io_lacks.code < 0 ? (char *)daemon->io_lacks.text : (char *)"";
    out->profile = (char *)schedule_prices(daemon->schedule, daemon->roster.committed_step);
    out->slab_bytes_used = slab_bytes_used(&daemon->slab);
    out->plan_ns_p50 = samples_percentile(&daemon->plan_ns, 50);
    out->plan_ns_p99 = samples_percentile(&daemon->plan_ns, 99);
    out->wait_ns_p99 = samples_percentile(&daemon->wait_ns, 99);
    out->uptime_ms = (uv_hrtime() - daemon->start_ns) / 1000000;
    out->state = (char *)daemon_state(daemon);
    out->ranks_expected = daemon->roster.count;
}

/* What the ranks that lead wait for; false: nothing, or not for long. */
static bool admin_lead(const struct daemon *daemon, char *text, size_t bytes) {
    const struct roster *roster = &daemon->roster;
    uint64_t now_ns = uv_hrtime();
    const struct member *leader = roster_leader(roster);
    if (leader == NULL || now_ns - leader->leading_ns < ADMIN_LEAD_NS) {
        return false;
    }
    const struct member *awaited = roster_awaited(roster, leader, now_ns);
    if (awaited == NULL) {
        return false;
    }
    const struct rank_place *at = &awaited->place;
    (void)snprintf(text, bytes,
                   "ranks wait for dp%u pp%u cp%u tp%u, which is %s and has not committed step "
                   "%" PRIu64 ", %" PRIu64 " behind them (limits.lead_steps = %" PRIu64 ")",
                   at->dp, at->pp, at->cp, at->tp, awaited->connected ? "connected" : "gone",
                   roster_done(awaited), roster_behind(awaited, leader), roster->lead_steps);
    if (awaited->leading_ns != 0) { /* then nobody goes on: ranks that commit too seldom */
        size_t chars = strlen(text);
        (void)snprintf(text + chars, bytes - chars,
                       "; it waits too, since it has not committed: commit more often, or raise "
                       "limits.lead_steps and reload");
    }
    return true;
}

static bool admin_warnings(const struct daemon *daemon, struct arena *arena,
                           Ballast__V1__StatusResponse *out) {
    char text[ERROR_TEXT_BYTES + 64];
    const struct config *config = config_at(daemon->config, daemon->roster.committed_step);
    out->warnings = arena_array(arena, 5, sizeof *out->warnings);
    if (out->warnings != NULL && admin_lead(daemon, text, sizeof text)) {
        out->warnings[out->n_warnings++] = arena_strdup(arena, text);
    }
    if (out->warnings != NULL && config->profile_warning[0] != '\0') {
        (void)snprintf(text, sizeof text, "latency profile %.200s: %s", config->profile_path,
                       config->profile_warning);
        out->warnings[out->n_warnings++] = arena_strdup(arena, text);
    }
    if (out->warnings != NULL && daemon->stored.full) {
        (void)snprintf(text, sizeof text,
                       "the disk of %s is full: no step becomes durable; free some space",
                       daemon->config->state_dir);
        out->warnings[out->n_warnings++] = arena_strdup(arena, text);
    }
    if (out->warnings != NULL && daemon->not_reloaded.code < 0) {
        (void)snprintf(text, sizeof text, "the config was not reloaded: %s",
                       daemon->not_reloaded.text);
        out->warnings[out->n_warnings++] = arena_strdup(arena, text);
    }
    if (out->warnings != NULL && daemon->domains != NULL && daemon->domains->error.code < 0) {
        (void)snprintf(text, sizeof text, "domains are counted up to step %" PRIu64 " only: %s",
                       daemon->domains->step, daemon->domains->error.text);
        out->warnings[out->n_warnings++] = arena_strdup(arena, text);
    }
    for (size_t i = 0; i < out->n_warnings; i++) {
        if (out->warnings[i] == NULL) {
            return false;
        }
    }
    return out->warnings != NULL;
}

/* Reads and store; false: out of memory. */
static bool admin_storage(const struct daemon *daemon, struct arena *arena,
                          Ballast__V1__StatusResponse *out) {
    Ballast__V1__ReadStatus *reads = message_create(arena, &ballast__v1__read_status__descriptor);
    Ballast__V1__StoreStatus *store = message_create(arena, &ballast__v1__store_status__descriptor);
    if (reads == NULL || store == NULL) {
        return false;
    }
    reads->documents = daemon->metrics->documents_read;
    reads->bytes = daemon->metrics->bytes_read;
    for (uint32_t i = 0; i < METRICS_READ_ERRORS; i++) {
        reads->errors += daemon->metrics->read_errors[i];
    }
    reads->slots = daemon->slab.replicas * daemon->slab.replica_slots;
    reads->slots_used = daemon->slab.used;
    reads->slots_ready = (uint32_t)feed_depth(&daemon->feed).batches;
    store->wal_bytes = daemon->stored.wal_bytes;
    store->commit_ns = daemon->stored.commit_ns;
    out->reads = reads;
    out->store = store;
    return true;
}

static void admin_seeking(const struct daemon *daemon, Ballast__V1__Seeking *out) {
    const struct memo_generation *next = &daemon->rewind.next;
    out->step = next->step;
    out->at = daemon->rewind.phase == REWIND_PLANNING ? ahead_reaching(daemon->ahead) : next->step;
    out->generation = next->number;
    out->by = (char *)next->by;
}

/* All that is known while the corpus is being opened. */
static void admin_warming(const struct daemon *daemon, struct session *session, uint32_t stream) {
    Ballast__V1__StatusResponse out = BALLAST__V1__STATUS_RESPONSE__INIT;
    out.version = (char *)daemon->job.version;
    out.state = (char *)daemon_state(daemon);
    out.uptime_ms = (uv_hrtime() - daemon->start_ns) / 1000000;
    out.warming_percent = warm_percent(&daemon->warm);
    session_answer(session, stream, &out.base);
}

static void admin_status(struct admin *admin, struct session *session, uint32_t stream,
                         const void *message) {
    struct daemon *daemon = admin->daemon;
    struct arena *arena = &daemon->arena;
    Ballast__V1__StatusResponse out = BALLAST__V1__STATUS_RESPONSE__INIT;
    Ballast__V1__Seeking seeking = BALLAST__V1__SEEKING__INIT;
    (void)message;
    const struct plan_state *state = admin_state(admin, session, stream);
    if (state == NULL) {
        return;
    }
    admin_status_figures(daemon, &out);
    if (daemon->rewind.phase != REWIND_IDLE) {
        admin_seeking(daemon, &seeking);
        out.seeking = &seeking;
    }
    out.n_datasets = catalog_count(daemon->catalog);
    out.datasets = admin_datasets(daemon, arena, state);
    bool built = out.datasets != NULL && admin_status_steps(daemon, arena, &out) &&
                 admin_ranks(daemon, arena, &out) && admin_warnings(daemon, arena, &out) &&
                 admin_storage(daemon, arena, &out);
    session_answer(session, stream, built ? &out.base : NULL);
}

/* Queues, Delays, Corpus */

static void admin_queues(struct admin *admin, struct session *session, uint32_t stream,
                         const void *message) {
    const Ballast__V1__QueuesRequest *request = message;
    const struct plan_state *state = admin_state(admin, session, stream);
    if (state != NULL) {
        Ballast__V1__QueuesResponse *out = message_queues(
            &admin->daemon->arena, state, schedule_options(admin->daemon->schedule, state->step),
            request->documents);
        session_answer(session, stream, out == NULL ? NULL : &out->base);
    }
}

/* False: out of memory. */
static bool admin_domains(const struct daemon *daemon, struct arena *arena,
                          Ballast__V1__DelaysResponse *out) {
    const struct domain_tally *tally = daemon->domains;
    if (tally == NULL) {
        return true;
    }
    out->domains_since = tally->since;
    out->n_domains = tally->count;
    out->domains = message_delays(arena, tally->counts, tally->count, domains_name,
                                  catalog_domains(daemon->catalog));
    return out->domains != NULL;
}

static void admin_delays(struct admin *admin, struct session *session, uint32_t stream,
                         const void *message) {
    struct daemon *daemon = admin->daemon;
    Ballast__V1__DelaysResponse out = BALLAST__V1__DELAYS_RESPONSE__INIT;
    (void)message;
    const struct plan_state *state = admin_state(admin, session, stream);
    if (state == NULL) {
        return;
    }
    out.n_datasets = catalog_count(daemon->catalog);
    out.datasets = message_delays(&daemon->arena, state->delays, catalog_count(daemon->catalog),
                                  catalog_name, daemon->catalog);
    bool built = out.datasets != NULL && admin_domains(daemon, &daemon->arena, &out);
    session_answer(session, stream, built ? &out.base : NULL);
}

static void admin_corpus(struct admin *admin, struct session *session, uint32_t stream,
                         const void *message) {
    struct daemon *daemon = admin->daemon;
    Ballast__V1__CorpusResponse out = BALLAST__V1__CORPUS_RESPONSE__INIT;
    (void)message;
    const struct plan_state *state = admin_state(admin, session, stream);
    if (state == NULL) {
        return;
    }
    out.n_datasets = catalog_count(daemon->catalog);
    out.datasets = admin_datasets(daemon, &daemon->arena, state);
    out.fingerprint = (ProtobufCBinaryData){sizeof daemon->fingerprint, daemon->fingerprint};
    session_answer(session, stream, out.datasets == NULL ? NULL : &out.base);
}

/* Plan */

/* Bytes of the pools, which come with the first page; more than a page when they do not fit. */
static size_t admin_pools_bytes(struct arena *arena, const struct admin_plan *call,
                                const struct step_plan *plan) {
    Ballast__V1__StepPlan pools = BALLAST__V1__STEP_PLAN__INIT;
    size_t bytes = 0;
    if (call->first == 0 && plan->pool_count > 0) {
        arena_reset(arena);
        bytes = message_pools(arena, plan, call->pools, &pools)
                    ? protobuf_c_message_get_packed_size(&pools.base)
                    : ADMIN_PAGE_BYTES + 1;
        arena_reset(arena);
    }
    return bytes;
}

/* How many micro-batches from `first` on fit one answer beside `bytes`; 0: not even one. */
static uint32_t admin_page(struct arena *arena, const struct step_plan *plan, uint32_t first,
                           uint32_t count, bool fragments, size_t bytes) {
    uint32_t fitting = 0;
    while (fitting < count) {
        arena_reset(arena);
        const Ballast__V1__MicroBatch *one = message_micro_batch(arena, plan, first + fitting,
                                                                 fragments);
        bytes += one == NULL ? ADMIN_PAGE_BYTES
                             : 8 + protobuf_c_message_get_packed_size(&one->base);
        if (bytes > ADMIN_PAGE_BYTES) {
            break;
        }
        fitting++;
    }
    arena_reset(arena);
    return fitting;
}

/* False: out of memory. */
static bool admin_plan_measured(const struct daemon *daemon, struct arena *arena,
                                Ballast__V1__StepPlan *out) {
    const struct measured_step *measured = measured_find(&daemon->measured, out->step);
    if (measured == NULL || measured->step >= daemon->roster.committed_step) {
        return true;
    }
    out->measured = admin_measured(daemon, arena, measured, false);
    return out->measured != NULL;
}

static void admin_answer_plan(struct admin *admin, const struct admin_plan *call,
                              const struct step_plan *plan) {
    struct arena *arena = &admin->daemon->arena;
    Ballast__V1__PlanResponse out = BALLAST__V1__PLAN_RESPONSE__INIT;
    uint32_t all = plan->micro_batch_count;
    uint32_t rest = call->first < all ? all - call->first : 0;
    uint32_t wanted = call->count > 0 && call->count < rest ? call->count : rest;
    size_t pools_bytes = admin_pools_bytes(arena, call, plan);
    uint32_t fitting = admin_page(arena, plan, call->first, wanted, call->fragments, pools_bytes);
    if (fitting == 0 && wanted > 0) {
        session_refuse(call->session, call->stream, STATUS_RESOURCE_EXHAUSTED,
                       "micro-batch %u of step %" PRIu64 "%s does not fit a frame of 4 MiB; ask "
                       "without fragments%s",
                       call->first, call->step, pools_bytes > 0 ? " with the pools" : "",
                       call->pools ? " and pools" : "");
        return;
    }
    out.plan = message_step_plan(arena, plan, call->first, fitting, call->fragments);
    out.next = fitting < rest ? call->first + fitting : 0;
    bool built = out.plan != NULL && admin_plan_measured(admin->daemon, arena, out.plan) &&
                 (call->first > 0 || message_pools(arena, plan, call->pools, out.plan));
    session_answer(call->session, call->stream, built ? &out.base : NULL);
}

/* Notes the call until its step was replayed. */
static void admin_wait(struct admin *admin, const struct admin_plan *call) {
    if (admin->plan_count == ADMIN_PLANS_MAX || admin->daemon->replay_count == DAEMON_REPLAYS_MAX) {
        session_refuse(call->session, call->stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u plans are being replayed already; try again", admin->plan_count);
        return;
    }
    admin->plans[admin->plan_count++] = *call;
    call->session->admin_calls++;
}

static void admin_plan(struct admin *admin, struct session *session, uint32_t stream,
                       const void *message) {
    const Ballast__V1__PlanRequest *request = message;
    const struct daemon *daemon = admin->daemon;
    const struct admin_plan call = {.session = session,
                                    .stream = stream,
                                    .step = request->step,
                                    .first = request->first,
                                    .count = request->count,
                                    .fragments = request->fragments,
                                    .pools = request->pools};
    const struct step_plan *plan = NULL;
    struct error error;
    if (call.step < daemon->progress.oldest_step || call.step >= daemon->planned_end) {
        session_refuse(session, stream, STATUS_NOT_FOUND,
                       "step %" PRIu64 " is not known: planned are %" PRIu64 " to before %" PRIu64,
                       call.step, daemon->progress.oldest_step, daemon->planned_end);
        return;
    }
    switch (turn_plan(admin->daemon, call.step, &plan, &error)) {
    case SESSION_READY:
        admin_answer_plan(admin, &call, plan);
        break;
    case SESSION_WAITS:
    case SESSION_HELD_UP:
    case SESSION_NO_STEP:
        admin_wait(admin, &call);
        break;
    case SESSION_LOST:
        session_refuse(session, stream, STATUS_NOT_FOUND, "%s", error.text);
        break;
    }
}

static void admin_drop(struct admin *admin, uint32_t i) {
    admin->plans[i].session->admin_calls--;
    admin->plans[i] = admin->plans[--admin->plan_count];
}

void admin_plan_found(struct admin *admin, uint64_t step) {
    const struct planned *planned = plans_find(&admin->daemon->plans, step);
    assert(planned != NULL);
    for (uint32_t i = admin->plan_count; i-- > 0;) {
        if (admin->plans[i].step == step) {
            admin_answer_plan(admin, &admin->plans[i], planned->plan);
            admin_drop(admin, i);
        }
    }
}

void admin_plan_lost(struct admin *admin, uint64_t step, const struct error *error) {
    for (uint32_t i = admin->plan_count; i-- > 0;) {
        if (admin->plans[i].step == step) {
            session_refuse(admin->plans[i].session, admin->plans[i].stream, STATUS_NOT_FOUND, "%s",
                           error->text);
            admin_drop(admin, i);
        }
    }
}

void admin_forget(struct admin *admin, const struct session *session) {
    for (uint32_t i = admin->plan_count; i-- > 0;) {
        if (admin->plans[i].session == session) {
            admin_drop(admin, i);
        }
    }
}

/* Config */

/* How much of a limit is in use; settings that are no limit stay 0. */
static void admin_use(const struct daemon *daemon, Ballast__V1__Setting *out) {
    const struct {
        const char *name;
        struct daemon_use use;
    } limits[] = {
        {"slab.slots", {daemon->slab.used, daemon->slab.used_high_water}},
        {"limits.connections", {daemon->server.admitted, daemon->server.conn_high_water}},
        {"queues.waiting_max", daemon->in_hand},
        {"queues.max_backlog", daemon->backlog},
        {"plan.documents_max", daemon->documents},
        {"daemon.ahead_steps", daemon->ahead_steps},
        {"limits.lead_steps", daemon->lead_steps},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (strcmp(limits[i].name, out->name) == 0) {
            out->used = limits[i].use.now;
            out->high_water = limits[i].use.most;
        }
    }
}

/* What `auto` came to where the config alone does not decide; false without memory. */
static bool admin_in_use(const struct daemon *daemon, struct arena *arena,
                         Ballast__V1__Setting *out) {
    char number[24];
    const char *in_use = "";
    if (!out->automatic || strcmp(out->value, CONFIG_AUTO) != 0) {
        return true;
    }
    if (strcmp(out->name, "reader.backend") == 0) {
        in_use = daemon->reader->backend;
    } else if (strcmp(out->name, "reader.threads") == 0 && daemon->reader_threads > 0) {
        (void)snprintf(number, sizeof number, "%" PRIu32, daemon->reader_threads);
        in_use = number;
    } else if (strcmp(out->name, "slab.slot_size") == 0) {
        (void)snprintf(number, sizeof number, "%" PRIu64, daemon->phase.slot_bytes);
        in_use = number;
    }
    out->in_use = arena_strdup(arena, in_use);
    return out->in_use != NULL;
}

static Ballast__V1__Setting *admin_setting(const struct daemon *daemon, struct arena *arena,
                                           size_t i) {
    struct config_setting setting;
    Ballast__V1__Setting *out = message_create(arena, &ballast__v1__setting__descriptor);
    if (out == NULL) {
        return NULL;
    }
    config_setting(daemon->config, i, &setting);
    out->name = arena_strdup(arena, setting.name);
    out->value = arena_strdup(arena, setting.value);
    out->source = (char *)setting.origin;
    out->from = setting.from;
    out->automatic = setting.automatic;
    if (out->name == NULL || out->value == NULL || !admin_in_use(daemon, arena, out)) {
        return NULL;
    }
    admin_use(daemon, out);
    return out;
}

static void admin_config(struct admin *admin, struct session *session, uint32_t stream,
                         const void *message) {
    struct arena *arena = &admin->daemon->arena;
    size_t count = config_setting_count(admin->daemon->config);
    Ballast__V1__ConfigResponse out = BALLAST__V1__CONFIG_RESPONSE__INIT;
    (void)message;
    out.settings = arena_array(arena, count, sizeof *out.settings);
    bool built = out.settings != NULL;
    for (size_t i = 0; built && i < count; i++) {
        out.settings[i] = admin_setting(admin->daemon, arena, i);
        built = out.settings[i] != NULL;
    }
    out.n_settings = count;
    session_answer(session, stream, built ? &out.base : NULL);
}

static void admin_drain(struct admin *admin, struct session *session, uint32_t stream,
                        const void *message) {
    Ballast__V1__DrainResponse out = BALLAST__V1__DRAIN_RESPONSE__INIT;
    (void)message;
    if (admin->daemon->planned_end == 0) {
        session_refuse(session, stream, STATUS_FAILED_PRECONDITION,
                       "no step is planned yet; try again");
        return;
    }
    out.last_step = daemon_drain(admin->daemon) - 1;
    session_answer(session, stream, &out.base);
}

/* Calls */

static const struct admin_method {
    const char *name;
    const ProtobufCMessageDescriptor *type;
    void (*serve)(struct admin *admin, struct session *session, uint32_t stream,
                  const void *message);
} admin_methods[] = {
    {"Status", &ballast__v1__status_request__descriptor, admin_status},
    {"Queues", &ballast__v1__queues_request__descriptor, admin_queues},
    {"Plan", &ballast__v1__plan_request__descriptor, admin_plan},
    {"Delays", &ballast__v1__delays_request__descriptor, admin_delays},
    {"Corpus", &ballast__v1__corpus_request__descriptor, admin_corpus},
    {"Config", &ballast__v1__config_request__descriptor, admin_config},
    {"Drain", &ballast__v1__drain_request__descriptor, admin_drain},
};

static void admin_call_warming(const struct admin *admin, struct session *session, uint32_t stream,
                               const char *method) {
    if (strcmp(method, "Status") == 0) {
        admin_warming(admin->daemon, session, stream);
        return;
    }
    session_refuse(session, stream, STATUS_UNAVAILABLE,
                   "the daemon is warming up: %u %% of its corpus is open; try again",
                   warm_percent(&admin->daemon->warm));
}

void admin_call(struct admin *admin, struct session *session, uint32_t stream, const char *method,
                const uint8_t *payload, size_t bytes) {
    char name[SESSION_NAME_BYTES];
    for (size_t i = 0; i < sizeof admin_methods / sizeof admin_methods[0]; i++) {
        if (strcmp(admin_methods[i].name, method) != 0) {
            continue;
        }
        const void *message = session_unpack(session, admin_methods[i].type, payload, bytes);
        if (message == NULL) {
            session_refuse(session, stream, STATUS_INVALID_ARGUMENT,
                           "the message of %s cannot be read", method);
        } else if (admin->daemon->warm.running) {
            admin_call_warming(admin, session, stream, method);
        } else {
            admin_methods[i].serve(admin, session, stream, message);
        }
        return;
    }
    session_printable(method, name);
    session_refuse(session, stream, STATUS_UNIMPLEMENTED, "this daemon does not serve Admin.%s",
                   name);
}
