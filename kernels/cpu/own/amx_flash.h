/*
 * What amx_flash.c and amx_flash_grad.c share: attention in bf16 on tiles of AMX (amx.h). Scores
 * are kept turned, a row for each key and 16 queries in a vector: masks, maxima and sums of a query
 * are then a lane, and neighbouring rows are the pairs that the next product wants.
 */
#ifndef KERNELS_CPU_OWN_AMX_FLASH_H
#define KERNELS_CPU_OWN_AMX_FLASH_H

#include "cpu/own/amx_room.h"
#include "cpu/own/flash_room.h"

/*
 * sum[i, j] += sum over k of a[i, k] b[k, j], or = it; everything in whole tiles. Steps are in
 * bytes: from row to row within a tile, to the tile below, to the right, and along k.
 */
struct flash_product {
    const void *a, *b;
    float *sum;
    size_t a_row, a_down, a_along;
    size_t b_row, b_right, b_along;
    size_t sum_row, sum_down, sum_right;
    int64_t rows, columns, along; /* tiles */
    bool begin;
};

/* Two by two tiles of sums, or one where there is no other. */
CPU_INLINE void flash_product_block(const struct flash_product *p, bool tall, bool wide,
                                    const char *a, const char *b, char *sum)
{
    const size_t down = p->sum_down, right = p->sum_right;
    if (p->begin) {
        CPU_AMX_ZERO(0);
        CPU_AMX_ZERO(1);
        CPU_AMX_ZERO(2);
        CPU_AMX_ZERO(3);
    } else {
        CPU_AMX_LOAD(0, sum, p->sum_row);
        if (wide)
            CPU_AMX_LOAD(1, sum + right, p->sum_row);
        if (tall)
            CPU_AMX_LOAD(2, sum + down, p->sum_row);
        if (tall && wide)
            CPU_AMX_LOAD(3, sum + down + right, p->sum_row);
    }
    for (int64_t k = 0; k < p->along; k++, a += p->a_along, b += p->b_along) {
        CPU_AMX_LOAD(4, a, p->a_row);
        CPU_AMX_LOAD(6, b, p->b_row);
        CPU_AMX_PRODUCT(0, 4, 6);
        if (wide) {
            CPU_AMX_LOAD(7, b + p->b_right, p->b_row);
            CPU_AMX_PRODUCT(1, 4, 7);
        }
        if (tall) {
            CPU_AMX_LOAD(5, a + p->a_down, p->a_row);
            CPU_AMX_PRODUCT(2, 5, 6);
        }
        if (tall && wide)
            CPU_AMX_PRODUCT(3, 5, 7);
    }
    CPU_AMX_STORE(0, sum, p->sum_row);
    if (wide)
        CPU_AMX_STORE(1, sum + right, p->sum_row);
    if (tall)
        CPU_AMX_STORE(2, sum + down, p->sum_row);
    if (tall && wide)
        CPU_AMX_STORE(3, sum + down + right, p->sum_row);
}

static inline void flash_product(const struct flash_product *p)
{
    for (int64_t r = 0; r < p->rows; r += 2) {
        const char *a = (const char *)p->a + (size_t)r * p->a_down, *b = p->b;
        char *sum = (char *)p->sum + (size_t)r * p->sum_down;
        const bool tall = r + 1 < p->rows;
        for (int64_t c = 0; c < p->columns; c += 2, b += 2 * p->b_right, sum += 2 * p->sum_right) {
            const bool wide = c + 1 < p->columns;
            if (tall && wide)
                flash_product_block(p, true, true, a, b, sum);
            else if (tall)
                flash_product_block(p, true, false, a, b, sum);
            else if (wide)
                flash_product_block(p, false, true, a, b, sum);
            else
                flash_product_block(p, false, false, a, b, sum);
        }
    }
}

/*
 * 2^t: 2^floor(t) times a polynomial of degree 5 on [0, 1), exact at 0 and off by at most 2^-22
 * relatively (coefficients by Lawson's algorithm, rounded to f32).
 */
CPU_INLINE __m512 amx_exp2(__m512 t)
{
    const __m512 x = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_set1_ps(0x1.e974fcp-10f);
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.277854p-7f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.c91ce6p-5f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.ebdb56p-3f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.62e4bap-1f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, t);
}

/* Two rows of f32 as bf16, in pairs: of `even` in the low halves. */
CPU_INLINE __m512i amx_pair(__m512 even, __m512 odd)
{
    return cpu_pair((__m256i)_mm512_cvtneps_pbh(even), (__m256i)_mm512_cvtneps_pbh(odd));
}

/* Of 16 queries at `position` and after it those that see `key`. */
CPU_INLINE __mmask16 amx_seen(const struct flash *f, int64_t position, int64_t key)
{
    return (__mmask16)(cpu_lanes(key + f->window - position) & ~cpu_lanes(key - position));
}

/* 16 pairs of rows from `from` on, of which `rows` rows are there, and 16 columns from `column` on:
 * in pairs. */
CPU_INLINE void amx_pair_rows(const struct flash *f, const char *from, size_t bytes, int64_t rows,
                              int64_t column, __m512i pair[CPU_AMX_ROWS])
{
    const __mmask16 mask = cpu_lanes(f->size - column);
    CPU_UNROLL
    for (int64_t i = 0; i < CPU_AMX_ROWS; i++) {
        const uint16_t *even = (const uint16_t *)(const void *)(from + (size_t)(2 * i) * bytes);
        const uint16_t *odd = (const uint16_t *)(const void *)(from + (size_t)(2 * i + 1) * bytes);
        const __mmask16 low = 2 * i < rows ? mask : 0, high = 2 * i + 1 < rows ? mask : 0;
        pair[i] = cpu_pair(_mm256_maskz_loadu_epi16(low, even + column),
                           _mm256_maskz_loadu_epi16(high, odd + column));
    }
}

/* Ask for rows of D elements, to be read. */
CPU_INLINE void amx_ask_rows(const struct flash *f, const char *from, size_t bytes, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++, from += bytes)
        for (size_t byte = 0; byte < f->head_bytes; byte += 64)
            _mm_prefetch(from + byte, _MM_HINT_T0);
}

/*
 * Rows of D elements for products over rows, zeros where there are none; a block is 32 rows.
 *
 *   on the left   [blocks][width / 16] tiles, whose rows are columns
 *   on the right  [blocks * 16 pairs][width]
 */
static inline void amx_left(const struct flash *f, const char *from, size_t bytes, int64_t rows,
                            uint32_t *target)
{
    for (; rows > 0; rows -= CPU_AMX_DEPTH, from += CPU_AMX_DEPTH * bytes) {
        amx_ask_rows(f, from + CPU_AMX_DEPTH * bytes, bytes,
                     tess__cpu_min(rows - CPU_AMX_DEPTH, CPU_AMX_DEPTH));
        for (int64_t c = 0; c < f->width; c += CPU_WORDS, target += AMX_TILE) {
            __m512i pair[CPU_AMX_ROWS];
            amx_pair_rows(f, from, bytes, rows, c, pair);
            cpu_turn_square(pair);
            CPU_UNROLL
            for (int64_t i = 0; i < CPU_AMX_ROWS; i++)
                _mm512_store_si512(target + i * CPU_WORDS, pair[i]);
        }
    }
}

static inline void amx_right(const struct flash *f, const char *from, size_t bytes, int64_t rows,
                             uint32_t *target)
{
    for (; rows > 0; rows -= CPU_AMX_DEPTH, from += CPU_AMX_DEPTH * bytes) {
        for (int64_t c = 0; c < f->width; c += CPU_WORDS) {
            __m512i pair[CPU_AMX_ROWS];
            amx_pair_rows(f, from, bytes, rows, c, pair);
            CPU_UNROLL
            for (int64_t i = 0; i < CPU_AMX_ROWS; i++)
                _mm512_store_si512(target + i * f->width + c, pair[i]);
        }
        target += CPU_AMX_ROWS * f->width;
    }
}

/* Rows of D elements on the right of products over D: [rows / 16][f->row pairs][16 rows]. */
static inline void amx_turn(const struct flash *f, const char *from, size_t bytes, int64_t rows,
                            uint32_t *target)
{
    for (; rows > 0; rows -= CPU_WORDS, from += CPU_WORDS * bytes, target += f->row * CPU_WORDS) {
        amx_ask_rows(f, from + CPU_WORDS * bytes, bytes,
                     tess__cpu_min(rows - CPU_WORDS, CPU_WORDS));
        cpu_turn(from, bytes, rows, 1, f->steps, f->size % 2 != 0, target);
        memset(target + f->steps * CPU_WORDS, 0,
               (size_t)((f->row - f->steps) * CPU_WORDS) * sizeof(*target));
    }
}

/* Sums [width][16 queries] times a factor for each query, as rows of `rows` queries. */
static inline void amx_write(const struct flash *f, const float *sum, __m512 factor, int64_t rows,
                             char *to, size_t bytes)
{
    for (int64_t r = CPU_WORDS; r < tess__cpu_min(rows, 2 * CPU_WORDS); r++)
        flash_own(f, to + (size_t)r * bytes);
    for (int64_t c = 0; c < f->width; c += CPU_WORDS) {
        __m512i word[CPU_WORDS];
        CPU_UNROLL
        for (int64_t i = 0; i < CPU_WORDS; i++)
            word[i] = _mm512_castps_si512(
                _mm512_mul_ps(_mm512_load_ps(sum + (c + i) * CPU_WORDS), factor));
        cpu_turn_square(word);
        for (int64_t i = 0; i < tess__cpu_min(rows, CPU_WORDS); i++)
            flash_store(TESS_BF16, to + (size_t)i * bytes, c, f->size,
                        _mm512_castsi512_ps(word[i]));
    }
}

#endif
