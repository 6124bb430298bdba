/* daemon_sim: the daemon in worlds that break; see sim.h.
 *
 * Each seed picks a case, limits and which faults there are and how often. Then, step by step, one
 * thing that could happen next is chosen and happens, and everything that must always hold is
 * looked at. After the chaos comes peace: no more faults, and every rank must reach the end of the
 * data.
 *
 *   daemon_sim                  as many seeds as fit BALLAST_SIM_SECONDS (30); with
 *                               BALLAST_TEST_FULL=1, 5,000
 *   daemon_sim --from 1000001   the same from that seed on
 *   daemon_sim --seeds 10000    seeds 1 to 10000
 *   daemon_sim --seed 17        one seed, telling what happens */
#include "sim.h"
#include "tests/property/splitmix.h"

#include <assert.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#define PEACE_STEPS_MAX 400000u
#define DYING_STEPS_MAX 100000u
#define EXIT_NONE       (-1)

struct sim sim;
static struct config_override overrides[8];
static char override_values[8][24];
static bool excused[SIM_RANKS_MAX]; /* was away for its lease: others went on without it */
static bool cut[SIM_RANKS_MAX];     /* was cut, and has not come back */
static uint64_t committed_before, committed_life, committed_generation;
static uint64_t restart_ns;
static uint64_t heal_ns; /* until then the disk is full or broken */
static struct {
    uint64_t kills, stops, rank_kills, job_kills, cuts, stuck, full, broken, rewinds, imports,
        nodes, meshes, fetches, leads;
} counts;

/* Failing */

static void sim_replay(void) {
    (void)fflush(stdout);
    (void)fprintf(stderr, "  to see it again: daemon_sim --seed %" PRIu64 "\n", sim.seed);
}

void sim_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)fprintf(stderr, "seed %" PRIu64 ", step %" PRIu64 ", life %" PRIu64 ": ", sim.seed,
                  sim.steps, sim.lives);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    sim_replay();
    _exit(1);
}

static void sim_aborted(int number) {
    (void)number;
    (void)fprintf(stderr, "seed %" PRIu64 ", step %" PRIu64 ": aborted\n", sim.seed, sim.steps);
    sim_replay();
    _exit(1);
}

void sim_note(const void *bytes, size_t count) {
    sim.trace = XXH3_64bits_withSeed(bytes, count, sim.trace);
}

void sim_say(const char *format, ...) {
    va_list arguments;
    if (!sim.verbose) {
        return;
    }
    va_start(arguments, format);
    (void)printf("%8" PRIu64 " %10.3f ms  ", sim.steps, (double)sim.now_ns / 1e6);
    (void)vprintf(format, arguments);
    (void)putchar('\n');
    va_end(arguments);
}

uint32_t sim_between(uint32_t low, uint32_t high) {
    return splitmix_between(&sim.random, low, high);
}

bool sim_chance(uint32_t in_10000) {
    return in_10000 > 0 && sim_between(0, 9999) < in_10000;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* What must hold whenever the loop rests */

static void check_slots(const struct daemon *daemon) {
    const struct slab *slab = &daemon->slab;
    uint32_t reading = 0;
    for (uint32_t i = 0; i < slab->replicas * slab->replica_slots; i++) {
        const struct slot *slot = &slab->slots[i];
        const struct slot_header *header =
            (const struct slot_header *)(const void *)(slab->memory.base +
                                                       slab_slot_offset(slab, i));
        uint32_t holders = 0;
        for (uint32_t c = 0; c < daemon->server.conn_count; c++) {
            const struct session *session = &daemon->server.conns[c]->session;
            uint32_t holds = 0;
            for (uint32_t h = 0; h < session->held_count; h++) {
                holds += session->held[h].slot == i;
            }
            sim_check(holds <= 1, "slot %u is held %u times by one session", i, holds);
            holders += holds;
        }
        sim_check(holders == slot->holders, "slot %u has %u holders and counts %u", i, holders,
                  slot->holders);
        sim_check(holders == 0 || slot->state == SLOT_READY, "slot %u is held in state %d", i,
                  (int)slot->state);
        sim_check(atomic_load(&header->generation) == slot->generation,
                  "slot %u shows another generation", i);
        reading += slot->state == SLOT_READING;
    }
    sim_check(reading >= daemon->feed.reading && (reading > 0) == (daemon->feed.reading > 0) &&
                  daemon->feed.reading == sim_reads_in_flight(),
              "%u slots are being read, %u jobs, %u reads", reading, daemon->feed.reading,
              sim_reads_in_flight());
}

int __real_loader_judge(struct session *session);
int __wrap_loader_judge(struct session *session);

/* A rank that is cut for its silence has no claims any more. */
int __wrap_loader_judge(struct session *session) {
    uint32_t i = (uint32_t)(session->member - session->world->roster->members);
    int code = __real_loader_judge(session);
    cut[i] |= code < 0;
    return code;
}

int __real_roster_join(struct roster *roster, struct member *member, uint64_t now_ns);
int __wrap_roster_join(struct roster *roster, struct member *member, uint64_t now_ns);

int __wrap_roster_join(struct roster *roster, struct member *member, uint64_t now_ns) {
    int code = __real_roster_join(roster, member, now_ns);
    cut[member - roster->members] &= code < 0;
    return code;
}

enum session_answer __real_feed_take(struct feed *feed, uint32_t replica,
                                     const struct step_plan *plan, uint32_t micro_batch,
                                     bool subscribed, bool last, struct session_batch *batch,
                                     struct error *error);
enum session_answer __wrap_feed_take(struct feed *feed, uint32_t replica,
                                     const struct step_plan *plan, uint32_t micro_batch,
                                     bool subscribed, bool last, struct session_batch *batch,
                                     struct error *error);

/* The first step that some live rank has neither committed nor passed over by where it began. */
static uint64_t last_step(const struct roster *roster) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        uint64_t from = member->streaming ? member->from_step : 0;
        uint64_t done = from > member->committed_step ? from : member->committed_step;
        lowest = roster_live(member, sim.now_ns) ? smaller(lowest, done) : lowest;
    }
    return lowest;
}

/* All batches are taken here, those without bytes too: none is too far beyond the slowest rank. */
enum session_answer __wrap_feed_take(struct feed *feed, uint32_t replica,
                                     const struct step_plan *plan, uint32_t micro_batch,
                                     bool subscribed, bool last, struct session_batch *batch,
                                     struct error *error) {
    uint64_t slowest = last_step(feed->roster);
    sim_check(plan->step < slowest + sim.lead_steps,
              "step %" PRIu64 " is handed out while a rank is at %" PRIu64, plan->step, slowest);
    return __real_feed_take(feed, replica, plan, micro_batch, subscribed, last, batch, error);
}

void sim_count_fetch(void) {
    counts.fetches++;
}

static void check_cut(const struct roster *roster) {
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        const struct member *member = &roster->members[i];
        sim_check(!cut[i] || member->connected || !roster_live(member, sim.now_ns),
                  "rank %u was cut and its lease lives on", i);
    }
}

/* A step that was acknowledged to every rank is committed, after any restart, whether or not the
 * ranks are still there. */
static void check_acknowledged(const struct daemon *daemon) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        lowest = smaller(lowest, sim_rank_acknowledged(i, daemon->generation.number));
    }
    sim_check(daemon->roster.committed_step >= lowest,
              "steps to %" PRIu64 " were acknowledged to all ranks, committed_step is %" PRIu64,
              lowest, daemon->roster.committed_step);
}

void sim_excuse(uint32_t i) {
    excused[i] = true;
}

static void check_progress(const struct daemon *daemon) {
    const struct roster *roster = &daemon->roster;
    sim_check(daemon->progress.durable_step <= sim_disk_durable_step(),
              "steps to %" PRIu64 " are called durable, rows are to %" PRIu64,
              daemon->progress.durable_step, sim_disk.rows_end);
    bool rewinding = sim_disk.generation > daemon->generation.number; /* durable, not yet known */
    sim_check(rewinding || daemon->progress.durable_committed_step <= sim_disk.committed_step,
              "committed_step %" PRIu64 " is called durable, stored is %" PRIu64,
              daemon->progress.durable_committed_step, sim_disk.committed_step);
    uint64_t generation = daemon->generation.number;
    if (committed_life != sim.lives || committed_generation != generation) {
        committed_life = sim.lives;
        committed_generation = generation;
        committed_before = 0;
        for (uint32_t i = 0; i < sim_rank_count(); i++) {
            excused[i] = true; /* a seek may go on, too */
        }
    }
    sim_check(roster->committed_step >= committed_before, "committed_step falls");
    committed_before = roster->committed_step;
    for (uint32_t c = 0; c < daemon->server.conn_count; c++) {
        const struct session *session = &daemon->server.conns[c]->session;
        if (session->cut && session->member != NULL) {
            sim_rank_cut((uint32_t)(session->member - roster->members));
        }
    }
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        uint64_t since_ns = sim_rank_gone_since_ns(i);
        since_ns = since_ns > 0 && since_ns < sim.started_ns ? sim.started_ns : since_ns;
        uint64_t gone_ns = since_ns == SIM_NEVER ? 0 : sim.now_ns - since_ns;
        excused[i] |= gone_ns >= roster->lease_ns;
        if (sim_rank_told_step(i) >= roster->committed_step) {
            excused[i] = gone_ns >= roster->lease_ns;
        }
        sim_check(excused[i] || roster->committed_step <= sim_rank_told_step(i),
                  "committed_step is %" PRIu64 ", rank %u committed only to %" PRIu64,
                  roster->committed_step, i, sim_rank_told_step(i));
    }
}

static void check_bounds(const struct daemon *daemon) {
    uint64_t plans_max = daemon->config->ahead_steps + DAEMON_PLANS_MORE + DAEMON_UNDURABLE_MAX +
                         DAEMON_REPLAYS_MAX + daemon->slab.replicas * daemon->slab.replica_slots;
    sim_check(daemon->plans.count <= plans_max, "%u plans in memory", daemon->plans.count);
    sim_check(daemon->replay_count <= DAEMON_REPLAYS_MAX, "%u replays", daemon->replay_count);
    sim_check(daemon->planned_end <= sim_case->count, "more steps are planned than there are");
    for (uint32_t c = 0; c < daemon->server.conn_count; c++) {
        const struct conn *conn = daemon->server.conns[c];
        sim_check(conn->waiting.used <= CONN_OUTPUT_BYTES + FRAME_DATA_BYTES_MAX,
                  "%zu bytes wait for a peer", conn->waiting.used);
        sim_check(conn->session.commit_count <= SESSION_COMMITS_MAX, "too many commits wait");
    }
    counts.leads += roster_leader(&daemon->roster) != NULL;
}

static void follow_mesh(const struct daemon *daemon) {
    const struct roster *roster = &daemon->roster;
    if (sim_ranks_are_of(&roster->mesh)) {
        return;
    }
    counts.meshes++;
    sim_ranks_change(&roster->mesh, roster->committed_step, daemon->start_ns);
    for (uint32_t i = 0; i < SIM_RANKS_MAX; i++) {
        excused[i] = true;
        cut[i] = false;
    }
}

static bool daemon_serves(void) {
    return sim.daemon != NULL && sim_uv_at_poll() && sim.daemon->server.conns != NULL &&
           !sim.daemon->progress.warming;
}

static void check_always(void) {
    if (daemon_serves()) {
        follow_mesh(sim.daemon);
        check_slots(sim.daemon);
        check_cut(&sim.daemon->roster);
        check_acknowledged(sim.daemon);
        check_progress(sim.daemon);
        check_bounds(sim.daemon);
    }
}

/* The daemon's life */

static void daemon_main(void) {
    const struct daemon_options options = {
        .config_path = sim_case->config_path, .overrides = overrides, .override_count = 7};
    sim.exit_code = daemon_run(&options);
}

static void daemon_begin(void) {
    sim.lives++;
    sim.exit_code = EXIT_NONE;
    sim.started_ns = sim.now_ns;
    memset(cut, 0, sizeof cut);
    sim_say("the daemon starts");
    sim_thread_start(daemon_main);
}

static bool daemon_lives(void) {
    return sim_thread_alive(0);
}

static void daemon_over(void) {
    sim_say("the daemon is gone exit=%d", sim.exit_code);
    sim_uv_reset();
    sim_ranks_daemon_died();
    sim.dead = false;
    restart_ns = sim.now_ns + (sim.peace ? 0 : sim_between(0, 300) * SIM_MS);
}

/* kill -9: what it did until now is all that counts; then it unwinds, outside of time, so that its
 * memory comes back. */
static void daemon_kill(void) {
    uint64_t now_ns = sim.now_ns;
    uint32_t steps = 0;
    sim_say("the daemon is killed");
    sim_disk_crash();
    sim.dead = true;
    sim_uv_signal(SIGTERM);
    while (daemon_lives()) {
        bool ran = false;
        for (uint32_t i = 0; i < SIM_THREADS && daemon_lives(); i++) {
            sim_thread_stall(i, 0);
            if (sim_thread_runnable(i)) {
                sim_thread_resume(i);
                ran = true;
            }
        }
        if (sim_reads_in_flight() > 0) {
            sim_reads_complete();
        }
        sim.now_ns += ran ? 0 : 10 * SIM_MS;
        sim_check(++steps < DYING_STEPS_MAX, "the daemon does not end");
    }
    sim.now_ns = now_ns;
    daemon_over();
}

/* Whether an end that nobody asked for is one that the world explains. */
static void daemon_ended(bool asked) {
    bool broken = sim_disk.finished && sim.exit_code == DAEMON_EXIT_IO;
    sim_check(broken || (asked && sim.exit_code == 0), "the daemon ends with exit code %d",
              sim.exit_code);
    daemon_over();
}

/* The schedule */

static bool stopping; /* it was sent SIGTERM */

static void fault_disk(bool broken) {
    uint64_t end_ns = sim.now_ns + sim_between(10, 3000) * SIM_MS;
    sim_say("the disk is %s", broken ? "broken" : "full");
    sim_disk.broken |= broken;
    sim_disk.full |= !broken;
    heal_ns = end_ns > heal_ns || heal_ns == SIM_NEVER ? end_ns : heal_ns;
    counts.broken += broken;
    counts.full += !broken;
}

static void disk_heal(void) {
    sim_disk.broken = false;
    sim_disk.full = false;
    heal_ns = SIM_NEVER;
}

static void fault_job(void) {
    counts.job_kills++;
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        sim_rank_kill(i);
    }
    if (daemon_lives()) {
        daemon_kill();
    }
}

/* Only what ranks have in their checkpoint is left; they begin on a new node with that. */
static void fault_node(void) {
    if (!sim_ranks_rewind(true)) {
        return;
    }
    counts.nodes++;
    fault_job();
    sim_disk_wipe();
}

static void faults(void) {
    uint32_t rank = sim_between(0, sim_rank_count() - 1);
    if (daemon_lives() && sim_chance(sim.faults.kill_daemon)) {
        counts.kills++;
        daemon_kill();
    }
    if (daemon_lives() && !stopping && sim_chance(sim.faults.stop_daemon)) {
        counts.stops++;
        stopping = true;
        sim_uv_signal(SIGTERM);
    }
    if (sim_chance(sim.faults.kill_rank)) {
        counts.rank_kills++;
        sim_rank_kill(rank);
    }
    if (sim_chance(sim.faults.lose_wire)) {
        counts.cuts++;
        sim_rank_lose(rank);
    }
    if (sim_chance(sim.faults.stick_rank)) {
        counts.stuck++;
        sim_rank_stick(rank, sim.now_ns + sim_between(1, 4000) * SIM_MS);
    }
    if (sim_chance(sim.faults.stick_thread)) {
        sim_thread_stall(sim_between(0, SIM_THREADS - 1),
                         sim.now_ns + sim_between(1, 1000) * SIM_MS);
    }
    if (sim_chance(sim.faults.kill_all)) {
        fault_job();
    }
    if (sim_chance(sim.faults.rewind)) {
        counts.rewinds += sim_ranks_rewind(false);
    }
    if (sim_chance(sim.faults.import)) {
        counts.imports += sim_ranks_rewind(true);
    }
    if (sim_chance(sim.faults.lose_node)) {
        fault_node();
    }
    if (sim_chance(sim.faults.disk_full)) {
        fault_disk(false);
    }
    if (sim_chance(sim.faults.disk_broken)) {
        fault_disk(true);
    }
}

/* Nothing can happen now: when can it? */
static uint64_t next_ns(void) {
    uint64_t due_ns = smaller(sim_reads_due_ns(), heal_ns);
    due_ns = smaller(due_ns, daemon_lives() ? sim_uv_due_ns() : restart_ns);
    for (uint32_t i = 0; i < SIM_THREADS; i++) {
        due_ns = smaller(due_ns, sim_thread_due_ns(i));
    }
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        due_ns = smaller(due_ns, sim_rank_due_ns(i));
    }
    return due_ns;
}

enum { ACTOR_RANKS = SIM_THREADS, ACTOR_READER = SIM_THREADS + SIM_RANKS_MAX, ACTORS };

static uint32_t gather(uint32_t ready[ACTORS]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < SIM_THREADS; i++) {
        if (sim_thread_runnable(i)) {
            ready[count++] = i;
        }
    }
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        if (sim_rank_ready(i)) {
            ready[count++] = ACTOR_RANKS + i;
        }
    }
    if (sim_reads_due()) {
        ready[count++] = ACTOR_READER;
    }
    return count;
}

static void act(uint32_t actor) {
    if (actor < SIM_THREADS) {
        sim_thread_resume(actor);
        if (actor == 0 && !daemon_lives()) {
            daemon_ended(stopping);
            stopping = false;
        }
    } else if (actor < ACTOR_READER) {
        sim_rank_act(actor - ACTOR_RANKS);
    } else {
        sim_reads_complete();
    }
}

static void step(void) {
    uint32_t ready[ACTORS];
    sim.steps++;
    if (!daemon_lives() && sim.now_ns >= restart_ns) {
        stopping = false;
        daemon_begin();
    }
    if (sim.now_ns >= heal_ns) {
        disk_heal();
    }
    if (!sim.peace) {
        faults();
    }
    uint32_t count = gather(ready);
    bool waits = count == 0 || (!sim.peace && sim_between(0, 30) == 0);
    if (waits) {
        uint64_t due_ns = next_ns();
        sim_check(due_ns != SIM_NEVER || count > 0, "nothing will ever happen again");
        if (due_ns != SIM_NEVER && due_ns > sim.now_ns) {
            sim.now_ns = due_ns;
        }
    } else {
        uint32_t actor = ready[sim_between(0, count - 1)];
        sim_note(&actor, sizeof actor);
        sim.now_ns += sim_between(0, 50) * 1000;
        act(actor);
    }
    check_always();
}

/* Seeds */

static uint32_t rate(uint32_t most) {
    return sim_between(0, 1) == 0 ? 0 : sim_between(1, most);
}

static void override(uint32_t i, const char *key, const char *format, uint64_t value) {
    (void)snprintf(override_values[i], sizeof override_values[i], format,
                   (unsigned long long)value);
    overrides[i] = (struct config_override){.key = key, .value = override_values[i]};
}

static void choose(void) {
    sim.credits = sim_between(1, 6);
    uint32_t replicas = 1; /* of the widest mesh */
    for (uint64_t i = 0; i < sim_case->count; i++) {
        replicas = sim_case->plans[i]->dp > replicas ? sim_case->plans[i]->dp : replicas;
    }
    sim.faults = (struct sim_faults){.kill_daemon = rate(30),
                                     .stop_daemon = rate(10),
                                     .kill_rank = rate(40),
                                     .kill_all = rate(5),
                                     .lose_wire = rate(60),
                                     .stick_rank = rate(30),
                                     .stick_thread = rate(30),
                                     .rewind = rate(10),
                                     .import = rate(6),
                                     .lose_node = rate(3),
                                     .open_anew = rate(60),
                                     .disk_full = rate(10),
                                     .disk_broken = rate(5),
                                     .read_error = rate(300),
                                     .short_wire = rate(1) * sim_between(40, 900)};
    sim.polite = sim_between(0, 1) == 0;
    sim.claims = sim_between(0, 1) == 0;
    override(0, "daemon.lease", "%llums", sim_between(100, 2000));
    override(1, "daemon.ahead_steps", "%llu", sim_between(1, 5));
    override(2, "limits.credits", "%llu", sim.credits);
    override(3, "slab.slots", "%llu", replicas * sim_between(sim.credits + 2, sim.credits + 6));
    override(4, "reader.payload_hashes", sim_between(0, 1) == 0 ? "true" : "false", 0);
    override(5, "limits.steps_retained", "%llu", 1000);
    sim.lead_steps = sim_between(0, 1) == 0 ? sim_between(4, 8) : 1000; /* 4: commit_every */
    override(6, "limits.lead_steps", "%llu", sim.lead_steps);
}

static bool all_over(void) {
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        if (!sim_rank_over(i)) {
            return false;
        }
    }
    return true;
}

static void peace(void) {
    uint64_t end = sim.steps + PEACE_STEPS_MAX;
    sim_say("peace");
    sim.peace = true;
    disk_heal();
    for (uint32_t i = 0; i < sim_rank_count(); i++) {
        sim_rank_stick(i, 0);
    }
    for (uint32_t i = 0; i < SIM_THREADS; i++) {
        sim_thread_stall(i, 0);
    }
    while (!all_over()) {
        step();
        sim_check(sim.steps < end, "in peace, a rank does not reach the end of the data");
    }
    if (daemon_lives()) { /* what was acknowledged is to be there once more */
        daemon_kill();
    }
    do {
        step();
        sim_check(sim.steps < end, "the daemon does not come back");
    } while (!daemon_serves());
    while (daemon_lives()) {
        stopping = true;
        sim_uv_signal(SIGTERM);
        step();
        sim_check(sim.steps < end, "the daemon does not stop");
        if (!daemon_lives()) {
            break;
        }
    }
}

static uint64_t run_seed(uint64_t seed, bool verbose) {
    sim = (struct sim){.seed = seed, .random = seed, .now_ns = 1000 * SIM_MS, .verbose = verbose};
    sim_case = sim_world_case(sim_between(0, sim_world_cases() - 1));
    memset(excused, 0, sizeof excused);
    memset(cut, 0, sizeof cut);
    committed_before = 0;
    committed_life = 0;
    restart_ns = 0;
    stopping = false;
    heal_ns = SIM_NEVER;
    choose();
    sim_disk_wipe();
    sim_ranks_open();
    for (uint32_t i = sim_between(100, 6000); i > 0 && !all_over(); i--) {
        step();
    }
    peace();
    sim_ranks_close();
    return sim.trace;
}

static uint64_t seconds_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static uint64_t clock_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t seed_first = 1, seeds_wanted;

static void
whatever_breaks_the_stream_is_the_reference_and_in_peace_all_reach_its_end(void **state) {
    uint64_t begin_ns = clock_now_ns();
    uint64_t budget_ns = seconds_of("BALLAST_SIM_SECONDS", 30) * 1000000000u;
    uint64_t seeds = 0, steps = 0, lives = 0;
    (void)state;
    while (seeds_wanted > 0 ? seeds < seeds_wanted : clock_now_ns() - begin_ns < budget_ns) {
        (void)run_seed(seed_first + seeds++, false);
        steps += sim.steps;
        lives += sim.lives;
    }
    print_message(
        "%" PRIu64 " seeds, %" PRIu64 " steps of the schedule, %" PRIu64
        " lives of the daemon in %.1f s: kills %" PRIu64 ", stops %" PRIu64
        ", ranks killed %" PRIu64 ", jobs killed %" PRIu64 ", connections lost %" PRIu64
        ", ranks stuck %" PRIu64 ", disk full %" PRIu64 ", broken %" PRIu64 ", rewinds %" PRIu64
        ", imports %" PRIu64 ", nodes lost %" PRIu64 ", meshes changed %" PRIu64
        ", batches fetched %" PRIu64 ", states with a rank in the lead %" PRIu64 "\n",
        seeds, steps, lives, (double)(clock_now_ns() - begin_ns) / 1e9, counts.kills, counts.stops,
        counts.rank_kills, counts.job_kills, counts.cuts, counts.stuck, counts.full, counts.broken,
        counts.rewinds, counts.imports, counts.nodes, counts.meshes, counts.fetches, counts.leads);
}

static void the_same_seed_is_the_same_history(void **state) {
    (void)state;
    for (uint64_t seed = seed_first; seed < seed_first + 20; seed++) {
        uint64_t trace = run_seed(seed, false);
        uint64_t steps = sim.steps;
        assert_int_equal(run_seed(seed, false), trace);
        assert_int_equal(sim.steps, steps);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_is_the_same_history),
        cmocka_unit_test(
            whatever_breaks_the_stream_is_the_reference_and_in_peace_all_reach_its_end),
    };
    uint64_t one = argc == 3 && strcmp(argv[1], "--seed") == 0 ? strtoull(argv[2], NULL, 10) : 0;
    seeds_wanted = getenv("BALLAST_TEST_FULL") != NULL ? 5000 : 0;
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        seeds_wanted = strtoull(argv[2], NULL, 10);
    } else if (argc == 3 && strcmp(argv[1], "--from") == 0) {
        seed_first = strtoull(argv[2], NULL, 10);
    }
    (void)signal(SIGABRT, sim_aborted);
    sim_world_open();
    int failed = 0;
    if (one != 0) {
        (void)printf("seed %" PRIu64 ": trace %016" PRIx64 "\n", one, run_seed(one, true));
    } else {
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    }
    sim_world_close();
    return failed != 0;
}
