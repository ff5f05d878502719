/*
 * Convolutions of one backend (argv[1]) with TESS_CONV_F32_WINOGRAD: forward, data gradient and
 * weight gradient against direct sums in double, within the bound that Winograd's transforms have
 * element by element; and images by themselves, bit for bit. The transforms' matrices are made here
 * from their points, by Lagrange's interpolation. A backend that computes directly is within the
 * same bound. The same in bf16, whose results are rounded once more.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OUT = 4, IN = 6, WINDOW = 3, POINTS = IN - 1 };

/* Roundings of the transforms; what a sum of products of equal magnitudes is magnified by. */
#define ROUNDINGS 19
#define GROWTH    63.0

static struct device device;

static const double point[POINTS] = {0, 0.625, -0.625, 1.5, -1.5};
static double a_t[OUT][IN], g_[IN][WINDOW], b_t[IN][IN]; /* the last point is infinity */

/* y = A^T ((G g) (B^T d)): Cook and Toom's products of polynomials, transposed. */
static void matrices_make(void)
{
    for (int p = 0; p < POINTS; p++) {
        double over = 1, poly[IN] = {1}; /* product of x - q over the other points q */
        int degree = 0;
        for (int q = 0; q < POINTS; q++) {
            if (q == p)
                continue;
            over *= point[p] - point[q];
            for (int i = ++degree; i >= 0; i--)
                poly[i] = (i > 0 ? poly[i - 1] : 0) - point[q] * (i < degree ? poly[i] : 0);
        }
        memcpy(b_t[p], poly, sizeof(poly));
        for (int i = 0; i < OUT; i++)
            a_t[i][p] = pow(point[p], i);
        for (int i = 0; i < WINDOW; i++)
            g_[p][i] = pow(point[p], i) / over;
    }
    for (int i = 0; i < POINTS; i++) /* the product over all points: x times that of point 0 */
        b_t[POINTS][i + 1] = b_t[0][i];
    a_t[OUT - 1][POINTS] = g_[POINTS][WINDOW - 1] = 1;
}

/* to = |m| from |m|^T of a matrix m [rows, cols], from [cols, cols]. */
static void magnitudes(const double *m, int rows, int cols, bool transposed, const double *from,
                       double *to)
{
    double half[IN * IN];
    for (int pass = 0; pass < 2; pass++) {
        const double *in = pass == 0 ? from : half;
        double *out = pass == 0 ? half : to, result[IN * IN] = {0};
        const int width = pass == 0 ? cols : rows;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < width; c++) {
                result[c * rows + r] = 0; /* turned over: the other pass is over its rows */
                for (int k = 0; k < cols; k++)
                    result[c * rows + r] +=
                        fabs(m[transposed ? k * rows + r : r * cols + k]) * fabs(in[k * width + c]);
            }
        memcpy(out, result, (size_t)(rows * width) * sizeof(double));
    }
}

struct images {
    int64_t count, height, width, channels;
    const double *at;
};

static double pixel(const struct images *x, int64_t image, int64_t row, int64_t column, int64_t c)
{
    if (row < 0 || row >= x->height || column < 0 || column >= x->width)
        return 0;
    return x->at[((image * x->height + row) * x->width + column) * x->channels + c];
}

/* |B^T| |d| |B| of a tile's channel, and |A| |dy| |A^T|. */
static void tile_magnitudes(const struct images *x, int64_t image, int64_t row, int64_t column,
                            int64_t c, int side, double v[IN * IN])
{
    double d[IN * IN];
    for (int i = 0; i < side * side; i++)
        d[i] = pixel(x, image, row + i / side, column + i % side, c);
    if (side == IN)
        magnitudes(b_t[0], IN, IN, false, d, v);
    else
        magnitudes(a_t[0], IN, OUT, true, d, v);
}

/* y and its bound for w [out, 3, 3, in] and images x. */
static void convolve(const struct images *x, const double *w, const double *bias, int64_t out,
                     int64_t padding, double *y, double *bound)
{
    const int64_t in = x->channels, height = x->height + 2 * padding - 2;
    const int64_t width = x->width + 2 * padding - 2;
    const double unit = (double)(in + ROUNDINGS) * 0x1p-24 * 1.01;
    double *u = reals(out * in * IN * IN), *v = reals(in * IN * IN);
    for (int64_t k = 0; k < out * in; k++) {
        double g[WINDOW * WINDOW];
        for (int i = 0; i < WINDOW * WINDOW; i++)
            g[i] = w[(k / in * WINDOW * WINDOW + i) * in + k % in];
        magnitudes(g_[0], IN, WINDOW, false, g, u + k * IN * IN);
    }
    for (int64_t t = 0; t < x->count * height * width; t++) {
        const int64_t image = t / (height * width), row = t / width % height, column = t % width;
        if (row % OUT == 0 && column % OUT == 0)
            for (int64_t c = 0; c < in; c++)
                tile_magnitudes(x, image, row - padding, column - padding, c, IN, v + c * IN * IN);
        for (int64_t o = 0; o < out; o++) {
            double sum = bias != NULL ? bias[o] : 0;
            for (int64_t i = 0; i < WINDOW * WINDOW * in; i++)
                sum += w[o * WINDOW * WINDOW * in + i] *
                       pixel(x, image, row + i / in / WINDOW - padding,
                             column + i / in % WINDOW - padding, i % in);
            y[t * out + o] = sum;
            if (row % OUT != 0 || column % OUT != 0)
                continue;
            double m[IN * IN] = {0}, all[OUT * OUT];
            for (int64_t i = 0; i < in * IN * IN; i++)
                m[i % (IN * IN)] += u[o * in * IN * IN + i] * v[i];
            magnitudes(a_t[0], OUT, IN, false, m, all);
            for (int i = 0; i < OUT * OUT; i++)
                if (row + i / OUT < height && column + i % OUT < width)
                    bound[(t + i / OUT * width + i % OUT) * out + o] =
                        unit * (all[i] + (bias != NULL ? fabs(bias[o]) : 0));
        }
    }
    free(u);
    free(v);
}

/* dw and its bound, sums over all images in any number of leaves. */
static void weigh(const struct images *x, const struct images *dy, int64_t padding, double *dw,
                  double *bound)
{
    const int64_t in = x->channels, out = dy->channels;
    const int64_t tall = (dy->height + OUT - 1) / OUT, wide = (dy->width + OUT - 1) / OUT;
    const int64_t tiles = dy->count * tall * wide;
    double *v = reals(tiles * in * IN * IN), *m = reals(tiles * out * IN * IN);
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t image = t / (tall * wide), row = t / wide % tall * OUT, col = t % wide * OUT;
        for (int64_t c = 0; c < in; c++)
            tile_magnitudes(x, image, row - padding, col - padding, c, IN,
                            v + (t * in + c) * IN * IN);
        for (int64_t o = 0; o < out; o++)
            tile_magnitudes(dy, image, row, col, o, OUT, m + (t * out + o) * IN * IN);
    }
    for (int64_t k = 0; k < out * in; k++) {
        const int64_t o = k / in, c = k % in;
        double u[IN * IN] = {0}, all[WINDOW * WINDOW];
        for (int64_t i = 0; i < tiles * IN * IN; i++)
            u[i % (IN * IN)] += m[(i / (IN * IN) * out + o) * IN * IN + i % (IN * IN)] *
                                v[(i / (IN * IN) * in + c) * IN * IN + i % (IN * IN)];
        magnitudes(g_[0], WINDOW, IN, true, u, all);
        for (int64_t i = 0; i < WINDOW * WINDOW; i++) {
            const int64_t at = (o * WINDOW * WINDOW + i) * in + c;
            bound[at] = (double)(tiles + ROUNDINGS) * 0x1p-24 * 1.01 * all[i];
            dw[at] = 0;
            for (int64_t p = 0; p < dy->count * dy->height * dy->width; p++)
                dw[at] +=
                    dy->at[p * out + o] * pixel(x, p / (dy->height * dy->width),
                                                p / dy->width % dy->height + i / WINDOW - padding,
                                                p % dy->width + i % WINDOW - padding, c);
        }
    }
    free(v);
    free(m);
}

/* The window turned round, and outputs for inputs. */
static double *turned(const double *w, int64_t out, int64_t in)
{
    double *back = reals(out * in * WINDOW * WINDOW);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < WINDOW * WINDOW * in; i++)
            back[(i % in * WINDOW * WINDOW + WINDOW * WINDOW - 1 - i / in) * out + o] =
                w[o * WINDOW * WINDOW * in + i];
    return back;
}

struct problem {
    struct tess_op_desc d;
    int64_t height, width;             /* of the result */
    int64_t x_count, y_count, w_count; /* of an image, of an image, of the weights */
    double *x, *dy, *w, *bias;
    void *x_dev, *dy_dev, *w_dev, *bias_dev, *y_dev, *dx_dev, *dw_dev;
};

/* A result of the problem's type against its values in double. */
static void problem_check(const struct problem *p, const char *what, const void *got,
                          const double *expected, double *bound, int64_t count)
{
    for (int64_t i = 0; p->d.dtype != TESS_F32 && i < count; i++)
        bound[i] += bound_of(p->d.dtype, 0, 0, fabs(expected[i]) + bound[i]);
    device_check(&device, what, p->d.dtype, got, expected, bound, count);
}

static void problem_values(const struct problem *p)
{
    const struct tess_op_desc *d = &p->d;
    const struct images x = {d->rows, d->height, d->width, d->in, p->x};
    const struct images dy = {d->rows, p->height, p->width, d->out, p->dy};
    const int64_t most = d->rows * (p->x_count + p->y_count) + p->w_count;
    double *expected = reals(most), *bound = reals(most), *back = turned(p->w, d->out, d->in);
    convolve(&x, p->w, p->bias, d->out, d->padding, expected, bound);
    for (int64_t i = 0; d->relu && i < d->rows * p->y_count; i++)
        expected[i] = expected[i] > 0 ? expected[i] : 0;
    problem_check(p, "winograd y", p->y_dev, expected, bound, d->rows * p->y_count);
    convolve(&dy, back, NULL, d->in, WINDOW - 1 - d->padding, expected, bound);
    problem_check(p, "winograd dx", p->dx_dev, expected, bound, d->rows * p->x_count);
    weigh(&x, &dy, d->padding, expected, bound);
    device_check(&device, "winograd dw", TESS_F32, p->dw_dev, expected, bound, p->w_count);
    free(expected);
    free(bound);
    free(back);
}

/* Each image by itself has the bits that it has among all, and `auto` takes what is below its
 * limit, as all shapes here are. */
static void problem_images(const struct problem *p)
{
    struct tess_op_desc one = p->d;
    struct tess_op op;
    one.rows = one.leaf_rows = 1;
    one.conv = TESS_CONV_F32_AUTO;
    device_op_open(&device, &one, &op);
    const size_t element = tess_dtype_bytes(one.dtype);
    const size_t x_bytes = (size_t)p->x_count * element, y_bytes = (size_t)p->y_count * element;
    char *y = device_array(&device, y_bytes), *dx = device_array(&device, x_bytes);
    for (int64_t i = 0; i < p->d.rows; i++) {
        const char *x_i = (const char *)p->x_dev + (size_t)i * x_bytes;
        const char *dy_i = (const char *)p->dy_dev + (size_t)i * y_bytes;
        assert_int_equal(tess_conv2d_forward(&op, x_i, p->w_dev, p->bias_dev, y), TESS_OK);
        assert_int_equal(tess_conv2d_backward_data(&op, dy_i, p->w_dev, dx), TESS_OK);
        char *got[2] = {device_fetch(&device, y, y_bytes), device_fetch(&device, dx, x_bytes)};
        char *all[2] = {
            device_fetch(&device, (const char *)p->y_dev + (size_t)i * y_bytes, y_bytes),
            device_fetch(&device, (const char *)p->dx_dev + (size_t)i * x_bytes, x_bytes)};
        check_bytes("winograd y of an image", got[0], all[0], y_bytes);
        check_bytes("winograd dx of an image", got[1], all[1], x_bytes);
        for (int k = 0; k < 2; k++) {
            free(got[k]);
            free(all[k]);
        }
    }
    device_op_close(&op);
}

static void problem_run(enum tess_dtype dtype, const int *s, uint64_t seed)
{
    struct draw draw = {seed};
    struct problem p = {.d = {.kind = TESS_OP_CONV2D,
                              .dtype = dtype,
                              .rows = s[0] * s[1],
                              .leaf_rows = s[1],
                              .in = s[2],
                              .out = s[3],
                              .height = s[4],
                              .width = s[5],
                              .window = WINDOW,
                              .stride = 1,
                              .padding = s[6],
                              .relu = seed % 2 == 0,
                              .input_grad = true,
                              .conv = TESS_CONV_F32_WINOGRAD}};
    const struct tess_op_desc *d = &p.d;
    const size_t element = tess_dtype_bytes(dtype);
    struct tess_op op;
    device_reset(&device);
    p.height = tess_op_output_size(d->height, WINDOW, 1, d->padding);
    p.width = tess_op_output_size(d->width, WINDOW, 1, d->padding);
    p.x_count = d->height * d->width * d->in;
    p.y_count = p.height * p.width * d->out;
    p.w_count = d->out * WINDOW * WINDOW * d->in;
    p.x = draw_reals(&draw, dtype, d->rows * p.x_count);
    p.dy = draw_reals(&draw, dtype, d->rows * p.y_count);
    p.w = draw_reals(&draw, dtype, p.w_count);
    p.bias = seed % 3 != 0 ? draw_reals(&draw, dtype, d->out) : NULL;
    p.x_dev = device_put_real(&device, dtype, p.x, d->rows * p.x_count);
    p.dy_dev = device_put_real(&device, dtype, p.dy, d->rows * p.y_count);
    p.w_dev = device_put_real(&device, dtype, p.w, p.w_count);
    p.bias_dev = p.bias != NULL ? device_put_real(&device, dtype, p.bias, d->out) : NULL;
    p.y_dev = device_array(&device, (size_t)(d->rows * p.y_count) * element);
    p.dx_dev = device_array(&device, (size_t)(d->rows * p.x_count) * element);
    p.dw_dev = device_array(&device, (size_t)p.w_count * 4);
    device_op_open(&device, d, &op);
    assert_int_equal(tess_conv2d_forward(&op, p.x_dev, p.w_dev, p.bias_dev, p.y_dev), TESS_OK);
    assert_int_equal(tess_conv2d_backward_data(&op, p.dy_dev, p.w_dev, p.dx_dev), TESS_OK);
    assert_int_equal(tess_conv2d_backward_weight(&op, p.x_dev, p.dy_dev, p.dw_dev, NULL), TESS_OK);
    problem_values(&p);
    problem_images(&p);
    device_op_close(&op);
    free(p.x);
    free(p.dy);
    free(p.w);
    free(p.bias);
}

/* Leaves, leaf rows, in, out, height, width, padding: all remainders of tiles, all paddings,
 * several groups of tiles, every width of a product. */
static const int shape[][7] = {
    {1, 1, 16, 16, 3, 3, 0},   {2, 2, 16, 32, 6, 6, 0},   {1, 3, 32, 16, 7, 5, 1},
    {3, 1, 48, 16, 4, 9, 1},   {1, 2, 16, 80, 5, 6, 2},   {2, 5, 16, 16, 14, 15, 1},
    {1, 1, 64, 48, 11, 10, 0}, {1, 2, 16, 16, 34, 33, 1},
};

static void case_shapes_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++)
        problem_run(TESS_F32, shape[i], 400 + i);
}

static void case_shapes_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++)
        problem_run(TESS_BF16, shape[i], 500 + i);
}

/* The constant that the documentation and the choice of `auto` have. */
static void case_growth(void **state)
{
    (void)state;
    double most = 0;
    for (int i = 0; i < OUT; i++) {
        double sum = 0;
        for (int p = 0; p < IN; p++) {
            double g = 0, d = 0;
            for (int k = 0; k < WINDOW; k++)
                g += fabs(g_[p][k]);
            for (int k = 0; k < IN; k++)
                d += fabs(b_t[p][k]);
            sum += fabs(a_t[i][p]) * g * d;
        }
        most = sum > most ? sum : most;
    }
    assert_true(most * most / (WINDOW * WINDOW) < GROWTH);
    assert_true(most * most / (WINDOW * WINDOW) > GROWTH - 1);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 8u << 20);
    matrices_make();
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_shapes_f32),
                                       cmocka_unit_test(case_shapes_bf16),
                                       cmocka_unit_test(case_growth)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
