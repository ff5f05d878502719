/* The table of commands, their help, and the choice among them. */
#include "cli/command.h"

#include "base/options.h"
#include "core/registry.h"
#include "tessera/tessera.h"

#include <stdio.h>
#include <string.h>

struct command {
    const char *name; /* words joined by a space */
    const char *summary;
    int (*run)(int argc, char **argv);
};

static int command_help(int argc, char **argv);
static int command_version(int argc, char **argv);

/* To add a command: its function in command.h, its file, one row here. */
static const struct command command_table[] = {
    {"train", "train a model on several ranks under one strategy", tess__command_train},
    {"generate", "text from a run's weights: sampling, one token at a time",
     tess__command_generate},
    {"sweep", "train several configurations one after the other and compare what became of them",
     tess__command_sweep},
    {"compare", "run several strategies side by side: memory, traffic, speed, hash",
     tess__command_compare},
    {"scaling", "step time by ranks, Amdahl's p, and the curve over other links",
     tess__command_scaling},
    {"tune batch", "the fastest batch that fits a memory limit", tess__command_tune_batch},
    {"diff", "where two runs part: options, first step and tensor, rounding or not",
     tess__command_diff},
    {"report", "one HTML file about runs, comparisons and scaling", tess__command_report},
    {"top", "watch this machine's devices and the ranks that use them", tess__command_top},
    {"topo", "a machine's links, from a file or a line of words, and the fastest rings over them",
     tess__command_topo},
    {"bench comm", "speed of collectives against plain memory copies", tess__command_bench_comm},
    {"bench gpu", "a device's ceilings, and the share of them that each kernel reaches",
     tess__command_bench_gpu},
    {"bench kernels", "speed of kernels against the best plain oneDNN primitive",
     tess__command_bench_kernels},
    {"bench step", "speed per strategy, ranks and grid", tess__command_bench_step},
    {"help", "this page, or a command's: tessera help train", command_help},
    {"version", "version of the program", command_version},
};

#define COMMAND_COUNT ((int)(sizeof command_table / sizeof command_table[0]))

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
        printf("  %-14s %s\n", command_table[i].name, command_table[i].summary);
    command_print_parts(TESS_REGISTRY_STRATEGY, "strategies");
    command_print_parts(TESS_REGISTRY_MODEL, "models");
    printf(
        "\nfirst steps\n"
        "  tessera train --data synthetic --steps 50        made-up images, no files needed\n"
        "  tessera train configs/labs/fashion_cnn.yaml --strategy fsdp --ranks 4\n"
        "  tessera train configs/models/tiny-gpt.yaml --strategy fsdp+tp+pp --ranks 8\n"
        "  tessera compare configs/labs/fashion_mlp.yaml --ranks 4 --steps 50\n"
        "  tessera train configs/labs/fashion_mlp.yaml --explain\n"
        "  tessera help train                               all options, with their limits\n\n"
        "exit status: 0 done, 1 the run failed, 2 bad option or configuration, 130 interrupted\n");
    return 0;
}

static int command_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("tessera %s\n", TESS_VERSION);
    return 0;
}

/* How many of argv's words the command's name takes; 0 when it is another one. */
static int command_match(const struct command *command, int argc, char **argv)
{
    const char *second = strchr(command->name, ' ');
    size_t length = second != NULL ? (size_t)(second - command->name) : strlen(command->name);

    if (argc < 1 || strlen(argv[0]) != length || strncmp(argv[0], command->name, length) != 0)
        return 0;
    if (second == NULL)
        return 1;
    return argc >= 2 && strcmp(argv[1], second + 1) == 0 ? 2 : 0;
}

/* Is it the first word of commands of two? */
static bool command_is_group(const char *word)
{
    size_t length = strlen(word);

    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strncmp(command_table[i].name, word, length) == 0 &&
            command_table[i].name[length] == ' ')
            return true;
    return false;
}

static int command_unknown(int argc, char **argv)
{
    const char *known[sizeof command_table / sizeof command_table[0]];
    char given[128];
    const char *nearest;
    bool group = command_is_group(argv[0]);

    snprintf(given, sizeof given, "%s%s%s", argv[0], group && argc > 1 ? " " : "",
             group && argc > 1 ? argv[1] : "");
    for (int i = 0; i < COMMAND_COUNT; i++)
        known[i] = command_table[i].name;
    nearest = tess_nearest_word(given, known, COMMAND_COUNT);
    if (group && argc == 1)
        tess_fail(TESS_ERR_USAGE, "%s wants to know what: tessera --help lists what there is",
                  argv[0]);
    else if (nearest != NULL)
        tess_fail(TESS_ERR_USAGE, "unknown command '%s'; did you mean '%s'?", given, nearest);
    else
        tess_fail(TESS_ERR_USAGE, "unknown command '%s'; tessera --help lists the commands", given);
    return tess_status_exit_code(TESS_ERR_USAGE);
}

static int command_help(int argc, char **argv)
{
    static char help[] = "--help";
    char *words[] = {help, NULL};

    if (argc < 1 || strcmp(argv[0], "help") == 0 || strncmp(argv[0], "-", 1) == 0)
        return command_overview();
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (command_match(&command_table[i], argc, argv) > 0)
            return command_table[i].run(1, words);
    return command_unknown(argc, argv);
}

int tess_main(int argc, char **argv)
{
    argc--;
    argv++;
    if (argc < 1) {
        tess_fail(TESS_ERR_USAGE, "no command given; tessera --help lists the commands");
        return tess_status_exit_code(TESS_ERR_USAGE);
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)
        return command_help(argc - 1, argv + 1);
    if (strcmp(argv[0], "--version") == 0)
        return command_version(0, NULL);
    for (int i = 0; i < COMMAND_COUNT; i++) {
        int words = command_match(&command_table[i], argc, argv);
        if (words > 0)
            return command_table[i].run(argc - words, argv + words);
    }
    return command_unknown(argc, argv);
}
