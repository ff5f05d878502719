/*
 * The attention kernels and the slots that choose between them, on the emulator, against the
 * definition (attention_case.h): the backend under test is ref with the slots of kernels/cuda for
 * attention in place of its own.
 */
#include "attention_case.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"

#include "cuda/slots.h"
#include "kernel_open.h"
#include "ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)64 << 20)

static struct device device;
static enum tess_status emulated_open(struct tess_kernel *kernel)
{
    kernel->queue = emulate_kernel.queue;
    return TESS_OK;
}

static void emulated_close(struct tess_kernel *kernel)
{
    (void)kernel;
}

static enum tess_status emulated_op_needs(const struct tess_op_desc *desc,
                                          struct tess_op_needs *needs_out)
{
    *needs_out = (struct tess_op_needs){0};
    return tess__cuda_attention_needs(desc, needs_out);
}

static struct tess_kernel_ops emulated_ops(void)
{
    struct tess_kernel_ops ops = tess_kernel_ref;
    ops.name = "emulated";
    ops.open = emulated_open;
    ops.close = emulated_close;
    ops.op_needs = emulated_op_needs;
    ops.attention_forward = tess__cuda_attention_forward;
    ops.attention_backward = tess__cuda_attention_backward;
    ops.attention_forward_documents = tess__cuda_attention_forward_documents;
    ops.attention_backward_documents = tess__cuda_attention_backward_documents;
    ops.attention_decode = tess__cuda_attention_decode;
    return ops;
}

/* positions, heads, key and value heads, sequences: around the tiles of 32, 64 and 128. */
static const int shape[][4] = {
    {1, 1, 1, 2},  {2, 4, 2, 1},  {17, 6, 1, 2},  {31, 1, 1, 1},  {63, 2, 2, 1},  {64, 4, 2, 1},
    {65, 2, 1, 2}, {96, 1, 1, 1}, {127, 1, 1, 1}, {128, 2, 1, 1}, {130, 2, 1, 1}, {200, 1, 1, 1},
};
#define SHAPES (sizeof(shape) / sizeof(shape[0]))

/* Every `step`th shape, in one array and with gaps by turns; `gap` 8 elements: rows stay aligned.
 */
static void run_shapes(enum tess_dtype dtype, int head_size, int gap, size_t step)
{
    static const double spread[] = {1, 8, 0.01};
    for (size_t i = step - 1; i < SHAPES; i += step) {
        struct attention_way way = {.dtype = dtype,
                                    .leaves = shape[i][3],
                                    .leaf_rows = 1,
                                    .length = shape[i][0],
                                    .heads = shape[i][1],
                                    .kv_heads = shape[i][2],
                                    .head_size = head_size,
                                    .packed = (i + (size_t)head_size / 64) % 2 == 1,
                                    .q_gap = gap,
                                    .kv_gap = 2 * gap,
                                    .spread = spread[(i + (size_t)head_size / 64) % 3],
                                    .window = i % 3 == 0   ? 0
                                              : i % 3 == 1 ? 40
                                                           : 1 + (int)i,
                                    .seed = 100 * (uint64_t)head_size + i};
        attention_run(&device, &way);
    }
}

static void case_bf16_64(void **state)
{
    (void)state;
    run_shapes(TESS_BF16, 64, 8, 1);
}

static void case_bf16_128(void **state)
{
    (void)state;
    run_shapes(TESS_BF16, 128, 8, 2);
}

/* f16 differs in its conversions alone. */
static void case_f16_64(void **state)
{
    (void)state;
    run_shapes(TESS_F16, 64, 8, 4);
}

static void case_f16_128(void **state)
{
    (void)state;
    run_shapes(TESS_F16, 128, 8, 3);
}

/* The plain kernels: f32; other heads; heads of 64 whose rows are not aligned. */
static void case_plain(void **state)
{
    (void)state;
    run_shapes(TESS_F32, 64, 3, 2);
    run_shapes(TESS_F32, 8, 1, 3);
    run_shapes(TESS_BF16, 32, 8, 2);
    run_shapes(TESS_F16, 80, 0, 3);
    run_shapes(TESS_BF16, 64, 3, 5);
}

/* Dropout in every kernel, beside a window or not; panels of 64 keys that begin in mid-tile. */
static void case_dropout(void **state)
{
    (void)state;
    static const struct {
        enum tess_dtype dtype;
        int head_size, length, heads, kv_heads, window;
        float dropout;
    } table[] = {
        {TESS_BF16, 64, 140, 2, 1, 0, 0.3f},  {TESS_BF16, 64, 100, 2, 2, 70, 0.9f},
        {TESS_F16, 64, 65, 6, 2, 0, 0.5f},    {TESS_BF16, 128, 140, 1, 1, 0, 0.2f},
        {TESS_F16, 128, 100, 2, 1, 33, 0.5f}, {TESS_F32, 64, 130, 2, 1, 0, 0.1f},
        {TESS_F32, 96, 70, 1, 1, 20, 0.5f},   {TESS_BF16, 20, 90, 2, 1, 0, 0.4f},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct attention_way way = {.dtype = table[i].dtype,
                                    .leaves = 1 + (int)i % 2,
                                    .leaf_rows = 1,
                                    .length = table[i].length,
                                    .heads = table[i].heads,
                                    .kv_heads = table[i].kv_heads,
                                    .head_size = table[i].head_size,
                                    .packed = i % 2 == 0,
                                    .q_gap = 8,
                                    .kv_gap = 16,
                                    .spread = 1,
                                    .window = table[i].window,
                                    .dropout = table[i].dropout,
                                    .seed = 400 + i};
        attention_run(&device, &way);
    }
}

/* Wider than the columns a block makes; no multiple of anything. */
static void case_wide(void **state)
{
    (void)state;
    static const int size[] = {1, 33, 129, 300};
    for (int i = 0; i < 4; i++) {
        struct attention_way way = {.dtype = i % 2 ? TESS_BF16 : TESS_F32,
                                    .leaves = 1,
                                    .leaf_rows = 1,
                                    .length = 37,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_size = size[i],
                                    .q_gap = 3,
                                    .kv_gap = 1,
                                    .spread = 2,
                                    .seed = 7 + (uint64_t)i};
        attention_run(&device, &way);
    }
}

/* Scores of plus and minus some thousands: exp would overflow without the maximum taken off, and
 * most of the rescaling factors are 0. */
static void case_steep(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct attention_way way = {.dtype = i == 0   ? TESS_BF16
                                             : i == 1 ? TESS_F16
                                                      : TESS_F32,
                                    .leaves = 1,
                                    .leaf_rows = 1,
                                    .length = 150,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_size = 64,
                                    .spread = 3e3,
                                    .seed = 51 + (uint64_t)i};
        attention_run(&device, &way);
    }
}

static struct tess_op_desc attention_desc(enum tess_dtype dtype, int64_t head_size,
                                          int64_t q_stride)
{
    return (struct tess_op_desc){.kind = TESS_OP_ATTENTION,
                                 .dtype = dtype,
                                 .rows = 1,
                                 .leaf_rows = 1,
                                 .length = 16,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .in = head_size,
                                 .out = head_size,
                                 .q_stride = q_stride,
                                 .kv_stride = head_size};
}

static void *zeros(size_t bytes)
{
    return memset(emulate_array(bytes, 0), 0, bytes);
}

/* Arrays that end where memory does: nothing beyond them is read, or written. */
static void run_bounds(enum tess_dtype dtype, int64_t head_size, int64_t length)
{
    struct tess_op op = {.kernel = device.kernel, .desc = attention_desc(dtype, head_size, 0)};
    struct tess_op_needs needs;
    size_t word = tess_dtype_bytes(dtype);
    op.desc.length = length;
    op.desc.heads = 2;
    op.desc.q_stride = 2 * head_size + 8;
    op.desc.kv_stride = head_size + 8;
    assert_int_equal(tess__cuda_attention_needs(&op.desc, &needs), TESS_OK);
    op.scratch = emulate_array(needs.scratch_bytes, 0);
    /* The last position has no gap. */
    size_t q_bytes = (size_t)(length * op.desc.q_stride - 8) * word;
    size_t kv_bytes = (size_t)(length * op.desc.kv_stride - 8) * word;
    size_t y_bytes = (size_t)(length * 2 * head_size) * word;
    void *q = zeros(q_bytes), *k = zeros(kv_bytes), *v = zeros(kv_bytes), *dy = zeros(y_bytes);
    void *y = emulate_array(y_bytes, 0), *dq = emulate_array(q_bytes, 0);
    void *dk = emulate_array(kv_bytes, 0), *dv = emulate_array(kv_bytes, 0);
    float *lse = emulate_array((size_t)(2 * length) * sizeof(*lse), 0);
    assert_int_equal(tess__cuda_attention_forward(&op, q, k, v, y, lse), TESS_OK);
    assert_int_equal(tess__cuda_attention_backward(&op, q, k, v, y, dy, lse, dq, dk, dv), TESS_OK);
    op.desc.rows = op.desc.leaf_rows = 1;
    op.desc.decode = true;
    assert_int_equal(tess__cuda_attention_decode(&op, length - 1, 1, q, k, v, y), TESS_OK);
    emulate_free_all();
}

static void case_bounds(void **state)
{
    (void)state;
    run_bounds(TESS_BF16, 64, 65);
    run_bounds(TESS_F16, 128, 33);
    run_bounds(TESS_F32, 64, 33);
    run_bounds(TESS_BF16, 20, 31);
}

/* Tensor cores only where rows are 16-byte aligned: a wrong choice would pass the cases above. */
static void case_choice(void **state)
{
    (void)state;
    static const struct {
        enum tess_dtype dtype;
        int64_t head_size, q_stride;
        bool fast;
    } table[] = {
        {TESS_BF16, 64, 64, true},   {TESS_F16, 128, 136, true}, {TESS_BF16, 128, 128, true},
        {TESS_BF16, 64, 67, false},  {TESS_F32, 64, 64, false},  {TESS_BF16, 32, 32, false},
        {TESS_F16, 256, 256, false},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct tess_op_desc desc =
            attention_desc(table[i].dtype, table[i].head_size, table[i].q_stride);
        assert_int_equal(tess__cuda_attention_is_fast(&desc), table[i].fast);
    }
}

/* More blocks than a grid has is refused, not cut off. */
static void case_needs(void **state)
{
    (void)state;
    struct tess_op_needs needs = {0};
    struct tess_op_desc desc = attention_desc(TESS_BF16, 64, 64);
    desc.rows = 3;
    assert_int_equal(tess__cuda_attention_needs(&desc, &needs), TESS_OK);
    assert_int_equal(needs.scratch_bytes, 3 * 16 * sizeof(float));
    desc.rows = (int64_t)1 << 31;
    assert_int_equal(tess__cuda_attention_needs(&desc, &needs), TESS_ERR_UNSUPPORTED);
    desc.rows = 1;
    desc.q_stride = (int64_t)1 << 31;
    assert_int_equal(tess__cuda_attention_needs(&desc, &needs), TESS_ERR_UNSUPPORTED);
}

int main(void)
{
    struct tess_kernel_ops ops = emulated_ops();
    device = (struct device){.bytes = ARENA_BYTES, .arena = aligned_alloc(64, ARENA_BYTES)};
    if (!device.arena || tess_kernel_open(&ops, 1, &device.kernel) != TESS_OK)
        return 1;
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_bf16_64), cmocka_unit_test(case_bf16_128),
        cmocka_unit_test(case_f16_64),  cmocka_unit_test(case_f16_128),
        cmocka_unit_test(case_plain),   cmocka_unit_test(case_dropout),
        cmocka_unit_test(case_wide),    cmocka_unit_test(case_steep),
        cmocka_unit_test(case_bounds),  cmocka_unit_test(case_choice),
        cmocka_unit_test(case_needs),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    tess_kernel_close(device.kernel);
    free(device.arena);
    return failed;
}
