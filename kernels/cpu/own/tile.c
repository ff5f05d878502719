/* The tile kernel of tile.h. Built for AVX-512 with bf16 dot products (CMakeLists.txt). */
#include "cpu/own/tile.h"

#include "cpu/own/pack.h"

#include <string.h>

CPU_INLINE void tile_step(__m512 (*sum)[CPU_TILE_WIDE], bool half, int tall, int wide,
                          const uint32_t *column, const char *low, const char *high, size_t row)
{
    __m512i word[CPU_TILE_WIDE];
    CPU_UNROLL
    for (int c = 0; c < wide; c++) {
        word[c] = _mm512_load_si512(column + c * CPU_WORDS);
        CPU_IN_REGISTER(word[c]);
    }
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        int one;
        memcpy(&one, r < 3 ? low + (size_t)r * row : high + (size_t)(r - 3) * row, 4);
        __m512i scalar = _mm512_set1_epi32(one);
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r][c] = half ? _mm512_dpbf16_ps(sum[r][c], (__m512bh)word[c], (__m512bh)scalar)
                             : _mm512_fmadd_ps(_mm512_castsi512_ps(word[c]),
                                               _mm512_castsi512_ps(scalar), sum[r][c]);
    }
}

CPU_INLINE void tile_begin(const struct cpu_tile *t, int64_t first, int tall, int wide,
                           __m512 (*sum)[CPU_TILE_WIDE])
{
    const float *from = t->sum + first * t->sum_row;
    CPU_UNROLL
    for (int r = 0; r < tall; r++, from += t->sum_row) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r][c] = t->begin ? _mm512_setzero_ps() : _mm512_load_ps(from + c * CPU_WORDS);
        if (t->scale != NULL && !t->begin) {
            __m512 scale = _mm512_set1_ps(t->scale[first + r]);
            CPU_UNROLL
            for (int c = 0; c < wide; c++)
                sum[r][c] = _mm512_mul_ps(sum[r][c], scale);
        }
    }
}

/* Rows first .. first + tall - 1. */
CPU_INLINE void tile_rows(const struct cpu_tile *t, bool half, int tall, int wide, int64_t first)
{
    __m512 sum[CPU_TILE_TALL][CPU_TILE_WIDE];
    tile_begin(t, first, tall, wide, sum);
    const uint32_t *column = t->column;
    const char *low = (const char *)t->scalar + (size_t)first * t->scalar_row;
    const char *high = low + 3 * t->scalar_row;
    size_t row = t->scalar_row, step = t->scalar_step;
    for (int64_t k = 0; k < t->steps; k++, column += t->column_step, low += step, high += step)
        tile_step(sum, half, tall, wide, column, low, high, row);
    float *to = t->sum + first * t->sum_row;
    CPU_UNROLL
    for (int r = 0; r < tall; r++, to += t->sum_row) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            _mm512_store_ps(to + c * CPU_WORDS, sum[r][c]);
    }
}

CPU_INLINE void tile_all(const struct cpu_tile *t, bool half, int wide, int64_t rows)
{
    int64_t first = 0;
    for (; first + CPU_TILE_TALL <= rows; first += CPU_TILE_TALL)
        tile_rows(t, half, CPU_TILE_TALL, wide, first);
    for (; first + 4 <= rows; first += 4)
        tile_rows(t, half, 4, wide, first);
    for (; first + 2 <= rows; first += 2)
        tile_rows(t, half, 2, wide, first);
    for (; first < rows; first++)
        tile_rows(t, half, 1, wide, first);
}

/* One function per number of vectors. */
#define TILE_FUNCTION(name, half, wide)                                                            \
    static void name(const struct cpu_tile *tile, int64_t rows)                                    \
    {                                                                                              \
        tile_all(tile, half, wide, rows);                                                          \
    }
TILE_FUNCTION(tile_f32_1, false, 1)
TILE_FUNCTION(tile_f32_2, false, 2)
TILE_FUNCTION(tile_f32_3, false, 3)
TILE_FUNCTION(tile_f32_4, false, 4)
TILE_FUNCTION(tile_bf16_1, true, 1)
TILE_FUNCTION(tile_bf16_2, true, 2)
TILE_FUNCTION(tile_bf16_3, true, 3)
TILE_FUNCTION(tile_bf16_4, true, 4)

static void (*const tile_run[2][CPU_TILE_WIDE])(const struct cpu_tile *tile, int64_t rows) = {
    {tile_f32_1, tile_f32_2, tile_f32_3, tile_f32_4},
    {tile_bf16_1, tile_bf16_2, tile_bf16_3, tile_bf16_4},
};

void tess__cpu_tile(bool half, int wide, const struct cpu_tile *tile, int64_t rows)
{
    tile_run[half][wide - 1](tile, rows);
}
