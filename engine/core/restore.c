/*
 * All of a training's state from a checkpoint, whatever layout wrote it: every rank reads the
 * elements that it updates, duplicates and replicas too.
 */
#include "core/save.h"
#include "core/state.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

#define RESTORE_ROOM (INT64_C(1) << 20) /* elements that are read at a time: 4 MiB */

struct restore {
    struct tess_engine *engine;
    float *read, *turned; /* [RESTORE_ROOM] */
    uint64_t *check;      /* [1 + arrays, params] of what was read */
};

/* Elements [at, at + count) of a piece, count <= RESTORE_ROOM, to `read`. */
static enum tess_status restore_read(const struct restore *restore, const struct tess_piece *piece,
                                     int32_t array, int64_t at, int64_t count)
{
    const struct tess_engine *engine = restore->engine;
    struct tess_declare_param param = *piece->of;
    param.flags &= array < 0 ? ~0u : ~(uint32_t)TESS_PARAM_TRANSPOSED;
    for (int64_t i = 0, now; i < count; i += now) {
        const struct tess_store_block block = tess_store_block_at(
            &param, &engine->declare.axis, piece->param_begin + at + i, count - i);
        now = (block.rows > 0 ? block.rows : 1) * block.columns;
        if (block.rows == 0) { /* padding is zero for ever */
            memset(restore->read + i, 0, (size_t)now * sizeof(*restore->read));
            continue;
        }
        TESS_TRY(tess_checkpoint_read(engine->checkpoint, piece->param, array, &block,
                                      restore->read + i, restore->turned));
        if (!piece->duplicate)
            restore->check[(array + 1) * engine->model.param_count + piece->param] +=
                tess_store_check(&param, &block, restore->read + i);
    }
    return TESS_OK;
}

/* To memory of the device. */
static enum tess_status restore_put(const struct restore *restore, int64_t count, float *to)
{
    return tess_write(restore->engine->kernel, (size_t)count * sizeof(*to), restore->read, to);
}

/* Values: the master, and from it the small ones; or these alone, of which `read` is exactly the
 * wide form. */
static enum tess_status restore_values(const struct restore *restore,
                                       const struct tess_piece *piece)
{
    struct tess_engine *engine = restore->engine;
    const int64_t most = piece->w != NULL || engine->optim.chunk_count > RESTORE_ROOM
                             ? RESTORE_ROOM
                             : engine->optim.chunk_count;
    for (int64_t at = 0, now; at < piece->count; at += now) {
        now = piece->count - at < most ? piece->count - at : most;
        float *w = piece->w != NULL ? piece->w + at : engine->optim.chunk;
        TESS_TRY(restore_read(restore, piece, -1, at, now));
        TESS_TRY(restore_put(restore, now, w));
        if (piece->low != NULL)
            tess_cast(engine->kernel, now, TESS_F32, w, engine->plan.dtype,
                      (char *)piece->low + (size_t)at * engine->sizes.dtype_bytes);
    }
    return TESS_OK;
}

static enum tess_status restore_arrays(const struct restore *restore,
                                       const struct tess_piece *piece)
{
    const struct tess_optim *optim = &restore->engine->optim;
    if (piece->flags & (TESS_PARAM_BUFFER | TESS_PARAM_FROZEN))
        return TESS_OK;
    for (int32_t a = 0; a < optim->ops->state_arrays; a++) {
        float *to = optim->state + a * optim->state_count + piece->state_begin;
        for (int64_t at = 0, now; at < piece->count; at += now) {
            now = piece->count - at < RESTORE_ROOM ? piece->count - at : RESTORE_ROOM;
            TESS_TRY(restore_read(restore, piece, a, at, now));
            TESS_TRY(restore_put(restore, now, to + at));
        }
    }
    return TESS_OK;
}

/* What there is one of. */
static enum tess_status restore_numbers(const struct restore *restore)
{
    struct tess_engine *engine = restore->engine;
    const struct tess_checkpoint_state *state = tess_checkpoint_state_of(engine->checkpoint);
    struct tess_optim *optim = &engine->optim;
    const size_t params = (size_t)engine->model.param_count;
    engine->progress.step = state->step;
    optim->step = state->updates;
    engine->scale.skipped = state->skipped;
    if (engine->comm->rank == 0) /* the sum of all ranks, to which each adds its part */
        memcpy(engine->progress.epoch_loss, state->epoch_loss, sizeof(state->epoch_loss));
    if (engine->scale.mode == TESS_SCALE_DYNAMIC) {
        engine->scale.value = state->loss_scale;
        engine->scale.good = state->scale_good;
    }
    if (optim->updates != NULL)
        memcpy(optim->updates, state->param_updates, params * sizeof(*optim->updates));
    if (!optim->ops->tensor_moment)
        return TESS_OK;
    return tess_write(engine->kernel, params * sizeof(*optim->tensor_state), state->tensor_state,
                      optim->tensor_state);
}

/* What all ranks have read, every element as often as there are replicas of it, is what was saved.
 * Collective. */
static enum tess_status restore_compare(const struct restore *restore)
{
    const struct tess_engine *engine = restore->engine;
    const size_t tensors =
        (size_t)(1 + engine->optim.ops->state_arrays) * (size_t)engine->model.param_count;
    int32_t index;
    TESS_TRY(tess_comm_all_reduce(engine->comm, restore->check, restore->check, tensors, TESS_I64,
                                  TESS_REDUCE_SUM, NULL));
    return tess_checkpoint_compare(engine->checkpoint, restore->check,
                                   (uint64_t)tess__saver_replicas(&engine->plan, &index));
}

enum tess_status tess__engine_restore(struct tess_engine *engine)
{
    const size_t tensors =
        (size_t)(1 + engine->optim.ops->state_arrays) * (size_t)engine->model.param_count;
    struct restore restore = {.engine = engine,
                              .read = malloc((size_t)RESTORE_ROOM * sizeof(float)),
                              .turned = malloc((size_t)RESTORE_ROOM * sizeof(float)),
                              .check = calloc(tensors + 1, sizeof(uint64_t))};
    enum tess_status status =
        restore.read != NULL && restore.turned != NULL && restore.check != NULL
            ? restore_numbers(&restore)
            : tess_fail(TESS_ERR_MEMORY, "no memory to read the checkpoint into");
    for (int32_t i = 0; i < engine->piece_count && status == TESS_OK; i++) {
        status = restore_values(&restore, &engine->piece[i]);
        if (status == TESS_OK)
            status = restore_arrays(&restore, &engine->piece[i]);
    }
    if (status == TESS_OK)
        status = restore_compare(&restore);
    free(restore.read);
    free(restore.turned);
    free(restore.check);
    TESS_TRY(status);
    TESS_TRY(engine->kernel->ops->failed(engine->kernel));
    return tess__engine_refresh(engine);
}
