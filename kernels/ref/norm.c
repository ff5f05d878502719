/* Sums of squares over fixed blocks, and the search for what is not finite. */
#include "base/sum.h"
#include "ref/slots.h"
#include "ref/square.h"

#include <string.h>

void tess__ref_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          struct tess_sum *sum)
{
    (void)kernel;
    int64_t whole = count - count % TESS_SUM_BLOCK;
    for (int64_t i = 0; i < whole; i += TESS_SUM_BLOCK)
        tess_sum_add(sum, tess__square_block(x + i, scale));
    if (whole < count) {
        float block[TESS_SUM_BLOCK] = {0};
        memcpy(block, x + whole, (size_t)(count - whole) * sizeof(float));
        tess_sum_add(sum, tess__square_block(block, scale));
    }
}

/* Not finite is: all bits of the exponent set. */
static int64_t nonfinite_16(int64_t count, const uint16_t *x, uint16_t exponent)
{
    for (int64_t i = 0; i < count; i++)
        if ((x[i] & exponent) == exponent)
            return i;
    return -1;
}

static int64_t nonfinite_32(int64_t count, const uint32_t *x, uint32_t exponent)
{
    for (int64_t i = 0; i < count; i++)
        if ((x[i] & exponent) == exponent)
            return i;
    return -1;
}

static int64_t nonfinite_64(int64_t count, const uint64_t *x, uint64_t exponent)
{
    for (int64_t i = 0; i < count; i++)
        if ((x[i] & exponent) == exponent)
            return i;
    return -1;
}

int64_t tess__ref_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x)
{
    (void)kernel;
    const float *wide = x;
    const uint16_t *half = x;
    int64_t zeros = 0;
    for (int64_t i = 0; i < count; i++)
        zeros += dtype == TESS_F32 ? wide[i] == 0.0f : (half[i] & 0x7fffu) == 0;
    return zeros;
}

int64_t tess__ref_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x)
{
    (void)kernel;
    switch (dtype) {
    case TESS_F32:
        return nonfinite_32(count, x, 0x7f800000u);
    case TESS_BF16:
        return nonfinite_16(count, x, 0x7f80u);
    case TESS_F16:
        return nonfinite_16(count, x, 0x7c00u);
    case TESS_F64:
        return nonfinite_64(count, x, 0x7ff0000000000000u);
    default: /* integers are finite */
        return -1;
    }
}
