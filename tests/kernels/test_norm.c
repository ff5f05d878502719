/*
 * Sums of squares and the search for what is not finite, of one backend (argv[1]): against long
 * double, against ref to the bit, and in pieces.
 */
#include "device.h"

#include "base/sum.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

static const int64_t length[] = {1, 7, 8, 63, 64, 65, 100, 128, 511, 1000, 4096, 5001};
#define LENGTHS (sizeof(length) / sizeof(length[0]))

/* Numbers of many sizes, so that the order of addition shows in the last bits. */
static float *norm_draw(int64_t n, uint64_t seed)
{
    struct draw draw = {seed};
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)ldexp(draw_real(&draw, TESS_F32), (int)draw_between(&draw, -20, 20));
    return x;
}

/* The sum of squares, added to nothing. */
static struct tess_sum square_sum(int64_t n, int32_t block, float scale, const float *x_dev)
{
    struct tess_sum sum, *sum_dev = device_array(&device, sizeof(sum));
    tess_fill(device.kernel, sizeof(sum), 0, sum_dev);
    tess_square_sum(device.kernel, n, block, scale, x_dev, sum_dev);
    device_get(&device, &sum, sum_dev, sizeof(sum));
    return sum;
}

static void case_square_sum(void **state)
{
    (void)state;
    static const float scale[] = {1.0f, 0.37f, 1e-6f};
    for (size_t i = 0; i < 3 * LENGTHS; i++) {
        int64_t n = length[i / 3];
        const int32_t block = TESS_SUM_BLOCK >> i % 7;
        device_reset(&device);
        float *x = norm_draw(n, i), *x_dev = device_array(&device, (size_t)n * sizeof(float));
        device_put(&device, x_dev, x, (size_t)n * sizeof(float));
        const struct tess_sum sum = square_sum(n, block, scale[i % 3], x_dev);
        struct tess_sum ref, pieces;
        tess_sum_clear(&ref);
        tess_sum_clear(&pieces);
        tess_kernel_ref.square_sum(NULL, n, block, scale[i % 3], x, &ref);
        check_bytes("square sum against ref", &sum, &ref, sizeof(sum));
        /* pieces at multiples of the block, from the back, merged */
        for (int64_t begin = (n - 1) / 192 * 192; begin >= 0; begin -= 192) {
            int64_t count = n - begin < 192 ? n - begin : 192;
            const struct tess_sum one = square_sum(count, block, scale[i % 3], x_dev + begin);
            tess_sum_merge(&pieces, &one);
        }
        check_bytes("square sum in pieces", &pieces, &ref, sizeof(ref));
        long double expected = 0;
        for (int64_t k = 0; k < n; k++) {
            float scaled = scale[i % 3] * x[k];
            expected += (long double)scaled * (long double)scaled;
        }
        /* Exact squares, 63 roundings in a block at most, one at the end, and the cut at 2^-320. */
        long double off = fabsl((long double)tess_sum_value(&sum) - expected);
        assert_true(off <= 66 * 0x1p-53L * expected);
        free(x);
    }
}

/*
 * The order inside a block, as in ref/square.h. Sizes are spread so far (squares from 2^-60
 * to 2^60) that nearly every addition rounds: over 50 blocks another order shows.
 */
static void case_block_order(void **state)
{
    (void)state;
    struct draw draw = {99};
    for (int round = 0; round < 50; round++) {
        float x[TESS_SUM_BLOCK];
        double lane[8] = {0};
        for (int i = 0; i < TESS_SUM_BLOCK; i++) {
            x[i] = (float)ldexp(draw_real(&draw, TESS_F32), (int)draw_between(&draw, -30, 30));
            lane[i % 8] += (double)x[i] * (double)x[i];
        }
        double block = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                       ((lane[1] + lane[5]) + (lane[3] + lane[7]));
        struct tess_sum expected;
        tess_sum_clear(&expected);
        tess_sum_add(&expected, block);
        device_reset(&device);
        float *x_dev = device_array(&device, sizeof(x));
        device_put(&device, x_dev, x, sizeof(x));
        const struct tess_sum sum = square_sum(TESS_SUM_BLOCK, TESS_SUM_BLOCK, 1, x_dev);
        check_bytes("block", &sum, &expected, sizeof(sum));
    }
}

static void case_square_sum_nonfinite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        device_reset(&device);
        float *x = norm_draw(300, 5), *x_dev = device_array(&device, 300 * sizeof(float));
        x[100 + 99 * i] = bad[i];
        device_put(&device, x_dev, x, 300 * sizeof(float));
        const struct tess_sum sum = square_sum(300, TESS_SUM_BLOCK, 1, x_dev);
        assert_true(isnan(tess_sum_value(&sum)));
        free(x);
    }
}

/* Bits of a value that is not finite, and of the greatest finite one, per dtype. */
struct bad_bits {
    enum tess_dtype dtype;
    uint64_t nan, infinity, greatest;
};

static const struct bad_bits bad_bits[] = {
    {TESS_F32, 0xffc00001u, 0x7f800000u, 0x7f7fffffu},
    {TESS_BF16, 0x7f81u, 0xff80u, 0xff7fu},
    {TESS_F16, 0xfe00u, 0x7c00u, 0x7bffu},
    {TESS_F64, 0x7ff0000000000001u, 0xfff0000000000000u, 0x7fefffffffffffffu},
};

static void case_find_nonfinite(void **state)
{
    (void)state;
    for (size_t k = 0; k < 4 * LENGTHS; k++) {
        const struct bad_bits *bits = &bad_bits[k % 4];
        int64_t n = length[k / 4];
        size_t word = tess_dtype_bytes(bits->dtype), bytes = (size_t)n * word;
        struct draw draw = {k};
        device_reset(&device);
        char *x = malloc(bytes), *x_dev = device_array(&device, bytes);
        for (int64_t i = 0; i < n; i++)
            memcpy(x + (size_t)i * word, &bits->greatest, word);
        device_put(&device, x_dev, x, bytes);
        assert_int_equal(tess_find_nonfinite(device.kernel, bits->dtype, n, x_dev), -1);
        int64_t last = n - 1, first = draw_between(&draw, 0, n - 1);
        memcpy(x + (size_t)last * word, &bits->nan, word);
        device_put(&device, x_dev, x, bytes);
        assert_int_equal(tess_find_nonfinite(device.kernel, bits->dtype, n, x_dev), last);
        memcpy(x + (size_t)first * word, &bits->infinity, word);
        device_put(&device, x_dev, x, bytes);
        assert_int_equal(tess_find_nonfinite(device.kernel, bits->dtype, n, x_dev), first);
        free(x);
    }
}

/* What tess_count_zeros adds to a sum that holds 3 already. */
static int64_t zeros_of(enum tess_dtype dtype, int64_t count, const void *x)
{
    double sum = 3;
    double *sum_dev = device_array(&device, sizeof(sum));
    device_put(&device, sum_dev, &sum, sizeof(sum));
    tess_count_zeros(device.kernel, dtype, count, x, sum_dev);
    device_get(&device, &sum, sum_dev, sizeof(sum));
    return (int64_t)sum - 3;
}

/* Both zeros count, the smallest subnormals and NaN do not; all positions of a vector, and tails.
 */
static void case_count_zeros(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    static const uint32_t nonzero[][4] = {{1, 0x80000001u, 0x7fc00000u, 0x3f800000u},
                                          {1, 0x8001, 0x7fc0, 0x3f80},
                                          {1, 0x8001, 0xfe00, 0x3c00}};
    for (size_t k = 0; k < 3 * LENGTHS; k++) {
        int64_t n = length[k / 3], zeros = 0;
        size_t word = tess_dtype_bytes(dtypes[k % 3]), bytes = (size_t)n * word;
        struct draw draw = {k};
        device_reset(&device);
        char *x = malloc(bytes), *x_dev = device_array(&device, bytes);
        for (int64_t i = 0; i < n; i++) {
            int64_t what = draw_between(&draw, 0, 5);
            uint32_t bits = what < 4 ? nonzero[k % 3][what] : what == 4 ? 0 : 1u << (8 * word - 1);
            memcpy(x + (size_t)i * word, &bits, word); /* the low bytes: little-endian */
            zeros += what >= 4;
        }
        device_put(&device, x_dev, x, bytes);
        assert_int_equal(zeros_of(dtypes[k % 3], n, x_dev), zeros);
        tess_fill(device.kernel, (int64_t)bytes, 0, x_dev);
        assert_int_equal(zeros_of(dtypes[k % 3], n, x_dev), n);
        free(x);
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 256u << 10);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_square_sum),           cmocka_unit_test(case_block_order),
        cmocka_unit_test(case_square_sum_nonfinite), cmocka_unit_test(case_find_nonfinite),
        cmocka_unit_test(case_count_zeros),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
