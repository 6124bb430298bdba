/* ctl options: every option of `ballastctl simulate` and `tune` refuses what it does not take,
 * naming itself or the key that it stands for, before a step is planned. */
#include "ctl_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { USAGE = 2, REFUSED = 1, MISSING = 4 };

struct refusal {
    const char *option; /* without value; several rows may have the same */
    const char *value;
    int code;
    const char *says;
};

/* What both commands take to describe the job and its step times. */
static const struct refusal shared[] = {
    {"--token-file", NULL, 0, NULL},
    {"--tls-certificate", NULL, 0, NULL},
    {"--tls-key", NULL, 0, NULL},
    {"--tls-ca", NULL, 0, NULL},
    {"--tls-name", NULL, 0, NULL},
    {"--timeout", "0", USAGE, "--timeout '0'"},
    {"--config", "/nowhere/conf", MISSING, "/nowhere/conf"},
    {"--corpus", "/nowhere/corpus", USAGE, "one of them"},
    {"--lengths", "/nowhere/lengths", USAGE, "one of them"},
    {"--distribution", "none", REFUSED, "no distribution 'none'"},
    {"--cut", "half", USAGE, "neither sequence nor whole"},
    {"--seed", "-1", USAGE, "--seed '-1'"},
    {"--seed", "18446744073709551616", USAGE, "--seed"},
    {"--steps", "0", USAGE, "--steps 0"},
    {"--steps", "1000001", USAGE, "up to 1000000"},
    {"--warm-up", "x", USAGE, "--warm-up 'x'"},
    {"--window", "0", REFUSED, "plan.window = 0"},
    {"--window", "65m", REFUSED, "plan.window = 65m"},
    {"--profile", "/nowhere/profile.json", MISSING, "profile /nowhere/profile.json"},
    {"--profile", "/etc/passwd", REFUSED, "/etc/passwd: line 1"},
    {"--micro-batches", "0", REFUSED, "plan.micro_batches = 0"},
    {"--micro-batches", "7.5", REFUSED, "plan.micro_batches = 7.5"},
    {"--tokens-max", "-1w", REFUSED, "plan.tokens_max = -1w"},
    {"--tokens-max", "1", REFUSED, "plan.tokens_max = 1"},
    {"--cost", "L2/0", REFUSED, "model.cost = L2/0"},
    {"--bands", "9,3", REFUSED, "bands.thresholds = 9,3"},
    {"--bands", "0", REFUSED, "bands.thresholds = 0"},
    {"--preset", "best", REFUSED, "level.preset = best"},
    {"--layouts", "per-token", REFUSED, "sharding.layouts = per-token"},
    {"--dp", "0", REFUSED, "parallel.dp = 0"},
    {"--dp", "3", REFUSED, "plan.micro_batches = 8"},
    {"--pp", "0", REFUSED, "parallel.pp = 0"},
    {"--pp", "33", REFUSED, "model.layers"},
    {"--cp", "0", REFUSED, "parallel.cp = 0"},
    {"--tp", "4097", REFUSED, "parallel.tp = 4097"},
    {"--set", "plan.window", USAGE, "not SECTION.KEY=VALUE"},
    {"--set", "=3", USAGE, "not SECTION.KEY=VALUE"},
    {"--set", "plan.windows=3", REFUSED, "plan.windows"},
    {"--set", "level.horizon=2", REFUSED, "level.horizon = 2"},
    {"--set", "corpus.overlong=none", REFUSED, "corpus.overlong = none"},
    {"--set", "plan.step_tokens=99999999", REFUSED, "plan.step_tokens = 99999999"},
    {"--schedule", "zb", USAGE, "none of 1f1b, interleaved, afab"},
    {"--chunks", "-1", USAGE, "--chunks '-1'"},
    {"--chunks", "0", REFUSED, "chunks"},
    {"--chunks", "2", REFUSED, "1f1b runs one chunk"},
    {"--layers", "16,0", USAGE, "--layers 0"},
    {"--layers", "16,16", REFUSED, "2 chunks"},
    {"--layers", "31", REFUSED, "31 layers are dealt"},
    {"--send-depth", "x", USAGE, "--send-depth 'x'"},
    {"--replica-sync", "2", REFUSED, "dp = 1 is not a multiple"},
    {"--vocab", "4294967296", USAGE, "--vocab"},
    {"--recompute", "some", USAGE, "none of none, attention, full"},
    {"--node-gpus", "0", REFUSED, "node_gpus = 0"},
    {"--exposed-tp", "1001", REFUSED, "exposed_tp_permille = 1001"},
    {"--exposed-cp", "1001", REFUSED, "exposed_cp_permille = 1001"},
    {"--exposed-pp", "1001", REFUSED, "exposed_pp_permille = 1001"},
    {"--exposed-fsdp", "-1", USAGE, "--exposed-fsdp '-1'"},
    {"--optimizer", "1.5", USAGE, "--optimizer '1.5'"},
    {"--gpu-spread", "100001", REFUSED, "gpu_spread_permille = 100001"},
    {"--attention-scale", "x", USAGE, "--attention-scale 'x'"},
    {"--attention-scale", "1000001", REFUSED, "attention_permille = 1000001"},
    {"--linear-scale", "x", USAGE, "--linear-scale 'x'"},
    {"--html", "/nowhere/page", MISSING, "/nowhere/page: cannot be written"},
    {"--socket", NULL, 0, NULL}, /* not asked: any path may be one */
    {"--state", NULL, 0, NULL},
    {"--json", NULL, 0, NULL},
    {"--help", NULL, 0, NULL},
    {"--usage", NULL, 0, NULL},
};

static const struct refusal simulate[] = {
    {"--policies", "best", USAGE, "no policy 'best'"},
    {"--policies", ",", USAGE, "names none"},
    {"--policies", "plain,fixed:65", USAGE, "no policy 'fixed:65'"},
    {"--policies", "plain@", USAGE, "names no layout"},
    {"--policies", "plain@per-token", USAGE, "no layout 'per-token'"},
    {"--exact", "0", USAGE, "global batches 0"},
    {"--exact", "65", USAGE, "up to 64"},
    {"--exact", "2,0", USAGE, "seconds 0"},
    {"--exact-groups", "0", USAGE, "--exact-groups 0"},
    {"--calibrate", "5", USAGE, "not two times"},
    {"--calibrate", "5,0", USAGE, "--calibrate 0"},
    {"--calibrate", "9,8", REFUSED, "measure again"},
    {"--calibrate-log", "/nowhere/log", MISSING, "/nowhere/log"},
    {"--imbalance", "1", USAGE, "not above 1"},
    {"--imbalance", "1.4x", USAGE, "--imbalance '1.4x'"},
    {"--imbalance", "99", REFUSED, "check lengths and mesh"},
    {"--context-parallel", "1", USAGE, "at least 2 ranks"},
    {"--context-parallel", "x", USAGE, "--context-parallel 'x'"},
    {"--context-parallel", "3", REFUSED, "plan.window"},
    {"--pool", "0", USAGE, "--pool takes numbers above 0"},
    {"--pool", ",", USAGE, "--pool names none"},
    {"--pool", "3", REFUSED, "not a multiple of 3 replicas"},
    {"--block", "0", USAGE, "--block takes numbers above 0"},
    {"--block", "4294967295", USAGE, "--block '4294967295'"},
    {"--head-shards", "x", USAGE, "--head-shards 'x'"},
    {"--head-shards", "2", USAGE, "give --pool or --search too"},
    {"--block", "128", USAGE, "give --pool or --search too"},
    {"--exchange-chunks", "0", USAGE, "--exchange-chunks takes numbers above 0"},
    {"--link", "0", USAGE, "--link takes numbers above 0"},
    {"--heads", "1,2", USAGE, "three numbers"},
    {"--heads", "32,5,128", USAGE, "a multiple of KV"},
    {"--global-batch", "0", REFUSED, "plan.micro_batches = 0"},
    {"--placement", "best", USAGE, "--placement 'best'"},
    {"--tiles", "worst", USAGE, "--tiles 'worst'"},
    {"--search", "1", USAGE, "--search"},
    {"--snake", "1", USAGE, "--snake"},
    {"--chain", "1", USAGE, "--chain"},
    {"--measured-step", "0", USAGE, "--measured-step '0'"},
    {"--measured-step", "3.1", USAGE, "--measured-step '3.1'"},
};

static const struct refusal tune[] = {
    {"--check-seed", "x", USAGE, "--check-seed 'x'"},
    {"--objective", "speed", USAGE, "neither balance nor time"},
    {"--delay-max", "-1", USAGE, "--delay-max '-1'"},
    {"--delay-max", "1,5", USAGE, "--delay-max '1,5'"},
    {"--tokens-tolerance", "101%", USAGE, "up to 100%"},
    {"--tokens-tolerance", "some", USAGE, "--tokens-tolerance 'some'"},
};

static void expect_refused(const char *command, const struct refusal *row, struct ran *ran) {
    char option[128];
    if (row->value == NULL) {
        return;
    }
    (void)snprintf(option, sizeof option, "%s=%s", row->option, row->value);
    ran_ctl(ran, command, "--distribution=wlb128k", "--warm-up=0", "--steps=2", option, NULL);
    if (ran->code != row->code || ran->out[0] != '\0' || strstr(ran->err, row->says) == NULL) {
        fail_msg("%s %s: exit status %d, not %d; '%s' is not in:\n%s%s", command, option, ran->code,
                 row->code, row->says, ran->err, ran->out);
    }
}

static bool has_option(const struct refusal *rows, size_t count, const char *option,
                       size_t length) {
    for (size_t i = 0; i < count; i++) {
        if (strlen(rows[i].option) == length && memcmp(rows[i].option, option, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Options that the command's help names all stand in a table. */
static void expect_complete(const char *command, const struct refusal *rows, size_t count) {
    struct ran ran = {0};
    ran_ctl(&ran, command, "--help", NULL);
    ran_expect(&ran, 0);
    const char *at = strstr(ran.out, "\n\n");
    for (at = strstr(at, "  --"); at != NULL; at = strstr(at + 1, "  --")) {
        const char *option = at + 2;
        size_t length = strcspn(option, "=[ ,\n");
        if (at[-1] == '\n' || at[-1] == ' ' || at[-1] == ',') {
            if (!has_option(rows, count, option, length) &&
                !has_option(shared, sizeof shared / sizeof shared[0], option, length)) {
                fail_msg("%s %.*s: nothing wrong is tried", command, (int)length, option);
            }
        }
    }
    ran_free(&ran);
}

static void check(const char *command, const struct refusal *rows, size_t count) {
    struct ran ran = {0};
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        expect_refused(command, &shared[i], &ran);
    }
    for (size_t i = 0; i < count; i++) {
        expect_refused(command, &rows[i], &ran);
    }
    ran_free(&ran);
    expect_complete(command, rows, count);
}

static void simulate_refuses_what_its_options_do_not_take(void **state) {
    (void)state;
    check("simulate", simulate, sizeof simulate / sizeof simulate[0]);
}

static void tune_refuses_what_its_options_do_not_take(void **state) {
    (void)state;
    check("tune", tune, sizeof tune / sizeof tune[0]);
}

/* Windows that the ranks do not divide, where a policy fills them; documents that fit no
 * micro-batch; weights that are none. */
static void what_does_not_go_together_is_refused_before_a_step_is_planned(void **state) {
    (void)state;
    static const char *const rows[][4] = {
        {"--policies=plain", "--window=1001", "--cp=2", "plan.window = 1001"},
        {"--policies=wlb:level,fixed:2", "--window=1001", "--cp=2", "plan.window = 1001"},
        {"--policies=pool:1", "--window=1001", "--cp=2", "plan.window = 1001"},
        {"--policies=plain", "--window=1024", "--tokens-max=0.5w", "plan.tokens_max = 512"},
        {"--policies=wlb:level", "--set=corpus.overlong=refuse", "--window=1000",
         "over the limit of 1000"},
        {"--policies=wlb:level", "--set=corpus.overlong=refuse", "--tokens-max=900",
         "over the limit of 900"},
        {"--policies=wlb:level", "--bands=512,256", "--window=1024", "bands.thresholds = 512,256"},
    };
    struct world world;
    struct ran ran = {0};
    char lengths[256];
    world_open(&world);
    world_write(&world, "lengths", "10\n1024\n500\n", 0);
    (void)snprintf(lengths, sizeof lengths, "--lengths=%s", world_path(&world, "lengths"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ran_ctl(&ran, "simulate", lengths, "--steps=2", rows[i][0], rows[i][1], rows[i][2], NULL);
        ran_expect(&ran, 1);
        assert_string_equal(ran.out, "");
        if (strstr(ran.err, rows[i][3]) == NULL) {
            fail_msg("'%s' is not in:\n%s", rows[i][3], ran.err);
        }
    }
    static const char *const weights[] = {"0", "-1", "", "heavy", "1.0000001"};
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        char corpus[64];
        (void)snprintf(corpus, sizeof corpus, "--corpus=/nowhere/corpus=%s", weights[i]);
        ran_ctl(&ran, "simulate", corpus, "--steps=2", NULL);
        ran_expect(&ran, 1);
        assert_non_null(strstr(ran.err, "weight = "));
    }
    ran_free(&ran);
    world_close(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulate_refuses_what_its_options_do_not_take),
        cmocka_unit_test(tune_refuses_what_its_options_do_not_take),
        cmocka_unit_test(what_does_not_go_together_is_refused_before_a_step_is_planned),
    };
    return cmocka_run_group_tests_name("ctl_options", tests, NULL, NULL);
}
