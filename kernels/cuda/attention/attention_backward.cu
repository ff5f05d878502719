/*
 * Causal attention backward on tensor cores: Dao 2023, "FlashAttention-2", algorithm 2, cut in two
 * so that nothing is added atomically and every sum has one order. With P = exp(S - lse) and dS =
 * P (dy v^T - rowsum(dy y)) / sqrt(D):
 *
 *   keys_kernel      a block of keys and values of one head through all queries after them, of all
 *                    query heads that share them: dv = P^T dy, dk = dS^T q
 *   queries_kernel   a block of queries of one head through all keys before them: dq = dS k
 *
 * Either makes S and dy v^T again: 7 products instead of 5. The first holds them transposed, keys
 * down and queries across, so that in both the weights are left factors as they come out of the
 * registers, and none crosses shared memory.
 *
 * With dropout, keep being 0 or 1 / (1 - rate): dv = (P keep)^T dy and dS = P (keep dy v^T -
 * rowsum(dy y)) / sqrt(D).
 */
#include "cuda/attention/attention_drop.cuh"
#include "cuda/attention/attention_place.cuh"
#include "cuda/attention/attention_tile.cuh"
#include "cuda/attention/launch_attention.h"

/* ---- rowsum(dy y), the paper's D ------------------------------------------------------------ */

#define BACKWARD_PRODUCT_LANES 8 /* to a row: a head of 64 is 8 times 16 bytes */
#define BACKWARD_PRODUCT_BLOCK 256

/* product = scale dy . y of rows [first, rows) of [positions, heads]; VECTOR: 16 bytes at a time.
 */
template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(BACKWARD_PRODUCT_BLOCK)
    backward_product_kernel(const struct cuda_attention_backward a, int64_t first, int64_t rows,
                            const struct cuda_attention_documents documents)
{
    const struct cuda_attention_shape &s = a.shape;
    int64_t row = first + ((int64_t)blockIdx.x * BACKWARD_PRODUCT_BLOCK + threadIdx.x) /
                              BACKWARD_PRODUCT_LANES;
    int lane = (int)threadIdx.x % BACKWARD_PRODUCT_LANES;
    float sum = 0;
    if (row < rows) {
        const T *y = (const T *)a.y + row * s.head_size, *dy = (const T *)a.dy + row * s.head_size;
        const int width = VECTOR ? cuda_vec<T>::count : 1;
#pragma unroll 1
        for (int at = lane * width; at < s.head_size; at += BACKWARD_PRODUCT_LANES * width) {
            if (VECTOR) {
                cuda_vec<T> u = cuda_load(y + at), v = cuda_load(dy + at);
#pragma unroll
                for (int i = 0; i < cuda_vec<T>::count; i++)
                    sum = fmaf(cuda_to_f32(u.at[i]), cuda_to_f32(v.at[i]), sum);
            } else {
                sum = fmaf(cuda_to_f32(y[at]), cuda_to_f32(dy[at]), sum);
            }
        }
    }
#pragma unroll
    for (int step = 1; step < BACKWARD_PRODUCT_LANES; step *= 2)
        sum += __shfl_xor_sync(CUDA_FULL, sum, step);
    if (row < rows && lane == 0) {
        const int64_t head = row % s.heads, position = row / s.heads;
        struct attention_place place = {position / s.length * s.length, s.length, 0, 0, 0};
        if (documents.count > 0) {
            const int d = attention_document(documents.begin, documents.count, (int)position);
            place.start = documents.begin[d];
            place.length = documents.begin[d + 1] - documents.begin[d];
        }
        a.product[attention_row(s, place, (int)head) + position - place.start] = sum * s.scale;
    }
}

cudaError_t tess__cuda_launch_attention_product(cudaStream_t stream,
                                                const struct cuda_attention_backward *a,
                                                const struct cuda_attention_documents *documents)
{
    const struct cuda_attention_shape &s = a->shape;
    const bool aligned = cuda_aligned16(a->y) && cuda_aligned16(a->dy);
    const int32_t count = documents->count;
    const int64_t first = count > 0 ? (int64_t)documents->begin[0] * s.heads : 0;
    const int64_t rows =
        (count > 0 ? documents->begin[count] : s.batch * s.length) * (int64_t)s.heads;
    return cuda_by_dtype(s.dtype, [&](auto type) {
        typedef decltype(type) T;
        auto kernel = aligned && s.head_size % cuda_vec<T>::count == 0
                          ? backward_product_kernel<T, true>
                          : backward_product_kernel<T, false>;
        return CUDA_LAUNCH(
            kernel, cuda_blocks(rows - first, BACKWARD_PRODUCT_BLOCK / BACKWARD_PRODUCT_LANES),
            BACKWARD_PRODUCT_BLOCK, 0, stream, *a, first, rows, *documents);
    });
}

/* ---- dk, dv --------------------------------------------------------------------------------- */

/* One head of a sequence, from its first position on, and a tile of its queries. */
template <typename T> struct backward_queries {
    const T *q, *dy;
    int64_t row; /* of lse and product */
    int first;
};

template <typename T, int D, int QUERIES>
static __device__ __forceinline__ void backward_fetch(const struct cuda_attention_shape &s,
                                                      const struct backward_queries<T> &at,
                                                      T *q_tile, T *dy_tile)
{
    attention_fetch<T, QUERIES, D>(q_tile, at.q, s.q_stride, at.first, s.length);
    attention_fetch<T, QUERIES, D>(dy_tile, at.dy, s.heads * D, at.first, s.length);
}

/* Of 2 QUERIES numbers of a tile this thread's: lse log2(e) of its queries, then product. 0 beyond
 * the end, where q and dy are 0 too: weights of 1 times nothing. */
template <typename T, int QUERIES>
static __device__ __forceinline__ float backward_stat(const struct cuda_attention_backward &a,
                                                      const struct backward_queries<T> &at,
                                                      int length)
{
    int thread = (int)threadIdx.x, position = at.first + thread % QUERIES;
    if (thread >= 2 * QUERIES || position >= length)
        return 0;
    return thread < QUERIES ? a.lse[at.row + position] * ATTENTION_LOG2E
                            : a.product[at.row + position];
}

/* Scores [keys, queries] become P. `ahead`: the warp's first key less the tile's first query; stat:
 * lse log2(e) of the queries. DROPS: what is not in `kept` is negative, so that both weights fit.
 */
template <bool MASKED, bool DROPS, int M, int N>
static __device__ __forceinline__ void keys_weights(float (&score)[M][N][4], const float *stat,
                                                    float scale_log2, int ahead, int window,
                                                    uint32_t kept)
{
    int lane = cuda_lane(), pair = lane % 4 * 2;
    ahead += lane / 4 - pair;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float lse[2] = {stat[8 * n + pair], stat[8 * n + pair + 1]};
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = cuda_exp2(fmaf(score[m][n][e], scale_log2, -lse[e % 2]));
                const int query = 8 * n + e % 2 - 16 * m - e / 2 * 8;
                const bool out = ahead > query || (MASKED && ahead + window <= query);
                if (DROPS && !attention_kept_column<M>(kept, m, n, e))
                    p = -p;
                score[m][n][e] = out ? 0 : p;
            }
    }
}

/* P becomes dS, by dp = v dy^T. `scale` has that of what is kept. */
template <bool DROPS, int M, int N>
static __device__ __forceinline__ void keys_grads(float (&weight)[M][N][4],
                                                  const float (&dp)[M][N][4], const float *stat,
                                                  float scale)
{
    int pair = cuda_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float product[2] = {stat[8 * n + pair], stat[8 * n + pair + 1]};
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (DROPS && weight[m][n][e] < 0)
                    weight[m][n][e] *= product[e % 2]; /* two signs */
                else
                    weight[m][n][e] *= fmaf(dp[m][n][e], scale, -product[e % 2]);
    }
}

/* grid: blocks of keys fastest; the first of a sequence has the most queries. */
template <typename T, int D, int M, int QUERIES, int MODE>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    keys_kernel(const struct cuda_attention_backward a,
                const struct cuda_attention_documents documents,
                const struct cuda_attention_drop drop)
{
    const int KEYS = 16 * M * ATTENTION_WARPS, N = QUERIES / 8;
    const bool MASKED = MODE != ATTENTION_WHOLE, DROPS = MODE == ATTENTION_DROPS;
    const int k_tile = 0, v_tile = KEYS * D, q_tile = 2 * KEYS * D;
    const int dy_tile = q_tile + 2 * QUERIES * D;
    CUDA_SHARED(T, shared);
    float *stats = reinterpret_cast<float *>(shared + dy_tile + 2 * QUERIES * D);
    typename attention_shape_of<MASKED>::type s = a.shape;

    int count = attention_blocks(s.length, KEYS), kv_heads = s.heads / s.group;
    int first = (int)(blockIdx.x % (unsigned)count) * KEYS;
    int kv = (int)(blockIdx.x / (unsigned)count % (unsigned)kv_heads);
    int64_t sequence = blockIdx.x / (unsigned)count / (unsigned)kv_heads;
    int64_t start = sequence * s.length, row = 0; /* of lse, where it is MASKED */
    int after = 0; /* MASKED: the first query behind those that see one of the keys */
    if constexpr (MASKED) {
        const struct attention_place place =
            attention_place_of<MASKED>(a.shape, documents, kv_heads, KEYS, blockIdx.x);
        s.length = place.length;
        first = place.tile * KEYS;
        kv = place.head;
        start = place.start;
        row = attention_row(a.shape, place, kv * s.group);
        after = s.window < s.length - first ? attention_min(s.length, first + KEYS - 1 + s.window)
                                            : s.length;
    }
    int64_t offset = start * s.kv_stride + kv * D;
    attention_fetch<T, KEYS, D>(shared + k_tile, (const T *)a.k + offset, s.kv_stride, first,
                                s.length);
    attention_fetch<T, KEYS, D>(shared + v_tile, (const T *)a.v + offset, s.kv_stride, first,
                                s.length);

    /* The queries of one head after another, each from the block's first key on. */
    int head = kv * s.group,
        tiles = attention_blocks((MASKED ? after : s.length) - first, QUERIES) * s.group;
    struct backward_queries<T> at = {
        (const T *)a.q + start *s.q_stride + head *D, (const T *)a.dy + (start * s.heads + head) * D
            ,
            MASKED ? row : (sequence *s.heads + head) * s.length, first
    };
    backward_fetch<T, D, QUERIES>(s, at, shared + q_tile, shared + dy_tile);
    cuda_copy_commit();
    float stat = backward_stat<T, QUERIES>(a, at, s.length);
    if ((int)threadIdx.x < 2 * QUERIES)
        stats[threadIdx.x] = stat;

    int mine = cuda_warp() * 16 * M;
    float dk[M][D / 8][4], dv[M][D / 8][4];
    attention_clear(dk);
    attention_clear(dv);
    for (int tile = 0; tile < tiles; tile++) {
        int stage = tile % 2, query = at.first;
        const int now_head = head;
        if (tile + 1 < tiles) {
            bool same = query + QUERIES < (MASKED ? after : s.length);
            at.first = same ? query + QUERIES : first;
            at.q += same ? 0 : D;
            at.dy += same ? 0 : D;
            at.row += same ? 0 : s.length;
            if (DROPS)
                head += same ? 0 : 1;
            backward_fetch<T, D, QUERIES>(s, at, shared + q_tile + (1 - stage) * QUERIES * D,
                                          shared + dy_tile + (1 - stage) * QUERIES * D);
            stat =
                backward_stat<T, QUERIES>(a, at, s.length); /* on its way while this tile is used */
        }
        cuda_copy_commit();
        cuda_copy_wait<1>();
        __syncthreads();
        /* Else all of it is before the warp's keys, or too far behind them. */
        if (query + QUERIES > first + mine &&
            (!MASKED || query - (first + mine + 16 * M - 1) < s.window)) {
            const float *now = stats + stage * 2 * QUERIES;
            float weight[M][N][4], dp[M][N][4];
            uint32_t kept = 0;
            if (DROPS)
                kept = attention_keep_columns<M>(drop, start + query, now_head, first + mine);
            attention_dots<T, D>(weight, shared, k_tile + mine * D, q_tile + stage * QUERIES * D);
            keys_weights<MASKED, DROPS>(weight, now, s.scale_log2, first + mine - query, s.window,
                                        kept);
            attention_mix<T, D, DROPS>(dv, weight, shared, dy_tile + stage * QUERIES * D);
            attention_dots<T, D>(dp, shared, v_tile + mine * D, dy_tile + stage * QUERIES * D);
            keys_grads<DROPS>(weight, dp, now + QUERIES, DROPS ? s.scale * drop.scale : s.scale);
            attention_mix<T, D>(dk, weight, shared, q_tile + stage * QUERIES * D);
        }
        if ((int)threadIdx.x < 2 * QUERIES)
            stats[(1 - stage) * 2 * QUERIES + (int)threadIdx.x] = stat;
        __syncthreads();
    }

    float one[M][2], scale[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        one[m][0] = one[m][1] = 1;
        scale[m][0] = scale[m][1] = DROPS ? drop.scale : 1;
    }
    attention_put<T, D, M>(shared + k_tile + mine * D, dk, one, (T *)a.dk + offset, s.kv_stride,
                           first + mine, s.length);
    attention_put<T, D, M>(shared + v_tile + mine * D, dv, scale, (T *)a.dv + offset, s.kv_stride,
                           first + mine, s.length);
}

/* ---- dq ------------------------------------------------------------------------------------- */

/* Scores [queries, keys] and dp = dy v^T become dS, in `score`. `ahead`: the tile's first key less
 * the warp's first query. `scale` has that of what is kept. */
template <bool MASKED, bool DROPS, int M, int N>
static __device__ __forceinline__ void queries_grads(float (&score)[M][N][4],
                                                     const float (&dp)[M][N][4],
                                                     const float (&lse)[M][2],
                                                     const float (&product)[M][2],
                                                     const struct cuda_attention_shape &s,
                                                     int ahead, uint32_t kept, float scale)
{
    int lane = cuda_lane();
    ahead += lane % 4 * 2 - lane / 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = cuda_exp2(fmaf(score[m][n][e], s.scale_log2, -lse[m][e / 2]));
                float ds = p * fmaf(dp[m][n][e], scale, -product[m][e / 2]);
                if (DROPS && !attention_kept<M>(kept, m, n, e))
                    ds = p * -product[m][e / 2];
                const int row = 16 * m + e / 2 * 8 - 8 * n - e % 2;
                const bool out = ahead > row || (MASKED && ahead + s.window <= row);
                score[m][n][e] = out ? 0 : ds;
            }
}

/* grid: as in forward. */
template <typename T, int D, int M, int KEYS, int MODE>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    queries_kernel(const struct cuda_attention_backward a,
                   const struct cuda_attention_documents documents,
                   const struct cuda_attention_drop drop)
{
    const int ROWS = 16 * M * ATTENTION_WARPS;
    const bool MASKED = MODE != ATTENTION_WHOLE, DROPS = MODE == ATTENTION_DROPS;
    const int q_tile = 0, dy_tile = ROWS * D, k_tile = 2 * ROWS * D, v_tile = k_tile + 2 * KEYS * D;
    CUDA_SHARED(T, shared);
    typename attention_shape_of<MASKED>::type s = a.shape;

    int count = attention_blocks(s.length, ROWS);
    int first = (count - 1 - (int)(blockIdx.x % (unsigned)count)) * ROWS;
    int64_t head_of_all = blockIdx.x / (unsigned)count;
    int64_t head = head_of_all % s.heads, start = head_of_all / s.heads * s.length;
    int64_t row = 0; /* of lse, where it is MASKED */
    int begin = 0;   /* the first key that is seen */
    if constexpr (MASKED) {
        const struct attention_place place =
            attention_place_of<MASKED>(a.shape, documents, s.heads, ROWS, blockIdx.x);
        s.length = place.length;
        first = (place.tiles - 1 - place.tile) * ROWS;
        head = place.head;
        start = place.start;
        row = attention_row(a.shape, place, place.head);
        begin = first < s.window ? 0 : (first - s.window + 1) / KEYS * KEYS;
    }
    struct backward_queries<T> at = {
        (const T *)a.q + start *s.q_stride + head *D,
            (const T *)a.dy + (start * s.heads + head) * D, MASKED ? row : head_of_all *s.length,
            first
    };
    const T *k = (const T *)a.k + start * s.kv_stride + head / s.group * D;
    const T *v = (const T *)a.v + start * s.kv_stride + head / s.group * D;

    int end = attention_min(s.length, first + ROWS), stage = 0;
    backward_fetch<T, D, ROWS>(s, at, shared + q_tile, shared + dy_tile);
    attention_fetch<T, KEYS, D>(shared + k_tile, k, s.kv_stride, begin, s.length);
    attention_fetch<T, KEYS, D>(shared + v_tile, v, s.kv_stride, begin, s.length);
    cuda_copy_commit();

    int mine = cuda_warp() * 16 * M;
    float dq[M][D / 8][4], lse[M][2], product[M][2], one[M][2];
    struct attention_keeps keeps = attention_keeps_none();
    attention_clear(dq);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int position = first + mine + 16 * m + cuda_lane() / 4 + 8 * half;
            bool there = position < s.length;
            lse[m][half] = there ? a.lse[at.row + position] * ATTENTION_LOG2E : 0;
            product[m][half] = there ? a.product[at.row + position] : 0;
            one[m][half] = 1;
        }
    for (int key = begin; key < end; key += KEYS, stage = KEYS * D - stage) {
        if (key + KEYS < end) {
            int other = KEYS * D - stage;
            attention_fetch<T, KEYS, D>(shared + k_tile + other, k, s.kv_stride, key + KEYS,
                                        s.length);
            attention_fetch<T, KEYS, D>(shared + v_tile + other, v, s.kv_stride, key + KEYS,
                                        s.length);
        }
        cuda_copy_commit();
        cuda_copy_wait<1>();
        __syncthreads();
        /* Else all of it is after the warp's rows, or before what they see. */
        if (key < first + mine + 16 * M && (!MASKED || key + KEYS > first + mine - s.window + 1)) {
            float score[M][KEYS / 8][4], dp[M][KEYS / 8][4];
            if (DROPS)
                attention_keep_rows<M>(drop, start + first + mine, (int)head, key, keeps);
            attention_dots<T, D>(score, shared, q_tile + mine * D, k_tile + stage);
            attention_dots<T, D>(dp, shared, dy_tile + mine * D, v_tile + stage);
            queries_grads<MASKED, DROPS>(score, dp, lse, product, s, key - first - mine,
                                         attention_keeps_of(keeps, key),
                                         DROPS ? s.scale * drop.scale : s.scale);
            attention_mix<T, D>(dq, score, shared, k_tile + stage);
        }
        __syncthreads();
    }
    attention_put<T, D, M>(shared + q_tile + mine * D, dq, one,
                           (T *)a.dq + start * s.q_stride + head * D, s.q_stride, first + mine,
                           s.length);
}

/* ---- launchers ------------------------------------------------------------------------------ */

template <typename T, int D, int MODE>
static cudaError_t backward_launch(cudaStream_t stream, const struct cuda_attention_backward *a,
                                   const struct cuda_attention_documents *documents,
                                   const struct cuda_attention_drop *drop)
{
    const struct cuda_attention_shape &s = a->shape;
    constexpr int tile = 32, key_m = D == 64 ? 2 : 1, query_m = 2;
    constexpr int keys = 16 * key_m * ATTENTION_WARPS, queries = 16 * query_m * ATTENTION_WARPS;
    const struct cuda_attention_documents of_keys = attention_tiles(documents, keys);
    const struct cuda_attention_documents of_queries = attention_tiles(documents, queries);
    const int64_t key_blocks = attention_tile_count(s, of_keys, keys) * (s.heads / s.group);
    const int64_t query_blocks = attention_tile_count(s, of_queries, queries) * s.heads;
    cudaError_t error = tess__cuda_launch_attention_product(stream, a, documents);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH(
            (keys_kernel<T, D, key_m, tile, MODE>), (unsigned)key_blocks, ATTENTION_THREADS,
            (size_t)(2 * keys + 4 * tile) * D * sizeof(T) + 4 * tile * sizeof(float), stream, *a,
            of_keys, *drop);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH((queries_kernel<T, D, query_m, tile, MODE>), (unsigned)query_blocks,
                            ATTENTION_THREADS, (size_t)(2 * queries + 4 * tile) * D * sizeof(T),
                            stream, *a, of_queries, *drop);
    return error;
}

template <typename T, int D>
static cudaError_t backward_choose(cudaStream_t stream, const struct cuda_attention_backward *a,
                                   const struct cuda_attention_documents *documents,
                                   const struct cuda_attention_drop *drop)
{
    if (drop->limit > 0)
        return backward_launch<T, D, ATTENTION_DROPS>(stream, a, documents, drop);
    return documents->count > 0 || a->shape.window < a->shape.length
               ? backward_launch<T, D, ATTENTION_MASKED>(stream, a, documents, drop)
               : backward_launch<T, D, ATTENTION_WHOLE>(stream, a, documents, drop);
}

cudaError_t tess__cuda_launch_attention_backward(cudaStream_t stream,
                                                 const struct cuda_attention_backward *a,
                                                 const struct cuda_attention_documents *documents,
                                                 const struct cuda_attention_drop *drop)
{
    const bool small = a->shape.head_size == 64;
    if (a->shape.dtype == TESS_BF16)
        return small ? backward_choose<__nv_bfloat16, 64>(stream, a, documents, drop)
                     : backward_choose<__nv_bfloat16, 128>(stream, a, documents, drop);
    return small ? backward_choose<__half, 64>(stream, a, documents, drop)
                 : backward_choose<__half, 128>(stream, a, documents, drop);
}
