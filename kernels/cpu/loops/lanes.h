/*
 * Vectors as wide as a level's registers, for own loops that keep sums in them: CPU_LANES elements
 * of any dtype as f32. GCC would split wider vectors, too, but compares them element by element.
 */
#ifndef KERNELS_CPU_LOOPS_LANES_H
#define KERNELS_CPU_LOOPS_LANES_H

#include "cpu/own/stage.h"

#include <string.h>

#if defined(__AVX512F__)
#define CPU_LANES 16
#elif defined(__AVX2__)
#define CPU_LANES 8
#else
#define CPU_LANES 4
#endif

typedef float lanes_float __attribute__((vector_size(4 * CPU_LANES)));
typedef int32_t lanes_int __attribute__((vector_size(4 * CPU_LANES)));
typedef uint32_t lanes_bits __attribute__((vector_size(4 * CPU_LANES)));
typedef uint16_t lanes_half __attribute__((vector_size(2 * CPU_LANES)));
typedef uint8_t lanes_byte __attribute__((vector_size(CPU_LANES)));

#if CPU_LANES == 8

/* By instructions: of these conversions gcc makes several, of those of bytes one per element. */
CPU_INLINE lanes_bits lanes_of_halves(lanes_half half)
{
    return (lanes_bits)_mm256_cvtepu16_epi32((__m128i)half);
}

CPU_INLINE lanes_half lanes_low_halves(lanes_bits bits) /* their upper halves are 0 */
{
    return (lanes_half)cpu_low_halves((__m256i)bits);
}

CPU_INLINE lanes_int lanes_of_bytes(lanes_byte bytes)
{
    return (lanes_int)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes));
}

CPU_INLINE lanes_byte lanes_low_bytes(lanes_int word)
{
    const __m256i first = _mm256_setr_epi64x(0x0c080400, 0, 0x0c080400, 0);
    const __m256i four = _mm256_shuffle_epi8((__m256i)word, first);
    return (lanes_byte)_mm_cvtsi128_si64(
        _mm_unpacklo_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)));
}

#else

CPU_INLINE lanes_bits lanes_of_halves(lanes_half half)
{
    return __builtin_convertvector(half, lanes_bits);
}

CPU_INLINE lanes_half lanes_low_halves(lanes_bits bits)
{
    return __builtin_convertvector(bits, lanes_half);
}

CPU_INLINE lanes_int lanes_of_bytes(lanes_byte bytes)
{
    return __builtin_convertvector(bytes, lanes_int);
}

CPU_INLINE lanes_byte lanes_low_bytes(lanes_int word)
{
    return __builtin_convertvector(word, lanes_byte);
}

#endif

/* `lanes` < CPU_LANES only at the end of a pixel; the rest is zeros and is not written. */
CPU_INLINE void lanes_load(enum tess_dtype dtype, const void *x, int64_t first, int64_t lanes,
                           lanes_bits *bits)
{
    lanes_half half = {0};
    lanes_bits whole = {0};
    if (dtype == TESS_F32) {
        memcpy(&whole, (const float *)x + first, (size_t)lanes * 4);
        *bits = whole;
    } else if (dtype == TESS_BF16) {
        memcpy(&half, (const uint16_t *)x + first, (size_t)lanes * 2);
        *bits = lanes_of_halves(half) << 16;
    } else {
        uint16_t element[CPU_LANES] = {0};
        float wide[CPU_LANES];
        memcpy(element, (const uint16_t *)x + first, (size_t)lanes * 2);
        cpu_read(TESS_F16, element, 0, CPU_LANES, wide);
        memcpy(bits, wide, sizeof(wide));
    }
}

/* What is stored is a value of dtype: bf16 is cut off, not rounded. */
CPU_INLINE void lanes_store(enum tess_dtype dtype, void *y, int64_t first, int64_t lanes,
                            const lanes_bits *bits)
{
    if (dtype == TESS_F32) {
        memcpy((float *)y + first, bits, (size_t)lanes * 4);
    } else if (dtype == TESS_BF16) {
        lanes_half half = lanes_low_halves(*bits >> 16);
        memcpy((uint16_t *)y + first, &half, (size_t)lanes * 2);
    } else {
        float wide[CPU_LANES];
        uint16_t element[CPU_LANES];
        memcpy(wide, bits, sizeof(wide));
        cpu_write(TESS_F16, element, 0, CPU_LANES, wide);
        memcpy((uint16_t *)y + first, element, (size_t)lanes * 2);
    }
}

CPU_INLINE void lanes_read(enum tess_dtype dtype, const void *x, int64_t first, int64_t lanes,
                           lanes_float *value)
{
    lanes_bits bits;
    lanes_load(dtype, x, first, lanes, &bits);
    *value = (lanes_float)bits;
}

/* Rounded as tess__bf16_of_f32() does: to nearest even, NaN quiet. */
CPU_INLINE void lanes_write(enum tess_dtype dtype, void *y, int64_t first, int64_t lanes,
                            const lanes_float *value)
{
    lanes_bits bits = (lanes_bits)*value;
    if (dtype == TESS_BF16) {
#if CPU_LANES == 8
        const __m128i half = cpu_bf16_of((__m256)*value);
        memcpy((uint16_t *)y + first, &half, (size_t)lanes * 2);
        return;
#else
        const lanes_bits nan = (lanes_bits)(*value != *value), quiet = bits | 0x400000u;
        const lanes_bits rounded = bits + ((bits >> 16 & 1u) + 0x7fffu);
        bits = (quiet & nan) | (rounded & ~nan);
#endif
    }
    lanes_store(dtype, y, first, lanes, &bits);
}

#endif
