/* The pages of the help: the overview, a command, one topic of its options. */
#include "cli/help.h"

#include "base/options_set.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <string.h>

/* ---- all commands --------------------------------------------------------------------------- */

static void help_parts(enum tess_registry_kind kind, const char *title)
{
    int count = 0;
    const char *const *name = tess_registry_names(kind, &count);
    printf("\n%s\n", title);
    for (int i = 0; i < count; i++)
        printf("  %-14s %s\n", name[i], tess_registry_summary(kind, name[i]));
}

int tess__help_overview(void)
{
    printf("usage: tessera COMMAND [CONFIG] [--option value ...]\n\n"
           "Tessera trains a model on several ranks under a parallel strategy or a product of\n"
           "several, with the same bits under all of them (where layers are cut by width, with\n"
           "--tensor.canonical), and shows what each costs in memory and communication.\n\n"
           "commands\n");
    const struct tess__command *command;
    for (int i = 0; (command = tess__command_at(i)) != NULL; i++)
        printf("  %-16s %s\n", command->name, command->summary);
    printf("  %-16s %s\n", "help", "this page, or the page of a command: tessera help train");
    printf("  %-16s %s\n", "version", "the version of the program");
    help_parts(TESS_REGISTRY_STRATEGY, "strategies");
    help_parts(TESS_REGISTRY_MODEL, "models");
    help_parts(TESS_REGISTRY_OPTIMIZER, "optimizers");
    help_parts(TESS_REGISTRY_COMMUNICATOR, "communicators");
    printf("\nplugins\n"
           "  tessera --plugin FILE.so COMMAND ... adds the parts of a shared object;\n"
           "  or TESSERA_PLUGIN=FILE.so:FILE.so in the environment\n"
           "\nfirst steps\n"
           "  tessera train --data synthetic --steps 50          no files needed\n"
           "  tessera train configs/labs/fashion_cnn.yaml --strategy fsdp --ranks 4\n"
           "  tessera train configs/models/tiny-gpt.yaml --strategy fsdp+tp+pp --ranks 8\n"
           "  tessera compare configs/labs/fashion_mlp.yaml --ranks 4 --steps 50\n"
           "  tessera train configs/labs/fashion_mlp.yaml --explain\n"
           "  tessera help train                                 the options to begin with\n"
           "  tessera help train all                             all options, with limits\n"
           "\n"
           "exit status: 0 done, 1 the run failed, 2 bad option, 130 interrupted\n");
    return 0;
}

static int help_group(const char *group)
{
    const struct tess__command *command;
    printf("usage: tessera COMMAND [--option value ...]\n\ncommands\n");
    for (int i = 0; (command = tess__command_at(i)) != NULL; i++)
        if (tess__command_is_of(command, group))
            printf("  %-16s %s\n", command->name, command->summary);
    printf("\ntessera help COMMAND describes one of them and lists its options\n");
    return 0;
}

/* Longer than any list of commands. */
#define HELP_KNOWN_MAX 128

/* A word that is what checkpoint does, as other programs have it for a command; or NULL. */
static const char *help_checkpoint(const char *word)
{
    static const char *const command[] = {"checkpoint list", "checkpoint verify",
                                          "checkpoint export", "checkpoint prune"};
    for (size_t i = 0; i < sizeof(command) / sizeof(command[0]); i++)
        if (strcmp(command[i] + strlen("checkpoint "), word) == 0)
            return command[i];
    return NULL;
}

int tess__help_unknown(int argc, char **argv)
{
    const char *known[HELP_KNOWN_MAX] = {"help", "version"};
    const struct tess__command *command;
    char given[128];
    bool group = false;
    int count = 2;
    for (int i = 0; count < HELP_KNOWN_MAX && (command = tess__command_at(i)) != NULL; i++) {
        known[count++] = command->name;
        group = group || tess__command_is_of(command, argv[0]);
    }
    const bool asked = group && tess__help_is_asked(argc - 1, argv + 1);
    if (asked || (group && argc == 1)) {
        help_group(argv[0]);
        return asked ? 0 : tess_status_exit_code(TESS_ERR_USAGE);
    }
    snprintf(given, sizeof(given), "%s%s%s", argv[0], group ? " " : "", group ? argv[1] : "");
    const char *nearest = help_checkpoint(given);
    if (nearest == NULL)
        nearest = tess_nearest_word(given, known, count);
    if (nearest)
        tess_fail(TESS_ERR_USAGE, "unknown command '%s'; did you mean '%s'?", given, nearest);
    else
        tess_fail(TESS_ERR_USAGE, "unknown command '%s'; tessera --help lists the commands", given);
    return tess_status_exit_code(TESS_ERR_USAGE);
}

/* ---- one command ---------------------------------------------------------------------------- */

static const char help_of[] = "--help="; /* and a topic */

static bool help_is_word(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ||
           strncmp(word, help_of, sizeof(help_of) - 1) == 0;
}

bool tess__help_is_asked(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (help_is_word(argv[i]))
            return true;
    return false;
}

struct help_page {
    const struct tess__command *command;
    const char *topic; /* as tess_options_print_help takes it */
};

static enum tess_status help_show(const struct tess_options *options, void *context)
{
    const struct help_page *page = context;
    const struct tess__command *command = page->command;
    const char *known[HELP_KNOWN_MAX], *topic = page->topic;
    int known_count = 0;
    if (!topic || !*topic) {
        printf("%s\n", command->usage);
        if (command->print_more)
            command->print_more();
    }
    if (tess_options_print_help(options, topic, command->first) || !topic)
        return TESS_OK;
    /* Options of a group follow each other, and there are more of them than HELP_KNOWN_MAX. */
    for (int i = 0; i < options->entry_count && known_count < HELP_KNOWN_MAX; i++)
        if (i == 0 || strcmp(options->entry[i].group, options->entry[i - 1].group) != 0)
            known[known_count++] = options->entry[i].group;
    const char *nearest = tess_nearest_word(topic, known, known_count);
    if (nearest)
        TESS_FAIL(TESS_ERR_USAGE, "%s has no options of '%s'; did you mean '%s'?", command->name,
                  topic, nearest);
    TESS_FAIL(TESS_ERR_USAGE, "%s has no options of '%s'; tessera help %s lists the topics",
              command->name, topic, command->name);
}

/* The option that chooses the part of this name, whose options are then listed; NULL: none. */
static const char *help_chooser(const char *topic)
{
    for (int k = 0; k < TESS__CHOOSERS; k++) {
        int count = 0;
        const char *const *name = tess_registry_names(tess__namer_list[k].kind, &count);
        for (int i = 0; i < count; i++)
            if (strcmp(name[i], topic) == 0)
                return tess__namer_list[k].option;
    }
    return NULL;
}

int tess__help_command(const struct tess__command *command, int argc, char **argv)
{
    struct help_page page = {command, command->reads == TESS__READS_OWN ? NULL : ""};
    char *words[TESS__ARGS_MAX];
    int count = 0;
    for (int i = 0; i < argc && count < TESS__ARGS_MAX - 2; i++) {
        const bool asked = help_is_word(argv[i]);
        if (asked && strchr(argv[i], '=') != NULL)
            page.topic = strchr(argv[i], '=') + 1;
        else if (asked && i + 1 < argc && argv[i + 1][0] != '-' &&
                 !tess_options_is_file_name(argv[i + 1]))
            page.topic = argv[++i];
        else if (strcmp(argv[i], "--all") == 0)
            page.topic = "all";
        else if (!asked)
            words[count++] = argv[i];
    }
    const char *chooser = page.topic ? help_chooser(page.topic) : NULL;
    if (page.topic && strcmp(page.topic, "all") == 0)
        page.topic = NULL;
    if (chooser && command->reads != TESS__READS_OWN) {
        words[count++] = (char *)chooser;
        words[count++] = (char *)page.topic;
    }
    return tess__command_call(command, count, words, help_show, &page);
}

int tess__help(int argc, char **argv)
{
    static char help[] = "--help";
    char *words[] = {help, NULL};
    int name_words = 0;
    if (argc == 2 && strcmp(argv[0], "--man") == 0)
        return tess__help_man(argv[1]);
    if (argc < 1 || strcmp(argv[0], "help") == 0 || strcmp(argv[0], "version") == 0 ||
        argv[0][0] == '-')
        return tess__help_overview();
    const struct tess__command *command = tess__command_find(argc, argv, &name_words);
    if (command) {
        words[1] = argc > name_words ? argv[name_words] : NULL;
        return tess__help_command(command, words[1] ? 2 : 1, words);
    }
    for (int i = 0; argc == 1 && (command = tess__command_at(i)) != NULL; i++)
        if (tess__command_is_of(command, argv[0]))
            return help_group(argv[0]);
    return tess__help_unknown(argc, argv);
}
