/*
 * Fewer ranks for a training that continues: after a rank was lost, the largest layout on those
 * that are left which has the same grid, and so the same bits (--min-ranks).
 */
#ifndef TESSERA_RUN_SHRINK_H
#define TESSERA_RUN_SHRINK_H

#include "config/config.h"
#include "data/data.h"
#include "text/command.h"

/*
 * Add the options to `args` that a run needs to keep its bits on other ranks, as it was resolved
 * for those of `config`: grid, batch, learning rate, parts of the tensor axis. Nothing to do for a
 * run that continues from a checkpoint, which has them.
 */
enum tess_status tess__shrink_fix(struct tess__args *args, const struct tess_config *config);

/*
 * Add the options of a layout to `args`, for at most `left` ranks and at least `least`: the most
 * ranks first, then the layout that keeps the tensor axis and the stages of `former`, the
 * configuration without these options. Which are legal is asked of configuration, plan and the
 * host's memory. The choice is logged. TESS_ERR_USAGE: there is none.
 */
enum tess_status tess__shrink_choose(struct tess__args *args, const struct tess_config_table *table,
                                     const struct tess_config *former,
                                     const struct tess_dataset *dataset, int32_t left,
                                     int32_t least);

#endif
