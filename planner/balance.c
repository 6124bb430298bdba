/* balance: see balance.h. */
#include "planner/balance.h"

#include "packer/bound.h"
#include "sharding/fragment.h"

uint64_t balance_ppm(uint64_t max, uint64_t sum, uint32_t count) {
    if (sum == 0) {
        return PPM;
    }
    return (uint64_t)((unsigned __int128)max * count * PPM / sum);
}

uint64_t balance_of(const uint64_t *loads, uint32_t count) {
    uint64_t max = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        max = loads[i] > max ? loads[i] : max;
        sum += loads[i];
    }
    return balance_ppm(max, sum, count);
}

uint64_t balance_bound(const uint64_t *works, uint32_t count, uint32_t bins, void *scratch) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += works[i];
    }
    return balance_ppm(pack_bound(works, NULL, count, bins, scratch), sum, bins);
}

uint64_t balance_of_spans(const uint32_t *lengths, uint32_t count, uint32_t spans) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        tokens += lengths[i];
    }
    uint64_t max = 0;
    uint64_t sum = 0;
    uint64_t begin = 0; /* of what is left of document i, in the concatenation */
    uint32_t i = 0;
    uint32_t left = count > 0 ? lengths[0] : 0;
    for (uint32_t span = 0; span < spans; span++) {
        uint64_t end = (uint64_t)((unsigned __int128)tokens * (span + 1) / spans);
        uint64_t pairs = 0;
        while (begin < end) {
            uint32_t piece = left < end - begin ? left : (uint32_t)(end - begin);
            pairs += document_pairs(piece);
            begin += piece;
            left -= piece;
            if (left == 0 && ++i < count) {
                left = lengths[i];
            }
        }
        max = pairs > max ? pairs : max;
        sum += pairs;
    }
    return balance_ppm(max, sum, spans);
}
