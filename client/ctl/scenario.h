/* scenario: the documents and settings of a simulation, the same for every policy.
 *
 * Documents come from the config's corpus or a named one (indexes only), a file of lengths, or a
 * built-in distribution, and may be cut where plain packing would cut them. Settings are the
 * config's, with overrides by key on top. A trial is one policy and seed over them, at step 0. */
#ifndef BALLAST_CTL_SCENARIO_H
#define BALLAST_CTL_SCENARIO_H

#include "client/ctl/stream.h"
#include "corpus/lengths.h"

#define SCENARIO_OVERRIDES_MAX 64u
#define SCENARIO_CORPORA_MAX   16u

struct scenario {
    const char *config;       /* NULL: no file, defaults */
    const char *lengths;      /* file; NULL like the next: not given */
    const char *distribution; /* name */
    size_t corpora;           /* named instead of those of a config */
    char corpus_keys[SCENARIO_CORPORA_MAX][2][32];
    bool cut;
    struct config_override overrides[SCENARIO_OVERRIDES_MAX]; /* texts borrowed */
    size_t override_count;
    /* Opened by scenario_open, or by the first trial. */
    uint32_t *list;
    uint64_t list_count;
    const struct distribution *drawn;
    struct catalog *catalog;
    char window[16];
};

/* Adds key = value; later ones win. -ENOBUFS with the reason. */
int scenario_override(struct scenario *scenario, const char *key, const char *value,
                      struct error *error);

/* Adds the dataset of PREFIX.idx and PREFIX.bin; `weight` NULL: 1. Both texts are borrowed. */
int scenario_add_corpus(struct scenario *scenario, const char *prefix, const char *weight,
                        struct error *error);

/* Reads the file of lengths, finds the distribution. scenario_close takes a zeroed or half-open
 * one. */
int scenario_open(struct scenario *scenario, struct error *error);
void scenario_close(struct scenario *scenario);

/* Where the documents come from, for people: "wlb128k", the file, the prefix of the one corpus
 * that was added, or "corpus". */
const char *scenario_source(const struct scenario *scenario);

/* The config of a policy and seed over the scenario, as trial_open takes them; policy NULL: the
 * config's own. The caller destroys it. Refuses what the config refuses. */
int scenario_config(const struct scenario *scenario, const char *policy, const char *seed,
                    struct config **out, struct error *error);

/* The domains of the corpus, once a trial has opened it; NULL without. */
const struct domains *scenario_domains(const struct scenario *scenario);

/* Whether a policy (as trial_open takes it) fills windows of fixed size, for which it cuts. */
bool scenario_policy_is_fixed(const char *name);

/* Whether the documents come to an end. */
bool scenario_ends(const struct scenario *scenario, const struct config *config);

/* Steps to plan before `steps` counted ones when nobody says: a tenth, at least queues.max_age;
 * none when the data end. */
uint64_t scenario_warm_up(const struct scenario *scenario, const struct config *config,
                          uint64_t steps);

/* Not to be copied once open. */
struct trial {
    struct config *config;
    struct corpus_source corpus;
    struct lengths_source list;
    struct cut_source cut;
    const struct document_source *source; /* one of these */
    struct stream stream;
};

/* `policy` is a policy's name, or "NAME@LAYOUT+LAYOUT..." to allow it these layouts only. `seed`
 * NULL: the config's. The scenario is borrowed until trial_close, which takes a zeroed trial. */
int trial_open(struct trial *trial, struct scenario *scenario, const char *policy, const char *seed,
               struct error *error);
void trial_close(struct trial *trial);

#endif
