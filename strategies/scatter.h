/*
 * Gradients that a rank does not keep. Backward writes a segment's whole gradient into one of a few
 * transient buffers; after every micro-batch it is reduced over the ranks, each keeps the sum of
 * its own part, and the buffer is used for the next segment:
 *
 *     buffer 0   | write 3 |--- reduce_scatter 3 ---| write 1 |-- ...
 *     buffer 1             | write 2 |--- reduce_scatter 2 ---| write 0 |
 *
 * Own parts are folded over the micro-batches (tess_fold_add), so the order is MICRO_FIRST. Where
 * gradients travel in another type (wire.h), every buffer has its copy in that type.
 *
 * The state of a strategy that uses these functions begins with a struct tess_scatter.
 */
#ifndef TESS_SCATTER_H
#define TESS_SCATTER_H

#include "gather.h"
#include "tessera/strategy.h"
#include "wire.h"

struct tess_scatter_slot {
    float *buffer;
    int64_t place;   /* of its first element, on the wire */
    int32_t segment; /* -1: free */
    int32_t micro;
    enum { SCATTER_FILLING, SCATTER_REDUCING, SCATTER_JOINING, SCATTER_UPDATING } stage;
    uint64_t number; /* order in which slots were sent */
    struct tess_event event;
};

struct tess_scatter {
    struct tess_wire wire;
    struct tess_comm *shard;    /* group whose ranks own the parts; borrowed */
    struct tess_gather *gather; /* whose buffers want updated values; NULL: none; borrowed */
    struct tess_comm *replica; /* ranks that own the same part; NULL where there is one; borrowed */
    struct tess_block block;
    int32_t slot_count; /* segment s goes to slot s % slot_count, as large as the largest there */
    uint64_t sent;
    struct tess_scatter_slot *slot; /* [slot_count] */
};

/*
 * Reserve buffers: as many as segments that one unit's backward writes, and one more to be on its
 * way. Pure.
 */
enum tess_status tess__scatter_reserve(struct tess_strategy *strategy);
enum tess_status tess__scatter_open(struct tess_strategy *strategy, struct tess_comm *shard,
                                    struct tess_comm *replica);
void tess__scatter_close(struct tess_strategy *strategy); /* accepts a half-opened one */

/* In backward, give every segment of `unit` its buffer; may wait for what was there to be reduced.
 * Collective. */
enum tess_status tess__scatter_enter(struct tess_strategy *strategy, int32_t unit,
                                     enum tess_phase phase);
/* Segment `s` is written: queue its reduction, and with it its update where that may be one pass.
 * Collective. */
enum tess_status tess__scatter_send(struct tess_strategy *strategy, int32_t s);
/* Wait for all; grad_own of every segment is folded, or the segment updated. Collective. */
enum tess_status tess__scatter_finish(struct tess_strategy *strategy);

/* Bytes that this rank sends in one micro-batch. Pure. */
uint64_t tess__scatter_sent_bytes(const struct tess_plan *plan);

#endif
