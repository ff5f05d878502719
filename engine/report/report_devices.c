/* Curves of devices over the time of a run, one for each run and device; drawing is
 * report_plot.c's. */
#include "report/report_section.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>

/* More points than a picture of this width can show are averaged. */
#define DEVICES_POINTS_MAX 240
#define DEVICES_NAME_BYTES 256
#define GIB                (1024.0 * 1024 * 1024)

static const struct devices_plot {
    const char *title, *caption, *axis;
    int field;
    double factor; /* from the file's unit to the axis's */
    enum tess__axis_kind kind;
} devices_plots[] = {
    {"Devices at work",
     "Share of the time in which any kernel ran on the device. Gaps are waiting: for data, for "
     "other ranks, for the host. It does not show how much of the device a kernel used: 100 % here "
     "may be a small share of the peak.",
     "busy [%]", TESS__DEVICE_BUSY, 1, TESS__AXIS_ZERO},
    {"Device memory in use", "By all programs and by the driver itself.", "memory [GiB]",
     TESS__DEVICE_MEMORY, 1 / GIB, TESS__AXIS_ZERO},
    {"Power",
     "Power of the device. A flat top is the power limit, at which clocks go down; far below it "
     "the device is mostly idle.",
     "power [W]", TESS__DEVICE_POWER, 1, TESS__AXIS_ZERO},
    {"Clock of the multiprocessors",
     "The clock falls where power or temperature limits it, and the peak rate with it.",
     "clock [MHz]", TESS__DEVICE_CLOCK, 1, TESS__AXIS_LINEAR},
    {"Sent over NVLink", "Payload that the device sent over all its links.", "sent [GB/s]",
     TESS__DEVICE_SENT, 1e-9, TESS__AXIS_ZERO},
};

/* Are there samples of more than one device? */
static bool devices_several(const struct tess__rows *rows)
{
    for (size_t i = 1; i < rows->count; i++)
        if (tess__row(rows, i, TESS__DEVICE_NUMBER) != tess__row(rows, 0, TESS__DEVICE_NUMBER))
            return true;
    return false;
}

/* One device's samples of one run, thinned; count 0 where there is nothing to draw. */
static enum tess_status devices_make(struct tess__report *report, const struct devices_plot *plot,
                                     const struct tess__rows *rows, double device,
                                     struct tess__curve *curve)
{
    double *x = tess__report_alloc(report, rows->count + 1, sizeof(*x));
    double *y = tess__report_alloc(report, rows->count + 1, sizeof(*y));
    size_t count = 0, finite = 0;
    if (!x || !y)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a curve of the report");
    for (size_t i = 0; i < rows->count; i++)
        if (tess__row(rows, i, TESS__DEVICE_NUMBER) == device) {
            x[count] = tess__row(rows, i, TESS__DEVICE_TIME);
            y[count++] = plot->factor * tess__row(rows, i, plot->field);
        }
    size_t points = count < DEVICES_POINTS_MAX ? count : DEVICES_POINTS_MAX;
    for (size_t p = 0; p < points; p++) {
        /* In place: a point is made of samples at or behind its own place. */
        const size_t from = p * count / points, to = (p + 1) * count / points;
        double sum_x = 0, sum_y = 0;
        for (size_t i = from; i < to; i++) {
            sum_x += x[i];
            sum_y += y[i];
        }
        x[p] = sum_x / (double)(to - from);
        y[p] = sum_y / (double)(to - from);
        finite += !isnan(y[p]);
    }
    *curve = (struct tess__curve){.x = x, .y = y, .count = finite > 0 ? points : 0};
    return TESS_OK;
}

/* "run, device 1" */
static const char *devices_name(struct tess__report *report, const struct tess__report_run *run,
                                double device)
{
    char name[DEVICES_NAME_BYTES];
    if (!devices_several(&run->device))
        return run->name;
    snprintf(name, sizeof(name), "%.200s, device %.0f", run->name, device);
    return tess__report_copy(report, name);
}

/* The next device of a run above `before`; NaN: there is none. */
static double devices_next(const struct tess__rows *rows, double before)
{
    double next = NAN;
    for (size_t i = 0; i < rows->count; i++) {
        const double device = tess__row(rows, i, TESS__DEVICE_NUMBER);
        if (device > before && !(device >= next))
            next = device;
    }
    return next;
}

static enum tess_status devices_figure(struct tess__report *report, const struct devices_plot *plot,
                                       struct tess__html *html)
{
    struct tess__curve curve[TESS__PLOT_CURVES_MAX];
    struct tess__lines lines = {.x = {"time since the start [s]", TESS__AXIS_LINEAR, false},
                                .y = {plot->axis, plot->kind, false},
                                .curve = curve};
    const struct tess__figure figure = {plot->title, plot->caption};
    int style = 0;
    for (size_t r = 0; r < report->run_count; r++) {
        const struct tess__report_run *run = &report->run[r];
        double device = -1;
        while (!isnan(device = devices_next(&run->device, device))) {
            struct tess__curve one;
            TESS_TRY(devices_make(report, plot, &run->device, device, &one));
            one.name = devices_name(report, run, device);
            if (!one.name)
                TESS_FAIL(TESS_ERR_MEMORY, "no memory for a curve of the report");
            /* A device has the same colour in every picture, whether it is in all or not. */
            one.style = style++;
            one.look = TESS__CURVE_LINE;
            if (one.count > 0 && lines.curve_count < TESS__PLOT_CURVES_MAX)
                curve[lines.curve_count++] = one;
        }
    }
    return lines.curve_count > 0 ? tess__figure_lines(&figure, &lines, html) : TESS_OK;
}

enum tess_status tess__report_devices(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < sizeof(devices_plots) / sizeof(devices_plots[0]); i++)
        TESS_TRY(devices_figure(report, &devices_plots[i], html));
    return TESS_OK;
}
