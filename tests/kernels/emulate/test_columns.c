/*
 * Column sums on the emulator: against sums in double, leaf by leaf and all at once to the bit,
 * added to what is there and not. The arrays end where the sums must end: reading or writing beyond
 * ends the program.
 */
#include "device.h"
#include "emulate/emulate.h"

#include "base/half.h"
#include "cuda/rows/columns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct columns {
    enum tess_dtype dtype;
    int64_t leaves, leaf_rows, n;
    double *x;
    char *x_dev;
    size_t word;
};

static void columns_draw(struct columns *c, uint64_t seed, size_t offset)
{
    struct draw draw = {seed};
    int64_t count = c->leaves * c->leaf_rows * c->n;
    c->word = tess_dtype_bytes(c->dtype);
    c->x = draw_reals(&draw, c->dtype, count);
    c->x_dev = emulate_array((size_t)count * c->word, offset);
    for (int64_t i = 0; i < count; i++) {
        float x = (float)c->x[i];
        uint16_t half = c->dtype == TESS_BF16 ? tess__bf16_of_f32(x) : tess__f16_of_f32(x);
        memcpy(c->x_dev + (size_t)i * c->word, c->dtype == TESS_F32 ? (void *)&x : (void *)&half,
               c->word);
    }
}

/* `leaves` leaves from leaf `first` on into out [n]. */
static void columns_sum(const struct columns *c, int64_t first, int64_t leaves, bool add,
                        float *out)
{
    size_t bytes = tess__cuda_column_sum_bytes(c->dtype, leaves, c->leaf_rows, c->n);
    const char *x = c->x_dev + (size_t)(first * c->leaf_rows * c->n) * c->word;
    assert_int_equal(tess__cuda_column_sum(NULL, c->dtype, leaves, c->leaf_rows, c->n, x, add, out,
                                           emulate_array(bytes, 0)),
                     cudaSuccess);
}

static void check_sums(const struct columns *c, const float *out, const float *before)
{
    double *want = reals(c->n), *size = reals(c->n), *got = reals(c->n);
    double rows = (double)(c->leaves * c->leaf_rows);
    for (int64_t k = 0; k < c->n; k++) {
        want[k] = before ? (double)before[k] : 0;
        size[k] = fabs(want[k]);
        got[k] = (double)out[k];
    }
    for (int64_t i = 0; i < c->leaves * c->leaf_rows * c->n; i++) {
        want[i % c->n] += c->x[i];
        size[i % c->n] += fabs(c->x[i]);
    }
    for (int64_t k = 0; k < c->n; k++)
        size[k] = bound_of(TESS_F32, rows + 1, size[k], want[k]);
    check_close("column sums", got, want, size, c->n);
    free(want);
    free(size);
    free(got);
}

static void columns_run(struct columns *c, uint64_t seed, size_t offset)
{
    columns_draw(c, seed, offset);
    size_t bytes = (size_t)c->n * sizeof(float);
    float *out = emulate_array(bytes, 0), *again = emulate_array(bytes, 0);
    columns_sum(c, 0, c->leaves, false, out);
    check_sums(c, out, NULL);
    columns_sum(c, 0, c->leaves, false, again);
    check_bytes("column sums once more", again, out, bytes);
    float *leaf = floats(c->leaves * c->n), *tree = floats(c->n);
    for (int64_t l = 0; l < c->leaves; l++) {
        columns_sum(c, l, 1, false, again);
        memcpy(leaf + l * c->n, again, bytes);
    }
    if (c->leaves > 0)
        tree_sum(leaf, c->leaves, c->n, tree);
    check_bytes("column sums by leaves", out, tree, bytes);
    for (int64_t k = 0; k < c->n; k++)
        tree[k] = again[k] = (float)k;
    columns_sum(c, 0, c->leaves, true, again);
    check_sums(c, again, tree);
    free(leaf);
    free(tree);
    free(c->x);
    emulate_free_all();
}

/* leaves, rows of a leaf, columns: one slab and several, short last ones, lanes from 1 to 32,
 * several tiles of columns. */
static const int shape[][3] = {{0, 5, 3},     {1, 1, 1},    {1, 9, 10},   {3, 1, 7},
                               {5, 33, 8},    {2, 70, 768}, {1, 3000, 4}, {13, 2, 40},
                               {3, 200, 264}, {21, 5, 300}, {1, 65, 515}, {1, 40000, 100}};

static void columns_all(enum tess_dtype dtype)
{
    for (size_t i = 0; i < 2 * sizeof(shape) / sizeof(shape[0]); i++) {
        const int *s = shape[i / 2];
        struct columns c = {.dtype = dtype, .leaves = s[0], .leaf_rows = s[1], .n = s[2]};
        columns_run(&c, 40 + i, i % 2 ? tess_dtype_bytes(dtype) : 0);
    }
}

static void case_f32(void **state)
{
    (void)state;
    columns_all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    columns_all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    columns_all(TESS_F16);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_f32), cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_f16)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
