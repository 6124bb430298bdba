/* link: see link.h. */
#include "client/link.h"

#include "ballast.pb-c.h"
#include "client/deadline.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINK_PAUSE_NS_MIN    ((int64_t)10 * 1000000)
#define LINK_PAUSE_NS_MAX    ((int64_t)500 * 1000000)
#define LINK_TELL_AGAIN_NS   ((int64_t)30 * 1000000000)
#define LINK_SILENT_NS       ((int64_t)1000000000)
#define LINK_HELLO_BYTES_MAX ((size_t)1 << 20)
#define LINK_PROTOCOL        1u
#define LINK_ROWS_MAX        ((uint64_t)INT32_MAX) /* positions and cu_seqlens are 32 bits */

static const uint8_t link_successors[] = {
    [LINK_DOWN] = 1 << LINK_DOWN | 1 << LINK_DIALING,
    [LINK_DIALING] = 1 << LINK_DOWN | 1 << LINK_GREETING,
    [LINK_GREETING] = 1 << LINK_DOWN | 1 << LINK_MAPPING | 1 << LINK_READY,
    [LINK_MAPPING] = 1 << LINK_DOWN | 1 << LINK_READY,
    [LINK_READY] = 1 << LINK_DOWN,
};

static void link_move(struct link *link, enum link_state to) {
    assert((link_successors[link->state] & 1 << to) != 0);
    link->state = to;
}

void link_init(struct link *link, const struct link_options *options) {
    *link = (struct link){.options = *options, .data_fd = -1, .pause_ns = LINK_PAUSE_NS_MIN};
    link->dialed.fd = -1;
}

void link_deinit(struct link *link) {
    link_close(link);
}

void link_close(struct link *link) {
    call_close(link->channel);
    link->channel = NULL;
    if (link->state == LINK_DIALING) {
        dial_close(&link->dialed);
    }
    if (link->data_fd >= 0) {
        close(link->data_fd);
    }
    link->data_fd = -1;
    mapping_drop(link->mapping);
    link->mapping = NULL;
    link_move(link, LINK_DOWN);
    link->give_up_ns = 0;
    link->retry_ns = 0;
    link->pause_ns = LINK_PAUSE_NS_MIN;
}

static void link_open_window(struct link *link) {
    if (link->give_up_ns == 0) {
        link->window_ns = deadline_now_ns();
        link->give_up_ns = deadline_in_ms(link->options.connect_timeout_ms);
        link->tell_ns = link->options.waiting == NULL
                            ? DEADLINE_NEVER
                            : deadline_in_ms(link->options.waiting_after_ms);
    }
}

void link_lose(struct link *link, const struct error *why) {
    int64_t give_up_ns = link->give_up_ns;
    int64_t pause_ns = link->pause_ns;
    link_close(link);
    link->loss = *why;
    if (give_up_ns == 0) {
        link_open_window(link);
        return;
    }
    link->give_up_ns = give_up_ns;
    link->retry_ns = deadline_now_ns() + pause_ns;
    link->pause_ns = deadline_earlier(pause_ns + pause_ns / 8, LINK_PAUSE_NS_MAX);
}

void link_progress(struct link *link) {
    link->give_up_ns = 0;
    link->pause_ns = LINK_PAUSE_NS_MIN;
}

bool link_lost(const struct link *link, int code) {
    switch (code) {
    case -EPIPE:
    case -ECONNRESET:
    case -ECONNREFUSED:
    case -ETIMEDOUT:
        return true;
    case -EEXIST: /* our own connection of before, whose end the daemon has not seen yet */
        return link->connections > 0;
    default:
        return false;
    }
}

int link_fd(const struct link *link) {
    if (link->state == LINK_DOWN || link->state == LINK_DIALING) {
        return -1;
    }
    return link->state == LINK_MAPPING ? link->data_fd : call_fd(link->channel);
}

static int link_send_hello(struct link *link, struct error *error) {
    struct link_options *options = &link->options;
    Ballast__V1__HelloRequest hello = BALLAST__V1__HELLO_REQUEST__INIT;
    Ballast__V1__Rank rank = BALLAST__V1__RANK__INIT;
    Ballast__V1__Part parts[3];
    rank.dp = options->dp;
    rank.pp = options->pp;
    rank.cp = options->cp;
    rank.tp = options->tp;
    hello.protocol_min = LINK_PROTOCOL;
    hello.protocol_max = LINK_PROTOCOL;
    hello.rank = &rank;
    hello.parts = parts;
    if ((options->parts & BALLAST_PART_PLAN) != 0) {
        parts[hello.n_parts++] = BALLAST__V1__PART__PART_PLAN;
    }
    if ((options->parts & BALLAST_PART_TOKENS) != 0) {
        parts[hello.n_parts++] = BALLAST__V1__PART__PART_TOKENS;
    }
    if ((options->parts & BALLAST_PART_LABELS) != 0) {
        parts[hello.n_parts++] = BALLAST__V1__PART__PART_LABELS;
    }
    hello.client = options->name;
    hello.committed_step = link->claim.committed_step;
    hello.generation = link->claim.generation;
    hello.job_digest.data = options->job_digest;
    hello.job_digest.len = options->job_known ? sizeof options->job_digest : 0;
    return call_start(link->channel, "ballast.v1.Loader", "Hello", &hello.base, error);
}

static int link_begin(struct link *link, int64_t until_ns, struct error *error) {
    if (deadline_now_ns() < link->retry_ns) {
        (void)deadline_poll(-1, 0, deadline_earlier(until_ns, link->retry_ns));
        if (deadline_now_ns() < link->retry_ns) {
            return 0;
        }
    }
    int code = dial_begin(link->options.address, &link->options.credentials, link->give_up_ns,
                          &link->dialed, error);
    if (code < 0) {
        return code;
    }
    link->begun_ns = deadline_now_ns();
    link_move(link, LINK_DIALING);
    return 1;
}

static int link_dial(struct link *link, int64_t until_ns, struct error *error) {
    int code = dial_advance(&link->dialed, &link->options.credentials, until_ns, error);
    if (code != 1) {
        return code;
    }
    code = call_open_dialed(&link->dialed, &link->channel, error);
    if (code == 0) {
        link_move(link, LINK_GREETING);
        code = link_send_hello(link, error);
    }
    return code < 0 ? code : 1;
}

static int link_not_ours(const char *what, struct error *error) {
    return error_set(error, -EINVAL,
                     "the daemon's %s is not the one that this client was opened for; close the "
                     "client and open another",
                     what);
}

/* Judges a greeting by itself and against this rank. */
static int link_check_greeting(const struct link *link, const Ballast__V1__HelloResponse *hello,
                               struct error *error) {
    const struct link_options *options = &link->options;
    const Ballast__V1__Mesh *mesh = hello->mesh;
    if (hello->protocol != LINK_PROTOCOL) {
        return error_set(error, -EPROTO, "the daemon speaks protocol %u, this client %u",
                         hello->protocol, LINK_PROTOCOL);
    }
    if (hello->job_digest.len != sizeof link->job.job_digest || mesh == NULL ||
        hello->micro_batches == 0 || hello->tokens_max > LINK_ROWS_MAX ||
        (hello->token_bytes != 2 && hello->token_bytes != 4) ||
        strlen(hello->data_path) >= sizeof link->data_path) {
        return error_set(error, -EPROTO, "the daemon's greeting makes no sense");
    }
    if (options->dp >= mesh->dp || options->pp >= mesh->pp || options->cp >= mesh->cp ||
        options->tp >= mesh->tp) {
        return error_set(error, -EINVAL,
                         "rank (dp %u, pp %u, cp %u, tp %u) is not in the daemon's mesh of dp %u, "
                         "pp %u, cp %u, tp %u",
                         options->dp, options->pp, options->cp, options->tp, mesh->dp, mesh->pp,
                         mesh->cp, mesh->tp);
    }
    return 0;
}

/* Judges it against what the caller asked for and what was said at the first greeting. */
static int link_check_job(const struct link *link, const struct ballast_job *job,
                          struct error *error) {
    const struct ballast_job *known = &link->job;
    if (link->options.job_known &&
        memcmp(link->options.job_digest, job->job_digest, sizeof job->job_digest) != 0) {
        return link_not_ours("job", error);
    }
    if (link->connections == 0) {
        return 0;
    }
    if (known->dp != job->dp || known->pp != job->pp || known->cp != job->cp ||
        known->tp != job->tp) {
        return link_not_ours("mesh", error);
    }
    return known->token_bytes == job->token_bytes ? 0 : link_not_ours("token width", error);
}

static bool link_wants_slots(const struct link *link) {
    return (link->options.parts & (BALLAST_PART_TOKENS | BALLAST_PART_LABELS)) != 0;
}

/* Notes where the data socket is, for link_map. */
static int link_note_slab(struct link *link, const Ballast__V1__HelloResponse *hello,
                          struct error *error) {
    if (!link_wants_slots(link)) {
        return 0;
    }
    link->fetches = link->options.transport == BALLAST_TRANSPORT_FETCH ||
                    (link->options.transport == BALLAST_TRANSPORT_AUTO &&
                     hello->data_path[0] == '\0');
    if (link->fetches) {
        return 0;
    }
    if (hello->data_path[0] == '\0') {
        return error_set(error, -EOPNOTSUPP,
                         "the daemon cannot share its memory over this connection; let the "
                         "transport be auto or fetch, or connect to its Unix socket");
    }
    if (hello->data_token.len != MAPPING_TOKEN_BYTES) {
        return error_set(error, -EPROTO, "the daemon's data token has %zu bytes, not %u",
                         hello->data_token.len, MAPPING_TOKEN_BYTES);
    }
    memcpy(link->data_path, hello->data_path, strlen(hello->data_path) + 1);
    memcpy(link->data_token, hello->data_token.data, MAPPING_TOKEN_BYTES);
    link->slab_bytes = hello->slab_bytes;
    return 0;
}

static int link_accept_greeting(struct link *link, const Ballast__V1__HelloResponse *hello,
                                struct error *error) {
    int code = link_check_greeting(link, hello, error);
    if (code < 0) {
        return code;
    }
    struct ballast_job job = {
        .dp = hello->mesh->dp,
        .pp = hello->mesh->pp,
        .cp = hello->mesh->cp,
        .tp = hello->mesh->tp,
        .next_step = hello->next_step,
        .micro_batches = hello->micro_batches,
        .tokens_max = hello->tokens_max,
        .token_bytes = hello->token_bytes,
        .generation = hello->generation,
        .generation_step = hello->generation_step,
    };
    memcpy(job.job_digest, hello->job_digest.data, sizeof job.job_digest);
    code = link_check_job(link, &job, error);
    if (code == 0) {
        code = link_note_slab(link, hello, error);
    }
    if (code < 0) {
        return code;
    }
    (void)snprintf(link->generation_by, sizeof link->generation_by, "%s",
                   hello->generation_by[0] == '\0' ? "another rank" : hello->generation_by);
    link->job = job;
    link->connections++;
    memcpy(link->options.job_digest, job.job_digest, sizeof job.job_digest);
    link->options.job_known = true;
    return 0;
}

/* Asks for the slab. Where its socket cannot be reached, as in a container that has only the
 * control socket, slots are fetched. */
static int link_ask(struct link *link, struct error *error) {
    int code = mapping_ask(link->data_path, link->data_token, &link->data_fd, error);
    bool absent = code == -ENOENT || code == -EACCES || code == -EPERM;
    if (absent && link->options.transport == BALLAST_TRANSPORT_AUTO) {
        link->fetches = true;
        return 0;
    }
    return code == -ENOENT
               ? error_set(error, -ECONNREFUSED, "data socket %s is not there", link->data_path)
               : code;
}

static int link_greet(struct link *link, int64_t until_ns, struct error *error) {
    struct arena arena;
    ProtobufCMessage *message = NULL;
    arena_init(&arena, LINK_HELLO_BYTES_MAX);
    int code = call_finish(link->channel, &ballast__v1__hello_response__descriptor, &arena,
                           &message, deadline_left_ms(until_ns), error);
    if (code == 1) {
        code = link_accept_greeting(link, (const Ballast__V1__HelloResponse *)message, error);
        if (code == 0 && link_wants_slots(link) && !link->fetches) {
            code = link_ask(link, error);
        }
        if (code == 0) {
            link_move(link, link->data_fd >= 0 ? LINK_MAPPING : LINK_READY);
            code = 1;
        }
    }
    arena_deinit(&arena);
    return code;
}

static int link_map(struct link *link, int64_t until_ns, struct error *error) {
    int code = deadline_poll(link->data_fd, POLLIN, until_ns);
    if (code <= 0) {
        return code;
    }
    code = mapping_receive(link->data_fd, link->slab_bytes, &link->options.mapping, &link->mapping,
                           error);
    if (code != 1) {
        return code;
    }
    close(link->data_fd);
    link->data_fd = -1;
    link_move(link, LINK_READY);
    return 1;
}

/* Whether the try under way has lasted so long that it says more than how the one before ended. */
static bool link_silent(const struct link *link, int64_t now_ns) {
    int64_t half_ns = (link->give_up_ns - link->window_ns) / 2;
    return link->loss.code == 0 ||
           (link->state != LINK_DOWN &&
            now_ns - link->begun_ns >= deadline_earlier(half_ns, LINK_SILENT_NS));
}

/* The window has ended without an answer. */
static int link_give_up(struct link *link, int64_t now_ns, struct error *error) {
    struct error loss = link->loss;
    bool silent = link_silent(link, now_ns);
    link_close(link);
    if (silent) {
        return error_set(error, -ETIMEDOUT, "the daemon on %s did not answer within %d ms",
                         link->options.address, link->options.connect_timeout_ms);
    }
    return error_set(error, loss.code, "tried for %d ms: %s", link->options.connect_timeout_ms,
                     loss.text);
}

static int link_step(struct link *link, int64_t until_ns, struct error *error) {
    switch (link->state) {
    case LINK_DOWN:
        return link_begin(link, until_ns, error);
    case LINK_DIALING:
        return link_dial(link, until_ns, error);
    case LINK_GREETING:
        return link_greet(link, until_ns, error);
    case LINK_MAPPING:
        return link_map(link, until_ns, error);
    case LINK_READY:
        break;
    }
    return 1;
}

/* Tells the caller, once it is time, what it waits for. */
static void link_tell(struct link *link) {
    const struct link_options *options = &link->options;
    char sentence[ERROR_TEXT_BYTES + 128];
    int64_t now_ns = deadline_now_ns();
    if (now_ns < link->tell_ns) {
        return;
    }
    link->tell_ns = now_ns + LINK_TELL_AGAIN_NS;
    bool silent = link_silent(link, now_ns);
    bool dialing = silent && link->state == LINK_DIALING;
    double waited = (double)(now_ns - link->window_ns) / 1e9;
    int used = snprintf(sentence, sizeof sentence, "waiting for the daemon since %.1f s", waited);
    if (options->connect_timeout_ms >= 0) {
        used += snprintf(sentence + used, sizeof sentence - (size_t)used, ", for %.0f s at most",
                         (double)options->connect_timeout_ms / 1e3);
    }
    (void)snprintf(sentence + used, sizeof sentence - (size_t)used, ": %s%s",
                   silent ? options->address : link->loss.text,
                   dialing  ? " does not answer a connect; check the address"
                   : silent ? " takes connections and does not answer; its log says what it does"
                            : "");
    options->waiting(options->waiting_context, sentence);
}

int link_advance(struct link *link, int64_t deadline_ns, struct error *error) {
    while (link->state != LINK_READY) {
        struct error failure = {0};
        link_open_window(link);
        int64_t give_up_ns = link->give_up_ns;
        int64_t until_ns = deadline_earlier(deadline_ns, give_up_ns);
        int code = link_step(link, deadline_earlier(until_ns, link->tell_ns), &failure);
        if (code < 0 && link_lost(link, code)) {
            link_lose(link, &failure);
        } else if (code < 0) {
            link_close(link);
            return error_set(error, code, "%s", failure.text);
        }
        if (link->state != LINK_READY) {
            link_tell(link);
        }
        int64_t now_ns = code == 0 ? deadline_now_ns() : 0;
        if (code == 0 && now_ns >= give_up_ns) {
            return link_give_up(link, now_ns, error);
        }
        if (code == 0 && now_ns >= deadline_ns) {
            return 0;
        }
    }
    return 1;
}
