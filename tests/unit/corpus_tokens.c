/* From parts to extents and from a file's tokens to a slot's: single cases. Random ones against a
 * reference are in tests/property/corpus_tokens_reference.c. */
#include "tests/unit/mapped_world.h"
#include "tests/unit/tokens_world.h"
#include "corpus/files.h"
#include "corpus/megatron.h"
#include "corpus/volumes.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEGABYTE (1u << 20)

static bool is_old;     /* the kernel has no cachestat */
static bool is_arm_64k; /* it has larger pages, and all of them in the page cache */

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name) {
    return name == _SC_PAGESIZE && is_arm_64k ? 65536 : __real_sysconf(name);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, int fd, uint64_t *range, uint64_t *cached, unsigned flags);
long __wrap_syscall(long number, int fd, uint64_t *range, uint64_t *cached, unsigned flags) {
    if (is_old) {
        errno = ENOSYS;
        return -1;
    }
    if (is_arm_64k) {
        *cached = (range[0] + range[1] - 1) / 65536 - range[0] / 65536 + 1;
        return 0;
    }
    return __real_syscall(number, fd, range, cached, flags);
}

static bool refuse_memory;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) {
    return refuse_memory ? NULL : __real_malloc(size);
}

static int world_setup(void **state) {
    struct tokens_world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    tokens_world_open(world);
    *state = world;
    return 0;
}

static int world_teardown(void **state) {
    tokens_world_close(*state);
    free(*state);
    return 0;
}

/* One set of equal documents whose tokens count up. */
static void counting_set(struct tokens_world *world, uint8_t dtype, uint32_t documents,
                         uint32_t length) {
    uint32_t *lengths = calloc(documents, sizeof *lengths);
    assert_non_null(lengths);
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = length;
    }
    struct token_set *set = tokens_world_add(world, dtype, lengths, documents, NULL);
    for (uint64_t i = 0; i < set->tokens; i++) {
        set->values[i] = i % (dtype == MEGATRON_U8 ? 256 : 32768);
    }
    free(lengths);
}

static uint64_t bytes_to_read(const struct read_job *read) {
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < read->extent_count; e++) {
        for (uint32_t i = 0; i < read->extents[e].iovec_count; i++) {
            bytes += read->extents[e].iovecs[i].iov_len;
        }
    }
    return bytes;
}

/* Prepares, lets the test look at the extents, reads, compares with the reference. */
static void check_extents(struct tokens_world *world, const struct document *parts, uint32_t count,
                          uint32_t token_bytes, uint32_t extents, uint32_t iovecs_first,
                          uint64_t bytes) {
    struct tokens_job job = {0};
    struct tokens_target target;
    uint64_t payload_bytes = tokens_payload_bytes(parts, count, token_bytes);
    void *payload = malloc(payload_bytes), *expected = malloc(payload_bytes);
    assert_true(payload != NULL && expected != NULL);
    tokens_reference(world, parts, count, token_bytes, expected);
    assert_int_equal(
        tokens_prepare_one(&job, world, parts, count, token_bytes, true, payload, &target), 0);
    assert_int_equal(job.read.extent_count, extents);
    assert_int_equal(job.read.extents[0].iovec_count, iovecs_first);
    assert_int_equal(bytes_to_read(&job.read), bytes);
    tokens_run_read(world->readers[0], &job);
    assert_int_equal(target.error.code, 0);
    assert_memory_equal(payload, expected, payload_bytes);
    tokens_job_deinit(&job);
    free(payload);
    free(expected);
}

static void a_payload_holds_all_tokens_and_one_successor_per_unfinished_part(void **state) {
    (void)state;
    struct document parts[3] = {
        {.offset = 0, .length = 10, .document_length = 10},
        {.offset = 0, .length = 10, .document_length = 11},
        {.offset = 10, .length = 1, .document_length = 11},
    };
    assert_int_equal(tokens_payload_bytes(parts, 3, 2), 44);
    assert_int_equal(tokens_payload_bytes(parts, 3, 4), 88);
    struct document long_ones[3] = {
        {.length = UINT32_MAX, .document_length = UINT32_MAX},
        {.length = UINT32_MAX, .document_length = UINT32_MAX},
        {.length = UINT32_MAX, .document_length = UINT32_MAX},
    };
    assert_true(tokens_payload_bytes(long_ones, 3, 4) == 12 * (uint64_t)UINT32_MAX);
}

static void neighbours_in_row_order_are_one_extent_with_one_iovec(void **state) {
    struct tokens_world *world = *state;
    struct document parts[300];
    counting_set(world, MEGATRON_U16, 300, 7);
    tokens_world_write(world);
    for (uint32_t i = 0; i < 300; i++) {
        parts[i] = tokens_world_part(world, 0, i, 0, 7);
    }
    check_extents(world, parts, 300, 2, 1, 1, 300 * 14);
}

static void neighbours_out_of_row_order_are_scattered_by_1024_iovecs(void **state) {
    struct tokens_world *world = *state;
    static struct document parts[1100];
    counting_set(world, MEGATRON_U16, 1100, 7);
    tokens_world_write(world);
    for (uint32_t i = 0; i < 1100; i++) {
        parts[i] = tokens_world_part(world, 0, 1099 - i, 0, 7);
    }
    check_extents(world, parts, 1100, 2, 2, READ_EXTENT_IOVECS_MAX, 1100 * 14);
}

static void neighbours_of_another_width_are_one_extent_in_the_bounce_memory(void **state) {
    struct tokens_world *world = *state;
    struct document parts[300];
    counting_set(world, MEGATRON_I64, 300, 7);
    tokens_world_write(world);
    for (uint32_t i = 0; i < 300; i++) {
        parts[i] = tokens_world_part(world, 0, 299 - i, 0, 7);
    }
    check_extents(world, parts, 300, 2, 1, 1, 300 * 56);
}

static void documents_apart_are_extents_of_their_own(void **state) {
    struct tokens_world *world = *state;
    counting_set(world, MEGATRON_U16, 9, 7);
    tokens_world_write(world);
    struct document parts[3] = {
        tokens_world_part(world, 0, 0, 0, 7),
        tokens_world_part(world, 0, 2, 0, 7),
        tokens_world_part(world, 0, 4, 0, 7),
    };
    check_extents(world, parts, 3, 2, 3, 1, 42);
}

static void a_successor_that_is_in_the_micro_batch_is_not_read_again(void **state) {
    struct tokens_world *world = *state;
    counting_set(world, MEGATRON_U16, 1, 30);
    tokens_world_write(world);
    struct document parts[3] = {
        tokens_world_part(world, 0, 0, 20, 10),
        tokens_world_part(world, 0, 0, 0, 10),
        tokens_world_part(world, 0, 0, 10, 10),
    };
    check_extents(world, parts, 3, 2, 1, 2, 60);
}

static void a_successor_that_is_not_there_is_read_with_its_part(void **state) {
    struct tokens_world *world = *state;
    counting_set(world, MEGATRON_U16, 2, 30);
    tokens_world_write(world);
    struct document parts[2] = {
        tokens_world_part(world, 0, 0, 0, 29),
        tokens_world_part(world, 0, 1, 0, 30),
    };
    check_extents(world, parts, 2, 2, 1, 3, 120);
}

/* Set 0's part ends at the byte at which set 1's begins. */
static void parts_of_two_files_are_never_neighbours(void **state) {
    struct tokens_world *world = *state;
    counting_set(world, MEGATRON_U16, 1, 20);
    counting_set(world, MEGATRON_U16, 2, 10);
    *token_at(&world->sets[1], 1, 0) = 999;
    tokens_world_write(world);
    struct document parts[2] = {
        tokens_world_part(world, 0, 0, 0, 10),
        tokens_world_part(world, 1, 1, 0, 10),
    };
    check_extents(world, parts, 2, 2, 2, 2, 42);
}

static void the_same_part_twice_is_read_twice(void **state) {
    struct tokens_world *world = *state;
    counting_set(world, MEGATRON_U8, 1, 30);
    tokens_world_write(world);
    struct document parts[4] = {
        tokens_world_part(world, 0, 0, 0, 10),
        tokens_world_part(world, 0, 0, 10, 10),
        tokens_world_part(world, 0, 0, 0, 10),
        tokens_world_part(world, 0, 0, 10, 10),
    };
    parts[2].epoch = parts[3].epoch = 1;
    check_extents(world, parts, 4, 4, 3, 1, 43);
}

static void a_long_part_is_cut_at_one_megabyte(void **state) {
    struct tokens_world *world = *state;
    counting_set(world, MEGATRON_U16, 1, MEGABYTE + 1);
    tokens_world_write(world);
    struct document part = tokens_world_part(world, 0, 0, 0, MEGABYTE + 1);
    check_extents(world, &part, 1, 2, 3, 1, 2 * (uint64_t)MEGABYTE + 2);
    part = tokens_world_part(world, 0, 0, 0, MEGABYTE / 2);
    check_extents(world, &part, 1, 2, 2, 1, MEGABYTE + 2);
    part = tokens_world_part(world, 0, 0, MEGABYTE / 2 + 1, MEGABYTE / 2);
    check_extents(world, &part, 1, 2, 1, 1, MEGABYTE);
}

/* Documents dealt out among micro-batches in turn, read as the one run of bytes that they are. */
static void parts_of_several_slots_are_read_in_disk_order_and_scattered(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target targets[3];
    struct document parts[3][100];
    uint16_t payloads[3][700], expected[700];
    counting_set(world, MEGATRON_U16, 300, 7);
    tokens_world_write(world);
    for (uint32_t i = 0; i < 300; i++) {
        parts[i % 3][i / 3] = tokens_world_part(world, 0, i, 0, 7);
    }
    for (uint32_t i = 0; i < 3; i++) {
        targets[i] = (struct tokens_target){.documents = parts[i],
                                            .count = 100,
                                            .payload = payloads[i],
                                            .next = i < 2 ? &targets[i + 1] : NULL};
    }
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(tokens_job_prepare(&job, world->catalog, 2, false, targets), 0);
        assert_int_equal(job.read.extent_count, 1);
        assert_int_equal(job.read_bytes, 300 * 14);
        tokens_run_read(world->readers[turn], &job);
        for (uint32_t i = 0; i < 3; i++) {
            tokens_reference(world, parts[i], 100, 2, expected);
            assert_int_equal(targets[i].error.code, 0);
            assert_memory_equal(payloads[i], expected, sizeof expected);
        }
    }
    tokens_job_deinit(&job);
}

/* Every third document: two are read along and thrown away, if that is allowed. */
static void small_gaps_are_read_along_and_large_ones_are_not(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target target;
    struct document parts[100];
    uint16_t payload[700], expected[700];
    counting_set(world, MEGATRON_U16, 300, 7);
    tokens_world_write(world);
    for (uint32_t i = 0; i < 100; i++) {
        parts[i] = tokens_world_part(world, 0, 3 * i, 0, 7);
    }
    tokens_reference(world, parts, 100, 2, expected);
    for (uint32_t exact = 0; exact < 2; exact++) {
        assert_int_equal(
            tokens_prepare_one(&job, world, parts, 100, 2, exact == 1, payload, &target), 0);
        assert_int_equal(job.read.extent_count, exact == 1 ? 100 : 1);
        assert_int_equal(job.read_bytes, exact == 1 ? 1400 : 298 * 14);
        assert_int_equal(job.wanted_bytes, 1400);
        tokens_run_read(world->readers[exact], &job);
        assert_int_equal(target.error.code, 0);
        assert_memory_equal(payload, expected, sizeof expected);
    }
    tokens_job_deinit(&job);
}

/* Whose bytes failed is told; the others are served. */
static void a_failure_concerns_the_slots_that_need_what_failed(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target targets[2];
    struct document parts[2];
    uint16_t payloads[2][100];
    char prefix[96], path[128];
    counting_set(world, MEGATRON_U16, 1, 100);
    counting_set(world, MEGATRON_U16, 1, 100);
    tokens_world_write(world);
    tokens_world_path(world, 1, prefix);
    snprintf(path, sizeof path, "%s.bin", prefix);
    for (uint32_t i = 0; i < 2; i++) {
        parts[i] = tokens_world_part(world, i, 0, 0, 100);
        targets[i] = (struct tokens_target){.documents = &parts[i],
                                            .count = 1,
                                            .payload = payloads[i],
                                            .next = i == 0 ? &targets[1] : NULL};
    }
    assert_int_equal(tokens_job_prepare(&job, world->catalog, 2, false, targets), 0);
    assert_int_equal(truncate(path, 100), 0);
    for (uint32_t turn = 0; turn < 2; turn++) {
        tokens_run_read(world->readers[turn], &job);
        assert_int_equal(targets[0].error.code, 0);
        assert_int_equal(targets[1].error.code, -ENODATA);
        assert_non_null(strstr(targets[1].error.text, "dataset 'set1'"));
    }
    tokens_job_deinit(&job);
}

/* Another file of the same size with the same documents, in its place while it is open. */
static void a_replaced_file_is_refused_and_never_read_as_the_first(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target target;
    uint16_t payload[100];
    char prefix[96], path[128], other[128];
    counting_set(world, MEGATRON_U16, 1, 100);
    tokens_world_write(world);
    tokens_world_path(world, 0, prefix);
    snprintf(path, sizeof path, "%s.bin", prefix);
    snprintf(other, sizeof other, "%s.other", prefix);
    FILE *file = fopen(other, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(payload, 1, sizeof payload, file), sizeof payload);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(other, path), 0);
    struct document part = tokens_world_part(world, 0, 0, 0, 100);
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(tokens_prepare_one(&job, world, &part, 1, 2, false, payload, &target), 0);
        tokens_run_read(world->readers[turn], &job);
        assert_int_equal(target.error.code, -ESTALE);
        assert_non_null(strstr(target.error.text, "written to or replaced"));
    }
    tokens_job_deinit(&job);
}

static void a_job_keeps_its_memory_between_micro_batches(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target target;
    uint16_t payload[1000];
    counting_set(world, MEGATRON_I32, 1, 1000);
    tokens_world_write(world);
    struct document part = tokens_world_part(world, 0, 0, 0, 1000);
    assert_int_equal(tokens_prepare_one(&job, world, &part, 1, 2, true, payload, &target), 0);
    void *memory = job.extents.iovecs;
    refuse_memory = true;
    for (uint32_t length = 1000; length > 0; length--) {
        part.length = length;
        assert_int_equal(tokens_prepare_one(&job, world, &part, 1, 2, true, payload, &target), 0);
        assert_ptr_equal(job.extents.iovecs, memory);
    }
    refuse_memory = false;
    tokens_job_deinit(&job);
    tokens_job_deinit(&job);
}

static void a_job_without_memory_can_be_prepared_later(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target target;
    uint16_t payload[10];
    counting_set(world, MEGATRON_I32, 1, 10);
    tokens_world_write(world);
    struct document part = tokens_world_part(world, 0, 0, 0, 10);
    refuse_memory = true;
    assert_int_equal(tokens_prepare_one(&job, world, &part, 1, 2, true, payload, &target), -ENOMEM);
    refuse_memory = false;
    assert_int_equal(tokens_prepare_one(&job, world, &part, 1, 2, true, payload, &target), 0);
    tokens_job_deinit(&job);
}

static void a_job_without_memory_fails_all_its_slots_when_the_reader_prepares_it(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    uint16_t payloads[2][10];
    counting_set(world, MEGATRON_I32, 2, 10);
    tokens_world_write(world);
    struct document parts[2] = {tokens_world_part(world, 0, 0, 0, 10),
                                tokens_world_part(world, 0, 1, 0, 10)};
    for (uint32_t r = 0; r < 2; r++) {
        struct tokens_target targets[2] = {
            {.documents = &parts[0], .count = 1, .payload = payloads[0], .next = &targets[1]},
            {.documents = &parts[1], .count = 1, .payload = payloads[1]}};
        tokens_job_begin(&job, world->catalog, 2, false, targets);
        refuse_memory = true;
        tokens_run_read(world->readers[r], &job);
        refuse_memory = false;
        assert_int_equal(job.read.result, -ENOMEM);
        for (uint32_t t = 0; t < 2; t++) {
            assert_int_equal(targets[t].error.code, -ENOMEM);
            assert_non_null(strstr(targets[t].error.text, "could not begin"));
        }
        tokens_job_begin(&job, world->catalog, 2, false, targets);
        tokens_run_read(world->readers[r], &job);
        assert_int_equal(targets[0].error.code, 0);
        assert_int_equal(payloads[1][9], 19);
        tokens_job_deinit(&job);
    }
}

/* Reads document 1 (3 tokens, not the first) of a set whose token `at` has these bits. */
static int finish_with_bits(struct tokens_world *world, uint8_t dtype, uint32_t token_bytes,
                            uint64_t bits, uint32_t at, uint32_t length, struct error *error) {
    uint32_t payload[4];
    struct tokens_job job = {0};
    struct tokens_target target;
    counting_set(world, dtype, 3, 3);
    *token_at(&world->sets[0], 1, at) = bits;
    tokens_world_write(world);
    struct document part = tokens_world_part(world, 0, 1, 0, length);
    assert_int_equal(tokens_prepare_one(&job, world, &part, 1, token_bytes, true, payload, &target),
                     0);
    tokens_run_read(world->readers[0], &job);
    int rc = target.error.code;
    *error = target.error;
    tokens_job_deinit(&job);
    tokens_world_clear(world);
    return rc;
}

static void ids_that_no_trainer_can_take_are_refused_with_their_place(void **state) {
    struct tokens_world *world = *state;
    static const struct {
        uint8_t dtype;
        uint32_t token_bytes;
        uint64_t largest, refused;
        const char *reason;
    } cases[] = {
        {MEGATRON_U8, 2, 255, 0, NULL},
        {MEGATRON_U8, 4, 255, 0, NULL},
        {MEGATRON_U16, 2, 65535, 0, NULL},
        {MEGATRON_U16, 4, 65535, 0, NULL},
        {MEGATRON_I16, 2, 32767, 0x8000, "token id -32768 is negative"},
        {MEGATRON_I16, 4, 32767, 0xFFFF, "token id -1 is negative"},
        {MEGATRON_I32, 2, 65535, 65536, "token id 65536 is over 65535"},
        {MEGATRON_I32, 2, 65535, 0xFFFFFF9C, "token id -100 is negative"},
        {MEGATRON_I32, 4, 2147483647, 0xFFFFFF9C, "token id -100 is negative"},
        {MEGATRON_U32, 2, 65535, 65536, "token id 65536 is over 65535"},
        {MEGATRON_U32, 4, 2147483647, 2147483648, "token id 2147483648 is over 2147483647"},
        {MEGATRON_I64, 2, 65535, 1ull << 32, "token id 4294967296 is over 65535"},
        {MEGATRON_I64, 4, 2147483647, 1ull << 63, "token id -9223372036854775808 is negative"},
        {MEGATRON_U64, 2, 65535, 65536, "token id 65536 is over 65535"},
        {MEGATRON_U64, 4, 2147483647, UINT64_MAX,
         "token id 18446744073709551615 is over 2147483647"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error error = {0};
        char place[128];
        uint32_t width = megatron_width(cases[i].dtype), bytes = cases[i].token_bytes;
        assert_int_equal(
            finish_with_bits(world, cases[i].dtype, bytes, cases[i].largest, 2, 3, &error), 0);
        for (uint32_t length = 2; length <= 3 && cases[i].reason != NULL; length++) {
            int rc = finish_with_bits(world, cases[i].dtype, bytes, cases[i].refused, 2, length,
                                      &error);
            snprintf(place, sizeof place, "/set0.bin: byte %u (document 1, token 2): ", 5 * width);
            assert_int_equal(rc, -EBADMSG);
            assert_int_equal(error.code, -EBADMSG);
            assert_non_null(strstr(error.text, "dataset 'set0': "));
            assert_non_null(strstr(error.text, place));
            assert_non_null(strstr(error.text, cases[i].reason));
            assert_non_null(strstr(error.text, "ballastctl verify"));
        }
    }
}

/* Document 2 of three, wherever the file is cut inside it, alone or as part of a longer extent. */
static void a_file_that_became_shorter_is_refused_at_its_new_end(void **state) {
    struct tokens_world *world = *state;
    uint16_t payload[300];
    char prefix[96], path[128], place[128];
    counting_set(world, MEGATRON_U16, 3, 100);
    tokens_world_write(world);
    tokens_world_path(world, 0, prefix);
    snprintf(path, sizeof path, "%s.bin", prefix);
    struct document parts[3];
    for (uint32_t i = 0; i < 3; i++) {
        parts[i] = tokens_world_part(world, 0, i, 0, 100);
    }
    for (uint32_t end = 600; end-- > 400;) {
        for (uint32_t first = 0; first < 3; first += 2) {
            struct tokens_job job = {0};
            struct tokens_target target;
            assert_int_equal(truncate(path, end), 0);
            assert_int_equal(tokens_prepare_one(&job, world, parts + first, 3 - first, 2, true,
                                                payload, &target),
                             0);
            tokens_run_read(world->readers[end % 2], &job);
            assert_int_equal(target.error.code, -ENODATA);
            snprintf(place, sizeof place, "set0.bin: byte %u (document 2, token %u): the file ends",
                     end, (end - 400) / 2);
            assert_non_null(strstr(target.error.text, place));
            assert_non_null(strstr(target.error.text, "; restore the file"));
            tokens_job_deinit(&job);
        }
    }
}

/* What the reader reports of a bad sector; here it is said in its place. */
static void a_failed_read_names_document_and_error(void **state) {
    struct tokens_world *world = *state;
    struct tokens_job job = {0};
    struct tokens_target target;
    uint16_t payload[300];
    counting_set(world, MEGATRON_U16, 3, 100);
    tokens_world_write(world);
    struct document parts[2] = {
        tokens_world_part(world, 0, 2, 50, 50),
        tokens_world_part(world, 0, 0, 0, 100),
    };
    assert_int_equal(tokens_prepare_one(&job, world, parts, 2, 2, true, payload, &target), 0);
    job.read.extents[1].result = -EIO;
    job.read.complete(&job.read);
    assert_int_equal(target.error.code, -EIO);
    assert_non_null(strstr(target.error.text,
                           "set0.bin: byte 500 (document 2, token 50): Input/output error; check"));
    tokens_job_deinit(&job);
}

#define WIDE      2048u /* tokens of a document, 4 KB */
#define WIDE_MANY 600u

/* Every `nth` document of WIDE_MANY, 2.4 MB in all, backwards, so that each has its own place. */
static uint32_t every_nth(const struct tokens_world *world, uint32_t nth, struct document *parts) {
    uint32_t count = 0;
    for (uint32_t i = WIDE_MANY; i >= nth; i -= nth) {
        parts[count++] = tokens_world_part(world, 0, i - nth, 0, WIDE);
    }
    return count;
}

/* WIDE_MANY documents, and whether they may be mapped here. */
static bool wide_set(struct tokens_world *world) {
    counting_set(world, MEGATRON_U16, WIDE_MANY, WIDE);
    tokens_world_write(world);
    return catalog_read_mapped(world->catalog) > 0;
}

static uint32_t count_mapped(const struct read_job *read) {
    uint32_t count = 0;
    for (uint32_t e = 0; e < read->extent_count; e++) {
        count += read->extents[e].mapping != NULL;
    }
    return count;
}

/* Of what is in the page cache: all documents, every second, fourth, fifth, twelfth. */
static void a_mapping_passes_over_wide_gaps_where_enough_is_wanted(void **state) {
    struct tokens_world *world = *state;
    static struct document parts[WIDE_MANY];
    static const struct {
        uint32_t nth, extents, mapped;
    } cases[] = {{1, 3, 3}, {2, 3, 3}, {4, 3, 3}, {5, 120, 0}, {12, 50, 0}};
    struct tokens_job job = {0};
    struct tokens_target target;
    uint16_t *payload = malloc(2 * WIDE * WIDE_MANY), *expected = malloc(2 * WIDE * WIDE_MANY);
    assert_true(payload != NULL && expected != NULL);
    if (!wide_set(world)) {
        print_message("no mappings here: /tmp is on no file system that they suit\n");
        free(payload);
        free(expected);
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t count = every_nth(world, cases[i].nth, parts);
        uint64_t bytes = tokens_payload_bytes(parts, count, 2);
        tokens_reference(world, parts, count, 2, expected);
        for (uint32_t turn = 0; turn < 2; turn++) {
            assert_int_equal(
                tokens_prepare_one(&job, world, parts, count, 2, false, payload, &target), 0);
            assert_int_equal(job.read.extent_count, cases[i].extents);
            assert_int_equal(count_mapped(&job.read), cases[i].mapped);
            assert_int_equal(job.read_bytes, bytes);
            memset(payload, 0, bytes);
            tokens_run_read(world->readers[turn], &job);
            assert_int_equal(target.error.code, 0);
            assert_memory_equal(payload, expected, bytes);
        }
    }
    tokens_job_deinit(&job);
    free(payload);
    free(expected);
}

/* Groups of neighbours, `apart` documents from one to the next, the last group first. */
static uint32_t groups(const struct tokens_world *world, uint32_t group_count, uint32_t size,
                       uint32_t apart, struct document *parts) {
    uint32_t count = 0;
    for (uint32_t group = group_count; group-- > 0;) {
        for (uint32_t i = 0; i < size; i++) {
            parts[count++] = tokens_world_part(world, 0, group * apart + i, 0, WIDE);
        }
    }
    return count;
}

/* 16 KB to several places, over gaps of 64 KB. */
static void what_is_small_or_goes_to_one_place_is_read(void **state) {
    struct tokens_world *world = *state;
    static struct document parts[WIDE_MANY];
    static uint16_t payload[WIDE_MANY * WIDE];
    static const struct {
        uint32_t groups, size, apart, extents, mapped;
    } cases[] = {{3, 1, 3, 3, 0}, {4, 1, 3, 1, 1},  {1, 100, 1, 1, 0}, {2, 50, 50, 1, 1},
                 {2, 2, 5, 1, 1}, {5, 6, 22, 1, 1}, {5, 6, 23, 5, 0}};
    struct tokens_job job = {0};
    struct tokens_target target;
    if (!wide_set(world)) {
        print_message("no mappings here: /tmp is on no file system that they suit\n");
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t count = groups(world, cases[i].groups, cases[i].size, cases[i].apart, parts);
        assert_int_equal(tokens_prepare_one(&job, world, parts, count, 2, false, payload, &target),
                         0);
        assert_int_equal(job.read.extent_count, cases[i].extents);
        assert_int_equal(count_mapped(&job.read), cases[i].mapped);
    }
    tokens_job_deinit(&job);
}

/* Leaves the second MB of a file out of the page cache; false: it cannot be driven out. */
static bool cool(struct tokens_world *world) {
    struct file *file = dataset_volumes(catalog_dataset(world->catalog, 0))->items->file;
    static char bytes[MEGABYTE];
    int fd = open(file_path(file), O_RDONLY);
    assert_true(fd >= 0 && fsync(fd) == 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0); /* nothing is read ahead */
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    for (off_t at = 0; at < 2 * WIDE * WIDE_MANY; at += 2 * MEGABYTE) {
        assert_true(pread(fd, bytes, MEGABYTE, at) > 0);
    }
    close(fd);
    return file_cached(file, MEGABYTE, MEGABYTE) == 0;
}

/* Where the kernel tells of single extents; else only what is there to the last sample. */
static void a_mapping_waits_for_no_storage(void **state) {
    struct tokens_world *world = *state;
    static struct document parts[WIDE_MANY];
    static uint16_t payload[WIDE_MANY * WIDE], expected[WIDE_MANY * WIDE];
    struct tokens_job job = {0};
    struct tokens_target target;
    if (!wide_set(world) || !cool(world)) {
        print_message("no mappings here, no cachestat, or nothing leaves the page cache\n");
        skip();
    }
    uint32_t count = every_nth(world, 1, parts);
    tokens_reference(world, parts, count, 2, expected);
    for (uint32_t turn = 0; turn < 4; turn++) {
        assert_true(cool(world));
        is_old = turn >= 2;
        assert_int_equal(tokens_prepare_one(&job, world, parts, count, 2, false, payload, &target),
                         0);
        assert_int_equal(job.read.extent_count, 3);
        assert_int_equal(count_mapped(&job.read), is_old ? 0 : 2);
        assert_null(job.read.extents[1].mapping);
        memset(payload, 0, sizeof payload);
        tokens_run_read(world->readers[turn % 2], &job);
        assert_memory_equal(payload, expected, sizeof payload);
        assert_int_equal(tokens_prepare_one(&job, world, parts, count, 2, false, payload, &target),
                         0);
        assert_int_equal(count_mapped(&job.read), 3);
        is_old = false;
    }
    tokens_job_deinit(&job);
}

static void pages_of_64_kilobytes_are_mapped_as_well(void **state) {
    struct tokens_world *world = *state;
    static struct document parts[WIDE_MANY];
    static uint16_t payload[WIDE_MANY * WIDE], expected[WIDE_MANY * WIDE];
    struct tokens_job job = {0};
    struct tokens_target target;
    uint32_t mapped = wide_set(world) ? 3 : 0;
    uint32_t count = every_nth(world, 1, parts);
    tokens_reference(world, parts, count, 2, expected);
    is_arm_64k = true;
    assert_int_equal(tokens_prepare_one(&job, world, parts, count, 2, false, payload, &target), 0);
    assert_int_equal(count_mapped(&job.read), mapped);
    tokens_run_read(world->readers[0], &job);
    is_arm_64k = false;
    assert_memory_equal(payload, expected, sizeof payload);
    tokens_job_deinit(&job);
}

/* In the middle of a page too, where a mapping has zeros; and the slots that do not need it. */
static void a_mapped_file_that_became_shorter_is_refused_at_its_new_end(void **state) {
    struct tokens_world *world = *state;
    static struct document parts[2][WIDE_MANY / 2];
    static uint16_t payloads[2][WIDE_MANY / 2 * WIDE];
    static const uint32_t ends[] = {2457598, 2457000, 2088960, 1048578, 1048576, 500002};
    char prefix[96], path[128], place[128];
    mapped_world_guard();
    (void)wide_set(world);
    tokens_world_path(world, 0, prefix);
    snprintf(path, sizeof path, "%s.bin", prefix);
    for (uint32_t i = 0; i < WIDE_MANY; i++) {
        uint32_t half = i / (WIDE_MANY / 2), row = WIDE_MANY / 2 - 1 - i % (WIDE_MANY / 2);
        parts[half][row] = tokens_world_part(world, 0, i, 0, WIDE);
    }
    for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct tokens_job job = {0};
        struct tokens_target targets[2] = {
            {.documents = parts[0],
             .count = WIDE_MANY / 2,
             .payload = payloads[0],
             .next = &targets[1]},
            {.documents = parts[1], .count = WIDE_MANY / 2, .payload = payloads[1]}};
        assert_int_equal(tokens_job_prepare(&job, world->catalog, 2, false, targets), 0);
        assert_int_equal(truncate(path, ends[i]), 0);
        tokens_run_read(world->readers[i % 2], &job);
        const struct error *error = &targets[ends[i] < 1228800 ? 0 : 1].error;
        snprintf(place, sizeof place, "set0.bin: byte %u (document %u, token %u): the file ends",
                 ends[i], ends[i] / (2 * WIDE), ends[i] % (2 * WIDE) / 2);
        assert_int_equal(error->code, -ENODATA);
        assert_non_null(strstr(error->text, place));
        assert_int_equal(targets[1].error.code, -ENODATA);
        tokens_job_deinit(&job);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_payload_holds_all_tokens_and_one_successor_per_unfinished_part),
        TEST(neighbours_in_row_order_are_one_extent_with_one_iovec),
        TEST(neighbours_out_of_row_order_are_scattered_by_1024_iovecs),
        TEST(neighbours_of_another_width_are_one_extent_in_the_bounce_memory),
        TEST(documents_apart_are_extents_of_their_own),
        TEST(a_successor_that_is_in_the_micro_batch_is_not_read_again),
        TEST(a_successor_that_is_not_there_is_read_with_its_part),
        TEST(parts_of_two_files_are_never_neighbours),
        TEST(the_same_part_twice_is_read_twice),
        TEST(a_long_part_is_cut_at_one_megabyte),
        TEST(parts_of_several_slots_are_read_in_disk_order_and_scattered),
        TEST(small_gaps_are_read_along_and_large_ones_are_not),
        TEST(a_failure_concerns_the_slots_that_need_what_failed),
        TEST(a_replaced_file_is_refused_and_never_read_as_the_first),
        TEST(a_job_keeps_its_memory_between_micro_batches),
        TEST(a_job_without_memory_can_be_prepared_later),
        TEST(a_job_without_memory_fails_all_its_slots_when_the_reader_prepares_it),
        TEST(ids_that_no_trainer_can_take_are_refused_with_their_place),
        TEST(a_file_that_became_shorter_is_refused_at_its_new_end),
        TEST(a_mapping_passes_over_wide_gaps_where_enough_is_wanted),
        TEST(what_is_small_or_goes_to_one_place_is_read),
        TEST(a_mapping_waits_for_no_storage),
        TEST(pages_of_64_kilobytes_are_mapped_as_well),
        TEST(a_mapped_file_that_became_shorter_is_refused_at_its_new_end),
        TEST(a_failed_read_names_document_and_error),
    };
    mapped_world_guard();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
