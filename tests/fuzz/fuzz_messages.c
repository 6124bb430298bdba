/* Any bytes, unpacked as any message that a peer may send, with a bounded arena: no crash, the
 * bound holds, and what unpacks packs again. The first byte picks the message, the second the
 * bound.
 */
#include "ballast.pb-c.h"
#include "proto/arena.h"
#include "ttrpc.pb-c.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const types[] = {
    &ttrpc__request__descriptor,
    &ttrpc__response__descriptor,
    &ballast__v1__hello_request__descriptor,
    &ballast__v1__hello_response__descriptor,
    &ballast__v1__stream_request__descriptor,
    &ballast__v1__stream_response__descriptor,
    &ballast__v1__fetch_request__descriptor,
    &ballast__v1__commit_request__descriptor,
    &ballast__v1__commit_response__descriptor,
    &ballast__v1__seek_request__descriptor,
    &ballast__v1__export_request__descriptor,
    &ballast__v1__import_request__descriptor,
    &ballast__v1__ping_request__descriptor,
    &ballast__v1__status_request__descriptor,
    &ballast__v1__status_response__descriptor,
    &ballast__v1__queues_request__descriptor,
    &ballast__v1__queues_response__descriptor,
    &ballast__v1__plan_request__descriptor,
    &ballast__v1__plan_response__descriptor,
    &ballast__v1__delays_request__descriptor,
    &ballast__v1__delays_response__descriptor,
    &ballast__v1__corpus_request__descriptor,
    &ballast__v1__config_request__descriptor,
    &ballast__v1__config_response__descriptor,
    &ballast__v1__drain_request__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    const ProtobufCMessageDescriptor *type = types[data[0] % (sizeof types / sizeof types[0])];
    struct arena arena;
    arena_init(&arena, (size_t)256 << (data[1] % 12u));
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &arena.allocator, size - 2,
                                                          data + 2);
    assert(arena.held_bytes <= arena.bytes_max);
    if (message != NULL) {
        uint8_t *packed = malloc(protobuf_c_message_get_packed_size(message) + 1);
        assert(packed != NULL);
        protobuf_c_message_pack(message, packed);
        free(packed);
    }
    arena_deinit(&arena);
    return 0;
}
