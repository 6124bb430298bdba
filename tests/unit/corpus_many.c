/* 1,000 datasets and few descriptors: all are read, by either reader, in one job. */
#include "corpus/tokens.h"
#include "tests/unit/corpus_files.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DATASETS    1000u
#define TOKENS      9u
#define DESCRIPTORS 64u

static char folder[64], prefixes[DATASETS][96], names[DATASETS][16];

/* Token j of dataset i. */
static uint16_t token(uint32_t i, uint32_t j) {
    return (uint16_t)(i * 31 + j);
}

static void write_datasets(struct catalog_entry *entries) {
    uint32_t length = TOKENS;
    const struct image_options image = {.dtype = 8, .documents = 1, .lengths = &length};
    for (uint32_t i = 0; i < DATASETS; i++) {
        char path[128];
        uint16_t tokens[TOKENS];
        snprintf(prefixes[i], sizeof prefixes[i], "%s/%u", folder, i);
        snprintf(names[i], sizeof names[i], "set%u", i);
        dataset_write(prefixes[i], &image);
        for (uint32_t j = 0; j < TOKENS; j++) {
            tokens[j] = token(i, j);
        }
        snprintf(path, sizeof path, "%s.bin", prefixes[i]);
        file_write(path, tokens, sizeof tokens);
        entries[i] = (struct catalog_entry){.name = names[i], .prefix = prefixes[i], .weight = 1};
    }
}

static uint32_t open_descriptors(void) {
    uint32_t count = 0;
    DIR *fds = opendir("/proc/self/fd");
    assert_non_null(fds);
    while (readdir(fds) != NULL) {
        count++;
    }
    closedir(fds);
    return count;
}

static void run(struct reader *reader, struct read_job *job) {
    struct pollfd poll_fd = {.fd = reader->event_fd, .events = POLLIN};
    uint64_t count;
    assert_int_equal(reader_submit(reader, job), 0);
    do {
        assert_int_equal(poll(&poll_fd, 1, 10000), 1);
        assert_true(read(reader->event_fd, &count, sizeof count) > 0);
    } while (reader_reap(reader) != job);
}

static void read_all_datasets(const struct catalog *catalog, enum reader_backend backend) {
    static struct document parts[DATASETS];
    static uint16_t payload[DATASETS * TOKENS];
    struct reader_options options = {.queue_depth = 16, .threads = 4, .jobs_max = 1, .rings = 2};
    struct tokens_target target = {.documents = parts, .count = DATASETS, .payload = payload};
    struct tokens_job job = {0};
    struct reader *reader = NULL;
    assert_int_equal(reader_open(backend, &options, &reader, NULL, NULL), 0);
    for (uint32_t i = 0; i < DATASETS; i++) {
        parts[i] = (struct document){
            .dataset = (i * 7 + 3) % DATASETS, .length = TOKENS, .document_length = TOKENS};
    }
    assert_int_equal(tokens_job_prepare(&job, catalog, 2, false, &target), 0);
    for (uint32_t turn = 0; turn < 3; turn++) {
        memset(payload, 0, sizeof payload);
        run(reader, &job.read);
        assert_int_equal(target.error.code, 0);
        for (uint32_t i = 0; i < DATASETS * TOKENS; i++) {
            assert_int_equal(payload[i], token(parts[i / TOKENS].dataset, i % TOKENS));
        }
        assert_true(open_descriptors() < DESCRIPTORS);
    }
    tokens_job_deinit(&job);
    reader_close(reader);
}

static void a_thousand_datasets_are_read_with_64_descriptors(void **state) {
    static struct catalog_entry entries[DATASETS];
    struct rlimit limit, before;
    struct catalog *catalog = NULL;
    struct error error = {0};
    (void)state;
    test_folder_make(folder);
    write_datasets(entries);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){.rlim_cur = DESCRIPTORS, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (catalog_open(entries, DATASETS, &catalog, &error) < 0) {
        fail_msg("%s", error.text);
    }
    read_all_datasets(catalog, READER_AUTO);
    read_all_datasets(catalog, READER_PREAD);
    catalog_close(catalog);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_datasets_are_read_with_64_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
