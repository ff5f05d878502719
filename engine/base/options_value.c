/* Values: from text, to text, and what may be written, by the type of an option. */
#include "base/options_set.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool value_has_limits(const struct tess_option *option)
{
    return option->min != 0 || option->max != 0;
}

static bool value_in_limits(const struct tess_option *option, double value)
{
    return !value_has_limits(option) || (value >= option->min && value <= option->max);
}

/* " from 1 to 64", " of at least 1", "". */
static void value_limits(const struct tess_option *option, char *text, size_t text_bytes)
{
    const char *digits = option->type == TESS_OPTION_REAL ? "%.12g" : "%.0f";
    bool low = option->min > -9e18, high = option->max < 9e18; /* beyond: as good as none */
    char min[64], max[64]; /* only numbers below 9e18 are shown */
    snprintf(min, sizeof(min), digits, low ? option->min : 0);
    snprintf(max, sizeof(max), digits, high ? option->max : 0);
    if (!value_has_limits(option) || (!low && !high))
        snprintf(text, text_bytes, "%s", "");
    else if (!high)
        snprintf(text, text_bytes, " of at least %s", min);
    else if (!low)
        snprintf(text, text_bytes, " of at most %s", max);
    else
        snprintf(text, text_bytes, " from %s to %s", min, max);
}

/* "a, b or c" of "a|b|c". */
static void value_choice_list(const char *choices, char *text, size_t text_bytes)
{
    size_t used = 0;
    for (const char *c = choices; *c && used + 5 < text_bytes; c++) {
        if (*c != '|') {
            text[used++] = *c;
            continue;
        }
        const char *join = strchr(c + 1, '|') != NULL ? ", " : " or ";
        memcpy(text + used, join, strlen(join));
        used += strlen(join);
    }
    text[used] = '\0';
}

void tess__option_expected(const struct tess_option *option, char *text, size_t text_bytes)
{
    static const char *const what[] = {[TESS_OPTION_BOOL] = "on or off",
                                       [TESS_OPTION_INT] = "a whole number",
                                       [TESS_OPTION_REAL] = "a number",
                                       [TESS_OPTION_STRING] = "a text"};
    char limits[160];
    value_limits(option, limits, sizeof(limits));
    if (option->type == TESS_OPTION_CHOICE)
        value_choice_list(option->choices, text, text_bytes);
    else if (option->type == TESS_OPTION_INTS)
        snprintf(text, text_bytes, "up to %d whole numbers%s, separated by commas", TESS_INTS_MAX,
                 limits);
    else
        snprintf(text, text_bytes, "%s%s", what[option->type], limits);
}

/* Whether `text` is one of the words of a BOOL, and which. */
static bool value_parse_bool(const char *text, bool *on_out)
{
    static const char *const on[] = {"on", "true", "yes", "1"};
    static const char *const off[] = {"off", "false", "no", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(text, on[i]) != 0 && strcasecmp(text, off[i]) != 0)
            continue;
        *on_out = strcasecmp(text, on[i]) == 0;
        return true;
    }
    return false;
}

bool tess_options_is_switch_word(const char *word)
{
    bool on;
    return value_parse_bool(word, &on);
}

/* [+-]digits[k|M|G|Ki|Mi|Gi]. NULL when fine, else what is wrong with it. */
static const char *value_int(const struct tess_option *option, const char *text, size_t length,
                             int64_t *value_out)
{
    static const struct {
        const char *suffix;
        int64_t factor;
    } unit[] = {
        {"", 1},         {"k", 1000},     {"M", 1000000},  {"G", 1000000000},
        {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
    };
    size_t at = 0;
    bool negative = length > 0 && text[0] == '-';
    if (length > 0 && (text[0] == '-' || text[0] == '+'))
        at++;
    size_t first = at;
    int64_t value = 0;
    bool fits = true;
    for (; at < length && text[at] >= '0' && text[at] <= '9'; at++) {
        int64_t digit = text[at] - '0';
        fits = fits && !__builtin_mul_overflow(value, (int64_t)10, &value) &&
               !__builtin_add_overflow(value, negative ? -digit : digit, &value);
    }
    if (at == first)
        return "is not a whole number";
    for (size_t u = 0; u < sizeof(unit) / sizeof(unit[0]); u++) {
        if (strlen(unit[u].suffix) != length - at ||
            memcmp(text + at, unit[u].suffix, length - at) != 0)
            continue;
        if (!fits || __builtin_mul_overflow(value, unit[u].factor, value_out))
            return "does not fit in 64 bits";
        return value_in_limits(option, (double)*value_out) ? NULL : "is out of range";
    }
    return "is not a whole number (suffixes are k, M, G and Ki, Mi, Gi)";
}

/* [+-]digits[.digits][e[+-]digits]: strtod alone would take nan, inf and hexadecimal too. */
static const char *value_real(const struct tess_option *option, const char *text, double *value_out)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t whole = strspn(at, "0123456789"), part = 0;
    at += whole;
    if (*at == '.') {
        part = strspn(at + 1, "0123456789");
        at += 1 + part;
    }
    if (whole + part == 0)
        return "is not a number";
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '-' || at[1] == '+');
        size_t power = strspn(at, "0123456789");
        if (power == 0)
            return "is not a number";
        at += power;
    }
    if (*at)
        return "is not a number";
    errno = 0;
    double value = strtod(text, NULL);
    bool fits = errno != ERANGE;
    if (!fits)
        return "does not fit in a double";
    *value_out = value;
    return value_in_limits(option, value) ? NULL : "is out of range";
}

/* Which of "a|b|c" is `text`? Where none is, `hint` becomes "; did you mean 'x'?" or stays. */
static bool value_choice(const char *choices, const char *text, int32_t *choice_out, char *hint,
                         size_t hint_bytes)
{
    int least = TESS__WORD_FAR;
    for (int32_t index = 0;; index++) {
        const size_t length = strcspn(choices, "|");
        char word[TESS__QUOTE_MAX];
        if (length == strlen(text) && memcmp(choices, text, length) == 0) {
            *choice_out = index;
            return true;
        }
        snprintf(word, sizeof(word), "%.*s", (int)length, choices);
        const bool meant = strcmp(text, "gpu") == 0 && strcmp(word, "cuda") == 0;
        const int distance = meant ? 0 : tess__word_distance(text, word);
        if (distance < least) {
            least = distance;
            snprintf(hint, hint_bytes, "; did you mean '%s'?", word);
        }
        if (!choices[length])
            return false;
        choices += length + 1;
    }
}

/* NULL when fine; else what is wrong with element `*at_out`, from 0. */
static const char *value_ints(const struct tess_option *option, const char *text,
                              struct tess_ints *ints_out, int *at_out,
                              char element[TESS__QUOTE_MAX])
{
    if (!text[strspn(text, " ")])
        return NULL; /* no numbers */
    for (;;) {
        *at_out = ints_out->count;
        text += strspn(text, " ");
        size_t end = strcspn(text, ","), length = end;
        while (length > 0 && text[length - 1] == ' ')
            length--;
        snprintf(element, TESS__QUOTE_MAX, "%.*s", length < 40 ? (int)length : 40, text);
        if (ints_out->count == TESS_INTS_MAX)
            return "is one too many";
        int64_t value = 0;
        const char *wrong = value_int(option, text, length, &value);
        if (wrong != NULL)
            return wrong;
        ints_out->value[ints_out->count++] = value;
        if (!text[end])
            return NULL;
        text += end + 1;
    }
}

bool tess__option_parse(const struct tess_option *option, const char *text,
                        union tess__option_value *value_out, char *problem, size_t problem_bytes)
{
    const char *wrong = NULL;
    char hint[TESS__QUOTE_MAX + 32] = "", element[TESS__QUOTE_MAX], quote[TESS__QUOTE_MAX];
    union tess__option_value value;
    memset(&value, 0, sizeof(value));
    int at = 0;
    switch (option->type) {
    case TESS_OPTION_BOOL:
        if (!value_parse_bool(text, &value.on))
            wrong = "is neither on nor off";
        break;
    case TESS_OPTION_INT:
        wrong = value_int(option, text, strlen(text), &value.integer);
        break;
    case TESS_OPTION_REAL:
        wrong = value_real(option, text, &value.real);
        break;
    case TESS_OPTION_STRING:
    case TESS_OPTION_TOPIC:
        break;
    case TESS_OPTION_CHOICE:
        if (!value_choice(option->choices, text, &value.choice, hint, sizeof(hint)))
            wrong = "is not known";
        break;
    case TESS_OPTION_INTS:
        wrong = value_ints(option, text, &value.ints, &at, element);
        break;
    }
    if (wrong == NULL) {
        *value_out = value;
        return true;
    }
    char expected[1024];
    tess__option_expected(option, expected, sizeof(expected));
    if (option->type == TESS_OPTION_INTS)
        snprintf(problem, problem_bytes, "number %d, '%s', %s; expected %s", at + 1,
                 tess__quote(element, quote), wrong, expected);
    else
        snprintf(problem, problem_bytes, "'%s' %s; expected %s%s", tess__quote(text, quote), wrong,
                 expected, hint);
    return false;
}

/* The shortest of 15, 16 or 17 digits that is read back as the same number. */
static void value_print_real(double value, char text[TESS__VALUE_TEXT_MAX])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, TESS__VALUE_TEXT_MAX, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
}

void tess__option_print(const struct tess_option *option, const union tess__option_value *value,
                        char text[TESS__VALUE_TEXT_MAX])
{
    const char *name = option->choices;
    size_t used = 0;
    text[0] = '\0';
    switch (option->type) {
    case TESS_OPTION_BOOL:
        snprintf(text, TESS__VALUE_TEXT_MAX, "%s", value->on ? "on" : "off");
        break;
    case TESS_OPTION_INT:
        snprintf(text, TESS__VALUE_TEXT_MAX, "%" PRId64, value->integer);
        break;
    case TESS_OPTION_REAL:
        value_print_real(value->real, text);
        break;
    case TESS_OPTION_CHOICE:
        for (int32_t i = 0; i < value->choice; i++)
            name += strcspn(name, "|") + 1;
        snprintf(text, TESS__VALUE_TEXT_MAX, "%.*s", (int)strcspn(name, "|"), name);
        break;
    case TESS_OPTION_INTS:
        for (int32_t i = 0; i < value->ints.count; i++)
            used += (size_t)snprintf(text + used, TESS__VALUE_TEXT_MAX - used, "%s%" PRId64,
                                     i > 0 ? "," : "", value->ints.value[i]);
        break;
    case TESS_OPTION_STRING:
    case TESS_OPTION_TOPIC:
        break; /* its text is the value */
    }
}
