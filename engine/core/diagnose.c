/*
 * A loss that is not finite: finds the first tensor, in the order of computation, that holds a NaN
 * or infinity. Reads the memory of the step and communicates nothing, so that one rank can do it
 * alone before it stops the others. In a pipeline each stage checks the output that it sends, since
 * the stage of the loss does not have the tensors of the others.
 */
#include "core/state.h"

#include "tessera/check.h"

/* A hint for types of small range. */
static const char *diagnose_range(const struct tess_engine *engine)
{
    return engine->plan.dtype == TESS_F16
               ? "; f16 ends at 65504, which loss scaling does not change for outputs: --precision "
                 "bf16 has the range of f32"
               : "";
}

/* The subject of the message, for a chunk. */
static const char *diagnose_what(const struct tess_engine *engine, int32_t chunk)
{
    return engine->schedule.chunk[chunk].last ? "the loss is" : "the output for the next stage is";
}

/* The piece of a parameter on this rank that is not finite: NaNs in weights come before any output.
 */
static enum tess_status diagnose_params(struct tess_engine *engine, int32_t chunk)
{
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        int64_t at =
            piece->w != NULL
                ? tess_find_nonfinite(engine->kernel, TESS_F32, piece->count, piece->w)
                : tess_find_nonfinite(engine->kernel, engine->plan.dtype, piece->count, piece->low);
        if (at < 0)
            continue;
        const struct tess_declare_param *param = piece->of;
        TESS_FAIL(TESS_ERR_NUMERIC,
                  "%s not finite at step %lld: unit '%s', parameter '%s' held the first NaN or "
                  "infinity (element %lld); try a lower learning rate, warm-up or --clip%s",
                  diagnose_what(engine, chunk), (long long)engine->progress.step + 1,
                  engine->declare.unit[param->unit].name, param->name,
                  (long long)(piece->param_begin + at), diagnose_range(engine));
    }
    return TESS_OK;
}

/* Tokens are always finite. */
static enum tess_status diagnose_input(struct tess_engine *engine, int32_t chunk, int32_t slot)
{
    const void *input = tess__stages_flight(&engine->stages, chunk, slot)->input;
    const bool first = engine->schedule.chunk[chunk].first;
    const int64_t row =
        first ? tess_shape_count(&engine->dataset->row) : engine->schedule.chunk[chunk].input_count;
    if (first && engine->dataset->tokens)
        return TESS_OK;
    int64_t at =
        tess_find_nonfinite(engine->kernel, engine->plan.dtype, engine->sizes.rows * row, input);
    if (at >= 0)
        TESS_FAIL(TESS_ERR_NUMERIC,
                  "%s not finite at step %lld: the input%s held the first NaN or infinity (row "
                  "%lld, element %lld)",
                  diagnose_what(engine, chunk), (long long)engine->progress.step + 1,
                  first ? "" : ", which comes from the stage before,", (long long)(at / row),
                  (long long)(at % row));
    return TESS_OK;
}

enum tess_status tess__engine_diagnose(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       int64_t loss_row)
{
    const struct tess_declare *declare = &engine->declare;
    const struct tess_chunk *here = &engine->schedule.chunk[chunk];
    long long step = (long long)engine->progress.step + 1;
    TESS_TRY(diagnose_input(engine, chunk, slot));
    TESS_TRY(diagnose_params(engine, chunk));
    for (int32_t u = here->unit_first; u < here->unit_end; u++) {
        int64_t count = declare->unit[u].output_count;
        /* A model with its own loss need not write its last output. */
        if (declare->labels > 0 && declare->unit[u].index == engine->model.unit_count - 1)
            break;
        int64_t at =
            tess_find_nonfinite(engine->kernel, engine->plan.dtype, engine->sizes.rows * count,
                                engine->tables.unit_output[slot * declare->unit_count + u]);
        if (at >= 0)
            TESS_FAIL(
                TESS_ERR_NUMERIC,
                "%s not finite at step %lld: unit '%s', tensor 'output' held the first NaN or "
                "infinity (row %lld, element %lld); try a lower learning rate, warm-up or --clip%s",
                diagnose_what(engine, chunk), step, declare->unit[u].name, (long long)(at / count),
                (long long)(at % count), diagnose_range(engine));
    }
    TESS_FAIL(TESS_ERR_NUMERIC,
              "the loss is not finite at step %lld: tensor 'loss' of row %lld held the first one%s",
              step, (long long)loss_row, diagnose_range(engine));
}

enum tess_status tess__engine_check_output(struct tess_engine *engine, int32_t chunk, int32_t slot)
{
    const int32_t last = engine->schedule.chunk[chunk].unit_end - 1;
    const void *output = engine->tables.unit_output[slot * engine->plan.unit_count + last];
    const int64_t count = engine->declare.unit[last].output_count * engine->sizes.rows;
    if (engine->kernel->queue != NULL) /* no wait within a step: the verdict has it */
        return TESS_OK;
    if (tess_find_nonfinite(engine->kernel, engine->plan.dtype, count, output) < 0)
        return TESS_OK;
    return tess__engine_diagnose(engine, chunk, slot, -1);
}
