/* Causal attention of one backend (argv[1]) against the definition: shapes for attention_case.h. */
#include "attention_case.h"

#include <string.h>

static struct device device;
static bool attention_few; /* ref with every access checked: slow, and its numbers are ref's */
static bool attention_cudnn;

/* leaves, leaf rows, positions, heads, key and value heads, head size. Longer than the blocks that
 * a backend may work in; the heads that GPUs have their own kernels for; a head larger than one
 * would expect; more heads of the same keys than rows of a tile. */
static const int shape[][6] = {
    {0, 1, 3, 2, 2, 4},    {1, 1, 1, 1, 1, 1},    {2, 1, 1, 2, 2, 4},   {1, 2, 2, 3, 1, 5},
    {3, 1, 7, 4, 1, 8},    {1, 2, 16, 6, 2, 16},  {1, 1, 17, 2, 2, 64}, {2, 1, 33, 4, 4, 32},
    {1, 1, 65, 2, 1, 33},  {1, 1, 130, 6, 2, 16}, {1, 1, 5, 2, 1, 300}, {1, 1, 130, 4, 2, 64},
    {2, 1, 70, 2, 1, 128}, {1, 1, 6, 80, 2, 8},
};

static struct attention_way attention_way(enum tess_dtype dtype, const int *s)
{
    return (struct attention_way){.dtype = dtype,
                                  .leaves = s[0],
                                  .leaf_rows = s[1],
                                  .length = s[2],
                                  .heads = s[3],
                                  .kv_heads = s[4],
                                  .head_size = s[5],
                                  .q_gap = 3,
                                  .spread = 1,
                                  .by_heads = attention_cudnn};
}

static void attention_all(enum tess_dtype dtype)
{
    static const double spread[] = {1, 8, 0.01};
    for (size_t i = 0; i < 3 * sizeof(shape) / sizeof(shape[0]); i++) {
        if (attention_few && i % 3 != i / 3 % 3)
            continue; /* each shape one way */
        struct attention_way way = attention_way(dtype, shape[i / 3]);
        way.packed = i % 3 == 1;
        if (i % 3 == 2) /* rows stay aligned to 16 bytes where heads are */
            way.q_gap = way.kv_gap = 8;
        way.spread = spread[i / 3 % 3];
        way.window = i % 4 == 1 ? way.length / 2 : i % 4 == 3 ? 1 + (int)i % 40 : 0;
        way.seed = 1000 + i;
        attention_run(&device, &way);
    }
}

static void attention_random(enum tess_dtype dtype)
{
    struct draw draw = draw_shapes(17);
    for (int i = 0; i < (attention_few ? 5 : 15); i++) {
        int kv = (int)draw_between(&draw, 1, 3);
        int s[] = {(int)draw_between(&draw, 1, 3),
                   (int)draw_between(&draw, 1, 2),
                   (int)draw_between(&draw, 1, 40),
                   kv * (int)draw_between(&draw, 1, 3),
                   kv,
                   (int)draw_between(&draw, 1, 40)};
        struct attention_way way = attention_way(dtype, s);
        way.packed = draw_between(&draw, 0, 1);
        way.spread = (double)draw_between(&draw, 1, 6);
        way.window = (int)draw_between(&draw, 0, 12);
        way.seed = draw_word(&draw);
        attention_run(&device, &way);
    }
}

static void case_f32(void **state)
{
    (void)state;
    attention_all(TESS_F32);
    attention_random(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    attention_all(TESS_BF16);
    attention_random(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    attention_all(TESS_F16);
    attention_random(TESS_F16);
}

/* Longer than any block of keys. */
static void case_long(void **state)
{
    (void)state;
    static const int s[] = {1, 1, 530, 2, 1, 8}, window[] = {0, 100, 515};
    for (uint64_t i = 0; i < 3; i++) {
        struct attention_way whole = attention_way(TESS_F32, s);
        struct attention_way half = attention_way(TESS_BF16, s);
        whole.spread = half.spread = 4;
        whole.seed = 37 + 2 * i;
        half.seed = 38 + 2 * i;
        whole.window = half.window = window[i];
        attention_run(&device, &whole);
        attention_run(&device, &half);
    }
}

static void case_dropout(void **state)
{
    (void)state;
    static const int s[][6] = {{2, 1, 70, 2, 1, 16},
                               {1, 2, 33, 4, 2, 5},
                               {1, 1, 200, 1, 1, 32},
                               {1, 1, 150, 2, 1, 64},
                               {1, 1, 290, 1, 1, 8}};
    static const float dropout[] = {0.1f, 0.5f, 0.9f};
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (size_t i = 0; i < sizeof(s) / sizeof(s[0]); i++)
        for (size_t k = 0; k < 3; k++) {
            struct attention_way way = attention_way(dtype[k], s[i]);
            way.dropout = dropout[(i + k) % 3];
            way.window = i == 2 ? 50 : 0;
            way.packed = k == 1;
            way.q_gap = way.kv_gap = 8;
            way.seed = 60 + 3 * i + k;
            attention_run(&device, &way);
        }
}

/* Scores of plus and minus 30000: exp would overflow without the maximum taken off. */
static void case_steep(void **state)
{
    (void)state;
    static const int s[] = {1, 1, 9, 2, 1, 4};
    struct attention_way way = attention_way(TESS_F32, s);
    way.spread = 3e4;
    way.seed = 31;
    attention_run(&device, &way);
}

int main(int argc, char **argv)
{
    attention_few = strncmp(device_backend(argc, argv), "guard", 5) == 0 || TESTS_DIVISOR > 1;
    device_open(&device, device_backend(argc, argv), 16u << 20);
    attention_cudnn = argc > 2 && strcmp(argv[2], "cudnn") == 0;
    const struct tess_kernel_choices choices = {.attention = attention_cudnn ? TESS_ATTENTION_CUDNN
                                                                             : TESS_ATTENTION_OWN};
    if (device.kernel->ops->choose(device.kernel, &choices) != TESS_OK)
        return 77;
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_f32), cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_f16), cmocka_unit_test(case_steep),
                                       cmocka_unit_test(case_dropout)};
    const struct CMUnitTest long_cases[] = {cmocka_unit_test(case_long)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    if (!attention_few)
        failed += cmocka_run_group_tests(long_cases, NULL, NULL);
    device_close(&device);
    return failed;
}
