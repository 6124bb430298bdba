/* ballastctl simulate --context-parallel: a row for each layout, and the choice beats them all. */
#include "ctl_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static json_int_t member(const json_t *row, const char *name) {
    const json_t *value = json_object_get(row, name);
    if (!json_is_integer(value)) {
        fail_msg("no number '%s'", name);
    }
    return json_integer_value(value);
}

static void expect_rows(const json_t *rows, const char *const *names, size_t count) {
    json_int_t chosen = 0;
    const json_t *last = json_array_get(rows, count - 1);
    assert_int_equal(json_array_size(rows), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "layout")), names[i]);
        assert_int_equal(member(row, "windows"), 64);
        assert_true(member(row, "bound_ppm") >= 1000000);
        assert_true(member(row, "bound_worst_ppm") >= member(row, "bound_ppm"));
        assert_true(member(row, "pairs_worst_ppm") >= member(row, "pairs_ppm"));
        if (strcmp(names[i], "ulysses") != 0) {
            assert_true(member(row, "keys_ppm") > 0);
            assert_true(member(last, "bound_ppm") <= member(row, "bound_ppm"));
        } else {
            assert_int_equal(member(row, "pairs_ppm"), 1000000);
            assert_int_equal(member(row, "keys_ppm"), 0);
        }
        chosen += i + 1 < count ? member(row, "chosen") : 0;
    }
    assert_int_equal(member(last, "chosen"), 64);
    assert_int_equal(chosen, 64);
}

static void simulate_shows_every_layout_and_the_choice(void **state) {
    (void)state;
    static const char *const all[] = {"per-sequence", "per-document", "variable-degree",
                                      "hybrid",       "ulysses",      "chosen"};
    static const char *const undivided[] = {"per-sequence", "per-document", "variable-degree",
                                            "hybrid", "chosen"};
    struct ran ran = {0};
    ran_environment_clear();
    ran_ctl(&ran, "simulate", "--json", "--distribution=libra256k", "--window=262144",
            "--global-batch=32", "--steps=2", "--context-parallel=8", NULL);
    ran_expect(&ran, 0);
    json_t *json = ran_json(&ran);
    expect_rows(json_object_get(json, "rows"), all, 6);
    json_decref(json);
    ran_ctl(&ran, "simulate", "--json", "--distribution=libra256k", "--window=262080",
            "--global-batch=32", "--steps=2", "--context-parallel=6", NULL);
    ran_expect(&ran, 0);
    json = ran_json(&ran);
    expect_rows(json_object_get(json, "rows"), undivided, 5);
    json_decref(json);
    ran_ctl(&ran, "simulate", "--distribution=libra256k", "--window=262144", "--global-batch=32",
            "--steps=1", "--context-parallel=4", NULL);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "32 windows of 262144 tokens on 4 ranks"));
    ran_free(&ran);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulate_shows_every_layout_and_the_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
