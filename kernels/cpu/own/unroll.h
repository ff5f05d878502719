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

/* A vector that serves all rows of a tile; as an operand in memory it would be loaded once per row,
   and loads, not products, would set the pace. */
#define CPU_IN_REGISTER(vector) __asm__("" : "+v"(vector))

/* An address that the compiler must not compute for all iterations of an unrolled loop in advance:
   there are no registers for them. */
#define CPU_SAME(pointer) __asm__("" : "+r"(pointer))

#endif
