/*
 * The normals of base/normal.h, bit for bit, for many elements at once: by AVX-512 and AVX2 less
 * accurate in double, in fewer operations, and far more accurate than f32. Only where such a number
 * lies so close to the middle between two floats that its error could decide to which it is
 * rounded, one in 2^13, the definition computes the element. CPU_NORMALS elements 2 counter,
 * 2 counter + 1, ... are mean + deviation times these by
 *
 *   cpu_normals(key, counter, mean, deviation, y)
 */
#ifndef KERNELS_CPU_LOOPS_NORMAL_WIDE_H
#define KERNELS_CPU_LOOPS_NORMAL_WIDE_H

#include "base/normal.h"
#include "base/rng.h"
#include "cpu/own/unroll.h"

/*
 * How near is that close, in units in the last place of a double. Errors are at most 2^-39, 2^14 of
 * these; twice as many are taken.
 */
#define NORMAL_NEAR (1 << 15)

/* sin(pi/2 x) / x in x^2 at Chebyshev's points, from the last term on; each with 62 times the power
 * of x that it comes to. */
#define NORMAL_SIN(X)                                                                              \
    X(806, 5.462549864596071e-08)                                                                  \
    X(682, -3.595705796931505e-06)                                                                 \
    X(558, 0.00016043905209111044)                                                                 \
    X(434, -0.00468175339012288)                                                                   \
    X(310, 0.07969262612208577)                                                                    \
    X(186, -0.6459640974984949)                                                                    \
    X(62, 1.5707963267948175)

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include "cpu/loops/normal_512.h"
#elif defined(__AVX2__)
#include "cpu/loops/normal_256.h"
#else
#include "cpu/philox.h"

#define CPU_NORMALS (CPU_BLOCK / 2) /* two words each */
_Static_assert(CPU_NORMALS == TESS_NORMAL_LANES, "a block of words");

CPU_INLINE void cpu_normals(struct tess_rng_key key, uint64_t counter, float mean, float deviation,
                            float *restrict y)
{
    uint32_t word[CPU_BLOCK], a[CPU_NORMALS], b[CPU_NORMALS];
    float z[CPU_NORMALS];
    cpu_philox(key, counter, word);
    for (int i = 0; i < CPU_NORMALS; i++) {
        a[i] = word[2 * i];
        b[i] = word[2 * i + 1];
    }
    tess__normals_of(CPU_NORMALS, a, b, z);
    for (int i = 0; i < CPU_NORMALS; i++)
        y[i] = mean + deviation * z[i];
}

#endif

#endif
