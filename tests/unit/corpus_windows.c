/* Lengths and offsets of an index too large to keep: the file is made up as it is read. */
#include "corpus/megatron.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define DOCUMENTS (WINDOW_DOCUMENTS * WINDOWS_MAX + 3 * WINDOW_DOCUMENTS + 17u)

struct world {
    struct windows *windows;
    uint32_t reads;   /* since open */
    uint32_t failing; /* reads that fail next */
    int code;         /* with this */
    uint64_t changed; /* a document whose length is another one now; UINT64_MAX: none */
    bool reversed;    /* offsets count down */
};

static struct world world;

static uint32_t length_of(uint64_t i) {
    return (uint32_t)((i * 2654435761u) >> 7) % 3000;
}

/* Told apart, whatever the length. */
static uint64_t offset_of(uint64_t i) {
    return 2 * (DOCUMENTS - i);
}

static int world_read(const void *context, uint64_t at, void *to, size_t count) {
    (void)context;
    __atomic_add_fetch(&world.reads, 1, __ATOMIC_RELAXED);
    if (world.failing > 0) {
        world.failing--;
        return world.code;
    }
    if (at < 4 * (uint64_t)DOCUMENTS) {
        for (size_t i = 0; i < count / 4; i++) {
            uint64_t document = at / 4 + i;
            ((uint32_t *)to)[i] = length_of(document) + (document == world.changed);
        }
    } else {
        for (size_t i = 0; i < count / 8; i++) {
            ((uint64_t *)to)[i] = offset_of((at - 4 * (uint64_t)DOCUMENTS) / 8 + i);
        }
    }
    return 0;
}

static void world_open(uint64_t documents, bool reversed) {
    const struct windows_file file = {
        .path = "large.idx", .offsets_at = 4 * (uint64_t)DOCUMENTS, .read = world_read};
    uint32_t lengths[WINDOW_DOCUMENTS];
    uint64_t offsets[WINDOW_DOCUMENTS];
    world = (struct world){.changed = UINT64_MAX, .reversed = reversed};
    world.windows = windows_create(&file, documents, 2);
    assert_non_null(world.windows);
    for (int pass = 0; pass <= reversed; pass++) {
        for (uint64_t from = 0; from < documents; from += WINDOW_DOCUMENTS) {
            size_t count = documents - from < WINDOW_DOCUMENTS ? documents - from
                                                               : WINDOW_DOCUMENTS;
            for (size_t i = 0; i < count; i++) {
                lengths[i] = length_of(from + i);
                offsets[i] = offset_of(from + i);
            }
            if (pass == 0) {
                windows_put_lengths(world.windows, lengths, count);
            } else {
                windows_put_offsets(world.windows, offsets, count);
            }
        }
        if (reversed && pass == 0) {
            assert_int_equal(windows_want_offsets(world.windows), 0);
        }
    }
}

static uint64_t random_next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 20;
}

static void every_document_is_found_in_any_order(void **state) {
    (void)state;
    world_open(DOCUMENTS, false);
    assert_false(windows_resident(world.windows));
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        if (windows_length(world.windows, i) != length_of(i) ||
            (i % 61 == 0 && windows_offset(world.windows, i) != 2 * tokens)) {
            fail_msg("document %llu", (unsigned long long)i);
        }
        tokens += length_of(i);
    }
    /* Offsets out of order agree with those that an ascending walk gives. */
    uint64_t random = 7;
    for (uint32_t n = 0; n < 20000; n++) {
        uint64_t i = random_next(&random) % (DOCUMENTS - 1);
        uint64_t here = windows_offset(world.windows, i);
        assert_int_equal(windows_length(world.windows, i), length_of(i));
        assert_int_equal(windows_offset(world.windows, i + 1), here + 2 * length_of(i));
    }
    assert_int_equal(windows_failed(world.windows, NULL), 0);
    windows_destroy(world.windows);
}

static void a_small_index_is_not_read_again(void **state) {
    (void)state;
    const uint64_t sizes[] = {1, WINDOW_DOCUMENTS - 1, WINDOW_DOCUMENTS, WINDOW_DOCUMENTS + 1,
                              10 * WINDOW_DOCUMENTS + 5};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        world_open(sizes[n], n % 2 == 1);
        world.failing = UINT32_MAX;
        assert_true(windows_resident(world.windows));
        for (uint64_t i = 0; i < sizes[n]; i++) {
            assert_int_equal(windows_length(world.windows, i), length_of(i));
            assert_true(!world.reversed || windows_offset(world.windows, i) == offset_of(i));
        }
        assert_int_equal(world.reads, 0);
        windows_destroy(world.windows);
    }
}

static void offsets_that_do_not_follow_are_read_with_their_lengths(void **state) {
    (void)state;
    uint64_t random = 11;
    world_open(DOCUMENTS, true);
    for (uint32_t n = 0; n < 20000; n++) {
        uint64_t i = random_next(&random) % DOCUMENTS;
        assert_int_equal(windows_offset(world.windows, i), offset_of(i));
        assert_int_equal(windows_length(world.windows, i), length_of(i));
    }
    windows_destroy(world.windows);
}

/* Document 0 was evicted while the index was put. */
static void a_file_that_changes_is_noticed_and_never_believed(void **state) {
    (void)state;
    struct error error = {0};
    world_open(DOCUMENTS, false);
    world.changed = 5;
    assert_int_equal(windows_length(world.windows, 0), 0);
    assert_int_equal(windows_offset(world.windows, 9), WINDOWS_NOWHERE);
    assert_int_equal(windows_length(world.windows, DOCUMENTS - 1), length_of(DOCUMENTS - 1));
    assert_int_equal(windows_failed(world.windows, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "large.idx: the index at offset 0 has changed"));
    windows_destroy(world.windows);
}

static void reading_is_tried_three_times(void **state) {
    (void)state;
    struct error error = {0};
    world_open(DOCUMENTS, false);
    world.code = -EIO;
    world.failing = 2;
    assert_int_equal(windows_length(world.windows, 0), length_of(0));
    assert_int_equal(windows_failed(world.windows, NULL), 0);
    world.failing = 3;
    assert_int_equal(windows_length(world.windows, WINDOW_DOCUMENTS), 0);
    assert_int_equal(windows_failed(world.windows, &error), -EIO);
    assert_non_null(strstr(error.text, "cannot be read any more"));
    windows_destroy(world.windows);
    world_open(DOCUMENTS, false);
    world.code = -ESTALE;
    world.failing = 1;
    assert_int_equal(windows_length(world.windows, 0), 0);
    assert_int_equal(windows_failed(world.windows, &error), -ESTALE);
    windows_destroy(world.windows);
}

static void *ask_at_random(void *argument) {
    uint64_t random = *(const uint64_t *)argument;
    for (uint32_t n = 0; n < 20000; n++) {
        /* chunks that share two places */
        uint64_t i = random_next(&random) % (2 * WINDOW_DOCUMENTS) +
                     random % 2 * WINDOW_DOCUMENTS * WINDOWS_MAX;
        if (windows_length(world.windows, i) != length_of(i)) {
            return argument;
        }
    }
    return NULL;
}

static void threads_do_not_disturb_one_another(void **state) {
    (void)state;
    pthread_t threads[3];
    uint64_t seeds[3] = {1, 2, 3};
    world_open(DOCUMENTS, false);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, ask_at_random, &seeds[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *wrong;
        (void)pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    windows_destroy(world.windows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_document_is_found_in_any_order),
        cmocka_unit_test(a_small_index_is_not_read_again),
        cmocka_unit_test(offsets_that_do_not_follow_are_read_with_their_lengths),
        cmocka_unit_test(a_file_that_changes_is_noticed_and_never_believed),
        cmocka_unit_test(reading_is_tried_three_times),
        cmocka_unit_test(threads_do_not_disturb_one_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
