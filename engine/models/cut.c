/* Layers cut along the tensor axis, see cut.h. Not here: which layers a model cuts, and how. */
#include "cut.h"

#include "tessera/check.h"

#include <stdio.h>

#define CUT_NAME_BYTES 96

/* Element `at` of an array in the run's type. */
static const void *cut_at(const struct tess_pass *pass, const void *array, int64_t at)
{
    return (const char *)array + at * (int64_t)tess_dtype_bytes(pass->dtype);
}

static void *cut_at_writable(const struct tess_pass *pass, void *array, int64_t at)
{
    return (char *)array + at * (int64_t)tess_dtype_bytes(pass->dtype);
}

void tess__cut_declare(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                       const struct tess__cut_desc *desc, struct tess__cut *cut_out)
{
    const struct tess_init zero = {TESS_INIT_ZERO, 0};
    const struct tess_slice weight = {desc->by_rows ? 1 : 0, desc->blocks, 0};
    const struct tess_slice bias = {desc->by_rows ? -1 : 0, desc->blocks, 0};
    char name[CUT_NAME_BYTES];
    *cut_out = (struct tess__cut){.bias = -1,
                                  .in = desc->by_rows ? desc->in / axis->parts : desc->in,
                                  .out = desc->by_rows ? desc->out : desc->out / axis->parts,
                                  .by_rows = desc->by_rows};
    const struct tess_op_desc op = {.kind = TESS_OP_LINEAR,
                                    .rows = desc->rows,
                                    .leaf_rows = desc->leaf_rows,
                                    .in = cut_out->in,
                                    .out = cut_out->out,
                                    .gelu = desc->gelu,
                                    .calls = axis->count};
    snprintf(name, sizeof(name), "%s.weight", desc->name);
    cut_out->weight = tess_declare_sliced(declare, name, tess_shape2(desc->out, desc->in),
                                          desc->init, desc->flags, weight);
    if (desc->bias) {
        snprintf(name, sizeof(name), "%s.bias", desc->name);
        cut_out->bias = tess_declare_sliced(declare, name, tess_shape1(desc->out), zero,
                                            TESS_PARAM_NO_DECAY, bias);
    }
    cut_out->op = tess_declare_op(declare, &op, false);
}

struct tess_op *tess__cut_op(const struct tess_pass *pass, int32_t op)
{
    /* What it may have packed are another part's weights. */
    if (pass->axis->count > 1)
        pass->op[op]->packed_token = 0;
    return pass->op[op];
}

enum tess_status tess__cut_forward(const struct tess_pass *pass, const struct tess__cut *cut,
                                   int32_t part, const void *x, void *y)
{
    const void *weight = cut_at(pass, pass->param[cut->weight], part * cut->in * cut->out);
    const void *bias = NULL;
    if (cut->bias >= 0 && !cut->by_rows)
        bias = cut_at(pass, pass->param[cut->bias], part * cut->out);
    else if (cut->bias >= 0 && pass->axis->first + part == 0)
        bias = pass->param[cut->bias];
    return tess_linear_forward(tess__cut_op(pass, cut->op), x, weight, bias, y);
}

static enum tess_status cut_backward_weight(const struct tess_pass *pass,
                                            const struct tess__cut *cut, struct tess_op *op,
                                            int32_t part, const void *x, const void *dy)
{
    const int64_t weights = part * cut->in * cut->out;
    float *dbias = NULL;
    if (cut->bias >= 0 && !cut->by_rows)
        dbias = pass->grad[cut->bias] + part * cut->out;
    else if (cut->bias >= 0 && part == 0)
        dbias = pass->grad[cut->bias];
    return tess_linear_backward_weight(op, x, dy, pass->grad[cut->weight] + weights, dbias);
}

enum tess_status tess__cut_backward(const struct tess_pass *pass, const struct tess__cut *cut,
                                    int32_t part, const void *x, const void *dy, void *dx)
{
    struct tess_op *op = tess__cut_op(pass, cut->op);
    const void *w = cut_at(pass, pass->param[cut->weight], part * cut->in * cut->out);
    TESS_TRY(cut_backward_weight(pass, cut, op, part, x, dy));
    return tess_linear_backward_data(op, dy, w, dx);
}

enum tess_status tess__cut_backward_gelu(const struct tess_pass *pass, const struct tess__cut *cut,
                                         int32_t part, const void *x, const void *dy,
                                         const void *before, void *dx)
{
    struct tess_op *op = tess__cut_op(pass, cut->op);
    const void *w = cut_at(pass, pass->param[cut->weight], part * cut->in * cut->out);
    TESS_TRY(cut_backward_weight(pass, cut, op, part, x, dy));
    return tess_linear_backward_data_gelu(op, dy, w, before, dx);
}

bool tess__cut_has_terms(const struct tess_tensor_axis *axis)
{
    return axis->count > 1 || axis->sequence;
}

enum tess_status tess__cut_sum(const struct tess_pass *pass, int64_t leaf_count, void *terms,
                               void *y)
{
    const struct tess_tensor_axis *axis = pass->axis;
    if (!axis->sequence)
        return tess_pass_sum(pass, pass->leaf_count * leaf_count, terms, y);
    for (int64_t leaf = 0; leaf < pass->leaf_count; leaf++)
        TESS_TRY(tess_pass_sum(pass, leaf_count, cut_at_writable(pass, terms, leaf * leaf_count),
                               cut_at_writable(pass, y, leaf * (leaf_count / axis->rank_count))));
    return TESS_OK;
}

enum tess_status tess__cut_widen(const struct tess_pass *pass, int64_t leaf_count, const void *x,
                                 void *room, const void **whole_out)
{
    const struct tess_tensor_axis *axis = pass->axis;
    *whole_out = axis->sequence ? room : x;
    for (int64_t leaf = 0; axis->sequence && leaf < pass->leaf_count; leaf++)
        TESS_TRY(tess_pass_widen(pass, leaf_count,
                                 cut_at(pass, x, leaf * (leaf_count / axis->rank_count)),
                                 cut_at_writable(pass, room, leaf * leaf_count)));
    return TESS_OK;
}
