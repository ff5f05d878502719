/*
 * How the own kernels keep tiles in registers: loops of constant length over arrays of vectors
 * that must be unrolled completely, by a pragma of each compiler.
 */
#ifndef KERNELS_CPU_OWN_UNROLL_H
#define KERNELS_CPU_OWN_UNROLL_H

/* Not with sanitizers: for a check of each element in each copy clang takes minutes for a file. */
#if defined(TESS_SANITIZED)
#define CPU_UNROLL
#elif defined(__clang__)
#define CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CPU_UNROLL _Pragma("GCC unroll 24")
#endif

#define CPU_INLINE static inline __attribute__((always_inline))

/* The table name[half][wide - 1] of functions that call run(argument, half, wide), wide 1 to 4: one
 * function each, in which the compiler has both. */
#define CPU_WIDTH(name, run, type, half, wide)                                                     \
    static void name(type argument)                                                                \
    {                                                                                              \
        run(argument, half, wide);                                                                 \
    }
#define CPU_BY_WIDTH(name, run, type)                                                              \
    CPU_WIDTH(name##_f32_1, run, type, false, 1)                                                   \
    CPU_WIDTH(name##_f32_2, run, type, false, 2)                                                   \
    CPU_WIDTH(name##_f32_3, run, type, false, 3)                                                   \
    CPU_WIDTH(name##_f32_4, run, type, false, 4)                                                   \
    CPU_WIDTH(name##_bf16_1, run, type, true, 1)                                                   \
    CPU_WIDTH(name##_bf16_2, run, type, true, 2)                                                   \
    CPU_WIDTH(name##_bf16_3, run, type, true, 3)                                                   \
    CPU_WIDTH(name##_bf16_4, run, type, true, 4)                                                   \
    static void (*const name[2][4])(type argument) = {                                             \
        {name##_f32_1, name##_f32_2, name##_f32_3, name##_f32_4},                                  \
        {name##_bf16_1, name##_bf16_2, name##_bf16_3, name##_bf16_4},                              \
    };

/* A vector that serves all rows of a tile; as an operand in memory it would be loaded once per row,
   and loads, not products, would set the pace. */
#define CPU_IN_REGISTER(vector) __asm__("" : "+v"(vector))

#endif
