/*
 * Parameters that a rank does not keep: gathered for the unit that is about to run, one unit ahead
 * of it, into two buffers in turn. What a buffer holds stays right until the optimizer has run, so
 * a unit that comes back before its buffer was taken is not gathered again. Four units, as each is
 * entered:
 *
 *     unit       F0   F1   F2   F3   B3   B2   B1   B0   F0 of the next micro-batch
 *     buffer 0   0    2    2    2    2    2    0    0    0
 *     buffer 1   1    1    3    3    3    1    1    1    1
 *     gathered   0,1  2    3              1    0
 */
#ifndef TESS_GATHER_H
#define TESS_GATHER_H

#include "tessera/strategy.h"

struct tess_gather_slot {
    char *buffer;
    int32_t segment; /* -1: empty */
    struct tess_event event;
};

struct tess_gather {
    struct tess_comm *shard; /* group whose ranks own the parts; borrowed */
    struct tess_block block;
    int32_t slot_count;            /* segment s goes to slot s % slot_count */
    struct tess_gather_slot *slot; /* [slot_count] */
    int32_t *segment_of;           /* [unit_count], -1: the unit has no parameters */
};

/* For plans with one segment per unit. keep: a buffer for each instead of two. Pure. */
enum tess_status tess__gather_reserve(struct tess_gather *gather, struct tess_strategy *strategy,
                                      bool keep);
enum tess_status tess__gather_open(struct tess_gather *gather, struct tess_strategy *strategy,
                                   struct tess_comm *shard);
void tess__gather_close(struct tess_gather *gather); /* accepts a half-opened one */

/* Make `unit`'s parameters readable and start on those of the unit after it. Collective. */
enum tess_status tess__gather_enter(struct tess_gather *gather, struct tess_strategy *strategy,
                                    int32_t unit, enum tess_phase phase);
/* The optimizer has run: what the buffers hold is old. */
void tess__gather_forget(struct tess_gather *gather, struct tess_plan *plan);

/*
 * Bytes that this rank sends in one step. With two buffers and P bytes of parameters, of which
 * P_first and P_last are in the first and last two segments:
 *
 *     forward   P, then P - P_first in each further micro-batch
 *     backward  P - P_last in each micro-batch
 *
 * times (N-1)/N. With at most two segments, or a buffer for each: P once. Pure.
 */
uint64_t tess__gather_sent_bytes(const struct tess_plan *plan, bool keep);

#endif
