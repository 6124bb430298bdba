/* fixed: windows of fixed length over K global batches at a time (WLB-LLM section 3.3), a yardstick
 * that can also serve.
 *
 * K steps' worth of windows is read in reading order and packed at once (packer/fixed), so that
 * work is even where K batches allow it; they are then served step by step like a drain. For pool:P
 * with pools.look_ahead = K they are packed by best-fit instead. What waits meanwhile is state. At
 * most documents_max parts are packed at once, so that no step has more. */
#include "planner/step.h"

#include "packer/best_fit.h"
#include "packer/fixed.h"

#include <assert.h>

static uint64_t fixed_work(const void *model, uint32_t length) {
    return work_of(model, length);
}

/* Reads into after->waiting, with offsets in the stream as keys; the last part is cut where the
 * windows are full. Returns the parts. */
static uint32_t fixed_read(struct planner *p, uint32_t bins, uint64_t *tokens) {
    uint64_t room = (uint64_t)bins * p->options.window;
    uint32_t parts_max = p->options.documents_max - bins;
    uint32_t parts = 0;
    *tokens = 0;
    while (*tokens < room && parts < parts_max) {
        struct document *document = &p->after->waiting[parts].document;
        uint64_t left = room - *tokens;
        p->keys[parts] = p->after->stream_tokens;
        if (!step_read(p, p->after, left < p->part_limit ? (uint32_t)left : p->part_limit,
                       document)) {
            break;
        }
        p->lengths[parts++] = document->length;
        *tokens += document->length;
    }
    return parts;
}

/* The piece as a part of its own. */
static struct waiting fixed_row(const struct planner *p, const struct fixed_piece *piece) {
    struct waiting row = {
        .document = p->after->waiting[piece->item].document,
        .kind = WAITING_IN_QUEUE,
        .bin = piece->bin,
    };
    row.document.offset += piece->offset;
    row.document.length = piece->length;
    row.document.nominal_step = step_nominal(p, p->keys[piece->item] + piece->offset);
    return row;
}

static bool fixed_before(const struct waiting *a, const struct waiting *b) {
    return a->document.length > b->document.length ||
           (a->document.length == b->document.length &&
            a->document.stream_index < b->document.stream_index);
}

/* Rows by bin, and in a bin by length: there the last piece of a document that was cut is out of
 * place, no other. */
static void fixed_group(struct planner *p, uint32_t pieces, uint32_t bins) {
    uint32_t row = 0;
    for (uint32_t bin = 0; bin < bins; bin++) {
        p->row_begins[bin] = row;
        for (; row < pieces && p->pieces[row].bin == bin; row++) {
            struct waiting moved = fixed_row(p, &p->pieces[row]);
            uint32_t at = row;
            for (; at > p->row_begins[bin] && fixed_before(&moved, &p->rows[at - 1]); at--) {
                p->rows[at] = p->rows[at - 1];
            }
            p->rows[at] = moved;
        }
    }
    p->row_begins[bins] = row;
    assert(row == pieces);
}

size_t fixed_bytes(uint32_t items, uint32_t bins) {
    size_t fixed = pack_fixed_bytes(items, bins);
    size_t best_fit = pack_best_fit_bytes(items, bins);
    return fixed > best_fit ? fixed : best_fit;
}

/* Level windows for fixed:K, few cuts for pools, which level the work themselves. */
static uint32_t fixed_pack(struct planner *p, uint32_t items, uint32_t bins) {
    struct fixed_input fixed = {
        .lengths = p->lengths,
        .items = items,
        .bins = bins,
        .window = p->options.window,
        .work = fixed_work,
        .model = &p->model,
    };
    struct best_fit_input best_fit = {p->lengths, items, bins, p->options.window};
    return p->options.policy == POLICY_POOL
               ? pack_best_fit(&best_fit, p->fixed_scratch, p->pieces, p->bin_tokens_held)
               : pack_fixed(&fixed, p->fixed_scratch, p->pieces, p->bin_works, p->bin_tokens_held);
}

bool fixed_step(struct planner *p) {
    uint32_t micro_batches = p->options.micro_batches;
    uint32_t bins = plan_batches(&p->options) * micro_batches;
    uint64_t tokens;
    assert(p->after->waiting_count == 0);
    uint32_t items = fixed_read(p, bins, &tokens);
    if (items == 0) {
        return false;
    }
    uint64_t steps = (tokens + p->options.step_tokens - 1) / p->options.step_tokens;
    bins = (uint32_t)steps * micro_batches;
    uint32_t pieces = fixed_pack(p, items, bins);
    p->in_hand = pieces;
    fixed_group(p, pieces, bins);
    drain_serve(p, pieces);
    return true;
}
