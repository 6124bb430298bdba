/* links: collectives between devices of one machine. The all-to-all is the exchange's own
 * transport, as the exchange uses it: counts that are known, every rank to every other. A thread a
 * device; the first one's clock counts. */
#include "gpu_attn/ballast_exchange.h"
#include "gpu_attn/error.h"
#include "gpu_attn/measure/collectives.h"
#include "gpu_attn/measure/measure.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX   32u
#define DEADLINE_MS 60000u

static const uint64_t received_bytes[] = {UINT64_C(1) << 16, UINT64_C(1) << 18, UINT64_C(1) << 20,
                                          UINT64_C(1) << 22, UINT64_C(1) << 24, UINT64_C(1) << 26,
                                          UINT64_C(1) << 28, UINT64_C(1) << 30};
#define QUICK_STEP   2u
#define BYTES_MAX    (UINT64_C(1) << 30)
#define MEMORY_BYTES (2 * BYTES_MAX) /* two ranks gather as much; or what is sent and received */

/* The ranks of a group: none waits for one that failed. */
struct crew {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t ranks;
    uint32_t ready;
    bool failed;
};

struct rank {
    pthread_t thread;
    uint32_t number;
    uint32_t ranks;
    const uint8_t *ids[2]; /* of the transport, of the other collectives */
    struct crew *crew;
    const struct measure_options *options;
    struct measure_device device;
    struct ballast_exchange_transport *transport;
    struct collectives *collectives;
    void *memory;
    uint64_t each; /* bytes that go between two ranks */
    uint64_t counts[RANKS_MAX];
    struct profile_group groups[PROFILE_COLLECTIVES]; /* their bytes, ps and percentiles */
    struct ballast_attn_error error;
};

static int all_to_all_run(void *context, struct ballast_attn_error *error) {
    struct rank *rank = context;
    struct ballast_exchange_transport *transport = rank->transport;
    struct ballast_exchange_transfer transfer = {.name = "measure",
                                                 .send = rank->memory,
                                                 .receive = (char *)rank->memory + BYTES_MAX,
                                                 .send_bytes = rank->counts,
                                                 .receive_bytes = rank->counts};
    int result = transport->operations->start(transport, &transfer, NULL, error);
    return result != 0 ? result : transport->operations->wait(transport, NULL, error);
}

static int all_gather_run(void *context, struct ballast_attn_error *error) {
    struct rank *rank = context;
    return collectives_all_gather(rank->collectives, rank->memory, rank->each, error);
}

static int reduce_scatter_run(void *context, struct ballast_attn_error *error) {
    struct rank *rank = context;
    return collectives_reduce_scatter(rank->collectives, rank->memory, rank->each, error);
}

static const struct {
    const char *name;
    measure_work *run;
} works[PROFILE_COLLECTIVES] = {
    [PROFILE_ALL_GATHER] = {"all-gather", all_gather_run},
    [PROFILE_ALL_TO_ALL] = {"all-to-all", all_to_all_run},
    [PROFILE_REDUCE_SCATTER] = {"reduce-scatter", reduce_scatter_run},
};

/* Bytes that every rank receives: the same of each, a multiple of 16. */
static uint64_t counts_set(struct rank *rank, uint64_t bytes) {
    rank->each = bytes / (rank->ranks - 1) / 16 * 16;
    for (uint32_t i = 0; i < rank->ranks; i++) {
        rank->counts[i] = i == rank->number ? 0 : rank->each;
    }
    return rank->each * (rank->ranks - 1);
}

static int collective_measure(struct rank *rank, enum profile_collective collective,
                              struct ballast_attn_error *error) {
    struct profile_group *group = &rank->groups[collective];
    size_t step = rank->options->quick ? QUICK_STEP : 1;
    int result = 0;
    for (size_t i = 0; result == 0 && i < sizeof received_bytes / sizeof *received_bytes;
         i += step) {
        struct measure_time time;
        uint64_t bytes = counts_set(rank, received_bytes[i]);
        result = measure_device_time(&rank->device, works[collective].run, rank,
                                     rank->options->runs, &time, error);
        if (result == 0) {
            group->bytes.values[group->bytes.count++] = bytes;
            group->ps.values[group->ps.count++] = time.ps;
            group->p10.values[group->p10.count++] = time.low_ps;
            group->p90.values[group->p90.count++] = time.high_ps;
        }
    }
    return result;
}

/* Returns once all ranks came, or one failed: joining a communicator waits for ever for who does
 * not come. */
static int crew_meet(struct crew *crew, int result, struct ballast_attn_error *error) {
    (void)pthread_mutex_lock(&crew->mutex);
    crew->ready++;
    crew->failed = crew->failed || result != 0;
    (void)pthread_cond_broadcast(&crew->changed);
    while (!crew->failed && crew->ready < crew->ranks) {
        (void)pthread_cond_wait(&crew->changed, &crew->mutex);
    }
    bool failed = crew->failed;
    (void)pthread_mutex_unlock(&crew->mutex);
    return result == 0 && failed ? attn_error(error, -ECANCELED, "another device failed") : result;
}

static int rank_prepare(struct rank *rank, struct ballast_attn_error *error) {
    int result = measure_device_open(&rank->device, (int)rank->number, error);
    if (result == 0) {
        result = measure_device_alloc(&rank->device, MEMORY_BYTES, "transfers", &rank->memory,
                                      error);
    }
    return result != 0 ? result
                       : measure_device_fill(&rank->device, rank->memory, MEMORY_BYTES, error);
}

static int rank_join(struct rank *rank, struct ballast_attn_error *error) {
    int result = ballast_transport_nccl(&rank->transport, rank->ids[0], rank->number, rank->ranks,
                                        DEADLINE_MS, error);
    return result != 0 ? result
                       : collectives_open(&rank->collectives, rank->ids[1], rank->number,
                                          rank->ranks, error);
}

static void *rank_run(void *argument) {
    struct rank *rank = argument;
    struct ballast_attn_error *error = &rank->error;
    int result = crew_meet(rank->crew, rank_prepare(rank, error), error);
    result = result != 0 ? result : rank_join(rank, error);
    for (enum profile_collective c = 0; result == 0 && c < PROFILE_COLLECTIVES; c++) {
        result = collective_measure(rank, c, error);
    }
    collectives_close(rank->collectives);
    ballast_transport_close(rank->transport);
    measure_device_free(&rank->device, rank->memory);
    measure_device_close(&rank->device);
    error->code = result;
    return NULL;
}

/* Which of two errors says why. */
static bool tells_more(const struct ballast_attn_error *error, int than) {
    return error->code != 0 && (than == 0 || (than == -ECANCELED && error->code != -ECANCELED));
}

static int ranks_run(struct rank *all, struct crew *crew, struct ballast_attn_error *error) {
    uint32_t started = 0;
    int result = 0;
    while (started < crew->ranks &&
           pthread_create(&all[started].thread, NULL, rank_run, &all[started]) == 0) {
        started++;
    }
    if (started < crew->ranks) {
        result = attn_error(error, -EAGAIN, "no thread for device %u", started);
        (void)crew_meet(crew, result, error);
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(all[i].thread, NULL);
        if (tells_more(&all[i].error, result)) {
            *error = all[i].error;
            result = error->code;
        }
    }
    return result;
}

/* Every rank runs to its end; the first that failed says why. `groups`: one a collective. */
static int group_measure(const struct measure_options *options, uint32_t ranks,
                         struct profile_group groups[PROFILE_COLLECTIVES],
                         struct ballast_attn_error *error) {
    uint8_t ids[2][BALLAST_NCCL_ID_BYTES];
    struct crew crew = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, ranks, 0, false};
    struct rank *all = calloc(ranks, sizeof *all);
    int result = all == NULL ? attn_error(error, -ENOMEM, "out of memory")
                             : ballast_nccl_id(ids[0], error);
    result = result != 0 ? result : ballast_nccl_id(ids[1], error);
    for (uint32_t i = 0; result == 0 && i < ranks; i++) {
        all[i] = (struct rank){.number = i,
                               .ranks = ranks,
                               .ids = {ids[0], ids[1]},
                               .crew = &crew,
                               .options = options};
    }
    result = result != 0 ? result : ranks_run(all, &crew, error);
    for (enum profile_collective c = 0; result == 0 && c < PROFILE_COLLECTIVES; c++) {
        groups[c] = all[0].groups[c];
        groups[c].ranks = ranks;
        groups[c].nodes = 1;
    }
    free(all);
    return result;
}

static void group_take(struct measure_options *options, struct profile *profile,
                       enum profile_collective collective, const struct profile_group *measured) {
    struct profile_collective_groups *groups = &profile->coll[collective];
    struct profile_group *group = &groups->groups[groups->count++];
    uint64_t worst_ppm = 0;
    *group = *measured;
    profile_fit_link(&group->bytes, &group->ps, &group->alpha_ps, &group->bytes_per_us, &worst_ppm);
    measure_say(options, "%s of %u: %.1f GB/s after %.1f us, within %.1f %%",
                works[collective].name, group->ranks, (double)group->bytes_per_us / 1e3,
                (double)group->alpha_ps / 1e6, (double)worst_ppm / 1e4);
}

int measure_links(struct measure_device *device, struct measure_options *options,
                  struct profile *profile, struct ballast_attn_error *error) {
    if (device->count < 2) {
        return attn_error(error, -ENOSYS, "there is one device, and links want two");
    }
    for (uint32_t ranks = 2; ranks <= (uint32_t)device->count && ranks <= RANKS_MAX; ranks *= 2) {
        struct profile_group groups[PROFILE_COLLECTIVES];
        int result = group_measure(options, ranks, groups, error);
        if (result != 0) {
            memset(profile->coll, 0, sizeof profile->coll);
            return result == -ENODEV ? -ENOSYS : result; /* no NCCL */
        }
        for (enum profile_collective c = 0; c < PROFILE_COLLECTIVES; c++) {
            group_take(options, profile, c, &groups[c]);
        }
    }
    return 0;
}
