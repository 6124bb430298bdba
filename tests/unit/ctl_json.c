/* The writer of JSON against hand-written lines. */
#include "client/ctl/json.h"

#include "ballast.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct paper {
    struct json json;
    char *text;
    size_t bytes;
};

static void paper_open(struct paper *paper) {
    FILE *out = open_memstream(&paper->text, &paper->bytes);
    assert_non_null(out);
    json_init(&paper->json, out);
}

static void paper_expect(struct paper *paper, const char *expected) {
    assert_int_equal(fclose(paper->json.out), 0);
    assert_string_equal(paper->text, expected);
    free(paper->text);
}

static void expect_message(const void *message, const char *expected) {
    struct paper paper;
    paper_open(&paper);
    json_message(&paper.json, message);
    paper_expect(&paper, expected);
}

static void expect_text(const char *text, const char *expected) {
    struct paper paper;
    paper_open(&paper);
    json_text(&paper.json, text);
    paper_expect(&paper, expected);
}

static void json_prints_every_field_of_an_empty_message(void **state) {
    (void)state;
    Ballast__V1__Document document = BALLAST__V1__DOCUMENT__INIT;
    expect_message(&document,
                   "{\"dataset\":0,\"document\":0,\"offset\":0,\"length\":0,\"nominal_step\":0,"
                   "\"epoch\":0,\"document_length\":0}");
}

static void json_prints_64_bit_integers_exactly(void **state) {
    (void)state;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    id.step = UINT64_MAX;
    id.dp = UINT32_MAX;
    id.index = 9007199;
    expect_message(&id, "{\"step\":18446744073709551615,\"dp\":4294967295,\"index\":9007199}");
    id.step = (1ull << 53) + 1;
    expect_message(&id, "{\"step\":9007199254740993,\"dp\":4294967295,\"index\":9007199}");
}

static void json_prints_bytes_as_lowercase_hex(void **state) {
    (void)state;
    uint8_t digest[] = {0x00, 0x0f, 0xab, 0xff};
    Ballast__V1__EndOfStep end = BALLAST__V1__END_OF_STEP__INIT;
    end.step = 7;
    expect_message(&end, "{\"step\":7,\"plan_digest\":\"\",\"micro_batches\":0}");
    end.plan_digest.data = digest;
    end.plan_digest.len = sizeof digest;
    expect_message(&end, "{\"step\":7,\"plan_digest\":\"000fabff\",\"micro_batches\":0}");
}

static void json_prints_enums_by_name_and_unknown_ones_as_numbers(void **state) {
    (void)state;
    Ballast__V1__Candidate candidate = BALLAST__V1__CANDIDATE__INIT;
    expect_message(&candidate,
                   "{\"layout\":\"LAYOUT_UNSPECIFIED\",\"slowest_ns\":0,\"fragments\":0}");
    candidate.layout = BALLAST__V1__LAYOUT__LAYOUT_PER_DOCUMENT;
    expect_message(&candidate,
                   "{\"layout\":\"LAYOUT_PER_DOCUMENT\",\"slowest_ns\":0,\"fragments\":0}");
    int unknown = 77;
    memcpy(&candidate.layout, &unknown, sizeof unknown);
    expect_message(&candidate, "{\"layout\":77,\"slowest_ns\":0,\"fragments\":0}");
}

static void json_prints_repeated_messages_and_enums(void **state) {
    (void)state;
    Ballast__V1__Rank rank = BALLAST__V1__RANK__INIT;
    Ballast__V1__HelloRequest hello = BALLAST__V1__HELLO_REQUEST__INIT;
    Ballast__V1__Part parts[] = {BALLAST__V1__PART__PART_PLAN, BALLAST__V1__PART__PART_LABELS};
    rank.cp = 3;
    hello.rank = &rank;
    hello.parts = parts;
    hello.n_parts = 2;
    hello.client = "trainer/1";
    expect_message(&hello, "{\"protocol_min\":0,\"protocol_max\":0,"
                           "\"rank\":{\"dp\":0,\"pp\":0,\"cp\":3,\"tp\":0},"
                           "\"parts\":[\"PART_PLAN\",\"PART_LABELS\"],\"job_digest\":\"\","
                           "\"client\":\"trainer/1\",\"committed_step\":0,\"generation\":0}");
}

static void json_prints_an_absent_message_as_null(void **state) {
    (void)state;
    Ballast__V1__PlanResponse response = BALLAST__V1__PLAN_RESPONSE__INIT;
    expect_message(&response, "{\"plan\":null,\"next\":0}");
    expect_message(NULL, "null");
}

static void json_prints_the_members_of_a_oneof_that_are_not_set_as_null(void **state) {
    (void)state;
    Ballast__V1__StreamResponse response = BALLAST__V1__STREAM_RESPONSE__INIT;
    Ballast__V1__EndOfData end = BALLAST__V1__END_OF_DATA__INIT;
    expect_message(&response, "{\"batch\":null,\"end_of_step\":null,\"end_of_data\":null}");
    end.step = 9;
    response.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA;
    response.end_of_data = &end;
    expect_message(&response, "{\"batch\":null,\"end_of_step\":null,\"end_of_data\":{\"step\":9}}");
}

static void json_prints_repeated_numbers_and_booleans(void **state) {
    (void)state;
    uint64_t counts[] = {1, 0, UINT64_MAX};
    Ballast__V1__DatasetDelay delay = BALLAST__V1__DATASET_DELAY__INIT;
    Ballast__V1__QueuesRequest request = BALLAST__V1__QUEUES_REQUEST__INIT;
    delay.name = "books";
    delay.histogram = counts;
    delay.n_histogram = 3;
    expect_message(&delay, "{\"name\":\"books\",\"mean_milli\":0,\"p50\":0,\"p99\":0,\"max\":0,"
                           "\"histogram\":[1,0,18446744073709551615],"
                           "\"documents\":0,\"tokens\":0,\"share_ppm\":0}");
    expect_message(&request, "{\"documents\":false}");
    request.documents = 1;
    expect_message(&request, "{\"documents\":true}");
}

static void json_prints_an_empty_message_as_an_object(void **state) {
    (void)state;
    Ballast__V1__PingResponse response = BALLAST__V1__PING_RESPONSE__INIT;
    expect_message(&response, "{}");
}

static void json_escapes_what_it_must(void **state) {
    (void)state;
    expect_text("plain", "\"plain\"");
    expect_text(NULL, "\"\"");
    expect_text("a\"b\\c\n\t\x01\x7f", "\"a\\\"b\\\\c\\u000a\\u0009\\u0001\\u007f\"");
}

static void json_keeps_utf8_and_replaces_what_is_none(void **state) {
    (void)state;
    expect_text("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\xa2",
                "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\xa2\"");
    expect_text("\xff", "\"\\ufffd\"");
    expect_text("\xc3", "\"\\ufffd\"");                       /* cut short */
    expect_text("\xc0\xaf", "\"\\ufffd\\ufffd\"");            /* overlong */
    expect_text("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""); /* surrogate */
    expect_text("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    expect_text("\xe2\x82x", "\"\\ufffd\\ufffdx\"");
}

static void json_separates_values_with_commas(void **state) {
    (void)state;
    struct paper paper;
    paper_open(&paper);
    json_object_begin(&paper.json);
    json_member_u64(&paper.json, "a", 1);
    json_key(&paper.json, "b");
    json_array_begin(&paper.json);
    json_i64(&paper.json, -1);
    json_absent(&paper.json);
    json_object_begin(&paper.json);
    json_object_end(&paper.json);
    json_bool(&paper.json, true);
    json_array_end(&paper.json);
    json_member_string(&paper.json, "c", "d");
    json_object_end(&paper.json);
    json_line(&paper.json);
    json_u64(&paper.json, 2);
    json_line(&paper.json);
    paper_expect(&paper, "{\"a\":1,\"b\":[-1,null,{},true],\"c\":\"d\"}\n2\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_prints_every_field_of_an_empty_message),
        cmocka_unit_test(json_prints_64_bit_integers_exactly),
        cmocka_unit_test(json_prints_bytes_as_lowercase_hex),
        cmocka_unit_test(json_prints_enums_by_name_and_unknown_ones_as_numbers),
        cmocka_unit_test(json_prints_repeated_messages_and_enums),
        cmocka_unit_test(json_prints_an_absent_message_as_null),
        cmocka_unit_test(json_prints_the_members_of_a_oneof_that_are_not_set_as_null),
        cmocka_unit_test(json_prints_repeated_numbers_and_booleans),
        cmocka_unit_test(json_prints_an_empty_message_as_an_object),
        cmocka_unit_test(json_escapes_what_it_must),
        cmocka_unit_test(json_keeps_utf8_and_replaces_what_is_none),
        cmocka_unit_test(json_separates_values_with_commas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
