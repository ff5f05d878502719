/* The help text of an option set: one option a line, aligned, wrapped, grouped by prefix. */
#include "base/options_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_WIDTH    100
#define HELP_LEFT_MAX 36 /* longer names have their text on the next line */

/* "  --name N"; returns its length. */
static int help_left(const struct tess__option_entry *entry, char *text, size_t text_bytes)
{
    static const char *const word[] = {
        [TESS_OPTION_BOOL] = "",        [TESS_OPTION_INT] = " N",
        [TESS_OPTION_REAL] = " X",      [TESS_OPTION_STRING] = " TEXT",
        [TESS_OPTION_CHOICE] = " WORD", [TESS_OPTION_INTS] = " N,N,...",
    };
    enum tess_option_type type = entry->shown->type;
    return snprintf(text, text_bytes, "  --%s%s%s", type == TESS_OPTION_BOOL ? "[no-]" : "",
                    entry->name, word[type]);
}

/* What it does, what may be written, the default. */
static void help_right(const struct tess_option *option, char *text, size_t text_bytes)
{
    char expected[1024];
    const char *fallback = option->fallback != NULL ? option->fallback : "";
    tess__option_expected(option, expected, sizeof(expected));
    /* The word after the name shows that it is a number; the limits begin after that. */
    static const char *const skip[] = {"a whole number", "a number", "a text", "on or off"};
    const char *limits = expected;
    for (size_t i = 0; i < sizeof(skip) / sizeof(skip[0]); i++)
        if (strncmp(expected, skip[i], strlen(skip[i])) == 0)
            limits = expected + strlen(skip[i]);
    limits += *limits == ' ';
    const char *join = *limits && *fallback ? "; " : "";
    const char *word = *fallback ? "default " : "";
    if (*limits || *fallback)
        snprintf(text, text_bytes, "%s [%s%s%s%s]", option->help != NULL ? option->help : "",
                 limits, join, word, fallback);
    else
        snprintf(text, text_bytes, "%s", option->help != NULL ? option->help : "");
}

/* Words of `text` from `column` on, wrapped to stay right of `left`. */
static void help_wrap(const char *text, int left, int column)
{
    bool first = true;
    while (*(text += strspn(text, " "))) {
        int length = (int)strcspn(text, " ");
        if (!first && column + 1 + length > HELP_WIDTH) {
            printf("\n%*s", left, "");
            column = left;
            first = true;
        }
        printf("%s%.*s", first ? "" : " ", length, text);
        column += length + !first;
        first = false;
        text += length;
    }
    putchar('\n');
}

static void help_entry(const struct tess__option_entry *entry, int left)
{
    char name[TESS__NAME_MAX + 32], text[2048];
    int length = help_left(entry, name, sizeof(name));
    help_right(entry->shown, text, sizeof(text));
    printf("%s", name);
    if (length + 2 > left) {
        putchar('\n');
        length = 0;
    }
    printf("%*s", left - length, "");
    help_wrap(text, left, left);
}

void tess_options_print_help(const struct tess_options *options)
{
    int left = 0;
    for (int i = 0; i < options->entry_count; i++) {
        char name[TESS__NAME_MAX + 32];
        int length = help_left(&options->entry[i], name, sizeof(name)) + 2;
        if (length > left && length <= HELP_LEFT_MAX)
            left = length;
    }
    if (left == 0)
        left = HELP_LEFT_MAX;
    for (int i = 0; i < options->entry_count; i++) {
        const char *prefix = options->entry[i].prefix;
        bool shown = false; /* its group, with the first of its options */
        for (int j = 0; j < i && !shown; j++)
            shown = strcmp(options->entry[j].prefix, prefix) == 0;
        if (shown)
            continue;
        printf(*prefix ? "%sOptions of %s:\n" : "%sOptions:\n", i > 0 ? "\n" : "", prefix);
        for (int j = i; j < options->entry_count; j++)
            if (strcmp(options->entry[j].prefix, prefix) == 0)
                help_entry(&options->entry[j], left);
    }
}
