/*
 * How kernels hold columns: sums over the rows of a leaf, for each column of [rows, n]. A block
 * takes a tile of columns and a slab of consecutive rows of one leaf; `lanes` threads lie along a
 * row, 16 bytes each, and 256 / lanes rows of threads below each other. What a slab gave is a row
 * of an array [leaves, slabs, n], which columns.cu adds up.
 *
 *             lanes * 16 bytes
 *     leaf  +---------+---------+--
 *           | block   | block   |      slab 0
 *           +---------+---------+--
 *           | block   | block   |      slab 1
 *
 * Lanes follow from n, slabs from n and the rows of a leaf: never from the number of leaves.
 */
#ifndef KERNELS_CUDA_ROWS_COLUMNS_CUH
#define KERNELS_CUDA_ROWS_COLUMNS_CUH

#include "cuda/launch.cuh"
#include "cuda/rows/columns.h"
#include "cuda/rows/rows.cuh"
#include "needs/rows.h"

/* Blocks: slabs of all leaves by tiles of columns. */
static inline dim3 columns_grid(const struct columns_shape &s, int piece)
{
    int64_t tile = (int64_t)s.lanes * piece;
    return dim3((unsigned)(s.leaves * s.slabs), cuda_blocks(s.n, tile));
}

/* Where this thread is: rows first + row, first + row + step, ... below end; columns at ... */
struct columns_place {
    int64_t leaf, slab; /* slab among those of all leaves */
    int64_t first, end; /* rows of the slab */
    int64_t at;         /* first column */
    int lane, row, step;
};

template <int piece>
static __device__ __forceinline__ columns_place columns_here(const struct columns_shape &s)
{
    columns_place here;
    here.slab = blockIdx.x;
    here.leaf = here.slab / s.slabs;
    here.first = here.leaf * s.leaf_rows + (here.slab - here.leaf * s.slabs) * s.slab_rows;
    int64_t leaf_end = (here.leaf + 1) * s.leaf_rows;
    here.end = here.first + s.slab_rows < leaf_end ? here.first + s.slab_rows : leaf_end;
    here.lane = (int)threadIdx.x % s.lanes;
    here.row = (int)threadIdx.x / s.lanes;
    here.step = ROWS_THREADS / s.lanes;
    here.at = ((int64_t)blockIdx.y * s.lanes + here.lane) * piece;
    return here;
}

/*
 * Sum over the block's rows of threads, by halves; the first row of threads has it. All threads
 * call it. shared: [ROWS_THREADS * piece]. A thread's elements lie ROWS_THREADS apart, so that
 * neighbours do not meet in a bank.
 */
template <int piece>
static __device__ __forceinline__ void columns_fold(float *x, const columns_place &here, int lanes,
                                                    float *shared)
{
    __syncthreads(); /* the previous fold has been read */
#pragma unroll
    for (int i = 0; i < piece; i++)
        shared[i * ROWS_THREADS + threadIdx.x] = x[i];
    for (int half = here.step / 2; half > 0; half /= 2) {
        __syncthreads();
        if (here.row >= half)
            continue;
#pragma unroll
        for (int i = 0; i < piece; i++)
            shared[i * ROWS_THREADS + threadIdx.x] +=
                shared[i * ROWS_THREADS + threadIdx.x + half * lanes];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < piece; i++)
        x[i] = shared[i * ROWS_THREADS + here.lane];
}

/*
 * The tree over leaves (ref/fold.h) for one value, leaf after leaf. A value that waits for its
 * right sibling of 2^k leaves lies in position k of a stack in shared memory, `stride` apart: a
 * stack indexed at run time would be local memory, which the driver reserves for every thread that
 * a device can hold.
 */
struct columns_tree {
    float *stack;
    int stride;
    int64_t pushed;
};

static __device__ __forceinline__ void columns_push(columns_tree &tree, float x)
{
    int k = 0;
    for (int64_t carry = tree.pushed; carry & 1; carry >>= 1, k++)
        x = tree.stack[k * tree.stride] + x;
    tree.stack[k * tree.stride] = x;
    tree.pushed++;
}

static __device__ __forceinline__ float columns_total(const columns_tree &tree)
{
    float sum = 0.0f;
    bool any = false;
    for (int k = 0; tree.pushed >> k; k++) {
        if (tree.pushed >> k & 1) {
            float left = tree.stack[k * tree.stride];
            sum = any ? left + sum : left;
            any = true;
        }
    }
    return sum;
}

/* Positions of the stack for `leaves` leaves. */
static inline int columns_levels(int64_t leaves)
{
    int levels = 1;
    while (leaves >> levels)
        levels++;
    return levels;
}

/* ---- the later stages, columns.cu ----------------------------------------------------------- */

/* leaf[leaves, n] = for each leaf the sum of its rows of partial [leaves, slabs, n]. */
cudaError_t columns_leaves(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                           const float *partial, float *leaf);
/* out[n] = (add ? out : 0) + the tree over leaf [leaves, n]; no leaves: 0. */
cudaError_t columns_finish_tree(cudaStream_t stream, int64_t leaves, int64_t n, const float *leaf,
                                bool add, float *out);
/* Both of them. leaf [leaves, n] may be used on the way. */
cudaError_t columns_finish(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                           const float *partial, float *leaf, bool add, float *out);

#endif
