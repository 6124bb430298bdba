/* What a scripted daemon serves: see client_world.h. */
#include "client_world.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

void world_memory_create(struct world_memory *memory, uint64_t bytes) {
    memory->count = bytes;
    memory->fd = memfd_create("ballast-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FAKE_CHECK(memory->fd >= 0);
    FAKE_CHECK(ftruncate(memory->fd, (off_t)bytes) == 0);
    memory->bytes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    FAKE_CHECK(memory->bytes != MAP_FAILED);
    FAKE_CHECK(fcntl(memory->fd, F_ADD_SEALS,
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0);
}

void world_memory_destroy(struct world_memory *memory) {
    munmap(memory->bytes, memory->count);
    close(memory->fd);
}

void world_send_fd(int socket, int fd) {
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
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    FAKE_CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == 1);
}

struct mapping *world_memory_map(const struct world_memory *memory) {
    int pair[2];
    const struct mapping_options options = {0};
    struct mapping *mapping = NULL;
    struct error error = {0};
    FAKE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    world_send_fd(pair[0], memory->fd);
    FAKE_CHECK(mapping_receive(pair[1], memory->count, &options, &mapping, &error) == 1);
    close(pair[0]);
    close(pair[1]);
    return mapping;
}

void world_memory_stamp(struct world_memory *memory, uint64_t offset, uint64_t generation) {
    atomic_store((_Atomic uint64_t *)(memory->bytes + offset), generation);
}

static void world_documents(struct world_batch *batch, const struct document *documents,
                            uint32_t count) {
    batch->plan.documents = arena_array(&batch->arena, count, sizeof(Ballast__V1__Document *));
    for (uint32_t i = 0; i < count; i++) {
        Ballast__V1__Document *document = arena_alloc(&batch->arena, sizeof *document);
        ballast__v1__document__init(document);
        document->document = documents[i].document;
        document->offset = documents[i].offset;
        document->length = documents[i].length;
        document->document_length = documents[i].document_length;
        batch->plan.documents[batch->plan.n_documents++] = document;
        batch->plan.tokens += documents[i].length;
    }
}

static Ballast__V1__RankShard *world_shard(struct world_batch *batch,
                                           const struct fragment *fragments, uint32_t count) {
    Ballast__V1__RankShard *shard = arena_alloc(&batch->arena, sizeof *shard);
    ballast__v1__rank_shard__init(shard);
    shard->fragments = arena_array(&batch->arena, count, sizeof *shard->fragments);
    for (uint32_t i = 0; i < count; i++) {
        Ballast__V1__Fragment *fragment = arena_alloc(&batch->arena, sizeof *fragment);
        ballast__v1__fragment__init(fragment);
        fragment->document = fragments[i].document;
        fragment->start = fragments[i].start;
        fragment->length = fragments[i].length;
        shard->fragments[shard->n_fragments++] = fragment;
    }
    return shard;
}

void world_batch_make(struct world_batch *batch, const struct document *documents, uint32_t count,
                      const struct fragment *fragments, uint32_t fragment_count, uint64_t rows,
                      uint64_t pad_rows, uint32_t cp, uint32_t rank) {
    ballast__v1__batch__init(&batch->message);
    ballast__v1__batch_id__init(&batch->id);
    ballast__v1__micro_batch__init(&batch->plan);
    ballast__v1__sharding__init(&batch->sharding);
    arena_init(&batch->arena, 16u << 20);
    memset(batch->digest, 0, sizeof batch->digest);
    batch->message.id = &batch->id;
    batch->message.plan = &batch->plan;
    batch->message.plan_digest.data = batch->digest;
    batch->message.plan_digest.len = sizeof batch->digest;
    batch->plan.sharding = &batch->sharding;
    world_documents(batch, documents, count);
    batch->sharding.ranks = arena_array(&batch->arena, cp, sizeof(Ballast__V1__RankShard *));
    for (uint32_t i = 0; i < cp; i++) {
        Ballast__V1__RankShard *shard = world_shard(batch, fragments,
                                                    i == rank ? fragment_count : 0);
        shard->rows = rows;
        shard->pad_rows = i == rank ? pad_rows : rows;
        batch->sharding.ranks[batch->sharding.n_ranks++] = shard;
    }
}

static void world_tiles(struct arena *arena, Ballast__V1__PoolPart *part) {
    static const struct {
        uint32_t block, head_shard, home, worker;
        uint64_t pairs, row;
    } tiles[WORLD_TILES] = {{0, 0, 0, 0, 3, 0},
                            {0, 1, 0, 0, 3, 0},
                            {1, 0, 1, 0, 7, 2},
                            {3, 0, 0, 0, 5, 6},
                            {3, 1, 0, 1, 5, 6}};
    part->tiles = arena_array(arena, WORLD_TILES, sizeof *part->tiles);
    for (uint32_t i = 0; i < WORLD_TILES; i++) {
        Ballast__V1__Tile *tile = arena_alloc(arena, sizeof *tile);
        ballast__v1__tile__init(tile);
        tile->block = tiles[i].block;
        tile->head_shard = tiles[i].head_shard;
        tile->home = tiles[i].home;
        tile->worker = tiles[i].worker;
        tile->pairs = tiles[i].pairs;
        tile->row = tiles[i].row;
        tile->rows = 2;
        part->tiles[part->n_tiles++] = tile;
    }
}

static void world_transfers(struct arena *arena, Ballast__V1__PoolPart *part) {
    static const struct {
        Ballast__V1__Payload payload;
        uint32_t source, row, rows, head_begin, head_count;
    } transfers[WORLD_TRANSFERS] = {{BALLAST__V1__PAYLOAD__PAYLOAD_Q, 1, 2, 2, 0, 2},
                                    {BALLAST__V1__PAYLOAD__PAYLOAD_Q, 0, 6, 2, 2, 2},
                                    {BALLAST__V1__PAYLOAD__PAYLOAD_KV, 1, 2, 2, 0, 1},
                                    {BALLAST__V1__PAYLOAD__PAYLOAD_KV, 1, 5, 1, 0, 1},
                                    {BALLAST__V1__PAYLOAD__PAYLOAD_KV, 0, 6, 2, 1, 1},
                                    {BALLAST__V1__PAYLOAD__PAYLOAD_O, 0, 2, 2, 0, 2},
                                    {BALLAST__V1__PAYLOAD__PAYLOAD_O, 1, 6, 2, 2, 2}};
    part->transfers = arena_array(arena, WORLD_TRANSFERS, sizeof *part->transfers);
    for (uint32_t i = 0; i < WORLD_TRANSFERS; i++) {
        Ballast__V1__Transfer *transfer = arena_alloc(arena, sizeof *transfer);
        ballast__v1__transfer__init(transfer);
        transfer->payload = transfers[i].payload;
        transfer->source = transfers[i].source;
        transfer->worker = 1 - transfers[i].source;
        transfer->row = transfers[i].row;
        transfer->rows = transfers[i].rows;
        transfer->head_begin = transfers[i].head_begin;
        transfer->head_count = transfers[i].head_count;
        bool keys = transfer->payload == BALLAST__V1__PAYLOAD__PAYLOAD_KV;
        transfer->bytes = (keys ? 2u : 1u) * transfer->rows * transfer->head_count * 16;
        part->transfers[part->n_transfers++] = transfer;
    }
}

void world_pool_add(struct world_batch *batch) {
    struct arena *arena = &batch->arena;
    Ballast__V1__PoolPart *part = arena_alloc(arena, sizeof *part);
    Ballast__V1__PoolReplica *replica = arena_alloc(arena, sizeof *replica);
    ballast__v1__pool_part__init(part);
    ballast__v1__pool_replica__init(replica);
    replica->tokens = WORLD_TOKENS;
    replica->lengths = arena_array(arena, 2, sizeof *replica->lengths);
    replica->lengths[0] = 5;
    replica->lengths[1] = 3;
    replica->n_lengths = 2;
    part->replicas = arena_array(arena, 1, sizeof(Ballast__V1__PoolReplica *));
    part->replicas[0] = replica;
    part->n_replicas = 1;
    part->ga_index = batch->id.index;
    part->block_tokens = 4;
    part->head_shards = 2;
    part->heads = 4;
    part->kv_heads = 2;
    part->head_dim = 8;
    part->element_bytes = 2;
    world_tiles(arena, part);
    world_transfers(arena, part);
    batch->message.pool = part;
}

const Ballast__V1__BatchEnvelope *world_batch_envelope(struct world_batch *batch) {
    size_t bytes = ballast__v1__batch__get_packed_size(&batch->message);
    uint8_t *packed = arena_alloc(&batch->arena, bytes);
    assert(packed != NULL);
    ballast__v1__batch__pack(&batch->message, packed);
    return ballast__v1__batch_envelope__unpack(&batch->arena.allocator, bytes, packed);
}

void world_batch_free(struct world_batch *batch) {
    arena_deinit(&batch->arena);
}

uint32_t world_token(uint64_t step, uint32_t index, uint32_t i) {
    return (uint32_t)(step * 1000 + index * 100 + i);
}

void world_batch_init(struct world_batch *batch, struct world_memory *memory, uint64_t step,
                      uint32_t index) {
    static const struct document documents[] = {
        {.document = 7, .length = 5, .document_length = 5},
        {.document = 9, .offset = 4, .length = 3, .document_length = 8}};
    static const struct fragment fragments[] = {{0, 0, 2}, {1, 1, 2}};
    world_batch_make(batch, documents, 2, fragments, 2, WORLD_ROWS, 0, WORLD_CP, 0);
    uint64_t slot = (step * WORLD_MICRO_BATCHES + index) % WORLD_SLOTS;
    batch->id.step = step;
    batch->id.index = index;
    memset(batch->digest, (int)(step + 1), sizeof batch->digest);
    batch->message.slab_offset = slot * WORLD_SLOT_BYTES;
    batch->message.slab_bytes = (WORLD_TOKENS + 1) * 2;
    batch->message.slot_generation = step + 1;
    batch->message.loss_denominator = 16;
    batch->message.label_tokens = 14;
    uint8_t *payload = memory->bytes + batch->message.slab_offset + MAPPING_SLOT_HEADER_BYTES;
    for (uint32_t i = 0; i <= WORLD_TOKENS; i++) {
        uint16_t token = (uint16_t)world_token(step, index, i);
        memcpy(payload + 2 * i, &token, sizeof token);
    }
    world_memory_stamp(memory, batch->message.slab_offset, step + 1);
}

static uint8_t world_data_token[MAPPING_TOKEN_BYTES] = "0123456789abcde";
static uint8_t world_job_digest[16] = "the job of tests";
static Ballast__V1__Mesh world_mesh;

void world_hello_init(Ballast__V1__HelloResponse *hello, const struct fake *fake) {
    ballast__v1__hello_response__init(hello);
    ballast__v1__mesh__init(&world_mesh);
    world_mesh.dp = world_mesh.pp = world_mesh.tp = 1;
    world_mesh.cp = WORLD_CP;
    hello->protocol = 1;
    hello->job_digest.data = world_job_digest;
    hello->job_digest.len = sizeof world_job_digest;
    hello->mesh = &world_mesh;
    hello->next_step = 3;
    hello->micro_batches = WORLD_MICRO_BATCHES;
    hello->tokens_max = WORLD_TOKENS;
    hello->token_bytes = 2;
    hello->data_token.data = world_data_token;
    hello->data_token.len = sizeof world_data_token;
    hello->slab_bytes = WORLD_SLOTS * WORLD_SLOT_BYTES;
    hello->generation = 1;
    hello->data_path = (char *)fake->data_path;
}

void world_greet(struct fake *fake, const Ballast__V1__HelloResponse *hello) {
    uint32_t stream;
    (void)fake_request(fake, "Hello", &ballast__v1__hello_request__descriptor, &stream);
    fake_respond(fake, stream, &hello->base);
}

void world_pass(struct fake *fake, const struct world_memory *memory) {
    uint8_t token[MAPPING_TOKEN_BYTES];
    int fd = accept4(fake->data_listener, NULL, NULL, SOCK_CLOEXEC);
    FAKE_CHECK(fd >= 0);
    FAKE_CHECK(recv(fd, token, sizeof token, MSG_WAITALL) == (ssize_t)sizeof token);
    FAKE_CHECK(memcmp(token, world_data_token, sizeof token) == 0);
    world_send_fd(fd, memory->fd);
    close(fd);
}

Ballast__V1__StreamRequest *world_stream(struct fake *fake, uint32_t *stream) {
    (void)fake_request(fake, "Stream", &ballast__v1__stream_request__descriptor, stream);
    return fake_stream_request(fake, *stream);
}

uint32_t world_serve(struct fake *fake, const struct world_memory *memory, uint64_t step,
                     uint32_t index, uint32_t credits) {
    Ballast__V1__HelloResponse hello;
    uint32_t stream;
    fake_accept(fake);
    world_hello_init(&hello, fake);
    world_greet(fake, &hello);
    world_pass(fake, memory);
    Ballast__V1__StreamRequest *request = world_stream(fake, &stream);
    FAKE_CHECK(request->from != NULL);
    FAKE_CHECK(request->from->step == step);
    FAKE_CHECK(request->from->index == index);
    FAKE_CHECK(request->credits == credits);
    FAKE_CHECK(request->n_released == 0);
    return stream;
}

void world_send(struct fake *fake, uint32_t stream, struct world_batch *batch) {
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
    event.batch = &batch->message;
    fake_send(fake, stream, &event.base);
}

void world_send_batch(struct fake *fake, uint32_t stream, struct world_memory *memory,
                      uint64_t step, uint32_t index) {
    struct world_batch batch;
    world_batch_init(&batch, memory, step, index);
    world_send(fake, stream, &batch);
    world_batch_free(&batch);
}

void world_send_end_of_step(struct fake *fake, uint32_t stream, uint64_t step) {
    uint8_t digest[16];
    Ballast__V1__EndOfStep end = BALLAST__V1__END_OF_STEP__INIT;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    memset(digest, (int)(step + 1), sizeof digest);
    end.step = step;
    end.plan_digest.data = digest;
    end.plan_digest.len = sizeof digest;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP;
    event.end_of_step = &end;
    fake_send(fake, stream, &event.base);
}

void world_send_end_of_data(struct fake *fake, uint32_t stream, uint64_t step) {
    Ballast__V1__EndOfData end = BALLAST__V1__END_OF_DATA__INIT;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    end.step = step;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA;
    event.end_of_data = &end;
    fake_send(fake, stream, &event.base);
}

void world_expect_release(struct fake *fake, uint32_t stream, uint64_t step, uint32_t index) {
    Ballast__V1__StreamRequest *request = fake_stream_request(fake, stream);
    FAKE_CHECK(request->credits == 1);
    FAKE_CHECK(request->n_released == 1);
    FAKE_CHECK(request->released[0]->step == step);
    FAKE_CHECK(request->released[0]->index == index);
    FAKE_CHECK(request->from == NULL);
}

void world_serve_step(struct fake *fake, uint32_t stream, struct world_memory *memory,
                      uint64_t step) {
    uint32_t call;
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    for (uint32_t index = 0; index < WORLD_MICRO_BATCHES; index++) {
        world_send_batch(fake, stream, memory, step, index);
    }
    world_send_end_of_step(fake, stream, step);
    for (uint32_t index = 0; index < WORLD_MICRO_BATCHES; index++) {
        world_expect_release(fake, stream, step, index);
    }
    Ballast__V1__CommitRequest *request = fake_request(
        fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    FAKE_CHECK(request->step == step);
    response.durable_step = step + 1;
    fake_respond(fake, call, &response.base);
}
