/*
 * Casts, stochastic rounding, dropout and normals on the emulator: the bits of ref, for every
 * pattern of bits of the 16-bit types, random patterns of the others, and in any piece.
 */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"

#include "base/rng.h"
#include "cuda/slots.h"
#include "ref/mask.h"
#include "ref/ref.h"
#include "ref/stochastic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t length[] = {0, 1, 2, 7, 8, 9, 63, 1000, 2048, 2049, 5003};
#define LENGTHS (sizeof(length) / sizeof(length[0]))

/* Numbers near the borders of the narrow types, and any pattern of bits. */
static void draw_patterns(struct draw *draw, enum tess_dtype dtype, int64_t count, void *array)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t word = draw_word(draw);
        double near = ldexp(draw_real(draw, TESS_F32), (int)draw_between(draw, -36, 17));
        float near_f32 = (float)near;
        if (i % 2 && dtype == TESS_F32)
            memcpy(&word, &near_f32, sizeof(near_f32));
        if (i % 2 && dtype == TESS_F64) { /* ties of f32 and just beside them */
            double tie = i % 4 == 1 ? (double)near_f32 * (1 + 0x1p-24) : near * (1 + 0x1p-50);
            memcpy(&word, &tie, sizeof(tie));
        }
        memcpy((char *)array + (size_t)i * tess_dtype_bytes(dtype), &word, tess_dtype_bytes(dtype));
    }
}

static void cast_check(enum tess_dtype from, enum tess_dtype to, int64_t count, size_t offset,
                       const void *source)
{
    size_t bytes = (size_t)count * tess_dtype_bytes(to);
    char *x = emulate_array((size_t)count * tess_dtype_bytes(from), offset);
    char *y = emulate_array(bytes, 0), *expected = emulate_array(bytes, 0);
    memcpy(x, source, (size_t)count * tess_dtype_bytes(from));
    tess_kernel_ref.cast(NULL, count, from, x, to, expected);
    tess__cuda_cast(&emulate_kernel, count, from, x, to, y);
    check_bytes(tess_dtype_name(to), y, expected, bytes);
    emulate_free_all();
}

static void case_cast(void **state)
{
    (void)state;
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16, TESS_F64};
    enum { PATTERNS = 1 << 16 };
    char *source = malloc(PATTERNS * 8);
    uint16_t *half = malloc(PATTERNS * 2);
    for (uint32_t i = 0; i < PATTERNS; i++)
        half[i] = (uint16_t)i;
    for (size_t i = 0; i < 16; i++) {
        enum tess_dtype from = dtype[i / 4], to = dtype[i % 4];
        if (from == to)
            continue;
        struct draw draw = {i};
        draw_patterns(&draw, from, PATTERNS, source);
        bool narrow = tess_dtype_bytes(from) == 2;
        cast_check(from, to, PATTERNS, 0, narrow ? (void *)half : (void *)source);
        for (size_t l = 0; l < LENGTHS; l++) {
            cast_check(from, to, length[l], 0, source);
            cast_check(from, to, length[l], tess_dtype_bytes(from), source);
        }
    }
    free(source);
    free(half);
}

static const uint64_t key[2] = {0xfedcba9876543210u, 7};
static const uint64_t first[] = {0, 1, 2, 3, 4, 0xfffffffeu, 0x3ffffffe0u, 0x7fffffffffffu};
#define FIRSTS (sizeof(first) / sizeof(first[0]))

static void case_stochastic(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTHS * FIRSTS * 4; i++) {
        enum tess_dtype to = i % 2 ? TESS_BF16 : TESS_F16;
        int64_t count = length[i / 4 / FIRSTS];
        uint64_t start = first[i / 4 % FIRSTS];
        size_t bytes = (size_t)count * 2;
        struct draw draw = {i};
        float *x = emulate_array((size_t)count * 4, i % 4 < 2 ? 0 : 4);
        uint16_t *y = emulate_array(bytes, 0), *expected = emulate_array(bytes, 0);
        draw_patterns(&draw, TESS_F32, count, x);
        tess_kernel_ref.cast_stochastic(NULL, count, x, to, key, start, expected);
        tess__cuda_cast_stochastic(&emulate_kernel, count, x, to, key, start, y);
        check_bytes("stochastic rounding", y, expected, bytes);
        emulate_free_all();
    }
}

static void case_dropout(void **state)
{
    (void)state;
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    static const float rate[] = {0, 0.1f, 0.5f, 0.9f};
    for (size_t i = 0; i < LENGTHS * FIRSTS * 6; i++) {
        enum tess_dtype type = dtype[i % 3];
        int64_t count = length[i / 6 / FIRSTS];
        uint64_t start = first[i / 6 % FIRSTS];
        size_t element = tess_dtype_bytes(type), bytes = (size_t)count * element;
        struct draw draw = {i};
        double *real = draw_reals(&draw, TESS_BF16, count);
        char *x = emulate_array(bytes, i % 6 < 3 ? 0 : element);
        char *y = emulate_array(bytes, 0), *expected = emulate_array(bytes, 0);
        float *plain = emulate_array((size_t)count * 4, 0);
        for (int64_t k = 0; k < count; k++)
            plain[k] = (float)real[k];
        if (type == TESS_F32)
            memcpy(x, plain, bytes);
        else
            tess_kernel_ref.cast(NULL, count, TESS_F32, plain, type, x);
        float chance = rate[i % 4];
        tess_kernel_ref.dropout(NULL, type, 1, count, count, chance, key, start, x, expected);
        tess__cuda_dropout(&emulate_kernel, type, 1, count, count, chance, key, start, x, y);
        check_bytes("dropout", y, expected, bytes);
        tess__cuda_dropout(&emulate_kernel, type, 1, count, count, chance, key, start, x, x);
        check_bytes("dropout in place", x, expected, bytes);
        free(real);
        emulate_free_all();
    }
}

static void case_dropout_rows(void **state)
{
    static const struct {
        int64_t rows, width, stride;
        uint64_t first;
    } of[] = {{7, 4, 8, 0},       {33, 20, 80, 40},
              {5, 64, 128, 64},   {40, 160, 320, 160},
              {9, 10, 30, 20},    {5, 3, 7, 1},
              {300, 1, 4, 2},     {2, 40, 42, 8},
              {2, 5003, 9000, 6}, {64, 8, 16, 0x3ffffffff8u}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(of) / sizeof(of[0]); i++) {
        const enum tess_dtype type = i % 2 ? TESS_BF16 : TESS_F32;
        const int64_t rows = of[i / 2].rows, width = of[i / 2].width, stride = of[i / 2].stride;
        const size_t bytes = (size_t)(rows * width) * tess_dtype_bytes(type);
        struct draw draw = {i};
        char *x = emulate_array(bytes, 0), *y = emulate_array(bytes, 0);
        char *expected = emulate_array(bytes, 0);
        draw_patterns(&draw, type, rows * width, x);
        tess_kernel_ref.dropout(NULL, type, rows, width, stride, 0.3f, key, of[i / 2].first, x,
                                expected);
        tess__cuda_dropout(&emulate_kernel, type, rows, width, stride, 0.3f, key, of[i / 2].first,
                           x, y);
        check_bytes("dropout of rows", y, expected, bytes);
        emulate_free_all();
    }
}

static void case_normal(void **state)
{
    (void)state;
    struct tess_rng_key stream = tess_rng_key(11, TESS_RNG_INIT, 3);
    for (size_t i = 0; i < LENGTHS * FIRSTS; i++) {
        int64_t count = length[i / FIRSTS];
        uint64_t start = first[i % FIRSTS];
        size_t bytes = (size_t)count * 4;
        float *y = emulate_array(bytes, 0), *expected = emulate_array(bytes, 0);
        tess_rng_normals(stream, start, (uint64_t)count, expected);
        for (int64_t k = 0; k < count; k++)
            expected[k] = 0.25f + 0.02f * expected[k];
        tess__cuda_normal(&emulate_kernel, stream.word, start, count, 0.25f, 0.02f, y);
        check_bytes("normals", y, expected, bytes);
        emulate_free_all();
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_cast),    cmocka_unit_test(case_stochastic),
        cmocka_unit_test(case_dropout), cmocka_unit_test(case_dropout_rows),
        cmocka_unit_test(case_normal),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
