/* Measures a model's products on all cores; see bench_ceiling.h. */
#include "bench/step/bench_ceiling.h"

#include "bench/bench_layer.h"
#include "core/declared.h"
#include "kernel_open.h"
#include "tessera/check.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Of products, in all their calls; and seconds of attention and of the update. */
struct ceiling_work {
    double seconds, flops, rest_s;
    bool in_f32; /* some product was measured beside f32's */
};

/* What one core does. */
struct ceiling_core {
    pthread_t thread;
    const struct tess_kernel_ops *kernel;
    const struct tess_declare *model; /* for the core's share of the batch */
    const struct tess_optimizer_ops *optimizer;
    int64_t updates; /* parameters of its share */
    struct ceiling_work work;
    enum tess_status status;
};

/* The products of one operation. */
static enum tess_status ceiling_op(struct tess__bench *bench, const struct tess_op_desc *desc,
                                   struct ceiling_work *work_out)
{
    const double calls = desc->calls > 0 ? desc->calls : 1;
    const bool needed[] = {[TESS_BEST_FORWARD] = true,
                           [TESS_BEST_BACKWARD_DATA] = desc->input_grad,
                           [TESS_BEST_BACKWARD_WEIGHT] = !desc->frozen};
    struct tess__bench_layer layer;
    enum tess_status status = TESS_OK;
    TESS_TRY(tess__bench_layer_open(bench, desc, &layer));
    for (int what = 0; what < 3 && status == TESS_OK; what++) {
        struct tess__bench_product product = {0};
        if (!needed[what])
            continue;
        layer.what = (enum tess_best_what)what;
        status = tess__bench_layer_product(bench, &layer, &product);
        work_out->seconds += calls * fmin(product.ours_s, product.best_s);
        work_out->flops += calls * tess__bench_layer_flops(desc);
        work_out->in_f32 |= product.best_dtype == TESS_F32;
    }
    tess__bench_layer_close(&layer);
    return status;
}

/* Forward and backward. */
static enum tess_status ceiling_attention(struct tess__bench *bench,
                                          const struct tess_op_desc *desc,
                                          struct ceiling_work *work_out)
{
    struct tess__bench_layer layer;
    enum tess_status status = TESS_OK;
    TESS_TRY(tess__bench_layer_open(bench, desc, &layer));
    for (int backward = 0; backward < 2 && status == TESS_OK; backward++) {
        struct tess__bench_task task = {.run = tess__bench_layer_run, .context = &layer};
        layer.what = backward ? TESS_BEST_BACKWARD_DATA : TESS_BEST_FORWARD;
        status = tess__bench_measure(bench, &task, 1);
        work_out->rest_s += task.median_s;
    }
    tess__bench_layer_close(&layer);
    return status;
}

/* An update of `count` values and their moments, and of their copy in 16 bits where the run keeps
 * one. Gradients are in a cache, as where a step updates a weight with its gradient. */
struct ceiling_update {
    struct tess_kernel *kernel;
    enum tess_update_kind kind;
    enum tess_dtype dtype;
    int64_t count;
    float *array[4]; /* w, g of a block, m, v */
    uint16_t *low;
};

#define CEILING_BLOCK INT64_C(4096)

static enum tess_status ceiling_update_run(void *context)
{
    const struct ceiling_update *u = context;
    for (int64_t at = 0; at < u->count; at += CEILING_BLOCK) {
        const int64_t count = u->count - at < CEILING_BLOCK ? u->count - at : CEILING_BLOCK;
        struct tess_update update = tess__bench_update(
            u->kind, count, u->array[0] + at, u->array[1], u->array[2] + at, u->array[3] + at);
        update.low = u->dtype;
        update.param_low = u->dtype != TESS_F32 ? u->low + at : NULL;
        tess_update(u->kernel, &update);
    }
    return TESS_OK;
}

/* The core's share of the update, by a rule with as many moments. */
static enum tess_status ceiling_update(struct tess__bench *bench, const struct ceiling_core *core,
                                       struct ceiling_work *work_out)
{
    static const enum tess_update_kind kind[] = {TESS_UPDATE_SGD, TESS_UPDATE_MOMENTUM,
                                                 TESS_UPDATE_ADAMW};
    const int32_t moments = core->optimizer->state_arrays;
    const size_t count = (size_t)core->updates, each = count * sizeof(float);
    const size_t bytes = each * 4 + (size_t)CEILING_BLOCK * sizeof(float);
    void *memory;
    if (moments > 2 || count == 0)
        return TESS_OK;
    TESS_TRY(tess__bench_allocate(bytes, &memory));
    memset(memory, 0, bytes); /* after any number of steps no value is subnormal */
    float *const first = memory;
    struct ceiling_update update = {
        .kernel = bench->kernel,
        .kind = kind[moments],
        .dtype = core->model->dtype,
        .count = core->updates,
        .array = {first, first + 4 * count, first + count, first + 2 * count},
        .low = (uint16_t *)(first + 3 * count)};
    struct tess__bench_task task = {.run = ceiling_update_run, .context = &update};
    const enum tess_status status = tess__bench_measure(bench, &task, 1);
    work_out->rest_s += task.median_s;
    free(memory);
    return status;
}

/* What adds to another operation's gradient is a call of that one. */
static bool ceiling_counts(const struct tess_op_desc *desc)
{
    return (desc->kind == TESS_OP_LINEAR || desc->kind == TESS_OP_CONV2D) && !desc->add_grad;
}

/* Blocks are alike: each shape is measured once. work [op_count], all zero. */
static enum tess_status ceiling_ops(struct tess__bench *bench, const struct tess_declare *model,
                                    struct ceiling_work *work)
{
    for (int32_t o = 0; o < model->op_count; o++) {
        const struct tess_op_desc *desc = &model->op[o].desc;
        const bool attends = desc->kind == TESS_OP_ATTENTION;
        int32_t same = 0;
        if (!attends && !ceiling_counts(desc))
            continue;
        while (memcmp(&model->op[same].desc, desc, sizeof(*desc)) != 0)
            same++;
        if (same < o)
            work[o] = work[same];
        else
            TESS_TRY((attends ? ceiling_attention : ceiling_op)(bench, desc, &work[o]));
    }
    return TESS_OK;
}

static enum tess_status ceiling_measure(struct ceiling_core *core)
{
    struct tess__bench bench = {0};
    struct ceiling_work *work = calloc((size_t)core->model->op_count + 1, sizeof(*work));
    if (!work)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of %d operations",
                  core->model->op_count);
    enum tess_status status = tess_kernel_open(core->kernel, 1, &bench.kernel);
    if (status == TESS_OK)
        status = ceiling_ops(&bench, core->model, work);
    if (status == TESS_OK)
        status = ceiling_update(&bench, core, &core->work);
    for (int32_t o = 0; o < core->model->op_count; o++) {
        core->work.seconds += work[o].seconds;
        core->work.flops += work[o].flops;
        core->work.rest_s += work[o].rest_s;
        core->work.in_f32 |= work[o].in_f32;
    }
    tess_kernel_close(bench.kernel);
    free(work);
    return status;
}

static void *ceiling_thread(void *context)
{
    struct ceiling_core *core = context;
    core->status = ceiling_measure(core);
    return NULL;
}

/* All cores at once; the slowest counts. */
static enum tess_status ceiling_cores(const struct tess_config *config,
                                      const struct tess_declare *model, int cores, int64_t rows,
                                      struct ceiling_work *work_out)
{
    struct ceiling_core *core = calloc((size_t)cores, sizeof(*core));
    const int64_t parameters = model->frozen ? 0 : model->element_count; /* adapters are small */
    const int64_t updates = parameters * rows / config->run.batch_size;
    enum tess_status status = TESS_OK;
    int started = 0;
    if (!core)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure %d cores", cores);
    for (; started < cores && status == TESS_OK; started++) {
        core[started] = (struct ceiling_core){.kernel = config->kernel,
                                              .model = model,
                                              .optimizer = config->optimizer,
                                              .updates = updates};
        if (pthread_create(&core[started].thread, NULL, ceiling_thread, &core[started]) != 0) {
            status = tess_fail(TESS_ERR_MEMORY, "no thread to measure core %d with", started);
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(core[i].thread, NULL);
        TESS_KEEP(status, core[i].status);
        work_out->seconds = fmax(work_out->seconds, core[i].work.seconds);
        work_out->rest_s = fmax(work_out->rest_s, core[i].work.rest_s);
        work_out->flops += core[i].work.flops;
        work_out->in_f32 |= core[i].work.in_f32;
    }
    free(core);
    return status;
}

static int ceiling_busy(const struct tess_config *config, int cores)
{
    return config->run.batch_size < cores ? (int)config->run.batch_size : cores;
}

int64_t tess__bench_ceiling_rows(const struct tess_config *config, int cores)
{
    const int64_t batch = config->run.batch_size, ranks = config->mesh.count[TESS_AXIS_DATA];
    const int64_t busy = ceiling_busy(config, cores);
    return batch / (ranks > busy ? ranks : busy);
}

enum tess_status tess__bench_ceiling(const struct tess_config *config,
                                     const struct tess_dataset *dataset, int cores,
                                     struct tess__bench_ceiling *ceiling_out)
{
    const int busy = ceiling_busy(config, cores);
    const int64_t rows = tess__bench_ceiling_rows(config, cores);
    const struct tess_model_input input = {
        .row = dataset->row,
        .class_count = dataset->class_count,
        .dtype = tess_run_dtype(&config->run),
        .tokens = dataset->tokens,
        .rows = rows,
        .leaf_rows = rows,
        .axis = {.parts = 1, .count = 1, .rank_count = 1},
        .lora = tess_config_lora(config),
    };
    struct tess_declare model = {0};
    void *state = NULL;
    enum tess_status status;
    struct ceiling_work work = {0};
    *ceiling_out = (struct tess__bench_ceiling){0};
    if (config->kernel->far_memory || !tess__best_is_there())
        return TESS_OK;
    TESS_TRY_GOTO(status, free_model, tess__declare(config, &input, &model, &state));
    status = ceiling_cores(config, &model, busy, rows, &work);
    if (status == TESS_OK && work.seconds > 0)
        *ceiling_out = (struct tess__bench_ceiling){
            (double)(rows * busy) / work.seconds, work.flops / work.seconds,
            (double)(rows * busy) / (work.seconds + work.rest_s),
            work.in_f32 ? TESS_F32 : input.dtype};

free_model:
    tess__declare_free(&model, state);
    return status;
}
