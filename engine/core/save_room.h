/* Between the files of the saver: save.c, and save_copy.c with the rank's share and its copies. */
#ifndef TESSERA_CORE_SAVE_ROOM_H
#define TESSERA_CORE_SAVE_ROOM_H

#include "core/save.h"
#include "core/state.h"

#include <pthread.h>

#define SAVER_BLOCK (INT64_C(1) << 18) /* elements that are written at a time: 1 MiB */

enum saver_state { SAVER_IDLE, SAVER_WRITING, SAVER_REMOVING, SAVER_WRITTEN, SAVER_QUIT };

/* Bytes that are to be copied. */
struct saver_run {
    const char *from;
    char *to;
    size_t bytes;
};

/* This rank's share of the elements that it counts, in order of pieces: [from, from + count), of
 * which the first `trained` have arrays of the optimizer. */
struct saver_share {
    int64_t from, count, trained;
};

struct tess_saver {
    struct tess_engine *engine;
    struct tess_saver_setup setup;
    struct tess_store store;
    struct saver_share share;
    float *stage;  /* [stage_count] of the share's elements: engine->staging */
    float *room;   /* [SAVER_BLOCK], behind it */
    float *number; /* [params], behind that: the optimizer's numbers per tensor; NULL: none */
    struct tess_queue *queue;        /* far memory: that copies to the stage; else NULL */
    struct tess_fence *fence;        /* the end of its copies */
    double memory_bytes;             /* of the stage at most; 0: a step writes all itself */
    int64_t stage_count, staged;     /* elements before this one were written by the step */
    struct saver_run run;            /* while it copies */
    double begin_s;                  /* of the save under way */
    uint64_t *check;                 /* [1 + arrays, params], then an error */
    int *fd;                         /* [files], while one is under way */
    struct tess_checkpoint_state at; /* what goes with the stage; arrays only where needed */
    int64_t *moment; /* [params] bits of `number`; 0 where another rank writes the tensor's first
                        element; NULL: there are none */
    bool busy;
    struct tess_saver_cost cost;

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum saver_state state; /* by lock */
    _Atomic bool written, quit;
    int error;          /* errno of writing, 0; valid when written */
    int32_t error_file; /* -1: the device did not copy */
    bool pushed;        /* the latest copy is on another host, or need not be; valid when written */
    char why[TESS_SAVER_WHY]; /* it is not; or: of older checkpoints that could not be removed */
};

/* Elements [first, end) of a piece, of its values (array -1) or of an array of the optimizer, and
 * their place in the stage. */
struct saver_part {
    const struct tess_piece *piece;
    int32_t array;
    int64_t first, end;
    float *x;
};

/* ---- save_copy.c ----------------------------------------------------------------------------- */

/* Elements that a rank counts and saves, [from, to) of all; of values and optimizer state so many.
 * Pure. */
struct saver_share tess__saver_share(const struct tess_engine *engine);
int64_t tess__saver_elements(const struct tess_engine *engine);
/* Of the stage at a time: as many as the memory holds beside the room and the optimizer's numbers
 * (tess__saver_beside), a block at least. Pure. */
int64_t tess__saver_beside(const struct tess_engine *engine);
int64_t tess__saver_stage_count(const struct tess_engine *engine, double memory_bytes);

/* Visit what of the state are elements [from, to), counted in the share array by array. Until a
 * visit returns something else than 0: returns that. */
int tess__saver_each(struct tess_saver *saver, int64_t from, int64_t to,
                     int (*visit)(struct tess_saver *saver, const struct saver_part *part));

/* What there is one of, the same on all ranks. */
void tess__saver_copy_numbers(struct tess_saver *saver);
/* Elements [from, to) to the stage, and before the first of them the optimizer's numbers; with a
 * queue they are there when the fence is reached. */
enum tess_status tess__saver_copy(struct tess_saver *saver, int64_t from, int64_t to);
/* Until what was copied last is there. Any thread. */
enum tess_status tess__saver_await(const struct tess_saver *saver);
/* Of a part that was copied: values without a master, in f32; the optimizer's number of a tensor
 * whose first element is in the part. */
void tess__saver_widen(const struct tess_saver *saver, const struct saver_part *part);
void tess__saver_take_moment(struct tess_saver *saver, const struct saver_part *part);

#endif
