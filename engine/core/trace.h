/*
 * The recorder of time lines: what every rank did when, for a window of steps. One lane of events
 * per rank, in memory that the launcher maps before the ranks start and reads after they ended,
 * however they ended. Only the rank writes to its lane, from one thread: no lock, no allocation, no
 * system call but the clock's. The reader makes files of it.
 *
 *     phase        |--------- step 1 ---------|--- step 2 ...        at most one at a time
 *     doing        |load|forward a|..|backward b|..|optimizer|       at most one at a time
 *     call              |- all_gather -|  |---- all_reduce ----|     may overlap one another
 *     wait                  |----------|        |--------------|     at most one at a time
 */
#ifndef TESSERA_CORE_TRACE_H
#define TESSERA_CORE_TRACE_H

#include "comm/world.h"

enum tess_trace_kind { TESS_TRACE_PHASE, TESS_TRACE_DOING, TESS_TRACE_CALL, TESS_TRACE_WAIT };
enum tess_trace_phase { TESS_TRACE_STEP, TESS_TRACE_EVALUATION, TESS_TRACE_DIGEST };

#define TESS_TRACE_SITE_BYTES 32

struct tess_trace_event {
    double begin_s, end_s; /* CLOCK_MONOTONIC, the same on all ranks; end_s 0: not ended */
    int64_t step;          /* from 1; 0 before the first */
    uint64_t bytes;        /* CALL: count x size of an element, as documented at the call */
    uint32_t call;         /* CALL, WAIT: number of the call on this rank, from 1; 0: not known */
    int32_t unit;          /* DOING: -1 when none */
    int32_t rank_count;    /* CALL: of the group */
    uint8_t kind;          /* enum tess_trace_kind */
    uint8_t what; /* enum tess_trace_phase, tess_doing or, for CALL and WAIT, tess_collective */
    uint8_t dtype;
    bool training;                    /* DOING: false in evaluations */
    char site[TESS_TRACE_SITE_BYTES]; /* CALL: where it was called from, cut to its end */
};

struct tess_trace;      /* all lanes */
struct tess_trace_lane; /* one rank's */

/* ---- the launcher ---------------------------------------------------------------------------- */

/*
 * Map lanes of `event_max` events; pages are the kernel's to add as they are touched. Recorded are
 * steps `first` to `first + steps - 1` with what follows each of them, and the start when first
 * is 1. TESS_ERR_MEMORY.
 */
enum tess_status tess_trace_open(int32_t rank_count, uint32_t event_max, int64_t first,
                                 int64_t steps, struct tess_trace **trace_out);
void tess_trace_close(struct tess_trace *trace); /* NULL is allowed; after all ranks ended */

double tess_trace_origin_s(const struct tess_trace *trace); /* clock when it was opened */
/* NULL trace: NULL, which every function of a lane takes for "not recording". */
struct tess_trace_lane *tess_trace_lane(struct tess_trace *trace, int32_t rank);
/* The events so far, in order of begin_s. */
const struct tess_trace_event *tess_trace_events(const struct tess_trace_lane *lane,
                                                 uint32_t *count_out);
/* When the lane was found full, and in which step; 0: it was not. Nothing begins after that. */
double tess_trace_full_s(const struct tess_trace_lane *lane, int64_t *step_out);

/* ---- the rank -------------------------------------------------------------------------------- */

/* The rank has started. */
void tess_trace_start(struct tess_trace_lane *lane);
/* Records the calls of the communicator it is set on, and of groups split from it later. NULL: none
 */
const struct tess_comm_observer *tess_trace_observer(const struct tess_trace_lane *lane);
/* A phase begins; phases that are not steps belong to the latest step. Ends what is open. */
void tess_trace_begin(struct tess_trace_lane *lane, enum tess_trace_phase phase, int64_t step);
void tess_trace_end(struct tess_trace_lane *lane);
/* The rank begins something else; TESS_DOING_BETWEEN and ENDED: nothing. */
void tess_trace_doing(struct tess_trace_lane *lane, enum tess_doing doing, int32_t unit,
                      bool training);
/* The steps are over: nothing more is recorded. */
void tess_trace_stop(struct tess_trace_lane *lane);

#endif
