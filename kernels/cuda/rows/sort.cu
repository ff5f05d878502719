/*
 * Rows by token: a stable sort of (token, row), so that what is added up for a token is added in
 * the order of its rows. Radix sort from the low digit, 9 bits a digit: 2 passes for a vocabulary
 * up to 2^18. All of it is integers, so nothing depends on the order in which blocks run.
 *
 * A pass is three kernels: every tile of 1024 keys counts its digits; the counts, digit by digit
 * and within a digit tile by tile, become places by a sum over all before; every tile puts its keys
 * there. A tile is cut among 8 warps, 128 keys each in order, and a warp ranks 32 keys at a time by
 * which lanes have the same digit. Data is small beside the gradient that it orders: per row and
 * pass 24 bytes against 2 x width.
 */
#include "cuda/rows/sort.cuh"

#define SORT_SCAN 1024 /* threads of the one block that turns counts into places */

/* One pass. The first one makes keys of tokens: the entry of the table, or `entries` for those
 * outside it, and rows of their numbers. */
struct sort_pass {
    int64_t rows, entries, first, tiles;
    int shift;
    const int32_t *token; /* NULL: from key_in, row_in */
    const int32_t *key_in, *row_in;
    int32_t *key_out, *row_out;
    int32_t *place; /* [SORT_DIGITS, tiles]: counts, then first places */
};

static __device__ __forceinline__ int32_t sort_key(const sort_pass &s, int64_t i)
{
    if (!s.token)
        return s.key_in[i];
    int64_t entry = (int64_t)s.token[i] - s.first;
    return (int32_t)(entry >= 0 && entry < s.entries ? entry : s.entries);
}

static __device__ __forceinline__ int sort_digit(const sort_pass &s, int32_t key)
{
    return key >> s.shift & (SORT_DIGITS - 1);
}

/* The key that this lane has in round r of its warp's part of the tile; -1 beyond the end. */
static __device__ __forceinline__ int64_t sort_index(int r)
{
    return (int64_t)blockIdx.x * SORT_TILE + (cuda_warp() * SORT_ROUNDS + r) * CUDA_WARP +
           cuda_lane();
}

static __global__ void __launch_bounds__(SORT_BLOCK) sort_count_kernel(sort_pass s)
{
    __shared__ int32_t count[SORT_DIGITS];
    for (int d = (int)threadIdx.x; d < SORT_DIGITS; d += SORT_BLOCK)
        count[d] = 0;
    __syncthreads();
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t i = sort_index(r);
        if (i < s.rows)
            atomicAdd(&count[sort_digit(s, sort_key(s, i))], 1);
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < SORT_DIGITS; d += SORT_BLOCK)
        s.place[d * s.tiles + blockIdx.x] = count[d];
}

/* Exclusive sums over `count` numbers, in place: every thread adds up a stretch, the stretches'
 * sums are summed over the block, every thread goes through its stretch again. */
static __global__ void __launch_bounds__(SORT_SCAN) sort_scan_kernel(int64_t count, int32_t *x)
{
    __shared__ int32_t warp_sum[CUDA_WARP];
    int64_t stretch = (count + SORT_SCAN - 1) / SORT_SCAN, begin = threadIdx.x * stretch;
    int64_t end = begin + stretch < count ? begin + stretch : count;
    int32_t sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += x[i];
    int32_t before = sum; /* becomes the sum up to and with this thread */
    for (int step = 1; step < CUDA_WARP; step *= 2) {
        int32_t left = __shfl_up_sync(CUDA_FULL, before, step);
        before += cuda_lane() >= step ? left : 0;
    }
    if (cuda_lane() == CUDA_WARP - 1)
        warp_sum[cuda_warp()] = before;
    __syncthreads();
    before -= sum;
    for (int w = 0; w < cuda_warp(); w++)
        before += warp_sum[w];
    for (int64_t i = begin; i < end; i++) {
        int32_t here = x[i];
        x[i] = before;
        before += here;
    }
}

/* The lanes whose digit is this lane's, among those that have one. */
static __device__ __forceinline__ unsigned sort_equals(int digit, bool has)
{
    unsigned same = __ballot_sync(CUDA_FULL, has);
#pragma unroll
    for (int bit = 0; bit < SORT_BITS; bit++) {
        unsigned set = __ballot_sync(CUDA_FULL, digit >> bit & 1);
        same &= digit >> bit & 1 ? set : ~set;
    }
    return same;
}

/* next[w][d]: how many of digit d warp w has; then where its next one goes. */
static __global__ void __launch_bounds__(SORT_BLOCK) sort_place_kernel(sort_pass s)
{
    __shared__ int32_t next[SORT_WARPS][SORT_DIGITS];
    int32_t key[SORT_ROUNDS];
    int *mine = next[cuda_warp()];
    for (int d = (int)threadIdx.x; d < SORT_WARPS * SORT_DIGITS; d += SORT_BLOCK)
        next[d / SORT_DIGITS][d % SORT_DIGITS] = 0;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t i = sort_index(r);
        key[r] = i < s.rows ? sort_key(s, i) : 0;
        if (i < s.rows)
            atomicAdd(&mine[sort_digit(s, key[r])], 1);
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < SORT_DIGITS; d += SORT_BLOCK) {
        int32_t place = s.place[d * s.tiles + blockIdx.x];
        for (int w = 0; w < SORT_WARPS; w++) {
            int32_t count = next[w][d];
            next[w][d] = place;
            place += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t i = sort_index(r);
        bool has = i < s.rows;
        int digit = sort_digit(s, key[r]);
        unsigned same = sort_equals(digit, has), below = same & ((1u << cuda_lane()) - 1u);
        int32_t place = has ? mine[digit] + __popc(below) : 0;
        __syncwarp();
        if (has && below == 0)
            mine[digit] += __popc(same);
        __syncwarp();
        if (has) {
            s.key_out[place] = key[r];
            s.row_out[place] = s.token ? (int32_t)i : s.row_in[i];
        }
    }
}

/* Where the rows of an entry begin and end among the sorted keys. */
static __global__ void __launch_bounds__(SORT_BLOCK)
    sort_bounds_kernel(int64_t rows, int64_t entries, const int32_t *key, sort_result sorted)
{
    int64_t i = (int64_t)blockIdx.x * SORT_BLOCK + threadIdx.x;
    if (i >= rows || key[i] >= entries)
        return;
    if (i == 0 || key[i - 1] != key[i])
        sorted.begin[key[i]] = (int32_t)i;
    if (i + 1 == rows || key[i + 1] != key[i])
        sorted.end[key[i]] = (int32_t)i + 1;
}

/* ---- launchers ------------------------------------------------------------------------------ */

sort_result sort_layout(int64_t rows, int64_t entries, void *scratch)
{
    return sort_pieces(rows, entries, scratch).sorted;
}

static cudaError_t sort_once(cudaStream_t stream, const sort_pass &s)
{
    dim3 grid((unsigned)s.tiles);
    cudaError_t error = CUDA_LAUNCH(sort_count_kernel, grid, dim3(SORT_BLOCK), 0, stream, s);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH(sort_scan_kernel, dim3(1), dim3(SORT_SCAN), 0, stream,
                            SORT_DIGITS * s.tiles, s.place);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH(sort_place_kernel, grid, dim3(SORT_BLOCK), 0, stream, s);
    return error;
}

cudaError_t sort_launch(cudaStream_t stream, int64_t rows, int64_t entries, int64_t first,
                        const int32_t *token, void *scratch)
{
    sort_scratch l = sort_pieces(rows, entries, scratch);
    int passes = sort_passes(entries), last = (passes - 1) % 2;
    sort_pass s = {};
    s.rows = rows;
    s.entries = entries;
    s.first = first;
    s.tiles = (rows + SORT_TILE - 1) / SORT_TILE;
    s.place = l.place;
    for (int p = 0; p < passes; p++) {
        s.shift = p * SORT_BITS;
        s.token = p == 0 ? token : NULL;
        s.key_in = l.key[(p + 1) % 2];
        s.row_in = l.row[(p + 1) % 2];
        s.key_out = l.key[p % 2];
        s.row_out = l.row[p % 2];
        cudaError_t error = sort_once(stream, s);
        if (error != cudaSuccess)
            return error;
    }
    /* Entries without rows begin and end at 0; end follows begin. */
    const size_t bounds = (size_t)(l.sorted.end + entries - l.sorted.begin) * sizeof(int32_t);
    cudaError_t error = cudaMemsetAsync(l.sorted.begin, 0, bounds, stream);
    if (error == cudaSuccess)
        error = CUDA_LAUNCH(sort_bounds_kernel, cuda_blocks(rows, SORT_BLOCK), SORT_BLOCK, 0,
                            stream, rows, entries, l.key[last], l.sorted);
    return error;
}
