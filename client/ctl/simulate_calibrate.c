/* simulate_calibrate: the scales of step times, from what the command line says was measured. */
#include "client/ctl/simulate.h"
#include "client/ctl/timing_log.h"

#include <stdlib.h>

#define CALIBRATION_STEPS_MAX 4000u

/* Over plain packing of the first seed. */
static int calibrate_by_imbalance(struct simulation *simulation, struct trial *trial,
                                  const struct step_time_model *model, struct calibration *out,
                                  struct error *error) {
    uint64_t steps = simulation->options.steps;
    struct step_load *loads = NULL;
    int64_t count = measure_loads(
        trial, steps < CALIBRATION_STEPS_MAX ? steps : CALIBRATION_STEPS_MAX, &loads, error);
    if (count < 0) {
        return (int)count;
    }
    int rc = calibrate_imbalance(model, loads, (uint32_t)count, simulation->imbalance_ppm, out,
                                 error);
    free(loads);
    return rc;
}

static int calibrate_by_log(struct simulation *simulation, const struct trial *trial,
                            const struct step_time_model *model, struct calibration *out,
                            struct error *error) {
    struct calibrate_sample *samples = NULL;
    uint32_t count = 0;
    int rc = timing_log_read(simulation->log, &trial->config->plan,
                             &stream_model(&trial->stream)->tiles, &samples, &count, error);
    if (rc == 0) {
        rc = calibrate_log(model, samples, count, out, &simulation->fit_ppm, error);
    }
    free(samples);
    return rc;
}

static int calibrate_over(struct simulation *simulation, struct trial *trial,
                          struct calibration *out, struct error *error) {
    struct step_time_model model;
    int rc = measure_model(trial, &simulation->options.times, &model, error);
    if (rc < 0) {
        return rc;
    }
    if (simulation->log != NULL) {
        return calibrate_by_log(simulation, trial, &model, out, error);
    }
    if (simulation->imbalance_ppm > 0) {
        return calibrate_by_imbalance(simulation, trial, &model, out, error);
    }
    return calibrate_times(&model, &stream_model(&trial->stream)->tiles, trial->config->plan.window,
                           simulation->short_ns, simulation->long_ns, out, error);
}

int simulate_calibrate(struct simulation *simulation, struct error *error) {
    struct step_time_options *times = &simulation->options.times;
    const char *policy = simulation->log != NULL ? NULL : "plain@per-sequence";
    struct calibration found;
    struct trial trial;
    if (simulation->log == NULL && simulation->imbalance_ppm == 0 && simulation->short_ns == 0) {
        return 0;
    }
    int rc = trial_open(&trial, &simulation->scenario, policy, simulation->seeds[0], error);
    if (rc == 0) {
        rc = calibrate_over(simulation, &trial, &found, error);
    }
    if (rc == 0) {
        times->attention_permille = found.attention_permille;
        times->linear_permille = found.linear_permille;
        simulation->calibrated = true;
    }
    trial_close(&trial);
    return rc < 0 ? error_prefix(error, "calibration") : 0;
}
