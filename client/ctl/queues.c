/* queues, delays: what waits, and how long delivered tokens had waited. */
#include "client/ctl/answers.h"
#include "client/ctl/print.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>

struct queues_arguments {
    struct ctl *ctl;
    bool documents;
};

static error_t queues_parse(int key, char *arg, struct argp_state *state) {
    struct queues_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case 'd':
        arguments->documents = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "takes no argument '%s'", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option queues_options[] = {
    {"documents", 'd', NULL, 0, "List every waiting document too", 0},
    {0},
};

static const struct argp queues_argp = {
    .options = queues_options,
    .parser = queues_parse,
    .doc = "Shows the queues of documents that wait for a later step.",
    .children = ctl_argp_children,
};

static void print_queues(const Ballast__V1__QueuesResponse *response) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},         {"FROM", TABLE_RIGHT, 0},   {"TO", TABLE_RIGHT, 0},
        {"DOCS", TABLE_RIGHT, 0},        {"TOKENS", TABLE_RIGHT, 0}, {"RELEASED", TABLE_RIGHT, 0},
        {"OLDEST STEP", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < response->n_queues; i++) {
        const Ballast__V1__Queue *queue = response->queues[i];
        table_cell(&table, "%s", queue->name);
        table_cell(&table, "%" PRIu64, queue->length_min);
        if (queue->length_max > 0) {
            table_cell(&table, "%" PRIu64, queue->length_max);
        } else {
            table_cell(&table, "-");
        }
        table_cell(&table, "%" PRIu64, queue->documents);
        table_cell(&table, "%s", units_count(queue->tokens).text);
        table_cell(&table, "%" PRIu64, queue->released);
        if (queue->documents > 0) {
            table_cell(&table, "%" PRIu64, queue->oldest_step);
        } else {
            table_cell(&table, "-");
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_waiting(const Ballast__V1__QueuesResponse *response) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},       {"DATASET", TABLE_RIGHT, 0}, {"DOCUMENT", TABLE_RIGHT, 0},
        {"EPOCH", TABLE_RIGHT, 0},     {"OFFSET", TABLE_RIGHT, 0},  {"LENGTH", TABLE_RIGHT, 0},
        {"FROM STEP", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < response->n_queues; i++) {
        const Ballast__V1__Queue *queue = response->queues[i];
        for (size_t j = 0; j < queue->n_waiting; j++) {
            const Ballast__V1__Document *document = queue->waiting[j];
            table_cell(&table, "%s", queue->name);
            table_cell(&table, "%u", document->dataset);
            table_cell(&table, "%" PRIu64, document->document);
            table_cell(&table, "%" PRIu64, document->epoch);
            table_cell(&table, "%u", document->offset);
            table_cell(&table, "%u", document->length);
            table_cell(&table, "%" PRIu64, document->nominal_step);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

int ctl_queues(struct ctl *ctl, int argc, char **argv) {
    struct queues_arguments arguments = {.ctl = ctl};
    ctl_parse(&queues_argp, 0, argc, argv, &arguments);
    Ballast__V1__QueuesResponse *response;
    int rc = answers_choose(ctl, false)->queues(ctl, arguments.documents, &response);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&response->base);
        return 0;
    }
    print_queues(response);
    if (arguments.documents) {
        putchar('\n');
        print_waiting(response);
    }
    return 0;
}

static uint64_t ppm_of(uint64_t part, uint64_t whole) {
    return whole == 0 ? 1000000 : (uint64_t)((unsigned __int128)part * 1000000 / whole);
}

static uint64_t histogram_tokens(const Ballast__V1__DatasetDelay *delay) {
    uint64_t tokens = 0;
    for (size_t i = 0; i < delay->n_histogram; i++) {
        tokens += delay->histogram[i];
    }
    return tokens;
}

static void print_delays(const Ballast__V1__DelaysResponse *response) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0}, {"MEAN", TABLE_RIGHT, 0}, {"P50", TABLE_RIGHT, 0},
        {"P99", TABLE_RIGHT, 0}, {"MAX", TABLE_RIGHT, 0},  {"NO DELAY", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < response->n_datasets; i++) {
        const Ballast__V1__DatasetDelay *delay = response->datasets[i];
        uint64_t tokens = histogram_tokens(delay);
        table_cell(&table, "%s", delay->name);
        table_cell(&table, "%s", units_milli(delay->mean_milli).text);
        table_cell(&table, "%" PRIu64, delay->p50);
        table_cell(&table, "%" PRIu64, delay->p99);
        table_cell(&table, "%" PRIu64, delay->max);
        table_cell(
            &table, "%s",
            units_share(ppm_of(delay->n_histogram > 0 ? delay->histogram[0] : 0, tokens)).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_domains(const Ballast__V1__DelaysResponse *response) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},   {"DOCS", TABLE_RIGHT, 0},    {"TOKENS", TABLE_RIGHT, 0},
        {"SHARE", TABLE_RIGHT, 0}, {"MEAN", TABLE_RIGHT, 0},    {"P99", TABLE_RIGHT, 0},
        {"MAX", TABLE_RIGHT, 0},   {"DELAYED", TABLE_RIGHT, 0},
    };
    struct table table;
    printf("\nby domain, since step %" PRIu64 "\n", response->domains_since);
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < response->n_domains; i++) {
        const Ballast__V1__DatasetDelay *domain = response->domains[i];
        uint64_t at_once = domain->n_histogram > 0 ? domain->histogram[0] : 0;
        table_cell(&table, "%s", domain->name);
        table_cell(&table, "%" PRIu64, domain->documents);
        table_cell(&table, "%s", units_count(domain->tokens).text);
        table_cell(&table, "%s", units_share(domain->share_ppm).text);
        table_cell(&table, "%s", units_milli(domain->mean_milli).text);
        table_cell(&table, "%" PRIu64, domain->p99);
        table_cell(&table, "%" PRIu64, domain->max);
        table_cell(&table, "%s", units_count(domain->tokens - at_once).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

/* Delays of 0, 1, 2, then 3-4, 5-8, 9-16 and so on; `last` has no end. */
static void histogram_cells(struct table *table, const Ballast__V1__DatasetDelay *delay,
                            uint64_t tokens) {
    static const char bar[] = "##############################";
    size_t last = delay->n_histogram - 1;
    size_t end = 0;
    for (size_t begin = 0; begin <= last; begin = end) {
        uint64_t held = 0;
        end = begin < 3 ? begin + 1 : 2 * begin - 1;
        end = end > last ? last : end;
        end = begin == last ? last + 1 : end;
        for (size_t i = begin; i < end; i++) {
            held += delay->histogram[i];
        }
        if (held == 0) {
            continue;
        }
        uint64_t share = ppm_of(held, tokens);
        table_cell(table, "%s", delay->name);
        if (end - begin > 1) {
            table_cell(table, "%zu-%zu", begin, end - 1);
        } else {
            table_cell(table, "%zu%s", begin, begin == last ? "+" : "");
        }
        table_cell(table, "%s", units_count(held).text);
        table_cell(table, "%s", units_share(share).text);
        table_cell(table, "%.*s", (int)((share * (sizeof bar - 1) + 500000) / 1000000), bar);
    }
}

static void print_histograms(const Ballast__V1__DelaysResponse *response) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},   {"DELAY", TABLE_RIGHT, 0}, {"TOKENS", TABLE_RIGHT, 0},
        {"SHARE", TABLE_RIGHT, 0}, {"", TABLE_LEFT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < response->n_datasets; i++) {
        const Ballast__V1__DatasetDelay *delay = response->datasets[i];
        uint64_t tokens = histogram_tokens(delay);
        if (tokens > 0) {
            histogram_cells(&table, delay, tokens);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

int ctl_delays(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(
        ctl,
        "Shows by how many steps delivered tokens came later than reading order alone "
        "would have brought them; by dataset and, where the config names any, by domain.",
        argc, argv);
    Ballast__V1__DelaysResponse *response;
    int rc = answers_choose(ctl, false)->delays(ctl, &response);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&response->base);
    } else {
        print_delays(response);
        if (response->n_domains > 0) {
            print_domains(response);
        }
        putchar('\n');
        print_histograms(response);
    }
    return 0;
}
