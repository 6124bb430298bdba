/* calibrate: the scales of step_time's attention and linear parts, from what was measured.
 *
 * The scales are permille of what the model's rates give. They cannot absorb a schedule,
 * recomputation or exposed communication that is declared wrongly: compare a predicted step with a
 * measured one before believing either. */
#ifndef BALLAST_PLANNER_CALIBRATE_H
#define BALLAST_PLANNER_CALIBRATE_H

#include "planner/step_time.h"

#define CALIBRATE_DOCUMENTS   32u /* of the window of short ones */
#define CALIBRATE_SAMPLES_MIN 10u
#define CALIBRATE_SAMPLES_MAX 65536u

struct calibration {
    uint32_t attention_permille;
    uint32_t linear_permille;
};

/* From the forward times of one middle stage (no embedding, no head) after warm-up, both laid out
 * per sequence: a full window of CALIBRATE_DOCUMENTS equal documents, and a full window that is one
 * document. Solves
 *     linear * l + attention * a(short) + c = short_ns
 *     linear * l + attention * a(long)  + c = long_ns
 * with the unscaled l and a of the model's fullest stage and its exposed communication c. -EINVAL
 * if the window does not divide or the long document is not slower; -ERANGE if a scale leaves
 * 300..4000: shape or mesh are then not those that were measured. */
int calibrate_times(const struct step_time_model *model, const struct tile_model *tiles,
                    uint32_t window, uint64_t short_ns, uint64_t long_ns, struct calibration *out,
                    struct error *error);

/* One micro-batch of a log. */
struct calibrate_sample {
    struct step_load load;
    uint64_t forward_ns; /* of one middle stage */
};

/* From a log: the scales with the least squares of
 *     forward_ns - (linear * l + attention * a + c)
 * l, a and c as above. `fit_ppm` is R2, the share of the times' variance that they explain.
 * -EINVAL for too few or too many samples, or such whose attention and linear parts rise together;
 * -ERANGE if R2 is under 0.8 or a scale leaves 300..4000. */
int calibrate_log(const struct step_time_model *model, const struct calibrate_sample *samples,
                  uint32_t count, struct calibration *out, uint32_t *fit_ppm, struct error *error);

/* From an imbalance alone: the smallest attention_permille at which the mean of micro_batch_ppm
 * over `steps` (> 0) steps of N loads each is at least `target_ppm`, linear as it stands. Needs
 * 4,000 steps for +-0.01. -ERANGE when not even 100000 does. */
int calibrate_imbalance(const struct step_time_model *model, const struct step_load *loads,
                        uint32_t steps, uint64_t target_ppm, struct calibration *out,
                        struct error *error);

#endif
