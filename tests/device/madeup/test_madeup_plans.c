/*
 * Plans of products (kernels/cuda/products) on a device made of host code, whose library of
 * products is as unkind as its documents allow: algorithms that are named and do not run, epilogues
 * that none has, attributes that it refuses, and the same algorithm made again with other bits.
 */
#include "device/madeup/madeup.h"

#include "base/clock.h"
#include "base/half.h"
#include "cuda/host.h"
#include "cuda/products/conv.h"
#include "cuda/products/conv_cudnn.h"
#include "cuda/products/launch_fp8.h"
#include "cuda/products/matmul.h"
#include "cuda/rows/columns.h"
#include "kernel_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CUDA(call) assert_int_equal(call, cudaSuccess)
#define TESS(call) assert_int_equal(call, TESS_OK)

/* ---- kernels that are not the subject -------------------------------------------------------- */

struct differ {
    size_t bytes;
    const void *a, *b;
    uint32_t *differ;
    int device;
};

static cudaError_t differ_run(const void *context)
{
    const struct differ *d = context;
    madeup_check_range("matmul_differ", d->device, d->a, d->bytes);
    madeup_check_range("matmul_differ", d->device, d->b, d->bytes);
    madeup_check_range("matmul_differ", d->device, d->differ, sizeof(*d->differ));
    if (memcmp(d->a, d->b, d->bytes) != 0)
        *d->differ |= 1;
    return cudaSuccess;
}

cudaError_t tess__cuda_matmul_differ(cudaStream_t stream, size_t bytes, const void *a,
                                     const void *b, uint32_t *differ)
{
    struct differ *d = malloc(sizeof(*d));
    *d = (struct differ){bytes, a, b, differ, madeup_device()};
    return madeup_submit(stream, &(struct madeup_work){"matmul_differ", differ_run, free, d});
}

size_t tess__cuda_column_sum_bytes(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                   int64_t n)
{
    (void)dtype;
    (void)leaves;
    (void)leaf_rows;
    (void)n;
    return 256;
}

static int column_sums;

cudaError_t tess__cuda_column_sum(cudaStream_t stream, enum tess_dtype dtype, int64_t leaves,
                                  int64_t leaf_rows, int64_t n, const void *x, bool add, float *out,
                                  void *scratch)
{
    (void)stream;
    (void)dtype;
    (void)leaves;
    (void)leaf_rows;
    (void)n;
    (void)x;
    (void)add;
    (void)out;
    (void)scratch;
    column_sums++; /* the tests only ask whether it was called */
    return cudaSuccess;
}

cudaError_t tess__cuda_fp8_greatest(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                    const void *x, struct cuda_fp8_tensor *tensor)
{
    (void)stream;
    (void)dtype;
    (void)count;
    (void)x;
    (void)tensor;
    madeup_fail("fp8 is not a subject of this test");
}

cudaError_t tess__cuda_fp8_scale(cudaStream_t stream, enum cuda_fp8_format format, bool history,
                                 struct cuda_fp8_tensor *tensor)
{
    (void)stream;
    (void)format;
    (void)history;
    (void)tensor;
    madeup_fail("fp8 is not a subject of this test");
}

cudaError_t tess__cuda_fp8_narrow(cudaStream_t stream, enum tess_dtype dtype,
                                  enum cuda_fp8_format format, int64_t rows, int64_t columns,
                                  const void *x, struct cuda_fp8_tensor *tensor, bool watch,
                                  uint8_t *y, uint8_t *y_turned)
{
    (void)stream;
    (void)dtype;
    (void)format;
    (void)rows;
    (void)columns;
    (void)x;
    (void)tensor;
    (void)watch;
    (void)y;
    (void)y_turned;
    madeup_fail("fp8 is not a subject of this test");
}

cudaError_t tess__cuda_conv_windows(cudaStream_t stream, enum tess_dtype dtype,
                                    const struct cuda_windows *windows, const void *x,
                                    void *columns)
{
    (void)stream;
    (void)dtype;
    (void)windows;
    (void)x;
    (void)columns;
    madeup_fail("windows of several pixels are not a subject of this test");
}

cudaError_t tess__cuda_conv_gather(cudaStream_t stream, enum tess_dtype dtype,
                                   const struct cuda_windows *windows, const float *columns,
                                   void *dx)
{
    (void)stream;
    (void)dtype;
    (void)windows;
    (void)columns;
    (void)dx;
    madeup_fail("windows of several pixels are not a subject of this test");
}

/* ---- a kernel of products alone -------------------------------------------------------------- */

struct bench {
    struct tess_kernel kernel;
    struct cuda_state state;
    struct tess_queue queue;
};

static void bench_open(struct bench *b)
{
    cudaStream_t stream;
    memset(b, 0, sizeof(*b));
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&b->state.workspace, CUDA_WORKSPACE_BYTES));
    assert_int_equal(cublasLtCreate(&b->state.blas), CUBLAS_STATUS_SUCCESS);
    b->queue.native = stream;
    b->kernel.queue = &b->queue;
    b->kernel.state = &b->state;
    TESS(tess__cuda_memory_open(&b->kernel));
    TESS(tess__cuda_matmul_open(&b->kernel));
}

static void bench_close(struct bench *b)
{
    tess__cuda_matmul_close(&b->kernel);
    tess__cuda_memory_close(&b->kernel);
    assert_int_equal(cublasLtDestroy(b->state.blas), CUBLAS_STATUS_SUCCESS);
    CUDA(cudaFree(b->state.workspace));
    CUDA(cudaStreamDestroy(b->queue.native));
}

static uint64_t draw_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 40;
}

/* Random numbers of [-1, 1) on the device, in bf16 or f32. */
static void *array(const struct bench *b, bool bf16, int64_t count, uint64_t seed)
{
    const size_t bytes = (size_t)count * (bf16 ? 2 : 4);
    char *numbers = malloc(bytes);
    void *memory;
    for (int64_t i = 0; i < count; i++) {
        const float value = (float)draw_next(&seed) * 0x1p-23f - 1;
        const uint16_t half = tess__bf16_of_f32(value);
        memcpy(numbers + (size_t)i * (bf16 ? 2 : 4), bf16 ? (const void *)&half : &value,
               bf16 ? 2 : 4);
    }
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemcpyAsync(memory, numbers, bytes, cudaMemcpyHostToDevice, b->queue.native));
    CUDA(cudaStreamSynchronize(b->queue.native));
    free(numbers);
    return memory;
}

static void *fetch(const struct bench *b, const void *memory, size_t bytes)
{
    void *copy = malloc(bytes);
    CUDA(cudaMemcpyAsync(copy, memory, bytes, cudaMemcpyDeviceToHost, b->queue.native));
    CUDA(cudaStreamSynchronize(b->queue.native));
    return copy;
}

/* Products of many shapes: the library's first choice differs among them. */
#define SHAPES 16

static struct cuda_product shape(int64_t at)
{
    struct cuda_product p =
        tess__cuda_product(16 + 8 * (at % 4), 24 + 8 * (at / 4), 200 + 8 * at, CUDA_R_16BF);
    p.d = CUDA_R_32F;
    p.split = at % 2;
    return p;
}

/* The bits of a product, to be freed. */
static void *results(struct bench *b, struct cuda_plan *plan, const struct cuda_product *p)
{
    struct cuda_operands o = {.a = array(b, true, p->m * p->k, 1),
                              .b = array(b, true, p->k * p->n, 2),
                              .d = array(b, false, p->m * p->n, 3)};
    TESS(tess__cuda_plan_run(&b->kernel, plan, &o));
    void *bits = fetch(b, o.d, (size_t)(p->m * p->n) * 4);
    CUDA(cudaFree((void *)(uintptr_t)o.a));
    CUDA(cudaFree((void *)(uintptr_t)o.b));
    CUDA(cudaFree(o.d));
    return bits;
}

/* ---- linear layers --------------------------------------------------------------------------- */

struct layer {
    struct tess_op op;
    void *x, *w, *dy, *y, *bias;
    float *dw, *dbias;
};

#define ROWS 64

/* Memory for a layer of 64 rows, which op.desc describes; conv: of pixels. */
static void layer_arrays(struct bench *b, struct layer *l)
{
    const int64_t in = l->op.desc.in, out = l->op.desc.out;
    struct tess_op_needs needs = {0};
    TESS(l->op.desc.kind == TESS_OP_CONV2D ? tess__cuda_conv_needs(&l->op.desc, &needs)
                                           : tess__cuda_linear_needs(&l->op.desc, &needs));
    l->op.kernel = &b->kernel;
    CUDA(cudaMalloc(&l->op.scratch, needs.scratch_bytes + 256));
    l->x = array(b, true, ROWS * in, 4);
    l->w = array(b, true, in * out, 5);
    l->dy = array(b, true, ROWS * out, 6);
    l->y = array(b, true, ROWS * out, 7);
    l->bias = array(b, true, out, 8);
    l->dw = array(b, false, in * out, 9);
    l->dbias = array(b, false, out, 10);
}

static enum tess_status layer_open_of(struct bench *b, struct layer *l, int64_t in, int64_t out,
                                      int64_t leaf_rows, bool relu)
{
    *l = (struct layer){.op.desc = {.kind = TESS_OP_LINEAR,
                                    .dtype = TESS_BF16,
                                    .rows = ROWS,
                                    .leaf_rows = leaf_rows,
                                    .in = in,
                                    .out = out,
                                    .relu = relu,
                                    .input_grad = true}};
    layer_arrays(b, l);
    return tess__cuda_linear_open(&l->op);
}

static enum tess_status layer_open_conv(struct bench *b, struct layer *l, int64_t in, int64_t out)
{
    *l = (struct layer){.op.desc = {.kind = TESS_OP_CONV2D,
                                    .dtype = TESS_BF16,
                                    .rows = ROWS / 4,
                                    .leaf_rows = ROWS / 8,
                                    .height = 2,
                                    .width = 2,
                                    .window = 1,
                                    .stride = 1,
                                    .in = in,
                                    .out = out,
                                    .input_grad = true}};
    layer_arrays(b, l);
    return tess__cuda_conv_open(&l->op);
}

static enum tess_status layer_open(struct bench *b, struct layer *l, int64_t in, int64_t out)
{
    return layer_open_of(b, l, in, out, 64, false);
}

static void layer_close(struct layer *l)
{
    void *const all[] = {l->op.scratch, l->x, l->w, l->dy, l->y, l->bias, l->dw, l->dbias};
    if (l->op.desc.kind == TESS_OP_CONV2D)
        tess__cuda_conv_close(&l->op);
    else
        tess__cuda_linear_close(&l->op);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        CUDA(cudaFree(all[i]));
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* A part of a layer that makes the bias's gradient too and one that does not have the same bits of
 * the weights' gradient: which part makes it depends on the number of ranks. */
static void case_bias_gradient(void **state)
{
    (void)state;
    struct bench b;
    int fused = 0;
    bench_open(&b);
    for (int64_t at = 0; at < SHAPES; at++) {
        struct layer l;
        const int64_t in = 32 + 8 * at, out = 24 + 8 * (at % 3);
        const size_t bytes = (size_t)(in * out) * sizeof(float);
        TESS(layer_open(&b, &l, in, out));
        column_sums = 0;
        TESS(tess__cuda_linear_backward_weight(&l.op, l.x, l.dy, l.dw, l.dbias));
        fused += column_sums == 0;
        void *with = fetch(&b, l.dw, bytes);
        TESS(tess__cuda_linear_backward_weight(&l.op, l.x, l.dy, l.dw, NULL));
        void *without = fetch(&b, l.dw, bytes);
        if (memcmp(with, without, bytes) != 0)
            fail_msg("a layer of %lld inputs and %lld outputs has other bits with its bias",
                     (long long)in, (long long)out);
        free(with);
        free(without);
        layer_close(&l);
    }
    assert_in_range(fused, 1, SHAPES - 1);
    bench_close(&b);
}

static float value_at(const uint16_t *bf16, int64_t at)
{
    return tess__f32_of_bf16(bf16[at]);
}

static void layer_forward(struct layer *l, const void *bias)
{
    TESS(l->op.desc.kind == TESS_OP_CONV2D
             ? tess__cuda_conv2d_forward(&l->op, l->x, l->w, bias, l->y)
             : tess__cuda_linear_forward(&l->op, l->x, l->w, bias, l->y));
}

/* The layer's result with its bias is that without it, and the bias. */
static void expect_bias(const struct bench *b, struct layer *l, bool relu)
{
    const int64_t out = l->op.desc.out;
    const size_t bytes = (size_t)(ROWS * out) * sizeof(uint16_t);
    layer_forward(l, NULL);
    uint16_t *plain = fetch(b, l->y, bytes);
    layer_forward(l, l->bias);
    uint16_t *with = fetch(b, l->y, bytes);
    uint16_t *bias = fetch(b, l->bias, (size_t)out * sizeof(uint16_t));
    for (int64_t i = 0; i < ROWS * out; i++) {
        const float sum = value_at(plain, i) + value_at(bias, i % out);
        if (relu && value_at(plain, i) == 0) /* what was below 0 is not known */
            assert_true(value_at(with, i) >= 0 && value_at(with, i) <= 1);
        else
            assert_float_equal(value_at(with, i), relu && sum < 0 ? 0 : sum, 0.07);
    }
    free(plain);
    free(with);
    free(bias);
}

/* Where no algorithm adds a bias, a layer with one works all the same; where none multiplies, it is
 * refused when it is opened. */
static void case_bias(void **state)
{
    (void)state;
    struct bench b;
    struct layer l;
    bench_open(&b);
    setenv("MADEUP_BLAS_WITHOUT", "4,6", 1);
    for (int relu = 0; relu < 2; relu++)
        for (int64_t leaf_rows = 16; leaf_rows <= 64; leaf_rows *= 4) {
            TESS(layer_open_of(&b, &l, 32, 24, leaf_rows, relu > 0));
            expect_bias(&b, &l, relu > 0);
            layer_close(&l);
        }
    setenv("MADEUP_BLAS_WITHOUT", "1,4", 1);
    assert_int_equal(layer_open(&b, &l, 40, 24), TESS_ERR_UNSUPPORTED);
    layer_close(&l);
    unsetenv("MADEUP_BLAS_WITHOUT");
    bench_close(&b);
}

/* Random numbers of [0, 2) on the device, in e4m3. */
static void *narrow_array(const struct bench *b, size_t count, uint64_t seed)
{
    uint8_t *codes = malloc(count);
    void *memory;
    for (size_t i = 0; i < count; i++)
        codes[i] = (uint8_t)(draw_next(&seed) % 0x40);
    CUDA(cudaMalloc(&memory, count));
    CUDA(cudaMemcpyAsync(memory, codes, count, cudaMemcpyHostToDevice, b->queue.native));
    CUDA(cudaStreamSynchronize(b->queue.native));
    free(codes);
    return memory;
}

/* 8-bit products add up in the units alone where that is chosen: a long sum keeps fewer bits. */
static void case_fast(void **state)
{
    (void)state;
    const float one[4] = {1, 1, 1, 1};
    double total[2] = {0, 0};
    struct bench b;
    bench_open(&b);
    float *scale = array(&b, false, 4, 1);
    CUDA(cudaMemcpyAsync(scale, one, sizeof(one), cudaMemcpyHostToDevice, b.queue.native));
    for (int fast = 0; fast < 2; fast++) {
        struct cuda_plan *plan;
        struct cuda_product p = tess__cuda_product(16, 16, 4096, CUDA_R_8F_E4M3);
        TESS(tess__cuda_matmul_fp8_fast(&b.kernel, fast));
        p.d = CUDA_R_32F;
        p.transpose_a = true;
        p.fast = tess__cuda_matmul_is_fast(&b.kernel, p.a);
        TESS(tess__cuda_plan_get(&b.kernel, &p, &plan));
        assert_non_null(plan);
        struct cuda_operands o = {.a = narrow_array(&b, 16 * 4096, 1),
                                  .b = narrow_array(&b, 16 * 4096, 2),
                                  .d = array(&b, false, 256, 3),
                                  .scale_a = scale,
                                  .scale_b = scale};
        TESS(tess__cuda_plan_run(&b.kernel, plan, &o));
        float *sums = fetch(&b, o.d, 256 * sizeof(float));
        for (int i = 0; i < 256; i++)
            total[fast] += (double)sums[i];
        free(sums);
        CUDA(cudaFree((void *)(uintptr_t)o.a));
        CUDA(cudaFree((void *)(uintptr_t)o.b));
        CUDA(cudaFree(o.d));
    }
    CUDA(cudaFree(scale));
    assert_true(total[1] < total[0]); /* positive ones, of which more is cut off */
    bench_close(&b);
}

/* A row has the bits that it has alone, among any number: also where results are of 16 bits, which
 * hide most orders of a sum, and where the library would cut the sum by the number of tiles. */
static void case_same_rows(void **state)
{
    static const int64_t n[] = {1, 2, 31, 64, 130, 960, CUDA_SAME_ROWS};
    (void)state;
    struct bench b;
    bench_open(&b);
    int others = 0;
    for (int64_t at = 0; at < SHAPES; at += 3) {
        uint8_t row[2][256];
        for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++)
            for (int same = 0; same < 2; same++) {
                struct cuda_product p = shape(at);
                struct cuda_rows rows;
                p.n = n[i];
                p.split = false;
                p.transpose_a = true;
                p.same_rows = same;
                TESS(tess__cuda_rows_open(&b.kernel, &p, 1, &rows));
                assert_non_null(rows.leaf);
                uint8_t *bits = results(&b, rows.leaf, &p);
                if (i == 0)
                    memcpy(row[same], bits, (size_t)p.m * 4);
                else if (same)
                    assert_memory_equal(row[same], bits, (size_t)p.m * 4);
                else
                    others += memcmp(row[same], bits, (size_t)p.m * 4) != 0;
                free(bits);
            }
    }
    assert_true(others > 6); /* it is not the library's own way */
    bench_close(&b);
}

/* The library is asked for so many multiprocessors: it may choose otherwise, and does here. */
static void case_sm_target(void **state)
{
    (void)state;
    struct bench b;
    int others = 0;
    bench_open(&b);
    assert_int_equal(tess__cuda_matmul_sm_target(&b.kernel, 5), TESS_ERR_USAGE);
    for (int64_t at = 0; at < SHAPES; at++) {
        const struct cuda_product p = shape(at);
        struct cuda_plan *plan[2];
        void *bits[2];
        for (int i = 0; i < 2; i++) {
            TESS(tess__cuda_matmul_sm_target(&b.kernel, i == 0 ? 0 : 3));
            TESS(tess__cuda_plan_get(&b.kernel, &p, &plan[i]));
            assert_non_null(plan[i]);
            bits[i] = results(&b, plan[i], &p);
        }
        assert_ptr_not_equal(plan[0], plan[1]);
        others += memcmp(bits[0], bits[1], (size_t)(p.m * p.n) * 4) != 0;
        free(bits[0]);
        free(bits[1]);
    }
    assert_in_range(others, 1, SHAPES);
    bench_close(&b);
}

struct short_work {
    _Atomic bool awaited;
    double end_s;
};

static cudaError_t short_run(const void *context)
{
    struct short_work *work = *(struct short_work *const *)context;
    while (!atomic_load(&work->awaited)) {
    }
    const double end_s = tess_clock_s() + 30e-6;
    while (tess_clock_s() < end_s) {
    }
    work->end_s = tess_clock_s();
    return cudaSuccess;
}

static int short_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

#define SHORT_WAITS 200

/* The host sees the end of 30 us of work well before a millisecond is over: in a quarter of many
 * waits at least, as the machine may be busy. */
static void case_short_wait(void **state)
{
    (void)state;
    struct bench b;
    cudaEvent_t event;
    double late_s[SHORT_WAITS];
    bench_open(&b);
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int i = 0; i < SHORT_WAITS; i++) {
        struct short_work work = {false, 0}, *context = &work;
        CUDA(madeup_submit(
            b.queue.native,
            &(struct madeup_work){.name = "short", .run = short_run, .context = &context}));
        CUDA(cudaEventRecord(event, b.queue.native));
        atomic_store(&work.awaited, true);
        TESS(tess__cuda_await(&b.state, event, "short work"));
        late_s[i] = tess_clock_s() - work.end_s;
    }
    qsort(late_s, SHORT_WAITS, sizeof(late_s[0]), short_order);
    assert_true(late_s[SHORT_WAITS / 4] < 500e-6);
    CUDA(cudaEventDestroy(event));
    bench_close(&b);
}

/* What has been opened runs: with every algorithm that the library names first. */
static void case_opened_runs(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b);
    for (int64_t at = 0; at < SHAPES; at++) {
        const struct cuda_product p = shape(at);
        struct cuda_plan *plan;
        TESS(tess__cuda_plan_get(&b.kernel, &p, &plan));
        assert_non_null(plan);
        free(results(&b, plan, &p));
    }
    bench_close(&b);
}

/* A library that refuses the mask of reduction schemes: its own preference is taken. The second
 * attribute of the first preference is the mask (main). */
static void case_mask(void **state)
{
    (void)state;
    struct bench b;
    struct cuda_plan *plan;
    const struct cuda_product p = shape(2);
    bench_open(&b);
    TESS(tess__cuda_plan_get(&b.kernel, &p, &plan));
    assert_non_null(plan);
    free(results(&b, plan, &p));
    bench_close(&b);
}

/* The same of convolutions, with and without an algorithm that adds the bias. Their windows are of
 * one pixel. */
static void case_convolutions(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b);
    for (int64_t at = 0; at < SHAPES; at++) {
        struct layer l;
        const int64_t in = 32 + 8 * at, out = 24 + 8 * (at % 3);
        setenv("MADEUP_BLAS_WITHOUT", at % 2 > 0 ? "4" : "", 1);
        TESS(layer_open_conv(&b, &l, in, out));
        expect_bias(&b, &l, false);
        TESS(tess__cuda_conv2d_backward_data(&l.op, l.dy, l.w, l.x));
        TESS(tess__cuda_conv2d_backward_weight(&l.op, l.x, l.dy, l.dw, l.dbias));
        CUDA(cudaStreamSynchronize(b.queue.native));
        layer_close(&l);
    }
    unsetenv("MADEUP_BLAS_WITHOUT");
    bench_close(&b);
}

/* ---- measured choices ------------------------------------------------------------------------ */

static void tuned_results(const char *path, int32_t sm_target, void *bits[SHAPES])
{
    struct bench b;
    bench_open(&b);
    TESS(tess__cuda_matmul_sm_target(&b.kernel, sm_target));
    TESS(tess__cuda_matmul_autotune(&b.kernel, true, path));
    for (int64_t at = 0; at < SHAPES; at++) {
        const struct cuda_product p = shape(at);
        struct cuda_plan *plan;
        TESS(tess__cuda_plan_get(&b.kernel, &p, &plan));
        assert_non_null(plan);
        bits[at] = results(&b, plan, &p);
    }
    bench_close(&b);
}

/* A choice that is read from the file gives the bits that it gave when it was measured. */
static void case_store(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_madeup_plans.XXXXXX", path[64], driver[32];
    void *measured[SHAPES], *read[SHAPES];
    int number = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/store", folder);
    tuned_results(path, 0, measured);
    char text[16384] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_in_range(fread(text, 1, sizeof(text) - 1, file), 1, sizeof(text) - 2);
    fclose(file);
    CUDA(cudaDriverGetVersion(&number));
    snprintf(driver, sizeof(driver), "|%d|%zu|", number, cublasLtGetVersion());
    assert_non_null(strstr(text, driver));
    tuned_results(path, 0, read);
    for (int64_t at = 0; at < SHAPES; at++) {
        const struct cuda_product p = shape(at);
        assert_memory_equal(measured[at], read[at], (size_t)(p.m * p.n) * 4);
        free(measured[at]);
        free(read[at]);
    }
    /* For other multiprocessors it is another choice. */
    tuned_results(path, 3, read);
    for (int64_t at = 0; at < SHAPES; at++)
        free(read[at]);
    file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    assert_non_null(strstr(text, " sm 3\t"));
    unlink(path);
    strcat(path, ".lock");
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_opened_runs), cmocka_unit_test(case_bias_gradient),
        cmocka_unit_test(case_bias),        cmocka_unit_test(case_convolutions),
        cmocka_unit_test(case_store),       cmocka_unit_test(case_fast),
        cmocka_unit_test(case_same_rows),   cmocka_unit_test(case_sm_target),
        cmocka_unit_test(case_short_wait),
    };
    const struct CMUnitTest mask[] = {cmocka_unit_test(case_mask)};
    if (argc > 1 && strcmp(argv[1], "mask") == 0) {
        setenv("MADEUP_FAIL", "cublasLtMatmulPreferenceSetAttribute:2", 1);
        return cmocka_run_group_tests(mask, NULL, NULL);
    }
    return cmocka_run_group_tests(cases, NULL, NULL);
}
