/*
 * dw[out, in] = dy^T x where leaves are long (see grad.c). Built for AVX-512 with bf16
 * dot products (CMakeLists.txt).
 *
 *     for every block of rows of dw                        the threads share these (grad.c)
 *       dy packed [step][rows]
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

/* Words from step to step of dy: an odd number of cache lines. */
static int64_t long_dy_row(int64_t rows)
{
    return ((rows + 15) / 16 | 1) * 16;
}

static size_t long_dy_bytes(const struct tess_op_desc *desc, int64_t rows)
{
    return (size_t)(grad_all_steps(desc) * long_dy_row(rows)) * sizeof(uint32_t);
}

static size_t long_sum_bytes(int64_t rows)
{
    return (size_t)(rows * GRAD_PANEL) * sizeof(float);
}

static size_t long_fold_bytes(const struct tess_op_desc *desc, int64_t rows)
{
    return tess__cpu_round_up(tess__fold_bytes(rows * GRAD_PANEL, desc->rows / desc->leaf_rows));
}

size_t tess__cpu_grad_long_scratch(const struct tess_op_desc *desc, int64_t rows, bool grouped)
{
    rows = tess__cpu_min(desc->out, rows);
    rows = (rows + CPU_TILE_TALL - 1) / CPU_TILE_TALL * CPU_TILE_TALL;
    return (grouped ? (size_t)(rows * desc->in) * sizeof(float) : long_x_bytes()) +
           long_dy_bytes(desc, rows) + long_sum_bytes(rows) + long_fold_bytes(desc, rows);
}

/* Columns first .. first + count - 1 of dy by steps. */
static void long_pack_dy(const struct tess_op_desc *desc, const void *dy, int64_t first,
                         int64_t count, uint32_t *packed)
{
    for (int64_t leaf = 0; leaf < desc->rows / desc->leaf_rows; leaf++)
        for (int64_t step = 0; step < grad_steps(desc); step++, packed += long_dy_row(count))
            grad_pack(desc, dy, desc->out, leaf, step, first, count, packed);
}

/* Steps `step` .. step + steps - 1 of leaf `leaf`. A whole panel's width is known to the compiler.
 */
static void long_pack(const struct tess_op_desc *desc, const void *x, int64_t leaf, int64_t step,
                      int64_t steps, int64_t first, int64_t columns, uint32_t *packed)
{
    for (int64_t s = step; s < step + steps; s++, packed += GRAD_PANEL) {
        if (columns == GRAD_PANEL)
            grad_pack(desc, x, desc->in, leaf, s, first, GRAD_PANEL, packed);
        else
            grad_pack(desc, x, desc->in, leaf, s, first, columns, packed);
    }
}

/* sum [rows, GRAD_PANEL] = the products over one leaf. */
static void long_leaf(const struct grad_call *call, const struct long_work *w, int64_t leaf,
                      int64_t rows, int64_t first, int64_t columns, float *sum)
{
    const struct tess_op_desc *desc = call->desc;
    int64_t steps = grad_steps(desc);
    bool half = desc->dtype == TESS_BF16;
    int64_t dy_row = long_dy_row(rows), per_step = half ? 2 : 1;
    int wide = (int)((columns + GRAD_LANES - 1) / GRAD_LANES);
    for (int64_t step = 0; step < steps; step += LONG_STEPS) {
        int64_t count = steps - step < LONG_STEPS ? steps - step : LONG_STEPS;
        const uint32_t *x = w->x;
        if (call->x_packed != NULL)
            x = call->x_packed + first / GRAD_PANEL * grad_panel_words(desc) +
                (leaf * steps + step) * GRAD_PANEL;
        else
            long_pack(desc, call->x, leaf, step, count, first, columns, w->x);
        const uint32_t *dy = w->dy + (leaf * steps + step) * dy_row;
        int64_t soon = leaf * desc->leaf_rows + (step + count) * per_step, ahead = count * per_step;
        for (int64_t row = 0; row < rows; row += CPU_TILE_TALL) {
            if (call->x_packed == NULL)
                cpu_ask_rows(half, call->x, desc->rows, desc->in, soon + ahead * row / rows,
                             soon + ahead * (row + CPU_TILE_TALL) / rows, first);
            struct cpu_tile tile = {.column = x,
                                    .column_step = GRAD_PANEL,
                                    .scalar = dy + row,
                                    .scalar_row = sizeof(*dy),
                                    .scalar_step = (size_t)dy_row * sizeof(*dy),
                                    .rows = tess__cpu_min(rows - row, CPU_TILE_TALL),
                                    .steps = count,
                                    .sum = sum + row * GRAD_PANEL,
                                    .sum_row = GRAD_PANEL,
                                    .begin = step == 0};
            tess__cpu_tile(half, wide, &tile);
        }
    }
}

/* To dw, of which the first row is given. */
static void long_store(const struct tess_op_desc *desc, const float *sum, float *dw, int64_t rows,
                       int64_t first, int64_t columns)
{
    dw += first;
    for (int64_t r = 0; r < rows; r++, dw += desc->in, sum += GRAD_PANEL)
        for (int64_t c = 0; c < columns; c += GRAD_LANES)
            grad_store_vector(dw + c, cpu_lanes(columns - c), desc->add_grad,
                              _mm512_load_ps(sum + c));
}

void tess__cpu_grad_long(void *context, int64_t part, void *work)
{
    const struct grad_call *call = context;
    const struct tess_op_desc *desc = call->desc;
    int64_t row = part * call->block, rows = desc->out - row;
    rows = rows < call->block ? rows : call->block;
    char *base = work;
    struct long_work w = {.dy = work, .root = (float *)(void *)(base + long_dy_bytes(desc, rows))};
    w.fold = (char *)w.root + long_sum_bytes(rows);
    char *const rest = (char *)w.fold + long_fold_bytes(desc, rows);
    w.x = (uint32_t *)(void *)rest;
    float *dw = call->update != NULL ? (float *)(void *)rest : call->dw + row * desc->in;
    long_pack_dy(desc, call->dy, row, rows, w.dy);
    for (int64_t first = 0; first < desc->in; first += GRAD_PANEL) {
        int64_t left = desc->in - first, columns = left < GRAD_PANEL ? left : GRAD_PANEL;
        struct tess_fold fold;
        tess__fold_init(&fold, rows * GRAD_PANEL, w.root, w.fold);
        for (int64_t leaf = 0; leaf < desc->rows / desc->leaf_rows; leaf++) {
            long_leaf(call, &w, leaf, rows, first, columns, tess__fold_leaf(&fold));
            tess__fold_push(&fold);
        }
        tess__fold_finish(&fold);
        long_store(desc, w.root, dw, rows, first, columns);
    }
    if (call->update != NULL)
        tess__cpu_update_piece(call->update, row * desc->in, rows * desc->in, dw);
}
