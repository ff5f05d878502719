/* Lines of devices in metrics.jsonl, see watch.h. */
#include "run/watch.h"

#include "base/clock.h"
#include "run/record.h"
#include "tessera/check.h"
#include "text/json.h"

/* The run's devices by their places on the bus: CUDA and the driver number them differently. */
static void watch_choose(struct tess__watcher *watcher, const struct tess__run *run)
{
    const struct tess_device_plan *plan = &run->config->device;
    for (int32_t d = 0; d < plan->count; d++) {
        const int32_t found = tess_watch_find(watcher->watch, plan->info[d].bus);
        if (found >= 0)
            watcher->device[watcher->count++] = found;
    }
}

/* Not before the ranks are forked. */
static void watch_open(struct tess__watcher *watcher, const struct tess__run *run,
                       enum tess__watch_choice choice)
{
    char why[256];
    watcher->tried = true;
    watcher->watch = tess_watch_open(why, sizeof(why));
    if (!watcher->watch && choice == TESS__WATCH_ON)
        tess_log(TESS_LOG_WARN, "--watch on: %s", why);
    if (watcher->watch && choice == TESS__WATCH_AUTO)
        watch_choose(watcher, run);
    else if (watcher->watch)
        for (; watcher->count < tess_watch_device_count(watcher->watch); watcher->count++)
            watcher->device[watcher->count] = watcher->count;
}

void tess__watch_write(struct tess__watcher *watcher, const struct tess__run *run,
                       enum tess__watch_choice choice, struct tess_metrics *metrics)
{
    if (!watcher->tried)
        watch_open(watcher, run, choice);
    for (int32_t i = 0; i < watcher->count; i++) {
        tess_watch_sample(watcher->watch, watcher->device[i], &watcher->sample);
        json_t *line = tess__record_device(&watcher->sample);
        json_object_set_new(line, "kind", json_string("device"));
        json_object_set_new(line, "elapsed_s", tess__json_number(tess_clock_s() - run->start_s));
        (void)tess_metrics_write(metrics, line); /* tess_metrics_close fails */
    }
}

void tess__watch_close(struct tess__watcher *watcher)
{
    tess_watch_close(watcher->watch);
    watcher->watch = NULL;
}
