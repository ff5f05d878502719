/*
 * The operations on sequences of `cpu`: own kernels for attention, own loops for the rest, by rows
 * that the threads share; ref for the gradient of an embedding, by rows of the table, and for
 * attention where the processor lacks the instructions.
 */
#include "cpu/prim.h"

#include "ref/fold.h"
#include "ref/ref.h"
#include "tessera/check.h"

#include <string.h>

#define SEQUENCE_ROWS  32  /* of a part */
#define SEQUENCE_TABLE 128 /* rows of an embedding's table in a part */
/* Rows of a norm whose gradients are summed before they go into the leaf's. */
#define SEQUENCE_CHUNK 64
#define SEQUENCE_WAVE  64 /* such sums at a time */

/* Chunks of a leaf of a norm, and of all of them as many as are summed at once. */
static int64_t sequence_chunks(const struct tess_op_desc *d)
{
    return (d->leaf_rows + SEQUENCE_CHUNK - 1) / SEQUENCE_CHUNK;
}

static int64_t sequence_wave(const struct tess_op_desc *d)
{
    return tess__cpu_min(d->rows / d->leaf_rows * sequence_chunks(d), SEQUENCE_WAVE);
}

static size_t sequence_norm_scratch(const struct tess_op_desc *d)
{
    size_t folds = 2 * tess__fold_bytes(d->in, d->rows / d->leaf_rows);
    return folds + tess__cpu_round_up((size_t)((2 * sequence_wave(d) + 1) * d->in) * sizeof(float));
}

/* The own kernels, where they compute this attention. Those of bf16 take f32_math, too, but for
 * tiles: then it is those of f32, which store bf16 by the instructions that tiles imply. */
static const struct cpu_own *sequence_flash(const struct tess_op_desc *d)
{
    const bool half = d->dtype == TESS_BF16 && !(d->f32_math && tess__cpu_tiles());
    return d->kind == TESS_OP_ATTENTION ? tess__cpu_own(half ? TESS_BF16 : TESS_F32) : NULL;
}

enum tess_status tess__cpu_sequence_needs(const struct tess_op_desc *desc,
                                          struct tess_op_needs *needs_out)
{
    *needs_out = (struct tess_op_needs){0};
    if (desc->kind == TESS_OP_NORM)
        needs_out->scratch_bytes = sequence_norm_scratch(desc);
    else if (desc->kind == TESS_OP_BATCH_NORM)
        needs_out->scratch_bytes = tess__cpu_batch_norm_scratch(desc);
    else if (sequence_flash(desc) != NULL)
        needs_out->scratch_bytes = needs_out->thread_bytes =
            sequence_flash(desc)->flash_scratch(desc);
    else
        TESS_TRY(tess_kernel_ref.op_needs(desc, needs_out));
    if (desc->kind == TESS_OP_EMBEDDING)
        needs_out->thread_bytes = tess__ref_embedding_row_scratch(desc);
    return TESS_OK;
}

/* ---- rows that the threads share ------------------------------------------------------------ */

struct sequence_rows {
    cpu_rows_loop *run;
    const void *arguments;
    int64_t rows;
};

static void sequence_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct sequence_rows *r = context;
    int64_t first = part * SEQUENCE_ROWS;
    r->run(r->arguments, first, tess__cpu_min(r->rows - first, SEQUENCE_ROWS));
}

static void sequence_share(const struct tess_kernel *kernel, cpu_rows_loop *run,
                           const void *arguments, int64_t rows)
{
    struct sequence_rows r = {.run = run, .arguments = arguments, .rows = rows};
    tess__cpu_share(kernel, (rows + SEQUENCE_ROWS - 1) / SEQUENCE_ROWS, sequence_part, &r, NULL);
}

/* ---- norms ---------------------------------------------------------------------------------- */

enum tess_status tess__cpu_norm_forward(struct tess_op *op, const void *x, const void *add,
                                        void *sum, const void *gamma, const void *beta, void *y,
                                        float *mean, float *rstd)
{
    struct cpu_norm n = {.desc = &op->desc,
                         .x = x,
                         .add = add,
                         .sum = sum,
                         .gamma = gamma,
                         .beta = beta,
                         .y = y,
                         .mean = mean,
                         .rstd = rstd};
    sequence_share(op->kernel, tess__cpu_loops(op->kernel)->norm_forward, &n, op->desc.rows);
    return TESS_OK;
}

struct sequence_norm {
    cpu_norm_loop *run;
    struct cpu_norm arrays;
    int64_t first;  /* chunk of the wave */
    float *partial; /* [wave, 2, C] */
};

/* dx of one chunk of rows, and its share of the parameters' gradients. */
static void sequence_norm_chunk(void *context, int64_t part, void *work)
{
    (void)work;
    const struct sequence_norm *n = context;
    const struct tess_op_desc *d = n->arrays.desc;
    int64_t chunks = sequence_chunks(d), chunk = n->first + part;
    int64_t in_leaf = chunk % chunks * SEQUENCE_CHUNK;
    float *partial = n->partial + 2 * part * d->in;
    n->run(&n->arrays, chunk / chunks * d->leaf_rows + in_leaf,
           tess__cpu_min(d->leaf_rows - in_leaf, SEQUENCE_CHUNK), partial, partial + d->in);
}

/* A chunk's sums go into the leaf's, the first of a leaf begins it, the last one ends it. */
static void sequence_norm_fold(struct tess_fold *fold, int64_t chunk, int64_t chunks,
                               const float *partial)
{
    float *leaf = tess__fold_leaf(fold);
    if (chunk % chunks == 0)
        memcpy(leaf, partial, (size_t)fold->count * sizeof(float));
    else
        for (int64_t c = 0; c < fold->count; c++)
            leaf[c] += partial[c];
    if (chunk % chunks == chunks - 1)
        tess__fold_push(fold);
}

enum tess_status tess__cpu_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                         const void *gamma, const float *mean, const float *rstd,
                                         const void *add, void *dx, float *dgamma, float *dbeta)
{
    const struct tess_op_desc *d = &op->desc;
    int64_t leaves = d->rows / d->leaf_rows, chunks = sequence_chunks(d), wave = sequence_wave(d);
    size_t fold_bytes = tess__fold_bytes(d->in, leaves);
    char *scratch = op->scratch;
    struct sequence_norm n = {.run = tess__cpu_loops(op->kernel)->norm_backward,
                              .arrays = {.desc = d,
                                         .x = x,
                                         .dy = dy,
                                         .gamma = gamma,
                                         .mean = (float *)(uintptr_t)mean, /* read only */
                                         .rstd = (float *)(uintptr_t)rstd,
                                         .add = add,
                                         .dx = dx},
                              .partial = (float *)(void *)(scratch + 2 * fold_bytes)};
    struct tess_fold fold_gamma, fold_beta;
    tess__fold_init(&fold_gamma, d->in, dgamma, scratch);
    tess__fold_init(&fold_beta, dbeta != NULL ? d->in : 0, dbeta, scratch + fold_bytes);
    for (n.first = 0; n.first < leaves * chunks; n.first += wave) {
        int64_t count = tess__cpu_min(leaves * chunks - n.first, wave);
        tess__cpu_share(op->kernel, count, sequence_norm_chunk, &n, NULL);
        for (int64_t i = 0; i < count; i++) {
            const float *partial = n.partial + 2 * i * d->in;
            sequence_norm_fold(&fold_gamma, n.first + i, chunks, partial);
            if (dbeta != NULL)
                sequence_norm_fold(&fold_beta, n.first + i, chunks, partial + d->in);
        }
    }
    tess__fold_finish(&fold_gamma);
    if (dbeta != NULL)
        tess__fold_finish(&fold_beta);
    return TESS_OK;
}

/* ---- attention, embedding, rotary positions -------------------------------------------------- */

enum tess_status tess__cpu_attention_forward(struct tess_op *op, const void *q, const void *k,
                                             const void *v, void *y, float *lse)
{
    const struct cpu_own *own = sequence_flash(&op->desc);
    if (own == NULL)
        return tess_kernel_ref.attention_forward(op, q, k, v, y, lse);
    tess__cpu_share_use(op);
    own->flash(op, q, k, v, y, lse);
    return TESS_OK;
}

enum tess_status tess__cpu_attention_backward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, const void *y, const void *dy,
                                              const float *lse, void *dq, void *dk, void *dv)
{
    const struct cpu_own *own = sequence_flash(&op->desc);
    if (own == NULL)
        return tess_kernel_ref.attention_backward(op, q, k, v, y, dy, lse, dq, dk, dv);
    tess__cpu_share_use(op);
    struct cpu_flash_grad arrays = {
        .q = q, .k = k, .v = v, .y = y, .dy = dy, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
    own->flash_grad(op, &arrays);
    return TESS_OK;
}

enum tess_status tess__cpu_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                            const void *q, const void *k, const void *v, void *y)
{
    const struct cpu_own *own = sequence_flash(&op->desc);
    if (own == NULL)
        return tess_kernel_ref.attention_decode(op, first, count, q, k, v, y);
    tess__cpu_share_use(op);
    own->flash_decode(op->kernel, &op->desc, first, count, q, k, v, y, op->scratch);
    return TESS_OK;
}

enum tess_status tess__cpu_embedding_forward(struct tess_op *op, const int32_t *token,
                                             int64_t first, const void *table, const void *add,
                                             void *y)
{
    struct cpu_embedding e = {
        .desc = &op->desc, .token = token, .first = first, .table = table, .add = add, .y = y};
    sequence_share(op->kernel, tess__cpu_loops(op->kernel)->embedding_forward, &e, op->desc.rows);
    return TESS_OK;
}

struct sequence_table {
    const struct tess_op *op;
    const void *dy;
    float *dtable;
};

/* Rows of the table: those of a part of their number are few or many, as tokens come. */
static void sequence_table_part(void *context, int64_t part, void *work)
{
    const struct sequence_table *t = context;
    int64_t first = part * SEQUENCE_TABLE, left = t->op->desc.in - first;
    tess__ref_embedding_rows(t->op, t->dy, first, tess__cpu_min(left, SEQUENCE_TABLE), work,
                             t->dtable);
}

enum tess_status tess__cpu_embedding_backward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *dy, float *dtable)
{
    struct sequence_table t = {.op = op, .dy = dy, .dtable = dtable};
    tess__cpu_share_use(op);
    tess__ref_embedding_sort(op, token, first);
    tess__cpu_share(op->kernel, (op->desc.in + SEQUENCE_TABLE - 1) / SEQUENCE_TABLE,
                    sequence_table_part, &t, tess__ref_embedding_row_room(op));
    return TESS_OK;
}

void tess__cpu_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
                    int64_t first, int32_t heads, int64_t head_size, int64_t stride,
                    const struct tess_rotary *rotary, bool inverse, void *x)
{
    struct cpu_rope r = {.dtype = dtype,
                         .rows = rows,
                         .length = length,
                         .first = first,
                         .heads = heads,
                         .head_size = head_size,
                         .stride = stride,
                         .rotary = *rotary,
                         .inverse = inverse,
                         .x = x};
    sequence_share(kernel, tess__cpu_loops(kernel)->rope, &r, tess__cpu_min(rows, length));
}

/* ---- softmax and cross-entropy ------------------------------------------------------------ */

void tess__cpu_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max, float *sum,
                        float *target, float *best)
{
    (void)sum; /* xent_sum reads the logits again */
    (void)target;
    (void)best;
    struct cpu_xent x = {
        .dtype = dtype, .classes = classes, .stride = stride, .logits = logits, .max_out = max};
    sequence_share(kernel, tess__cpu_loops(kernel)->xent_max, &x, rows);
}

void tess__cpu_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                        const void *logits, const int32_t *label, const float *max, float *sum,
                        float *target, float *best)
{
    struct cpu_xent x = {.dtype = dtype,
                         .classes = classes,
                         .stride = stride,
                         .first = first,
                         .how = how,
                         .logits = logits,
                         .label = label,
                         .max = max,
                         .sum_out = sum,
                         .target = target,
                         .best = best};
    sequence_share(kernel, tess__cpu_loops(kernel)->xent_sum, &x, rows);
}

void tess__cpu_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                         float scale, const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits)
{
    struct cpu_xent x = {.dtype = dtype,
                         .classes = classes,
                         .stride = stride,
                         .first = first,
                         .how = how,
                         .scale = scale,
                         .logits = logits,
                         .label = label,
                         .max = max,
                         .sum = sum,
                         .dlogits = dlogits};
    sequence_share(kernel, tess__cpu_loops(kernel)->xent_grad, &x, rows);
}

void tess__cpu_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t classes, struct tess_xent how, float scale, const void *logits,
                            const int32_t *label, void *dlogits, float *loss, int32_t *correct)
{
    struct cpu_xent x = {.dtype = dtype,
                         .classes = classes,
                         .how = how,
                         .scale = scale,
                         .logits = logits,
                         .label = label,
                         .dlogits = dlogits,
                         .loss = loss,
                         .correct = correct};
    sequence_share(kernel, tess__cpu_loops(kernel)->softmax_xent, &x, rows);
}
