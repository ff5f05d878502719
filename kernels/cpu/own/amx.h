/*
 * Tiles of AMX: eight registers of 16 rows x 64 bytes for each thread. Only where tess__cpu_tiles()
 * is true; files that include this are called amx_*.c (CMakeLists.txt gives them the options).
 *
 *     cpu_amx_begin();               once in each part of a thread: oneDNN configures tiles, too
 *     CPU_AMX_ZERO(0);               sums: 16 rows x 16 elements of f32
 *     CPU_AMX_LOAD(4, a, a_bytes);   16 rows x 32 elements of bf16, as they lie
 *     CPU_AMX_LOAD(5, b, 64);        16 pairs of rows x 16 columns: word [pair][column] has rows
 *                                    2 pair (low half) and 2 pair + 1 of that column
 *     CPU_AMX_PRODUCT(0, 4, 5);      sums[i, j] += sum over k of a[i, k] b[k, j]
 *     CPU_AMX_STORE(0, y, y_bytes);
 *     cpu_amx_end();                 what is saved when threads change is small again
 *
 * One product adds two chains of fused multiply-adds, one of the even k and one of the odd, in
 * order, then their sum to what was there: an element's bits do not depend on the other rows and
 * columns, and zeros in place of k that are not there change none. Subnormal numbers count as zero.
 *
 * Numbers of tiles are literals. Strides are in bytes.
 */
#ifndef KERNELS_CPU_OWN_AMX_H
#define KERNELS_CPU_OWN_AMX_H

#include <immintrin.h>
#include <stdint.h>

#define CPU_AMX_ROWS  16 /* of a tile */
#define CPU_AMX_BYTES 64 /* of a row of a tile: 16 words */
#define CPU_AMX_DEPTH 32 /* elements of bf16 in it: k that one product adds */

/* What LDTILECFG reads. */
struct cpu_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Other tiles than those of cpu_amx_begin(): all of them become zero. */
static inline void cpu_amx_configure(const struct cpu_amx_config *config)
{
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(config);
}

/* All tiles whole, and zero. */
static inline void cpu_amx_begin(void)
{
    static const struct cpu_amx_config whole = {.palette = 1,
                                                .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    cpu_amx_configure(&whole);
}

static inline void cpu_amx_end(void)
{
    _tile_release();
}

/* gcc's loads do not say that they read memory: what was written before must be there. */
#define CPU_AMX_LOAD(tile, from, stride)                                                           \
    do {                                                                                           \
        __asm__ volatile("" ::: "memory");                                                         \
        _tile_loadd(tile, from, stride);                                                           \
    } while (0)
#define CPU_AMX_STORE(tile, to, stride)                                                            \
    do {                                                                                           \
        _tile_stored(tile, to, stride);                                                            \
        __asm__ volatile("" ::: "memory");                                                         \
    } while (0)
#define CPU_AMX_ZERO(tile)          _tile_zero(tile)
#define CPU_AMX_PRODUCT(sums, a, b) _tile_dpbf16ps(sums, a, b)

#endif
