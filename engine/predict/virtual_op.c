/*
 * Prepared operations of the virtual kernel. Products and attention have formulas of their own; the
 * others are passes over the bytes that they read and write, each array once.
 */
#include "predict/virtual_slots.h"

#include "tessera/check.h"

/* Arguments are those of tess_<name>; most are arrays, of which only the number matters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static enum tess_peak_type op_type(const struct tess_op *op)
{
    const struct tess_op_desc *desc = &op->desc;
    if (desc->kind == TESS_OP_LINEAR && desc->fp8 != TESS_FP8_OFF)
        return TESS_PEAK_FP8;
    if (desc->dtype == TESS_F32)
        return virtual_rank_of(op->kernel)->tf32 ? TESS_PEAK_TF32 : TESS_PEAK_F32;
    return desc->f32_math ? TESS_PEAK_F32 : TESS_PEAK_16;
}

static enum tess_status op_pass(struct tess_op *op, double bytes)
{
    kernel_pass(op->kernel, bytes);
    return TESS_OK;
}

static enum tess_product op_kind(const struct tess_op *op, enum tess_product product)
{
    const bool conv = op->desc.kind == TESS_OP_CONV2D && product <= TESS_PRODUCT_WEIGHT;
    return conv ? product + TESS_PRODUCT_CONV_FORWARD : product;
}

/* Of what operands and results of linear layers take that no cache has, the share that is fetched
 * while the panels before are multiplied. The tiles of convolutions lie too far apart for that. */
#define OP_HIDDEN 0.5

/* `calls` products of this shape, with so many bytes of operands and results each. far_bytes: of
 * operands and results that were last touched a step ago. They are copied into another order before
 * anything is computed, so each such byte counts. */
static void op_product(struct tess_op *op, enum tess_product product, double calls, int64_t m,
                       int64_t n, int64_t k, double bytes, double far_bytes)
{
    struct virtual_rank *rank = virtual_rank_of(op->kernel);
    const enum tess_peak_type type = op_type(op);
    const enum tess_product kind = op_kind(op, product);
    const uint64_t hash =
        ((uint64_t)m * 31 + (uint64_t)n) * 31 + (uint64_t)k + (uint64_t)bytes / 64 + kind;
    struct virtual_product *known = &rank->product[hash * 0x9e3779b97f4a7c15u >> 58];
    if (known->seconds == 0 || known->calls != calls || known->m != (double)m ||
        known->n != (double)n || known->k != (double)k || known->bytes != bytes ||
        known->type != type || known->product != kind) {
        *known =
            (struct virtual_product){calls, (double)m, (double)n, (double)k, bytes, 0, type, kind};
        known->seconds = calls * tess_profile_layer_s(rank->world->profile, kind, type, known->m,
                                                      known->n, known->k, bytes);
    }
    const double hidden = op->desc.kind == TESS_OP_LINEAR ? OP_HIDDEN : 0;
    const double more_s =
        far_bytes * rank->far_s + (bytes - far_bytes) * kernel_near_s(rank, bytes);
    virtual_work(rank, VIRTUAL_PRODUCT, known->seconds + calls * (1 - hidden) * more_s);
}

_Static_assert(VIRTUAL_PRODUCTS == 64, "op_product takes six bits of a hash");

/* Was its kind of product measured, with what belongs to it? */
static bool op_is_measured(const struct tess_op *op, enum tess_product product)
{
    const int width = op->desc.dtype == TESS_F32 ? TESS_WIDTH_32 : TESS_WIDTH_16;
    const struct tess_profile *profile = virtual_rank_of(op->kernel)->world->profile;
    return profile->product[op_kind(op, product)][width].flops_per_s > 0;
}

/* A product of rows [rows, in] and weights [in, out]: linear layers, and convolutions as one. */
struct op_layer {
    int64_t rows, leaves, in, out;
    double x, w, y; /* elements of input, weights and output */
};

static struct op_layer op_layer(const struct tess_op_desc *desc)
{
    int64_t places = 1, window = 1;
    if (desc->kind == TESS_OP_CONV2D) {
        places = tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding) *
                 tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding);
        window = (int64_t)desc->window * desc->window;
    }
    const int64_t pixels = desc->kind == TESS_OP_CONV2D ? desc->height * desc->width : 1;
    struct op_layer layer = {.rows = desc->rows * places,
                             .leaves = desc->rows / desc->leaf_rows,
                             .in = desc->in * window,
                             .out = desc->out};
    layer.x = (double)desc->rows * (double)pixels * (double)desc->in;
    layer.w = (double)layer.in * (double)layer.out;
    layer.y = (double)layer.rows * (double)layer.out;
    return layer;
}

/* Rows of the layer's product, as it was measured. */
static int64_t op_rows(const struct tess_op *op, enum tess_product product,
                       const struct op_layer *layer)
{
    return op->desc.kind == TESS_OP_CONV2D && op_is_measured(op, product)
               ? tess_profile_conv_rows(&op->desc, op_kind(op, product))
               : layer->rows;
}

/* Operands in 8 bits are written and read once more. */
static void op_narrow(struct tess_op *op, double elements)
{
    if (op_type(op) == TESS_PEAK_FP8)
        kernel_pass(op->kernel, elements * (double)(tess_dtype_bytes(op->desc.dtype) + 1));
}

static enum tess_status op_forward(struct tess_op *op, double more)
{
    const struct op_layer layer = op_layer(&op->desc);
    const double size = (double)tess_dtype_bytes(op->desc.dtype);
    op_narrow(op, layer.x + layer.w);
    op_product(op, TESS_PRODUCT_FORWARD, 1, op_rows(op, TESS_PRODUCT_FORWARD, &layer), layer.out,
               layer.in, (layer.x + layer.w + (1 + more) * layer.y) * size,
               (layer.w + layer.y) * size);
    return TESS_OK;
}

static enum tess_status op_backward_data(struct tess_op *op, double more)
{
    const struct op_layer layer = op_layer(&op->desc);
    const double size = (double)tess_dtype_bytes(op->desc.dtype);
    op_narrow(op, layer.y + layer.w);
    op_product(op, TESS_PRODUCT_DATA, 1, op_rows(op, TESS_PRODUCT_DATA, &layer), layer.in,
               layer.out, (layer.y + layer.w + (1 + more) * layer.x) * size, layer.w * size);
    return TESS_OK;
}

/* The weights' gradients of so many more leaves are added up, each by itself where that was
 * measured. */
static void op_accumulate(struct tess_op *op, double leaves, double count)
{
    struct virtual_rank *rank = virtual_rank_of(op->kernel);
    const struct tess_profile *profile = rank->world->profile;
    const double bytes = 3 * count * sizeof(float);
    if (profile->work_s[TESS_WORK_ACCUMULATE][TESS_WIDTH_32] > 0)
        virtual_work(rank, VIRTUAL_PASS,
                     leaves * tess_profile_work_s(profile, TESS_WORK_ACCUMULATE, TESS_WIDTH_32,
                                                  false, count, bytes));
    else
        kernel_pass(op->kernel, leaves * bytes);
}

/* Each leaf by itself, then their sum over the leaves; with add_grad all at once. */
static enum tess_status op_backward_weight(struct tess_op *op, const float *dbias)
{
    const struct op_layer layer = op_layer(&op->desc);
    const bool adds = op->desc.add_grad;
    const double size = (double)tess_dtype_bytes(op->desc.dtype);
    const int64_t calls = adds ? 1 : layer.leaves;
    const double each = (layer.x + layer.y) * size / (double)calls;
    op_narrow(op, layer.x + layer.y);
    op_product(op, TESS_PRODUCT_WEIGHT, (double)calls, layer.out, layer.in,
               op_rows(op, TESS_PRODUCT_WEIGHT, &layer) / calls,
               each + (adds ? 2 : 1) * layer.w * sizeof(float),
               layer.x * size / (double)calls + layer.w * sizeof(float));
    if (calls > 1)
        op_accumulate(op, (double)(calls - 1), layer.w);
    if (dbias != NULL && !op_is_measured(op, TESS_PRODUCT_WEIGHT))
        kernel_pass(op->kernel, layer.y * size);
    return TESS_OK;
}

enum tess_status virtual_linear_forward(struct tess_op *op, const void *x, const void *w,
                                        const void *bias, void *y)
{
    return op_forward(op, 0);
}

enum tess_status virtual_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                              void *dx)
{
    return op_backward_data(op, 0);
}

enum tess_status virtual_linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                                float *dw, float *dbias)
{
    return op_backward_weight(op, dbias);
}

/* A processor's backend has no such operations: they are two, one after the other. A device's, of
 * which the second was not measured, does both in one pass. */
static enum tess_status op_then(struct tess_op *op, enum tess_work work, bool data, double arrays)
{
    const struct op_layer layer = op_layer(&op->desc);
    const int64_t count = (int64_t)(data ? layer.x : layer.y);
    const bool apart = virtual_rank_of(op->kernel)->world->profile->work_s[work][TESS_WIDTH_32] > 0;
    TESS_TRY(data ? op_backward_data(op, apart ? 0 : 1) : op_forward(op, apart ? 0 : 1));
    if (apart)
        kernel_plain(op->kernel, work, op->desc.dtype, count, arrays);
    return TESS_OK;
}

enum tess_status virtual_linear_forward_add(struct tess_op *op, const void *x, const void *w,
                                            const void *bias, const void *add, void *y)
{
    return op_then(op, TESS_WORK_ADD, false, 3);
}

enum tess_status virtual_linear_backward(struct tess_op *op, const void *x, const void *dy,
                                         const void *w, float *dw, float *dbias, void *term,
                                         void *dx)
{
    (void)op_backward_weight(op, dbias);
    return term != NULL ? op_then(op, TESS_WORK_ADD, true, 3) : op_backward_data(op, 0);
}

enum tess_status virtual_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                             const void *bias, void *before, void *y)
{
    return op_then(op, TESS_WORK_GELU, false, 2);
}

enum tess_status virtual_linear_backward_data_gelu(struct tess_op *op, const void *dy,
                                                   const void *w, const void *before, void *dx)
{
    return op_then(op, TESS_WORK_GELU_BACKWARD, true, 3);
}

/* A pass over the input of an operation with rows. */
static enum tess_status op_work(struct tess_op *op, enum tess_work work, double elements,
                                double bytes)
{
    kernel_work(op->kernel, work, op->desc.dtype, false, elements, bytes);
    return TESS_OK;
}

static double op_elements(const struct tess_op *op, double bytes)
{
    return bytes / (double)tess_dtype_bytes(op->desc.dtype);
}

static double op_input(const struct tess_op *op)
{
    const struct tess_op_desc *desc = &op->desc;
    const int64_t pixels = desc->height > 0 ? desc->height * desc->width : 1;
    return kernel_bytes(desc->dtype, desc->rows * pixels * desc->in);
}

static double op_pooled(const struct tess_op *op)
{
    const struct tess_op_desc *desc = &op->desc;
    return kernel_bytes(
        desc->dtype,
        desc->rows * desc->in *
            tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding) *
            tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding));
}

/* Elements of all windows. */
static double op_windows(const struct tess_op *op)
{
    return op_elements(op, op_pooled(op)) * op->desc.window * op->desc.window;
}

enum tess_status virtual_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                          uint8_t *which)
{
    return op_work(op, TESS_WORK_MAX_POOL, op_windows(op), op_input(op) + 1.5 * op_pooled(op));
}

enum tess_status virtual_max_pool_backward(struct tess_op *op, const void *dy, const uint8_t *which,
                                           void *dx)
{
    return op_work(op, TESS_WORK_MAX_POOL_BACKWARD, op_windows(op),
                   op_input(op) + 1.5 * op_pooled(op));
}

enum tess_status virtual_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    return op_work(op, TESS_WORK_AVG_POOL, op_windows(op), op_input(op) + op_pooled(op));
}

enum tess_status virtual_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    return op_work(op, TESS_WORK_AVG_POOL_BACKWARD, op_windows(op), op_input(op) + op_pooled(op));
}

/* Statistics first: the input is read twice. */
enum tess_status virtual_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, void *y, float *save_mean,
                                            float *save_rstd, float *mean_sum, float *var_sum)
{
    const double bytes = op_input(op);
    return op_work(op, TESS_WORK_BATCH_NORM, op_elements(op, bytes), 3 * bytes);
}

enum tess_status virtual_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                          const void *beta, const void *mean, const void *var,
                                          void *y)
{
    return op_pass(op, 2 * op_input(op));
}

enum tess_status virtual_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                             const void *dy, const void *gamma, const void *beta,
                                             const float *save_mean, const float *save_rstd,
                                             void *dx, float *dgamma, float *dbeta)
{
    const double bytes = op_input(op);
    return op_work(op, TESS_WORK_BATCH_NORM_BACKWARD, op_elements(op, bytes),
                   (op->desc.relu ? 7 : 5) * bytes);
}

enum tess_status virtual_norm_forward(struct tess_op *op, const void *x, const void *add, void *sum,
                                      const void *gamma, const void *beta, void *y, float *mean,
                                      float *rstd)
{
    const double bytes = op_input(op);
    return op_work(op, TESS_WORK_NORM, op_elements(op, bytes), (add != NULL ? 4 : 2) * bytes);
}

enum tess_status virtual_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                       const void *gamma, const float *mean, const float *rstd,
                                       const void *add, void *dx, float *dgamma, float *dbeta)
{
    const double bytes = op_input(op);
    return op_work(op, TESS_WORK_NORM_BACKWARD, op_elements(op, bytes),
                   (add != NULL ? 4 : 3) * bytes);
}

/* Two products forward; five backward, as probabilities are made again (Dao 2023). */
static enum tess_status op_attention(struct tess_op *op, bool forward)
{
    const struct tess_op_desc *desc = &op->desc;
    struct virtual_rank *rank = virtual_rank_of(op->kernel);
    const double length = (double)desc->length, width = (double)desc->in;
    const double square = (double)desc->rows * tess_op_square(desc) * width * desc->heads;
    const double q = (double)desc->rows * length * width * desc->heads;
    const double kv = (double)desc->rows * length * width * desc->kv_heads;
    const double arrays = forward ? 2 * q + 2 * kv : 4 * q + 4 * kv;
    const double bytes = arrays * (double)tess_dtype_bytes(desc->dtype);
    const enum tess_product kind =
        forward ? TESS_PRODUCT_ATTENTION_FORWARD : TESS_PRODUCT_ATTENTION_BACKWARD;
    if (op_is_measured(op, kind))
        op_product(op, kind, 1, desc->rows * desc->heads * desc->length,
                   (int64_t)(tess_op_square(desc) / length), desc->in, bytes,
                   (forward ? q : 2 * q + 2 * kv) * (double)tess_dtype_bytes(desc->dtype));
    else
        virtual_work(rank, VIRTUAL_PRODUCT,
                     tess_profile_attention_s(rank->world->profile, op_type(op), forward,
                                              (forward ? 2 : 5) * square, length, bytes));
    return TESS_OK;
}

enum tess_status virtual_attention_forward(struct tess_op *op, const void *q, const void *k,
                                           const void *v, void *y, float *lse)
{
    return op_attention(op, true);
}

enum tess_status virtual_attention_backward(struct tess_op *op, const void *q, const void *k,
                                            const void *v, const void *y, const void *dy,
                                            const float *lse, void *dq, void *dk, void *dv)
{
    return op_attention(op, false);
}

/* Each document as a sequence of its own. */
static enum tess_status op_documents(const struct tess_op *op, const int32_t *begin, int32_t count,
                                     bool forward)
{
    struct tess_op one = *op;
    one.desc.rows = one.desc.leaf_rows = 1;
    for (int32_t d = 0; d < count; d++) {
        one.desc.length = begin[d + 1] - begin[d];
        TESS_TRY(op_attention(&one, forward));
    }
    return TESS_OK;
}

enum tess_status virtual_attention_forward_documents(struct tess_op *op, const int32_t *begin,
                                                     int32_t count, const void *q, const void *k,
                                                     const void *v, void *y, float *lse)
{
    return op_documents(op, begin, count, true);
}

enum tess_status virtual_attention_backward_documents(struct tess_op *op, const int32_t *begin,
                                                      int32_t count, const void *q, const void *k,
                                                      const void *v, const void *y, const void *dy,
                                                      const float *lse, void *dq, void *dk,
                                                      void *dv)
{
    return op_documents(op, begin, count, false);
}

enum tess_status virtual_embedding_forward(struct tess_op *op, const int32_t *token, int64_t first,
                                           const void *table, const void *add, void *y)
{
    const double elements = (double)op->desc.rows * (double)op->desc.out;
    return op_work(op, TESS_WORK_EMBEDDING, elements,
                   (add != NULL ? 3 : 2) * elements * (double)tess_dtype_bytes(op->desc.dtype));
}

/* The table is cleared, and each row's gradient added to what is there. */
enum tess_status virtual_embedding_backward(struct tess_op *op, const int32_t *token, int64_t first,
                                            const void *dy, float *dtable)
{
    const struct tess_op_desc *desc = &op->desc;
    return op_work(op, TESS_WORK_EMBEDDING_BACKWARD, (double)desc->rows * (double)desc->out,
                   kernel_bytes(desc->dtype, desc->rows * desc->out) +
                       2 * kernel_bytes(TESS_F32, desc->rows * desc->out) +
                       kernel_bytes(TESS_F32, desc->in * desc->out));
}
