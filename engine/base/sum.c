/* Exact sums in fixed point; the format is described in sum.h. */
#include "base/sum.h"

#include <math.h>
#include <string.h>

#define SUM_DIGITS       (TESS_SUM_LIMBS - 1)
#define SUM_COUNT_LIMB   SUM_DIGITS
#define SUM_LOW_EXPONENT (-320)
#define SUM_TOP          0x1p287 /* from here on a value counts as infinite */

void tess_sum_clear(struct tess_sum *sum)
{
    memset(sum, 0, sizeof(*sum));
}

void tess_sum_add(struct tess_sum *sum, double value)
{
    if (!(value < SUM_TOP)) { /* true for NaN */
        sum->limb[SUM_COUNT_LIMB]++;
        return;
    }
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (exponent > 0)
        mantissa |= (uint64_t)1 << 52;
    else
        exponent = 1; /* subnormal: value = mantissa * 2^-1074 */

    /* value = mantissa * 2^(exponent - 1075); `place` is that power above the lowest digit's. */
    int place = exponent - 1075 - SUM_LOW_EXPONENT;
    if (place < 0) {
        mantissa = place > -64 ? mantissa >> -place : 0;
        place = 0;
    }
    int k = place >> 5, shift = place & 31;
    uint64_t low = mantissa << shift;
    uint64_t high = shift > 0 ? mantissa >> (64 - shift) : 0;
    sum->limb[k] += (int64_t)(low & 0xffffffffu);
    sum->limb[k + 1] += (int64_t)(low >> 32);
    sum->limb[k + 2] += (int64_t)high; /* 0 where k + 2 would be the count: value < 2^287 */
}

void tess_sum_merge(struct tess_sum *sum, const struct tess_sum *other)
{
    for (int k = 0; k < TESS_SUM_LIMBS; k++)
        sum->limb[k] += other->limb[k];
}

double tess_sum_value(const struct tess_sum *sum)
{
    if (sum->limb[SUM_COUNT_LIMB] != 0)
        return NAN;

    /*
     * Carry first: the same sum may be spread over the digits in many ways, its carried form is
     * one. digit[k + 2] belongs to limb k; two zeros below and the last carry above spare special
     * cases.
     */
    uint32_t digit[SUM_DIGITS + 3] = {0};
    int64_t carry = 0;
    for (int k = 0; k < SUM_DIGITS; k++) {
        int64_t low = (sum->limb[k] & 0xffffffff) + carry; /* the whole limb + carry may overflow */
        digit[k + 2] = (uint32_t)(low & 0xffffffff);
        carry = (sum->limb[k] >> 32) + (low >> 32);
    }
    digit[SUM_DIGITS + 2] = (uint32_t)carry;

    int top = SUM_DIGITS + 2;
    while (top > 1 && digit[top] == 0)
        top--;
    if (top == 1)
        return 0;

    /* The first 64 bits from the leading one on, and whether anything follows. */
    uint64_t head = (uint64_t)digit[top] << 32 | digit[top - 1];
    int lead = __builtin_clzll(head);
    uint64_t next = (uint64_t)digit[top - 2] << lead;
    head = head << lead | next >> 32;
    uint64_t rest = next & 0xffffffffu;
    for (int k = top - 3; k >= 2; k--)
        rest |= digit[k];

    uint64_t mantissa = head >> 11, tail = head & 0x7ff;
    if (tail > 0x400 || (tail == 0x400 && (rest != 0 || (mantissa & 1))))
        mantissa++; /* to nearest, ties to even */
    int exponent = SUM_LOW_EXPONENT + 32 * (top - 1 - 2) - lead + 11;
    return ldexp((double)mantissa, exponent);
}
