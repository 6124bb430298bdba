/* keys: see keys.h. Documents ascend in both lists, so one walk over both finds all. */
#include "sharding/keys.h"

/* The end of the last run of the document at fragments[*at]; moves *at behind its runs. */
static uint64_t keys_end(const struct fragment *fragments, uint32_t count, uint32_t *at) {
    uint32_t document = fragments[*at].document;
    uint64_t end = 0;
    for (; *at < count && fragments[*at].document == document; (*at)++) {
        uint64_t own = (uint64_t)fragments[*at].start + fragments[*at].length;
        end = own > end ? own : end;
    }
    return end;
}

uint64_t keys_needed(const struct fragment *fragments, uint32_t count) {
    uint64_t seen = 0;
    uint64_t rows = 0;
    for (uint32_t at = 0; at < count;) {
        seen += keys_end(fragments, count, &at);
    }
    for (uint32_t i = 0; i < count; i++) {
        rows += fragments[i].length;
    }
    return seen - rows;
}

uint32_t keys_from(const struct fragment *own, uint32_t own_count, const struct fragment *theirs,
                   uint32_t their_count, struct key_run *out, uint32_t capacity) {
    uint32_t runs = 0;
    uint32_t row = 0;
    uint32_t their = 0;
    for (uint32_t at = 0; at < own_count;) {
        uint32_t document = own[at].document;
        uint64_t end = keys_end(own, own_count, &at);
        for (; their < their_count && theirs[their].document <= document; their++) {
            struct fragment peer = theirs[their];
            if (peer.document == document && peer.start < end) {
                uint64_t length = end - peer.start < peer.length ? end - peer.start : peer.length;
                if (runs < capacity) {
                    out[runs] = (struct key_run){document, peer.start, (uint32_t)length, row};
                }
                runs++;
            }
            row += peer.length;
        }
    }
    return runs;
}
