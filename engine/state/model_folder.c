/*
 * Reading config.json, which may be anything. Keys are taken out of the object as they are
 * understood; what is left in the end is either known to be of no account or refused.
 */
#include "state/model_folder.h"

#include "state/checkpoint_file.h"
#include "tessera/check.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FOLDER_CONFIG "config.json"
#define FOLDER_WHOLE  (1 << 24) /* of numbers that count something */

/* What the families in which Llama's chain of units comes have of their own. */
struct folder_family {
    const char *name;
    bool kv_heads_needed; /* the key has no default that follows from another */
    int64_t head_size;    /* default; 0: width / heads */
    int64_t window;       /* default of sliding_window; 0: none */
    bool window_switch;   /* a window counts only where use_sliding_window is true */
    bool qkv_bias, qk_norm;
    bool attention_bias, mlp_bias; /* has the keys of these names */
};

static const struct folder_family folder_llama[] = {
    {.name = "llama", .attention_bias = true, .mlp_bias = true},
    {.name = "mistral", .kv_heads_needed = true, .window = 4096},
    {.name = "qwen2",
     .kv_heads_needed = true,
     .window = 4096,
     .window_switch = true,
     .qkv_bias = true},
    {.name = "qwen3",
     .kv_heads_needed = true,
     .head_size = 128,
     .window = 4096,
     .window_switch = true,
     .qk_norm = true,
     .attention_bias = true},
};

struct folder_reader {
    struct tess_model_folder *folder;
    json_t *object;
};

/* ---- keys ------------------------------------------------------------------------------------ */

/* A value for a message. */
static void folder_text(const json_t *value, char text[96])
{
    char *dumped = value != NULL
                       ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12))
                       : NULL;
    const char *shown = value == NULL ? "missing" : dumped != NULL ? dumped : "?";
    snprintf(text, 96, "%.80s%s", shown, strlen(shown) > 80 ? "..." : "");
    free(dumped);
}

/* TESS_ERR_DATA. value NULL: the key is missing. */
static enum tess_status folder_refuse(const struct folder_reader *reader, const char *key,
                                      const json_t *value, const char *why)
{
    char text[96];
    folder_text(value, text);
    TESS_FAIL(TESS_ERR_DATA, "%s: \"%s\" is %s: %s", reader->folder->config, key, text, why);
}

/* The value of a key, taken out of the object; a new reference, NULL: missing or null. */
static json_t *folder_take(const struct folder_reader *reader, const char *key)
{
    json_t *value = json_incref(json_object_get(reader->object, key));
    json_object_del(reader->object, key);
    if (!json_is_null(value))
        return value;
    json_decref(value);
    return NULL;
}

static struct tess_folder_option *folder_add(const struct folder_reader *reader, const char *name,
                                             const char *value, const char *key, const json_t *from)
{
    struct tess_folder_option *option = &reader->folder->option[reader->folder->option_count++];
    char text[96];
    folder_text(from, text);
    option->name = name;
    snprintf(option->value, sizeof(option->value), "%s", value);
    snprintf(option->key, sizeof(option->key), "\"%s\" is %s", key,
             from != NULL ? text : "left out, which means its default");
    return option;
}

/* A whole number of at least 1, for option `name` (NULL: none). fallback 0: the key is needed. */
static enum tess_status folder_whole(const struct folder_reader *reader, const char *key,
                                     int64_t fallback, const char *name, int64_t *number_out)
{
    json_t *value = folder_take(reader, key);
    char text[32];
    const int64_t number = value != NULL ? json_integer_value(value) : fallback;
    enum tess_status status = TESS_OK;
    if ((value != NULL && !json_is_integer(value)) || number < 1 || number > FOLDER_WHOLE)
        status = folder_refuse(reader, key, value, "expected a whole number from 1 to 16777216");
    snprintf(text, sizeof(text), "%lld", (long long)number);
    if (status == TESS_OK && name != NULL)
        folder_add(reader, name, text, key, value);
    json_decref(value);
    *number_out = number;
    return status;
}

static enum tess_status folder_real(const struct folder_reader *reader, const char *key,
                                    double fallback, const char *name)
{
    json_t *value = folder_take(reader, key), *real;
    enum tess_status status = TESS_OK;
    if (value != NULL ? !(json_number_value(value) > 0) : !(fallback > 0))
        status = folder_refuse(reader, key, value, "expected a number above 0");
    real = json_real(value != NULL ? json_number_value(value) : fallback);
    char *text = real != NULL ? json_dumps(real, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
    if (status == TESS_OK && text == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to read %s", reader->folder->config);
    if (status == TESS_OK)
        folder_add(reader, name, text, key, value);
    free(text);
    json_decref(real);
    json_decref(value);
    return status;
}

static enum tess_status folder_switch(const struct folder_reader *reader, const char *key,
                                      bool fallback, bool *on_out)
{
    json_t *value = folder_take(reader, key);
    enum tess_status status = TESS_OK;
    if (value != NULL && !json_is_boolean(value))
        status = folder_refuse(reader, key, value, "expected true or false");
    *on_out = value != NULL ? json_is_true(value) : fallback;
    json_decref(value);
    return status;
}

/* The option counts as given also where it has its `implied` value. */
static void folder_imply(const struct folder_reader *reader, bool so, const char *implied)
{
    if (so)
        reader->folder->option[reader->folder->option_count - 1].implied = implied;
}

/* ---- keys of no account ---------------------------------------------------------------------- */

/* They do not change what the trained model computes; dropout is gpt.dropout's, of each training.
 */
static const char *const folder_no_account[] = {
    "architectures",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "_name_or_path",
    "initializer_range",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "attention_dropout",
    "classifier_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "tokenizer_class",
    "n_ctx",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "finetuning_task",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "output_past",
    "torchscript",
    "use_bfloat16",
    "chunk_size_feed_forward",
    "_commit_hash",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "reorder_and_upcast_attn",
    "gradient_checkpointing",
    "pretraining_tp",
    "max_window_layers",
    "is_decoder",
    "prefix",
    "unsloth_version",
    "unsloth_fixed",
};

/* Keys that may be there with one value. */
static const struct {
    const char *key, *value;
} folder_must[] = {
    {"add_cross_attention", "false"}, {"attention_bias", "false"},
    {"is_encoder_decoder", "false"},  {"mlp_bias", "false"},
    {"pruned_heads", "{}"},           {"scale_attn_by_inverse_layer_idx", "false"},
    {"scale_attn_weights", "true"},   {"tie_encoder_decoder", "false"},
    {"use_mrope", "false"},           {"use_sliding_window", "false"},
};

static enum tess_status folder_check_rest(const struct folder_reader *reader)
{
    const char *key;
    json_t *value;
    for (size_t i = 0; i < sizeof(folder_no_account) / sizeof(folder_no_account[0]); i++)
        json_object_del(reader->object, folder_no_account[i]);
    for (size_t i = 0; i < sizeof(folder_must) / sizeof(folder_must[0]); i++) {
        char text[96], why[64];
        value = json_object_get(reader->object, folder_must[i].key);
        folder_text(value, text);
        snprintf(why, sizeof(why), "only %s is supported", folder_must[i].value);
        if (value != NULL && !json_is_null(value) && strcmp(text, folder_must[i].value) != 0)
            return folder_refuse(reader, folder_must[i].key, value, why);
        json_object_del(reader->object, folder_must[i].key);
    }
    json_object_foreach(reader->object, key, value)
    {
        if (!json_is_null(value))
            return folder_refuse(reader, key, value,
                                 "an unknown key, which may change what the model computes");
    }
    return TESS_OK;
}

/* ---- families -------------------------------------------------------------------------------- */

static enum tess_status folder_tied(const struct folder_reader *reader, bool fallback)
{
    json_t *value = json_incref(json_object_get(reader->object, "tie_word_embeddings"));
    bool tied;
    const enum tess_status status = folder_switch(reader, "tie_word_embeddings", fallback, &tied);
    if (status == TESS_OK)
        folder_add(reader, "gpt.tied", tied ? "on" : "off", "tie_word_embeddings", value);
    json_decref(value);
    TESS_TRY(status);
    folder_imply(reader, tied == fallback, "auto");
    return TESS_OK;
}

static enum tess_status folder_vocabulary(const struct folder_reader *reader)
{
    TESS_TRY(folder_whole(reader, "vocab_size", 0, "gpt.vocab", &reader->folder->vocabulary));
    folder_imply(reader, true, "0"); /* of the weights' shapes */
    return TESS_OK;
}

/* GELU by the error function, or its approximation. */
static bool folder_is_gelu(const char *name, bool *erf_out)
{
    *erf_out = name != NULL && strcmp(name, "gelu") == 0;
    return *erf_out || (name != NULL &&
                        (strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0));
}

static enum tess_status folder_read_gpt2(const struct folder_reader *reader)
{
    struct tess_model_folder *folder = reader->folder;
    int64_t width, ffn, number;
    TESS_TRY(folder_whole(reader, "n_layer", 0, "gpt.layers", &number));
    TESS_TRY(folder_whole(reader, "n_head", 0, "gpt.heads", &number));
    TESS_TRY(folder_whole(reader, "n_embd", 0, "gpt.width", &width));
    TESS_TRY(folder_whole(reader, "n_inner", 4 * width, "gpt.ffn", &ffn));
    folder_imply(reader, ffn == 4 * width, "0");
    TESS_TRY(folder_whole(reader, "n_positions", 0, "gpt.context", &folder->positions));
    folder_imply(reader, true, "0"); /* of the weights' shapes */
    TESS_TRY(folder_vocabulary(reader));
    TESS_TRY(folder_real(reader, "layer_norm_epsilon", 1e-5, "gpt.norm-epsilon"));

    json_t *value = folder_take(reader, "activation_function");
    const char *name = value != NULL ? json_string_value(value) : "gelu_new";
    bool erf;
    const enum tess_status status =
        folder_is_gelu(name, &erf) ? TESS_OK
                                   : folder_refuse(reader, "activation_function", value,
                                                   "expected gelu, gelu_new or gelu_pytorch_tanh");
    if (status == TESS_OK)
        folder_add(reader, "gpt.gelu", erf ? "erf" : "tanh", "activation_function", value);
    json_decref(value);
    TESS_TRY(status);
    return folder_tied(reader, true);
}

/* What the gate goes through. */
static enum tess_status folder_activation(const struct folder_reader *reader)
{
    json_t *value = folder_take(reader, "hidden_act");
    const char *name = value != NULL ? json_string_value(value) : "silu";
    bool erf;
    const bool gelu = folder_is_gelu(name, &erf);
    enum tess_status status = TESS_OK;
    if (!gelu && (name == NULL || strcmp(name, "silu") != 0))
        status = folder_refuse(reader, "hidden_act", value,
                               "expected silu, gelu, gelu_new or gelu_pytorch_tanh");
    if (status == TESS_OK) {
        folder_add(reader, "gpt.gate", gelu ? "gelu" : "silu", "hidden_act", value);
        folder_add(reader, "gpt.gelu", erf ? "erf" : "tanh", "hidden_act", value);
    }
    json_decref(value);
    return status;
}

/* ---- rotary positions ------------------------------------------------------------------------ */

/* The object that has a scaling's keys, for a time in the place of the whole. */
struct folder_rope {
    struct folder_reader reader;
    json_t *whole;    /* as it was, for messages */
    const char *key;  /* of the whole */
    const char *type; /* of the scaling */
};

/* The context before the scaling: within the object, or that of the model. */
static enum tess_status folder_rope_context(const struct folder_rope *rope)
{
    int64_t number;
    return folder_whole(&rope->reader, "original_max_position_embeddings",
                        rope->reader.folder->positions, "gpt.rope-context", &number);
}

static enum tess_status folder_rope_yarn(const struct folder_rope *rope)
{
    const struct folder_reader *reader = &rope->reader;
    const double factor = json_number_value(json_object_get(reader->object, "factor"));
    const double one = json_number_value(json_object_get(reader->object, "mscale"));
    const double all = json_number_value(json_object_get(reader->object, "mscale_all_dim"));
    const double grown = factor > 1 ? 0.1 * log(factor) : 0;
    const bool both = one > 0 && all > 0;
    bool whole;
    json_object_del(reader->object, "mscale");
    json_object_del(reader->object, "mscale_all_dim");
    TESS_TRY(folder_rope_context(rope));
    TESS_TRY(folder_real(reader, "beta_slow", 1, "gpt.rope-low"));
    TESS_TRY(folder_real(reader, "beta_fast", 32, "gpt.rope-high"));
    TESS_TRY(folder_real(reader, "attention_factor",
                         both ? (1 + one * grown) / (1 + all * grown) : 1 + grown,
                         "gpt.rope-amplitude"));
    TESS_TRY(folder_switch(reader, "truncate", true, &whole));
    folder_add(reader, "gpt.rope-whole", whole ? "on" : "off", rope->key, rope->whole);
    return TESS_OK;
}

static enum tess_status folder_rope_scaling(const struct folder_rope *rope)
{
    static const char *const known[] = {"linear", "dynamic", "llama3", "yarn"};
    const struct folder_reader *reader = &rope->reader;
    const char *type = rope->type;
    bool there = false;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        there = there || strcmp(known[i], type) == 0;
    if (!there)
        return folder_refuse(reader, rope->key, rope->whole,
                             "expected the type default, linear, dynamic, llama3 or yarn");
    folder_add(reader, "gpt.rope-scaling", type, rope->key, rope->whole);
    if (json_number_value(json_object_get(reader->object, "factor")) <= 0)
        return folder_refuse(reader, rope->key, rope->whole, "it has no factor");
    if (strcmp(type, "yarn") == 0)
        TESS_TRY(folder_rope_yarn(rope));
    TESS_TRY(folder_real(reader, "factor", 0, "gpt.rope-factor"));
    if (strcmp(type, "dynamic") == 0) {
        char text[32];
        snprintf(text, sizeof(text), "%lld", (long long)reader->folder->positions);
        folder_add(reader, "gpt.rope-context", text, rope->key, rope->whole);
    }
    if (strcmp(type, "llama3") != 0)
        return TESS_OK;
    TESS_TRY(folder_rope_context(rope));
    TESS_TRY(folder_real(reader, "low_freq_factor", 0, "gpt.rope-low"));
    return folder_real(reader, "high_freq_factor", 0, "gpt.rope-high");
}

/* Every key of the object, then what is left of it. */
static enum tess_status folder_rope_keys(struct folder_rope *rope)
{
    json_t *object = rope->reader.object, *one;
    const char *key;
    for (int i = 0; i < 2; i++) {
        static const char *const name[] = {"rope_type", "type"};
        const char *type = json_string_value(json_object_get(object, name[i]));
        if (type != NULL && rope->type == NULL)
            rope->type = type;
    }
    if (rope->type == NULL || strcmp(rope->type, "default") == 0)
        folder_add(&rope->reader, "gpt.rope-scaling", "off", rope->key, rope->whole);
    else
        TESS_TRY(folder_rope_scaling(rope));
    json_object_foreach(object, key, one)
    {
        const bool type = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0;
        const bool all = strcmp(key, "partial_rotary_factor") == 0 && json_number_value(one) == 1;
        if (!json_is_null(one) && !all && !(type && json_is_string(one)))
            return folder_refuse(&rope->reader, rope->key, rope->whole,
                                 "it has a key that is not known for its type");
    }
    return TESS_OK;
}

/* transformers 5 has all about rotary positions in "rope_parameters", before it they were
 * "rope_theta" and "rope_scaling". */
static enum tess_status folder_rope(const struct folder_reader *reader)
{
    struct folder_rope rope = {.key = "rope_parameters"};
    rope.whole = folder_take(reader, rope.key);
    if (rope.whole == NULL) {
        rope.key = "rope_scaling";
        rope.whole = folder_take(reader, rope.key);
    }
    if (rope.whole != NULL && !json_is_object(rope.whole)) {
        const enum tess_status status =
            folder_refuse(reader, rope.key, rope.whole, "expected an object");
        json_decref(rope.whole);
        return status;
    }
    rope.reader = (struct folder_reader){.folder = reader->folder,
                                         .object = rope.whole != NULL ? json_copy(rope.whole)
                                                                      : json_object()};
    json_t *theta = json_object_get(rope.reader.object, "rope_theta");
    if (theta != NULL)
        json_object_set(reader->object, "rope_theta", theta);
    json_object_del(rope.reader.object, "rope_theta");
    const enum tess_status status = folder_rope_keys(&rope);
    json_decref(rope.reader.object);
    json_decref(rope.whole);
    TESS_TRY(status);
    return folder_real(reader, "rope_theta", 10000, "gpt.rope-base");
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The blocks before the first that has a window, by the list of what each attends to; -1: the list
 * is something else. */
static int64_t folder_full_layers(const json_t *types)
{
    static const char *const kind[] = {"full_attention", "sliding_attention"};
    int64_t full = 0;
    size_t i;
    const json_t *one;
    bool sliding = false;
    json_array_foreach(types, i, one)
    {
        const char *name = json_string_value(one);
        sliding = sliding || (name != NULL && strcmp(name, kind[1]) == 0);
        if (name == NULL || strcmp(name, kind[sliding]) != 0)
            return -1;
        full += !sliding;
    }
    return full;
}

/* Positions that attention sees at most; 0: all. `value` is the key's. */
static enum tess_status folder_window_size(const struct folder_reader *reader,
                                           const struct folder_family *family, const json_t *value,
                                           int64_t *window_out)
{
    const bool on = !family->window_switch ||
                    json_is_true(json_object_get(reader->object, "use_sliding_window"));
    *window_out = 0;
    if (family->window_switch)
        json_object_del(reader->object, "use_sliding_window");
    if (json_is_null(value) || !on || (value == NULL && family->window == 0))
        return TESS_OK;
    TESS_TRY(folder_whole(reader, "sliding_window", family->window, NULL, window_out));
    if (family->window == 0 && *window_out < reader->folder->positions)
        return folder_refuse(
            reader, "sliding_window", value,
            "this family has none; models that have one are mistral, qwen2, qwen3");
    if (family->window == 0)
        *window_out = 0;
    return TESS_OK;
}

/* The first block that has the window: Qwen's max_window_layers, or by what each attends to. */
static enum tess_status folder_window_from(const struct folder_reader *reader,
                                           const struct folder_family *family, int64_t layers,
                                           int64_t window, int64_t *from_out)
{
    json_t *first = folder_take(reader, "max_window_layers");
    json_t *types = folder_take(reader, "layer_types");
    const int64_t full = folder_full_layers(types);
    const bool all = json_is_array(types) && full == (int64_t)json_array_size(types);
    const bool each = (int64_t)json_array_size(types) == layers;
    enum tess_status status = TESS_OK;
    *from_out = window == 0 || !family->window_switch ? 0
                : first != NULL                       ? json_integer_value(first)
                                                      : 28;
    if (first != NULL && window > 0 && family->window_switch &&
        (!json_is_integer(first) || *from_out < 0))
        status = folder_refuse(reader, "max_window_layers", first, "expected a whole number");
    else if (types != NULL &&
             (window == 0 ? !all : full < 0 || !each || (full > 0 && !family->window_switch)))
        status = folder_refuse(reader, "layer_types", types,
                               window == 0 ? "expected \"full_attention\" for each layer"
                                           : "expected \"full_attention\" for the first layers of "
                                             "Qwen and \"sliding_attention\" for all others");
    else if (types != NULL && window > 0)
        *from_out = full;
    json_decref(types);
    json_decref(first);
    return status;
}

static enum tess_status folder_window(const struct folder_reader *reader,
                                      const struct folder_family *family, int64_t layers)
{
    json_t *value = json_incref(json_object_get(reader->object, "sliding_window"));
    int64_t window, from = 0;
    char text[32];
    enum tess_status status = folder_window_size(reader, family, value, &window);
    if (status == TESS_OK)
        status = folder_window_from(reader, family, layers, window, &from);
    if (status == TESS_OK) {
        if (from >= layers)
            window = from = 0;
        snprintf(text, sizeof(text), "%lld", (long long)window);
        folder_add(reader, "gpt.window", text, "sliding_window", value);
        folder_imply(reader, window >= reader->folder->positions, "0");
        snprintf(text, sizeof(text), "%lld", (long long)from);
        folder_add(reader, "gpt.window-from", text, "sliding_window", value);
    }
    json_decref(value);
    json_object_del(reader->object, "sliding_window");
    return status;
}

/* Of queries, keys and values alone, or with that of what attention adds; of the feed-forward
 * layers. */
static enum tess_status folder_biases(const struct folder_reader *reader,
                                      const struct folder_family *family, const json_t *type)
{
    bool attention = false, mlp = false;
    if (family->attention_bias)
        TESS_TRY(folder_switch(reader, "attention_bias", false, &attention));
    if (family->mlp_bias)
        TESS_TRY(folder_switch(reader, "mlp_bias", false, &mlp));
    const char *key = family->attention_bias ? "attention_bias" : "model_type";
    const json_t *from = family->attention_bias ? (attention ? json_true() : json_false()) : type;
    folder_add(reader, "gpt.qkv-bias", family->qkv_bias || attention ? "on" : "off", key, from);
    folder_add(reader, "gpt.out-bias", attention ? "on" : "off", key, from);
    folder_add(reader, "gpt.mlp-bias", mlp ? "on" : "off", "mlp_bias",
               mlp ? json_true() : json_false());
    return TESS_OK;
}

static enum tess_status folder_read_llama(const struct folder_reader *reader,
                                          const struct folder_family *family, const json_t *type)
{
    struct tess_model_folder *folder = reader->folder;
    int64_t width, heads, layers, number;
    TESS_TRY(folder_whole(reader, "num_hidden_layers", 0, "gpt.layers", &layers));
    TESS_TRY(folder_whole(reader, "num_attention_heads", 0, "gpt.heads", &heads));
    TESS_TRY(folder_whole(reader, "num_key_value_heads", family->kv_heads_needed ? 0 : heads,
                          "gpt.kv-heads", &number));
    folder_imply(reader, number == heads, "0");
    TESS_TRY(folder_whole(reader, "hidden_size", 0, "gpt.width", &width));
    TESS_TRY(folder_whole(reader, "intermediate_size", 0, "gpt.ffn", &number));
    folder_imply(reader, true, "0"); /* of the weights' shapes */
    TESS_TRY(folder_whole(reader, "max_position_embeddings", 2048, NULL, &folder->positions));
    TESS_TRY(folder_vocabulary(reader));
    TESS_TRY(folder_real(reader, "rms_norm_eps", 1e-6, "gpt.norm-epsilon"));
    TESS_TRY(folder_activation(reader));
    TESS_TRY(folder_rope(reader));
    TESS_TRY(folder_window(reader, family, layers));
    TESS_TRY(folder_whole(reader, "head_dim", family->head_size ? family->head_size : width / heads,
                          "gpt.head-size", &number));
    folder_imply(reader, number * heads == width, "0");
    TESS_TRY(folder_biases(reader, family, type));
    folder_add(reader, "gpt.qk-norm", family->qk_norm ? "on" : "off", "model_type", type);
    return folder_tied(reader, false);
}

static enum tess_status folder_read_family(const struct folder_reader *reader)
{
    json_t *type = folder_take(reader, "model_type");
    const char *name = json_string_value(type);
    const struct folder_family *family = NULL;
    for (size_t i = 0; name != NULL && i < sizeof(folder_llama) / sizeof(folder_llama[0]); i++)
        if (strcmp(name, folder_llama[i].name) == 0)
            family = &folder_llama[i];
    const bool gpt2 = name != NULL && strcmp(name, "gpt2") == 0;
    enum tess_status status = TESS_OK;
    if (family == NULL && !gpt2)
        status = folder_refuse(reader, "model_type", type,
                               "expected gpt2, llama, mistral, qwen2 or qwen3");
    else
        folder_add(reader, "gpt.style", gpt2 ? "gpt2" : "llama", "model_type", type);
    if (status == TESS_OK)
        status = gpt2 ? folder_read_gpt2(reader) : folder_read_llama(reader, family, type);
    json_decref(type);
    return status;
}

enum tess_status tess_model_folder_read(const char *config, struct tess_model_folder *folder_out)
{
    json_error_t error;
    char *text;
    size_t bytes;
    *folder_out = (struct tess_model_folder){0};
    snprintf(folder_out->config, sizeof(folder_out->config), "%s", config);
    TESS_TRY(tess__checkpoint_read_text(config, &text, &bytes));
    const struct folder_reader reader = {
        .folder = folder_out, .object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error)};
    free(text);
    enum tess_status status = TESS_OK;
    if (reader.object == NULL)
        status = tess_fail(TESS_ERR_DATA, "%s:%d: %s", config, error.line, error.text);
    else if (!json_is_object(reader.object))
        status = tess_fail(TESS_ERR_DATA, "%s: expected a JSON object", config);
    if (status == TESS_OK)
        status = folder_read_family(&reader);
    if (status == TESS_OK)
        status = folder_check_rest(&reader);
    json_decref(reader.object);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool folder_has(const char *folder, const char *name, char path[TESS_CHECKPOINT_PATH])
{
    struct stat about;
    const int used = snprintf(path, TESS_CHECKPOINT_PATH, "%s/%s", folder, name);
    return used > 0 && used < TESS_CHECKPOINT_PATH && stat(path, &about) == 0 &&
           S_ISREG(about.st_mode);
}

bool tess_model_folder_config(const char *path, char config[TESS_CHECKPOINT_PATH])
{
    struct stat about;
    char folder[TESS_CHECKPOINT_PATH];
    if (path[0] == '\0' || strlen(path) >= sizeof(folder) || stat(path, &about) != 0)
        return false;
    snprintf(folder, sizeof(folder), "%s", path);
    if (!S_ISDIR(about.st_mode)) {
        char *name = strrchr(folder, '/');
        if (name == NULL)
            snprintf(folder, sizeof(folder), ".");
        else
            name[name == folder] = '\0';
    }
    return folder_has(folder, FOLDER_CONFIG, config);
}

bool tess_model_folder_has_weights(const char *folder)
{
    char path[TESS_CHECKPOINT_PATH];
    return folder_has(folder, "model.safetensors", path) ||
           folder_has(folder, TESS__CHECKPOINT_INDEX, path);
}
