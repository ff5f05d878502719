/* What several units of model gpt have: norms, dropout, sums over the tensor axis. */
#include "gpt.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

void *tess__gpt_at(const struct tess_pass *pass, int32_t tensor, int64_t at)
{
    return (char *)pass->tensor[tensor] + at * (int64_t)tess_dtype_bytes(pass->dtype);
}

void tess__gpt_declare_norm(const struct gpt_state *gpt, struct tess_declare *declare,
                            const char *name, struct gpt_norm *norm_out)
{
    const struct tess_init zero = {TESS_INIT_ZERO, 0}, one = {TESS_INIT_ONE, 0};
    const uint32_t flags = TESS_PARAM_NO_DECAY | TESS_PARAM_TOKENS;
    const struct tess_shape shape = tess_shape1(gpt->width);
    const struct tess_shape places = tess_shape1(gpt->own_length);
    const struct tess_op_desc desc = {.kind = TESS_OP_NORM,
                                      .rows = gpt->own_positions,
                                      .leaf_rows = gpt->own_positions / gpt->leaves,
                                      .in = gpt->width,
                                      .out = gpt->width,
                                      .rms = gpt->llama,
                                      .epsilon = gpt->epsilon};
    char text[TESS__LAYER_NAME];
    norm_out->gamma =
        tess_declare_param(declare, tess__layer_name(text, name, "weight"), shape, one, flags);
    norm_out->beta = norm_out->mean = -1;
    if (!gpt->llama) {
        norm_out->beta =
            tess_declare_param(declare, tess__layer_name(text, name, "bias"), shape, zero, flags);
        norm_out->mean = tess_declare_tensor(declare, "mean", TESS_F32, places, TESS_LIFE_SAVED);
    }
    norm_out->rstd = tess_declare_tensor(declare, "rstd", TESS_F32, places, TESS_LIFE_SAVED);
    norm_out->op = tess_declare_op(declare, &desc, false);
    norm_out->unread = -1;
    if (gpt->lora.rank > 0)
        norm_out->unread = tess_declare_tensor(declare, "norm.grad", TESS_F32,
                                               tess_shape2(2, gpt->width), TESS_LIFE_CALL);
}

enum tess_status tess__gpt_norm_forward(const struct tess_pass *pass, const struct gpt_norm *norm,
                                        const void *x, const void *add, void *sum, void *y)
{
    return tess_norm_forward(pass->op[norm->op], x, add, sum, pass->param[norm->gamma],
                             norm->beta < 0 ? NULL : pass->param[norm->beta], y,
                             norm->mean < 0 ? NULL : pass->tensor[norm->mean],
                             pass->tensor[norm->rstd]);
}

enum tess_status tess__gpt_norm_backward(const struct tess_pass *pass, const struct gpt_norm *norm,
                                         const void *x, const void *dy, const void *add, void *dx)
{
    float *dgamma = pass->grad[norm->gamma],
          *dbeta = norm->beta < 0 ? NULL : pass->grad[norm->beta];
    if (norm->unread >= 0) {
        dgamma = pass->tensor[norm->unread];
        dbeta = norm->beta < 0 ? NULL : dgamma + pass->op[norm->op]->desc.in;
    }
    return tess_norm_backward(pass->op[norm->op], x, dy, pass->param[norm->gamma],
                              norm->mean < 0 ? NULL : pass->tensor[norm->mean],
                              pass->tensor[norm->rstd], add, dx, dgamma, dbeta);
}

void tess__gpt_dropout(const struct gpt_state *gpt, const struct tess_pass *pass, int32_t site,
                       const void *x, void *y)
{
    const int64_t leaf = gpt->leaf_length * gpt->width; /* elements of all ranks */
    const int64_t own = gpt->own_positions / gpt->leaves * gpt->width;
    const int64_t bytes = own * (int64_t)tess_dtype_bytes(pass->dtype);
    const uint64_t row = pass->row_first * (uint64_t)(gpt->length * gpt->width);
    const int64_t run = pass->axis->sequence ? pass->axis->rank * own : 0;
    for (int64_t l = 0; l < gpt->leaves; l++)
        tess__dropout_at(pass, gpt->dropout, site, row + (uint64_t)(l * leaf + run), own,
                         (const char *)x + l * bytes, (char *)y + l * bytes);
}

/* Begin the sums of leaves [leaf, leaf + leaves), whose terms are [P, their positions, C]. */
static enum tess_status gpt_sum_leaves(const struct gpt_state *gpt, const struct tess_pass *pass,
                                       int64_t leaf, int64_t leaves, void *terms, void *y)
{
    const int64_t count = gpt->leaf_length * gpt->width;
    const int64_t bytes = count * (int64_t)tess_dtype_bytes(pass->dtype);
    char *from = (char *)terms + leaf * gpt->axis.count * bytes;
    if (!gpt->axis.sequence)
        return tess_pass_sum_begin(pass, leaves * count, from, (char *)y + leaf * bytes);
    for (int64_t l = 0; l < leaves; l++)
        TESS_TRY(tess_pass_sum_begin(pass, count, from + l * bytes,
                                     (char *)y + (leaf + l) * (bytes / gpt->axis.rank_count)));
    return TESS_OK;
}

enum tess_status tess__gpt_sum_begin(const struct gpt_state *gpt, const struct tess_pass *pass,
                                     void *terms, void *y)
{
    return gpt_sum_leaves(gpt, pass, 0, gpt->leaves, terms, y);
}

enum tess_status tess__gpt_sum(const struct gpt_state *gpt, const struct tess_pass *pass,
                               void *terms, void *y)
{
    TESS_TRY(tess__gpt_sum_begin(gpt, pass, terms, y));
    return tess_pass_sum_end(pass);
}

enum tess_status tess__gpt_sum_runs(const struct gpt_state *gpt, const struct tess_pass *pass,
                                    const struct tess__layer *layer, const void *x, void *terms,
                                    void *y)
{
    const int64_t leaves = gpt->leaves / gpt->runs, positions = leaves * gpt->leaf_length;
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    const int64_t in = positions * layer->in_count * word;
    const int64_t out = positions * layer->out_count * word;
    for (int32_t r = 0; r < gpt->runs; r++) {
        for (int32_t p = 0; p < gpt->axis.count; p++)
            TESS_TRY(tess__layer_forward_run(pass, layer, p,
                                             (const char *)x + (p * gpt->runs + r) * in,
                                             (char *)terms + (r * gpt->axis.count + p) * out));
        TESS_TRY(gpt_sum_leaves(gpt, pass, r * leaves, leaves, terms, y));
    }
    return tess_pass_sum_end(pass);
}

enum tess_status tess__gpt_widen(const struct gpt_state *gpt, const struct tess_pass *pass,
                                 int32_t room, const void *x, const void **whole_out)
{
    const int64_t count = gpt->leaf_length * gpt->width;
    const int64_t bytes = count * (int64_t)tess_dtype_bytes(pass->dtype);
    *whole_out = gpt->axis.sequence ? pass->tensor[room] : x;
    for (int64_t leaf = 0; gpt->axis.sequence && leaf < gpt->leaves; leaf++)
        TESS_TRY(tess_pass_widen(pass, count,
                                 (const char *)x + leaf * (bytes / gpt->axis.rank_count),
                                 (char *)pass->tensor[room] + leaf * bytes));
    return TESS_OK;
}
