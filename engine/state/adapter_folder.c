/* See adapter_folder.h. Not here: the adapters' values (weights.h, export.h). */
#include "state/adapter_folder.h"

#include "base/file.h"
#include "state/checkpoint_file.h"
#include "tessera/check.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_PATH   4096

/* Keys that do not change what the adapter computes. */
static const char *const adapter_ignored[] = {
    "auto_mapping",   "base_model_name_or_path", "fan_in_fan_out",
    "inference_mode", "init_lora_weights",       "lora_dropout",
    "megatron_core",  "qalora_group_size",       "peft_version",
    "revision",       "runtime_config",          "task_type"};

struct adapter_reader {
    char path[ADAPTER_PATH];
    json_t *object;
};

static enum tess_status adapter_refuse(const struct adapter_reader *reader, const char *key,
                                       const char *why)
{
    const json_t *value = json_object_get(reader->object, key);
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const enum tess_status status =
        tess_fail(TESS_ERR_DATA, "%s: \"%s\" is %.80s: %s", reader->path, key,
                  value == NULL  ? "missing"
                  : text != NULL ? text
                                 : "?",
                  why);
    free(text);
    return status;
}

static bool adapter_has_text(const struct adapter_reader *reader, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(reader->object, key));
    return value != NULL && strcmp(value, text) == 0;
}

/* What a target has behind the number of a layer, "self_attn.q_proj" of
 * "model.layers.0.self_attn.q_proj", which PEFT writes for each layer; else all of it. */
static const char *adapter_short(const char *target, bool *numbered)
{
    for (const char *at = target; *at != '\0'; at++) {
        const size_t digits = *at == '.' ? strspn(at + 1, "0123456789") : 0;
        *numbered = digits > 0 && at[1 + digits] == '.' && at[2 + digits] != '\0';
        if (*numbered)
            return at + 2 + digits;
    }
    return target;
}

static int adapter_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Different targets of the sorted ones, each of as many layers as the others. */
static enum tess_status adapter_join(const struct adapter_reader *reader, const char **target,
                                     size_t count, struct tess_adapter_folder *adapter)
{
    size_t used = 0, layers = 0;
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && strcmp(target[end], target[i]) == 0;)
            end++;
        if (i > 0 && end - i != layers)
            return adapter_refuse(reader, "target_modules",
                                  "not the same layers in each block: not supported");
        layers = end - i;
        used += (size_t)snprintf(adapter->targets + used, sizeof(adapter->targets) - used, "%s%s",
                                 i > 0 ? "," : "", target[i]);
        if (used >= sizeof(adapter->targets))
            return adapter_refuse(reader, "target_modules", "a list of more than 500 letters");
    }
    return TESS_OK;
}

static enum tess_status adapter_targets(const struct adapter_reader *reader,
                                        struct tess_adapter_folder *adapter)
{
    const json_t *list = json_object_get(reader->object, "target_modules"), *one;
    const size_t count = json_array_size(list);
    enum tess_status status = TESS_OK;
    bool numbered = false, before = false;
    size_t i;
    if (adapter_has_text(reader, "target_modules", "all-linear")) {
        snprintf(adapter->targets, sizeof(adapter->targets), "all");
        return TESS_OK;
    }
    if (count == 0)
        return adapter_refuse(reader, "target_modules",
                              "expected a list of layers' names, or \"all-linear\"");
    const char **target = calloc(count, sizeof(*target));
    if (target == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", reader->path);
    json_array_foreach(list, i, one)
    {
        const char *name = json_string_value(one);
        if (name == NULL || name[0] == '\0' || strchr(name, ',') != NULL)
            status = adapter_refuse(reader, "target_modules", "expected a list of layers' names");
        if (status != TESS_OK)
            break;
        target[i] = adapter_short(name, &numbered);
        if (i > 0 && numbered != before)
            status = adapter_refuse(reader, "target_modules",
                                    "not the same layers in each block: not supported");
        before = numbered;
    }
    qsort(target, status == TESS_OK ? count : 0, sizeof(*target), adapter_compare);
    if (status == TESS_OK)
        status = adapter_join(reader, target, count, adapter);
    free(target);
    return status;
}

/* Null, false, 0, "none" and what is empty leave a function as it is. */
static bool adapter_is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && strcmp(json_string_value(value), "none") == 0);
}

static bool adapter_is_known(const char *key)
{
    static const char *const read[] = {"peft_type", "r", "lora_alpha", "target_modules",
                                       "use_rslora"};
    for (size_t i = 0; i < sizeof(read) / sizeof(*read); i++)
        if (strcmp(key, read[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof(adapter_ignored) / sizeof(*adapter_ignored); i++)
        if (strcmp(key, adapter_ignored[i]) == 0)
            return true;
    return false;
}

static enum tess_status adapter_read(const struct adapter_reader *reader,
                                     struct tess_adapter_folder *adapter)
{
    const json_t *rank = json_object_get(reader->object, "r");
    const json_t *alpha = json_object_get(reader->object, "lora_alpha");
    const char *key;
    json_t *value;
    if (!adapter_has_text(reader, "peft_type", "LORA"))
        return adapter_refuse(reader, "peft_type", "only \"LORA\" is supported");
    adapter->rank = json_integer_value(rank);
    if (!json_is_integer(rank) || adapter->rank < 1 || adapter->rank > 65536)
        return adapter_refuse(reader, "r", "expected a whole number from 1 to 65536");
    adapter->alpha = json_number_value(alpha);
    if (!json_is_number(alpha) || !(adapter->alpha > 0))
        return adapter_refuse(reader, "lora_alpha", "expected a number above 0");
    if (json_is_true(json_object_get(reader->object, "use_rslora")))
        adapter->alpha *= sqrt((double)adapter->rank);
    TESS_TRY(adapter_targets(reader, adapter));
    json_object_foreach(reader->object, key, value)
    {
        if (!adapter_is_known(key) && !adapter_is_off(value))
            return adapter_refuse(reader, key, "not supported");
    }
    return TESS_OK;
}

enum tess_status tess_adapter_folder_read(const char *folder,
                                          struct tess_adapter_folder *adapter_out)
{
    struct adapter_reader reader = {.object = NULL};
    if (snprintf(reader.path, sizeof(reader.path), "%s/" ADAPTER_CONFIG, folder) >=
        (int)sizeof(reader.path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the folder %.80s is too long", folder);
    char *text;
    size_t bytes;
    json_error_t error;
    TESS_TRY(tess__checkpoint_read_text(reader.path, &text, &bytes));
    reader.object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (reader.object == NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: %s", reader.path, error.line, error.text);
    const enum tess_status status = adapter_read(&reader, adapter_out);
    json_decref(reader.object);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *adapter_list(const char *targets)
{
    json_t *list = json_array();
    for (const char *at = targets; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (length > 0)
            json_array_append_new(list, json_stringn(at, length));
        at += length + (at[length] == ',');
    }
    return list;
}

enum tess_status tess_adapter_folder_write(const char *folder,
                                           const struct tess_adapter_folder *adapter, bool gpt2)
{
    char path[ADAPTER_PATH];
    struct tess_file_writer writer;
    json_t *targets = strcmp(adapter->targets, "all") == 0 ? json_string("all-linear")
                                                           : adapter_list(adapter->targets);
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:f, s:o, s:s, s:b, s:f, s:b, s:n, s:n, s:{}, s:{}}",
                  "peft_type", "LORA", "task_type", "CAUSAL_LM", "r", (json_int_t)adapter->rank,
                  "lora_alpha", adapter->alpha, "target_modules", targets, "bias", "none",
                  "fan_in_fan_out", gpt2, "lora_dropout", 0.0, "inference_mode", 1,
                  "base_model_name_or_path", "modules_to_save", "rank_pattern", "alpha_pattern");
    char *text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to write " ADAPTER_CONFIG);
    snprintf(path, sizeof(path), "%s/" ADAPTER_CONFIG, folder);
    enum tess_status status = tess_file_create(path, &writer);
    if (status == TESS_OK) {
        int error = tess_file_append(writer.fd, text, strlen(text));
        error = error != 0 ? error : tess_file_append(writer.fd, "\n", 1);
        status = tess_file_commit(&writer, error);
    }
    free(text);
    return status;
}
