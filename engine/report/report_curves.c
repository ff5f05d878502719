/*
 * Curves of the runs: loss and accuracy, and what is set or decided on the way. Responsible for
 * which curves there are, their thinning and their captions; drawing is report_plot.c's.
 */
#include "report/report_section.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* More points than a picture of this width can show are averaged. */
#define CURVES_POINTS_MAX 240
/* Losses this far apart are read on a logarithmic axis. */
#define CURVES_LOG_RATIO 40

struct curves_plot {
    const char *title, *caption;
    struct tess__axis x, y;
    bool epochs; /* from the epochs' records, else from the steps' */
    int x_field, y_field;
    double factor;     /* from the file's unit to the axis's */
    bool may_be_log;   /* where the numbers are far apart */
    bool only_varying; /* a constant is not drawn */
    double idle;       /* with only_varying: a run that always has this value makes no use of it */
};

static const struct curves_plot curves_plots[] = {
    {.title = "Training loss by step",
     .caption = "How much each run has learned after the same number of optimizer steps: lower is "
                "better. Curves on top of each other are runs with the same arithmetic.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"training loss", TESS__AXIS_LINEAR, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_LOSS,
     .factor = 1,
     .may_be_log = true},
    {.title = "Training loss by time",
     .caption = "The same loss against the clock: what a strategy or a batch size gains in time. "
                "The curve that is lower and further to the left is better.",
     .x = {"time since the start [s]", TESS__AXIS_LINEAR, false},
     .y = {"training loss", TESS__AXIS_LINEAR, false},
     .x_field = TESS__STEP_ELAPSED,
     .y_field = TESS__STEP_LOSS,
     .factor = 1,
     .may_be_log = true},
    {.title = "Validation accuracy by epoch",
     .caption =
         "Share of correct predictions on data that was not trained on, after each pass over the "
         "rest: higher is better. A curve that stays low belongs to a run that has not learned.",
     .x = {"epochs done", TESS__AXIS_LINEAR, true},
     .y = {"validation accuracy [%]", TESS__AXIS_LINEAR, false},
     .epochs = true,
     .x_field = TESS__EPOCH,
     .y_field = TESS__EPOCH_ACCURACY,
     .factor = 100},
    {.title = "Validation loss by epoch",
     .caption = "Loss on data that was not trained on. Where it rises while the training loss "
                "falls, the model overfits.",
     .x = {"epochs done", TESS__AXIS_LINEAR, true},
     .y = {"validation loss", TESS__AXIS_LINEAR, false},
     .epochs = true,
     .x_field = TESS__EPOCH,
     .y_field = TESS__EPOCH_LOSS,
     .factor = 1,
     .may_be_log = true},
    {.title = "Training accuracy by step",
     .caption = "Share of correct predictions in the step's own batch, before the step.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"training accuracy [%]", TESS__AXIS_LINEAR, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_ACCURACY,
     .factor = 100},
    {.title = "Validation accuracy by time",
     .caption = "Time to a given accuracy: follow a horizontal line to the first curve that "
                "crosses it.",
     .x = {"time since the start [s]", TESS__AXIS_LINEAR, false},
     .y = {"validation accuracy [%]", TESS__AXIS_LINEAR, false},
     .epochs = true,
     .x_field = TESS__EPOCH_TIME,
     .y_field = TESS__EPOCH_ACCURACY,
     .factor = 100},
};

static const struct curves_plot curves_control_plots[] = {
    {.title = "Model FLOPs utilisation (MFU)",
     .caption =
         "The model's operations, forward and backward, as a share of what the devices could "
         "do by their datasheets. Work that is done twice and work that is no product do not "
         "count.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"MFU [%]", TESS__AXIS_ZERO, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_MFU,
     .factor = 100,
     .only_varying = true,
     .idle = -1},
    {.title = "Learning rate",
     .caption = "The rate each step was taken with: warm-up is the rise at the beginning, the "
                "schedule the fall after it.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"learning rate", TESS__AXIS_ZERO, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_RATE,
     .factor = 1,
     .only_varying = true,
     .idle = -1},
    {.title = "Loss scale",
     .caption = "The factor that keeps small f16 gradients from becoming zero. It halves when a "
                "gradient overflows, and doubles after enough good steps.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"loss scale (log)", TESS__AXIS_LOG2, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_SCALE,
     .factor = 1,
     .only_varying = true,
     .idle = 1},
    {.title = "Gradients that are zero",
     .caption = "Share of the parameters' gradient elements that are exactly zero: ReLUs that are "
                "off, and in f16 without a loss scale what is too small. A rise to nearly 100 % "
                "means that the network no longer learns.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"zero gradients [%]", TESS__AXIS_ZERO, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_ZEROS,
     .factor = 100,
     .only_varying = true,
     .idle = -1},
    {.title = "Underflow at the loss",
     .caption = "Share of the loss's gradient by the logits that is exactly zero; only the range "
                "of the type causes such zeros. In f16 without a loss scale it grows as the "
                "network becomes confident.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"zeros by the logits [%]", TESS__AXIS_ZERO, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_LOSS_ZEROS,
     .factor = 100,
     .only_varying = true,
     .idle = 0},
    {.title = "Steps skipped",
     .caption = "Steps that changed nothing, because a gradient was infinite or not a number, "
                "counted so far.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"steps skipped", TESS__AXIS_ZERO, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_SKIPPED,
     .factor = 1,
     .only_varying = true,
     .idle = 0},
    {.title = "Gradient norm",
     .caption = "Length of the gradient over all parameters. A rise that does not end is "
                "a sign of divergence.",
     .x = {"step", TESS__AXIS_LINEAR, true},
     .y = {"gradient norm", TESS__AXIS_LINEAR, false},
     .x_field = TESS__STEP,
     .y_field = TESS__STEP_NORM,
     .factor = 1,
     .only_varying = true,
     .idle = -1,
     .may_be_log = true},
};

/* Mean of a piece of one column; NaN when none of it is a number. */
static double curves_mean(const struct tess__rows *rows, size_t from, size_t to, int field)
{
    double sum = 0;
    size_t count = 0;
    for (size_t i = from; i < to; i++) {
        double value = tess__row(rows, i, field);
        if (isnan(value))
            continue;
        sum += value;
        count++;
    }
    return count > 0 ? sum / (double)count : NAN;
}

/* *count_out stays 0 when the run has nothing to draw. */
static enum tess_status curves_make(struct tess__report *report, const struct curves_plot *plot,
                                    const struct tess__report_run *run, struct tess__curve *curve)
{
    const struct tess__rows *rows = plot->epochs ? &run->epoch : &run->step;
    size_t points = rows->count < CURVES_POINTS_MAX ? rows->count : CURVES_POINTS_MAX, finite = 0;
    double *x = tess__report_alloc(report, points + 1, sizeof(*x));
    double *y = tess__report_alloc(report, points + 1, sizeof(*y));
    if (!x || !y)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a curve of the report");
    for (size_t i = 0; i < points; i++) {
        size_t from = i * rows->count / points, to = (i + 1) * rows->count / points;
        x[i] = curves_mean(rows, from, to, plot->x_field);
        y[i] = plot->factor * curves_mean(rows, from, to, plot->y_field);
        /* Files count epochs from 0; the axis counts the epochs that are done. */
        x[i] += plot->epochs && plot->x_field == TESS__EPOCH ? 1 : 0;
        finite += !isnan(x[i]) && !isnan(y[i]) && !(plot->only_varying && y[i] == plot->idle);
    }
    *curve =
        (struct tess__curve){.name = run->name, .x = x, .y = y, .count = finite > 0 ? points : 0};
    return TESS_OK;
}

/* The range over all curves; false when there is none. */
static bool curves_range(const struct tess__lines *lines, double *min, double *max)
{
    *min = INFINITY;
    *max = -INFINITY;
    for (int c = 0; c < lines->curve_count; c++)
        for (size_t i = 0; i < lines->curve[c].count; i++)
            if (!isnan(lines->curve[c].y[i])) {
                *min = fmin(*min, lines->curve[c].y[i]);
                *max = fmax(*max, lines->curve[c].y[i]);
            }
    return *min <= *max;
}

static enum tess_status curves_figure(struct tess__report *report, const struct curves_plot *plot,
                                      struct tess__html *html)
{
    struct tess__curve curve[TESS__PLOT_CURVES_MAX];
    struct tess__lines lines = {.x = plot->x, .y = plot->y, .curve = curve};
    struct tess__figure figure = {plot->title, plot->caption};
    size_t left_out = 0, longest = 0;
    char caption[768], axis[64];
    double min, max;
    int style = 0;
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__report_run *run = &report->run[i];
        struct tess__curve one;
        if (run->compared)
            continue;
        TESS_TRY(curves_make(report, plot, run, &one));
        /* A run has the same colour in every picture, whether it is in all of them or not. */
        one.style = style++;
        longest = run->step.count > longest && !plot->epochs ? run->step.count : longest;
        if (one.count > 0 && lines.curve_count < TESS__PLOT_CURVES_MAX)
            curve[lines.curve_count++] = one;
        else
            left_out += one.count > 0;
    }
    if (lines.curve_count == 0 || !curves_range(&lines, &min, &max) ||
        (plot->only_varying && max <= min))
        return TESS_OK;
    if (plot->may_be_log && min > 0 && max / min > CURVES_LOG_RATIO) {
        lines.y.kind = TESS__AXIS_LOG10;
        snprintf(axis, sizeof(axis), "%s (log)", plot->y.title);
        lines.y.title = axis;
    }
    snprintf(caption, sizeof(caption), "%s", plot->caption);
    if (longest > CURVES_POINTS_MAX)
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " Each point is a mean of about %zu records.", longest / CURVES_POINTS_MAX + 1);
    if (left_out > 0)
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " %zu more runs are in the tables only.", left_out);
    figure.caption = caption;
    return tess__figure_lines(&figure, &lines, html);
}

enum tess_status tess__report_curves(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < sizeof(curves_plots) / sizeof(curves_plots[0]); i++)
        TESS_TRY(curves_figure(report, &curves_plots[i], html));
    return TESS_OK;
}

enum tess_status tess__report_controls(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < sizeof(curves_control_plots) / sizeof(curves_control_plots[0]); i++)
        TESS_TRY(curves_figure(report, &curves_control_plots[i], html));
    return TESS_OK;
}
