/*
 * How the CUDA kernels cut rows and columns into blocks, as far as their scratch depends on it;
 * rows/rows.cuh, rows/columns.cuh and the files beside them have what is computed. C and C++.
 */
#ifndef KERNELS_NEEDS_ROWS_H
#define KERNELS_NEEDS_ROWS_H

#include "tessera/kernel.h"

#include <stdint.h>

#define CUDA_WARP    32
#define ROWS_THREADS 256 /* of a block: two to eight of them fill a multiprocessor */

/* Threads for a row of `count` elements, `each` or fewer for one thread: a warp where that is
 * enough, since it needs no barrier; `most` where nothing is. */
static inline int rows_lanes(int64_t count, int64_t each, int most)
{
    int lanes = CUDA_WARP;
    while (lanes < most && lanes * each < count)
        lanes *= 2;
    return lanes;
}

/* Elements of 16 bytes. */
static inline int rows_piece(enum tess_dtype dtype)
{
    return dtype == TESS_F32 ? 4 : 8;
}

/* ---- columns --------------------------------------------------------------------------------- */

struct columns_shape {
    int64_t leaves, leaf_rows, n;
    int64_t slabs, slab_rows; /* of a leaf; the last slab may be short */
    int lanes;
};

/*
 * Rows of a slab, a multiple of `step` (rows that are under way at once): 8 steps or more, and few
 * enough slabs that writing and reading their sums costs little: at least 64 rows of 2 bytes for
 * one sum of 4 bytes, written and read. 512 slabs are some waves of blocks on any device.
 */
static inline int64_t columns_slab_rows(int64_t leaf_rows, int64_t step)
{
    const int64_t slabs_max = 512, steps_min = 8;
    int64_t steps = (leaf_rows + step * slabs_max - 1) / (step * slabs_max);
    return (steps > steps_min ? steps : steps_min) * step;
}

/* Fewest rows of a slab for one thread: as many loads in flight hide the latency of memory. */
#define COLUMNS_EACH 8

static inline struct columns_shape columns_shape_of(int64_t leaves, int64_t leaf_rows, int64_t n,
                                                    int piece)
{
    struct columns_shape s = {leaves, leaf_rows, n, 0, 0, 1};
    while (s.lanes < CUDA_WARP && (int64_t)s.lanes * piece < n)
        s.lanes *= 2;
    s.slab_rows = columns_slab_rows(leaf_rows, ROWS_THREADS / s.lanes);
    s.slabs = (leaf_rows + s.slab_rows - 1) / s.slab_rows;
    return s;
}

/* Batch norm's: short slabs, which keep a channel's numbers in registers. */
static inline struct columns_shape batch_norm_shape(const struct tess_op_desc *d, int64_t leaves,
                                                    int64_t leaf_rows, int piece)
{
    struct columns_shape s =
        columns_shape_of(leaves, leaf_rows * d->height * d->width, d->in, piece);
    s.slab_rows = (int64_t)COLUMNS_EACH * (ROWS_THREADS / s.lanes);
    s.slabs = (s.leaf_rows + s.slab_rows - 1) / s.slab_rows;
    return s;
}

/* ---- norms of rows --------------------------------------------------------------------------- */

/* Threads of the widest block: the compiler then keeps to 128 registers. Elements of a row for one
 * thread: of the backward half as many while threads last, because it keeps two rows and two sums
 * for each of them. Where they do not last, in rows of more than 8192 elements, the sums would go
 * to the stack: there they are a kernel of their own, which reads x and dy again (6 w), and the
 * rest finds the row in the first-level cache when it comes back to it. */
#define NORM_THREADS       512
#define NORM_FORWARD_EACH  32
#define NORM_BACKWARD_EACH 16
#define NORM_MAX           (NORM_THREADS * NORM_FORWARD_EACH) /* widest row */

struct norm_shape {
    int64_t rows, leaf_rows, channels;
    int64_t slabs, slab_rows; /* backward: of a leaf, one block each */
    int lanes, groups;        /* threads of a row, rows of a block at once */
    float epsilon;
    bool rms;
};

static inline struct norm_shape norm_shape_of(const struct tess_op_desc *d, int each)
{
    struct norm_shape s;
    s.rows = d->rows;
    s.leaf_rows = d->leaf_rows;
    s.channels = d->in;
    s.epsilon = d->epsilon;
    s.rms = d->rms;
    s.lanes = rows_lanes(d->in, each, NORM_THREADS);
    s.groups = s.lanes < ROWS_THREADS ? ROWS_THREADS / s.lanes : 1;
    /* The sums of a slab are two rows of f32: at 32 rows of three or four 16-bit arrays they are
       some 5 % of the bytes, and a leaf of 8192 rows makes 256 blocks. Longer leaves have longer
       slabs. */
    const int64_t least = 32, blocks = 512;
    int64_t rows = (s.leaf_rows + blocks - 1) / blocks;
    s.slab_rows = rows > least ? (rows + s.groups - 1) / s.groups * s.groups : least;
    s.slabs = (s.leaf_rows + s.slab_rows - 1) / s.slab_rows;
    return s;
}

/* ---- rows sorted by token -------------------------------------------------------------------- */

#define SORT_BITS   9
#define SORT_DIGITS (1 << SORT_BITS)
#define SORT_WARPS  8
#define SORT_ROUNDS 4 /* of 32 keys, for each warp */
#define SORT_BLOCK  (SORT_WARPS * CUDA_WARP)
#define SORT_TILE   (SORT_BLOCK * SORT_ROUNDS)

/* Rows sorted by entry, those of an entry in order: entry e has order[begin[e] .. end[e]). begin
 * and end [entries]; rows whose token is outside the table are in none. */
struct sort_result {
    int32_t *begin, *end, *order;
    size_t bytes;
};

struct sort_scratch {
    int32_t *key[2], *row[2], *place; /* pass by pass from one to the other */
    struct sort_result sorted;
};

static inline int sort_passes(int64_t entries)
{
    int bits = 1; /* keys are 0 .. entries */
    while (entries >> bits)
        bits++;
    return (bits + SORT_BITS - 1) / SORT_BITS;
}

static inline int32_t *sort_take(void *base, int64_t count, size_t *used)
{
    int32_t *piece = base ? (int32_t *)(void *)((char *)base + *used) : NULL;
    *used += (size_t)(count + 3) / 4 * 16;
    return piece;
}

/* base NULL: sizes alone. */
static inline struct sort_scratch sort_pieces(int64_t rows, int64_t entries, void *base)
{
    size_t used = 0;
    struct sort_scratch l;
    for (int i = 0; i < 2; i++) {
        l.key[i] = sort_take(base, rows, &used);
        l.row[i] = sort_take(base, rows, &used);
    }
    l.place = sort_take(base, SORT_DIGITS * ((rows + SORT_TILE - 1) / SORT_TILE), &used);
    l.sorted.begin = sort_take(base, entries, &used);
    l.sorted.end = sort_take(base, entries, &used);
    l.sorted.order = l.row[(sort_passes(entries) - 1) % 2];
    l.sorted.bytes = used;
    return l;
}

/* Of an entry of the list that an embedding's gradient goes by (rows/embedding.cu). */
#define CUDA_EMBEDDING_ENTRY_BYTES 16

#endif
