/* Conversions of whole arrays among f32, bf16, f16 and f64, with the bits of ref; what becomes of
 * one element is in bits.cuh. Copying and filling, which the runtime does. */
#include "cuda/bits.cuh"
#include "cuda/slots.h"

#define CAST_THREADS 256
#define CAST_WIDTH   8 /* elements per thread: one to four accesses of 16 bytes on either side */

template <typename From, typename To> static __device__ __forceinline__ To cast_element(From x)
{
    return cuda_narrow<To>(cuda_widen(x));
}

template <> __device__ __forceinline__ __nv_bfloat16 cast_element<double, __nv_bfloat16>(double x)
{
    return cuda_narrow<__nv_bfloat16>(cuda_widen_odd(x));
}

template <> __device__ __forceinline__ __half cast_element<double, __half>(double x)
{
    return cuda_narrow<__half>(cuda_widen_odd(x));
}

/* A thread's eight elements, all or, at the end and where arrays are not aligned, one by one. */
template <typename From, typename To>
__global__ void __launch_bounds__(CAST_THREADS)
    cast_kernel(int64_t count, const From *x, To *y, bool aligned)
{
    int64_t first = ((int64_t)blockIdx.x * CAST_THREADS + threadIdx.x) * CAST_WIDTH;
    if (aligned && first + CAST_WIDTH <= count) {
        From from[CAST_WIDTH];
        To to[CAST_WIDTH];
        cuda_load8(x + first, from);
#pragma unroll
        for (int e = 0; e < CAST_WIDTH; e++)
            to[e] = cast_element<From, To>(from[e]);
        cuda_store8(y + first, to);
        return;
    }
    for (int64_t i = first; i < first + CAST_WIDTH && i < count; i++)
        y[i] = cast_element<From, To>(x[i]);
}

template <typename From, typename To>
static cudaError_t cast_launch(cudaStream_t stream, int64_t count, const void *x, void *y)
{
    return CUDA_LAUNCH((cast_kernel<From, To>), cuda_blocks(count, CAST_THREADS * CAST_WIDTH),
                       CAST_THREADS, 0, stream, count, x, y,
                       cuda_aligned16(x) && cuda_aligned16(y));
}

template <typename From>
static cudaError_t cast_from(cudaStream_t stream, int64_t count, const void *x, enum tess_dtype to,
                             void *y)
{
    if (to == TESS_F64)
        return cast_launch<From, double>(stream, count, x, y);
    return cuda_by_dtype(
        to, [&](auto type) { return cast_launch<From, decltype(type)>(stream, count, x, y); });
}

static cudaError_t cast_any(cudaStream_t stream, int64_t count, enum tess_dtype from, const void *x,
                            enum tess_dtype to, void *y)
{
    if (from == TESS_F64)
        return cast_from<double>(stream, count, x, to, y);
    return cuda_by_dtype(
        from, [&](auto type) { return cast_from<decltype(type)>(stream, count, x, to, y); });
}

void tess__cuda_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                     enum tess_dtype to, void *y)
{
    if (from != to)
        tess__cuda_note(kernel, cast_any(tess__cuda_stream(kernel), count, from, x, to, y), "cast");
    else if (x != y)
        tess__cuda_copy(kernel, count * (int64_t)tess_dtype_bytes(from), x, y);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

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
