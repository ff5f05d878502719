/*
 * First values of parameters. Every rank makes the pieces that it owns; values do not depend on the
 * layout.
 */
#include "core/state.h"

#include "base/rng.h"
#include "tessera/check.h"

#include <stdlib.h>

/* Elements that are made or read on the host at a time, for far memory: 4 MiB. */
#define PARAMS_ROOM (INT64_C(1) << 20)

/* ---- first values ---------------------------------------------------------------------------- */

/* Elements [from, from + count) of one parameter, by their numbers in the whole tensor. */
static void params_fill(const struct tess_declare_param *param, struct tess_rng_key key,
                        int64_t from, int64_t count, float *w)
{
    const struct tess_init *init = &param->init;
    if (init->kind == TESS_INIT_NORMAL)
        tess_rng_normals(key, (uint64_t)from, (uint64_t)count, w);
    for (int64_t i = 0; i < count; i++) {
        switch (init->kind) {
        case TESS_INIT_ZERO:
            w[i] = 0.0f;
            break;
        case TESS_INIT_ONE:
            w[i] = 1.0f;
            break;
        case TESS_INIT_UNIFORM:
            w[i] = init->scale * (2.0f * tess_rng_uniform(key, (uint64_t)(from + i), 0) - 1.0f);
            break;
        case TESS_INIT_NORMAL:
            w[i] *= init->scale;
            break;
        }
    }
    /* Padding, which fills the end of the first dimension, is zero for ever. */
    const int64_t used = tess_declare_used(param);
    for (int64_t i = used > from ? used - from : 0; i < count; i++)
        w[i] = 0.0f;
}

static struct tess_rng_key params_key(const struct tess_engine *engine,
                                      const struct tess_piece *piece)
{
    return tess_rng_key((uint64_t)engine->config->run.seed, TESS_RNG_INIT, (uint64_t)piece->param);
}

/* First values of elements [at, at + count) of a piece, in memory of the host. */
static enum tess_status params_begin(const struct tess_engine *engine,
                                     const struct tess_piece *piece, int64_t at, int64_t count,
                                     float *w)
{
    const struct tess_rng_key key = params_key(engine, piece);
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t whole;
        run = tess_piece_run(piece, &engine->declare.axis, at + done, &whole, NULL);
        run = run < count - done ? run : count - done;
        if (engine->weights != NULL)
            TESS_TRY(tess_weights_read(engine->weights, piece->param, whole, run, w + done));
        else
            params_fill(piece->of, key, whole, run, w + done);
    }
    return TESS_OK;
}

/*
 * The same of normals, by the device in its own memory: for a large model one core of the host
 * would be the longest part of a run's start. The mean is minus zero, which changes nothing that it
 * is added to, not even a zero's sign: the bits are those of params_fill.
 */
static void params_draw(const struct tess_engine *engine, const struct tess_piece *piece,
                        int64_t at, int64_t count, float *w)
{
    const struct tess_rng_key key = params_key(engine, piece);
    const int64_t used = tess_declare_used(piece->of);
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t whole;
        run = tess_piece_run(piece, &engine->declare.axis, at + done, &whole, NULL);
        run = run < count - done ? run : count - done;
        const int64_t left = used > whole ? used - whole : 0, drawn = left < run ? left : run;
        tess_normal(engine->kernel, key.word, (uint64_t)whole, drawn, -0.0f, piece->of->init.scale,
                    w + done);
        tess_fill(engine->kernel, (run - drawn) * (int64_t)sizeof(*w), 0, w + done + drawn);
    }
}

/* The same in memory of the device; `room` [PARAMS_ROOM] where that is far. */
static enum tess_status params_place(const struct tess_engine *engine,
                                     const struct tess_piece *piece, int64_t at, int64_t count,
                                     float *room, float *w)
{
    struct tess_kernel *kernel = engine->kernel;
    if (room == NULL) {
        kernel->ops->access(kernel, true);
        enum tess_status status = params_begin(engine, piece, at, count, w);
        kernel->ops->access(kernel, false);
        return status;
    }
    if (engine->weights == NULL && piece->of->init.kind == TESS_INIT_NORMAL) {
        params_draw(engine, piece, at, count, w);
        return TESS_OK;
    }
    for (int64_t done = 0, now; done < count; done += now) {
        now = count - done < PARAMS_ROOM ? count - done : PARAMS_ROOM;
        TESS_TRY(params_begin(engine, piece, at + done, now, room));
        TESS_TRY(tess_write(kernel, (size_t)now * sizeof(*room), room, w + done));
    }
    return TESS_OK;
}

/* A piece without a master is made in the optimizer's chunk and rounded from there. */
static enum tess_status params_init_piece(struct tess_engine *engine,
                                          const struct tess_piece *piece, float *room)
{
    const int64_t most = piece->w != NULL ? piece->count : engine->optim.chunk_count;
    for (int64_t at = 0; at < piece->count; at += most) {
        int64_t count = piece->count - at < most ? piece->count - at : most;
        float *w = piece->w != NULL ? piece->w : engine->optim.chunk;
        TESS_TRY(params_place(engine, piece, at, count, room, w));
        if (piece->low != NULL)
            tess_cast(engine->kernel, count, TESS_F32, w, engine->plan.dtype,
                      (char *)piece->low + (size_t)at * engine->sizes.dtype_bytes);
    }
    return TESS_OK;
}

enum tess_status tess__engine_init_params(struct tess_engine *engine)
{
    enum tess_status status = TESS_OK;
    float *room = NULL;
    if (engine->kernel->ops->far_memory) {
        room = malloc((size_t)PARAMS_ROOM * sizeof(*room));
        if (room == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the first values of parameters");
    }
    for (int32_t i = 0; status == TESS_OK && i < engine->optim.piece_count; i++)
        status = params_init_piece(engine, &engine->piece[i], room);
    free(room);
    TESS_TRY(status);
    TESS_TRY(engine->kernel->ops->failed(engine->kernel));
    return engine->strategy.ops->params_refresh(&engine->strategy);
}
