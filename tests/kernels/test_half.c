/*
 * The conversions of base/half.h, each 16-bit pattern and its neighbourhood, against rounding by
 * arithmetic on the exponent (round_to). ref's casts are made of them, and every backend has ref's
 * casts.
 */
#include "device.h"

#include "base/half.h"

#include <math.h>
#include <stdlib.h>

static double value_bf16(uint16_t x)
{
    int exponent = x >> 7 & 0xff, fraction = x & 0x7f;
    double size = exponent == 0     ? ldexp(fraction, -133)
                  : exponent == 255 ? (fraction ? NAN : INFINITY)
                                    : ldexp(128 + fraction, exponent - 134);
    return x & 0x8000 ? -size : size;
}

static double value_f16(uint16_t x)
{
    int exponent = x >> 10 & 0x1f, fraction = x & 0x3ff;
    double size = exponent == 0    ? ldexp(fraction, -24)
                  : exponent == 31 ? (fraction ? NAN : INFINITY)
                                   : ldexp(1024 + fraction, exponent - 25);
    return x & 0x8000 ? -size : size;
}

static bool same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

/* Every pattern widens to its value and comes back as itself (NaN: quiet, sign kept). */
static void case_every_pattern(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= 0xffff; i++) {
        uint16_t x = (uint16_t)i;
        assert_true(same((double)tess__f32_of_bf16(x), value_bf16(x)));
        assert_true(same((double)tess__f32_of_f16(x), value_f16(x)));
        uint16_t bf16 = isnan(value_bf16(x)) ? x | 0x40 : x;
        uint16_t f16 = isnan(value_f16(x)) ? x | 0x200 : x;
        assert_int_equal(tess__bf16_of_f32(tess__f32_of_bf16(x)), bf16);
        assert_int_equal(tess__f16_of_f32(tess__f32_of_f16(x)), f16);
    }
}

static void check_rounding(double x)
{
    float whole = (float)x;
    assert_true(same(value_bf16(tess__bf16_of_f32(whole)), round_to(TESS_BF16, (double)whole)));
    assert_true(same(value_f16(tess__f16_of_f32(whole)), round_to(TESS_F16, (double)whole)));
    float odd = tess__f32_of_f64_odd(x);
    assert_true(same(value_bf16(tess__bf16_of_f32(odd)), round_to(TESS_BF16, x)));
    assert_true(same(value_f16(tess__f16_of_f32(odd)), round_to(TESS_F16, x)));
}

/*
 * Around every value and every midpoint of two values: on it, one f64 step beside it, one f32 step
 * beside it. A midpoint and a little is where rounding twice goes wrong.
 */
static void case_neighbours(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0xffff; i++) {
        uint16_t x = (uint16_t)i, next = (uint16_t)(i + 1);
        double pair[][2] = {{value_bf16(x), value_bf16(next)}, {value_f16(x), value_f16(next)}};
        for (int p = 0; p < 2; p++) {
            if (!isfinite(pair[p][0]) || !isfinite(pair[p][1]))
                continue;
            double points[] = {pair[p][0], (pair[p][0] + pair[p][1]) / 2};
            for (int k = 0; k < 2; k++) {
                check_rounding(points[k]);
                check_rounding(nextafter(points[k], INFINITY));
                check_rounding(nextafter(points[k], -INFINITY));
                check_rounding((double)nextafterf((float)points[k], INFINITY));
                check_rounding((double)nextafterf((float)points[k], -INFINITY));
            }
        }
    }
}

static void case_extremes(void **state)
{
    (void)state;
    static const double x[] = {0.0,       -0.0,    65504.0,   65519.9, 65520.0,  65536.0,
                               0x1p-25,   0x1p-26, 0x1.8p-25, 0x1p-14, 0x1p-149, 0x1p-150,
                               0x1p-1074, 1e308,   -1e308,    1e39,    INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        check_rounding(x[i]);
    assert_true(isnan(value_bf16(tess__bf16_of_f32(tess__f32_of_bits(0x7f800001u)))));
    assert_true(isnan(value_bf16(tess__bf16_of_f32(tess__f32_of_bits(0xffffffffu)))));
    assert_true(isnan(value_f16(tess__f16_of_f32(tess__f32_of_bits(0x7f800001u)))));
    assert_true(isnan((double)tess__f32_of_f64_odd((double)NAN)));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_every_pattern),
        cmocka_unit_test(case_neighbours),
        cmocka_unit_test(case_extremes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
