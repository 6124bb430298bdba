/* link: the connection of one rank to its daemon, and how it comes back.
 *
 *                                                     +--- link_greet: no slab ---+
 *                                                     |                           v
 * DOWN --link_begin--> DIALING --link_dial--> GREETING --link_greet--> MAPPING --link_map--> READY
 *  ^                      |                      |                        |                   |
 *  +------------ link_lose, link_close: lost, refused, or not ours ---------------------------+
 *
 * One window of connect_timeout_ms covers every try to get from DOWN to work again. It opens with
 * the first loss and closes with link_progress, when the daemon has sent something: a daemon that
 * only ever says hello is given up. Tries are 10 ms apart, then an eighth more each, to 500 ms.
 * Nothing blocks past the deadline but the look-up of a host's name (dial.h), and each state goes
 * on where a deadline interrupted it. */
#ifndef BALLAST_CLIENT_LINK_H
#define BALLAST_CLIENT_LINK_H

#include "client/ballast.h"
#include "client/call.h"
#include "client/mapping.h"
#include "proto/address.h"

#include <sys/un.h>

enum link_state { LINK_DOWN = 0, LINK_DIALING, LINK_GREETING, LINK_MAPPING, LINK_READY };

struct link_options {
    char address[ADDRESS_TEXT_BYTES];
    struct dial_credentials credentials;
    char name[128]; /* for the daemon's log */
    uint32_t dp, pp, cp, tp;
    uint32_t parts;     /* bits of enum ballast_part */
    uint32_t transport; /* enum ballast_transport */
    int connect_timeout_ms;
    uint8_t job_digest[16]; /* meaningful with job_known */
    bool job_known;         /* which job it must be: from the caller, or since the first greeting */
    void (*waiting)(void *context, const char *sentence); /* NULL: nobody is told */
    void *waiting_context;
    int waiting_after_ms;
    struct mapping_options mapping;
};

/* What the next greeting claims: the first step whose commit was not acknowledged to this rank, in
 * this generation. 0: nothing is claimed. */
struct link_claim {
    uint64_t committed_step;
    uint64_t generation;
};

struct link {
    struct link_options options;
    enum link_state state;
    struct dialed dialed;         /* in DIALING */
    struct call_channel *channel; /* NULL in DOWN and DIALING */
    int data_fd;                  /* in MAPPING, else -1 */
    struct mapping *mapping;      /* one reference in READY, NULL where none is wanted or shared */
    bool fetches;                 /* slots come over this connection instead */
    uint64_t connections;         /* greetings answered and seeks since, so 0 before the first */
    struct ballast_job job;       /* meaningful then */
    char generation_by[128];      /* who began its generation, likewise */
    char data_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    uint8_t data_token[MAPPING_TOKEN_BYTES];
    uint64_t slab_bytes;
    int64_t window_ns;  /* when the window opened */
    int64_t give_up_ns; /* its end, 0 while it is closed */
    int64_t tell_ns;    /* when the caller is told next that it waits */
    int64_t retry_ns;   /* not before, in DOWN */
    int64_t begun_ns;   /* when this try began, except in DOWN */
    int64_t pause_ns;   /* after the next failed try */
    struct error loss;  /* why the link was lost last */
    struct link_claim claim;
};

/* The options must have passed link_check. Connects to nothing yet. */
void link_init(struct link *link, const struct link_options *options);
void link_deinit(struct link *link);

/* Goes on towards READY: 1 there, 0 the deadline passed, negative when the daemon refused, is not
 * ours, or did not come back within the window; a later call then begins anew. */
int link_advance(struct link *link, int64_t deadline_ns, struct error *error);

/* Whether a failed call on the channel means that the connection, not the request, was at fault:
 * broken, or the daemon is going down or has moved on. */
bool link_lost(const struct link *link, int code);

/* After such a failure: remembers why and goes DOWN, to try again. */
void link_lose(struct link *link, const struct error *why);

/* Goes DOWN without a reason to come back at once. */
void link_close(struct link *link);

/* The daemon works: closes the window. */
void link_progress(struct link *link);

/* What to poll for reading; -1 while DOWN or DIALING. */
int link_fd(const struct link *link);

#endif
