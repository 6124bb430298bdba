/* The index parser on hostile bytes: never a step outside the file, and what is accepted keeps
 * every document inside .bin, none over another.
 *
 * The first byte of the input chooses: the rest is a whole index; or what follows an intact magic
 * and version; or a recipe for a sound index (lengths) with edits, which reaches the deep checks.
 */
#include "tests/unit/corpus_files.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INTACT_BYTES = 17, DOCUMENTS_MAX = 63, IMAGE_BYTES = 4096 };

static void open_and_use(const uint8_t *bytes, size_t count, uint64_t bin_bytes) {
    struct image image;
    struct document_index index;
    struct error error = {0};
    uint8_t *exact = malloc(count + 1);
    assert(exact != NULL);
    memcpy(exact, bytes, count);
    image_open(&image, exact, count);
    int rc = megatron_index_init(&index, &image.file, "fuzz.bin", bin_bytes, &error);
    assert(rc <= 0 && error.code == rc);
    if (rc == 0) {
        assert(index_is_consistent(&index, bin_bytes));
        document_index_deinit(&index);
    }
    free(exact);
}

/* 8 bytes: claimed size of .bin; the rest: the index. */
static void open_raw(const uint8_t *data, size_t size, bool intact) {
    uint8_t header[MEGATRON_HEADER_BYTES];
    uint64_t bin_bytes = 0;
    if (size < sizeof bin_bytes) {
        return;
    }
    memcpy(&bin_bytes, data, sizeof bin_bytes);
    data += sizeof bin_bytes;
    size -= sizeof bin_bytes;
    size_t front = intact ? INTACT_BYTES : 0;
    uint8_t *bytes = malloc(front + size + 1);
    assert(bytes != NULL);
    megatron_header_encode(header, MEGATRON_U16, 0, 0);
    memcpy(bytes, header, front);
    memcpy(bytes + front, data, size);
    open_and_use(bytes, front + size, bin_bytes & INT64_MAX);
    free(bytes);
}

/* Two bytes of options, the number of documents, their lengths; then edits of three bytes: where
 * (16 bits) and what to add there. An edit at 0xffff shortens or lengthens .bin. */
static void open_recipe(const uint8_t *data, size_t size) {
    static const uint8_t dtypes[] = {1, 3, 4, 5, 8, 9, 10, 8};
    uint32_t lengths[DOCUMENTS_MAX] = {0};
    uint8_t bytes[IMAGE_BYTES];
    if (size < 2) {
        return;
    }
    struct image_options options = {.dtype = dtypes[data[0] % 8],
                                    .documents = data[1] % (DOCUMENTS_MAX + 1),
                                    .lengths = lengths,
                                    .fairseq = data[0] >> 3 & 1,
                                    .modes = data[0] >> 4 & 1,
                                    .big_endian = data[0] >> 5 & 1};
    data += 2;
    size -= 2;
    for (uint32_t i = 0; i < options.documents && size > 0; i++, data++, size--) {
        lengths[i] = *data;
    }
    size_t count = image_build(&options, bytes, sizeof bytes);
    uint64_t bin_bytes = image_bin_bytes(&options);
    assert(count <= sizeof bytes);
    for (; size >= 3; data += 3, size -= 3) {
        size_t at = (size_t)data[0] << 8 | data[1];
        if (at == 0xffff) {
            bin_bytes = (bin_bytes + data[2]) & INT64_MAX;
        } else {
            bytes[at % count] = (uint8_t)(bytes[at % count] + data[2]);
        }
    }
    open_and_use(bytes, count, bin_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        open_raw(data + 1, size - 1, false);
        break;
    case 1:
        open_raw(data + 1, size - 1, true);
        break;
    default:
        open_recipe(data + 1, size - 1);
        break;
    }
    return 0;
}
