/* The words that may stand for the last one of a command line. Shells ask for them: the scripts
 * that they read are in engine/cli/completion. */
#include "cli/help.h"

#include "base/options_set.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <string.h>

/* One line, if `word` begins with `given`. `before`: what stands in front of both. */
static void complete_word(const char *given, const char *before, const char *word, const char *what)
{
    if (strncmp(word, given, strlen(given)) == 0)
        printf("%s%s\t%.*s\n", before, word, (int)strcspn(what, ";"), what);
}

/* The words of "a|b|c". */
static void complete_choices(const char *given, const char *before, const char *choices)
{
    while (choices && *choices) {
        char word[64];
        const int length = (int)strcspn(choices, "|");
        snprintf(word, sizeof(word), "%.*s", length, choices);
        complete_word(given, before, word, "");
        choices += length + (choices[length] == '|');
    }
}

struct complete {
    const char *given;  /* what is there of the word */
    const char *option; /* the option whose value it is, with its "--"; NULL: it is an option */
    const char *before; /* in front of the value, in the same word */
};

/* A part's name, of a strategy also one behind '+'. */
static bool complete_part(const struct complete *of)
{
    for (int k = 0; k < TESS__NAMERS; k++) {
        const enum tess_registry_kind kind = tess__namer_list[k].kind;
        char before[256];
        int count = 0;
        if (strcmp(of->option, tess__namer_list[k].option) != 0)
            continue;
        const char *const *name = tess_registry_names(kind, &count);
        const char *given = of->given;
        if (kind == TESS_REGISTRY_STRATEGY)
            for (const char *c = of->given; *c; c++)
                given = *c == '+' || *c == ',' ? c + 1 : given;
        snprintf(before, sizeof(before), "%s%.*s", of->before, (int)(given - of->given), of->given);
        for (int i = 0; i < count; i++)
            complete_word(given, before, name[i], tess_registry_summary(kind, name[i]));
        return true;
    }
    return false;
}

static enum tess_status complete_show(const struct tess_options *options, void *context)
{
    const struct complete *of = context;
    for (int i = 0; i < options->entry_count; i++) {
        const struct tess__option_entry *entry = &options->entry[i];
        char word[TESS__NAME_MAX + 8];
        if (of->option) {
            if (strcmp(of->option + 2, entry->name) == 0)
                complete_choices(of->given, of->before, entry->shown->choices);
            continue;
        }
        snprintf(word, sizeof(word), "--%s", entry->name);
        complete_word(of->given, "", word, entry->shown->help ? entry->shown->help : "");
        snprintf(word, sizeof(word), "--no-%s", entry->name);
        /* Only where it was asked for: twice as many lines would hide the rest. */
        if (entry->shown->type == TESS_OPTION_BOOL && strncmp(of->given, "--no-", 5) == 0)
            complete_word(of->given, "", word, entry->shown->help ? entry->shown->help : "");
    }
    if (!of->option)
        complete_word(of->given, "", "--help", "its help, or of a topic");
    return TESS_OK;
}

/* The first words of commands, or the second ones. */
static void complete_command(int argc, char **argv)
{
    const struct tess__command *command;
    for (int i = 0; (command = tess__command_at(i)) != NULL; i++) {
        char word[64];
        const char *second = strchr(command->name, ' ');
        const int length = (int)strcspn(command->name, " ");
        if (second && second[1] == '-')
            continue;
        if (argc == 2 && tess__command_is_of(command, argv[0]))
            complete_word(argv[1], "", second + 1, command->summary);
        if (argc != 1 || (i > 0 && strncmp(tess__command_at(i - 1)->name, command->name,
                                           (size_t)length + (second != NULL)) == 0))
            continue;
        snprintf(word, sizeof(word), "%.*s", length, command->name);
        complete_word(argv[0], "", word, second ? "several commands" : command->summary);
    }
    if (argc == 1) {
        complete_word(argv[0], "", "help", "the page of a command");
        complete_word(argv[0], "", "version", "the version of the program");
    }
}

int tess__complete(int argc, char **argv)
{
    char option[TESS__NAME_MAX + 8] = "";
    int words = 0;
    if (argc > 1 && strcmp(argv[0], "help") == 0) {
        argc--;
        argv++;
    }
    const struct tess__command *command = tess__command_find(argc - 1, argv, &words);
    if (!command) {
        if (argc > 0)
            complete_command(argc, argv);
        return 0;
    }
    char *last = argv[argc - 1];
    struct complete of = {.given = last, .before = ""};
    const char *equals = strncmp(last, "--", 2) == 0 ? strchr(last, '=') : NULL;
    int before = argc - 1 - words; /* whole words of the command */
    if (equals) {
        snprintf(option, sizeof(option), "%.*s", (int)(equals - last), last);
        of.given = equals + 1;
    } else if (last[0] != '-' && before > 0 && strncmp(argv[argc - 2], "--", 2) == 0) {
        snprintf(option, sizeof(option), "%s", argv[argc - 2]);
        before--; /* an option without its value is refused */
    } else if (last[0] != '-') {
        return 0;
    }
    char prefix[TESS__NAME_MAX + 8];
    snprintf(prefix, sizeof(prefix), "%s%s", option, equals ? "=" : "");
    if (*option) {
        of.option = option;
        of.before = equals ? prefix : "";
        if (complete_part(&of))
            return 0;
    }
    return tess__command_call(command, before, argv + words, complete_show, &of);
}
