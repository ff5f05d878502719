/*
 * The bubble: the share of a pipelined step's passes in which ranks have nothing to do, as the
 * schedule has it on stages of equal time, and as it was in a run.
 */
#ifndef TESSERA_RUN_BUBBLE_H
#define TESSERA_RUN_BUBBLE_H

#include "job/run.h"

#include <jansson.h>

struct tess__bubble {
    double processor_share; /* the least share that a rank got of the time it could use */
    bool disturbed; /* measured, but other programs took the processors, so that ranks waited for
                       reasons that are not the schedule's */
    double equal;   /* (p-1)/(v m + p-1) and the like: the strategy's formula */
    double share;   /* of the run; NaN when it is unknown */
    bool
        in_virtual_time; /* ranks took turns on the cores: from what each stage costs a processor */
};

/* Of a run that has ended. False without a stage axis, or where its strategy has no bubble. */
bool tess__bubble_of(const struct tess__run *run, struct tess__bubble *bubble_out);

/* One line to stdout, or none. */
void tess__bubble_print(const struct tess__run *run);

/* {"equal_stages": share, "measured": share, "virtual_time": share}, one of the last two null; null
 * where there is none. A new reference, NULL when out of memory. */
json_t *tess__bubble_record(const struct tess__run *run);

#endif
