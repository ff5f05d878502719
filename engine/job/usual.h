/*
 * What a step usually takes: the mean of the middle half of the steps, by their seconds. Single
 * steps that other programs disturb, or that do more than others, do not count.
 */
#ifndef TESSERA_JOB_USUAL_H
#define TESSERA_JOB_USUAL_H

#include "core/engine.h"

struct tess__usual {
    struct tess_times *step; /* [TESS__USUAL_STEPS] the last ones */
    int64_t count;           /* so far */
};

#define TESS__USUAL_STEPS 1000

enum tess_status tess__usual_open(struct tess__usual *usual); /* TESS_ERR_MEMORY */
void tess__usual_add(struct tess__usual *usual, const struct tess_times *step);
/* Field by field over the same steps; zeros where there are none. Sorts: no step is added later. */
struct tess_times tess__usual_take(struct tess__usual *usual);
void tess__usual_close(struct tess__usual *usual); /* accepts a zeroed one */

#endif
