/* Exact sums: the same bits in any order, partition and distribution over the digits, and the right
 * bits: against integers of 128 bits and long double where those are exact. */
#include "base/rng.h"
#include "base/sum.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static void assert_same(double a, double b)
{
    assert_int_equal(bits_of(a), bits_of(b));
}

static double sum_of(const double *x, int count)
{
    struct tess_sum sum;
    tess_sum_clear(&sum);
    for (int i = 0; i < count; i++)
        tess_sum_add(&sum, x[i]);
    return tess_sum_value(&sum);
}

static void case_one_value_is_itself(void **state)
{
    (void)state;
    struct tess_rng_key key = tess_rng_key(1, TESS_RNG_TEST, 0);
    assert_same(sum_of(NULL, 0), 0.0);
    double zero[] = {0.0, -0.0};
    assert_same(sum_of(zero, 2), 0.0);
    /* Every exponent whose lowest bit has a digit: 2^-268 has its 53 bits above 2^-320. */
    for (int e = -268; e < 287; e++) {
        double x = ldexp(1 + (double)tess_rng_uniform(key, (uint64_t)(e + 400), 0), e);
        double full = ldexp(2 - DBL_EPSILON, e), power = ldexp(1, e);
        assert_same(sum_of(&x, 1), x);
        assert_same(sum_of(&full, 1), full);
        assert_same(sum_of(&power, 1), power);
    }
}

static void case_below_the_lowest_digit(void **state)
{
    (void)state;
    double cut = ldexp(1, -320) + ldexp(1, -321), lowest = ldexp(1, -320);
    assert_same(sum_of(&cut, 1), lowest);
    double gone[] = {ldexp(1, -321), DBL_MIN, DBL_TRUE_MIN, 0x1p-1022 - 0x1p-1074, 0x1p-400};
    for (int i = 0; i < 5; i++)
        assert_same(sum_of(&gone[i], 1), 0.0);
    double kept = 0x1.fffffffffffffp-300; /* 21 of its bits lie above 2^-320 */
    assert_same(sum_of(&kept, 1), ldexp((1 << 21) - 1, -320));
}

static void case_not_finite_and_huge(void **state)
{
    (void)state;
    double bad[] = {NAN, INFINITY, DBL_MAX, 0x1p287, -NAN};
    for (int i = 0; i < 5; i++) {
        struct tess_sum sum;
        tess_sum_clear(&sum);
        tess_sum_add(&sum, 1);
        tess_sum_add(&sum, bad[i]);
        tess_sum_add(&sum, 1);
        assert_true(isnan(tess_sum_value(&sum)));
        assert_int_equal(sum.limb[TESS_SUM_LIMBS - 1], 1);
    }
    double top = 0x1.fffffffffffffp286;
    assert_same(sum_of(&top, 1), top);
    double many[64];
    for (int i = 0; i < 64; i++)
        many[i] = top;
    assert_same(sum_of(many, 64), 64 * top);
}

/* Integers below 2^100, summed exactly in 128 bits and rounded by hand. */
static double round_128(unsigned __int128 value)
{
    int shift = 0;
    unsigned __int128 head = value;
    while (head >> 53) {
        head >>= 1;
        shift++;
    }
    unsigned __int128 rest = value - (head << shift);
    unsigned __int128 half = shift > 0 ? (unsigned __int128)1 << (shift - 1) : 0;
    if (shift > 0 && (rest > half || (rest == half && (head & 1))))
        head++;
    return ldexp((double)(uint64_t)head, shift);
}

static void case_against_128_bit_integers(void **state)
{
    (void)state;
    struct tess_rng_key key = tess_rng_key(2, TESS_RNG_TEST, 0);
    for (uint64_t trial = 0; trial < 2000; trial++) {
        unsigned __int128 exact = 0;
        struct tess_sum sum;
        tess_sum_clear(&sum);
        int count = 1 + (int)(tess_rng_word(key, 0, trial) % 40);
        for (int i = 0; i < count; i++) {
            uint64_t mantissa = (uint64_t)tess_rng_word(key, 4 * (uint64_t)i + 1, trial) << 21 |
                                tess_rng_word(key, 4 * (uint64_t)i + 2, trial) >> 11;
            int shift = (int)(tess_rng_word(key, 4 * (uint64_t)i + 3, trial) % 48);
            exact += (unsigned __int128)mantissa << shift;
            tess_sum_add(&sum, ldexp((double)mantissa, shift));
        }
        assert_same(tess_sum_value(&sum), round_128(exact));
    }
}

static void case_ties_and_almost_ties(void **state)
{
    (void)state;
    double even[] = {0x1p53, 1}, odd[] = {0x1p53, 2, 1}, above[] = {0x1p53, 1, 0x1p-200};
    double below[] = {0x1p53, 0.5, 0.25}, carry[] = {0x1.fffffffffffffp52, 0.5};
    assert_same(sum_of(even, 2), 0x1p53);
    assert_same(sum_of(odd, 3), 0x1p53 + 4);
    assert_same(sum_of(above, 3), 0x1p53 + 2);
    assert_same(sum_of(below, 3), 0x1p53);
    assert_same(sum_of(carry, 2), 0x1p53);
}

static void case_against_long_double(void **state)
{
    (void)state;
    if (LDBL_MANT_DIG < 64)
        skip();
    /* Products of 24-bit squares, as square_sum makes them, over a range of 2^8: 48 bits and 8 and
     * the 6 of 64 values are within 64, so the long double sum is exact. */
    struct tess_rng_key key = tess_rng_key(3, TESS_RNG_TEST, 0);
    for (uint64_t trial = 0; trial < 500; trial++) {
        long double exact = 0;
        struct tess_sum sum;
        tess_sum_clear(&sum);
        for (uint64_t i = 0; i < 64; i++) {
            double x = (1 + (double)tess_rng_uniform(key, 2 * i, trial)) *
                       ldexp(1, (int)(tess_rng_word(key, 2 * i + 1, trial) % 4));
            exact += (long double)(x * x);
            tess_sum_add(&sum, x * x);
        }
        assert_same(tess_sum_value(&sum), (double)exact);
    }
}

#define VALUES 500

/* Values over the whole range, many equal in exponent, so that digits overlap and carry. */
static void make_values(double *x, uint64_t trial)
{
    struct tess_rng_key key = tess_rng_key(4, TESS_RNG_TEST, trial);
    for (uint64_t i = 0; i < VALUES; i++) {
        int e = i % 3 ? -60 + (int)(tess_rng_word(key, i, 1) % 120)
                      : -330 + (int)(tess_rng_word(key, i, 2) % 616);
        x[i] = ldexp(1 + (double)tess_rng_uniform(key, i, 0), e);
    }
}

static void case_order_and_partition_do_not_matter(void **state)
{
    (void)state;
    double x[VALUES];
    for (uint64_t trial = 0; trial < 20; trial++) {
        make_values(x, trial);
        double whole = sum_of(x, VALUES);
        assert_true(whole > 0 && isfinite(whole));
        for (uint64_t way = 0; way < 20; way++) {
            struct tess_rng_key key = tess_rng_key(5, TESS_RNG_TEST, 100 * trial + way);
            int parts = 1 + (int)(tess_rng_word(key, 0, 7) % 9);
            struct tess_sum part[9], total;
            for (int p = 0; p < parts; p++)
                tess_sum_clear(&part[p]);
            for (uint64_t i = 0; i < VALUES; i++)
                tess_sum_add(&part[tess_rng_word(key, i, 8) % (uint32_t)parts],
                             x[tess_rng_permute(key, VALUES, i)]);
            tess_sum_clear(&total);
            for (int p = 0; p < parts; p++)
                tess_sum_merge(&total, &part[(p + (int)way) % parts]);
            assert_same(tess_sum_value(&total), whole);
        }
    }
}

/* Moving m units of limb k + 1 into 2^32 m units of limb k changes the digits, not the number. */
static void case_digit_distribution_does_not_matter(void **state)
{
    (void)state;
    double x[VALUES];
    struct tess_rng_key key = tess_rng_key(6, TESS_RNG_TEST, 0);
    for (uint64_t trial = 0; trial < 50; trial++) {
        struct tess_sum sum;
        make_values(x, trial);
        tess_sum_clear(&sum);
        for (int i = 0; i < VALUES; i++)
            tess_sum_add(&sum, x[i]);
        double whole = tess_sum_value(&sum);
        for (uint64_t move = 0; move < 40; move++) {
            int k = (int)(tess_rng_word(key, move, trial) % (TESS_SUM_LIMBS - 2));
            int64_t units = (int64_t)(tess_rng_word(key, move + 100, trial) % 2000) - 1000;
            sum.limb[k + 1] -= units;
            sum.limb[k] += units * ((int64_t)1 << 32);
            assert_same(tess_sum_value(&sum), whole);
        }
    }
}

static void case_fullest_digits(void **state)
{
    (void)state;
    /* What 2^31 additions of the greatest digit leave in every limb: no overflow, the right value.
     * The number is (2^32 - 1) 2^31 (1 + 2^32 + ... + 2^(32 * 18)) 2^-320 = (2^608 - 1) 2^-289. */
    struct tess_sum sum;
    tess_sum_clear(&sum);
    for (int k = 0; k < TESS_SUM_LIMBS - 1; k++)
        sum.limb[k] = (int64_t)0xffffffff << 31;
    assert_same(tess_sum_value(&sum), 0x1p319);
    /* The same with the lowest limb a little fuller still, as a merge may leave it. */
    sum.limb[0] += ((int64_t)1 << 31) - 1;
    assert_same(tess_sum_value(&sum), 0x1p319);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_one_value_is_itself),
        cmocka_unit_test(case_below_the_lowest_digit),
        cmocka_unit_test(case_not_finite_and_huge),
        cmocka_unit_test(case_against_128_bit_integers),
        cmocka_unit_test(case_ties_and_almost_ties),
        cmocka_unit_test(case_against_long_double),
        cmocka_unit_test(case_order_and_partition_do_not_matter),
        cmocka_unit_test(case_digit_distribution_does_not_matter),
        cmocka_unit_test(case_fullest_digits),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
