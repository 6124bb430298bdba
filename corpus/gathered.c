/* gathered: see gathered.h. */
#include "corpus/gathered.h"

#define GATHERED_HASH gathered_hash_plain
#include "corpus/gathered_body.h"

#if defined(__x86_64__)
uint64_t gathered_hash_avx2(struct gathered *from, size_t bytes);

uint64_t gathered_hash(struct gathered *from, size_t bytes) {
    return __builtin_cpu_supports("avx2") ? gathered_hash_avx2(from, bytes)
                                          : gathered_hash_plain(from, bytes);
}
#else
uint64_t gathered_hash(struct gathered *from, size_t bytes) {
    return gathered_hash_plain(from, bytes);
}
#endif
