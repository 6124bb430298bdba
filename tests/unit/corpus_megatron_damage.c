/* Damaged indexes: any single flipped bit and any truncation is refused, or changes nothing of what
 * is read; heavier damage is refused or leaves an index that stays inside .bin. */
#include "tests/property/splitmix.h"
#include "tests/unit/corpus_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IMAGE_BYTES = 1024 };

static const uint32_t lengths[] = {3, 0, 5, 1, 8, 2, 2};
static const uint64_t permuted[] = {10, 40, 0, 32, 16, 34, 38}; /* in .bin: 2, 0, 4, 3, 5, 6 */
static const uint64_t documents[] = {0, 2, 2, 5, 7};

static const struct image_options worlds[] = {
    {.dtype = MEGATRON_U16, .documents = 7, .lengths = lengths},
    {.dtype = MEGATRON_U16, .documents = 7, .lengths = lengths, .modes = true},
    {.dtype = MEGATRON_I32, .documents = 7, .lengths = lengths, .fairseq = true},
    {.dtype = MEGATRON_U8,
     .documents = 7,
     .lengths = lengths,
     .entries = documents,
     .entry_count = 5},
    {.dtype = MEGATRON_U16, .documents = 7, .lengths = lengths, .offsets = permuted},
    {.dtype = MEGATRON_U64, .documents = 1, .lengths = lengths},
    {.dtype = MEGATRON_U16, .documents = 7, .lengths = lengths, .big_endian = true},
};

enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* Opens the bytes from a block of exactly their size, so that a sanitizer sees any step outside. */
static int open_bytes(const uint8_t *bytes, size_t count, uint64_t bin_bytes,
                      struct document_index *index, struct error *error) {
    struct image image;
    uint8_t *exact = malloc(count + 1);
    assert_non_null(exact);
    memcpy(exact, bytes, count);
    image_open(&image, exact, count);
    int rc = megatron_index_init(index, &image.file, "test.bin", bin_bytes, error);
    free(exact);
    return rc;
}

static bool reads_the_same(const struct document_index *index, const struct image_options *world) {
    if (index->dtype != world->dtype || index->documents != world->documents) {
        return false;
    }
    uint64_t offset = 0;
    for (uint32_t i = 0; i < world->documents; i++) {
        uint64_t expected = world->offsets == NULL ? offset : world->offsets[i];
        if (document_index_length(index, i) != world->lengths[i] ||
            (world->lengths[i] > 0 && document_index_offset(index, i) != expected)) {
            return false;
        }
        offset += (uint64_t)world->lengths[i] * index->width;
    }
    return true;
}

/* True if refused, with a reason; otherwise the index is returned open. */
static bool is_refused(const uint8_t *bytes, size_t count, uint64_t bin_bytes,
                       struct document_index *index) {
    struct error error = {0};
    int rc = open_bytes(bytes, count, bin_bytes, index, &error);
    if (rc == 0) {
        return false;
    }
    assert_true(rc == -EBADMSG || rc == -ENOSYS);
    assert_int_equal(error.code, rc);
    assert_non_null(strstr(error.text, "test."));
    assert_non_null(strchr(error.text, ';'));
    return true;
}

static void no_flipped_bit_changes_what_is_read(void **state) {
    (void)state;
    for (size_t w = 0; w < WORLDS; w++) {
        uint8_t bytes[IMAGE_BYTES];
        size_t count = image_build(&worlds[w], bytes, sizeof bytes);
        size_t accepted = 0;
        for (size_t bit = 0; bit < 8 * count; bit++) {
            struct document_index index;
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (!is_refused(bytes, count, image_bin_bytes(&worlds[w]), &index)) {
                if (!reads_the_same(&index, &worlds[w])) {
                    fail_msg("world %zu: bit %zu of byte %zu", w, bit % 8, bit / 8);
                }
                document_index_deinit(&index);
                accepted++;
            }
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        assert_true(accepted < count); /* modes, offsets of empty documents, ends of documents */
    }
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    for (size_t w = 0; w < WORLDS; w++) {
        uint8_t bytes[IMAGE_BYTES];
        struct document_index index;
        size_t count = image_build(&worlds[w], bytes, sizeof bytes);
        size_t without_modes = count - (worlds[w].modes ? worlds[w].documents : 0);
        for (size_t keep = 0; keep < count; keep++) {
            bool refused = is_refused(bytes, keep, image_bin_bytes(&worlds[w]), &index);
            assert_int_equal(refused, keep != without_modes);
            document_index_deinit(&index);
        }
    }
}

static void every_other_size_of_bin_is_refused(void **state) {
    (void)state;
    for (size_t w = 0; w < WORLDS; w++) {
        uint8_t bytes[IMAGE_BYTES];
        struct document_index index;
        size_t count = image_build(&worlds[w], bytes, sizeof bytes);
        uint64_t right = image_bin_bytes(&worlds[w]);
        for (uint64_t bin_bytes = 0; bin_bytes < 2 * right; bin_bytes++) {
            bool refused = is_refused(bytes, count, bin_bytes, &index);
            assert_int_equal(refused, bin_bytes != right || worlds[w].big_endian);
            document_index_deinit(&index);
        }
    }
}

/* Up to four changes, of bits, bytes, fields and the length. */
static void damage(uint64_t *seed, uint8_t *bytes, size_t *count) {
    for (uint32_t n = splitmix_between(seed, 1, 4); n > 0 && *count > 0; n--) {
        size_t at = splitmix_between(seed, 0, (uint32_t)*count - 1);
        switch (splitmix_between(seed, 0, 3)) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << splitmix_between(seed, 0, 7));
            break;
        case 1:
            bytes[at] = (uint8_t)splitmix_next(seed);
            break;
        case 2:
            memset(bytes + at, splitmix_between(seed, 0, 1) ? 0xff : 0,
                   *count - at < 8 ? *count - at : 8);
            break;
        default:
            *count = at;
            break;
        }
    }
}

static void heavily_damaged_index_is_refused_or_consistent(void **state) {
    (void)state;
    for (uint64_t world = 1; world <= 20000; world++) {
        uint8_t bytes[IMAGE_BYTES];
        struct document_index index;
        uint64_t seed = world;
        const struct image_options *options = &worlds[world % WORLDS];
        size_t count = image_build(options, bytes, sizeof bytes);
        uint64_t bin_bytes = image_bin_bytes(options);
        damage(&seed, bytes, &count);
        if (!is_refused(bytes, count, bin_bytes, &index)) {
            if (!index_is_consistent(&index, bin_bytes)) {
                fail_msg("seed %lu", world);
            }
            document_index_deinit(&index);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_flipped_bit_changes_what_is_read),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_other_size_of_bin_is_refused),
        cmocka_unit_test(heavily_damaged_index_is_refused_or_consistent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
