/* daemon: see daemon.h. This file: start, stop, time and signals. */
#include "daemon/daemon.h"

#include "corpus/files.h"
#include "daemon/failpoint.h"
#include "daemon/job.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/reload.h"
#include "daemon/scrape.h"
#include "daemon/turn.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DAEMON_ARENA_BYTES      (32u << 20)
#define DAEMON_ARENA_KEPT_BYTES (1u << 20) /* after a large message, from the next tick on */
#define DAEMON_DESCRIPTORS      24u        /* of store, slab and reader */
#define DAEMON_TICK_MS_MIN      10u
#define DAEMON_TICK_MS_MAX      1000u

int daemon_exit_code(int error) {
    switch (error) {
    case -EINVAL:
        return DAEMON_EXIT_CONFIG;
    case -EBADMSG:
    case -EILSEQ:
    case -ENOSYS: /* of a format that this version cannot read */
        return DAEMON_EXIT_DATA;
    default:
        return DAEMON_EXIT_IO;
    }
}

/* State */

const char *daemon_state(const struct daemon *daemon) {
    const struct roster *roster = &daemon->roster;
    bool reached = false;
    if (daemon->progress.warming) {
        return "warming";
    }
    if (daemon->rewind.phase != REWIND_IDLE) {
        return "seeking";
    }
    if (daemon->end_step == UINT64_MAX) {
        return daemon->planned_end > daemon->recovered.committed_step ? "serving" : "warming";
    }
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (member->streaming) {
            return daemon->draining ? "draining" : "serving";
        }
        reached |= member->connected && member->step >= daemon->end_step;
    }
    if (reached || roster->committed_step >= daemon->end_step) {
        return "finished";
    }
    return daemon->draining ? "draining" : "serving";
}

void daemon_fail(struct daemon *daemon, int exit_code, const struct error *error) {
    if (daemon->exit_code != 0) {
        return;
    }
    daemon->exit_code = exit_code;
    log_line(LOG_ERR, "daemon", "stopping: %s exit=%d", error->text, exit_code);
    daemon_stop(daemon);
}

uint64_t daemon_drain(struct daemon *daemon) {
    if (!daemon->draining) {
        daemon->draining = true;
        ahead_freeze(daemon->ahead);
        if (daemon->end_step > daemon->planned_end) {
            daemon->end_step = daemon->planned_end;
        }
        daemon->dirty = true;
        log_line(LOG_NOTICE, "daemon", "draining: no further step is planned end=%" PRIu64,
                 daemon->end_step);
    }
    return daemon->end_step;
}

void daemon_stop(struct daemon *daemon) {
    if (daemon->stopping) {
        return;
    }
    (void)FAILPOINT(stop);
    if (!daemon->moving_on) {
        notify_send("STOPPING=1");
    }
    daemon->stopping = true;
    daemon->progress.stopping = true;
    daemon->stop_by_ns = uv_hrtime() + DAEMON_STOP_NS;
    daemon->dirty = true;
    if (daemon->ahead != NULL) {
        ahead_freeze(daemon->ahead);
    }
    server_close_listeners(&daemon->server);
}

/* Signals wait for the loop that takes them: SIGHUP from the start, those that stop it while a
 * phase follows another, and while the last one closes, which ends with its own exit code. */
static void daemon_hold_signals(bool stopping) {
    sigset_t held;
    (void)sigemptyset(&held);
    (void)sigaddset(&held, SIGHUP);
    if (stopping) {
        (void)sigaddset(&held, SIGTERM);
        (void)sigaddset(&held, SIGINT);
    }
    (void)pthread_sigmask(SIG_BLOCK, &held, NULL);
}

/* Those that stop it, or SIGHUP: that one has a config to compare with only once it serves. */
static void daemon_take_signals(bool reload_too) {
    sigset_t held;
    (void)sigemptyset(&held);
    (void)sigaddset(&held, SIGTERM);
    (void)sigaddset(&held, SIGINT);
    if (reload_too) {
        (void)sigaddset(&held, SIGHUP);
    }
    (void)pthread_sigmask(SIG_UNBLOCK, &held, NULL);
}

void daemon_move_on(struct daemon *daemon) {
    if (!daemon->stopping) {
        daemon_hold_signals(true);
        log_line(LOG_NOTICE, "daemon", "going on with another mesh step=%" PRIu64,
                 daemon->roster.committed_step);
        daemon->moving_on = true;
        daemon_stop(daemon);
    }
}

/* Loop callbacks */

static void daemon_touched(void *context) {
    struct daemon *daemon = context;
    daemon->dirty = true;
}

static void daemon_wake(void *context) {
    struct daemon *daemon = context;
    (void)uv_async_send(&daemon->woken);
}

static void daemon_woken(uv_async_t *async) {
    daemon_touched(async->data);
}

static void daemon_readable(uv_poll_t *poll, int status, int events) {
    struct daemon *daemon = poll->data;
    uint64_t count;
    (void)status;
    (void)events;
    if (read(daemon->reader->event_fd, &count, sizeof count) < 0 && errno != EAGAIN) {
        log_line(LOG_ERR, "reader", "eventfd: %s", strerror(errno));
    }
    daemon->dirty = true;
}

static void daemon_read_failed(void *context, const struct error *error) {
    (void)context;
    log_line(LOG_ERR, "reader", "a batch cannot be read, its streams end: %s", error->text);
}

static void daemon_warmed(struct daemon *daemon);

static void daemon_handle_closed(uv_handle_t *handle) {
    struct daemon *daemon = handle->data;
    daemon->handles--;
}

/* Ends warming when it is over, or when the daemon is to stop; else only answers go out. */
static void daemon_turn_warming(struct daemon *daemon) {
    if (daemon->stopping) {
        warm_cancel(&daemon->warm);
        daemon->closing = true;
        server_finish(&daemon->server);
    } else if (daemon->warm.running && warm_over(&daemon->warm)) {
        daemon_warmed(daemon);
    }
    server_pump(&daemon->server, uv_hrtime());
}

static void daemon_turn(uv_prepare_t *prepare) {
    struct daemon *daemon = prepare->data;
    if (daemon->progress.warming) {
        daemon_turn_warming(daemon);
    } else {
        turn_run(daemon);
    }
    if (daemon->closing && daemon->server.conn_count == 0) {
        uv_stop(&daemon->loop);
    }
}

static void daemon_notify_status(struct daemon *daemon) {
    uint32_t connected = 0;
    for (uint32_t i = 0; i < daemon->roster.count; i++) {
        connected += daemon->roster.members[i].connected;
    }
    notify_send("STATUS=%s %u/%u ranks, step %" PRIu64 ", %" PRIu64 " planned ahead, %s",
                daemon_state(daemon), connected, daemon->roster.count,
                daemon->roster.committed_step, daemon->planned_end - daemon->roster.committed_step,
                daemon->reader->backend);
}

/* A tick that comes more than one too late says that the daemon stood still: it was stopped, or the
 * machine. What clients sent meanwhile has not been read, so none of it is their silence. */
static void daemon_forgive_stop(struct daemon *daemon, uint64_t now_ns) {
    uint64_t since_ns = daemon->ticked_ns;
    daemon->ticked_ns = now_ns;
    if (now_ns - since_ns <= 2 * daemon->tick_ns) {
        return;
    }
    uint64_t stood_ns = now_ns - since_ns - daemon->tick_ns;
    roster_forgive(&daemon->roster, since_ns, stood_ns);
    server_forgive(&daemon->server, stood_ns, now_ns);
    log_line(LOG_WARNING, "daemon", "stood still; leases are that much longer ms=%" PRIu64,
             stood_ns / 1000000u);
}

static void daemon_tick(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    if (daemon->progress.warming) {
        warm_extend(&daemon->warm);
        return;
    }
    daemon_forgive_stop(daemon, uv_hrtime());
    if (feed_reap(&daemon->feed) > 0) {
        log_line(LOG_DEBUG, "reader", "reads were done that nobody had announced");
    }
    server_tick(&daemon->server, uv_hrtime());
    rewind_tick(&daemon->rewind, uv_hrtime());
    if (daemon->arena.held_bytes > DAEMON_ARENA_KEPT_BYTES) {
        arena_deinit(&daemon->arena);
        arena_init(&daemon->arena, DAEMON_ARENA_BYTES);
    }
    if (!daemon->stopping) {
        daemon_notify_status(daemon);
    }
    daemon->dirty = true;
}

/* Who has been at one thing for longer than the service manager would wait; NULL: nobody. */
static const char *daemon_stuck(struct daemon *daemon) {
    uint64_t now_ns = uv_hrtime();
    uint64_t limit_ns = NOTIFY_WATCHDOG_PINGS * notify_watchdog_ms() * 1000000u;
    if (daemon->warm.running || daemon->memo == NULL || daemon->ahead == NULL) {
        return NULL;
    }
    if (daemon->stored.failed) {
        return "the store has failed";
    }
    if (memo_stuck(daemon->memo, now_ns, limit_ns)) {
        return "a commit does not end";
    }
    if (ahead_stuck(daemon->ahead, now_ns, limit_ns)) {
        return "planning a step does not end";
    }
    return feed_stuck(&daemon->feed, now_ns, limit_ns) ? "no read comes back" : NULL;
}

/* Not fed while a part is stuck: then the service manager restarts all of it. */
static void daemon_watchdog(uv_timer_t *timer) {
    const char *stuck = daemon_stuck(timer->data);
    if (stuck == NULL) {
        notify_send("WATCHDOG=1");
    } else {
        log_line(LOG_ERR, "daemon", "the watchdog is not fed: %s", stuck);
    }
}

static void daemon_signalled(uv_signal_t *handle, int number) {
    struct daemon *daemon = handle->data;
    log_line(LOG_NOTICE, "daemon", "stopping after signal %d", number);
    daemon->moving_on = false;
    daemon_stop(daemon);
}

static void daemon_reload(uv_signal_t *handle, int number) {
    (void)number;
    reload(handle->data);
}

/* Start: each step leaves what daemon_close can undo, whatever came after it. */

/* What the profile does not say of this mesh is no reason not to serve. */
static void daemon_log_profile(const struct config *config) {
    if (config->profile_warning[0] != '\0') {
        log_line(LOG_WARNING, "config", "latency profile %s: %s", config->profile_path,
                 config->profile_warning);
    }
}

/* Registered memory counts against RLIMIT_MEMLOCK, once a ring, with all else that is locked; what
 * O_DIRECT reads go through is 1 MB and two blocks for each. */
static uint64_t daemon_locked_mib(const struct daemon *daemon) {
    uint32_t rings = daemon->config->reader.rings, depth = daemon->config->reader.queue_depth;
    return (rings > 1 ? rings : 1) * ((slab_bytes(&daemon->slab) >> 20) + 1) + depth + depth / 128 +
           16;
}

/* What an operator should know of how files are read; `why`: of a fallback. */
static void daemon_note_reader(struct daemon *daemon, const struct error *why) {
    const struct error *lacks = &daemon->reader->lacks;
    const struct error *what = why->code < 0 ? why : lacks;
    struct rlimit limit;
    daemon->io_lacks = *what;
    daemon->io_registered = daemon->config->reader_registered && why->code == 0 &&
                            lacks->code == 0 && strcmp(daemon->reader->backend, "io_uring") == 0;
    if (what->code == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        (void)error_set(&daemon->io_lacks, -ENOMEM,
                        "%.120s: RLIMIT_MEMLOCK is %" PRIu64 " KiB; set LimitMEMLOCK=%" PRIu64
                        "M (ulimit -l)",
                        why->code < 0 ? "pread instead of io_uring, which has no memory to lock"
                                      : "without registered memory, which costs a little CPU",
                        (uint64_t)limit.rlim_cur >> 10, daemon_locked_mib(daemon));
    }
}

static int daemon_open_reader(struct daemon *daemon, struct error *error) {
    const struct config *config = daemon->config;
    struct reader_options options = config->reader;
    struct error why;
    options.jobs_max = daemon->slab.replicas * daemon->slab.replica_slots;
    if (options.threads == 0) {
        options.threads = reader_threads(catalog_is_cold(daemon->catalog));
    }
    if (config->reader_registered) {
        options.memory = daemon->slab.memory.base;
        options.memory_bytes = slab_bytes(&daemon->slab);
    }
    int code = reader_open(config->reader_backend, &options, &daemon->reader, &why, error);
    if (code < 0) {
        return code;
    }
    daemon->reader_threads = strcmp(daemon->reader->backend, "pread") == 0 ? options.threads : 0;
    daemon_note_reader(daemon, &why);
    log_line(why.code < 0 ? LOG_WARNING : LOG_INFO, "reader", "reading with %s%s%s",
             daemon->reader->backend, why.code < 0 ? ": " : "", why.code < 0 ? why.text : "");
    if (why.code == 0 && daemon->io_lacks.code < 0) {
        log_line(LOG_NOTICE, "reader", "%s", daemon->io_lacks.text);
    }
    return 0;
}

static int daemon_open_slab(struct daemon *daemon, struct error *error) {
    const struct config *config = daemon->config;
    struct phase *phase = &daemon->phase;
    int code = phase_init(phase, config, daemon->recovered.committed_step,
                          catalog_token_bytes(daemon->catalog), error);
    if (code < 0) {
        return code;
    }
    uint32_t replicas = phase->config->replicas_local_count;
    const struct slab_options slab = {.replicas = replicas,
                                      .replica_slots = phase->replica_slots,
                                      .slot_bytes = phase->slot_bytes,
                                      .huge = config->huge_pages,
                                      .node = config->numa_node};
    code = slab_open(&daemon->slab, &slab, error);
    if (code < 0) {
        return code;
    }
    code = daemon_open_reader(daemon, error);
    if (code < 0) {
        return code;
    }
    daemon->feed = (struct feed){.slab = &daemon->slab,
                                 .reader = daemon->reader,
                                 .catalog = daemon->catalog,
                                 .plans = &daemon->plans,
                                 .roster = &daemon->roster,
                                 .token_bytes = catalog_token_bytes(daemon->catalog),
                                 .payload_hashes = config->payload_hashes,
                                 .metrics = daemon->metrics,
                                 .failed = daemon_read_failed,
                                 .context = daemon};
    return feed_open(&daemon->feed, error);
}

/* What the store knows of each rank's commits. */
static int daemon_restore_ranks(struct daemon *daemon, struct error *error) {
    struct roster *roster = &daemon->roster;
    daemon->ranks = calloc(roster->count, sizeof *daemon->ranks);
    if (daemon->ranks == NULL) {
        return error_set(error, -ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct rank_place *place = &roster->members[i].place;
        struct store_rank rank = {
            .dp = place->dp, .pp = place->pp, .cp = place->cp, .tp = place->tp};
        int code = store_get_rank(daemon->store, &rank, error);
        if (code < 0) {
            return code;
        }
        roster_restore(&roster->members[i], rank.committed_step);
    }
    return 0;
}

/* Batches go out before their step is stored; none is of another mesh. */
static uint64_t daemon_claimable_step(const struct daemon *daemon) {
    uint64_t step = daemon->recovered.steps_end + DAEMON_UNDURABLE_MAX;
    return step < daemon->phase.end ? step : daemon->phase.end;
}

static int daemon_open_world(struct daemon *daemon, struct error *error) {
    const struct config *config = daemon->config;
    const struct phase *phase = &daemon->phase;
    const struct plan_options *plan = &phase->config->plan;
    const struct rank_place mesh = {.dp = plan->dp, .pp = plan->pp, .cp = plan->cp, .tp = plan->tp};
    int code = roster_init(&daemon->roster, &mesh, phase->config->replicas_local,
                           phase->micro_batches_max, config->lease_ms * 1000000ull,
                           daemon->recovered.committed_step, uv_hrtime());
    if (code < 0) {
        return error_set(error, code, "a mesh of dp %u, pp %u, cp %u, tp %u: %s", mesh.dp, mesh.pp,
                         mesh.cp, mesh.tp, strerror(-code));
    }
    roster_set_spans(&daemon->roster, phase->spans, phase->span_count);
    code = daemon_restore_ranks(daemon, error);
    if (code < 0) {
        return code;
    }
    code = measured_init(&daemon->measured, daemon->roster.replicas, phase->micro_batches_max,
                         daemon->roster.count);
    if (code < 0) {
        return error_set(error, code, "out of memory for measured times");
    }
    (void)snprintf(daemon->data_path, sizeof daemon->data_path, "%s.data", config->socket_path);
    daemon->job.data_path = daemon->data_path;
    daemon->job.begin_step = phase->begin;
    daemon->job.end_step = phase->end;
    daemon->job.next_mesh = phase->next;
    daemon->job.tokens_max = phase->tokens_max;
    daemon->job.token_bytes = daemon->feed.token_bytes;
    daemon->job.slab_bytes = daemon->slab.memory.bytes;
    daemon->job.credits_max = config->credits_max;
    daemon->job.replica_slots = daemon->slab.replica_slots;
    daemon->generation = (struct generation){.number = daemon->recovered.generation,
                                             .step = daemon->recovered.generation_step};
    memcpy(daemon->generation.by, daemon->recovered.generation_by, sizeof daemon->generation.by);
    daemon->exporter.daemon = daemon;
    if (rewind_open(&daemon->rewind, daemon, config->connections_max) < 0) {
        return error_set(error, -ENOMEM, "out of memory");
    }
    daemon->progress.claimable_step = daemon_claimable_step(daemon);
    daemon->planned_end = daemon->recovered.committed_step;
    daemon->rows_end = daemon->recovered.steps_end;
    daemon->state = ahead_encode(daemon->recovered.state, &daemon->state_bytes);
    return daemon->state == NULL ? error_set(error, -ENOMEM, "out of memory") : 0;
}

static int daemon_start_threads(struct daemon *daemon, struct error *error) {
    const struct recovered *recovered = &daemon->recovered;
    struct plan_state *scratch = schedule_state_create(daemon->schedule);
    if (scratch == NULL) {
        return error_set(error, -ENOMEM, "out of memory");
    }
    const struct memo_options options = {.scratch = scratch,
                                         .durable_step = recovered->steps_end,
                                         .committed_step = recovered->committed_step,
                                         .generation = recovered->generation,
                                         .exports_retained = daemon->config->exports_retained,
                                         .ranks_max = daemon->roster.count,
                                         .metrics = daemon->metrics};
    int code = memo_start(daemon->store, &options, daemon_wake, daemon, &daemon->memo, error);
    if (code < 0) {
        return code;
    }
    struct plan_state *state = daemon->recovered.state;
    daemon->recovered.state = NULL;
    return ahead_start(daemon->schedule, &daemon->source, catalog_domains(daemon->catalog), state,
                       daemon_wake, daemon, &daemon->ahead, error);
}

/* For files that are to be opened yet, so that no crowd of connections keeps tokens from being
 * read; while warming for all that serving takes. */
static uint32_t daemon_kept(void *context) {
    const struct daemon *daemon = context;
    return daemon->progress.warming ? files_open_max() + DAEMON_DESCRIPTORS
                                    : catalog_descriptors_wanted(daemon->catalog);
}

static int daemon_open_server(struct daemon *daemon, struct error *error) {
    daemon->job.version = DAEMON_VERSION_TEXT;
    daemon->progress.warming = true;
    daemon->world = (struct session_world){.ops = &turn_session_ops,
                                           .job = &daemon->job,
                                           .progress = &daemon->progress,
                                           .roster = &daemon->roster,
                                           .generation = &daemon->generation,
                                           .measured = &daemon->measured,
                                           .packed = &daemon->packed,
                                           .arena = &daemon->arena};
    daemon->server = (struct server){.loop = &daemon->loop,
                                     .config = daemon->config,
                                     .world = &daemon->world,
                                     .slab_fd = -1,
                                     .metrics = daemon->metrics,
                                     .touched = daemon_touched,
                                     .kept = daemon_kept,
                                     .context = daemon};
    return server_open(&daemon->server, error);
}

static void daemon_adopt(struct daemon *daemon, void *handle) {
    ((uv_handle_t *)handle)->data = daemon;
    daemon->handles++;
}

static void daemon_start_signals(struct daemon *daemon) {
    (void)uv_signal_init(&daemon->loop, &daemon->terminate);
    daemon_adopt(daemon, &daemon->terminate);
    (void)uv_signal_start(&daemon->terminate, daemon_signalled, SIGTERM);
    (void)uv_signal_init(&daemon->loop, &daemon->interrupt);
    daemon_adopt(daemon, &daemon->interrupt);
    (void)uv_signal_start(&daemon->interrupt, daemon_signalled, SIGINT);
    daemon_take_signals(false);
}

static void daemon_start_timers(struct daemon *daemon) {
    uint64_t tick_ms = daemon->config->lease_ms / 4;
    uint64_t watchdog_ms = notify_watchdog_ms();
    tick_ms = tick_ms < DAEMON_TICK_MS_MIN ? DAEMON_TICK_MS_MIN : tick_ms;
    tick_ms = tick_ms > DAEMON_TICK_MS_MAX ? DAEMON_TICK_MS_MAX : tick_ms;
    (void)uv_timer_init(&daemon->loop, &daemon->tick);
    daemon_adopt(daemon, &daemon->tick);
    daemon->tick_ns = tick_ms * 1000000u;
    daemon->ticked_ns = uv_hrtime();
    (void)uv_timer_start(&daemon->tick, daemon_tick, tick_ms, tick_ms);
    (void)uv_timer_init(&daemon->loop, &daemon->watchdog);
    daemon_adopt(daemon, &daemon->watchdog);
    if (watchdog_ms > 0) {
        (void)uv_timer_start(&daemon->watchdog, daemon_watchdog, watchdog_ms, watchdog_ms);
    }
}

/* The loop's own handles. `woken` first: threads may use it as soon as they run. */
static int daemon_start_loop(struct daemon *daemon, struct error *error) {
    int code = uv_async_init(&daemon->loop, &daemon->woken, daemon_woken);
    if (code < 0) {
        return error_set(error, code, "event loop: %s", uv_strerror(code));
    }
    daemon_adopt(daemon, &daemon->woken);
    (void)uv_prepare_init(&daemon->loop, &daemon->turn);
    daemon_adopt(daemon, &daemon->turn);
    (void)uv_prepare_start(&daemon->turn, daemon_turn);
    daemon_start_timers(daemon);
    daemon_start_signals(daemon);
    return 0;
}

static size_t daemon_scrape(void *context, char *out) {
    return scrape(context, out);
}

static bool daemon_ready(void *context, const char **why) {
    return scrape_ready(context, why);
}

static int daemon_open_http(struct daemon *daemon, struct error *error) {
    const struct http_options options = {.loop = &daemon->loop,
                                         .listen = daemon->config->metrics_listen,
                                         .text_bytes = SCRAPE_BYTES,
                                         .metrics = daemon_scrape,
                                         .ready = daemon_ready,
                                         .context = daemon};
    return strcmp(options.listen, "off") == 0 ? 0 : http_open(&options, &daemon->http, error);
}

/* What the loop needs to say how it is, then all the rest goes on behind it. */
static int daemon_open(struct daemon *daemon, struct error *error) {
    int code = store_lock(daemon->config->state_dir, true, &daemon->store, error);
    if (code == 0) {
        code = daemon_start_loop(daemon, error);
    }
    if (code == 0) {
        code = daemon_open_server(daemon, error);
    }
    if (code == 0) {
        code = daemon_open_http(daemon, error);
    }
    return code < 0 ? code : warm_start(&daemon->warm, daemon, error);
}

static int daemon_start_reading(struct daemon *daemon, struct error *error) {
    int code = uv_poll_init(&daemon->loop, &daemon->readable, daemon->reader->event_fd);
    if (code < 0) {
        return error_set(error, code, "event loop: %s", uv_strerror(code));
    }
    daemon_adopt(daemon, &daemon->readable);
    (void)uv_poll_start(&daemon->readable, UV_READABLE, daemon_readable);
    (void)uv_signal_init(&daemon->loop, &daemon->reload);
    daemon_adopt(daemon, &daemon->reload);
    (void)uv_signal_start(&daemon->reload, daemon_reload, SIGHUP);
    return 0;
}

static int daemon_open_rest(struct daemon *daemon, struct error *error) {
    int code = warm_finish(&daemon->warm, error);
    if (code == 0) {
        code = daemon_open_slab(daemon, error);
    }
    if (code == 0) {
        code = daemon_open_world(daemon, error);
    }
    if (code == 0) {
        code = daemon_start_reading(daemon, error);
    }
    return code < 0 ? code : daemon_start_threads(daemon, error);
}

/* The corpus and the store are open: ranks are served from here on, or it ends. */
static void daemon_warmed(struct daemon *daemon) {
    struct error error = {0};
    int code = daemon_open_rest(daemon, &error);
    if (code < 0) {
        daemon->exit_code = daemon_exit_code(code);
        log_line(LOG_ERR, "daemon", "cannot start: %s exit=%d", error.text, daemon->exit_code);
        uv_stop(&daemon->loop);
        return;
    }
    daemon->server.slab_fd = daemon->slab.memory.fd;
    daemon->progress.warming = false;
    daemon->ticked_ns = uv_hrtime();
    daemon->dirty = true;
    daemon_log_profile(config_at(daemon->config, daemon->roster.committed_step));
    log_line(LOG_NOTICE, "daemon",
             "serving socket=%s step=%" PRIu64 " slots=%u slab_bytes=%" PRIu64 " pages=%s",
             daemon->config->socket_path, daemon->roster.committed_step,
             daemon->slab.replicas * daemon->slab.replica_slots, slab_bytes(&daemon->slab),
             slab_pages_name(daemon->slab.memory.pages));
    notify_send("READY=1\nSTATUS=serving");
    daemon_take_signals(true);
}

static void daemon_walk_close(uv_handle_t *handle, void *context) {
    (void)context;
    if (!uv_is_closing(handle)) {
        uv_close(handle, daemon_handle_closed);
    }
}

/* From the outside in, threads before the handle that they wake; fine for a daemon that came up
 * only halfway. */
static int daemon_close(struct daemon *daemon, struct error *error) {
    warm_cancel(&daemon->warm);
    server_close(&daemon->server);
    http_close(daemon->http);
    ahead_stop(daemon->ahead);
    int code = memo_stop(daemon->memo, error);
    daemon_hold_signals(true);
    uv_walk(&daemon->loop, daemon_walk_close, NULL);
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    assert(daemon->handles == 0);
    server_deinit(&daemon->server);
    store_close(daemon->store);
    reader_close(daemon->reader);
    feed_close(&daemon->feed);
    plans_deinit(&daemon->plans);
    slab_close(&daemon->slab);
    roster_deinit(&daemon->roster);
    phase_deinit(&daemon->phase);
    measured_deinit(&daemon->measured);
    admin_deinit(&daemon->admin);
    schedule_destroy(daemon->schedule);
    rewind_close(&daemon->rewind);
    job_identity_deinit(&daemon->identity);
    catalog_close(daemon->catalog);
    recovered_deinit(&daemon->recovered);
    packed_deinit(&daemon->packed);
    arena_deinit(&daemon->arena);
    free(daemon->state);
    free(daemon->domains);
    free(daemon->ranks);
    free(daemon->metrics);
    (void)uv_loop_close(&daemon->loop);
    return code;
}

static void daemon_raise_limits(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

static int daemon_serve(struct daemon *daemon) {
    struct error error = {0};
    int code = daemon_open(daemon, &error);
    if (code < 0) {
        daemon->exit_code = daemon_exit_code(code);
        log_line(LOG_ERR, "daemon", "cannot start: %s exit=%d", error.text, daemon->exit_code);
    } else {
        (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    }
    code = daemon_close(daemon, &error);
    if (code < 0 && daemon->exit_code == 0) {
        daemon->exit_code = daemon_exit_code(code);
        log_line(LOG_ERR, "store", "not everything became durable: %s", error.text);
    }
    return daemon->exit_code;
}

/* One phase; true when another follows, with what is still to be said of the last SIGHUP. */
static bool daemon_run_phase(const struct daemon_options *options, struct config *config,
                             struct error *not_reloaded, int *exit_code) {
    bool again = false;
    struct daemon *daemon = calloc(1, sizeof *daemon);
    struct metrics *metrics = calloc(1, sizeof *metrics);
    *exit_code = DAEMON_EXIT_IO;
    if (daemon == NULL || metrics == NULL || uv_loop_init(&daemon->loop) < 0) {
        log_line(LOG_ERR, "daemon", "cannot start: out of memory or descriptors");
        free(metrics);
    } else {
        daemon->options = options;
        daemon->metrics = metrics;
        daemon->config = config;
        daemon->not_reloaded = *not_reloaded;
        daemon->start_ns = uv_hrtime();
        daemon->end_step = UINT64_MAX;
        daemon->balance = balance_of_nothing;
        daemon->slab.memory.fd = -1;
        arena_init(&daemon->arena, DAEMON_ARENA_BYTES);
        admin_init(&daemon->admin, daemon);
        *exit_code = daemon_serve(daemon);
        again = daemon->moving_on && *exit_code == 0;
        *not_reloaded = daemon->not_reloaded;
    }
    free(daemon);
    return again;
}

int daemon_run(const struct daemon_options *options) {
    struct error error;
    struct error not_reloaded = {0};
    struct config *config = NULL;
    int exit_code;
    log_open(LOG_INFO);
    daemon_hold_signals(false);
    if (config_load(options->config_path, options->overrides, options->override_count, &config,
                    &error) < 0) {
        log_line(LOG_ERR, "config", "%s", error.text);
        return error.code == -ENOMEM ? DAEMON_EXIT_IO : DAEMON_EXIT_CONFIG;
    }
    log_open(config->log_level);
    (void)signal(SIGPIPE, SIG_IGN);
    daemon_raise_limits();
    while (daemon_run_phase(options, config, &not_reloaded, &exit_code)) {
    }
    config_destroy(config);
    return exit_code;
}
