/*
 * Where a step's time goes. The host's clock measures it where kernels compute within the call.
 * Where they have a queue, the host runs ahead of the device; then fences on that queue measure it,
 * and are read when the step is over:
 *
 *     queue     |data .. |forward .... |backward ....... |update .. |other .|      |: a fence
 *
 * Communicators count exposed communication by phase; it is subtracted from each.
 */
#ifndef TESSERA_CORE_LAPS_H
#define TESSERA_CORE_LAPS_H

#include "core/engine.h"
#include "tessera/kernel.h"

/* The phases of tess_comm_phase. */
enum tess_lap {
    TESS_LAP_DATA,
    TESS_LAP_FORWARD,
    TESS_LAP_BACKWARD,
    TESS_LAP_UPDATE,
    TESS_LAP_OTHER,
    TESS_LAP_COUNT
};

struct tess_laps {
    struct tess_comm *comm;    /* borrowed */
    struct tess_queue *queue;  /* borrowed; NULL: kernels compute within the call */
    struct tess_fence **fence; /* [fence_count] */
    enum tess_lap *of_fence;   /* [fence_count] what begins there */
    int32_t fence_count, fence_used;
    bool paused;
    enum tess_lap lap; /* since since_s, by the host's clock */
    double since_s;
    double spent_s[TESS_LAP_COUNT];
    double wait_s[TESS_LAP_COUNT]; /* exposed communication since open, when the step began */
};

/* action_count: of a step. close accepts a zeroed one. */
enum tess_status tess__laps_open(struct tess_laps *laps, struct tess_kernel *kernel,
                                 struct tess_comm *comm, int32_t action_count);
void tess__laps_close(struct tess_laps *laps);
/* begin, then enter at each change of phase; stop when the step's work has been
 * queued, and end when it is complete: fills data, forward, backward, optim and comm of times. */
enum tess_status tess__laps_begin(struct tess_laps *laps);
enum tess_status tess__laps_enter(struct tess_laps *laps, enum tess_lap lap);
enum tess_status tess__laps_stop(struct tess_laps *laps);
enum tess_status tess__laps_end(struct tess_laps *laps, struct tess_times *times);

#endif
