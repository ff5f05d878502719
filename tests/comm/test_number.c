/* Conversions of the 16-bit float types against their definition: every 16-bit value there and
 * back, and rounding of floats near every boundary against exact scaling in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "comm/local_number.h"

/* The value of a pattern with `bits` of mantissa and exponent bias `bias`, from the definition. */
static double number_meaning(uint32_t pattern, int bits, int bias)
{
    int top = 2 * bias + 1, exponent = (int)(pattern & 0x7fff) >> bits;
    int mantissa = (int)(pattern & ((1u << bits) - 1));
    double sign = pattern & 0x8000 ? -1 : 1;
    if (exponent == top)
        return mantissa == 0 ? sign * INFINITY : NAN;
    return exponent == 0 ? sign * ldexp(mantissa, 1 - bias - bits)
                         : sign * ldexp(mantissa + (1 << bits), exponent - bias - bits);
}

/* Round to nearest, ties to even, through the exactly known place of the last bit. */
static double number_rounded(double x, int bits, int bias)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    frexp(x, &exponent);
    int last = exponent - 1 - bits < 1 - bias - bits ? 1 - bias - bits : exponent - 1 - bits;
    double rounded = ldexp(nearbyint(ldexp(x, -last)), last);
    return fabs(rounded) >= ldexp(1, bias + 1) ? copysign(INFINITY, x) : rounded;
}

static void number_same(double expected, double actual)
{
    if (isnan(expected))
        assert_true(isnan(actual));
    else if (expected != actual || signbit(expected) != signbit(actual))
        fail_msg("expected %a, got %a", expected, actual);
}

static void case_there_and_back(void **state)
{
    (void)state;
    for (uint32_t pattern = 0; pattern < 65536; pattern++) {
        uint16_t half = (uint16_t)pattern;
        number_same(number_meaning(pattern, 10, 15), number_from_f16(half));
        number_same(number_meaning(pattern, 7, 127), number_from_bf16(half));
        if (!isnan(number_from_f16(half)))
            assert_int_equal(number_to_f16(number_from_f16(half)), half);
        if (!isnan(number_from_bf16(half)))
            assert_int_equal(number_to_bf16(number_from_bf16(half)), half);
    }
}

/* Floats whose low bits are at, just below and just above every kind of tie, at every exponent. */
static void case_rounding(void **state)
{
    (void)state;
    static const uint32_t low[] = {0,      1,      0xfff,  0x1000,  0x1001,   0x1fff,   0x2000,
                                   0x2fff, 0x3000, 0x7fff, 0x8000,  0x8001,   0xffff,   0x18000,
                                   0x1000, 0x5555, 0xaaaa, 0x17fff, 0x7fffff, 0x7fefff, 0x7ff000};
    for (uint32_t high = 0; high < 512; high++) {
        for (uint32_t k = 0; k < 64 * sizeof low / sizeof *low; k++) {
            uint32_t mantissa = (low[k / 64] + (k % 64) * 0x1f000u) & 0x7fffff;
            float x = number_from_bits(high << 23 | mantissa);
            number_same(number_rounded(x, 10, 15), number_meaning(number_to_f16(x), 10, 15));
            number_same(number_rounded(x, 7, 127), number_meaning(number_to_bf16(x), 7, 127));
        }
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_there_and_back),
        cmocka_unit_test(case_rounding),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
