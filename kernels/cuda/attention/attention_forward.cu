/*
 * Causal attention forward on tensor cores: Dao 2023, "FlashAttention-2", algorithm 1. A block of
 * four warps takes ROWS queries of one head of one sequence through the keys before them, KEYS at a
 * time; the tile after the one in use is on its way. What is computed of a row depends on the row
 * and on the keys that it sees alone: tiles of keys begin at multiples of KEYS, and one that a row
 * does not see leaves its sums as they are. So a row has the same bits in every block, and decoding
 * those of training. Backward is in attention_backward.cu, other head sizes and dtypes are in
 * attention_plain.cu.
 */
#include "cuda/attention/attention_drop.cuh"
#include "cuda/attention/attention_place.cuh"
#include "cuda/attention/attention_tile.cuh"
#include "cuda/attention/launch_attention.h"

/* State of a lane for the rows that it shares with three others: m fragments, rows group and group
 * + 8 of each. */
template <int M> struct forward_rows {
    float max[M][2]; /* the greatest score so far, times scale_log2, rounded, or up to FORWARD_SLACK
                        less: the p and the rescaling of sums are all relative to this number */
    float sum[M][2]; /* of this lane's columns only */
};

/*
 * How far, as a power of two, a row's weights may grow beyond 1 before y is rescaled: a new maximum
 * alone is no reason to. Some of a warp's 16 M rows has one in most tiles (of scores in random
 * order in n of the first n^2 / 32), and rescaling is 2 M D / 4 multiplications of a lane beside
 * 12 M for the weights of 32 keys. 2^8 has room in f16, and costs no digit: y is divided by the
 * sum of the same weights.
 */
#define FORWARD_SLACK 8.0f

/*
 * Scores become weights p = exp2(score scale_log2 - max); sums and y are brought to the new max.
 * Where no row of a warp has one y is left alone, which is the same bits as multiplying by 1.
 */
template <int M, int N, int DN>
static __device__ __forceinline__ void forward_softmax(float (&score)[M][N][4],
                                                       struct forward_rows<M> &rows,
                                                       float (&y)[M][DN][4], float scale_log2)
{
    float keep[M][2];
    bool raised = false;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max = -INFINITY;
#pragma unroll
            for (int n = 0; n < N; n++)
                max = fmaxf(max, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
            max = attention_row_max(max) * scale_log2;
            max = max > rows.max[m][half] + FORWARD_SLACK ? max : rows.max[m][half];
            /* A row of nothing but minus infinities must not become inf - inf. */
            float base = max == -INFINITY ? 0 : max;
            keep[m][half] = cuda_exp2(rows.max[m][half] - base);
            raised = raised || rows.max[m][half] != max;
            float sum = rows.sum[m][half] * keep[m][half];
            rows.max[m][half] = max;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    score[m][n][e] = cuda_exp2(fmaf(score[m][n][e], scale_log2, -base));
                    sum += score[m][n][e];
                }
            rows.sum[m][half] = sum;
        }
    if (__ballot_sync(CUDA_FULL, raised) == 0)
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < DN; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[m][n][e] *= keep[m][e / 2];
}

/* No weight for keys after the query, nor for those before its window where there is one: `ahead`
 * is the tile's first key less the warp's first row. */
template <bool MASKED, int M, int N>
static __device__ __forceinline__ void forward_mask(float (&score)[M][N][4], int ahead, int window)
{
    int lane = cuda_lane();
    ahead += lane % 4 * 2 - lane / 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = 16 * m + e / 2 * 8 - 8 * n - e % 2;
                if (ahead > row || (MASKED && ahead + window <= row))
                    score[m][n][e] = -INFINITY;
            }
}

/* y and lse of the warp's rows, first .. of a head, before `end`. `scale`: of what dropout keeps.
 */
template <typename T, int D, int M, bool DROPS, bool KEPT>
static __device__ __forceinline__ void forward_finish(struct forward_rows<M> &rows,
                                                      const float (&y)[M][D / 8][4], T *tile,
                                                      T *head, int stride, float *lse, int first,
                                                      int end, float scale)
{
    int lane = cuda_lane();
    float factor[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = attention_row_sum(rows.sum[m][half]);
            int row = first + 16 * m + lane / 4 + 8 * half;
            factor[m][half] = DROPS ? scale / sum : 1 / sum;
            if (!KEPT && lane % 4 == 0 && row < end)
                lse[row] = (rows.max[m][half] + log2f(sum)) * ATTENTION_LN2;
        }
    attention_put<T, D, M>(tile, y, factor, head, stride, first, end);
}

/*
 * grid: blocks of queries fastest, so that blocks that run beside each other share keys and values
 * in the cache, and the last block of a sequence, with the most keys, first.
 */
template <typename T, int D, int M, int KEYS, int MODE>
static __global__ void __launch_bounds__(ATTENTION_THREADS, D == 64 ? 3 : 2)
    forward_kernel(const struct cuda_attention_forward a,
                   const struct cuda_attention_documents documents,
                   const struct cuda_attention_drop drop, const int32_t query)
{
    const int ROWS = 16 * M * ATTENTION_WARPS;
    const bool MASKED = MODE != ATTENTION_WHOLE, DROPS = MODE == ATTENTION_DROPS;
    const bool KEPT = MODE == ATTENTION_KEPT;
    const int from = KEPT ? query : 0; /* the position of row 0 of q and y */
    CUDA_SHARED(T, shared);
    const int q_tile = 0, k_tile = ROWS * D, v_tile = k_tile + 2 * KEYS * D;
    const struct cuda_attention_shape &s = a.shape;

    int count = attention_blocks(s.length, ROWS), length = s.length;
    int first = (count - 1 - (int)(blockIdx.x % (unsigned)count)) * ROWS;
    int64_t head_of_all = blockIdx.x / (unsigned)count;
    int64_t head = head_of_all % s.heads, start = head_of_all / s.heads * s.length;
    int64_t row = head_of_all * s.length; /* of lse */
    if (KEPT) {
        count = attention_blocks(s.length - from, ROWS);
        first = from + (int)(blockIdx.x % (unsigned)count) * ROWS;
        head = blockIdx.x / (unsigned)count;
        start = 0;
    } else if (MASKED) {
        const struct attention_place place =
            attention_place_of<MASKED>(s, documents, s.heads, ROWS, blockIdx.x);
        length = place.length;
        first = (place.tiles - 1 - place.tile) * ROWS;
        head = place.head;
        start = place.start;
        row = attention_row(s, place, place.head);
    }
    const T *q = (const T *)a.q + start * s.q_stride + head * D;
    const T *k = (const T *)a.k + start * s.kv_stride + head / s.group * D;
    const T *v = (const T *)a.v + start * s.kv_stride + head / s.group * D;

    int tiles = attention_blocks(attention_min(length, first + ROWS), KEYS), tile = 0;
    if (MASKED && first >= s.window)
        tile = (first - s.window + 1) / KEYS;
    attention_fetch<T, ROWS, D>(shared + q_tile, q, s.q_stride, first - from, length - from);
    attention_fetch<T, KEYS, D>(shared + k_tile + tile % 2 * KEYS * D, k, s.kv_stride, tile * KEYS,
                                length);
    attention_fetch<T, KEYS, D>(shared + v_tile + tile % 2 * KEYS * D, v, s.kv_stride, tile * KEYS,
                                length);
    cuda_copy_commit();

    int mine = cuda_warp() * 16 * M; /* the warp's first row in the block */
    struct forward_rows<M> rows;
    float y[M][D / 8][4];
    struct attention_keeps keeps = attention_keeps_none();
    attention_clear(y);
#pragma unroll
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) {
            rows.max[m][half] = -INFINITY;
            rows.sum[m][half] = 0;
        }

    for (; tile < tiles; tile++) {
        int key = tile * KEYS, next = key + KEYS;
        if (tile + 1 < tiles) {
            int at = (tile + 1) % 2 * KEYS * D;
            attention_fetch<T, KEYS, D>(shared + k_tile + at, k, s.kv_stride, next, length);
            attention_fetch<T, KEYS, D>(shared + v_tile + at, v, s.kv_stride, next, length);
        }
        cuda_copy_commit();
        cuda_copy_wait<1>();
        __syncthreads();
        /* Else all of it is after the warp's rows, or before what they see. */
        if (key < first + mine + 16 * M && (!MASKED || next > first + mine - s.window + 1) &&
            (!KEPT || first + mine < length)) {
            if (DROPS)
                attention_keep_rows<M>(drop, start + first + mine, (int)head, key, keeps);
            float score[M][KEYS / 8][4];
            attention_dots<T, D>(score, shared, q_tile + mine * D, k_tile + tile % 2 * KEYS * D);
            if (next > first + mine + 1 || (MASKED && key < first + mine + 16 * M - s.window))
                forward_mask<MASKED>(score, key - first - mine, s.window);
            forward_softmax(score, rows, y, s.scale_log2);
            if (DROPS)
                attention_drop_rows(score, keeps, key);
            attention_mix<T, D>(y, score, shared, v_tile + tile % 2 * KEYS * D);
        }
        __syncthreads();
    }
    forward_finish<T, D, M, DROPS, KEPT>(
        rows, y, shared + q_tile + mine * D, (T *)a.y + (start * s.heads + head) * D, s.heads * D,
        a.lse + row, first - from + mine, length - from, drop.scale);
}

template <typename T, int D>
static cudaError_t forward_launch(cudaStream_t stream, const struct cuda_attention_forward *a,
                                  const struct cuda_attention_documents *documents,
                                  const struct cuda_attention_drop *drop)
{
    constexpr int m = 2, keys = 32, rows = 16 * m * ATTENTION_WARPS;
    const struct cuda_attention_documents d = attention_tiles(documents, rows);
    const int64_t blocks = attention_tile_count(a->shape, d, rows) * a->shape.heads;
    auto kernel = drop->limit > 0 ? forward_kernel<T, D, m, keys, ATTENTION_DROPS>
                  : d.count > 0 || a->shape.window < a->shape.length
                      ? forward_kernel<T, D, m, keys, ATTENTION_MASKED>
                      : forward_kernel<T, D, m, keys, ATTENTION_WHOLE>;
    return CUDA_LAUNCH(kernel, (unsigned)blocks, ATTENTION_THREADS,
                       (size_t)(rows + 4 * keys) * D * sizeof(T), stream, *a, d, *drop, 0);
}

cudaError_t tess__cuda_launch_attention_forward(cudaStream_t stream,
                                                const struct cuda_attention_forward *a,
                                                const struct cuda_attention_documents *documents,
                                                const struct cuda_attention_drop *drop)
{
    const bool small = a->shape.head_size == 64;
    if (a->shape.dtype == TESS_BF16)
        return small ? forward_launch<__nv_bfloat16, 64>(stream, a, documents, drop)
                     : forward_launch<__nv_bfloat16, 128>(stream, a, documents, drop);
    return small ? forward_launch<__half, 64>(stream, a, documents, drop)
                 : forward_launch<__half, 128>(stream, a, documents, drop);
}

/* Lower blocks: most calls have one query. */
template <typename T, int D>
static cudaError_t kept_launch(cudaStream_t stream, const struct cuda_attention_forward *a,
                               int32_t from)
{
    constexpr int m = 1, keys = 32, rows = 16 * m * ATTENTION_WARPS;
    const struct cuda_attention_documents none = {};
    const int blocks = attention_blocks(a->shape.length - from, rows) * a->shape.heads;
    return CUDA_LAUNCH((forward_kernel<T, D, m, keys, ATTENTION_KEPT>), (unsigned)blocks,
                       ATTENTION_THREADS, (size_t)(rows + 4 * keys) * D * sizeof(T), stream, *a,
                       none, cuda_attention_drop(), from);
}

cudaError_t tess__cuda_launch_attention_kept(cudaStream_t stream,
                                             const struct cuda_attention_forward *a, int32_t from)
{
    const bool small = a->shape.head_size == 64;
    if (a->shape.dtype == TESS_BF16)
        return small ? kept_launch<__nv_bfloat16, 64>(stream, a, from)
                     : kept_launch<__nv_bfloat16, 128>(stream, a, from);
    return small ? kept_launch<__half, 64>(stream, a, from)
                 : kept_launch<__half, 128>(stream, a, from);
}
