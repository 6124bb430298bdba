/* rank_agree: see rank_agree.h. */
#include "client/rank_agree.h"

#include "client/deadline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AGREE_POLL_NS ((int64_t)2 * 1000000)

void rank_agree_init(struct rank_agree *agree, const char *path,
                     const struct ballast_options *place, const struct ballast_job *job) {
    *agree = (struct rank_agree){
        .path = path,
        .rank = ((place->dp * job->pp + place->pp) * job->cp + place->cp) * job->tp + place->tp,
        .ranks = job->dp * job->pp * job->cp * job->tp,
        .timeout_ms = place->connect_timeout_ms};
}

static int agree_fail(const char *path, int code) {
    fprintf(stderr, "ballast-rank: agree: %s: %s\n", path, strerror(-code));
    return code;
}

static void agree_name(const struct rank_agree *agree, uint64_t round, uint32_t rank, char *out,
                       size_t bytes) {
    (void)snprintf(out, bytes, "%s/%" PRIu64 ".%" PRIu32, agree->path, round, rank);
}

static int agree_write(const struct rank_agree *agree, const void *mine, size_t bytes) {
    char path[4096], made[4096 + 8];
    agree_name(agree, agree->round, agree->rank, path, sizeof path);
    (void)snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "wbe");
    if (file == NULL) {
        return agree_fail(made, -errno);
    }
    bool written = fwrite(mine, 1, bytes, file) == bytes;
    if (fclose(file) != 0 || !written || rename(made, path) < 0) {
        return agree_fail(made, -errno);
    }
    return 0;
}

/* Waits for the file of a rank: 0, -ENOENT when it did not come in time. */
static int agree_read(const struct rank_agree *agree, uint32_t rank, size_t bytes, uint8_t *out,
                      int64_t deadline_ns) {
    char path[4096];
    agree_name(agree, agree->round, rank, path, sizeof path);
    FILE *file = fopen(path, "rbe");
    while (file == NULL && errno == ENOENT && deadline_now_ns() < deadline_ns) {
        (void)deadline_poll(-1, 0, deadline_now_ns() + AGREE_POLL_NS);
        file = fopen(path, "rbe");
    }
    if (file == NULL) {
        return errno == ENOENT ? -ENOENT : agree_fail(path, -errno);
    }
    bool whole = fread(out, 1, bytes, file) == bytes && fgetc(file) == EOF;
    (void)fclose(file);
    return whole ? 0 : agree_fail(path, -EIO);
}

int rank_agree_gather(void *context, const void *mine, size_t bytes, void *all) {
    struct rank_agree *agree = context;
    int64_t deadline_ns = deadline_in_ms(agree->timeout_ms);
    char path[4096];
    int code = agree_write(agree, mine, bytes);
    for (uint32_t rank = 0; code == 0 && rank < agree->ranks; rank++) {
        code = agree_read(agree, rank, bytes, (uint8_t *)all + rank * bytes, deadline_ns);
        if (code == -ENOENT) {
            fprintf(stderr,
                    "ballast-rank: agree: rank %u did not come within %d ms; does it run, with the "
                    "same folder %s?\n",
                    rank, agree->timeout_ms, agree->path);
            code = -ETIMEDOUT;
        }
    }
    if (code == 0 && agree->round >= 1) {
        agree_name(agree, agree->round - 1, agree->rank, path, sizeof path);
        (void)unlink(path);
    }
    agree->round++;
    return code;
}
