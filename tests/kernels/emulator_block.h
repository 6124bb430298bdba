/* emulator_block: the state of a launch, shared by the emulator's files. */
#ifndef BALLAST_TESTS_EMULATOR_BLOCK_H
#define BALLAST_TESTS_EMULATOR_BLOCK_H

#include "tests/kernels/emulator.h"

#include <stdbool.h>
#include <stddef.h>

#define SHARED_BASE  1024u   /* where a block's dynamic shared memory begins */
#define SHARED_MAX   232448u /* 227 KB */
#define THREADS_MAX  384
#define WARPS_MAX    (THREADS_MAX / 32)
#define BARRIERS     16
#define PRODUCTS_MAX 64u /* in flight of a warp */
#define GROUPS_MAX   16u
#define STORES_MAX   512u /* not yet fenced, of a thread */
#define CHUNK_BYTES  16u
#define CHUNKS_MAX   (SHARED_MAX / CHUNK_BYTES)

struct block;

struct fiber {
    void *stack_pointer;
    struct block *block;
    int thread;
    bool done;
    const char *waits_for;
    uint32_t waits_on;
    uint64_t shuffles;
    uint64_t products;               /* issued */
    uint64_t group_ends[GROUPS_MAX]; /* of committed, not yet awaited groups of products */
    uint32_t groups;
    bool fenced; /* wgmma_fence since it last awaited products, and so had sums to look at */
    uint32_t uncommitted;        /* bulk additions since the last commit */
    uint64_t bulk_groups;        /* committed */
    uint32_t stores[STORES_MAX]; /* chunks stored, not fenced */
    uint32_t store_count;
};

struct product {
    struct emulator_product what;
    float *d[32];
    const uint32_t *a[32];
    int lanes;
    bool done;
};

struct shuffle {
    uint64_t turn;
    int count; /* 32 have given, 64 have taken */
    int mask;
    float values[32];
};

struct warp {
    struct product products[PRODUCTS_MAX]; /* ring */
    uint64_t first;                        /* oldest in the ring */
    uint64_t end;
    struct shuffle shuffles[2];
};

struct named_barrier {
    int threads;
    int arrived;
    uint64_t generation;
};

/* What is known of 16 bytes of shared memory. */
struct chunk {
    uint16_t stored_by; /* thread + 1 whose store is not fenced */
    uint8_t writes;     /* copies in flight that will write it */
    uint8_t reads;      /* that will read it */
};

struct block {
    int index; /* -1: none */
    int running;
    uint64_t products; /* done */
    unsigned char *shared;
    unsigned char *stacks;
    struct fiber fibers[THREADS_MAX];
    struct warp warps[WARPS_MAX];
    struct named_barrier barriers[BARRIERS];
    struct chunk chunks[CHUNKS_MAX];
};

struct emulator {
    const struct emulator_launch *launch;
    emulator_kernel *kernel;
    const void *params;
    struct block *blocks;
    struct fiber *fiber; /* running; NULL in the scheduler */
    void *scheduler;     /* its stack pointer */
    uint64_t random;
    uint64_t progress;        /* changes whenever anything does */
    uint64_t busiest;         /* products of this launch's block with the most */
    uint32_t product_waiters; /* threads that wait for products */
    bool products_due;        /* nothing else could move: they happen now */
    bool failed;
    char error[1024];
    struct emulator_counts counts;
};

extern struct emulator emulator;

/* Records the first failure and never returns to a fiber; to the scheduler it does. */
void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t emulator_random(void);
struct fiber *fiber_current(void);
struct block *block_current(void);
void fiber_yield(void);
unsigned char *shared_at(struct block *block, uint32_t address, uint32_t bytes, const char *what);
void mbarrier_bytes_done(struct block *block, uint32_t address, uint32_t bytes);

/* Fails unless an asynchronous read may see the 16 bytes at an address. */
void chunk_check_read(struct block *block, uint32_t address, const char *what);

/* emulator_copies.c */
void copies_reset(void);
uint32_t copies_pending(void);
uint32_t copies_of(const struct block *block);
void copies_run_one(void);

#endif
