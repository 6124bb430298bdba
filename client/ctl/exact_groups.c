/* exact_groups: the global batches that fixed:K packs at once, each solved beside greedy's answer.
 */
#include "client/ctl/exact.h"

#include "client/ctl/progress.h"
#include "client/ctl/statistics.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "planner/balance.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

/* Pieces of the group that is being read. */
struct gathering {
    struct exact_piece *pieces;
    size_t count;
    uint32_t windows;
    uint64_t step;
};

static int gather_step(struct gathering *gathering, const struct step_plan *plan,
                       struct error *error) {
    size_t room = gathering->count + plan->document_count;
    struct exact_piece *pieces = realloc(gathering->pieces, room * sizeof *pieces);
    if (pieces == NULL) {
        return error_set(error, -ENOMEM, "no memory for %zu pieces", room);
    }
    gathering->pieces = pieces;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *batch = &plan->micro_batches[m];
        for (uint32_t i = 0; i < batch->document_count; i++) {
            pieces[gathering->count++] = (struct exact_piece){
                .length = plan->documents[batch->document_begin + i].length,
                .window = gathering->windows + m,
            };
        }
    }
    gathering->windows += plan->micro_batch_count;
    return 0;
}

/* fixed:K holds pieces until the last step of a group has been planned. */
static int gather_group(struct gathering *gathering, struct stream *stream, struct error *error) {
    int rc = 0;
    gathering->count = 0;
    gathering->windows = 0;
    gathering->step = stream->state->step;
    do {
        struct step_plan *plan = NULL;
        rc = stream_step(stream, &plan, error);
        if (rc == 0) {
            rc = gather_step(gathering, plan, error);
        }
        step_plan_destroy(plan);
    } while (rc == 0 && stream->state->waiting_count > 0);
    return rc;
}

static uint64_t ratio_ppm(uint64_t part, uint64_t parts, uint64_t whole) {
    return whole > 0 ? (uint64_t)((u128)part * parts * PPM / whole) : 0;
}

/* Mean imbalance of steps made of `micro_batches` windows of like work. Sorts the works. */
static uint64_t steps_ppm(uint64_t *works, uint32_t windows, uint32_t micro_batches) {
    uint64_t sum_ppm = 0;
    statistics_sort(works, windows);
    for (uint32_t begin = 0; begin < windows; begin += micro_batches) {
        uint64_t sum = 0;
        for (uint32_t w = begin; w < begin + micro_batches; w++) {
            sum += works[w];
        }
        sum_ppm += ratio_ppm(works[begin + micro_batches - 1], micro_batches, sum);
    }
    return sum_ppm * micro_batches / windows;
}

static uint64_t works_of(const struct exact_instance *instance, uint64_t *works) {
    uint64_t sum = 0;
    for (uint32_t w = 0; w < instance->windows; w++) {
        works[w] = exact_window_work(instance, w);
        sum += works[w];
    }
    return sum;
}

static int group_solve(struct exact_group *group, struct exact_instance *instance,
                       uint32_t micro_batches, uint32_t limit_ms, struct error *error) {
    uint64_t *works = calloc(instance->windows, sizeof *works);
    struct exact_answer answer;
    int rc = works != NULL ? 0 : error_set(error, -ENOMEM, "no memory for the windows");
    if (rc == 0) {
        (void)works_of(instance, works);
        group->greedy_steps_ppm = steps_ppm(works, instance->windows, micro_batches);
        rc = exact_solve(instance, limit_ms, &answer, error);
    }
    if (rc == 0) {
        uint64_t sum = works_of(instance, works);
        group->solver_steps_ppm = steps_ppm(works, instance->windows, micro_batches);
        group->greedy_ppm = ratio_ppm(answer.greedy_work, instance->windows, sum);
        group->solver_ppm = ratio_ppm(answer.work, instance->windows, sum);
        group->bound_ppm = ratio_ppm(answer.bound_work, instance->windows, sum);
        group->gap_ppm = ratio_ppm(answer.work - answer.bound_work, 1, answer.bound_work);
        group->solve_ns = answer.solve_ns;
        group->optimal = answer.optimal;
    }
    free(works);
    return rc;
}

static uint64_t piece_work(const void *model, uint32_t length) {
    return work_of(model, length);
}

static int group_measure(struct exact_report *report, const struct trial *trial,
                         const struct gathering *gathering, struct error *error) {
    const struct plan_options *plan = stream_options(&trial->stream);
    struct exact_instance instance = {0};
    struct exact_group group = {
        .seed = trial->config->source.order.seed,
        .step = gathering->step,
        .windows = gathering->windows,
        .pieces = (uint32_t)gathering->count,
    };
    int rc = exact_instance_init(&instance, gathering->pieces, group.pieces, group.windows,
                                 plan->window, piece_work, stream_model(&trial->stream), error);
    if (rc == 0) {
        rc = group_solve(&group, &instance, plan->micro_batches, report->options.limit_ms, error);
    }
    exact_instance_deinit(&instance);
    if (rc == 0) {
        struct exact_group *groups = realloc(report->groups, (report->count + 1) * sizeof *groups);
        if (groups == NULL) {
            return error_set(error, -ENOMEM, "no memory for %zu groups", report->count + 1);
        }
        groups[report->count++] = group;
        report->groups = groups;
    }
    return rc;
}

static int measure_groups(struct exact_report *report, struct trial *trial, uint64_t warm_up,
                          uint64_t steps, struct error *error) {
    struct gathering gathering = {0};
    struct progress progress;
    uint32_t solved = 0;
    int rc = 0;
    progress_start(&progress, "exact");
    while (rc == 0 && solved < report->options.groups &&
           trial->stream.state->step < warm_up + steps) {
        rc = gather_group(&gathering, &trial->stream, error);
        if (rc == 0 && gathering.step >= warm_up) {
            solved++;
            progress_count(&progress, "group", solved, report->options.groups);
            rc = group_measure(report, trial, &gathering, error);
        }
    }
    progress_end(&progress);
    free(gathering.pieces);
    return rc == -ENOENT ? 0 : rc;
}

int exact_measure(struct exact_report *report, struct scenario *scenario, const char *seed,
                  uint64_t warm_up, uint64_t steps, struct error *error) {
    const char *policy = policy_name((enum policy)(POLICY_FIXED + (int)report->options.batches));
    struct trial trial;
    assert(policy != NULL);
    int rc = trial_open(&trial, scenario, policy, seed, error);
    if (rc == 0) {
        rc = measure_groups(report, &trial, warm_up, steps, error);
    }
    trial_close(&trial);
    return rc < 0 ? error_prefix(error, "exact, %s", policy) : 0;
}

void exact_report_deinit(struct exact_report *report) {
    free(report->groups);
    report->groups = NULL;
    report->count = 0;
}

void exact_print(const struct exact_report *report) {
    static const struct table_column columns[] = {
        {"SEED", TABLE_LEFT, 0},   {"STEP", TABLE_RIGHT, 0},    {"WINDOWS", TABLE_RIGHT, 0},
        {"DOCS", TABLE_RIGHT, 0},  {"GREEDY", TABLE_RIGHT, 0},  {"EXACT", TABLE_RIGHT, 0},
        {"BOUND", TABLE_RIGHT, 0}, {"GAP ppm", TABLE_RIGHT, 0}, {"TIME", TABLE_RIGHT, 0},
        {"", TABLE_LEFT, 0},
    };
    struct table table;
    printf("\nfixed:%" PRIu32 " and the exact solver, at most %s a group:\n"
           "heaviest window over the group's mean\n",
           report->options.batches, units_time((uint64_t)report->options.limit_ms * 1000000).text);
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < report->count; i++) {
        const struct exact_group *group = &report->groups[i];
        table_cell(&table, "%" PRIu64, group->seed);
        table_cell(&table, "%" PRIu64, group->step);
        table_cell(&table, "%" PRIu32, group->windows);
        table_cell(&table, "%" PRIu32, group->pieces);
        table_cell(&table, "%s", units_ratio(group->greedy_ppm).text);
        table_cell(&table, "%s", units_ratio(group->solver_ppm).text);
        table_cell(&table, "%s", units_ratio(group->bound_ppm).text);
        table_cell(&table, "%" PRIu64, group->gap_ppm);
        table_cell(&table, "%s", units_time(group->solve_ns).text);
        table_cell(&table, "%s", group->optimal ? "optimal" : "time out");
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void group_json(const struct exact_group *group, struct json *json) {
    json_object_begin(json);
    json_member_u64(json, "bound_ppm", group->bound_ppm);
    json_member_u64(json, "gap_ppm", group->gap_ppm);
    json_member_u64(json, "greedy_ppm", group->greedy_ppm);
    json_member_u64(json, "greedy_steps_ppm", group->greedy_steps_ppm);
    json_key(json, "optimal");
    json_bool(json, group->optimal);
    json_member_u64(json, "pieces", group->pieces);
    json_member_u64(json, "seed", group->seed);
    json_member_u64(json, "solve_ns", group->solve_ns);
    json_member_u64(json, "solver_ppm", group->solver_ppm);
    json_member_u64(json, "solver_steps_ppm", group->solver_steps_ppm);
    json_member_u64(json, "step", group->step);
    json_member_u64(json, "windows", group->windows);
    json_object_end(json);
}

void exact_print_json(const struct exact_report *report, struct json *json) {
    if (report->options.batches == 0) {
        json_absent(json);
        return;
    }
    json_object_begin(json);
    json_member_u64(json, "batches", report->options.batches);
    json_key(json, "groups");
    json_array_begin(json);
    for (size_t i = 0; i < report->count; i++) {
        group_json(&report->groups[i], json);
    }
    json_array_end(json);
    json_member_u64(json, "limit_ms", report->options.limit_ms);
    json_object_end(json);
}
