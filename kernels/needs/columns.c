/* Scratch of sums over rows, which several kinds of operation need. */
#include "needs/needs.h"
#include "needs/rows.h"

size_t tess__cuda_column_sum_bytes(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                   int64_t n)
{
    const struct columns_shape s = columns_shape_of(leaves, leaf_rows, n, rows_piece(dtype));
    return (size_t)(leaves * (s.slabs + 1) * n) * sizeof(float);
}
