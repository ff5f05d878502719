/*
 * Element-wise operations of one backend (argv[1]): exact where the contract leaves one answer, and
 * equal to ref bit for bit in casts, accumulate, dropout and normals.
 */
#include "device.h"

#include "base/rng.h"
#include "ref/mask.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

/* Lengths with vector tails and chunk borders in them. */
static const int64_t length[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 511, 512, 513, 1025, 4099};
#define LENGTHS (sizeof(length) / sizeof(length[0]))

static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
#define DTYPES 3

static void relu_run(enum tess_dtype dtype, int64_t n, bool in_place)
{
    struct draw draw = {(uint64_t)n};
    device_reset(&device);
    double *x = draw_reals(&draw, dtype, n), *dy = draw_reals(&draw, dtype, n), *got = reals(n);
    x[0] = 0;
    void *x_dev = device_put_real(&device, dtype, x, n);
    void *dy_dev = device_put_real(&device, dtype, dy, n);
    size_t bytes = (size_t)n * tess_dtype_bytes(dtype);
    void *y_dev = in_place ? x_dev : device_array(&device, bytes);
    void *dx_dev = in_place ? dy_dev : device_array(&device, bytes);
    tess_relu_forward(device.kernel, dtype, n, x_dev, y_dev);
    tess_relu_backward(device.kernel, dtype, n, y_dev, dy_dev, dx_dev);
    device_get_real(&device, dtype, y_dev, got, n);
    for (int64_t i = 0; i < n; i++)
        assert_true(got[i] == (x[i] > 0 ? x[i] : 0));
    device_get_real(&device, dtype, dx_dev, got, n);
    for (int64_t i = 0; i < n; i++)
        assert_true(got[i] == (x[i] > 0 ? dy[i] : 0));
    free(x);
    free(dy);
    free(got);
}

static void case_relu(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * DTYPES * LENGTHS; i++)
        relu_run(dtypes[i / 2 % DTYPES], length[i / (2 * DTYPES)], i & 1);
}

/* A NaN must come out again: hidden, it would be found a step too late and in the wrong place. */
static void case_relu_nan(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        device_reset(&device);
        double x[40] = {0}, got[40];
        x[3] = x[35] = (double)NAN;
        void *array = device_put_real(&device, dtypes[d], x, 40);
        tess_relu_forward(device.kernel, dtypes[d], 40, array, array);
        device_get_real(&device, dtypes[d], array, got, 40);
        for (int i = 0; i < 40; i++)
            assert_int_equal(isnan(got[i]) != 0, i == 3 || i == 35);
    }
}

static void add_run(enum tess_dtype dtype, int64_t n, int alias)
{
    struct draw draw = {(uint64_t)n + 1};
    device_reset(&device);
    double *a = draw_reals(&draw, dtype, n), *b = draw_reals(&draw, dtype, n), *got = reals(n);
    void *a_dev = device_put_real(&device, dtype, a, n);
    void *b_dev = device_put_real(&device, dtype, b, n);
    void *y_dev = alias == 1   ? a_dev
                  : alias == 2 ? b_dev
                               : device_array(&device, (size_t)n * tess_dtype_bytes(dtype));
    tess_add(device.kernel, dtype, n, a_dev, b_dev, y_dev);
    device_get_real(&device, dtype, y_dev, got, n);
    for (int64_t i = 0; i < n; i++) /* in f32, rounded once more in the others */
        assert_true(got[i] == round_to(dtype, (double)((float)a[i] + (float)b[i])));
    free(a);
    free(b);
    free(got);
}

static void case_add(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTHS; i++) {
        for (int alias = 0; alias < 3; alias++) {
            for (int d = 0; d < DTYPES; d++)
                add_run(dtypes[d], length[i], alias);
        }
    }
}

static void dropout_run(enum tess_dtype dtype, int64_t n, float rate, uint64_t first, bool in_place)
{
    static const uint64_t key[2] = {0x123456789abcdef0u, 42};
    struct draw draw = {(uint64_t)n + 2};
    device_reset(&device);
    double *x = draw_reals(&draw, dtype, n), *got = reals(n);
    void *x_dev = device_put_real(&device, dtype, x, n);
    void *y_dev = in_place ? x_dev : device_array(&device, (size_t)n * tess_dtype_bytes(dtype));
    tess_dropout(device.kernel, dtype, 1, n, n, rate, key, first, x_dev, y_dev);
    device_get_real(&device, dtype, y_dev, got, n);
    struct tess_rng_key stream = tess_rng_key(key[0], TESS_RNG_DROPOUT, key[1]);
    for (int64_t i = 0; i < n; i++) {
        bool keep = tess_rng_uniform(stream, first + (uint64_t)i, 0) >= rate;
        double expected = keep ? round_to(dtype, (double)((float)x[i] / (1.0f - rate))) : 0;
        assert_true(got[i] == expected);
    }
    free(x);
    free(got);
}

/* First elements that are not a multiple of a Philox block of 4, and past 2^32. */
static void case_dropout(void **state)
{
    (void)state;
    static const uint64_t first[] = {0, 1, 2, 3, 4, 63, 0xfffffffeu, 0x7fffffffffffu};
    static const float rate[] = {0.0f, 0.1f, 0.5f, 0.75f, 1.0f};
    for (size_t i = 0; i < LENGTHS; i++)
        for (size_t f = 0; f < sizeof(first) / sizeof(first[0]); f++)
            dropout_run(dtypes[(i + f) % DTYPES], length[i], rate[(i + f) % 5], first[f], i & 1);
}

struct dropout_rows {
    int64_t rows, width, stride;
    uint64_t first;
};

static void dropout_rows_run(enum tess_dtype dtype, struct dropout_rows of, bool in_place)
{
    static const uint64_t key[2] = {5, UINT64_C(9) << 40};
    const float rate = 0.25f;
    const int64_t n = of.rows * of.width;
    struct draw draw = {(uint64_t)n + 3};
    device_reset(&device);
    double *x = draw_reals(&draw, dtype, n), *got = reals(n);
    void *x_dev = device_put_real(&device, dtype, x, n);
    void *y_dev = in_place ? x_dev : device_array(&device, (size_t)n * tess_dtype_bytes(dtype));
    tess_dropout(device.kernel, dtype, of.rows, of.width, of.stride, rate, key, of.first, x_dev,
                 y_dev);
    device_get_real(&device, dtype, y_dev, got, n);
    struct tess_rng_key stream = tess_rng_key(key[0], TESS_RNG_DROPOUT, key[1]);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i / of.width * of.stride + i % of.width;
        bool keep = tess_rng_uniform(stream, of.first + (uint64_t)at, 0) >= rate;
        assert_true(got[i] == (keep ? round_to(dtype, (double)((float)x[i] / (1.0f - rate))) : 0));
    }
    free(x);
    free(got);
}

/* Rows of whole blocks of Philox and others, that fill vectors and do not, up to one that spans
 * several pieces. */
static void case_dropout_rows(void **state)
{
    static const struct dropout_rows of[] = {
        {7, 4, 8, 0},         {33, 20, 80, 40},
        {5, 64, 128, 64},     {3, 68, 68, 4},
        {100, 160, 320, 160}, {9, 10, 30, 20},
        {5, 3, 7, 1},         {12, 1, 4, 2},
        {2, 40, 42, 8},       {40, 8, 16, 0x3ffffffff8u},
        {1, 63, 999, 5},      {6, 4, 16, 3},
    };
    (void)state;
    for (size_t i = 0; i < DTYPES * sizeof(of) / sizeof(of[0]); i++)
        dropout_rows_run(dtypes[i % DTYPES], of[i / DTYPES], i & 1);
}

/* The integer limit decides as uniform < rate does, on its border too. */
static void case_dropout_limit(void **state)
{
    (void)state;
    static const float rate[] = {0.0f, 0.1f, 0.3f, 0.5f, 0x1p-30f, 0.9999999f, 1.0f};
    for (int r = 0; r < 7; r++) {
        int64_t border = (int64_t)((double)rate[r] * 0x1p24);
        for (int64_t top = border - 2; top <= border + 2; top++) {
            if (top < 0 || top >= 1 << 24)
                continue;
            bool keep = (double)top * 0x1p-24 >= (double)rate[r];
            uint32_t word = (uint32_t)top << 8 | 0xabu;
            assert_int_equal(tess__mask_keeps(word, tess__mask_limit(rate[r])), keep);
        }
    }
}

/* The mask of a whole is the masks of its parts, and drops about as many as it should. */
static void case_dropout_rate(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static const uint64_t key[2] = {1, 2};
    device_reset(&device);
    double *x = reals(COUNT), *got = reals(COUNT);
    for (int i = 0; i < COUNT; i++)
        x[i] = 1;
    float *x_dev = device_put_real(&device, TESS_F32, x, COUNT);
    float *whole = device_array(&device, COUNT * sizeof(float));
    float *parts = device_array(&device, COUNT * sizeof(float));
    tess_dropout(device.kernel, TESS_F32, 1, COUNT, COUNT, 0.25f, key, 5, x_dev, whole);
    for (int i = 0; i < COUNT; i += 777) {
        int n = COUNT - i < 777 ? COUNT - i : 777;
        tess_dropout(device.kernel, TESS_F32, 1, n, n, 0.25f, key, 5 + (uint64_t)i, x_dev + i,
                     parts + i);
    }
    float *a = floats(COUNT), *b = floats(COUNT);
    device_get(&device, a, whole, COUNT * sizeof(float));
    device_get(&device, b, parts, COUNT * sizeof(float));
    check_bytes("dropout in parts", b, a, COUNT * sizeof(float));
    int dropped = 0;
    for (int i = 0; i < COUNT; i++)
        dropped += a[i] == 0;
    /* binomial: mean 5000, standard deviation 61; six of them */
    assert_in_range(dropped, 5000 - 367, 5000 + 367);
    free(x);
    free(got);
    free(a);
    free(b);
}

/* Values of all sizes, NaN, infinities and subnormals, as the bytes of `dtype`. */
static char *cast_source(struct draw *draw, enum tess_dtype dtype, int64_t n)
{
    size_t word = tess_dtype_bytes(dtype);
    char *bytes = malloc((size_t)n * word + 1);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = draw_word(draw); /* any pattern */
        double moderate = ldexp(draw_real(draw, TESS_F32), (int)draw_between(draw, -30, 18));
        float whole = (float)moderate;
        if (i % 2 == 0 && dtype == TESS_F64)
            memcpy(&bits, &moderate, 8);
        else if (i % 2 == 0 && dtype == TESS_F32)
            memcpy(&bits, &whole, 4);
        memcpy(bytes + (size_t)i * word, &bits, word);
    }
    return bytes;
}

static void case_cast(void **state)
{
    (void)state;
    static const enum tess_dtype all[] = {TESS_F32, TESS_BF16, TESS_F16, TESS_F64};
    for (size_t k = 0; k < 16 * LENGTHS; k++) {
        enum tess_dtype from = all[k % 4], to = all[k / 4 % 4];
        int64_t n = length[k / 16];
        struct draw draw = {k};
        device_reset(&device);
        char *x = cast_source(&draw, from, n);
        size_t y_bytes = (size_t)n * tess_dtype_bytes(to);
        void *x_dev = device_array(&device, (size_t)n * tess_dtype_bytes(from));
        void *y_dev = device_array(&device, y_bytes);
        char *got = malloc(y_bytes), *expected = malloc(y_bytes);
        device_put(&device, x_dev, x, (size_t)n * tess_dtype_bytes(from));
        tess_cast(device.kernel, n, from, x_dev, to, y_dev);
        device_get(&device, got, y_dev, y_bytes);
        tess_kernel_ref.cast(NULL, n, from, x, to, expected);
        check_bytes("cast against ref", got, expected, y_bytes);
        free(x);
        free(got);
        free(expected);
    }
}

/*
 * ref's own casts, by arithmetic: near the middle of two values of the target, where rounding to
 * f32 on the way would decide wrongly. All of half.h is in test_half.c.
 */
static void case_cast_values(void **state)
{
    (void)state;
    struct draw draw = {77};
    for (int i = 0; i < 2000; i++) {
        enum tess_dtype to = i & 1 ? TESS_BF16 : TESS_F16;
        int digits = to == TESS_BF16 ? 8 : 11;
        double x = (double)(2 * draw_between(&draw, 1 << (digits - 1), (1 << digits) - 1) + 1);
        x = ldexp(x + 0x1p-30 * (double)draw_between(&draw, -1, 1), -digits);
        double wide = 0;
        uint16_t half = 0;
        float whole = 0;
        tess_kernel_ref.cast(NULL, 1, TESS_F64, &x, TESS_F32, &whole);
        assert_true(whole == (float)x);
        tess_kernel_ref.cast(NULL, 1, TESS_F64, &x, to, &half);
        tess_kernel_ref.cast(NULL, 1, to, &half, TESS_F64, &wide);
        assert_true(wide == round_to(to, x));
    }
}

static void case_accumulate(void **state)
{
    (void)state;
    static const float scale[] = {1.0f, 0.5f, 1.0f / 3.0f, -1.7f};
    for (size_t i = 0; i < 4 * LENGTHS; i++) {
        int64_t n = length[i / 4];
        size_t bytes = (size_t)n * sizeof(float);
        struct draw draw = {i};
        device_reset(&device);
        double *x = draw_reals(&draw, TESS_F32, n), *y = draw_reals(&draw, TESS_F32, n);
        float *x_dev = device_put_real(&device, TESS_F32, x, n);
        float *y_dev = device_put_real(&device, TESS_F32, y, n);
        tess_accumulate(device.kernel, n, scale[i % 4], x_dev, y_dev);
        float *got = floats(n);
        device_get(&device, got, y_dev, bytes);
        for (int64_t k = 0; k < n; k++) {
            /* two roundings: each exact in double, then rounded to f32 */
            float product = (float)((double)scale[i % 4] * x[k]);
            assert_true(got[k] == (float)((double)product + y[k]));
        }
        free(x);
        free(y);
        free(got);
    }
}

static void case_fill_copy(void **state)
{
    (void)state;
    device_reset(&device);
    char *a = device_array(&device, 1000), *b = device_array(&device, 1000), host[1000];
    tess_fill(device.kernel, 1000, 0, a);
    tess_fill(device.kernel, 10, 0x5a, a + 333);
    tess_copy(device.kernel, 999, a, b + 1);
    device_get(&device, host, b, 1000);
    for (int i = 1; i < 1000; i++)
        assert_int_equal(host[i], i - 1 >= 333 && i - 1 < 343 ? 0x5a : 0);
    assert_int_equal((unsigned char)host[0], 0xff);
}

static void normal_run(struct tess_rng_key key, int64_t n, uint64_t first, float mean,
                       float deviation)
{
    float *z = floats(n);
    device_reset(&device);
    float *y = device_array(&device, (size_t)n * sizeof(*y));
    tess_normal(device.kernel, key.word, first, n, mean, deviation, y);
    float *got = device_fetch(&device, y, (size_t)n * sizeof(*y));
    tess_rng_normals(key, first, (uint64_t)n, z);
    for (int64_t k = 0; k < n; k++) {
        const float product = (float)((double)deviation * z[k]);
        z[k] = (float)((double)mean + product);
    }
    assert_memory_equal(got, z, (size_t)n * sizeof(*y));
    free(got);
    free(z);
}

/*
 * No backend here has a logarithm or cosine of its own, so the bits are those of base/rng.h. A mean
 * of minus zero leaves the product as it is, its sign also where it is zero: what first values of
 * parameters rest on.
 */
static void case_normal(void **state)
{
    static const uint64_t first[] = {0, 1, 3, 1000, (UINT64_C(1) << 32) - 5};
    const struct tess_rng_key key = tess_rng_key(11, TESS_RNG_INIT, 3);
    (void)state;
    for (size_t i = 0; i < LENGTHS; i++)
        for (size_t f = 0; f < sizeof(first) / sizeof(*first); f++) {
            normal_run(key, length[i], first[f], 0.25f, 0.02f);
            normal_run(key, length[i], first[f], -0.0f, 0.02f);
            normal_run(key, length[i], first[f], -0.0f, 0);
        }
}

/* Of some in each 2^13 a faster formula does not show how they are rounded; of `near` that of AVX2
 * rounds otherwise. A cosine of 0 has a sign, in the elements of quarters 1 and 3; the logarithm of
 * the last one is 0. Found by search. */
static void case_normal_rare(void **state)
{
    static const uint64_t rare[] = {1684167821, 3713986548, 9536352004};
    static const uint64_t near[] = {4861040, 9946081, 12498603};
    const struct tess_rng_key key = {{1, 2}};
    (void)state;
    normal_run(key, 100000, 0, -0.0f, 1);
    for (size_t i = 0; i < sizeof(near) / sizeof(*near); i++)
        normal_run(key, 64, near[i] - 32, -0.0f, 1);
    for (size_t i = 0; i < sizeof(rare) / sizeof(*rare); i++) {
        float z;
        tess_rng_normals(key, rare[i], 1, &z);
        assert_true(z == 0 && (signbit(z) != 0) == (i == 0));
        for (uint64_t before = 0; before < 32; before++)
            normal_run(key, 64, rare[i] - before, -0.0f, 1);
    }
}

/* Nothing to do: no pointer is looked at. */
static void case_empty(void **state)
{
    (void)state;
    static const uint64_t key[2] = {0, 0};
    struct tess_kernel *k = device.kernel;
    tess_relu_forward(k, TESS_F32, 0, NULL, NULL);
    tess_relu_backward(k, TESS_F32, 0, NULL, NULL, NULL);
    tess_add(k, TESS_F32, 0, NULL, NULL, NULL);
    tess_dropout(k, TESS_F32, 1, 0, 0, 0.5f, key, 0, NULL, NULL);
    tess_dropout(k, TESS_F32, 0, 4, 8, 0.5f, key, 0, NULL, NULL);
    tess_softmax_xent(k, TESS_F32, 0, 10, (struct tess_xent){0}, 1, NULL, NULL, NULL, NULL, NULL);
    tess_cast(k, 0, TESS_F32, NULL, TESS_BF16, NULL);
    tess_accumulate(k, 0, 1, NULL, NULL);
    tess_fill(k, 0, 0, NULL);
    tess_copy(k, 0, NULL, NULL);
    tess_square_sum(k, 0, TESS_SUM_BLOCK, 1, NULL, NULL);
    tess_cast_stochastic(k, 0, NULL, TESS_BF16, key, 0, NULL);
    assert_int_equal(tess_find_nonfinite(k, TESS_F32, 0, NULL), -1);
    tess_count_zeros(k, TESS_F16, 0, NULL, NULL);
    tess_find_flag(k, 0, NULL, 1, NULL);
    tess_leaf_sum(k, 0, 4, NULL, NULL, NULL, NULL);
    tess_maximum(k, 0, NULL, NULL);
    tess_normal(k, (const uint32_t[2]){1, 2}, 0, 0, 0, 1, NULL);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 512u << 10);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_relu),         cmocka_unit_test(case_relu_nan),
        cmocka_unit_test(case_add),          cmocka_unit_test(case_dropout),
        cmocka_unit_test(case_dropout_rate), cmocka_unit_test(case_dropout_limit),
        cmocka_unit_test(case_dropout_rows), cmocka_unit_test(case_cast),
        cmocka_unit_test(case_cast_values),  cmocka_unit_test(case_accumulate),
        cmocka_unit_test(case_fill_copy),    cmocka_unit_test(case_normal),
        cmocka_unit_test(case_normal_rare),  cmocka_unit_test(case_empty),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
