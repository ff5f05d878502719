/* A trial: one short run of a configuration with changes, without evaluation and run folder. */
#ifndef TESSERA_STUDY_TRIAL_H
#define TESSERA_STUDY_TRIAL_H

#include "job/run.h"
#include "study/variant.h"
#include "text/command.h"

struct tess__trial {
    struct tess_config *config;
    struct tess__run run;
};

/* What a trial changes in the configuration; NULL or 0 leaves the configured value. */
struct tess__trial_choice {
    char *const *word; /* [word_count] options "--name=value", weaker than the fields below */
    int word_count;
    const char *strategy;
    int64_t ranks, grid, steps;
    int64_t batch_size;               /* wins over --batch-per-rank, too */
    bool load;                        /* tess_config_load, in place of tess_config_open ... */
    const struct tess_config *before; /* ... with this one */
};

/* The configuration of a trial alone, for what must be known before it is planned. */
enum tess_status tess__trial_config(const struct tess__args *args,
                                    const struct tess__trial_choice *choice,
                                    struct tess_config **config_out);

/* The mesh and the micro-batches of a series whose batch is not chosen yet. */
enum tess_status tess__trial_mesh(struct tess__args *args, struct tess_mesh *mesh_out,
                                  int64_t *accumulate_out);

/* What of a trial decides about its grid: ranks of the data axis, accumulation, batch. */
enum tess_status tess__trial_shape(const struct tess__args *args,
                                   const struct tess__trial_choice *choice,
                                   struct tess__variant_shape *shape_out);

/* Resolve and plan. *dataset is shared by the series: the first opens it, the caller closes it. */
enum tess_status tess__trial_open(struct tess__trial *trial, const struct tess__args *args,
                                  const struct tess__trial_choice *choice,
                                  struct tess_dataset **dataset);
/*
 * Run it; run.final and run.rank hold the results. May be called again for a repeat. `sign` is
 * shown during the run where stdout is a terminal; NULL: none.
 */
enum tess_status tess__trial_run(struct tess__trial *trial, const char *sign);
void tess__trial_close(struct tess__trial *trial);

/* Before a series: refuse --run, which a trial would ignore, and a file for the results ("" for
 * none) that could not be written in the end. */
enum tess_status tess__trial_check(struct tess__args *args, const char *json);

#endif
