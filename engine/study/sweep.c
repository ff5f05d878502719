/* tessera sweep: several configurations trained one after the other, and one table of all. */
#include "base/clock.h"
#include "base/file.h"
#include "run/train.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/table.h"
#include "text/text.h"
#include "text/words.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SWEEP_MAX        32
#define SWEEP_NAME_BYTES 64

/* Accuracy up to this many times that of guessing counts as not learnt. */
#define GUESSING_FACTOR 1.5

struct sweep_case {
    char path[PATH_MAX];
    char name[SWEEP_NAME_BYTES]; /* the file's, without folder and ending */
    char run[PATH_MAX];          /* run folder; "" for none */
    struct tess_config *config;
    enum tess_status status; /* TESS_ERR_NUMERIC: it diverged, which is a result */
    struct tess__words words;
    struct tess__trained trained;
};

struct sweep {
    char *const *option; /* [option_count] words for every configuration */
    int option_count;
    const char *run;
    struct sweep_case *item;
    int item_count;
    struct tess__words words; /* of the table */
    struct tess_dataset *dataset;
    const struct tess_config *dataset_of; /* what `dataset` was opened for */
};

struct sweep_options {
    const char *run;
};

static const struct tess_option sweep_option_table[] = {
    {"run", TESS_OPTION_STRING, offsetof(struct sweep_options, run), "", 0, 0, NULL,
     "folder for the runs: DIR/NAME of each configuration; empty: as each configuration has it"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char sweep_usage[] =
    "usage: tessera sweep CONFIG|FOLDER ... [--run DIR] [--option value ...]\n\n"
    "Train several configurations one after the other, with the options that follow for all of\n"
    "them, and end with one table: speed, time, validation loss and accuracy of each. A\n"
    "FOLDER stands for the .yaml files in it, in order of their names. --run DIR writes\n"
    "DIR/NAME/metrics.jsonl for each, which tessera report DIR/* makes a page of. A training\n"
    "that diverges is shown as failed, and the sweep continues.\n\n"
    "examples\n"
    "  tessera sweep configs/labs/fashion_large_batch --run out\n"
    "  tessera sweep configs/labs/fashion_mlp.yaml configs/labs/fashion_cnn.yaml --epochs 2\n";

/* ---- which files ----------------------------------------------------------------------------- */

static enum tess_status sweep_add(struct sweep *sweep, const char *folder, const char *file)
{
    struct sweep_case *item;
    const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    const char *end = strrchr(base, '.');
    int length = end && end != base ? (int)(end - base) : (int)strlen(base);
    if (sweep->item_count == SWEEP_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "a sweep takes at most %d configurations", SWEEP_MAX);
    item = &sweep->item[sweep->item_count++];
    int used =
        snprintf(item->path, sizeof(item->path), "%s%s%s", folder, folder[0] ? "/" : "", file);
    if (used < 0 || (size_t)used >= sizeof(item->path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of %s is too long", file);
    snprintf(item->name, sizeof(item->name), "%.*s", length, base);
    for (int i = 0; i + 1 < sweep->item_count; i++)
        if (strcmp(sweep->item[i].name, item->name) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "%s and %s have the same name, and so would their results",
                      sweep->item[i].path, item->path);
    return TESS_OK;
}

static int sweep_only_yaml(const struct dirent *entry)
{
    /* A name that is nothing but an ending is a hidden file. */
    return tess_options_is_file_name(entry->d_name) && strrchr(entry->d_name, '.') != entry->d_name;
}

static enum tess_status sweep_add_folder(struct sweep *sweep, const char *folder)
{
    struct dirent **entry = NULL;
    int count = scandir(folder, &entry, sweep_only_yaml, alphasort);
    enum tess_status status = TESS_OK;
    if (count <= 0)
        status = tess_fail(TESS_ERR_USAGE, "there is no .yaml file in the folder %s", folder);
    for (int i = 0; i < count; i++) {
        TESS_KEEP(status, status == TESS_OK ? sweep_add(sweep, folder, entry[i]->d_name) : status);
        free(entry[i]);
    }
    free(entry);
    return status;
}

/* The words up to the first option are files and folders; the rest is for every configuration. */
static enum tess_status sweep_read_args(struct sweep *sweep, const struct tess__call *call)
{
    char *const *argv = call->args.word;
    int paths = 0;
    while (paths < call->args.count && argv[paths][0] != '-')
        paths++;
    if (paths == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "sweep needs configurations or folders of them, before any option: tessera sweep "
                  "configs/labs/fashion_large_batch");
    sweep->run = ((const struct sweep_options *)call->values)->run;
    sweep->option = argv + paths;
    sweep->option_count = call->args.count - paths;
    for (int i = 0; i < paths; i++) {
        struct stat about;
        if (stat(argv[i], &about) == 0 && S_ISDIR(about.st_mode))
            TESS_TRY(sweep_add_folder(sweep, argv[i]));
        else
            TESS_TRY(sweep_add(sweep, "", argv[i]));
    }
    return TESS_OK;
}

static enum tess_status sweep_resolve(struct sweep *sweep, struct sweep_case *item)
{
    struct tess__args words = {.count = 1, .word = {item->path}};
    for (int i = 0; i < sweep->option_count; i++)
        TESS_TRY(tess__args_add(&words, sweep->option[i]));
    if (sweep->run[0]) {
        int used = snprintf(item->run, sizeof(item->run), "%s/%s", sweep->run, item->name);
        if (used < 0 || (size_t)used >= sizeof(item->run))
            TESS_FAIL(TESS_ERR_USAGE, "the run folder's name %s is too long", sweep->run);
        TESS_TRY(tess__args_add(&words, "--run"));
        TESS_TRY(tess__args_add(&words, item->run));
    }
    return tess_config_open(words.count, words.word, NULL, 0, &item->config);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char *sweep_verdict(const struct sweep *sweep, const struct sweep_case *item)
{
    double guessing = 1.0 / sweep->dataset->class_count;
    if (item->status == TESS_ERR_NUMERIC)
        return "failed: diverged";
    if (item->status != TESS_OK)
        return "failed";
    if (isnan(item->trained.final.val_accuracy))
        return "not evaluated";
    return item->trained.final.val_accuracy <= GUESSING_FACTOR * guessing
               ? "failed: no better than guessing"
               : "learnt";
}

static void sweep_add_case(struct tess__table *table, const struct sweep *sweep,
                           const struct sweep_case *item)
{
    const struct tess_config *config = item->config;
    const struct tess__run_final *final = &item->trained.final;
    char text[TESS__TEXT_BYTES];
    tess__table_add(table, "%s", item->name);
    tess__table_add(table, "%s", config->optimizer->name);
    tess__table_add(table, "%lld", (long long)config->run.batch_size);
    tess__table_add(table, "%.4f", config->optim.learning_rate);
    tess__table_add(table, "%.1f", config->optim.warmup);
    if (item->status == TESS_OK) {
        tess__table_add(table, "%s", tess__words_rate(&sweep->words, final->samples_per_s, text));
        tess__table_add(table, "%s", tess__text_time(final->time_s, text));
        if (isnan(final->loss_zero_share)) /* unknown for a model that computes its loss */
            tess__table_add(table, "-");
        else
            tess__table_add(table, "%.1f %%", 100 * final->loss_zero_share);
        tess__table_add(table, "%.4f", final->val_loss);
        tess__table_add(table, "%.2f %%", 100 * final->val_accuracy);
    } else {
        for (int i = 0; i < 5; i++)
            tess__table_add(table, "-");
    }
    const char *verdict = sweep_verdict(sweep, item);
    tess__table_add_colour(
        table, strncmp(verdict, "failed", 6) == 0 ? TESS__COLOUR_BAD : TESS__COLOUR_PLAIN, "%s",
        verdict);
}

/* One word for the speed of all, which may be trained on different data. */
static struct tess__words sweep_words(const struct sweep *sweep, int done)
{
    for (int i = 1; i < done; i++)
        if (sweep->item[i].words.rate_of_row != sweep->item[0].words.rate_of_row)
            return tess__words_mixed();
    return sweep->item[0].words;
}

static void sweep_print(struct sweep *sweep, int done)
{
    FILE *former = tess__screen_begin();
    sweep->words = sweep_words(sweep, done);
    const struct tess__column column[] = {
        {.title = "configuration", .width = 22, .left = true, .key = true},
        {.title = "optimizer", .width = 9, .left = true},
        {.title = "batch", .width = 6},
        {.title = "rate", .width = 7},
        {.title = "warmup", .width = 6},
        {.title = sweep->words.rate, .width = 9},
        {.title = "time", .width = 8},
        {.title = "zeros", .width = 8},
        {.title = "val loss", .width = 9},
        {.title = "accuracy", .width = 10},
        {.title = "result", .left = true},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    for (int i = 0; i < done; i++)
        sweep_add_case(&table, sweep, &sweep->item[i]);
    putchar('\n');
    tess__table_print(&table, stdout);
    printf(
        "rate: the highest of the schedule. warmup: epochs. zeros: of the last step's gradient by "
        "the logits.\n"
        "failed: the loss was not finite, or the accuracy is at most %g times that of guessing\n",
        GUESSING_FACTOR);
    tess__screen_end(former);
}

/* ---- running --------------------------------------------------------------------------------- */

/* The data set of this configuration; one that was opened for the one before is used again. */
static enum tess_status sweep_open_data(struct sweep *sweep, const struct tess_config *config)
{
    if (sweep->dataset && tess__run_same_data(sweep->dataset_of, config))
        return TESS_OK;
    tess_dataset_close(sweep->dataset);
    sweep->dataset = NULL;
    sweep->dataset_of = config;
    return tess__run_open_data(config, &sweep->dataset);
}

static enum tess_status sweep_run(struct sweep *sweep)
{
    const struct tess__train_options options = {.trace = "", .tensorboard = "", .prometheus = ""};
    for (int i = 0; i < sweep->item_count; i++)
        TESS_TRY(sweep_resolve(sweep, &sweep->item[i]));
    /* A folder that cannot be made is an error before the training, not after it. */
    for (int i = 0; sweep->run[0] && i < sweep->item_count; i++)
        TESS_TRY(tess_file_make_folders(sweep->item[i].run, "the run folder"));
    for (int i = 0; i < sweep->item_count; i++) {
        struct sweep_case *item = &sweep->item[i];
        enum tess_status status;
        printf("%s=== %d/%d %s\n", i > 0 ? "\n" : "", i + 1, sweep->item_count, item->path);
        TESS_TRY(sweep_open_data(sweep, item->config));
        item->words = tess__words_of(sweep->dataset);
        status =
            tess__train_run(item->config, sweep->dataset, &options, tess_clock_s(), &item->trained);
        if (status != TESS_OK && status != TESS_ERR_NUMERIC) {
            sweep_print(sweep, i); /* what is done is not lost */
            return status;
        }
        item->status = status;
    }
    sweep_print(sweep, sweep->item_count);
    return TESS_OK;
}

static int sweep_command(struct tess__call *call)
{
    struct sweep sweep = {.item = calloc(SWEEP_MAX, sizeof(*sweep.item))};
    enum tess_status status = TESS_OK;
    if (!sweep.item)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the sweep");
    if (status == TESS_OK)
        status = sweep_read_args(&sweep, call);
    if (status == TESS_OK)
        status = sweep_run(&sweep);
    for (int i = 0; sweep.item && i < sweep.item_count; i++)
        tess_config_close(sweep.item[i].config);
    free(sweep.item);
    tess_dataset_close(sweep.dataset);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_sweep = {
    .name = "sweep",
    .summary = "train several configurations one after the other and compare their results",
    .usage = sweep_usage,
    .table = sweep_option_table,
    .options_size = sizeof(struct sweep_options),
    .reads = TESS__READS_SERIES,
    .run = sweep_command,
};
