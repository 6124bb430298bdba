/* format: the corpus formats that are read, and what is to be known of files that do not say it.
 *
 * A reader of a format (ds.c, raw.c, mds.c, litdata.c) opens the token files, says which bytes of
 * them are tokens and where documents lie, and checks all that can be checked without reading the
 * tokens; dataset.c does the rest alike for all. Megatron's is megatron.c, for its index may be of
 * any size and order. docs/formats.md says what each accepts and refuses. */
#ifndef BALLAST_CORPUS_FORMAT_H
#define BALLAST_CORPUS_FORMAT_H

#include "corpus/documents.h"
#include "corpus/volumes.h"

enum format {
    FORMAT_AUTO = 0, /* by what lies at the path */
    FORMAT_MEGATRON = 1,
    FORMAT_DS = 2,      /* datatrove, nanotron */
    FORMAT_NPY = 3,     /* OLMo, dolma: raw in spite of the name */
    FORMAT_BIN = 4,     /* llm.c, nanoGPT */
    FORMAT_MDS = 5,     /* MosaicML streaming */
    FORMAT_LITDATA = 6, /* litdata */
};

#define FORMAT_EOD_AUTO UINT32_MAX       /* what the file's kind implies, or refused */
#define FORMAT_EOD_NONE (UINT32_MAX - 1) /* a file is a document */

/* What files do not say by themselves. Zeroed but for eod: nothing. */
struct format_options {
    enum format format;
    uint32_t eod;               /* id that ends (llm.c: begins) a document; or the two above */
    uint8_t dtype;              /* of tokens without a header, Megatron's code; 0: not said */
    const char *derived_dir;    /* where decompressed chunks and found documents are kept; NULL: in
                                   TMPDIR as long as the dataset is open */
    uint64_t derived_bytes_max; /* of one dataset; 0: no bound */
};

extern const struct format_options format_options_default;

struct derived;

/* One opening. */
struct format_load {
    const char *path; /* as the user gave it, without '/' at its end */
    const struct format_options *options;
    struct volumes *volumes;     /* empty; filled */
    struct documents *documents; /* likewise; `width` by format_set_dtype */
    struct derived *derived;
    uint8_t dtype; /* 0 until format_set_dtype */
    /* To be told now and then how much of the work is done. A negative errno ends it. */
    int (*progress)(void *context, uint64_t done, uint64_t all);
    void *context;
    struct error *error;
};

/* The name of a format ("ds"), and of a dtype; the reverse is -EINVAL where there is none. */
const char *format_name(enum format format);
int format_parse(const char *text, enum format *out);
int format_dtype_parse(const char *text, uint8_t *out);
const char *format_dtype_name(uint8_t dtype);

/* What lies at a path; FORMAT_MEGATRON also where nothing known does. */
enum format format_detect(const char *path);

/* All tokens of a dataset have one type: -EBADMSG when it was another one before, or the user's. */
int format_set_dtype(struct format_load *load, uint8_t dtype, const char *path);

/* Opens with the reader of `format`, not MEGATRON's. */
int format_load(struct format_load *load, enum format format);

int ds_load(struct format_load *load);
int npy_load(struct format_load *load);
int bin_load(struct format_load *load);
int mds_load(struct format_load *load);
int litdata_load(struct format_load *load);

/* Reads from a file being opened; an error names file and offset. */
int format_read(const struct format_load *load, struct file *file, uint64_t offset, void *to,
                size_t count);

/* `count` whole elements of 4 or 8 little-endian bytes; by blocks, in host order. */
int format_read_u32(const struct format_load *load, struct file *file, uint64_t offset,
                    uint32_t *to, size_t count);
int format_read_u64(const struct format_load *load, struct file *file, uint64_t offset,
                    uint64_t *to, size_t count);

/* The files of a dataset: `path` itself, path + suffix, or all in the folder `path` that end in
 * suffix, by name (digits as numbers). Heap, for format_paths_free. -ENOENT without any. */
int format_paths(const struct format_load *load, const char *suffix, char ***out, size_t *count);
void format_paths_free(char **paths, size_t count);

#endif
