/*
 * The slots of causal attention, and which kernels take what: tensor cores where the dtype, the
 * head size and the alignment allow it (attention_forward.cu, attention_backward.cu), plain cores
 * otherwise (attention_plain.cu). Both keep one number per row of scores beside what the contract
 * names, for backward. In their place cuDNN computes what it has plans for, where the run has
 * chosen so (attention_choice.c).
 */
#include "cuda/attention/attention_choice.h"
#include "cuda/slots.h"

#include <math.h>

#define ATTENTION_LOG2E 1.4426950408889634
static struct cuda_attention_shape attention_shape(const struct tess_op_desc *d)
{
    return (struct cuda_attention_shape){
        .dtype = d->dtype,
        .batch = d->rows,
        .length = (int32_t)d->length,
        .heads = d->heads,
        .group = d->heads / d->kv_heads,
        .head_size = (int32_t)d->in,
        .q_stride = (int32_t)d->q_stride,
        .kv_stride = (int32_t)d->kv_stride,
        .scale = (float)(1 / sqrt((double)d->in)),
        .scale_log2 = (float)(ATTENTION_LOG2E / sqrt((double)d->in)),
    };
}

/* Rows of 8 elements of 2 bytes. */
bool tess__cuda_attention_is_fast(const struct tess_op_desc *d)
{
    return (d->dtype == TESS_BF16 || d->dtype == TESS_F16) && (d->in == 64 || d->in == 128) &&
           d->q_stride % 8 == 0 && d->kv_stride % 8 == 0;
}

/* What computes it in place of our own kernels; NULL: those. */
static const struct attention_other *attention_other(const struct tess_op *op)
{
    return op->data != NULL && !tess__cuda_state(op->kernel)->attention_own ? op->data : NULL;
}

static bool attention_aligned(const void *const *array, int count)
{
    uintptr_t bits = 0;
    for (int i = 0; i < count; i++)
        bits |= (uintptr_t)array[i];
    return bits % 16 == 0;
}

enum tess_status tess__cuda_attention_forward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, void *y, float *lse)
{
    const void *const arrays[] = {q, k, v, y};
    struct cuda_attention_forward a = {
        .shape = attention_shape(&op->desc), .q = q, .k = k, .v = v, .y = y, .lse = lse};
    if (attention_other(op) != NULL)
        return attention_other(op)->forward(op, &a);
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    if (tess__cuda_attention_is_fast(&op->desc) && attention_aligned(arrays, 4))
        CUDA_TRY(tess__cuda_launch_attention_forward(stream, &a));
    else
        CUDA_TRY(tess__cuda_launch_attention_forward_plain(stream, &a));
    return TESS_OK;
}

enum tess_status tess__cuda_attention_backward(struct tess_op *op, const void *q, const void *k,
                                               const void *v, const void *y, const void *dy,
                                               const float *lse, void *dq, void *dk, void *dv)
{
    const void *const arrays[] = {q, k, v, y, dy, dq, dk, dv};
    struct cuda_attention_backward a = {.shape = attention_shape(&op->desc),
                                        .q = q,
                                        .k = k,
                                        .v = v,
                                        .y = y,
                                        .dy = dy,
                                        .lse = lse,
                                        .product = op->scratch,
                                        .dq = dq,
                                        .dk = dk,
                                        .dv = dv};
    if (attention_other(op) != NULL)
        return attention_other(op)->backward(op, &a);
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    if (tess__cuda_attention_is_fast(&op->desc) && attention_aligned(arrays, 8))
        CUDA_TRY(tess__cuda_launch_attention_backward(stream, &a));
    else
        CUDA_TRY(tess__cuda_launch_attention_backward_plain(stream, &a));
    return TESS_OK;
}

enum tess_status tess__cuda_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                             const void *q, const void *k, const void *v, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    const size_t word = tess_dtype_bytes(d->dtype);
    struct cuda_attention_forward a = {.shape = attention_shape(d), .k = k, .v = v};
    a.shape.batch = 1;
    for (int64_t i = 0; i < count; i++) {
        a.shape.length = (int32_t)(first + i + 1);
        a.q = (const char *)q + (size_t)(i * d->q_stride) * word;
        a.y = (char *)y + (size_t)(i * d->heads * d->in) * word;
        CUDA_TRY(tess__cuda_launch_attention_decode(tess__cuda_stream(op->kernel), &a));
    }
    return TESS_OK;
}
