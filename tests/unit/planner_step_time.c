/* planner_step_time: step times of small jobs against formulas worked out here, what is refused,
 * and calibration that finds the scales that times were made with. */
#include "planner/calibrate.h"

#include "planner/balance.h"
#include "tests/property/splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOADS_MAX 64u

/* Rates at which a row of a layer takes 1,000 ps of GEMM, 0 of passes; one of the head 500. */
static struct step_time_options tiny_options(void) {
    struct step_time_options options = step_time_defaults;
    options.shape = (struct model_options){
        .layers = 4,
        .hidden = 64,
        .ffn = 64,
        .q_heads = 1,
        .kv_heads = 1,
        .head_dim = 64,
        .gemm_flops_per_ns = UINT64_C(2) * 64 * (4 * 64 + 3 * 64),
        .memory_bytes_per_us = UINT64_C(1) << 62,
    };
    options.dp = options.pp = options.cp = options.tp = 1;
    options.micro_batches = 1;
    return options;
}

static struct step_time_model model_of(struct step_time_options options) {
    struct step_time_model model;
    struct error error = {0};
    int code = step_time_init(&model, &options, &error);
    if (code < 0) {
        fail_msg("%s", error.text);
    }
    return model;
}

static struct step_time time_of(struct step_time_options options, const struct step_load *loads) {
    struct step_time_model model = model_of(options);
    struct step_time time;
    void *scratch = malloc(step_time_bytes(&model));
    assert_int_equal(step_time_of(&model, loads, scratch, &time, NULL), 0);
    free(scratch);
    uint64_t blamed_ns = 0;
    for (int cause = 0; cause < STEP_CAUSES; cause++) {
        blamed_ns += time.causes_ns[cause];
    }
    assert_int_equal(blamed_ns, time.step_ns);
    return time;
}

static struct step_load load_of(uint64_t rows, uint64_t attention_ps) {
    return (struct step_load){
        .attention_ps = attention_ps,
        .attention_sum_ps = attention_ps,
        .rows = rows,
        .tokens = rows,
    };
}

static void a_lone_stage_takes_its_layers(void **state) {
    (void)state;
    struct step_load load = load_of(100, 7000);
    struct step_time time = time_of(tiny_options(), &load);
    assert_int_equal(time.step_ns, 4 * (100 + 7) + 4 * (200 + 17) + 2);
    assert_int_equal(time.causes_ns[STEP_ATTENTION], 28 + 70);
    assert_int_equal(time.causes_ns[STEP_LINEAR], 400 + 800);
    assert_int_equal(time.bubble_ppm, 0);
    assert_int_equal(time.heaviest_ns, time.step_ns);
    assert_int_equal(time.even_ns, time.step_ns);
    assert_int_equal(time.attention_share_ppm, 28 * PPM / 428);
}

static void recomputation_adds_what_is_recomputed(void **state) {
    (void)state;
    struct step_load load = load_of(100, 8000);
    struct step_time_options options = tiny_options();
    uint64_t none_ns = time_of(options, &load).step_ns;
    options.recompute = RECOMPUTE_ATTENTION;
    assert_int_equal(time_of(options, &load).step_ns, none_ns + 4 * 8);
    options.recompute = RECOMPUTE_FULL;
    assert_int_equal(time_of(options, &load).step_ns, none_ns + 4 * 8 + 4 * 100);
}

static void the_head_stands_on_the_last_chunk(void **state) {
    (void)state;
    struct step_load loads[] = {load_of(100, 0), load_of(100, 0)};
    struct step_time_options options = tiny_options();
    options.micro_batches = 2;
    options.pp = 2;
    options.schedule = PIPELINE_INTERLEAVED;
    uint64_t without_ns = time_of(options, loads).step_ns;
    assert_int_equal(without_ns, 3 * 600);
    options.vocab = 224; /* 500 ps a row */
    struct step_time time = time_of(options, loads);
    assert_int_equal(time.step_ns, without_ns + 2 * 150);
    assert_int_equal(time.causes_ns[STEP_HEAD], 300);
    assert_int_equal(time.stage_ppm, 2 * 1500 * UINT64_C(1000000) / 2700);
    options.chunks = 2;
    assert_int_equal(time_of(options, loads).causes_ns[STEP_HEAD], 300);
}

static void communication_costs_its_exposed_share(void **state) {
    (void)state;
    struct step_load load = load_of(1000, 0);
    struct step_time_options options = tiny_options();
    options.shape.q_heads = options.shape.kv_heads = 2;
    options.shape.head_dim = 64;
    options.tp = 2;
    options.node_gpus = 2;
    options.node = (struct link_rate){.alpha_ns = 10, .bytes_per_us = 1000000};
    uint64_t hidden_ns = time_of(options, &load).step_ns;
    options.exposed_tp_permille = 500;
    /* Four times 1,000 rows of 128 bytes, half of them from the other rank, 1 byte a ps. */
    uint64_t exposed_ns = 4 * (10 + 64) / 2;
    assert_int_equal(time_of(options, &load).step_ns, hidden_ns + 4 * 3 * exposed_ns);
    assert_int_equal(time_of(options, &load).causes_ns[STEP_COMMUNICATION], 4 * 3 * exposed_ns);
    options.cp = 2;
    options.exposed_cp_permille = 1000;
    options.network = (struct link_rate){.alpha_ns = 20, .bytes_per_us = 500000};
    /* K and V of the other rank's 1,000 rows: 256 bytes each, 2 ps a byte. */
    exposed_ns += 20 + 512;
    struct step_time time = time_of(options, &load);
    assert_int_equal(time.causes_ns[STEP_COMMUNICATION], 4 * 3 * exposed_ns);
    assert_int_equal(time.cp_bytes, 3 * 4 * 256000);
    assert_int_equal(time.tp_bytes, 3 * 4 * 4 * 64000);
}

static void a_per_document_layout_pays_its_copies(void **state) {
    (void)state;
    struct step_load load = load_of(1000, 0);
    struct step_time_options options = tiny_options();
    options.cp = 2;
    options.copy_bytes_per_us = 1000000;
    uint64_t plain_ns = time_of(options, &load).step_ns;
    load.copies = true;
    /* K and V, 256 bytes a token, of 2,000 tokens and a quarter more, read and written. */
    assert_int_equal(time_of(options, &load).step_ns, plain_ns + 4 * 3 * (2 * 256 * 2500 / 1000));
    options.copy_bytes_per_us = 0;
    assert_int_equal(time_of(options, &load).step_ns, plain_ns);
}

static void replicas_meet_once_a_step_or_at_every_micro_batch(void **state) {
    (void)state;
    struct step_load loads[] = {load_of(100, 0), load_of(10, 0), load_of(20, 0), load_of(200, 0),
                                load_of(30, 0),  load_of(30, 0), load_of(40, 0), load_of(5, 0)};
    struct step_time_options options = tiny_options();
    options.dp = 4;
    options.micro_batches = 8;
    const uint64_t row_ns = 4 * 3;
    struct step_time time = time_of(options, loads);
    assert_int_equal(time.step_ns, 220 * row_ns);
    assert_int_equal(time.group, 1);
    assert_int_equal(time.owner_dp, 1);
    assert_int_equal(time.owner_index, 1);
    assert_int_equal(time.replica_ppm, 220 * 4 * UINT64_C(1000000) / 435);
    assert_int_equal(time.micro_batch_ppm, 200 * 8 * UINT64_C(1000000) / 435);
    options.sync_replicas = 1;
    assert_int_equal(time_of(options, loads).step_ns, 220 * row_ns);
    options.sync_replicas = 2;
    time = time_of(options, loads);
    assert_int_equal(time.step_ns, (100 + 200) * row_ns);
    assert_int_equal(time.owner_ns, 200 * row_ns);
    assert_int_equal(time.bubble_ppm, (1200 - 435) * UINT64_C(1000000) / 1200);
    struct step_load turned[8];
    for (uint32_t i = 0; i < 8; i++) {
        turned[(i + 4) % 8] = loads[i];
    }
    time = time_of(options, turned);
    assert_int_equal(time.step_ns, (100 + 200) * row_ns);
    assert_int_equal(time.group, 1);
    assert_int_equal(time.owner_dp, 3);
    options.sync_replicas = 4;
    assert_int_equal(time_of(options, loads).step_ns, (100 + 200) * row_ns);
}

static void what_comes_on_top_is_added_once(void **state) {
    (void)state;
    struct step_load load = load_of(1000, 0);
    struct step_time_options options = tiny_options();
    options.cp = 2;
    uint64_t plain_ns = time_of(options, &load).step_ns;
    options.optimizer_ns = 77;
    options.gpu_spread_permille = 100;
    struct step_time time = time_of(options, &load);
    assert_int_equal(time.step_ns, plain_ns + plain_ns / 10 + 77);
    options.exposed_fsdp_permille = 1000;
    options.node = (struct link_rate){.alpha_ns = 0, .bytes_per_us = 1000000};
    /* 4 layers of 28,672 parameters, bf16, half of them gathered, as much reduced. */
    time = time_of(options, &load);
    assert_int_equal(time.fsdp_bytes, 4 * 28672 * 2);
    assert_int_equal(time.step_ns, plain_ns + plain_ns / 10 + 77 + 4 * 28672 * 2 / 1000);
}

static void layers_may_be_dealt_by_hand(void **state) {
    static const uint32_t uneven[] = {1, 3};
    (void)state;
    struct step_load load = load_of(100, 0);
    struct step_time_options options = tiny_options();
    options.pp = 2;
    options.layers = uneven;
    options.layer_count = 2;
    struct step_time time = time_of(options, &load);
    assert_int_equal(time.step_ns, 4 * 300);
    assert_int_equal(time.stage_ppm, 1500000);
    options.layers = NULL;
    assert_int_equal(time_of(options, &load).stage_ppm, 1000000);
}

/* Replicas are alike: which is which changes nothing but their numbers. */
static void renaming_replicas_changes_no_time(void **state) {
    (void)state;
    uint64_t dice = 5;
    for (int world = 0; world < 200; world++) {
        struct step_load loads[24];
        struct step_load renamed[24];
        struct step_time_options options = tiny_options();
        options.dp = 3;
        options.pp = 4;
        options.micro_batches = 24;
        options.schedule = PIPELINE_INTERLEAVED;
        for (uint32_t i = 0; i < 24; i++) {
            loads[i] = load_of(splitmix_between(&dice, 1, 500), splitmix_between(&dice, 0, 500000));
        }
        for (uint32_t i = 0; i < 24; i++) {
            renamed[(i + 8) % 24] = loads[i];
        }
        struct step_time time = time_of(options, loads);
        struct step_time other = time_of(options, renamed);
        assert_int_equal(other.group, (time.group + 1) % 3);
        assert_int_equal(other.owner_dp, (time.owner_dp + 1) % 3);
        time.group = other.group;
        time.owner_dp = other.owner_dp;
        assert_memory_equal(&time, &other, sizeof time);
    }
}

static void without_attention_equal_tokens_are_even(void **state) {
    (void)state;
    struct step_load loads[8];
    struct step_time_options options = tiny_options();
    options.pp = 4;
    options.micro_batches = 8;
    options.attention_permille = 0;
    for (uint32_t i = 0; i < 8; i++) {
        loads[i] = load_of(128, 1000 * i * i);
    }
    struct step_time time = time_of(options, loads);
    assert_int_equal(time.micro_batch_ppm, 1000000);
    assert_int_equal(time.pipeline_ns, time.even_ns);
    assert_int_equal(time.attention_share_ppm, 0);
}

static void what_cannot_be_is_refused_by_name(void **state) {
    static const uint32_t short_by_one[] = {1, 2};
    static const uint32_t empty[] = {0, 4};
    (void)state;
    struct {
        struct step_time_options options;
        const char *says;
    } refused[12];
    size_t count = 0;
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        struct step_time_options options = tiny_options();                                         \
        change;                                                                                    \
        refused[count].options = options;                                                          \
        refused[count++].says = (text);                                                            \
    } while (0)
    REFUSED(options.dp = 0, "dp = 0");
    REFUSED(options.micro_batches = 0, "micro_batches = 0");
    REFUSED(options.node.bytes_per_us = 0, "node link");
    REFUSED(options.exposed_cp_permille = 1001, "exposed_cp_permille = 1001");
    REFUSED(options.shape.ffn = 0, "model.ffn");
    REFUSED(options.pp = 5, "model.layers");
    REFUSED(options.chunks = 2, "1f1b runs one chunk");
    REFUSED((options.pp = 2, options.sync_replicas = 1), "pp = 1");
    REFUSED(options.sync_replicas = 2, "dp = 1");
    REFUSED((options.pp = 2, options.layers = short_by_one, options.layer_count = 2),
            "3 layers are dealt");
    REFUSED((options.pp = 2, options.layers = empty, options.layer_count = 2), "chunk 0 empty");
    REFUSED((options.pp = 2, options.layers = empty, options.layer_count = 3), "3 chunks");
#undef REFUSED
    for (size_t i = 0; i < count; i++) {
        struct error error = {0};
        struct step_time_model model;
        assert_int_equal(step_time_init(&model, &refused[i].options, &error), -EINVAL);
        if (strstr(error.text, refused[i].says) == NULL) {
            fail_msg("'%s' does not say '%s'", error.text, refused[i].says);
        }
    }
}

static struct step_time_options seven_billion(void) {
    struct step_time_options options = step_time_defaults;
    options.shape = (struct model_options){
        .layers = 32,
        .hidden = 4096,
        .ffn = 11008,
        .q_heads = 32,
        .kv_heads = 32,
        .head_dim = 128,
        .gemm_flops_per_ns = 600000,
        .memory_bytes_per_us = 2800000,
    };
    options.dp = 1;
    options.pp = 4;
    options.cp = 2;
    options.tp = 8;
    options.micro_batches = 4;
    options.exposed_tp_permille = 300;
    return options;
}

/* A window under per-sequence, as calibration lays it out. */
static uint64_t window_ns(const struct step_time_model *model, const struct tile_model *tiles,
                          uint32_t documents) {
    uint32_t lengths[CALIBRATE_DOCUMENTS];
    struct fragment fragments[2 * CALIBRATE_DOCUMENTS + 2];
    struct step_load load;
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = 131072 / documents;
    }
    struct packed_sequence sequence = {lengths, documents, 131072, 0};
    step_load_of_sequence(&sequence, LAYOUT_PER_SEQUENCE, 2, tiles, fragments, &load);
    return step_time_layer_ps(model, &load) * 8 / 1000;
}

static void two_measured_times_give_both_scales(void **state) {
    static const struct calibration truths[] = {
        {1000, 1000}, {1700, 900}, {2900, 1400}, {350, 320}};
    struct tile_model tiles;
    (void)state;
    assert_int_equal(tile_model_analytic(128, 4, 4, 8, &tiles), 0);
    for (size_t i = 0; i < sizeof truths / sizeof truths[0]; i++) {
        struct step_time_options options = seven_billion();
        struct step_time_model model = model_of(options);
        options.attention_permille = truths[i].attention_permille;
        options.linear_permille = truths[i].linear_permille;
        struct step_time_model world = model_of(options);
        uint64_t short_ns = window_ns(&world, &tiles, CALIBRATE_DOCUMENTS);
        uint64_t long_ns = window_ns(&world, &tiles, 1);
        struct calibration found;
        assert_int_equal(calibrate_times(&model, &tiles, 131072, short_ns, long_ns, &found, NULL),
                         0);
        assert_in_range(found.attention_permille, truths[i].attention_permille - 1,
                        truths[i].attention_permille);
        assert_in_range(found.linear_permille, truths[i].linear_permille - 1,
                        truths[i].linear_permille + 1);
    }
}

static void measured_times_that_cannot_be_are_refused(void **state) {
    struct tile_model tiles;
    struct calibration found = {1, 1};
    struct error error = {0};
    (void)state;
    assert_int_equal(tile_model_analytic(128, 4, 4, 8, &tiles), 0);
    struct step_time_model model = model_of(seven_billion());
    uint64_t short_ns = window_ns(&model, &tiles, CALIBRATE_DOCUMENTS);
    uint64_t long_ns = window_ns(&model, &tiles, 1);
    assert_int_equal(calibrate_times(&model, &tiles, 131072, short_ns, short_ns, &found, &error),
                     -EINVAL);
    assert_non_null(strstr(error.text, "measure again"));
    assert_int_equal(calibrate_times(&model, &tiles, 131000, short_ns, long_ns, &found, &error),
                     -EINVAL);
    assert_int_equal(calibrate_times(&model, &tiles, 131072, short_ns, 9 * long_ns, &found, &error),
                     -ERANGE);
    assert_non_null(strstr(error.text, "attention"));
    assert_int_equal(calibrate_times(&model, &tiles, 131072, 9 * short_ns, 8 * short_ns + long_ns,
                                     &found, &error),
                     -ERANGE);
    assert_non_null(strstr(error.text, "linear"));
    assert_int_equal(found.attention_permille, 1);
}

/* Micro-batches as a job logs them: one to eight documents of up to a window. */
static void samples_draw(const struct step_time_model *world, const struct tile_model *tiles,
                         uint64_t dice, uint32_t noise_permille, struct calibrate_sample *samples,
                         uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t lengths[8];
        struct fragment fragments[18];
        struct packed_sequence sequence = {lengths, splitmix_between(&dice, 1, 8), 0, 0};
        for (uint32_t d = 0; d < sequence.documents; d++) {
            lengths[d] = splitmix_between(&dice, 1, 131072 / sequence.documents);
            sequence.tokens += lengths[d];
        }
        sequence.pad_tokens = (16 - sequence.tokens % 16) % 16;
        step_load_of_sequence(&sequence, LAYOUT_PER_SEQUENCE, 2, tiles, fragments,
                              &samples[i].load);
        uint64_t ns = step_time_layer_ps(world, &samples[i].load) * 8 / 1000;
        uint32_t noise = splitmix_between(&dice, 1000 - noise_permille, 1000 + noise_permille);
        samples[i].forward_ns = ns * noise / 1000;
    }
}

static void a_log_gives_both_scales_and_how_well_they_fit(void **state) {
    static const struct calibration truths[] = {{1000, 1000}, {1700, 900}, {2900, 1400}};
    static struct calibrate_sample samples[400];
    struct tile_model tiles;
    (void)state;
    assert_int_equal(tile_model_analytic(128, 4, 4, 8, &tiles), 0);
    for (size_t i = 0; i < sizeof truths / sizeof truths[0]; i++) {
        struct step_time_options options = seven_billion();
        struct step_time_model model = model_of(options);
        options.attention_permille = truths[i].attention_permille;
        options.linear_permille = truths[i].linear_permille;
        struct step_time_model world = model_of(options);
        for (uint32_t noise = 0; noise <= 50; noise += 50) {
            struct calibration found;
            uint32_t fit_ppm = 0;
            int64_t off = noise == 0 ? 2 : 60;
            samples_draw(&world, &tiles, 7 + i, noise, samples, 400);
            assert_int_equal(calibrate_log(&model, samples, 400, &found, &fit_ppm, NULL), 0);
            assert_true(llabs((int64_t)found.attention_permille - truths[i].attention_permille) <=
                        off);
            assert_true(llabs((int64_t)found.linear_permille - truths[i].linear_permille) <= off);
            assert_true(noise == 0 ? fit_ppm >= 999900 : fit_ppm >= 950000 && fit_ppm < 1000000);
        }
    }
}

static void logs_that_tell_nothing_are_refused(void **state) {
    static struct calibrate_sample samples[100];
    struct calibration found = {1, 1};
    struct error error = {0};
    struct tile_model tiles;
    uint32_t fit_ppm = 1;
    uint64_t dice = 3;
    (void)state;
    assert_int_equal(tile_model_analytic(128, 4, 4, 8, &tiles), 0);
    struct step_time_model model = model_of(seven_billion());
    samples_draw(&model, &tiles, 5, 0, samples, 100);
    assert_int_equal(calibrate_log(&model, samples, 9, &found, &fit_ppm, &error), -EINVAL);
    assert_non_null(strstr(error.text, "9 micro-batches"));
    for (uint32_t i = 0; i < 100; i++) {
        samples[i].forward_ns *= 9;
    }
    assert_int_equal(calibrate_log(&model, samples, 100, &found, &fit_ppm, &error), -ERANGE);
    assert_non_null(strstr(error.text, "scale comes out at"));
    for (uint32_t i = 0; i < 100; i++) {
        samples[i].forward_ns = splitmix_between(&dice, 1000000, 200000000);
    }
    assert_int_equal(calibrate_log(&model, samples, 100, &found, &fit_ppm, &error), -ERANGE);
    assert_non_null(strstr(error.text, "R2"));
    for (uint32_t i = 1; i < 100; i++) {
        samples[i] = samples[0];
    }
    assert_int_equal(calibrate_log(&model, samples, 100, &found, &fit_ppm, &error), -EINVAL);
    assert_non_null(strstr(error.text, "long documents"));
    assert_int_equal(found.attention_permille, 1);
    assert_int_equal(fit_ppm, 1);
}

static void an_imbalance_gives_the_smallest_scale_that_reaches_it(void **state) {
    struct step_load loads[LOADS_MAX];
    struct calibration found;
    uint64_t dice = 3;
    (void)state;
    struct step_time_options options = tiny_options();
    options.micro_batches = 4;
    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        loads[i] = load_of(100, splitmix_between(&dice, 1000, 100000));
    }
    struct step_time_model model = model_of(options);
    assert_int_equal(calibrate_imbalance(&model, loads, LOADS_MAX / 4, 1300000, &found, NULL), 0);
    for (int below = 0; below < 2; below++) {
        uint64_t sum = 0;
        options.attention_permille = found.attention_permille - (below ? 1 : 0);
        for (uint32_t step = 0; step < LOADS_MAX / 4; step++) {
            sum += time_of(options, &loads[4 * step]).micro_batch_ppm;
        }
        assert_int_equal(sum / (LOADS_MAX / 4) >= 1300000, !below);
    }
    assert_int_equal(calibrate_imbalance(&model, loads, LOADS_MAX / 4, 3900000, &found, NULL),
                     -ERANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_stage_takes_its_layers),
        cmocka_unit_test(recomputation_adds_what_is_recomputed),
        cmocka_unit_test(the_head_stands_on_the_last_chunk),
        cmocka_unit_test(communication_costs_its_exposed_share),
        cmocka_unit_test(a_per_document_layout_pays_its_copies),
        cmocka_unit_test(replicas_meet_once_a_step_or_at_every_micro_batch),
        cmocka_unit_test(what_comes_on_top_is_added_once),
        cmocka_unit_test(layers_may_be_dealt_by_hand),
        cmocka_unit_test(renaming_replicas_changes_no_time),
        cmocka_unit_test(without_attention_equal_tokens_are_even),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
        cmocka_unit_test(two_measured_times_give_both_scales),
        cmocka_unit_test(measured_times_that_cannot_be_are_refused),
        cmocka_unit_test(a_log_gives_both_scales_and_how_well_they_fit),
        cmocka_unit_test(logs_that_tell_nothing_are_refused),
        cmocka_unit_test(an_imbalance_gives_the_smallest_scale_that_reaches_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
