/* Words of the command line that a command takes for itself before the configuration sees them. */
#ifndef TESSERA_CLI_ARGS_H
#define TESSERA_CLI_ARGS_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TESS__ARGS_MAX 512
#define TESS__LIST_MAX 32

/* A command line that may be shortened and lengthened. The words are borrowed. */
struct tess__args {
    int count;
    char *word[TESS__ARGS_MAX];
};

enum tess_status tess__args_init(struct tess__args *args, int argc, char **argv);

/* Is "--name" (or "-h" for "help") among the words? */
bool tess__args_has(const struct tess__args *args, const char *name);

/*
 * Take "--name value", "--name=value" or "--set name=value" out; the last one counts. *value_out
 * stays as it was when there is none. TESS_ERR_USAGE when the value is missing.
 */
enum tess_status tess__args_take(struct tess__args *args, const char *name, const char **value_out);

/* As tess__args_take for whole numbers within limits; *value_out stays when there is none. */
enum tess_status tess__args_take_number(struct tess__args *args, const char *name, int64_t min,
                                        int64_t max, int64_t *value_out);

/* Take the switch "--name" or "--name=on|off" out; *on_out stays when there is none. */
enum tess_status tess__args_take_switch(struct tess__args *args, const char *name, bool *on_out);

/*
 * Take every option below a part out: "--part.name value", "--part.name=value", "--no-part.name",
 * "--set part.name=value". A word after a bare "--part.name" is taken for its value unless it is an
 * option or the name of a YAML file.
 */
void tess__args_drop_part(struct tess__args *args, const char *part);

/* Add "name" "value" at the end. Both are borrowed. */
enum tess_status tess__args_add(struct tess__args *args, const char *name, const char *value);
/* Add one word at the end, such as "--name=value". Borrowed. */
enum tess_status tess__args_add_word(struct tess__args *args, const char *word);

/* Does the word end as the name of a YAML file does? */
bool tess__args_is_yaml(const char *word);

/* A list "a,b,c" cut in place at its commas. TESS_ERR_USAGE for an empty item or too many. */
enum tess_status tess__list_split(const char *option, char *text, const char *item[TESS__LIST_MAX],
                                  int *count_out);

/* Digits alone, within limits. */
enum tess_status tess__list_number(const char *option, const char *text, int64_t min, int64_t max,
                                   int64_t *value_out);

#endif
