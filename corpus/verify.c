/* verify: see verify.h. */
#include "corpus/verify.h"
#include "corpus/convert.h"
#include "corpus/volumes.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (1u << 20)

/* Greatest legal id. Signed tokens are compared as unsigned ones: a negative id is then above the
 * greatest positive one. */
static uint64_t greatest_id(const struct dataset *dataset, uint64_t vocab) {
    uint32_t bits = 8 * dataset_width(dataset) - convert_is_signed(dataset_dtype(dataset));
    uint64_t greatest = bits >= 31 ? INT32_MAX : (UINT64_C(1) << bits) - 1;
    return vocab > 0 && vocab - 1 < greatest ? vocab - 1 : greatest;
}

static uint64_t token_at(const uint8_t *bytes, uint32_t width) {
    uint64_t token = 0;
    memcpy(&token, bytes, width);
    return le64toh(token);
}

static uint64_t max_u8(const uint8_t *bytes, size_t count) {
    uint8_t max = 0;
    for (size_t i = 0; i < count; i++) {
        max = bytes[i] > max ? bytes[i] : max;
    }
    return max;
}

static uint64_t max_u16(const uint16_t *tokens, size_t count) {
    uint16_t max = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t token = le16toh(tokens[i]);
        max = token > max ? token : max;
    }
    return max;
}

static uint64_t max_u32(const uint32_t *tokens, size_t count) {
    uint32_t max = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t token = le32toh(tokens[i]);
        max = token > max ? token : max;
    }
    return max;
}

static uint64_t max_u64(const uint64_t *tokens, size_t count) {
    uint64_t max = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t token = le64toh(tokens[i]);
        max = token > max ? token : max;
    }
    return max;
}

/* `chunk` is malloc's, so aligned for every width. */
static uint64_t max_token(const void *chunk, size_t bytes, uint32_t width) {
    switch (width) {
    case 1:
        return max_u8(chunk, bytes);
    case 2:
        return max_u16(chunk, bytes / 2);
    case 4:
        return max_u32(chunk, bytes / 4);
    default:
        return max_u64(chunk, bytes / 8);
    }
}

static uint64_t document_at(const struct dataset *dataset, uint64_t offset) {
    uint64_t i = 0;
    for (; i + 1 < dataset_documents(dataset); i++) {
        uint64_t from = dataset_offset(dataset, i);
        uint64_t bytes = (uint64_t)dataset_length(dataset, i) * dataset_width(dataset);
        if (offset >= from && offset - from < bytes) {
            break;
        }
    }
    return i;
}

static int refuse_read(const struct dataset *dataset, uint64_t address, int code,
                       struct error *error) {
    uint64_t offset;
    const char *path = dataset_locate(dataset, address, &offset);
    return error_set(error, code,
                     "corpus '%s': %s: document %" PRIu64 " cannot be read at offset %" PRIu64
                     " (%s); check the disk and copy the file again",
                     dataset_name(dataset), path, document_at(dataset, address), offset,
                     code == -EIO ? "the file ends or the disk fails there" : strerror(-code));
}

static int refuse_token(const struct dataset *dataset, const uint8_t *chunk, uint64_t chunk_at,
                        uint64_t greatest, struct error *error) {
    uint32_t width = dataset_width(dataset);
    size_t at = 0;
    while (token_at(chunk + at, width) <= greatest) {
        at += width;
    }
    uint64_t token = token_at(chunk + at, width);
    uint64_t sign = UINT64_C(1) << (8 * width - 1);
    uint64_t offset;
    const char *path = dataset_locate(dataset, chunk_at + at, &offset);
    bool negative = convert_is_signed(dataset_dtype(dataset)) && (token & sign) != 0;
    return error_set(
        error, -EBADMSG,
        "corpus '%s': %s: document %" PRIu64 ": token id %s%" PRIu64 " at offset %" PRIu64
        ", legal are 0 to %" PRIu64 "; check the vocabulary, or tokenize the text again",
        dataset_name(dataset), path, document_at(dataset, chunk_at + at), negative ? "-" : "",
        negative ? (~token & (sign | (sign - 1))) + 1 : token, offset, greatest);
}

static int refuse_piece(const struct dataset *dataset, uint64_t address, struct error *error) {
    uint64_t offset;
    const char *path = dataset_locate(dataset, address, &offset);
    return error_set(error, -EBADMSG,
                     "corpus '%s': %s: document %" PRIu64 ": the bytes at offset %" PRIu64
                     " are not those that the manifest was made of; restore the file",
                     dataset_name(dataset), path, document_at(dataset, address), offset);
}

struct scan {
    const struct dataset *dataset;
    uint64_t greatest; /* legal id */
    struct manifest *fresh;
    void (*progress)(uint64_t done, uint64_t total, void *context);
    void *context;
    uint8_t *chunk;
    uint64_t token_max;
    struct error *error;
};

/* Bytes of a volume, from one of its pieces on. */
static int check_pieces(const struct scan *scan, const struct volume *volume, uint64_t address,
                        size_t count) {
    const struct manifest *manifest = dataset_manifest(scan->dataset);
    uint64_t at = volume->pieces_at + (address - volume->base), bad;
    if (scan->fresh != NULL) {
        manifest_add(scan->fresh, at, scan->chunk, count);
    } else if (manifest != NULL && !manifest_holds(manifest, at, scan->chunk, count, &bad)) {
        return refuse_piece(scan->dataset, address + (bad - at), scan->error);
    }
    return 0;
}

static int check_tokens(struct scan *scan, uint64_t address, size_t count) {
    uint64_t max = max_token(scan->chunk, count, dataset_width(scan->dataset));
    if (max > scan->greatest) {
        return refuse_token(scan->dataset, scan->chunk, address, scan->greatest, scan->error);
    }
    scan->token_max = max > scan->token_max ? max : scan->token_max;
    return 0;
}

static int read_chunk(const struct scan *scan, uint64_t address, size_t count) {
    size_t have = 0;
    int rc = dataset_read(scan->dataset, address, scan->chunk, count, &have);
    return rc < 0 ? refuse_read(scan->dataset, address + have, rc, scan->error) : 0;
}

/* All bytes; and the tokens, where they are nothing else. */
static int scan_volume(struct scan *scan, const struct volume *volume) {
    bool dense = dataset_dense(scan->dataset);
    for (uint64_t done = 0; done < volume->bytes;) {
        uint64_t left = volume->bytes - done;
        size_t count = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        int rc = read_chunk(scan, volume->base + done, count);
        if (rc == 0) {
            rc = check_pieces(scan, volume, volume->base + done, count);
        }
        if (rc == 0 && dense) {
            rc = check_tokens(scan, volume->base + done, count);
        }
        if (rc < 0) {
            return rc;
        }
        done += count;
        if (scan->progress != NULL) {
            scan->progress(volume->base + done, dataset_bin_bytes(scan->dataset), scan->context);
        }
    }
    return 0;
}

/* One by one where something else stands between them. */
static int scan_document(struct scan *scan, uint64_t i) {
    uint64_t address = dataset_offset(scan->dataset, i);
    uint64_t left = (uint64_t)dataset_length(scan->dataset, i) * dataset_width(scan->dataset);
    while (left > 0) {
        size_t count = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        int rc = read_chunk(scan, address, count);
        if (rc == 0) {
            rc = check_tokens(scan, address, count);
        }
        if (rc < 0) {
            return rc;
        }
        address += count;
        left -= count;
    }
    return 0;
}

static int scan_tokens(struct scan *scan) {
    const struct volumes *volumes = dataset_volumes(scan->dataset);
    int rc = 0;
    scan->chunk = malloc(CHUNK_BYTES);
    if (scan->chunk == NULL) {
        return error_set(scan->error, -ENOMEM, "no memory to read with; free some memory");
    }
    for (uint32_t i = 0; rc == 0 && i < volumes->count; i++) {
        rc = scan_volume(scan, &volumes->items[i]);
    }
    uint64_t documents = dataset_dense(scan->dataset) ? 0 : dataset_documents(scan->dataset);
    for (uint64_t i = 0; rc == 0 && i < documents; i++) {
        rc = scan_document(scan, i);
    }
    free(scan->chunk);
    return rc;
}

/* The 16 bits above `shift` of the length at `*rank` among those that have `upper` above them;
 * `*rank` becomes its rank among those that share all of these bits. */
static uint32_t digit_at_rank(const struct dataset *dataset, unsigned shift, uint32_t upper,
                              uint64_t *rank, uint32_t counts[1u << 16]) {
    uint32_t digit = 0;
    memset(counts, 0, (1u << 16) * sizeof *counts);
    for (uint64_t i = 0; i < dataset_documents(dataset); i++) {
        uint64_t length = dataset_length(dataset, i);
        if (length >> shift >> 16 == upper) {
            counts[length >> shift & 0xffffu]++;
        }
    }
    while (*rank >= counts[digit]) {
        *rank -= counts[digit++];
    }
    return digit;
}

/* Which length stands at `rank` when all are in rising order. */
static uint32_t length_at_rank(const struct dataset *dataset, uint64_t rank, uint32_t *counts) {
    uint32_t upper = digit_at_rank(dataset, 16, 0, &rank, counts);
    return upper << 16 | digit_at_rank(dataset, 0, upper, &rank, counts);
}

static int measure_lengths(const struct dataset *dataset, struct verify_result *result,
                           struct error *error) {
    uint64_t documents = dataset_documents(dataset);
    if (documents == 0) {
        return 0;
    }
    uint32_t *counts = malloc((1u << 16) * sizeof *counts);
    if (counts == NULL) {
        return error_set(error, -ENOMEM, "no memory to count with; free some memory");
    }
    for (uint64_t i = 0; i < documents; i++) {
        result->empty_documents += dataset_length(dataset, i) == 0;
    }
    result->length_p50 = length_at_rank(dataset, documents * 50 / 100, counts);
    result->length_p90 = length_at_rank(dataset, documents * 90 / 100, counts);
    result->length_p99 = length_at_rank(dataset, documents * 99 / 100, counts);
    result->length_max = length_at_rank(dataset, documents - 1, counts);
    free(counts);
    return 0;
}

int verify_dataset(const struct dataset *dataset, uint64_t vocab, struct manifest *fresh,
                   void (*progress)(uint64_t done, uint64_t total, void *context), void *context,
                   struct verify_result *result, struct error *error) {
    struct verify_result found = {.documents = dataset_documents(dataset),
                                  .tokens = dataset_tokens(dataset),
                                  .bytes = dataset_bin_bytes(dataset)};
    struct scan scan = {.dataset = dataset,
                        .greatest = greatest_id(dataset, vocab),
                        .fresh = fresh,
                        .progress = progress,
                        .context = context,
                        .error = error};
    int rc = scan_tokens(&scan);
    found.token_max = scan.token_max;
    if (rc == 0) {
        rc = measure_lengths(dataset, &found, error);
    }
    if (rc == 0) {
        rc = dataset_fingerprint(dataset, found.fingerprint, error);
    }
    if (rc == 0) {
        *result = found;
    }
    return rc;
}
