/* client: what the files of libballast know of a client; see client.c. */
#ifndef BALLAST_CLIENT_CLIENT_H
#define BALLAST_CLIENT_CLIENT_H

#include "client/batch.h"
#include "client/link.h"

#include <sys/types.h>

#define CLIENT_SERVICE      "ballast.v1.Loader"
#define CLIENT_DIGEST_BYTES 16u

/* What was read of the stream before it was asked for, where batches are fetched. */
struct client_ahead {
    int code; /* as call_stream_next gave it; 0: nothing */
    struct arena arena;
    ProtobufCMessage *message; /* an event that is no batch, in the arena */
    struct error error;
};

struct ballast {
    pid_t pid;
    struct link link;
    struct error error;
    uint64_t stream_connection; /* number of the connection that the stream is open on */
    bool greeted;               /* the generation is known */
    uint64_t generation;        /* that this rank is of, by its first stream or its last seek */
    bool placed;                /* step and index are known */
    uint64_t step;              /* position: the next batch ... */
    uint32_t index;             /* ... or, at micro_batches, the end of the step */
    uint32_t micro_batches;     /* of this step, once a batch of it was seen; else 0 */
    bool digest_known;          /* a batch of this step was seen */
    uint8_t digest[CLIENT_DIGEST_BYTES];
    bool ended;
    uint64_t event_step;
    uint8_t event_digest[CLIENT_DIGEST_BYTES]; /* of the last step that ended */
    int64_t waited_ns;                         /* in ballast_next, since the last event */
    uint64_t *waits; /* of batches taken and not reported yet; `credits` of them have room */
    uint32_t wait_count;
    struct arena event;
    uint32_t credits;
    struct batch *batches; /* `credits` of them */
    struct batch *coming;  /* one of them: read, its bytes asked for, not given out; else NULL */
    struct client_ahead ahead;
};

/* Every public call but ballast_close and ballast_error begins here. */
int client_enter(struct ballast *client);

#endif
