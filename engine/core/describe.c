/* What --explain says about a planned engine: units, segments, extents, operations, memory. */
#include "core/state.h"

#include "base/arena.h"
#include "tessera/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

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
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    sink->line(sink->context, text);
}

static const char *describe_extent(enum tess_extent extent)
{
    static const char *const name[] = {"full", "sharded", "none"};
    return name[extent];
}

static void describe_plan(const struct tess_engine *engine, const struct describe_sink *sink)
{
    const struct tess_plan *plan = &engine->plan;
    describe_line(sink, "model      %s: %d units, %d parameters, %" PRId64 " elements",
                  engine->config->model->name, plan->unit_count, plan->param_count,
                  plan->param_total);
    describe_line(sink,
                  "batch      %" PRId64 " rows = %d leaves of %" PRId64 "; per rank %d "
                  "micro-batches of %" PRId64 " leaves (%s order)",
                  engine->batch_size, plan->grid, engine->leaf_rows, plan->accumulate,
                  engine->leaf_count,
                  plan->leaf_order == TESS_LEAVES_RANK_FIRST ? "rank-first" : "micro-first");
    describe_line(sink, "steps      %" PRId64 " (%" PRId64 " per epoch)", engine->step_count,
                  engine->steps_per_epoch);
    describe_line(sink, "storage    parameters %s, gradients %s, optimizer %s; shard %d of %d",
                  describe_extent(plan->param_extent), describe_extent(plan->grad_extent),
                  describe_extent(plan->optim_extent), plan->shard_index,
                  plan->shard_count > 1 ? plan->shard_count : 1);
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const struct tess_segment *segment = &plan->segment[s];
        describe_line(sink,
                      "segment %-2d units %s .. %s: %d parameters, %" PRId64 " elements (%.2f MiB "
                      "of gradients)",
                      s, plan->unit_name[segment->unit_first], plan->unit_name[segment->unit_last],
                      segment->param_count, segment->count, (double)segment->count * 4 / (1 << 20));
    }
}

static void describe_block(void *context, enum tess_memory_kind kind, const char *owner,
                           struct tess_block block)
{
    if (block.bytes > 0)
        describe_line(context, "  %-11s %12" PRIu64 " B  %s", tess_memory_kind_name(kind),
                      block.bytes, owner);
}

void tess_engine_describe(const struct tess_engine *engine,
                          void (*line)(void *context, const char *text), void *context)
{
    struct describe_sink sink = {line, context};
    describe_plan(engine, &sink);
    engine->strategy.ops->describe(&engine->strategy, line, context);
    describe_line(&sink, "memory of rank %d, %" PRIu64 " B in one arena:", engine->plan.rank,
                  tess_memory_total(engine->memory));
    tess_memory_visit(engine->memory, describe_block, &sink);
}
