/*
 * Convolutions over cuDNN on a device: plans of one leaf, and running them. A plan is one engine
 * with its settings, found once for the leaf's shape; since every leaf is a run of its own, its
 * bits depend on nothing else. Which descriptors make a plan is conv_graph_cudnn.c's.
 */
#include "cuda/products/conv_graph.h"
#include "cuda/products/matmul.h"

#include <stdlib.h>

struct cudnn_plan {
    struct cudnn_conv conv;
    struct cudnn_choice choice;
};

/* ---- plans -------------------------------------------------------------------------------- */

static enum tess_status cudnn_prepare(struct tess_kernel *kernel, struct cudnn_plan *plan)
{
    struct cudnn_place place;
    TESS_TRY(tess__cudnn_open(kernel, &place));
    TESS_TRY(tess__cudnn_conv_choose(&plan->conv, &place, &plan->choice));
    return tess__cudnn_make_room(kernel, plan->choice.workspace_bytes);
}

/* Some engines refuse, when they run, leaves at addresses of less alignment than this, whatever the
 * descriptors say (cuDNN 9.19 on an H100). */
#define CUDNN_LEAF_ALIGN 16

static bool cudnn_is_aligned(const struct cudnn_conv *conv)
{
    return tess__cudnn_conv_alignment(conv, CUDNN_X) >= CUDNN_LEAF_ALIGN &&
           tess__cudnn_conv_alignment(conv, CUDNN_Y) >= CUDNN_LEAF_ALIGN;
}

enum tess_status tess__cudnn_plan_open(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                       enum conv_way way, struct cudnn_plan **plan_out)
{
    static const char *const name[CONV_WAY_COUNT] = {"forward", "forward with bias",
                                                     "backward by data", "backward by weight"};
    *plan_out = NULL;
    struct cudnn_plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a plan of cuDNN");
    plan->conv = (struct cudnn_conv){
        .way = way,
        .tf32 = tess__cuda_matmul_compute(kernel, CUDA_R_32F, desc->f32_math) ==
                CUBLAS_COMPUTE_32F_FAST_TF32,
        .d = *desc,
    };
    const enum tess_status status =
        cudnn_is_aligned(&plan->conv) ? cudnn_prepare(kernel, plan) : TESS_OK;
    const bool found = plan->choice.plan != NULL;
    if (status == TESS_OK)
        tess_log(TESS_LOG_DEBUG,
                 "convolution of %lld channels to %lld, window %d, %s, %s: %s %lld, %lld bytes",
                 (long long)desc->in, (long long)desc->out, (int)desc->window,
                 tess_dtype_name(desc->dtype), name[way],
                 found ? "cuDNN's engine" : "no engine of cuDNN", (long long)plan->choice.engine,
                 (long long)plan->choice.workspace_bytes);
    if (status == TESS_OK && found)
        *plan_out = plan;
    else
        tess__cudnn_plan_close(plan);
    return status;
}

void tess__cudnn_plan_close(struct cudnn_plan *plan)
{
    if (plan == NULL)
        return;
    tess__cudnn_choice_drop(&plan->choice);
    free(plan);
}

/* ---- running ------------------------------------------------------------------------------ */

enum tess_status tess__cudnn_plan_run(struct tess_kernel *kernel, const struct cudnn_plan *plan,
                                      const struct cudnn_operands *o)
{
    const struct cudnn_pack pack = {
        .count = plan->conv.way == CONV_FORWARD_BIAS ? 4 : 3,
        .id = {CUDNN_X, CUDNN_W, CUDNN_Y, CUDNN_BIAS},
        .pointer = {o->x, o->w, o->y, o->bias},
    };
    for (int64_t i = 0; i < pack.count; i++) {
        const int64_t align =
            tess__cudnn_conv_alignment(&plan->conv, (enum cudnn_conv_tensor)pack.id[i]);
        if (((uintptr_t)pack.pointer[i] & (uintptr_t)(align - 1)) != 0)
            TESS_FAIL(TESS_ERR_INTERNAL,
                      "operand %lld of a convolution is not aligned to %lld bytes",
                      (long long)pack.id[i], (long long)align);
    }
    return tess__cudnn_run(kernel, &plan->choice, &pack);
}
