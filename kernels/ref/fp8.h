/*
 * The 8-bit floating-point formats of linear products (enum tess_fp8): conversion, scales, and
 * what an operation remembers of its operands. Formats as in Micikevicius et al. 2022, "FP8 formats
 * for deep learning", section 3:
 *
 *              sign exponent fraction  bias   greatest      smallest   not a number
 *     e4m3     1    4        3         7      448   0x7e    2^-9       0x7f; no infinity
 *     e5m2     1    5        2         15     57344 0x7b    2^-16      0x7d to 0x7f; 0x7c infinity
 */
#ifndef KERNELS_REF_FP8_H
#define KERNELS_REF_FP8_H

#include "base/half.h"
#include "tessera/kernel.h"

enum tess_fp8_format { TESS_FP8_E4M3, TESS_FP8_E5M2 };

struct tess_fp8_rule {
    uint32_t fraction;     /* bits */
    uint32_t bias, finite; /* the greatest finite magnitude's code */
    int32_t top;           /* it is 1.75 * 2^top */
};

static inline struct tess_fp8_rule tess__fp8_rule(enum tess_fp8_format format)
{
    return format == TESS_FP8_E4M3 ? (struct tess_fp8_rule){3, 7, 0x7e, 8}
                                   : (struct tess_fp8_rule){2, 15, 0x7b, 15};
}

/* To nearest even; what is finite and too great becomes the greatest finite number of its sign,
 * what is not finite 0x7f, a NaN. */
static inline uint8_t tess__fp8_of_f32(enum tess_fp8_format format, float x)
{
    const struct tess_fp8_rule r = tess__fp8_rule(format);
    const uint32_t bits = tess__bits_of_f32(x), magnitude = bits & 0x7fffffffu;
    const uint32_t cut = 23 - r.fraction, smallest_normal = (128 - r.bias) << 23;
    uint32_t code;
    if (magnitude >= 0x7f800000u)
        return 0x7f;
    if (magnitude >= smallest_normal) {
        const uint32_t half = (1u << (cut - 1)) - 1 + ((magnitude >> cut) & 1u);
        code = (magnitude - ((127 - r.bias) << 23) + half) >> cut;
    } else {
        /* A sum whose last place is the smallest subnormal: the addition does the rounding. */
        const uint32_t anchor = (127 + 24 - r.bias - r.fraction) << 23;
        code = tess__bits_of_f32(tess__f32_of_bits(magnitude) + tess__f32_of_bits(anchor)) - anchor;
    }
    return (uint8_t)(((bits >> 24) & 0x80u) | (code < r.finite ? code : r.finite));
}

/* Exact. */
static inline float tess__f32_of_fp8(enum tess_fp8_format format, uint8_t x)
{
    const struct tess_fp8_rule r = tess__fp8_rule(format);
    const uint32_t sign = (uint32_t)(x & 0x80u) << 24, code = x & 0x7fu;
    const uint32_t exponent = code >> r.fraction, fraction = code & ((1u << r.fraction) - 1);
    if (code > r.finite)
        return tess__f32_of_bits(
            sign | (format == TESS_FP8_E5M2 && code == 0x7c ? 0x7f800000u : 0x7fc00000u));
    if (exponent > 0)
        return tess__f32_of_bits(sign | ((exponent + 127 - r.bias) << 23) |
                                 (fraction << (23 - r.fraction)));
    const float unit = tess__f32_of_bits((128 - r.bias - r.fraction) << 23);
    return tess__f32_of_bits(sign | tess__bits_of_f32((float)fraction * unit));
}

/* The exponent of the scale: of the greatest power of two that keeps `greatest` [finite, >= 0]
 * within the format, between 2^-126 and 2^126, so that its inverse is a normal number too; 0 for
 * 0. */
static inline int32_t tess__fp8_exponent(enum tess_fp8_format format, float greatest)
{
    const uint32_t bits = tess__bits_of_f32(greatest);
    if (bits == 0)
        return 0;
    const int32_t over = (bits & 0x7fffffu) > 0x600000u; /* its fraction is above 1.75 */
    const int32_t exponent = tess__fp8_rule(format).top - ((int32_t)(bits >> 23) - 127) - over;
    return exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
}

/* ---- of an open operation: fp8.c ---------------------------------------------------------- */

/* Each with a history of its own: x and dy come to two slots. */
enum ref_fp8_operand {
    REF_FP8_W,
    REF_FP8_X,         /* forward */
    REF_FP8_DY,        /* backward_data */
    REF_FP8_X_WEIGHT,  /* backward_weight */
    REF_FP8_DY_WEIGHT, /* backward_weight */
    REF_FP8_OPERAND_COUNT
};

/* Give and take op->data, where op->desc.fp8 is on. */
enum tess_status tess__ref_fp8_open(struct tess_op *op);
void tess__ref_fp8_close(struct tess_op *op);

/* A call with this operand begins; x [count] of desc.dtype is the whole of it. Where a history
 * makes the scale, it is made here. */
void tess__ref_fp8_begin(struct tess_op *op, enum ref_fp8_operand operand, const void *x,
                         int64_t count);
/* x [count], one leaf of the operand or the weights, becomes what narrowing leaves of it. */
void tess__ref_fp8_narrow(struct tess_op *op, enum ref_fp8_operand operand, float *x,
                          int64_t count);

#endif
