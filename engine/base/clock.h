/* Time. */
#ifndef TESSERA_BASE_CLOCK_H
#define TESSERA_BASE_CLOCK_H

/* Seconds of CLOCK_MONOTONIC; in a thread with a clock of its own, of that. */
double tess_clock_s(void);

/* From here on tess_clock_s of the calling thread is *own_s, which its owner advances: virtual
 * time. NULL: the system's clock again. */
void tess_clock_own(const double *own_s);

/* Seconds that a processor has worked for the calling thread. A system call. */
double tess_clock_thread_s(void);

#endif
