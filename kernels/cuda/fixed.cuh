/*
 * Exact sums in fixed point on the device: the arithmetic of base/sum.h and base/sum.c, which a
 * device cannot call, digit by digit the same. Sums are of integers, so that their order and their
 * grouping change nothing.
 */
#ifndef KERNELS_CUDA_FIXED_CUH
#define KERNELS_CUDA_FIXED_CUH

#include "cuda/launch.cuh"
#include "tessera/update.h"

#define FIXED_DIGITS       (TESS_SUM_LIMBS - 1)
#define FIXED_COUNT_LIMB   FIXED_DIGITS /* counts what is not finite */
#define FIXED_LOW_EXPONENT (-320)

/* limb[k * stride] += the digits of value >= 0. */
static __device__ __forceinline__ void fixed_add(long long *limb, int stride, double value)
{
    if (!(value < 0x1p287)) { /* true for NaN */
        limb[FIXED_COUNT_LIMB * stride]++;
        return;
    }
    uint64_t bits = (uint64_t)__double_as_longlong(value);
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (exponent > 0)
        mantissa |= (uint64_t)1 << 52;
    else
        exponent = 1;
    int place = exponent - 1075 - FIXED_LOW_EXPONENT;
    if (place < 0) {
        mantissa = place > -64 ? mantissa >> -place : 0;
        place = 0;
    }
    int k = place >> 5, shift = place & 31;
    uint64_t low = mantissa << shift, high = shift > 0 ? mantissa >> (64 - shift) : 0;
    limb[k * stride] += (long long)(low & 0xffffffffu);
    limb[(k + 1) * stride] += (long long)(low >> 32);
    limb[(k + 2) * stride] += (long long)high;
}

/* The sum rounded to double, to nearest even; NaN when something not finite was added. */
static __device__ double fixed_value(const long long *limb)
{
    if (limb[FIXED_COUNT_LIMB] != 0)
        return __longlong_as_double(0x7ff8000000000000ll);

    /* Carry first: the same sum may be spread over the digits in many ways, its carried form is
       one. digit[k + 2] belongs to limb k. */
    uint32_t digit[FIXED_DIGITS + 3] = {0};
    long long carry = 0;
    for (int k = 0; k < FIXED_DIGITS; k++) {
        long long low = (limb[k] & 0xffffffffll) + carry;
        digit[k + 2] = (uint32_t)low;
        carry = (limb[k] >> 32) + (low >> 32);
    }
    digit[FIXED_DIGITS + 2] = (uint32_t)carry;

    int top = FIXED_DIGITS + 2;
    while (top > 1 && digit[top] == 0)
        top--;
    if (top == 1)
        return 0;

    /* The first 64 bits from the leading one on, and whether anything follows. */
    uint64_t head = (uint64_t)digit[top] << 32 | digit[top - 1];
    int lead = __clzll((long long)head);
    uint64_t next = (uint64_t)digit[top - 2] << lead;
    head = head << lead | next >> 32;
    uint64_t rest = next & 0xffffffffu;
    for (int k = top - 3; k >= 2; k--)
        rest |= digit[k];

    uint64_t mantissa = head >> 11, tail = head & 0x7ff;
    if (tail > 0x400 || (tail == 0x400 && (rest != 0 || (mantissa & 1))))
        mantissa++;
    int exponent = FIXED_LOW_EXPONENT + 32 * (top - 1 - 2) - lead + 11;
    return ldexp((double)mantissa, exponent); /* never subnormal: exact */
}

#endif
