/* corpus, import, verify: the datasets: what became of them, making them, checking them. */
#include "client/ctl/answers.h"
#include "client/ctl/json.h"
#include "client/ctl/print.h"
#include "client/ctl/progress.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "corpus/hashes.h"
#include "corpus/import.h"
#include "corpus/verify.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    OPTION_SUFFIXES = 500,
    OPTION_VOCAB,
    OPTION_WRITE_MANIFEST,
    OPTION_FORMAT,
    OPTION_TOKEN_TYPE,
    OPTION_EOD,
    OPTION_DERIVED
};

static void print_drops(const Ballast__V1__DatasetStatus *dataset) {
    if (dataset->empty_documents > 0 || dataset->overlong_documents > 0 ||
        dataset->dropped_documents > 0) {
        printf("%s: %" PRIu64 " empty and %" PRIu64 " overlong documents, %" PRIu64
               " dropped, %" PRIu64 " tokens truncated\n",
               dataset->name, dataset->empty_documents, dataset->overlong_documents,
               dataset->dropped_documents, dataset->truncated_tokens);
    }
}

int ctl_corpus(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(ctl,
                   "Shows the datasets: arrived = delivered + waiting + dropped, in tokens. With "
                   "--config alone it opens and checks them.",
                   argc, argv);
    Ballast__V1__CorpusResponse *corpus;
    int rc = answers_choose(ctl, true)->corpus(ctl, &corpus);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&corpus->base);
        return 0;
    }
    print_datasets(corpus->datasets, corpus->n_datasets);
    putchar('\n');
    for (size_t i = 0; i < corpus->n_datasets; i++) {
        print_drops(corpus->datasets[i]);
    }
    printf("fingerprint %s\n",
           units_digest(corpus->fingerprint.data, corpus->fingerprint.len).text);
    return 0;
}

struct import_arguments {
    struct ctl *ctl;
    struct import_options options;
};

static error_t import_parse(int key, char *arg, struct argp_state *state) {
    struct import_arguments *arguments = state->input;
    struct import_options *options = &arguments->options;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case OPTION_SUFFIXES:
        options->suffixes = arg;
        return 0;
    case 'z':
        options->decompress_gz = true;
        return 0;
    case 'f':
        options->force = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num >= 2) {
            argp_error(state, "one SOURCE and one PREFIX, not '%s' too", arg);
        }
        *(state->arg_num == 0 ? &options->root : &options->prefix) = arg;
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2) {
            argp_error(state, "SOURCE and PREFIX are needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option import_options[] = {
    {"suffixes", OPTION_SUFFIXES, "LIST", 0, "Take only files with these endings: txt,pod,html", 0},
    {"gz", 'z', NULL, 0, "Read compressed files (NAME.gz) too", 0},
    {"force", 'f', NULL, 0, "Replace PREFIX if it exists", 0},
    {0},
};

static const struct argp import_argp = {
    .options = import_options,
    .parser = import_parse,
    .args_doc = "SOURCE PREFIX",
    .doc = "Makes PREFIX.bin and PREFIX.idx of the text files under SOURCE. Each file is one "
           "document, each byte one token, 256 the end of the document.",
    .children = ctl_argp_children,
};

static void import_say(const struct import_progress *at, void *context) {
    progress_say(context, "%" PRIu64 " of %" PRIu64 " files, %s", at->files, at->files_total,
                 units_bytes(at->bytes).text);
}

static void import_json(const char *prefix, const struct import_progress *done) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_member_u64(&json, "bytes", done->bytes);
    json_member_u64(&json, "documents", done->documents);
    json_member_u64(&json, "files", done->files);
    json_member_string(&json, "prefix", prefix);
    json_member_u64(&json, "skipped", done->skipped);
    json_member_u64(&json, "tokens", done->tokens);
    json_object_end(&json);
    json_line(&json);
}

int ctl_import(struct ctl *ctl, int argc, char **argv) {
    struct import_arguments arguments = {.ctl = ctl};
    struct import_progress done = {0};
    struct progress progress;
    ctl_parse(&import_argp, 0, argc, argv, &arguments);
    progress_start(&progress, "import");
    int rc = import_text(&arguments.options, import_say, &progress, &done, &ctl->error);
    progress_end(&progress);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        import_json(arguments.options.prefix, &done);
    } else {
        printf("%s: %" PRIu64 " documents, %s tokens from %s; %" PRIu64 " files skipped\n",
               arguments.options.prefix, done.documents, units_count(done.tokens).text,
               units_bytes(done.bytes).text, done.skipped);
    }
    return 0;
}

struct verify_arguments {
    struct ctl *ctl;
    const char *prefix;
    struct format_options format;
    uint64_t vocab;
    bool write_manifest;
};

/* As the keys of [corpus]. */
static void verify_parse_format(struct verify_arguments *arguments, int key, char *arg,
                                struct argp_state *state) {
    struct format_options *format = &arguments->format;
    if (key == OPTION_FORMAT && format_parse(arg, &format->format) < 0) {
        argp_error(state, "--format %s: give auto, megatron, ds, npy, bin, mds or litdata", arg);
    } else if (key == OPTION_TOKEN_TYPE && format_dtype_parse(arg, &format->dtype) < 0) {
        argp_error(state, "--token-type %s: give u8, u16, u32, u64, i16, i32 or i64", arg);
    } else if (key == OPTION_EOD) {
        format->eod = strcmp(arg, "none") == 0
                          ? FORMAT_EOD_NONE
                          : (uint32_t)ctl_number(state, arg, INT32_MAX, "--eod");
    } else if (key == OPTION_DERIVED) {
        format->derived_dir = arg;
    }
}

static error_t verify_parse(int key, char *arg, struct argp_state *state) {
    struct verify_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case OPTION_VOCAB:
        arguments->vocab = ctl_number(state, arg, INT64_MAX, "--vocab");
        return 0;
    case OPTION_WRITE_MANIFEST:
        arguments->write_manifest = true;
        return 0;
    case OPTION_FORMAT:
    case OPTION_TOKEN_TYPE:
    case OPTION_EOD:
    case OPTION_DERIVED:
        verify_parse_format(arguments, key, arg, state);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num >= 1) {
            argp_error(state, "one PREFIX at a time, not '%s' too", arg);
        }
        arguments->prefix = arg;
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 1) {
            argp_error(state, "which PREFIX?");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option verify_options[] = {
    {"vocab", OPTION_VOCAB, "N", 0, "Every token id must be below N", 0},
    {"write-manifest", OPTION_WRITE_MANIFEST, NULL, 0,
     "Write PREFIX.manifest, hashes that later reads are checked against", 0},
    {"format", OPTION_FORMAT, "NAME", 0,
     "What PREFIX is, if not by what lies there: megatron, ds, npy, bin, mds, litdata", 0},
    {"token-type", OPTION_TOKEN_TYPE, "TYPE", 0, "Type of tokens where files do not say: u16", 0},
    {"eod", OPTION_EOD, "ID", 0, "Id between documents where files do not say; or none", 0},
    {"derived", OPTION_DERIVED, "DIR", 0,
     "Keep decompressed chunks and found documents there, not below TMPDIR for the time", 0},
    {0},
};

static const struct argp verify_argp = {
    .options = verify_options,
    .parser = verify_parse,
    .args_doc = "PREFIX",
    .doc = "Reads all of a dataset (PREFIX.idx and PREFIX.bin, or another format): every document "
           "readable, every token id valid, all bytes those of PREFIX.manifest if there is one.",
    .children = ctl_argp_children,
};

static void verify_say(uint64_t done, uint64_t total, void *context) {
    progress_say(context, "%s of %s", units_bytes(done).text, units_bytes(total).text);
}

/* What is not in the tokens. */
struct verified {
    const char *prefix, *format, *manifest;
    const char *hashes;          /* of index.json: "hold", "none", "unknown" */
    struct hashes_result hashed; /* MDS */
    struct verify_result result;
};

static void verify_json(const struct verified *verified) {
    const struct verify_result *result = &verified->result;
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_member_u64(&json, "bytes", result->bytes);
    json_member_u64(&json, "documents", result->documents);
    json_member_u64(&json, "empty_documents", result->empty_documents);
    json_key(&json, "fingerprint");
    json_hex(&json, result->fingerprint, sizeof result->fingerprint);
    json_member_string(&json, "format", verified->format);
    json_member_string(&json, "hashes", verified->hashes);
    json_member_u64(&json, "length_max", result->length_max);
    json_member_u64(&json, "length_p50", result->length_p50);
    json_member_u64(&json, "length_p90", result->length_p90);
    json_member_u64(&json, "length_p99", result->length_p99);
    json_member_string(&json, "manifest", verified->manifest);
    json_member_string(&json, "prefix", verified->prefix);
    json_member_u64(&json, "token_max", result->token_max);
    json_member_u64(&json, "tokens", result->tokens);
    json_object_end(&json);
    json_line(&json);
}

static void print_hashes(const struct verified *verified) {
    const struct hashes_result *hashed = &verified->hashed;
    if (hashed->files > 0) {
        printf("hashes of index.json: those of %u files hold\n", hashed->files);
    }
    if (hashed->unknown > 0) {
        printf("hashes of index.json: %u by %s and the like were not compared\n", hashed->unknown,
               hashed->algorithm);
    }
}

static void print_verified(const struct verified *verified) {
    const struct verify_result *result = &verified->result;
    printf("%s: %" PRIu64 " documents (%" PRIu64 " empty), %" PRIu64 " tokens, %s, all readable\n"
           "lengths p50 %u, p90 %u, p99 %u, max %u; largest token id %" PRIu64 "\n"
           "fingerprint %s; manifest: %s; format: %s\n",
           verified->prefix, result->documents, result->empty_documents, result->tokens,
           units_bytes(result->bytes).text, result->length_p50, result->length_p90,
           result->length_p99, result->length_max, result->token_max,
           units_digest(result->fingerprint, sizeof result->fingerprint).text, verified->manifest,
           verified->format);
    print_hashes(verified);
}

/* All of the dataset, and its manifest: compared, or written when everything else is right. */
static int verify_all(struct ctl *ctl, const struct verify_arguments *arguments,
                      struct dataset *dataset, struct verify_result *result) {
    uint8_t fingerprint[16];
    struct manifest *fresh = NULL;
    struct progress progress;
    int rc = dataset_fingerprint(dataset, fingerprint, &ctl->error);
    if (rc == 0 && arguments->write_manifest) {
        rc = manifest_create(volumes_manifest_bytes(dataset_volumes(dataset)), fingerprint, &fresh,
                             &ctl->error);
    } else if (rc == 0) {
        rc = dataset_use_manifest(dataset, &ctl->error);
        rc = rc == -ENOENT ? 0 : rc;
    }
    if (rc == 0) {
        progress_start(&progress, "verify");
        rc = verify_dataset(dataset, arguments->vocab, fresh, verify_say, &progress, result,
                            &ctl->error);
        progress_end(&progress);
    }
    if (rc == 0 && fresh != NULL) {
        char path[PATH_MAX];
        (void)snprintf(path, sizeof path, "%s.manifest", dataset_prefix(dataset));
        rc = manifest_save(fresh, path, &ctl->error);
    }
    manifest_destroy(fresh);
    return rc;
}

static int verify_hashes(struct ctl *ctl, const struct dataset *dataset,
                         struct verified *verified) {
    struct hashes_result *hashed = &verified->hashed;
    int rc = dataset_format(dataset) == FORMAT_MDS ? hashes_verify(dataset, hashed, &ctl->error)
                                                   : 0;
    verified->hashes = hashed->unknown > 0 ? "unknown" : hashed->files > 0 ? "hold" : "none";
    return rc;
}

int ctl_verify(struct ctl *ctl, int argc, char **argv) {
    struct verify_arguments arguments = {.ctl = ctl, .format = format_options_default};
    struct verified verified = {0};
    struct dataset *dataset = NULL;
    ctl_parse(&verify_argp, 0, argc, argv, &arguments);
    int rc = dataset_open_as(basename(arguments.prefix), arguments.prefix, &arguments.format, NULL,
                             NULL, &dataset, &ctl->error);
    if (rc < 0) {
        return rc;
    }
    rc = verify_hashes(ctl, dataset, &verified);
    if (rc == 0) {
        rc = verify_all(ctl, &arguments, dataset, &verified.result);
    }
    verified.prefix = arguments.prefix;
    verified.manifest = arguments.write_manifest            ? "written"
                        : dataset_manifest(dataset) != NULL ? "holds"
                                                            : "none";
    verified.format = format_name(dataset_format(dataset));
    dataset_close(dataset);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        verify_json(&verified);
    } else {
        print_verified(&verified);
    }
    return 0;
}
