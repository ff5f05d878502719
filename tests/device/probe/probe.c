/*
 * Probes of the module (probe.h): each runs some operations on the device and on `ref`, from the
 * same numbers, and compares. What is small enough to end in a second, and touches every file of
 * kernels and every kind of product; how right they are in every corner is the business of the
 * conformance tests.
 */
#include "device/probe/probe.h"
#include "kernels/device.h"

#include "tessera/device.h"

#include <math.h>
#include <stdbool.h>

#define ROWS   64
#define WIDTH  64
#define COUNT  (ROWS * WIDTH)
#define VALUES (1 << 18)
#define ARENA  ((size_t)8 << 20)

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != TESS_OK) /* which has said why */                                            \
            exit(1);                                                                               \
    } while (0)

/* What came of a piece of work, on one backend. */
struct result {
    double *x;
    int64_t count;
};

typedef void work(struct device *d, struct result *r);

/* ---- both backends --------------------------------------------------------------------------- */

/* The piece of work under way; what distinguishes pieces of one kind. */
static struct {
    enum tess_dtype dtype;
    enum tess_fp8 fp8;
    bool tf32;
} of;

static void take(struct device *d, struct result *r, enum tess_dtype dtype, const void *array,
                 int64_t count)
{
    if (r->count + count > VALUES)
        probe_end(1, "a probe with too many values");
    device_get_real(d, dtype, array, r->x + r->count, count);
    r->count += count;
}

static void run_on(const char *backend, work *run, struct result *r)
{
    struct device d;
    r->x = reals(VALUES);
    device_open(&d, backend, ARENA);
    if (of.tf32)
        OK(d.kernel->ops->choose(d.kernel, &(struct tess_kernel_choices){.tf32 = true}));
    run(&d, r);
    OK(d.kernel->ops->failed(d.kernel));
    device_close(&d);
}

/* |device - ref| / |ref|, over all values of a piece of work, is at most `bound`. */
static void compare(const char *name, work *run, double bound)
{
    struct result ref = {.x = NULL}, got = {.x = NULL};
    double off = 0, size = 0;
    probe_note("%s ", name);
    run_on("ref", run, &ref);
    run_on("cuda", run, &got);
    for (int64_t i = 0; i < ref.count; i++) {
        off += (got.x[i] - ref.x[i]) * (got.x[i] - ref.x[i]);
        size += ref.x[i] * ref.x[i];
    }
    off = sqrt(off) / (size > 0 ? sqrt(size) : 1);
    probe_note("%.1e, ", off);
    if (got.count != ref.count || !(off <= bound))
        probe_end(1, "more than %.1e from ref", bound);
    free(ref.x);
    free(got.x);
}

/* The same numbers on every backend. */
static void *draw_array(struct device *d, enum tess_dtype dtype, int64_t count, uint64_t seed)
{
    struct draw draw = {seed};
    double *x = draw_reals(&draw, dtype, count);
    void *array = device_put_real(d, dtype, x, count);
    free(x);
    return array;
}

static int32_t *draw_tokens(struct device *d, int64_t count, int64_t below)
{
    struct draw draw = {5};
    int32_t token[ROWS];
    int32_t *array = device_array(d, (size_t)count * sizeof(*array));
    for (int64_t i = 0; i < count; i++)
        token[i] = (int32_t)draw_between(&draw, 0, below - 1);
    device_put(d, array, token, (size_t)count * sizeof(*token));
    return array;
}

static void *array_of(struct device *d, enum tess_dtype dtype, int64_t count)
{
    return device_array(d, (size_t)count * tess_dtype_bytes(dtype));
}

static double bound_for(enum tess_dtype dtype)
{
    return dtype == TESS_F32 ? 1e-5 : dtype == TESS_F16 ? 2e-3 : 1e-2;
}

/* ---- products -------------------------------------------------------------------------------- */

static void product_open(struct device *d, struct tess_op *op, bool relu, bool gelu)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                      .dtype = of.dtype,
                                      .rows = ROWS,
                                      .leaf_rows = ROWS,
                                      .in = WIDTH,
                                      .out = WIDTH,
                                      .relu = relu,
                                      .gelu = gelu,
                                      .input_grad = true,
                                      .fp8 = of.fp8};
    device_op_open(d, &desc, op);
}

static void work_forward(struct device *d, struct result *r)
{
    for (int relu = 0; relu < 2; relu++) {
        struct tess_op op;
        void *y = array_of(d, of.dtype, COUNT);
        product_open(d, &op, relu == 1, false);
        OK(tess_linear_forward(&op, draw_array(d, of.dtype, COUNT, 1),
                               draw_array(d, of.dtype, COUNT, 2),
                               relu == 1 ? draw_array(d, of.dtype, WIDTH, 3) : NULL, y));
        take(d, r, of.dtype, y, COUNT);
        device_op_close(&op);
    }
}

static void work_data(struct device *d, struct result *r)
{
    struct tess_op op;
    void *dx = array_of(d, of.dtype, COUNT);
    product_open(d, &op, false, false);
    OK(tess_linear_backward_data(&op, draw_array(d, of.dtype, COUNT, 1),
                                 draw_array(d, of.dtype, COUNT, 2), dx));
    take(d, r, of.dtype, dx, COUNT);
    device_op_close(&op);
}

static void work_weight(struct device *d, struct result *r)
{
    for (int with = 0; with < 2; with++) {
        struct tess_op op;
        float *dw = array_of(d, TESS_F32, COUNT), *dbias = array_of(d, TESS_F32, WIDTH);
        product_open(d, &op, false, false);
        OK(tess_linear_backward_weight(&op, draw_array(d, of.dtype, COUNT, 1),
                                       draw_array(d, of.dtype, COUNT, 2), dw,
                                       with == 1 ? dbias : NULL));
        take(d, r, TESS_F32, dw, COUNT);
        if (with == 1)
            take(d, r, TESS_F32, dbias, WIDTH);
        device_op_close(&op);
    }
}

static void work_gelu(struct device *d, struct result *r)
{
    struct tess_op op;
    void *w = draw_array(d, of.dtype, COUNT, 2), *before = array_of(d, of.dtype, COUNT);
    void *y = array_of(d, of.dtype, COUNT), *dx = array_of(d, of.dtype, COUNT);
    product_open(d, &op, false, true);
    OK(tess_linear_forward_gelu(&op, draw_array(d, of.dtype, COUNT, 1), w,
                                draw_array(d, of.dtype, WIDTH, 3), before, y));
    OK(tess_linear_backward_data_gelu(&op, draw_array(d, of.dtype, COUNT, 4), w, before, dx));
    take(d, r, of.dtype, before, COUNT);
    take(d, r, of.dtype, y, COUNT);
    take(d, r, of.dtype, dx, COUNT);
    device_op_close(&op);
}

static void products(enum tess_dtype dtype, enum tess_fp8 fp8, bool tf32)
{
    const double bound = fp8 != TESS_FP8_OFF ? 0.02 : tf32 ? 2e-3 : bound_for(dtype);
    of.dtype = dtype;
    of.fp8 = fp8;
    of.tf32 = tf32;
    compare("forward, bias, relu", work_forward, bound);
    compare("data", work_data, bound);
    compare("weight, its bias", work_weight, bound);
    if (fp8 == TESS_FP8_OFF)
        compare("gelu", work_gelu, bound);
}

static void run_f32(void)
{
    products(TESS_F32, TESS_FP8_OFF, false);
}

static void run_tf32(void)
{
    products(TESS_F32, TESS_FP8_OFF, true);
}

static void run_bf16(void)
{
    products(TESS_BF16, TESS_FP8_OFF, false);
}

static void run_f16(void)
{
    products(TESS_F16, TESS_FP8_OFF, false);
}

static void run_fp8(void)
{
    products(TESS_BF16, TESS_FP8_NOW, false);
}

/* ---- kernels with a description ---------------------------------------------------------------
 */

static void work_conv(struct device *d, struct result *r)
{
    enum { SIDE = 8, IN = 8, OUT = 16, WEIGHTS = OUT * 3 * 3 * IN };
    const struct tess_op_desc desc = {.kind = TESS_OP_CONV2D,
                                      .dtype = of.dtype,
                                      .rows = 2,
                                      .leaf_rows = 1,
                                      .in = IN,
                                      .out = OUT,
                                      .height = SIDE,
                                      .width = SIDE,
                                      .window = 3,
                                      .stride = 1,
                                      .padding = 1,
                                      .input_grad = true};
    const int64_t in = 2 * SIDE * SIDE * IN, out = 2 * SIDE * SIDE * OUT;
    struct tess_op op;
    void *x = draw_array(d, of.dtype, in, 1), *w = draw_array(d, of.dtype, WEIGHTS, 2);
    void *dy = draw_array(d, of.dtype, out, 3);
    void *y = array_of(d, of.dtype, out), *dx = array_of(d, of.dtype, in);
    float *dw = array_of(d, TESS_F32, WEIGHTS), *dbias = array_of(d, TESS_F32, OUT);
    device_op_open(d, &desc, &op);
    OK(tess_conv2d_forward(&op, x, w, draw_array(d, of.dtype, OUT, 4), y));
    OK(tess_conv2d_backward_data(&op, dy, w, dx));
    OK(tess_conv2d_backward_weight(&op, x, dy, dw, dbias));
    take(d, r, of.dtype, y, out);
    take(d, r, of.dtype, dx, in);
    take(d, r, TESS_F32, dw, WEIGHTS);
    take(d, r, TESS_F32, dbias, OUT);
    device_op_close(&op);
}

static void work_pool(struct device *d, struct result *r)
{
    for (int kind = TESS_OP_MAX_POOL; kind <= TESS_OP_AVG_POOL; kind++) {
        const struct tess_op_desc desc = {.kind = (enum tess_op_kind)kind,
                                          .dtype = of.dtype,
                                          .rows = 2,
                                          .leaf_rows = 1,
                                          .in = 16,
                                          .out = 16,
                                          .height = 8,
                                          .width = 8,
                                          .window = 2,
                                          .stride = 2};
        struct tess_op op;
        void *x = draw_array(d, of.dtype, 2 * 8 * 8 * 16, 1);
        void *dy = draw_array(d, of.dtype, 2 * 4 * 4 * 16, 2);
        void *y = array_of(d, of.dtype, 2 * 4 * 4 * 16),
             *dx = array_of(d, of.dtype, 2 * 8 * 8 * 16);
        uint8_t *which = device_array(d, 2 * 4 * 4 * 16);
        device_op_open(d, &desc, &op);
        if (kind == TESS_OP_MAX_POOL) {
            OK(tess_max_pool_forward(&op, x, y, which));
            OK(tess_max_pool_backward(&op, dy, which, dx));
        } else {
            OK(tess_avg_pool_forward(&op, x, y));
            OK(tess_avg_pool_backward(&op, dy, dx));
        }
        take(d, r, of.dtype, y, 2 * 4 * 4 * 16);
        take(d, r, of.dtype, dx, 2 * 8 * 8 * 16);
        device_op_close(&op);
    }
}

static void work_batch_norm(struct device *d, struct result *r)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_BATCH_NORM,
                                      .dtype = of.dtype,
                                      .rows = ROWS,
                                      .leaf_rows = ROWS / 2,
                                      .in = WIDTH,
                                      .out = WIDTH,
                                      .height = 1,
                                      .width = 1,
                                      .epsilon = 1e-5f};
    struct tess_op op;
    void *x = draw_array(d, of.dtype, COUNT, 1), *gamma = draw_array(d, of.dtype, WIDTH, 2);
    void *beta = draw_array(d, of.dtype, WIDTH, 3);
    void *y = array_of(d, of.dtype, COUNT), *dx = array_of(d, of.dtype, COUNT);
    float *save[2], *sum[2];
    for (int i = 0; i < 2; i++) {
        save[i] = array_of(d, TESS_F32, 2 * WIDTH);
        sum[i] = array_of(d, TESS_F32, WIDTH);
    }
    device_op_open(d, &desc, &op);
    OK(tess_batch_norm_forward(&op, x, gamma, beta, y, save[0], save[1], sum[0], sum[1]));
    take(d, r, of.dtype, y, COUNT);
    take(d, r, TESS_F32, sum[1], WIDTH);
    OK(tess_batch_norm_backward(&op, x, y, draw_array(d, of.dtype, COUNT, 4), gamma, beta, save[0],
                                save[1], dx, sum[0], sum[1]));
    take(d, r, of.dtype, dx, COUNT);
    take(d, r, TESS_F32, sum[0], WIDTH);
    device_op_close(&op);
}

static void work_norm(struct device *d, struct result *r)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_NORM,
                                      .dtype = of.dtype,
                                      .rows = ROWS,
                                      .leaf_rows = ROWS / 2,
                                      .in = WIDTH,
                                      .out = WIDTH,
                                      .epsilon = 1e-5f};
    struct tess_op op;
    void *sum = array_of(d, of.dtype, COUNT), *gamma = draw_array(d, of.dtype, WIDTH, 3);
    void *y = array_of(d, of.dtype, COUNT), *dx = array_of(d, of.dtype, COUNT);
    float *mean = array_of(d, TESS_F32, ROWS), *rstd = array_of(d, TESS_F32, ROWS);
    float *dgamma = array_of(d, TESS_F32, WIDTH), *dbeta = array_of(d, TESS_F32, WIDTH);
    device_op_open(d, &desc, &op);
    OK(tess_norm_forward(&op, draw_array(d, of.dtype, COUNT, 1), draw_array(d, of.dtype, COUNT, 2),
                         sum, gamma, draw_array(d, of.dtype, WIDTH, 4), y, mean, rstd));
    OK(tess_norm_backward(&op, sum, draw_array(d, of.dtype, COUNT, 5), gamma, mean, rstd,
                          draw_array(d, of.dtype, COUNT, 6), dx, dgamma, dbeta));
    take(d, r, of.dtype, y, COUNT);
    take(d, r, of.dtype, dx, COUNT);
    take(d, r, TESS_F32, dgamma, WIDTH);
    take(d, r, TESS_F32, dbeta, WIDTH);
    device_op_close(&op);
}

static void work_attention(struct device *d, struct result *r)
{
    enum { HEADS = 2, SIZE = 64, STRIDE = 3 * HEADS * SIZE, Y = ROWS * HEADS * SIZE };
    struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                .dtype = of.dtype,
                                .rows = 1,
                                .leaf_rows = 1,
                                .in = SIZE,
                                .out = SIZE,
                                .length = ROWS,
                                .heads = HEADS,
                                .kv_heads = HEADS,
                                .q_stride = STRIDE,
                                .kv_stride = STRIDE};
    const size_t part = HEADS * SIZE * tess_dtype_bytes(of.dtype);
    struct tess_op op;
    char *q = draw_array(d, of.dtype, ROWS * STRIDE, 1), *dq = array_of(d, of.dtype, ROWS * STRIDE);
    void *y = array_of(d, of.dtype, Y);
    float *lse = array_of(d, TESS_F32, HEADS * ROWS);
    device_op_open(d, &desc, &op);
    OK(tess_attention_forward(&op, q, q + part, q + 2 * part, y, lse));
    OK(tess_attention_backward(&op, q, q + part, q + 2 * part, y, draw_array(d, of.dtype, Y, 2),
                               lse, dq, dq + part, dq + 2 * part));
    take(d, r, of.dtype, y, Y);
    take(d, r, of.dtype, dq, ROWS * STRIDE);
    device_op_close(&op);
    desc.rows = desc.leaf_rows = 1;
    desc.decode = true;
    device_op_open(d, &desc, &op);
    OK(tess_attention_decode(&op, ROWS - 1, 1, q, q + part, q + 2 * part, y));
    take(d, r, of.dtype, y, HEADS * SIZE);
    device_op_close(&op);
}

static void work_embedding(struct device *d, struct result *r)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_EMBEDDING,
                                      .dtype = of.dtype,
                                      .rows = ROWS,
                                      .leaf_rows = ROWS / 2,
                                      .in = 32,
                                      .out = WIDTH};
    struct tess_op op;
    int32_t *token = draw_tokens(d, ROWS, 32);
    void *y = array_of(d, of.dtype, COUNT);
    float *dtable = array_of(d, TESS_F32, 32 * WIDTH);
    device_op_open(d, &desc, &op);
    OK(tess_embedding_forward(&op, token, 0, draw_array(d, of.dtype, 32 * WIDTH, 1),
                              draw_array(d, of.dtype, COUNT, 2), y));
    OK(tess_embedding_backward(&op, token, 0, draw_array(d, of.dtype, COUNT, 3), dtable));
    take(d, r, of.dtype, y, COUNT);
    take(d, r, TESS_F32, dtable, 32 * WIDTH);
    device_op_close(&op);
}

/* ---- plain kernels ----------------------------------------------------------------------------
 */

static void work_xent(struct device *d, struct result *r)
{
    struct tess_kernel *kernel = d->kernel;
    void *logits = draw_array(d, of.dtype, COUNT, 1), *dlogits = array_of(d, of.dtype, COUNT);
    int32_t *label = draw_tokens(d, ROWS, WIDTH), *correct = array_of(d, TESS_F32, ROWS);
    float *row[5];
    for (int i = 0; i < 5; i++)
        row[i] = array_of(d, TESS_F32, ROWS);
    tess_softmax_xent(kernel, of.dtype, ROWS, WIDTH, (struct tess_xent){0}, 0.5f, logits, label,
                      dlogits, row[0], correct);
    take(d, r, of.dtype, dlogits, COUNT);
    take(d, r, TESS_F32, row[0], ROWS);
    tess_xent_max(kernel, of.dtype, ROWS, WIDTH, WIDTH, logits, row[0], row[1], row[2], row[3]);
    tess_xent_sum(kernel, of.dtype, ROWS, WIDTH, WIDTH, 0, (struct tess_xent){0}, logits, label,
                  row[0], row[1], row[2], row[3]);
    tess_xent_loss(kernel, ROWS, ROWS, (struct tess_xent){0}, label, row[0], row[1], row[2], row[3],
                   row[4], correct);
    tess_xent_grad(kernel, of.dtype, ROWS, WIDTH, WIDTH, 0, (struct tess_xent){0}, 0.5f, logits,
                   label, row[0], row[1], dlogits);
    take(d, r, of.dtype, dlogits, COUNT);
    take(d, r, TESS_F32, row[4], 1);
}

static void work_pointwise(struct device *d, struct result *r)
{
    static const uint64_t key[2] = {1, 2};
    struct tess_kernel *kernel = d->kernel;
    void *a = draw_array(d, of.dtype, COUNT, 1), *b = draw_array(d, of.dtype, COUNT, 2);
    void *c = draw_array(d, of.dtype, COUNT, 3), *y = array_of(d, of.dtype, COUNT);
    tess_add(kernel, of.dtype, COUNT, a, b, y);
    tess_relu_forward(kernel, of.dtype, COUNT, y, y);
    take(d, r, of.dtype, y, COUNT);
    tess_relu_backward(kernel, of.dtype, COUNT, a, b, y);
    tess_dropout(kernel, of.dtype, 1, COUNT, COUNT, 0.5f, key, 3, y, y);
    take(d, r, of.dtype, y, COUNT);
    tess_gelu_forward(kernel, of.dtype, COUNT, a, y);
    take(d, r, of.dtype, y, COUNT);
    tess_gelu_backward(kernel, of.dtype, COUNT, a, b, y);
    take(d, r, of.dtype, y, COUNT);
    tess_swiglu_forward(kernel, of.dtype, 1, COUNT, COUNT, a, b, y);
    take(d, r, of.dtype, y, COUNT);
    tess_rope(kernel, of.dtype, ROWS, ROWS, 0, 1, WIDTH, WIDTH, &(struct tess_rotary){.base = 1e4f},
              false, y);
    take(d, r, of.dtype, y, COUNT);
    tess_swiglu_backward(kernel, of.dtype, 1, COUNT, COUNT, a, b, c, a, b);
    take(d, r, of.dtype, a, COUNT);
    take(d, r, of.dtype, b, COUNT);
}

static void work_cast(struct device *d, struct result *r)
{
    static const uint64_t key[2] = {1, 2};
    const float *x = draw_array(d, TESS_F32, COUNT, 1);
    void *y = array_of(d, of.dtype, COUNT);
    tess_cast(d->kernel, COUNT, TESS_F32, x, of.dtype, y);
    take(d, r, of.dtype, y, COUNT);
    tess_cast_stochastic(d->kernel, COUNT, x, of.dtype, key, 5, y);
    take(d, r, of.dtype, y, COUNT);
    tess_copy(d->kernel, COUNT * 2, y, array_of(d, of.dtype, COUNT));
}

static void work_sums(struct device *d, struct result *r)
{
    float *x = draw_array(d, TESS_F32, COUNT, 1), *y = draw_array(d, TESS_F32, COUNT, 2);
    struct tess_sum sum, *sum_dev = device_array(d, sizeof(sum));
    tess_accumulate(d->kernel, COUNT, 0.5f, x, y);
    take(d, r, TESS_F32, y, COUNT);
    tess_maximum(d->kernel, COUNT, x, y);
    take(d, r, TESS_F32, y, COUNT);
    tess_fill(d->kernel, sizeof(sum), 0, sum_dev);
    tess_square_sum(d->kernel, COUNT, TESS_SUM_BLOCK, 0.5f, x, sum_dev);
    device_get(d, &sum, sum_dev, sizeof(sum));
    for (int i = 0; i < TESS_SUM_LIMBS; i++)
        r->x[r->count++] = (double)sum.limb[i] * 0x1p-32;
    r->x[r->count++] = (double)tess_find_nonfinite(d->kernel, TESS_F32, COUNT, x);
}

static void work_random(struct device *d, struct result *r)
{
    static const uint32_t key[2] = {1, 2};
    float *y = array_of(d, TESS_F32, COUNT);
    tess_normal(d->kernel, key, 7, COUNT, 1.0f, 2.0f, y);
    take(d, r, TESS_F32, y, COUNT);
}

static void work_update(struct device *d, struct result *r)
{
    struct tess_update update[2];
    for (int i = 0; i < 2; i++) {
        const uint64_t seed = 10 + 4 * (uint64_t)i;
        update[i] = (struct tess_update){.kind = i == 0 ? TESS_UPDATE_ADAMW : TESS_UPDATE_MOMENTUM,
                                         .low = TESS_BF16,
                                         .count = COUNT,
                                         .w = draw_array(d, TESS_F32, COUNT, seed),
                                         .param_low = array_of(d, TESS_BF16, COUNT),
                                         .g = draw_array(d, TESS_F32, COUNT, seed + 1),
                                         .m = draw_array(d, TESS_F32, COUNT, seed + 2),
                                         .v = array_of(d, TESS_F32, COUNT),
                                         .lr = 0.1f,
                                         .mu = 0.9f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.99f,
                                         .epsilon = 1e-8f,
                                         .correction1 = 1,
                                         .correction2 = 1,
                                         .grad_scale = 1,
                                         .tensor_scale = 1};
        tess_fill(d->kernel, COUNT * 4, 0, update[i].v);
    }
    tess_update_all(d->kernel, update, 2);
    for (int i = 0; i < 2; i++) {
        take(d, r, TESS_F32, update[i].w, COUNT);
        take(d, r, TESS_BF16, update[i].param_low, COUNT);
    }
}

/* In each type of activations. */
static void all_types(const char *const name[3], work *run, double factor)
{
    static const enum tess_dtype dtypes[3] = {TESS_BF16, TESS_F32, TESS_F16};
    for (int i = 0; i < 3; i++) {
        of.dtype = dtypes[i];
        compare(name[i], run, factor * bound_for(of.dtype));
    }
}

#define RUN_TYPES(subject, factor)                                                                 \
    static void run_##subject(void)                                                                \
    {                                                                                              \
        all_types((const char *const[3]){"bf16", "f32", "f16"}, work_##subject, factor);           \
    }
RUN_TYPES(conv, 1)
RUN_TYPES(pool, 1)
RUN_TYPES(batch_norm, 2)
RUN_TYPES(norm, 2)
RUN_TYPES(attention, 3)
RUN_TYPES(embedding, 1)
RUN_TYPES(xent, 1)
RUN_TYPES(pointwise, 1)

static void run_cast(void)
{
    of.dtype = TESS_BF16;
    compare("bf16", work_cast, 1e-6);
    of.dtype = TESS_F16;
    compare("f16", work_cast, 1e-6);
}

static void run_sums(void)
{
    compare("f32", work_sums, 1e-6);
}

static void run_random(void)
{
    compare("normal", work_random, 1e-5);
}

static void run_update(void)
{
    compare("adamw, momentum", work_update, 1e-3);
}

/* ---- the device itself ------------------------------------------------------------------------
 */

/* The module and its device; without one there is nothing else to ask. */
static const struct tess_module *module_find(void)
{
    char why[512] = "";
    const struct tess_module *module = tess_module_find("cuda", why, sizeof(why));
    if (module == NULL || module->device_count(why, sizeof(why)) < 1)
        probe_end(1, "%s", why);
    return module;
}

static void run_module(void)
{
    const struct tess_module *module = module_find();
    struct tess_device_info info;
    OK(module->device_info(0, &info));
    OK(module->device_select(0, false));
    probe_note("%s: %s, %d.%d", module->summary, info.name, (int)info.major, (int)info.minor);
}

/* Two queues, the second behind a fence of the first; pinned memory. */
static void run_queue(void)
{
    struct device d;
    struct tess_queue *queue, *other;
    struct tess_fence *fence[2];
    double seconds = -1;
    void *pinned;
    device_open(&d, "cuda", ARENA);
    queue = d.kernel->queue;
    for (int i = 0; i < 2; i++)
        OK(queue->ops->fence_open(d.kernel, &fence[i]));
    OK(queue->ops->open(d.kernel, &other));
    OK(d.kernel->ops->pin(d.kernel, COUNT, &pinned));
    unsigned char *host = pinned, *memory = device_array(&d, COUNT);
    memset(host, 3, COUNT);
    OK(queue->ops->record(queue, fence[0]));
    OK(tess_upload(d.kernel, COUNT, host, memory));
    OK(queue->ops->record(queue, fence[1]));
    OK(queue->ops->wait(fence[1])); /* host is read until then */
    memset(host, 0, COUNT);
    OK(queue->ops->follow(other, fence[1]));
    OK(queue->ops->copy(other, COUNT, memory, host));
    OK(queue->ops->elapsed(fence[0], fence[1], &seconds));
    OK(queue->ops->record(other, fence[0]));
    OK(queue->ops->wait(fence[0]));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != 3)
            probe_end(1, "byte %d of a copy is another", i);
    probe_note("4 KiB up in %.1f us", seconds * 1e6);
    queue->ops->close(other);
    for (int i = 0; i < 2; i++)
        queue->ops->fence_close(fence[i]);
    d.kernel->ops->unpin(d.kernel, pinned);
    device_close(&d);
}

/* 2 added three times by one record. */
static void run_graph(void)
{
    struct device d;
    float y[COUNT];
    device_open(&d, "cuda", ARENA);
    double *twos = reals(COUNT);
    for (int i = 0; i < COUNT; i++)
        twos[i] = 2;
    float *x = device_put_real(&d, TESS_F32, twos, COUNT), *sum = array_of(&d, TESS_F32, COUNT);
    tess_fill(d.kernel, sizeof(y), 0, sum);
    tess_add(d.kernel, TESS_F32, COUNT, x, sum, sum); /* loads the kernel */
    OK(d.kernel->ops->graph_begin(d.kernel));
    tess_add(d.kernel, TESS_F32, COUNT, x, sum, sum);
    OK(d.kernel->ops->graph_end(d.kernel, 0));
    for (int i = 0; i < 2; i++)
        OK(d.kernel->ops->graph_play(d.kernel, 0));
    device_get(&d, y, sum, sizeof(y));
    for (int i = 0; i < COUNT; i++)
        if (y[i] != 6)
            probe_end(1, "element %d is %g, not 6", i, (double)y[i]);
    free(twos);
    device_close(&d);
}

int main(int argc, char **argv)
{
    static const struct probe probes[] = {
        {"module", run_module},         {"queue", run_queue},         {"product_bf16", run_bf16},
        {"product_f32", run_f32},       {"product_tf32", run_tf32},   {"product_f16", run_f16},
        {"product_fp8", run_fp8},       {"attention", run_attention}, {"norm", run_norm},
        {"embedding", run_embedding},   {"xent", run_xent},           {"pointwise", run_pointwise},
        {"update", run_update},         {"sums", run_sums},           {"cast", run_cast},
        {"random", run_random},         {"conv", run_conv},           {"pool", run_pool},
        {"batch_norm", run_batch_norm}, {"graph", run_graph},
    };
    if (argc == 2 && strcmp(argv[1], "--list") != 0)
        (void)module_find();
    return probe_main(probes, sizeof(probes) / sizeof(probes[0]), argc, argv);
}
