/* From a run, or a file of weights and a configuration, to a decoder. */
#include "base/file.h"
#include "base/options.h"
#include "cli/generate.h"
#include "config/precision.h"
#include "state/model_folder.h"
#include "state/weights.h"
#include "tessera/check.h"
#include "text/command.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a folder's model without --context. */
#define MODEL_POSITIONS 4096

static enum tess_status model_path(char path[PATH_MAX], const char *run, const char *file)
{
    const int used = snprintf(path, PATH_MAX, "%s%s", run, file);
    if (used < 0 || used >= PATH_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run %.80s is too long", run);
    return TESS_OK;
}

/* ---- what the run wrote down ----------------------------------------------------------------- */

/* The object of the line {"run": {...}} that metrics.jsonl begins with; a new reference. `folder`:
 * a run's, or RUN/checkpoints/step-N. */
static enum tess_status model_read_head(const char *folder, json_t **head_out)
{
    char path[PATH_MAX];
    if (access(folder, F_OK) != 0)
        TESS_FAIL(TESS_ERR_IO, "there is no %s: give a run's folder, or a model's", folder);
    TESS_TRY(model_path(path, folder, "/state.json"));
    TESS_TRY(model_path(path, folder,
                        access(path, F_OK) == 0 ? "/../../metrics.jsonl" : "/metrics.jsonl"));
    const char *why;
    FILE *file = tess_file_open_input(path, &why);
    if (!file)
        TESS_FAIL(TESS_ERR_IO,
                  "cannot read %s: %s; a run folder is what train --run writes, and weights "
                  "without one need --config FILE.yaml",
                  path, why);
    json_t *line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *head = json_incref(json_object_get(line, "run"));
    json_decref(line);
    fclose(file);
    if (!json_is_object(head) || !json_is_object(json_object_get(head, "options"))) {
        json_decref(head);
        TESS_FAIL(TESS_ERR_DATA,
                  "%s does not begin with {\"run\": ...}: not the file of a run, or truncated",
                  path);
    }
    *head_out = head;
    return TESS_OK;
}

/* Is it an option that decides what the weights are? */
static bool model_takes(const char *name, const char *model)
{
    static const char *const own[] = {
        "model",       "data",          "precision",      "f32-ops",         "fp8",
        "data.length", "lora.rank",     "lora.alpha",     "lora.targets",    "cuda.decode",
        "cuda.tf32",   "cuda.autotune", "cuda.sm-target", "tensor.canonical"};
    const size_t length = strlen(model);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return strncmp(name, model, length) == 0 && name[length] == '.';
}

/* The run's options as words of a command line; `texts` keeps them. */
static enum tess_status model_head_words(const json_t *head, struct tess__args *args, json_t *texts)
{
    json_t *options = json_object_get(head, "options"), *value;
    const char *name, *model = json_string_value(json_object_get(options, "model"));
    if (!model)
        TESS_FAIL(TESS_ERR_DATA, "the run's metrics.jsonl names no model");
    json_object_foreach(options, name, value)
    {
        if (!model_takes(name, model) || !json_is_string(value))
            continue;
        json_t *word = json_sprintf("--%s=%s", name, json_string_value(value));
        if (!word || json_array_append_new(texts, word) != 0)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the run's options");
        TESS_TRY(tess__args_add(args, json_string_value(word)));
    }
    return TESS_OK;
}

/* ---- the configuration ----------------------------------------------------------------------- */

/* One rank whatever the run was trained on, a batch of one whatever its grid. */
static enum tess_status model_open_config(struct tess__args *args,
                                          const struct tess__source_options *options,
                                          const struct tess_option *own,
                                          struct tess_config **config_out)
{
    char threads[48];
    const char *const word[] = {"--strategy=single", "--ranks=1", "--accumulate=1", "--grid=0",
                                "--batch-size=1",    "--steps=1", threads,          "--device",
                                options->device,     "--kernel",  options->kernel};
    const size_t count = sizeof(word) / sizeof(word[0]) - (options->kernel[0] ? 0 : 2);
    const struct tess_config_table table = {"", own, NULL};
    snprintf(threads, sizeof(threads), "--threads=%lld", (long long)options->threads);
    for (size_t i = 0; i < count; i++)
        TESS_TRY(tess__args_add(args, word[i]));
    return tess_config_open(args->count, args->word, &table, 1, config_out);
}

static enum tess_status model_open_head(struct tess__source *source, const char *run,
                                        const struct tess__source_options *options,
                                        const struct tess_option *own)
{
    struct tess__args args = {0};
    json_t *head = NULL, *texts = json_array();
    enum tess_status status = model_read_head(run, &head);
    if (status == TESS_OK)
        status = model_head_words(head, &args, texts);
    if (status == TESS_OK)
        status = model_open_config(&args, options, own, &source->config);
    const json_int_t classes = json_integer_value(json_object_get(head, "classes"));
    if (classes > 0 && classes <= INT32_MAX)
        source->vocabulary = (int32_t)classes;
    json_decref(head);
    json_decref(texts);
    return status;
}

/* A model's folder describes itself: its config.json. */
static enum tess_status model_open_folder(struct tess__source *source, const char *folder,
                                          const struct tess__source_options *options,
                                          const struct tess_option *own)
{
    struct tess__args args = {0};
    const char *const word[] = {"--model", folder, "--init", "none"}; /* read by the decoder */
    for (size_t i = 0; i < sizeof(word) / sizeof(word[0]); i++)
        TESS_TRY(tess__args_add(&args, word[i]));
    return model_open_config(&args, options, own, &source->config);
}

/* A folder with config.json that is not a run's. */
static bool model_is_folder(const char *path)
{
    char config[TESS_CHECKPOINT_PATH], metrics[PATH_MAX];
    return tess_model_folder_config(path, config) &&
           model_path(metrics, path, "/metrics.jsonl") == TESS_OK && access(metrics, F_OK) != 0;
}

static enum tess_status model_open_yaml(struct tess__source *source,
                                        const struct tess__source_options *options,
                                        const struct tess_option *own)
{
    struct tess__args args = {0};
    TESS_TRY(tess__args_add(&args, options->config));
    return model_open_config(&args, options, own, &source->config);
}

/* Positions that the model was trained with; of a folder's, which may be very many, some. */
static int64_t model_trained_length(const struct tess_config *config)
{
    if (config->folder == NULL)
        return config->loader.length;
    return config->folder->positions < MODEL_POSITIONS ? config->folder->positions
                                                       : MODEL_POSITIONS;
}

/* ---- both ------------------------------------------------------------------------------------ */

enum tess_status tess__source_open(struct tess__source *source, const char *run,
                                   const struct tess__source_options *options,
                                   const struct tess_option *own, int32_t sequences)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_F32, TESS_BF16, TESS_F16};
    struct tess_weights *weights = NULL;
    if (options->config[0])
        TESS_TRY(model_open_yaml(source, options, own));
    else if (model_is_folder(run))
        TESS_TRY(model_open_folder(source, run, options, own));
    else
        TESS_TRY(model_open_head(source, run, options, own));
    const struct tess_config *config = source->config;
    if (options->vocabulary > 0)
        source->vocabulary = (int32_t)options->vocabulary;
    source->context = options->context > 0 ? options->context : model_trained_length(config);
    source->chunk = options->chunk < source->context ? options->chunk : source->context;
    source->chunk = source->chunk > sequences ? source->chunk : sequences;
    source->dtype =
        options->precision == 0 ? tess_run_dtype(&config->run) : dtype[options->precision];
    struct tess_decoder_config decoder = {
        .model = config->model,
        .options = config->model_options,
        .kernel = config->kernel,
        .threads = (int)options->threads,
        .dtype = source->dtype,
        .vocabulary = source->vocabulary,
        .lora = tess_config_lora(config),
        .context = source->context,
        .learnt = config->loader.length,
        .sequences = sequences,
        .chunk = source->chunk,
        .parts = (int32_t)config->tensor.canonical,
    };
    const struct tess_kernel_choices choices = tess_config_choices(config);
    decoder.choices = &choices;
    TESS_TRY(tess_precision_f32_ops(config->run.f32_ops, &decoder.f32_ops));
    TESS_TRY(tess_config_select_device(config, 0));
    TESS_TRY(tess_weights_open(run, &weights));
    enum tess_status status = tess_decoder_open(&decoder, weights, &source->decoder);
    if (status == TESS_OK)
        source->vocabulary = tess_decoder_vocabulary(source->decoder);
    if (status == TESS_OK && tess_weights_left_out(weights) > 0)
        tess_log(TESS_LOG_INFO, "%d tensors of %s are masks or copies of others: left out",
                 tess_weights_left_out(weights), run);
    tess_weights_close(weights);
    return status;
}

enum tess_status tess__source_open_tokenizer(struct tess__source *source, const char *run,
                                             const char *tokenizer)
{
    const char *const folder[] = {run, source->config->run.data};
    char path[PATH_MAX];
    if (tokenizer[0])
        return tess__tokenizer_open(tokenizer, &source->tokenizer);
    static const char *const name[] = {"/tokenizer.json", "/tokenizer.model"};
    for (size_t i = 0; i < 4 && source->vocabulary > TESS__BYTES; i++)
        if (model_path(path, folder[i / 2], name[i % 2]) == TESS_OK && access(path, R_OK) == 0)
            return tess__tokenizer_open(folder[i / 2], &source->tokenizer);
    return TESS_OK;
}

void tess__source_close(struct tess__source *source)
{
    tess_decoder_close(source->decoder);
    tess__tokenizer_close(source->tokenizer);
    tess_config_close(source->config);
}
