/* Own loops of activations: GELU, SwiGLU, dropout. */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"
#include "cpu/philox.h"
#include "ref/mask.h"
#include "ref/ref.h"

#define GELU_SLOPE 1.59576912160573071f /* 2 sqrt(2 / pi) */
#define GELU_CUBE  0.0713548162726009f  /* 0.044715 times that */

/* x / 2 (1 + tanh u) = x / (1 + exp(-2u)); beyond 16 that exp is 0 or very large. */
CPU_INLINE float active_near(float x)
{
    float high = x > 16.0f ? 16.0f : x;
    return high < -16.0f ? -16.0f : high;
}

/* exp(-2u) of an x that is near. */
CPU_INLINE float active_gelu_exp(float x)
{
    return cpu_exp(-x * fmaf(x * x, GELU_CUBE, GELU_SLOPE));
}

CPU_INLINE void active_gelu_block(enum tess_dtype dtype, int64_t first, int64_t count,
                                  const void *x, void *y)
{
    float value[CPU_BLOCK], e[CPU_BLOCK];
    cpu_read(dtype, x, first, count, value);
    for (int64_t i = 0; i < count; i++)
        e[i] = active_near(value[i]);
    for (int64_t i = 0; i < count; i++)
        e[i] = active_gelu_exp(e[i]);
    for (int64_t i = 0; i < count; i++)
        value[i] = value[i] / (1.0f + e[i]);
    cpu_write(dtype, y, first, count, value);
}

CPU_INLINE void active_gelu(enum tess_dtype dtype, int64_t count, const void *x, void *y)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        active_gelu_block(dtype, first, CPU_BLOCK, x, y);
    active_gelu_block(dtype, first, count - first, x, y);
}

void CPU_LOOP(gelu_forward)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, active_gelu, count, x, y);
}

/* With s = 1 / (1 + e), 1 - s = e s: the derivative is s + x s (1 - s) 2 du/dx. */
CPU_INLINE void active_gelu_grad_block(enum tess_dtype dtype, int64_t first, int64_t count,
                                       const void *x, const void *dy, void *dx)
{
    float value[CPU_BLOCK], grad[CPU_BLOCK], e[CPU_BLOCK];
    cpu_read(dtype, x, first, count, value);
    cpu_read(dtype, dy, first, count, grad);
    for (int64_t i = 0; i < count; i++)
        value[i] = active_near(value[i]);
    for (int64_t i = 0; i < count; i++)
        e[i] = active_gelu_exp(value[i]);
    for (int64_t i = 0; i < count; i++) {
        float s = 1.0f / (1.0f + e[i]), near = value[i];
        float slope = fmaf(near * near, 3 * GELU_CUBE, GELU_SLOPE);
        grad[i] *= fmaf(near * s * (e[i] * s), slope, s);
    }
    cpu_write(dtype, dx, first, count, grad);
}

CPU_INLINE void active_gelu_grad(enum tess_dtype dtype, int64_t count, const void *x,
                                 const void *dy, void *dx)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        active_gelu_grad_block(dtype, first, CPU_BLOCK, x, dy, dx);
    active_gelu_grad_block(dtype, first, count - first, x, dy, dx);
}

void CPU_LOOP(gelu_backward)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, active_gelu_grad, count, x, dy, dx);
}

CPU_INLINE void active_swiglu_block(enum tess_dtype dtype, int64_t first, int64_t count,
                                    const void *gate, const void *up, void *y)
{
    float g[CPU_BLOCK], u[CPU_BLOCK];
    cpu_read(dtype, gate, first, count, g);
    cpu_read(dtype, up, first, count, u);
    for (int64_t i = 0; i < count; i++)
        g[i] = g[i] / (1.0f + cpu_exp(-g[i])) * u[i];
    cpu_write(dtype, y, first, count, g);
}

CPU_INLINE void active_swiglu(enum tess_dtype dtype, int64_t count, const void *gate,
                              const void *up, void *y)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        active_swiglu_block(dtype, first, CPU_BLOCK, gate, up, y);
    active_swiglu_block(dtype, first, count - first, gate, up, y);
}

void CPU_LOOP(swiglu_forward)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *gate, const void *up, void *y)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, active_swiglu, count, gate, up, y);
}

struct active_swiglu_arrays {
    const void *gate, *up, *dy;
    void *dgate, *dup;
};

/* With s = 1 / (1 + e), 1 - s = e s: the derivative of g s is s (1 + g (1 - s)). */
CPU_INLINE void active_swiglu_grad_block(enum tess_dtype dtype, int64_t first, int64_t count,
                                         const struct active_swiglu_arrays *a)
{
    float g[CPU_BLOCK], u[CPU_BLOCK], grad[CPU_BLOCK];
    cpu_read(dtype, a->gate, first, count, g);
    cpu_read(dtype, a->up, first, count, u);
    cpu_read(dtype, a->dy, first, count, grad);
    for (int64_t i = 0; i < count; i++) {
        float e = cpu_exp(-g[i]), s = 1.0f / (1.0f + e), gs = g[i] * s;
        u[i] *= grad[i] * fmaf(gs, e * s, s);
        grad[i] *= gs;
    }
    cpu_write(dtype, a->dgate, first, count, u);
    cpu_write(dtype, a->dup, first, count, grad);
}

CPU_INLINE void active_swiglu_grad(enum tess_dtype dtype, int64_t count,
                                   const struct active_swiglu_arrays *a)
{
    int64_t first = 0;
    for (; first + CPU_BLOCK <= count; first += CPU_BLOCK)
        active_swiglu_grad_block(dtype, first, CPU_BLOCK, a);
    active_swiglu_grad_block(dtype, first, count - first, a);
}

void CPU_LOOP(swiglu_backward)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup)
{
    (void)kernel;
    struct active_swiglu_arrays a = {.gate = gate, .up = up, .dy = dy, .dgate = dgate, .dup = dup};
    CPU_BY_DTYPE(dtype, active_swiglu_grad, count, &a);
}

/* Whole blocks from element `first` of the stream, a multiple of 4, on. */
CPU_INLINE void active_dropout(enum tess_dtype dtype, int64_t count, float rate,
                               struct tess_rng_key key, uint64_t first, const void *x, void *y)
{
    uint32_t limit = tess__mask_limit(rate);
    float divisor = 1.0f - rate;
    for (int64_t done = 0; done < count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        float value[CPU_BLOCK];
        cpu_philox(key, (first + (uint64_t)done) / 4, word);
        cpu_read(dtype, x, done, CPU_BLOCK, value);
        for (int64_t i = 0; i < CPU_BLOCK; i++)
            value[i] = tess__mask_keeps(word[i], limit) ? value[i] / divisor : 0.0f;
        cpu_write(dtype, y, done, CPU_BLOCK, value);
    }
}

/* What does not fill a block of Philox, and of lanes, is left to ref, whose bits these are. */
void CPU_LOOP(dropout)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, float rate,
                       const uint64_t key[2], uint64_t first, const void *x, void *y)
{
    size_t bytes = tess_dtype_bytes(dtype);
    const char *from = x;
    char *to = y;
    int64_t head = (int64_t)(-first % 4);
    head = head < count ? head : count;
    int64_t whole = (count - head) / CPU_BLOCK * CPU_BLOCK, tail = head + whole;
    tess_kernel_ref.dropout(kernel, dtype, head, rate, key, first, from, to);
    CPU_BY_DTYPE(dtype, active_dropout, whole, rate, tess__mask_key(key), first + (uint64_t)head,
                 from + (size_t)head * bytes, to + (size_t)head * bytes);
    tess_kernel_ref.dropout(kernel, dtype, count - tail, rate, key, first + (uint64_t)tail,
                            from + (size_t)tail * bytes, to + (size_t)tail * bytes);
}
