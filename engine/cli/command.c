/* The list of commands: the choice among them, their help, and reading their options. */
#include "text/command.h"

#include "base/options.h"
#include "config/config.h"
#include "config/registry.h"
#include "tessera/check.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* To add a command: its file, its name in text/command.h, one row here. */
static const struct tess__command *const command_list[] = {
    &tess__command_train,        &tess__command_generate,  &tess__command_sweep,
    &tess__command_compare,      &tess__command_scaling,   &tess__command_tune_batch,
    &tess__command_checkpoint,   &tess__command_diff,      &tess__command_report,
    &tess__command_status,       &tess__command_top,       &tess__command_topo,
    &tess__command_bench_comm,   &tess__command_bench_gpu, &tess__command_bench_kernels,
    &tess__command_bench_step,   &tess__command_accuracy,  &tess__command_plan,
    &tess__command_data_prepare,
};

#define COMMAND_COUNT ((int)(sizeof(command_list) / sizeof(command_list[0])))

static void command_print_parts(enum tess_registry_kind kind, const char *title)
{
    int count = 0;
    const char *const *name = tess_registry_names(kind, &count);
    printf("\n%s\n", title);
    for (int i = 0; i < count; i++)
        printf("  %-14s %s\n", name[i], tess_registry_summary(kind, name[i]));
}

static int command_overview(void)
{
    printf(
        "usage: tessera COMMAND [CONFIG] [--option value ...]\n\n"
        "Tessera trains a model on several ranks under a parallel strategy, or several at once,\n"
        "with the same bits under all of them (with layers cut by width: --tensor.canonical),\n"
        "and shows what each costs in memory and communication.\n\n"
        "commands\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        printf("  %-14s %s\n", command_list[i]->name, command_list[i]->summary);
    printf("  %-14s %s\n", "help", "this page, or the page of a command: tessera help train");
    printf("  %-14s %s\n", "version", "the version of the program");
    command_print_parts(TESS_REGISTRY_STRATEGY, "strategies");
    command_print_parts(TESS_REGISTRY_MODEL, "models");
    command_print_parts(TESS_REGISTRY_OPTIMIZER, "optimizers");
    command_print_parts(TESS_REGISTRY_COMMUNICATOR, "communicators");
    printf(
        "\nplugins\n"
        "  tessera --plugin FILE.so COMMAND ...             adds the parts of a shared object;\n"
        "                                                   or TESSERA_PLUGIN=FILE.so:FILE.so\n"
        "\nfirst steps\n"
        "  tessera train --data synthetic --steps 50        synthetic images, no files needed\n"
        "  tessera train configs/labs/fashion_cnn.yaml --strategy fsdp --ranks 4\n"
        "  tessera train configs/models/tiny-gpt.yaml --strategy fsdp+tp+pp --ranks 8\n"
        "  tessera compare configs/labs/fashion_mlp.yaml --ranks 4 --steps 50\n"
        "  tessera train configs/labs/fashion_mlp.yaml --explain\n"
        "  tessera help train                               all options, with their limits\n"
        "\n"
        "exit status: 0 done, 1 the run failed, 2 bad option or configuration, 130 interrupted\n");
    return 0;
}

/* ---- one command ----------------------------------------------------------------------------- */

static bool command_has_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static enum tess_status command_print_help(const struct tess__command *command,
                                           struct tess__call *call)
{
    const struct tess_config_table own = {"", command->table, NULL};
    printf("%s\n", command->usage);
    if (command->print_more)
        command->print_more();
    if (command->reads != TESS__READS_OWN)
        return tess_config_print_help(call->args.count, call->args.word, &own,
                                      command->table ? 1 : 0);
    tess_options_print_help(call->options);
    return TESS_OK;
}

static enum tess_status command_read(const struct tess__command *command, struct tess__call *call)
{
    struct tess__args *args = &call->args;
    if (command->reads == TESS__READS_SERIES) {
        args->own = command->table;
        return tess_config_take(call->options, command->table, call->values, &args->count,
                                args->word);
    }
    if (command->reads == TESS__READS_TRAINING)
        return TESS_OK;
    if (command->prepare)
        TESS_TRY(command->prepare(args, call->values));
    /* Variables of a training may be set where this command runs. */
    tess_options_skip_others(call->options);
    TESS_TRY(tess_options_load_environment(call->options));
    return tess_options_load_arguments(call->options, args->count, args->word, call->word,
                                       command->words_max, &call->word_count);
}

static int command_run(const struct tess__command *command, int argc, char **argv)
{
    static struct tess__call call; /* large for a stack, and a program runs one command */
    const bool help = command_has_help(argc, argv);
    enum tess_status status = tess__args_init(&call.args, argc, argv);
    call.values = calloc(1, command->options_size + 1);
    if (status == TESS_OK && !call.values)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the options of %s", command->name);
    if (status == TESS_OK)
        status = tess_options_open(&call.options);
    if (status == TESS_OK && (help || command->reads == TESS__READS_OWN))
        status = tess_options_add(call.options, "", command->table, call.values);
    if (status == TESS_OK && command->declare)
        status = command->declare(call.options, call.values);
    if (status == TESS_OK)
        status = help ? command_print_help(command, &call) : command_read(command, &call);
    int code = status == TESS_OK && !help ? command->run(&call) : tess_status_exit_code(status);
    tess_options_close(call.options);
    if (call.values && command->release)
        command->release(call.values);
    free(call.values);
    call = (struct tess__call){.options = NULL};
    return code;
}

/* ---- which command --------------------------------------------------------------------------- */

/* How many of argv's words the command's name takes; 0 when it is another one. */
static int command_match(const struct tess__command *command, int argc, char **argv)
{
    const char *second = strchr(command->name, ' ');
    size_t length = second ? (size_t)(second - command->name) : strlen(command->name);
    if (argc < 1 || strlen(argv[0]) != length || strncmp(argv[0], command->name, length) != 0)
        return 0;
    if (!second)
        return 1;
    return argc >= 2 && strcmp(argv[1], second + 1) == 0 ? 2 : 0;
}

/* Is it the first word of commands of two? */
static bool command_is_group(const char *word)
{
    size_t length = strlen(word);
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strncmp(command_list[i]->name, word, length) == 0 &&
            command_list[i]->name[length] == ' ')
            return true;
    return false;
}

static int command_unknown(int argc, char **argv)
{
    const char *known[COMMAND_COUNT + 2] = {"help", "version"};
    char given[128];
    bool group = command_is_group(argv[0]);
    snprintf(given, sizeof(given), "%s%s%s", argv[0], group && argc > 1 ? " " : "",
             group && argc > 1 ? argv[1] : "");
    for (int i = 0; i < COMMAND_COUNT; i++)
        known[i + 2] = command_list[i]->name;
    const char *nearest = tess_nearest_word(given, known, COMMAND_COUNT + 2);
    if (group && argc == 1)
        tess_fail(TESS_ERR_USAGE, "%s needs a second word: tessera --help lists the commands",
                  argv[0]);
    else if (nearest)
        tess_fail(TESS_ERR_USAGE, "unknown command '%s'; did you mean '%s'?", given, nearest);
    else
        tess_fail(TESS_ERR_USAGE, "unknown command '%s'; tessera --help lists the commands", given);
    return tess_status_exit_code(TESS_ERR_USAGE);
}

static int command_help(int argc, char **argv)
{
    static char help[] = "--help";
    char *words[] = {help, NULL};
    if (argc < 1 || strcmp(argv[0], "help") == 0 || strcmp(argv[0], "version") == 0 ||
        strncmp(argv[0], "-", 1) == 0)
        return command_overview();
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (command_match(command_list[i], argc, argv) > 0)
            return command_run(command_list[i], 1, words);
    return command_unknown(argc, argv);
}

/* The parts of the environment's plugins, joined by ':', then those of argv's leading
 * --plugin FILE or --plugin=FILE. *words_out: how many words these are. */
static enum tess_status command_add_plugins(int argc, char **argv, int *words_out)
{
    static const char option[] = "--plugin";
    const char *named = getenv("TESSERA_PLUGIN");
    char path[PATH_MAX];
    int word = 0;
    while (named && *named) {
        const int length = (int)strcspn(named, ":");
        snprintf(path, sizeof(path), "%.*s", length, named);
        if (length > 0)
            TESS_TRY(tess_registry_add_plugin(path));
        named += length + (named[length] == ':');
    }
    while (word < argc && strncmp(argv[word], option, sizeof(option) - 1) == 0) {
        const char *value = argv[word] + sizeof(option) - 1;
        if (!*value && word + 1 < argc)
            value = argv[++word];
        else if (*value == '=')
            value++;
        else
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s is followed by the path of a shared object: "
                      "tessera --plugin FILE.so COMMAND ...",
                      argv[word]);
        TESS_TRY(tess_registry_add_plugin(value));
        word++;
    }
    *words_out = word;
    return TESS_OK;
}

static int command_choose(int argc, char **argv)
{
    int plugin_words = 0;
    const enum tess_status status = command_add_plugins(argc - 1, argv + 1, &plugin_words);
    if (status != TESS_OK)
        return tess_status_exit_code(status);
    argc -= 1 + plugin_words;
    argv += 1 + plugin_words;
    if (argc < 1)
        return tess_status_exit_code(
            tess_fail(TESS_ERR_USAGE, "no command given; tessera --help lists the commands"));
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0 ||
        strcmp(argv[0], "help") == 0)
        return command_help(argc - 1, argv + 1);
    if (strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "version") == 0) {
        printf("tessera %s\n", TESS_VERSION);
        return 0;
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        int words = command_match(command_list[i], argc, argv);
        if (words > 0)
            return command_run(command_list[i], argc - words, argv + words);
    }
    return command_unknown(argc, argv);
}

/* A disk that is full behind stdout shows only when the text is flushed: it is lost, so the command
 * has failed. */
int tess__main(int argc, char **argv)
{
    const int code = command_choose(argc, argv);
    errno = 0;
    const bool lost = fflush(stdout) != 0;
    if (code != 0 || (!lost && !ferror(stdout)))
        return code;
    return tess_status_exit_code(tess_fail(TESS_ERR_IO, "cannot write to standard output: %s",
                                           lost ? strerror(errno) : "a part of it is lost"));
}
