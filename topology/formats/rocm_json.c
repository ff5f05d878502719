/*
 * Reads what `rocm-smi --showtopo --json` prints. A pair is there once, the lower GPU first; values
 * are the words of the matrices that read_rocm.c reads:
 *
 *     {"system": {"(Topology) Weight between DRM devices 0 and 1": "15",
 *                 "(Topology) Hops between DRM devices 0 and 1": "1",
 *                 "(Topology) Link type between DRM devices 0 and 1": "XGMI"},
 *      "card0": {"(Topology) Numa Node": "0", "(Topology) Numa Affinity": "0"}, ...}
 */
#include "topology/formats/rocm.h"

#include "tessera/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* "(Topology) Hops between DRM devices 0 and 1": the section, and the two numbers. */
static bool json_pair(const char *key, enum rocm_section *section_out, int32_t pair_out[2])
{
    static const struct {
        const char *text;
        enum rocm_section section;
    } known[] = {{"(Topology) Hops between DRM devices ", ROCM_HOPS},
                 {"(Topology) Link type between DRM devices ", ROCM_TYPE},
                 {"(Topology) Link accessibility between DRM devices ", ROCM_ACCESS}};

    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        const size_t length = strlen(known[k].text);
        if (strncmp(key, known[k].text, length) != 0)
            continue;
        const char *and = strstr(key + length, " and ");
        *section_out = known[k].section;
        return and != NULL &&
               tess__word_number((struct tess__word){key + length, (size_t)(and-key) - length},
                                 9999, &pair_out[0]) &&
               tess__word_number((struct tess__word){and+5, strlen(and+5)}, 9999, &pair_out[1]) &&
               pair_out[0] != pair_out[1];
    }
    return false;
}

/* The number of "card3"; -1. */
static int32_t json_card(const char *key)
{
    int32_t number;

    return strncmp(key, "card", 4) == 0 &&
                   tess__word_number((struct tess__word){key + 4, strlen(key + 4)}, 9999, &number)
               ? number
               : -1;
}

static int32_t json_find(const struct tess__smi *smi, int32_t number)
{
    for (int32_t i = 0; i < smi->count; i++)
        if (smi->entry[i].number == number)
            return i;
    return -1;
}

static enum tess_status json_gpu(struct rocm_reader *reader, int32_t number)
{
    return json_find(reader->smi, number) >= 0 ? TESS_OK : tess__rocm_gpu_add(reader, number, 0);
}

static int json_by_number(const void *a, const void *b)
{
    const struct tess__smi_entry *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

/* Which GPUs there are: those that have a key of a pair or of a node. */
static enum tess_status json_gpus(struct rocm_reader *reader, json_t *root, json_t *pairs)
{
    enum rocm_section section;
    int32_t pair[2];
    const char *key;
    json_t *value;

    json_object_foreach(pairs, key, value) for (int e = 0; e < 2 && json_pair(key, &section, pair);
                                                e++) TESS_TRY(json_gpu(reader, pair[e]));
    json_object_foreach(root, key, value) if (json_card(key) >= 0 &&
                                              json_object_get(value, "(Topology) Numa Node") !=
                                                  NULL) TESS_TRY(json_gpu(reader, json_card(key)));
    qsort(reader->smi->entry, (size_t)reader->smi->count, sizeof(*reader->smi->entry),
          json_by_number);
    return TESS_OK;
}

/* The word of a value, which is a string or a number; `room` of at least 24 bytes. */
static struct tess__word json_word(const json_t *value, char *room, size_t bytes)
{
    if (json_is_string(value))
        return (struct tess__word){json_string_value(value), json_string_length(value)};
    snprintf(room, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return (struct tess__word){room, json_is_integer(value) ? strlen(room) : 0};
}

static enum tess_status json_cell(struct rocm_reader *reader, const char *key, const json_t *value,
                                  bool *typed)
{
    const struct tess__smi *smi = reader->smi;
    enum rocm_section section;
    const char *expected;
    int32_t pair[2];
    char room[32];

    if (!json_pair(key, &section, pair))
        return TESS_OK;
    const int32_t a = json_find(smi, pair[0]), b = json_find(smi, pair[1]);
    const struct tess__word word = json_word(value, room, sizeof(room));
    for (int e = 0; e < 2; e++)
        if (!tess__rocm_cell(reader, section, word,
                             e == 0 ? a * smi->count + b : b * smi->count + a, &expected))
            return tess__lines_fail(smi->name, 0, "'%.*s' at \"%.80s\": %s was expected",
                                    TESS__SHOWN(word), key, expected);
    if (section == ROCM_TYPE)
        typed[a * smi->count + b] = typed[b * smi->count + a] = true;
    return TESS_OK;
}

static enum tess_status json_cells(struct rocm_reader *reader, json_t *pairs)
{
    const struct tess__smi *smi = reader->smi;
    bool *typed = tess__pool_array(&reader->pool, (size_t)smi->count * (size_t)smi->count + 1,
                                   sizeof(*typed));
    const char *key;
    json_t *value;

    if (typed == NULL)
        return tess__no_memory("the pairs of rocm-smi");
    json_object_foreach(pairs, key, value) TESS_TRY(json_cell(reader, key, value, typed));
    for (int32_t i = 0; i < smi->count; i++)
        for (int32_t j = 0; j < smi->count; j++)
            if (i != j && !typed[i * smi->count + j])
                return tess__lines_fail(
                    smi->name, 0,
                    "no \"(Topology) Link type between DRM devices %d and %d\", "
                    "which rocm-smi --showtopo --json prints",
                    (int)smi->entry[i].number, (int)smi->entry[j].number);
    return TESS_OK;
}

static void json_nodes(struct rocm_reader *reader, json_t *root)
{
    const char *key;
    char room[32];
    json_t *value;

    json_object_foreach(root, key, value)
    {
        const int32_t i = json_find(reader->smi, json_card(key));
        const json_t *node = json_object_get(value, "(Topology) Numa Node");
        int32_t numa;
        if (i >= 0 && tess__word_number(json_word(node, room, sizeof(room)), 9999, &numa))
            reader->smi->entry[i].numa = numa;
    }
}

enum tess_status tess__rocm_json(struct rocm_reader *reader, struct tess__word text)
{
    json_error_t error;
    json_t *root =
        json_loadb(text.text, text.length, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &error);
    const char *name = reader->smi->name;

    if (root == NULL)
        return tess__lines_fail(name, 0, "in the JSON of rocm-smi, line %d: %s", error.line,
                                error.text);
    json_t *pairs = json_object_get(root, "system");
    enum tess_status status = json_gpus(reader, root, pairs);
    if (status == TESS_OK && reader->smi->count == 0)
        status = tess__lines_fail(name, 0,
                                  "no key that begins with (Topology): what rocm-smi --showtopo "
                                  "--json prints was expected");
    if (status == TESS_OK)
        status = json_cells(reader, pairs);
    if (status == TESS_OK)
        json_nodes(reader, root);
    json_decref(root);
    return status;
}
