/* Random micro-batches over random datasets of every type: the payload is what reading token by
 * token gives, with both readers, whatever the cuts; and neighbours are read together. A seed is
 * printed when it fails; BALLAST_TEST_SEED runs it alone. */
#include "tests/unit/tokens_world.h"
#include "corpus/megatron.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX     4000u
#define DOCUMENTS_MAX 300u
#define GUARD_BYTES   16u

static uint64_t random_state;

static uint64_t random_next(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint32_t below(uint32_t bound) {
    return (uint32_t)(random_next() % bound);
}

static void shuffle(uint32_t *order, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = below(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

/* The largest id that the type and a slot of 2-byte tokens, or a trainer's int32, can hold. */
static uint64_t id_max(uint8_t dtype, uint32_t token_bytes) {
    uint64_t slot = token_bytes == 2 ? 65535 : 2147483647;
    switch (dtype) {
    case MEGATRON_U8:
        return 255;
    case MEGATRON_I16:
        return 32767;
    case MEGATRON_U16:
        return 65535;
    default:
        return slot;
    }
}

static uint32_t random_length(bool large) {
    switch (below(8)) {
    case 0:
        return 0;
    case 1:
        return 1 + below(3);
    case 2:
        return large ? 1 + below(300000) : 1 + below(5000);
    default:
        return 1 + below(400);
    }
}

static void add_random_set(struct tokens_world *world, uint32_t token_bytes) {
    static const uint8_t dtypes[] = {MEGATRON_U8,  MEGATRON_I16, MEGATRON_I32, MEGATRON_I64,
                                     MEGATRON_U16, MEGATRON_U32, MEGATRON_U64};
    uint32_t lengths[DOCUMENTS_MAX], order[DOCUMENTS_MAX];
    uint8_t dtype = dtypes[below(sizeof dtypes)];
    uint32_t documents = 1 + below(below(2) ? 10 : DOCUMENTS_MAX);
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = random_length(documents < 10);
    }
    shuffle(order, documents);
    struct token_set *set = tokens_world_add(world, dtype, lengths, documents,
                                             below(3) == 0 ? order : NULL);
    uint64_t max = id_max(dtype, token_bytes);
    for (uint64_t i = 0; i < set->tokens; i++) {
        set->values[i] = below(16) == 0 ? max : random_next() % (max + 1);
    }
}

/* Cuts some documents, some of them shortened as `truncate` does, into parts of at most `limit`,
 * and takes most of the parts. */
static uint32_t random_parts(const struct tokens_world *world, struct document *parts) {
    static const uint32_t limits[] = {1, 3, 100, 4096, 70000, 1u << 20};
    uint32_t count = 0, keep = 1 + below(4);
    for (uint32_t s = 0; s < world->set_count; s++) {
        uint32_t limit = limits[below(6)];
        bool dense = below(2);
        for (uint32_t d = 0; d < world->sets[s].documents; d++) {
            uint32_t length = world->sets[s].lengths[d];
            if (!dense && below(3) > 0) {
                continue;
            }
            length = length > 1 && below(8) == 0 ? 1 + below(length) : length;
            for (uint32_t at = 0; at < length && count < PARTS_MAX; at += limit) {
                uint32_t rest = length - at;
                parts[count] = tokens_world_part(world, s, d, at, rest < limit ? rest : limit);
                parts[count].document_length = length;
                count += keep == 1 || below(keep) > 0 ? 1 : 0;
            }
        }
    }
    return count;
}

/* Half of the time out of disk order, and one part twice, as at the seam of two epochs. */
static void random_rows(struct document *parts, uint32_t count) {
    if (below(2) == 0) {
        for (uint32_t i = count - 1; i > 0; i--) {
            uint32_t j = below(i + 1);
            struct document other = parts[i];
            parts[i] = parts[j];
            parts[j] = other;
        }
    }
    uint32_t from = below(count);
    parts[below(count)] = parts[from];
}

static bool is_mapped;
static uint64_t mapped_worlds;
static uint64_t mapped_count, split_count; /* extents */

/* What is taken from mappings passes over gaps, what is read has memory for them. */
static bool gaps_are_counted(const struct tokens_job *job) {
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < job->read.extent_count; e++) {
        const struct read_extent *extent = &job->read.extents[e];
        for (uint32_t i = 0; i < extent->iovec_count; i++) {
            bool gap = extent->iovecs[i].iov_base == NULL;
            bytes += gap ? 0 : extent->iovecs[i].iov_len;
            if (gap && extent->mapping == NULL) {
                return false;
            }
        }
        mapped_count += extent->mapping != NULL;
        split_count += is_mapped && extent->mapping == NULL;
    }
    return bytes == job->read_bytes;
}

static bool job_is_right(struct tokens_world *world, struct tokens_job *job,
                         const struct document *parts, uint32_t count, uint32_t token_bytes,
                         struct reader *reader) {
    uint64_t bytes = tokens_payload_bytes(parts, count, token_bytes);
    uint8_t *payload = malloc(bytes + GUARD_BYTES), *expected = malloc(bytes + GUARD_BYTES);
    struct tokens_target target;
    bool exact = below(2) == 0;
    assert_true(payload != NULL && expected != NULL);
    memset(payload, 0xEE, bytes + GUARD_BYTES);
    memset(expected, 0xEE, bytes + GUARD_BYTES);
    tokens_reference(world, parts, count, token_bytes, expected);
    assert_int_equal(
        tokens_prepare_one(job, world, parts, count, token_bytes, exact, payload, &target), 0);
    /* What may be mapped ends after a megabyte of the file, gaps that are then left out among it.
     */
    bool right = is_mapped && !exact
                     ? extents_are_bounded(&job->read)
                     : extents_are_coalesced(&job->read, exact ? 0 : EXTENT_GAP_BYTES_MAX);
    right = right && gaps_are_counted(job);
    if (below(2) == 0) { /* prepared by the reader, into the memory of the job before */
        tokens_job_begin(job, world->catalog, token_bytes, exact, &target);
    }
    tokens_run_read(reader, job);
    if (target.error.code < 0) {
        print_error("%s\n", target.error.text);
        right = false;
    }
    right = right && memcmp(payload, expected, bytes + GUARD_BYTES) == 0;
    free(payload);
    free(expected);
    return right;
}

static void run_seed(struct tokens_world *world, struct tokens_job *job, uint64_t seed) {
    static struct document parts[PARTS_MAX];
    random_state = seed;
    uint32_t token_bytes = below(2) ? 2 : 4;
    uint32_t sets = 1 + below(TOKEN_SETS_MAX);
    for (uint32_t s = 0; s < sets; s++) {
        add_random_set(world, token_bytes);
    }
    tokens_world_write(world);
    is_mapped = below(2) == 0 && catalog_read_mapped(world->catalog) == sets;
    mapped_worlds += is_mapped;
    for (uint32_t round = 0; round < 4; round++) {
        uint32_t count = random_parts(world, parts);
        if (count > 0) {
            random_rows(parts, count);
            if (!job_is_right(world, job, parts, count, token_bytes, world->readers[round % 2])) {
                fail_msg("BALLAST_TEST_SEED=%llu round %u", (unsigned long long)seed, round);
            }
        }
    }
    tokens_world_clear(world);
}

static void a_payload_is_what_reading_token_by_token_gives(void **state) {
    (void)state;
    struct tokens_world world;
    struct tokens_job job = {0};
    const char *seed = getenv("BALLAST_TEST_SEED");
    uint64_t seeds = getenv("BALLAST_TEST_FULL") != NULL ? 5000 : 120;
    tokens_world_open(&world);
    if (seed != NULL) {
        run_seed(&world, &job, strtoull(seed, NULL, 10));
        seeds = 0;
    }
    for (uint64_t s = 1; s <= seeds; s++) {
        run_seed(&world, &job, s);
    }
    if (seeds > 0 && mapped_worlds > 0) { /* /tmp is where mappings suit */
        assert_true(mapped_count > 30 && split_count > 30);
    }
    tokens_job_deinit(&job);
    tokens_world_close(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_payload_is_what_reading_token_by_token_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
