/* The config: precedence, values, refusals, identity. */
#include "config_world.h"
#include "daemon/config_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Loads `text`, which must be refused with -EINVAL and a sentence that has `expected` in it. */
static void expect_refusal(const char *text, const char *expected) {
    struct config *config = NULL;
    struct error error = {0};
    int code = world_load(text, NULL, 0, &config, &error);
    if (code != -EINVAL || config != NULL || strstr(error.text, expected) == NULL) {
        fail_msg("code %d '%s' lacks '%s' for:\n%s", code, error.text, expected, text);
    }
}

static void expect_flag_refusal(const char *key, const char *value, const char *expected) {
    struct config_override flag = {key, value};
    struct config *config = NULL;
    struct error error = {0};
    int code = world_load(WORLD_DATASET, &flag, 1, &config, &error);
    if (code != -EINVAL || strstr(error.text, expected) == NULL) {
        fail_msg("code %d '%s' lacks '%s' for %s = %s", code, error.text, expected, key, value);
    }
}

static void flags_override_environment_overrides_file_overrides_default(void **state) {
    (void)state;
    static const char text[] = WORLD_DATASET "[plan]\nwindow = 4096\nmicro_batches = 4\n"
                                             "[limits]\ncredits = 3\n";
    static const struct config_override flags[] = {{"plan.window", "1024"},
                                                   {"plan.window", "512"},
                                                   {"dataset.books.weight", "3"},
                                                   {"dataset.more.path", "/data/more"}};
    struct config *config = NULL;
    setenv("BALLAST_PLAN_WINDOW", "2048", 1);
    setenv("BALLAST_PLAN_MICRO_BATCHES", "2", 1);
    assert_int_equal(world_load(text, flags, 4, &config, NULL), 0);
    unsetenv("BALLAST_PLAN_WINDOW");
    unsetenv("BALLAST_PLAN_MICRO_BATCHES");
    assert_int_equal(config->plan.window, 512);
    assert_string_equal(world_origin(config, "plan.window"), "flag");
    assert_int_equal(config->plan.micro_batches, 2);
    assert_string_equal(world_origin(config, "plan.micro_batches"), "environment");
    assert_int_equal(config->credits_max, 3);
    assert_string_equal(world_origin(config, "limits.credits"), "file");
    assert_int_equal(config->connections_max, 256);
    assert_string_equal(world_origin(config, "limits.connections"), "default");
    assert_int_equal(config->dataset_count, 2);
    assert_int_equal(config->datasets[0].weight, 3 * CONFIG_WEIGHT_ONE);
    assert_string_equal(world_origin(config, "dataset.books.weight"), "flag");
    assert_string_equal(world_origin(config, "dataset.more.weight"), "default");
    assert_string_equal(config->datasets[1].prefix, "/data/more");
    config_destroy(config);
}

static void variables_that_are_no_keys_are_not_ours(void **state) {
    (void)state;
    setenv("BALLAST_DAEMON_SERVICE_HOST", "10.0.0.1", 1);
    config_destroy(world_config(WORLD_DATASET));
    unsetenv("BALLAST_DAEMON_SERVICE_HOST");
}

static void an_overridden_value_is_not_looked_at(void **state) {
    (void)state;
    static const struct config_override flag = {"plan.window", "1024"};
    struct config *config = NULL;
    assert_int_equal(world_load(WORLD_DATASET "[plan]\nwindow = soon\n", &flag, 1, &config, NULL),
                     0);
    config_destroy(config);
}

static void datasets_and_defaults_are_enough(void **state) {
    (void)state;
    struct config *config = NULL;
    static const struct config_override flag = {"dataset.books.path", "books"};
    assert_int_equal(config_load(NULL, &flag, 1, &config, NULL), 0);
    assert_string_equal(config->datasets[0].prefix, "books");
    assert_int_equal(config->plan.window, 131072);
    assert_int_equal(config->plan.tokens_max, 163840);
    assert_int_equal(config->plan.step_tokens, 8 * 131072);
    assert_int_equal(config->plan.policy, POLICY_WLB_LEVEL);
    assert_int_equal(config->plan.bands.bands, 0);
    assert_int_equal(config->plan.level.token_tolerance, 250000);
    assert_int_equal(config->plan.level.candidate_length, 16384);
    assert_int_equal(config->source.part_limit, 131072);
    assert_int_equal(config->source.epochs, 0);
    assert_int_equal(config->lease_ms, 60000);
    assert_int_equal(config->log_level, 6);
    assert_int_equal(config->plan.model.gemm_flops_per_ns, 600000);
    assert_int_equal(config->plan.model.memory_bytes_per_us, 2800000);
    assert_int_equal(config->ahead_steps, (32 << 20) / 163840 / 8);
    assert_int_equal(config->slots, 25 * 8 + 8 + 2);
    assert_int_equal(config->reader.jobs_max, config->slots);
    config_destroy(config);
}

static void values_mean_what_they_say(void **state) {
    (void)state;
    struct config *config = world_config(
        "[dataset a]\npath = a\nweight = 2\n[dataset b]\nweight = 0.5\npath = b\n"
        "[dataset c]\npath = c\nweight = 1.000001\n"
        "[plan]\nwindow = 128k\ntokens_max = 1.5w\nmicro_batches = 16\nstep_tokens = 2m\n"
        "policy = wlb:bands\n"
        "[parallel]\ndp = 8\n[bands]\nthresholds = 1k, 2K ,65536\n"
        "[level]\npreset = fine\ntoken_tolerance = 12.5%\nmax_backlog = 1.5\nlook_ahead = 0\n"
        "[model]\ncost = L2/24576\ngemm_tflops = 989.5\n"
        "[sharding]\nlayouts = per-document\n[corpus]\nepochs = 3\n"
        "[node]\nreplicas = 0, 1,4-6\n"
        "[daemon]\nlease = 250ms\nallow_uids = 1000, 1001\nlog_level = debug\n"
        "[reader]\nbackend = pread\npayload_hashes = true\n");
    assert_int_equal(config->datasets[0].weight, 2000000);
    assert_int_equal(config->datasets[1].weight, 500000);
    assert_int_equal(config->datasets[2].weight, 1000001);
    assert_int_equal(config->plan.window, 131072);
    assert_int_equal(config->plan.tokens_max, 196608);
    assert_int_equal(config->plan.step_tokens, 2097152);
    assert_int_equal(config->plan.bands.bands, 3);
    assert_int_equal(config->plan.bands.length_min[1], 2048);
    assert_int_equal(config->plan.bands.group, 16);
    assert_int_equal(config->plan.level.token_tolerance, 125000);
    assert_int_equal(config->plan.level.max_backlog, 1500000);
    assert_int_equal(config->plan.level.look_ahead, 0);
    struct level_options fine;
    level_options_preset(LEVEL_FINE, 131072, &fine);
    assert_int_equal(config->plan.level.allowance, fine.allowance);
    assert_int_equal(config->plan.level.imbalance_price, fine.imbalance_price);
    assert_int_equal(config->plan.model.cost_linear, 24576);
    assert_int_equal(config->plan.model.gemm_flops_per_ns, 989500);
    assert_int_equal(config->plan.layouts.allowed, 1u << LAYOUT_PER_DOCUMENT);
    assert_int_equal(config->source.epochs, 3);
    static const uint8_t local[] = {1, 1, 0, 0, 1, 1, 1, 0};
    assert_memory_equal(config->replicas_local, local, sizeof local);
    assert_int_equal(config->replicas_local_count, 5);
    assert_int_equal(config->ahead_steps, (32 << 20) / 196608 / (5 * 2));
    assert_int_equal(config->slots, 5 * (17 * 2 + 8 + 2));
    assert_int_equal(config->lease_ms, 250);
    assert_int_equal(config->uids_serve_count, 2);
    assert_int_equal(config->uids_serve[1], 1001);
    assert_int_equal(config->uids_admin_count, 0);
    assert_int_equal(config->log_level, 7);
    assert_int_equal(config->reader_backend, READER_PREAD);
    assert_true(config->payload_hashes);
    assert_string_equal(world_value(config, "node.replicas"), "0-1,4-6");
    assert_string_equal(world_value(config, "dataset.b.weight"), "0.5");
    config_destroy(config);
}

static void paths_are_relative_to_the_file(void **state) {
    (void)state;
    char expected[128];
    struct config *config = world_config("[dataset books]\npath = in/books\n"
                                         "[daemon]\nsocket = s.sock\nstate_dir = /var/x\n");
    (void)snprintf(expected, sizeof expected, "%s/in/books", world_folder());
    assert_string_equal(config->datasets[0].prefix, expected);
    (void)snprintf(expected, sizeof expected, "%s/s.sock", world_folder());
    assert_string_equal(config->socket_path, expected);
    assert_string_equal(config->state_dir, "/var/x");
    config_destroy(config);
}

static void syntax_errors_name_the_first_bad_line(void **state) {
    (void)state;
    expect_refusal(WORLD_DATASET "[plan]\nwindow\n[nonsense]\n", "test.conf:4: expected");
    expect_refusal("window = 5\n", "test.conf:1: 'window' stands before the first [section]");
    expect_refusal("# fine\n[plan\nwindow = 5\n", "test.conf:2: this section has no ']'");
    expect_refusal("[plan] window = 5\n", "test.conf:1: 'window = 5");
    expect_refusal("[plan]\nwindow = 5\n\n[plan]\nwindow = 6\n",
                   "test.conf:5: [plan] window is set twice, first on line 2");
    expect_refusal("", "no dataset; add a [dataset NAME] section");
    expect_refusal("[dataset x]\nweight = 1\n", "[dataset x] has no path");
}

static void long_lines_and_nul_bytes_are_refused(void **state) {
    (void)state;
    static const char nul[] = "[plan]\nwindow\0 = 4096\n";
    static const char last_nul[] = "[plan]\nwindow = 4096\0 k";
    char line[CONFIG_VALUE_BYTES + 32];
    struct config *config = NULL;
    struct error error;
    memset(line, 'x', sizeof line - 1);
    memcpy(line, "[plan]\nwindow = ", 16);
    line[sizeof line - 1] = '\0';
    expect_refusal(line, "test.conf:2: ");
    assert_int_equal(config_load(world_write(nul, sizeof nul - 1), NULL, 0, &config, &error),
                     -EINVAL);
    assert_non_null(strstr(error.text, "test.conf:2: the line holds a NUL"));
    assert_int_equal(
        config_load(world_write(last_nul, sizeof last_nul - 1), NULL, 0, &config, &error), -EINVAL);
    assert_non_null(strstr(error.text, "test.conf:2: the line holds a NUL"));
}

static void indentation_comments_and_repeated_sections_are_fine(void **state) {
    (void)state;
    struct config *config = world_config("\xef\xbb\xbf[plan]\r\n  ; a comment\r\n"
                                         "[plan] # of steps\n  window = 4096 ; tokens\n"
                                         "\tmicro_batches: 4\n[dataset a]\npath = a\n"
                                         "[plan]\n\tpolicy = wlb:none");
    assert_int_equal(config->plan.window, 4096);
    assert_int_equal(config->plan.micro_batches, 4);
    assert_int_equal(config->plan.policy, POLICY_WLB_NONE);
    config_destroy(config);
}

static void unknown_names_suggest_the_nearest(void **state) {
    (void)state;
    expect_refusal("[plan]\nwindw = 5\n",
                   "test.conf:2: unknown key windw in [plan]; did you mean [plan] window?");
    expect_refusal("[level]\nlook_ahed = 5\n", "did you mean [level] look_ahead?");
    expect_refusal("[plan]\nmax_age = 5\n", "did you mean [level] max_age?");
    expect_refusal("[plann]\n", "test.conf:1: unknown section [plann]; did you mean [plan]?");
    expect_refusal("[zzzzzzzz]\n", "unknown section [zzzzzzzz]");
    expect_refusal("[plan]\nxyzzyxyzzy = 5\n", "unknown key xyzzyxyzzy in [plan]");
    expect_refusal("[dataset a]\npth = 5\n", "a dataset has path, weight, domain");
    expect_refusal("[dataset a b]\npath = x\n", "a dataset's name is 1 to 40");
    expect_refusal("[dataset 0123456789012345678901234567890123456789x]\npath = x\n",
                   "a dataset's");
    expect_refusal("[dataset]\npath = x\n", "a dataset's name");
    expect_flag_refusal("plan.windw", "5",
                        "flag: unknown key plan.windw; did you mean [plan] window");
    expect_flag_refusal("window", "5", "write section.key");
    expect_flag_refusal("dataset.a/b.path", "5", "unknown key dataset.a/b.path");
}

static void refused_values_are_named_with_what_is_allowed(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"[plan]\nwindow = soon\n",
         "test.conf:4: plan.window = soon is not allowed: it takes 1 to 67108864 tokens"},
        {"[plan]\nwindow = 0\n", "it takes 1 to"},
        {"[dataset x]\npath = x\ndomain = a b\n",
         "dataset.x.domain = a b is not allowed: it takes a name"},
        {"[dataset x]\npath = x\ndomain = a,b\n", "it takes a name of 1 to 40"},
        {"[dataset x]\npath = x\ndomain = a\ndomain_file = f\ndomain_names = a\n", "remove either"},
        {"[dataset x]\npath = x\ndomain_file = f\n", "needs domain_names beside it"},
        {"[dataset x]\npath = x\ndomain_names = a\n", "needs domain_file"},
        {"[dataset x]\npath = x\ndomain_file = f\ndomain_names = a,a\n", "different names"},
        {"[plan]\nwindow = 65m\n", "it takes 1 to"},
        {"[plan]\nwindow = 18446744073709551616\n", "it takes 1 to"},
        {"[plan]\nwindow = -1\n", "it takes 1 to"},
        {"[plan]\nwindow = 4096 tokens\n", "it takes 1 to"},
        {"[plan]\nwindow =\n", "it takes 1 to"},
        {"[plan]\nmicro_batches = 1k\n", "it takes 1 to 65536 micro-batches"},
        {"[plan]\ntokens_max = 1.2345678w\n", "also in windows, such as 1.25w"},
        {"[plan]\ntokens_max = w\n", "also in windows"},
        {"[plan]\ntokens_max = 1.w\n", "also in windows"},
        {"[plan]\ntokens_max = 99999999999999999999w\n", "also in windows"},
        {"[plan]\npolicy = wlb\n",
         "it takes one of plain, fixed:1 to fixed:64, wlb:none, wlb:bands"},
        {"[plan]\npolicy = plain|wlb:none\n", "it takes one of"},
        {"[plan]\nstep_tokens = 0\n", "it takes auto, or 1 to"},
        {"[bands]\nthresholds = 5,5\n", "ascending lengths"},
        {"[bands]\nthresholds = 5,,6\n", "ascending lengths"},
        {"[bands]\nthresholds = 5,\n", "ascending lengths"},
        {"[bands]\nthresholds =\n", "ascending lengths"},
        {"[bands]\nthresholds = 1,2,3,4,5,6,7,8,9\n", "list of 1 to 8"},
        {"[sharding]\nlayouts = per-token\n", "a list of per-sequence, per-document"},
        {"[sharding]\nlayouts =\n", "a list of"},
        {"[model]\ncost = L2/0\n", "analytic, or L2/C"},
        {"[model]\ncost = L3/5\n", "analytic, or L2/C"},
        {"[model]\ngemm_tflops = 0\n", "0.001 to 100000 TFLOP/s"},
        {"[model]\ngemm_tflops = 1e3\n", "TFLOP/s"},
        {"[node]\nreplicas = 1\n", "of numbers below parallel.dp"},
        {"[node]\nreplicas = \n", "all, or a list"},
        {"[node]\nreplicas = 0-\n", "all, or a list"},
        {"[parallel]\ndp = 4\n[node]\nreplicas = 0,2-1\n", "all, or a list"},
        {"[daemon]\nlease = 60\n", "10ms to 24h, with ms, s, m or h"},
        {"[daemon]\nlease = 1ms\n", "10ms to 24h"},
        {"[daemon]\nallow_uids = root\n", "up to 64 user ids"},
        {"[daemon]\nallow_uids = 4294967295\n", "up to 64 user ids"},
        {"[daemon]\nlog_level = loud\n", "one of error, warning, notice, info, debug"},
        {"[daemon]\nsocket =\n", "a path of 1 to 102 characters"},
        {"[reader]\npayload_hashes = yes\n", "one of false, true"},
        {"[dataset books]\nweight = 0\n", "dataset.books.weight = 0 is not allowed"},
        {"[dataset books]\nweight = 4294.000001\n", "it takes 0.000001 to 4294"},
        {"[dataset books]\nweight = 1.0000001\n", "up to six digits after the point"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[512];
        (void)snprintf(text, sizeof text, "%s%s", WORLD_DATASET, rows[i][0]);
        expect_refusal(text, rows[i][1]);
    }
    expect_flag_refusal("plan.window", "x", "flag: plan.window = x is not allowed");
    expect_flag_refusal("daemon.socket", "a ;b", "what a line of the file cannot");
    expect_flag_refusal("daemon.socket", "a\nb", "what a line of the file cannot");
    expect_flag_refusal("daemon.socket", " a", "what a line of the file cannot");
    setenv("BALLAST_PLAN_WINDOW", "x", 1);
    expect_refusal(WORLD_DATASET, "BALLAST_PLAN_WINDOW: plan.window = x is not allowed");
    unsetenv("BALLAST_PLAN_WINDOW");
}

static void contradictions_carry_the_line_of_the_key_they_name(void **state) {
    (void)state;
    expect_refusal(WORLD_DATASET "[parallel]\ndp = 3\n[plan]\nmicro_batches = 8\n",
                   "test.conf:6: plan.micro_batches = 8");
    expect_refusal(WORLD_DATASET "[model]\n\nhead_dim = 80\n", "test.conf:5: model.head_dim = 80");
    expect_refusal(WORLD_DATASET "[plan]\nstep_tokens = 1300000\n",
                   "test.conf:4: plan.step_tokens = 1300000");
}

/* Also where it comes to the number that could have been given, and in a section that changes it.
 */
static void what_came_of_auto_says_so(void **state) {
    (void)state;
    struct config *config = world_config(WORLD_DATASET
                                         "[plan]\nstep_tokens = auto\n[daemon]\nahead_steps = 32\n"
                                         "[from 9]\nparallel.dp = 2\n");
    assert_string_not_equal(world_value(config, "plan.step_tokens"), "auto");
    assert_true(world_automatic(config, "plan.step_tokens"));
    assert_true(world_automatic(config, "slab.slots"));
    assert_string_equal(world_value(config, "reader.threads"), "auto");
    assert_true(world_automatic(config, "reader.threads"));
    assert_false(world_automatic(config, "daemon.ahead_steps"));
    assert_false(world_automatic(config, "plan.window"));
    assert_false(world_automatic(config, "dataset.books.path"));
    assert_true(config->later[0]->slots > config->slots);
    struct config_setting last;
    config_setting(config, config_setting_count(config) - 1, &last);
    assert_string_equal(last.name, "slab.slots");
    assert_true(last.from == 9 && last.automatic);
    config_destroy(config);
}

static void slots_below_what_credits_need_are_refused(void **state) {
    (void)state;
    expect_refusal(
        WORLD_DATASET "[parallel]\ndp = 2\n[slab]\nslots = 19\n",
        "test.conf:6: slab.slots = 19 is not allowed: 2 local replicas need at least 20");
    struct config *config = world_config(WORLD_DATASET "[parallel]\ndp = 2\n[slab]\nslots = 20\n");
    assert_int_equal(config->slots, 20);
    config_destroy(config);
    expect_refusal(WORLD_DATASET "[plan]\nmicro_batches = 65536\nwindow = 1k\n"
                                 "[daemon]\nahead_steps = 1024\n",
                   "slab.slots = auto is not allowed: it comes to 67108874");
}

/* As many steps as have 32 M tokens, 4 to 32; a slot counts for 2,048 at least, and given slots
 * bound them. */
static void auto_plans_as_far_ahead_as_the_node_has_room(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t steps;
    } cases[] = {
        {"[plan]\nwindow = 1k\nmicro_batches = 8\n", 32},
        {"[plan]\nwindow = 64\nmicro_batches = 1024\n", 16},
        {"[plan]\nwindow = 16\nmicro_batches = 32768\n", 4},
        {"[plan]\nwindow = 1m\ntokens_max = 1m\nmicro_batches = 2\n", 16},
        {"[plan]\nwindow = 1m\ntokens_max = 1m\nmicro_batches = 16\n", 4},
        {"[plan]\nmicro_batches = 8\n[slab]\nslots = 74\n", 8},
        {"[plan]\nmicro_batches = 8\n[slab]\nslots = 73\n", 7},
        {"[plan]\nmicro_batches = 8\n[slab]\nslots = 10\n", 4},
        {"[plan]\nmicro_batches = 8\n[slab]\nslots = 5000\n", 25},
        {"[daemon]\nahead_steps = 3\n", 3},
        {"[daemon]\nahead_steps = auto\n[parallel]\ndp = 8\n[node]\nreplicas = 0\n", 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, WORLD_DATASET "%s", cases[i].text);
        struct config *config = world_config(text);
        assert_int_equal(config->ahead_steps, cases[i].steps);
        config_destroy(config);
    }
}

/* 64 slots have room for 4 steps of 16 micro-batches, the least there is, and for 27 of 2. */
static void a_step_is_planned_as_far_ahead_as_its_section_says(void **state) {
    (void)state;
    static const struct {
        uint64_t step;
        uint32_t ahead;
    } cases[] = {
        {0, 4},   {4, 4},   {5, 27}, {9, 27}, {10, 27}, {71, 27},
        {72, 27}, {73, 26}, {95, 4}, {96, 4}, {100, 4}, {UINT64_C(1) << 40, 4},
    };
    struct config *config = world_config(
        "[plan]\nmicro_batches = 16\n[slab]\nslots = 64\n" WORLD_DATASET
        "[from 10]\nplan.micro_batches = 2\n[from 100]\nplan.micro_batches = 16\n");
    assert_int_equal(config->ahead_steps, 4);
    assert_int_equal(config_of_section(config, 1)->ahead_steps, 27);
    assert_int_equal(config_of_section(config, 2)->ahead_steps, 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(config_ahead_steps(config, cases[i].step), cases[i].ahead);
    }
    config_destroy(config);
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    struct config *config = NULL;
    struct error error;
    assert_int_equal(config_load("/nowhere/x.conf", NULL, 0, &config, &error), -ENOENT);
    assert_non_null(strstr(error.text, "/nowhere/x.conf"));
    assert_int_equal(config_load("/tmp", NULL, 0, &config, &error), -EISDIR);
}

/* The words in the table are the ones that planner and sharding go by. */
static void names_are_those_of_their_owners(void **state) {
    (void)state;
    for (enum policy policy = POLICY_PLAIN; policy <= POLICY_WLB_LEVEL; policy++) {
        struct config config = {.plan.policy = policy};
        const struct config_key *key = config_key_at(config_key_find("plan", "policy"));
        char text[CONFIG_VALUE_BYTES];
        key->kind->print(key, &config, text);
        assert_string_equal(text, policy_name(policy));
    }
    const struct config_key *key = config_key_at(config_key_find("sharding", "layouts"));
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_ULYSSES; layout++) {
        struct config config = {0};
        assert_int_equal(key->kind->parse(key, layout_name(layout), &config), 0);
        assert_int_equal(config.plan.layouts.allowed, 1u << layout);
    }
}

static char *plan_text_of(const char *text) {
    struct config *config = world_config(text);
    char *plan = config_plan_text(config, NULL, NULL);
    assert_non_null(plan);
    config_destroy(config);
    return plan;
}

static void plan_text_is_canonical_and_without_paths(void **state) {
    (void)state;
    char *one = plan_text_of("[dataset a]\npath = /x/a\n[plan]\nwindow = 128k\n");
    char *two = plan_text_of("[daemon]\nahead_steps = 9\n[plan]\ntokens_max = 163840\n"
                             "[dataset a]\nweight = 1.0\npath = /y/a\n[parallel]\ndp=1\n");
    char *other = plan_text_of("[dataset a]\npath = /x/a\nweight = 2\n");
    assert_string_equal(one, two);
    assert_string_not_equal(one, other);
    assert_int_equal(strncmp(one, "algorithm = ", 12), 0);
    assert_non_null(strstr(one, "\nplan.window = 131072\n"));
    assert_non_null(strstr(one, "\ndataset.a.weight = 1\n"));
    assert_null(strstr(one, "/x"));
    assert_null(strstr(one, "daemon."));
    free(one);
    free(two);
    free(other);
}

static void job_digest_covers_what_may_never_change(void **state) {
    (void)state;
    static const uint8_t fingerprint[16] = {1, 2, 3};
    static const uint8_t other_fingerprint[16] = {1, 2, 4};
    static const struct {
        const char *text;
        bool same;
    } rows[] = {
        {WORLD_DATASET, true},
        {"[job]\nseed = 1\n" WORLD_DATASET, false},
        {"[corpus]\nshuffle = full\n" WORLD_DATASET, false},
        {"[corpus]\nblock_documents = 255\n" WORLD_DATASET, false},
        {"[corpus]\nshuffle_window_blocks = 63\n" WORLD_DATASET, false},
        {"[corpus]\noverlong = drop\n" WORLD_DATASET, false},
        {"[plan]\nwindow = 64k\n" WORLD_DATASET, false},
        {"[plan]\ntokens_max = 64k\n" WORLD_DATASET, false}, /* the part limit */
        {"[plan]\nmicro_batches = 4\n" WORLD_DATASET, true},
        {"[daemon]\nahead_steps = 1\n" WORLD_DATASET, true},
    };
    uint8_t reference[16];
    uint8_t digest[16];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct config *config = world_config(rows[i].text);
        config_job_digest(config, fingerprint, i == 0 ? reference : digest);
        if (i > 0) {
            assert_true((memcmp(digest, reference, 16) == 0) == rows[i].same);
        }
        config_job_digest(config, other_fingerprint, digest);
        assert_memory_not_equal(digest, reference, 16);
        config_destroy(config);
    }
}

static void a_slot_holds_the_largest_payload(void **state) {
    (void)state;
    struct config *config = world_config(WORLD_DATASET "[plan]\nwindow = 1020\n"
                                                       "tokens_max = 4080\nmicro_batches = 1\n");
    /* Header and 4080 tokens fill four pages; each of the four parts may have a successor. */
    assert_true(config_slot_bytes(&config->plan, 4) >= 4 * 4096 + 4 * 4);
    assert_int_equal(config_slot_bytes(&config->plan, 4) % 4096, 0);
    assert_true(config_slot_bytes(&config->plan, 2) < config_slot_bytes(&config->plan, 4));
    config_destroy(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_override_environment_overrides_file_overrides_default),
        cmocka_unit_test(variables_that_are_no_keys_are_not_ours),
        cmocka_unit_test(an_overridden_value_is_not_looked_at),
        cmocka_unit_test(datasets_and_defaults_are_enough),
        cmocka_unit_test(values_mean_what_they_say),
        cmocka_unit_test(paths_are_relative_to_the_file),
        cmocka_unit_test(syntax_errors_name_the_first_bad_line),
        cmocka_unit_test(long_lines_and_nul_bytes_are_refused),
        cmocka_unit_test(indentation_comments_and_repeated_sections_are_fine),
        cmocka_unit_test(unknown_names_suggest_the_nearest),
        cmocka_unit_test(refused_values_are_named_with_what_is_allowed),
        cmocka_unit_test(contradictions_carry_the_line_of_the_key_they_name),
        cmocka_unit_test(slots_below_what_credits_need_are_refused),
        cmocka_unit_test(auto_plans_as_far_ahead_as_the_node_has_room),
        cmocka_unit_test(a_step_is_planned_as_far_ahead_as_its_section_says),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(names_are_those_of_their_owners),
        cmocka_unit_test(what_came_of_auto_says_so),
        cmocka_unit_test(plan_text_is_canonical_and_without_paths),
        cmocka_unit_test(job_digest_covers_what_may_never_change),
        cmocka_unit_test(a_slot_holds_the_largest_payload),
    };
    return cmocka_run_group_tests_name("daemon_config", tests, NULL, NULL);
}
