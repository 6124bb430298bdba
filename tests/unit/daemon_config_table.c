/* The config's table as a whole: the example follows it, and what is printed loads again. */
#include "config_world.h"
#include "daemon/config_keys.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct comparison {
    FILE *file;
    unsigned line;
};

static void compare_line(const char *text, void *context) {
    struct comparison *comparison = context;
    char expected[512];
    comparison->line++;
    if (fgets(expected, sizeof expected, comparison->file) == NULL) {
        fail_msg("the example ends before line %u: %s", comparison->line, text);
    }
    expected[strcspn(expected, "\n")] = '\0';
    assert_true(strlen(text) <= 100);
    assert_string_equal(text, expected);
}

static void the_example_is_what_the_table_prints(void **state) {
    (void)state;
    struct comparison comparison = {fopen(BALLAST_SOURCE "/deploy/ballast.conf.example", "r"), 0};
    assert_non_null(comparison.file);
    config_print_example(compare_line, &comparison);
    assert_int_equal(fgetc(comparison.file), EOF);
    (void)fclose(comparison.file);
}

static void write_line(const char *text, void *context) {
    (void)fprintf(context, "%s\n", text);
}

static void assert_same_settings(const struct config *a, const struct config *b,
                                 const char *origin) {
    assert_int_equal(config_setting_count(a), config_setting_count(b));
    for (size_t i = 0; i < config_setting_count(a); i++) {
        struct config_setting one;
        struct config_setting two;
        config_setting(a, i, &one);
        config_setting(b, i, &two);
        assert_string_equal(one.name, two.name);
        assert_string_equal(one.value, two.value);
        assert_int_equal(one.plan, two.plan);
        if (origin != NULL) {
            assert_string_equal(two.origin, origin);
        }
    }
}

static void the_example_with_a_dataset_gives_the_defaults(void **state) {
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    fputs("[dataset books]\npath = books\nweight = 1\n", stream);
    config_print_example(write_line, stream);
    assert_int_equal(fclose(stream), 0);
    struct config *plain = world_config(WORLD_DATASET);
    struct config *example = world_config(text);
    assert_same_settings(plain, example, "file");
    config_destroy(plain);
    config_destroy(example);
    free(text);
}

static void every_key_says_what_it_is(void **state) {
    (void)state;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        assert_int_equal(config_key_find(key->section, key->name), i);
        assert_true(config_section_known(key->section));
        assert_true(strlen(key->reason) > 10);
        assert_true(strlen(config_section_reason(key->section)) > 5);
        assert_ptr_equal(config_key_nearest(key->section, key->name), key);
    }
}

/* One past either end of a key's range is refused, the ends are not. */
static void ranges_include_their_ends_and_nothing_beyond(void **state) {
    (void)state;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        struct config config = {.plan.window = 1};
        char text[32];
        if (key->kind != &kind_count && key->kind != &kind_windows) {
            continue;
        }
        for (int past = 0; past <= 1; past++) {
            if (key->min > 0 || past == 0) {
                (void)snprintf(text, sizeof text, "%" PRIu64, key->min - (uint64_t)past);
                assert_int_equal(key->kind->parse(key, text, &config), past == 0 ? 0 : -EINVAL);
            }
            if (key->max < UINT64_MAX || past == 0) {
                (void)snprintf(text, sizeof text, "%" PRIu64, key->max + (uint64_t)past);
                assert_int_equal(key->kind->parse(key, text, &config), past == 0 ? 0 : -EINVAL);
            }
        }
    }
}

/* What no key of a kind takes, beside what its range says. */
static const struct {
    const struct config_kind *kind;
    const char *values[8];
} wrong[] = {
    {&kind_count, {"", "-1", "1.5", "some", "18446744073709551616", "0x10", "1 2"}},
    {&kind_decimal, {"", "-1", "1e3", "1.0001", "fast"}},
    {&kind_parameter, {"", "-1", "1.5", "none", "4294967296"}},
    {&kind_percent, {"", "5", "-1%", "1.00001%", "%", "some"}},
    {&kind_steps, {"", "-1", "1.0000001", "some"}},
    {&kind_choice, {"", "best", "0", "a|b"}},
    {&kind_policy, {"", "wlb", "fixed:0", "fixed:65", "plain,wlb:level"}},
    {&kind_duration, {"", "0", "60", "-1s", "25h", "1d"}},
    {&kind_windows, {"", "0", "-1", "0w", "w2", "1.2345678w"}},
    {&kind_thresholds, {"", "0", "5,5", "9,3", "5,,6", "1,2,3,4,5,6,7,8,9", "-4"}},
    {&kind_layouts, {"", "per-token", "per-sequence,", "per-sequence per-document"}},
    {&kind_cost, {"", "L2", "L2/0", "L2/-5", "L3/5"}},
    {&kind_replicas, {"", "-1", "1", "0-", "0,0-9999"}},
    {&kind_uids, {"root", "-1", "4294967295", "1,,2"}},
    {&kind_path, {""}},
    {&kind_file, {"certificates/"}},
    {&kind_names, {"a b", "a;b", "*.x"}},
    {&kind_endpoint, {"", "on", "localhost:1", "127.0.0.1", "127.0.0.1:0", "::1:7", "[::1]"}},
    {&kind_listen, {"", "on", "0.0.0.0:9464", "localhost:9464", "unix:m.sock", "127.0.0.1"}},
    {&kind_token_type, {"", "u7", "int", "float32", "f32", "8"}},
    {&kind_eod, {"", "-1", "2147483648", "1.5", "all"}},
    {&kind_text, {NULL}}, /* by their length alone, as the next */
    {&kind_profile, {NULL}},
};

static void expect_key_refuses(const struct config_key *key, const char *value) {
    char name[64];
    char says[128];
    struct config_override override = {name, value};
    struct config *config = NULL;
    struct error error = {0};
    (void)snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    (void)snprintf(says, sizeof says, "%s = %s is not allowed: it takes ", name, value);
    if (world_load(WORLD_DATASET, &override, 1, &config, &error) != -EINVAL) {
        fail_msg("%s = '%s' is taken", name, value);
    }
    if (strstr(error.text, says) == NULL) {
        fail_msg("'%s' does not say '%s'", error.text, says);
    }
}

static void every_key_refuses_what_it_does_not_take_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        size_t kind = 0;
        while (kind < sizeof wrong / sizeof wrong[0] && wrong[kind].kind != key->kind) {
            kind++;
        }
        if (kind == sizeof wrong / sizeof wrong[0]) {
            fail_msg("%s.%s: values of its kind are never refused here", key->section, key->name);
        }
        for (size_t v = 0; v < 8 && wrong[kind].values[v] != NULL; v++) {
            expect_key_refuses(key, wrong[kind].values[v]);
        }
        if (key->kind == &kind_decimal && key->min > 0) {
            expect_key_refuses(key, "0");
        }
    }
}

static void texts_are_refused_beyond_their_length(void **state) {
    (void)state;
    char text[CONFIG_PATH_BYTES + 1];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        struct config *config = calloc(1, sizeof *config);
        if (key->kind == &kind_text || key->kind == &kind_profile) {
            const char *longest = text + sizeof text - 1 - key->max;
            assert_int_equal(key->kind->parse(key, longest, config), 0);
            assert_int_equal(key->kind->parse(key, longest - 1, config), -EINVAL);
        }
        config_destroy(config);
    }
}

static void bounds_of_keys_are_refused_beyond_when_loaded(void **state) {
    (void)state;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        char value[32];
        if (key->kind != &kind_count && key->kind != &kind_parameter) {
            continue;
        }
        if (key->min > 0) {
            (void)snprintf(value, sizeof value, "%" PRIu64, key->min - 1);
            expect_key_refuses(key, value);
        }
        if (key->max < UINT64_MAX) {
            (void)snprintf(value, sizeof value, "%" PRIu64, key->max + 1);
            expect_key_refuses(key, value);
        }
    }
}

static uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Values that suit one another most of the time; NULL ends a row. */
static const struct {
    const char *name;
    const char *values[6];
} samples[] = {
    {"job.seed", {"1", "18446744073709551615"}},
    {"corpus.epochs", {"repeat", "1", "77"}},
    {"corpus.overlong", {"split", "truncate", "drop", "refuse"}},
    {"corpus.shuffle", {"block", "full", "none"}},
    {"corpus.block_documents", {"1", "16"}},
    {"plan.policy", {"plain", "wlb:none", "wlb:bands"}},
    {"plan.window", {"4096", "8k", "128k", "1m"}},
    {"plan.micro_batches", {"8", "16", "24"}},
    {"plan.tokens_max", {"w", "1w", "1.000001w", "1.999w", "2w", "1m"}},
    {"plan.step_tokens", {"auto", "32768"}},
    {"plan.loss_denominator", {"constant", "label_tokens"}},
    {"plan.search", {"exact", "paper"}},
    {"parallel.dp", {"1", "2", "4", "8"}},
    {"parallel.cp", {"1", "2", "4"}},
    {"parallel.tp", {"1", "2"}},
    {"bands.thresholds", {"auto", "none", "512", "1k,2k,3k"}},
    {"bands.release", {"once", "all"}},
    {"sharding.layouts",
     {"per-document", "per-sequence", "hybrid,per-document", "variable-degree"}},
    {"sharding.exchange", {"all-gather", "needed-only"}},
    {"model.gemm_tflops", {"0.001", "312", "989.4"}},
    {"model.memory_gbps", {"3350.125", "1"}},
    {"model.link_gbps", {"0", "50", "450.125"}},
    {"model.link_latency_us", {"0", "30.5"}},
    {"model.gpu", {"", "NVIDIA H100 80GB HBM3"}},
    {"model.deterministic", {"false", "true"}},
    {"model.cost", {"analytic", "L2/1", "L2/24576"}},
    {"node.replicas", {"all", "0", "0,1", "1", "0-3,6-7"}},
    {"metrics.listen", {"off", "unix:/run/m.sock", "127.0.0.1:9464", "[::1]:1"}},
    {"daemon.ahead_steps", {"auto", "9"}},
    {"daemon.lease", {"10ms", "1500ms", "90s", "120s", "24h"}},
    {"daemon.allow_uids", {"", "0", "1,2,3,4294967294"}},
    {"daemon.log_level", {"error", "warning", "notice", "info", "debug"}},
    {"daemon.socket", {"/x/y", "rel.sock", "a b;c#d"}},
    {"reader.backend", {"auto", "io_uring", "pread"}},
    {"reader.direct", {"off", "auto", "on"}},
    {"reader.mapped", {"off", "auto"}},
    {"reader.manifest", {"off", "auto", "required"}},
    {"reader.payload_hashes", {"false", "true"}},
    {"reader.recheck", {"false", "true"}},
    {"reader.registered", {"false", "true"}},
    {"reader.threads", {"auto", "7"}},
    {"slab.slots", {"auto", "500"}},
    {"slab.slot_size", {"auto", "1048576"}},
    {"slab.huge_pages", {"off", "try"}},
    {"slab.numa_node", {"any", "1"}},
    {"dataset.books.weight", {"0.000001", "4294", "2.50"}},
    {"dataset.z-1_.path", {"/p", "q"}},
    {"dataset.books.domain", {"web", "a-b.c_9"}},
};

#define SAMPLES (sizeof samples / sizeof samples[0])

static size_t random_overrides(uint64_t *state, struct config_override out[SAMPLES]) {
    size_t count = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t values = 0;
        while (values < 6 && samples[i].values[values] != NULL) {
            values++;
        }
        if (random_next(state) % 2 == 0) {
            out[count].key = samples[i].name;
            out[count].value = samples[i].values[random_next(state) % values];
            count++;
        }
    }
    return count;
}

static void what_is_printed_loads_as_the_same_config(void **state) {
    (void)state;
    uint64_t seed = 20240607;
    unsigned loaded = 0;
    /* Relative paths from flags belong to the working directory: make it the file's folder. */
    assert_int_equal(chdir(world_folder()), 0);
    for (unsigned round = 0; round < 600; round++) {
        struct config_override overrides[SAMPLES];
        size_t count = random_overrides(&seed, overrides);
        struct config *first = NULL;
        if (world_load(WORLD_DATASET, overrides, count, &first, NULL) != 0) {
            continue;
        }
        loaded++;
        char *text = world_print(first);
        struct config *second = NULL;
        struct error error = {0};
        (void)world_write(text, strlen(text));
        if (config_load("test.conf", NULL, 0, &second, &error) != 0) {
            fail_msg("round %u: %s\n%s", round, error.text, text);
        }
        assert_same_settings(first, second, "file");
        char *plan_one = config_plan_text(first, NULL, NULL);
        char *plan_two = config_plan_text(second, NULL, NULL);
        assert_string_equal(plan_one, plan_two);
        free(plan_one);
        free(plan_two);
        free(text);
        config_destroy(first);
        config_destroy(second);
    }
    assert_true(loaded > 150);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_is_what_the_table_prints),
        cmocka_unit_test(the_example_with_a_dataset_gives_the_defaults),
        cmocka_unit_test(every_key_says_what_it_is),
        cmocka_unit_test(ranges_include_their_ends_and_nothing_beyond),
        cmocka_unit_test(every_key_refuses_what_it_does_not_take_by_name),
        cmocka_unit_test(texts_are_refused_beyond_their_length),
        cmocka_unit_test(bounds_of_keys_are_refused_beyond_when_loaded),
        cmocka_unit_test(what_is_printed_loads_as_the_same_config),
    };
    return cmocka_run_group_tests_name("daemon_config_table", tests, NULL, NULL);
}
