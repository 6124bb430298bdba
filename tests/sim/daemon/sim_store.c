/* sim_store: store.h over arrays; see sim.h.
 *
 * What a group puts is held until store_commit has reached the disk; a crash before loses it, a
 * crash during the commit loses it or not. Other threads run before and after each write. */
#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX      512u
#define WAL_PER_STATE 500u /* so that a few rows are enough to be written back */

struct row {
    struct store_step step;
    uint8_t *state;
};

struct store {
    bool open;
    bool grouping;
    bool puts_committed;
    bool puts_ranks;
    bool prunes;
    uint64_t committed_step;
    struct store_rank ranks[SIM_RANKS_MAX];
    uint32_t rank_count;
    bool puts_generation;
    uint64_t generation, generation_step;
    uint64_t kept_from;
    struct row group[ROWS_MAX];
    uint32_t group_count;
    uint64_t wal_bytes; /* not yet written back */
};

struct sim_disk sim_disk;
static struct row sim_rows[ROWS_MAX]; /* by step, durable */
static struct store_rank sim_ranks[SIM_RANKS_MAX];
static uint32_t sim_ranks_count;
static struct store sim_store;

static void row_free(struct row *row) {
    free(row->state);
    *row = (struct row){0};
}

static void group_forget(struct store *store) {
    for (uint32_t i = 0; i < store->group_count; i++) {
        row_free(&store->group[i]);
    }
    store->group_count = 0;
    store->puts_committed = false;
    store->puts_ranks = false;
    store->puts_generation = false;
    store->prunes = false;
    store->grouping = false;
}

/* The newest row at or before `step`; ROWS_MAX: none. */
static uint64_t row_at(uint64_t step) {
    uint64_t newest = step < ROWS_MAX ? step : ROWS_MAX - 1;
    for (uint64_t i = newest + 1; i-- > 0;) {
        if (sim_rows[i].state != NULL) {
            return i;
        }
    }
    return ROWS_MAX;
}

static void disk_measure(void) {
    sim_disk.rows_end = 0;
    sim_disk.rows_begin = 0;
    uint64_t last = row_at(ROWS_MAX);
    if (last < ROWS_MAX) {
        sim_disk.rows_end = last + 1;
        while (sim_rows[sim_disk.rows_begin].state == NULL) {
            sim_disk.rows_begin++;
        }
    }
}

/* The group reaches the disk. */
static void group_apply(struct store *store) {
    for (uint32_t i = 0; i < store->group_count; i++) {
        struct row *row = &store->group[i];
        struct row *to = &sim_rows[row->step.step];
        sim_check(to->state == NULL || (to->step.state_bytes == row->step.state_bytes &&
                                        memcmp(to->state, row->state, to->step.state_bytes) == 0),
                  "the row of step %llu is stored again and differs",
                  (unsigned long long)row->step.step);
        row_free(to);
        *to = *row;
        *row = (struct row){0};
        store->wal_bytes += WAL_PER_STATE * to->step.state_bytes;
    }
    if (store->puts_generation) {
        sim_check(store->generation > sim_disk.generation, "a generation comes twice");
        sim_check(store->puts_committed && store->committed_step == store->generation_step,
                  "a generation begins elsewhere than it is committed");
        sim_disk.generation = store->generation;
        sim_disk.generation_step = store->generation_step;
        sim_disk.committed_step = store->committed_step;
    }
    if (store->puts_committed) {
        sim_check(store->committed_step >= sim_disk.committed_step, "committed_step falls");
        sim_disk.committed_step = store->committed_step;
    }
    if (store->puts_ranks) {
        memcpy(sim_ranks, store->ranks, sizeof sim_ranks);
        sim_ranks_count = store->rank_count;
    }
    if (store->prunes) {
        uint64_t keep = row_at(store->kept_from);
        for (uint64_t i = 0; keep < ROWS_MAX && i < keep; i++) {
            row_free(&sim_rows[i]);
        }
    }
    disk_measure();
}

uint64_t sim_disk_durable_step(void) {
    return sim_disk.rows_end > sim_disk.committed_step ? sim_disk.rows_end
                                                       : sim_disk.committed_step;
}

void sim_disk_wipe(void) {
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        row_free(&sim_rows[i]);
    }
    group_forget(&sim_store);
    sim_disk = (struct sim_disk){0};
    sim_ranks_count = 0;
    sim_store = (struct store){0};
}

static bool sim_committing;

void sim_disk_crash(void) {
    if (sim_committing && sim_between(0, 1) == 0) {
        group_apply(&sim_store);
    }
}

/* What the disk says now; anything but 0 ends the group. */
static int disk_answer(struct store *store, const char *what, struct error *error) {
    if (sim.dead) {
        return 0;
    }
    sim_thread_give_way();
    if (sim.dead) {
        return 0;
    }
    if (sim_disk.broken || sim_disk.finished) {
        sim_disk.finished = true;
        group_forget(store);
        return error_set(error, -EIO, "%s: the disk is broken", what);
    }
    if (sim_disk.full) {
        group_forget(store);
        return error_set(error, -ENOSPC, "%s: the disk is full", what);
    }
    return 0;
}

int store_lock(const char *state_dir, bool create, struct store **out, struct error *error) {
    (void)state_dir;
    (void)error;
    assert(create);
    sim_check(!sim_store.open, "two daemons have the store open");
    sim_store = (struct store){.open = true};
    sim_disk.finished = false;
    *out = &sim_store;
    return 0;
}

int store_attach(struct store *store, const struct store_job *job, struct error *error) {
    (void)error;
    assert(store->open && job != NULL);
    return 0;
}

void store_close(struct store *store) {
    if (store != NULL) {
        group_forget(store);
        store->open = false;
    }
}

int store_begin(struct store *store, struct error *error) {
    sim_check(!store->grouping, "a group begins inside a group");
    int code = disk_answer(store, "begin", error);
    store->grouping = code == 0;
    return code;
}

int store_put_step(struct store *store, const struct store_step *step, struct error *error) {
    sim_check(store->grouping, "a step is put outside of a group");
    assert(store->group_count < ROWS_MAX && step->step < ROWS_MAX);
    struct row *row = &store->group[store->group_count++];
    row->step = *step;
    row->state = malloc(step->state_bytes);
    assert(row->state != NULL);
    memcpy(row->state, step->state, step->state_bytes);
    return disk_answer(store, "put", error);
}

int store_put_committed(struct store *store, uint64_t committed_step, struct error *error) {
    sim_check(store->grouping, "committed_step is put outside of a group");
    store->puts_committed = true;
    store->committed_step = committed_step;
    return disk_answer(store, "put", error);
}

int store_put_ranks(struct store *store, const struct store_rank *ranks, uint32_t count,
                    struct error *error) {
    sim_check(store->grouping, "ranks are put outside of a group");
    assert(count <= SIM_RANKS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        sim_check(ranks[i].committed_step > store->committed_step, "a rank is not ahead of all");
        store->ranks[i] = ranks[i];
    }
    store->rank_count = count;
    store->puts_ranks = true;
    return disk_answer(store, "put", error);
}

int store_get_rank(struct store *store, struct store_rank *rank, struct error *error) {
    (void)store;
    (void)error;
    for (uint32_t i = 0; i < sim_ranks_count; i++) {
        const struct store_rank *found = &sim_ranks[i];
        if (found->dp == rank->dp && found->pp == rank->pp && found->cp == rank->cp &&
            found->tp == rank->tp) {
            *rank = *found;
            return 1;
        }
    }
    return 0;
}

int store_put_generation(struct store *store, uint64_t generation, struct error *error) {
    sim_check(store->grouping, "a generation is put outside of a group");
    store->puts_ranks = true;
    store->rank_count = 0;
    store->puts_generation = true;
    store->generation = generation;
    return disk_answer(store, "put", error);
}

int store_put_generation_begin(struct store *store, uint64_t step, const char *by,
                               struct error *error) {
    (void)by;
    (void)error;
    sim_check(store->puts_generation, "the beginning of no generation");
    store->generation_step = step;
    return 0;
}

/* No rank exports. */
int store_put_export(struct store *store, uint64_t step, uint32_t retained, struct error *error) {
    (void)store;
    (void)step;
    (void)retained;
    return error_set(error, -ENOSYS, "not simulated");
}

int store_rows_end(struct store *store, uint64_t step, uint64_t *out, struct error *error) {
    (void)store;
    (void)error;
    while (step < ROWS_MAX && sim_rows[step].state != NULL) {
        step++;
    }
    *out = step;
    return 0;
}

int store_put_rows(struct store *store, const struct plan_state *state, struct error *error) {
    (void)state;
    sim_check(store->grouping, "rows are put outside of a group");
    return disk_answer(store, "put", error);
}

/* No case changes its history. */
int store_put_history(struct store *store, const struct store_job *job, struct error *error) {
    (void)store;
    (void)job;
    return error_set(error, -ENOSYS, "not simulated");
}

uint64_t store_fork(const struct store *store) {
    (void)store;
    return UINT64_MAX;
}

int store_settle(struct store *store, struct error *error) {
    sim_check(!store->grouping, "the store is settled inside a group");
    return disk_answer(store, "settle", error);
}

int store_prune(struct store *store, uint64_t oldest_step_kept, struct error *error) {
    sim_check(store->grouping, "rows are pruned outside of a group");
    (void)error;
    store->prunes = true;
    store->kept_from = oldest_step_kept;
    return 0;
}

int store_commit(struct store *store, struct error *error) {
    sim_check(store->grouping, "a group is committed that did not begin");
    sim_committing = true;
    int code = disk_answer(store, "commit", error);
    sim_committing = false;
    if (code == 0 && !sim.dead) {
        group_apply(store);
        group_forget(store);
        sim_thread_give_way();
    }
    group_forget(store);
    return code;
}

void store_rollback(struct store *store) {
    group_forget(store);
}

int store_checkpoint(struct store *store, uint64_t wal_bytes, struct error *error) {
    sim_check(!store->grouping, "a checkpoint inside a group");
    if (store->wal_bytes <= wal_bytes) {
        return 0;
    }
    int code = disk_answer(store, "checkpoint", error);
    store->wal_bytes = code == 0 ? 0 : store->wal_bytes;
    return code;
}

uint64_t store_wal_bytes(const struct store *store) {
    return store->wal_bytes;
}

int store_summary(struct store *store, struct store_summary *out, struct error *error) {
    (void)store;
    (void)error;
    *out = (struct store_summary){.committed_step = sim_disk.committed_step,
                                  .steps_end = sim_disk.rows_end,
                                  .generation = sim_disk.generation,
                                  .generation_step = sim_disk.generation_step};
    return 0;
}

int store_get_step(struct store *store, uint64_t step, struct store_step *out,
                   struct error *error) {
    (void)store;
    sim_thread_give_way();
    if (sim_disk.finished && !sim.dead) {
        return error_set(error, -EIO, "read a step: the disk is broken");
    }
    uint64_t at = row_at(step);
    if (at == ROWS_MAX) {
        return 0;
    }
    *out = sim_rows[at].step;
    out->state = sim_rows[at].state;
    return 1;
}

int store_plan_text(struct store *store, char **out, struct error *error) {
    (void)store;
    (void)out;
    return error_set(error, -ENOSYS, "not simulated");
}

const char *store_library_version(void) {
    return "none";
}
