/*
 * Layer norm and RMS norm over the channels of each row, fused with the residual addition before
 * (forward) and after (backward). Memory is passed over once: a row stays in the registers of its
 * group of threads between the sums and what is done with them.
 *
 * Bytes an element of w bytes: forward reads x and add, writes sum and y (4 w); backward reads x,
 * dy and add, writes dx (4 w), and for 32 rows or more two f32 sums, written and read. A thread has
 * all its loads of a row under way before the first sum: of bf16, 128 bytes (forward, 32 elements,
 * 24 warps a multiprocessor at 80 registers) or 96 (backward, 16 elements, 16 warps at 128). That
 * is 96 and 48 KiB under way; to keep a memory of 4.8 TB/s busy over a latency of 0.7 us each of
 * 132 multiprocessors needs 25. gamma and beta come from the first-level cache.
 */
#include "cuda/rows/columns.cuh"
#include "cuda/slots.h"

/* WHOLE: rows are aligned and whole pieces, as those of all usual widths are. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ cuda_vec<T> norm_load(const T *row, int64_t at, int64_t count)
{
    if constexpr (!WHOLE)
        return rows_load(row, at, count, false);
    return at < count ? cuda_load(row + at) : cuda_vec<T>{};
}

template <typename T, bool WHOLE>
static __device__ __forceinline__ void norm_store(T *row, int64_t at, int64_t count,
                                                  const cuda_vec<T> &v)
{
    if constexpr (!WHOLE)
        rows_store(row, at, count, false, v);
    else if (at < count)
        cuda_store(row + at, v);
}

/* Does what is added come with the row? In f32, and element by element, there are no registers for
 * that: it comes piece by piece. */
template <typename T, bool WHOLE> static __device__ __forceinline__ constexpr bool norm_ahead()
{
    return WHOLE && sizeof(T) < sizeof(float);
}

/* ---- forward -------------------------------------------------------------------------------- */

template <typename T> struct norm_forward_args {
    const T *x, *add, *gamma, *beta;
    T *sum, *y;
    float *mean, *rstd;
};

/* The row's pieces; with `add`, as they were rounded to T, which is what is kept and normalised. */
template <typename T, int PIECES, bool WHOLE>
static __device__ __forceinline__ void norm_read(const norm_shape &s, const norm_forward_args<T> &a,
                                                 int64_t row, int64_t count, int lane,
                                                 cuda_vec<T> (&x)[PIECES])
{
    constexpr int piece = cuda_vec<T>::count;
    const bool ahead = norm_ahead<T, WHOLE>();
    cuda_vec<T> more[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        x[p] = norm_load<T, WHOLE>(a.x + row * s.channels, (p * s.lanes + lane) * piece, count);
    if (!a.add)
        return;
#pragma unroll
    for (int p = 0; p < PIECES && ahead; p++)
        more[p] =
            norm_load<T, WHOLE>(a.add + row * s.channels, (p * s.lanes + lane) * piece, count);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (!ahead)
            more[p] =
                norm_load<T, WHOLE>(a.add + row * s.channels, (p * s.lanes + lane) * piece, count);
#pragma unroll
        for (int i = 0; i < piece; i++)
            x[p].at[i] = cuda_from_f32<T>(cuda_to_f32(x[p].at[i]) + cuda_to_f32(more[p].at[i]));
        norm_store<T, WHOLE>(a.sum + row * s.channels, (p * s.lanes + lane) * piece, count, x[p]);
    }
}

/* A group whose row is beyond the end goes along with a row of no elements: the others wait for it
 * at the barriers. */
template <typename T, int SPAN, bool WHOLE>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_forward_kernel(norm_shape s, norm_forward_args<T> a)
{
    constexpr int piece = cuda_vec<T>::count, pieces = SPAN / piece;
    __shared__ float shared[ROWS_WARPS];
    int lane = (int)threadIdx.x % s.lanes;
    int64_t row = (int64_t)blockIdx.x * s.groups + (int)threadIdx.x / s.lanes;
    int64_t count = row < s.rows ? s.channels : 0;
    cuda_vec<T> x[pieces];
    norm_read<T, pieces, WHOLE>(s, a, row, count, lane, x);
    float mean = 0.0f, square = 0.0f;
    if (!s.rms) {
#pragma unroll
        for (int p = 0; p < pieces; p++)
#pragma unroll
            for (int i = 0; i < piece; i++)
                mean += cuda_to_f32(x[p].at[i]);
        mean = rows_sum(mean, s.lanes, shared) / (float)s.channels;
    }
#pragma unroll
    for (int p = 0; p < pieces; p++)
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float away = cuda_to_f32(x[p].at[i]) - mean;
            square += (p * s.lanes + lane) * piece + i < count ? away * away : 0.0f;
        }
    square = rows_sum(square, s.lanes, shared);
    float rstd = 1.0f / sqrtf(square / (float)s.channels + s.epsilon);
    if (lane == 0 && count > 0) {
        a.rstd[row] = rstd;
        if (!s.rms)
            a.mean[row] = mean;
    }
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        int at = (p * s.lanes + lane) * piece;
        cuda_vec<T> gamma = norm_load<T, WHOLE>(a.gamma, at, count), beta = {}, y;
        if (!s.rms)
            beta = norm_load<T, WHOLE>(a.beta, at, count);
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float hat = (cuda_to_f32(x[p].at[i]) - mean) * rstd;
            y.at[i] = cuda_from_f32<T>(hat * cuda_to_f32(gamma.at[i]) +
                                       (s.rms ? 0.0f : cuda_to_f32(beta.at[i])));
        }
        norm_store<T, WHOLE>(a.y + row * s.channels, at, count, y);
    }
}

/* Rows that are not whole pieces have one kernel, with room for any of them: zeros beyond the end
 * change nothing. */
template <typename T>
static cudaError_t norm_forward(cudaStream_t stream, const norm_shape &s,
                                const norm_forward_args<T> &a)
{
    bool whole = rows_aligned<T>(s.channels, a.x, a.add, a.sum, a.gamma, a.beta, a.y);
    auto kernel = !whole                       ? norm_forward_kernel<T, 32, false>
                  : s.channels <= 8 * s.lanes  ? norm_forward_kernel<T, 8, true>
                  : s.channels <= 16 * s.lanes ? norm_forward_kernel<T, 16, true>
                                               : norm_forward_kernel<T, 32, true>;
    return CUDA_LAUNCH(kernel, cuda_blocks(s.rows, s.groups), s.lanes * s.groups, 0, stream, s, a);
}

enum tess_status tess__cuda_norm_forward(struct tess_op *op, const void *x, const void *add,
                                         void *sum, const void *gamma, const void *beta, void *y,
                                         float *mean, float *rstd)
{
    norm_shape s = norm_shape_of(&op->desc, NORM_FORWARD_EACH);
    cudaError_t error = cuda_by_dtype(op->desc.dtype, [&](auto type) {
        typedef decltype(type) T;
        norm_forward_args<T> a = {
            (const T *)x, (const T *)add, (const T *)gamma, (const T *)beta, (T *)sum, (T *)y, mean,
            rstd};
        return norm_forward(tess__cuda_stream(op->kernel), s, a);
    });
    return tess__cuda_status(error, "norm_forward");
}

/* ---- backward ------------------------------------------------------------------------------- */

template <typename T> struct norm_backward_args {
    const T *x, *dy, *gamma, *add;
    const float *mean, *rstd;
    T *dx;
    float *dgamma, *dbeta; /* partial sums [leaves, slabs, channels] */
};

/* What a thread adds up over the rows of a slab, for its elements. */
template <int SPAN> struct norm_sums {
    float gamma[SPAN], beta[SPAN];
};

/* One row; the formula is in ref/row_norm.c. A thread reads dy and add where it writes dx, and
 * before: dx may be either. */
template <typename T, int SPAN, bool WHOLE>
static __device__ __forceinline__ void norm_backward_row(const norm_shape &s,
                                                         const norm_backward_args<T> &a,
                                                         int64_t row, int64_t count, int lane,
                                                         int turn, float *shared,
                                                         norm_sums<SPAN> &sums)
{
    constexpr int piece = cuda_vec<T>::count, pieces = SPAN / piece;
    const bool ahead = norm_ahead<T, WHOLE>();
    int64_t first = row * s.channels;
    cuda_vec<T> x[pieces], dy[pieces], more[pieces];
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        int at = (p * s.lanes + lane) * piece;
        x[p] = norm_load<T, WHOLE>(a.x + first, at, count);
        dy[p] = norm_load<T, WHOLE>(a.dy + first, at, count);
        if (a.add && ahead)
            more[p] = norm_load<T, WHOLE>(a.add + first, at, count);
    }
    float mean = count > 0 && !s.rms ? a.mean[row] : 0.0f, rstd = count > 0 ? a.rstd[row] : 0.0f;
    float sum = 0.0f, product = 0.0f;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        cuda_vec<T> gamma = norm_load<T, WHOLE>(a.gamma, (p * s.lanes + lane) * piece, count);
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float d = cuda_to_f32(dy[p].at[i]), hat = (cuda_to_f32(x[p].at[i]) - mean) * rstd;
            float g = cuda_to_f32(gamma.at[i]) * d;
            sum += g;
            product += g * hat;
            sums.gamma[p * piece + i] += d * hat;
            sums.beta[p * piece + i] += d;
        }
    }
    rows_sum_pair(sum, product, s.lanes, turn, shared);
    sum = s.rms ? 0.0f : sum / (float)s.channels;
    product /= (float)s.channels;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        int at = (p * s.lanes + lane) * piece;
        cuda_vec<T> gamma = norm_load<T, WHOLE>(a.gamma, at, count), dx;
        if (a.add && !ahead)
            more[p] = norm_load<T, WHOLE>(a.add + first, at, count);
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float hat = (cuda_to_f32(x[p].at[i]) - mean) * rstd;
            float g = cuda_to_f32(gamma.at[i]) * cuda_to_f32(dy[p].at[i]);
            float grad = rstd * (g - sum - hat * product);
            dx.at[i] = cuda_from_f32<T>(a.add ? grad + cuda_to_f32(more[p].at[i]) : grad);
        }
        norm_store<T, WHOLE>(a.dx + first, at, count, dx);
    }
}

/* The groups of the block one after the other; then the slab's row of partial sums is written.
 * total: [channels] of shared memory. */
template <typename T, int SPAN>
static __device__ __forceinline__ void norm_gather(const norm_shape &s, int group, int lane,
                                                   const float *x, float *total, float *partial)
{
    constexpr int piece = cuda_vec<T>::count, pieces = SPAN / piece;
    for (int turn = 0; turn < s.groups; turn++) {
#pragma unroll
        for (int j = 0; j < pieces * piece; j++) {
            int c = (j / piece * s.lanes + lane) * piece + j % piece;
            if (turn == group && c < s.channels)
                total[c] = turn == 0 ? x[j] : total[c] + x[j];
        }
        __syncthreads();
    }
    for (int c = (int)threadIdx.x; c < s.channels; c += s.lanes * s.groups)
        partial[c] = total[c];
    __syncthreads();
}

template <typename T, int SPAN, bool WHOLE>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_backward_kernel(norm_shape s, norm_backward_args<T> a)
{
    CUDA_SHARED(float, total);
    __shared__ float shared[4 * ROWS_WARPS];
    int lane = (int)threadIdx.x % s.lanes, group = (int)threadIdx.x / s.lanes;
    int64_t leaf = blockIdx.x / s.slabs, slab = blockIdx.x - leaf * s.slabs;
    int64_t first = leaf * s.leaf_rows + slab * s.slab_rows, end = (leaf + 1) * s.leaf_rows;
    end = first + s.slab_rows < end ? first + s.slab_rows : end;
    norm_sums<SPAN> sums = {};
    int turn = 0;
    for (int64_t base = first; base < end; base += s.groups, turn ^= 1) {
        int64_t row = base + group, count = row < end ? s.channels : 0;
        norm_backward_row<T, SPAN, WHOLE>(s, a, row, count, lane, turn, shared, sums);
    }
    int64_t out = (int64_t)blockIdx.x * s.channels;
    norm_gather<T, SPAN>(s, group, lane, sums.gamma, total, a.dgamma + out);
    if (!s.rms)
        norm_gather<T, SPAN>(s, group, lane, sums.beta, total, a.dbeta + out);
}

/* The partial sums alone; a block takes a tile of columns of a slab. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    norm_columns_kernel(columns_shape s, norm_backward_args<T> a, bool rms, bool aligned)
{
    constexpr int piece = cuda_vec<T>::count;
    __shared__ float shared[ROWS_THREADS * piece];
    columns_place here = columns_here<piece>(s);
    float gamma[piece] = {}, beta[piece] = {};
#pragma unroll 4
    for (int64_t row = here.first + here.row; row < here.end; row += here.step) {
        cuda_vec<T> x = rows_load(a.x + row * s.n, here.at, s.n, aligned);
        cuda_vec<T> dy = rows_load(a.dy + row * s.n, here.at, s.n, aligned);
        float mean = rms ? 0.0f : a.mean[row], rstd = a.rstd[row];
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float d = cuda_to_f32(dy.at[i]);
            gamma[i] += d * ((cuda_to_f32(x.at[i]) - mean) * rstd);
            beta[i] += d;
        }
    }
    columns_fold<piece>(gamma, here, s.lanes, shared);
    if (!rms)
        columns_fold<piece>(beta, here, s.lanes, shared);
    for (int i = 0; i < piece && here.row == 0; i++) {
        if (here.at + i >= s.n)
            continue;
        a.dgamma[here.slab * s.n + here.at + i] = gamma[i];
        if (!rms)
            a.dbeta[here.slab * s.n + here.at + i] = beta[i];
    }
}

/* dx alone, of rows of more than 8192 elements: a block takes a row, twice. */
template <typename T>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_wide_kernel(norm_shape s, norm_backward_args<T> a, bool aligned)
{
    constexpr int piece = cuda_vec<T>::count;
    __shared__ float shared[4 * ROWS_WARPS];
    int64_t row = blockIdx.x, first = row * s.channels, begin = (int64_t)threadIdx.x * piece;
    float mean = s.rms ? 0.0f : a.mean[row], rstd = a.rstd[row], sum = 0.0f, product = 0.0f;
#pragma unroll 4
    for (int64_t at = begin; at < s.channels; at += NORM_THREADS * piece) {
        cuda_vec<T> x = rows_load(a.x + first, at, s.channels, aligned);
        cuda_vec<T> dy = rows_load(a.dy + first, at, s.channels, aligned);
        cuda_vec<T> gamma = rows_load(a.gamma, at, s.channels, aligned);
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float g = cuda_to_f32(gamma.at[i]) * cuda_to_f32(dy.at[i]);
            sum += g;
            product += g * ((cuda_to_f32(x.at[i]) - mean) * rstd);
        }
    }
    rows_sum_pair(sum, product, NORM_THREADS, 0, shared);
    sum = s.rms ? 0.0f : sum / (float)s.channels;
    product /= (float)s.channels;
#pragma unroll 2
    for (int64_t at = begin; at < s.channels; at += NORM_THREADS * piece) {
        cuda_vec<T> x = rows_load(a.x + first, at, s.channels, aligned);
        cuda_vec<T> dy = rows_load(a.dy + first, at, s.channels, aligned);
        cuda_vec<T> gamma = rows_load(a.gamma, at, s.channels, aligned), more = {}, dx;
        if (a.add)
            more = rows_load(a.add + first, at, s.channels, aligned);
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float hat = (cuda_to_f32(x.at[i]) - mean) * rstd;
            float g = cuda_to_f32(gamma.at[i]) * cuda_to_f32(dy.at[i]);
            float grad = rstd * (g - sum - hat * product);
            dx.at[i] = cuda_from_f32<T>(a.add ? grad + cuda_to_f32(more.at[i]) : grad);
        }
        rows_store(a.dx + first, at, s.channels, aligned, dx);
    }
}

/* The sums come first: dx may lie over dy. */
template <typename T>
static cudaError_t norm_backward_wide(cudaStream_t stream, const norm_shape &s,
                                      const norm_backward_args<T> &a)
{
    const bool aligned = rows_aligned<T>(s.channels, a.x, a.dy, a.gamma, a.add, a.dx);
    const columns_shape c = {s.rows / s.leaf_rows, s.leaf_rows, s.channels, s.slabs,
                             s.slab_rows,          CUDA_WARP};
    const cudaError_t error =
        CUDA_LAUNCH(norm_columns_kernel<T>, columns_grid(c, cuda_vec<T>::count), ROWS_THREADS, 0,
                    stream, c, a, s.rms, aligned);
    return error != cudaSuccess ? error
                                : CUDA_LAUNCH(norm_wide_kernel<T>, (unsigned)s.rows, NORM_THREADS,
                                              0, stream, s, a, aligned);
}

template <typename T>
static cudaError_t norm_backward(cudaStream_t stream, const norm_shape &s,
                                 const norm_backward_args<T> &a)
{
    if (s.channels > 16 * s.lanes)
        return norm_backward_wide(stream, s, a);
    const bool whole = rows_aligned<T>(s.channels, a.x, a.dy, a.gamma, a.add, a.dx);
    auto kernel = !whole                      ? norm_backward_kernel<T, 16, false>
                  : s.channels <= 8 * s.lanes ? norm_backward_kernel<T, 8, true>
                                              : norm_backward_kernel<T, 16, true>;
    return CUDA_LAUNCH(kernel, (unsigned)(s.rows / s.leaf_rows * s.slabs), s.lanes * s.groups,
                       (size_t)s.channels * sizeof(float), stream, s, a);
}

/* Scratch: the partial sums of dgamma and dbeta, then their sums by leaves. */
enum tess_status tess__cuda_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                          const void *gamma, const float *mean, const float *rstd,
                                          const void *add, void *dx, float *dgamma, float *dbeta)
{
    norm_shape s = norm_shape_of(&op->desc, NORM_BACKWARD_EACH);
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    int64_t leaves = s.rows / s.leaf_rows, partial = leaves * s.slabs * s.channels;
    float *slabs[2] = {(float *)op->scratch, (float *)op->scratch + partial};
    float *leaf = slabs[1] + partial;
    cudaError_t error = cuda_by_dtype(op->desc.dtype, [&](auto type) {
        typedef decltype(type) T;
        norm_backward_args<T> a = {(const T *)x,   (const T *)dy, (const T *)gamma,
                                   (const T *)add, mean,          rstd,
                                   (T *)dx,        slabs[0],      slabs[1]};
        return norm_backward(stream, s, a);
    });
    if (error == cudaSuccess)
        error = columns_finish(stream, leaves, s.slabs, s.channels, slabs[0], leaf, false, dgamma);
    if (error == cudaSuccess && !s.rms)
        error = columns_finish(stream, leaves, s.slabs, s.channels, slabs[1], leaf, false, dbeta);
    return tess__cuda_status(error, "norm_backward");
}
