/*
 * The early update: where one rank computes a step's gradient in one micro-batch, nothing has to be
 * known of all gradients before a parameter is updated. Then a model may have the operation that
 * computes a gradient apply the update too, part by part, while a part is in a cache
 * (tess_pass_update), and the step's end updates the rest. The arithmetic, and so the bits, are the
 * optimizer's.
 *
 * Steps that report which gradients are zero keep all of them until the end.
 */
#include "core/state.h"

#include "tessera/check.h"

struct tess_early {
    struct tess_engine *engine;
    bool on;        /* in this step */
    int32_t *piece; /* [parameters of the model] whose update it is; -1: none */
    bool *done;     /* [parameters of the model] in this step */
};

/* Whether a loss that the model computes itself is finite is known after backward of the last unit
 * alone, and a tied parameter has two gradients. */
static bool early_fits(const struct tess_engine *engine)
{
    const struct tess_kernel *kernel = engine->kernel;
    return engine->model.labels == 0 && !engine->model.tied && engine->plan.mesh.rank_count == 1 &&
           engine->plan.accumulate == 1 && engine->plan.optim_extent == TESS_EXTENT_FULL &&
           kernel->queue == NULL && !kernel->ops->far_memory && tess__shared_fits_model(engine) &&
           tess__shared_fits_optim(engine);
}

enum tess_status tess__early_open(struct tess_engine *engine)
{
    const int32_t params = engine->model.param_count;
    if (!early_fits(engine))
        return TESS_OK;
    struct tess_early *early = tess__engine_room(engine, 0, sizeof(*early));
    int32_t *piece = tess__engine_room(engine, params, sizeof(*piece));
    bool *done = tess__engine_room(engine, params, sizeof(*done));
    TESS_TRY(tess__engine_has_room(engine));
    *early = (struct tess_early){.engine = engine, .piece = piece, .done = done};
    for (int32_t p = 0; p < params; p++)
        piece[p] = -1;
    for (int32_t i = 0; i < engine->trained_piece_count; i++) {
        const struct tess_piece *of = &engine->piece[i];
        if (of->param_begin == 0 && of->count == tess_shape_count(&of->of->shape))
            piece[of->param] = i;
    }
    engine->early = early;
    return TESS_OK;
}

enum tess_status tess__early_begin(struct tess_engine *engine)
{
    struct tess_early *early = engine->early;
    if (early == NULL)
        return TESS_OK;
    early->on = !engine->progress.count_zeros;
    for (int32_t p = 0; p < engine->model.param_count; p++)
        early->done[p] = false;
    return early->on ? tess_optim_begin(&engine->optim) : TESS_OK;
}

const struct tess_update *tess_pass_update(const struct tess_pass *pass, int32_t param)
{
    struct tess_early *early = pass->early;
    if (early == NULL || !early->on || early->piece[param] < 0 || early->done[param])
        return NULL;
    early->done[param] = true;
    return tess_optim_update_of(&early->engine->optim, early->piece[param]);
}

bool tess__early_finish(struct tess_engine *engine)
{
    struct tess_early *early = engine->early;
    if (early == NULL || !early->on)
        return false;
    tess_optim_update_rest(&engine->optim, early->done);
    return true;
}
