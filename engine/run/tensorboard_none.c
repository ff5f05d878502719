/* The event files of TensorBoard in a program that was built without protobuf-c. */
#include "run/tensorboard.h"

#include "tessera/check.h"

enum tess_status tess_tensorboard_open(const char *folder, struct tess_tensorboard **board_out)
{
    (void)folder, (void)board_out;
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "--tensorboard needs protobuf-c, without which this program was built: install "
              "libprotobuf-c-dev and protobuf-c-compiler and build again");
}

enum tess_status tess_tensorboard_write(struct tess_tensorboard *board, int64_t step,
                                        const struct tess_scalar *scalar, int32_t count)
{
    (void)board, (void)step, (void)scalar, (void)count;
    return TESS_OK; /* none is ever open */
}

enum tess_status tess_tensorboard_close(struct tess_tensorboard *board)
{
    (void)board;
    return TESS_OK;
}
