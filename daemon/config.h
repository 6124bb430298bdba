/* config: the INI file, its table of keys, and what it says.
 *
 * One table (config.c) holds every key: section.key, type, range, default, unit, reason, and
 * whether the key is part of the plan (its change changes the stream) or only of this node. Flags
 * override environment (BALLAST_SECTION_KEY), which overrides the file, which overrides the
 * default; unknown sections and keys are errors with file and line. deploy/ballast.conf.example is
 * printed from the same table (`ballastd
 * --print-config`), so it cannot drift. Shows neither uv nor sqlite3. */
#ifndef BALLAST_DAEMON_CONFIG_H
#define BALLAST_DAEMON_CONFIG_H

#include "corpus/catalog.h"
#include "corpus/reader.h"
#include "corpus/source.h"
#include "planner/planner.h"

#include <stddef.h>

#define CONFIG_PATH_BYTES   512u
#define CONFIG_UIDS_MAX     64u
#define CONFIG_REPLICAS_MAX 4096u

struct config {
    /* [corpus] and [dataset NAME] */
    struct catalog_entry *datasets; /* name, prefix and weight owned by the config */
    uint32_t dataset_count;
    struct corpus_source_options source; /* part_limit filled from plan */
    /* [job] seed is in source.order.seed; [plan] [parallel] [bands] [queues] [sharding] [model] */
    struct plan_options plan; /* resolved */
    /* [node] */
    uint8_t *replicas_local; /* replicas_local[dp] is 1 for the replicas this node serves */
    uint32_t replicas_local_count;
    /* [daemon] */
    char socket_path[CONFIG_PATH_BYTES]; /* control; the data socket is this + ".data" */
    char state_dir[CONFIG_PATH_BYTES];
    uint32_t ahead_steps; /* steps planned and read ahead of the fastest rank */
    uint32_t lease_ms;    /* silence after which a rank's claims end */
    uint32_t
        uids_serve[CONFIG_UIDS_MAX]; /* may call Loader; the daemon's own uid and root always */
    uint32_t uids_serve_count;
    uint32_t uids_admin[CONFIG_UIDS_MAX]; /* may call Admin; likewise */
    uint32_t uids_admin_count;
    int log_level; /* 3 error .. 7 debug, as syslog */
    /* [reader] */
    enum reader_backend reader_backend;
    struct reader_options reader;
    bool payload_hashes;
    /* [slab] */
    uint32_t slots;      /* resolved: per node */
    uint64_t slot_bytes; /* resolved: header and payload, page-rounded */
    /* [limits] */
    uint32_t connections_max;
    uint32_t credits_max;    /* per stream */
    uint32_t steps_retained; /* in the store */
    /* source of each setting, parallel to the table; see config_setting */
    uint8_t *origins;
};

struct config_override {
    const char *key; /* "section.key" */
    const char *value;
};

/* Reads `path`, applies environment and `overrides` (later ones win), resolves defaults, checks
 * relations. The caller destroys the config with config_destroy (NULL is fine). */
int config_load(const char *path, const struct config_override *overrides, size_t override_count,
                struct config **out, struct error *error);
void config_destroy(struct config *config);

/* One effective setting, in table order, datasets last: "section.key", the value as it would be
 * written in the file, and "default", "file", "environment" or "flag". */
struct config_setting {
    const char *name;
    char value[CONFIG_PATH_BYTES];
    const char *origin;
    bool plan; /* part of the stream's identity */
};
size_t config_setting_count(const struct config *config);
void config_setting(const struct config *config, size_t i, struct config_setting *out);

/* The canonical text of all plan settings (one "name = value" a line): the store keeps it, and a
 * difference at restart is refused by name. Caller frees. NULL when out of memory. */
char *config_plan_text(const struct config *config);

/* Job digest: what may never change: fingerprint of the datasets, seed, order, window, part limit,
 * overlong rule, algorithm version. XXH3-128, big endian. */
void config_job_digest(const struct config *config, const uint8_t corpus_fingerprint[16],
                       uint8_t out[16]);

/* The example config with every key, its default, unit and reason. Static memory. */
void config_print_example(void (*line)(const char *text, void *context), void *context);

/* Slot size for these options: 64-byte header, tokens_max tokens, successors; page-rounded. */
uint64_t config_slot_bytes(const struct plan_options *plan, uint32_t token_bytes);

#endif
