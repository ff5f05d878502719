/* Time. */
#ifndef TESSERA_BASE_CLOCK_H
#define TESSERA_BASE_CLOCK_H

/* Seconds of CLOCK_MONOTONIC. */
double tess_clock_s(void);

/* Seconds that a processor has worked for the calling thread. A system call. */
double tess_clock_thread_s(void);

#endif
