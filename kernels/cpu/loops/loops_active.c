/*
 * Own loops of activations: ReLU, GELU, SwiGLU, GeGLU. Functions of one bf16 number are looked up
 * where vectors gather: a table has all 65,536 values, with the bits that computing them gives.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

#include <pthread.h>
#include <stdatomic.h>

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

/* With s = 1 / (1 + e), 1 - s = e s: the derivative is s + x s (1 - s) 2 du/dx. */
CPU_INLINE float active_gelu_slope(float near, float e)
{
    float s = 1.0f / (1.0f + e);
    return fmaf(near * s * (e * s), fmaf(near * near, 3 * GELU_CUBE, GELU_SLOPE), s);
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

/* g s of s = 1 / (1 + exp(-g)), and its slope: with e = exp(-g), 1 - s = e s, and it is
 * s (1 + g (1 - s)). */
CPU_INLINE void active_silu_at(float g, float *share, float *slope)
{
    float e = cpu_exp(-g), s = 1.0f / (1.0f + e);
    *share = g * s;
    *slope = fmaf(*share, e * s, s);
}

enum active_look {
    ACTIVE_GELU,
    ACTIVE_GELU_SLOPE,
    ACTIVE_ERF,
    ACTIVE_ERF_SLOPE,
    ACTIVE_SILU, /* by division */
    ACTIVE_SILU_SHARE,
    ACTIVE_SILU_SLOPE,
    ACTIVE_LOOKS
};

/* y[i] = f(x[i]); x and y may be one. */
CPU_INLINE void active_compute(enum active_look f, int64_t count, const float *x, float *y)
{
    float other[CPU_BLOCK];
    if (f == ACTIVE_GELU) {
        for (int64_t i = 0; i < count; i++)
            other[i] = active_near(x[i]);
        for (int64_t i = 0; i < count; i++)
            other[i] = active_gelu_exp(other[i]);
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] / (1.0f + other[i]);
    } else if (f == ACTIVE_GELU_SLOPE) {
        for (int64_t i = 0; i < count; i++)
            y[i] = active_near(x[i]);
        for (int64_t i = 0; i < count; i++)
            other[i] = active_gelu_exp(y[i]);
        for (int64_t i = 0; i < count; i++)
            y[i] = active_gelu_slope(y[i], other[i]);
    } else if (f == ACTIVE_ERF) {
        for (int64_t i = 0; i < count; i++)
            active_gelu_at(true, x[i], &y[i], &other[i]);
    } else if (f == ACTIVE_ERF_SLOPE) {
        for (int64_t i = 0; i < count; i++)
            active_gelu_at(true, x[i], &other[i], &y[i]);
    } else if (f == ACTIVE_SILU) {
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] / (1.0f + cpu_exp(-x[i]));
    } else if (f == ACTIVE_SILU_SHARE) {
        for (int64_t i = 0; i < count; i++)
            active_silu_at(x[i], &y[i], &other[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            active_silu_at(x[i], &other[i], &y[i]);
    }
}

#if defined(__AVX512F__)

#define ACTIVE_CODES 65536

static float active_table[ACTIVE_LOOKS][ACTIVE_CODES];
static atomic_bool active_filled[ACTIVE_LOOKS];

static void active_fill(enum active_look f)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (int64_t code = 0; !active_filled[f] && code < ACTIVE_CODES; code += CPU_BLOCK) {
        float x[CPU_BLOCK];
        for (int i = 0; i < CPU_BLOCK; i++)
            x[i] = tess__f32_of_bf16((uint16_t)(code + i));
        active_compute(f, CPU_BLOCK, x, active_table[f] + code);
    }
    atomic_store_explicit(&active_filled[f], true, memory_order_release);
    pthread_mutex_unlock(&lock);
}

/* The table of f; the first call fills it. */
static const float *active_codes(enum active_look f)
{
    if (!atomic_load_explicit(&active_filled[f], memory_order_acquire))
        active_fill(f);
    return active_table[f];
}

CPU_INLINE void active_look_up(enum active_look f, const uint16_t *code, int64_t count, float *y)
{
    const float *table = active_codes(f);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(code + i)));
        _mm512_storeu_ps(y + i, _mm512_i32gather_ps(at, table, sizeof(*table)));
    }
    for (; i < count; i++)
        y[i] = table[code[i]];
}

#endif

/* f of `count` elements from element `first` on. */
CPU_INLINE void active_read(enum active_look f, enum tess_dtype dtype, const void *from,
                            int64_t first, int64_t count, float *y)
{
#if defined(__AVX512F__)
    if (dtype == TESS_BF16) {
        active_look_up(f, (const uint16_t *)from + first, count, y);
        return;
    }
#endif
    cpu_read(dtype, from, first, count, y);
    active_compute(f, count, y, y);
}

/* The same of a function and its slope: of ACTIVE_GELU, ACTIVE_ERF or ACTIVE_SILU_SHARE, each
 * followed by its slope. */
CPU_INLINE void active_read_both(enum active_look f, enum tess_dtype dtype, const void *from,
                                 int64_t first, int64_t count, float *y, float *slope)
{
#if defined(__AVX512F__)
    if (dtype == TESS_BF16) {
        active_look_up(f, (const uint16_t *)from + first, count, y);
        active_look_up(f + 1, (const uint16_t *)from + first, count, slope);
        return;
    }
#endif
    cpu_read(dtype, from, first, count, y);
    for (int64_t i = 0; i < count; i++) {
        if (f == ACTIVE_SILU_SHARE)
            active_silu_at(y[i], &y[i], &slope[i]);
        else
            active_gelu_at(f == ACTIVE_ERF, y[i], &y[i], &slope[i]);
    }
}

/* f of one array, and f's slope there times a gradient. */
CPU_INLINE void active_one(enum tess_dtype dtype, int64_t first, int64_t count, enum active_look f,
                           const struct cpu_plain *p)
{
    float value[CPU_BLOCK];
    active_read(f, dtype, p->in[0], first, count, value);
    cpu_write(dtype, p->out[0], first, count, value);
}

CPU_INLINE void active_one_grad(enum tess_dtype dtype, int64_t first, int64_t count,
                                enum active_look slope, const struct cpu_plain *p)
{
    float value[CPU_BLOCK], grad[CPU_BLOCK];
    active_read(slope, dtype, p->in[0], first, count, value);
    cpu_read(dtype, p->in[1], first, count, grad);
    for (int64_t i = 0; i < count; i++)
        grad[i] *= value[i];
    cpu_write(dtype, p->out[0], first, count, grad);
}

void CPU_LOOP(gelu_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_one, ACTIVE_GELU, p);
}

void CPU_LOOP(gelu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_one_grad, ACTIVE_GELU_SLOPE, p);
}

void CPU_LOOP(gelu_erf_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_one, ACTIVE_ERF, p);
}

void CPU_LOOP(gelu_erf_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_one_grad, ACTIVE_ERF_SLOPE, p);
}

CPU_INLINE void active_geglu(enum tess_dtype dtype, int64_t first, int64_t count, bool erf,
                             const struct cpu_plain *p)
{
    float g[CPU_BLOCK], u[CPU_BLOCK];
    active_read(erf ? ACTIVE_ERF : ACTIVE_GELU, dtype, p->in[0], first, count, g);
    cpu_read(dtype, p->in[1], first, count, u);
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
    active_read_both(erf ? ACTIVE_ERF : ACTIVE_GELU, dtype, p->in[0], first, count, g, slope);
    cpu_read(dtype, p->in[1], first, count, u);
    cpu_read(dtype, p->in[2], first, count, grad);
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
    active_read(ACTIVE_SILU, dtype, p->in[0], first, count, g);
    cpu_read(dtype, p->in[1], first, count, u);
    for (int64_t i = 0; i < count; i++)
        g[i] *= u[i];
    cpu_write(dtype, p->out[0], first, count, g);
}

void CPU_LOOP(swiglu_forward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_swiglu, p);
}

CPU_INLINE void active_swiglu_grad(enum tess_dtype dtype, int64_t first, int64_t count,
                                   const struct cpu_plain *p)
{
    float share[CPU_BLOCK], slope[CPU_BLOCK], u[CPU_BLOCK], grad[CPU_BLOCK];
    active_read_both(ACTIVE_SILU_SHARE, dtype, p->in[0], first, count, share, slope);
    cpu_read(dtype, p->in[1], first, count, u);
    cpu_read(dtype, p->in[2], first, count, grad);
    for (int64_t i = 0; i < count; i++) {
        u[i] *= grad[i] * slope[i];
        grad[i] *= share[i];
    }
    cpu_write(dtype, p->out[0], first, count, u);
    cpu_write(dtype, p->out[1], first, count, grad);
}

void CPU_LOOP(swiglu_backward)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, active_swiglu_grad, p);
}
