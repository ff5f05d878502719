/*
 * One position of attention against what was kept of the ones before it, in f32, for every dtype
 * and head size. A block has one head, and DECODE_COLUMNS columns of its result; it takes
 * DECODE_KEYS keys at a time, with one running maximum as the forward (attention_forward.cu).
 */
#include "cuda/attention/launch_attention.h"
#include "cuda/launch.cuh"

#include <math.h>

#define DECODE_THREADS 256
#define DECODE_COLUMNS 128                               /* a thread has one, of half of the keys */
#define DECODE_KEYS    64                                /* two to a lane */
#define DECODE_HALVES  (DECODE_THREADS / DECODE_COLUMNS) /* parts of the keys, added in order */

/* The scores of keys first .. , -inf from `end` on. A warp takes a key, its lanes the elements. */
template <typename T>
static __device__ __forceinline__ void decode_scores(const T *q, const T *k, int64_t stride,
                                                     int size, int first, int end, float *score)
{
    int lane = cuda_lane();
    for (int j = cuda_warp(); j < DECODE_KEYS; j += DECODE_THREADS / CUDA_WARP) {
        float sum = 0;
        if (first + j < end)
            for (int x = lane; x < size; x += CUDA_WARP)
                sum = fmaf(cuda_to_f32(q[x]), cuda_to_f32(k[(first + j) * stride + x]), sum);
        sum = cuda_warp_sum(sum);
        if (lane == 0)
            score[j] = first + j < end ? sum : -INFINITY;
    }
}

template <typename T>
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_kernel(const struct cuda_attention_forward a)
{
    __shared__ float score[DECODE_KEYS], weight[DECODE_KEYS];
    __shared__ float part[DECODE_HALVES][DECODE_COLUMNS];
    const struct cuda_attention_shape &s = a.shape;
    int columns = (s.head_size + DECODE_COLUMNS - 1) / DECODE_COLUMNS, lane = cuda_lane();
    int head = (int)blockIdx.x / columns, half = (int)threadIdx.x / DECODE_COLUMNS;
    int column = (int)blockIdx.x % columns * DECODE_COLUMNS + (int)threadIdx.x % DECODE_COLUMNS;
    const T *q = (const T *)a.q + (int64_t)head * s.head_size;
    const T *k = (const T *)a.k + (int64_t)(head / s.group) * s.head_size;
    const T *v = (const T *)a.v + (int64_t)(head / s.group) * s.head_size;
    float max = -INFINITY, sum = 0, y = 0; /* max and sum are the same in every thread */
    for (int first = 0; first < s.length; first += DECODE_KEYS) {
        decode_scores(q, k, s.kv_stride, s.head_size, first, s.length, score);
        __syncthreads();
        float low = score[lane], high = score[CUDA_WARP + lane];
        float top = fmaxf(max, cuda_warp_max(fmaxf(low, high)) * s.scale_log2);
        float base = top == -INFINITY ? 0 : top, keep = exp2f(max - base);
        low = exp2f(fmaf(low, s.scale_log2, -base));
        high = exp2f(fmaf(high, s.scale_log2, -base));
        sum = sum * keep + cuda_warp_sum(low + high);
        max = top;
        if (cuda_warp() == 0) {
            weight[lane] = low;
            weight[CUDA_WARP + lane] = high;
        }
        __syncthreads();
        y *= keep;
        const int keys = DECODE_KEYS / DECODE_HALVES;
        for (int j = half * keys; j < (half + 1) * keys; j++)
            if (first + j < s.length && column < s.head_size)
                y = fmaf(weight[j], cuda_to_f32(v[(int64_t)(first + j) * s.kv_stride + column]), y);
    }
    part[half][threadIdx.x % DECODE_COLUMNS] = y;
    __syncthreads();
    if (half == 0 && column < s.head_size) {
        for (int h = 1; h < DECODE_HALVES; h++)
            y += part[h][threadIdx.x];
        ((T *)a.y)[(int64_t)head * s.head_size + column] = cuda_from_f32<T>(y / sum);
    }
}

cudaError_t tess__cuda_launch_attention_decode(cudaStream_t stream,
                                               const struct cuda_attention_forward *a)
{
    const unsigned columns = cuda_blocks(a->shape.head_size, DECODE_COLUMNS);
    return cuda_by_dtype(a->shape.dtype, [&](auto type) {
        return CUDA_LAUNCH(decode_kernel<decltype(type)>, (unsigned)a->shape.heads * columns,
                           DECODE_THREADS, 0, stream, *a);
    });
}
