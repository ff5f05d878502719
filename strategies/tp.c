/*
 * The strategy `tp` of the tensor axis: layers are cut by their width, and activations cross ranks
 * where the parts of a layer are added or the whole input is needed (Shoeybi et al.,
 * "Megatron-LM", 2019, section 3; with sequence parallel Korthikanti et al., "Reducing activation
 * recomputation in large transformer models", 2022, section 4.2.2).
 *
 * The model decides which layers are cut and where activations cross ranks; the core has the
 * number of parts and sequence parallel (--tensor.*). This file moves the activations.
 */
#include "tessera/check.h"
#include "tessera/strategy.h"
#include "tessera/version.h"

#include <stdio.h>

static enum tess_status tp_call(struct tess_comm *comm, const struct tess_crossing *crossing)
{
    const size_t count = crossing->count;
    const enum tess_dtype dtype = crossing->dtype;
    switch (crossing->kind) {
    case TESS_CROSSING_SUM:
        return tess_comm_all_reduce(comm, crossing->data, crossing->data, count, dtype,
                                    TESS_REDUCE_SUM, crossing->event);
    case TESS_CROSSING_MAX:
        return tess_comm_all_reduce(comm, crossing->data, crossing->data, count, dtype,
                                    TESS_REDUCE_MAX, crossing->event);
    case TESS_CROSSING_SUM_SCATTER:
        return tess_comm_reduce_scatter(comm, crossing->data, crossing->part, count, dtype,
                                        TESS_REDUCE_SUM, crossing->event);
    case TESS_CROSSING_GATHER:
        return tess_comm_all_gather(comm, crossing->part, crossing->data, count, dtype,
                                    crossing->event);
    }
    TESS_FAIL(TESS_ERR_INTERNAL, "no way to cross ranks has number %d", (int)crossing->kind);
}

/* A call that goes on beside the rank's products takes with it those before it. */
static enum tess_status tp_cross(struct tess_strategy *strategy,
                                 const struct tess_crossing *crossing)
{
    TESS_TRY(tp_call(strategy->comm, crossing));
    return crossing->event != NULL ? tess_comm_poll(strategy->comm) : TESS_OK;
}

static void tp_describe(const struct tess_strategy *strategy,
                        void (*line)(void *context, const char *text), void *context)
{
    const int32_t ranks = strategy->plan->mesh.count[TESS_AXIS_TENSOR];
    char text[200];
    line(context, "two layers, cut by columns and then by rows: an all-reduce forward and one "
                  "backward; with --tensor.sequence-parallel all-gather and reduce-scatter, and "
                  "one all-gather more in backward");
    snprintf(text, sizeof(text),
             "sent by a rank in each, of the bytes of the activations: 2(t-1)/t = %.3g",
             2.0 * (double)(ranks - 1) / (double)ranks);
    line(context, text);
}

const struct tess_strategy_ops tess_strategy_tp = {
    .abi = TESS_ABI,
    .name = "tp",
    .summary = "tensor parallel: layers cut by width, activations summed over ranks; tp+sp: "
               "sequence parallel too",
    .axis = TESS_AXIS_TENSOR,
    .word = "sp",
    .word_option = "tensor.sequence-parallel",
    .cross = tp_cross,
    .describe = tp_describe,
};
