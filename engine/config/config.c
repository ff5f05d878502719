/*
 * A run's configuration: the table of its options, the choice of parts, and the checks that join
 * several options. Values are parsed by base/options; the parts check their own options; what needs
 * the data set is checked by the engine.
 */
#include "config/config.h"

#include "base/options.h"
#include "base/options_set.h"
#include "config/precision.h"
#include "config/registry.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the words of the command line ----------------------------------------------------------- */

/* The row of an option written as "--name", or NULL; names take '_' for '-'. */
static const struct tess_option *config_find_row(const struct tess_config_table *table,
                                                 int table_count, const char *name)
{
    for (int t = 0; t < table_count; t++) {
        size_t prefix = strlen(table[t].prefix);
        const char *rest = name;
        if (prefix > 0) {
            if (strncmp(name, table[t].prefix, prefix) != 0 || name[prefix] != '.')
                continue;
            rest = name + prefix + 1;
        }
        for (const struct tess_option *row = table[t].table; row != NULL && row->name != NULL;
             row++) {
            const char *a = row->name, *b = rest;
            while (*a != '\0' && (*a == *b || (*a == '-' && *b == '_')))
                a++, b++;
            if (*a == '\0' && *b == '\0')
                return row;
        }
    }
    return NULL;
}

/* Does the option "--name" take the word after it as its value? The rules of base/options.h. */
static bool config_takes_next(const struct tess_config_table *table, int table_count,
                              const char *name, const char *next)
{
    const struct tess_option *row = config_find_row(table, table_count, name);
    if (strcmp(name, "set") == 0)
        return true;
    if (strchr(name, '=') != NULL || strncmp(next, "--", 2) == 0)
        return false;
    if (row != NULL)
        return row->type != TESS_OPTION_BOOL || tess_options_is_switch_word(next);
    /* An option of a part that is not chosen yet: it may be a switch before the file's name. */
    return !tess_options_is_file_name(next);
}

static const char *config_find_path(int argc, char **argv, const struct tess_config_table *table,
                                    int table_count)
{
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-')
            return argv[i];
        if (i + 1 < argc && config_takes_next(table, table_count, argv[i] + 2, argv[i + 1]))
            i++;
    }
    return NULL;
}

/* ---- parts ----------------------------------------------------------------------------------- */

#define CONFIG_TABLE_MAX 40

/* The tables that every run has, then the command's own. Returns their number. */
static int config_tables(struct tess_config *config, const struct tess_config_table *extra,
                         int extra_count, struct tess_config_table table[CONFIG_TABLE_MAX])
{
    int count = 0;
    table[count++] = (struct tess_config_table){"", tess_run_option_table, &config->run};
    table[count++] = (struct tess_config_table){"", tess_optim_option_table, &config->optim};
    table[count++] = (struct tess_config_table){"data", tess_loader_option_table, &config->loader};
    table[count++] =
        (struct tess_config_table){"tensor", tess_tensor_option_table, &config->tensor};
    table[count++] = (struct tess_config_table){"cuda", tess_cuda_option_table, &config->cuda};
    table[count++] =
        (struct tess_config_table){"topology", tess_placing_option_table, &config->placing};
    for (int i = 0; i < extra_count && count < CONFIG_TABLE_MAX; i++)
        table[count++] = extra[i];
    return count;
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

/* Is `name` one of the chosen parts? */
static bool config_is_chosen(const struct tess_config *config, enum tess_registry_kind kind,
                             const char *name)
{
    if (kind == TESS_REGISTRY_MODEL)
        return strcmp(name, config->model->name) == 0;
    if (kind == TESS_REGISTRY_OPTIMIZER)
        return strcmp(name, config->optimizer->name) == 0;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (config->axis[axis] != NULL && strcmp(name, config->axis[axis]->name) == 0)
            return true;
    return false;
}

/* Keys of parts that are not chosen may stay in a configuration file. */
static enum tess_status config_allow_others(struct tess_config *config,
                                            enum tess_registry_kind kind, const char *what)
{
    int count = 0;
    const char *const *name = tess_registry_names(kind, &count);

    for (int i = 0; i < count; i++) {
        char why[128];
        if (config_is_chosen(config, kind, name[i]))
            continue;
        snprintf(why, sizeof(why), "applies to %s %s only", what, name[i]);
        TESS_TRY(tess_options_allow(config->options, name[i], why));
    }
    return TESS_OK;
}

/* The strategies of a product, each for its axis; one rank's worth where the data axis has none. */
static enum tess_status config_choose_strategies(struct tess_config *config, const char *text)
{
    const struct tess_strategy_ops *ops = NULL;
    char name[32];
    const char *rest = text;
    if (text[0] == '\0')
        return tess_registry_get_strategy(text, &ops);
    while (tess__config_next_strategy(&rest, name)) {
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

static enum tess_status config_choose_parts(struct tess_config *config, int argc, char **argv,
                                            const char *path)
{
    struct tess_options *options = config->options;
    const char *model = tess_options_peek(options, "model", argc, argv, path);
    const char *strategy = tess_options_peek(options, "strategy", argc, argv, path);
    const char *optimizer = tess_options_peek(options, "optimizer", argc, argv, path);
    TESS_TRY(tess_registry_get_model(model != NULL ? model : config->run.model, &config->model));
    TESS_TRY(config_add_part(config, config->model->name, config->model->options,
                             config->model->options_size, &config->model_options));
    TESS_TRY(config_choose_strategies(config, strategy != NULL ? strategy : config->run.strategy));
    TESS_TRY(tess_registry_get_optimizer(optimizer != NULL ? optimizer : config->optim.name,
                                         &config->optimizer));
    TESS_TRY(config_add_part(config, config->optimizer->name, config->optimizer->options,
                             config->optimizer->options_size, &config->optimizer_options));
    TESS_TRY(tess_options_allow(options, "variants", "is an option of tessera compare"));
    TESS_TRY(config_allow_others(config, TESS_REGISTRY_MODEL, "model"));
    TESS_TRY(config_allow_others(config, TESS_REGISTRY_OPTIMIZER, "optimizer"));
    return config_allow_others(config, TESS_REGISTRY_STRATEGY, "strategy");
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
    return TESS_OK;
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

static enum tess_status config_check(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    int64_t grid;
    TESS_TRY(config_check_mesh(config));
    TESS_TRY(config_resolve(config));
    TESS_TRY(tess__config_device(config));
    if (run->steps == 0 && run->epochs <= 0)
        TESS_FAIL(TESS_ERR_USAGE, "nothing to do: --epochs is 0 and --steps is 0");
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (config->axis[axis] != NULL)
            TESS_TRY(config->axis[axis]->check(config->axis_options[axis], config->mesh.count[axis],
                                               (int32_t)run->accumulate));
    TESS_TRY(tess_precision_check(run));
    TESS_TRY(config->optimizer->check(config->optimizer_options));
    if (config->optimizer->loop != NULL && config->kernel->far_memory &&
        config->kernel->bracket == NULL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "optimizer '%s' has no loop for the memory of the kernel backend '%s': use "
                  "--device cpu or another --optimizer",
                  config->optimizer->name, config->kernel->name);
    /* With --steps the number of epochs depends on the data: warm-up has no limit here. */
    TESS_TRY(tess_optim_check(&config->optim, run->steps > 0 ? HUGE_VAL : run->epochs));

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
                                       int extra_count, struct tess_config *config,
                                       const char **path_out)
{
    struct tess_config_table table[CONFIG_TABLE_MAX];
    int count = config_tables(config, extra, extra_count, table);
    *path_out = config_find_path(argc, argv, table, count);
    TESS_TRY(tess_options_open(&config->options));
    for (int i = 0; i < count; i++)
        TESS_TRY(table[i].table ? tess_options_add(config->options, table[i].prefix, table[i].table,
                                                   table[i].target)
                                : tess_options_allow(config->options, table[i].prefix, NULL));
    TESS_TRY(tess_comm_options_add(config->options, &config->comm));
    return config_choose_parts(config, argc, argv, *path_out);
}

static enum tess_status config_load(struct tess_config *config, int argc, char **argv,
                                    const char *path)
{
    char text[64], *argument = text;
    const char *word = NULL;
    int word_count = 0;
    TESS_TRY(tess_options_load_environment(config->options));
    if (path != NULL)
        TESS_TRY(tess_options_load_yaml(config->options, path));
    TESS_TRY(tess_options_load_arguments(config->options, argc, argv, &word, 1, &word_count));
    if (word_count > 0 && (path == NULL || strcmp(word, path) != 0))
        TESS_FAIL(TESS_ERR_USAGE,
                  "more than one word may name the configuration file: put it before the options");
    if (config->word_of == NULL)
        return TESS_OK;
    snprintf(text, sizeof(text), "--%s", config->word_of->word_option);
    return tess_options_load_arguments(config->options, 1, &argument, &word, 1, &word_count);
}

/* As many ranks as were started. */
static enum tess_status config_take_place(struct tess_config *config)
{
    char word[] = "--ranks", number[16];
    char *count[] = {word, number};
    const char *left = NULL;
    int left_count = 0;
    const struct tess_started *place = &config->started;
    if (tess_options_is_set(config->options, "ranks") && config->run.ranks != place->rank_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--ranks is %lld, and %s has started %d: give the same number, or leave one out",
                  (long long)config->run.ranks, place->starter, place->rank_count);
    if (tess_options_is_set(config->options, "ranks"))
        return TESS_OK;
    snprintf(number, sizeof(number), "%d", place->rank_count);
    return tess_options_load_arguments(config->options, 2, count, &left, 1, &left_count);
}

static enum tess_status config_open(int argc, char **argv, const struct tess_config_table *extra,
                                    int extra_count, const struct tess_started *place,
                                    enum tess_status (*check)(struct tess_config *),
                                    struct tess_config **config_out)
{
    struct tess_config *config = calloc(1, sizeof(*config));
    const char *path = NULL;
    enum tess_status status;
    if (config == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configuration");
    TESS_TRY_GOTO(status, close_config,
                  config_declare(argc, argv, extra, extra_count, config, &path));
    TESS_TRY_GOTO(status, close_config, config_load(config, argc, argv, path));
    if (place != NULL) {
        config->started = *place;
        TESS_TRY_GOTO(status, close_config, config_take_place(config));
    }
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
    return config_open(argc, argv, extra, extra_count, NULL, config_check, config_out);
}

enum tess_status tess_config_open_placed(int argc, char **argv,
                                         const struct tess_config_table *extra, int extra_count,
                                         const struct tess_started *place,
                                         struct tess_config **config_out)
{
    return config_open(argc, argv, extra, extra_count, place, config_check, config_out);
}

enum tess_status tess_config_mesh(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, struct tess_mesh *mesh_out,
                                  int64_t *accumulate_out)
{
    struct tess_config *config = NULL;
    TESS_TRY(config_open(argc, argv, extra, extra_count, NULL, config_check_mesh, &config));
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
    free(config->model_options);
    free(config->optimizer_options);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        free(config->axis_options[axis]);
    free(config);
}

enum tess_status tess_config_print_help(int argc, char **argv,
                                        const struct tess_config_table *extra, int extra_count)
{
    struct tess_config *config = calloc(1, sizeof(*config));
    const char *path = NULL;
    enum tess_status status;
    if (config == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configuration");
    status = config_declare(argc, argv, extra, extra_count, config, &path);
    if (status == TESS_OK)
        tess_options_print_help(config->options);
    tess_config_close(config);
    return status;
}

bool tess_config_peek(int argc, char **argv, const char *name, char *text, size_t text_bytes)
{
    struct tess_config config = {0};
    struct tess_config_table table[CONFIG_TABLE_MAX];
    int count = config_tables(&config, NULL, 0, table);
    const char *value = NULL;
    if (tess_options_open(&config.options) != TESS_OK)
        return false;
    value = tess_options_peek(config.options, name, argc, argv,
                              config_find_path(argc, argv, table, count));
    if (value != NULL)
        snprintf(text, text_bytes, "%s", value);
    tess_options_close(config.options);
    return value != NULL;
}

void tess_config_peek_number(int argc, char **argv, const char *name, int64_t *value)
{
    char text[64], problem[256];
    union tess__option_value number;
    const struct tess_config_table run = {"", tess_run_option_table, NULL};
    const struct tess_option *row = config_find_row(&run, 1, name);
    if (row != NULL && tess_config_peek(argc, argv, name, text, sizeof(text)) &&
        tess__option_parse(row, text, &number, problem, sizeof(problem)))
        *value = number.integer;
}

enum tess_status tess_config_take(struct tess_options *options, const struct tess_option *table,
                                  void *values, int *argc, char **argv)
{
    struct tess_config config = {0};
    struct tess_config_table tables[CONFIG_TABLE_MAX];
    const struct tess_config_table own = {"", table, NULL};
    int count = config_tables(&config, &own, 1, tables);
    const char *path = config_find_path(*argc, argv, tables, count);
    bool wanted = false; /* something of the file */
    tess_options_skip_others(options);
    TESS_TRY(tess_options_add(options, "", table, values));
    for (const struct tess_option *row = table; row != NULL && row->name != NULL; row++)
        if (config_find_row(tables, count - 1, row->name) != NULL)
            tess_options_skip_file(options, row->name);
        else
            wanted = true;
    TESS_TRY(tess_options_load_environment(options));
    if (wanted && path != NULL)
        TESS_TRY(tess_options_load_yaml(options, path));
    return tess_options_take_arguments(options, argc, argv);
}
