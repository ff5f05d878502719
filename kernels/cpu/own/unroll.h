/*
 * How the own kernels keep tiles in registers: loops of constant length over arrays of vectors
 * that must be unrolled completely, by a pragma of each compiler.
 */
#ifndef KERNELS_CPU_OWN_UNROLL_H
#define KERNELS_CPU_OWN_UNROLL_H

#ifdef __clang__
#define CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CPU_UNROLL _Pragma("GCC unroll 24")
#endif

#define CPU_INLINE static inline __attribute__((always_inline))

/* A vector that serves all rows of a tile; as an operand in memory it would be loaded once per row,
   and loads, not products, would set the pace. */
#define CPU_IN_REGISTER(vector) __asm__("" : "+v"(vector))

#endif
