/*
 * Saving an engine's state while it trains. Each rank copies its share of what it updates to a
 * stage, memory of the host beside the arena, and a thread writes that into the files of a
 * checkpoint (state/checkpoint.h) while steps go on:
 *
 *     step 100 | begin: copy | step 101 | step 102 | ... all ranks have written | end: rename
 *                    thread: | write ................ flush |
 *
 * A device copies while the next step computes; that step's update waits for the copies.
 */
#ifndef TESSERA_CORE_SAVE_H
#define TESSERA_CORE_SAVE_H

#include "core/engine.h"
#include "state/checkpoint.h"

struct tess_saver;

struct tess_saver_setup {
    const char *run;    /* folder of the run; borrowed */
    int64_t keep;       /* newest checkpoints that stay; 0: all */
    double bytes_per_s; /* of this rank's writing; 0: no limit */
    bool maker;         /* this rank begins and ends the folder: rank 0; of copies, one per host */
    bool copies;        /* `run` is in memory, for --redundancy: begin writes all of it itself */
    /*
     * Of copies, a maker's: bring a complete one to another host, by a thread, while steps go on.
     * The next copy begins when this has ended on all hosts. False, with `why`: there are no more
     * copies. NULL: they stay on this host.
     */
    bool (*push)(void *context, int64_t step, char *why, size_t why_bytes);
    void *context;
};

/*
 * Bytes of the stage, for the memory plan: as many as this rank's share of values and optimizer
 * state takes in f32, and beside it a block in which tensors are turned round, and the optimizer's
 * numbers per tensor; less under config->save.memory_bytes: then a step writes the share piece by
 * piece itself, up to the last piece, or, where that is 0, all of it. Pure.
 */
uint64_t tess_saver_bytes(const struct tess_engine *engine);

/* Bytes of this rank's share in the files of --redundancy: of the copy that is complete, and the
 * one that is being written; as much again for another host's, where there are several. 0 without.
 * Pure. */
uint64_t tess_saver_copies(const struct tess_engine *engine);

/* Files' layout, and the thread, which sleeps; engine->config->saves. The engine outlives it.
 * TESS_ERR_MEMORY. Not collective. */
enum tess_status tess_saver_open(struct tess_engine *engine, const struct tess_saver_setup *setup,
                                 struct tess_saver **saver_out);
/* Writing ends early; what was not complete is removed by the next save. NULL is allowed. */
void tess_saver_close(struct tess_saver *saver);

/*
 * Begin a checkpoint of the state after the latest step; none is under way. A disk that fails is
 * no failure of the step: *begun is false on all ranks and `why` says why, on rank 0, and on a
 * maker whose folder it is. True also where that checkpoint is there already: then there is nothing
 * to end. Of copies the older ones are removed, except the newest. Collective.
 */
#define TESS_SAVER_WHY 512
enum tess_status tess_saver_begin(struct tess_saver *saver, bool *begun, char why[TESS_SAVER_WHY]);

/* Is a checkpoint under way? The same on all ranks. Has this rank written its share, or failed? */
bool tess_saver_busy(const struct tess_saver *saver);
bool tess_saver_written(const struct tess_saver *saver);

/*
 * Wait until all ranks have written, and give the checkpoint its name. *saved: it is there; else
 * `why` as above. Where it is there, a thread removes older ones, and `why` is "" or says which one
 * it could not remove after the save before.
 * `about` has the options, names and fingerprints; the rest is filled in here. Collective.
 */
enum tess_status tess_saver_end(struct tess_saver *saver, const struct tess_checkpoint_state *about,
                                bool *saved, char why[TESS_SAVER_WHY]);

/* What the latest checkpoint took: of a step's time, of the thread's; bytes of this rank. */
struct tess_saver_cost {
    double copy_s, write_s;
    uint64_t bytes;
};
struct tess_saver_cost tess_saver_cost(const struct tess_saver *saver);

/* Replicas of what a rank updates write a share each: how many there are, and which this one is. */
int32_t tess__saver_replicas(const struct tess_plan *plan, int32_t *index_out);

/* restore.c: all of the state, in place of first values, from engine->checkpoint. */
enum tess_status tess__engine_restore(struct tess_engine *engine);

#endif
