/*
 * The element-wise kernels against ref, which they must equal bit for bit: lengths with tails and
 * without, arrays that are and are not aligned, in place and not.
 */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"

#include "base/half.h"
#include "cuda/slots.h"
#include "ref/ref.h"

#include <stdlib.h>
#include <string.h>

/* A vector is 4 or 8 elements, a block's share up to 8192. */
static const int64_t length[] = {0,   1,    2,    3,    4,    7,    8,    9,    31,
                                 255, 1000, 2048, 4099, 8191, 8192, 8200, 20011};
#define LENGTHS (sizeof(length) / sizeof(length[0]))

static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
#define DTYPES 3

/* An array of random elements, zeros of both signs, subnormals, and numbers that overflow. */
static void *draw_array(struct draw *draw, enum tess_dtype dtype, int64_t count, size_t offset)
{
    static const float special[] = {0.0f, -0.0f, 1e-42f, -1e-40f, 3e38f, -3e38f};
    size_t bytes = tess_dtype_bytes(dtype);
    char *array = emulate_array((size_t)count * bytes, offset);
    for (int64_t i = 0; i < count; i++) {
        float x = (float)draw_real(draw, dtype);
        int64_t kind = draw_between(draw, 0, 30);
        if (kind < 6)
            x = special[kind];
        uint16_t half = dtype == TESS_BF16 ? tess__bf16_of_f32(x) : tess__f16_of_f32(x);
        memcpy(array + (size_t)i * bytes, dtype == TESS_F32 ? (void *)&x : (void *)&half, bytes);
    }
    return array;
}

/* One case: arrays at `offset` bytes from a boundary of 16. */
struct shape {
    enum tess_dtype dtype;
    int64_t count;
    size_t bytes, offset;
    struct draw draw;
};

static void for_all(void (*run)(struct shape *shape))
{
    for (size_t i = 0; i < 2 * DTYPES * LENGTHS; i++) {
        enum tess_dtype dtype = dtypes[i / 2 % DTYPES];
        struct shape shape = {dtype, length[i / (2 * DTYPES)], 0, 0, {i + 1}};
        shape.bytes = (size_t)shape.count * tess_dtype_bytes(dtype);
        shape.offset = i % 2 ? tess_dtype_bytes(dtype) : 0;
        run(&shape);
        emulate_free_all();
    }
}

static void run_relu(struct shape *s)
{
    void *x = draw_array(&s->draw, s->dtype, s->count, s->offset), *y = emulate_array(s->bytes, 0);
    void *expected = emulate_array(s->bytes, 0);
    tess_kernel_ref.relu_forward(NULL, s->dtype, s->count, x, expected);
    tess__cuda_relu_forward(&emulate_kernel, s->dtype, s->count, x, y);
    check_bytes("relu", y, expected, s->bytes);

    void *dy = draw_array(&s->draw, s->dtype, s->count, s->offset);
    tess_kernel_ref.relu_backward(NULL, s->dtype, s->count, y, dy, expected);
    tess__cuda_relu_backward(&emulate_kernel, s->dtype, s->count, y, dy, dy);
    check_bytes("relu backward, in place", dy, expected, s->bytes);
}

static void run_add(struct shape *s)
{
    void *a = draw_array(&s->draw, s->dtype, s->count, 0);
    void *b = draw_array(&s->draw, s->dtype, s->count, s->offset);
    void *expected = emulate_array(s->bytes, 0), *y = emulate_array(s->bytes, s->offset);
    tess_kernel_ref.add(NULL, s->dtype, s->count, a, b, expected);
    tess__cuda_add(&emulate_kernel, s->dtype, s->count, a, b, y);
    check_bytes("add", y, expected, s->bytes);
    tess__cuda_add(&emulate_kernel, s->dtype, s->count, a, b, b);
    check_bytes("add, in place", b, expected, s->bytes);
}

static void run_accumulate(struct shape *s)
{
    if (s->dtype != TESS_F32)
        return;
    float *x = draw_array(&s->draw, TESS_F32, s->count, s->offset);
    float *y = draw_array(&s->draw, TESS_F32, s->count, 0);
    float *expected = emulate_copy_of(y, s->bytes);
    tess_kernel_ref.accumulate(NULL, s->count, 0.3f, x, expected);
    tess__cuda_accumulate(&emulate_kernel, s->count, 0.3f, x, y);
    check_bytes("accumulate", y, expected, s->bytes);
}

/* NaN is left out: it has no order. */
static void run_maximum(struct shape *s)
{
    if (s->dtype != TESS_F32)
        return;
    float *x = draw_array(&s->draw, TESS_F32, s->count, 0);
    float *y = draw_array(&s->draw, TESS_F32, s->count, s->offset);
    float *before = emulate_copy_of(y, s->bytes);
    tess__cuda_maximum(&emulate_kernel, s->count, x, y);
    for (int64_t i = 0; i < s->count; i++)
        assert_true(y[i] == (x[i] > before[i] ? x[i] : before[i]));
}

static void case_relu(void **state)
{
    (void)state;
    for_all(run_relu);
}

static void case_add(void **state)
{
    (void)state;
    for_all(run_add);
}

static void case_accumulate(void **state)
{
    (void)state;
    for_all(run_accumulate);
}

static void case_maximum(void **state)
{
    (void)state;
    for_all(run_maximum);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_relu),
        cmocka_unit_test(case_add),
        cmocka_unit_test(case_accumulate),
        cmocka_unit_test(case_maximum),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
