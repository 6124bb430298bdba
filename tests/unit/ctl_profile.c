/* ballastctl and latency profiles: what it shows of them, and that plans by the sample, which is
 * the analytic model in a profile's form, are those of the analytic model. */
#include "ctl_world.h"
#include "profile_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char sample[256];

/* DIR/NAME.json of the sample with something changed in it. */
static const char *profile_changed(const struct world *world,
                                   void (*change)(struct profile *profile)) {
    struct profile *profile = world_profile();
    change(profile);
    const char *path = world_profile_write(world->dir, profile);
    free(profile);
    return path;
}

static json_t *json_of(struct ran *ran, const char *verb, const char *a, const char *b) {
    ran_ctl(ran, "profile", "--json", verb, a, b, NULL);
    ran_expect(ran, 0);
    return ran_json(ran);
}

static json_int_t number(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void a_profile_is_shown_for_people_and_as_it_is(void **state) {
    (void)state;
    struct ran ran = {0};
    json_error_t why;
    ran_ctl(&ran, "profile", "show", sample, NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    assert_non_null(strstr(ran.out, "not measured"));
    assert_non_null(strstr(ran.out, "NVIDIA H100 80GB HBM3"));
    json_t *shown = json_of(&ran, "show", sample, NULL);
    json_t *file = json_load_file(sample, 0, &why);
    assert_true(json_equal(json_object_get(shown, "profile"), file));
    assert_int_equal(strlen(json_string_value(json_object_get(shown, "hash"))), 32);
    assert_non_null(strstr(sample, json_string_value(json_object_get(shown, "name"))));
    json_decref(file);
    json_decref(shown);
    ran_free(&ran);
}

static void change_host(struct profile *profile) {
    (void)snprintf(profile->provenance.host, sizeof profile->provenance.host, "elsewhere");
}

static void a_profile_says_how_it_was_measured(void **state) {
    (void)state;
    struct ran ran = {0};
    struct world world;
    world_open(&world);
    const char *path = profile_changed(&world, world_profile_detail);
    ran_ctl(&ran, "profile", "show", path, NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    assert_non_null(strstr(ran.out, "runs     9 of each launch, SM clock 1755 to 1980 MHz\n"));
    assert_non_null(strstr(ran.out, "spread   10th to 90th percentile: forward up to 2"));
    assert_non_null(strstr(ran.out, "causal   forward prices are off by 0.0%, at most 0.0% (q "));
    assert_non_null(strstr(ran.out, "causal   backward prices are off by 0.0%, at most 0.0% (q "));
    json_t *fit = json_of(&ran, "fit", path, NULL);
    assert_in_range(number(json_object_get(fit, "fwd"), "causal_worst_ppm"), 0, 1);
    json_decref(fit);
    ran_free(&ran);
    world_close(&world);
}

static void change_driver(struct profile *profile) {
    (void)snprintf(profile->key.driver, sizeof profile->key.driver, "570.86");
    for (uint32_t i = 0; i < profile->fwd.q.count; i++) {
        profile->fwd.ps_per_tile[i][4] = profile->fwd.ps_per_tile[i][4] * 11 / 10;
    }
}

static void change_gpu(struct profile *profile) {
    (void)snprintf(profile->key.gpu, sizeof profile->key.gpu, "NVIDIA H200");
}

static void comparing_tells_what_is_refused_from_what_is_let_pass(void **state) {
    (void)state;
    struct ran ran = {0};
    struct world world;
    world_open(&world);
    const char *other = profile_changed(&world, change_host);
    ran_ctl(&ran, "profile", "compare", sample, other, NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "The keys are equal."));
    assert_non_null(strstr(ran.out, "Plans are the same"));
    other = profile_changed(&world, change_driver);
    json_t *compared = json_of(&ran, "compare", sample, other);
    json_t *field = json_array_get(json_object_get(compared, "key"), 0);
    assert_string_equal(json_string_value(json_object_get(field, "path")), "key.driver");
    assert_string_equal(json_string_value(json_object_get(field, "b")), "570.86");
    assert_true(json_is_false(json_object_get(field, "refused")));
    assert_int_equal(number(json_object_get(compared, "fwd"), "worst_blocks"), 16);
    assert_int_equal(number(json_object_get(compared, "fwd"), "worst_ppm") / 1000, 99);
    assert_int_equal(number(json_object_get(compared, "bwd"), "worst_ppm"), 0);
    json_decref(compared);
    other = profile_changed(&world, change_gpu);
    ran_ctl(&ran, "profile", "compare", sample, other, NULL);
    ran_expect(&ran, 1);
    assert_non_null(strstr(ran.out, "refused"));
    assert_non_null(strstr(ran.err, "neither serves where the other does"));
    ran_free(&ran);
    world_close(&world);
}

static void fitting_gives_the_line_of_each_direction(void **state) {
    (void)state;
    struct ran ran = {0};
    json_t *fitted = json_of(&ran, "fit", sample, NULL);
    assert_int_equal(number(json_object_get(fitted, "fwd"), "launch_ps"), 8000000);
    assert_int_equal(number(json_object_get(fitted, "fwd"), "tile_ps"), 2700000);
    assert_int_equal(number(json_object_get(fitted, "fwd"), "block_ps"), 2266667);
    assert_int_equal(number(json_object_get(fitted, "bwd"), "tile_ps"), 15000000);
    assert_int_equal(number(json_object_get(fitted, "bwd"), "block_ps"), 6857143);
    assert_int_equal(number(json_object_get(fitted, "bwd"), "worst_ppm"), 0);
    assert_int_equal(json_array_size(json_object_get(fitted, "coll")), 9);
    json_decref(fitted);
    ran_ctl(&ran, "profile", "fit", sample, NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    ran_free(&ran);
}

static void wrong_words_and_files_are_refused(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, "profile", NULL);
    ran_expect(&ran, 2);
    assert_non_null(strstr(ran.err, "show, compare or fit?"));
    ran_ctl(&ran, "profile", "compare", sample, NULL);
    ran_expect(&ran, 2);
    assert_non_null(strstr(ran.err, "compare takes two FILEs"));
    ran_ctl(&ran, "profile", "show", "/nowhere/a.json", NULL);
    ran_expect(&ran, 4);
    ran_ctl(&ran, "profile", "show", "/etc/passwd", NULL);
    ran_expect(&ran, 1);
    assert_non_null(strstr(ran.err, "/etc/passwd: line 1, column"));
    ran_free(&ran);
}

static void job_write(struct world *world, const char *mesh, const char *profile) {
    char text[1024];
    (void)snprintf(text, sizeof text,
                   "[dataset books]\npath = books\n[plan]\nwindow = 8192\nmicro_batches = 4\n"
                   "[parallel]\n%s\n[sharding]\nexchange = needed-only\n"
                   "layouts = per-sequence,per-document,hybrid,variable-degree\n"
                   "[model]\nprofile = %s\n",
                   mesh, profile);
    world_write(world, "job.conf", text, 0);
}

static json_t *plan_of(struct ran *ran, const struct world *world, const char *step) {
    ran_ctl(ran, "plan", "--json", "--config", world_path(world, "job.conf"), step, NULL);
    ran_expect(ran, 0);
    json_t *answer = ran_json(ran);
    json_t *plan = json_incref(json_object_get(answer, "plan"));
    json_decref(answer);
    assert_int_equal(json_object_del(plan, "plan_ns"), 0);
    return plan;
}

/* Whole plans: layouts, predicted times, everything but the profile's hash. */
static void plans_by_the_sample_are_those_of_the_analytic_model(void **state) {
    (void)state;
    static const char *const meshes[] = {"dp = 1\ncp = 4", "dp = 2\ncp = 2\ntp = 2\npp = 2",
                                         "dp = 1\ncp = 8"};
    static const char *const steps[] = {"0", "3"};
    struct ran ran = {0};
    struct world world;
    char name[32];
    world_open(&world);
    for (size_t i = 0; i < 120; i++) {
        (void)snprintf(name, sizeof name, "text/%03zu.txt", i);
        world_write(&world, name, NULL, 20 + (i * i * 211) % 7900);
    }
    ran_ctl(&ran, "import", world_path(&world, "text"), world_path(&world, "books"), NULL);
    ran_expect(&ran, 0);
    for (size_t i = 0; i < 6; i++) {
        job_write(&world, meshes[i / 2], "");
        json_t *analytic = plan_of(&ran, &world, steps[i % 2]);
        job_write(&world, meshes[i / 2], sample);
        json_t *measured = plan_of(&ran, &world, steps[i % 2]);
        assert_string_equal(json_string_value(json_object_get(analytic, "profile_hash")), "");
        assert_int_equal(strlen(json_string_value(json_object_get(measured, "profile_hash"))), 32);
        assert_int_equal(json_object_del(analytic, "profile_hash"), 0);
        assert_int_equal(json_object_del(measured, "profile_hash"), 0);
        assert_true(json_equal(analytic, measured));
        json_decref(analytic);
        json_decref(measured);
    }
    ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), "0", NULL);
    assert_non_null(strstr(ran.out, "prices   latency profile "));
    job_write(&world, meshes[0], "");
    ran_ctl(&ran, "plan", "--config", world_path(&world, "job.conf"), "0", NULL);
    assert_non_null(strstr(ran.out, "prices   analytic model, no latency profile"));
    ran_free(&ran);
    world_close(&world);
}

static void the_simulator_takes_a_profile_and_says_so(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, "simulate", "--distribution", "wlb128k", "--steps", "3", "--policies",
            "wlb:level", "--micro-batches", "4", "--profile", sample, NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "priced by e9e8c858cb3b322d, "));
    ran_ctl(&ran, "simulate", "--distribution", "wlb128k", "--steps", "3", "--policies",
            "wlb:level", "--micro-batches", "4", "--set", "model.gpu=NVIDIA H200", "--profile",
            sample, NULL);
    ran_expect(&ran, 1);
    assert_non_null(strstr(ran.err, "key.gpu: the profile is of NVIDIA H100 80GB HBM3"));
    ran_free(&ran);
}

static int sample_find(void **state) {
    (void)state;
    char name[PROFILE_NAME_BYTES];
    struct profile *profile = world_profile();
    assert_int_equal(profile_name(profile, name), 0);
    (void)snprintf(sample, sizeof sample, SAMPLE_FOLDER "/%s.json", name);
    free(profile);
    return 0;
}

int main(void) {
    ran_environment_clear();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_is_shown_for_people_and_as_it_is),
        cmocka_unit_test(a_profile_says_how_it_was_measured),
        cmocka_unit_test(comparing_tells_what_is_refused_from_what_is_let_pass),
        cmocka_unit_test(fitting_gives_the_line_of_each_direction),
        cmocka_unit_test(wrong_words_and_files_are_refused),
        cmocka_unit_test(plans_by_the_sample_are_those_of_the_analytic_model),
        cmocka_unit_test(the_simulator_takes_a_profile_and_says_so),
    };
    return cmocka_run_group_tests(tests, sample_find, NULL);
}
