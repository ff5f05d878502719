/*
 * Decoder-only transformers, GPT-2 and Llama as two parameterisations of one chain of units:
 *
 *     tokens - wte - (wpe) - h0 - h1 - ... - norm - head - loss of the next token
 *
 *                     gpt2 (Radford et al. 2019)          llama (Touvron et al. 2023)
 *     positions       learned, unit wpe                   rotary, in attention
 *     norm            layer norm                          RMS norm
 *     feed-forward    GELU, width 4 C                     SwiGLU (or GeGLU), width 8/3 C
 *     biases, tied    yes, yes                            no, no
 *     heads           alike                               query heads may share keys and values
 *
 * Parameters have the names and shapes of Hugging Face's files of the family. Embedding and head
 * are alone in their units because they may be one parameter. Here: options, the chain, embeddings,
 * norms, and what units share. Attention and feed-forward are in gpt_block.c, the head and its loss
 * in gpt_head.c.
 */
#include "gpt.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

/* The vocabulary is padded to a multiple of this, whatever the number of ranks, so that it can be
 * cut into parts and the bits do not depend on how many. */
#define GPT_PAD 128

/* Llama's feed-forward width by default: 8/3 C, for as many parameters as two layers of 4 C, up to
 * a multiple of this. */
#define GPT_FFN_MULTIPLE 64

/* MiB of logits at a time by default. Each chunk reads the weight and writes its gradient in f32
 * once more, which products of a device hide from some 1000 positions on (docs/gpu.md): there, as
 * everywhere, leaves of more than GPT_HEAD_MIB are cut. */
#define GPT_HEAD_MIB        64
#define GPT_HEAD_MIB_DEVICE 1024

struct gpt_options {
    int32_t style; /* gpt2|llama */
    int64_t layers, heads, kv_heads, head_size, width, ffn, vocab, context;
    bool qkv_bias, out_bias, mlp_bias, qk_norm;
    int32_t gelu; /* tanh|erf */
    int32_t gate; /* silu|gelu */
    int64_t window, window_from;
    int32_t tied; /* auto|on|off */
    double dropout, attention_dropout, epsilon, deviation;
    struct gpt_rope rope;
    int64_t head_mib;
};

#define GPT_FIELD(member) offsetof(struct gpt_options, member)

static const struct tess_option gpt_option_table[] = {
    TESS_ROW_CHOICE("style", GPT_FIELD(style), "gpt2", "gpt2|llama",
                    "gpt2: learned positions, layer norm, GELU, biases, tied embedding; llama: "
                    "rotary positions, RMS norm, SwiGLU, no biases, untied"),
    TESS_ROW_INT("layers", GPT_FIELD(layers), "4", 1, GPT_LAYERS_MAX,
                 "blocks of attention and feed-forward"),
    TESS_ROW_INT("heads", GPT_FIELD(heads), "4", 1, 4096, "heads of attention"),
    TESS_ROW_INT(
        "kv-heads", GPT_FIELD(kv_heads), "0", 0, 4096,
        "llama: key and value heads, each shared by heads / kv-heads query heads; 0: heads"),
    TESS_ROW_INT("head-size", GPT_FIELD(head_size), "0", 0, 1 << 16,
                 "llama: channels of a head; 0: width / heads"),
    TESS_ROW_BOOL("qkv-bias", GPT_FIELD(qkv_bias), "off",
                  "llama: biases of queries, keys and values, as Qwen2 has them"),
    TESS_ROW_BOOL(
        "out-bias", GPT_FIELD(out_bias), "off",
        "llama: a bias of what attention adds, as attention_bias of Llama gives it beside "
        "those of queries, keys and values"),
    TESS_ROW_BOOL("mlp-bias", GPT_FIELD(mlp_bias), "off",
                  "llama: biases of the feed-forward layers, as mlp_bias gives them"),
    TESS_ROW_CHOICE("gelu", GPT_FIELD(gelu), "tanh", "tanh|erf",
                    "gpt2, gate gelu: GELU by its approximation or by the error function"),
    TESS_ROW_CHOICE("gate", GPT_FIELD(gate), "silu", "silu|gelu",
                    "llama: what the gate of the feed-forward layer goes through: SwiGLU or "
                    "GeGLU"),
    TESS_ROW_BOOL("qk-norm", GPT_FIELD(qk_norm), "off",
                  "llama: an RMS norm of each head's query and key, as Qwen3 has it"),
    TESS_ROW_INT("width", GPT_FIELD(width), "128", 1, 1 << 20,
                 "channels of the embedding and between blocks; a multiple of heads unless "
                 "head-size is given"),
    TESS_ROW_INT(
        "ffn", GPT_FIELD(ffn), "0", 0, 1 << 24,
        "width of the feed-forward layer; 0: 4 width, llama: 8/3 width up to a multiple of 64"),
    TESS_ROW_INT("vocab", GPT_FIELD(vocab), "0", 0, (1 << 24) - GPT_PAD,
                 "size of the vocabulary, at least that of the data; 0: that of the data"),
    TESS_ROW_INT("context", GPT_FIELD(context), "0", 0, 1 << 24,
                 "positions at most; gpt2 learns one vector for each; 0: data.length"),
    TESS_ROW_INT("window", GPT_FIELD(window), "0", 0, 1 << 24,
                 "attention sees so many positions at most, its own and those before it "
                 "(Mistral's sliding_window); 0: all"),
    TESS_ROW_INT("window-from", GPT_FIELD(window_from), "0", 0, GPT_LAYERS_MAX,
                 "blocks before this one have no window (Qwen's max_window_layers)"),
    TESS_ROW_CHOICE("tied", GPT_FIELD(tied), "auto", "auto|on|off",
                    "whether the head's weight is the embedding; auto: in gpt2"),
    TESS_ROW_REAL("dropout", GPT_FIELD(dropout), "0", 0, 0.99,
                  "share dropped in training of the embedding and of what each attention and "
                  "feed-forward layer adds"),
    TESS_ROW_REAL("attention-dropout", GPT_FIELD(attention_dropout), "0", 0, 0.99,
                  "share of attention's probabilities dropped in training"),
    TESS_ROW_REAL("rope-base", GPT_FIELD(rope.base), "10000", 1, 1e12,
                  "llama: base of the rotary angles"),
    TESS_ROW_CHOICE("rope-scaling", GPT_FIELD(rope.scaling), "off",
                    "off|linear|dynamic|llama3|yarn",
                    "llama: how rotary angles are made smaller for a context that is rope-factor "
                    "times that of training before: all alike, by the base, or those of slow "
                    "pairs of channels"),
    TESS_ROW_REAL("rope-factor", GPT_FIELD(rope.factor), "1", 1, 1e6, "see rope-scaling"),
    TESS_ROW_INT("rope-context", GPT_FIELD(rope.context), "0", 0, 1 << 24,
                 "dynamic, llama3, yarn: positions of training before the scaling"),
    TESS_ROW_REAL("rope-low", GPT_FIELD(rope.low), "1", 1e-6, 1e6,
                  "llama3, yarn: pairs that turn less often in rope-context are slowed by all of "
                  "the factor"),
    TESS_ROW_REAL("rope-high", GPT_FIELD(rope.high), "4", 1e-6, 1e6,
                  "llama3, yarn: pairs that turn more often in rope-context stay as they are"),
    TESS_ROW_REAL("rope-amplitude", GPT_FIELD(rope.amplitude), "1", 1e-6, 1e6,
                  "yarn: rotated queries and keys are multiplied by this"),
    TESS_ROW_BOOL("rope-whole", GPT_FIELD(rope.whole), "on",
                  "yarn: the limits between slow and fast are rounded to whole pairs"),
    TESS_ROW_REAL("norm-epsilon", GPT_FIELD(epsilon), "1e-5", 1e-12, 1,
                  "added to the variance by the norms"),
    TESS_ROW_REAL("init-deviation", GPT_FIELD(deviation), "0.02", 1e-9, 10,
                  "standard deviation of the initial weights; divided by the root of 2 layers "
                  "where a layer's output is added to the residual"),
    TESS_ROW_INT(
        "head-mib", GPT_FIELD(head_mib), "0", 0, 1 << 20,
        "logits are computed for so many positions of a leaf at a time as take at most this "
        "many MiB, and at least twice where the leaf's take more than 64; 0: 64, on a GPU "
        "1024. The bits of the head's gradient depend on it"),
    TESS_ROW_END,
};

/* ---- options --------------------------------------------------------------------------------- */

static int64_t gpt_round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static enum tess_status gpt_check_rope(const struct gpt_options *o,
                                       const struct tess_model_input *input, int64_t head_size)
{
    const struct gpt_rope *rope = &o->rope;
    if (rope->scaling == GPT_SCALING_OFF)
        return TESS_OK;
    if (o->style == 0)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.rope-scaling is of --gpt.style llama");
    if (rope->scaling != GPT_SCALING_LINEAR && rope->context == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.rope-scaling needs gpt.rope-context, the positions of training before it");
    if (rope->scaling == GPT_SCALING_DYNAMIC && head_size < 4)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.rope-scaling dynamic needs heads of 4 channels or more");
    if (rope->scaling == GPT_SCALING_LLAMA3 && rope->low >= rope->high)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.rope-low %g is not below gpt.rope-high %g", rope->low,
                  rope->high);
    if (rope->scaling == GPT_SCALING_YARN && rope->base <= 1)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.rope-scaling yarn needs a gpt.rope-base above 1");
    /* Keys of earlier positions would have to turn again with each one. */
    if (rope->scaling == GPT_SCALING_DYNAMIC && input->decode && input->context > rope->context)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.rope-scaling dynamic generates up to gpt.rope-context, %lld positions, not "
                  "%lld",
                  (long long)rope->context, (long long)input->context);
    return TESS_OK;
}

static enum tess_status gpt_check_shape(const struct gpt_options *o,
                                        const struct tess_model_input *input)
{
    const int64_t kv_heads = o->kv_heads ? o->kv_heads : o->heads;
    if (input->row.rank != 1 || !input->tokens)
        TESS_FAIL(TESS_ERR_USAGE, "model gpt needs samples of tokens [T], not rows of rank %d",
                  input->row.rank);
    if (input->decode && input->row.dim[0] != 1)
        TESS_FAIL(TESS_ERR_USAGE, "model gpt generates from rows of one position");
    const int64_t head_size = o->head_size ? o->head_size : o->width / o->heads;
    if (o->head_size == 0 && o->width % o->heads != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.width %lld is not a multiple of gpt.heads %lld: every head has width / "
                  "heads channels, unless gpt.head-size is given",
                  (long long)o->width, (long long)o->heads);
    if (o->style == 0 && kv_heads != o->heads)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.kv-heads %lld: heads share keys and values only in --gpt.style llama",
                  (long long)o->kv_heads);
    if (o->heads % kv_heads != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.kv-heads %lld does not divide gpt.heads %lld: every key and value head "
                  "serves as many query heads",
                  (long long)kv_heads, (long long)o->heads);
    if (o->style == 0 &&
        (o->head_size != 0 || o->qkv_bias || o->out_bias || o->mlp_bias || o->qk_norm))
        TESS_FAIL(TESS_ERR_USAGE, "gpt.head-size, gpt.qkv-bias, gpt.out-bias, gpt.mlp-bias and "
                                  "gpt.qk-norm are of --gpt.style llama");
    if (o->style == 0 && o->gate != 0)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.gate is of --gpt.style llama");
    if (o->style == 1 && o->gelu != 0 && o->gate == 0)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.gelu is of --gpt.style gpt2 and of --gpt.gate gelu");
    if (o->window_from != 0 && o->window == 0)
        TESS_FAIL(TESS_ERR_USAGE, "gpt.window-from needs a gpt.window");
    TESS_TRY(gpt_check_rope(o, input, head_size));
    if (o->style == 1 && head_size % 2 != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.width %lld, gpt.heads %lld and gpt.head-size %lld give heads of %lld "
                  "channels: rotary positions need an even number",
                  (long long)o->width, (long long)o->heads, (long long)o->head_size,
                  (long long)head_size);
    return TESS_OK;
}

static enum tess_status gpt_check_data(const struct gpt_options *o,
                                       const struct tess_model_input *input)
{
    const int64_t length = input->decode ? input->context : input->row.dim[0];
    const int64_t context = o->context ? o->context : input->learnt;
    if (o->vocab != 0 && o->vocab < input->class_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "gpt.vocab %lld is smaller than the vocabulary of the data, %d: give 0 or at "
                  "least that",
                  (long long)o->vocab, input->class_count);
    if (input->decode && o->style == 0 && length > context)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a context of %lld positions: this model has learnt %lld, and takes no more",
                  (long long)length, (long long)context);
    if (!input->decode && o->context != 0 && length > o->context)
        TESS_FAIL(TESS_ERR_USAGE,
                  "sequences of %lld positions do not fit into gpt.context %lld: shorten "
                  "data.length or give a longer context",
                  (long long)length, (long long)o->context);
    return TESS_OK;
}

static enum tess_status gpt_check_axis(const struct gpt_state *gpt)
{
    const struct tess_tensor_axis *axis = &gpt->axis;
    /* Query groups are kept whole. */
    const int64_t common =
        tess__split_common(gpt->kv_heads, tess__split_common(gpt->ffn, gpt->padded));
    char fitting[TESS__FITTING_BYTES];
    if (common % axis->parts != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "model gpt cannot be cut into %d parts along the tensor axis: they must divide "
                  "its %d key and value heads, the feed-forward width %lld and the padded "
                  "vocabulary %lld; %s would",
                  axis->parts, gpt->kv_heads, (long long)gpt->ffn, (long long)gpt->padded,
                  tess__split_fitting(common, fitting));
    if (gpt->decode && axis->rank_count > 1)
        TESS_FAIL(TESS_ERR_USAGE, "model gpt generates on one rank");
    if (axis->sequence && gpt->length % axis->rank_count != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "sequence parallel cannot cut %lld positions into %d equal runs: give a "
                  "data.length that is a multiple of the ranks of the tensor axis",
                  (long long)gpt->length, axis->rank_count);
    return TESS_OK;
}

/* Can another weight be stacked on one of so many outputs? */
static bool gpt_stacks(const struct gpt_state *gpt, int64_t out)
{
    return out * gpt->width % TESS_SUM_BLOCK == 0;
}

/* Which of Llama's products are one follows from the shapes of a part, so that the bits are the
 * same on every layout. */
static void gpt_read_part(struct gpt_state *gpt, bool stacks)
{
    const int64_t ffn = gpt->ffn / gpt->axis.parts;
    gpt->part_heads = gpt->heads / gpt->axis.parts;
    gpt->part_kv_heads = gpt->kv_heads / gpt->axis.parts;
    const int64_t q = gpt->part_heads * gpt->head_size, kv = gpt->part_kv_heads * gpt->head_size;
    const bool plain = !gpt->qkv_bias && !gpt->qk_norm; /* biases are not stacked, nor norms cut */
    const bool qkv = !gpt->llama || (stacks && plain && gpt_stacks(gpt, q) && gpt_stacks(gpt, kv));
    const bool gate_up = gpt->llama && stacks && !gpt->mlp_bias && gpt_stacks(gpt, ffn);
    gpt->project_count = qkv ? 1 : 3;
    gpt->project_stride[0] = qkv ? q + 2 * kv : q;
    gpt->project_stride[1] = qkv ? q + 2 * kv : kv;
    gpt->widen_count = gpt->llama && !gate_up ? 2 : 1;
    gpt->hidden_stride = gate_up ? 2 * ffn : ffn;
    gpt->mixed = gpt->positions * q;
    gpt->hidden = gpt->positions * ffn;
    gpt->words = gpt->padded / gpt->axis.parts;
}

static enum tess_status gpt_read_options(struct gpt_state *gpt, const struct gpt_options *o,
                                         const struct tess_model_input *input)
{
    const int64_t length = input->row.dim[0];
    gpt->llama = o->style == 1;
    gpt->tied = o->tied == 0 ? !gpt->llama : o->tied == 1;
    gpt->layers = (int32_t)o->layers;
    gpt->heads = (int32_t)o->heads;
    gpt->kv_heads = (int32_t)(o->kv_heads ? o->kv_heads : o->heads);
    gpt->width = o->width;
    gpt->head_size = o->head_size ? o->head_size : o->width / o->heads;
    gpt->qkv_bias = o->qkv_bias;
    gpt->out_bias = o->out_bias;
    gpt->mlp_bias = o->mlp_bias;
    gpt->erf = o->gelu == 1;
    gpt->geglu = o->gate == 1;
    gpt->window = o->window;
    gpt->window_from = (int32_t)o->window_from;
    gpt->qk_norm = o->qk_norm;
    gpt->ffn = o->ffn       ? o->ffn
               : gpt->llama ? gpt_round_up((8 * o->width + 2) / 3, GPT_FFN_MULTIPLE)
                            : 4 * o->width;
    gpt->vocabulary = o->vocab ? o->vocab : input->class_count;
    gpt->padded = gpt_round_up(gpt->vocabulary, GPT_PAD);
    gpt->context = o->context ? o->context : input->decode ? input->learnt : length;
    gpt->kept = input->context;
    gpt->sequences = input->sequences;
    gpt->dropout = o->dropout;
    gpt->attention_dropout = input->decode ? 0 : o->attention_dropout;
    gpt->rotary = tess__gpt_rotary(&o->rope, gpt->head_size, length);
    gpt->epsilon = (float)o->epsilon;
    gpt->deviation = (float)o->deviation;
    gpt->head_bytes = (o->head_mib     ? o->head_mib
                       : input->device ? GPT_HEAD_MIB_DEVICE
                                       : GPT_HEAD_MIB)
                      << 20;
    gpt->head_small = gpt->head_bytes < GPT_HEAD_MIB << 20 ? gpt->head_bytes : GPT_HEAD_MIB << 20;

    gpt->classes = input->class_count;
    gpt->dtype = input->dtype;
    gpt->decode = input->decode;
    gpt->axis = input->axis;
    gpt->length = length;
    gpt->rows = input->rows;
    gpt->leaves = input->rows / input->leaf_rows;
    gpt->leaf_length = input->leaf_rows * length;
    gpt->own_length = length / (input->axis.sequence ? input->axis.rank_count : 1);
    gpt->positions = input->rows * length;
    gpt->own_positions = input->rows * gpt->own_length;

    gpt->lora = input->lora;
    gpt->runs = input->axis.runs > 1 && input->axis.rank_count > 1 ? input->axis.runs : 1;
    if (gpt->leaves % gpt->runs != 0 || gpt->lora.rank > 0)
        gpt->runs = 1;
    gpt_read_part(gpt, input->stacks && gpt->lora.rank == 0); /* adapters are of one layer each */
    return gpt_check_axis(gpt);
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static void gpt_declare_table(struct gpt_state *gpt, struct tess_declare *declare)
{
    const struct tess_init init = {TESS_INIT_NORMAL, gpt->deviation};
    const bool padded = gpt->padded != gpt->vocabulary;
    const struct tess_op_desc desc = {.kind = TESS_OP_EMBEDDING,
                                      .rows = gpt->positions,
                                      .leaf_rows = gpt->leaf_length,
                                      .in = gpt->words,
                                      .out = gpt->width};
    tess_declare_unit(declare, "wte", tess_shape2(gpt->own_length, gpt->width));
    gpt->table = tess_declare_sliced(
        declare, gpt->llama ? "model.embed_tokens.weight" : "wte.weight",
        tess_shape2(gpt->padded, gpt->width), init, 0,
        (struct tess_slice){.axis = 0, .blocks = 1, .used = padded ? gpt->vocabulary : 0});
    gpt->table_op = tess_declare_op(declare, &desc, true);
    gpt->table_terms = -1;
    if (tess__layer_has_terms(&gpt->axis))
        gpt->table_terms = tess_declare_tensor(
            declare, "terms", gpt->dtype, tess_shape3(gpt->axis.count, gpt->length, gpt->width),
            TESS_LIFE_UNIT);
    tess_declare_crossing(declare, TESS_CALL_FORWARD, TESS_CALL_SUM, gpt->positions * gpt->width);
    if (gpt->lora.rank == 0)
        tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_WIDEN,
                              gpt->positions * gpt->width);
}

/* Vocabulary parallel (Shoeybi et al. 2019, section 3): each part looks up the tokens it has. */
static enum tess_status gpt_table_forward(const struct gpt_state *gpt, const struct tess_pass *pass)
{
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    void *terms = gpt->table_terms < 0 ? pass->output : pass->tensor[gpt->table_terms];
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(tess_embedding_forward(
            pass->op[gpt->table_op], pass->input, (gpt->axis.first + p) * gpt->words,
            (const char *)pass->param[gpt->table] + p * gpt->words * gpt->width * word, NULL,
            (char *)terms + p * gpt->positions * gpt->width * word));
    TESS_TRY(tess__gpt_sum(gpt, pass, terms, pass->output));
    if (gpt->llama)
        tess__gpt_dropout(gpt, pass, 0, pass->output, pass->output);
    return TESS_OK;
}

static enum tess_status gpt_table_backward(const struct gpt_state *gpt,
                                           const struct tess_pass *pass)
{
    const void *whole;
    if (pass->grad[gpt->table] == NULL)
        return TESS_OK;
    if (gpt->llama)
        tess__gpt_dropout(gpt, pass, 0, pass->output_grad, pass->output_grad_scratch);
    TESS_TRY(tess__gpt_widen(gpt, pass, gpt->table_terms, pass->output_grad, &whole));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        TESS_TRY(tess_embedding_backward(pass->op[gpt->table_op], pass->input,
                                         (gpt->axis.first + p) * gpt->words, whole,
                                         pass->grad[gpt->table] + p * gpt->words * gpt->width));
    return TESS_OK;
}

static void gpt_declare_places(struct gpt_state *gpt, struct tess_declare *declare)
{
    const struct tess_init init = {TESS_INIT_NORMAL, gpt->deviation};
    const struct tess_op_desc desc = {.kind = TESS_OP_EMBEDDING,
                                      .rows = gpt->positions,
                                      .leaf_rows = gpt->leaf_length,
                                      .in = gpt->context,
                                      .out = gpt->width,
                                      .length = gpt->length};
    tess_declare_unit(declare, "wpe", tess_shape2(gpt->own_length, gpt->width));
    gpt->places = tess_declare_param(declare, "wpe.weight", tess_shape2(gpt->context, gpt->width),
                                     init, TESS_PARAM_TOKENS);
    gpt->places_op = tess_declare_op(declare, &desc, false);
    gpt->places_whole = -1;
    if (gpt->axis.sequence)
        gpt->places_whole = tess_declare_tensor(
            declare, "whole", gpt->dtype, tess_shape2(gpt->length, gpt->width), TESS_LIFE_UNIT);
}

/* Where this rank's run of leaf `leaf` begins in an array of all positions: bytes. */
static int64_t gpt_run_begin(const struct gpt_state *gpt, int64_t leaf)
{
    const int64_t own = gpt->own_positions / gpt->leaves;
    return (leaf * gpt->leaf_length + gpt->axis.rank * own) * gpt->width *
           (int64_t)tess_dtype_bytes(gpt->dtype);
}

static enum tess_status gpt_places_forward(const struct gpt_state *gpt,
                                           const struct tess_pass *pass)
{
    struct tess_op *op = pass->op[gpt->places_op];
    const void *table = pass->param[gpt->places];
    const int64_t own = gpt->own_positions / gpt->leaves * gpt->width;
    if (gpt->places_whole < 0) {
        /* Without `place` row i has position i mod T. */
        TESS_TRY(tess_embedding_forward(op, pass->place, 0, table, pass->input, pass->output));
    } else {
        const char *input = pass->input, *whole = pass->tensor[gpt->places_whole];
        char *output = pass->output;
        const int64_t bytes = own * (int64_t)tess_dtype_bytes(pass->dtype);

        /* A run may begin anywhere in a row, which the operation has no word for. */
        TESS_TRY(tess_embedding_forward(op, pass->place, 0, table, NULL,
                                        pass->tensor[gpt->places_whole]));
        for (int64_t l = 0; l < gpt->leaves; l++)
            tess_add(pass->kernel, pass->dtype, own, input + l * bytes,
                     whole + gpt_run_begin(gpt, l), output + l * bytes);
    }
    tess__gpt_dropout(gpt, pass, 0, pass->output, pass->output);
    return TESS_OK;
}

static enum tess_status gpt_places_backward(const struct gpt_state *gpt,
                                            const struct tess_pass *pass)
{
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    const int64_t own = gpt->own_positions / gpt->leaves * gpt->width * word;
    const void *dy = pass->input_grad;
    if (pass->grad[gpt->places] == NULL) /* nothing below is trained either */
        return TESS_OK;
    tess__gpt_dropout(gpt, pass, 0, pass->output_grad, pass->input_grad);
    if (gpt->places_whole >= 0) {
        const char *run = pass->input_grad;
        char *whole = pass->tensor[gpt->places_whole];
        tess_fill(pass->kernel, gpt->positions * gpt->width * word, 0, whole);
        for (int64_t l = 0; l < gpt->leaves; l++)
            tess_copy(pass->kernel, own, run + l * own, whole + gpt_run_begin(gpt, l));
        dy = whole;
    }
    return tess_embedding_backward(pass->op[gpt->places_op], pass->place, 0, dy,
                                   pass->grad[gpt->places]);
}

/* ---- the chain ------------------------------------------------------------------------------- */

static enum tess_status gpt_declare(void *state, const void *options,
                                    const struct tess_model_input *input,
                                    struct tess_declare *declare)
{
    struct gpt_state *gpt = state;
    TESS_TRY(gpt_check_shape(options, input));
    TESS_TRY(gpt_check_data(options, input));
    TESS_TRY(gpt_read_options(gpt, options, input));
    TESS_TRY(tess__gpt_check_lora(gpt));
    gpt_declare_table(gpt, declare);
    if (!gpt->llama)
        gpt_declare_places(gpt, declare);
    gpt->block_first = gpt->llama ? 1 : 2;
    for (int32_t layer = 0; layer < gpt->layers; layer++)
        tess__gpt_declare_block(gpt, declare, layer);
    gpt->norm_unit = gpt->block_first + gpt->layers;
    tess_declare_unit(declare, "norm", tess_shape2(gpt->own_length, gpt->width));
    tess__gpt_declare_norm(gpt, declare, gpt->llama ? "model.norm" : "ln_f", &gpt->norm);
    tess__gpt_declare_head(gpt, declare);
    return TESS_OK;
}

static enum tess_status gpt_forward(void *state, const struct tess_pass *pass)
{
    const struct gpt_state *gpt = state;
    const int32_t layer = pass->unit - gpt->block_first;
    if (pass->unit == 0)
        return gpt_table_forward(gpt, pass);
    if (layer < 0)
        return gpt_places_forward(gpt, pass);
    if (layer < gpt->layers)
        return tess__gpt_block_forward(gpt, &gpt->block[layer], pass);
    if (pass->unit == gpt->norm_unit)
        return tess__gpt_norm_forward(pass, &gpt->norm, pass->input, NULL, NULL, pass->output);
    return tess__gpt_head_forward(gpt, pass);
}

static enum tess_status gpt_backward(void *state, const struct tess_pass *pass)
{
    const struct gpt_state *gpt = state;
    const int32_t layer = pass->unit - gpt->block_first;
    if (pass->unit == 0)
        return gpt_table_backward(gpt, pass);
    if (layer < 0)
        return gpt_places_backward(gpt, pass);
    if (layer < gpt->layers)
        return tess__gpt_block_backward(gpt, &gpt->block[layer], pass);
    if (pass->unit == gpt->norm_unit)
        return tess__gpt_norm_backward(pass, &gpt->norm, pass->input, pass->output_grad, NULL,
                                       pass->input_grad);
    return tess__gpt_head_backward(gpt, pass);
}

const struct tess_model_ops tess_model_gpt = {
    .abi = TESS_ABI,
    .name = "gpt",
    .summary = "decoder-only transformer: GPT-2, Llama, Mistral, Qwen",
    .options = gpt_option_table,
    .options_size = sizeof(struct gpt_options),
    .state_size = sizeof(struct gpt_state),
    .tokens = true,
    .documents = true,
    .tensor = true,
    .lora = true,
    .declare = gpt_declare,
    .forward = gpt_forward,
    .backward = gpt_backward,
};
