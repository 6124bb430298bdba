/* bulk: see bulk.h. */
#include "corpus/bulk.h"

#define BULK_HASH    bulk_hash_plain
#define BULK_SCATTER bulk_scatter_plain
#include "corpus/bulk_body.h"

#if defined(__x86_64__)
uint64_t bulk_hash_avx2(const void *bytes, size_t count);
void bulk_scatter_avx2(const struct iovec *iovecs, uint32_t count, const uint8_t *from);

uint64_t bulk_hash(const void *bytes, size_t count) {
    return __builtin_cpu_supports("avx2") ? bulk_hash_avx2(bytes, count)
                                          : bulk_hash_plain(bytes, count);
}

void bulk_scatter(const struct iovec *iovecs, uint32_t count, const uint8_t *from) {
    if (__builtin_cpu_supports("avx2")) {
        bulk_scatter_avx2(iovecs, count, from);
    } else {
        bulk_scatter_plain(iovecs, count, from);
    }
}
#else
uint64_t bulk_hash(const void *bytes, size_t count) {
    return bulk_hash_plain(bytes, count);
}

void bulk_scatter(const struct iovec *iovecs, uint32_t count, const uint8_t *from) {
    bulk_scatter_plain(iovecs, count, from);
}
#endif
