/*
 * One backend (argv[1]) with one thread and with 2, 3 and 4: every result has the same bits,
 * because threads share results, and sums only in an order that their number does not change. Sizes
 * are beyond what a backend may think too little to share.
 */
#include "device.h"

#include "kernel_open.h"
#include "tessera/registry.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA (48u << 20)

static const struct tess_kernel_ops *ops;

/* The same arrays twice: with one thread, and with several. */
struct twin {
    struct tess_kernel *kernel;
    char *memory;
    size_t used;
};

static struct twin twins[2];

static void twins_open(void)
{
    for (int i = 0; i < 2; i++) {
        twins[i].memory = aligned_alloc(4096, ARENA);
        if (twins[i].memory == NULL)
            exit(1);
    }
}

static void twins_close(void)
{
    for (int i = 0; i < 2; i++)
        free(twins[i].memory);
}

/* An array of one twin; the same call for the other gives the same place in its memory. */
static void *take(struct twin *twin, size_t bytes)
{
    size_t room = (bytes + 63) / 64 * 64;
    assert_true(room <= ARENA - twin->used);
    char *array = twin->memory + twin->used;
    twin->used += room;
    memset(array, 0x55, room);
    return array;
}

/* The same numbers in [-1, 1) for both. */
static void *put(struct twin *twin, enum tess_dtype dtype, uint64_t seed, int64_t count)
{
    struct draw draw = {seed};
    char *array = take(twin, (size_t)count * tess_dtype_bytes(dtype));
    float whole[1024];
    for (int64_t at = 0; at < count; at += 1024) {
        const int64_t n = count - at < 1024 ? count - at : 1024;
        for (int64_t i = 0; i < n; i++)
            whole[i] = (float)draw_real(&draw, TESS_F32);
        tess_cast(twin->kernel, n, TESS_F32, whole, dtype,
                  array + (size_t)at * tess_dtype_bytes(dtype));
    }
    return array;
}

static void op_open(struct twin *twin, const struct tess_op_desc *desc, struct tess_op *op)
{
    struct tess_op_needs needs;
    assert_int_equal(twin->kernel->ops->op_needs(desc, &needs), TESS_OK);
    *op = (struct tess_op){.desc = *desc, .kernel = twin->kernel, .weight_token = 1};
    op->scratch = aligned_alloc(64, (needs.scratch_bytes + 64) / 64 * 64);
    op->packed = aligned_alloc(64, (needs.packed_bytes + 64) / 64 * 64);
    op->thread_bytes = tess_round_up(needs.thread_bytes, 64);
    op->thread_scratch =
        aligned_alloc(64, op->thread_bytes * (size_t)(twin->kernel->threads - 1) + 64);
    assert_non_null(op->thread_scratch);
    assert_non_null(op->scratch);
    assert_non_null(op->packed);
    assert_int_equal(twin->kernel->ops->op_open(op), TESS_OK);
}

static void op_close(struct tess_op *op)
{
    op->kernel->ops->op_close(op);
    free(op->scratch);
    free(op->packed);
    free(op->thread_scratch);
}

/* Run on both twins, one after the other, each with a backend of its own; then compare all their
 * memory. */
static void check_twins(const char *what, void (*run)(struct twin *twin, enum tess_dtype dtype),
                        enum tess_dtype dtype)
{
    static const struct tess_op_desc any = {
        .kind = TESS_OP_LINEAR, .dtype = TESS_F32, .rows = 1, .leaf_rows = 1, .in = 8, .out = 8};
    /* Sanitizers, for which this takes minutes: 1 and 3. */
    for (int threads = 1; threads <= 4; threads += TESTS_DIVISOR > 1 ? 2 : 1) {
        struct twin *twin = &twins[threads > 1];
        struct tess_op op;
        twin->used = 0;
        assert_int_equal(tess_kernel_open(ops, threads, &twin->kernel), TESS_OK);
        op_open(twin, &any, &op); /* threads start with the first operation */
        run(twin, dtype);
        op_close(&op);
        tess_kernel_close(twin->kernel);
        if (threads == 1)
            continue;
        assert_int_equal(twins[0].used, twins[1].used);
        check_bytes(what, twins[1].memory, twins[0].memory, twins[0].used);
    }
}

static void run_linear_shape(struct twin *twin, enum tess_dtype dtype, int64_t rows, int64_t leaf,
                             int64_t in, int64_t out)
{
    struct tess_op_desc d = {.kind = TESS_OP_LINEAR,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = leaf,
                             .in = in,
                             .out = out,
                             .input_grad = true};
    char why[160];
    if (!twin->kernel->ops->supports(&d, why, sizeof(why)))
        return; /* bf16 without the instructions */
    size_t word = tess_dtype_bytes(dtype);
    void *x = put(twin, dtype, 1, rows * in), *w = put(twin, dtype, 2, in * out);
    void *dy = put(twin, dtype, 3, rows * out), *bias = put(twin, dtype, 4, out);
    void *y = take(twin, (size_t)(rows * out) * word), *dx = take(twin, (size_t)(rows * in) * word);
    float *dw = take(twin, (size_t)(in * out) * 4), *db = take(twin, (size_t)out * 4);
    struct tess_op op;
    op_open(twin, &d, &op);
    assert_int_equal(tess_linear_forward(&op, x, w, bias, y), TESS_OK);
    assert_int_equal(tess_linear_backward_data(&op, dy, w, dx), TESS_OK);
    assert_int_equal(tess_linear_backward_weight(&op, x, dy, dw, db), TESS_OK);
    op_close(&op);
}

/* Sanitizers, which check each access: columns after the first vectors make the same ones. */
#define COLUMNS(n) (TESTS_DIVISOR > 1 ? 40 : (n))

static void run_linear(struct twin *twin, enum tess_dtype dtype)
{
    run_linear_shape(twin, dtype, 300, 300, 70, 130);
    run_linear_shape(twin, dtype, 96, 8, 65, 67);
    run_linear_shape(twin, dtype, 140, 70, 64, 900);
    /* Long sums over few rows or columns, which a matrix product may split between threads. */
    run_linear_shape(twin, dtype, 128, 128, 784, 128);
    run_linear_shape(twin, dtype, 1500, 1500, 60, 20);
    run_linear_shape(twin, dtype, 4200, 4200, 40, 120); /* a panel of x fills a cache */
    run_linear_shape(twin, dtype, 6, 6, 3000, 40);
    run_linear_shape(twin, dtype, 24, 8, 40, 3000);
    run_linear_shape(twin, dtype, 600, 300, 700, COLUMNS(600));
}

/* What an update changes, and the gradients beside it. */
struct linear_update {
    float *w, *m, *v, *dw, *db;
    void *low, *dx; /* low: what the product reads, w itself in f32 */
};

static struct linear_update update_take(struct twin *twin, const struct tess_op_desc *d)
{
    const int64_t count = d->in * d->out;
    const bool half = d->dtype != TESS_F32;
    struct linear_update u = {
        .w = put(twin, TESS_F32, 2, count),
        .m = put(twin, TESS_F32, 5, count),
        .v = take(twin, (size_t)count * 4),
        .dw = take(twin, (size_t)count * 4),
        .db = take(twin, (size_t)d->out * 4),
        .dx = take(twin, (size_t)(d->rows * d->in) * tess_dtype_bytes(d->dtype))};
    memset(u.v, 0, (size_t)count * 4);
    u.low = half ? put(twin, d->dtype, 2, count) : u.w;
    return u;
}

/* An update given to the operation does what it does after the operation, to the bit; `together`:
 * with the gradient of x, which is that by the old weights. */
static void run_linear_update_shape(struct twin *twin, enum tess_dtype dtype, int64_t rows,
                                    int64_t leaf, int64_t in, int64_t out, bool together)
{
    struct tess_op_desc d = {.kind = TESS_OP_LINEAR,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = leaf,
                             .in = in,
                             .out = out,
                             .input_grad = true};
    char why[160];
    if (!twin->kernel->ops->supports(&d, why, sizeof(why)))
        return; /* bf16 without the instructions */
    const size_t bytes = (size_t)(in * out) * 4;
    void *x = put(twin, dtype, 1, rows * in), *dy = put(twin, dtype, 3, rows * out);
    struct linear_update u[2];
    struct tess_op op;
    op_open(twin, &d, &op);
    for (int i = 0; i < 2; i++) {
        u[i] = update_take(twin, &d);
        const struct tess_update update = {.kind = TESS_UPDATE_ADAMW,
                                           .low = dtype,
                                           .count = in * out,
                                           .w = u[i].w,
                                           .param_low = dtype != TESS_F32 ? u[i].low : NULL,
                                           .g = u[i].dw,
                                           .m = u[i].m,
                                           .v = u[i].v,
                                           .lr = 0.01f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.99f,
                                           .epsilon = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .correction1 = 10,
                                           .correction2 = 100,
                                           .grad_scale = 1,
                                           .tensor_scale = 1};
        op.weight_token++;
        op.update = i == 1 ? &update : NULL;
        assert_int_equal(
            together ? tess_linear_backward(&op, x, dy, u[i].low, u[i].dw, u[i].db, NULL, u[i].dx)
                     : tess_linear_backward_weight(&op, x, dy, u[i].dw, u[i].db),
            TESS_OK);
        assert_null(op.update);
        if (i == 0)
            tess_update(twin->kernel, &update);
    }
    op_close(&op);
    check_bytes("w", u[1].w, u[0].w, bytes);
    check_bytes("m", u[1].m, u[0].m, bytes);
    check_bytes("v", u[1].v, u[0].v, bytes);
    check_bytes("bias", u[1].db, u[0].db, (size_t)out * 4);
    check_bytes("compute copy", u[1].low, u[0].low, (size_t)(in * out) * tess_dtype_bytes(dtype));
    check_bytes("dx", u[1].dx, u[0].dx, (size_t)(rows * in) * tess_dtype_bytes(dtype));
}

static void run_linear_update(struct twin *twin, enum tess_dtype dtype)
{
    run_linear_update_shape(twin, dtype, 70, 70, 130, 200, true);
    run_linear_update_shape(twin, dtype, 96, 8, 65, 67, false); /* a tree of short leaves */
    run_linear_update_shape(twin, dtype, 300, 300, 70, 110, true);
    run_linear_update_shape(twin, dtype, 140, 70, 64, 53, false); /* a tree of long ones */
    run_linear_update_shape(twin, dtype, 33, 33, 70, 10, true);
    run_linear_update_shape(twin, dtype, 600, 600, 650, 110, true);
    run_linear_update_shape(twin, dtype, 1500, 1500, 800, COLUMNS(100), false); /* fills a cache */
}

static void run_conv_shape(struct twin *twin, enum tess_dtype dtype, int64_t rows, int64_t in,
                           int64_t out, int64_t size, int32_t window, int32_t stride,
                           int32_t leaves, enum tess_conv_f32 conv)
{
    struct tess_op_desc d = {.kind = TESS_OP_CONV2D,
                             .conv = conv,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = rows / leaves,
                             .in = in,
                             .out = out,
                             .height = size,
                             .width = size,
                             .window = window,
                             .stride = stride,
                             .padding = window / 2,
                             .input_grad = true};
    char why[160];
    if (!twin->kernel->ops->supports(&d, why, sizeof(why)))
        return; /* bf16 without the instructions */
    int64_t side = tess_op_output_size(size, window, stride, window / 2);
    int64_t x_count = rows * in * size * size, y_count = rows * out * side * side;
    int64_t w_count = in * out * window * window;
    size_t word = tess_dtype_bytes(dtype);
    void *x = put(twin, dtype, 1, x_count), *w = put(twin, dtype, 2, w_count);
    void *dy = put(twin, dtype, 3, y_count), *bias = put(twin, dtype, 4, out);
    void *y = take(twin, (size_t)y_count * word), *dx = take(twin, (size_t)x_count * word);
    float *dw = take(twin, (size_t)w_count * 4), *db = take(twin, (size_t)out * 4);
    struct tess_op op;
    op_open(twin, &d, &op);
    assert_int_equal(tess_conv2d_forward(&op, x, w, bias, y), TESS_OK);
    assert_int_equal(tess_conv2d_backward_data(&op, dy, w, dx), TESS_OK);
    assert_int_equal(tess_conv2d_backward_weight(&op, x, dy, dw, db), TESS_OK);
    op_close(&op);
}

/* Many images of few channels, and the other way round; windows and strides of usual networks. */
static void run_conv(struct twin *twin, enum tess_dtype dtype)
{
    run_conv_shape(twin, dtype, 32, 1, 16, 14, 3, 1, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 32, 3, 20, 14, 3, 2, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 32, 16, 16, 12, 3, 1, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 32, 16, 32, 12, 1, 1, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 32, 16, 32, 12, 1, 2, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 4, 64, 40, 7, 3, 1, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 4, 37, 29, 9, 5, 1, 2, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 96, 16, 48, 15, 3, 2, 2, TESS_CONV_F32_DIRECT);
    /* One leaf of which parts are added, a number of images without divisors, an image a leaf. */
    run_conv_shape(twin, dtype, 20, 32, 32, 28, 3, 1, 1, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 7, 32, 32, 16, 3, 1, 1, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 6, 16, 16, 32, 3, 1, 6, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 32, 3, 40, 28, 3, 1, 1, TESS_CONV_F32_DIRECT);
    run_conv_shape(twin, dtype, 6, 16, 48, 14, 3, 1, 2, TESS_CONV_F32_WINOGRAD);
    run_conv_shape(twin, dtype, 20, 32, 32, 28, 3, 1, 1, TESS_CONV_F32_WINOGRAD);
    run_conv_shape(twin, dtype, 30, 16, 16, 28, 3, 1, 2, TESS_CONV_F32_WINOGRAD);
}

static void run_pool(struct twin *twin, enum tess_dtype dtype)
{
    const int64_t rows = 21, channels = 19, size = 14, side = 7;
    struct tess_op_desc d = {.kind = TESS_OP_MAX_POOL,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = 7,
                             .in = channels,
                             .out = channels,
                             .height = size,
                             .width = size,
                             .window = 2,
                             .stride = 2,
                             .relu = true};
    const int64_t x_count = rows * size * size * channels, y_count = rows * side * side * channels;
    const size_t word = tess_dtype_bytes(dtype);
    void *x = put(twin, dtype, 1, x_count), *dy = put(twin, dtype, 2, y_count);
    void *y = take(twin, (size_t)y_count * word), *dx = take(twin, (size_t)x_count * word);
    uint8_t *which = take(twin, (size_t)y_count);
    struct tess_op op;
    op_open(twin, &d, &op);
    assert_int_equal(tess_max_pool_forward(&op, x, y, which), TESS_OK);
    assert_int_equal(tess_max_pool_backward(&op, dy, which, dx), TESS_OK);
    op_close(&op);

    d.kind = TESS_OP_AVG_POOL;
    d.window = (int32_t)size;
    d.stride = 1;
    d.relu = false;
    y = take(twin, (size_t)(rows * channels) * word);
    dx = take(twin, (size_t)x_count * word);
    op_open(twin, &d, &op);
    assert_int_equal(tess_avg_pool_forward(&op, x, y), TESS_OK);
    assert_int_equal(tess_avg_pool_backward(&op, dy, dx), TESS_OK);
    op_close(&op);
}

static void run_batch_norm(struct twin *twin, enum tess_dtype dtype)
{
    const int64_t rows = 30, leaves = 3, channels = 75, size = 6;
    struct tess_op_desc d = {.kind = TESS_OP_BATCH_NORM,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = rows / leaves,
                             .in = channels,
                             .out = channels,
                             .height = size,
                             .width = size,
                             .relu = true,
                             .epsilon = 1e-5f};
    const int64_t count = rows * size * size * channels;
    const size_t bytes = (size_t)count * tess_dtype_bytes(dtype), row = (size_t)channels * 4;
    void *x = put(twin, dtype, 1, count), *dy = put(twin, dtype, 2, count);
    void *gamma = put(twin, dtype, 3, channels), *beta = put(twin, dtype, 4, channels);
    void *y = take(twin, bytes), *dx = take(twin, bytes), *z = take(twin, bytes);
    float *mean = take(twin, 3 * row), *rstd = take(twin, 3 * row);
    float *sum[4];
    for (int i = 0; i < 4; i++)
        sum[i] = take(twin, row);
    void *var = take(twin, (size_t)channels * tess_dtype_bytes(dtype));
    tess_relu_forward(twin->kernel, dtype, channels, gamma, var);
    struct tess_op op;
    op_open(twin, &d, &op);
    assert_int_equal(tess_batch_norm_forward(&op, x, gamma, beta, y, mean, rstd, sum[0], sum[1]),
                     TESS_OK);
    assert_int_equal(
        tess_batch_norm_backward(&op, x, y, dy, gamma, beta, mean, rstd, dx, sum[2], sum[3]),
        TESS_OK);
    assert_int_equal(tess_batch_norm_infer(&op, x, gamma, beta, gamma, var, z), TESS_OK);
    op_close(&op);
}

static void run_attention(struct twin *twin, enum tess_dtype dtype)
{
    int64_t rows = 3, length = 70, heads = 6, kv_heads = 3, size = 16;
    struct tess_op_desc d = {.kind = TESS_OP_ATTENTION,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = 1,
                             .in = size,
                             .out = size,
                             .length = length,
                             .heads = (int32_t)heads,
                             .kv_heads = (int32_t)kv_heads,
                             .q_stride = heads * size,
                             .kv_stride = kv_heads * size};
    int64_t q_count = rows * length * heads * size, kv_count = rows * length * kv_heads * size;
    size_t word = tess_dtype_bytes(dtype);
    void *q = put(twin, dtype, 1, q_count), *k = put(twin, dtype, 2, kv_count);
    void *v = put(twin, dtype, 3, kv_count), *dy = put(twin, dtype, 4, q_count);
    void *y = take(twin, (size_t)q_count * word), *dq = take(twin, (size_t)q_count * word);
    void *dk = take(twin, (size_t)kv_count * word), *dv = take(twin, (size_t)kv_count * word);
    float *lse = take(twin, (size_t)(rows * heads * length) * 4);
    struct tess_op op;
    op_open(twin, &d, &op);
#if defined(__x86_64__) /* an own kernel, whose threads have memory; ref's has none */
    if (strcmp(ops->name, "cpu") == 0 && __builtin_cpu_supports("avx2"))
        assert_true(op.thread_bytes > 0);
#endif
    assert_int_equal(tess_attention_forward(&op, q, k, v, y, lse), TESS_OK);
    assert_int_equal(tess_attention_backward(&op, q, k, v, y, dy, lse, dq, dk, dv), TESS_OK);
    op_close(&op);
}

static void run_norm(struct twin *twin, enum tess_dtype dtype)
{
    int64_t rows = 450, leaf = 150, size = 70, count = rows * size;
    struct tess_op_desc d = {.kind = TESS_OP_NORM,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = leaf,
                             .in = size,
                             .out = size,
                             .epsilon = 1e-5f};
    size_t bytes = (size_t)count * tess_dtype_bytes(dtype);
    void *x = put(twin, dtype, 1, count), *add = put(twin, dtype, 2, count);
    void *gamma = put(twin, dtype, 3, size), *beta = put(twin, dtype, 4, size);
    void *dy = put(twin, dtype, 5, count);
    void *sum = take(twin, bytes), *y = take(twin, bytes), *dx = take(twin, bytes);
    float *mean = take(twin, (size_t)rows * 4), *rstd = take(twin, (size_t)rows * 4);
    float *dgamma = take(twin, (size_t)size * 4), *dbeta = take(twin, (size_t)size * 4);
    struct tess_op op;
    op_open(twin, &d, &op);
    assert_int_equal(tess_norm_forward(&op, x, add, sum, gamma, beta, y, mean, rstd), TESS_OK);
    assert_int_equal(tess_norm_backward(&op, sum, dy, gamma, mean, rstd, add, dx, dgamma, dbeta),
                     TESS_OK);
    op_close(&op);
}

static void run_embedding(struct twin *twin, enum tess_dtype dtype)
{
    int64_t rows = 300, table_rows = 337, size = 70;
    struct tess_op_desc d = {.kind = TESS_OP_EMBEDDING,
                             .dtype = dtype,
                             .rows = rows,
                             .leaf_rows = 100,
                             .in = table_rows,
                             .out = size,
                             .length = 50};
    void *table = put(twin, dtype, 1, table_rows * size), *dy = put(twin, dtype, 2, rows * size);
    void *y = take(twin, (size_t)(rows * size) * tess_dtype_bytes(dtype));
    float *dtable = take(twin, (size_t)(table_rows * size) * 4);
    int32_t *token = take(twin, (size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++)
        token[i] = (int32_t)(i * 7919 % 341);
    struct tess_op op;
    op_open(twin, &d, &op);
    assert_int_equal(tess_embedding_forward(&op, token, 0, table, dy, y), TESS_OK);
    assert_int_equal(tess_embedding_backward(&op, token, 0, dy, dtable), TESS_OK);
    op_close(&op);
}

static void run_plain(struct twin *twin, enum tess_dtype dtype)
{
    int64_t count = 70001;
    size_t bytes = (size_t)count * tess_dtype_bytes(dtype);
    static const uint64_t key[2] = {3, 4};
    struct tess_kernel *kernel = twin->kernel;
    void *a = put(twin, dtype, 1, count), *b = put(twin, dtype, 2, count);
    void *c = put(twin, dtype, 3, count);
    tess_relu_forward(kernel, dtype, count, a, take(twin, bytes));
    tess_relu_backward(kernel, dtype, count, a, b, take(twin, bytes));
    tess_gelu_forward(kernel, dtype, count, a, take(twin, bytes));
    tess_gelu_backward(kernel, dtype, count, a, b, take(twin, bytes));
    tess_swiglu_forward(kernel, dtype, 1, count, count, a, b, take(twin, bytes));
    void *dgate = take(twin, bytes), *dup = take(twin, bytes);
    tess_swiglu_backward(kernel, dtype, 1, count, count, a, b, c, dgate, dup);
    for (int erf = 0; erf < 2; erf++) {
        tess_geglu_forward(kernel, dtype, 7, 9000, 10000, erf, a, b, take(twin, bytes));
        dgate = take(twin, bytes);
        dup = take(twin, bytes);
        tess_geglu_backward(kernel, dtype, 7, 9000, 10000, erf, a, b, c, dgate, dup);
    }
    tess_gelu_erf_forward(kernel, dtype, count, a, take(twin, bytes));
    tess_gelu_erf_backward(kernel, dtype, count, a, b, take(twin, bytes));
    tess_add(kernel, dtype, count, a, b, take(twin, bytes));
    tess_dropout(kernel, dtype, 1, count, count, 0.3f, key, 5, a, take(twin, bytes));
    tess_dropout(kernel, dtype, 1000, 68, 272, 0.3f, key, 136, a, take(twin, bytes));
    tess_copy(kernel, (int64_t)bytes, a, take(twin, bytes));
    tess_fill(kernel, (int64_t)bytes, 7, take(twin, bytes));
    tess_rope(kernel, dtype, 300, 100, 3, 2, 32, 70, &(struct tess_rotary){.base = 1e4f}, false, b);
    float *wide = take(twin, (size_t)count * 4);
    tess_cast(kernel, count, dtype, a, TESS_F32, wide);
}

static void run_update(struct twin *twin, enum tess_dtype dtype)
{
    int64_t count = 70001;
    static const uint64_t key[2] = {3, 4};
    float *w = put(twin, TESS_F32, 1, count), *g = put(twin, TESS_F32, 2, count);
    float *m = put(twin, TESS_F32, 3, count), *v = take(twin, (size_t)count * 4);
    memset(v, 0, (size_t)count * 4);
    struct tess_update update = {.kind = TESS_UPDATE_ADAMW,
                                 .low = dtype,
                                 .count = count,
                                 .w = w,
                                 .param_low = take(twin, (size_t)count * tess_dtype_bytes(dtype)),
                                 .g = g,
                                 .m = m,
                                 .v = v,
                                 .lr = 0.1f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.99f,
                                 .epsilon = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .correction1 = 1,
                                 .correction2 = 1,
                                 .grad_scale = 0.5f,
                                 .direction = take(twin, (size_t)count * 4)};
    tess_update(twin->kernel, &update);
    tess_lamb_direction(twin->kernel, &update);
    tess_accumulate(twin->kernel, count, 0.5f, g, w);
    struct tess_sum *sum = take(twin, sizeof(*sum));
    memset(sum, 0, sizeof(*sum));
    tess_square_sum(twin->kernel, count, TESS_SUM_BLOCK, 0.5f, g, sum);
    double *zeros = take(twin, sizeof(*zeros));
    *zeros = 3;
    memset(g + count / 4, 0, (size_t)(count / 2) * 4);
    tess_count_zeros(twin->kernel, TESS_F32, count, g, zeros);
    if (dtype != TESS_F32)
        tess_cast_stochastic(twin->kernel, count, g, dtype, key, 5,
                             take(twin, (size_t)count * tess_dtype_bytes(dtype)));
}

static void run_xent(struct twin *twin, enum tess_dtype dtype)
{
    int64_t rows = 130, classes = 300, stride = 310;
    size_t row_bytes = (size_t)rows * 4;
    struct tess_kernel *kernel = twin->kernel;
    char *logits = put(twin, dtype, 1, rows * stride);
    void *grad = take(twin, (size_t)(rows * stride) * tess_dtype_bytes(dtype));
    float *max = take(twin, row_bytes), *sum = take(twin, row_bytes);
    float *target = take(twin, row_bytes), *best = take(twin, row_bytes);
    float *loss = take(twin, row_bytes);
    int32_t *label = take(twin, row_bytes), *correct = take(twin, row_bytes);
    for (int64_t i = 0; i < rows; i++)
        label[i] = (int32_t)(i * 7919 % classes) - (i == 3);
    tess_xent_max(kernel, dtype, rows, classes, stride, logits, max, sum, target, best);
    tess_xent_sum(kernel, dtype, rows, classes, stride, 0, (struct tess_xent){0}, logits, label,
                  max, sum, target, best);
    tess_xent_loss(kernel, rows, 1, (struct tess_xent){0}, label, max, sum, target, best, loss,
                   correct);
    tess_xent_grad(kernel, dtype, rows, classes, stride, 0, (struct tess_xent){0}, 0.5f, logits,
                   label, max, sum, grad);
    tess_softmax_xent(kernel, dtype, rows, stride, (struct tess_xent){0}, 0.5f, logits, label, grad,
                      loss, correct);
}

static void all(enum tess_dtype dtype)
{
    check_twins("linear", run_linear, dtype);
    check_twins("linear with an update", run_linear_update, dtype);
    check_twins("convolution", run_conv, dtype);
    check_twins("pooling", run_pool, dtype);
    check_twins("batch normalisation", run_batch_norm, dtype);
    check_twins("attention", run_attention, dtype);
    check_twins("norm", run_norm, dtype);
    check_twins("embedding", run_embedding, dtype);
    check_twins("plain operations", run_plain, dtype);
    check_twins("updates", run_update, dtype);
    check_twins("cross-entropy", run_xent, dtype);
}

static void case_f32(void **state)
{
    (void)state;
    all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    all(TESS_F16);
}

/* All pages exist once a kernel has adopted the memory, the last ones as well, and are zero. */
static void case_adopt(void **state)
{
    (void)state;
#ifdef MADV_POPULATE_WRITE
    enum { PAGE = 4096, PAGES = 9000 }; /* more than two parts */
    static unsigned char there[PAGES];
    const size_t bytes = (size_t)PAGES * PAGE;
    struct tess_kernel *kernel;
    for (int threads = 1; threads <= 3; threads++) {
        char *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(memory, MAP_FAILED);
        const bool able = madvise(memory, PAGE, MADV_POPULATE_WRITE) == 0; /* since Linux 5.14 */
        assert_int_equal(tess_kernel_open(ops, threads, &kernel), TESS_OK);
        assert_int_equal(kernel->ops->adopt(kernel, memory, bytes), TESS_OK);
        assert_int_equal(mincore(memory, bytes, there), 0);
        for (int page = 0; page < PAGES; page++) {
            assert_true(!able || (there[page] & 1) != 0);
            assert_int_equal(memory[(size_t)page * PAGE], 0);
        }
        kernel->ops->disown(kernel, memory, bytes);
        tess_kernel_close(kernel);
        munmap(memory, bytes);
    }
#endif
}

int main(int argc, char **argv)
{
    if (tess_registry_get_kernel(device_backend(argc, argv), &ops) != TESS_OK)
        return 77;
    twins_open();
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_f32), cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_f16), cmocka_unit_test(case_adopt)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    twins_close();
    return failed;
}
