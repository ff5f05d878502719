/* The wrappers' own checks and the life of a backend, on ref; and what only `guard` does. */
#include "device.h"

#include "guard/guard.h"
#include "kernel_open.h"
#include "ref/ref.h"
#include "tessera/log.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static void case_output_size(void **state)
{
    (void)state;
    assert_int_equal(tess_op_output_size(28, 3, 1, 0), 26);
    assert_int_equal(tess_op_output_size(28, 3, 1, 1), 28);
    assert_int_equal(tess_op_output_size(32, 3, 2, 1), 16);
    assert_int_equal(tess_op_output_size(7, 2, 2, 0), 3);
    assert_int_equal(tess_op_output_size(5, 5, 1, 0), 1);
    assert_int_equal(tess_op_output_size(2, 3, 2, 0),
                     0); /* does not fit: not (2 - 3) / 2 + 1 = 1 */
}

static const struct tess_op_desc good = {.kind = TESS_OP_CONV2D,
                                         .dtype = TESS_F32,
                                         .rows = 4,
                                         .leaf_rows = 2,
                                         .in = 1,
                                         .out = 1,
                                         .height = 5,
                                         .width = 5,
                                         .window = 3,
                                         .stride = 1,
                                         .padding = 1};

/* Each refusal names its reason. */
static void case_op_check(void **state)
{
    (void)state;
    struct tess_op_desc d[10];
    for (int i = 0; i < 10; i++)
        d[i] = good;
    d[0].kind = TESS_OP_KIND_COUNT;
    d[1].dtype = TESS_F64;
    d[2].rows = 5;
    d[3].leaf_rows = 0;
    d[4].in = 0;
    d[5].out = -1;
    d[6].height = 0;
    d[7].stride = 0;
    d[8].padding = 3;
    d[9].window = 8;
    static const char *const reason[] = {"no operation", "bf16 or f16", "leaf_rows", "leaf_rows",
                                         "input",        "output",      "height",    "stride",
                                         "padding",      "does not fit"};
    char why[256] = "";
    assert_true(tess_op_check(&good, why, sizeof(why)));
    assert_string_equal(why, "");
    struct tess_op_needs needs;
    for (int i = 0; i < 10; i++) {
        assert_false(tess_op_check(&d[i], why, sizeof(why)));
        assert_non_null(strstr(why, reason[i]));
        assert_int_equal(tess_kernel_ref.op_needs(&d[i], &needs), TESS_ERR_UNSUPPORTED);
    }
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (int i = 0; i < 3; i++) {
        d[0] = good;
        d[0].dtype = dtypes[i];
        for (int f32_math = 0; f32_math < 2; f32_math++) {
            d[0].f32_math = f32_math;
            assert_true(tess_op_check(&d[0], why, sizeof(why)));
            assert_int_equal(tess_kernel_ref.op_needs(&d[0], &needs), TESS_OK);
        }
    }
    struct tess_op_desc pool = good;
    pool.kind = TESS_OP_MAX_POOL;
    pool.window = TESS_POOL_WINDOW_MAX + 1;
    pool.height = pool.width = 40;
    assert_false(tess_op_check(&pool, why, sizeof(why)));
    assert_non_null(strstr(why, "byte"));
    pool.window = TESS_POOL_WINDOW_MAX;
    assert_true(tess_op_check(&pool, why, sizeof(why)));
}

/* Of operations on sequences, the refusal shows the numbers that matter. */
static void case_sequence_check(void **state)
{
    (void)state;
    static const struct tess_op_desc attention = {.kind = TESS_OP_ATTENTION,
                                                  .rows = 4,
                                                  .leaf_rows = 2,
                                                  .in = 8,
                                                  .length = 5,
                                                  .heads = 6,
                                                  .kv_heads = 2,
                                                  .q_stride = 48,
                                                  .kv_stride = 16};
    struct tess_op_desc d[12];
    for (int i = 0; i < 12; i++)
        d[i] = attention;
    d[0].length = 0;
    d[1].heads = 0;
    d[2].kv_heads = -1;
    d[3].kv_heads = 4;
    d[4].q_stride = 47;
    d[5].kv_stride = 15;
    d[6].in = INT64_MAX; /* the product with the heads does not fit */
    d[7] = (struct tess_op_desc){.kind = TESS_OP_EMBEDDING, .leaf_rows = 1, .in = 3};
    d[8] = (struct tess_op_desc){
        .kind = TESS_OP_EMBEDDING, .leaf_rows = 1, .in = 3, .out = 2, .length = -1};
    d[9] = (struct tess_op_desc){.kind = TESS_OP_NORM, .leaf_rows = 1, .in = 3, .epsilon = -1};
    d[10] = (struct tess_op_desc){.kind = TESS_OP_NORM, .leaf_rows = 1, .in = 3, .epsilon = NAN};
    d[11].leaf_rows = 3;
    static const char *const reason[] = {"at least 1 position",
                                         "at least 1 head",
                                         "at least 1 head",
                                         "divide that",
                                         "stride",
                                         "stride",
                                         "stride",
                                         "at least 1 wide",
                                         "not be negative",
                                         "epsilon",
                                         "epsilon",
                                         "leaf_rows"};
    char why[256] = "";
    assert_true(tess_op_check(&attention, why, sizeof(why)));
    assert_string_equal(why, "");
    struct tess_op_needs needs;
    for (int i = 0; i < 12; i++) {
        assert_false(tess_op_check(&d[i], why, sizeof(why)));
        assert_non_null(strstr(why, reason[i]));
        assert_int_equal(tess_kernel_ref.op_needs(&d[i], &needs), TESS_ERR_UNSUPPORTED);
    }
    assert_false(tess_op_check(&d[4], why, sizeof(why)));
    assert_non_null(strstr(why, "heads 6 and 2 of 8, strides 47 and 16"));
}

static void case_wrong_kind(void **state)
{
    (void)state;
    struct tess_kernel *kernel;
    assert_int_equal(tess_kernel_open(&tess_kernel_ref, 0, &kernel), TESS_OK);
    assert_int_equal(kernel->threads, 1);
    struct tess_op op = {.desc = good, .kernel = kernel};
    assert_int_equal(tess_linear_forward(&op, NULL, NULL, NULL, NULL), TESS_ERR_INTERNAL);
    assert_int_equal(tess_max_pool_forward(&op, NULL, NULL, NULL), TESS_ERR_INTERNAL);
    op.desc.kind = TESS_OP_LINEAR;
    assert_int_equal(tess_conv2d_forward(&op, NULL, NULL, NULL, NULL), TESS_ERR_INTERNAL);
    assert_int_equal(tess_norm_forward(&op, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
                     TESS_ERR_INTERNAL);
    assert_int_equal(tess_attention_forward(&op, NULL, NULL, NULL, NULL, NULL), TESS_ERR_INTERNAL);
    assert_int_equal(tess_embedding_forward(&op, NULL, 0, NULL, NULL, NULL), TESS_ERR_INTERNAL);
    tess_kernel_close(kernel);
    tess_kernel_close(NULL);
}

/* Empty OPTIONAL slots are filled in by open, so that callers need not ask. */
static void case_defaults(void **state)
{
    (void)state;
    struct tess_kernel_ops bare = tess_kernel_ref;
    bare.supports = NULL;
    bare.state_size = 100;
    struct tess_kernel *kernel;
    char why[256], memory[1] = {7};
    assert_int_equal(tess_kernel_open(&bare, 3, &kernel), TESS_OK);
    assert_int_equal(kernel->threads, 3);
    assert_true(kernel->ops->supports(&good, why, sizeof(why)));
    assert_int_equal(kernel->ops->adopt(kernel, memory, 1), TESS_OK);
    kernel->ops->access(kernel, true);
    kernel->ops->access(kernel, false);
    kernel->ops->disown(kernel, memory, 1);
    assert_int_equal(memory[0], 7);
    for (int i = 0; i < 100; i++)
        assert_int_equal(((char *)kernel->state)[i], 0);
    tess_kernel_close(kernel);
}

static void plus(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                 const void *b, void *y)
{
    (void)kernel, (void)dtype, (void)count, (void)a, (void)b;
    *(float *)y = 7;
}

/* What a backend has no slot for is ref's. */
static void case_delegates(void **state)
{
    (void)state;
    const struct tess_kernel_ops bare = {.name = "bare", .add = plus};
    struct tess_kernel *kernel;
    float x[2] = {1, -1}, y[2] = {5, 5};
    assert_int_equal(tess_kernel_open(&bare, 1, &kernel), TESS_OK);
#define SAME_SLOT(slot)                                                                            \
    assert_true(kernel->ops->slot == (bare.slot ? bare.slot : tess_kernel_ref.slot));
    TESS_OPERATION_LIST(SAME_SLOT)
#undef SAME_SLOT
    tess_relu_forward(kernel, TESS_F32, 2, x, y);
    assert_true(y[0] == 1 && y[1] == 0);
    tess_add(kernel, TESS_F32, 2, x, x, y);
    assert_true(y[0] == 7);
    assert_int_equal(kernel->ops->failed(kernel), TESS_OK);
    tess_kernel_close(kernel);
}

/* Far memory is out of ref's reach: an operation without a slot is an error, once it is called. */
static void case_lacks(void **state)
{
    (void)state;
    struct tess_kernel_ops far = {.name = "far", .far_memory = true, .add = plus};
    struct tess_kernel *kernel;
    float x[2] = {1, -1}, y[2] = {5, 5};
    assert_int_equal(tess_kernel_open(&far, 1, &kernel), TESS_OK);
    tess_add(kernel, TESS_F32, 2, x, x, y);
    assert_true(y[0] == 7);
    tess_relu_forward(kernel, TESS_F32, 0, x, y);
    assert_int_equal(kernel->ops->failed(kernel), TESS_OK);
    tess_relu_forward(kernel, TESS_F32, 2, x, y);
    assert_true(y[0] == 7);
    assert_int_equal(kernel->ops->failed(kernel), TESS_ERR_UNSUPPORTED);
    assert_non_null(strstr(tess_log_last_error(), "relu_forward"));
    struct tess_op op = {.desc = good, .kernel = kernel};
    assert_int_equal(tess_conv2d_forward(&op, NULL, NULL, NULL, NULL), TESS_ERR_UNSUPPORTED);
    assert_non_null(strstr(tess_log_last_error(), "conv2d_forward"));
    tess_kernel_close(kernel);
}

static enum tess_status refuse(struct tess_kernel *kernel)
{
    (void)kernel;
    return TESS_ERR_UNSUPPORTED;
}

static void case_open_fails(void **state)
{
    (void)state;
    struct tess_kernel_ops refusing = tess_kernel_ref;
    struct tess_kernel *kernel = NULL;
    refusing.open = refuse;
    assert_int_equal(tess_kernel_open(&refusing, 1, &kernel), TESS_ERR_UNSUPPORTED);
    assert_null(kernel);
}

/* ---- guard ---------------------------------------------------------------------------------- */

static char *guard_pages(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

enum touch { TOUCH_READ, TOUCH_WRITE, TOUCH_OPEN, TOUCH_NESTED, TOUCH_AFTER, TOUCH_DISOWNED };

/* In a child: touch adopted memory in one way. Returns the child's wait status. */
static int guard_touch(enum touch touch)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGSEGV, SIG_DFL); /* cmocka and the sanitizers would report it instead */
        struct tess_kernel *kernel;
        volatile char *memory = guard_pages(2 * PAGE);
        if (tess_kernel_open(&tess_kernel_guard, 1, &kernel) != TESS_OK ||
            kernel->ops->adopt(kernel, (char *)memory, 2 * PAGE) != TESS_OK)
            _exit(3);
        tess_fill(kernel, 2 * PAGE, 5, (char *)memory);
        if (touch == TOUCH_OPEN || touch == TOUCH_NESTED || touch == TOUCH_AFTER)
            kernel->ops->access(kernel, true);
        if (touch == TOUCH_NESTED) {
            kernel->ops->access(kernel, true);
            tess_fill(kernel, PAGE, 5, (char *)memory); /* an operation inside closes nothing */
            kernel->ops->access(kernel, false);
        }
        if (touch == TOUCH_AFTER)
            kernel->ops->access(kernel, false);
        if (touch == TOUCH_DISOWNED)
            kernel->ops->disown(kernel, (char *)memory, 2 * PAGE);
        if (touch == TOUCH_WRITE)
            memory[PAGE + 1] = 1;
        _exit(memory[PAGE] == 5 ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void case_guard_dies(void **state)
{
    (void)state;
    static const enum touch deadly[] = {TOUCH_READ, TOUCH_WRITE, TOUCH_AFTER};
    for (int i = 0; i < 3; i++) {
        int status = guard_touch(deadly[i]);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGSEGV);
    }
    static const enum touch allowed[] = {TOUCH_OPEN, TOUCH_NESTED, TOUCH_DISOWNED};
    for (int i = 0; i < 3; i++) {
        int status = guard_touch(allowed[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* Memory that was never written is NaN in every type; memory adopted while access is on stays open.
 */
static void case_guard_fills(void **state)
{
    (void)state;
    struct tess_kernel *kernel;
    char *memory = guard_pages(PAGE);
    assert_int_equal(tess_kernel_open(&tess_kernel_guard, 1, &kernel), TESS_OK);
    kernel->ops->access(kernel, true);
    assert_int_equal(kernel->ops->adopt(kernel, memory, PAGE), TESS_OK);
    for (int i = 0; i < PAGE; i++)
        assert_int_equal((unsigned char)memory[i], 0xff);
    kernel->ops->access(kernel, false);
    assert_int_equal(tess_find_nonfinite(kernel, TESS_F32, 10, memory), 0);
    assert_int_equal(tess_find_nonfinite(kernel, TESS_BF16, 10, memory), 0);
    assert_int_equal(tess_find_nonfinite(kernel, TESS_F16, 10, memory), 0);
    tess_kernel_close(kernel); /* opens what it protected */
    assert_int_equal((unsigned char)memory[7], 0xff);
    munmap(memory, PAGE);
}

static void case_guard_refuses(void **state)
{
    (void)state;
    struct tess_kernel *kernel;
    char *memory = guard_pages(2 * PAGE);
    assert_int_equal(tess_kernel_open(&tess_kernel_guard, 1, &kernel), TESS_OK);
    assert_int_equal(kernel->ops->adopt(kernel, memory + 64, PAGE), TESS_ERR_INTERNAL);
    assert_int_equal(kernel->ops->adopt(kernel, memory, PAGE + 64), TESS_ERR_INTERNAL);
    assert_int_equal(kernel->ops->adopt(kernel, memory, 0), TESS_OK);
    assert_int_equal(memory[0], 0);
    tess_kernel_close(kernel);
    munmap(memory, 2 * PAGE);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_output_size),    cmocka_unit_test(case_op_check),
        cmocka_unit_test(case_sequence_check), cmocka_unit_test(case_wrong_kind),
        cmocka_unit_test(case_defaults),       cmocka_unit_test(case_delegates),
        cmocka_unit_test(case_lacks),          cmocka_unit_test(case_open_fails),
        cmocka_unit_test(case_guard_dies),     cmocka_unit_test(case_guard_fills),
        cmocka_unit_test(case_guard_refuses),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
