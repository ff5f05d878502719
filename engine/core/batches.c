/*
 * Which samples make the batches of a rank: by their global position, so that every layout sees the
 * same ones. What a sample is and how it is loaded is the loader's.
 */
#include "core/state.h"

#include "tessera/check.h"

int64_t tess__engine_step_rows(const struct tess_engine *engine, int64_t step)
{
    int64_t at = step % engine->steps_per_epoch * engine->batch_size;
    int64_t left = engine->dataset->train.count - at;
    return left < engine->batch_size ? left : engine->batch_size;
}

/* The sample at a place of the epoch. Beyond its end the places of a short last batch are filled
 * from its beginning on with images that do not count. */
static int64_t batches_sample(const struct tess_engine *engine, int64_t epoch, int64_t position)
{
    int64_t count = engine->dataset->train.count;
    int64_t sample = tess_sample_at((uint64_t)engine->config->run.seed, epoch, count,
                                    position % count, engine->config->loader.shuffle);
    return position < count ? sample : sample | TESS_SAMPLE_IGNORED;
}

/* Training batch number b is micro-batch b % S of step b / S. */
static bool batches_train(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_engine *engine = context;
    const struct tess_plan *plan = &engine->plan;
    int64_t step = batch / plan->accumulate;
    int32_t micro = (int32_t)(batch % plan->accumulate);
    int64_t epoch = step / engine->steps_per_epoch;
    int64_t at = step % engine->steps_per_epoch * engine->batch_size;
    int32_t first = plan->holds_input ? 0 : plan->rank;
    int32_t last = plan->holds_input ? plan->rank_count - 1 : plan->rank;
    if (step >= engine->step_count)
        return false;
    request->split = &engine->dataset->train;
    request->epoch = epoch;
    request->augment = true;
    request->rows = 0;
    for (int32_t rank = first; rank <= last; rank++) {
        int64_t row = at + tess_layout_first_leaf(plan, rank, micro) * engine->leaf_rows;
        for (int64_t i = 0; i < engine->rows; i++)
            request->sample[request->rows++] = batches_sample(engine, epoch, row + i);
    }
    return true;
}

/* Test batch number b is pass b % passes; rows past the end of the split are padding. */
static bool batches_test(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_engine *engine = context;
    const struct tess_plan *plan = &engine->plan;
    int64_t width = tess__engine_test_width(engine), passes = tess__engine_test_passes(engine);
    int64_t rows = plan->holds_input ? engine->rows * plan->rank_count : engine->rows;
    int64_t first = batch % passes * width * engine->leaf_rows;
    if (!plan->holds_input)
        first += plan->rank * engine->rows;
    request->split = &engine->dataset->test;
    request->epoch = 0;
    request->augment = false;
    request->rows = rows;
    for (int64_t i = 0; i < rows; i++)
        request->sample[i] = first + i < engine->dataset->test.count ? first + i : -1;
    return true;
}

enum tess_status tess__engine_open_loaders(struct tess_engine *engine)
{
    if (engine->plan.skips_input || !tess__engine_loads(engine))
        return TESS_OK;
    struct tess_loader_config config = {
        .dataset = engine->dataset,
        .options = engine->config->loader,
        .seed = (uint64_t)engine->config->run.seed,
        .dtype = engine->dataset->tokens ? TESS_I32 : engine->plan.dtype,
        .rows_max = engine->rows * (engine->plan.holds_input ? engine->plan.rank_count : 1),
        .slot_count = engine->slot_count,
        .host_ranks = engine->plan.mesh.rank_count,
        .request = batches_train,
        .context = engine,
    };
    if (!engine->config->kernel->host_memory)
        config.options.workers = 0;
    for (int32_t i = 0; i < engine->slot_count; i++) {
        config.input[i] = tess_memory_get(engine->memory, engine->block.input[i]);
        config.label[i] = tess_memory_get(engine->memory, engine->block.label[i]);
    }
    TESS_TRY(tess_loader_open(&config, &engine->loader));
    if (engine->test_leaves == 0)
        return TESS_OK;
    config.options.workers = 0;
    config.slot_count = 1;
    config.input[0] = tess_memory_get(engine->memory, engine->block.test_input);
    config.label[0] = tess_memory_get(engine->memory, engine->block.test_label);
    config.request = batches_test;
    return tess_loader_open(&config, &engine->test_loader);
}
