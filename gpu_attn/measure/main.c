/* ballast-profile: measures this machine's GPU and writes the latency profile that plans are priced
 * with (docs/profile.md). Data to stdout, talk to stderr. */
#include "gpu_attn/ballast_attn.h"
#include "gpu_attn/measure/measure.h"

#include <argp.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES     4096u
#define HEADS_MAX      16384u
#define COLUMNS_MAX    (1u << 20)
#define MARGINS_MAX    8u
#define DEFAULT_RUNS   9u
#define QUICK_RUNS     5u
#define EXIT_NO_DEVICE 4

enum {
    OPTION_HEAD_DIM = 500,
    OPTION_Q_HEADS,
    OPTION_KV_HEADS,
    OPTION_DETERMINISTIC,
    OPTION_SM_MARGIN,
    OPTION_WIDTH,
    OPTION_FFN,
    OPTION_TP,
    OPTION_NO_LINKS,
    OPTION_TOPOLOGY,
    OPTION_DEVICE,
    OPTION_OUTPUT,
    OPTION_QUICK,
    OPTION_RUNS,
    OPTION_JSON,
    OPTION_QUIET,
};

struct arguments {
    struct measure_options measure;
    struct profile_key key; /* but for the margin */
    uint32_t margin_count;
    uint32_t margins[MARGINS_MAX]; /* ascending; a file each */
    uint32_t device;
    bool links;
    bool quiet;
    bool json;
    const char *output;
};

static const struct argp_option options[] = {
    {"head-dim", OPTION_HEAD_DIM, "N", 0, "64 or 128 (128)", 1},
    {"q-heads", OPTION_Q_HEADS, "N", 0, "query heads of the model (32)", 1},
    {"kv-heads", OPTION_KV_HEADS, "N", 0, "K/V heads of the model (8)", 1},
    {"deterministic", OPTION_DETERMINISTIC, NULL, 0, "the backward pass without float additions",
     1},
    {"sm-margin", OPTION_SM_MARGIN, "LIST", 0,
     "processors left to exchanges, as 0,8,16: a file for each (8)", 1},
    {"hidden", OPTION_WIDTH, "N", 0, "model width; with --ffn measures the linear part too", 2},
    {"ffn", OPTION_FFN, "N", 0, "width of the feed-forward part", 2},
    {"tp", OPTION_TP, "LIST", 0, "degrees of tensor parallelism, as 1,2,8 (1)", 2},
    {"no-links", OPTION_NO_LINKS, NULL, 0, "leaves out transfers between this machine's GPUs", 2},
    {"topology", OPTION_TOPOLOGY, "TEXT", 0, "what joins the GPUs, for people (\"\")", 2},
    {"device", OPTION_DEVICE, "N", 0, "the GPU, from 0 (0)", 3},
    {"output", OPTION_OUTPUT, "DIR", 0, "where NAME.json goes (.)", 3},
    {"quick", OPTION_QUICK, NULL, 0, "a quarter of the lengths, fewer runs", 3},
    {"runs", OPTION_RUNS, "N", 0, "runs of each launch, 3 to 64 (9; --quick 5)", 3},
    {"json", OPTION_JSON, NULL, 0, "prints what was written as JSON", 3},
    {"quiet", OPTION_QUIET, NULL, 0, "no progress", 3},
    {0},
};

static const char documentation[] =
    "Measures this machine's GPU and writes the latency profile that plans are priced with.\v"
    "Examples:\n"
    "  ballast-profile --output /etc/ballast/profiles\n"
    "  ballast-profile --q-heads 64 --kv-heads 8 --hidden 8192 --ffn 28672 --tp 1,8\n"
    "  ballast-profile --sm-margin 0,8,16\n"
    "  ballast-profile --quick --json | jq -r .file\n\n"
    "The file is named by its key; `ballastctl profile show` and `fit` read it. Let nothing else "
    "run on the GPU meanwhile.\n\n"
    "Exit codes: 0 written, 1 refused or failed, 2 usage, 4 no such GPU.";

void measure_say(const struct measure_options *measure, const char *format, ...) {
    if (measure->progress != NULL) {
        va_list list;
        va_start(list, format);
        (void)fputs("ballast-profile: ", measure->progress);
        (void)vfprintf(measure->progress, format, list);
        (void)fputc('\n', measure->progress);
        va_end(list);
    }
}

static uint32_t number(struct argp_state *state, const char *text, uint32_t least, uint32_t most,
                       const char *option) {
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < least ||
        value > most) {
        argp_error(state, "%s: '%s' is no number from %u to %u", option, text, least, most);
    }
    return (uint32_t)value;
}

/* "1,2,8", ascending. */
static uint32_t numbers(struct argp_state *state, char *list, uint32_t least, uint32_t most,
                        const char *option, uint32_t *out, uint32_t room) {
    char *rest = NULL;
    uint32_t count = 0;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        uint32_t value = number(state, word, least, most, option);
        if (count == room || (count > 0 && out[count - 1] >= value)) {
            argp_error(state, "%s: up to %u ascending numbers, with commas", option, room);
        }
        out[count++] = value;
    }
    if (count == 0) {
        argp_error(state, "%s names no number", option);
    }
    return count;
}

static void check(const struct arguments *arguments, struct argp_state *state) {
    const struct profile_key *key = &arguments->key;
    const struct measure_options *measure = &arguments->measure;
    if (key->head_dim != 64 && key->head_dim != 128) {
        argp_error(state, "--head-dim: the kernels are for 64 and 128");
    }
    if (key->q_heads % key->kv_heads != 0 || key->q_heads / key->kv_heads > 128) {
        argp_error(state, "--q-heads must be 1 to 128 times --kv-heads");
    }
    if ((measure->hidden == 0) != (measure->ffn == 0)) {
        argp_error(state, "--hidden and --ffn go together");
    }
    for (uint32_t i = 0; measure->hidden > 0 && i < measure->degree_count; i++) {
        if (key->q_heads % measure->degrees[i] != 0 || measure->ffn % measure->degrees[i] != 0) {
            argp_error(state, "--tp: %u must divide --q-heads and --ffn", measure->degrees[i]);
        }
    }
}

static error_t parse_measure(int option, char *arg, struct argp_state *state) {
    struct arguments *arguments = state->input;
    struct measure_options *measure = &arguments->measure;
    switch (option) {
    case OPTION_WIDTH:
        measure->hidden = number(state, arg, 1, COLUMNS_MAX, "--hidden");
        return 0;
    case OPTION_FFN:
        measure->ffn = number(state, arg, 1, COLUMNS_MAX, "--ffn");
        return 0;
    case OPTION_TP:
        measure->degree_count = numbers(state, arg, 1, 1024, "--tp", measure->degrees,
                                        PROFILE_DEGREES_MAX);
        return 0;
    case OPTION_NO_LINKS:
        arguments->links = false;
        return 0;
    case OPTION_DEVICE:
        arguments->device = number(state, arg, 0, 1023, "--device");
        return 0;
    case OPTION_OUTPUT:
        arguments->output = arg;
        return 0;
    case OPTION_QUICK:
        measure->quick = true;
        return 0;
    case OPTION_RUNS:
        measure->runs = number(state, arg, 3, MEASURE_RUNS_MAX, "--runs");
        return 0;
    case OPTION_JSON:
        arguments->json = true;
        return 0;
    case OPTION_QUIET:
        arguments->quiet = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int option, char *arg, struct argp_state *state) {
    struct arguments *arguments = state->input;
    struct profile_key *key = &arguments->key;
    switch (option) {
    case OPTION_HEAD_DIM:
        key->head_dim = number(state, arg, 1, 256, "--head-dim");
        return 0;
    case OPTION_Q_HEADS:
        key->q_heads = number(state, arg, 1, HEADS_MAX, "--q-heads");
        return 0;
    case OPTION_KV_HEADS:
        key->kv_heads = number(state, arg, 1, HEADS_MAX, "--kv-heads");
        return 0;
    case OPTION_DETERMINISTIC:
        key->deterministic = true;
        return 0;
    case OPTION_SM_MARGIN:
        arguments->margin_count = numbers(state, arg, 0, 1023, "--sm-margin", arguments->margins,
                                          MARGINS_MAX);
        return 0;
    case OPTION_TOPOLOGY:
        if (strlen(arg) >= sizeof key->topology) {
            argp_error(state, "--topology: at most %zu bytes", sizeof key->topology - 1);
        }
        (void)snprintf(key->topology, sizeof key->topology, "%s", arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "there are no arguments, only options: '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        check(arguments, state);
        return 0;
    default:
        return parse_measure(option, arg, state);
    }
}

static int fail(const char *text, int code) {
    (void)fprintf(stderr, "ballast-profile: %s\n", text);
    return code == -ENODEV || code == -ENOTSUP ? EXIT_NO_DEVICE : 1;
}

/* "2.28.9"; "" without NCCL. */
static void nccl_version(char *out, size_t bytes) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *version) = NULL;
    int version = 0;
    void *found = library != NULL ? dlsym(library, "ncclGetVersion") : NULL;
    memcpy(&get_version, &found, sizeof found);
    if (found != NULL && get_version(&version) == 0) {
        (void)snprintf(out, bytes, "%d.%d.%d", version / 10000, version % 10000 / 100,
                       version % 100);
    }
    if (library != NULL) {
        (void)dlclose(library);
    }
}

static void key_fill(struct profile_key *key, const struct measure_device *device) {
    key->abi = PROFILE_ABI;
    (void)snprintf(key->cc, sizeof key->cc, "%s", PROFILE_CC);
    (void)snprintf(key->dtype, sizeof key->dtype, "%s", PROFILE_DTYPE);
    (void)snprintf(key->gpu, sizeof key->gpu, "%s", device->name);
    (void)snprintf(key->cuda, sizeof key->cuda, "%s", device->cuda);
    (void)snprintf(key->driver, sizeof key->driver, "%s", device->driver_text);
    (void)snprintf(key->kernel_build, sizeof key->kernel_build, "%s", ballast_attn_build());
    key->sms = device->sms;
    key->clock_cap_mhz = device->clock_cap_mhz;
    key->power_cap_w = device->power_cap_w;
    nccl_version(key->nccl, sizeof key->nccl);
}

static void provenance_fill(struct profile_provenance *provenance) {
    time_t now = time(NULL);
    struct tm utc;
    (void)gmtime_r(&now, &utc);
    (void)strftime(provenance->date, sizeof provenance->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (gethostname(provenance->host, sizeof provenance->host - 1) != 0) {
        provenance->host[0] = '\0';
    }
    (void)snprintf(provenance->tool, sizeof provenance->tool, "ballast-profile %s",
                   BALLAST_VERSION);
}

typedef int measure_part(struct measure_device *device, struct measure_options *options,
                         struct profile *profile, struct ballast_attn_error *error);

/* A part that a profile may lack. */
static int optional(measure_part *part, const char *name, struct measure_device *device,
                    struct arguments *arguments, struct profile *profile,
                    struct ballast_attn_error *error) {
    int result = part(device, &arguments->measure, profile, error);
    if (result == -ENOSYS) {
        measure_say(&arguments->measure, "%s left out: %s", name, error->text);
        result = 0;
    }
    return result;
}

/* What no margin touches is measured once. */
static int measure(struct arguments *arguments, uint32_t margin, struct measure_device *device,
                   struct profile *profile, struct ballast_attn_error *error) {
    profile->key.sm_margin = arguments->margins[margin];
    measure_say(&arguments->measure, "margin of %u SMs", arguments->margins[margin]);
    int result = measure_attention(device, &arguments->measure, profile, error);
    if (result == 0 && margin == 0 && arguments->measure.hidden > 0) {
        result = optional(measure_linear, "linear part", device, arguments, profile, error);
    }
    if (result == 0 && margin == 0 && arguments->links) {
        result = optional(measure_links, "links", device, arguments, profile, error);
    }
    return result;
}

/* Under its name only when it is whole. */
static int write_file(const struct arguments *arguments, const struct profile *profile, char *path,
                      struct error *error) {
    char name[PROFILE_NAME_BYTES];
    char made[PATH_BYTES + 8];
    int code = profile_name(profile, name);
    if (code < 0) {
        return error_set(error, code, "out of memory");
    }
    (void)snprintf(path, PATH_BYTES, "%s/%s.json", arguments->output, name);
    (void)snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "we");
    if (file == NULL) {
        code = -errno;
        return error_set(error, code, "%s: %s; name a folder that you may write to by --output",
                         made, strerror(-code));
    }
    profile_write(profile, file);
    bool whole = ferror(file) == 0;
    whole = fclose(file) == 0 && whole;
    if (!whole || rename(made, path) != 0) {
        code = -errno;
        (void)unlink(made);
        return error_set(error, code, "%s: %s; is the disk full?", made, strerror(-code));
    }
    return 0;
}

/* A path's quotes, backslashes and control characters must not end the string. */
static void print_quoted(const char *text) {
    (void)putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            printf("\\%c", *text);
        } else if ((unsigned char)*text < ' ') {
            printf("\\u%04x", (unsigned)*text);
        } else {
            (void)putchar(*text);
        }
    }
    (void)putchar('"');
}

static void report(const struct arguments *arguments, const struct profile *profile,
                   const char *path, double seconds) {
    struct profile_fit fit[2];
    profile_fit(profile, false, &fit[0]);
    profile_fit(profile, true, &fit[1]);
    if (!arguments->json) {
        printf("%s\n", path);
        return;
    }
    printf("{\"file\": ");
    print_quoted(path);
    printf(", \"gpu\": ");
    print_quoted(profile->key.gpu);
    for (int i = 0; i < 2; i++) {
        printf(", \"%s\": {\"launch_ps\": %" PRIu64 ", \"tile_ps\": %" PRIu64
               ", \"block_ps\": %" PRIu64 ", \"worst_ppm\": %" PRIu64 "}",
               i == 0 ? "fwd" : "bwd", fit[i].launch_ps, fit[i].tile_ps, fit[i].block_ps,
               fit[i].worst_ppm);
    }
    printf(", \"linear\": %s, \"links\": %u, \"spread_permille\": %u, \"seconds\": %.1f}\n",
           profile->linear.hidden > 0 ? "true" : "false", profile->coll[PROFILE_ALL_TO_ALL].count,
           arguments->measure.spread_permille, seconds);
}

static double seconds_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int run_margin(struct arguments *arguments, uint32_t margin, struct measure_device *device,
                      struct profile *profile) {
    struct ballast_attn_error attn_error = {0};
    struct error error = {0};
    char path[PATH_BYTES];
    double begin = seconds_now();
    int code = measure(arguments, margin, device, profile, &attn_error);
    if (code != 0) {
        return fail(attn_error.text, code);
    }
    profile->measured = (struct profile_measured){device->clock_max_mhz, device->clock_min_mhz,
                                                  arguments->measure.runs};
    code = profile_validate("what was measured", profile, &error);
    code = code < 0 ? code : write_file(arguments, profile, path, &error);
    if (code < 0) {
        return fail(error.text, code);
    }
    report(arguments, profile, path, seconds_now() - begin);
    return 0;
}

static int run(struct arguments *arguments, struct measure_device *device,
               struct profile *profile) {
    int code = 0;
    profile->key = arguments->key;
    key_fill(&profile->key, device);
    provenance_fill(&profile->provenance);
    if (arguments->margins[arguments->margin_count - 1] >= device->sms) {
        return fail("--sm-margin leaves no processor; take less than the GPU has", -EINVAL);
    }
    measure_say(&arguments->measure, "%s, %u SMs, kernels %s", device->name, device->sms,
                profile->key.kernel_build);
    for (uint32_t i = 0; code == 0 && i < arguments->margin_count; i++) {
        code = run_margin(arguments, i, device, profile);
    }
    return code;
}

int main(int count, char **words) {
    static const struct argp argp = {options, parse, NULL, documentation, NULL, NULL, NULL};
    struct arguments arguments = {
        .measure = {.degree_count = 1, .degrees = {1}},
        .key = {.head_dim = 128, .q_heads = 32, .kv_heads = 8},
        .margin_count = 1,
        .margins = {8},
        .links = true,
        .output = ".",
    };
    struct measure_device device;
    struct ballast_attn_error error = {0};
    argp_program_version = "ballast-profile " BALLAST_VERSION;
    argp_err_exit_status = 2;
    (void)argp_parse(&argp, count, words, 0, NULL, &arguments);
    arguments.measure.progress = arguments.quiet ? NULL : stderr;
    if (arguments.measure.runs == 0) {
        arguments.measure.runs = arguments.measure.quick ? QUICK_RUNS : DEFAULT_RUNS;
    }
    if (measure_device_open(&device, (int)arguments.device, &error) != 0) {
        (void)fprintf(stderr,
                      "ballast-profile: %s\n"
                      "ballast-profile: nothing was measured; run it on a machine with a Hopper "
                      "GPU and its driver\n",
                      error.text);
        return EXIT_NO_DEVICE;
    }
    struct profile *profile = calloc(1, sizeof *profile);
    int code = profile != NULL ? run(&arguments, &device, profile) : fail("out of memory", -ENOMEM);
    free(profile);
    measure_device_close(&device);
    return code;
}
