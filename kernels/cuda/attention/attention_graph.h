/* Causal attention as graphs of cuDNN: attention_graph_cudnn.c, for attention_cudnn.c and tests. */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_GRAPH_H
#define KERNELS_CUDA_ATTENTION_ATTENTION_GRAPH_H

#include "cuda/cudnn/cudnn.h"

enum attention_way { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_WAY_COUNT };

/* What a plan calls its operands: the arrays of tess_attention_forward and _backward as they lie,
 * room for one number per row of scores, and numbers in the host's memory. */
enum attention_tensor {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_Y,
    ATTENTION_LSE,
    ATTENTION_DY,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_PRODUCT, /* [sequences, heads, length]: the sums of dy y */
    ATTENTION_SCALE,
    ATTENTION_MINUS_INF,
    ATTENTION_ONE,
    ATTENTION_OPERANDS,
};

/* Bytes that arrays of the operation's dtype are aligned to; others as f32 is. */
#define ATTENTION_ALIGN 16

/*
 * An engine for `sequences` sequences of the operation. choice_out->plan is NULL where cuDNN has
 * none that adds in f32, always gives the same bits and needs no more than `workspace_bytes`. No
 * device memory is touched.
 */
enum tess_status tess__cudnn_attention_choose(const struct tess_op_desc *desc, int64_t sequences,
                                              enum attention_way way, int64_t workspace_bytes,
                                              const struct cudnn_place *place,
                                              struct cudnn_choice *choice_out);

/* The number that this version of the library takes for ATTENTION_MINUS_INF. */
float tess__cudnn_attention_minus_inf(void);

#endif
