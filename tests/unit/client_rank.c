/* The program ballast-rank against a scripted daemon: its log, its dumps, its exit codes, its end
 * by a signal. */
#include "client_world.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ARGUMENTS_MAX = 24 };

/* Starts the program; its standard error goes to `errors` (NULL: where ours goes). */
static pid_t rank_start(const char *errors, ...) {
    char *arguments[ARGUMENTS_MAX] = {"ballast-rank"};
    va_list list;
    va_start(list, errors);
    for (size_t i = 1; i < ARGUMENTS_MAX - 1 && (arguments[i] = va_arg(list, char *)) != NULL;
         i++) {
    }
    va_end(list);
    pid_t child = fork();
    if (child == 0) {
        int fd = errors == NULL ? 2 : open(errors, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
        (void)dup2(fd, 2);
        execv(BALLAST_RANK, arguments);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static int rank_wait(pid_t child) {
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void path_of(const struct fake *fake, const char *name, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "%s/%s", fake->dir, name);
}

static size_t read_file(const char *path, void *out, size_t bytes) {
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t got = fread(out, 1, bytes, file);
    assert_true(feof(file) || got < bytes || fgetc(file) == EOF);
    (void)fclose(file);
    return got;
}

static void serve_two_steps(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_serve_step(fake, stream, memory, 3);
    world_serve_step(fake, stream, memory, 4);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void expected_columns(uint64_t step, uint32_t index, int32_t columns[3][WORLD_ROWS]) {
    static const uint32_t rows[WORLD_ROWS] = {0, 1, 6, 7};
    static const int32_t positions[WORLD_ROWS] = {0, 1, 1, 2};
    for (uint32_t i = 0; i < WORLD_ROWS; i++) {
        columns[0][i] = (int32_t)world_token(step, index, rows[i]);
        columns[1][i] = (int32_t)world_token(step, index, rows[i] + 1);
        columns[2][i] = positions[i];
    }
}

static void expect_line(const char *line, uint64_t step, uint32_t index) {
    static const char *const keys[] = {
        "step",         "dp",          "pp",        "cp",   "tp",
        "index",        "plan_digest", "documents", "rows", "loss_denominator",
        "label_tokens", "waited_us",   "tokens_xxh"};
    int32_t columns[3][WORLD_ROWS];
    char digest[33], hash[17];
    size_t key = 0;
    const char *name;
    json_t *value, *object = json_loads(line, 0, NULL);
    assert_non_null(object);
    json_object_foreach(object, name, value) {
        assert_true(key < sizeof keys / sizeof keys[0]);
        assert_string_equal(name, keys[key++]);
    }
    assert_int_equal(key, sizeof keys / sizeof keys[0]);
    expected_columns(step, index, columns);
    for (int i = 0; i < 16; i++) {
        (void)snprintf(digest + 2 * i, 3, "%02x", (unsigned)(step + 1));
    }
    (void)snprintf(hash, sizeof hash, "%016llx",
                   (unsigned long long)XXH3_64bits(columns[0], sizeof columns[0]));
    assert_int_equal(json_integer_value(json_object_get(object, "step")), step);
    assert_int_equal(json_integer_value(json_object_get(object, "index")), index);
    assert_int_equal(json_integer_value(json_object_get(object, "documents")), 2);
    assert_int_equal(json_integer_value(json_object_get(object, "rows")), WORLD_ROWS);
    assert_int_equal(json_integer_value(json_object_get(object, "loss_denominator")), 16);
    assert_int_equal(json_integer_value(json_object_get(object, "label_tokens")), 14);
    assert_string_equal(json_string_value(json_object_get(object, "plan_digest")), digest);
    assert_string_equal(json_string_value(json_object_get(object, "tokens_xxh")), hash);
    json_decref(object);
}

static void expect_dump(const struct fake *fake, uint64_t step, uint32_t index) {
    static const char *const names[] = {"tokens", "labels", "positions"};
    int32_t columns[3][WORLD_ROWS], got[WORLD_ROWS + 1];
    expected_columns(step, index, columns);
    for (int i = 0; i < 3; i++) {
        char path[192];
        (void)snprintf(path, sizeof path, "%s/%llu.0.0.0.0.%u.%s", fake->dir,
                       (unsigned long long)step, index, names[i]);
        assert_int_equal(read_file(path, got, sizeof got), sizeof columns[i]);
        assert_memory_equal(got, columns[i], sizeof columns[i]);
        assert_int_equal(unlink(path), 0);
    }
}

static void the_log_and_the_dumps_say_what_was_gathered(void **state) {
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct fake fake;
        struct world_memory memory;
        char log[128], text[4096], *rest = NULL;
        world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
        fake_start(&fake, serve_two_steps, &memory);
        path_of(&fake, "log", log, sizeof log);
        pid_t child = rank_start(NULL, "--socket", fake.path, "--steps", "2", "--log", log,
                                 "--dump", fake.dir, wide ? "--int64" : NULL, NULL);
        assert_int_equal(rank_wait(child), 0);
        text[read_file(log, text, sizeof text - 1)] = '\0';
        char *line = strtok_r(text, "\n", &rest);
        for (uint64_t step = 3; step < 5; step++) {
            for (uint32_t index = 0; index < WORLD_MICRO_BATCHES; index++) {
                assert_non_null(line);
                expect_line(line, step, index);
                expect_dump(&fake, step, index);
                line = strtok_r(NULL, "\n", &rest);
            }
        }
        assert_null(line);
        unlink(log);
        fake_stop(&fake);
        world_memory_destroy(&memory);
    }
}

static void a_log_without_hashes_has_all_else(void **state) {
    struct fake fake;
    struct world_memory memory;
    char log[128], text[4096];
    (void)state;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_two_steps, &memory);
    path_of(&fake, "log", log, sizeof log);
    pid_t child = rank_start(NULL, "--socket", fake.path, "--steps", "2", "--log", log, "--no-hash",
                             NULL);
    assert_int_equal(rank_wait(child), 0);
    text[read_file(log, text, sizeof text - 1)] = '\0';
    json_t *object = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(object);
    assert_null(json_object_get(object, "tokens_xxh"));
    assert_int_equal(json_integer_value(json_object_get(object, "rows")), WORLD_ROWS);
    assert_non_null(json_object_get(object, "waited_us"));
    json_decref(object);
    unlink(log);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

/* One batch, then nothing; the rank is to be stopped while it holds it. */
static void serve_one_batch(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_send_batch(fake, stream, memory, 3, 0);
    world_expect_release(fake, stream, 3, 0);
    FAKE_CHECK(!fake_receive(fake, &header, &data));
}

static void a_signal_ends_it_after_the_batch_in_hand(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    char log[128], line[1024] = "";
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_one_batch, &memory);
    path_of(&fake, "log", log, sizeof log);
    assert_int_equal(mkfifo(log, 0600), 0);
    pid_t child = rank_start(NULL, "--socket", fake.path, "--think-ms", "60000", "--log", log,
                             NULL);
    FILE *file = fopen(log, "re");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    expect_line(line, 3, 0);
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(rank_wait(child), 0);
    assert_null(fgets(line, sizeof line, file));
    (void)fclose(file);
    unlink(log);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

/* A step of two pooled batches; when `broken`, the second one's part is not whole. */
struct pooled {
    struct world_memory memory;
    bool broken;
};

static void serve_pools(struct fake *fake) {
    struct pooled *pooled = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t stream = world_serve(fake, &pooled->memory, 3, 0, 4);
    for (uint32_t index = 0; index < WORLD_MICRO_BATCHES; index++) {
        struct world_batch batch;
        world_batch_init(&batch, &pooled->memory, 3, index);
        world_pool_add(&batch);
        batch.message.pool->n_tiles -= pooled->broken && index == 1;
        world_send(fake, stream, &batch);
        world_batch_free(&batch);
    }
    world_send_end_of_step(fake, stream, 3);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void expect_verified(char *line) {
    json_t *object = json_loads(line, 0, NULL);
    assert_non_null(object);
    assert_int_equal(json_integer_value(json_object_get(object, "verified")),
                     WORLD_TILES + WORLD_TRANSFERS);
    json_decref(object);
}

static void a_part_of_a_pool_is_verified_and_counted(void **state) {
    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        struct fake fake;
        struct pooled pooled = {.broken = broken == 1};
        char log[128], errors[128], text[4096], *rest = NULL;
        world_memory_create(&pooled.memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
        fake_start(&fake, serve_pools, &pooled);
        path_of(&fake, "log", log, sizeof log);
        path_of(&fake, "errors", errors, sizeof errors);
        pid_t child = rank_start(errors, "--socket", fake.path, "--verify", "--steps", "1",
                                 "--commit-every", "0", "--log", log, NULL);
        assert_int_equal(rank_wait(child), broken);
        text[read_file(log, text, sizeof text - 1)] = '\0';
        expect_verified(strtok_r(text, "\n", &rest));
        char *second = strtok_r(NULL, "\n", &rest);
        assert_int_equal(second == NULL, broken);
        if (second != NULL) {
            expect_verified(second);
        }
        text[read_file(errors, text, sizeof text - 1)] = '\0';
        assert_int_equal(strstr(text, "verify: tiles at home leave out rows") != NULL, broken);
        unlink(log);
        unlink(errors);
        fake_stop(&fake);
        world_memory_destroy(&pooled.memory);
    }
}

static void refuse_the_rank(struct fake *fake) {
    struct frame_header header;
    const uint8_t *data;
    uint32_t call;
    fake_accept(fake);
    (void)fake_request(fake, "Hello", &ballast__v1__hello_request__descriptor, &call);
    fake_refuse(fake, call, STATUS_ALREADY_EXISTS, "this rank is served already");
    (void)fake_receive(fake, &header, &data);
}

static void expect_refusal(const struct fake *fake, int code, const char *sentence,
                           const char *flag, const char *value) {
    char errors[128], text[4096];
    path_of(fake, "errors", errors, sizeof errors);
    pid_t child = rank_start(errors, "--socket", fake->path, "--connect-timeout-ms", "0", flag,
                             value, NULL);
    assert_int_equal(rank_wait(child), code);
    text[read_file(errors, text, sizeof text - 1)] = '\0';
    if (strstr(text, sentence) == NULL) {
        fail_msg("'%s' is not in '%s'", sentence, text);
    }
    unlink(errors);
}

static void exit_codes_and_sentences_say_what_was_wrong(void **state) {
    (void)state;
    struct fake fake;
    fake_prepare(&fake);
    expect_refusal(&fake, 3, "start ballastd, or name its socket (--socket, BALLAST_SOCKET)", NULL,
                   NULL);
    expect_refusal(&fake, 2, "--dp -1: not a whole number", "--dp", "-1");
    expect_refusal(&fake, 2, "--steps 1x: not a whole number", "--steps", "1x");
    expect_refusal(&fake, 2, "tokenz is none of plan, tokens, labels", "--parts", "plan,tokenz");
    expect_refusal(&fake, 2, "no arguments are taken", "surplus", NULL);
    expect_refusal(&fake, 1, "/nonexistent/log: No such file", "--log", "/nonexistent/log");
    expect_refusal(&fake, 2, "--agree counts its rounds", "--follow", "--agree=here");
    expect_refusal(&fake, 3, "ballast-rank: waiting for the daemon since ", "--connect-timeout-ms",
                   "2200");
    fake_stop(&fake);
    fake_start(&fake, refuse_the_rank, NULL);
    char errors[128];
    path_of(&fake, "errors", errors, sizeof errors);
    assert_int_equal(rank_wait(rank_start(errors, "--socket", fake.path, NULL)), 1);
    unlink(errors);
    fake_stop(&fake);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_log_and_the_dumps_say_what_was_gathered),
        cmocka_unit_test(a_log_without_hashes_has_all_else),
        cmocka_unit_test(a_signal_ends_it_after_the_batch_in_hand),
        cmocka_unit_test(a_part_of_a_pool_is_verified_and_counted),
        cmocka_unit_test(exit_codes_and_sentences_say_what_was_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
