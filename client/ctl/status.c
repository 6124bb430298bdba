/* status, health, drain: how a daemon is, and telling it to finish. */
#include "client/ctl/answers.h"
#include "client/ctl/print.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <string.h>

static size_t ranks_connected(const Ballast__V1__StatusResponse *status) {
    size_t connected = 0;
    for (size_t i = 0; i < status->n_ranks; i++) {
        connected += status->ranks[i]->pid != 0;
    }
    return connected;
}

static void print_warnings(const Ballast__V1__StatusResponse *status) {
    for (size_t i = 0; i < status->n_warnings; i++) {
        printf("warning  %s\n", status->warnings[i]);
    }
}

static void print_daemon(const Ballast__V1__StatusResponse *status) {
    printf("daemon   %s, version %s, up %s, generation %" PRIu64 "\n", status->state,
           status->version, units_age(status->uptime_ms).text, status->generation);
    if (strcmp(status->state, "warming") == 0 && status->warming_percent > 0) {
        printf("warming  %u %% of the corpus is open\n", status->warming_percent);
    }
    printf("job      %s, latency profile %s, reads by %s\n",
           units_digest(status->job_digest.data, status->job_digest.len).text, status->profile,
           status->io_backend[0] != '\0' ? status->io_backend : "-");
    if (status->io_lacks[0] != '\0') {
        printf("reading  %s\n", status->io_lacks);
    }
    printf("steps    next %" PRIu64 ", committed %" PRIu64 ", durable %" PRIu64 "\n",
           status->next_step, status->committed_step, status->durable_step);
    if (status->seeking != NULL) {
        printf("seeking  step %" PRIu64 ", at step %" PRIu64 ", for %s\n", status->seeking->step,
               status->seeking->at, status->seeking->by);
    }
    if (status->generation > 0) {
        printf("rewound  to step %" PRIu64 " by %s\n", status->generation_step,
               status->generation_by);
    }
    printf("ranks    %zu connected of %u\n", ranks_connected(status), status->ranks_expected);
    if (status->balance != NULL) {
        print_balance(status->balance);
    }
    if (status->measured != NULL) {
        print_measured(status->measured);
    }
    if (status->release != NULL) {
        print_release(status->release);
    }
    if (status->balance != NULL) {
        printf("delay    mean %s steps, at most %" PRIu64 "\n",
               units_milli(status->balance->delay_mean_milli).text, status->balance->delay_max);
    }
    if (strcmp(status->state, "stopped") == 0) {
        return;
    }
    printf("time     planning a step p50 %s, p99 %s; ranks waited p99 %s\n"
           "slab     %s in use\n",
           units_time(status->plan_ns_p50).text, units_time(status->plan_ns_p99).text,
           units_time(status->wait_ns_p99).text, units_bytes(status->slab_bytes_used).text);
}

/* WAITED: for all batches since the daemon started; AGE: for the next, which is not ready. */
static void print_ranks(const Ballast__V1__StatusResponse *status) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},  {"PID", TABLE_RIGHT, 0},     {"UID", TABLE_RIGHT, 0},
        {"STEP", TABLE_RIGHT, 0}, {"CREDITS", TABLE_RIGHT, 0}, {"WAITED", TABLE_RIGHT, 0},
        {"AGE", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < status->n_ranks; i++) {
        const Ballast__V1__RankStatus *rank = status->ranks[i];
        static const Ballast__V1__Rank nowhere = BALLAST__V1__RANK__INIT;
        const Ballast__V1__Rank *place = rank->rank != NULL ? rank->rank : &nowhere;
        table_cell(&table, "dp%u pp%u cp%u tp%u", place->dp, place->pp, place->cp, place->tp);
        table_cell(&table, "%u", rank->pid);
        table_cell(&table, "%u", rank->uid);
        table_cell(&table, "%" PRIu64, rank->step);
        table_cell(&table, "%u", rank->credits);
        table_cell(&table, "%s", units_time(rank->waited_ns).text);
        table_cell(&table, "%s", units_age(rank->waiting_ms).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

int ctl_status(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(
        ctl,
        "Shows what the daemon is doing, or had done when it stopped (--state). WAITED is how "
        "long a rank has waited for batches since the daemon started, AGE for one that is not "
        "ready yet.",
        argc, argv);
    Ballast__V1__StatusResponse *status;
    int rc = answers_choose(ctl, false)->status(ctl, &status);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&status->base);
        return 0;
    }
    print_daemon(status);
    print_waits(stdout, status);
    print_warnings(status);
    if (status->n_ranks > 0) {
        putchar('\n');
        print_ranks(status);
    }
    putchar('\n');
    print_datasets(status->datasets, status->n_datasets);
    return 0;
}

static int needs_daemon(struct ctl *ctl) {
    if (ctl->origin == ORIGIN_STORE) {
        return error_set(&ctl->error, -EINVAL,
                         "only a running daemon can answer; name its --socket, not --state");
    }
    return 0;
}

int ctl_health(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(ctl, "Says in one line whether the daemon serves. Exit code 0: it does.", argc,
                   argv);
    Ballast__V1__StatusResponse *status;
    const struct answers *answers = answers_choose(ctl, false);
    int rc = needs_daemon(ctl);
    if (rc == 0) {
        rc = answers->status(ctl, &status);
    }
    if (rc < 0) {
        return rc;
    }
    if (strcmp(status->state, "warming") == 0) {
        return error_set(&ctl->error, -ECONNREFUSED,
                         "the daemon is warming up: %u %% of its corpus is open; ask again",
                         status->warming_percent);
    }
    if (status->seeking != NULL) {
        return error_set(&ctl->error, -ECONNREFUSED,
                         "the daemon is on its way to step %" PRIu64 ", at step %" PRIu64
                         ": %s sought it; ask again",
                         status->seeking->step, status->seeking->at, status->seeking->by);
    }
    if (ctl->json) {
        print_message(&status->base);
        return 0;
    }
    printf("%s %zu/%u ranks, step %" PRIu64 ", committed %" PRIu64 ", durable %" PRIu64 "\n",
           status->state, ranks_connected(status), status->ranks_expected, status->next_step,
           status->committed_step, status->durable_step);
    print_warnings(status);
    return 0;
}

int ctl_drain(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(ctl,
                   "Tells the daemon to plan no further step. The steps that are planned are still "
                   "served, then ranks get the end of the data. What waits in the queues stays in "
                   "the durable state: a daemon that is started again goes on where this one "
                   "ended.",
                   argc, argv);
    Ballast__V1__DrainResponse *drain;
    (void)answers_choose(ctl, false);
    int rc = needs_daemon(ctl);
    if (rc == 0) {
        rc = remote_drain(ctl, &drain);
    }
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&drain->base);
    } else {
        printf("draining; step %" PRIu64 " is the last\n", drain->last_step);
    }
    return 0;
}
