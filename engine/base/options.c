/* The option set: tables, their entries, who set each and where. */
#include "base/options.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/options_set.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

enum tess_status tess__options_no_memory(void)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options");
}

enum tess_status tess_options_open(struct tess_options **options_out)
{
    struct tess_options *options = calloc(1, sizeof(*options));
    if (options == NULL)
        return tess__options_no_memory();
    *options_out = options;
    return TESS_OK;
}

void tess_options_close(struct tess_options *options)
{
    if (options == NULL)
        return;
    tess__yaml_close(options);
    while (options->text != NULL) {
        struct tess__option_text *next = options->text->next;
        free(options->text);
        options->text = next;
    }
    free(options->entry);
    free(options->foreign);
    free(options);
}

static size_t options_bucket(const char *normal)
{
    return tess_hash_bytes(normal, strlen(normal)) % TESS__OPTION_BUCKETS;
}

struct tess__option_entry *tess__options_find(const struct tess_options *options, const char *name)
{
    char normal[TESS__NAME_MAX];
    if (!tess__name_join(normal, "", name))
        return NULL;
    int32_t at = options->bucket[options_bucket(normal)];
    while (at > 0 && strcmp(options->entry[at - 1].name, normal) != 0)
        at = options->entry[at - 1].next;
    return at > 0 ? &options->entry[at - 1] : NULL;
}

bool tess_options_is_set(const struct tess_options *options, const char *name)
{
    const struct tess__option_entry *entry = tess__options_find(options, name);
    return entry != NULL && entry->source != TESS__SOURCE_DEFAULT;
}

const char *tess_options_text(const struct tess_options *options, const char *name)
{
    const struct tess__option_entry *entry = tess__options_find(options, name);
    return entry != NULL ? entry->text : NULL;
}

enum tess_status tess_options_give(struct tess_options *options, const char *name,
                                   const char *value, const char *origin)
{
    char *kept = tess__options_keep_text(options, origin);
    if (kept == NULL)
        return tess__options_no_memory();
    return tess__options_assign(options, tess__options_find(options, name), value,
                                TESS__SOURCE_ARGUMENTS, kept);
}

bool tess_options_is_stronger(const struct tess_options *options, const char *name,
                              const char *other)
{
    const struct tess__option_entry *a = tess__options_find(options, name);
    const struct tess__option_entry *b = tess__options_find(options, other);
    return a != NULL && b != NULL && a->source > b->source;
}

/* ---- tables --------------------------------------------------------------------------------- */

static enum tess_status options_add_row(struct tess_options *options, const char *prefix,
                                        const char *group, const struct tess_option *row,
                                        char *target)
{
    char name[TESS__NAME_MAX];
    if (!tess__name_join(name, prefix, row->name))
        TESS_FAIL(TESS_ERR_INTERNAL, "an option's name is longer than %d characters: '%.40s...'",
                  TESS__NAME_MAX - 1, row->name);
    struct tess__option_entry *entry = tess__options_find(options, name);
    if (entry != NULL && target == NULL) {
        entry->shown = row;
        /* A list where the owner has a number: only words written for the owner reach it. */
        entry->skips_environment = entry->skips_file = row->type != entry->option->type;
        return TESS_OK;
    }
    if (entry != NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "two option tables have the name '%s'", name);
    if ((unsigned)row->type > TESS_OPTION_INTS ||
        (row->type == TESS_OPTION_CHOICE && row->choices == NULL))
        TESS_FAIL(TESS_ERR_INTERNAL, "option '%s': its table row has %s", name,
                  row->type == TESS_OPTION_CHOICE ? "no choices" : "an unknown type");
    entry = tess__array_grow(options->entry, (size_t)options->entry_count, sizeof(*entry));
    if (entry != NULL)
        options->entry = entry;
    char *kept = tess__options_keep_text(options, name);
    if (entry == NULL || kept == NULL)
        return tess__options_no_memory();
    entry += options->entry_count;
    *entry = (struct tess__option_entry){.name = kept,
                                         .prefix = prefix,
                                         .group = group,
                                         .option = row,
                                         .shown = row,
                                         .field = target != NULL ? target + row->offset : NULL};
    enum tess_status status =
        tess__options_assign(options, entry, row->fallback != NULL ? row->fallback : "",
                             TESS__SOURCE_DEFAULT, "default");
    if (status == TESS_ERR_USAGE)
        status = TESS_ERR_INTERNAL; /* the table's fault, not the user's */
    if (status == TESS_OK) {
        int32_t *bucket = &options->bucket[options_bucket(kept)];
        entry->next = *bucket;
        *bucket = ++options->entry_count;
    }
    return status;
}

/* The prefix in normal form, which lives as the set. */
static enum tess_status options_keep_prefix(struct tess_options *options, const char *prefix,
                                            const char **kept_out)
{
    char normal[TESS__NAME_MAX];
    if (!tess__name_join(normal, "", prefix))
        TESS_FAIL(TESS_ERR_INTERNAL, "an option prefix is longer than %d characters: '%.40s...'",
                  TESS__NAME_MAX - 1, prefix);
    *kept_out = tess__options_keep_text(options, normal);
    return *kept_out != NULL ? TESS_OK : tess__options_no_memory();
}

enum tess_status tess_options_add(struct tess_options *options, const char *prefix,
                                  const struct tess_option *table, void *target)
{
    const char *kept;
    TESS_TRY(options_keep_prefix(options, prefix, &kept));
    const char *group = kept;
    for (const struct tess_option *row = table; row != NULL && row->name != NULL; row++)
        if (row->type == TESS_OPTION_TOPIC)
            group = row->name;
        else
            TESS_TRY(options_add_row(options, kept, group, row, target));
    return TESS_OK;
}

enum tess_status tess_options_allow(struct tess_options *options, const char *prefix,
                                    const char *why)
{
    struct tess__option_foreign *foreign =
        tess__array_grow(options->foreign, (size_t)options->foreign_count, sizeof(*foreign));
    if (foreign == NULL)
        return tess__options_no_memory();
    options->foreign = foreign;
    foreign += options->foreign_count;
    TESS_TRY(options_keep_prefix(options, prefix, &foreign->prefix));
    foreign->why = tess__options_keep_text(options, why != NULL ? why : "");
    if (foreign->why == NULL)
        return tess__options_no_memory();
    options->foreign_count++;
    return TESS_OK;
}

/* Is `name` the prefix itself or below it? */
static bool options_is_below(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && (name[length] == '.' || !name[length]);
}

bool tess__options_is_group(const struct tess_options *options, const char *name)
{
    for (int i = 0; i < options->entry_count; i++)
        if (options->entry[i].name[0] == name[0] && /* mostly not */
            options_is_below(options->entry[i].name, name) &&
            strcmp(options->entry[i].name, name) != 0)
            return true;
    return false;
}

const char *tess__options_foreign_why(const struct tess_options *options, const char *name)
{
    for (int i = 0; i < options->foreign_count; i++) {
        const struct tess__option_foreign *foreign = &options->foreign[i];
        /* A part that was selected after all answers for its names itself. */
        if (options_is_below(name, foreign->prefix) &&
            !tess__options_is_group(options, foreign->prefix))
            return foreign->why;
    }
    return NULL;
}

/* ---- values --------------------------------------------------------------------------------- */

enum tess_status tess__options_assign(struct tess_options *options,
                                      struct tess__option_entry *entry, const char *text,
                                      enum tess__option_source source, const char *origin)
{
    static const size_t bytes[] = {
        [TESS_OPTION_BOOL] = sizeof(bool),      [TESS_OPTION_INT] = sizeof(int64_t),
        [TESS_OPTION_REAL] = sizeof(double),    [TESS_OPTION_STRING] = sizeof(char *),
        [TESS_OPTION_CHOICE] = sizeof(int32_t), [TESS_OPTION_INTS] = sizeof(struct tess_ints)};
    union tess__option_value value;
    char problem[1536], canonical[TESS__VALUE_TEXT_MAX];
    if (!tess__option_parse(entry->option, text, &value, problem, sizeof(problem)))
        TESS_FAIL(TESS_ERR_USAGE, "%s: %s: %s", origin, entry->name, problem);
    if (source < entry->source)
        return TESS_OK;
    if (entry->option->type != TESS_OPTION_STRING) {
        tess__option_print(entry->option, &value, canonical);
        text = canonical;
    }
    char *kept = tess__options_keep_text(options, text);
    if (kept == NULL)
        return tess__options_no_memory();
    if (entry->option->type == TESS_OPTION_STRING)
        value.text = kept;
    if (entry->field != NULL)
        memcpy(entry->field, &value, bytes[entry->option->type]);
    entry->text = kept;
    entry->source = source;
    entry->origin = origin;
    return TESS_OK;
}

void tess_options_read_before(struct tess_options *options, const struct tess_options *before)
{
    options->before = before;
}

void tess_options_skip_others(struct tess_options *options)
{
    options->skips_others = true;
}

void tess_options_skip_file(struct tess_options *options, const char *name)
{
    struct tess__option_entry *entry = tess__options_find(options, name);
    if (entry != NULL)
        entry->skips_file = true;
}

void tess_options_visit(const struct tess_options *options,
                        void (*visit)(void *context, const char *name, const char *value,
                                      const char *origin, const struct tess_option *option),
                        void *context)
{
    for (int i = 0; i < options->entry_count; i++) {
        const struct tess__option_entry *entry = &options->entry[i];
        visit(context, entry->name, entry->text, entry->origin, entry->option);
    }
}

uint64_t tess_options_hash(const struct tess_options *options)
{
    uint64_t hash = 0;
    for (int i = 0; i < options->entry_count; i++) {
        const struct tess__option_entry *entry = &options->entry[i];
        hash = tess_hash_mix(hash + tess_hash_bytes(entry->name, strlen(entry->name)));
        hash = tess_hash_mix(hash ^ tess_hash_bytes(entry->text, strlen(entry->text)));
    }
    return hash;
}

/* ---- unknown names -------------------------------------------------------------------------- */

/* What other programs call it. */
static const char *options_synonym(const struct tess_options *options, const char *name)
{
    static const char *const of[][2] = {
        {"batch", "batch-size"}, {"bs", "batch-size"},
        {"lr", "learning-rate"}, {"wd", "weight-decay"},
        {"dtype", "precision"},  {"world-size", "ranks"},
        {"nproc", "ranks"},      {"nproc-per-node", "ranks"},
        {"gpus", "ranks"},       {"num-gpus", "ranks"},
        {"max-steps", "steps"},  {"grad-accum", "accumulate"},
        {"output", "run"},       {"output-dir", "run"},
        {"checkpoint", "init"},  {"gradient-clipping", "clip"},
        {"dataset", "data"},
    };
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        if (strcmp(of[i][0], name) == 0 && tess__options_find(options, of[i][1]) != NULL)
            return of[i][1];
    return NULL;
}

/* The nearest known name, or the one that ends in ".name": a prefix is easily forgotten. */
static const char *options_nearest(const struct tess_options *options, const char *name, bool group)
{
    const char *nearest = group ? NULL : options_synonym(options, name);
    int least = nearest != NULL ? 0 : TESS__WORD_FAR;
    for (int i = 0; i < options->entry_count; i++) {
        const struct tess__option_entry *entry = &options->entry[i];
        const char *known = group ? entry->prefix : entry->name;
        const int distance = tess__word_distance(name, known);
        if (distance < least) {
            least = distance;
            nearest = known;
        }
    }
    for (int i = 0; nearest == NULL && !group && i < options->entry_count; i++) {
        const char *tail = strrchr(options->entry[i].name, '.');
        if (tail != NULL && strcmp(tail + 1, name) == 0)
            nearest = options->entry[i].name;
    }
    return nearest;
}

enum tess_status tess__options_unknown(const struct tess_options *options, const char *origin,
                                       const char *name, bool group)
{
    char normal[TESS__NAME_MAX], quote[TESS__QUOTE_MAX];
    const char *nearest =
        tess__name_join(normal, "", name) ? options_nearest(options, normal, group) : NULL;
    if (nearest != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "%s: unknown option '%s'; did you mean '%s'?", origin,
                  tess__quote(name, quote), nearest);
    TESS_FAIL(TESS_ERR_USAGE, "%s: unknown option '%s'; --help lists the known ones", origin,
              tess__quote(name, quote));
}
