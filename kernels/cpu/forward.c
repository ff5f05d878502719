/*
 * y[B, out] = x w^T + bias of a linear layer with the weights read where they lie. Built for
 * AVX-512 with bf16 dot products (CMakeLists.txt); forward_none.c takes its place elsewhere.
 *
 * A library brings w[out, in] into another layout first, because its vectors run along `out`. Here
 * they run along the batch: x, which is small, is turned into x^T, and each weight is one scalar
 * that meets up to 64 rows. Weights change every step, so that nothing could be kept between calls
 * anyway.
 *
 *     for every 64 rows of x
 *       x^T [step][rows]
 *       for every block of FORWARD_STEPS steps of x^T, which stays in the first-level cache
 *         for every tile of rows of w            y^T [out][rows] += w x^T, 24 registers of sums
 *       y = turned y^T + bias, ReLU, rounded once
 *
 * A step is one column in f32 and a pair of columns in bf16, 32 bits per row either way. Each
 * element of y is one chain of fused multiply-adds in the order of the columns, whatever the number
 * of rows.
 */
#include "cpu/cpu.h"

#include "cpu/unroll.h"

#include <immintrin.h>
#include <string.h>

#define FORWARD_LANES 16
#define FORWARD_WIDE  4   /* vectors of rows at a time */
#define FORWARD_SUMS  24  /* registers of sums: rows of w in a tile times vectors */
#define FORWARD_STEPS 128 /* 32 KiB of x^T at 64 rows */

/* Part of a product: some rows of x and some steps, all of w. */
struct forward {
    const uint32_t *x; /* x^T [steps, wide * 16], from the first step of this part on */
    const char *w;     /* row 0, at the first step */
    size_t w_row;      /* bytes from row to row */
    int64_t steps, out;
    bool odd_step; /* the last step has one column only (bf16, odd `in`) */
    bool first;    /* sums begin here */
    float *sum;    /* y^T [out, wide * 16] */
};

/* Transpose 16 x 16 words: four rounds of exchanging words, pairs, quarters and halves. */
CPU_INLINE void forward_turn(__m512i *row)
{
    __m512i a[16], b[16];
    CPU_UNROLL
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
        a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
        a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
    }
    CPU_UNROLL
    for (int i = 0; i < 8; i++) {
        row[i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88);
        row[8 + i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd);
    }
}

CPU_INLINE __mmask16 forward_mask(int64_t left)
{
    return left >= FORWARD_LANES ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
}

/*
 * x^T of `rows` rows: columns of 32 bits. A row past the last one is zeros; so is the upper half of
 * the last step when `in` is odd in bf16.
 */
static void forward_turn_x(const struct tess_op_desc *desc, const char *x, int64_t rows,
                           int64_t wide, uint32_t *turned)
{
    size_t element = tess_dtype_bytes(desc->dtype), row_bytes = (size_t)desc->in * element;
    int64_t whole = (int64_t)(row_bytes / 4), steps = (int64_t)((row_bytes + 3) / 4);
    for (int64_t first = 0; first < wide * FORWARD_LANES; first += FORWARD_LANES) {
        for (int64_t step = 0; step < steps; step += FORWARD_LANES) {
            __m512i word[FORWARD_LANES];
            __mmask16 mask = forward_mask(whole - step);
            for (int r = 0; r < FORWARD_LANES; r++) {
                const char *from = x + (size_t)(first + r) * row_bytes;
                word[r] = first + r < rows ? _mm512_maskz_loadu_epi32(mask, from + step * 4)
                                           : _mm512_setzero_si512();
                if (first + r < rows && whole < steps && steps - step <= FORWARD_LANES) {
                    uint16_t last;
                    memcpy(&last, from + row_bytes - 2, 2);
                    __mmask16 place = (__mmask16)(1u << (whole - step));
                    word[r] = _mm512_mask_set1_epi32(word[r], place, last);
                }
            }
            forward_turn(word);
            for (int s = 0; s < FORWARD_LANES && step + s < steps; s++)
                _mm512_store_si512(turned + (step + s) * wide * FORWARD_LANES + first, word[s]);
        }
    }
}

/* One step of a tile. */
CPU_INLINE void forward_step(__m512 *sum, bool half, int tall, int wide, const uint32_t *x,
                             const uint32_t *weight)
{
    __m512i rows[FORWARD_WIDE];
    CPU_UNROLL
    for (int c = 0; c < wide; c++) {
        rows[c] = _mm512_load_si512(x + c * FORWARD_LANES);
        CPU_IN_REGISTER(rows[c]);
    }
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        __m512i scalar = _mm512_set1_epi32((int)weight[r]);
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r * wide + c] =
                half ? _mm512_dpbf16_ps(sum[r * wide + c], (__m512bh)rows[c], (__m512bh)scalar)
                     : _mm512_fmadd_ps(_mm512_castsi512_ps(rows[c]), _mm512_castsi512_ps(scalar),
                                       sum[r * wide + c]);
    }
}

/* The words of `tall` rows of w at one step. */
CPU_INLINE void forward_weight(const struct forward *f, const char *w, int tall, uint32_t *weight)
{
    CPU_UNROLL
    for (int r = 0; r < tall; r++)
        memcpy(&weight[r], w + (size_t)r * f->w_row, 4);
}

/* Rows [first, first + tall) of y^T. The next tile's weights are asked for one tile ahead. */
CPU_INLINE void forward_tile(const struct forward *f, bool half, int tall, int wide, int64_t first)
{
    __m512 sum[FORWARD_SUMS];
    float *target = f->sum + first * wide * FORWARD_LANES;
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r * wide + c] = f->first ? _mm512_setzero_ps()
                                         : _mm512_load_ps(target + (r * wide + c) * FORWARD_LANES);
    }
    const char *w = f->w + (size_t)first * f->w_row;
    const uint32_t *x = f->x;
    size_t ahead = (size_t)tall * f->w_row;
    int64_t whole = f->steps - f->odd_step;
    uint32_t weight[FORWARD_SUMS];
    for (int64_t step = 0; step < whole; w += FORWARD_LANES * 4) {
        CPU_UNROLL
        for (int r = 0; r < tall; r++)
            _mm_prefetch(w + ahead + (size_t)r * f->w_row, _MM_HINT_T0);
        int64_t end = step + FORWARD_LANES < whole ? step + FORWARD_LANES : whole;
        for (const char *at = w; step < end; step++, at += 4, x += wide * FORWARD_LANES) {
            forward_weight(f, at, tall, weight);
            forward_step(sum, half, tall, wide, x, weight);
        }
    }
    if (f->odd_step) {
        const char *last = f->w + (size_t)first * f->w_row + whole * 4;
        for (int r = 0; r < tall; r++) {
            uint16_t one;
            memcpy(&one, last + (size_t)r * f->w_row, 2);
            weight[r] = one;
        }
        forward_step(sum, half, tall, wide, x, weight);
    }
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            _mm512_store_ps(target + (r * wide + c) * FORWARD_LANES, sum[r * wide + c]);
    }
}

CPU_INLINE void forward_part(const struct forward *f, bool half, int wide)
{
    int64_t first = 0;
    /* Rows of w may lie 4 KiB apart, in one set of the first-level cache: no more than 12 of them.
     */
    const int tall = wide == 1 ? 8 : FORWARD_SUMS / wide;
    for (; first + tall <= f->out; first += tall)
        forward_tile(f, half, tall, wide, first);
    for (; first + 4 <= f->out; first += 4)
        forward_tile(f, half, 4, wide, first);
    for (; first < f->out; first++)
        forward_tile(f, half, 1, wide, first);
}

/* One function per number of vectors. */
#define FORWARD_FUNCTION(name, half, wide)                                                         \
    static void name(const struct forward *f)                                                      \
    {                                                                                              \
        forward_part(f, half, wide);                                                               \
    }
FORWARD_FUNCTION(forward_f32_1, false, 1)
FORWARD_FUNCTION(forward_f32_2, false, 2)
FORWARD_FUNCTION(forward_f32_3, false, 3)
FORWARD_FUNCTION(forward_f32_4, false, 4)
FORWARD_FUNCTION(forward_bf16_1, true, 1)
FORWARD_FUNCTION(forward_bf16_2, true, 2)
FORWARD_FUNCTION(forward_bf16_3, true, 3)
FORWARD_FUNCTION(forward_bf16_4, true, 4)

static void (*const forward_run[2][FORWARD_WIDE])(const struct forward *f) = {
    {forward_f32_1, forward_f32_2, forward_f32_3, forward_f32_4},
    {forward_bf16_1, forward_bf16_2, forward_bf16_3, forward_bf16_4},
};

/* 16 columns of one row of y: bias, ReLU, rounding. A NaN passes through the ReLU. */
CPU_INLINE void forward_store(const struct tess_op_desc *desc, __m512 value, __mmask16 mask,
                              const void *bias, int64_t column, char *y)
{
    bool half = desc->dtype == TESS_BF16;
    if (bias && half) {
        __m256i low = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)bias + column);
        __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
        value = _mm512_add_ps(value, _mm512_castsi512_ps(bits));
    } else if (bias) {
        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, (const float *)bias + column));
    }
    if (desc->relu)
        value = _mm512_max_ps(_mm512_setzero_ps(), value);
    if (half)
        _mm256_mask_storeu_epi16((uint16_t *)y + column, mask, (__m256i)_mm512_cvtneps_pbh(value));
    else
        _mm512_mask_storeu_ps((float *)y + column, mask, value);
}

/* y [rows, out] of y^T. */
static void forward_finish(const struct tess_op_desc *desc, const float *sum, int64_t rows,
                           int64_t wide, const void *bias, char *y)
{
    size_t row_bytes = (size_t)desc->out * tess_dtype_bytes(desc->dtype);
    for (int64_t column = 0; column < desc->out; column += FORWARD_LANES) {
        __mmask16 mask = forward_mask(desc->out - column);
        for (int64_t first = 0; first < rows; first += FORWARD_LANES) {
            __m512i word[FORWARD_LANES];
            for (int i = 0; i < FORWARD_LANES; i++)
                word[i] = column + i < desc->out
                              ? _mm512_load_si512(sum + (column + i) * wide * FORWARD_LANES + first)
                              : _mm512_setzero_si512();
            forward_turn(word);
            for (int r = 0; r < FORWARD_LANES && first + r < rows; r++)
                forward_store(desc, _mm512_castsi512_ps(word[r]), mask, bias, column,
                              y + (size_t)(first + r) * row_bytes);
        }
    }
}

static int64_t forward_steps(const struct tess_op_desc *desc)
{
    return desc->dtype == TESS_BF16 ? (desc->in + 1) / 2 : desc->in;
}

static int64_t forward_wide(int64_t rows)
{
    int64_t wide = (rows + FORWARD_LANES - 1) / FORWARD_LANES;
    return wide < FORWARD_WIDE ? wide : FORWARD_WIDE;
}

size_t tess__cpu_forward_scratch(const struct tess_op_desc *desc)
{
    int64_t words = forward_wide(desc->rows) * FORWARD_LANES;
    return (size_t)((forward_steps(desc) + desc->out) * words) * sizeof(uint32_t);
}

void tess__cpu_forward(const struct tess_op_desc *desc, const void *x, const void *w,
                       const void *bias, void *y, void *scratch)
{
    bool half = desc->dtype == TESS_BF16;
    size_t element = tess_dtype_bytes(desc->dtype);
    int64_t steps = forward_steps(desc);
    int64_t parts = (steps + FORWARD_STEPS - 1) / FORWARD_STEPS;
    int64_t part_steps = (steps + parts - 1) / parts;
    for (int64_t row = 0; row < desc->rows; row += FORWARD_WIDE * FORWARD_LANES) {
        int64_t rows = desc->rows - row, wide = forward_wide(rows);
        rows = rows < wide * FORWARD_LANES ? rows : wide * FORWARD_LANES;
        uint32_t *turned = scratch;
        float *sum = (float *)(turned + steps * wide * FORWARD_LANES);
        forward_turn_x(desc, (const char *)x + (size_t)(row * desc->in) * element, rows, wide,
                       turned);
        for (int64_t step = 0; step < steps; step += part_steps) {
            bool last = step + part_steps >= steps;
            struct forward f = {.x = turned + step * wide * FORWARD_LANES,
                                .w = (const char *)w + step * 4,
                                .w_row = (size_t)desc->in * element,
                                .steps = last ? steps - step : part_steps,
                                .out = desc->out,
                                .odd_step = last && half && desc->in % 2 != 0,
                                .first = step == 0,
                                .sum = sum};
            forward_run[half][wide - 1](&f);
        }
        forward_finish(desc, sum, rows, wide, bias,
                       (char *)y + (size_t)(row * desc->out) * element);
    }
}
