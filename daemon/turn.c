/* turn: see turn.h. */
#include "daemon/turn.h"

#include "daemon/failpoint.h"
#include "daemon/log.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Planner's results */

/* Whether the step comes out as it was stored before a restart; true too when it never was. */
static bool turn_reproduced(struct daemon *daemon, const struct step_plan *plan) {
    const uint8_t *stored = recovered_digest(&daemon->recovered, plan->step);
    struct error error;
    if (stored == NULL || memcmp(stored, plan->digest, PLAN_DIGEST_BYTES) == 0) {
        return true;
    }
    (void)error_set(&error, -EBADMSG,
                    "step %" PRIu64 " comes out differently than it was stored; was the corpus or "
                    "the program changed? Serve a new job from a new state directory",
                    plan->step);
    daemon_fail(daemon, DAEMON_EXIT_DATA, &error);
    return false;
}

static void turn_fail_memory(struct daemon *daemon, const char *what) {
    struct error error;
    (void)error_set(&error, -ENOMEM, "%s: out of memory", what);
    daemon_fail(daemon, DAEMON_EXIT_IO, &error);
}

/* The state that the step was planned from goes to the store, unless its row is there already. */
static void turn_remember(struct daemon *daemon, struct ahead_result *result) {
    uint8_t *state = daemon->state;
    size_t state_bytes = daemon->state_bytes;
    daemon->state = result->state_after;
    daemon->state_bytes = result->state_after_bytes;
    result->state_after = NULL;
    if (result->step < daemon->recovered.steps_end) {
        free(state);
    } else if (memo_put_step(daemon->memo, result->plan, result->step < daemon->rows_end, state,
                             state_bytes) < 0) {
        turn_fail_memory(daemon, "storing a step");
    }
}

static void turn_use(struct daemon_use *use, uint64_t now) {
    use->now = now;
    use->most = now > use->most ? now : use->most;
}

static uint64_t turn_padding_ppm(const struct step_plan *plan) {
    uint64_t padding = 0;
    for (uint32_t i = 0; i < plan->micro_batch_count; i++) {
        padding += plan->micro_batches[i].pad_tokens;
    }
    uint64_t rows = plan->tokens + padding;
    return rows == 0 ? 0 : padding * 1000000u / rows;
}

static void turn_measure(struct daemon *daemon, const struct ahead_result *result) {
    const struct step_plan *plan = result->plan;
    samples_add(&daemon->plan_ns, plan->plan_ns);
    histogram_observe(&daemon->metrics->plan, plan->plan_ns);
    daemon->metrics->padding_ppm = turn_padding_ppm(plan);
    daemon->balance = plan->balance;
    daemon->release = plan->release;
    turn_use(&daemon->in_hand, result->in_hand);
    turn_use(&daemon->backlog, plan->release.waiting_tokens /
                                   schedule_options(daemon->schedule, plan->step)->step_tokens);
    turn_use(&daemon->documents, plan->document_count);
}

/* Told once: counting does not begin again by itself. */
static void turn_domains(struct daemon *daemon, struct ahead_result *result) {
    struct domain_tally *before = daemon->domains;
    if (result->domains == NULL) {
        return;
    }
    if (result->domains->error.code < 0 && (before == NULL || before->error.code == 0)) {
        log_line(LOG_WARNING, "domains",
                 "shares and delays by domain stand still: %s step=%" PRIu64,
                 result->domains->error.text, result->domains->step);
    }
    daemon->domains = result->domains;
    result->domains = NULL;
    free(before);
}

static void turn_planned(struct daemon *daemon, struct ahead_result *result) {
    if (daemon->draining || daemon->exit_code != 0 || !turn_reproduced(daemon, result->plan)) {
        return;
    }
    assert(result->step == daemon->planned_end);
    (void)FAILPOINT(plan_taken);
    turn_measure(daemon, result);
    turn_domains(daemon, result);
    turn_remember(daemon, result);
    struct step_plan *plan = result->plan;
    result->plan = NULL;
    if (plans_add(&daemon->plans, plan) < 0) {
        turn_fail_memory(daemon, "planning ahead");
        return;
    }
    daemon->planned_end = result->step + 1;
}

static void turn_ended(struct daemon *daemon, struct ahead_result *result) {
    if (daemon->draining) {
        return;
    }
    turn_domains(daemon, result);
    daemon->end_step = result->step;
    log_line(LOG_NOTICE, "ahead", "the data ends; this step will not come step=%" PRIu64,
             result->step);
}

/* Replays */

static struct daemon_replay *turn_replay_find(struct daemon *daemon, uint64_t step) {
    for (uint32_t i = 0; i < daemon->replay_count; i++) {
        if (daemon->replays[i].step == step) {
            return &daemon->replays[i];
        }
    }
    return NULL;
}

static void turn_replay_forget(struct daemon *daemon, struct daemon_replay *replay) {
    *replay = daemon->replays[--daemon->replay_count];
}

static void turn_replay_failed(struct daemon *daemon, uint64_t step, const struct error *error) {
    struct daemon_replay *replay = turn_replay_find(daemon, step);
    if (replay == NULL) {
        return;
    }
    log_line(LOG_WARNING, "ahead", "a step cannot be replayed: %s step=%" PRIu64, error->text,
             step);
    replay->failed = true;
    replay->error = *error;
    admin_plan_lost(&daemon->admin, step, error);
}

/* Asks for a step again; when too many are asked for, whoever wants it asks again later. */
static void turn_replay_begin(struct daemon *daemon, uint64_t step) {
    for (uint32_t i = 0; daemon->replay_count == DAEMON_REPLAYS_MAX && i < DAEMON_REPLAYS_MAX;
         i++) {
        if (daemon->replays[i].failed) {
            turn_replay_forget(daemon, &daemon->replays[i]);
        }
    }
    if (daemon->replay_count == DAEMON_REPLAYS_MAX) {
        return;
    }
    if (memo_fetch(daemon->memo, MEMO_REPLAY, step) < 0) {
        turn_fail_memory(daemon, "replaying a step");
        return;
    }
    daemon->replays[daemon->replay_count++] = (struct daemon_replay){.step = step};
}

static void turn_replayed(struct daemon *daemon, struct ahead_result *result) {
    struct daemon_replay *replay = turn_replay_find(daemon, result->step);
    if (result->kind == AHEAD_FAILED) {
        turn_replay_failed(daemon, result->step, &result->error);
        return;
    }
    if (replay != NULL) {
        turn_replay_forget(daemon, replay);
    }
    struct step_plan *plan = result->plan;
    result->plan = NULL;
    if (plans_add(&daemon->plans, plan) < 0) {
        turn_fail_memory(daemon, "replaying a step");
        return;
    }
    admin_plan_found(&daemon->admin, result->step);
}

static void turn_failed(struct daemon *daemon, struct ahead_result *result) {
    switch (result->wish) {
    case AHEAD_WISH_REPLAY:
        turn_replayed(daemon, result);
        break;
    case AHEAD_WISH_REACH:
        rewind_reached(&daemon->rewind, result);
        break;
    case AHEAD_WISH_NONE:
        daemon_fail(daemon, daemon_exit_code(result->error.code), &result->error);
        break;
    }
}

static void turn_take_planned(struct daemon *daemon) {
    struct ahead_result *result;
    while ((result = ahead_take(daemon->ahead)) != NULL) {
        switch (result->kind) {
        case AHEAD_PLANNED:
            turn_planned(daemon, result);
            break;
        case AHEAD_ENDED:
            turn_ended(daemon, result);
            break;
        case AHEAD_REPLAYED:
            turn_replayed(daemon, result);
            break;
        case AHEAD_REACHED:
            rewind_reached(&daemon->rewind, result);
            break;
        case AHEAD_FAILED:
            turn_failed(daemon, result);
            break;
        }
        ahead_result_destroy(result);
    }
}

/* Store's results */

static void turn_fetched_replay(struct daemon *daemon, struct memo_fetched *fetched) {
    struct error error;
    if (!fetched->found) {
        (void)error_set(&error, -ERANGE,
                        "step %" PRIu64 " is no longer stored; the next uncommitted is %" PRIu64,
                        fetched->step, daemon->roster.committed_step);
        turn_replay_failed(daemon, fetched->step, &error);
        return;
    }
    int code = ahead_replay(daemon->ahead, fetched->step, &fetched->row);
    fetched->row.state = NULL;
    if (code < 0) {
        turn_fail_memory(daemon, "replaying a step");
    }
}

static void turn_fetched(struct daemon *daemon, struct memo_fetched *fetched) {
    switch (fetched->purpose) {
    case MEMO_REPLAY:
        turn_fetched_replay(daemon, fetched);
        break;
    case MEMO_SEEK:
        rewind_fetched(&daemon->rewind, fetched);
        break;
    case MEMO_EXPORT:
        export_fetched(&daemon->exporter, fetched);
        break;
    case MEMO_BEGUN:
        rewind_begun(&daemon->rewind, fetched);
        break;
    }
}

static void turn_take_stored(struct daemon *daemon) {
    struct memo_fetched *fetched;
    bool was_full = daemon->stored.full;
    while ((fetched = memo_take(daemon->memo)) != NULL) {
        turn_fetched(daemon, fetched);
        memo_fetched_destroy(fetched);
    }
    memo_progress(daemon->memo, &daemon->stored);
    if (daemon->stored.generation == daemon->generation.number) {
        daemon->progress.durable_step = daemon->stored.durable_step;
        daemon->progress.durable_committed_step = daemon->stored.durable_committed_step;
        daemon->progress.durable_changes = daemon->stored.durable_change;
    }
    daemon->progress.full = daemon->stored.full;
    if (daemon->stored.full && !was_full) {
        log_line(LOG_ERR, "store",
                 "the disk of the state directory is full: nothing becomes durable until there is "
                 "space");
    } else if (!daemon->stored.full && was_full) {
        log_line(LOG_NOTICE, "store", "the state directory has space again");
    }
    if (daemon->stored.failed) {
        daemon_fail(daemon, daemon_exit_code(daemon->stored.error.code), &daemon->stored.error);
    }
}

/* Progress */

static uint64_t turn_oldest_step(const struct daemon *daemon) {
    uint64_t retained = daemon->config->steps_retained;
    uint64_t committed = daemon->roster.committed_step;
    return committed > retained ? committed - retained : 0;
}

static void turn_put_commits(struct daemon *daemon) {
    const struct roster *roster = &daemon->roster;
    struct memo_commits commits = {.change = roster->changes,
                                   .committed_step = roster->committed_step,
                                   .oldest_step_kept = daemon->progress.oldest_step,
                                   .ranks = daemon->ranks};
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (member->committed_step > roster->committed_step) {
            daemon->ranks[commits.rank_count++] = (struct store_rank){
                .dp = member->place.dp,
                .pp = member->place.pp,
                .cp = member->place.cp,
                .tp = member->place.tp,
                .committed_step = member->committed_step};
        }
    }
    memo_put_commits(daemon->memo, &commits);
}

static void turn_advance(struct daemon *daemon, uint64_t now_ns) {
    if (daemon->progress.moving) {
        return;
    }
    daemon->roster.lead_steps = daemon->config->lead_steps; /* a reload may change it */
    (void)roster_advance(&daemon->roster, now_ns);
    daemon->progress.oldest_step = turn_oldest_step(daemon);
    if (daemon->roster.changes > daemon->changes_put) {
        daemon->changes_put = daemon->roster.changes;
        turn_put_commits(daemon);
    }
}

static uint64_t turn_smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* `steps`, or fewer where plans are so large that these would take too much memory. */
static uint64_t turn_affordable(const struct daemon *daemon, uint32_t steps) {
    return turn_smaller(steps, plans_fit(&daemon->plans, DAEMON_PLANS_BYTES));
}

/* How many steps beyond this one to plan. */
static uint64_t turn_ahead(const struct daemon *daemon, uint64_t step) {
    return turn_affordable(daemon, config_ahead_steps(daemon->config, step));
}

/* How far to plan: ahead_steps beyond the fastest rank, as far as the store keeps up. */
static void turn_extend(struct daemon *daemon) {
    uint64_t undurable = turn_affordable(daemon, DAEMON_UNDURABLE_MAX);
    uint64_t fastest = 0;
    if (roster_fastest_step(&daemon->roster, &fastest)) {
        turn_use(&daemon->lead_steps, fastest > daemon->roster.committed_step
                                          ? fastest - daemon->roster.committed_step
                                          : 0);
    }
    if (fastest < daemon->roster.committed_step) {
        fastest = daemon->roster.committed_step;
    }
    if (fastest > daemon->fastest_step) {
        daemon->fastest_step = fastest;
    }
    turn_use(&daemon->ahead_steps, daemon->planned_end > daemon->fastest_step
                                       ? daemon->planned_end - daemon->fastest_step - 1
                                       : 0);
    uint64_t ahead = turn_ahead(daemon, fastest);
    uint64_t known = daemon->planned_end > daemon->rows_end ? daemon->planned_end
                                                            : daemon->rows_end;
    uint64_t end = turn_smaller(daemon->end_step, daemon->phase.end);
    daemon->progress.plannable_step = daemon->end_step != UINT64_MAX
                                          ? end
                                          : turn_smaller(end, known + ahead + DAEMON_UNDURABLE_MAX);
    if (daemon->progress.moving) {
        return;
    }
    uint64_t until = turn_smaller(fastest + ahead + 1, daemon->progress.durable_step + undurable);
    ahead_extend(daemon->ahead, turn_smaller(until, daemon->phase.end));
}

/* What is kept in memory: from the slowest rank on, never more than a bounded number, and whatever
 * could not be replayed because its row is not durable. */
static void turn_trim(struct daemon *daemon) {
    uint64_t keep = daemon->roster.committed_step;
    uint64_t slowest = 0;
    uint64_t most = turn_ahead(daemon, daemon->fastest_step) +
                    turn_affordable(daemon, DAEMON_PLANS_MORE);
    if (roster_slowest_step(&daemon->roster, &slowest) && slowest > keep) {
        keep = slowest;
    }
    if (daemon->planned_end > most && keep < daemon->planned_end - most) {
        keep = daemon->planned_end - most;
    }
    plans_trim(&daemon->plans, turn_smaller(keep, daemon->progress.durable_step), &daemon->roster);
}

/* While stopping: commits become durable, then the connections go. */
static void turn_stop(struct daemon *daemon, uint64_t now_ns) {
    bool settled = server_commits(&daemon->server) == 0 || now_ns >= daemon->stop_by_ns ||
                   daemon->exit_code != 0;
    if (settled && !daemon->closing) {
        daemon->closing = true;
        server_finish(&daemon->server);
    }
}

/* Whether the job has durably gone to a step of another phase, and whoever sought it was told. */
static void turn_phase(struct daemon *daemon) {
    uint64_t committed = daemon->roster.committed_step;
    if (!phase_holds(&daemon->phase, committed) && !daemon->progress.moving &&
        daemon->rewind.call_count == 0 && daemon->progress.durable_committed_step == committed) {
        daemon_move_on(daemon);
    }
}

/* Packs what each replica is sent next, now that nobody waits for it. */
static void turn_pack_ahead(struct daemon *daemon) {
    const struct roster *roster = &daemon->roster;
    for (uint32_t replica = 0; replica < daemon->slab.replicas; replica++) {
        uint64_t position = 0;
        size_t count;
        bool known = roster_fastest(roster, replica, &position);
        uint64_t step = roster_step_of(roster, position);
        const struct planned *planned = known ? plans_find(&daemon->plans, step) : NULL;
        if (planned != NULL) {
            const struct rank_place *place =
                &roster->members[replica * roster->replica_members].place;
            uint32_t first = place->dp * roster_micro_batches(roster, step);
            uint32_t index = (uint32_t)(position - roster_place(roster, step, 0));
            arena_reset(&daemon->arena);
            (void)packed_find(&daemon->packed, planned->plan, first + index, &daemon->arena,
                              &count);
        }
    }
}

void turn_run(struct daemon *daemon) {
    bool worked = daemon->dirty;
    while (daemon->dirty) {
        uint64_t now_ns = uv_hrtime();
        daemon->dirty = false;
        turn_take_planned(daemon);
        turn_take_stored(daemon);
        (void)feed_reap(&daemon->feed);
        turn_advance(daemon, now_ns);
        turn_extend(daemon);
        rewind_turn(&daemon->rewind); /* before what it waited for is dropped again */
        turn_trim(daemon);
        if (!daemon->stopping) {
            feed_schedule(&daemon->feed);
        }
        server_pump(&daemon->server, now_ns);
        turn_phase(daemon);
        if (daemon->stopping) {
            turn_stop(daemon, now_ns);
        }
    }
    if (worked && !daemon->stopping) {
        turn_pack_ahead(daemon);
    }
}

enum session_answer turn_plan(struct daemon *daemon, uint64_t step, const struct step_plan **plan,
                              struct error *error) {
    const struct planned *planned = plans_find(&daemon->plans, step);
    if (planned != NULL) {
        *plan = planned->plan;
        return SESSION_READY;
    }
    if (step >= daemon->end_step) {
        return SESSION_NO_STEP;
    }
    if (step >= daemon->planned_end) {
        return SESSION_WAITS;
    }
    struct daemon_replay *replay = turn_replay_find(daemon, step);
    if (replay == NULL) {
        turn_replay_begin(daemon, step);
    } else if (replay->failed) {
        *error = replay->error;
        turn_replay_forget(daemon, replay);
        return SESSION_LOST;
    }
    return SESSION_WAITS;
}

/* What sessions ask */

static struct daemon *turn_daemon(const struct session *session) {
    const struct conn *conn = session->owner;
    return conn->server->context;
}

static enum session_answer turn_session_plan(struct session *session, uint64_t step,
                                             const struct step_plan **plan, struct error *error) {
    return turn_plan(turn_daemon(session), step, plan, error);
}

static struct metrics_rank *turn_rank(const struct session *session) {
    struct daemon *daemon = turn_daemon(session);
    return metrics_rank(daemon->metrics, (uint32_t)(session->member - daemon->roster.members));
}

static enum session_answer turn_session_take(struct session *session, const struct step_plan *plan,
                                             uint32_t micro_batch, bool last,
                                             struct session_batch *batch, struct error *error) {
    struct daemon *daemon = turn_daemon(session);
    enum session_answer answer = feed_take(&daemon->feed, session->member->replica, plan,
                                           micro_batch, session->subscribed, last, batch, error);
    if (answer == SESSION_READY) {
        turn_rank(session)->batches++;
        turn_rank(session)->tokens += plan->micro_batches[micro_batch].tokens;
        daemon->dirty = true;
    }
    return answer;
}

static void turn_session_release(struct session *session, uint32_t slot) {
    struct daemon *daemon = turn_daemon(session);
    slab_release(&daemon->slab, slot);
    daemon->dirty = true;
}

static const uint8_t *turn_session_payload(struct session *session, uint32_t slot,
                                           uint64_t generation, uint64_t *bytes) {
    const struct slab *slab = &turn_daemon(session)->slab;
    *bytes = slab->slots[slot].payload_bytes;
    return slab->slots[slot].generation == generation ? slab_payload(slab, slot) : NULL;
}

static void turn_session_opened(struct session *session, uint32_t replica) {
    struct daemon *daemon = turn_daemon(session);
    slab_retry(&daemon->slab, replica);
    daemon->dirty = true;
}

static void turn_session_waited(struct session *session, uint64_t wait_ns) {
    samples_add(&turn_daemon(session)->wait_ns, wait_ns);
    histogram_observe(&turn_rank(session)->wait, wait_ns);
}

static void turn_session_admin(struct session *session, uint32_t stream, const char *method,
                               const uint8_t *payload, size_t bytes) {
    admin_call(&turn_daemon(session)->admin, session, stream, method, payload, bytes);
}

static void turn_session_closed(struct session *session) {
    struct daemon *daemon = turn_daemon(session);
    admin_forget(&daemon->admin, session);
    rewind_forget(&daemon->rewind, session);
    export_forget(&daemon->exporter, session);
}

static void turn_session_seek(struct session *session, uint32_t stream, uint64_t step,
                              uint64_t least, uint64_t deadline_ns) {
    rewind_seek(&turn_daemon(session)->rewind, session, stream, step, least, deadline_ns);
}

static void turn_session_import(struct session *session, uint32_t stream, const uint8_t *state,
                                size_t bytes, uint64_t least, uint64_t deadline_ns) {
    rewind_import(&turn_daemon(session)->rewind, session, stream, state, bytes, least, deadline_ns);
}

static void turn_session_export(struct session *session, uint32_t stream, uint64_t step) {
    export_serve(&turn_daemon(session)->exporter, session, stream, step);
}

static int turn_session_random(void *out, size_t bytes) {
    return getrandom(out, bytes, 0) == (ssize_t)bytes ? 0 : -EIO;
}

static void turn_session_log(struct session *session, int level, const char *text) {
    (void)session;
    log_line(level, "session", "%s", text);
}

const struct session_ops turn_session_ops = {
    .send = conn_send,
    .congested = conn_congested,
    .crowded = conn_crowded,
    .plan = turn_session_plan,
    .take = turn_session_take,
    .release = turn_session_release,
    .payload = turn_session_payload,
    .send_payload = conn_send_payload,
    .again = conn_again,
    .opened = turn_session_opened,
    .waited = turn_session_waited,
    .seek = turn_session_seek,
    .import = turn_session_import,
    .export = turn_session_export,
    .admin = turn_session_admin,
    .closed = turn_session_closed,
    .random = turn_session_random,
    .log = turn_session_log,
};
