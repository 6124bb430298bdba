/* A latency profile in a config: read and checked with it, part of the job's history by its hash,
 * and no part of anything where there is none. */
#include "config_world.h"
#include "daemon/config_keys.h"
#include "daemon/history.h"
#include "profile_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MESH "[plan]\nwindow = 8k\nmicro_batches = 4\n[parallel]\ncp = 2\n"

static char path[256];  /* of the sample */
static char other[256]; /* of one that is measured anew: the same but for a launch */

static char *plan_text_of(const char *format, const char *profile) {
    char text[1024];
    (void)snprintf(text, sizeof text, format, profile);
    struct config *config = world_config(text);
    char *plan_text = config_plan_text(config, NULL, NULL);
    assert_non_null(plan_text);
    config_destroy(config);
    return plan_text;
}

static void a_config_without_a_profile_does_not_mention_one(void **state) {
    (void)state;
    char *text = plan_text_of(WORLD_DATASET MESH "%s", "");
    assert_null(strstr(text, "profile"));
    assert_null(strstr(text, "model.gpu"));
    free(text);
}

static void a_profile_prices_the_plan_and_is_known_by_its_hash(void **state) {
    (void)state;
    char text[1024], hash[CONFIG_HASH_CHARS], line[128];
    (void)snprintf(text, sizeof text, WORLD_DATASET MESH "[model]\nprofile = %s\n", path);
    struct config *config = world_config(text);
    const struct model_profile *profile = &config->plan.model.profile;
    assert_true(profile->used);
    assert_string_equal(config->profile_warning, "");
    assert_string_equal(world_value(config, "model.profile"), path);
    config_profile_print(profile, hash);
    (void)snprintf(line, sizeof line, "\nmodel.profile = %s\n", hash);
    char *plan_text = config_plan_text(config, NULL, NULL);
    assert_non_null(strstr(plan_text, line));
    free(plan_text);
    config_destroy(config);
}

static void what_a_profile_lacks_for_the_mesh_is_warned_of(void **state) {
    (void)state;
    char text[1024];
    (void)snprintf(text, sizeof text,
                   WORLD_DATASET "[plan]\nwindow = 9k\nmicro_batches = 4\n[parallel]\ncp = 3\n"
                                 "[sharding]\nexchange = needed-only\n"
                                 "[model]\nhidden = 8192\nsm_margin = 0\nprofile = %s\n",
                   path);
    struct config *config = world_config(text);
    assert_string_equal(config->profile_warning,
                        "key.sm_margin: measured with 8, model.sm_margin = 0; linear: not measured "
                        "with this shape and tp = 1, [model] prices it; coll.all_to_all: not "
                        "measured with 3 ranks, [model] prices it");
    config_destroy(config);
}

static void a_stale_profile_is_refused_with_line_file_and_field(void **state) {
    (void)state;
    static const struct {
        const char *setting;
        const char *says;
    } rows[] = {
        {"gpu = NVIDIA H200", "key.gpu: the profile is of NVIDIA H100 80GB HBM3"},
        {"kernel_build = 0123456789abcdef", "key.kernel_build: the profile is of modelled"},
        {"deterministic = true", "key.deterministic: the profile is of false"},
        {"head_dim = 64", "key.head_dim: the profile is of 128, this job needs 64"},
        {"kv_heads = 32", "key.q_heads, key.kv_heads: the profile is of 4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[1024], where[600];
        struct config *config = NULL;
        struct error error = {0};
        (void)snprintf(text, sizeof text, WORLD_DATASET MESH "[model]\nprofile = %s\n%s\n", path,
                       rows[i].setting);
        (void)snprintf(where, sizeof where, "test.conf:9: model.profile: %s: ", path);
        assert_int_equal(world_load(text, NULL, 0, &config, &error), -EINVAL);
        assert_null(config);
        if (strstr(error.text, rows[i].says) == NULL || strstr(error.text, where) == NULL) {
            fail_msg("'%s' or '%s' is not in '%s'", where, rows[i].says, error.text);
        }
    }
}

/* G is what a tensor-parallel rank has: 8 K/V heads over 16 ranks are one each, with 2 of 32. */
static void groups_are_those_of_a_rank(void **state) {
    (void)state;
    char text[1024];
    struct config *config = NULL;
    struct error error = {0};
    (void)snprintf(text, sizeof text, WORLD_DATASET "[parallel]\ntp = 16\n[model]\nprofile = %s\n",
                   path);
    assert_int_equal(world_load(text, NULL, 0, &config, &error), -EINVAL);
    assert_non_null(strstr(error.text, "this job has 2 on a tensor-parallel rank"));
}

static void another_profile_is_another_job_and_both_hashes_are_named(void **state) {
    (void)state;
    struct history_difference difference;
    char *none = plan_text_of(WORLD_DATASET MESH "%s", "");
    char *one = plan_text_of(WORLD_DATASET MESH "[model]\nprofile = %s\n", path);
    char *two = plan_text_of(WORLD_DATASET MESH "[model]\nprofile = %s\n", other);
    assert_true(history_differs(one, two, &difference));
    assert_int_equal(difference.step, 0);
    assert_int_equal(strncmp(difference.a, "model.profile = ", 16), 0);
    assert_int_equal(strncmp(difference.b, "model.profile = ", 16), 0);
    assert_string_not_equal(difference.a, difference.b);
    char was[HISTORY_LINE_BYTES];
    memcpy(was, difference.a, sizeof was);
    assert_true(history_differs(none, one, &difference));
    assert_int_equal(difference.step, 0);
    assert_string_equal(difference.a, "model.profile = analytic");
    assert_string_equal(difference.b, was);
    assert_true(history_differs(one, none, &difference));
    assert_string_equal(difference.a, was);
    assert_string_equal(difference.b, "model.profile = analytic");
    free(none);
    free(one);
    free(two);
}

static void a_section_may_bring_another_profile_or_take_it_back(void **state) {
    (void)state;
    struct history_difference difference;
    char *none = plan_text_of(WORLD_DATASET MESH "%s", "");
    char *later = plan_text_of(WORLD_DATASET MESH "[from 70]\nmodel.profile = %s\n"
                                                  "[from 90]\nmodel.profile =\n",
                               path);
    assert_true(history_differs(none, later, &difference));
    assert_int_equal(difference.step, 70);
    assert_non_null(strstr(later, "[from 70]\nmodel.profile = "));
    assert_non_null(strstr(later, "[from 90]\nmodel.profile = analytic\n"));
    free(none);
    free(later);
}

/* Where the file lies is no part of the job. */
static void a_profile_may_lie_elsewhere_on_each_node(void **state) {
    (void)state;
    char link[256];
    const char *name = strrchr(path, '/');
    (void)snprintf(link, sizeof link, "%s/nodes", world_folder());
    assert_int_equal(symlink(SAMPLE_FOLDER, link), 0);
    (void)snprintf(link + strlen(link), sizeof link - strlen(link), "%s", name);
    char *here = plan_text_of(WORLD_DATASET MESH "[model]\nprofile = %s\n", path);
    char *there = plan_text_of(WORLD_DATASET MESH "[model]\nprofile = %s\n", link);
    assert_string_equal(here, there);
    *strrchr(link, '/') = '\0';
    assert_int_equal(unlink(link), 0);
    free(here);
    free(there);
}

static int profiles_make(void **state) {
    (void)state;
    char name[PROFILE_NAME_BYTES];
    struct profile *profile = world_profile();
    assert_int_equal(profile_name(profile, name), 0);
    (void)snprintf(path, sizeof path, SAMPLE_FOLDER "/%s.json", name);
    profile->fwd.launch_ps++;
    (void)snprintf(other, sizeof other, "%s", world_profile_write(world_folder(), profile));
    free(profile);
    return 0;
}

static int profiles_remove(void **state) {
    (void)state;
    return unlink(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_without_a_profile_does_not_mention_one),
        cmocka_unit_test(a_profile_prices_the_plan_and_is_known_by_its_hash),
        cmocka_unit_test(what_a_profile_lacks_for_the_mesh_is_warned_of),
        cmocka_unit_test(a_stale_profile_is_refused_with_line_file_and_field),
        cmocka_unit_test(groups_are_those_of_a_rank),
        cmocka_unit_test(another_profile_is_another_job_and_both_hashes_are_named),
        cmocka_unit_test(a_section_may_bring_another_profile_or_take_it_back),
        cmocka_unit_test(a_profile_may_lie_elsewhere_on_each_node),
    };
    return cmocka_run_group_tests(tests, profiles_make, profiles_remove);
}
