/*
 * Launchers of the attention kernels, and their arguments. Contracts of the operations:
 * tessera/kernel.h; the choice between launchers: attention.c.
 */
#ifndef KERNELS_CUDA_ATTENTION_LAUNCH_ATTENTION_H
#define KERNELS_CUDA_ATTENTION_LAUNCH_ATTENTION_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_attention_shape {
    enum tess_dtype dtype;
    int32_t window; /* positions that one sees at most; here, where it moves no other member */
    int64_t batch;  /* B sequences */
    int32_t length; /* T; decode: positions that are looked at */
    int32_t heads;
    int32_t group; /* query heads of one key and value head */
    int32_t head_size;
    int32_t q_stride, kv_stride; /* elements: 32 bits, because addresses cost registers */
    float scale;                 /* 1 / sqrt(D) */
    float scale_log2;            /* the same times log2(e): exp(s scale) = exp2(s scale_log2) */
};

struct cuda_attention_forward {
    struct cuda_attention_shape shape;
    const void *q, *k, *v;
    void *y;
    float *lse; /* NULL in decode */
};

struct cuda_attention_backward {
    struct cuda_attention_shape shape;
    const void *q, *k, *v, *y, *dy;
    const float *lse;
    float *product; /* [B, heads, T] scratch: dy . y scale, of every row of scores */
    void *dq, *dk, *dv;
};

/*
 * Documents of a launch: positions begin[d] .. begin[d + 1] - 1 are a sequence of their own. They
 * go with the launch by value, as no two calls have the same. The launchers fill in `tile`: where
 * those of document d begin among the tiles of all, for a kernel's height of tiles.
 */
#define CUDA_ATTENTION_DOCUMENTS 64
struct cuda_attention_documents {
    int32_t count;
    int32_t begin[CUDA_ATTENTION_DOCUMENTS + 1], tile[CUDA_ATTENTION_DOCUMENTS + 1];
};

/* `documents` count 0: there are none, and every sequence is whole. */

/* On tensor cores: bf16 and f16, head sizes 64 and 128, every array and row 16-byte aligned. */
cudaError_t tess__cuda_launch_attention_forward(cudaStream_t stream,
                                                const struct cuda_attention_forward *a,
                                                const struct cuda_attention_documents *documents);
cudaError_t tess__cuda_launch_attention_backward(cudaStream_t stream,
                                                 const struct cuda_attention_backward *a,
                                                 const struct cuda_attention_documents *documents);

/* In f32 on plain cores: everything else. */
cudaError_t tess__cuda_launch_attention_forward_plain(
    cudaStream_t stream, const struct cuda_attention_forward *a,
    const struct cuda_attention_documents *documents);
cudaError_t tess__cuda_launch_attention_backward_plain(
    cudaStream_t stream, const struct cuda_attention_backward *a,
    const struct cuda_attention_documents *documents);

/* product of `a`, which both ways of backward begin with. */
cudaError_t tess__cuda_launch_attention_product(cudaStream_t stream,
                                                const struct cuda_attention_backward *a,
                                                const struct cuda_attention_documents *documents);

/* One position: q and y of it, shape.length of k and v; batch 1. */
cudaError_t tess__cuda_launch_attention_decode(cudaStream_t stream,
                                               const struct cuda_attention_forward *a);

#ifdef __cplusplus
}
#endif
#endif
