/*
 * y[B, out] = x w^T + bias and dx[B, in] = dy w of a linear layer, with the weights read where they
 * lie. Built for AVX-512 with bf16 dot products (CMakeLists.txt); product_none.c takes its place
 * elsewhere.
 *
 * Both are sums over steps of a scalar, broadcast from where it lies, times vectors from a small
 * packed array that stays in the first-level cache:
 *
 *     forward, for every 64 rows of x                backward_data, for every 64 columns of w
 *       for every part of the columns of w             for every part of the rows of w
 *         pack x^T [step][rows] of the part              pack w [step][columns] of the part
 *         for every tile of rows of w                    for every tile of rows of dy
 *           y^T [out][rows] += w x^T                       dx [rows][columns] += dy w
 *       y = turned y^T + bias, ReLU, rounded           dx rounded
 *
 * So forward, the weights are the scalars and are read once, as they lie; a library would bring
 * them into another layout first. Weights change every step, so that nothing could be kept between
 * calls. Going back they are packed by copies of whole vectors, while the part before is computed.
 *
 * A step is one column of x or dy in f32 and a pair of columns in bf16, 32 bits either way. Each
 * element of the result is one chain of fused multiply-adds in the order of the columns, whatever
 * the number of rows.
 */
#include "cpu/cpu.h"

#include "cpu/pack.h"

#include <string.h>

#define PRODUCT_WIDE  4 /* vectors of rows at a time */
#define PRODUCT_WORDS (PRODUCT_WIDE * CPU_WORDS)
#define PRODUCT_SUMS  24  /* registers of sums: weights of a tile at one step times vectors */
#define PRODUCT_STEPS 128 /* forward: 32 KiB of x^T at 64 rows */
#define PRODUCT_DEEP  32  /* backward: steps in a part: twice 16 KiB of weights */
#define PRODUCT_ROWS  256 /* backward: rows at a time: 64 KiB of sums */

/* Weights to pack: some columns of some rows of w. */
struct product_piece {
    const char *w;                /* NULL: none */
    int64_t steps, columns, wide; /* columns are `wide` vectors */
    bool odd_step;                /* the last step has one row only (bf16, odd `out`) */
    ptrdiff_t ahead;              /* bytes to the piece after, which is asked for meanwhile */
};

/*
 * Part of a product: sum [outputs, wide * 16] += scalars [outputs, steps] times x. Forward, an
 * output is a column of y; backward, a row of dx.
 */
struct product {
    const uint32_t *x;       /* packed [steps, wide * 16] */
    const char *scalar;      /* the first output's, at the first step */
    const char *scalar_next; /* the same of the next part */
    size_t scalar_row;       /* bytes from output to output */
    int64_t steps, outputs;
    bool odd_step; /* the last step has one column only */
    bool first;    /* sums begin here */
    float *sum;
    /* Work for later, done in equal shares before each tile. */
    struct product_piece next; /* to be packed */
    uint32_t *next_packed;
    size_t w_row;     /* bytes from row to row of w */
    const char *soon; /* to be asked for: rows of x, or where dx will be written */
    bool soon_write;
    int64_t soon_rows;
    size_t soon_row, soon_bytes; /* from row to row, and of a row */
};

/* Transpose 16 x 16 words: four rounds of exchanging words, pairs, quarters and halves. */
CPU_INLINE void product_turn16(__m512i *row)
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

/* 16 rows and 16 steps of product_turn(). */
CPU_INLINE void product_turn_block(const char *from, size_t row_bytes, int64_t wide,
                                   uint32_t *turned)
{
    __m512i word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        word[r] = _mm512_loadu_si512(from + (size_t)r * row_bytes);
    product_turn16(word);
    CPU_UNROLL
    for (int s = 0; s < CPU_WORDS; s++)
        _mm512_store_si512(turned + s * wide * CPU_WORDS, word[s]);
}

/* The same at the edges: up to 16 rows and 16 steps, the last of them perhaps odd. */
static void product_turn_edge(const char *from, size_t row_bytes, int64_t rows, int64_t wide,
                              int64_t steps, bool odd_step, uint32_t *turned)
{
    __m512i word[CPU_WORDS];
    int64_t whole = steps - odd_step;
    for (int r = 0; r < CPU_WORDS; r++) {
        const char *row = from + (size_t)r * row_bytes;
        word[r] =
            r < rows ? _mm512_maskz_loadu_epi32(cpu_lanes(whole), row) : _mm512_setzero_si512();
        if (odd_step && r < rows) {
            uint16_t last;
            memcpy(&last, row + whole * 4, 2);
            word[r] = _mm512_mask_set1_epi32(word[r], (__mmask16)(1u << whole), last);
        }
    }
    product_turn16(word);
    for (int s = 0; s < CPU_WORDS && s < steps; s++)
        _mm512_store_si512(turned + s * wide * CPU_WORDS, word[s]);
}

/*
 * Turn `rows` rows of `steps` words each, `row_bytes` apart, into [steps, wide * 16]. Rows past the
 * last one are zeros; so is the upper half of an odd last step.
 */
static void product_turn(const char *from, size_t row_bytes, int64_t rows, int64_t wide,
                         int64_t steps, bool odd_step, uint32_t *turned)
{
    int64_t whole = steps - odd_step;
    for (int64_t first = 0; first < wide * CPU_WORDS; first += CPU_WORDS) {
        const char *row = from + (size_t)first * row_bytes;
        uint32_t *target = turned + first;
        int64_t step = 0;
        for (; first + CPU_WORDS <= rows && step + CPU_WORDS <= whole; step += CPU_WORDS)
            product_turn_block(row + step * 4, row_bytes, wide, target + step * wide * CPU_WORDS);
        for (; step < steps; step += CPU_WORDS) {
            int64_t left = steps - step < CPU_WORDS ? steps - step : CPU_WORDS;
            product_turn_edge(row + step * 4, row_bytes, rows - first, wide, left,
                              odd_step && step + left == steps, target + step * wide * CPU_WORDS);
        }
    }
}

/* One step of a tile. */
CPU_INLINE void product_step(__m512 *sum, bool half, int tall, int wide, const uint32_t *x,
                             const uint32_t *weight)
{
    __m512i rows[PRODUCT_WIDE];
    CPU_UNROLL
    for (int c = 0; c < wide; c++) {
        rows[c] = _mm512_load_si512(x + c * CPU_WORDS);
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

/* Steps [begin, end) of a piece of w: [steps, wide * 16] words. */
CPU_INLINE void product_pack_steps(const struct product_piece *piece, size_t w_row, bool half,
                                   int64_t columns, int64_t begin, int64_t end, uint32_t *packed)
{
    const char *row = piece->w + (size_t)(half ? 2 * begin : begin) * w_row;
    int64_t words = (columns + CPU_WORDS - 1) / CPU_WORDS * CPU_WORDS;
    packed += begin * words;
    for (int64_t step = begin; step < end; step++, packed += words) {
        for (int64_t at = 0; at < columns * (half ? 2 : 4); at += 64) {
            _mm_prefetch(row + piece->ahead + at, _MM_HINT_T0);
            if (half)
                _mm_prefetch(row + piece->ahead + (ptrdiff_t)w_row + at, _MM_HINT_T0);
        }
        if (!half) {
            cpu_pack_f32((const float *)row, columns, packed);
            row += w_row;
            continue;
        }
        bool pair = !(piece->odd_step && step + 1 == piece->steps);
        cpu_pack_bf16((const uint16_t *)row, pair ? (const uint16_t *)(row + w_row) : NULL, columns,
                      packed);
        row += 2 * w_row;
    }
}

/* A whole panel's width is known to the compiler. */
CPU_INLINE void product_pack(const struct product_piece *piece, size_t w_row, bool half,
                             int64_t begin, int64_t end, uint32_t *packed)
{
    if (piece->columns == PRODUCT_WORDS)
        product_pack_steps(piece, w_row, half, PRODUCT_WORDS, begin, end, packed);
    else
        product_pack_steps(piece, w_row, half, piece->columns, begin, end, packed);
}

/* This tile's share of the work for later. */
CPU_INLINE void product_prepare(const struct product *p, bool half, int64_t first, int64_t tall)
{
    if (p->next.w)
        product_pack(&p->next, p->w_row, half, p->next.steps * first / p->outputs,
                     p->next.steps * (first + tall) / p->outputs, p->next_packed);
    int64_t row = p->soon_rows * first / p->outputs;
    for (int64_t end = p->soon_rows * (first + tall) / p->outputs; row < end; row++) {
        const char *from = p->soon + (size_t)row * p->soon_row;
        for (size_t at = 0; at < p->soon_bytes; at += 64) {
            if (p->soon_write)
                __builtin_prefetch(from + at, 1, 3);
            else
                _mm_prefetch(from + at, _MM_HINT_T1);
        }
    }
}

/* The words of `tall` outputs at one step. */
CPU_INLINE void product_words(const char *from, size_t row_bytes, int tall, uint32_t *word)
{
    CPU_UNROLL
    for (int r = 0; r < tall; r++)
        memcpy(&word[r], from + (size_t)r * row_bytes, 4);
}

/* Outputs [first, first + tall). Scalars are asked for one tile ahead, a cache line at a time. */
CPU_INLINE void product_tile(const struct product *p, bool half, int tall, int wide, int64_t first)
{
    __m512 sum[PRODUCT_SUMS];
    float *target = p->sum + first * wide * CPU_WORDS;
    product_prepare(p, half, first, tall);
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        sum[i] = p->first ? _mm512_setzero_ps() : _mm512_load_ps(target + i * CPU_WORDS);
    const uint32_t *x = p->x;
    const char *from = p->scalar + (size_t)first * p->scalar_row;
    const char *last = from + (p->steps - 1) * 4;
    bool end_tile = first + tall >= p->outputs;
    const char *ahead = end_tile ? p->scalar_next : from + (size_t)tall * p->scalar_row;
    int64_t whole = p->steps - p->odd_step;
    uint32_t word[PRODUCT_SUMS];
    for (int64_t step = 0; step < whole; from += CPU_WORDS * 4, ahead += CPU_WORDS * 4) {
        CPU_UNROLL
        for (int r = 0; r < tall; r++)
            _mm_prefetch(ahead + (size_t)r * p->scalar_row, _MM_HINT_T0);
        int64_t end = step + CPU_WORDS < whole ? step + CPU_WORDS : whole;
        for (const char *at = from; step < end; step++, at += 4, x += wide * CPU_WORDS) {
            product_words(at, p->scalar_row, tall, word);
            product_step(sum, half, tall, wide, x, word);
        }
    }
    if (p->odd_step) {
        for (int r = 0; r < tall; r++) {
            uint16_t one;
            memcpy(&one, last + (size_t)r * p->scalar_row, 2);
            word[r] = one;
        }
        product_step(sum, half, tall, wide, x, word);
    }
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        _mm512_store_ps(target + i * CPU_WORDS, sum[i]);
}

CPU_INLINE void product_part(const struct product *p, bool half, int wide)
{
    int64_t first = 0;
    /* Rows of scalars may lie 4 KiB apart, in one set of the first-level cache: no more than 12. */
    const int tall = wide == 1 ? 8 : PRODUCT_SUMS / wide;
    /* Few sums wait for one another: better twice 4 outputs than 6 and 2. */
    for (; first + tall <= p->outputs && !(wide == 4 && p->outputs - first == 8); first += tall)
        product_tile(p, half, tall, wide, first);
    for (; first + 4 <= p->outputs; first += 4)
        product_tile(p, half, 4, wide, first);
    for (; first + 2 <= p->outputs; first += 2)
        product_tile(p, half, 2, wide, first);
    for (; first < p->outputs; first++)
        product_tile(p, half, 1, wide, first);
}

/* One function per number of vectors. */
#define PRODUCT_FUNCTION(name, half, wide)                                                         \
    static void name(const struct product *p)                                                      \
    {                                                                                              \
        product_part(p, half, wide);                                                               \
    }
PRODUCT_FUNCTION(product_f32_1, false, 1)
PRODUCT_FUNCTION(product_f32_2, false, 2)
PRODUCT_FUNCTION(product_f32_3, false, 3)
PRODUCT_FUNCTION(product_f32_4, false, 4)
PRODUCT_FUNCTION(product_bf16_1, true, 1)
PRODUCT_FUNCTION(product_bf16_2, true, 2)
PRODUCT_FUNCTION(product_bf16_3, true, 3)
PRODUCT_FUNCTION(product_bf16_4, true, 4)

static void (*const product_run[2][PRODUCT_WIDE])(const struct product *p) = {
    {product_f32_1, product_f32_2, product_f32_3, product_f32_4},
    {product_bf16_1, product_bf16_2, product_bf16_3, product_bf16_4},
};

/* Where turned sums go: some rows of y. */
struct product_end {
    enum tess_dtype dtype;
    bool relu;
    const void *bias; /* or NULL */
    char *y;          /* the first row and column */
    size_t row_bytes;
    int64_t rows, columns;
};

/* The first 16 elements of `bias` as f32. */
CPU_INLINE __m512 product_bias(bool half, __mmask16 mask, const void *bias, int64_t column)
{
    if (!half)
        return _mm512_maskz_loadu_ps(mask, (const float *)bias + column);
    __m256i low = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)bias + column);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16));
}

/* Up to 16 rows and 16 columns of turned sums: bias, ReLU, rounding. A NaN passes the ReLU. */
CPU_INLINE void product_finish_block(const struct product_end *e, bool half, bool whole,
                                     const float *sum, int64_t sum_row, int64_t first,
                                     int64_t column)
{
    size_t row_bytes = e->row_bytes; /* copies: what is stored may not change them */
    bool relu = e->relu, has_bias = e->bias != NULL;
    int64_t rows = whole ? CPU_WORDS : e->rows - first;
    int64_t columns = whole ? CPU_WORDS : e->columns - column;
    __mmask16 mask = cpu_lanes(columns);
    char *y = e->y + (size_t)first * row_bytes + (size_t)column * (half ? 2 : 4);
    __m512 bias = has_bias ? product_bias(half, mask, e->bias, column) : _mm512_setzero_ps();
    __m512i word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        if (whole || r < rows) /* stores that miss are done one by one: own the lines before */
            __builtin_prefetch(y + (size_t)r * row_bytes, 1, 3);
    CPU_UNROLL
    for (int i = 0; i < CPU_WORDS; i++)
        word[i] =
            whole || i < columns ? _mm512_load_si512(sum + i * sum_row) : _mm512_setzero_si512();
    product_turn16(word);
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

CPU_INLINE void product_finish_all(const struct product_end *e, bool half, const float *sum,
                                   int64_t wide)
{
    int64_t sum_row = wide * CPU_WORDS;
    for (int64_t first = 0; first < e->rows; first += CPU_WORDS) {
        const float *from = sum + first;
        int64_t column = 0;
        if (first + CPU_WORDS <= e->rows)
            for (; column + CPU_WORDS <= e->columns; column += CPU_WORDS)
                product_finish_block(e, half, true, from + column * sum_row, sum_row, first,
                                     column);
        for (; column < e->columns; column += CPU_WORDS)
            product_finish_block(e, half, false, from + column * sum_row, sum_row, first, column);
    }
}

/* The turned sums [columns, wide * 16], finished. */
static void product_finish(const struct product_end *e, const float *sum, int64_t wide)
{
    if (e->dtype == TESS_BF16)
        product_finish_all(e, true, sum, wide);
    else
        product_finish_all(e, false, sum, wide);
}

/* Steps over `columns` columns of x or dy. */
static int64_t product_steps(enum tess_dtype dtype, int64_t columns)
{
    return dtype == TESS_BF16 ? (columns + 1) / 2 : columns;
}

/* Steps of a part: equal parts of no more than `most`, in whole cache lines. */
static int64_t product_part_steps(int64_t steps, int64_t most)
{
    int64_t parts = (steps + most - 1) / most;
    return ((steps + parts - 1) / parts + CPU_WORDS - 1) / CPU_WORDS * CPU_WORDS;
}

static int64_t product_wide(int64_t rows)
{
    int64_t wide = (rows + CPU_WORDS - 1) / CPU_WORDS;
    return wide < PRODUCT_WIDE ? wide : PRODUCT_WIDE;
}

size_t tess__cpu_product_scratch(const struct tess_op_desc *desc)
{
    int64_t words = product_wide(desc->rows) * CPU_WORDS;
    int64_t rows = desc->rows < PRODUCT_ROWS ? desc->rows : PRODUCT_ROWS;
    int64_t forward = (PRODUCT_STEPS + desc->out) * words;
    int64_t backward = (2 * PRODUCT_DEEP + rows) * PRODUCT_WORDS;
    return (size_t)(forward > backward ? forward : backward) * sizeof(uint32_t);
}

/* Up to 64 rows; `x` and end->y are the first one's. */
static void product_forward(const struct tess_op_desc *desc, const char *x, const char *w,
                            const struct product_end *end, int64_t wide, uint32_t *turned)
{
    bool half = desc->dtype == TESS_BF16;
    size_t row_bytes = (size_t)desc->in * tess_dtype_bytes(desc->dtype);
    int64_t steps = product_steps(desc->dtype, desc->in);
    int64_t part_steps = product_part_steps(steps, PRODUCT_STEPS);
    float *sum = (float *)(turned + part_steps * wide * CPU_WORDS);
    for (int64_t step = 0; step < steps; step += part_steps) {
        bool last = step + part_steps >= steps;
        struct product p = {.x = turned,
                            .scalar = w + step * 4,
                            .scalar_next = last ? w : w + (step + part_steps) * 4,
                            .scalar_row = row_bytes,
                            .steps = last ? steps - step : part_steps,
                            .outputs = desc->out,
                            .odd_step = last && half && desc->in % 2 != 0,
                            .first = step == 0,
                            .sum = sum,
                            .soon = x + (step + part_steps) * 4,
                            .soon_rows = last ? 0 : end->rows,
                            .soon_row = row_bytes,
                            .soon_bytes = (size_t)part_steps * 4};
        product_turn(x + step * 4, row_bytes, end->rows, wide, p.steps, p.odd_step, turned);
        product_run[half][wide - 1](&p);
    }
    product_finish(end, sum, wide);
}

void tess__cpu_forward(const struct tess_op_desc *desc, const void *x, const void *w,
                       const void *bias, void *y, void *scratch)
{
    size_t element = tess_dtype_bytes(desc->dtype);
    for (int64_t row = 0; row < desc->rows; row += PRODUCT_WIDE * CPU_WORDS) {
        int64_t rows = desc->rows - row, wide = product_wide(rows);
        struct product_end end = {.dtype = desc->dtype,
                                  .relu = desc->relu,
                                  .bias = bias,
                                  .y = (char *)y + (size_t)(row * desc->out) * element,
                                  .row_bytes = (size_t)desc->out * element,
                                  .rows = rows < wide * CPU_WORDS ? rows : wide * CPU_WORDS,
                                  .columns = desc->out};
        product_forward(desc, (const char *)x + (size_t)(row * desc->in) * element, w, &end, wide,
                        scratch);
    }
}

/* Rows [0, rows) of sums [rows, wide * 16] to columns of dx. */
static void product_round(bool half, int64_t rows, int64_t columns, int64_t wide, const float *sum,
                          char *dx, size_t row_bytes)
{
    for (int64_t row = 0; row < rows; row++, dx += row_bytes, sum += wide * CPU_WORDS) {
        for (int64_t c = 0; c < columns; c += CPU_WORDS) {
            __mmask16 mask = cpu_lanes(columns - c);
            __m512 value = _mm512_load_ps(sum + c);
            if (half)
                _mm256_mask_storeu_epi16((uint16_t *)dx + c, mask,
                                         (__m256i)_mm512_cvtneps_pbh(value));
            else
                _mm512_mask_storeu_ps((float *)dx + c, mask, value);
        }
    }
}

/* The `index`-th piece of w: parts of a panel of 64 columns, then the next panel. */
static struct product_piece product_piece_get(const struct tess_op_desc *desc, const char *w,
                                              int64_t index)
{
    size_t element = tess_dtype_bytes(desc->dtype), row_bytes = (size_t)desc->in * element;
    int64_t steps = product_steps(desc->dtype, desc->out);
    int64_t part_steps = product_part_steps(steps, PRODUCT_DEEP);
    int64_t parts = (steps + part_steps - 1) / part_steps;
    int64_t column = index / parts * PRODUCT_WORDS, step = index % parts * part_steps;
    int64_t row = desc->dtype == TESS_BF16 ? 2 * step : step;
    if (column >= desc->in)
        return (struct product_piece){0};
    bool last = step + part_steps >= steps;
    int64_t left = desc->in - column;
    return (struct product_piece){
        .w = w + (size_t)row * row_bytes + (size_t)column * element,
        .steps = last ? steps - step : part_steps,
        .columns = left < PRODUCT_WORDS ? left : PRODUCT_WORDS,
        .wide = product_wide(left),
        .odd_step = last && desc->dtype == TESS_BF16 && desc->out % 2 != 0,
    };
}

/* Up to PRODUCT_ROWS rows of dx. */
static void product_backward(const struct tess_op_desc *desc, const char *dy, int64_t rows,
                             const char *w, char *dx, uint32_t *packed)
{
    bool half = desc->dtype == TESS_BF16;
    size_t element = tess_dtype_bytes(desc->dtype), row_bytes = (size_t)desc->in * element;
    float *sum = (float *)(packed + 2 * PRODUCT_DEEP * PRODUCT_WORDS);
    int64_t step = 0, column = 0, steps = product_steps(desc->dtype, desc->out);
    struct product_piece piece = product_piece_get(desc, w, 0);
    product_pack(&piece, row_bytes, half, 0, piece.steps, packed);
    for (int64_t index = 0; piece.w; index++) {
        struct product_piece next = product_piece_get(desc, w, index + 1);
        struct product_piece soon = product_piece_get(desc, w, index + 2);
        next.ahead = soon.w ? soon.w - next.w : 0;
        bool last = step + piece.steps == steps;
        uint32_t *buffer[2] = {packed, packed + PRODUCT_DEEP * PRODUCT_WORDS};
        struct product p = {.x = buffer[index % 2],
                            .scalar = dy + step * 4,
                            .scalar_next = last ? dy : dy + (step + piece.steps) * 4,
                            .scalar_row = (size_t)desc->out * element,
                            .steps = piece.steps,
                            .outputs = rows,
                            .odd_step = piece.odd_step,
                            .first = step == 0,
                            .sum = sum,
                            .next = next,
                            .next_packed = buffer[(index + 1) % 2],
                            .w_row = row_bytes,
                            .soon = dx + (size_t)column * element,
                            .soon_write = true,
                            .soon_rows = last ? rows : 0,
                            .soon_row = row_bytes,
                            .soon_bytes = (size_t)piece.columns * element};
        product_run[half][piece.wide - 1](&p);
        step = last ? 0 : step + piece.steps;
        if (last) {
            product_round(half, rows, piece.columns, piece.wide, sum, dx + (size_t)column * element,
                          row_bytes);
            column += PRODUCT_WORDS;
        }
        piece = next;
    }
}

void tess__cpu_backward_data(const struct tess_op_desc *desc, const void *dy, const void *w,
                             void *dx, void *scratch)
{
    size_t element = tess_dtype_bytes(desc->dtype);
    for (int64_t row = 0; row < desc->rows; row += PRODUCT_ROWS) {
        int64_t rows = desc->rows - row < PRODUCT_ROWS ? desc->rows - row : PRODUCT_ROWS;
        product_backward(desc, (const char *)dy + (size_t)(row * desc->out) * element, rows, w,
                         (char *)dx + (size_t)(row * desc->in) * element, scratch);
    }
}
