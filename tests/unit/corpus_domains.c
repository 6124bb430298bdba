/* Domains: what is said of datasets and documents, checked, and counted as plans deliver them. */
#include "corpus/domains.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { DOCUMENTS = 100 };

static char folder[64];
static char tags_path[96];

static struct catalog *opened(uint32_t count) {
    static char prefix[96], names[DOMAINS_MAX + 1][8];
    static struct catalog_entry entries[DOMAINS_MAX + 1];
    struct catalog *catalog = NULL;
    struct error error = {0};
    (void)snprintf(prefix, sizeof prefix, "%s/d", folder);
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(names[i], sizeof names[i], "d%u", i);
        entries[i] = (struct catalog_entry){names[i], prefix, 1};
    }
    if (catalog_open(entries, count, &catalog, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return catalog;
}

static uint8_t tag_of(uint64_t document) {
    return (uint8_t)(document * document % 3);
}

static void write_tags(void) {
    uint8_t tags[DOCUMENTS];
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        tags[i] = tag_of(i);
    }
    file_write(tags_path, tags, sizeof tags);
}

static int set_up(void **state) {
    uint32_t lengths[DOCUMENTS];
    char prefix[96];
    (void)state;
    test_folder_make(folder);
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = 1 + i % 7;
    }
    const struct image_options options = {
        .dtype = MEGATRON_U16, .documents = DOCUMENTS, .lengths = lengths};
    (void)snprintf(prefix, sizeof prefix, "%s/d", folder);
    (void)snprintf(tags_path, sizeof tags_path, "%s/d.u1", folder);
    dataset_write(prefix, &options);
    write_tags();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

static void expect_refused(const struct domain_entry *entry, int code, const char *a,
                           const char *b) {
    struct catalog *catalog = opened(1);
    struct error error = {0};
    assert_int_equal(catalog_use_domains(catalog, entry, &error), code);
    if (strstr(error.text, a) == NULL || strstr(error.text, b) == NULL) {
        fail_msg("'%s' lacks '%s' or '%s'", error.text, a, b);
    }
    assert_null(catalog_domains(catalog));
    catalog_close(catalog);
}

static void names_are_a_list_of_different_words(void **state) {
    static const struct {
        const char *names;
        int count;
    } rows[] = {{"web", 1},         {"web,code", 2},  {" web , co-de.1\t", 2}, {"", -EINVAL},
                {",", -EINVAL},     {"a,", -EINVAL},  {"a,,b", -EINVAL},       {"a b", -EINVAL},
                {"a,b,a", -EINVAL}, {"a/b", -EINVAL}, {" ", -EINVAL}};
    char many[4 * DOMAINS_MAX + 8] = "";
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(domain_names_count(rows[i].names), rows[i].count);
    }
    assert_int_equal(domain_names_count("a234567890123456789012345678901234567890"), 1);
    assert_int_equal(domain_names_count("a2345678901234567890123456789012345678901"), -EINVAL);
    for (uint32_t i = 0; i < DOMAINS_MAX; i++) {
        (void)snprintf(many + strlen(many), 5, "%s%u", i == 0 ? "" : ",", i);
    }
    assert_int_equal(domain_names_count(many), DOMAINS_MAX);
    strcat(many, ",x");
    assert_int_equal(domain_names_count(many), -EINVAL);
}

static void nobody_says_anything_then_there_are_none(void **state) {
    const struct domain_entry nothing[2] = {{0}};
    struct catalog *catalog = opened(2);
    (void)state;
    assert_int_equal(catalog_use_domains(catalog, nothing, NULL), 0);
    assert_null(catalog_domains(catalog));
    catalog_close(catalog);
}

static void a_dataset_is_of_the_domain_that_is_named_or_of_its_own(void **state) {
    const struct domain_entry entries[3] = {{.domain = "web"}, {0}, {.domain = "web"}};
    struct catalog *catalog = opened(3);
    (void)state;
    assert_int_equal(catalog_use_domains(catalog, entries, NULL), 0);
    const struct domains *domains = catalog_domains(catalog);
    assert_int_equal(domains_count(domains), 2);
    assert_string_equal(domains_name(domains, 0), "web");
    assert_string_equal(domains_name(domains, 1), "d1");
    assert_int_equal(domains_of(domains, 2, 5, NULL), 0);
    assert_int_equal(domains_of(domains, 1, 5, NULL), 1);
    assert_false(domains_filed(domains));
    catalog_close(catalog);
}

static void more_domains_than_are_told_apart_are_refused(void **state) {
    struct domain_entry entries[DOMAINS_MAX + 1] = {{.domain = "one"}};
    struct error error = {0};
    (void)state;
    struct catalog *catalog = opened(DOMAINS_MAX);
    assert_int_equal(catalog_use_domains(catalog, entries, &error), 0);
    assert_int_equal(domains_count(catalog_domains(catalog)), DOMAINS_MAX);
    catalog_close(catalog);
    catalog = opened(DOMAINS_MAX + 1);
    assert_int_equal(catalog_use_domains(catalog, entries, &error), -EINVAL);
    assert_non_null(strstr(error.text, "dataset 'd64'"));
    assert_non_null(strstr(error.text, "give some datasets the same"));
    catalog_close(catalog);
}

static void a_file_of_domains_is_checked_byte_for_byte(void **state) {
    const struct domain_entry entry = {.file = tags_path, .names = "web,code,books"};
    const struct domain_entry fewer = {.file = tags_path, .names = "web"};
    const struct domain_entry none = {.file = tags_path};
    uint8_t tags[DOCUMENTS + 1] = {0};
    (void)state;
    expect_refused(&none, -EINVAL, "dataset 'd0'", "needs domain_names");
    expect_refused(&fewer, -EBADMSG, "document 1 at offset 1 has domain 1", "correct the file");
    file_write(tags_path, tags, DOCUMENTS - 1);
    expect_refused(&entry, -EBADMSG, "d.u1: 99 bytes", "has 100 documents; write one byte");
    file_write(tags_path, tags, DOCUMENTS + 1);
    expect_refused(&entry, -EBADMSG, "d.u1: 101 bytes", "one byte for each document");
    memcpy(tags, "\x93NUMPY", 6);
    file_write(tags_path, tags, DOCUMENTS + 1);
    expect_refused(&entry, -EBADMSG, "a numpy array with its header", "tofile(PATH)");
    memset(tags, 2, sizeof tags);
    tags[77] = 3;
    file_write(tags_path, tags, DOCUMENTS);
    expect_refused(&entry, -EBADMSG, "document 77 at offset 77 has domain 3", "0 to 2");
    assert_int_equal(unlink(tags_path), 0);
    expect_refused(&entry, -ENOENT, "domains of 'd0': ", "d.u1");
    write_tags();
}

/* A plan of `count` parts from document `from` on, every fourth of them delayed. */
static struct step_plan *make_plan(uint64_t step, uint64_t from, uint32_t count) {
    struct step_plan *plan = step_plan_create(1, 1, count, 1);
    plan->step = step;
    for (uint32_t i = 0; i < count; i++) {
        plan->documents[i] = (struct document){.document = from + i,
                                               .dataset = i % 2,
                                               .offset = i % 5 == 0 ? 3 : 0,
                                               .length = 10 + i,
                                               .nominal_step = step + 2 - i % 4};
    }
    return plan;
}

static void a_tally_counts_what_plans_deliver(void **state) {
    /* d0 by its file, d1 by a name that the file has too */
    const struct domain_entry entries[2] = {{.file = tags_path, .names = "web,code,books"},
                                            {.domain = "code"}};
    struct catalog *catalog = opened(2);
    struct delay_counts expected[3] = {{0}};
    struct plan_state *begun = plan_state_create(2, 1);
    (void)state;
    assert_int_equal(catalog_use_domains(catalog, entries, NULL), 0);
    const struct domains *domains = catalog_domains(catalog);
    struct domain_tally *tally = domain_tally_create(domains);
    begun->step = 40;
    begun->delays[0].delivered_tokens = 1000; /* of domains that nobody knows */
    domain_tally_begin(tally, domains, begun);
    assert_int_equal(tally->since, 40);
    for (uint64_t step = 40; step < 42; step++) {
        struct step_plan *plan = make_plan(step, 20 * (step - 40), 50);
        for (uint32_t i = 0; i < 50; i++) {
            const struct document *document = &plan->documents[i];
            uint32_t domain = document->dataset == 1 ? 1 : tag_of(document->document);
            uint64_t delay = i % 4 == 3 ? 1 : 0;
            expected[domain].delivered_tokens += document->length;
            expected[domain].delivered_documents += document->offset == 0;
            expected[domain].delay_token_steps += document->length * delay;
            expected[domain].tokens_by_delay[delay] += document->length;
            expected[domain].delay_max |= delay;
        }
        domain_tally_add(tally, domains, plan);
        step_plan_destroy(plan);
    }
    assert_int_equal(tally->step, 42);
    assert_memory_equal(tally->counts, expected, sizeof expected);
    struct domain_tally *copy = domain_tally_copy(tally);
    assert_memory_equal(copy->counts, expected, sizeof expected);
    free(copy);
    free(tally);
    plan_state_destroy(begun);
    catalog_close(catalog);
}

static void whole_datasets_follow_from_any_state_since_the_start(void **state) {
    const struct domain_entry entries[3] = {{.domain = "web"}, {0}, {.domain = "web"}};
    struct catalog *catalog = opened(3);
    struct plan_state *begun = plan_state_create(3, 1);
    (void)state;
    assert_int_equal(catalog_use_domains(catalog, entries, NULL), 0);
    struct domain_tally *tally = domain_tally_create(catalog_domains(catalog));
    begun->step = 7;
    for (uint32_t i = 0; i < 3; i++) {
        begun->delays[i].delivered_tokens = UINT64_C(100) << i;
        begun->delays[i].delivered_documents = 1u << i;
        begun->delays[i].delay_token_steps = UINT64_C(10) << i;
        begun->delays[i].delay_max = i;
        begun->delays[i].tokens_by_delay[i] = UINT64_C(100) << i;
    }
    domain_tally_begin(tally, catalog_domains(catalog), begun);
    assert_int_equal(tally->since, 0);
    assert_int_equal(tally->step, 7);
    assert_int_equal(tally->counts[0].delivered_tokens, 500);
    assert_int_equal(tally->counts[0].delivered_documents, 5);
    assert_int_equal(tally->counts[0].delay_token_steps, 50);
    assert_int_equal(tally->counts[0].delay_max, 2);
    assert_int_equal(tally->counts[0].tokens_by_delay[2], 400);
    assert_int_equal(tally->counts[1].delivered_tokens, 200);
    free(tally);
    plan_state_destroy(begun);
    catalog_close(catalog);
}

static void a_file_that_changes_ends_the_count_with_the_step_before(void **state) {
    const struct domain_entry entry = {.file = tags_path, .names = "web,code,books"};
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct catalog *catalog = opened(1);
        struct plan_state *begun = plan_state_create(1, 1);
        struct step_plan *plan = step_plan_create(1, 1, DOCUMENTS, 1);
        uint8_t other[DOCUMENTS] = {0};
        write_tags();
        assert_int_equal(catalog_use_domains(catalog, &entry, NULL), 0);
        const struct domains *domains = catalog_domains(catalog);
        struct domain_tally *tally = domain_tally_create(domains);
        domain_tally_begin(tally, domains, begun);
        for (uint32_t i = 0; i < DOCUMENTS; i++) {
            plan->documents[i] = (struct document){.document = i, .length = 1};
        }
        domain_tally_add(tally, domains, plan);
        uint64_t tokens = tally->counts[0].delivered_tokens;
        plan->step = 1;
        if (kind == 0) {
            assert_int_equal(truncate(tags_path, 60), 0);
        } else if (kind == 1) {
            assert_int_equal(unlink(tags_path), 0);
        } else {
            (void)usleep(20000); /* for another time of change */
            file_write(tags_path, other, sizeof other);
        }
        domain_tally_add(tally, domains, plan);
        assert_true(tally->error.code < 0);
        assert_non_null(strstr(tally->error.text, "d.u1: "));
        assert_non_null(strstr(tally->error.text, "restart"));
        assert_int_equal(tally->step, 1);
        assert_int_equal(tally->counts[0].delivered_tokens, tokens);
        plan->step = 2;
        domain_tally_add(tally, domains, plan); /* it does not begin again by itself */
        assert_int_equal(tally->step, 1);
        domain_tally_begin(tally, domains, begun); /* at another state it does */
        assert_int_equal(tally->error.code, 0);
        free(tally);
        step_plan_destroy(plan);
        plan_state_destroy(begun);
        catalog_close(catalog);
    }
    write_tags();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_a_list_of_different_words),
        cmocka_unit_test(nobody_says_anything_then_there_are_none),
        cmocka_unit_test(a_dataset_is_of_the_domain_that_is_named_or_of_its_own),
        cmocka_unit_test(more_domains_than_are_told_apart_are_refused),
        cmocka_unit_test(a_file_of_domains_is_checked_byte_for_byte),
        cmocka_unit_test(a_tally_counts_what_plans_deliver),
        cmocka_unit_test(whole_datasets_follow_from_any_state_since_the_start),
        cmocka_unit_test(a_file_that_changes_ends_the_count_with_the_step_before),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
