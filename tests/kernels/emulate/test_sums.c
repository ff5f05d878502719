/*
 * What is found out about whole arrays, on the emulator, against ref: sums of squares, flags, zeros
 * and sums of losses, all bit for bit.
 */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"

#include "cuda/slots.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Around a block of 64, a pair's and a thread block's share (64 x 128), and several of those. */
static const int64_t length[] = {0, 1, 3, 4, 63, 64, 65, 127, 1000, 8191, 8192, 8193, 40000};
#define LENGTHS (sizeof(length) / sizeof(length[0]))

/* All sizes that f32 has: squares from 2^-298 to 2^256. */
static float *draw_floats(struct draw *draw, int64_t count, size_t offset)
{
    float *x = emulate_array((size_t)count * 4, offset);
    for (int64_t i = 0; i < count; i++) {
        int spread = i % 5 == 0 ? 140 : 4;
        x[i] = (float)ldexp(draw_real(draw, TESS_F32), (int)draw_between(draw, -spread, spread));
        if (isinf(x[i]))
            x[i] = 3e38f;
    }
    return x;
}

/* `pieces` arrays of these lengths and more, of which every third adds to the sum before. */
#define PIECES_MAX 200

static void square_run(int32_t pieces, int64_t count, int32_t block, size_t offset, float scale,
                       int fault, uint64_t seed)
{
    struct draw draw = {seed};
    struct tess_square square[PIECES_MAX];
    struct tess_sum *expected = calloc((size_t)pieces, sizeof(*expected));
    for (int32_t i = 0; i < pieces; i++)
        for (int k = 0; k < TESS_SUM_LIMBS - 1; k++)
            expected[i].limb[k] = draw_between(&draw, 0, 1000);
    struct tess_sum *sum = emulate_copy_of(expected, (size_t)pieces * sizeof(*sum));
    for (int32_t i = 0; i < pieces; i++, count = count * 5 % 997) {
        float *x = draw_floats(&draw, count, offset);
        const int32_t to = i % 3 == 2 ? i - 1 : i;
        if (fault > 0 && count > 0)
            x[draw_between(&draw, 0, count - 1)] = fault == 1 ? NAN : -INFINITY;
        square[i] = (struct tess_square){count, block, scale, x, &sum[to]};
        tess_kernel_ref.square_sum(NULL, count, block, scale, x, &expected[to]);
    }
    if (pieces == 1)
        tess__cuda_square_sum(&emulate_kernel, square[0].count, block, scale, square[0].x, sum);
    else
        tess__cuda_square_sum_all(&emulate_kernel, square, pieces);
    for (int32_t i = 0; i < pieces * TESS_SUM_LIMBS; i++) {
        const int32_t k = i % TESS_SUM_LIMBS, p = i / TESS_SUM_LIMBS;
        if (sum[p].limb[k] != expected[p].limb[k])
            fail_msg("%lld elements: sum %d, limb %d is %lld, expected %lld", (long long)count, p,
                     k, (long long)sum[p].limb[k], (long long)expected[p].limb[k]);
    }
    free(expected);
    emulate_free_all();
}

static void case_square_sum(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTHS * 6; i++)
        square_run(1, length[i / 6], TESS_SUM_BLOCK >> i % 7, i % 2 ? 4 : 0,
                   i % 3 == 2 ? 0.37f : 1.0f, (int)(i % 6) / 2, i);
    /* eight turns of a thread block and more, to the end of the last one or not */
    square_run(1, 2 * 65536, TESS_SUM_BLOCK, 0, 1, 0, 1);
    square_run(1, 2 * 65536 + 8192 + 70, TESS_SUM_BLOCK, 0, 1, 0, 1);
}

/* Around what a launch takes, with empty arrays among them. */
static void case_square_pieces(void **state)
{
    (void)state;
    static const int32_t pieces[] = {2, 95, 96, 97, PIECES_MAX};
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        square_run(pieces[i], 66000, TESS_SUM_BLOCK >> i % 3, i % 2 ? 4 : 0, 1, i == 4, i);
}

static void *draw_words(struct draw *draw, enum tess_dtype dtype, int64_t count, size_t offset)
{
    size_t bytes = tess_dtype_bytes(dtype);
    char *array = emulate_array((size_t)count * bytes, offset);
    for (int64_t i = 0; i < count; i++) {
        uint64_t word = draw_word(draw);
        uint64_t exponent = dtype == TESS_F64   ? (uint64_t)1 << 62
                            : dtype == TESS_F32 ? (uint64_t)1 << 30
                                                : (uint64_t)1 << 14;
        word &= ~exponent; /* finite */
        if (i % 7 == 3)
            word = i % 2 ? 0 : (uint64_t)1 << (8 * bytes - 1);
        memcpy(array + (size_t)i * bytes, &word, bytes);
    }
    return array;
}

static void put_fault(struct draw *draw, enum tess_dtype dtype, int64_t count, void *array)
{
    static const uint64_t infinity[] = {
        [TESS_F32] = 0x7f800000u,
        [TESS_BF16] = 0x7f80u,
        [TESS_F16] = 0x7c00u,
        [TESS_F64] = 0x7ff0000000000000u,
    };
    size_t bytes = tess_dtype_bytes(dtype);
    uint64_t word = infinity[dtype] | (draw_word(draw) & 1); /* infinity or NaN */
    memcpy((char *)array + (size_t)draw_between(draw, 0, count - 1) * bytes, &word, bytes);
}

static void case_find(void **state)
{
    (void)state;
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16, TESS_F64};
    for (size_t i = 0; i < LENGTHS * 4 * 6; i++) {
        enum tess_dtype type = dtype[i % 4];
        int64_t count = length[i / 24];
        struct draw draw = {i};
        void *x = draw_words(&draw, type, count, i / 4 % 2 ? tess_dtype_bytes(type) : 0);
        for (size_t fault = 0; fault < i / 8 % 3 && count > 0; fault++)
            put_fault(&draw, type, count, x);
        assert_int_equal(tess__cuda_find_nonfinite(&emulate_kernel, type, count, x),
                         tess_kernel_ref.find_nonfinite(NULL, type, count, x));
        if (type != TESS_F64) {
            double expected = 5, *sum = emulate_copy_of(&expected, 8);
            tess_kernel_ref.count_zeros(NULL, type, count, x, &expected);
            tess__cuda_count_zeros(&emulate_kernel, type, count, x, sum);
            assert_true(*sum == expected);
        }
        emulate_free_all();
    }
}

static void case_find_flag(void **state)
{
    (void)state;
    struct tess_kernel ref = {.ops = &tess_kernel_ref};
    for (size_t i = 0; i < LENGTHS * 6; i++) {
        int64_t count = length[i / 6];
        struct draw draw = {i};
        float *x = draw_words(&draw, TESS_F32, count, i % 2 ? 4 : 0);
        if (draw_between(&draw, 0, 1) == 0 && count > 0)
            put_fault(&draw, TESS_F32, count, x);
        struct tess_verdict expected = {.grad_bad = (int32_t)(i / 2 % 3), .loss_bad = 9};
        struct tess_verdict *verdict = emulate_copy_of(&expected, sizeof(expected));
        int32_t flag = 1 + (int32_t)(i % 2);
        tess_kernel_ref.find_flag(&ref, count, x, flag, &expected);
        tess__cuda_find_flag(&emulate_kernel, count, x, flag, verdict);
        check_bytes("verdict", verdict, &expected, sizeof(expected));
        emulate_free_all();
    }
}

static void case_leaf_sum(void **state)
{
    (void)state;
    static const int64_t leaves[] = {0, 1, 3, 8}, rows[] = {1, 2, 255, 256, 257, 700};
    for (size_t i = 0; i < 4 * 6 * 3; i++) {
        int64_t n = leaves[i / 18], leaf_rows = rows[i / 3 % 6], count = n * leaf_rows;
        struct draw draw = {i};
        float *loss = draw_floats(&draw, count, 0);
        int32_t *correct = emulate_array((size_t)count * 4, 0);
        for (int64_t r = 0; r < count; r++)
            correct[r] = (int32_t)draw_between(&draw, 0, 3);
        for (size_t fault = 0; fault < i % 3 && count > 0; fault++)
            put_fault(&draw, TESS_F32, count, loss);
        size_t bytes = (size_t)n * 16;
        double *sum = emulate_array(bytes, 0), *expected = emulate_array(bytes, 0);
        struct tess_verdict before = {.loss_bad = 7, .grad_bad = 3}, after = before;
        struct tess_verdict *verdict = emulate_copy_of(&before, sizeof(before));
        tess_kernel_ref.leaf_sum(NULL, n, leaf_rows, loss, correct, expected, &after);
        tess__cuda_leaf_sum(&emulate_kernel, n, leaf_rows, loss, correct, sum, verdict);
        for (int64_t k = 0; k < 2 * n; k++)
            assert_true(sum[k] == expected[k] || (isnan(sum[k]) && isnan(expected[k])));
        check_bytes("verdict", verdict, &after, sizeof(after));
        emulate_free_all();
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_square_sum), cmocka_unit_test(case_square_pieces),
        cmocka_unit_test(case_find),       cmocka_unit_test(case_find_flag),
        cmocka_unit_test(case_leaf_sum),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
