/*
 * Standard normals of two random words each, by Box and Muller, in double, rounded once. Uses no
 * function of the C library whose last bit depends on the machine (a square root has one result
 * only): initial weights have the same bits on every x86, one by one or in vectors (the build
 * forbids contraction). In loops that compilers vectorise: each over one type, without jumps.
 */
#ifndef TESSERA_BASE_NORMAL_H
#define TESSERA_BASE_NORMAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Of both logarithm and cosine, in the order in which they are added up; see below. */
#define TESS_NORMAL_LOG(X) X(19) X(17) X(15) X(13) X(11) X(9) X(7) X(5) X(3) X(1)
#define TESS_NORMAL_COS(X)                                                                         \
    X(1.0 / 20922789888000, 1.0 / 355687428096000)                                                 \
    X(-1.0 / 87178291200, -1.0 / 1307674368000)                                                    \
    X(1.0 / 479001600, 1.0 / 6227020800)                                                           \
    X(-1.0 / 3628800, -1.0 / 39916800)                                                             \
    X(1.0 / 40320, 1.0 / 362880)                                                                   \
    X(-1.0 / 720, -1.0 / 5040)                                                                     \
    X(1.0 / 24, 1.0 / 120)                                                                         \
    X(-1.0 / 2, -1.0 / 6)                                                                          \
    X(1.0, 1.0)

/* ln((word + 1) / 2^32), in (-22.2, 0], of word + 1 = m 2^e with m in [0.5, 1). */
static inline __attribute__((always_inline)) double tess__normal_log(double m, double e)
{
    /* m in (0.7, 1.42): near 1 the logarithm keeps its digits. */
    const bool low = m < 0.70710678118654752;
    m *= low ? 2.0 : 1.0;
    e -= low ? 33.0 : 32.0;
    /* ln m = 2 artanh s; |s| < 0.1716, so that the first term left out is below 2^-53. */
    const double s = (m - 1) / (m + 1), square = s * s;
    double sum = 0;
#define NORMAL_TERM(k) sum = sum * square + 1.0 / (k);
    TESS_NORMAL_LOG(NORMAL_TERM)
#undef NORMAL_TERM
    return e * 0.69314718055994531 + 2 * s * sum;
}

/* cos(pi/2 fold / 2^30), fold in [0, 2^30], by Taylor's series of cos(a) and sin(a)/a in a^2, from
 * the last term on. Beyond a = pi/4 they are not evaluated; the first term left out is below
 * 2^-53. */
static inline __attribute__((always_inline)) double tess__normal_cos(double fold)
{
    const bool use_sin = fold > 0x1p29; /* cos(a) = sin(pi/2 - a) */
    const double a = (use_sin ? 0x1p30 - fold : fold) * (1.5707963267948966 * 0x1p-30);
    const double square = a * a;
    double sum = 0;
#define NORMAL_TERM(of_cos, of_sin) sum = sum * square + (use_sin ? (of_sin) : (of_cos));
    TESS_NORMAL_COS(NORMAL_TERM)
#undef NORMAL_TERM
    return sum * (use_sin ? a : 1.0);
}

#define TESS_NORMAL_LANES 32

/* The same bits as numbers and as integers. */
union tess__normal_bits {
    double x[TESS_NORMAL_LANES];
    uint64_t u[TESS_NORMAL_LANES];
};

/* The normals z[i] of words a[i] and b[i], i < count <= TESS_NORMAL_LANES: a constant. */
static inline __attribute__((always_inline)) void tess__normals_of(int count, const uint32_t *a,
                                                                   const uint32_t *b, float *z)
{
    union tess__normal_bits n, m, e;
    double fold[TESS_NORMAL_LANES], sign[TESS_NORMAL_LANES];
    for (int i = 0; i < count; i++) /* as signed integers, which all vector units convert */
        n.x[i] = (double)(int32_t)(a[i] ^ 0x80000000u) + 0x1p31 + 1;
    for (int i = 0; i < count; i++) {
        m.u[i] = (n.u[i] & 0xfffffffffffffu) | UINT64_C(1022) << 52;
        e.u[i] = n.u[i] >> 52 | UINT64_C(0x433) << 52; /* 2^52 + the exponent's bits */
    }
    for (int i = 0; i < count; i++) {
        /* In quarter b >> 30; cos(pi/2 + a) = -sin(a) = -cos(pi/2 - a). */
        const int32_t part = (int32_t)(b[i] & 0x3fffffffu);
        const uint32_t quarter = b[i] >> 30;
        const int32_t odd = -(int32_t)(quarter & 1), second = (int32_t)((quarter + 1) & 2);
        fold[i] = (double)((part ^ odd) + (odd & 0x40000001));
        sign[i] = (double)(1 - second);
    }
    for (int i = 0; i < count; i++)
        z[i] = (float)(sqrt(-2 * tess__normal_log(m.x[i], e.x[i] - (0x1p52 + 1022))) *
                       (tess__normal_cos(fold[i]) * sign[i]));
}

#endif
