/*
 * Causal attention forward and backward in f32 on plain cores, for what the tensor-core kernels do
 * not take: f32, and every other head size, stride and alignment. The same algorithms (Dao 2023,
 * "FlashAttention-2"), by tiles of PLAIN_TILE queries and as many keys. Head sizes have no limit: a
 * block makes 32 WIDE columns of its result, and the scores of a tile anew for each such part. As
 * in attention_forward.cu, a row of forward has the same bits in every block.
 */
#include "cuda/attention/attention_drop.cuh"
#include "cuda/attention/attention_place.cuh"

#include <math.h>

#define PLAIN_TILE    32 /* queries, and keys; a warp's width */
#define PLAIN_SLICE   32 /* elements of a head that a step of the scores takes */
#define PLAIN_THREADS 256
#define PLAIN_ROWS    (PLAIN_THREADS / CUDA_WARP) /* rows of a tile that are worked on at once */
#define PLAIN_EACH    (PLAIN_TILE / PLAIN_ROWS)   /* rows of a tile that a warp has */
#define PLAIN_LOG2E   1.4426950408889634f
#define PLAIN_LN2     0.6931471805599453f

/* One column more than needed, so that a column's elements are in different banks. */
typedef float plain_tile[PLAIN_TILE][PLAIN_TILE + 1];

/* Rows of one head of a sequence: element x of position t is at head[t stride + x]. T is const for
 * what is read. */
template <typename T> struct plain_rows {
    T *head;
    int64_t stride;
    int first, end; /* the tile's first position; where the sequence ends: zeros from there on */
    int size;       /* D */
};

/* Columns of a result that a block makes, WIDE of them a lane's. */
static __host__ __device__ __forceinline__ int plain_columns(int wide)
{
    return CUDA_WARP * wide;
}

/* Column blocks fastest, then as attention_place_of. `backwards`: the last tile first, where it has
 * the most work. */
template <bool MASKED>
static __device__ __forceinline__ struct attention_place plain_place_of(
    const struct cuda_attention_shape &s, const struct cuda_attention_documents &documents,
    int heads, int wide, bool backwards, int *column_out)
{
    int columns = (s.head_size + plain_columns(wide) - 1) / plain_columns(wide);
    struct attention_place place = attention_place_of<MASKED>(
        s, documents, heads, PLAIN_TILE, (int64_t)(blockIdx.x / (unsigned)columns));
    *column_out = (int)(blockIdx.x % (unsigned)columns) * plain_columns(wide);
    if (backwards)
        place.tile = place.tiles - 1 - place.tile;
    return place;
}

/* The same of queries from position `from` on of one sequence, which has no other. */
static __device__ __forceinline__ struct attention_place plain_place_kept(
    const struct cuda_attention_shape &s, int from, int wide, int *column_out)
{
    const int columns = (s.head_size + plain_columns(wide) - 1) / plain_columns(wide);
    struct attention_place place;
    place.start = 0;
    place.length = s.length;
    place.tiles = (s.length - from + PLAIN_TILE - 1) / PLAIN_TILE;
    place.tile = (int)(blockIdx.x / (unsigned)columns) % place.tiles;
    place.head = (int)(blockIdx.x / (unsigned)columns) / place.tiles;
    *column_out = (int)(blockIdx.x % (unsigned)columns) * plain_columns(wide);
    return place;
}

/* A tile's rows of a head of q, k or v (stride as given) or of y (stride heads D). */
template <typename T>
static __device__ __forceinline__ struct plain_rows<T> plain_rows_of(
    const struct cuda_attention_shape &s, const void *array, int64_t stride,
    const struct attention_place &place, int head, int tile) {
    struct plain_rows<T> rows;
    rows.head = (T *)array + place.start * stride + (int64_t)head * s.head_size;
    rows.stride = stride;
    rows.first = tile * PLAIN_TILE;
    rows.end = place.length;
    rows.size = s.head_size;
    return rows;
}

template <typename T>
static __device__ __forceinline__ float plain_element(const struct plain_rows<T> &rows, int row,
                                                      int column)
{
    int position = rows.first + row;
    return position < rows.end && column < rows.size
               ? cuda_to_f32(rows.head[position * rows.stride + column])
               : 0.0f;
}

/* sums[r] = row PLAIN_ROWS r + warp of a . row lane of b, over all of D, for r < each. u, v:
 * scratch. */
template <typename T>
static __device__ __forceinline__ void plain_dots(float (&sums)[PLAIN_EACH],
                                                  const struct plain_rows<T> &a,
                                                  const struct plain_rows<T> &b, plain_tile &u,
                                                  plain_tile &v, int each = PLAIN_EACH)
{
    int lane = cuda_lane(), warp = cuda_warp();
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++)
        sums[r] = 0;
    for (int from = 0; from < a.size; from += PLAIN_SLICE) {
        __syncthreads();
#pragma unroll
        for (int r = 0; r < PLAIN_EACH; r++) {
            int row = PLAIN_ROWS * r + warp;
            u[row][lane] = plain_element(a, row, from + lane);
            v[row][lane] = plain_element(b, row, from + lane);
        }
        __syncthreads();
#pragma unroll 8
        for (int x = 0; x < PLAIN_SLICE; x++) {
            float right = v[lane][x];
#pragma unroll
            for (int r = 0; r < PLAIN_EACH; r++)
                if (r < each)
                    sums[r] = fmaf(u[PLAIN_ROWS * r + warp][x], right, sums[r]);
        }
    }
}

/* sums[r][c] += sum over j of weights[PLAIN_ROWS r + warp][j] right[j], columns `column` + 32 c +
 * lane. `copy`: scratch [PLAIN_TILE][32 WIDE]. The weights have been written; they may be
 * written again after the next barrier. */
template <typename T, int WIDE>
static __device__ __forceinline__ void plain_mix(float (&sums)[PLAIN_EACH][WIDE],
                                                 const plain_tile &weights,
                                                 const struct plain_rows<T> &right, int column,
                                                 float (*copy)[CUDA_WARP * WIDE],
                                                 int each = PLAIN_EACH)
{
    int lane = cuda_lane(), warp = cuda_warp();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++)
#pragma unroll
        for (int c = 0; c < WIDE; c++) {
            int row = PLAIN_ROWS * r + warp, at = CUDA_WARP * c + lane;
            copy[row][at] = plain_element(right, row, column + at);
        }
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < PLAIN_TILE; j++) {
        float x[WIDE];
#pragma unroll
        for (int c = 0; c < WIDE; c++)
            x[c] = copy[j][CUDA_WARP * c + lane];
#pragma unroll
        for (int r = 0; r < PLAIN_EACH; r++) {
            if (r >= each)
                continue;
            float weight = weights[PLAIN_ROWS * r + warp][j];
#pragma unroll
            for (int c = 0; c < WIDE; c++)
                sums[r][c] = fmaf(weight, x[c], sums[r][c]);
        }
    }
}

template <int WIDE>
static __device__ __forceinline__ void plain_clear(float (&sums)[PLAIN_EACH][WIDE])
{
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++)
#pragma unroll
        for (int c = 0; c < WIDE; c++)
            sums[r][c] = 0;
}

/* Sums times factor[r], rounded, to rows of a result. */
template <typename T, int WIDE>
static __device__ __forceinline__ void plain_put(const float (&sums)[PLAIN_EACH][WIDE],
                                                 const float (&factor)[PLAIN_EACH],
                                                 const struct plain_rows<T> &rows, int column)
{
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++)
#pragma unroll
        for (int c = 0; c < WIDE; c++) {
            int position = rows.first + PLAIN_ROWS * r + cuda_warp();
            int at = column + CUDA_WARP * c + cuda_lane();
            if (position < rows.end && at < rows.size)
                rows.head[position * rows.stride + at] = cuda_from_f32<T>(sums[r][c] * factor[r]);
        }
}

/* The first tile of keys that a tile of queries from `query` on sees. */
template <bool MASKED>
static __device__ __forceinline__ int plain_first_tile(const struct cuda_attention_shape &s,
                                                       int query)
{
    return !MASKED || query < s.window ? 0 : (query - s.window + 1) / PLAIN_TILE;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Scores of a tile become weights relative to the greatest so far, as in attention_forward.cu; a
 * row is a warp's, a key is a lane's. */
template <int WIDE>
static __device__ __forceinline__ void plain_softmax(float (&score)[PLAIN_EACH],
                                                     float (&max)[PLAIN_EACH],
                                                     float (&sum)[PLAIN_EACH],
                                                     float (&y)[PLAIN_EACH][WIDE], float scale_log2)
{
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++) {
        float top = fmaxf(max[r], cuda_warp_max(score[r]) * scale_log2);
        float base = top == -INFINITY ? 0 : top, keep = exp2f(max[r] - base);
        max[r] = top;
        score[r] = exp2f(fmaf(score[r], scale_log2, -base));
        sum[r] = sum[r] * keep + score[r];
#pragma unroll
        for (int c = 0; c < WIDE; c++)
            y[r][c] *= keep;
    }
}

template <typename T, int WIDE, int MODE>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_forward_kernel(const struct cuda_attention_forward a,
                         const struct cuda_attention_documents documents,
                         const struct cuda_attention_drop drop, const int32_t query)
{
    __shared__ plain_tile u, v;
    __shared__ float copy[PLAIN_TILE][CUDA_WARP * WIDE];
    const bool MASKED = MODE != ATTENTION_WHOLE, DROPS = MODE == ATTENTION_DROPS;
    const bool KEPT = MODE == ATTENTION_KEPT;
    const struct cuda_attention_shape &s = a.shape;
    const int from = KEPT ? query : 0; /* the position of row 0 of q and y */
    int lane = cuda_lane(), warp = cuda_warp(), column;
    struct attention_place place =
        KEPT ? plain_place_kept(s, from, WIDE, &column)
             : plain_place_of<MASKED>(s, documents, s.heads, WIDE, true, &column);
    const int last = (from + place.tile * PLAIN_TILE + PLAIN_TILE - 1) / PLAIN_TILE;
    struct plain_rows<const T> q =
        plain_rows_of<const T>(s, a.q, s.q_stride, place, place.head, place.tile);
    struct plain_rows<T> result =
        plain_rows_of<T>(s, a.y, (int64_t)s.heads * s.head_size, place, place.head, place.tile);
    q.end = result.end = place.length - from;
    const int each = KEPT ? (q.end - q.first + PLAIN_ROWS - 1) / PLAIN_ROWS : PLAIN_EACH;
    float max[PLAIN_EACH], sum[PLAIN_EACH], y[PLAIN_EACH][WIDE];
    plain_clear(y);
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++) {
        max[r] = -INFINITY;
        sum[r] = 0; /* of this lane's keys */
    }
    for (int tile = plain_first_tile<MASKED>(s, from + q.first); tile <= (KEPT ? last : place.tile);
         tile++) {
        int kv = place.head / s.group;
        int ahead = (tile - place.tile) * PLAIN_TILE - from + lane - warp;
        float score[PLAIN_EACH];
        plain_dots(score, q, plain_rows_of<const T>(s, a.k, s.kv_stride, place, kv, tile), u, v,
                   each);
#pragma unroll
        for (int r = 0; r < PLAIN_EACH; r++) {
            const bool after = MASKED ? ahead > PLAIN_ROWS * r
                                      : tile == place.tile && lane > PLAIN_ROWS * r + warp;
            if (after || (MASKED && ahead + s.window <= PLAIN_ROWS * r))
                score[r] = -INFINITY;
        }
        plain_softmax(score, max, sum, y, s.scale_log2);
        __syncwarp(); /* u has been read: these rows by this warp alone */
#pragma unroll
        for (int r = 0; r < PLAIN_EACH; r++)
            u[PLAIN_ROWS * r + warp][lane] =
                !DROPS || attention_keeps_one(
                              drop,
                              attention_drop_row(
                                  drop, place.start + q.first + PLAIN_ROWS * r + warp, place.head),
                              tile * PLAIN_TILE + lane)
                    ? score[r]
                    : 0;
        plain_mix(y, u, plain_rows_of<const T>(s, a.v, s.kv_stride, place, kv, tile), column, copy,
                  each);
    }
    float factor[PLAIN_EACH];
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++) {
        float total = cuda_warp_sum(sum[r]);
        int position = q.first + PLAIN_ROWS * r + warp;
        factor[r] = DROPS ? drop.scale / total : 1 / total;
        if (!KEPT && column == 0 && lane == 0 && position < place.length)
            a.lse[attention_row(s, place, place.head) + position] =
                (max[r] + log2f(total)) * PLAIN_LN2;
    }
    plain_put(y, factor, result, column);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* P, as dropout leaves it, and dS of a tile: rows are queries, PLAIN_ROWS r + warp, and keys are
 * lanes. */
struct plain_weights {
    float p[PLAIN_EACH], ds[PLAIN_EACH];
};

template <typename T, bool MASKED, bool DROPS>
static __device__ __forceinline__ struct plain_weights plain_backward_weights(
    const struct cuda_attention_backward &a, const struct cuda_attention_drop &drop,
    const struct attention_place &place, int head, int queries, int keys, plain_tile &u,
    plain_tile &v)
{
    const struct cuda_attention_shape &s = a.shape;
    int kv = head / s.group;
    float score[PLAIN_EACH], dp[PLAIN_EACH];
    struct plain_weights weights;
    plain_dots(score, plain_rows_of<const T>(s, a.q, s.q_stride, place, head, queries),
               plain_rows_of<const T>(s, a.k, s.kv_stride, place, kv, keys), u, v);
    plain_dots(
        dp, plain_rows_of<const T>(s, a.dy, (int64_t)s.heads * s.head_size, place, head, queries),
        plain_rows_of<const T>(s, a.v, s.kv_stride, place, kv, keys), u, v);
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++) {
        int query = queries * PLAIN_TILE + PLAIN_ROWS * r + cuda_warp();
        int64_t row = attention_row(s, place, head) + query;
        int key = keys * PLAIN_TILE + cuda_lane();
        bool pair = query < place.length && key <= query && (!MASKED || query - key < s.window);
        float p = pair ? exp2f(fmaf(score[r], s.scale_log2, -a.lse[row] * PLAIN_LOG2E)) : 0;
        const bool kept =
            !DROPS ||
            attention_keeps_one(drop, attention_drop_row(drop, place.start + query, head), key);
        if (DROPS)
            dp[r] = kept ? dp[r] * drop.scale : 0;
        weights.p[r] = !DROPS ? p : kept ? p * drop.scale : 0;
        weights.ds[r] = pair ? p * fmaf(dp[r], s.scale, -a.product[row]) : 0;
    }
    return weights;
}

/* dk and dv of a tile of keys: all queries from it on, of all heads that share it, in order. */
template <typename T, int WIDE, int MODE>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_keys_kernel(const struct cuda_attention_backward a,
                      const struct cuda_attention_documents documents,
                      const struct cuda_attention_drop drop)
{
    const bool MASKED = MODE != ATTENTION_WHOLE, DROPS = MODE == ATTENTION_DROPS;
    __shared__ plain_tile u, v;
    __shared__ float copy[PLAIN_TILE][CUDA_WARP * WIDE];
    const struct cuda_attention_shape &s = a.shape;
    int lane = cuda_lane(), warp = cuda_warp(), column;
    struct attention_place place =
        plain_place_of<MASKED>(s, documents, s.heads / s.group, WIDE, false, &column);
    int tiles = place.tiles, first = place.tile * PLAIN_TILE;
    if (MASKED && s.window < place.length - first) /* the queries that see one of the keys */
        tiles = (first + PLAIN_TILE - 2 + s.window) / PLAIN_TILE + 1;
    int64_t y_stride = (int64_t)s.heads * s.head_size;
    float dk[PLAIN_EACH][WIDE], dv[PLAIN_EACH][WIDE];
    plain_clear(dk);
    plain_clear(dv);
    for (int head = place.head * s.group; head < (place.head + 1) * s.group; head++)
        for (int tile = place.tile; tile < tiles; tile++) {
            struct plain_weights weights = plain_backward_weights<T, MASKED, DROPS>(
                a, drop, place, head, tile, place.tile, u, v);
            __syncthreads(); /* u and v have been read */
#pragma unroll
            for (int r = 0; r < PLAIN_EACH; r++) {
                u[lane][PLAIN_ROWS * r + warp] = weights.p[r];
                v[lane][PLAIN_ROWS * r + warp] = weights.ds[r];
            }
            plain_mix(dv, u, plain_rows_of<const T>(s, a.dy, y_stride, place, head, tile), column,
                      copy);
            plain_mix(dk, v, plain_rows_of<const T>(s, a.q, s.q_stride, place, head, tile), column,
                      copy);
        }
    float one[PLAIN_EACH];
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++)
        one[r] = 1;
    plain_put(dk, one, plain_rows_of<T>(s, a.dk, s.kv_stride, place, place.head, place.tile),
              column);
    plain_put(dv, one, plain_rows_of<T>(s, a.dv, s.kv_stride, place, place.head, place.tile),
              column);
}

template <typename T, int WIDE, int MODE>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_queries_kernel(const struct cuda_attention_backward a,
                         const struct cuda_attention_documents documents,
                         const struct cuda_attention_drop drop)
{
    const bool MASKED = MODE != ATTENTION_WHOLE, DROPS = MODE == ATTENTION_DROPS;
    __shared__ plain_tile u, v;
    __shared__ float copy[PLAIN_TILE][CUDA_WARP * WIDE];
    const struct cuda_attention_shape &s = a.shape;
    int lane = cuda_lane(), warp = cuda_warp(), column;
    struct attention_place place =
        plain_place_of<MASKED>(s, documents, s.heads, WIDE, true, &column);
    float dq[PLAIN_EACH][WIDE], one[PLAIN_EACH];
    plain_clear(dq);
    for (int tile = plain_first_tile<MASKED>(s, place.tile * PLAIN_TILE); tile <= place.tile;
         tile++) {
        struct plain_weights weights = plain_backward_weights<T, MASKED, DROPS>(
            a, drop, place, place.head, place.tile, tile, u, v);
        __syncwarp(); /* as in forward */
#pragma unroll
        for (int r = 0; r < PLAIN_EACH; r++)
            u[PLAIN_ROWS * r + warp][lane] = weights.ds[r];
        plain_mix(dq, u,
                  plain_rows_of<const T>(s, a.k, s.kv_stride, place, place.head / s.group, tile),
                  column, copy);
    }
#pragma unroll
    for (int r = 0; r < PLAIN_EACH; r++)
        one[r] = 1;
    plain_put(dq, one, plain_rows_of<T>(s, a.dq, s.q_stride, place, place.head, place.tile),
              column);
}

/* ---- launchers ------------------------------------------------------------------------------ */

/* Heads of up to 64 leave half of a wide block idle. */
static int plain_wide(const struct cuda_attention_shape &s)
{
    return s.head_size <= plain_columns(2) ? 2 : 4;
}

#define PLAIN_WIDE(kernel, mode) (plain_wide(s) == 2 ? kernel<T, 2, mode> : kernel<T, 4, mode>)

/* The kernel for arguments `a` of a shape `s` and documents `d`. */
#define PLAIN_CHOOSE(kernel)                                                                       \
    (drop->limit > 0                      ? PLAIN_WIDE(kernel, ATTENTION_DROPS)                    \
     : d.count > 0 || s.window < s.length ? PLAIN_WIDE(kernel, ATTENTION_MASKED)                   \
                                          : PLAIN_WIDE(kernel, ATTENTION_WHOLE))

static unsigned plain_blocks(const struct cuda_attention_shape &s,
                             const struct cuda_attention_documents &documents, int heads)
{
    const int64_t columns = cuda_blocks(s.head_size, plain_columns(plain_wide(s)));
    return (unsigned)(attention_tile_count(s, documents, PLAIN_TILE) * heads * columns);
}

cudaError_t tess__cuda_launch_attention_forward_plain(
    cudaStream_t stream, const struct cuda_attention_forward *a,
    const struct cuda_attention_documents *documents, const struct cuda_attention_drop *drop)
{
    const struct cuda_attention_shape &s = a->shape;
    const struct cuda_attention_documents d = attention_tiles(documents, PLAIN_TILE);
    return cuda_by_dtype(s.dtype, [&](auto type) {
        typedef decltype(type) T;
        auto kernel = PLAIN_CHOOSE(plain_forward_kernel);
        return CUDA_LAUNCH(kernel, plain_blocks(s, d, s.heads), PLAIN_THREADS, 0, stream, *a, d,
                           *drop, 0);
    });
}

cudaError_t tess__cuda_launch_attention_backward_plain(
    cudaStream_t stream, const struct cuda_attention_backward *a,
    const struct cuda_attention_documents *documents, const struct cuda_attention_drop *drop)
{
    const struct cuda_attention_shape &s = a->shape;
    const struct cuda_attention_documents d = attention_tiles(documents, PLAIN_TILE);
    return cuda_by_dtype(s.dtype, [&](auto type) {
        typedef decltype(type) T;
        auto keys = PLAIN_CHOOSE(plain_keys_kernel);
        auto queries = PLAIN_CHOOSE(plain_queries_kernel);
        cudaError_t error = tess__cuda_launch_attention_product(stream, a, documents);
        if (error == cudaSuccess)
            error = CUDA_LAUNCH(keys, plain_blocks(s, d, s.heads / s.group), PLAIN_THREADS, 0,
                                stream, *a, d, *drop);
        if (error == cudaSuccess)
            error = CUDA_LAUNCH(queries, plain_blocks(s, d, s.heads), PLAIN_THREADS, 0, stream, *a,
                                d, *drop);
        return error;
    });
}

cudaError_t tess__cuda_launch_attention_kept_plain(cudaStream_t stream,
                                                   const struct cuda_attention_forward *a,
                                                   int32_t from)
{
    const struct cuda_attention_shape &s = a->shape;
    const struct cuda_attention_documents none = {};
    const unsigned columns = cuda_blocks(s.head_size, plain_columns(plain_wide(s)));
    const unsigned tiles = cuda_blocks(s.length - from, PLAIN_TILE);
    return cuda_by_dtype(s.dtype, [&](auto type) {
        typedef decltype(type) T;
        auto kernel = PLAIN_WIDE(plain_forward_kernel, ATTENTION_KEPT);
        return CUDA_LAUNCH(kernel, tiles * columns * (unsigned)s.heads, PLAIN_THREADS, 0, stream,
                           *a, none, cuda_attention_drop(), from);
    });
}
