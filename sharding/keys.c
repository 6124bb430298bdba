/* keys: see keys.h. */
#include "sharding/keys.h"

uint64_t keys_needed_from(const struct fragment *reader, uint32_t reader_count,
                          const struct fragment *owner, uint32_t owner_count) {
    uint64_t needed = 0;
    uint32_t own = 0;
    for (uint32_t at = 0; at < reader_count;) {
        uint32_t document = reader[at].document;
        uint64_t end = 0;
        for (; at < reader_count && reader[at].document == document; at++) {
            uint64_t seen = (uint64_t)reader[at].start + reader[at].length;
            end = seen > end ? seen : end;
        }
        for (; own < owner_count && owner[own].document <= document; own++) {
            uint64_t before = end > owner[own].start ? end - owner[own].start : 0;
            uint64_t sent = before < owner[own].length ? before : owner[own].length;
            needed += owner[own].document == document ? sent : 0;
        }
    }
    return needed;
}

uint64_t keys_needed(const struct fragment *fragments, uint32_t count) {
    uint64_t needed = 0;
    for (uint32_t at = 0; at < count;) {
        uint32_t document = fragments[at].document;
        uint64_t end = 0;
        uint64_t rows = 0;
        for (; at < count && fragments[at].document == document; at++) {
            uint64_t own = (uint64_t)fragments[at].start + fragments[at].length;
            end = own > end ? own : end;
            rows += fragments[at].length;
        }
        needed += end - rows;
    }
    return needed;
}
