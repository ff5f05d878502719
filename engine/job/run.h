/*
 * One run of the engine under the launcher: what a rank does from opening its communicator to its
 * last message, and those messages. train, compare and bench step differ in what they do with
 * those.
 */
#ifndef TESSERA_JOB_RUN_H
#define TESSERA_JOB_RUN_H

#include "config/config.h"
#include "core/engine.h"
#include "core/flops.h"
#include "core/trace.h"
#include "data/data.h"
#include "job/launch.h"
#include "tessera/engine.h"

/* What a rank has allocated, or would. */
struct tess_job_memory tess__run_memory(const struct tess_memory *memory);

/* Rank 0: after a step. Those of a record have a loss; some of them are lines of the log as well.
 * Both are the same steps in every run of as many. */
struct tess__run_step {
    bool recorded, logged;
    struct tess_step_result result;
    double samples_per_s; /* since the latest line of the log */
    double comm_share;    /* of that time, waiting for other ranks */
    double elapsed_s;     /* since the first step began */
    /* Seconds that rank 0 has waited for others since then: in each part of a step, and in calls
     * along each axis (see struct tess__run_rank); the warm-up included. */
    double wait_forward_s, wait_backward_s, wait_optim_s, wait_axis_s[TESS_AXIS_COUNT];
};

/* Rank 0: after an epoch, and at the end of the last, unfinished one. */
struct tess__run_epoch {
    int64_t step, epoch;
    double loss;                   /* mean over the samples of the epoch so far */
    double val_loss, val_accuracy; /* NaN when not evaluated */
    double samples_per_s, comm_share;
    double time_s;       /* of this epoch's steps */
    double evaluate_s;   /* of its evaluation */
    double cumulative_s; /* all epochs so far, evaluations included */
};

/* Rank 0: an evaluation within an epoch (--evaluate-every). */
struct tess__run_validation {
    int64_t step, epoch;
    double loss, accuracy, evaluate_s, cumulative_s; /* as of an epoch */
};

/*
 * Every rank: where the time of an epoch's steps went. total_s is from the end of a step to the end
 * of the next; what the other fields leave of it was spent between steps and in the sum of the
 * loss. hidden_s is no part of the sum, see struct tess_times.
 */
struct tess__run_times {
    int64_t epoch;
    struct tess_times sum;
};

/* Rank 0: a tensor's digest after a step; one message for each, in the order of the plan. */
struct tess__run_digest {
    int64_t step;
    int32_t index; /* of the parameter */
    struct tess_digest digest;
};

/* Rank 0: the end. */
struct tess__run_final {
    uint64_t hash;
    int64_t steps;
    double loss; /* of the last step */
    double val_loss, val_accuracy;
    double samples_per_s; /* all steps after the warm-up, without evaluations */
    double comm_share;
    double time_s;
    double first_step_s;                /* from the program's start to the end of the first step */
    double loss_scale, loss_zero_share; /* of the last step */
    int64_t skipped;
    int64_t audited; /* steps; see tess_engine_audited */
};

/* Every rank: its costs. */
struct tess__run_rank {
    struct tess_job_memory allocated;
    uint64_t peak_rss;           /* bytes; of the whole process when ranks are threads */
    double sent_bytes_per_step;  /* measured, without evaluations */
    uint64_t sent_bytes_formula; /* 0: the strategy has none */
    struct tess_times step;      /* mean of the steps after the warm-up */
    /* The same along each axis of the mesh; what goes over all ranks at once, such as norms, is in
     * none of them where there are several. wait_s: of a step after the warm-up. */
    double axis_sent_per_step[TESS_AXIS_COUNT], axis_wait_s[TESS_AXIS_COUNT];
    uint64_t axis_formula[TESS_AXIS_COUNT];
    /* On a device: how full it is at the end, the same for all ranks on it. total_bytes 0: it did
     * not answer. */
    struct tess_device_usage device_usage;
    struct tess_device_memory device_memory;
    double processor_share; /* of the time after the warm-up in which it did not wait for ranks: how
                               much of it a processor worked for it */
};

/* Every rank: usual.h, of the steps after the warm-up. */
struct tess__run_usual {
    struct tess_times step;
};

_Static_assert(sizeof(struct tess__run_rank) <= TESS__MESSAGE_BYTES &&
                   sizeof(struct tess__run_step) <= TESS__MESSAGE_BYTES,
               "a rank's costs are a message, and so is a step");

/* Every rank of a pipeline, where chunks were timed: what a micro-batch costs in one of its
 * chunks. */
struct tess__run_chunk {
    int32_t chunk;
    double forward_s, backward_s;
};

enum tess__run_kind {
    TESS__RUN_STEP,
    TESS__RUN_EPOCH,
    TESS__RUN_VALIDATION,
    TESS__RUN_FINAL,
    TESS__RUN_CHUNK,
    TESS__RUN_RANK,
    TESS__RUN_USUAL,
    TESS__RUN_TIMES,
    TESS__RUN_DIGEST,
    TESS__RUN_SAVED, /* struct tess__run_saved, saving.h */
    TESS__RUN_PACE,  /* struct tess__run_pace, pace.h */
    TESS__RUN_LINKS, /* struct tess__run_links, pace.h */
};

struct tess_boot_env;      /* comm/boot/boot.h */
struct tess__placement;    /* place.h */
struct tess__slowed_parts; /* place_slow.h */

/* --topology.adapt: rank 0's launcher requests other numbers; after a step that is the same on all
 * ranks they have agreed, save and end. */
enum tess__renumber { TESS__RENUMBER_NO, TESS__RENUMBER_ASKED, TESS__RENUMBER_AGREED };

/* A run, seen from the launcher. Set up by tess__run_open. */
struct tess__run {
    const struct tess_config *config;
    const struct tess_dataset *dataset;
    int32_t rank_count;
    bool evaluate;             /* default: as configured */
    bool live;                 /* send steps often enough for a bar */
    int64_t log_every;         /* 0: ten times an epoch; records are chosen apart */
    bool records;              /* steps are kept: more of them than lines of the log */
    int64_t *step_done;        /* in memory that is shared with the ranks: rank 0 notes there which
                                  step it has done; NULL: nowhere */
    _Atomic int32_t *renumber; /* enum tess__renumber, shared likewise; NULL: ranks stay */
    const struct tess__slowed_parts *slowed; /* borrowed; NULL: none */
    bool keep_pace;                          /* send how long steps took (pace.h) */
    bool keep_digests;          /* send the digests of --hash-every; else replicas are compared */
    struct tess_trace *trace;   /* borrowed; NULL: no time lines */
    struct tess_flight *flight; /* borrowed; NULL: calls are not recorded */
    struct tess__peers *peers;  /* borrowed; NULL: all ranks are started from here */
    struct tess__placement *placed; /* which process or device each rank has, and why */
    int64_t warm_steps;             /* not part of the final speed; cut to half of the run */
    bool crowded;                   /* more ranks' threads than cores: ranks take turns */
    double start_s;                 /* clock at the program's start */
    struct tess_engine *planned;    /* rank 0's plan */
    /* [ranks], tess__run_predicted; of many ranks, which folded is true of: [stages, 2, 2] of each
     * stage's ranks, the first along the data and the tensor axis and all others. */
    struct tess_job_memory *predicted;
    bool folded;
    /* [ranks] of a folded run: the own plans of ranks that have reported other sizes than those
     * that they are alike, as slices of checkpoints differ by a page. total 0: none. NULL: of no
     * rank. */
    struct tess_job_memory *exact;
    const char **bus;              /* [ranks] of this host's places, for tess__launch.bus */
    struct tess__run_rank *rank;   /* [ranks], filled by tess__run_keep */
    struct tess__run_usual *usual; /* [ranks] likewise */
    struct tess__run_final final;  /* filled by tess__run_keep */
    struct tess_flops flops;       /* of one sample */
    struct tess__run_chunk *chunk; /* [ranks, chunks of each] likewise, of a crowded pipeline */
};

/* Samples of both splits, where they are known without the data: of the text "text". False: they
 * are not, or tess__run_open_data has something to say. */
bool tess__run_count_data(const struct tess_config *config, int64_t *train_out, int64_t *test_out);

/* The data set that the configuration names, loaded once and shared with the ranks by fork. */
enum tess_status tess__run_open_data(const struct tess_config *config,
                                     struct tess_dataset **dataset_out);
/* Do two configurations name the same data set? */
bool tess__run_same_data(const struct tess_config *a, const struct tess_config *b);

/* Plan every rank: refuses what does not fit before anything is started. Puts ranks on devices in
 * the order of config->placing. */
enum tess_status tess__run_open(struct tess__run *run, struct tess_config *config,
                                const struct tess_dataset *dataset);
/* The same for a run that will not start, of TESS_RANKS_MAX ranks at most. Only what starts
 * has `rank` and `bus`. */
enum tess_status tess__run_open_planned(struct tess__run *run, struct tess_config *config,
                                        const struct tess_dataset *dataset);
/* Each rank has so many cores after all: so has its plan. */
enum tess_status tess__run_set_cores(struct tess__run *run, struct tess_config *config,
                                     int32_t cores);
/* Of ranks that others started: tess__place_ranks (job/place.h), which finds their cores. */
enum tess_status tess__run_place(struct tess__run *run, struct tess_config *config,
                                 const struct tess_boot_env *env);
/* What the plan gives a rank. */
const struct tess_job_memory *tess__run_predicted(const struct tess__run *run, int32_t rank);
/* The lowest rank that has the same plan as this one: the first or the second along the data and
 * the tensor axis. Pure. */
int32_t tess__run_alike(const struct tess_mesh *mesh, int32_t rank);
void tess__run_close(struct tess__run *run);

/* tess__launch.body; context is a struct tess__run. */
enum tess_status tess__run_body(void *context, struct tess__rank *rank);

/* In the thread of a rank: select its device and open its communicator. Collective. */
enum tess_status tess__run_open_comm(const struct tess__run *run, const struct tess__rank *rank,
                                     struct tess_comm **comm_out);

/* Keep a message's rank, chunk and final records in the run; others are left to the caller. */
void tess__run_keep(struct tess__run *run, const struct tess__message *message);

/* A launch of this run; context and message are the caller's to set. */
struct tess__launch tess__run_launch(const struct tess__run *run);

/* Clock value at which this process started. */
double tess__run_process_start_s(void);

/* Are there ranks along other axes than the data axis? */
bool tess__run_has_mesh(const struct tess__run *run);

/* "data 2, tensor 2, stage 2", of a mesh's counts or of a rank's places. */
#define TESS__MESH_TEXT_BYTES 64
const char *tess__mesh_text(const int32_t axis[TESS_AXIS_COUNT], char text[TESS__MESH_TEXT_BYTES]);

/* Does every rank's allocation equal its prediction? */
bool tess__run_as_predicted(const struct tess__run *run);

/* Of a run that has ended: the least share that a rank's processor worked of the time in which it
 * did not wait for ranks. 1 where that says nothing of other programs: ranks take turns on the
 * cores, or wait for a device. */
double tess__run_processor_share(const struct tess__run *run);
/* Below it other programs took a part of the processors. */
#define TESS__RUN_UNDISTURBED 0.9

#endif
