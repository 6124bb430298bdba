/* answers: the questions that ballastctl asks, whoever answers them.
 *
 *   remote.c  a running daemon, over its socket (the Admin service);
 *   local.c   nobody: the store of a stopped daemon, or the config alone, through the same pure
 *             function that the daemon runs.
 * Both answer with the wire's messages, so that a command prints one and never knows which. */
#ifndef BALLAST_CTL_ANSWERS_H
#define BALLAST_CTL_ANSWERS_H

#include "ballast.pb-c.h"
#include "client/ctl/ctl.h"

/* Every function returns 0 with *out in ctl->arena, or a negative errno with ctl->error filled;
 * *out stays valid until the next question. */
struct answers {
    int (*status)(struct ctl *ctl, Ballast__V1__StatusResponse **out);
    int (*queues)(struct ctl *ctl, bool documents, Ballast__V1__QueuesResponse **out);
    /* The whole plan of a step, all pages, with fragments, and with the tiles and transfers of its
     * pools. From local.c steps can be asked for in rising order only. -ENOENT after the end of the
     * data. */
    int (*plan)(struct ctl *ctl, uint64_t step, bool fragments, bool pools,
                Ballast__V1__PlanResponse **out);
    int (*delays)(struct ctl *ctl, Ballast__V1__DelaysResponse **out);
    int (*corpus)(struct ctl *ctl, Ballast__V1__CorpusResponse **out);
    int (*config)(struct ctl *ctl, Ballast__V1__ConfigResponse **out);
    /* The checkpoint of *step; of the next step to be committed, which is then told, if it is
     * UINT64_MAX. The daemon keeps that step's state; local.c notes nothing. */
    int (*export)(struct ctl *ctl, uint64_t *step, Ballast__V1__ExportResponse **out);
};

extern const struct answers remote_answers;
extern const struct answers local_answers;

/* Who answers this run: the state, socket or config named on the command line, else in the
 * environment, in this order of preference; else the daemon at its usual place. A config names the
 * daemon's socket too, so where only a daemon or its store can answer (`config_answers` false) a
 * config alone means the daemon. Sets ctl->origin. */
const struct answers *answers_choose(struct ctl *ctl, bool config_answers);

/* Only a daemon can do it. */
int remote_drain(struct ctl *ctl, Ballast__V1__DrainResponse **out);
int remote_seek(struct ctl *ctl, uint64_t step, uint64_t generation,
                Ballast__V1__SeekResponse **out);
int remote_import(struct ctl *ctl, const uint8_t *state, size_t bytes, uint64_t generation,
                  Ballast__V1__ImportResponse **out);

/* Ends the connection; closes config, corpus and store. Idempotent. */
void remote_close(struct ctl *ctl);
void local_close(struct ctl *ctl);

#endif
