/*
 * Time as a test may count it that waits: tess_awake_s of the calling thread, one for all files of
 * a program. What passes while the test is suspended, or frozen with all that it started, is not
 * counted, since what it waits for could not come either.
 */
#ifndef TESSERA_TESTS_HARNESS_AWAKE_H
#define TESSERA_TESTS_HARNESS_AWAKE_H

#include "base/clock.h"

#define AWAKE_STEP_S 0.1 /* who waits looks at least so often */

__attribute__((weak)) _Thread_local struct tess_awake awake_here;

/* Seconds, of which differences count. */
static inline double awake_s(void)
{
    return tess_awake_s(&awake_here);
}

#endif
