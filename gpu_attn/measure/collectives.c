/* collectives: see the header. */
#include "gpu_attn/measure/collectives.h"

#include "gpu_attn/error.h"
#include "gpu_attn/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"

enum { NCCL_BF16 = 9, NCCL_SUM = 0, BF16_BYTES = 2 };

struct nccl_id {
    char bytes[BALLAST_NCCL_ID_BYTES];
};

struct nccl {
    int (*init_rank)(void **communicator, int ranks, struct nccl_id id, int rank);
    int (*destroy)(void *communicator);
    int (*all_gather)(const void *send, void *receive, size_t count, int type, void *communicator,
                      void *stream);
    int (*reduce_scatter)(const void *send, void *receive, size_t count, int type, int operation,
                          void *communicator, void *stream);
    const char *(*error_string)(int result);
};

static const struct attn_symbol symbols[] = {
    {"ncclCommInitRank", offsetof(struct nccl, init_rank)},
    {"ncclCommDestroy", offsetof(struct nccl, destroy)},
    {"ncclAllGather", offsetof(struct nccl, all_gather)},
    {"ncclReduceScatter", offsetof(struct nccl, reduce_scatter)},
    {"ncclGetErrorString", offsetof(struct nccl, error_string)},
};

struct collectives {
    void *library;
    struct nccl nccl;
    void *communicator;
    uint32_t rank;
};

static int check(const struct collectives *c, int result, const char *doing,
                 struct ballast_attn_error *error) {
    return result == 0 ? 0
                       : attn_error(error, -EIO, "rank %u, %s: NCCL: %s", c->rank, doing,
                                    c->nccl.error_string(result));
}

static int library_open(struct collectives *c, struct ballast_attn_error *error) {
    c->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    return c->library == NULL
               ? attn_error(error, -ENODEV, "no NCCL: %s", dlerror())
               : attn_symbols_find(c->library, LIBRARY, symbols, sizeof symbols / sizeof *symbols,
                                   &c->nccl, error);
}

int collectives_open(struct collectives **out, const uint8_t id[BALLAST_NCCL_ID_BYTES],
                     uint32_t rank, uint32_t ranks, struct ballast_attn_error *error) {
    struct collectives *made = calloc(1, sizeof *made);
    struct nccl_id unique;
    if (made == NULL) {
        return attn_error(error, -ENOMEM, "out of memory");
    }
    made->rank = rank;
    memcpy(unique.bytes, id, sizeof unique.bytes);
    int result = library_open(made, error);
    if (result == 0) {
        result = check(made,
                       made->nccl.init_rank(&made->communicator, (int)ranks, unique, (int)rank),
                       "joining the communicator", error);
    }
    if (result != 0) {
        collectives_close(made);
        return result;
    }
    *out = made;
    return 0;
}

void collectives_close(struct collectives *collectives) {
    if (collectives == NULL) {
        return;
    }
    if (collectives->communicator != NULL) {
        (void)collectives->nccl.destroy(collectives->communicator);
    }
    if (collectives->library != NULL) {
        (void)dlclose(collectives->library);
    }
    free(collectives);
}

int collectives_all_gather(struct collectives *collectives, void *memory, uint64_t each,
                           struct ballast_attn_error *error) {
    const char *own = (const char *)memory + collectives->rank * each;
    return check(collectives,
                 collectives->nccl.all_gather(own, memory, each / BF16_BYTES, NCCL_BF16,
                                              collectives->communicator, NULL),
                 "all-gather", error);
}

int collectives_reduce_scatter(struct collectives *collectives, void *memory, uint64_t each,
                               struct ballast_attn_error *error) {
    char *own = (char *)memory + collectives->rank * each;
    return check(collectives,
                 collectives->nccl.reduce_scatter(memory, own, each / BF16_BYTES, NCCL_BF16,
                                                  NCCL_SUM, collectives->communicator, NULL),
                 "reduce-scatter", error);
}
