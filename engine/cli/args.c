/* Words of the command line that a command takes for itself before the configuration sees them. */
#include "cli/args.h"

#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum tess_status tess__args_init(struct tess__args *args, int argc, char **argv)
{
    if (argc > TESS__ARGS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "%d words on the command line; at most %d are taken", argc,
                  TESS__ARGS_MAX);
    args->count = argc;
    for (int i = 0; i < argc; i++)
        args->word[i] = argv[i];
    return TESS_OK;
}

bool tess__args_has(const struct tess__args *args, const char *name)
{
    for (int i = 0; i < args->count; i++)
        if (strncmp(args->word[i], "--", 2) == 0 && strcmp(args->word[i] + 2, name) == 0)
            return true;
        else if (strcmp(args->word[i], "-h") == 0 && strcmp(name, "help") == 0)
            return true;
    return false;
}

static void args_remove(struct tess__args *args, int first, int count)
{
    memmove(args->word + first, args->word + first + count,
            (size_t)(args->count - first - count) * sizeof args->word[0]);
    args->count -= count;
}

/* The value behind "name=" in `text`, or NULL. */
static const char *args_after(const char *text, const char *name)
{
    size_t length = strlen(name);

    return strncmp(text, name, length) == 0 && text[length] == '=' ? text + length + 1 : NULL;
}

enum tess_status tess__args_take(struct tess__args *args, const char *name, const char **value_out)
{
    int i = 0;

    while (i < args->count) {
        const char *word = args->word[i], *value = NULL;
        int used = 1;

        if (strncmp(word, "--", 2) != 0) {
            i++;
            continue;
        }
        value = args_after(word + 2, name);
        if (value == NULL && strcmp(word + 2, name) == 0) {
            if (i + 1 >= args->count)
                TESS_FAIL(TESS_ERR_USAGE, "--%s wants a value", name);
            value = args->word[i + 1];
            used = 2;
        } else if (value == NULL && strcmp(word, "--set") == 0 && i + 1 < args->count) {
            value = args_after(args->word[i + 1], name);
            used = 2;
        }
        if (value == NULL) {
            i++;
            continue;
        }
        *value_out = value;
        args_remove(args, i, used);
    }
    return TESS_OK;
}

enum tess_status tess__args_take_number(struct tess__args *args, const char *name, int64_t min,
                                        int64_t max, int64_t *value_out)
{
    const char *text = NULL;

    TESS_TRY(tess__args_take(args, name, &text));
    return text != NULL ? tess__list_number(name, text, min, max, value_out) : TESS_OK;
}

enum tess_status tess__args_take_switch(struct tess__args *args, const char *name, bool *on_out)
{
    for (int i = 0; i < args->count;) {
        const char *word = args->word[i], *value;

        if (strncmp(word, "--", 2) != 0) {
            i++;
            continue;
        }
        value = args_after(word + 2, name);
        if (value != NULL && strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
            TESS_FAIL(TESS_ERR_USAGE, "--%s=%s: a switch is on or off", name, value);
        if (value == NULL && strcmp(word + 2, name) != 0) {
            i++;
            continue;
        }
        *on_out = value == NULL || strcmp(value, "on") == 0;
        args_remove(args, i, 1);
    }
    return TESS_OK;
}

bool tess__args_is_yaml(const char *word)
{
    const char *point = strrchr(word, '.');

    return point != NULL && (strcmp(point, ".yaml") == 0 || strcmp(point, ".yml") == 0);
}

static bool args_below(const char *name, const char *part)
{
    size_t length = strlen(part);

    return strncmp(name, part, length) == 0 && name[length] == '.';
}

void tess__args_drop_part(struct tess__args *args, const char *part)
{
    for (int i = 0; i < args->count;) {
        const char *word = args->word[i];
        const char *next = i + 1 < args->count ? args->word[i + 1] : NULL;
        bool negated = strncmp(word, "--no-", 5) == 0 && args_below(word + 5, part);

        if (strcmp(word, "--set") == 0 && next != NULL && args_below(next, part))
            args_remove(args, i, 2);
        else if (negated || (strncmp(word, "--", 2) == 0 && args_below(word + 2, part)))
            args_remove(args, i,
                        negated || strchr(word, '=') != NULL || next == NULL ||
                                strncmp(next, "--", 2) == 0 || tess__args_is_yaml(next)
                            ? 1
                            : 2);
        else
            i++;
    }
}

enum tess_status tess__args_add_word(struct tess__args *args, const char *word)
{
    if (args->count == TESS__ARGS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "more than %d words on the command line", TESS__ARGS_MAX);
    /* argv's words are not const in C, but nobody writes to them. */
    args->word[args->count++] = (char *)word;
    return TESS_OK;
}

enum tess_status tess__args_add(struct tess__args *args, const char *name, const char *value)
{
    TESS_TRY(tess__args_add_word(args, name));
    return tess__args_add_word(args, value);
}

enum tess_status tess__list_split(const char *option, char *text, const char *item[TESS__LIST_MAX],
                                  int *count_out)
{
    int count = 0;

    for (char *next = text; next != NULL;) {
        char *word = next;

        next = strchr(word, ',');
        if (next != NULL)
            *next++ = '\0';
        if (*word == '\0')
            TESS_FAIL(TESS_ERR_USAGE, "--%s wants a list such as a,b,c: an item is empty", option);
        if (count == TESS__LIST_MAX)
            TESS_FAIL(TESS_ERR_USAGE, "--%s has more than %d items", option, TESS__LIST_MAX);
        item[count++] = word;
    }
    *count_out = count;
    return TESS_OK;
}

enum tess_status tess__list_number(const char *option, const char *text, int64_t min, int64_t max,
                                   int64_t *value_out)
{
    char *end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < min || value > max)
        TESS_FAIL(TESS_ERR_USAGE, "--%s: '%s' is not a whole number from %lld to %lld", option,
                  text, (long long)min, (long long)max);
    *value_out = value;
    return TESS_OK;
}
