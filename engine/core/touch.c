/* What the passes of a step touch of a rank's arena, reported to an observer; see engine.h. */
#include "core/state.h"

#include "core/layout.h"
#include "tessera/check.h"

void tess_engine_watch(struct tess_engine *engine, tess_touched *touched, void *context)
{
    engine->watch = (struct tess_watch){.touched = touched, .context = context};
}

static void touch(const struct tess_engine *engine, const void *at, int64_t bytes, bool begins,
                  bool brief)
{
    const struct tess_touch one = {
        .at = at, .bytes = (uint64_t)bytes, .begins = begins, .brief = brief};
    if (at != NULL && bytes > 0)
        engine->watch.touched(engine->watch.context, &one);
}

static int64_t touch_output_bytes(const struct tess_engine *engine, int32_t unit)
{
    return engine->declare.unit[unit].output_count * engine->sizes.rows *
           (int64_t)engine->sizes.dtype_bytes;
}

/* What the unit reads: rows of the data, what the stage before sent, or the output before. */
static int64_t touch_input_bytes(const struct tess_engine *engine, int32_t unit)
{
    const int32_t c = engine->declare.unit[unit].chunk;
    const struct tess_chunk *chunk = &engine->schedule.chunk[c];
    if (unit > chunk->unit_first)
        return touch_output_bytes(engine, unit - 1);
    return chunk->first ? engine->sizes.rows * (int64_t)engine->sizes.row_bytes
                        : tess__stages_input_count(engine, c) * (int64_t)engine->sizes.dtype_bytes;
}

/* Tensors that last begin in forward; those of one pass, and what is made again, in each. */
static void touch_tensors(const struct tess_engine *engine, int32_t unit, int32_t slot, bool begins,
                          bool forward)
{
    const struct tess_declare *declare = &engine->declare;
    for (int32_t t = 0; t < declare->tensor_count; t++) {
        const struct tess_declare_tensor *tensor = &declare->tensor[t];
        const bool brief = tess__tensor_is_brief(engine, tensor);
        if (tensor->unit == unit)
            touch(engine, engine->tables.tensor[slot * engine->model.tensor_count + tensor->index],
                  (int64_t)engine->block.tensor[slot * declare->tensor_count + t].bytes,
                  begins && (forward || brief), brief);
    }
}

static void touch_params(const struct tess_engine *engine, int32_t unit, bool begins, bool forward)
{
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++) {
        const struct tess_plan_param *param = &engine->plan.param[p];
        touch(engine, engine->tables.param_of[param->index],
              param->count * (int64_t)engine->sizes.dtype_bytes, false, false);
        if (!forward)
            touch(engine, engine->tables.grad_of[param->index],
                  param->count * (int64_t)sizeof(float), begins, false);
    }
}

static void touch_scratch(const struct tess_engine *engine, int32_t unit, bool begins)
{
    uint64_t most = 0;
    for (int32_t o = engine->tables.unit_op_first[unit]; o < engine->tables.unit_op_first[unit + 1];
         o++) {
        struct tess_op_needs needs = {0};
        if (tess__op_needs(engine->kernel, &engine->declare, o, &needs) == TESS_OK &&
            needs.scratch_bytes > most)
            most = needs.scratch_bytes;
    }
    touch(engine, tess_memory_get(engine->memory, engine->block.op_scratch), (int64_t)most, begins,
          false);
}

void tess__touch_pass(const struct tess_engine *engine, const struct tess_pass *pass, int32_t unit,
                      int32_t slot, bool forward, bool begins)
{
    const int64_t output = touch_output_bytes(engine, unit);
    if (engine->watch.touched == NULL)
        return;
    touch(engine, pass->input, touch_input_bytes(engine, unit), false, false);
    touch(engine, pass->output, output, forward && begins, false);
    touch_tensors(engine, unit, slot, begins, forward);
    touch_params(engine, unit, begins, forward);
    touch_scratch(engine, unit, begins);
    if (forward)
        return;
    if (pass->label == NULL ||
        engine->model.labels == 0) /* else the unit computes the loss itself */
        touch(engine, pass->output_grad, output, false, true);
    touch(engine, pass->input_grad, touch_input_bytes(engine, unit), begins, true);
    if (tess__engine_recompute(engine, unit) == TESS_RECOMPUTE_FULL)
        touch(engine, tess_memory_get(engine->memory, engine->block.remade_output), output, begins,
              true);
}

void tess__touch_slope(const struct tess_engine *engine, const void *slope, int64_t bytes)
{
    if (engine->watch.touched != NULL)
        touch(engine, slope, bytes, true, true);
}
