/* Two connections of one world, driven by arbitrary bytes: raw byte streams through the frame
 * reader, calls with arbitrary payloads, and the world's own events between them. Whatever comes:
 * no crash, slots given back, memory bounded by the arena. */
#include "tests/unit/daemon_world.h"

#include <stdlib.h>
#include <string.h>

static struct world world;
static const uint8_t *input;
static size_t left;

static uint8_t take_byte(void) {
    if (left == 0) {
        return 0;
    }
    left--;
    return *input++;
}

static size_t take_bytes(const uint8_t **bytes) {
    size_t count = take_byte();
    count = count < left ? count : left;
    *bytes = input;
    input += count;
    left -= count;
    return count;
}

struct link {
    struct world_session *at;
    struct frame_reader reader;
    uint8_t buffer[4096];
};

static struct link links[2];

static void link_connect(uint32_t i) {
    links[i].at = world_connect(&world, i);
    frame_reader_init(&links[i].reader, links[i].buffer, sizeof links[i].buffer);
}

static void link_feed(uint32_t i, const uint8_t *bytes, size_t count) {
    struct link *link = &links[i];
    struct frame_header header;
    const uint8_t *data;
    const char *reason;
    size_t room;
    uint8_t *space = frame_reader_space(&link->reader, &room);
    count = count < room ? count : room;
    memcpy(space, bytes, count);
    frame_reader_fill(&link->reader, count);
    int code;
    while ((code = frame_reader_next(&link->reader, &header, &data, &reason)) == 1) {
        code = session_frame(&link->at->session, &header, data, world.now_ns);
        if (code < 0) {
            link_connect(i);
            return;
        }
    }
    if (code < 0) {
        session_bad_frame(&link->at->session, &header, code, reason);
        link_connect(i);
    }
}

static void link_call(uint32_t i) {
    static const char *const methods[] = {"Hello", "Stream", "Commit", "Seek",
                                          "Ping",  "Export", "Import", "Fetch"};
    struct world_session *at = links[i].at;
    uint8_t frame[1024];
    const uint8_t *payload;
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    uint8_t method = take_byte();
    request.service = (char *)(method >= 128 ? SESSION_ADMIN : SESSION_LOADER);
    request.method = (char *)methods[method % 8];
    request.timeout_nano = method;
    request.payload.len = take_bytes(&payload);
    request.payload.data = (uint8_t *)payload;
    size_t bytes = protobuf_c_message_pack(&request.base, frame);
    at->next_stream = at->session.last_stream | 1;
    at->next_stream += at->next_stream == at->session.last_stream ? 2 : 0;
    if (world_frame(at, at->next_stream, FRAME_REQUEST, method / 8 & 3, frame, bytes) < 0) {
        link_connect(i);
    }
}

static void world_event(uint32_t i, uint8_t kind) {
    struct world_session *at = links[i].at;
    const uint8_t *bytes;
    size_t count;
    switch (kind) {
    case 0:
        count = take_bytes(&bytes);
        link_feed(i, bytes, count);
        break;
    case 1:
        link_call(i);
        break;
    case 2:
        count = take_bytes(&bytes);
        if (at->session.stream != 0 &&
            world_frame(at, at->session.stream, FRAME_DATA, 0, bytes, count) < 0) {
            link_connect(i);
        }
        break;
    case 3:
        session_pump(&at->session, world.now_ns);
        break;
    case 4:
        world.now_ns += (uint64_t)take_byte() * WORLD_SECOND_NS;
        (void)roster_advance(&world.roster, world.now_ns);
        if (session_tick(&at->session, world.now_ns) < 0) {
            link_connect(i);
        }
        break;
    case 5:
        world.planned += take_byte();
        world.progress.durable_step = world.planned;
        world.progress.durable_changes = world.roster.changes;
        break;
    case 6:
        at->congested = !at->congested;
        world.slots = (enum session_answer)(take_byte() % 3);
        world.lost_step = world.planned + 1;
        break;
    default:
        if (at->seek_stream != 0) {
            world_begin(&world, at, at->seek_step % 64);
        }
        link_connect(i);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input = data;
    left = size;
    world_init(&world, true);
    world.planned = 4;
    world.end = 64;
    link_connect(0);
    link_connect(1);
    while (left > 0) {
        uint8_t event = take_byte();
        world_event(event & 1, (uint8_t)(event >> 1 & 7));
    }
    world_deinit(&world);
    return 0;
}
