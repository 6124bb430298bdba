/* exchange_agree: all ranks hold the same plan but lists, or it is said which do not.
 *
 * Ranks with different lists would stop at different collectives, or add up gradients of other
 * rows, so this comes before any of them. */
#include "gpu_attn/error.h"
#include "gpu_attn/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct held {
    uint8_t plan[BALLAST_EXCHANGE_DIGEST_BYTES];
    uint8_t lists[BALLAST_EXCHANGE_DIGEST_BYTES];
};

/* The rank whose digests most hold, of equals the first. */
static uint32_t most_held(const struct held *all, uint32_t ranks) {
    uint32_t best = 0;
    uint32_t best_count = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t count = 0;
        for (uint32_t other = 0; other < ranks; other++) {
            count += memcmp(&all[other], &all[i], sizeof *all) == 0;
        }
        best = count > best_count ? i : best;
        best_count = count > best_count ? count : best_count;
    }
    return best;
}

static void hex(const uint8_t *digest, char text[17]) {
    for (size_t i = 0; i < 8; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
}

static int differs(const struct held *all, uint32_t ranks, uint32_t most,
                   struct ballast_attn_error *error) {
    uint32_t odd = 0;
    uint32_t first = ranks;
    char names[96] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        if (memcmp(&all[i], &all[most], sizeof *all) != 0) {
            first = odd == 0 ? i : first;
            if (used < sizeof names - 16) {
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%u",
                                         odd > 0 ? ", " : "", i);
            }
            odd++;
        }
    }
    bool plan = memcmp(all[first].plan, all[most].plan, sizeof all->plan) != 0;
    char theirs[17];
    char others[17];
    hex(plan ? all[first].plan : all[first].lists, theirs);
    hex(plan ? all[most].plan : all[most].lists, others);
    return attn_error(error, -EPROTO, "rank%s %s hold%s %s %s, the other %u %s", odd > 1 ? "s" : "",
                      names, odd > 1 ? "" : "s", plan ? "plan" : "the same plan but lists", theirs,
                      ranks - odd, others);
}

int ballast_exchange_agree(const struct ballast_exchange *exchange,
                           struct ballast_exchange_transport *transport,
                           struct ballast_attn_error *error) {
    struct held mine;
    struct held *all = calloc(transport->ranks, sizeof *all);
    if (all == NULL) {
        return attn_error(error, -ENOMEM, "no memory for %u digests", transport->ranks);
    }
    memcpy(mine.plan, exchange->digest, sizeof mine.plan);
    memcpy(mine.lists, exchange->lists_digest, sizeof mine.lists);
    int result = transport->operations->gather(transport, &mine, all, sizeof mine, error);
    if (result == 0) {
        uint32_t most = most_held(all, transport->ranks);
        for (uint32_t i = 0; result == 0 && i < transport->ranks; i++) {
            if (memcmp(&all[i], &all[most], sizeof *all) != 0) {
                result = differs(all, transport->ranks, most, error);
            }
        }
    }
    free(all);
    return result;
}

void ballast_transport_close(struct ballast_exchange_transport *transport) {
    if (transport != NULL) {
        transport->operations->close(transport);
    }
}
