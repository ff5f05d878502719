/* What operations on rows and attention need, and the table over all kinds; see needs.h. */
#include "needs/needs.h"

#include "needs/rows.h"
#include "tessera/check.h"

#include "kernel_open.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/* Lines of all images are blocks in x, of which a grid has 2^31 - 1; pieces of a line are threads
 * of blocks in y, of which it has 65535. */
enum tess_status tess__cuda_pool_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out)
{
    const int64_t lines = INT32_MAX, line = 65535 * ROWS_THREADS;
    (void)needs_out;
    if (desc->width > line / desc->in || (desc->rows > 0 && desc->height > lines / desc->rows))
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "cuda: pooling of %lld images of %lld x %lld with %lld channels, but there may be "
            "2^31 lines, each of 2^24 elements: use smaller micro-batches",
            (long long)desc->rows, (long long)desc->height, (long long)desc->width,
            (long long)desc->in);
    return TESS_OK;
}

enum tess_status tess__cuda_batch_norm_needs(const struct tess_op_desc *desc,
                                             struct tess_op_needs *needs_out)
{
    int64_t leaves = desc->rows / desc->leaf_rows;
    leaves = leaves > 0 ? leaves : 1; /* infer keeps its statistics as a leaf's */
    const struct columns_shape s =
        batch_norm_shape(desc, leaves, desc->leaf_rows, rows_piece(desc->dtype));
    needs_out->scratch_bytes = (size_t)(2 * leaves * (s.slabs + 1) * s.n) * sizeof(float);
    return TESS_OK;
}

enum tess_status tess__cuda_norm_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out)
{
    if (desc->in < 1 || desc->in > NORM_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "cuda: a norm over %lld channels, but a row stays in registers: 1 to %d",
                  (long long)desc->in, NORM_MAX);
    const struct norm_shape s = norm_shape_of(desc, NORM_BACKWARD_EACH);
    const int64_t leaves = s.rows / s.leaf_rows;
    needs_out->scratch_bytes = (size_t)(leaves * (2 * s.slabs + 1) * s.channels) * sizeof(float);
    return TESS_OK;
}

/* Rows and entries are counted in 31 bits; the tree over leaves has that many levels at most. */
enum tess_status tess__cuda_embedding_needs(const struct tess_op_desc *desc,
                                            struct tess_op_needs *needs_out)
{
    if (desc->rows > INT32_MAX || desc->in > INT32_MAX)
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "cuda: an embedding of %lld rows from a table of %lld, but both are counted in 31 "
            "bits: use smaller micro-batches",
            (long long)desc->rows, (long long)desc->in);
    needs_out->scratch_bytes = sort_pieces(desc->rows, desc->in, NULL).sorted.bytes +
                               (size_t)desc->in * CUDA_EMBEDDING_ENTRY_BYTES + 16;
    return TESS_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The finest division into blocks: 32 queries and 64 columns of a head each. */
#define ATTENTION_BLOCK_ROWS    32
#define ATTENTION_BLOCK_COLUMNS 64

static bool attention_fits(const struct tess_op_desc *d)
{
    if (d->length > CUDA_ATTENTION_LENGTH_MAX || d->q_stride > INT32_MAX ||
        d->kv_stride > INT32_MAX)
        return false;
    /* Divided, because the products may not fit. */
    int64_t blocks = INT32_MAX / d->heads;
    blocks /= (d->length + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS;
    blocks /= (d->in + ATTENTION_BLOCK_COLUMNS - 1) / ATTENTION_BLOCK_COLUMNS;
    return (d->decode ? 1 : d->rows) <= blocks;
}

enum tess_status tess__cuda_attention_needs(const struct tess_op_desc *desc,
                                            struct tess_op_needs *needs_out)
{
    if (!attention_fits(desc))
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "cuda: attention over %lld sequences of %lld positions with %d heads of %lld, "
                  "strides %lld and %lld, is more than one launch can number: use a smaller "
                  "micro-batch",
                  (long long)desc->rows, (long long)desc->length, (int)desc->heads,
                  (long long)desc->in, (long long)desc->q_stride, (long long)desc->kv_stride);
    if (!desc->decode)
        needs_out->scratch_bytes =
            (size_t)desc->rows * (size_t)desc->heads * (size_t)desc->length * sizeof(float);
    return TESS_OK;
}

/* ---- all kinds ------------------------------------------------------------------------------- */

bool tess__cuda_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    return desc->kind == TESS_OP_LINEAR || desc->kind == TESS_OP_CONV2D
               ? tess__cuda_matmul_supports(desc, why, why_bytes)
               : tess_op_check(desc, why, why_bytes);
}

static cuda_needs *const needs_of[TESS_OP_KIND_COUNT] = {
    [TESS_OP_LINEAR] = tess__cuda_linear_needs,
    [TESS_OP_CONV2D] = tess__cuda_conv_needs,
    [TESS_OP_MAX_POOL] = tess__cuda_pool_needs,
    [TESS_OP_AVG_POOL] = tess__cuda_pool_needs,
    [TESS_OP_BATCH_NORM] = tess__cuda_batch_norm_needs,
    [TESS_OP_NORM] = tess__cuda_norm_needs,
    [TESS_OP_ATTENTION] = tess__cuda_attention_needs,
    [TESS_OP_EMBEDDING] = tess__cuda_embedding_needs,
};

enum tess_status tess__cuda_op_needs(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out)
{
    char why[160];
    if (!tess__cuda_supports(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cuda: %s", why);
    *needs_out = (struct tess_op_needs){0};
    return needs_of[desc->kind](desc, needs_out);
}
