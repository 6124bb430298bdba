/* format_files: makes small corpora of every format that is read beside Megatron's, byte for byte
 * as their descriptions say. Token j of document i is dataset_token(i, j) (corpus_files.h), and
 * where an end-of-text id stands between documents it is counted in the lengths. */
#ifndef BALLAST_TESTS_FORMAT_FILES_H
#define BALLAST_TESTS_FORMAT_FILES_H

#include "corpus/format.h"

enum format_kind {
    KIND_DS,
    KIND_NPY,      /* with its table */
    KIND_NPY_BARE, /* cut at KIND_EOD */
    KIND_LLM_C,
    KIND_NANO,
    KIND_MDS,       /* two columns, the tokens with type and shape in each sample */
    KIND_MDS_FIXED, /* one column of ndarray:uint16 */
    KIND_LITDATA,
    KIND_COUNT
};

#define KIND_EOD 50256u

/* The files of a corpus in memory; paths are relative to a folder. */
struct format_file {
    char name[64];
    uint8_t *bytes; /* heap */
    size_t count;
};

#define FORMAT_FILES_MAX 4u

struct format_files {
    struct format_file files[FORMAT_FILES_MAX];
    size_t count;
};

/* `lengths` are at least 1 for kinds that are cut at an id (format_kind_is_cut). */
void format_files_build(enum format_kind kind, const uint32_t *lengths, uint32_t documents,
                        struct format_files *out);
void format_files_write(const struct format_files *files, const char *folder);
void format_files_free(struct format_files *files);

bool format_kind_is_cut(enum format_kind kind);

/* Whether its documents begin with the id instead of ending with it. */
bool format_kind_leads(enum format_kind kind);

/* What the user says beside the path, and that path: FOLDER/name of this. */
struct format_options format_kind_options(enum format_kind kind);
const char *format_kind_path(enum format_kind kind);

#endif
