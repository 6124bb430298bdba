/* What a client accepts as a batch it can gather: no message, however made, leads a gather loop out
 * of the slot or of the caller's buffer, or one over a pool out of its rows and heads. The first
 * byte picks the rank and the token width. */
#include "client/batch.h"
#include "client/mapping.h"
#include "client/rank_verify.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_SLAB_BYTES 8192u
#define FUZZ_TOKENS_MAX 2048u
#define FUZZ_DP         4u
/* Setting up is not what is tested, but must have worked. */
#define FUZZ_MUST(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
#define FUZZ_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* The mapping that a daemon would pass, all zeros: every generation is 0. */
static struct mapping *fuzz_mapping(void) {
    static struct mapping *mapping;
    char byte = 0;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (mapping != NULL) {
        return mapping;
    }
    int pair[2], fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_MUST(fd >= 0 && ftruncate(fd, FUZZ_SLAB_BYTES) == 0);
    FUZZ_MUST(fcntl(fd, F_ADD_SEALS, FUZZ_SEALS) == 0);
    FUZZ_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    *part = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    *(int *)(void *)CMSG_DATA(part) = fd;
    FUZZ_MUST(sendmsg(pair[0], &message, 0) == 1);
    struct error error = {0};
    const struct mapping_options options = {0};
    FUZZ_MUST(mapping_receive(pair[1], FUZZ_SLAB_BYTES, &options, &mapping, &error) == 1);
    close(pair[0]);
    close(pair[1]);
    close(fd);
    return mapping;
}

/* The sanitizer sees the end of a buffer, not that of a mapping. */
static void fuzz_within_the_slab(const struct batch *batch,
                                 const Ballast__V1__BatchEnvelope *message) {
    unsigned __int128 end = (unsigned __int128)message->slab_offset + MAPPING_SLOT_HEADER_BYTES;
    assert(batch->slot == NULL || end + message->slab_bytes <= FUZZ_SLAB_BYTES);
}

static void fuzz_gather(const struct batch *batch) {
    size_t rows = batch->view.rows;
    assert(rows <= FUZZ_TOKENS_MAX);
    for (int type = BALLAST_INT32; type <= BALLAST_INT64; type += 4) {
        void *out = malloc(rows * (size_t)type + 1);
        assert(out != NULL);
        for (int column = BALLAST_TOKENS; column <= BALLAST_POSITIONS; column++) {
            int64_t got = batch_gather(batch, (enum ballast_column)column, (enum ballast_type)type,
                                       out, rows);
            assert(got == (int64_t)rows || got == -ESTALE || got == -EINVAL);
        }
        free(out);
    }
}

static const struct ballast_pool_replica *fuzz_replica(const struct ballast_pool *pool,
                                                       uint32_t dp) {
    const struct ballast_pool_replica *replica = pool->replicas;
    while (replica < pool->replicas + pool->replica_count && replica->dp != dp) {
        replica++;
    }
    assert(replica < pool->replicas + pool->replica_count);
    return replica;
}

/* What a rank would allocate and index for its part of a pool. */
static void fuzz_pool(const struct ballast_batch *batch) {
    const struct ballast_pool *pool = batch->pool;
    assert(pool->replica_count <= FUZZ_DP && pool->worker < pool->workers);
    for (uint32_t i = 0; i < pool->tile_count; i++) {
        const struct ballast_tile *tile = &pool->tiles[i];
        assert(tile->head_shard < pool->head_shards && tile->rows - 1 < pool->block_tokens);
        assert(tile->home == pool->worker || tile->worker == pool->worker);
        assert(tile->home < pool->workers && tile->worker < pool->workers);
        assert(tile->row + tile->rows <= fuzz_replica(pool, tile->dp)->tokens);
    }
    for (uint32_t i = 0; i < pool->transfer_count; i++) {
        const struct ballast_transfer *transfer = &pool->transfers[i];
        uint32_t keys = transfer->payload == BALLAST_PAYLOAD_KV;
        assert(transfer->source < pool->workers && transfer->worker < pool->workers);
        assert(transfer->rows > 0 && transfer->rows <= FUZZ_TOKENS_MAX);
        assert(transfer->row + transfer->rows <= fuzz_replica(pool, transfer->dp)->tokens);
        assert((uint64_t)transfer->head_begin + transfer->head_count <=
               (keys ? pool->kv_heads : pool->heads));
        assert(transfer->bytes / transfer->rows / transfer->head_count ==
               (uint64_t)pool->head_dim * pool->element_bytes * (1 + keys));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    uint32_t cp = 1 + data[0] % 4u;
    struct ballast_job job = {.dp = FUZZ_DP,
                              .cp = cp,
                              .tokens_max = FUZZ_TOKENS_MAX,
                              .token_bytes = (data[0] & 16) != 0 ? 4 : 2};
    struct arena arena;
    struct batch_context context = {.job = &job,
                                    .arena = &arena,
                                    .mapping = fuzz_mapping(),
                                    .cp = data[0] / 64u % cp,
                                    .slot_wanted = (data[0] & 32) != 0};
    struct batch batch;
    struct error error = {0};
    arena_init(&arena, 16u << 20);
    batch_init(&batch);
    Ballast__V1__BatchEnvelope *message = ballast__v1__batch_envelope__unpack(&arena.allocator,
                                                                              size - 1, data + 1);
    if (message != NULL && batch_read(&batch, message, &context, &error) == 0) {
        fuzz_within_the_slab(&batch, message);
        fuzz_gather(&batch);
        const char *why = NULL;
        if (batch.view.pool != NULL) {
            fuzz_pool(&batch.view);
        }
        (void)rank_verify(&batch.view, &why);
    }
    batch_deinit(&batch);
    arena_deinit(&arena);
    return 0;
}
