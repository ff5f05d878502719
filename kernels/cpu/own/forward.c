/*
 * y[B, out] = x w^T + bias of a linear layer with the weights read where they lie. Built for
 * AVX-512 and for AVX2 (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 * A library brings w[out, in] into another layout first, because its vectors run along `out`. Here
 * they run along the batch: x, which is small, is turned into x^T, and each weight is one scalar
 * that meets up to 64 rows. Weights change every step, so that nothing could be kept between calls
 * anyway.
 *
 *     for every block of FORWARD_OUTPUTS rows of w
 *       for every 64 rows of x                     the threads share these
 *         for every part of FORWARD_STEPS columns
 *           x^T [step][rows] of the part, which stays in the second-level cache
 *           for every tile of rows of w            y^T [out][rows] += w x^T, sums in registers
 *         y = turned y^T + bias, ReLU, rounded once
 *
 * A step is one column in f32 and a pair of columns in bf16, 32 bits per row either way; without
 * products of pairs bf16 is widened, x^T when it is turned and a tile's rows of w when they are
 * copied. Each element of y is one chain of fused multiply-adds in the order of the columns,
 * whatever the number of rows.
 */
#include "cpu/cpu.h"

#include "cpu/own/pack.h"
#include "cpu/own/turn.h"

#include <string.h>

#define FORWARD_ROWS 64

/* 96 KiB of x^T at 64 rows, in the second-level cache, from which steps in order come in time:
 * fewer would fit into the first-level cache, but each part loads and stores all sums. */
#define FORWARD_STEPS 384

/* Outputs at a time: their sums over 64 rows are 192 KiB and stay in the second-level cache. */
#define FORWARD_OUTPUTS 768
#define FORWARD_LEAST   96 /* in a block that is made for another thread: it turns x once more */
#define FORWARD_IDLE    32 /* where that thread would have nothing to do */

/* Part of a product: some rows of x and some steps, all of w. */
struct forward {
    const uint32_t *x;       /* packed [pieces][steps, wide * CPU_WORDS] */
    int64_t pieces, x_piece; /* and the words from one to the next */
    const char *scalar;      /* the first output's, at the first step */
    const char *scalar_next; /* the same of the next part */
    size_t scalar_row;       /* bytes from output to output */
    int64_t steps, outputs;
    bool odd_step; /* the last step has one column only */
    bool first;    /* sums begin here */
    float *sum;
    /* What the next part reads of x: prefetched in equal shares, one before each tile. */
    const char *soon;
    int64_t soon_rows;
    size_t soon_row, soon_bytes; /* from row to row, and of a row */
    /* Lines of y that will be written, to own before: likewise, 0 rows before the last part. */
    const char *y;
    int64_t y_rows;
    size_t y_row, y_bytes;
};

/* This tile's share of what the next part reads, into the second-level cache, and of y. */
CPU_INLINE void forward_ask(const struct forward *f, int64_t first, int64_t tall)
{
    for (int64_t row = f->y_rows * first / f->outputs;
         row < f->y_rows * (first + tall) / f->outputs; row++)
        for (size_t at = 0; at < f->y_bytes; at += 64)
            __builtin_prefetch(f->y + (size_t)row * f->y_row + at, 1, 2);
    int64_t end = f->soon_rows * (first + tall) / f->outputs;
    for (int64_t row = f->soon_rows * first / f->outputs; row < end; row++)
        for (size_t at = 0; at < f->soon_bytes; at += 64)
            _mm_prefetch(f->soon + (size_t)row * f->soon_row + at, _MM_HINT_T1);
}

/* The words of `tall` outputs at one step. */
CPU_INLINE void forward_words(const char *from, size_t row_bytes, int tall, uint32_t *word)
{
    CPU_UNROLL
    for (int r = 0; r < tall; r++)
        memcpy(&word[r], from + (size_t)r * row_bytes, 4);
}

/* `tall` outputs of a piece, whose sums are `row` words apart, and scalars `scalar_row` bytes.
 * `ahead`: scalars to prefetch into the second-level cache, a row of them after the other in equal
 * shares of the steps, since the panel pushes them out of the first-level cache; or NULL. */
CPU_INLINE void forward_piece(const struct forward *f, bool half, int tall, int wide, int64_t row,
                              const uint32_t *x, const char *from, size_t scalar_row,
                              const char *ahead, float *target)
{
    cpu_vector sum[CPU_SUMS];
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        sum[i] = f->first ? cpu_zero() : cpu_load(target + i / wide * row + i % wide * CPU_WORDS);
    const char *last = from + (f->steps - 1) * 4;
    const int64_t whole = f->steps - f->odd_step, piece = wide * CPU_WORDS;
    uint32_t word[CPU_SUMS];
    int64_t step = 0;
    for (int share = 0; step < whole; share++) {
        const char *ask = ahead != NULL ? ahead + (size_t)share * scalar_row : from;
        const int64_t end = ahead != NULL ? whole * (share + 1) / tall : whole;
        for (; step + CPU_STEPS <= end; step += CPU_STEPS, x += CPU_STEPS * piece) {
            CPU_UNROLL
            for (int some = 0; some < CPU_STEPS; some++) {
                if (some % 2 == 0 || tall > 8) /* a line */
                    _mm_prefetch(ask + some * tall * 4, _MM_HINT_T1);
                forward_words(from + some * 4, scalar_row, tall, word);
                cpu_step(sum, half, tall, wide, x + some * piece, word);
            }
            from += CPU_STEPS * 4;
            ask += CPU_STEPS * tall * 4;
        }
        for (; step < end; step++, from += 4, x += piece) {
            forward_words(from, scalar_row, tall, word);
            cpu_step(sum, half, tall, wide, x, word);
        }
    }
    if (f->odd_step) {
        for (int r = 0; r < tall; r++) {
            uint16_t one;
            memcpy(&one, last + (size_t)r * scalar_row, 2);
            word[r] = one;
        }
        cpu_step(sum, half, tall, wide, x, word);
    }
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        cpu_store(target + i / wide * row + i % wide * CPU_WORDS, sum[i]);
}

/* Outputs [first, first + tall). Scalars are prefetched one tile ahead. */
CPU_INLINE void forward_tile(const struct forward *f, bool half, int tall, int wide, int64_t first)
{
    const int64_t pieces = CPU_WIDE * CPU_WORDS == FORWARD_ROWS ? 1 : f->pieces;
    const int64_t piece = wide * CPU_WORDS, row = pieces * piece;
    float *target = f->sum + first * row;
    forward_ask(f, first, tall);
    const char *from = f->scalar + (size_t)first * f->scalar_row;
    bool end_tile = first + tall >= f->outputs;
    const char *ahead = end_tile ? f->scalar_next : from + (size_t)tall * f->scalar_row;
    if (half && !CPU_PAIRS) {
        _Alignas(64) uint32_t copy[CPU_SUMS * CPU_COPY_ROW(FORWARD_STEPS)];
        const int64_t copy_row = CPU_COPY_ROW(FORWARD_STEPS);
        cpu_copy_rows(tall, f->steps, from, f->scalar_row, ahead, copy_row, copy);
        for (int64_t p = 0; p < pieces; p++)
            forward_piece(f, false, tall, wide, row, f->x + p * f->x_piece, (const char *)copy,
                          (size_t)copy_row * 4, NULL, target + p * piece);
        return;
    }
    for (int64_t p = 0; p < pieces; p++)
        forward_piece(f, half, tall, wide, row, f->x + p * f->x_piece, from, f->scalar_row,
                      p == 0 ? ahead : NULL, target + p * piece);
}

CPU_INLINE void forward_part(const struct forward *f, bool half, int wide)
{
    int64_t first = 0;
    /* Rows of scalars may lie 4 KiB apart, in one set of the first-level cache: no more than 12. */
    const int tall = wide == 1 ? 8 : CPU_SUMS / wide;
    /* Few sums wait for one another: better twice 4 outputs than 6 and 2. */
    for (; first + tall <= f->outputs && !(tall == 6 && f->outputs - first == 8); first += tall)
        forward_tile(f, half, tall, wide, first);
    for (; first + 4 <= f->outputs; first += 4)
        forward_tile(f, half, 4, wide, first);
    for (; first + 2 <= f->outputs; first += 2)
        forward_tile(f, half, 2, wide, first);
    for (; first < f->outputs; first++)
        forward_tile(f, half, 1, wide, first);
}

CPU_BY_WIDTH(forward_run, forward_part, const struct forward *)

/* Where turned sums go: some rows of y. */
struct forward_end {
    enum tess_dtype dtype;
    bool relu;
    const void *bias; /* or NULL */
    char *y;          /* the first row and column */
    size_t row_bytes;
    int64_t rows, columns;
};

/* Up to CPU_WORDS rows and columns of turned sums: bias, ReLU, rounding. A NaN passes the ReLU. */
CPU_INLINE void forward_finish_block(const struct forward_end *e, bool half, bool whole,
                                     const float *sum, int64_t sum_row, int64_t first,
                                     int64_t column)
{
    size_t row_bytes = e->row_bytes; /* copies: what is stored may not change them */
    bool relu = e->relu, has_bias = e->bias != NULL;
    int64_t rows = whole ? CPU_WORDS : e->rows - first;
    int64_t columns = whole ? CPU_WORDS : e->columns - column;
    cpu_mask mask = cpu_lanes(columns);
    char *y = e->y + (size_t)first * row_bytes + (size_t)column * (half ? 2 : 4);
    cpu_vector bias = has_bias ? cpu_load_lanes_of(half, mask, e->bias, column) : cpu_zero();
    cpu_words word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        if (whole || r < rows) /* stores that miss are done one by one: own the lines before */
            __builtin_prefetch(y + (size_t)r * row_bytes, 1, 3);
    CPU_UNROLL
    for (int i = 0; i < CPU_WORDS; i++)
        word[i] = whole || i < columns ? cpu_load_words(sum + i * sum_row) : cpu_zero_words();
    cpu_turn_square(word);
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++, y += row_bytes) {
        if (!whole && r >= rows)
            break;
        cpu_vector value = cpu_as_vector(word[r]);
        if (has_bias)
            value = cpu_add(value, bias);
        if (relu)
            value = cpu_max(cpu_zero(), value);
        if (half)
            cpu_store_halves((uint16_t *)(void *)y, mask, cpu_narrow(value));
        else
            cpu_store_lanes((float *)(void *)y, mask, value);
    }
}

CPU_INLINE void forward_finish_all(const struct forward_end *e, bool half, const float *sum,
                                   int64_t wide)
{
    int64_t sum_row = wide * CPU_WORDS;
    for (int64_t first = 0; first < e->rows; first += CPU_WORDS) {
        const float *from = sum + first;
        int64_t column = 0;
        if (first + CPU_WORDS <= e->rows)
            for (; column + CPU_WORDS <= e->columns; column += CPU_WORDS)
                forward_finish_block(e, half, true, from + column * sum_row, sum_row, first,
                                     column);
        for (; column < e->columns; column += CPU_WORDS)
            forward_finish_block(e, half, false, from + column * sum_row, sum_row, first, column);
    }
}

/* The turned sums [columns, wide * CPU_WORDS], finished. */
static void forward_finish(const struct forward_end *e, const float *sum, int64_t wide)
{
    if (e->dtype == TESS_BF16)
        forward_finish_all(e, true, sum, wide);
    else
        forward_finish_all(e, false, sum, wide);
}

/* Steps of a part: equal parts of no more than `most`, in whole cache lines. */
static int64_t forward_part_steps(int64_t steps, int64_t most)
{
    int64_t parts = (steps + most - 1) / most;
    return ((steps + parts - 1) / parts + CPU_LINE - 1) / CPU_LINE * CPU_LINE;
}

/* Vectors of rows: all that a tile takes at once, or whole pieces. */
static int64_t forward_wide(int64_t rows)
{
    int64_t wide = (tess__cpu_min(rows, FORWARD_ROWS) + CPU_WORDS - 1) / CPU_WORDS;
    return wide <= CPU_WIDE ? wide : (wide + CPU_WIDE - 1) / CPU_WIDE * CPU_WIDE;
}

size_t CPU_OWN(forward_scratch)(const struct tess_op_desc *desc)
{
    int64_t words = forward_wide(desc->rows) * CPU_WORDS;
    int64_t outputs = desc->out < FORWARD_OUTPUTS ? desc->out : FORWARD_OUTPUTS;
    return (size_t)((FORWARD_STEPS + outputs) * words) * sizeof(uint32_t);
}

/* Pieces of x^T, `wide` vectors each. */
static void forward_turn(struct forward *f, bool half, const char *x, int64_t rows, int64_t wide,
                         uint32_t *turned)
{
    const bool split = half && !CPU_PAIRS;
    const int64_t piece = wide * CPU_WORDS, words = split ? (f->steps + 1) / 2 : f->steps;
    const bool odd = split ? f->steps % 2 != 0 : f->odd_step;
    f->x_piece = (split ? 2 : 1) * words * piece;
    for (int64_t p = 0; p < f->pieces; p++)
        cpu_turn_split(split, x + (size_t)(p * piece) * f->scalar_row, f->scalar_row,
                       rows - p * piece, wide, words, odd, turned + p * f->x_piece);
}

/* Up to 64 rows and all of end->columns; `x`, `w` and end->y are at the first ones. `next`: the
 * rows of x of this thread's next part, next_rows of them. */
static void forward_rows(const struct tess_op_desc *desc, const char *x, const char *w,
                         const struct forward_end *end, int64_t wide, const char *next,
                         int64_t next_rows, uint32_t *turned)
{
    bool half = desc->dtype == TESS_BF16;
    size_t row_bytes = (size_t)desc->in * tess_dtype_bytes(desc->dtype);
    int64_t steps = cpu_steps(desc->dtype, desc->in);
    const int64_t step_bytes = half && !CPU_PAIRS ? 2 : 4;
    int64_t part_steps = forward_part_steps(steps, FORWARD_STEPS);
    float *sum = (float *)(turned + part_steps * wide * CPU_WORDS);
    for (int64_t step = 0; step < steps; step += part_steps) {
        bool last = step + part_steps >= steps;
        struct forward f = {.x = turned,
                            .pieces = (wide + CPU_WIDE - 1) / CPU_WIDE,
                            .scalar = w + step * step_bytes,
                            .scalar_next = last ? w : w + (step + part_steps) * step_bytes,
                            .scalar_row = row_bytes,
                            .steps = last ? steps - step : part_steps,
                            .outputs = end->columns,
                            .odd_step = CPU_PAIRS && last && half && desc->in % 2 != 0,
                            .first = step == 0,
                            .sum = sum,
                            .soon = last ? next : x + (step + part_steps) * step_bytes,
                            .soon_rows = last ? next_rows : end->rows,
                            .soon_row = row_bytes,
                            .soon_bytes = (size_t)(part_steps * step_bytes),
                            .y = end->y,
                            .y_rows = last ? end->rows : 0,
                            .y_row = end->row_bytes,
                            .y_bytes = (size_t)end->columns * tess_dtype_bytes(desc->dtype)};
        forward_turn(&f, half, x + step * step_bytes, end->rows, wide / f.pieces, turned);
        forward_run[half][wide / f.pieces - 1](&f);
    }
    forward_finish(end, sum, wide);
}

/* One call, and how it is cut: `panels` of 64 rows times blocks of `outputs` outputs. */
struct forward_call {
    const struct tess_op_desc *desc;
    const char *x, *w, *bias;
    char *y;
    int64_t panels, outputs;
};

static void forward_part_run(void *context, int64_t part, void *work)
{
    const struct forward_call *call = context;
    const struct tess_op_desc *desc = call->desc;
    size_t element = tess_dtype_bytes(desc->dtype);
    int64_t row = part % call->panels * FORWARD_ROWS;
    int64_t output = part / call->panels * call->outputs, outputs = desc->out - output;
    int64_t rows = desc->rows - row, wide = forward_wide(rows);
    struct forward_end end = {.dtype = desc->dtype,
                              .relu = desc->relu,
                              .bias =
                                  call->bias != NULL ? call->bias + (size_t)output * element : NULL,
                              .y = call->y + (size_t)(row * desc->out + output) * element,
                              .row_bytes = (size_t)desc->out * element,
                              .rows = rows < wide * CPU_WORDS ? rows : wide * CPU_WORDS,
                              .columns = outputs < call->outputs ? outputs : call->outputs};
    const int64_t next = row + FORWARD_ROWS; /* the next part, as a rule (team.h) */
    const int64_t next_rows = next < desc->rows ? desc->rows - next : 0;
    forward_rows(desc, call->x + (size_t)(row * desc->in) * element,
                 call->w + (size_t)(output * desc->in) * element, &end, wide,
                 call->x + (size_t)(next * desc->in) * element,
                 tess__cpu_min(next_rows, FORWARD_ROWS), work);
}

void CPU_OWN(forward)(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                      const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    struct forward_call call = {.desc = desc, .x = x, .w = w, .bias = bias, .y = y};
    int64_t panel = FORWARD_ROWS;
    call.panels = (desc->rows + panel - 1) / panel;
    /* Even blocks in whole tiles, and as many parts for each thread, if they are not too small. */
    int64_t blocks = (desc->out + FORWARD_OUTPUTS - 1) / FORWARD_OUTPUTS;
    while (call.panels * blocks % kernel->threads != 0 &&
           call.panels * blocks < 4 * kernel->threads &&
           desc->out >= (blocks + 1) *
                            (call.panels * blocks < kernel->threads ? FORWARD_IDLE : FORWARD_LEAST))
        blocks++;
    call.outputs = ((desc->out + blocks - 1) / blocks + CPU_SUMS - 1) / CPU_SUMS;
    call.outputs *= CPU_SUMS;
    blocks = (desc->out + call.outputs - 1) / call.outputs;
    tess__cpu_share(kernel, call.panels * blocks, forward_part_run, &call, scratch);
}
