/*
 * Pre-tokenizers: regular expressions that cut a text into words. PCRE2 runs them; where it reads a
 * pattern in another way than Oniguruma, which the `tokenizers` package uses, the pattern is
 * rewritten (\s) or refused.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "tokenizer/tokenizer_parts.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ByteLevel's own, GPT-2's (openai/gpt-2, encoder.py). */
#define SPLIT_GPT2                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* White_Space of Unicode: PCRE2 counts U+180E in too. */
#define SPLIT_SPACE                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"

#define SPLIT_STEPS      8
#define SPLIT_PATTERN    65536
#define SPLIT_JIT_STACK  (512 * 1024)
#define SPLIT_MATCH_MOST 10000000 /* steps of one search, without the compiler */

struct split {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool compiled; /* to machine code */
};

/* ---- patterns -------------------------------------------------------------------------------- */

/* Escapes that both libraries read alike, with Unicode. */
static bool split_escape_is_known(char c)
{
    return strchr("pPdDrnt", c) != NULL ||
           (c > ' ' && c < 127 && strchr("[](){}.*+?^$|\\/-'\"#&~@!%,:;<=>_`", c) != NULL);
}

/* The pattern as PCRE2 takes it. TESS_ERR_UNSUPPORTED for what it would read in another way. */
static enum tess_status split_translate(const char *pattern, const char *file,
                                        struct tokenizer_buffer *target)
{
    bool inside = false; /* of [] */
    for (const char *at = pattern; *at; at++) {
        const char *text = NULL;
        if (*at == '\\' && at[1] == 's')
            text = inside ? SPLIT_SPACE : "[" SPLIT_SPACE "]";
        else if (*at == '\\' && at[1] == 'S' && !inside)
            text = "[^" SPLIT_SPACE "]";
        else if (*at == '\\' && !split_escape_is_known(at[1]))
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "%s: pre_tokenizer: the pattern %s has \\%c%s, which is not read here", file,
                      pattern, at[1], inside ? " within []" : "");
        if (!inside && (*at == '^' || *at == '$' || *at == '.'))
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "%s: pre_tokenizer: the pattern %s has %c, which is not read here", file,
                      pattern, *at);
        if (inside && (*at == '[' || (at[0] == '&' && at[1] == '&')))
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "%s: pre_tokenizer: the pattern %s has [ or && within [], which are not read "
                      "here",
                      file, pattern);
        if (text != NULL) {
            TESS_TRY(tess__tokenizer_append(target, text, strlen(text)));
            at++;
        } else if (*at == '\\') {
            TESS_TRY(tess__tokenizer_append(target, at, 2));
            at++;
        } else {
            if (*at == '[' && !inside && at[1] == '^') {
                TESS_TRY(tess__tokenizer_append(target, at, 1));
                at++;
                inside = true;
            } else if (*at == '[' || *at == ']') {
                inside = *at == '[';
            }
            TESS_TRY(tess__tokenizer_append(target, at, 1));
        }
    }
    return tess__tokenizer_append(target, "", 1);
}

static enum tess_status split_compile(struct split *split, const char *pattern, const char *file)
{
    int error;
    PCRE2_SIZE where;
    split->code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, NULL);
    if (split->code == NULL) {
        char why[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof(why));
        TESS_FAIL(TESS_ERR_DATA, "%s: pre_tokenizer: the pattern %s is wrong: %s", file, pattern,
                  why);
    }
    split->compiled = pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE) == 0;
    split->match = pcre2_match_data_create_from_pattern(split->code, NULL);
    split->context = pcre2_match_context_create(NULL);
    split->stack = pcre2_jit_stack_create(32768, SPLIT_JIT_STACK, NULL);
    if (!split->match || !split->context || !split->stack)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a regular expression");
    pcre2_jit_stack_assign(split->context, NULL, split->stack);
    pcre2_set_match_limit(split->context, SPLIT_MATCH_MOST);
    return TESS_OK;
}

static enum tess_status splits_add(struct splits *splits, const char *pattern, const char *file)
{
    struct tokenizer_buffer text = {0};
    if (splits->count >= SPLIT_STEPS || strlen(pattern) > SPLIT_PATTERN)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: pre_tokenizer: more than %d patterns, or one of more than %d bytes", file,
                  SPLIT_STEPS, SPLIT_PATTERN);
    struct split *more = realloc(splits->step, (size_t)(splits->count + 1) * sizeof(*more));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a regular expression");
    splits->step = more;
    splits->step[splits->count] = (struct split){.code = NULL};
    enum tess_status status = split_translate(pattern, file, &text);
    if (status == TESS_OK)
        status = split_compile(&splits->step[splits->count++], text.at, file);
    free(text.at);
    return status;
}

/* ---- the JSON object ------------------------------------------------------------------------- */

static bool split_true(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* A text as a pattern for itself. */
static enum tess_status splits_add_text(struct splits *splits, const char *text, const char *file)
{
    struct tokenizer_buffer pattern = {0};
    enum tess_status status = TESS_OK;
    for (const char *at = text; *at && status == TESS_OK; at++) {
        if (strchr("\\[](){}.*+?^$|-", *at) != NULL)
            status = tess__tokenizer_append(&pattern, "\\", 1);
        if (status == TESS_OK)
            status = tess__tokenizer_append(&pattern, at, 1);
    }
    if (status == TESS_OK)
        status = tess__tokenizer_append(&pattern, "", 1);
    if (status == TESS_OK)
        status = splits_add(splits, pattern.at, file);
    free(pattern.at);
    return status;
}

static enum tess_status splits_read_split(struct splits *splits, const json_t *object,
                                          const char *file)
{
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const kinds[] = {"Regex", "String", NULL};
    const char *behavior = json_string_value(json_object_get(object, "behavior"));
    const json_t *pattern = json_object_get(object, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *text = json_string_value(json_object_get(pattern, "String"));
    TESS_TRY(tess__keys_check(object, known, "pre_tokenizer", file));
    TESS_TRY(tess__keys_check(pattern, kinds, "pre_tokenizer.pattern", file));
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: pre_tokenizer: behavior %s: only Isolated is read here", file,
                  behavior ? behavior : "is missing");
    if ((!regex || !*regex) && (!text || !*text))
        TESS_FAIL(TESS_ERR_DATA, "%s: pre_tokenizer: a Split without a pattern", file);
    /* What lies between the matches is isolated as well, so "invert" changes nothing. */
    return regex ? splits_add(splits, regex, file) : splits_add_text(splits, text, file);
}

static enum tess_status splits_read_digits(struct splits *splits, const json_t *object,
                                           const char *file)
{
    static const char *const known[] = {"type", "individual_digits", NULL};
    TESS_TRY(tess__keys_check(object, known, "pre_tokenizer", file));
    return splits_add(splits, split_true(object, "individual_digits", false) ? "\\p{N}" : "\\p{N}+",
                      file);
}

static enum tess_status splits_read_one(struct splits *splits, const json_t *object,
                                        const char *file, bool *bytes_out)
{
    static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    const char *type = json_string_value(json_object_get(object, "type"));
    if (type && strcmp(type, "Split") == 0)
        return splits_read_split(splits, object, file);
    if (type && strcmp(type, "Digits") == 0)
        return splits_read_digits(splits, object, file);
    if (!type || strcmp(type, "ByteLevel") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: pre_tokenizer %s: ByteLevel, Split, Digits and a Sequence of them are read "
                  "here",
                  file, type ? type : "without a type");
    TESS_TRY(tess__keys_check(object, known, "pre_tokenizer", file));
    if (split_true(object, "add_prefix_space", true))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s: pre_tokenizer: add_prefix_space is not read here",
                  file);
    *bytes_out = true;
    return split_true(object, "use_regex", true) ? splits_add(splits, SPLIT_GPT2, file) : TESS_OK;
}

enum tess_status tess__splits_read(struct splits *splits, const json_t *object, const char *file)
{
    const json_t *list = json_object_get(object, "pretokenizers");
    const char *type = json_string_value(json_object_get(object, "type"));
    static const char *const sequence[] = {"type", "pretokenizers", NULL};
    bool bytes = false;
    if (type && strcmp(type, "Sequence") == 0 && json_is_array(list)) {
        TESS_TRY(tess__keys_check(object, sequence, "pre_tokenizer", file));
        for (size_t i = 0; i < json_array_size(list); i++) {
            if (bytes)
                TESS_FAIL(TESS_ERR_UNSUPPORTED,
                          "%s: pre_tokenizer: something follows ByteLevel, which is not read here",
                          file);
            TESS_TRY(splits_read_one(splits, json_array_get(list, i), file, &bytes));
        }
    } else if (json_is_object(object)) {
        TESS_TRY(splits_read_one(splits, object, file, &bytes));
    }
    if (!bytes)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: not a byte-level tokenizer (its pre_tokenizer has no ByteLevel): those of "
                  "GPT-2, Llama 3, Qwen and their like are read here; of SentencePiece's give the "
                  "tokenizer.model",
                  file);
    return TESS_OK;
}

void tess__splits_fini(struct splits *splits)
{
    for (int i = 0; i < splits->count; i++) {
        pcre2_code_free(splits->step[i].code);
        pcre2_match_data_free(splits->step[i].match);
        pcre2_match_context_free(splits->step[i].context);
        pcre2_jit_stack_free(splits->step[i].stack);
    }
    free(splits->step);
}

/* ---- cutting --------------------------------------------------------------------------------- */

/* The next match at or after `at`; *first_out == bytes: none. */
static enum tess_status split_next(const struct split *split, const char *text, size_t bytes,
                                   size_t at, size_t *first_out, size_t *end_out)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    const int code = split->compiled ? pcre2_jit_match(split->code, (PCRE2_SPTR)text, bytes, at,
                                                       options, split->match, split->context)
                                     : pcre2_match(split->code, (PCRE2_SPTR)text, bytes, at,
                                                   options, split->match, split->context);
    *first_out = *end_out = bytes;
    if (code == PCRE2_ERROR_NOMATCH)
        return TESS_OK;
    if (code < 0) {
        char why[256];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        TESS_FAIL(TESS_ERR_DATA, "the pre_tokenizer's pattern fails on this text: %s", why);
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(split->match);
    *first_out = place[0];
    *end_out = place[1];
    return TESS_OK;
}

enum tess_status tess__splits_encode(const struct splits *splits, int step, struct bpe *bpe,
                                     const char *text, size_t bytes, struct tess__ids *ids)
{
    if (step == splits->count)
        return bytes > 0 ? tess__bpe_word(bpe, text, bytes, ids) : TESS_OK;
    const bool last = step + 1 == splits->count;
    for (size_t at = 0; at < bytes;) {
        size_t first, end;
        TESS_TRY(split_next(&splits->step[step], text, bytes, at, &first, &end));
        if (first > at)
            TESS_TRY(tess__splits_encode(splits, step + 1, bpe, text + at, first - at, ids));
        if (first < end && last)
            TESS_TRY(tess__bpe_word(bpe, text + first, end - first, ids));
        else if (first < end)
            TESS_TRY(tess__splits_encode(splits, step + 1, bpe, text + first, end - first, ids));
        at = end;
    }
    return TESS_OK;
}
