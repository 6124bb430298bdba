/* megatron: see megatron.h. Arrays are read front to back through small buffers and looked at
 * there by blocks, aligned since each array begins a buffer. A block is a window's worth of
 * documents; what is wrong in one is looked for again element by element. */
#include "corpus/megatron.h"
#include "corpus/bulk.h"
#include "corpus/foreign.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#define FAIRSEQ_HEADER_BYTES 26u
#define MAGIC_BYTES          9u
#define VERSION_AT           9u
#define DTYPE_AT             17u
#define SEQUENCES_AT         18u
#define ENTRIES_AT           26u
#define LENGTH_BYTES         4u
#define OFFSET_BYTES         8u
#define SEQUENCE_BYTES       (LENGTH_BYTES + OFFSET_BYTES)

#define COPY_AGAIN  "copy the file again or rebuild it with Megatron-LM's tools/preprocess_data.py"
#define BUILD_AGAIN "rebuild it with Megatron-LM's tools/preprocess_data.py"

static const uint8_t magic[MAGIC_BYTES] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

static const struct dtype_row {
    const char *name;
    uint32_t width; /* 0: refused */
} dtype_rows[] = {
    [MEGATRON_U8] = {"u8", 1},       [MEGATRON_I8] = {"i8", 0},   [MEGATRON_I16] = {"i16", 2},
    [MEGATRON_I32] = {"i32", 4},     [MEGATRON_I64] = {"i64", 8}, [MEGATRON_F64] = {"float64", 0},
    [MEGATRON_F32] = {"float32", 0}, [MEGATRON_U16] = {"u16", 2}, [MEGATRON_U32] = {"u32", 4},
    [MEGATRON_U64] = {"u64", 8},
};

#define DTYPE_COUNT (sizeof dtype_rows / sizeof dtype_rows[0])

/* Where the arrays are. */
struct layout {
    bool fairseq;
    uint8_t dtype;
    uint64_t sequences;
    uint64_t entries;
    uint64_t lengths_at;
    uint64_t offsets_at;
    uint64_t entries_at;
};

/* One reading of an index: what is read, where to, and what to compare with. */
struct load {
    const struct megatron_file *file;
    struct layout layout;
    const char *bin_path;
    uint64_t bin_bytes;
    bool swapped; /* read the arrays as big endian; nothing is kept then */
    struct document_index *index;
    struct error *error;
};

uint32_t megatron_width(uint8_t dtype) {
    return dtype < DTYPE_COUNT ? dtype_rows[dtype].width : 0;
}

static uint64_t decode_u64(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return le64toh(value);
}

static void encode_u64(uint8_t *out, uint64_t value) {
    value = htole64(value);
    memcpy(out, &value, sizeof value);
}

void megatron_header_encode(uint8_t out[MEGATRON_HEADER_BYTES], enum megatron_dtype dtype,
                            uint64_t sequences, uint64_t entries) {
    memcpy(out, magic, MAGIC_BYTES);
    encode_u64(out + VERSION_AT, 1);
    out[DTYPE_AT] = (uint8_t)dtype;
    encode_u64(out + SEQUENCES_AT, sequences);
    encode_u64(out + ENTRIES_AT, entries);
}

static int file_read(const struct megatron_file *file, uint64_t offset, void *to, size_t count,
                     struct error *error) {
    int rc = file->read(file, offset, to, count);
    if (rc < 0) {
        return error_set(error, rc,
                         "%s: cannot read %zu bytes at offset %" PRIu64 " (%s); check the disk and "
                         "that nothing else writes the file",
                         file->path, count, offset, strerror(-rc));
    }
    return 0;
}

static int load_read_again(const void *context, uint64_t offset, void *to, size_t count) {
    const struct megatron_file *file = context;
    return file->read(file, offset, to, count);
}

static int refuse_magic(const struct megatron_file *file, const uint8_t *head, size_t count,
                        struct error *error) {
    const struct foreign_format *foreign = foreign_by_head(head, count, file->bytes);
    if (foreign != NULL) {
        return error_set(error, -ENOSYS, "%s: is %s, not a Megatron index; %s", file->path,
                         foreign->name, foreign->remedy);
    }
    if (count < MAGIC_BYTES) {
        return error_set(error, -EBADMSG, "%s: %zu bytes, too short for the magic at offset 0; %s",
                         file->path, count, COPY_AGAIN);
    }
    return error_set(error, -EBADMSG,
                     "%s: no MMIDIDX magic at offset 0, so not a Megatron index; give the prefix "
                     "of a PREFIX.idx that Megatron-LM's tools/preprocess_data.py wrote",
                     file->path);
}

static int check_version(const struct megatron_file *file, const uint8_t *header,
                         struct error *error) {
    uint64_t version = decode_u64(header + VERSION_AT);
    if (version != 1) {
        return error_set(error, -ENOSYS,
                         "%s: version %" PRIu64 " at offset %u, only version 1 is known; %s",
                         file->path, version, VERSION_AT, COPY_AGAIN);
    }
    return 0;
}

static int check_dtype(const struct megatron_file *file, const uint8_t *header,
                       struct error *error) {
    uint8_t dtype = header[DTYPE_AT];
    if (dtype >= DTYPE_COUNT || dtype_rows[dtype].name == NULL) {
        return error_set(error, -EBADMSG, "%s: unknown dtype code %u at offset %u; %s", file->path,
                         dtype, DTYPE_AT, COPY_AGAIN);
    }
    if (dtype_rows[dtype].width == 0) {
        return error_set(error, -ENOSYS,
                         "%s: dtype %u (%s) at offset %u cannot hold token ids; tokenize the text "
                         "again into u16 or i32",
                         file->path, dtype, dtype_rows[dtype].name, DTYPE_AT);
    }
    return 0;
}

static int check_sequences(const struct megatron_file *file, uint64_t sequences,
                           struct error *error) {
    if (sequences > (file->bytes - FAIRSEQ_HEADER_BYTES) / SEQUENCE_BYTES) {
        return error_set(error, -EBADMSG,
                         "%s: %" PRIu64 " sequences declared at offset %u do not fit into %" PRIu64
                         " bytes; %s",
                         file->path, sequences, SEQUENCES_AT, file->bytes, COPY_AGAIN);
    }
    if (sequences > MEGATRON_SEQUENCES_MAX) {
        return error_set(error, -ENOSYS,
                         "%s: %" PRIu64 " sequences at offset %u, more than the %d that document "
                         "ids of 32 bits can number; split the dataset into several prefixes",
                         file->path, sequences, SEQUENCES_AT, MEGATRON_SEQUENCES_MAX);
    }
    return 0;
}

static int check_entries(const struct megatron_file *file, const struct layout *layout,
                         struct error *error) {
    uint64_t entries_max = (file->bytes - MEGATRON_HEADER_BYTES) / OFFSET_BYTES;
    if (layout->entries > entries_max) {
        return error_set(error, -EBADMSG,
                         "%s: %" PRIu64 " document entries declared at offset %u do not fit into "
                         "%" PRIu64 " bytes; %s",
                         file->path, layout->entries, ENTRIES_AT, file->bytes, COPY_AGAIN);
    }
    uint64_t rest = file->bytes - MEGATRON_HEADER_BYTES - layout->entries * OFFSET_BYTES;
    uint64_t plain = layout->sequences * SEQUENCE_BYTES;
    if (rest != plain && rest != plain + layout->sequences) {
        return error_set(error, -EBADMSG,
                         "%s: %" PRIu64 " bytes %s: %" PRIu64 " sequences and %" PRIu64
                         " document entries (offsets %u and %u) take exactly %" PRIu64
                         " bytes, or %" PRIu64 " with modes; %s",
                         file->path, rest < plain ? plain - rest : rest - plain,
                         rest < plain ? "short" : "too long", layout->sequences, layout->entries,
                         SEQUENCES_AT, ENTRIES_AT, file->bytes - rest + plain,
                         file->bytes - rest + plain + layout->sequences, COPY_AGAIN);
    }
    return 0;
}

static int read_header(const struct megatron_file *file, struct layout *layout,
                       struct error *error) {
    uint8_t header[MEGATRON_HEADER_BYTES] = {0};
    size_t have = file->bytes < sizeof header ? (size_t)file->bytes : sizeof header;
    int rc = file_read(file, 0, header, have, error);
    if (rc < 0) {
        return rc;
    }
    if (have < MAGIC_BYTES || memcmp(header, magic, MAGIC_BYTES) != 0) {
        return refuse_magic(file, header, have, error);
    }
    if (have < FAIRSEQ_HEADER_BYTES) {
        return error_set(error, -EBADMSG, "%s: %zu bytes, the header alone has %u; %s", file->path,
                         have, MEGATRON_HEADER_BYTES, COPY_AGAIN);
    }
    layout->dtype = header[DTYPE_AT];
    layout->sequences = decode_u64(header + SEQUENCES_AT);
    if ((rc = check_version(file, header, error)) < 0 ||
        (rc = check_dtype(file, header, error)) < 0 ||
        (rc = check_sequences(file, layout->sequences, error)) < 0) {
        return rc;
    }
    layout->fairseq = file->bytes == FAIRSEQ_HEADER_BYTES + layout->sequences * SEQUENCE_BYTES;
    layout->lengths_at = layout->fairseq ? FAIRSEQ_HEADER_BYTES : MEGATRON_HEADER_BYTES;
    layout->offsets_at = layout->lengths_at + layout->sequences * LENGTH_BYTES;
    layout->entries_at = layout->offsets_at + layout->sequences * OFFSET_BYTES;
    if (layout->fairseq) {
        return 0;
    }
    if (have < MEGATRON_HEADER_BYTES) {
        return error_set(error, -EBADMSG, "%s: %zu bytes, the header alone has %u; %s", file->path,
                         have, MEGATRON_HEADER_BYTES, COPY_AGAIN);
    }
    layout->entries = decode_u64(header + ENTRIES_AT);
    return check_entries(file, layout, error);
}

int megatron_header_read(const struct megatron_file *file, struct megatron_header *out,
                         struct error *error) {
    struct layout layout = {0};
    int rc = read_header(file, &layout, error);
    if (rc == 0) {
        *out = (struct megatron_header){.dtype = layout.dtype, .sequences = layout.sequences};
    }
    return rc;
}

/* One array, read front to back. */
struct array {
    const struct load *load;
    uint64_t next_at; /* file offset of the bytes after the chunk */
    uint64_t end_at;
    size_t at;
    size_t filled;
    _Alignas(uint64_t) uint8_t chunk[64 * WINDOW_DOCUMENTS]; /* whole blocks of every width */
};

static void array_init(struct array *array, const struct load *load, uint64_t at, uint64_t count,
                       size_t width) {
    array->load = load;
    array->next_at = at;
    array->end_at = at + count * width;
    array->at = 0;
    array->filled = 0;
}

static int array_refill(struct array *array) {
    uint64_t left = array->end_at - array->next_at;
    size_t count = left < sizeof array->chunk ? (size_t)left : sizeof array->chunk;
    assert(count > 0);
    int rc = file_read(array->load->file, array->next_at, array->chunk, count, array->load->error);
    if (rc < 0) {
        return rc;
    }
    array->next_at += count;
    array->filled = count;
    array->at = 0;
    return 0;
}

/* The next `count` elements, at most WINDOW_DOCUMENTS, which never straddle two chunks. */
static int array_block(struct array *array, size_t count, size_t width, uint8_t **out) {
    *out = array->chunk;
    if (array->at == array->filled) {
        int rc = array_refill(array);
        if (rc < 0) {
            return rc;
        }
    }
    assert(count * width <= array->filled - array->at);
    *out = array->chunk + array->at;
    array->at += count * width;
    return 0;
}

/* Borrowed until the next call. */
static int array_u32(struct array *array, size_t count, const uint32_t **out) {
    uint8_t *bytes;
    int rc = array_block(array, count, LENGTH_BYTES, &bytes);
    *out = (uint32_t *)(void *)bytes;
    for (size_t i = 0; rc == 0 && array->load->swapped && i < count; i++) {
        ((uint32_t *)(void *)bytes)[i] = be32toh((*out)[i]);
    }
    return rc;
}

static int array_u64(struct array *array, size_t count, const uint64_t **out) {
    uint8_t *bytes;
    int rc = array_block(array, count, OFFSET_BYTES, &bytes);
    *out = (uint64_t *)(void *)bytes;
    for (size_t i = 0; rc == 0 && array->load->swapped && i < count; i++) {
        ((uint64_t *)(void *)bytes)[i] = be64toh((*out)[i]);
    }
    return rc;
}

static size_t block_size(uint64_t total, uint64_t from) {
    return total - from < WINDOW_DOCUMENTS ? (size_t)(total - from) : WINDOW_DOCUMENTS;
}

static int refuse_entry(const struct load *load, uint64_t i, uint64_t value, const char *rule) {
    return error_set(load->error, -EBADMSG,
                     "%s: entry %" PRIu64 " of the document array, at offset %" PRIu64
                     ", is %" PRId64 " and should be %s (%" PRIu64 " sequences); %s",
                     load->file->path, i, load->layout.entries_at + i * OFFSET_BYTES,
                     (int64_t)value, rule, load->layout.sequences, COPY_AGAIN);
}

/* Entries from number `from` on, `before` being the one before them. */
static int check_entry_block(const struct load *load, uint64_t from, const uint64_t *entries,
                             size_t count, uint64_t before) {
    bool sound = bulk_rises(entries, count) && (from > 0 || entries[0] == 0) &&
                 entries[0] >= before && entries[count - 1] <= load->layout.sequences;
    for (size_t i = 0; !sound && i < count; i++) {
        if (from + i == 0 && entries[i] != 0) {
            return refuse_entry(load, 0, entries[i], "0, as the first");
        }
        if (entries[i] < before || entries[i] > load->layout.sequences) {
            return refuse_entry(load, from + i, entries[i], "between the one before and the last");
        }
        before = entries[i];
    }
    return 0;
}

static int check_document_array(const struct load *load) {
    const struct layout *layout = &load->layout;
    if (layout->fairseq) {
        return 0;
    }
    if (layout->entries == 0) {
        return error_set(load->error, -EBADMSG,
                         "%s: document array without entries (offset %u), it starts with a 0; %s",
                         load->file->path, ENTRIES_AT, COPY_AGAIN);
    }
    struct array entries;
    const uint64_t *block;
    array_init(&entries, load, layout->entries_at, layout->entries, OFFSET_BYTES);
    uint64_t before = 0;
    for (uint64_t from = 0; from < layout->entries; from += WINDOW_DOCUMENTS) {
        size_t count = block_size(layout->entries, from);
        int rc = array_u64(&entries, count, &block);
        if (rc == 0) {
            rc = check_entry_block(load, from, block, count, before);
        }
        if (rc < 0) {
            return rc;
        }
        before = block[count - 1];
    }
    if (before != layout->sequences) {
        return refuse_entry(load, layout->entries - 1, before, "all sequences, as the last");
    }
    return 0;
}

static int allocate(struct load *load) {
    struct document_index *index = load->index;
    const struct layout *layout = &load->layout;
    index->dtype = layout->dtype;
    index->width = megatron_width(index->dtype);
    index->documents = layout->sequences;
    if (load->swapped) {
        return 0;
    }
    const struct windows_file file = {.path = load->file->path,
                                      .lengths_at = layout->lengths_at,
                                      .offsets_at = layout->offsets_at,
                                      .read = load_read_again,
                                      .context = load->file};
    index->windows = windows_create(&file, layout->sequences, index->width);
    if (index->windows == NULL) {
        return error_set(load->error, -ENOMEM,
                         "%s: no memory for the lengths of %" PRIu64 " documents; free some memory",
                         load->file->path, layout->sequences);
    }
    return 0;
}

static void load_seen(const struct load *load, const void *bytes, size_t count) {
    if (load->file->seen != NULL && !load->swapped) {
        load->file->seen(load->file, bytes, count);
    }
}

/* Lengths from document `from` on are counted in. */
static int check_length_block(struct load *load, uint64_t from, const uint32_t *lengths,
                              size_t count) {
    struct document_index *index = load->index;
    const uint64_t tokens_max = INT64_MAX / index->width;
    struct bulk_lengths block = bulk_lengths(lengths, count);
    if (block.longest <= INT32_MAX && block.sum <= tokens_max - index->tokens) {
        index->tokens += block.sum;
        index->longest = block.longest > index->longest ? block.longest : index->longest;
        return 0;
    }
    size_t i = 0;
    while (lengths[i] <= INT32_MAX && lengths[i] <= tokens_max - index->tokens) {
        index->tokens += lengths[i++];
    }
    return error_set(load->error, -EBADMSG,
                     "%s: length of document %" PRIu64 ", at offset %" PRIu64 ", is %" PRId32
                     ", %s; %s",
                     load->file->path, from + i,
                     load->layout.lengths_at + (from + i) * LENGTH_BYTES, (int32_t)lengths[i],
                     lengths[i] > INT32_MAX ? "negative" : "beyond any file's size", COPY_AGAIN);
}

/* The first document whose offset is not the end of the one before it; `documents` if none. */
struct out_of_order {
    uint64_t document;
    uint64_t offset;
    uint64_t expected;
};

/* The first `count` documents from `from` on, unless one was found before; `first->expected` goes
 * along. */
static void find_out_of_order(struct out_of_order *first, uint64_t from, const uint64_t *offsets,
                              const uint32_t *lengths, size_t count, uint32_t width) {
    bool differs = offsets[0] != first->expected || !bulk_chains(offsets, lengths, count, width);
    for (size_t i = 0; differs; i++) {
        if (offsets[i] != first->expected) {
            first->document = from + i;
            first->offset = offsets[i];
            return;
        }
        first->expected += (uint64_t)lengths[i] * width;
    }
    first->expected = offsets[count - 1] + (uint64_t)lengths[count - 1] * width;
}

/* Lengths and offsets side by side, each block while it is in the cache. */
static int load_documents(struct load *load, struct out_of_order *first) {
    struct document_index *index = load->index;
    struct array lengths, offsets;
    const uint32_t *length_block;
    const uint64_t *offset_block;
    int rc = 0;
    *first = (struct out_of_order){.document = index->documents};
    array_init(&lengths, load, load->layout.lengths_at, index->documents, LENGTH_BYTES);
    array_init(&offsets, load, load->layout.offsets_at, index->documents, OFFSET_BYTES);
    for (uint64_t from = 0; rc == 0 && from < index->documents; from += WINDOW_DOCUMENTS) {
        size_t count = block_size(index->documents, from);
        rc = array_u32(&lengths, count, &length_block);
        if (rc == 0) {
            rc = check_length_block(load, from, length_block, count);
        }
        if (rc == 0 && index->windows != NULL) {
            windows_put_lengths(index->windows, length_block, count);
            load_seen(load, length_block, count * LENGTH_BYTES);
        }
        if (rc == 0 && first->document == index->documents) {
            rc = array_u64(&offsets, count, &offset_block);
            if (rc == 0) {
                find_out_of_order(first, from, offset_block, length_block, count, index->width);
            }
        }
    }
    return rc;
}

/* The x-th number of splitmix64. Its finalizer alone would not do: it makes 0 of 0, and of 20 twice
 * what it makes of 10. */
static uint64_t mix(uint64_t x) {
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static bool lies_inside(const struct load *load, uint64_t offset, uint64_t bytes) {
    return bytes <= load->bin_bytes && offset <= load->bin_bytes - bytes;
}

/* Documents in another order than their tokens. They cover .bin exactly when the multiset of their
 * starts and the end of .bin equals that of their ends and 0: with positive lengths nothing but one
 * chain from 0 to the end has that. Compared as sums of hashes, in one pass and no memory. */
static int check_offset_block(const struct load *load, uint64_t from, const uint64_t *offsets,
                              const uint32_t *lengths, size_t count, uint64_t *unmatched) {
    uint32_t width = load->index->width;
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = offsets[i];
        uint64_t bytes = (uint64_t)lengths[i] * width;
        if (offset % width != 0 || !lies_inside(load, offset, bytes)) {
            return error_set(
                load->error, -EBADMSG,
                "%s: offset of document %" PRIu64 ", at offset %" PRIu64 ", is %" PRId64
                ": no place for its %" PRIu64 " bytes in %s (%" PRIu64 " bytes, %u a token); %s",
                load->file->path, from + i, load->layout.offsets_at + (from + i) * OFFSET_BYTES,
                (int64_t)offset, bytes, load->bin_path, load->bin_bytes, width, COPY_AGAIN);
        }
        *unmatched += mix(offset) - mix(offset + bytes);
    }
    return 0;
}

static int load_offset_blocks(struct load *load, uint64_t *unmatched) {
    struct document_index *index = load->index;
    struct array lengths, offsets;
    const uint32_t *length_block;
    const uint64_t *offset_block;
    int rc = 0;
    array_init(&lengths, load, load->layout.lengths_at, index->documents, LENGTH_BYTES);
    array_init(&offsets, load, load->layout.offsets_at, index->documents, OFFSET_BYTES);
    for (uint64_t from = 0; rc == 0 && from < index->documents; from += WINDOW_DOCUMENTS) {
        size_t count = block_size(index->documents, from);
        rc = array_u32(&lengths, count, &length_block);
        if (rc == 0) {
            rc = array_u64(&offsets, count, &offset_block);
        }
        if (rc == 0) {
            rc = check_offset_block(load, from, offset_block, length_block, count, unmatched);
        }
        if (rc == 0) {
            windows_put_offsets(index->windows, offset_block, count);
            load_seen(load, offset_block, count * OFFSET_BYTES);
        }
    }
    return rc;
}

static int load_offsets(struct load *load, const struct out_of_order *first) {
    struct document_index *index = load->index;
    uint64_t unmatched = mix(load->bin_bytes) - mix(0);
    if (windows_want_offsets(index->windows) < 0) {
        return error_set(load->error, -ENOMEM,
                         "%s: no memory for the offsets of %" PRIu64 " documents; free some memory",
                         load->file->path, index->documents);
    }
    int rc = load_offset_blocks(load, &unmatched);
    if (rc < 0) {
        return rc;
    }
    if (unmatched != 0) {
        return error_set(load->error, -EBADMSG,
                         "%s: offset of document %" PRIu64 ", at offset %" PRIu64 ", is %" PRIu64
                         " where the lengths before it say %" PRIu64
                         ", and the documents leave gaps or overlap in %s; %s",
                         load->file->path, first->document,
                         load->layout.offsets_at + first->document * OFFSET_BYTES, first->offset,
                         first->expected, load->bin_path, COPY_AGAIN);
    }
    return 0;
}

static uint64_t first_beyond(const struct document_index *index, uint64_t bin_bytes) {
    uint64_t i = 0;
    for (uint64_t end = 0; index->windows != NULL && i < index->documents; i++) {
        end += (uint64_t)windows_length(index->windows, i) * index->width;
        if (end > bin_bytes) {
            break;
        }
    }
    return i;
}

static int check_bin_size(const struct load *load) {
    const struct document_index *index = load->index;
    uint64_t expected = index->tokens * index->width;
    if (load->bin_bytes < expected) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes short (%" PRIu64 " instead of %" PRIu64
                         "), first damaged document %" PRIu64 "; copy the file again",
                         load->bin_path, expected - load->bin_bytes, load->bin_bytes, expected,
                         first_beyond(index, load->bin_bytes));
    }
    if (load->bin_bytes > expected) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes too long (%" PRIu64 " instead of %" PRIu64
                         "), so it and %s are not of one run; copy both files again",
                         load->bin_path, load->bin_bytes - expected, load->bin_bytes, expected,
                         load->file->path);
    }
    return 0;
}

static int load_arrays(struct load *load, struct out_of_order *first) {
    int rc = check_document_array(load);
    if (rc == 0) {
        rc = allocate(load);
    }
    return rc < 0 ? rc : load_documents(load, first);
}

static int load_index(struct load *load) {
    struct out_of_order first;
    int rc = load_arrays(load, &first);
    if (rc == 0 && first.document < load->index->documents) {
        rc = load_offsets(load, &first);
    }
    return rc < 0 ? rc : check_bin_size(load);
}

/* Whether a refused index makes sense when its arrays are read as big endian. Without a document
 * array the size of .bin has to agree too: little else would be evidence. */
static bool is_big_endian(const struct load *refused) {
    struct document_index scratch = {0};
    struct out_of_order first;
    struct load load = *refused;
    load.swapped = true;
    load.index = &scratch;
    load.error = NULL;
    bool consistent = load_arrays(&load, &first) == 0 && first.document == scratch.documents &&
                      (!load.layout.fairseq || check_bin_size(&load) == 0);
    document_index_deinit(&scratch);
    return consistent;
}

int megatron_index_init(struct document_index *index, const struct megatron_file *file,
                        const char *bin_path, uint64_t bin_bytes, struct error *error) {
    assert(file->bytes <= INT64_MAX && bin_bytes <= INT64_MAX);
    memset(index, 0, sizeof *index);
    struct load load = {
        .file = file, .bin_path = bin_path, .bin_bytes = bin_bytes, .index = index, .error = error};
    int rc = read_header(file, &load.layout, error);
    if (rc < 0) {
        return rc;
    }
    rc = load_index(&load);
    if (rc == -EBADMSG && is_big_endian(&load)) {
        rc = error_set(error, -ENOSYS,
                       "%s: big-endian arrays from offset %" PRIu64 " on, and so is %s; %s on a "
                       "little-endian machine",
                       file->path, load.layout.lengths_at, bin_path, BUILD_AGAIN);
    } else if (rc == -EBADMSG && load.layout.fairseq) {
        error_prefix(error, "in fairseq's layout, which its size says");
    }
    if (rc < 0) {
        document_index_deinit(index);
    }
    return rc;
}
