/*
 * Options. Each part owns one table; the table gives parsing, limits, help and `--explain`.
 *
 * A value comes from, in rising order of force: the table's default, the environment
 * (TESSERA_<NAME>, upper case, '.' and '-' as '_'), the YAML file, the command line
 * (`--name value`, `--name=value`, `--set name=value`). Nested YAML maps are joined by '.';
 * '_' and '-' are the same in names. Whole numbers may end in k, M, G (powers of 1000) or Ki, Mi,
 * Gi (powers of 1024). A part named `mlp` whose table has `dropout` is set by
 * `--mlp.dropout 0.1` or by `mlp: {dropout: 0.1}`. The prefix is added by the core.
 */
#ifndef TESSERA_OPTION_H
#define TESSERA_OPTION_H

#include "tessera/linkage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TESS_BEGIN_DECLS

enum tess_option_type {
    TESS_OPTION_BOOL,   /* bool:    on off true false yes no 1 0 */
    TESS_OPTION_INT,    /* int64_t */
    TESS_OPTION_REAL,   /* double */
    TESS_OPTION_STRING, /* const char *, owned by the option set, never NULL ("" when empty) */
    TESS_OPTION_CHOICE, /* int32_t: index into `choices` */
    TESS_OPTION_INTS,   /* struct tess_ints: comma list or YAML sequence */
    TESS_OPTION_TOPIC,  /* no option: the rows that follow have this name's heading in the help */
};

#define TESS_INTS_MAX 32

struct tess_ints {
    int32_t count;
    int64_t value[TESS_INTS_MAX];
};

/* One row. The last row of a table has name NULL. */
struct tess_option {
    const char *name; /* lower case, words joined by '-', no prefix */
    enum tess_option_type type;
    size_t offset;        /* of the field in the part's options struct */
    const char *fallback; /* default, written as a user would write it */
    double min, max;      /* inclusive limits of INT, REAL and each of INTS; both 0: none */
    const char *choices;  /* CHOICE: "a|b|c" */
    const char *help;     /* one sentence, what it does and its unit */
};

/* Rows by type; limits are those of struct tess_option. TESS_ROW_END ends a table. */
#define TESS_ROW(kind, key, at, value, least, most, words, text)                                   \
    {                                                                                              \
        .name = key, .type = kind, .offset = at, .fallback = value, .min = least, .max = most,     \
        .choices = words, .help = text                                                             \
    }
#define TESS_ROW_BOOL(key, at, value, text)                                                        \
    TESS_ROW(TESS_OPTION_BOOL, key, at, value, 0, 0, NULL, text)
#define TESS_ROW_STRING(key, at, value, text)                                                      \
    TESS_ROW(TESS_OPTION_STRING, key, at, value, 0, 0, NULL, text)
#define TESS_ROW_CHOICE(key, at, value, words, text)                                               \
    TESS_ROW(TESS_OPTION_CHOICE, key, at, value, 0, 0, words, text)
#define TESS_ROW_INT(key, at, value, least, most, text)                                            \
    TESS_ROW(TESS_OPTION_INT, key, at, value, least, most, NULL, text)
#define TESS_ROW_REAL(key, at, value, least, most, text)                                           \
    TESS_ROW(TESS_OPTION_REAL, key, at, value, least, most, NULL, text)
#define TESS_ROW_INTS(key, at, value, least, most, text)                                           \
    TESS_ROW(TESS_OPTION_INTS, key, at, value, least, most, NULL, text)
#define TESS_ROW_TOPIC(name) TESS_ROW(TESS_OPTION_TOPIC, name, 0, NULL, 0, 0, NULL, NULL)
#define TESS_ROW_END         TESS_ROW(TESS_OPTION_BOOL, NULL, 0, NULL, 0, 0, NULL, NULL)

TESS_END_DECLS
#endif
