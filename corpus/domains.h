/* domains: what documents are about ("web", "code"), for statistics of share and delay.
 *
 * A dataset is of one domain, by default named as it is, or a file beside it names one for each
 * document: one byte a document in the order of the index, a number into the dataset's list of
 * names; it is read where its document is counted, never held. Planning knows nothing of domains,
 * so that plans are the same with other ones, or none. There are domains where at least one dataset
 * says so. */
#ifndef BALLAST_CORPUS_DOMAINS_H
#define BALLAST_CORPUS_DOMAINS_H

#include "corpus/catalog.h"
#include "planner/plan.h"
#include "planner/state.h"

#define DOMAINS_MAX       64u /* of all datasets: each is a series of every metric */
#define DOMAIN_NAME_BYTES 41u

/* What is said of one dataset; NULL: nothing. */
struct domain_entry {
    const char *domain; /* of all its documents; by default the dataset's name */
    const char *file;   /* instead: a byte for each document */
    const char *names;  /* what the bytes mean: "web,code" */
};

struct domains;

/* The next name of a list "web, code" (*at in it, moved on) into `out`: 1; 0 at the end; -EINVAL
 * for what is no name: 1 to 40 letters, digits, '_', '-', '.'. */
int domain_names_next(const char **at, char out[DOMAIN_NAME_BYTES]);

/* How many names a list has, 1 to DOMAINS_MAX, each once; else -EINVAL. */
int domain_names_count(const char *names);

/* Of all datasets of the catalog, an entry each; *out NULL where none says anything. Every byte of
 * the files is read and checked. -EINVAL more than DOMAINS_MAX domains; -EBADMSG another number of
 * bytes than documents, or a byte that no name has, with its offset; -ENOMEM; what opening and
 * reading said. The catalog is borrowed, and takes care of this itself (catalog_domains). */
int domains_open(const struct catalog *catalog, const struct domain_entry *entries,
                 struct files *files, struct domains **out, struct error *error);
void domains_close(struct domains *domains); /* takes NULL */

uint32_t domains_count(const struct domains *domains);
const char *domains_name(const void *domains, uint32_t domain);

/* Whether some documents have domains of their own, by a file. */
bool domains_filed(const struct domains *domains);

/* The domain of a document. Any thread, may read. -ESTALE when the file is not the one that was
 * opened any more, -EBADMSG, or what reading said; `error` names file, offset and remedy. */
int domains_of(const struct domains *domains, uint32_t dataset, uint64_t document,
               struct error *error);

/* What was delivered, by domain. Where every dataset is of one domain that follows from any state,
 * since step 0; where there are files it is counted from plans, since the step at which counting
 * began. One thread. */
struct domain_tally {
    uint64_t since;     /* step from which on plans are counted; 0: the start of the stream */
    uint64_t step;      /* first step that is not counted */
    struct error error; /* why counting has ended; code 0: it goes on */
    uint32_t count;     /* of domains */
    struct delay_counts counts[];
};

/* Zeroed, or a copy; NULL when out of memory. free() it. */
struct domain_tally *domain_tally_create(const struct domains *domains);
struct domain_tally *domain_tally_copy(const struct domain_tally *tally);

/* Begins anew at a state. */
void domain_tally_begin(struct domain_tally *tally, const struct domains *domains,
                        const struct plan_state *state);

/* Counts a plan, the one of tally->step. A file that cannot be read ends counting (`error`) with
 * the step before, and nothing else. */
void domain_tally_add(struct domain_tally *tally, const struct domains *domains,
                      const struct step_plan *plan);

#endif
