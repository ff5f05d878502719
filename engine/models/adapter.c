/* Low-rank adapters, see adapter.h. Not here: which layers there are, and when they run. */
#include "adapter.h"

#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

/* ---- declaration ----------------------------------------------------------------------------- */

bool tess__adapter_is_target(const struct tess_lora *lora, const char *name)
{
    const size_t whole = strlen(name);
    if (lora->rank == 0)
        return false;
    if (strcmp(lora->targets, "all") == 0)
        return true;
    for (const char *at = lora->targets; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (length > 0 && length <= whole && strncmp(name + whole - length, at, length) == 0 &&
            (length == whole || name[whole - length - 1] == '.'))
            return true;
        at += length + (at[length] == ',');
    }
    return false;
}

static int32_t adapter_declare_param(struct tess_declare *declare, const char *layer,
                                     const char *which, struct tess_shape shape,
                                     struct tess_init init, struct tess_slice slice)
{
    char text[96];
    snprintf(text, sizeof(text), "%s.lora_%s.weight", layer, which);
    return tess_declare_sliced(declare, text, shape, init, TESS_PARAM_ADAPTER, slice);
}

static int32_t adapter_declare_op(struct tess_declare *declare, const struct tess__layer_desc *desc,
                                  const struct tess_tensor_axis *axis, int64_t in, int64_t out)
{
    const struct tess_op_desc op = {.kind = TESS_OP_LINEAR,
                                    .dtype = desc->op.dtype,
                                    .rows = desc->op.rows,
                                    .leaf_rows = desc->op.leaf_rows,
                                    .in = in,
                                    .out = out,
                                    .calls = axis->count};
    return tess_declare_op(declare, &op, false);
}

void tess__adapter_declare(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                           const struct tess_lora *lora, const struct tess__layer_desc *desc,
                           struct tess__adapter *adapter)
{
    const bool columns = desc->split == TESS_SPLIT_COLUMNS, rows = desc->split == TESS_SPLIT_ROWS;
    const struct tess_op_desc *op = &desc->op;
    const struct tess_slice whole = {-1, 1, 0};
    const struct tess_slice by_in = {1, 1, 0}, by_out = {0, desc->blocks > 0 ? desc->blocks : 1, 0};
    const struct tess_init zero = {TESS_INIT_ZERO, 0};
    *adapter = (struct tess__adapter){.rank = 0, .room = -1};
    if (!tess__adapter_is_target(lora, desc->name))
        return;
    *adapter = (struct tess__adapter){.rank = lora->rank,
                                      .split = desc->split,
                                      .scale = lora->scale,
                                      .positions = op->rows,
                                      .in = rows ? op->in / axis->parts : op->in,
                                      .out = columns ? op->out / axis->parts : op->out,
                                      .wide = -1,
                                      .room = -1};
    const int64_t r = lora->rank, low = adapter->positions * r;
    adapter->a = adapter_declare_param(declare, desc->name, "A", tess_shape2(r, op->in),
                                       tess__init_fan_in(op->in), rows ? by_in : whole);
    adapter->b = adapter_declare_param(declare, desc->name, "B", tess_shape2(op->out, r), zero,
                                       columns ? by_out : whole);
    adapter->op_a = adapter_declare_op(declare, desc, axis, adapter->in, r);
    adapter->op_b = adapter_declare_op(declare, desc, axis, r, adapter->out);
    adapter->low =
        tess_declare_tensor(declare, "adapter", op->dtype, tess_shape1(low), TESS_LIFE_BATCH);
    adapter->low_grad =
        tess_declare_tensor(declare, "adapter.grad", op->dtype, tess_shape1(low), TESS_LIFE_CALL);
    if (axis->parts > 1 || op->dtype != TESS_F32)
        adapter->wide = tess_declare_tensor(declare, "adapter.terms", TESS_F32,
                                            tess_shape2(axis->count, low), TESS_LIFE_CALL);
    tess_declare_crossing(declare, rows ? TESS_CALL_FORWARD : TESS_CALL_BACKWARD, TESS_CALL_F32,
                          low);
}

int64_t tess__adapter_room(const struct tess__adapter *adapter)
{
    if (adapter->rank == 0)
        return 0;
    return adapter->in > adapter->out ? adapter->in : adapter->out;
}

/* ---- both directions ------------------------------------------------------------------------- */

static const void *adapter_param(const struct tess_pass *pass, int32_t param, int64_t at)
{
    return (const char *)pass->param[param] + at * (int64_t)tess_dtype_bytes(pass->dtype);
}

/* A and B of a part. */
static const void *adapter_a(const struct tess_pass *pass, const struct tess__adapter *adapter,
                             int32_t part)
{
    const bool cut = adapter->split == TESS_SPLIT_ROWS;
    return adapter_param(pass, adapter->a, cut ? part * adapter->rank * adapter->in : 0);
}

static const void *adapter_b(const struct tess_pass *pass, const struct tess__adapter *adapter,
                             int32_t part)
{
    const bool cut = adapter->split == TESS_SPLIT_COLUMNS;
    return adapter_param(pass, adapter->b, cut ? part * adapter->rank * adapter->out : 0);
}

/* y += what is in the room. */
static void adapter_add(const struct tess_pass *pass, const struct tess__adapter *adapter,
                        int64_t width, void *y)
{
    tess_add(pass->kernel, pass->dtype, adapter->positions * width, y, pass->tensor[adapter->room],
             y);
}

/* A part's term of a sum over parts has been computed in `low`. */
static void adapter_term(const struct tess_pass *pass, const struct tess__adapter *adapter,
                         int32_t part, const void *low)
{
    const int64_t count = adapter->positions * adapter->rank;
    if (pass->axis->parts > 1)
        tess_cast(pass->kernel, count, pass->dtype, low, TESS_F32,
                  (float *)pass->tensor[adapter->wide] + part * count);
}

/* low *= scale, of a sum over parts once they are there. */
static enum tess_status adapter_scale(const struct tess_pass *pass,
                                      const struct tess__adapter *adapter, bool sum, void *low)
{
    const int64_t count = adapter->positions * adapter->rank;
    const bool crosses = sum && pass->axis->parts > 1;
    float *wide = adapter->wide >= 0 ? pass->tensor[adapter->wide] : low;
    if (crosses)
        TESS_TRY(tess_pass_sum_f32(pass, count, wide));
    else if (adapter->scale == 1)
        return TESS_OK;
    else if (wide != low)
        tess_cast(pass->kernel, count, pass->dtype, low, TESS_F32, wide);
    if (adapter->scale != 1)
        tess_accumulate(pass->kernel, count, adapter->scale - 1, wide, wide);
    if (wide != low)
        tess_cast(pass->kernel, count, TESS_F32, wide, pass->dtype, low);
    return TESS_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static enum tess_status adapter_raise(const struct tess_pass *pass,
                                      const struct tess__adapter *adapter, int32_t part, void *y)
{
    TESS_TRY(tess_linear_forward(tess__layer_op(pass, adapter->op_b), pass->tensor[adapter->low],
                                 adapter_b(pass, adapter, part), NULL,
                                 pass->tensor[adapter->room]));
    adapter_add(pass, adapter, adapter->out, y);
    return TESS_OK;
}

enum tess_status tess__adapter_forward(const struct tess_pass *pass,
                                       const struct tess__adapter *adapter, int32_t part,
                                       const void *x, void *y)
{
    if (adapter->rank == 0)
        return TESS_OK;
    const bool rows = adapter->split == TESS_SPLIT_ROWS;
    void *low = pass->tensor[adapter->low];
    if (rows || part == 0)
        TESS_TRY(tess_linear_forward(tess__layer_op(pass, adapter->op_a), x,
                                     adapter_a(pass, adapter, part), NULL, low));
    if (rows) {
        adapter_term(pass, adapter, part, low);
        return TESS_OK;
    }
    if (part == 0)
        TESS_TRY(adapter_scale(pass, adapter, false, low));
    return adapter_raise(pass, adapter, part, y);
}

enum tess_status tess__adapter_forward_end(const struct tess_pass *pass,
                                           const struct tess__adapter *adapter, void *y)
{
    if (adapter->rank == 0 || adapter->split != TESS_SPLIT_ROWS)
        return TESS_OK;
    TESS_TRY(adapter_scale(pass, adapter, true, pass->tensor[adapter->low]));
    return pass->axis->first == 0 ? adapter_raise(pass, adapter, 0, y) : TESS_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

enum tess_status tess__adapter_backward(const struct tess_pass *pass,
                                        const struct tess__adapter *adapter, int32_t part,
                                        const void *x, const void *dy)
{
    if (adapter->rank == 0)
        return TESS_OK;
    const bool rows = adapter->split == TESS_SPLIT_ROWS;
    void *low = pass->tensor[adapter->low_grad];
    if (!rows || part == 0) {
        float *db = pass->grad[adapter->b] + (rows ? 0 : part * adapter->rank * adapter->out);
        TESS_TRY(tess_linear_backward_weight(tess__layer_op(pass, adapter->op_b),
                                             pass->tensor[adapter->low], dy, db, NULL));
        TESS_TRY(tess_linear_backward_data(tess__layer_op(pass, adapter->op_b), dy,
                                           adapter_b(pass, adapter, part), low));
    }
    if (!rows) {
        adapter_term(pass, adapter, part, low);
        return TESS_OK;
    }
    if (part == 0)
        TESS_TRY(adapter_scale(pass, adapter, false, low));
    return tess_linear_backward_weight(tess__layer_op(pass, adapter->op_a), x, low,
                                       pass->grad[adapter->a] + part * adapter->rank * adapter->in,
                                       NULL);
}

static enum tess_status adapter_lower(const struct tess_pass *pass,
                                      const struct tess__adapter *adapter, int32_t part, void *dx)
{
    TESS_TRY(tess_linear_backward_data(
        tess__layer_op(pass, adapter->op_a), pass->tensor[adapter->low_grad],
        adapter_a(pass, adapter, part), pass->tensor[adapter->room]));
    adapter_add(pass, adapter, adapter->in, dx);
    return TESS_OK;
}

enum tess_status tess__adapter_backward_data(const struct tess_pass *pass,
                                             const struct tess__adapter *adapter, int32_t part,
                                             void *dx)
{
    if (adapter->rank == 0 || adapter->split != TESS_SPLIT_ROWS)
        return TESS_OK;
    return adapter_lower(pass, adapter, part, dx);
}

enum tess_status tess__adapter_backward_end(const struct tess_pass *pass,
                                            const struct tess__adapter *adapter, const void *x,
                                            void *dx)
{
    if (adapter->rank == 0 || adapter->split == TESS_SPLIT_ROWS)
        return TESS_OK;
    void *low = pass->tensor[adapter->low_grad];
    TESS_TRY(adapter_scale(pass, adapter, true, low));
    TESS_TRY(tess_linear_backward_weight(tess__layer_op(pass, adapter->op_a), x, low,
                                         pass->grad[adapter->a], NULL));
    return pass->axis->first == 0 ? adapter_lower(pass, adapter, 0, dx) : TESS_OK;
}
