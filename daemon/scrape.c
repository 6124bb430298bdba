/* scrape: see scrape.h. */
#include "daemon/scrape.h"

#include "daemon/exposition.h"
#include "daemon/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* One word for what is 1 for exactly one of its label's values. */
static void scrape_info(struct exposition *out, const char *name, const char *help,
                        const char *label, const char *value) {
    char labels[EXPOSITION_LABELS_BYTES] = "";
    exposition_label(labels, label, value);
    exposition_family(out, name, "gauge", help);
    exposition_sample(out, labels, 1, 0);
}

static void scrape_backend(const struct daemon *daemon, struct exposition *out) {
    char labels[EXPOSITION_LABELS_BYTES] = "";
    exposition_label(labels, "backend", daemon->reader->backend);
    exposition_label(labels, "registered", daemon->io_registered ? "true" : "false");
    exposition_family(out, "ballast_io_backend_info", "gauge",
                      "How files are read, and whether straight into registered memory.");
    exposition_sample(out, labels, 1, 0);
    exposition_single(out, "ballast_io_degraded", "gauge",
                      "Whether reading does without something that the config asks for.",
                      daemon->io_lacks.code < 0, 0);
}

static void scrape_identity(const struct daemon *daemon, struct exposition *out) {
    const char *why = "";
    scrape_info(out, "ballast_build_info", "The daemon's version.", "version", BALLAST_VERSION);
    exposition_single(out, "ballast_ready", "gauge", "Whether ranks are served.",
                      scrape_ready(daemon, &why), 0);
    if (daemon->reader != NULL) {
        scrape_backend(daemon, out);
    }
}

/* Ranks: a row for each that is told apart, the last for all that are not. */

static uint32_t scrape_rank_rows(const struct daemon *daemon) {
    uint32_t count = daemon->roster.count;
    return count < METRICS_RANKS_MAX ? count : METRICS_RANKS_MAX;
}

static void scrape_rank_labels(const struct daemon *daemon, uint32_t rank,
                               char labels[EXPOSITION_LABELS_BYTES]) {
    char name[64] = "others";
    if (rank + 1 < METRICS_RANKS_MAX || daemon->roster.count <= METRICS_RANKS_MAX) {
        const struct rank_place *place = &daemon->roster.members[rank].place;
        (void)snprintf(name, sizeof name, "dp%u-pp%u-cp%u-tp%u", place->dp, place->pp, place->cp,
                       place->tp);
    }
    labels[0] = '\0';
    exposition_label(labels, "rank", name);
}

static void scrape_ranks(const struct daemon *daemon, struct exposition *out) {
    char labels[EXPOSITION_LABELS_BYTES];
    struct metrics *metrics = daemon->metrics;
    uint32_t rows = scrape_rank_rows(daemon);
    exposition_family(out, "ballast_batch_wait_seconds", "histogram",
                      "How long a rank waited for a batch that it had credit for.");
    for (uint32_t i = 0; i < rows; i++) {
        scrape_rank_labels(daemon, i, labels);
        exposition_histogram(out, labels, &metrics->ranks[i].wait);
    }
    exposition_family(out, "ballast_batches_served_total", "counter",
                      "Micro-batches that were handed to a rank.");
    for (uint32_t i = 0; i < rows; i++) {
        scrape_rank_labels(daemon, i, labels);
        exposition_sample(out, labels, metrics->ranks[i].batches, 0);
    }
    exposition_family(out, "ballast_tokens_served_total", "counter",
                      "Tokens of those micro-batches, without padding.");
    for (uint32_t i = 0; i < rows; i++) {
        scrape_rank_labels(daemon, i, labels);
        exposition_sample(out, labels, metrics->ranks[i].tokens, 0);
    }
}

/* Ranks that wait for the slowest one, since they are limits.lead_steps beyond it. */
static void scrape_leads(const struct daemon *daemon, struct exposition *out) {
    const struct roster *roster = &daemon->roster;
    uint64_t now_ns = uv_hrtime(), led_ns = 0;
    uint32_t leading = 0;
    for (uint32_t i = 0; i < roster->count; i++) {
        leading += roster->members[i].leading_ns != 0;
        led_ns += roster_led_ns(&roster->members[i], now_ns);
    }
    exposition_single(out, "ballast_lead_steps", "gauge",
                      "How far the fastest rank is beyond the slowest rank's commit.",
                      daemon->lead_steps.now, 0);
    exposition_single(out, "ballast_ranks_leading", "gauge",
                      "Ranks that wait because they are limits.lead_steps beyond the slowest.",
                      leading, 0);
    exposition_single(out, "ballast_lead_wait_seconds_total", "counter",
                      "How long ranks waited for that, all together.", led_ns, 9);
}

static void scrape_rank_counts(const struct daemon *daemon, struct exposition *out) {
    uint32_t connected = 0;
    for (uint32_t i = 0; i < daemon->roster.count; i++) {
        connected += daemon->roster.members[i].connected;
    }
    exposition_single(out, "ballast_ranks_expected", "gauge", "Ranks of this node.",
                      daemon->roster.count, 0);
    exposition_single(out, "ballast_ranks_connected", "gauge", "Ranks that are connected.",
                      connected, 0);
}

/* Reading */

static void scrape_reads(const struct daemon *daemon, struct exposition *out) {
    static const char *const kinds[METRICS_READ_ERRORS] = {"io", "damaged", "stale", "other"};
    char labels[EXPOSITION_LABELS_BYTES] = "";
    struct metrics *metrics = daemon->metrics;
    exposition_single(out, "ballast_documents_read_total", "counter",
                      "Parts of documents that were read.", metrics->documents_read, 0);
    exposition_family(out, "ballast_read_bytes_total", "counter",
                      "Bytes of token files that were read, gaps between documents too.");
    exposition_label(labels, "source", "corpus");
    exposition_sample(out, labels, metrics->bytes_read, 0);
    exposition_family(out, "ballast_read_errors_total", "counter",
                      "Micro-batches that could not be read.");
    for (uint32_t i = 0; i < METRICS_READ_ERRORS; i++) {
        labels[0] = '\0';
        exposition_label(labels, "kind", kinds[i]);
        exposition_sample(out, labels, metrics->read_errors[i], 0);
    }
    exposition_family(out, "ballast_read_duration_seconds", "histogram",
                      "Reading one micro-batch, from when its reads were queued.");
    exposition_histogram(out, "", &metrics->read);
}

static void scrape_slab(const struct daemon *daemon, struct exposition *out) {
    struct feed_depth depth = feed_depth(&daemon->feed);
    exposition_single(out, "ballast_queue_depth_batches", "gauge",
                      "Micro-batches that are read and wait for ranks.", depth.batches, 0);
    exposition_single(out, "ballast_prefetch_bytes", "gauge", "Their bytes.", depth.bytes, 0);
    exposition_single(out, "ballast_ring_slots_in_use", "gauge",
                      "Slots of shared memory that hold a micro-batch.", daemon->slab.used, 0);
    exposition_single(out, "ballast_ring_slots", "gauge", "Slots of shared memory.",
                      (uint64_t)daemon->slab.replicas * daemon->slab.replica_slots, 0);
}

/* Planning and storing */

static void scrape_policy(const struct plan_options *plan, struct exposition *out) {
    char name[POLICY_NAME_BYTES];
    policy_pool_name(plan->policy, plan->pools.size, name);
    scrape_info(out, "ballast_plan_policy_info", "How documents are packed.", "policy", name);
}

static void scrape_plan(const struct daemon *daemon, struct exposition *out) {
    scrape_policy(&daemon->config->plan, out);
    exposition_single(out, "ballast_plan_imbalance_ratio", "gauge",
                      "Work of the heaviest micro-batch to the mean, in the newest planned step.",
                      daemon->balance.total_ppm, 6);
    exposition_single(out, "ballast_plan_padding_ratio", "gauge",
                      "Padding to all rows, in the newest planned step.",
                      daemon->metrics->padding_ppm, 6);
    exposition_single(out, "ballast_plan_delay_steps", "gauge",
                      "Mean delay of a token since step 0.", daemon->balance.delay_mean_milli, 3);
    exposition_single(out, "ballast_waiting_tokens", "gauge",
                      "Tokens of documents held back for a later step.",
                      daemon->release.waiting_tokens, 0);
    exposition_family(out, "ballast_plan_duration_seconds", "histogram", "Planning one step.");
    exposition_histogram(out, "", &daemon->metrics->plan);
    exposition_single(out, "ballast_planned_step", "gauge", "First step that is not planned.",
                      daemon->planned_end, 0);
    exposition_single(out, "ballast_committed_step", "gauge",
                      "First step that not all ranks of this node committed.",
                      daemon->roster.committed_step, 0);
    exposition_single(out, "ballast_durable_step", "gauge",
                      "First step whose state is not on disk.", daemon->progress.durable_step, 0);
    exposition_single(out, "ballast_generation", "gauge", "Rewinds of the job so far.",
                      daemon->generation.number, 0);
}

/* Domains: counters begin anew when the job goes back. */

enum domain_figure {
    DOMAIN_DOCUMENTS = 0,
    DOMAIN_TOKENS = 1,
    DOMAIN_DELAYED = 2,
    DOMAIN_TOKEN_STEPS = 3,
    DOMAIN_DELAY_MAX = 4,
    DOMAIN_FIGURES = 5,
};

static uint64_t domain_figure(const struct delay_counts *counts, enum domain_figure figure) {
    switch (figure) {
    case DOMAIN_DOCUMENTS:
        return counts->delivered_documents;
    case DOMAIN_TOKENS:
        return counts->delivered_tokens;
    case DOMAIN_DELAYED:
        return counts->delivered_tokens - counts->tokens_by_delay[0];
    case DOMAIN_TOKEN_STEPS:
        return counts->delay_token_steps;
    case DOMAIN_DELAY_MAX:
    case DOMAIN_FIGURES:
        break;
    }
    return counts->delay_max;
}

static void scrape_domains(const struct daemon *daemon, struct exposition *out) {
    static const struct {
        const char *name, *type, *help;
    } families[DOMAIN_FIGURES] = {
        {"ballast_domain_documents_total", "counter", "Documents of the planned steps."},
        {"ballast_domain_tokens_total", "counter", "Tokens of the planned steps."},
        {"ballast_domain_delayed_tokens_total", "counter",
         "Of these, tokens that came in a later step than reading order had them in."},
        {"ballast_domain_delay_token_steps_total", "counter",
         "Sum of those tokens, each by its steps of delay."},
        {"ballast_domain_delay_max_steps", "gauge", "The longest delay."},
    };
    const struct domain_tally *tally = daemon->domains;
    char labels[EXPOSITION_LABELS_BYTES];
    for (uint32_t figure = 0; tally != NULL && figure < DOMAIN_FIGURES; figure++) {
        exposition_family(out, families[figure].name, families[figure].type, families[figure].help);
        for (uint32_t i = 0; i < tally->count; i++) {
            labels[0] = '\0';
            exposition_label(labels, "domain", domains_name(catalog_domains(daemon->catalog), i));
            exposition_sample(out, labels, domain_figure(&tally->counts[i], figure), 0);
        }
    }
}

static void scrape_store(const struct daemon *daemon, struct exposition *out) {
    exposition_family(out, "ballast_commit_duration_seconds", "histogram",
                      "Making one group of steps durable.");
    exposition_histogram(out, "", &daemon->metrics->commit);
    exposition_family(out, "ballast_checkpoint_duration_seconds", "histogram",
                      "Writing the write-ahead log back.");
    exposition_histogram(out, "", &daemon->metrics->checkpoint);
    exposition_single(out, "ballast_wal_bytes", "gauge", "Size of the write-ahead log.",
                      daemon->stored.wal_bytes, 0);
    exposition_single(out, "ballast_state_full", "gauge",
                      "Whether the state's disk is full: nothing becomes durable.",
                      daemon->stored.full, 0);
    exposition_single(out, "ballast_config_reload_failed", "gauge",
                      "Whether the last reload was refused.", daemon->not_reloaded.code < 0, 0);
}

/* Connections, process */

static void scrape_connections(const struct daemon *daemon, struct exposition *out) {
    static const char *const reasons[METRICS_REJECTIONS] = {"user", "full", "memory"};
    char labels[EXPOSITION_LABELS_BYTES];
    exposition_single(out, "ballast_connections", "gauge", "Clients that are connected.",
                      daemon->server.admitted, 0);
    exposition_family(out, "ballast_rejected_connections_total", "counter",
                      "Clients that were turned away.");
    for (uint32_t i = 0; i < METRICS_REJECTIONS; i++) {
        labels[0] = '\0';
        exposition_label(labels, "reason", reasons[i]);
        exposition_sample(out, labels, daemon->metrics->rejected[i], 0);
    }
    exposition_single(out, "ballast_frames_invalid_total", "counter",
                      "Frames that broke the protocol.", daemon->metrics->frames_invalid, 0);
}

static void scrape_process(struct exposition *out) {
    struct process_usage usage;
    process_usage(&usage);
    exposition_single(out, "process_cpu_seconds_total", "counter", "User and system time.",
                      usage.cpu_ns, 9);
    exposition_single(out, "process_resident_memory_bytes", "gauge", "Resident memory.",
                      usage.resident_bytes, 0);
    exposition_single(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.",
                      usage.virtual_bytes, 0);
    exposition_single(out, "process_open_fds", "gauge", "Open descriptors.", usage.descriptors, 0);
    exposition_single(out, "process_max_fds", "gauge", "Descriptors allowed.",
                      usage.descriptors_max, 0);
    exposition_single(out, "process_threads", "gauge", "Threads.", usage.threads, 0);
    exposition_single(out, "process_start_time_seconds", "gauge", "When it started, since 1970.",
                      usage.start_ms, 3);
}

size_t scrape(const struct daemon *daemon, char *out) {
    struct exposition exposition;
    exposition_init(&exposition, out, SCRAPE_BYTES);
    scrape_identity(daemon, &exposition);
    scrape_ranks(daemon, &exposition);
    scrape_rank_counts(daemon, &exposition);
    scrape_leads(daemon, &exposition);
    scrape_reads(daemon, &exposition);
    scrape_slab(daemon, &exposition);
    scrape_plan(daemon, &exposition);
    scrape_domains(daemon, &exposition);
    scrape_store(daemon, &exposition);
    scrape_connections(daemon, &exposition);
    scrape_process(&exposition);
    return exposition.used;
}

bool scrape_ready(const struct daemon *daemon, const char **why) {
    if (daemon->stopping) {
        *why = "stopping";
        return false;
    }
    if (daemon->stored.failed) {
        *why = "the store failed";
        return false;
    }
    const char *state = daemon_state(daemon);
    *why = state;
    return strcmp(state, "warming") != 0;
}
