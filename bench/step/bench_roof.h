/* What this machine's cores can do at most with a model and a layout, if a step were what every
 * step of that layout has, and nothing else. */
#ifndef TESSERA_BENCH_STEP_BENCH_ROOF_H
#define TESSERA_BENCH_STEP_BENCH_ROOF_H

#include "bench/step/bench_ceiling.h"

/*
 * The speed, if all cores did nothing but products, attention and norms, in the order of a step,
 * and sums of gradients and the update. Each core has the arrays of its ranks, as large as theirs,
 * and so finds its operands where a step finds them:
 *
 *     for each of its ranks      forward of all operations, in order
 *                                backward of all, in reverse
 *       with the last one's      as soon as all ranks have a gradient: the core's slice of the sum,
 *                                of the update, and of new values for all ranks
 *
 * With fewer ranks on the data axis than cores, several compute one: of a linear layer each all
 * rows of its share of the outputs, of all else its share of the rows. One rank's update needs no
 * sum and may be one with the gradient (tess_op.update). With `gathers` ranks keep a share of the
 * parameters: each copies weights from all before it uses them, but for those of the two units that
 * it still has, or is given by the update. Products are Tessera's in one step, in the next those of
 * `ceiling->choice`, on the step's arrays, and the faster one counts. Not in it: waits, work
 * between operations (biases' gradients, activation functions, residual sums, dropout), loss, data.
 *
 * Models larger than ROOF_BYTES a core are measured as far as that: what is left is taken to be as
 * the last operation that is alike.
 */
enum tess_status tess__bench_roof(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int cores, bool gathers,
                                  const struct tess__bench_ceiling *ceiling,
                                  double *samples_per_s_out);

#endif
