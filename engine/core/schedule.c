/*
 * Learning-rate schedules, and the limits that join optimizer options. Pure arithmetic.
 *
 *     rate  |      ______                  constant, linear, cosine: the decay begins after the
 *           |     /      \___   step       warm-up and ends with the run; step counts epochs
 *           |    /           \___          from the start of the run
 *           |___/_________________ step
 *            warmup
 */
#include "core/optim.h"

#include "tessera/check.h"

#include <math.h>

/* In the order of the option's choices. */
enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_STEP, SCHEDULE_COSINE };

enum schedule_rate_scale { RATE_NONE, RATE_LINEAR, RATE_ROOT };

/* False for NaN too. */
static bool schedule_within(double value, double min, double max)
{
    return value >= min && value <= max;
}

/* A moment's decay or epsilon: -1 chooses the optimizer's own. */
static enum tess_status schedule_check_own(const char *name, double value, double above,
                                           double below)
{
    if (value == -1 || (value >= above && value < below))
        return TESS_OK;
    TESS_FAIL(TESS_ERR_USAGE,
              "--%s %g: use -1 for the optimizer's own default or at least %g and "
              "less than %g",
              name, value, above, below);
}

void tess_optim_resolve(struct tess_optim_options *options, int64_t batch_size, int64_t ranks)
{
    const double base =
        options->base_batch > 0 ? (double)options->base_batch : (double)batch_size / (double)ranks;
    const double times = (double)batch_size / base;
    if (options->base_rate > 0)
        options->learning_rate =
            options->base_rate * (options->rate_scale == RATE_LINEAR ? times
                                  : options->rate_scale == RATE_ROOT ? sqrt(times)
                                                                     : 1);
    if (options->warmup_start == -1)
        options->warmup_start = 1 / (double)ranks;
}

enum tess_status tess_optim_check(const struct tess_optim_options *options, double epochs)
{
    if (!schedule_within(options->base_rate, 0, 1000))
        TESS_FAIL(TESS_ERR_USAGE, "--base-lr %g: use 0 (not given) to 1000", options->base_rate);
    if (options->base_batch < 0)
        TESS_FAIL(TESS_ERR_USAGE, "--base-batch %lld: use 0 (one rank's share) or a batch",
                  (long long)options->base_batch);
    if (options->base_rate > 0 && !schedule_within(options->learning_rate, 0, 1000))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--base-lr %g becomes a learning rate of %g when it is scaled to the batch: it "
                  "must end in 0 to 1000; use a lower --base-lr, a greater --base-batch or another "
                  "--lr-scale",
                  options->base_rate, options->learning_rate);
    if (!schedule_within(options->learning_rate, 0, 1000))
        TESS_FAIL(TESS_ERR_USAGE, "--learning-rate %g: use 0 to 1000", options->learning_rate);
    if (!(options->momentum >= 0 && options->momentum < 1))
        TESS_FAIL(TESS_ERR_USAGE, "--momentum %g: use at least 0 and less than 1",
                  options->momentum);
    TESS_TRY(schedule_check_own("beta1", options->beta1, 0, 1));
    TESS_TRY(schedule_check_own("beta2", options->beta2, 0, 1));
    /* A smaller one is 0 in f32 beside nothing, and 0 divides by 0 where a gradient is 0. */
    TESS_TRY(schedule_check_own("epsilon", options->epsilon, 1e-30, 1));
    if (!schedule_within(options->weight_decay, 0, 10))
        TESS_FAIL(TESS_ERR_USAGE, "--weight-decay %g: use 0 to 10", options->weight_decay);
    if (!schedule_within(options->clip, 0, 1e30))
        TESS_FAIL(TESS_ERR_USAGE, "--clip %g: use 0 (off) or a norm up to 1e30", options->clip);
    if (!schedule_within(options->warmup_start, 0, 1))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--warmup-start %g: the warm-up begins at a share of the learning rate, 0 to 1",
                  options->warmup_start);
    if (!schedule_within(options->warmup, 0, epochs))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--warmup %g: the warm-up is longer than the run of %g epochs: use a shorter "
                  "--warmup or more --epochs",
                  options->warmup, epochs);
    if (options->schedule == SCHEDULE_STEP && !(options->step_epochs > 0))
        TESS_FAIL(TESS_ERR_USAGE, "--step-epochs %g: schedule step needs a positive number",
                  options->step_epochs);
    if (!schedule_within(options->step_factor, 0, 1))
        TESS_FAIL(TESS_ERR_USAGE, "--step-factor %g: use 0 to 1", options->step_factor);
    if (!schedule_within(options->final_factor, 0, 1))
        TESS_FAIL(TESS_ERR_USAGE, "--final-factor %g: use 0 to 1", options->final_factor);
    return TESS_OK;
}

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
    switch ((enum schedule_kind)options->schedule) {
    case SCHEDULE_CONSTANT:
        break;
    case SCHEDULE_LINEAR:
        factor = 1 + (final - 1) * progress;
        break;
    case SCHEDULE_STEP:
        factor = pow(options->step_factor, floor(at / (options->step_epochs * steps_per_epoch)));
        break;
    case SCHEDULE_COSINE: /* Loshchilov and Hutter 2017, equation 5, without restarts */
        factor = final + (1 - final) * (0.5 * (1 + cos(M_PI * progress)));
        break;
    }
    return options->learning_rate * factor;
}
