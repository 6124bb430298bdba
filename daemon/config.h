/* config: the INI file, its table of keys, and what it says.
 *
 * One table (config_keys.c) holds every key: section.key, type, range, default, unit, reason, and
 * whether the key is part of the plan (its change changes the stream) or only of this node. Flags
 * override the environment (BALLAST_SECTION_KEY), which overrides the file, which overrides the
 * default. In the file unknown sections and keys are errors with file and line; so are unknown
 * flags. Unknown variables are not: Kubernetes sets BALLAST_..._SERVICE_HOST by itself.
 * deploy/ballast.conf.example is printed from the same table (`ballastd --print-config`), so it
 * cannot drift. Shows neither uv nor sqlite3.
 *
 * Paths in the file are relative to the file's folder, other paths to the working directory.
 *
 * Elastic keys may change while the job lasts, in sections [from STEP] that stand behind the
 * others, steps ascending, with lines "section.key = value"; so may weights, and a dataset that is
 * new in such a section is appended to the corpus. Each goes on from the one before, and every
 * relation is checked for each. A flag or a variable sets what holds from step 0 on. */
#ifndef BALLAST_DAEMON_CONFIG_H
#define BALLAST_DAEMON_CONFIG_H

#include "corpus/catalog.h"
#include "corpus/domains.h"
#include "corpus/reader.h"
#include "daemon/slab_memory.h"
#include "corpus/source.h"
#include "planner/planner.h"

#include <stddef.h>

#define CONFIG_PATH_BYTES         512u
#define CONFIG_VALUE_BYTES        4096u /* of one value in text, terminator included */
#define CONFIG_DATASET_NAME_BYTES 41u
#define CONFIG_CHECK_BYTES        128u
#define CONFIG_WARNING_BYTES      300u
#define CONFIG_UIDS_MAX           64u
#define CONFIG_REPLICAS_MAX       4096u
#define CONFIG_KEYS_MAX           128u
#define CONFIG_NAMES_BYTES        1024u               /* of a list of names, terminator included */
#define CONFIG_STEP_MAX           (UINT64_C(1) << 40) /* of a [from STEP] section */
#define CONFIG_WEIGHT_ONE         1000000u            /* a weight of 1 in catalog_entry.weight */
#define CONFIG_WEIGHT_MAX         (UINT64_C(4294) * CONFIG_WEIGHT_ONE) /* the most that a catalog takes */

/* [listen]: TCP, which is off by default. */
struct config_listen {
    char tcp[64]; /* ADDRESS:PORT; empty: off */
    char token_file[CONFIG_PATH_BYTES];
    char admin_token_file[CONFIG_PATH_BYTES];
    char certificate[CONFIG_PATH_BYTES]; /* with key and ca: TLS; empty: plain text */
    char key[CONFIG_PATH_BYTES];
    char ca[CONFIG_PATH_BYTES];
    char serve_names[CONFIG_NAMES_BYTES]; /* of certificates, with commas */
    char admin_names[CONFIG_NAMES_BYTES];
    uint32_t timeout_ms;
};

struct config {
    /* [corpus] and [dataset NAME] */
    struct catalog_entry *datasets; /* in file order, then those that are appended; their texts are
                                       owned by the config */
    struct domain_entry *domains;   /* of each dataset, likewise */
    uint32_t dataset_count;         /* > 0 */
    uint32_t dataset_job_count;     /* > 0: of these from step 0 on, the job's identity */
    enum format format;
    uint8_t token_type;                  /* Megatron's code; 0: files say it */
    uint32_t eod;                        /* as in corpus/format.h */
    char derived[CONFIG_PATH_BYTES];     /* "": in state_dir */
    uint32_t derived_gb;                 /* at most, of one dataset */
    uint32_t derived_days;               /* that a file stays which nobody asks for; 0: for ever */
    struct corpus_source_options source; /* part_limit filled from plan; [job] seed in order.seed;
                                            weights of all sections */
    /* [plan] [parallel] [bands] [queues] [sharding] [model] */
    struct plan_options plan;             /* resolved; the profile is read */
    char profile_path[CONFIG_PATH_BYTES]; /* "": none, the analytic model */
    char profile_gpu[CONFIG_CHECK_BYTES]; /* what it must be of; "": any, as the next */
    char profile_build[CONFIG_CHECK_BYTES];
    bool deterministic;
    char profile_warning[CONFIG_WARNING_BYTES]; /* what differs from its key, or it lacks; "" */
    /* [node] */
    uint8_t *replicas_local;       /* plan.dp flags: 1 for the replicas that this node serves */
    uint32_t replicas_local_count; /* > 0 */
    /* [daemon] */
    char socket_path[CONFIG_PATH_BYTES]; /* control; the data socket is this + ".data" */
    char state_dir[CONFIG_PATH_BYTES];
    uint32_t ahead_steps; /* how far ahead of the fastest rank a step is planned and read */
    uint32_t lease_ms;    /* silence after which a rank's claims end */
    /* May call Loader; the daemon's own uid and root always. */
    uint32_t uids_serve[CONFIG_UIDS_MAX];
    uint32_t uids_serve_count;
    uint32_t uids_admin[CONFIG_UIDS_MAX]; /* may call Admin; likewise */
    uint32_t uids_admin_count;
    struct config_listen listen;
    int log_level; /* 3 error .. 7 debug, as syslog */
    /* [reader] */
    enum reader_backend reader_backend;
    struct reader_options reader; /* jobs_max is `slots`, threads 0 is auto */
    bool reader_registered;
    enum catalog_direct reader_direct;
    bool reader_mapped;
    enum catalog_manifests reader_manifest;
    bool reader_recheck;
    bool payload_hashes;
    /* [slab] */
    uint32_t slots;     /* of this node */
    uint64_t slot_size; /* bytes, 0: config_slot_bytes, which it may not be below */
    enum slab_huge huge_pages;
    uint32_t numa_node; /* or SLAB_NODE_ANY */
    /* [metrics] */
    char metrics_listen[CONFIG_PATH_BYTES]; /* "off", or as metrics_address.h */
    /* [limits] */
    uint32_t connections_max;
    uint32_t credits_max;      /* per stream */
    uint32_t lead_steps;       /* of any rank beyond committed_step */
    uint32_t steps_retained;   /* in the store */
    uint32_t exports_retained; /* likewise, of exported steps */
    /* enum config_origin of each key of the table, and of the keys of each dataset. */
    uint8_t origins[CONFIG_KEYS_MAX];
    bool automatic[CONFIG_KEYS_MAX]; /* given as "auto", whatever that came to */
    uint8_t *dataset_origins;        /* ORIGIN_BEFORE also for what is not given at all */
    /* The plan by steps; sections[0] is `plan`. */
    struct plan_section *sections;
    uint32_t section_count; /* > 0 */
    /* The config as a whole from sections[1], ... on, NULL behind the last; each with the origins
     * of what its section changes. Corpus, sections and later ones are the first's. */
    struct config **later;
};

struct config_override {
    const char *key; /* "section.key", or "dataset.NAME.path", ... */
    const char *value;
};

/* Reads `path` (NULL: no file), applies environment and `overrides` (later ones win), resolves
 * defaults, checks relations. The caller destroys the config with config_destroy (NULL is fine).
 * -EINVAL with file and line (or variable, or flag), section.key, the value and what is allowed;
 * -ENOENT, -EACCES, ... for the file; -ENOMEM. A value that is overridden is not looked at. */
int config_load(const char *path, const struct config_override *overrides, size_t override_count,
                struct config **out, struct error *error);
void config_destroy(struct config *config);

/* The config as it stands for a step, or in a section. */
const struct config *config_at(const struct config *config, uint64_t step);
const struct config *config_of_section(const struct config *config, uint32_t section);

/* Steps planned and read ahead of a rank that stands at `step`: each as far ahead as the section
 * that it is in says, and no step before those in front of it. */
uint32_t config_ahead_steps(const struct config *config, uint64_t step);

/* One effective setting, in table order, datasets last: "section.key" ("dataset.NAME.path"), the
 * value as it would be written in the file with everything derived filled in, and "default",
 * "file", "environment" or "flag"; then likewise what each section sets ("file") and what follows
 * from that ("default"). Written back as a file, these settings load as the same config. */
struct config_setting {
    char name[CONFIG_DATASET_NAME_BYTES + 24];
    char value[CONFIG_VALUE_BYTES];
    uint64_t from;      /* first step for which it holds, in the section [from STEP]; 0: the base */
    const char *origin; /* static */
    bool automatic; /* "auto" was given, and is still the value where the config does not decide */
    bool plan;      /* part of the stream's identity */
};
size_t config_setting_count(const struct config *config);
void config_setting(const struct config *config, size_t i, struct config_setting *out);

/* The canonical text of the stream's identity and history, one "name = value" a line: the algorithm
 * version, all plan settings by table, the datasets' weights in order (a latency profile by its
 * hash, and only where there is one); then for every section that changes the plan a line "[from
 * STEP]" and the settings whose values are new, derived ones too, with the fingerprints of the
 * datasets that are appended (`catalog`, of this config; NULL: without them). The store keeps it;
 * see history.h. Caller frees. NULL with the reason in `error`. */
char *config_plan_text(const struct config *config, const struct catalog *catalog,
                       struct error *error);

/* Job digest: what may never change: fingerprint of the first dataset_job_count datasets, seed,
 * order, window, part limit, overlong rule, algorithm version. XXH3-128, big endian, over u64
 * little-endian fields. */
void config_job_digest(const struct config *config, const uint8_t corpus_fingerprint[16],
                       uint8_t out[16]);

/* The example config with every key, its default, unit and reason; one call per line, without the
 * newline. */
void config_print_example(void (*line)(const char *text, void *context), void *context);

/* Opens all datasets as the config says they are (catalog_open_as). With `keep` the folder of
 * derived files is made and used; without, used if it is there for this user. */
int config_open_catalog(const struct config *config, bool keep, const struct dataset_watch *watch,
                        struct catalog **out, struct error *error);

/* The folder of derived files, whether it is there or not. */
void config_derived_folder(const struct config *config, char out[CONFIG_PATH_BYTES + 16]);

/* Slot size for these options: 64-byte header, tokens_max tokens, one successor for every part
 * that its document goes on after; page-rounded. token_bytes is catalog_token_bytes: the catalog
 * must be open first. */
uint64_t config_slot_bytes(const struct plan_options *plan, uint32_t token_bytes);

#endif
