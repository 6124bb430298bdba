/* recover: see recover.h. */
#include "daemon/recover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void recovered_deinit(struct recovered *recovered) {
    plan_state_destroy(recovered->state);
    free(recovered->digests);
    *recovered = (struct recovered){0};
}

void recovered_restart(struct recovered *recovered, uint64_t step,
                       const uint8_t (*digests)[PLAN_DIGEST_BYTES], uint32_t count) {
    uint8_t(*own)[PLAN_DIGEST_BYTES] = calloc(count + 1u, sizeof *own);
    free(recovered->digests);
    recovered->digests = own;
    recovered->committed_step = step;
    recovered->steps_end = step + (own == NULL ? 0 : count);
    if (own != NULL && count > 0) {
        memcpy(own, digests, count * sizeof *own);
    }
}

const uint8_t *recovered_digest(const struct recovered *recovered, uint64_t step) {
    return step >= recovered->committed_step && step < recovered->steps_end
               ? recovered->digests[step - recovered->committed_step]
               : NULL;
}

static int recover_digests(struct store *store, struct recovered *out, struct error *error) {
    uint64_t first = out->committed_step;
    uint64_t count = out->steps_end > first ? out->steps_end - first : 0;
    out->digests = calloc(count + 1, sizeof *out->digests);
    if (out->digests == NULL) {
        return error_set(error, -ENOMEM, "recovery: out of memory for %" PRIu64 " digests", count);
    }
    for (uint64_t step = first; step < out->steps_end; step++) {
        struct store_step row;
        int code = store_get_step(store, step, &row, error);
        if (code < 0) {
            return code;
        }
        if (code == 0 || row.step != step) {
            return error_set(error, -EBADMSG, "stored steps have a gap at %" PRIu64, step);
        }
        memcpy(out->digests[step - first], row.digest, sizeof row.digest);
    }
    return 0;
}

static int recover_state(struct store *store, struct replay *replay, struct recovered *out,
                         struct error *error) {
    struct store_step stored;
    int code = store_get_step(store, out->committed_step, &stored, error);
    if (code < 0) {
        return code;
    }
    if (code == 0) {
        return out->committed_step == 0
                   ? 0
                   : error_set(error, -EBADMSG,
                               "step %" PRIu64 " is committed, but no state at or before it is "
                               "stored",
                               out->committed_step);
    }
    /* The row's state is the store's; replaying only reads it. */
    struct replay_row row = {.step = stored.step,
                             .state = (uint8_t *)stored.state,
                             .state_bytes = stored.state_bytes,
                             .digest_known = true};
    memcpy(row.digest, stored.digest, sizeof row.digest);
    return replay_seek(replay, &row, out->committed_step, error);
}

int recover(struct store *store, struct schedule *schedule, const struct corpus_source *source,
            struct recovered *out, struct error *error) {
    struct store_summary summary;
    struct replay replay = {0};
    *out = (struct recovered){0};
    int code = store_summary(store, &summary, error);
    if (code < 0) {
        return code;
    }
    out->committed_step = summary.committed_step;
    out->generation = summary.generation;
    out->generation_step = summary.generation_step;
    memcpy(out->generation_by, summary.generation_by, sizeof out->generation_by);
    code = store_rows_end(store, out->committed_step, &out->steps_end, error);
    if (code == 0) {
        code = replay_open(&replay, schedule, source, error);
    }
    if (code == 0) {
        code = recover_state(store, &replay, out, error);
    }
    if (code == 0) {
        out->state = replay.state;
        replay.state = NULL;
        code = recover_digests(store, out, error);
    }
    replay_close(&replay);
    if (code < 0) {
        recovered_deinit(out);
    }
    return code;
}

/* Where the new history begins: the state stays as it was, its step is planned by other options. */
struct fork {
    uint64_t step;
    struct replay_row row; /* without a state: there is no row */
    struct step_plan *plan;
};

static int fork_find(struct fork *fork, struct store *store, struct error *error) {
    struct store_step row;
    int code = store_get_step(store, fork->step, &row, error);
    if (code <= 0 || row.step != fork->step) {
        return code < 0 ? code : 0;
    }
    fork->row = (struct replay_row){
        .step = row.step, .state = malloc(row.state_bytes), .state_bytes = row.state_bytes};
    if (fork->row.state == NULL) {
        return error_set(error, -ENOMEM, "recovery: out of memory");
    }
    memcpy(fork->row.state, row.state, row.state_bytes);
    return 1;
}

static int fork_plan(struct fork *fork, struct schedule *schedule,
                     const struct corpus_source *source, struct error *error) {
    struct replay replay = {0};
    int code = replay_open(&replay, schedule, source, error);
    if (code == 0) {
        code = replay_seek(&replay, &fork->row, fork->step, error);
    }
    if (code == 0) {
        code = replay_next(&replay, &fork->plan, error);
    }
    replay_close(&replay);
    return code < 0 ? code : 0;
}

static int fork_put_generation(const struct fork *fork, struct store *store,
                               const struct store_summary *summary, struct error *error) {
    char by[STORE_BY_BYTES];
    (void)snprintf(by, sizeof by, "the config's section from step %" PRIu64, fork->step);
    int code = store_put_generation(store, summary->generation + 1, error);
    return code < 0 ? code : store_put_generation_begin(store, summary->committed_step, by, error);
}

static int fork_put(const struct fork *fork, struct store *store, const struct store_job *job,
                    bool served, const struct store_summary *summary, struct error *error) {
    int code = store_begin(store, error);
    if (code == 0) {
        code = store_put_history(store, job, error);
    }
    if (code == 0 && fork->plan != NULL) {
        struct store_step step;
        store_step_init(&step, fork->plan, fork->row.state, fork->row.state_bytes);
        code = store_put_step(store, &step, error);
    }
    if (code == 0 && served) {
        code = fork_put_generation(fork, store, summary, error);
    }
    return code < 0 ? code : store_commit(store, error);
}

int recover_fork(struct store *store, const struct store_job *job, struct schedule *schedule,
                 const struct corpus_source *source, uint64_t undurable_max, uint64_t *replanned,
                 struct error *error) {
    struct store_summary summary;
    struct fork fork = {.step = store_fork(store)};
    if (fork.step == UINT64_MAX) {
        return 0;
    }
    int code = store_summary(store, &summary, error);
    if (code == 0) {
        code = fork_find(&fork, store, error);
    }
    if (code == 1) {
        code = fork_plan(&fork, schedule, source, error);
    }
    if (code == 0) {
        bool served = fork.step < summary.steps_end + undurable_max;
        code = fork_put(&fork, store, job, served, &summary, error);
    }
    if (code == 0) {
        *replanned = summary.steps_end > fork.step ? summary.steps_end - fork.step : 0;
        code = 1;
    }
    step_plan_destroy(fork.plan);
    free(fork.row.state);
    return code;
}
