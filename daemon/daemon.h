/* daemon: owns all parts, starts them in order and stops them in reverse.
 *
 * Three threads of ours: the loop (everything in this file unless said), the planner (ahead.c) and
 * the store (memo.c); the reader brings its own. Before these, one more opens corpus and store
 * (warm.c) while the loop already says how it is. They meet in two places: results are taken from
 * ahead and memo after `woken`, wishes go the other way under their mutexes. Loop callbacks only
 * note facts and set `dirty`; turn.c draws the conclusions once per round of the loop. */
#ifndef BALLAST_DAEMON_DAEMON_H
#define BALLAST_DAEMON_DAEMON_H

#include "corpus/source.h"
#include "daemon/admin.h"
#include "daemon/ahead.h"
#include "daemon/blob.h"
#include "daemon/config.h"
#include "daemon/export.h"
#include "daemon/feed.h"
#include "daemon/http.h"
#include "daemon/memo.h"
#include "daemon/metrics.h"
#include "daemon/phase.h"
#include "daemon/recover.h"
#include "daemon/rewind.h"
#include "daemon/samples.h"
#include "daemon/server.h"
#include "daemon/warm.h"

#define DAEMON_EXIT_USAGE    2
#define DAEMON_EXIT_DATA     65 /* the state or the corpus is damaged, or of a newer format */
#define DAEMON_EXIT_IO       74
#define DAEMON_EXIT_CONFIG   78
#define DAEMON_UNDURABLE_MAX 64u        /* steps planned but not yet durable, at most */
#define DAEMON_PLANS_MORE    64u        /* plans in memory beside ahead_steps, at most */
#define DAEMON_PLANS_BYTES   (4u << 20) /* ... and each of the three counts fits this much */
#define DAEMON_REPLAYS_MAX   64u
#define DAEMON_VERSION_TEXT  "ballastd " BALLAST_VERSION
#define DAEMON_STOP_NS       8000000000ull /* to make pending commits durable */

struct daemon_options {
    const char *config_path; /* NULL: none */
    const struct config_override *overrides;
    size_t override_count;
};

/* A step that is being planned again: first its row is fetched, then it is replayed. */
struct daemon_replay {
    uint64_t step;
    bool failed; /* `error`; told to the next who asks, then forgotten */
    struct error error;
};

/* How much of a limit is in use: now, and at most since the start. */
struct daemon_use {
    uint64_t now, most;
};

struct daemon {
    /* Immutable after start. */
    const struct daemon_options *options;
    uint64_t start_ns;
    struct session_job job;
    struct session_world world;
    struct catalog *catalog;
    struct corpus_source source;
    struct reader *reader;
    uint32_t reader_threads; /* 0: it has no pool */
    struct error io_lacks;   /* what reading does without, why, and the remedy; code 0: nothing */
    bool io_registered;      /* reads go straight into registered memory */
    uint8_t fingerprint[16];
    struct blob identity; /* of the job, as checkpoints state it; its texts are ours */
    char data_path[CONFIG_PATH_BYTES + 8];
    struct phase phase; /* that is served */

    /* The planner thread's while `ahead` runs. */
    struct schedule *schedule;
    /* The store thread's while `memo` runs. */
    struct store *store;

    /* Loop thread only from here on. */
    struct config *config;     /* reload.h says what changes with SIGHUP */
    struct error not_reloaded; /* why the last SIGHUP changed nothing; code 0: it did */
    uv_loop_t loop;
    uv_async_t woken; /* by ahead and memo, from their threads */
    uv_poll_t readable;
    uv_prepare_t turn;
    uv_timer_t tick;
    uv_timer_t watchdog;
    uv_signal_t terminate, interrupt, reload;
    uint32_t handles;   /* of those above, open */
    uint64_t tick_ns;   /* from one `tick` to the next */
    uint64_t ticked_ns; /* when `tick` last came */
    bool dirty;         /* something happened since the last turn */

    struct warm warm; /* while it runs, most of the rest is not there yet */
    struct ahead *ahead;
    struct memo *memo;
    struct slab slab;
    struct feed feed;
    struct plans plans;
    struct roster roster;
    struct measured measured;
    struct session_progress progress;
    struct memo_progress stored;
    struct packed packed;
    struct arena arena;
    struct server server;
    struct admin admin;
    struct generation generation;
    struct rewind rewind;
    struct exporter exporter;
    struct recovered recovered; /* digests are compared as steps are planned again */

    uint64_t planned_end;     /* first step not planned */
    uint64_t rows_end;        /* steps before it may have a row from before: they are compared */
    uint64_t end_step;        /* first step that does not exist, or will not be; UINT64_MAX */
    uint64_t changes_put;     /* of roster.changes, those that were given to the store */
    struct store_rank *ranks; /* for giving them: roster.count */
    uint8_t *state;           /* encoded, from which planned_end is planned */
    size_t state_bytes;
    struct balance balance; /* of the newest planned step, like the next */
    struct release release;
    struct domain_tally *domains; /* likewise; NULL without domains, or before the first */
    bool draining;
    bool stopping;
    bool closing;   /* connections and handles go */
    bool moving_on; /* stopping only to open anew, on the next phase */
    uint64_t stop_by_ns;
    int exit_code;
    struct daemon_replay replays[DAEMON_REPLAYS_MAX];
    uint32_t replay_count;
    /* Of any rank, also of one that is gone: what was planned for it stays. */
    uint64_t fastest_step;
    struct daemon_use ahead_steps; /* planned beyond fastest_step */
    struct daemon_use lead_steps;  /* of the fastest rank beyond committed_step */
    struct daemon_use in_hand;     /* parts held or looked at while the newest step was planned */
    struct daemon_use backlog;     /* tokens that wait after it, in steps' worth */
    struct daemon_use documents;   /* parts of the newest planned step */
    struct samples plan_ns;
    struct samples wait_ns;
    struct metrics *metrics; /* the histograms of the store: its thread's too */
    struct http *http;       /* NULL: off */
};

/* Runs until stopped; the process's exit code. */
int daemon_run(const struct daemon_options *options);

/* A failure after which nothing can go on: logged, then the daemon stops with this code. */
void daemon_fail(struct daemon *daemon, int exit_code, const struct error *error);

/* Exit code for a failure: damage 65, config 78, the rest 74. */
int daemon_exit_code(int error);

/* "warming", "serving", "seeking", "draining", "finished". */
const char *daemon_state(const struct daemon *daemon);

/* Plans no further step; the first one that will not come. */
uint64_t daemon_drain(struct daemon *daemon);

/* The phase is over: stops likewise, to open anew on the next. */
void daemon_move_on(struct daemon *daemon);

/* Begins to stop: nothing new, pending commits become durable, then everything closes. */
void daemon_stop(struct daemon *daemon);

#endif
