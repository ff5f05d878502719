/*
 * Batch normalisation: statistics of each leaf, then element by element.
 *
 * Forward reads x for the statistics and once more for y, which it writes (3 w bytes an element of
 * w); backward reads x, dy and with the ReLU y twice, and writes dx (5 or 7 w). A slab is 8 rows of
 * pixels for each thread, held in registers, so that its variance is taken about its own mean
 * without reading twice; slabs are joined in f64. A thread has 4 to 8 loads of 16 bytes under way,
 * which at 2 blocks a multiprocessor (128 registers) is 32 KiB or more.
 */
#include "cuda/rows/columns.cuh"
#include "cuda/slots.h"

/* Sums of slabs: here a slab is what the block's threads hold, 8 rows each. */
/* For what goes element by element: longer slabs while there are blocks in plenty, so that a
 * channel's numbers are fetched less often. */
static columns_shape batch_norm_long(columns_shape s, int piece)
{
    const int64_t blocks = 2048;
    int64_t tile = (int64_t)s.lanes * piece, tiles = (s.n + tile - 1) / tile;
    while (s.leaves * s.slabs * tiles > blocks && s.slabs > 1) {
        s.slab_rows *= 2;
        s.slabs = (s.leaf_rows + s.slab_rows - 1) / s.slab_rows;
    }
    return s;
}

/* ---- statistics ----------------------------------------------------------------------------- */

/* mean, square [leaves, slabs, n]: of each slab, and its sum of squares about that mean. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS, 2)
    batch_norm_slab_kernel(columns_shape s, const T *x, bool aligned, float *mean, float *square)
{
    constexpr int piece = cuda_vec<T>::count;
    __shared__ float shared[ROWS_THREADS * piece];
    columns_place here = columns_here<piece>(s);
    float rows = (float)(here.end - here.first), centre[piece] = {}, about[piece] = {};
    cuda_vec<T> v[COLUMNS_EACH];
#pragma unroll
    for (int k = 0; k < COLUMNS_EACH; k++) {
        int64_t row = here.first + here.row + k * here.step;
        v[k] = rows_load(x + row * s.n, here.at, row < here.end ? s.n : 0, aligned);
    }
#pragma unroll
    for (int k = 0; k < COLUMNS_EACH; k++)
#pragma unroll
        for (int i = 0; i < piece; i++)
            centre[i] += cuda_to_f32(v[k].at[i]);
    columns_fold<piece>(centre, here, s.lanes, shared);
#pragma unroll
    for (int i = 0; i < piece; i++)
        centre[i] /= rows;
#pragma unroll
    for (int k = 0; k < COLUMNS_EACH; k++) {
        bool inside = here.first + here.row + k * here.step < here.end;
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float away = cuda_to_f32(v[k].at[i]) - centre[i];
            about[i] += inside ? away * away : 0.0f;
        }
    }
    columns_fold<piece>(about, here, s.lanes, shared);
    for (int i = 0; i < piece && here.row == 0; i++) {
        if (here.at + i < s.n) {
            mean[here.slab * s.n + here.at + i] = centre[i];
            square[here.slab * s.n + here.at + i] = about[i];
        }
    }
}

#define BATCH_NORM_BELOW 8 /* rows of threads of a block of 32 channels */

/* Sum over the rows of threads, one after the other; all get it. */
static __device__ __forceinline__ double batch_norm_sum(double x, double (*shared)[CUDA_WARP])
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    __syncthreads();
    shared[threadIdx.x / CUDA_WARP][lane] = x;
    __syncthreads();
    double sum = shared[0][lane];
    for (int r = 1; r < BATCH_NORM_BELOW; r++)
        sum += shared[r][lane];
    return sum;
}

/*
 * One leaf, 32 channels: with rows r and mean m of each slab, M = sum r m / sum r, and the squares
 * about M are the sum of those about m and of r (m - M)^2 (Chan, Golub and LeVeque 1983, equation
 * 1.5).
 */
static __global__ void __launch_bounds__(CUDA_WARP *BATCH_NORM_BELOW)
    batch_norm_leaf_kernel(columns_shape s, float epsilon, const float *mean, const float *square,
                           float *save_mean, float *save_rstd, float *var)
{
    __shared__ double shared[BATCH_NORM_BELOW][CUDA_WARP];
    int below = (int)threadIdx.x / CUDA_WARP;
    int64_t leaf = blockIdx.x, c = (int64_t)blockIdx.y * CUDA_WARP + threadIdx.x % CUDA_WARP;
    int64_t mine = c < s.n ? s.slabs : 0, first = leaf * s.slabs;
    double count = (double)s.leaf_rows, sum = 0, squares = 0;
    for (int64_t slab = below; slab < mine; slab += BATCH_NORM_BELOW) {
        int64_t rest = s.leaf_rows - slab * s.slab_rows;
        double rows = (double)(rest < s.slab_rows ? rest : s.slab_rows);
        sum += rows * (double)mean[(first + slab) * s.n + c];
    }
    double centre = batch_norm_sum(sum, shared) / count;
    for (int64_t slab = below; slab < mine; slab += BATCH_NORM_BELOW) {
        int64_t rest = s.leaf_rows - slab * s.slab_rows;
        double rows = (double)(rest < s.slab_rows ? rest : s.slab_rows);
        double away = (double)mean[(first + slab) * s.n + c] - centre;
        squares += (double)square[(first + slab) * s.n + c] + rows * away * away;
    }
    squares = batch_norm_sum(squares, shared);
    if (below > 0 || c >= s.n)
        return;
    save_mean[leaf * s.n + c] = (float)centre;
    save_rstd[leaf * s.n + c] = (float)(1.0 / sqrt(squares / count + (double)epsilon));
    var[leaf * s.n + c] = (float)(squares / (s.leaf_rows > 1 ? count - 1 : 1.0));
}

/* ---- element by element --------------------------------------------------------------------- */

/* A thread's channels: [at, at + piece) of an f32 or a T array [n]; beyond the end 0. */
template <typename T, int piece>
static __device__ __forceinline__ void batch_norm_channels(const T *from, int64_t at, int64_t n,
                                                           float (&to)[piece])
{
#pragma unroll
    for (int i = 0; i < piece; i++)
        to[i] = at + i < n ? cuda_to_f32(from[at + i]) : 0.0f;
}

/* y = (x - mean) (gamma rstd) + beta, then the ReLU; mean and rstd [leaves, n]. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS, 2)
    batch_norm_apply_kernel(columns_shape s, bool relu, const T *x, const T *gamma, const T *beta,
                            const float *mean, const float *rstd, bool aligned, T *y)
{
    constexpr int piece = cuda_vec<T>::count;
    columns_place here = columns_here<piece>(s);
    float centre[piece], scale[piece], factor[piece], shift[piece];
    batch_norm_channels(mean + here.leaf * s.n, here.at, s.n, centre);
    batch_norm_channels(rstd + here.leaf * s.n, here.at, s.n, scale);
    batch_norm_channels(gamma, here.at, s.n, factor);
    batch_norm_channels(beta, here.at, s.n, shift);
#pragma unroll
    for (int i = 0; i < piece; i++)
        scale[i] *= factor[i];
    for (int64_t row = here.first + here.row; row < here.end; row += COLUMNS_EACH / 2 * here.step) {
        cuda_vec<T> v[COLUMNS_EACH / 2];
#pragma unroll
        for (int k = 0; k < COLUMNS_EACH / 2; k++) {
            int64_t r = row + k * here.step;
            v[k] = rows_load(x + r * s.n, here.at, r < here.end ? s.n : 0, aligned);
        }
#pragma unroll
        for (int k = 0; k < COLUMNS_EACH / 2; k++) {
            int64_t r = row + k * here.step;
#pragma unroll
            for (int i = 0; i < piece; i++) {
                float value = (cuda_to_f32(v[k].at[i]) - centre[i]) * scale[i] + shift[i];
                v[k].at[i] = cuda_from_f32<T>(relu && value < 0.0f ? 0.0f : value);
            }
            rows_store(y + r * s.n, here.at, r < here.end ? s.n : 0, aligned, v[k]);
        }
    }
}

/* The statistics of inference in the form that the kernel above takes. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS, 2)
    batch_norm_given_kernel(int64_t n, float epsilon, const T *mean, const T *var, float *mean_out,
                            float *rstd_out)
{
    int64_t c = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x;
    if (c >= n)
        return;
    mean_out[c] = cuda_to_f32(mean[c]);
    rstd_out[c] = (float)(1.0 / sqrt((double)cuda_to_f32(var[c]) + (double)epsilon));
}

/* ---- backward ------------------------------------------------------------------------------- */

template <typename T> struct batch_norm_grads {
    const T *x, *y, *dy; /* y NULL: no ReLU */
    const float *mean, *rstd;
    bool aligned;
};

#define BATCH_NORM_TURN 2 /* rows of each array under way: 6 loads with the ReLU */

/* Of BATCH_NORM_TURN rows from `row` on, a step apart: the gradient of the normalised output, and
 * x; 0 beyond the end of the slab. */
template <typename T>
static __device__ __forceinline__ void batch_norm_read(const columns_shape &s,
                                                       const batch_norm_grads<T> &g,
                                                       const columns_place &here, int64_t row,
                                                       cuda_vec<T> (&x)[BATCH_NORM_TURN],
                                                       cuda_vec<T> (&dy)[BATCH_NORM_TURN])
{
    cuda_vec<T> y[BATCH_NORM_TURN];
#pragma unroll
    for (int k = 0; k < BATCH_NORM_TURN; k++) {
        int64_t r = row + k * here.step, n = r < here.end ? s.n : 0;
        x[k] = rows_load(g.x + r * s.n, here.at, n, g.aligned);
        dy[k] = rows_load(g.dy + r * s.n, here.at, n, g.aligned);
        if (g.y)
            y[k] = rows_load(g.y + r * s.n, here.at, n, g.aligned);
    }
#pragma unroll
    for (int k = 0; k < BATCH_NORM_TURN; k++)
#pragma unroll
        for (int i = 0; i < cuda_vec<T>::count; i++)
            if (g.y && !(cuda_to_f32(y[k].at[i]) > 0.0f))
                dy[k].at[i] = cuda_from_f32<T>(0.0f);
}

/* dgamma, dbeta [leaves, slabs, n]: sums of g x_hat and of g. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS, 2)
    batch_norm_sums_kernel(columns_shape s, batch_norm_grads<T> g, float *dgamma, float *dbeta)
{
    constexpr int piece = cuda_vec<T>::count;
    __shared__ float shared[ROWS_THREADS * piece];
    columns_place here = columns_here<piece>(s);
    float mean[piece], rstd[piece], sum[piece] = {}, product[piece] = {};
    batch_norm_channels(g.mean + here.leaf * s.n, here.at, s.n, mean);
    batch_norm_channels(g.rstd + here.leaf * s.n, here.at, s.n, rstd);
    for (int64_t row = here.first + here.row; row < here.end; row += BATCH_NORM_TURN * here.step) {
        cuda_vec<T> x[BATCH_NORM_TURN], dy[BATCH_NORM_TURN];
        batch_norm_read(s, g, here, row, x, dy);
#pragma unroll
        for (int k = 0; k < BATCH_NORM_TURN; k++)
#pragma unroll
            for (int i = 0; i < piece; i++) {
                float grad = cuda_to_f32(dy[k].at[i]);
                sum[i] += grad;
                product[i] += grad * ((cuda_to_f32(x[k].at[i]) - mean[i]) * rstd[i]);
            }
    }
    columns_fold<piece>(sum, here, s.lanes, shared);
    columns_fold<piece>(product, here, s.lanes, shared);
    for (int i = 0; i < piece && here.row == 0; i++) {
        if (here.at + i < s.n) {
            dgamma[here.slab * s.n + here.at + i] = product[i];
            dbeta[here.slab * s.n + here.at + i] = sum[i];
        }
    }
}

/* The formula is in ref/batch_norm.c; dgamma, dbeta [leaves, n]. A thread reads dy where it writes
 * dx, and before. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS, 2)
    batch_norm_grad_kernel(columns_shape s, batch_norm_grads<T> g, const T *gamma,
                           const float *dgamma, const float *dbeta, T *dx)
{
    constexpr int piece = cuda_vec<T>::count;
    columns_place here = columns_here<piece>(s);
    float mean[piece], rstd[piece], factor[piece], product[piece], sum[piece];
    float count = (float)s.leaf_rows;
    batch_norm_channels(g.mean + here.leaf * s.n, here.at, s.n, mean);
    batch_norm_channels(g.rstd + here.leaf * s.n, here.at, s.n, rstd);
    batch_norm_channels(gamma, here.at, s.n, factor);
    batch_norm_channels(dgamma + here.leaf * s.n, here.at, s.n, product);
    batch_norm_channels(dbeta + here.leaf * s.n, here.at, s.n, sum);
#pragma unroll
    for (int i = 0; i < piece; i++) {
        factor[i] *= rstd[i];
        product[i] /= count;
        sum[i] /= count;
    }
    for (int64_t row = here.first + here.row; row < here.end; row += BATCH_NORM_TURN * here.step) {
        cuda_vec<T> x[BATCH_NORM_TURN], dy[BATCH_NORM_TURN];
        batch_norm_read(s, g, here, row, x, dy);
#pragma unroll
        for (int k = 0; k < BATCH_NORM_TURN; k++) {
            int64_t r = row + k * here.step;
#pragma unroll
            for (int i = 0; i < piece; i++) {
                float hat = (cuda_to_f32(x[k].at[i]) - mean[i]) * rstd[i];
                float inner = cuda_to_f32(dy[k].at[i]) - sum[i] - hat * product[i];
                dy[k].at[i] = cuda_from_f32<T>(factor[i] * inner);
            }
            rows_store(dx + r * s.n, here.at, r < here.end ? s.n : 0, g.aligned, dy[k]);
        }
    }
}

/* ---- slots ---------------------------------------------------------------------------------- */

/* Two arrays of sums of slabs, two of sums of leaves. Infer has its statistics in the latter. */
struct batch_norm_scratch {
    float *slab[2], *leaf[2];
};

static batch_norm_scratch batch_norm_layout(const columns_shape &s, void *base)
{
    int64_t slabs = s.leaves * s.slabs * s.n, leaves = s.leaves * s.n;
    float *at = static_cast<float *>(base);
    return {{at, at + slabs}, {at + 2 * slabs, at + 2 * slabs + leaves}};
}

template <typename T>
static cudaError_t batch_norm_apply(const struct tess_op *op, const columns_shape &sums,
                                    const void *x, const void *gamma, const void *beta,
                                    const float *mean, const float *rstd, void *y)
{
    columns_shape s = batch_norm_long(sums, cuda_vec<T>::count);
    return CUDA_LAUNCH(batch_norm_apply_kernel<T>, columns_grid(s, cuda_vec<T>::count),
                       ROWS_THREADS, 0, tess__cuda_stream(op->kernel), s, op->desc.relu, x, gamma,
                       beta, mean, rstd, rows_aligned<T>(s.n, x, y), y);
}

/* The trees over the leaves of two arrays. */
static cudaError_t batch_norm_trees(cudaStream_t stream, const columns_shape &s, const float *first,
                                    float *first_out, const float *second, float *second_out)
{
    cudaError_t error = columns_finish_tree(stream, s.leaves, s.n, first, false, first_out);
    return error == cudaSuccess
               ? columns_finish_tree(stream, s.leaves, s.n, second, false, second_out)
               : error;
}

enum tess_status tess__cuda_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                               const void *beta, void *y, float *save_mean,
                                               float *save_rstd, float *mean_sum, float *var_sum)
{
    const struct tess_op_desc *d = &op->desc;
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    cudaError_t error = cuda_by_dtype(d->dtype, [&](auto type) {
        typedef decltype(type) T;
        constexpr int piece = cuda_vec<T>::count;
        columns_shape s = batch_norm_shape(d, d->rows / d->leaf_rows, d->leaf_rows, piece);
        batch_norm_scratch l = batch_norm_layout(s, op->scratch);
        cudaError_t status =
            CUDA_LAUNCH(batch_norm_slab_kernel<T>, columns_grid(s, piece), ROWS_THREADS, 0, stream,
                        s, x, rows_aligned<T>(s.n, x), l.slab[0], l.slab[1]);
        dim3 grid((unsigned)s.leaves, cuda_blocks(s.n, CUDA_WARP));
        if (status == cudaSuccess)
            status =
                CUDA_LAUNCH(batch_norm_leaf_kernel, grid, CUDA_WARP * BATCH_NORM_BELOW, 0, stream,
                            s, d->epsilon, l.slab[0], l.slab[1], save_mean, save_rstd, l.leaf[0]);
        if (status == cudaSuccess)
            status = batch_norm_apply<T>(op, s, x, gamma, beta, save_mean, save_rstd, y);
        return status == cudaSuccess
                   ? batch_norm_trees(stream, s, save_mean, mean_sum, l.leaf[0], var_sum)
                   : status;
    });
    return tess__cuda_status(error, "batch_norm_forward");
}

/* All leaves are one: only the rows of y come of it. */
enum tess_status tess__cuda_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                             const void *beta, const void *mean, const void *var,
                                             void *y)
{
    const struct tess_op_desc *d = &op->desc;
    cudaError_t error = cuda_by_dtype(d->dtype, [&](auto type) {
        typedef decltype(type) T;
        columns_shape s = batch_norm_shape(d, 1, d->rows, cuda_vec<T>::count);
        batch_norm_scratch l = batch_norm_layout(s, op->scratch);
        cudaError_t status = CUDA_LAUNCH(batch_norm_given_kernel<T>, cuda_blocks(s.n, ROWS_THREADS),
                                         ROWS_THREADS, 0, tess__cuda_stream(op->kernel), s.n,
                                         d->epsilon, mean, var, l.leaf[0], l.leaf[1]);
        return status == cudaSuccess
                   ? batch_norm_apply<T>(op, s, x, gamma, beta, l.leaf[0], l.leaf[1], y)
                   : status;
    });
    return tess__cuda_status(error, "batch_norm_infer");
}

enum tess_status tess__cuda_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                                const void *dy, const void *gamma, const void *beta,
                                                const float *save_mean, const float *save_rstd,
                                                void *dx, float *dgamma, float *dbeta)
{
    (void)beta;
    const struct tess_op_desc *d = &op->desc;
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    cudaError_t error = cuda_by_dtype(d->dtype, [&](auto type) {
        typedef decltype(type) T;
        constexpr int piece = cuda_vec<T>::count;
        columns_shape s = batch_norm_shape(d, d->rows / d->leaf_rows, d->leaf_rows, piece);
        batch_norm_scratch l = batch_norm_layout(s, op->scratch);
        const T *output = d->relu ? (const T *)y : NULL;
        batch_norm_grads<T> g = {(const T *)x, output,    (const T *)dy,
                                 save_mean,    save_rstd, rows_aligned<T>(s.n, x, output, dy, dx)};
        columns_shape all = batch_norm_long(s, piece);
        cudaError_t status = CUDA_LAUNCH(batch_norm_sums_kernel<T>, columns_grid(s, piece),
                                         ROWS_THREADS, 0, stream, s, g, l.slab[0], l.slab[1]);
        for (int i = 0; i < 2 && status == cudaSuccess; i++)
            status = columns_leaves(stream, s.leaves, s.slabs, s.n, l.slab[i], l.leaf[i]);
        if (status == cudaSuccess)
            status = CUDA_LAUNCH(batch_norm_grad_kernel<T>, columns_grid(all, piece), ROWS_THREADS,
                                 0, stream, all, g, gamma, l.leaf[0], l.leaf[1], dx);
        return status == cudaSuccess
                   ? batch_norm_trees(stream, s, l.leaf[0], dgamma, l.leaf[1], dbeta)
                   : status;
    });
    return tess__cuda_status(error, "batch_norm_backward");
}
