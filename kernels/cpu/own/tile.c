/* The tile kernel of tile.h. Built for AVX-512 and for AVX2 (CMakeLists.txt). */
#include "cpu/own/tile.h"

#include "cpu/own/pack.h"

#include <string.h>

#define TILE_TALL_MOST 8

/* Rows first .. first + tall - 1: the sums that the steps are added to. */
CPU_INLINE void tile_begin(const struct cpu_tile *t, int64_t first, int tall, int wide,
                           cpu_vector *sum)
{
    const float *from = t->sum + first * t->sum_row;
    CPU_UNROLL
    for (int r = 0; r < tall; r++, from += t->sum_row) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r * wide + c] = t->begin ? cpu_zero() : cpu_load(from + c * CPU_WORDS);
        if (t->scale != NULL && !t->begin) {
            cpu_vector scale = cpu_set(t->scale[first + r]);
            CPU_UNROLL
            for (int c = 0; c < wide; c++)
                sum[r * wide + c] = cpu_mul(sum[r * wide + c], scale);
        }
    }
}

/* Rows first .. first + tall - 1, whose scalars are reached from every third one. */
CPU_INLINE void tile_rows(const struct cpu_tile *t, bool half, int tall, int wide, int64_t first)
{
    cpu_vector sum[CPU_SUMS];
    tile_begin(t, first, tall, wide, sum);
    const uint32_t *column = t->column;
    const size_t row = t->scalar_row, step = t->scalar_step;
    const char *low = (const char *)t->scalar + (size_t)first * row;
    const char *high = low + 3 * row, *top = high + 3 * row;
    const char *ask = t->ask;
    for (int64_t k = 0; k < t->steps;) {
        int64_t end = t->steps;
        if (ask != NULL) { /* a line of each row, between products */
            CPU_UNROLL
            for (int r = 0; r < tall; r++)
                _mm_prefetch(ask + (size_t)(first + r) * row, _MM_HINT_T0);
            ask += CPU_LINE * sizeof(uint32_t);
            end = k + CPU_LINE < end ? k + CPU_LINE : end;
        }
        for (; k < end; k++, column += t->column_step) {
            uint32_t word[TILE_TALL_MOST];
            CPU_UNROLL
            for (int r = 0; r < tall; r++) {
                const char *from = r < 3 ? low : r < 6 ? high : top;
                memcpy(&word[r], from + (size_t)(r % 3) * row, 4);
            }
            cpu_step(sum, half, tall, wide, column, word);
            low += step;
            high += step;
            top += step;
        }
    }
    float *to = t->sum + first * t->sum_row;
    CPU_UNROLL
    for (int r = 0; r < tall; r++, to += t->sum_row) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            cpu_store(to + c * CPU_WORDS, sum[r * wide + c]);
    }
}

CPU_INLINE void tile_all(const struct cpu_tile *t, bool half, int wide)
{
    int64_t first = 0;
    /* A sum waits four cycles for its last addition, in which there are eight. */
    const int tall = wide == 1 ? TILE_TALL_MOST : CPU_TILE_TALL;
    for (; first + tall <= t->rows; first += tall)
        tile_rows(t, half, tall, wide, first);
    for (; first + 4 <= t->rows; first += 4)
        tile_rows(t, half, 4, wide, first);
    for (; first + 2 <= t->rows; first += 2)
        tile_rows(t, half, 2, wide, first);
    for (; first < t->rows; first++)
        tile_rows(t, half, 1, wide, first);
}

CPU_BY_WIDTH(tile_run, tile_all, const struct cpu_tile *)

/* One row or two, as of decoding: of more vectors, for as many sums. */
#define TILE_FEW 8
CPU_INLINE void tile_few(const struct cpu_tile *t, bool half, int wide)
{
    tile_rows(t, half, TILE_FEW / wide, wide, 0);
}

CPU_WIDTH(tile_one, tile_few, const struct cpu_tile *, false, TILE_FEW)
CPU_WIDTH(tile_two, tile_few, const struct cpu_tile *, false, TILE_FEW / 2)

void CPU_OWN(tile)(bool half, int wide, const struct cpu_tile *tile)
{
    struct cpu_tile piece = *tile;
    for (int done = 0, taken; done < wide; done += taken) {
        const int left = wide - done;
        if (CPU_TILE_WIDE >= TILE_FEW && tile->rows <= 2 && left * tile->rows >= TILE_FEW) {
            taken = TILE_FEW / (int)tile->rows;
            (tile->rows == 1 ? tile_one : tile_two)(&piece);
        } else {
            taken = left < CPU_WIDE ? left : CPU_WIDE;
            tile_run[half][taken - 1](&piece);
        }
        piece.column += taken * CPU_WORDS;
        piece.sum += taken * CPU_WORDS;
        piece.ask = NULL;
    }
}
