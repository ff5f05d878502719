/*
 * dx[B, in] = dy[B, out] w of a linear layer. Built for AVX-512 and for AVX2
 * (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 *     for every panel of 64 columns of w, block of DATA_ROWS rows of dy   the threads share these
 *       for every DATA_STEPS steps           w packed [step][64]: second-level cache
 *         for every tile of 6 rows of dy     sums += products, dy read where it lies
 *       dx = sums, rounded once
 *
 * A step is one row of w in f32 and a pair of rows in bf16. Each element of dx is one chain of
 * fused multiply-adds in the order of the outputs, whatever the number of rows.
 */
#include "cpu/cpu.h"

#include "cpu/own/pack.h"
#include "cpu/own/tile.h"

#include <string.h>

#define DATA_PANEL 64
#define DATA_STEPS 384  /* 96 KiB of w; fewer would load and store sums more often */
#define DATA_ROWS  1026 /* whole tiles; their sums, 256 KiB, are in the second-level cache */

struct data_call {
    const struct tess_op_desc *desc;
    const void *dy, *w;
    void *dx;
    int64_t panels;
};

/* The work memory of one thread. */
struct data_work {
    uint32_t *w;  /* [DATA_STEPS, DATA_PANEL] */
    float *sum;   /* [rows, DATA_PANEL] */
    uint32_t *dy; /* bf16 with an odd number of outputs: rows with a zero behind */
};

static bool data_is_odd(const struct tess_op_desc *desc)
{
    return CPU_PAIRS && desc->dtype == TESS_BF16 && desc->out % 2 != 0;
}

static int64_t data_steps(const struct tess_op_desc *desc)
{
    return cpu_steps(desc->dtype, desc->out);
}

static int64_t data_rows(const struct tess_op_desc *desc)
{
    return desc->rows < DATA_ROWS ? desc->rows : DATA_ROWS;
}

static struct data_work data_work(const struct tess_op_desc *desc, void *base, size_t *bytes_out)
{
    int64_t rows = data_rows(desc), words = DATA_STEPS * DATA_PANEL;
    struct data_work w = {.w = base};
    if (base != NULL) {
        w.sum = (float *)base + words;
        w.dy = (uint32_t *)base + words + rows * DATA_PANEL;
    }
    words += rows * DATA_PANEL + (data_is_odd(desc) ? rows * data_steps(desc) : 0);
    *bytes_out = tess__cpu_round_up((size_t)words * sizeof(uint32_t));
    return w;
}

size_t CPU_OWN(data_scratch)(const struct tess_op_desc *desc)
{
    size_t bytes;
    data_work(desc, NULL, &bytes);
    return bytes;
}

/* Steps step .. step + count - 1 of w from column `first` on. */
CPU_INLINE void data_pack(const struct tess_op_desc *desc, const void *w, int64_t step,
                          int64_t count, int64_t first, int64_t columns, uint32_t *packed)
{
    bool half = desc->dtype == TESS_BF16;
    for (int64_t s = step; s < step + count; s++, packed += CPU_PIECE)
        cpu_pack_pieces(half, w, desc->in, half && CPU_PAIRS ? 2 * s : s, 2 * s + 1 < desc->out,
                        first, columns, DATA_STEPS * CPU_PIECE, packed);
}

/* Own the lines of dx that the next rows of a panel go to, before they are stored. */
CPU_INLINE void data_ask_dx(const struct data_call *call, const char *dx, int64_t rows)
{
    const size_t element = tess_dtype_bytes(call->desc->dtype);
    for (int64_t r = 0; r < rows; r++, dx += (size_t)call->desc->in * element)
        for (size_t byte = 0; byte < DATA_PANEL * element; byte += 64)
            __builtin_prefetch(dx + byte, 1, 2);
}

/* A tile of rows and all pieces of a panel. */
static void data_tile(bool half, int64_t columns, struct cpu_tile *tile)
{
    _Alignas(64) uint32_t copy[CPU_TILE_TALL * CPU_COPY_ROW(DATA_STEPS)];
    if (half && !CPU_PAIRS) {
        const int64_t row = CPU_COPY_ROW(DATA_STEPS);
        const char *ahead = tile->ask != NULL ? tile->ask : tile->scalar;
        if (tile->rows == CPU_TILE_TALL) /* known to the compiler */
            cpu_copy_rows(CPU_TILE_TALL, tile->steps, tile->scalar, tile->scalar_row, ahead, row,
                          copy);
        for (int64_t r = 0; r < tile->rows && tile->rows < CPU_TILE_TALL; r++)
            cpu_copy_rows(1, tile->steps, (const char *)tile->scalar + (size_t)r * tile->scalar_row,
                          tile->scalar_row, ahead, row, copy + r * row);
        tile->scalar = copy;
        tile->scalar_row = (size_t)row * sizeof(*copy);
        tile->ask = NULL;
    }
    for (; columns > 0; columns -= CPU_PIECE) {
        const int64_t some = columns < CPU_PIECE ? columns : CPU_PIECE;
        CPU_OWN(tile)(half && CPU_PAIRS, (int)((some + CPU_WORDS - 1) / CPU_WORDS), tile);
        tile->column += DATA_STEPS * CPU_PIECE;
        tile->sum += CPU_PIECE;
        tile->ask = NULL;
    }
}

/* A panel's sums over all outputs. `dy` is the block's first row, `row_bytes` from row to row. */
static void data_sums(const struct data_call *call, const struct data_work *work, const char *dy,
                      size_t row_bytes, int64_t rows, int64_t first, int64_t columns,
                      const char *dx)
{
    const struct tess_op_desc *desc = call->desc;
    bool half = desc->dtype == TESS_BF16;
    const size_t dx_row = (size_t)desc->in * tess_dtype_bytes(desc->dtype);
    int64_t steps = data_steps(desc), per_step = half && CPU_PAIRS ? 2 : 1;
    const int64_t step_bytes = half && !CPU_PAIRS ? 2 : 4;
    for (int64_t step = 0; step < steps; step += DATA_STEPS) {
        int64_t count = steps - step < DATA_STEPS ? steps - step : DATA_STEPS;
        /* What is packed next: the next steps, or the first ones of the next panel, which is this
         * thread's as a rule (team.h). */
        const bool last = step + count == steps;
        int64_t soon = last ? 0 : (step + count) * per_step, ahead = DATA_STEPS * per_step;
        const int64_t soon_first = last ? first + DATA_PANEL : first;
        if (columns == DATA_PANEL) /* known to the compiler */
            data_pack(desc, call->w, step, count, first, DATA_PANEL, work->w);
        else
            data_pack(desc, call->w, step, count, first, columns, work->w);
        for (int64_t row = 0; row < rows; row += CPU_TILE_TALL) {
            int64_t left = rows - row;
            const char *at = dy + (size_t)row * row_bytes + (size_t)(step * step_bytes);
            if (soon_first < desc->in)
                cpu_ask_rows(half, call->w, desc->out, desc->in, soon + ahead * row / rows,
                             soon + ahead * (row + CPU_TILE_TALL) / rows, soon_first);
            if (last)
                data_ask_dx(call, dx + (size_t)row * dx_row, tess__cpu_min(left, CPU_TILE_TALL));
            struct cpu_tile tile = {.column = work->w,
                                    .column_step = CPU_PIECE,
                                    .scalar = at,
                                    .scalar_row = row_bytes,
                                    .scalar_step = 4,
                                    .rows = tess__cpu_min(left, CPU_TILE_TALL),
                                    .steps = count,
                                    .sum = work->sum + row * DATA_PANEL,
                                    .sum_row = DATA_PANEL,
                                    .begin = step == 0,
                                    .ask = left > CPU_TILE_TALL ? at + CPU_TILE_TALL * row_bytes
                                           : !last              ? dy + (step + count) * step_bytes
                                                                : NULL};
            data_tile(half, columns, &tile);
        }
    }
}

static void data_store(const struct tess_op_desc *desc, const float *sum, int64_t row, int64_t rows,
                       int64_t first, int64_t columns, void *dx)
{
    for (int64_t r = row; r < row + rows; r++, sum += DATA_PANEL)
        for (int64_t c = 0; c < columns; c += CPU_WORDS) {
            const cpu_mask mask = cpu_lanes(columns - c);
            const cpu_vector value = cpu_load(sum + c);
            int64_t at = r * desc->in + first + c;
            if (desc->dtype == TESS_BF16)
                cpu_store_halves((uint16_t *)dx + at, mask, cpu_narrow(value));
            else
                cpu_store_lanes((float *)dx + at, mask, value);
        }
}

static void data_part(void *context, int64_t part, void *memory)
{
    const struct data_call *call = context;
    const struct tess_op_desc *desc = call->desc;
    size_t bytes, row_bytes = (size_t)desc->out * tess_dtype_bytes(desc->dtype);
    struct data_work work = data_work(desc, memory, &bytes);
    int64_t row = part / call->panels * DATA_ROWS, rows = desc->rows - row;
    int64_t first = part % call->panels * DATA_PANEL, columns = desc->in - first;
    rows = rows < DATA_ROWS ? rows : DATA_ROWS;
    columns = columns < DATA_PANEL ? columns : DATA_PANEL;
    const char *dy = (const char *)call->dy + (size_t)row * row_bytes;
    if (data_is_odd(desc)) {
        size_t padded = (size_t)data_steps(desc) * sizeof(uint32_t);
        for (int64_t r = 0; r < rows; r++) {
            char *copy = (char *)work.dy + (size_t)r * padded;
            memcpy(copy, dy + (size_t)r * row_bytes, row_bytes);
            memset(copy + row_bytes, 0, padded - row_bytes);
        }
        dy = (const char *)work.dy;
        row_bytes = padded;
    }
    const size_t at = (size_t)(row * desc->in + first) * tess_dtype_bytes(desc->dtype);
    data_sums(call, &work, dy, row_bytes, rows, first, columns, (char *)call->dx + at);
    data_store(desc, work.sum, row, rows, first, columns, call->dx);
}

void CPU_OWN(data)(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                   const void *dy, const void *w, void *dx, void *scratch)
{
    struct data_call call = {.desc = desc, .dy = dy, .w = w, .dx = dx};
    call.panels = (desc->in + DATA_PANEL - 1) / DATA_PANEL;
    tess__cpu_share(kernel, (desc->rows + DATA_ROWS - 1) / DATA_ROWS * call.panels, data_part,
                    &call, scratch);
}
