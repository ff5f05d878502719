/*
 * What the tensor-core kernels of attention share: tiles of 16-bit elements in shared memory, and
 * the products of tiles by the warps of a block. Everything of one tile lies in one head of one
 * sequence.
 *
 * A block has ATTENTION_WARPS warps; each owns 16 M rows of the left factor and of the result, in
 * fragments of mma.m16n8k16 (mma.cuh). A result sums[m][n][4] holds, of lane's group = lane / 4 and
 * pair = 2 (lane % 4), rows 16 m + group (0, 1) and 16 m + group + 8 (2, 3), columns 8 n + pair and
 * pair + 1. Two neighbouring n are exactly the fragment of a left factor 16 columns wide, so that
 * the weights of one product go into the next one without leaving the registers.
 *
 * Tiles are [rows, D], rows without gaps; chunk c (16 bytes) of row r is stored at chunk c ^ (r %
 * 8), so that the 8 rows of one column of chunks lie in different banks.
 *
 * What the sizes come to; rows are the block's, the tile is what goes by them, two at a time in
 * shared memory. Registers of a thread as ptxas of CUDA 13.0 reports them, without spills unless
 * noted:
 *
 *                       D   M  rows  tile   KiB   sm_90a   sm_80    blocks of 4 warps on a
 *                                                                   multiprocessor of sm_90, sm_80
 *   forward_kernel     64   2   128    32    32      163     164      3, 3
 *                     128   2   128    32    64      243     242      2, 2
 *   keys_kernel        64   2   128    32    48.5    255     255 *    2, 2
 *                     128   1    64    32    64.5    246     250      2, 2
 *   queries_kernel     64   2   128    32    48      220     226      2, 2
 *                     128   2   128    32    96      255     254      2, 1
 *
 *   * and 12 bytes to the stack; for sm_100, three of the six put up to 20 bytes there
 *
 * M = 2 where registers allow it: a fragment of the right factor, 16 x 16 elements read from shared
 * memory, is then used for two products of 16 rows, which is what the tensor cores need to be fed
 * at 128 bytes a cycle. The results of keys_kernel, dk and dv, are too large for that at D = 128.
 */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_TILE_CUH
#define KERNELS_CUDA_ATTENTION_ATTENTION_TILE_CUH

#include "cuda/launch.cuh"
#include "cuda/mma.cuh"

#include <math.h>

#define ATTENTION_WARPS   4
#define ATTENTION_THREADS (ATTENTION_WARPS * CUDA_WARP)
#define ATTENTION_CHUNK   8 /* elements of 16 bytes */
#define ATTENTION_LOG2E   1.4426950408889634f
#define ATTENTION_LN2     0.6931471805599453f

/* Where chunk `chunk` of row `row` begins, in elements. */
template <int D> static __device__ __forceinline__ int attention_at(int row, int chunk)
{
    return row * D + ((chunk ^ (row & 7)) * ATTENTION_CHUNK);
}

/* Rows row .. row + ROWS - 1 of a head, `stride` elements apart, on their way into a tile; those
 * from `end` on are zeros. The caller commits. */
template <typename T, int ROWS, int D>
static __device__ __forceinline__ void attention_fetch(T *tile, const T *head, int stride, int row,
                                                       int end)
{
    const int chunks = D / ATTENTION_CHUNK, step = ATTENTION_THREADS / chunks;
    int first = (int)threadIdx.x / chunks, chunk = (int)threadIdx.x % chunks;
    tile += attention_at<D>(first, chunk); /* a step is a multiple of 8 rows: the same place */
    head += chunk * ATTENTION_CHUNK;
    row += first;
#pragma unroll
    for (int i = 0; i < ROWS; i += step)
        cuda_copy_async16(tile + i * D, head + (int64_t)(row + i) * stride, row + i < end);
}

template <int M, int N>
static __device__ __forceinline__ void attention_clear(float (&sums)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[m][n][e] = 0;
}

/*
 * An element of a tile from that of column 0, of the same row: the swizzle is the lower 3 bits of
 * the chunk, so a column of 8 j is an exclusive or. Addresses are made this way, from the place of
 * the tile in use, because the compiler would otherwise keep dozens of them in registers.
 */
static __device__ __forceinline__ int attention_column(int at, int column)
{
    return (at ^ (column & 63)) + (column & 64);
}

/* sums [16 M, 8 N] = left right^T, over D: left the warp's rows of a tile, right a whole one; both
 * are places in `shared`, in elements. */
template <typename T, int D, int M, int N>
static __device__ __forceinline__ void attention_dots(float (&sums)[M][N][4], const T *shared,
                                                      int left, int right)
{
    int lane = cuda_lane();
    left += attention_at<D>(lane % 16, lane / 16);
    right += attention_at<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    attention_clear(sums);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            cuda_load_matrix4(a[m], shared + attention_column(left, 16 * k) + 16 * m * D);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            cuda_load_matrix4(b, shared + attention_column(right, 16 * k) + 8 * n * D);
#pragma unroll
            for (int m = 0; m < M; m++) {
                cuda_mma<T>(sums[m][n], a[m], b);
                cuda_mma<T>(sums[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* sums [16 M, D] += weights right: weights [16 M, 8 N] are a result, rounded to T here, and right
 * [8 N, D] a tile at this place in `shared`. SIGNED: negative weights are taken for 0. */
template <typename T, int D, bool SIGNED = false, int M, int N>
static __device__ __forceinline__ void attention_mix(float (&sums)[M][D / 8][4],
                                                     const float (&weights)[M][N][4],
                                                     const T *shared, int right)
{
    int lane = cuda_lane();
    right += attention_at<D>(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            float w[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                w[i] = weights[m][2 * k + i / 4][i % 4];
                w[i] = SIGNED && w[i] < 0 ? 0 : w[i]; /* a NaN stays */
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[m][i] = cuda_pack2<T>(w[2 * i], w[2 * i + 1]);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];
            cuda_load_matrix4_transposed(b, shared + attention_column(right, 8 * n) + 16 * k * D);
#pragma unroll
            for (int m = 0; m < M; m++) {
                cuda_mma<T>(sums[m][n], a[m], b);
                cuda_mma<T>(sums[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/*
 * The warp's rows of a result times factor[m][half], rounded, to memory: through `tile`, the warp's
 * own rows of a tile that it has done with, so that 16 bytes at a time are written. They are rows
 * row .. of a head; those from `end` on are left alone.
 */
template <typename T, int D, int M>
static __device__ __forceinline__ void attention_put(T *tile, const float (&sums)[M][D / 8][4],
                                                     const float (&factor)[M][2], T *head,
                                                     int stride, int row, int end)
{
    const int chunks = D / ATTENTION_CHUNK;
    int lane = cuda_lane(), group = lane / 4, pair = lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                T *at = tile + attention_at<D>(16 * m + group + 8 * half, n) + pair;
                const float *x = &sums[m][n][2 * half];
                *reinterpret_cast<uint32_t *>(at) =
                    cuda_pack2<T>(x[0] * factor[m][half], x[1] * factor[m][half]);
            }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * M * chunks / CUDA_WARP; i++) {
        int at = lane + i * CUDA_WARP, r = at / chunks, chunk = at % chunks;
        if (row + r < end)
            cuda_store(head + (int64_t)(row + r) * stride + chunk * ATTENTION_CHUNK,
                       cuda_load(tile + attention_at<D>(r, chunk)));
    }
}

/* Over the four lanes that hold a row of a result; all get the same bits. */
static __device__ __forceinline__ float attention_row_sum(float x)
{
    x += __shfl_xor_sync(CUDA_FULL, x, 1);
    return x + __shfl_xor_sync(CUDA_FULL, x, 2);
}

static __device__ __forceinline__ float attention_row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(CUDA_FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(CUDA_FULL, x, 2));
}

static __device__ __forceinline__ int attention_min(int a, int b)
{
    return a < b ? a : b;
}

/* Blocks of `size` that cover `count`. */
static __host__ __device__ __forceinline__ int attention_blocks(int count, int size)
{
    return (int)(((int64_t)count + size - 1) / size);
}

#endif
