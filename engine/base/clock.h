/* Time. */
#ifndef TESSERA_BASE_CLOCK_H
#define TESSERA_BASE_CLOCK_H

#include <time.h>

/* Seconds of CLOCK_MONOTONIC; in a thread with a clock of its own, of that. */
double tess_clock_s(void);

/* From here on tess_clock_s of the calling thread is *own_s, which its owner advances: virtual
 * time. NULL: the system's clock again. */
void tess_clock_own(const double *own_s);

/*
 * The clock of a time limit, from 0 at its first look (begin with {0}). Looks follow each other
 * within a tenth of AWAKE_SUSPENDED_S. Where one took longer the process was suspended, perhaps
 * with all others (by a batch system, or the machine slept): nothing that it waits for could come,
 * so that time does not count.
 */
#define AWAKE_SUSPENDED_S 2.0
struct tess_awake {
    double seen_s, s;
};
double tess_awake_s(struct tess_awake *awake);

/* The moment so many seconds from now (of CLOCK_REALTIME), for pthread_cond_timedwait and its kin.
 */
struct timespec tess_clock_soon(double s);

/* Seconds that a processor has worked for the calling thread. A system call. */
double tess_clock_thread_s(void);

#endif
