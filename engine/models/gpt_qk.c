/*
 * What model gpt does to q and k between their projection and attention: rotary positions, and
 * before them, where the options say so, an RMS norm of each head with a gain for its D channels
 * that all heads of a kind share (Qwen3; Henry et al. 2020, "Query-key normalization for
 * transformers").
 *
 * Every part of the tensor axis has a term of the gain's gradient. For the same bits on every
 * layout a term is of one leaf; terms are added over the parts, then over the leaves as the tree of
 * tessera/comm.h.
 */
#include "gpt.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>

static const char *const qk_name[2] = {"q", "k"};

static int64_t qk_heads(const struct gpt_state *gpt, int i)
{
    return i == 0 ? gpt->part_heads : gpt->part_kv_heads;
}

/* ---- angles ---------------------------------------------------------------------------------- */

/* The pair that makes so many turns in a context (Peng et al. 2023, "YaRN", section 3.2). */
static double qk_pair(const struct gpt_rope *rope, int64_t head_size, double turns)
{
    return (double)head_size * log((double)rope->context / (turns * 2 * acos(-1))) /
           (2 * log(rope->base));
}

struct tess_rotary tess__gpt_rotary(const struct gpt_rope *rope, int64_t head_size, int64_t length)
{
    struct tess_rotary rotary = {.base = (float)rope->base, .factor = (float)rope->factor};
    const double size = (double)head_size;
    if (rope->scaling == GPT_SCALING_OFF)
        rotary.factor = 1;
    if (rope->scaling == GPT_SCALING_DYNAMIC) {
        /* The base is such that the slowest pair turns in `length` positions as it did in
         * `context`, for factor 1. */
        const double longer = length > rope->context ? (double)length / (double)rope->context : 1;
        rotary.base = (float)(rope->base *
                              pow(rope->factor * longer - (rope->factor - 1), size / (size - 2)));
        rotary.factor = 1;
    }
    if (rope->scaling == GPT_SCALING_LLAMA3) {
        rotary.kept = TESS_ROTARY_BY_TURNS;
        rotary.low = (float)rope->low;
        rotary.high = (float)rope->high;
        rotary.positions = (float)rope->context;
    }
    if (rope->scaling == GPT_SCALING_YARN) {
        double low = qk_pair(rope, head_size, rope->high);
        double high = qk_pair(rope, head_size, rope->low);
        low = fmax(rope->whole ? floor(low) : low, 0);
        high = fmin(rope->whole ? ceil(high) : high, size - 1);
        rotary.kept = TESS_ROTARY_BY_PAIR;
        rotary.low = (float)low;
        rotary.high = (float)(high == low ? high + 0.001 : high);
        rotary.amplitude = (float)rope->amplitude;
    }
    return rotary;
}

/* ---- declaration ----------------------------------------------------------------------------- */

void tess__gpt_declare_qk(const struct gpt_state *gpt, struct tess_declare *declare, int32_t layer,
                          struct gpt_block *block)
{
    const struct tess_init one = {TESS_INIT_ONE, 0};
    const int64_t parts = gpt->axis.count, size = gpt->head_size;
    block->gains_grad = -1;
    for (int i = 0; i < 2; i++) {
        struct gpt_qk *qk = &block->qk[i];
        const int64_t rows = gpt->leaf_length * qk_heads(gpt, i);
        const struct tess_op_desc desc = {.kind = TESS_OP_NORM,
                                          .rows = rows,
                                          .leaf_rows = rows,
                                          .in = size,
                                          .out = size,
                                          .rms = true,
                                          .epsilon = gpt->epsilon,
                                          .calls = (int32_t)(gpt->leaves * parts)};
        char text[64];
        *qk = (struct gpt_qk){.op = -1, .gain = -1, .turned = -1, .rstd = -1};
        if (!gpt->qk_norm)
            continue;
        snprintf(text, sizeof(text), "model.layers.%d.self_attn.%s_norm.weight", layer, qk_name[i]);
        qk->gain = tess_declare_param(declare, text, tess_shape1(size), one, TESS_PARAM_NO_DECAY);
        qk->op = tess_declare_op(declare, &desc, false);
        snprintf(text, sizeof(text), "%s.turned", qk_name[i]);
        qk->turned = tess_declare_tensor(declare, text, gpt->dtype,
                                         tess_shape3(parts, gpt->length, gpt->project_stride[i]),
                                         TESS_LIFE_REMADE);
        snprintf(text, sizeof(text), "%s.rstd", qk_name[i]);
        qk->rstd =
            tess_declare_tensor(declare, text, TESS_F32,
                                tess_shape3(parts, gpt->length, qk_heads(gpt, i)), TESS_LIFE_SAVED);
    }
    if (!gpt->qk_norm || gpt->decode)
        return;
    block->gains_grad = tess_declare_tensor(
        declare, "gains.grad", TESS_F32, tess_shape4(parts, gpt->leaves, 2, size), TESS_LIFE_CALL);
    if (gpt->lora.rank == 0)
        tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_F32, gpt->leaves * 2 * size);
}

/* ---- both directions ------------------------------------------------------------------------- */

/* Rows [row, row + count) of a part, of which each `length` have positions from `position` on. */
static void qk_rope_run(const struct gpt_state *gpt, const struct tess_pass *pass, bool inverse,
                        const struct tess_pass_run *run, int64_t length, void *const qk[2])
{
    const bool both = gpt->project_count == 1; /* k's heads follow q's */
    const size_t word = tess_dtype_bytes(pass->dtype);
    for (int i = 0; i < (both ? 1 : 2); i++)
        tess_rope(pass->kernel, pass->dtype, run->count, length, run->position,
                  gpt->part_heads * (i == 0) + gpt->part_kv_heads * (i == 1 || both),
                  gpt->head_size, gpt->project_stride[i], &gpt->rotary, inverse,
                  (char *)qk[i] + (size_t)(run->row * gpt->project_stride[i]) * word);
}

static void qk_rope(const struct gpt_state *gpt, const struct tess_pass *pass, bool inverse,
                    void *const qk[2])
{
    const struct tess_pass_run all = {.count = gpt->positions};
    if (!gpt->llama)
        return;
    for (int32_t r = 0; gpt->decode && r < pass->run_count; r++)
        qk_rope_run(gpt, pass, inverse, &pass->run[r], pass->run[r].count, qk);
    for (int32_t d = 0; pass->document != NULL && d < pass->document_count; d++) {
        const int64_t row = pass->document[d], count = pass->document[d + 1] - row;
        const struct tess_pass_run one = {.row = row, .count = count};
        qk_rope_run(gpt, pass, inverse, &one, count, qk);
    }
    if (!gpt->decode && pass->document == NULL)
        qk_rope_run(gpt, pass, inverse, &all, gpt->length, qk);
}

/* Leaf `leaf` of q or k of a part, which are [leaves, positions, heads, D] without gaps. */
static void *qk_leaf(const struct gpt_state *gpt, int i, void *x, int64_t leaf)
{
    const int64_t at = leaf * gpt->leaf_length * gpt->project_stride[i];
    return (char *)x + at * (int64_t)tess_dtype_bytes(gpt->dtype);
}

static float *qk_rstd(const struct gpt_state *gpt, const struct gpt_block *block,
                      const struct tess_pass *pass, int i, int32_t part, int64_t leaf)
{
    const int64_t heads = qk_heads(gpt, i);
    return (float *)pass->tensor[block->qk[i].rstd] + part * gpt->positions * heads +
           leaf * gpt->leaf_length * heads;
}

enum tess_status tess__gpt_turn(const struct gpt_state *gpt, const struct gpt_block *block,
                                const struct tess_pass *pass, int32_t part, void *qk[2])
{
    for (int i = 0; gpt->qk_norm && i < 2; i++) {
        const struct gpt_qk *norm = &block->qk[i];
        void *turned =
            tess__gpt_at(pass, norm->turned, part * gpt->positions * gpt->project_stride[i]);
        for (int64_t l = 0; l < gpt->leaves; l++)
            TESS_TRY(tess_norm_forward(pass->op[norm->op], qk_leaf(gpt, i, qk[i], l), NULL, NULL,
                                       pass->param[norm->gain], NULL, qk_leaf(gpt, i, turned, l),
                                       NULL, qk_rstd(gpt, block, pass, i, part, l)));
        qk[i] = turned;
    }
    qk_rope(gpt, pass, false, qk);
    return TESS_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

static float *qk_gain_grad(const struct gpt_state *gpt, const struct gpt_block *block,
                           const struct tess_pass *pass, int i, int32_t part, int64_t leaf)
{
    return (float *)pass->tensor[block->gains_grad] +
           ((part * gpt->leaves + leaf) * 2 + i) * gpt->head_size;
}

enum tess_status tess__gpt_turn_backward(const struct gpt_state *gpt, const struct gpt_block *block,
                                         const struct tess_pass *pass, int32_t part,
                                         void *const qk[2], void *const grad[2])
{
    qk_rope(gpt, pass, true, grad);
    for (int i = 0; gpt->qk_norm && i < 2; i++) {
        const struct gpt_qk *norm = &block->qk[i];
        for (int64_t l = 0; l < gpt->leaves; l++) {
            void *dx = qk_leaf(gpt, i, grad[i], l);
            TESS_TRY(tess_norm_backward(pass->op[norm->op], qk_leaf(gpt, i, qk[i], l), dx,
                                        pass->param[norm->gain], NULL,
                                        qk_rstd(gpt, block, pass, i, part, l), NULL, dx,
                                        qk_gain_grad(gpt, block, pass, i, part, l), NULL));
        }
    }
    return TESS_OK;
}

enum tess_status tess__gpt_gains_finish(const struct gpt_state *gpt, const struct gpt_block *block,
                                        const struct tess_pass *pass)
{
    const int64_t both = 2 * gpt->head_size, bytes = gpt->head_size * (int64_t)sizeof(float);
    if (!gpt->qk_norm || gpt->lora.rank > 0) /* frozen */
        return TESS_OK;
    float *term = pass->tensor[block->gains_grad];
    TESS_TRY(tess_pass_sum_f32(pass, gpt->leaves * both, term));
    for (int64_t step = 1; step < gpt->leaves; step *= 2)
        for (int64_t l = 0; l + step < gpt->leaves; l += 2 * step)
            tess_accumulate(pass->kernel, both, 1.0f, term + (l + step) * both, term + l * both);
    for (int i = 0; i < 2; i++)
        tess_copy(pass->kernel, bytes, term + i * gpt->head_size, pass->grad[block->qk[i].gain]);
    return TESS_OK;
}
