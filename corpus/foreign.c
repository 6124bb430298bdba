/* foreign: see foreign.h. */
#include "corpus/foreign.h"

#include <endian.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WITH_BUILDER                                                                               \
    "write each document with Megatron-LM's IndexedDatasetBuilder "                                \
    "(megatron/core/datasets/indexed_dataset.py)"
#define WITH_PREPROCESS "run Megatron-LM's tools/preprocess_data.py on its text"

/* For whoever set corpus.format to Megatron's. */
#define READ_HERE "set corpus.format to auto, which reads it"

static const struct foreign_format tntidx = {
    "an old TNTIDX index (lazy or cached implementation)",
    "preprocess the text again with --dataset-impl mmap (tools/preprocess_data.py of Megatron-LM, "
    "Megatron-DeepSpeed or GPT-NeoX; fairseq-preprocess)"};
static const struct foreign_format huffman = {
    "fairseq's Huffman-coded index", "run fairseq-preprocess again with --dataset-impl mmap"};
static const struct foreign_format gzip = {"compressed with gzip",
                                           "decompress both files with gunzip"};
static const struct foreign_format zstd = {"compressed with zstd",
                                           "decompress both files with unzstd"};
static const struct foreign_format npy = {"a numpy array", WITH_BUILDER};
static const struct foreign_format offset_list = {
    "an offset list as Energon and WebDataset keep beside x.tar or x.jsonl", WITH_PREPROCESS};
static const struct foreign_format datatrove = {"a datatrove or nanotron .ds file", READ_HERE};
static const struct foreign_format mds = {"an MDS folder (MosaicML streaming)", READ_HERE};
static const struct foreign_format litdata = {"a litdata folder", READ_HERE};
static const struct foreign_format olmo = {"an OLMo (dolma) token file", READ_HERE};
static const struct foreign_format llm_c = {"an llm.c token shard", READ_HERE};
static const struct foreign_format raw_bin = {
    "tokens without an index (as nanoGPT writes them)",
    "copy the .idx too, or cut it at the end-of-text id and " WITH_BUILDER};
static const struct foreign_format levanter = {
    "a Levanter cache", "read it with levanter's TreeCache and " WITH_BUILDER};
static const struct foreign_format arrow = {"an Arrow or Parquet set (Hugging Face datasets)",
                                            "read it with the datasets package and " WITH_BUILDER};
static const struct foreign_format tar = {"WebDataset or Energon shards", WITH_PREPROCESS};
static const struct foreign_format jsonl = {"JSON lines", WITH_PREPROCESS};
static const struct foreign_format with_suffix = {"one file of a Megatron dataset",
                                                  "give the path without .idx or .bin"};
static const struct foreign_format without_key = {
    "the output prefix of preprocess_data.py",
    "give the whole name of the files without suffix, PREFIX_KEY_document (PREFIX_text_document)"};

static const struct head_row {
    const char *bytes;
    size_t count;
    const struct foreign_format *format;
} head_rows[] = {
    {"TNTIDX\0\0", 8, &tntidx},     {"HUFFIDX\0\0", 9, &huffman}, {"\x1f\x8b", 2, &gzip},
    {"\x28\xb5\x2f\xfd", 4, &zstd}, {"\x93NUMPY", 6, &npy},       {"PAR1", 4, &arrow},
};

/* Looked for in this order. An ending that starts with '/' is inside the folder PREFIX; any other
 * is appended to PREFIX, or ends PREFIX already. */
static const struct path_row {
    const char *ending;
    const struct foreign_format *format;
} path_rows[] = {
    {"_text_document.idx", &without_key},
    {".ds", &datatrove},
    {".npy", &olmo},
    {".parquet", &arrow},
    {".arrow", &arrow},
    {".tar", &tar},
    {".jsonl", &jsonl},
    {".bin", &raw_bin},
    {"/.nv-meta", &tar},
    {"/shard_ledger.json", &levanter},
    {"/dataset_info.json", &arrow},
    {"/state.json", &arrow},
    {"/index.json", &mds},
};

static bool is_offset_list(const uint8_t *head, size_t count, uint64_t file_bytes) {
    uint64_t first;
    uint64_t second;
    if (count < sizeof first + sizeof second || file_bytes % sizeof first != 0) {
        return false;
    }
    memcpy(&first, head, sizeof first);
    memcpy(&second, head + sizeof first, sizeof second);
    return first == 0 && le64toh(second) > 0 && le64toh(second) < UINT32_MAX;
}

const struct foreign_format *foreign_by_head(const uint8_t *head, size_t count,
                                             uint64_t file_bytes) {
    for (size_t i = 0; i < sizeof head_rows / sizeof head_rows[0]; i++) {
        if (count >= head_rows[i].count &&
            memcmp(head, head_rows[i].bytes, head_rows[i].count) == 0) {
            return head_rows[i].format;
        }
    }
    return is_offset_list(head, count, file_bytes) ? &offset_list : NULL;
}

static size_t read_head(const char *path, void *to, size_t count) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return 0;
    }
    ssize_t have = read(fd, to, count);
    close(fd);
    return have < 0 ? 0 : (size_t)have;
}

/* MDS and litdata both have an index.json; only litdata's speaks of chunks. */
static const struct foreign_format *by_index_json(const char *path) {
    char text[4097] = {0};
    read_head(path, text, sizeof text - 1);
    return strstr(text, "\"chunks\"") != NULL ? &litdata : &mds;
}

static const struct foreign_format *by_bin(const char *path) {
    uint32_t magic = 0;
    read_head(path, &magic, sizeof magic);
    magic = le32toh(magic);
    return magic == 20240520u || magic == 20240801u ? &llm_c : &raw_bin;
}

static bool ends_with(const char *text, const char *ending) {
    size_t text_chars = strlen(text);
    size_t ending_chars = strlen(ending);
    return text_chars > ending_chars && strcmp(text + text_chars - ending_chars, ending) == 0;
}

bool foreign_is_half(const char *prefix) {
    char index[PATH_MAX];
    size_t stem_chars = strlen(prefix) - strlen(".idx");
    if (!ends_with(prefix, ".idx") && !ends_with(prefix, ".bin")) {
        return false;
    }
    int chars = snprintf(index, sizeof index, "%.*s.idx", (int)stem_chars, prefix);
    return chars < (int)sizeof index && access(index, F_OK) == 0;
}

const struct foreign_format *foreign_by_path(const char *prefix) {
    if (foreign_is_half(prefix)) {
        return &with_suffix;
    }
    for (size_t i = 0; i < sizeof path_rows / sizeof path_rows[0]; i++) {
        const struct path_row *row = &path_rows[i];
        struct stat info;
        char path[PATH_MAX];
        int chars = ends_with(prefix, row->ending)
                        ? snprintf(path, sizeof path, "%s", prefix)
                        : snprintf(path, sizeof path, "%s%s", prefix, row->ending);
        if (chars >= (int)sizeof path || stat(path, &info) < 0) {
            continue;
        }
        if (row->format == &mds) {
            return by_index_json(path);
        }
        return row->format == &raw_bin ? by_bin(path) : row->format;
    }
    return NULL;
}
