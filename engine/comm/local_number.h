/* Conversions of the 16-bit float types by integer arithmetic, free of branches so that loops over
 * them vectorise. Round to nearest, ties to even; NaN stays NaN. */
#ifndef TESSERA_COMM_LOCAL_NUMBER_H
#define TESSERA_COMM_LOCAL_NUMBER_H

#include <stdint.h>
#include <string.h>

static inline __attribute__((always_inline)) float number_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline __attribute__((always_inline)) uint32_t number_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline __attribute__((always_inline)) float number_from_bf16(uint16_t half)
{
    return number_from_bits((uint32_t)half << 16);
}

static inline __attribute__((always_inline)) uint16_t number_to_bf16(float value)
{
    uint32_t bits = number_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline __attribute__((always_inline)) float number_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fffu);
    /* 2^112 moves the exponent's bias from 15 to 127 and makes subnormals normal, exactly. */
    float scaled = number_from_bits(rest << 13) * 0x1p112f;
    uint32_t bits = rest >= 0x7c00u ? 0x7f800000u | (rest << 13) : number_bits(scaled);
    return number_from_bits(sign | bits);
}

static inline __attribute__((always_inline)) uint16_t number_to_f16(float value)
{
    uint32_t bits = number_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t rest = bits & 0x7fffffffu;
    /* Normal: rebias by subtracting 112 exponents, round the 13 bits that go. */
    uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    /* Below 2^-14: adding 0.5 lets the float adder round at 2^-24, the last bit of a subnormal. */
    uint32_t tiny = number_bits(number_from_bits(rest) + 0.5f) - 0x3f000000u;
    uint32_t half = rest < 0x38800000u ? tiny : normal;
    half = rest >= 0x477ff000u ? 0x7c00u : half; /* rounds to 65536 or more: infinity */
    half = rest > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(sign | half);
}

#endif
