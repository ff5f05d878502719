/*
 * How long each rank's own part of the steps takes. A rank keeps the times of its last steps and
 * sends them to the launcher every TESS__PACE_STEPS steps, together with what the kernel has
 * counted of its connections: no rank waits for another one, and a step has no message more. Where
 * two or more steps in a row take much longer than those of the window before, it sends what the
 * kernel has counted after TESS__PACE_SOON steps, for a while: a link that became slow is found by
 * that (slow_net.h). Other steps cost a comparison.
 */
#ifndef TESSERA_JOB_PACE_H
#define TESSERA_JOB_PACE_H

#include "comm/net/net.h"
#include "job/run.h"

#define TESS__PACE_STEPS 20
#define TESS__PACE_SOON  5 /* divides it */

/* Parts of a step that are a rank's own. COMPUTE: forward and backward. OTHER: what is none of the
 * others, such as what is done between steps. */
enum tess__pace_part {
    TESS__PACE_DATA,
    TESS__PACE_COMPUTE,
    TESS__PACE_OPTIM,
    TESS__PACE_OTHER,
    TESS__PACE_PARTS
};

/* Every rank: TESS__PACE_STEPS steps, the same ones on every rank. Seconds. */
struct tess__run_pace {
    int64_t window;                 /* from 0 in this process */
    int64_t step;                   /* the last one */
    int32_t kind;                   /* ranks of one kind have the same work */
    float own_s[TESS__PACE_STEPS];  /* of each step, without waiting for other ranks */
    float work_s[TESS__PACE_STEPS]; /* of each step: its main thread was on a processor */
    float step_s, median_s;         /* of a step with its waits and without: medians */
    float part_s[TESS__PACE_PARTS]; /* medians of the parts */
    float mean_s, part_mean_s[TESS__PACE_PARTS]; /* means of a step and of the parts */
    float delay_s; /* mean of a step: its main thread could run, and no processor was free */
    float wait_s[TESS_AXIS_COUNT], sent_bytes[TESS_AXIS_COUNT]; /* along each axis: means */
};

/* What a rank has sent to each of its peers in a window; in several messages where there are many,
 * before the window's tess__run_pace. */
#define TESS__PACE_LINKS 16
struct tess__run_links {
    int64_t window;
    int64_t since; /* 0; else a window of TESS__PACE_SOON steps: since when steps take longer */
    int64_t step;  /* of such a window: its last step; seconds of a step, the mean */
    float step_s;
    int32_t last; /* of such a window: it has no more messages */
    int32_t count;
    struct {
        int32_t peer;
        float bytes, busy_s; /* of a step: means */
    } link[TESS__PACE_LINKS];
};

_Static_assert(sizeof(struct tess__run_pace) <= TESS__MESSAGE_BYTES &&
                   sizeof(struct tess__run_links) <= TESS__MESSAGE_BYTES,
               "a window is a message, and so are some of its links");

/* Of a rank. */
struct tess__pace {
    const struct tess__rank *rank;
    const struct tess_comm *comm;
    bool on;      /* the run keeps it */
    bool began;   /* a window is under way */
    int delay_fd; /* the kernel's counts of this thread; -1: it has none */
    int32_t used; /* steps of the window so far */
    struct tess__run_pace now;
    float total_s[TESS__PACE_STEPS], part_s[TESS__PACE_PARTS][TESS__PACE_STEPS];
    /* When the window began. */
    double delay_s, wait_s[TESS_AXIS_COUNT];
    double worked_s; /* by its main thread, when the latest step ended */
    uint64_t sent_bytes[TESS_AXIS_COUNT];
    struct tess_transport_link *link; /* [ranks] */
    struct tess__pace_soon {
        double usual_s; /* median of a step in the latest window; 0: none so far */
        int32_t row;    /* steps in a row that took much longer, and how long */
        double row_s;
        int64_t since;  /* the first of them, the last time that it was more than chance */
        bool on, began; /* short windows are to be sent; one is under way */
        int32_t windows;
        double lasts_s, total_s;          /* of all of them, and of this one */
        struct tess_transport_link *link; /* [ranks] */
    } soon;
};

/* In the rank's thread; the arguments are borrowed. To be closed in any case. */
enum tess_status tess__pace_open(struct tess__pace *pace, const struct tess__run *run,
                                 const struct tess__rank *rank, const struct tess_comm *comm,
                                 const struct tess_plan *plan);
void tess__pace_close(struct tess__pace *pace);

/*
 * After step `step`, which is number `counted` after the warm-up: windows begin after counted 0,
 * TESS__PACE_STEPS, ... total_s: of the step, from the end of the one before. The sums along the
 * axes are those since the run began. Sends a window that is whole.
 */
enum tess_status tess__pace_step(struct tess__pace *pace, int64_t counted, int64_t step,
                                 double total_s, const struct tess_times *times,
                                 const double wait_s[TESS_AXIS_COUNT],
                                 const uint64_t sent_bytes[TESS_AXIS_COUNT]);

/* The median of value [count], count >= 1, which it sorts; of an even count the mean of both. */
float tess__pace_median(float *value, int32_t count);

#endif
