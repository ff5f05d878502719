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

/* Where the scalars of rows are reached from every third one. */
struct tile_at {
    const char *low, *high, *top;
    const uint32_t *column;
};

/* Steps `some` further on, whose columns and scalars are `column_step` words and `step` bytes
 * apart. */
CPU_INLINE void tile_step(const struct tile_at *at, bool half, int tall, int wide, size_t row,
                          int64_t column_step, size_t step, int some, cpu_vector *sum)
{
    uint32_t word[TILE_TALL_MOST];
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        const char *from = r < 3 ? at->low : r < 6 ? at->high : at->top;
        memcpy(&word[r], from + (size_t)(r % 3) * row + (size_t)some * step, 4);
    }
    cpu_step(sum, half, tall, wide, at->column + some * column_step, word);
}

CPU_INLINE void tile_go_on(struct tile_at *at, int64_t column_step, size_t step, int some)
{
    at->low += (size_t)some * step;
    at->high += (size_t)some * step;
    at->top += (size_t)some * step;
    at->column += some * column_step;
}

/* Rows first .. first + tall - 1. `close`: steps are next to one another, a piece's columns and a
 * row's scalars, which the compiler then knows, and t->ask counts. */
CPU_INLINE void tile_rows(const struct cpu_tile *t, bool half, int tall, int wide, bool close,
                          int64_t first)
{
    cpu_vector sum[CPU_SUMS];
    tile_begin(t, first, tall, wide, sum);
    const int64_t column_step = close ? CPU_PIECE : t->column_step;
    const size_t row = t->scalar_row, step = close ? sizeof(uint32_t) : t->scalar_step;
    const char *low = (const char *)t->scalar + (size_t)first * row;
    struct tile_at at = {
        .low = low, .high = low + 3 * row, .top = low + 6 * row, .column = t->column};
    int64_t k = 0;
    for (int share = 0; close && k < t->steps; share++) { /* with t->ask one of its rows in each */
        const char *ask = t->ask != NULL ? t->ask + (size_t)(first + share) * row : low;
        const int64_t end = t->ask != NULL ? t->steps * (share + 1) / tall : t->steps;
        for (; k + CPU_STEPS <= end; k += CPU_STEPS) {
            CPU_UNROLL
            for (int some = 0; some < CPU_STEPS; some++) {
                if (some % 2 == 0) /* a line, as tall <= 8 */
                    _mm_prefetch(ask + some * tall * 4, _MM_HINT_T1);
                tile_step(&at, half, tall, wide, row, column_step, step, some, sum);
            }
            ask += CPU_STEPS * tall * 4;
            tile_go_on(&at, column_step, step, CPU_STEPS);
        }
        for (; k < end; k++, tile_go_on(&at, column_step, step, 1))
            tile_step(&at, half, tall, wide, row, column_step, step, 0, sum);
    }
    for (; k < t->steps; k++, tile_go_on(&at, column_step, step, 1))
        tile_step(&at, half, tall, wide, row, column_step, step, 0, sum);
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
    if (t->column_step == CPU_PIECE && t->scalar_step == sizeof(uint32_t))
        for (; first + tall <= t->rows; first += tall)
            tile_rows(t, half, tall, wide, true, first);
    for (; first + tall <= t->rows; first += tall)
        tile_rows(t, half, tall, wide, false, first);
    for (; first + 4 <= t->rows; first += 4)
        tile_rows(t, half, 4, wide, false, first);
    for (; first + 2 <= t->rows; first += 2)
        tile_rows(t, half, 2, wide, false, first);
    for (; first < t->rows; first++)
        tile_rows(t, half, 1, wide, false, first);
}

CPU_BY_WIDTH(tile_run, tile_all, const struct cpu_tile *)

/* One row or two, as of decoding: of more vectors, for as many sums. */
#define TILE_FEW 8
CPU_INLINE void tile_few(const struct cpu_tile *t, bool half, int wide)
{
    tile_rows(t, half, TILE_FEW / wide, wide, false, 0);
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
