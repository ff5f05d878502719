/* The progress of a run: a bar on a terminal, plain lines otherwise. To stdout. */
#ifndef TESSERA_RUN_PROGRESS_H
#define TESSERA_RUN_PROGRESS_H

#include "job/run.h"
#include "text/words.h"

struct tess__progress {
    struct tess__words words;
    bool terminal;
    bool drawn; /* a bar is on the current line */
    int32_t columns;
    int64_t step_count, steps_per_epoch;
    int64_t step_first;          /* steps that were done before this process began */
    double loss;                 /* the latest known one */
    const struct tess__run *run; /* borrowed; for the share of its devices' peak */
    /* Of the ranks that are watched: their boards, and the values when a step was shown last. */
    struct tess__progress_rank {
        const struct tess_board *board;
        int64_t passed_us, busy_us;
    } * rank;           /* [run->rank_count] */
    int32_t rank_count; /* 0: none */
};

enum tess_status tess__progress_open(struct tess__progress *progress, const struct tess__run *run);
void tess__progress_close(struct tess__progress *progress); /* a zeroed one, too */
/* Watch a rank's board too, so that steps are shown with how busy every rank is. */
void tess__progress_watch(struct tess__progress *progress, const struct tess_board *board);
void tess__progress_step(struct tess__progress *progress, const struct tess__run_step *step);
void tess__progress_validation(struct tess__progress *progress,
                               const struct tess__run_validation *validation);
void tess__progress_epoch(struct tess__progress *progress, const struct tess__run_epoch *epoch);
/* Take the bar away, so that something else can be written. */
void tess__progress_clear(struct tess__progress *progress);

#endif
