/*
 * config.json as options: what each family's keys become, and that a key which changes the function
 * is refused with its name and value. The texts are those that transformers writes, shortened.
 */
#include "state/model_folder.h"

#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tessera_model_config_XXXXXX";

#define GPT2                                                                                       \
    "\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768, "                 \
    "\"n_positions\": 1024, \"vocab_size\": 50257"
#define LLAMA(type)                                                                                \
    "\"model_type\": \"" type "\", \"num_hidden_layers\": 2, \"num_attention_heads\": 8, "         \
    "\"num_key_value_heads\": 4, \"hidden_size\": 64, \"intermediate_size\": 160, "                \
    "\"max_position_embeddings\": 4096, \"vocab_size\": 300"

static void write_text(const char *text, size_t bytes)
{
    FILE *file = fopen("config.json", "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static enum tess_status read_text(const char *text, struct tess_model_folder *out)
{
    write_text(text, strlen(text));
    return tess_model_folder_read("config.json", out);
}

/* Is every word "name=value" or "name=value|implied" of `options` there, and nothing else? */
static void check_options(const char *text, const char *options)
{
    struct tess_model_folder model;
    char all[4096];
    int32_t count = 0;

    if (read_text(text, &model) != TESS_OK)
        fail_msg("%s: %s", text, tess_log_last_error());
    snprintf(all, sizeof(all), " %s ", options);
    for (int32_t i = 0; i < model.option_count; i++) {
        const struct tess_folder_option *option = &model.option[i];
        char word[256];

        snprintf(word, sizeof(word), " %s=%s%s%s ", option->name, option->value,
                 option->implied != NULL ? "|" : "",
                 option->implied != NULL ? option->implied : "");
        if (strstr(all, word) == NULL)
            fail_msg("'%s' is not in '%s'", word, options);
    }
    for (const char *at = options; at != NULL; at = strchr(at + 1, ' '))
        count++;
    assert_int_equal(model.option_count, count);
}

static void check_refused(const char *text, const char *phrase)
{
    struct tess_model_folder model;
    const enum tess_status status = read_text(text, &model);

    if (status != TESS_ERR_DATA || strstr(tess_log_last_error(), phrase) == NULL ||
        strstr(tess_log_last_error(), "config.json") == NULL)
        fail_msg("'%s' expected of %s: status %d, %s", phrase, text, (int)status,
                 tess_log_last_error());
}

static void case_gpt2(void **state)
{
    (void)state;
    check_options("{" GPT2 "}",
                  "gpt.style=gpt2 gpt.layers=12 gpt.heads=12 gpt.width=768 gpt.ffn=3072|0 "
                  "gpt.context=1024|0 gpt.vocab=50257|0 gpt.norm-epsilon=1.0000000000000001e-5 "
                  "gpt.gelu=tanh gpt.tied=on|auto");
    check_options("{" GPT2 ", \"n_inner\": 512, \"layer_norm_epsilon\": 0.5, "
                  "\"tie_word_embeddings\": false, \"activation_function\": \"gelu\", "
                  "\"resid_pdrop\": 0.1, \"eos_token_id\": 50256, \"scale_attn_weights\": true}",
                  "gpt.style=gpt2 gpt.layers=12 gpt.heads=12 gpt.width=768 gpt.ffn=512 "
                  "gpt.context=1024|0 gpt.vocab=50257|0 gpt.norm-epsilon=0.5 gpt.gelu=erf "
                  "gpt.tied=off");
}

#define SHAPE_ONLY                                                                                 \
    "gpt.style=llama gpt.layers=2 gpt.heads=8 gpt.kv-heads=4 gpt.width=64 gpt.ffn=160|0 "          \
    "gpt.vocab=300|0 gpt.head-size=8|0"
#define SHAPE_ACT SHAPE_ONLY " gpt.gate=silu gpt.gelu=tanh"
#define NO_WINDOW " gpt.window=0 gpt.window-from=0"
#define SHAPE     SHAPE_ACT NO_WINDOW
#define NO_BIAS   " gpt.out-bias=off gpt.mlp-bias=off"
#define PLAIN     NO_BIAS " gpt.rope-scaling=off gpt.qkv-bias=off gpt.qk-norm=off"

static void case_llama(void **state)
{
    (void)state;
    check_options("{" LLAMA("llama") "}",
                  SHAPE PLAIN " gpt.norm-epsilon=9.9999999999999995e-7 gpt.rope-base=10000.0 "
                              "gpt.tied=off|auto");
    /* As transformers wrote it before version 5, and since. */
    check_options("{" LLAMA("llama") ", \"rms_norm_eps\": 0.5, \"rope_theta\": 5e5, "
                                     "\"rope_scaling\": null, \"tie_word_embeddings\": true}",
                  SHAPE PLAIN " gpt.norm-epsilon=0.5 gpt.rope-base=500000.0 gpt.tied=on");
    check_options("{" LLAMA("mistral") ", \"rms_norm_eps\": 0.5, \"sliding_window\": null, "
                                       "\"head_dim\": 8, \"rope_parameters\": {\"rope_theta\": "
                                       "1000000, \"rope_type\": \"default\"}}",
                  SHAPE PLAIN " gpt.norm-epsilon=0.5 gpt.rope-base=1000000.0 gpt.tied=off|auto");
}

/* The four scalings, as both generations of transformers have them. */
static void case_rope(void **state)
{
#define ROPE(text) "{" LLAMA("llama") ", \"rms_norm_eps\": 0.5, " text "}"
#define REST                                                                                       \
    SHAPE NO_BIAS " gpt.qkv-bias=off gpt.qk-norm=off gpt.norm-epsilon=0.5 gpt.tied=off|auto "      \
                  "gpt.rope-base=500000.0 "
    (void)state;
    check_options(
        ROPE("\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8}"),
        REST "gpt.rope-scaling=linear gpt.rope-factor=8.0");
    check_options(ROPE("\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"dynamic\", "
                       "\"factor\": 2.0, \"partial_rotary_factor\": 1.0}"),
                  REST "gpt.rope-scaling=dynamic gpt.rope-factor=2.0 gpt.rope-context=4096");
    check_options(ROPE("\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", "
                       "\"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                       "\"original_max_position_embeddings\": 2048}"),
                  REST "gpt.rope-scaling=llama3 gpt.rope-factor=32.0 gpt.rope-context=2048 "
                       "gpt.rope-low=1.0 gpt.rope-high=4.0");
    check_options(ROPE("\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"yarn\", "
                       "\"factor\": 1.0, \"original_max_position_embeddings\": 2048}"),
                  REST "gpt.rope-scaling=yarn gpt.rope-factor=1.0 gpt.rope-context=2048 "
                       "gpt.rope-low=1.0 gpt.rope-high=32.0 gpt.rope-amplitude=1.0 "
                       "gpt.rope-whole=on");
    check_options(ROPE("\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"yarn\", "
                       "\"factor\": 4.0, \"attention_factor\": 1.5, \"beta_fast\": 8, "
                       "\"beta_slow\": 2, \"truncate\": false}"),
                  REST "gpt.rope-scaling=yarn gpt.rope-factor=4.0 gpt.rope-context=4096 "
                       "gpt.rope-low=2.0 gpt.rope-high=8.0 gpt.rope-amplitude=1.5 "
                       "gpt.rope-whole=off");
}

static void case_qwen(void **state)
{
    (void)state;
    check_options("{" LLAMA("qwen2") ", \"rms_norm_eps\": 0.5, \"use_sliding_window\": false, "
                                     "\"sliding_window\": 16, \"max_window_layers\": 1, "
                                     "\"layer_types\": [\"full_attention\"]}",
                  SHAPE NO_BIAS
                  " gpt.rope-scaling=off gpt.qkv-bias=on gpt.qk-norm=off gpt.norm-epsilon=0.5 "
                  "gpt.rope-base=10000.0 gpt.tied=off|auto");
    check_options("{" LLAMA("qwen3") ", \"rms_norm_eps\": 0.5, \"head_dim\": 8}", SHAPE NO_BIAS
                  " gpt.rope-scaling=off gpt.qkv-bias=off gpt.qk-norm=on gpt.norm-epsilon=0.5 "
                  "gpt.rope-base=10000.0 gpt.tied=off|auto");
}

/* Of Mistral all layers have the window, of Qwen those from max_window_layers on. */
static void case_window(void **state)
{
#define QWEN(text)                                                                                 \
    "{" LLAMA("qwen2") ", \"rms_norm_eps\": 0.5, \"use_sliding_window\": true" text "}"
#define QWEN_IS                                                                                    \
    REST_OF(" gpt.qkv-bias=on") " gpt.norm-epsilon=0.5 gpt.rope-base=10000.0 gpt.tied=off|auto"
#define REST_OF(bias) SHAPE_ACT NO_BIAS " gpt.rope-scaling=off gpt.qk-norm=off" bias
    (void)state;
    check_options("{" LLAMA("mistral") ", \"rms_norm_eps\": 0.5, \"sliding_window\": 16}",
                  REST_OF(" gpt.qkv-bias=off") " gpt.window=16 gpt.window-from=0 "
                                               "gpt.norm-epsilon=0.5 gpt.rope-base=10000.0 "
                                               "gpt.tied=off|auto");
    check_options("{" LLAMA("mistral") ", \"rms_norm_eps\": 0.5}",
                  REST_OF(" gpt.qkv-bias=off") " gpt.window=4096|0 gpt.window-from=0 "
                                               "gpt.norm-epsilon=0.5 gpt.rope-base=10000.0 "
                                               "gpt.tied=off|auto");
    check_options(QWEN(""), QWEN_IS " gpt.window=0 gpt.window-from=0");
    check_options(QWEN(", \"max_window_layers\": 0"),
                  QWEN_IS " gpt.window=4096|0 gpt.window-from=0");
    check_options(QWEN(", \"max_window_layers\": 1, \"sliding_window\": 9, \"layer_types\": "
                       "[\"full_attention\", \"sliding_attention\"]"),
                  QWEN_IS " gpt.window=9 gpt.window-from=1");
}

static void case_activation(void **state)
{
    static const struct {
        const char *name, *options;
    } known[] = {{"silu", "gpt.gate=silu gpt.gelu=tanh"},
                 {"gelu", "gpt.gate=gelu gpt.gelu=erf"},
                 {"gelu_new", "gpt.gate=gelu gpt.gelu=tanh"},
                 {"gelu_pytorch_tanh", "gpt.gate=gelu gpt.gelu=tanh"}};
    char text[512], options[512];
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        snprintf(text, sizeof(text),
                 "{" LLAMA("llama") ", \"rms_norm_eps\": 0.5, \"hidden_act\": \"%s\"}",
                 known[i].name);
        snprintf(options, sizeof(options),
                 SHAPE_ONLY NO_WINDOW PLAIN " gpt.norm-epsilon=0.5 gpt.rope-base=10000.0 "
                                            "gpt.tied=off|auto %s",
                 known[i].options);
        check_options(text, options);
    }
}

static void case_biases(void **state)
{
    (void)state;
    check_options("{" LLAMA("llama") ", \"rms_norm_eps\": 0.5, \"attention_bias\": true}",
                  SHAPE " gpt.out-bias=on gpt.mlp-bias=off gpt.rope-scaling=off gpt.qkv-bias=on "
                        "gpt.qk-norm=off gpt.norm-epsilon=0.5 gpt.rope-base=10000.0 "
                        "gpt.tied=off|auto");
    check_options("{" LLAMA("llama") ", \"rms_norm_eps\": 0.5, \"mlp_bias\": true}",
                  SHAPE " gpt.out-bias=off gpt.mlp-bias=on gpt.rope-scaling=off gpt.qkv-bias=off "
                        "gpt.qk-norm=off gpt.norm-epsilon=0.5 gpt.rope-base=10000.0 "
                        "gpt.tied=off|auto");
}

static void case_refused(void **state)
{
    static const struct {
        const char *text, *phrase;
    } wrong[] = {
        {"", "config.json:1: "},
        {"[1]", "expected a JSON object"},
        {"{}", "\"model_type\" is missing: expected"},
        {"{\"model_type\": \"bert\"}", "\"model_type\" is \"bert\": expected"},
        {"{\"model_type\": [\"gpt2\"]}", "\"model_type\" is [\"gpt2\"]: expected"},
        {"{\"model_type\": \"gpt2\"}", "\"n_layer\" is missing: expected a whole number"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", "\"n_layer\" is 0: expected"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1e3}", "\"n_layer\" is 1000.0: expected"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 9223372036854775807}", "\"n_layer\" is 9223"},
        {"{" GPT2 ", \"n_layer\": 2}", "\"n_layer\""},
        {"{" GPT2 ", \"activation_function\": \"relu\"}", "\"activation_function\" is \"relu\""},
        {"{" GPT2 ", \"activation_function\": 3}", "\"activation_function\" is 3: expected"},
        {"{" GPT2 ", \"layer_norm_epsilon\": 0}", "\"layer_norm_epsilon\" is 0: expected"},
        {"{" GPT2 ", \"layer_norm_epsilon\": \"1e-5\"}", "\"layer_norm_epsilon\" is \"1e-5\""},
        {"{" GPT2 ", \"tie_word_embeddings\": 1}", "\"tie_word_embeddings\" is 1: expected true"},
        {"{" GPT2 ", \"scale_attn_weights\": false}", "\"scale_attn_weights\" is false: only true"},
        {"{" GPT2 ", \"scale_attn_by_inverse_layer_idx\": true}", "only false is supported"},
        {"{" GPT2 ", \"quantization_config\": {\"bits\": 4}}",
         "\"quantization_config\" is {\"bits\":4}: an unknown key"},
        {"{" GPT2 ", \"rope_theta\": 3}", "\"rope_theta\" is 3: an unknown key"},
        {"{" LLAMA("llama") ", \"hidden_act\": \"relu\"}", "\"hidden_act\" is \"relu\": expected"},
        {"{" LLAMA("qwen2") ", \"mlp_bias\": true}", "\"mlp_bias\" is true: only false"},
        {"{" LLAMA("qwen2") ", \"attention_bias\": true}", "\"attention_bias\" is true"},
        {"{" LLAMA("llama") ", \"attention_bias\": 1}", "\"attention_bias\" is 1: expected true"},
        {"{" LLAMA("llama") ", \"rope_theta\": -1}", "\"rope_theta\" is -1: expected"},
        {"{" LLAMA("llama") ", \"rope_scaling\": 8}", "\"rope_scaling\" is 8: expected an object"},
        {"{" LLAMA("llama") ", \"rope_scaling\": {\"type\": \"longrope\"}}",
         "\"rope_scaling\" is {\"type\":\"longrope\"}"},
        {"{" LLAMA("llama") ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
         "\"rope_parameters\" is {\"partial_rotary_factor\":0.5}"},
        {"{" LLAMA("llama") ", \"rope_scaling\": {\"type\": \"linear\"}}",
         "\"rope_scaling\" is {\"type\":\"linear\"}: it has no factor"},
        {"{" LLAMA("llama") ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": \"2\"}}",
         "it has no factor"},
        {"{" LLAMA("llama") ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2}}",
         "\"low_freq_factor\" is missing: expected"},
        {"{" LLAMA("llama") ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, "
                            "\"beta_fast\": 2}}",
         "a key that is not known for its type"},
        {"{" LLAMA("llama") ", \"sliding_window\": \"all\"}", "\"sliding_window\" is \"all\""},
        {"{" LLAMA("llama") ", \"sliding_window\": 16}", "\"sliding_window\" is 16: this family"},
        {"{" LLAMA("mistral") ", \"sliding_window\": 0}", "\"sliding_window\" is 0: expected"},
        {"{" LLAMA("llama") ", \"use_sliding_window\": true}",
         "\"use_sliding_window\" is true: only false"},
        {"{" LLAMA("qwen2") ", \"use_sliding_window\": true, \"max_window_layers\": -1}",
         "\"max_window_layers\" is -1: expected"},
        {"{" LLAMA("mistral") ", \"layer_types\": [\"full_attention\"]}",
         "\"layer_types\" is [\"full_attention\"]: expected"},
        {"{" LLAMA("qwen3") ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         "\"layer_types\" is [\"full_attention\",\"sliding_attention\"]: expected"},
        {"{" LLAMA("llama") ", \"head_dim\": -8}", "\"head_dim\" is -8: expected"},
        {"{" LLAMA("llama") ", \"soft_cap\": 30.0}", "\"soft_cap\" is 30.0: an unknown key"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        check_refused(wrong[i].text, wrong[i].phrase);
}

/* Cut anywhere the text is none. */
static void case_cut(void **state)
{
    static const char text[] = "{" LLAMA("llama") ", \"rope_parameters\": {\"rope_theta\": 5}}";
    struct tess_model_folder model;

    (void)state;
    for (size_t cut = 0; cut + 1 < sizeof(text); cut++) {
        write_text(text, cut);
        assert_int_equal(tess_model_folder_read("config.json", &model), TESS_ERR_DATA);
    }
    assert_int_equal(read_text(text, &model), TESS_OK);
    assert_int_equal(tess_model_folder_read("none.json", &model), TESS_ERR_IO);
}

static void case_found(void **state)
{
    char path[TESS_CHECKPOINT_PATH];

    (void)state;
    write_text("{}", 2);
    assert_true(tess_model_folder_config(".", path));
    assert_true(tess_model_folder_config("config.json", path));
    assert_string_equal(path, "./config.json");
    assert_int_equal(mkdir("other", 0777), 0);
    assert_false(tess_model_folder_config("other", path));
    assert_false(tess_model_folder_config("nowhere", path));
    assert_false(tess_model_folder_config("", path));
    assert_false(tess_model_folder_has_weights("."));
    FILE *file = fopen("other/model.safetensors.index.json", "w");
    assert_non_null(file);
    fclose(file);
    assert_true(tess_model_folder_has_weights("other"));
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    char words[128];
    (void)state;
    snprintf(words, sizeof(words), "rm -rf %s", folder);
    return chdir("/") != 0 ? -1 : system(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_gpt2),   cmocka_unit_test(case_llama),
        cmocka_unit_test(case_rope),   cmocka_unit_test(case_qwen),
        cmocka_unit_test(case_biases), cmocka_unit_test(case_refused),
        cmocka_unit_test(case_cut),    cmocka_unit_test(case_found),
        cmocka_unit_test(case_window), cmocka_unit_test(case_activation),
    };
    return cmocka_run_group_tests_name("model config", tests, set_up, tear_down);
}
