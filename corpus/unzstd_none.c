/* unzstd: see unzstd.h. Without libzstd. */
#include "corpus/unzstd.h"

int unzstd_make(void *context, int fd, struct error *error) {
    const struct unzstd *unzstd = context;
    (void)fd;
    return error_set(error, -ENOSYS,
                     "%s: compressed with zstd, which this build lacks; decompress it with "
                     "`zstd -d FILE -o NAME`, NAME without .zstd, or build Ballast where "
                     "libzstd-dev is installed",
                     unzstd->path);
}
