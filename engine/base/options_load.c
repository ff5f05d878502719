/* The sources of an option set: environment, configuration file, command line. */
#include "base/options_set.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- environment ---------------------------------------------------------------------------- */

#define LOAD_VARIABLE_MAX (TESS__NAME_MAX + 8)

/* Variables that are no options: paths of libraries that are opened at run time (device/device.c,
 * device/nvml.c, cli/command.c). They describe the machine, not a run. */
static const char *const load_libraries[] = {"TESSERA_MODULE_PATH", "TESSERA_NVML", "TESSERA_CUDNN",
                                             "TESSERA_PLUGIN"};

static bool load_variable_is_foreign(const struct tess_options *options, const char *variable)
{
    for (size_t i = 0; i < sizeof(load_libraries) / sizeof(load_libraries[0]); i++)
        if (strcmp(variable, load_libraries[i]) == 0)
            return true;
    for (int i = 0; i < options->foreign_count; i++) {
        char prefix[LOAD_VARIABLE_MAX];
        tess__name_environment(prefix, options->foreign[i].prefix);
        size_t length = strlen(prefix);
        if (!tess__options_is_group(options, options->foreign[i].prefix) &&
            strncmp(variable, prefix, length) == 0 &&
            (variable[length] == '_' || !variable[length]))
            return true;
    }
    return false;
}

static enum tess_status load_variable_unknown(const struct tess_options *options,
                                              const char *variable)
{
    const size_t shared = strlen("TESSERA_"); /* which would make every name near */
    char quote[TESS__QUOTE_MAX], name[LOAD_VARIABLE_MAX], nearest[LOAD_VARIABLE_MAX];
    int least = TESS__WORD_FAR;
    for (int i = 0; i < options->entry_count; i++) {
        tess__name_environment(name, options->entry[i].name);
        const int distance = tess__word_distance(variable + shared, name + shared);
        if (distance >= least)
            continue;
        least = distance;
        memcpy(nearest, name, sizeof(name));
    }
    if (least < TESS__WORD_FAR)
        TESS_FAIL(TESS_ERR_USAGE, "environment: unknown option '%s'; did you mean '%s'?",
                  tess__quote(variable, quote), nearest);
    TESS_FAIL(TESS_ERR_USAGE, "environment: unknown option '%s'; --help lists the known ones",
              tess__quote(variable, quote));
}

static enum tess_status load_variable(struct tess_options *options, const char *variable,
                                      const char *value)
{
    bool known = false;
    for (int i = 0; i < options->entry_count; i++) {
        char name[LOAD_VARIABLE_MAX];
        tess__name_environment(name, options->entry[i].name);
        if (strcmp(name, variable) != 0)
            continue;
        known = true;
        if (options->entry[i].skips_environment)
            continue;
        char *origin = tess__options_keep(options, "environment %s", name);
        if (origin == NULL)
            return tess__options_no_memory();
        TESS_TRY(tess__options_assign(options, &options->entry[i], value, TESS__SOURCE_ENVIRONMENT,
                                      origin));
    }
    if (!known && !options->skips_others && !load_variable_is_foreign(options, variable))
        return load_variable_unknown(options, variable);
    return TESS_OK;
}

enum tess_status tess_options_load_environment(struct tess_options *options)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const char *equals = strchr(*at, '=');
        if (strncmp(*at, "TESSERA_", 8) != 0 || equals == NULL)
            continue;
        char *variable = tess__options_keep(options, "%.*s", (int)(equals - *at), *at);
        if (variable == NULL)
            return tess__options_no_memory();
        TESS_TRY(load_variable(options, variable, equals + 1));
    }
    return TESS_OK;
}

/* ---- configuration file --------------------------------------------------------------------- */

static char *load_place(struct tess_options *options, const char *path, struct tess__yaml_place at)
{
    return tess__options_keep(options, "%s:%d:%d", tess__path_end(path), at.line, at.column);
}

static enum tess_status load_item(struct tess_options *options, const char *path,
                                  const struct tess__yaml_item *item)
{
    static const char *const found[] = {[TESS__YAML_SCALAR] = "",
                                        [TESS__YAML_NULL] = "nothing; write \"\" for an empty text",
                                        [TESS__YAML_SEQUENCE] = "a sequence",
                                        [TESS__YAML_MAP] = "a map"};
    struct tess__option_entry *entry = tess__options_find(options, item->name);
    const bool group = entry == NULL && tess__options_is_group(options, item->name);
    bool opens = item->kind == TESS__YAML_MAP || item->kind == TESS__YAML_NULL;
    if (entry != NULL
            ? entry->skips_file
            : options->skips_others || tess__options_foreign_why(options, item->name) != NULL ||
                  (group && opens))
        return TESS_OK;
    char *place = load_place(options, path, item->name_at);
    char *value_place = load_place(options, path, item->value_at);
    if (place == NULL || value_place == NULL)
        return tess__options_no_memory();
    if (entry == NULL && group)
        TESS_FAIL(TESS_ERR_USAGE, "%s: '%s' is a group of options, not an option; expected a map",
                  value_place, item->name);
    if (entry == NULL && item->kind == TESS__YAML_MAP) {
        /* An ancestor of an unselected part's prefix. Otherwise its keys, if any, are unknown too.
         */
        for (int i = 0; i < options->foreign_count; i++) {
            size_t length = strlen(item->name);
            if (strncmp(options->foreign[i].prefix, item->name, length) == 0 &&
                options->foreign[i].prefix[length] == '.')
                return TESS_OK;
        }
    }
    if (entry == NULL)
        return tess__options_unknown(options, place, item->name, item->kind == TESS__YAML_MAP);
    bool fits = item->kind == TESS__YAML_SCALAR ||
                (item->kind == TESS__YAML_SEQUENCE && entry->option->type == TESS_OPTION_INTS);
    if (!fits) {
        char expected[1024];
        tess__option_expected(entry->option, expected, sizeof(expected));
        TESS_FAIL(TESS_ERR_USAGE, "%s: %s: expected %s, found %s", value_place, item->name,
                  expected, found[item->kind]);
    }
    return tess__options_assign(options, entry, item->text, TESS__SOURCE_YAML, value_place);
}

enum tess_status tess_options_load_yaml(struct tess_options *options, const char *path)
{
    const struct tess__yaml_file *file = tess__yaml_get(options, path);
    if (file == NULL)
        return tess__options_no_memory();
    if (file->status != TESS_OK)
        TESS_FAIL(file->status, "%s", file->message);
    for (int i = 0; i < file->item_count; i++)
        TESS_TRY(load_item(options, path, &file->item[i]));
    return TESS_OK;
}

/* ---- command line --------------------------------------------------------------------------- */

/* One option on the command line. */
struct load_word {
    char name[TESS__NAME_MAX];        /* as written */
    struct tess__option_entry *entry; /* NULL: no option of this set */
    const char *value;                /* NULL: none was given */
    bool set;                         /* by --set */
    bool negated; /* "--no-" and the entry's name, or the beginning of an unknown one */
    int words;    /* of argv that it took */
};

/* On the command line, second names of options whose own name a launcher takes for one of its own:
 * torchrun reads all words, and "--run" is to it short for both "--run-path" and "--run_path". */
static const char *const load_second_name[][2] = {{"run-dir", "run"}};

static bool load_is_option(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2];
}

/* The option that a second name means, in its place. */
static void load_take_second_name(char name[TESS__NAME_MAX])
{
    char normal[TESS__NAME_MAX];
    if (!tess__name_join(normal, "", name))
        return;
    for (size_t i = 0; i < sizeof(load_second_name) / sizeof(load_second_name[0]); i++)
        if (strcmp(normal, load_second_name[i][0]) == 0)
            memcpy(name, load_second_name[i][1], strlen(load_second_name[i][1]) + 1);
}

/* Split "--name", "--name=value", "--set name=value"; false when the name does not fit or --set has
 * no "name=value". Does not look at the next word unless for --set. */
static bool load_split(int argc, char **argv, int at, struct load_word *word_out)
{
    const char *name = argv[at] + 2;
    word_out->set = strcmp(name, "set") == 0 || strncmp(name, "set=", 4) == 0;
    if (word_out->set && name[3] == '=') {
        name += 4;
    } else if (word_out->set) {
        if (at + 1 >= argc)
            return false;
        name = argv[at + 1];
        word_out->words = 2;
    }
    const char *equals = strchr(name, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    if (length >= TESS__NAME_MAX || (word_out->set && equals == NULL))
        return false;
    memcpy(word_out->name, name, length);
    word_out->name[length] = '\0';
    load_take_second_name(word_out->name);
    word_out->value = equals != NULL ? equals + 1 : NULL;
    return true;
}

bool tess_options_is_file_name(const char *word)
{
    const char *point = strrchr(word, '.');
    return point != NULL && (strcmp(point, ".yaml") == 0 || strcmp(point, ".yml") == 0);
}

/* Read the option at argv[at]; false where none begins there, or not of a form that load_split
 * takes. A switch takes the next word only if that is a word of a switch: "--evaluate off", but not
 * "--evaluate run.yaml"; an option of unknown type unless it looks like the name of a configuration
 * file. */
static bool load_read(const struct tess_options *options, int argc, char **argv, int at,
                      struct load_word *word)
{
    const char *next = NULL;
    *word = (struct load_word){.words = 1};
    if (!load_is_option(argv[at]) || !load_split(argc, argv, at, word))
        return false;
    word->entry = tess__options_find(options, word->name);
    word->negated = word->entry == NULL && !word->set && strncmp(word->name, "no-", 3) == 0;
    if (word->negated)
        word->entry = tess__options_find(options, word->name + 3);
    if (word->value != NULL || word->negated)
        return true;
    if (at + 1 < argc && strncmp(argv[at + 1], "--", 2) != 0)
        next = argv[at + 1];
    word->value = next;
    if (word->entry != NULL && word->entry->option->type == TESS_OPTION_BOOL &&
        (next == NULL || !tess_options_is_switch_word(next)))
        word->value = "on";
    else if (next != NULL && (word->entry != NULL || !tess_options_is_file_name(next)))
        word->words = 2;
    return true;
}

/* An option that no table has: of an unselected part, which says why it is refused, or unknown. */
static enum tess_status load_foreign(const struct tess_options *options,
                                     const struct load_word *word)
{
    char quote[TESS__QUOTE_MAX], normal[TESS__NAME_MAX];
    tess__name_join(normal, "", word->name); /* fits: it was split into a name */
    const char *why = tess__options_foreign_why(options, normal);
    if (why == NULL && strncmp(normal, "no-", 3) == 0)
        why = tess__options_foreign_why(options, normal + 3);
    if (why == NULL)
        return tess__options_unknown(options, "command line", word->name, false);
    if (*why)
        TESS_FAIL(TESS_ERR_USAGE, "command line: --%s %s", tess__quote(word->name, quote), why);
    return TESS_OK;
}

static enum tess_status load_option(struct tess_options *options, int argc, char **argv, int at,
                                    int *words_out)
{
    struct load_word word;
    char quote[TESS__QUOTE_MAX], expected[1024];
    if (!load_read(options, argc, argv, at, &word)) {
        const char *found = word.words == 2 ? argv[at + 1] : argv[at] + strlen("--set");
        if (word.set)
            TESS_FAIL(TESS_ERR_USAGE, "command line: --set needs name=value, found '%s'",
                      tess__quote(found + (*found == '='), quote));
        return tess__options_unknown(options, "command line", argv[at] + 2, false);
    }
    *words_out = word.words;
    if (word.entry == NULL)
        return load_foreign(options, &word);
    expected[0] = '\0';
    if (word.negated || word.value == NULL)
        tess__option_expected(word.entry->option, expected, sizeof(expected));
    if (word.negated && (word.entry->option->type != TESS_OPTION_BOOL || word.value != NULL))
        TESS_FAIL(TESS_ERR_USAGE, "command line: --no-%s %s: use --%s with %s", word.entry->name,
                  word.value ? "takes no value" : "does not apply, it is no switch",
                  word.entry->name, expected);
    if (word.negated)
        word.value = "off";
    if (word.value == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "command line: --%s needs a value: %s", word.entry->name,
                  expected);
    return tess__options_assign(options, word.entry, word.value, TESS__SOURCE_ARGUMENTS,
                                "command line");
}

enum tess_status tess_options_load_arguments(struct tess_options *options, int argc, char **argv,
                                             const char **positional, int positional_max,
                                             int *positional_count_out)
{
    int count = 0;
    bool ended = false;
    for (int at = 0; at < argc;) {
        const char *word = argv[at];
        char quote[TESS__QUOTE_MAX];
        int words = 1;
        if (!ended && strcmp(word, "--") == 0) {
            ended = true;
        } else if (!ended && load_is_option(word)) {
            TESS_TRY(load_option(options, argc, argv, at, &words));
        } else if (!ended && word[0] == '-' && word[1]) {
            TESS_FAIL(TESS_ERR_USAGE, "command line: unknown option '%s'; options begin with '--'",
                      tess__quote(word, quote));
        } else if (count == positional_max) {
            TESS_FAIL(TESS_ERR_USAGE,
                      "command line: one word too many: '%s'; --help shows what may stand here",
                      tess__quote(word, quote));
        } else {
            positional[count++] = word;
        }
        at += words;
    }
    *positional_count_out = count;
    return TESS_OK;
}

enum tess_status tess_options_take_arguments(struct tess_options *options, int *argc, char **argv)
{
    int left = 0;
    for (int at = 0, words; at < *argc; at += words) {
        struct load_word word;
        words = 1;
        if (strcmp(argv[at], "--") == 0) {
            while (at < *argc)
                argv[left++] = argv[at++];
            break;
        }
        if (load_read(options, *argc, argv, at, &word) && word.entry != NULL)
            TESS_TRY(load_option(options, *argc, argv, at, &words));
        else
            argv[left++] = argv[at];
    }
    *argc = left;
    return TESS_OK;
}

/* ---- a first look --------------------------------------------------------------------------- */

const char *tess_options_first_word(const struct tess_options *options, int argc, char **argv)
{
    struct load_word word;
    for (int at = 0; at < argc; at += word.words) {
        if (argv[at][0] != '-')
            return argv[at];
        (void)load_read(options, argc, argv, at, &word);
    }
    return NULL;
}

/* A word that begins with "--" is never a value, so options are found without their tables. */
static const char *load_peek_arguments(const struct tess_options *options, const char *name,
                                       int argc, char **argv)
{
    const char *value = NULL;
    struct load_word word;
    for (int at = 0; at < argc && strcmp(argv[at], "--") != 0; at += word.words) {
        char normal[TESS__NAME_MAX];
        if (!load_read(options, argc, argv, at, &word))
            continue;
        tess__name_join(normal, "", word.name); /* fits: it was split into a name */
        if (word.value != NULL && strcmp(normal, name) == 0)
            value = word.value;
        else if (word.negated && word.value == NULL && strcmp(normal + 3, name) == 0)
            value = "off";
    }
    return value;
}

const char *tess_options_peek_arguments(const char *name, int argc, char **argv)
{
    const struct tess_options none = {.entry = NULL};
    return load_peek_arguments(&none, name, argc, argv);
}

const char *tess_options_peek(struct tess_options *options, const char *name, int argc, char **argv,
                              const char *path)
{
    char normal[TESS__NAME_MAX], variable[LOAD_VARIABLE_MAX];
    if (!tess__name_join(normal, "", name))
        return NULL;
    const char *value = load_peek_arguments(options, normal, argc, argv);
    const struct tess__yaml_file *file =
        value == NULL && path != NULL ? tess__yaml_get(options, path) : NULL;
    /* A file that cannot be read is reported when it is loaded. */
    for (int i = 0; file != NULL && file->status == TESS_OK && i < file->item_count; i++) {
        const struct tess__yaml_item *item = &file->item[i];
        if (strcmp(item->name, normal) == 0 && item->kind != TESS__YAML_NULL)
            value = item->text;
    }
    if (value == NULL) {
        tess__name_environment(variable, normal);
        value = getenv(variable);
    }
    return value != NULL ? tess__options_keep_text(options, value) : NULL;
}
