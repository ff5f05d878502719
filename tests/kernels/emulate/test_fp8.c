/*
 * Narrowing to 8 bits and its scales against the rules of ref: shapes that do and do not fill
 * tiles, all sizes of elements, turned and not, with and without a history.
 */
#include "device.h"
#include "emulate/emulate.h"

#include "base/half.h"
#include "cuda/products/launch_fp8.h"
#include "ref/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int64_t rows, columns;
} shapes[] = {{16, 16}, {64, 64}, {48, 80}, {128, 16}, {16, 144}, {80, 192}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static const enum tess_dtype dtypes[] = {TESS_BF16, TESS_F16};

static float element(enum tess_dtype dtype, const uint16_t *x, int64_t i)
{
    return dtype == TESS_BF16 ? tess__f32_of_bf16(x[i]) : tess__f32_of_f16(x[i]);
}

static uint16_t half_of(enum tess_dtype dtype, float x)
{
    return dtype == TESS_BF16 ? tess__bf16_of_f32(x) : tess__f16_of_f32(x);
}

/* Random bits: all exponents, subnormals, and what is not finite; or numbers below 2^size. */
static uint16_t *draw_halves(struct draw *draw, enum tess_dtype dtype, int64_t count, int size)
{
    static const float special[] = {INFINITY, -INFINITY, NAN, -0.0f};
    uint16_t *x = emulate_array((size_t)count * 2, 0);
    for (int64_t i = 0; i < count; i++) {
        const double value = draw_real(draw, TESS_F32);
        x[i] = size == 0 ? (uint16_t)draw_word(draw)
                         : half_of(dtype, (float)value * (float)(1 << size));
        if (size == 0 && i % 50 < 4)
            x[i] = half_of(dtype, special[i % 50]);
    }
    return x;
}

static uint32_t magnitude(float x)
{
    const uint32_t bits = tess__bits_of_f32(x) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

static uint32_t greatest_bits(enum tess_dtype dtype, const uint16_t *x, int64_t count)
{
    uint32_t greatest = 0;
    for (int64_t i = 0; i < count; i++)
        if (magnitude(element(dtype, x, i)) > greatest)
            greatest = magnitude(element(dtype, x, i));
    return greatest;
}

static struct cuda_fp8_tensor *new_tensor(void)
{
    struct cuda_fp8_tensor *tensor = emulate_array(sizeof(*tensor), 0);
    memset(tensor, 0, sizeof(*tensor));
    return tensor;
}

static void expect_scale(const struct cuda_fp8_tensor *tensor, int format, uint32_t greatest)
{
    const int exponent =
        tess__fp8_exponent((enum tess_fp8_format)format, tess__f32_of_bits(greatest));
    assert_true(tensor->scale == tess__f32_of_bits((uint32_t)(127 + exponent) << 23));
    assert_true(tensor->inverse == tess__f32_of_bits((uint32_t)(127 - exponent) << 23));
}

static void case_greatest(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 7, 8, 9, 2048, 2049, 70001};
    struct draw draw = {1};
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            struct cuda_fp8_tensor *tensor = new_tensor();
            const uint16_t *x = draw_halves(&draw, dtypes[t], counts[i], i % 2 ? 0 : 3);
            assert_int_equal(tess__cuda_fp8_greatest(NULL, dtypes[t], counts[i], x, tensor),
                             cudaSuccess);
            assert_int_equal(tensor->seen, greatest_bits(dtypes[t], x, counts[i]));
            emulate_free_all();
        }
}

static void case_scale(void **state)
{
    (void)state;
    for (int format = 0; format < 2; format++)
        for (uint32_t exponent = 0; exponent < 255; exponent++) {
            const uint32_t fraction[] = {0, 1, 0x600000, 0x600001, 0x7fffff};
            for (int k = 0; k < 5; k++) {
                struct cuda_fp8_tensor *tensor = new_tensor();
                const uint32_t greatest = exponent << 23 | fraction[k];
                tensor->seen = greatest;
                assert_int_equal(
                    tess__cuda_fp8_scale(NULL, (enum cuda_fp8_format)format, false, tensor),
                    cudaSuccess);
                expect_scale(tensor, format, greatest);
                assert_int_equal(tensor->seen, 0);
                emulate_free_all();
            }
        }
}

/* One narrowing: both orders, one of them, none but what was seen. */
static void run_narrow(struct draw *draw, enum tess_dtype dtype, int format, int64_t rows,
                       int64_t columns, float scale, int which)
{
    const int64_t count = rows * columns;
    struct cuda_fp8_tensor *tensor = new_tensor();
    tensor->scale = scale;
    const uint16_t *x = draw_halves(draw, dtype, count, which % 2 ? 0 : 4);
    uint8_t *y = emulate_array((size_t)count, 0), *turned = emulate_array((size_t)count, 0);
    const bool watch = which != 1;
    assert_int_equal(tess__cuda_fp8_narrow(NULL, dtype, (enum cuda_fp8_format)format, rows, columns,
                                           x, tensor, watch, which == 2 ? NULL : y,
                                           which == 3 ? NULL : turned),
                     cudaSuccess);
    for (int64_t i = 0; i < count; i++) {
        const float value = element(dtype, x, i);
        /* What is finite saturates with its sign, though the scale may take it beyond f32. */
        float scaled = value * scale;
        if (magnitude(value) > 0 && magnitude(scaled) == 0 && scaled != 0)
            scaled = value < 0 ? -1e30f : 1e30f;
        const uint8_t want = tess__fp8_of_f32((enum tess_fp8_format)format, scaled);
        if (which != 2 && y[i] != want)
            fail_msg("narrow %a: 0x%02x, not 0x%02x", (double)value, y[i], want);
        const int64_t other = i % columns * rows + i / columns;
        if (which != 3 && turned[other] != want)
            fail_msg("turned %a: 0x%02x, not 0x%02x", (double)value, turned[other], want);
    }
    for (int64_t i = 0; i < count; i++) /* what was not asked for was not touched */
        if ((which == 2 && y[i] != 0xff) || (which == 3 && turned[i] != 0xff))
            fail_msg("an array that was not given is written");
    assert_int_equal(tensor->seen, watch ? greatest_bits(dtype, x, count) : 0);
    emulate_free_all();
}

static void case_narrow(void **state)
{
    (void)state;
    static const float scales[] = {1, 16, 0x1p-9f, 0x1p20f};
    struct draw draw = {2};
    for (size_t i = 0; i < SHAPES; i++)
        for (int t = 0; t < 2; t++)
            for (int format = 0; format < 2; format++)
                run_narrow(&draw, dtypes[t], format, shapes[i].rows, shapes[i].columns,
                           scales[(i + (size_t)t) % 4], (int)(i + 2 * (size_t)format) % 4);
}

/* Calls as fp8.c makes them with a history, against the greatest of the latest sixteen. */
static void case_history(void **state)
{
    (void)state;
    enum { CALLS = 70, N = 16 };
    struct draw draw = {3};
    struct cuda_fp8_tensor *tensor = new_tensor();
    uint8_t *y = emulate_array(N * N, 0);
    uint32_t seen[CALLS];
    for (int call = 0; call < CALLS; call++) {
        const uint16_t *x =
            draw_halves(&draw, TESS_BF16, N * N, call % 20 == 1 ? 12 : 1 + call % 3);
        seen[call] = greatest_bits(TESS_BF16, x, N * N);
        if (call == 0)
            assert_int_equal(tess__cuda_fp8_greatest(NULL, TESS_BF16, N * N, x, tensor),
                             cudaSuccess);
        assert_int_equal(tess__cuda_fp8_scale(NULL, CUDA_FP8_E5M2, true, tensor), cudaSuccess);
        uint32_t greatest = call == 0 ? seen[0] : 0;
        for (int past = call > 16 ? call - 16 : 0; past < call; past++)
            greatest = seen[past] > greatest ? seen[past] : greatest;
        expect_scale(tensor, TESS_FP8_E5M2, greatest);
        assert_int_equal(
            tess__cuda_fp8_narrow(NULL, TESS_BF16, CUDA_FP8_E5M2, N, N, x, tensor, true, y, NULL),
            cudaSuccess);
    }
    emulate_free_all();
}

static void case_refused(void **state)
{
    (void)state;
    struct cuda_fp8_tensor *tensor = new_tensor();
    uint16_t *x = emulate_array(24 * 16 * 2, 0);
    uint8_t *y = emulate_array(24 * 16, 0);
    assert_int_not_equal(
        tess__cuda_fp8_narrow(NULL, TESS_BF16, CUDA_FP8_E4M3, 24, 16, x, tensor, false, y, NULL),
        cudaSuccess);
    assert_int_not_equal(
        tess__cuda_fp8_narrow(NULL, TESS_F32, CUDA_FP8_E4M3, 16, 16, x, tensor, false, y, NULL),
        cudaSuccess);
    assert_int_not_equal(tess__cuda_fp8_greatest(NULL, TESS_F32, 16, x, tensor), cudaSuccess);
    emulate_free_all();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_greatest), cmocka_unit_test(case_scale),
        cmocka_unit_test(case_narrow),   cmocka_unit_test(case_history),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
