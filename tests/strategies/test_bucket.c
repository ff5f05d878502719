/* Buckets and shard groups: the arithmetic, exhaustively on small cases. */
#include "bucket.h"
#include "shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The buckets cover the parameters once, and each but the last filled was closed by its lowest one.
 */
static void bucket_check(const int64_t *bytes, int32_t count, double first_limit, double limit)
{
    int32_t first[16];
    int32_t buckets = tess__bucket_fill(bytes, count, first_limit, limit, first);
    assert_in_range(buckets, 1, count);
    assert_int_equal(first[0], 0);
    for (int32_t b = buckets - 1; b >= 0; b--) {
        int32_t end = b + 1 < buckets ? first[b + 1] : count;
        double full = b == buckets - 1 ? first_limit : limit;
        assert_true(first[b] < end);
        int64_t filled = 0;
        for (int32_t p = first[b] + 1; p < end; p++)
            filled += bytes[p];
        assert_true(end - first[b] == 1 || (double)filled < full);
        assert_true(b == 0 || (double)(filled + bytes[first[b]]) >= full);
    }
}

static void test_bucket_exhaustive(void **state)
{
    static const int64_t size[] = {1, 2, 7};
    static const double limits[] = {0, 1, 2, 3, 5, 8, 100};
    (void)state;
    for (int32_t count = 1; count <= 6; count++) {
        int32_t lists = 1;
        for (int32_t i = 0; i < count; i++)
            lists *= 3;
        for (int32_t list = 0; list < lists; list++) {
            int64_t bytes[6];
            for (int32_t i = 0, rest = list; i < count; i++, rest /= 3)
                bytes[i] = size[rest % 3];
            for (size_t a = 0; a < 7; a++)
                for (size_t b = 0; b < 7; b++)
                    bucket_check(bytes, count, limits[a], limits[b]);
        }
    }
}

/* The diagram in bucket.h. */
static void test_bucket_diagram(void **state)
{
    static const int64_t bytes[] = {300, 500, 200, 400};
    int32_t first[4];
    (void)state;
    assert_int_equal(tess__bucket_fill(bytes, 4, 100, 600, first), 3);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[1], 1);
    assert_int_equal(first[2], 3);
}

/* A sum that shows how it was bracketed: the node over two others, neither associative nor
 * commutative. */
static uint64_t shard_node(uint64_t left, uint64_t right)
{
    uint64_t x = left * 0x9e3779b97f4a7c15u + (right ^ (right >> 29)) * 0xbf58476d1ce4e5b9u + 1;
    return x ^ (x >> 31);
}

/* The canonical tree of tessera/comm.h over `count` values. */
static uint64_t shard_tree(const uint64_t *value, int32_t count)
{
    int32_t left = 1;
    if (count == 1)
        return value[0];
    while (2 * left < count)
        left *= 2;
    return shard_node(shard_tree(value, left), shard_tree(value + left, count - left));
}

/* A width fits exactly when summing groups first gives the tree over all ranks. */
static void test_shard_width_is_a_subtree(void **state)
{
    uint64_t value[64], sum[64];
    (void)state;
    for (int32_t r = 0; r < 64; r++)
        value[r] = 1000u + (uint64_t)r;
    for (int32_t ranks = 1; ranks <= 64; ranks++) {
        for (int32_t width = 1; width <= ranks; width++) {
            bool same = false;
            if (ranks % width == 0) {
                for (int32_t g = 0; g < ranks / width; g++)
                    sum[g] = shard_tree(value + g * width, width);
                same = shard_tree(sum, ranks / width) == shard_tree(value, ranks);
            }
            assert_int_equal(tess__shard_width_fits(ranks, width), same);
        }
        assert_false(tess__shard_width_fits(ranks, 0));
        assert_false(tess__shard_width_fits(ranks, ranks + 1));
        assert_true(tess__shard_width_fits(ranks, tess__shard_width_default(ranks)));
    }
}

static void test_shard_width_default(void **state)
{
    static const int32_t expected[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 2},  {5, 5},
                                          {6, 2}, {8, 4}, {9, 9}, {12, 4}, {16, 8}};
    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        assert_int_equal(tess__shard_width_default(expected[i][0]), expected[i][1]);
}

static void test_shard_width_list(void **state)
{
    char text[64];
    (void)state;
    tess__shard_width_list(1, text, sizeof(text));
    assert_string_equal(text, "1");
    tess__shard_width_list(8, text, sizeof(text));
    assert_string_equal(text, "1, 2, 4 or 8");
    tess__shard_width_list(6, text, sizeof(text));
    assert_string_equal(text, "1, 2 or 6");
    char narrow[5];
    tess__shard_width_list(8, narrow, sizeof(narrow));
    assert_true(strlen(narrow) < sizeof(narrow));
}

/* What one rank sends, counted slice by slice of N equal ones: to each peer its slice, then ours.
 */
static void test_shard_volumes(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint64_t slice = 0; slice <= 5; slice++) {
            uint64_t scattered = 0, gathered = 0;
            for (int32_t peer = 1; peer < ranks; peer++) {
                scattered += slice;
                gathered += slice;
            }
            uint64_t whole = slice * (uint64_t)ranks;
            assert_int_equal(tess__shard_scatter_bytes(whole, ranks), scattered);
            assert_int_equal(tess__shard_scatter_bytes(whole, ranks), gathered);
            assert_int_equal(tess__shard_all_reduce_bytes(whole, ranks), scattered + gathered);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bucket_exhaustive),        cmocka_unit_test(test_bucket_diagram),
        cmocka_unit_test(test_shard_width_is_a_subtree), cmocka_unit_test(test_shard_width_default),
        cmocka_unit_test(test_shard_width_list),         cmocka_unit_test(test_shard_volumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
