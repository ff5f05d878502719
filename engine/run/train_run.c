/*
 * A training from its start to its end: what ranks report is shown, written to the run folder,
 * and its costs come at the end.
 */
#include "base/clock.h"
#include "base/file.h"
#include "config/config_save.h"
#include "job/launch_env.h"
#include "job/memory_room.h"
#include "job/place.h"
#include "job/saving.h"
#include "run/adapt.h"
#include "run/copies.h"
#include "run/explain.h"
#include "run/fold.h"
#include "run/metrics.h"
#include "run/predicted.h"
#include "run/progress.h"
#include "run/prometheus.h"
#include "run/record.h"
#include "run/run_folder.h"
#include "run/slow.h"
#include "run/status.h"
#include "run/tensorboard.h"
#include "run/times.h"
#include "run/trace_file.h"
#include "run/train.h"
#include "run/train_print.h"
#include "run/watch.h"
#include "tessera/check.h"
#include "text/screen.h"
#include "text/words.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Between two lines of the pace of ranks, where nothing changes; of more ranks, whose lines are
 * longer, the more. */
#define TRAIN_PACE_S     10.0
#define TRAIN_PACE_RANKS 64

/* A process that is stopped is not waited for longer where its run can be started again. */
#define TRAIN_STOPPED_S 2.0

struct train {
    struct tess__run run;
    struct tess__progress progress;
    struct tess__times times;
    int64_t epochs_reported;        /* epochs whose line is on the screen */
    json_t *digests;                /* of the parameters so far, after a step; NULL between steps */
    int folder_lock;                /* of the run folder; -1 without */
    struct tess_metrics *metrics;   /* NULL without a run folder */
    struct tess_tensorboard *board; /* NULL without --tensorboard */
    struct tess__prometheus *prometheus; /* NULL without --prometheus */
    struct tess__slow *slow;             /* NULL: a single rank */
    const char **host;                   /* [ranks] of them; NULL without slow */
    char own_host[TESS__PEER_HOST_BYTES];
    struct tess__adapt adapt;
    int64_t pace_step; /* of its latest line, which was written then */
    double pace_s;
    enum tess__watch_choice watch;
    bool watches;   /* devices, into metrics */
    double watch_s; /* when they are due */
    struct tess__watcher watcher;
    struct tess_flight *flight;    /* NULL without a run folder, or where it has no record */
    char failed[512];              /* why the ranks were ended; "": they were not, or by the user */
    struct tess__history *history; /* NULL: the training is not started again */
    int first_pid;                 /* of many ranks, as they are started */
    char cores[TESS__CORES_BYTES];
};

/* ---- messages -------------------------------------------------------------------------------- */

/* Logs that cannot be written are a warning: training goes on, and their close fails. */
static void train_log(struct train *train, json_t *line)
{
    (void)tess_metrics_write(train->metrics, line);
}

static void train_log_scalars(struct train *train, int64_t step, const struct tess_scalar *scalar,
                              size_t count)
{
    (void)tess_tensorboard_write(train->board, step, scalar, (int32_t)count);
}

/* The times of an epoch belong below its line; some ranks' may come later than that. */
static void train_print_times(struct train *train)
{
    if (!tess__times_complete(&train->times, train->epochs_reported - 1))
        return;
    tess__progress_clear(&train->progress);
    tess__times_print(&train->times);
    train_log(train, tess__times_record(&train->times));
}

/* The digests of a step come parameter by parameter; all of them are one line. */
static enum tess_status train_take_digest(struct train *train,
                                          const struct tess__run_digest *digest)
{
    const int32_t params = tess_engine_param_count(train->run.planned);
    if (digest->index < 0 || digest->index >= params)
        TESS_FAIL(TESS_ERR_INTERNAL, "a digest of parameter %d of %d", digest->index, params);
    if (!train->digests)
        train->digests = json_object();
    TESS_TRY(tess__record_digest(&train->run, digest, train->digests));
    if (digest->index + 1 < params)
        return TESS_OK;
    json_t *line = json_pack("{s:{s:I, s:o}}", "digest", "step", (json_int_t)digest->step,
                             "tensors", train->digests);
    train->digests = NULL;
    train_log(train, line);
    return TESS_OK;
}

static void train_show_step(struct train *train, const struct tess__run_step *step)
{
    const struct tess__words *words = &train->progress.words;
    char speed[48];
    const struct tess_scalar scalar[] = {
        {"train/loss", step->result.loss},
        {"train/accuracy", step->result.accuracy},
        {"train/learning_rate", step->result.rate},
        {"train/grad_norm", step->result.grad_norm < 0 ? NAN : step->result.grad_norm},
        {"train/loss_scale", step->result.loss_scale},
        {speed, words->rate_of_row * step->samples_per_s},
        {"speed/comm_share", step->comm_share},
    };
    snprintf(speed, sizeof(speed), "speed/%s_per_s", words->counted);
    tess__prometheus_step(train->prometheus, step);
    train_log(train, tess__record_step(&train->run, step));
    train_log_scalars(train, step->result.step, scalar, sizeof(scalar) / sizeof(scalar[0]));
}

static void train_show_epoch(struct train *train, const struct tess__run_epoch *epoch)
{
    const struct tess_scalar scalar[] = {
        {"validation/loss", epoch->val_loss},
        {"validation/accuracy", epoch->val_accuracy},
    };
    tess__prometheus_epoch(train->prometheus, epoch);
    train_log(train, tess__record_epoch(&train->run, epoch));
    train_log_scalars(train, epoch->step, scalar, sizeof(scalar) / sizeof(scalar[0]));
}

static void train_show_validation(struct train *train,
                                  const struct tess__run_validation *validation)
{
    const struct tess_scalar scalar[] = {
        {"validation/loss", validation->loss},
        {"validation/accuracy", validation->accuracy},
    };
    tess__progress_validation(&train->progress, validation);
    tess__prometheus_validation(train->prometheus, validation);
    train_log(train, tess__record_validation(&train->run, validation));
    train_log_scalars(train, validation->step, scalar, sizeof(scalar) / sizeof(scalar[0]));
}

/* A checkpoint that fails costs what it would have kept: training goes on. */
static void train_show_saved(struct train *train, const struct tess__run_saved *saved)
{
    tess__prometheus_saved(train->prometheus, saved);
    if (saved->saved && saved->why[0] != '\0') {
        tess__progress_clear(&train->progress);
        tess_log(TESS_LOG_WARN, "step %" PRId64 " is saved, but older checkpoints stay: %s",
                 saved->step, saved->why);
    }
    if (saved->saved) {
        train_log(train, tess__record_saved(saved));
        return;
    }
    tess__progress_clear(&train->progress);
    tess_log(TESS_LOG_WARN, "step %" PRId64 " is not saved: %s", saved->step, saved->why);
}

static void train_write_pace(struct train *train, bool changed)
{
    if (!train->slow || (tess__slow_step(train->slow) == train->pace_step && !changed))
        return;
    train->pace_step = tess__slow_step(train->slow);
    train->pace_s = tess_clock_s();
    train_log(train, tess__slow_record(train->slow, &train->run.config->mesh, train->host));
}

/* Who holds the others up is said once, when it begins and when it ends. */
static void train_take_pace(struct train *train, const struct tess__message *message)
{
    const char *text;
    bool changed = false;
    if (!train->slow || !tess__slow_take(train->slow, message))
        return;
    while ((text = tess__slow_next(train->slow))) {
        tess__progress_clear(&train->progress);
        tess_log(TESS_LOG_WARN, "%s", text);
        changed = true;
    }
    if (tess__adapt_decide(&train->adapt, &train->run, train->history, train->slow)) {
        tess__progress_clear(&train->progress);
        tess_log(TESS_LOG_WARN, "%s", train->adapt.text);
        train_log(train, tess__record_adapt(&train->adapt));
    }
    tess__prometheus_pace(train->prometheus, train->slow, train->host);
    const double period_s =
        TRAIN_PACE_S * fmax(1, (double)train->run.rank_count / TRAIN_PACE_RANKS);
    if (changed || tess_clock_s() >= train->pace_s + period_s)
        train_write_pace(train, changed);
}

static enum tess_status train_message(void *context, const struct tess__message *message)
{
    struct train *train = context;
    enum tess_status status = TESS_OK;
    union {
        struct tess__run_step step;
        struct tess__run_epoch epoch;
        struct tess__run_validation validation;
        struct tess__run_digest digest;
        struct tess__run_saved saved;
    } content;
    memcpy(&content, message->payload, sizeof(content));
    switch ((enum tess__run_kind)message->kind) {
    case TESS__RUN_STEP:
        tess__progress_step(&train->progress, &content.step);
        if (content.step.recorded)
            train_show_step(train, &content.step);
        break;
    case TESS__RUN_EPOCH:
        tess__progress_epoch(&train->progress, &content.epoch);
        train_show_epoch(train, &content.epoch);
        train->epochs_reported = content.epoch.epoch + 1;
        train_print_times(train);
        break;
    case TESS__RUN_VALIDATION:
        train_show_validation(train, &content.validation);
        break;
    case TESS__RUN_TIMES:
        tess__times_take(&train->times, message);
        train_print_times(train);
        break;
    case TESS__RUN_DIGEST:
        status = train_take_digest(train, &content.digest);
        break;
    case TESS__RUN_SAVED:
        train_show_saved(train, &content.saved);
        break;
    case TESS__RUN_PACE:
    case TESS__RUN_LINKS:
        train_take_pace(train, message);
        break;
    case TESS__RUN_FINAL:
    case TESS__RUN_CHUNK:
    case TESS__RUN_RANK:
    case TESS__RUN_USUAL:
        tess__run_keep(&train->run, message);
        break;
    }
    if (status != TESS_OK)
        tess__progress_clear(&train->progress);
    return status;
}

static void train_tick(void *context)
{
    struct train *train = context;
    tess__prometheus_tick(train->prometheus);
    if (!train->watches || tess_clock_s() < train->watch_s)
        return;
    train->watch_s = tess_clock_s() + TESS__WATCH_PERIOD_S;
    tess__watch_write(&train->watcher, &train->run, train->watch, train->metrics);
}

/* Of many ranks one line, when the last of them is started. */
static void train_print_ranks(struct train *train, int32_t rank, int pid, const char *cores)
{
    const bool threads = train->run.config->device.rank_mode == TESS_RANKS_THREADS;
    const int32_t last = train->run.rank_count - 1;
    if (rank == 0) {
        train->first_pid = pid;
        snprintf(train->cores, sizeof(train->cores), "%s", cores);
    } else if (strcmp(cores, train->cores) != 0) {
        snprintf(train->cores, sizeof(train->cores), "each on cores of its own");
    }
    if (rank != last)
        return;
    printf("ranks 0 to %d: pid%s %d", last, threads ? "" : "s", train->first_pid);
    if (threads)
        printf(" (threads)");
    else
        printf(" to %d", pid);
    printf(", %s\n", train->cores);
}

static void train_print_rank(const struct train *train, int32_t rank, int pid, const char *cores)
{
    const bool threads = train->run.config->device.rank_mode == TESS_RANKS_THREADS;
    /* Where all ranks are on this host, a rank's number among those of its host is its number. */
    const struct tess_started *own = &train->run.config->started;
    printf("rank %d of %d (local rank %d): pid %d%s, %s", rank, train->run.rank_count,
           own->starter ? own->local_rank : rank, pid, threads ? " (a thread)" : "", cores);
    if (tess__run_has_mesh(&train->run)) {
        const struct tess_mesh mesh = tess_mesh_at(&train->run.config->mesh, rank);
        char place[TESS__MESH_TEXT_BYTES];
        printf("; %s", tess__mesh_text(mesh.at, place));
    }
    putchar('\n');
}

static void train_started(void *context, int32_t rank, int pid, const char *cores,
                          const struct tess_board *board)
{
    struct train *train = context;
    const struct tess_started *own = &train->run.config->started;
    if (train->run.rank_count > TESS__FOLD_NONE && !train->run.peers)
        train_print_ranks(train, rank, pid, cores);
    else
        train_print_rank(train, rank, pid, cores);
    if (train->run.peers) {
        const int32_t hosts = train->run.placed->host_count;
        printf("started by %s on %d host%s, over %s\n", own->starter, hosts, hosts == 1 ? "" : "s",
               train->run.config->device.comm->name);
    }
    if (train->run.rank_count > 1) /* a single rank does not wait */
        tess__progress_watch(&train->progress, board);
    if (rank == train->run.rank_count - 1 || train->run.peers)
        fflush(stdout);
}

static void train_before_line(void *context)
{
    struct train *train = context;
    tess__progress_clear(&train->progress);
}

static void train_failed(void *context, enum tess_status status, const char *why)
{
    struct train *train = context;
    if (status != TESS_ERR_INTERRUPTED && status != TESS_ERR_USAGE)
        snprintf(train->failed, sizeof(train->failed), "%s", why);
}

/* SIGUSR2: what do the ranks do? */
static void train_report(void *context)
{
    struct train *train = context;
    struct tess__status status;
    if (train->flight == NULL) {
        tess_log(TESS_LOG_INFO, "a report of what the ranks do needs a run folder: --run DIR");
        return;
    }
    tess__progress_clear(&train->progress);
    fflush(stdout);
    if (tess__status_read(train->run.config->run.run, &status) == TESS_OK) {
        tess__status_find(&status);
        tess__status_print(&status, 0, stderr);
    }
    tess__status_close(&status);
}

/* The record of the ranks that are started here. */
static void train_open_flight(struct train *train)
{
    const struct tess__run *run = &train->run;
    struct tess_flight_about about = {.rank_count = run->rank_count,
                                      .first = run->peers ? run->peers->env.rank : 0};
    about.end = run->peers ? about.first + 1 : run->rank_count;
    about.unit_name = tess_engine_unit_names(run->planned, &about.unit_count);
    if (run->config->run.run[0])
        train->flight = tess_flight_open(run->config->run.run, &about);
    train->run.flight = train->flight;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Before ranks run, when it is known where. */
static enum tess_status train_open_slow(struct train *train)
{
    const struct tess__run *run = &train->run;
    if (run->rank_count == 1)
        return TESS_OK;
    if (gethostname(train->own_host, sizeof(train->own_host) - 1) != 0)
        snprintf(train->own_host, sizeof(train->own_host), "this one");
    train->host = calloc((size_t)run->rank_count, sizeof(*train->host));
    for (int32_t r = 0; r < run->rank_count && train->host; r++)
        train->host[r] = run->peers ? tess__peers_host(run->peers, r) : train->own_host;
    train->slow = train->host ? tess__slow_open(&run->config->mesh, train->host) : NULL;
    if (!train->slow)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the pace of %d ranks", run->rank_count);
    if (run->placed->topology)
        tess__slow_know(train->slow, run->placed->topology);
    return TESS_OK;
}

/* Where a process that is lost is not the end of the training. */
static void train_supervise(const struct train *train, struct tess__launch *launch)
{
    if (train->history == NULL || !train->history->again)
        return;
    launch->stopped_s = fmin(TRAIN_STOPPED_S, launch->stopped_s);
    launch->lost = &train->history->lost_ranks;
}

static enum tess_status train_show(struct train *train)
{
    struct tess__launch launch = tess__run_launch(&train->run);
    launch.context = train;
    launch.message = train_message;
    launch.started = train_started;
    launch.failed = train_failed;
    launch.report = train_report;
    launch.before_line = train_before_line;
    train_supervise(train, &launch);
    train->watches =
        train->metrics && (train->watch == TESS__WATCH_ON ||
                           (train->watch == TESS__WATCH_AUTO && train->run.config->device.module));
    if (train->watches || train->prometheus) {
        launch.tick = train_tick;
        launch.tick_s = train->prometheus ? TESS__PROMETHEUS_PERIOD_S : TESS__WATCH_PERIOD_S;
    }
    TESS_TRY(train_open_slow(train));
    TESS_TRY(tess__times_open(&train->times, train->run.rank_count));
    TESS_TRY(tess__progress_open(&train->progress, &train->run));
    train->run.live = train->progress.terminal;
    tess__train_print_start(&train->run);
    tess__train_print_notes(&train->run);
    if (train->prometheus)
        printf("prometheus: %s\n", tess__prometheus_place(train->prometheus));
    if (train->metrics && tess_metrics_is_empty(train->metrics))
        TESS_TRY(tess_metrics_write(train->metrics, tess__record_head(&train->run)));
    enum tess_status status = tess__launch_run(&launch);
    train_write_pace(train, false);
    if (train->failed[0] && train->flight)
        tess__status_report_failure(train->run.config->run.run, train->failed);
    if (train->run.final.steps > 0) { /* the result is there, whatever became of its files */
        struct tess__predicted predicted;
        tess__predicted_make(&train->run, &predicted);
        tess__train_print_end(&train->run, &predicted, status == TESS_OK);
        train_log(train, tess__record_final(&train->run, &predicted, train->history));
    }
    return status;
}

static enum tess_status train_launch(struct train *train)
{
    FILE *former = tess__screen_begin();
    const enum tess_status status = train_show(train);
    tess__screen_end(former);
    return status;
}

/* Train, and write the time lines however that ended. */
static enum tess_status train_launch_traced(struct train *train,
                                            const struct tess__train_options *options)
{
    train_open_flight(train);
    if (!options->trace[0])
        return train_launch(train);
    TESS_TRY(tess_file_check(options->trace, TESS_FILE_TEXT, "--trace"));
    if (train->run.config->device.module)
        tess_log(TESS_LOG_WARN,
                 "--trace draws what the host does, which runs ahead of the device; the device's "
                 "own profiler (nsys profile) shows the same names where they are computed");
    TESS_TRY(tess__trace_open(&train->run, options->trace_first, options->trace_steps,
                              &train->run.trace));
    enum tess_status status = train_launch(train);
    TESS_KEEP(status, tess__trace_write(&train->run, options->trace));
    tess_trace_close(train->run.trace);
    return status;
}

/* One rank of several that others started: rank 0 prints and writes for all of them. */
static enum tess_status train_launch_placed(struct train *train, struct tess_config *config,
                                            const struct tess__train_options *options)
{
    if (options->trace[0])
        TESS_FAIL(TESS_ERR_USAGE,
                  "--trace draws ranks that are started from here, and %s has "
                  "started these: leave it out",
                  options->placed->starter);
    if (train->run.config->device.missing)
        TESS_FAIL(TESS_ERR_DEVICE, "%s", train->run.config->device.why);
    TESS_TRY(tess__run_place(&train->run, config, options->placed));
    /* With as many threads as this rank has cores, which is known now. */
    TESS_TRY(tess__memory_check(&train->run, options->advise, options->advise_context));
    if (train->history != NULL)
        train->history->met = true;
    train_open_flight(train);
    if (options->placed->rank == 0)
        return train_launch(train);
    struct tess__launch launch = tess__run_launch(&train->run);
    launch.context = train; /* which begins with the run */
    launch.report = train_report;
    train_supervise(train, &launch);
    return tess__launch_run(&launch);
}

/* Of ranks that others started, rank 0 explains what all have found. */
static enum tess_status train_explain(struct train *train, struct tess_config *config,
                                      const struct tess__train_options *options)
{
    if (options->placed)
        TESS_TRY(tess__run_place(&train->run, config, options->placed));
    if (options->placed && options->placed->rank != 0)
        return TESS_OK;
    FILE *former = tess__screen_begin();
    const enum tess_status status =
        tess__explain_print(&train->run, (int32_t)options->explain_rank);
    tess__screen_end(former);
    return status;
}

/* What is written after the last step is looked at before the first. */
static enum tess_status train_check_weights(const char *run)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/weights.safetensors", run) >= (int)sizeof(path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is too long");
    return tess_file_check(path, TESS_FILE_WHOLE, "--save-weights");
}

static enum tess_status train_open_folder(struct train *train, const struct tess_config *config)
{
    const struct tess_run_options *options = &config->run;
    const bool resumes = config->checkpoint[0] != '\0';
    if (options->overwrite && options->init[0])
        TESS_TRY(tess__run_folder_check_init(options->run, options->init));
    TESS_TRY(tess__run_folder_open(options->run,
                                   resumes              ? TESS__FOLDER_RESUME
                                   : options->overwrite ? TESS__FOLDER_OVERWRITE
                                                        : TESS__FOLDER_NEW,
                                   &train->folder_lock));
    return tess_metrics_open(options->run, resumes ? tess_engine_step_done(train->run.planned) : -1,
                             &train->metrics);
}

/* The files of a run. */
static enum tess_status train_open_files(struct train *train, const struct tess_config *config,
                                         const struct tess__train_options *options)
{
    if (config->run.run[0])
        TESS_TRY(train_open_folder(train, config));
    train->run.keep_digests = train->metrics != NULL;
    if (config->run.run[0] && config->run.save_weights)
        TESS_TRY(train_check_weights(config->run.run));
    if (options->tensorboard[0])
        TESS_TRY(tess_tensorboard_open(options->tensorboard, &train->board));
    return tess__prometheus_open(options->prometheus, &train->run, &train->prometheus);
}

enum tess_status tess__train_run(struct tess_config *config, const struct tess_dataset *dataset,
                                 const struct tess__train_options *options, double start_s,
                                 struct tess__trained *trained_out)
{
    struct train train = {.folder_lock = -1};
    enum tess_status status;
    config->saves = tess_config_saves(config);
    if (!config->saves && config->run.run[0] != '\0' && config->run.fp8 == TESS_FP8_HISTORY)
        tess_log(TESS_LOG_WARN, "no checkpoints of this run: they would lack the scales of earlier "
                                "steps that --fp8 history keeps; --fp8 now has none");
    TESS_TRY_GOTO(status, close_run,
                  options->explain ? tess__run_open_planned(&train.run, config, dataset)
                                   : tess__run_open(&train.run, config, dataset));
    train.run.start_s = start_s;
    train.run.keep_pace = true;
    train.run.records = config->run.run[0] != '\0' || options->tensorboard[0] != '\0' ||
                        options->prometheus[0] != '\0';
    train.watch = (enum tess__watch_choice)options->watch;
    train.history = options->history;
    tess__adapt_open(&train.run, options->history);
    if (options->explain) {
        status = train_explain(&train, config, options);
        goto close_run;
    }
    if (config->device.missing) {
        status =
            tess_fail(TESS_ERR_DEVICE, "%s; --device cpu computes on the host", config->device.why);
        goto close_run;
    }
    TESS_TRY_GOTO(status, close_run,
                  tess__memory_check(&train.run, options->advise, options->advise_context));
    TESS_TRY_GOTO(
        status, close_run,
        tess__copies_check(&train.run, options->placed != NULL ? options->placed->local_count : 0));
    if (!options->placed || options->placed->rank == 0)
        status = train_open_files(&train, config, options);
    if (status == TESS_OK && options->placed)
        status = train_launch_placed(&train, config, options);
    else if (status == TESS_OK)
        status = train_launch_traced(&train, options);
    TESS_KEEP(status, tess_metrics_close(train.metrics));
    TESS_KEEP(status, tess_tensorboard_close(train.board));
    tess__prometheus_close(train.prometheus);
    tess__slow_close(train.slow);
    tess__times_close(&train.times);
    tess__progress_close(&train.progress);
    free(train.host);
    tess_flight_close(train.flight);
    tess__run_folder_close(train.folder_lock);
    json_decref(train.digests);
    tess__watch_close(&train.watcher);
    trained_out->final = train.run.final;

close_run:
    tess__peers_close(train.run.peers);
    tess__run_close(&train.run);
    return status;
}
