/* What a command line asks for: a command, or the help of one; and the plugins before it. */
#include "cli/help.h"

#include "config/registry.h"
#include "tessera/check.h"
#include "tessera/registry.h"
#include "tessera/version.h"
#include "text/screen.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* "word" or "--word" */
static bool command_is_word(const char *given, const char *word)
{
    return strcmp(given, word) == 0 ||
           (strncmp(given, "--", 2) == 0 && strcmp(given + 2, word) == 0);
}

/* A page of the help; NULL: the overview. */
static int command_help(int argc, char **argv)
{
    FILE *former = tess__screen_begin();
    const int code = argv != NULL ? tess__help(argc, argv) : tess__help_overview();
    tess__screen_end(former);
    return code;
}

static int command_choose(int argc, char **argv)
{
    int plugin_words = 0;
    const enum tess_status status = command_add_plugins(argc - 1, argv + 1, &plugin_words);
    if (status != TESS_OK)
        return tess_status_exit_code(status);
    argc -= 1 + plugin_words;
    argv += 1 + plugin_words;
    if (argc < 1) {
        command_help(0, NULL);
        return tess_status_exit_code(TESS_ERR_USAGE);
    }
    if (command_is_word(argv[0], "help") || strcmp(argv[0], "-h") == 0)
        return command_help(argc - 1, argv + 1);
    if (strcmp(argv[0], "complete") == 0)
        return tess__complete(argc - 1, argv + 1);
    int words = 0;
    const struct tess__command *command = tess__command_find(argc, argv, &words);
    if (command_is_word(argv[0], "version") ||
        (command && argc == words + 1 && strcmp(argv[words], "--version") == 0)) {
        printf("tessera %s\n", TESS_VERSION);
        return 0;
    }
    if (!command)
        return tess__help_unknown(argc, argv);
    argc -= words;
    argv += words;
    if (!tess__help_is_asked(argc, argv))
        return tess__command_call(command, argc, argv, NULL, NULL);
    FILE *former = tess__screen_begin();
    const int code = tess__help_command(command, argc, argv);
    tess__screen_end(former);
    return code;
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
