/* emulator: blocks, fibers and schedules; barriers and shuffles. Copies and products are in
 * emulator_copies.c and emulator_products.c. */
#include "tests/kernels/emulator_block.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STACK_BYTES 65536u

/* Fibers that a failure abandoned leave the sanitizer's marks on their stacks. */
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
void __asan_unpoison_memory_region(const volatile void *memory, size_t bytes) __attribute__((weak));
#define STACKS_UNMARK(memory, bytes)                                                               \
    (__asan_unpoison_memory_region != NULL ? __asan_unpoison_memory_region(memory, bytes) : (void)0)
#else
#define STACKS_UNMARK(memory, bytes) ((void)0)
#endif

struct emulator emulator;

/* Saves the callee's registers and stack pointer, continues on another stack. */
void fiber_switch(void **save, void *to);
__asm__(".text\n"
        ".globl fiber_switch\n"
        "fiber_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n");

uint64_t emulator_random(void) {
    emulator.random ^= emulator.random << 13;
    emulator.random ^= emulator.random >> 7;
    emulator.random ^= emulator.random << 17;
    return emulator.random;
}

struct fiber *fiber_current(void) {
    return emulator.fiber;
}

struct block *block_current(void) {
    return emulator.fiber->block;
}

void fiber_yield(void) {
    emulator.counts.switches++;
    fiber_switch(&emulator.fiber->stack_pointer, emulator.scheduler);
}

void emulator_fail(const char *format, ...) {
    if (!emulator.failed) {
        struct fiber *fiber = emulator.fiber;
        int used = snprintf(emulator.error, sizeof emulator.error,
                            "block %d thread %d: ", fiber != NULL ? fiber->block->index : -1,
                            fiber != NULL ? fiber->thread : -1);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(emulator.error + used, sizeof emulator.error - (size_t)used, format,
                        arguments);
        va_end(arguments);
    }
    emulator.failed = true;
    while (emulator.fiber != NULL) {
        fiber_yield();
    }
}

const char *emulator_error(void) {
    return emulator.error;
}

struct emulator_counts emulator_counts(void) {
    return emulator.counts;
}

unsigned char *shared_at(struct block *block, uint32_t address, uint32_t bytes, const char *what) {
    uint32_t limit = emulator.launch->shared_bytes;
    if (address < SHARED_BASE || (uint64_t)address + bytes > (uint64_t)SHARED_BASE + limit) {
        emulator_fail("%s: shared address %u + %u is outside the block's %u bytes", what,
                      address - SHARED_BASE, bytes, limit);
        return block->shared; /* the scheduler's own accesses come back here */
    }
    return block->shared + (address - SHARED_BASE);
}

uint32_t shared_base(void) {
    return SHARED_BASE;
}

int thread_index(void) {
    return emulator.fiber->thread;
}

int block_index(void) {
    return emulator.fiber->block->index;
}

int block_count(void) {
    return emulator.launch->blocks;
}

/* Waits for a named barrier's generation to pass; counts the thread as arrived first. */
static void barrier_count(int id, int threads, bool waits) {
    struct fiber *fiber = emulator.fiber;
    struct named_barrier *barrier = &fiber->block->barriers[id];
    if (id < 0 || id >= BARRIERS || threads % 32 != 0) {
        emulator_fail("named barrier %d with %d threads", id, threads);
    }
    if (barrier->arrived > 0 && barrier->threads != threads) {
        emulator_fail("named barrier %d: %d threads, others said %d", id, threads,
                      barrier->threads);
    }
    uint64_t generation = barrier->generation;
    barrier->threads = threads;
    barrier->arrived++;
    emulator.progress++;
    emulator.counts.barriers++;
    if (barrier->arrived == threads) {
        barrier->arrived = 0;
        barrier->generation++;
        return;
    }
    while (waits && barrier->generation == generation) {
        fiber->waits_for = "named barrier";
        fiber->waits_on = (uint32_t)id;
        fiber_yield();
    }
    fiber->waits_for = NULL;
}

void barrier_sync(int id, int threads) {
    barrier_count(id, threads, true);
}

void barrier_arrive(int id, int threads) {
    barrier_count(id, threads, false);
}

void block_sync(void) {
    barrier_count(0, emulator.launch->threads, true);
}

/* mbarrier word: expected arrivals 16 | pending arrivals 16 | bytes + 2^30, 31 | phase 1. */
struct mbarrier {
    uint32_t arrivals;
    uint32_t pending;
    int32_t bytes;
    uint32_t phase;
};

static struct mbarrier mbarrier_read(struct block *block, uint32_t address) {
    uint64_t word;
    memcpy(&word, shared_at(block, address, 8, "mbarrier"), sizeof word);
    struct mbarrier barrier = {
        .arrivals = (uint32_t)(word & 0xffff),
        .pending = (uint32_t)(word >> 16 & 0xffff),
        .bytes = (int32_t)((int64_t)(word >> 32 & 0x7fffffff) - (1 << 30)),
        .phase = (uint32_t)(word >> 63),
    };
    if (address % 8 != 0 || barrier.arrivals == 0 || word == UINT64_MAX) {
        emulator_fail("mbarrier at %u was not initialised, or overwritten", address - SHARED_BASE);
    }
    return barrier;
}

static void mbarrier_write(struct block *block, uint32_t address, struct mbarrier barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        barrier.phase ^= 1;
        barrier.pending = barrier.arrivals;
    }
    uint64_t word = (uint64_t)barrier.arrivals | (uint64_t)barrier.pending << 16 |
                    (uint64_t)(uint32_t)(barrier.bytes + (1 << 30)) << 32 |
                    (uint64_t)barrier.phase << 63;
    memcpy(shared_at(block, address, 8, "mbarrier"), &word, sizeof word);
    emulator.progress++;
}

void mbarrier_init(uint32_t address, uint32_t arrivals) {
    struct mbarrier barrier = {.arrivals = arrivals, .pending = arrivals};
    mbarrier_write(block_current(), address, barrier);
}

void mbarrier_init_fence(void) {
}

static void mbarrier_count(uint32_t address, uint32_t bytes) {
    struct mbarrier barrier = mbarrier_read(block_current(), address);
    if (barrier.pending == 0) {
        emulator_fail("mbarrier at %u: more than its %u arrivals in one phase",
                      address - SHARED_BASE, barrier.arrivals);
    }
    barrier.pending--;
    barrier.bytes += (int32_t)bytes;
    mbarrier_write(block_current(), address, barrier);
}

void mbarrier_arrive(uint32_t address) {
    mbarrier_count(address, 0);
}

void mbarrier_expect(uint32_t address, uint32_t bytes) {
    mbarrier_count(address, bytes);
}

void mbarrier_bytes_done(struct block *block, uint32_t address, uint32_t bytes) {
    struct mbarrier barrier = mbarrier_read(block, address);
    barrier.bytes -= (int32_t)bytes;
    mbarrier_write(block, address, barrier);
}

void mbarrier_wait(uint32_t address, uint32_t parity) {
    struct fiber *fiber = emulator.fiber;
    while (mbarrier_read(fiber->block, address).phase == parity) {
        fiber->waits_for = "mbarrier";
        fiber->waits_on = address - SHARED_BASE;
        fiber_yield();
    }
    fiber->waits_for = NULL;
}

/* Two slots a warp: a lane that is one shuffle ahead does not disturb those still reading. */
float shuffle_xor(float value, int mask) {
    struct fiber *fiber = emulator.fiber;
    struct warp *warp = &fiber->block->warps[fiber->thread / 32];
    struct shuffle *slot = &warp->shuffles[fiber->shuffles % 2];
    uint64_t turn = fiber->shuffles++ / 2;
    int lane = fiber->thread % 32;
    fiber->waits_for = "shuffle";
    while (slot->turn != turn) {
        fiber_yield();
    }
    if (slot->count > 0 && slot->mask != mask) {
        emulator_fail("shuffle: lanes of a warp disagree about the mask");
    }
    slot->mask = mask;
    slot->values[lane] = value;
    slot->count++;
    emulator.progress++;
    while (slot->turn == turn && slot->count < 32) {
        fiber_yield();
    }
    fiber->waits_for = NULL;
    value = slot->values[lane ^ mask];
    if (++slot->count == 64) {
        slot->count = 0;
        slot->turn++;
    }
    emulator.progress++;
    return value;
}

static void fiber_main(void) {
    emulator.kernel(emulator.params);
    struct fiber *fiber = emulator.fiber;
    if (fiber->uncommitted > 0) {
        emulator_fail("thread ended with bulk additions that no group holds");
    }
    fiber->done = true;
    fiber->block->running--;
    emulator.progress++;
    for (;;) {
        fiber_yield();
    }
}

static void fiber_init(struct fiber *fiber, struct block *block, int thread) {
    *fiber = (struct fiber){.block = block, .thread = thread};
    void **top = (void **)(block->stacks + (size_t)STACK_BYTES * (unsigned)(thread + 1));
    *--top = NULL;
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) {
        *--top = NULL;
    }
    fiber->stack_pointer = (void *)top;
}

static void block_start(struct block *block, int index) {
    int threads = emulator.launch->threads;
    block->index = index;
    block->running = threads;
    block->products = 0;
    memset(block->shared, 0xff, emulator.launch->shared_bytes);
    memset(block->chunks, 0, sizeof block->chunks);
    memset(block->warps, 0, sizeof block->warps);
    memset(block->barriers, 0, sizeof block->barriers);
    STACKS_UNMARK(block->stacks, (size_t)STACK_BYTES * (unsigned)threads);
    for (int thread = 0; thread < threads; thread++) {
        fiber_init(&block->fibers[thread], block, thread);
    }
}

static void block_end(struct block *block) {
    if (block->products > emulator.busiest) {
        emulator.busiest = block->products;
    }
    for (int id = 0; id < BARRIERS; id++) {
        if (block->barriers[id].arrived > 0) {
            emulator_fail("block %d ended with threads at named barrier %d", block->index, id);
        }
    }
    if (copies_of(block) > 0) {
        emulator_fail("block %d ended with copies in flight", block->index);
    }
}

/* Starts what there is room for; returns how many blocks are running. */
static int blocks_refill(int *next) {
    int running = 0;
    for (int i = 0; i < emulator.launch->resident; i++) {
        struct block *block = &emulator.blocks[i];
        if (block->running == 0 && block->index >= 0) {
            block_end(block);
            block->index = -1;
        }
        if (block->running == 0 && *next < emulator.launch->blocks) {
            block_start(block, (*next)++);
        }
        running += block->running > 0;
    }
    return running;
}

static bool schedule_is_random(void) {
    return emulator.launch->schedule >= EMULATOR_RANDOM;
}

static void order_shuffle(int *order, int count) {
    for (int i = count - 1; i > 0; i--) {
        int j = (int)(emulator_random() % (unsigned)(i + 1));
        int swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

/* One turn of every thread that may move. `held` is a warp over all blocks, -1 for none. */
static void round_run(int *order, int held) {
    int threads = emulator.launch->threads;
    int count = threads * emulator.launch->resident;
    if (schedule_is_random()) {
        order_shuffle(order, count);
    }
    for (int i = 0; i < count && !emulator.failed; i++) {
        struct block *block = &emulator.blocks[order[i] / threads];
        struct fiber *fiber = &block->fibers[order[i] % threads];
        if (block->running == 0 || fiber->done || order[i] / 32 == held) {
            continue;
        }
        emulator.fiber = fiber;
        fiber_switch(&emulator.scheduler, fiber->stack_pointer);
        emulator.fiber = NULL;
    }
}

static void report_deadlock(void) {
    char text[sizeof emulator.error];
    int used = snprintf(text, sizeof text, "deadlock:");
    for (int i = 0; i < emulator.launch->resident; i++) {
        const struct block *block = &emulator.blocks[i];
        for (int t = 0; block->running > 0 && t < emulator.launch->threads && used < 900; t += 32) {
            const struct fiber *fiber = &block->fibers[t];
            if (!fiber->done) {
                used += snprintf(text + used, sizeof text - (size_t)used,
                                 " block %d warp %d: %s %u;", block->index, t / 32,
                                 fiber->waits_for != NULL ? fiber->waits_for : "?",
                                 fiber->waits_on);
            }
        }
    }
    emulator_fail("%s", text);
}

/* Nothing moved: the next thing that has to happen does. Returns false when there is none. */
static bool idle_step(bool were_due) {
    bool products = emulator.product_waiters > 0 && !were_due;
    bool copies = copies_pending() > 0;
    if (products && (!copies || !schedule_is_random() || emulator_random() % 2 == 0)) {
        emulator.products_due = true;
    } else if (copies) {
        copies_run_one();
    } else {
        return false;
    }
    return true;
}

static void launch_loop(int *order) {
    int held = -1;
    uint64_t rounds = 0;
    int warps = emulator.launch->threads / 32 * emulator.launch->resident;
    bool release = false;
    for (int next = 0; !emulator.failed && blocks_refill(&next) > 0;) {
        uint64_t before = emulator.progress;
        if (emulator.launch->schedule == EMULATOR_STARVE && (release || rounds++ % 97 == 0)) {
            held = (int)(emulator_random() % (unsigned)warps);
        }
        bool holding = held >= 0 && !release;
        bool were_due = emulator.products_due;
        round_run(order, holding ? held : -1);
        emulator.products_due = false;
        release = false;
        bool idle = emulator.progress == before;
        bool fires = schedule_is_random() && emulator_random() % 4 == 0;
        if (emulator.failed || (idle && idle_step(were_due))) {
            continue;
        }
        if (idle && holding) {
            release = true;
        } else if (idle) {
            report_deadlock();
        } else if (fires && copies_pending() > 0) {
            copies_run_one();
        }
    }
}

static void launch_memory(int **order) {
    size_t threads = (size_t)emulator.launch->threads;
    int resident = emulator.launch->resident;
    *order = calloc((size_t)resident * threads, sizeof **order);
    emulator.blocks = calloc((size_t)resident, sizeof *emulator.blocks);
    assert(*order != NULL && emulator.blocks != NULL);
    for (int i = 0; i < resident; i++) {
        struct block *block = &emulator.blocks[i];
        block->index = -1;
        block->shared = aligned_alloc(1024, (SHARED_MAX + 1023) / 1024 * 1024);
        block->stacks = mmap(NULL, STACK_BYTES * threads, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(block->shared != NULL && block->stacks != MAP_FAILED);
    }
    for (int i = 0; i < resident * emulator.launch->threads; i++) {
        (*order)[i] = i;
    }
}

static void launch_release(int *order) {
    for (int i = 0; i < emulator.launch->resident; i++) {
        munmap(emulator.blocks[i].stacks, STACK_BYTES * (size_t)emulator.launch->threads);
        free(emulator.blocks[i].shared);
    }
    free(emulator.blocks);
    free(order);
    emulator.blocks = NULL;
}

int emulator_run(const struct emulator_launch *launch, emulator_kernel *kernel,
                 const void *params) {
    int *order = NULL;
    emulator.launch = launch;
    emulator.kernel = kernel;
    emulator.params = params;
    emulator.random = launch->seed * UINT64_C(2654435761) + UINT64_C(88172645463325252);
    emulator.failed = false;
    emulator.error[0] = '\0';
    emulator.fiber = NULL;
    emulator.product_waiters = 0;
    emulator.products_due = false;
    emulator.busiest = 0;
    copies_reset();
    if (launch->shared_bytes > SHARED_MAX || launch->threads > THREADS_MAX) {
        emulator_fail("%u bytes of shared memory, %d threads: the chip has %u and %d",
                      launch->shared_bytes, launch->threads, SHARED_MAX, THREADS_MAX);
        return -1;
    }
    launch_memory(&order);
    launch_loop(order);
    launch_release(order);
    emulator.counts.busiest += emulator.busiest;
    return emulator.failed ? -1 : 0;
}
