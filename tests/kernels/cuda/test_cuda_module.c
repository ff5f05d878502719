/*
 * libtessera_cuda.so where there is no device: it loads, reports why there is none, and plans all
 * the same. With a word, the machine has (by a library that stands in for it) a driver of that
 * sort:
 *
 *   test_cuda_module [none|old|empty|hidden|stub|broken]
 *
 * or no cuDNN can be opened: no_cudnn.
 */
#include "kernel_open.h"
#include "tessera/device.h"
#include "tessera/log.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* What the reason must contain, by kind of driver. */
static const struct sort {
    const char *word;
    const char *phrase[4];
} sort_table[] = {
    {"none", {"there is no NVIDIA driver", "libcuda.so.1", "nvidia-smi"}},
    {"old", {"driver is too old", "CUDA 12.2", "this build is of CUDA", "newer driver"}},
    {"empty", {"finds no GPU", "nvidia-smi"}},
    {"hidden", {"CUDA_VISIBLE_DEVICES is ''", "leaves no device", "0,1"}},
    {"stub", {"the toolkit's stub", "LD_LIBRARY_PATH"}},
    {"broken", {"are not ready", "nvidia-fabricmanager"}},
};

static const struct tess_module *cuda;
static const struct sort *sort = &sort_table[0];
static bool no_cudnn;

static void expect_reason(const char *why)
{
    for (int i = 0; i < 4 && sort->phrase[i] != NULL; i++)
        if (strstr(why, sort->phrase[i]) == NULL)
            fail_msg("'%s' does not contain '%s'", why, sort->phrase[i]);
    assert_null(strchr(why, '\n'));
}

static void case_loads(void **state)
{
    (void)state;
    assert_int_equal(tess_module_get("cuda", &cuda), TESS_OK);
    assert_int_equal(cuda->abi, TESS_ABI);
    assert_string_equal(cuda->name, "cuda");
    assert_non_null(strstr(cuda->summary, "cuBLASLt"));
    /* Nothing in it is left to chance: every slot is filled. */
    assert_true(cuda->kernel && cuda->device_count && cuda->device_info && cuda->device_select &&
                cuda->device_memory && cuda->device_usage && cuda->device_reaches &&
                cuda->comm_open && cuda->range_begin && cuda->range_end);
    cuda->range_begin("a range that no profiler records");
    cuda->range_end();
}

static void case_no_device(void **state)
{
    (void)state;
    char why[512] = "";
    assert_int_equal(cuda->device_count(why, sizeof(why)), 0);
    expect_reason(why);

    struct tess_device_info info;
    assert_int_equal(cuda->device_info(0, &info), TESS_ERR_UNSUPPORTED);
    expect_reason(tess_log_last_error());
    assert_int_equal(cuda->device_select(0, false), TESS_ERR_UNSUPPORTED);
    expect_reason(tess_log_last_error());
    assert_false(cuda->device_reaches(0, 0));
    struct tess_device_memory memory;
    assert_int_not_equal(cuda->device_memory(&memory), TESS_OK);
    struct tess_device_usage usage = {.context = 1, .workspace = 1, .comm = 1};
    cuda->device_usage(&usage);
    assert_true(usage.context == 0 && usage.workspace == 0 && usage.comm == 0);
}

/* Ranks are forked after the devices were counted, and know what was found. */
static void case_forked(void **state)
{
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char why[512] = "";
        _exit(cuda->device_count(why, sizeof(why)) == 0 && strstr(why, sort->phrase[0]) ? 0 : 1);
    }
    int ended = -1;
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(ended, 0);
}

/* ---- planning -------------------------------------------------------------------------------- */

static struct tess_kernel *planned(void)
{
    const struct tess_kernel_ops *ops = NULL;
    struct tess_kernel *kernel = NULL;
    assert_int_equal(tess_registry_get_kernel("cuda", &ops), TESS_OK);
    assert_true(ops->far_memory && !ops->host_memory);
    assert_int_equal(tess_kernel_open(ops, 1, &kernel), TESS_OK);
    /* Plans are those of a rank that computes, so there is a queue. */
    assert_non_null(kernel->queue);
    assert_ptr_equal(kernel->queue->kernel, kernel);
    return kernel;
}

/* Shapes that models are made of, in all types, and some that no kernel can compute. */
static const struct tess_op_desc desc_table[] = {
    {.kind = TESS_OP_LINEAR, .rows = 64, .leaf_rows = 16, .in = 784, .out = 128, .relu = true},
    {.kind = TESS_OP_LINEAR, .rows = 4096, .leaf_rows = 1024, .in = 768, .out = 3072, .gelu = true},
    {.kind = TESS_OP_LINEAR, .rows = 3, .leaf_rows = 1, .in = 7, .out = 5, .input_grad = true},
    {.kind = TESS_OP_LINEAR, .rows = 0, .leaf_rows = 1, .in = 7, .out = 5},
    {.kind = TESS_OP_CONV2D,
     .rows = 8,
     .leaf_rows = 4,
     .in = 3,
     .out = 32,
     .height = 28,
     .width = 28,
     .window = 3,
     .stride = 1,
     .padding = 1,
     .input_grad = true},
    {.kind = TESS_OP_CONV2D,
     .rows = 8,
     .leaf_rows = 8,
     .in = 32,
     .out = 64,
     .height = 14,
     .width = 14,
     .window = 3,
     .stride = 2,
     .padding = 1,
     .relu = true},
    {.kind = TESS_OP_MAX_POOL,
     .rows = 8,
     .leaf_rows = 4,
     .in = 32,
     .out = 32,
     .height = 28,
     .width = 28,
     .window = 2,
     .stride = 2},
    {.kind = TESS_OP_AVG_POOL,
     .rows = 8,
     .leaf_rows = 4,
     .in = 32,
     .out = 32,
     .height = 7,
     .width = 7,
     .window = 7,
     .stride = 7},
    {.kind = TESS_OP_BATCH_NORM,
     .rows = 8,
     .leaf_rows = 4,
     .in = 32,
     .out = 32,
     .height = 7,
     .width = 7,
     .epsilon = 1e-5f},
    {.kind = TESS_OP_NORM, .rows = 64, .leaf_rows = 32, .in = 768, .out = 768, .epsilon = 1e-5f},
    {.kind = TESS_OP_NORM,
     .rows = 64,
     .leaf_rows = 32,
     .in = 100,
     .out = 100,
     .rms = true,
     .epsilon = 1e-5f},
    {.kind = TESS_OP_ATTENTION,
     .rows = 256,
     .leaf_rows = 128,
     .in = 64,
     .out = 64,
     .length = 128,
     .heads = 12,
     .kv_heads = 12,
     .q_stride = 2304,
     .kv_stride = 2304},
    {.kind = TESS_OP_ATTENTION,
     .rows = 2,
     .leaf_rows = 1,
     .in = 128,
     .out = 128,
     .length = 128,
     .heads = 8,
     .kv_heads = 2,
     .q_stride = 1024,
     .kv_stride = 256},
    {.kind = TESS_OP_EMBEDDING,
     .rows = 256,
     .leaf_rows = 128,
     .in = 50257,
     .out = 768,
     .length = 128},
};

#define DESC_COUNT (sizeof(desc_table) / sizeof(desc_table[0]))

static void case_plans(void **state)
{
    (void)state;
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct tess_kernel *kernel = planned();
    for (size_t i = 0; i < DESC_COUNT; i++) {
        for (size_t t = 0; t < 3; t++) {
            struct tess_op_desc desc = desc_table[i];
            desc.dtype = dtype[t];
            char why[256] = "";
            if (!kernel->ops->supports(&desc, why, sizeof(why)))
                fail_msg("description %zu in %s: %s", i, tess_dtype_name(desc.dtype), why);
            struct tess_op_needs once = {1, 1, 1}, twice = {2, 2, 2};
            assert_int_equal(kernel->ops->op_needs(&desc, &once), TESS_OK);
            assert_int_equal(kernel->ops->op_needs(&desc, &twice), TESS_OK);
            assert_true(once.scratch_bytes == twice.scratch_bytes);
            assert_true(once.packed_bytes == twice.packed_bytes);
            assert_true(once.thread_bytes == twice.thread_bytes);
            assert_true(once.scratch_bytes < (size_t)1 << 32);
        }
    }
    struct tess_op_desc bad = desc_table[0];
    char why[256] = "";
    bad.leaf_rows = 0;
    assert_false(kernel->ops->supports(&bad, why, sizeof(why)));
    assert_string_not_equal(why, "");
    bad.kind = TESS_OP_KIND_COUNT;
    assert_false(kernel->ops->supports(&bad, why, sizeof(why)));
    tess_kernel_close(kernel);
}

static void expect_refused(enum tess_status status)
{
    assert_int_equal(status, TESS_ERR_UNSUPPORTED);
    assert_non_null(strstr(tess_log_last_error(), "kernel cuda: cannot "));
    expect_reason(tess_log_last_error());
}

static void case_refuses(void **state)
{
    (void)state;
    struct tess_kernel *kernel = planned();
    const struct tess_kernel_ops *ops = kernel->ops;
    const struct tess_queue_ops *queue = kernel->queue->ops;
    void *memory = NULL;
    char host[16] = "";
    expect_refused(ops->alloc(kernel, 4096, &memory));
    expect_refused(ops->pin(kernel, 4096, &memory));
    expect_refused(ops->adopt(kernel, host, sizeof(host)));
    expect_refused(tess_read(kernel, sizeof(host), host, host));
    expect_refused(tess_write(kernel, sizeof(host), host, host));
    expect_refused(ops->graph_begin(kernel));
    assert_null(memory);

    struct tess_queue *opened = NULL;
    struct tess_fence *fence = NULL;
    expect_refused(queue->open(kernel, &opened));
    expect_refused(queue->fence_open(kernel, &fence));
    expect_refused(queue->copy(kernel->queue, sizeof(host), host, host));
    assert_true(opened == NULL && fence == NULL);
    assert_false(queue->owns(kernel, host));

    for (size_t i = 0; i < DESC_COUNT; i++) {
        struct tess_op op = {.desc = desc_table[i], .kernel = kernel};
        expect_refused(ops->op_open(&op));
        ops->op_close(&op);
    }
    /* Nothing was queued, so nothing has failed; and what was never taken can be given back. */
    assert_int_equal(ops->failed(kernel), TESS_OK);
    ops->free(kernel, NULL);
    ops->unpin(kernel, NULL);
    ops->disown(kernel, NULL, 0);
    queue->close(NULL);
    queue->fence_close(NULL);
    tess_kernel_close(kernel);
}

/* ---- who computes convolutions --------------------------------------------------------------- */

static char described[1024];

/* Keeps the line about convolutions. */
static void keep_description(void *context, const char *text)
{
    (void)context;
    if (strncmp(text, "convolutions", strlen("convolutions")) == 0)
        snprintf(described, sizeof(described), "%s", text);
}

/* The choice is described; one that is not built in is refused, and the one before stays. */
static void case_conv(void **state)
{
    (void)state;
    struct tess_kernel *kernel = planned();
    const struct tess_kernel_ops *ops = kernel->ops;
    for (int conv = TESS_CONV_AUTO; conv <= TESS_CONV_IM2COL; conv++) {
        const struct tess_kernel_choices choices = {.conv = (enum tess_conv)conv};
        assert_int_equal(ops->choose(kernel, &choices), TESS_OK);
        ops->describe(kernel, keep_description, NULL);
        assert_string_equal(described, "convolutions: im2col and cuBLASLt");
    }
    const struct tess_kernel_choices choices = {.conv = TESS_CONV_CUDNN};
    const enum tess_status status = ops->choose(kernel, &choices);
    ops->describe(kernel, keep_description, NULL);
    if (status == TESS_OK) {
        assert_false(no_cudnn);
        assert_non_null(strstr(described, "convolutions: cuDNN 9."));
        assert_non_null(strstr(described, "im2col and cuBLASLt where it has no engine"));
    } else {
        assert_int_equal(status, TESS_ERR_UNSUPPORTED);
        assert_non_null(strstr(tess_log_last_error(), "--cuda.conv cudnn: "));
        assert_non_null(strstr(tess_log_last_error(), "install version 9"));
        assert_true(!no_cudnn || strstr(tess_log_last_error(), "/nowhere/libcudnn.so.9") != NULL);
        assert_string_equal(described, "convolutions: im2col and cuBLASLt");
    }
    tess_kernel_close(kernel);
}

static void case_comm(void **state)
{
    (void)state;
    struct tess_comm *comm = NULL;
    /* One rank has no peer, and needs no device for it; two do, before they meet. */
    const struct tess_boot boot = {
        .rank = 0, .rank_count = 2, .timeout_s = 1, .address = "127.0.0.1"};
    const struct tess_comm_choices choices = {.scratch_bytes = 1 << 20};
    assert_int_not_equal(cuda->comm_open(&boot, NULL, TESS_ORDER_CANONICAL, 1, &choices, &comm),
                         TESS_OK);
    assert_null(comm);
    assert_string_not_equal(tess_log_last_error(), "");
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_loads),   cmocka_unit_test(case_no_device),
        cmocka_unit_test(case_forked),  cmocka_unit_test(case_plans),
        cmocka_unit_test(case_refuses), cmocka_unit_test(case_comm),
        cmocka_unit_test(case_conv),
    };
    for (size_t s = 0; argc > 1 && s < sizeof(sort_table) / sizeof(sort_table[0]); s++)
        if (strcmp(sort_table[s].word, argv[1]) == 0)
            sort = &sort_table[s];
    no_cudnn = argc > 1 && strcmp(argv[1], "no_cudnn") == 0;
    char why[512] = "";
    const struct tess_module *module = tess_module_find("cuda", why, sizeof(why));
    if (module != NULL && module->device_count(why, sizeof(why)) > 0) {
        printf("there is a device\n");
        return 77;
    }
    return cmocka_run_group_tests(cases, NULL, NULL);
}
