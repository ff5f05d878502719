/*
 * Element-wise operations of ref: ReLU, add, dropout, casts, accumulate, fill, copy. Arrays in bf16
 * and f16 are worked on in pieces of POINTWISE_CHUNK elements, in f32 on the stack.
 */
#include "ref/mask.h"
#include "ref/slots.h"
#include "ref/stage.h"
#include "ref/stochastic.h"

#include <math.h>
#include <string.h>

#define POINTWISE_CHUNK 512 /* three f32 copies take 6 KiB: they stay in the first-level cache */

static int64_t pointwise_chunk(int64_t first, int64_t count)
{
    return count - first < POINTWISE_CHUNK ? count - first : POINTWISE_CHUNK;
}

/* A NaN passes through: it is not below 0. */
void tess__ref_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    (void)kernel;
    float copy_x[POINTWISE_CHUNK], copy_y[POINTWISE_CHUNK];
    for (int64_t first = 0; first < count; first += POINTWISE_CHUNK) {
        int64_t n = pointwise_chunk(first, count);
        const float *from = ref_read(dtype, x, first, n, copy_x);
        float *to = ref_target(dtype, y, first, copy_y);
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i] < 0 ? 0.0f : from[i];
        ref_write(dtype, y, first, n, to);
    }
}

void tess__ref_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *y, const void *dy, void *dx)
{
    (void)kernel;
    float copy_y[POINTWISE_CHUNK], copy_dy[POINTWISE_CHUNK], copy_dx[POINTWISE_CHUNK];
    for (int64_t first = 0; first < count; first += POINTWISE_CHUNK) {
        int64_t n = pointwise_chunk(first, count);
        const float *output = ref_read(dtype, y, first, n, copy_y);
        const float *from = ref_read(dtype, dy, first, n, copy_dy);
        float *to = ref_target(dtype, dx, first, copy_dx);
        for (int64_t i = 0; i < n; i++)
            to[i] = output[i] > 0 ? from[i] : 0.0f;
        ref_write(dtype, dx, first, n, to);
    }
}

void tess__ref_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                   const void *b, void *y)
{
    (void)kernel;
    float copy_a[POINTWISE_CHUNK], copy_b[POINTWISE_CHUNK], copy_y[POINTWISE_CHUNK];
    for (int64_t first = 0; first < count; first += POINTWISE_CHUNK) {
        int64_t n = pointwise_chunk(first, count);
        const float *left = ref_read(dtype, a, first, n, copy_a);
        const float *right = ref_read(dtype, b, first, n, copy_b);
        float *to = ref_target(dtype, y, first, copy_y);
        for (int64_t i = 0; i < n; i++)
            to[i] = left[i] + right[i];
        ref_write(dtype, y, first, n, to);
    }
}

/* One Philox block serves four elements, those with the same number / 4. */
void tess__ref_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                       int64_t width, int64_t stride, float rate, const uint64_t key[2],
                       uint64_t first, const void *x, void *y)
{
    (void)kernel;
    struct tess_rng_key stream = tess__mask_key(key);
    uint32_t limit = tess__mask_limit(rate);
    float divisor = 1.0f - rate;
    uint32_t word[4];
    for (int64_t i = 0; i < rows * width; i++) {
        uint64_t element = first + (uint64_t)(i / width * stride + i % width);
        if (i % width == 0 || element % 4 == 0)
            tess_rng_block(stream, element / 4, 0, word);
        float copy;
        const float *from = ref_read(dtype, x, i, 1, &copy);
        float value = tess__mask_keeps(word[element % 4], limit) ? *from / divisor : 0.0f;
        float *to = ref_target(dtype, y, i, &copy);
        *to = value;
        ref_write(dtype, y, i, 1, to);
    }
}

/*
 * Every type goes through one that holds it exactly: f64 on its way to a 16-bit type through f32
 * rounded to odd, so that the result is rounded once; all others through f32.
 */
static void cast_read(enum tess_dtype from, const void *x, int64_t first, int64_t count, bool odd,
                      float *copy)
{
    const uint16_t *half = x;
    const double *wide = x;
    for (int64_t i = 0; i < count; i++) {
        if (from == TESS_BF16)
            copy[i] = tess__f32_of_bf16(half[first + i]);
        else if (from == TESS_F16)
            copy[i] = tess__f32_of_f16(half[first + i]);
        else if (from == TESS_F64)
            copy[i] = odd ? tess__f32_of_f64_odd(wide[first + i]) : (float)wide[first + i];
        else
            copy[i] = ((const float *)x)[first + i];
    }
}

static void cast_write(enum tess_dtype to, const float *copy, int64_t first, int64_t count, void *y)
{
    uint16_t *half = y;
    for (int64_t i = 0; i < count; i++) {
        if (to == TESS_BF16)
            half[first + i] = tess__bf16_of_f32(copy[i]);
        else if (to == TESS_F16)
            half[first + i] = tess__f16_of_f32(copy[i]);
        else if (to == TESS_F64)
            ((double *)y)[first + i] = (double)copy[i];
        else
            ((float *)y)[first + i] = copy[i];
    }
}

void tess__ref_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y)
{
    (void)kernel;
    if (from == to) {
        memmove(y, x, (size_t)count * tess_dtype_bytes(from));
        return;
    }
    float copy[POINTWISE_CHUNK];
    for (int64_t first = 0; first < count; first += POINTWISE_CHUNK) {
        int64_t n = pointwise_chunk(first, count);
        cast_read(from, x, first, n, to != TESS_F32, copy);
        cast_write(to, copy, first, n, y);
    }
}

void tess__ref_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    (void)kernel;
    struct tess_rng_key stream = tess__stochastic_key(key);
    uint16_t *half = y;
    uint32_t word[4];
    for (int64_t i = 0; i < count; i++) {
        uint64_t element = first + (uint64_t)i;
        if (i == 0 || element % 4 == 0)
            tess_rng_block(stream, element / 4, 0, word);
        half[i] = to == TESS_BF16 ? tess__stochastic_bf16(x[i], word[element % 4])
                                  : tess__stochastic_f16(x[i], word[element % 4]);
    }
}

void tess__ref_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          float *y)
{
    (void)kernel;
    ref_axpy(y, scale, x, count);
}

void tess__ref_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    (void)kernel;
    memset(memory, value, (size_t)bytes);
}

void tess__ref_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    (void)kernel;
    memcpy(target, source, (size_t)bytes);
}
