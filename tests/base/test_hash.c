/* Hashes: published values, sums of parts, and that changes of every sort are seen. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void case_mix_is_splitmix64(void **state)
{
    (void)state;
    /* SplitMix64 seeded with 1234567 returns mix(seed + i * gamma); its first five numbers as
     * published with the reference implementation. */
    static const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u,
                                        9817491932198370423u, 4593380528125082431u,
                                        16408922859458223821u};
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(tess_hash_mix(1234567 + (i + 1) * 0x9e3779b97f4a7c15u), expected[i]);
}

static void case_bytes_are_fnv1a(void **state)
{
    (void)state;
    /* FNV-1a of 64 bits: the values of "", "a" and "foobar" published by its authors. */
    assert_int_equal(tess_hash_bytes("", 0), tess_hash_mix(0xcbf29ce484222325u));
    assert_int_equal(tess_hash_bytes("a", 1), tess_hash_mix(0xaf63dc4c8601ec8cu));
    assert_int_equal(tess_hash_bytes("foobar", 6), tess_hash_mix(0x85944171f73967e8u));
}

#define COUNT 1000

static void fill(float *x)
{
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(i % 37) * 0.125f - 1;
}

static void case_parts_add_up(void **state)
{
    (void)state;
    float x[COUNT];
    fill(x);
    uint64_t whole = tess_hash_f32(x, COUNT, 5), single = 0;
    for (size_t i = 0; i < COUNT; i++)
        single += tess_hash_f32(x + i, 1, 5 + i);
    assert_int_equal(single, whole);
    assert_int_equal(tess_hash_f32(x, 0, 5), 0);
    for (size_t cut = 0; cut <= COUNT; cut += 37) {
        uint64_t parts = tess_hash_f32(x, cut, 5) + tess_hash_f32(x + cut, COUNT - cut, 5 + cut);
        assert_int_equal(parts, whole);
    }
}

static void case_changes_are_seen(void **state)
{
    (void)state;
    float x[COUNT];
    fill(x);
    uint64_t whole = tess_hash_f32(x, COUNT, 0);
    assert_int_not_equal(tess_hash_f32(x, COUNT, 1), whole);
    assert_int_not_equal(tess_hash_f32(x, COUNT - 1, 0), whole);
    for (int i = 0; i + 1 < COUNT; i++) {
        float y[COUNT];
        uint32_t bits;
        /* One bit. */
        memcpy(y, x, sizeof(x));
        memcpy(&bits, &y[i], sizeof(bits));
        bits ^= (uint32_t)1 << (i % 32);
        memcpy(&y[i], &bits, sizeof(bits));
        assert_int_not_equal(tess_hash_f32(y, COUNT, 0), whole);
        /* Two neighbours that change places. */
        memcpy(y, x, sizeof(x));
        y[i] = x[i + 1];
        y[i + 1] = x[i];
        assert_int_not_equal(tess_hash_f32(y, COUNT, 0), whole);
    }
    /* Places and bits with equal sums: {i + c, i + 1 + c + 1} and {i + c + 2, i + 1 + c - 1}. */
    static const uint32_t pair[2][2] = {{1000, 1001}, {1002, 999}};
    float y[2][2];
    memcpy(y, pair, sizeof(y));
    assert_int_not_equal(tess_hash_f32(y[0], 2, 7), tess_hash_f32(y[1], 2, 7));
    float zero = 0, minus = -0.0f;
    assert_int_not_equal(tess_hash_f32(&zero, 1, 0), tess_hash_f32(&minus, 1, 0));
}

/* Every bit of every word, pairs of signs, pieces in order, lengths; and 0 in front or behind. */
static void case_runs(void **state)
{
    (void)state;
    float x[COUNT], zero[COUNT] = {0};
    unsigned char *byte = (unsigned char *)x;
    fill(x);
    for (size_t bytes = 0; bytes < 80; bytes++) {
        const uint64_t whole = tess_hash_run(x, bytes, 3);
        assert_int_not_equal(whole, tess_hash_run(x, bytes, 4));
        assert_int_not_equal(whole, tess_hash_run(x, bytes + 1, 3));
        assert_int_not_equal(tess_hash_run(zero, bytes, 0), tess_hash_run(zero, bytes + 1, 0));
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            byte[bit / 8] ^= (unsigned char)(1 << bit % 8);
            assert_int_not_equal(whole, tess_hash_run(x, bytes, 3));
            byte[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    const uint64_t whole = tess_hash_run(x, sizeof(x), 0);
    for (size_t i = 0; i < COUNT; i++)
        for (size_t j = i + 1; j < COUNT; j += 7) {
            x[i] = -x[i];
            x[j] = -x[j];
            if (x[i] != 0 || x[j] != 0)
                assert_int_not_equal(whole, tess_hash_run(x, sizeof(x), 0));
            x[i] = -x[i];
            x[j] = -x[j];
        }
    assert_int_equal(whole, tess_hash_run(x, sizeof(x), 0));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_mix_is_splitmix64),
        cmocka_unit_test(case_bytes_are_fnv1a),
        cmocka_unit_test(case_parts_add_up),
        cmocka_unit_test(case_changes_are_seen),
        cmocka_unit_test(case_runs),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
