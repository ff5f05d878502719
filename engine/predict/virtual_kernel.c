/*
 * The virtual backend: every operation takes the time that the profile gives for its shape, and
 * touches no memory. Products and attention have formulas of their own; the others are passes over
 * the bytes that they read and write, each array once, as backends fuse what is elementwise.
 *
 * An operation that no training step has (attention_decode) is an error of the step that calls it.
 */
#include "predict/virtual.h"

#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <string.h>

/* Arguments are those of tess_<name>; most are arrays, of which only the number matters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static __thread struct virtual_rank *kernel_rank;

void virtual_kernel_for(struct virtual_rank *rank)
{
    kernel_rank = rank;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void kernel_pass(struct tess_kernel *kernel, double bytes)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    const double seconds = tess_profile_pass_s(rank->world->profile, bytes);
    virtual_work(rank, VIRTUAL_PASS, seconds);
}

static double kernel_bytes(enum tess_dtype dtype, int64_t count)
{
    return (double)count * (double)tess_dtype_bytes(dtype);
}

/* `arrays` of so many elements. */
static void kernel_arrays(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                          double arrays)
{
    kernel_pass(kernel, arrays * kernel_bytes(dtype, count));
}

/* The same with a function of each element. */
static void kernel_math(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        double arrays)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    const double seconds = tess_profile_math_s(rank->world->profile, (double)count,
                                               arrays * kernel_bytes(dtype, count));
    virtual_work(rank, VIRTUAL_PASS, seconds);
}

/* ---- prepared operations --------------------------------------------------------------------- */

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

/* `calls` products of this shape, with so many bytes of operands and results each. */
static void op_product(struct tess_op *op, double calls, int64_t m, int64_t n, int64_t k,
                       double bytes)
{
    struct virtual_rank *rank = virtual_rank_of(op->kernel);
    const enum tess_peak_type type = op_type(op);
    const uint64_t hash =
        ((uint64_t)m * 31 + (uint64_t)n) * 31 + (uint64_t)k + (uint64_t)bytes / 64;
    struct virtual_product *known = &rank->product[hash * 0x9e3779b97f4a7c15u >> 58];
    if (known->seconds == 0 || known->calls != calls || known->m != (double)m ||
        known->n != (double)n || known->k != (double)k || known->bytes != bytes ||
        known->type != type) {
        *known = (struct virtual_product){calls, (double)m, (double)n, (double)k, bytes, 0, type};
        known->seconds = calls * tess_profile_product_s(rank->world->profile, type, known->m,
                                                        known->n, known->k, bytes);
    }
    virtual_work(rank, VIRTUAL_PRODUCT, known->seconds);
}

_Static_assert(VIRTUAL_PRODUCTS == 64, "op_product takes six bits of a hash");

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
    op_product(op, 1, layer.rows, layer.out, layer.in,
               (layer.x + layer.w + (1 + more) * layer.y) * size);
    return TESS_OK;
}

static enum tess_status op_backward_data(struct tess_op *op, double more)
{
    const struct op_layer layer = op_layer(&op->desc);
    const double size = (double)tess_dtype_bytes(op->desc.dtype);
    op_narrow(op, layer.y + layer.w);
    op_product(op, 1, layer.rows, layer.in, layer.out,
               (layer.y + layer.w + (1 + more) * layer.x) * size);
    return TESS_OK;
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
    op_product(op, (double)calls, layer.out, layer.in, layer.rows / calls,
               each + (adds ? 2 : 1) * layer.w * sizeof(float));
    if (calls > 1)
        kernel_pass(op->kernel, (double)(calls - 1) * 3 * layer.w * sizeof(float));
    if (dbias != NULL)
        kernel_pass(op->kernel, layer.y * size);
    return TESS_OK;
}

static enum tess_status virtual_linear_forward(struct tess_op *op, const void *x, const void *w,
                                               const void *bias, void *y)
{
    return op_forward(op, 0);
}

static enum tess_status virtual_linear_backward_data(struct tess_op *op, const void *dy,
                                                     const void *w, void *dx)
{
    return op_backward_data(op, 0);
}

static enum tess_status virtual_linear_backward_weight(struct tess_op *op, const void *x,
                                                       const void *dy, float *dw, float *dbias)
{
    return op_backward_weight(op, dbias);
}

static enum tess_status virtual_linear_forward_add(struct tess_op *op, const void *x, const void *w,
                                                   const void *bias, const void *add, void *y)
{
    return op_forward(op, 1);
}

static enum tess_status virtual_linear_backward(struct tess_op *op, const void *x, const void *dy,
                                                const void *w, float *dw, float *dbias, void *term,
                                                void *dx)
{
    (void)op_backward_weight(op, dbias);
    return op_backward_data(op, term != NULL ? 1 : 0);
}

static enum tess_status virtual_linear_forward_gelu(struct tess_op *op, const void *x,
                                                    const void *w, const void *bias, void *before,
                                                    void *y)
{
    return op_forward(op, 1);
}

static enum tess_status virtual_linear_backward_data_gelu(struct tess_op *op, const void *dy,
                                                          const void *w, const void *before,
                                                          void *dx)
{
    return op_backward_data(op, 1);
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

static enum tess_status virtual_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                                 uint8_t *which)
{
    return op_pass(op, op_input(op) + 1.5 * op_pooled(op));
}

static enum tess_status virtual_max_pool_backward(struct tess_op *op, const void *dy,
                                                  const uint8_t *which, void *dx)
{
    return op_pass(op, op_input(op) + 1.5 * op_pooled(op));
}

static enum tess_status virtual_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    return op_pass(op, op_input(op) + op_pooled(op));
}

static enum tess_status virtual_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    return op_pass(op, op_input(op) + op_pooled(op));
}

/* Statistics first: the input is read twice. */
static enum tess_status virtual_batch_norm_forward(struct tess_op *op, const void *x,
                                                   const void *gamma, const void *beta, void *y,
                                                   float *save_mean, float *save_rstd,
                                                   float *mean_sum, float *var_sum)
{
    return op_pass(op, 3 * op_input(op));
}

static enum tess_status virtual_batch_norm_infer(struct tess_op *op, const void *x,
                                                 const void *gamma, const void *beta,
                                                 const void *mean, const void *var, void *y)
{
    return op_pass(op, 2 * op_input(op));
}

static enum tess_status virtual_batch_norm_backward(struct tess_op *op, const void *x,
                                                    const void *y, const void *dy,
                                                    const void *gamma, const float *save_mean,
                                                    const float *save_rstd, void *dx, float *dgamma,
                                                    float *dbeta)
{
    return op_pass(op, (op->desc.relu ? 7 : 5) * op_input(op));
}

static enum tess_status virtual_norm_forward(struct tess_op *op, const void *x, const void *add,
                                             void *sum, const void *gamma, const void *beta,
                                             void *y, float *mean, float *rstd)
{
    return op_pass(op, (add != NULL ? 4 : 2) * op_input(op));
}

static enum tess_status virtual_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                              const void *gamma, const float *mean,
                                              const float *rstd, const void *add, void *dx,
                                              float *dgamma, float *dbeta)
{
    return op_pass(op, (add != NULL ? 4 : 3) * op_input(op));
}

/* Two products forward; five backward, as probabilities are made again (Dao 2023). */
static enum tess_status op_attention(struct tess_op *op, bool forward)
{
    const struct tess_op_desc *desc = &op->desc;
    struct virtual_rank *rank = virtual_rank_of(op->kernel);
    const double length = (double)desc->length, width = (double)desc->in;
    const double square = (double)desc->rows * length * length * width * desc->heads;
    const double q = (double)desc->rows * length * width * desc->heads;
    const double kv = (double)desc->rows * length * width * desc->kv_heads;
    const double arrays = forward ? 2 * q + 2 * kv : 4 * q + 4 * kv;
    const double seconds = tess_profile_attention_s(rank->world->profile, op_type(op), forward,
                                                    (forward ? 2 : 5) * square, length,
                                                    arrays * (double)tess_dtype_bytes(desc->dtype));
    virtual_work(rank, VIRTUAL_PRODUCT, seconds);
    return TESS_OK;
}

static enum tess_status virtual_attention_forward(struct tess_op *op, const void *q, const void *k,
                                                  const void *v, void *y, float *lse)
{
    return op_attention(op, true);
}

static enum tess_status virtual_attention_backward(struct tess_op *op, const void *q, const void *k,
                                                   const void *v, const void *y, const void *dy,
                                                   const float *lse, void *dq, void *dk, void *dv)
{
    return op_attention(op, false);
}

static enum tess_status virtual_embedding_forward(struct tess_op *op, const int32_t *token,
                                                  int64_t first, const void *table, const void *add,
                                                  void *y)
{
    return op_pass(op, (add != NULL ? 3 : 2) *
                           kernel_bytes(op->desc.dtype, op->desc.rows * op->desc.out));
}

/* The table is cleared, and each row's gradient added to what is there. */
static enum tess_status virtual_embedding_backward(struct tess_op *op, const int32_t *token,
                                                   int64_t first, const void *dy, float *dtable)
{
    const struct tess_op_desc *desc = &op->desc;
    return op_pass(op, kernel_bytes(desc->dtype, desc->rows * desc->out) +
                           2 * kernel_bytes(TESS_F32, desc->rows * desc->out) +
                           kernel_bytes(TESS_F32, desc->in * desc->out));
}

/* ---- plain operations ------------------------------------------------------------------------ */

static void virtual_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                     int64_t position, const void *q, const void *k, const void *v,
                                     void *y)
{
    virtual_rank_of(kernel)->lacking = "attention_decode";
}

static void virtual_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t length, int64_t first, int32_t heads, int64_t head_size,
                         int64_t stride, float base, bool inverse, void *x)
{
    kernel_arrays(kernel, dtype, rows * heads * head_size, 2);
}

/* Of (kernel, dtype, count, then arrays): each is read or written once. */
#define VIRTUAL_ARRAYS(name, work, arrays, ...)                                                    \
    static void virtual_##name(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,   \
                               __VA_ARGS__)                                                        \
    {                                                                                              \
        work(kernel, dtype, count, arrays);                                                        \
    }
VIRTUAL_ARRAYS(gelu_forward, kernel_math, 2, const void *x, void *y)
VIRTUAL_ARRAYS(gelu_backward, kernel_math, 3, const void *x, const void *dy, void *dx)
VIRTUAL_ARRAYS(relu_forward, kernel_arrays, 2, const void *x, void *y)
VIRTUAL_ARRAYS(relu_backward, kernel_arrays, 3, const void *y, const void *dy, void *dx)
VIRTUAL_ARRAYS(add, kernel_arrays, 3, const void *a, const void *b, void *y)
VIRTUAL_ARRAYS(dropout, kernel_math, 2, float rate, const uint64_t key[2], uint64_t first,
               const void *x, void *y)
VIRTUAL_ARRAYS(count_zeros, kernel_arrays, 1, const void *x, double *sum)

static void virtual_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                   int64_t width, int64_t stride, const void *gate, const void *up,
                                   void *y)
{
    kernel_math(kernel, dtype, rows * width, 3);
}

static void virtual_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                    int64_t width, int64_t stride, const void *gate, const void *up,
                                    const void *dy, void *dgate, void *dup)
{
    kernel_math(kernel, dtype, rows * width, 5);
}

static void virtual_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, int64_t stride, const void *logits, float *max,
                             float *sum, float *target, float *best)
{
    kernel_arrays(kernel, dtype, rows * classes, 1);
}

static void virtual_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, int64_t stride, int64_t first, const void *logits,
                             const int32_t *label, const float *max, float *sum, float *target,
                             float *best)
{
    kernel_math(kernel, dtype, rows * classes, 1);
}

static void virtual_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t classes, int64_t stride, int64_t first, float scale,
                              const void *logits, const int32_t *label, const float *max,
                              const float *sum, void *dlogits)
{
    kernel_math(kernel, dtype, rows * classes, 2);
}

static void virtual_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                              const int32_t *label, const float *max, const float *sum,
                              const float *target, const float *best, float *loss, int32_t *correct)
{
    kernel_arrays(kernel, TESS_F32, rows, 5);
}

static void virtual_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                 int64_t classes, float scale, const void *logits,
                                 const int32_t *label, void *dlogits, float *loss, int32_t *correct)
{
    kernel_math(kernel, dtype, rows * classes, dlogits != NULL ? 2 : 1);
}

static void virtual_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from,
                         const void *x, enum tess_dtype to, void *y)
{
    kernel_pass(kernel, kernel_bytes(from, count) + kernel_bytes(to, count));
}

static void virtual_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                                    enum tess_dtype to, const uint64_t key[2], uint64_t first,
                                    void *y)
{
    kernel_pass(kernel, kernel_bytes(TESS_F32, count) + kernel_bytes(to, count));
}

static void virtual_accumulate(struct tess_kernel *kernel, int64_t count, float scale,
                               const float *x, float *y)
{
    kernel_arrays(kernel, TESS_F32, count, 3);
}

static void virtual_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    kernel_arrays(kernel, TESS_F32, count, 3);
}

static void virtual_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                           int64_t count, float mean, float deviation, float *y)
{
    kernel_arrays(kernel, TESS_F32, count, 1);
}

static void virtual_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    kernel_pass(kernel, (double)bytes);
}

static void virtual_copy(struct tess_kernel *kernel, int64_t bytes, const void *source,
                         void *target)
{
    kernel_pass(kernel, 2 * (double)bytes);
}

/* The host reads the answer: it waits. */
static int64_t virtual_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype,
                                      int64_t count, const void *x)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    kernel_arrays(kernel, dtype, count, 1);
    virtual_drain(rank);
    return -1;
}

static void virtual_find_flag(struct tess_kernel *kernel, int64_t count, const float *x,
                              int32_t flag, struct tess_verdict *verdict)
{
    kernel_arrays(kernel, TESS_F32, count, 1);
}

static void virtual_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                             const float *loss, const int32_t *correct, double *sum,
                             struct tess_verdict *verdict)
{
    kernel_arrays(kernel, TESS_F32, leaves * leaf_rows, 2);
}

static void virtual_square_sum(struct tess_kernel *kernel, int64_t count, int32_t block,
                               float scale, const float *x, struct tess_sum *sum)
{
    kernel_arrays(kernel, TESS_F32, count, 1);
}

static void virtual_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                                   int32_t count)
{
    double bytes = 0;
    for (int32_t i = 0; i < count; i++)
        bytes += kernel_bytes(TESS_F32, square[i].count);
    kernel_pass(kernel, bytes);
}

static double kernel_update_bytes(const struct tess_update *update)
{
    const double arrays = 2 + (update->g != NULL) + 2 * (update->m != NULL) +
                          2 * (update->v != NULL) + (update->direction != NULL);
    return arrays * kernel_bytes(TESS_F32, update->count) +
           (update->param_low != NULL ? kernel_bytes(update->low, update->count) : 0);
}

static void virtual_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    kernel_pass(kernel, kernel_update_bytes(update));
}

static void virtual_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                               int32_t count)
{
    double bytes = 0;
    for (int32_t i = 0; i < count; i++)
        bytes += kernel_update_bytes(&update[i]);
    kernel_pass(kernel, bytes);
}

static void virtual_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    kernel_pass(kernel, kernel_update_bytes(update));
}

static void virtual_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    kernel_pass(kernel, (double)judge->count *
                            (double)(sizeof(struct tess_sum) + sizeof(struct tess_update_factor)));
}

/* What convolutions and linear layers have in common. */
#define virtual_conv2d_forward         virtual_linear_forward
#define virtual_conv2d_backward_data   virtual_linear_backward_data
#define virtual_conv2d_backward_weight virtual_linear_backward_weight

/* ---- the backend ----------------------------------------------------------------------------- */

static enum tess_status kernel_open(struct tess_kernel *kernel)
{
    struct virtual_rank *rank = kernel_rank;
    if (rank == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "the virtual kernel is for predictions");
    memcpy(kernel->state, &rank, sizeof(rank));
    rank->queued = kernel->ops->far_memory;
    if (!rank->queued)
        return TESS_OK;
    rank->kernels = (struct virtual_queue){
        .queue = {.ops = &virtual_queue_ops, .kernel = kernel}, .rank = rank, .follows_host = true};
    kernel->queue = &rank->kernels.queue;
    return TESS_OK;
}

static enum tess_status kernel_choose(struct tess_kernel *kernel,
                                      const struct tess_kernel_choices *choices)
{
    virtual_rank_of(kernel)->tf32 = choices->tf32;
    return TESS_OK;
}

/* The ranks' memory is in the same place: it only has to differ from the host's. */
static enum tess_status kernel_alloc(struct tess_kernel *kernel, size_t bytes, void **memory_out)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    const struct virtual_world *world = rank->world;
    if (bytes > world->space_bytes || rank->memory_end != NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "predictions have one piece of device memory of %zu bytes, not one more of %zu",
                  world->space_bytes, bytes);
    rank->memory_end = world->space + bytes;
    *memory_out = world->space;
    return TESS_OK;
}

static void kernel_free(struct tess_kernel *kernel, void *memory)
{
    (void)kernel, (void)memory; /* goes with the world */
}

/* A step reads its verdict and sums, which are zero: nothing is wrong. */
static enum tess_status kernel_read(struct tess_kernel *kernel, size_t bytes, const void *device,
                                    void *host)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    memset(host, 0, bytes);
    kernel_pass(kernel, 2 * (double)bytes);
    virtual_drain(rank);
    return TESS_OK;
}

static enum tess_status kernel_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                                     void *device)
{
    kernel_pass(kernel, 2 * (double)bytes);
    return TESS_OK;
}

static enum tess_status kernel_failed(struct tess_kernel *kernel)
{
    const char *lacking = virtual_rank_of(kernel)->lacking;
    if (lacking != NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "predictions do not have the operation %s", lacking);
    return TESS_OK;
}

static enum tess_status kernel_op_open(struct tess_op *op)
{
    (void)op;
    return TESS_OK;
}

static void kernel_op_close(struct tess_op *op)
{
    (void)op;
}

/* ---- recorded steps: one launch for all of their operations ---------------------------------- */

static enum tess_status kernel_graph_begin(struct tess_kernel *kernel)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    rank->recording = true;
    rank->before = rank->spent;
    rank->spent = (struct virtual_spent){{0}, {0}};
    return TESS_OK;
}

static enum tess_status kernel_graph_end(struct tess_kernel *kernel, int32_t slot)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    rank->recording = false;
    rank->record[slot] = rank->spent;
    rank->spent = rank->before;
    return TESS_OK;
}

static enum tess_status kernel_graph_play(struct tess_kernel *kernel, int32_t slot)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    virtual_play(rank, &rank->record[slot]);
    return TESS_OK;
}

/* A backend without needs of its own has those of ref. */
static enum tess_status kernel_op_needs(const struct tess_op_desc *desc,
                                        struct tess_op_needs *needs_out)
{
    const struct tess_kernel_ops *ref;
    TESS_TRY(tess_registry_get_kernel("ref", &ref));
    return ref->op_needs(desc, needs_out);
}

struct tess_kernel_ops virtual_kernel(const struct tess_kernel_ops *real)
{
    struct tess_kernel_ops ops = {.abi = TESS_ABI,
                                  .name = real->name,
                                  .summary = real->summary,
                                  .state_size = sizeof(struct virtual_rank *),
                                  .host_memory = real->host_memory,
                                  .far_memory = real->far_memory,
                                  .stacks = real->stacks,
                                  .supports = real->supports,
                                  .op_needs =
                                      real->op_needs != NULL ? real->op_needs : kernel_op_needs,
                                  .open = kernel_open,
                                  .choose = kernel_choose,
                                  .alloc = kernel_alloc,
                                  .free = kernel_free,
                                  .read = kernel_read,
                                  .write = kernel_write,
                                  .failed = kernel_failed,
                                  .op_open = kernel_op_open,
                                  .op_close = kernel_op_close,
#define VIRTUAL_SLOT(operation) .operation = virtual_##operation,
                                  TESS_OPERATION_LIST(VIRTUAL_SLOT)
#undef VIRTUAL_SLOT
    };
    if (ops.far_memory) {
        ops.queue = &virtual_queue_ops;
        ops.graph_begin = kernel_graph_begin;
        ops.graph_end = kernel_graph_end;
        ops.graph_play = kernel_graph_play;
    }
    return ops;
}
