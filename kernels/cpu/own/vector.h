/*
 * The vectors that the own kernels are written with. Their sources are built twice (CMakeLists.txt,
 * CPU_LEVEL): v4 for AVX-512 with bf16 dot products, v3 for AVX2. What differs is in vector_512.h
 * and vector_256.h: how many words a vector has, how lanes are masked, and how bf16 is multiplied.
 * Each element's operations are the same in f32, so that its bits are.
 */
#ifndef KERNELS_CPU_OWN_VECTOR_H
#define KERNELS_CPU_OWN_VECTOR_H

#include "cpu/cpu.h"
#include "cpu/own/unroll.h"

/* CPU_OWN(forward) is tess__cpu_v4_forward where CPU_LEVEL is v4. */
#define CPU_OWN_JOIN_(level, name) tess__cpu_##level##_##name
#define CPU_OWN_JOIN(level, name)  CPU_OWN_JOIN_(level, name)
#define CPU_OWN(name)              CPU_OWN_JOIN(CPU_LEVEL, name)

#define CPU_OWN_FUNCTION(type, name) type CPU_OWN(name);
CPU_OWN_LIST(CPU_OWN_FUNCTION)
#undef CPU_OWN_FUNCTION

/* Sums and maxima over the elements of a row are kept in so many lanes, so that their bits do not
 * depend on the level. */
#define CPU_SUM_LANES   16
#define CPU_SUM_VECTORS (CPU_SUM_LANES / CPU_WORDS)

#if defined(__AVX512F__)
#include "cpu/own/vector_512.h"
#else
#include "cpu/own/vector_256.h"
#endif

/* Masks cost instructions where they are not registers of their own: not for whole vectors. */
#define CPU_SLOW_MASKS (CPU_WORDS < 16)

/* The first `left` elements of a vector or all of it; what is not loaded is 0. */
CPU_INLINE cpu_vector cpu_load_first(int64_t left, const float *from)
{
    if (CPU_SLOW_MASKS && left >= CPU_WORDS)
        return cpu_load_any(from);
    return cpu_load_lanes(cpu_lanes(left), from);
}

CPU_INLINE void cpu_store_first(float *to, int64_t left, cpu_vector value)
{
    if (CPU_SLOW_MASKS && left >= CPU_WORDS)
        cpu_store_any(to, value);
    else
        cpu_store_lanes(to, cpu_lanes(left), value);
}

CPU_INLINE cpu_halves cpu_load_halves_first(int64_t left, const uint16_t *from)
{
    if (CPU_SLOW_MASKS && left >= CPU_WORDS)
        return cpu_load_halves_any(from);
    return cpu_load_halves(cpu_lanes(left), from);
}

CPU_INLINE void cpu_store_halves_first(uint16_t *to, int64_t left, cpu_halves value)
{
    if (CPU_SLOW_MASKS && left >= CPU_WORDS)
        cpu_store_halves_any(to, value);
    else
        cpu_store_halves(to, cpu_lanes(left), value);
}

/* Of a vector of elements from `at` on the lanes of those from `first` on up to end - 1. */
CPU_INLINE cpu_mask cpu_lanes_between(int64_t at, int64_t first, int64_t end)
{
    const cpu_mask lanes = cpu_lanes(end - at);
    return at < first ? cpu_lanes_without(lanes, cpu_lanes(first - at)) : lanes;
}

/* `value` in those, 0 in others. */
CPU_INLINE cpu_vector cpu_keep_between(int64_t at, int64_t first, int64_t end, cpu_vector value)
{
    if (CPU_SLOW_MASKS && first - at <= 0 && end - at >= CPU_WORDS)
        return value;
    return cpu_keep(cpu_lanes_between(at, first, end), value);
}

/* The greater in those, `a` in others. */
CPU_INLINE cpu_vector cpu_max_between(int64_t at, int64_t first, int64_t end, cpu_vector a,
                                      cpu_vector b)
{
    if (CPU_SLOW_MASKS && first - at <= 0 && end - at >= CPU_WORDS)
        return cpu_max(a, b);
    return cpu_max_lanes(cpu_lanes_between(at, first, end), a, b);
}

/* Elements at, at + 1 .. of an array, a vector of them: of bf16 where `half`, else of f32. */
CPU_INLINE cpu_vector cpu_load_of(bool half, const void *from, int64_t at)
{
    return half ? cpu_widen(cpu_load_halves_any((const uint16_t *)from + at))
                : cpu_load_any((const float *)from + at);
}

/* The same of the first `left` of them. */
CPU_INLINE cpu_vector cpu_load_first_of(bool half, int64_t left, const void *from, int64_t at)
{
    return half ? cpu_widen(cpu_load_halves_first(left, (const uint16_t *)from + at))
                : cpu_load_first(left, (const float *)from + at);
}

/* And of some. */
CPU_INLINE cpu_vector cpu_load_lanes_of(bool half, cpu_mask mask, const void *from, int64_t at)
{
    return half ? cpu_widen(cpu_load_halves(mask, (const uint16_t *)from + at))
                : cpu_load_lanes(mask, (const float *)from + at);
}

CPU_INLINE void cpu_store_of(bool half, void *to, int64_t at, cpu_vector value)
{
    if (half)
        cpu_store_halves_any((uint16_t *)to + at, cpu_narrow(value));
    else
        cpu_store_any((float *)to + at, value);
}

#endif
