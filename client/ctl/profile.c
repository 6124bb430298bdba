/* profile: latency profiles as files: what one says, in what two differ, which line comes nearest.
 * Needs no daemon and no config. */
#include "profile/profile.h"
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 3u
#define PS_PER_NS 1000u

struct profile_arguments {
    struct ctl *ctl;
    const char *words[WORDS_MAX];
    unsigned word_count;
};

static const struct profile_verb {
    const char *name;
    unsigned files;
    int (*run)(struct profile_arguments *arguments);
} * profile_verb(const char *name);

static void profile_check_words(const struct profile_arguments *arguments,
                                struct argp_state *state) {
    const struct profile_verb *verb = arguments->word_count == 0
                                          ? NULL
                                          : profile_verb(arguments->words[0]);
    if (verb == NULL) {
        argp_error(state, "show, compare or fit?");
    } else if (arguments->word_count != 1 + verb->files) {
        argp_error(state, "%s takes %s", verb->name, verb->files == 1 ? "a FILE" : "two FILEs");
    }
}

static error_t profile_parse_option(int key, char *arg, struct argp_state *state) {
    struct profile_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case ARGP_KEY_ARG:
        if (arguments->word_count == WORDS_MAX) {
            argp_error(state, "'%s' is one argument too many", arg);
        }
        arguments->words[arguments->word_count++] = arg;
        return 0;
    case ARGP_KEY_END:
        profile_check_words(arguments, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What a profile is known by. */
struct opened {
    struct profile *profile;
    struct model_profile model; /* its name, hash and curves */
};

static int open_file(struct ctl *ctl, const char *path, struct opened *out) {
    int code = profile_load(path, &out->profile, &ctl->error);
    if (code == 0 && profile_model(out->profile, &out->model) < 0) {
        free(out->profile);
        code = error_set(&ctl->error, -ENOMEM, "out of memory");
    }
    return code;
}

static void print_identity(struct json *json, const struct opened *opened) {
    json_member_string(json, "name", opened->model.name);
    json_key(json, "hash");
    json_hex(json, opened->model.hash, sizeof opened->model.hash);
}

/* show */

static int show_json(struct ctl *ctl, const struct opened *opened) {
    struct json json;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return error_set(&ctl->error, -ENOMEM, "out of memory");
    }
    profile_write(opened->profile, out);
    if (fclose(out) != 0) {
        free(text);
        return error_set(&ctl->error, -ENOMEM, "out of memory");
    }
    json_init(&json, stdout);
    json_object_begin(&json);
    print_identity(&json, opened);
    json_key(&json, "profile");
    json_raw(&json, text);
    json_object_end(&json);
    json_line(&json);
    free(text);
    return 0;
}

static const char *known(const char *text) {
    return text[0] == '\0' ? "-" : text;
}

static void show_key(const struct opened *opened) {
    const struct profile_key *key = &opened->profile->key;
    printf("profile  %s, hash %s\n", opened->model.name,
           units_digest(opened->model.hash, sizeof opened->model.hash).text);
    printf("gpu      %s, %s\n", key->gpu, key->cc);
    printf("sms      %" PRIu64 ", %" PRIu64 " of them left free\n", key->sms, key->sm_margin);
    printf("kernels  build %s, abi %" PRIu64 ", %s, head_dim %" PRIu64 ", %" PRIu64 ":%" PRIu64
           " heads, %s backward\n",
           key->kernel_build, key->abi, key->dtype, key->head_dim, key->q_heads, key->kv_heads,
           key->deterministic ? "deterministic" : "default");
    printf("system   driver %s, cuda %s, nccl %s\n", known(key->driver), known(key->cuda),
           known(key->nccl));
    printf("links    %s\n", known(key->topology));
    printf("made     %s on %s\n", opened->profile->provenance.date,
           opened->profile->provenance.host);
    printf("by       %s\n", opened->profile->provenance.tool);
}

static void show_measured(const struct profile *profile) {
    const struct profile_measured *measured = &profile->measured;
    if (measured->runs > 0 && measured->clock_max_mhz > 0) {
        printf("runs     %" PRIu64 " of each launch, SM clock %" PRIu64 " to %" PRIu64 " MHz\n",
               measured->runs, measured->clock_min_mhz, measured->clock_max_mhz);
    } else if (measured->runs > 0) {
        printf("runs     %" PRIu64 " of each launch\n", measured->runs);
    }
    if (profile->fwd.p10.known || profile->bwd.p10.known) {
        printf("spread   10th to 90th percentile: forward up to %s, backward %s\n",
               units_share(profile_spread_ppm(profile, false)).text,
               units_share(profile_spread_ppm(profile, true)).text);
    }
}

/* The check of the model: fragments as plans have them, which no price is made of. */
static void show_causal(const struct profile *profile) {
    for (unsigned way = 0; way < 2; way++) {
        struct profile_causal causal;
        profile_causal(profile, way == 1, &causal);
        if (causal.cells > 0) {
            printf("causal   %s prices are off by %s, at most %s (q %" PRIu64 ", kv %" PRIu64 ")\n",
                   way == 1 ? "backward" : "forward", units_share(causal.mean_ppm).text,
                   units_share(causal.worst_ppm).text, causal.worst_q, causal.worst_kv);
        }
    }
}

static void show_times(const struct profile *profile) {
    static const struct table_column columns[] = {{"ATTENTION", TABLE_LEFT, 0},
                                                  {"BLOCKS", TABLE_RIGHT, 0},
                                                  {"TILE", TABLE_RIGHT, 0},
                                                  {"A BLOCK", TABLE_RIGHT, 0}};
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (unsigned way = 0; way < 2; way++) {
        struct tile_direction curve;
        const struct profile_list *axis = way == 1 ? &profile->bwd.q : &profile->fwd.kv;
        uint64_t before = 0;
        profile_direction(profile, way == 1, &curve);
        for (uint32_t i = 0; i < axis->count; i++) {
            uint64_t length = axis->values[i];
            uint64_t blocks = profile_cell_blocks(profile, way == 1, length, length);
            uint64_t ps = (uint64_t)tile_time_ps(&curve, blocks);
            if (blocks > before) {
                table_cell(&table, "%s", way == 1 ? "backward" : "forward");
                table_cell(&table, "%" PRIu64, blocks);
                table_cell(&table, "%s", units_time(ps / PS_PER_NS).text);
                table_cell(&table, "%s", units_time(ps / blocks / PS_PER_NS).text);
            }
            before = blocks;
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void show_linear(const struct profile_linear *linear) {
    static const struct table_column columns[] = {{"LINEAR", TABLE_LEFT, 0},
                                                  {"TOKENS", TABLE_RIGHT, 0},
                                                  {"FORWARD", TABLE_RIGHT, 0},
                                                  {"BACKWARD", TABLE_RIGHT, 0}};
    struct table table;
    if (linear->degree_count == 0) {
        printf("\nThe linear part was not measured.\n");
        return;
    }
    printf("\nhidden %" PRIu64 ", ffn %" PRIu64 "; a token, one layer\n", linear->hidden,
           linear->ffn);
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (uint32_t i = 0; i < linear->degree_count; i++) {
        const struct profile_degree *degree = &linear->degrees[i];
        for (uint32_t j = 0; j < degree->tokens.count; j++) {
            table_cell(&table, "tp %" PRIu32, degree->tp);
            table_cell(&table, "%" PRIu64, degree->tokens.values[j]);
            table_cell(&table, "%" PRIu64 " ps", degree->fwd_ps_per_token.values[j]);
            table_cell(&table, "%" PRIu64 " ps", degree->bwd_ps_per_token.values[j]);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static const struct profile_group *group_next(const struct profile *profile, uint32_t *next,
                                              enum profile_collective *collective) {
    uint32_t i = *next;
    for (enum profile_collective c = 0; c < PROFILE_COLLECTIVES; c++) {
        if (i < profile->coll[c].count) {
            ++*next;
            *collective = c;
            return &profile->coll[c].groups[i];
        }
        i -= profile->coll[c].count;
    }
    return NULL;
}

/* Groups with the line that the file has, or that fits best. */
static void show_groups(const struct profile *profile) {
    static const struct table_column columns[] = {
        {"COLLECTIVE", TABLE_LEFT, 0}, {"RANKS", TABLE_RIGHT, 0}, {"NODES", TABLE_RIGHT, 0},
        {"ALPHA", TABLE_RIGHT, 0},     {"GB/S", TABLE_RIGHT, 0},  {"POINTS", TABLE_RIGHT, 0},
        {"WORST", TABLE_RIGHT, 0}};
    const struct profile_group *group;
    enum profile_collective collective = PROFILE_ALL_GATHER;
    struct table table;
    uint32_t next = 0;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    while ((group = group_next(profile, &next, &collective)) != NULL) {
        uint64_t worst_ppm = profile_link_worst_ppm(&group->bytes, &group->ps, group->alpha_ps,
                                                    group->bytes_per_us);
        table_cell(&table, "%s", profile_collective_name(collective));
        table_cell(&table, "%" PRIu32, group->ranks);
        table_cell(&table, "%" PRIu32, group->nodes);
        table_cell(&table, "%s", units_time(group->alpha_ps / PS_PER_NS).text);
        table_cell(&table, "%s", units_milli(group->bytes_per_us).text);
        table_cell(&table, "%" PRIu32, group->bytes.count);
        table_cell(&table, "%s", units_share(worst_ppm).text);
    }
    if (next > 0) {
        printf("\n");
        table_print(&table, stdout);
    } else {
        printf("\nNo collective was measured.\n");
    }
    table_deinit(&table);
}

static int show(struct profile_arguments *arguments) {
    struct ctl *ctl = arguments->ctl;
    struct opened opened;
    int code = open_file(ctl, arguments->words[1], &opened);
    if (code < 0) {
        return code;
    }
    if (ctl->json) {
        code = show_json(ctl, &opened);
    } else {
        show_key(&opened);
        show_measured(opened.profile);
        show_causal(opened.profile);
        printf("\n");
        show_times(opened.profile);
        show_linear(&opened.profile->linear);
        show_groups(opened.profile);
    }
    free(opened.profile);
    return code;
}

/* compare */

struct comparison {
    bool as_json;
    struct json json;
    struct table table;
    unsigned count;
};

static void compare_field(const char *path, const char *a, const char *b, bool must,
                          void *context) {
    struct comparison *comparison = context;
    comparison->count++;
    if (!comparison->as_json) {
        table_cell(&comparison->table, "%s", path);
        table_cell(&comparison->table, "%s", a);
        table_cell(&comparison->table, "%s", b);
        table_cell(&comparison->table, "%s", must ? "refused" : "let pass");
        return;
    }
    json_object_begin(&comparison->json);
    json_member_string(&comparison->json, "path", path);
    json_key(&comparison->json, "a");
    json_raw(&comparison->json, a);
    json_key(&comparison->json, "b");
    json_raw(&comparison->json, b);
    json_key(&comparison->json, "refused");
    json_bool(&comparison->json, must);
    json_object_end(&comparison->json);
}

/* Where b's curve leaves a's most, over the blocks of both, ppm of a's; above or below. */
struct departure {
    uint64_t blocks;
    uint64_t ppm;
    bool slower;
};

static void departure_at(const struct tile_direction *a, const struct tile_direction *b,
                         uint64_t blocks, struct departure *out) {
    unsigned __int128 a_ps = tile_time_ps(a, blocks);
    unsigned __int128 b_ps = tile_time_ps(b, blocks);
    unsigned __int128 off_ps = a_ps > b_ps ? a_ps - b_ps : b_ps - a_ps;
    uint64_t ppm = a_ps > 0 ? (uint64_t)(off_ps * 1000000 / a_ps) : 0;
    if (ppm > out->ppm || out->blocks == 0) {
        *out = (struct departure){blocks, ppm, b_ps > a_ps};
    }
}

static struct departure departure_of(const struct profile *a, const struct profile *b,
                                     bool backward) {
    const struct profile *both[] = {a, b};
    struct tile_direction curves[2];
    struct departure worst = {0};
    profile_direction(a, backward, &curves[0]);
    profile_direction(b, backward, &curves[1]);
    for (unsigned of = 0; of < 2; of++) {
        const struct profile_list *axis = backward ? &both[of]->bwd.q : &both[of]->fwd.kv;
        for (uint32_t i = 0; i < axis->count; i++) {
            uint64_t length = axis->values[i];
            departure_at(&curves[0], &curves[1],
                         profile_cell_blocks(both[of], backward, length, length), &worst);
        }
    }
    return worst;
}

static void compare_json(struct comparison *comparison, const struct opened *a,
                         const struct opened *b) {
    struct json *json = &comparison->json;
    json_init(json, stdout);
    json_object_begin(json);
    json_key(json, "a");
    json_object_begin(json);
    print_identity(json, a);
    json_object_end(json);
    json_key(json, "b");
    json_object_begin(json);
    print_identity(json, b);
    json_object_end(json);
    json_key(json, "key");
    json_array_begin(json);
    (void)profile_keys_compare(&a->profile->key, &b->profile->key, compare_field, comparison);
    json_array_end(json);
    for (unsigned way = 0; way < 2; way++) {
        struct departure worst = departure_of(a->profile, b->profile, way == 1);
        json_key(json, way == 1 ? "bwd" : "fwd");
        json_object_begin(json);
        json_member_u64(json, "worst_ppm", worst.ppm);
        json_member_u64(json, "worst_blocks", worst.blocks);
        json_key(json, "slower");
        json_bool(json, worst.slower);
        json_object_end(json);
    }
    json_object_end(json);
    json_line(json);
}

static void compare_text(struct comparison *comparison, const struct opened *a,
                         const struct opened *b) {
    static const struct table_column columns[] = {{"NAME", TABLE_LEFT, 0},
                                                  {"A", TABLE_LEFT, 0},
                                                  {"B", TABLE_LEFT, 0},
                                                  {"FOR THE OTHER", TABLE_LEFT, 0}};
    table_init(&comparison->table, columns, sizeof columns / sizeof columns[0]);
    (void)profile_keys_compare(&a->profile->key, &b->profile->key, compare_field, comparison);
    if (comparison->count > 0) {
        table_print(&comparison->table, stdout);
    } else {
        printf("The keys are equal.\n");
    }
    table_deinit(&comparison->table);
    for (unsigned way = 0; way < 2; way++) {
        struct departure worst = departure_of(a->profile, b->profile, way == 1);
        const char *name = way == 1 ? "backward" : "forward";
        if (worst.ppm == 0) {
            printf("%-8s tiles have the same prices\n", name);
        } else {
            printf("%-8s tiles of B are at most %s %s, those of %" PRIu64 " blocks\n", name,
                   units_share(worst.ppm).text, worst.slower ? "slower" : "faster", worst.blocks);
        }
    }
    if (memcmp(a->model.hash, b->model.hash, sizeof a->model.hash) == 0) {
        printf("Plans are the same with either.\n");
    }
}

static int compare(struct profile_arguments *arguments) {
    struct ctl *ctl = arguments->ctl;
    struct comparison comparison = {.as_json = ctl->json};
    struct opened a, b;
    int code = open_file(ctl, arguments->words[1], &a);
    if (code < 0) {
        return code;
    }
    code = open_file(ctl, arguments->words[2], &b);
    if (code < 0) {
        free(a.profile);
        return code;
    }
    if (ctl->json) {
        compare_json(&comparison, &a, &b);
    } else {
        compare_text(&comparison, &a, &b);
    }
    if (profile_keys_compare(&a.profile->key, &b.profile->key, NULL, NULL) == 2) {
        code = error_set(&ctl->error, -EINVAL,
                         "neither serves where the other does; measure one on each");
    }
    free(a.profile);
    free(b.profile);
    return code;
}

/* fit */

static void fit_json_attention(struct json *json, const struct profile *profile) {
    for (unsigned way = 0; way < 2; way++) {
        struct profile_fit fit;
        struct profile_causal causal;
        profile_fit(profile, way == 1, &fit);
        json_key(json, way == 1 ? "bwd" : "fwd");
        json_object_begin(json);
        json_member_u64(json, "launch_ps", fit.launch_ps);
        json_member_u64(json, "tile_ps", fit.tile_ps);
        json_member_u64(json, "block_ps", fit.block_ps);
        json_member_u64(json, "worst_ppm", fit.worst_ppm);
        json_member_u64(json, "worst_q", fit.worst_q);
        json_member_u64(json, "worst_kv", fit.worst_kv);
        json_member_u64(json, "curve_worst_ppm", fit.curve_worst_ppm);
        profile_causal(profile, way == 1, &causal);
        if (causal.cells > 0) {
            json_member_u64(json, "causal_mean_ppm", causal.mean_ppm);
            json_member_u64(json, "causal_worst_ppm", causal.worst_ppm);
            json_member_u64(json, "causal_worst_q", causal.worst_q);
            json_member_u64(json, "causal_worst_kv", causal.worst_kv);
        }
        json_object_end(json);
    }
}

static void fit_json(const struct opened *opened) {
    const struct profile_group *group;
    enum profile_collective collective = PROFILE_ALL_GATHER;
    uint32_t next = 0;
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    print_identity(&json, opened);
    fit_json_attention(&json, opened->profile);
    json_key(&json, "coll");
    json_array_begin(&json);
    while ((group = group_next(opened->profile, &next, &collective)) != NULL) {
        uint64_t alpha_ps, bytes_per_us, worst_ppm;
        profile_fit_link(&group->bytes, &group->ps, &alpha_ps, &bytes_per_us, &worst_ppm);
        json_object_begin(&json);
        json_member_string(&json, "collective", profile_collective_name(collective));
        json_member_u64(&json, "ranks", group->ranks);
        json_member_u64(&json, "nodes", group->nodes);
        json_member_u64(&json, "alpha_ps", alpha_ps);
        json_member_u64(&json, "bytes_per_us", bytes_per_us);
        json_member_u64(&json, "worst_ppm", worst_ppm);
        json_object_end(&json);
    }
    json_array_end(&json);
    json_object_end(&json);
    json_line(&json);
}

static void fit_attention(const struct profile *profile) {
    static const struct table_column columns[] = {
        {"ATTENTION", TABLE_LEFT, 0}, {"LAUNCH", TABLE_RIGHT, 0}, {"T0", TABLE_RIGHT, 0},
        {"TB", TABLE_RIGHT, 0},       {"WORST", TABLE_RIGHT, 0},  {"AT Q", TABLE_RIGHT, 0},
        {"AT KV", TABLE_RIGHT, 0},    {"CURVE", TABLE_RIGHT, 0}};
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (unsigned way = 0; way < 2; way++) {
        struct profile_fit fit;
        profile_fit(profile, way == 1, &fit);
        table_cell(&table, "%s", way == 1 ? "backward" : "forward");
        table_cell(&table, "%s", units_time(fit.launch_ps / PS_PER_NS).text);
        table_cell(&table, "%s", units_time(fit.tile_ps / PS_PER_NS).text);
        table_cell(&table, "%s", units_time(fit.block_ps / PS_PER_NS).text);
        table_cell(&table, "%s", units_share(fit.worst_ppm).text);
        table_cell(&table, "%" PRIu64, fit.worst_q);
        table_cell(&table, "%" PRIu64, fit.worst_kv);
        table_cell(&table, "%s", units_share(fit.curve_worst_ppm).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void fit_groups(const struct profile *profile) {
    static const struct table_column columns[] = {
        {"COLLECTIVE", TABLE_LEFT, 0}, {"RANKS", TABLE_RIGHT, 0}, {"NODES", TABLE_RIGHT, 0},
        {"ALPHA", TABLE_RIGHT, 0},     {"GB/S", TABLE_RIGHT, 0},  {"WORST", TABLE_RIGHT, 0}};
    const struct profile_group *group;
    enum profile_collective collective = PROFILE_ALL_GATHER;
    struct table table;
    uint32_t next = 0;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    while ((group = group_next(profile, &next, &collective)) != NULL) {
        uint64_t alpha_ps, bytes_per_us, worst_ppm;
        profile_fit_link(&group->bytes, &group->ps, &alpha_ps, &bytes_per_us, &worst_ppm);
        table_cell(&table, "%s", profile_collective_name(collective));
        table_cell(&table, "%" PRIu32, group->ranks);
        table_cell(&table, "%" PRIu32, group->nodes);
        table_cell(&table, "%s", units_time(alpha_ps / PS_PER_NS).text);
        table_cell(&table, "%s", units_milli(bytes_per_us).text);
        table_cell(&table, "%s", units_share(worst_ppm).text);
    }
    if (next > 0) {
        printf("\n");
        table_print(&table, stdout);
    }
    table_deinit(&table);
}

static int fit(struct profile_arguments *arguments) {
    struct opened opened;
    int code = open_file(arguments->ctl, arguments->words[1], &opened);
    if (code < 0) {
        return code;
    }
    if (arguments->ctl->json) {
        fit_json(&opened);
    } else {
        fit_attention(opened.profile);
        fit_groups(opened.profile);
    }
    free(opened.profile);
    return 0;
}

static const struct profile_verb verbs[] = {
    {"show", 1, show},
    {"compare", 2, compare},
    {"fit", 1, fit},
};

static const struct profile_verb *profile_verb(const char *name) {
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

static const struct argp profile_argp = {
    .parser = profile_parse_option,
    .args_doc = "show FILE\ncompare FILE FILE\nfit FILE",
    .doc = "Latency profiles, as model.profile names them. show: what it is of, the price of "
           "tiles by the blocks that they loop over, and how far prices are from causal cells. "
           "compare: which fields of the key differ, and "
           "whether the one would be refused where the other serves, which is exit code 1; then "
           "how far the prices part. fit: the line launch + t0 + blocks * tb that comes nearest "
           "to what was measured, WORST its largest error and CURVE that of the price in use; "
           "likewise alpha and bandwidth of collectives.",
    .children = ctl_argp_children,
};

int ctl_profile(struct ctl *ctl, int argc, char **argv) {
    struct profile_arguments arguments = {.ctl = ctl};
    ctl_parse(&profile_argp, 0, argc, argv, &arguments);
    return profile_verb(arguments.words[0])->run(&arguments);
}
