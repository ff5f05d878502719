/*
 * Time as a test may count it that waits: what passes while its process is stopped, frozen with
 * all others, or gets no processor is not counted, since what it waits for may have had none
 * either. So a limit says how long the machine has had, not what it did beside.
 */
#ifndef TESSERA_TESTS_HARNESS_AWAKE_H
#define TESSERA_TESTS_HARNESS_AWAKE_H

#include "base/clock.h"

/* From one look to the next no more than this counts: who waits looks more often. */
#define AWAKE_STEP_S 0.1

/* Of the calling thread; one for all files of a program. */
__attribute__((weak)) _Thread_local double awake_sum_s, awake_seen_s;

/* Seconds. Differences count, and only between calls that follow each other closely. */
static inline double awake_s(void)
{
    const double now_s = tess_clock_s(), passed_s = now_s - awake_seen_s;
    awake_seen_s = now_s;
    awake_sum_s += passed_s < AWAKE_STEP_S ? passed_s : AWAKE_STEP_S;
    return awake_sum_s;
}

#endif
