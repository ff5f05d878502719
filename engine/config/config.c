/* A run's configuration: the choice of parts, and the checks that join several options. */
#include "config/config.h"

#include "base/cgroup.h"
#include "base/options.h"
#include "base/options_set.h"
#include "config/config_folder.h"
#include "config/config_resume.h"
#include "config/config_save.h"
#include "config/precision.h"
#include "config/registry.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parts ----------------------------------------------------------------------------------- */

/* Open the option set with the tables that every run has, then the command's own. */
static enum tess_status config_add_tables(struct tess_config *config,
                                          const struct tess_config_table *extra, int extra_count)
{
    const struct tess_config_table table[] = {
        {"", tess_run_option_table, &config->run},
        {"", tess_optim_option_table, &config->optim},
        {"data", tess_loader_option_table, &config->loader},
        {"tensor", tess_tensor_option_table, &config->tensor},
        {"loss", tess_loss_option_table, &config->loss},
        {"bn", tess_bn_option_table, &config->bn},
        {"lora", tess_lora_option_table, &config->lora},
        {"cuda", tess_cuda_option_table, &config->cuda},
        {"topology", tess_placing_option_table, &config->placing},
    };
    const int own_count = (int)(sizeof(table) / sizeof(table[0]));
    TESS_TRY(tess_options_open(&config->options));
    for (int i = 0; i < own_count + extra_count; i++) {
        const struct tess_config_table *one = i < own_count ? &table[i] : &extra[i - own_count];
        TESS_TRY(one->table != NULL
                     ? tess_options_add(config->options, one->prefix, one->table, one->target)
                     : tess_options_allow(config->options, one->prefix, NULL));
    }
    return TESS_OK;
}

static enum tess_status config_add_part(struct tess_config *config, const char *name,
                                        const struct tess_option *table, size_t bytes,
                                        void **options_out)
{
    *options_out = calloc(1, bytes > 0 ? bytes : 1);
    if (*options_out == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of %s", name);
    if (table == NULL)
        return TESS_OK;
    return tess_options_add(config->options, name, table, *options_out);
}

static bool config_is_chosen(const struct tess_config *config, const char *name)
{
    bool chosen =
        strcmp(name, config->model->name) == 0 || strcmp(name, config->optimizer->name) == 0;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        chosen =
            chosen || (config->axis[axis] != NULL && strcmp(name, config->axis[axis]->name) == 0);
    return chosen;
}

/* Keys of parts that are not chosen may stay in a configuration file. */
static enum tess_status config_allow_others(struct tess_config *config)
{
    static const struct {
        enum tess_registry_kind kind;
        const char *name;
    } of[] = {{TESS_REGISTRY_MODEL, "model"},
              {TESS_REGISTRY_OPTIMIZER, "optimizer"},
              {TESS_REGISTRY_STRATEGY, "strategy"}};
    for (size_t k = 0; k < sizeof(of) / sizeof(of[0]); k++) {
        int count = 0;
        const char *const *name = tess_registry_names(of[k].kind, &count);
        for (int i = 0; i < count; i++) {
            char why[128];
            snprintf(why, sizeof(why), "applies to %s %s only", of[k].name, name[i]);
            if (!config_is_chosen(config, name[i]))
                TESS_TRY(tess_options_allow(config->options, name[i], why));
        }
    }
    return TESS_OK;
}

/* The strategies of a product, each for its axis; one rank's worth where the data axis has none. */
static enum tess_status config_choose_strategies(struct tess_config *config, const char *text)
{
    const struct tess_strategy_ops *ops = NULL;
    char copy[512], *rest = copy; /* longer than any product */
    snprintf(copy, sizeof(copy), "%s", text);
    for (char *name; (name = strsep(&rest, "+")) != NULL;) {
        const struct tess_strategy_ops *word_of = tess_registry_strategy_of_word(name);
        if (word_of != NULL) {
            config->word_of = word_of;
            continue;
        }
        TESS_TRY(tess_registry_get_strategy(name, &ops));
        if (config->axis[ops->axis] != NULL)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--strategy %s: %s and %s both are for the same axis of the mesh: give one",
                      text, config->axis[ops->axis]->name, ops->name);
        config->axis[ops->axis] = ops;
    }
    config->data_chosen = config->axis[TESS_AXIS_DATA] != NULL;
    if (!config->data_chosen)
        TESS_TRY(tess_registry_get_strategy(tess_config_default_strategy,
                                            &config->axis[TESS_AXIS_DATA]));
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        ops = config->axis[axis];
        if (ops != NULL)
            TESS_TRY(config_add_part(config, ops->name, ops->options, ops->options_size,
                                     &config->axis_options[axis]));
    }
    config->strategy = config->axis[TESS_AXIS_DATA];
    config->strategy_options = config->axis_options[TESS_AXIS_DATA];
    return TESS_OK;
}

/* As tess_options_peek; the checkpoint's where it is not given. */
static const char *config_peek(struct tess_config *config, const char *name, int argc, char **argv,
                               const char *path)
{
    const char *value = tess_options_peek(config->options, name, argc, argv, path);
    if (value == NULL && config->checkpoint[0] != '\0')
        value = tess_options_peek(config->options, name, 0, NULL, config->resume_options);
    return value;
}

/* With --resume the checkpoint has a part in the choice of parts. */
static enum tess_status config_find_checkpoint(struct tess_config *config, int argc, char **argv,
                                               const char *path)
{
    static const struct tess_option resume = {.type = TESS_OPTION_BOOL};
    const char *text = tess_options_peek(config->options, "resume", argc, argv, path);
    union tess__option_value value;
    char problem[256];
    if (text == NULL || !tess__option_parse(&resume, text, &value, problem, sizeof(problem)) ||
        !value.on)
        return TESS_OK;
    TESS_TRY(tess__resume_find(tess_options_peek(config->options, "run", argc, argv, path),
                               tess_options_peek(config->options, "redundancy", argc, argv, path),
                               config->checkpoint));
    snprintf(config->resume_options, sizeof(config->resume_options), "%s/options.yaml",
             config->checkpoint);
    return TESS_OK;
}

static enum tess_status config_choose_parts(struct tess_config *config, int argc, char **argv,
                                            const char *path)
{
    struct tess_options *options = config->options;
    TESS_TRY(config_find_checkpoint(config, argc, argv, path));
    const char *model = config_peek(config, "model", argc, argv, path);
    const char *strategy = config_peek(config, "strategy", argc, argv, path);
    const char *optimizer = config_peek(config, "optimizer", argc, argv, path);
    model = model != NULL ? model : config->run.model;
    TESS_TRY(tess__config_folder_open(config, &model));
    TESS_TRY(tess_registry_get_model(model, &config->model));
    TESS_TRY(config_add_part(config, config->model->name, config->model->options,
                             config->model->options_size, &config->model_options));
    TESS_TRY(config_choose_strategies(config, strategy != NULL ? strategy : config->run.strategy));
    TESS_TRY(tess_registry_get_optimizer(optimizer != NULL ? optimizer : config->optim.name,
                                         &config->optimizer));
    TESS_TRY(config_add_part(config, config->optimizer->name, config->optimizer->options,
                             config->optimizer->options_size, &config->optimizer_options));
    TESS_TRY(tess_options_allow(options, "variants", "is an option of tessera compare"));
    return config_allow_others(config);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Options that stand for others: a batch per rank, a base learning rate. Of two for one thing that
 * of the stronger source counts, as of one option given twice. */
static enum tess_status config_resolve(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    struct tess_optim_options *optim = &config->optim;
    const struct tess_options *given = config->options;
    const int64_t ranks = config->mesh.count[TESS_AXIS_DATA];
    if (tess_options_is_stronger(given, "batch-size", "batch-per-rank"))
        run->batch_per_rank = 0;
    if (run->batch_per_rank > 0) {
        if (tess_options_is_set(given, "batch-size") &&
            !tess_options_is_stronger(given, "batch-per-rank", "batch-size"))
            TESS_FAIL(TESS_ERR_USAGE,
                      "--batch-size and --batch-per-rank both set the size of the batch: give one");
        if (run->batch_per_rank > TESS_CONFIG_BATCH_MAX / ranks)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--batch-per-rank %lld on %lld ranks is a batch of more than %d images",
                      (long long)run->batch_per_rank, (long long)ranks, TESS_CONFIG_BATCH_MAX);
        run->batch_size = run->batch_per_rank * ranks;
    }
    if (optim->base_rate > 0 && tess_options_is_stronger(given, "learning-rate", "base-lr")) {
        optim->base_rate = 0;
        if (!tess_options_is_stronger(given, "lr-scale", "base-lr"))
            optim->rate_scale = 0;
    }
    if (optim->base_rate > 0 && tess_options_is_set(given, "learning-rate") &&
        !tess_options_is_stronger(given, "base-lr", "learning-rate"))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--learning-rate and --base-lr both set the learning rate: give one");
    if (optim->base_rate == 0 && optim->rate_scale != 0)
        TESS_FAIL(TESS_ERR_USAGE, "--lr-scale scales --base-lr, which is not given");
    tess_optim_resolve(optim, run->batch_size, ranks);
    return config->checkpoint[0] != '\0' ? tess__resume_resolve(config) : TESS_OK;
}

/* How many ranks there are, and along which axes. */
static enum tess_status config_check_mesh(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    const bool one_rank = config->data_chosen && config->strategy->one_rank &&
                          config->axis[TESS_AXIS_TENSOR] == NULL &&
                          config->axis[TESS_AXIS_STAGE] == NULL && config->word_of == NULL;
    if (one_rank && !tess_options_is_set(config->options, "ranks"))
        run->ranks = 1;
    if (one_rank && run->ranks > 1)
        TESS_TRY(config->strategy->check(config->strategy_options, (int32_t)run->ranks,
                                         (int32_t)run->accumulate));
    return tess__config_mesh(config);
}

void tess_config_set_cores(struct tess_config *config, int32_t cores)
{
    config->rank_cores = cores;
    config->threads = config->run.threads > 0                  ? (int32_t)config->run.threads
                      : cores < 1 || !config->kernel->threaded ? 1
                      : cores < TESS_THREADS_MAX               ? cores
                                                               : TESS_THREADS_MAX;
}

static enum tess_status config_check(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    int64_t grid;
    TESS_TRY(config_check_mesh(config));
    TESS_TRY(config_resolve(config));
    TESS_TRY(tess__config_folder_check(config));
    TESS_TRY(tess__config_device(config));
    tess_config_set_cores(config, config->started.starter != NULL
                                      ? config->started.rank_cores
                                      : config->cores / (int32_t)run->ranks);
    if (run->steps == 0 && run->epochs <= 0)
        TESS_FAIL(TESS_ERR_USAGE, "nothing to do: --epochs is 0 and --steps is 0");
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (config->axis[axis] != NULL)
            TESS_TRY(config->axis[axis]->check(config->axis_options[axis], config->mesh.count[axis],
                                               (int32_t)run->accumulate));
    TESS_TRY(tess_precision_check(run));
    if (config->bn.accumulate == 1 && run->buffers == 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--bn.accumulate micro takes the statistics of every leaf in turn, and --buffers "
                  "broadcast those of one rank: leave one out");
    TESS_TRY(tess__config_save(config));
    TESS_TRY(config->optimizer->check(config->optimizer_options));
    if (config->optimizer->loop != NULL && config->kernel->far_memory &&
        config->kernel->bracket == NULL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "optimizer '%s' has no loop for the memory of the kernel backend '%s': use "
                  "--device cpu or another --optimizer",
                  config->optimizer->name, config->kernel->name);
    TESS_TRY(tess_optim_check(&config->optim));

    /* The leaf order is in the strategy's plan; the engine checks that one again. */
    const int64_t ranks = config->mesh.count[TESS_AXIS_DATA];
    grid = run->grid > 0 ? run->grid : ranks * run->accumulate;
    if (run->batch_size % grid == 0 &&
        tess__config_grid_fits(TESS_LEAVES_MICRO_FIRST, ranks, run->accumulate, grid))
        return TESS_OK;
    return tess_config_check_grid(config, run->batch_size, TESS_LEAVES_RANK_FIRST);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Everything but values: an option set with the tables of the run and of the chosen parts. */
static enum tess_status config_declare(int argc, char **argv, const struct tess_config_table *extra,
                                       int extra_count, const struct tess_config *before,
                                       struct tess_config *config, const char **path_out)
{
    TESS_TRY(config_add_tables(config, extra, extra_count));
    if (before != NULL)
        tess_options_read_before(config->options, before->options);
    *path_out = tess_options_first_word(config->options, argc, argv);
    TESS_TRY(tess_comm_options_add(config->options, &config->comm));
    return config_choose_parts(config, argc, argv, *path_out);
}

/* Does nothing but a checkpoint say on which ranks, and how? */
static bool config_is_layout_free(struct tess_config *config, int argc, char **argv,
                                  const char *path)
{
    return config->started.starter == NULL &&
           tess_options_peek(config->options, "strategy", argc, argv, path) == NULL &&
           tess_options_peek(config->options, "ranks", argc, argv, path) == NULL &&
           tess_options_peek(config->options, "mesh", argc, argv, path) == NULL;
}

static enum tess_status config_load(struct tess_config *config, int argc, char **argv,
                                    const char *path)
{
    const char *word = NULL;
    int word_count = 0;
    TESS_TRY(tess_options_load_environment(config->options));
    if (config->checkpoint[0] != '\0')
        TESS_TRY(tess__resume_load(config, config_is_layout_free(config, argc, argv, path)));
    if (path != NULL)
        TESS_TRY(tess_options_load_yaml(config->options, path));
    TESS_TRY(tess_options_load_arguments(config->options, argc, argv, &word, 1, &word_count));
    if (word_count > 0 && (path == NULL || strcmp(word, path) != 0))
        TESS_FAIL(TESS_ERR_USAGE,
                  "more than one word may name the configuration file: put it before the options");
    TESS_TRY(tess__config_folder_take(config));
    TESS_TRY(tess__config_lora_take(config));
    if (config->checkpoint[0] != '\0')
        TESS_TRY(tess__resume_check(config));
    return config->word_of == NULL
               ? TESS_OK
               : tess_options_give(config->options, config->word_of->word_option, "on",
                                   "command line");
}

/* Each of the ranks will be started in its place, with the devices of its host alone. */
static void config_supervise(struct tess_config *config)
{
    config->started = (struct tess_started){.starter = "tessera --hosts", .supervises = true};
}

/* Another number of ranks than were started. */
static enum tess_status config_take_ranks(struct tess_config *config)
{
    const struct tess_started *place = &config->started;
    const long long ranks = config->run.ranks;
    if (place->may_divide && place->host_count == place->rank_count && ranks > place->rank_count) {
        config_supervise(config);
        return TESS_OK;
    }
    if (place->host_count > 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--ranks is %lld, and srun has started %d tasks (SLURM_STEP_NUM_TASKS) on %d "
                  "node%s (SLURM_STEP_NUM_NODES): start a task for each rank (srun --ntasks=%lld), "
                  "leave --ranks out, or start one task on each node (srun --ntasks-per-node=1), "
                  "which starts the ranks of its node, for at least as many ranks as nodes",
                  ranks, place->rank_count, place->host_count, place->host_count == 1 ? "" : "s",
                  ranks);
    TESS_FAIL(TESS_ERR_USAGE,
              "--ranks is %lld, and %s has started %d: give the same number, or leave one out",
              ranks, place->starter, place->rank_count);
}

/* As many ranks as were started. */
static enum tess_status config_take_place(struct tess_config *config)
{
    char number[16];
    const struct tess_started *place = &config->started;
    if (place->starter == NULL) {
        if (place->hosts != NULL && *place->hosts > 1)
            config_supervise(config);
        return TESS_OK;
    }
    if (tess_options_is_set(config->options, "ranks") && config->run.ranks != place->rank_count)
        return config_take_ranks(config);
    if (tess_options_is_set(config->options, "ranks"))
        return TESS_OK;
    snprintf(number, sizeof(number), "%d", place->rank_count);
    return tess_options_give(config->options, "ranks", number, place->starter);
}

/* check NULL: none; before NULL: as in tess_config_load. */
static enum tess_status config_open(int argc, char **argv, const struct tess_config_table *extra,
                                    int extra_count, const struct tess_started *place,
                                    const struct tess_config *before,
                                    enum tess_status (*check)(struct tess_config *),
                                    struct tess_config **config_out)
{
    struct tess_config *config = calloc(1, sizeof(*config));
    const char *path = NULL;
    enum tess_status status;
    if (config == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configuration");
    config->cores = tess_cores();
    TESS_TRY_GOTO(status, close_config,
                  config_declare(argc, argv, extra, extra_count, before, config, &path));
    if (place != NULL)
        config->started = *place;
    TESS_TRY_GOTO(status, close_config, config_load(config, argc, argv, path));
    if (place != NULL)
        TESS_TRY_GOTO(status, close_config, config_take_place(config));
    if (check != NULL)
        TESS_TRY_GOTO(status, close_config, check(config));
    *config_out = config;
    return TESS_OK;

close_config:
    tess_config_close(config);
    return status;
}

enum tess_status tess_config_open(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, struct tess_config **config_out)
{
    return config_open(argc, argv, extra, extra_count, NULL, NULL, config_check, config_out);
}

enum tess_status tess_config_open_placed(int argc, char **argv,
                                         const struct tess_config_table *extra, int extra_count,
                                         const struct tess_started *place,
                                         struct tess_config **config_out)
{
    return config_open(argc, argv, extra, extra_count, place, NULL, config_check, config_out);
}

enum tess_status tess_config_load(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, const struct tess_config *before,
                                  struct tess_config **loaded_out)
{
    return config_open(argc, argv, extra, extra_count, NULL, before, NULL, loaded_out);
}

enum tess_status tess_config_with(struct tess_config *loaded, int argc, char **argv,
                                  struct tess_config *config_out)
{
    const char *word;
    int word_count;
    TESS_TRY(tess_options_load_arguments(loaded->options, argc, argv, &word, 0, &word_count));
    *config_out = *loaded; /* checks fill in what follows from the values, which stays out of it */
    config_out->device.unlisted = true;
    return config_check(config_out);
}

enum tess_status tess_config_mesh(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, struct tess_mesh *mesh_out,
                                  int64_t *accumulate_out)
{
    struct tess_config *config = NULL;
    TESS_TRY(config_open(argc, argv, extra, extra_count, NULL, NULL, config_check_mesh, &config));
    *mesh_out = config->mesh;
    *accumulate_out = config->run.accumulate;
    tess_config_close(config);
    return TESS_OK;
}

void tess_config_close(struct tess_config *config)
{
    if (config == NULL)
        return;
    if (config->options != NULL)
        tess_options_close(config->options);
    tess_comm_options_free(&config->comm);
    tess_device_plan_free(&config->device);
    free(config->model_options);
    free(config->folder);
    free(config->optimizer_options);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        free(config->axis_options[axis]);
    free(config);
}

enum tess_status tess_config_show(
    int argc, char **argv, const struct tess_config_table *extra, int extra_count,
    enum tess_status (*show)(const struct tess_options *options, void *context), void *context)
{
    struct tess_config *config = calloc(1, sizeof(*config));
    const char *path = NULL;
    enum tess_status status;
    if (config == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configuration");
    status = config_declare(argc, argv, extra, extra_count, NULL, config, &path);
    if (status == TESS_OK)
        status = show(config->options, context);
    tess_config_close(config);
    return status;
}

bool tess_config_peek(int argc, char **argv, const char *name, char *text, size_t text_bytes)
{
    struct tess_config config = {0};
    const char *value = NULL;
    if (config_add_tables(&config, NULL, 0) == TESS_OK)
        value = tess_options_peek(config.options, name, argc, argv,
                                  tess_options_first_word(config.options, argc, argv));
    if (value != NULL)
        snprintf(text, text_bytes, "%s", value);
    tess_options_close(config.options);
    return value != NULL;
}

void tess_config_peek_number(int argc, char **argv, const char *name, int64_t *value)
{
    static const struct tess_option whole = {.type = TESS_OPTION_INT};
    char text[64], problem[256];
    union tess__option_value number;
    if (tess_config_peek(argc, argv, name, text, sizeof(text)) &&
        tess__option_parse(&whole, text, &number, problem, sizeof(problem)))
        *value = number.integer;
}

enum tess_status tess_config_take(struct tess_options *options, const struct tess_option *table,
                                  void *values, int *argc, char **argv)
{
    struct tess_config config = {0};
    const struct tess_config_table own = {"", table, NULL};
    bool wanted = false; /* something of the file */
    tess_options_skip_others(options);
    enum tess_status status = tess_options_add(options, "", table, values);
    TESS_KEEP(status, config_add_tables(&config, &own, 1));
    const char *path =
        status == TESS_OK ? tess_options_first_word(config.options, *argc, argv) : NULL;
    for (const struct tess_option *row = table; status == TESS_OK && row->name != NULL; row++)
        if (row->type == TESS_OPTION_TOPIC)
            continue;
        else if (tess__options_find(config.options, row->name)->option != row)
            tess_options_skip_file(options, row->name);
        else
            wanted = true;
    tess_options_close(config.options);
    TESS_TRY(status);
    TESS_TRY(tess_options_load_environment(options));
    if (wanted && path != NULL)
        TESS_TRY(tess_options_load_yaml(options, path));
    return tess_options_take_arguments(options, argc, argv);
}
