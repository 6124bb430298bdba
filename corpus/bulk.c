/* bulk: see bulk.h. */
#define BULK_WAYS bulk_plain
#include "corpus/bulk_body.h"

static const struct bulk_ways *ways(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return &bulk_avx2;
    }
#endif
    return &bulk_plain;
}

uint64_t bulk_hash(const void *bytes, size_t count) {
    return ways()->hash(bytes, count);
}

void bulk_scatter(const struct iovec *iovecs, uint32_t count, const uint8_t *from) {
    ways()->scatter(iovecs, count, from);
}

struct bulk_lengths bulk_lengths(const uint32_t *lengths, size_t count) {
    return ways()->lengths(lengths, count);
}

bool bulk_rises(const uint64_t *values, size_t count) {
    return ways()->rises(values, count);
}

bool bulk_chains(const uint64_t *offsets, const uint32_t *lengths, size_t count, uint32_t width) {
    return ways()->chains(offsets, lengths, count, width);
}
