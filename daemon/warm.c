/* warm: see warm.h. */
#include "daemon/warm.h"

#include "corpus/derived.h"
#include "corpus/thread.h"
#include "daemon/daemon.h"
#include "daemon/failpoint.h"
#include "daemon/job.h"
#include "daemon/log.h"
#include "daemon/notify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The thread */

static int warm_progress(void *context, uint32_t ppm) {
    struct warm *warm = context;
    atomic_store(&warm->ppm, ppm);
    return atomic_load(&warm->cancelled) ? -ECANCELED : 0;
}

/* Before it is used: nothing of it is, if nobody else's. Not worth a start that fails. */
static void warm_prune(const struct config *config) {
    char folder[CONFIG_PATH_BYTES + 16];
    struct derived_usage usage;
    struct error error;
    config_derived_folder(config, folder);
    if (derived_prune(folder, config->derived_days, true, &usage, &error) < 0) {
        log_line(LOG_WARNING, "derived", "stale files stay: %s", error.text);
    } else if (usage.stale_files > 0) {
        log_line(LOG_NOTICE, "derived",
                 usage.removed ? "stale files were removed files=%" PRIu64 " bytes=%" PRIu64
                               : "stale files stay, the folder is in use files=%" PRIu64
                                 " bytes=%" PRIu64,
                 usage.stale_files, usage.stale_bytes);
    }
}

static int warm_corpus(struct daemon *daemon, struct error *error) {
    const struct config *config = daemon->config;
    const struct dataset_watch watch = {.progress = warm_progress, .context = &daemon->warm};
    warm_prune(config);
    int code = config_open_catalog(config, true, &watch, &daemon->catalog, error);
    if (code == 0) {
        code = catalog_fingerprint(daemon->catalog, config->dataset_job_count, daemon->fingerprint,
                                   error);
    }
    if (code == 0) {
        code = corpus_source_init(&daemon->source, daemon->catalog, &config->source, error);
    }
    if (code == 0) {
        daemon->schedule = schedule_create(config->sections, config->section_count,
                                           &daemon->source.source, error);
        code = daemon->schedule == NULL ? error->code : 0;
    }
    return code;
}

static int warm_identify(struct daemon *daemon, struct error *error) {
    int code = job_identity_init(&daemon->identity, DAEMON_VERSION_TEXT, daemon->config,
                                 daemon->catalog, error);
    memcpy(daemon->job.job_digest, daemon->identity.job_digest, sizeof daemon->job.job_digest);
    return code;
}

static int warm_fork(struct daemon *daemon, const struct store_job *job, struct error *error) {
    uint64_t replanned;
    int code = recover_fork(daemon->store, job, daemon->schedule, &daemon->source,
                            DAEMON_UNDURABLE_MAX, &replanned, error);
    if (code == 1) {
        log_line(LOG_NOTICE, "config",
                 "the job goes on by other sections step=%" PRIu64 " planned_anew=%" PRIu64,
                 store_fork(daemon->store), replanned);
    }
    return code < 0 ? code : 0;
}

static int warm_store(struct daemon *daemon, struct error *error) {
    int code = warm_identify(daemon, error);
    if (code < 0) {
        return code;
    }
    uint32_t count = daemon->config->dataset_count;
    struct store_dataset *datasets = calloc(count, sizeof *datasets);
    struct store_job job = {.plan_text = daemon->identity.plan_text,
                            .version = DAEMON_VERSION_TEXT,
                            .datasets = datasets,
                            .dataset_count = count,
                            .dataset_job_count = daemon->config->dataset_job_count};
    code = datasets == NULL ? error_set(error, -ENOMEM, "out of memory")
                            : job_datasets(daemon->catalog, count, datasets, error);
    if (code < 0) {
        free(datasets);
        return code;
    }
    memcpy(job.job_digest, daemon->identity.job_digest, sizeof job.job_digest);
    log_line(LOG_INFO, "store", "opening directory=%s sqlite=%s", daemon->config->state_dir,
             store_library_version());
    code = store_attach(daemon->store, &job, error);
    if (code == 0) {
        code = warm_fork(daemon, &job, error);
    }
    free(datasets);
    if (code == 0) {
        code = FAILPOINT_ERROR(store_opened, error);
    }
    return code < 0 ? code
                    : recover(daemon->store, daemon->schedule, &daemon->source, &daemon->recovered,
                              error);
}

/* How files are read: manifests first, for they are what makes the rest sure. */
static int warm_files(struct daemon *daemon, struct error *error) {
    const struct config *config = daemon->config;
    struct error why;
    int manifests = catalog_use_manifests(daemon->catalog, config->reader_manifest, error);
    if (manifests < 0) {
        return manifests;
    }
    if (config->reader_recheck) {
        catalog_recheck(daemon->catalog);
    }
    bool again = config->source.epochs != 1;
    uint32_t direct = catalog_read_direct(daemon->catalog, config->reader_direct, again, &why);
    if (why.code < 0) {
        log_line(LOG_WARNING, "reader",
                 "reading through the page cache what cannot be read past "
                 "it: %s",
                 why.text);
    }
    uint32_t mapped = config->reader_mapped ? catalog_read_mapped(daemon->catalog) : 0;
    log_line(LOG_INFO, "reader", "files datasets=%u direct=%u mapped=%u manifests=%d",
             catalog_count(daemon->catalog), direct, mapped, manifests);
    return 0;
}

static void *warm_run(void *argument) {
    struct warm *warm = argument;
    struct daemon *daemon = warm->daemon;
    warm->code = warm_corpus(daemon, &warm->error);
    if (warm->code == 0 && atomic_load(&warm->cancelled)) {
        warm->code = error_set(&warm->error, -ECANCELED, "stopped while warming");
    }
    if (warm->code == 0) {
        atomic_store(&warm->stage, WARM_STORE);
        warm->code = warm_store(daemon, &warm->error);
    }
    if (warm->code == 0) {
        warm->code = warm_files(daemon, &warm->error);
    }
    atomic_store(&warm->stage, WARM_OVER);
    (void)uv_async_send(&daemon->woken);
    return NULL;
}

/* The loop */

int warm_start(struct warm *warm, struct daemon *daemon, struct error *error) {
    warm->daemon = daemon;
    int code = thread_start(&warm->thread, warm_run, warm, "the thread that opens the corpus",
                            error);
    if (code < 0) {
        return code;
    }
    warm->running = true;
    return 0;
}

bool warm_over(const struct warm *warm) {
    return atomic_load(&warm->stage) == WARM_OVER;
}

int warm_finish(struct warm *warm, struct error *error) {
    (void)pthread_join(warm->thread, NULL);
    warm->running = false;
    if (warm->code < 0) {
        *error = warm->error;
    }
    return warm->code;
}

void warm_cancel(struct warm *warm) {
    struct error error;
    if (warm->running) {
        atomic_store(&warm->cancelled, true);
        (void)warm_finish(warm, &error);
    }
}

uint32_t warm_percent(const struct warm *warm) {
    uint32_t percent = atomic_load(&warm->ppm) / 10000;
    return percent < 99 ? percent : 99;
}

void warm_extend(struct warm *warm) {
    enum warm_stage stage = atomic_load(&warm->stage);
    uint64_t now = (uint64_t)stage << 32 | atomic_load(&warm->ppm);
    if (now + 1 == warm->told) {
        return;
    }
    warm->told = now + 1;
    notify_send("EXTEND_TIMEOUT_USEC=%llu\nSTATUS=warming, %u %%",
                stage == WARM_STORE ? WARM_RECOVER_EXTEND_US : WARM_EXTEND_US, warm_percent(warm));
}
