/* 1,000 datasets and few descriptors: all are read, by either reader, in one job. And as many whose
 * indexes are too large for memory. */
#include "corpus/files.h"
#include "corpus/tokens.h"
#include "corpus/windows.h"
#include "corpus/megatron.h"
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
#define LARGE       12u /* datasets, more than FEW descriptors leave for files */
#define FEW         10u /* beside those that are open already */
#define CHUNKS      (WINDOWS_MAX + 64u)

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
        assert_int_equal(poll(&poll_fd, 1, 60000), 1);
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

static uint32_t large_length(uint64_t i) {
    return (uint32_t)(i % 7 == 0);
}

/* Megatron's index; its tokens are a hole. */
static void write_large_files(const char *prefix) {
    const uint64_t documents = (uint64_t)CHUNKS * WINDOW_DOCUMENTS;
    uint8_t header[MEGATRON_HEADER_BYTES];
    uint64_t offset = 0;
    char path[128];
    (void)snprintf(path, sizeof path, "%s.idx", prefix);
    FILE *index = fopen(path, "w");
    assert_non_null(index);
    megatron_header_encode(header, MEGATRON_U16, documents, documents + 1);
    (void)fwrite(header, sizeof header, 1, index);
    for (uint64_t i = 0; i < documents; i++) {
        uint32_t length = large_length(i);
        (void)fwrite(&length, sizeof length, 1, index);
    }
    for (uint64_t i = 0; i < documents; i++) {
        (void)fwrite(&offset, sizeof offset, 1, index);
        offset += 2 * large_length(i);
    }
    for (uint64_t i = 0; i <= documents; i++) {
        (void)fwrite(&i, sizeof i, 1, index);
    }
    assert_int_equal(fclose(index), 0);
    (void)snprintf(path, sizeof path, "%s.bin", prefix);
    file_write(path, "", 0);
    assert_int_equal(truncate(path, (off_t)offset), 0);
}

/* One dataset under many names. */
static void write_large(struct catalog_entry *entries) {
    static const char *const ends[] = {"idx", "bin"};
    char first[128], other[128];
    for (uint32_t i = 0; i < LARGE; i++) {
        (void)snprintf(prefixes[i], sizeof prefixes[i], "%s/large%u", folder, i);
        (void)snprintf(names[i], sizeof names[i], "set%u", i);
        entries[i] = (struct catalog_entry){.name = names[i], .prefix = prefixes[i], .weight = 1};
    }
    write_large_files(prefixes[0]);
    for (uint32_t i = 2; i < 2 * LARGE; i++) {
        (void)snprintf(first, sizeof first, "%s.%s", prefixes[0], ends[i % 2]);
        (void)snprintf(other, sizeof other, "%s.%s", prefixes[i / 2], ends[i % 2]);
        assert_int_equal(link(first, other), 0);
    }
}

static void large_indexes_share_the_few_descriptors_that_there_are(void **state) {
    static struct catalog_entry entries[LARGE];
    struct rlimit limit, before;
    struct catalog *catalog = NULL;
    struct error error = {0};
    (void)state;
    test_folder_make(folder);
    write_large(entries);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){.rlim_cur = open_descriptors() + FEW, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (catalog_open(entries, LARGE, &catalog, &error) < 0) {
        fail_msg("%s", error.text);
    }
    for (uint32_t turn = 0; turn < 2 * LARGE; turn++) {
        const struct dataset *dataset = catalog_dataset(catalog, turn * 5 % LARGE);
        for (uint64_t i = turn; i < dataset_documents(dataset); i += 99 * WINDOW_DOCUMENTS + 1) {
            assert_int_equal(dataset_length(dataset, i), large_length(i));
        }
        assert_int_equal(dataset_failed(dataset, &error), 0);
    }
    assert_true(catalog_descriptors_wanted(catalog) <= files_open_max());
    catalog_close(catalog);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_datasets_are_read_with_64_descriptors),
        cmocka_unit_test(large_indexes_share_the_few_descriptors_that_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
