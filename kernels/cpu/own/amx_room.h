/*
 * What the products on AMX tiles share: blocks of 2 x 2 tiles, and how rows are packed.
 */
#ifndef KERNELS_CPU_OWN_AMX_ROOM_H
#define KERNELS_CPU_OWN_AMX_ROOM_H

#include "cpu/cpu.h"
#include "cpu/own/amx.h"
#include "cpu/own/pack.h"

#define AMX_STRIP (2 * CPU_AMX_ROWS)      /* rows, and columns, of 2 x 2 tiles */
#define AMX_SUMS  (AMX_STRIP * AMX_STRIP) /* their elements */
#define AMX_TILE  256                     /* words */
#define AMX_LINE  64                      /* bytes of a line of a cache */
#define AMX_LEAST 64 /* rows or columns of a block that is made for another thread */

static inline int64_t amx_up(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

/* `size` in blocks of whole strips, more of them than `block` says if `threads` then have about as
 * much each; there are `others` times as many parts as blocks. */
static inline int64_t amx_even(int64_t size, int64_t block, int64_t others, int64_t threads)
{
    const int64_t most = size / AMX_LEAST;
    int64_t blocks = (size + block - 1) / block;
    while (others * blocks % threads != 0 && blocks < most && others * blocks < 4 * threads)
        blocks++;
    return amx_up((size + blocks - 1) / blocks, AMX_STRIP);
}

/*
 * `rows` rows of `columns` elements, `stride` elements apart, interleaved by pairs: word [c % 16]
 * of step s of group c / 16 is rows 2 s (low half) and 2 s + 1 of column c. A group is `group`
 * words behind the last. `steps` steps, and whole panels of AMX_STRIP columns: what is not there is
 * zero. All columns of a row at a time, as they lie.
 */
static inline void amx_pack_rows(const uint16_t *from, int64_t stride, int64_t rows,
                                 int64_t columns, int64_t steps, int64_t group, uint32_t *packed)
{
    const __m512i low =
        _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a,
                         0x00290009, 0x00280008, 0x00270007, 0x00260006, 0x00250005, 0x00240004,
                         0x00230003, 0x00220002, 0x00210001, 0x00200000);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(CPU_AMX_ROWS));
    for (int64_t s = 0; s < steps; s++, packed += CPU_WORDS) {
        const bool has_even = 2 * s < rows, has_odd = 2 * s + 1 < rows;
        uint32_t *to = packed;
        for (int64_t c = 0; c < columns; c += AMX_STRIP, to += 2 * group) {
            const __mmask32 mask =
                columns - c < AMX_STRIP ? (1u << (columns - c)) - 1 : 0xffffffffu;
            const uint16_t *at = from + 2 * s * stride + c;
            __m512i even = _mm512_setzero_si512(), odd = even;
            if (has_even)
                even = _mm512_maskz_loadu_epi16(mask, at);
            if (has_odd)
                odd = _mm512_maskz_loadu_epi16(mask, at + stride);
            _mm512_store_si512(to, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_store_si512(to + group, _mm512_permutex2var_epi16(even, high, odd));
        }
    }
}

/* Tiles 0 .. 3, the sums of 2 x 2 tiles, from sum [AMX_SUMS] or zero, and back. */
static inline void amx_begin_sums(const float *sum, bool zero)
{
    if (zero) {
        CPU_AMX_ZERO(0);
        CPU_AMX_ZERO(1);
        CPU_AMX_ZERO(2);
        CPU_AMX_ZERO(3);
        return;
    }
    CPU_AMX_LOAD(0, sum, CPU_AMX_BYTES);
    CPU_AMX_LOAD(1, sum + AMX_TILE, CPU_AMX_BYTES);
    CPU_AMX_LOAD(2, sum + 2 * AMX_TILE, CPU_AMX_BYTES);
    CPU_AMX_LOAD(3, sum + 3 * AMX_TILE, CPU_AMX_BYTES);
}

static inline void amx_store_sums(float *sum)
{
    CPU_AMX_STORE(0, sum, CPU_AMX_BYTES);
    CPU_AMX_STORE(1, sum + AMX_TILE, CPU_AMX_BYTES);
    CPU_AMX_STORE(2, sum + 2 * AMX_TILE, CPU_AMX_BYTES);
    CPU_AMX_STORE(3, sum + 3 * AMX_TILE, CPU_AMX_BYTES);
}

/* Lines of memory that are asked for between the steps of tiles, before something reads or writes
 * them: `rows` rows of `lines` lines, `step` bytes apart. Lines too far apart, and too few in a
 * row, for the prefetchers of the hardware. */
struct amx_ahead {
    const char *row;
    size_t step;
    int64_t rows, lines, line; /* `line` of the first row is the next */
    int64_t each;              /* at a time */
};

/* Those that `rows` rows of `bytes` touch, all of them in so many `times`. */
static inline struct amx_ahead amx_ahead(const void *from, size_t step, int64_t rows, int64_t bytes,
                                         int64_t times)
{
    const char *first = (const char *)((uintptr_t)from & ~(uintptr_t)(AMX_LINE - 1));
    const int64_t lines = ((const char *)from - first + bytes + AMX_LINE - 1) / AMX_LINE;
    return (struct amx_ahead){.row = first,
                              .step = step,
                              .rows = rows,
                              .lines = lines,
                              .each = (rows * lines + times - 1) / times};
}

/* The next ones, to be written or to be read. */
CPU_INLINE void amx_ask(struct amx_ahead *a, bool write)
{
    for (int64_t count = a->each; count > 0 && a->rows > 0; count--) {
        if (write)
            __builtin_prefetch(a->row + a->line * AMX_LINE, 1, 2);
        else
            _mm_prefetch(a->row + a->line * AMX_LINE, _MM_HINT_T1);
        if (++a->line == a->lines) {
            a->line = 0;
            a->row += a->step;
            a->rows--;
        }
    }
}

/* What 2 x 2 tiles of sums, 0 .. 3, are made of. */
struct amx_reads {
    const char *a[2];
    size_t a_row, a_step; /* bytes from row to row, from one step of CPU_AMX_DEPTH to the next */
    const uint32_t *b[2];
};

/* Add `tiles` steps of CPU_AMX_DEPTH; not `wide`: b[0] alone. */
CPU_INLINE void amx_steps(const struct amx_reads *r, int64_t tiles, bool wide)
{
    const char *a0 = r->a[0], *a1 = r->a[1];
    const uint32_t *b0 = r->b[0], *b1 = r->b[1];
    const size_t a_row = r->a_row, a_step = r->a_step;
    for (int64_t t = 0; t < tiles; t++) {
        CPU_AMX_LOAD(4, a0, a_row);
        CPU_AMX_LOAD(6, b0, CPU_AMX_BYTES);
        CPU_AMX_PRODUCT(0, 4, 6);
        if (wide) {
            CPU_AMX_LOAD(7, b1, CPU_AMX_BYTES);
            CPU_AMX_PRODUCT(1, 4, 7);
        }
        CPU_AMX_LOAD(5, a1, a_row);
        CPU_AMX_PRODUCT(2, 5, 6);
        if (wide)
            CPU_AMX_PRODUCT(3, 5, 7);
        a0 += a_step;
        a1 += a_step;
        b0 += AMX_TILE;
        b1 += AMX_TILE;
    }
}

#endif
