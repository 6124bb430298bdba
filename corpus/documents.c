/* documents: see documents.h. */
#include "corpus/documents.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#define HELD_MAX   ((size_t)WINDOW_DOCUMENTS * WINDOWS_MAX)
#define OFFSETS_AT (UINT64_C(1) << 40) /* where windows find the addresses; lengths are at 0 */

void documents_init(struct documents *documents, uint32_t width) {
    *documents = (struct documents){.width = width, .lengths_fd = -1, .offsets_fd = -1};
}

void documents_deinit(struct documents *documents) {
    free(documents->lengths);
    free(documents->offsets);
    if (documents->lengths_fd >= 0) {
        (void)close(documents->lengths_fd);
        (void)close(documents->offsets_fd);
    }
    documents_init(documents, documents->width);
}

static int documents_grow(struct documents *documents) {
    size_t capacity = documents->capacity == 0 ? WINDOW_DOCUMENTS : 2 * documents->capacity;
    uint32_t *lengths = reallocarray(documents->lengths, capacity, sizeof *lengths);
    documents->lengths = lengths != NULL ? lengths : documents->lengths;
    uint64_t *offsets = reallocarray(documents->offsets, capacity, sizeof *offsets);
    documents->offsets = offsets != NULL ? offsets : documents->offsets;
    if (lengths == NULL || offsets == NULL) {
        return -ENOMEM;
    }
    documents->capacity = capacity;
    return 0;
}

static int open_unnamed(void) {
    const char *folder = getenv("TMPDIR");
    return open(folder == NULL || folder[0] == '\0' ? "/var/tmp" : folder,
                O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

static int spill_bytes(int fd, const void *bytes, size_t count, uint64_t at) {
    for (size_t done = 0; done < count;) {
        ssize_t put = pwrite(fd, (const uint8_t *)bytes + done, count - done, (off_t)(at + done));
        if (put < 0 && errno != EINTR) {
            return -errno;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

static int documents_spill(struct documents *documents) {
    if (documents->lengths_fd < 0) {
        int lengths = open_unnamed();
        int offsets = lengths < 0 ? -1 : open_unnamed();
        if (offsets < 0) {
            int code = -errno;
            if (lengths >= 0) {
                (void)close(lengths);
            }
            return code;
        }
        documents->lengths_fd = lengths;
        documents->offsets_fd = offsets;
    }
    size_t held = documents->held;
    int rc = spill_bytes(documents->lengths_fd, documents->lengths, held * sizeof(uint32_t),
                         documents->spilled * sizeof(uint32_t));
    if (rc == 0) {
        rc = spill_bytes(documents->offsets_fd, documents->offsets, held * sizeof(uint64_t),
                         documents->spilled * sizeof(uint64_t));
    }
    if (rc == 0) {
        documents->spilled += held;
        documents->held = 0;
    }
    return rc;
}

static int documents_make_room(struct documents *documents, struct error *error) {
    if (documents->held < documents->capacity) {
        return 0;
    }
    if (documents->capacity < HELD_MAX) {
        return documents_grow(documents) == 0 ? 0
                                              : error_set(error, -ENOMEM,
                                                          "no memory for the lengths of %" PRIu64
                                                          " documents; free some memory",
                                                          documents->count);
    }
    int rc = documents_spill(documents);
    return rc == 0 ? 0
                   : error_set(error, rc,
                               "cannot keep the lengths of %" PRIu64 " documents in a file in "
                               "TMPDIR (%s); free some space, or point TMPDIR elsewhere",
                               documents->count, strerror(-rc));
}

int documents_add(struct documents *documents, uint64_t address, uint64_t tokens, const char *path,
                  struct error *error) {
    assert(address >= documents->next);
    if (tokens > INT32_MAX) {
        return error_set(error, -EBADMSG,
                         "%s: document %" PRIu64 " has %" PRIu64 " tokens, more than the %d of a "
                         "document; check corpus.eod, or split it",
                         path, documents->count, tokens, INT32_MAX);
    }
    if (documents->count == INDEX_DOCUMENTS_MAX) {
        return error_set(error, -ENOBUFS, "%s: more than %d documents; make several datasets of it",
                         path, INDEX_DOCUMENTS_MAX);
    }
    int rc = documents_make_room(documents, error);
    if (rc < 0) {
        return rc;
    }
    documents->lengths[documents->held] = (uint32_t)tokens;
    documents->offsets[documents->held] = address;
    documents->held++;
    documents->count++;
    documents->gapped = documents->gapped || address != documents->next;
    documents->next = address + tokens * documents->width;
    documents->tokens += tokens;
    documents->longest = tokens > documents->longest ? (uint32_t)tokens : documents->longest;
    return 0;
}

/* What windows read: lengths from 0 on, addresses from OFFSETS_AT on. */
static int documents_read(const void *context, uint64_t offset, void *to, size_t count) {
    const struct documents *documents = context;
    bool lengths = offset < OFFSETS_AT;
    if (documents->lengths_fd < 0) {
        const uint8_t *from = lengths ? (const uint8_t *)documents->lengths
                                      : (const uint8_t *)documents->offsets;
        memcpy(to, from + (lengths ? offset : offset - OFFSETS_AT), count);
        return 0;
    }
    ssize_t got = pread(lengths ? documents->lengths_fd : documents->offsets_fd, to, count,
                        (off_t)(lengths ? offset : offset - OFFSETS_AT));
    return got == (ssize_t)count ? 0 : got < 0 ? -errno : -EIO;
}

struct filling {
    struct documents *documents;
    void (*seen)(void *context, const void *bytes, size_t count);
    void *context;
    struct windows *windows;
};

static int fill_lengths(const struct filling *filling) {
    uint32_t block[WINDOW_DOCUMENTS];
    uint64_t count = filling->documents->count;
    for (uint64_t from = 0; from < count; from += WINDOW_DOCUMENTS) {
        size_t some = count - from < WINDOW_DOCUMENTS ? (size_t)(count - from) : WINDOW_DOCUMENTS;
        int rc = documents_read(filling->documents, from * sizeof block[0], block,
                                some * sizeof block[0]);
        if (rc < 0) {
            return rc;
        }
        windows_put_lengths(filling->windows, block, some);
        filling->seen(filling->context, block, some * sizeof block[0]);
    }
    return 0;
}

static int fill_offsets(const struct filling *filling) {
    uint64_t block[WINDOW_DOCUMENTS];
    uint64_t count = filling->documents->count;
    int rc = windows_want_offsets(filling->windows);
    for (uint64_t from = 0; rc == 0 && from < count; from += WINDOW_DOCUMENTS) {
        size_t some = count - from < WINDOW_DOCUMENTS ? (size_t)(count - from) : WINDOW_DOCUMENTS;
        rc = documents_read(filling->documents, OFFSETS_AT + from * sizeof block[0], block,
                            some * sizeof block[0]);
        if (rc == 0) {
            windows_put_offsets(filling->windows, block, some);
            filling->seen(filling->context, block, some * sizeof block[0]);
        }
    }
    return rc;
}

int documents_index(struct documents *documents, uint8_t dtype,
                    void (*seen)(void *context, const void *bytes, size_t count), void *context,
                    struct document_index *index, struct error *error) {
    const struct windows_file file = {.path = "the documents' lengths in TMPDIR",
                                      .offsets_at = OFFSETS_AT,
                                      .read = documents_read,
                                      .context = documents};
    int rc = documents->lengths_fd < 0 ? 0 : documents_spill(documents);
    struct windows *windows = windows_create(&file, documents->count, documents->width);
    struct filling filling = {documents, seen, context, windows};
    rc = rc == 0 && windows == NULL ? -ENOMEM : rc;
    if (rc == 0) {
        rc = fill_lengths(&filling);
    }
    if (rc == 0 && documents->gapped) {
        rc = fill_offsets(&filling);
    }
    if (rc < 0) {
        windows_destroy(windows);
        return error_set(error, rc, "cannot keep the lengths of %" PRIu64 " documents (%s)",
                         documents->count, strerror(-rc));
    }
    *index = (struct document_index){.dtype = dtype,
                                     .width = documents->width,
                                     .longest = documents->longest,
                                     .documents = documents->count,
                                     .tokens = documents->tokens,
                                     .windows = windows};
    return 0;
}
