/* gather: see gather.h. The three copy loops and the two filling ones have no branches and no
 * aliasing, so that the compiler turns each into vector code. */
#include "client/gather.h"

#include <string.h>

#define GATHER_LINE 64 /* bytes */

/* For the widest vectors that the processor has, chosen when the program is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define GATHER_WIDEST __attribute__((target_clones("avx2", "default")))
#else
#define GATHER_WIDEST
#endif

GATHER_WIDEST static void gather_u16_as_i32(const uint16_t *restrict in, int32_t *restrict out,
                                            uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] = in[i];
    }
}

GATHER_WIDEST static void gather_u16_as_i64(const uint16_t *restrict in, int64_t *restrict out,
                                            uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] = in[i];
    }
}

GATHER_WIDEST static void gather_u32_as_i64(const uint32_t *restrict in, int64_t *restrict out,
                                            uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] = in[i];
    }
}

GATHER_WIDEST static void gather_series_i32(int32_t value, int32_t step, int32_t *restrict out,
                                            uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] = value;
        value += step;
    }
}

GATHER_WIDEST static void gather_series_i64(int64_t value, int64_t step, int64_t *restrict out,
                                            uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] = value;
        value += step;
    }
}

/* Elements of out[row...] before its next cache line, at most count. They are written apart: a
 * vector store across two lines costs as much as two, and malloc'd columns begin 16 bytes into one.
 */
static uint64_t gather_head(enum ballast_type type, const void *out, uint64_t row, uint64_t count) {
    uint64_t head = -((uintptr_t)out + row * type) % GATHER_LINE / type;
    return head < count ? head : count;
}

static void gather_copy_part(const struct gather_rows *rows, uint64_t first, uint64_t count,
                             enum ballast_type type, void *out, uint64_t row) {
    const void *in = rows->tokens + first * rows->token_bytes;
    if (type == BALLAST_INT32) {
        int32_t *to = (int32_t *)out + row;
        if (rows->token_bytes == 2) {
            gather_u16_as_i32(in, to, count);
        } else {
            memcpy(to, in, count * sizeof *to);
        }
    } else {
        int64_t *to = (int64_t *)out + row;
        if (rows->token_bytes == 2) {
            gather_u16_as_i64(in, to, count);
        } else {
            gather_u32_as_i64(in, to, count);
        }
    }
}

/* Copies tokens [first, first + count) of the slot to out[row...]. */
static void gather_copy(const struct gather_rows *rows, uint64_t first, uint64_t count,
                        enum ballast_type type, void *out, uint64_t row) {
    uint64_t head = gather_head(type, out, row, count);
    gather_copy_part(rows, first, head, type, out, row);
    gather_copy_part(rows, first + head, count - head, type, out, row + head);
}

static void gather_series_part(int64_t value, int64_t step, uint64_t count, enum ballast_type type,
                               void *out, uint64_t row) {
    if (type == BALLAST_INT32) {
        gather_series_i32((int32_t)value, (int32_t)step, (int32_t *)out + row, count);
    } else {
        gather_series_i64(value, step, (int64_t *)out + row, count);
    }
}

/* Writes value, value + step, value + 2 * step, ... to out[row...]. */
static void gather_series(int64_t value, int64_t step, uint64_t count, enum ballast_type type,
                          void *out, uint64_t row) {
    uint64_t head = gather_head(type, out, row, count);
    gather_series_part(value, step, head, type, out, row);
    gather_series_part(value + step * (int64_t)head, step, count - head, type, out, row + head);
}

void gather_tokens(const struct gather_rows *rows, enum ballast_type type, void *out) {
    uint64_t row = 0;
    for (uint32_t i = 0; i < rows->fragment_count; i++) {
        const struct ballast_fragment *fragment = &rows->fragments[i];
        uint64_t first = rows->first_rows[fragment->document] + fragment->start;
        gather_copy(rows, first, fragment->length, type, out, row);
        row += fragment->length;
    }
    gather_series(0, 0, rows->pad_rows, type, out, row);
}

/* Label of the last row of a part. */
static void gather_last_label(const struct gather_rows *rows, uint32_t document,
                              enum ballast_type type, void *out, uint64_t row) {
    uint64_t successor = rows->successors[document];
    if (successor == GATHER_NO_SUCCESSOR) {
        gather_series(GATHER_LABEL_NONE, 0, 1, type, out, row);
    } else {
        gather_copy(rows, successor, 1, type, out, row);
    }
}

void gather_labels(const struct gather_rows *rows, enum ballast_type type, void *out) {
    uint64_t row = 0;
    for (uint32_t i = 0; i < rows->fragment_count; i++) {
        const struct ballast_fragment *fragment = &rows->fragments[i];
        uint64_t end = (uint64_t)fragment->start + fragment->length;
        uint64_t last = end == rows->documents[fragment->document].length;
        uint64_t first = rows->first_rows[fragment->document] + fragment->start + 1;
        gather_copy(rows, first, fragment->length - last, type, out, row);
        row += fragment->length;
        if (last == 1) {
            gather_last_label(rows, fragment->document, type, out, row - 1);
        }
    }
    gather_series(GATHER_LABEL_NONE, 0, rows->pad_rows, type, out, row);
}

void gather_positions(const struct gather_rows *rows, enum ballast_type type, void *out) {
    uint64_t row = 0;
    for (uint32_t i = 0; i < rows->fragment_count; i++) {
        const struct ballast_fragment *fragment = &rows->fragments[i];
        gather_series(fragment->start, 1, fragment->length, type, out, row);
        row += fragment->length;
    }
    gather_series(0, 0, rows->pad_rows, type, out, row);
}
