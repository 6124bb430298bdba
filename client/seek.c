/* seek: going to another step with the whole job: ballast_seek, _export, _import and _agree. */
#include "client/client.h"
#include "client/deadline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Asks until it is answered, over reconnects; the daemon may take its time. Seeking the same step
 * twice is joining the generation that the first one opened. */
static int seek_call(struct ballast *client, const char *method, const ProtobufCMessage *request,
                     const ProtobufCMessageDescriptor *type, ProtobufCMessage **response) {
    int code = client_enter(client);
    if (code < 0) {
        return code;
    }
    arena_reset(&client->event);
    for (;;) {
        struct error failure = {0};
        code = link_advance(&client->link, DEADLINE_NEVER, &client->error);
        if (code < 0) {
            return code;
        }
        code = call_unary(client->link.channel, CLIENT_SERVICE, method, request, type,
                          &client->event, response, -1, &failure);
        if (code == 0) {
            link_progress(&client->link);
            return 0;
        }
        if (!link_lost(&client->link, code)) {
            return error_set(&client->error, code, "%s", failure.text);
        }
        link_lose(&client->link, &failure);
    }
}

/* The rank stands at another step of another generation: no stream is open there yet, and what is
 * held is of another connection as far as releases go. */
static void seek_place(struct ballast *client, uint64_t step, uint64_t generation,
                       const ProtobufCBinaryData *digest) {
    call_stream_drop(client->link.channel);
    client->link.claim = (struct link_claim){0};
    client->link.connections++;
    client->link.job.next_step = step;
    client->link.job.generation = generation;
    client->link.job.generation_step = step;
    client->greeted = true;
    client->generation = generation;
    client->placed = true;
    client->step = step;
    client->index = 0;
    client->micro_batches = 0;
    client->ended = false;
    client->digest_known = digest->len == CLIENT_DIGEST_BYTES;
    if (client->digest_known) {
        memcpy(client->digest, digest->data, CLIENT_DIGEST_BYTES);
    }
}

int ballast_seek(struct ballast *client, uint64_t step, uint64_t generation) {
    Ballast__V1__SeekRequest request = BALLAST__V1__SEEK_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.step = step;
    request.generation = generation;
    int code = seek_call(client, "Seek", &request.base, &ballast__v1__seek_response__descriptor,
                         &message);
    if (code == 0) {
        const Ballast__V1__SeekResponse *response = (const Ballast__V1__SeekResponse *)message;
        seek_place(client, response->next_step, response->generation, &response->plan_digest);
    }
    return code;
}

int ballast_import(struct ballast *client, const void *state, size_t bytes, uint64_t generation) {
    Ballast__V1__ImportRequest request = BALLAST__V1__IMPORT_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.state = (ProtobufCBinaryData){bytes, (uint8_t *)state};
    request.generation = generation;
    int code = seek_call(client, "Import", &request.base, &ballast__v1__import_response__descriptor,
                         &message);
    if (code == 0) {
        const Ballast__V1__ImportResponse *response = (const Ballast__V1__ImportResponse *)message;
        seek_place(client, response->next_step, response->generation, &response->plan_digest);
    }
    return code;
}

int ballast_export(struct ballast *client, uint64_t step, const void **state, size_t *bytes) {
    Ballast__V1__ExportRequest request = BALLAST__V1__EXPORT_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.step = step;
    int code = seek_call(client, "Export", &request.base, &ballast__v1__export_response__descriptor,
                         &message);
    if (code == 0) {
        const Ballast__V1__ExportResponse *response = (const Ballast__V1__ExportResponse *)message;
        *state = response->state.data;
        *bytes = response->state.len;
    }
    return code;
}

/* What ranks compare, as it travels: little endian whatever the machine. */
struct agree_record {
    uint8_t generation[8];
    uint8_t step[8];
    uint8_t digest[CLIENT_DIGEST_BYTES];
};

static void agree_put(uint8_t out[8], uint64_t value) {
    for (unsigned i = 0; i < 8; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static unsigned long long agree_get(const uint8_t bytes[8]) {
    unsigned long long value = 0;
    for (unsigned i = 8; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* The step that is under way, else the last one that ended. */
static struct agree_record agree_mine(const struct ballast *client) {
    struct agree_record mine = {0};
    bool now = client->digest_known;
    agree_put(mine.generation, client->generation);
    agree_put(mine.step, now ? client->step : client->event_step);
    memcpy(mine.digest, now ? client->digest : client->event_digest, sizeof mine.digest);
    return mine;
}

static uint32_t agree_count(const struct agree_record *all, uint32_t ranks, uint32_t like) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        count += memcmp(&all[i], &all[like], sizeof all[i]) == 0;
    }
    return count;
}

static void agree_describe(const struct agree_record *record, char out[96]) {
    (void)snprintf(out, 96, "generation %llu, step %llu, digest %02x%02x%02x%02x",
                   agree_get(record->generation), agree_get(record->step), record->digest[0],
                   record->digest[1], record->digest[2], record->digest[3]);
}

/* "3, 7" of the ranks that are not like the majority, cut when long. */
static void agree_odd(const struct agree_record *all, uint32_t ranks, uint32_t majority, char *out,
                      size_t bytes) {
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < ranks && used + 16 < bytes; i++) {
        if (memcmp(&all[i], &all[majority], sizeof all[i]) != 0) {
            used += (size_t)snprintf(out + used, bytes - used, "%s%u", used == 0 ? "" : ", ", i);
        }
    }
    if (used + 16 >= bytes) {
        (void)snprintf(out + used, bytes - used, ", ...");
    }
}

static int agree_compare(struct ballast *client, const struct agree_record *all, uint32_t ranks) {
    char odd[160], theirs[96], ours[96];
    uint32_t majority = 0, first_odd = 0;
    for (uint32_t i = 1; i < ranks; i++) {
        majority = agree_count(all, ranks, i) > agree_count(all, ranks, majority) ? i : majority;
    }
    uint32_t count = agree_count(all, ranks, majority);
    if (count == ranks) {
        return 0;
    }
    while (memcmp(&all[first_odd], &all[majority], sizeof all[0]) == 0) {
        first_odd++;
    }
    agree_odd(all, ranks, majority, odd, sizeof odd);
    agree_describe(&all[first_odd], theirs);
    agree_describe(&all[majority], ours);
    return error_set(
        &client->error, -EBADMSG, "rank %s of %u differ%s from %s: rank %u has %s, rank %u %s", odd,
        ranks, ranks - count == 1 ? "s" : "", 2 * count > ranks ? "the majority" : "most others",
        first_odd, theirs, majority, ours);
}

int ballast_agree(struct ballast *client, uint32_t ranks,
                  int (*all_gather)(void *context, const void *mine, size_t bytes, void *all),
                  void *context) {
    int code = client_enter(client);
    if (code < 0) {
        return code;
    }
    if (ranks == 0) {
        return error_set(&client->error, -EINVAL, "agreement of no ranks");
    }
    struct agree_record mine = agree_mine(client);
    struct agree_record *all = calloc(ranks, sizeof *all);
    if (all == NULL) {
        return error_set(&client->error, -ENOMEM, "agreement of %u ranks: out of memory", ranks);
    }
    code = all_gather(context, &mine, sizeof mine, all);
    if (code != 0) {
        code = error_set(&client->error, code < 0 ? code : -EIO,
                         "agreement of %u ranks: the all-gather failed with %d", ranks, code);
    } else {
        code = agree_compare(client, all, ranks);
    }
    free(all);
    return code;
}
