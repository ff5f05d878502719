/*
 * A training's state in a folder of its own, which is there completely or not at all:
 *
 *     RUN/checkpoints/step-00000100/        complete: renamed when all its bytes are on the disk
 *         state.json                        what is below; and a check of every tensor
 *         options.yaml                      options that decide on bits, to be read as a
 *                                           configuration file
 *         model-..., optimizer-...          tensors, see store.h
 *     RUN/checkpoints/step-00000200.part/   being written, or left behind by a run that was killed
 *
 * The newest checkpoint is the one of the highest step. Every rank writes its elements into the
 * files; one of them, the writer, begins and ends the folder.
 */
#ifndef TESSERA_STATE_CHECKPOINT_H
#define TESSERA_STATE_CHECKPOINT_H

#include "base/file.h"
#include "state/store.h"
#include "tessera/update.h"

#include <stdbool.h>

#define TESS_CHECKPOINT_VERSION   1
#define TESS_CHECKPOINT_PATH      4096
#define TESS_CHECKPOINT_FILE_MOST (UINT64_C(4) << 30) /* bytes of values in a file */

/* What a run needs beside its tensors to continue with the same bits. */
struct tess_checkpoint_state {
    int64_t step;             /* steps done: the run's place in its data and its schedule */
    int64_t updates;          /* of the optimizer: steps that were not skipped */
    int64_t batch_size, grid; /* options that depend on the ranks, as they were resolved */
    double learning_rate, warmup_start;
    double loss_scale;             /* of the next step */
    int64_t scale_good, skipped;   /* see struct tess_scale */
    struct tess_sum epoch_loss[2]; /* of the epoch's steps so far: losses from 0 on, and below */
    uint64_t *check;               /* [1 + arrays, params] of tensors, as store.h computes them */
    int64_t *param_updates;        /* [params] of a conditional model; else NULL */
    float *tensor_state;           /* [params] of an optimizer with a tensor moment; else NULL */
    char *options;                 /* YAML of the options that decide on bits; in options.yaml */
    char *model, *layout;          /* name; strategy and ranks that wrote it, for people */
    uint64_t model_id, data_id;    /* fingerprints: tess_checkpoint_model_id, the caller's */
};
void tess_checkpoint_state_fini(struct tess_checkpoint_state *state);

/* Hash of names, shapes and kinds of all parameters. */
uint64_t tess_checkpoint_model_id(const struct tess_declare *model);

/* ---- writing --------------------------------------------------------------------------------- */

/* RUN/checkpoints/step-N, or with `part` the folder while it is being written. TESS_ERR_USAGE: the
 * name is too long. */
enum tess_status tess_checkpoint_path(const char *run, int64_t step, bool part,
                                      char path[TESS_CHECKPOINT_PATH]);

/* Is this the name of a folder as it is while it is being written? */
bool tess_checkpoint_is_part(const char *folder);

/* The writer, first: a new folder for a checkpoint under way; leftovers of others are removed.
 * Files are made, of their whole length, with their headers. TESS_ERR_IO. */
enum tess_status tess_checkpoint_begin(const char *run, int64_t step,
                                       const struct tess_store *store);

/* Open the files of a checkpoint under way, to write to: fd [store->file_count], -1 after a
 * failure. TESS_ERR_IO, and errno. */
enum tess_status tess_checkpoint_open_files(const char *run, int64_t step,
                                            const struct tess_store *store, int *fd);

/*
 * The writer, last, when every rank has written and flushed its elements: the index and state.json,
 * then the folder gets its name.
 * TESS_ERR_IO: older checkpoints are there; this one may be, where only flushing its name failed.
 */
enum tess_status tess_checkpoint_end(const char *run, const struct tess_store *store,
                                     const struct tess_checkpoint_state *state,
                                     const struct tess_declare *model);

/* Remove all complete checkpoints but the `keep` newest; 0 keeps all. TESS_ERR_IO names the last
 * one that could not be removed, when all others have been. */
enum tess_status tess_checkpoint_prune(const char *run, int64_t keep);

/* The writer, instead of end: removes what was begun. */
void tess_checkpoint_drop(const char *run, int64_t step);

/* Remove what runs that were killed have left half written, or half removed. TESS_ERR_IO. */
enum tess_status tess_checkpoint_clear(const char *run);

/* ---- reading --------------------------------------------------------------------------------- */

/* Steps of the complete checkpoints of a run, in increasing order, to be freed; 0: there is none.
 * TESS_ERR_IO where the folder cannot be read. */
enum tess_status tess_checkpoint_list(const char *run, int64_t **step_out, int32_t *count_out);

/* Remove one; its name goes first, so that none is ever there in part. */
enum tess_status tess_checkpoint_remove(const char *run, int64_t step);

/* Only state.json of a checkpoint, without its model. `folder`: RUN/checkpoints/step-N. The arrays
 * per parameter and the options are left out. */
enum tess_status tess_checkpoint_read_state(const char *folder,
                                            struct tess_checkpoint_state *state_out);

struct tess_checkpoint; /* open for reading */

/* Open a checkpoint of this model and optimizer: every file, its length and header are checked
 * against them. TESS_ERR_DATA and TESS_ERR_IO name the file and the tensor. */
enum tess_status tess_checkpoint_open(const char *folder, const struct tess_declare *model,
                                      int32_t arrays, struct tess_checkpoint **checkpoint_out);
void tess_checkpoint_close(struct tess_checkpoint *checkpoint); /* NULL is allowed */
const struct tess_checkpoint_state *tess_checkpoint_state_of(
    const struct tess_checkpoint *checkpoint);

/* A block of values (array -1) or of an array of the optimizer; x and room as for tess_store_read.
 * TESS_ERR_IO names file and tensor. */
enum tess_status tess_checkpoint_read(const struct tess_checkpoint *checkpoint, int32_t param,
                                      int32_t array, const struct tess_store_block *block, float *x,
                                      float *room);

/*
 * Are the values that were read those that were saved? check [1 + arrays, params]: sums of
 * tess_store_check, in which every element of a tensor counts `times` times. TESS_ERR_DATA names
 * the first file and tensor that differ.
 */
enum tess_status tess_checkpoint_compare(const struct tess_checkpoint *checkpoint,
                                         const uint64_t *check, uint64_t times);

/* Is options.yaml of a checkpoint as it was saved? TESS_ERR_DATA, TESS_ERR_IO. */
enum tess_status tess_checkpoint_check_options(const char *folder);

/* Bytes of all files of a checkpoint. TESS_ERR_IO. */
enum tess_status tess_checkpoint_bytes(const char *folder, uint64_t *bytes_out);

/* Read every byte of a checkpoint and compare all checks, without its model. TESS_ERR_DATA names
 * the first file and tensor that differ, are missing, or are not of this checkpoint. */
enum tess_status tess_checkpoint_verify(const char *folder, uint64_t *bytes_out);

#endif
