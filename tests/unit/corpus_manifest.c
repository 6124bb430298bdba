/* Damage that leaves sizes and times as they were: with a manifest no wrong token is given out. */
#include "tests/unit/tokens_world.h"
#include "corpus/files.h"
#include "corpus/manifest.h"
#include "corpus/megatron.h"
#include "corpus/verify.h"
#include "corpus/volumes.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOCUMENTS    97u
#define TOKENS_MAX   4000u
#define TARGETS      3u
#define HEADER_BYTES 34u

struct damage {
    struct tokens_world world;
    char prefix[96];
    char path[2][112]; /* .bin, .idx */
    uint64_t bytes[2];
    struct timespec times[2][2];
    uint64_t random;
};

static uint64_t random_next(struct damage *damage) {
    uint64_t z = damage->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* What `ballastctl verify --write-manifest` does. */
static void write_manifest(const struct damage *damage) {
    struct dataset *dataset = NULL;
    struct manifest *fresh = NULL;
    struct verify_result result;
    uint8_t fingerprint[16];
    char path[128];
    assert_int_equal(dataset_open("set0", damage->prefix, &dataset, NULL), 0);
    assert_int_equal(dataset_fingerprint(dataset, fingerprint, NULL), 0);
    assert_int_equal(manifest_create(dataset_bin_bytes(dataset), fingerprint, &fresh, NULL), 0);
    assert_int_equal(verify_dataset(dataset, 0, fresh, NULL, NULL, &result, NULL), 0);
    snprintf(path, sizeof path, "%s.manifest", damage->prefix);
    assert_int_equal(manifest_save(fresh, path, NULL), 0);
    manifest_destroy(fresh);
    dataset_close(dataset);
}

static int setup(void **state) {
    struct damage *damage = calloc(1, sizeof *damage);
    uint32_t lengths[DOCUMENTS];
    assert_non_null(damage);
    damage->random = 5;
    tokens_world_open(&damage->world);
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = 1 + (uint32_t)(random_next(damage) % TOKENS_MAX);
    }
    struct token_set *set = tokens_world_add(&damage->world, MEGATRON_U16, lengths, DOCUMENTS,
                                             NULL);
    for (uint64_t i = 0; i < set->tokens; i++) {
        set->values[i] = random_next(damage) & 0xffff;
    }
    tokens_world_write(&damage->world);
    tokens_world_path(&damage->world, 0, damage->prefix);
    for (uint32_t f = 0; f < 2; f++) {
        struct stat info;
        snprintf(damage->path[f], sizeof damage->path[f], "%s.%s", damage->prefix,
                 f == 0 ? "bin" : "idx");
        assert_int_equal(stat(damage->path[f], &info), 0);
        damage->bytes[f] = (uint64_t)info.st_size;
        damage->times[f][0] = info.st_atim;
        damage->times[f][1] = info.st_mtim;
    }
    write_manifest(damage);
    *state = damage;
    return 0;
}

static int teardown(void **state) {
    struct damage *damage = *state;
    tokens_world_close(&damage->world);
    free(damage);
    return 0;
}

/* Turns bits of one byte over, as a bad cable would: nobody sees it in the file's times. */
static void flip(const struct damage *damage, uint32_t f, uint64_t at, uint8_t bits) {
    uint8_t byte;
    int fd = open(damage->path[f], O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
    assert_int_equal(utimensat(AT_FDCWD, damage->path[f], damage->times[f], 0), 0);
}

/* The documents, dealt out; a few are wanted by nobody. */
struct dealt {
    struct document parts[TARGETS][DOCUMENTS];
    uint16_t payloads[TARGETS][DOCUMENTS * TOKENS_MAX], expected[DOCUMENTS * TOKENS_MAX];
    struct tokens_target targets[TARGETS];
};

static void deal(struct damage *damage, struct dealt *dealt) {
    for (uint32_t t = 0; t < TARGETS; t++) {
        dealt->targets[t] = (struct tokens_target){.documents = dealt->parts[t],
                                                   .payload = dealt->payloads[t],
                                                   .next = t + 1 < TARGETS ? &dealt->targets[t + 1]
                                                                           : NULL};
    }
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        uint32_t t = (uint32_t)(random_next(damage) % (TARGETS + 2));
        if (t < TARGETS || i < TARGETS) {
            t = t < TARGETS ? t : i;
            dealt->parts[t][dealt->targets[t].count++] = tokens_world_part(
                &damage->world, 0, i, 0, damage->world.sets[0].lengths[i]);
        }
    }
    for (uint32_t t = 0; t < TARGETS; t++) {
        if (dealt->targets[t].count == 0) {
            dealt->parts[t][dealt->targets[t].count++] = tokens_world_part(
                &damage->world, 0, t, 0, damage->world.sets[0].lengths[t]);
        }
    }
}

/* How many targets were refused; those that were not are right. */
static uint32_t read_dealt(struct damage *damage, struct tokens_job *job, struct dealt *dealt,
                           uint32_t reader, uint32_t *wrong) {
    uint32_t refused = 0;
    assert_int_equal(
        tokens_job_prepare(job, damage->world.catalog, 2, random_next(damage) % 2, dealt->targets),
        0);
    tokens_run_read(damage->world.readers[reader], job);
    for (uint32_t t = 0; t < TARGETS; t++) {
        struct tokens_target *target = &dealt->targets[t];
        tokens_reference(&damage->world, target->documents, target->count, 2, dealt->expected);
        if (target->error.code < 0) {
            assert_int_equal(target->error.code, -EBADMSG);
            assert_non_null(strstr(target->error.text, "dataset 'set0': "));
            assert_non_null(strstr(target->error.text, "manifest"));
            refused++;
        } else if (memcmp(target->payload, dealt->expected,
                          tokens_payload_bytes(target->documents, target->count, 2)) != 0) {
            (*wrong)++;
        }
    }
    return refused;
}

static uint32_t flips(void) {
    return getenv("BALLAST_TEST_FULL") != NULL ? 10000 : 400;
}

enum checks { CHECKS_NONE, CHECKS_FIRST, CHECKS_ALWAYS };

static void use_manifest(struct damage *damage) {
    assert_int_equal(catalog_use_manifests(damage->world.catalog, MANIFESTS_REQUIRED, NULL), 1);
}

/* So that nothing was read yet. False: refused at once, for what the fingerprint covers of the
 * tokens is not as it was. */
static bool open_anew(struct damage *damage) {
    tokens_world_reopen(&damage->world);
    int found = catalog_use_manifests(damage->world.catalog, MANIFESTS_REQUIRED, NULL);
    assert_true(found == 1 || found == -EBADMSG);
    return found == 1;
}

static void read_damaged(struct damage *damage, enum checks checks, uint32_t *refused,
                         uint32_t *wrong) {
    struct dealt *dealt = calloc(1, sizeof *dealt);
    struct tokens_job job = {0};
    assert_non_null(dealt);
    if (checks != CHECKS_NONE) {
        use_manifest(damage);
    }
    if (checks == CHECKS_ALWAYS) {
        catalog_recheck(damage->world.catalog);
    }
    deal(damage, dealt);
    assert_int_equal(read_dealt(damage, &job, dealt, 0, wrong), 0);
    assert_int_equal(*wrong, 0);
    for (uint32_t i = 0; i < flips(); i++) {
        uint64_t at = random_next(damage) % damage->bytes[0];
        uint8_t bits = (uint8_t)(1u << random_next(damage) % 8);
        flip(damage, 0, at, bits);
        bool opened = checks != CHECKS_FIRST || open_anew(damage);
        *refused += !opened || read_dealt(damage, &job, dealt, i % 2, wrong) > 0;
        flip(damage, 0, at, bits);
    }
    tokens_job_deinit(&job);
    free(dealt);
}

static void flips_are_never_given_out(struct damage *damage, enum checks checks) {
    uint32_t refused = 0, wrong = 0;
    read_damaged(damage, checks, &refused, &wrong);
    print_message("%u flips, %u refused, %u wrong payloads\n", flips(), refused, wrong);
    assert_int_equal(wrong, 0);
    assert_true(refused >= flips() / 2);
}

static void a_bit_flipped_before_it_is_read_first_is_never_given_out(void **state) {
    flips_are_never_given_out(*state, CHECKS_FIRST);
}

static void checked_each_time_a_flipped_bit_is_never_given_out(void **state) {
    flips_are_never_given_out(*state, CHECKS_ALWAYS);
}

/* Read by a job that wants what was read before: how many extents are hashed. */
static uint32_t checks_of_reading_again(struct damage *damage, bool recheck) {
    struct dealt *dealt = calloc(1, sizeof *dealt);
    struct tokens_job job = {0};
    uint32_t wrong = 0, checks = 0;
    assert_non_null(dealt);
    assert_true(open_anew(damage));
    if (recheck) {
        catalog_recheck(damage->world.catalog);
    }
    deal(damage, dealt);
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(read_dealt(damage, &job, dealt, turn, &wrong), 0);
    }
    assert_int_equal(wrong, 0);
    for (uint32_t e = 0; e < job.read.extent_count; e++) {
        checks += job.read.extents[e].check != NULL;
    }
    tokens_job_deinit(&job);
    free(dealt);
    return checks;
}

static void what_was_found_whole_is_not_hashed_again_unless_told(void **state) {
    assert_int_equal(checks_of_reading_again(*state, false), 0);
    assert_true(checks_of_reading_again(*state, true) > 0);
}

/* What the tests above are worth: without a manifest nothing tells. */
static void without_a_manifest_flips_are_given_out(void **state) {
    uint32_t refused = 0, wrong = 0;
    read_damaged(*state, CHECKS_NONE, &refused, &wrong);
    assert_int_equal(refused, 0);
    assert_true(wrong > flips() / 4);
}

/* Opened with its manifest, or not at all: then every length and offset is what it was. */
static bool opens_otherwise(const struct damage *damage) {
    struct dataset *dataset = NULL;
    struct error error = {0};
    bool other = false;
    if (dataset_open("set0", damage->prefix, &dataset, &error) == 0 &&
        dataset_use_manifest(dataset, &error) == 0) {
        const struct dataset *first = catalog_dataset(damage->world.catalog, 0);
        other = dataset_documents(dataset) != DOCUMENTS ||
                dataset_width(dataset) != dataset_width(first);
        for (uint64_t i = 0; !other && i < DOCUMENTS; i++) {
            other = dataset_length(dataset, i) != dataset_length(first, i) ||
                    dataset_offset(dataset, i) != dataset_offset(first, i);
        }
    } else {
        assert_true(error.code < 0 && error.text[0] != '\0');
    }
    dataset_close(dataset);
    return other;
}

static void every_byte_of_the_index_header_may_be_any_other(void **state) {
    struct damage *damage = *state;
    for (uint32_t at = 0; at < HEADER_BYTES; at++) {
        for (uint32_t bits = 1; bits < 256; bits += getenv("BALLAST_TEST_FULL") != NULL ? 1 : 5) {
            flip(damage, 1, at, (uint8_t)bits);
            assert_false(opens_otherwise(damage));
            flip(damage, 1, at, (uint8_t)bits);
        }
    }
}

static void a_flipped_bit_of_the_index_changes_no_document(void **state) {
    struct damage *damage = *state;
    for (uint32_t i = 0; i < flips(); i++) {
        uint64_t at = random_next(damage) % damage->bytes[1];
        uint8_t bits = (uint8_t)(1u << random_next(damage) % 8);
        flip(damage, 1, at, bits);
        assert_false(opens_otherwise(damage));
        flip(damage, 1, at, bits);
    }
    assert_false(opens_otherwise(damage));
}

static void another_datasets_manifest_is_refused_and_a_damaged_one_too(void **state) {
    struct damage *damage = *state;
    struct dataset *dataset = NULL;
    struct error error = {0};
    char path[112];
    snprintf(path, sizeof path, "%s.manifest", damage->prefix);
    assert_int_equal(dataset_open("set0", damage->prefix, &dataset, NULL), 0);
    uint8_t other[16] = {1};
    struct manifest *manifest = NULL;
    assert_int_equal(manifest_open(path, damage->bytes[0], other, &manifest, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "not the one that this manifest was made of"));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (uint64_t at = 0; at < (uint64_t)info.st_size; at++) {
        uint8_t byte;
        int fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        assert_int_equal(dataset_use_manifest(dataset, &error), -EBADMSG);
        assert_non_null(strstr(error.text, "--write-manifest"));
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        close(fd);
    }
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_int_equal(dataset_use_manifest(dataset, &error), -EBADMSG);
    unlink(path);
    assert_int_equal(dataset_use_manifest(dataset, &error), -ENOENT);
    dataset_close(dataset);
}

static void reading_past_the_page_cache_brings_the_same_bytes(void **state) {
    struct damage *damage = *state;
    struct dealt *dealt = calloc(1, sizeof *dealt);
    struct tokens_job job = {0};
    struct error why;
    uint32_t wrong = 0;
    assert_non_null(dealt);
    if (catalog_read_direct(damage->world.catalog, CATALOG_DIRECT, false, &why) == 0) {
        print_message("no O_DIRECT here: %s\n", why.text);
        free(dealt);
        skip();
    }
    for (uint32_t turn = 0; turn < 12; turn++) {
        if (turn == 6) {
            assert_int_equal(catalog_use_manifests(damage->world.catalog, MANIFESTS_AUTO, NULL), 1);
        }
        deal(damage, dealt);
        assert_int_equal(read_dealt(damage, &job, dealt, turn % 2, &wrong), 0);
        assert_int_equal(wrong, 0);
        memset(dealt, 0, sizeof *dealt);
    }
    assert_int_equal(truncate(damage->path[0], (off_t)damage->bytes[0] - 1), 0);
    struct tokens_target target;
    struct document last = tokens_world_part(&damage->world, 0, DOCUMENTS - 1, 0,
                                             damage->world.sets[0].lengths[DOCUMENTS - 1]);
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(tokens_prepare_one(&job, &damage->world, &last, 1, 2, false,
                                            dealt->payloads[0], &target),
                         0);
        tokens_run_read(damage->world.readers[turn], &job);
        assert_int_equal(target.error.code, -ENODATA);
    }
    tokens_job_deinit(&job);
    free(dealt);
}

/* Of the first half of .bin, or of all. */
static void drop_from_cache(const struct damage *damage, off_t bytes) {
    int fd = open(damage->path[0], O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, bytes, POSIX_FADV_DONTNEED), 0);
    assert_int_equal(close(fd), 0);
}

static void bring_into_cache(const struct damage *damage) {
    char *bytes = malloc(damage->bytes[0]);
    int fd = open(damage->path[0], O_RDONLY);
    assert_true(bytes != NULL && fd >= 0);
    assert_int_equal(read(fd, bytes, damage->bytes[0]), damage->bytes[0]);
    assert_int_equal(close(fd), 0);
    free(bytes);
}

static uint32_t direct_extents(const struct tokens_job *job) {
    uint32_t count = 0;
    for (uint32_t e = 0; e < job->read.extent_count; e++) {
        count += file_is_direct(job->read.extents[e].file);
    }
    return count;
}

/* Whether the kernel tells of this file, and drops what it is told to. */
static bool cache_is_known(struct damage *damage) {
    struct file *file = dataset_volumes(catalog_dataset(damage->world.catalog, 0))->items->file;
    drop_from_cache(damage, 0);
    bool dropped = file_cached(file, 0, damage->bytes[0]) == 0;
    bring_into_cache(damage);
    return dropped && file_cached(file, 0, damage->bytes[0]) == 1;
}

static void what_is_not_in_the_page_cache_is_read_past_it(void **state) {
    struct damage *damage = *state;
    struct dealt *dealt = calloc(1, sizeof *dealt);
    struct tokens_job job = {0};
    struct error why;
    uint32_t wrong = 0, mixed = 0;
    struct file *file = dataset_volumes(catalog_dataset(damage->world.catalog, 0))->items->file;
    assert_non_null(dealt);
    if (!cache_is_known(damage) ||
        catalog_read_direct(damage->world.catalog, CATALOG_DIRECT_AUTO, false, &why) == 0) {
        print_message("no O_DIRECT here, or no cachestat\n");
        free(dealt);
        skip();
    }
    for (uint32_t turn = 0; turn < 24; turn++) {
        uint32_t dropped = turn % 4; /* nothing, all, half, some */
        if (turn == 12) {
            use_manifest(damage);
            catalog_recheck(damage->world.catalog);
        }
        off_t half = (off_t)damage->bytes[0] / 2;
        bring_into_cache(damage);
        if (dropped > 0) {
            drop_from_cache(damage, dropped == 1   ? 0
                                    : dropped == 2 ? half
                                                   : (off_t)(random_next(damage) % 4) * half / 4);
        }
        bool is_half = dropped == 2 && file_cached(file, 0, (uint64_t)half) == 0;
        deal(damage, dealt);
        assert_int_equal(read_dealt(damage, &job, dealt, turn % 2, &wrong), 0);
        assert_int_equal(wrong, 0);
        uint32_t direct = direct_extents(&job);
        assert_true(dropped != 0 || direct == 0);
        assert_true(dropped != 1 || direct == job.read.extent_count);
        assert_true(!is_half || direct > 0);
        mixed += direct > 0 && direct < job.read.extent_count;
        memset(dealt, 0, sizeof *dealt);
    }
    assert_true(mixed > 0);
    tokens_job_deinit(&job);
    free(dealt);
}

static void files_that_are_read_again_and_fit_into_memory_are_kept_in_the_page_cache(void **state) {
    struct damage *damage = *state;
    struct error why;
    assert_int_equal(catalog_read_direct(damage->world.catalog, CATALOG_DIRECT_AUTO, true, &why),
                     0);
    assert_int_equal(why.code, 0);
    assert_null(dataset_volumes(catalog_dataset(damage->world.catalog, 0))->items->direct);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_bit_flipped_before_it_is_read_first_is_never_given_out),
        TEST(checked_each_time_a_flipped_bit_is_never_given_out),
        TEST(what_was_found_whole_is_not_hashed_again_unless_told),
        TEST(without_a_manifest_flips_are_given_out),
        TEST(every_byte_of_the_index_header_may_be_any_other),
        TEST(a_flipped_bit_of_the_index_changes_no_document),
        TEST(another_datasets_manifest_is_refused_and_a_damaged_one_too),
        TEST(reading_past_the_page_cache_brings_the_same_bytes),
        TEST(what_is_not_in_the_page_cache_is_read_past_it),
        TEST(files_that_are_read_again_and_fit_into_memory_are_kept_in_the_page_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
