/*
 * Embedding tables of one backend (argv[1]). Everything here has one right answer, bit by bit: the
 * forward is one addition in f32, rounded once; the gradient of a token is, for each leaf, the sum
 * over its rows in order beginning with +0, then the tree over the leaves.
 */
#include "device.h"

#include <stdlib.h>
#include <string.h>

static struct device device;

struct embedding_case {
    struct tess_op_desc d;
    int64_t first; /* token of the table's first row */
    bool add;
    double *table, *more, *dy;
    int32_t *token; /* NULL: positions */
    void *table_dev, *more_dev, *dy_dev;
    int32_t *token_dev;
    float *dtable_dev;
};

/* Few tokens more than the table has, so that some fall outside, on either side. */
static void embedding_draw(struct embedding_case *c, struct draw *draw, bool positions)
{
    const struct tess_op_desc *d = &c->d;
    c->table = draw_reals(draw, d->dtype, d->in * d->out);
    c->more = draw_reals(draw, d->dtype, d->rows * d->out);
    c->dy = draw_reals(draw, d->dtype, d->rows * d->out);
    for (int64_t i = 0; i < d->rows * d->out; i++) /* sizes differ: the order of sums shows */
        c->dy[i] = round_to(d->dtype, c->dy[i] * (double)(1 << draw_between(draw, 0, 6)));
    c->table_dev = device_put_real(&device, d->dtype, c->table, d->in * d->out);
    c->more_dev = c->add ? device_put_real(&device, d->dtype, c->more, d->rows * d->out) : NULL;
    c->dy_dev = device_put_real(&device, d->dtype, c->dy, d->rows * d->out);
    c->dtable_dev = device_array(&device, (size_t)(d->in * d->out) * sizeof(float));
    if (positions)
        return;
    size_t bytes = (size_t)d->rows * sizeof(int32_t);
    c->token = malloc(bytes + 1);
    for (int64_t i = 0; i < d->rows; i++)
        c->token[i] = (int32_t)(c->first + draw_between(draw, -2, d->in + 1));
    c->token_dev = device_array(&device, bytes);
    device_put(&device, c->token_dev, c->token, bytes);
}

static void embedding_free(struct embedding_case *c)
{
    free(c->table);
    free(c->more);
    free(c->dy);
    free(c->token);
}

/* The table's row for row i, or -1. */
static int64_t embedding_index(const struct embedding_case *c, int64_t i)
{
    int64_t index = (c->token != NULL ? c->token[i] : i % c->d.length) - c->first;
    return index < 0 || index >= c->d.in ? -1 : index;
}

static void check_forward(struct embedding_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count = d->rows * d->out;
    size_t bytes = (size_t)count * tess_dtype_bytes(d->dtype);
    void *y = device_array(&device, bytes);
    double *want = reals(count), *none = reals(count);
    for (int64_t i = 0; i < count; i++) {
        int64_t index = embedding_index(c, i / d->out);
        float entry = index < 0 ? 0.0f : (float)c->table[index * d->out + i % d->out];
        float sum = entry + (c->add ? (float)c->more[i] : 0.0f);
        want[i] = round_to(d->dtype, (double)sum);
    }
    assert_int_equal(
        tess_embedding_forward(op, c->token_dev, c->first, c->table_dev, c->more_dev, y), TESS_OK);
    device_check(&device, "embedding y", d->dtype, y, want, none, count);
    if (c->add) {
        void *copy = device_put_real(&device, d->dtype, c->more, count);
        assert_int_equal(
            tess_embedding_forward(op, c->token_dev, c->first, c->table_dev, copy, copy), TESS_OK);
        device_check(&device, "embedding y over add", d->dtype, copy, want, none, count);
    }
    free(want);
    free(none);
}

static void check_backward(struct embedding_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t leaves = d->rows / d->leaf_rows, count = d->in * d->out;
    float *leaf = floats(leaves * count), *tree = floats(count);
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t index = embedding_index(c, i);
        float *to = leaf + i / d->leaf_rows * count + index * d->out;
        for (int64_t k = 0; k < d->out && index >= 0; k++)
            to[k] += (float)c->dy[i * d->out + k];
    }
    tree_sum(leaf, leaves, count, tree);
    assert_int_equal(tess_embedding_backward(op, c->token_dev, c->first, c->dy_dev, c->dtable_dev),
                     TESS_OK);
    size_t bytes = (size_t)count * sizeof(float);
    float *got = device_fetch(&device, c->dtable_dev, bytes);
    check_bytes("embedding dtable", got, tree, bytes);
    free(got);
    free(leaf);
    free(tree);
}

/* The table in two pieces, one after the other, is the table. */
static void check_pieces(struct embedding_case *c, struct tess_op *whole)
{
    const struct tess_op_desc *d = &c->d;
    size_t word = tess_dtype_bytes(d->dtype), bytes = (size_t)(d->rows * d->out) * word;
    if (d->in < 2)
        return;
    int64_t cut = d->in / 2;
    struct tess_op_desc low = *d, high = *d;
    low.in = cut;
    high.in = d->in - cut;
    struct tess_op op[2];
    device_op_open(&device, &low, &op[0]);
    device_op_open(&device, &high, &op[1]);
    void *y = device_array(&device, bytes), *sum = device_array(&device, bytes);
    const char *upper = (char *)c->table_dev + (size_t)(cut * d->out) * word;
    assert_int_equal(tess_embedding_forward(whole, c->token_dev, c->first, c->table_dev, NULL, y),
                     TESS_OK);
    assert_int_equal(
        tess_embedding_forward(&op[0], c->token_dev, c->first, c->table_dev, NULL, sum), TESS_OK);
    assert_int_equal(tess_embedding_forward(&op[1], c->token_dev, c->first + cut, upper, sum, sum),
                     TESS_OK);
    char *got = device_fetch(&device, sum, bytes), *want = device_fetch(&device, y, bytes);
    check_bytes("embedding y of two pieces", got, want, bytes);
    free(got);
    free(want);
    device_op_close(&op[0]);
    device_op_close(&op[1]);
}

static void embedding_run(struct embedding_case *c, uint64_t seed, bool positions)
{
    struct draw draw = {seed};
    device_reset(&device);
    embedding_draw(c, &draw, positions);
    struct tess_op op;
    device_op_open(&device, &c->d, &op);
    check_forward(c, &op);
    check_backward(c, &op);
    check_pieces(c, &op);
    device_op_close(&op);
    embedding_free(c);
}

/* leaves, leaf rows, rows of the table, width, length */
static const int shape[][5] = {{0, 3, 4, 2, 3},     {1, 1, 1, 1, 1},         {1, 40, 3, 17, 8},
                               {2, 1, 5, 1, 2},     {3, 4, 2, 16, 4},        {5, 8, 9, 33, 4},
                               {8, 6, 40, 5, 3},    {13, 3, 7, 64, 3},       {64, 2, 30, 8, 2},
                               {6, 16, 100, 3, 16}, {1, 1500, 700, 40, 100}, {2, 300, 3, 5, 2},
                               {40, 8, 2, 6, 4},    {1, 200, 2, 600, 50}};

static void embedding_all(enum tess_dtype dtype)
{
    for (size_t i = 0; i < 4 * sizeof(shape) / sizeof(shape[0]); i++) {
        const int *s = shape[i / 4];
        struct embedding_case c = {.d = {.kind = TESS_OP_EMBEDDING,
                                         .dtype = dtype,
                                         .rows = s[0] * s[1],
                                         .leaf_rows = s[1],
                                         .in = s[2],
                                         .out = s[3],
                                         .length = s[4]},
                                   .first = i % 3 == 2 ? 1000 : 0,
                                   .add = i % 2 == 1};
        bool positions = i % 4 >= 2;
        c.first = positions && i % 3 == 2 ? 1 : c.first;
        embedding_run(&c, 1200 + i, positions);
    }
}

static void case_f32(void **state)
{
    (void)state;
    embedding_all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    embedding_all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    embedding_all(TESS_F16);
}

/* Many leaves and a real vocabulary, of which little is used: must not cost leaves * vocabulary. */
static void case_sparse(void **state)
{
    (void)state;
    struct embedding_case c = {
        .d = {.kind = TESS_OP_EMBEDDING, .rows = 512, .leaf_rows = 2, .in = 50304, .out = 16}};
    struct draw draw = {5};
    device_reset(&device);
    embedding_draw(&c, &draw, false);
    for (int64_t i = 0; i < c.d.rows; i++) /* some often, some once, both ends of the table */
        c.token[i] = i % 4 == 0 ? 7 : i % 4 == 1 ? 50303 - (int32_t)i / 9 : (int32_t)(i * 97);
    device_put(&device, c.token_dev, c.token, (size_t)c.d.rows * sizeof(int32_t));
    struct tess_op op;
    device_op_open(&device, &c.d, &op);
    size_t bytes = (size_t)(c.d.in * c.d.out) * sizeof(float);
    assert_int_equal(tess_embedding_backward(&op, c.token_dev, 0, c.dy_dev, c.dtable_dev), TESS_OK);
    float *got = device_fetch(&device, c.dtable_dev, bytes), *want = floats(c.d.in * c.d.out);
    float *leaf = floats(256 * 16);
    for (int64_t t = 0; t < c.d.in; t++) {
        memset(leaf, 0, 256 * 16 * sizeof(float));
        bool used = false;
        for (int64_t i = 0; i < c.d.rows; i++) {
            for (int64_t k = 0; k < 16 && c.token[i] == t; k++)
                leaf[i / 2 * 16 + k] += (float)c.dy[i * 16 + k];
            used |= c.token[i] == t;
        }
        if (used)
            tree_sum(leaf, 256, 16, want + t * 16);
    }
    check_bytes("embedding dtable, sparse", got, want, bytes);
    device_op_close(&op);
    embedding_free(&c);
    free(got);
    free(want);
    free(leaf);
}

/* Positions without a length have no meaning. */
static void case_no_length(void **state)
{
    (void)state;
    struct tess_op_desc d = {
        .kind = TESS_OP_EMBEDDING, .rows = 2, .leaf_rows = 1, .in = 3, .out = 2};
    device_reset(&device);
    struct tess_op op;
    device_op_open(&device, &d, &op);
    float *array = device_array(&device, 64);
    assert_int_equal(tess_embedding_forward(&op, NULL, 0, array, NULL, array), TESS_ERR_INTERNAL);
    assert_int_equal(tess_embedding_backward(&op, NULL, 0, array, array), TESS_ERR_INTERNAL);
    device_op_close(&op);
}

static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(31);
    for (int i = 0; i < 40; i++) {
        struct embedding_case c = {.d = {.kind = TESS_OP_EMBEDDING,
                                         .dtype = dtypes[i % 3],
                                         .leaf_rows = draw_between(&draw, 1, 90),
                                         .in = draw_between(&draw, 1, 400),
                                         .out = draw_between(&draw, 1, 150),
                                         .length = draw_between(&draw, 1, 50)},
                                   .first = draw_between(&draw, 0, 1) * 1000,
                                   .add = draw_between(&draw, 0, 1)};
        const bool positions = i % 4 == 3;
        c.first = positions ? 0 : c.first;
        c.d.rows = c.d.leaf_rows * draw_between(&draw, 1, 9);
        embedding_run(&c, draw_word(&draw), positions);
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 16u << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_f32),       cmocka_unit_test(case_bf16),
        cmocka_unit_test(case_f16),       cmocka_unit_test(case_sparse),
        cmocka_unit_test(case_no_length), cmocka_unit_test(case_random)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
