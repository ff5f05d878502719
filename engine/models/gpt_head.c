/*
 * The head of model gpt: logits = x W^T, and the cross-entropy of the next token, in chunks of
 * positions: part of a leaf, or leaves whose logits are small, so that logits exist for one chunk
 * at a time. In training forward does nothing and backward does all, chunk by chunk: logits, loss,
 * their gradient, those of x and W; so nothing is computed twice or kept.
 *
 * Along the tensor axis each part has the logits of its part of the vocabulary; what is exchanged
 * are three numbers a position (Shoeybi et al. 2019, section 3), see tess_xent_max.
 *
 * Sums for W: within a leaf over its chunks in turn, then over the leaves as the tree of
 * tessera/comm.h: those of a chunk by the product, groups of them by a binary counter; so the bits
 * are those of a pass for each leaf. Group l is summed up in level `ones in l`:
 *
 *     group   0   1        2   3                 4   5
 *     level   0   1        1   2                 1   2
 *     then        1 to 0       2 to 1, 1 to 0        2 to 1      and at the end 1 to 0
 */
#include "gpt.h"

#include "tessera/check.h"

/* What is known of each position of a chunk: greatest logit; sum and label's logit; best class. */
enum { HEAD_MAX, HEAD_SUM, HEAD_TARGET, HEAD_BEST, HEAD_STATS };

/* ---- declaration ----------------------------------------------------------------------------- */

static int64_t head_leaf_bytes(const struct gpt_state *gpt)
{
    return gpt->leaf_length * gpt->padded * (int64_t)tess_dtype_bytes(gpt->dtype);
}

/*
 * Chunks in a leaf: one where its logits, all parts' together, fit in head_small; else the fewest
 * that divide its positions and keep a chunk's in head_bytes if any can, at least two unless it has
 * but one position.
 */
static int64_t head_chunks(const struct gpt_state *gpt)
{
    const int64_t bytes = head_leaf_bytes(gpt), length = gpt->leaf_length;
    if (bytes <= gpt->head_small)
        return 1;
    for (int64_t n = 2; n < length; n++)
        if (length % n == 0 && bytes / n <= gpt->head_bytes)
            return n;
    return length;
}

static int32_t head_ones(int64_t leaf)
{
    return __builtin_popcountll((unsigned long long)leaf);
}

/* Levels of the sum over leaves beyond the gradient itself. */
static int32_t head_levels(int64_t leaves)
{
    int32_t most = 0;
    for (int64_t leaf = 0; leaf < leaves; leaf++)
        most = head_ones(leaf) > most ? head_ones(leaf) : most;
    return most;
}

/* Bytes of the logits of `group` leaves at once, and of the sums that wait then. */
static int64_t head_group_bytes(const struct gpt_state *gpt, int64_t group)
{
    const int64_t sum = gpt->padded * gpt->width * (int64_t)sizeof(float);
    const int64_t sums = gpt->lora.rank > 0 ? 0 : head_levels(gpt->leaves / group);
    return group * head_leaf_bytes(gpt) + sums * sum;
}

/*
 * Leaves in a chunk, where a leaf is not cut: each more is a pass over the weight and its gradient
 * less. A subtree of them, as large as head_small allows, or as takes no more memory than a smaller
 * one with the sums that wait. The bits are the same. Terms of parts are summed leaf by leaf.
 */
static int64_t head_group(const struct gpt_state *gpt, int64_t chunks)
{
    int64_t best = 1;
    if (gpt->decode || chunks > 1 || gpt->axis.parts > 1)
        return 1;
    for (int64_t n = 2; n < 2 * gpt->leaves; n *= 2) {
        const int64_t group = n < gpt->leaves ? n : gpt->leaves;
        if (gpt->leaves % group == 0 &&
            (group * head_leaf_bytes(gpt) <= gpt->head_small ||
             head_group_bytes(gpt, group) <= head_group_bytes(gpt, best)))
            best = group;
    }
    return best;
}

static void head_declare_tensors(struct gpt_state *gpt, struct tess_declare *declare)
{
    struct gpt_head *head = &gpt->head;
    const int64_t parts = gpt->axis.count, words = gpt->words;
    const int32_t levels = head_levels(gpt->leaves / head->group);
    head->logits = tess_declare_tensor(declare, "logits", gpt->dtype,
                                       tess_shape3(parts, head->chunk, words), TESS_LIFE_CALL);
    head->levels = head->terms = head->whole = -1;
    head->stat = tess_declare_tensor(declare, "chunk.xent", TESS_F32,
                                     tess_shape3(HEAD_STATS, parts, head->chunk), TESS_LIFE_CALL);
    head->stats = tess_declare_tensor(declare, "xent", TESS_F32,
                                      tess_shape2(HEAD_STATS, gpt->length), TESS_LIFE_UNIT);
    if (gpt->decode)
        return;
    if (levels > 0 && gpt->lora.rank == 0)
        head->levels =
            tess_declare_tensor(declare, "levels", TESS_F32,
                                tess_shape4(levels, parts, words, gpt->width), TESS_LIFE_CALL);
    if (tess__layer_has_terms(&gpt->axis))
        head->terms =
            tess_declare_tensor(declare, "terms", gpt->dtype,
                                tess_shape3(parts, gpt->leaf_length, gpt->width), TESS_LIFE_CALL);
    if (gpt->axis.sequence)
        head->whole =
            tess_declare_tensor(declare, "whole", gpt->dtype,
                                tess_shape2(gpt->leaf_length, gpt->width), TESS_LIFE_CALL);
}

void tess__gpt_declare_head(struct gpt_state *gpt, struct tess_declare *declare)
{
    const char *const name = "lm_head.weight";
    const struct tess_init init = {TESS_INIT_NORMAL, gpt->deviation};
    const bool padded = gpt->padded != gpt->vocabulary;
    const struct tess_slice slice = {.axis = 0, .blocks = 1, .used = padded ? gpt->vocabulary : 0};
    struct gpt_head *head = &gpt->head;

    head->chunk_count = gpt->decode ? 1 : head_chunks(gpt);
    head->group = head_group(gpt, head->chunk_count);
    head->chunk = head->group * gpt->leaf_length / head->chunk_count;
    const int64_t calls = gpt->leaves / head->group * head->chunk_count * gpt->axis.count;
    struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                .rows = head->chunk,
                                .leaf_rows = head->chunk / head->group,
                                .calls = (int32_t)calls,
                                .in = gpt->width,
                                .out = gpt->words,
                                .frozen = gpt->lora.rank > 0};

    tess_declare_unit(declare, "head", tess_shape1(gpt->decode ? gpt->classes : 1));
    head->weight = gpt->tied
                       ? tess_declare_tied(declare, name, gpt->table)
                       : tess_declare_sliced(declare, name, tess_shape2(gpt->padded, gpt->width),
                                             init, 0, slice);
    for (int i = 0; i < (desc.frozen || head->chunk_count == 1 ? 1 : 2); i++) {
        desc.add_grad = i == 1;
        head->op[i] = tess_declare_op(declare, &desc, false);
    }
    head_declare_tensors(gpt, declare);
    /* The greatest logit, two sums and the best class of each position; see head_measure. */
    tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_F32, 4 * gpt->positions);
    tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_WIDEN,
                          gpt->positions * gpt->width);
    tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_SUM, gpt->positions * gpt->width);
    if (!gpt->decode)
        tess_declare_loss(declare, gpt->length);
}

/* ---- a chunk --------------------------------------------------------------------------------- */

/* One chunk: positions, and where they are. */
struct head_chunk {
    const void *x;        /* [chunk, C] */
    void *term;           /* [chunk, C] of the first part; NULL: no gradient */
    const int32_t *label; /* [chunk] */
    float *dweight;       /* [P, V / parts, C]; NULL: frozen */
    int64_t at;           /* positions before it in the pass */
    bool first;           /* of its leaf, or of all its leaves */
};

/* Elements of a part's weight. */
static int64_t head_weights(const struct gpt_state *gpt)
{
    return gpt->words * gpt->width;
}

static void *head_logits(const struct gpt_state *gpt, const struct tess_pass *pass, int32_t part)
{
    return tess__gpt_at(pass, gpt->head.logits, part * gpt->head.chunk * gpt->words);
}

static const void *head_weight(const struct gpt_state *gpt, const struct tess_pass *pass,
                               int32_t part)
{
    return (const char *)pass->param[gpt->head.weight] +
           part * head_weights(gpt) * (int64_t)tess_dtype_bytes(pass->dtype);
}

/* The first class of a part, and how many of its columns are classes and not padding. */
static int64_t head_first(const struct gpt_state *gpt, int32_t part)
{
    return (gpt->axis.first + part) * gpt->words;
}

static int64_t head_classes(const struct gpt_state *gpt, int32_t part)
{
    const int64_t left = gpt->vocabulary - head_first(gpt, part);
    return left < 0 ? 0 : left < gpt->words ? left : gpt->words;
}

/*
 * What is known of a chunk's positions, for a part; sums and targets of a part lie side by side, so
 * that they cross the axis together. Without parts nothing crosses, and it lies where the loss will
 * look for it.
 */
static float *head_stat(const struct gpt_state *gpt, const struct tess_pass *pass,
                        const struct head_chunk *chunk, int stat, int32_t part)
{
    const int64_t parts = gpt->axis.count;
    const int64_t at = stat == HEAD_MAX      ? part
                       : stat == HEAD_BEST   ? 3 * parts + part
                       : stat == HEAD_TARGET ? parts + 2 * part + 1
                                             : parts + 2 * part;
    if (gpt->axis.parts == 1)
        return (float *)pass->tensor[gpt->head.stats] + stat * gpt->positions + chunk->at;
    return (float *)pass->tensor[gpt->head.stat] + at * gpt->head.chunk;
}

/* What the loss has besides; the vocabulary may be larger than that of the data. */
static struct tess_xent head_xent(const struct gpt_state *gpt, const struct tess_pass *pass)
{
    struct tess_xent how = pass->xent;
    how.spread = how.smoothing / (float)gpt->vocabulary;
    return how;
}

/* Logits of a chunk, and what its loss and their gradient need; the first part has it for all. */
static enum tess_status head_measure(const struct gpt_state *gpt, const struct tess_pass *pass,
                                     const struct head_chunk *chunk)
{
    const int64_t rows = gpt->head.chunk, words = gpt->words;
    const float *max = head_stat(gpt, pass, chunk, HEAD_MAX, 0);
    for (int32_t p = 0; p < gpt->axis.count; p++) {
        TESS_TRY(tess_linear_forward(tess__layer_op(pass, gpt->head.op[0]), chunk->x,
                                     head_weight(gpt, pass, p), NULL, head_logits(gpt, pass, p)));
        tess_xent_max(
            pass->kernel, pass->dtype, rows, head_classes(gpt, p), words, head_logits(gpt, pass, p),
            head_stat(gpt, pass, chunk, HEAD_MAX, p), head_stat(gpt, pass, chunk, HEAD_SUM, p),
            head_stat(gpt, pass, chunk, HEAD_TARGET, p), head_stat(gpt, pass, chunk, HEAD_BEST, p));
    }
    TESS_TRY(tess_pass_max_f32(pass, rows, head_stat(gpt, pass, chunk, HEAD_MAX, 0)));
    for (int32_t p = 0; p < gpt->axis.count; p++)
        tess_xent_sum(pass->kernel, pass->dtype, rows, head_classes(gpt, p), words,
                      head_first(gpt, p), head_xent(gpt, pass), head_logits(gpt, pass, p),
                      chunk->label, max, head_stat(gpt, pass, chunk, HEAD_SUM, p),
                      head_stat(gpt, pass, chunk, HEAD_TARGET, p),
                      head_stat(gpt, pass, chunk, HEAD_BEST, p));
    if (gpt->axis.parts == 1)
        return TESS_OK;
    TESS_TRY(tess_pass_sum_f32(pass, 2 * rows, head_stat(gpt, pass, chunk, HEAD_SUM, 0)));
    TESS_TRY(tess_pass_max_f32(pass, rows, head_stat(gpt, pass, chunk, HEAD_BEST, 0)));
    for (int stat = 0; stat < HEAD_STATS; stat++)
        tess_copy(pass->kernel, rows * (int64_t)sizeof(float), head_stat(gpt, pass, chunk, stat, 0),
                  (float *)pass->tensor[gpt->head.stats] + stat * gpt->positions + chunk->at);
    return TESS_OK;
}

/* The gradient of the logits, in their place, and those of x and the weight. */
static enum tess_status head_chunk_backward(const struct gpt_state *gpt,
                                            const struct tess_pass *pass,
                                            const struct head_chunk *chunk)
{
    const int64_t rows = gpt->head.chunk;
    const int64_t term = gpt->leaf_length * gpt->width * (int64_t)tess_dtype_bytes(pass->dtype);
    for (int32_t p = 0; p < gpt->axis.count; p++) {
        void *dlogits = head_logits(gpt, pass, p);
        tess_xent_grad(pass->kernel, pass->dtype, rows, head_classes(gpt, p), gpt->words,
                       head_first(gpt, p), head_xent(gpt, pass), pass->loss_grad, dlogits,
                       chunk->label, head_stat(gpt, pass, chunk, HEAD_MAX, 0),
                       head_stat(gpt, pass, chunk, HEAD_SUM, 0), dlogits);
        if (chunk->dweight != NULL)
            TESS_TRY(tess_linear_backward_weight(tess__layer_op(pass, gpt->head.op[!chunk->first]),
                                                 chunk->x, dlogits,
                                                 chunk->dweight + p * head_weights(gpt), NULL));
        TESS_TRY(tess_linear_backward_data(tess__layer_op(pass, gpt->head.op[0]), dlogits,
                                           head_weight(gpt, pass, p),
                                           (char *)chunk->term + p * term));
    }
    return TESS_OK;
}

/* ---- a group of leaves ----------------------------------------------------------------------- */

static float *head_level(const struct gpt_state *gpt, const struct tess_pass *pass, int32_t level)
{
    const int64_t count = gpt->axis.count * head_weights(gpt);
    if (level == 0 || pass->grad[gpt->head.weight] == NULL)
        return pass->grad[gpt->head.weight];
    return (float *)pass->tensor[gpt->head.levels] + (level - 1) * count;
}

static enum tess_status head_leaves(const struct gpt_state *gpt, const struct tess_pass *pass,
                                    int64_t group, bool gradient)
{
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    const int64_t positions = gpt->head.group * gpt->leaf_length;
    const int64_t whole_count = positions * gpt->width;
    const int64_t groups = gpt->leaves / gpt->head.group;
    const int64_t own = group * (gpt->own_positions / groups) * gpt->width * word;
    const int64_t step = gpt->head.chunk * gpt->width * word;
    const void *x = (const char *)pass->input + own;
    char *dx = gradient ? (char *)pass->input_grad + own : NULL;
    char *terms = gradient && gpt->head.terms >= 0 ? pass->tensor[gpt->head.terms] : dx;
    if (gpt->axis.sequence) {
        TESS_TRY(tess_pass_widen(pass, whole_count, x, pass->tensor[gpt->head.whole]));
        x = pass->tensor[gpt->head.whole];
    }
    for (int64_t c = 0; c < gpt->head.chunk_count; c++) {
        const int64_t at = group * positions + c * gpt->head.chunk;
        const struct head_chunk chunk = {
            .x = (const char *)x + c * step,
            .term = gradient ? terms + c * step : NULL,
            .label = pass->label + at,
            .dweight = gradient ? head_level(gpt, pass, head_ones(group)) : NULL,
            .at = at,
            .first = c == 0,
        };
        TESS_TRY(head_measure(gpt, pass, &chunk));
        if (gradient)
            TESS_TRY(head_chunk_backward(gpt, pass, &chunk));
    }
    return gradient ? tess_pass_sum(pass, whole_count, terms, dx) : TESS_OK;
}

/* Add level to the one below it. */
static void head_merge(const struct gpt_state *gpt, const struct tess_pass *pass, int32_t level)
{
    tess_accumulate(pass->kernel, gpt->axis.count * head_weights(gpt), 1,
                    head_level(gpt, pass, level), head_level(gpt, pass, level - 1));
}

static enum tess_status head_run(const struct gpt_state *gpt, const struct tess_pass *pass,
                                 bool gradient)
{
    const float *stats = pass->tensor[gpt->head.stats];
    const bool trained = gradient && pass->grad[gpt->head.weight] != NULL;
    const int64_t groups = gpt->leaves / gpt->head.group;
    for (int64_t group = 0; group < groups; group++) {
        TESS_TRY(head_leaves(gpt, pass, group, gradient));
        for (int32_t level = head_ones(group); trained && level >= head_ones(group + 1); level--)
            head_merge(gpt, pass, level);
    }
    for (int32_t level = head_ones(groups) - 1; trained && level > 0; level--)
        head_merge(gpt, pass, level);
    tess_xent_loss(pass->kernel, gpt->positions, gpt->length, head_xent(gpt, pass), pass->label,
                   stats + HEAD_MAX * gpt->positions, stats + HEAD_SUM * gpt->positions,
                   stats + HEAD_TARGET * gpt->positions, stats + HEAD_BEST * gpt->positions,
                   pass->loss, pass->correct);
    if (pass->each != NULL)
        tess_xent_loss(pass->kernel, gpt->positions, 1, head_xent(gpt, pass), pass->label,
                       stats + HEAD_MAX * gpt->positions, stats + HEAD_SUM * gpt->positions,
                       stats + HEAD_TARGET * gpt->positions, stats + HEAD_BEST * gpt->positions,
                       pass->each, (int32_t *)(void *)(pass->each + gpt->positions));
    return TESS_OK;
}

/* ---- decode ---------------------------------------------------------------------------------- */

/* A part's logits to their places in the rows of the output. */
static void head_output(const struct gpt_state *gpt, const struct tess_pass *pass, int32_t part)
{
    const int64_t first = head_first(gpt, part), left = gpt->classes - first;
    const int64_t count = left < gpt->words ? left : gpt->words;
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    const char *logits = head_logits(gpt, pass, part);
    for (int64_t r = 0; count > 0 && r < gpt->positions; r++)
        tess_cast(pass->kernel, count, pass->dtype, logits + r * gpt->words * word, TESS_F32,
                  (float *)pass->output + r * gpt->classes + first);
}

/* Logits, and the loss of the labels as training has it. */
static enum tess_status head_decode(const struct gpt_state *gpt, const struct tess_pass *pass)
{
    const struct head_chunk all = {.x = pass->input, .label = pass->label};
    const float *stats = pass->tensor[gpt->head.stats];
    const int64_t n = gpt->positions;
    if (pass->label != NULL) {
        TESS_TRY(head_measure(gpt, pass, &all));
        tess_xent_loss(pass->kernel, n, 1, head_xent(gpt, pass), pass->label, stats + HEAD_MAX * n,
                       stats + HEAD_SUM * n, stats + HEAD_TARGET * n, stats + HEAD_BEST * n,
                       pass->loss, pass->correct);
    }
    for (int32_t p = 0; pass->output != NULL && p < gpt->axis.count; p++) {
        if (pass->label == NULL)
            TESS_TRY(tess_linear_forward(tess__layer_op(pass, gpt->head.op[0]), pass->input,
                                         head_weight(gpt, pass, p), NULL,
                                         head_logits(gpt, pass, p)));
        head_output(gpt, pass, p);
    }
    return TESS_OK;
}

enum tess_status tess__gpt_head_forward(const struct gpt_state *gpt, const struct tess_pass *pass)
{
    if (gpt->decode)
        return head_decode(gpt, pass);
    return pass->training ? TESS_OK : head_run(gpt, pass, false);
}

enum tess_status tess__gpt_head_backward(const struct gpt_state *gpt, const struct tess_pass *pass)
{
    return head_run(gpt, pass, true);
}
