/* job: see job.h. */
#include "daemon/job.h"

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
