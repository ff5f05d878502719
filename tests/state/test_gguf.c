/*
 * GGUF files: their bytes are those that gguf_reference.py has found to be right, with version 0.19
 * of the package gguf, and where Python has that package, it looks at them once more.
 */
#include "state/gguf.h"

#include "base/hash.h"
#include "harness/spawn.h"
#include "tessera/log.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { HEADS = 4, KV_HEADS = 2, WIDTH = 32, FFN = 64, WORDS = 40, LAYERS = 2, CONTEXT = 16 };

#define LLAMA                                                                                      \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 32, "                  \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "                    \
    "\"intermediate_size\": 64, \"max_position_embeddings\": 16, \"vocab_size\": 40, "             \
    "\"rms_norm_eps\": 1e-4, \"rope_theta\": 500.0}"
#define GPT2                                                                                       \
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 32, \"n_inner\": 64, "  \
    "\"n_positions\": 16, \"vocab_size\": 40, \"layer_norm_epsilon\": 1e-5}"

static char folder[] = "/tmp/tessera_gguf_XXXXXX";

static const struct {
    const char *file, *config;
    enum tess_gguf_type type;
    uint64_t hash;
} files[] = {
    {"llama-f32.gguf", LLAMA, TESS_GGUF_F32, 0xd83aee9da1d6589f},
    {"llama-f16.gguf", LLAMA, TESS_GGUF_F16, 0x2e48cc8e3baf2d30},
    {"llama-bf16.gguf", LLAMA, TESS_GGUF_BF16, 0x92285890f636de21},
    {"llama-q8_0.gguf", LLAMA, TESS_GGUF_Q8_0, 0xa823c1ce94612d7c},
    {"gpt2-f32.gguf", GPT2, TESS_GGUF_F32, 0x5f4038b617c467c1},
    {"gpt2-q8_0.gguf", GPT2, TESS_GGUF_Q8_0, 0x129a91ecfc003d0b},
};

/* See hashed() in gguf_reference.py. */
static float value(const char *name, int64_t i)
{
    uint32_t seed = 2166136261u, x;

    for (const char *c = name; *c != '\0'; c++)
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    x = (uint32_t)i * 2654435761u ^ seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (float)((double)(x ^ x >> 16) / 2147483648.0 - 1);
}

static void add(struct tess_declare *declare, const char *unit, int32_t layer, const char *name,
                int64_t rows, int64_t columns)
{
    struct tess_declare_param *param = &declare->param[declare->param_count];

    *param = (struct tess_declare_param){.index = declare->param_count++,
                                         .slice = {.axis = -1, .blocks = 1}};
    if (layer >= 0)
        snprintf(param->name, sizeof(param->name), "%s%d.%s", unit, layer, name);
    else
        snprintf(param->name, sizeof(param->name), "%s", name);
    param->whole = columns > 0 ? tess_shape2(rows, columns) : tess_shape1(rows);
    param->shape = param->whole;
}

static void add_llama(struct tess_declare *declare)
{
    add(declare, "", -1, "model.embed_tokens.weight", WORDS, WIDTH);
    for (int32_t i = 0; i < LAYERS; i++) {
        const char *unit = "model.layers.";

        add(declare, unit, i, "input_layernorm.weight", WIDTH, 0);
        add(declare, unit, i, "self_attn.q_proj.weight", WIDTH, WIDTH);
        add(declare, unit, i, "self_attn.k_proj.weight", WIDTH / 2, WIDTH);
        add(declare, unit, i, "self_attn.v_proj.weight", WIDTH / 2, WIDTH);
        add(declare, unit, i, "self_attn.o_proj.weight", WIDTH, WIDTH);
        add(declare, unit, i, "post_attention_layernorm.weight", WIDTH, 0);
        add(declare, unit, i, "mlp.gate_proj.weight", FFN, WIDTH);
        add(declare, unit, i, "mlp.up_proj.weight", FFN, WIDTH);
        add(declare, unit, i, "mlp.down_proj.weight", WIDTH, FFN);
    }
    add(declare, "", -1, "model.norm.weight", WIDTH, 0);
    add(declare, "", -1, "lm_head.weight", WORDS, WIDTH);
}

static void add_gpt2(struct tess_declare *declare)
{
    add(declare, "", -1, "wte.weight", WORDS, WIDTH);
    add(declare, "", -1, "wpe.weight", CONTEXT, WIDTH);
    for (int32_t i = 0; i < LAYERS; i++) {
        add(declare, "h.", i, "ln_1.weight", WIDTH, 0);
        add(declare, "h.", i, "ln_1.bias", WIDTH, 0);
        add(declare, "h.", i, "attn.c_attn.weight", WIDTH, 3 * WIDTH);
        add(declare, "h.", i, "attn.c_attn.bias", 3 * WIDTH, 0);
        add(declare, "h.", i, "attn.c_proj.weight", WIDTH, WIDTH);
        add(declare, "h.", i, "attn.c_proj.bias", WIDTH, 0);
        add(declare, "h.", i, "ln_2.weight", WIDTH, 0);
        add(declare, "h.", i, "ln_2.bias", WIDTH, 0);
        add(declare, "h.", i, "mlp.c_fc.weight", WIDTH, FFN);
        add(declare, "h.", i, "mlp.c_fc.bias", FFN, 0);
        add(declare, "h.", i, "mlp.c_proj.weight", FFN, WIDTH);
        add(declare, "h.", i, "mlp.c_proj.bias", WIDTH, 0);
    }
    add(declare, "", -1, "ln_f.weight", WIDTH, 0);
    add(declare, "", -1, "ln_f.bias", WIDTH, 0);
}

static struct tess_weights *open_run(bool gpt2)
{
    static struct tess_declare_param param[64];
    struct tess_declare declare = {.param = param};
    struct tess_weights *weights;
    size_t bytes;

    (gpt2 ? add_gpt2 : add_llama)(&declare);
    char *header = tess_weights_header(&declare, &bytes);
    FILE *file = fopen("run.safetensors", "wb");
    assert_non_null(file);
    assert_non_null(header);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    for (int32_t p = 0; p < declare.param_count; p++)
        for (int64_t at = 0; at < tess_shape_count(&param[p].whole); at++) {
            const float x = value(param[p].name, at);

            assert_int_equal(fwrite(&x, sizeof(x), 1, file), 1);
        }
    free(header);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(tess_weights_open("run.safetensors", &weights), TESS_OK);
    return weights;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static uint64_t hash_of(const char *path)
{
    static char bytes[1 << 20];
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    const size_t count = fread(bytes, 1, sizeof(bytes), file);
    assert_true(count < sizeof(bytes) && feof(file));
    fclose(file);
    return tess_hash_run(bytes, count, 0);
}

static void case_files(void **state)
{
    int wrong = 0;

    (void)state;
    write_text("tokenizer.json",
               "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\", "
               "[\"c\", \"d\"]]}, \"added_tokens\": [{\"id\": 1, \"content\": \"<|end|>\", "
               "\"special\": true}], \"pre_tokenizer\": {\"Regex\": \"\\\\p{N}{1,3}\"}}");
    write_text("config.json", "{\"eos_token_id\": [1, 2]}");
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        const bool gpt2 = strcmp(files[f].config, GPT2) == 0;
        const struct tess_export export = {.gpt2 = gpt2};
        struct tess_weights *weights = open_run(gpt2);
        json_t *config = json_loads(files[f].config, 0, NULL);

        if (tess_gguf_write(files[f].file, weights, &export, files[f].type, config,
                            gpt2 ? "" : ".") != TESS_OK)
            fail_msg("%s: %s", files[f].file, tess_log_last_error());
        const uint64_t hash = hash_of(files[f].file);
        print_message("%s: 0x%016" PRIx64 "\n", files[f].file, hash);
        wrong += hash != files[f].hash;
        json_decref(config);
        tess_weights_close(weights);
    }
#ifdef GGUF_SCRIPT
    char words[512] = "python3 " GGUF_SCRIPT;
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        strcat(words, " ");
        strcat(words, files[f].file);
    }
    assert_int_equal(system(words), 0);
#endif
    assert_int_equal(wrong, 0);
}

static void refuse(const char *config_text, const char *tokenizer, const char *phrase)
{
    const struct tess_export export = {.gpt2 = false};
    struct tess_weights *weights = open_run(false);
    json_t *config = json_loads(config_text, 0, NULL);

    assert_int_not_equal(
        tess_gguf_write("no.gguf", weights, &export, TESS_GGUF_F16, config, tokenizer), TESS_OK);
    if (strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("'%s' expected: %s", phrase, tess_log_last_error());
    assert_int_not_equal(access("no.gguf", F_OK), 0);
    json_decref(config);
    tess_weights_close(weights);
}

static void case_refused(void **state)
{
    (void)state;
    refuse("{\"model_type\": \"llama\", \"head_dim\": 8, \"num_attention_heads\": 4, "
           "\"num_key_value_heads\": 2, \"rope_scaling\": {\"rope_type\": \"dynamic\"}}",
           "", "scaling 'dynamic'");
    refuse("{\"model_type\": \"llama\", \"head_dim\": 8, \"num_attention_heads\": 5, "
           "\"num_key_value_heads\": 2}",
           "", "32 rows for 5 heads");
    refuse("{\"model_type\": \"mistral\", \"head_dim\": 8, \"num_attention_heads\": 4, "
           "\"num_key_value_heads\": 2, \"sliding_window\": 8, \"max_position_embeddings\": 16}",
           "", "gpt.window 8 is shorter");
    refuse("{\"model_type\": \"llama\", \"head_dim\": 8, \"num_attention_heads\": 4, "
           "\"num_key_value_heads\": 2, \"hidden_act\": \"gelu\"}",
           "", "no gate of gelu");
    write_text("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    refuse(LLAMA, ".", "type 'Unigram': only BPE");
    write_text("tokenizer.json", "{");
    refuse(LLAMA, ".", "tokenizer.json:1:");
}

static int enter(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

static int leave(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_files),
                                       cmocka_unit_test(case_refused)};

    return cmocka_run_group_tests(cases, enter, leave);
}
