/*
 * Linear layers of one backend (argv[1]): against sums in double, leaf by leaf against all leaves
 * at once, weight gradients against the explicit tree, and changed weights under a new token.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

struct linear_case {
    struct tess_op_desc d;
    bool bias;
    double *x, *w, *b, *dy; /* host */
    void *x_dev, *w_dev, *b_dev, *dy_dev;
};

static void linear_draw(struct linear_case *c, struct draw *draw)
{
    const struct tess_op_desc *d = &c->d;
    c->x = draw_reals(draw, d->dtype, d->rows * d->in);
    c->w = draw_reals(draw, d->dtype, d->out * d->in);
    c->b = draw_reals(draw, d->dtype, d->out);
    c->dy = draw_reals(draw, d->dtype, d->rows * d->out);
    c->x_dev = device_put_real(&device, d->dtype, c->x, d->rows * d->in);
    c->w_dev = device_put_real(&device, d->dtype, c->w, d->out * d->in);
    c->b_dev = c->bias ? device_put_real(&device, d->dtype, c->b, d->out) : NULL;
    c->dy_dev = device_put_real(&device, d->dtype, c->dy, d->rows * d->out);
}

static void linear_free(struct linear_case *c)
{
    free(c->x);
    free(c->w);
    free(c->b);
    free(c->dy);
}

/* One number: sum over k of a[k step_a] b[k step_b] + start, its terms' absolute values beside. */
static double dot(const double *a, int64_t step_a, const double *b, int64_t step_b, int64_t n,
                  double start, double *magnitude)
{
    double sum = start;
    *magnitude = fabs(start);
    for (int64_t k = 0; k < n; k++) {
        sum += a[k * step_a] * b[k * step_b];
        *magnitude += fabs(a[k * step_a] * b[k * step_b]);
    }
    return sum;
}

static void check_forward(struct linear_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count = d->rows * d->out;
    void *y = device_array(&device, (size_t)count * tess_dtype_bytes(d->dtype));
    assert_int_equal(tess_linear_forward(op, c->x_dev, c->w_dev, c->b_dev, y), TESS_OK);
    double *got = reals(count), *expected = reals(count), *bound = reals(count);
    device_get_real(&device, d->dtype, y, got, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t b = i / d->out, o = i % d->out;
        double magnitude;
        double sum =
            dot(c->x + b * d->in, 1, c->w + o * d->in, 1, d->in, c->bias ? c->b[o] : 0, &magnitude);
        expected[i] = d->relu && sum < 0 ? 0 : sum;
        bound[i] = bound_of(d->dtype, (double)d->in, magnitude, expected[i]);
    }
    check_close("linear y", got, expected, bound, count);
    free(got);
    free(expected);
    free(bound);
}

static void check_backward_data(struct linear_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count = d->rows * d->in;
    void *dx = device_array(&device, (size_t)count * tess_dtype_bytes(d->dtype));
    assert_int_equal(tess_linear_backward_data(op, c->dy_dev, c->w_dev, dx), TESS_OK);
    double *got = reals(count), *expected = reals(count), *bound = reals(count);
    device_get_real(&device, d->dtype, dx, got, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t b = i / d->in, k = i % d->in;
        double magnitude;
        expected[i] = dot(c->dy + b * d->out, 1, c->w + k, d->in, d->out, 0, &magnitude);
        bound[i] = bound_of(d->dtype, (double)d->out, magnitude, expected[i]);
    }
    check_close("linear dx", got, expected, bound, count);
    free(got);
    free(expected);
    free(bound);
}

static void check_backward_weight(struct linear_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count = d->out * d->in;
    float *dw = device_array(&device, (size_t)count * sizeof(float));
    float *db = c->bias ? device_array(&device, (size_t)d->out * sizeof(float)) : NULL;
    assert_int_equal(tess_linear_backward_weight(op, c->x_dev, c->dy_dev, dw, db), TESS_OK);
    double *got = reals(count), *expected = reals(count), *bound = reals(count);
    device_get_real(&device, TESS_F32, dw, got, count);
    for (int64_t i = 0; i < count; i++) {
        double magnitude;
        expected[i] =
            dot(c->dy + i / d->in, d->out, c->x + i % d->in, d->in, d->rows, 0, &magnitude);
        bound[i] = bound_of(TESS_F32, (double)d->rows, magnitude, expected[i]);
    }
    check_close("linear dw", got, expected, bound, count);
    if (db != NULL) {
        const double one = 1;
        device_get_real(&device, TESS_F32, db, got, d->out);
        for (int64_t o = 0; o < d->out; o++) {
            double magnitude;
            expected[o] = dot(c->dy + o, d->out, &one, 0, d->rows, 0, &magnitude);
            bound[o] = bound_of(TESS_F32, (double)d->rows, magnitude, expected[o]);
        }
        check_close("linear dbias", got, expected, bound, d->out);
    }
    free(got);
    free(expected);
    free(bound);
}

/* got [count], which is sum [count], good to its bound, plus add, each perhaps rounded on its own.
 * Or the bias, of rows of `width`, is added last: cuBLASLt's kernels for odd sizes round before. */
static void check_sum(const char *what, enum tess_dtype dtype, const void *got_dev,
                      const double *add, const double *bias, int64_t width, double *sum,
                      double *bound, int64_t count)
{
    double *got = reals(count);
    device_get_real(&device, dtype, got_dev, got, count);
    for (int64_t i = 0; i < count; i++) {
        sum[i] += add[i];
        bound[i] += unit_of(dtype) * (fabs(sum[i]) + bound[i]) + tiny_of(dtype);
        bound[i] += bias != NULL ? unit_of(dtype) * fabs(sum[i] - bias[i % width]) : 0;
    }
    check_close(what, got, sum, bound, count);
    free(got);
}

/* Forward and backward_data onto something that is there; a leaf's bits are those that it has
 * alone.
 */
static void check_onto(struct linear_case *c, struct tess_op *op, struct draw *draw)
{
    const struct tess_op_desc *d = &c->d;
    const int64_t count[2] = {d->rows * d->out, d->rows * d->in};
    const int64_t leaf_count[2] = {d->leaf_rows * d->out, d->leaf_rows * d->in};
    const size_t word = tess_dtype_bytes(d->dtype);
    struct tess_op_desc one = *d;
    one.rows = d->leaf_rows;
    struct tess_op leaf;
    device_op_open(&device, &one, &leaf);
    for (int i = 0; i < 2; i++) {
        double *add = draw_reals(draw, d->dtype, count[i]);
        double *sum = reals(count[i]), *bound = reals(count[i]);
        char *add_dev = device_put_real(&device, d->dtype, add, count[i]);
        char *to = device_put_real(&device, d->dtype, add, count[i]);
        char *alone = device_put_real(&device, d->dtype, add, count[i]);
        char *term = device_array(&device, (size_t)count[i] * word);
        float *dw = device_array(&device, (size_t)(d->out * d->in) * sizeof(float));
        for (int64_t k = 0; k < count[i]; k++) {
            const int64_t row = k / (i == 0 ? d->out : d->in), at = k % (i == 0 ? d->out : d->in);
            double size;
            sum[k] = i == 0 ? dot(c->x + row * d->in, 1, c->w + at * d->in, 1, d->in,
                                  c->bias ? c->b[at] : 0, &size)
                            : dot(c->dy + row * d->out, 1, c->w + at, d->in, d->out, 0, &size);
            sum[k] = i == 0 && d->relu && sum[k] < 0 ? 0 : sum[k];
            bound[k] = bound_of(d->dtype, (double)(i == 0 ? d->in : d->out), size, sum[k]);
        }
        for (int64_t l = -1; l < (d->rows > 0 ? d->rows / d->leaf_rows : 0); l++) {
            struct tess_op *run = l < 0 ? op : &leaf;
            const size_t at = l < 0 ? 0 : (size_t)(l * leaf_count[i]) * word;
            const size_t other = l < 0 ? 0 : (size_t)(l * leaf_count[1 - i]) * word;
            char *y = (l < 0 ? to : alone) + at;
            const enum tess_status status =
                i == 0 ? tess_linear_forward_add(run, (char *)c->x_dev + other, c->w_dev, c->b_dev,
                                                 add_dev + at, y)
                       : tess_linear_backward(run, (char *)c->x_dev + at, (char *)c->dy_dev + other,
                                              c->w_dev, dw, NULL, term, y);
            assert_int_equal(status, TESS_OK);
        }
        char *whole = device_fetch(&device, to, (size_t)count[i] * word);
        char *leaves = device_fetch(&device, alone, (size_t)count[i] * word);
        check_bytes("linear onto, by leaves", leaves, whole, (size_t)count[i] * word);
        check_sum("linear onto", d->dtype, to, add, i == 0 && c->bias ? c->b : NULL, d->out, sum,
                  bound, count[i]);
        free(add);
        free(sum);
        free(bound);
        free(whole);
        free(leaves);
    }
    device_op_close(&leaf);
}

/* y, dx, dw and dbias of the whole, then of each leaf with an operation of one leaf: the same bits.
 */
static void check_leaves(struct linear_case *c, struct tess_op *whole)
{
    const struct tess_op_desc *d = &c->d;
    size_t word = tess_dtype_bytes(d->dtype);
    int64_t leaves = d->rows / d->leaf_rows, weights = d->out * d->in;
    size_t x_bytes = (size_t)(d->leaf_rows * d->in) * word;
    size_t y_bytes = (size_t)(d->leaf_rows * d->out) * word;
    struct tess_op_desc one = *d;
    one.rows = d->leaf_rows;
    struct tess_op leaf;
    device_op_open(&device, &one, &leaf);
    char *y = device_array(&device, y_bytes * (size_t)leaves), *y1 = device_array(&device, y_bytes);
    char *dx = device_array(&device, x_bytes * (size_t)leaves);
    char *dx1 = device_array(&device, x_bytes);
    float *dw = device_array(&device, (size_t)weights * sizeof(float));
    float *db = device_array(&device, (size_t)d->out * sizeof(float));
    float *dw1 = device_array(&device, (size_t)weights * sizeof(float));
    float *db1 = device_array(&device, (size_t)d->out * sizeof(float));
    assert_int_equal(tess_linear_forward(whole, c->x_dev, c->w_dev, c->b_dev, y), TESS_OK);
    assert_int_equal(tess_linear_backward_data(whole, c->dy_dev, c->w_dev, dx), TESS_OK);
    assert_int_equal(tess_linear_backward_weight(whole, c->x_dev, c->dy_dev, dw, db), TESS_OK);
    float *dw_leaf = floats(leaves * weights), *db_leaf = floats(leaves * d->out);
    char *a = malloc(x_bytes + y_bytes), *b = malloc(x_bytes + y_bytes);
    for (int64_t l = 0; l < leaves; l++) {
        const char *x_l = (const char *)c->x_dev + (size_t)l * x_bytes;
        const char *dy_l = (const char *)c->dy_dev + (size_t)l * y_bytes;
        assert_int_equal(tess_linear_forward(&leaf, x_l, c->w_dev, c->b_dev, y1), TESS_OK);
        device_get(&device, a, y1, y_bytes);
        device_get(&device, b, y + (size_t)l * y_bytes, y_bytes);
        check_bytes("linear y of a leaf", a, b, y_bytes);
        assert_int_equal(tess_linear_backward_data(&leaf, dy_l, c->w_dev, dx1), TESS_OK);
        device_get(&device, a, dx1, x_bytes);
        device_get(&device, b, dx + (size_t)l * x_bytes, x_bytes);
        check_bytes("linear dx of a leaf", a, b, x_bytes);
        assert_int_equal(tess_linear_backward_weight(&leaf, x_l, dy_l, dw1, db1), TESS_OK);
        device_get(&device, dw_leaf + l * weights, dw1, (size_t)weights * sizeof(float));
        device_get(&device, db_leaf + l * d->out, db1, (size_t)d->out * sizeof(float));
    }
    float *sum = floats(weights), *got = floats(weights);
    tree_sum(dw_leaf, leaves, weights, sum);
    device_get(&device, got, dw, (size_t)weights * sizeof(float));
    check_bytes("linear dw as the tree of leaves", got, sum, (size_t)weights * sizeof(float));
    tree_sum(db_leaf, leaves, d->out, sum);
    device_get(&device, got, db, (size_t)d->out * sizeof(float));
    check_bytes("linear dbias as the tree of leaves", got, sum, (size_t)d->out * sizeof(float));
    device_op_close(&leaf);
    free(dw_leaf);
    free(db_leaf);
    free(a);
    free(b);
    free(sum);
    free(got);
}

/* start + what an operation that overwrites gives, one addition per element, as bits. */
static void expect_added(const char *what, const float *got_dev, const float *start,
                         const float *sum_dev, int64_t count)
{
    size_t bytes = (size_t)count * sizeof(float);
    float *got = device_fetch(&device, got_dev, bytes);
    float *want = device_fetch(&device, sum_dev, bytes);
    for (int64_t i = 0; i < count; i++)
        want[i] = start[i] + want[i];
    check_bytes(what, got, want, bytes);
    free(got);
    free(want);
}

/* desc.add_grad: dw and dbias are added to what is there, the whole sum at once; twice here. */
static void check_add(struct linear_case *c, struct tess_op *overwrite, struct draw *draw)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count[2] = {d->out * d->in, d->out};
    struct tess_op_desc adding = *d;
    adding.add_grad = true;
    struct tess_op op;
    device_op_open(&device, &adding, &op);
    float *sum[2], *to[2], *start[2];
    for (int i = 0; i < 2; i++) {
        double *values = draw_reals(draw, TESS_F32, count[i]);
        sum[i] = device_array(&device, (size_t)count[i] * sizeof(float));
        to[i] = device_put_real(&device, TESS_F32, values, count[i]);
        free(values);
    }
    assert_int_equal(tess_linear_backward_weight(overwrite, c->x_dev, c->dy_dev, sum[0], sum[1]),
                     TESS_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++)
            start[i] = device_fetch(&device, to[i], (size_t)count[i] * sizeof(float));
        float *dbias = round == 0 ? to[1] : NULL;
        assert_int_equal(tess_linear_backward_weight(&op, c->x_dev, c->dy_dev, to[0], dbias),
                         TESS_OK);
        expect_added("linear dw added", to[0], start[0], sum[0], count[0]);
        if (dbias != NULL)
            expect_added("linear dbias added", to[1], start[1], sum[1], count[1]);
        free(start[0]);
        free(start[1]);
    }
    device_op_close(&op);
}

static void linear_run(struct linear_case *c, uint64_t seed)
{
    struct draw draw = {seed};
    device_reset(&device);
    linear_draw(c, &draw);
    struct tess_op op;
    device_op_open(&device, &c->d, &op);
    check_forward(c, &op);
    check_backward_data(c, &op);
    check_backward_weight(c, &op);
    check_leaves(c, &op);
    check_add(c, &op, &draw);
    check_onto(c, &op, &draw);
    device_op_close(&op);
    linear_free(c);
}

static struct linear_case linear_shape(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                       int64_t in, int64_t out, bool relu, bool bias)
{
    return (struct linear_case){
        .d = {.kind = TESS_OP_LINEAR,
              .dtype = dtype,
              .rows = leaves * leaf_rows,
              .leaf_rows = leaf_rows,
              .in = in,
              .out = out,
              .relu = relu,
              .input_grad = true},
        .bias = bias,
    };
}

/* Edges: nothing, ones, the tile sizes of the backends and their neighbours, a real layer; then
 * sums, leaves and numbers of leaves that are longer than what a backend packs at a time. */
static void linear_edges(enum tess_dtype dtype)
{
    static const int64_t shape[][4] = {
        {0, 1, 3, 2},     {0, 4, 16, 16},    {1, 1, 1, 1},      {2, 1, 1, 5},    {3, 1, 7, 1},
        {1, 3, 64, 64},   {5, 2, 65, 63},    {6, 3, 16, 48},    {7, 1, 127, 33}, {8, 4, 128, 10},
        {2, 8, 784, 10},  {8, 8, 128, 96},   {3, 16, 100, 130}, {4, 32, 31, 17}, {1, 35, 4131, 33},
        {1, 3, 35, 4133}, {3, 1057, 18, 35}, {75, 16, 18, 35},
    };
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        struct linear_case c = linear_shape(dtype, shape[i][0], shape[i][1], shape[i][2],
                                            shape[i][3], i % 2 == 0, i % 3 != 0);
        linear_run(&c, 100 + i);
    }
}

static void linear_random(enum tess_dtype dtype)
{
    struct draw draw = draw_shapes(7);
    for (int i = 0; i < 25; i++) {
        int64_t leaves = draw_between(&draw, 1, 9), leaf_rows = draw_between(&draw, 1, 12);
        int64_t in = draw_between(&draw, 1, 90), out = draw_between(&draw, 1, 90);
        bool relu = draw_between(&draw, 0, 1), bias = draw_between(&draw, 0, 1);
        struct linear_case c = linear_shape(dtype, leaves, leaf_rows, in, out, relu, bias);
        linear_run(&c, draw_word(&draw));
    }
}

/* Does this backend promise that rows do not depend on their number? oneDNN does not. */
static bool linear_rows_fixed(const char *backend, enum tess_dtype dtype)
{
    if (strcmp(backend, "cpu") != 0)
        return strcmp(backend, "cuda") != 0;
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           (dtype == TESS_F32 || __builtin_cpu_supports("avx512bf16"));
#else
    (void)dtype;
    return false;
#endif
}

/* The first `rows` rows alone have the bits that they have among all, y and dx. */
static void check_rows(struct linear_case *c, int64_t rows, const char *y, const char *dx)
{
    struct tess_op_desc d = c->d;
    const size_t used = device.used, word = tess_dtype_bytes(d.dtype);
    const size_t y_bytes = (size_t)(rows * d.out) * word, x_bytes = (size_t)(rows * d.in) * word;
    struct tess_op op;
    d.rows = d.leaf_rows = rows;
    device_op_open(&device, &d, &op);
    char *few_y = device_array(&device, y_bytes), *few_dx = device_array(&device, x_bytes);
    assert_int_equal(tess_linear_forward(&op, c->x_dev, c->w_dev, c->b_dev, few_y), TESS_OK);
    assert_int_equal(tess_linear_backward_data(&op, c->dy_dev, c->w_dev, few_dx), TESS_OK);
    device_op_close(&op);
    char *got = device_fetch(&device, few_y, y_bytes);
    check_bytes("linear y of few rows", got, y, y_bytes);
    free(got);
    got = device_fetch(&device, few_dx, x_bytes);
    check_bytes("linear dx of few rows", got, dx, x_bytes);
    free(got);
    device.used = used; /* the arrays of one number of rows at a time */
}

/* Values of which the second half takes back what the first adds, and a small last one where their
 * number is odd: sums of products are what rounding left, which shows their order. */
static void linear_cancel(struct linear_case *c)
{
    const int64_t in = c->d.in, out = c->d.out, k = in / 2, o = out / 2;
    for (int64_t r = 0; r < c->d.rows; r++) {
        for (int64_t i = k; i < in; i++)
            c->x[r * in + i] = i < 2 * k ? c->x[r * in + i - k] : 0x1p-20;
        for (int64_t i = o; i < out; i++)
            c->dy[r * out + i] = i < 2 * o ? c->dy[r * out + i - o] : 0x1p-20;
    }
    for (int64_t row = 0; row < out; row++)
        for (int64_t i = 0; i < in; i++)
            if (row >= o && row < 2 * o)
                c->w[row * in + i] = -c->w[(row - o) * in + i];
            else if (i >= k && i < 2 * k)
                c->w[row * in + i] = -c->w[row * in + i - k];
    c->x_dev = device_put_real(&device, c->d.dtype, c->x, c->d.rows * in);
    c->w_dev = device_put_real(&device, c->d.dtype, c->w, out * in);
    c->dy_dev = device_put_real(&device, c->d.dtype, c->dy, c->d.rows * out);
}

/* Decoding computes one row at a time of what training computed at once. */
static void linear_rows(const char *backend, enum tess_dtype dtype)
{
    static const int64_t shape[][2] = {{97, 33}, {64, 48}, {33, 97}, {130, 101}};
    if (!linear_rows_fixed(backend, dtype))
        return;
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        struct linear_case c =
            linear_shape(dtype, 1, 70, shape[i][0], shape[i][1], i % 2 != 0, false);
        struct draw draw = {300 + i};
        device_reset(&device);
        linear_draw(&c, &draw);
        linear_cancel(&c);
        struct tess_op op;
        device_op_open(&device, &c.d, &op);
        const size_t y_bytes = (size_t)(c.d.rows * c.d.out) * tess_dtype_bytes(dtype);
        const size_t x_bytes = (size_t)(c.d.rows * c.d.in) * tess_dtype_bytes(dtype);
        char *y = device_array(&device, y_bytes), *dx = device_array(&device, x_bytes);
        assert_int_equal(tess_linear_forward(&op, c.x_dev, c.w_dev, c.b_dev, y), TESS_OK);
        assert_int_equal(tess_linear_backward_data(&op, c.dy_dev, c.w_dev, dx), TESS_OK);
        device_op_close(&op);
        char *all_y = device_fetch(&device, y, y_bytes),
             *all_dx = device_fetch(&device, dx, x_bytes);
        for (int64_t rows = 1; rows < c.d.rows; rows++)
            check_rows(&c, rows, all_y, all_dx);
        free(all_y);
        free(all_dx);
        linear_free(&c);
    }
}

/* The same operation with other weights: a new token must bring them in. */
static void linear_token(enum tess_dtype dtype)
{
    struct linear_case c = linear_shape(dtype, 2, 8, 64, 64, false, true);
    struct draw draw = {11};
    device_reset(&device);
    linear_draw(&c, &draw);
    struct tess_op op;
    device_op_open(&device, &c.d, &op);
    for (int round = 0; round < 3; round++) {
        check_forward(&c, &op);
        check_backward_data(&c, &op);
        double *w = draw_reals(&draw, dtype, 64 * 64);
        void *fresh = device_put_real(&device, dtype, w, 64 * 64);
        tess_copy(device.kernel, 64 * 64 * (int64_t)tess_dtype_bytes(dtype), fresh, c.w_dev);
        free(c.w);
        c.w = w;
        op.weight_token += 1000;
    }
    check_backward_data(&c, &op); /* backward first, this time */
    check_forward(&c, &op);
    device_op_close(&op);
    linear_free(&c);
}

static void case_edges_f32(void **state)
{
    (void)state;
    linear_edges(TESS_F32);
}

static void case_edges_bf16(void **state)
{
    (void)state;
    linear_edges(TESS_BF16);
}

static void case_edges_f16(void **state)
{
    (void)state;
    linear_edges(TESS_F16);
}

static void case_random_f32(void **state)
{
    (void)state;
    linear_random(TESS_F32);
}

static void case_random_bf16(void **state)
{
    (void)state;
    linear_random(TESS_BF16);
}

static void case_random_f16(void **state)
{
    (void)state;
    linear_random(TESS_F16);
}

static void case_rows(void **state)
{
    linear_rows(*state, TESS_F32);
    linear_rows(*state, TESS_BF16);
}

static void case_token(void **state)
{
    (void)state;
    linear_token(TESS_F32);
    linear_token(TESS_BF16);
    linear_token(TESS_F16);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 32u << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_edges_f32),
        cmocka_unit_test(case_edges_bf16),
        cmocka_unit_test(case_edges_f16),
        cmocka_unit_test(case_random_f32),
        cmocka_unit_test(case_random_bf16),
        cmocka_unit_test(case_random_f16),
        cmocka_unit_test(case_token),
        cmocka_unit_test_prestate(case_rows, (void *)device_backend(argc, argv)),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
