/*
 * Passes of a unit, which are alike from one micro-batch to the next: what the first one's
 * operations took is kept, and taken again. So the model runs once for each unit and direction,
 * which is most of the time of a prediction.
 */
#include "predict/virtual.h"

#include "tessera/check.h"

#include <stdlib.h>

static enum tess_status unit_pass(void *state, const struct tess_pass *pass, bool forward)
{
    struct virtual_rank *rank = virtual_rank_of(pass->kernel);
    const struct tess_model_ops *model = rank->world->model;
    struct virtual_unit *unit =
        rank->unit != NULL && pass->early == NULL ? &rank->unit[2 * pass->unit + forward] : NULL;
    if (unit != NULL && unit->known && unit->far_s == rank->far_s) {
        for (int32_t i = 0; i < unit->count; i++)
            virtual_work(rank, unit->spell[i].sort, unit->spell[i].seconds);
        return TESS_OK;
    }
    if (unit != NULL)
        unit->count = 0;
    rank->unit_at = unit;
    TESS_TRY(forward ? model->forward(state, pass) : model->backward(state, pass));
    if (rank->unit_at != NULL) { /* nothing but operations */
        unit->known = true;
        unit->far_s = rank->far_s;
    }
    rank->unit_at = NULL;
    return TESS_OK;
}

static enum tess_status unit_forward(void *state, const struct tess_pass *pass)
{
    return unit_pass(state, pass, true);
}

static enum tess_status unit_backward(void *state, const struct tess_pass *pass)
{
    return unit_pass(state, pass, false);
}

struct tess_model_ops virtual_model(const struct tess_model_ops *real)
{
    struct tess_model_ops model = *real;
    model.forward = unit_forward;
    model.backward = unit_backward;
    return model;
}

void virtual_units_free(struct virtual_rank *rank)
{
    for (int32_t i = 0; rank->unit != NULL && i < 2 * rank->unit_count; i++)
        free(rank->unit[i].spell);
    free(rank->unit);
}
