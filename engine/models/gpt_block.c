/*
 * A block of model gpt:
 *
 *     x -- norm = a -- q, k, v -- (rope) -- attention -- join -- dropout -- + = s
 *      \_____________________________________________________________________/
 *     s -- norm = b -- widen (gate, up) -- GELU (SwiGLU) = g -- narrow -- dropout -- + = y
 *      \____________________________________________________________________________/
 *
 * Column- then row-parallel along the tensor axis: q, k, v and widen are cut by columns, join and
 * narrow by rows, and what lies between belongs to the parts. Heads go to the parts in groups that
 * share keys and values.
 *
 * What is kept from forward to backward, in bytes per position and block, for activations of e
 * bytes, P parts of `parts` on this rank, and M of N positions where the axis does not cut:
 *
 *     M/N (2 C e + S)                      s, y (the next block's x), statistics of the two norms:
 *                                          S = 16, or 8 of RMS norms
 *     P/parts ((2 C + 2 KV D + W F) e + 4 H)   q, k, v, attention's output, the input of the
 *                                          activation (W = 1, SwiGLU 2), log-sum-exp
 *     M/N 2 C e + P/parts F e              a, b, g: remade from s, x and the statistics, and from
 *                                          the activation's input, when recompute is selective
 *
 * For GPT-2 in 16 bits that is 32 C + 16 + 4 H, and 20 C + 16 + 4 H with selective recompute, where
 * Korthikanti et al. ("Reducing activation recomputation in large transformer models", 2022,
 * section 4.1) have 34 C and 5 H T more for the scores of attention.
 */
#include "gpt.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>

/* Places of dropout. */
enum { BLOCK_AFTER_JOIN, BLOCK_AFTER_NARROW };

/* ---- declaration ----------------------------------------------------------------------------- */

struct block_names {
    const char *norm[2], *project[GPT_PROJECTIONS_MAX], *join, *widen[2], *narrow;
};

static const struct block_names block_gpt2 = {
    .norm = {"ln_1", "ln_2"},
    .project = {"attn.c_attn"},
    .join = "attn.c_proj",
    .widen = {"mlp.c_fc"},
    .narrow = "mlp.c_proj",
};
static const struct block_names block_llama = {
    .norm = {"input_layernorm", "post_attention_layernorm"},
    .project = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .join = "self_attn.o_proj",
    .widen = {"mlp.gate_proj", "mlp.up_proj"},
    .narrow = "mlp.down_proj",
};

static int32_t block_project_count(const struct gpt_state *gpt)
{
    return gpt->llama ? 3 : 1;
}

static int32_t block_widen_count(const struct gpt_state *gpt)
{
    return gpt->llama ? 2 : 1;
}

/* Heads of a part. */
static int32_t block_heads(const struct gpt_state *gpt)
{
    return gpt->heads / gpt->axis.parts;
}

static int32_t block_kv_heads(const struct gpt_state *gpt)
{
    return gpt->kv_heads / gpt->axis.parts;
}

/* Channels of a part's projection `i`, all heads: q, k or v, or in GPT-2 all of them. */
static int64_t block_projected(const struct gpt_state *gpt, int32_t i)
{
    if (!gpt->llama)
        return 3 * block_heads(gpt) * gpt->head_size;
    return (i == 0 ? block_heads(gpt) : block_kv_heads(gpt)) * gpt->head_size;
}

static void block_declare_cut(const struct gpt_state *gpt, struct tess_declare *declare,
                              int32_t layer, const char *name, int64_t in, int64_t out,
                              bool by_rows, struct tess__cut *cut_out)
{
    const double residual = by_rows ? sqrt(2.0 * gpt->layers) : 1;
    char text[64];
    struct tess__cut_desc desc = {
        .name = text,
        .in = in,
        .out = out,
        .rows = gpt->positions,
        .leaf_rows = gpt->leaf_length,
        .by_rows = by_rows,
        .bias = !gpt->llama,
        .blocks = 1,
        .gelu = name == block_gpt2.narrow,
        .flags = gpt->llama ? 0 : TESS_PARAM_TRANSPOSED,
        .init = {TESS_INIT_NORMAL, (float)(gpt->deviation / residual)},
    };
    if (!gpt->llama && name == block_gpt2.project[0])
        desc.blocks = 3;
    snprintf(text, sizeof(text), gpt->llama ? "model.layers.%d.%s" : "h.%d.%s", layer, name);
    tess__cut_declare(declare, &gpt->axis, &desc, cut_out);
}

static void block_declare_layers(const struct gpt_state *gpt, struct tess_declare *declare,
                                 int32_t layer, struct gpt_block *block)
{
    const struct block_names *name = gpt->llama ? &block_llama : &block_gpt2;
    const int64_t kv = gpt->kv_heads * gpt->head_size;
    const int64_t out[GPT_PROJECTIONS_MAX] = {gpt->llama ? gpt->width : 3 * gpt->width, kv, kv};
    char text[64];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), gpt->llama ? "model.layers.%d.%s" : "h.%d.%s", layer,
                 name->norm[i]);
        tess__gpt_declare_norm(gpt, declare, text, &block->norm[i]);
        if (i == 0) {
            for (int32_t p = 0; p < block_project_count(gpt); p++)
                block_declare_cut(gpt, declare, layer, name->project[p], gpt->width, out[p], false,
                                  &block->project[p]);
            block_declare_cut(gpt, declare, layer, name->join, gpt->width, gpt->width, true,
                              &block->join);
        }
    }
    for (int32_t w = 0; w < block_widen_count(gpt); w++)
        block_declare_cut(gpt, declare, layer, name->widen[w], gpt->width, gpt->ffn, false,
                          &block->widen[w]);
    block_declare_cut(gpt, declare, layer, name->narrow, gpt->ffn, gpt->width, true,
                      &block->narrow);
}

static struct tess_op_desc block_attention_desc(const struct gpt_state *gpt)
{
    const int64_t q_stride = block_projected(gpt, 0);
    return (struct tess_op_desc){.kind = TESS_OP_ATTENTION,
                                 .calls = gpt->axis.count,
                                 .dtype = gpt->dtype,
                                 .in = gpt->head_size,
                                 .out = gpt->head_size,
                                 .length = gpt->length,
                                 .heads = block_heads(gpt),
                                 .kv_heads = block_kv_heads(gpt),
                                 .q_stride = q_stride,
                                 .kv_stride = gpt->llama ? block_projected(gpt, 1) : q_stride};
}

/* A tensor of the run's type, `count` elements per row. */
static int32_t block_tensor(const struct gpt_state *gpt, struct tess_declare *declare,
                            const char *name, int64_t count, enum tess_life life)
{
    return tess_declare_tensor(declare, name, gpt->dtype, tess_shape1(count), life);
}

static void block_declare_tensors(const struct gpt_state *gpt, struct tess_declare *declare,
                                  struct gpt_block *block)
{
    static const char *const projected[2][GPT_PROJECTIONS_MAX] = {{"qkv"}, {"q", "k", "v"}};
    static const char *const grad[2][GPT_PROJECTIONS_MAX] = {{"qkv.grad"},
                                                             {"q.grad", "k.grad", "v.grad"}};
    static const char *const hidden[2][2] = {{"hidden"}, {"gate", "up"}};
    const int64_t parts = gpt->axis.count, whole = gpt->length * gpt->width;
    const int64_t own = gpt->own_length * gpt->width, ffn = gpt->ffn / gpt->axis.parts;

    for (int32_t i = 0; i < block_project_count(gpt); i++) {
        const int64_t count = gpt->length * block_projected(gpt, i);
        block->projected[i] =
            block_tensor(gpt, declare, projected[gpt->llama][i], parts * count, TESS_LIFE_SAVED);
        block->projected_grad[i] =
            block_tensor(gpt, declare, grad[gpt->llama][i], count, TESS_LIFE_UNIT);
    }
    block->mixed =
        block_tensor(gpt, declare, "mixed", whole / gpt->axis.parts * parts, TESS_LIFE_SAVED);
    block->lse =
        tess_declare_tensor(declare, "lse", TESS_F32,
                            tess_shape3(parts, block_heads(gpt), gpt->length), TESS_LIFE_SAVED);
    block->middle = block_tensor(gpt, declare, "middle", own, TESS_LIFE_SAVED);
    for (int32_t w = 0; w < block_widen_count(gpt); w++)
        block->hidden[w] = block_tensor(gpt, declare, hidden[gpt->llama][w],
                                        parts * gpt->length * ffn, TESS_LIFE_SAVED);
    block->normed[0] = block_tensor(gpt, declare, "normed1", own, TESS_LIFE_REMADE);
    block->normed[1] = block_tensor(gpt, declare, "normed2", own, TESS_LIFE_REMADE);
    block->active =
        block_tensor(gpt, declare, "active", parts * gpt->length * ffn, TESS_LIFE_REMADE);

    block->dropped = block->term = block->terms = block->whole[0] = block->whole[1] = -1;
    if (gpt->dropout > 0)
        block->dropped = block_tensor(gpt, declare, "dropped", own, TESS_LIFE_UNIT);
    if (gpt->llama)
        block->term = block_tensor(gpt, declare, "term", whole, TESS_LIFE_UNIT);
    if (tess__cut_has_terms(&gpt->axis))
        block->terms = block_tensor(gpt, declare, "terms", parts * whole, TESS_LIFE_UNIT);
    for (int i = 0; i < 2 && gpt->axis.sequence; i++)
        block->whole[i] =
            block_tensor(gpt, declare, i == 0 ? "whole" : "whole.grad", whole, TESS_LIFE_UNIT);
    if (gpt->decode)
        for (int i = 0; i < 2; i++)
            block->kept[i] = tess_declare_tensor(
                declare, i == 0 ? "keys" : "values", gpt->dtype,
                tess_shape3(gpt->context, gpt->kv_heads, gpt->head_size), TESS_LIFE_KEPT);
}

void tess__gpt_declare_block(struct gpt_state *gpt, struct tess_declare *declare, int32_t layer)
{
    struct gpt_block *block = &gpt->block[layer];
    const struct tess_op_desc attention = block_attention_desc(gpt);
    const int64_t count = gpt->positions * gpt->width;
    char unit[16];
    snprintf(unit, sizeof(unit), "h%d", layer);
    tess_declare_unit(declare, unit, tess_shape2(gpt->own_length, gpt->width));
    block_declare_layers(gpt, declare, layer, block);
    block->attention = tess_declare_op(declare, &attention, false);
    block_declare_tensors(gpt, declare, block);
    /* Attention and feed-forward: in forward their input and output; in backward the input once
     * more, the gradient of the output, and that of the input. */
    for (int i = 0; i < 2; i++) {
        tess_declare_crossing(declare, TESS_CALL_FORWARD, TESS_CALL_WIDEN, count);
        tess_declare_crossing(declare, TESS_CALL_FORWARD, TESS_CALL_SUM, count);
        tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_WIDEN, 2 * count);
        tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_SUM, count);
    }
}

/* ---- what both directions need --------------------------------------------------------------- */

/* q, k and v of a part within arrays of projections, which begin at element `at` of their tensors.
 */
static void block_qkv(const struct gpt_state *gpt, const struct tess_pass *pass,
                      const int32_t tensor[GPT_PROJECTIONS_MAX], int32_t part, void *qkv[3])
{
    for (int32_t i = 0; i < 3; i++)
        qkv[i] = gpt->llama ? tess__gpt_at(pass, tensor[i],
                                           part * gpt->positions * block_projected(gpt, i))
                            : tess__gpt_at(pass, tensor[0],
                                           part * gpt->positions * block_projected(gpt, 0) +
                                               i * block_heads(gpt) * gpt->head_size);
}

static void block_rope(const struct gpt_state *gpt, const struct tess_pass *pass, bool inverse,
                       void *q, void *k)
{
    const int64_t first = gpt->decode ? pass->position : 0;
    if (!gpt->llama)
        return;
    tess_rope(pass->kernel, pass->dtype, gpt->positions, gpt->length, first, block_heads(gpt),
              gpt->head_size, block_projected(gpt, 0), gpt->rope_base, inverse, q);
    tess_rope(pass->kernel, pass->dtype, gpt->positions, gpt->length, first, block_kv_heads(gpt),
              gpt->head_size, block_projected(gpt, 1), gpt->rope_base, inverse, k);
}

/* Elements of a part's tensors: attention's output, and the feed-forward layer. */
static int64_t block_mixed_count(const struct gpt_state *gpt)
{
    return gpt->positions * block_heads(gpt) * gpt->head_size;
}

static int64_t block_hidden_count(const struct gpt_state *gpt)
{
    return gpt->positions * (gpt->ffn / gpt->axis.parts);
}

static void block_activate(const struct gpt_state *gpt, const struct gpt_block *block,
                           const struct tess_pass *pass, int32_t part)
{
    const int64_t count = block_hidden_count(gpt);
    const void *hidden = tess__gpt_at(pass, block->hidden[0], part * count);
    void *active = tess__gpt_at(pass, block->active, part * count);
    if (gpt->llama)
        tess_swiglu_forward(pass->kernel, pass->dtype, count, hidden,
                            tess__gpt_at(pass, block->hidden[1], part * count), active);
    else
        tess_gelu_forward(pass->kernel, pass->dtype, count, hidden, active);
}

/* All positions of x [M, C], in scratch `room` where x is not that itself. */
static enum tess_status block_widen(const struct gpt_state *gpt, const struct tess_pass *pass,
                                    int32_t room, const void *x, const void **whole_out)
{
    return tess__cut_widen(pass, gpt->leaf_length * gpt->width, x,
                           room < 0 ? NULL : pass->tensor[room], whole_out);
}

/* Where a part writes its term of the sum that goes to y. */
static void *block_term(const struct gpt_state *gpt, const struct gpt_block *block,
                        const struct tess_pass *pass, int32_t part, void *y)
{
    if (block->terms < 0)
        return y;
    return tess__gpt_at(pass, block->terms, part * gpt->positions * gpt->width);
}

static enum tess_status block_sum(const struct gpt_state *gpt, const struct gpt_block *block,
                                  const struct tess_pass *pass, void *y)
{
    return tess__cut_sum(pass, gpt->leaf_length * gpt->width, block_term(gpt, block, pass, 0, y),
                         y);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void block_decode(const struct gpt_state *gpt, const struct gpt_block *block,
                         const struct tess_pass *pass, void *const qkv[3], void *y)
{
    struct tess_op_desc desc = block_attention_desc(gpt);
    const int64_t row = gpt->kv_heads * gpt->head_size;
    const int64_t bytes = row * (int64_t)tess_dtype_bytes(pass->dtype);
    desc.kv_stride = row;
    for (int i = 0; i < 2; i++)
        tess_copy(pass->kernel, bytes, qkv[1 + i],
                  tess__gpt_at(pass, block->kept[i], pass->position * row));
    tess_attention_decode(pass->kernel, &desc, pass->position, qkv[0], pass->tensor[block->kept[0]],
                          pass->tensor[block->kept[1]], y);
}

/* A part's attention to x [N, C], and its term [N, C] of the sum. */
static enum tess_status block_attend(const struct gpt_state *gpt, const struct gpt_block *block,
                                     const struct tess_pass *pass, int32_t part, const void *x,
                                     void *term)
{
    void *mixed = tess__gpt_at(pass, block->mixed, part * block_mixed_count(gpt));
    float *lse = pass->tensor[block->lse];
    void *qkv[3];
    block_qkv(gpt, pass, block->projected, part, qkv);
    for (int32_t i = 0; i < block_project_count(gpt); i++)
        TESS_TRY(tess__cut_forward(pass, &block->project[i], part, x, qkv[i]));
    block_rope(gpt, pass, false, qkv[0], qkv[1]);
    if (gpt->decode)
        block_decode(gpt, block, pass, qkv, mixed);
    else
        TESS_TRY(tess_attention_forward(pass->op[block->attention], qkv[0], qkv[1], qkv[2], mixed,
                                        lse + part * gpt->positions * block_heads(gpt)));
    return tess__cut_forward(pass, &block->join, part, mixed, term);
}

/* A part's feed-forward of x [N, C], and its term [N, C] of the sum. */
static enum tess_status block_feed(const struct gpt_state *gpt, const struct gpt_block *block,
                                   const struct tess_pass *pass, int32_t part, const void *x,
                                   void *term)
{
    const int64_t count = block_hidden_count(gpt);
    for (int32_t w = 0; w < block_widen_count(gpt); w++)
        TESS_TRY(tess__cut_forward(pass, &block->widen[w], part, x,
                                   tess__gpt_at(pass, block->hidden[w], part * count)));
    block_activate(gpt, block, pass, part);
    return tess__cut_forward(pass, &block->narrow, part,
                             tess__gpt_at(pass, block->active, part * count), term);
}

enum tess_status tess__gpt_block_forward(const struct gpt_state *gpt, const struct gpt_block *block,
                                         const struct tess_pass *pass)
{
    void *middle = pass->tensor[block->middle];
    void *a = pass->tensor[block->normed[0]], *b = pass->tensor[block->normed[1]];
    const void *whole;
    TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[0], pass->input, NULL, NULL, a));
    TESS_TRY(block_widen(gpt, pass, block->whole[0], a, &whole));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(block_attend(gpt, block, pass, p, whole, block_term(gpt, block, pass, p, middle)));
    TESS_TRY(block_sum(gpt, block, pass, middle));
    tess__gpt_dropout(gpt, pass, BLOCK_AFTER_JOIN, middle, middle);

    TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[1], pass->input, middle, middle, b));
    TESS_TRY(block_widen(gpt, pass, block->whole[0], b, &whole));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(
            block_feed(gpt, block, pass, p, whole, block_term(gpt, block, pass, p, pass->output)));
    TESS_TRY(block_sum(gpt, block, pass, pass->output));
    tess__gpt_dropout(gpt, pass, BLOCK_AFTER_NARROW, pass->output, pass->output);
    tess_add(pass->kernel, pass->dtype, gpt->own_positions * gpt->width, middle, pass->output,
             pass->output);
    return TESS_OK;
}

/* ---- backward --------------------------------------------------------------------------------
 * Gradients take the place of what they are the gradient of as soon as that has been read: of the
 * activation's output and input where those are, of attention's output where norm 2's output was.
 */

/* Backward of layers that share the input x: dx = the sum of their terms. */
static enum tess_status block_shared_backward(const struct gpt_state *gpt,
                                              const struct gpt_block *block,
                                              const struct tess_pass *pass,
                                              const struct tess__cut *cut, int32_t count,
                                              int32_t part, const void *x, void *const *dy,
                                              void *dx)
{
    TESS_TRY(tess__cut_backward(pass, &cut[0], part, x, dy[0], dx));
    for (int32_t i = 1; i < count; i++) {
        void *term = pass->tensor[block->term];
        TESS_TRY(tess__cut_backward(pass, &cut[i], part, x, dy[i], term));
        tess_add(pass->kernel, pass->dtype, gpt->positions * gpt->width, dx, term, dx);
    }
    return TESS_OK;
}

static enum tess_status block_feed_backward(const struct gpt_state *gpt,
                                            const struct gpt_block *block,
                                            const struct tess_pass *pass, int32_t part,
                                            const void *x, const void *dy, void *dx)
{
    const int64_t count = block_hidden_count(gpt);
    void *active = tess__gpt_at(pass, block->active, part * count), *hidden[2] = {NULL, NULL};
    for (int32_t w = 0; w < block_widen_count(gpt); w++)
        hidden[w] = tess__gpt_at(pass, block->hidden[w], part * count);
    if (pass->remake)
        block_activate(gpt, block, pass, part);
    if (gpt->llama) {
        TESS_TRY(tess__cut_backward(pass, &block->narrow, part, active, dy, active));
        tess_swiglu_backward(pass->kernel, pass->dtype, count, hidden[0], hidden[1], active,
                             hidden[0], hidden[1]);
    } else {
        TESS_TRY(
            tess__cut_backward_gelu(pass, &block->narrow, part, active, dy, hidden[0], active));
        hidden[0] = active;
    }
    return block_shared_backward(gpt, block, pass, block->widen, block_widen_count(gpt), part, x,
                                 hidden, dx);
}

static enum tess_status block_attend_backward(const struct gpt_state *gpt,
                                              const struct gpt_block *block,
                                              const struct tess_pass *pass, int32_t part,
                                              const void *x, const void *dy, void *dx)
{
    void *mixed = tess__gpt_at(pass, block->mixed, part * block_mixed_count(gpt));
    /* As large as this rank's parts of attention's output, and read already. */
    void *mixed_grad = tess__gpt_at(pass, block->normed[1], part * block_mixed_count(gpt));
    const float *lse = pass->tensor[block->lse];
    void *qkv[3], *grad[3];

    block_qkv(gpt, pass, block->projected, part, qkv);
    block_qkv(gpt, pass, block->projected_grad, 0, grad);
    TESS_TRY(tess__cut_backward(pass, &block->join, part, mixed, dy, mixed_grad));
    TESS_TRY(tess_attention_backward(pass->op[block->attention], qkv[0], qkv[1], qkv[2], mixed,
                                     mixed_grad, lse + part * gpt->positions * block_heads(gpt),
                                     grad[0], grad[1], grad[2]));
    block_rope(gpt, pass, true, grad[0], grad[1]);
    return block_shared_backward(gpt, block, pass, block->project, block_project_count(gpt), part,
                                 x, grad, dx);
}

/* The gradient of what was dropped at `site`, all positions of it. dy stays. */
static enum tess_status block_dropped(const struct gpt_state *gpt, const struct gpt_block *block,
                                      const struct tess_pass *pass, int32_t site, const void *dy,
                                      const void **whole_out)
{
    const void *grad = dy;
    if (block->dropped >= 0) {
        tess__gpt_dropout(gpt, pass, site, dy, pass->tensor[block->dropped]);
        grad = pass->tensor[block->dropped];
    }
    return block_widen(gpt, pass, block->whole[1], grad, whole_out);
}

enum tess_status tess__gpt_block_backward(const struct gpt_state *gpt,
                                          const struct gpt_block *block,
                                          const struct tess_pass *pass)
{
    void *middle = pass->tensor[block->middle], *ds = pass->output_grad_scratch;
    void *a = pass->tensor[block->normed[0]], *b = pass->tensor[block->normed[1]];
    void *dx = pass->input_grad;
    const void *dy, *x;
    if (pass->remake) {
        TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[0], pass->input, NULL, NULL, a));
        TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[1], middle, NULL, NULL, b));
    }
    TESS_TRY(block_dropped(gpt, block, pass, BLOCK_AFTER_NARROW, pass->output_grad, &dy));
    TESS_TRY(block_widen(gpt, pass, block->whole[0], b, &x));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(
            block_feed_backward(gpt, block, pass, p, x, dy, block_term(gpt, block, pass, p, dx)));
    TESS_TRY(block_sum(gpt, block, pass, dx));
    TESS_TRY(tess__gpt_norm_backward(pass, &block->norm[1], middle, dx, pass->output_grad, ds));

    TESS_TRY(block_dropped(gpt, block, pass, BLOCK_AFTER_JOIN, ds, &dy));
    TESS_TRY(block_widen(gpt, pass, block->whole[0], a, &x));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(
            block_attend_backward(gpt, block, pass, p, x, dy, block_term(gpt, block, pass, p, dx)));
    TESS_TRY(block_sum(gpt, block, pass, dx));
    return tess__gpt_norm_backward(pass, &block->norm[0], pass->input, dx, ds, dx);
}
