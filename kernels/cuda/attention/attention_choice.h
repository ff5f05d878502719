/* What may compute attention in place of our own kernels (attention.c): the choice of a run, and
 * cuDNN's plans of an operation, without cuDNN's own headers. */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_CHOICE_H
#define KERNELS_CUDA_ATTENTION_ATTENTION_CHOICE_H

#include "cuda/attention/launch_attention.h"
#include "cuda/cuda.h"

/* Behind op->data; NULL: our own kernels. In use unless state->attention_own. `a` has the arrays of
 * the whole operation. */
struct attention_other {
    enum tess_status (*forward)(struct tess_op *op, const struct cuda_attention_forward *a);
    enum tess_status (*backward)(struct tess_op *op, const struct cuda_attention_backward *a);
};

/*
 * attention_cudnn.c. op->data becomes cuDNN's plans, for both ways; NULL where it has no engine
 * for one of them that adds in f32 and always gives the same bits, and where this was built without
 * cuDNN. Not in a step: makes room for what plans need beside their operands.
 */
enum tess_status tess__cudnn_attention_open(struct tess_op *op);
void tess__cudnn_attention_close(struct tess_op *op); /* data NULL is allowed */

#endif
