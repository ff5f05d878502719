/* The inside of struct tess_job (tessera/engine.h), shared by job.c and job_rank.c. */
#ifndef TESSERA_JOB_JOB_H
#define TESSERA_JOB_JOB_H

#include "base/log_sink.h"
#include "job/launch_env.h"
#include "job/run.h"
#include "tessera/engine.h"

#include <limits.h>
#include <locale.h>
#include <pthread.h>

#define TESS__JOB_WHY_BYTES 1024

enum tess__job_verb {
    TESS__JOB_STEP,
    TESS__JOB_EVALUATE,
    TESS__JOB_HASH,
    TESS__JOB_READ,
    TESS__JOB_SAVE,
};

/* The caller's order to every rank: one message. */
struct tess__job_order {
    enum tess__job_verb verb;
    int32_t index;       /* READ: of the parameter */
    int64_t count;       /* STEP */
    char path[PATH_MAX]; /* SAVE: absolute */
};

/* What a rank answers: one message. Also to being started. */
struct tess__job_reply {
    enum tess_status status;
    char why[TESS__JOB_WHY_BYTES]; /* "" without an error */
    struct tess_job_metrics metrics;
    double loss, accuracy;
    uint64_t hash;
};

struct tess__job_rank {
    struct tess_job *job;
    struct tess__rank rank;
    struct tess_comm *comm;
    struct tess_engine *engine;
    /* Not in mode CALLER: both ends of what connects the caller with the rank, and what it runs in.
     */
    int caller_socket; /* -1: none */
    int rank_socket;   /* closed by the rank */
    bool started;
    pthread_t thread;
    pid_t pid;
};

struct tess_job {
    struct tess_config *config;
    struct tess_dataset *dataset; /* of the option `data`; NULL for batches of the caller */
    struct tess_dataset given;    /* batches of the caller, in `exchange` */
    struct tess__run run;
    enum tess_job_mode mode; /* not AUTO */
    struct tess_boot_env env;
    struct tess_world *world;
    struct tess__log_sink sink;
    void (*message)(void *context, enum tess_log_level level, const char *text);
    void *context;
    /* Memory that all ranks of this process and its children share: a batch on its way to them, or
     * the values of a parameter on their way back. */
    float *exchange;
    size_t exchange_bytes;
    int64_t step; /* done so far */
    bool started, failed;
    char why[TESS__JOB_WHY_BYTES]; /* failed: the first reason */
    struct tess__job_rank *rank;   /* [ranks]; CALLER: its own in [0] */
    struct pollfd *watch;          /* [ranks] */
};

/* ---- job_rank.c ------------------------------------------------------------------------------ */

/* From here on the calling thread reads and writes numbers as in the C locale, whatever the program
 * around the library has set. Returns the one before, for uselocale(). */
locale_t tess__job_locale(void);

/* Begin to run rank[r]: in a thread or a child process, which opens its engine and then follows
 * orders until its socket is closed. */
enum tess_status tess__job_rank_start(struct tess_job *job, int32_t r);
/* Wait until a rank that was started has ended; `limit_s` later a process is killed. */
void tess__job_rank_end(struct tess__job_rank *rank, double limit_s);
/* How a rank's process ended, which is gone: "was killed by signal 9 (Killed) while in forward". */
void tess__job_rank_death(struct tess__job_rank *rank, char *text, size_t bytes);

/* In the thread of the rank: open its engine, do what is ordered, close. A failure ends the other
 * ranks. */
void tess__job_rank_open(struct tess__job_rank *rank, struct tess__job_reply *reply);
void tess__job_rank_obey(struct tess__job_rank *rank, const struct tess__job_order *order,
                         struct tess__job_reply *reply);
void tess__job_rank_close(struct tess__job_rank *rank);

#endif
