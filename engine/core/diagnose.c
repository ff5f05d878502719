/*
 * A loss that is not a number: finds the first tensor, in the order of computation, that holds a
 * NaN or infinity. Reads what the step has left in memory; communicates nothing, so that one rank
 * can do it alone before it stops the others. And how messages list the ranks they are about.
 */
#include "core/state.h"

#include "tessera/check.h"

#include <stdio.h>

#define DIAGNOSE_RANKS_MAX 8

void tess__rank_list_add(struct tess_rank_list *list, int32_t rank)
{
    const size_t room = sizeof list->text;
    if (list->count++ < DIAGNOSE_RANKS_MAX)
        list->length += (size_t)snprintf(list->text + list->length, room - list->length, "%s%d",
                                         list->count > 1 ? ", " : "", rank);
    else
        snprintf(list->text + list->length, room - list->length, " and %d more",
                 list->count - DIAGNOSE_RANKS_MAX);
}

/* What a type of little range may have to do with it. */
static const char *diagnose_range(const struct tess_engine *engine)
{
    return engine->plan.dtype == TESS_F16
               ? "; f16 ends at 65504, which loss scaling does not change for outputs: --precision "
                 "bf16 has the range of f32"
               : "";
}

/* The piece of a parameter on this rank that is not finite: NaNs in weights come before any output.
 */
static enum tess_status diagnose_params(struct tess_engine *engine)
{
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        int64_t at =
            piece->w
                ? tess_find_nonfinite(engine->kernel, TESS_F32, piece->count, piece->w)
                : tess_find_nonfinite(engine->kernel, engine->plan.dtype, piece->count, piece->low);
        if (at < 0)
            continue;
        const struct tess_declare_param *param = piece->of;
        TESS_FAIL(
            TESS_ERR_NUMERIC,
            "the loss is not finite at step %lld: unit '%s', parameter '%s' "
            "held the first NaN or infinity (element %lld); try a lower learning rate, warm-up or "
            "--clip%s",
            (long long)engine->step + 1, engine->declare.unit[param->unit].name, param->name,
            (long long)(piece->param_begin + at), diagnose_range(engine));
    }
    return TESS_OK;
}

/* Tokens are always finite. */
static enum tess_status diagnose_input(struct tess_engine *engine, int32_t slot)
{
    const void *input = engine->pipe.flight[slot].input;
    const int64_t row = tess_shape_count(&engine->dataset->row);
    if (engine->dataset->tokens || !engine->pipe.chunk[0].first)
        return TESS_OK;
    int64_t at = tess_find_nonfinite(engine->kernel, engine->plan.dtype, engine->rows * row, input);
    if (at >= 0)
        TESS_FAIL(TESS_ERR_NUMERIC,
                  "the loss is not finite at step %lld: the input held the first NaN "
                  "or infinity (row %lld, element %lld)",
                  (long long)engine->step + 1, (long long)(at / row), (long long)(at % row));
    return TESS_OK;
}

enum tess_status tess__engine_diagnose(struct tess_engine *engine, int32_t slot, int64_t loss_row)
{
    const struct tess_declare *declare = &engine->declare;
    long long step = (long long)engine->step + 1;
    TESS_TRY(diagnose_input(engine, slot));
    TESS_TRY(diagnose_params(engine));
    for (int32_t u = 0; u < declare->unit_count; u++) {
        int64_t count = declare->unit[u].output_count;
        /* A model with its own loss need not write its last output. */
        if (declare->labels > 0 && declare->unit[u].index == engine->model.unit_count - 1)
            break;
        int64_t at = tess_find_nonfinite(engine->kernel, engine->plan.dtype, engine->rows * count,
                                         engine->unit_output[slot * declare->unit_count + u]);
        if (at >= 0)
            TESS_FAIL(
                TESS_ERR_NUMERIC,
                "the loss is not finite at step %lld: unit '%s', tensor 'output' "
                "held the first NaN or infinity (row %lld, element %lld); try a lower learning "
                "rate, warm-up or --clip%s",
                step, declare->unit[u].name, (long long)(at / count), (long long)(at % count),
                diagnose_range(engine));
    }
    TESS_FAIL(TESS_ERR_NUMERIC,
              "the loss is not finite at step %lld: tensor 'loss' of row %lld held the "
              "first one%s",
              step, (long long)loss_row, diagnose_range(engine));
}
