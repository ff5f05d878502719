/*
 * Which rank or link holds the others up. Ranks send the times of windows of TESS__PACE_STEPS steps
 * (pace.h); each is compared with the median of its like:
 *
 *     rank   its own time of each step, without waiting, with the median of the other ranks that
 *            have the same work. Where no rank has the same work (stages of a pipeline), the change
 *            of its time since the run's first windows with the median change of the others
 *     link   bytes per second, while any were under way, with the median of the other links of its
 *            kind (axis, distance along it, within a host or not), or with its own first windows,
 *            whichever is faster. Within a host this is shown and not judged: what varies there is
 *            when both ranks have a processor. Nor is a link with less than a twentieth of the
 *            busiest one's bytes: how long small messages are under way is no speed
 *
 * The same is done with the time in which a rank's main thread was on a processor: on a machine
 * that has other work to do it shows what the own time, with its random waits for a processor,
 * hides.
 *
 * A rank is late in a step which its lateness makes 10 % longer, and in a window if it is late in
 * SLOW_OF_WINDOW of its steps. A link is slow in a window if it has half of that speed or less, and
 * the time which that costs, less what either rank waited for a processor, makes the steps 10 %
 * longer. What lasts for TESS__PACE_STEPS steps and SLOW_LEAST_S is reported, once.
 *
 * Where only some steps are late, as with steps shorter than what disturbs them, the means of
 * windows are compared in the same way: a rank is late if it is in SLOW_OF_WINDOW of the last 20.
 *
 * What becomes slow at once is found sooner, and traced to the link or the host behind it:
 * slow_net.h.
 *
 * False alarms: where chance alone decides which rank is the later one, and steps are independent,
 * a rank is late in a step with p <= 1/2, and in a window with the upper tail of Bin(20, p) at 18:
 * 2.0e-4 for p = 1/2, 1.6e-9 for 1/4; that for each of the four comparisons. Steps below
 * SLOW_LEAST_S / 20 take k windows in a row, so the bound is that to the power of k.
 */
#ifndef TESSERA_RUN_SLOW_H
#define TESSERA_RUN_SLOW_H

#include "run/slow_net.h"

#include <jansson.h>

struct tess__slow;

/* What a rank or link is late in. */
enum tess__slow_cause {
    TESS__SLOW_DATA,
    TESS__SLOW_COMPUTE,
    TESS__SLOW_OPTIM,
    TESS__SLOW_OTHER,
    TESS__SLOW_PROCESSOR, /* other programs ran on its processor */
    TESS__SLOW_CAUSES
};

/* A rank in the latest window that all ranks have sent. NaN: not known. Seconds of a step. */
struct tess__slow_rank {
    double score;  /* what it took / what its like took: 1 is as the others */
    double late_s; /* beyond that of its like, at least 0 */
    double took_s; /* what is judged: own_s, or where only this is late the time on a processor */
    double own_s, step_s, delay_s;
    double part_s[TESS__PACE_PARTS];
    double wait_s[TESS_AXIS_COUNT], sent_bytes[TESS_AXIS_COUNT];
    bool late;                   /* reported, and not over */
    int64_t since;               /* late: first step */
    enum tess__slow_cause cause; /* late: what in */
};

struct tess__slow_link {
    int32_t from, to;
    int axis;           /* enum tess_axis; TESS_AXIS_COUNT: along none */
    double bytes_per_s; /* while any were under way */
    double score;       /* usual time / that of these bytes: below 1 is slow; NaN: not known */
    double late_s;      /* of a step: longer than usual, at least 0 */
    double busy_s;
    bool slow;
    int64_t since;
};

/* host [mesh->rank_count] names, borrowed. NULL without memory. */
struct tess__slow *tess__slow_open(const struct tess_mesh *mesh, const char *const *host);
/* Device r of the topology, which is borrowed, is that of rank r. */
void tess__slow_know(struct tess__slow *slow, const struct tess_topology *topology);
void tess__slow_close(struct tess__slow *slow); /* NULL is allowed */

/*
 * Keep a TESS__RUN_PACE or TESS__RUN_LINKS message. True when it makes a window whole; then the
 * functions below are about that window. Also true where a part of the network became slow.
 */
bool tess__slow_take(struct tess__slow *slow, const struct tess__message *message);

/* The next sentence about what began or ended with this window, NULL: no more. Valid until the next
 * call. */
const char *tess__slow_next(struct tess__slow *slow);

int64_t tess__slow_step(const struct tess__slow *slow); /* its last step; 0: no window so far */
const struct tess__slow_rank *tess__slow_rank_of(const struct tess__slow *slow, int32_t rank);
/* Links that carried bytes: link 0, 1, ... until false. */
bool tess__slow_link_of(const struct tess__slow *slow, int32_t number,
                        struct tess__slow_link *link_out);
const struct tess__slow_net_found *tess__slow_network(const struct tess__slow *slow);
int32_t tess__slow_count(const struct tess__slow *slow); /* of ranks and links that are slow now */

/* {"pace": {...}}; a new reference, NULL when out of memory. (slow_record.c) */
json_t *tess__slow_record(const struct tess__slow *slow, const struct tess_mesh *mesh,
                          const char *const *host);
extern const char *const tess__slow_cause_name[TESS__SLOW_CAUSES];

#endif
