/* tokens: reads the tokens of micro-batches into their slots.
 *
 * Payload of a slot: the tokens of each part in row order, then one successor token for each part
 * that is not its document's last, in the same order; token_bytes (2 or 4) each, little endian.
 * A job reads several slots, for what is neighbouring on disk was dealt out among them: parts in
 * disk order become extents of up to 1 MB whichever slots they go to, across small gaps too, and
 * are scattered straight into the payloads when widths agree; otherwise through the job's bounce
 * memory and converted: widening is free, narrowing is checked value by value. Refused are negative
 * ids, ids over 65535 in 2-byte tokens, and ids over 2^31-1 in 4-byte ones, which a trainer's int32
 * would turn negative. Files must be, after the read, what they were when they were opened.
 *
 *     tokens_job_begin -> reader_submit(&job->read) -> reader_reap -> each target's error
 *
 * All work is done by the reader's threads: of a large index, places of documents are read from its
 * file. One thread at a time per job; the catalog is shared. */
#ifndef BALLAST_CORPUS_TOKENS_H
#define BALLAST_CORPUS_TOKENS_H

#include "corpus/catalog.h"
#include "corpus/extents.h"
#include "planner/document.h"

#include <stdbool.h>

/* A slot to fill. */
struct tokens_target {
    const struct document *documents; /* that exist in the catalog; borrowed until reaped */
    uint32_t count;                   /* > 0 */
    bool wants_hash;
    void *payload; /* tokens_payload_bytes long, aligned to token_bytes */
    /* Set before the job is reaped: */
    uint64_t hash; /* XXH3-64 of the payload, 0 unless wanted */
    /* Code 0: the payload is as it should be. Else it is not to be used, and the text names
     * dataset, file, byte offset, document, token and remedy: the errno of the read, -ENODATA where
     * the file has become shorter than its index says, -ESTALE where it was written to or replaced
     * since it was opened, or -EBADMSG for an id that is refused. */
    struct error error;
    struct tokens_target *next; /* of the same job; NULL: the last */
};

struct tokens_job {
    struct read_job read; /* first member: a reaped read_job is its tokens_job */
    void *owner;          /* the caller's */
    struct tokens_target *targets;
    uint64_t wanted_bytes; /* of the files, for the targets; known when the job is reaped */
    uint64_t read_bytes;   /* with gaps; likewise */
    /* private from here on, see tokens.c */
    const struct catalog *catalog;
    uint32_t token_bytes;
    bool exact;
    uint32_t place_count;
    struct tokens_place *places; /* one per part, in disk order */
    struct tokens_key *keys;     /* to sort them by */
    void *places_memory;         /* of both, each twice */
    uint32_t places_max;
    bool has_successors; /* that are to be copied from the part behind */
    bool is_converted;   /* or at least checked, value by value */
    struct extents extents;
    uint8_t *bounce;
    uint64_t bounce_max;
};

/* Bytes of the payload for these parts. */
uint64_t tokens_payload_bytes(const struct document *documents, uint32_t count,
                              uint32_t token_bytes);

/* Begins a job that fills `targets` (a list, not empty), token_bytes 2 or 4. With `exact` no gaps
 * are read: for a second try after a failure, which then concerns the target alone. Keeps and
 * reuses the job's memory between calls (zero the struct first time): about 400 bytes per part, and
 * the bytes in the file where widths differ. Without that memory all targets end with -ENOMEM. */
void tokens_job_begin(struct tokens_job *job, const struct catalog *catalog, uint32_t token_bytes,
                      bool exact, struct tokens_target *targets);

/* The same, with what the reader's thread would do first done here: job->read.extents are there.
 * -ENOMEM; the job may be prepared again. */
int tokens_job_prepare(struct tokens_job *job, const struct catalog *catalog, uint32_t token_bytes,
                       bool exact, struct tokens_target *targets);

/* Frees the job's memory; a zeroed job is fine. */
void tokens_job_deinit(struct tokens_job *job);

#endif
