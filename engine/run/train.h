/* One training as a user sees it, for the commands that run one or several. */
#ifndef TESSERA_RUN_TRAIN_H
#define TESSERA_RUN_TRAIN_H

#include "comm/boot/boot.h"
#include "job/run.h"
#include "run/restart.h"

struct tess__train_options {
    bool explain;
    int64_t explain_rank; /* whose plan is explained */
    const char *trace;    /* files and folders: "" for none */
    int64_t trace_first, trace_steps;
    const char *tensorboard;
    int32_t watch;          /* enum tess__watch_choice */
    const char *prometheus; /* PORT, HOST:PORT or FILE.prom; "" for none */
    int64_t restarts, min_ranks;
    int64_t hosts;           /* that start the ranks together */
    const char *meet;        /* HOST:PORT where they meet; "": this one alone */
    bool elastic;            /* hosts may leave and join */
    const char *secret_file; /* of the job; "": none */
    /* What would help where memory is short (job/memory_room.h); NULL: nothing is looked for. */
    void (*advise)(void *context, char *text, size_t bytes);
    void *advise_context;
    struct tess__history *history; /* of a training that may be started again; NULL: it may not */
    /* This process is one rank of several that others started (launch_env.h); NULL: it is not. */
    const struct tess_boot_env *placed;
};

/* What a training came to. */
struct tess__trained {
    struct tess__run_final final;
};

/*
 * Train: the run on the screen while it goes, its files, and its end in one paragraph. start_s:
 * clock at which the user's waiting began. TESS_ERR_NUMERIC when it diverged.
 */
enum tess_status tess__train_run(struct tess_config *config, const struct tess_dataset *dataset,
                                 const struct tess__train_options *options, double start_s,
                                 struct tess__trained *trained_out);

#endif
