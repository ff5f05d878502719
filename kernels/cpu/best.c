/*
 * The baseline of the bench: oneDNN primitives as a caller would use them directly, without leaves,
 * with memory of their own.
 */
#include "cpu/best.h"

#include "base/log_sink.h"
#include "cpu/prim.h"
#include "kernel_open.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

struct tess_best {
    struct tess_kernel *kernel;
    struct tess_op op; /* for its kernel and desc only */
    struct cpu_prim prim;
    const char *name;
    void *memory[4], *scratch;
    const void *data[4];
    size_t bytes[4]; /* of data */
};

static enum tess_status best_inner_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                        enum cpu_what what, dnnl_primitive_desc_t *desc_out)
{
    dnnl_data_type_t type = tess__cpu_type(desc->dtype);
    dnnl_dims_t x_dims = {desc->rows, desc->in}, w_dims = {desc->out, desc->in};
    dnnl_dims_t y_dims = {desc->rows, desc->out}, bias_dims = {desc->out};
    dnnl_memory_desc_t x, w, y, bias;
    dnnl_memory_desc_init_by_tag(&x, 2, x_dims, type, dnnl_ab);
    dnnl_memory_desc_init_by_tag(&w, 2, w_dims, type, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&y, 2, y_dims, type, dnnl_ab);
    dnnl_memory_desc_init_by_tag(&bias, 1, bias_dims, type, dnnl_a);
    dnnl_inner_product_desc_t forward, backward;
    dnnl_primitive_desc_t hint;
    bool is_forward = what == CPU_FORWARD;
    TESS_TRY(
        tess__cpu_check(dnnl_inner_product_forward_desc_init(&forward, dnnl_forward_training, &x,
                                                             &w, is_forward ? &bias : NULL, &y),
                        "inner product description"));
    TESS_TRY(tess__cpu_prim_desc(engine, &forward, is_forward && desc->relu, NULL, "inner product",
                                 is_forward ? desc_out : &hint));
    if (is_forward)
        return TESS_OK;
    if (what == CPU_BACKWARD_WEIGHT)
        dnnl_memory_desc_init_by_tag(&w, 2, w_dims, dnnl_f32, dnnl_ab);
    dnnl_status_t described =
        what == CPU_BACKWARD_WEIGHT
            ? dnnl_inner_product_backward_weights_desc_init(&backward, &x, &w, NULL, &y)
            : dnnl_inner_product_backward_data_desc_init(&backward, &x, &w, &y);
    enum tess_status status = tess__cpu_check(described, "inner product description");
    if (status == TESS_OK)
        status =
            tess__cpu_prim_desc(engine, &backward, false, hint, "inner product backward", desc_out);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

/* The description, arguments and name of a candidate. */
static enum tess_status best_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                  enum cpu_what what, int number, dnnl_primitive_desc_t *desc_out,
                                  const int **arg_out, const char **name_out)
{
    if (desc->kind == TESS_OP_CONV2D) {
        *arg_out = tess__cpu_conv_arg[what];
        *name_out = "convolution";
        return tess__cpu_conv_desc(engine, desc, what, desc->rows, desc_out);
    }
    if (number == 2) {
        *arg_out = tess__cpu_conv_arg[what];
        *name_out = "inner product";
        return best_inner_desc(engine, desc, what, desc_out);
    }
    *arg_out = tess__cpu_matmul_arg[what];
    *name_out = number == 0 ? "matmul" : "matmul packed";
    return tess__cpu_matmul_desc(engine, desc, what, desc->rows,
                                 what == CPU_BACKWARD_DATA ? desc->in : desc->out, number == 1,
                                 desc_out);
}

static void best_line(void *context, enum tess_log_level level, const char *text)
{
    (void)context, (void)level, (void)text;
}

/* best_desc(), in which a primitive that oneDNN lacks is no error; *desc_out NULL then. */
static enum tess_status best_find(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                  enum cpu_what what, int number, dnnl_primitive_desc_t *desc_out,
                                  const int **arg_out, const char **name_out)
{
    static const struct tess__log_sink nowhere = {.line = best_line};
    *desc_out = NULL;
    if (desc->dtype == TESS_F16 || number >= (desc->kind == TESS_OP_CONV2D ? 1 : 3))
        return TESS_OK;
    const struct tess__log_sink *before = tess__log_redirect(&nowhere);
    const enum tess_status status =
        best_desc(engine, desc, what, number, desc_out, arg_out, name_out);
    tess__log_redirect(before);
    if (status != TESS_OK && status != TESS_ERR_UNSUPPORTED)
        TESS_FAIL(status, "%s", tess_log_last_error());
    return TESS_OK;
}

bool tess__best_is_there(void)
{
    return true;
}

/* Memory for every argument and the scratchpad. The bytes are halves of f32 near 1 or bf16 near 1.
 */
static enum tess_status best_allocate(struct tess_best *best, const_dnnl_primitive_desc_t desc,
                                      const int *arg, int count)
{
    for (int i = 0; i <= count; i++) {
        size_t bytes =
            i < count ? tess__cpu_desc_bytes(desc, arg[i]) : tess__cpu_desc_scratch(desc);
        void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
        if (memory == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench: %zu bytes", bytes);
        memset(memory, 0x3f, bytes); /* 0x3f3f3f3f is 0.747, 0x3f3f is 0.746 */
        if (i == count) {
            best->scratch = memory;
            return TESS_OK;
        }
        best->data[i] = best->memory[i] = memory;
        best->bytes[i] = bytes;
    }
    return TESS_OK;
}

enum tess_status tess__best_open(const struct tess_op_desc *desc, enum tess_best_what what,
                                 int number, int threads, struct tess_best **best_out)
{
    struct tess_best *best = calloc(1, sizeof(*best));
    if (best == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench");
    const int *arg;
    dnnl_primitive_desc_t primitive;
    enum tess_status status;
    TESS_TRY_GOTO(status, failed, tess_kernel_open(&tess_kernel_cpu, threads, &best->kernel));
    best->op.kernel = best->kernel;
    best->op.desc = *desc;
    struct cpu_state *state = best->kernel->state;
    tess__cpu_threads(state, threads);
    enum cpu_what cpu_what = (enum cpu_what)what; /* the same list, without oneDNN's header */
    TESS_TRY_GOTO(status, failed,
                  best_find(state->engine, desc, cpu_what, number, &primitive, &arg, &best->name));
    if (primitive == NULL)
        goto failed; /* not an error */
    int count = tess__cpu_arg_count[cpu_what];
    status = best_allocate(best, primitive, arg, count);
    if (status == TESS_OK)
        status = tess__cpu_prim_open(&best->prim, state, primitive, arg, count);
    else
        dnnl_primitive_desc_destroy(primitive);
    if (status != TESS_OK)
        goto failed;
    best->prim.all_threads = true;
    *best_out = best;
    return TESS_OK;

failed:
    tess__best_close(best);
    *best_out = NULL;
    return status;
}

void tess__best_close(struct tess_best *best)
{
    if (best == NULL)
        return;
    tess__cpu_prim_close(&best->prim);
    for (int i = 0; i < 4; i++)
        free(best->memory[i]);
    free(best->scratch);
    tess_kernel_close(best->kernel);
    free(best);
}

const char *tess__best_name(const struct tess_best *best)
{
    return best->name;
}

enum tess_status tess__best_run(struct tess_best *best)
{
    return tess__cpu_prim_run(&best->prim, &best->op, best->scratch, best->data);
}

void tess__best_use(struct tess_best *best, int arg, void *memory, size_t bytes)
{
    if (best->memory[arg] == NULL || bytes < best->bytes[arg])
        return;
    free(best->memory[arg]);
    best->memory[arg] = NULL;
    best->data[arg] = memory;
}

void tess__best_add(int64_t count, const float *x, float *y)
{
    tess__cpu_loops_best()->plain_add(count, x, y);
}

void tess__best_softmax(enum tess_dtype dtype, int64_t length, float scale, void *s)
{
    tess__cpu_loops_best()->square_softmax(dtype, length, scale, s);
}

void tess__best_softmax_grad(enum tess_dtype dtype, int64_t length, float scale, const void *p,
                             void *dp)
{
    tess__cpu_loops_best()->square_softmax_grad(dtype, length, scale, p, dp);
}
