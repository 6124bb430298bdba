/* per_sequence: the zigzag over the whole packed sequence (WLB-LLM section 5, the layout of Llama
 * 3), and its plain half, contiguous shards.
 *
 * Pad rows end the sequence, so a chunk with pads is followed by nothing but pads in the rank's own
 * order: if chunk r reaches into them, chunk 2*CP-1-r is all pad. */
#include "sharding/deal.h"

/* Appends what rows [first, end) of the sequence hold of each document. */
static void per_sequence_chunk(const struct packed_sequence *sequence, uint64_t first, uint64_t end,
                               struct fragment_list *list) {
    uint64_t row = 0;
    for (uint32_t document = 0; document < sequence->documents && row < end; document++) {
        uint64_t next_row = row + sequence->lengths[document];
        if (next_row > first) {
            uint64_t from = row > first ? row : first;
            uint64_t to = next_row < end ? next_row : end;
            fragment_list_append(list, document, from - row, to - row);
        }
        row = next_row;
    }
}

uint32_t per_sequence_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity) {
    struct fragment_list list = {.out = out, .capacity = capacity};
    uint64_t chunks = 2 * (uint64_t)cp;
    uint64_t chunk_rows = (sequence->tokens + sequence->pad_tokens) / chunks;
    uint64_t low = rank * chunk_rows;
    uint64_t high = (chunks - 1 - rank) * chunk_rows;
    if (low + chunk_rows == high) {
        per_sequence_chunk(sequence, low, high + chunk_rows, &list);
    } else {
        per_sequence_chunk(sequence, low, low + chunk_rows, &list);
        per_sequence_chunk(sequence, high, high + chunk_rows, &list);
    }
    return list.count;
}

uint32_t contiguous_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                         struct fragment *out, uint32_t capacity) {
    struct fragment_list list = {.out = out, .capacity = capacity};
    uint64_t shard_rows = (sequence->tokens + sequence->pad_tokens) / cp;
    per_sequence_chunk(sequence, rank * shard_rows, (rank + 1) * shard_rows, &list);
    return list.count;
}
