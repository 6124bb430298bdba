/* tokens: reads the tokens of a micro-batch into its slot.
 *
 * Payload of a slot: the tokens of each part in row order, then one successor token for each part
 * that is not its document's last, in the same order; token_bytes (2 or 4) each, little endian.
 * Neighbouring parts of a file are read as one extent straight into the payload when widths agree;
 * otherwise through the job's bounce buffer and converted on completion: widening is free,
 * narrowing is checked value by value. Refused are negative ids, ids over 65535 in 2-byte tokens,
 * and ids over 2^31-1 in 4-byte ones, which a trainer's int32 would turn negative.
 *
 *     tokens_job_prepare -> reader_submit(&job->read) -> reader_reap -> tokens_job_finish
 *
 * prepare and finish touch no file (finish asks for a size after a failed read). One thread at a
 * time per job; the catalog is shared. */
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
    uint8_t *payload;
    void *memory; /* one allocation: what the pointers below lead to */
    size_t memory_bytes;
    struct tokens_place *places; /* one per part, in disk order */
    struct iovec *iovecs;
    uint32_t *extent_places; /* the place at which each extent begins */
    uint8_t *bounce;
};

/* Bytes of the payload for these parts. */
uint64_t tokens_payload_bytes(const struct document *documents, uint32_t count,
                              uint32_t token_bytes);

/* Prepares a job that fills `payload` (tokens_payload_bytes long, aligned to token_bytes) from
 * parts that exist in the catalog; count > 0, token_bytes 2 or 4. Catalog, documents and payload
 * are borrowed until the job is finished. Keeps and reuses the job's memory between calls (zero the
 * struct first time): about 200 bytes per part, and the bytes in the file where widths differ.
 * -ENOMEM; the job may be prepared again. */
int tokens_job_prepare(struct tokens_job *job, const struct catalog *catalog,
                       const struct document *documents, uint32_t count, uint32_t token_bytes,
                       void *payload);

/* After the read job was reaped: converts and checks. On failure `error` names dataset, file, byte
 * offset, document, token and remedy, and the payload is not to be used: the errno of the read
 * (-EIO also where the file has become shorter than its index says), or -EBADMSG for an id that is
 * refused. */
int tokens_job_finish(struct tokens_job *job, struct error *error);

/* Frees the job's memory; a zeroed job is fine. */
void tokens_job_deinit(struct tokens_job *job);

#endif
