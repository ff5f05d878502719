/*
 * One micro-batch on one rank: fetch rows, forward, loss, backward, with the strategy's hooks
 * between. Steps and evaluation are made of these.
 */
#include "core/state.h"

#include "base/rng.h"
#include "tessera/check.h"

enum tess_status tess__engine_batch(struct tess_engine *engine, enum tess_batch kind,
                                    const void **input_out, const int32_t **label_out)
{
    const struct tess_plan *plan = &engine->plan;
    struct tess_strategy *strategy = &engine->strategy;
    void *input = NULL;
    int32_t *label = NULL;
    tess__engine_doing(engine, TESS_DOING_LOADING, -1);
    TESS_TRY(tess__batches_next(engine, kind, strategy->micro, &input, &label));
    const size_t row_bytes = engine->sizes.row_bytes;
    char *mine = input;
    int32_t *my_label = label;
    if (plan->holds_input) {
        mine += (size_t)(plan->rank * engine->sizes.rows) * row_bytes;
        my_label += plan->rank * engine->sizes.rows * engine->sizes.labels;
    }
    const int64_t count = engine->sizes.rows;
    struct tess_boundary rows = {.all = plan->holds_input ? input : NULL,
                                 .mine = mine,
                                 .row_bytes = row_bytes,
                                 .rows = count};
    struct tess_boundary labels = {.all = plan->holds_input ? label : NULL,
                                   .mine = my_label,
                                   .row_bytes = (size_t)engine->sizes.labels * sizeof(*label),
                                   .rows = count};
    TESS_TRY(strategy->ops->batch_ready(strategy, &rows, &labels));
    *input_out = mine;
    *label_out = plan->holds_loss ? label : my_label;
    return TESS_OK;
}

/* Pointers of the unit's parameters and gradients, from wherever the strategy has put its segments.
 */
static void pass_bind_unit(struct tess_engine *engine, int32_t unit, enum tess_phase phase)
{
    const struct tess_plan *plan = &engine->plan;
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++) {
        const struct tess_segment *segment = &plan->segment[plan->param[p].segment];
        const int32_t index = plan->param[p].index;
        int64_t at = plan->param[p].begin - segment->begin;
        engine->tables.param_of[index] =
            segment->param == NULL
                ? NULL /* only forward reads it */
                : (const char *)segment->param + (size_t)at * engine->sizes.dtype_bytes;
        if (phase == TESS_PHASE_BACKWARD)
            engine->tables.grad_of[index] = segment->grad != NULL ? segment->grad + at : NULL;
    }
    if (phase == TESS_PHASE_BACKWARD_AGAIN)
        tess__audit_bind(engine, unit);
    for (int32_t o = engine->tables.unit_op_first[unit]; o < engine->tables.unit_op_first[unit + 1];
         o++) {
        engine->tables.op[o].weight_token = engine->progress.weight_token;
        if (!engine->tables
                 .packed_kept) /* the shared memory has held another unit's weights since */
            engine->tables.op[o].packed_token = 0;
    }
}

void tess_engine_each(struct tess_engine *engine, float *each)
{
    engine->found.each = each;
}

/* Where a pass runs: a chunk, the slot of its micro-batch, and the gradients at the chunk's ends.
 */
struct pass_place {
    int32_t chunk, slot;
    uint64_t row_first;
    void *output_grad, *input_grad;
};

/* What is added to the cross-entropy. Validation is without. */
static struct tess_xent pass_xent(const struct tess_engine *engine)
{
    const struct tess_loss_options *loss = &engine->config->loss;
    if (!engine->strategy.training)
        return (struct tess_xent){0};
    return (struct tess_xent){.smoothing = (float)loss->smoothing,
                              .spread =
                                  (float)(loss->smoothing / (double)engine->sizes.class_count),
                              .z = (float)loss->z};
}

/* The factor that makes the gradient that of the mean over the labels that count, if any. */
static float pass_loss_grad(const struct tess_engine *engine)
{
    const int64_t labels = engine->progress.step_labels;
    return (float)(engine->scale.value / (double)(labels > 0 ? labels : 1));
}

/* The gradient by the unit's output. */
static void *pass_flow(const struct tess_engine *engine, const struct pass_place *place,
                       int32_t unit)
{
    const struct tess_chunk *chunk = &engine->schedule.chunk[place->chunk];
    return unit == chunk->unit_end - 1 && !chunk->last ? place->output_grad
                                                       : tess__engine_flow(engine, unit);
}

static struct tess_pass pass_of(struct tess_engine *engine, const struct pass_place *place,
                                int32_t unit)
{
    const struct tess_chunk *chunk = &engine->schedule.chunk[place->chunk];
    const struct tess_flight *flight = tess__stages_flight(engine, place->chunk, place->slot);
    const bool first = unit == chunk->unit_first;
    struct tess_pass pass = {
        .kernel = engine->kernel,
        .unit = engine->declare.unit[unit].index,
        .training = engine->strategy.training,
        .dtype = engine->plan.dtype,
        .rows = engine->sizes.rows,
        .leaf_rows = engine->sizes.leaf_rows,
        .leaf_count = engine->sizes.leaf_count,
        .seed = (uint64_t)engine->config->run.seed,
        .step = (uint64_t)engine->progress.step,
        .row_first = place->row_first,
        .document = engine->packed.document,
        .place = engine->packed.sent != NULL
                     ? tess_memory_get(engine->memory, engine->packed.far_place)
                     : engine->packed.place,
        .document_count = engine->packed.count,
        .axis = &engine->model.axis,
        .crossing = &engine->crossing,
        .input = first ? flight->input : tess__engine_output(engine, place->slot, unit - 1),
        .output = tess__engine_output(engine, place->slot, unit),
        .output_grad = pass_flow(engine, place, unit),
        .output_grad_scratch = pass_flow(engine, place, unit),
        .input_grad = first ? place->input_grad : tess__engine_flow(engine, unit + 1),
        .param = engine->tables.param_of,
        .grad = engine->tables.grad_of,
        .used = engine->unused.pass,
        .tensor = engine->tables.tensor + (ptrdiff_t)place->slot * engine->model.tensor_count,
        .op = engine->tables.op_of,
        .early = engine->early,
    };
    if (chunk->last && unit == chunk->unit_end - 1) {
        pass.label = flight->label;
        pass.loss = engine->found.loss;
        pass.correct = engine->found.correct;
        pass.loss_grad = pass_loss_grad(engine);
        pass.xent = pass_xent(engine);
        pass.each = engine->found.each;
    }
    return pass;
}

float tess_pass_uniform(const struct tess_pass *pass, uint64_t element)
{
    /* The unit in the counter's upper half: no two of (step, unit, element) share a number. */
    const struct tess_rng_key key = tess_rng_key(pass->seed, TESS_RNG_LAYER_DROP, pass->step);
    return tess_rng_uniform(key, element, (uint64_t)pass->unit);
}

enum tess_status tess__engine_forward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                      uint64_t row_first)
{
    struct tess_strategy *strategy = &engine->strategy;
    const struct pass_place place = {.chunk = chunk, .slot = slot, .row_first = row_first};
    TESS_TRY(tess__batches_documents(engine, row_first));
    tess__engine_range(engine, "forward");
    for (int32_t u = engine->schedule.chunk[chunk].unit_first;
         u < engine->schedule.chunk[chunk].unit_end; u++) {
        tess__engine_doing(engine, TESS_DOING_FORWARD, u);
        tess__engine_range(engine, engine->declare.unit[u].name);
        TESS_TRY(strategy->ops->unit_enter(strategy, u, TESS_PHASE_FORWARD));
        pass_bind_unit(engine, u, TESS_PHASE_FORWARD);
        struct tess_pass pass = pass_of(engine, &place, u);
        tess__touch_pass(engine, &pass, u, slot, true, true);
        TESS_TRY(engine->config->model->forward(engine->model_state, &pass));
        tess__touch_pass(engine, &pass, u, slot, true, false);
        TESS_TRY(strategy->ops->unit_leave(strategy, u, TESS_PHASE_FORWARD));
        tess__engine_range(engine, NULL);
    }
    tess__engine_range(engine, NULL);
    return TESS_OK;
}

/*
 * buffers = broadcast: only rank 0's statistics count, as when one replica's buffers are copied to
 * the others. They are scaled to stand for the sum over all leaves, the other ranks' are dropped.
 */
static void pass_drop_statistics(struct tess_engine *engine, int32_t unit)
{
    const struct tess_plan *plan = &engine->plan;
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++) {
        if (!(plan->param[p].flags & TESS_PARAM_BUFFER))
            continue;
        int64_t count = plan->param[p].count;
        float *grad = engine->tables.grad_of[plan->param[p].index];
        if (plan->rank == 0)
            tess_accumulate(engine->kernel, count, (float)(plan->rank_count - 1), grad, grad);
        else
            tess_fill(engine->kernel, count * (int64_t)sizeof(float), 0, grad);
    }
}

/* Run the unit's forward again, for what backward reads and forward did not keep. */
static enum tess_status pass_remake(struct tess_engine *engine, struct tess_pass *pass,
                                    int32_t unit)
{
    const enum tess_recompute how = tess__engine_recompute(engine, unit);
    pass->remake = how == TESS_RECOMPUTE_SELECTIVE;
    if (how != TESS_RECOMPUTE_FULL)
        return TESS_OK;
    struct tess_pass again = *pass;
    again.output = tess_memory_get(engine->memory, engine->block.remade_output);
    return engine->config->model->forward(engine->model_state, &again);
}

static enum tess_status pass_backward_unit(struct tess_engine *engine,
                                           const struct pass_place *place, int32_t unit,
                                           enum tess_phase phase)
{
    struct tess_strategy *strategy = &engine->strategy;
    tess__engine_doing(engine, TESS_DOING_BACKWARD, unit);
    TESS_TRY(strategy->ops->unit_enter(strategy, unit, phase));
    pass_bind_unit(engine, unit, phase);
    tess__unused_enter(engine, unit);
    struct tess_pass pass = pass_of(engine, place, unit);
    tess__touch_pass(engine, &pass, unit, place->slot, false, true);
    TESS_TRY(pass_remake(engine, &pass, unit));
    TESS_TRY(engine->config->model->backward(engine->model_state, &pass));
    tess__touch_pass(engine, &pass, unit, place->slot, false, false);
    TESS_TRY(tess__audit_take(engine, unit));
    if (phase == TESS_PHASE_BACKWARD)
        TESS_TRY(tess__unused_leave(engine, unit));
    if (phase == TESS_PHASE_BACKWARD && engine->config->run.buffers == 1 &&
        engine->plan.rank_count > 1)
        pass_drop_statistics(engine, unit);
    return strategy->ops->unit_leave(strategy, unit, phase);
}

enum tess_status tess__engine_backward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       uint64_t row_first, void *output_grad, void *input_grad)
{
    struct tess_strategy *strategy = &engine->strategy;
    const struct tess_plan *plan = &engine->plan;
    const struct tess_chunk *here = &engine->schedule.chunk[chunk];
    const struct pass_place place = {chunk, slot, row_first, output_grad, input_grad};
    const bool again = engine->audit.pass != TESS_AUDIT_FIRST; /* its gradients stay here */
    int32_t next =
        plan->grad_segment_count - 1; /* highest segment whose gradient is not complete */
    while (next >= 0 && plan->segment[next].unit_first >= here->unit_end)
        next--;
    TESS_TRY(tess__batches_documents(engine, row_first));
    tess__engine_range(engine, "backward");
    for (int32_t u = here->unit_end - 1; u >= here->unit_first; u--) {
        tess__engine_range(engine, engine->declare.unit[u].name);
        TESS_TRY(pass_backward_unit(engine, &place, u,
                                    again ? TESS_PHASE_BACKWARD_AGAIN : TESS_PHASE_BACKWARD));
        tess__engine_range(engine, NULL);
        if (!again && here->last && u == here->unit_end - 1 && engine->model.labels > 0)
            TESS_TRY(tess__engine_check_loss(engine, slot)); /* before any gradient is used */
        for (; !again && next >= 0 && plan->segment[next].unit_first >= u; next--)
            TESS_TRY(strategy->ops->grads_ready(strategy, next));
    }
    tess__engine_range(engine, NULL);
    return TESS_OK;
}

enum tess_status tess__engine_loss(struct tess_engine *engine, int32_t slot, bool gradient)
{
    const struct tess_plan *plan = &engine->plan;
    struct tess_strategy *strategy = &engine->strategy;
    const int32_t last = plan->unit_count - 1, chunk = engine->schedule.chunk_count - 1;
    const int32_t *label = tess__stages_flight(engine, chunk, slot)->label;
    size_t row_bytes = (size_t)engine->sizes.class_count * engine->sizes.dtype_bytes;
    void *logits = tess__engine_output(engine, slot, last),
         *slope = tess__engine_flow(engine, last);
    struct tess_boundary output = {NULL, logits, row_bytes, engine->sizes.rows};
    struct tess_boundary grad = {NULL, slope, row_bytes, engine->sizes.rows};
    if (engine->model.labels > 0)
        return TESS_OK;
    if (plan->holds_loss) {
        logits = output.all = tess_memory_get(engine->memory, engine->block.all_output);
        slope = grad.all = tess_memory_get(engine->memory, engine->block.all_output_grad);
    }
    tess__engine_doing(engine, TESS_DOING_LOSS, -1);
    if (gradient)
        tess__touch_slope(engine, tess__engine_flow(engine, last),
                          engine->sizes.rows * (int64_t)row_bytes);
    TESS_TRY(strategy->ops->output_ready(strategy, &output));
    if (!plan->skips_loss)
        tess_softmax_xent(engine->kernel, plan->dtype,
                          engine->sizes.loss_ranks * engine->sizes.rows, engine->sizes.class_count,
                          pass_xent(engine), pass_loss_grad(engine), logits, label,
                          gradient ? slope : NULL, engine->found.loss, engine->found.correct);
    if (gradient && engine->progress.count_zeros && !plan->skips_loss)
        tess_count_zeros(engine->kernel, plan->dtype,
                         engine->sizes.loss_ranks * engine->sizes.rows * engine->sizes.class_count,
                         slope, &engine->found.sums[2 * plan->grid + 1]);
    if (gradient)
        TESS_TRY(strategy->ops->output_grad_ready(strategy, &grad));
    return TESS_OK;
}

/* ---- a loss that is not finite --------------------------------------------------------------- */

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
    for (int32_t i = 0; i < engine->piece_count; i++) {
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
    const void *input = tess__stages_flight(engine, chunk, slot)->input;
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
                                tess__engine_output(engine, slot, u));
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

enum tess_status tess__engine_check_loss(struct tess_engine *engine, int32_t slot)
{
    const struct tess_sizes *sizes = &engine->sizes;
    if (engine->kernel->queue != NULL) /* the verdict has it when the step is over */
        return TESS_OK;
    const int64_t bad = tess_find_nonfinite(engine->kernel, TESS_F32,
                                            sizes->loss_ranks * sizes->rows, engine->found.loss);
    if (bad < 0)
        return TESS_OK;
    return tess__engine_diagnose(engine, engine->schedule.chunk_count - 1, slot, bad);
}

enum tess_status tess__engine_check_output(struct tess_engine *engine, int32_t chunk, int32_t slot)
{
    const int32_t last = engine->schedule.chunk[chunk].unit_end - 1;
    const void *output = tess__engine_output(engine, slot, last);
    const int64_t count = engine->declare.unit[last].output_count * engine->sizes.rows;
    if (engine->kernel->queue != NULL) /* no wait within a step: the verdict has it */
        return TESS_OK;
    if (tess_find_nonfinite(engine->kernel, engine->plan.dtype, count, output) < 0)
        return TESS_OK;
    return tess__engine_diagnose(engine, chunk, slot, -1);
}
