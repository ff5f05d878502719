/*
 * How the own loops read and write all dtypes with one loop: in blocks of at most CPU_BLOCK
 * elements through an f32 copy on the stack, which compilers keep in registers or in the
 * first-level cache. Everything is read before anything is written, so that outputs may be inputs,
 * and no check for overlap keeps a loop from being vectorised.
 */
#ifndef KERNELS_CPU_OWN_STAGE_H
#define KERNELS_CPU_OWN_STAGE_H

#include "base/half.h"
#include "cpu/half.h"
#include "tessera/tensor.h"

#define CPU_BLOCK 64

/* Call run(dtype, ...) with a constant dtype: one loop each, without a branch on the type. */
#define CPU_BY_DTYPE(dtype, run, ...)                                                              \
    ((dtype) == TESS_F32    ? run(TESS_F32, __VA_ARGS__)                                           \
     : (dtype) == TESS_BF16 ? run(TESS_BF16, __VA_ARGS__)                                          \
                            : run(TESS_F16, __VA_ARGS__))

/* Call run(dtype, first, count, ...) for each block of `size` elements; whole blocks have a
 * constant count. */
#define CPU_BLOCKS(dtype, size, run, ...)                                                          \
    do {                                                                                           \
        int64_t cpu_at = 0;                                                                        \
        for (; cpu_at + CPU_BLOCK <= (size); cpu_at += CPU_BLOCK)                                  \
            run(dtype, cpu_at, CPU_BLOCK, __VA_ARGS__);                                            \
        if (cpu_at < (size))                                                                       \
            run(dtype, cpu_at, (size)-cpu_at, __VA_ARGS__);                                        \
    } while (0)

#define CPU_BLOCKS_BY_DTYPE(dtype, size, run, ...)                                                 \
    do {                                                                                           \
        if ((dtype) == TESS_F32)                                                                   \
            CPU_BLOCKS(TESS_F32, size, run, __VA_ARGS__);                                          \
        else if ((dtype) == TESS_BF16)                                                             \
            CPU_BLOCKS(TESS_BF16, size, run, __VA_ARGS__);                                         \
        else                                                                                       \
            CPU_BLOCKS(TESS_F16, size, run, __VA_ARGS__);                                          \
    } while (0)

CPU_INLINE void cpu_read(enum tess_dtype dtype, const void *from, int64_t first, int64_t count,
                         float *copy)
{
    const float *whole = (const float *)from + (dtype == TESS_F32 ? first : 0);
    const uint16_t *half = (const uint16_t *)from + (dtype == TESS_F32 ? 0 : first);
    if (dtype == TESS_F32) {
        for (int64_t i = 0; i < count; i++)
            copy[i] = whole[i];
    } else if (dtype == TESS_BF16) {
        for (int64_t i = 0; i < count; i++)
            copy[i] = tess__f32_of_bf16(half[i]);
    } else {
        int64_t i = 0;
        for (; i + CPU_F16_LANES <= count; i += CPU_F16_LANES)
            cpu_f16_widen(half + i, copy + i);
        for (; i < count; i++)
            copy[i] = tess__f32_of_f16(half[i]);
    }
}

CPU_INLINE void cpu_write(enum tess_dtype dtype, void *to, int64_t first, int64_t count,
                          const float *copy)
{
    float *whole = (float *)to + (dtype == TESS_F32 ? first : 0);
    uint16_t *half = (uint16_t *)to + (dtype == TESS_F32 ? 0 : first);
    if (dtype == TESS_F32) {
        for (int64_t i = 0; i < count; i++)
            whole[i] = copy[i];
    } else if (dtype == TESS_BF16) {
        int64_t i = 0;
        for (; i + CPU_BF16_LANES <= count; i += CPU_BF16_LANES)
            cpu_bf16_narrow(copy + i, half + i);
        for (; i < count; i++)
            half[i] = tess__bf16_of_f32(copy[i]);
    } else {
        int64_t i = 0;
        for (; i + CPU_F16_LANES <= count; i += CPU_F16_LANES)
            cpu_f16_narrow(copy + i, half + i);
        for (; i < count; i++)
            half[i] = tess__f16_of_f32(copy[i]);
    }
}

#endif
