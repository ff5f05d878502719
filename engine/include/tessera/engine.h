/*
 * The engine, to embed in a program of your own: a job is a configuration and the ranks that train
 * under it.
 *
 *     open -> memory plan, parameters, counts       what a run would be; nothing is started
 *          -> start -> step, evaluate, hash, read, save, in any order -> close
 *
 * A function that fails returns a status, and tess_log_last_error() of the calling thread is one
 * sentence about it. Nothing is written to stdout or stderr and nothing ends the process. Jobs
 * share no state: several may be open at a time, each used by one thread at a time. Parts of your
 * own are registered first (tessera/registry.h).
 *
 * Where this process is one rank of a job that mpirun, srun or torchrun started, "Collective" means
 * that every process makes the same call with the same arguments. Elsewhere the caller alone makes
 * it, and its ranks follow.
 */
#ifndef TESSERA_ENGINE_H
#define TESSERA_ENGINE_H

#include "tessera/log.h"
#include "tessera/memory.h"
#include "tessera/status.h"
#include "tessera/tensor.h"

#include <stdbool.h>
#include <stdint.h>

TESS_BEGIN_DECLS

struct tess_job;

enum tess_job_mode {
    /* CALLER where the environment is that of a rank which was started by mpirun, srun or
     * torchrun; PROCESSES where the ranks' communicator requires them; else THREADS. */
    TESS_JOB_AUTO,
    TESS_JOB_THREADS, /* ranks are threads of this process, which the job starts and ends */
    /* Ranks are children of this process, forked by tess_job_start: call it before this process
     * has threads that hold locks. */
    TESS_JOB_PROCESSES,
    TESS_JOB_CALLER, /* this process is one rank, run by the thread that calls */
};

/* An option of `tessera train`, without the dashes: {"batch-size", "64"}, {"mlp.hidden", "64"}.
 * Options that print or write files (run, log-every, trace ...) have no effect. */
struct tess_job_option {
    const char *name, *value;
};

/* Batches from the caller, instead of the data set of the option `data`. */
struct tess_job_data {
    struct tess_shape row; /* of a sample: [H, W, C], or [T] for models that learn from tokens */
    int32_t class_count;   /* classes, or size of the vocabulary */
};

/* Zero it, then set what differs. All is borrowed during tess_job_open, except `context`. */
struct tess_job_setup {
    const char *file; /* YAML configuration; NULL: none. Options win over it, and it wins over the
                         environment (TESSERA_BATCH_SIZE). */
    const struct tess_job_option *option; /* [option_count] */
    int32_t option_count;
    const struct tess_job_data *data; /* NULL: the data set of the option `data` */
    enum tess_job_mode mode;
    /* Warnings and notes, one sentence each; by any thread of this process, NULL drops them. */
    void (*message)(void *context, enum tess_log_level level, const char *text);
    void *context;
};

/* Check a configuration, open its data and plan its ranks. TESS_ERR_USAGE, _NOT_FOUND, _DATA or
 * _UNSUPPORTED with what to change. Not collective, except in mode CALLER. */
enum tess_status tess_job_open(const struct tess_job_setup *setup, struct tess_job **job_out);
/* Ends the ranks and frees everything; NULL is allowed. Collective, unless the job has failed. */
void tess_job_close(struct tess_job *job);

/* ---- before or after the start --------------------------------------------------------------- */

int32_t tess_job_rank_count(const struct tess_job *job);
int32_t tess_job_rank(const struct tess_job *job);       /* in mode CALLER; else 0 */
int64_t tess_job_step_count(const struct tess_job *job); /* of the run: options steps, epochs */
int64_t tess_job_batch_size(const struct tess_job *job); /* samples of a step, over all ranks */

/* What one rank allocates, in bytes; known before the start, and exact. */
struct tess_job_memory {
    uint64_t bytes[TESS_MEMORY_KIND_COUNT]; /* tess_memory_kind_name() */
    uint64_t total;
};

/* 0 <= rank < tess_job_rank_count(). */
struct tess_job_memory tess_job_memory_of(const struct tess_job *job, int32_t rank);

/* A parameter of the model; the strings live as long as the job. */
struct tess_job_param {
    const char *name, *unit;
    struct tess_shape shape; /* of the whole parameter, whatever ranks store of it */
};

int32_t tess_job_param_count(const struct tess_job *job);
/* 0 <= index < tess_job_param_count(). */
struct tess_job_param tess_job_param_of(const struct tess_job *job, int32_t index);
/* The index of the parameter of that name; -1: there is none. */
int32_t tess_job_param_find(const struct tess_job *job, const char *name);

/* ---- running ----------------------------------------------------------------------------------
 *
 * Once the job has failed with one of these, all others return TESS_ERR_ABORTED with the first
 * reason; tess_job_close is what remains. Wrong arguments, TESS_ERR_USAGE, are no such failure,
 * nor is a file that cannot be written.
 */

/* Start the ranks and initialise the parameters. Collective. */
enum tess_status tess_job_start(struct tess_job *job);

/* Samples of a step. Borrowed during the call. In mode CALLER every process gives all of them. */
struct tess_job_batch {
    const void *input;    /* f32 [batch size, row]; of tokens i32 [batch size, T] */
    const int32_t *label; /* i32 [batch size], of tokens [batch size, T]; each < class_count; -100
                             or -1: ignored, as in PyTorch's CrossEntropyLoss */
};

struct tess_job_metrics {
    int64_t step;         /* from 1 */
    int64_t epoch;        /* from 0 */
    double loss;          /* mean over the batch */
    double accuracy;      /* share of correct answers in the batch */
    double rate;          /* learning rate */
    double grad_norm;     /* of all gradients; -1: the configuration does not need it */
    double loss_scale;    /* 1 without loss scaling */
    int64_t skipped;      /* steps without an update so far, because of loss scaling */
    double step_s;        /* mean seconds of the steps of this call ... */
    double wait_s;        /* ... of which rank 0 (CALLER: this rank) waited for others */
    double samples_per_s; /* in the steps of this call */
};

/*
 * Train `count` steps and report the last one. `batch` NULL: on the data set's next batches; else
 * `count` is 1 and the job was opened for batches. TESS_ERR_USAGE beyond tess_job_step_count().
 * TESS_ERR_NUMERIC where a value is not finite. Collective.
 */
enum tess_status tess_job_step(struct tess_job *job, int64_t count,
                               const struct tess_job_batch *batch,
                               struct tess_job_metrics *metrics_out);

/* Mean loss and share of correct answers over the test split, or over a batch as above. Trains
 * nothing. TESS_ERR_USAGE where the option `evaluate` is off. Collective. */
enum tess_status tess_job_evaluate(struct tess_job *job, const struct tess_job_batch *batch,
                                   double *loss_out, double *accuracy_out);

/* A hash of all parameters, the same on every layout that computes the same bits. Collective. */
enum tess_status tess_job_hash(struct tess_job *job, uint64_t *hash_out);

/* The values of a parameter, in f32: values_out [its shape]. Collective. */
enum tess_status tess_job_param_read(struct tess_job *job, int32_t index, float *values_out);

/* Write all parameters to `path`, a safetensors file of f32; complete or not at all. Rank 0's
 * process writes. TESS_ERR_IO. Collective. */
enum tess_status tess_job_save(struct tess_job *job, const char *path);

TESS_END_DECLS
#endif
