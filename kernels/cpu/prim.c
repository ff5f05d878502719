/* oneDNN primitives: building, running and releasing them. Which ones an operation uses is not
 * decided here. */
#include "cpu/prim.h"

#include "tessera/check.h"

#include <string.h>

const int tess__cpu_matmul_arg[3][4] = {
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
    {DNNL_ARG_WEIGHTS, DNNL_ARG_SRC, DNNL_ARG_DST},
};
const int tess__cpu_conv_arg[3][4] = {
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
    {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS},
};
const int tess__cpu_arg_count[3] = {4, 3, 3};

enum tess_status tess__cpu_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return TESS_OK;
    if (status == dnnl_out_of_memory)
        TESS_FAIL(TESS_ERR_MEMORY, "oneDNN ran out of memory in %s", what);
    TESS_FAIL(status == dnnl_unimplemented ? TESS_ERR_UNSUPPORTED : TESS_ERR_INTERNAL,
              "oneDNN returned status %d for %s: try --kernel ref", (int)status, what);
}

dnnl_data_type_t tess__cpu_type(enum tess_dtype dtype)
{
    return dtype == TESS_BF16 ? dnnl_bf16 : dnnl_f32;
}

static bool prim_may(unsigned isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & isa) == isa;
}

bool tess__cpu_library_tiles(void)
{
    return prim_may(dnnl_cpu_isa_avx512_core_amx);
}

bool tess__cpu_library_avx512(void)
{
    return prim_may(dnnl_cpu_isa_avx512_core);
}

void tess__cpu_threads(const struct cpu_state *state, int threads)
{
    if (state->threads_set != NULL && state->threads_get() != threads)
        state->threads_set(threads);
}

/* Attributes: our scratchpad, and ReLU after the operation. The caller destroys them. */
static enum tess_status prim_attr(bool relu, dnnl_primitive_attr_t *attr_out)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && relu) {
        status = dnnl_post_ops_create(&post);
        if (status == dnnl_success)
            status = dnnl_post_ops_append_eltwise(post, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(attr, post);
        dnnl_post_ops_destroy(post);
    }
    if (status != dnnl_success) {
        dnnl_primitive_attr_destroy(attr);
        return tess__cpu_check(status, "attributes");
    }
    *attr_out = attr;
    return TESS_OK;
}

/* oneDNN 2.6 on processors with AVX2 alone: this computes wrong values for convolutions of 1 x 1
 * with a stride where the channels of the result are no multiple of 8. */
#define PRIM_WRONG_STRIDED "jit_1x1:avx2"

/* The first implementation that there is, but for the wrong one where the operation has a stride.
 */
static dnnl_status_t prim_choose(dnnl_engine_t engine, const_dnnl_op_desc_t desc,
                                 const_dnnl_primitive_attr_t attr, bool strided,
                                 const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *desc_out)
{
    dnnl_primitive_desc_iterator_t next;
    dnnl_status_t status = dnnl_primitive_desc_iterator_create(&next, desc, attr, engine, hint);
    if (status != dnnl_success)
        return status;
    for (;;) {
        const char *name = "";
        dnnl_primitive_desc_t found = dnnl_primitive_desc_iterator_fetch(next);
        if (found == NULL)
            status = dnnl_out_of_memory;
        else
            (void)dnnl_primitive_desc_query(found, dnnl_query_impl_info_str, 0, &name);
        *desc_out = found;
        if (found == NULL || !strided || strcmp(name, PRIM_WRONG_STRIDED) != 0)
            break;
        dnnl_primitive_desc_destroy(found);
        status = dnnl_primitive_desc_iterator_next(next);
        if (status != dnnl_success)
            break;
    }
    dnnl_primitive_desc_iterator_destroy(next);
    return status;
}

static enum tess_status prim_desc(dnnl_engine_t engine, const_dnnl_op_desc_t desc, bool relu,
                                  bool strided, const_dnnl_primitive_desc_t hint, const char *what,
                                  dnnl_primitive_desc_t *desc_out)
{
    dnnl_primitive_attr_t attr = NULL;
    TESS_TRY(prim_attr(relu, &attr));
    dnnl_status_t status = prim_choose(engine, desc, attr, strided, hint, desc_out);
    dnnl_primitive_attr_destroy(attr);
    return tess__cpu_check(status, what);
}

enum tess_status tess__cpu_prim_desc(dnnl_engine_t engine, const_dnnl_op_desc_t desc, bool relu,
                                     const_dnnl_primitive_desc_t hint, const char *what,
                                     dnnl_primitive_desc_t *desc_out)
{
    return prim_desc(engine, desc, relu, false, hint, what, desc_out);
}

size_t tess__cpu_desc_bytes(const_dnnl_primitive_desc_t desc, int arg)
{
    const dnnl_memory_desc_t *memory =
        dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arg);
    return memory != NULL ? dnnl_memory_desc_get_size(memory) : 0;
}

size_t tess__cpu_desc_scratch(const_dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *memory =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    return memory != NULL ? dnnl_memory_desc_get_size(memory) : 0;
}

static dnnl_status_t prim_build(struct cpu_prim *prim, struct cpu_state *state,
                                const_dnnl_primitive_desc_t desc, const int *arg, int count)
{
    for (int i = 0; i <= count; i++) {
        const dnnl_memory_desc_t *memory =
            i < count ? dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arg[i])
                      : dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
        prim->arg[i].arg = i < count ? arg[i] : DNNL_ARG_SCRATCHPAD;
        dnnl_status_t status =
            dnnl_memory_create(&prim->arg[i].memory, memory, state->engine, DNNL_MEMORY_NONE);
        if (status != dnnl_success)
            return status;
        prim->arg_count = i + 1;
    }
    return dnnl_primitive_create(&prim->primitive, desc);
}

enum tess_status tess__cpu_prim_open(struct cpu_prim *prim, struct cpu_state *state,
                                     dnnl_primitive_desc_t desc, const int *arg, int count)
{
    memset(prim, 0, sizeof(*prim));
    prim->stream = state->stream;
    prim->scratch_bytes = tess__cpu_desc_scratch(desc);
    dnnl_status_t status = prim_build(prim, state, desc, arg, count);
    dnnl_primitive_desc_destroy(desc);
    if (status == dnnl_success)
        return TESS_OK;
    tess__cpu_prim_close(prim);
    return tess__cpu_check(status, "primitive create");
}

void tess__cpu_prim_close(struct cpu_prim *prim)
{
    for (int i = 0; i < prim->arg_count; i++)
        dnnl_memory_destroy(prim->arg[i].memory);
    if (prim->primitive != NULL)
        dnnl_primitive_destroy(prim->primitive);
    memset(prim, 0, sizeof(*prim));
}

enum tess_status tess__cpu_prim_run(struct cpu_prim *prim, const struct tess_op *op, void *scratch,
                                    const void *const *data)
{
    tess__cpu_threads(tess__cpu_state(op), prim->all_threads ? op->kernel->threads : 1);
    int last = prim->arg_count - 1;
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < last && status == dnnl_success; i++)
        status = dnnl_memory_set_data_handle(prim->arg[i].memory, (void *)(uintptr_t)data[i]);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(prim->arg[last].memory, scratch);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(prim->primitive, prim->stream, prim->arg_count, prim->arg);
    return tess__cpu_check(status, "execute");
}

/* A matrix with the given strides; `any` leaves the layout to oneDNN. */
static dnnl_memory_desc_t prim_matrix(int64_t rows, int64_t cols, dnnl_data_type_t type,
                                      int64_t row_stride, int64_t col_stride, bool any)
{
    dnnl_memory_desc_t memory;
    dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
    if (any)
        dnnl_memory_desc_init_by_tag(&memory, 2, dims, type, dnnl_format_tag_any);
    else
        dnnl_memory_desc_init_by_strides(&memory, 2, dims, type, strides);
    return memory;
}

enum tess_status tess__cpu_matmul_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                       enum cpu_what what, int64_t rows, int64_t part, bool packed,
                                       dnnl_primitive_desc_t *desc_out)
{
    dnnl_data_type_t type = tess__cpu_type(desc->dtype);
    int64_t in = desc->in, out = desc->out;
    dnnl_memory_desc_t a, b, c, bias = prim_matrix(1, part, type, part, 1, false);
    if (what == CPU_FORWARD) {
        a = prim_matrix(rows, in, type, in, 1, false);
        b = prim_matrix(in, part, type, 1, in, packed);
        c = prim_matrix(rows, part, type, out, 1, false);
    } else if (what == CPU_BACKWARD_DATA) {
        a = prim_matrix(rows, out, type, out, 1, false);
        b = prim_matrix(out, part, type, in, 1, packed);
        c = prim_matrix(rows, part, type, in, 1, false);
    } else {
        a = prim_matrix(part, rows, type, 1, out, false);
        b = prim_matrix(rows, in, type, in, 1, packed);
        c = prim_matrix(part, in, dnnl_f32, in, 1, false);
    }
    bool forward = what == CPU_FORWARD;
    dnnl_matmul_desc_t matmul;
    TESS_TRY(tess__cpu_check(dnnl_matmul_desc_init(&matmul, &a, &b, forward ? &bias : NULL, &c),
                             "matmul description"));
    return tess__cpu_prim_desc(engine, &matmul, forward && desc->relu, NULL, "matmul", desc_out);
}

/* The memory descriptions of a convolution; dims are oneDNN's logical N, C, H, W. */
struct prim_conv {
    dnnl_memory_desc_t x, w, bias, y;
    dnnl_dims_t strides, padding;
};

/*
 * Images are always nhwc by tag: with one channel nchw and nhwc describe the same bytes, but only
 * nhwc selects oneDNN's fast convolutions.
 */
static void prim_conv_memory(const struct tess_op_desc *desc, int64_t rows, bool w_is_f32,
                             struct prim_conv *conv)
{
    dnnl_data_type_t type = tess__cpu_type(desc->dtype);
    int64_t height = tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding);
    int64_t width = tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding);
    dnnl_dims_t x = {rows, desc->in, desc->height, desc->width};
    dnnl_dims_t w = {desc->out, desc->in, desc->window, desc->window};
    dnnl_dims_t bias = {desc->out}, y = {rows, desc->out, height, width};
    dnnl_memory_desc_init_by_tag(&conv->x, 4, x, type, dnnl_nhwc);
    dnnl_memory_desc_init_by_tag(&conv->w, 4, w, w_is_f32 ? dnnl_f32 : type, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&conv->bias, 1, bias, type, dnnl_a);
    dnnl_memory_desc_init_by_tag(&conv->y, 4, y, type, dnnl_nhwc);
    for (int i = 0; i < 2; i++) {
        conv->strides[i] = desc->stride;
        conv->padding[i] = desc->padding;
    }
}

static enum tess_status prim_conv_forward(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                          struct prim_conv *conv, bool bias,
                                          dnnl_primitive_desc_t *desc_out)
{
    dnnl_convolution_desc_t forward;
    TESS_TRY(tess__cpu_check(
        dnnl_convolution_forward_desc_init(&forward, dnnl_forward_training, dnnl_convolution_direct,
                                           &conv->x, &conv->w, bias ? &conv->bias : NULL, &conv->y,
                                           conv->strides, conv->padding, conv->padding),
        "convolution description"));
    return prim_desc(engine, &forward, bias && desc->relu, desc->stride > 1, NULL,
                     "convolution forward", desc_out);
}

enum tess_status tess__cpu_conv_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                     enum cpu_what what, int64_t rows,
                                     dnnl_primitive_desc_t *desc_out)
{
    struct prim_conv conv;
    prim_conv_memory(desc, rows, false, &conv);
    if (what == CPU_FORWARD)
        return prim_conv_forward(engine, desc, &conv, true, desc_out);

    /* Backward needs the description of a forward one as a hint. */
    dnnl_primitive_desc_t hint;
    dnnl_convolution_desc_t backward;
    TESS_TRY(prim_conv_forward(engine, desc, &conv, false, &hint));
    prim_conv_memory(desc, rows, what == CPU_BACKWARD_WEIGHT, &conv);
    dnnl_status_t described =
        what == CPU_BACKWARD_DATA
            ? dnnl_convolution_backward_data_desc_init(&backward, dnnl_convolution_direct, &conv.x,
                                                       &conv.w, &conv.y, conv.strides, conv.padding,
                                                       conv.padding)
            : dnnl_convolution_backward_weights_desc_init(&backward, dnnl_convolution_direct,
                                                          &conv.x, &conv.w, NULL, &conv.y,
                                                          conv.strides, conv.padding, conv.padding);
    enum tess_status status = tess__cpu_check(described, "convolution description");
    if (status == TESS_OK)
        status = prim_desc(engine, &backward, false, desc->stride > 1, hint, "convolution backward",
                           desc_out);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

enum tess_status tess__cpu_reorder_open(struct cpu_prim *prim, struct cpu_state *state,
                                        const struct tess_op_desc *desc,
                                        const_dnnl_primitive_desc_t conv, int arg, bool back)
{
    const dnnl_memory_desc_t *theirs =
        dnnl_primitive_desc_query_md(conv, dnnl_query_exec_arg_md, arg);
    int64_t window = desc->window, in = desc->in;
    dnnl_dims_t dims = {desc->out, in, window, window};
    dnnl_dims_t strides = {window * window * in, 1, window * in, in};
    dnnl_memory_desc_t ours;
    TESS_TRY(tess__cpu_check(
        dnnl_memory_desc_init_by_strides(&ours, 4, dims, theirs->data_type, strides), "weights"));
    dnnl_primitive_attr_t attr = NULL;
    TESS_TRY(prim_attr(false, &attr));
    dnnl_primitive_desc_t reorder;
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(
        &reorder, back ? theirs : &ours, state->engine, back ? &ours : theirs, state->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    TESS_TRY(tess__cpu_check(status, "reorder"));
    static const int args[2] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    return tess__cpu_prim_open(prim, state, reorder, args, 2);
}
