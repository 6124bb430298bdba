/* links: the exchange's transport between devices of one machine, as the exchange uses it: counts
 * that are known, every rank to every other. A thread a device; the first one's clock counts. */
#include "gpu_attn/ballast_exchange.h"
#include "gpu_attn/error.h"
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
#define QUICK_STEP 2u
#define BYTES_MAX  (UINT64_C(1) << 30)

struct rank {
    pthread_t thread;
    uint32_t number;
    uint32_t ranks;
    const uint8_t *id;
    const struct measure_options *options;
    struct measure_device device;
    struct ballast_exchange_transport *transport;
    void *send, *receive;
    uint64_t counts[RANKS_MAX];
    struct profile_group group; /* its bytes, ps and percentiles */
    struct ballast_attn_error error;
};

static int transfer_run(void *context, struct ballast_attn_error *error) {
    struct rank *rank = context;
    struct ballast_exchange_transport *transport = rank->transport;
    struct ballast_exchange_transfer transfer = {.name = "measure",
                                                 .send = rank->send,
                                                 .receive = rank->receive,
                                                 .send_bytes = rank->counts,
                                                 .receive_bytes = rank->counts};
    int result = transport->operations->start(transport, &transfer, NULL, error);
    return result != 0 ? result : transport->operations->wait(transport, NULL, error);
}

/* Bytes that every rank receives: the same of each, a multiple of 16. */
static uint64_t counts_set(struct rank *rank, uint64_t bytes) {
    uint64_t each = bytes / (rank->ranks - 1) / 16 * 16;
    for (uint32_t i = 0; i < rank->ranks; i++) {
        rank->counts[i] = i == rank->number ? 0 : each;
    }
    return each * (rank->ranks - 1);
}

static int rank_measure(struct rank *rank, struct ballast_attn_error *error) {
    size_t step = rank->options->quick ? QUICK_STEP : 1;
    int result = 0;
    for (size_t i = 0; result == 0 && i < sizeof received_bytes / sizeof *received_bytes;
         i += step) {
        struct measure_time time;
        uint64_t bytes = counts_set(rank, received_bytes[i]);
        result = measure_device_time(&rank->device, transfer_run, rank, rank->options->runs, &time,
                                     error);
        if (result == 0) {
            rank->group.bytes.values[rank->group.bytes.count++] = bytes;
            rank->group.ps.values[rank->group.ps.count++] = time.ps;
            rank->group.p10.values[rank->group.p10.count++] = time.low_ps;
            rank->group.p90.values[rank->group.p90.count++] = time.high_ps;
        }
    }
    return result;
}

static void *rank_run(void *argument) {
    struct rank *rank = argument;
    struct ballast_attn_error *error = &rank->error;
    int result = measure_device_open(&rank->device, (int)rank->number, error);
    if (result == 0) {
        result = measure_device_alloc(&rank->device, BYTES_MAX, "transfers", &rank->send, error);
    }
    if (result == 0) {
        result = measure_device_alloc(&rank->device, BYTES_MAX, "transfers", &rank->receive, error);
    }
    if (result == 0) {
        result = measure_device_fill(&rank->device, rank->send, BYTES_MAX, error);
    }
    if (result == 0) {
        result = ballast_transport_nccl(&rank->transport, rank->id, rank->number, rank->ranks,
                                        DEADLINE_MS, error);
    }
    result = result != 0 ? result : rank_measure(rank, error);
    ballast_transport_close(rank->transport);
    measure_device_free(&rank->device, rank->send);
    measure_device_free(&rank->device, rank->receive);
    measure_device_close(&rank->device);
    error->code = result;
    return NULL;
}

/* Every rank runs to its end; the first that failed says why. */
static int group_measure(const struct measure_options *options, uint32_t ranks,
                         struct profile_group *group, struct ballast_attn_error *error) {
    uint8_t id[BALLAST_NCCL_ID_BYTES];
    struct rank *all = calloc(ranks, sizeof *all);
    int result = all == NULL ? attn_error(error, -ENOMEM, "out of memory")
                             : ballast_nccl_id(id, error);
    uint32_t started = 0;
    for (; result == 0 && started < ranks; started++) {
        all[started] = (struct rank){
            .number = started, .ranks = ranks, .id = id, .options = options};
        if (pthread_create(&all[started].thread, NULL, rank_run, &all[started]) != 0) {
            result = attn_error(error, -EAGAIN, "no thread for device %u", started);
            break;
        }
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(all[i].thread, NULL);
        if (result == 0 && all[i].error.code != 0) {
            *error = all[i].error;
            result = error->code;
        }
    }
    if (result == 0) {
        *group = all[0].group;
        group->ranks = ranks;
        group->nodes = 1;
    }
    free(all);
    return result;
}

int measure_links(struct measure_device *device, struct measure_options *options,
                  struct profile *profile, struct ballast_attn_error *error) {
    struct profile_collective_groups *groups = &profile->coll[PROFILE_ALL_TO_ALL];
    if (device->count < 2) {
        return attn_error(error, -ENOSYS, "there is one device, and links want two");
    }
    for (uint32_t ranks = 2; ranks <= (uint32_t)device->count && ranks <= RANKS_MAX; ranks *= 2) {
        struct profile_group *group = &groups->groups[groups->count];
        uint64_t worst_ppm = 0;
        int result = group_measure(options, ranks, group, error);
        if (result != 0) {
            groups->count = 0;
            return result == -ENODEV ? -ENOSYS : result; /* no NCCL */
        }
        profile_fit_link(&group->bytes, &group->ps, &group->alpha_ps, &group->bytes_per_us,
                         &worst_ppm);
        groups->count++;
        measure_say(options, "all-to-all of %u: %.1f GB/s after %.1f us, within %.1f %%", ranks,
                    (double)group->bytes_per_us / 1e3, (double)group->alpha_ps / 1e6,
                    (double)worst_ppm / 1e4);
    }
    return 0;
}
