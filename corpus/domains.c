/* domains: see domains.h. */
#include "corpus/domains.h"

#include "corpus/files.h"
#include "corpus/volumes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMPY_MAGIC "\x93NUMPY"
#define BLOCK_BYTES 65536u

/* Of one dataset. */
struct tags {
    uint8_t domain;             /* without a file */
    uint8_t names[DOMAINS_MAX]; /* with one: the domain of each number */
    uint32_t name_count;
    struct file *file; /* NULL: none */
};

struct domains {
    uint32_t count;
    char names[DOMAINS_MAX][DOMAIN_NAME_BYTES];
    bool filed; /* some dataset has a file */
    uint32_t dataset_count;
    struct tags datasets[];
};

int domain_names_next(const char **at, char out[DOMAIN_NAME_BYTES]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.";
    const char *from = *at + strspn(*at, " \t");
    size_t chars = strspn(from, letters);
    const char *end = from + chars + strspn(from + chars, " \t");
    if (**at == '\0') {
        return 0;
    }
    if (chars == 0 || chars >= DOMAIN_NAME_BYTES || (*end != ',' && *end != '\0') ||
        (*end == ',' && end[1] == '\0')) {
        return -EINVAL;
    }
    memcpy(out, from, chars);
    out[chars] = '\0';
    *at = *end == ',' ? end + 1 : end;
    return 1;
}

int domain_names_count(const char *names) {
    char all[DOMAINS_MAX + 1][DOMAIN_NAME_BYTES];
    int count = 0, rc;
    while ((rc = domain_names_next(&names, all[count])) == 1) {
        for (int i = 0; i < count; i++) {
            if (strcmp(all[i], all[count]) == 0) {
                return -EINVAL;
            }
        }
        if (++count > (int)DOMAINS_MAX) {
            return -EINVAL;
        }
    }
    return rc == 0 && count > 0 ? count : -EINVAL;
}

/* The number of a domain, which is made when it is new. */
static int domains_add(struct domains *domains, const char *dataset, const char *name, uint8_t *out,
                       struct error *error) {
    uint32_t i = 0;
    while (i < domains->count && strcmp(domains->names[i], name) != 0) {
        i++;
    }
    if (i == DOMAINS_MAX) {
        return error_set(error, -EINVAL,
                         "dataset '%s': its domain '%s' is one more than the %u that are told "
                         "apart; give some datasets the same dataset.NAME.domain",
                         dataset, name, DOMAINS_MAX);
    }
    if (i == domains->count) {
        (void)snprintf(domains->names[domains->count++], DOMAIN_NAME_BYTES, "%s", name);
    }
    *out = (uint8_t)i;
    return 0;
}

/* The names of a dataset's file, or its one domain. */
static int tags_name(struct tags *tags, struct domains *domains, const char *dataset,
                     const struct domain_entry *entry, struct error *error) {
    char name[DOMAIN_NAME_BYTES];
    const char *at = entry->names;
    int rc = 0;
    if (entry->file == NULL) {
        return domains_add(domains, dataset, entry->domain != NULL ? entry->domain : dataset,
                           &tags->domain, error);
    }
    if (at == NULL || domain_names_count(at) < 0) {
        return error_set(error, -EINVAL,
                         "dataset '%s': a file of domains needs domain_names, 1 to %u different "
                         "names with commas",
                         dataset, DOMAINS_MAX);
    }
    while (rc == 0 && domain_names_next(&at, name) == 1) {
        rc = domains_add(domains, dataset, name, &tags->names[tags->name_count], error);
        tags->name_count++;
    }
    domains->filed = true;
    return rc;
}

static int refuse_tag(const struct tags *tags, uint64_t document, uint8_t tag,
                      struct error *error) {
    return error_set(error, -EBADMSG,
                     "%s: document %" PRIu64 " at offset %" PRIu64
                     " has domain %u, and there are names for 0 to %u; correct the file or "
                     "dataset.NAME.domain_names",
                     file_path(tags->file), document, document, tag, tags->name_count - 1);
}

static int refuse_reading(const struct tags *tags, uint64_t offset, int code, struct error *error) {
    return error_set(error, code,
                     "%s: cannot be read at offset %" PRIu64
                     " (%s); put the file of domains back and restart",
                     file_path(tags->file), offset,
                     code == -EIO ? "its end, or an error of the disk" : strerror(-code));
}

static int check_size(const struct tags *tags, const struct dataset *dataset, struct error *error) {
    uint8_t head[sizeof NUMPY_MAGIC - 1];
    size_t have = 0;
    uint64_t bytes = file_bytes(tags->file);
    if (bytes == dataset_documents(dataset)) {
        return 0;
    }
    bool numpy = bytes >= sizeof head &&
                 volumes_read_file(tags->file, 0, head, sizeof head, &have) == 0 &&
                 memcmp(head, NUMPY_MAGIC, sizeof head) == 0;
    return error_set(error, -EBADMSG,
                     "%s: %" PRIu64 " bytes%s, and %s has %" PRIu64
                     " documents; write one byte for each document: "
                     "numpy.asarray(domains, 'u1').tofile(PATH)",
                     file_path(tags->file), bytes, numpy ? ", a numpy array with its header" : "",
                     dataset_prefix(dataset), dataset_documents(dataset));
}

static int check_block(const struct tags *tags, uint64_t from, const uint8_t *bytes, size_t count,
                       struct error *error) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] >= tags->name_count) {
            return refuse_tag(tags, from + i, bytes[i], error);
        }
    }
    return 0;
}

/* All of the file, once. */
static int tags_check(struct tags *tags, uint64_t documents, struct error *error) {
    uint8_t block[BLOCK_BYTES];
    for (uint64_t from = 0; from < documents;) {
        size_t have = 0,
               count = documents - from < sizeof block ? (size_t)(documents - from) : sizeof block;
        int rc = volumes_read_file(tags->file, from, block, count, &have);
        rc = rc < 0 ? refuse_reading(tags, from + have, rc, error)
                    : check_block(tags, from, block, count, error);
        if (rc < 0) {
            return rc;
        }
        from += count;
    }
    return 0;
}

static int tags_open(struct tags *tags, const char *path, const struct dataset *dataset,
                     struct files *files, struct error *error) {
    int rc = file_create(files, path, false, &tags->file, error);
    if (rc == 0) {
        rc = check_size(tags, dataset, error);
    }
    return rc == 0 ? tags_check(tags, dataset_documents(dataset), error) : rc;
}

static bool domains_said(const struct domain_entry *entries, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (entries[i].domain != NULL || entries[i].file != NULL) {
            return true;
        }
    }
    return false;
}

int domains_open(const struct catalog *catalog, const struct domain_entry *entries,
                 struct files *files, struct domains **out, struct error *error) {
    uint32_t count = catalog_count(catalog);
    int rc = 0;
    *out = NULL;
    if (!domains_said(entries, count)) {
        return 0;
    }
    struct domains *domains = calloc(1, sizeof *domains + count * sizeof domains->datasets[0]);
    if (domains == NULL) {
        return error_set(error, -ENOMEM, "no memory for domains; free some memory");
    }
    domains->dataset_count = count;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        struct tags *tags = &domains->datasets[i];
        rc = tags_name(tags, domains, catalog_name(catalog, i), &entries[i], error);
        if (rc == 0 && entries[i].file != NULL) {
            rc = tags_open(tags, entries[i].file, catalog_dataset(catalog, i), files, error);
            rc = rc < 0 ? error_prefix(error, "domains of '%s'", catalog_name(catalog, i)) : 0;
        }
    }
    if (rc < 0) {
        domains_close(domains);
        return rc;
    }
    *out = domains;
    return 0;
}

void domains_close(struct domains *domains) {
    for (uint32_t i = 0; domains != NULL && i < domains->dataset_count; i++) {
        file_destroy(domains->datasets[i].file);
    }
    free(domains);
}

uint32_t domains_count(const struct domains *domains) {
    return domains->count;
}

const char *domains_name(const void *of, uint32_t domain) {
    const struct domains *domains = of;
    assert(domain < domains->count);
    return domains->names[domain];
}

bool domains_filed(const struct domains *domains) {
    return domains->filed;
}

static int tags_read(const struct tags *tags, uint64_t document, struct error *error) {
    uint8_t tag = 0;
    size_t have;
    int rc = volumes_read_file(tags->file, document, &tag, 1, &have);
    if (rc < 0) {
        return refuse_reading(tags, document, rc, error);
    }
    return tag < tags->name_count ? tag : refuse_tag(tags, document, tag, error);
}

int domains_of(const struct domains *domains, uint32_t dataset, uint64_t document,
               struct error *error) {
    assert(dataset < domains->dataset_count);
    const struct tags *tags = &domains->datasets[dataset];
    if (tags->file == NULL) {
        return tags->domain;
    }
    int tag = tags_read(tags, document, error);
    return tag < 0 ? tag : tags->names[tag];
}

/* What was read of a file that was written to meanwhile may be of no document. */
static int domains_check(const struct domains *domains, struct error *error) {
    for (uint32_t i = 0; i < domains->dataset_count; i++) {
        const struct tags *tags = &domains->datasets[i];
        int rc = tags->file != NULL ? file_check(tags->file) : 0;
        if (rc < 0) {
            return error_set(error, rc,
                             "%s: changed since it was opened (%s); restart to read it anew",
                             file_path(tags->file), strerror(-rc));
        }
    }
    return 0;
}

/* Tallies */

static size_t tally_bytes(uint32_t count) {
    return sizeof(struct domain_tally) + count * sizeof(struct delay_counts);
}

struct domain_tally *domain_tally_create(const struct domains *domains) {
    struct domain_tally *tally = calloc(1, tally_bytes(domains->count));
    if (tally != NULL) {
        tally->count = domains->count;
    }
    return tally;
}

struct domain_tally *domain_tally_copy(const struct domain_tally *tally) {
    struct domain_tally *copy = malloc(tally_bytes(tally->count));
    return copy == NULL ? NULL : memcpy(copy, tally, tally_bytes(tally->count));
}

void domain_tally_begin(struct domain_tally *tally, const struct domains *domains,
                        const struct plan_state *state) {
    memset(tally->counts, 0, tally->count * sizeof tally->counts[0]);
    tally->step = state->step;
    tally->since = domains->filed ? state->step : 0;
    tally->error = (struct error){0};
    for (uint32_t i = 0; !domains->filed && i < state->cursor.dataset_count; i++) {
        delay_counts_join(&tally->counts[domains->datasets[i].domain], &state->delays[i]);
    }
}

/* Into `domain` the domain of each part. */
static int tally_look_up(const struct domains *domains, const struct step_plan *plan,
                         uint8_t *domain, struct error *error) {
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        int found = domains_of(domains, document->dataset, document->document, error);
        if (found < 0) {
            return found;
        }
        domain[i] = (uint8_t)found;
    }
    return domains_check(domains, error);
}

void domain_tally_add(struct domain_tally *tally, const struct domains *domains,
                      const struct step_plan *plan) {
    if (tally->error.code < 0) {
        return;
    }
    assert(plan->step == tally->step);
    uint8_t *domain = malloc(plan->document_count + 1);
    int rc = domain == NULL ? error_set(&tally->error, -ENOMEM, "domains: out of memory")
                            : tally_look_up(domains, plan, domain, &tally->error);
    for (uint32_t i = 0; rc == 0 && i < plan->document_count; i++) {
        delay_counts_add(&tally->counts[domain[i]], &plan->documents[i], plan->step);
    }
    tally->step += rc == 0;
    free(domain);
}
