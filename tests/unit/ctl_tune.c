/* ballastctl tune: what it promises holds in `simulate`, on steps that it did not choose by, and
 * nothing on its front is beaten by another. */
#include "ctl_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SETS      8u
#define SET_BYTES 96u

static json_int_t member(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value)) {
        fail_msg("no number '%s'", name);
    }
    return json_integer_value(value);
}

static const char *text_member(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    assert_non_null(text);
    return text;
}

/* A thousand documents, every seventh of them long; the last `changed` ones thrice as long. */
static void lengths_write(const struct world *world, const char *name, size_t changed) {
    static char text[1000 * 8];
    size_t used = 0;
    for (size_t i = 0; i < 1000; i++) {
        size_t length = 20 + i * 37 % 200 + (i % 7 == 3 ? i * 61 % 800 : 0);
        length *= i >= 1000 - changed ? 3 : 1;
        used += (size_t)snprintf(text + used, sizeof text - used, "%zu\n", length);
    }
    world_write(world, name, text, 0);
}

/* The settings as KEY=VALUE, filled up with the first. */
static void sets_of(const json_t *settings, char sets[SETS][SET_BYTES]) {
    const char *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach((json_t *)(size_t)settings, key, value) {
        assert_true(count < SETS);
        (void)snprintf(sets[count++], SET_BYTES, "%s=%s", key, json_string_value(value));
    }
    for (size_t i = count; i < SETS; i++) {
        memcpy(sets[i], sets[0], SET_BYTES);
    }
}

/* All that simulate says of a row stands in the outcome, but for the time that planning took. */
static void expect_same(const json_t *outcome, const json_t *row) {
    const char *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach((json_t *)(size_t)outcome, key, value) {
        if (json_integer_value(value) != member(row, key)) {
            fail_msg("%s: %lld tuned, %lld simulated", key, (long long)json_integer_value(value),
                     (long long)member(row, key));
        }
        count++;
    }
    assert_true(count > 20);
}

static void expect_simulated(const char *source, const char *from, const json_t *point,
                             const char *span, const char *seed, json_int_t warm_up,
                             json_int_t steps) {
    char sets[SETS][SET_BYTES];
    char numbers[2][24];
    struct ran ran = {0};
    sets_of(json_object_get(point, "settings"), sets);
    (void)snprintf(numbers[0], sizeof numbers[0], "%lld", (long long)warm_up);
    (void)snprintf(numbers[1], sizeof numbers[1], "%lld", (long long)steps);
    ran_ctl(&ran, "simulate", source, from, "--window", "1024", "--micro-batches", "4", "--seed",
            seed, "--warm-up", numbers[0], "--steps", numbers[1], "--policies",
            text_member(json_object_get(point, "settings"), "plan.policy"), "--set", sets[0],
            "--set", sets[1], "--set", sets[2], "--set", sets[3], "--set", sets[4], "--set",
            sets[5], "--set", sets[6], "--set", sets[7], "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    expect_same(json_object_get(json_object_get(point, span), "outcome"),
                json_array_get(json_object_get(answer, "rows"), 0));
    json_decref(answer);
    ran_free(&ran);
}

static void settings_give_in_simulate_what_was_reported(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_open(&world);
    lengths_write(&world, "lengths", 0);
    const char *const sources[2][2] = {{"--lengths", world_path(&world, "lengths")},
                                       {"--distribution", "wlb128k"}};
    for (size_t s = 0; s < 2; s++) {
        ran_ctl(&ran, "tune", sources[s][0], sources[s][1], "--window", "1024", "--micro-batches",
                "4", "--steps", "12", "--warm-up", "6", "--seed", "3", "--check-seed", "11",
                "--json", NULL);
        ran_expect(&ran, 0);
        json_t *answer = ran_json(&ran);
        json_t *front = json_object_get(answer, "front");
        assert_true(json_array_size(front) > 1);
        for (size_t i = 0; i < json_array_size(front); i++) {
            const json_t *point = json_array_get(front, i);
            expect_simulated(sources[s][0], sources[s][1], point, "tuned", "3", 6, 12);
            expect_simulated(sources[s][0], sources[s][1], point, "checked", "11", 18, 12);
        }
        json_decref(answer);
    }
    ran_free(&ran);
    world_close(&world);
}

static json_int_t tuned(const json_t *point, const char *name) {
    return member(json_object_get(json_object_get(point, "tuned"), "outcome"), name);
}

static void nothing_on_the_front_is_beaten_and_the_best_is_within_the_limit(void **state) {
    (void)state;
    struct ran ran = {0};
    for (size_t time = 0; time < 2; time++) {
        ran_ctl(&ran, "tune", "--distribution", "prolong", "--micro-batches", "4", "--steps", "30",
                "--warm-up", "10", "--delay-max", "0.35", "--objective", time ? "time" : "balance",
                "--json", NULL);
        ran_expect(&ran, 0);
        json_t *answer = ran_json(&ran);
        const json_t *front = json_object_get(answer, "front");
        const json_t *best = json_object_get(answer, "best");
        json_int_t delay = -1;
        json_int_t value = INT64_MAX;
        json_int_t best_value = INT64_MAX;
        for (size_t i = 0; i < json_array_size(front); i++) {
            const json_t *point = json_array_get(front, i);
            json_int_t mine = time ? member(json_object_get(point, "tuned"), "token_ps")
                                   : tuned(point, "total_ppm");
            assert_true(tuned(point, "delay_mean_milli") > delay);
            assert_true(mine < value);
            delay = tuned(point, "delay_mean_milli");
            value = mine;
            best_value = delay <= 350 ? mine : best_value;
        }
        assert_true(tuned(best, "delay_mean_milli") <= 350);
        assert_int_equal(time ? member(json_object_get(best, "tuned"), "token_ps")
                              : tuned(best, "total_ppm"),
                         best_value);
        assert_int_equal(json_integer_value(json_object_get(answer, "refused")), 0);
        json_decref(answer);
    }
    ran_free(&ran);
}

/* Whether a setting of the front is at least as even and as prompt. */
static bool front_reaches(const json_t *front, json_int_t total_ppm, json_int_t delay_milli) {
    for (size_t i = 0; i < json_array_size(front); i++) {
        const json_t *point = json_array_get(front, i);
        if (tuned(point, "total_ppm") <= total_ppm &&
            tuned(point, "delay_mean_milli") <= delay_milli) {
            return true;
        }
    }
    return false;
}

/* Giving candidates up early loses none of the front. */
static void presets_and_bands_that_were_tried_are_on_the_front_or_behind_it(void **state) {
    (void)state;
    static const char *const tried[][2] = {
        {"plan.policy", "wlb:none"},
        {"level.preset", "balanced"},
        {"level.preset", "steady"},
        {"level.preset", "prompt"},
        {"level.preset", "fine"},
        {"bands.thresholds", "32768"},
        {"bands.thresholds", "49152"},
        {"bands.thresholds", "65536"},
        {"bands.thresholds", "81920"},
        {"bands.thresholds", "98304"},
        {"bands.thresholds", "114688"},
        {"bands.thresholds", "49152,81920"},
        {"bands.thresholds", "32768,65536,98304"},
    };
    struct ran ran = {0};
    ran_ctl(&ran, "tune", "--distribution", "prolong", "--micro-batches", "4", "--tokens-max", "2w",
            "--steps", "40", "--warm-up", "10", "--seed", "5", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    assert_true(member(answer, "abandoned") > 10);
    for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
        char set[SET_BYTES];
        (void)snprintf(set, sizeof set, "%s=%s", tried[i][0], tried[i][1]);
        ran_ctl(&ran, "simulate", "--distribution", "prolong", "--micro-batches", "4",
                "--tokens-max", "2w", "--steps", "40", "--warm-up", "10", "--seed", "5",
                "--policies",
                tried[i][0][0] == 'p'   ? "wlb:none"
                : tried[i][0][0] == 'l' ? "wlb:level"
                                        : "wlb:bands",
                "--set", set, "--json", NULL);
        ran_expect(&ran, 0);
        json_t *simulated = ran_json(&ran);
        const json_t *row = json_array_get(json_object_get(simulated, "rows"), 0);
        if (!front_reaches(json_object_get(answer, "front"), member(row, "total_ppm"),
                           member(row, "delay_mean_milli"))) {
            fail_msg("%s is before the front", set);
        }
        json_decref(simulated);
    }
    json_decref(answer);
    ran_free(&ran);
}

/* Settings of the front, and one span's figures. */
static char *front_text(const json_t *answer, const char *span) {
    json_t *list = json_array();
    const json_t *front = json_object_get(answer, "front");
    for (size_t i = 0; i < json_array_size(front); i++) {
        const json_t *point = json_array_get(front, i);
        json_array_append(list, json_object_get(point, "settings"));
        json_array_append(list, json_object_get(point, span));
    }
    char *text = json_dumps(list, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(list);
    return text;
}

static void what_is_expected_comes_from_steps_that_no_choice_saw(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    char *texts[2][2];
    world_open(&world);
    lengths_write(&world, "one", 0);
    lengths_write(&world, "two", 200);
    for (size_t i = 0; i < 2; i++) {
        ran_ctl(&ran, "tune", "--lengths", world_path(&world, i == 0 ? "one" : "two"), "--window",
                "1024", "--micro-batches", "4", "--set", "corpus.shuffle=none", "--steps", "20",
                "--warm-up", "2", "--set", "corpus.epochs=1", "--json", NULL);
        ran_expect(&ran, 0);
        json_t *answer = ran_json(&ran);
        texts[i][0] = front_text(answer, "tuned");
        texts[i][1] = front_text(answer, "checked");
        json_decref(answer);
    }
    assert_string_equal(texts[0][0], texts[1][0]);
    assert_string_not_equal(texts[0][1], texts[1][1]);
    for (size_t i = 0; i < 4; i++) {
        free(texts[i / 2][i % 2]);
    }
    ran_free(&ran);
    world_close(&world);
}

static void the_lines_to_paste_are_the_best_settings(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_open(&world);
    lengths_write(&world, "lengths", 0);
    const char *lengths = world_path(&world, "lengths");
    ran_ctl(&ran, "tune", "--lengths", lengths, "--window", "1024", "--micro-batches", "4",
            "--steps", "12", "--warm-up", "6", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    const json_t *best = json_object_get(answer, "best");
    char *sorted = json_dumps(answer, JSON_COMPACT | JSON_SORT_KEYS);
    assert_memory_equal(ran.out, sorted, strlen(sorted));
    ran_ctl(&ran, "tune", "--lengths", lengths, "--window", "1024", "--micro-batches", "4",
            "--steps", "12", "--warm-up", "6", NULL);
    ran_expect(&ran, 0);
    assert_true(text_width(ran.out) <= 80);
    char *lines = strstr(ran.out, "\n[plan]\n");
    assert_non_null(lines);
    *strstr(lines, "\nexpect") = '\0';
    char job[2048];
    (void)snprintf(job, sizeof job,
                   "[dataset none]\npath = none\n[plan]\nwindow = 1024\nmicro_batches = 4\n%s",
                   lines + strlen("\n[plan]\n"));
    world_write(&world, "job.conf", job, 0);
    ran_ctl(&ran, "simulate", "--config", world_path(&world, "job.conf"), "--lengths", lengths,
            "--policies", text_member(json_object_get(best, "settings"), "plan.policy"), "--steps",
            "12", "--warm-up", "18", "--seed",
            text_member(json_object_get(answer, "config"), "check_seed"), "--json", NULL);
    ran_expect(&ran, 0);
    json_t *simulated = ran_json(&ran);
    expect_same(json_object_get(json_object_get(best, "checked"), "outcome"),
                json_array_get(json_object_get(simulated, "rows"), 0));
    json_decref(simulated);
    json_decref(answer);
    free(sorted);
    ran_free(&ran);
    world_close(&world);
}

static void the_same_question_has_the_same_answer(void **state) {
    (void)state;
    struct ran ran = {0};
    char *texts[2];
    for (size_t i = 0; i < 2; i++) {
        ran_ctl(&ran, "tune", "--distribution", "wlb128k", "--micro-batches", "4", "--steps", "10",
                "--warm-up", "4", "--json", NULL);
        ran_expect(&ran, 0);
        texts[i] = strdup(ran.out);
    }
    assert_string_equal(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
    ran_free(&ran);
}

static void data_that_end_are_halved(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_open(&world);
    lengths_write(&world, "lengths", 0);
    const char *lengths = world_path(&world, "lengths");
    ran_ctl(&ran, "tune", "--lengths", lengths, "--window", "1024", "--micro-batches", "4", "--set",
            "corpus.epochs=1", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    json_int_t steps = member(json_object_get(answer, "config"), "steps");
    assert_int_equal(member(json_object_get(answer, "config"), "warm_up"), 0);
    assert_in_range(steps, 15, 40);
    json_decref(answer);
    ran_ctl(&ran, "tune", "--lengths", lengths, "--window", "1024", "--micro-batches", "4", "--set",
            "corpus.epochs=1", "--steps", "60", NULL);
    ran_expect(&ran, 1);
    assert_string_equal(ran.out, "");
    assert_non_null(strstr(ran.err, "the data end after"));
    assert_non_null(strstr(ran.err, "--steps"));
    ran_free(&ran);
    world_close(&world);
}

static void a_tolerance_holds_for_all_of_the_front(void **state) {
    (void)state;
    struct ran ran = {0};
    ran_ctl(&ran, "tune", "--distribution", "wlb128k", "--micro-batches", "16", "--steps", "20",
            "--warm-up", "10", "--tokens-tolerance", "1%", "--delay-max", "2", "--json", NULL);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    const json_t *front = json_object_get(answer, "front");
    assert_true(json_array_size(front) > 0);
    for (size_t i = 0; i < json_array_size(front); i++) {
        const json_t *figures = json_object_get(json_array_get(front, i), "tuned");
        assert_in_range(member(figures, "tokens_off_ppm"), 0, 10000);
    }
    json_decref(answer);
    ran_ctl(&ran, "tune", "--distribution", "wlb128k", "--micro-batches", "4", "--steps", "10",
            "--warm-up", "4", "--tokens-tolerance", "0.0001%", "--json", NULL);
    ran_expect(&ran, 1);
    answer = ran_json(&ran);
    assert_true(json_is_null(json_object_get(answer, "best")));
    assert_non_null(strstr(ran.err, "--tokens-tolerance"));
    json_decref(answer);
    ran_free(&ran);
}

static size_t count_of(const char *text, const char *what) {
    size_t count = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what)) {
        count++;
    }
    return count;
}

static void a_page_shows_the_front_and_needs_nothing_else(void **state) {
    (void)state;
    struct world world;
    struct ran ran = {0};
    world_open(&world);
    for (int time = 0; time < 2; time++) {
        char html[512];
        char *page = NULL;
        size_t bytes = 0;
        (void)snprintf(html, sizeof html, "--html=%s", world_path(&world, "page.html"));
        ran_ctl(&ran, "tune", "--distribution", "wlb128k", "--micro-batches", "4", "--steps", "10",
                "--warm-up", "4", "--json", html, time ? "--objective=time" : "--objective=balance",
                NULL);
        ran_expect(&ran, 0);
        json_t *answer = ran_json(&ran);
        FILE *file = fopen(world_path(&world, "page.html"), "r");
        assert_non_null(file);
        assert_true(getdelim(&page, &bytes, '\0', file) > 0);
        assert_int_equal(fclose(file), 0);
        size_t front = json_array_size(json_object_get(answer, "front"));
        assert_int_equal(count_of(page, "<svg"), 1);
        assert_int_equal(count_of(page, "<tr><td>"), front);
        assert_true(count_of(page, "<circle") >= front);
        assert_int_equal(count_of(page, "<b>"), 1);
        assert_non_null(strstr(page, text_member(json_object_get(answer, "best"), "name")));
        assert_non_null(strstr(page, "</html>"));
        assert_null(strstr(page, "http"));
        assert_null(strstr(page, "<script"));
        assert_null(strstr(page, "nan"));
        json_decref(answer);
        free(page);
    }
    ran_free(&ran);
    world_close(&world);
}

static void wrong_limits_are_refused(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"--delay-max=-1", "--delay-max '-1'"},
        {"--delay-max=1,5", "--delay-max '1,5'"},
        {"--delay-max=1000001", "up to 1000000"},
        {"--tokens-tolerance=101%", "up to 100%"},
        {"--tokens-tolerance=some", "'some'"},
        {"--objective=speed", "neither balance nor time"},
        {"--steps=0", "--steps 0"},
        {"--check-seed=x", "--check-seed 'x'"},
        {"--lengths=x", "one of them"},
    };
    struct ran ran = {0};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ran_ctl(&ran, "tune", "--distribution", "wlb128k", refused[i][0], NULL);
        ran_expect(&ran, 2);
        assert_string_equal(ran.out, "");
        if (strstr(ran.err, refused[i][1]) == NULL) {
            fail_msg("'%s' is not in:\n%s", refused[i][1], ran.err);
        }
    }
    ran_ctl(&ran, "tune", "--distribution", "wlb128k", "--set", "plan.micro_batches=0", NULL);
    ran_expect(&ran, 1);
    assert_string_equal(ran.out, "");
    assert_non_null(strstr(ran.err, "plan.micro_batches"));
    ran_free(&ran);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_give_in_simulate_what_was_reported),
        cmocka_unit_test(nothing_on_the_front_is_beaten_and_the_best_is_within_the_limit),
        cmocka_unit_test(presets_and_bands_that_were_tried_are_on_the_front_or_behind_it),
        cmocka_unit_test(what_is_expected_comes_from_steps_that_no_choice_saw),
        cmocka_unit_test(the_lines_to_paste_are_the_best_settings),
        cmocka_unit_test(the_same_question_has_the_same_answer),
        cmocka_unit_test(data_that_end_are_halved),
        cmocka_unit_test(a_tolerance_holds_for_all_of_the_front),
        cmocka_unit_test(a_page_shows_the_front_and_needs_nothing_else),
        cmocka_unit_test(wrong_limits_are_refused),
    };
    ran_environment_clear();
    /* Small planners: there are many of them. */
    setenv("BALLAST_PLAN_DOCUMENTS_MAX", "4096", 1);
    setenv("BALLAST_QUEUES_WAITING_MAX", "8192", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
