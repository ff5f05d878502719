/* Jobs, the public functions of tessera/engine.h: the caller's side. What a rank does is in
 * job_rank.c, what train adds for a user at a terminal in engine/run. */
#include "job/job.h"

#include "base/options.h"
#include "job/place.h"
#include "tessera/check.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* After a failure ranks end within this time, or are killed where they are processes. */
#define END_LIMIT_S 4.0
/* Steps of an epoch that batches of the caller pretend to; the product with a batch fits. */
#define EPOCH_STEPS_MAX (INT64_C(1) << 38)

/* ---- messages -------------------------------------------------------------------------------- */

/* An error is returned by the call, and is tess_log_last_error(). */
static void job_line(void *context, enum tess_log_level level, const char *text)
{
    const struct tess_job *job = context;

    if (level != TESS_LOG_ERROR && job->message != NULL)
        job->message(job->context, level, text);
}

/* What is the calling thread's own, while it is in a function of the library. */
struct job_caller {
    const struct tess__log_sink *sink;
    locale_t locale;
};

static struct job_caller job_enter(const struct tess_job *job)
{
    return (struct job_caller){tess__log_redirect(&job->sink), tess__job_locale()};
}

static void job_leave(const struct job_caller *caller)
{
    tess__log_redirect(caller->sink);
    uselocale(caller->locale);
}

/* Until the function returns messages of this thread are the job's, and numbers have a point. */
#define JOB_ENTER(job)                                                                             \
    __attribute__((cleanup(job_leave), unused)) const struct job_caller caller_ = job_enter(job)

/* ---- opening --------------------------------------------------------------------------------- */

/* The registry of parts fills itself when it is first used, which is for one thread at a time. */
static pthread_mutex_t job_registry = PTHREAD_MUTEX_INITIALIZER;

static enum tess_status job_configure(struct tess_job *job, const struct tess_job_setup *setup,
                                      const struct tess_started *place)
{
    char **word = calloc((size_t)setup->option_count + 1, sizeof(*word));
    int count = 0;
    enum tess_status status = word != NULL ? TESS_OK : TESS_ERR_MEMORY;

    if (status == TESS_OK && setup->file != NULL)
        status = (word[count++] = strdup(setup->file)) != NULL ? TESS_OK : TESS_ERR_MEMORY;
    for (int32_t i = 0; i < setup->option_count && status == TESS_OK; i++, count++)
        if (asprintf(&word[count], "--%s=%s", setup->option[i].name, setup->option[i].value) < 0)
            status = TESS_ERR_MEMORY;
    if (status != TESS_OK)
        tess_fail(status, "no memory for %d options", (int)setup->option_count);
    pthread_mutex_lock(&job_registry);
    if (status == TESS_OK)
        status = tess_config_open_placed(count, word, NULL, 0, place, &job->config);
    pthread_mutex_unlock(&job_registry);
    while (word != NULL && count > 0)
        free(word[--count]);
    free(word);
    return status;
}

static enum tess_status job_choose_mode(struct tess_job *job, enum tess_job_mode mode,
                                        bool started_elsewhere)
{
    struct tess_device_plan *device = &job->config->device;
    const uint32_t ranks = device->module != NULL ? device->comm->device : device->comm->host;
    const bool threads = (ranks & (TESS_COMM_ALONE | TESS_COMM_THREADS)) != 0 ||
                         device->rank_mode == TESS_RANKS_THREADS;

    job->mode = mode != TESS_JOB_AUTO ? mode
                : started_elsewhere   ? TESS_JOB_CALLER
                : threads             ? TESS_JOB_THREADS
                                      : TESS_JOB_PROCESSES;
    if (job->mode == TESS_JOB_THREADS && !threads)
        TESS_FAIL(TESS_ERR_USAGE, "communicator %s connects processes only: choose another mode",
                  device->comm->name);
    if (job->mode == TESS_JOB_CALLER && !started_elsewhere && job->config->run.ranks > 1)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "this process was not started by mpirun, srun or torchrun, so it cannot be one of "
            "%lld ranks: choose another mode",
            (long long)job->config->run.ranks);
    if (job->mode == TESS_JOB_PROCESSES && device->rank_mode == TESS_RANKS_THREADS)
        TESS_FAIL(TESS_ERR_USAGE,
                  "ranks under strategy %s are threads of one process here: choose another mode",
                  job->config->run.strategy);
    if (job->mode == TESS_JOB_THREADS)
        device->rank_mode = TESS_RANKS_THREADS;
    /* Jobs share the process's cores with others: none is bound by default. */
    if (!tess_options_is_set(job->config->options, "bind"))
        job->config->run.bind = false;
    return TESS_OK;
}

/* A data set of one batch, whose rows the caller gives before each step. */
static enum tess_status job_give_data(struct tess_job *job, const struct tess_job_data *data)
{
    struct tess_config *config = job->config;
    const bool tokens = config->model->tokens;
    const int64_t steps = config->run.steps;

    if (steps == 0)
        TESS_FAIL(TESS_ERR_USAGE, "batches of the caller have no epochs: set the option steps");
    if (data->row.rank != (tokens ? 1 : 3))
        TESS_FAIL(TESS_ERR_USAGE, "a sample of model %s has the shape %s, not %d dimension%s",
                  config->model->name, tokens ? "[T]" : "[H, W, C]", (int)data->row.rank,
                  data->row.rank == 1 ? "" : "s");
    if (data->class_count < 1 || tess_shape_count(&data->row) < 1)
        TESS_FAIL(TESS_ERR_USAGE, "data of %d classes and %lld elements a sample cannot be learnt",
                  (int)data->class_count, (long long)tess_shape_count(&data->row));
    config->loader.workers = 0;
    config->loader.shuffle = false;
    job->given = (struct tess_dataset){
        .tokens = tokens,
        .row = data->row,
        .class_count = data->class_count,
        .labels = tokens ? data->row.dim[0] : 1,
        .train.count = config->run.batch_size * (steps < EPOCH_STEPS_MAX ? steps : EPOCH_STEPS_MAX),
        .test.count = config->run.batch_size,
        .deviation = 1,
        .given_rows = config->run.batch_size,
        .masked = true,
    };
    return TESS_OK;
}

/* Elements of a batch's samples and of its labels. */
static int64_t job_input_count(const struct tess_job *job)
{
    return job->config->run.batch_size * tess_shape_count(&job->given.row);
}

static int64_t job_label_count(const struct tess_job *job)
{
    return job->config->run.batch_size * job->given.labels;
}

static enum tess_status job_open_exchange(struct tess_job *job)
{
    int64_t most = job->dataset == NULL ? job_input_count(job) + job_label_count(job) : 1;

    for (int32_t p = 0; p < tess_job_param_count(job); p++) {
        const struct tess_shape shape = tess_engine_param_shape(job->run.planned, p);
        const int64_t count = tess_shape_count(&shape);
        most = count > most ? count : most;
    }
    job->exchange_bytes = (size_t)most * sizeof(*job->exchange);
    job->exchange = mmap(NULL, job->exchange_bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (job->exchange == MAP_FAILED) {
        job->exchange = NULL;
        TESS_FAIL(TESS_ERR_MEMORY, "cannot map %zu bytes to share with the ranks: %s",
                  job->exchange_bytes, strerror(errno));
    }
    if (job->dataset == NULL) {
        job->given.given = job->exchange;
        job->given.given_label = (int32_t *)(void *)(job->exchange + job_input_count(job));
    }
    return TESS_OK;
}

static enum tess_status job_open(struct tess_job *job, const struct tess_job_setup *setup)
{
    JOB_ENTER(job);
    struct tess_started place = {.local_rank = -1};

    if (setup->mode == TESS_JOB_AUTO || setup->mode == TESS_JOB_CALLER)
        TESS_TRY(tess__peers_find(&job->env, &place));
    const bool started_elsewhere = place.starter != NULL;
    TESS_TRY(job_configure(job, setup, started_elsewhere ? &place : NULL));
    TESS_TRY(job_choose_mode(job, setup->mode, started_elsewhere));
    if (setup->data != NULL)
        TESS_TRY(job_give_data(job, setup->data));
    else
        TESS_TRY(tess__run_open_data(job->config, &job->dataset));
    TESS_TRY(
        tess__run_open(&job->run, job->config, job->dataset != NULL ? job->dataset : &job->given));
    return job_open_exchange(job);
}

enum tess_status tess_job_open(const struct tess_job_setup *setup, struct tess_job **job_out)
{
    struct tess_job *job = calloc(1, sizeof(*job));

    if (job == NULL)
        return TESS_ERR_MEMORY;
    job->message = setup->message;
    job->context = setup->context;
    job->sink = (struct tess__log_sink){job_line, job};
    const enum tess_status status = job_open(job, setup);
    if (status == TESS_OK)
        *job_out = job;
    else
        tess_job_close(job);
    return status;
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* The first reason is kept; what follows from it, ABORTED on other ranks, is not shown. */
static void job_take(struct tess_job *job, int32_t r, const struct tess__job_reply *from,
                     struct tess__job_reply *reply)
{
    if (from->status == TESS_OK && reply->status == TESS_OK && r == 0) {
        *reply = *from;
    } else if (from->status != TESS_OK &&
               (reply->status == TESS_OK || reply->status == TESS_ERR_ABORTED)) {
        reply->status = from->status;
        if (job->run.rank_count > 1)
            snprintf(reply->why, sizeof(reply->why), "rank %d: %.*s", (int)r,
                     (int)sizeof(reply->why) - 32, from->why);
        else
            memcpy(reply->why, from->why, sizeof(reply->why));
    }
}

/* The answers of all ranks. One whose process has gone does not answer; the others are ended. */
static void job_collect(struct tess_job *job, struct tess__job_reply *reply)
{
    struct pollfd *watch = job->watch;
    struct tess__job_reply answer;
    int32_t left = job->run.rank_count;

    for (int32_t r = 0; r < left; r++)
        watch[r] = (struct pollfd){.fd = job->rank[r].caller_socket, .events = POLLIN};
    while (left > 0) {
        if (poll(watch, (nfds_t)job->run.rank_count, -1) < 0)
            continue; /* EINTR: a handler of the caller's process */
        for (int32_t r = 0; r < job->run.rank_count; r++) {
            if (watch[r].revents == 0)
                continue;
            if (recv(watch[r].fd, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer)) {
                answer.status = TESS_ERR_COMM;
                tess__job_rank_death(&job->rank[r], answer.why, sizeof(answer.why));
                tess_world_abort(job->world, r, answer.why);
            }
            job_take(job, r, &answer, reply);
            watch[r].fd = -1;
            left--;
        }
    }
}

/* Keep what has failed. A file that cannot be written changes nothing of the ranks. */
static enum tess_status job_conclude(struct tess_job *job, const struct tess__job_reply *reply,
                                     bool file)
{
    if (reply->status == TESS_OK)
        return TESS_OK;
    if (!file || reply->status != TESS_ERR_IO) {
        job->failed = true;
        memcpy(job->why, reply->why, sizeof(job->why));
    }
    TESS_FAIL(reply->status, "%s", reply->why);
}

static enum tess_status job_check(const struct tess_job *job)
{
    if (job->failed)
        TESS_FAIL(TESS_ERR_ABORTED, "the job has failed before: %s", job->why);
    if (!job->started)
        TESS_FAIL(TESS_ERR_USAGE, "the job has not been started: call tess_job_start first");
    return TESS_OK;
}

static enum tess_status job_order(struct tess_job *job, const struct tess__job_order *order,
                                  struct tess__job_reply *reply)
{
    *reply = (struct tess__job_reply){.status = TESS_OK};
    if (job->mode == TESS_JOB_CALLER) {
        tess__job_rank_obey(&job->rank[0], order, reply);
    } else {
        /* One that is gone is found when its answer is missing. */
        for (int32_t r = 0; r < job->run.rank_count; r++)
            (void)send(job->rank[r].caller_socket, order, sizeof(*order), MSG_NOSIGNAL);
        job_collect(job, reply);
    }
    return job_conclude(job, reply, order->verb == TESS__JOB_SAVE);
}

/* ---- starting and ending --------------------------------------------------------------------- */

static enum tess_status job_start(struct tess_job *job)
{
    struct tess__job_reply reply = {.status = TESS_OK};
    const bool processes = job->mode == TESS_JOB_PROCESSES;

    const size_t ranks = (size_t)job->run.rank_count;
    job->rank = calloc(ranks, sizeof(*job->rank));
    job->watch = calloc(ranks, sizeof(*job->watch));
    if (job->rank == NULL || job->watch == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a job of %d ranks", job->run.rank_count);
    for (int32_t r = 0; r < job->run.rank_count; r++) {
        job->rank[r].job = job;
        job->rank[r].caller_socket = -1;
    }
    if (job->config->started.starter != NULL) /* then it is in mode CALLER */
        TESS_TRY(tess__run_place(&job->run, job->config, &job->env));
    TESS_TRY(tess_world_open(job->run.rank_count,
                             processes ? TESS_RANKS_PROCESSES : TESS_RANKS_THREADS, &job->world));
    if (job->mode == TESS_JOB_CALLER) {
        struct tess__job_rank *rank = &job->rank[0];
        rank->rank = (struct tess__rank){.rank = job->config->started.rank,
                                         .rank_count = job->run.rank_count,
                                         .world = job->world,
                                         .message_fd = -1};
        tess__job_rank_open(rank, &reply);
        return job_conclude(job, &reply, false);
    }
    for (int32_t r = 0; r < job->run.rank_count; r++) {
        const enum tess_status status = tess__job_rank_start(job, r);
        if (status != TESS_OK) {
            tess_world_abort(job->world, r, tess_log_last_error());
            return status;
        }
    }
    job_collect(job, &reply);
    return job_conclude(job, &reply, false);
}

enum tess_status tess_job_start(struct tess_job *job)
{
    JOB_ENTER(job);

    if (job->started)
        TESS_FAIL(TESS_ERR_USAGE, "the job has been started before");
    job->started = true;
    const enum tess_status status = job_start(job);
    if (status != TESS_OK && !job->failed) {
        job->failed = true;
        snprintf(job->why, sizeof(job->why), "%.*s", (int)sizeof(job->why) - 1,
                 tess_log_last_error());
    }
    return status;
}

static void job_end_ranks(struct tess_job *job)
{
    const double limit_s = job->failed ? END_LIMIT_S : job->config->run.timeout;

    if (job->failed)
        tess_world_abort(job->world, -1, "the job is closed");
    if (job->mode == TESS_JOB_CALLER)
        tess__job_rank_close(&job->rank[0]);
    for (int32_t r = 0; r < job->run.rank_count; r++)
        if (job->rank[r].caller_socket >= 0)
            shutdown(job->rank[r].caller_socket, SHUT_RDWR);
    for (int32_t r = 0; r < job->run.rank_count; r++) {
        if (job->rank[r].started)
            tess__job_rank_end(&job->rank[r], limit_s);
        if (job->rank[r].caller_socket >= 0)
            close(job->rank[r].caller_socket);
    }
    tess_world_close(job->world);
}

static void job_end(struct tess_job *job)
{
    JOB_ENTER(job);

    if (job->world != NULL)
        job_end_ranks(job);
    tess__peers_close(job->run.peers);
    tess__run_close(&job->run);
    if (job->exchange != NULL)
        munmap(job->exchange, job->exchange_bytes);
    tess_dataset_close(job->dataset);
    tess_config_close(job->config);
    free(job->rank);
    free(job->watch);
}

void tess_job_close(struct tess_job *job)
{
    if (job == NULL)
        return;
    job_end(job);
    free(job);
}

/* ---- running --------------------------------------------------------------------------------- */

/* The caller's batch, where the ranks read it. */
static enum tess_status job_give(struct tess_job *job, const struct tess_job_batch *batch)
{
    const int32_t classes = job->given.class_count;

    if ((batch == NULL) != (job->dataset != NULL))
        TESS_FAIL(TESS_ERR_USAGE, "%s",
                  batch == NULL ? "the job was opened for batches of the caller: give one"
                                : "the job was opened with a data set: batches need "
                                  "tess_job_setup.data");
    if (batch == NULL)
        return TESS_OK;
    for (int64_t i = 0; i < job_label_count(job); i++)
        if ((batch->label[i] < 0 && batch->label[i] != -1 && batch->label[i] != -100) ||
            batch->label[i] >= classes)
            TESS_FAIL(TESS_ERR_USAGE, "label %lld of the batch is %d, and there are %d classes",
                      (long long)i, (int)batch->label[i], (int)classes);
    for (int64_t i = 0; i < job_input_count(job) && job->given.tokens; i++) {
        const int32_t token = ((const int32_t *)batch->input)[i];
        if (token < 0 || token >= classes)
            TESS_FAIL(TESS_ERR_USAGE, "token %lld of the batch is %d, and the vocabulary has %d",
                      (long long)i, (int)token, (int)classes);
    }
    memcpy(job->exchange, batch->input, (size_t)job_input_count(job) * sizeof(*job->exchange));
    memcpy(job->exchange + job_input_count(job), batch->label,
           (size_t)job_label_count(job) * sizeof(*batch->label));
    return TESS_OK;
}

enum tess_status tess_job_step(struct tess_job *job, int64_t count,
                               const struct tess_job_batch *batch,
                               struct tess_job_metrics *metrics_out)
{
    JOB_ENTER(job);
    const struct tess__job_order order = {.verb = TESS__JOB_STEP, .count = count};
    struct tess__job_reply reply;

    TESS_TRY(job_check(job));
    if (count < 1 || count > tess_job_step_count(job) - job->step)
        TESS_FAIL(TESS_ERR_USAGE,
                  "cannot train %lld steps: %lld of %lld are left; the options steps or epochs "
                  "set how many there are",
                  (long long)count, (long long)(tess_job_step_count(job) - job->step),
                  (long long)tess_job_step_count(job));
    if (batch != NULL && count != 1)
        TESS_FAIL(TESS_ERR_USAGE, "a batch is for one step, not for %lld", (long long)count);
    TESS_TRY(job_give(job, batch));
    TESS_TRY(job_order(job, &order, &reply));
    job->step += count;
    *metrics_out = reply.metrics;
    return TESS_OK;
}

enum tess_status tess_job_evaluate(struct tess_job *job, const struct tess_job_batch *batch,
                                   double *loss_out, double *accuracy_out)
{
    JOB_ENTER(job);
    const struct tess__job_order order = {.verb = TESS__JOB_EVALUATE};
    struct tess__job_reply reply;

    TESS_TRY(job_check(job));
    if (!job->config->run.evaluate || job->run.dataset->test.count == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "there is nothing to evaluate: the option evaluate is off, or the data set has "
                  "no test split");
    TESS_TRY(job_give(job, batch));
    TESS_TRY(job_order(job, &order, &reply));
    *loss_out = reply.loss;
    *accuracy_out = reply.accuracy;
    return TESS_OK;
}

enum tess_status tess_job_hash(struct tess_job *job, uint64_t *hash_out)
{
    JOB_ENTER(job);
    const struct tess__job_order order = {.verb = TESS__JOB_HASH};
    struct tess__job_reply reply;

    TESS_TRY(job_check(job));
    TESS_TRY(job_order(job, &order, &reply));
    *hash_out = reply.hash;
    return TESS_OK;
}

enum tess_status tess_job_param_read(struct tess_job *job, int32_t index, float *values_out)
{
    JOB_ENTER(job);
    const struct tess__job_order order = {.verb = TESS__JOB_READ, .index = index};
    struct tess__job_reply reply;

    TESS_TRY(job_check(job));
    if (index < 0 || index >= tess_job_param_count(job))
        TESS_FAIL(TESS_ERR_USAGE, "there is no parameter %d: the model has %d", (int)index,
                  (int)tess_job_param_count(job));
    TESS_TRY(job_order(job, &order, &reply));
    const struct tess_shape shape = tess_engine_param_shape(job->run.planned, index);
    memcpy(values_out, job->exchange, (size_t)tess_shape_count(&shape) * sizeof(*values_out));
    return TESS_OK;
}

enum tess_status tess_job_save(struct tess_job *job, const char *path)
{
    JOB_ENTER(job);
    struct tess__job_order order = {.verb = TESS__JOB_SAVE};
    struct tess__job_reply reply;
    char folder[PATH_MAX] = "";

    TESS_TRY(job_check(job));
    /* Of this process as it is now, which a rank's may have left. */
    if (path[0] != '/' && getcwd(folder, sizeof(folder)) == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot save to %s: no current folder: %s", path, strerror(errno));
    if (snprintf(order.path, sizeof(order.path), "%s%s%s", folder, path[0] != '/' ? "/" : "",
                 path) >= (int)sizeof(order.path))
        TESS_FAIL(TESS_ERR_USAGE, "the path of the file is longer than %d bytes", PATH_MAX);
    return job_order(job, &order, &reply);
}

/* ---- questions ------------------------------------------------------------------------------- */

int32_t tess_job_rank_count(const struct tess_job *job)
{
    return job->run.rank_count;
}

int32_t tess_job_rank(const struct tess_job *job)
{
    return job->config->started.starter != NULL ? job->config->started.rank : 0;
}

int64_t tess_job_step_count(const struct tess_job *job)
{
    return tess_engine_step_count(job->run.planned);
}

int64_t tess_job_batch_size(const struct tess_job *job)
{
    return job->config->run.batch_size;
}

struct tess_job_memory tess_job_memory_of(const struct tess_job *job, int32_t rank)
{
    return *tess__run_predicted(&job->run, rank);
}

int32_t tess_job_param_count(const struct tess_job *job)
{
    return tess_engine_param_count(job->run.planned);
}

struct tess_job_param tess_job_param_of(const struct tess_job *job, int32_t index)
{
    const struct tess_engine *engine = job->run.planned;

    return (struct tess_job_param){.name = tess_engine_param_name(engine, index),
                                   .unit = tess_engine_param_unit(engine, index),
                                   .shape = tess_engine_param_shape(engine, index)};
}

int32_t tess_job_param_find(const struct tess_job *job, const char *name)
{
    for (int32_t p = 0; p < tess_job_param_count(job); p++)
        if (strcmp(tess_engine_param_name(job->run.planned, p), name) == 0)
            return p;
    return -1;
}
