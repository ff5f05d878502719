/*
 * Embedding tables. The gradient is made entry by entry, without atomics: rows are sorted by token
 * (sort.cu), and for each entry a block adds up its rows in order, leaf after leaf, then along the
 * tree over those leaves that have it (the others' sums are +0, which changes nothing). Positions
 * need no sort: their rows are length apart.
 *
 * Bytes: forward reads a row of the table and of add and writes y (3 w an element of w bytes).
 * Backward reads dy once (w) and writes the table's gradient once (4 bytes an entry's element,
 * mostly +0 in a large vocabulary).
 */
#include "cuda/rows/rows.cuh"
#include "cuda/rows/sort.cuh"
#include "cuda/slots.h"

/* ---- forward -------------------------------------------------------------------------------- */

struct embedding_shape {
    int64_t rows, leaf_rows;
    int64_t entries, width; /* of the table */
    int64_t length, first;  /* of positions; token of the first entry */
    int lanes;
    bool aligned;
};

static embedding_shape embedding_shape_of(const struct tess_op_desc *d, int64_t first)
{
    return {d->rows, d->leaf_rows, d->in, d->out, d->length, first, CUDA_WARP, false};
}

/* The entry of row i's token, or -1. */
static __device__ __forceinline__ int64_t embedding_entry(const embedding_shape &s,
                                                          const int32_t *token, int64_t i)
{
    int64_t entry = (token ? (int64_t)token[i] : i % s.length) - s.first;
    return entry >= 0 && entry < s.entries ? entry : -1;
}

template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    embedding_forward_kernel(embedding_shape s, const int32_t *token, const T *table, const T *add,
                             T *y)
{
    constexpr int piece = cuda_vec<T>::count;
    int64_t row = (int64_t)blockIdx.x * (ROWS_THREADS / s.lanes) + (int)threadIdx.x / s.lanes;
    if (row >= s.rows)
        return;
    int64_t entry = embedding_entry(s, token, row);
    const T *from = table + (entry < 0 ? 0 : entry) * s.width;
    for (int64_t at = (int)threadIdx.x % s.lanes * piece; at < s.width; at += s.lanes * piece) {
        cuda_vec<T> sum = rows_load(from, at, entry < 0 ? 0 : s.width, s.aligned);
        if (add) {
            cuda_vec<T> more = rows_load(add + row * s.width, at, s.width, s.aligned);
#pragma unroll
            for (int i = 0; i < piece; i++)
                sum.at[i] = cuda_from_f32<T>(cuda_to_f32(sum.at[i]) + cuda_to_f32(more.at[i]));
        }
        rows_store(y + row * s.width, at, s.width, s.aligned, sum);
    }
}

enum tess_status tess__cuda_embedding_forward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *table, const void *add,
                                              void *y)
{
    embedding_shape s = embedding_shape_of(&op->desc, first);
    cudaError_t error = cuda_by_dtype(op->desc.dtype, [&](auto type) {
        typedef decltype(type) T;
        s.lanes = rows_lanes(s.width, 2 * cuda_vec<T>::count, ROWS_THREADS);
        s.aligned = rows_aligned<T>(s.width, table, add, y);
        return CUDA_LAUNCH(embedding_forward_kernel<T>, cuda_blocks(s.rows, ROWS_THREADS / s.lanes),
                           ROWS_THREADS, 0, tess__cuda_stream(op->kernel), s, token, table, add, y);
    });
    return tess__cuda_status(error, "embedding_forward");
}

/* ---- backward ------------------------------------------------------------------------------- */

#define EMBEDDING_THREADS 128
#define EMBEDDING_COLUMNS 2 /* of a thread */
#define EMBEDDING_TILE    (EMBEDDING_THREADS * EMBEDDING_COLUMNS)
#define EMBEDDING_BLOCKS  4096 /* for the entries that have rows: waves enough to even out */
#define EMBEDDING_GROUP   8    /* rows that are loaded, or not, together */

/*
 * Rows that a thread loads before it adds the first. Most entries that have rows have few, and what
 * they take is the latency of memory: few registers, many blocks at once. A frequent token has
 * thousands of rows, added one after the other by the threads of few blocks: many registers.
 */
#define EMBEDDING_LIGHT 8
#define EMBEDDING_HEAVY 64 /* and an entry with more rows than this is heavy */

/* An entry and its rows: order [begin .. begin + count), or without an order begin, begin + length,
 * ... */
struct alignas(16) embedding_rows {
    int32_t entry, begin, count;
};
static_assert(sizeof(embedding_rows) == CUDA_EMBEDDING_ENTRY_BYTES, "of which needs.c makes room");

/* The entries that have rows, in no order: the light ones from the front of list [entries], the
 * heavy ones from its back; count[0] and count[1] of them. NULL for positions. */
struct embedding_lists {
    const int32_t *order;
    embedding_rows *list;
    int32_t *count;
};

static __device__ __forceinline__ embedding_rows embedding_positions(const embedding_shape &s,
                                                                     int64_t entry)
{
    int64_t position = entry + s.first;
    bool any = position >= 0 && position < s.length && position < s.rows;
    return {(int32_t)entry, any ? (int32_t)position : 0,
            any ? (int32_t)((s.rows - position + s.length - 1) / s.length) : 0};
}

/* Row i of an entry; -1 beyond its last. */
static __device__ __forceinline__ int32_t embedding_row(const embedding_shape &s,
                                                        const embedding_rows &rows,
                                                        const int32_t *order, int32_t i)
{
    if (i >= rows.count)
        return -1;
    return order ? order[rows.begin + i] : (int32_t)(rows.begin + i * s.length);
}

/*
 * The sums over the leaves of one entry, leaves in order, some absent. A sum waits at level k of
 * the stack when the next leaf is under the same node of level k of the tree, and not of a lower
 * one: for leaves a and b the number of bits of a xor b. When a leaf comes, all that wait lower are
 * complete and are added, the lowest first; see columns_push() for the stack's place in memory.
 */
struct embedding_tree {
    float2 *stack;    /* [levels], EMBEDDING_THREADS apart */
    unsigned waiting; /* bit k: level k + 1 */
    int32_t leaf;     /* whose rows are being added; -1: none yet */
    int64_t end;      /* its last row + 1 */
    float2 sum;
};

/* Add what waits below level `level`. */
static __device__ __forceinline__ void embedding_merge(embedding_tree &tree, int level)
{
    for (int k = 0; k < level && tree.waiting >> k; k++) {
        if (tree.waiting >> k & 1u) {
            float2 left = tree.stack[k * EMBEDDING_THREADS];
            tree.sum = {left.x + tree.sum.x, left.y + tree.sum.y};
            tree.waiting &= ~(1u << k);
        }
    }
}

/* The leaf of row `row`, which is beyond the last one's end. */
static __device__ __forceinline__ void embedding_leaf(const embedding_shape &s,
                                                      embedding_tree &tree, int32_t row)
{
    int32_t leaf = row / (int32_t)s.leaf_rows;
    if (tree.leaf >= 0) {
        int k = 31 - __clz((unsigned)(tree.leaf ^ leaf)); /* level k + 1 */
        embedding_merge(tree, k);
        tree.stack[k * EMBEDDING_THREADS] = tree.sum;
        tree.waiting |= 1u << k;
    }
    tree.leaf = leaf;
    tree.end = (leaf + 1) * s.leaf_rows;
    tree.sum = {0.0f, 0.0f};
}

/* A thread's elements of a row, [at, at + 2), as they lie in memory; those beyond the end are 0. */
template <typename T> struct alignas(2 * sizeof(T)) embedding_pair {
    T at[EMBEDDING_COLUMNS];
};

template <typename T>
static __device__ __forceinline__ embedding_pair<T> embedding_load(const embedding_shape &s,
                                                                   const T *row, int64_t at)
{
    if (s.aligned && at < s.width)
        return *reinterpret_cast<const embedding_pair<T> *>(row + at);
    embedding_pair<T> v;
#pragma unroll
    for (int i = 0; i < EMBEDDING_COLUMNS; i++)
        v.at[i] = at + i < s.width ? row[at + i] : cuda_from_f32<T>(0.0f);
    return v;
}

/*
 * The rows of one entry. Lane l of a warp holds the numbers of rows l, l + 32, ... and shares them
 * with the other lanes; the next ones are fetched during the sums.
 */
template <typename T, int AHEAD>
static __device__ __forceinline__ void embedding_sum(const embedding_shape &s,
                                                     const embedding_rows &rows,
                                                     const int32_t *order, const T *dy, int64_t at,
                                                     embedding_tree &tree)
{
    constexpr int turns = (AHEAD + CUDA_WARP - 1) / CUDA_WARP, group = EMBEDDING_GROUP;
    int32_t row[turns];
#pragma unroll
    for (int t = 0; t < turns; t++)
        row[t] = embedding_row(s, rows, order, t * CUDA_WARP + cuda_lane());
    for (int32_t first = 0; first < rows.count; first += AHEAD) {
        embedding_pair<T> x[AHEAD];
        int32_t next[turns];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (first + k / group * group >= rows.count)
                continue;
            int32_t r = __shfl_sync(CUDA_FULL, row[k / CUDA_WARP], k % CUDA_WARP);
            x[k] = embedding_load(s, dy + (r < 0 ? 0 : r) * s.width, r < 0 ? s.width : at);
        }
#pragma unroll
        for (int t = 0; t < turns; t++)
            next[t] = embedding_row(s, rows, order, first + AHEAD + t * CUDA_WARP + cuda_lane());
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (first + k / group * group >= rows.count)
                continue;
            int32_t r = __shfl_sync(CUDA_FULL, row[k / CUDA_WARP], k % CUDA_WARP);
            if (r >= tree.end)
                embedding_leaf(s, tree, r);
            if (r >= 0) {
                tree.sum.x += cuda_to_f32(x[k].at[0]);
                tree.sum.y += cuda_to_f32(x[k].at[1]);
            }
        }
#pragma unroll
        for (int t = 0; t < turns; t++)
            row[t] = next[t];
    }
}

/* Blocks go through the light or the heavy entries, or through all positions, a tile of columns
 * each. */
template <typename T, int AHEAD>
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_backward_kernel(embedding_shape s, embedding_lists lists, const T *dy, float *dtable)
{
    CUDA_SHARED(float2, stack);
    int64_t at = (int64_t)blockIdx.y * EMBEDDING_TILE + threadIdx.x * EMBEDDING_COLUMNS;
    constexpr bool heavy = AHEAD == EMBEDDING_HEAVY;
    int64_t count = lists.list ? lists.count[heavy] : s.entries;
    for (int64_t j = blockIdx.x; j < count; j += gridDim.x) {
        embedding_rows rows =
            lists.list ? lists.list[heavy ? s.entries - 1 - j : j] : embedding_positions(s, j);
        embedding_tree tree = {stack + threadIdx.x, 0, -1, 0, {0.0f, 0.0f}};
        embedding_sum<T, AHEAD>(s, rows, lists.order, dy, at, tree);
        embedding_merge(tree, 32);
        float *to = dtable + rows.entry * s.width + at;
        if (at >= s.width)
            continue;
        if (s.aligned) {
            *reinterpret_cast<float2 *>(to) = tree.sum;
        } else {
            to[0] = tree.sum.x;
            if (at + 1 < s.width)
                to[1] = tree.sum.y;
        }
    }
}

/* Lists the entries that have rows, and writes the gradient of the others: most of a large
 * vocabulary, so they are written at the rate of memory, by groups of threads that only read begin
 * and end. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    embedding_list_kernel(embedding_shape s, sort_result sorted, embedding_lists lists,
                          float *dtable)
{
    constexpr int piece = cuda_vec<float>::count;
    int lane = (int)threadIdx.x % s.lanes;
    int64_t entry = (int64_t)blockIdx.x * (ROWS_THREADS / s.lanes) + (int)threadIdx.x / s.lanes;
    if (entry >= s.entries)
        return;
    int32_t begin = sorted.begin[entry], count = sorted.end[entry] - begin;
    if (count > 0 && lane == 0) {
        int heavy = count > EMBEDDING_HEAVY;
        int64_t place = atomicAdd(&lists.count[heavy], 1);
        lists.list[heavy ? s.entries - 1 - place : place] = {(int32_t)entry, begin, count};
    }
    cuda_vec<float> zero = {};
    for (int64_t at = lane * piece; at < s.width && count == 0; at += s.lanes * piece)
        rows_store(dtable + entry * s.width, at, s.width, s.aligned, zero);
}

template <typename T>
static cudaError_t embedding_backward(cudaStream_t stream, embedding_shape s,
                                      const embedding_lists &lists, const void *dy, float *dtable)
{
    s.aligned = cuda_aligned16(dy) && cuda_aligned16(dtable) && s.width % EMBEDDING_COLUMNS == 0;
    int levels = 0;
    for (int64_t last = s.rows / s.leaf_rows - 1; last > 0; last >>= 1)
        levels++;
    size_t shared = (size_t)levels * EMBEDDING_THREADS * sizeof(float2);
    int64_t blocks = s.entries < EMBEDDING_BLOCKS ? s.entries : EMBEDDING_BLOCKS;
    dim3 grid((unsigned)blocks, cuda_blocks(s.width, EMBEDDING_TILE));
    bool heavy = !lists.list && s.rows / s.length > EMBEDDING_HEAVY;
    cudaError_t error = cudaSuccess;
    if (lists.list || !heavy)
        error = CUDA_LAUNCH((embedding_backward_kernel<T, EMBEDDING_LIGHT>), grid,
                            EMBEDDING_THREADS, shared, stream, s, lists, dy, dtable);
    if (error == cudaSuccess && (lists.list || heavy))
        error = CUDA_LAUNCH((embedding_backward_kernel<T, EMBEDDING_HEAVY>), grid,
                            EMBEDDING_THREADS, shared, stream, s, lists, dy, dtable);
    return error;
}

/* Sort, list, and the entries that no token names. Scratch: what the sort takes, then the lists. */
static cudaError_t embedding_prepare(cudaStream_t stream, embedding_shape s, const int32_t *token,
                                     embedding_lists *lists, float *dtable, void *scratch)
{
    sort_result sorted = sort_layout(s.rows, s.entries, scratch);
    lists->order = sorted.order;
    lists->list = reinterpret_cast<embedding_rows *>(static_cast<char *>(scratch) + sorted.bytes);
    lists->count = reinterpret_cast<int32_t *>(lists->list + s.entries);
    s.lanes = rows_lanes(s.width, 2 * cuda_vec<float>::count, ROWS_THREADS);
    s.aligned = rows_aligned<float>(s.width, dtable);
    cudaError_t error = cudaMemsetAsync(lists->count, 0, 2 * sizeof(*lists->count), stream);
    if (error == cudaSuccess)
        error = sort_launch(stream, s.rows, s.entries, s.first, token, scratch);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH(embedding_list_kernel, cuda_blocks(s.entries, ROWS_THREADS / s.lanes),
                            ROWS_THREADS, 0, stream, s, sorted, *lists, dtable);
    return error;
}

enum tess_status tess__cuda_embedding_backward(struct tess_op *op, const int32_t *token,
                                               int64_t first, const void *dy, float *dtable)
{
    embedding_shape s = embedding_shape_of(&op->desc, first);
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    embedding_lists lists = {};
    cudaError_t error = cudaSuccess;
    if (token)
        error = embedding_prepare(stream, s, token, &lists, dtable, op->scratch);
    if (error == cudaSuccess)
        error = cuda_by_dtype(op->desc.dtype, [&](auto type) {
            return embedding_backward<decltype(type)>(stream, s, lists, dy, dtable);
        });
    return tess__cuda_status(error, "embedding_backward");
}
