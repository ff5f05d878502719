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

/* Of products, in all their calls. */
struct ceiling_work {
    double seconds, flops;
};

/* What one core does. */
struct ceiling_core {
    pthread_t thread;
    const struct tess_kernel_ops *kernel;
    const struct tess_declare *model; /* for the core's share of the batch */
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
    }
    tess__bench_layer_close(&layer);
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
        int32_t same = 0;
        if (!ceiling_counts(desc))
            continue;
        while (memcmp(&model->op[same].desc, desc, sizeof(*desc)) != 0)
            same++;
        if (same < o)
            work[o] = work[same];
        else
            TESS_TRY(ceiling_op(bench, desc, &work[o]));
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
    for (int32_t o = 0; o < core->model->op_count; o++) {
        core->work.seconds += work[o].seconds;
        core->work.flops += work[o].flops;
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
                                      const struct tess_declare *model, int cores,
                                      struct ceiling_work *work_out)
{
    struct ceiling_core *core = calloc((size_t)cores, sizeof(*core));
    enum tess_status status = TESS_OK;
    int started = 0;
    if (!core)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure %d cores", cores);
    for (; started < cores && status == TESS_OK; started++) {
        core[started] = (struct ceiling_core){.kernel = config->kernel, .model = model};
        if (pthread_create(&core[started].thread, NULL, ceiling_thread, &core[started]) != 0) {
            status = tess_fail(TESS_ERR_MEMORY, "no thread to measure core %d with", started);
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(core[i].thread, NULL);
        TESS_KEEP(status, core[i].status);
        work_out->seconds = fmax(work_out->seconds, core[i].work.seconds);
        work_out->flops += core[i].work.flops;
    }
    free(core);
    return status;
}

enum tess_status tess__bench_ceiling(const struct tess_config *config,
                                     const struct tess_dataset *dataset, int cores,
                                     struct tess__bench_ceiling *ceiling_out)
{
    const int busy = config->run.batch_size < cores ? (int)config->run.batch_size : cores;
    const int64_t rows = config->run.batch_size / busy;
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
    status = ceiling_cores(config, &model, busy, &work);
    if (status == TESS_OK && work.seconds > 0)
        *ceiling_out = (struct tess__bench_ceiling){(double)(rows * busy) / work.seconds,
                                                    work.flops / work.seconds};

free_model:
    tess__declare_free(&model, state);
    return status;
}
