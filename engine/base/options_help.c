/* The help text of an option set: one option a line, aligned, wrapped, grouped by topic. */
#include "base/options_set.h"
#include "base/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELP_WIDTH       100 /* at most; a narrower terminal's own, down to HELP_WIDTH_MIN */
#define HELP_WIDTH_MIN   60
#define HELP_LEFT_MAX    36 /* longer names have their text on the next line */
#define HELP_LEFT_NARROW 26

int tess__help_left(const struct tess__option_entry *entry, char *text, size_t text_bytes)
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

void tess__help_right(const struct tess_option *option, char *text, size_t text_bytes)
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
static void help_wrap(const char *text, int left, int column, int width)
{
    bool first = true;
    while (*(text += strspn(text, " "))) {
        int length = (int)strcspn(text, " ");
        if (!first && column + 1 + length > width) {
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

static void help_entry(const struct tess__option_entry *entry, int left, int width)
{
    char name[TESS__NAME_MAX + 32], text[2048];
    int length = tess__help_left(entry, name, sizeof(name));
    tess__help_right(entry->shown, text, sizeof(text));
    printf("%s", name);
    if (length + 2 > left) {
        putchar('\n');
        length = 0;
    }
    printf("%*s", left - length, "");
    help_wrap(text, left, left, width);
}

/* ---- which options -------------------------------------------------------------------------- */

/* Is it the first entry of its group? */
static bool help_is_head(const struct tess_options *options, int i)
{
    for (int j = 0; j < i; j++)
        if (strcmp(options->entry[j].group, options->entry[i].group) == 0)
            return false;
    return true;
}

/* Options that a command adds or explains itself belong to its short help. */
static bool help_is_own(const struct tess__option_entry *entry)
{
    return *entry->group == '\0' || entry->shown != entry->option;
}

static void help_group(const struct tess_options *options, const char *group, int left, int width)
{
    printf(*group ? "Options of %s:\n" : "Options:\n", group);
    for (int i = 0; i < options->entry_count; i++)
        if (strcmp(options->entry[i].group, group) == 0)
            help_entry(&options->entry[i], left, width);
}

static void help_short(const struct tess_options *options, const char *first, int left, int width)
{
    printf("Options:\n");
    for (int i = 0; i < options->entry_count; i++)
        if (help_is_own(&options->entry[i]))
            help_entry(&options->entry[i], left, width);
    while (first && *(first += strspn(first, " "))) {
        char name[TESS__NAME_MAX];
        const int length = (int)strcspn(first, " ");
        snprintf(name, sizeof(name), "%.*s", length, first);
        const struct tess__option_entry *entry = tess__options_find(options, name);
        if (entry && !help_is_own(entry))
            help_entry(entry, left, width);
        first += length;
    }
    printf("\nMore options, by topic (--help TOPIC), or all of them (--help all):\n ");
    int column = 1;
    for (int i = 0; i < options->entry_count; i++) {
        const char *group = options->entry[i].group;
        if (!*group || !help_is_head(options, i))
            continue;
        if (column + 1 + (int)strlen(group) > width)
            column = printf("\n ") - 1;
        column += printf(" %s", group);
    }
    putchar('\n');
}

static int help_width(void)
{
    const int columns = tess__terminal_columns(STDOUT_FILENO);
    if (columns == 0 || columns > HELP_WIDTH)
        return HELP_WIDTH;
    return columns < HELP_WIDTH_MIN ? HELP_WIDTH_MIN : columns;
}

bool tess_options_print_help(const struct tess_options *options, const char *topic,
                             const char *first)
{
    const int width = help_width(),
              left_max = width < HELP_WIDTH ? HELP_LEFT_NARROW : HELP_LEFT_MAX;
    int left = 0;
    bool found = false;
    for (int i = 0; i < options->entry_count; i++) {
        char name[TESS__NAME_MAX + 32];
        int length = tess__help_left(&options->entry[i], name, sizeof(name)) + 2;
        if (length > left && length <= left_max)
            left = length;
    }
    if (left == 0)
        left = left_max;
    if (topic && !*topic) {
        help_short(options, first, left, width);
        return true;
    }
    for (int i = 0; i < options->entry_count; i++) {
        const char *group = options->entry[i].group;
        if (!help_is_head(options, i) || (topic && strcmp(group, topic) != 0))
            continue;
        if (found)
            putchar('\n');
        help_group(options, group, left, width);
        found = true;
    }
    return found;
}
