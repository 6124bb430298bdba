/* top: one page about a running daemon, from two looks at it. */
#ifndef BALLAST_CTL_TOP_H
#define BALLAST_CTL_TOP_H

#include "ballast.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What a look at the daemon leaves for the next one. Zero: there was none. */
struct top_rank {
    uint32_t dp, pp, cp, tp;
    uint64_t batches, waited_ns;
};

struct top_look {
    uint64_t when_ns; /* 0: none */
    uint64_t documents, bytes;
    struct top_rank *ranks; /* by position in the answer */
    size_t rank_count;
};

void top_look_deinit(struct top_look *look);

/* Prints the page: rates since `before` (since the daemon began if there is none), and notes in
 * `now` what the next one needs. `queues` may be NULL. */
void top_print(FILE *out, bool colours, const Ballast__V1__StatusResponse *status,
               const Ballast__V1__QueuesResponse *queues, const struct top_look *before,
               struct top_look *now);

#endif
