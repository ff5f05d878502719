/*
 * Learning-rate schedules. Pure arithmetic.
 *
 *     rate  |      ______                  constant, linear, cosine: the decay begins after the
 *           |     /      \___   step       warm-up and ends with the run; step counts epochs
 *           |    /           \___          from the start of the run
 *           |___/_________________ step
 *            warmup
 */
#include "optim/optim.h"

#include <math.h>

double tess_schedule_rate(const struct tess_optim_options *options, int64_t step,
                          int64_t step_count, double steps_per_epoch)
{
    const double warmup_steps = options->warmup * steps_per_epoch;
    const double final = options->final_factor;
    const double at = (double)step;
    if (at < warmup_steps) {
        const double start = options->warmup_start;
        return options->learning_rate * (start + (1 - start) * (at / warmup_steps));
    }
    /* Where the decay stands, 0 .. 1; 1 only once the run is over. */
    const double left = (double)step_count - warmup_steps;
    const double progress = left > 0 ? fmin((at - warmup_steps) / left, 1) : 1;
    double factor = 1;
    switch ((enum tess_rate_schedule)options->schedule) {
    case TESS_SCHEDULE_CONSTANT:
        break;
    case TESS_SCHEDULE_LINEAR:
        factor = 1 + (final - 1) * progress;
        break;
    case TESS_SCHEDULE_STEP:
        factor = pow(options->step_factor, floor(at / (options->step_epochs * steps_per_epoch)));
        break;
    case TESS_SCHEDULE_COSINE: /* Loshchilov and Hutter 2017, equation 5, without restarts */
        factor = final + (1 - final) * (0.5 * (1 + cos(M_PI * progress)));
        break;
    }
    return options->learning_rate * factor;
}
