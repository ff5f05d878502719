/* Sums of squares over fixed blocks, sums over leaves, the search for what is not finite, first
 * values. */
#include "base/rng.h"
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

void tess__ref_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, double *sum)
{
    (void)kernel;
    const float *wide = x;
    const uint16_t *half = x;
    int64_t zeros = 0;
    for (int64_t i = 0; i < count; i++)
        zeros += dtype == TESS_F32 ? wide[i] == 0.0f : (half[i] & 0x7fffu) == 0;
    *sum += (double)zeros;
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

void tess__ref_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                         struct tess_verdict *verdict)
{
    if (verdict->grad_bad < flag && tess__ref_find_nonfinite(kernel, TESS_F32, count, x) >= 0)
        verdict->grad_bad = flag;
}

void tess__ref_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                        const float *loss, const int32_t *correct, double *sum,
                        struct tess_verdict *verdict)
{
    const int64_t bad = tess__ref_find_nonfinite(kernel, TESS_F32, leaves * leaf_rows, loss);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        double loss_sum = 0, correct_sum = 0;
        for (int64_t r = leaf * leaf_rows; r < (leaf + 1) * leaf_rows; r++) {
            loss_sum += loss[r];
            correct_sum += correct[r];
        }
        sum[2 * leaf] = loss_sum;
        sum[2 * leaf + 1] = correct_sum;
    }
    if (bad >= 0)
        verdict->loss_bad = (int32_t)bad + 1;
}

/* Where x is NaN y stays; the caller's are finite or minus infinity. */
void tess__ref_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    (void)kernel;
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] > y[i] ? x[i] : y[i];
}

void tess__ref_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                      int64_t count, float mean, float deviation, float *y)
{
    (void)kernel;
    tess_rng_normals((struct tess_rng_key){{key[0], key[1]}}, first, (uint64_t)count, y);
    for (int64_t i = 0; i < count; i++)
        y[i] = mean + deviation * y[i];
}
