/* TensorBoard event files: curves of a run for those who have TensorBoard open already. */
#ifndef TESSERA_RUN_TENSORBOARD_H
#define TESSERA_RUN_TENSORBOARD_H

#include "tessera/status.h"

#include <stdint.h>

struct tess_tensorboard;

struct tess_scalar {
    const char *tag; /* "train/loss"; borrowed during the call */
    double value;    /* one that is not finite is left out */
};

/*
 * Create `folder` with its parents and a new event file in it, named by time, host and process, so
 * that runs never share one. TESS_ERR_UNSUPPORTED, with the way out, when this program was built
 * without protobuf-c.
 */
enum tess_status tess_tensorboard_open(const char *folder, struct tess_tensorboard **board_out);

/*
 * Append one event with these scalars; it is in the file when the call returns. A failed write
 * (disk full) is a warning: the file ends with the last whole event, and later calls return the
 * same status without another message. `board` NULL: nothing is written.
 */
enum tess_status tess_tensorboard_write(struct tess_tensorboard *board, int64_t step,
                                        const struct tess_scalar *scalar, int32_t count);

/* Close, and return the first failure of any write or of the close itself. NULL is allowed. */
enum tess_status tess_tensorboard_close(struct tess_tensorboard *board);

#endif
