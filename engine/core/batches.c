/*
 * Which samples make the batches of a rank: by their global position, so that every layout sees the
 * same ones; and how batches come into device memory. What a sample is, is the loader's.
 *
 * Where device memory is the host's, loaders write into it. To far memory the kernels' queue copies
 * a batch from the loader's slot, after the work that read the batch before; the host waits only
 * until a batch has left its slot, before the loader fills that again.
 */
#include "core/state.h"

#include "tessera/check.h"

#include <stdlib.h>

/* The sample at a place of the epoch. Beyond its end the places of a short last batch are filled
 * from its beginning on with images that do not count. */
static int64_t batches_sample(const struct tess_engine *engine, int64_t epoch, int64_t position)
{
    int64_t count = engine->dataset->train.count;
    int64_t sample = tess_dataset_sample(engine->dataset, (uint64_t)engine->config->run.seed, epoch,
                                         position % count, engine->config->loader.shuffle);
    return position < count ? sample : sample | TESS_SAMPLE_IGNORED;
}

int64_t tess__batches_step_labels(const struct tess_engine *engine, int64_t step)
{
    const int64_t epoch = step / engine->sizes.steps_per_epoch;
    const int64_t at = step % engine->sizes.steps_per_epoch * engine->sizes.batch_size;
    int64_t labels = 0;
    if (!engine->dataset->masked)
        return tess__sizes_step_rows(&engine->sizes, step) * engine->sizes.labels;
    for (int64_t i = 0; i < engine->sizes.batch_size; i++)
        labels += tess_dataset_labels(engine->dataset, &engine->dataset->train,
                                      batches_sample(engine, epoch, at + i));
    return labels;
}

int64_t tess__batches_test_labels(const struct tess_engine *engine)
{
    int64_t labels = 0;
    if (!engine->dataset->masked)
        return engine->sizes.test_count * engine->sizes.labels;
    for (int64_t i = 0; i < engine->sizes.test_count; i++)
        labels += tess_dataset_labels(engine->dataset, &engine->dataset->test, i);
    return labels;
}

/* The sample of a row of this rank's pass of an evaluation; -1: padding. */
static int64_t batches_test_sample(const struct tess_engine *engine, int64_t pass, int64_t row)
{
    const int64_t at = pass * engine->sizes.test_width * engine->sizes.leaf_rows + row;
    return at < engine->dataset->test.count ? at : -1;
}

/* The sample of row `row` of this rank's micro-batch that begins with row_first. */
static int64_t batches_row_sample(const struct tess_engine *engine, uint64_t row_first, int64_t row)
{
    const int64_t epoch = engine->progress.step / engine->sizes.steps_per_epoch;
    const int64_t at = engine->progress.step % engine->sizes.steps_per_epoch;
    return engine->strategy.training
               ? batches_sample(engine, epoch,
                                at * engine->sizes.batch_size + (int64_t)row_first + row)
               : batches_test_sample(engine, engine->progress.test_pass,
                                     engine->plan.rank * engine->sizes.rows + row);
}

static const struct tess_split *batches_split(const struct tess_engine *engine)
{
    return engine->strategy.training ? &engine->dataset->train : &engine->dataset->test;
}

enum tess_status tess__batches_documents(struct tess_engine *engine, uint64_t row_first)
{
    struct tess_packed *packed = &engine->packed;
    const int32_t length = (int32_t)engine->dataset->row.dim[0];
    struct tess_kernel *kernel = engine->kernel;
    if (packed->place == NULL)
        return TESS_OK;
    if (packed->sent != NULL)
        TESS_TRY(kernel->queue->ops->wait(packed->sent));
    packed->count = 0;
    for (int64_t r = 0; r < engine->sizes.rows; r++) {
        int32_t *begin = packed->document + packed->count;
        const int32_t count =
            tess_dataset_documents(engine->dataset, batches_split(engine),
                                   batches_row_sample(engine, row_first, r), begin);
        for (int32_t d = 0; d < count; d++) {
            const int32_t end = d + 1 < count ? begin[d + 1] : length;
            for (int32_t i = begin[d]; i < end; i++)
                packed->place[r * length + i] = i - begin[d];
        }
        for (int32_t d = 0; d < count; d++)
            begin[d] += (int32_t)r * length;
        packed->count += count;
    }
    packed->document[packed->count] = (int32_t)engine->sizes.rows * length;
    if (packed->sent == NULL)
        return TESS_OK;
    TESS_TRY(tess_upload(kernel, (size_t)(engine->sizes.rows * length) * sizeof(int32_t),
                         packed->place, tess_memory_get(engine->memory, packed->far_place)));
    return kernel->queue->ops->record(kernel->queue, packed->sent);
}

/* Training batch number b is micro-batch b % S of step b / S, counted from where the run began or
 * continues. */
static bool batches_train(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_engine *engine = context;
    const struct tess_plan *plan = &engine->plan;
    int64_t step = engine->batches.first_step + batch / plan->accumulate;
    int32_t micro = (int32_t)(batch % plan->accumulate);
    int64_t epoch = step / engine->sizes.steps_per_epoch;
    int64_t at = step % engine->sizes.steps_per_epoch * engine->sizes.batch_size;
    int32_t first = plan->holds_input ? 0 : plan->rank;
    int32_t last = plan->holds_input ? plan->rank_count - 1 : plan->rank;
    if (step >= engine->sizes.step_count)
        return false;
    request->split = &engine->dataset->train;
    request->epoch = epoch;
    request->augment = true;
    request->rows = 0;
    for (int32_t rank = first; rank <= last; rank++) {
        int64_t row = at + tess_layout_first_leaf(plan, rank, micro) * engine->sizes.leaf_rows;
        for (int64_t i = 0; i < engine->sizes.rows; i++)
            request->sample[request->rows++] = batches_sample(engine, epoch, row + i);
    }
    return true;
}

/* The rows of the current step that each rank computes again. */
static bool batches_audit(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_engine *engine = context;
    const struct tess_plan *plan = &engine->plan;
    const struct tess_audit *audit = &engine->audit;
    const int64_t step = engine->progress.step;
    const int64_t epoch = step / engine->sizes.steps_per_epoch;
    const int64_t at = step % engine->sizes.steps_per_epoch * engine->sizes.batch_size;
    (void)batch;
    request->split = &engine->dataset->train;
    request->epoch = epoch;
    request->augment = true;
    request->rows = 0;
    for (int32_t r = 0; r < plan->rank_count; r++) {
        const int32_t whose = (r + audit->distance) % plan->rank_count;
        const int64_t row =
            at + tess_layout_first_leaf(plan, whose, audit->micro) * engine->sizes.leaf_rows;
        for (int64_t i = 0; i < engine->sizes.rows && (plan->holds_input || r == plan->rank); i++)
            request->sample[request->rows++] = batches_sample(engine, epoch, row + i);
    }
    return true;
}

/* Test batch number b is pass b % passes; rows past the end of the split are padding. */
static bool batches_test(void *context, int64_t batch, struct tess_batch_request *request)
{
    const struct tess_engine *engine = context;
    const struct tess_plan *plan = &engine->plan;
    int64_t passes = engine->sizes.test_passes;
    int64_t rows = plan->holds_input ? engine->sizes.rows * plan->rank_count : engine->sizes.rows;
    const int64_t first = plan->holds_input ? 0 : plan->rank * engine->sizes.rows;
    request->split = &engine->dataset->test;
    request->epoch = 0;
    request->augment = false;
    request->rows = rows;
    for (int64_t i = 0; i < rows; i++)
        request->sample[i] = batches_test_sample(engine, batch % passes, first + i);
    return true;
}

static enum tess_status batches_reserve(struct tess_engine *engine, int64_t bytes,
                                        const char *owner, struct tess_block *block)
{
    return tess_memory_reserve(engine->memory, TESS_MEMORY_INPUT, (uint64_t)bytes, owner, block);
}

/* Rows of the input and labels stay for backward where others are loaded in between. */
static enum tess_status batches_reserve_kept(struct tess_engine *engine)
{
    const struct tess_schedule *schedule = &engine->schedule;
    const struct tess_sizes *sizes = &engine->sizes;
    const struct tess_chunk *begin = schedule->chunk, *end = begin + schedule->chunk_count - 1;
    const int64_t first = begin->first && begin->slot_count > 1 ? begin->slot_count : 0;
    const int64_t last = end->last && end->slot_count > 1 ? end->slot_count : 0;
    TESS_TRY(batches_reserve(engine, first * sizes->rows * (int64_t)sizes->row_bytes,
                             "rows under way", &engine->batches.kept_input));
    return batches_reserve(engine, last * sizes->rows * sizes->labels * 4, "labels under way",
                           &engine->batches.kept_label);
}

enum tess_status tess__batches_reserve(struct tess_engine *engine)
{
    const bool far = engine->kernel->ops->far_memory;
    const int64_t micros = engine->config->cuda.graph ? engine->plan.accumulate : 1;
    const int64_t rows = tess__sizes_loaded_rows(&engine->sizes, &engine->plan);
    const uint64_t bytes = (uint64_t)rows * engine->sizes.row_bytes;
    engine->batches.bytes = (int64_t)(far ? tess_round_up(bytes, 64) : bytes);
    engine->batches.label_bytes = rows * engine->sizes.labels * (int64_t)sizeof(int32_t);
    TESS_TRY(batches_reserve_kept(engine));
    if (far && engine->dataset->packs)
        TESS_TRY(batches_reserve(
            engine, engine->sizes.rows * engine->dataset->row.dim[0] * (int64_t)sizeof(int32_t),
            "places in documents", &engine->packed.far_place));
    if (!tess__schedule_loads(&engine->schedule))
        return TESS_OK;
    for (int32_t i = 0; i < (far ? 1 : engine->sizes.slot_count); i++) {
        TESS_TRY(batches_reserve(engine, micros * engine->batches.bytes, "batch",
                                 &engine->batches.input[i]));
        TESS_TRY(batches_reserve(engine, micros * engine->batches.label_bytes, "labels",
                                 &engine->batches.label[i]));
    }
    if (engine->config->run.audit > 0 && !engine->plan.skips_input && !far) {
        TESS_TRY(
            batches_reserve(engine, engine->batches.bytes, "audited batch", &engine->audit.input));
        TESS_TRY(batches_reserve(engine, engine->batches.label_bytes, "audited labels",
                                 &engine->audit.label));
    }
    /* Batches that are copied to the device take turns in the same place. */
    if (!engine->config->run.evaluate || engine->plan.skips_input || far)
        return TESS_OK;
    TESS_TRY(batches_reserve(engine, engine->batches.bytes, "test batch",
                             &engine->batches.input[TESS_SLOTS_MAX]));
    return batches_reserve(engine, engine->batches.label_bytes, "test labels",
                           &engine->batches.label[TESS_SLOTS_MAX]);
}

/* Where a loader writes a batch: blocks of the arena, or pinned memory. */
static enum tess_status batches_slot(struct tess_engine *engine, struct tess_block input,
                                     struct tess_block label, void **pinned, void **input_out,
                                     int32_t **label_out)
{
    struct tess_kernel *kernel = engine->kernel;
    if (!kernel->ops->far_memory) {
        *input_out = tess_memory_get(engine->memory, input);
        *label_out = tess_memory_get(engine->memory, label);
        return TESS_OK;
    }
    TESS_TRY(kernel->ops->pin(kernel, (size_t)(engine->batches.bytes + engine->batches.label_bytes),
                              pinned));
    *input_out = *pinned;
    *label_out = (int32_t *)(void *)((char *)*pinned + engine->batches.bytes);
    return TESS_OK;
}

/* The place of micro-batch `micro` on the device; there is one for all of them unless they are
 * there before the step begins. */
static void batches_place(const struct tess_engine *engine, int32_t micro, void **input_out,
                          int32_t **label_out)
{
    const int64_t place = engine->config->cuda.graph ? micro : 0;
    char *input = tess_memory_get(engine->memory, engine->batches.input[0]);
    char *label = tess_memory_get(engine->memory, engine->batches.label[0]);
    *input_out = input + place * engine->batches.bytes;
    *label_out = (int32_t *)(void *)(label + place * engine->batches.label_bytes);
}

/* Load a batch and have it copied to the device when what is there has been used. */
static enum tess_status batches_next(struct tess_engine *engine, struct tess_loader *loader,
                                     int32_t micro, void **input_out, int32_t **label_out)
{
    const struct tess_batches *batches = &engine->batches;
    struct tess_queue *queue = engine->kernel->queue;
    int64_t rows;
    void *input = NULL;
    int32_t *label = NULL;
    TESS_TRY(queue->ops->wait(batches->sent));
    if (!engine->hollow)
        TESS_TRY(tess_loader_next(loader, &input, &label, &rows));
    batches_place(engine, micro, input_out, label_out);
    TESS_TRY(tess_upload(engine->kernel, (size_t)batches->bytes, input, *input_out));
    TESS_TRY(tess_upload(engine->kernel, (size_t)batches->label_bytes, label, *label_out));
    return queue->ops->record(queue, batches->sent);
}

enum tess_status tess__batches_load_step(struct tess_engine *engine)
{
    void *input;
    int32_t *label;
    for (int32_t m = 0; m < engine->plan.accumulate; m++)
        TESS_TRY(batches_next(engine, engine->batches.loader, m, &input, &label));
    return TESS_OK;
}

enum tess_status tess__batches_next(struct tess_engine *engine, enum tess_batch kind, int32_t micro,
                                    void **input_out, int32_t **label_out)
{
    struct tess_kernel *kernel = engine->kernel;
    struct tess_loader *loader = kind == TESS_BATCH_TEST    ? engine->batches.test_loader
                                 : kind == TESS_BATCH_AUDIT ? engine->audit.loader
                                                            : engine->batches.loader;
    int64_t rows;
    /* Another rank loads, or no rank does. */
    if (engine->plan.skips_input || (engine->hollow && !kernel->ops->far_memory)) {
        *input_out = tess_memory_get(engine->memory, engine->batches.input[0]);
        *label_out = tess_memory_get(engine->memory, engine->batches.label[0]);
        return TESS_OK;
    }
    if (!kernel->ops->far_memory) {
        kernel->ops->access(kernel, true);
        enum tess_status status = tess_loader_next(loader, input_out, label_out, &rows);
        kernel->ops->access(kernel, false);
        return status;
    }
    if (kind != TESS_BATCH_TRAIN || !engine->config->cuda.graph)
        return batches_next(engine, loader, 0, input_out, label_out);
    batches_place(engine, micro, input_out, label_out);
    return TESS_OK;
}

void tess__batches_keep(struct tess_engine *engine, const struct tess_chunk *chunk, int32_t slot,
                        const void **input, const int32_t **label)
{
    if (chunk->slot_count == 1)
        return;
    const struct tess_sizes *sizes = &engine->sizes;
    const int64_t rows = sizes->rows * (int64_t)sizes->row_bytes;
    const int64_t labels = sizes->rows * sizes->labels * (int64_t)sizeof(**label);
    if (chunk->first) {
        char *kept = tess_memory_get(engine->memory, engine->batches.kept_input);
        tess_copy(engine->kernel, rows, *input, kept + slot * rows);
        *input = kept + slot * rows;
    }
    if (chunk->last) {
        char *kept = tess_memory_get(engine->memory, engine->batches.kept_label);
        tess_copy(engine->kernel, labels, *label, kept + slot * labels);
        *label = (const int32_t *)(const void *)(kept + slot * labels);
    }
}

static void batches_close_documents(struct tess_engine *engine)
{
    struct tess_packed *packed = &engine->packed;
    free(packed->document);
    if (packed->sent == NULL) {
        free(packed->place);
        return;
    }
    (void)engine->kernel->queue->ops->wait(packed->sent);
    engine->kernel->queue->ops->fence_close(packed->sent);
    engine->kernel->ops->unpin(engine->kernel, packed->place);
}

void tess__batches_close(struct tess_engine *engine)
{
    batches_close_documents(engine);
    tess_loader_close(engine->batches.loader);
    tess_loader_close(engine->batches.test_loader);
    tess_loader_close(engine->audit.loader);
    if (engine->batches.sent != NULL) {
        (void)engine->kernel->queue->ops->wait(
            engine->batches.sent); /* pinned memory is about to go */
        engine->kernel->queue->ops->fence_close(engine->batches.sent);
    }
    for (int i = 0; i <= TESS_SLOTS_MAX; i++)
        if (engine->batches.pinned[i] != NULL)
            engine->kernel->ops->unpin(engine->kernel, engine->batches.pinned[i]);
    if (engine->audit.pinned != NULL)
        engine->kernel->ops->unpin(engine->kernel, engine->audit.pinned);
}

static enum tess_status batches_open_documents(struct tess_engine *engine)
{
    struct tess_kernel *kernel = engine->kernel;
    struct tess_packed *packed = &engine->packed;
    const size_t positions = (size_t)(engine->sizes.rows * engine->dataset->row.dim[0]);
    /* A document has a position at least; one more for the end. */
    packed->document = malloc((positions + 2) * sizeof(int32_t));
    if (kernel->ops->far_memory) {
        void *place;
        TESS_TRY(kernel->queue->ops->fence_open(kernel, &packed->sent));
        TESS_TRY(kernel->ops->pin(kernel, positions * sizeof(int32_t), &place));
        packed->place = place;
    } else {
        packed->place = malloc(positions * sizeof(int32_t));
    }
    if (packed->document == NULL || packed->place == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the documents of %zu positions", positions);
    return TESS_OK;
}

/* Those of the first rows of training, for what is predicted of a step: as many as there are, as an
 * engine may stand for one rank of thousands. */
static enum tess_status batches_typical_documents(struct tess_engine *engine)
{
    struct tess_packed *packed = &engine->packed;
    const int32_t length = (int32_t)engine->dataset->row.dim[0];
    int32_t *begin = malloc(((size_t)length + 1) * sizeof(*begin));
    enum tess_status status = TESS_OK;
    for (int64_t r = 0; begin != NULL && r < engine->sizes.rows; r++) {
        const int32_t count = tess_dataset_documents(engine->dataset, &engine->dataset->train,
                                                     batches_sample(engine, 0, r), begin);
        const size_t all = (size_t)(packed->count + count);
        int32_t *document = realloc(packed->document, (all + 1) * sizeof(*document));
        if (document == NULL)
            break;
        packed->document = document;
        for (int32_t d = 0; d < count; d++)
            document[packed->count++] = begin[d] + (int32_t)r * length;
        document[packed->count] = (int32_t)(r + 1) * length;
    }
    if (begin == NULL || packed->count < engine->sizes.rows)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the documents of a sample");
    free(begin);
    return status;
}

enum tess_status tess__batches_open(struct tess_engine *engine)
{
    struct tess_kernel *kernel = engine->kernel;
    struct tess_batches *batches = &engine->batches;
    if (engine->dataset->packs)
        TESS_TRY(engine->hollow ? batches_typical_documents(engine)
                                : batches_open_documents(engine));
    if (engine->plan.skips_input || !tess__schedule_loads(&engine->schedule))
        return TESS_OK;
    if (kernel->ops->far_memory)
        TESS_TRY(kernel->queue->ops->fence_open(kernel, &engine->batches.sent));
    if (engine->hollow)
        return TESS_OK;
    struct tess_loader_config config = {
        .dataset = engine->dataset,
        .options = engine->config->loader,
        .seed = (uint64_t)engine->config->run.seed,
        .dtype = engine->dataset->tokens ? TESS_I32 : engine->plan.dtype,
        .rows_max = tess__sizes_loaded_rows(&engine->sizes, &engine->plan),
        .slot_count = engine->sizes.slot_count,
        .cores = engine->config->rank_cores,
        .request = batches_train,
        .context = engine,
    };
    if (!engine->config->kernel->host_memory && !engine->config->kernel->far_memory)
        config.options.workers = 0;
    for (int32_t i = 0; i < engine->sizes.slot_count; i++)
        TESS_TRY(batches_slot(engine, batches->input[i], batches->label[i], &batches->pinned[i],
                              &config.input[i], &config.label[i]));
    engine->batches.first_step = engine->progress.step;
    TESS_TRY(tess_loader_open(&config, &engine->batches.loader));
    config.options.workers = 0;
    config.slot_count = 1;
    if (engine->config->run.audit > 0) {
        TESS_TRY(batches_slot(engine, engine->audit.input, engine->audit.label,
                              &engine->audit.pinned, &config.input[0], &config.label[0]));
        config.request = batches_audit;
        TESS_TRY(tess_loader_open(&config, &engine->audit.loader));
    }
    if (engine->sizes.test_leaves == 0)
        return TESS_OK;
    TESS_TRY(batches_slot(engine, batches->input[TESS_SLOTS_MAX], batches->label[TESS_SLOTS_MAX],
                          &batches->pinned[TESS_SLOTS_MAX], &config.input[0], &config.label[0]));
    config.request = batches_test;
    return tess_loader_open(&config, &batches->test_loader);
}
