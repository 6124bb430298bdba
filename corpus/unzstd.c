/* unzstd: see unzstd.h. */
#include "corpus/unzstd.h"
#include "corpus/files.h"
#include "corpus/volumes.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#define REMEDY "copy the file again or write it again"

struct run {
    const struct unzstd *unzstd;
    ZSTD_DStream *stream;
    uint8_t *in, *out;
    uint64_t read, written;
    size_t state; /* 0: a frame has just ended */
    struct error *error;
};

static int run_write(struct run *run, int fd, size_t count) {
    if (count > run->unzstd->bytes - run->written) {
        return error_set(run->error, -EBADMSG,
                         "%s: decompresses to more than the %" PRIu64 " bytes that it should "
                         "have; " REMEDY,
                         run->unzstd->path, run->unzstd->bytes);
    }
    for (size_t done = 0; done < count;) {
        ssize_t put = write(fd, run->out + done, count - done);
        if (put < 0 && errno != EINTR) {
            return error_set(run->error, -errno,
                             "%s: cannot be decompressed (%s); free some space where derived "
                             "files are kept",
                             run->unzstd->path, strerror(errno));
        }
        done += put > 0 ? (size_t)put : 0;
    }
    run->written += count;
    return 0;
}

static int run_block(struct run *run, int fd, size_t count) {
    ZSTD_inBuffer in = {run->in, count, 0};
    bool full = true;
    while (in.pos < in.size || full) {
        ZSTD_outBuffer out = {run->out, ZSTD_DStreamOutSize(), 0};
        run->state = ZSTD_decompressStream(run->stream, &out, &in);
        if (ZSTD_isError(run->state)) {
            return error_set(run->error, -EBADMSG,
                             "%s: damaged zstd data before offset %" PRIu64 " (%s); " REMEDY,
                             run->unzstd->path, run->read + count, ZSTD_getErrorName(run->state));
        }
        full = out.pos == out.size;
        int rc = run_write(run, fd, out.pos);
        if (rc < 0) {
            return rc;
        }
    }
    run->read += count;
    return 0;
}

static int run_all(struct run *run, int fd) {
    uint64_t size = file_bytes(run->unzstd->file);
    while (run->read < size) {
        size_t have, want = ZSTD_DStreamInSize();
        want = size - run->read < want ? (size_t)(size - run->read) : want;
        int rc = volumes_read_file(run->unzstd->file, run->read, run->in, want, &have);
        if (rc < 0) {
            return error_set(run->error, rc,
                             "%s: cannot be read at offset %" PRIu64 " (%s); check the disk",
                             run->unzstd->path, run->read + have, strerror(-rc));
        }
        rc = run_block(run, fd, want);
        if (rc < 0) {
            return rc;
        }
    }
    if (run->state != 0 || run->written != run->unzstd->bytes) {
        return error_set(run->error, -EBADMSG,
                         "%s: %" PRIu64 " of %" PRIu64 " bytes come out, so it is cut off; " REMEDY,
                         run->unzstd->path, run->written, run->unzstd->bytes);
    }
    return 0;
}

int unzstd_make(void *context, int fd, struct error *error) {
    struct run run = {.unzstd = context,
                      .stream = ZSTD_createDStream(),
                      .in = malloc(ZSTD_DStreamInSize()),
                      .out = malloc(ZSTD_DStreamOutSize()),
                      .error = error};
    int rc = run.stream == NULL || run.in == NULL || run.out == NULL
                 ? error_set(error, -ENOMEM, "no memory to decompress with; free some memory")
                 : run_all(&run, fd);
    ZSTD_freeDStream(run.stream);
    free(run.in);
    free(run.out);
    return rc;
}
