/*
 * The function that config.json describes, against transformers: the same weights, made by a hash
 * of name and index, and the same tokens give the same loss of each row. The figures are those of
 * folder_reference.py with transformers 5.24 and torch 2.15, computed in f64.
 */
#include "harness/scratch_file.h"
#include "model_driver.h"
#include "state/model_folder.h"

#include "tessera/log.h"

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
    "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 24, \"n_positions\": "   \
    "24, \"vocab_size\": 40, \"layer_norm_epsilon\": 1e-3"
#define SHAPE                                                                                      \
    "\"num_hidden_layers\": 2, \"hidden_size\": 24, \"num_attention_heads\": 4, "                  \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 40, \"max_position_embeddings\": 24, "     \
    "\"vocab_size\": 40, \"rms_norm_eps\": 1e-3"

/* Sequences are longer than what the model was trained with. */
#define LONG                                                                                       \
    "\"num_hidden_layers\": 2, \"hidden_size\": 24, \"num_attention_heads\": 4, "                  \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 40, \"max_position_embeddings\": 16, "     \
    "\"vocab_size\": 40, \"rms_norm_eps\": 1e-3"

static const struct {
    const char *config;
    double loss[ROWS];
} folders[] = {
    {"{" GPT2 "}", {93.907110184, 93.544251651}},
    {"{" GPT2 ", \"activation_function\": \"gelu\"}", {93.907732020, 93.545270439}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"attention_bias\": true, \"mlp_bias\": true}",
     {90.176514102, 92.155766808}},
    {"{\"model_type\": \"qwen3\", " SHAPE ", \"head_dim\": 10, \"attention_bias\": true}",
     {95.091985815, 89.915856444}},
    {"{" GPT2 ", \"tie_word_embeddings\": false, \"n_inner\": 50}", {94.643327582, 96.957924767}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"rope_theta\": 100.0}", {89.059276999, 92.573664694}},
    {"{\"model_type\": \"mistral\", " SHAPE ", \"head_dim\": 8, \"sliding_window\": null}",
     {89.086103585, 99.563685989}},
    {"{\"model_type\": \"mistral\", " SHAPE ", \"sliding_window\": 7}",
     {89.179684486, 90.016353774}},
    {"{\"model_type\": \"qwen2\", " SHAPE ", \"use_sliding_window\": true, "
     "\"sliding_window\": 5, \"max_window_layers\": 1}",
     {88.217307019, 92.375411125}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"hidden_act\": \"gelu\"}",
     {89.683661015, 91.026862203}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"hidden_act\": \"gelu_pytorch_tanh\"}",
     {89.682891525, 91.025714488}},
    {"{\"model_type\": \"qwen2\", " SHAPE ", \"rope_theta\": 100.0}", {88.393950978, 93.450738726}},
    {"{\"model_type\": \"qwen3\", " SHAPE
     ", \"rope_theta\": 100.0, \"head_dim\": 10, \"tie_word_embeddings\": true}",
     {96.889665184, 97.535460455}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"rope_parameters\": {\"rope_theta\": 100.0, "
     "\"rope_type\": \"linear\", \"factor\": 4.0}}",
     {88.995662012, 87.463666524}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"rope_parameters\": {\"rope_theta\": 100.0, "
     "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 0.3, "
     "\"high_freq_factor\": 2.0, \"original_max_position_embeddings\": 16}}",
     {88.423454614, 90.041194420}},
    {"{\"model_type\": \"qwen3\", " SHAPE ", \"head_dim\": 12, \"rope_theta\": 100.0, "
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 3.0, \"beta_fast\": 2.0, "
     "\"beta_slow\": 0.4, \"original_max_position_embeddings\": 8}}",
     {95.738633527, 92.632331759}},
    {"{\"model_type\": \"llama\", " SHAPE ", \"rope_parameters\": {\"rope_theta\": 100.0, "
     "\"rope_type\": \"yarn\", \"factor\": 3.0, \"beta_fast\": 2.0, \"beta_slow\": 0.4, "
     "\"truncate\": false, \"mscale\": 0.7, \"mscale_all_dim\": 0.4, "
     "\"original_max_position_embeddings\": 8}}",
     {88.186378475, 90.514568886}},
    {"{\"model_type\": \"llama\", " LONG ", \"rope_parameters\": {\"rope_theta\": 100.0, "
     "\"rope_type\": \"dynamic\", \"factor\": 2.0}}",
     {88.279101829, 90.981227998}},
};

static const char *folder_kernel = "ref";

/* See weights() in folder_reference.py. */
static float folder_value(const char *name, int64_t i, bool gain)
{
    uint32_t seed = 2166136261u, x;

    for (const char *c = name; *c != '\0'; c++)
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    x = (uint32_t)i * 2654435761u ^ seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    const double value = (double)(x ^ x >> 16) / 2147483648.0 - 1;
    return (float)(gain ? 1 + 0.3 * value : 0.3 * value);
}

/* Parameters as their file has them, and tokens. */
static void folder_fill(struct model_driver *driver)
{
    for (int32_t p = 0; p < driver->declare.param_count; p++) {
        const struct tess_declare_param *param = &driver->declare.param[p];
        const struct tess_shape shape = tess_declare_file_shape(param);
        const size_t length = strlen(param->name);
        const bool gain = shape.rank == 1 && strcmp(param->name + length - 6, "weight") == 0;

        for (int64_t i = 0; i < tess_shape_count(&shape); i++) {
            const int64_t at =
                tess_declare_turned(param) ? i % shape.dim[1] * shape.dim[0] + i / shape.dim[1] : i;
            driver->master[p][at] = folder_value(param->name, i, gain);
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

static void folder_open(const char *config, struct model_driver *driver)
{
    const struct tess_model_input input = {.row = tess_shape1(LENGTH),
                                           .class_count = VOCABULARY,
                                           .dtype = TESS_F32,
                                           .tokens = true,
                                           .rows = ROWS,
                                           .leaf_rows = 1,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1}};
    struct tess_model_folder folder;
    char word[TESS_FOLDER_OPTIONS_MAX][128];
    const char *argument[TESS_FOLDER_OPTIONS_MAX];
    FILE *file = fopen(scratch_file, "wb");

    assert_non_null(file);
    assert_true(fputs(config, file) >= 0);
    fclose(file);
    if (tess_model_folder_read(scratch_file, &folder) != TESS_OK)
        fail_msg("%s: %s", config, tess_log_last_error());
    for (int32_t i = 0; i < folder.option_count; i++) {
        snprintf(word[i], sizeof(word[i]), "--%s=%s", folder.option[i].name + strlen("gpt."),
                 folder.option[i].value);
        argument[i] = word[i];
    }
    model_open_input(driver, "gpt", folder_kernel, &input, argument, folder.option_count);
}

/* A loss is a sum over 24 positions of numbers of some 5, each rounded to f32 at the end of a chain
 * of some hundred operations: as in test_gpt_reference. transformers' angles are off by up to 24
 * 2^-24 besides, which is less than the chain's 100. */
static void case_losses(void **unused)
{
    (void)unused;
    for (size_t f = 0; f < sizeof(folders) / sizeof(folders[0]); f++) {
        struct model_driver driver;

        folder_open(folders[f].config, &driver);
        folder_fill(&driver);
        model_forward(&driver);
        for (int r = 0; r < ROWS; r++) {
            const double wanted = folders[f].loss[r], apart = fabs((double)driver.loss[r] - wanted);

            print_message("%zu, row %d: loss %.6f, off by %.1e\n", f, r, (double)driver.loss[r],
                          apart);
            if (!(apart < 3 * 10 * 0x1p-24 * 5 * LENGTH))
                fail_msg("%s: row %d has loss %.9g, in transformers %.9g", folders[f].config, r,
                         (double)driver.loss[r], wanted);
        }
        model_close(&driver);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_losses)};

    if (argc > 1)
        folder_kernel = argv[1];
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
