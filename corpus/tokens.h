/* tokens: reads the tokens of a micro-batch into its slot.
 *
 * Payload of a slot: the tokens of each part in row order, then one successor token for each part
 * that is not its document's last, in the same order; token_bytes (2 or 4) each, little endian.
 * Neighbouring parts of a file are read as one extent straight into the payload when widths agree;
 * otherwise through the job's bounce buffer and converted on completion: widening is free,
 * narrowing is checked value by value, negative ids are refused. */
#ifndef BALLAST_CORPUS_TOKENS_H
#define BALLAST_CORPUS_TOKENS_H

#include "corpus/catalog.h"
#include "corpus/reader.h"
#include "planner/document.h"

struct tokens_job {
    struct read_job read; /* first member: a reaped read_job is its tokens_job */
    void *owner;          /* the caller's */
    /* private from here on, see tokens.c */
    const struct catalog *catalog;
    const struct document *documents;
    uint32_t document_count;
    uint32_t token_bytes;
    void *payload;
    void *memory;
    size_t memory_bytes;
};

/* Bytes of the payload for these parts. */
uint64_t tokens_payload_bytes(const struct document *documents, uint32_t count,
                              uint32_t token_bytes);

/* Prepares a job that fills `payload` (tokens_payload_bytes long). `documents` must stay until the
 * job is finished. Keeps and reuses the job's memory between calls (zero the struct first time).
 * count > 0. -ENOMEM. */
int tokens_job_prepare(struct tokens_job *job, const struct catalog *catalog,
                       const struct document *documents, uint32_t count, uint32_t token_bytes,
                       void *payload);

/* After the read job was reaped: converts and checks. On failure `error` names dataset, file,
 * offset, document and remedy; the payload is then not to be used. */
int tokens_job_finish(struct tokens_job *job, struct error *error);

void tokens_job_deinit(struct tokens_job *job);

#endif
