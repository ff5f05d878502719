/* Random numbers: the published known answers, the documented derivations, rough statistics, and
 * that the permutation is one. */
#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* kat_vectors of the Random123 distribution, the three lines "philox4x32 10". */
static void case_philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t low, high;
        struct tess_rng_key key;
        uint32_t word[4];
    } known[] = {
        {0, 0, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         UINT64_MAX,
         {{UINT32_MAX, UINT32_MAX}},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         {{0xa4093822, 0x299f31d0}},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t word[4];
        tess_rng_block(known[i].key, known[i].low, known[i].high, word);
        assert_memory_equal(word, known[i].word, sizeof(word));
        for (uint64_t w = 0; w < 4 && known[i].low < UINT64_MAX / 4; w++)
            assert_int_equal(tess_rng_word(known[i].key, 4 * known[i].low + w, known[i].high),
                             known[i].word[w]);
    }
}

static void case_keys_differ(void **state)
{
    (void)state;
    enum { SEEDS = 8, PURPOSES = 5, INDICES = 50, KEYS = SEEDS * PURPOSES * INDICES };
    static struct tess_rng_key key[KEYS];
    int count = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int purpose = 0; purpose < PURPOSES; purpose++)
            for (uint64_t index = 0; index < INDICES; index++)
                key[count++] = tess_rng_key(seed, (enum tess_rng_purpose)purpose, index);
    for (int i = 0; i < KEYS; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&key[i], &key[j], sizeof(key[i]));
    struct tess_rng_key again = tess_rng_key(0, TESS_RNG_INIT, 0);
    assert_memory_equal(&key[0], &again, sizeof(again));
}

#define DRAWS 100000

static void case_uniform(void **state)
{
    (void)state;
    struct tess_rng_key key = tess_rng_key(1, TESS_RNG_TEST, 0);
    double sum = 0;
    int bin[10] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        float u = tess_rng_uniform(key, i, 3);
        assert_true(u >= 0 && u < 1);
        assert_true(u == (float)(tess_rng_word(key, i, 3) >> 8) / 16777216.0f);
        sum += u;
        bin[(int)(10 * u)]++;
    }
    /* Five standard deviations: of a mean of n uniforms sqrt(1 / 12 n); of a bin's count, which is
     * binomial with p = 1/10, sqrt(n p (1 - p)). */
    assert_true(fabs(sum / DRAWS - 0.5) < 5 * sqrt(1.0 / (12.0 * DRAWS)));
    for (int b = 0; b < 10; b++)
        assert_true(fabs(bin[b] - 0.1 * DRAWS) < 5 * sqrt(0.09 * DRAWS));
}

static void case_normal_is_box_muller(void **state)
{
    (void)state;
    struct tess_rng_key key = tess_rng_key(2, TESS_RNG_TEST, 0);
    double sum = 0, square = 0;
    int unequal = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        float one;
        tess_rng_normals(key, i, 1, &one);
        double z = (double)one;
        double u = ((double)tess_rng_word(key, 2 * i, 0) + 1) * 0x1p-32;
        double v = (double)tess_rng_word(key, 2 * i + 1, 0) * 0x1p-32;
        double expected = sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
        /* Both sides err by a few 2^-53 before they are rounded to float, 2^29 times coarser: they
         * differ only beside a tie, once in 10^8 draws, and then by one unit. */
        assert_true(fabs(z - expected) <= fabs(expected) * 0x1p-23);
        unequal += (float)expected != (float)z;
        sum += z;
        square += z * z;
    }
    assert_true(unequal <= 1);
    /* Five standard deviations of the mean, sqrt(1/n), and of the mean square, sqrt(2/n). */
    assert_true(fabs(sum / DRAWS) < 5 * sqrt(1.0 / DRAWS));
    assert_true(fabs(square / DRAWS - 1) < 5 * sqrt(2.0 / DRAWS));
    float many[37];
    for (uint64_t first = 0; first < 5; first++) {
        tess_rng_normals(key, first, 37, many);
        for (uint64_t i = 0; i < 37; i++) {
            float one;
            tess_rng_normals(key, first + i, 1, &one);
            assert_true(many[i] == one);
        }
    }
}

/* Every x of 0 .. n-1 is met once. */
static void check_permutation(struct tess_rng_key key, uint64_t n)
{
    unsigned char *met = calloc(n, 1);
    assert_non_null(met);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = tess_rng_permute(key, n, i);
        assert_true(x < n);
        assert_int_equal(met[x], 0);
        met[x] = 1;
    }
    free(met);
}

static void case_permutation_is_one(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        check_permutation(tess_rng_key(n, TESS_RNG_SHUFFLE, n % 3), n);
    static const uint64_t size[] = {1023, 1024, 1025, 4095, 4096, 4097, 16385, 60000, 65536, 65537};
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        check_permutation(tess_rng_key(7, TESS_RNG_SHUFFLE, i), size[i]);
}

static void case_permutation_of_huge_ranges(void **state)
{
    (void)state;
    struct tess_rng_key key = tess_rng_key(3, TESS_RNG_SHUFFLE, 0);
    static const uint64_t size[] = {((uint64_t)1 << 32) + 1, (uint64_t)1 << 62,
                                    ((uint64_t)1 << 62) + 1, UINT64_MAX};
    for (size_t s = 0; s < sizeof(size) / sizeof(size[0]); s++) {
        uint64_t seen[100];
        for (uint64_t i = 0; i < 100; i++) {
            seen[i] = tess_rng_permute(key, size[s], i);
            assert_true(seen[i] < size[s]);
            for (uint64_t j = 0; j < i; j++)
                assert_true(seen[i] != seen[j]);
        }
    }
}

/*
 * Over the keys, position p goes to element e in 1 of n cases: with 8000 keys and n = 8 a cell of
 * the table counts 1000 on average, binomial with p = 1/8, deviation sqrt(8000 * 7/64) = 29.6; 64
 * cells within 5 of these deviations. All 24 orders of 4 elements come up about equally often too.
 */
static void case_permutation_is_even_over_keys(void **state)
{
    (void)state;
    int table[8][8] = {{0}}, order[256] = {0}, orders = 0;
    for (uint64_t k = 0; k < 8000; k++) {
        struct tess_rng_key key = tess_rng_key(k, TESS_RNG_SHUFFLE, 1);
        for (uint64_t i = 0; i < 8; i++)
            table[i][tess_rng_permute(key, 8, i)]++;
        unsigned code = 0;
        for (uint64_t i = 0; i < 4; i++)
            code = code * 4 + (unsigned)tess_rng_permute(key, 4, i);
        order[code]++;
    }
    for (int i = 0; i < 8; i++)
        for (int e = 0; e < 8; e++)
            assert_true(abs(table[i][e] - 1000) < 148);
    for (int code = 0; code < 256; code++) {
        orders += order[code] > 0;
        /* Binomial with p = 1/24: 333 on average, deviation 17.9. */
        if (order[code] > 0)
            assert_true(abs(order[code] - 333) < 90);
    }
    assert_int_equal(orders, 24);
}

static void case_clock_goes_forward(void **state)
{
    (void)state;
    double before = tess_clock_s(), now = before;
    while (now == before)
        now = tess_clock_s();
    assert_true(now > before && now - before < 1);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_philox_known_answers),
        cmocka_unit_test(case_keys_differ),
        cmocka_unit_test(case_uniform),
        cmocka_unit_test(case_normal_is_box_muller),
        cmocka_unit_test(case_permutation_is_one),
        cmocka_unit_test(case_permutation_of_huge_ranges),
        cmocka_unit_test(case_permutation_is_even_over_keys),
        cmocka_unit_test(case_clock_goes_forward),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
