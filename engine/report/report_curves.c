/*
 * Curves of the runs: loss and accuracy, what is set or decided on the way, and devices. Which
 * curves there are, their thinning and their captions; drawing is report_plot.c's.
 */
#include "report/report_section.h"

#include <math.h>
#include <string.h>

/* More points than a picture of this width can show are averaged. */
#define CURVES_POINTS_MAX 480
/* Losses this far apart are read on a logarithmic axis. */
#define CURVES_LOG_RATIO 40
/* Of more changes those that come first are marked. */
#define CURVES_MARKS_MAX 16
#define CURVES_TIME      "time since the start [s]"
#define GIB              (1024.0 * 1024 * 1024)

/* What runs across a picture: which records, and their field. */
enum curves_by {
    CURVES_STEP,
    CURVES_STEP_TIME,
    CURVES_EPOCH,
    CURVES_EPOCH_TIME,
    CURVES_DEVICE_TIME
};

static const struct {
    struct tess__axis axis;
    int field;
} curves_across[] = {
    [CURVES_STEP] = {{"step", TESS__AXIS_LINEAR, true}, TESS__STEP},
    [CURVES_STEP_TIME] = {{CURVES_TIME, TESS__AXIS_LINEAR, false}, TESS__STEP_ELAPSED},
    [CURVES_EPOCH] = {{"epochs done", TESS__AXIS_LINEAR, true}, TESS__EPOCH},
    [CURVES_EPOCH_TIME] = {{CURVES_TIME, TESS__AXIS_LINEAR, false}, TESS__EPOCH_TIME},
    [CURVES_DEVICE_TIME] = {{CURVES_TIME, TESS__AXIS_LINEAR, false}, TESS__DEVICE_TIME},
};

struct curves_plot {
    const char *title, *caption;
    enum curves_by by;
    struct tess__axis y;
    int y_field;
    double factor;   /* from the file's unit to the axis's; 0 is 1 */
    bool may_be_log; /* where the numbers are far apart */
    double idle;     /* of controls: a run that always has this value makes no use of it */
};

static const struct curves_plot curves_plots[] = {
    {.title = "Training loss by step",
     .caption = "How much each run has learned after the same number of optimizer steps: lower is "
                "better. Curves on top of each other are runs with the same arithmetic.",
     .by = CURVES_STEP,
     .y = {"training loss", TESS__AXIS_LINEAR, false},
     .y_field = TESS__STEP_LOSS,
     .may_be_log = true},
    {.title = "Training loss by time",
     .caption = "The same loss against the clock: what a strategy or a batch size gains in time. "
                "The curve that is lower and further to the left is better.",
     .by = CURVES_STEP_TIME,
     .y = {"training loss", TESS__AXIS_LINEAR, false},
     .y_field = TESS__STEP_LOSS,
     .may_be_log = true},
    {.title = "Validation accuracy by epoch",
     .caption =
         "Share of correct predictions on data that was not trained on, after each pass over the "
         "rest: higher is better. A curve that stays low belongs to a run that has not learned.",
     .by = CURVES_EPOCH,
     .y = {"validation accuracy [%]", TESS__AXIS_LINEAR, false},
     .y_field = TESS__EPOCH_ACCURACY,
     .factor = 100},
    {.title = "Validation loss by epoch",
     .caption = "Loss on data that was not trained on. Where it rises while the training loss "
                "falls, the model overfits.",
     .by = CURVES_EPOCH,
     .y = {"validation loss", TESS__AXIS_LINEAR, false},
     .y_field = TESS__EPOCH_LOSS,
     .may_be_log = true},
    {.title = "Training accuracy by step",
     .caption = "Share of correct predictions in the step's own batch, before the step.",
     .by = CURVES_STEP,
     .y = {"training accuracy [%]", TESS__AXIS_LINEAR, false},
     .y_field = TESS__STEP_ACCURACY,
     .factor = 100},
    {.title = "Validation accuracy by time",
     .caption = "Time to a given accuracy: follow a horizontal line to the first curve that "
                "crosses it.",
     .by = CURVES_EPOCH_TIME,
     .y = {"validation accuracy [%]", TESS__AXIS_LINEAR, false},
     .y_field = TESS__EPOCH_ACCURACY,
     .factor = 100},
};

static const struct curves_plot curves_control_plots[] = {
    {.title = "Model FLOPs utilisation (MFU)",
     .caption =
         "The model's operations, forward and backward, as a share of what the devices could "
         "do by their datasheets. Work that is done twice and work that is no product do not "
         "count.",
     .y = {"MFU [%]", TESS__AXIS_ZERO, false},
     .y_field = TESS__STEP_MFU,
     .factor = 100,
     .idle = -1},
    {.title = "Learning rate",
     .caption = "The rate each step was taken with: warm-up is the rise at the beginning, the "
                "schedule the fall after it.",
     .y = {"learning rate", TESS__AXIS_ZERO, false},
     .y_field = TESS__STEP_RATE,
     .idle = -1},
    {.title = "Loss scale",
     .caption = "The factor that keeps small f16 gradients from becoming zero. It halves when a "
                "gradient overflows, and doubles after enough good steps.",
     .y = {"loss scale (log)", TESS__AXIS_LOG2, false},
     .y_field = TESS__STEP_SCALE,
     .idle = 1},
    {.title = "Gradients that are zero",
     .caption = "Share of the parameters' gradient elements that are exactly zero: ReLUs that are "
                "off, and in f16 without a loss scale what is too small. A rise to nearly 100 % "
                "means that the network no longer learns.",
     .y = {"zero gradients [%]", TESS__AXIS_ZERO, false},
     .y_field = TESS__STEP_ZEROS,
     .factor = 100,
     .idle = -1},
    {.title = "Underflow at the loss",
     .caption = "Share of the loss's gradient by the logits that is exactly zero; only the range "
                "of the type causes such zeros. In f16 without a loss scale it grows as the "
                "network becomes confident.",
     .y = {"zeros by the logits [%]", TESS__AXIS_ZERO, false},
     .y_field = TESS__STEP_LOSS_ZEROS,
     .factor = 100},
    {.title = "Steps skipped",
     .caption = "Steps that changed nothing, because a gradient was infinite or not a number, "
                "counted so far.",
     .y = {"steps skipped", TESS__AXIS_ZERO, false},
     .y_field = TESS__STEP_SKIPPED},
    {.title = "Gradient norm",
     .caption = "Length of the gradient over all parameters. A rise that does not end is "
                "a sign of divergence.",
     .y = {"gradient norm", TESS__AXIS_LINEAR, false},
     .y_field = TESS__STEP_NORM,
     .idle = -1,
     .may_be_log = true},
};

static const struct curves_plot curves_device_plots[] = {
    {.title = "Devices at work",
     .caption = "Share of the time in which any kernel ran on the device. Gaps are waiting: for "
                "data, for other ranks, for the host. It does not show how much of the device a "
                "kernel used: 100 % here may be a small share of the peak.",
     .by = CURVES_DEVICE_TIME,
     .y = {"busy [%]", TESS__AXIS_ZERO, false},
     .y_field = TESS__DEVICE_BUSY},
    {.title = "Device memory in use",
     .caption = "By all programs and by the driver itself.",
     .by = CURVES_DEVICE_TIME,
     .y = {"memory [GiB]", TESS__AXIS_ZERO, false},
     .y_field = TESS__DEVICE_MEMORY,
     .factor = 1 / GIB},
    {.title = "Power",
     .caption = "Power of the device. A flat top is the power limit, at which clocks go down; far "
                "below it the device is mostly idle.",
     .by = CURVES_DEVICE_TIME,
     .y = {"power [W]", TESS__AXIS_ZERO, false},
     .y_field = TESS__DEVICE_POWER},
    {.title = "Clock of the multiprocessors",
     .caption = "The clock falls where power or temperature limits it, and the peak rate with it.",
     .by = CURVES_DEVICE_TIME,
     .y = {"clock [MHz]", TESS__AXIS_LINEAR, false},
     .y_field = TESS__DEVICE_CLOCK},
    {.title = "Sent over NVLink",
     .caption = "Payload that the device sent over all its links.",
     .by = CURVES_DEVICE_TIME,
     .y = {"sent [GB/s]", TESS__AXIS_ZERO, false},
     .y_field = TESS__DEVICE_SENT,
     .factor = 1e-9},
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

/* The curves of a picture in the making. */
struct curves_draft {
    struct tess__curve curve[TESS__PLOT_CURVES_MAX];
    struct tess__mark mark[CURVES_MARKS_MAX];
    int count, style, marks;
    size_t left_out;
    double min, max;
};

/* A curve of these records, where there is anything to draw. */
static void curves_add(struct tess__report *report, const struct curves_plot *plot, bool control,
                       const struct tess__rows *rows, const char *name, struct curves_draft *draft)
{
    size_t points = rows->count < CURVES_POINTS_MAX ? rows->count : CURVES_POINTS_MAX, finite = 0;
    double *x = tess__report_alloc(report, points + 1, sizeof(*x));
    double *y = tess__report_alloc(report, points + 1, sizeof(*y));
    /* A run has the same colour in every picture, whether it is in all of them or not. */
    int style = draft->style++;
    for (size_t i = 0; i < points; i++) {
        size_t from = i * rows->count / points, to = (i + 1) * rows->count / points;
        x[i] = curves_mean(rows, from, to, curves_across[plot->by].field);
        y[i] = (plot->factor > 0 ? plot->factor : 1) * curves_mean(rows, from, to, plot->y_field);
        /* Files count epochs from 0; the axis counts the epochs that are done. */
        x[i] += plot->by == CURVES_EPOCH ? 1 : 0;
        finite += !isnan(x[i]) && !isnan(y[i]) && !(control && y[i] == plot->idle);
    }
    if (finite > 0 && draft->count == TESS__PLOT_CURVES_MAX)
        draft->left_out++;
    if (finite == 0 || draft->count == TESS__PLOT_CURVES_MAX)
        return;
    draft->curve[draft->count++] = (struct tess__curve){
        .name = name,
        .x = x,
        .y = y,
        .count = points,
        .style = style,
        .look = plot->by == CURVES_DEVICE_TIME ? TESS__CURVE_LINE : TESS__CURVE_BOTH};
    for (size_t i = 0; i < points; i++) {
        draft->min = fmin(draft->min, y[i]);
        draft->max = fmax(draft->max, y[i]);
    }
}

/* A curve for each device of a run, named "run, device 1" where there are several. */
static void curves_add_devices(struct tess__report *report, const struct curves_plot *plot,
                               const struct tess__report_run *run, struct curves_draft *draft)
{
    const struct tess__rows *all = &run->device;
    const size_t bytes = TESS__DEVICE_WIDTH * sizeof(*all->value);
    for (double device = -1, next;; device = next) {
        struct tess__rows rows = {.fields = all->fields};
        next = INFINITY;
        for (size_t i = 0; i < all->count; i++)
            if (tess__row(all, i, TESS__DEVICE_NUMBER) > device)
                next = fmin(next, tess__row(all, i, TESS__DEVICE_NUMBER));
        if (isinf(next))
            return;
        for (size_t i = 0; i < all->count; i++)
            if (tess__row(all, i, TESS__DEVICE_NUMBER) == next)
                memcpy(tess__report_add(report, &rows.value, &rows.count, bytes),
                       all->value + i * TESS__DEVICE_WIDTH, bytes);
        curves_add(report, plot, false, &rows,
                   rows.count == all->count
                       ? run->name
                       : tess__report_text(report, "%.200s, device %.0f", run->name, next),
                   draft);
    }
}

/* Where the ranks of a run got other numbers; its curve has been added, with the style before. */
static void curves_mark(const struct tess__report_run *run, enum curves_by by,
                        struct curves_draft *draft)
{
    for (size_t i = 0; i < run->adapt_count && draft->marks < CURVES_MARKS_MAX; i++) {
        const double x = by == CURVES_STEP ? run->adapt[i].step : run->adapt[i].elapsed;
        if (run->adapt[i].renumbers && !isnan(x))
            draft->mark[draft->marks++] = (struct tess__mark){x, draft->style - 1};
    }
}

static void curves_figure(struct tess__report *report, const struct curves_plot *plot, bool control,
                          struct tess__html *html)
{
    struct curves_draft draft = {.min = INFINITY, .max = -INFINITY};
    struct tess__lines lines = {
        .x = curves_across[plot->by].axis, .y = plot->y, .curve = draft.curve};
    struct tess__figure figure = {plot->title, plot->caption};
    bool by_step = plot->by <= CURVES_STEP_TIME;
    size_t longest = 0;
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__report_run *run = &report->run[i];
        if (plot->by == CURVES_DEVICE_TIME)
            curves_add_devices(report, plot, run, &draft);
        else if (!run->compared)
            curves_add(report, plot, control, by_step ? &run->step : &run->epoch, run->name,
                       &draft);
        if (by_step && !run->compared)
            curves_mark(run, plot->by, &draft);
        longest = by_step && run->step.count > longest ? run->step.count : longest;
    }
    if (draft.max < draft.min || (control && draft.max <= draft.min))
        return;
    lines.curve_count = draft.count;
    lines.mark = draft.mark;
    lines.mark_count = draft.marks;
    if (plot->may_be_log && draft.min > 0 && draft.max / draft.min > CURVES_LOG_RATIO) {
        lines.y.kind = TESS__AXIS_LOG10;
        lines.y.title = tess__report_text(report, "%s (log)", plot->y.title);
    }
    if (longest > CURVES_POINTS_MAX)
        figure.caption = tess__report_text(report, "%s Each point is a mean of about %zu records.",
                                           figure.caption, longest / CURVES_POINTS_MAX + 1);
    if (draft.left_out > 0 && plot->by != CURVES_DEVICE_TIME)
        figure.caption = tess__report_text(report, "%s %zu more runs are in the tables only.",
                                           figure.caption, draft.left_out);
    if (draft.marks > 0)
        figure.caption = tess__report_text(
            report, "%s At the dotted line ranks got other numbers: see Slow ranks and links.",
            figure.caption);
    tess__figure_lines(&figure, &lines, html);
}

void tess__report_curves(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < sizeof(curves_plots) / sizeof(curves_plots[0]); i++)
        curves_figure(report, &curves_plots[i], false, html);
}

void tess__report_controls(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < sizeof(curves_control_plots) / sizeof(curves_control_plots[0]); i++)
        curves_figure(report, &curves_control_plots[i], true, html);
}

void tess__report_devices(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < sizeof(curves_device_plots) / sizeof(curves_device_plots[0]); i++)
        curves_figure(report, &curves_device_plots[i], false, html);
}
