/* See checkpoint_export.h. Weights are written by state/export.h; here: what they are of, and the
 * files beside them. */
#include "checkpoint_export.h"

#include "base/file.h"
#include "base/options.h"
#include "base/size.h"
#include "config/config.h"
#include "config/registry.h"
#include "state/adapter_folder.h"
#include "state/checkpoint.h"
#include "state/export.h"
#include "state/gguf.h"
#include "state/model_folder.h"
#include "state/weights.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT_GENERATION "generation_config.json"

/* Files beside a model's weights that say what its tokens are and how it generates. */
static const char *const export_beside[] = {"tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "tokenizer.model",
                                            "chat_template.jinja",
                                            "chat_template.json",
                                            EXPORT_GENERATION};

/* ---- the run's options ----------------------------------------------------------------------- */

struct export_run {
    struct tess_options *options; /* of model gpt; NULL: the model is another */
    struct tess_lora_options lora;
    char model[64];
};

/* The options of the model and the data, as the checkpoint has them. */
static enum tess_status export_load_options(const char *path, struct export_run *run)
{
    const struct tess_model_ops *model;
    TESS_TRY(tess_options_open(&run->options));
    tess_options_skip_others(run->options);
    TESS_TRY(tess_registry_get_model(TESS_FOLDER_MODEL, &model));
    TESS_TRY(tess_options_add(run->options, model->name, model->options, NULL));
    TESS_TRY(tess_options_add(run->options, "data", tess_loader_option_table, NULL));
    TESS_TRY(tess_options_add(run->options, "lora", tess_lora_option_table, &run->lora));
    return tess_options_load_yaml(run->options, path);
}

static enum tess_status export_open_run(const char *folder, struct export_run *run)
{
    char path[TESS_CHECKPOINT_PATH + 16];
    char *argument[] = {path};
    snprintf(path, sizeof(path), "%s/options.yaml", folder);
    if (!tess_config_peek(1, argument, "model", run->model, sizeof(run->model)))
        TESS_FAIL(TESS_ERR_DATA, "%s names no model", path);
    return strcmp(run->model, TESS_FOLDER_MODEL) == 0 ? export_load_options(path, run) : TESS_OK;
}

static const char *export_value(const void *options, const char *name)
{
    return tess_options_text(options, name);
}

static bool export_is_gpt2(const struct export_run *run)
{
    const char *style = run->options != NULL ? tess_options_text(run->options, "gpt.style") : NULL;
    return style != NULL && strcmp(style, "gpt2") == 0;
}

/* ---- files beside the weights ---------------------------------------------------------------- */

static enum tess_status export_copy(const char *from, const char *to)
{
    struct tess_file_writer writer;
    enum { ROOM = 1 << 16 };
    char room[ROOM];
    const int fd = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open %s: %s", from, strerror(errno));
    enum tess_status status = tess_file_create(to, &writer);
    int error = 0;
    for (size_t count = ROOM; status == TESS_OK && error == 0 && count == ROOM;) {
        count = tess_file_read(fd, room, ROOM, -1);
        error = count < ROOM && errno != 0 ? errno : tess_file_append(writer.fd, room, count);
    }
    if (status == TESS_OK)
        status = tess_file_commit(&writer, error);
    close(fd);
    return status;
}

/* --init of the run, which metrics.jsonl has; "" where it has none, or is no folder. */
static void export_find_init(const char *run, char init[TESS_CHECKPOINT_PATH])
{
    char path[TESS_CHECKPOINT_PATH + 16];
    const char *why;
    struct stat about;
    init[0] = '\0';
    snprintf(path, sizeof(path), "%s/metrics.jsonl", run);
    FILE *file = tess_file_open_input(path, &why);
    json_t *line = file != NULL ? json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const json_t *options = json_object_get(json_object_get(line, "run"), "options");
    const char *value = json_string_value(json_object_get(options, "init"));
    if (value != NULL && strlen(value) < TESS_CHECKPOINT_PATH && stat(value, &about) == 0 &&
        S_ISDIR(about.st_mode))
        snprintf(init, TESS_CHECKPOINT_PATH, "%s", value);
    json_decref(line);
    if (file != NULL)
        fclose(file);
}

/* Tokens that begin and end a text, of the config.json beside the tokenizer. */
static enum tess_status export_generation(const char *from, const char *to)
{
    static const char *const key[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    char path[TESS_CHECKPOINT_PATH + 32];
    json_t *object = json_pack("{s:b}", "_from_model_config", 1);
    snprintf(path, sizeof(path), "%s/config.json", from);
    json_t *config = from[0] != '\0' ? json_load_file(path, 0, NULL) : NULL;
    for (size_t i = 0; i < sizeof(key) / sizeof(*key); i++) {
        json_t *value = json_object_get(config, key[i]);
        if (json_is_integer(value) || json_is_array(value))
            json_object_set(object, key[i], value);
    }
    json_decref(config);
    char *text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to write " EXPORT_GENERATION);
    snprintf(path, sizeof(path), "%s/" EXPORT_GENERATION, to);
    const enum tess_status status = tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}

/* The tokenizer's files are found beside the weights that the run began with. */
static enum tess_status export_files_beside(const char *run, const char *given, const char *to)
{
    char folder[TESS_CHECKPOINT_PATH];
    int copied = 0;
    bool generation = false;
    if (given[0] != '\0')
        snprintf(folder, sizeof(folder), "%s", given);
    else
        export_find_init(run, folder);
    for (size_t i = 0; folder[0] != '\0' && i < sizeof(export_beside) / sizeof(*export_beside);
         i++) {
        char from_path[TESS_CHECKPOINT_PATH + 32], to_path[TESS_CHECKPOINT_PATH + 32];
        snprintf(from_path, sizeof(from_path), "%s/%s", folder, export_beside[i]);
        snprintf(to_path, sizeof(to_path), "%s/%s", to, export_beside[i]);
        if (access(from_path, F_OK) != 0)
            continue;
        TESS_TRY(export_copy(from_path, to_path));
        copied++;
        generation = generation || strcmp(export_beside[i], EXPORT_GENERATION) == 0;
    }
    if (given[0] != '\0' && copied == 0)
        TESS_FAIL(TESS_ERR_NOT_FOUND, "--tokenizer %s: the folder has no file of a tokenizer",
                  given);
    return generation ? TESS_OK : export_generation(folder, to);
}

/* ---- export ---------------------------------------------------------------------------------- */

static enum tess_status export_adapters(const struct tess_weights *weights,
                                        struct tess_export *export, const struct export_run *run)
{
    struct tess_adapter_folder adapter = {.rank = run->lora.rank, .alpha = run->lora.alpha};
    if (run->options == NULL || run->lora.rank == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--adapters: the run has none: it was trained without --lora.rank");
    adapter.alpha = adapter.alpha > 0 ? adapter.alpha : (double)adapter.rank;
    if (snprintf(adapter.targets, sizeof(adapter.targets), "%s", run->lora.targets) >=
        (int)sizeof(adapter.targets))
        TESS_FAIL(TESS_ERR_USAGE, "--lora.targets is longer than 500 letters");
    export->adapters = true;
    TESS_TRY(tess_export_write(weights, export));
    return tess_adapter_folder_write(export->out, &adapter, export->gpt2);
}

/* A model's folder, in which the weights of another one would be found first. */
static enum tess_status export_check_folder(const char *out)
{
    char path[TESS_CHECKPOINT_PATH + 32];
    snprintf(path, sizeof(path), "%s/model.safetensors", out);
    if (access(path, F_OK) == 0)
        TESS_FAIL(TESS_ERR_USAGE, "%s is there already: give another --out", path);
    return TESS_OK;
}

/* "model-q8_0.gguf". */
static enum tess_status export_gguf(const char *run, const struct tess__export_options *options,
                                    const struct tess_weights *weights, struct tess_export *export,
                                    const struct export_run *of)
{
    static const enum tess_gguf_type type[] = {TESS_GGUF_F32, TESS_GGUF_BF16, TESS_GGUF_F16,
                                               TESS_GGUF_Q8_0};
    static const char *const name[] = {"f32", "bf16", "f16", "q8_0"};
    char path[TESS_CHECKPOINT_PATH + 32], tokenizer[TESS_CHECKPOINT_PATH];
    json_t *config;
    if (of->options == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "--format gguf is for model " TESS_FOLDER_MODEL ", not %s",
                  of->model);
    snprintf(tokenizer, sizeof(tokenizer), "%s", options->tokenizer);
    if (tokenizer[0] == '\0')
        export_find_init(run, tokenizer);
    TESS_TRY(tess_model_folder_json(
        &(struct tess_folder_source){
            .value = export_value, .context = of->options, .weights = weights, .dtype = "float32"},
        &config));
    if (config == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "GGUF has no family of models with these of gpt.qkv-bias, gpt.out-bias, "
                  "gpt.mlp-bias and gpt.qk-norm");
    snprintf(path, sizeof(path), "%s/model-%s.gguf", export->out, name[options->dtype]);
    const enum tess_status status =
        tess_gguf_write(path, weights, export, type[options->dtype], config, tokenizer);
    json_decref(config);
    return status;
}

static enum tess_status export_model(const char *run, const struct tess__export_options *options,
                                     const struct tess_weights *weights, struct tess_export *export,
                                     const struct export_run *of)
{
    static const char *const type[] = {"float32", "bfloat16", "float16"};
    const double alpha = of->lora.alpha > 0 ? of->lora.alpha : (double)of->lora.rank;
    export->scale = of->lora.rank > 0 ? alpha / (double)of->lora.rank : 0;
    if (options->format == 1)
        return export_gguf(run, options, weights, export, of);
    if (options->dtype == 3)
        TESS_FAIL(TESS_ERR_USAGE, "--dtype q8_0 is of --format gguf");
    TESS_TRY(export_check_folder(export->out));
    TESS_TRY(tess_export_write(weights, export));
    if (of->options == NULL)
        return TESS_OK;
    TESS_TRY(export_files_beside(run, options->tokenizer, export->out));
    return tess_model_folder_write(export->out,
                                   &(struct tess_folder_source){.value = export_value,
                                                                .context = of->options,
                                                                .weights = weights,
                                                                .dtype = type[options->dtype]});
}

enum tess_status tess__checkpoint_export(const char *run, const char *folder,
                                         const struct tess__export_options *options)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16, TESS_F32};
    struct export_run of = {.options = NULL};
    struct tess_weights *weights = NULL;
    struct tess_export export = {.out = options->out, .dtype = dtype[options->dtype]};
    double most;
    if (options->out[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "export needs a folder to write to: --out DIR");
    TESS_TRY(tess_size_parse("file-size", options->file_size, &most));
    export.file_most = (uint64_t)most;
    TESS_TRY(tess_file_make_folders(options->out, "the folder of --out"));
    enum tess_status status = export_open_run(folder, &of);
    if (status == TESS_OK)
        status = tess_weights_open(folder, &weights);
    export.gpt2 = export_is_gpt2(&of);
    export.images = of.options == NULL;
    if (status == TESS_OK)
        status = options->adapters ? export_adapters(weights, &export, &of)
                                   : export_model(run, options, weights, &export, &of);
    tess_weights_close(weights);
    if (of.options != NULL)
        tess_options_close(of.options);
    return status;
}
