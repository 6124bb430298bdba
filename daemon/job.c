/* job: see job.h. */
#include "daemon/job.h"

#include "planner/planner.h"

#include <stdlib.h>

int job_datasets(const struct catalog *catalog, uint32_t count, struct store_dataset *out,
                 struct error *error) {
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        const struct dataset *dataset = catalog_dataset(catalog, i);
        out[i] = (struct store_dataset){.name = dataset_name(dataset),
                                        .dtype = dataset_dtype(dataset),
                                        .documents = dataset_documents(dataset),
                                        .tokens = dataset_tokens(dataset),
                                        .bin_bytes = dataset_bin_bytes(dataset)};
        code = dataset_fingerprint(dataset, out[i].fingerprint, error);
    }
    return code;
}

int job_identity_init(struct blob *out, const char *writer, const struct config *config,
                      const struct catalog *catalog, struct error *error) {
    uint32_t count = config->dataset_job_count;
    uint8_t fingerprint[16];
    struct blob_dataset *datasets = calloc(count, sizeof *datasets);
    char *plan_text = config_plan_text(config, catalog, error);
    *out = (struct blob){.writer = writer,
                         .algorithm = PLAN_ALGORITHM_VERSION,
                         .plan_text = plan_text,
                         .datasets = datasets,
                         .dataset_count = count};
    if (datasets == NULL || plan_text == NULL) {
        return plan_text == NULL ? error->code : error_set(error, -ENOMEM, "out of memory");
    }
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        const struct dataset *dataset = catalog_dataset(catalog, i);
        datasets[i].name = dataset_name(dataset);
        code = dataset_fingerprint(dataset, datasets[i].fingerprint, error);
    }
    if (code == 0) {
        code = catalog_fingerprint(catalog, count, fingerprint, error);
    }
    if (code == 0) {
        config_job_digest(config, fingerprint, out->job_digest);
    }
    return code;
}

void job_identity_deinit(struct blob *identity) {
    free((char *)identity->plan_text);
    free((struct blob_dataset *)identity->datasets);
    *identity = (struct blob){0};
}
