/* Own loops of activations: ReLU, GELU, SwiGLU. */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

#define GELU_SLOPE 1.59576912160573071f /* 2 sqrt(2 / pi) */
#define GELU_CUBE  0.0713548162726009f  /* 0.044715 times that */

/* A NaN passes through: it is not below 0. */
CPU_INLINE void active_relu(enum tess_dtype dtype, int64_t first, int64_t count,
                            const struct cpu_plain *p)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] = value[i] < 0 ? 0.0f : value[i];
    cpu_write(dtype, p->out[0], first, count, value);
}

void CPU_LOOP(relu_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_relu, p);
}

CPU_INLINE void active_relu_grad(enum tess_dtype dtype, int64_t first, int64_t count,
                                 const struct cpu_plain *p)
{
    float output[CPU_BLOCK], grad[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, output);
    cpu_read(dtype, p->in[1], first, count, grad);
    for (int64_t i = 0; i < count; i++)
        grad[i] = output[i] > 0 ? grad[i] : 0.0f;
    cpu_write(dtype, p->out[0], first, count, grad);
}

void CPU_LOOP(relu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_relu_grad, p);
}

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

CPU_INLINE void active_gelu(enum tess_dtype dtype, int64_t first, int64_t count,
                            const struct cpu_plain *p)
{
    float value[CPU_BLOCK], e[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, value);
    for (int64_t i = 0; i < count; i++)
        e[i] = active_near(value[i]);
    for (int64_t i = 0; i < count; i++)
        e[i] = active_gelu_exp(e[i]);
    for (int64_t i = 0; i < count; i++)
        value[i] = value[i] / (1.0f + e[i]);
    cpu_write(dtype, p->out[0], first, count, value);
}

void CPU_LOOP(gelu_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_gelu, p);
}

/* With s = 1 / (1 + e), 1 - s = e s: the derivative is s + x s (1 - s) 2 du/dx. */
CPU_INLINE void active_gelu_grad(enum tess_dtype dtype, int64_t first, int64_t count,
                                 const struct cpu_plain *p)
{
    float value[CPU_BLOCK], grad[CPU_BLOCK], e[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, value);
    cpu_read(dtype, p->in[1], first, count, grad);
    for (int64_t i = 0; i < count; i++)
        value[i] = active_near(value[i]);
    for (int64_t i = 0; i < count; i++)
        e[i] = active_gelu_exp(value[i]);
    for (int64_t i = 0; i < count; i++) {
        float s = 1.0f / (1.0f + e[i]), near = value[i];
        float slope = fmaf(near * near, 3 * GELU_CUBE, GELU_SLOPE);
        grad[i] *= fmaf(near * s * (e[i] * s), slope, s);
    }
    cpu_write(dtype, p->out[0], first, count, grad);
}

void CPU_LOOP(gelu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_gelu_grad, p);
}

CPU_INLINE void active_swiglu(enum tess_dtype dtype, int64_t first, int64_t count,
                              const struct cpu_plain *p)
{
    float g[CPU_BLOCK], u[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, g);
    cpu_read(dtype, p->in[1], first, count, u);
    for (int64_t i = 0; i < count; i++)
        g[i] = g[i] / (1.0f + cpu_exp(-g[i])) * u[i];
    cpu_write(dtype, p->out[0], first, count, g);
}

void CPU_LOOP(swiglu_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_swiglu, p);
}

/* With s = 1 / (1 + e), 1 - s = e s: the derivative of g s is s (1 + g (1 - s)). */
CPU_INLINE void active_swiglu_grad(enum tess_dtype dtype, int64_t first, int64_t count,
                                   const struct cpu_plain *p)
{
    float g[CPU_BLOCK], u[CPU_BLOCK], grad[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, g);
    cpu_read(dtype, p->in[1], first, count, u);
    cpu_read(dtype, p->in[2], first, count, grad);
    for (int64_t i = 0; i < count; i++) {
        float e = cpu_exp(-g[i]), s = 1.0f / (1.0f + e), gs = g[i] * s;
        u[i] *= grad[i] * fmaf(gs, e * s, s);
        grad[i] *= gs;
    }
    cpu_write(dtype, p->out[0], first, count, u);
    cpu_write(dtype, p->out[1], first, count, grad);
}

void CPU_LOOP(swiglu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_swiglu_grad, p);
}
