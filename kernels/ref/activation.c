/* GELU, SwiGLU, GeGLU and rotary positions of ref: in f64, rounded once. */
#include "ref/slots.h"
#include "ref/stage.h"

#include <math.h>

#define GELU_SLOPE 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_CUBE  0.044715
#define GELU_ROOT  0.70710678118654752440 /* sqrt(1 / 2) */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x)));
}

static double gelu_slope(double x)
{
    double inner = GELU_SLOPE * (x + GELU_CUBE * x * x * x);
    double inner_slope = GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x), t = tanh(inner);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner_slope;
}

/* 1 + erf(z) is erfc(-z), which loses no digits where z is far below 0. */
static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x * GELU_ROOT);
}

static double gelu_erf_slope(double x)
{
    return 0.5 * erfc(-x * GELU_ROOT) + 0.5 * GELU_SLOPE * x * exp(-0.5 * x * x);
}

void tess__ref_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    (void)kernel;
    for (int64_t i = 0; i < count; i++)
        ref_store(dtype, y, i, gelu(ref_load(dtype, x, i)));
}

void tess__ref_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx)
{
    (void)kernel;
    for (int64_t i = 0; i < count; i++)
        ref_store(dtype, dx, i, ref_load(dtype, dy, i) * gelu_slope(ref_load(dtype, x, i)));
}

void tess__ref_gelu_erf_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *x, void *y)
{
    (void)kernel;
    for (int64_t i = 0; i < count; i++)
        ref_store(dtype, y, i, gelu_erf(ref_load(dtype, x, i)));
}

void tess__ref_gelu_erf_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x, const void *dy, void *dx)
{
    (void)kernel;
    for (int64_t i = 0; i < count; i++)
        ref_store(dtype, dx, i, ref_load(dtype, dy, i) * gelu_erf_slope(ref_load(dtype, x, i)));
}

void tess__ref_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t width, int64_t stride, const void *gate, const void *up,
                              void *y)
{
    (void)kernel;
    for (int64_t i = 0; i < rows * width; i++) {
        int64_t at = i / width * stride + i % width;
        double g = ref_load(dtype, gate, at);
        ref_store(dtype, y, i, g / (1 + exp(-g)) * ref_load(dtype, up, at));
    }
}

/* With s = 1 / (1 + exp(-g)): the derivative of g s is s (1 + g (1 - s)). */
void tess__ref_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, const void *gate, const void *up,
                               const void *dy, void *dgate, void *dup)
{
    (void)kernel;
    for (int64_t i = 0; i < rows * width; i++) {
        int64_t at = i / width * stride + i % width;
        double g = ref_load(dtype, gate, at), u = ref_load(dtype, up, at);
        double grad = ref_load(dtype, dy, i), s = 1 / (1 + exp(-g));
        ref_store(dtype, dgate, at, grad * u * s * (1 + g * (1 - s)));
        ref_store(dtype, dup, at, grad * g * s);
    }
}

void tess__ref_geglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t width, int64_t stride, bool erf, const void *gate,
                             const void *up, void *y)
{
    (void)kernel;
    for (int64_t i = 0; i < rows * width; i++) {
        int64_t at = i / width * stride + i % width;
        double g = ref_load(dtype, gate, at);
        ref_store(dtype, y, i, (erf ? gelu_erf(g) : gelu(g)) * ref_load(dtype, up, at));
    }
}

void tess__ref_geglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t width, int64_t stride, bool erf, const void *gate,
                              const void *up, const void *dy, void *dgate, void *dup)
{
    (void)kernel;
    for (int64_t i = 0; i < rows * width; i++) {
        int64_t at = i / width * stride + i % width;
        double g = ref_load(dtype, gate, at), u = ref_load(dtype, up, at);
        double grad = ref_load(dtype, dy, i);
        ref_store(dtype, dgate, at, grad * u * (erf ? gelu_erf_slope(g) : gelu_slope(g)));
        ref_store(dtype, dup, at, grad * (erf ? gelu_erf(g) : gelu(g)));
    }
}

void tess__ref_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
                    int64_t first, int32_t heads, int64_t head_size, int64_t stride,
                    const struct tess_rotary *rotary, bool inverse, void *x)
{
    (void)kernel;
    int64_t half = head_size / 2;
    double size = rotary->amplitude > 0 ? (double)rotary->amplitude : 1;
    for (int64_t row = 0; row < rows; row++) {
        double position = (double)(first + row % length);
        for (int64_t i = 0; i < half; i++) {
            double rate = pow((double)rotary->base, -2.0 * (double)i / (double)head_size);
            double angle = position * tess_rotary_rate(rotary, rate, (double)i);
            double c = size * cos(angle), s = size * (inverse ? -sin(angle) : sin(angle));
            for (int64_t h = 0; h < heads; h++) {
                int64_t at = row * stride + h * head_size + i;
                double a = ref_load(dtype, x, at), b = ref_load(dtype, x, at + half);
                ref_store(dtype, x, at, a * c - b * s);
                ref_store(dtype, x, at + half, a * s + b * c);
            }
        }
    }
}
