/*
 * Parameters that a rank does not keep: gathered for the unit that is about to run, one unit ahead
 * of it, into two buffers in turn, and dropped when the unit is left. Only the last keep_last units
 * stay from forward to backward, and in training alone. Four units, as each is entered:
 *
 *     unit       F0   F1   F2   F3   B3   B2   B1   B0   F0 of the next micro-batch
 *
 *     keep_last 1
 *     buffer 0   0    2    2    .    2    2    0    0    0
 *     buffer 1   1    1    3    3    3    1    1    .    1
 *     gathered   0,1  2    3         2    1    0         0,1
 *
 *     keep_last 2
 *     buffer 0   0    2    2    2    2    2    0    0    0
 *     buffer 1   1    1    3    3    3    1    1    .    1
 *     gathered   0,1  2    3              1    0         0,1
 *
 * In a pipeline the next pass may be of another micro-batch, of another chunk, or forward once
 * more. There keep_last is 0 and the unit ahead is one of the same chunk, so that every unit is
 * gathered once for each pass, in whichever order passes come; or all units are kept until the
 * optimizer has run.
 *
 * A unit that shares the values of another one (a tied embedding) is gathered as if they were its
 * own, into the buffer of its turn; where all are kept, it reads the other one's buffer.
 *
 * Backward of the first unit of a model mostly reads no values (tess_segment.forward_only): then
 * they are not gathered for it.
 */
#ifndef TESS_GATHER_H
#define TESS_GATHER_H

#include "tessera/strategy.h"

/* As keep_last: a buffer for every unit, which keeps what it holds until tess__gather_forget. */
enum { TESS_GATHER_ALL = -1 };

struct tess_gather_slot {
    char *buffer;
    int32_t segment; /* -1: empty */
    /* Gathered; or given by the ranks that updated it, in a step that goes on or in the last one.
     */
    enum { GATHER_GATHERED, GATHER_UPDATED, GATHER_GIVEN } how;
    struct tess_event event;
};

/* Segments of one kind, each of a unit. */
struct tess_gather_lane {
    int32_t first, end;            /* segments */
    int32_t slot_count;            /* segment first + s goes to slot s % slot_count */
    struct tess_gather_slot *slot; /* [slot_count] */
    int32_t *segment_of;           /* [unit_count], -1: the unit has no parameters of the kind */
};

/* Trained parameters, then frozen ones. */
enum { TESS_GATHER_LANES = 2 };

struct tess_gather {
    struct tess_comm *shard; /* group whose ranks own the parts; borrowed */
    struct tess_block block;
    int32_t keep_last; /* TESS_GATHER_ALL, or 0 to 2 */
    struct tess_gather_lane lane[TESS_GATHER_LANES];
};

/* For plans with one segment per unit and kind. keep_last: TESS_GATHER_ALL, or 0 to 2, which cost
 * the same memory. Pure. */
enum tess_status tess__gather_reserve(struct tess_gather *gather, struct tess_strategy *strategy,
                                      int32_t keep_last);
enum tess_status tess__gather_open(struct tess_gather *gather, struct tess_strategy *strategy,
                                   struct tess_comm *shard);
void tess__gather_close(struct tess_gather *gather); /* accepts a half-opened one */

/*
 * Make `unit`'s parameters readable and start on those of the unit after it, into the buffer that
 * no unit reads. Units may come in any order, the same one on all ranks; every enter is followed by
 * its leave. Collective.
 */
enum tess_status tess__gather_enter(struct tess_gather *gather, struct tess_strategy *strategy,
                                    int32_t unit, enum tess_phase phase);
/* The unit has run: drop its parameters unless they stay. */
void tess__gather_leave(struct tess_gather *gather, struct tess_strategy *strategy, int32_t unit,
                        enum tess_phase phase);
/*
 * The buffer for the values of segment `s` after this step's update, which are then not gathered
 * for the next forward; NULL where another segment would need the buffer before. After backward of
 * the segment in the step's last micro-batch, once all ranks have it; values are there before
 * tess__gather_forget. The answer is the same on all ranks.
 */
void *tess__gather_take(struct tess_gather *gather, struct tess_plan *plan, int32_t s);
/* The optimizer has run: what the buffers hold of trained parameters is old, but for those taken in
 * this step; `frozen`: of all. */
void tess__gather_forget(struct tess_gather *gather, struct tess_plan *plan, bool frozen);

/*
 * Bytes that this rank sends in one step. With P bytes of parameters, P_last of them in the last
 * keep_last segments, and S micro-batches:
 *
 *     forward   S P
 *     backward  S (P - P_last - P_forward)
 *
 * (P_forward: of segments that only forward reads, the last ones left out) times (N-1)/N, without
 * evaluations, for trained and frozen ones apart. With TESS_GATHER_ALL: P once, without shared
 * values and frozen ones, which stay. Pure.
 */
uint64_t tess__gather_sent_bytes(const struct tess_plan *plan, int32_t keep_last);

#endif
