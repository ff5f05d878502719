/*
 * Watching a run's devices from its launcher: once a second what their driver reports goes to
 * metrics.jsonl. The launcher waits for messages anyway, so it does not slow a rank's step.
 */
#ifndef TESSERA_RUN_WATCH_H
#define TESSERA_RUN_WATCH_H

#include "device/nvml.h"
#include "job/run.h"
#include "run/metrics.h"

#define TESS__WATCH_PERIOD_S 1.0

/* AUTO: the run's devices; ON: all of this machine. */
enum tess__watch_choice { TESS__WATCH_AUTO, TESS__WATCH_ON, TESS__WATCH_OFF };

/* Zeroed before the first call. */
struct tess__watcher {
    bool tried; /* the driver's library was looked for */
    struct tess_watch *watch;
    int32_t count;
    int32_t device[TESS_WATCH_DEVICES_MAX]; /* those to watch, by the driver's numbers */
    struct tess_watch_sample sample;
};

/* One line for each device that is watched. Where there is no driver nothing is written, and, if
 * ON was given, there is one warning. */
void tess__watch_write(struct tess__watcher *watcher, const struct tess__run *run,
                       enum tess__watch_choice choice, struct tess_metrics *metrics);

void tess__watch_close(struct tess__watcher *watcher);

#endif
