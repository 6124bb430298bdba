/* keys: see keys.h. */
#include "sharding/keys.h"

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
