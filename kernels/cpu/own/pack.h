/*
 * What the own kernels share. They work in 32-bit words: one element in f32, a pair of elements
 * from neighbouring rows in bf16. Packing of rows, and one step of a tile of sums.
 */
#ifndef KERNELS_CPU_OWN_PACK_H
#define KERNELS_CPU_OWN_PACK_H

#include "cpu/own/vector.h"

#include "tessera/tensor.h"

#include <stdbool.h>
#include <string.h>

/* `columns` elements of a row, with zeros up to whole vectors. `packed` is aligned to 64 bytes. */
CPU_INLINE void cpu_pack_f32(const float *row, int64_t columns, uint32_t *packed)
{
    CPU_UNROLL
    for (int64_t c = 0; c < columns; c += CPU_WORDS)
        cpu_store((float *)packed + c, cpu_load_lanes(cpu_lanes(columns - c), row + c));
}

/* Two rows of bf16 interleaved; `odd` NULL: zeros. */
CPU_INLINE void cpu_pack_bf16(const uint16_t *even, const uint16_t *odd, int64_t columns,
                              uint32_t *packed)
{
    CPU_UNROLL
    for (int64_t c = 0; c < columns; c += CPU_WORDS) {
        cpu_mask mask = cpu_lanes(columns - c);
        cpu_halves low = cpu_load_halves(mask, even + c), high = cpu_zero_halves();
        if (odd)
            high = cpu_load_halves(mask, odd + c);
        cpu_store_words(packed + c, cpu_pair(low, high));
    }
}

/* Columns that a tile meets at once. Packed panels are made of such pieces, one behind the other:
 * lines of one piece that lie apart would share few sets of the first-level cache. */
#define CPU_PIECE (CPU_WIDE * CPU_WORDS)

/* Steps over `count` rows: in bf16 pairs of them where those are multiplied at once. */
static inline int64_t cpu_steps(enum tess_dtype dtype, int64_t count)
{
    return CPU_PAIRS && dtype == TESS_BF16 ? (count + 1) / 2 : count;
}

/* A step of x [.., width] from column `first` on: row `row`, in pairs with the next one where
 * `pair`. */
CPU_INLINE void cpu_pack_step(bool half, const void *x, int64_t width, int64_t row, bool pair,
                              int64_t first, int64_t columns, uint32_t *packed)
{
    int64_t at = row * width + first;
    if (!half) {
        cpu_pack_f32((const float *)x + at, columns, packed);
        return;
    }
    const uint16_t *even = (const uint16_t *)x + at;
    if (CPU_PAIRS) {
        cpu_pack_bf16(even, pair ? even + width : NULL, columns, packed);
        return;
    }
    CPU_UNROLL
    for (int64_t c = 0; c < columns; c += CPU_WORDS)
        cpu_store((float *)packed + c, cpu_load_first_of(true, columns - c, even, c));
}

/* The same of up to 64 columns to pieces that are `piece` words apart. */
CPU_INLINE void cpu_pack_pieces(bool half, const void *x, int64_t width, int64_t row, bool pair,
                                int64_t first, int64_t columns, int64_t piece, uint32_t *packed)
{
    if (CPU_PIECE == 64) {
        cpu_pack_step(half, x, width, row, pair, first, columns, packed);
        return;
    }
    for (int64_t c = 0; c < columns; c += CPU_PIECE, packed += piece)
        cpu_pack_step(half, x, width, row, pair, first + c,
                      columns - c < CPU_PIECE ? columns - c : CPU_PIECE, packed);
}

/* `count` elements as f32. */
static inline void cpu_widen_row(bool half, const void *from, int64_t count, float *to)
{
    if (!half) {
        memcpy(to, from, (size_t)count * sizeof(*to));
        return;
    }
    for (int64_t i = 0; i < count; i += CPU_WORDS)
        cpu_store_first(to + i, count - i, cpu_load_first_of(true, count - i, from, i));
}

#define CPU_LINE       16 /* words in a cache line */
#define CPU_PACK_AHEAD 16 /* steps */

/* Prefetch what packing a step CPU_PACK_AHEAD later reads; `row` is the first one of this step. It
 * is a few cache lines of rows that lie far apart, which the hardware does not foresee. */
CPU_INLINE void cpu_pack_ask(bool half, const void *x, int64_t width, int64_t row, int64_t first,
                             int64_t columns)
{
    const int64_t per_step = CPU_PAIRS && half ? 2 : 1, element = half ? 2 : 4;
    const int64_t at = (row + CPU_PACK_AHEAD * per_step) * width + first;
    for (int64_t r = 0; r < per_step; r++)
        for (int64_t byte = 0; byte < columns * element; byte += 64)
            _mm_prefetch((const char *)x + (at + r * width) * element + byte, _MM_HINT_T0);
}

/* Prefetch 64 columns from `first` on of rows begin .. end - 1, where x [rows, width] has them. */
CPU_INLINE void cpu_ask_rows(bool half, const void *x, int64_t rows, int64_t width, int64_t begin,
                             int64_t end, int64_t first)
{
    size_t element = half ? 2 : 4;
    for (int64_t row = begin; row < end && row < rows; row++) {
        const char *at = (const char *)x + (size_t)(row * width + first) * element;
        for (size_t byte = 0; byte < 64 * element; byte += 64)
            _mm_prefetch(at + byte, _MM_HINT_T1);
    }
}

#define CPU_COPY_ROW(steps) ((steps) + CPU_LINE) /* words from row to row of what is copied */

/* Copy `steps` elements of bf16 of each of `tall` rows, `row_bytes` apart, as f32. `ahead`: such
 * rows to prefetch. */
CPU_INLINE void cpu_copy_rows(int tall, int64_t steps, const char *from, size_t row_bytes,
                              const char *ahead, int64_t copy_row, uint32_t *copy)
{
    for (int64_t line = 0; line < steps; line += 2 * CPU_LINE) {
        CPU_UNROLL
        for (int r = 0; r < tall; r++)
            _mm_prefetch(ahead + (size_t)r * row_bytes + line * 2, _MM_HINT_T0);
        const int64_t end = line + 2 * CPU_LINE < steps ? line + 2 * CPU_LINE : steps;
        for (int64_t s = line; s < end; s += CPU_WORDS) {
            CPU_UNROLL
            for (int r = 0; r < tall; r++)
                cpu_store((float *)copy + r * copy_row + s,
                          cpu_load_first_of(true, steps - s, from + (size_t)r * row_bytes, s));
        }
    }
}

/* Steps at a time in loops over them, with one increment of each address and one branch for all: a
 * core whose other thread is busy has no room for more instructions between products. */
#define CPU_STEPS 4

/* One step of a tile of `tall` rows and `wide` vectors: sum[r * wide + c] += scalar[r] column[c],
 * fused. */
CPU_INLINE void cpu_step(cpu_vector *sum, bool half, int tall, int wide, const uint32_t *column,
                         const uint32_t *scalar)
{
    cpu_words vector[CPU_SUMS];
    CPU_UNROLL
    for (int c = 0; c < wide; c++) {
        vector[c] = cpu_load_words_any(column + c * CPU_WORDS);
        if (tall > 1) /* one row alone may read it where it lies */
            CPU_IN_REGISTER(vector[c]);
    }
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        cpu_words one = cpu_set_words(scalar[r]);
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r * wide + c] = cpu_product(half, sum[r * wide + c], vector[c], one);
    }
}

/* The table name[wide - 1] of functions that call run(argument, half, wide), wide 1 to CPU_WIDE:
 * one function each, in which the compiler has both. */
#define CPU_WIDTH(name, run, type, half, wide)                                                     \
    static void name(type argument)                                                                \
    {                                                                                              \
        run(argument, half, wide);                                                                 \
    }
#if CPU_WIDE == 2
#define CPU_WIDTHS(name, run, type, half)                                                          \
    CPU_WIDTH(name##_1, run, type, half, 1)                                                        \
    CPU_WIDTH(name##_2, run, type, half, 2)                                                        \
    static void (*const name[])(type argument) = {name##_1, name##_2};
#else
#define CPU_WIDTHS(name, run, type, half)                                                          \
    CPU_WIDTH(name##_1, run, type, half, 1)                                                        \
    CPU_WIDTH(name##_2, run, type, half, 2)                                                        \
    CPU_WIDTH(name##_3, run, type, half, 3)                                                        \
    CPU_WIDTH(name##_4, run, type, half, 4)                                                        \
    static void (*const name[])(type argument) = {name##_1, name##_2, name##_3, name##_4};
#endif

/* name[half][wide - 1] of either type. */
#define CPU_BY_WIDTH(name, run, type)                                                              \
    CPU_WIDTHS(name##_f32, run, type, false)                                                       \
    CPU_WIDTHS(name##_bf16, run, type, true)                                                       \
    static void (*const *const name[])(type argument) = {name##_f32, name##_bf16};

#endif
