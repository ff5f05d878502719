/*
 * The values of this rank's parameters, for host code, from open to close; meanwhile nothing may
 * change them. Device memory is open to the host for so long, or, where it is far, read ahead in
 * larger pieces than the host uses.
 */
#ifndef TESSERA_CORE_VALUES_H
#define TESSERA_CORE_VALUES_H

#include "optim/optim.h"

struct tess_values {
    struct tess_kernel *kernel;               /* NULL: not open */
    enum tess_dtype dtype;                    /* of values without a master */
    void *ahead;                              /* far memory: a copy of elements of one piece */
    const void *ahead_of;                     /* that piece's first element on the device */
    int64_t ahead_from, ahead_end, ahead_max; /* elements */
};

/* `ahead`: elements to read at a time where memory is far; one piece's are enough. */
enum tess_status tess__values_open(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t ahead,
                                   struct tess_values *values_out);
/*
 * Elements [from, from + count) of a piece as f32: its master, or its small values widened into
 * `room` [count]. count <= ahead. Valid until the next call and close.
 */
enum tess_status tess__values_get(struct tess_values *values, const struct tess_piece *piece,
                                  int64_t from, int64_t count, float *room, const float **x_out);
void tess__values_close(struct tess_values *values); /* a zeroed one is allowed */

/* Elements to read ahead in one pass over all: 4 MiB of f32, enough for the full speed of a copy.
 */
#define TESS_VALUES_AHEAD (INT64_C(1) << 20)

#endif
