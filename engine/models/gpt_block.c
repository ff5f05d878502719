/*
 * A block of model gpt:
 *
 *     x -- norm = a -- q, k, v -- (turn) -- attention -- join -- dropout -- + = s
 *      \_____________________________________________________________________/
 *     s -- norm = b -- widen (gate, up) -- GELU (SwiGLU) = g -- narrow -- dropout -- + = y
 *      \____________________________________________________________________________/
 *
 * Column- then row-parallel along the tensor axis: q, k, v and widen are cut by columns, join and
 * narrow by rows, and what lies between belongs to the parts. Heads go to the parts in groups that
 * share keys and values. q, k and v are one product in GPT-2, and in Llama where the kernel asks
 * for it and their weights can be stacked; so are gate and up.
 *
 * What is kept from forward to backward, in bytes per position and block, for activations of e
 * bytes, P parts of `parts` on this rank, and M of N positions where the axis does not cut:
 *
 *     M/N (2 C e + S)                      s, y (the next block's x), statistics of the two norms:
 *                                          S = 16, or 8 of RMS norms
 *     P/parts ((2 H D + 2 KV D + W F) e + 4 H)  q, k, v, attention's output, the input of the
 *                                          activation (W = 1, SwiGLU 2), log-sum-exp
 *     M/N 2 C e + P/parts F e              a, b, g: remade from s, x and the statistics, and from
 *                                          the activation's input, when recompute is selective
 *
 * With norms of heads q and k are there twice, and 4 (H + KV) more for their statistics.
 *
 * For GPT-2 in 16 bits that is 32 C + 16 + 4 H, and 20 C + 16 + 4 H with selective recompute, where
 * Korthikanti et al. ("Reducing activation recomputation in large transformer models", 2022,
 * section 4.1) have 34 C and 5 H T more for the scores of attention.
 */
#include "gpt.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* Layers of a block that have been declared, for their adapters; the names live here. */
struct block_layers {
    struct tess__layer_desc desc[GPT_ADAPTERS];
    char block[32]; /* name of the block: "h.3" */
    char name[GPT_ADAPTERS][TESS_STACK_MAX][TESS__LAYER_NAME];
};

/* `count` weights name[i] of out[i] outputs as one product; `at`: the adapter beside it. */
static void block_declare_cut(const struct gpt_state *gpt, struct tess_declare *declare,
                              const char *const *name, int32_t count, int64_t in,
                              const int64_t *out, enum tess__split split, int at,
                              struct block_layers *layers, struct tess__layer *layer_out)
{
    const double residual = split == TESS_SPLIT_ROWS ? sqrt(2.0 * gpt->layers) : 1;
    const bool is_project = name == &block_llama.project[0] || name == &block_llama.project[1] ||
                            name == &block_llama.project[2];
    const bool is_feed = name != &block_llama.join && !is_project;
    const bool bias = !gpt->llama || (is_project && gpt->qkv_bias) ||
                      (name == &block_llama.join && gpt->out_bias) || (is_feed && gpt->mlp_bias);
    struct tess__layer_desc desc[TESS_STACK_MAX];
    for (int32_t i = 0; i < count; i++) {
        desc[i] = (struct tess__layer_desc){
            .name = tess__layer_name(layers->name[at][i], layers->block, name[i]),
            .op = {.kind = TESS_OP_LINEAR,
                   .dtype = gpt->dtype,
                   .rows = gpt->positions,
                   .leaf_rows = gpt->leaf_length,
                   .in = in,
                   .out = out[i],
                   .frozen = gpt->lora.rank > 0,
                   .gelu = name == &block_gpt2.narrow && !gpt->erf,
                   .calls = gpt->axis.count},
            .init = {TESS_INIT_NORMAL, (float)(gpt->deviation / residual)},
            .flags = gpt->llama ? 0 : TESS_PARAM_TRANSPOSED,
            .bias = bias,
            .split = split,
            .runs = split == TESS_SPLIT_ROWS ? gpt->runs : 1,
            .blocks = name == block_gpt2.project ? 3 : 1,
        };
    }
    layers->desc[at] = desc[0];
    tess__layer_declare_stack(declare, &gpt->axis, desc, count, layer_out);
}

/* Behind the frozen parameters, so that the unit's trained ones are one segment. */
static void block_declare_adapters(const struct gpt_state *gpt, struct tess_declare *declare,
                                   const struct block_layers *layers, struct gpt_block *block)
{
    int64_t room = 0;
    for (int i = 0; i < GPT_ADAPTERS; i++) {
        struct tess__adapter *adapter = &block->adapter[i];
        *adapter = (struct tess__adapter){.rank = 0};
        if (layers->desc[i].name != NULL)
            tess__adapter_declare(declare, &gpt->axis, &gpt->lora, &layers->desc[i], adapter);
        if (tess__adapter_room(adapter) > room)
            room = tess__adapter_room(adapter);
    }
    if (room == 0)
        return;
    const int32_t tensor = tess_declare_tensor(declare, "adapter.room", gpt->dtype,
                                               tess_shape2(gpt->length, room), TESS_LIFE_UNIT);
    for (int i = 0; i < GPT_ADAPTERS; i++)
        block->adapter[i].room = tensor;
}

enum tess_status tess__gpt_check_lora(const struct gpt_state *gpt)
{
    const struct block_names *name = gpt->llama ? &block_llama : &block_gpt2;
    const char *const all[] = {name->project[0], name->project[1], name->project[2], name->join,
                               name->widen[0],   name->widen[1],   name->narrow};
    if (gpt->lora.rank == 0 || strcmp(gpt->lora.targets, "all") == 0)
        return TESS_OK;
    if (gpt->lora.targets[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "--lora.targets names no layer: give names, or all");
    const char *at = gpt->lora.targets;
    do {
        const int length = (int)strcspn(at, ",");
        char one[64];
        snprintf(one, sizeof(one), "%.*s", length, at);
        const struct tess_lora lora = {.rank = 1, .targets = one};
        bool known = false;
        for (size_t i = 0; i < sizeof(all) / sizeof(*all) && strcmp(one, "all") != 0; i++)
            known = known || (all[i] != NULL && tess__adapter_is_target(&lora, all[i]));
        if (!known)
            TESS_FAIL(TESS_ERR_USAGE, "--lora.targets: the model has no layer '%.*s'; it has %s",
                      length, at,
                      gpt->llama ? "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
                                 : "c_attn, c_proj (attn.c_proj, mlp.c_proj), c_fc");
        at += length;
    } while (*at++ == ',');
    return TESS_OK;
}

static void block_declare_layers(const struct gpt_state *gpt, struct tess_declare *declare,
                                 int32_t layer, struct gpt_block *block)
{
    const struct block_names *name = gpt->llama ? &block_llama : &block_gpt2;
    const int64_t kv = gpt->kv_heads * gpt->head_size;
    const int64_t mixed = gpt->heads * gpt->head_size;
    const int64_t out[GPT_PROJECTIONS_MAX] = {gpt->llama ? mixed : 3 * mixed, kv, kv};
    const int64_t wide[2] = {gpt->ffn, gpt->ffn};
    const int32_t of_project = (gpt->llama ? 3 : 1) / gpt->project_count; /* weights of a product */
    const int32_t of_widen = (gpt->llama ? 2 : 1) / gpt->widen_count;
    struct block_layers layers;
    char text[TESS__LAYER_NAME];
    memset(layers.desc, 0, sizeof(layers.desc));
    snprintf(layers.block, sizeof(layers.block), gpt->llama ? "model.layers.%d" : "h.%d", layer);
    for (int i = 0; i < 2; i++) {
        tess__gpt_declare_norm(gpt, declare, tess__layer_name(text, layers.block, name->norm[i]),
                               &block->norm[i]);
        if (i == 0) {
            for (int32_t p = 0; p < gpt->project_count; p++)
                block_declare_cut(gpt, declare, &name->project[p], of_project, gpt->width, &out[p],
                                  TESS_SPLIT_COLUMNS, GPT_ADAPTER_PROJECT + p, &layers,
                                  &block->project[p]);
            tess__gpt_declare_qk(gpt, declare, layer, block);
            block_declare_cut(gpt, declare, &name->join, 1, mixed, &gpt->width, TESS_SPLIT_ROWS,
                              GPT_ADAPTER_JOIN, &layers, &block->join);
        }
    }
    for (int32_t w = 0; w < gpt->widen_count; w++)
        block_declare_cut(gpt, declare, &name->widen[w], of_widen, gpt->width, &wide[w],
                          TESS_SPLIT_COLUMNS, GPT_ADAPTER_WIDEN + w, &layers, &block->widen[w]);
    block_declare_cut(gpt, declare, &name->narrow, 1, gpt->ffn, &gpt->width, TESS_SPLIT_ROWS,
                      GPT_ADAPTER_NARROW, &layers, &block->narrow);
    block_declare_adapters(gpt, declare, &layers, block);
}

/* Elements of a position that decode keeps, of keys and of values of a part. */
static int64_t block_kept_row(const struct gpt_state *gpt)
{
    return gpt->part_kv_heads * gpt->head_size;
}

static struct tess_op_desc block_attention_desc(const struct gpt_state *gpt, int32_t layer)
{
    struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                .calls = gpt->axis.count,
                                .dtype = gpt->dtype,
                                .in = gpt->head_size,
                                .out = gpt->head_size,
                                .dropout = (float)gpt->attention_dropout,
                                .length = gpt->length,
                                .heads = gpt->part_heads,
                                .kv_heads = gpt->part_kv_heads,
                                .q_stride = gpt->project_stride[0],
                                .kv_stride = gpt->project_stride[1]};
    if (gpt->decode) {
        desc.decode = true;
        desc.rows = gpt->positions;
        desc.length = gpt->kept;
        desc.kv_stride = block_kept_row(gpt);
    }
    if (layer >= gpt->window_from && gpt->window < desc.length)
        desc.window = (int32_t)gpt->window;
    return desc;
}

static void block_declare_tensors(const struct gpt_state *gpt, struct tess_declare *declare,
                                  struct gpt_block *block)
{
    const bool terms = tess__layer_has_terms(&gpt->axis);
    const bool three = gpt->project_count > 1, two = gpt->widen_count > 1;
    const int64_t parts = gpt->axis.count, whole = gpt->length * gpt->width;
    const int64_t own = gpt->own_length * gpt->width, active = parts * gpt->hidden / gpt->rows;
    const int64_t hidden = parts * gpt->length * gpt->hidden_stride;
    const int64_t q = gpt->length * gpt->project_stride[0];
    const int64_t kv = gpt->length * gpt->project_stride[1];
    const int64_t mixed = gpt->length * gpt->part_heads * gpt->head_size; /* of a part */
    const int64_t kept = parts * gpt->sequences * gpt->kept * block_kept_row(gpt);
    const struct {
        bool there;
        const char *name;
        int32_t *index;
        int64_t count; /* per row, in the run's type */
        enum tess_life life;
    } tensor[] = {
        {true, three ? "q" : "qkv", &block->projected[0], parts * q, TESS_LIFE_SAVED},
        {true, three ? "q.grad" : "qkv.grad", &block->projected_grad[0], q, TESS_LIFE_UNIT},
        {three, "k", &block->projected[1], parts * kv, TESS_LIFE_SAVED},
        {three, "k.grad", &block->projected_grad[1], kv, TESS_LIFE_UNIT},
        {three, "v", &block->projected[2], parts * kv, TESS_LIFE_SAVED},
        {three, "v.grad", &block->projected_grad[2], kv, TESS_LIFE_UNIT},
        {true, "mixed", &block->mixed, parts * mixed, TESS_LIFE_SAVED},
        {mixed * gpt->axis.parts != whole, "mixed.grad", &block->mixed_grad, mixed, TESS_LIFE_UNIT},
        {true, "lse", &block->lse, parts * gpt->part_heads * gpt->length, TESS_LIFE_SAVED},
        {true, "middle", &block->middle, own, TESS_LIFE_SAVED},
        {true, two ? "gate" : "hidden", &block->hidden[0], hidden, TESS_LIFE_SAVED},
        {two, "up", &block->hidden[1], hidden, TESS_LIFE_SAVED},
        {true, "normed1", &block->normed[0], own, TESS_LIFE_REMADE},
        {true, "normed2", &block->normed[1], own, TESS_LIFE_REMADE},
        {true, "active", &block->active, active, TESS_LIFE_REMADE},
        {gpt->dropout > 0, "dropped", &block->dropped, own, TESS_LIFE_UNIT},
        {three || two, "term", &block->term, whole, TESS_LIFE_UNIT},
        {terms, "terms", &block->terms, parts * whole, TESS_LIFE_UNIT},
        {gpt->axis.sequence, "whole", &block->whole[0], whole, TESS_LIFE_UNIT},
        {gpt->axis.sequence, "whole.grad", &block->whole[1], whole, TESS_LIFE_UNIT},
        {gpt->decode, "keys", &block->kept[0], kept, TESS_LIFE_KEPT},
        {gpt->decode, "values", &block->kept[1], kept, TESS_LIFE_KEPT},
    };
    for (size_t t = 0; t < sizeof(tensor) / sizeof(*tensor); t++) {
        const enum tess_dtype dtype = tensor[t].index == &block->lse ? TESS_F32 : gpt->dtype;
        *tensor[t].index = -1;
        if (tensor[t].there)
            *tensor[t].index = tess_declare_tensor(declare, tensor[t].name, dtype,
                                                   tess_shape1(tensor[t].count), tensor[t].life);
    }
}

void tess__gpt_declare_block(struct gpt_state *gpt, struct tess_declare *declare, int32_t layer)
{
    struct gpt_block *block = &gpt->block[layer];
    const struct tess_op_desc attention = block_attention_desc(gpt, layer);
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

/* q, k and v of a part: in tensors of their own, or side by side in one. */
static void block_qkv(const struct gpt_state *gpt, const struct tess_pass *pass,
                      const int32_t tensor[GPT_PROJECTIONS_MAX], int32_t part, void *qkv[3])
{
    for (int32_t i = 0, heads = 0; i < 3; i++) {
        const int64_t row = part * gpt->positions * gpt->project_stride[i > 0];
        qkv[i] = gpt->project_count > 1
                     ? tess__gpt_at(pass, tensor[i], row)
                     : tess__gpt_at(pass, tensor[0], row + heads * gpt->head_size);
        heads += i == 0 ? gpt->part_heads : gpt->part_kv_heads;
    }
}

/* gate and up of a part likewise; hidden[1] is NULL where there is one. */
static void block_hidden(const struct gpt_state *gpt, const struct gpt_block *block,
                         const struct tess_pass *pass, int32_t part, void *hidden[2])
{
    const int64_t row = part * gpt->positions * gpt->hidden_stride;
    hidden[0] = tess__gpt_at(pass, block->hidden[0], row);
    hidden[1] = NULL;
    if (gpt->llama)
        hidden[1] = gpt->widen_count > 1
                        ? tess__gpt_at(pass, block->hidden[1], row)
                        : tess__gpt_at(pass, block->hidden[0], row + gpt->hidden_stride / 2);
}

static void block_activate(const struct gpt_state *gpt, const struct gpt_block *block,
                           const struct tess_pass *pass, int32_t part)
{
    void *active = tess__gpt_at(pass, block->active, part * gpt->hidden), *hidden[2];
    block_hidden(gpt, block, pass, part, hidden);
    const int64_t width = gpt->hidden / gpt->positions;
    if (gpt->geglu)
        tess_geglu_forward(pass->kernel, pass->dtype, gpt->positions, width, gpt->hidden_stride,
                           gpt->erf, hidden[0], hidden[1], active);
    else if (gpt->llama)
        tess_swiglu_forward(pass->kernel, pass->dtype, gpt->positions, width, gpt->hidden_stride,
                            hidden[0], hidden[1], active);
    else
        (gpt->erf ? tess_gelu_erf_forward : tess_gelu_forward)(pass->kernel, pass->dtype,
                                                               gpt->hidden, hidden[0], active);
}

/* Where a part writes its term of the sum that goes to y. */
static void *block_term(const struct gpt_state *gpt, const struct gpt_block *block,
                        const struct tess_pass *pass, int32_t part, void *y)
{
    if (block->terms < 0)
        return y;
    return tess__gpt_at(pass, block->terms, part * gpt->positions * gpt->width);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Keep the keys and values of a part, and attend to what is kept of each row's sequence. */
static enum tess_status block_decode(const struct gpt_state *gpt, const struct gpt_block *block,
                                     const struct tess_pass *pass, int32_t part, void *const qkv[3],
                                     void *y)
{
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    const int64_t row = block_kept_row(gpt), bytes = row * word;
    const int64_t q_bytes = gpt->project_stride[0] * word, kv_bytes = gpt->project_stride[1] * word;
    for (const struct tess_pass_run *run = pass->run; run < pass->run + pass->run_count; run++) {
        const int64_t begin = (part * gpt->sequences + run->sequence) * gpt->kept;
        char *kept[2];
        for (int i = 0; i < 2; i++) {
            kept[i] = tess__gpt_at(pass, block->kept[i], begin * row);
            for (int64_t r = 0; r < run->count; r++)
                tess_copy(pass->kernel, bytes, (const char *)qkv[1 + i] + (run->row + r) * kv_bytes,
                          kept[i] + (run->position + r) * bytes);
        }
        TESS_TRY(
            tess_attention_decode(pass->op[block->attention], run->position, run->count,
                                  (const char *)qkv[0] + run->row * q_bytes, kept[0], kept[1],
                                  (char *)y + run->row * gpt->part_heads * gpt->head_size * word));
    }
    return TESS_OK;
}

/* The operation, with what this pass drops of a part's probabilities. */
static struct tess_op *block_attention(const struct gpt_state *gpt, const struct gpt_block *block,
                                       const struct tess_pass *pass, int32_t part)
{
    struct tess_op *op = pass->op[block->attention];
    op->drop = (struct tess_attention_drop){.on = pass->training && gpt->attention_dropout > 0,
                                            .position = pass->row_first * (uint64_t)gpt->length,
                                            .head = (gpt->axis.first + part) * gpt->part_heads,
                                            .heads = gpt->heads};
    tess__dropout_key(pass, op->drop.key);
    return op;
}

/* A part's attention to x [N, C], before it is joined. */
static enum tess_status block_attend(const struct gpt_state *gpt, const struct gpt_block *block,
                                     const struct tess_pass *pass, int32_t part, const void *x)
{
    void *mixed = tess__gpt_at(pass, block->mixed, part * gpt->mixed);
    float *lse = pass->tensor[block->lse];
    void *qkv[3];
    block_qkv(gpt, pass, block->projected, part, qkv);
    for (int32_t i = 0; i < gpt->project_count; i++) {
        TESS_TRY(tess__layer_forward_part(pass, &block->project[i], part, x, qkv[i]));
        TESS_TRY(
            tess__adapter_forward(pass, &block->adapter[GPT_ADAPTER_PROJECT + i], part, x, qkv[i]));
    }
    TESS_TRY(tess__gpt_turn(gpt, block, pass, part, qkv));
    lse += part * gpt->positions * gpt->part_heads;
    struct tess_op *attention = block_attention(gpt, block, pass, part);
    if (gpt->decode)
        return block_decode(gpt, block, pass, part, qkv, mixed);
    if (pass->document != NULL)
        return tess_attention_forward_documents(attention, pass->document, pass->document_count,
                                                qkv[0], qkv[1], qkv[2], mixed, lse);
    return tess_attention_forward(attention, qkv[0], qkv[1], qkv[2], mixed, lse);
}

/* A part's feed-forward of x [N, C], before it is made narrow. */
static enum tess_status block_feed(const struct gpt_state *gpt, const struct gpt_block *block,
                                   const struct tess_pass *pass, int32_t part, const void *x)
{
    void *hidden[2];
    block_hidden(gpt, block, pass, part, hidden);
    for (int32_t w = 0; w < gpt->widen_count; w++) {
        TESS_TRY(tess__layer_forward_part(pass, &block->widen[w], part, x, hidden[w]));
        TESS_TRY(tess__adapter_forward(pass, &block->adapter[GPT_ADAPTER_WIDEN + w], part, x,
                                       hidden[w]));
    }
    block_activate(gpt, block, pass, part);
    return TESS_OK;
}

/* y [M, C] = the sum over the parts of join, or of narrow, of x [P, N, in of a part]. */
static enum tess_status block_close(const struct gpt_state *gpt, const struct gpt_block *block,
                                    const struct tess_pass *pass, const struct tess__layer *layer,
                                    const struct tess__adapter *adapter, int32_t x, void *y)
{
    void *terms = block_term(gpt, block, pass, 0, y);
    if (layer->run_op >= 0 && pass->op[layer->run_op]->desc.fp8 == TESS_FP8_OFF)
        return tess__gpt_sum_runs(gpt, pass, layer, pass->tensor[x], terms, y);
    for (int32_t p = 0; p < gpt->axis.count; p++) {
        const void *from = tess__gpt_at(pass, x, p * gpt->positions * layer->in_count);
        void *term = block_term(gpt, block, pass, p, y);
        TESS_TRY(tess__layer_forward_part(pass, layer, p, from, term));
        TESS_TRY(tess__adapter_forward(pass, adapter, p, from, term));
    }
    TESS_TRY(tess__adapter_forward_end(pass, adapter, terms));
    return tess__gpt_sum(gpt, pass, terms, y);
}

/* The same of narrow where nothing is cut or dropped: plus `add`, in one pass over y. */
static enum tess_status block_close_add(const struct gpt_block *block, const struct tess_pass *pass,
                                        const void *add, void *y)
{
    const struct tess__adapter *adapter = &block->adapter[GPT_ADAPTER_NARROW];
    const void *active = pass->tensor[block->active];
    TESS_TRY(tess__layer_forward_part_add(pass, &block->narrow, 0, active, add, y));
    TESS_TRY(tess__adapter_forward(pass, adapter, 0, active, y));
    return tess__adapter_forward_end(pass, adapter, y);
}

enum tess_status tess__gpt_block_forward(const struct gpt_state *gpt, const struct gpt_block *block,
                                         const struct tess_pass *pass)
{
    void *middle = pass->tensor[block->middle];
    void *a = pass->tensor[block->normed[0]], *b = pass->tensor[block->normed[1]];
    const void *whole;
    /* With dropout, or a sum over parts, between the last product and the residual: after them. */
    const bool fused = gpt->axis.parts == 1 && gpt->dropout <= 0;
    TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[0], pass->input, NULL, NULL, a));
    TESS_TRY(tess__gpt_widen(gpt, pass, block->whole[0], a, &whole));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(block_attend(gpt, block, pass, p, whole));
    TESS_TRY(block_close(gpt, block, pass, &block->join, &block->adapter[GPT_ADAPTER_JOIN],
                         block->mixed, middle));
    tess__gpt_dropout(gpt, pass, BLOCK_AFTER_JOIN, middle, middle);

    TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[1], pass->input, middle, middle, b));
    TESS_TRY(tess__gpt_widen(gpt, pass, block->whole[0], b, &whole));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(block_feed(gpt, block, pass, p, whole));
    if (fused)
        return block_close_add(block, pass, middle, pass->output);
    TESS_TRY(block_close(gpt, block, pass, &block->narrow, &block->adapter[GPT_ADAPTER_NARROW],
                         block->active, pass->output));
    tess__gpt_dropout(gpt, pass, BLOCK_AFTER_NARROW, pass->output, pass->output);
    tess_add(pass->kernel, pass->dtype, gpt->own_positions * gpt->width, middle, pass->output,
             pass->output);
    return TESS_OK;
}

/* ---- backward --------------------------------------------------------------------------------
 * Gradients take the place of what they are the gradient of as soon as that has been read: of the
 * activation's output and input where those are, of attention's output where norm 2's output was.
 */

/* Are the weights' gradients of the layers that share an input computed beside the sum of that of
 * the input? Those of the last part, whose gradients of outputs are still there then. Adapters add
 * to the sum what is known after all parts only. */
static bool block_is_apart(const struct gpt_state *gpt, const struct tess_pass *pass,
                           const struct tess__layer *cut, int32_t part)
{
    return part + 1 == gpt->axis.count && gpt->lora.rank == 0 && tess__layer_is_apart(pass, cut);
}

/* Backward of layers that share the input x: dx = the sum of their terms; without the gradients of
 * their weights where block_is_apart. */
static enum tess_status block_shared_backward(
    const struct gpt_state *gpt, const struct gpt_block *block, const struct tess_pass *pass,
    const struct tess__layer *cut, const struct tess__adapter *adapter, int32_t count, int32_t part,
    const void *x, void *const *dy, void *dx)
{
    for (int32_t i = 0; block_is_apart(gpt, pass, cut, part) && i < count; i++)
        TESS_TRY(tess__layer_backward_data(pass, &cut[i], part, x, dy[i],
                                           i > 0 ? pass->tensor[block->term] : NULL, dx));
    if (block_is_apart(gpt, pass, cut, part))
        return TESS_OK;
    for (int32_t i = 0; i < count; i++)
        TESS_TRY(tess__adapter_backward(pass, &adapter[i], part, x, dy[i]));
    TESS_TRY(tess__layer_backward_part(pass, &cut[0], part, x, dy[0], NULL, dx));
    for (int32_t i = 1; i < count; i++)
        TESS_TRY(tess__layer_backward_onto(pass, &cut[i], part, x, dy[i], pass->tensor[block->term],
                                           dx));
    return TESS_OK;
}

/* What block_shared_backward has left. */
static enum tess_status block_shared_weights(const struct gpt_state *gpt,
                                             const struct tess_pass *pass,
                                             const struct tess__layer *cut, int32_t count,
                                             const void *x, void *const *dy)
{
    const int32_t part = gpt->axis.count - 1;
    for (int32_t i = 0; block_is_apart(gpt, pass, cut, part) && i < count; i++)
        TESS_TRY(tess__layer_backward_weight(pass, &cut[i], part, x, dy[i]));
    return TESS_OK;
}

/* Gradients of a part's gate and up, which are where those were, or of the activation's input. */
static void block_hidden_grad(const struct gpt_state *gpt, const struct gpt_block *block,
                              const struct tess_pass *pass, int32_t part, void *grad[2])
{
    block_hidden(gpt, block, pass, part, grad);
    if (!gpt->llama)
        grad[0] = tess__gpt_at(pass, block->active, part * gpt->hidden);
}

static enum tess_status block_feed_backward(const struct gpt_state *gpt,
                                            const struct gpt_block *block,
                                            const struct tess_pass *pass, int32_t part,
                                            const void *x, const void *dy, void *dx)
{
    void *active = tess__gpt_at(pass, block->active, part * gpt->hidden), *hidden[2];
    block_hidden(gpt, block, pass, part, hidden);
    if (pass->remake)
        block_activate(gpt, block, pass, part);
    const struct tess__adapter *adapter = &block->adapter[GPT_ADAPTER_NARROW];
    /* GELU's backward with the product's. */
    const bool fused = !gpt->llama && !gpt->erf && adapter->rank == 0;
    TESS_TRY(tess__adapter_backward(pass, adapter, part, active, dy));
    TESS_TRY(tess__layer_backward_part(pass, &block->narrow, part, active, dy,
                                       fused ? hidden[0] : NULL, active));
    TESS_TRY(tess__adapter_backward_data(pass, adapter, part, active));
    if (!gpt->llama && !fused)
        (gpt->erf ? tess_gelu_erf_backward : tess_gelu_backward)(
            pass->kernel, pass->dtype, gpt->hidden, hidden[0], active, active);
    const int64_t width = gpt->hidden / gpt->positions;
    if (gpt->geglu)
        tess_geglu_backward(pass->kernel, pass->dtype, gpt->positions, width, gpt->hidden_stride,
                            gpt->erf, hidden[0], hidden[1], active, hidden[0], hidden[1]);
    else if (gpt->llama)
        tess_swiglu_backward(pass->kernel, pass->dtype, gpt->positions, width, gpt->hidden_stride,
                             hidden[0], hidden[1], active, hidden[0], hidden[1]);
    block_hidden_grad(gpt, block, pass, part, hidden);
    return block_shared_backward(gpt, block, pass, block->widen, &block->adapter[GPT_ADAPTER_WIDEN],
                                 gpt->widen_count, part, x, hidden, dx);
}

/* What attention has read of a part. */
static void block_read_qkv(const struct gpt_state *gpt, const struct gpt_block *block,
                           const struct tess_pass *pass, int32_t part, void *const projected[3],
                           void *read[3])
{
    for (int i = 0; i < 3; i++)
        read[i] = i < 2 && gpt->qk_norm
                      ? tess__gpt_at(pass, block->qk[i].turned,
                                     part * gpt->positions * gpt->project_stride[i])
                      : projected[i];
}

static enum tess_status block_attend_backward(const struct gpt_state *gpt,
                                              const struct gpt_block *block,
                                              const struct tess_pass *pass, int32_t part,
                                              const void *x, const void *dy, void *dx)
{
    void *mixed = tess__gpt_at(pass, block->mixed, part * gpt->mixed);
    /* As large as this rank's parts of attention's output where H D is C, and read already. */
    void *mixed_grad = block->mixed_grad < 0
                           ? tess__gpt_at(pass, block->normed[1], part * gpt->mixed)
                           : pass->tensor[block->mixed_grad];
    const float *lse = pass->tensor[block->lse];
    void *projected[3], *qkv[3], *grad[3];

    block_qkv(gpt, pass, block->projected, part, projected);
    block_read_qkv(gpt, block, pass, part, projected, qkv);
    if (pass->remake && gpt->qk_norm) {
        memcpy(qkv, projected, sizeof(qkv));
        TESS_TRY(tess__gpt_turn(gpt, block, pass, part, qkv));
    }
    block_qkv(gpt, pass, block->projected_grad, 0, grad);
    TESS_TRY(tess__adapter_backward(pass, &block->adapter[GPT_ADAPTER_JOIN], part, mixed, dy));
    TESS_TRY(tess__layer_backward_part(pass, &block->join, part, mixed, dy, NULL, mixed_grad));
    TESS_TRY(
        tess__adapter_backward_data(pass, &block->adapter[GPT_ADAPTER_JOIN], part, mixed_grad));
    lse += part * gpt->positions * gpt->part_heads;
    struct tess_op *attention = block_attention(gpt, block, pass, part);
    if (pass->document != NULL)
        TESS_TRY(tess_attention_backward_documents(attention, pass->document, pass->document_count,
                                                   qkv[0], qkv[1], qkv[2], mixed, mixed_grad, lse,
                                                   grad[0], grad[1], grad[2]));
    else
        TESS_TRY(tess_attention_backward(attention, qkv[0], qkv[1], qkv[2], mixed, mixed_grad, lse,
                                         grad[0], grad[1], grad[2]));
    TESS_TRY(tess__gpt_turn_backward(gpt, block, pass, part, projected, grad));
    return block_shared_backward(gpt, block, pass, block->project,
                                 &block->adapter[GPT_ADAPTER_PROJECT], gpt->project_count, part, x,
                                 grad, dx);
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
    return tess__gpt_widen(gpt, pass, block->whole[1], grad, whole_out);
}

enum tess_status tess__gpt_block_backward(const struct gpt_state *gpt,
                                          const struct gpt_block *block,
                                          const struct tess_pass *pass)
{
    void *middle = pass->tensor[block->middle], *ds = pass->output_grad_scratch;
    void *a = pass->tensor[block->normed[0]], *b = pass->tensor[block->normed[1]];
    void *dx = pass->input_grad, *grad[3];
    const void *dy, *x;
    if (pass->remake) {
        TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[0], pass->input, NULL, NULL, a));
        TESS_TRY(tess__gpt_norm_forward(pass, &block->norm[1], middle, NULL, NULL, b));
    }
    TESS_TRY(block_dropped(gpt, block, pass, BLOCK_AFTER_NARROW, pass->output_grad, &dy));
    TESS_TRY(tess__gpt_widen(gpt, pass, block->whole[0], b, &x));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(
            block_feed_backward(gpt, block, pass, p, x, dy, block_term(gpt, block, pass, p, dx)));
    for (int32_t w = 0; w < gpt->widen_count; w++)
        TESS_TRY(tess__adapter_backward_end(pass, &block->adapter[GPT_ADAPTER_WIDEN + w], x,
                                            block_term(gpt, block, pass, 0, dx)));
    TESS_TRY(tess__gpt_sum_begin(gpt, pass, block_term(gpt, block, pass, 0, dx), dx));
    block_hidden_grad(gpt, block, pass, gpt->axis.count - 1, grad);
    TESS_TRY(block_shared_weights(gpt, pass, block->widen, gpt->widen_count, x, grad));
    TESS_TRY(tess_pass_sum_end(pass));
    TESS_TRY(tess__gpt_norm_backward(pass, &block->norm[1], middle, dx, pass->output_grad, ds));

    TESS_TRY(block_dropped(gpt, block, pass, BLOCK_AFTER_JOIN, ds, &dy));
    TESS_TRY(tess__gpt_widen(gpt, pass, block->whole[0], a, &x));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(
            block_attend_backward(gpt, block, pass, p, x, dy, block_term(gpt, block, pass, p, dx)));
    for (int32_t i = 0; i < gpt->project_count; i++)
        TESS_TRY(tess__adapter_backward_end(pass, &block->adapter[GPT_ADAPTER_PROJECT + i], x,
                                            block_term(gpt, block, pass, 0, dx)));
    TESS_TRY(tess__gpt_gains_finish(gpt, block, pass));
    TESS_TRY(tess__gpt_sum_begin(gpt, pass, block_term(gpt, block, pass, 0, dx), dx));
    block_qkv(gpt, pass, block->projected_grad, 0, grad);
    TESS_TRY(block_shared_weights(gpt, pass, block->project, gpt->project_count, x, grad));
    TESS_TRY(tess_pass_sum_end(pass));
    return tess__gpt_norm_backward(pass, &block->norm[0], pass->input, dx, ds, dx);
}
