/*
 * How kernels hold rows: a group of whole warps of a block, 1, 2, 4, 8 or 16, takes a row, each
 * thread some 16-byte pieces of it. Piece p of a row belongs to thread p % lanes of the group,
 * whether it is read at once or element by element, so that a row's bits do not depend on where it
 * lies in memory, nor on how many rows there are. What the kernels compute is not here.
 */
#ifndef KERNELS_CUDA_ROWS_ROWS_CUH
#define KERNELS_CUDA_ROWS_ROWS_CUH

#include "cuda/launch.cuh"
#include "needs/rows.h"

#define ROWS_WARPS 16 /* of the widest group */

/* Can rows of T, `stride` elements apart from each `memory` on, be read 16 bytes at a time? NULL:
 * yes. */
template <typename T, typename... Memory>
static inline bool rows_aligned(int64_t stride, const Memory *...memory)
{
    return stride % cuda_vec<T>::count == 0 && (cuda_aligned16(memory) && ...);
}

/* Elements [at, at + a piece) of a row of `count`; those beyond its end are `fill`. */
template <typename T>
static __device__ __forceinline__ cuda_vec<T> rows_load(const T *row, int64_t at, int64_t count,
                                                        bool aligned, float fill = 0.0f)
{
    if (aligned && at + cuda_vec<T>::count <= count)
        return cuda_load(row + at);
    cuda_vec<T> v;
#pragma unroll
    for (int i = 0; i < cuda_vec<T>::count; i++)
        v.at[i] = at + i < count ? row[at + i] : cuda_from_f32<T>(fill);
    return v;
}

template <typename T>
static __device__ __forceinline__ void rows_store(T *row, int64_t at, int64_t count, bool aligned,
                                                  const cuda_vec<T> &v)
{
    if (aligned && at + cuda_vec<T>::count <= count) {
        cuda_store(row + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < cuda_vec<T>::count; i++)
        if (at + i < count)
            row[at + i] = v.at[i];
}

/*
 * join() of the results x of the warps of a group of `lanes` threads, warp after warp. All threads
 * of the block call it, all of a group get the same bits. shared: [ROWS_WARPS] of the block's.
 */
template <typename Join>
static __device__ __forceinline__ float rows_join(float x, int lanes, float *shared,
                                                  const Join &join)
{
    if (lanes == CUDA_WARP)
        return x;
    int first = (int)threadIdx.x / lanes * (lanes / CUDA_WARP);
    __syncthreads(); /* what was shared before has been read */
    if (threadIdx.x % CUDA_WARP == 0)
        shared[threadIdx.x / CUDA_WARP] = x;
    __syncthreads();
    x = shared[first];
    for (int w = 1; w < lanes / CUDA_WARP; w++)
        x = join(x, shared[first + w]);
    return x;
}

static __device__ __forceinline__ float rows_sum(float x, int lanes, float *shared)
{
    return rows_join(cuda_warp_sum(x), lanes, shared, [](float a, float b) { return a + b; });
}

/* NaN not propagated. */
static __device__ __forceinline__ float rows_max(float x, int lanes, float *shared)
{
    return rows_join(cuda_warp_max(x), lanes, shared, [](float a, float b) { return fmaxf(a, b); });
}

/* Two sums at once, of groups that meet here again and again: with one barrier, since `turn`, 0 and
 * 1 by turns, lets the last sums be read beside these. shared: [4 * ROWS_WARPS]. */
static __device__ __forceinline__ void rows_sum_pair(float &x, float &y, int lanes, int turn,
                                                     float *shared)
{
    x = cuda_warp_sum(x);
    y = cuda_warp_sum(y);
    if (lanes == CUDA_WARP)
        return;
    int first = (int)threadIdx.x / lanes * (lanes / CUDA_WARP);
    float *sum = shared + 2 * turn * ROWS_WARPS;
    if (threadIdx.x % CUDA_WARP == 0) {
        sum[threadIdx.x / CUDA_WARP] = x;
        sum[threadIdx.x / CUDA_WARP + ROWS_WARPS] = y;
    }
    __syncthreads();
    x = sum[first];
    y = sum[first + ROWS_WARPS];
    for (int w = 1; w < lanes / CUDA_WARP; w++) {
        x += sum[first + w];
        y += sum[first + w + ROWS_WARPS];
    }
}

#endif
