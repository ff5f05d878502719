/* Time. */
#include "base/clock.h"

#include <time.h>

static double clock_read_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double tess_clock_s(void)
{
    return clock_read_s(CLOCK_MONOTONIC);
}

double tess_clock_thread_s(void)
{
    return clock_read_s(CLOCK_THREAD_CPUTIME_ID);
}
