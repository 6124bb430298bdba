/* megatron: see megatron.h. Arrays are read front to back through small buffers and copied out of
 * them element by element: from offset 34 on nothing is aligned. */
#include "corpus/megatron.h"
#include "corpus/foreign.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
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
    bool swapped; /* read the arrays as big endian */
    struct megatron_index *index;
    struct error *error;
};

uint32_t megatron_width(uint8_t dtype) {
    return dtype < DTYPE_COUNT ? dtype_rows[dtype].width : 0;
}

static uint64_t decode_u64(const uint8_t *bytes, bool big_endian) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return big_endian ? be64toh(value) : le64toh(value);
}

static uint32_t decode_u32(const uint8_t *bytes, bool big_endian) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return big_endian ? be32toh(value) : le32toh(value);
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
    uint64_t version = decode_u64(header + VERSION_AT, false);
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
    layout->sequences = decode_u64(header + SEQUENCES_AT, false);
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
    layout->entries = decode_u64(header + ENTRIES_AT, false);
    return check_entries(file, layout, error);
}

/* One array, read front to back. */
struct array {
    const struct load *load;
    uint64_t next_at; /* file offset of the bytes after the chunk */
    uint64_t end_at;
    size_t at;
    size_t filled;
    uint8_t chunk[32768]; /* a multiple of every element's width */
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

/* Inlined, so that the width is a constant: an index has tens of millions of elements. */
__attribute__((always_inline)) static inline int array_take(struct array *array, size_t width,
                                                            uint64_t *out) {
    if (__builtin_expect(array->at == array->filled, 0)) {
        int rc = array_refill(array);
        if (rc < 0) {
            return rc;
        }
    }
    const uint8_t *bytes = array->chunk + array->at;
    *out = width == LENGTH_BYTES ? decode_u32(bytes, array->load->swapped)
                                 : decode_u64(bytes, array->load->swapped);
    array->at += width;
    return 0;
}

static int refuse_entry(const struct load *load, uint64_t i, uint64_t value, const char *rule) {
    return error_set(load->error, -EBADMSG,
                     "%s: entry %" PRIu64 " of the document array, at offset %" PRIu64
                     ", is %" PRId64 " and should be %s (%" PRIu64 " sequences); %s",
                     load->file->path, i, load->layout.entries_at + i * OFFSET_BYTES,
                     (int64_t)value, rule, load->layout.sequences, COPY_AGAIN);
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
    array_init(&entries, load, layout->entries_at, layout->entries, OFFSET_BYTES);
    uint64_t before = 0;
    for (uint64_t i = 0; i < layout->entries; i++) {
        uint64_t entry = 0;
        int rc = array_take(&entries, OFFSET_BYTES, &entry);
        if (rc < 0) {
            return rc;
        }
        if (i == 0 && entry != 0) {
            return refuse_entry(load, i, entry, "0, as the first");
        }
        if (entry < before || entry > layout->sequences) {
            return refuse_entry(load, i, entry, "between the one before and the last");
        }
        before = entry;
    }
    if (before != layout->sequences) {
        return refuse_entry(load, layout->entries - 1, before, "all sequences, as the last");
    }
    return 0;
}

static int allocate(struct load *load) {
    struct megatron_index *index = load->index;
    size_t documents = (size_t)load->layout.sequences;
    index->dtype = load->layout.dtype;
    index->width = megatron_width(index->dtype);
    index->documents = load->layout.sequences;
    index->lengths = calloc(documents + 1, sizeof *index->lengths);
    index->totals = calloc(documents / MEGATRON_STRIDE + 1, sizeof *index->totals);
    if (index->lengths == NULL || index->totals == NULL) {
        return error_set(load->error, -ENOMEM,
                         "%s: no memory for the lengths of %zu documents; free some memory",
                         load->file->path, documents);
    }
    return 0;
}

static int load_lengths(struct load *load) {
    struct megatron_index *index = load->index;
    const uint64_t tokens_max = INT64_MAX / index->width;
    struct array lengths;
    array_init(&lengths, load, load->layout.lengths_at, index->documents, LENGTH_BYTES);
    for (uint64_t i = 0; i < index->documents; i++) {
        uint64_t length = 0;
        int rc = array_take(&lengths, LENGTH_BYTES, &length);
        if (rc < 0) {
            return rc;
        }
        if (length > INT32_MAX || length > tokens_max - index->tokens) {
            return error_set(
                load->error, -EBADMSG,
                "%s: length of document %" PRIu64 ", at offset %" PRIu64 ", is %" PRId32 ", %s; %s",
                load->file->path, i, load->layout.lengths_at + i * LENGTH_BYTES,
                (int32_t)(uint32_t)length,
                length > INT32_MAX ? "negative" : "beyond any file's size", COPY_AGAIN);
        }
        if (i % MEGATRON_STRIDE == 0) {
            index->totals[i / MEGATRON_STRIDE] = index->tokens;
        }
        index->lengths[i] = (uint32_t)length;
        index->tokens += length;
    }
    return 0;
}

/* The first document whose offset is not the end of the one before it; `documents` if none. */
struct out_of_order {
    uint64_t document;
    uint64_t offset;
    uint64_t expected;
};

static int find_out_of_order(const struct load *load, struct out_of_order *out) {
    const struct megatron_index *index = load->index;
    struct array offsets;
    array_init(&offsets, load, load->layout.offsets_at, index->documents, OFFSET_BYTES);
    out->expected = 0;
    for (out->document = 0; out->document < index->documents; out->document++) {
        int rc = array_take(&offsets, OFFSET_BYTES, &out->offset);
        if (rc < 0) {
            return rc;
        }
        if (out->offset != out->expected) {
            return 0;
        }
        out->expected += (uint64_t)index->lengths[out->document] * index->width;
    }
    return 0;
}

/* splitmix64's finalizer. */
static uint64_t mix(uint64_t x) {
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
static int load_offsets(struct load *load, const struct out_of_order *first) {
    struct megatron_index *index = load->index;
    index->offsets = calloc((size_t)index->documents, sizeof *index->offsets);
    if (index->offsets == NULL) {
        return error_set(load->error, -ENOMEM,
                         "%s: no memory for the offsets of %" PRIu64 " documents; free some memory",
                         load->file->path, index->documents);
    }
    struct array offsets;
    array_init(&offsets, load, load->layout.offsets_at, index->documents, OFFSET_BYTES);
    uint64_t unmatched = mix(load->bin_bytes) - mix(0);
    for (uint64_t i = 0; i < index->documents; i++) {
        uint64_t offset = 0;
        uint64_t bytes = (uint64_t)index->lengths[i] * index->width;
        int rc = array_take(&offsets, OFFSET_BYTES, &offset);
        if (rc < 0) {
            return rc;
        }
        if (offset % index->width != 0 || !lies_inside(load, offset, bytes)) {
            return error_set(
                load->error, -EBADMSG,
                "%s: offset of document %" PRIu64 ", at offset %" PRIu64 ", is %" PRId64
                ": no place for its %" PRIu64 " bytes in %s (%" PRIu64 " bytes, %u a token); %s",
                load->file->path, i, load->layout.offsets_at + i * OFFSET_BYTES, (int64_t)offset,
                bytes, load->bin_path, load->bin_bytes, index->width, COPY_AGAIN);
        }
        unmatched += mix(offset) - mix(offset + bytes);
        index->offsets[i] = offset;
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

static uint64_t first_beyond(const struct megatron_index *index, uint64_t bin_bytes) {
    uint64_t i = 0;
    for (uint64_t end = 0; i < index->documents; i++) {
        end += (uint64_t)index->lengths[i] * index->width;
        if (end > bin_bytes) {
            break;
        }
    }
    return i;
}

static int check_bin_size(const struct load *load) {
    const struct megatron_index *index = load->index;
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
    if (rc == 0) {
        rc = load_lengths(load);
    }
    if (rc == 0) {
        rc = find_out_of_order(load, first);
    }
    return rc;
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
    struct megatron_index scratch = {0};
    struct out_of_order first;
    struct load load = *refused;
    load.swapped = true;
    load.index = &scratch;
    load.error = NULL;
    bool consistent = load_arrays(&load, &first) == 0 && first.document == scratch.documents &&
                      (!load.layout.fairseq || check_bin_size(&load) == 0);
    megatron_index_deinit(&scratch);
    return consistent;
}

int megatron_index_init(struct megatron_index *index, const struct megatron_file *file,
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
        megatron_index_deinit(index);
    }
    return rc;
}

void megatron_index_deinit(struct megatron_index *index) {
    free(index->lengths);
    free(index->totals);
    free(index->offsets);
    memset(index, 0, sizeof *index);
}

uint64_t megatron_index_offset(const struct megatron_index *index, uint64_t i) {
    assert(i < index->documents);
    if (index->offsets != NULL) {
        return index->offsets[i];
    }
    uint64_t tokens = index->totals[i / MEGATRON_STRIDE];
    for (uint64_t j = i - i % MEGATRON_STRIDE; j < i; j++) {
        tokens += index->lengths[j];
    }
    return tokens * index->width;
}
