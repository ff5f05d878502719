/* Time. */
#ifndef TESSERA_BASE_CLOCK_H
#define TESSERA_BASE_CLOCK_H

/* Seconds of CLOCK_MONOTONIC. */
double tess_clock_s(void);

#endif
