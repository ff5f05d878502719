/*
 * tessera train: one run, shown while it goes, written down in the run folder, and its costs at the
 * end.
 */
#include "cli/args.h"
#include "cli/command.h"
#include "cli/explain.h"
#include "cli/memory_table.h"
#include "cli/progress.h"
#include "cli/record.h"
#include "cli/run.h"
#include "cli/text.h"
#include "core/metrics.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct train_options {
    bool explain;
};

static const struct tess_option train_option_table[] = {
    {"explain", TESS_OPTION_BOOL, offsetof(struct train_options, explain), "off", 0, 0, NULL,
     "print every option with its origin, the plan and the memory of every rank; do not train"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct train {
    struct tess__run run;
    struct tess__progress progress;
    struct tess_metrics *metrics; /* NULL without a run folder */
};

static enum tess_status train_help(int argc, char **argv)
{
    struct train_options target;
    struct tess_config_table table = {"", train_option_table, &target};

    printf(
        "usage: tessera train [CONFIG] [--option value ...] [--set option=value ...]\n\n"
        "Train a model on several ranks of this machine. CONFIG is a YAML file whose keys are the\n"
        "options below; the command line wins over the file, the file over the environment\n"
        "(TESSERA_BATCH_SIZE for --batch-size).\n\n"
        "examples\n"
        "  tessera train configs/labs/fashion_cnn.yaml --strategy fsdp --ranks 4\n"
        "  tessera train configs/labs/fashion_mlp.yaml --precision bf16 --epochs 3 --run out\n"
        "  tessera train configs/labs/fashion_mlp.yaml --strategy zero1 --explain\n"
        "  tessera train --data synthetic --steps 100\n\n"
        "--run DIR writes DIR/metrics.jsonl, one JSON object a line; the last one holds the final\n"
        "hash of the parameters, loss, accuracy, speed and memory. Ctrl-C ends all ranks.\n\n");
    return tess_config_print_help(argc, argv, &table, 1);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static enum tess_status train_write(struct train *train, json_t *object)
{
    if (train->metrics == NULL) {
        json_decref(object);
        return TESS_OK;
    }
    return tess_metrics_write(train->metrics, object);
}

static enum tess_status train_message(void *context, const struct tess__message *message)
{
    struct train *train = context;
    enum tess_status status = TESS_OK;

    switch ((enum tess__run_kind)message->kind) {
    case TESS__RUN_OPENED: {
        struct tess__run_opened opened;
        memcpy(&opened, message->payload, sizeof opened);
        tess__progress_opened(&train->progress, &opened);
        break;
    }
    case TESS__RUN_STEP: {
        struct tess__run_step step;
        memcpy(&step, message->payload, sizeof step);
        tess__progress_step(&train->progress, &step);
        if (step.logged)
            status = train_write(train, tess__record_step(&step));
        break;
    }
    case TESS__RUN_EPOCH: {
        struct tess__run_epoch epoch;
        memcpy(&epoch, message->payload, sizeof epoch);
        tess__progress_epoch(&train->progress, &epoch);
        status = train_write(train, tess__record_epoch(&epoch));
        break;
    }
    case TESS__RUN_FINAL:
    case TESS__RUN_RANK:
        tess__run_keep(&train->run, message);
        break;
    }
    if (status != TESS_OK)
        tess__progress_clear(&train->progress);
    return status;
}

static void train_started(void *context, int32_t rank, int pid, const char *cores)
{
    const struct train *train = context;
    bool threads = train->run.config->strategy->rank_mode == TESS_RANKS_THREADS;

    printf("rank %d: pid %d%s, core %s\n", rank, pid, threads ? " (a thread)" : "", cores);
    if (rank == train->run.rank_count - 1)
        fflush(stdout);
}

static void train_before_line(void *context)
{
    struct train *train = context;

    tess__progress_clear(&train->progress);
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static void train_print_start(const struct tess__run *run)
{
    const struct tess_config *config = run->config;
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    char parameters[TESS__TEXT_BYTES];

    printf("%s, %s parameters, %s, under %s on %d rank%s; %" PRId64 " images, batch %" PRId64
           ", grid %d, %" PRId64 " steps\n",
           config->model->name, tess__text_count((double)plan->param_total, parameters),
           tess_dtype_name(tess_run_dtype(&config->run)), config->strategy->name, run->rank_count,
           run->rank_count > 1 ? "s" : "", run->dataset->train.count, config->run.batch_size,
           plan->grid, tess_engine_step_count(run->planned));
}

static void train_print_end(const struct tess__run *run)
{
    const struct tess__run_final *final = &run->final;
    char first[TESS__TEXT_BYTES], time[TESS__TEXT_BYTES], speed[TESS__TEXT_BYTES];

    printf("\n%" PRId64 " steps in %s, %s images/s, first step after %s", final->steps,
           tess__text_time(final->time_s, time), tess__text_count(final->samples_per_s, speed),
           tess__text_time(final->first_step_s, first));
    if (!isnan(final->val_loss))
        printf("; val loss %.4f, accuracy %.2f %%", final->val_loss, 100 * final->val_accuracy);
    printf("\nhash of all parameters %016" PRIx64 "\n", final->hash);
    tess__memory_table_print(run, true);
}

static enum tess_status train_launch(struct train *train)
{
    struct tess__launch launch = tess__run_launch(&train->run);

    launch.context = train;
    launch.message = train_message;
    launch.started = train_started;
    launch.before_line = train_before_line;
    tess__progress_open(&train->progress);
    train->run.live = train->progress.terminal;
    train_print_start(&train->run);
    TESS_TRY(train_write(train, tess__record_head(&train->run)));
    TESS_TRY(tess__launch_run(&launch));
    train_print_end(&train->run);
    return train_write(train, tess__record_final(&train->run));
}

static enum tess_status train_run(const struct tess_config *config, bool explain)
{
    struct train train = {0};
    struct tess_dataset *dataset = NULL;
    enum tess_status status;

    TESS_TRY(tess__run_open_data(config, &dataset));
    TESS_TRY_GOTO(status, close_run, tess__run_open(&train.run, config, dataset));
    train.run.start_s = tess__run_process_start_s();
    if (explain) {
        tess__explain_print(&train.run);
        goto close_run;
    }
    if (config->run.run[0] != '\0')
        TESS_TRY_GOTO(status, close_run, tess_metrics_open(config->run.run, &train.metrics));
    status = train_launch(&train);
    TESS_KEEP(status, tess_metrics_close(train.metrics));

close_run:
    tess__run_close(&train.run);
    tess_dataset_close(dataset);
    return status;
}

int tess__command_train(int argc, char **argv)
{
    struct train_options options;
    struct tess_config_table table = {"", train_option_table, &options};
    struct tess_config *config = NULL;
    struct tess__args args;
    enum tess_status status = tess__args_init(&args, argc, argv);

    if (status == TESS_OK && tess__args_has(&args, "help"))
        return tess_status_exit_code(train_help(argc, argv));
    if (status == TESS_OK)
        status = tess_config_open(argc, argv, &table, 1, &config);
    if (status == TESS_OK)
        status = train_run(config, options.explain);
    tess_config_close(config);
    return tess_status_exit_code(status);
}
