/* Added tokens: texts such as <|endoftext|> that are tokens wherever they stand, before a
 * tokenizer's rules are applied to what lies between them. */
#include "base/utf8.h"
#include "tokenizer/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

static bool added_flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

static const char *const added_keys[] = {"id",     "content",    "single_word", "lstrip",
                                         "rstrip", "normalized", "special",     NULL};

static enum tess_status added_read_one(struct added_token *token, const json_t *object,
                                       const char *file)
{
    const json_t *content = json_object_get(object, "content"), *id = json_object_get(object, "id");
    const json_int_t number = json_integer_value(id);
    TESS_TRY(tess__keys_check(object, added_keys, "added_tokens", file));
    if (!json_is_string(content) || json_string_length(content) == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: added_tokens: one without a content", file);
    if (!json_is_integer(id) || number < 0 || number >= TOKENIZER_IDS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s: added_tokens: the id of %s is not 0 to %d", file,
                  json_string_value(content), TOKENIZER_IDS_MAX - 1);
    if (added_flag(object, "single_word"))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s: added_tokens: single_word of %s is not read here",
                  file, json_string_value(content));
    token->text = strdup(json_string_value(content));
    if (token->text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for an added token");
    token->bytes = json_string_length(content);
    token->id = (uint32_t)number;
    token->left = added_flag(object, "lstrip");
    token->right = added_flag(object, "rstrip");
    token->normalized = added_flag(object, "normalized");
    return TESS_OK;
}

/* The longest first among those that begin alike. */
static int added_compare(const void *a, const void *b)
{
    const struct added_token *x = *(struct added_token *const *)a;
    const struct added_token *y = *(struct added_token *const *)b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order != 0)
        return order;
    return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

static void added_mark(struct added_set *set, const struct added_token *token)
{
    const uint8_t first = (uint8_t)token->text[0];
    for (int second = 0; second < 256; second++)
        if (token->bytes == 1 || (uint8_t)token->text[1] == second)
            set->begins[(first << 8 | second) >> 3] |= (uint8_t)(1 << (second & 7));
}

static enum tess_status added_make_set(struct added_set *set, struct added *added, bool normalized)
{
    set->token = calloc((size_t)added->count + 1, sizeof(struct added_token *));
    if (set->token == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d added tokens", added->count);
    for (int32_t i = 0; i < added->count; i++) {
        if (added->token[i].normalized != normalized)
            continue;
        set->token[set->count++] = &added->token[i];
        added_mark(set, &added->token[i]);
    }
    qsort(set->token, (size_t)set->count, sizeof(*set->token), added_compare);
    return TESS_OK;
}

enum tess_status tess__added_seal(struct added *added)
{
    TESS_TRY(added_make_set(&added->raw, added, false));
    return added_make_set(&added->normalized, added, true);
}

enum tess_status tess__added_read(struct added *added, const json_t *array, const char *file)
{
    const size_t count = json_array_size(array);
    if (array != NULL && !json_is_array(array) && !json_is_null(array))
        TESS_FAIL(TESS_ERR_DATA, "%s: added_tokens is not a list", file);
    added->token = calloc(count + 1, sizeof(*added->token));
    if (added->token == NULL || count >= TOKENIZER_IDS_MAX)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu added tokens", count);
    for (size_t i = 0; i < count; i++) {
        added->count++;
        TESS_TRY(added_read_one(&added->token[i], json_array_get(array, i), file));
    }
    return tess__added_seal(added);
}

void tess__added_fini(struct added *added)
{
    for (int32_t i = 0; i < added->count; i++)
        free(added->token[i].text);
    free(added->token);
    free(added->raw.token);
    free(added->normalized.token);
}

/* The longest token that the text begins with: the first that fits. Few places come so far. */
static const struct added_token *added_at(const struct added_set *set, const char *text,
                                          size_t bytes)
{
    for (int32_t i = 0; i < set->count; i++) {
        const struct added_token *token = set->token[i];
        if (token->bytes <= bytes && memcmp(token->text, text, token->bytes) == 0)
            return token;
    }
    return NULL;
}

static size_t added_space_before(const char *text, size_t at, size_t from)
{
    while (at > from) {
        size_t begin = at - 1;
        uint32_t code;
        while (begin > from && ((uint8_t)text[begin] & 0xc0) == 0x80)
            begin--;
        if (tess__utf8_length(text + begin, at - begin, &code) == 0 || !tess__text_is_space(code))
            break;
        at = begin;
    }
    return at;
}

static size_t added_space_behind(const char *text, size_t bytes, size_t at)
{
    while (at < bytes) {
        uint32_t code;
        const int length = tess__utf8_length(text + at, bytes - at, &code);
        if (length == 0 || !tess__text_is_space(code))
            break;
        at += (size_t)length;
    }
    return at;
}

const struct added_token *tess__added_next(const struct added_set *set, const char *text,
                                           size_t bytes, size_t at, size_t *first_out,
                                           size_t *end_out)
{
    for (size_t i = at; i < bytes && set->count > 0; i++) {
        const uint32_t two =
            (uint32_t)(uint8_t)text[i] << 8 | (i + 1 < bytes ? (uint8_t)text[i + 1] : 0);
        if ((set->begins[two >> 3] >> (two & 7) & 1) == 0)
            continue;
        const struct added_token *token = added_at(set, text + i, bytes - i);
        if (token == NULL)
            continue;
        *first_out = token->left ? added_space_before(text, i, at) : i;
        *end_out =
            token->right ? added_space_behind(text, bytes, i + token->bytes) : i + token->bytes;
        return token;
    }
    return NULL;
}
