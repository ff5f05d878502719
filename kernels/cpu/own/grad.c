/*
 * dw[out, in] = dy^T x by leaves, with the tree over leaves in registers. Built for AVX-512 and
 * for AVX2 (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 * A product per leaf followed by a tree would write and read dw once per leaf. Here a tile of dw, a
 * few rows by 64 columns, goes through all leaves before the next one, and dw is written once:
 *
 *     for every block of rows of dw             the threads share these
 *       dy packed [tile][step][rows of the tile]
 *       for every panel of 64 columns of x      packed [step][64], stays in the nearest caches
 *         for every tile of the block
 *           for every leaf: products over its rows; add to the subtrees that wait (fold.h)
 *
 * Where all of x packed stays in a cache, it is packed once, and blocks are groups of few rows that
 * go through all panels (those of long leaves in grad_long.c): then whole rows of dw are finished
 * while they are in the second-level cache, and an update of the parameter may follow there.
 *
 *     for every panel of x                      the threads share these
 *       packed [step][64]
 *     for every group of rows of dw             the threads share these
 *       dy packed [tile][step][rows of the tile]
 *       for every panel, every tile of the group: the same
 *       update of the group's rows
 *
 * A step is one row in f32 and a pair of rows in bf16, 32 bits per column either way; leaves with
 * an odd number of rows end with half a pair of zeros. With one leaf the tile is 6 rows high and
 * fills the registers with sums; with more it is 3, so that two leaves' sums fit and the lowest
 * level of the tree never leaves the registers. Long leaves are grad_long.c's. Each element's
 * operations are the same in all of them, and so are its bits.
 */
#include "cpu/own/grad_room.h"

/* From so many steps on a leaf is left to grad_long.c: a single one whose panel of x outgrows the
 * second-level cache, or several that are long enough for sums to go through memory. */
#define GRAD_LONG_ONE 2048
#if CPU_WORDS == 16
#define GRAD_LONG_TREE 32
#else /* sums go through memory in any case, and a panel of 16 columns takes less of a cache */
#define GRAD_LONG_TREE 512
#endif
/* By groups: x packed at most, and rows of a group, whole tiles, for which a panel is fetched again
 * from the cache where x stays: some thousandths of the products. They are more where leaves have
 * GRAD_FAR steps, whose panels are not in the first-level cache from one tile to the next. */
#define GRAD_X_BYTES   ((size_t)4 << 20)
#define GRAD_GROUP     48
#define GRAD_GROUP_FAR 96
#define GRAD_FAR       256
#define GRAD_LEVELS    40 /* subtrees that can wait: no more than bits in the number of leaves */

/* A product in 32-bit words, for the tile kernels. */
struct grad {
    const uint32_t *x;  /* panel [pieces][leaves * steps, CPU_PIECE] */
    const uint32_t *dy; /* [tiles][leaves * steps, rows of a tile], `tile` words each */
    int64_t leaves, steps, tile;
    float *dw;        /* the block's first row at the panel's first column */
    int64_t rows, in; /* rows of the block, from one to the next */
    int32_t columns;  /* valid ones of the panel, from here on */
    bool add;         /* to what is in dw */
    /* What the next panel reads of x: prefetched in equal shares, one before each tile. */
    const char *soon;
    int64_t soon_rows;
    size_t soon_row;
};

/* sum = the products over one leaf */
CPU_INLINE void grad_leaf(cpu_vector *sum, bool half, int tall, int wide, int64_t steps,
                          const uint32_t *x, const uint32_t *dy)
{
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        sum[i] = cpu_zero();
    int64_t k = 0;
    for (; k + CPU_STEPS <= steps; k += CPU_STEPS, x += CPU_STEPS * CPU_PIECE) {
        CPU_UNROLL
        for (int some = 0; some < CPU_STEPS; some++)
            cpu_step(sum, half, tall, wide, x + some * CPU_PIECE, dy + some * tall);
        dy += CPU_STEPS * tall;
    }
    for (; k < steps; k++, x += CPU_PIECE, dy += tall)
        cpu_step(sum, half, tall, wide, x, dy);
}

/* sum = left + sum */
CPU_INLINE void grad_add(cpu_vector *sum, const cpu_vector *left, int count)
{
    CPU_UNROLL
    for (int i = 0; i < count; i++)
        sum[i] = cpu_add(left[i], sum[i]);
}

/* The tile's valid rows and columns to dw. */
CPU_INLINE void grad_store(const struct grad *g, int64_t tile, const cpu_vector *sum, int tall,
                           int wide)
{
    float *dw = g->dw + tile * tall * g->in;
    int64_t rows = g->rows - tile * tall;
    const cpu_mask all = cpu_lanes(CPU_WORDS);
    const cpu_mask last = cpu_lanes(g->columns - (wide - 1) * CPU_WORDS);
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        if (r >= rows)
            break;
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            grad_store_vector(dw + r * g->in + c * CPU_WORDS, c < wide - 1 ? all : last, g->add,
                              sum[r * wide + c]);
    }
}

/* Own the tile's lines of dw before its products, as stores that wait for lines delay loads, and
 * fetch a share of what the next panel reads. */
CPU_INLINE void grad_ask(const struct grad *g, int64_t tile, bool half, int tall, int wide)
{
    const int64_t tiles = (g->rows + tall - 1) / tall;
    const float *dw = g->dw + tile * tall * g->in;
    CPU_UNROLL
    for (int r = 0; r < tall; r++)
        for (int c = 0; c < wide && tile * tall + r < g->rows; c++)
            __builtin_prefetch(dw + r * g->in + c * CPU_WORDS, 1, 3);
    for (int64_t row = g->soon_rows * tile / tiles; row < g->soon_rows * (tile + 1) / tiles; row++)
        for (size_t byte = 0; byte < GRAD_PANEL * (half ? 2 : 4); byte += 64)
            _mm_prefetch(g->soon + (size_t)row * g->soon_row + byte, _MM_HINT_T1);
}

CPU_INLINE void grad_tile_one(const struct grad *g, int64_t tile, bool half, int wide)
{
    cpu_vector sum[CPU_SUMS];
    grad_ask(g, tile, half, GRAD_ONE, wide);
    grad_leaf(sum, half, GRAD_ONE, wide, g->steps, g->x, g->dy + tile * g->tile);
    grad_store(g, tile, sum, GRAD_ONE, wide);
}

#if CPU_WORDS == 16
/*
 * Leaves come in pairs, added in registers: bit 0 of the binary counter of fold.h. An odd last leaf
 * is a pair by itself: its subtree is added to those that wait from the right, as finishing does.
 */
CPU_INLINE void grad_tile_tree(const struct grad *g, int64_t tile, bool half, int wide)
{
    cpu_vector waiting[GRAD_LEVELS][CPU_SUMS / 2];
    cpu_vector sum[CPU_SUMS / 2], right[CPU_SUMS / 2];
    const uint32_t *x = g->x, *dy = g->dy + tile * g->tile;
    int64_t x_leaf = g->steps * CPU_PIECE, dy_leaf = g->steps * GRAD_TREE;
    int depth = 0, count = GRAD_TREE * wide;
    grad_ask(g, tile, half, GRAD_TREE, wide);
    for (int64_t leaf = 0;; leaf += 2, x += 2 * x_leaf, dy += 2 * dy_leaf) {
        grad_leaf(sum, half, GRAD_TREE, wide, g->steps, x, dy);
        if (leaf + 1 < g->leaves) {
            grad_leaf(right, half, GRAD_TREE, wide, g->steps, x + x_leaf, dy + dy_leaf);
            grad_add(sum, right, count);
        }
        for (int64_t carry = leaf / 2; carry & 1; carry >>= 1)
            grad_add(sum, waiting[--depth], count);
        if (leaf + 2 >= g->leaves)
            break;
        CPU_UNROLL
        for (int i = 0; i < count; i++)
            waiting[depth][i] = sum[i];
        depth++;
    }
    while (depth > 0)
        grad_add(sum, waiting[--depth], count);
    grad_store(g, tile, sum, GRAD_TREE, wide);
}
#else
/* waiting = sum, then sum = the products over one leaf. Each sum is stored just before its first
 * product: twelve stores in a row keep products waiting for as long as a quarter of 16 steps. */
CPU_INLINE void grad_leaf_after(cpu_vector *waiting, cpu_vector *sum, bool half, int tall, int wide,
                                int64_t steps, const uint32_t *x, const uint32_t *dy)
{
    cpu_words column[CPU_WIDE];
    CPU_UNROLL
    for (int c = 0; c < wide; c++)
        column[c] = cpu_load_words(x + c * CPU_WORDS);
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++) {
        cpu_store((float *)&waiting[i], sum[i]);
        __asm__("" ::: "memory"); /* in this order */
        sum[i] = cpu_product(half, cpu_zero(), column[i % wide], cpu_set_words(dy[i / wide]));
    }
    for (int64_t k = 1; k < steps; k++)
        cpu_step(sum, half, tall, wide, x + k * CPU_PIECE, dy + k * tall);
}

/* The binary counter of fold.h. */
CPU_INLINE void grad_tile_tree(const struct grad *g, int64_t tile, bool half, int wide)
{
    cpu_vector waiting[GRAD_LEVELS][CPU_SUMS], sum[CPU_SUMS];
    const uint32_t *x = g->x, *dy = g->dy + tile * g->tile;
    const int count = GRAD_TREE * wide;
    int depth = 0;
    grad_ask(g, tile, half, GRAD_TREE, wide);
    grad_leaf(sum, half, GRAD_TREE, wide, g->steps, x, dy);
    for (int64_t leaf = 1; leaf < g->leaves; leaf++) {
        x += g->steps * CPU_PIECE;
        dy += g->steps * GRAD_TREE;
        grad_leaf_after(waiting[depth++], sum, half, GRAD_TREE, wide, g->steps, x, dy);
        for (int64_t carry = leaf; carry & 1; carry >>= 1)
            grad_add(sum, waiting[--depth], count);
    }
    while (depth > 0)
        grad_add(sum, waiting[--depth], count);
    grad_store(g, tile, sum, GRAD_TREE, wide);
}
#endif

CPU_INLINE void grad_panel(const struct grad *g, bool half, int wide)
{
    if (g->leaves == 1) {
        for (int64_t tile = 0; tile * GRAD_ONE < g->rows; tile++)
            grad_tile_one(g, tile, half, wide);
    } else {
        for (int64_t tile = 0; tile * GRAD_TREE < g->rows; tile++)
            grad_tile_tree(g, tile, half, wide);
    }
}

/* A narrow last panel costs no more than it must. */
CPU_BY_WIDTH(grad_panel_run, grad_panel, const struct grad *)

/* A panel's columns, as many at a time as a tile keeps sums of. */
static void grad_columns(const struct grad *g, bool half)
{
    struct grad piece = *g;
    const int vectors = (g->columns + CPU_WORDS - 1) / CPU_WORDS;
    for (int done = 0; done < vectors; done += CPU_WIDE) {
        const int wide = vectors - done < CPU_WIDE ? vectors - done : CPU_WIDE;
        grad_panel_run[CPU_PAIRS && half][wide - 1](&piece);
        piece.x += g->leaves * g->steps * CPU_PIECE;
        piece.dw += CPU_PIECE;
        piece.columns -= CPU_PIECE;
        piece.soon_rows = 0;
    }
}

static size_t grad_panel_bytes(const struct tess_op_desc *desc)
{
    return (size_t)grad_panel_words(desc) * sizeof(uint32_t);
}

static size_t grad_panels(const struct tess_op_desc *desc)
{
    return (size_t)(desc->in + GRAD_PANEL - 1) / GRAD_PANEL;
}

static bool grad_is_long(const struct tess_op_desc *desc)
{
    int64_t least = desc->rows == desc->leaf_rows ? GRAD_LONG_ONE : GRAD_LONG_TREE;
    return grad_steps(desc) >= least;
}

static int grad_tall(const struct tess_op_desc *desc)
{
    return desc->rows == desc->leaf_rows ? GRAD_ONE : GRAD_TREE;
}

static int64_t grad_group(const struct tess_op_desc *desc)
{
    return grad_steps(desc) >= GRAD_FAR ? GRAD_GROUP_FAR : GRAD_GROUP;
}

/* Is it computed by groups? Where there are several. */
static bool grad_is_grouped(const struct tess_op_desc *desc)
{
    return desc->out > grad_group(desc) &&
           grad_panels(desc) * grad_panel_bytes(desc) <= GRAD_X_BYTES;
}

CPU_INLINE void grad_pack_columns(const struct tess_op_desc *desc, const void *x, int64_t first,
                                  int32_t columns, uint32_t *panel)
{
    const bool ask = grad_is_grouped(desc); /* else tiles of the panel before have done it */
    for (int64_t leaf = 0; leaf < desc->rows / desc->leaf_rows; leaf++)
        for (int64_t step = 0; step < grad_steps(desc); step++, panel += CPU_PIECE) {
            if (ask)
                grad_pack_ask(desc, x, desc->in, leaf, step, first, columns);
            grad_pack(desc, x, desc->in, leaf, step, first, columns,
                      grad_all_steps(desc) * CPU_PIECE, panel);
        }
}

/* A whole panel's width is known to the compiler. */
static void grad_pack_x(const struct tess_op_desc *desc, const void *x, int64_t first,
                        int32_t columns, uint32_t *panel)
{
    if (columns == GRAD_PANEL)
        grad_pack_columns(desc, x, first, GRAD_PANEL, panel);
    else
        grad_pack_columns(desc, x, first, columns, panel);
}

bool CPU_OWN(grad_updates)(const struct tess_op_desc *desc)
{
    return desc->kind == TESS_OP_LINEAR && !desc->add_grad && grad_is_grouped(desc);
}

/* All panels of x. */
size_t CPU_OWN(grad_shared)(const struct tess_op_desc *desc)
{
    return grad_is_grouped(desc) ? grad_panels(desc) * grad_panel_bytes(desc) : 0;
}

size_t CPU_OWN(grad_scratch)(const struct tess_op_desc *desc)
{
    if (grad_is_long(desc))
        return CPU_OWN(grad_long_scratch)(
            desc, grad_is_grouped(desc) ? grad_group(desc) : GRAD_ROWS, grad_is_grouped(desc));
    if (grad_is_grouped(desc)) /* dy packed, and a group's rows of dw where an update reads them */
        return grad_packed_bytes(desc, grad_group(desc), grad_tall(desc)) +
               (size_t)(grad_group(desc) * desc->in) * sizeof(float);
    int64_t rows = desc->out < GRAD_ROWS ? desc->out : GRAD_ROWS;
    return grad_panel_bytes(desc) + grad_packed_bytes(desc, rows, grad_tall(desc));
}

static void grad_part(void *context, int64_t part, void *work)
{
    const struct grad_call *call = context;
    const struct tess_op_desc *desc = call->desc;
    uint32_t *panel = work;
    uint32_t *packed = (uint32_t *)((char *)work + grad_panel_bytes(desc));
    int64_t row = part * call->block, rows = desc->out - row;
    const size_t element = tess_dtype_bytes(desc->dtype);
    struct grad g = {.x = panel,
                     .dy = packed,
                     .leaves = desc->rows / desc->leaf_rows,
                     .steps = grad_steps(desc),
                     .tile = grad_tile_words(grad_all_steps(desc), grad_tall(desc)),
                     .rows = rows < call->block ? rows : call->block,
                     .in = desc->in,
                     .soon_row = (size_t)desc->in * element,
                     .add = desc->add_grad};
    if (g.leaves == 1)
        grad_pack_dy(desc, call->dy, row, g.rows, GRAD_ONE, packed);
    else
        grad_pack_dy(desc, call->dy, row, g.rows, GRAD_TREE, packed);
    for (int64_t first = 0; first < desc->in; first += GRAD_PANEL) {
        int64_t left = desc->in - first;
        g.columns = left < GRAD_PANEL ? (int32_t)left : GRAD_PANEL;
        g.dw = call->dw + row * desc->in + first;
        g.soon = (const char *)call->x + (size_t)(first + GRAD_PANEL) * element;
        g.soon_rows = left > GRAD_PANEL ? desc->rows : 0;
        grad_pack_x(desc, call->x, first, g.columns, panel);
        grad_columns(&g, desc->dtype == TESS_BF16);
    }
}

static void grad_panel_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct grad_call *call = context;
    const int64_t first = part * GRAD_PANEL, left = call->desc->in - first;
    char *panel = (char *)call->x_packed + (size_t)part * grad_panel_bytes(call->desc);
    grad_pack_x(call->desc, call->x, first, left < GRAD_PANEL ? (int32_t)left : GRAD_PANEL,
                (uint32_t *)(void *)panel);
}

static void grad_group_part(void *context, int64_t part, void *work)
{
    const struct grad_call *call = context;
    const struct tess_op_desc *desc = call->desc;
    const int tall = grad_tall(desc);
    const bool half = desc->dtype == TESS_BF16;
    const int64_t row = part * call->block, rows = tess__cpu_min(desc->out - row, call->block);
    float *dw = call->dw + row * desc->in;
    struct grad g = {.x = call->x_packed,
                     .dy = work,
                     .leaves = desc->rows / desc->leaf_rows,
                     .steps = grad_steps(desc),
                     .tile = grad_tile_words(grad_all_steps(desc), tall),
                     .rows = rows,
                     .in = desc->in,
                     .add = desc->add_grad};
    if (call->update != NULL)
        dw = (float *)(void *)((char *)work + grad_packed_bytes(desc, grad_group(desc), tall));
    if (g.leaves == 1)
        grad_pack_dy(desc, call->dy, row, rows, GRAD_ONE, work);
    else
        grad_pack_dy(desc, call->dy, row, rows, GRAD_TREE, work);
    for (int64_t first = 0; first < desc->in; first += GRAD_PANEL) {
        g.columns = (int32_t)tess__cpu_min(desc->in - first, GRAD_PANEL);
        g.dw = dw + first;
        grad_columns(&g, half);
        g.x += grad_panel_words(desc);
    }
    if (call->update != NULL)
        tess__cpu_update_piece(call->update, row * desc->in, rows * desc->in, dw);
}

/* Groups in whole tiles, as many for each thread. */
static void grad_groups(const struct tess_kernel *kernel, struct grad_call *call, char *scratch)
{
    const struct tess_op_desc *desc = call->desc;
    const int64_t most = grad_group(desc);
    int64_t groups = (desc->out + most - 1) / most;
    groups = (groups + kernel->threads - 1) / kernel->threads * kernel->threads;
    call->block = ((desc->out + groups - 1) / groups + CPU_TILE_TALL - 1) / CPU_TILE_TALL;
    call->block *= CPU_TILE_TALL;
    call->x_packed = (uint32_t *)(void *)scratch;
    tess__cpu_share(kernel, (int64_t)grad_panels(desc), grad_panel_part, call, NULL);
    tess__cpu_share(kernel, (desc->out + call->block - 1) / call->block,
                    grad_is_long(desc) ? CPU_OWN(grad_long) : grad_group_part, call,
                    scratch + CPU_OWN(grad_shared)(desc));
}

void CPU_OWN(grad)(const struct tess_kernel *kernel, const struct tess_op_desc *desc, const void *x,
                   const void *dy, float *dw, const struct cpu_update *update, void *scratch)
{
    struct grad_call call = {.desc = desc, .x = x, .dy = dy, .dw = dw, .update = update};
    if (grad_is_grouped(desc)) {
        grad_groups(kernel, &call, scratch);
        return;
    }
    /* As many blocks for each thread, in whole tiles. */
    int64_t blocks = (desc->out + GRAD_ROWS - 1) / GRAD_ROWS;
    blocks = (blocks + kernel->threads - 1) / kernel->threads * kernel->threads;
    call.block = ((desc->out + blocks - 1) / blocks + CPU_TILE_TALL - 1) / CPU_TILE_TALL;
    call.block *= CPU_TILE_TALL;
    tess__cpu_share(kernel, (desc->out + call.block - 1) / call.block,
                    grad_is_long(desc) ? CPU_OWN(grad_long) : grad_part, &call, scratch);
}
