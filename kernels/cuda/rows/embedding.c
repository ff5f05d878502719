/* The slots of embedding tables; the kernels are in embedding.cu and sort.cu. */
#include "cuda/slots.h"

#include "cuda/cuda.h"
#include "cuda/rows/launch_rows.h"

static struct tess__cuda_embedding embedding_of(const struct tess_op_desc *d, int64_t first)
{
    return (struct tess__cuda_embedding){.dtype = d->dtype,
                                         .rows = d->rows,
                                         .leaf_rows = d->leaf_rows,
                                         .entries = d->in,
                                         .width = d->out,
                                         .length = d->length,
                                         .first = first};
}

enum tess_status tess__cuda_embedding_needs(const struct tess_op_desc *desc,
                                            struct tess_op_needs *needs_out)
{
    if (desc->rows > TESS__CUDA_EMBEDDING_MAX || desc->in > TESS__CUDA_EMBEDDING_MAX)
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "cuda: an embedding of %lld rows from a table of %lld, but both are counted in 31 "
            "bits: use smaller micro-batches",
            (long long)desc->rows, (long long)desc->in);
    struct tess__cuda_embedding embedding = embedding_of(desc, 0);
    *needs_out = (struct tess_op_needs){.scratch_bytes = tess__cuda_embedding_bytes(&embedding)};
    return TESS_OK;
}

enum tess_status tess__cuda_embedding_forward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *table, const void *add,
                                              void *y)
{
    struct tess__cuda_embedding embedding = embedding_of(&op->desc, first);
    CUDA_TRY(tess__cuda_launch_embedding_forward(tess__cuda_stream(op->kernel), &embedding, token,
                                                 table, add, y));
    return TESS_OK;
}

enum tess_status tess__cuda_embedding_backward(struct tess_op *op, const int32_t *token,
                                               int64_t first, const void *dy, float *dtable)
{
    struct tess__cuda_embedding embedding = embedding_of(&op->desc, first);
    CUDA_TRY(tess__cuda_launch_embedding_backward(tess__cuda_stream(op->kernel), &embedding, token,
                                                  dy, dtable, op->scratch));
    return TESS_OK;
}
