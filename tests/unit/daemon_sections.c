/* [from STEP] sections: what each makes of the config, what they refuse by name, and the history
 * that they are. */
#include "config_world.h"
#include "daemon/history.h"
#include "planner/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define JOB                                                                                        \
    WORLD_DATASET "[plan]\nwindow = 1k\nmicro_batches = 24\npolicy = wlb:bands\n"                  \
                  "[parallel]\ndp = 8\ncp = 2\n"

static void expect_refusal(const char *text, const char *expected) {
    struct config *config = NULL;
    struct error error = {0};
    int code = world_load(text, NULL, 0, &config, &error);
    if (code != -EINVAL || config != NULL || strstr(error.text, expected) == NULL) {
        fail_msg("code %d '%s' lacks '%s' for:\n%s", code, error.text, expected, text);
    }
}

static void each_section_goes_on_from_the_one_before(void **state) {
    (void)state;
    struct config *config = world_config(JOB "[from 10]\nparallel.dp = 4\n"
                                             "[from 20]\nparallel.dp = 6\nplan.tokens_max = 2w\n"
                                             "[from 30]\nplan.micro_batches = 48\n");
    assert_int_equal(config->section_count, 4);
    assert_int_equal(config->sections[1].step, 10);
    assert_int_equal(config->sections[0].options.dp, 8);
    assert_int_equal(config->sections[1].options.dp, 4);
    assert_int_equal(config->sections[1].options.micro_batches, 24);
    assert_int_equal(config->sections[1].options.tokens_max, 1280);
    assert_int_equal(config->sections[2].options.dp, 6);
    assert_int_equal(config->sections[3].options.dp, 6);
    assert_int_equal(config->sections[3].options.tokens_max, 2048);
    assert_int_equal(config->sections[3].options.step_tokens, 48 * 1024);
    assert_int_equal(config->source.blends, 1);
    assert_ptr_equal(config_at(config, 9), config);
    assert_int_equal(config_at(config, 10)->plan.dp, 4);
    assert_int_equal(config_at(config, 10)->replicas_local_count, 4);
    assert_int_equal(config_at(config, 1000000)->plan.micro_batches, 48);
    config_destroy(config);
}

static void weights_and_appended_datasets_make_blends(void **state) {
    (void)state;
    struct config *config = world_config(JOB "[from 10]\nparallel.dp = 4\n"
                                             "[from 20]\ndataset.code.path = code\n"
                                             "dataset.code.weight = 2\n"
                                             "[from 30]\ndataset.code.weight = 2\n"
                                             "[from 40]\ndataset.books.weight = 3\n"
                                             "dataset.more.path = /x/more\n");
    static const uint64_t one = CONFIG_WEIGHT_ONE;
    const uint64_t weights[] = {one, 0, 0, one, 2 * one, 0, 3 * one, 2 * one, one};
    static const uint32_t blends[] = {0, 0, 1, 1, 2};
    assert_int_equal(config->dataset_job_count, 1);
    assert_int_equal(config->dataset_count, 3);
    assert_string_equal(config->datasets[1].name, "code");
    assert_string_equal(config->datasets[2].prefix, "/x/more");
    assert_int_equal(config->source.blends, 3);
    assert_memory_equal(config->source.weights, weights, sizeof weights);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(config->sections[i].blend, blends[i]);
    }
    config_destroy(config);
}

static void flags_set_what_holds_from_step_0_on(void **state) {
    (void)state;
    static const struct config_override flags[] = {{"plan.micro_batches", "8"},
                                                   {"dataset.more.path", "/data/more"}};
    struct config *config = NULL;
    assert_int_equal(
        world_load(JOB "[from 10]\nplan.micro_batches = 16\n", flags, 2, &config, NULL), 0);
    assert_int_equal(config->plan.micro_batches, 8);
    assert_int_equal(config->sections[1].options.micro_batches, 16);
    assert_int_equal(config->dataset_job_count, 2);
    config_destroy(config);
}

static void sections_are_refused_by_line_and_name(void **state) {
    (void)state;
    expect_refusal(JOB "[from]\n", "[from]: write [from STEP]");
    expect_refusal(JOB "[from 10]\ndataset.path = x\n", "unknown key dataset.path in [from 10]");
    expect_refusal(JOB "[from 10]\ndataset b.path = x\n",
                   "unknown key dataset b.path in [from 10]");
    expect_refusal(JOB "[from 0]\n", "[from 0]: write [from STEP] with a step from 1");
    expect_refusal(JOB "[from 1.5]\n", "write [from STEP]");
    expect_refusal(JOB "[from 9999999999999]\n", "with a step from 1 to 1099511627776");
    expect_refusal(JOB "[from 20]\n[from 20]\n",
                   "test.conf:11: [from 20] stands behind [from 20]; list steps ascending");
    expect_refusal(JOB "[from 20]\n[from 10]\n", "[from 10] stands behind [from 20]");
    expect_refusal(JOB "[from 20]\n[job]\n", "[job] stands behind [from 20]; move it in front");
    expect_refusal(JOB "[from 20]\n[dataset x]\npath = x\n", "[dataset x] stands behind");
    expect_refusal(JOB "[from 20]\ndp = 4\n", "unknown key dp in [from 20]; write section.key");
    expect_refusal(JOB "[from 20]\nparallel.pd = 4\n", "did you mean [parallel]");
    expect_refusal(JOB "[from 20]\ndataset.x.pth = 4\n", "a dataset has path, weight, domain");
    expect_refusal(JOB "[from 20]\nparallel.dp = 4\nparallel.dp = 6\n",
                   "test.conf:12: [from 20] parallel.dp is set twice, first on line 11");
    expect_refusal(JOB "[from 20]\nparallel.dp = many\n",
                   "test.conf:11: parallel.dp = many is not allowed");
}

static void what_lasts_as_long_as_the_job_is_refused(void **state) {
    (void)state;
    static const char *const lasting[][2] = {
        {"job.seed", "7"},
        {"plan.window", "2k"},
        {"plan.policy", "plain"},
        {"corpus.shuffle", "none"},
        {"corpus.overlong", "drop"},
        {"corpus.epochs", "3"},
        {"corpus.block_documents", "7"},
    };
    char text[512], expected[128];
    for (size_t i = 0; i < sizeof lasting / sizeof lasting[0]; i++) {
        (void)snprintf(text, sizeof text, JOB "[from 20]\n%s = %s\n", lasting[i][0], lasting[i][1]);
        (void)snprintf(expected, sizeof expected, "test.conf:11: %s stays as it is", lasting[i][0]);
        expect_refusal(text, expected);
    }
    expect_refusal(JOB "[from 20]\ndaemon.lease = 5s\n",
                   "daemon.lease is no part of the plan; set it in [daemon] and restart");
    expect_refusal(JOB "[from 20]\ndataset.books.path = other\n", "a dataset keeps its files");
    expect_refusal(JOB "[from 20]\ndataset.x.path = x\n[from 30]\ndataset.x.path = y\n",
                   "test.conf:13: dataset.x.path = ");
    expect_refusal(
        JOB "[from 20]\ndataset.books.domain = web\n",
        "dataset.books.domain = web is not allowed: a dataset keeps its files and domains");
    expect_refusal(JOB "[from 20]\ndataset.x.weight = 2\n", "[dataset x] has no path");
    expect_refusal(JOB "[from 20]\ndataset.books.weight = 0\n", "it takes 0.000001");
}

static void relations_are_checked_for_every_section(void **state) {
    (void)state;
    expect_refusal(JOB "[from 10]\nparallel.dp = 5\n",
                   "test.conf:5: plan.micro_batches = 24: not a multiple of");
    expect_refusal(JOB "[from 10]\nplan.micro_batches = 16\n[from 20]\nparallel.dp = 3\n",
                   "test.conf:11: plan.micro_batches = 16: not a multiple of");
    expect_refusal(JOB "[from 10]\nplan.tokens_max = 512\n",
                   "documents were cut into parts of up to 1024 tokens from step 0 on");
    expect_refusal(JOB "[from 10]\nplan.step_tokens = 100m\n", "test.conf:11:");
    expect_refusal(JOB "[node]\nreplicas = 4-7\n[from 10]\nparallel.dp = 4\n",
                   "node.replicas = 4-7 is not allowed");
    expect_refusal(JOB "[slab]\nslots = 100\n[from 10]\nparallel.dp = 12\n",
                   "12 local replicas need at least 120");
}

static char *plan_text_of(const char *text) {
    struct config *config = world_config(text);
    char *plan = config_plan_text(config, NULL, NULL);
    assert_non_null(plan);
    config_destroy(config);
    return plan;
}

static void the_history_has_what_each_section_changes(void **state) {
    (void)state;
    char *plain = plan_text_of(JOB);
    char *text = plan_text_of(JOB "[from 10]\nplan.micro_batches = 48\ndataset.x.path = /y\n"
                                  "dataset.books.weight = 1\n"
                                  "[from 20]\nnode.replicas = 0\nplan.micro_batches = 48\n"
                                  "[from 30]\nparallel.dp = 4\ndataset.x.weight = 0.5\n");
    size_t base = strlen(plain);
    assert_int_equal(strncmp(text, plain, base), 0);
    assert_string_equal(text + base, "[from 10]\nplan.micro_batches = 48\n"
                                     "plan.step_tokens = 49152\ndataset.x.weight = 1\n"
                                     "[from 30]\nparallel.dp = 4\ndataset.x.weight = 0.5\n");
    free(plain);
    free(text);
}

static void settings_say_from_which_step_they_hold(void **state) {
    (void)state;
    struct config *first = world_config(JOB "[from 10]\nplan.micro_batches = 48\n"
                                            "dataset.x.path = /y\n[from 30]\nparallel.dp = 4\n"
                                            "bands.thresholds = 256,512\n");
    static const struct {
        const char *name, *value, *origin;
        uint64_t from;
    } rows[] = {
        {"plan.micro_batches", "48", "file", 10}, {"plan.step_tokens", "49152", "default", 10},
        {"slab.slots", "1616", "default", 10},    {"dataset.x.path", "/y", "file", 10},
        {"parallel.dp", "4", "file", 30},         {"bands.thresholds", "256,512", "file", 30},
        {"slab.slots", "1576", "default", 30},
    };
    size_t count = sizeof rows / sizeof rows[0];
    size_t begin = config_setting_count(first) - count;
    for (size_t i = 0; i < count; i++) {
        struct config_setting setting;
        config_setting(first, begin + i, &setting);
        assert_string_equal(setting.name, rows[i].name);
        assert_string_equal(setting.value, rows[i].value);
        assert_string_equal(setting.origin, rows[i].origin);
        assert_int_equal(setting.from, rows[i].from);
    }
    char *printed = world_print(first);
    struct config *second = world_config(printed);
    char *one = config_plan_text(first, NULL, NULL);
    char *two = config_plan_text(second, NULL, NULL);
    assert_string_equal(one, two);
    free(one);
    free(two);
    free(printed);
    config_destroy(first);
    config_destroy(second);
}

/* What follows from the mesh changes with it, and is written back with the section. */
static void what_follows_from_a_section_is_part_of_it(void **state) {
    (void)state;
    struct config *first = world_config(WORLD_DATASET "[plan]\npolicy = wlb:level+pool:2\n"
                                                      "window = 4k\n[parallel]\ndp = 2\n"
                                                      "[from 10]\nparallel.tp = 4\n"
                                                      "level.preset = steady\n");
    assert_int_equal(first->sections[0].options.pools.head_shards, 4);
    assert_int_equal(first->sections[1].options.pools.head_shards, 2);
    char *printed = world_print(first);
    assert_non_null(strstr(printed, "\npools.head_shards = 2\n"));
    struct config *second = world_config(printed);
    char *one = config_plan_text(first, NULL, NULL);
    char *two = config_plan_text(second, NULL, NULL);
    assert_string_equal(one, two);
    free(one);
    free(two);
    free(printed);
    config_destroy(first);
    config_destroy(second);
}

static void histories_differ_from_a_step_on(void **state) {
    (void)state;
    static const char base[] = "a = 1\nb = 2\n";
    static const struct {
        const char *a, *b;
        uint64_t step;
        const char *a_line, *b_line;
    } rows[] = {
        {"[from 10]\nb = 3\n", "", 10, "[from 10]", "nothing"},
        {"[from 10]\nb = 3\n", "[from 20]\nb = 3\n", 10, "[from 10]", "[from 20]"},
        {"[from 20]\nb = 3\n", "[from 10]\nb = 3\n", 10, "[from 20]", "[from 10]"},
        {"[from 10]\nb = 3\n", "[from 10]\nb = 4\n", 10, "[from 10] b = 3", "[from 10] b = 4"},
        {"[from 10]\nb = 3\n", "[from 10]\nb = 3\nc = 1\n", 10, "nothing", "[from 10] c = 1"},
        {"[from 10]\nb = 3\n[from 20]\nb = 1\n", "[from 10]\nb = 3\n", 20, "[from 20]", "nothing"},
        {"[from 10]\nb = 3\n[from 20]\nb = 1\n", "[from 10]\nb = 3\nc = 1\n", 10, "[from 20]",
         "[from 10] c = 1"},
        {"c = 1\n", "[from 10]\nb = 3\n", 0, "c = 1", "[from 10]"},
        {"c = 1\n", "", 0, "c = 1", "nothing"},
    };
    char a[128], b[128];
    struct history_difference difference;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)snprintf(a, sizeof a, "%s%s", base, rows[i].a);
        (void)snprintf(b, sizeof b, "%s%s", base, rows[i].b);
        assert_false(history_differs(a, a, &difference));
        assert_true(history_differs(a, b, &difference));
        assert_int_equal(difference.step, rows[i].step);
        assert_string_equal(difference.a, rows[i].a_line);
        assert_string_equal(difference.b, rows[i].b_line);
    }
    assert_true(history_differs("a = 1\n", "a = 2\n[from 5]\nb = 1\n", &difference));
    assert_int_equal(difference.step, 0);
}

/* `text` without the line that begins with `name`. */
static char *text_without(const char *text, const char *name) {
    char *out = strdup(text);
    char *line = strstr(out, name);
    assert_non_null(line);
    char *next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    return out;
}

static void a_history_without_a_key_that_came_later_has_its_default(void **state) {
    (void)state;
    static const char paper[] = WORLD_DATASET "[plan]\nwindow = 1k\nmicro_batches = 24\n"
                                              "policy = wlb:bands\nsearch = paper\n"
                                              "[parallel]\ndp = 8\ncp = 2\n";
    struct history_difference difference;
    char *now = plan_text_of(JOB);
    char *later = plan_text_of(JOB "[from 10]\nplan.micro_batches = 48\n");
    char *other = plan_text_of(paper);
    char *older = text_without(now, "plan.search");
    assert_false(history_differs(older, now, &difference));
    assert_true(history_differs(now, older, &difference));
    assert_string_equal(difference.a, "plan.search = exact");
    assert_true(history_differs(older, later, &difference));
    assert_int_equal(difference.step, 10);
    assert_true(history_differs(older, other, &difference));
    assert_int_equal(difference.step, 0);
    assert_string_equal(difference.b, "plan.search = paper");
    free(now);
    free(later);
    free(other);
    free(older);
}

static void sections_have_a_limit(void **state) {
    (void)state;
    static char text[32768];
    size_t used = (size_t)snprintf(text, sizeof text, JOB);
    for (unsigned i = 1; i < PLAN_SECTIONS_MAX; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "[from %u]\nplan.micro_batches = %u\n", i, 24 * (1 + i % 2));
    }
    struct config *config = world_config(text);
    assert_int_equal(config->section_count, PLAN_SECTIONS_MAX);
    config_destroy(config);
    (void)snprintf(text + used, sizeof text - used, "[from 1000]\n");
    expect_refusal(text, "[from 1000]: more than 255 sections");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_section_goes_on_from_the_one_before),
        cmocka_unit_test(weights_and_appended_datasets_make_blends),
        cmocka_unit_test(flags_set_what_holds_from_step_0_on),
        cmocka_unit_test(sections_are_refused_by_line_and_name),
        cmocka_unit_test(what_lasts_as_long_as_the_job_is_refused),
        cmocka_unit_test(relations_are_checked_for_every_section),
        cmocka_unit_test(the_history_has_what_each_section_changes),
        cmocka_unit_test(settings_say_from_which_step_they_hold),
        cmocka_unit_test(what_follows_from_a_section_is_part_of_it),
        cmocka_unit_test(histories_differ_from_a_step_on),
        cmocka_unit_test(a_history_without_a_key_that_came_later_has_its_default),
        cmocka_unit_test(sections_have_a_limit),
    };
    return cmocka_run_group_tests_name("daemon_sections", tests, NULL, NULL);
}
