/*
 * The canonical tree over arrays on the emulator: the bits of the communicators' own loop on host
 * memory, for every type, kind and number of sources, also onto its own sources.
 */
#include "device.h"
#include "emulate/emulate.h"

#include "base/half.h"
#include "base/reduce.h"
#include "cuda/slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a type: numbers of many sizes, so that every order of a sum has bits of its own. NaN
 * is one with the bits that a device gives to all. */
static void draw_elements(struct draw *draw, enum tess_dtype dtype, int64_t count, void *array)
{
    size_t bytes = tess_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; i++) {
        uint64_t word = draw_word(draw);
        double wide = ldexp(draw_real(draw, TESS_F32), (int)draw_between(draw, -8, 8));
        float narrow = (float)wide;
        if (dtype == TESS_F32)
            memcpy(&word, &narrow, sizeof(narrow));
        else if (dtype == TESS_F64)
            memcpy(&word, &wide, sizeof(wide));
        else if (dtype == TESS_BF16 || dtype == TESS_F16)
            word = dtype == TESS_BF16 ? tess__bf16_of_f32(narrow) : tess__f16_of_f32(narrow);
        memcpy((char *)array + (size_t)i * bytes, &word, bytes);
    }
}

static void reduce_run_to(enum tess_dtype dtype, enum tess_dtype to, enum tess_reduce reduce,
                          int32_t n, int32_t m, int64_t count, bool in_place, size_t offset,
                          uint64_t seed)
{
    struct draw draw = {seed};
    size_t bytes = (size_t)count * tess_dtype_bytes(dtype);
    size_t to_bytes = (size_t)count * tess_dtype_bytes(to);
    const void *source[TESS_QUEUE_PEERS_MAX];
    void *target[TESS_QUEUE_PEERS_MAX], *expected = emulate_array(to_bytes, 0);
    for (int32_t k = 0; k < n; k++) {
        void *array = emulate_array(bytes, k == n - 1 ? offset : 0);
        draw_elements(&draw, dtype, count, array);
        source[k] = array;
    }
    for (int32_t k = 0; k < m; k++)
        target[k] = in_place && k < n ? (void *)source[k] : emulate_array(to_bytes, 0);
    tess__reduce_to(dtype, to, reduce, n, source, 1, &expected, (size_t)count);
    assert_int_equal(
        tess__cuda_reduce(NULL, dtype, to, reduce, n, source, m, target, (size_t)count),
        cudaSuccess);
    for (int32_t k = 0; k < m; k++)
        check_bytes(tess_dtype_name(dtype), target[k], expected, to_bytes);
    emulate_free_all();
}

static void reduce_run(enum tess_dtype dtype, enum tess_reduce reduce, int32_t n, int32_t m,
                       int64_t count, bool in_place, size_t offset, uint64_t seed)
{
    reduce_run_to(dtype, dtype, reduce, n, m, count, in_place, offset, seed);
}

static void case_types(void **state)
{
    (void)state;
    static const int64_t count[] = {0, 1, 3, 8, 64, 1001, 4099};
    for (int dtype = 0; dtype < TESS_DTYPE_COUNT; dtype++) {
        size_t element = tess_dtype_bytes((enum tess_dtype)dtype);
        for (int i = 0; i < 7 * 3 * 2; i++) {
            uint64_t seed = (uint64_t)(100 * dtype + i);
            reduce_run((enum tess_dtype)dtype, (enum tess_reduce)(i / 2 % 3), 5, 1 + i % 3,
                       count[i / 6], i % 2, i % 4 == 3 && element < 16 ? element : 0, seed);
        }
    }
}

static void case_counts(void **state)
{
    (void)state;
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F64};
    for (int32_t n = 1; n <= TESS_QUEUE_PEERS_MAX; n++)
        for (int d = 0; d < 3; d++)
            reduce_run(dtype[d], TESS_REDUCE_SUM, n, n % 5, 37, n % 2, 0, (uint64_t)n);
    reduce_run(TESS_F32, TESS_REDUCE_SUM, 3, TESS_QUEUE_PEERS_MAX, 9, false, 0, 1);
}

/* Sums of 16 bits in two turns, in f32 between them: the bits of one turn. */
static void case_between(void **state)
{
    enum { OUTER = 3, INNER = 4, COUNT = 1001 };
    static const enum tess_dtype dtype[] = {TESS_BF16, TESS_F16};
    (void)state;
    for (int i = 0; i < 2 * 8; i++) {
        reduce_run_to(dtype[i % 2], TESS_F32, TESS_REDUCE_SUM, 1 + i, 1 + i % 3, 500 + i, false, 0,
                      (uint64_t)i);
        reduce_run_to(TESS_F32, dtype[i % 2], TESS_REDUCE_SUM, 1 + i, 1 + i % 3, 500 + i, false,
                      i % 4 == 3 ? 4 : 0, (uint64_t)i);
    }
    for (int d = 0; d < 2; d++) {
        struct draw draw = {(uint64_t)d + 9};
        const void *source[OUTER * INNER], *part[OUTER];
        void *once = emulate_array(COUNT * 2, 0), *twice = emulate_array(COUNT * 2, 0);
        for (int k = 0; k < OUTER * INNER; k++) {
            void *array = emulate_array(COUNT * 2, 0);
            draw_elements(&draw, dtype[d], COUNT, array);
            source[k] = array;
        }
        for (int k = 0; k < OUTER; k++) {
            void *sum = emulate_array(COUNT * 4, 0);
            assert_int_equal(tess__cuda_reduce(NULL, dtype[d], TESS_F32, TESS_REDUCE_SUM, INNER,
                                               source + k * INNER, 1, &sum, COUNT),
                             cudaSuccess);
            part[k] = sum;
        }
        tess__cuda_reduce(NULL, TESS_F32, dtype[d], TESS_REDUCE_SUM, OUTER, part, 1, &twice, COUNT);
        tess__reduce(dtype[d], TESS_REDUCE_SUM, OUTER * INNER, source, 1, &once, COUNT);
        check_bytes(tess_dtype_name(dtype[d]), twice, once, COUNT * 2);
        emulate_free_all();
    }
}

/* NaN in any source is NaN in the result, infinities of both signs too in a sum. */
static void case_nan(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * 3; i++) {
        const void *source[3];
        void *target = emulate_array(4, 0);
        for (int k = 0; k < 3; k++) {
            float x = k == i / 3 ? NAN : (float)k;
            source[k] = emulate_copy_of(&x, 4);
        }
        tess__cuda_reduce(NULL, TESS_F32, TESS_F32, (enum tess_reduce)(i % 3), 3, source, 1,
                          &target, 1);
        assert_true(isnan(*(float *)target));
        emulate_free_all();
    }
}

static void case_refused(void **state)
{
    (void)state;
    const void *source[1] = {NULL};
    static const struct {
        enum tess_dtype dtype, to;
        enum tess_reduce reduce;
        int32_t n;
    } wrong[] = {{TESS_F32, TESS_F32, TESS_REDUCE_SUM, 0},
                 {TESS_F32, TESS_F32, TESS_REDUCE_SUM, TESS_QUEUE_PEERS_MAX + 1},
                 {TESS_BF16, TESS_F32, TESS_REDUCE_MAX, 1},
                 {TESS_BF16, TESS_F16, TESS_REDUCE_SUM, 1},
                 {TESS_I32, TESS_F32, TESS_REDUCE_SUM, 1}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_not_equal(tess__cuda_reduce(NULL, wrong[i].dtype, wrong[i].to, wrong[i].reduce,
                                               wrong[i].n, source, 0, NULL, 1),
                             cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_types),   cmocka_unit_test(case_counts),
        cmocka_unit_test(case_between), cmocka_unit_test(case_nan),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
