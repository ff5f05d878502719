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
    bool in_f32; /* some product was measured beside f32's */
    struct tess__bench_choice choice;
};

/* What one core does. */
struct ceiling_core {
    pthread_t thread;
    const struct tess_kernel_ops *kernel;
    const struct tess_declare *model; /* for the core's share of the batch */
    struct ceiling_work *work;        /* [op_count] */
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
        work_out->choice.number[what] = product.number;
    }
    tess__bench_layer_close(&layer);
    return status;
}

bool tess__bench_ceiling_counts(const struct tess_op_desc *desc)
{
    return (desc->kind == TESS_OP_LINEAR || desc->kind == TESS_OP_CONV2D) && !desc->add_grad;
}

/* Blocks are alike: each shape is measured once. */
static enum tess_status ceiling_ops(struct tess__bench *bench, const struct ceiling_core *core)
{
    const struct tess_declare_op *op = core->model->op;
    for (int32_t o = 0; o < core->model->op_count; o++) {
        int32_t same = 0;
        if (!tess__bench_ceiling_counts(&op[o].desc))
            continue;
        while (memcmp(&op[same].desc, &op[o].desc, sizeof(op->desc)) != 0)
            same++;
        if (same < o)
            core->work[o] = core->work[same];
        else
            TESS_TRY(ceiling_op(bench, &op[o].desc, &core->work[o]));
    }
    return TESS_OK;
}

static enum tess_status ceiling_measure(const struct ceiling_core *core)
{
    struct tess__bench bench = {0};
    TESS_TRY(tess_kernel_open(core->kernel, 1, &bench.kernel));
    const enum tess_status status = ceiling_ops(&bench, core);
    tess_kernel_close(bench.kernel);
    return status;
}

static void *ceiling_thread(void *context)
{
    struct ceiling_core *core = context;
    core->status = ceiling_measure(core);
    return NULL;
}

/* All cores at once; the slowest counts. work [cores, op_count], all zero. */
static enum tess_status ceiling_cores(const struct tess_config *config,
                                      const struct tess_declare *model, int cores,
                                      struct ceiling_work *work)
{
    struct ceiling_core *core = calloc((size_t)cores, sizeof(*core));
    enum tess_status status = TESS_OK;
    int started = 0;
    if (!core)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure %d cores", cores);
    for (; started < cores && status == TESS_OK; started++) {
        core[started] = (struct ceiling_core){.kernel = config->kernel,
                                              .model = model,
                                              .work = work + (size_t)started * model->op_count};
        if (pthread_create(&core[started].thread, NULL, ceiling_thread, &core[started]) != 0) {
            status = tess_fail(TESS_ERR_MEMORY, "no thread to measure core %d with", started);
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(core[i].thread, NULL);
        TESS_KEEP(status, core[i].status);
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

enum tess_status tess__bench_ceiling_declare(const struct tess_config *config,
                                             const struct tess_dataset *dataset, int64_t rows,
                                             struct tess_declare *model_out, void **state_out)
{
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
    *model_out = (struct tess_declare){0};
    *state_out = NULL;
    return tess__declare(config, &input, model_out, state_out);
}

/* work [cores, op_count] */
static void ceiling_sum(const struct tess_declare *model, int cores, double samples,
                        const struct ceiling_work *work, struct tess__bench_ceiling *ceiling)
{
    double slowest_s = 0, flops = 0;
    ceiling->dtype = model->dtype;
    for (int c = 0; c < cores; c++) {
        double seconds = 0;
        for (int32_t o = 0; o < model->op_count; o++, work++) {
            seconds += work->seconds;
            flops += work->flops;
            ceiling->choice[o] = work->choice;
            if (work->in_f32)
                ceiling->dtype = TESS_F32;
        }
        slowest_s = fmax(slowest_s, seconds);
    }
    if (slowest_s > 0) {
        ceiling->samples_per_s = samples / slowest_s;
        ceiling->flops_per_s = flops / slowest_s;
    }
}

enum tess_status tess__bench_ceiling(const struct tess_config *config,
                                     const struct tess_dataset *dataset, int cores,
                                     struct tess__bench_ceiling *ceiling_out)
{
    const int busy = ceiling_busy(config, cores);
    const int64_t rows = tess__bench_ceiling_rows(config, cores);
    struct tess_declare model;
    struct ceiling_work *work = NULL;
    void *state;
    enum tess_status status;
    *ceiling_out = (struct tess__bench_ceiling){0};
    if (config->kernel->far_memory || !tess__best_is_there())
        return TESS_OK;
    TESS_TRY_GOTO(status, free_model,
                  tess__bench_ceiling_declare(config, dataset, rows, &model, &state));
    const size_t ops = (size_t)model.op_count + 1;
    work = calloc((size_t)busy * ops, sizeof(*work));
    ceiling_out->choice = calloc(ops, sizeof(*ceiling_out->choice));
    if (!work || !ceiling_out->choice)
        TESS_TRY_GOTO(
            status, free_model,
            tess_fail(TESS_ERR_MEMORY, "no memory for the times of %d operations", model.op_count));
    status = ceiling_cores(config, &model, busy, work);
    if (status == TESS_OK)
        ceiling_sum(&model, busy, (double)(rows * busy), work, ceiling_out);

free_model:
    free(work);
    tess__declare_free(&model, state);
    return status;
}
