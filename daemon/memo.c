/* memo: see memo.h. */
#include "daemon/memo.h"

#include "corpus/thread.h"
#include "daemon/clock.h"
#include "daemon/failpoint.h"
#include "daemon/heartbeat.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMO_WAL_BYTES_IDLE (1u << 20) /* written back when nothing else is to do */
#define MEMO_WAL_BYTES_BUSY (8u << 20) /* written back before the next group */
#define MEMO_GROUP_BYTES    (2u << 20) /* of states, so that a group fits the WAL's 16 MB */
#define MEMO_IDLE_MS        50
#define MEMO_FULL_RETRY_MS  1000

struct memo_put {
    struct memo_put *next;
    struct store_step row; /* row.state is this put's */
    uint8_t *state;
    bool again; /* may have a row, of the same digest */
};

/* What one transaction takes in. */
struct memo_group {
    struct memo_put *puts; /* oldest first */
    struct memo_put **puts_tail;
    bool committed; /* `commits` are to be stored */
    struct memo_commits commits;
    struct store_rank *ranks;   /* of `commits`: ranks_max */
    struct memo_fetched *begun; /* generation.number is to be stored, and this is its answer */
    struct memo_generation generation;
    uint64_t exports[MEMO_EXPORTS_MAX];
    uint32_t export_count;
};

struct memo {
    /* Immutable after start. */
    pthread_t thread;
    struct store *store;        /* its thread's only */
    struct plan_state *scratch; /* likewise */
    uint32_t exports_retained;
    uint32_t ranks_max;
    struct metrics *metrics;
    struct heartbeat heartbeat; /* the thread's */
    void (*wake)(void *context);
    void *context;

    /* Under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping;
    bool unsettled; /* groups were stored since store_settle */
    struct memo_group gathered;
    struct store_rank *ranks; /* the list that `gathered` does not have: the group being stored */
    struct memo_fetched *wanted;  /* oldest first */
    struct memo_fetched *answers; /* oldest first */
    struct memo_progress progress;
    atomic_bool has_answers;  /* written with the list; the loop looks without the mutex */
    atomic_bool has_progress; /* the loop has not seen; likewise */
    bool tells;               /* the loop is to be woken */

    struct memo_progress seen; /* loop thread only */
};

static void memo_group_reset(struct memo_group *group) {
    group->puts = NULL;
    group->puts_tail = NULL;
    group->committed = false;
    group->begun = NULL;
    group->export_count = 0;
}

static void memo_put_destroy(struct memo_put *put) {
    free(put->state);
    free(put);
}

void memo_fetched_destroy(struct memo_fetched *fetched) {
    if (fetched != NULL) {
        free(fetched->row.state);
        free(fetched);
    }
}

static void memo_group_free(struct memo_group *group) {
    while (group->puts != NULL) {
        struct memo_put *next = group->puts->next;
        memo_put_destroy(group->puts);
        group->puts = next;
    }
    memo_fetched_destroy(group->begun);
    memo_group_reset(group);
}

static void memo_append(struct memo_fetched **list, struct memo_fetched *fetched) {
    while (*list != NULL) {
        list = &(*list)->next;
    }
    fetched->next = NULL;
    *list = fetched;
}

static struct memo_fetched *memo_shift(struct memo_fetched **list) {
    struct memo_fetched *first = *list;
    if (first != NULL) {
        *list = first->next;
        first->next = NULL;
    }
    return first;
}

/* Store's thread */

/* The first of what has gathered, as much as one group may hold; commits, exports and a generation
 * only with the last of their steps. */
static struct memo_group memo_group_take(struct memo *memo) {
    struct memo_group *gathered = &memo->gathered;
    struct memo_group group = *gathered;
    size_t bytes = 0;
    for (struct memo_put *put = group.puts; put != NULL && put->next != NULL; put = put->next) {
        bytes += put->row.state_bytes;
        if (bytes + put->next->row.state_bytes > MEMO_GROUP_BYTES) {
            gathered->puts = put->next;
            put->next = NULL;
            group.puts_tail = &put->next;
            group.committed = false;
            group.begun = NULL;
            group.export_count = 0;
            return group;
        }
    }
    memo_group_reset(gathered);
    gathered->ranks = memo->ranks;
    memo->ranks = group.ranks;
    return group;
}

/* The rows of the newest state, in the group that stores it. */
static int memo_write_rows(struct memo *memo, const struct store_step *newest,
                           struct error *error) {
    int code = plan_state_decode(memo->scratch, newest->state, newest->state_bytes, error);
    if (code < 0) {
        store_rollback(memo->store);
        return code;
    }
    return store_put_rows(memo->store, memo->scratch, error);
}

/* A step that was planned again: 1 when its row is there and the same, 0 when there is none. */
static int memo_compare(struct memo *memo, const struct memo_put *put, struct error *error) {
    struct store_step row;
    int code = store_get_step(memo->store, put->row.step, &row, error);
    if (code <= 0 || row.step != put->row.step) {
        return code < 0 ? code : 0;
    }
    if (memcmp(row.digest, put->row.digest, sizeof row.digest) != 0) {
        return error_set(error, -EBADMSG,
                         "step %" PRIu64 " comes out differently than it was stored; was the "
                         "corpus or the program changed? Serve a new job from a new state "
                         "directory",
                         row.step);
    }
    return 1;
}

static int memo_write_steps(struct memo *memo, const struct memo_group *group,
                            struct error *error) {
    int code = 0;
    for (const struct memo_put *put = group->puts; code >= 0 && put != NULL; put = put->next) {
        code = put->again ? memo_compare(memo, put, error) : 0;
        if (code == 0) {
            code = store_put_step(memo->store, &put->row, error);
        }
    }
    return code < 0 ? code : 0;
}

static int memo_write_exports(struct memo *memo, const struct memo_group *group,
                              struct error *error) {
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < group->export_count; i++) {
        code = store_put_export(memo->store, group->exports[i], memo->exports_retained, error);
    }
    return code;
}

static int memo_write_generation(struct memo *memo, const struct memo_group *group,
                                 struct error *error) {
    const struct memo_generation *generation = &group->generation;
    int code = store_put_generation(memo->store, generation->number, error);
    if (code == 0) {
        code = store_put_generation_begin(memo->store, generation->step, generation->by, error);
    }
    return code < 0 ? code : store_put_committed(memo->store, generation->step, error);
}

static int memo_write_commits(struct memo *memo, const struct memo_group *group,
                              struct error *error) {
    const struct memo_commits *commits = &group->commits;
    int code = store_put_committed(memo->store, commits->committed_step, error);
    if (code == 0) {
        code = store_put_ranks(memo->store, group->ranks, commits->rank_count, error);
    }
    return code < 0 ? code : store_prune(memo->store, commits->oldest_step_kept, error);
}

static int memo_write(struct memo *memo, const struct memo_group *group, struct error *error) {
    const struct store_step *newest = NULL;
    int code = store_begin(memo->store, error);
    if (code == 0) {
        code = memo_write_steps(memo, group, error);
    }
    for (const struct memo_put *put = group->puts; put != NULL; put = put->next) {
        newest = &put->row;
    }
    if (code == 0 && newest != NULL && memo->scratch != NULL) {
        code = memo_write_rows(memo, newest, error);
    }
    if (code == 0) {
        code = memo_write_exports(memo, group, error);
    }
    if (code == 0 && group->begun != NULL) {
        code = memo_write_generation(memo, group, error);
    }
    if (code == 0 && group->committed) {
        code = memo_write_commits(memo, group, error);
    }
    if (code < 0) {
        store_rollback(memo->store);
        return code;
    }
    return store_commit(memo->store, error);
}

/* What the loop has to know of a generation that is durable. */
static int memo_begin(struct memo *memo, struct memo_fetched *begun, struct error *error) {
    int code = store_rows_end(memo->store, begun->step, &begun->rows_end, error);
    while (code >= 0 && begun->digest_count < MEMO_DIGESTS_MAX &&
           begun->step + begun->digest_count < begun->rows_end) {
        struct store_step row;
        code = store_get_step(memo->store, begun->step + begun->digest_count, &row, error);
        if (code > 0) {
            memcpy(begun->digests[begun->digest_count++], row.digest, sizeof row.digest);
        }
    }
    return code < 0 ? code : 0;
}

static void memo_found(struct memo_fetched *fetched, const struct store_step *row) {
    fetched->row.state = malloc(row->state_bytes);
    if (fetched->row.state == NULL) {
        return;
    }
    memcpy(fetched->row.state, row->state, row->state_bytes);
    fetched->row.state_bytes = row->state_bytes;
    fetched->row.step = row->step;
    fetched->row.digest_known = true;
    memcpy(fetched->row.digest, row->digest, sizeof fetched->row.digest);
    fetched->found = true;
}

static void memo_read(struct memo *memo, struct memo_fetched *fetched, struct error *error) {
    struct store_step row;
    (void)FAILPOINT(fetch);
    if (store_get_step(memo->store, fetched->step, &row, error) == 1) {
        memo_found(fetched, &row);
    }
}

/* These are called with the mutex held and give it up while the store works. */

static void memo_news(struct memo *memo) {
    atomic_store(&memo->has_progress, true);
    memo->tells = true;
}

/* Without the mutex, which the loop will want. */
static void memo_tell(struct memo *memo) {
    memo->tells = false;
    (void)pthread_mutex_unlock(&memo->mutex);
    memo->wake(memo->context);
    (void)pthread_mutex_lock(&memo->mutex);
}

static void memo_give(struct memo *memo, struct memo_fetched *answer) {
    memo_append(&memo->answers, answer);
    atomic_store(&memo->has_answers, true);
    memo_news(memo);
}

static void memo_fail(struct memo *memo, const struct error *error) {
    memo->progress.failed = true;
    memo->progress.error = *error;
}

static void memo_answer(struct memo *memo) {
    struct memo_fetched *fetched = memo_shift(&memo->wanted);
    struct error error = {0};
    for (const struct memo_put *put = memo->gathered.puts; put != NULL; put = put->next) {
        if (put->row.step == fetched->step) {
            memo_found(fetched, &put->row);
        }
    }
    if (!fetched->found) {
        (void)pthread_mutex_unlock(&memo->mutex);
        memo_read(memo, fetched, &error);
        (void)pthread_mutex_lock(&memo->mutex);
    }
    if (error.code == -EBADMSG || error.code == -EIO) {
        memo_fail(memo, &error);
    }
    memo_give(memo, fetched);
}

static void memo_stored(struct memo *memo, struct memo_group *group, uint64_t commit_ns) {
    struct memo_progress *progress = &memo->progress;
    if (group->begun != NULL) {
        progress->durable_step = group->begun->rows_end;
        progress->durable_committed_step = group->generation.step;
        progress->generation = group->generation.number;
        progress->durable_change = group->generation.change;
        memo_give(memo, group->begun);
        group->begun = NULL;
    }
    for (const struct memo_put *put = group->puts; put != NULL; put = put->next) {
        if (put->row.step >= progress->durable_step) {
            progress->durable_step = put->row.step + 1;
        }
    }
    if (group->committed) {
        progress->durable_committed_step = group->commits.committed_step;
        progress->durable_change = group->commits.change;
    }
    if (memo->metrics != NULL) {
        histogram_observe(&memo->metrics->commit, commit_ns);
    }
    memo->progress.commit_ns = commit_ns;
    memo->progress.wal_bytes = store_wal_bytes(memo->store);
    memo->progress.full = false;
    memo->unsettled = true;
}

/* Puts a group that found the disk full back before what has gathered meanwhile. */
static void memo_restore(struct memo *memo, struct memo_group *group) {
    struct memo_group *gathered = &memo->gathered;
    if (group->puts != NULL) {
        *group->puts_tail = gathered->puts;
        if (gathered->puts == NULL) {
            gathered->puts_tail = group->puts_tail;
        }
        gathered->puts = group->puts;
    }
    if (group->committed && !gathered->committed && gathered->begun == NULL) {
        struct store_rank *ranks = gathered->ranks;
        gathered->committed = true;
        gathered->commits = group->commits;
        gathered->ranks = group->ranks;
        memo->ranks = ranks;
    }
    if (group->begun != NULL) {
        gathered->begun = group->begun;
        gathered->generation = group->generation;
    }
    for (uint32_t i = 0; i < group->export_count; i++) {
        if (gathered->export_count < MEMO_EXPORTS_MAX) {
            gathered->exports[gathered->export_count++] = group->exports[i];
        }
    }
}

static void memo_wait_ms(struct memo *memo, uint64_t ms) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + ms * 1000000u;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    (void)pthread_cond_timedwait(&memo->changed, &memo->mutex, &until);
}

static void memo_wait_for_space(struct memo *memo, struct memo_group *group) {
    bool known = memo->progress.full;
    heartbeat_end(&memo->heartbeat);
    memo_restore(memo, group);
    memo->progress.full = true;
    if (!known) {
        memo_news(memo);
        memo_tell(memo);
    }
    if (!memo->stopping) {
        uint64_t until_ns = clock_ns() + MEMO_FULL_RETRY_MS * 1000000ull;
        while (!memo->stopping && memo->wanted == NULL && clock_ns() < until_ns) {
            memo_wait_ms(memo, MEMO_FULL_RETRY_MS);
        }
    }
}

/* Writes the WAL back once it has more than `bytes`. */
static int memo_checkpoint(struct memo *memo, uint64_t bytes, struct error *error) {
    uint64_t start_ns = clock_ns();
    if (store_wal_bytes(memo->store) <= bytes) {
        return 0;
    }
    int code = store_checkpoint(memo->store, bytes, error);
    if (code == 0 && memo->metrics != NULL) {
        histogram_observe(&memo->metrics->checkpoint, clock_ns() - start_ns);
    }
    return code;
}

static void memo_commit(struct memo *memo) {
    struct memo_group group = memo_group_take(memo);
    struct error error = {0};
    (void)pthread_mutex_unlock(&memo->mutex);
    uint64_t start_ns = clock_ns();
    int code = memo_checkpoint(memo, MEMO_WAL_BYTES_BUSY, &error);
    if (code == 0 || code == -ENOSPC) {
        code = memo_write(memo, &group, &error);
    }
    if (code == 0 && group.begun != NULL) {
        code = memo_begin(memo, group.begun, &error);
    }
    uint64_t commit_ns = clock_ns() - start_ns;
    (void)FAILPOINT(group_durable);
    (void)pthread_mutex_lock(&memo->mutex);
    if (code == -ENOSPC) {
        memo_wait_for_space(memo, &group);
        return;
    }
    if (code < 0) {
        memo_fail(memo, &error);
    } else {
        memo_stored(memo, &group, commit_ns);
    }
    memo_group_free(&group);
    memo_news(memo);
}

/* What is left for when nothing else is to do: the WAL is written back, the mark synced. */
static void memo_settle(struct memo *memo) {
    struct error error = {0};
    memo->unsettled = false;
    (void)pthread_mutex_unlock(&memo->mutex);
    int code = store_settle(memo->store, &error);
    if (code == 0) {
        code = memo_checkpoint(memo, MEMO_WAL_BYTES_IDLE, &error);
    }
    uint64_t wal_bytes = store_wal_bytes(memo->store);
    (void)pthread_mutex_lock(&memo->mutex);
    memo->progress.wal_bytes = wal_bytes;
    atomic_store(&memo->has_progress, true);
    if (code == -ENOSPC) {
        memo->unsettled = true;
        memo_wait_ms(memo, MEMO_FULL_RETRY_MS);
    } else if (code < 0) {
        memo_fail(memo, &error);
        memo_news(memo);
    }
}

static bool memo_busy(const struct memo *memo) {
    const struct memo_group *gathered = &memo->gathered;
    return memo->wanted != NULL || gathered->puts != NULL || gathered->committed ||
           gathered->begun != NULL || gathered->export_count > 0;
}

/* Whether to go on: until stopped and written, or stopped with nothing more to be had. */
static bool memo_lives(const struct memo *memo) {
    if (memo->progress.failed) {
        return !memo->stopping;
    }
    return !memo->stopping || (memo_busy(memo) && !memo->progress.full);
}

static void memo_rest(struct memo *memo) {
    if (memo->progress.failed || !memo->unsettled) {
        (void)pthread_cond_wait(&memo->changed, &memo->mutex);
        return;
    }
    memo_wait_ms(memo, MEMO_IDLE_MS);
    if (!memo_busy(memo) && !memo->stopping) {
        heartbeat_begin(&memo->heartbeat);
        memo_settle(memo);
        heartbeat_end(&memo->heartbeat);
    }
}

static void *memo_run(void *argument) {
    struct memo *memo = argument;
    thread_begin("ballast-store", THREAD_PROMPT);
    (void)pthread_mutex_lock(&memo->mutex);
    while (memo_lives(memo)) {
        if (memo->progress.failed || !memo_busy(memo)) {
            memo_rest(memo);
        } else {
            heartbeat_begin(&memo->heartbeat);
            if (memo->wanted != NULL) {
                memo_answer(memo);
            } else {
                memo_commit(memo);
            }
            heartbeat_end(&memo->heartbeat);
        }
        if (memo->tells) {
            memo_tell(memo);
        }
    }
    (void)pthread_mutex_unlock(&memo->mutex);
    return NULL;
}

/* Loop thread */

static void memo_free(struct memo *memo) {
    memo_group_free(&memo->gathered);
    plan_state_destroy(memo->scratch);
    free(memo->gathered.ranks);
    free(memo->ranks);
    struct memo_fetched *fetched;
    while ((fetched = memo_shift(&memo->wanted)) != NULL) {
        memo_fetched_destroy(fetched);
    }
    while ((fetched = memo_shift(&memo->answers)) != NULL) {
        memo_fetched_destroy(fetched);
    }
    (void)pthread_cond_destroy(&memo->changed);
    (void)pthread_mutex_destroy(&memo->mutex);
    free(memo);
}

static int memo_no_memory(struct error *error) {
    return error_set(error, -ENOMEM, "no memory for the store's thread; free some memory");
}

int memo_start(struct store *store, const struct memo_options *options, void (*wake)(void *context),
               void *context, struct memo **out, struct error *error) {
    pthread_condattr_t monotonic;
    struct memo *memo = calloc(1, sizeof *memo);
    if (memo == NULL) {
        plan_state_destroy(options->scratch);
        return memo_no_memory(error);
    }
    memo->store = store;
    memo->scratch = options->scratch;
    memo->exports_retained = options->exports_retained;
    memo->ranks_max = options->ranks_max;
    memo->metrics = options->metrics;
    memo->wake = wake;
    memo->context = context;
    memo->progress.durable_step = options->durable_step;
    memo->progress.durable_committed_step = options->committed_step;
    memo->progress.generation = options->generation;
    memo->seen = memo->progress;
    memo_group_reset(&memo->gathered);
    (void)pthread_mutex_init(&memo->mutex, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&memo->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    memo->ranks = calloc(memo->ranks_max + 1u, sizeof *memo->ranks);
    memo->gathered.ranks = calloc(memo->ranks_max + 1u, sizeof *memo->ranks);
    bool fits = memo->ranks != NULL && memo->gathered.ranks != NULL;
    int code = fits ? thread_start(&memo->thread, memo_run, memo, "the store's thread", error)
                    : memo_no_memory(error);
    if (code < 0) {
        memo_free(memo);
        return code;
    }
    *out = memo;
    return 0;
}

int memo_stop(struct memo *memo, struct error *error) {
    if (memo == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&memo->mutex);
    memo->stopping = true;
    (void)pthread_cond_signal(&memo->changed);
    (void)pthread_mutex_unlock(&memo->mutex);
    (void)pthread_join(memo->thread, NULL);
    int code = memo->progress.failed ? memo->progress.error.code : 0;
    if (code < 0) {
        *error = memo->progress.error;
    }
    memo_free(memo);
    return code;
}

int memo_put_step(struct memo *memo, const struct step_plan *plan, bool again, uint8_t *state,
                  size_t state_bytes) {
    struct memo_put *put = calloc(1, sizeof *put);
    if (put == NULL) {
        free(state);
        return -ENOMEM;
    }
    put->state = state;
    put->again = again;
    store_step_init(&put->row, plan, state, state_bytes);
    (void)pthread_mutex_lock(&memo->mutex);
    struct memo_group *gathered = &memo->gathered;
    if (gathered->puts == NULL) {
        gathered->puts_tail = &gathered->puts;
    }
    *gathered->puts_tail = put;
    gathered->puts_tail = &put->next;
    (void)pthread_cond_signal(&memo->changed);
    (void)pthread_mutex_unlock(&memo->mutex);
    return 0;
}

void memo_put_commits(struct memo *memo, const struct memo_commits *commits) {
    assert(commits->rank_count <= memo->ranks_max);
    (void)pthread_mutex_lock(&memo->mutex);
    struct memo_group *gathered = &memo->gathered;
    gathered->committed = true;
    gathered->commits = *commits;
    gathered->commits.ranks = NULL;
    if (commits->rank_count > 0) {
        memcpy(gathered->ranks, commits->ranks, commits->rank_count * sizeof *gathered->ranks);
    }
    (void)pthread_cond_signal(&memo->changed);
    (void)pthread_mutex_unlock(&memo->mutex);
}

int memo_put_generation(struct memo *memo, const struct memo_generation *generation) {
    struct memo_fetched *begun = calloc(1, sizeof *begun);
    if (begun == NULL) {
        return -ENOMEM;
    }
    begun->purpose = MEMO_BEGUN;
    begun->step = generation->step;
    (void)pthread_mutex_lock(&memo->mutex);
    memo_fetched_destroy(memo->gathered.begun);
    memo->gathered.begun = begun;
    memo->gathered.generation = *generation;
    memo->gathered.committed = false;
    (void)pthread_cond_signal(&memo->changed);
    (void)pthread_mutex_unlock(&memo->mutex);
    return 0;
}

int memo_put_export(struct memo *memo, uint64_t step) {
    int code = -ENOBUFS;
    (void)pthread_mutex_lock(&memo->mutex);
    struct memo_group *gathered = &memo->gathered;
    if (gathered->export_count < MEMO_EXPORTS_MAX) {
        gathered->exports[gathered->export_count++] = step;
        code = 0;
        (void)pthread_cond_signal(&memo->changed);
    }
    (void)pthread_mutex_unlock(&memo->mutex);
    return code;
}

int memo_fetch(struct memo *memo, enum memo_purpose purpose, uint64_t step) {
    struct memo_fetched *fetched = calloc(1, sizeof *fetched);
    if (fetched == NULL) {
        return -ENOMEM;
    }
    fetched->purpose = purpose;
    fetched->step = step;
    (void)pthread_mutex_lock(&memo->mutex);
    memo_append(&memo->wanted, fetched);
    (void)pthread_cond_signal(&memo->changed);
    (void)pthread_mutex_unlock(&memo->mutex);
    return 0;
}

struct memo_fetched *memo_take(struct memo *memo) {
    if (!atomic_load(&memo->has_answers)) {
        return NULL;
    }
    (void)pthread_mutex_lock(&memo->mutex);
    struct memo_fetched *fetched = memo_shift(&memo->answers);
    atomic_store(&memo->has_answers, memo->answers != NULL);
    (void)pthread_mutex_unlock(&memo->mutex);
    return fetched;
}

bool memo_stuck(struct memo *memo, uint64_t now_ns, uint64_t limit_ns) {
    return heartbeat_stuck(&memo->heartbeat, now_ns, limit_ns);
}

void memo_progress(struct memo *memo, struct memo_progress *out) {
    if (atomic_exchange(&memo->has_progress, false)) {
        (void)pthread_mutex_lock(&memo->mutex);
        memo->seen = memo->progress;
        (void)pthread_mutex_unlock(&memo->mutex);
    }
    *out = memo->seen;
}
