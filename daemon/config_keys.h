/* config_keys: the table of keys, and how each kind of value is read and written.
 *
 * The only list of keys there is: parsing, ranges, defaults, the environment's names, the example
 * file and `ballastctl config` all follow it. A kind is a pair of functions, text to field and
 * field to text; what a key allows is said by config_key_allowed. Values may lean on keys higher up
 * in the table (tokens_max on the window, replicas on dp), which are parsed first. */
#ifndef BALLAST_DAEMON_CONFIG_KEYS_H
#define BALLAST_DAEMON_CONFIG_KEYS_H

#include "daemon/config.h"

enum config_origin {
    ORIGIN_DEFAULT = 0,
    ORIGIN_FILE = 1,
    ORIGIN_ENVIRONMENT = 2,
    ORIGIN_FLAG = 3,
    ORIGIN_BEFORE = 4, /* in a [from STEP] section: as in the one before */
};

/* The keys of a [dataset NAME], outside of the table. */
enum dataset_key {
    DATASET_PATH = 0,
    DATASET_WEIGHT = 1,
    DATASET_DOMAIN = 2,
    DATASET_DOMAIN_FILE = 3,
    DATASET_DOMAIN_NAMES = 4,
    DATASET_KEYS = 5,
};
extern const char *const dataset_key_names[DATASET_KEYS];

/* The text of any but the weight; NULL: not given. */
const char **dataset_text(const struct config *config, uint32_t dataset, enum dataset_key key);

struct config_key;

struct config_kind {
    /* Writes the field. -EINVAL when the text is not allowed (config_key_allowed says what is),
     * -ENOMEM. */
    int (*parse)(const struct config_key *key, const char *text, struct config *config);
    /* Writes what `parse` reads back to the same field; `out` holds CONFIG_VALUE_BYTES. */
    void (*print)(const struct config_key *key, const struct config *config, char *out);
    /* "8 to 67108864 tokens", "one of exact, paper". */
    void (*allowed)(const struct config_key *key, char *out, size_t bytes);
    /* What stands for the value in a plan text, when that is not what `print` writes; the default
     * (CONFIG_NO_PROFILE) is not said at step 0. NULL: as `print`. */
    void (*identity)(const struct config_key *key, const struct config *config, char *out);
};

struct config_key {
    const char *section;
    const char *name;
    const char *fallback; /* the default, as written in a file */
    const char *unit;     /* "" for none; "tokens" may be written with k and m (1024) */
    const char *reason;   /* what it is and why this default; lines separated by '\n' */
    const struct config_kind *kind;
    const char *words; /* kinds with named values: the names, '|' between them */
    uint64_t min, max; /* of the field; named values count up from min */
    size_t offset;     /* of the field in struct config */
    size_t bytes;      /* of the field */
    bool plan;         /* part of the stream's identity */
    bool elastic;      /* may change while the job lasts, in [from STEP] sections */
    bool path;         /* relative to the config file's folder when it comes from there */
};

size_t config_key_count(void);
const struct config_key *config_key_at(size_t i);

/* As in a file: a value that is for the program to choose. */
#define CONFIG_AUTO "auto"

/* Index of section.name, or config_key_count() for an unknown one. */
size_t config_key_find(const char *section, const char *name);

/* Whether a line "section.key = value" of a plan text says what the key's default says. */
bool config_line_is_default(const char *line);

/* Reads the profile that a config names into its plan, and checks it against the shape and what it
 * must be of, which are parsed already; {0} without one. -EINVAL naming file, the key's path and
 * the remedy; -ENOENT, ...; -ENOMEM. */
int config_profile_read(struct config *config, struct error *error);

/* A profile in a plan text: without one this, else its hash as 32 hex digits. */
#define CONFIG_NO_PROFILE "analytic"
#define CONFIG_HASH_CHARS (2 * MODEL_PROFILE_HASH_BYTES + 1)
void config_profile_print(const struct model_profile *profile, char out[CONFIG_HASH_CHARS]);

/* Whether it is of a key that is not said where it has its default. */
bool config_line_is_sparse(const char *line);

/* Whether any key is in this section. */
bool config_section_known(const char *section);

/* The key or section most like what was written, NULL when none is near. */
const struct config_key *config_key_nearest(const char *section, const char *name);
const char *config_section_nearest(const char *section);

/* A comment for the head of a section in the example. */
const char *config_section_reason(const char *section);

/* Decimal number with up to `digits` digits after the point, times 10^digits; no floating point.
 * -EINVAL for anything else or above UINT64_MAX. And back, shortest form. */
int config_decimal_parse(const char *text, unsigned digits, uint64_t *out);
void config_decimal_print(uint64_t value, unsigned digits, char *out, size_t bytes);

/* Kinds (config_value.c). */
extern const struct config_kind kind_count;      /* u32 or u64; words: a name for 0 ("auto") */
extern const struct config_kind kind_decimal;    /* u64, thousandths */
extern const struct config_kind kind_choice;     /* bool, int or enum; words, from min up */
extern const struct config_kind kind_duration;   /* u32 ms; written with ms, s, m, h */
extern const struct config_kind kind_path;       /* char array; max characters */
extern const struct config_kind kind_text;       /* char array, may be empty */
extern const struct config_kind kind_token_type; /* u8 of a dtype, 0 is "auto" */
extern const struct config_kind kind_eod;        /* u32 id; "auto" and "none" as in format.h */
extern const struct config_kind kind_profile;    /* likewise a path; known by what is in the file */
extern const struct config_kind kind_listen;     /* char array; "off" or metrics_address.h */
extern const struct config_kind kind_windows;    /* u64 tokens, or "1.25w": times plan.window */
extern const struct config_kind kind_thresholds; /* plan.bands.length_min and bands */
extern const struct config_kind kind_policy;     /* plan.policy and plan.pools.size */
extern const struct config_kind kind_parameter;  /* u32 count; words: a name for UINT32_MAX */
extern const struct config_kind kind_percent;    /* u32 millionths, as "12.5%"; likewise */
extern const struct config_kind kind_steps;      /* u32 millionths of a step, as "1.5"; likewise */
extern const struct config_kind kind_layouts;    /* u32 of bits 1 << (min + word) */
extern const struct config_kind kind_cost;       /* u64: "analytic" is 0, "L2/N" is N */
extern const struct config_kind kind_replicas;   /* replicas_local: "all", "0,1,4-7" below dp */
extern const struct config_kind kind_endpoint; /* char array: "ADDRESS:PORT", or empty for "off" */
extern const struct config_kind kind_file;     /* char array: a path, or empty for none */
extern const struct config_kind kind_names;    /* char array: names with commas */
extern const struct config_kind kind_uids;     /* u32 array, its count behind it */

#endif
