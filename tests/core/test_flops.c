/* Operations of a step against counts by hand, and the table of peaks against datasheets' names. */
#include "core/flops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct tess_flops flops_of(const struct tess_op_desc *desc)
{
    struct tess_flops flops = {.product = 0};

    tess_flops_add(desc, &flops);
    return flops;
}

static void case_linear(void **state)
{
    struct tess_op_desc desc = {
        .kind = TESS_OP_LINEAR, .rows = 5, .in = 7, .out = 3, .input_grad = true};

    (void)state;
    /* 2 x 5 x 7 x 3 = 210 forward, 420 backward. */
    assert_true(flops_of(&desc).product == 630);
    desc.input_grad = false; /* no gradient by the input: 210 + 210 */
    assert_true(flops_of(&desc).product == 420);
    desc.input_grad = true;
    desc.calls = 4;
    assert_true(flops_of(&desc).product == 2520);
    desc.add_grad = true; /* the gradient of an operation that is counted already */
    assert_true(flops_of(&desc).product == 0);
}

static void case_conv2d(void **state)
{
    /* 9 x 9, window 3, stride 2, padding 1: 5 x 5 places. 2 x 2 x 25 x 9 x 4 x 8 = 28,800. */
    const struct tess_op_desc desc = {.kind = TESS_OP_CONV2D,
                                      .rows = 2,
                                      .in = 4,
                                      .out = 8,
                                      .height = 9,
                                      .width = 9,
                                      .window = 3,
                                      .stride = 2,
                                      .padding = 1,
                                      .input_grad = true};

    (void)state;
    assert_true(flops_of(&desc).product == 3 * 28800);
    assert_true(flops_of(&desc).attention == 0);
}

static void case_attention(void **state)
{
    /* 2 sequences of 4 positions, 3 heads of 5: q k^T is 2 x 4 x 4 x 5 = 160 for each head and
     * sequence, p v as much: 6 x 320 = 1,920 forward, twice that backward. */
    const struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                      .rows = 2,
                                      .length = 4,
                                      .in = 5,
                                      .out = 5,
                                      .heads = 3,
                                      .kv_heads = 1,
                                      .input_grad = true};
    struct tess_flops flops = flops_of(&desc);

    (void)state;
    assert_true(flops.attention == 5760);
    assert_true(flops.product == 0);
    assert_true(tess_flops_causal(&flops) == 2880);
    /* 12 L H Q T a token (PaLM, appendix B): 12 x 1 x 3 x 5 x 4 x (2 x 4 tokens) */
    assert_true(flops.attention == 12.0 * 3 * 5 * 4 * 8);

    /* A window of 2: 1 + 2 + 2 + 2 pairs of positions, which is half of 16 - (4 - 2)^2 and of 2
     * more on the diagonal, as the whole has 10 of 16. */
    struct tess_op_desc window = desc;
    window.window = 2;
    flops = flops_of(&window);
    assert_true(flops.attention == 5760.0 * 12 / 16);
    window.window = 4;
    flops = flops_of(&window);
    assert_true(flops.attention == 5760);
}

/* Packed samples: each document is a square by itself. */
static void case_packed(void **state)
{
    char *argv[] = {"--model",       "gpt",  "--gpt.layers",   "2",    "--gpt.heads",  "2",
                    "--gpt.width",   "8",    "--gpt.context",  "4096", "--data",       "text",
                    "--data.length", "4096", "--data.packing", "on",   "--batch-size", "2",
                    "--device",      "cpu"};
    struct tess_config *config = NULL;
    struct tess_dataset *dataset = NULL;
    struct tess_flops flops = {.product = 0}, whole = {.product = 0};
    double squares = 0;
    int32_t begin[4097];

    (void)state;
    assert_int_equal(tess_config_open(COUNT(argv), argv, NULL, 0, &config), TESS_OK);
    assert_int_equal(tess_dataset_open_packed("text", NULL, 0.1, 4096, &dataset), TESS_OK);
    assert_int_equal(tess_flops_count(config, dataset, &flops), TESS_OK);
    const int64_t samples = dataset->train.count < 256 ? dataset->train.count : 256;
    for (int64_t s = 0; s < samples; s++) {
        const int32_t count = tess_dataset_documents(dataset, &dataset->train, s, begin);
        begin[count] = 4096;
        for (int32_t d = 0; d < count; d++)
            squares += (double)(begin[d + 1] - begin[d]) * (begin[d + 1] - begin[d]);
    }
    assert_true(squares < 0.5 * (double)samples * 4096 * 4096);
    assert_true(fabs(flops.attention / (12 * 2 * 8 * squares / (double)samples) - 1) < 1e-12);
    dataset->packs = false;
    assert_int_equal(tess_flops_count(config, dataset, &whole), TESS_OK);
    assert_true(whole.attention == 12.0 * 2 * 8 * 4096 * 4096 && whole.product == flops.product);
    tess_dataset_close(dataset);
    tess_config_close(config);
}

/* GPT-2 124M (Radford et al. 2019) at 1024 positions, by hand and a token:
 *
 *   weights of a block  768 x 2304 + 768 x 768 + 2 x 768 x 3072 = 7,077,888, twelve of them
 *   head                768 x 50,304: the vocabulary of 50,257 padded to a multiple of 64
 *   products            6 x (84,934,656 + 38,633,472) = 741,408,768
 *   attention           12 L H Q T = 12 x 12 x 768 x 1024 = 113,246,208
 *   PaLM                6 x 124,439,808 + 113,246,208 = 859,885,056
 */
static void case_gpt2(void **state)
{
    char *argv[] = {
        "--model",          "gpt", "--gpt.layers",  "12",        "--gpt.heads",   "12",
        "--gpt.width",      "768", "--gpt.context", "1024",      "--gpt.vocab",   "50257",
        "--gpt.dropout",    "0",   "--data",        "synthetic", "--data.length", "1024",
        "--synthetic-rows", "8",   "--batch-size",  "2",         "--device",      "cpu"};
    struct tess_config *config = NULL;
    struct tess_dataset *dataset = NULL;
    struct tess_flops flops = {.product = 0};

    (void)state;
    assert_int_equal(tess_config_open(COUNT(argv), argv, NULL, 0, &config), TESS_OK);
    assert_int_equal(tess_dataset_open_synthetic_tokens(1024, 8, 2, 1, &dataset), TESS_OK);
    assert_int_equal(tess_flops_count(config, dataset, &flops), TESS_OK);
    assert_true(flops.tokens == 1024);
    assert_true(flops.parameters == 124439808);
    assert_true(flops.product == 1024.0 * 741408768);
    assert_true(flops.attention == 1024.0 * 113246208);
    assert_true(tess_flops_causal(&flops) == 1024.0 * (741408768 + 113246208 / 2));
    assert_true(tess_flops_palm(&flops) == 1024.0 * 859885056);
    /* llm.c reports 468,000 tokens/s on an H100 as 38 % of 989 TFLOP/s; its own formula counts the
     * embedding of positions too. */
    const double reached =
        tess_flops_utilisation(468e3 / 1024 * tess_flops_causal(&flops), 1, 989.4e12);
    assert_true(fabs(reached - 0.38) < 0.005);
    tess_dataset_close(dataset);
    tess_config_close(config);
}

static void case_utilisation(void **state)
{
    (void)state;
    assert_true(fabs(tess_flops_utilisation(800e12, 2, 1000e12) - 0.4) < 1e-12);
    assert_true(isnan(tess_flops_utilisation(800e12, 2, 0)));
    assert_true(isnan(tess_flops_utilisation(800e12, 0, 1000e12)));
    assert_true(isnan(tess_flops_utilisation(800e12, 1, NAN)));
}

static void case_peaks(void **state)
{
    /* Names as the driver gives them; dense figures. */
    static const struct {
        const char *device, *name;
        double half, memory;
    } known[] = {
        {"NVIDIA H100 80GB HBM3", "H100 SXM", 989.4e12, 3.35e12},
        {"NVIDIA H100 PCIe", "H100 PCIe", 756e12, 2.0e12},
        {"NVIDIA H100 NVL", "H100 NVL", 835.5e12, 3.9e12},
        {"NVIDIA H200", "H200", 989.4e12, 4.8e12},
        {"NVIDIA H200 NVL", "H200 NVL", 835.5e12, 4.8e12},
        {"NVIDIA A100-SXM4-40GB", "A100 40 GB", 312e12, 1.555e12},
        {"NVIDIA A100-SXM4-80GB", "A100 80 GB SXM", 312e12, 2.039e12},
        {"NVIDIA A100 80GB PCIe", "A100 80 GB PCIe", 312e12, 1.935e12},
        {"NVIDIA L40S", "L40S", 362.05e12, 0.864e12},
        {"NVIDIA B200", "B200", 2250e12, 7.7e12},
    };
    static const char *const unknown[] = {
        "NVIDIA GeForce RTX 4090",
        "NVIDIA GH200 480GB",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA L40",
        "NVIDIA GB200",
        "",
    };

    (void)state;
    for (int i = 0; i < COUNT(known); i++) {
        const struct tess_peak *peak = tess_peak_find(known[i].device);
        if (peak == NULL)
            fail_msg("%s is not known", known[i].device);
        assert_string_equal(peak->name, known[i].name);
        assert_true(fabs(peak->flops_per_s[TESS_PEAK_16] / known[i].half - 1) < 1e-12);
        assert_true(fabs(peak->memory_bytes_per_s / known[i].memory - 1) < 1e-12);
        /* tf32 has half the rate of 16 bits; f32 without tensor cores is the slowest. */
        assert_true(peak->flops_per_s[TESS_PEAK_TF32] < 0.51 * known[i].half);
        assert_true(peak->flops_per_s[TESS_PEAK_F32] < peak->flops_per_s[TESS_PEAK_TF32]);
    }
    for (int i = 0; i < COUNT(unknown); i++)
        if (tess_peak_find(unknown[i]) != NULL)
            fail_msg("%s is taken for another device", unknown[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_linear),      cmocka_unit_test(case_conv2d),
        cmocka_unit_test(case_attention),   cmocka_unit_test(case_gpt2),
        cmocka_unit_test(case_utilisation), cmocka_unit_test(case_peaks),
        cmocka_unit_test(case_packed),
    };

    return cmocka_run_group_tests_name("flops", tests, NULL, NULL);
}
