/* exchange_nccl: the transport between GPUs.
 *
 * NCCL and the driver are found by dlopen, by signatures written out here, so that neither is
 * needed to build. One stream carries all transfers, in the order of the calls, which is the same
 * on all ranks; events tie it to the caller's. A pair of ranks without bytes is left out by both
 * sides, which is legal for sends and receives. Runs are copied and
 * floats added by one small kernel, in PTX, which every driver compiles for its chip: many short
 * runs a launch, for a batch of documents has thousands. */
#include "gpu_attn/ballast_exchange.h"
#include "gpu_attn/error.h"
#include "gpu_attn/symbols.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FLIGHTS     4u
#define GATHER_MAX  64u
#define ROW_THREADS 256u
#define BLOCKS_MAX  128u /* of a copy */

enum {
    NCCL_UINT8 = 1, /* ncclUint8 */
    STREAM_NON_BLOCKING = 1,
    EVENT_NO_TIMING = 2,
    CUDA_NOT_READY = 600,
};

struct nccl_id {
    char bytes[BALLAST_NCCL_ID_BYTES];
};

struct nccl_library {
    void *library;
    int (*get_id)(struct nccl_id *id);
    int (*init_rank)(void **communicator, int ranks, struct nccl_id id, int rank);
    int (*destroy)(void *communicator);
    int (*abort)(void *communicator);
    int (*async_error)(void *communicator, int *result);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *buffer, size_t count, int type, int peer, void *communicator,
                void *stream);
    int (*receive)(void *buffer, size_t count, int type, int peer, void *communicator,
                   void *stream);
    int (*all_gather)(const void *send, void *receive, size_t count, int type, void *communicator,
                      void *stream);
    const char *(*error_string)(int result);
};

struct cuda_library {
    void *library;
    int (*error_name)(int result, const char **name);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_query)(void *stream);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*alloc)(uint64_t *memory, size_t bytes);
    int (*free)(uint64_t memory);
    int (*copy_in)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*copy_out)(void *to, uint64_t from, size_t bytes, void *stream);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **params, void **extra);
};

static const struct attn_symbol nccl_symbols[] = {
    {"ncclGetUniqueId", offsetof(struct nccl_library, get_id)},
    {"ncclCommInitRank", offsetof(struct nccl_library, init_rank)},
    {"ncclCommDestroy", offsetof(struct nccl_library, destroy)},
    {"ncclCommAbort", offsetof(struct nccl_library, abort)},
    {"ncclCommGetAsyncError", offsetof(struct nccl_library, async_error)},
    {"ncclGroupStart", offsetof(struct nccl_library, group_start)},
    {"ncclGroupEnd", offsetof(struct nccl_library, group_end)},
    {"ncclSend", offsetof(struct nccl_library, send)},
    {"ncclRecv", offsetof(struct nccl_library, receive)},
    {"ncclAllGather", offsetof(struct nccl_library, all_gather)},
    {"ncclGetErrorString", offsetof(struct nccl_library, error_string)},
};

static const struct attn_symbol cuda_symbols[] = {
    {"cuGetErrorName", offsetof(struct cuda_library, error_name)},
    {"cuStreamCreate", offsetof(struct cuda_library, stream_create)},
    {"cuStreamDestroy_v2", offsetof(struct cuda_library, stream_destroy)},
    {"cuStreamQuery", offsetof(struct cuda_library, stream_query)},
    {"cuStreamWaitEvent", offsetof(struct cuda_library, stream_wait)},
    {"cuEventCreate", offsetof(struct cuda_library, event_create)},
    {"cuEventDestroy_v2", offsetof(struct cuda_library, event_destroy)},
    {"cuEventRecord", offsetof(struct cuda_library, event_record)},
    {"cuMemAlloc_v2", offsetof(struct cuda_library, alloc)},
    {"cuMemFree_v2", offsetof(struct cuda_library, free)},
    {"cuMemcpyHtoDAsync_v2", offsetof(struct cuda_library, copy_in)},
    {"cuMemcpyDtoHAsync_v2", offsetof(struct cuda_library, copy_out)},
    {"cuModuleLoadData", offsetof(struct cuda_library, module_load)},
    {"cuModuleUnload", offsetof(struct cuda_library, module_unload)},
    {"cuModuleGetFunction", offsetof(struct cuda_library, module_function)},
    {"cuLaunchKernel", offsetof(struct cuda_library, launch)},
};

_Static_assert(sizeof(struct ballast_copy) == 48 && BALLAST_COPIES_MAX == 64,
               "as rows_ptx reads them");

/* Of copy ctaid.y, words in turn over the blocks of x: to[row][i] = or += from[row][i]. Up to 64
 * copies are the kernel's parameters, so one launch takes the place of as many, and nothing must
 * outlive it. */
static const char rows_ptx[] =
    ".version 6.4\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry ballast_rows(.param .align 8 .b8 copies[3072], .param .u32 add)\n"
    "{\n"
    "    .reg .pred %p<3>;\n"
    "    .reg .b32 %r<7>;\n"
    "    .reg .b64 %d<17>;\n"
    "    .reg .f32 %f<3>;\n"
    "    mov.u32 %r1, %ctaid.y;\n"
    "    mul.wide.u32 %d1, %r1, 48;\n"
    "    mov.b64 %d2, copies;\n"
    "    add.u64 %d1, %d1, %d2;\n"
    "    ld.param.u64 %d3, [%d1];\n"
    "    ld.param.u64 %d4, [%d1+8];\n"
    "    ld.param.u64 %d5, [%d1+16];\n"
    "    ld.param.u64 %d6, [%d1+24];\n"
    "    ld.param.u64 %d7, [%d1+32];\n"
    "    ld.param.u64 %d8, [%d1+40];\n"
    "    ld.param.u32 %r2, [add];\n"
    "    setp.eq.u32 %p1, %r2, 0;\n"
    "    cvta.to.global.u64 %d3, %d3;\n"
    "    cvta.to.global.u64 %d5, %d5;\n"
    "    shr.u64 %d7, %d7, 2;\n"
    "    mul.lo.u64 %d8, %d7, %d8;\n"
    "    mov.u32 %r3, %ctaid.x;\n"
    "    mov.u32 %r4, %ntid.x;\n"
    "    mov.u32 %r5, %tid.x;\n"
    "    mul.wide.u32 %d9, %r3, %r4;\n"
    "    cvt.u64.u32 %d10, %r5;\n"
    "    add.u64 %d9, %d9, %d10;\n"
    "    mov.u32 %r6, %nctaid.x;\n"
    "    mul.wide.u32 %d10, %r6, %r4;\n"
    "next:\n"
    "    setp.ge.u64 %p2, %d9, %d8;\n"
    "    @%p2 bra done;\n"
    "    div.u64 %d11, %d9, %d7;\n"
    "    mul.lo.u64 %d12, %d11, %d7;\n"
    "    sub.u64 %d12, %d9, %d12;\n"
    "    shl.b64 %d12, %d12, 2;\n"
    "    mad.lo.u64 %d13, %d11, %d4, %d3;\n"
    "    add.u64 %d13, %d13, %d12;\n"
    "    mad.lo.u64 %d14, %d11, %d6, %d5;\n"
    "    add.u64 %d14, %d14, %d12;\n"
    "    ld.global.f32 %f1, [%d14];\n"
    "    @%p1 bra store;\n"
    "    ld.global.f32 %f2, [%d13];\n"
    "    add.f32 %f1, %f1, %f2;\n"
    "store:\n"
    "    st.global.f32 [%d13], %f1;\n"
    "    add.u64 %d9, %d9, %d10;\n"
    "    bra next;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

struct nccl_transport {
    struct ballast_exchange_transport transport; /* first */
    struct nccl_library nccl;
    struct cuda_library cuda;
    void *communicator;
    void *stream;
    void *ready[FLIGHTS]; /* the caller's stream has what is sent */
    void *done[FLIGHTS];
    void *module;
    void *rows;
    uint64_t gathered; /* device memory: mine, then all */
    uint64_t started;
    uint64_t waited;
    uint32_t deadline_ms;
    bool failed;
};

static struct nccl_transport *nccl_of(struct ballast_exchange_transport *transport) {
    return (struct nccl_transport *)transport;
}

/* `table` begins with the library's handle. */
static int library_open(void *table, const char *file, const struct attn_symbol *symbols,
                        size_t count, struct ballast_attn_error *error) {
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return attn_error(error, -ENODEV, "no NCCL exchange: %s", dlerror());
    }
    memcpy(table, &library, sizeof library);
    return attn_symbols_find(library, file, symbols, count, table, error);
}

static int nccl_library_open(struct nccl_library *nccl, struct ballast_attn_error *error) {
    return library_open(nccl, "libnccl.so.2", nccl_symbols,
                        sizeof nccl_symbols / sizeof nccl_symbols[0], error);
}

static void library_close(void *library) {
    if (library != NULL) {
        (void)dlclose(library);
    }
}

static int nccl_check(struct nccl_transport *t, int result, const char *doing,
                      struct ballast_attn_error *error) {
    if (result == 0) {
        return 0;
    }
    t->failed = true;
    return attn_error(error, -EIO, "rank %u, %s: NCCL: %s", t->transport.rank, doing,
                      t->nccl.error_string(result));
}

static int cuda_check(struct nccl_transport *t, int result, const char *doing,
                      struct ballast_attn_error *error) {
    const char *name = NULL;
    if (result == 0) {
        return 0;
    }
    t->failed = true;
    if (t->cuda.error_name(result, &name) != 0 || name == NULL) {
        name = "an unknown error";
    }
    return attn_error(error, -EIO, "rank %u, %s: %s", t->transport.rank, doing, name);
}

static int usable(struct nccl_transport *t, const char *doing, struct ballast_attn_error *error) {
    return t->failed ? attn_error(error, -EIO, "rank %u, %s: the transport has failed before",
                                  t->transport.rank, doing)
                     : 0;
}

/* All sends and receives of a transfer, as one. */
static int group_issue(struct nccl_transport *t, const struct ballast_exchange_transfer *transfer) {
    const char *send = transfer->send;
    char *receive = transfer->receive;
    int result = t->nccl.group_start();
    if (result != 0) {
        return result;
    }
    for (uint32_t peer = 0; result == 0 && peer < t->transport.ranks; peer++) {
        uint64_t out = transfer->send_bytes[peer];
        uint64_t in = transfer->receive_bytes[peer];
        if (out > 0) {
            result = t->nccl.send(send, out, NCCL_UINT8, (int)peer, t->communicator, t->stream);
        }
        if (result == 0 && in > 0) {
            result = t->nccl.receive(receive, in, NCCL_UINT8, (int)peer, t->communicator,
                                     t->stream);
        }
        send += out;
        receive += in;
    }
    int end = t->nccl.group_end();
    return result != 0 ? result : end;
}

static int nccl_start(struct ballast_exchange_transport *transport,
                      const struct ballast_exchange_transfer *transfer, void *stream,
                      struct ballast_attn_error *error) {
    struct nccl_transport *t = nccl_of(transport);
    uint32_t flight = t->started % FLIGHTS;
    int result = usable(t, transfer->name, error);
    if (result != 0) {
        return result;
    }
    assert(t->started - t->waited < FLIGHTS);
    result = t->cuda.event_record(t->ready[flight], stream);
    result = result != 0 ? result : t->cuda.stream_wait(t->stream, t->ready[flight], 0);
    if (result != 0) {
        return cuda_check(t, result, transfer->name, error);
    }
    result = nccl_check(t, group_issue(t, transfer), transfer->name, error);
    if (result != 0) {
        return result;
    }
    t->started++;
    return cuda_check(t, t->cuda.event_record(t->done[flight], t->stream), transfer->name, error);
}

static int nccl_wait(struct ballast_exchange_transport *transport, void *stream,
                     struct ballast_attn_error *error) {
    struct nccl_transport *t = nccl_of(transport);
    int asynchronous = 0;
    int result = usable(t, "waiting", error);
    if (result != 0) {
        return result;
    }
    assert(t->waited < t->started);
    result = nccl_check(t, t->nccl.async_error(t->communicator, &asynchronous), "waiting", error);
    result = result != 0 ? result : nccl_check(t, asynchronous, "waiting", error);
    if (result != 0) {
        return result;
    }
    uint32_t flight = t->waited++ % FLIGHTS;
    return cuda_check(t, t->cuda.stream_wait(stream, t->done[flight], 0), "waiting", error);
}

static int64_t now_ms(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Until the transport's stream is empty. */
static int stream_settle(struct nccl_transport *t, const char *doing,
                         struct ballast_attn_error *error) {
    const struct timespec pause = {.tv_nsec = 100000};
    int64_t deadline = now_ms() + t->deadline_ms;
    int result = t->cuda.stream_query(t->stream);
    while (result == CUDA_NOT_READY && now_ms() < deadline) {
        (void)nanosleep(&pause, NULL);
        result = t->cuda.stream_query(t->stream);
    }
    if (result == CUDA_NOT_READY) {
        t->failed = true;
        return attn_error(error, -ETIMEDOUT, "rank %u, %s: not all ranks came within %u ms",
                          t->transport.rank, doing, t->deadline_ms);
    }
    return cuda_check(t, result, doing, error);
}

static int nccl_gather(struct ballast_exchange_transport *transport, const void *mine, void *all,
                       size_t bytes, struct ballast_attn_error *error) {
    static const char doing[] = "agreement";
    struct nccl_transport *t = nccl_of(transport);
    uint64_t to = t->gathered + GATHER_MAX;
    assert(bytes <= GATHER_MAX);
    int result = usable(t, doing, error);
    if (result != 0) {
        return result;
    }
    result = cuda_check(t, t->cuda.copy_in(t->gathered, mine, bytes, t->stream), doing, error);
    if (result != 0) {
        return result;
    }
    result = nccl_check(t,
                        t->nccl.all_gather((const void *)(uintptr_t)t->gathered,
                                           (void *)(uintptr_t)to, bytes, NCCL_UINT8,
                                           t->communicator, t->stream),
                        doing, error);
    if (result != 0) {
        return result;
    }
    result = stream_settle(t, doing, error);
    if (result != 0) {
        return result;
    }
    result = cuda_check(t, t->cuda.copy_out(all, to, bytes * transport->ranks, t->stream), doing,
                        error);
    return result != 0 ? result : stream_settle(t, doing, error);
}

static int rows_launch(struct ballast_exchange_transport *transport,
                       const struct ballast_copy *copies, uint32_t count, bool add, void *stream,
                       struct ballast_attn_error *error) {
    struct nccl_transport *t = nccl_of(transport);
    struct ballast_copy listed[BALLAST_COPIES_MAX];
    uint32_t adds = add;
    size_t most = 0;
    assert(count > 0 && count <= BALLAST_COPIES_MAX);
    memset(listed, 0, sizeof listed);
    for (uint32_t i = 0; i < count; i++) {
        size_t words = copies[i].row_bytes / sizeof(float) * copies[i].rows;
        assert(copies[i].row_bytes % sizeof(float) == 0);
        listed[i] = copies[i];
        most = words > most ? words : most;
    }
    size_t blocks = (most + ROW_THREADS - 1) / ROW_THREADS;
    void *params[] = {listed, &adds};
    return cuda_check(t,
                      t->cuda.launch(t->rows, (unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX),
                                     count, 1, ROW_THREADS, 1, 1, 0, stream, params, NULL),
                      add ? "adding gradients" : "copying rows", error);
}

static int nccl_copy(struct ballast_exchange_transport *transport,
                     const struct ballast_copy *copies, uint32_t count, void *stream,
                     struct ballast_attn_error *error) {
    return rows_launch(transport, copies, count, false, stream, error);
}

static int nccl_add(struct ballast_exchange_transport *transport, const struct ballast_copy *copies,
                    uint32_t count, void *stream, struct ballast_attn_error *error) {
    return rows_launch(transport, copies, count, true, stream, error);
}

/* Whatever was made of it. A communicator that failed is aborted: others may never come. */
static void nccl_close(struct ballast_exchange_transport *transport) {
    struct nccl_transport *t = nccl_of(transport);
    if (t->communicator != NULL) {
        bool whole = !t->failed && stream_settle(t, "closing", NULL) == 0;
        (void)(whole ? t->nccl.destroy(t->communicator) : t->nccl.abort(t->communicator));
    }
    if (t->module != NULL) {
        (void)t->cuda.module_unload(t->module);
    }
    if (t->gathered != 0) {
        (void)t->cuda.free(t->gathered);
    }
    for (uint32_t i = 0; i < FLIGHTS; i++) {
        if (t->ready[i] != NULL) {
            (void)t->cuda.event_destroy(t->ready[i]);
        }
        if (t->done[i] != NULL) {
            (void)t->cuda.event_destroy(t->done[i]);
        }
    }
    if (t->stream != NULL) {
        (void)t->cuda.stream_destroy(t->stream);
    }
    library_close(t->nccl.library);
    library_close(t->cuda.library);
    free(t);
}

static const struct ballast_transport_operations nccl_operations = {
    .gather = nccl_gather,
    .start = nccl_start,
    .wait = nccl_wait,
    .copy = nccl_copy,
    .add = nccl_add,
    .close = nccl_close,
};

static int device_objects(struct nccl_transport *t) {
    int result = t->cuda.stream_create(&t->stream, STREAM_NON_BLOCKING);
    for (uint32_t i = 0; result == 0 && i < FLIGHTS; i++) {
        result = t->cuda.event_create(&t->ready[i], EVENT_NO_TIMING);
        result = result != 0 ? result : t->cuda.event_create(&t->done[i], EVENT_NO_TIMING);
    }
    result = result != 0 ? result : t->cuda.module_load(&t->module, rows_ptx);
    result = result != 0 ? result : t->cuda.module_function(&t->rows, t->module, "ballast_rows");
    return result != 0 ? result
                       : t->cuda.alloc(&t->gathered, GATHER_MAX * ((size_t)t->transport.ranks + 1));
}

static int nccl_init(struct nccl_transport *t, const uint8_t *id,
                     struct ballast_attn_error *error) {
    struct nccl_id unique;
    memcpy(unique.bytes, id, sizeof unique.bytes);
    int result = nccl_library_open(&t->nccl, error);
    result = result != 0 ? result
                         : library_open(&t->cuda, "libcuda.so.1", cuda_symbols,
                                        sizeof cuda_symbols / sizeof cuda_symbols[0], error);
    if (result != 0) {
        return result;
    }
    result = cuda_check(t, device_objects(t), "opening the exchange", error);
    if (result != 0) {
        return result;
    }
    return nccl_check(t,
                      t->nccl.init_rank(&t->communicator, (int)t->transport.ranks, unique,
                                        (int)t->transport.rank),
                      "joining the communicator", error);
}

int ballast_nccl_id(uint8_t id[BALLAST_NCCL_ID_BYTES], struct ballast_attn_error *error) {
    struct nccl_library nccl = {0};
    struct nccl_id unique;
    int result = nccl_library_open(&nccl, error);
    if (result == 0) {
        int code = nccl.get_id(&unique);
        if (code == 0) {
            memcpy(id, unique.bytes, sizeof unique.bytes);
        } else {
            result = attn_error(error, -EIO, "an identity for the communicator: NCCL: %s",
                                nccl.error_string(code));
        }
    }
    library_close(nccl.library);
    return result;
}

int ballast_transport_nccl(struct ballast_exchange_transport **out,
                           const uint8_t id[BALLAST_NCCL_ID_BYTES], uint32_t rank, uint32_t ranks,
                           uint32_t deadline_ms, struct ballast_attn_error *error) {
    if (ranks == 0 || rank >= ranks) {
        return attn_error(error, -EINVAL, "rank %u of %u", rank, ranks);
    }
    struct nccl_transport *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return attn_error(error, -ENOMEM, "no memory for a transport");
    }
    t->transport = (struct ballast_exchange_transport){
        .operations = &nccl_operations, .rank = rank, .ranks = ranks};
    t->deadline_ms = deadline_ms;
    int result = nccl_init(t, id, error);
    if (result != 0) {
        nccl_close(&t->transport);
        return result;
    }
    *out = &t->transport;
    return 0;
}
