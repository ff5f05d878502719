/* See gguf_keys.h. */
#include "state/gguf_keys.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Types of values in GGUF. */
enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_REAL = 6, GGUF_STRING = 8, GGUF_ARRAY = 9 };

void tess__gguf_keys_fini(struct gguf_keys *keys)
{
    free(keys->text);
    *keys = (struct gguf_keys){.text = NULL};
}

void tess__gguf_bytes(struct gguf_keys *keys, const void *bytes, size_t count)
{
    if (keys->bytes + count > keys->room) {
        const size_t room = 2 * (keys->bytes + count) + 1024;
        char *text = realloc(keys->text, room);
        if (text == NULL) {
            keys->failed = true;
            return;
        }
        keys->text = text;
        keys->room = room;
    }
    if (count > 0)
        memcpy(keys->text + keys->bytes, bytes, count);
    keys->bytes += count;
}

void tess__gguf_u32(struct gguf_keys *keys, uint32_t number)
{
    tess__gguf_bytes(keys, &number, sizeof(number));
}

void tess__gguf_u64(struct gguf_keys *keys, uint64_t number)
{
    tess__gguf_bytes(keys, &number, sizeof(number));
}

void tess__gguf_string(struct gguf_keys *keys, const char *text)
{
    tess__gguf_u64(keys, strlen(text));
    tess__gguf_bytes(keys, text, strlen(text));
}

/* A key begins; `family` NULL: the name is whole. */
static void keys_begin(struct gguf_keys *keys, const char *family, const char *name, uint32_t type)
{
    char whole[128];
    snprintf(whole, sizeof(whole), "%s%s%s", family != NULL ? family : "",
             family != NULL ? "." : "", name);
    tess__gguf_string(keys, whole);
    tess__gguf_u32(keys, type);
    keys->count++;
}

static void keys_text(struct gguf_keys *keys, const char *name, const char *text)
{
    keys_begin(keys, NULL, name, GGUF_STRING);
    tess__gguf_string(keys, text);
}

static void keys_whole(struct gguf_keys *keys, const char *family, const char *name, int64_t number)
{
    keys_begin(keys, family, name, GGUF_U32);
    tess__gguf_u32(keys, (uint32_t)number);
}

static void keys_real(struct gguf_keys *keys, const char *family, const char *name, double number)
{
    const float real = (float)number;
    keys_begin(keys, family, name, GGUF_REAL);
    tess__gguf_bytes(keys, &real, sizeof(real));
}

static int64_t keys_of(const json_t *config, const char *name)
{
    return json_integer_value(json_object_get(config, name));
}

static double keys_real_of(const json_t *config, const char *name)
{
    return json_number_value(json_object_get(config, name));
}

static const char *keys_text_of(const json_t *config, const char *name)
{
    const char *text = json_string_value(json_object_get(config, name));
    return text != NULL ? text : "";
}

/* ---- the model ------------------------------------------------------------------------------- */

static void keys_gpt2(const json_t *config, struct gguf_keys *keys)
{
    keys->heads = keys->kv_heads = keys_of(config, "n_head");
    keys_whole(keys, "gpt2", "block_count", keys_of(config, "n_layer"));
    keys_whole(keys, "gpt2", "context_length", keys_of(config, "n_positions"));
    keys_whole(keys, "gpt2", "embedding_length", keys_of(config, "n_embd"));
    keys_whole(keys, "gpt2", "feed_forward_length", keys_of(config, "n_inner"));
    keys_whole(keys, "gpt2", "attention.head_count", keys->heads);
    keys_real(keys, "gpt2", "attention.layer_norm_epsilon",
              keys_real_of(config, "layer_norm_epsilon"));
}

/* Rotary positions that llama.cpp has: as they are, linear, YaRN; Llama 3.1's are a tensor. */
static enum tess_status keys_rope(const json_t *config, const char *family, struct gguf_keys *keys)
{
    const json_t *scaling = json_object_get(config, "rope_scaling");
    const char *type = keys_text_of(scaling, "rope_type");
    keys_real(keys, family, "rope.freq_base", keys_real_of(config, "rope_theta"));
    if (scaling == NULL || strcmp(type, "llama3") == 0)
        return TESS_OK;
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "GGUF has no rotary positions of scaling '%s'", type);
    keys_begin(keys, family, "rope.scaling.type", GGUF_STRING);
    tess__gguf_string(keys, type);
    keys_real(keys, family, "rope.scaling.factor", keys_real_of(scaling, "factor"));
    if (strcmp(type, "yarn") == 0)
        keys_whole(keys, family, "rope.scaling.original_context_length",
                   keys_of(scaling, "original_max_position_embeddings"));
    return TESS_OK;
}

static enum tess_status keys_llama(const json_t *config, const char *family, struct gguf_keys *keys)
{
    const int64_t size = keys_of(config, "head_dim");
    keys->heads = keys_of(config, "num_attention_heads");
    keys->kv_heads = keys_of(config, "num_key_value_heads");
    keys->pairs = strcmp(family, "llama") == 0;
    keys_whole(keys, family, "block_count", keys_of(config, "num_hidden_layers"));
    keys_whole(keys, family, "context_length", keys_of(config, "max_position_embeddings"));
    keys_whole(keys, family, "embedding_length", keys_of(config, "hidden_size"));
    keys_whole(keys, family, "feed_forward_length", keys_of(config, "intermediate_size"));
    keys_whole(keys, family, "attention.head_count", keys->heads);
    keys_whole(keys, family, "attention.head_count_kv", keys->kv_heads);
    keys_real(keys, family, "attention.layer_norm_rms_epsilon",
              keys_real_of(config, "rms_norm_eps"));
    keys_whole(keys, family, "attention.key_length", size);
    keys_whole(keys, family, "attention.value_length", size);
    keys_whole(keys, family, "rope.dimension_count", size);
    keys_whole(keys, family, "vocab_size", keys_of(config, "vocab_size"));
    return keys_rope(config, family, keys);
}

enum tess_status tess__gguf_factors(const json_t *config, float **factors_out, int64_t *count_out)
{
    const json_t *scaling = json_object_get(config, "rope_scaling");
    const int64_t size = keys_of(config, "head_dim");
    const double context = keys_real_of(scaling, "original_max_position_embeddings");
    const double low = keys_real_of(scaling, "low_freq_factor");
    const double high = keys_real_of(scaling, "high_freq_factor");
    const double factor = keys_real_of(scaling, "factor"), turn = 2 * acos(-1);
    if (strcmp(keys_text_of(scaling, "rope_type"), "llama3") != 0)
        return TESS_OK;
    *factors_out = malloc((size_t)size / 2 * sizeof(float));
    if (*factors_out == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for rotary positions");
    *count_out = size / 2;
    for (int64_t i = 0; i < size / 2; i++) {
        const double rate =
            pow(keys_real_of(config, "rope_theta"), -2.0 * (double)i / (double)size);
        const double turns = context * rate / turn; /* in the context of training */
        const double smooth = (turns - low) / (high - low);
        (*factors_out)[i] = (float)(turns < low    ? factor
                                    : turns > high ? 1
                                                   : 1 / ((1 - smooth) / factor + smooth));
    }
    return TESS_OK;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* ggml's kinds of tokens. */
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_ADDED = 4, TOKEN_UNUSED = 5 };

struct keys_tokens {
    const char **text; /* [count] NULL: no token has the number */
    int32_t *kind;     /* [count] */
    int64_t count;
};

static void keys_token(struct keys_tokens *tokens, int64_t id, const char *text, int32_t kind)
{
    if (id < 0 || id >= tokens->count || text == NULL)
        return;
    tokens->text[id] = text;
    tokens->kind[id] = kind;
}

static void keys_put_tokens(struct gguf_keys *keys, const struct keys_tokens *tokens)
{
    keys_begin(keys, NULL, "tokenizer.ggml.tokens", GGUF_ARRAY);
    tess__gguf_u32(keys, GGUF_STRING);
    tess__gguf_u64(keys, (uint64_t)tokens->count);
    for (int64_t i = 0; i < tokens->count; i++) {
        char unused[32];
        snprintf(unused, sizeof(unused), "[PAD%lld]", (long long)i);
        tess__gguf_string(keys, tokens->text[i] != NULL ? tokens->text[i] : unused);
    }
    keys_begin(keys, NULL, "tokenizer.ggml.token_type", GGUF_ARRAY);
    tess__gguf_u32(keys, GGUF_I32);
    tess__gguf_u64(keys, (uint64_t)tokens->count);
    for (int64_t i = 0; i < tokens->count; i++)
        tess__gguf_u32(keys, (uint32_t)tokens->kind[i]);
}

/* "a b", which newer files write as ["a", "b"]. */
static void keys_put_merges(struct gguf_keys *keys, const json_t *merges)
{
    const json_t *one;
    size_t i;
    keys_begin(keys, NULL, "tokenizer.ggml.merges", GGUF_ARRAY);
    tess__gguf_u32(keys, GGUF_STRING);
    tess__gguf_u64(keys, json_array_size(merges));
    json_array_foreach(merges, i, one)
    {
        const char *whole = json_string_value(one);
        const char *a = json_string_value(json_array_get(one, 0));
        const char *b = json_string_value(json_array_get(one, 1));
        if (whole != NULL || a == NULL || b == NULL) {
            tess__gguf_string(keys, whole != NULL ? whole : "");
            continue;
        }
        tess__gguf_u64(keys, strlen(a) + 1 + strlen(b));
        tess__gguf_bytes(keys, a, strlen(a));
        tess__gguf_bytes(keys, " ", 1);
        tess__gguf_bytes(keys, b, strlen(b));
    }
}

/* llama.cpp's name for how a text is cut: by the pattern of digits, in which the three differ. */
static const char *keys_cut(const json_t *tokenizer)
{
    char *text = json_dumps(json_object_get(tokenizer, "pre_tokenizer"), JSON_ENCODE_ANY);
    const char *cut = "gpt-2";
    if (text != NULL && strstr(text, "\\\\p{N}{1,3}") != NULL)
        cut = "llama-bpe";
    else if (text != NULL && strstr(text, "(?i:") != NULL)
        cut = "qwen2";
    free(text);
    return cut;
}

static enum tess_status keys_vocabulary(const json_t *tokenizer, int64_t count,
                                        struct gguf_keys *keys)
{
    json_t *model = json_object_get(tokenizer, "model"), *id;
    const json_t *added = json_object_get(tokenizer, "added_tokens"), *one;
    struct keys_tokens tokens = {.count = count};
    const char *text;
    size_t i;
    if (strcmp(keys_text_of(model, "type"), "BPE") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "tokenizer.json is of type '%.20s': only BPE is written to GGUF",
                  keys_text_of(model, "type"));
    tokens.text = calloc((size_t)count + 1, sizeof(*tokens.text));
    tokens.kind = calloc((size_t)count + 1, sizeof(*tokens.kind));
    if (tokens.text == NULL || tokens.kind == NULL) {
        free(tokens.text);
        free(tokens.kind);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %lld tokens", (long long)count);
    }
    for (int64_t t = 0; t < count; t++)
        tokens.kind[t] = TOKEN_UNUSED;
    json_object_foreach(json_object_get(model, "vocab"), text, id)
    {
        keys_token(&tokens, json_integer_value(id), text, TOKEN_NORMAL);
    }
    json_array_foreach(added, i, one)
    {
        const bool special = json_is_true(json_object_get(one, "special"));
        keys_token(&tokens, keys_of(one, "id"), json_string_value(json_object_get(one, "content")),
                   special ? TOKEN_CONTROL : TOKEN_ADDED);
    }
    keys_text(keys, "tokenizer.ggml.model", "gpt2");
    keys_text(keys, "tokenizer.ggml.pre", keys_cut(tokenizer));
    keys_put_tokens(keys, &tokens);
    keys_put_merges(keys, json_object_get(model, "merges"));
    free(tokens.text);
    free(tokens.kind);
    return TESS_OK;
}

/* Tokens that begin and end a text, of config.json beside the tokenizer. */
static void keys_ends(const char *folder, struct gguf_keys *keys)
{
    static const char *const key[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                         {"eos_token_id", "tokenizer.ggml.eos_token_id"}};
    char path[4096 + 32];
    snprintf(path, sizeof(path), "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    for (size_t i = 0; i < 2; i++) {
        const json_t *id = json_object_get(config, key[i][0]);
        id = json_is_array(id) ? json_array_get(id, 0) : id;
        if (json_is_integer(id) && json_integer_value(id) >= 0)
            keys_whole(keys, NULL, key[i][1], json_integer_value(id));
    }
    json_decref(config);
}

static enum tess_status keys_tokenizer(const char *folder, int64_t count, struct gguf_keys *keys)
{
    char path[4096 + 32];
    json_error_t error;
    snprintf(path, sizeof(path), "%.4096s/tokenizer.json", folder);
    FILE *file = folder[0] != '\0' ? fopen(path, "rb") : NULL;
    if (file == NULL) {
        keys_text(keys, "tokenizer.ggml.model", "no_vocab");
        return TESS_OK;
    }
    json_t *tokenizer = json_loadf(file, 0, &error);
    fclose(file);
    if (tokenizer == NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: %s", path, error.line, error.text);
    const enum tess_status status = keys_vocabulary(tokenizer, count, keys);
    json_decref(tokenizer);
    if (status == TESS_OK)
        keys_ends(folder, keys);
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

enum tess_status tess__gguf_keys(const json_t *config, const char *tokenizer, uint32_t type,
                                 struct gguf_keys *keys)
{
    /* llama.cpp's numbers of kinds of files, by ggml's of types. */
    const uint32_t kind = type == 0 ? 0 : type == 1 ? 1 : type == 8 ? 7 : 32;
    const char *family = keys_text_of(config, "model_type");
    const char *act = keys_text_of(config, "hidden_act");
    const int64_t window = keys_of(config, "sliding_window");
    if (strcmp(act, "") != 0 && strcmp(act, "silu") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "GGUF's models of this family have no gate of %s, only silu", act);
    if (window > 0 && window < keys_of(config, "max_position_embeddings"))
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "GGUF's models of this family have no window, and gpt.window %lld is shorter than "
            "the context",
            (long long)window);
    if (strcmp(family, "mistral") == 0) /* which has no more than llama then */
        family = "llama";
    keys_text(keys, "general.architecture", family);
    keys_text(keys, "general.type", "model");
    keys_whole(keys, "general", "file_type", kind);
    keys_whole(keys, "general", "quantization_version", 2);
    if (strcmp(family, "gpt2") == 0)
        keys_gpt2(config, keys);
    else
        TESS_TRY(keys_llama(config, family, keys));
    return keys_tokenizer(tokenizer, keys_of(config, "vocab_size"), keys);
}
