/*
 * The virtual backend: every operation takes the time that the profile gives for its shape, and
 * touches no memory: prepared operations in virtual_op.c, plain ones here, as passes over the bytes
 * that they read and write, each array once, as backends fuse what is elementwise.
 *
 * An operation that no training step has (attention_decode) is an error of the step that calls it.
 */
#include "predict/virtual_slots.h"

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

/* ---- plain operations ------------------------------------------------------------------------ */

static enum tess_status virtual_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                                 const void *q, const void *k, const void *v,
                                                 void *y)
{
    virtual_rank_of(op->kernel)->lacking = "attention_decode";
    return TESS_OK;
}

static void virtual_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t length, int64_t first, int32_t heads, int64_t head_size,
                         int64_t stride, const struct tess_rotary *rotary, bool inverse, void *x)
{
    kernel_plain(kernel, TESS_WORK_ROPE, dtype, rows * heads * head_size, 2);
}

/* Of (kernel, dtype, count, then arrays): each is read or written once. */
#define VIRTUAL_ARRAYS(name, how, work, arrays, ...)                                               \
    static void virtual_##name(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,   \
                               __VA_ARGS__)                                                        \
    {                                                                                              \
        how(kernel, TESS_WORK_##work, dtype, count, arrays);                                       \
    }
VIRTUAL_ARRAYS(gelu_erf_forward, kernel_math, GELU, 2, const void *x, void *y)
VIRTUAL_ARRAYS(gelu_erf_backward, kernel_math, GELU_BACKWARD, 3, const void *x, const void *dy,
               void *dx)
VIRTUAL_ARRAYS(gelu_forward, kernel_math, GELU, 2, const void *x, void *y)
VIRTUAL_ARRAYS(gelu_backward, kernel_math, GELU_BACKWARD, 3, const void *x, const void *dy,
               void *dx)
VIRTUAL_ARRAYS(relu_forward, kernel_plain, RELU, 2, const void *x, void *y)
VIRTUAL_ARRAYS(relu_backward, kernel_plain, RELU_BACKWARD, 3, const void *y, const void *dy,
               void *dx)
VIRTUAL_ARRAYS(add, kernel_plain, ADD, 3, const void *a, const void *b, void *y)

static void virtual_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t width, int64_t stride, float rate, const uint64_t key[2],
                            uint64_t first, const void *x, void *y)
{
    kernel_math(kernel, TESS_WORK_DROPOUT, dtype, rows * width, 2);
}

static void virtual_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *x, double *sum)
{
    kernel_arrays(kernel, dtype, count, 1);
}

static void virtual_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                   int64_t width, int64_t stride, const void *gate, const void *up,
                                   void *y)
{
    kernel_math(kernel, TESS_WORK_SWIGLU, dtype, rows * width, 3);
}

static void virtual_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                    int64_t width, int64_t stride, const void *gate, const void *up,
                                    const void *dy, void *dgate, void *dup)
{
    kernel_math(kernel, TESS_WORK_SWIGLU_BACKWARD, dtype, rows * width, 5);
}

static void virtual_geglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                  int64_t width, int64_t stride, bool erf, const void *gate,
                                  const void *up, void *y)
{
    kernel_math(kernel, TESS_WORK_SWIGLU, dtype, rows * width, 3);
}

static void virtual_geglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                   int64_t width, int64_t stride, bool erf, const void *gate,
                                   const void *up, const void *dy, void *dgate, void *dup)
{
    kernel_math(kernel, TESS_WORK_SWIGLU_BACKWARD, dtype, rows * width, 5);
}

static void virtual_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, int64_t stride, const void *logits, float *max,
                             float *sum, float *target, float *best)
{
    kernel_plain(kernel, TESS_WORK_XENT_MAX, dtype, rows * classes, 1);
}

static void virtual_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                             const void *logits, const int32_t *label, const float *max, float *sum,
                             float *target, float *best)
{
    kernel_math(kernel, TESS_WORK_XENT_SUM, dtype, rows * classes, 1);
}

static void virtual_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                              float scale, const void *logits, const int32_t *label,
                              const float *max, const float *sum, void *dlogits)
{
    kernel_math(kernel, TESS_WORK_XENT_GRAD, dtype, rows * classes, 2);
}

static void virtual_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                              struct tess_xent how, const int32_t *label, const float *max,
                              const float *sum, const float *target, const float *best, float *loss,
                              int32_t *correct)
{
    kernel_arrays(kernel, TESS_F32, rows, 5);
}

static void virtual_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                 int64_t classes, struct tess_xent how, float scale,
                                 const void *logits, const int32_t *label, void *dlogits,
                                 float *loss, int32_t *correct)
{
    kernel_math(kernel, TESS_WORK_XENT, dtype, rows * classes, dlogits != NULL ? 2 : 1);
}

static void virtual_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from,
                         const void *x, enum tess_dtype to, void *y)
{
    kernel_work(kernel, TESS_WORK_CAST, TESS_BF16, false, (double)count,
                kernel_bytes(from, count) + kernel_bytes(to, count));
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
    kernel_plain(kernel, TESS_WORK_ACCUMULATE, TESS_F32, count, 3);
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
    const double bytes = kernel_bytes(TESS_F32, count);
    kernel_far(kernel, TESS_WORK_SQUARES, TESS_WIDTH_32, 1, (double)count, bytes, bytes);
}

static void virtual_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                                   int32_t count)
{
    double elements = 0;
    for (int32_t i = 0; i < count; i++)
        elements += (double)square[i].count;
    const double bytes = elements * sizeof(float);
    kernel_far(kernel, TESS_WORK_SQUARES, TESS_WIDTH_32, count, elements, bytes, bytes);
}

static double kernel_update_bytes(const struct tess_update *update)
{
    const double arrays = 2 + (update->g != NULL) + 2 * (update->m != NULL) +
                          2 * (update->v != NULL) + (update->direction != NULL);
    return arrays * kernel_bytes(TESS_F32, update->count) +
           (update->param_low != NULL ? kernel_bytes(update->low, update->count) : 0);
}

/* Each array once. */
static double kernel_update_arrays(const struct tess_update *update)
{
    const double arrays = 1 + (update->g != NULL) + (update->m != NULL) + (update->v != NULL) +
                          (update->direction != NULL);
    return arrays * kernel_bytes(TESS_F32, update->count) +
           (update->param_low != NULL ? kernel_bytes(update->low, update->count) : 0);
}

static enum tess_work kernel_update_work(const struct tess_update *update)
{
    switch (update->kind) {
    case TESS_UPDATE_SGD:
    case TESS_UPDATE_AVERAGE:
        return TESS_WORK_UPDATE_SGD;
    case TESS_UPDATE_MOMENTUM:
    case TESS_UPDATE_NOVOGRAD:
        return TESS_WORK_UPDATE_MOMENTUM;
    default:
        return TESS_WORK_UPDATE_ADAMW;
    }
}

static int kernel_update_width(const struct tess_update *update)
{
    return update->param_low != NULL ? TESS_WIDTH_16 : TESS_WIDTH_32;
}

static void virtual_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    kernel_far(kernel, kernel_update_work(update), kernel_update_width(update), 1,
               (double)update->count, kernel_update_bytes(update), kernel_update_arrays(update));
}

static void virtual_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                               int32_t count)
{
    double bytes = 0, far_bytes = 0, elements = 0;
    for (int32_t i = 0; i < count; i++) {
        bytes += kernel_update_bytes(&update[i]);
        far_bytes += kernel_update_arrays(&update[i]);
        elements += (double)update[i].count;
    }
    if (count > 0)
        kernel_far(kernel, kernel_update_work(update), kernel_update_width(update), count, elements,
                   bytes, far_bytes);
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
