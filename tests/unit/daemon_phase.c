/* Phases: which sections are served together, and how large for. */
#include "config_world.h"
#include "daemon/phase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define JOB WORLD_DATASET "[plan]\nwindow = 1k\nmicro_batches = 24\n[parallel]\ndp = 8\n"

static void expect_phase(const struct config *config, uint64_t step, uint64_t begin, uint64_t end,
                         uint32_t dp, struct phase *out) {
    struct error error;
    assert_int_equal(phase_init(out, config, step, 2, &error), 0);
    assert_int_equal(out->begin, begin);
    assert_int_equal(out->end, end);
    assert_int_equal(out->config->plan.dp, dp);
    assert_true(phase_holds(out, step) && !phase_holds(out, end));
}

static void a_phase_ends_where_the_mesh_changes(void **state) {
    (void)state;
    struct phase phase;
    struct config *config = world_config(JOB "[from 5]\nplan.micro_batches = 48\n"
                                             "[from 10]\nparallel.dp = 4\n"
                                             "[from 20]\nparallel.cp = 2\n"
                                             "[from 30]\nnode.replicas = 0,2\n"
                                             "[from 40]\nplan.search = paper\n");
    static const struct {
        uint64_t step, begin, end;
        uint32_t dp;
    } rows[] = {{0, 0, 10, 8},   {7, 0, 10, 8},           {10, 10, 20, 4},
                {25, 20, 30, 4}, {30, 30, UINT64_MAX, 4}, {99, 30, UINT64_MAX, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect_phase(config, rows[i].step, rows[i].begin, rows[i].end, rows[i].dp, &phase);
        phase_deinit(&phase);
    }
    expect_phase(config, 0, 0, 10, 8, &phase);
    assert_non_null(strstr(phase.next, "from step 10 on"));
    assert_non_null(strstr(phase.next, "dp 4, pp 1, cp 1, tp 1, 48 micro-batches"));
    phase_deinit(&phase);
    config_destroy(config);
}

/* A mesh that comes back is a phase of its own. */
static void phases_of_the_same_mesh_stay_apart(void **state) {
    (void)state;
    struct phase phase;
    struct config *config = world_config(JOB "[from 5]\nparallel.dp = 4\n"
                                             "[from 10]\nparallel.dp = 8\n");
    expect_phase(config, 0, 0, 5, 8, &phase);
    phase_deinit(&phase);
    expect_phase(config, 10, 10, UINT64_MAX, 8, &phase);
    phase_deinit(&phase);
    config_destroy(config);
}

static void memory_is_for_the_largest_of_its_sections(void **state) {
    (void)state;
    struct phase phase;
    struct config *config = world_config(JOB "[from 5]\nplan.micro_batches = 48\n"
                                             "[from 7]\nplan.tokens_max = 3w\n"
                                             "[from 9]\nplan.micro_batches = 8\n"
                                             "plan.tokens_max = 1w\n"
                                             "[from 10]\nparallel.dp = 2\n");
    expect_phase(config, 9, 0, 10, 8, &phase);
    assert_int_equal(phase.micro_batches_max, 6);
    assert_int_equal(phase.tokens_max, 3072);
    assert_int_equal(phase.slot_bytes, config_slot_bytes(&config->sections[2].options, 2));
    assert_int_equal(phase.replica_slots, config_of_section(config, 1)->slots / 8);
    static const struct roster_span spans[] = {{0, 0, 3}, {5, 15, 6}, {7, 27, 6}, {9, 39, 1}};
    assert_int_equal(phase.span_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(phase.spans[i].step, spans[i].step);
        assert_int_equal(phase.spans[i].position, spans[i].position);
        assert_int_equal(phase.spans[i].micro_batches, spans[i].micro_batches);
    }
    phase_deinit(&phase);
    config_destroy(config);
}

static void a_slot_size_that_holds_no_micro_batch_is_refused_with_what_it_takes(void **state) {
    (void)state;
    struct phase phase;
    struct error error = {0};
    struct config *config = world_config(JOB "[slab]\nslot_size = 5000\n"
                                             "[from 5]\nplan.tokens_max = 3w\n");
    assert_int_equal(phase_init(&phase, config, 0, 2, &error), -EINVAL);
    assert_non_null(strstr(error.text, "slab.slot_size = 5000"));
    assert_non_null(strstr(error.text, "plan.tokens_max = 3072"));
    assert_non_null(strstr(error.text, "takes 8192"));
    config_destroy(config);
    config = world_config(JOB "[slab]\nslot_size = 9000\n");
    expect_phase(config, 0, 0, UINT64_MAX, 8, &phase);
    assert_int_equal(phase.slot_bytes, 12288);
    phase_deinit(&phase);
    config_destroy(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_phase_ends_where_the_mesh_changes),
        cmocka_unit_test(phases_of_the_same_mesh_stay_apart),
        cmocka_unit_test(memory_is_for_the_largest_of_its_sections),
        cmocka_unit_test(a_slot_size_that_holds_no_micro_batch_is_refused_with_what_it_takes),
    };
    return cmocka_run_group_tests_name("daemon_phase", tests, NULL, NULL);
}
