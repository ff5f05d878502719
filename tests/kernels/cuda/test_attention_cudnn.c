/*
 * What attention_choice.c and attention_cudnn.c make of cuDNN's plans, on the CPU: a made-up
 * library that runs the graphs operation by operation (fake_graph.c), against the definition of
 * attention (attention_case.h): strides, shared heads, sequences that take several runs; every call
 * that fails; and the choice by measuring, over a clock of the test's.
 */
#include "../attention_case.h"
#include "cuda/attention/attention_choice.h"
#include "fake_device.h"
#include "kernel_open.h"
#include "ref/ref.h"
#include "tessera/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)8 << 20)

static struct device device;

/* ---- stand-ins ------------------------------------------------------------------------------- */

static int own_runs;               /* of our own kernels */
static double own_time, fake_time; /* ms of one of theirs, and of cuDNN's */
static struct {
    double at;
} event[2];
static int events;

static double clock_now(void)
{
    return own_runs * own_time + fake_engine.runs * fake_time;
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *out)
{
    *out = (cudaEvent_t)(void *)&event[events++ % 2];
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t which)
{
    (void)which;
    events--;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t which, cudaStream_t stream)
{
    (void)stream;
    *(double *)(void *)which = clock_now();
    return cudaSuccess;
}

enum tess_status tess__cuda_await(const struct cuda_state *state, cudaEvent_t which,
                                  const char *what)
{
    (void)state, (void)which, (void)what;
    return TESS_OK;
}

bool tess__cuda_hangs(void)
{
    return false;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(*(double *)(void *)to - *(double *)(void *)from);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *about, int number)
{
    (void)number;
    memset(about, 0, sizeof(*about));
    snprintf(about->name, sizeof(about->name), "made up");
    return cudaSuccess;
}

cudaError_t tess__cuda_launch_attention_forward(cudaStream_t stream,
                                                const struct cuda_attention_forward *a,
                                                const struct cuda_attention_documents *documents,
                                                const struct cuda_attention_drop *drop)
{
    (void)stream, (void)a, (void)documents, (void)drop;
    own_runs++;
    return cudaSuccess;
}

cudaError_t tess__cuda_launch_attention_backward(cudaStream_t stream,
                                                 const struct cuda_attention_backward *a,
                                                 const struct cuda_attention_documents *documents,
                                                 const struct cuda_attention_drop *drop)
{
    (void)stream, (void)a, (void)documents, (void)drop;
    own_runs++;
    return cudaSuccess;
}

cudaError_t tess__cuda_launch_attention_forward_plain(
    cudaStream_t stream, const struct cuda_attention_forward *a,
    const struct cuda_attention_documents *documents, const struct cuda_attention_drop *drop)
{
    return tess__cuda_launch_attention_forward(stream, a, documents, drop);
}

cudaError_t tess__cuda_launch_attention_backward_plain(
    cudaStream_t stream, const struct cuda_attention_backward *a,
    const struct cuda_attention_documents *documents, const struct cuda_attention_drop *drop)
{
    return tess__cuda_launch_attention_backward(stream, a, documents, drop);
}

cudaError_t tess__cuda_launch_attention_kept(cudaStream_t stream,
                                             const struct cuda_attention_forward *a, int32_t from)
{
    (void)stream, (void)a, (void)from;
    return cudaErrorNotSupported;
}

cudaError_t tess__cuda_launch_attention_kept_plain(cudaStream_t stream,
                                                   const struct cuda_attention_forward *a,
                                                   int32_t from)
{
    return tess__cuda_launch_attention_kept(stream, a, from);
}

void tess__cuda_note(struct tess_kernel *kernel, cudaError_t error, const char *where)
{
    (void)kernel, (void)where;
    assert_int_equal(error, cudaSuccess);
}

/* ---- the kernel under test: ref, with these slots -------------------------------------------- */

static struct tess_queue queue;

static enum tess_status under_test_open(struct tess_kernel *kernel)
{
    kernel->queue = &queue;
    return TESS_OK;
}

static void under_test_close(struct tess_kernel *kernel)
{
    tess__cudnn_close(kernel);
}

static enum tess_status under_test_needs(const struct tess_op_desc *desc,
                                         struct tess_op_needs *needs_out)
{
    *needs_out = (struct tess_op_needs){0};
    return tess__cuda_attention_needs(desc, needs_out);
}

static const struct tess_kernel_ops *under_test(void)
{
    static struct tess_kernel_ops ops;
    ops = tess_kernel_ref;
    ops.name = "cuDNN";
    ops.state_size = sizeof(struct cuda_state);
    ops.open = under_test_open;
    ops.close = under_test_close;
    ops.op_needs = under_test_needs;
    ops.op_open = tess__cuda_attention_open;
    ops.op_close = tess__cuda_attention_close;
    ops.attention_forward = tess__cuda_attention_forward;
    ops.attention_backward = tess__cuda_attention_backward;
    return &ops;
}

static void begin(enum tess_attention attention, const char *store)
{
    fake_clear();
    fake_absent = false;
    own_runs = 0;
    assert_int_equal(tess_kernel_open(under_test(), 1, &device.kernel), TESS_OK);
    assert_int_equal(tess__cuda_attention_choose(device.kernel, attention, store), TESS_OK);
}

/* Nothing is left. */
static void end(void)
{
    tess_kernel_close(device.kernel);
    device_reset(&device);
    assert_int_equal(fake_engine.alive, 0);
    assert_int_equal(fake_arrays, 0);
    assert_int_equal(events, 0);
}

static struct tess_op_desc layer(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows)
{
    return (struct tess_op_desc){.kind = TESS_OP_ATTENTION,
                                 .dtype = dtype,
                                 .rows = leaves * leaf_rows,
                                 .leaf_rows = leaf_rows,
                                 .length = 12,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .in = 16,
                                 .out = 16,
                                 .q_stride = 128,
                                 .kv_stride = 128};
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void case_values(void **unused)
{
    (void)unused;
    static const struct attention_way ways[] = {
        {TESS_BF16, 2, 1, 17, 2, 2, 64, true, 0, 0, 0, 0, 1, false, 11},
        {TESS_BF16, 1, 3, 33, 4, 2, 32, false, 8, 16, 0, 0, 8, false, 12},
        {TESS_F16, 3, 2, 24, 6, 1, 8, true, 0, 0, 0, 0, 1, false, 13},
        {TESS_F16, 1, 1, 40, 3, 3, 128, false, 0, 0, 0, 0, 0.01, false, 14},
        {TESS_BF16, 1, 2, 2, 1, 1, 24, true, 0, 0, 0, 0, 1, false, 15},
    };
    for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
        begin(TESS_ATTENTION_CUDNN, NULL);
        attention_run(&device, &ways[w]);
        assert_int_equal(own_runs, 0);
        assert_true(fake_engine.runs > 0);
        end();
    }
}

/* Our own kernels where cuDNN has nothing, and where nothing else was chosen. */
static void case_own(void **unused)
{
    (void)unused;
    struct tess_op op;
    struct tess_op_desc odd = layer(TESS_BF16, 1, 1), one = odd;
    odd.in = 12; /* no multiple of 8 */
    one.length = 1;
    const struct tess_op_desc none[] = {layer(TESS_F32, 2, 1), odd, one};
    for (size_t n = 0; n < sizeof(none) / sizeof(*none); n++) {
        begin(TESS_ATTENTION_CUDNN, NULL);
        device_op_open(&device, &none[n], &op);
        assert_null(op.data);
        device_op_close(&op);
        end();
    }
    const struct tess_op_desc d = layer(TESS_BF16, 2, 1);
    begin(TESS_ATTENTION_CUDNN, NULL);
    fake_engine.shy = true;
    device_op_open(&device, &d, &op);
    assert_null(op.data);
    device_op_close(&op);
    end();
    begin(TESS_ATTENTION_CUDNN, NULL);
    fake_engine.room = ((int64_t)1280 << 20) + 1; /* more than is asked of a device */
    device_op_open(&device, &d, &op);
    assert_null(op.data);
    device_op_close(&op);
    end();
    begin(TESS_ATTENTION_OWN, NULL);
    device_op_open(&device, &d, &op);
    assert_null(op.data);
    assert_null(tess__cuda_state(device.kernel)->cudnn);
    device_op_close(&op);
    end();
    begin(TESS_ATTENTION_OWN, NULL);
    fake_absent = true;
    assert_int_equal(tess__cuda_attention_choose(device.kernel, TESS_ATTENTION_CUDNN, NULL),
                     TESS_ERR_UNSUPPORTED);
    assert_non_null(strstr(tess_log_last_error(), "--cuda.attention cudnn: cuDNN cannot be"));
    end();
}

/* Forward takes a leaf at a time; backward as many sequences as their scores fit 256 MiB. */
static void case_runs(void **unused)
{
    (void)unused;
    struct tess_op op;
    struct tess_op_desc d = layer(TESS_BF16, 3, 4);
    begin(TESS_ATTENTION_CUDNN, NULL);
    device_op_open(&device, &d, &op);
    const size_t array = (size_t)(d.rows * d.length * d.q_stride) * 2;
    char *a[6];
    for (int i = 0; i < 6; i++)
        a[i] = device_array(&device, array);
    assert_int_equal(
        tess__cuda_attention_forward(&op, a[0], a[1], a[2], a[3], (float *)(void *)a[4]), TESS_OK);
    assert_int_equal(fake_engine.runs, 3);
    assert_int_equal(
        tess__cuda_attention_forward(&op, a[0] + 2, a[1], a[2], a[3], (float *)(void *)a[4]),
        TESS_ERR_INTERNAL);
    assert_non_null(strstr(tess_log_last_error(), "not aligned to 16 bytes"));
    assert_int_equal(fake_engine.runs, 3);
    device_op_close(&op);
    end();
}

/* Whichever call fails first: it is reported, or cost one engine, and nothing stays behind. */
static void case_fails(void **unused)
{
    (void)unused;
    const struct tess_op_desc d = layer(TESS_BF16, 1, 1);
    int failed = 0, calls = 0;
    for (bool through = false; !through; calls++) {
        begin(TESS_ATTENTION_CUDNN, NULL);
        struct tess_op_needs needs;
        struct tess_op op = {.desc = d, .kernel = device.kernel};
        assert_int_equal(under_test_needs(&d, &needs), TESS_OK);
        op.scratch = device_array(&device, needs.scratch_bytes);
        char *a = device_array(&device, (size_t)(d.length * d.q_stride) * 2);
        fake_engine.failing = calls + 1;
        enum tess_status status = tess__cuda_attention_open(&op);
        if (status == TESS_OK)
            status = tess__cuda_attention_forward(
                &op, a, a + 128, a + 192, device_array(&device, 4096), device_array(&device, 4096));
        failed += status != TESS_OK;
        assert_true(status == TESS_OK || status == TESS_ERR_DEVICE);
        through = fake_engine.failing > 0; /* not reached */
        fake_engine.failing = 0;
        tess__cuda_attention_close(&op);
        end();
    }
    /* Descriptors of two plans, and a run. */
    assert_in_range(calls, 500, 5000);
    assert_true(failed > calls * 9 / 10 && failed < calls);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static char store[64];

/* Which was taken, and after how many runs of cuDNN's plans. */
static bool takes_cudnn(double own, double cudnn, int *runs_out)
{
    struct tess_op op;
    const struct tess_op_desc d = layer(TESS_BF16, 2, 1);
    begin(TESS_ATTENTION_AUTO, store);
    own_time = own;
    fake_time = cudnn;
    device_op_open(&device, &d, &op);
    *runs_out = fake_engine.runs;
    const bool cudnns = op.data != NULL && !tess__cuda_state(device.kernel)->attention_own;
    assert_int_equal(tess__cuda_settle(device.kernel, 0), cudnns ? 1 : 2);
    assert_int_equal(tess__cuda_settle(device.kernel, 2), 2); /* another rank found otherwise */
    assert_true(tess__cuda_state(device.kernel)->attention_own);
    device_op_close(&op);
    end();
    return cudnns;
}

static void case_auto(void **unused)
{
    (void)unused;
    int runs;
    (void)unlink(store);
    assert_true(takes_cudnn(2, 1, &runs));
    assert_int_equal(runs, 2 * 6); /* a leaf forward and backward, once to warm and five times */
    assert_true(takes_cudnn(1, 2, &runs)); /* as it is kept */
    assert_int_equal(runs, 0);
    (void)unlink(store);
    assert_false(takes_cudnn(1, 0.99, &runs)); /* noise */
    assert_int_equal(runs, 2 * 6);
    assert_false(takes_cudnn(2, 1, &runs));
    assert_int_equal(runs, 0);
    FILE *damaged = fopen(store, "w");
    assert_non_null(damaged);
    fputs("tessera-matmul 2\nattention", damaged);
    assert_int_equal(fclose(damaged), 0);
    assert_true(takes_cudnn(2, 1, &runs)); /* is measured again */
    assert_int_equal(runs, 2 * 6);
}

/* What cannot be measured, or cannot be kept. */
static void case_auto_own(void **unused)
{
    (void)unused;
    struct tess_op op;
    const struct tess_op_desc d = layer(TESS_BF16, 2, 1), f32 = layer(TESS_F32, 2, 1);
    int runs;
    begin(TESS_ATTENTION_AUTO, NULL);
    device_op_open(&device, &d, &op);
    assert_null(op.data);
    assert_int_equal(tess__cuda_settle(device.kernel, 0), 2);
    device_op_close(&op);
    end();
    begin(TESS_ATTENTION_AUTO, store);
    fake_absent = true;
    device_op_open(&device, &d, &op);
    assert_null(op.data);
    fake_absent = false;
    device_op_close(&op);
    end();
    begin(TESS_ATTENTION_AUTO, store);
    device_op_open(&device, &f32, &op);
    assert_null(op.data);
    assert_int_equal(tess__cuda_settle(device.kernel, 0), 2);
    device_op_close(&op);
    end();
    char kept[sizeof(store)];
    memcpy(kept, store, sizeof(store));
    snprintf(store, sizeof(store), "/nowhere/at/all");
    assert_false(takes_cudnn(2, 1, &runs));
    memcpy(store, kept, sizeof(store));
}

int main(void)
{
    static const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_values), cmocka_unit_test(case_own),  cmocka_unit_test(case_runs),
        cmocka_unit_test(case_fails),  cmocka_unit_test(case_auto), cmocka_unit_test(case_auto_own),
    };
    tess_log_set_level(TESS_LOG_ERROR);
    snprintf(store, sizeof(store), "attention-%d.txt", (int)getpid());
    device = (struct device){.bytes = ARENA_BYTES, .arena = aligned_alloc(64, ARENA_BYTES)};
    if (device.arena == NULL)
        return 1;
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    char lock[sizeof(store) + 8];
    snprintf(lock, sizeof(lock), "%s.lock", store);
    (void)unlink(store);
    (void)unlink(lock);
    free(device.arena);
    return failed;
}
