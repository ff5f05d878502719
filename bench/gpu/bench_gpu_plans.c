/*
 * Part of `tessera bench gpu`: how good the library's advice is. Where a backend lets products be
 * chosen by measuring, every linear layer is opened twice, as advised and as measured, and the two
 * run in turns; the share is that of advice in the faster of the two. The backend chooses
 * how many algorithms it tries; the best here is the best of those.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PLANS_GOAL 0.95
#define PLANS_MAX  (TESS__GPU_LAYERS * TESS__GPU_PASSES)

struct plans {
    struct tess__gpu *advised;
    struct tess__gpu measured;
    double share[PLANS_MAX];
    int count;
};

static enum tess_status plans_pass(struct plans *p, const struct tess__gpu_layer_shape *shape,
                                   struct tess__gpu_layer layer[2])
{
    struct tess__gpu *const gpu[2] = {p->advised, &p->measured};
    struct tess__gpu_task task[2];
    struct tess__gpu_time time[2];
    char name[TESS__GPU_TEXT_BYTES], text[TESS__GPU_TEXT_BYTES];
    for (int i = 0; i < 2; i++)
        task[i] = (struct tess__gpu_task){.run = tess__gpu_layer_run, .context = &layer[i]};
    TESS_TRY(tess__gpu_measure_pair(gpu, task, time));
    snprintf(name, sizeof(name), "plan: %s %s", shape->name, tess__gpu_pass_name(layer->pass));
    const double flops = tess__gpu_layer_flops(&shape->desc);
    const double best_s = fmin(time[0].median_s, time[1].median_s);
    const struct tess__gpu_row row = {.part = "plans",
                                      .name = name,
                                      .shape = tess__gpu_layer_text(&shape->desc, text),
                                      .type =
                                          tess__gpu_type_name(tess__gpu_type_of(p->advised->dtype)),
                                      .flops = flops,
                                      .ceiling = flops / best_s,
                                      .goal = PLANS_GOAL,
                                      .time = time[0],
                                      .measured_s = time[1].median_s};
    p->share[p->count++] = best_s / time[0].median_s;
    return tess__gpu_print(p->advised, &row);
}

static enum tess_status plans_layer(struct plans *p, const struct tess__gpu_layer_shape *shape)
{
    struct tess__gpu_layer layer[2] = {{.op = NULL}, {.op = NULL}};
    TESS_TRY(tess__gpu_layer_open(p->advised, &shape->desc, &layer[0]));
    TESS_TRY(tess__gpu_layer_open(&p->measured, &shape->desc, &layer[1]));
    /* A sum beside the product, where the library has none inside, would be the same for both. */
    layer[0].dbias = layer[1].dbias = NULL;
    for (int pass = 0; pass < TESS__GPU_PASSES; pass++) {
        layer[0].pass = layer[1].pass = (enum tess__gpu_pass)pass;
        if (tess__gpu_layer_has(&shape->desc, layer->pass))
            TESS_TRY(plans_pass(p, shape, layer));
    }
    return TESS_OK;
}

static enum tess_status plans_layers(struct plans *p)
{
    struct tess__gpu_layer_shape shape[TESS__GPU_LAYERS];
    tess__gpu_layer_shapes(p->advised, shape);
    for (int i = 0; i < TESS__GPU_LAYERS; i++) {
        if (shape[i].desc.kind != TESS_OP_LINEAR)
            continue;
        TESS_TRY(plans_layer(p, &shape[i]));
        tess__gpu_drop(p->advised);
        tess__gpu_drop(&p->measured);
    }
    return TESS_OK;
}

/* Of two in the middle the lower one: no goal is met by half a step. */
static enum tess_status plans_print_median(struct plans *p)
{
    struct tess__gpu *gpu = p->advised;
    const bool has_goal = gpu->place.module;
    char shapes[TESS__GPU_TEXT_BYTES];
    tess__bench_sort(p->share, (size_t)p->count);
    const double median = p->share[(p->count - 1) / 2];
    const bool met = median >= PLANS_GOAL;
    printf("advice: the median of %d products reaches %.1f %% of the best, the least %.1f %%",
           p->count, 100 * median, 100 * p->share[0]);
    if (has_goal) {
        gpu->goals++;
        gpu->met += met;
        printf("; goal %.0f %%: %s", 100 * PLANS_GOAL, met ? "met" : "MISSED");
    }
    printf("\n");
    snprintf(shapes, sizeof(shapes), "%d products", p->count);
    return tess__bench_write(&gpu->bench.log,
                             json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:o, s:o}",
                                       "bench", "gpu", "part", "plans median", "name",
                                       "plan: median", "shape", shapes, "type",
                                       tess__gpu_type_name(tess__gpu_type_of(gpu->dtype)),
                                       "products", p->count, "share", median, "least", p->share[0],
                                       "goal", has_goal ? json_real(PLANS_GOAL) : json_null(),
                                       "met", has_goal ? json_boolean(met) : json_null()));
}

enum tess_status tess__gpu_plans(struct tess__gpu *gpu)
{
    const struct tess_kernel_choices choices = {.autotune = true};
    struct plans p = {.advised = gpu};
    if (!tess__gpu_has_choices(gpu)) {
        printf("\nplans: kernel %s does not choose products by measuring, there is nothing to "
               "compare\n",
               gpu->place.ops->name);
        return TESS_OK;
    }
    enum tess_status status = tess__gpu_open_beside(gpu, &choices, &p.measured);
    if (status == TESS_OK) {
        printf("\nProducts as the library advises (us, rate) and as measured when opened, in "
               "turns;\nbest: the faster of the two.");
        tess__gpu_head(gpu, "plans (rows, out, in)", false, "best");
        status = plans_layers(&p);
    }
    if (status == TESS_OK)
        status = plans_print_median(&p);
    tess__gpu_close_beside(&p.measured);
    return status;
}
