/* Batches of a rank, see batches.h. */
#include "core/batches.h"

#include "core/layout.h"
#include "tessera/check.h"

/* The sample at a place of the epoch. Beyond its end the places of a short last batch are filled
 * from its beginning on with images that do not count. */
static int64_t batches_sample(const struct tess_batches *batches, int64_t epoch, int64_t position)
{
    int64_t count = batches->dataset->train.count;
    int64_t sample = tess_sample_at((uint64_t)batches->config->run.seed, epoch, count,
                                    position % count, batches->config->loader.shuffle);
    return position < count ? sample : sample | TESS_SAMPLE_IGNORED;
}

/* Training batch number b is micro-batch b % S of step b / S. */
static bool batches_train(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_batches *batches = context;
    const struct tess_plan *plan = batches->plan;
    int64_t step = batch / plan->accumulate;
    int32_t micro = (int32_t)(batch % plan->accumulate);
    int64_t epoch = step / batches->sizes->steps_per_epoch;
    int64_t at = step % batches->sizes->steps_per_epoch * batches->sizes->batch_size;
    int32_t first = plan->holds_input ? 0 : plan->rank;
    int32_t last = plan->holds_input ? plan->rank_count - 1 : plan->rank;
    if (step >= batches->sizes->step_count)
        return false;
    request->split = &batches->dataset->train;
    request->epoch = epoch;
    request->augment = true;
    request->rows = 0;
    for (int32_t rank = first; rank <= last; rank++) {
        int64_t row = at + tess_layout_first_leaf(plan, rank, micro) * batches->sizes->leaf_rows;
        for (int64_t i = 0; i < batches->sizes->rows; i++)
            request->sample[request->rows++] = batches_sample(batches, epoch, row + i);
    }
    return true;
}

/* Test batch number b is pass b % passes; rows past the end of the split are padding. */
static bool batches_test(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_batches *batches = context;
    const struct tess_plan *plan = batches->plan;
    int64_t width = batches->sizes->test_width, passes = batches->sizes->test_passes;
    int64_t rows =
        plan->holds_input ? batches->sizes->rows * plan->rank_count : batches->sizes->rows;
    int64_t first = batch % passes * width * batches->sizes->leaf_rows;
    if (!plan->holds_input)
        first += plan->rank * batches->sizes->rows;
    request->split = &batches->dataset->test;
    request->epoch = 0;
    request->augment = false;
    request->rows = rows;
    for (int64_t i = 0; i < rows; i++)
        request->sample[i] = first + i < batches->dataset->test.count ? first + i : -1;
    return true;
}

/* Bytes of a batch's rows as loaders fill them, up to the labels that follow in pinned memory; and
 * of its labels. */
static int64_t batches_bytes(const struct tess_batches *batches, int64_t *label_bytes_out)
{
    const int64_t rows = tess__sizes_loaded_rows(batches->sizes, batches->plan);
    const int64_t bytes = rows * (int64_t)batches->sizes->row_bytes;
    *label_bytes_out = rows * batches->sizes->labels * (int64_t)sizeof(int32_t);
    return batches->kernel->ops->far_memory ? (int64_t)tess_round_up((uint64_t)bytes, 64) : bytes;
}

static enum tess_status batches_reserve(struct tess_batches *batches, int64_t bytes,
                                        const char *owner, struct tess_block *block)
{
    return tess_memory_reserve(batches->memory, TESS_MEMORY_INPUT, (uint64_t)bytes, owner, block);
}

/* Rows of the input and labels stay for backward where others are loaded in between. */
static enum tess_status batches_reserve_kept(struct tess_batches *batches)
{
    const struct tess_schedule *schedule = batches->schedule;
    const struct tess_sizes *sizes = batches->sizes;
    const struct tess_chunk *begin = schedule->chunk, *end = begin + schedule->chunk_count - 1;
    const int64_t first = begin->first && begin->slot_count > 1 ? begin->slot_count : 0;
    const int64_t last = end->last && end->slot_count > 1 ? end->slot_count : 0;
    TESS_TRY(batches_reserve(batches, first * sizes->rows * (int64_t)sizes->row_bytes,
                             "rows under way", &batches->kept_input));
    return batches_reserve(batches, last * sizes->rows * sizes->labels * 4, "labels under way",
                           &batches->kept_label);
}

enum tess_status tess__batches_reserve(struct tess_batches *batches)
{
    const bool far = batches->kernel->ops->far_memory;
    const int64_t micros = tess__batches_ahead(batches) ? batches->plan->accumulate : 1;
    int64_t label_bytes;
    const int64_t bytes = batches_bytes(batches, &label_bytes);
    TESS_TRY(batches_reserve_kept(batches));
    if (!tess__schedule_loads(batches->schedule))
        return TESS_OK;
    for (int32_t i = 0; i < (far ? 1 : batches->sizes->slot_count); i++) {
        TESS_TRY(batches_reserve(batches, micros * bytes, "batch", &batches->input[i]));
        TESS_TRY(batches_reserve(batches, micros * label_bytes, "labels", &batches->label[i]));
    }
    /* Batches that are copied to the device take turns in the same place. */
    if (!batches->config->run.evaluate || batches->plan->skips_input || far)
        return TESS_OK;
    TESS_TRY(batches_reserve(batches, bytes, "test batch", &batches->test_input));
    return batches_reserve(batches, label_bytes, "test labels", &batches->test_label);
}

/* Where a loader writes a batch: a slot of the arena, or pinned memory. */
static enum tess_status batches_slot(struct tess_batches *batches, const struct tess_block *input,
                                     const struct tess_block *label, void **pinned,
                                     void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = batches->kernel;
    int64_t label_bytes;
    const int64_t bytes = batches_bytes(batches, &label_bytes);
    if (!kernel->ops->far_memory) {
        *input_out = tess_memory_get(batches->memory, *input);
        *label_out = tess_memory_get(batches->memory, *label);
        return TESS_OK;
    }
    TESS_TRY(kernel->ops->pin(kernel, (size_t)(bytes + label_bytes), pinned));
    *input_out = *pinned;
    *label_out = (int32_t *)(void *)((char *)*pinned + bytes);
    return TESS_OK;
}

/* The place of micro-batch `micro` on the device; there is one for all of them unless they are
 * there before the step begins. */
static void batches_place(const struct tess_batches *batches, int32_t micro, void **input_out,
                          int32_t **label_out)
{
    int64_t label_bytes;
    const int64_t bytes = batches_bytes(batches, &label_bytes);
    const int64_t place = tess__batches_ahead(batches) ? micro : 0;
    char *input = tess_memory_get(batches->memory, batches->input[0]);
    char *label = tess_memory_get(batches->memory, batches->label[0]);
    *input_out = input + place * bytes;
    *label_out = (int32_t *)(void *)(label + place * label_bytes);
}

/* Copy a batch to the device when what is there has been used. */
static enum tess_status batches_send(struct tess_batches *batches, int32_t micro, const void *rows,
                                     const int32_t *label, void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = batches->kernel;
    const struct tess_queue_ops *ops = kernel->queue->ops;
    int64_t label_bytes;
    const int64_t bytes = batches_bytes(batches, &label_bytes);
    batches_place(batches, micro, input_out, label_out);
    TESS_TRY(tess_upload(kernel, (size_t)bytes, rows, *input_out));
    TESS_TRY(tess_upload(kernel, (size_t)label_bytes, label, *label_out));
    return ops->record(kernel->queue, batches->sent);
}

static enum tess_status batches_next(struct tess_batches *batches, struct tess_loader *loader,
                                     int32_t micro, void **input_out, int32_t **label_out)
{
    int64_t rows;
    void *input;
    int32_t *label;
    TESS_TRY(batches->kernel->queue->ops->wait(batches->sent));
    TESS_TRY(tess_loader_next(loader, &input, &label, &rows));
    return batches_send(batches, micro, input, label, input_out, label_out);
}

enum tess_status tess__batches_load_step(struct tess_batches *batches)
{
    void *input;
    int32_t *label;
    for (int32_t m = 0; m < batches->plan->accumulate; m++)
        TESS_TRY(batches_next(batches, batches->loader, m, &input, &label));
    return TESS_OK;
}

enum tess_status tess__batches_next(struct tess_batches *batches, bool test, int32_t micro,
                                    void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = batches->kernel;
    struct tess_loader *loader = test ? batches->test_loader : batches->loader;
    int64_t rows;
    if (batches->plan->skips_input) { /* another rank loads */
        *input_out = tess_memory_get(batches->memory, batches->input[0]);
        *label_out = tess_memory_get(batches->memory, batches->label[0]);
        return TESS_OK;
    }
    if (!kernel->ops->far_memory) {
        kernel->ops->access(kernel, true);
        enum tess_status status = tess_loader_next(loader, input_out, label_out, &rows);
        kernel->ops->access(kernel, false);
        return status;
    }
    if (test || !tess__batches_ahead(batches))
        return batches_next(batches, loader, 0, input_out, label_out);
    batches_place(batches, micro, input_out, label_out);
    return TESS_OK;
}

void tess__batches_keep(struct tess_batches *batches, const struct tess_chunk *chunk, int32_t slot,
                        const void **input, const int32_t **label)
{
    if (chunk->slot_count == 1)
        return;
    const struct tess_sizes *sizes = batches->sizes;
    const int64_t rows = sizes->rows * (int64_t)sizes->row_bytes;
    const int64_t labels = sizes->rows * sizes->labels * (int64_t)sizeof(**label);
    if (chunk->first) {
        char *kept = tess_memory_get(batches->memory, batches->kept_input);
        tess_copy(batches->kernel, rows, *input, kept + slot * rows);
        *input = kept + slot * rows;
    }
    if (chunk->last) {
        char *kept = tess_memory_get(batches->memory, batches->kept_label);
        tess_copy(batches->kernel, labels, *label, kept + slot * labels);
        *label = (const int32_t *)(const void *)(kept + slot * labels);
    }
}

void tess__batches_close(struct tess_batches *batches)
{
    tess_loader_close(batches->loader);
    tess_loader_close(batches->test_loader);
    if (batches->sent != NULL) {
        (void)batches->kernel->queue->ops->wait(batches->sent); /* pinned memory is about to go */
        batches->kernel->queue->ops->fence_close(batches->sent);
    }
    for (int i = 0; i < TESS_SLOTS_MAX; i++)
        if (batches->pinned[i] != NULL)
            batches->kernel->ops->unpin(batches->kernel, batches->pinned[i]);
    if (batches->test_pinned != NULL)
        batches->kernel->ops->unpin(batches->kernel, batches->test_pinned);
}

enum tess_status tess__batches_open(struct tess_batches *batches)
{
    struct tess_kernel *kernel = batches->kernel;
    if (batches->plan->skips_input || !tess__schedule_loads(batches->schedule))
        return TESS_OK;
    if (kernel->ops->far_memory)
        TESS_TRY(kernel->queue->ops->fence_open(kernel, &batches->sent));
    struct tess_loader_config config = {
        .dataset = batches->dataset,
        .options = batches->config->loader,
        .seed = (uint64_t)batches->config->run.seed,
        .dtype = batches->dataset->tokens ? TESS_I32 : batches->plan->dtype,
        .rows_max = tess__sizes_loaded_rows(batches->sizes, batches->plan),
        .slot_count = batches->sizes->slot_count,
        .host_ranks = batches->plan->mesh.rank_count,
        .request = batches_train,
        .context = batches,
    };
    if (!batches->config->kernel->host_memory && !batches->config->kernel->far_memory)
        config.options.workers = 0;
    for (int32_t i = 0; i < batches->sizes->slot_count; i++)
        TESS_TRY(batches_slot(batches, &batches->input[i], &batches->label[i], &batches->pinned[i],
                              &config.input[i], &config.label[i]));
    TESS_TRY(tess_loader_open(&config, &batches->loader));
    if (batches->sizes->test_leaves == 0)
        return TESS_OK;
    config.options.workers = 0;
    config.slot_count = 1;
    TESS_TRY(batches_slot(batches, &batches->test_input, &batches->test_label,
                          &batches->test_pinned, &config.input[0], &config.label[0]));
    config.request = batches_test;
    return tess_loader_open(&config, &batches->test_loader);
}
