/* tessera train: the command's options and help; the training itself is train_run.c's. */
#include "run/train.h"
#include "base/log_sink.h"
#include "base/options.h"
#include "config/config_save.h"
#include "job/launch_env.h"
#include "job/place.h"
#include "run/copies.h"
#include "run/fit.h"
#include "run/hosts.h"
#include "run/restart.h"
#include "run/shrink.h"
#include "state/checkpoint.h"
#include "tessera/check.h"
#include "text/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tess_option train_option_table[] = {
    TESS_ROW_TOPIC("watching"),
    {"explain", TESS_OPTION_BOOL, offsetof(struct tess__train_options, explain), "off", 0, 0, NULL,
     "print every option with its origin, the plan and the memory of every rank; do not train"},
    {"explain-rank", TESS_OPTION_INT, offsetof(struct tess__train_options, explain_rank), "0", 0,
     TESS_RANKS_MAX - 1, NULL,
     "rank whose plan --explain prints: its units, its part of the layers, its memory"},
    {"trace", TESS_OPTION_STRING, offsetof(struct tess__train_options, trace), "", 0, 0, NULL,
     "file for a time line of every rank, for ui.perfetto.dev: what it computed, "
     "its communication, what it waited for; empty writes none"},
    {"trace-first", TESS_OPTION_INT, offsetof(struct tess__train_options, trace_first), "1", 1,
     1e12, NULL,
     "first step of the time lines; what follows a step, such as an evaluation, belongs to it"},
    {"trace-steps", TESS_OPTION_INT, offsetof(struct tess__train_options, trace_steps), "50", 1,
     1e12, NULL, "steps in the time lines"},
    {"tensorboard", TESS_OPTION_STRING, offsetof(struct tess__train_options, tensorboard), "", 0, 0,
     NULL, "folder for an event file that TensorBoard reads; empty writes none"},
    {"watch", TESS_OPTION_CHOICE, offsetof(struct tess__train_options, watch), "auto", 0, 0,
     "auto|on|off",
     "write what the driver reports about GPUs (utilisation, memory, power) to metrics.jsonl once "
     "a "
     "second: auto, of those that the run computes on; on, of all of this machine"},
    TESS_ROW_TOPIC("hosts"),
    {"restarts", TESS_OPTION_INT, offsetof(struct tess__train_options, restarts), "0", 0, 1e6, NULL,
     "start the ranks again, from the newest checkpoint of --run, after a process was lost, a time "
     "limit passed or a device failed: at most so often"},
    {"min-ranks", TESS_OPTION_INT, offsetof(struct tess__train_options, min_ranks), "0", 0,
     TESS_RANKS_MAX, NULL,
     "with --restarts: after a process was lost go on with as many ranks as are left, down to this "
     "number, in the largest layout that has the same bits; 0: start as many as before"},
    {"hosts", TESS_OPTION_INT, offsetof(struct tess__train_options, hosts), "1", 1, TESS_RANKS_MAX,
     NULL,
     "hosts of the run, each with an equal part of --ranks: start the same command on each of "
     "them, "
     "with --meet"},
    {"meet", TESS_OPTION_STRING, offsetof(struct tess__train_options, meet), "", 0, 0, NULL,
     "HOST:PORT where several hosts meet: the host that leads, and a free port of it"},
    {"elastic", TESS_OPTION_BOOL, offsetof(struct tess__train_options, elastic), "off", 0, 0, NULL,
     "with --hosts and --restarts: a host may leave (Ctrl-C there) and come back, with the same "
     "command, while the run goes on"},
    {"secret-file", TESS_OPTION_STRING, offsetof(struct tess__train_options, secret_file), "", 0, 0,
     NULL,
     "file with the job's secret, 16 characters or more, which only its owner can read: "
     "connections "
     "of processes that do not have it are refused. Else TESS_JOB_SECRET, or the file that "
     "TESS_JOB_SECRET_FILE names"},
    TESS_ROW_TOPIC("watching"),
    {"prometheus", TESS_OPTION_STRING, offsetof(struct tess__train_options, prometheus), "", 0, 0,
     NULL,
     "latest numbers for Prometheus: a port, or ADDRESS:PORT beyond this machine, to serve "
     "/metrics at; or FILE.prom, written once a second at most; empty gives none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char train_usage[] =
    "usage: tessera train [CONFIG] [--option value ...] [--set option=value ...]\n"
    "\n"
    "Train a model on several ranks of this machine. CONFIG is a YAML file whose keys are the\n"
    "options below; the command line wins over the file, the file over the environment\n"
    "(TESSERA_BATCH_SIZE for --batch-size).\n"
    "\n"
    "examples\n"
    "  tessera train configs/labs/fashion_cnn.yaml --strategy fsdp --ranks 4\n"
    "  tessera train configs/labs/fashion_mlp.yaml --precision bf16 --epochs 3 --run out\n"
    "  tessera train configs/labs/fashion_mlp.yaml --strategy zero1 --explain\n"
    "  tessera train --data synthetic --steps 100\n"
    "  tessera train configs/models/tiny-gpt.yaml --strategy fsdp+tp+pp --ranks 8\n"
    "  tessera train --model folder/gpt2 --data tokens.bin       a Hugging Face folder\n"
    "  tessera train configs/models/tiny-gpt.yaml --strategy ddp+pp --mesh data=2,stage=4\n"
    "\n"
    "Under torchrun, mpirun or srun (RANK, WORLD_SIZE, LOCAL_RANK, or their own variables) it is\n"
    "one rank of the job, on the device of its local rank; on the host, ranks communicate over\n"
    "MPI or sockets (--comm). mpirun and srun need no MASTER_ADDR and MASTER_PORT.\n"
    "srun --ntasks-per-node=1 tessera train --ranks N: each task starts the ranks of its node.\n"
    "torchrun refuses --run, which it takes for its own --run-path: give --run-dir.\n"
    "--topology.order numbers ranks by the network's topology, --topology.adapt numbers them\n"
    "again where a link or a host becomes slow.\n"
    "\n"
    "--run DIR writes DIR/metrics.jsonl, one JSON object a line; the last one holds the final\n"
    "hash of the parameters, loss, accuracy, speed and memory. Ctrl-C ends all ranks.\n"
    "tessera status DIR prints what each rank does; so does SIGUSR2 during the run.\n"
    "--resume continues a run that was stopped, on any number of ranks. --restarts does so\n"
    "automatically after a rank is lost, with --min-ranks on the ranks that are left.\n"
    "On several hosts start the same command on each, with --hosts N --meet HOST:PORT.\n"
    "--trace FILE writes time lines, also when the run is interrupted or a rank fails.\n";

/* Another layout where ranks were lost: *config is the one of all ranks before, and NULL after a
 * failure. */
static enum tess_status train_shrink(struct tess__args *args, const struct tess_config_table *table,
                                     const struct tess__history *history,
                                     const struct tess_dataset *dataset,
                                     struct tess_config **config)
{
    const struct tess__train_options *options = table->target;
    if (history == NULL || options->min_ranks == 0 || history->lost_ranks == 0)
        return TESS_OK;
    const enum tess_status status =
        tess__shrink_choose(args, table, *config, dataset, history->ranks - history->lost_ranks,
                            (int32_t)options->min_ranks);
    tess_config_close(*config);
    *config = NULL;
    return status != TESS_OK ? status : tess_config_open(args->count, args->word, table, 1, config);
}

/* The layout of so many ranks, for a run on several hosts; see tess__restart. */
static int train_choose(void *context, int32_t left, struct tess__history *history)
{
    struct tess__args args = *(const struct tess__args *)context;
    struct tess__train_options options;
    struct tess_config_table table = {"", train_option_table, &options};
    struct tess_config *config = NULL;
    struct tess_dataset *dataset = NULL;
    enum tess_status status = tess_config_open(args.count, args.word, &table, 1, &config);
    if (status == TESS_OK)
        status = tess__run_open_data(config, &dataset);
    if (status == TESS_OK)
        status =
            tess__shrink_choose(&args, &table, config, dataset, left, (int32_t)options.min_ranks);
    for (int i = 0; i < TESS__LAYOUT_WORDS && status == TESS_OK; i++)
        snprintf(history->layout[i], TESS__LAYOUT_BYTES, "%s",
                 args.word[args.count - TESS__LAYOUT_WORDS + i]);
    tess_dataset_close(dataset);
    tess_config_close(config);
    return tess_status_exit_code(status);
}

/* --secret-file is for who is started by a person; ranks get their supervisor's. */
static enum tess_status train_read_secret(const struct tess__train_options *options,
                                          const struct tess_started *place,
                                          struct tess_boot_env *env)
{
    if (options->secret_file[0] != '\0' && getenv(TESS_BOOT_MEETING) == NULL)
        return tess_secret_from_file(options->secret_file, &env->secret);
    return place->starter == NULL ? tess_secret_from_environment(&env->secret) : TESS_OK;
}

/* This process's place among those that another program started, and the options. Where srun has
 * started one process on each node for more ranks than that, *divided_out: each supervises those of
 * its node. */
static enum tess_status train_open(struct tess__args *args, const struct tess_config_table *table,
                                   struct tess_boot_env *env, struct tess_started *place,
                                   struct tess_config **config_out, bool *divided_out)
{
    const struct tess__train_options *options = table->target;
    TESS_TRY(tess__peers_find(env, place));
    if (place->starter != NULL)
        tess_boot_begin(env);
    place->may_divide = true;
    place->hosts = &options->hosts;
    TESS_TRY(tess_config_open_placed(args->count, args->word, table, 1, place, config_out));
    *divided_out = place->starter != NULL && (*config_out)->started.supervises;
    return train_read_secret(options, place, env);
}

/* Where memory is short: options of the same command that would help. */
static void train_advise(void *context, char *text, size_t bytes)
{
    struct tess__fit fit = *(const struct tess__fit *)context;
    struct tess__train_options options; /* those of the run stay */
    const struct tess_config_table table = {"", train_option_table, &options};
    fit.table = &table;
    tess__fit_advise(&fit, text, bytes);
}

/* A training in this process. */
static enum tess_status train_once(struct tess__args *args, struct tess__history *history)
{
    struct tess__train_options options;
    struct tess_config_table table = {"", train_option_table, &options};
    struct tess_boot_env env;
    struct tess_started place = {0};
    struct tess_config *config = NULL;
    struct tess_dataset *dataset = NULL;
    struct tess__trained trained;
    bool divided = false;
    enum tess_status status = train_open(args, &table, &env, &place, &config, &divided);
    if (divided && place.rank > 0) { /* --explain: one node's is enough */
        tess_boot_end(status);
        tess_config_close(config);
        return status;
    }
    options.placed = place.starter && !divided ? &env : NULL;
    if (status == TESS_OK)
        status = tess__run_open_data(config, &dataset);
    if (status == TESS_OK)
        status = train_shrink(args, &table, history, dataset, &config);
    options.history = history;
    const struct tess__fit fit = {.args = args, .config = config, .dataset = dataset};
    options.advise = place.starter == NULL ? train_advise : NULL;
    options.advise_context = (void *)&fit;
    if (status == TESS_OK) {
        /* A rank of several hosts, or the plan of such a run. */
        config->save.mirrored =
            options.meet[0] != '\0' || divided || getenv(TESS_BOOT_MEETING) != NULL;
        status = tess__train_run(config, dataset, &options, tess__run_process_start_s(), &trained);
    }
    tess_boot_end(status);
    tess_dataset_close(dataset);
    tess_config_close(config);
    return status;
}

/* An attempt that follows another one. */
static enum tess_status train_begin_again(struct tess__args *args, bool resumes)
{
    if (resumes)
        TESS_TRY(tess__args_add(args, "--overwrite=off")); /* which the first one may have had */
    return tess__args_add(args, resumes ? "--resume" : "--overwrite");
}

static int train_attempt(void *context, enum tess__attempt begin, struct tess__history *history)
{
    struct tess__args args = *(const struct tess__args *)context;
    enum tess_status status = TESS_OK;
    if (begin != TESS__ATTEMPT_FIRST)
        status = train_begin_again(&args, begin == TESS__ATTEMPT_RESUME);
    for (int i = 0; i < TESS__LAYOUT_WORDS; i++)
        if (history->layout[i][0] != '\0')
            TESS_KEEP(status, tess__args_add(&args, history->layout[i]));
    if (status == TESS_OK)
        status = train_once(&args, history);
    history->status = (int32_t)status;
    return tess_status_exit_code(status);
}

/* What --restarts needs. */
static enum tess_status train_check_restarts(const struct tess_config *config,
                                             const struct tess__train_options *options,
                                             const struct tess_started *place)
{
    if (place->starter != NULL && !place->supervises)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--restarts is for ranks that tessera starts, and %s has started these: let it "
                  "start the job again, with --resume",
                  place->starter);
    if (!tess_config_saves(config))
        TESS_FAIL(TESS_ERR_USAGE, "--restarts continues from a run's checkpoints: give --run DIR "
                                  "and leave --save-every on");
    if (options->min_ranks > config->mesh.rank_count)
        TESS_FAIL(TESS_ERR_USAGE, "--min-ranks %lld is more than the %d ranks of the run",
                  (long long)options->min_ranks, config->mesh.rank_count);
    return TESS_OK;
}

/* What --topology.adapt needs. */
static enum tess_status train_check_adapt(const struct tess_config *config,
                                          const struct tess__train_options *options,
                                          const struct tess_boot_env *env)
{
    const struct tess_started *place = &config->started;
    TESS_TRY(tess__place_check(config)); /* before supervisors meet */
    if (place->starter == NULL && options->meet[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "--topology.adapt is for ranks on several hosts, and these are "
                                  "all started here: leave it out");
    if (!tess_config_saves(config))
        TESS_FAIL(TESS_ERR_USAGE, "--topology.adapt goes on from a checkpoint: give --run DIR and "
                                  "leave --save-every on");
    if (place->starter == NULL || place->supervises)
        return TESS_OK;
    if (strcmp(config->device.comm->name, "mpi") == 0)
        TESS_FAIL(TESS_ERR_USAGE, "--topology.adapt starts the ranks again, which MPI does not do "
                                  "within one mpirun: give --comm tcp");
    if (env->address[0] == '\0')
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--topology.adapt starts the ranks again, and this %s gives them the address of "
            "rank 0 only once: set MASTER_ADDR to its host and MASTER_PORT to a free port there",
            place->starter);
    return TESS_OK;
}

/* What several hosts need. */
static enum tess_status train_check_hosts(const struct tess_config *config,
                                          const struct tess__train_options *options,
                                          const struct tess_started *place,
                                          struct tess__hosts *hosts)
{
    const int32_t ranks = config->mesh.rank_count;
    if (options->meet[0] == '\0' && options->hosts > 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--hosts %lld needs --meet HOST:PORT, where they meet: the name of the host that "
                  "leads, and a free port of it",
                  (long long)options->hosts);
    if (options->elastic && (options->meet[0] == '\0' || options->restarts == 0))
        TESS_FAIL(TESS_ERR_USAGE, "--elastic is for runs on several hosts that are started again: "
                                  "give --hosts, --meet and --restarts");
    if (options->meet[0] == '\0')
        return TESS_OK;
    if (place->starter)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--meet is for hosts that start their ranks themselves, and %s "
                  "has started these: leave --hosts and --meet out",
                  place->starter);
    if (ranks % options->hosts != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--ranks %d cannot be divided equally among --hosts %lld: give a multiple of "
                  "%lld",
                  ranks, (long long)options->hosts, (long long)options->hosts);
    hosts->count = (int32_t)options->hosts;
    hosts->elastic = options->elastic;
    hosts->timeout_s = config->run.timeout;
    return tess__hosts_read_meet(options->meet, hosts);
}

/* In a job of Slurm with several nodes, but not started by srun. */
static void train_warn_of_idle(const struct tess__train_options *options)
{
    const int32_t idle = tess_boot_idle_nodes();
    if (idle > 0 && options->meet[0] == '\0')
        tess_log(TESS_LOG_WARN,
                 "this job of Slurm has %d nodes (SLURM_JOB_NUM_NODES), and this run uses one of "
                 "them: start it with srun to use all (srun tessera train ...)",
                 (int)idle + 1);
}

static bool train_explains(const struct tess__args *args)
{
    bool explains = false;
    for (int i = 0; i < args->count; i++)
        explains = explains || strcmp(args->word[i], "--explain") == 0 ||
                   strncmp(args->word[i], "--explain=", 10) == 0;
    return explains;
}

/* This host is one of several that wait for each other, and has failed before they have met: they
 * are sent why. Its other words may be wrong. */
static void train_report_to_hosts(struct tess__args *args)
{
    const char *meet = tess_options_peek_arguments("meet", args->count, args->word),
               *secret = tess_options_peek_arguments("secret-file", args->count, args->word);
    const struct tess__log_sink *former;
    struct tess__hosts hosts = {.count = 0};
    char why[256];
    if (meet == NULL || train_explains(args))
        return;
    snprintf(why, sizeof(why), "%.*s", (int)sizeof(why) - 1, tess_log_last_error());
    former = tess__log_redirect(&tess__log_silence);
    if (tess__hosts_read_meet(meet, &hosts) == TESS_OK &&
        (secret != NULL ? tess_secret_from_file(secret, &hosts.secret)
                        : tess_secret_from_environment(&hosts.secret)) == TESS_OK)
        tess__hosts_fail(&hosts, why);
    (void)tess__log_redirect(former);
}

/* How often the training may be started again, on how many ranks, where its checkpoints are, and
 * which hosts take part. *placed_out: another program has started this process. */
static enum tess_status train_read_restarts(struct tess__args *args, struct tess__hosts *hosts,
                                            char run[TESS_CHECKPOINT_PATH],
                                            char copies[TESS__COPIES_PATH], bool *placed_out)
{
    struct tess__train_options options;
    struct tess_config_table table = {"", train_option_table, &options};
    struct tess_boot_env env;
    struct tess_started place = {0};
    struct tess_config *config = NULL;
    struct tess__restart *restart = &hosts->restart;
    bool divided = false;
    enum tess_status status = train_open(args, &table, &env, &place, &config, &divided);
    *placed_out = place.starter != NULL;
    if (status != TESS_OK) {
        tess_boot_end(status);
        tess_config_close(config);
        return status;
    }
    if (place.starter == NULL)
        train_warn_of_idle(&options);
    hosts->secret = env.secret;
    restart->restarts = options.explain ? 0 : options.restarts;
    restart->adapts = config->placing.adapt && !options.explain;
    restart->ranks = config->mesh.rank_count;
    restart->least = (int32_t)options.min_ranks;
    status = tess_config_check_unsaved(config);
    if (status == TESS_OK && !options.explain)
        status = train_check_hosts(config, &options, &place, hosts);
    if (restart->restarts > 0 || restart->adapts)
        snprintf(run, TESS_CHECKPOINT_PATH, "%s", config->run.run);
    if (status == TESS_OK && place.starter != NULL && env.again && tess_config_saves(config))
        status = train_begin_again(
            args, tess__restart_saved(&(struct tess__restart){.run = config->run.run}) >= 0);
    restart->quiet = place.starter != NULL && place.rank > 0;
    restart->signalled = place.starter != NULL && strcmp(place.starter, "Slurm") == 0;
    if (status == TESS_OK && restart->adapts)
        status = train_check_adapt(config, &options, &env);
    if (status == TESS_OK && restart->restarts > 0)
        status = train_check_restarts(config, &options, &config->started);
    else if (status == TESS_OK && options.min_ranks > 0 && !options.explain)
        status = tess_fail(TESS_ERR_USAGE, "--min-ranks is for runs that are started again: give "
                                           "--restarts N");
    if (status == TESS_OK && restart->restarts > 0 && restart->least > 0)
        status = tess__shrink_fix(args, config);
    if (status == TESS_OK && restart->restarts > 0 && config->save.copy_steps > 0)
        status = tess__copies_make(copies);
    else if (status == TESS_OK && config->save.copy_steps > 0 && !options.explain)
        status = tess_fail(TESS_ERR_USAGE, "--redundancy is for runs that are started again: give "
                                           "--restarts N");
    if (status == TESS_OK && divided && !options.explain)
        status = tess__hosts_meet(&env, config->device.module != NULL, config->run.timeout, hosts);
    if (status != TESS_OK)
        tess__copies_remove(copies);
    tess_boot_end(status);
    tess_config_close(config);
    return status;
}

static int train_command(struct tess__call *call)
{
    char run[TESS_CHECKPOINT_PATH] = "", copies[TESS__COPIES_PATH] = "";
    struct tess__hosts hosts = {.restart = {.run = run,
                                            .copies = copies,
                                            .attempt = train_attempt,
                                            .choose = train_choose,
                                            .context = &call->args}};
    bool placed = false;
    const enum tess_status status = train_read_restarts(&call->args, &hosts, run, copies, &placed);
    if (status != TESS_OK && !placed)
        train_report_to_hosts(&call->args);
    if (status != TESS_OK)
        return tess_status_exit_code(status);
    if (hosts.count > 0)
        return tess__hosts_run(&hosts);
    if (hosts.restart.restarts > 0 || hosts.restart.adapts)
        return tess__restart_run(&hosts.restart);
    return tess_status_exit_code(train_once(&call->args, NULL));
}

const struct tess__command tess__command_train = {
    .name = "train",
    .summary = "train a model on several ranks under one strategy",
    .usage = train_usage,
    .first = "model data strategy ranks batch-size learning-rate epochs precision run resume "
             "explain",
    .table = train_option_table,
    .options_size = sizeof(struct tess__train_options),
    .reads = TESS__READS_TRAINING,
    .run = train_command,
};
