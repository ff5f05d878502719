/* The options that all optimizers share, the values that follow from the run and their limits, and
 * the learning rate. */
#include "optim/optim.h"

#include "tessera/check.h"

#include <math.h>

#define OPTIM_FIELD(field) offsetof(struct tess_optim_options, field)

const struct tess_option tess_optim_option_table[] = {
    TESS_ROW_TOPIC("optimizer"),
    {"optimizer", TESS_OPTION_STRING, OPTIM_FIELD(name), "momentum", 0, 0, NULL,
     "update rule; tessera help lists them"},
    {"learning-rate", TESS_OPTION_REAL, OPTIM_FIELD(learning_rate), "0.05", 0, 1000, NULL,
     "learning rate at the top of the schedule"},
    {"base-lr", TESS_OPTION_REAL, OPTIM_FIELD(base_rate), "0", 0, 1000, NULL,
     "learning rate for a batch of --base-batch, scaled to --batch-size by --lr-scale; in place of "
     "--learning-rate; 0: not used"},
    {"lr-scale", TESS_OPTION_CHOICE, OPTIM_FIELD(rate_scale), "none", 0, 0, "none|linear|sqrt",
     "how --base-lr grows with the batch: k times the batch, rate times 1, k or the root of k"},
    {"base-batch", TESS_OPTION_INT, OPTIM_FIELD(base_batch), "0", 0, 1 << 24, NULL,
     "batch that --base-lr is meant for; 0: batch-size / ranks"},
    {"momentum", TESS_OPTION_REAL, OPTIM_FIELD(momentum), "0.9", 0, 1, NULL,
     "share of the last update that is kept; below 1"},
    {"nesterov", TESS_OPTION_BOOL, OPTIM_FIELD(nesterov), "off", 0, 0, NULL, "Nesterov's momentum"},
    {"beta1", TESS_OPTION_REAL, OPTIM_FIELD(beta1), "-1", -1, 1, NULL,
     "decay of the first moment; -1: the optimizer's own default (tessera help)"},
    {"beta2", TESS_OPTION_REAL, OPTIM_FIELD(beta2), "-1", -1, 1, NULL,
     "decay of the second moment; -1: the optimizer's own default"},
    {"epsilon", TESS_OPTION_REAL, OPTIM_FIELD(epsilon), "-1", -1, 1, NULL,
     "added to the root of the second moment; -1: the optimizer's own default"},
    {"grad-averaging", TESS_OPTION_BOOL, OPTIM_FIELD(grad_averaging), "off", 0, 0, NULL,
     "novograd: the first moment is an average, m = beta1 m + (1 - beta1) g, not a sum"},
    {"weight-decay", TESS_OPTION_REAL, OPTIM_FIELD(weight_decay), "0", 0, 10, NULL,
     "weight decay: L2 for sgd, momentum and novograd, decoupled for adamw and lamb; not for "
     "biases"},
    {"clip", TESS_OPTION_REAL, OPTIM_FIELD(clip), "0", 0, 1e30, NULL,
     "scale the gradient down to this global norm where it is greater; 0: off"},
    {"schedule", TESS_OPTION_CHOICE, OPTIM_FIELD(schedule), "constant", 0, 0,
     "constant|linear|step|cosine", "course of the learning rate after the warm-up"},
    {"warmup", TESS_OPTION_REAL, OPTIM_FIELD(warmup), "0", 0, 1e6, NULL,
     "epochs of linear warm-up; 0: none"},
    {"warmup-start", TESS_OPTION_REAL, OPTIM_FIELD(warmup_start), "0", -1, 1, NULL,
     "learning rate at the first step of the warm-up, as a factor; -1: one over the ranks"},
    {"step-epochs", TESS_OPTION_REAL, OPTIM_FIELD(step_epochs), "30", 0, 1e6, NULL,
     "schedule step: epochs between two changes"},
    {"step-factor", TESS_OPTION_REAL, OPTIM_FIELD(step_factor), "0.1", 0, 1, NULL,
     "schedule step: factor of each change"},
    {"final-factor", TESS_OPTION_REAL, OPTIM_FIELD(final_factor), "0", 0, 1, NULL,
     "schedules linear and cosine: learning rate at the end of the run, as a factor"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

enum options_rate_scale { OPTIONS_RATE_NONE, OPTIONS_RATE_LINEAR, OPTIONS_RATE_ROOT };

/* False for NaN too. */
static bool options_within(double value, double min, double max)
{
    return value >= min && value <= max;
}

/* A moment's decay or epsilon: -1 chooses the optimizer's own. */
static enum tess_status options_check_own(const char *name, double value, double above,
                                          double below)
{
    if (value == -1 || (value >= above && value < below))
        return TESS_OK;
    TESS_FAIL(TESS_ERR_USAGE,
              "--%s %g: use -1 for the optimizer's own default or at least %g and less than %g",
              name, value, above, below);
}

void tess_optim_resolve(struct tess_optim_options *options, int64_t batch_size, int64_t ranks)
{
    const double base =
        options->base_batch > 0 ? (double)options->base_batch : (double)batch_size / (double)ranks;
    const double times = (double)batch_size / base;
    if (options->base_rate > 0)
        options->learning_rate =
            options->base_rate * (options->rate_scale == OPTIONS_RATE_LINEAR ? times
                                  : options->rate_scale == OPTIONS_RATE_ROOT ? sqrt(times)
                                                                             : 1);
    if (options->warmup_start == -1)
        options->warmup_start = 1 / (double)ranks;
}

enum tess_status tess_optim_check(const struct tess_optim_options *options)
{
    if (options->base_rate > 0 && !options_within(options->learning_rate, 0, 1000))
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--base-lr %g becomes a learning rate of %g when it is scaled to the batch: it must "
            "end in 0 to 1000; use a lower --base-lr, a greater --base-batch or another --lr-scale",
            options->base_rate, options->learning_rate);
    if (!(options->momentum >= 0 && options->momentum < 1))
        TESS_FAIL(TESS_ERR_USAGE, "--momentum %g: use at least 0 and less than 1",
                  options->momentum);
    TESS_TRY(options_check_own("beta1", options->beta1, 0, 1));
    TESS_TRY(options_check_own("beta2", options->beta2, 0, 1));
    /* A smaller one is 0 in f32 beside nothing, and 0 divides by 0 where a gradient is 0. */
    TESS_TRY(options_check_own("epsilon", options->epsilon, 1e-30, 1));
    if (!options_within(options->warmup_start, 0, 1))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--warmup-start %g: the warm-up begins at a share of the learning rate, 0 to 1",
                  options->warmup_start);
    if (!options_within(options->warmup, 0, 1e6))
        TESS_FAIL(TESS_ERR_USAGE, "--warmup %g: expected a number of epochs, 0 to 1e6",
                  options->warmup);
    if (options->schedule == TESS_SCHEDULE_STEP && !(options->step_epochs > 0))
        TESS_FAIL(TESS_ERR_USAGE, "--step-epochs %g: schedule step needs a positive number",
                  options->step_epochs);
    return TESS_OK;
}

double tess_schedule_warmup(const struct tess_optim_options *options, int64_t step_count,
                            double steps_per_epoch)
{
    const double steps = options->warmup * steps_per_epoch;
    return steps > (double)step_count ? (double)step_count / 2 : steps;
}

/*
 *     rate  |      ______                  constant, linear, cosine: the decay begins after the
 *           |     /      \___   step       warm-up and ends with the run; step counts epochs
 *           |    /           \___          from the start of the run
 *           |___/_________________ step
 *            warmup
 */
double tess_schedule_rate(const struct tess_optim_options *options, int64_t step,
                          int64_t step_count, double steps_per_epoch)
{
    const double warmup_steps = tess_schedule_warmup(options, step_count, steps_per_epoch);
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
