/*
 * Pipelines: in which order every rank of the stage axis works, what it keeps alive meanwhile, how
 * long all of it takes, and where the units are cut into virtual stages. Pure; what runs the orders
 * is the core. Which rank runs which virtual stage stands at struct tess_unit_cost.
 *
 * F3 is the forward of micro-batch 3 and B3 its backward, in chunk 1 f3 and b3. Here each takes a
 * slot, and sending takes no time:
 *
 *   gpipe (Huang et al. 2019): 3 stages, 4 micro-batches, all of which stay alive
 *
 *     stage 0   F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
 *     stage 1    . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
 *     stage 2    .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .
 *
 *   1f1b (Narayanan et al. 2019, "PipeDream"; 2021, section 2.2.1): as long, but stage s keeps 3 -
 * s
 *
 *     stage 0   F0 F1 F2  .  . B0 F3 B1  . B2  . B3
 *     stage 1    . F0 F1  . B0 F2 B1 F3 B2  . B3  .
 *     stage 2    .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .
 *
 *   interleaved (Narayanan et al. 2021, "Efficient large-scale language model training on GPU
 *   clusters using Megatron-LM", section 2.2.2): 2 stages of 2 chunks, 4 micro-batches
 *
 *     stage 0   F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1  . b2  . b3 B2 B3
 *     stage 1    . F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3  .
 *
 * Backward takes the micro-batches of a chunk in order in all of them, as the fold of gradients
 * needs it. Messages from one rank to another are sent and taken in the same order, forward and
 * backward apart, so that channels need no tags.
 */
#ifndef TESS_PIPE_H
#define TESS_PIPE_H

#include "tessera/strategy.h"

enum tess_pipe_schedule { TESS_PIPE_GPIPE, TESS_PIPE_1F1B, TESS_PIPE_INTERLEAVED };

struct tess_pipe {
    enum tess_pipe_schedule schedule;
    int32_t stage_count, chunk_count; /* ranks, and virtual stages of each */
    int32_t micro_count;
};

const char *tess__pipe_schedule_name(enum tess_pipe_schedule schedule);

/*
 * gpipe and 1f1b have one chunk; interleaved has two or more on two stages or more, and goes by
 * rounds of as many micro-batches as stages. TESS_ERR_USAGE with what fits. The functions below are
 * for pipelines that pass.
 */
enum tess_status tess__pipe_check(const struct tess_pipe *pipe);

/* Actions of one rank: 2 x chunks x micro-batches. */
int32_t tess__pipe_action_count(const struct tess_pipe *pipe);
/* Those of rank `stage` of the axis, in order. */
void tess__pipe_order(const struct tess_pipe *pipe, int32_t stage, struct tess_action *action_out);

/*
 * The greatest number of micro-batches whose forward in this chunk of this rank has run and whose
 * backward has not. gpipe: all; 1f1b: stages - stage, if there are as many.
 */
int32_t tess__pipe_in_flight(const struct tess_pipe *pipe, int32_t stage, int32_t chunk);

/*
 * The share of a step in which a rank has nothing to do, on stages that take the same time, with
 * sending for nothing. p stages, m micro-batches, v chunks: (p - 1) / (v m + p - 1).
 */
double tess__pipe_bubble(const struct tess_pipe *pipe);

/* How long things take; in any unit. */
struct tess_pipe_times {
    const double *forward, *backward; /* [virtual stages] of one micro-batch */
    double transfer; /* of one message; a channel moves one at a time, and sending does not wait */
};

/*
 * Run the orders of all ranks, order [stages, actions of one], in virtual time:
 *
 *   start_out  [stages, actions of one]  when each action begins
 *   idle_out   [stages]                  the share of the time in which the rank does nothing
 *   span_out                             when the last action ends
 *
 * TESS_ERR_INTERNAL with the rank and the action where an order is wrong: a backward before its
 * forward, a message taken in another order than it was sent, ranks that wait for each other.
 */
enum tess_status tess__pipe_simulate(const struct tess_pipe *pipe, const struct tess_action *order,
                                     const struct tess_pipe_times *times, double *start_out,
                                     double *idle_out, double *span_out);

/*
 * Cut units into virtual stages, each of one unit at least: first_out [virtual_count + 1].
 * 1 <= virtual_count <= unit_count. held [virtual_count]: micro-batches whose activations each
 * keeps. Of all cuts, those in which the virtual stage with the most work has the least; of these,
 * those in which the one with the most bytes (parameters, and activations of what it holds) has the
 * least; of these, the most even one by the sum of squares of work; then the one whose first border
 * comes first. Works within 1e-9 of each other are the same, as sums round.
 */
enum tess_status tess__pipe_cut(const struct tess_unit_cost *cost, const int32_t *held,
                                int32_t unit_count, int32_t virtual_count, int32_t *first_out);

#endif
