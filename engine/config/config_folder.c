/* See config_folder.h. */
#include "config/config_folder.h"

#include "base/options_set.h"
#include "config/registry.h"
#include "state/adapter_folder.h"
#include "state/model_folder.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- --model FOLDER -------------------------------------------------------------------------- */

static bool folder_is_model(const char *name)
{
    int count = 0;
    const char *const *known = tess_registry_names(TESS_REGISTRY_MODEL, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return false;
}

static enum tess_status folder_read(const char *config, struct tess_model_folder **folder_out)
{
    struct tess_model_folder *folder = malloc(sizeof(*folder));
    if (folder == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", config);
    const enum tess_status status = tess_model_folder_read(config, folder);
    if (status != TESS_OK) {
        free(folder);
        return status;
    }
    *folder_out = folder;
    return TESS_OK;
}

enum tess_status tess__config_folder_open(struct tess_config *config, const char **model)
{
    char path[TESS_CHECKPOINT_PATH];
    struct stat about;
    const bool folder = stat(*model, &about) == 0 && S_ISDIR(about.st_mode);
    if (folder_is_model(*model) || (!folder && strchr(*model, '/') == NULL))
        return TESS_OK;
    if (!folder)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "--model %s: there is no such folder; give the name of a model or a folder with "
                  "config.json",
                  *model);
    if (!tess_model_folder_config(*model, path))
        TESS_FAIL(TESS_ERR_NOT_FOUND, "--model %s: the folder has no config.json", *model);
    TESS_TRY(folder_read(path, &config->folder));
    *model = TESS_FOLDER_MODEL;
    return TESS_OK;
}

/* Has the option this value, in whatever way it is written? */
static bool folder_has_value(const struct tess__option_entry *entry, const char *value)
{
    union tess__option_value parsed;
    char problem[1536], text[TESS__VALUE_TEXT_MAX];
    if (entry->option->type == TESS_OPTION_STRING)
        return strcmp(value, entry->text) == 0;
    if (!tess__option_parse(entry->option, value, &parsed, problem, sizeof(problem)))
        return false;
    tess__option_print(entry->option, &parsed, text);
    return strcmp(text, entry->text) == 0;
}

static bool folder_agrees(const struct tess__option_entry *entry,
                          const struct tess_folder_option *wanted)
{
    return folder_has_value(entry, wanted->value) ||
           (wanted->implied != NULL && folder_has_value(entry, wanted->implied));
}

static enum tess_status folder_give(struct tess_config *config, const char *name, const char *value)
{
    struct tess_options *options = config->options;
    char *origin = tess__options_keep_text(options, config->folder->config);
    if (origin == NULL)
        return tess__options_no_memory();
    return tess__options_assign(options, tess__options_find(options, name), value,
                                TESS__SOURCE_ARGUMENTS, origin);
}

enum tess_status tess__config_folder_take(struct tess_config *config)
{
    const struct tess_model_folder *folder = config->folder;
    struct tess_options *options = config->options;
    const char *given = config->run.model; /* lives as the options */
    const bool drawn = strcmp(config->run.init, TESS_CONFIG_INIT_NONE) == 0;
    if (drawn)
        TESS_TRY(tess_options_give(options, "init", "", "command line"));
    if (folder == NULL)
        return TESS_OK;
    for (int32_t i = 0; i < folder->option_count; i++) {
        const struct tess_folder_option *option = &folder->option[i];
        const struct tess__option_entry *entry = tess__options_find(options, option->name);
        if (tess_options_is_set(options, option->name) && !folder_agrees(entry, option))
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s: %s is %s, and in %s %s: leave the option out, or give another --model",
                      entry->origin, option->name, entry->text, folder->config, option->key);
        TESS_TRY(folder_give(config, option->name, option->value));
    }
    TESS_TRY(folder_give(config, "model", TESS_FOLDER_MODEL));
    if (!drawn && !tess_options_is_set(options, "init") && tess_model_folder_has_weights(given))
        TESS_TRY(folder_give(config, "init", given));
    return TESS_OK;
}

/* ---- --init ---------------------------------------------------------------------------------- */

static enum tess_status folder_compare(const struct tess_config *config,
                                       const struct tess_model_folder *folder)
{
    if (strcmp(config->model->name, TESS_FOLDER_MODEL) != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s describes a model " TESS_FOLDER_MODEL
                  ", and the run has --model %s: give the folder as --model",
                  folder->config, config->model->name);
    for (int32_t i = 0; i < folder->option_count; i++) {
        const struct tess_folder_option *option = &folder->option[i];
        const struct tess__option_entry *entry = tess__options_find(config->options, option->name);
        if (!folder_agrees(entry, option))
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s: %s, and the run has %s %s: give --%s %s, or leave the model's options "
                      "out and give its folder as --model",
                      folder->config, option->key, option->name, entry->text, option->name,
                      option->value);
    }
    return TESS_OK;
}

enum tess_status tess__config_folder_check(struct tess_config *config)
{
    char path[TESS_CHECKPOINT_PATH];
    struct tess_model_folder *folder;
    config->init_vocabulary = 0;
    if (config->run.init[0] == '\0' || config->checkpoint[0] != '\0' ||
        !tess_model_folder_config(config->run.init, path))
        return TESS_OK;
    TESS_TRY(folder_read(path, &folder));
    const enum tess_status status = folder_compare(config, folder);
    config->init_vocabulary = folder->vocabulary;
    free(folder);
    return status;
}

/* ---- --lora.init ----------------------------------------------------------------------------- */

static enum tess_status lora_take(struct tess_config *config, const char *name, const char *value)
{
    struct tess_options *options = config->options;
    struct tess__option_entry *entry = tess__options_find(options, name);
    if (tess_options_is_set(options, name) && !folder_has_value(entry, value))
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s: %s is %s, and in %s/adapter_config.json %s: leave the option out, or give "
                  "another --lora.init",
                  entry->origin, name, entry->text, config->lora.init, value);
    char *origin = tess__options_keep_text(options, config->lora.init);
    if (origin == NULL)
        return tess__options_no_memory();
    return tess__options_assign(options, entry, value, TESS__SOURCE_ARGUMENTS, origin);
}

enum tess_status tess__config_lora_take(struct tess_config *config)
{
    struct tess_adapter_folder adapter;
    char rank[32], alpha[64];
    if (config->lora.init[0] == '\0' || config->checkpoint[0] != '\0')
        return TESS_OK;
    TESS_TRY(tess_adapter_folder_read(config->lora.init, &adapter));
    snprintf(rank, sizeof(rank), "%lld", (long long)adapter.rank);
    snprintf(alpha, sizeof(alpha), "%.17g", adapter.alpha);
    TESS_TRY(lora_take(config, "lora.rank", rank));
    TESS_TRY(lora_take(config, "lora.alpha", alpha));
    return lora_take(config, "lora.targets", adapter.targets);
}

struct tess_lora tess_config_lora(const struct tess_config *config)
{
    const struct tess_lora_options *lora = &config->lora;
    const double alpha = lora->alpha > 0 ? lora->alpha : (double)lora->rank;
    if (lora->rank == 0)
        return (struct tess_lora){.rank = 0, .targets = ""};
    return (struct tess_lora){.rank = (int32_t)lora->rank,
                              .scale = (float)(alpha / (double)lora->rank),
                              .targets = lora->targets};
}
