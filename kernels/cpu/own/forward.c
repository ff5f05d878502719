/*
 * y[B, out] = x w^T + bias of a linear layer with the weights read where they lie. Built for
 * AVX-512 with bf16 dot products (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 * A library brings w[out, in] into another layout first, because its vectors run along `out`. Here
 * they run along the batch: x, which is small, is turned into x^T, and each weight is one scalar
 * that meets up to 64 rows. Weights change every step, so that nothing could be kept between calls
 * anyway.
 *
 *     for every block of FORWARD_OUTPUTS rows of w
 *       for every 64 rows of x                     the threads share these
 *         for every part of FORWARD_STEPS columns
 *           x^T [step][rows] of the part, which stays in the first-level cache
 *           for every tile of rows of w            y^T [out][rows] += w x^T, 24 registers of sums
 *         y = turned y^T + bias, ReLU, rounded once
 *
 * A step is one column in f32 and a pair of columns in bf16, 32 bits per row either way. Each
 * element of y is one chain of fused multiply-adds in the order of the columns, whatever the number
 * of rows.
 */
#include "cpu/cpu.h"

#include "cpu/own/pack.h"
#include "cpu/own/turn.h"

#include <string.h>

#define FORWARD_WIDE  4   /* vectors of rows at a time */
#define FORWARD_SUMS  24  /* registers of sums: rows of w in a tile times vectors */
#define FORWARD_STEPS 128 /* 32 KiB of x^T at 64 rows */

/* Outputs at a time: their sums over 64 rows are 192 KiB and stay in the second-level cache. */
#define FORWARD_OUTPUTS 768
#define FORWARD_LEAST   96 /* in a block that is made for another thread: it turns x once more */

/* Part of a product: some rows of x and some steps, all of w. */
struct forward {
    const uint32_t *x;       /* packed [steps, wide * 16] */
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

/* Outputs [first, first + tall). Scalars are prefetched one tile ahead, a cache line at a time. */
CPU_INLINE void forward_tile(const struct forward *f, bool half, int tall, int wide, int64_t first)
{
    __m512 sum[FORWARD_SUMS];
    float *target = f->sum + first * wide * CPU_WORDS;
    forward_ask(f, first, tall);
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        sum[i] = f->first ? _mm512_setzero_ps() : _mm512_load_ps(target + i * CPU_WORDS);
    const uint32_t *x = f->x;
    const char *from = f->scalar + (size_t)first * f->scalar_row;
    const char *last = from + (f->steps - 1) * 4;
    bool end_tile = first + tall >= f->outputs;
    const char *ahead = end_tile ? f->scalar_next : from + (size_t)tall * f->scalar_row;
    int64_t whole = f->steps - f->odd_step;
    uint32_t word[FORWARD_SUMS];
    for (int64_t step = 0; step < whole; from += CPU_WORDS * 4, ahead += CPU_WORDS * 4) {
        CPU_UNROLL
        for (int r = 0; r < tall; r++)
            _mm_prefetch(ahead + (size_t)r * f->scalar_row, _MM_HINT_T0);
        int64_t end = step + CPU_WORDS < whole ? step + CPU_WORDS : whole;
        for (const char *at = from; step < end; step++, at += 4, x += wide * CPU_WORDS) {
            forward_words(at, f->scalar_row, tall, word);
            cpu_step(sum, half, tall, wide, x, word);
        }
    }
    if (f->odd_step) {
        for (int r = 0; r < tall; r++) {
            uint16_t one;
            memcpy(&one, last + (size_t)r * f->scalar_row, 2);
            word[r] = one;
        }
        cpu_step(sum, half, tall, wide, x, word);
    }
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        _mm512_store_ps(target + i * CPU_WORDS, sum[i]);
}

CPU_INLINE void forward_part(const struct forward *f, bool half, int wide)
{
    int64_t first = 0;
    /* Rows of scalars may lie 4 KiB apart, in one set of the first-level cache: no more than 12. */
    const int tall = wide == 1 ? 8 : FORWARD_SUMS / wide;
    /* Few sums wait for one another: better twice 4 outputs than 6 and 2. */
    for (; first + tall <= f->outputs && !(wide == 4 && f->outputs - first == 8); first += tall)
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

/* The first 16 elements of `bias` as f32. */
CPU_INLINE __m512 forward_bias(bool half, __mmask16 mask, const void *bias, int64_t column)
{
    if (!half)
        return _mm512_maskz_loadu_ps(mask, (const float *)bias + column);
    __m256i low = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)bias + column);
    return cpu_widen(low);
}

/* Up to 16 rows and 16 columns of turned sums: bias, ReLU, rounding. A NaN passes the ReLU. */
CPU_INLINE void forward_finish_block(const struct forward_end *e, bool half, bool whole,
                                     const float *sum, int64_t sum_row, int64_t first,
                                     int64_t column)
{
    size_t row_bytes = e->row_bytes; /* copies: what is stored may not change them */
    bool relu = e->relu, has_bias = e->bias != NULL;
    int64_t rows = whole ? CPU_WORDS : e->rows - first;
    int64_t columns = whole ? CPU_WORDS : e->columns - column;
    __mmask16 mask = cpu_lanes(columns);
    char *y = e->y + (size_t)first * row_bytes + (size_t)column * (half ? 2 : 4);
    __m512 bias = has_bias ? forward_bias(half, mask, e->bias, column) : _mm512_setzero_ps();
    __m512i word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        if (whole || r < rows) /* stores that miss are done one by one: own the lines before */
            __builtin_prefetch(y + (size_t)r * row_bytes, 1, 3);
    CPU_UNROLL
    for (int i = 0; i < CPU_WORDS; i++)
        word[i] =
            whole || i < columns ? _mm512_load_si512(sum + i * sum_row) : _mm512_setzero_si512();
    cpu_turn16(word);
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++, y += row_bytes) {
        if (!whole && r >= rows)
            break;
        __m512 value = _mm512_castsi512_ps(word[r]);
        if (has_bias)
            value = _mm512_add_ps(value, bias);
        if (relu)
            value = _mm512_max_ps(_mm512_setzero_ps(), value);
        if (half)
            _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(value));
        else
            _mm512_mask_storeu_ps(y, mask, value);
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

/* The turned sums [columns, wide * 16], finished. */
static void forward_finish(const struct forward_end *e, const float *sum, int64_t wide)
{
    if (e->dtype == TESS_BF16)
        forward_finish_all(e, true, sum, wide);
    else
        forward_finish_all(e, false, sum, wide);
}

/* Steps over `columns` columns of x or dy. */
static int64_t forward_steps(enum tess_dtype dtype, int64_t columns)
{
    return dtype == TESS_BF16 ? (columns + 1) / 2 : columns;
}

/* Steps of a part: equal parts of no more than `most`, in whole cache lines. */
static int64_t forward_part_steps(int64_t steps, int64_t most)
{
    int64_t parts = (steps + most - 1) / most;
    return ((steps + parts - 1) / parts + CPU_WORDS - 1) / CPU_WORDS * CPU_WORDS;
}

static int64_t forward_wide(int64_t rows)
{
    int64_t wide = (rows + CPU_WORDS - 1) / CPU_WORDS;
    return wide < FORWARD_WIDE ? wide : FORWARD_WIDE;
}

size_t tess__cpu_forward_scratch(const struct tess_op_desc *desc)
{
    int64_t words = forward_wide(desc->rows) * CPU_WORDS;
    int64_t outputs = desc->out < FORWARD_OUTPUTS ? desc->out : FORWARD_OUTPUTS;
    return (size_t)((FORWARD_STEPS + outputs) * words) * sizeof(uint32_t);
}

/* Up to 64 rows and all of end->columns; `x`, `w` and end->y are at the first ones. `next`: the
 * rows of x of this thread's next part, next_rows of them. */
static void forward_rows(const struct tess_op_desc *desc, const char *x, const char *w,
                         const struct forward_end *end, int64_t wide, const char *next,
                         int64_t next_rows, uint32_t *turned)
{
    bool half = desc->dtype == TESS_BF16;
    size_t row_bytes = (size_t)desc->in * tess_dtype_bytes(desc->dtype);
    int64_t steps = forward_steps(desc->dtype, desc->in);
    int64_t part_steps = forward_part_steps(steps, FORWARD_STEPS);
    float *sum = (float *)(turned + part_steps * wide * CPU_WORDS);
    for (int64_t step = 0; step < steps; step += part_steps) {
        bool last = step + part_steps >= steps;
        struct forward f = {.x = turned,
                            .scalar = w + step * 4,
                            .scalar_next = last ? w : w + (step + part_steps) * 4,
                            .scalar_row = row_bytes,
                            .steps = last ? steps - step : part_steps,
                            .outputs = end->columns,
                            .odd_step = last && half && desc->in % 2 != 0,
                            .first = step == 0,
                            .sum = sum,
                            .soon = last ? next : x + (step + part_steps) * 4,
                            .soon_rows = last ? next_rows : end->rows,
                            .soon_row = row_bytes,
                            .soon_bytes = (size_t)part_steps * 4,
                            .y = end->y,
                            .y_rows = last ? end->rows : 0,
                            .y_row = end->row_bytes,
                            .y_bytes = (size_t)end->columns * tess_dtype_bytes(desc->dtype)};
        cpu_turn(x + step * 4, row_bytes, end->rows, wide, f.steps, f.odd_step, turned);
        forward_run[half][wide - 1](&f);
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
    int64_t row = part % call->panels * FORWARD_WIDE * CPU_WORDS;
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
    const int64_t next = row + FORWARD_WIDE * CPU_WORDS; /* the next part, as a rule (team.h) */
    const int64_t next_rows = next < desc->rows ? desc->rows - next : 0;
    forward_rows(desc, call->x + (size_t)(row * desc->in) * element,
                 call->w + (size_t)(output * desc->in) * element, &end, wide,
                 call->x + (size_t)(next * desc->in) * element,
                 tess__cpu_min(next_rows, FORWARD_WIDE * CPU_WORDS), work);
}

void tess__cpu_forward(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                       const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    struct forward_call call = {.desc = desc, .x = x, .w = w, .bias = bias, .y = y};
    int64_t panel = FORWARD_WIDE * CPU_WORDS;
    call.panels = (desc->rows + panel - 1) / panel;
    /* Even blocks in whole tiles, and as many parts for each thread, if they are not too small. */
    int64_t blocks = (desc->out + FORWARD_OUTPUTS - 1) / FORWARD_OUTPUTS;
    const int64_t most = desc->out / FORWARD_LEAST;
    while (call.panels * blocks % kernel->threads != 0 && blocks < most &&
           call.panels * blocks < 4 * kernel->threads)
        blocks++;
    call.outputs = ((desc->out + blocks - 1) / blocks + FORWARD_SUMS - 1) / FORWARD_SUMS;
    call.outputs *= FORWARD_SUMS;
    blocks = (desc->out + call.outputs - 1) / call.outputs;
    tess__cpu_share(kernel, call.panels * blocks, forward_part_run, &call, scratch);
}
