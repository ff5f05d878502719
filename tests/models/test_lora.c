/*
 * Adapters against PEFT: the same weights, adapters and tokens, made by a hash of name and index,
 * give the same loss of each row and the same gradients. The figures are those of lora_reference.py
 * with peft 0.21, transformers 5.24 and torch 2.15, computed in f64. And cut into parts of the
 * tensor axis they are the same.
 */
#include "harness/scratch_file.h"
#include "model_driver.h"
#include "state/model_folder.h"

#include "tessera/log.h"
#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 2, LENGTH = 24, VOCABULARY = 40 };

#define GPT2                                                                                       \
    "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 24, \"n_positions\": "   \
    "24, \"vocab_size\": 40, \"layer_norm_epsilon\": 1e-3"
#define SHAPE                                                                                      \
    "\"num_hidden_layers\": 2, \"hidden_size\": 24, \"num_attention_heads\": 4, "                  \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 40, \"max_position_embeddings\": 24, "     \
    "\"vocab_size\": 40, \"rms_norm_eps\": 1e-3, \"rope_theta\": 100.0"

static const struct {
    const char *config;
    int32_t rank;
    double alpha;
    const char *targets;
    double loss[ROWS], slope[2]; /* by A, by B */
} rows[] = {
    {"{\"model_type\": \"llama\", " SHAPE "}",
     3,
     6.0,
     "all",
     {89.018427161, 95.023837435},
     {0.894995771, 0.710533862}},
    {"{\"model_type\": \"llama\", " SHAPE "}",
     5,
     2.0,
     "q_proj,v_proj",
     {89.352394078, 92.951694429},
     {-0.008757379, -0.060624298}},
    {"{\"model_type\": \"qwen2\", " SHAPE "}",
     2,
     2.0,
     "k_proj,o_proj,down_proj",
     {88.363224773, 93.370027132},
     {-0.652589738, 0.303975705}},
    {"{\"model_type\": \"qwen3\", " SHAPE ", \"head_dim\": 10, \"tie_word_embeddings\": true}",
     4,
     4.0,
     "all",
     {94.209511259, 98.436971360},
     {-0.961781100, 0.150651481}},
    {"{" GPT2 "}", 3, 1.5, "all", {95.195218511, 94.874837069}, {0.036093889, -0.331341988}},
    {"{" GPT2 "}",
     4,
     8.0,
     "attn.c_proj,c_fc",
     {97.553354437, 96.900624356},
     {-0.433956093, -0.110961178}},
};

static const char *lora_kernel = "ref";

/* See hashed() in lora_reference.py. */
static double lora_hash(const char *name, const char *tail, int64_t i)
{
    uint32_t seed = 2166136261u, x;

    for (const char *c = name; *c != '\0'; c++)
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    for (const char *c = tail; *c != '\0'; c++)
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    x = (uint32_t)i * 2654435761u ^ seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (double)(x ^ x >> 16) / 2147483648.0 - 1;
}

/* Parameters as their file has them, and tokens. */
static void lora_fill(struct model_driver *driver)
{
    for (int32_t p = 0; p < driver->declare.param_count; p++) {
        const struct tess_declare_param *param = &driver->declare.param[p];
        const int64_t used = tess_declare_used(param), in = param->whole.dim[1];
        const size_t length = strlen(param->name);
        const bool gain = param->whole.rank == 1 && strcmp(param->name + length - 6, "weight") == 0;
        int64_t run, from;

        for (int64_t at = 0; at < tess_shape_count(&param->shape); at += run) {
            run = tess_declare_run(param, &driver->input.axis, at, &from);
            for (int64_t i = 0; i < run && at + i < tess_shape_count(&param->shape); i++) {
                const int64_t whole = from + i;
                const int64_t place = tess_declare_turned(param)
                                          ? whole % in * param->whole.dim[0] + whole / in
                                          : whole;
                const double value = 0.3 * lora_hash(param->name, "", place) + (gain ? 1 : 0);

                driver->master[p][at + i] = whole < used ? (float)value : 0;
            }
        }
    }
    model_refresh(driver);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t t = 0; t < LENGTH; t++) {
            const int64_t i = r * (LENGTH + 1) + t, next = i + 1;

            ((int32_t *)driver->x_low)[r * LENGTH + t] =
                (int32_t)((i * i * 7 + 3 * i + 1) % VOCABULARY);
            driver->label[r * LENGTH + t] =
                (int32_t)((next * next * 7 + 3 * next + 1) % VOCABULARY);
        }
}

static void lora_open(size_t row, int32_t parts, struct model_driver *driver)
{
    const struct tess_model_input input = {
        .row = tess_shape1(LENGTH),
        .class_count = VOCABULARY,
        .dtype = TESS_F32,
        .tokens = true,
        .rows = ROWS,
        .leaf_rows = 1,
        .axis = {.parts = parts, .count = parts, .rank_count = 1},
        .lora = {.rank = rows[row].rank,
                 .scale = (float)(rows[row].alpha / rows[row].rank),
                 .targets = rows[row].targets}};
    struct tess_model_folder folder;
    char word[TESS_FOLDER_OPTIONS_MAX][128];
    const char *argument[TESS_FOLDER_OPTIONS_MAX];
    FILE *file = fopen(scratch_file, "wb");

    assert_non_null(file);
    assert_true(fputs(rows[row].config, file) >= 0);
    fclose(file);
    if (tess_model_folder_read(scratch_file, &folder) != TESS_OK)
        fail_msg("%s: %s", rows[row].config, tess_log_last_error());
    for (int32_t i = 0; i < folder.option_count; i++) {
        snprintf(word[i], sizeof(word[i]), "--%s=%s", folder.option[i].name + strlen("gpt."),
                 folder.option[i].value);
        argument[i] = word[i];
    }
    model_open_input(driver, "gpt", lora_kernel, &input, argument, folder.option_count);
}

/* The gradient of all A (0) or B (1) along the directions, and its length. */
static double lora_slope(const struct model_driver *driver, int b, double *norm_out)
{
    double slope = 0, square = 0;

    for (int32_t p = 0; p < driver->declare.param_count; p++) {
        const struct tess_declare_param *param = &driver->declare.param[p];
        int64_t run, from;

        if (strstr(param->name, b ? ".lora_B." : ".lora_A.") == NULL)
            continue;
        assert_non_null(driver->grad[p]);
        for (int64_t at = 0; at < tess_shape_count(&param->shape); at += run) {
            run = tess_declare_run(param, &driver->input.axis, at, &from);
            for (int64_t i = 0; i < run && at + i < tess_shape_count(&param->shape); i++) {
                const double g = driver->grad[p][at + i];

                slope += g * lora_hash(param->name, ".direction", from + i);
                square += g * g;
            }
        }
    }
    *norm_out = sqrt(square);
    return slope;
}

/*
 * A loss is a sum over 24 positions of numbers of some 5, each rounded to f32 at the end of a chain
 * of some hundred operations: as in test_gpt_reference. Gradients are off by as many roundings of
 * their own size; a slope by no more than their length times that of the directions, of which there
 * are less than 4000 of a third in square.
 */
static void lora_check(size_t row, int32_t parts)
{
    struct model_driver driver;

    lora_open(row, parts, &driver);
    lora_fill(&driver);
    model_forward(&driver);
    model_backward(&driver);
    for (int r = 0; r < ROWS; r++) {
        const double wanted = rows[row].loss[r], apart = fabs((double)driver.loss[r] - wanted);

        if (!(apart < 3 * 10 * 0x1p-24 * 5 * LENGTH))
            fail_msg("%s, %d parts: row %d has loss %.9g, by PEFT %.9g", rows[row].config, parts, r,
                     (double)driver.loss[r], wanted);
    }
    for (int b = 0; b < 2; b++) {
        double norm;
        const double slope = lora_slope(&driver, b, &norm);
        const double apart = fabs(slope - rows[row].slope[b]);

        print_message("%zu, %d parts, %s: slope %.6f, off by %.1e, gradient %.2f\n", row, parts,
                      b ? "B" : "A", slope, apart, norm);
        if (!(apart < 3 * 10 * 0x1p-24 * norm * sqrt(4000.0 / 3)))
            fail_msg("%s, %d parts: the slope by %s is %.9g, by PEFT %.9g", rows[row].config, parts,
                     b ? "B" : "A", slope, rows[row].slope[b]);
    }
    for (int32_t p = 0; p < driver.declare.param_count; p++)
        assert_int_equal(driver.grad[p] == NULL,
                         strstr(driver.declare.param[p].name, ".lora_") == NULL);
    model_close(&driver);
}

static void case_whole(void **unused)
{
    (void)unused;
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++)
        lora_check(row, 1);
}

static void case_parts(void **unused)
{
    (void)unused;
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++)
        lora_check(row, 2);
}

static void lora_refuse(const char *targets, const char *message)
{
    const struct tess_model_input input = {.row = tess_shape1(LENGTH),
                                           .class_count = VOCABULARY,
                                           .dtype = TESS_F32,
                                           .tokens = true,
                                           .rows = ROWS,
                                           .leaf_rows = 1,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1},
                                           .lora = {.rank = 2, .scale = 1, .targets = targets}};
    const char *const argument[] = {"--style=llama"};
    const struct tess_model_ops *model;
    struct tess_declare declare = {.rows = ROWS, .leaf_rows = 1, .dtype = TESS_F32};

    assert_int_equal(tess_registry_get_model("gpt", &model), TESS_OK);
    void *options = model_read_options(model, argument, 1), *state = calloc(1, model->state_size);
    assert_non_null(state);
    assert_int_equal(tess_declare_model(&declare, model, state, options, &input), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), message));
    tess_declare_fini(&declare);
    free(options);
    free(state);
}

static void case_targets(void **unused)
{
    (void)unused;
    lora_refuse("q_proj,c_attn", "no layer 'c_attn'");
    lora_refuse("proj", "no layer 'proj'");
    lora_refuse("", "names no layer");
    lora_refuse("q_proj,,v_proj", "no layer ''");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_whole), cmocka_unit_test(case_parts),
                                       cmocka_unit_test(case_targets)};

    if (argc > 1)
        lora_kernel = argv[1];
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
