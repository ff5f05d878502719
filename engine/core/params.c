/*
 * Parameters as a whole: first values, and values as f32. Every rank works on the pieces it owns;
 * results do not depend on who owns what.
 */
#include "core/state.h"

#include "base/half.h"
#include "base/rng.h"
#include "tessera/check.h"

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

/* First values of elements [at, at + count) of a piece. */
static enum tess_status params_begin(const struct tess_engine *engine,
                                     const struct tess_piece *piece, int64_t at, int64_t count,
                                     float *w)
{
    const struct tess_rng_key key =
        tess_rng_key((uint64_t)engine->config->run.seed, TESS_RNG_INIT, (uint64_t)piece->param);
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t whole;
        run = tess_piece_run(piece, &engine->declare.axis, at + done, &whole, NULL);
        run = run < count - done ? run : count - done;
        if (engine->weights)
            TESS_TRY(tess_weights_read(engine->weights, piece->param, whole, run, w + done));
        else
            params_fill(piece->of, key, whole, run, w + done);
    }
    return TESS_OK;
}

/* A piece without a master is made in the optimizer's chunk and rounded from there. */
static enum tess_status params_init_piece(struct tess_engine *engine,
                                          const struct tess_piece *piece)
{
    struct tess_kernel *kernel = engine->kernel;
    const int64_t most = piece->w ? piece->count : TESS_OPTIM_CHUNK;
    for (int64_t at = 0; at < piece->count; at += most) {
        int64_t count = piece->count - at < most ? piece->count - at : most;
        float *w = piece->w ? piece->w : engine->optim.chunk;
        kernel->ops->access(kernel, true);
        enum tess_status status = params_begin(engine, piece, at, count, w);
        kernel->ops->access(kernel, false);
        TESS_TRY(status);
        if (piece->low)
            tess_cast(kernel, count, TESS_F32, w, engine->plan.dtype,
                      (char *)piece->low + (size_t)at * engine->dtype_bytes);
    }
    return TESS_OK;
}

enum tess_status tess__engine_init_params(struct tess_engine *engine)
{
    for (int32_t i = 0; i < engine->optim.piece_count; i++)
        TESS_TRY(params_init_piece(engine, &engine->piece[i]));
    return engine->strategy.ops->params_refresh(&engine->strategy);
}

const float *tess__engine_values(const struct tess_engine *engine, const struct tess_piece *piece,
                                 int64_t from, int64_t count, float *room)
{
    if (piece->w)
        return piece->w + from;
    const uint16_t *low = (const uint16_t *)piece->low + from;
    for (int64_t i = 0; i < count; i++)
        room[i] =
            engine->plan.dtype == TESS_F16 ? tess__f32_of_f16(low[i]) : tess__f32_of_bf16(low[i]);
    return room;
}
