/* The text of --explain about a planned engine: units, segments, extents, precision, memory; and
 * the bytes that a rank sends. */
#include "core/state.h"

#include "base/arena.h"
#include "config/precision.h"
#include "tessera/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the line about the order of work: what a screen holds. */
#define DESCRIBE_ORDER_BYTES 140

struct describe_sink {
    void (*line)(void *context, const char *text);
    void *context;
};

static void describe_line(const struct describe_sink *sink, const char *format, ...)
    TESS_PRINTF(2, 3);
static void describe_line(const struct describe_sink *sink, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    sink->line(sink->context, text);
}

static const char *describe_extent(enum tess_extent extent)
{
    static const char *const name[] = {"full", "sharded", "none"};
    return name[extent];
}

/* "units a .. b", or "unit a" alone. */
static const char *describe_units(const char *first, const char *last, char text[160])
{
    if (strcmp(first, last) == 0)
        snprintf(text, 160, "unit %s", first);
    else
        snprintf(text, 160, "units %s .. %s", first, last);
    return text;
}

/* The order of this rank's work, "F0 F1 B0 ...", with the chunk first where there are several. */
static void describe_order(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const struct tess_schedule *schedule = &engine->schedule;
    char text[DESCRIBE_ORDER_BYTES] = "";
    size_t used = 0;
    for (int32_t i = 0; i < schedule->action_count; i++) {
        const struct tess_action *action = &schedule->action[i];
        const char letter = action->phase == TESS_PHASE_FORWARD ? 'F' : 'B';
        if (used + 24 > sizeof(text)) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, " ... (%d in all)",
                                     schedule->action_count);
            break;
        }
        if (schedule->chunk_count > 1)
            used += (size_t)snprintf(text + used, sizeof(text) - used, " %c%d.%d", letter,
                                     action->chunk, action->micro);
        else
            used +=
                (size_t)snprintf(text + used, sizeof(text) - used, " %c%d", letter, action->micro);
    }
    describe_line(sink, "order     %s%s", schedule->chunk_count > 1 ? " (chunk.micro-batch)" : "",
                  text);
}

/* What every stage runs, and when this rank does. */
static void describe_stages(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const struct tess_schedule *schedule = &engine->schedule;
    const struct tess_declare *model = &engine->model;
    const int32_t stages = engine->plan.mesh.count[TESS_AXIS_STAGE];
    const int32_t here = engine->plan.mesh.at[TESS_AXIS_STAGE];
    for (int32_t first = 0, last; first < model->unit_count; first = last + 1) {
        const int32_t v = schedule->stage_of[first];
        char units[160], chunk[32] = "", mine[80] = "";
        for (last = first; last + 1 < model->unit_count && schedule->stage_of[last + 1] == v;)
            last++;
        if (schedule->chunk_count > 1)
            snprintf(chunk, sizeof(chunk), ", chunk %d", v / stages);
        if (v % stages == here)
            snprintf(mine, sizeof(mine), "  <- this rank, %d micro-batch%s under way",
                     schedule->chunk[v / stages].slot_count,
                     schedule->chunk[v / stages].slot_count == 1 ? "" : "es");
        describe_line(sink, "stage %-4d %s%s%s", v % stages,
                      describe_units(model->unit[first].name, model->unit[last].name, units), chunk,
                      mine);
    }
    describe_order(engine, sink);
}

/* Where this rank stands and what it keeps of the model; nothing where it keeps all. */
static void describe_mesh(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const struct tess_mesh *mesh = &engine->plan.mesh;
    const struct tess_tensor_axis *axis = &engine->model.axis;
    if (mesh->count[TESS_AXIS_DATA] == mesh->rank_count && axis->parts == 1)
        return;
    describe_line(
        sink, "mesh       data %d, tensor %d, stage %d; rank %d is data %d, tensor %d, stage %d",
        mesh->count[TESS_AXIS_DATA], mesh->count[TESS_AXIS_TENSOR], mesh->count[TESS_AXIS_STAGE],
        mesh->rank, mesh->at[TESS_AXIS_DATA], mesh->at[TESS_AXIS_TENSOR],
        mesh->at[TESS_AXIS_STAGE]);
    if (axis->parts > 1)
        describe_line(sink, "tensor     part %d of %d%s%s", axis->first, axis->parts,
                      axis->count > 1 ? " and those after it" : "",
                      axis->sequence ? "; sequence parallel" : "");
    if (mesh->count[TESS_AXIS_STAGE] > 1)
        describe_stages(engine, sink);
    describe_line(sink,
                  "sent       by this rank per step, by formula: data %" PRIu64
                  " B, tensor %" PRIu64 " B, stage %" PRIu64 " B",
                  tess_engine_axis_formula(engine, TESS_AXIS_DATA),
                  tess_engine_axis_formula(engine, TESS_AXIS_TENSOR),
                  tess_engine_axis_formula(engine, TESS_AXIS_STAGE));
}

static void describe_plan(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const struct tess_plan *plan = &engine->plan;
    describe_line(sink, "model      %s: %d units, %d parameters, %" PRId64 " elements",
                  engine->config->model->name, engine->model.unit_count, engine->model.param_count,
                  tess_declare_size(&engine->model));
    describe_mesh(engine, sink);
    describe_line(sink,
                  "batch      %" PRId64 " rows = %d leaves of %" PRId64
                  "; per rank %d micro-batch%s of %" PRId64 " lea%s (%s order)",
                  engine->sizes.batch_size, plan->grid, engine->sizes.leaf_rows, plan->accumulate,
                  plan->accumulate == 1 ? "" : "es", engine->sizes.leaf_count,
                  engine->sizes.leaf_count == 1 ? "f" : "ves",
                  plan->leaf_order == TESS_LEAVES_RANK_FIRST ? "rank-first" : "micro-first");
    describe_line(sink, "steps      %" PRId64 " (%" PRId64 " per epoch)", engine->sizes.step_count,
                  engine->sizes.steps_per_epoch);
    describe_line(sink, "storage    parameters %s, gradients %s, optimizer %s; shard %d of %d",
                  describe_extent(plan->param_extent), describe_extent(plan->grad_extent),
                  describe_extent(plan->optim_extent), plan->shard_index,
                  plan->shard_count > 1 ? plan->shard_count : 1);
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const struct tess_segment *segment = &plan->segment[s];
        char units[160];
        describe_line(
            sink, "segment %-2d %s: %d parameter%s, %" PRId64 " elements (%.2f MiB of gradients)",
            s,
            describe_units(plan->unit_name[segment->unit_first],
                           plan->unit_name[segment->unit_last], units),
            segment->param_count, segment->param_count == 1 ? "" : "s", segment->count,
            (double)segment->count * 4 / (1 << 20));
    }
}

static void describe_row(const struct describe_sink *sink, const char *name, const char *stored,
                         const char *multiplied, const char *accumulated)
{
    describe_line(sink, "  %-18s %-7s %-11s %s", name, stored, multiplied, accumulated);
}

/* A backend without products of the type widens the factors, which loses nothing: see f32_math. */
static const char *describe_product(enum tess_dtype dtype, bool wide)
{
    return wide ? "f32" : dtype == TESS_F16 ? "f16 or f32" : tess_dtype_name(dtype);
}

/* What each kind of operation in use does with its numbers. */
static void describe_operations(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const char *stored = tess_dtype_name(engine->plan.dtype);
    int32_t count[TESS_OP_KIND_COUNT] = {0};
    bool wide[TESS_OP_KIND_COUNT] = {false};
    for (int32_t o = 0; o < engine->declare.op_count; o++) {
        const struct tess_op_desc *desc = &engine->declare.op[o].desc;
        count[desc->kind]++;
        wide[desc->kind] = desc->f32_math;
    }
    describe_row(sink, "operation", "stored", "multiplied", "accumulated");
    for (int kind = 0; kind < TESS_OP_KIND_COUNT; kind++) {
        char name[32];
        snprintf(name, sizeof(name), "%s x %d", tess_precision_op_name((enum tess_op_kind)kind),
                 count[kind]);
        if (count[kind] == 0)
            continue;
        if (kind == TESS_OP_MAX_POOL)
            describe_row(sink, name, stored, "-", "-");
        else if (kind == TESS_OP_LINEAR || kind == TESS_OP_CONV2D)
            describe_row(sink, name, stored, describe_product(engine->plan.dtype, wide[kind]),
                         "f32");
        else
            describe_row(sink, name, stored, "f32",
                         kind == TESS_OP_BATCH_NORM ? "f32, statistics f32" : "f32");
    }
    describe_row(sink, "softmax, loss", stored, "f32", "f32, over rows f64");
}

static void describe_scale(const struct tess_scale *scale, const struct describe_sink *sink)
{
    if (scale->mode == TESS_SCALE_OFF)
        describe_line(sink, "  loss scale         off");
    else if (scale->mode == TESS_SCALE_STATIC)
        describe_line(
            sink, "  loss scale         %.10g; a step whose gradients are not finite is skipped",
            scale->value);
    else
        describe_line(sink,
                      "  loss scale         %.10g at first; x 2 after %" PRId64
                      " good steps; gradients not finite: x 0.5, step skipped",
                      scale->value, scale->interval);
}

static void describe_precision(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const struct tess_run_options *run = &engine->config->run;
    const char *stored = tess_dtype_name(engine->plan.dtype);
    describe_line(sink, "precision  %s", stored);
    describe_operations(engine, sink);
    if (engine->plan.dtype == TESS_F32)
        describe_line(sink, "  parameters         f32");
    else
        describe_line(sink, "  parameters         %s, rounded %s, %s", stored,
                      tess_precision_is_stochastic(run) ? "at random" : "to nearest even",
                      tess_precision_has_masters(run) ? "from f32 masters" : "without f32 masters");
    describe_line(sink, "  gradients          f32, between ranks %s",
                  tess_dtype_name(engine->plan.reduce_dtype));
    describe_line(sink, "  optimizer          f32, norms in exact sums");
    describe_scale(&engine->scale, sink);
}

/* Blocks of one kind and owner are one line: a model has many units of the same make, and a
 * pipeline several micro-batches under way. */
struct describe_blocks {
    struct describe_entry {
        enum tess_memory_kind kind;
        const char *owner; /* borrowed from the memory */
        uint64_t bytes;
        int32_t count;
    } * entry;
    int32_t count, room;
};

static void describe_collect(void *context, enum tess_memory_kind kind, const char *owner,
                             struct tess_block block)
{
    struct describe_blocks *blocks = context;
    int32_t e = 0;
    while (e < blocks->count &&
           (blocks->entry[e].kind != kind || strcmp(blocks->entry[e].owner, owner) != 0))
        e++;
    if (block.bytes == 0 || e == blocks->room)
        return;
    if (e == blocks->count)
        blocks->entry[blocks->count++] = (struct describe_entry){kind, owner, 0, 0};
    blocks->entry[e].bytes += block.bytes;
    blocks->entry[e].count++;
}

static void describe_count_block(void *context, enum tess_memory_kind kind, const char *owner,
                                 struct tess_block block)
{
    (void)kind, (void)owner, (void)block;
    ++*(int32_t *)context;
}

static void describe_memory(const struct tess_engine *engine, const struct describe_sink *sink)
{
    struct describe_blocks blocks = {0};
    tess_memory_visit(engine->memory, describe_count_block, &blocks.room);
    blocks.entry = calloc((size_t)blocks.room + 1, sizeof(*blocks.entry));
    if (blocks.entry == NULL) {
        describe_line(sink, "no memory to list the blocks of the arena");
        return;
    }
    char beside[48] = "";
    if (tess_memory_beside(engine->memory) > 0)
        snprintf(beside, sizeof(beside), ", %" PRIu64 " B beside it",
                 tess_memory_beside(engine->memory));
    describe_line(sink, "memory of rank %d, %" PRIu64 " B in one arena%s:", engine->plan.mesh.rank,
                  tess_memory_total(engine->memory), beside);
    tess_memory_visit(engine->memory, describe_collect, &blocks);
    for (int32_t e = 0; e < blocks.count; e++) {
        const struct describe_entry *entry = &blocks.entry[e];
        char count[32] = "";
        if (entry->count > 1)
            snprintf(count, sizeof(count), " (%d)", entry->count);
        describe_line(sink, "  %-11s %12" PRIu64 " B  %s%s", tess_memory_kind_name(entry->kind),
                      entry->bytes, entry->owner, count);
    }
    free(blocks.entry);
}

/* The stage strategy has no state, only its options. */
static void describe_stage(const struct tess_engine *engine,
                           void (*line)(void *context, const char *text), void *context)
{
    const struct tess_config *config = engine->config;
    struct tess_plan plan = engine->plan;
    const struct tess_strategy strategy = {.ops = config->axis[TESS_AXIS_STAGE],
                                           .options = config->axis_options[TESS_AXIS_STAGE],
                                           .plan = &plan};
    if (strategy.ops != NULL)
        strategy.ops->describe(&strategy, line, context);
}

void tess_engine_describe(const struct tess_engine *engine,
                          void (*line)(void *context, const char *text), void *context)
{
    struct describe_sink sink = {line, context};
    const struct tess_strategy strategy = tess__shared_strategy(engine);
    describe_plan(engine, &sink);
    describe_precision(engine, &sink);
    if (engine->config->data_chosen)
        strategy.ops->describe(&strategy, line, context);
    if (engine->tensor_strategy.ops != NULL)
        engine->tensor_strategy.ops->describe(&engine->tensor_strategy, line, context);
    describe_stage(engine, line, context);
    engine->kernel->ops->describe(engine->kernel, line, context);
    describe_memory(engine, &sink);
}

/* ---- bytes sent ------------------------------------------------------------------------------
 * Bytes that a rank sends in a step, by formula, along each axis of the mesh. The data axis'
 * formula is its strategy's. The tensor axis' follows from what the units declare (N ranks, n
 * bytes): an all-reduce sends 2 (N-1)/N n, a reduce-scatter or all-gather (N-1)/N n. A stage sends
 * its last unit's output once forward, and its input's gradient once backward, for each
 * micro-batch. And what was sent, as the groups have counted it.
 */

/* Elements that a unit's calls of one kind bring across in a micro-batch. */
static uint64_t volume_calls(const struct tess_engine *engine, int32_t unit,
                             enum tess_crossing_call call)
{
    const struct tess_declare_unit *declared = &engine->declare.unit[unit];
    const bool again = tess__engine_recompute(engine, unit) == TESS_RECOMPUTE_FULL;
    return (uint64_t)(declared->crossing[TESS_CALL_FORWARD][call] * (again ? 2 : 1) +
                      declared->crossing[TESS_CALL_BACKWARD][call]);
}

static uint64_t volume_tensor(const struct tess_engine *engine)
{
    const struct tess_tensor_axis *axis = &engine->model.axis;
    const struct tess_plan *plan = &engine->plan;
    const uint64_t ranks = (uint64_t)axis->rank_count;
    const uint64_t low = engine->crossing.canonical ? sizeof(float) : engine->sizes.dtype_bytes;
    uint64_t parts = 0; /* in (N-1)/N bytes */
    for (int32_t u = 0; u < engine->declare.unit_count; u++) {
        parts += (axis->sequence ? 1 : 2) * low * volume_calls(engine, u, TESS_CALL_SUM);
        parts += 2 * sizeof(float) * volume_calls(engine, u, TESS_CALL_F32);
        parts += axis->sequence ? low * volume_calls(engine, u, TESS_CALL_WIDEN) : 0;
    }
    parts *= (uint64_t)plan->accumulate;
    for (int32_t p = 0; axis->sequence && p < plan->param_count; p++)
        if (plan->param[p].flags & TESS_PARAM_TOKENS && !plan->param[p].frozen)
            parts += 2 * sizeof(float) * (uint64_t)tess_layout_own_of(plan, p);
    return parts * (ranks - 1) / ranks;
}

static uint64_t volume_stage(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    uint64_t bytes = 0;
    for (int32_t c = 0; c < engine->schedule.chunk_count; c++) {
        const struct tess_chunk *chunk = &engine->schedule.chunk[c];
        const int64_t output =
            chunk->last ? 0 : engine->declare.unit[chunk->unit_end - 1].output_count;
        bytes += (uint64_t)((output + chunk->input_count) * engine->sizes.rows) *
                 engine->sizes.dtype_bytes * (uint64_t)plan->accumulate;
    }
    return bytes + tess__tied_sent_bytes(engine);
}

uint64_t tess_engine_axis_formula(const struct tess_engine *engine, enum tess_axis axis)
{
    if (engine->plan.mesh.count[axis] == 1 && axis != TESS_AXIS_DATA)
        return 0;
    switch (axis) {
    case TESS_AXIS_TENSOR:
        return volume_tensor(engine);
    case TESS_AXIS_STAGE:
        return volume_stage(engine);
    default:
        break;
    }
    const struct tess_strategy strategy = tess__shared_strategy(engine);
    return strategy.ops->sent_bytes(&strategy);
}

uint64_t tess_engine_sent_formula(const struct tess_engine *engine)
{
    uint64_t bytes = 0;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        bytes += tess_engine_axis_formula(engine, (enum tess_axis)axis);
    return bytes;
}

static void volume_add(const struct tess_comm *comm, uint64_t *sent_bytes, double *wait_s)
{
    if (comm != NULL) {
        *sent_bytes += comm->stats.sent_bytes;
        *wait_s += comm->stats.wait_s;
    }
}

void tess_engine_axis_traffic(const struct tess_engine *engine, enum tess_axis axis,
                              uint64_t *sent_bytes_out, double *wait_s_out)
{
    const struct tess_strategy *strategy =
        axis == TESS_AXIS_DATA ? &engine->strategy : &engine->tensor_strategy;
    *sent_bytes_out = 0;
    *wait_s_out = 0;
    if (axis == TESS_AXIS_STAGE) { /* its own group carries nothing but the split into these */
        volume_add(engine->stages.forward, sent_bytes_out, wait_s_out);
        volume_add(engine->stages.backward, sent_bytes_out, wait_s_out);
        return;
    }
    if (axis == TESS_AXIS_DATA || engine->axis_comm[axis] != engine->comm)
        volume_add(engine->axis_comm[axis], sent_bytes_out, wait_s_out);
    for (int32_t g = 0; g < strategy->group_count; g++)
        volume_add(strategy->group[g], sent_bytes_out, wait_s_out);
}

void tess_engine_traffic(const struct tess_engine *engine, uint64_t *sent_bytes_out,
                         double *wait_s_out)
{
    const struct tess_strategy *both[] = {&engine->strategy, &engine->tensor_strategy};
    *sent_bytes_out = 0;
    *wait_s_out = 0;
    volume_add(engine->comm, sent_bytes_out, wait_s_out);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (engine->axis_comm[axis] != engine->comm)
            volume_add(engine->axis_comm[axis], sent_bytes_out, wait_s_out);
    volume_add(engine->stages.forward, sent_bytes_out, wait_s_out);
    volume_add(engine->stages.backward, sent_bytes_out, wait_s_out);
    for (int i = 0; i < 2; i++)
        for (int32_t g = 0; g < both[i]->group_count; g++)
            volume_add(both[i]->group[g], sent_bytes_out, wait_s_out);
}
