/*
 * --topology.adapt: ranks are numbered anew where a part of the network stays slow. The judge
 * (slow_net.h) names the part; the launcher of rank 0 then decides, once for each:
 *
 *     named     slow for two short windows
 *     stays     slow in a whole window of TESS__PACE_STEPS steps, too, which began after that
 *     helps     another order of ranks gains ADAPT_GAIN or more, by the topology with this part as
 *               slow as it is (place_slow.h). Where the topology does not have the part, and was
 *               measured, another measurement decides
 *     pays      what the part costs in the steps that are left is more than a start does
 *
 * It requests that ranks save and end; the supervisor starts them again (restart.h), and as at any
 * start process 0 decides who is which rank: by what it measures then, or by the file or the
 * switches, from which the slow parts are taken.
 */
#ifndef TESSERA_RUN_ADAPT_H
#define TESSERA_RUN_ADAPT_H

#include "run/restart.h"
#include "run/slow.h"

struct tess__adapt {
    int64_t since; /* of the part that was decided about last */
    /* What was decided: */
    int64_t step;
    const char *part; /* its name: of the judge */
    double gain;      /* of the most loaded link; NaN: to be measured, or not looked for */
    bool renumbers;
    char text[640]; /* a sentence */
};

/* What attempts have in common with those that follow: history, which may be NULL. */
void tess__adapt_open(struct tess__run *run, struct tess__history *history);

/* After a window: is there a decision about the part of the network that is slow? Then adapt has
 * it, and the request is made. run->renumber NULL: never. */
bool tess__adapt_decide(struct tess__adapt *adapt, const struct tess__run *run,
                        struct tess__history *history, const struct tess__slow *slow);
/* The same, of what the judge has found by the step `seen`, the last of a whole window. */
bool tess__adapt_judge(struct tess__adapt *adapt, const struct tess__run *run,
                       struct tess__history *history, const struct tess__slow_net_found *found,
                       int64_t seen);

#endif
