/* Variants: their text, read from left to right so that an error can name its position. */
#include "study/variant.h"

#include "tessera/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIANT_BLANKS " \t\r"
#define VARIANT_ENDS   ";\n"
#define GRID_MAX       (INT64_C(1) << 20)

struct variant_reader {
    const char *text, *at;
    char *store; /* next free byte of the storage */
    int number;  /* of the variant, from 1 */
};

TESS_PRINTF(3, 4)
static enum tess_status variant_fail(const struct variant_reader *reader, const char *at,
                                     const char *format, ...)
{
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    TESS_FAIL(TESS_ERR_USAGE, "variants: variant %d, character %d: %s", reader->number,
              (int)(at - reader->text) + 1, what);
}

/* Keep `length` bytes without blanks at their end, after `prefix`. */
static char *variant_keep(struct variant_reader *reader, const char *prefix, const char *text,
                          size_t length)
{
    char *kept = reader->store;
    while (length > 0 && strchr(VARIANT_BLANKS, text[length - 1]))
        length--;
    reader->store += sprintf(kept, "%s%.*s", prefix, (int)length, text) + 1;
    return kept;
}

/* "NAME" and "[GOAL]", including the colon. */
static enum tess_status variant_read_head(struct variant_reader *reader,
                                          struct tess__variant *variant)
{
    const char *begin = reader->at;
    size_t length = strcspn(begin, "[]:=" VARIANT_ENDS);
    variant->name = variant_keep(reader, "", begin, length);
    variant->goal = "";
    reader->at = begin + length;
    if (!variant->name[0])
        return variant_fail(reader, begin, "a name was expected, as in 'NAME: option=value'");
    if (strlen(variant->name) >= TESS__VARIANT_NAME_MAX)
        return variant_fail(reader, begin, "the name '%.40s' is longer than %d characters",
                            variant->name, TESS__VARIANT_NAME_MAX - 1);
    if (*reader->at == '[') {
        const char *goal = reader->at + 1;
        length = strcspn(goal, "]\n");
        if (goal[length] != ']')
            return variant_fail(reader, reader->at, "the goal has no closing ']'");
        goal += strspn(goal, VARIANT_BLANKS);
        length = strcspn(goal, "]");
        variant->goal = variant_keep(reader, "", goal, length);
        reader->at = goal + length + 1;
        reader->at += strspn(reader->at, VARIANT_BLANKS);
    }
    if (*reader->at != ':')
        return variant_fail(reader, reader->at,
                            "':' was expected after the name '%s', as in 'NAME: option=value'",
                            variant->name);
    reader->at++;
    return TESS_OK;
}

/* Options that belong to the whole series. */
static const char *variant_refusal(const char *option)
{
    static const struct {
        const char *option, *why;
    } table[] = {
        {"steps", "is the same for all variants: give it to the command"},
        {"epochs", "does not apply: every run is --steps long"},
        {"run", "does not apply: these runs write no folder"},
        {"json", "is the command's own"},
        {"variants", "is the command's own"},
        {"strategies", "is the command's own; a variant has one: strategy=NAME"},
        {"data", "is the same for all variants: give it to the command"},
        {"data.size", "is the same for all variants: give it to the command"},
        {"data.length", "is the same for all variants: give it to the command"},
        {"data.validation", "is the same for all variants: give it to the command"},
        {"data.validation-files", "is the same for all variants: give it to the command"},
        {"synthetic-rows", "is the same for all variants: give it to the command"},
        {"set", "is not needed: write option=value"},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].option, option) == 0)
            return table[i].why;
    return NULL;
}

static enum tess_status variant_read_word(struct variant_reader *reader,
                                          struct tess__variant *variant)
{
    const char *begin = reader->at;
    size_t length = strcspn(begin, VARIANT_BLANKS VARIANT_ENDS), name;
    char option[64];
    reader->at = begin + length;
    if (length > 2 && strncmp(begin, "--", 2) == 0) {
        begin += 2;
        length -= 2;
    }
    name = strcspn(begin, "=" VARIANT_BLANKS VARIANT_ENDS);
    if (name == 0 || begin[name] != '=')
        return variant_fail(reader, begin, "'%.*s' is not of the form option=value",
                            (int)(length < 60 ? length : 60), begin);
    if (variant->word_count == TESS__VARIANT_WORD_MAX)
        return variant_fail(reader, begin, "more than %d options", TESS__VARIANT_WORD_MAX);
    snprintf(option, sizeof(option), "%.*s", (int)name, begin);
    const char *why = variant_refusal(option);
    if (why)
        return variant_fail(reader, begin, "'%s' %s", option, why);
    variant->word[variant->word_count++] = variant_keep(reader, "--", begin, length);
    return TESS_OK;
}

static enum tess_status variant_read(struct variant_reader *reader, struct tess__variants *variants)
{
    struct tess__variant *variant = &variants->item[variants->count];
    const char *begin = reader->at;
    if (variants->count == TESS__LIST_MAX)
        return variant_fail(reader, begin, "more than %d variants", TESS__LIST_MAX);
    *variant = (struct tess__variant){0};
    TESS_TRY(variant_read_head(reader, variant));
    for (int i = 0; i < variants->count; i++)
        if (strcmp(variants->item[i].name, variant->name) == 0)
            return variant_fail(reader, begin, "the name '%s' is given twice", variant->name);
    for (;;) {
        reader->at += strspn(reader->at, VARIANT_BLANKS);
        if (!*reader->at || strchr(VARIANT_ENDS, *reader->at))
            break;
        TESS_TRY(variant_read_word(reader, variant));
    }
    variants->count++;
    return TESS_OK;
}

enum tess_status tess__variants_parse(const char *text, struct tess__variants *variants)
{
    size_t length = strlen(text);
    struct variant_reader reader = {.text = text, .at = text, .number = 1};
    *variants = (struct tess__variants){0};
    if (length > TESS__VARIANT_TEXT_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "variants: the text is longer than %d characters",
                  TESS__VARIANT_TEXT_MAX);
    /* A word "a=b" is kept as "--a=b" with its end: at most three bytes more than it takes here. */
    variants->storage = malloc(4 * length + 4);
    if (!variants->storage)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the variants");
    reader.store = variants->storage;
    for (;;) {
        reader.at += strspn(reader.at, VARIANT_BLANKS VARIANT_ENDS);
        if (!*reader.at)
            break;
        TESS_TRY(variant_read(&reader, variants));
        reader.number++;
    }
    if (variants->count == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "variants: none is given; write \"NAME: option=value; NAME: option=value\"");
    return TESS_OK;
}

void tess__variants_free(struct tess__variants *variants)
{
    free(variants->storage);
    variants->storage = NULL;
}

enum tess_status tess__variants_add(struct tess__variants *variants, const char *name, char *word)
{
    struct tess__variant *variant = &variants->item[variants->count];
    if (variants->count == TESS__LIST_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "more than %d runs to compare", TESS__LIST_MAX);
    *variant = (struct tess__variant){.name = name, .goal = "", .word_count = 1, .word = {word}};
    variants->count++;
    return TESS_OK;
}

const char *tess__variant_value(const struct tess__variant *variant, const char *option)
{
    size_t length = strlen(option);
    const char *value = NULL;
    for (int i = 0; i < variant->word_count; i++)
        if (strncmp(variant->word[i] + 2, option, length) == 0 &&
            variant->word[i][2 + length] == '=')
            value = variant->word[i] + 2 + length + 1;
    return value;
}

static int64_t variant_common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

int64_t tess__variants_grid(const struct tess__variant_shape *shape, int count)
{
    int64_t grid = 1;
    for (int i = 0; i < count; i++) {
        grid = variant_common_multiple(grid, shape[i].ranks * shape[i].accumulate);
        if (grid > GRID_MAX)
            return 0;
    }
    for (int i = 0; i < count; i++) {
        int64_t own = shape[i].ranks * shape[i].accumulate, leaves = grid / own;
        if (shape[i].batch_size % grid != 0 || (own > 1 && (leaves & (leaves - 1)) != 0))
            return 0;
    }
    return grid;
}
