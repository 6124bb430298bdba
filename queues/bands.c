/* bands: release decisions over the one list of waiting documents.
 *
 * A band is a FIFO queue because the list is in arrival order: its first N members are its N
 * oldest. Nothing is kept between calls. */
#include "queues/bands.h"

#include <assert.h>

uint32_t bands_of(const struct bands_options *options, uint32_t length) {
    uint32_t band = BAND_NONE;
    for (uint32_t i = 0; i < options->bands && options->length_min[i] <= length; i++) {
        band = i;
    }
    return band;
}

static void bands_check(const struct bands_options *options) {
    assert(options->bands <= BANDS_MAX && options->group > 0 && options->age_max > 0);
    for (uint32_t i = 0; i < options->bands; i++) {
        assert(options->length_min[i] > (i == 0 ? 0 : options->length_min[i - 1]));
    }
}

/* How many documents each band lets go by its size. */
static void bands_quotas(const struct bands_options *options, const uint32_t *lengths,
                         uint32_t waiting, uint32_t quotas[BANDS_MAX]) {
    uint32_t counts[BANDS_MAX] = {0};
    for (uint32_t i = 0; i < waiting; i++) {
        uint32_t band = bands_of(options, lengths[i]);
        assert(band != BAND_NONE);
        counts[band]++;
    }
    for (uint32_t band = 0; band < options->bands; band++) {
        uint32_t groups = counts[band] / options->group;
        if (options->release == BANDS_RELEASE_ONCE && groups > 1) {
            groups = 1;
        }
        quotas[band] = groups * options->group;
    }
}

uint32_t bands_decide(const struct bands_options *options, const uint32_t *lengths,
                      const uint64_t *nominal_steps, uint32_t waiting, uint64_t step,
                      uint8_t *verdicts) {
    bands_check(options);
    uint32_t quotas[BANDS_MAX] = {0};
    bands_quotas(options, lengths, waiting, quotas);
    uint32_t leaving = 0;
    for (uint32_t i = 0; i < waiting; i++) {
        uint32_t band = bands_of(options, lengths[i]);
        uint64_t age = step > nominal_steps[i] ? step - nominal_steps[i] : 0;
        if (quotas[band] > 0) {
            quotas[band]--;
            verdicts[i] = BAND_RELEASED;
        } else {
            verdicts[i] = age >= options->age_max ? BAND_DUE : BAND_WAITS;
        }
        leaving += verdicts[i] != BAND_WAITS;
    }
    return leaving;
}
