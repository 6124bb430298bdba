/* ballastctl without a daemon: how it is called, what it refuses, what it plans by itself. */
#include "ctl_world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const commands[] = {
    "status",  "queues", "plan",   "delays",   "corpus", "config",  "health",  "drain",
    "derived", "import", "verify", "simulate", "tune",   "profile", "version",
};

static void expect_usage_error(struct ran *ran, const char *says) {
    ran_expect(ran, 2);
    assert_string_equal(ran->out, "");
    if (strstr(ran->err, says) == NULL) {
        fail_msg("'%s' is not in:\n%s", says, ran->err);
    }
}

static void wrong_usage_exits_2_and_says_why(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, NULL);
    expect_usage_error(&ran, "no command");
    ran_ctl(&ran, "staus", NULL);
    expect_usage_error(&ran, "no command 'staus'");
    ran_ctl(&ran, "--frobnicate", "status", NULL);
    expect_usage_error(&ran, "--frobnicate");
    ran_ctl(&ran, "status", "now", NULL);
    expect_usage_error(&ran, "'now'");
    ran_ctl(&ran, "plan", NULL);
    expect_usage_error(&ran, "which step?");
    ran_ctl(&ran, "plan", "1", "2", NULL);
    expect_usage_error(&ran, "more than one step");
    ran_ctl(&ran, "plan", "--step=-1", NULL);
    expect_usage_error(&ran, "step '-1'");
    ran_ctl(&ran, "plan", "18446744073709551616", NULL);
    expect_usage_error(&ran, "step '18446744073709551616'");
    ran_ctl(&ran, "plan", "--steps", "7", NULL);
    expect_usage_error(&ran, "FIRST..LAST");
    ran_ctl(&ran, "plan", "--steps", "7..6", NULL);
    expect_usage_error(&ran, "after the last");
    ran_ctl(&ran, "plan", "--steps", "0..1000000", NULL);
    expect_usage_error(&ran, "more than 1000000 steps");
    ran_ctl(&ran, "import", "somewhere", NULL);
    expect_usage_error(&ran, "PREFIX");
    ran_ctl(&ran, "verify", NULL);
    expect_usage_error(&ran, "which PREFIX?");
    ran_ctl(&ran, "simulate", NULL);
    expect_usage_error(&ran, "--config FILE");
    ran_free(&ran);
}

static void times_are_checked_on_the_command_line_and_in_the_environment(void **state) {
    (void)state;
    struct ran ran = {0};
    static const char *const bad[] = {"",  "s",  "1h", "-1", "99999999999999999999", "2147483648ms",
                                      "0", "0ms"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ran_ctl(&ran, "--timeout", bad[i], "status", NULL);
        expect_usage_error(&ran, "is not a time");
    }
    setenv("BALLAST_TIMEOUT", "soon", 1);
    ran_ctl(&ran, "version", NULL);
    expect_usage_error(&ran, "BALLAST_TIMEOUT='soon'");
    setenv("BALLAST_TIMEOUT", "250ms", 1);
    ran_ctl(&ran, "version", NULL);
    ran_expect(&ran, 0);
    unsetenv("BALLAST_TIMEOUT");
    ran_free(&ran);
}

static void help_leads_with_examples(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, "--help", NULL);
    ran_expect(&ran, 0);
    assert_memory_equal(ran.out, "Examples:\n", 10);
    assert_string_equal(ran.err, "");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        assert_non_null(strstr(ran.out, commands[i]));
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char example[64];
        (void)snprintf(example, sizeof example, "Examples:\n  ballastctl %s", commands[i]);
        ran_ctl(&ran, commands[i], "--help", NULL);
        ran_expect(&ran, 0);
        assert_memory_equal(ran.out, example, strlen(example));
        assert_non_null(strstr(ran.out, "--timeout"));
        assert_true(text_width(ran.out) <= 80);
    }
    ran_free(&ran);
}

static void without_a_daemon_every_question_exits_3(void **state) {
    (void)state;
    static const char *const questions[] = {"status", "queues", "delays", "corpus",
                                            "config", "health", "drain"};
    struct ran ran = {0};
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        ran_ctl(&ran, questions[i], "--socket", "/nowhere/sock", NULL);
        ran_expect(&ran, 3);
        assert_string_equal(ran.out, "");
        assert_non_null(strstr(ran.err, "/nowhere/sock"));
    }
    ran_ctl(&ran, "--socket", "/nowhere/sock", "plan", "3", NULL);
    ran_expect(&ran, 3);
    setenv("BALLAST_SOCKET", "/elsewhere/sock", 1);
    ran_ctl(&ran, "status", NULL);
    ran_expect(&ran, 3);
    assert_non_null(strstr(ran.err, "/elsewhere/sock"));
    ran_ctl(&ran, "status", "--socket", "/nowhere/sock", NULL);
    assert_non_null(strstr(ran.err, "/nowhere/sock"));
    unsetenv("BALLAST_SOCKET");
    ran_free(&ran);
}

static void what_is_not_there_exits_4(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, "verify", "/nowhere/books", NULL);
    ran_expect(&ran, 4);
    assert_non_null(strstr(ran.err, "/nowhere/books"));
    ran_ctl(&ran, "plan", "0", "--config", "/nowhere/job.conf", NULL);
    ran_expect(&ran, 4);
    assert_non_null(strstr(ran.err, "/nowhere/job.conf"));
    ran_free(&ran);
}

static void versions_are_sorted_json(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, "version", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *versions = ran_json(&ran);
    char *sorted = json_dumps(versions, JSON_COMPACT | JSON_SORT_KEYS);
    assert_memory_equal(ran.out, sorted, strlen(sorted));
    assert_string_equal(json_string_value(json_object_get(versions, "ballast")), BALLAST_VERSION);
    free(sorted);
    json_decref(versions);
    setenv("BALLAST_JSON", "1", 1);
    char *before = strdup(ran.out);
    ran_ctl(&ran, "version", NULL);
    assert_string_equal(ran.out, before);
    setenv("BALLAST_JSON", "0", 1);
    ran_ctl(&ran, "version", NULL);
    assert_memory_equal(ran.out, "NAME", 4);
    unsetenv("BALLAST_JSON");
    free(before);
    ran_free(&ran);
}

/* Forty documents, one of them long, imported; a config that packs them. */
static void world_make(struct world *world) {
    struct ran ran = {0};
    char name[32];
    world_open(world);
    for (size_t i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof name, "text/%02zu.txt", i);
        world_write(world, name, NULL, i == 7 ? 3000 : 20 + 13 * i);
    }
    ran_ctl(&ran, "import", world_path(world, "text"), world_path(world, "books"), "--json", NULL);
    ran_expect(&ran, 0);
    json_t *done = ran_json(&ran);
    assert_int_equal(json_integer_value(json_object_get(done, "documents")), 40);
    json_decref(done);
    world_write(world, "job.conf",
                "[dataset books]\npath = books\n[corpus]\nepochs = 1\n"
                "[plan]\nwindow = 1024\nmicro_batches = 4\n[parallel]\ndp = 2\ncp = 2\n"
                "[daemon]\nsocket = job.sock\n",
                0);
    ran_free(&ran);
}

static void an_imported_tree_verifies(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    ran_ctl(&ran, "verify", world_path(&world, "books"), "--vocab", "257", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *verified = ran_json(&ran);
    assert_int_equal(json_integer_value(json_object_get(verified, "documents")), 40);
    assert_int_equal(json_integer_value(json_object_get(verified, "length_max")), 3001);
    assert_int_equal(json_integer_value(json_object_get(verified, "token_max")), 256);
    json_decref(verified);
    ran_ctl(&ran, "verify", world_path(&world, "books"), "--vocab", "256", NULL);
    ran_expect(&ran, 1);
    assert_string_equal(ran.out, "");
    ran_ctl(&ran, "import", world_path(&world, "text"), world_path(&world, "books"), NULL);
    ran_expect(&ran, 1);
    assert_non_null(strstr(ran.err, "force"));
    ran_free(&ran);
    world_close(&world);
}

static void a_plan_needs_no_daemon(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), "--step", "1", "--json",
            NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    json_t *plan = json_object_get(answer, "plan");
    assert_int_equal(json_integer_value(json_object_get(answer, "next")), 0);
    assert_int_equal(json_integer_value(json_object_get(plan, "step")), 1);
    assert_int_equal(strlen(json_string_value(json_object_get(plan, "digest"))), 32);
    json_t *batches = json_object_get(plan, "micro_batches");
    assert_int_equal(json_array_size(batches), 4);
    json_t *sharding = json_object_get(json_array_get(batches, 0), "sharding");
    json_t *ranks = json_object_get(sharding, "ranks");
    assert_int_equal(json_array_size(ranks), 2);
    assert_true(json_array_size(json_object_get(json_array_get(ranks, 0), "fragments")) > 0);
    json_decref(answer);
    ran_ctl(&ran, "--config", world_path(&world, "job.conf"), "plan", "1", "--fragments", NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    assert_non_null(strstr(ran.out, "dp1/1 cp1"));
    ran_free(&ran);
    world_close(&world);
}

static void several_steps_have_the_digests_of_each_alone(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), "--steps", "0..2", "--json",
            NULL);
    ran_expect(&ran, 0);
    json_t *all = ran_json(&ran);
    json_t *steps = json_object_get(all, "steps");
    assert_int_equal(json_array_size(steps), 3);
    for (size_t i = 0; i < 3; i++) {
        char step[8];
        (void)snprintf(step, sizeof step, "%zu", i);
        ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), step, "--json", NULL);
        json_t *one = ran_json(&ran);
        assert_string_equal(
            json_string_value(json_object_get(json_object_get(one, "plan"), "digest")),
            json_string_value(json_object_get(json_array_get(steps, i), "digest")));
        json_decref(one);
    }
    json_decref(all);
    ran_free(&ran);
    world_close(&world);
}

static void steps_after_the_end_of_the_data_exit_4_after_those_before(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), "--steps", "0..99", NULL);
    ran_expect(&ran, 4);
    assert_non_null(strstr(ran.err, "there is no step"));
    assert_non_null(strstr(ran.out, "balance  total mean"));
    assert_true(text_width(ran.out) <= 80);
    ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), "99", NULL);
    ran_expect(&ran, 4);
    assert_string_equal(ran.out, "");
    ran_free(&ran);
    world_close(&world);
}

static void a_config_is_shown_and_its_corpus_opened_without_a_daemon(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    ran_ctl(&ran, "config", "--config", world_path(&world, "job.conf"), NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "plan.window"));
    ran_ctl(&ran, "corpus", "--config", world_path(&world, "job.conf"), "--json", NULL);
    ran_expect(&ran, 0);
    json_t *corpus = ran_json(&ran);
    json_t *books = json_array_get(json_object_get(corpus, "datasets"), 0);
    assert_string_equal(json_string_value(json_object_get(books, "name")), "books");
    assert_int_equal(json_integer_value(json_object_get(books, "documents")), 40);
    assert_int_equal(json_integer_value(json_object_get(books, "delivered_tokens")), 0);
    json_decref(corpus);
    ran_ctl(&ran, "corpus", "--config", world_path(&world, "job.conf"), NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    ran_free(&ran);
    world_close(&world);
}

static void the_command_line_goes_before_the_environment(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    setenv("BALLAST_SOCKET", "/elsewhere/sock", 1);
    setenv("BALLAST_STATE", "/elsewhere/state", 1);
    ran_ctl(&ran, "plan", "0", "--config", world_path(&world, "job.conf"), NULL);
    ran_expect(&ran, 0);
    ran_ctl(&ran, "status", "--config", world_path(&world, "job.conf"), NULL);
    ran_expect(&ran, 3);
    assert_non_null(strstr(ran.err, "/job.sock")); /* the config's */
    ran_ctl(&ran, "status", "--socket", "/nowhere/sock", NULL);
    ran_expect(&ran, 3);
    assert_non_null(strstr(ran.err, "/nowhere/sock"));
    ran_ctl(&ran, "status", NULL); /* the state, whose config is missing */
    ran_expect(&ran, 2);
    assert_non_null(strstr(ran.err, "state directory"));
    ran_environment_clear();
    char corpus[512];
    setenv("BALLAST_CONFIG", "/nowhere/conf", 1);
    (void)snprintf(corpus, sizeof corpus, "--corpus=%s", world_path(&world, "books"));
    ran_ctl(&ran, "simulate", corpus, "--window=1024", "--micro-batches=4", "--steps=2", NULL);
    ran_expect(&ran, 0);
    ran_ctl(&ran, "simulate", corpus, "--config=/nowhere/conf", NULL);
    expect_usage_error(&ran, "names its own corpus");
    ran_environment_clear();
    ran_free(&ran);
    world_close(&world);
}

static uint64_t member(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

/* What scripts may count on in every row. */
static void expect_figures(const json_t *row) {
    static const char *const figures[] = {
        "attention_ppm",    "total_ppm",   "worst_ppm",       "p99_ppm",
        "bound_ppm",        "delay_p99",   "delay_max",       "tokens_cv_ppm",
        "delay_mean_milli", "plan_ns_p50", "plan_ns_p99",     "waiting_tokens_max",
        "step_ns",          "bubble_ppm",  "long_weight_ppm",
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        if (!json_is_integer(json_object_get(row, figures[i]))) {
            fail_msg("a row has no number '%s'", figures[i]);
        }
    }
    assert_non_null(json_object_get(row, "speedup_ppm"));
}

static void policies_are_compared_side_by_side(void **state) {
    (void)state;
    static const char *const policies[] = {"plain", "fixed:4", "wlb:none", "wlb:bands",
                                           "wlb:level"};
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    ran_ctl(&ran, "simulate", "--config", world_path(&world, "job.conf"), "--steps", "3",
            "--warm-up", "1", "--seed", "1", "--seed", "2", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    char *sorted = json_dumps(answer, JSON_COMPACT | JSON_SORT_KEYS);
    assert_memory_equal(ran.out, sorted, strlen(sorted));
    json_t *rows = json_object_get(answer, "rows");
    assert_int_equal(json_array_size(rows), 10);
    for (size_t i = 0; i < 10; i++) {
        json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "policy")), policies[i % 5]);
        assert_int_equal(member(row, "seed"), 1 + i / 5);
        expect_figures(row);
        assert_int_equal(member(row, "steps"), 3);
        assert_true(member(row, "total_ppm") >= 1000000);
        assert_true(member(row, "worst_ppm") >= member(row, "total_ppm"));
        assert_true(member(row, "step_ns") > 0);
        assert_true(i % 5 != 0 || member(row, "speedup_ppm") == 1000000);
    }
    assert_int_equal(member(json_object_get(answer, "config"), "warm_up"), 1);
    free(sorted);
    json_decref(answer);
    ran_ctl(&ran, "simulate", "--config", world_path(&world, "job.conf"), "--steps", "3", NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    ran_ctl(&ran, "simulate", "--config", world_path(&world, "job.conf"), "--policies=plain,best",
            NULL);
    expect_usage_error(&ran, "no policy 'best'");
    assert_non_null(strstr(ran.err, "wlb:bands"));
    ran_free(&ran);
    world_close(&world);
}

/* The plans one by one are the other way to the same figures. */
static void a_simulation_sums_up_the_plans(void **state) {
    (void)state;
    enum { STEPS = 3 };
    struct world world;
    struct ran ran = {0};
    uint64_t total_ppm = 0;
    uint64_t worst_ppm = 0;
    json_t *balance = NULL;
    json_t *answer = NULL;
    world_make(&world);
    for (int step = 0; step < STEPS; step++) {
        char number[16];
        (void)snprintf(number, sizeof number, "%d", step);
        json_decref(answer);
        ran_ctl(&ran, "plan", number, "--config", world_path(&world, "job.conf"), "--json", NULL);
        ran_expect(&ran, 0);
        answer = ran_json(&ran);
        balance = json_object_get(json_object_get(answer, "plan"), "balance");
        uint64_t ppm = member(balance, "total_ppm");
        total_ppm += ppm;
        worst_ppm = ppm > worst_ppm ? ppm : worst_ppm;
    }
    json_t *plan = json_object_get(answer, "plan");
    const char *policy = json_string_value(json_object_get(plan, "policy"));
    ran_ctl(&ran, "simulate", "--config", world_path(&world, "job.conf"), "--steps", "3",
            "--policies", policy, "--json", NULL);
    ran_expect(&ran, 0);
    json_t *simulated = ran_json(&ran);
    json_t *row = json_array_get(json_object_get(simulated, "rows"), 0);
    assert_int_equal(member(row, "steps"), STEPS);
    assert_int_equal(member(row, "total_ppm"), total_ppm / STEPS);
    assert_int_equal(member(row, "worst_ppm"), worst_ppm);
    assert_int_equal(member(row, "delay_max"), member(balance, "delay_max"));
    assert_int_equal(member(row, "delay_mean_milli"), member(balance, "delay_mean_milli"));
    assert_true(json_is_null(json_object_get(row, "speedup_ppm")));
    json_decref(simulated);
    json_decref(answer);
    ran_free(&ran);
    world_close(&world);
}

/* Tokens of a plan, and those of documents over `length`. */
static void plan_count(const json_t *plan, uint64_t length, double *tokens, double *longs) {
    const json_t *micro_batches = json_object_get(plan, "micro_batches");
    for (size_t m = 0; m < json_array_size(micro_batches); m++) {
        const json_t *documents = json_object_get(json_array_get(micro_batches, m), "documents");
        for (size_t d = 0; d < json_array_size(documents); d++) {
            const json_t *document = json_array_get(documents, d);
            double part = (double)member(document, "length");
            *tokens += part;
            *longs += member(document, "document_length") > length ? part : 0.0;
        }
    }
}

static void a_token_of_a_long_document_weighs_what_its_steps_leave_it(void **state) {
    (void)state;
    enum { STEPS = 3, WINDOW = 1024 };
    struct world world;
    struct ran ran = {0};
    double tokens_all = 0.0;
    double longs_all = 0.0;
    double shares = 0.0;
    world_make(&world);
    for (int step = 0; step < STEPS; step++) {
        char number[16];
        double tokens = 0.0;
        double longs = 0.0;
        (void)snprintf(number, sizeof number, "%d", step);
        ran_ctl(&ran, "plan", number, "--config", world_path(&world, "job.conf"), "--json", NULL);
        ran_expect(&ran, 0);
        json_t *answer = ran_json(&ran);
        plan_count(json_object_get(answer, "plan"), WINDOW / 4, &tokens, &longs);
        json_decref(answer);
        tokens_all += tokens;
        longs_all += longs;
        shares += longs / tokens;
    }
    assert_true(longs_all > 0.0 && longs_all < tokens_all);
    ran_ctl(&ran, "simulate", "--config", world_path(&world, "job.conf"), "--steps", "3",
            "--policies", "wlb:level,plain", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    const json_t *row = json_array_get(json_object_get(answer, "rows"), 0);
    const json_t *plain = json_array_get(json_object_get(answer, "rows"), 1);
    double weight = shares * tokens_all / STEPS / longs_all;
    assert_true(fabs((double)member(row, "long_share_ppm") - 1e6 * longs_all / tokens_all) < 2.0);
    assert_true(fabs((double)member(row, "long_weight_ppm") - 1e6 * weight) < 2000.0);
    assert_true(weight < 0.999 || weight > 1.001);
    assert_int_equal(member(plain, "long_weight_ppm"), 1000000); /* all steps alike */
    json_decref(answer);
    ran_free(&ran);
    world_close(&world);
}

static void simulations_need_no_corpus(void **state) {
    (void)state;
    static const char *const refused[][3] = {
        {"--distribution=none", "--steps=2", "there are wlb128k"},
        {"--distribution=wlb128k", "--window=0", "plan.window = 0"},
        {"--distribution=wlb128k", "--set=plan.windows=3", "plan.windows"},
        {"--distribution=wlb128k", "--pp=33", "model.layers"},
        {"--distribution=wlb128k", "--chunks=2", "1f1b runs one chunk"},
        {"--distribution=wlb128k", "--bands=9,3", "bands.thresholds"},
        {"--distribution=wlb128k", "--calibrate=9,8", "measure again"},
        {"--lengths=/nowhere/lengths", "--steps=2", "/nowhere/lengths"},
    };
    struct ran ran = {0};
    ran_ctl(&ran, "simulate", "--distribution", "wlb128k", "--cut", "sequence", "--steps", "20",
            "--policies", "plain@per-sequence,wlb:bands", "--micro-batches", "4", "--pp", "4",
            "--imbalance", "1.3", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    json_t *rows = json_object_get(answer, "rows");
    json_t *config = json_object_get(answer, "config");
    assert_int_equal(json_array_size(rows), 2);
    assert_true(member(json_array_get(rows, 0), "micro_batch_ppm") > 1150000);
    assert_true(member(json_array_get(rows, 1), "speedup_ppm") > 1000000);
    assert_true(json_is_true(json_object_get(config, "calibrated")));
    assert_string_equal(json_string_value(json_object_get(config, "source")), "wlb128k");
    json_decref(answer);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ran_ctl(&ran, "simulate", refused[i][0], refused[i][1], NULL);
        assert_true(ran.code == 1 || ran.code == 4);
        assert_string_equal(ran.out, "");
        if (strstr(ran.err, refused[i][2]) == NULL) {
            fail_msg("%s %s: %s", refused[i][0], refused[i][1], ran.err);
        }
    }
    ran_free(&ran);
}

/* The sum of a member over the elements of an array that have `value` under `key`. */
static uint64_t sum_where(const json_t *array, const char *key, uint64_t value, const char *name) {
    uint64_t sum = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *element = json_array_get(array, i);
        sum += member(element, key) == value ? member(element, name) : 0;
    }
    return sum;
}

/* Loads of a pool's four workers are those of its tiles. */
static void expect_pool(const json_t *pool, uint64_t ga_index) {
    const json_t *tiles = json_object_get(pool, "tiles");
    uint64_t heads = member(pool, "heads") / member(pool, "head_shards");
    uint64_t most = 0;
    uint64_t sum = 0;
    assert_int_equal(member(pool, "ga_index"), ga_index);
    assert_int_equal(json_array_size(json_object_get(pool, "dp")), 2);
    for (uint64_t worker = 0; worker < 4; worker++) {
        uint64_t load = sum_where(tiles, "worker", worker, "pairs") * heads;
        most = load > most ? load : most;
        sum += load;
    }
    assert_int_equal(member(pool, "load_max"), most);
    assert_int_equal(member(pool, "load_mean"), sum / 4);
}

static void plan_shows_the_loads_and_bytes_of_pools(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_make(&world);
    world_write(&world, "pool.conf",
                "[dataset books]\npath = books\n[corpus]\nepochs = 1\n"
                "[plan]\npolicy = pool:2\nwindow = 1024\nmicro_batches = 4\n"
                "[parallel]\ndp = 2\ncp = 2\n[pools]\nblock_tokens = 64\n",
                0);
    ran_ctl(&ran, "plan", "0", "--config", world_path(&world, "pool.conf"), "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    const json_t *pools = json_object_get(json_object_get(answer, "plan"), "pools");
    assert_int_equal(json_array_size(pools), 2);
    expect_pool(json_array_get(pools, 0), 0);
    expect_pool(json_array_get(pools, 1), 1);
    json_decref(answer);
    ran_ctl(&ran, "plan", "0", "--config", world_path(&world, "pool.conf"), NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "dp0-1/1"));
    assert_non_null(strstr(ran.out, "dp1/0 cp1"));
    assert_non_null(strstr(ran.out, "##########"));
    assert_true(text_width(ran.out) <= 80);
    ran_ctl(&ran, "plan", "0", "--config", world_path(&world, "job.conf"), NULL);
    ran_expect(&ran, 0);
    assert_null(strstr(ran.out, "WORKERS"));
    ran_free(&ran);
    world_close(&world);
}

static void simulate_of_pools_prints_a_row_for_every_candidate(void **state) {
    (void)state;
    static const char *const refused[][3] = {
        {"--pool=3", "--dp=4", "P must divide"},
        {"--pool=0", "--dp=4", "--pool"},
        {"--pool=2", "--heads=9,2,64", "--heads"},
        {"--pool=2", "--tiles=worst", "--tiles"},
        {"--pool=4", "--micro-batches=6", "not a multiple"},
    };
    struct ran ran = {0};
    ran_ctl(&ran, "simulate", "--lengths=libra256k", "--window=65536", "--pool=2,4",
            "--global-batch=16", "--head-shards=1,2", "--block=1024", "--heads=8,2,64", "--cp=2",
            "--steps=2", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    json_t *rows = json_object_get(answer, "rows");
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *row = json_array_get(rows, i);
        assert_int_equal(member(row, "p"), i < 2 ? 2 : 4);
        assert_int_equal(member(row, "h"), i % 2 + 1);
        assert_int_equal(member(row, "b"), 1024);
        assert_true(member(row, "inter_before_ppm") >= member(row, "inter_after_ppm"));
        assert_true(member(row, "inter_after_ppm") >= member(row, "bound_ppm"));
        assert_true(member(row, "intra_ppm") <= member(row, "intra_max_ppm"));
        assert_true(member(row, "bytes_in_max") >= member(row, "bytes_mean"));
        assert_true(member(row, "bytes_out_max") >= member(row, "bytes_mean"));
        assert_true(member(row, "moved_ppm") <= 1000000);
        assert_true(member(row, "plan_ns") > 0 && member(row, "tiles") > 0);
        assert_true(json_is_false(json_object_get(row, "proposed")));
        assert_int_equal(member(row, "kv_pieces"), i % 2 == 0 ? 2 : 1);
        assert_int_equal(member(row, "compute_ns"), 0);
    }
    json_decref(answer);
    ran_ctl(&ran, "simulate", "--lengths=libra256k", "--window=65536", "--pool=4",
            "--global-batch=16", "--cp=2", "--steps=1", "--link=50000", "--exchange-chunks=3",
            "--json", NULL);
    ran_expect(&ran, 0);
    answer = ran_json(&ran);
    json_t *timed = json_array_get(json_object_get(answer, "rows"), 0);
    assert_int_equal(member(timed, "kv_pieces"), 2); /* chunks divide the 8 heads of a shard */
    assert_true(member(timed, "compute_ns") > 0 && member(timed, "exposed_ns") > 0);
    json_decref(answer);
    ran_ctl(&ran, "simulate", "--distribution=libra256k", "--window=65536", "--search", "--dp=2",
            "--micro-batches=8", "--steps=1", NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "* take P = "));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ran_ctl(&ran, "simulate", "--distribution=libra256k", refused[i][0], refused[i][1], NULL);
        assert_true(ran.code == 1 || ran.code == 2);
        if (strstr(ran.err, refused[i][2]) == NULL) {
            fail_msg("%s %s: %s", refused[i][0], refused[i][1], ran.err);
        }
    }
    ran_ctl(&ran, "simulate", "--distribution=libra256k", "--window=8388608", "--pool=1",
            "--block=1", NULL);
    assert_int_equal(ran.code, 1);
    assert_non_null(strstr(ran.err, "set a larger --block"));
    ran_free(&ran);
}

/* Times of a job that computes at 4/5 of the model's speed: 7 % noise, then a line without sense.
 */
static void log_write(const struct world *world, const char *last) {
    static char text[64 * 64];
    size_t used = (size_t)snprintf(text, sizeof text, "# forward ns, then lengths\n\n");
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t a = 1000 + i * 7919 % 50000;
        uint64_t b = 500 + i * 104729 % 60000;
        uint64_t ns = (a + b) * 27000 + (a * a + b * b) / 2;
        used += (size_t)snprintf(text + used, sizeof text - used, "%llu %llu %llu\n",
                                 (unsigned long long)(ns + ns * (i % 3) / 40),
                                 (unsigned long long)a, (unsigned long long)b);
    }
    (void)snprintf(text + used, sizeof text - used, "%s", last);
    world_write(world, "log", text, 0);
}

static void a_log_calibrates_and_a_measured_step_is_compared(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_open(&world);
    log_write(&world, "");
    const char *const job[] = {"simulate",    "--distribution=wlb128k", "--steps=5",
                               "--warm-up=0", "--policies=plain",       "--calibrate-log"};
    ran_ctl(&ran, job[0], job[1], job[2], job[3], job[4], job[5], world_path(&world, "log"),
            "--measured-step=60s", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    const json_t *config = json_object_get(answer, "config");
    const json_t *times = json_object_get(config, "times");
    uint64_t step_ns = member(json_array_get(json_object_get(answer, "rows"), 0), "step_ns");
    assert_true(json_is_true(json_object_get(config, "calibrated")));
    assert_in_range(member(times, "linear_permille"), 700, 1500);
    assert_in_range(member(times, "attention_permille"), 700, 1500);
    assert_in_range(member(config, "calibration_fit_ppm"), 950000, 1000000);
    assert_int_equal(member(config, "measured_step_ns"), 60000000000);
    assert_int_equal(member(config, "predicted_to_measured_ppm"), step_ns / 60000);
    json_decref(answer);
    ran_ctl(&ran, job[0], job[1], job[2], job[3], job[4], job[5], world_path(&world, "log"),
            "--measured-step=1s", NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "scales fit the log with R2 0.99"));
    assert_non_null(strstr(ran.out, "step of plain predicted "));
    assert_non_null(strstr(ran.out, "declared wrongly"));
    assert_true(text_width(ran.out) <= 80);
    static const char *const wrong[][2] = {{"5 x\n", "log:43: not a time"},
                                           {"5 0\n", "log:43: not a time"},
                                           {"5\n", "without the lengths"},
                                           {"5 100000 100000\n", "plan.tokens_max"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        log_write(&world, wrong[i][0]);
        ran_ctl(&ran, job[0], job[1], job[2], job[3], job[4], job[5], world_path(&world, "log"),
                NULL);
        ran_expect(&ran, 1);
        if (strstr(ran.err, wrong[i][1]) == NULL) {
            fail_msg("'%s' is not in:\n%s", wrong[i][1], ran.err);
        }
    }
    ran_free(&ran);
    world_close(&world);
}

static void layers_may_be_given_for_every_chunk(void **state) {
    (void)state;
    struct ran ran = {0};
    uint64_t stage_ppm[2];
    for (int even = 0; even < 2; even++) {
        ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--steps=3", "--policies=plain",
                "--pp=4", even ? "--layers=8,8,8,8" : "--layers=10,8,8,6", "--json", NULL);
        ran_expect(&ran, 0);
        json_t *answer = ran_json(&ran);
        stage_ppm[even] = member(json_array_get(json_object_get(answer, "rows"), 0), "stage_ppm");
        const json_t *times = json_object_get(json_object_get(answer, "config"), "times");
        assert_int_equal(json_array_size(json_object_get(times, "layers")), 4);
        json_decref(answer);
    }
    assert_in_range(stage_ppm[0], 1249990, 1250000); /* 10 layers of a mean of 8 */
    assert_int_equal(stage_ppm[1], 1000000);
    ran_free(&ran);
}

static void a_simulation_writes_a_page_that_needs_nothing_else(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    char html[512];
    char *page = NULL;
    size_t bytes = 0;
    world_make(&world);
    (void)snprintf(html, sizeof html, "--html=%s", world_path(&world, "page.html"));
    ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--steps=5", "--pp=2",
            "--policies=plain,wlb:level", html, NULL);
    ran_expect(&ran, 0);
    FILE *file = fopen(world_path(&world, "page.html"), "r");
    assert_non_null(file);
    assert_true(getdelim(&page, &bytes, '\0', file) > 0);
    assert_int_equal(fclose(file), 0);
    int figures = 0;
    for (const char *at = strstr(page, "<svg"); at != NULL; at = strstr(at + 1, "<svg")) {
        figures++;
    }
    assert_int_equal(figures, 7); /* five plots, a pipeline for each policy */
    assert_non_null(strstr(page, "wlb:level"));
    assert_non_null(strstr(page, "</html>"));
    assert_null(strstr(page, "http"));
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "nan"));
    free(page);
    ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--steps=5", "--html=/nowhere/page", NULL);
    ran_expect(&ran, 4);
    assert_non_null(strstr(ran.err, "/nowhere/page: cannot be written"));
    ran_free(&ran);
    world_close(&world);
}

/* Without GLPK it is refused; with it, greedy's figures are those of the row. */
static void the_exact_solver_stands_beside_the_rows(void **state) {
    (void)state;
    struct ran ran = {0};
    uint64_t greedy_ppm = 0;
    ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--cut=sequence", "--steps=2",
            "--warm-up=1", "--micro-batches=2", "--policies=fixed:1", "--exact=1,1", "--json",
            NULL);
    if (ran.code == 1 && strstr(ran.err, "libglpk-dev") != NULL) {
        ran_free(&ran);
        return;
    }
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    char *sorted = json_dumps(answer, JSON_COMPACT | JSON_SORT_KEYS);
    assert_memory_equal(ran.out, sorted, strlen(sorted));
    json_t *exact = json_object_get(answer, "exact");
    json_t *groups = json_object_get(exact, "groups");
    assert_int_equal(member(exact, "batches"), 1);
    assert_int_equal(member(exact, "limit_ms"), 1000);
    assert_int_equal(json_array_size(groups), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *group = json_array_get(groups, i);
        assert_int_equal(member(group, "step"), 1 + i);
        assert_int_equal(member(group, "windows"), 2);
        assert_true(member(group, "solver_ppm") <= member(group, "greedy_ppm"));
        assert_true(member(group, "bound_ppm") <= member(group, "solver_ppm"));
        assert_int_equal(member(group, "solver_ppm"), member(group, "solver_steps_ppm"));
        greedy_ppm += member(group, "greedy_steps_ppm");
    }
    json_t *row = json_array_get(json_object_get(answer, "rows"), 0);
    assert_in_range(member(row, "total_ppm"), greedy_ppm / 2 - 1, greedy_ppm / 2 + 1);
    free(sorted);
    json_decref(answer);
    ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--steps=2", "--micro-batches=2",
            "--policies=plain", "--exact=2,1", "--exact-groups=1", NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "fixed:2 and the exact solver"));
    assert_true(text_width(ran.out) <= 80);
    ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--exact=65", NULL);
    ran_expect(&ran, 2);
    ran_ctl(&ran, "simulate", "--distribution=wlb128k", "--exact=1,0", NULL);
    ran_expect(&ran, 2);
    ran_free(&ran);
}

static void the_manual_names_every_command_and_global_option(void **state) {
    (void)state;
    static const char *const options[] = {"socket", "state", "config", "json", "timeout"};
    char line[64];
    FILE *file = fopen(BALLAST_SOURCE "/deploy/ballastctl.1", "r");
    assert_non_null(file);
    char *manual = NULL;
    size_t bytes = 0;
    assert_true(getdelim(&manual, &bytes, '\0', file) > 0);
    assert_int_equal(fclose(file), 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        (void)snprintf(line, sizeof line, ".It Cm %s", commands[i]);
        assert_non_null(strstr(manual, line));
    }
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        (void)snprintf(line, sizeof line, ".It Fl -%s", options[i]);
        assert_non_null(strstr(manual, line));
    }
    free(manual);
}

int main(void) {
    ran_environment_clear();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_shows_the_loads_and_bytes_of_pools),
        cmocka_unit_test(simulate_of_pools_prints_a_row_for_every_candidate),
        cmocka_unit_test(wrong_usage_exits_2_and_says_why),
        cmocka_unit_test(times_are_checked_on_the_command_line_and_in_the_environment),
        cmocka_unit_test(help_leads_with_examples),
        cmocka_unit_test(without_a_daemon_every_question_exits_3),
        cmocka_unit_test(what_is_not_there_exits_4),
        cmocka_unit_test(versions_are_sorted_json),
        cmocka_unit_test(an_imported_tree_verifies),
        cmocka_unit_test(a_plan_needs_no_daemon),
        cmocka_unit_test(several_steps_have_the_digests_of_each_alone),
        cmocka_unit_test(steps_after_the_end_of_the_data_exit_4_after_those_before),
        cmocka_unit_test(a_config_is_shown_and_its_corpus_opened_without_a_daemon),
        cmocka_unit_test(the_command_line_goes_before_the_environment),
        cmocka_unit_test(policies_are_compared_side_by_side),
        cmocka_unit_test(a_simulation_sums_up_the_plans),
        cmocka_unit_test(a_token_of_a_long_document_weighs_what_its_steps_leave_it),
        cmocka_unit_test(simulations_need_no_corpus),
        cmocka_unit_test(a_log_calibrates_and_a_measured_step_is_compared),
        cmocka_unit_test(layers_may_be_given_for_every_chunk),
        cmocka_unit_test(a_simulation_writes_a_page_that_needs_nothing_else),
        cmocka_unit_test(the_exact_solver_stands_beside_the_rows),
        cmocka_unit_test(the_manual_names_every_command_and_global_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
