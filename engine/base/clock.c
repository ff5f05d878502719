/* Time. */
#include "base/clock.h"

#include <stddef.h>
#include <stdint.h>

static __thread const double *clock_own_s;

static double clock_read_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double tess_clock_s(void)
{
    return clock_own_s != NULL ? *clock_own_s : clock_read_s(CLOCK_MONOTONIC);
}

void tess_clock_own(const double *own_s)
{
    clock_own_s = own_s;
}

double tess_awake_s(struct tess_awake *awake)
{
    const double now_s = tess_clock_s(), passed_s = now_s - awake->seen_s;
    if (awake->seen_s > 0 && passed_s < AWAKE_SUSPENDED_S)
        awake->s += passed_s;
    awake->seen_s = now_s;
    return awake->s;
}

struct timespec tess_clock_soon(double s)
{
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    const int64_t ns = soon.tv_nsec + (int64_t)(s * 1e9);
    soon.tv_sec += (time_t)(ns / 1000000000);
    soon.tv_nsec = (long)(ns % 1000000000);
    return soon;
}

double tess_clock_thread_s(void)
{
    return clock_read_s(CLOCK_THREAD_CPUTIME_ID);
}
