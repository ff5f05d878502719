/*
 * The slots of causal attention, and which kernels take what: tensor cores where the dtype, the
 * head size and the alignment allow it (attention_forward.cu, attention_backward.cu), plain cores
 * otherwise (attention_plain.cu). Both keep one number per row of scores beside what the contract
 * names, for backward. In their place cuDNN computes what it has plans for, where the run has
 * chosen so (attention_choice.c).
 */
#include "cuda/attention/attention_choice.h"
#include "cuda/slots.h"
#include "ref/mask.h"

#include <math.h>
#include <string.h>

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
        .window = d->window > 0 ? d->window : CUDA_ATTENTION_LENGTH_MAX,
        .scale = (float)(1 / sqrt((double)d->in)),
        .scale_log2 = (float)(ATTENTION_LOG2E / sqrt((double)d->in)),
    };
}

static struct cuda_attention_drop attention_drop(const struct tess_op *op)
{
    struct cuda_attention_drop drop = {.scale = 1};
    if (!op->drop.on || !(op->desc.dropout > 0))
        return drop;
    const struct tess_rng_key key = tess__mask_key(op->drop.key);
    memcpy(drop.key, key.word, sizeof(drop.key));
    drop.limit = tess__mask_limit(op->desc.dropout);
    drop.scale = 1.0f / (1.0f - op->desc.dropout);
    drop.row = tess__mask_row(&op->drop, 0, 0);
    drop.heads = op->drop.heads;
    return drop;
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

static enum tess_status attention_forward(struct tess_op *op,
                                          const struct cuda_attention_forward *a,
                                          const struct cuda_attention_documents *documents)
{
    const void *const arrays[] = {a->q, a->k, a->v, a->y};
    const struct cuda_attention_drop drop = attention_drop(op);
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    if (tess__cuda_attention_is_fast(&op->desc) && attention_aligned(arrays, 4))
        CUDA_TRY(tess__cuda_launch_attention_forward(stream, a, documents, &drop));
    else
        CUDA_TRY(tess__cuda_launch_attention_forward_plain(stream, a, documents, &drop));
    return TESS_OK;
}

static enum tess_status attention_backward(struct tess_op *op,
                                           const struct cuda_attention_backward *a,
                                           const struct cuda_attention_documents *documents)
{
    const void *const arrays[] = {a->q, a->k, a->v, a->y, a->dy, a->dq, a->dk, a->dv};
    const struct cuda_attention_drop drop = attention_drop(op);
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    if (tess__cuda_attention_is_fast(&op->desc) && attention_aligned(arrays, 8))
        CUDA_TRY(tess__cuda_launch_attention_backward(stream, a, documents, &drop));
    else
        CUDA_TRY(tess__cuda_launch_attention_backward_plain(stream, a, documents, &drop));
    return TESS_OK;
}

static const struct cuda_attention_documents attention_whole = {.count = 0};

enum tess_status tess__cuda_attention_forward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, void *y, float *lse)
{
    const struct cuda_attention_forward a = {
        .shape = attention_shape(&op->desc), .q = q, .k = k, .v = v, .y = y, .lse = lse};
    return attention_other(op) != NULL ? attention_other(op)->forward(op, &a)
                                       : attention_forward(op, &a, &attention_whole);
}

static struct cuda_attention_backward attention_backward_arrays(struct tess_op *op, const void *q,
                                                                const void *k, const void *v,
                                                                const void *y, const void *dy,
                                                                const float *lse, void *dq,
                                                                void *dk, void *dv)
{
    return (struct cuda_attention_backward){.shape = attention_shape(&op->desc),
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
}

enum tess_status tess__cuda_attention_backward(struct tess_op *op, const void *q, const void *k,
                                               const void *v, const void *y, const void *dy,
                                               const float *lse, void *dq, void *dk, void *dv)
{
    const struct cuda_attention_backward a =
        attention_backward_arrays(op, q, k, v, y, dy, lse, dq, dk, dv);
    return attention_other(op) != NULL ? attention_other(op)->backward(op, &a)
                                       : attention_backward(op, &a, &attention_whole);
}

/* ---- documents: by our own kernels, as many at a time as a launch takes ---------------------- */

/* The next of `count` documents from `first` on; returns the first that is left. */
static int32_t attention_next(const int32_t *begin, int32_t count, int32_t first,
                              struct cuda_attention_documents *next_out)
{
    const int32_t left = count - first;
    next_out->count = left < CUDA_ATTENTION_DOCUMENTS ? left : CUDA_ATTENTION_DOCUMENTS;
    memcpy(next_out->begin, begin + first, (size_t)(next_out->count + 1) * sizeof(*begin));
    return first + next_out->count;
}

enum tess_status tess__cuda_attention_forward_documents(struct tess_op *op, const int32_t *begin,
                                                        int32_t count, const void *q, const void *k,
                                                        const void *v, void *y, float *lse)
{
    const struct cuda_attention_forward a = {
        .shape = attention_shape(&op->desc), .q = q, .k = k, .v = v, .y = y, .lse = lse};
    struct cuda_attention_documents next = {.count = 0};
    for (int32_t d = 0; d < count;) {
        d = attention_next(begin, count, d, &next);
        TESS_TRY(attention_forward(op, &a, &next));
    }
    return TESS_OK;
}

enum tess_status tess__cuda_attention_backward_documents(
    struct tess_op *op, const int32_t *begin, int32_t count, const void *q, const void *k,
    const void *v, const void *y, const void *dy, const float *lse, void *dq, void *dk, void *dv)
{
    const struct cuda_attention_backward a =
        attention_backward_arrays(op, q, k, v, y, dy, lse, dq, dk, dv);
    struct cuda_attention_documents next = {.count = 0};
    for (int32_t d = 0; d < count;) {
        d = attention_next(begin, count, d, &next);
        TESS_TRY(attention_backward(op, &a, &next));
    }
    return TESS_OK;
}

/* ---- positions against what was kept --------------------------------------------------------- */

/* All positions in one launch, of the forward kernels and with their bits, where training takes the
 * same ones: by alignment as it does. */
enum tess_status tess__cuda_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                             const void *q, const void *k, const void *v, void *y)
{
    struct cuda_attention_forward a = {
        .shape = attention_shape(&op->desc), .q = q, .k = k, .v = v, .y = y};
    const void *const arrays[] = {q, k, v, y};
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    a.shape.batch = 1;
    a.shape.length = (int32_t)(first + count);
    if (tess__cuda_attention_is_fast(&op->desc) && attention_aligned(arrays, 4))
        CUDA_TRY(tess__cuda_launch_attention_kept(stream, &a, (int32_t)first));
    else
        CUDA_TRY(tess__cuda_launch_attention_kept_plain(stream, &a, (int32_t)first));
    return TESS_OK;
}
