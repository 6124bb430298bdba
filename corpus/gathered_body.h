/* gathered_body: what is compiled once for each kind of processor, under the name GATHERED_HASH. */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t GATHERED_HASH(struct gathered *from, size_t bytes);
uint64_t GATHERED_HASH(struct gathered *from, size_t bytes) {
    XXH3_state_t state;
    if (from->iovec->iov_len - from->at >= bytes) {
        from->at += bytes;
        return XXH3_64bits((const uint8_t *)from->iovec->iov_base + from->at - bytes, bytes);
    }
    XXH3_64bits_reset(&state);
    while (bytes > 0) {
        if (from->at == from->iovec->iov_len) {
            from->iovec++;
            from->at = 0;
        }
        size_t rest = from->iovec->iov_len - from->at;
        size_t taken = rest < bytes ? rest : bytes;
        XXH3_64bits_update(&state, (const uint8_t *)from->iovec->iov_base + from->at, taken);
        from->at += taken;
        bytes -= taken;
    }
    return XXH3_64bits_digest(&state);
}
