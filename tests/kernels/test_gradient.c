/* Forward/backward pairs of one backend (argv[1]) by central differences; see problem.h. */
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

/* ---- linear and convolution ----------------------------------------------------------------- */

static void linear_forward(struct problem *b)
{
    assert_int_equal(tess_linear_forward(&b->op, b->p_dev[0], b->p_dev[1], b->p_dev[2], b->y),
                     TESS_OK);
}

static void linear_backward(struct problem *b)
{
    assert_int_equal(tess_linear_backward_data(&b->op, b->r_dev, b->p_dev[1], b->grad_dev[0]),
                     TESS_OK);
    assert_int_equal(
        tess_linear_backward_weight(&b->op, b->p_dev[0], b->r_dev, b->grad_dev[1], b->grad_dev[2]),
        TESS_OK);
}

static void case_linear(void **state)
{
    (void)state;
    struct draw draw = {1};
    device_reset(&device);
    struct tess_op_desc d = {.kind = TESS_OP_LINEAR,
                             .rows = 12,
                             .leaf_rows = 4,
                             .in = 19,
                             .out = 23,
                             .input_grad = true};
    struct problem b = {.device = &device,
                        .name = "linear",
                        .part_count = 3,
                        .count = {12 * 19, 23 * 19, 23},
                        .out = 12 * 23,
                        .forward = linear_forward,
                        .backward = linear_backward};
    device_op_open(&device, &d, &b.op);
    problem_open(&b, &draw);
    problem_check(&b);
    device_op_close(&b.op);
}

static void conv_forward(struct problem *b)
{
    assert_int_equal(tess_conv2d_forward(&b->op, b->p_dev[0], b->p_dev[1], b->p_dev[2], b->y),
                     TESS_OK);
}

static void conv_backward(struct problem *b)
{
    assert_int_equal(tess_conv2d_backward_data(&b->op, b->r_dev, b->p_dev[1], b->grad_dev[0]),
                     TESS_OK);
    assert_int_equal(
        tess_conv2d_backward_weight(&b->op, b->p_dev[0], b->r_dev, b->grad_dev[1], b->grad_dev[2]),
        TESS_OK);
}

static void case_conv2d(void **state)
{
    (void)state;
    struct draw draw = {2};
    device_reset(&device);
    struct tess_op_desc d = {.kind = TESS_OP_CONV2D,
                             .rows = 4,
                             .leaf_rows = 2,
                             .in = 3,
                             .out = 8,
                             .height = 9,
                             .width = 7,
                             .window = 3,
                             .stride = 2,
                             .padding = 1,
                             .input_grad = true};
    struct problem b = {.device = &device,
                        .name = "conv2d",
                        .part_count = 3,
                        .count = {4 * 9 * 7 * 3, 8 * 9 * 3, 8},
                        .out = 4 * 5 * 4 * 8,
                        .forward = conv_forward,
                        .backward = conv_backward};
    device_op_open(&device, &d, &b.op);
    problem_open(&b, &draw);
    problem_check(&b);
    device_op_close(&b.op);
}

/* ---- pooling -------------------------------------------------------------------------------- */

/*
 * Values a multiple of 4 STEP apart, shuffled, so that no step changes which one is greatest; all
 * positive, or the folded ReLU would have a kink within reach.
 */
static double *distinct(struct draw *draw, int64_t count)
{
    double *x = reals(count);
    for (int64_t i = 0; i < count; i++) {
        int64_t k = draw_between(draw, 0, i);
        x[i] = x[k];
        x[k] = 4 * STEP * (double)(i + 1);
    }
    return x;
}

static void max_forward(struct problem *b)
{
    assert_int_equal(tess_max_pool_forward(&b->op, b->p_dev[0], b->y, b->which), TESS_OK);
}

static void max_backward(struct problem *b)
{
    assert_int_equal(tess_max_pool_backward(&b->op, b->r_dev, b->which, b->grad_dev[0]), TESS_OK);
}

static void avg_forward(struct problem *b)
{
    assert_int_equal(tess_avg_pool_forward(&b->op, b->p_dev[0], b->y), TESS_OK);
}

static void avg_backward(struct problem *b)
{
    assert_int_equal(tess_avg_pool_backward(&b->op, b->r_dev, b->grad_dev[0]), TESS_OK);
}

static void pool_case(enum tess_op_kind kind, bool relu)
{
    struct draw draw = {3};
    device_reset(&device);
    struct tess_op_desc d = {.kind = kind,
                             .rows = 2,
                             .leaf_rows = 1,
                             .in = 5,
                             .out = 5,
                             .height = 7,
                             .width = 6,
                             .window = 3,
                             .stride = 2,
                             .padding = 1,
                             .relu = relu};
    bool max = kind == TESS_OP_MAX_POOL;
    struct problem b = {.device = &device,
                        .name = max ? "max pool" : "average pool",
                        .part_count = 1,
                        .count = {2 * 7 * 6 * 5},
                        .out = 2 * 4 * 3 * 5,
                        .forward = max ? max_forward : avg_forward,
                        .backward = max ? max_backward : avg_backward};
    b.p[0] = distinct(&draw, b.count[0]);
    device_op_open(&device, &d, &b.op);
    problem_open(&b, &draw);
    problem_check(&b);
    device_op_close(&b.op);
}

static void case_pool(void **state)
{
    (void)state;
    pool_case(TESS_OP_MAX_POOL, false);
    pool_case(TESS_OP_MAX_POOL, true);
    pool_case(TESS_OP_AVG_POOL, false);
}

/* ---- batch norm ----------------------------------------------------------------------------- */

static void norm_forward(struct problem *b)
{
    assert_int_equal(tess_batch_norm_forward(&b->op, b->p_dev[0], b->p_dev[1], b->p_dev[2], b->y,
                                             b->aux[0], b->aux[1], b->aux[2], b->aux[3]),
                     TESS_OK);
}

static void norm_backward(struct problem *b)
{
    assert_int_equal(tess_batch_norm_backward(&b->op, b->p_dev[0], b->y, b->r_dev, b->p_dev[1],
                                              b->p_dev[2], b->aux[0], b->aux[1], b->grad_dev[0],
                                              b->grad_dev[1], b->grad_dev[2]),
                     TESS_OK);
}

/*
 * With a ReLU, each channel's beta is 8 or -8 and |x_hat| stays below 4: a channel passes or is cut
 * off as a whole, far from the kink.
 */
static void norm_case(bool relu)
{
    enum { ROWS = 6, LEAF = 3, CHANNELS = 6, SIDE = 3 };
    struct draw draw = {4};
    device_reset(&device);
    struct tess_op_desc d = {.kind = TESS_OP_BATCH_NORM,
                             .rows = ROWS,
                             .leaf_rows = LEAF,
                             .in = CHANNELS,
                             .out = CHANNELS,
                             .height = SIDE,
                             .width = SIDE,
                             .relu = relu,
                             .epsilon = 1e-3f};
    int64_t count = ROWS * SIDE * SIDE * CHANNELS;
    struct problem b = {.device = &device,
                        .name = relu ? "batch norm with ReLU" : "batch norm",
                        .part_count = 3,
                        .count = {count, CHANNELS, CHANNELS},
                        .out = count,
                        .forward = norm_forward,
                        .backward = norm_backward};
    b.p[2] = reals(CHANNELS);
    for (int c = 0; c < CHANNELS; c++)
        b.p[2][c] = c % 3 == 1 ? -8 : 8;
    device_op_open(&device, &d, &b.op);
    problem_open(&b, &draw);
    problem_check(&b);
    device_op_close(&b.op);
}

static void case_batch_norm(void **state)
{
    (void)state;
    norm_case(false);
    norm_case(true);
}

/* ---- plain operations ----------------------------------------------------------------------- */

enum { PLAIN = 600 };
static const uint64_t plain_key[2] = {5, 6};

static void relu_forward(struct problem *b)
{
    tess_relu_forward(device.kernel, TESS_F32, PLAIN, b->p_dev[0], b->y);
}

static void relu_backward(struct problem *b)
{
    tess_relu_backward(device.kernel, TESS_F32, PLAIN, b->y, b->r_dev, b->grad_dev[0]);
}

static void case_relu(void **state)
{
    (void)state;
    struct draw draw = {5};
    device_reset(&device);
    struct problem b = {.device = &device,
                        .name = "relu",
                        .part_count = 1,
                        .count = {PLAIN},
                        .out = PLAIN,
                        .forward = relu_forward,
                        .backward = relu_backward};
    b.p[0] = draw_reals(&draw, TESS_F32, PLAIN);
    for (int i = 0; i < PLAIN; i++) /* away from the kink */
        b.p[0][i] += copysign(2 * STEP, b.p[0][i]);
    problem_open(&b, &draw);
    problem_check(&b);
}

static void dropout_forward(struct problem *b)
{
    tess_dropout(device.kernel, TESS_F32, 1, PLAIN, PLAIN, 0.3f, plain_key, 11, b->p_dev[0], b->y);
}

static void dropout_backward(struct problem *b)
{
    tess_dropout(device.kernel, TESS_F32, 1, PLAIN, PLAIN, 0.3f, plain_key, 11, b->r_dev,
                 b->grad_dev[0]);
}

static void case_dropout(void **state)
{
    (void)state;
    struct draw draw = {6};
    device_reset(&device);
    struct problem b = {.device = &device,
                        .name = "dropout",
                        .part_count = 1,
                        .count = {PLAIN},
                        .out = PLAIN,
                        .forward = dropout_forward,
                        .backward = dropout_backward};
    problem_open(&b, &draw);
    problem_check(&b);
}

enum { LOSS_ROWS = 20, LOSS_CLASSES = 10 };

static const struct tess_xent loss_how = {
    .smoothing = 0.2f, .spread = 0.2f / LOSS_CLASSES, .z = 0.05f};

/* y is the loss of each row, and r must be the scale: one number. */
static void loss_forward(struct problem *b)
{
    tess_softmax_xent(device.kernel, TESS_F32, LOSS_ROWS, LOSS_CLASSES, loss_how, 0.5f, b->p_dev[0],
                      b->label, b->grad_dev[0], b->y, (int32_t *)b->aux[0]);
}

static void loss_backward(struct problem *b)
{
    (void)b; /* forward wrote the gradient too; the last call was at t = 0 */
}

static void case_loss(void **state)
{
    (void)state;
    struct draw draw = {7};
    int32_t label[LOSS_ROWS];
    device_reset(&device);
    struct problem b = {.device = &device,
                        .name = "softmax cross-entropy",
                        .part_count = 1,
                        .count = {LOSS_ROWS * LOSS_CLASSES},
                        .out = LOSS_ROWS,
                        .forward = loss_forward,
                        .backward = loss_backward};
    for (int i = 0; i < LOSS_ROWS; i++)
        label[i] = i % 7 == 6 ? -1 : i % LOSS_CLASSES;
    b.label = device_array(&device, sizeof(label));
    device_put(&device, b.label, label, sizeof(label));
    problem_open(&b, &draw);
    for (int i = 0; i < LOSS_ROWS; i++)
        b.r[i] = 0.5;
    problem_check(&b);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 512u << 10);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_linear), cmocka_unit_test(case_conv2d),
        cmocka_unit_test(case_pool),   cmocka_unit_test(case_batch_norm),
        cmocka_unit_test(case_relu),   cmocka_unit_test(case_dropout),
        cmocka_unit_test(case_loss),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
