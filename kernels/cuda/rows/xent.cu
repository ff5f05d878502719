/*
 * Softmax and cross-entropy: over parts of the classes (vocabulary parallel) and the whole in one
 * kernel. A row belongs to a warp, or from 1025 classes on to a block of 256.
 *
 * Bytes a logit of w bytes: xent_max reads it once (w) for maximum and sum together (online:
 * Milakov and Gimelshein 2018, algorithm 3), and xent_sum, which has 32 bytes a row to do, not at
 * all (once more where labels are smoothed); xent_grad reads it and writes the gradient in its
 * place (2 w). softmax_xent is the same in one (3 w, of which the second reading finds a row of 100
 * KB in the second-level cache). A thread has 4 loads of 16 bytes under way, a multiprocessor with
 * 2048 threads 128 KiB. What could bind instead of memory is the exponential: by 2^x it is a
 * subtraction, a multiplication and one instruction of the special function unit.
 */
#include "cuda/rows/rows.cuh"
#include "cuda/slots.h"

#include <math.h>

#define XENT_EACH  32 /* logits for one thread, below which a warp is enough for a row */
#define XENT_AHEAD 4  /* pieces loaded before the first is used */
#define XENT_LOG2E 1.44269504088896340736f

/* exp(x - max) for x <= max. The difference is taken first: it is what small errors are relative
 * to. What is below 2^-126 is 0: beside a sum of exponentials whose greatest is 1 it counts for
 * nothing. */
static __device__ __forceinline__ float xent_exp(float x, float max)
{
    return cuda_exp2((x - max) * XENT_LOG2E);
}

/* Classes [first, first + classes) of rows of `stride`. */
struct xent_shape {
    int64_t rows, classes, stride, first;
    int lanes;
    bool aligned;
    tess_xent how;
};

/* The row of this group, or one >= rows: then the thread may leave, since only whole warps or whole
 * blocks wait for each other. */
static __device__ __forceinline__ int64_t xent_row(const xent_shape &s)
{
    return (int64_t)blockIdx.x * (ROWS_THREADS / s.lanes) + (int)threadIdx.x / s.lanes;
}

/* visit(v, at) for each of this thread's pieces of the first `count` elements, in order; those
 * beyond are -inf. */
template <typename T, typename Visit>
static __device__ __forceinline__ void xent_each(const xent_shape &s, const T *row, int64_t count,
                                                 const Visit &visit)
{
    constexpr int piece = cuda_vec<T>::count;
    int lane = (int)threadIdx.x % s.lanes;
    for (int64_t p = lane; p * piece < count; p += (int64_t)s.lanes * XENT_AHEAD) {
        cuda_vec<T> v[XENT_AHEAD];
#pragma unroll
        for (int k = 0; k < XENT_AHEAD; k++)
            v[k] = rows_load(row, (p + (int64_t)k * s.lanes) * piece, count, s.aligned, -INFINITY);
#pragma unroll
        for (int k = 0; k < XENT_AHEAD; k++)
            if ((p + (int64_t)k * s.lanes) * piece < count)
                visit(v[k], (p + (int64_t)k * s.lanes) * piece);
    }
}

/* ---- one pass over a row --------------------------------------------------------------------- */

/* The state of a thread for a row: the greatest logit so far and its first index, and the sum of
 * exp(x - max) so far. */
struct xent_online {
    float max, sum, best;
};

/* One piece: the sum is brought to the new maximum, then the piece is added. With nothing above
 * -inf so far there is no maximum to subtract: 0 stands for it. */
template <typename T>
static __device__ __forceinline__ void xent_take(xent_online &o, const cuda_vec<T> &v, int64_t at)
{
    constexpr int piece = cuda_vec<T>::count;
    float greatest = o.max;
#pragma unroll
    for (int i = 0; i < piece; i++)
        greatest = fmaxf(greatest, cuda_to_f32(v.at[i]));
    if (greatest > o.max) {
#pragma unroll
        for (int i = piece - 1; i >= 0; i--)
            if (cuda_to_f32(v.at[i]) == greatest)
                o.best = -(float)(at + i);
        o.sum *= xent_exp(o.max, greatest);
        o.max = greatest;
    }
    float shift = o.max == -INFINITY ? 0.0f : o.max;
#pragma unroll
    for (int i = 0; i < piece; i++)
        o.sum += xent_exp(cuda_to_f32(v.at[i]), shift);
}

/* A row, by its group, whose threads all get the same. Classes are below 2^24: best is exact. */
template <typename T>
static __device__ __forceinline__ xent_online xent_row_online(const xent_shape &s, const T *row,
                                                              float *shared)
{
    xent_online o = {-INFINITY, 0.0f, -INFINITY}, all;
    xent_each(s, row, s.classes, [&](const cuda_vec<T> &v, int64_t at) { xent_take(o, v, at); });
    all.max = rows_max(o.max, s.lanes, shared);
    all.sum =
        rows_sum(o.max == -INFINITY ? o.sum : o.sum * xent_exp(o.max, all.max), s.lanes, shared);
    all.best = rows_max(o.max == all.max ? o.best : -INFINITY, s.lanes, shared);
    return all;
}

/* ---- parts ---------------------------------------------------------------------------------- */

/* sum and best by the part's own maximum, which is kept in target too: max is reduced in place. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    xent_max_kernel(xent_shape s, const T *logits, float *max, float *sum, float *target,
                    float *best)
{
    __shared__ float shared[ROWS_WARPS];
    int64_t row = xent_row(s);
    if (row >= s.rows)
        return;
    xent_online o = xent_row_online(s, logits + row * s.stride, shared);
    if (threadIdx.x % s.lanes > 0)
        return;
    max[row] = target[row] = o.max;
    sum[row] = o.sum;
    best[row] = o.best;
}

/*
 * From the part's own maximum to that of all parts; a thread takes a row. Where nothing is above
 * -inf the sum is NaN, as that of the definition.
 */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    xent_sum_kernel(xent_shape s, const T *logits, const int32_t *label, const float *max,
                    float *sum, float *target, float *best)
{
    int64_t row = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x;
    if (row >= s.rows)
        return;
    int64_t here = label[row] - s.first; /* negative for padding too */
    float own = target[row], all = max[row];
    sum[row] = s.classes > 0 ? sum[row] * xent_exp(own, all) : 0.0f;
    best[row] = own < all ? -INFINITY : best[row] - (float)s.first;
    target[row] = here >= 0 && here < s.classes ? cuda_to_f32(logits[row * s.stride + here]) : 0.0f;
}

/* The logits of a row, added up by its group, whose threads all get the same. */
template <typename T>
static __device__ __forceinline__ float xent_row_total(const xent_shape &s, const T *row,
                                                       float *shared)
{
    constexpr int piece = cuda_vec<T>::count;
    float total = 0.0f;
    xent_each(s, row, s.classes, [&](const cuda_vec<T> &v, int64_t at) {
        int left = s.classes - at < piece ? (int)(s.classes - at) : piece;
#pragma unroll
        for (int i = 0; i < piece; i++)
            total += i < left ? cuda_to_f32(v.at[i]) : 0.0f;
    });
    return rows_sum(total, s.lanes, shared);
}

/* Where labels are smoothed: the share of all classes, which needs the row once more. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    xent_spread_kernel(xent_shape s, const T *logits, float *target)
{
    __shared__ float shared[ROWS_WARPS];
    int64_t row = xent_row(s);
    if (row >= s.rows)
        return;
    float total = xent_row_total(s, logits + row * s.stride, shared);
    if (threadIdx.x % s.lanes == 0)
        target[row] = (1.0f - s.how.smoothing) * target[row] + s.how.spread * total;
}

/* One row's gradient, over all of its stride; `own` is the label among the classes here. Every
 * element is read by the thread that writes it: dlogits may be the logits. */
template <typename T>
static __device__ __forceinline__ void xent_write(const xent_shape &s, const T *logits, int64_t own,
                                                  float scale, float max, float sum, T *dlogits)
{
    constexpr int piece = cuda_vec<T>::count;
    float lse = s.how.z > 0.0f ? logf(sum) + max : 0.0f;
    float part = (1.0f + 2.0f * s.how.z * lse) / sum;
    float keep = 1.0f - s.how.smoothing;
    xent_each(s, logits, s.stride, [&](const cuda_vec<T> &v, int64_t at) {
        int here = own >= at && own < at + piece ? (int)(own - at) : -1;
        int left = s.classes - at < piece ? (int)(s.classes - at) : piece;
        cuda_vec<T> d;
#pragma unroll
        for (int i = 0; i < piece; i++) {
            float softmax = xent_exp(cuda_to_f32(v.at[i]), max) * part;
            float grad = scale * (softmax - (i == here ? keep : 0.0f) - s.how.spread);
            d.at[i] = cuda_from_f32<T>(i < left ? grad : 0.0f);
        }
        rows_store(dlogits, at, s.stride, s.aligned, d);
    });
}

template <typename T>
static __device__ __forceinline__ void xent_write_zero(const xent_shape &s, T *dlogits)
{
    constexpr int piece = cuda_vec<T>::count;
    const cuda_vec<T> zero = {};
    for (int64_t p = (int)threadIdx.x % s.lanes; p * piece < s.stride; p += s.lanes)
        rows_store(dlogits, p * piece, s.stride, s.aligned, zero);
}

template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    xent_grad_kernel(xent_shape s, float scale, const T *logits, const int32_t *label,
                     const float *max, const float *sum, T *dlogits)
{
    int64_t row = xent_row(s);
    if (row >= s.rows)
        return;
    if (label[row] < 0)
        xent_write_zero(s, dlogits + row * s.stride);
    else
        xent_write(s, logits + row * s.stride, label[row] - s.first, scale, max[row], sum[row],
                   dlogits + row * s.stride);
}

/* A block takes a sequence. The terms come from all threads at once, then one adds them in order:
 * 256 numbers in shared memory at a time. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    xent_loss_kernel(int64_t length, tess_xent how, const int32_t *label, const float *max,
                     const float *sum, const float *target, const float *best, float *loss,
                     int32_t *correct)
{
    __shared__ double term[ROWS_THREADS];
    __shared__ int hit[ROWS_THREADS];
    int64_t begin = (int64_t)blockIdx.x * length, end = begin + length;
    double total = 0;
    int32_t hits = 0;
    for (int64_t first = begin; first < end; first += ROWS_THREADS) {
        int64_t b = first + threadIdx.x;
        term[threadIdx.x] = 0;
        hit[threadIdx.x] = 0;
        if (b < end && label[b] >= 0) {
            double logarithm = log((double)sum[b]);
            double lse = how.z > 0.0f ? logarithm + (double)max[b] : 0;
            term[threadIdx.x] =
                logarithm - ((double)target[b] - (double)max[b]) + (double)how.z * lse * lse;
            hit[threadIdx.x] = -best[b] == (float)label[b];
        }
        __syncthreads();
        for (int i = 0; i < ROWS_THREADS && threadIdx.x == 0; i++) {
            total += term[i]; /* the zeros of padding and beyond the end change nothing */
            hits += hit[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        loss[blockIdx.x] = (float)total;
        correct[blockIdx.x] = hits;
    }
}

/* ---- whole ---------------------------------------------------------------------------------- */

template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    xent_whole_kernel(xent_shape s, float scale, const T *logits, const int32_t *label, T *dlogits,
                      float *loss, int32_t *correct)
{
    __shared__ float shared[ROWS_WARPS];
    int64_t row = xent_row(s);
    if (row >= s.rows)
        return;
    int own = label[row];
    bool leader = threadIdx.x % s.lanes == 0;
    if (own < 0) {
        if (leader) {
            loss[row] = 0;
            correct[row] = 0;
        }
        if (dlogits)
            xent_write_zero(s, dlogits + row * s.stride);
        return;
    }
    const T *from = logits + row * s.stride;
    float target = cuda_to_f32(from[own]);
    xent_online o = xent_row_online(s, from, shared);
    if (s.how.smoothing > 0.0f)
        target = (1.0f - s.how.smoothing) * target + s.how.spread * xent_row_total(s, from, shared);
    if (leader) {
        float lse = s.how.z > 0.0f ? logf(o.sum) + o.max : 0.0f;
        loss[row] = logf(o.sum) - (target - o.max) + s.how.z * lse * lse;
        correct[row] = -o.best == (float)own;
    }
    /* dlogits may be the logits: the target has been read by all. */
    __syncwarp();
    if (dlogits)
        xent_write(s, from, own, scale, o.max, o.sum, dlogits + row * s.stride);
}

/* ---- slots ---------------------------------------------------------------------------------- */

/* launch(T(), shape, blocks), with what follows from the type and from where the rows lie. */
template <typename Launch>
static void xent_slot(struct tess_kernel *kernel, const char *where, enum tess_dtype dtype,
                      xent_shape s, const void *logits, const void *grad, const Launch &launch)
{
    s.lanes = s.classes <= XENT_EACH * CUDA_WARP ? CUDA_WARP : ROWS_THREADS;
    cudaError_t error = cuda_by_dtype(dtype, [&](auto type) {
        s.aligned = rows_aligned<decltype(type)>(s.stride, logits, grad);
        return launch(type, s, cuda_blocks(s.rows, ROWS_THREADS / s.lanes));
    });
    tess__cuda_note(kernel, error, where);
}

void tess__cuda_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, const void *logits, float *max,
                         float *sum, float *target, float *best)
{
    xent_slot(kernel, "xent_max", dtype, {rows, classes, stride, 0, 0, false, {}}, logits, logits,
              [&](auto type, const xent_shape &s, unsigned blocks) {
                  return CUDA_LAUNCH(xent_max_kernel<decltype(type)>, blocks, ROWS_THREADS, 0,
                                     tess__cuda_stream(kernel), s, logits, max, sum, target, best);
              });
}

void tess__cuda_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                         const void *logits, const int32_t *label, const float *max, float *sum,
                         float *target, float *best)
{
    xent_slot(kernel, "xent_sum", dtype, {rows, classes, stride, first, 0, false, how}, logits,
              logits, [&](auto type, const xent_shape &s, unsigned) {
                  return CUDA_LAUNCH(xent_sum_kernel<decltype(type)>,
                                     cuda_blocks(s.rows, ROWS_THREADS), ROWS_THREADS, 0,
                                     tess__cuda_stream(kernel), s, logits, label, max, sum, target,
                                     best);
              });
    if (how.smoothing > 0.0f)
        xent_slot(kernel, "xent_sum", dtype, {rows, classes, stride, first, 0, false, how}, logits,
                  logits, [&](auto type, const xent_shape &s, unsigned blocks) {
                      return CUDA_LAUNCH(xent_spread_kernel<decltype(type)>, blocks, ROWS_THREADS,
                                         0, tess__cuda_stream(kernel), s, logits, target);
                  });
}

void tess__cuda_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                          float scale, const void *logits, const int32_t *label, const float *max,
                          const float *sum, void *dlogits)
{
    xent_slot(kernel, "xent_grad", dtype, {rows, classes, stride, first, 0, false, how}, logits,
              dlogits, [&](auto type, const xent_shape &s, unsigned blocks) {
                  return CUDA_LAUNCH(xent_grad_kernel<decltype(type)>, blocks, ROWS_THREADS, 0,
                                     tess__cuda_stream(kernel), s, scale, logits, label, max, sum,
                                     dlogits);
              });
}

void tess__cuda_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                          struct tess_xent how, const int32_t *label, const float *max,
                          const float *sum, const float *target, const float *best, float *loss,
                          int32_t *correct)
{
    tess__cuda_note(kernel,
                    CUDA_LAUNCH(xent_loss_kernel, (unsigned)(rows / length), ROWS_THREADS, 0,
                                tess__cuda_stream(kernel), length, how, label, max, sum, target,
                                best, loss, correct),
                    "xent_loss");
}

/* dlogits may be NULL or the logits. */
void tess__cuda_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, struct tess_xent how, float scale, const void *logits,
                             const int32_t *label, void *dlogits, float *loss, int32_t *correct)
{
    xent_slot(kernel, "softmax_xent", dtype, {rows, classes, classes, 0, 0, false, how}, logits,
              dlogits, [&](auto type, const xent_shape &s, unsigned blocks) {
                  return CUDA_LAUNCH(xent_whole_kernel<decltype(type)>, blocks, ROWS_THREADS, 0,
                                     tess__cuda_stream(kernel), s, scale, logits, label, dlogits,
                                     loss, correct);
              });
}
