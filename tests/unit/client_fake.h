/* A scripted daemon: one thread that plays a script over real Unix sockets, one step after the
 * other. What it does not expect aborts the test program with file and line; every wait ends after
 * ten seconds, so a broken test fails and does not hang. */
#ifndef BALLAST_TESTS_CLIENT_FAKE_H
#define BALLAST_TESTS_CLIENT_FAKE_H

#include "ballast.pb-c.h"
#include "planner/error.h"
#include "proto/arena.h"
#include "proto/frame.h"
#include "ttrpc.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define FAKE_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: fake daemon: %s\n", __FILE__, __LINE__, #condition);           \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct fake {
    char dir[64];
    char path[96];       /* control socket */
    char data_path[112]; /* data socket */
    int listener;
    int data_listener;
    int connection; /* -1 without */
    struct frame_reader reader;
    uint8_t *buffer;
    struct arena arena; /* of what was received; reset by every receive */
    pthread_t thread;
    void (*script)(struct fake *fake);
    void *context; /* the script's */
};

/* Listens (both sockets), then runs the script in a thread. fake_stop joins it and removes the
 * sockets. */
void fake_start(struct fake *fake, void (*script)(struct fake *fake), void *context);
void fake_stop(struct fake *fake);

/* The same in two pieces, for a daemon that is not there yet. */
void fake_prepare(struct fake *fake);
void fake_listen(struct fake *fake);

void fake_accept(struct fake *fake);
bool fake_accept_any(struct fake *fake); /* waits for ever; false when the listener was shut down */
void fake_hang_up(struct fake *fake);
void fake_send_raw(struct fake *fake, const void *bytes, size_t count);
void fake_send_frame(struct fake *fake, const struct frame_header *header, const uint8_t *data);

/* Waits for a frame; false when the client hung up. */
bool fake_receive(struct fake *fake, struct frame_header *header, const uint8_t **data);

/* Waits for a request to `method` and unpacks its payload. */
void *fake_request(struct fake *fake, const char *method, const ProtobufCMessageDescriptor *type,
                   uint32_t *stream);
const Ttrpc__Request *fake_unpack_request(struct fake *fake, const uint8_t *data, uint32_t bytes);
void fake_respond(struct fake *fake, uint32_t stream, const ProtobufCMessage *message);
void fake_refuse(struct fake *fake, uint32_t stream, enum status status, const char *sentence);

/* One message on the stream, to and from the client. */
void fake_send(struct fake *fake, uint32_t stream, const ProtobufCMessage *message);
Ballast__V1__StreamRequest *fake_stream_request(struct fake *fake, uint32_t stream);

#endif
