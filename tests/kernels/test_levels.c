/*
 * Own kernels for AVX2 against those for AVX-512, in f32: the same operations on each element, so
 * the same bits. Both tables in one process; skipped where the processor has no AVX-512.
 */
#include "device.h"

#include <stdio.h>

#if defined(__x86_64__)
#include "cpu/cpu.h"

#define LEAF_ROWS 5
#define LEAVES    3
#define ROWS      (LEAF_ROWS * LEAVES)
#define SCRATCH   ((size_t)8 << 20)
#define RESULT    ((int64_t)1 << 18) /* elements of one array */

static const struct cpu_own *const level[] = {&tess__cpu_v3_own, &tess__cpu_v4_own};
static struct device device;

static float *drawn(uint64_t seed)
{
    struct draw draw = {seed};
    float *x = device_array(&device, (size_t)RESULT * sizeof(*x));
    for (int64_t i = 0; i < RESULT; i++)
        x[i] = (float)draw_real(&draw, TESS_F32);
    return x;
}

/* Runs with both tables; all that they leave in `results` arrays. */
typedef void level_run(const struct cpu_own *own, const struct tess_op_desc *desc, void *scratch,
                       float *const in[5], float *const out[4]);

static void compare(const char *what, level_run *run, const struct tess_op_desc *desc)
{
    float *in[5], *out[2][4];
    device_reset(&device);
    for (int i = 0; i < 5; i++)
        in[i] = drawn((uint64_t)i + 1);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 2; l++)
            out[l][i] = device_array(&device, (size_t)RESULT * sizeof(float));
    void *scratch = device_array(&device, SCRATCH);
    for (int l = 0; l < 2; l++)
        run(level[l], desc, scratch, in, out[l]);
    assert_true(out[0][0][0] == out[0][0][0]); /* something is there, and no NaN */
    for (int i = 0; i < 4; i++)
        check_bytes(what, out[0][i], out[1][i], (size_t)RESULT * sizeof(float));
}

static void run_linear(const struct cpu_own *own, const struct tess_op_desc *desc, void *scratch,
                       float *const in[5], float *const out[4])
{
    const struct tess_kernel *kernel = device.kernel;
    assert_true(own->forward_scratch(desc) <= SCRATCH && own->data_scratch(desc) <= SCRATCH);
    assert_true(own->grad_shared(desc) + own->grad_scratch(desc) <= SCRATCH);
    own->forward(kernel, desc, in[0], in[1], in[2], out[0], scratch);
    own->data(kernel, desc, in[3], in[1], out[1], scratch);
    own->grad(kernel, desc, in[0], in[3], out[2], NULL, scratch);
}

static void case_linear(void **state)
{
    (void)state;
    struct draw draw = draw_shapes(11);
    for (int i = 0; i < 12; i++) {
        const int64_t most = i < 6 ? 40 : 300;
        const struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                          .rows = ROWS,
                                          .leaf_rows = LEAF_ROWS,
                                          .in = draw_between(&draw, 1, most),
                                          .out = draw_between(&draw, 1, most),
                                          .relu = i % 2 == 0,
                                          .input_grad = true};
        compare("linear", run_linear, &desc);
    }
}

static void run_conv(const struct cpu_own *own, const struct tess_op_desc *desc, void *scratch,
                     float *const in[5], float *const out[4])
{
    const struct tess_kernel *kernel = device.kernel;
    const bool wino = own->wino_takes(desc);
    assert_true(wino == (desc->conv == TESS_CONV_F32_WINOGRAD));
    cpu_own_conv *run = wino ? own->wino : own->conv;
    cpu_own_conv_grad *grad = wino ? own->wino_grad : own->conv_grad;
    assert_true(own->wino_scratch(desc) + own->wino_weights(desc) <= SCRATCH);
    assert_true(own->conv_scratch(desc) + own->conv_weights(desc) <= SCRATCH);
    assert_true((wino ? own->wino_grad_scratch : own->conv_grad_scratch)(desc) <= SCRATCH);
    run(kernel, desc, false, in[0], in[1], in[2], out[0], scratch);
    run(kernel, desc, true, in[3], in[1], NULL, out[1], scratch);
    assert_true(own->conv_grad_takes(desc));
    grad(desc, in[0], in[3], 0, desc->out, out[2], scratch);
}

static void case_conv(void **state)
{
    (void)state;
    static const int32_t inputs[] = {1, 3, 16, 32, 48};
    struct draw draw = draw_shapes(12);
    for (int i = 0; i < 20; i++) {
        const bool wino = i >= 15;
        const struct tess_op_desc desc = {
            .kind = TESS_OP_CONV2D,
            .rows = ROWS,
            .leaf_rows = LEAF_ROWS,
            .in = wino ? 16 * (i - 14) : inputs[i % 5],
            .out = wino ? 16 * draw_between(&draw, 1, 5) : 8 * draw_between(&draw, 1, 10),
            .height = draw_between(&draw, 5, 10),
            .width = draw_between(&draw, 5, 10),
            .window = wino ? 3 : (int32_t)draw_between(&draw, 1, 3),
            .stride = wino ? 1 : (int32_t)draw_between(&draw, 1, 2),
            .padding = (int32_t)draw_between(&draw, 0, 1),
            .conv = wino ? TESS_CONV_F32_WINOGRAD : TESS_CONV_F32_DIRECT,
            .relu = i % 2 == 0,
            .input_grad = true};
        compare(wino ? "convolution by Winograd" : "convolution", run_conv, &desc);
    }
}

static void run_attention(const struct cpu_own *own, const struct tess_op_desc *desc, void *scratch,
                          float *const in[5], float *const out[4])
{
    struct tess_op op = {.desc = *desc, .kernel = device.kernel, .scratch = scratch};
    float *lse = in[4];
    assert_true(own->flash_scratch(desc) <= SCRATCH);
    own->flash(&op, in[0], in[1], in[2], out[0], lse);
    own->flash_grad(&op, &(struct cpu_flash_grad){.q = in[0],
                                                  .k = in[1],
                                                  .v = in[2],
                                                  .y = out[0],
                                                  .dy = in[3],
                                                  .lse = lse,
                                                  .dq = out[1],
                                                  .dk = out[2],
                                                  .dv = out[3]});
}

static void case_attention(void **state)
{
    (void)state;
    struct draw draw = draw_shapes(13);
    for (int i = 0; i < 12; i++) {
        const int64_t size = 8 * draw_between(&draw, 1, 9), kv_heads = draw_between(&draw, 1, 2);
        const int64_t heads = kv_heads * draw_between(&draw, 1, 2);
        const struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                          .rows = 3,
                                          .leaf_rows = 1,
                                          .in = size,
                                          .out = size,
                                          .length = draw_between(&draw, 1, 180),
                                          .heads = (int32_t)heads,
                                          .kv_heads = (int32_t)kv_heads,
                                          .q_stride = heads * size,
                                          .kv_stride = kv_heads * size};
        compare("attention", run_attention, &desc);
    }
}

int main(void)
{
    if (tess__cpu_loops_best() != &tess__cpu_loops_v4 ||
        tess__cpu_own(TESS_F32) != &tess__cpu_v4_own) {
        fprintf(stderr, "skipped: this processor, or its system, has no AVX-512\n");
        return 77;
    }
    device_open(&device, "cpu", 13 * (size_t)RESULT * sizeof(float) + SCRATCH);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_linear),
        cmocka_unit_test(case_conv),
        cmocka_unit_test(case_attention),
    };
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
#else
int main(void)
{
    fprintf(stderr, "skipped: AVX-512 is x86's\n");
    return 77;
}
#endif
