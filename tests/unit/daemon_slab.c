/* Slots: the order in which they are taken, holds, generations, seals. */
#include "daemon/slab.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define SLOT_BYTES 4096u
#define SLOTS      4u

static struct slab slab;

static int set_up(void **state) {
    (void)state;
    return slab_open(
        &slab,
        &(struct slab_options){
            .replicas = 2, .replica_slots = SLOTS, .slot_bytes = SLOT_BYTES, .node = SLAB_NODE_ANY},
        NULL);
}

static int tear_down(void **state) {
    (void)state;
    slab_close(&slab);
    slab_close(&slab);
    return 0;
}

static uint32_t filled(uint32_t replica, uint64_t position, uint64_t passed) {
    int slot = slab_take(&slab, replica, position, passed, 100);
    assert_true(slot >= 0);
    slab_ready(&slab, (uint32_t)slot, 7);
    return (uint32_t)slot;
}

static void replicas_own_their_slots(void **state) {
    (void)state;
    for (uint64_t position = 0; position < SLOTS; position++) {
        uint32_t slot = filled(0, position, 0);
        assert_true(slot < SLOTS);
    }
    assert_int_equal(slab_take(&slab, 0, SLOTS, 0, 100), -EAGAIN);
    assert_true(filled(1, 0, 0) >= SLOTS);
    assert_int_equal(slab_find(&slab, 1, 3), -ENOENT);
    assert_int_equal(slab_find(&slab, 0, 3), 3);
    assert_int_equal(slab_bytes_used(&slab), 5 * SLOT_BYTES);
}

static void what_all_have_passed_goes_first_oldest_first(void **state) {
    (void)state;
    for (uint64_t position = 0; position < SLOTS; position++) {
        filled(0, position, 0);
    }
    uint32_t slot = filled(0, 4, 3);
    assert_int_equal(slab.slots[slot].position, 4);
    assert_int_equal(slab_find(&slab, 0, 0), -ENOENT);
    filled(0, 5, 3);
    assert_int_equal(slab_find(&slab, 0, 1), -ENOENT);
    filled(0, 6, 3);
    assert_int_equal(slab_find(&slab, 0, 2), -ENOENT);
    assert_int_equal(slab_take(&slab, 0, 7, 3, 100), -EAGAIN);
}

static void an_earlier_batch_takes_the_slot_furthest_ahead(void **state) {
    (void)state;
    for (uint64_t position = 10; position < 10 + SLOTS; position++) {
        filled(0, position, 10);
    }
    filled(0, 2, 2);
    assert_int_equal(slab_find(&slab, 0, 13), -ENOENT);
    filled(0, 3, 2);
    assert_int_equal(slab_find(&slab, 0, 12), -ENOENT);
    assert_true(slab_find(&slab, 0, 10) >= 0);
}

static void held_and_unread_slots_are_never_taken(void **state) {
    (void)state;
    for (uint64_t position = 0; position < SLOTS - 1; position++) {
        slab_hold(&slab, filled(0, position, 0));
    }
    int reading = slab_take(&slab, 0, 3, 0, 100);
    assert_true(reading >= 0);
    assert_int_equal(slab_take(&slab, 0, 9, 9, 100), -EAGAIN);
    slab_release(&slab, (uint32_t)slab_find(&slab, 0, 1));
    filled(0, 9, 9);
    assert_int_equal(slab_find(&slab, 0, 1), -ENOENT);
    assert_int_equal(slab_take(&slab, 0, 10, 9, 100), -EAGAIN);
}

static void the_last_unheld_slot_is_for_the_slowest(void **state) {
    uint32_t slots[SLOTS];
    (void)state;
    for (uint32_t i = 0; i < SLOTS; i++) {
        slots[i] = filled(0, i, 0);
    }
    for (uint32_t i = 0; i < SLOTS - 1; i++) {
        assert_true(slab_may_hold(&slab, slots[i], false));
        slab_hold(&slab, slots[i]);
    }
    assert_false(slab_may_hold(&slab, slots[SLOTS - 1], false));
    assert_true(slab_may_hold(&slab, slots[SLOTS - 1], true));
    assert_true(slab_may_hold(&slab, slots[0], false));
}

static void a_failed_slot_stays_until_a_retry(void **state) {
    (void)state;
    int slot = slab_take(&slab, 0, 5, 0, 100);
    slab_fail(&slab, (uint32_t)slot);
    assert_int_equal(slab_find(&slab, 0, 5), slot);
    slab_retry(&slab, 1);
    assert_int_equal(slab_find(&slab, 0, 5), slot);
    slab_retry(&slab, 0);
    assert_int_equal(slab_find(&slab, 0, 5), -ENOENT);
    assert_int_equal(slab_bytes_used(&slab), 0);
    assert_int_equal(slab.used_high_water, 1);
}

static void reuse_changes_the_generation_in_the_header(void **state) {
    uint64_t seen[2];
    (void)state;
    uint32_t slot = filled(0, 0, 0);
    memcpy(&seen[0], (uint8_t *)slab_payload(&slab, slot) - SLOT_HEADER_BYTES, sizeof seen[0]);
    assert_int_equal(seen[0], slab.slots[slot].generation);
    for (uint64_t position = 1; position < SLOTS + 1; position++) {
        filled(0, position, position);
    }
    assert_int_equal(slab_find(&slab, 0, 4), slot);
    memcpy(&seen[1], (uint8_t *)slab_payload(&slab, slot) - SLOT_HEADER_BYTES, sizeof seen[1]);
    assert_int_equal(seen[1], seen[0] + 1);
}

static void only_the_daemon_can_write_and_nobody_can_shrink(void **state) {
    (void)state;
    int fd = dup(slab.memory.fd);
    assert_ptr_equal(mmap(NULL, SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_int_equal(ftruncate(fd, 0), -1);
    const char *shared = mmap(NULL, slab_bytes(&slab), PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    memcpy(slab_payload(&slab, 1), "tokens", 6);
    assert_memory_equal(shared + SLOT_BYTES + SLOT_HEADER_BYTES, "tokens", 6);
    munmap((void *)shared, slab_bytes(&slab));
    close(fd);
}

static void writes_through(const struct slab_memory *memory) {
    memset(memory->base, 1, memory->bytes);
    const uint8_t *shared = mmap(NULL, memory->bytes, PROT_READ, MAP_SHARED, memory->fd, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    assert_int_equal(shared[memory->bytes - 1], 1);
    munmap((void *)shared, memory->bytes);
    assert_int_equal(ftruncate(memory->fd, 0), -1);
}

static void huge_pages_are_tried_or_demanded(void **state) {
    struct slab_memory memory;
    struct error error;
    (void)state;
    assert_int_equal(slab_memory_open(&memory, 3 << 20, SLAB_HUGE_TRY, SLAB_NODE_ANY, &error), 0);
    assert_int_not_equal(memory.pages, SLAB_PAGES_SMALL);
    assert_int_equal(memory.bytes, memory.pages == SLAB_PAGES_HUGE ? 4 << 20 : 3 << 20);
    writes_through(&memory);
    slab_memory_close(&memory);
    slab_memory_close(&memory);
    int code = slab_memory_open(&memory, 1ull << 30, SLAB_HUGE_ON, SLAB_NODE_ANY, &error);
    if (code < 0) {
        assert_non_null(strstr(error.text, "vm.nr_hugepages"));
        assert_non_null(strstr(error.text, "1024 MiB"));
        assert_int_equal(memory.fd, -1);
    } else {
        assert_int_equal(memory.pages, SLAB_PAGES_HUGE);
    }
    slab_memory_close(&memory);
}

static void memory_is_bound_to_a_node_that_is_there(void **state) {
    struct slab_memory memory;
    struct error error;
    (void)state;
    assert_true(slab_memory_open(&memory, 1 << 20, SLAB_HUGE_OFF, SLAB_NODES_MAX - 1, &error) < 0);
    assert_non_null(strstr(error.text, "NUMA node 1023"));
    assert_non_null(strstr(error.text, "slab.numa_node"));
    int code = slab_memory_open(&memory, 1 << 20, SLAB_HUGE_OFF, 0, &error);
    if (code == -EPERM || code == -ENOSYS) { /* a container's, or a kernel without nodes */
        skip();
    }
    assert_int_equal(code, 0);
    writes_through(&memory);
    slab_memory_close(&memory);
}

static void more_than_the_machine_has_is_refused_with_what_to_lower(void **state) {
    struct slab_memory memory;
    struct error error;
    (void)state;
    assert_int_equal(slab_memory_open(&memory, 1ull << 46, SLAB_HUGE_OFF, SLAB_NODE_ANY, &error),
                     -ENOMEM);
    assert_non_null(strstr(error.text, "67108864 MiB do not fit"));
    assert_non_null(strstr(error.text, "slab.slots"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(replicas_own_their_slots),
        TEST(what_all_have_passed_goes_first_oldest_first),
        TEST(an_earlier_batch_takes_the_slot_furthest_ahead),
        TEST(held_and_unread_slots_are_never_taken),
        TEST(the_last_unheld_slot_is_for_the_slowest),
        TEST(a_failed_slot_stays_until_a_retry),
        TEST(reuse_changes_the_generation_in_the_header),
        TEST(huge_pages_are_tried_or_demanded),
        TEST(memory_is_bound_to_a_node_that_is_there),
        TEST(more_than_the_machine_has_is_refused_with_what_to_lower),
        TEST(only_the_daemon_can_write_and_nobody_can_shrink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
