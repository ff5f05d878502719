/*
 * Which samples make the batches of a rank: by their global position, so that every layout sees the
 * same ones; and how batches come into device memory. What a sample is and how it is loaded is the
 * loader's.
 *
 * Into memory that is the host's too, loaders write themselves. To far memory a batch is copied
 * from the loader's slot by the kernels' queue, before what reads it and after what read the one
 * before; the host waits for no more than that a batch has left its slot before the loader fills it
 * again.
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

/* Rows of a batch as this rank loads it. */
static int64_t batches_rows(const struct tess_engine *engine)
{
    return engine->rows * (engine->plan.holds_input ? engine->plan.rank_count : 1);
}

int64_t tess__engine_batch_bytes(const struct tess_engine *engine, int64_t *label_bytes_out)
{
    const int64_t rows = batches_rows(engine), bytes = rows * tess__engine_row_bytes(engine);
    *label_bytes_out = rows * engine->labels * (int64_t)sizeof(int32_t);
    return engine->kernel->ops->far_memory ? (bytes + 63) / 64 * 64 : bytes;
}

/* Where a loader writes a batch: a slot of the arena, or pinned memory. */
static enum tess_status batches_slot(struct tess_engine *engine, const struct tess_block *input,
                                     const struct tess_block *label, void **pinned,
                                     void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = engine->kernel;
    int64_t label_bytes;
    const int64_t bytes = tess__engine_batch_bytes(engine, &label_bytes);
    if (!kernel->ops->far_memory) {
        *input_out = tess_memory_get(engine->memory, *input);
        *label_out = tess_memory_get(engine->memory, *label);
        return TESS_OK;
    }
    TESS_TRY(kernel->ops->pin(kernel, (size_t)(bytes + label_bytes), pinned));
    *input_out = *pinned;
    *label_out = (int32_t *)(void *)((char *)*pinned + bytes);
    return TESS_OK;
}

/* The place of micro-batch `micro` on the device; there is one for all of them unless they are
 * there before the step begins. */
static void batches_place(const struct tess_engine *engine, int32_t micro, void **input_out,
                          int32_t **label_out)
{
    int64_t label_bytes;
    const int64_t bytes = tess__engine_batch_bytes(engine, &label_bytes);
    const int64_t place = tess__engine_feeds_ahead(engine) ? micro : 0;
    char *input = tess_memory_get(engine->memory, engine->block.input[0]);
    char *label = tess_memory_get(engine->memory, engine->block.label[0]);
    *input_out = input + place * bytes;
    *label_out = (int32_t *)(void *)(label + place * label_bytes);
}

/* Copy a batch to the device when what is there has been used. */
static enum tess_status batches_send(struct tess_engine *engine, int32_t micro, const void *rows,
                                     const int32_t *label, void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = engine->kernel;
    const struct tess_queue_ops *ops = kernel->queue->ops;
    int64_t label_bytes;
    const int64_t bytes = tess__engine_batch_bytes(engine, &label_bytes);
    batches_place(engine, micro, input_out, label_out);
    TESS_TRY(tess_upload(kernel, (size_t)bytes, rows, *input_out));
    TESS_TRY(tess_upload(kernel, (size_t)label_bytes, label, *label_out));
    return ops->record(kernel->queue, engine->feed.sent);
}

static enum tess_status batches_next(struct tess_engine *engine, struct tess_loader *loader,
                                     int32_t micro, void **input_out, int32_t **label_out)
{
    int64_t rows;
    double waited;
    void *input;
    int32_t *label;
    TESS_TRY(engine->kernel->queue->ops->wait(engine->feed.sent));
    TESS_TRY(tess_loader_next(loader, &input, &label, &rows, &waited));
    return batches_send(engine, micro, input, label, input_out, label_out);
}

enum tess_status tess__engine_feed_ahead(struct tess_engine *engine)
{
    void *input;
    int32_t *label;
    for (int32_t m = 0; m < engine->plan.accumulate; m++)
        TESS_TRY(batches_next(engine, engine->loader, m, &input, &label));
    return TESS_OK;
}

enum tess_status tess__engine_feed(struct tess_engine *engine, struct tess_loader *loader,
                                   void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = engine->kernel;
    int64_t rows;
    double waited;
    if (!kernel->ops->far_memory) {
        kernel->ops->access(kernel, true);
        enum tess_status status = tess_loader_next(loader, input_out, label_out, &rows, &waited);
        kernel->ops->access(kernel, false);
        return status;
    }
    if (!tess__engine_feeds_ahead(engine) || loader != engine->loader)
        return batches_next(engine, loader, 0, input_out, label_out);
    batches_place(engine, engine->strategy.micro, input_out, label_out);
    return TESS_OK;
}

void tess__engine_close_loaders(struct tess_engine *engine)
{
    struct tess_feed *feed = &engine->feed;
    tess_loader_close(engine->loader);
    tess_loader_close(engine->test_loader);
    if (feed->sent != NULL) {
        (void)engine->kernel->queue->ops->wait(feed->sent); /* pinned memory is about to go */
        engine->kernel->queue->ops->fence_close(feed->sent);
    }
    for (int i = 0; i < TESS_SLOTS_MAX; i++)
        if (feed->pinned[i] != NULL)
            engine->kernel->ops->unpin(engine->kernel, feed->pinned[i]);
    if (feed->test_pinned != NULL)
        engine->kernel->ops->unpin(engine->kernel, feed->test_pinned);
}

enum tess_status tess__engine_open_loaders(struct tess_engine *engine)
{
    struct tess_kernel *kernel = engine->kernel;
    if (engine->plan.skips_input || !tess__engine_loads(engine))
        return TESS_OK;
    if (kernel->ops->far_memory)
        TESS_TRY(kernel->queue->ops->fence_open(kernel, &engine->feed.sent));
    struct tess_loader_config config = {
        .dataset = engine->dataset,
        .options = engine->config->loader,
        .seed = (uint64_t)engine->config->run.seed,
        .dtype = engine->dataset->tokens ? TESS_I32 : engine->plan.dtype,
        .rows_max = batches_rows(engine),
        .slot_count = engine->slot_count,
        .host_ranks = engine->plan.mesh.rank_count,
        .request = batches_train,
        .context = engine,
    };
    if (!engine->config->kernel->host_memory && !engine->config->kernel->far_memory)
        config.options.workers = 0;
    for (int32_t i = 0; i < engine->slot_count; i++)
        TESS_TRY(batches_slot(engine, &engine->block.input[i], &engine->block.label[i],
                              &engine->feed.pinned[i], &config.input[i], &config.label[i]));
    TESS_TRY(tess_loader_open(&config, &engine->loader));
    if (engine->test_leaves == 0)
        return TESS_OK;
    config.options.workers = 0;
    config.slot_count = 1;
    TESS_TRY(batches_slot(engine, &engine->block.test_input, &engine->block.test_label,
                          &engine->feed.test_pinned, &config.input[0], &config.label[0]));
    config.request = batches_test;
    return tess_loader_open(&config, &engine->test_loader);
}
