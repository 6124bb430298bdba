/* The formats beside Megatron's on hostile files: what is accepted keeps every document inside the
 * files, none over another.
 *
 * The first byte chooses a kind, the next the number of documents, then their lengths; what follows
 * are edits of four bytes to the sound files: which and where (16 bits), how, and what. Files lie
 * in memory (/dev/shm). */
#include "corpus/dataset.h"
#include "tests/unit/corpus_files.h"
#include "tests/unit/format_files.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_DOCUMENTS_MAX = 15 };

static char folder[64];

static void folder_remove(void) {
    test_folder_remove(folder);
}

static void folder_make(void) {
    if (folder[0] != '\0') {
        return;
    }
    (void)snprintf(folder, sizeof folder, "/dev/shm/ballast-fuzz-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        abort();
    }
    setenv("TMPDIR", folder, 1);
    atexit(folder_remove);
}

#define FILE_BYTES_MAX (1u << 20) /* not doubled beyond */

/* Changes a byte, cuts the file there, or writes it twice from there on. */
static void edit(struct format_files *files, const uint8_t *data) {
    struct format_file *file = &files->files[data[0] % files->count];
    size_t at = (size_t)(data[0] >> 4) << 8 | data[1];
    if (file->count == 0) {
        return;
    }
    at %= file->count;
    switch (data[2] % 8) {
    case 0:
        file->count = at;
        break;
    case 1: {
        size_t more = file->count < FILE_BYTES_MAX ? file->count - at : 0;
        file->bytes = realloc(file->bytes, file->count + more + 1);
        assert(file->bytes != NULL);
        memcpy(file->bytes + file->count, file->bytes + at, more);
        file->count += more;
        break;
    }
    case 2:
        file->bytes[at] = 0xff;
        break;
    default:
        file->bytes[at] = (uint8_t)(file->bytes[at] + data[3]);
        break;
    }
}

static void use(const struct dataset *dataset) {
    uint64_t before = 0, tokens = 0;
    for (uint64_t i = 0; i < dataset_documents(dataset); i++) {
        uint64_t from = dataset_offset(dataset, i);
        uint64_t bytes = (uint64_t)dataset_length(dataset, i) * dataset_width(dataset);
        assert(from >= before && bytes <= dataset_bin_bytes(dataset) - from);
        before = from + bytes;
        tokens += dataset_length(dataset, i);
    }
    assert(tokens == dataset_tokens(dataset));
    uint8_t fingerprint[16];
    assert(dataset_fingerprint(dataset, fingerprint, NULL) == 0);
}

static void open_and_use(enum format_kind kind) {
    char path[128];
    struct format_options options = format_kind_options(kind);
    struct dataset *dataset = NULL;
    struct error error = {0};
    (void)snprintf(path, sizeof path, "%s/%s", folder, format_kind_path(kind));
    int rc = dataset_open_as("fuzz", path, &options, NULL, NULL, &dataset, &error);
    assert(rc <= 0 && error.code == rc);
    if (rc == 0) {
        use(dataset);
        dataset_close(dataset);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t lengths[FUZZ_DOCUMENTS_MAX + 1] = {0};
    struct format_files files;
    if (size < 2) {
        return 0;
    }
    enum format_kind kind = data[0] % KIND_COUNT;
    uint32_t documents = data[1] % (FUZZ_DOCUMENTS_MAX + 1);
    data += 2;
    size -= 2;
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = size > 0 ? *data : 3;
        lengths[i] += format_kind_is_cut(kind);
        data += size > 0;
        size -= size > 0;
    }
    folder_make();
    format_files_build(kind, lengths, documents, &files);
    for (; size >= 4; data += 4, size -= 4) {
        edit(&files, data);
    }
    format_files_write(&files, folder);
    open_and_use(kind);
    for (size_t i = 0; i < files.count; i++) {
        char path[192];
        (void)snprintf(path, sizeof path, "%s/%s", folder, files.files[i].name);
        (void)unlink(path);
    }
    format_files_free(&files);
    return 0;
}
