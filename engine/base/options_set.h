/*
 * What the files of the option set share. A name is looked up in its normal form: '-' for '_',
 * full, with its prefix. Every returned text lives in the set until it is closed, so that
 * a copied options struct never holds a dangling string.
 */
#ifndef TESSERA_BASE_OPTIONS_SET_H
#define TESSERA_BASE_OPTIONS_SET_H

#include "base/options.h"
#include "base/utf8.h"
#include "tessera/log.h"

#include <stdbool.h>

#define TESS__NAME_MAX  128 /* bytes of a full name with its end */
#define TESS__QUOTE_MAX 80  /* bytes of a quoted piece of user input with its end */

/* In rising order of force. */
enum tess__option_source {
    TESS__SOURCE_DEFAULT,
    TESS__SOURCE_ENVIRONMENT,
    TESS__SOURCE_YAML,
    TESS__SOURCE_ARGUMENTS,
};

union tess__option_value {
    bool on;          /* BOOL */
    int64_t integer;  /* INT */
    double real;      /* REAL */
    int32_t choice;   /* CHOICE */
    const char *text; /* STRING, which tess__option_parse leaves alone */
    struct tess_ints ints;
};

struct tess__option_entry {
    const char *name; /* full, normal form */
    const char *prefix;
    const char *group; /* of the help: the topic, the prefix where there is none */
    const struct tess_option *option;
    const struct tess_option *shown; /* by the help: `option`, or a command's row of this name */
    void *field;                     /* NULL: the value is stored nowhere */
    bool skips_environment, skips_file;
    const char *text;   /* the value in its one way to be written */
    const char *origin; /* as tess_options_visit documents */
    enum tess__option_source source;
    int32_t next; /* of the same bucket, as there */
};

/* Names of an unselected part. */
struct tess__option_foreign {
    const char *prefix, *why; /* why "": skipped on the command line, too */
};

enum tess__yaml_kind { TESS__YAML_SCALAR, TESS__YAML_NULL, TESS__YAML_SEQUENCE, TESS__YAML_MAP };

/* A place in a file, from 1; line 0: the whole file. */
struct tess__yaml_place {
    int line, column;
};

/* One key of a file. A map's keys follow it. */
struct tess__yaml_item {
    const char *name; /* full, normal form */
    uint64_t name_hash;
    enum tess__yaml_kind kind;
    const char *text; /* SCALAR as written; SEQUENCE joined by commas */
    struct tess__yaml_place name_at, value_at;
};

/* A file that was read, whole. Kept, so that a pipe given as a file is read only once. */
struct tess__yaml_file {
    struct tess__yaml_file *next;
    const char *path;
    enum tess_status status; /* of reading; nothing was logged */
    const char *message;     /* the reason of an error */
    struct tess__yaml_item *item;
    int item_count;
};

/* A text that the set keeps. */
struct tess__option_text {
    struct tess__option_text *next;
    char byte[];
};

#define TESS__OPTION_BUCKETS 256 /* a set has about as many options */

struct tess_options {
    struct tess__option_entry *entry;
    int entry_count;
    int32_t bucket[TESS__OPTION_BUCKETS]; /* by the name's hash: 1 + an entry; 0: none */
    struct tess__option_foreign *foreign;
    int foreign_count;
    struct tess__option_text *text;
    struct tess__yaml_file *file;
    const struct tess_options *before; /* has read files for this set too; NULL: none has */
    bool skips_others;
};

/* ---- options.c ------------------------------------------------------------------------------ */

/* TESS_ERR_MEMORY, logged. */
enum tess_status tess__options_no_memory(void);

/* NULL when there is no option of that name; any spelling. */
struct tess__option_entry *tess__options_find(const struct tess_options *options, const char *name);

/* Parse `text` and set the field, unless a stronger source has set it. `origin` lives as the set.
 */
enum tess_status tess__options_assign(struct tess_options *options,
                                      struct tess__option_entry *entry, const char *text,
                                      enum tess__option_source source, const char *origin);

/* Does some option's name begin with `name` and a point? */
bool tess__options_is_group(const struct tess_options *options, const char *name);

/* Why the name, in normal form, belongs to an unselected part; NULL when it does not. */
const char *tess__options_foreign_why(const struct tess_options *options, const char *name);

/* TESS_ERR_USAGE, logged. `origin`: of the name; `group`: a prefix was expected. */
enum tess_status tess__options_unknown(const struct tess_options *options, const char *origin,
                                       const char *name, bool group);

/* ---- options_value.c ------------------------------------------------------------------------ */

/* Pure. When false, `problem` has what is wrong and what was expected. */
bool tess__option_parse(const struct tess_option *option, const char *text,
                        union tess__option_value *value_out, char *problem, size_t problem_bytes);

/* What may be written: "a whole number from 1 to 64". Pure. */
void tess__option_expected(const struct tess_option *option, char *text, size_t text_bytes);

/* The one way to write a value, at most TESS__VALUE_TEXT_MAX bytes. Not for STRING. Pure. */
#define TESS__VALUE_TEXT_MAX 768 /* TESS_INTS_MAX numbers of 20 characters and their commas */
void tess__option_print(const struct tess_option *option, const union tess__option_value *value,
                        char text[TESS__VALUE_TEXT_MAX]);

/* ---- options_help.c ------------------------------------------------------------------------- */

/* "  --name N"; returns its length. */
int tess__help_left(const struct tess__option_entry *entry, char *text, size_t text_bytes);
/* What it does, what may be written, the default. */
void tess__help_right(const struct tess_option *option, char *text, size_t text_bytes);

/* ---- options_yaml.c ------------------------------------------------------------------------- */

/* The file at `path`, read now or earlier; look at its status. NULL only without memory. Logs
 * nothing. */
const struct tess__yaml_file *tess__yaml_get(struct tess_options *options, const char *path);
void tess__yaml_close(struct tess_options *options);

/* ---- options_text.c ------------------------------------------------------------------------- */

/* A text that lives as long as the set, a copy or printed; NULL without memory. Logs nothing. */
char *tess__options_keep_text(struct tess_options *options, const char *text);
TESS_PRINTF(2, 3)
char *tess__options_keep(struct tess_options *options, const char *format, ...);

/* The end of a path, for messages: long ones differ there. */
const char *tess__path_end(const char *path);

/* `text` for a message: printable, one line, cut with "..." when long. Returns `quote`. */
const char *tess__quote(const char *text, char quote[TESS__QUOTE_MAX]);

/* prefix.name in normal form; false when it does not fit. `prefix` may be "". */
bool tess__name_join(char out[TESS__NAME_MAX], const char *prefix, const char *name);

/* "TESSERA_" and so on, of a name in normal form. */
void tess__name_environment(char out[TESS__NAME_MAX + 8], const char *name);

/* The edit distance that tess_nearest_word compares; TESS__WORD_FAR where `known` is not near. */
#define TESS__WORD_FAR 4
int tess__word_distance(const char *word, const char *known);

#endif
