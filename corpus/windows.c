/* windows: see windows.h. A chunk has one place, its number modulo the windows there are. */
#include "corpus/windows.h"
#include "corpus/bulk.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STRIDE       64u /* documents per running total inside a window */
#define TOTALS       (WINDOW_DOCUMENTS / STRIDE)
#define LENGTH_BYTES 4u
#define OFFSET_BYTES 8u
#define READ_TRIES   3

struct chunk {
    uint64_t tokens_before;
    uint64_t lengths_hash;
    uint64_t offsets_hash;
};

struct window {
    uint64_t chunk;
    bool bad;
    uint32_t lengths[WINDOW_DOCUMENTS];
    uint64_t totals[TOTALS]; /* tokens before each stride, from the start of the stream */
};

struct offset_window {
    uint64_t offsets[WINDOW_DOCUMENTS];
};

struct windows {
    struct windows_file file;
    uint64_t documents;
    uint64_t tokens; /* put so far */
    uint32_t width;
    uint64_t chunk_count;
    uint64_t window_count;
    uint64_t put_lengths, put_offsets; /* chunks */
    struct chunk *chunks;
    struct window *windows;
    struct offset_window *offsets; /* NULL: they follow from the lengths */
    /* Guards the windows once filled, unless resident: then they are immutable. */
    pthread_mutex_t lock;
    struct error error;
    _Atomic int failed; /* stored after `error`, loaded before it */
};

struct windows *windows_create(const struct windows_file *file, uint64_t documents,
                               uint32_t width) {
    struct windows *windows = calloc(1, sizeof *windows);
    if (windows == NULL) {
        return NULL;
    }
    pthread_mutex_init(&windows->lock, NULL);
    windows->file = *file;
    windows->documents = documents;
    windows->width = width;
    windows->chunk_count = (documents + WINDOW_DOCUMENTS - 1) / WINDOW_DOCUMENTS;
    windows->window_count = windows->chunk_count < WINDOWS_MAX ? windows->chunk_count : WINDOWS_MAX;
    windows->chunks = calloc(windows->chunk_count + 1, sizeof *windows->chunks);
    windows->windows = calloc(windows->window_count + 1, sizeof *windows->windows);
    if (windows->chunks == NULL || windows->windows == NULL) {
        windows_destroy(windows);
        return NULL;
    }
    return windows;
}

void windows_destroy(struct windows *windows) {
    if (windows == NULL) {
        return;
    }
    pthread_mutex_destroy(&windows->lock);
    free(windows->chunks);
    free(windows->windows);
    free(windows->offsets);
    free(windows);
}

bool windows_resident(const struct windows *windows) {
    return windows->window_count == windows->chunk_count;
}

static size_t chunk_documents(const struct windows *windows, uint64_t chunk) {
    uint64_t left = windows->documents - chunk * WINDOW_DOCUMENTS;
    return left < WINDOW_DOCUMENTS ? (size_t)left : WINDOW_DOCUMENTS;
}

/* Filling */

static uint64_t window_total(struct window *window, uint64_t tokens, size_t count) {
    for (size_t from = 0; from < count; from += STRIDE) {
        size_t end = count - from < STRIDE ? count : from + STRIDE;
        window->totals[from / STRIDE] = tokens;
        for (size_t i = from; i < end; i++) {
            tokens += window->lengths[i];
        }
    }
    return tokens;
}

/* Whether a chunk's place is not another's before all are put: only these are kept. */
static bool windows_keeps(const struct windows *windows, uint64_t number) {
    return number + windows->window_count >= windows->chunk_count;
}

void windows_put_lengths(struct windows *windows, const uint32_t *lengths, size_t count) {
    uint64_t number = windows->put_lengths++;
    assert(number < windows->chunk_count && count == chunk_documents(windows, number));
    struct chunk *chunk = &windows->chunks[number];
    chunk->tokens_before = windows->tokens;
    chunk->lengths_hash = bulk_hash(lengths, count * LENGTH_BYTES);
    if (windows_keeps(windows, number)) {
        struct window *window = &windows->windows[number % windows->window_count];
        memcpy(window->lengths, lengths, count * LENGTH_BYTES);
        window->chunk = number;
        windows->tokens = window_total(window, windows->tokens, count);
    } else {
        windows->tokens += bulk_lengths(lengths, count).sum;
    }
}

int windows_want_offsets(struct windows *windows) {
    windows->offsets = calloc(windows->window_count, sizeof *windows->offsets);
    return windows->offsets == NULL ? -ENOMEM : 0;
}

void windows_put_offsets(struct windows *windows, const uint64_t *offsets, size_t count) {
    uint64_t number = windows->put_offsets++;
    assert(number < windows->chunk_count && count == chunk_documents(windows, number));
    windows->chunks[number].offsets_hash = bulk_hash(offsets, count * OFFSET_BYTES);
    if (windows_keeps(windows, number)) {
        memcpy(windows->offsets[number % windows->window_count].offsets, offsets,
               count * OFFSET_BYTES);
    }
}

/* Reading anew, with the lock held */

static void windows_fail(struct windows *windows, int code, uint64_t offset, const char *what) {
    if (atomic_load(&windows->failed) == 0) {
        (void)error_set(&windows->error, code,
                        "%s: the index at offset %" PRIu64 " %s since it was opened; nothing may "
                        "write a corpus that is in use: put the file back and start again",
                        windows->file.path, offset, what);
        atomic_store(&windows->failed, code);
    }
}

static bool windows_read(struct windows *windows, uint64_t at, void *to, size_t bytes,
                         uint64_t hash) {
    int code = -EIO;
    for (int tries = 0; code == -EIO && tries < READ_TRIES; tries++) {
        code = windows->file.read(windows->file.context, at, to, bytes);
    }
    if (code < 0) {
        windows_fail(windows, code, at, "cannot be read any more");
    } else if (bulk_hash(to, bytes) != hash) {
        code = -EBADMSG;
        windows_fail(windows, code, at, "has changed");
    }
    return code == 0;
}

static void windows_load(struct windows *windows, struct window *window, uint64_t number) {
    const struct chunk *chunk = &windows->chunks[number];
    size_t count = chunk_documents(windows, number);
    uint64_t first = number * WINDOW_DOCUMENTS;
    bool good = windows_read(windows, windows->file.lengths_at + first * LENGTH_BYTES,
                             window->lengths, count * LENGTH_BYTES, chunk->lengths_hash);
    if (good && windows->offsets != NULL) {
        good = windows_read(windows, windows->file.offsets_at + first * OFFSET_BYTES,
                            windows->offsets[number % windows->window_count].offsets,
                            count * OFFSET_BYTES, chunk->offsets_hash);
    }
    window->chunk = number;
    window->bad = !good;
    if (good) {
        (void)window_total(window, chunk->tokens_before, count);
    }
}

/* Asking */

static const struct window *windows_take(const struct windows *windows, uint64_t i) {
    struct windows *changed = (struct windows *)windows;
    uint64_t number = i / WINDOW_DOCUMENTS;
    struct window *window = &changed->windows[number % windows->window_count];
    assert(i < windows->documents);
    if (windows_resident(windows)) {
        return window;
    }
    pthread_mutex_lock(&changed->lock);
    if (window->chunk != number) {
        windows_load(changed, window, number);
    }
    return window;
}

static void windows_give_back(const struct windows *windows) {
    if (!windows_resident(windows)) {
        pthread_mutex_unlock(&((struct windows *)windows)->lock);
    }
}

static uint64_t window_offset(const struct windows *windows, const struct window *window,
                              uint64_t i) {
    size_t at = i % WINDOW_DOCUMENTS;
    if (windows->offsets != NULL) {
        return windows->offsets[window->chunk % windows->window_count].offsets[at];
    }
    uint64_t tokens = window->totals[at / STRIDE];
    for (size_t j = at - at % STRIDE; j < at; j++) {
        tokens += window->lengths[j];
    }
    return tokens * windows->width;
}

uint64_t windows_place(const struct windows *windows, uint64_t i, uint32_t *length) {
    const struct window *window = windows_take(windows, i);
    uint64_t offset = window->bad ? WINDOWS_NOWHERE : window_offset(windows, window, i);
    *length = window->bad ? 0 : window->lengths[i % WINDOW_DOCUMENTS];
    windows_give_back(windows);
    return offset;
}

uint64_t windows_offset(const struct windows *windows, uint64_t i) {
    uint32_t length;
    return windows_place(windows, i, &length);
}

uint32_t windows_length(const struct windows *windows, uint64_t i) {
    const struct window *window = windows_take(windows, i);
    uint32_t length = window->bad ? 0 : window->lengths[i % WINDOW_DOCUMENTS];
    windows_give_back(windows);
    return length;
}

int windows_failed(const struct windows *windows, struct error *error) {
    int code = atomic_load(&((struct windows *)windows)->failed);
    if (code < 0 && error != NULL) {
        *error = windows->error;
    }
    return code;
}
