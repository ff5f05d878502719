/*
 * Products over rows that add to what is there: cuBLASLt reads it as C, so that the sum costs one
 * reading of an array in place of a kernel that reads two and writes one.
 */
#include "cuda/products/linear_data.h"
#include "cuda/products/matmul_plan.h"

/* Those that go leaf by leaf through another type, after whose sum a ReLU comes, or whose plan does
 * not add the bias by itself, add beside. */
static bool add_is_fused(const struct tess_op_desc *d, const struct cuda_rows *rows, bool bias)
{
    return rows->leaf != NULL && bias == matmul_has_bias(&rows->leaf->product) && !d->relu &&
           !linear_is_wide(d) && !linear_is_narrow(d);
}

enum tess_status tess__cuda_linear_forward_add(struct tess_op *op, const void *x, const void *w,
                                               const void *bias, const void *add, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    const struct linear_data *data = op->data;
    const struct cuda_rows *rows = &data->rows[bias ? LINEAR_FORWARD_BIAS : LINEAR_FORWARD];
    const struct cuda_operands operands = {
        .a = w,
        .b = x,
        .c = add,
        .d = y,
        .bias = (void *)(uintptr_t)bias, /* cuBLASLt only reads it */
        .beta = 1,
    };
    if (add_is_fused(d, rows, bias != NULL))
        return tess__cuda_rows_run(op->kernel, rows, &operands);
    TESS_TRY(tess__cuda_linear_forward(op, x, w, bias, y));
    tess__cuda_add(op->kernel, d->dtype, d->rows * d->out, add, y, y);
    return TESS_OK;
}

enum tess_status tess__cuda_linear_backward(struct tess_op *op, const void *x, const void *dy,
                                            const void *w, float *dw, float *dbias, void *term,
                                            void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    const struct linear_data *data = op->data;
    const struct cuda_operands operands = {.a = w, .b = dy, .d = dx, .beta = 1};
    const bool fused = add_is_fused(d, &data->rows[LINEAR_DATA], false);
    void *to = term != NULL ? term : dx;
    if (linear_is_narrow(d)) {
        TESS_TRY(tess__cuda_linear_narrow_backward(op, x, dy, w, dw, dbias, to));
    } else {
        TESS_TRY(tess__cuda_linear_backward_weight(op, x, dy, dw, dbias));
        if (term != NULL && fused)
            return tess__cuda_rows_run(op->kernel, &data->rows[LINEAR_DATA], &operands);
        TESS_TRY(tess__cuda_linear_backward_data(op, dy, w, to));
    }
    if (term != NULL)
        tess__cuda_add(op->kernel, d->dtype, d->rows * d->in, dx, term, dx);
    return TESS_OK;
}
