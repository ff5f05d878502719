/*
 * Own loops over plain arrays: ReLU, add, casts, accumulate, sums of squares, search, updates. The
 * arithmetic is that of ref (half.h, rules.h, square.h), and so are the bits.
 */
#include "cpu/loops/loops.h"

#include "base/sum.h"
#include "cpu/own/stage.h"
#include "ref/ref.h"
#include "ref/rules.h"
#include "ref/square.h"

#include <string.h>

CPU_INLINE int64_t plain_block(int64_t first, int64_t count)
{
    return count - first < CPU_BLOCK ? count - first : CPU_BLOCK;
}

/* A NaN passes through: it is not below 0. */
CPU_INLINE void plain_relu_block(enum tess_dtype dtype, int64_t first, int64_t count, const void *x,
                                 void *y)
{
    float copy[CPU_BLOCK];
    cpu_read(dtype, x, first, count, copy);
    for (int64_t i = 0; i < count; i++)
        copy[i] = copy[i] < 0 ? 0.0f : copy[i];
    cpu_write(dtype, y, first, count, copy);
}

CPU_INLINE void plain_relu(enum tess_dtype dtype, int64_t count, const void *x, void *y)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        plain_relu_block(dtype, first, CPU_BLOCK, x, y);
    plain_relu_block(dtype, first, plain_block(first, count), x, y);
}

void CPU_LOOP(relu_forward)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, plain_relu, count, x, y);
}

CPU_INLINE void plain_cut_block(enum tess_dtype dtype, int64_t first, int64_t count, const void *y,
                                const void *dy, void *dx)
{
    float output[CPU_BLOCK], copy[CPU_BLOCK];
    cpu_read(dtype, y, first, count, output);
    cpu_read(dtype, dy, first, count, copy);
    for (int64_t i = 0; i < count; i++)
        copy[i] = output[i] > 0 ? copy[i] : 0.0f;
    cpu_write(dtype, dx, first, count, copy);
}

CPU_INLINE void plain_cut(enum tess_dtype dtype, int64_t count, const void *y, const void *dy,
                          void *dx)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        plain_cut_block(dtype, first, CPU_BLOCK, y, dy, dx);
    plain_cut_block(dtype, first, plain_block(first, count), y, dy, dx);
}

void CPU_LOOP(relu_backward)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *y, const void *dy, void *dx)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, plain_cut, count, y, dy, dx);
}

CPU_INLINE void plain_add_block(enum tess_dtype dtype, int64_t first, int64_t count, const void *a,
                                const void *b, void *y)
{
    float left[CPU_BLOCK], right[CPU_BLOCK];
    cpu_read(dtype, a, first, count, left);
    cpu_read(dtype, b, first, count, right);
    for (int64_t i = 0; i < count; i++)
        left[i] = left[i] + right[i];
    cpu_write(dtype, y, first, count, left);
}

CPU_INLINE void plain_add(enum tess_dtype dtype, int64_t count, const void *a, const void *b,
                          void *y)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        plain_add_block(dtype, first, CPU_BLOCK, a, b, y);
    plain_add_block(dtype, first, plain_block(first, count), a, b, y);
}

void CPU_LOOP(add)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                   const void *b, void *y)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, plain_add, count, a, b, y);
}

CPU_INLINE void plain_cast_block(enum tess_dtype from, const void *x, enum tess_dtype to, void *y,
                                 int64_t first, int64_t count)
{
    float copy[CPU_BLOCK];
    cpu_read(from, x, first, count, copy);
    cpu_write(to, y, first, count, copy);
}

CPU_INLINE void plain_cast(enum tess_dtype from, const void *x, enum tess_dtype to, void *y,
                           int64_t count)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        plain_cast_block(from, x, to, y, first, CPU_BLOCK);
    plain_cast_block(from, x, to, y, first, plain_block(first, count));
}

/* f64 is for tests and reports only: ref's loop will do. */
void CPU_LOOP(cast)(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y)
{
    if (from == TESS_F32 && to == TESS_BF16)
        plain_cast(TESS_F32, x, TESS_BF16, y, count);
    else if (from == TESS_BF16 && to == TESS_F32)
        plain_cast(TESS_BF16, x, TESS_F32, y, count);
    else if (from == TESS_F32 && to == TESS_F16)
        plain_cast(TESS_F32, x, TESS_F16, y, count);
    else if (from == TESS_F16 && to == TESS_F32)
        plain_cast(TESS_F16, x, TESS_F32, y, count);
    else
        tess_kernel_ref.cast(kernel, count, from, x, to, y);
}

void CPU_LOOP(accumulate)(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          float *y)
{
    (void)kernel;
    const float *restrict from = x;
    float *restrict to = y;
    if (scale == 1.0f) { /* the same bits without the product */
        for (int64_t i = 0; i < count; i++)
            to[i] += from[i];
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] += scale * from[i];
}

void CPU_LOOP(plain_add)(int64_t count, const float *x, float *y)
{
    const float *restrict from = x;
    float *restrict to = y;
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

void CPU_LOOP(square_sum)(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
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

/* Blocks large enough that the loop over them has no exit to wait for; ref finds the place in one.
 */
#define PLAIN_SEARCH 1024

CPU_INLINE bool plain_has_nonfinite(enum tess_dtype dtype, int64_t first, const void *x)
{
    const uint32_t *whole = (const uint32_t *)x + (dtype == TESS_F32 ? first : 0);
    const uint16_t *half = (const uint16_t *)x + (dtype == TESS_F32 ? 0 : first);
    if (dtype == TESS_F32) {
        uint32_t found = 0;
        for (int64_t i = 0; i < PLAIN_SEARCH; i++)
            found |= (whole[i] & 0x7f800000u) == 0x7f800000u;
        return found != 0;
    }
    uint16_t found = 0, exponent = dtype == TESS_BF16 ? 0x7f80u : 0x7c00u;
    for (int64_t i = 0; i < PLAIN_SEARCH; i++)
        found |= (half[i] & exponent) == exponent;
    return found != 0;
}

int64_t CPU_LOOP(find_nonfinite)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x)
{
    int64_t first = 0;
    if (dtype == TESS_F32)
        while (first + PLAIN_SEARCH <= count && !plain_has_nonfinite(TESS_F32, first, x))
            first += PLAIN_SEARCH;
    else if (dtype == TESS_BF16)
        while (first + PLAIN_SEARCH <= count && !plain_has_nonfinite(TESS_BF16, first, x))
            first += PLAIN_SEARCH;
    else if (dtype == TESS_F16)
        while (first + PLAIN_SEARCH <= count && !plain_has_nonfinite(TESS_F16, first, x))
            first += PLAIN_SEARCH;
    const char *rest = (const char *)x + (size_t)first * tess_dtype_bytes(dtype);
    int64_t found = tess_kernel_ref.find_nonfinite(kernel, dtype, count - first, rest);
    return found < 0 ? -1 : first + found;
}

/* Of a block: the count fits the elements' own width, which keeps the vectors full. */
CPU_INLINE int64_t plain_zeros(enum tess_dtype dtype, int64_t first, int64_t count, const void *x)
{
    const uint32_t *whole = (const uint32_t *)x + (dtype == TESS_F32 ? first : 0);
    const uint16_t *half = (const uint16_t *)x + (dtype == TESS_F32 ? 0 : first);
    uint32_t zeros = 0;
    uint16_t zeros_half = 0;
    if (dtype == TESS_F32)
        for (int64_t i = 0; i < count; i++)
            zeros += (whole[i] & 0x7fffffffu) == 0;
    else
        for (int64_t i = 0; i < count; i++)
            zeros_half += (half[i] & 0x7fffu) == 0;
    return zeros + zeros_half;
}

CPU_INLINE int64_t plain_count_zeros(enum tess_dtype dtype, int64_t count, const void *x)
{
    int64_t zeros = 0, first = 0;
    for (; first + PLAIN_SEARCH <= count; first += PLAIN_SEARCH)
        zeros += plain_zeros(dtype, first, PLAIN_SEARCH, x);
    return zeros + plain_zeros(dtype, first, count - first, x);
}

void CPU_LOOP(count_zeros)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, double *sum)
{
    (void)kernel;
    *sum += (double)(dtype == TESS_F32
                         ? plain_count_zeros(TESS_F32, count, x)
                         : plain_count_zeros(TESS_BF16, count, x)); /* and f16: sign bit only */
}

void CPU_LOOP(update)(struct tess_kernel *kernel, const struct tess_update *update)
{
    (void)kernel;
    tess__rule_apply(update);
}

void CPU_LOOP(lamb_direction)(struct tess_kernel *kernel, const struct tess_update *update)
{
    (void)kernel;
    tess__rule_lamb_direction(update, 0, update->count);
}
