/* ballast-rank: a trainer rank that trains nothing.
 *
 * The example of how a rank uses libballast, and the probe of the tests: it takes every
 * micro-batch, gathers its columns, writes one line of JSON about it, and commits steps. A line is
 * on its way to the disk before the batch is released, so what a killed rank had seen can be read
 * afterwards. */
#include "client/ballast.h"
#include "client/rank_agree.h"
#include "client/dial.h"
#include "client/dial_options.h"
#include "client/rank_verify.h"

#include "planner/error.h"

#include <argp.h>
#include <endian.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define RANK_EXIT_USAGE  2
#define RANK_POLL_MS     100 /* how soon a signal is noticed while waiting */
#define RANK_COMMIT_MS   500 /* between tries of a commit that found the daemon's disk full */
#define RANK_COLUMNS     3u
#define RANK_EXPERTS_MAX 64u

struct rank_arguments {
    struct ballast_options client;
    struct dial_given credentials;
    uint64_t steps;        /* from where it starts; 0: to the end of data */
    uint64_t commit_every; /* steps; 0: never */
    uint64_t think_ms;
    const char *log_path;                     /* NULL: none; "-": standard output */
    const char *dump_path;                    /* NULL: none */
    bool no_hash;                             /* of the tokens, in the log */
    bool measured;                            /* commits carry the time that each batch was held */
    uint64_t total_ns;                        /* or, if not 0, this one */
    uint64_t expert_tokens[RANK_EXPERTS_MAX]; /* and these */
    size_t experts;
    enum ballast_type type;
    uint64_t seek;           /* step to go to first; UINT64_MAX: stay */
    uint64_t generation;     /* that this opens at least */
    const char *import_path; /* NULL: none; state to go on from first */
    const char *export_path; /* NULL: none; where the state after the last step goes */
    bool follow;             /* goes where other ranks seek */
    bool verify;             /* judges its part of each plan */
    const char *agree_path;  /* NULL: none; folder in which all ranks compare each step */
};

struct rank {
    struct rank_arguments arguments;
    struct ballast *client;
    FILE *log;
    void *gathered; /* rows of `type`, for one column */
    int32_t *rows;  /* the same, 32 bits, little endian */
    size_t rows_max;
    struct ballast_measured *measured; /* of the current step's batches, with --measured */
    size_t measured_count, measured_max;
    struct rank_agree agree;
    uint64_t agreed_step; /* with --agree; UINT64_MAX: none yet */
    uint64_t steps_done;
    sigset_t signals; /* that end it; blocked, so that they are taken only where it looks */
    bool stopped;
};

enum rank_key {
    RANK_KEY_DP = 256,
    RANK_KEY_PP,
    RANK_KEY_CP,
    RANK_KEY_TP,
    RANK_KEY_PARTS,
    RANK_KEY_STEPS,
    RANK_KEY_COMMIT_EVERY,
    RANK_KEY_THINK_MS,
    RANK_KEY_LOG,
    RANK_KEY_DUMP,
    RANK_KEY_NO_HASH,
    RANK_KEY_INT64,
    RANK_KEY_MEASURED,
    RANK_KEY_TOTAL_NS,
    RANK_KEY_EXPERT_TOKENS,
    RANK_KEY_CREDITS,
    RANK_KEY_CONNECT_TIMEOUT_MS,
    RANK_KEY_SOCKET,
    RANK_KEY_TRANSPORT,
    RANK_KEY_SEEK,
    RANK_KEY_GENERATION,
    RANK_KEY_IMPORT,
    RANK_KEY_EXPORT,
    RANK_KEY_FOLLOW,
    RANK_KEY_VERIFY,
    RANK_KEY_AGREE,
};

static const struct argp_option rank_options[] = {
    {"socket", RANK_KEY_SOCKET, "PATH", 0,
     "Control socket (default $BALLAST_SOCKET, else /run/ballast/ballast.sock), or the address "
     "tcp:127.0.0.1:PORT or tls:HOST:PORT",
     0},
    {"transport", RANK_KEY_TRANSPORT, "HOW", 0,
     "How tokens come: shared (memory), fetch (over the connection) or auto (default)", 0},
    {"dp", RANK_KEY_DP, "N", 0, "Data-parallel rank (default 0)", 1},
    {"pp", RANK_KEY_PP, "N", 0, "Pipeline-parallel rank (default 0)", 1},
    {"cp", RANK_KEY_CP, "N", 0, "Context-parallel rank (default 0)", 1},
    {"tp", RANK_KEY_TP, "N", 0, "Tensor-parallel rank (default 0)", 1},
    {"parts", RANK_KEY_PARTS, "LIST", 0,
     "What the rank needs: of plan, tokens, labels, with commas (default tokens,labels)", 1},
    {"steps", RANK_KEY_STEPS, "N", 0, "Steps to run from where it starts (default: to the end)", 2},
    {"commit-every", RANK_KEY_COMMIT_EVERY, "N", 0, "Commit every Nth step; 0 never (default 1)",
     2},
    {"seek", RANK_KEY_SEEK, "STEP", 0, "Go to this step first, with the whole job", 2},
    {"import", RANK_KEY_IMPORT, "FILE", 0, "Go on from this state first, with the whole job", 2},
    {"generation", RANK_KEY_GENERATION, "N", 0,
     "With --seek or --import: open this generation at least (default: the next)", 2},
    {"follow", RANK_KEY_FOLLOW, NULL, 0, "When another rank seeks, go there too", 2},
    {"export", RANK_KEY_EXPORT, "FILE", 0, "Write the state after the last step to this file", 2},
    {"think-ms", RANK_KEY_THINK_MS, "MS", 0, "Hold each batch for so long (default 0)", 2},
    {"credits", RANK_KEY_CREDITS, "N", 0, "Batches in flight (default 4)", 2},
    {"measured", RANK_KEY_MEASURED, NULL, 0, "Commit with the time that each batch was held", 2},
    {"total-ns", RANK_KEY_TOTAL_NS, "NS", 0, "With --measured: this time of each batch instead", 2},
    {"expert-tokens", RANK_KEY_EXPERT_TOKENS, "LIST", 0,
     "With --measured: tokens that each expert of this rank received of each batch, with commas",
     2},
    {"int64", RANK_KEY_INT64, NULL, 0, "Gather 64-bit integers", 2},
    {"connect-timeout-ms", RANK_KEY_CONNECT_TIMEOUT_MS, "MS", 0,
     "How long to wait for the daemon (default 30000; -1 for ever)", 2},
    {"verify", RANK_KEY_VERIFY, NULL, 0,
     "Judge this rank's part of each plan; the log counts what holds", 3},
    {"agree", RANK_KEY_AGREE, "DIR", 0,
     "Compare generation, step and plan with all ranks of the job before each step, through files "
     "in this folder: shared by their nodes, empty at the start",
     3},
    {"log", RANK_KEY_LOG, "FILE", 0, "Append a JSON object per micro-batch; - is standard output",
     3},
    {"no-hash", RANK_KEY_NO_HASH, NULL, 0, "Leave the hash of the tokens (XXH3) out of the log", 3},
    {"dump", RANK_KEY_DUMP, "DIR", 0,
     "Write STEP.DP.PP.CP.TP.INDEX.tokens, .labels and .positions, little-endian int32", 3},
    {0},
};

static const char rank_doc[] =
    "Takes the micro-batches of one rank from ballastd, as a trainer would.\n\n"
    "  ballast-rank --dp 0 --cp 1 --steps 10 --log -\n"
    "  ballast-rank --pp 1 --parts plan --think-ms 50\n"
    "  ballast-rank --steps 10 --export step10.state\n"
    "  ballast-rank --import step10.state\v"
    "Exit codes: 0 all steps done or the end of the data, 1 refused or failed, 2 usage, 3 daemon "
    "not running, 4 no such thing, "
    "5 timed out.";

/* A whole number within [min, max]; anything else is a usage error and does not return. */
static int64_t rank_number(const struct argp_state *state, const char *name, const char *text,
                           int64_t min, int64_t max) {
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < min || value > max) {
        argp_error(state, "--%s %s: not a whole number from %" PRId64 " to %" PRId64, name, text,
                   min, max);
    }
    return value;
}

static uint32_t rank_parts(const struct argp_state *state, char *text) {
    static const char *const names[] = {"plan", "tokens", "labels", NULL};
    uint32_t parts = 0;
    char *value = NULL;
    while (*text != '\0') {
        int name = getsubopt(&text, (char *const *)names, &value);
        if (name < 0) {
            argp_error(state, "--parts: %s is none of plan, tokens, labels", value);
        } else {
            parts |= 1u << name;
        }
    }
    return parts;
}

static void rank_credentials(struct rank_arguments *arguments) {
    const struct dial_given *given = &arguments->credentials;
    arguments->client.token_file = given->token_file;
    arguments->client.tls_certificate = given->certificate;
    arguments->client.tls_key = given->key;
    arguments->client.tls_ca = given->ca;
    arguments->client.tls_name = given->name;
}

static uint32_t rank_transport(const struct argp_state *state, const char *text) {
    static const char *const names[] = {"auto", "shared", "fetch"};
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    argp_error(state, "--transport %s: none of auto, shared, fetch", text);
    return 0;
}

static void rank_experts(const struct argp_state *state, struct rank_arguments *arguments,
                         char *text) {
    char *rest = NULL;
    arguments->experts = 0;
    for (char *one = strtok_r(text, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        if (arguments->experts == RANK_EXPERTS_MAX) {
            argp_error(state, "--expert-tokens: more than %u experts", RANK_EXPERTS_MAX);
        }
        arguments->expert_tokens[arguments->experts++] = (uint64_t)rank_number(
            state, "expert-tokens", one, 0, INT64_MAX);
    }
}

static error_t rank_parse(int key, char *text, struct argp_state *state) {
    struct rank_arguments *arguments = state->input;
    struct ballast_options *client = &arguments->client;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &arguments->credentials;
        return 0;
    case RANK_KEY_SOCKET:
        client->socket = text;
        return 0;
    case RANK_KEY_TRANSPORT:
        client->transport = rank_transport(state, text);
        return 0;
    case RANK_KEY_DP:
        client->dp = (uint32_t)rank_number(state, "dp", text, 0, UINT32_MAX);
        return 0;
    case RANK_KEY_PP:
        client->pp = (uint32_t)rank_number(state, "pp", text, 0, UINT32_MAX);
        return 0;
    case RANK_KEY_CP:
        client->cp = (uint32_t)rank_number(state, "cp", text, 0, UINT32_MAX);
        return 0;
    case RANK_KEY_TP:
        client->tp = (uint32_t)rank_number(state, "tp", text, 0, UINT32_MAX);
        return 0;
    case RANK_KEY_PARTS:
        client->parts = rank_parts(state, text);
        return 0;
    case RANK_KEY_STEPS:
        arguments->steps = (uint64_t)rank_number(state, "steps", text, 1, INT64_MAX);
        return 0;
    case RANK_KEY_COMMIT_EVERY:
        arguments->commit_every = (uint64_t)rank_number(state, "commit-every", text, 0, INT64_MAX);
        return 0;
    case RANK_KEY_THINK_MS:
        arguments->think_ms = (uint64_t)rank_number(state, "think-ms", text, 0, INT32_MAX);
        return 0;
    case RANK_KEY_CREDITS:
        client->credits = (uint32_t)rank_number(state, "credits", text, 1, 1024);
        return 0;
    case RANK_KEY_CONNECT_TIMEOUT_MS:
        client->connect_timeout_ms = (int)rank_number(state, "connect-timeout-ms", text, -1,
                                                      INT32_MAX);
        return 0;
    case RANK_KEY_SEEK:
        arguments->seek = (uint64_t)rank_number(state, "seek", text, 0, INT64_MAX);
        return 0;
    case RANK_KEY_GENERATION:
        arguments->generation = (uint64_t)rank_number(state, "generation", text, 0, INT64_MAX);
        return 0;
    case RANK_KEY_IMPORT:
        arguments->import_path = text;
        return 0;
    case RANK_KEY_EXPORT:
        arguments->export_path = text;
        return 0;
    case RANK_KEY_FOLLOW:
        arguments->follow = true;
        return 0;
    case RANK_KEY_VERIFY:
        arguments->verify = true;
        return 0;
    case RANK_KEY_AGREE:
        arguments->agree_path = text;
        return 0;
    case RANK_KEY_MEASURED:
        arguments->measured = true;
        return 0;
    case RANK_KEY_TOTAL_NS:
        arguments->total_ns = (uint64_t)rank_number(state, "total-ns", text, 1, INT64_MAX);
        return 0;
    case RANK_KEY_EXPERT_TOKENS:
        rank_experts(state, arguments, text);
        return 0;
    case RANK_KEY_INT64:
        arguments->type = BALLAST_INT64;
        return 0;
    case RANK_KEY_LOG:
        arguments->log_path = text;
        return 0;
    case RANK_KEY_NO_HASH:
        arguments->no_hash = true;
        return 0;
    case RANK_KEY_DUMP:
        arguments->dump_path = text;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "%s: no arguments are taken", text);
        return 0;
    case ARGP_KEY_END:
        rank_credentials(arguments);
        if (arguments->follow && arguments->agree_path != NULL) {
            argp_error(state, "--agree counts its rounds, and --follow leaves some out; take one");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* One failure, one line; the exit code follows from its errno. */
static int rank_fail(int code, const char *what, const char *reason) {
    fprintf(stderr, "ballast-rank: %s: %s\n", what, reason);
    return code;
}

static int rank_fail_client(const struct rank *rank, int64_t code, const char *what) {
    return rank_fail((int)code, what, ballast_error(rank->client));
}

static int rank_reserve(struct rank *rank, size_t rows) {
    if (rows <= rank->rows_max) {
        return 0;
    }
    free(rank->gathered);
    free(rank->rows);
    rank->gathered = malloc(rows * (size_t)rank->arguments.type);
    rank->rows = malloc(rows * sizeof *rank->rows);
    rank->rows_max = rank->gathered == NULL || rank->rows == NULL ? 0 : rows;
    return rank->rows_max == 0 ? rank_fail(-ENOMEM, "gather", "out of memory") : 0;
}

/* Whether the log has a hash of the tokens; who only takes batches does not pay for one. */
static bool rank_hashes(const struct rank *rank) {
    return rank->log != NULL && !rank->arguments.no_hash;
}

/* Gathers one column as a trainer does. -ESTALE, without a word: the batch will come again. */
static int rank_gather(struct rank *rank, const struct ballast_batch *batch,
                       enum ballast_column column) {
    enum ballast_type type = rank->arguments.type;
    int64_t rows = ballast_gather(rank->client, batch, column, type, rank->gathered,
                                  rank->rows_max);
    if (rows == -ESTALE) {
        return -ESTALE;
    }
    return rows < 0 ? rank_fail_client(rank, rows, "gather") : 0;
}

/* What was gathered, into rank->rows. */
static void rank_narrow(struct rank *rank, uint64_t rows) {
    bool wide = rank->arguments.type == BALLAST_INT64;
    for (uint64_t i = 0; i < rows; i++) {
        int32_t value = wide ? (int32_t)((const int64_t *)rank->gathered)[i]
                             : ((const int32_t *)rank->gathered)[i];
        rank->rows[i] = (int32_t)htole32((uint32_t)value);
    }
}

static int rank_dump(const struct rank *rank, const struct ballast_batch *batch,
                     const char *column) {
    const struct ballast_options *place = &rank->arguments.client;
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%" PRIu64 ".%u.%u.%u.%u.%u.%s",
                          rank->arguments.dump_path, batch->step, place->dp, place->pp, place->cp,
                          place->tp, batch->index, column);
    if (length < 0 || (size_t)length >= sizeof path) {
        return rank_fail(-ENAMETOOLONG, rank->arguments.dump_path, strerror(ENAMETOOLONG));
    }
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return rank_fail(-EIO, path, strerror(errno));
    }
    size_t written = fwrite(rank->rows, sizeof *rank->rows, batch->rows, file);
    if (fclose(file) != 0 || written != batch->rows) {
        return rank_fail(-EIO, path, strerror(errno));
    }
    return 0;
}

/* Gathers and dumps every column that this rank may have; hashes the tokens for the log. */
static int rank_take_columns(struct rank *rank, const struct ballast_batch *batch,
                             char tokens_xxh[17]) {
    static const struct {
        enum ballast_column column;
        uint32_t part; /* 0: always there */
        const char *name;
    } columns[RANK_COLUMNS] = {{BALLAST_TOKENS, BALLAST_PART_TOKENS, "tokens"},
                               {BALLAST_LABELS, BALLAST_PART_LABELS, "labels"},
                               {BALLAST_POSITIONS, 0, "positions"}};
    uint32_t parts = rank->arguments.client.parts;
    int code = rank_reserve(rank, batch->rows);
    for (unsigned i = 0; i < RANK_COLUMNS && code == 0; i++) {
        if (columns[i].part != 0 && (parts & columns[i].part) == 0) {
            continue;
        }
        bool hashed = columns[i].column == BALLAST_TOKENS && rank_hashes(rank);
        code = rank_gather(rank, batch, columns[i].column);
        if (code == 0 && (hashed || rank->arguments.dump_path != NULL)) {
            rank_narrow(rank, batch->rows);
        }
        if (code == 0 && hashed) {
            XXH64_hash_t hash = XXH3_64bits(rank->rows, batch->rows * sizeof *rank->rows);
            (void)snprintf(tokens_xxh, 17, "%016" PRIx64, (uint64_t)hash);
        }
        if (code == 0 && rank->arguments.dump_path != NULL) {
            code = rank_dump(rank, batch, columns[i].name);
        }
    }
    return code;
}

/* Counts what holds; without --verify nothing. */
static int rank_judge(const struct rank *rank, const struct ballast_batch *batch,
                      int64_t *verified) {
    const char *why = NULL;
    *verified = rank->arguments.verify ? rank_verify(batch, &why) : 0;
    return *verified < 0 ? rank_fail((int)*verified, "verify", why) : 0;
}

static int rank_log(const struct rank *rank, const struct ballast_batch *batch,
                    const char *tokens_xxh, int64_t verified) {
    const struct ballast_options *place = &rank->arguments.client;
    char digest[2 * sizeof batch->plan_digest + 1];
    if (rank->log == NULL) {
        return 0;
    }
    for (size_t i = 0; i < sizeof batch->plan_digest; i++) {
        (void)snprintf(digest + 2 * i, 3, "%02x", batch->plan_digest[i]);
    }
    fprintf(rank->log,
            "{\"step\": %" PRIu64 ", \"dp\": %u, \"pp\": %u, \"cp\": %u, \"tp\": %u, "
            "\"index\": %u, \"plan_digest\": \"%s\", \"documents\": %u, \"rows\": %" PRIu64
            ", \"loss_denominator\": %" PRIu64 ", \"label_tokens\": %" PRIu64
            ", \"waited_us\": %" PRIu64,
            batch->step, place->dp, place->pp, place->cp, place->tp, batch->index, digest,
            batch->document_count, batch->rows, batch->loss_denominator, batch->label_tokens,
            batch->waited_us);
    if (rank_hashes(rank)) {
        fprintf(rank->log, ", \"tokens_xxh\": \"%s\"", tokens_xxh);
    }
    if (rank->arguments.verify) {
        fprintf(rank->log, ", \"verified\": %" PRId64, verified);
    }
    fputs("}\n", rank->log);
    if (fflush(rank->log) != 0) {
        return rank_fail(-EIO, rank->arguments.log_path, strerror(errno));
    }
    return 0;
}

/* Lets time pass, unless a signal came or comes. */
static void rank_pause(struct rank *rank, uint64_t ms) {
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    if (sigtimedwait(&rank->signals, NULL, &time) > 0) {
        rank->stopped = true;
    }
}

static int rank_release(struct rank *rank, const struct ballast_batch *batch) {
    int code = ballast_release(rank->client, batch);
    return code < 0 ? rank_fail_client(rank, code, "release") : 0;
}

static uint64_t rank_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Room for every batch of the step. */
static bool rank_reserve_measured(struct rank *rank, size_t count) {
    if (count > rank->measured_max) {
        struct ballast_measured *grown = realloc(rank->measured, count * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        rank->measured = grown;
        rank->measured_max = count;
    }
    return true;
}

static void rank_measure(struct rank *rank, const struct ballast_batch *batch, uint64_t begin_ns) {
    const struct rank_arguments *arguments = &rank->arguments;
    if (arguments->measured && rank->measured_count < batch->micro_batches &&
        rank_reserve_measured(rank, batch->micro_batches)) {
        rank->measured[rank->measured_count++] = (struct ballast_measured){
            .index = batch->index,
            .total_ns = arguments->total_ns > 0 ? arguments->total_ns : rank_now_ns() - begin_ns,
            .expert_tokens = arguments->expert_tokens,
            .experts = arguments->experts};
    }
}

/* Before the first batch of a step: a trainer's first collective would hang or mix two plans. */
static int rank_compare(struct rank *rank, const struct ballast_batch *batch) {
    if (rank->arguments.agree_path == NULL || rank->agreed_step == batch->step) {
        return 0;
    }
    int code = ballast_agree(rank->client, rank->agree.ranks, rank_agree_gather, &rank->agree);
    rank->agreed_step = batch->step;
    return code < 0 ? rank_fail_client(rank, code, "agree") : 0;
}

static int rank_take(struct rank *rank, const struct ballast_batch *batch) {
    char tokens_xxh[17] = "";
    uint64_t begin_ns = rank_now_ns();
    int code = rank_compare(rank, batch);
    if (code < 0) {
        return code;
    }
    code = rank_take_columns(rank, batch, tokens_xxh);
    if (code == -ESTALE) {
        fprintf(stderr, "ballast-rank: %s\n", ballast_error(rank->client));
        return rank_release(rank, batch);
    }
    int64_t verified = 0;
    if (code == 0) {
        code = rank_judge(rank, batch, &verified);
    }
    if (code == 0) {
        code = rank_log(rank, batch, tokens_xxh, verified);
    }
    if (code < 0) {
        return code;
    }
    rank_pause(rank, rank->arguments.think_ms); /* stands in for forward and backward */
    rank_measure(rank, batch, begin_ns);
    return rank_release(rank, batch);
}

/* Reads a whole file; the caller frees. */
static int rank_read_file(const char *path, uint8_t **out, size_t *bytes) {
    uint8_t *content = NULL;
    size_t used = 0, room = 0;
    FILE *file = fopen(path, "re");
    bool failed = file == NULL;
    while (!failed && !feof(file)) {
        if (used == room) {
            room = room == 0 ? 65536 : 2 * room;
            uint8_t *grown = realloc(content, room);
            failed = grown == NULL;
            content = grown == NULL ? content : grown;
        }
        used += failed ? 0 : fread(content + used, 1, room - used, file);
        failed |= ferror(file) != 0;
    }
    int code = failed ? -(errno == 0 ? EIO : errno) : 0;
    if (file != NULL) {
        (void)fclose(file);
    }
    if (failed) {
        free(content);
        return rank_fail(code, path, strerror(-code));
    }
    *out = content;
    *bytes = used;
    return 0;
}

static int rank_import(struct rank *rank) {
    const struct rank_arguments *arguments = &rank->arguments;
    uint8_t *state = NULL;
    size_t bytes = 0;
    int code = rank_read_file(arguments->import_path, &state, &bytes);
    if (code < 0) {
        return code;
    }
    code = ballast_import(rank->client, state, bytes, arguments->generation);
    free(state);
    return code < 0 ? rank_fail_client(rank, code, "import") : 0;
}

static int rank_go(struct rank *rank) {
    const struct rank_arguments *arguments = &rank->arguments;
    int code = arguments->import_path == NULL ? 0 : rank_import(rank);
    if (code == 0 && arguments->seek != UINT64_MAX) {
        code = ballast_seek(rank->client, arguments->seek, arguments->generation);
        code = code < 0 ? rank_fail_client(rank, code, "seek") : 0;
    }
    return code;
}

/* Another rank has sought another step. */
static int rank_follow(struct rank *rank, int failed, const char *what) {
    struct ballast_job job;
    if (!rank->arguments.follow || failed != -ESTALE) {
        return rank_fail_client(rank, failed, what);
    }
    fprintf(stderr, "ballast-rank: %s\n", ballast_error(rank->client));
    (void)ballast_job(rank->client, &job);
    rank->measured_count = 0;
    int code = ballast_seek(rank->client, job.generation_step, 0);
    if (code == -EBUSY) { /* it has moved on once more, as the next call will say */
        fprintf(stderr, "ballast-rank: %s\n", ballast_error(rank->client));
        return 0;
    }
    return code < 0 ? rank_fail_client(rank, code, "seek") : 0;
}

/* The state from which the step after the last one is planned, as a checkpoint would hold it. */
static int rank_export(struct rank *rank) {
    const char *path = rank->arguments.export_path;
    const void *state = NULL;
    size_t bytes = 0;
    if (path == NULL) {
        return 0;
    }
    int code = ballast_export(rank->client, ballast_step(rank->client) + 1, &state, &bytes);
    if (code < 0) {
        return rank_fail_client(rank, code, "export");
    }
    FILE *file = fopen(path, "we");
    bool written = file != NULL && fwrite(state, 1, bytes, file) == bytes;
    if (file == NULL || fclose(file) != 0 || !written) {
        return rank_fail(-EIO, path, strerror(errno));
    }
    return 0;
}

static int rank_end_step(struct rank *rank) {
    uint64_t every = rank->arguments.commit_every;
    size_t measured = rank->measured_count;
    rank->steps_done++;
    rank->measured_count = 0;
    if (every == 0 || rank->steps_done % every != 0) {
        return 0;
    }
    int code = ballast_commit_measured(rank->client, ballast_step(rank->client), rank->measured,
                                       measured);
    while (code == -ENOBUFS && !rank->stopped) { /* not durable yet */
        fprintf(stderr, "ballast-rank: %s\n", ballast_error(rank->client));
        rank_pause(rank, RANK_COMMIT_MS);
        code = ballast_commit(rank->client, ballast_step(rank->client));
    }
    return code < 0 ? rank_follow(rank, code, "commit") : 0;
}

static int rank_run(struct rank *rank) {
    uint64_t steps = rank->arguments.steps;
    while (!rank->stopped && (steps == 0 || rank->steps_done < steps)) {
        const struct ballast_batch *batch = NULL;
        int event = ballast_next(rank->client, RANK_POLL_MS, &batch);
        int code = 0;
        if (event < 0) {
            code = rank_follow(rank, event, "next batch");
        } else if (event == BALLAST_BATCH) {
            code = rank_take(rank, batch);
        } else if (event == BALLAST_END_OF_STEP) {
            code = rank_end_step(rank);
        } else if (event == BALLAST_END_OF_DATA) {
            return 0;
        } else {
            rank_pause(rank, 0);
        }
        if (code < 0) {
            return code;
        }
    }
    return 0;
}

static void rank_waits(void *context, const char *sentence) {
    (void)context;
    fprintf(stderr, "ballast-rank: %s\n", sentence);
}

static int rank_open(struct rank *rank) {
    const char *path = rank->arguments.log_path;
    struct ballast_job job;
    if (path != NULL) {
        rank->log = strcmp(path, "-") == 0 ? stdout : fopen(path, "ae");
        if (rank->log == NULL) {
            return rank_fail(-EIO, path, strerror(errno));
        }
    }
    rank->arguments.client.waiting = rank_waits;
    int code = ballast_open(&rank->arguments.client, &rank->client);
    if (code < 0) {
        return rank_fail_client(rank, code, "open");
    }
    code = rank_go(rank);
    if (code == 0 && rank->arguments.agree_path != NULL) {
        (void)ballast_job(rank->client, &job);
        rank_agree_init(&rank->agree, rank->arguments.agree_path, &rank->arguments.client, &job);
    }
    return code;
}

static int rank_close(struct rank *rank) {
    int code = 0;
    ballast_close(rank->client);
    free(rank->gathered);
    free(rank->rows);
    free(rank->measured);
    if (rank->log != NULL && fclose(rank->log) != 0) {
        code = rank_fail(-EIO, rank->arguments.log_path, strerror(errno));
    }
    return code;
}

static void rank_block_signals(struct rank *rank) {
    (void)sigemptyset(&rank->signals);
    (void)sigaddset(&rank->signals, SIGTERM);
    (void)sigaddset(&rank->signals, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &rank->signals, NULL);
}

int main(int argc, char **argv) {
    static const struct argp_child children[] = {{&dial_argp, 0, NULL, 3}, {0}};
    static const struct argp argp = {
        .children = children, .options = rank_options, .parser = rank_parse, .doc = rank_doc};
    struct rank rank = {.arguments = {.client = BALLAST_OPTIONS_INIT,
                                      .commit_every = 1,
                                      .type = BALLAST_INT32,
                                      .seek = UINT64_MAX},
                        .agreed_step = UINT64_MAX};
    argp_program_version = "ballast-rank " BALLAST_VERSION;
    argp_err_exit_status = RANK_EXIT_USAGE;
    (void)argp_parse(&argp, argc, argv, 0, NULL, &rank.arguments);
    int code = rank_open(&rank);
    if (code == 0) {
        rank_block_signals(&rank);
        code = rank_run(&rank);
    }
    if (code == 0) {
        code = rank_export(&rank);
    }
    int closed = rank_close(&rank);
    code = code == 0 ? closed : code;
    return code == 0 ? EXIT_SUCCESS : status_exit_code(status_from_error(code));
}
