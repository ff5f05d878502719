/*
 * Conversions among f32, bf16, f16 and f64, one element at a time, in integer arithmetic so that
 * they vectorise and give the same bits everywhere. All round once, to nearest even; subnormals are
 * kept, never flushed; a NaN stays a NaN, made quiet, with its sign and its upper payload bits.
 */
#ifndef TESSERA_BASE_HALF_H
#define TESSERA_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tess__bits_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float tess__f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float tess__f32_of_bf16(uint16_t x)
{
    return tess__f32_of_bits((uint32_t)x << 16);
}

static inline uint16_t tess__bf16_of_f32(float x)
{
    uint32_t bits = tess__bits_of_f32(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float tess__f32_of_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = x & 0x7fffu;
    /*
     * Normal: move the fields up and rebias by 127 - 15. Subnormal: the same with an exponent of 1,
     * and what that adds taken off again, exactly. By masks instead of a choice, which compilers do
     * not vectorise here.
     */
    uint32_t small = 0u - (uint32_t)(magnitude < 0x400u);
    uint32_t lifted = (magnitude << 13) + (112u << 23) + (small & (1u << 23));
    float value = tess__f32_of_bits(lifted) - tess__f32_of_bits(small & (113u << 23));
    uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u);
    uint32_t bits = magnitude >= 0x7c00u ? special : tess__bits_of_f32(value);
    return tess__f32_of_bits(sign | bits);
}

static inline uint16_t tess__f16_of_f32(float x)
{
    uint32_t bits = tess__bits_of_f32(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    /* Below 2^-14 the sum with 0.5 has its last place at 2^-24, so the addition does the rounding;
       the clamp keeps the unused branch in range. */
    float clamped = tess__f32_of_bits(magnitude < 0x38800000u ? magnitude : 0x38800000u);
    uint32_t small = tess__bits_of_f32(clamped + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    uint32_t half = magnitude >= 0x47800000u   ? special /* 2^16 and more, infinity, NaN */
                    : magnitude >= 0x38800000u ? normal  /* may round up to infinity, rightly */
                                               : small;
    return (uint16_t)(sign | half);
}

/*
 * f64 to f32 rounded to odd: the last bit is set when anything was lost. Rounding that again to at
 * most 22 bits of fraction gives the correctly rounded result (Boldo and Melquiond 2008).
 */
static inline float tess__f32_of_f64_odd(double x)
{
    float nearest = (float)x;
    uint32_t bits = tess__bits_of_f32(nearest);
    double back = (double)nearest;
    double over = x < 0 ? x - back : back - x; /* > 0: rounded away from zero; NaN: neither */
    uint32_t truncated = bits - (over > 0 ? 1u : 0u);
    uint32_t odd = over > 0 || over < 0 ? 1u : 0u;
    return tess__f32_of_bits(truncated | odd);
}

#endif
