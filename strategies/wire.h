/*
 * Gradients on their way between ranks in a type of two bytes (plan->reduce_dtype): half of what
 * f32 sends, for a copy of the gradients in that type and two casts. The sum itself is the
 * communicator's: it adds in f32 and rounds once.
 *
 *     f32 gradient -> pack -> copy in bf16 -> reduce, in place -> unpack -> f32 gradient
 *                     rounds                  rounds
 *
 * In f32, and where there is one rank, nothing is reserved, copied or rounded.
 *
 * Which bits agree. Every element is rounded once on each rank and once in each reduction, so bits
 * depend on what was summed before it travels: on the number of ranks and micro-batches and on who
 * reduces when, not on how the flat space is cut into segments. With the same ranks and
 * micro-batches
 *
 *     once per step              dp = ddp = zero1
 *     in every micro-batch       ddp with sync-every-micro-batch = zero2 = fsdp
 *     in it, and in two stages   hsdp with several groups of several ranks
 *
 * and the first two are the same with one micro-batch. Across numbers of ranks bits differ.
 */
#ifndef TESS_WIRE_H
#define TESS_WIRE_H

#include "tessera/strategy.h"

/* The state of a strategy that sends gradients begins with this. */
struct tess_wire {
    enum tess_dtype dtype; /* in which gradients travel */
    struct tess_block block;
    char *memory;             /* NULL in f32: gradients travel from where they are */
    struct tess_event *event; /* [segment_count] for calls of the strategy */
};

/* The type in which gradients of this plan travel: f32 when there is one rank. Pure. */
enum tess_dtype tess__wire_dtype(const struct tess_plan *plan);

/* Bytes of segment `s`, padding included, when its gradients travel. Pure. */
uint64_t tess__wire_segment_bytes(const struct tess_plan *plan, int32_t s);

/* Reserve places 0 .. count-1 for copies, one for each element that may be on its way. Pure. */
enum tess_status tess__wire_reserve(struct tess_strategy *strategy, int64_t count);

/* Hooks: places for the flat space; advance calls behind backward. */
enum tess_status tess__wire_reserve_flat(struct tess_strategy *strategy);
enum tess_status tess__wire_open(struct tess_strategy *strategy);
void tess__wire_close(struct tess_strategy *strategy);
enum tess_status tess__wire_unit_leave(struct tess_strategy *strategy, int32_t unit,
                                       enum tess_phase phase);

/*
 * What to hand to the communicator for the gradients at `grad` whose copies are at place `at`: the
 * copies, or `grad` itself in f32. pack makes the copies of `count` elements first; unpack brings
 * them back to `grad` after the reduction.
 */
void *tess__wire_place(const struct tess_strategy *strategy, int64_t at, float *grad);
void *tess__wire_pack(const struct tess_strategy *strategy, int64_t at, int64_t count, float *grad);
void tess__wire_unpack(const struct tess_strategy *strategy, int64_t at, int64_t count,
                       float *grad);

/* Wait for the sums of the gradients that are tied to segment `s`: tess_segment_update. */
enum tess_status tess__wire_wait_tied(const struct tess_strategy *strategy, int32_t s);

/* Lines for --explain: where gradients do not travel in f32, and, after the words `sent`, what the
 * strategy sends in a step. */
void tess__wire_describe(const struct tess_strategy *strategy, const char *sent,
                         void (*line)(void *context, const char *text), void *context);

#endif
