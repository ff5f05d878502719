/*
 * The loop of all operations that read some arrays of one type and write others at the same places:
 * 16 bytes per thread and array at a time, all loads of a thread before its first store. A function
 * object maps one element, in f32:
 *
 *     void operator()(const float (&in)[IN], float (&out)[OUT]) const
 *
 * Outputs may be inputs. Arrays that are not 16-byte aligned are walked element by element.
 */
#ifndef KERNELS_CUDA_PLAIN_POINTWISE_CUH
#define KERNELS_CUDA_PLAIN_POINTWISE_CUH

#include "cuda/bits.cuh"
#include "cuda/slots.h"

#define POINTWISE_THREADS 256

/*
 * By value, as a kernel's parameter. unroll: vectors per thread. With 2048 threads on a
 * multiprocessor that is 128 KiB of loads in flight; to cover the latency of HBM takes about 25 KiB
 * per multiprocessor (4.8 TB/s, 0.7 us, 132 of them).
 */
template <typename T, int IN, int OUT> struct pointwise_arrays {
    static constexpr int unroll = IN == 1 ? 4 : 2;
    const T *in[IN];
    T *out[OUT];
};

template <typename T, int IN, int OUT, typename F>
static __device__ __forceinline__ void pointwise_element(const pointwise_arrays<T, IN, OUT> &arrays,
                                                         int64_t i, const F &f)
{
    float in[IN], out[OUT];
#pragma unroll
    for (int k = 0; k < IN; k++)
        in[k] = cuda_widen(arrays.in[k][i]);
    f(in, out);
#pragma unroll
    for (int k = 0; k < OUT; k++)
        arrays.out[k][i] = cuda_narrow<T>(out[k]);
}

/* The first W elements of vectors. */
template <int W, typename T, int IN, int OUT, typename F>
static __device__ __forceinline__ void pointwise_apply(const cuda_vec<T> (&v)[IN],
                                                       cuda_vec<T> (&result)[OUT], const F &f)
{
#pragma unroll
    for (int e = 0; e < W; e++) {
        float in[IN], out[OUT];
#pragma unroll
        for (int k = 0; k < IN; k++)
            in[k] = cuda_widen(v[k].at[e]);
        f(in, out);
#pragma unroll
        for (int k = 0; k < OUT; k++)
            result[k].at[e] = cuda_narrow<T>(out[k]);
    }
}

template <typename T, int IN, int OUT, typename F>
static __device__ __forceinline__ void pointwise_vector(const pointwise_arrays<T, IN, OUT> &arrays,
                                                        const cuda_vec<T> (&v)[IN], int64_t i,
                                                        const F &f)
{
    cuda_vec<T> result[OUT];
    pointwise_apply<cuda_vec<T>::count>(v, result, f);
#pragma unroll
    for (int k = 0; k < OUT; k++)
        cuda_store(arrays.out[k] + i, result[k]);
}

template <typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(POINTWISE_THREADS)
    pointwise_vectors(int64_t count, pointwise_arrays<T, IN, OUT> arrays, F f)
{
    constexpr int unroll = arrays.unroll, width = cuda_vec<T>::count;
    const int64_t vectors = count / width;
    const int64_t first = (int64_t)blockIdx.x * (POINTWISE_THREADS * unroll) + threadIdx.x;
    cuda_vec<T> v[unroll][IN];
#pragma unroll
    for (int u = 0; u < unroll; u++) {
        int64_t at = first + u * POINTWISE_THREADS;
        if (at < vectors) {
#pragma unroll
            for (int k = 0; k < IN; k++)
                v[u][k] = cuda_load(arrays.in[k] + at * width);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; u++) {
        int64_t at = first + u * POINTWISE_THREADS;
        if (at < vectors)
            pointwise_vector(arrays, v[u], at * width, f);
    }
    int64_t rest = vectors * width + first; /* the first threads take what is left, < width */
    if (rest < count && first < width)
        pointwise_element(arrays, rest, f);
}

template <typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(POINTWISE_THREADS)
    pointwise_elements(int64_t count, pointwise_arrays<T, IN, OUT> arrays, F f)
{
    int64_t i = (int64_t)blockIdx.x * POINTWISE_THREADS + threadIdx.x;
    if (i < count)
        pointwise_element(arrays, i, f);
}

template <typename T, int IN, int OUT, typename F>
static inline cudaError_t pointwise_launch(cudaStream_t stream, int64_t count,
                                           const void *const (&in)[IN], void *const (&out)[OUT],
                                           F f)
{
    pointwise_arrays<T, IN, OUT> arrays;
    bool aligned = true;
    for (int k = 0; k < IN; k++) {
        arrays.in[k] = static_cast<const T *>(in[k]);
        aligned = aligned && cuda_aligned16(in[k]);
    }
    for (int k = 0; k < OUT; k++) {
        arrays.out[k] = static_cast<T *>(out[k]);
        aligned = aligned && cuda_aligned16(out[k]);
    }
    if (!aligned)
        return CUDA_LAUNCH(pointwise_elements<T, IN, OUT, F>, cuda_blocks(count, POINTWISE_THREADS),
                           POINTWISE_THREADS, 0, stream, count, arrays, f);
    int64_t per_block = POINTWISE_THREADS * arrays.unroll * cuda_vec<T>::count;
    return CUDA_LAUNCH(pointwise_vectors<T, IN, OUT, F>, cuda_blocks(count, per_block),
                       POINTWISE_THREADS, 0, stream, count, arrays, f);
}

/* A slot, for any of f32, bf16, f16; `where` is its name. */
template <int IN, int OUT, typename F>
static inline void pointwise_slot(struct tess_kernel *kernel, const char *where,
                                  enum tess_dtype dtype, int64_t count, const void *const (&in)[IN],
                                  void *const (&out)[OUT], F f)
{
    cudaError_t error = cuda_by_dtype(dtype, [&](auto type) {
        return pointwise_launch<decltype(type)>(tess__cuda_stream(kernel), count, in, out, f);
    });
    tess__cuda_note(kernel, error, where);
}

#endif
