/* The times of a rank's last steps (pace.h). */
#include "job/pace.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two steps in a row that take so much longer, and so long together, begin short windows, which go
 * on for so many of them and so long. */
#define PACE_LONGER       1.5
#define PACE_LONGER_S     0.05 /* what disturbs steps of a millisecond is shorter */
#define PACE_SOON_WINDOWS 4
#define PACE_SOON_S       1.0

static int pace_compare(const void *a, const void *b)
{
    const float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

float tess__pace_median(float *value, int32_t count)
{
    qsort(value, (size_t)count, sizeof(*value), pace_compare);
    return (value[count / 2] + value[(count - 1) / 2]) / 2;
}

/* Of proc(5): "time on a processor, time of waiting for one, slices", in ns. */
static double pace_delay_s(const struct tess__pace *pace)
{
    char text[96];
    unsigned long long delay_ns = 0;
    const ssize_t bytes =
        pace->delay_fd >= 0 ? pread(pace->delay_fd, text, sizeof(text) - 1, 0) : 0;
    if (bytes <= 0)
        return 0;
    text[bytes] = '\0';
    return sscanf(text, "%*u %llu", &delay_ns) == 1 ? 1e-9 * (double)delay_ns : 0;
}

/* Ranks whose work differs by plan are not compared: other stages, and a rank that has the samples
 * or the loss of all. */
static int32_t pace_kind(const struct tess_plan *plan)
{
    return plan->mesh.at[TESS_AXIS_STAGE] * 4 + plan->holds_input * 2 + plan->holds_loss;
}

enum tess_status tess__pace_open(struct tess__pace *pace, const struct tess__run *run,
                                 const struct tess__rank *rank, const struct tess_comm *comm,
                                 const struct tess_plan *plan)
{
    const size_t ranks = (size_t)rank->rank_count;

    *pace = (struct tess__pace){.rank = rank,
                                .comm = comm,
                                .on = run->keep_pace && rank->rank_count > 1,
                                .delay_fd = -1,
                                .now = {.kind = pace_kind(plan), .window = -1}};
    if (!pace->on)
        return TESS_OK;
    pace->delay_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    pace->link = calloc(2 * ranks, sizeof(*pace->link));
    if (pace->link == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to count what goes to %zu ranks", ranks);
    pace->soon.link = pace->link + ranks;
    return TESS_OK;
}

void tess__pace_close(struct tess__pace *pace)
{
    if (pace->on && pace->delay_fd >= 0)
        close(pace->delay_fd);
    free(pace->link);
    pace->link = NULL;
    pace->on = false;
}

/* What has gone to each rank so far: nothing to those that there is no connection with yet. */
static void pace_read_links(const struct tess__pace *pace, struct tess_transport_link *link)
{
    for (int32_t r = 0; r < pace->rank->rank_count; r++)
        (void)tess_comm_net_link(pace->comm, r, &link[r]);
}

static void pace_begin(struct tess__pace *pace, const double *wait_s, const uint64_t *sent_bytes)
{
    pace->began = true;
    pace->used = 0;
    pace->now.window++;
    pace->delay_s = pace_delay_s(pace);
    memcpy(pace->wait_s, wait_s, sizeof(pace->wait_s));
    memcpy(pace->sent_bytes, sent_bytes, sizeof(pace->sent_bytes));
    pace_read_links(pace, pace->link);
}

/* What has gone to each rank since `from`, `steps` steps ago. */
static enum tess_status pace_send_links(const struct tess__pace *pace,
                                        const struct tess_transport_link *from, int32_t steps,
                                        struct tess__run_links links)
{
    for (int32_t r = 0; r < pace->rank->rank_count; r++) {
        struct tess_transport_link link;
        if (!tess_comm_net_link(pace->comm, r, &link) || link.sent_bytes == from[r].sent_bytes)
            continue;
        links.link[links.count].peer = r;
        links.link[links.count].bytes =
            (float)(link.sent_bytes - from[r].sent_bytes) / (float)steps;
        links.link[links.count++].busy_s = (float)(link.busy_s - from[r].busy_s) / (float)steps;
        if (links.count < TESS__PACE_LINKS)
            continue;
        TESS_TRY(tess__rank_send(pace->rank, TESS__RUN_LINKS, &links, sizeof(links)));
        links.count = 0;
    }
    links.last = links.since > 0;
    if (links.count == 0 && !links.last)
        return TESS_OK;
    return tess__rank_send(pace->rank, TESS__RUN_LINKS, &links, sizeof(links));
}

/* Short windows, while steps take longer than in the window before. */
static enum tess_status pace_soon(struct tess__pace *pace, int64_t counted, int64_t step,
                                  double total_s)
{
    struct tess__pace_soon *soon = &pace->soon;
    const bool longer = soon->usual_s > 0 && total_s > PACE_LONGER * soon->usual_s;
    soon->row = longer ? soon->row + 1 : 0;
    soon->row_s = longer ? soon->row_s + total_s : 0;
    const bool counts = soon->row >= 2 && soon->row_s >= PACE_LONGER_S;
    if (counts)
        soon->since = step - soon->row + 1;
    if (counts && !soon->on) {
        soon->on = true;
        soon->windows = 0;
        soon->lasts_s = 0;
    }
    soon->total_s += total_s;
    if (!soon->on || counted % TESS__PACE_SOON != 0)
        return TESS_OK;
    if (soon->began) {
        const struct tess__run_links links = {.window = counted / TESS__PACE_SOON,
                                              .since = soon->row > 0 ? step - soon->row + 1
                                                                     : soon->since,
                                              .step = step,
                                              .step_s = (float)soon->total_s / TESS__PACE_SOON};
        TESS_TRY(pace_send_links(pace, soon->link, TESS__PACE_SOON, links));
        soon->windows++;
        soon->lasts_s += soon->total_s;
    }
    soon->on = soon->began = soon->windows < PACE_SOON_WINDOWS || soon->lasts_s < PACE_SOON_S;
    soon->total_s = 0;
    if (soon->began)
        pace_read_links(pace, soon->link);
    return TESS_OK;
}

static float pace_mean(const float *value)
{
    double sum = 0;
    for (int i = 0; i < TESS__PACE_STEPS; i++)
        sum += value[i];
    return (float)(sum / TESS__PACE_STEPS);
}

static enum tess_status pace_send(struct tess__pace *pace, int64_t step, const double *wait_s,
                                  const uint64_t *sent_bytes)
{
    struct tess__run_pace *now = &pace->now;
    float own_s[TESS__PACE_STEPS];
    now->step = step;
    memcpy(own_s, now->own_s, sizeof(own_s));
    now->median_s = tess__pace_median(own_s, TESS__PACE_STEPS);
    now->mean_s = pace_mean(pace->total_s);
    now->step_s = tess__pace_median(pace->total_s, TESS__PACE_STEPS);
    for (int p = 0; p < TESS__PACE_PARTS; p++) {
        now->part_mean_s[p] = pace_mean(pace->part_s[p]);
        now->part_s[p] = tess__pace_median(pace->part_s[p], TESS__PACE_STEPS);
    }
    now->delay_s = (float)(pace_delay_s(pace) - pace->delay_s) / TESS__PACE_STEPS;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        now->wait_s[axis] = (float)(wait_s[axis] - pace->wait_s[axis]) / TESS__PACE_STEPS;
        now->sent_bytes[axis] =
            (float)(sent_bytes[axis] - pace->sent_bytes[axis]) / TESS__PACE_STEPS;
    }
    pace->soon.usual_s = now->step_s;
    TESS_TRY(pace_send_links(pace, pace->link, TESS__PACE_STEPS,
                             (struct tess__run_links){.window = now->window}));
    return tess__rank_send(pace->rank, TESS__RUN_PACE, now, sizeof(*now));
}

enum tess_status tess__pace_step(struct tess__pace *pace, int64_t counted, int64_t step,
                                 double total_s, const struct tess_times *times,
                                 const double wait_s[TESS_AXIS_COUNT],
                                 const uint64_t sent_bytes[TESS_AXIS_COUNT])
{
    if (!pace->on || counted < 0)
        return TESS_OK;
    const double worked_s = tess_clock_thread_s();
    if (pace->began) {
        const double own_s = fmax(0, total_s - times->comm_s);
        const double compute_s = times->forward_s + times->backward_s;
        const int32_t at = pace->used++;
        pace->now.own_s[at] = (float)own_s;
        pace->now.work_s[at] = (float)(worked_s - pace->worked_s);
        pace->total_s[at] = (float)total_s;
        pace->part_s[TESS__PACE_DATA][at] = (float)times->data_s;
        pace->part_s[TESS__PACE_COMPUTE][at] = (float)compute_s;
        pace->part_s[TESS__PACE_OPTIM][at] = (float)times->optim_s;
        pace->part_s[TESS__PACE_OTHER][at] =
            (float)(own_s - times->data_s - compute_s - times->optim_s);
    }
    pace->worked_s = worked_s;
    TESS_TRY(pace_soon(pace, counted, step, total_s));
    if (counted % TESS__PACE_STEPS != 0)
        return TESS_OK;
    if (pace->began && pace->used == TESS__PACE_STEPS)
        TESS_TRY(pace_send(pace, step, wait_s, sent_bytes));
    pace_begin(pace, wait_s, sent_bytes);
    return TESS_OK;
}
