/* ballastctl and the store of a daemon that is not running: the same answers as the planner's own,
 * and a clear no while somebody holds the store. */
#include "client/ctl/stream.h"
#include "ctl_world.h"
#include "daemon/job.h"
#include "daemon/store.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEPS     9u /* planned and stored */
#define COMMITTED 6u

static const char config_text[] = "[dataset books]\npath = books\n"
                                  "[plan]\nwindow = 1024\nmicro_batches = 4\npolicy = wlb:bands\n"
                                  "[bands]\nthresholds = 300,600\n"
                                  "[parallel]\ndp = 2\ncp = 2\n";

static void step_store(struct store *store, struct stream *stream, struct error *error) {
    size_t bytes = plan_state_encode(stream->state, NULL, 0);
    uint8_t *encoded = malloc(bytes);
    struct step_plan *plan;
    assert_non_null(encoded);
    assert_int_equal(plan_state_encode(stream->state, encoded, bytes), bytes);
    assert_int_equal(stream_step(stream, &plan, error), 0);
    struct store_step row = {
        .step = plan->step,
        .state = encoded,
        .state_bytes = bytes,
        .balance = plan->balance,
        .release = plan->release,
        .tokens = plan->tokens,
        .documents = plan->document_count,
    };
    memcpy(row.digest, plan->digest, sizeof row.digest);
    assert_int_equal(store_put_step(store, &row, error), 0);
    step_plan_destroy(plan);
    free(encoded);
}

/* What a daemon does, without one: plans, stores, commits. Returns the open store. */
static struct store *state_make(const struct world *world) {
    struct error error = {0};
    struct config *config;
    struct catalog *catalog;
    struct stream stream;
    struct store *store;
    struct store_dataset books;
    struct store_job job = {
        .version = "test", .datasets = &books, .dataset_count = 1, .dataset_job_count = 1};
    uint8_t fingerprint[16];
    assert_int_equal(config_load(world_path(world, "job.conf"), NULL, 0, &config, &error), 0);
    assert_int_equal(catalog_open(config->datasets, config->dataset_count, &catalog, &error), 0);
    assert_int_equal(catalog_fingerprint(catalog, 1, fingerprint, &error), 0);
    config_job_digest(config, fingerprint, job.job_digest);
    assert_int_equal(job_datasets(catalog, 1, &books, &error), 0);
    char *plan_text = config_plan_text(config, catalog, &error);
    job.plan_text = plan_text;
    assert_int_equal(stream_open(&stream, config, catalog, &error), 0);
    assert_int_equal(store_open(world_path(world, "state"), &job, &store, &error), 0);
    assert_int_equal(store_begin(store, &error), 0);
    for (unsigned i = 0; i < STEPS; i++) {
        step_store(store, &stream, &error);
    }
    assert_int_equal(store_put_committed(store, COMMITTED, &error), 0);
    assert_int_equal(store_commit(store, &error), 0);
    free(plan_text);
    stream_close(&stream);
    catalog_close(catalog);
    config_destroy(config);
    return store;
}

static struct store *world_make(struct world *world) {
    struct ran ran = {0};
    char name[32];
    world_open(world);
    for (size_t i = 0; i < 60; i++) {
        (void)snprintf(name, sizeof name, "text/%02zu.txt", i);
        world_write(world, name, NULL, 20 + (i * 211) % 900);
    }
    ran_ctl(&ran, "import", world_path(world, "text"), world_path(world, "books"), NULL);
    ran_expect(&ran, 0);
    world_write(world, "job.conf", config_text, 0);
    ran_free(&ran);
    return state_make(world);
}

static json_t *ask(const struct world *world, bool from_state, const char *command,
                   const char *argument) {
    struct ran ran = {0};
    if (from_state) {
        ran_ctl(&ran, command, "--json", "--state", world_path(world, "state"), "--config",
                world_path(world, "job.conf"), argument, NULL);
    } else {
        ran_ctl(&ran, command, "--json", "--config", world_path(world, "job.conf"), argument, NULL);
    }
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    ran_free(&ran);
    return answer;
}

static const char *plan_digest(json_t *answer) {
    return json_string_value(json_object_get(json_object_get(answer, "plan"), "digest"));
}

static void plans_from_a_store_are_the_planners_own(void **state) {
    (void)state;
    struct world world;
    store_close(world_make(&world));
    static const char *const steps[] = {"0", "5", "8", "12"}; /* the last is beyond the store */
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        json_t *stored = ask(&world, true, "plan", steps[i]);
        json_t *fresh = ask(&world, false, "plan", steps[i]);
        assert_string_equal(plan_digest(stored), plan_digest(fresh));
        json_decref(stored);
        json_decref(fresh);
    }
    world_close(&world);
}

static void a_store_tells_what_the_daemon_told_last(void **state) {
    (void)state;
    struct world world;
    store_close(world_make(&world));
    json_t *status = ask(&world, true, "status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "state")), "stopped");
    assert_int_equal(json_integer_value(json_object_get(status, "committed_step")), COMMITTED);
    assert_int_equal(json_integer_value(json_object_get(status, "next_step")), STEPS);
    assert_int_equal(json_integer_value(json_object_get(status, "durable_step")), STEPS);
    assert_int_equal(json_integer_value(json_object_get(status, "ranks_expected")), 2 * 2);
    json_t *balance = json_object_get(status, "balance");
    assert_true(json_integer_value(json_object_get(balance, "total_ppm")) >= 1000000);
    json_t *books = json_array_get(json_object_get(status, "datasets"), 0);
    json_int_t arrived = json_integer_value(json_object_get(books, "arrived_tokens"));
    json_int_t delivered = json_integer_value(json_object_get(books, "delivered_tokens"));
    json_int_t waiting = json_integer_value(json_object_get(books, "waiting_tokens"));
    json_t *plans = ask(&world, false, "plan", "--steps=0..8"); /* all STEPS of them */
    json_t *summary = json_object_get(plans, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "tokens")), delivered);
    json_decref(plans);
    assert_int_equal(arrived, delivered + waiting);
    json_t *queues = ask(&world, true, "queues", "--documents");
    json_int_t tokens = 0;
    size_t i;
    json_t *queue;
    json_array_foreach(json_object_get(queues, "queues"), i, queue) {
        tokens += json_integer_value(json_object_get(queue, "tokens"));
        assert_int_equal(json_array_size(json_object_get(queue, "waiting")),
                         json_integer_value(json_object_get(queue, "documents")));
    }
    assert_int_equal(tokens, waiting);
    json_decref(queues);
    json_decref(ask(&world, true, "delays", NULL));
    json_decref(ask(&world, true, "corpus", NULL));
    json_decref(status);
    world_close(&world);
}

static void expect_refusal(struct ran *ran, const struct world *world, const char *says) {
    ran_ctl(ran, "queues", "--state", world_path(world, "state"), "--config",
            world_path(world, "job.conf"), NULL);
    ran_expect(ran, 1);
    assert_string_equal(ran->out, "");
    if (strstr(ran->err, says) == NULL) {
        fail_msg("'%s' is not in: %s", says, ran->err);
    }
}

static void a_store_in_use_is_not_read(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    struct store *store = world_make(&world);
    expect_refusal(&ran, &world, "a daemon is running");
    assert_non_null(strstr(ran.err, "--socket"));
    store_close(store);
    ran_free(&ran);
    world_close(&world);
}

static void a_store_of_other_settings_or_data_is_refused_by_name(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    char other[512];
    store_close(world_make(&world));
    (void)snprintf(other, sizeof other, "%s[job]\nseed = 5\n", config_text);
    world_write(&world, "job.conf", other, 0);
    expect_refusal(&ran, &world, "seed = 5");
    (void)snprintf(other, sizeof other, "%s[model]\nprofile = %s\n", config_text,
                   BALLAST_SOURCE "/deploy/profiles/e9e8c858cb3b322d.json");
    world_write(&world, "job.conf", other, 0);
    expect_refusal(&ran, &world,
                   "made with 'model.profile = analytic' and the config says "
                   "'model.profile = 8217c6ad8786fad9b9c53723b212b81c'");
    world_write(&world, "job.conf", config_text, 0);
    world_write(&world, "text/zz.txt", NULL, 100);
    ran_ctl(&ran, "import", world_path(&world, "text"), world_path(&world, "books"), "--force",
            NULL);
    ran_expect(&ran, 0);
    expect_refusal(&ran, &world, "dataset 'books' has documents 60 there, 61 here");
    ran_free(&ran);
    world_close(&world);
}

static void a_store_is_read_with_its_config_only_and_only_if_it_is_there(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    store_close(world_make(&world));
    static const char *const commands[] = {"status", "queues", "delays", "corpus", "config"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        ran_ctl(&ran, commands[i], "--state", world_path(&world, "state"), NULL);
        ran_expect(&ran, 2);
        assert_non_null(strstr(ran.err, "--config FILE"));
    }
    ran_ctl(&ran, "state", "export", world_path(&world, "none"), "--state",
            world_path(&world, "state"), NULL);
    ran_expect(&ran, 2);
    ran_ctl(&ran, "status", "--state", world_path(&world, "nowhere"), "--config",
            world_path(&world, "job.conf"), NULL);
    ran_expect(&ran, 4);
    ran_ctl(&ran, "drain", "--state", world_path(&world, "state"), NULL);
    ran_expect(&ran, 1);
    assert_non_null(strstr(ran.err, "running daemon"));
    ran_free(&ran);
    world_close(&world);
}

static json_t *shown(const struct world *world, const char *file) {
    struct ran ran = {0};
    ran_ctl(&ran, "state", "show", "--json", world_path(world, file), NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    ran_free(&ran);
    return answer;
}

static void export_from_store(const struct world *world, const char *file, const char *step,
                              int expected) {
    struct ran ran = {0};
    ran_ctl(&ran, "state", "export", world_path(world, file), "--state", world_path(world, "state"),
            "--config", world_path(world, "job.conf"), step, NULL);
    ran_expect(&ran, expected);
    ran_free(&ran);
}

static void a_checkpoint_comes_out_of_the_store_of_a_stopped_daemon(void **state) {
    (void)state;
    struct world world;
    static const char *const steps[] = {NULL, "--step=2", "--step=11"}; /* the last: not stored */
    static const json_int_t expected[] = {COMMITTED, 2, 11};
    store_close(world_make(&world));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char number[24];
        (void)snprintf(number, sizeof number, "%d", (int)expected[i]);
        export_from_store(&world, "checkpoint", steps[i], 0);
        json_t *checkpoint = shown(&world, "checkpoint");
        json_t *plan = ask(&world, false, "plan", number);
        assert_int_equal(json_integer_value(json_object_get(checkpoint, "step")), expected[i]);
        assert_string_equal(json_string_value(json_object_get(checkpoint, "plan_digest")),
                            plan_digest(plan));
        json_decref(plan);
        json_decref(checkpoint);
    }
    world_close(&world);
}

static void a_checkpoint_is_not_taken_from_a_store_in_use(void **state) {
    (void)state;
    struct world world;
    struct store *store = world_make(&world);
    export_from_store(&world, "checkpoint", NULL, 1);
    store_close(store);
    world_close(&world);
}

int main(void) {
    ran_environment_clear();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_from_a_store_are_the_planners_own),
        cmocka_unit_test(a_store_tells_what_the_daemon_told_last),
        cmocka_unit_test(a_store_in_use_is_not_read),
        cmocka_unit_test(a_store_of_other_settings_or_data_is_refused_by_name),
        cmocka_unit_test(a_store_is_read_with_its_config_only_and_only_if_it_is_there),
        cmocka_unit_test(a_checkpoint_comes_out_of_the_store_of_a_stopped_daemon),
        cmocka_unit_test(a_checkpoint_is_not_taken_from_a_store_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
