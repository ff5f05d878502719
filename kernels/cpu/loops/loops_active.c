/* Own loops of activations: ReLU, GELU, SwiGLU, GeGLU. */
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
CPU_INLINE float active_gelu_slope(float near, float e)
{
    float s = 1.0f / (1.0f + e);
    return fmaf(near * s * (e * s), fmaf(near * near, 3 * GELU_CUBE, GELU_SLOPE), s);
}

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
    for (int64_t i = 0; i < count; i++)
        grad[i] *= active_gelu_slope(value[i], e[i]);
    cpu_write(dtype, p->out[0], first, count, grad);
}

void CPU_LOOP(gelu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_gelu_grad, p);
}

/*
 * The normal distribution's share below x, 1 - erfc(z) / 2 of z = x / sqrt(2), and its density.
 * With t = (z - 2) / (z + 2), (1 + 2 z) erfc(z) exp(z^2) is a polynomial of degree 9 in t, off by
 * at most 2^-25 relatively up to z = 9.4 (coefficients by interpolation at Chebyshev's points,
 * rounded to f32). Beyond, exp(-z^2) is 0. What x^2 / 2 is rounded by is made up for.
 */
CPU_INLINE void active_normal(float x, float *share, float *density)
{
    float far = fabsf(x) > 13.29f ? 13.29f : fabsf(x); /* a NaN passes */
    float square = 0.5f * far * far, rest = fmaf(0.5f * far, far, -square);
    float e = cpu_exp(-square), z = far * 0x1.6a09e6p-1f, t = (z - 2.0f) / (z + 2.0f);
    float y = fmaf(-0x1.c192b6p-12f, t, -0x1.4e190ep-10f);
    y = fmaf(y, t, 0x1.5b2488p-10f);
    y = fmaf(y, t, 0x1.1c1cf8p-7f);
    y = fmaf(y, t, -0x1.08029ep-7f);
    y = fmaf(y, t, -0x1.bc217cp-5f);
    y = fmaf(y, t, 0x1.4ffb9ap-3f);
    y = fmaf(y, t, -0x1.5407c0p-3f);
    y = fmaf(y, t, -0x1.7bf602p-4f);
    y = fmaf(y, t, 0x1.46e80ep+0f);
    e = fmaf(-rest, e, e);
    y = 0.5f * e * y / fmaf(2.0f, z, 1.0f);
    *share = x < 0 ? y : 1.0f - y;
    *density = 0x1.988454p-2f * e;
}

/* GELU of x and its slope. */
CPU_INLINE void active_gelu_at(bool erf, float x, float *value, float *slope)
{
    if (erf) {
        float share, density;
        active_normal(x, &share, &density);
        *value = x * share;
        *slope = fmaf(x, density, share);
    } else { /* the values of active_gelu */
        float near = active_near(x), e = active_gelu_exp(near);
        *value = x / (1.0f + e);
        *slope = active_gelu_slope(near, e);
    }
}

CPU_INLINE void active_gelu_erf(enum tess_dtype dtype, int64_t first, int64_t count,
                                const struct cpu_plain *p)
{
    float value[CPU_BLOCK], slope[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, value);
    for (int64_t i = 0; i < count; i++)
        active_gelu_at(true, value[i], &value[i], &slope[i]);
    cpu_write(dtype, p->out[0], first, count, value);
}

void CPU_LOOP(gelu_erf_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_gelu_erf, p);
}

CPU_INLINE void active_gelu_erf_grad(enum tess_dtype dtype, int64_t first, int64_t count,
                                     const struct cpu_plain *p)
{
    float value[CPU_BLOCK], grad[CPU_BLOCK], slope[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, value);
    cpu_read(dtype, p->in[1], first, count, grad);
    for (int64_t i = 0; i < count; i++)
        active_gelu_at(true, value[i], &value[i], &slope[i]);
    for (int64_t i = 0; i < count; i++)
        grad[i] *= slope[i];
    cpu_write(dtype, p->out[0], first, count, grad);
}

void CPU_LOOP(gelu_erf_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_gelu_erf_grad, p);
}

CPU_INLINE void active_geglu(enum tess_dtype dtype, int64_t first, int64_t count, bool erf,
                             const struct cpu_plain *p)
{
    float g[CPU_BLOCK], u[CPU_BLOCK], slope[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, g);
    cpu_read(dtype, p->in[1], first, count, u);
    for (int64_t i = 0; i < count; i++)
        active_gelu_at(erf, g[i], &g[i], &slope[i]);
    for (int64_t i = 0; i < count; i++)
        g[i] *= u[i];
    cpu_write(dtype, p->out[0], first, count, g);
}

void CPU_LOOP(geglu_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_geglu, false, p);
}

void CPU_LOOP(geglu_erf_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_geglu, true, p);
}

CPU_INLINE void active_geglu_grad(enum tess_dtype dtype, int64_t first, int64_t count, bool erf,
                                  const struct cpu_plain *p)
{
    float g[CPU_BLOCK], u[CPU_BLOCK], grad[CPU_BLOCK], slope[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, g);
    cpu_read(dtype, p->in[1], first, count, u);
    cpu_read(dtype, p->in[2], first, count, grad);
    for (int64_t i = 0; i < count; i++)
        active_gelu_at(erf, g[i], &g[i], &slope[i]);
    for (int64_t i = 0; i < count; i++) {
        u[i] *= grad[i] * slope[i];
        grad[i] *= g[i];
    }
    cpu_write(dtype, p->out[0], first, count, u);
    cpu_write(dtype, p->out[1], first, count, grad);
}

void CPU_LOOP(geglu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_geglu_grad, false, p);
}

void CPU_LOOP(geglu_erf_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_geglu_grad, true, p);
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
