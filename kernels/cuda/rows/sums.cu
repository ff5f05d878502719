/*
 * What is found out about whole arrays: exact sums of squares, what is not finite, zeros, and the
 * sums of losses. Results are integers, added or compared by atomics, or sums in the order of the
 * rows: their bits do not depend on grid or timing.
 */
#include "cuda/fixed.cuh"
#include "cuda/slots.h"

#include <limits.h>

#define SUMS_THREADS 256

/* Blocks for `count` elements at `per_block` each, as far as more of them help: 8 for each of 132
 * multiprocessors, which then take turns. */
static unsigned sums_blocks(int64_t count, int64_t per_block)
{
    unsigned blocks = cuda_blocks(count, per_block);
    return blocks < 1056 ? blocks : 1056;
}

/* ---- sums of squares ------------------------------------------------------------------------ */

#define SQUARE_PAIRS  (SUMS_THREADS / 2)
#define SQUARE_TURNS  8  /* 64 Ki elements for a thread block: two waves for 124 million */
#define SQUARE_PIECES 96 /* of a launch: less than 4 KiB of parameters */

/* Elements i .. i + 3 of x, zeros from count on. */
static __device__ __forceinline__ float4 square_load(const float *x, int64_t i, int64_t count,
                                                     bool aligned)
{
    if (aligned && i + 4 <= count)
        return *reinterpret_cast<const float4 *>(x + i);
    float4 v;
    v.x = i + 0 < count ? x[i + 0] : 0;
    v.y = i + 1 < count ? x[i + 1] : 0;
    v.z = i + 2 < count ? x[i + 2] : 0;
    v.w = i + 3 < count ? x[i + 3] : 0;
    return v;
}

static __device__ __forceinline__ double square_step(double lane, float x, float scale)
{
    double value = (double)__fmul_rn(scale, x);
    return lane + value * value; /* the square is exact: fused or not, the bits are the same */
}

/* One array, and the first block of the launch that is its own. */
struct square_piece {
    const float *x;
    long long *sum;
    int64_t count;
    float scale;
    int32_t first_block;
    int16_t block;
    bool aligned;
};

/* By value, as the kernel's parameter. */
struct square_batch {
    int32_t count;
    square_piece piece[SQUARE_PIECES];
};

/* Squares of elements [begin, begin + block) of an array, by two threads; those beyond `end` are 0.
 * The sum is that of both. */
static __device__ __forceinline__ double square_block(const square_piece &a, int64_t begin,
                                                      int64_t end, int side)
{
    float4 v[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = square_load(a.x, begin + 4 * side + 8 * j, end, a.aligned);
    double lane[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        lane[0] = square_step(lane[0], v[j].x, a.scale);
        lane[1] = square_step(lane[1], v[j].y, a.scale);
        lane[2] = square_step(lane[2], v[j].z, a.scale);
        lane[3] = square_step(lane[3], v[j].w, a.scale);
    }
#pragma unroll
    for (int l = 0; l < 4; l++)
        lane[l] = __dadd_rn(lane[l], __shfl_xor_sync(CUDA_FULL, lane[l], 1));
    return __dadd_rn(__dadd_rn(lane[0], lane[2]), __dadd_rn(lane[1], lane[3]));
}

/*
 * Two threads take a block of up to 64 elements, in the order of ref/square.h: one has the lanes 0
 * to 3, the other 4 to 7, so that each element is read once, 16 bytes at a time:
 *
 *     element  0..3  4..7  8..11  12..15  16..19 ...
 *     thread    0     1      0       1       0
 *
 * Every pair of threads keeps digits of its own in shared memory, [limb][pair], which are added up
 * over the thread block at the end and into `sum` by one atomic per limb. A thread block has
 * SQUARE_TURNS turns in one array.
 */
__global__ void __launch_bounds__(SUMS_THREADS)
    sums_square(const __grid_constant__ square_batch batch)
{
    __shared__ long long limb[TESS_SUM_LIMBS * SQUARE_PAIRS];
    const int t = (int)threadIdx.x, pair = t / 2, side = t % 2;
    for (int i = t; i < TESS_SUM_LIMBS * SQUARE_PAIRS; i += SUMS_THREADS)
        limb[i] = 0;
    int p = 0; /* the last array that begins no later than this thread block */
    while (p + 1 < batch.count && batch.piece[p + 1].first_block <= (int)blockIdx.x)
        p++;
    const square_piece a = batch.piece[p];
    __syncthreads();

    const int64_t first = (int64_t)((int)blockIdx.x - a.first_block) * SQUARE_TURNS * SQUARE_PAIRS;
    const int64_t blocks = (a.count + a.block - 1) / a.block;
    for (int64_t turn = first; turn < blocks && turn < first + SQUARE_TURNS * SQUARE_PAIRS;
         turn += SQUARE_PAIRS) {
        const int64_t begin = (turn + pair) * a.block; /* may be beyond the end */
        const int64_t end = begin + a.block < a.count ? begin + a.block : a.count;
        const double square = square_block(a, begin, end, side);
        if (side == 0 && turn + pair < blocks)
            fixed_add(limb + pair, SQUARE_PAIRS, square);
    }
    __syncthreads();

    for (int k = cuda_warp(); k < TESS_SUM_LIMBS; k += SUMS_THREADS / CUDA_WARP) {
        long long total = 0;
        for (int q = cuda_lane(); q < SQUARE_PAIRS; q += CUDA_WARP)
            total += limb[k * SQUARE_PAIRS + q];
        total = cuda_warp_sum(total);
        if (cuda_lane() == 0 && total != 0)
            atomicAdd(reinterpret_cast<unsigned long long *>(a.sum + k), (unsigned long long)total);
    }
}

static cudaError_t square_all(cudaStream_t stream, const struct tess_square *square, int32_t count)
{
    square_batch batch;
    int64_t blocks = 0;
    batch.count = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct tess_square *s = &square[i];
        const int64_t each = (int64_t)SQUARE_TURNS * SQUARE_PAIRS * s->block;
        if (s->count <= 0)
            continue;
        batch.piece[batch.count++] = {s->x,
                                      reinterpret_cast<long long *>(s->sum->limb),
                                      s->count,
                                      s->scale,
                                      (int32_t)blocks,
                                      (int16_t)s->block,
                                      cuda_aligned16(s->x) && s->block % 4 == 0};
        blocks += (s->count + each - 1) / each;
        if (batch.count < SQUARE_PIECES)
            continue;
        cudaError_t error =
            CUDA_LAUNCH(sums_square, (unsigned)blocks, SUMS_THREADS, 0, stream, batch);
        if (error != cudaSuccess)
            return error;
        batch.count = 0;
        blocks = 0;
    }
    return CUDA_LAUNCH(sums_square, (unsigned)blocks, SUMS_THREADS, 0, stream, batch);
}

void tess__cuda_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                               int32_t count)
{
    tess__cuda_note(kernel, square_all(tess__cuda_stream(kernel), square, count), "square_sum");
}

void tess__cuda_square_sum(struct tess_kernel *kernel, int64_t count, int32_t block, float scale,
                           const float *x, struct tess_sum *sum)
{
    const struct tess_square square = {count, block, scale, x, sum};
    tess__cuda_square_sum_all(kernel, &square, 1);
}

/* ---- elements that are something: not finite, zero ------------------------------------------- */

/* Not finite is: all bits of the exponent set. Zero is: nothing but a sign. */
template <typename Word> struct sums_word {
    Word exponent, sign;

    __device__ bool nonfinite(Word x) const
    {
        return (x & exponent) == exponent;
    }

    __device__ bool zero(Word x) const
    {
        return (x & (Word)~sign) == 0;
    }
};

/* The elements of a block are SUMS_THREADS vectors; `visit(i, x)` sees each, from any thread. */
template <typename Word, typename F>
static __device__ __forceinline__ void sums_visit(int64_t count, const Word *x, bool aligned,
                                                  F &&visit)
{
    constexpr int width = cuda_vec<Word>::count;
    const int64_t step = (int64_t)gridDim.x * SUMS_THREADS * width;
    for (int64_t i = ((int64_t)blockIdx.x * SUMS_THREADS + threadIdx.x) * width; i < count;
         i += step) {
        if (aligned && i + width <= count) {
            cuda_vec<Word> v = cuda_load(x + i);
#pragma unroll
            for (int e = 0; e < width; e++)
                visit(i + e, v.at[e]);
        } else {
            for (int64_t e = i; e < i + width && e < count; e++)
                visit(e, x[e]);
        }
    }
}

/* *found: the least place, all bits set where there is none. */
template <typename Word>
__global__ void __launch_bounds__(SUMS_THREADS)
    sums_find(int64_t count, const Word *x, sums_word<Word> word, bool aligned,
              unsigned long long *found)
{
    unsigned long long first = ULLONG_MAX;
    sums_visit(count, x, aligned, [&](int64_t i, Word value) {
        if (word.nonfinite(value) && (unsigned long long)i < first)
            first = (unsigned long long)i;
    });
    if (first != ULLONG_MAX)
        atomicMin(found, first);
}

template <typename Word>
__global__ void __launch_bounds__(SUMS_THREADS)
    sums_zeros(int64_t count, const Word *x, sums_word<Word> word, bool aligned,
               unsigned long long *zeros)
{
    __shared__ long long shared[32];
    long long mine = 0;
    sums_visit(count, x, aligned, [&](int64_t, Word value) { mine += word.zero(value); });
    long long all = cuda_block_sum(mine, shared);
    if (threadIdx.x == 0 && all != 0)
        atomicAdd(zeros, (unsigned long long)all);
}

static __global__ void sums_zeros_done(const unsigned long long *zeros, double *sum)
{
    *sum += (double)*zeros;
}

/* Either kernel. */
template <typename Word, typename Kernel>
static cudaError_t sums_launch(Kernel kernel, cudaStream_t stream, int64_t count, const void *x,
                               Word exponent, unsigned long long *result)
{
    sums_word<Word> word = {exponent, (Word)((Word)1 << (8 * sizeof(Word) - 1))};
    return CUDA_LAUNCH(kernel, sums_blocks(count, SUMS_THREADS * cuda_vec<Word>::count),
                       SUMS_THREADS, 0, stream, count, x, word, cuda_aligned16(x), result);
}

static cudaError_t sums_find_any(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                 const void *x, unsigned long long *found)
{
    switch (dtype) {
    case TESS_F32:
        return sums_launch<uint32_t>(sums_find<uint32_t>, stream, count, x, 0x7f800000u, found);
    case TESS_BF16:
        return sums_launch<uint16_t>(sums_find<uint16_t>, stream, count, x, 0x7f80u, found);
    case TESS_F16:
        return sums_launch<uint16_t>(sums_find<uint16_t>, stream, count, x, 0x7c00u, found);
    case TESS_F64:
        return sums_launch<uint64_t>(sums_find<uint64_t>, stream, count, x, 0x7ff0000000000000u,
                                     found);
    default: /* integers are finite */
        return cudaSuccess;
    }
}

static cudaError_t sums_first(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, int64_t *found)
{
    cudaStream_t stream = tess__cuda_stream(kernel);
    void *scratch = tess__cuda_scratch(kernel);
    cudaError_t error = cudaMemsetAsync(scratch, 0xff, sizeof(*found), stream);
    if (error == cudaSuccess)
        error = sums_find_any(stream, dtype, count, x, static_cast<unsigned long long *>(scratch));
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(found, scratch, sizeof(*found), cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    return error;
}

/* Where the device has failed, -1: failed() returns the error. */
int64_t tess__cuda_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                  const void *x)
{
    int64_t found = -1;
    cudaError_t error = sums_first(kernel, dtype, count, x, &found);
    tess__cuda_note(kernel, error, "find_nonfinite");
    return error == cudaSuccess ? found : -1;
}

__global__ void __launch_bounds__(SUMS_THREADS)
    sums_flag(int64_t count, const uint32_t *x, bool aligned, int flag, int *grad_bad)
{
    bool bad = false;
    sums_visit(count, x, aligned,
               [&](int64_t, uint32_t value) { bad |= (value & 0x7f800000u) == 0x7f800000u; });
    if (__syncthreads_or(bad) && threadIdx.x == 0)
        atomicMax(grad_bad, flag);
}

void tess__cuda_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                          struct tess_verdict *verdict)
{
    tess__cuda_note(kernel,
                    CUDA_LAUNCH(sums_flag, sums_blocks(count, SUMS_THREADS * 4), SUMS_THREADS, 0,
                                tess__cuda_stream(kernel), count,
                                reinterpret_cast<const uint32_t *>(x), cuda_aligned16(x), flag,
                                &verdict->grad_bad),
                    "find_flag");
}

void tess__cuda_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, double *sum)
{
    cudaStream_t stream = tess__cuda_stream(kernel);
    unsigned long long *zeros = static_cast<unsigned long long *>(tess__cuda_scratch(kernel));
    cudaError_t error = cudaMemsetAsync(zeros, 0, sizeof(*zeros), stream);
    if (error == cudaSuccess)
        error = dtype == TESS_F32
                    ? sums_launch<uint32_t>(sums_zeros<uint32_t>, stream, count, x, 0, zeros)
                    : sums_launch<uint16_t>(sums_zeros<uint16_t>, stream, count, x, 0, zeros);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH(sums_zeros_done, 1, 1, 0, stream, zeros, sum);
    tess__cuda_note(kernel, error, "count_zeros");
}

/* ---- sums of losses ------------------------------------------------------------------------- */

/* Block l < leaves: the sums of leaf l, staged by all threads and added by two in the order of the
 * rows. One block more: the first row whose loss is not finite. */
__global__ void __launch_bounds__(SUMS_THREADS)
    sums_leaf(int64_t leaves, int64_t leaf_rows, const float *loss, const int32_t *correct,
              double *sum, int *loss_bad)
{
    __shared__ float stage_loss[SUMS_THREADS];
    __shared__ int32_t stage_correct[SUMS_THREADS];
    __shared__ long long first;
    const int t = (int)threadIdx.x;
    if ((int64_t)blockIdx.x == leaves) {
        if (t == 0)
            first = INT64_MAX;
        __syncthreads();
        for (int64_t i = t; i < leaves * leaf_rows; i += SUMS_THREADS) {
            if ((__float_as_uint(loss[i]) & 0x7f800000u) == 0x7f800000u) {
                atomicMin(&first, (long long)i);
                break;
            }
        }
        __syncthreads();
        if (t == 0 && first != INT64_MAX)
            *loss_bad = (int)(1 + first);
        return;
    }
    const int64_t begin = (int64_t)blockIdx.x * leaf_rows;
    double total = 0;
    for (int64_t at = 0; at < leaf_rows; at += SUMS_THREADS) {
        const int rows = (int)(leaf_rows - at < SUMS_THREADS ? leaf_rows - at : SUMS_THREADS);
        if (t < rows) {
            stage_loss[t] = loss[begin + at + t];
            stage_correct[t] = correct[begin + at + t];
        }
        __syncthreads();
        for (int i = 0; t == 0 && i < rows; i++)
            total += (double)stage_loss[i];
        for (int i = 0; t == CUDA_WARP && i < rows; i++)
            total += (double)stage_correct[i];
        __syncthreads();
    }
    if (t == 0 || t == CUDA_WARP)
        sum[2 * (int64_t)blockIdx.x + (t != 0)] = total;
}

void tess__cuda_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                         const float *loss, const int32_t *correct, double *sum,
                         struct tess_verdict *verdict)
{
    tess__cuda_note(kernel,
                    CUDA_LAUNCH(sums_leaf, (unsigned)(leaves + 1), SUMS_THREADS, 0,
                                tess__cuda_stream(kernel), leaves, leaf_rows, loss, correct, sum,
                                &verdict->loss_bad),
                    "leaf_sum");
}
