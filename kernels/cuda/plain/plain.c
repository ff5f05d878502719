/* The slots of element-wise operations: where they launch, what their keys are on the device, and
 * what the runtime itself does, filling and copying. */
#include "cuda/slots.h"

#include "cuda/cuda.h"
#include "cuda/plain/launch_plain.h"
#include "ref/mask.h"
#include "ref/stochastic.h"

void tess__cuda_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                     int64_t length, int64_t first, int32_t heads, int64_t head_size,
                     int64_t stride, float base, bool inverse, void *x)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_rope(tess__cuda_stream(kernel), dtype, rows, length, first,
                                           heads, head_size, stride, base, inverse, x),
                    "rope");
}

void tess__cuda_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, void *y)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_gelu_forward(tess__cuda_stream(kernel), dtype, count, x, y),
                    "gelu_forward");
}

void tess__cuda_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, const void *dy, void *dx)
{
    tess__cuda_note(
        kernel, tess__cuda_launch_gelu_backward(tess__cuda_stream(kernel), dtype, count, x, dy, dx),
        "gelu_backward");
}

void tess__cuda_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, void *y)
{
    tess__cuda_note(
        kernel,
        tess__cuda_launch_swiglu_forward(tess__cuda_stream(kernel), dtype, count, gate, up, y),
        "swiglu_forward");
}

void tess__cuda_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *gate, const void *up, const void *dy, void *dgate,
                                void *dup)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_swiglu_backward(tess__cuda_stream(kernel), dtype, count, gate,
                                                      up, dy, dgate, dup),
                    "swiglu_backward");
}

void tess__cuda_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, void *y)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_relu_forward(tess__cuda_stream(kernel), dtype, count, x, y),
                    "relu_forward");
}

void tess__cuda_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *y, const void *dy, void *dx)
{
    tess__cuda_note(
        kernel, tess__cuda_launch_relu_backward(tess__cuda_stream(kernel), dtype, count, y, dy, dx),
        "relu_backward");
}

void tess__cuda_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                    const void *b, void *y)
{
    tess__cuda_note(kernel, tess__cuda_launch_add(tess__cuda_stream(kernel), dtype, count, a, b, y),
                    "add");
}

void tess__cuda_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        float rate, const uint64_t key[2], uint64_t first, const void *x, void *y)
{
    const struct tess_rng_key stream = tess__mask_key(key);
    tess__cuda_note(kernel,
                    tess__cuda_launch_dropout(tess__cuda_stream(kernel), dtype, count,
                                              tess__mask_limit(rate), 1.0f - rate, stream.word,
                                              first, x, y),
                    "dropout");
}

void tess__cuda_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                     enum tess_dtype to, void *y)
{
    if (from == to) {
        if (x != y)
            tess__cuda_copy(kernel, count * (int64_t)tess_dtype_bytes(from), x, y);
        return;
    }
    tess__cuda_note(
        kernel, tess__cuda_launch_cast(tess__cuda_stream(kernel), count, from, x, to, y), "cast");
}

void tess__cuda_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                                enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    const struct tess_rng_key stream = tess__stochastic_key(key);
    tess__cuda_note(kernel,
                    tess__cuda_launch_cast_stochastic(tess__cuda_stream(kernel), count, x, to,
                                                      stream.word, first, y),
                    "cast_stochastic");
}

void tess__cuda_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                           float *y)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_accumulate(tess__cuda_stream(kernel), count, scale, x, y),
                    "accumulate");
}

void tess__cuda_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    tess__cuda_note(kernel, tess__cuda_launch_maximum(tess__cuda_stream(kernel), count, x, y),
                    "maximum");
}

void tess__cuda_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                       int64_t count, float mean, float deviation, float *y)
{
    tess__cuda_note(
        kernel,
        tess__cuda_launch_normal(tess__cuda_stream(kernel), key, first, count, mean, deviation, y),
        "normal");
}

void tess__cuda_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    if (bytes > 0) /* an empty one is an error while a graph is recorded */
        tess__cuda_note(kernel,
                        cudaMemsetAsync(memory, value, (size_t)bytes, tess__cuda_stream(kernel)),
                        "fill");
}

/* Either end may be another device's memory: the runtime sees whose. */
void tess__cuda_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    if (bytes > 0)
        tess__cuda_note(kernel,
                        cudaMemcpyAsync(target, source, (size_t)bytes, cudaMemcpyDefault,
                                        tess__cuda_stream(kernel)),
                        "copy");
}
