/*
 * A training that is started again after a failure, without a person (--restarts). The process that
 * the user started supervises; each attempt is a child of it, the launcher of its ranks:
 *
 *     supervisor   waits .................................... waits ........ ends as the last one
 *       attempt 0  steps 0 to 731, then a rank is killed
 *       attempt 1             continues from the newest checkpoint, step 700, ...
 *
 * With --topology.adapt also one whose ranks have agreed to be numbered anew (adapt.h); then ranks
 * that others started have a supervisor each.
 */
#ifndef TESSERA_RUN_RESTART_H
#define TESSERA_RUN_RESTART_H

#include "job/place_slow.h"

#include <stdbool.h>
#include <stdint.h>

/* The words of a layout: --ranks, --mesh, --accumulate. */
#define TESS__LAYOUT_WORDS 3
#define TESS__LAYOUT_BYTES 96

/* What became of the attempts so far; in memory that supervisor and attempt share. */
struct tess__history {
    int64_t restarts;
    int64_t lost_steps; /* that were computed more than once */
    int64_t step;       /* that the attempt has done, counted from the beginning of the run */
    int32_t status;     /* enum tess_status of an attempt that has ended by itself */
    int32_t ranks;      /* of the first attempt */
    bool met;           /* the launchers of the attempt's ranks, where others started them */
    bool again;         /* an attempt follows one that lost a process */
    int32_t lost_ranks; /* processes that were killed or stopped, in all attempts */
    char layout[TESS__LAYOUT_WORDS][TESS__LAYOUT_BYTES]; /* options that the next one has; "" */
    int64_t renumbered;               /* how often attempts have ended for other numbers of ranks */
    _Atomic int32_t renumber;         /* enum tess__renumber, of this attempt */
    struct tess__slowed_parts slowed; /* for which that was; of process 0 */
};

/* How an attempt begins. */
enum tess__attempt { TESS__ATTEMPT_FIRST, TESS__ATTEMPT_RESUME, TESS__ATTEMPT_OVERWRITE };

struct tess__restart {
    const char *run;    /* folder of the run */
    const char *copies; /* folder of --redundancy: removed at the end; "": none */
    int64_t restarts;   /* at most */
    int32_t ranks;      /* of the first attempt */
    bool adapts;        /* go on after an attempt whose ranks are to be numbered anew */
    bool quiet;         /* another supervisor reports */
    bool signalled;     /* a signal comes to the attempt as well */
    int32_t least; /* go on with the ranks that are left, while there are so many; 0: with all */
    /* Trains in a process of its own; returns the exit status and sets history->status. */
    int (*attempt)(void *context, enum tess__attempt begin, struct tess__history *history);
    /* The layout of so many ranks, `least` or more, into history->layout; it returns an exit
     * status. In a process of its own, for runs on several hosts. */
    int (*choose)(void *context, int32_t left, struct tess__history *history);
    void *context;
};

/*
 * Attempts until one ends otherwise than by a lost process, a communicator, a time limit or a
 * device, or, with `adapts`, for other numbers of ranks, or until there were too many. Signals to
 * end or to save go on to the attempt, after which there is no other. Returns the exit status of
 * the last one, 128 + signal where it was killed. The caller has no other threads.
 */
int tess__restart_run(const struct tess__restart *restart);

/* ---- for hosts.c ----------------------------------------------------------------------------- */

/* Is it the status of an attempt after which another one may succeed? */
bool tess__restart_may_help(int32_t status);
/* Have the ranks of an attempt that ended well agreed to be numbered anew? */
bool tess__restart_renumbers(const struct tess__history *history);
/* May another attempt follow? Logs where they are used up. */
bool tess__restart_is_left(const struct tess__restart *restart,
                           const struct tess__history *history);
/* Account for an attempt that ended, as a restart where `counts`, and choose how the next one
 * begins. */
enum tess__attempt tess__restart_next(const struct tess__restart *restart, bool counts,
                                      struct tess__history *history);
/* The step of the newest complete checkpoint on the disk; -1: there is none. */
int64_t tess__restart_saved(const struct tess__restart *restart);
/* Ranks whose launcher was killed are children of the supervisor until they are gone, with their
 * memory and the lock of the run's folder: wait for that. They are in its process group, where no
 * other child is. */
void tess__restart_drain(void);

#endif
