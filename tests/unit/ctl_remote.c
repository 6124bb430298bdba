/* ballastctl and a daemon: what it asks, how it prints the answer, how it takes a refusal. */
#include "client_fake.h"
#include "ctl_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define BATCHES 7u
#define PAGE    3u

static void play_status(struct fake *fake) {
    uint32_t stream;
    Ballast__V1__Rank place = BALLAST__V1__RANK__INIT;
    Ballast__V1__RankStatus here = BALLAST__V1__RANK_STATUS__INIT;
    Ballast__V1__RankStatus gone = BALLAST__V1__RANK_STATUS__INIT;
    Ballast__V1__RankStatus *ranks[] = {&here, &gone};
    Ballast__V1__DatasetStatus books = BALLAST__V1__DATASET_STATUS__INIT;
    Ballast__V1__DatasetStatus *datasets[] = {&books};
    Ballast__V1__StatusResponse response = BALLAST__V1__STATUS_RESPONSE__INIT;
    place.cp = 1;
    here.rank = &place;
    here.pid = 4711;
    books.name = "a dataset with a name that is much too long to stand in a table of 80 columns";
    books.tokens = INT64_MAX; /* as far as jansson goes */
    books.delivered_tokens = 12345678;
    response.version = "9.9.9";
    response.state = fake->context;
    response.ranks = ranks;
    response.n_ranks = 2;
    response.datasets = datasets;
    response.n_datasets = 1;
    response.next_step = 123;
    response.committed_step = 120;
    response.durable_step = 119;
    response.ranks_expected = 4;
    fake_accept(fake);
    (void)fake_request(fake, "Status", &ballast__v1__status_request__descriptor, &stream);
    fake_respond(fake, stream, &response.base);
}

static void status_is_the_wire_message_in_json(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_status, "serving");
    ran_ctl(&ran, "status", "--json", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 0);
    json_t *status = ran_json(&ran);
    assert_string_equal(json_string_value(json_object_get(status, "state")), "serving");
    assert_int_equal(json_integer_value(json_object_get(status, "next_step")), 123);
    assert_true(json_is_null(json_object_get(status, "balance")));
    json_t *rank = json_array_get(json_object_get(status, "ranks"), 0);
    assert_int_equal(json_integer_value(json_object_get(rank, "pid")), 4711);
    assert_non_null(strstr(ran.out, "\"tokens\":9223372036854775807"));
    json_decref(status);
    ran_free(&ran);
}

static void status_is_a_table_for_people(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_status, "serving");
    ran_ctl(&ran, "status", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 0);
    assert_non_null(strstr(ran.out, "dp0 pp0 cp1 tp0"));
    assert_non_null(strstr(ran.out, "4711"));
    assert_non_null(strstr(ran.out, "12.3M"));
    assert_null(strchr(ran.out, '\033'));
    ran_free(&ran);
}

static void health_counts_the_ranks_that_are_connected(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_status, "serving");
    ran_ctl(&ran, "health", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 0);
    assert_string_equal(ran.out, "serving 1/4 ranks, step 123, committed 120, durable 119\n");
    ran_free(&ran);
}

static void a_warming_daemon_is_not_healthy(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_status, "warming");
    ran_ctl(&ran, "health", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 3);
    assert_non_null(strstr(ran.err, "warming"));
    ran_free(&ran);
}

/* Answers Plan in pages of three micro-batches. */
static void play_plan(struct fake *fake) {
    uint32_t stream;
    uint32_t next = 0;
    fake_accept(fake);
    do {
        Ballast__V1__PlanRequest *request = fake_request(
            fake, "Plan", &ballast__v1__plan_request__descriptor, &stream);
        Ballast__V1__MicroBatch batches[PAGE];
        Ballast__V1__MicroBatch *pointers[PAGE];
        Ballast__V1__StepPlan plan = BALLAST__V1__STEP_PLAN__INIT;
        Ballast__V1__PlanResponse response = BALLAST__V1__PLAN_RESPONSE__INIT;
        FAKE_CHECK(request->step == 42 && request->fragments && request->pools);
        FAKE_CHECK(request->first == next && request->count == 0);
        for (uint32_t i = 0; i < PAGE && next + i < BATCHES; i++) {
            ballast__v1__micro_batch__init(&batches[i]);
            batches[i].index = next + i;
            pointers[i] = &batches[i];
            plan.n_micro_batches = i + 1;
        }
        next += (uint32_t)plan.n_micro_batches;
        plan.step = 42;
        plan.policy = "wlb:bands";
        plan.micro_batches = pointers;
        response.plan = &plan;
        response.next = next < BATCHES ? next : 0;
        fake_respond(fake, stream, &response.base);
    } while (next < BATCHES);
}

static void the_pages_of_a_plan_are_one_answer(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_plan, NULL);
    ran_ctl(&ran, "--socket", fake.path, "--json", "plan", "42", NULL);
    fake_stop(&fake);
    ran_expect(&ran, 0);
    json_t *answer = ran_json(&ran);
    json_t *batches = json_object_get(json_object_get(answer, "plan"), "micro_batches");
    assert_int_equal(json_integer_value(json_object_get(answer, "next")), 0);
    assert_int_equal(json_array_size(batches), BATCHES);
    for (size_t i = 0; i < BATCHES; i++) {
        json_t *index = json_object_get(json_array_get(batches, i), "index");
        assert_int_equal(json_integer_value(index), i);
    }
    json_decref(answer);
    ran_free(&ran);
}

static void play_endless_pages(struct fake *fake) {
    uint32_t stream;
    fake_accept(fake);
    for (int i = 0; i < 2; i++) {
        Ballast__V1__StepPlan plan = BALLAST__V1__STEP_PLAN__INIT;
        Ballast__V1__PlanResponse response = BALLAST__V1__PLAN_RESPONSE__INIT;
        (void)fake_request(fake, "Plan", &ballast__v1__plan_request__descriptor, &stream);
        response.plan = &plan;
        response.next = 1;
        fake_respond(fake, stream, &response.base);
    }
}

static void pages_that_do_not_advance_are_refused(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_endless_pages, NULL);
    ran_ctl(&ran, "--socket", fake.path, "plan", "42", NULL);
    fake_stop(&fake);
    ran_expect(&ran, 1);
    assert_non_null(strstr(ran.err, "go backwards"));
    ran_free(&ran);
}

static void play_refusal(struct fake *fake) {
    uint32_t stream;
    const enum status *status = fake->context;
    fake_accept(fake);
    (void)fake_request(fake, "Delays", &ballast__v1__delays_request__descriptor, &stream);
    fake_refuse(fake, stream, *status, "because of the test");
}

static void a_refusal_gives_its_sentence_and_exit_code(void **state) {
    (void)state;
    static const struct {
        enum status status;
        int code;
    } rows[] = {{STATUS_NOT_FOUND, 4},     {STATUS_PERMISSION_DENIED, 1},
                {STATUS_UNIMPLEMENTED, 1}, {STATUS_UNAVAILABLE, 3},
                {STATUS_INTERNAL, 1},      {STATUS_DEADLINE_EXCEEDED, 5}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fake fake;
        struct ran ran = {0};
        enum status status = rows[i].status;
        fake_start(&fake, play_refusal, &status);
        ran_ctl(&ran, "delays", "--socket", fake.path, NULL);
        fake_stop(&fake);
        ran_expect(&ran, rows[i].code);
        assert_string_equal(ran.out, "");
        assert_non_null(strstr(ran.err, "because of the test"));
        ran_free(&ran);
    }
}

/* Reads the request and waits for the caller to give up. */
static void play_silence(struct fake *fake) {
    uint32_t stream;
    struct frame_header header;
    const uint8_t *data;
    fake_accept(fake);
    (void)fake_request(fake, "Status", &ballast__v1__status_request__descriptor, &stream);
    FAKE_CHECK(!fake_receive(fake, &header, &data));
}

static void no_answer_in_time_exits_5(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_silence, NULL);
    ran_ctl(&ran, "status", "--socket", fake.path, "--timeout", "50ms", NULL);
    fake_stop(&fake);
    ran_expect(&ran, 5);
    ran_free(&ran);
}

static void play_hang_up(struct fake *fake) {
    uint32_t stream;
    fake_accept(fake);
    (void)fake_request(fake, "Status", &ballast__v1__status_request__descriptor, &stream);
    fake_hang_up(fake);
}

static void a_daemon_that_goes_away_exits_3(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_hang_up, NULL);
    ran_ctl(&ran, "status", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 3);
    ran_free(&ran);
}

static void play_drain(struct fake *fake) {
    uint32_t stream;
    Ballast__V1__DrainResponse response = BALLAST__V1__DRAIN_RESPONSE__INIT;
    response.last_step = 77;
    fake_accept(fake);
    (void)fake_request(fake, "Drain", &ballast__v1__drain_request__descriptor, &stream);
    fake_respond(fake, stream, &response.base);
}

static void drain_names_the_last_step(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_drain, NULL);
    ran_ctl(&ran, "drain", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 0);
    assert_string_equal(ran.out, "draining; step 77 is the last\n");
    ran_free(&ran);
}

static void play_queues(struct fake *fake) {
    uint32_t stream;
    Ballast__V1__Document document = BALLAST__V1__DOCUMENT__INIT;
    Ballast__V1__Document *waiting[] = {&document};
    Ballast__V1__Queue full = BALLAST__V1__QUEUE__INIT;
    Ballast__V1__Queue empty = BALLAST__V1__QUEUE__INIT;
    Ballast__V1__Queue *queues[] = {&full, &empty};
    Ballast__V1__QueuesResponse response = BALLAST__V1__QUEUES_RESPONSE__INIT;
    document.document = 981;
    document.length = 65000;
    document.nominal_step = 8;
    full.name = "band 0";
    full.documents = 1;
    full.tokens = 65000;
    full.oldest_step = 8;
    full.waiting = waiting;
    full.n_waiting = 1;
    empty.name = "leftover";
    response.queues = queues;
    response.n_queues = 2;
    fake_accept(fake);
    Ballast__V1__QueuesRequest *request = fake_request(
        fake, "Queues", &ballast__v1__queues_request__descriptor, &stream);
    FAKE_CHECK(request->documents);
    fake_respond(fake, stream, &response.base);
}

static void queues_list_what_waits(void **state) {
    (void)state;
    struct fake fake;
    struct ran ran = {0};
    fake_start(&fake, play_queues, NULL);
    ran_ctl(&ran, "queues", "--documents", "--socket", fake.path, NULL);
    fake_stop(&fake);
    ran_expect(&ran, 0);
    assert_string_equal(ran.out, "NAME      FROM  TO  DOCS  TOKENS  RELEASED  OLDEST STEP\n"
                                 "band 0       0   -     1   65.0K         0            8\n"
                                 "leftover     0   -     0       0         0            -\n"
                                 "\n"
                                 "NAME    DATASET  DOCUMENT  EPOCH  OFFSET  LENGTH  FROM STEP\n"
                                 "band 0        0       981      0       0   65000          8\n");
    ran_free(&ran);
}

int main(void) {
    ran_environment_clear();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_is_the_wire_message_in_json),
        cmocka_unit_test(status_is_a_table_for_people),
        cmocka_unit_test(health_counts_the_ranks_that_are_connected),
        cmocka_unit_test(a_warming_daemon_is_not_healthy),
        cmocka_unit_test(the_pages_of_a_plan_are_one_answer),
        cmocka_unit_test(pages_that_do_not_advance_are_refused),
        cmocka_unit_test(a_refusal_gives_its_sentence_and_exit_code),
        cmocka_unit_test(no_answer_in_time_exits_5),
        cmocka_unit_test(a_daemon_that_goes_away_exits_3),
        cmocka_unit_test(drain_names_the_last_step),
        cmocka_unit_test(queues_list_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
