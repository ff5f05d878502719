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
    int32_t length; /* T; decode: positions up to the last query */
    int32_t heads;
    int32_t group; /* query heads of one key and value head */
    int32_t head_size;
    int32_t q_stride, kv_stride; /* elements: 32 bits, because addresses cost registers */
    float scale;                 /* 1 / sqrt(D) */
    float scale_log2;            /* the same times log2(e): exp(s scale) = exp2(s scale_log2) */
};

/* Dropout of probabilities, of the mask in ref/mask.h. */
struct cuda_attention_drop {
    uint32_t key[2];
    uint32_t limit; /* words whose top 24 bits are below it are dropped; 0: nothing is */
    float scale;    /* of what is kept; 1 where nothing is dropped */
    uint64_t row;   /* the number of the row of the call's first position and head */
    int32_t heads;  /* rows of a position */
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

/* `documents` count 0: there are none, and every sequence is whole. Both go by value, behind `a`,
 * so that what has no use for them stays as it is. */

/* On tensor cores: bf16 and f16, head sizes 64 and 128, every array and row 16-byte aligned. */
cudaError_t tess__cuda_launch_attention_forward(cudaStream_t stream,
                                                const struct cuda_attention_forward *a,
                                                const struct cuda_attention_documents *documents,
                                                const struct cuda_attention_drop *drop);
cudaError_t tess__cuda_launch_attention_backward(cudaStream_t stream,
                                                 const struct cuda_attention_backward *a,
                                                 const struct cuda_attention_documents *documents,
                                                 const struct cuda_attention_drop *drop);

/* In f32 on plain cores: everything else. */
cudaError_t tess__cuda_launch_attention_forward_plain(
    cudaStream_t stream, const struct cuda_attention_forward *a,
    const struct cuda_attention_documents *documents, const struct cuda_attention_drop *drop);
cudaError_t tess__cuda_launch_attention_backward_plain(
    cudaStream_t stream, const struct cuda_attention_backward *a,
    const struct cuda_attention_documents *documents, const struct cuda_attention_drop *drop);

/* product of `a`, which both ways of backward begin with. */
cudaError_t tess__cuda_launch_attention_product(cudaStream_t stream,
                                                const struct cuda_attention_backward *a,
                                                const struct cuda_attention_documents *documents);

/* Positions from .. shape.length - 1 of one sequence: q and y of them, k and v of all; the bits
 * of forward. The first is for what tensor cores take. */
cudaError_t tess__cuda_launch_attention_kept(cudaStream_t stream,
                                             const struct cuda_attention_forward *a, int32_t from);
cudaError_t tess__cuda_launch_attention_kept_plain(cudaStream_t stream,
                                                   const struct cuda_attention_forward *a,
                                                   int32_t from);

#ifdef __cplusplus
}
#endif
#endif
