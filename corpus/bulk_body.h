/* bulk_body: what is compiled once for each kind of processor, as the ways called BULK_WAYS. */
#include "corpus/bulk.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

struct bulk_ways {
    uint64_t (*hash)(const void *bytes, size_t count);
    void (*scatter)(const struct iovec *iovecs, uint32_t count, const uint8_t *from);
    struct bulk_lengths (*lengths)(const uint32_t *lengths, size_t count);
    bool (*rises)(const uint64_t *values, size_t count);
    bool (*chains)(const uint64_t *offsets, const uint32_t *lengths, size_t count, uint32_t width);
};

extern const struct bulk_ways bulk_plain, bulk_avx2;

#define LINE_BYTES   64u
#define STREAM_LEAST 512u /* less is not worth a detour */
/* The processor fetches ahead by itself, but stops at every page; past the end nothing happens. */
#define FETCH_AHEAD 4096u

static uint64_t hash(const void *bytes, size_t count) {
    return XXH3_64bits(bytes, count);
}

/* Past the cache; `to` begins a line. */
static void stream_line(uint8_t *to, const uint8_t *from) {
#if defined(__AVX2__)
    __m256i *lines = (__m256i *)(void *)to;
    const __m256i *source = (const __m256i *)(const void *)from;
    __m256i first = _mm256_loadu_si256(source), second = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(lines, first);
    _mm256_stream_si256(lines + 1, second);
#elif defined(__SSE2__)
    for (uint32_t at = 0; at < LINE_BYTES; at += 16) {
        _mm_stream_si128((__m128i *)(void *)(to + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    }
#else
    memcpy(to, from, LINE_BYTES);
#endif
}

static void stream(uint8_t *to, const uint8_t *from, size_t count) {
    size_t head = -(uintptr_t)to % LINE_BYTES;
    if (count < STREAM_LEAST) {
        memcpy(to, from, count);
        return;
    }
    memcpy(to, from, head);
    for (size_t at = head; at + LINE_BYTES <= count; at += LINE_BYTES) {
        __builtin_prefetch(from + at + FETCH_AHEAD);
        stream_line(to + at, from + at);
    }
    size_t tail = (count - head) % LINE_BYTES;
    memcpy(to + count - tail, from + count - tail, tail);
}

static void scatter(const struct iovec *iovecs, uint32_t count, const uint8_t *from) {
    for (uint32_t i = 0; i < count; i++) {
        if (iovecs[i].iov_base != NULL) {
            stream(iovecs[i].iov_base, from, iovecs[i].iov_len);
        }
        from += iovecs[i].iov_len;
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

static struct bulk_lengths lengths_of(const uint32_t *lengths, size_t count) {
    uint64_t sum = 0;
    uint32_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        sum += lengths[i];
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    return (struct bulk_lengths){.sum = sum, .longest = longest};
}

static bool rises(const uint64_t *values, size_t count) {
    uint64_t signs = values[0];
    for (size_t i = 1; i < count; i++) {
        signs |= values[i] | (values[i] - values[i - 1]);
    }
    return signs >> 63 == 0;
}

static bool chains(const uint64_t *offsets, const uint32_t *lengths, size_t count, uint32_t width) {
    uint64_t differ = 0;
    for (size_t i = 1; i < count; i++) {
        differ |= (offsets[i] - offsets[i - 1]) ^ (uint64_t)lengths[i - 1] * width;
    }
    return differ == 0;
}

const struct bulk_ways BULK_WAYS = {hash, scatter, lengths_of, rises, chains};
