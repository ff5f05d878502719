/*
 * What conv.c and conv_cudnn.c make of cuDNN's plans, on the CPU: a made-up library with one engine
 * (fake_engine.h), and around it stand-ins for the device's memory and for cuBLASLt. Against ref,
 * by numbers whose sums are exact, so that results are equal in every order: leaf by leaf, the tree
 * over the leaves, bias, ReLU, the ways that fall back, room for plans, and every call that fails.
 */
#include "../device.h"
#include "cuda/products/conv.h"
#include "cuda/products/matmul.h"
#include "cuda/rows/columns.h"
#include "cuda/slots.h"
#include "fake_device.h"
#include "tessera/log.h"

#include <stdlib.h>
#include <string.h>

static struct device device; /* ref's */

/* The kernel under test: ref's plain operations, and the state of the CUDA room. */
static struct tess_queue queue;
static struct cuda_state state;
static struct tess_kernel kernel;

/* ---- stand-ins ------------------------------------------------------------------------------- */

static int products; /* plans of cuBLASLt that were asked for */

cublasComputeType_t tess__cuda_matmul_compute(const struct tess_kernel *of, cudaDataType_t type,
                                              bool exact)
{
    (void)of, (void)type, (void)exact;
    return CUBLAS_COMPUTE_32F;
}

cudaDataType_t tess__cuda_data_type(enum tess_dtype dtype)
{
    return dtype == TESS_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

struct cuda_product tess__cuda_product(int64_t m, int64_t n, int64_t k, cudaDataType_t type)
{
    return (struct cuda_product){.m = m, .n = n, .k = k, .a = type, .b = type, .d = type};
}

/* Any address stands for one: none is run here. */
enum tess_status tess__cuda_plan_get(struct tess_kernel *of, const struct cuda_product *product,
                                     struct cuda_plan **plan_out)
{
    (void)of, (void)product;
    products++;
    *plan_out = (struct cuda_plan *)(void *)&products;
    return TESS_OK;
}

enum tess_status tess__cuda_rows_open(struct tess_kernel *of, const struct cuda_product *product,
                                      int64_t leaves, struct cuda_rows *rows_out)
{
    *rows_out = (struct cuda_rows){.leaves = leaves};
    return tess__cuda_plan_get(of, product, &rows_out->leaf);
}

enum tess_status tess__cuda_plan_run(struct tess_kernel *of, struct cuda_plan *plan,
                                     const struct cuda_operands *operands)
{
    (void)of, (void)plan, (void)operands;
    TESS_FAIL(TESS_ERR_INTERNAL, "a product was run");
}

enum tess_status tess__cuda_leaf_run(struct tess_kernel *of, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands)
{
    return tess__cuda_plan_run(of, rows->leaf, operands);
}

enum tess_status tess__cuda_rows_run(struct tess_kernel *of, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands)
{
    return tess__cuda_plan_run(of, rows->leaf, operands);
}

cudaError_t tess__cuda_conv_windows(cudaStream_t stream, enum tess_dtype dtype,
                                    const struct cuda_windows *windows, const void *x,
                                    void *columns)
{
    (void)stream, (void)dtype, (void)windows, (void)x, (void)columns;
    return cudaErrorNotSupported;
}

cudaError_t tess__cuda_conv_gather(cudaStream_t stream, enum tess_dtype dtype,
                                   const struct cuda_windows *windows, const float *columns,
                                   void *dx)
{
    (void)stream, (void)dtype, (void)windows, (void)columns, (void)dx;
    return cudaErrorNotSupported;
}

size_t tess__cuda_column_sum_bytes(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                   int64_t n)
{
    (void)dtype, (void)leaves, (void)leaf_rows, (void)n;
    return 0;
}

cudaError_t tess__cuda_column_sum(cudaStream_t stream, enum tess_dtype dtype, int64_t leaves,
                                  int64_t leaf_rows, int64_t n, const void *x, bool add, float *out,
                                  void *scratch)
{
    (void)stream, (void)scratch;
    assert_int_equal(dtype, TESS_F32);
    assert_false(add);
    for (int64_t c = 0; c < n; c++) {
        out[c] = 0;
        for (int64_t r = 0; r < leaves * leaf_rows; r++)
            out[c] += ((const float *)x)[r * n + c];
    }
    return cudaSuccess;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void begin(void)
{
    device_reset(&device);
    fake_clear();
    products = 0;
    state = (struct cuda_state){.conv = TESS_CONV_CUDNN};
    kernel = (struct tess_kernel){
        .ops = device.kernel->ops, .threads = 1, .queue = &queue, .state = &state};
}

/* Nothing is left. */
static void end(void)
{
    tess__cudnn_close(&kernel);
    assert_null(state.cudnn);
    assert_int_equal(fake_engine.alive, 0);
    assert_int_equal(fake_arrays, 0);
    fake_clear();
}

static struct tess_op_desc layer(int64_t leaves, int64_t leaf_rows, int64_t size, int64_t in,
                                 int64_t out, int32_t window, int32_t stride, int32_t padding)
{
    return (struct tess_op_desc){
        .kind = TESS_OP_CONV2D,
        .dtype = TESS_F32,
        .rows = leaves * leaf_rows,
        .leaf_rows = leaf_rows,
        .height = size,
        .width = size + 1,
        .in = in,
        .out = out,
        .window = window,
        .stride = stride,
        .padding = padding,
        .input_grad = true,
    };
}

#define BEYOND 64

/* What lies behind the scratch of the latest operation stays as device_array left it. */
static const unsigned char *beyond;

static enum tess_status open_op(const struct tess_op_desc *desc, struct tess_op *op)
{
    struct tess_op_needs needs;
    assert_int_equal(tess__cuda_conv_needs(desc, &needs), TESS_OK);
    *op = (struct tess_op){.desc = *desc, .kernel = &kernel};
    op->scratch = device_array(&device, needs.scratch_bytes + BEYOND);
    beyond = (const unsigned char *)op->scratch + needs.scratch_bytes;
    return tess__cuda_conv_open(op);
}

/* Whole numbers of -4 to 4: a sum of 2^19 products of them is exact. */
static float *numbers(struct draw *draw, int64_t count)
{
    double *x = reals(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (double)draw_between(draw, -4, 4);
    float *array = device_put_real(&device, TESS_F32, x, count);
    free(x);
    return array;
}

struct arrays {
    int64_t x, w, y; /* elements */
    float *in[4];    /* x, w, bias, dy */
    float *out[5];   /* y, y without bias, dx, dw, dbias */
};

static struct arrays arrays_of(const struct tess_op_desc *d, struct draw *draw)
{
    const int64_t height = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    const int64_t width = tess_op_output_size(d->width, d->window, d->stride, d->padding);
    struct arrays a = {.x = d->rows * d->height * d->width * d->in,
                       .w = d->out * d->window * d->window * d->in,
                       .y = d->rows * height * width * d->out};
    const int64_t in[4] = {a.x, a.w, d->out, a.y}, out[5] = {a.y, a.y, a.x, a.w, d->out};
    for (int i = 0; i < 4 && draw != NULL; i++)
        a.in[i] = numbers(draw, in[i]);
    for (int i = 0; i < 5; i++)
        a.out[i] = device_array(&device, (size_t)out[i] * sizeof(float));
    return a;
}

/* By ref, or by the kernel under test. */
static void run_all(struct tess_op *op, bool ref, const struct arrays *a, float *const out[5])
{
    const struct tess_kernel_ops *ops = device.kernel->ops;
    float *const *in = a->in;
    const enum tess_status status[4] = {
        (ref ? ops->conv2d_forward : tess__cuda_conv2d_forward)(op, in[0], in[1], in[2], out[0]),
        (ref ? ops->conv2d_forward : tess__cuda_conv2d_forward)(op, in[0], in[1], NULL, out[1]),
        (ref ? ops->conv2d_backward_data : tess__cuda_conv2d_backward_data)(op, in[3], in[1],
                                                                            out[2]),
        (ref ? ops->conv2d_backward_weight : tess__cuda_conv2d_backward_weight)(op, in[0], in[3],
                                                                                out[3], out[4]),
    };
    for (int i = 0; i < 4; i++)
        assert_int_equal(status[i], TESS_OK);
}

static void expect_equal(const struct tess_op_desc *d, const struct arrays *a,
                         const struct arrays *b)
{
    static const char *const name[5] = {"y", "y without bias", "dx", "dw", "dbias"};
    const int64_t count[5] = {a->y, a->y, a->x, a->w, d->out};
    for (int i = 0; i < 5; i++)
        for (int64_t e = 0; e < count[i]; e++)
            if (a->out[i][e] != b->out[i][e])
                fail_msg("%s[%lld]: %g, ref has %g", name[i], (long long)e, (double)a->out[i][e],
                         (double)b->out[i][e]);
}

static void case_values(void **unused)
{
    (void)unused;
    const struct tess_op_desc layers[] = {
        layer(1, 2, 5, 3, 4, 3, 1, 1), layer(3, 2, 6, 2, 3, 3, 2, 1),
        layer(4, 1, 7, 1, 2, 5, 1, 2), layer(5, 1, 4, 16, 16, 1, 1, 0),
        layer(8, 2, 3, 2, 2, 2, 1, 0), layer(7, 2, 1, 2, 2, 1, 1, 0),
    };
    struct draw draw = draw_shapes(71);
    for (size_t l = 0; l < 2 * (sizeof(layers) / sizeof(layers[0])); l++) {
        struct tess_op_desc d = layers[l / 2];
        d.relu = l % 2 == 1;
        begin();
        struct tess_op op, ref;
        assert_int_equal(open_op(&d, &op), TESS_OK);
        device_op_open(&device, &d, &ref);
        const struct arrays got = arrays_of(&d, &draw), expected = arrays_of(&d, NULL);
        run_all(&op, false, &got, got.out);
        run_all(&ref, true, &got, expected.out);
        expect_equal(&d, &got, &expected);
        /* All four ways, a run for each leaf, and no product was even planned. */
        assert_int_equal(fake_engine.runs, 4 * (d.rows / d.leaf_rows));
        assert_int_equal(products, 0);
        for (int i = 0; i < BEYOND; i++)
            assert_int_equal(beyond[i], 0xff);
        device_op_close(&ref);
        tess__cuda_conv_close(&op);
        end();
    }
}

/* Where no engine may be used, where operands are widened, and where leaves are not aligned to 16
 * bytes: products. */
static void case_falls_back(void **unused)
{
    (void)unused;
    struct tess_op_desc d = layer(2, 2, 5, 3, 4, 3, 1, 1);
    struct tess_op op;
    begin();
    fake_engine.shy = true;
    assert_int_equal(open_op(&d, &op), TESS_OK);
    assert_int_equal(products, 4);
    tess__cuda_conv_close(&op);
    end();

    begin();
    state.conv = TESS_CONV_IM2COL;
    assert_int_equal(open_op(&d, &op), TESS_OK);
    assert_int_equal(products, 4);
    assert_null(state.cudnn);
    tess__cuda_conv_close(&op);
    end();

    begin();
    d.dtype = TESS_BF16;
    d.f32_math = true;
    d.input_grad = false;
    assert_int_equal(open_op(&d, &op), TESS_OK);
    assert_int_equal(products, 3);
    assert_null(state.cudnn);
    tess__cuda_conv_close(&op);
    end();

    begin();
    d = layer(7, 3, 1, 1, 1, 1, 1, 0);
    assert_int_equal(open_op(&d, &op), TESS_OK);
    assert_int_equal(products, 4);
    assert_null(state.cudnn);
    tess__cuda_conv_close(&op);
    end();
}

/* One piece of memory, as large as the plan that needs most, whichever runs. */
static void case_room(void **unused)
{
    (void)unused;
    const struct tess_op_desc d = layer(1, 1, 4, 2, 2, 3, 1, 1);
    struct draw draw = {5};
    struct tess_op op[3];
    static const int64_t room[3] = {0, 4096, 512};
    begin();
    for (int i = 0; i < 3; i++) {
        fake_engine.room = room[i];
        assert_int_equal(open_op(&d, &op[i]), TESS_OK);
        assert_int_equal(fake_arrays, i > 0);
    }
    const struct arrays a = arrays_of(&d, &draw);
    void *first = NULL;
    for (int i = 0; i < 3; i++) {
        run_all(&op[i], false, &a, a.out);
        assert_non_null(fake_engine.workspace);
        assert_true(i == 0 || fake_engine.workspace == first);
        first = fake_engine.workspace;
    }
    /* More than 64 MiB is not asked of a device for one of them. */
    struct tess_op large;
    fake_engine.room = ((int64_t)64 << 20) + 1;
    assert_int_equal(open_op(&d, &large), TESS_OK);
    assert_int_equal(products, 4);
    tess__cuda_conv_close(&large);
    for (int i = 0; i < 3; i++)
        tess__cuda_conv_close(&op[i]);
    end();
}

/* Whichever call fails first: it is reported, or cost one engine, and nothing stays behind. */
static void case_fails(void **unused)
{
    (void)unused;
    const struct tess_op_desc d = layer(2, 1, 4, 2, 2, 3, 1, 1);
    int failed = 0, calls = 0;
    for (bool through = false; !through; calls++) {
        struct tess_op op;
        begin();
        struct draw draw = {9};
        const struct arrays a = arrays_of(&d, &draw);
        fake_engine.failing = calls + 1;
        enum tess_status status = open_op(&d, &op);
        if (status == TESS_OK && products == 0)
            status = tess__cuda_conv2d_forward(&op, a.in[0], a.in[1], a.in[2], a.out[0]);
        failed += status != TESS_OK;
        assert_true(status == TESS_OK || status == TESS_ERR_DEVICE);
        through = fake_engine.failing > 0; /* not reached */
        fake_engine.failing = 0;
        tess__cuda_conv_close(&op);
        end();
    }
    /* Descriptors of four plans and two runs. */
    assert_in_range(calls, 4 * 50, 4 * 400);
    assert_true(failed > calls * 9 / 10 && failed < calls);
}

/* A pointer that a plan was not made for. */
static void case_unaligned(void **unused)
{
    (void)unused;
    const struct tess_op_desc d = layer(1, 1, 7, 2, 2, 3, 1, 1);
    struct draw draw = {3};
    struct tess_op op;
    begin();
    assert_int_equal(open_op(&d, &op), TESS_OK);
    const struct arrays a = arrays_of(&d, &draw);
    assert_int_equal(tess__cuda_conv2d_forward(&op, a.in[0] + 1, a.in[1], NULL, a.out[0]),
                     TESS_ERR_INTERNAL);
    assert_non_null(strstr(tess_log_last_error(), "not aligned to 64 bytes"));
    assert_int_equal(fake_engine.runs, 0);
    tess__cuda_conv_close(&op);
    end();
}

int main(void)
{
    static const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_values),    cmocka_unit_test(case_falls_back),
        cmocka_unit_test(case_room),      cmocka_unit_test(case_fails),
        cmocka_unit_test(case_unaligned),
    };
    tess_log_set_level(TESS_LOG_ERROR);
    device_open(&device, "ref", 4u << 20);
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
