/* state, seek: checkpoints of the stream, and going to another step. `show` and `diff` read files
 * and need no daemon, `export` takes a stopped one's store too. */
#include "client/ctl/answers.h"
#include "client/ctl/json.h"
#include "client/ctl/print.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "daemon/blob.h"
#include "planner/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 3u

enum { OPTION_STEP = 600, OPTION_GENERATION };

struct state_arguments {
    struct ctl *ctl;
    bool seeks; /* `seek`, not `state` */
    const char *words[WORDS_MAX];
    unsigned word_count;
    uint64_t step; /* UINT64_MAX: not given */
    uint64_t generation;
};

static const struct state_verb {
    const char *name;
    unsigned files;
    int (*run)(struct state_arguments *arguments);
} * state_verb(const char *name);

static void state_check(const struct state_arguments *arguments, struct argp_state *state) {
    if (arguments->seeks) {
        if (arguments->word_count != 1) {
            argp_error(state, "which STEP?");
        }
        return;
    }
    const struct state_verb *verb = arguments->word_count == 0 ? NULL
                                                               : state_verb(arguments->words[0]);
    if (verb == NULL) {
        argp_error(state, "export, import, show or diff?");
    } else if (arguments->word_count != 1 + verb->files) {
        argp_error(state, "%s takes %s", verb->name, verb->files == 1 ? "a FILE" : "two FILEs");
    }
}

static error_t state_parse(int key, char *arg, struct argp_state *state) {
    struct state_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case OPTION_STEP:
        arguments->step = ctl_number(state, arg, INT64_MAX, "--step");
        return 0;
    case OPTION_GENERATION:
        arguments->generation = ctl_number(state, arg, INT64_MAX, "--generation");
        return 0;
    case ARGP_KEY_ARG:
        if (arguments->word_count == WORDS_MAX) {
            argp_error(state, "'%s' is one argument too many", arg);
        }
        if (arguments->seeks) {
            arguments->step = ctl_number(state, arg, INT64_MAX, "step");
        }
        arguments->words[arguments->word_count++] = arg;
        return 0;
    case ARGP_KEY_END:
        state_check(arguments, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Files */

static int read_all(FILE *file, uint8_t **out, size_t *bytes) {
    uint8_t *content = malloc(BLOB_BYTES_MAX + 1);
    if (content == NULL) {
        return -ENOMEM;
    }
    *bytes = fread(content, 1, BLOB_BYTES_MAX + 1, file);
    if (ferror(file)) {
        free(content);
        return -EIO;
    }
    *out = content;
    return 0;
}

static int read_file(struct ctl *ctl, const char *path, uint8_t **out, size_t *bytes) {
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return error_set(&ctl->error, -errno, "%s: %s", path, strerror(errno));
    }
    int code = read_all(file, out, bytes);
    (void)fclose(file);
    return code < 0 ? error_set(&ctl->error, code, "%s: %s", path, strerror(-code)) : 0;
}

static int write_all(const char *path, const uint8_t *bytes, size_t count) {
    FILE *file = fopen(path, "wbe");
    if (file == NULL) {
        return -errno;
    }
    bool written = fwrite(bytes, 1, count, file) == count && fflush(file) == 0 &&
                   fsync(fileno(file)) == 0;
    int code = written ? 0 : -(errno == 0 ? EIO : errno);
    return fclose(file) == 0 || code < 0 ? code : -errno;
}

/* The file appears whole or not at all. */
static int write_file(struct ctl *ctl, const char *path, const uint8_t *bytes, size_t count) {
    char made[4096];
    int length = snprintf(made, sizeof made, "%s.new", path);
    int code = length < 0 || (size_t)length >= sizeof made ? -ENAMETOOLONG
                                                           : write_all(made, bytes, count);
    if (code == 0 && rename(made, path) < 0) {
        code = -errno;
    }
    if (code < 0) {
        (void)unlink(made);
        return error_set(&ctl->error, code, "%s: %s", path, strerror(-code));
    }
    return 0;
}

/* A checkpoint and its state; both are the caller's. */
struct checkpoint {
    struct blob *blob;
    struct plan_state *state;
    size_t bytes;
};

static void checkpoint_free(struct checkpoint *checkpoint) {
    plan_state_destroy(checkpoint->state);
    free(checkpoint->blob);
}

/* Datasets of the state: those of the job, and those that sections appended. */
static uint32_t checkpoint_datasets(const struct blob *blob) {
    uint32_t count = blob->dataset_count;
    for (const char *at = blob->plan_text; (at = strstr(at, ".fingerprint = ")) != NULL; at++) {
        count++;
    }
    return count;
}

static int checkpoint_read(struct ctl *ctl, const char *path, struct checkpoint *out) {
    uint8_t *bytes = NULL;
    int code = read_file(ctl, path, &bytes, &out->bytes);
    if (code < 0) {
        return code;
    }
    code = blob_decode(bytes, out->bytes, &out->blob, &ctl->error);
    free(bytes);
    if (code == 0) {
        out->state = plan_state_create(checkpoint_datasets(out->blob),
                                       (uint32_t)out->blob->state_bytes);
        code = out->state == NULL ? error_set(&ctl->error, -ENOMEM, "out of memory")
                                  : plan_state_decode(out->state, out->blob->state,
                                                      out->blob->state_bytes, &ctl->error);
    }
    if (code < 0) {
        checkpoint_free(out);
        *out = (struct checkpoint){0};
        return error_prefix(&ctl->error, "%s", path);
    }
    return 0;
}

/* show */

static const char *dataset_label(const struct blob *blob, uint32_t dataset) {
    return dataset < blob->dataset_count ? blob->datasets[dataset].name : "appended";
}

static void show_json(const struct checkpoint *checkpoint) {
    const struct blob *blob = checkpoint->blob;
    const struct plan_state *state = checkpoint->state;
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_member_u64(&json, "format", BLOB_FORMAT);
    json_member_string(&json, "writer", blob->writer);
    json_member_u64(&json, "algorithm", blob->algorithm);
    json_key(&json, "job_digest");
    json_hex(&json, blob->job_digest, sizeof blob->job_digest);
    json_member_u64(&json, "step", blob->step);
    json_member_u64(&json, "generation", blob->generation);
    json_key(&json, "plan_digest");
    json_hex(&json, blob->digest, blob->digest_known ? sizeof blob->digest : 0);
    json_member_u64(&json, "bytes", checkpoint->bytes);
    json_member_u64(&json, "waiting_documents", state->waiting_count);
    json_member_u64(&json, "waiting_tokens", plan_state_waiting_tokens(state, UINT32_MAX));
    json_key(&json, "datasets");
    json_array_begin(&json);
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        bool of_job = i < blob->dataset_count;
        json_object_begin(&json);
        json_member_string(&json, "name", dataset_label(blob, i));
        json_key(&json, "fingerprint");
        json_hex(&json, of_job ? blob->datasets[i].fingerprint : NULL,
                 of_job ? BLOB_FINGERPRINT_BYTES : 0);
        json_member_u64(&json, "epoch", state->cursor.datasets[i].epoch);
        json_member_u64(&json, "arrived_tokens", plan_state_arrived_tokens(state, i));
        json_member_u64(&json, "delivered_tokens", state->delays[i].delivered_tokens);
        json_member_u64(&json, "waiting_tokens", plan_state_waiting_tokens(state, i));
        json_object_end(&json);
    }
    json_array_end(&json);
    json_member_string(&json, "settings", blob->plan_text);
    json_object_end(&json);
    json_line(&json);
}

static void show_datasets(const struct checkpoint *checkpoint) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},     {"FINGERPRINT", TABLE_LEFT, 0}, {"EPOCH", TABLE_RIGHT, 0},
        {"ARRIVED", TABLE_RIGHT, 0}, {"DELIVERED", TABLE_RIGHT, 0},  {"WAITING", TABLE_RIGHT, 0},
    };
    const struct plan_state *state = checkpoint->state;
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        bool of_job = i < checkpoint->blob->dataset_count;
        table_cell(&table, "%s", dataset_label(checkpoint->blob, i));
        table_cell(
            &table, "%s",
            of_job ? units_digest(checkpoint->blob->datasets[i].fingerprint, BLOB_FINGERPRINT_BYTES)
                         .text
                   : "");
        table_cell(&table, "%" PRIu64, state->cursor.datasets[i].epoch);
        table_cell(&table, "%s", units_count(plan_state_arrived_tokens(state, i)).text);
        table_cell(&table, "%s", units_count(state->delays[i].delivered_tokens).text);
        table_cell(&table, "%s", units_count(plan_state_waiting_tokens(state, i)).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static int state_show(struct state_arguments *arguments) {
    struct ctl *ctl = arguments->ctl;
    struct checkpoint checkpoint = {0};
    int code = checkpoint_read(ctl, arguments->words[1], &checkpoint);
    if (code < 0) {
        return code;
    }
    const struct blob *blob = checkpoint.blob;
    if (ctl->json) {
        show_json(&checkpoint);
    } else {
        printf("step     %" PRIu64 ", generation %" PRIu64 ", plan digest %s\n", blob->step,
               blob->generation,
               blob->digest_known ? units_digest(blob->digest, sizeof blob->digest).text : "-");
        printf("job      %s, algorithm %u, written by %s\n",
               units_digest(blob->job_digest, sizeof blob->job_digest).text, blob->algorithm,
               blob->writer);
        printf("waiting  %u documents, %s tokens; the file has %s\n\n",
               checkpoint.state->waiting_count,
               units_count(plan_state_waiting_tokens(checkpoint.state, UINT32_MAX)).text,
               units_bytes(checkpoint.bytes).text);
        show_datasets(&checkpoint);
        printf("\n%s", blob->plan_text);
    }
    checkpoint_free(&checkpoint);
    return 0;
}

/* diff */

struct difference {
    const struct ctl *ctl;
    struct table table;
    struct json json;
    unsigned count;
};

static void difference_note(struct difference *difference, const char *what, const char *a,
                            const char *b) {
    difference->count++;
    if (difference->ctl->json) {
        json_object_begin(&difference->json);
        json_member_string(&difference->json, "what", what);
        json_member_string(&difference->json, "a", a);
        json_member_string(&difference->json, "b", b);
        json_object_end(&difference->json);
    } else {
        table_cell(&difference->table, "%s", what);
        table_cell(&difference->table, "%s", a);
        table_cell(&difference->table, "%s", b);
    }
}

static void difference_number(struct difference *difference, const char *what, uint64_t a,
                              uint64_t b) {
    char left[24], right[24];
    if (a != b) {
        (void)snprintf(left, sizeof left, "%" PRIu64, a);
        (void)snprintf(right, sizeof right, "%" PRIu64, b);
        difference_note(difference, what, left, right);
    }
}

/* The first dataset that is another corpus. */
static void diff_datasets(struct difference *difference, const struct blob *a,
                          const struct blob *b) {
    char what[96];
    difference_number(difference, "datasets", a->dataset_count, b->dataset_count);
    for (uint32_t i = 0; i < a->dataset_count && i < b->dataset_count; i++) {
        const struct blob_dataset *x = &a->datasets[i], *y = &b->datasets[i];
        if (memcmp(x->fingerprint, y->fingerprint, BLOB_FINGERPRINT_BYTES) != 0) {
            (void)snprintf(what, sizeof what, "corpus of %.60s", x->name);
            difference_note(difference, what,
                            units_digest(x->fingerprint, BLOB_FINGERPRINT_BYTES).text,
                            units_digest(y->fingerprint, BLOB_FINGERPRINT_BYTES).text);
            return;
        }
    }
}

/* The first dataset that stands elsewhere. */
static void diff_cursors(struct difference *difference, const struct checkpoint *a,
                         const struct checkpoint *b) {
    char what[96];
    uint32_t count = a->state->cursor.dataset_count;
    for (uint32_t i = 0; i < count && i < b->state->cursor.dataset_count; i++) {
        uint64_t x = plan_state_arrived_tokens(a->state, i);
        uint64_t y = plan_state_arrived_tokens(b->state, i);
        if (x != y) {
            (void)snprintf(what, sizeof what, "arrived of %.60s", dataset_label(a->blob, i));
            difference_number(difference, what, x, y);
            return;
        }
    }
}

static void waiting_text(const struct plan_state *state, uint32_t i, char *out, size_t bytes) {
    if (i >= state->waiting_count) {
        (void)snprintf(out, bytes, "none");
        return;
    }
    const struct document *document = &state->waiting[i].document;
    (void)snprintf(out, bytes, "%u:%" PRIu64 " epoch %" PRIu64 " +%u %u tokens", document->dataset,
                   document->document, document->epoch, document->offset, document->length);
}

/* The first waiting document that is another. */
static void diff_waiting(struct difference *difference, const struct plan_state *a,
                         const struct plan_state *b) {
    char what[32], x[96], y[96];
    uint32_t count = a->waiting_count > b->waiting_count ? a->waiting_count : b->waiting_count;
    difference_number(difference, "waiting documents", a->waiting_count, b->waiting_count);
    for (uint32_t i = 0; i < count; i++) {
        waiting_text(a, i, x, sizeof x);
        waiting_text(b, i, y, sizeof y);
        if (strcmp(x, y) != 0) {
            (void)snprintf(what, sizeof what, "waiting[%u]", i);
            difference_note(difference, what, x, y);
            return;
        }
    }
}

static void diff_all(struct difference *difference, const struct checkpoint *a,
                     const struct checkpoint *b) {
    struct blob_difference text;
    unsigned before = difference->count;
    difference_number(difference, "algorithm", a->blob->algorithm, b->blob->algorithm);
    if (blob_text_difference(a->blob->plan_text, b->blob->plan_text, &text)) {
        difference_note(difference, text.name, text.a_value, text.b_value);
    }
    diff_datasets(difference, a->blob, b->blob);
    difference_number(difference, "step", a->blob->step, b->blob->step);
    difference_number(difference, "generation", a->blob->generation, b->blob->generation);
    diff_cursors(difference, a, b);
    diff_waiting(difference, a->state, b->state);
    bool same = a->blob->state_bytes == b->blob->state_bytes &&
                memcmp(a->blob->state, b->blob->state, a->blob->state_bytes) == 0;
    if (difference->count == before && !same) {
        difference_note(difference, "counters", "-", "-");
    }
}

static int diff_print(struct ctl *ctl, const struct checkpoint *a, const struct checkpoint *b) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0}, {"A", TABLE_LEFT, 0}, {"B", TABLE_LEFT, 0}};
    struct difference difference = {.ctl = ctl};
    table_init(&difference.table, columns, sizeof columns / sizeof columns[0]);
    json_init(&difference.json, stdout);
    if (ctl->json) {
        json_object_begin(&difference.json);
        json_key(&difference.json, "differences");
        json_array_begin(&difference.json);
    }
    diff_all(&difference, a, b);
    if (ctl->json) {
        json_array_end(&difference.json);
        json_object_end(&difference.json);
        json_line(&difference.json);
    } else if (difference.count > 0) {
        table_print(&difference.table, stdout);
    }
    table_deinit(&difference.table);
    return difference.count == 0 ? 0
                                 : error_set(&ctl->error, -EINVAL,
                                             "the two states differ in %u of "
                                             "what was compared",
                                             difference.count);
}

static int state_diff(struct state_arguments *arguments) {
    struct ctl *ctl = arguments->ctl;
    struct checkpoint a = {0}, b = {0};
    int code = checkpoint_read(ctl, arguments->words[1], &a);
    if (code == 0) {
        code = checkpoint_read(ctl, arguments->words[2], &b);
    }
    if (code == 0) {
        code = diff_print(ctl, &a, &b);
    }
    checkpoint_free(&a);
    checkpoint_free(&b);
    return code;
}

/* Out of a daemon or its store, and into a daemon */

static int state_export(struct state_arguments *arguments) {
    struct ctl *ctl = arguments->ctl;
    Ballast__V1__ExportResponse *response;
    uint64_t step = arguments->step;
    int code = answers_choose(ctl, false)->export(ctl, &step, &response);
    if (code == 0) {
        code = write_file(ctl, arguments->words[1], response->state.data, response->state.len);
    }
    if (code == 0 && ctl->json) {
        print_message(&response->base);
    } else if (code == 0) {
        printf("step %" PRIu64 ", %s\n", step, units_bytes(response->state.len).text);
    }
    return code;
}

static int state_import(struct state_arguments *arguments) {
    struct ctl *ctl = arguments->ctl;
    Ballast__V1__ImportResponse *response;
    uint8_t *bytes = NULL;
    size_t count = 0;
    int code = read_file(ctl, arguments->words[1], &bytes, &count);
    if (code == 0) {
        code = remote_import(ctl, bytes, count, arguments->generation, &response);
    }
    free(bytes);
    if (code == 0 && ctl->json) {
        print_message(&response->base);
    } else if (code == 0) {
        printf("step %" PRIu64 ", generation %" PRIu64 "\n", response->next_step,
               response->generation);
    }
    return code;
}

static const struct state_verb state_verbs[] = {
    {"export", 1, state_export},
    {"import", 1, state_import},
    {"show", 1, state_show},
    {"diff", 2, state_diff},
};

static const struct state_verb *state_verb(const char *name) {
    for (size_t i = 0; i < sizeof state_verbs / sizeof state_verbs[0]; i++) {
        if (strcmp(state_verbs[i].name, name) == 0) {
            return &state_verbs[i];
        }
    }
    return NULL;
}

static const struct argp_option state_options[] = {
    {"step", OPTION_STEP, "N", 0, "export: of this step, not of the next to be committed", 0},
    {"generation", OPTION_GENERATION, "N", 0, "import: open this generation at least", 0},
    {0},
};

static const struct argp state_argp = {
    .options = state_options,
    .parser = state_parse,
    .args_doc = "export FILE\nimport FILE\nshow FILE\ndiff FILE FILE",
    .doc = "Takes the state from which a step is planned out of the daemon, or out of a stopped "
           "one's store (--state DIR --config FILE); takes the daemon to such a state and with it "
           "the whole job; shows what a file holds; names the first setting, dataset and waiting "
           "document in which two differ (exit code 1). show and diff need no daemon.",
    .children = ctl_argp_children,
};

int ctl_state(struct ctl *ctl, int argc, char **argv) {
    struct state_arguments arguments = {.ctl = ctl, .step = UINT64_MAX};
    ctl_parse(&state_argp, 0, argc, argv, &arguments);
    return state_verb(arguments.words[0])->run(&arguments);
}

static const struct argp_option seek_options[] = {
    {"generation", OPTION_GENERATION, "N", 0, "Open this generation at least", 0},
    {0},
};

static const struct argp seek_argp = {
    .options = seek_options,
    .parser = state_parse,
    .args_doc = "STEP",
    .doc = "Takes the job to another step, back or on: a new generation begins there, all streams "
           "end, and ranks go on when they have sought the step too. A step whose state is not "
           "stored is planned up to; given up when this command ends.",
    .children = ctl_argp_children,
};

int ctl_seek(struct ctl *ctl, int argc, char **argv) {
    struct state_arguments arguments = {.ctl = ctl, .seeks = true, .step = UINT64_MAX};
    Ballast__V1__SeekResponse *response;
    ctl_parse(&seek_argp, 0, argc, argv, &arguments);
    int code = remote_seek(ctl, arguments.step, arguments.generation, &response);
    if (code < 0) {
        return code;
    }
    if (ctl->json) {
        print_message(&response->base);
    } else {
        printf("step %" PRIu64 ", generation %" PRIu64 ", plan digest %s\n", response->next_step,
               response->generation,
               units_digest(response->plan_digest.data, response->plan_digest.len).text);
    }
    return 0;
}
