/*
 * Column sums: what a bias gradient is, and the last stages of every sum over rows that other files
 * begin. The first stage reads its input once, 16 bytes a load and 8 loads in flight for each
 * thread, and is bound by memory: at 64 rows or more a slab, the partial sums are at most 1/16 of
 * the bytes (f32 sums of 16-bit rows, written and read). Later stages see little data.
 */
#include "cuda/rows/columns.cuh"

/* ---- slabs ---------------------------------------------------------------------------------- */

template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS, 2)
    columns_slab_kernel(columns_shape s, const T *x, bool aligned, float *partial)
{
    constexpr int piece = cuda_vec<T>::count;
    __shared__ float shared[ROWS_THREADS * piece];
    columns_place here = columns_here<piece>(s);
    float sum[piece] = {};
    for (int64_t base = here.first + here.row; base < here.end; base += COLUMNS_EACH * here.step) {
        cuda_vec<T> v[COLUMNS_EACH];
#pragma unroll
        for (int k = 0; k < COLUMNS_EACH; k++) {
            int64_t row = base + k * here.step;
            v[k] = rows_load(x + row * s.n, here.at, row < here.end ? s.n : 0, aligned);
        }
#pragma unroll
        for (int k = 0; k < COLUMNS_EACH; k++)
#pragma unroll
            for (int i = 0; i < piece; i++)
                sum[i] += cuda_to_f32(v[k].at[i]);
    }
    columns_fold<piece>(sum, here, s.lanes, shared);
    if (here.row > 0)
        return;
    for (int i = 0; i < piece; i++)
        if (here.at + i < s.n)
            partial[here.slab * s.n + here.at + i] = sum[i];
}

/* ---- leaves --------------------------------------------------------------------------------- */

#define COLUMNS_BELOW 8 /* rows of threads of a block of 32 columns */

static __global__ void __launch_bounds__(CUDA_WARP *COLUMNS_BELOW)
    columns_leaf_kernel(int64_t slabs, int64_t n, const float *partial, float *leaf)
{
    __shared__ float shared[COLUMNS_BELOW][CUDA_WARP];
    int lane = (int)threadIdx.x % CUDA_WARP, row = (int)threadIdx.x / CUDA_WARP;
    int64_t column = (int64_t)blockIdx.y * CUDA_WARP + lane, first = (int64_t)blockIdx.x * slabs;
    float sum = 0.0f;
    if (column < n) {
#pragma unroll 8
        for (int64_t s = row; s < slabs; s += COLUMNS_BELOW)
            sum += partial[(first + s) * n + column];
    }
    shared[row][lane] = sum;
    __syncthreads();
    if (row > 0 || column >= n)
        return;
    for (int r = 1; r < COLUMNS_BELOW; r++)
        sum += shared[r][lane];
    leaf[(int64_t)blockIdx.x * n + column] = sum;
}

cudaError_t columns_leaves(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                           const float *partial, float *leaf)
{
    dim3 grid((unsigned)leaves, cuda_blocks(n, CUDA_WARP));
    return CUDA_LAUNCH(columns_leaf_kernel, grid, dim3(CUDA_WARP * COLUMNS_BELOW), 0, stream, slabs,
                       n, partial, leaf);
}

/* ---- tree ----------------------------------------------------------------------------------- */

#define COLUMNS_TREE 128 /* threads, a column each */

/* 8 leaves are loaded before the first of them is added: the loads do not wait for each other. */
static __global__ void __launch_bounds__(COLUMNS_TREE)
    columns_tree_kernel(int64_t leaves, int64_t n, const float *leaf, bool add, float *out)
{
    CUDA_SHARED(float, stack);
    int64_t column = (int64_t)blockIdx.x * COLUMNS_TREE + threadIdx.x;
    if (column >= n)
        return;
    columns_tree tree = {stack + threadIdx.x, COLUMNS_TREE, 0};
    for (int64_t first = 0; first < leaves; first += 8) {
        float x[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[k] = first + k < leaves ? leaf[(first + k) * n + column] : 0.0f;
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (first + k < leaves)
                columns_push(tree, x[k]);
    }
    float sum = columns_total(tree);
    out[column] = add ? out[column] + sum : sum;
}

cudaError_t columns_finish_tree(cudaStream_t stream, int64_t leaves, int64_t n, const float *leaf,
                                bool add, float *out)
{
    size_t shared = (size_t)columns_levels(leaves) * COLUMNS_TREE * sizeof(float);
    return CUDA_LAUNCH(columns_tree_kernel, cuda_blocks(n, COLUMNS_TREE), COLUMNS_TREE, shared,
                       stream, leaves, n, leaf, add, out);
}

cudaError_t columns_finish(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                           const float *partial, float *leaf, bool add, float *out)
{
    if (slabs == 1)
        return columns_finish_tree(stream, leaves, n, partial, add, out);
    if (leaves == 1 && !add)
        return columns_leaves(stream, 1, slabs, n, partial, out);
    cudaError_t error = columns_leaves(stream, leaves, slabs, n, partial, leaf);
    return error == cudaSuccess ? columns_finish_tree(stream, leaves, n, leaf, add, out) : error;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static columns_shape columns_sum_shape(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                       int64_t n)
{
    return columns_shape_of(leaves, leaf_rows, n, dtype == TESS_F32 ? 4 : 8);
}

cudaError_t tess__cuda_column_sum(cudaStream_t stream, enum tess_dtype dtype, int64_t leaves,
                                  int64_t leaf_rows, int64_t n, const void *x, bool add, float *out,
                                  void *scratch)
{
    if (leaves * leaf_rows == 0)
        return columns_finish_tree(stream, 0, n, NULL, add, out);
    columns_shape s = columns_sum_shape(dtype, leaves, leaf_rows, n);
    float *partial = static_cast<float *>(scratch), *leaf = partial + leaves * s.slabs * n;
    cudaError_t error = cuda_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        return CUDA_LAUNCH(columns_slab_kernel<T>, columns_grid(s, cuda_vec<T>::count),
                           ROWS_THREADS, 0, stream, s, x, rows_aligned<T>(n, x), partial);
    });
    if (error != cudaSuccess)
        return error;
    return columns_finish(stream, leaves, s.slabs, n, partial, leaf, add, out);
}
