/* Sums of squares over fixed blocks, sums over leaves, the search for what is not finite, first
 * values. */
#include "base/rng.h"
#include "ref/slots.h"
#include "ref/square.h"

void tess__ref_square_sum(struct tess_kernel *kernel, int64_t count, int32_t block, float scale,
                          const float *x, struct tess_sum *sum)
{
    (void)kernel;
    tess__square_sum(count, block, scale, x, sum);
}

void tess__ref_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                              int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        tess_square_sum(kernel, square[i].count, square[i].block, square[i].scale, square[i].x,
                        square[i].sum);
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

/* Not finite: all bits of the exponent are set. */
int64_t tess__ref_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x)
{
    static const uint64_t exponents[TESS_DTYPE_COUNT] = {[TESS_F32] = 0x7f800000u,
                                                         [TESS_BF16] = 0x7f80u,
                                                         [TESS_F16] = 0x7c00u,
                                                         [TESS_F64] = 0x7ff0000000000000u};
    const uint64_t exponent = exponents[dtype], *wide = x;
    const uint32_t *whole = x;
    const uint16_t *half = x;
    const size_t bytes = tess_dtype_bytes(dtype);
    (void)kernel;
    if (exponent == 0) /* integers are finite */
        return -1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = bytes == 2 ? half[i] : bytes == 4 ? whole[i] : wide[i];
        if ((bits & exponent) == exponent)
            return i;
    }
    return -1;
}

/* With the kernel's own search. */
void tess__ref_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                         struct tess_verdict *verdict)
{
    if (verdict->grad_bad < flag && kernel->ops->find_nonfinite(kernel, TESS_F32, count, x) >= 0)
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
