/* config.json of a model gpt that was trained here, for Hugging Face's libraries and for --model.
 */
#include "base/file.h"
#include "state/model_folder.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct write_source {
    const struct tess_folder_source *from;
    json_t *object;
    int failed; /* a key could not be set, for want of memory */
};

static const char *write_value(const struct write_source *source, const char *option)
{
    const char *value = source->from->value(source->from->context, option);
    return value != NULL ? value : "";
}

static bool write_is(const struct write_source *source, const char *option, const char *value)
{
    return strcmp(write_value(source, option), value) == 0;
}

static void write_set(struct write_source *source, const char *key, json_t *value)
{
    source->failed |= json_object_set_new(source->object, key, value);
}

/* The option's number; text of options is written as JSON has numbers. */
static void write_number(struct write_source *source, const char *key, const char *option)
{
    write_set(source, key, json_loads(write_value(source, option), JSON_DECODE_ANY, NULL));
}

/* An option's whole number; where it is 0, dimension `dim` of a tensor of the weights. */
static int64_t write_whole(const struct write_source *source, const char *option,
                           const char *tensor, int32_t dim)
{
    const int64_t number = strtoll(write_value(source, option), NULL, 10);
    return number > 0 || tensor == NULL ? number
                                        : tess_weights_dim(source->from->weights, tensor, dim);
}

static void write_gpt2(struct write_source *source)
{
    write_number(source, "n_layer", "gpt.layers");
    write_number(source, "n_head", "gpt.heads");
    write_number(source, "n_embd", "gpt.width");
    write_set(source, "n_inner",
              json_integer(write_whole(source, "gpt.ffn", "h.0.mlp.c_fc.weight", 1)));
    write_set(source, "n_positions",
              json_integer(write_whole(source, "gpt.context", "wpe.weight", 0)));
    write_set(source, "vocab_size",
              json_integer(write_whole(source, "gpt.vocab", "wte.weight", 0)));
    write_set(source, "activation_function",
              json_string(write_is(source, "gpt.gelu", "erf") ? "gelu" : "gelu_new"));
    write_number(source, "layer_norm_epsilon", "gpt.norm-epsilon");
}

static void write_rope(struct write_source *source, int64_t positions)
{
    const char *type = write_value(source, "gpt.rope-scaling");
    struct write_source scaling = {.from = source->from, .object = json_object()};
    write_number(source, "rope_theta", "gpt.rope-base");
    if (strcmp(type, "dynamic") == 0)
        positions = write_whole(source, "gpt.rope-context", NULL, 0);
    write_set(source, "max_position_embeddings", json_integer(positions));
    write_set(&scaling, "rope_type", json_string(type));
    write_number(&scaling, "factor", "gpt.rope-factor");
    if (strcmp(type, "llama3") == 0) {
        write_number(&scaling, "low_freq_factor", "gpt.rope-low");
        write_number(&scaling, "high_freq_factor", "gpt.rope-high");
        write_number(&scaling, "original_max_position_embeddings", "gpt.rope-context");
    } else if (strcmp(type, "yarn") == 0) {
        write_number(&scaling, "beta_slow", "gpt.rope-low");
        write_number(&scaling, "beta_fast", "gpt.rope-high");
        write_number(&scaling, "attention_factor", "gpt.rope-amplitude");
        write_number(&scaling, "original_max_position_embeddings", "gpt.rope-context");
        write_set(&scaling, "truncate", json_boolean(write_is(source, "gpt.rope-whole", "on")));
    }
    source->failed |= scaling.failed;
    if (strcmp(type, "off") == 0)
        json_decref(scaling.object);
    else
        write_set(source, "rope_scaling", scaling.object);
}

/* Which blocks have a window, as the family has it. */
static void write_window(struct write_source *source, const char *family)
{
    const int64_t window = write_whole(source, "gpt.window", NULL, 0);
    const bool mistral = strcmp(family, "mistral") == 0;
    if (window == 0)
        return;
    write_set(source, "sliding_window", json_integer(window));
    if (mistral)
        return;
    write_set(source, "use_sliding_window", json_true());
    write_number(source, "max_window_layers", "gpt.window-from");
}

static void write_llama(struct write_source *source, const char *family)
{
    const int64_t heads = write_whole(source, "gpt.heads", NULL, 0);
    const int64_t kv_heads = write_whole(source, "gpt.kv-heads", NULL, 0);
    const int64_t size = write_whole(source, "gpt.head-size", NULL, 0);
    const int64_t width = write_whole(source, "gpt.width", NULL, 0);
    const int64_t context = write_whole(source, "gpt.context", NULL, 0);
    write_number(source, "num_hidden_layers", "gpt.layers");
    write_set(source, "num_attention_heads", json_integer(heads));
    write_set(source, "num_key_value_heads", json_integer(kv_heads > 0 ? kv_heads : heads));
    write_set(source, "head_dim", json_integer(size > 0 ? size : width / heads));
    write_set(source, "hidden_size", json_integer(width));
    write_set(
        source, "intermediate_size",
        json_integer(write_whole(source, "gpt.ffn", "model.layers.0.mlp.gate_proj.weight", 0)));
    write_set(source, "vocab_size",
              json_integer(write_whole(source, "gpt.vocab", "model.embed_tokens.weight", 0)));
    write_set(source, "hidden_act",
              json_string(write_is(source, "gpt.gate", "silu")  ? "silu"
                          : write_is(source, "gpt.gelu", "erf") ? "gelu"
                                                                : "gelu_pytorch_tanh"));
    write_window(source, family);
    if (write_is(source, "gpt.out-bias", "on"))
        write_set(source, "attention_bias", json_true());
    if (write_is(source, "gpt.mlp-bias", "on"))
        write_set(source, "mlp_bias", json_true());
    write_number(source, "rms_norm_eps", "gpt.norm-epsilon");
    write_rope(source, context > 0 ? context : write_whole(source, "data.length", NULL, 0));
}

/* "model_type" and the class that has it; NULL: there is none. */
static const char *write_family(const struct write_source *source, const char **class_out)
{
    const bool out = write_is(source, "gpt.out-bias", "on");
    const bool mlp = write_is(source, "gpt.mlp-bias", "on");
    const bool qkv = write_is(source, "gpt.qkv-bias", "on"), bias = qkv && !out;
    const bool norm = write_is(source, "gpt.qk-norm", "on");
    const bool gpt2 = write_is(source, "gpt.style", "gpt2");
    const bool window = write_whole(source, "gpt.window", NULL, 0) > 0;
    const bool from = write_whole(source, "gpt.window-from", NULL, 0) > 0;
    *class_out = gpt2     ? "GPT2LMHeadModel"
                 : bias   ? "Qwen2ForCausalLM"
                 : norm   ? "Qwen3ForCausalLM"
                 : window ? "MistralForCausalLM"
                          : "LlamaForCausalLM";
    /* A window is Qwen's, of all blocks but the first, or Mistral's, of all and without biases. */
    if (window && (gpt2 || (!bias && !norm && (from || qkv || mlp))))
        return NULL;
    /* With qkv and out both, that is attention_bias of Llama and Qwen3; mlp_bias is Llama's. */
    if (!gpt2 && ((out && !qkv) || (mlp && (bias || norm))))
        return NULL;
    return gpt2           ? "gpt2"
           : bias && norm ? NULL
           : bias         ? "qwen2"
           : norm         ? "qwen3"
           : window       ? "mistral"
                          : "llama";
}

enum tess_status tess_model_folder_json(const struct tess_folder_source *from, json_t **config_out)
{
    struct write_source source = {.from = from, .object = json_object()};
    const char *class, *family = write_family(&source, &class);
    *config_out = NULL;
    if (family == NULL) {
        json_decref(source.object);
        return TESS_OK;
    }
    const bool gpt2 = strcmp(family, "gpt2") == 0;
    write_set(&source, "architectures", json_pack("[s]", class));
    write_set(&source, "model_type", json_string(family));
    write_set(&source, "torch_dtype", json_string(from->dtype));
    write_set(&source, "tie_word_embeddings",
              json_boolean(write_is(&source, "gpt.tied", "on") ||
                           (gpt2 && write_is(&source, "gpt.tied", "auto"))));
    if (gpt2)
        write_gpt2(&source);
    else
        write_llama(&source, family);
    if (source.failed) {
        json_decref(source.object);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to describe the model");
    }
    *config_out = source.object;
    return TESS_OK;
}

enum tess_status tess_model_folder_write(const char *folder, const struct tess_folder_source *from)
{
    char path[TESS_CHECKPOINT_PATH];
    json_t *config;
    TESS_TRY(tess_model_folder_json(from, &config));
    if (config == NULL) {
        tess_log(
            TESS_LOG_WARN,
            "%s has no config.json: no family of models has these of gpt.qkv-bias, gpt.out-bias, "
            "gpt.mlp-bias, gpt.qk-norm, gpt.window and gpt.window-from together",
            folder);
        return TESS_OK;
    }
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(config);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to describe the model of %s", folder);
    const int used = snprintf(path, sizeof(path), "%s/config.json", folder);
    const enum tess_status status =
        used < 0 || used >= (int)sizeof(path)
            ? tess_fail(TESS_ERR_USAGE, "%s: the name is too long", folder)
            : tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}
