/* When a rank's loop saves: by steps, by time, on request of the launcher, and at the end. */
#ifndef TESSERA_JOB_SAVING_H
#define TESSERA_JOB_SAVING_H

#include "core/save.h"
#include "job/mirror.h"
#include "job/run.h"

/* Rank 0: a checkpoint is there, or is not. */
struct tess__run_saved {
    int64_t step;
    bool saved;
    double copy_s, write_s; /* of the step's time; of the thread's */
    uint64_t bytes;         /* of rank 0 */
    char why[272];          /* not saved; its end, which has the reason, where it is long */
};

struct tess__saving {
    struct tess_saver *saver;    /* NULL: nothing is saved */
    struct tess_saver *copies;   /* of --redundancy; NULL: none */
    struct tess__mirror partner; /* to which a maker of copies pushes them; port 0: none */
    const struct tess__run *run;
    const struct tess__rank *rank;
    struct tess_engine *engine;
    struct tess_checkpoint_state about;
    const struct tess_save_plan *plan; /* borrowed from the configuration */
    int64_t saved_step;                /* of the latest that was begun */
    double due_s;
    int64_t next_exchange; /* step after which ranks compare what they want next */
    double step_s; /* when the latest exchange was, for how many steps there are to the next */
    int64_t exchange_step;
    bool stop; /* a launcher asked the ranks to end after a checkpoint */
};

/* Zero it. Nothing is saved without a run's folder. close: writing that is under way ends. */
enum tess_status tess__saving_open(struct tess__saving *saving, const struct tess__run *run,
                                   const struct tess__rank *rank, struct tess_engine *engine);
void tess__saving_close(struct tess__saving *saving);

/* After step `number`: begins and ends checkpoints. Sets saving->stop on all ranks in the same
 * step. Collective. */
enum tess_status tess__saving_after_step(struct tess__saving *saving, int64_t number);

/* The run is over, or stops: the state after its latest step is saved when this returns.
 * Collective. */
enum tess_status tess__saving_end(struct tess__saving *saving, int64_t number);

#endif
