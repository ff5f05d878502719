/*
 * Kernels of rows and images in arrays that end where they end, aligned to 16 bytes and not:
 * reading or writing beyond an array ends the program, and what comes out is the same to the bit
 * wherever the arrays lie and however often it is computed. What it should be is asked by the
 * conformance programs.
 */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"

#include "base/half.h"
#include "cuda/slots.h"

#include <stdlib.h>
#include <string.h>

#define WAYS     3 /* aligned, again, unaligned */
#define KEPT_MAX 8

/* One way of running: arrays at `offset`, and those that are compared. */
struct way {
    struct draw draw; /* starts alike for all ways */
    enum tess_dtype dtype;
    size_t offset;
    int kept;
    char *array[KEPT_MAX];
    size_t bytes[KEPT_MAX];
};

static void *way_keep(struct way *w, size_t bytes)
{
    w->bytes[w->kept] = bytes;
    return w->array[w->kept++] = emulate_array(bytes, w->offset);
}

/* 4 bytes each: f32 or int32. */
static void *way_keep_words(struct way *w, int64_t count)
{
    w->bytes[w->kept] = (size_t)count * 4;
    return w->array[w->kept++] = emulate_array((size_t)count * 4, w->offset ? 4 : 0);
}

static void *way_draw(struct way *w, int64_t count)
{
    size_t word = tess_dtype_bytes(w->dtype);
    char *array = emulate_array((size_t)count * word, w->offset);
    for (int64_t i = 0; i < count; i++) {
        float x = 3 * (float)draw_real(&w->draw, w->dtype);
        uint16_t half = w->dtype == TESS_BF16 ? tess__bf16_of_f32(x) : tess__f16_of_f32(x);
        memcpy(array + (size_t)i * word, w->dtype == TESS_F32 ? (void *)&x : (void *)&half, word);
    }
    return array;
}

/* Integers in [low, high]. */
static int32_t *way_integers(struct way *w, int64_t count, int64_t low, int64_t high)
{
    int32_t *array = emulate_array((size_t)count * sizeof(int32_t), 0);
    for (int64_t i = 0; i < count; i++)
        array[i] = (int32_t)draw_between(&w->draw, low, high);
    return array;
}

static float *way_floats(int64_t count)
{
    return emulate_array((size_t)count * sizeof(float), 0);
}

static void for_ways(int64_t n, void (*run)(struct way *w, int64_t n))
{
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (int d = 0; d < 3; d++) {
        struct way way[WAYS];
        for (int i = 0; i < WAYS; i++) {
            size_t word = tess_dtype_bytes(dtypes[d]);
            way[i] = (struct way){
                .draw = {(uint64_t)n}, .dtype = dtypes[d], .offset = i == WAYS - 1 ? word : 0};
            run(&way[i], n);
            for (int k = 0; k < way[i].kept; k++)
                check_bytes("the same elsewhere", way[i].array[k], way[0].array[k],
                            way[0].bytes[k]);
        }
        emulate_free_all();
    }
}

/* An operation, with scratch of what it needs. */
static struct tess_op way_op(const struct tess_op_desc *desc, cuda_needs *needs_of)
{
    struct tess_op_needs needs = {0};
    assert_int_equal(needs_of(desc, &needs), TESS_OK);
    return emulate_op(desc, emulate_array(needs.scratch_bytes, 0));
}

static void run_norm(struct way *w, int64_t n)
{
    int64_t rows = 6;
    const struct tess_op_desc desc = {.kind = TESS_OP_NORM,
                                      .dtype = w->dtype,
                                      .rows = rows,
                                      .leaf_rows = 3,
                                      .in = n,
                                      .rms = n % 2 == 0,
                                      .epsilon = 1e-5f};
    size_t all = (size_t)(rows * n) * tess_dtype_bytes(w->dtype);
    void *x = way_draw(w, rows * n), *add = way_draw(w, rows * n), *gamma = way_draw(w, n);
    void *beta = way_draw(w, n), *dy = way_draw(w, rows * n), *sum = way_keep(w, all);
    void *y = way_keep(w, all), *dx = way_keep(w, all);
    float *mean = way_floats(rows), *rstd = way_floats(rows);
    float *dgamma = way_keep_words(w, n);
    float *dbeta = desc.rms ? NULL : way_keep_words(w, n);
    struct tess_op op = way_op(&desc, tess__cuda_norm_needs);
    assert_int_equal(tess__cuda_norm_forward(&op, x, add, sum, gamma, beta, y, mean, rstd),
                     TESS_OK);
    assert_int_equal(
        tess__cuda_norm_backward(&op, sum, dy, gamma, mean, rstd, add, dx, dgamma, dbeta), TESS_OK);
}

static void run_xent(struct way *w, int64_t n)
{
    struct tess_kernel *kernel = &emulate_kernel;
    int64_t rows = 5, stride = n + n % 3;
    size_t word = tess_dtype_bytes(w->dtype);
    int32_t *label = way_integers(w, rows, -1, n - 1);
    void *x = way_draw(w, rows * stride), *d = way_keep(w, (size_t)(rows * stride) * word);
    float *max = way_keep_words(w, rows), *sum = way_keep_words(w, rows),
          *target = way_floats(rows);
    float *best = way_keep_words(w, rows), *loss = way_keep_words(w, rows);
    int32_t *correct = way_keep_words(w, rows);
    tess__cuda_xent_max(kernel, w->dtype, rows, n, stride, x, max, sum, target, best);
    tess__cuda_xent_sum(kernel, w->dtype, rows, n, stride, 0, (struct tess_xent){0}, x, label, max,
                        sum, target, best);
    tess__cuda_xent_grad(kernel, w->dtype, rows, n, stride, 0, (struct tess_xent){0}, 0.5f, x,
                         label, max, sum, d);
    void *own = way_draw(w, rows * n), *over = way_keep(w, (size_t)(rows * n) * word);
    memcpy(over, own, (size_t)(rows * n) * word);
    tess__cuda_softmax_xent(kernel, w->dtype, rows, n, (struct tess_xent){0}, 0.5f, over, label,
                            over, loss, correct);
}

/* Row by row, each wherever it lies: what all rows at once gave. */
static void run_xent_alone(struct way *w, int64_t n)
{
    struct tess_kernel *kernel = &emulate_kernel;
    int64_t rows = 9;
    size_t word = tess_dtype_bytes(w->dtype), row = (size_t)n * word;
    int32_t *label = way_integers(w, rows, -1, n - 1);
    char *x = way_draw(w, rows * n), *d[2] = {way_keep(w, row * 9), way_keep(w, row * 9)};
    float *max[2], *sum[2], *target[2], *best[2];
    for (int i = 0; i < 2; i++) {
        max[i] = way_keep_words(w, rows);
        sum[i] = way_keep_words(w, rows);
        target[i] = way_floats(rows);
        best[i] = way_floats(rows);
        int64_t each = i == 0 ? rows : 1;
        for (int64_t b = 0; b < rows; b += each) {
            const char *from = x + (size_t)b * row;
            tess__cuda_xent_max(kernel, w->dtype, each, n, n, from, max[i] + b, sum[i] + b,
                                target[i] + b, best[i] + b);
            tess__cuda_xent_sum(kernel, w->dtype, each, n, n, 0, (struct tess_xent){0}, from,
                                label + b, max[i] + b, sum[i] + b, target[i] + b, best[i] + b);
            tess__cuda_xent_grad(kernel, w->dtype, each, n, n, 0, (struct tess_xent){0}, 2, from,
                                 label + b, max[i] + b, sum[i] + b, d[i] + (size_t)b * row);
        }
    }
    check_bytes("max row by row", max[1], max[0], (size_t)rows * sizeof(float));
    check_bytes("sum row by row", sum[1], sum[0], (size_t)rows * sizeof(float));
    check_bytes("best row by row", best[1], best[0], (size_t)rows * sizeof(float));
    check_bytes("dlogits row by row", d[1], d[0], row * 9);
}

static void run_embedding(struct way *w, int64_t n)
{
    int64_t rows = 90, entries = 11, first = 2;
    const struct tess_op_desc desc = {.kind = TESS_OP_EMBEDDING,
                                      .dtype = w->dtype,
                                      .rows = rows,
                                      .leaf_rows = 9,
                                      .in = entries,
                                      .out = n,
                                      .length = 7};
    size_t word = tess_dtype_bytes(w->dtype);
    int32_t *token = way_integers(w, rows, 0, entries + 3);
    void *table = way_draw(w, entries * n), *dy = way_draw(w, rows * n);
    void *y = way_keep(w, (size_t)(rows * n) * word);
    float *dtable = way_keep_words(w, entries * n);
    float *dplaces = way_keep_words(w, entries * n);
    struct tess_op op = way_op(&desc, tess__cuda_embedding_needs);
    assert_int_equal(tess__cuda_embedding_forward(&op, token, first, table, NULL, y), TESS_OK);
    assert_int_equal(tess__cuda_embedding_backward(&op, token, first, dy, dtable), TESS_OK);
    assert_int_equal(tess__cuda_embedding_backward(&op, NULL, first, dy, dplaces), TESS_OK);
}

static void run_batch_norm(struct way *w, int64_t n)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_BATCH_NORM,
                                      .dtype = w->dtype,
                                      .rows = 2,
                                      .leaf_rows = 1,
                                      .in = n,
                                      .height = 1,
                                      .width = 37,
                                      .relu = true,
                                      .epsilon = 4.0f};
    int64_t count = desc.rows * desc.width * n;
    size_t all = (size_t)count * tess_dtype_bytes(w->dtype);
    void *x = way_draw(w, count), *dy = way_draw(w, count), *gamma = way_draw(w, n);
    void *beta = way_draw(w, n), *y = way_keep(w, all), *dx = way_keep(w, all);
    float *mean = way_floats(2 * n), *rstd = way_floats(2 * n);
    float *mean_sum = way_keep_words(w, n), *var_sum = way_keep_words(w, n),
          *dgamma = way_keep_words(w, n);
    float *dbeta = way_keep_words(w, n);
    struct tess_op op = way_op(&desc, tess__cuda_batch_norm_needs);
    assert_int_equal(
        tess__cuda_batch_norm_forward(&op, x, gamma, beta, y, mean, rstd, mean_sum, var_sum),
        TESS_OK);
    assert_int_equal(
        tess__cuda_batch_norm_backward(&op, x, y, dy, gamma, beta, mean, rstd, dx, dgamma, dbeta),
        TESS_OK);
    assert_int_equal(
        tess__cuda_batch_norm_infer(&op, x, gamma, beta, beta, gamma, way_keep(w, all)), TESS_OK);
}

static void run_pool(struct way *w, int64_t n)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_MAX_POOL,
                                      .dtype = w->dtype,
                                      .rows = 2,
                                      .leaf_rows = 1,
                                      .in = n,
                                      .height = 7,
                                      .width = 6,
                                      .window = 3,
                                      .stride = 2,
                                      .padding = 1,
                                      .relu = n % 2 == 1};
    int64_t x_count = 2 * 7 * 6 * n, y_count = 2 * 4 * 3 * n;
    size_t word = tess_dtype_bytes(w->dtype);
    void *x = way_draw(w, x_count), *dy = way_draw(w, y_count);
    void *max = way_keep(w, (size_t)y_count * word), *mean = way_keep(w, (size_t)y_count * word);
    void *dx = way_keep(w, (size_t)x_count * word), *spread = way_keep(w, (size_t)x_count * word);
    uint8_t *which = way_keep(w, (size_t)y_count);
    struct tess_op op = way_op(&desc, tess__cuda_pool_needs);
    assert_int_equal(tess__cuda_max_pool_forward(&op, x, max, which), TESS_OK);
    assert_int_equal(tess__cuda_max_pool_backward(&op, dy, which, dx), TESS_OK);
    assert_int_equal(tess__cuda_avg_pool_forward(&op, x, mean), TESS_OK);
    assert_int_equal(tess__cuda_avg_pool_backward(&op, dy, spread), TESS_OK);
}

static const int64_t width[] = {1, 2, 3, 8, 15, 16, 33, 40, 520, 1100};

static void for_widths(void (*run)(struct way *w, int64_t n))
{
    for (size_t i = 0; i < sizeof(width) / sizeof(width[0]); i++)
        for_ways(width[i], run);
}

static void case_norm(void **state)
{
    (void)state;
    for_widths(run_norm);
}

static void case_xent(void **state)
{
    (void)state;
    for_widths(run_xent);
    for_widths(run_xent_alone);
}

static void case_embedding(void **state)
{
    (void)state;
    for_widths(run_embedding);
}

static void case_batch_norm(void **state)
{
    (void)state;
    for_widths(run_batch_norm);
}

static void case_pool(void **state)
{
    (void)state;
    for_widths(run_pool);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_norm),      cmocka_unit_test(case_xent),
        cmocka_unit_test(case_embedding), cmocka_unit_test(case_batch_norm),
        cmocka_unit_test(case_pool),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
