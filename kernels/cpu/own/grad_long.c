/*
 * dw[out, in] = dy^T x where leaves are long (see grad.c). Built for AVX-512 and for
 * AVX2 (CMakeLists.txt).
 *
 *     for every block of rows of dw                        the threads share these (grad.c)
 *       dy packed [tile][step][rows of the tile]
 *       for every panel of 64 columns of x
 *         for every leaf
 *           for every LONG_STEPS steps of it               x packed [step][64]: first-level cache
 *             for every tile of the block                  sums += products
 *           add the sums to the subtrees that wait         fold.h
 *         dw = sums
 *
 * The sums of a panel, 96 KiB, stay in the second-level cache from one run of steps to the next.
 * By groups of rows x is packed as a whole before, and the sums stay in the first-level cache; an
 * update of the rows follows where there is one.
 */
#include "cpu/own/grad_room.h"

#include "ref/fold.h"

#define LONG_STEPS 128 /* 32 KiB of x */

/* Work memory: x, dy, and the sums of the leaves: the tree's root and what waits. */
struct long_work {
    uint32_t *x, *dy;
    float *root;
    void *fold;
};

static size_t long_x_bytes(void)
{
    return LONG_STEPS * GRAD_PANEL * sizeof(uint32_t);
}

static size_t long_sum_bytes(int64_t rows)
{
    return (size_t)(rows * GRAD_PANEL) * sizeof(float);
}

static size_t long_fold_bytes(const struct tess_op_desc *desc, int64_t rows)
{
    return tess__cpu_round_up(tess__fold_bytes(rows * GRAD_PANEL, desc->rows / desc->leaf_rows));
}

size_t CPU_OWN(grad_long_scratch)(const struct tess_op_desc *desc, int64_t rows, bool grouped)
{
    rows = tess__cpu_min(desc->out, rows);
    rows = (rows + CPU_TILE_TALL - 1) / CPU_TILE_TALL * CPU_TILE_TALL;
    return (grouped ? (size_t)(rows * desc->in) * sizeof(float) : long_x_bytes()) +
           grad_packed_bytes(desc, rows, CPU_TILE_TALL) + long_sum_bytes(rows) +
           long_fold_bytes(desc, rows);
}

/* Steps `step` .. step + steps - 1 of leaf `leaf`. A whole panel's width is known to the compiler.
 */
static void long_pack(const struct tess_op_desc *desc, const void *x, int64_t leaf, int64_t step,
                      int64_t steps, int64_t first, int64_t columns, uint32_t *packed)
{
    const int64_t piece = LONG_STEPS * CPU_PIECE;
    for (int64_t s = step; s < step + steps; s++, packed += CPU_PIECE) {
        if (columns == GRAD_PANEL)
            grad_pack(desc, x, desc->in, leaf, s, first, GRAD_PANEL, piece, packed);
        else
            grad_pack(desc, x, desc->in, leaf, s, first, columns, piece, packed);
    }
}

/* Own a tile's lines of dw, whose rows are `in` apart, before they are stored. */
CPU_INLINE void long_ask_dw(const float *dw, int64_t in, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++, dw += in)
        for (int64_t c = 0; c < GRAD_PANEL; c += CPU_WORDS)
            __builtin_prefetch(dw + c, 1, 2);
}

/* sum [rows, GRAD_PANEL] = the products over one leaf; dw: where its tree's sums will go, or NULL
 * where other leaves follow. */
static void long_leaf(const struct grad_call *call, const struct long_work *w, int64_t leaf,
                      int64_t rows, int64_t first, int64_t columns, const float *dw, float *sum)
{
    const struct tess_op_desc *desc = call->desc;
    int64_t steps = grad_steps(desc);
    bool half = desc->dtype == TESS_BF16;
    const int64_t per_step = CPU_PAIRS && half ? 2 : 1;
    const int64_t dy_tile = grad_tile_words(grad_all_steps(desc), CPU_TILE_TALL);
    const int64_t piece = (call->x_packed != NULL ? grad_all_steps(desc) : LONG_STEPS) * CPU_PIECE;
    for (int64_t step = 0; step < steps; step += LONG_STEPS) {
        int64_t count = steps - step < LONG_STEPS ? steps - step : LONG_STEPS;
        const uint32_t *x = w->x;
        if (call->x_packed != NULL)
            x = call->x_packed + first / GRAD_PANEL * grad_panel_words(desc) +
                (leaf * steps + step) * CPU_PIECE;
        else
            long_pack(desc, call->x, leaf, step, count, first, columns, w->x);
        const uint32_t *dy = w->dy + (leaf * steps + step) * CPU_TILE_TALL;
        int64_t soon = leaf * desc->leaf_rows + (step + count) * per_step, ahead = count * per_step;
        const bool last = step + count == steps;
        for (int64_t row = 0; row < rows; row += CPU_TILE_TALL, dy += dy_tile) {
            if (call->x_packed == NULL)
                cpu_ask_rows(half, call->x, desc->rows, desc->in, soon + ahead * row / rows,
                             soon + ahead * (row + CPU_TILE_TALL) / rows, first);
            if (last && dw != NULL)
                long_ask_dw(dw + row * desc->in, desc->in,
                            tess__cpu_min(rows - row, CPU_TILE_TALL));
            struct cpu_tile tile = {.column = x,
                                    .column_step = CPU_PIECE,
                                    .scalar = dy,
                                    .scalar_row = sizeof(*dy),
                                    .scalar_step = CPU_TILE_TALL * sizeof(*dy),
                                    .rows = tess__cpu_min(rows - row, CPU_TILE_TALL),
                                    .steps = count,
                                    .sum = sum + row * GRAD_PANEL,
                                    .sum_row = GRAD_PANEL,
                                    .begin = step == 0};
            for (int64_t c = 0; c < columns; c += CPU_PIECE) {
                const int64_t some = tess__cpu_min(columns - c, CPU_PIECE);
                CPU_OWN(tile)(CPU_PAIRS && half, (int)((some + CPU_WORDS - 1) / CPU_WORDS), &tile);
                tile.column += piece;
                tile.sum += CPU_PIECE;
            }
        }
    }
}

/* To dw, of which the first row is given. */
static void long_store(const struct tess_op_desc *desc, const float *sum, float *dw, int64_t rows,
                       int64_t first, int64_t columns)
{
    dw += first;
    for (int64_t r = 0; r < rows; r++, dw += desc->in, sum += GRAD_PANEL)
        for (int64_t c = 0; c < columns; c += CPU_WORDS)
            grad_store_vector(dw + c, cpu_lanes(columns - c), desc->add_grad, cpu_load(sum + c));
}

void CPU_OWN(grad_long)(void *context, int64_t part, void *work)
{
    const struct grad_call *call = context;
    const struct tess_op_desc *desc = call->desc;
    int64_t row = part * call->block, rows = desc->out - row;
    rows = rows < call->block ? rows : call->block;
    char *base = work;
    struct long_work w = {
        .dy = work, .root = (float *)(void *)(base + grad_packed_bytes(desc, rows, CPU_TILE_TALL))};
    w.fold = (char *)w.root + long_sum_bytes(rows);
    char *const rest = (char *)w.fold + long_fold_bytes(desc, rows);
    w.x = (uint32_t *)(void *)rest;
    float *dw = call->update != NULL ? (float *)(void *)rest : call->dw + row * desc->in;
    grad_pack_dy(desc, call->dy, row, rows, CPU_TILE_TALL, w.dy);
    for (int64_t first = 0; first < desc->in; first += GRAD_PANEL) {
        int64_t left = desc->in - first, columns = left < GRAD_PANEL ? left : GRAD_PANEL;
        struct tess_fold fold;
        tess__fold_init(&fold, rows * GRAD_PANEL, w.root, w.fold);
        const int64_t leaves = desc->rows / desc->leaf_rows;
        for (int64_t leaf = 0; leaf < leaves; leaf++) {
            long_leaf(call, &w, leaf, rows, first, columns, leaf + 1 < leaves ? NULL : dw + first,
                      tess__fold_leaf(&fold));
            tess__fold_push(&fold);
        }
        tess__fold_finish(&fold);
        long_store(desc, w.root, dw, rows, first, columns);
    }
    if (call->update != NULL)
        tess__cpu_update_piece(call->update, row * desc->in, rows * desc->in, dw);
}
