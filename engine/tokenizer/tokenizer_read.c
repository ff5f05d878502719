/*
 * tokenizer.json or tokenizer.model, and what tokenizer_config.json beside it adds: checked key by
 * key before it is used, since it comes from outside.
 */
#include "tokenizer/tokenizer_read.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The largest known has 35 MB. */
#define READ_BYTES_MAX ((size_t)512 << 20)

#define READ_WORD_MAX 65536 /* bytes of a token's text in the file */

/* ---- files ----------------------------------------------------------------------------------- */

/* `path` with `name` in it. */
static bool read_is_there(const char *path, const char *name, char file[4096])
{
    struct stat about;
    return snprintf(file, 4096, "%s/%s", path, name) < 4096 && stat(file, &about) == 0;
}

static enum tess_status read_find(const char *path, char file[4096], bool *folder_out)
{
    struct stat about;
    if (stat(path, &about) != 0)
        TESS_FAIL(errno == ENOENT || errno == ENOTDIR ? TESS_ERR_NOT_FOUND : TESS_ERR_IO,
                  "--tokenizer: cannot open %s: %s", path, strerror(errno));
    if (strlen(path) >= 4096 - sizeof("/tokenizer.model"))
        TESS_FAIL(TESS_ERR_USAGE, "--tokenizer: the path %s is too long", path);
    *folder_out = S_ISDIR(about.st_mode);
    if (!*folder_out)
        snprintf(file, 4096, "%s", path);
    if (!*folder_out || read_is_there(path, "tokenizer.json", file) ||
        read_is_there(path, "tokenizer.model", file))
        return TESS_OK;
    TESS_FAIL(TESS_ERR_NOT_FOUND,
              "--tokenizer: %s has no tokenizer.json or tokenizer.model; for a model with "
              "vocab.json and merges.txt transformers writes one: "
              "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
              path);
}

static bool read_is_model(const char *file)
{
    const size_t length = strlen(file);
    return length >= 6 && strcmp(file + length - 6, ".model") == 0;
}

/* The whole file, to be freed. */
static enum tess_status read_bytes(const char *file, struct tokenizer_buffer *target)
{
    const char *why;
    enum tess_status status = TESS_OK;
    FILE *stream = tess_file_open_input(file, &why);
    if (stream == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", file, why);
    while (status == TESS_OK && !feof(stream) && !ferror(stream)) {
        status = tess__tokenizer_room(target, 65536);
        if (status == TESS_OK)
            target->count += fread(target->at + target->count, 1, 65536, stream);
        if (status == TESS_OK && target->count > READ_BYTES_MAX)
            status = tess_fail(TESS_ERR_DATA, "%s: more than %zu MiB: not a tokenizer", file,
                               READ_BYTES_MAX >> 20);
    }
    if (status == TESS_OK && ferror(stream))
        status = tess_fail(TESS_ERR_IO, "cannot read %s: %s", file, strerror(errno));
    fclose(stream);
    return status;
}

/* `flags`: of jansson's reader. */
static enum tess_status read_json(const char *file, size_t flags, json_t **object_out,
                                  uint64_t *id_out)
{
    struct tokenizer_buffer text = {0};
    json_error_t error;
    enum tess_status status = read_bytes(file, &text);
    if (status == TESS_OK) {
        *id_out = tess_hash_bytes(text.at, text.count);
        *object_out = json_loadb(text.at, text.count, JSON_REJECT_DUPLICATES | flags, &error);
        if (!json_is_object(*object_out)) {
            status = *object_out ? tess_fail(TESS_ERR_DATA, "%s:1: not a JSON object", file)
                                 : tess_fail(TESS_ERR_DATA, "%s:%d: not JSON: %s", file, error.line,
                                             error.text);
            json_decref(*object_out);
            *object_out = NULL;
        }
    }
    free(text.at);
    return status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/*
 * The byte that a character stands for in the vocabulary (openai/gpt-2, bytes_to_unicode):
 * printable ones for themselves, the 68 others in order from U+0100 on. -1: none.
 */
static int read_byte_of(uint32_t code)
{
    const bool itself =
        (code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255);
    if (itself)
        return (int)code;
    if (code >= 256 && code < 289)
        return (int)code - 256; /* 0 .. 32 */
    if (code >= 289 && code < 323)
        return (int)code - 289 + 127; /* 127 .. 160 */
    return code == 323 ? 173 : -1;
}

/* The bytes of a token as the vocabulary writes it; false: a character that stands for none. */
static bool read_word(const char *text, size_t count, char *target, size_t *count_out)
{
    *count_out = 0;
    for (size_t at = 0; at < count;) {
        uint32_t code;
        const int length = tess__utf8_length(text + at, count - at, &code);
        const int byte = length > 0 ? read_byte_of(code) : -1;
        if (byte < 0)
            return false;
        target[(*count_out)++] = (char)byte;
        at += (size_t)length;
    }
    return true;
}

static enum tess_status read_vocab(struct tess__tokenizer *tokenizer, json_t *vocab)
{
    const char *name;
    json_t *id;
    char word[READ_WORD_MAX];
    json_object_foreach(vocab, name, id)
    {
        size_t count = strlen(name), bytes = 0;
        if (count == 0 || count > READ_WORD_MAX)
            TESS_FAIL(TESS_ERR_DATA, "%s: vocab: a token of %zu bytes", tokenizer->file, count);
        const bool made = read_word(name, count, word, &bytes);
        TESS_TRY(tess__bpe_add_token(&tokenizer->bpe, (uint32_t)json_integer_value(id),
                                     made ? word : name, made ? bytes : count, made));
    }
    return TESS_OK;
}

/* Both sides of a merge: "a b", or ["a", "b"]. */
static enum tess_status read_merge(struct tess__tokenizer *tokenizer, const json_t *merge,
                                   size_t rank)
{
    const char *text[2] = {json_string_value(merge), NULL};
    size_t length[2] = {0, 0}, bytes[2], both = 0;
    char word[2 * READ_WORD_MAX];
    int64_t id[3] = {-1, -1, -1};
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            text[i] = json_string_value(json_array_get(merge, i));
            length[i] = text[i] ? strlen(text[i]) : 0;
        }
    } else if (text[0] && strchr(text[0], ' ')) {
        text[1] = strchr(text[0], ' ') + 1;
        length[0] = (size_t)(text[1] - text[0]) - 1;
        length[1] = strlen(text[1]);
    }
    for (size_t i = 0; i < 2; i++) {
        if (text[i] == NULL || length[i] == 0 || length[i] > READ_WORD_MAX ||
            !read_word(text[i], length[i], word + both, &bytes[i]))
            TESS_FAIL(TESS_ERR_DATA, "%s: merges: number %zu is not two tokens", tokenizer->file,
                      rank);
        id[i] = tess__bpe_find(&tokenizer->bpe, word + both, bytes[i]);
        both += bytes[i];
    }
    id[2] = tess__bpe_find(&tokenizer->bpe, word, both);
    if (id[0] < 0 || id[1] < 0 || id[2] < 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: merges: number %zu has a token that vocab lacks",
                  tokenizer->file, rank);
    tess__bpe_add_merge(&tokenizer->bpe, (uint32_t)id[0], (uint32_t)id[1], (uint32_t)rank,
                        (uint32_t)id[2]);
    return TESS_OK;
}

/* The greatest number of a token, all of which are checked. */
static enum tess_status read_greatest(const struct tess__tokenizer *tokenizer, json_t *vocab,
                                      json_int_t *greatest_out)
{
    const char *name;
    json_t *id;
    json_int_t greatest = -1;
    json_object_foreach(vocab, name, id)
    {
        const json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        if (number < 0 || number >= TOKENIZER_IDS_MAX)
            TESS_FAIL(TESS_ERR_DATA, "%s: vocab: the number of %s is not 0 to %d", tokenizer->file,
                      name, TOKENIZER_IDS_MAX - 1);
        greatest = number > greatest ? number : greatest;
    }
    for (int32_t i = 0; i < tokenizer->added.count; i++)
        if (tokenizer->added.token[i].id > greatest)
            greatest = tokenizer->added.token[i].id;
    *greatest_out = greatest;
    return TESS_OK;
}

/* Added tokens are in the vocabulary already, or have numbers of their own. */
static enum tess_status read_added_tokens(struct tess__tokenizer *tokenizer)
{
    for (int32_t i = 0; i < tokenizer->added.count; i++) {
        const struct added_token *token = &tokenizer->added.token[i];
        if (tokenizer->bpe.token[token->id].count == 0)
            TESS_TRY(
                tess__bpe_add_token(&tokenizer->bpe, token->id, token->text, token->bytes, false));
    }
    return TESS_OK;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Keys that change numbers, each of which must be absent, null, false or empty. */
static enum tess_status read_refuse(const struct tess__tokenizer *tokenizer, const json_t *model)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix", "byte_fallback"};
    /* Every byte is a token, so that there is no unknown one. */
    static const char *const known[] = {"type",      "vocab",    "merges", "ignore_merges",
                                        "unk_token", "fuse_unk", NULL};
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model) || (type && strcmp(type, "BPE") != 0))
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: model.type %s: byte-level BPE (GPT-2, Llama 3, Qwen) is read here, and "
                  "SentencePiece's tokenizer.model",
                  tokenizer->file, type ? type : "is missing");
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        if (!tess__key_is_off(json_object_get(model, refused[i])))
            TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s: model.%s is not read here", tokenizer->file,
                      refused[i]);
    return tess__keys_check(model, known, "model", tokenizer->file);
}

static enum tess_status read_model(struct tess__tokenizer *tokenizer, const json_t *model)
{
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    json_int_t greatest;
    TESS_TRY(read_refuse(tokenizer, model));
    if (!json_is_object(vocab) || !json_is_array(merges))
        TESS_FAIL(TESS_ERR_DATA, "%s: model: vocab (an object) and merges (a list) are missing",
                  tokenizer->file);
    TESS_TRY(read_greatest(tokenizer, vocab, &greatest));
    if (greatest < 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: vocab is empty", tokenizer->file);
    TESS_TRY(tess__bpe_init(&tokenizer->bpe, (int32_t)greatest + 1, json_array_size(merges)));
    tokenizer->bpe.ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    TESS_TRY(read_vocab(tokenizer, vocab));
    TESS_TRY(read_added_tokens(tokenizer));
    for (size_t i = 0; i < json_array_size(merges); i++)
        TESS_TRY(read_merge(tokenizer, json_array_get(merges, i), i));
    const int lacks = tess__bpe_seal(&tokenizer->bpe);
    if (lacks >= 0)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: vocab has no token for the byte %d: a text that has it would lose it",
                  tokenizer->file, lacks);
    return TESS_OK;
}

/* "normalizer": none or NFC, also as the only one of a Sequence. */
static enum tess_status read_normalizer(struct tess__tokenizer *tokenizer, const json_t *object)
{
    static const char *const known[] = {"type", NULL};
    static const char *const sequence[] = {"type", "normalizers", NULL};
    const json_t *list = json_object_get(object, "normalizers");
    if (json_is_array(list) && json_array_size(list) <= 1) {
        TESS_TRY(tess__keys_check(object, sequence, "normalizer", tokenizer->file));
        object = json_array_get(list, 0);
    }
    const char *type = json_string_value(json_object_get(object, "type"));
    if (!object || json_is_null(object))
        return TESS_OK;
    if (!type || strcmp(type, "NFC") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s: normalizer %s: NFC or none is read here",
                  tokenizer->file, type ? type : "without a type");
    tokenizer->compose = true;
    return tess__keys_check(object, known, "normalizer", tokenizer->file);
}

int32_t tess__tokenizer_find(const struct tess__tokenizer *tokenizer, const char *token)
{
    if (tokenizer->sentence != NULL)
        return tess__sentence_find(tokenizer, token);
    for (int32_t i = 0; i < tokenizer->added.count; i++)
        if (strcmp(tokenizer->added.token[i].text, token) == 0)
            return (int32_t)tokenizer->added.token[i].id;
    return (int32_t)tess__bpe_find(&tokenizer->bpe, token, strlen(token));
}

/* eos_token of tokenizer_config.json beside the file: a text, or an object with its content. */
static enum tess_status read_config(struct tess__tokenizer *tokenizer)
{
    char file[4096 + 32];
    struct stat about;
    json_t *config = NULL;
    uint64_t id;
    const char *slash = strrchr(tokenizer->file, '/');
    snprintf(file, sizeof(file), "%.*s%stokenizer_config.json",
             slash ? (int)(slash - tokenizer->file) : 0, tokenizer->file, slash ? "/" : "");
    if (stat(file, &about) != 0)
        return TESS_OK;
    /* model_max_length is 10^30 where a tokenizer has no limit. */
    TESS_TRY(read_json(file, JSON_DECODE_INT_AS_REAL, &config, &id));
    const json_t *end = json_object_get(config, "eos_token");
    const char *text =
        json_string_value(json_is_object(end) ? json_object_get(end, "content") : end);
    const int32_t named = text ? tess__tokenizer_find(tokenizer, text) : -1;
    if (named >= 0)
        tokenizer->end = named;
    json_decref(config);
    return TESS_OK;
}

/* ByteLevel, or a Sequence that has it. */
static bool read_is_byte_level(const json_t *object)
{
    const json_t *pre = json_object_get(object, "pre_tokenizer"), *one;
    const char *type = json_string_value(json_object_get(pre, "type"));
    bool found = type && strcmp(type, "ByteLevel") == 0;
    size_t i;
    json_array_foreach(json_object_get(pre, "pretokenizers"), i, one)
    {
        type = json_string_value(json_object_get(one, "type"));
        found = found || (type && strcmp(type, "ByteLevel") == 0);
    }
    return found;
}

static enum tess_status read_sentence(struct tess__tokenizer *tokenizer)
{
    struct tokenizer_buffer bytes = {0};
    enum tess_status status = read_bytes(tokenizer->file, &bytes);
    if (status == TESS_OK) {
        tokenizer->id = tess_hash_bytes(bytes.at, bytes.count);
        status = tess__sentence_read(tokenizer, bytes.at, bytes.count);
    }
    free(bytes.at);
    return status;
}

static enum tess_status read_parts(struct tess__tokenizer *tokenizer, const json_t *object)
{
    /* Lengths (truncation, padding) and what encloses whole texts (post_processor) are the
     * caller's matter; `decoder` turns tokens into text. */
    static const char *const known[] = {"version",        "truncation", "padding", "added_tokens",
                                        "normalizer",     "model",      "decoder", "pre_tokenizer",
                                        "post_processor", NULL};
    TESS_TRY(tess__keys_check(object, known, "", tokenizer->file));
    TESS_TRY(tess__added_read(&tokenizer->added, json_object_get(object, "added_tokens"),
                              tokenizer->file));
    TESS_TRY(read_normalizer(tokenizer, json_object_get(object, "normalizer")));
    TESS_TRY(tess__splits_read(&tokenizer->splits, json_object_get(object, "pre_tokenizer"),
                               tokenizer->file));
    return read_model(tokenizer, json_object_get(object, "model"));
}

enum tess_status tess__tokenizer_read(struct tess__tokenizer *tokenizer, const char *path)
{
    json_t *object = NULL;
    bool folder, model;
    char beside[4096];
    TESS_TRY(read_find(path, tokenizer->file, &folder));
    model = read_is_model(tokenizer->file);
    if (!model)
        TESS_TRY(read_json(tokenizer->file, 0, &object, &tokenizer->id));
    if (!model && folder && !read_is_byte_level(object) &&
        read_is_there(path, "tokenizer.model", beside)) {
        memcpy(tokenizer->file, beside, sizeof(beside));
        model = true;
    }
    const enum tess_status status =
        model ? read_sentence(tokenizer) : read_parts(tokenizer, object);
    json_decref(object);
    return status == TESS_OK ? read_config(tokenizer) : status;
}
