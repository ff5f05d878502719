/* An option set: tables from several parts (tessera/option.h), values from several sources. */
#ifndef TESSERA_BASE_OPTIONS_H
#define TESSERA_BASE_OPTIONS_H

#include "tessera/option.h"
#include "tessera/status.h"

struct tess_options;

enum tess_status tess_options_open(struct tess_options **options_out);
void tess_options_close(struct tess_options *options);

/*
 * Add a part's table under `prefix` ("" for none); its fields, at `target`, get the defaults.
 * `target` is borrowed and is written by the load calls. NULL: the values are kept elsewhere; here
 * they are checked and not stored. Where another table has such a name, the option stays that
 * table's, and this row is what the help prints.
 */
enum tess_status tess_options_add(struct tess_options *options, const char *prefix,
                                  const struct tess_option *table, void *target);

/*
 * Sources. The stronger one wins in whatever order they are loaded (arguments, then YAML, then the
 * environment, then the default); of two of the same force the later call. Every value is checked,
 * also where a stronger source has set the option. An unknown name fails with "did you mean";
 * environment variables and YAML keys are looked up among the tables added so far, so add the
 * selected parts (model, strategy, optimizer) after a first look with tess_options_peek. All errors
 * are TESS_ERR_USAGE (bad input), TESS_ERR_INTERNAL (a table that contradicts itself) or
 * TESS_ERR_MEMORY.
 */
enum tess_status tess_options_load_environment(struct tess_options *options);
/* Errors name file:line:column. Keys of parts listed by tess_options_allow are skipped silently.
 * The file is read once, also after a peek, so that it may be a pipe. */
enum tess_status tess_options_load_yaml(struct tess_options *options, const char *path);
/* What `before` has read of files is not read again; it must not read more, and stays open. */
void tess_options_read_before(struct tess_options *options, const struct tess_options *before);
/* argv without program and command; "--name value", "--name=value", "--set name=value"; for BOOL
 * "--flag",
 * "--no-flag", "--flag=off", "--flag off" (a word that is not on, off, ... is not taken). A value
 * that begins with "--" needs the form with '='. After "--" no word is an option. At most
 * `positional_max` other words are returned in positional[]; more are errors. */
enum tess_status tess_options_load_arguments(struct tess_options *options, int argc, char **argv,
                                             const char **positional, int positional_max,
                                             int *positional_count_out);

/* Load the options of this set from argv and remove their words; all others stay, in order. For a
 * command whose other options are those of a training. */
enum tess_status tess_options_take_arguments(struct tess_options *options, int *argc, char **argv);

/* From here on names of other sets are skipped in the environment and in files, not refused. */
void tess_options_skip_others(struct tess_options *options);
/* A configuration file does not set this option: what stands there is meant for a training. */
void tess_options_skip_file(struct tess_options *options, const char *name);

/*
 * Names under this prefix belong to a part that exists but is not selected: a configuration file
 * may carry them; they are neither read nor refused. Given on the command line they are refused,
 * with the reason "applies to strategy X only"; with `why` NULL they are skipped there, too.
 */
enum tess_status tess_options_allow(struct tess_options *options, const char *prefix,
                                    const char *why);

/*
 * The value that `name` would get from arguments, YAML at `path` (may be NULL) and environment,
 * before its table is known; NULL when none gives one. For choosing the parts. Valid until close.
 */
const char *tess_options_peek(struct tess_options *options, const char *name, int argc, char **argv,
                              const char *path);

/* The first word of argv that is neither an option nor an option's value; NULL: there is none. The
 * tables that were added decide which options take a value. */
const char *tess_options_first_word(const struct tess_options *options, int argc, char **argv);

/* The value that argv alone gives to `name`, borrowed; NULL: none. Switches are not recognised:
 * after a bare "--name" the next word counts. */
const char *tess_options_peek_arguments(const char *name, int argc, char **argv);

/* Is it a value of a BOOL option (on, off, true, ...)? Only such a word after "--flag" is taken. */
bool tess_options_is_switch_word(const char *word);

/* Does the word end as the name of a YAML file does? */
bool tess_options_is_file_name(const char *word);

/* The value of a known option as text, valid until it changes; NULL for an unknown name. */
const char *tess_options_text(const struct tess_options *options, const char *name);

/* Set a known option as if argv had it once more, behind all others. origin: what gave it, copied.
 */
enum tess_status tess_options_give(struct tess_options *options, const char *name,
                                   const char *value, const char *origin);

/* Was it given by any source but the default? False for an unknown name. */
bool tess_options_is_set(const struct tess_options *options, const char *name);

/* Was `name` given by a stronger source than `other`? False where one is unknown. */
bool tess_options_is_stronger(const struct tess_options *options, const char *name,
                              const char *other);

/* Visit every option in order: full name, value as text, where it came from ("default",
 * "file.yaml:3:5", "environment TESSERA_RANKS", "command line", "Slurm"), help. */
void tess_options_visit(const struct tess_options *options,
                        void (*visit)(void *context, const char *name, const char *value,
                                      const char *origin, const struct tess_option *option),
                        void *context);

/* Print the help to stdout, one option a line, wrapped at the terminal's width, at most 100
 * columns. `topic` NULL: of all options; "": of those without a topic and those that `first` names
 * (between spaces; may be NULL), and the list of topics; else of those of the topic, or of the
 * prefix where rows have none. False where there is no such topic. */
bool tess_options_print_help(const struct tess_options *options, const char *topic,
                             const char *first);

/* 64-bit hash of all names and values, to compare across ranks. */
uint64_t tess_options_hash(const struct tess_options *options);

/* The known name nearest to `word` (edit distance <= 3 and less than half its length; two
 * neighbours that changed places count once), or NULL. Words of more than 64 bytes have none. */
const char *tess_nearest_word(const char *word, const char *const *known, int known_count);

#endif
