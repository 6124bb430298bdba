/* Latency profiles as files: what is written reads back, every refusal by name, what is known by
 * which hash, and what planning takes from one. */
#include "gpu_attn/ballast_attn.h"
#include "profile_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void abi_is_that_of_the_kernels(void **state) {
    (void)state;
    assert_int_equal(PROFILE_ABI, BALLAST_ATTN_ABI);
}

static void sample_is_the_analytic_model_under_its_name(void **state) {
    (void)state;
    char path[256], name[PROFILE_NAME_BYTES];
    struct profile *made = world_profile();
    struct profile *loaded = NULL;
    struct error error = {0};
    assert_int_equal(profile_name(made, name), 0);
    (void)snprintf(path, sizeof path, SAMPLE_FOLDER "/%s.json", name);
    if (profile_load(path, &loaded, &error) != 0) {
        fail_msg("%s", error.text);
    }
    char *texts[] = {world_profile_text(made), world_profile_text(loaded)};
    assert_string_equal(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
    free(loaded);
    free(made);
}

static struct profile *parsed(const char *text) {
    struct profile *profile = NULL;
    struct error error = {0};
    if (profile_parse("a.json", text, strlen(text), &profile, &error) != 0) {
        fail_msg("%s", error.text);
    }
    return profile;
}

/* Whatever the order and the spaces of what was read. */
static void what_is_written_reads_back_and_is_written_alike(void **state) {
    (void)state;
    struct profile *made = world_profile();
    made->coll[PROFILE_ALL_TO_ALL].groups[0].ranks = 16; /* "16x1" goes before "4x1" */
    (void)snprintf(made->key.topology, sizeof made->key.topology, "\"quoted\" \\ \xc3\xa9");
    char *text = world_profile_text(made);
    struct profile *again = parsed(text);
    char *other = world_replace(world_profile_text(again), "\"format\": 1,\n", "");
    other = world_replace(other, "{", "{  \"format\" : 1 ,\n\t");
    free(again);
    again = parsed(other);
    char *written = world_profile_text(again);
    assert_string_equal(written, text);
    free(written);
    free(other);
    free(again);
    free(text);
    free(made);
}

static void a_profile_may_lack_the_linear_part_and_collectives(void **state) {
    (void)state;
    struct profile *made = world_profile();
    made->linear = (struct profile_linear){0};
    memset(made->coll, 0, sizeof made->coll);
    char *text = world_profile_text(made);
    assert_non_null(strstr(text, "\"coll\": {},"));
    assert_non_null(strstr(text, "\"linear\": {},"));
    struct profile *again = parsed(text);
    assert_int_equal(again->linear.degree_count, 0);
    free(again);
    free(text);
    free(made);
}

static const struct refusal {
    const char *from;
    const char *to;
    const char *says;
} refusals[] = {
    {"{", "", "a.json: line "},
    {"{", "[", "a.json: line "},
    {"\"format\": 1", "\"format\": 2", "a.json: format: it is not 1"},
    {"\"format\": 1", "\"format\": \"1\"", "a.json: format: it is not 1"},
    {"\"format\": 1,\n", "", "a.json: format: missing"},
    {"\"format\": 1", "\"format\": 1, \"format\": 1", "duplicate object key near '\"format\"'"},
    {"\"format\": 1", "\"format\": 1, \"formats\": 1", "a.json: formats: unknown"},
    {"\"attn\"", "\"attention\"", "a.json: attn: missing"},
    {"\"fwd\"", "\"forward\"", "a.json: attn.fwd: missing"},
    {"\"fwd\": {", "\"sideways\": {}, \"fwd\": {", "a.json: attn.sideways: unknown"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": NaN", "invalid token near 'NaN'"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": 0", "attn.bwd.launch_ps: 0 is not from 1"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": -5", "attn.bwd.launch_ps: -5 is not from 1"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": 1.5", "attn.bwd.launch_ps: it is no whole number"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": null", "attn.bwd.launch_ps: it is no whole"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": 1000000000000001",
     "attn.bwd.launch_ps: 1000000000000001 is not from 1 to 1000000000000000"},
    {"\"launch_ps\": 15000000", "\"launch_ps\": 99999999999999999999", "too big integer"},
    {"\"launch_ps\": 15000000,\n", "", "a.json: attn.bwd.launch_ps: missing"},
    {"[4966667, 7233334", "[4966667, 0", "attn.fwd.ps_per_tile[0][1]: 0 is not from 1"},
    {"[4966667, 7233334", "[4966667, -7233334", "attn.fwd.ps_per_tile[0][1]: -7233334 is not"},
    {"[4966667, 7233334", "[4966667, 7233334.0", "attn.fwd.ps_per_tile[0][1]: it is no whole"},
    {"[4966667, 7233334", "[4966667", "attn.fwd.ps_per_tile[0]: it has 10 times for the 11"},
    {"[4966667, 7233334", "[4966667, 4700000",
     "attn.fwd.ps_per_tile[0][1]: the launch takes over "
     "5 % less than that of the smaller kv"},
    {"[4966667, 7233334", "[5400000, 7233334",
     "attn.fwd.ps_per_tile[1][0]: the launch takes over 5 % less than that of the smaller q"},
    {"[28714286", "[20714286",
     "attn.bwd.ps_per_tile[4][0]: the launch takes over 5 % less than "
     "that of the smaller q"},
    {"\"kv\": [128, 256", "\"kv\": [256, 256", "attn.bwd.kv[1]: 256 after 256; list them asc"},
    {"\"kv\": [128, 256", "\"kv\": [128", "attn.bwd.ps_per_tile[0]: it has 11 times for the 10"},
    {"\"q\": [1, 8", "\"q\": [8, 8", "attn.bwd.q[1]: 8 after 8; list them ascending"},
    {"\"q\": [1, 8", "\"q\": [8", "attn.bwd.ps_per_tile: it has not the 11 rows of q"},
    {"\"q\": [1, 8", "\"q\": [],\"x\": [1, 8", "attn.bwd.q: it is no list of 1 to 24 numbers"},
    {"\"q\": [1, 8", "\"q\": [1, 67108865", "attn.bwd.q[1]: 67108865 is not from 1 to 67108864"},
    {"\"cc\": \"9.0\"", "\"cc\": 9.0", "a.json: key.cc: it is no string"},
    {"\"cc\": \"9.0\"", "\"cc\": \"\"", "a.json: key.cc: it is empty"},
    {"\"cc\": \"9.0\"", "\"cc\": \"9.0-and-more-than-that\"", "key.cc: longer than 15 bytes"},
    {"\"cc\": \"9.0\",\n", "", "a.json: key.cc: missing"},
    {"\"cc\": \"9.0\"", "\"cc\": \"9.0\", \"ccc\": 1", "a.json: key.ccc: unknown in format 1"},
    {"\"deterministic\": false", "\"deterministic\": 0", "key.deterministic: it is neither true"},
    {"\"sms\": 132", "\"sms\": 0", "a.json: key.sms: 0 is not from 1"},
    {"\"sms\": 132", "\"sms\": 8", "a.json: key.sm_margin: 8 leaves none of key.sms = 8"},
    {"\"q_heads\": 32", "\"q_heads\": 33", "a.json: key.q_heads: 33 is no multiple"},
    {"\"hidden\": 4096,\n", "", "a.json: linear.hidden: missing"},
    {"\"hidden\": 4096", "\"hidden\": 4096, \"width\": 1", "a.json: linear.width: unknown"},
    {"\"tp\": {", "\"tp\": 1, \"x\": {", "a.json: linear.x: unknown"},
    {"\"1\": {", "\"01\": {", "linear.tp.01: it is no tensor-parallel degree"},
    {"\"1\": {", "\"4097\": {", "linear.tp.4097: it is no tensor-parallel degree"},
    {"\"tokens\": [1024, ", "\"tokens\": [", "linear.tp.1.fwd_ps_per_token: 5 values for 4"},
    {"\"tokens\": [1024, 2048", "\"tokens\": [2048, 1024", "linear.tp.1.tokens[1]: 1024 after"},
    {"\"all_to_all\"", "\"all_to_one\"", "a.json: coll.all_to_one: unknown"},
    {"\"2x1\"", "\"2\"", "coll.all_gather.2: it is no group; write RANKSxNODES"},
    {"\"2x1\"", "\"2x3\"", "coll.all_gather.2x3: it is no group"},
    {"\"2x1\"", "\"1x1\"", "coll.all_gather.1x1: it is no group"},
    {"\"bytes\": [65536, ", "\"bytes\": [", "coll.all_gather.2x1.ps: 15 values for 14 points"},
    {"\"ps\": [15198593, 15397187", "\"ps\": [15198593, 10397187",
     "coll.all_gather.2x1.ps[1]: over 5 % less than for fewer bytes"},
    {"\"alpha_ps\": 15000000", "\"alpha_ps\": 0", "coll.all_gather.2x1.alpha_ps: 0 is not from 1"},
    {"\"host\": \"none\"", "\"host\": \"\"", "a.json: provenance.host: it is empty"},
    {"\"date\": \"2026-11-29\",\n", "", "a.json: provenance.date: missing"},
    {"\"date\"", "\"note\": \"\", \"date\"", "a.json: provenance.note: unknown"},
};

static void expect_refused(const char *text, size_t bytes, const char *says) {
    struct profile *profile = NULL;
    struct error error = {0};
    assert_int_equal(profile_parse("a.json", text, bytes, &profile, &error), -EINVAL);
    assert_null(profile);
    if (strstr(error.text, says) == NULL || strncmp(error.text, "a.json: ", 8) != 0) {
        fail_msg("'%s' is not in '%s'", says, error.text);
    }
}

static void every_fault_is_refused_by_file_and_path(void **state) {
    (void)state;
    struct profile *made = world_profile();
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char *text = world_replace(world_profile_text(made), refusals[i].from, refusals[i].to);
        expect_refused(text, strlen(text), refusals[i].says);
        free(text);
    }
    free(made);
}

static const struct refusal detail_refusals[] = {
    {"\"runs\": 9", "\"runs\": 0", "a.json: measured.runs: 0 is not from 1"},
    {"\"runs\": 9", "\"runs\": 9, \"run\": 9", "a.json: measured.run: unknown"},
    {",\n  \"runs\": 9", "", "a.json: measured.runs: missing"},
    {"\"measured\": {", "\"measured\": 1, \"x\": {", "a.json: x: unknown"},
    {"\"clock_min_mhz\": 1755", "\"clock_min_mhz\": 1985", "measured.clock_min_mhz: 1985 and"},
    {"\"clock_min_mhz\": 1755", "\"clock_min_mhz\": 0", "measured.clock_min_mhz: 0 and"},
    {"\"causal_ps_per_tile\": [", "\"causal_ps_per_tile\": [ [1],",
     "attn.bwd.causal_ps_per_tile: it has not the 12 rows of q"},
    {"[4966667, 7233334", "[4966667, -1", "fwd.causal_ps_per_tile[0][1]: -1 is not from 0"},
    {"[4966667, 7233334", "[4966667, 0",
     "attn.fwd.causal_ps_per_tile[0][1]: 0, and kv is no less than q; measure again"},
    {"[4966667, 7233334", "[4966667, 8680002",
     "attn.fwd.causal_ps_per_tile[0][1]: a causal tile takes over 20 % more than a full one"},
    {"[0, 0, ", "[0, 9, ", "kv is less than q, which is not measured; write 0"},
    {"\"p10_ps_per_tile\"", "\"p50_ps_per_tile\"", "attn.bwd.p50_ps_per_tile: unknown"},
    {"\"p90_ps_per_tile\": [", "\"p90_ps_per_tile\": [ [1],", "p90_ps_per_tile: it has not the 12"},
    {"[4917001, ", "[", "attn.fwd.p10_ps_per_tile[0]: it has 10 times for the 11"},
    {"[4917001, ", "[0, ", "attn.fwd.p10_ps_per_tile[0][0]: 0 is not from 1"},
    {"[4917001, ", "[4966668, ",
     "attn.fwd.ps_per_tile[0][0]: 10th percentile 4966668, median 4966667"},
    {"[5016333, ", "[4966666, ", "90th percentile 4966666; they ascend, measure again"},
    {"\"fwd_p10_ps_per_token\": [", "\"fwd_p10_ps_per_token\": [1, ",
     "linear.tp.1.fwd_ps_per_token: 6 values for 5"},
    {"\"bwd_p90_ps_per_token\": [", "\"bwd_p90_ps_per_token\": [1, ",
     "linear.tp.1.bwd_ps_per_token: 6 values for 5"},
    {"\"p10_ps\": [", "\"p10_ps\": [99999999999, ", "coll.all_gather.2x1.ps: 16 values for 15"},
    {"\"p10_ps\": [15046608", "\"p10_ps\": [99999999",
     "coll.all_gather.2x1.ps[0]: 10th percentile 99999999"},
};

static void every_fault_of_the_details_is_refused_by_path(void **state) {
    (void)state;
    struct profile *made = world_profile();
    world_profile_detail(made);
    for (size_t i = 0; i < sizeof detail_refusals / sizeof detail_refusals[0]; i++) {
        char *text = world_replace(world_profile_text(made), detail_refusals[i].from,
                                   detail_refusals[i].to);
        expect_refused(text, strlen(text), detail_refusals[i].says);
        free(text);
    }
    free(made);
}

static void causal_cells_measure_how_far_prices_are_off(void **state) {
    (void)state;
    struct profile *made = world_profile();
    struct profile_causal causal;
    profile_causal(made, false, &causal);
    assert_int_equal(causal.cells, 0);
    world_profile_detail(made);
    for (int way = 0; way < 2; way++) {
        profile_causal(made, way == 1, &causal);
        assert_int_equal(causal.cells, 132 - 21); /* q of 256 to 8192 over 1 to 6 shorter kv */
        assert_true(causal.worst_ppm <= 1);
    }
    made->bwd.causal.ps[9][6] -= made->bwd.causal.ps[9][6] / 5;
    profile_causal(made, true, &causal);
    assert_int_equal(causal.worst_q, made->bwd.q.values[9]);
    assert_int_equal(causal.worst_kv, made->bwd.kv.values[6]);
    assert_in_range(causal.worst_ppm, 249900, 250100);
    assert_in_range(causal.mean_ppm, 250000 / 111 - 3, 250000 / 111 + 3);
    free(made);
}

static void what_masks_cost_is_let_pass(void **state) {
    (void)state;
    struct profile *made = world_profile();
    struct error error = {0};
    world_profile_detail(made);
    made->fwd.causal.ps[0][3] = made->fwd.ps_per_tile[0][3] * 119 / 100;
    assert_int_equal(profile_validate("a.json", made, &error), 0);
    free(made);
}

static void a_percentile_alone_is_refused(void **state) {
    (void)state;
    struct profile *made = world_profile();
    struct error error = {0};
    world_profile_detail(made);
    made->fwd.p90.known = false;
    assert_int_equal(profile_validate("a.json", made, &error), -EINVAL);
    assert_non_null(strstr(error.text, "attn.fwd: p10_ps_per_tile without p90_ps_per_tile"));
    made->fwd.p10.known = false;
    made->linear.degrees[1].bwd_p10.count = 0;
    assert_int_equal(profile_validate("a.json", made, &error), -EINVAL);
    assert_non_null(strstr(error.text, "linear.tp.2.bwd_ps_per_token: the 90th without the 10th"));
    made->linear.degrees[1].bwd_p90.count = 0;
    assert_int_equal(profile_validate("a.json", made, &error), 0);
    free(made);
}

/* Plans are priced as without them, but the hash is of every figure. */
static void details_read_back_and_price_nothing(void **state) {
    (void)state;
    struct profile *made = world_profile();
    struct model_profile before, after;
    assert_int_equal(profile_model(made, &before), 0);
    world_profile_detail(made);
    char *text = world_profile_text(made);
    struct profile *again = parsed(text);
    char *written = world_profile_text(again);
    assert_string_equal(written, text);
    assert_int_equal(again->measured.runs, 9);
    assert_int_equal(again->measured.clock_min_mhz, 1755);
    assert_true(profile_spread_ppm(again, false) > 19000 &&
                profile_spread_ppm(again, false) < 21000);
    assert_int_equal(profile_model(again, &after), 0);
    assert_string_equal(after.name, before.name);
    assert_memory_not_equal(after.hash, before.hash, sizeof after.hash);
    memcpy(after.hash, before.hash, sizeof after.hash);
    assert_memory_equal(&after, &before, sizeof after);
    free(written);
    free(again);
    free(text);
    free(made);
}

/* Of files that have none of what came later. */
static void the_hash_of_a_file_without_details_stays(void **state) {
    (void)state;
    static const uint8_t hash[] = {0x82, 0x17, 0xc6, 0xad, 0x87, 0x86, 0xfa, 0xd9,
                                   0xb9, 0xc5, 0x37, 0x23, 0xb2, 0x12, 0xb8, 0x1c};
    struct profile *made = world_profile();
    struct model_profile model;
    assert_int_equal(profile_model(made, &model), 0);
    assert_memory_equal(model.hash, hash, sizeof hash);
    free(made);
}

static void noise_of_up_to_five_percent_is_let_pass(void **state) {
    (void)state;
    struct profile *made = world_profile();
    struct tile_direction curve;
    char *text = world_replace(world_profile_text(made), "[4966667, 7233334", "[5200000, 7233334");
    struct profile *noisy = parsed(text);
    profile_direction(noisy, false, &curve);
    assert_int_equal(tile_time_ps(&curve, 1), 4966667); /* one of twelve cells: the median stays */
    free(noisy);
    free(text);
    free(made);
}

static void what_is_too_large_or_too_deep_is_not_read(void **state) {
    (void)state;
    static char large[PROFILE_BYTES_MAX + 1];
    memset(large, ' ', sizeof large);
    expect_refused(large, sizeof large, "larger than 1048576 bytes");
    expect_refused(large, sizeof large - 1, "line 1, column");
    memset(large, '[', 100000);
    expect_refused(large, 100000, "byte 8: deeper than 8 brackets");
    const char quoted[] = "{\"[[[[[[[[[[[[\\\"[[[\": 1}";
    expect_refused(quoted, strlen(quoted), "format: missing");
}

static char folder[] = "/tmp/ballast-profile-XXXXXX";

static void a_file_is_named_by_its_key(void **state) {
    (void)state;
    char other[128];
    struct profile *made = world_profile();
    struct profile *loaded = NULL;
    struct error error = {0};
    const char *path = world_profile_write(folder, made);
    assert_int_equal(profile_load(path, &loaded, &error), 0);
    free(loaded);
    loaded = NULL;
    (void)snprintf(other, sizeof other, "%s/h100.json", folder);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(profile_load(other, &loaded, &error), -EINVAL);
    assert_non_null(strstr(error.text, "h100.json: key: its hash is e9e8c858cb3b322d"));
    assert_int_equal(unlink(other), 0);
    path = world_profile_write(folder, made);
    char *text = world_replace(world_profile_text(made), "\"power_cap_w\": 700",
                               "\"power_cap_w\": 400");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(profile_load(path, &loaded, &error), -EINVAL);
    assert_non_null(strstr(error.text, "give it back its name, or its key if that was edited"));
    assert_int_equal(unlink(path), 0);
    free(text);
    free(made);
}

static void what_is_no_file_is_refused_with_the_reason(void **state) {
    (void)state;
    struct profile *loaded = NULL;
    struct error error = {0};
    assert_int_equal(profile_load("/nowhere/0123456789abcdef.json", &loaded, &error), -ENOENT);
    assert_non_null(strstr(error.text, "profile /nowhere/0123456789abcdef.json: "));
    assert_int_equal(profile_load(folder, &loaded, &error), -EINVAL);
    assert_non_null(strstr(error.text, "no regular file"));
    assert_null(loaded);
}

/* The name is the key's alone; the hash everything's but the provenance's. */
static void names_follow_the_key_and_hashes_what_is_priced(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        bool name, hash;
    } changes[] = {
        {"\"host\": \"none\"", "\"host\": \"elsewhere\"", false, false},
        {"\"launch_ps\": 8000000", "\"launch_ps\": 8000001", false, true},
        {"4966667", "4966668", false, true},
        {"\"hidden\": 4096", "\"hidden\": 4097", false, true},
        {"\"alpha_ps\": 15000000", "\"alpha_ps\": 15000001", false, true},
        {"\"driver\": \"\"", "\"driver\": \"570.86\"", true, true},
    };
    struct profile *made = world_profile();
    struct model_profile before, after;
    assert_int_equal(profile_model(made, &before), 0);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *text = world_replace(world_profile_text(made), changes[i].from, changes[i].to);
        struct profile *changed = parsed(text);
        assert_int_equal(profile_model(changed, &after), 0);
        assert_int_equal(strcmp(before.name, after.name) != 0, changes[i].name);
        assert_int_equal(memcmp(before.hash, after.hash, sizeof before.hash) != 0, changes[i].hash);
        free(changed);
        free(text);
    }
    free(made);
}

static const struct profile_use fitting = {
    .gpu = "NVIDIA H100 80GB HBM3",
    .kernel_build = "modelled",
    .head_dim = 128,
    .group = 4,
    .sm_margin = 8,
    .driver = "570.86",
};

static void a_stale_key_is_refused_by_field_with_the_remedy(void **state) {
    (void)state;
    struct profile *profile = world_profile();
    struct profile stale = *profile;
    struct profile_use uses[6];
    struct error error = {0};
    char warning[200];
    static const char *const says[] = {
        "a.json: key.gpu: the profile is of NVIDIA H100 80GB HBM3, this job needs NVIDIA H200",
        "key.kernel_build: the profile is of modelled, this job needs 0123",
        "key.deterministic: the profile is of false, this job needs true",
        "key.head_dim: the profile is of 128, this job needs 64",
        "key.q_heads, key.kv_heads: the profile is of 4 query heads a K/V head, this job has 8",
        "key.abi: the profile is of 2, this job needs 1",
    };
    for (size_t i = 0; i < 6; i++) {
        uses[i] = fitting;
    }
    uses[0].gpu = "NVIDIA H200";
    uses[1].kernel_build = "0123";
    uses[2].deterministic = true;
    uses[3].head_dim = 64;
    uses[4].group = 8;
    stale.key.abi = 2;
    assert_int_equal(profile_check("a.json", profile, &fitting, warning, sizeof warning, &error),
                     0);
    for (size_t i = 0; i < 6; i++) {
        const struct profile *of = i == 5 ? &stale : profile;
        assert_int_equal(profile_check("a.json", of, &uses[i], warning, sizeof warning, &error),
                         -EINVAL);
        if (strstr(error.text, says[i]) == NULL ||
            strstr(error.text, "take model.profile out") == NULL) {
            fail_msg("'%s' is not in '%s'", says[i], error.text);
        }
    }
    free(profile);
}

static void what_may_differ_is_warned_of(void **state) {
    (void)state;
    struct profile *profile = world_profile();
    struct profile_use use = fitting;
    struct error error = {0};
    char warning[200];
    use.sm_margin = 0;
    (void)snprintf(profile->key.driver, sizeof profile->key.driver, "535.1");
    assert_int_equal(profile_check("a.json", profile, &use, warning, sizeof warning, &error), 0);
    assert_string_equal(warning, "key.driver: measured with 535.1, here is 570.86; key.sm_margin: "
                                 "measured with 8, model.sm_margin = 0");
    use.gpu = "";
    use.kernel_build = "";
    use.sm_margin = 8;
    use.driver = NULL;
    assert_int_equal(profile_check("a.json", profile, &use, warning, sizeof warning, &error), 0);
    assert_string_equal(warning, "");
    free(profile);
}

static void planning_takes_the_analytic_figures_from_the_sample(void **state) {
    (void)state;
    struct profile *profile = world_profile();
    struct tile_model analytic;
    struct model_profile model;
    assert_int_equal(tile_model_analytic(128, 32, 8, 8, &analytic), 0);
    assert_int_equal(profile_model(profile, &model), 0);
    assert_memory_equal(&model.forward, &analytic.forward, sizeof model.forward);
    assert_memory_equal(&model.backward, &analytic.backward, sizeof model.backward);
    assert_int_equal(model.sms, 132);
    assert_int_equal(model.link_count, 3);
    assert_int_equal(model.degree_count, 4);
    free(profile);
}

/* Backward tiles loop over query tiles of 32 tokens: q of 1 to 32 are one block, 44 cells. */
static void a_curve_is_the_median_of_the_cells_of_as_many_blocks(void **state) {
    (void)state;
    struct profile *profile = world_profile();
    struct tile_direction curve;
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t j = 0; j < profile->bwd.kv.count; j++) {
            profile->bwd.ps_per_tile[i][j] = 20000000 + 11 * i + j;
        }
    }
    profile_direction(profile, true, &curve);
    assert_int_equal(tile_time_ps(&curve, 1), 20000021);
    assert_int_equal(tile_time_ps(&curve, 2), 28714286);
    free(profile);
}

static void a_fit_finds_the_line_and_its_worst_error(void **state) {
    (void)state;
    struct profile *profile = world_profile();
    struct profile_fit fit;
    profile_fit(profile, false, &fit);
    assert_int_equal(fit.tile_ps, 2700000);
    assert_int_equal(fit.block_ps, 2266667);
    assert_int_equal(fit.worst_ppm, 0);
    profile->fwd.ps_per_tile[2][5] += profile->fwd.ps_per_tile[2][5] / 50; /* of 132 cells */
    profile_fit(profile, false, &fit);
    assert_int_equal(fit.worst_q, profile->fwd.q.values[2]);
    assert_int_equal(fit.worst_kv, profile->fwd.kv.values[5]);
    assert_true(fit.worst_ppm > 18000 && fit.worst_ppm < 20000);
    assert_true(fit.curve_worst_ppm > 19000 && fit.curve_worst_ppm < 20000);
    free(profile);
}

static void a_fit_of_links_finds_latency_and_rate(void **state) {
    (void)state;
    struct profile *profile = world_profile();
    const struct profile_group *group = &profile->coll[0].groups[0];
    uint64_t alpha_ps, bytes_per_us, worst_ppm;
    profile_fit_link(&group->bytes, &group->ps, &alpha_ps, &bytes_per_us, &worst_ppm);
    assert_true(alpha_ps > 14990000 && alpha_ps < 15010000);
    assert_int_equal(bytes_per_us, 330000);
    assert_true(worst_ppm < 10);
    free(profile);
}

static int folder_make(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int folder_remove(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(abi_is_that_of_the_kernels),
        cmocka_unit_test(sample_is_the_analytic_model_under_its_name),
        cmocka_unit_test(what_is_written_reads_back_and_is_written_alike),
        cmocka_unit_test(a_profile_may_lack_the_linear_part_and_collectives),
        cmocka_unit_test(every_fault_is_refused_by_file_and_path),
        cmocka_unit_test(every_fault_of_the_details_is_refused_by_path),
        cmocka_unit_test(causal_cells_measure_how_far_prices_are_off),
        cmocka_unit_test(what_masks_cost_is_let_pass),
        cmocka_unit_test(a_percentile_alone_is_refused),
        cmocka_unit_test(details_read_back_and_price_nothing),
        cmocka_unit_test(the_hash_of_a_file_without_details_stays),
        cmocka_unit_test(noise_of_up_to_five_percent_is_let_pass),
        cmocka_unit_test(what_is_too_large_or_too_deep_is_not_read),
        cmocka_unit_test(a_file_is_named_by_its_key),
        cmocka_unit_test(what_is_no_file_is_refused_with_the_reason),
        cmocka_unit_test(names_follow_the_key_and_hashes_what_is_priced),
        cmocka_unit_test(a_stale_key_is_refused_by_field_with_the_remedy),
        cmocka_unit_test(what_may_differ_is_warned_of),
        cmocka_unit_test(planning_takes_the_analytic_figures_from_the_sample),
        cmocka_unit_test(a_curve_is_the_median_of_the_cells_of_as_many_blocks),
        cmocka_unit_test(a_fit_finds_the_line_and_its_worst_error),
        cmocka_unit_test(a_fit_of_links_finds_latency_and_rate),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
