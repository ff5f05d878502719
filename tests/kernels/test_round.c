/*
 * Stochastic rounding of one backend (argv[1]): each element against its definition by arithmetic
 * on the random word, ref's bits, in pieces, exact values, values beyond the range, and the mean.
 */
#include "device.h"

#include "base/half.h"
#include "base/rng.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

static const uint64_t key[2] = {0xfedcba9876543210u, 7};
static const enum tess_dtype dtypes[] = {TESS_BF16, TESS_F16};

/* The two neighbours of |x| in a 16-bit type, and how many bits of x lie below the first. */
struct place {
    double below, unit, share; /* share: (|x| - below) / unit, in [0, 1) */
    int cut;
};

static struct place place_of(enum tess_dtype to, double x)
{
    int least = to == TESS_BF16 ? -126 : -14, digits = to == TESS_BF16 ? 8 : 11;
    int exponent = x == 0 ? least : ilogb(x), fine = exponent < -126 ? -126 : exponent;
    int unit = (exponent < least ? least : exponent) - digits + 1;
    struct place place = {.unit = ldexp(1, unit), .cut = unit - (fine - 23)};
    place.below = floor(fabs(x) / place.unit) * place.unit;
    place.share = (fabs(x) - place.below) / place.unit;
    if (place.cut > 31)
        place.cut = 31;
    return place;
}

/* The definition in tessera/kernel.h: up when the bits cut off and the random ones carry. */
static double rounded_by(enum tess_dtype to, double x, uint32_t word)
{
    double greatest = to == TESS_BF16 ? 0x1.fep127 : 65504;
    if (!(fabs(x) <= greatest))
        return round_to(to, x);
    struct place place = place_of(to, x);
    double all = ldexp(1, place.cut), low = (double)(word & (uint32_t)(all - 1));
    bool up = floor(place.share * all) + low >= all;
    return copysign(place.below + (up ? place.unit : 0), x);
}

/* Numbers of f16's sizes, and any pattern of bits. */
static float *round_draw(int64_t count, uint64_t seed)
{
    struct draw draw = {seed};
    float *x = floats(count);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)ldexp(draw_real(&draw, TESS_F32), (int)draw_between(&draw, -36, 17));
        if (i % 3 == 2)
            x[i] = tess__f32_of_bits((uint32_t)draw_word(&draw));
    }
    return x;
}

static void check_words(enum tess_dtype to, int64_t count, uint64_t first, uint64_t seed)
{
    size_t bytes = (size_t)count * 2;
    device_reset(&device);
    float *x = round_draw(count, seed);
    float *x_dev = device_array(&device, (size_t)count * sizeof(float));
    uint16_t *y_dev = device_array(&device, bytes), *got = malloc(bytes), *ref = malloc(bytes);
    device_put(&device, x_dev, x, (size_t)count * sizeof(float));
    tess_cast_stochastic(device.kernel, count, x_dev, to, key, first, y_dev);
    device_get(&device, got, y_dev, bytes);
    tess_kernel_ref.cast_stochastic(NULL, count, x, to, key, first, ref);
    check_bytes("stochastic rounding against ref", got, ref, bytes);
    struct tess_rng_key stream = tess_rng_key(key[0], TESS_RNG_ROUND, key[1]);
    for (int64_t i = 0; i < count; i++) {
        float back = to == TESS_BF16 ? tess__f32_of_bf16(got[i]) : tess__f32_of_f16(got[i]);
        uint32_t word = tess_rng_word(stream, first + (uint64_t)i, 0);
        double expected = rounded_by(to, (double)x[i], word);
        if (isnan(expected) ? !isnan(back) : (double)back != expected)
            fail_msg("%.9g with word %08x gave %.9g, expected %.9g", (double)x[i], word,
                     (double)back, expected);
        assert_int_equal(signbit(back) != 0, signbit(x[i]) != 0);
    }
    free(x);
    free(got);
    free(ref);
}

/* Lengths around a block of 64, starts that are no multiple of 4, and past 2^32 words. */
static void case_words(void **state)
{
    (void)state;
    static const int64_t length[] = {1, 3, 4, 5, 63, 64, 65, 67, 128, 200, 1000, 5003};
    static const uint64_t first[] = {0, 1, 2, 3, 4, 63, 0xfffffffeu, 0x3ffffffe0u, 0x7fffffffffffu};
    for (size_t i = 0; i < sizeof(length) / sizeof(length[0]); i++)
        for (size_t f = 0; f < sizeof(first) / sizeof(first[0]); f++)
            for (size_t t = 0; t < 2; t++)
                check_words(dtypes[t], length[i], first[f], 100 * i + 10 * f + t);
}

/* A whole is its parts, wherever they are cut: the same on every layout. */
static void case_pieces(void **state)
{
    (void)state;
    enum { COUNT = 3000, PIECE = 277 };
    for (size_t t = 0; t < 2; t++) {
        device_reset(&device);
        float *x = round_draw(COUNT, 5), *x_dev = device_array(&device, COUNT * sizeof(float));
        uint16_t *whole = device_array(&device, COUNT * 2),
                 *parts = device_array(&device, COUNT * 2);
        uint16_t a[COUNT], b[COUNT];
        device_put(&device, x_dev, x, COUNT * sizeof(float));
        tess_cast_stochastic(device.kernel, COUNT, x_dev, dtypes[t], key, 9, whole);
        for (int i = 0; i < COUNT; i += PIECE)
            tess_cast_stochastic(device.kernel, COUNT - i < PIECE ? COUNT - i : PIECE, x_dev + i,
                                 dtypes[t], key, 9 + (uint64_t)i, parts + i);
        device_get(&device, a, whole, sizeof(a));
        device_get(&device, b, parts, sizeof(b));
        check_bytes("stochastic rounding in pieces", b, a, sizeof(a));
        free(x);
    }
}

/* Every number that the type has stays as it is, zeros with their sign, subnormals, infinities. */
static void case_exact(void **state)
{
    (void)state;
    enum { COUNT = 1 << 16 };
    for (size_t t = 0; t < 2; t++) {
        device_reset(&device);
        float *x = floats(COUNT), *x_dev = device_array(&device, COUNT * sizeof(float));
        uint16_t *y_dev = device_array(&device, COUNT * 2), *got = malloc(COUNT * 2);
        for (uint32_t i = 0; i < COUNT; i++)
            x[i] = t == 0 ? tess__f32_of_bf16((uint16_t)i) : tess__f32_of_f16((uint16_t)i);
        device_put(&device, x_dev, x, COUNT * sizeof(float));
        tess_cast_stochastic(device.kernel, COUNT, x_dev, dtypes[t], key, 0, y_dev);
        device_get(&device, got, y_dev, COUNT * 2);
        for (uint32_t i = 0; i < COUNT; i++)
            if (!isnan(x[i]))
                assert_int_equal(got[i], i);
        free(x);
        free(got);
    }
}

/* Above the greatest finite number there is no upper neighbour: as tess_cast, whatever the word. */
static void case_beyond(void **state)
{
    (void)state;
    static const float edge[][4] = {{0x1.fe0002p127f, 0x1.fefffep127f, 0x1.ffp127f, INFINITY},
                                    {65504.01f, 65519.99f, 65520.0f, 1e30f}};
    enum { COUNT = 400 };
    for (size_t t = 0; t < 2; t++) {
        device_reset(&device);
        float x[COUNT];
        uint16_t got[COUNT], expected[COUNT];
        for (int i = 0; i < COUNT; i++)
            x[i] = i % 8 < 4 ? edge[t][i % 4] : -edge[t][i % 4];
        x[COUNT - 1] = NAN;
        float *x_dev = device_array(&device, sizeof(x));
        uint16_t *y_dev = device_array(&device, sizeof(got));
        device_put(&device, x_dev, x, sizeof(x));
        tess_cast_stochastic(device.kernel, COUNT, x_dev, dtypes[t], key, 0, y_dev);
        device_get(&device, got, y_dev, sizeof(got));
        tess_kernel_ref.cast(NULL, COUNT, TESS_F32, x, dtypes[t], expected);
        check_bytes("beyond the range", got, expected, sizeof(got));
    }
}

/*
 * COUNT copies of one number: only its two neighbours come out, the upper one with probability
 * `share`. The number of times is binomial, standard deviation sqrt(COUNT share (1 - share)); six
 * of them are allowed, which a right rounding exceeds once in 5e8 keys (and this key is fixed).
 */
static void check_mean(enum tess_dtype to, float x)
{
    enum { COUNT = 20000 };
    device_reset(&device);
    double *many = reals(COUNT), *got = reals(COUNT);
    for (int i = 0; i < COUNT; i++)
        many[i] = (double)x;
    float *x_dev = device_put_real(&device, TESS_F32, many, COUNT);
    void *y_dev = device_array(&device, COUNT * 2);
    tess_cast_stochastic(device.kernel, COUNT, x_dev, to, key, 1, y_dev);
    device_get_real(&device, to, y_dev, got, COUNT);
    struct place place = place_of(to, (double)x);
    double up = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_true(fabs(got[i]) == place.below || fabs(got[i]) == place.below + place.unit);
        up += fabs(got[i]) > place.below;
    }
    double mean = COUNT * place.share, spread = sqrt(mean * (1 - place.share));
    if (!(fabs(up - mean) <= 6 * spread))
        fail_msg("%.9g rounded up %g times of %d, expected %g, spread %g", (double)x, up, COUNT,
                 mean, spread);
    free(many);
    free(got);
}

static void case_unbiased(void **state)
{
    (void)state;
    static const float x[] = {1.001f, -1.003f,     0.1f,     -3.1415927f, 1e-3f,
                              6e4f,   0x1.23p-15f, -7.7e-7f, 0x1p-25f,    0x1.8p-27f};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        check_mean(TESS_F16, x[i]);
    for (size_t i = 0; i < 6; i++)
        check_mean(TESS_BF16, x[i]);
    check_mean(TESS_BF16, 0x1.234p-130f); /* subnormal there */
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 1u << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_words),    cmocka_unit_test(case_pieces),
        cmocka_unit_test(case_exact),    cmocka_unit_test(case_beyond),
        cmocka_unit_test(case_unbiased),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
