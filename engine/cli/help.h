/* The commands, and their help in the forms in which it is printed: pages, man pages, and the words
 * with which a shell completes a line. */
#ifndef TESSERA_CLI_HELP_H
#define TESSERA_CLI_HELP_H

#include "config/registry.h"
#include "text/command.h"

#include <stdbool.h>

/* ---- command_list.c ------------------------------------------------------------------------- */

/* NULL behind the last one. */
const struct tess__command *tess__command_at(int index);
/* The command whose name argv begins with, and how many words that are; NULL: none. */
const struct tess__command *tess__command_find(int argc, char **argv, int *words_out);
/* Is `group` the first of its two words, of which the second is no option? */
bool tess__command_is_of(const struct tess__command *command, const char *group);

/* Runs a command; or, with `show`, calls that with the options of the command, of one that trains
 * with those of the parts that argv chooses. Returns the exit status. */
typedef enum tess_status tess__show(const struct tess_options *options, void *context);
int tess__command_call(const struct tess__command *command, int argc, char **argv, tess__show *show,
                       void *context);

/* Options whose values are names of parts. The first TESS__CHOOSERS choose a part that has options
 * of its own. */
#define TESS__CHOOSERS 3
#define TESS__NAMERS   5
struct tess__namer {
    const char *option; /* with its "--" */
    enum tess_registry_kind kind;
};
extern const struct tess__namer tess__namer_list[TESS__NAMERS];

/* ---- help.c, help_man.c, complete.c: each returns the exit status --------------------------- */

int tess__help_overview(void);
/* The words behind "tessera help". */
int tess__help(int argc, char **argv);
/* What is wrong with argv's command. */
int tess__help_unknown(int argc, char **argv);

/* Is --help among the words of a command, or -h? */
bool tess__help_is_asked(int argc, char **argv);
/* Its page, or one topic, the word behind --help. */
int tess__help_command(const struct tess__command *command, int argc, char **argv);

/* Writes a man page of the program and of each command to the folder. */
int tess__help_man(const char *folder);

/* "tessera complete WORD...": the words that may stand for the last one, one a line, each with a
 * tab and what it is. None: a file, or a value of which there is no list. */
int tess__complete(int argc, char **argv);

#endif
