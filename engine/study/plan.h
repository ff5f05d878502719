/*
 * tessera plan: the legal layouts of a configuration on a cluster, how long a step of each takes
 * and what it keeps in memory, by the engine's own planner; nothing is started.
 *
 *     plan_space.c   every layout that the strategies, the mesh and the options allow
 *     plan_config.c  the configuration of one of them
 *     plan_try.c     is it legal, or why not; memory, coarse time, predicted time
 *     plan_search.c  all of them: which are tried and in which order, families that are rejected
 *     plan_each.c    the parts of a search, by several threads
 *     plan_measure.c the first of them, trained here
 *     plan_print.c   tables for people;  plan_file.c  JSON, YAML and a time line
 *     plan_accuracy.c  how far predictions of runs were off
 */
#ifndef TESSERA_STUDY_PLAN_H
#define TESSERA_STUDY_PLAN_H

#include "base/log_sink.h"
#include "config/config.h"
#include "data/data.h"
#include "predict/network.h"
#include "predict/predict.h"
#include "study/trial.h"
#include "tessera/engine.h"
#include "text/command.h"

#define TESS__PLAN_WHY        320
#define TESS__PLAN_PRECISIONS 4
#define TESS__PLAN_THREADS    4
#define TESS__PLAN_ROUNDS_MAX 100 /* of --try-rounds */

/* Ranks in another order than the devices of --cluster. */
struct tess__plan_order {
    struct tess_network network;
    double natural_s; /* a step in the natural order */
    int32_t *device;  /* [ranks] of each */
};

/* One layout: what is chosen, then what was found. */
struct tess__plan_layout {
    char strategy[96];
    int32_t count[TESS_AXIS_COUNT];
    int64_t accumulate;
    const char *recompute; /* static, as all texts of this struct */
    const char *schedule;  /* NULL: without a stage axis, or a strategy that has none */
    int64_t chunks;        /* 0: the strategy's own */
    bool sequence;
    bool plain;            /* the schedule is the strategy's default, and sequence is off */
    const char *precision; /* NULL: as configured */
    char extra[64];        /* one further option and its value, tess__plan_variant's; "" */

    struct tess_job_memory memory; /* of the fullest rank */
    uint64_t device_bytes;         /* of that, what lies on the device */
    bool partly;                   /* the first stage alone was, which does not fit */
    double coarse_s;
    bool predicted; /* what follows is tess_predict_step's; else of the coarse model */
    double step_s, exposed_s, mfu, flops;
    double exposed_axis_s[TESS_PREDICT_GROUPS];
    uint64_t sent_bytes[TESS_AXIS_COUNT];
    struct tess_prediction_loss loss;
    double measured_s; /* a step here, with --try, by `rounds` rounds; 0: it was not tried */
    int rounds;
    struct tess__plan_order *order; /* of the layout that is in the list; NULL: the natural one */
};

struct tess__plan_list {
    struct tess__plan_layout *item;
    int64_t count, room;
};

struct tess__plan_rejected {
    bool shape; /* a size of an axis, or a schedule: no layout has it, whatever the rest */
    char family[128], why[TESS__PLAN_WHY];
};

struct tess__plan_options {
    const char *cluster, *device, *calibrate, *memory, *precisions, *json, *out, *trace;
    int64_t ranks, top, choose, try_count, try_rounds;
    double tokens, price, seconds, try_s;
};

/* What a search has done, for tests of its speed. */
struct tess__plan_work {
    int64_t loaded;    /* configurations that were read from all their sources */
    int64_t declared;  /* declarations by the model */
    int64_t planned;   /* ranks */
    int64_t predicted; /* runs of a layout in virtual time, of a few steps */
};

struct tess__plan_configs;

struct tess__plan {
    struct tess__args args;                                 /* of the configuration */
    struct tess_config *first;                              /* has read the file for all others */
    struct tess__plan_configs *configs[TESS__PLAN_THREADS]; /* of each thread; NULL: none yet */
    struct tess_team *team; /* from the first parts of a search to its end; else NULL */
    const struct tess__plan_options *given;
    struct tess_profile profile;
    struct tess_cluster cluster;
    struct tess_topology
        *topology;                /* of --cluster, for orders of ranks; NULL: natural ones alone */
    bool guessed_device;          /* --cluster does not say it, nor does --device */
    double memory_limit;          /* bytes of a device that a rank may plan; 0: no limit */
    struct tess_dataset *dataset; /* opened, or `declared` */
    struct tess_dataset declared;
    int64_t batch_size, grid; /* of the configuration; grid 0: as the ranks have it */
    double row_flops;
    char model[64];
    const char *precision[TESS__PLAN_PRECISIONS]; /* NULL: as configured */
    int precision_count;

    struct tess__plan_list layouts; /* legal and within the memory, best first after the search */
    struct tess__plan_rejected *rejected;
    int32_t rejected_count;
    struct tess__plan_list stages; /* of each number of stages, the schedules that it can have */
    uint64_t least_bytes; /* on a device, of the smallest that does not fit; 0: none was legal */
    int64_t searched;
    double seconds, try_seconds; /* of the search, and of --try */
};

/* ---- plan_space.c: pure but for memory ---- */

/* Appends a copy. */
enum tess_status tess__plan_add(struct tess__plan_list *list,
                                const struct tess__plan_layout *layout);
/* One reason for each family: later ones are left out. */
enum tess_status tess__plan_reject(struct tess__plan *plan, bool shape, const char *family,
                                   const char *why);
/* Is there a layout of the same strategies, ranks along the data axis and sequence parallel? */
bool tess__plan_has_family(const struct tess__plan *plan, const struct tess__plan_layout *shape);
/* Those that were measured, then those that were predicted, then the others; the fastest first. */
void tess__plan_sort(struct tess__plan_list *list);
bool tess__plan_same_product(const struct tess__plan_layout *a, const struct tess__plan_layout *b);
/* Do two layouts differ in recompute alone, and keep the same? Then the one with less of it is
 * simpler, and no slower. */
bool tess__plan_is_twin(const struct tess__plan_layout *a, const struct tess__plan_layout *b);
/* About as many micro-batches as are run to predict its step. */
int64_t tess__plan_length(const struct tess__plan_layout *layout);
/* What the options of a mesh can be: products of strategies for these counts, with or without
 * sequence parallel, schedules and chunks; accumulate and recompute are left open. */
enum tess_status tess__plan_shapes(const int32_t count[TESS_AXIS_COUNT],
                                   struct tess__plan_list *shapes);
/* The micro-batches that a shape can have, in rising order: at most `room` of them; returns how
 * many. */
int tess__plan_accumulations(const struct tess__plan *plan, const struct tess__plan_layout *shape,
                             int64_t *accumulate, int room);

/* The option beside all these that may make a layout of this product faster, with another value
 * than by default: "NAME.OPTION=VALUE", of the strategy of its data axis. False: that has none. */
bool tess__plan_variant(const struct tess__plan_layout *layout, char extra[64]);

/* ---- plan_config.c ---- */

/* From here on `why`, which becomes empty, takes the first error; until tess__log_redirect of what
 * is returned. */
const struct tess__log_sink *tess__plan_catch(struct tess__log_sink *sink,
                                              char why[TESS__PLAN_WHY]);
/* Those of a thread; number 0 has what models declare, for all of them. */
enum tess_status tess__plan_configs_open(struct tess__plan *plan, int thread);
void tess__plan_configs_close(struct tess__plan_configs *configs); /* NULL is allowed */
/* Those of the thread at hand. */
struct tess__plan_configs *tess__plan_here(const struct tess__plan *plan);
struct tess__plan_work *tess__plan_work(struct tess__plan_configs *configs);
/* Free what models declared so far, for all threads: what is planned next is unlike it. */
enum tess_status tess__plan_configs_forget(struct tess__plan_configs *configs);
/* The layout's configuration, for files. Errors are left to the caller: `why` has the message. */
enum tess_status tess__plan_config(const struct tess__plan *plan,
                                   const struct tess__plan_layout *layout,
                                   struct tess_config **config_out, char why[TESS__PLAN_WHY]);
/* A short run of the layout, without a run folder: tess__trial_open. Errors are logged. */
enum tess_status tess__plan_trial_open(const struct tess__plan *plan,
                                       const struct tess__plan_layout *layout, int64_t steps,
                                       struct tess_dataset **dataset, struct tess__trial *trial);
/* The same, for planning: of the thread's configurations, and valid until the next call.
 * Errors are logged: TESS_ERR_DATA is of an option, whatever the layout. */
enum tess_status tess__plan_configure(const struct tess__plan *plan,
                                      const struct tess__plan_layout *layout,
                                      const struct tess_config **config_out);
/* That one becomes a layout's that differs in recompute alone. Errors are logged. */
enum tess_status tess__plan_reconfigure(const struct tess__plan *plan,
                                        const struct tess__plan_layout *layout);

/* ---- plan_each.c ---- */

/* Part `number` of a search: what it finds goes to its place in the context. */
typedef void tess__plan_do(const struct tess__plan *plan, void *context, int64_t number);
/* Parts that follow each other are alike, and each thread begins with a range of them; or the next
 * part is the next thread's that is free: those that take long come first. */
enum tess__plan_turns { TESS__PLAN_RANGES, TESS__PLAN_NEXT };
/* Do parts 0 .. count - 1, several at once. */
enum tess_status tess__plan_each(struct tess__plan *plan, int64_t count,
                                 enum tess__plan_turns turns, tess__plan_do *does, void *context);
/* End the other threads. */
void tess__plan_alone(struct tess__plan *plan);
/* tess__plan_work of all threads. */
struct tess__plan_work tess__plan_worked(const struct tess__plan *plan);
/* All that a search has filled in. */
void tess__plan_close(struct tess__plan *plan);

/* ---- plan_try.c ---- */

/* Is it legal? Fills memory and coarse_s where it is, from every stage's ranks. */
enum tess_status tess__plan_try(const struct tess__plan *plan, struct tess__plan_layout *layout,
                                char why[TESS__PLAN_WHY]);
/* The same of layouts that differ in recompute alone, from the first and the last stage; `brief`:
 * from the first one alone where it does not fit. At the first that is refused it ends: *done_out
 * are filled in. */
enum tess_status tess__plan_try_ends(const struct tess__plan *plan,
                                     struct tess__plan_layout *const layout[], int count,
                                     bool brief, int *done_out, char why[TESS__PLAN_WHY]);
/* Does its fullest rank fit, of those that were planned? */
bool tess__plan_fits(const struct tess__plan *plan, const struct tess__plan_layout *layout);
/* Fills the predicted step, and the order of ranks where another one than the natural is faster. */
enum tess_status tess__plan_predict(const struct tess__plan *plan, struct tess__plan_layout *layout,
                                    char why[TESS__PLAN_WHY]);
void tess__plan_order_free(struct tess__plan_order *order); /* NULL is allowed */
/* The data set's sizes, without its files where they are not here; batch, grid, operations. */
enum tess_status tess__plan_open(struct tess__plan *plan);

/* ---- plan_search.c ---- */

enum tess_status tess__plan_search(struct tess__plan *plan);

/* ---- plan_measure.c ---- */

/*
 * Train the first plan->given->try_count layouts here, and of every other product the best that is
 * predicted near the first; then the list is in order of what was measured, and what failed is
 * among the rejected. TESS_ERR_INTERRUPTED: the list has what was measured before.
 * TESS_ERR_USAGE, TESS_ERR_DEVICE: the plan is for other machines. The caller has no other threads.
 */
enum tess_status tess__plan_measure(struct tess__plan *plan);

/* ---- plan_print.c, plan_file.c ---- */

#define TESS__PLAN_TEXT 360
/* "fsdp+tp+pp, data 8, tensor 2, stage 2, 1f1b, 4 micro-batches, recompute full" */
const char *tess__plan_text(const struct tess__plan_layout *layout, char text[TESS__PLAN_TEXT]);
/* "0, 3, 2, 1, ..": up to 16 devices of the order. */
const char *tess__plan_order_text(const struct tess__plan *plan,
                                  const struct tess__plan_layout *layout, char text[120]);
/* Of these the products, mesh and schedule. */
const char *tess__plan_name(const struct tess__plan_layout *layout, char text[200]);
void tess__plan_print(const struct tess__plan *plan);
enum tess_status tess__plan_write_json(const struct tess__plan *plan, const char *path);
/* The layout's configuration as train takes it. */
enum tess_status tess__plan_write_yaml(const struct tess__plan *plan,
                                       const struct tess__plan_layout *layout, const char *path);
/* One step of the layout as predicted, of the first rank of each stage, as a file of train --trace.
 */
enum tess_status tess__plan_write_trace(const struct tess__plan *plan,
                                        const struct tess__plan_layout *layout, const char *path);

#endif
